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
  // An entry has one item, and one more for every full tile.
  MGL_WIDE_MAX_ITEMS =
      MGL_MAX_SEQUENCES + MGL_MAX_ITERATION_TOKENS / (MGL_WIDE_TILE_ROWS / MGL_WIDE_MAX_GROUP),

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
  // Warp i of worker w computes from stream_cuts[w * MGL_WIDE_WARPS + i] to the next one, worker w
  // from tile_cuts[w] to the next one.
  mgl_wide_cut stream_cuts[MGL_WIDE_MAX_WORKERS * MGL_WIDE_WARPS + 1];
  mgl_wide_cut tile_cuts[MGL_WIDE_MAX_WORKERS + 1];
  mgl_wide_item items[MGL_WIDE_MAX_ITEMS];
} mgl_wide_work;

typedef struct mgl_wide_shape {
  uint32_t kv_heads;
  uint32_t group;    // query heads of a KV head, 1 to MGL_WIDE_MAX_GROUP
  uint32_t workers;  // 1 to MGL_WIDE_MAX_WORKERS
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

// Items [0, stream_count). An entry that is no stream leaves none.
MGL_PLANNER_FN void mgl_wide_build_streams(mgl_lanes lanes, const mgl_wide_shape *shape,
                                           const mgl_plan_entry *entries, uint32_t entry_count,
                                           mgl_wide_work *work) {
  uint32_t rows = 0, items = 0, length = 0;
  for (uint32_t base = 0; base < entry_count; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t count = i < entry_count ? entries[i].count : 0;
    uint32_t total_rows, total_items, total_length;
    uint32_t row = rows + mgl_lanes_prefix(lanes, count, &total_rows);
    bool streams = count > 0 && count <= mgl_wide_stream_tokens(shape->group);
    mgl_wide_item item = {0, 0, 0, 0, 0, 0, {0, 0}};
    if (streams) {
      item = mgl_wide_item_of(&entries[i], row, 0, count, MGL_WIDE_STREAM_STEP);
    }
    uint32_t at = items + mgl_lanes_prefix(lanes, streams ? 1 : 0, &total_items);
    uint32_t span = streams ? item.steps + (uint32_t)MGL_WIDE_STREAM_EXTRA : 0;
    item.begin = length + mgl_lanes_prefix(lanes, span, &total_length);
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
  }
  mgl_lanes_sync(lanes);
}

// Tiles of `count` tokens, and the length that they have together.
MGL_PLANNER_FN uint32_t mgl_wide_tiles_of(const mgl_wide_shape *shape, const mgl_plan_entry *entry,
                                          uint32_t *out_length) {
  uint32_t tokens = mgl_wide_tile_tokens(shape->group);
  uint32_t tiles = 0, length = 0;
  for (uint32_t first = 0; first < entry->count; first += tokens) {
    uint32_t end = first + tokens < entry->count ? first + tokens : entry->count;
    length +=
        (entry->position + end + MGL_WIDE_TILE_STEP - 1) / MGL_WIDE_TILE_STEP + MGL_WIDE_TILE_EXTRA;
    tiles++;
  }
  *out_length = length;
  return tiles;
}

MGL_PLANNER_FN void mgl_wide_write_tiles(const mgl_wide_shape *shape, const mgl_plan_entry *entry,
                                         uint32_t row, uint32_t begin, mgl_wide_item *items) {
  uint32_t tokens = mgl_wide_tile_tokens(shape->group);
  for (uint32_t first = 0; first < entry->count; first += tokens) {
    uint32_t left = entry->count - first;
    mgl_wide_item item =
        mgl_wide_item_of(entry, row, first, left < tokens ? left : tokens, MGL_WIDE_TILE_STEP);
    item.begin = begin;
    begin += item.steps + MGL_WIDE_TILE_EXTRA;
    *items++ = item;
  }
}

// Items [stream_count, item_count), of all other entries.
MGL_PLANNER_FN void mgl_wide_build_tiles(mgl_lanes lanes, const mgl_wide_shape *shape,
                                         const mgl_plan_entry *entries, uint32_t entry_count,
                                         mgl_wide_work *work) {
  uint32_t rows = 0, items = work->stream_count, length = 0;
  for (uint32_t base = 0; base < entry_count; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t count = i < entry_count ? entries[i].count : 0;
    uint32_t total_rows, total_items, total_length, own_length = 0, own_items = 0;
    uint32_t row = rows + mgl_lanes_prefix(lanes, count, &total_rows);
    if (count > mgl_wide_stream_tokens(shape->group)) {
      own_items = mgl_wide_tiles_of(shape, &entries[i], &own_length);
    }
    uint32_t at = items + mgl_lanes_prefix(lanes, own_items, &total_items);
    uint32_t begin = length + mgl_lanes_prefix(lanes, own_length, &total_length);
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

// An mgl_wide_division says where the shares of workers begin in both lines.
typedef struct mgl_wide_division {
  uint64_t streams, tiles;  // lengths of the lines
  uint64_t stream_cost;     // of a step
  uint64_t tile_cost;
  uint32_t workers;
} mgl_wide_division;

MGL_PLANNER_FN mgl_wide_division mgl_wide_divide(const mgl_wide_shape *shape,
                                                 const mgl_wide_work *work) {
  mgl_wide_division d = {(uint64_t)work->stream_length * shape->kv_heads,
                         (uint64_t)work->tile_length * shape->kv_heads, MGL_WIDE_COST_STREAM,
                         MGL_WIDE_COST_TILE, shape->workers};
  // Reading takes at least what the memory takes for it, however many workers do it.
  uint64_t shared = d.streams * shape->workers * MGL_WIDE_COST_SHARED;
  uint64_t alone = d.streams * MGL_WIDE_COST_STREAM + d.tiles * MGL_WIDE_COST_TILE;
  if (shared > alone) {
    d.stream_cost = (shared - d.tiles * MGL_WIDE_COST_TILE) / d.streams;
  }
  return d;
}

// Returns where worker w begins, in steps of each line.
MGL_PLANNER_FN uint64_t mgl_wide_worker_begin(const mgl_wide_division *d, uint32_t w,
                                              uint64_t *out_tile) {
  uint64_t streams = d->streams * d->stream_cost;
  uint64_t at = (streams + d->tiles * d->tile_cost) * w / d->workers;
  if (at < streams) {
    *out_tile = 0;
    return at / d->stream_cost;
  }
  *out_tile = (at - streams) / d->tile_cost;
  return d->streams;
}

// Worker w's cuts. Its warps' are near each other, so each is looked for from the one before.
MGL_PLANNER_FN void mgl_wide_cut_worker(const mgl_wide_division *d, const mgl_wide_line *streams,
                                        const mgl_wide_line *tiles, uint32_t w,
                                        mgl_wide_work *work) {
  uint64_t tile, next_tile;
  const uint64_t begin = mgl_wide_worker_begin(d, w, &tile);
  uint32_t item = begin < streams->length ? mgl_wide_item_at(streams, begin) : streams->end;
  uint32_t tile_item = tile < tiles->length ? mgl_wide_item_at(tiles, tile) : tiles->end;
  work->tile_cuts[w] = mgl_wide_cut_at(tiles, tile, tile_item);
  if (w == d->workers) {
    work->stream_cuts[w * MGL_WIDE_WARPS] = mgl_wide_cut_at(streams, begin, item);
    return;
  }
  const uint64_t end = mgl_wide_worker_begin(d, w + 1, &next_tile);
  for (uint32_t i = 0; i < MGL_WIDE_WARPS; i++) {
    uint64_t at = begin + (end - begin) * i / MGL_WIDE_WARPS;
    while (at < streams->length && item + 1 < streams->end &&
           mgl_wide_begins_at(streams, item + 1, at)) {
      item++;
    }
    work->stream_cuts[w * MGL_WIDE_WARPS + i] = mgl_wide_cut_at(streams, at, item);
  }
}

// The items must be there. Lanes need nothing of each other, so there may be any number of them.
MGL_PLANNER_FN void mgl_wide_build_cuts(mgl_lanes lanes, const mgl_wide_shape *shape,
                                        mgl_wide_work *work) {
  const mgl_wide_division d = mgl_wide_divide(shape, work);
  const mgl_wide_line streams = {
      work->items,    0, work->stream_count, d.streams, MGL_WIDE_STREAM_EXTRA, MGL_WIDE_STREAM_SNAP,
      shape->kv_heads};
  const mgl_wide_line tiles = {work->items,         work->stream_count, work->item_count, d.tiles,
                               MGL_WIDE_TILE_EXTRA, MGL_WIDE_TILE_SNAP, shape->kv_heads};
  for (uint32_t w = lanes.lane; w <= shape->workers; w += lanes.count) {
    mgl_wide_cut_worker(&d, &streams, &tiles, w, work);
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
