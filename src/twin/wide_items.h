// The work of attention in a large iteration: which rows attend to which keys and values, and which
// worker does what of it. The wide class (kernels/cuda/attend/wide_attend.cuh) computes it.
//
// An item is a run of query tokens of one sequence, and a unit an item for one KV head. There are
// two kinds. A stream has so few query rows (tokens times heads of a group) that all that counts is
// how fast keys and values come: single warps read them, a page a step. A tile has up to
// MGL_WIDE_TILE_ROWS rows that a whole worker computes together, MGL_WIDE_TILE_STEP positions a
// step.
//
// The units of a kind, one behind the other, are a line, and a line is cut into as many equal
// lengths as there are warps (streams) or workers (tiles): nobody waits for a last wave, whatever
// the contexts. A unit that is cut is computed in parts, which somebody adds up in order: of
// streams who began the unit, of tiles who ends last.
// Workers take their lengths of both lines as if tiles came behind streams, each step counted with
// what it costs; so workers that read and workers that multiply run side by side. A unit counts
// some steps more than it has, for its beginning and end.
//
// Where rows are cut into two phases (mgl_wide_shape.border), items do not reach over the border,
// and each half of a line is cut for all workers by itself. Between the workers of the two phases
// there are two without work (stages.c).
//
// One source for host and device (twin/planner_lanes.h); all lanes call mgl_wide_build, or its
// halves, of which the second takes a warp most of the time: a block does it (wide_plan.cu).
//
// Rejected: dealing out whole units, longest first: with four units a worker the last one costs up
// to a quarter, and one long sequence among short ones is one worker's work.
#ifndef MGL_TWIN_WIDE_ITEMS_H
#define MGL_TWIN_WIDE_ITEMS_H

#include <stdbool.h>
#include <stdint.h>

#include "twin/planner.h"
#include "twin/planner_lanes.h"

enum {
  MGL_WIDE_STREAM_ROWS = 8,   // tokens of a stream times heads of a group, at most
  MGL_WIDE_TILE_ROWS = 128,   // and of a tile
  MGL_WIDE_STREAM_STEP = 16,  // positions of a step: a KV page
  MGL_WIDE_TILE_STEP = 64,
  MGL_WIDE_MAX_GROUP = 8,
  MGL_WIDE_WARPS = 8,  // of a worker, that read streams
  MGL_WIDE_MAX_WORKERS = 192,
  MGL_WIDE_IDLE_PARTIES = 2,  // between those of two phases
  MGL_WIDE_MAX_PARTIES = 2 * MGL_WIDE_MAX_WORKERS + MGL_WIDE_IDLE_PARTIES,  // of a line
  // An entry has one item, and one more for every full tile; at a border one is cut.
  MGL_WIDE_MAX_ITEMS =
      MGL_MAX_SEQUENCES + MGL_MAX_ITERATION_TOKENS / (MGL_WIDE_TILE_ROWS / MGL_WIDE_MAX_GROUP) + 1,

  // A unit costs so much beyond its steps, in steps.
  MGL_WIDE_STREAM_EXTRA = 2,
  MGL_WIDE_TILE_EXTRA = 3,
  // A cut so many steps from a unit's begin or end is moved there.
  MGL_WIDE_STREAM_SNAP = 1,
  MGL_WIDE_TILE_SNAP = 2,
  // Costs of a step, for one head dim. A worker that reads alone is bound by its own bytes in
  // flight (64 GB/s on an H100), all workers together by the memory (3.0 TB/s): then each step
  // costs 1/47 of the number of workers as much, which is COST_SHARED for each.
  MGL_WIDE_COST_STREAM = 47,
  MGL_WIDE_COST_SHARED = 1,
  MGL_WIDE_COST_TILE = 20 * MGL_WIDE_COST_STREAM,  // beside streams, which slow it down
};

// A run of consecutive tokens of one sequence: token i of it sees positions 0 to position + i.
typedef struct mgl_wide_item {
  uint32_t slot;      // row of the block tables
  uint32_t row;       // of the first token, in this iteration
  uint32_t count;     // tokens
  uint32_t position;  // of the first
  uint32_t steps;     // that cover positions 0 to position + count - 1
  uint32_t begin;     // of its units: the line's length before, for one KV head
  uint32_t padding[2];
} mgl_wide_item;

// A point of a line: in front of a step of a unit, which it has. Behind the last unit: item is the
// number of the line's end, head and step 0.
typedef struct mgl_wide_cut {
  uint32_t item;  // index in `items`
  uint32_t head;  // KV head
  uint32_t step;
  uint32_t slot;  // the item's, so that its pages are looked up without it; 0 at the end
} mgl_wide_cut;

typedef struct mgl_wide_work {
  uint32_t stream_count;   // items [0, stream_count) are streams
  uint32_t item_count;     // items [stream_count, item_count) are tiles
  uint32_t stream_length;  // of the lines, for one KV head
  uint32_t tile_length;
  // And of their parts before the border; 0, as `border` is, where there is none.
  uint32_t stream_border, tile_border, border;
  uint32_t padding;
  // Warp i of party w computes from stream_cuts[w * MGL_WIDE_WARPS + i] to the next one, party w
  // from tile_cuts[w] to the next one. Parties are the workers; with a border so many for the rows
  // before it, some that have nothing to do, and so many for the rows behind it.
  mgl_wide_cut stream_cuts[MGL_WIDE_MAX_PARTIES * MGL_WIDE_WARPS + 1];
  mgl_wide_cut tile_cuts[MGL_WIDE_MAX_PARTIES + 1];
  mgl_wide_item items[MGL_WIDE_MAX_ITEMS];
} mgl_wide_work;

typedef struct mgl_wide_shape {
  uint32_t kv_heads;
  uint32_t group;    // query heads of a KV head, 1 to MGL_WIDE_MAX_GROUP
  uint32_t workers;  // 1 to MGL_WIDE_MAX_WORKERS
  uint32_t border;   // the first row of the second phase; 0: there is one
} mgl_wide_shape;

// Steps [begin, end) of a unit.
typedef struct mgl_wide_part {
  uint32_t item, head;
  uint32_t begin, end;
} mgl_wide_part;

// --- reading -------------------------------------------------------------------------------------

MGL_PLANNER_FN bool mgl_wide_before(const mgl_wide_cut *a, const mgl_wide_cut *b) {
  if (a->item != b->item) {
    return a->item < b->item;
  }
  return a->head != b->head ? a->head < b->head : a->step < b->step;
}

// The part of the unit at `at` that lies before `end`, which is behind it, and moves `at` behind
// that part. steps: of the item.
MGL_PLANNER_FN mgl_wide_part mgl_wide_take(mgl_wide_cut *at, const mgl_wide_cut *end,
                                           uint32_t steps, uint32_t kv_heads) {
  mgl_wide_part part = {at->item, at->head, at->step, steps};
  if (at->item == end->item && at->head == end->head) {
    part.end = end->step;
    *at = *end;
    return part;
  }
  at->step = 0;
  at->head++;
  if (at->head == kv_heads) {
    at->head = 0;
    at->item++;
  }
  return part;
}

// --- items ---------------------------------------------------------------------------------------

// Tokens of a tile, and the most of a stream.
MGL_PLANNER_FN uint32_t mgl_wide_tile_tokens(uint32_t group) {
  return MGL_WIDE_TILE_ROWS / group;
}

MGL_PLANNER_FN uint32_t mgl_wide_stream_tokens(uint32_t group) {
  return MGL_WIDE_STREAM_ROWS / group;
}

// An item of tokens [first, first + count) of an entry whose rows begin at `row`.
MGL_PLANNER_FN mgl_wide_item mgl_wide_item_of(const mgl_plan_entry *entry, uint32_t row,
                                              uint32_t first, uint32_t count, uint32_t step) {
  uint32_t seen = entry->position + first + count;
  mgl_wide_item item = {
      entry->slot, row + first, count, entry->position + first, (seen + step - 1) / step,
      0,           {0, 0}};
  return item;
}

// Whether the border is among the rows of an entry, but for its first one.
MGL_PLANNER_FN bool mgl_wide_is_cut(const mgl_wide_shape *shape, uint32_t row, uint32_t count) {
  return row < shape->border && shape->border < row + count;
}

// Whether an entry is a stream: it is short, and no border is in it.
MGL_PLANNER_FN bool mgl_wide_streams_entry(const mgl_wide_shape *shape, uint32_t row,
                                           uint32_t count) {
  return count > 0 && count <= mgl_wide_stream_tokens(shape->group) &&
         !mgl_wide_is_cut(shape, row, count);
}

// Items [0, stream_count). An entry that is no stream leaves none.
MGL_PLANNER_FN void mgl_wide_build_streams(mgl_lanes lanes, const mgl_wide_shape *shape,
                                           const mgl_plan_entry *entries, uint32_t entry_count,
                                           mgl_wide_work *work) {
  uint32_t rows = 0, items = 0, length = 0, before = 0;
  for (uint32_t base = 0; base < entry_count; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t count = i < entry_count ? entries[i].count : 0;
    uint32_t total_rows, total_items, total_length;
    uint32_t row = rows + mgl_lanes_prefix(lanes, count, &total_rows);
    bool streams = mgl_wide_streams_entry(shape, row, count);
    mgl_wide_item item = {0, 0, 0, 0, 0, 0, {0, 0}};
    if (streams) {
      item = mgl_wide_item_of(&entries[i], row, 0, count, MGL_WIDE_STREAM_STEP);
    }
    uint32_t at = items + mgl_lanes_prefix(lanes, streams ? 1 : 0, &total_items);
    uint32_t span = streams ? item.steps + (uint32_t)MGL_WIDE_STREAM_EXTRA : 0;
    item.begin = length + mgl_lanes_prefix(lanes, span, &total_length);
    before += mgl_lanes_sum(lanes, row < shape->border ? span : 0);
    if (streams) {
      work->items[at] = item;
    }
    rows += total_rows;
    items += total_items;
    length += total_length;
  }
  if (lanes.lane == 0) {
    work->stream_count = items;
    work->stream_length = length;
    work->stream_border = before;
    work->border = shape->border;
  }
  mgl_lanes_sync(lanes);
}

// The end of the tile that begins with token `first` of an entry.
MGL_PLANNER_FN uint32_t mgl_wide_tile_end(const mgl_wide_shape *shape, const mgl_plan_entry *entry,
                                          uint32_t row, uint32_t first) {
  const uint32_t most = first + mgl_wide_tile_tokens(shape->group);
  const uint32_t end = most < entry->count ? most : entry->count;
  return mgl_wide_is_cut(shape, row + first, end - first) ? shape->border - row : end;
}

// Tiles of `count` tokens, and the length that they have together, and before the border.
MGL_PLANNER_FN uint32_t mgl_wide_tiles_of(const mgl_wide_shape *shape, const mgl_plan_entry *entry,
                                          uint32_t row, uint32_t *out_length,
                                          uint32_t *out_before) {
  uint32_t tiles = 0, length = 0;
  *out_before = 0;
  for (uint32_t first = 0; first < entry->count; tiles++) {
    const uint32_t end = mgl_wide_tile_end(shape, entry, row, first);
    const uint32_t span =
        (entry->position + end + MGL_WIDE_TILE_STEP - 1) / MGL_WIDE_TILE_STEP + MGL_WIDE_TILE_EXTRA;
    length += span;
    *out_before += row + first < shape->border ? span : 0;
    first = end;
  }
  *out_length = length;
  return tiles;
}

MGL_PLANNER_FN void mgl_wide_write_tiles(const mgl_wide_shape *shape, const mgl_plan_entry *entry,
                                         uint32_t row, uint32_t begin, mgl_wide_item *items) {
  for (uint32_t first = 0; first < entry->count;) {
    const uint32_t end = mgl_wide_tile_end(shape, entry, row, first);
    mgl_wide_item item = mgl_wide_item_of(entry, row, first, end - first, MGL_WIDE_TILE_STEP);
    item.begin = begin;
    begin += item.steps + MGL_WIDE_TILE_EXTRA;
    *items++ = item;
    first = end;
  }
}

// Items [stream_count, item_count), of all other entries.
MGL_PLANNER_FN void mgl_wide_build_tiles(mgl_lanes lanes, const mgl_wide_shape *shape,
                                         const mgl_plan_entry *entries, uint32_t entry_count,
                                         mgl_wide_work *work) {
  uint32_t rows = 0, items = work->stream_count, length = 0, before = 0;
  for (uint32_t base = 0; base < entry_count; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t count = i < entry_count ? entries[i].count : 0;
    uint32_t total_rows, total_items, total_length, own_length = 0, own_items = 0, own_before = 0;
    uint32_t row = rows + mgl_lanes_prefix(lanes, count, &total_rows);
    if (count > 0 && !mgl_wide_streams_entry(shape, row, count)) {
      own_items = mgl_wide_tiles_of(shape, &entries[i], row, &own_length, &own_before);
    }
    uint32_t at = items + mgl_lanes_prefix(lanes, own_items, &total_items);
    uint32_t begin = length + mgl_lanes_prefix(lanes, own_length, &total_length);
    before += mgl_lanes_sum(lanes, own_before);
    if (own_items > 0) {
      mgl_wide_write_tiles(shape, &entries[i], row, begin, &work->items[at]);
    }
    rows += total_rows;
    items += total_items;
    length += total_length;
  }
  if (lanes.lane == 0) {
    work->item_count = items;
    work->tile_length = length;
    work->tile_border = before;
  }
  mgl_lanes_sync(lanes);
}

// --- cuts ----------------------------------------------------------------------------------------

// A line: its items, and what its units count beyond their steps.
typedef struct mgl_wide_line {
  const mgl_wide_item *items;  // of all of the work
  uint32_t first, end;
  uint64_t length;  // of all KV heads
  uint32_t extra, snap;
  uint32_t kv_heads;
} mgl_wide_line;

MGL_PLANNER_FN bool mgl_wide_begins_at(const mgl_wide_line *line, uint32_t item, uint64_t at) {
  return (uint64_t)line->items[item].begin * line->kv_heads <= at;
}

// The last item that begins at or before a place of a line that has items.
MGL_PLANNER_FN uint32_t mgl_wide_item_at(const mgl_wide_line *line, uint64_t at) {
  uint32_t low = line->first, high = line->end - 1;
  while (low < high) {
    uint32_t middle = low + (high - low + 1) / 2;
    if (mgl_wide_begins_at(line, middle, at)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The cut at a place of the line, moved to a unit's border where that is near. item: the last one
// that begins at or before it.
MGL_PLANNER_FN mgl_wide_cut mgl_wide_cut_at(const mgl_wide_line *line, uint64_t at, uint32_t item) {
  mgl_wide_cut cut = {line->end, 0, 0, 0};
  if (at >= line->length) {
    return cut;
  }
  const mgl_wide_item *found = &line->items[item];
  uint32_t rest = (uint32_t)(at - (uint64_t)found->begin * line->kv_heads);
  uint32_t span = found->steps + line->extra;
  cut.item = item;
  cut.head = rest / span;
  cut.step = rest % span;
  if (cut.step <= line->snap) {
    cut.step = 0;
  } else if (cut.step + line->snap >= found->steps) {
    cut.step = 0;
    cut.head++;
    if (cut.head == line->kv_heads) {
      cut.head = 0;
      cut.item++;
    }
  }
  cut.slot = cut.item < line->end ? line->items[cut.item].slot : 0;
  return cut;
}

// An mgl_wide_division says where the shares of a phase's workers begin in both lines.
typedef struct mgl_wide_division {
  uint64_t stream_begin, tile_begin;  // where the phase begins in them
  uint64_t streams, tiles;            // and how long it is
  uint64_t stream_cost;               // of a step
  uint64_t tile_cost;
  uint32_t workers;
} mgl_wide_division;

// The phase before the border, or the one behind it, which is all where there is none.
MGL_PLANNER_FN mgl_wide_division mgl_wide_divide(const mgl_wide_shape *shape,
                                                 const mgl_wide_work *work, bool before) {
  const uint32_t stream_border = work->border > 0 ? work->stream_border : 0;
  const uint32_t tile_border = work->border > 0 ? work->tile_border : 0;
  const uint32_t streams = before ? stream_border : work->stream_length - stream_border;
  const uint32_t tiles = before ? tile_border : work->tile_length - tile_border;
  mgl_wide_division d = {before ? 0 : (uint64_t)stream_border * shape->kv_heads,
                         before ? 0 : (uint64_t)tile_border * shape->kv_heads,
                         (uint64_t)streams * shape->kv_heads,
                         (uint64_t)tiles * shape->kv_heads,
                         MGL_WIDE_COST_STREAM,
                         MGL_WIDE_COST_TILE,
                         shape->workers};
  // Reading takes at least what the memory takes for it, however many workers do it.
  uint64_t shared = d.streams * shape->workers * MGL_WIDE_COST_SHARED;
  uint64_t alone = d.streams * MGL_WIDE_COST_STREAM + d.tiles * MGL_WIDE_COST_TILE;
  if (shared > alone) {
    d.stream_cost = (shared - d.tiles * MGL_WIDE_COST_TILE) / d.streams;
  }
  return d;
}

// Returns where worker w of the phase begins, in steps of each line.
MGL_PLANNER_FN uint64_t mgl_wide_worker_begin(const mgl_wide_division *d, uint32_t w,
                                              uint64_t *out_tile) {
  uint64_t streams = d->streams * d->stream_cost;
  uint64_t at = (streams + d->tiles * d->tile_cost) * w / d->workers;
  if (at < streams) {
    *out_tile = d->tile_begin;
    return d->stream_begin + at / d->stream_cost;
  }
  *out_tile = d->tile_begin + (at - streams) / d->tile_cost;
  return d->stream_begin + d->streams;
}

// The cuts of worker w of a phase, the party with number `party`. Its warps' are near each other,
// so each is looked for from the one before.
MGL_PLANNER_FN void mgl_wide_cut_worker(const mgl_wide_division *d, const mgl_wide_line *streams,
                                        const mgl_wide_line *tiles, uint32_t w, uint32_t party,
                                        mgl_wide_work *work) {
  uint64_t tile, next_tile;
  const uint64_t begin = mgl_wide_worker_begin(d, w, &tile);
  uint32_t item = begin < streams->length ? mgl_wide_item_at(streams, begin) : streams->end;
  uint32_t tile_item = tile < tiles->length ? mgl_wide_item_at(tiles, tile) : tiles->end;
  work->tile_cuts[party] = mgl_wide_cut_at(tiles, tile, tile_item);
  if (w == d->workers) {
    work->stream_cuts[party * MGL_WIDE_WARPS] = mgl_wide_cut_at(streams, begin, item);
    return;
  }
  const uint64_t end = mgl_wide_worker_begin(d, w + 1, &next_tile);
  for (uint32_t i = 0; i < MGL_WIDE_WARPS; i++) {
    uint64_t at = begin + (end - begin) * i / MGL_WIDE_WARPS;
    while (at < streams->length && item + 1 < streams->end &&
           mgl_wide_begins_at(streams, item + 1, at)) {
      item++;
    }
    work->stream_cuts[party * MGL_WIDE_WARPS + i] = mgl_wide_cut_at(streams, at, item);
  }
}

// The items must be there. Lanes need nothing of each other, so there may be any number of them.
MGL_PLANNER_FN void mgl_wide_build_cuts(mgl_lanes lanes, const mgl_wide_shape *shape,
                                        mgl_wide_work *work) {
  const mgl_wide_division before = mgl_wide_divide(shape, work, true);
  const mgl_wide_division behind = mgl_wide_divide(shape, work, false);
  const mgl_wide_line streams = {
      work->items,           0,
      work->stream_count,    (uint64_t)work->stream_length * shape->kv_heads,
      MGL_WIDE_STREAM_EXTRA, MGL_WIDE_STREAM_SNAP,
      shape->kv_heads};
  const mgl_wide_line tiles = {work->items,         work->stream_count,
                               work->item_count,    (uint64_t)work->tile_length * shape->kv_heads,
                               MGL_WIDE_TILE_EXTRA, MGL_WIDE_TILE_SNAP,
                               shape->kv_heads};
  // The first party of the last phase.
  const uint32_t first = work->border > 0 ? shape->workers + MGL_WIDE_IDLE_PARTIES : 0;
  for (uint32_t w = lanes.lane; w < first; w += lanes.count) {
    // Worker `workers` of the first phase is nobody: what is its begin is its end, too.
    const bool idle = w >= shape->workers;
    mgl_wide_cut_worker(&before, &streams, &tiles, idle ? shape->workers : w, w, work);
    for (uint32_t i = 1; i < MGL_WIDE_WARPS && idle; i++) {
      work->stream_cuts[w * MGL_WIDE_WARPS + i] = work->stream_cuts[w * MGL_WIDE_WARPS];
    }
  }
  for (uint32_t w = lanes.lane; w <= shape->workers; w += lanes.count) {
    mgl_wide_cut_worker(&behind, &streams, &tiles, w, first + w, work);
  }
  mgl_lanes_sync(lanes);
}

// The items of an iteration whose rows are those of the entries, one entry behind the other: at
// most MGL_MAX_SEQUENCES entries of MGL_MAX_ITERATION_TOKENS tokens.
MGL_PLANNER_FN void mgl_wide_build_items(mgl_lanes lanes, const mgl_wide_shape *shape,
                                         const mgl_plan_entry *entries, uint32_t entry_count,
                                         mgl_wide_work *work) {
  mgl_wide_build_streams(lanes, shape, entries, entry_count, work);
  mgl_wide_build_tiles(lanes, shape, entries, entry_count, work);
}

// All of its work.
MGL_PLANNER_FN void mgl_wide_build(mgl_lanes lanes, const mgl_wide_shape *shape,
                                   const mgl_plan_entry *entries, uint32_t entry_count,
                                   mgl_wide_work *work) {
  mgl_wide_build_items(lanes, shape, entries, entry_count, work);
  mgl_wide_build_cuts(lanes, shape, work);
}

#endif
