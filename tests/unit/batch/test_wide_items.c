// The work of attention in random iterations: every row meets every position that it sees exactly
// once for each KV head, everybody gets the same share, and the number of lanes changes nothing.
#define MGL_PLANNER_LANES_MODEL
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "twin/wide_items.h"

typedef struct iteration {
  mgl_wide_shape shape;
  mgl_plan_entry entries[MGL_MAX_SEQUENCES];
  uint32_t entry_count, rows;
  mgl_wide_work work;
} iteration;

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t below) {
  random_state = random_state * 1664525u + 1013904223u;
  return (random_state >> 8) % below;
}

static void build_lane(mgl_lanes lanes, void *context) {
  iteration *it = context;
  mgl_wide_build(lanes, &it->shape, it->entries, it->entry_count, &it->work);
}

static void build(iteration *it, uint32_t lanes) {
  memset(&it->work, 0, sizeof it->work);
  lanes_model_run(lanes, build_lane, it);
}

static void add(iteration *it, uint32_t position, uint32_t count) {
  it->entries[it->entry_count] =
      (mgl_plan_entry){.slot = 1000 - it->entry_count, .position = position, .count = count};
  it->entry_count++;
  it->rows += count;
}

// Up to 1024 entries of up to 2048 rows: some decode, some are chunks of prompts.
static iteration *random_iteration(void) {
  static iteration it;
  it.shape = (mgl_wide_shape){.kv_heads = 1 + random_below(8),
                              .group = 1 + random_below(8),
                              .workers = 1 + random_below(MGL_WIDE_MAX_WORKERS),
                              .border = random_below(2) * random_below(2000)};
  it.entry_count = 0;
  it.rows = 0;
  uint32_t entries = 1 + random_below(random_below(4) == 0 ? MGL_MAX_SEQUENCES : 40);
  uint32_t most_context = 1u << random_below(15);
  uint32_t long_percent = random_below(101);
  for (uint32_t i = 0; i < entries && it.rows < MGL_MAX_ITERATION_TOKENS; i++) {
    uint32_t left = MGL_MAX_ITERATION_TOKENS - it.rows;
    uint32_t count = random_below(100) < long_percent ? 1 + random_below(400) : 1;
    add(&it, random_below(most_context), count < left ? count : left);
  }
  return &it;
}

// Items are in the order of entries, of each kind, and cover its rows one behind the other.
static void check_items(const iteration *it) {
  const mgl_wide_work *work = &it->work;
  uint32_t next[2] = {0, work->stream_count}, row = 0;
  uint32_t length[2] = {0, 0};
  for (uint32_t i = 0; i < it->entry_count; i++) {
    const mgl_plan_entry *entry = &it->entries[i];
    const uint32_t border = it->shape.border;
    const bool cut = row < border && border < row + entry->count;
    bool tile = cut || entry->count * it->shape.group > MGL_WIDE_STREAM_ROWS;
    uint32_t step = tile ? MGL_WIDE_TILE_STEP : MGL_WIDE_STREAM_STEP;
    uint32_t most = tile ? MGL_WIDE_TILE_ROWS : MGL_WIDE_STREAM_ROWS;
    for (uint32_t done = 0; done < entry->count;) {
      const mgl_wide_item *item = &work->items[next[tile]++];
      assert_int_equal(item->slot, entry->slot);
      assert_int_equal(item->row, row + done);
      assert_int_equal(item->position, entry->position + done);
      assert_true(item->count > 0 && item->count * it->shape.group <= most);
      assert_int_equal(item->steps, (item->position + item->count + step - 1) / step);
      assert_int_equal(item->begin, length[tile]);
      length[tile] += item->steps + (uint32_t)(tile ? MGL_WIDE_TILE_EXTRA : MGL_WIDE_STREAM_EXTRA);
      done += item->count;
      assert_true(done <= entry->count);
    }
    row += entry->count;
  }
  assert_int_equal(next[0], work->stream_count);
  assert_int_equal(next[1], work->item_count);
  assert_int_equal(length[0], work->stream_length);
  assert_int_equal(length[1], work->tile_length);
  assert_true(work->item_count <= MGL_WIDE_MAX_ITEMS);
}

static uint64_t place(const iteration *it, const mgl_wide_cut *cut, bool tiles) {
  const mgl_wide_work *work = &it->work;
  uint32_t end = tiles ? work->item_count : work->stream_count;
  uint64_t length = tiles ? work->tile_length : work->stream_length;
  if (cut->item == end) {
    return length * it->shape.kv_heads;
  }
  const mgl_wide_item *item = &work->items[cut->item];
  uint32_t extra = tiles ? MGL_WIDE_TILE_EXTRA : MGL_WIDE_STREAM_EXTRA;
  return (uint64_t)item->begin * it->shape.kv_heads + (uint64_t)cut->head * (item->steps + extra) +
         cut->step;
}

// Walks the line as the workers do: all steps of all units, in order.
static uint32_t check_line(const iteration *it, const mgl_wide_cut *cuts, uint32_t parts,
                           bool tiles) {
  const mgl_wide_work *work = &it->work;
  uint32_t end = tiles ? work->item_count : work->stream_count;
  uint32_t snap = tiles ? MGL_WIDE_TILE_SNAP : MGL_WIDE_STREAM_SNAP;
  uint32_t item = tiles ? work->stream_count : 0, head = 0, step = 0, cut_units = 0;
  assert_true(cuts[parts].item == end && cuts[parts].head == 0 && cuts[parts].step == 0);
  for (uint32_t i = 0; i < parts; i++) {
    mgl_wide_cut at = cuts[i];
    assert_true(!mgl_wide_before(&cuts[i + 1], &at));
    while (mgl_wide_before(&at, &cuts[i + 1])) {
      uint32_t steps = work->items[at.item].steps;
      mgl_wide_part part = mgl_wide_take(&at, &cuts[i + 1], steps, it->shape.kv_heads);
      assert_true(part.item == item && part.head == head && part.begin == step);
      assert_true(part.end > part.begin && part.end <= steps);
      // A part is never tiny.
      assert_true(part.end == steps || part.end > snap);
      cut_units += part.end < steps ? 1 : 0;
      step = part.end == steps ? 0 : part.end;
      head += part.end == steps ? 1 : 0;
      item += head == it->shape.kv_heads ? 1 : 0;
      head = head == it->shape.kv_heads ? 0 : head;
    }
  }
  assert_true(item == end && head == 0 && step == 0);
  return cut_units;
}

// Nobody's share is more than a snap and a unit's extra above the mean.
static void check_phase(const iteration *it, bool before) {
  const mgl_wide_division d = mgl_wide_divide(&it->shape, &it->work, before);
  const uint32_t first =
      before || it->shape.border == 0 ? 0 : it->shape.workers + (uint32_t)MGL_WIDE_IDLE_PARTIES;
  const uint64_t total = d.streams * d.stream_cost + d.tiles * d.tile_cost;
  const uint64_t bound = (MGL_WIDE_STREAM_SNAP + MGL_WIDE_STREAM_EXTRA + 1) * d.stream_cost +
                         (MGL_WIDE_TILE_SNAP + MGL_WIDE_TILE_EXTRA + 1) * d.tile_cost;
  for (uint32_t w = 0; w < it->shape.workers; w++) {
    const mgl_wide_cut *warps = &it->work.stream_cuts[(first + w) * MGL_WIDE_WARPS];
    const mgl_wide_cut *cuts = &it->work.tile_cuts[first + w];
    uint64_t streams = place(it, &warps[MGL_WIDE_WARPS], false) - place(it, &warps[0], false);
    uint64_t tiles = place(it, &cuts[1], true) - place(it, &cuts[0], true);
    assert_true(streams * d.stream_cost + tiles * d.tile_cost <= total / d.workers + 2 * bound);
    for (uint32_t i = 0; i < MGL_WIDE_WARPS; i++) {
      uint64_t warp = place(it, &warps[i + 1], false) - place(it, &warps[i], false);
      assert_true(warp <= streams / MGL_WIDE_WARPS +
                              4 * (MGL_WIDE_STREAM_SNAP + MGL_WIDE_STREAM_EXTRA + 1));
    }
  }
}

static void check_fairness(const iteration *it) {
  check_phase(it, false);
  if (it->shape.border > 0) {
    check_phase(it, true);
  }
}

static uint32_t parties_of(const iteration *it) {
  return it->shape.border > 0 ? 2 * it->shape.workers + (uint32_t)MGL_WIDE_IDLE_PARTIES
                              : it->shape.workers;
}

// The first parties have rows before the border, the last ones those behind it, and those between
// have none.
static void check_phases(const iteration *it, const mgl_wide_cut *cuts, uint32_t of_party) {
  const uint32_t workers = it->shape.workers;
  for (uint32_t party = 0; party < parties_of(it) && it->shape.border > 0; party++) {
    const mgl_wide_cut *from = &cuts[party * of_party], *to = &cuts[(party + 1) * of_party];
    const bool has = mgl_wide_before(from, to);
    assert_true((party != workers && party != workers + 1) || !has);
    // An item that is not gone through from its first head on was begun by the party before.
    for (uint32_t i = from->item;
         has && (i < to->item || (i == to->item && to->head + to->step > 0)); i++) {
      const mgl_wide_item *item = &it->work.items[i];
      assert_int_equal(item->row >= it->shape.border, party > workers);
      assert_true(item->row >= it->shape.border || item->row + item->count <= it->shape.border);
    }
  }
}

static void all_work_is_done_once_and_shared_fairly(void **state) {
  (void)state;
  uint32_t cut_units = 0;
  for (uint32_t i = 0; i < 400; i++) {
    iteration *it = random_iteration();
    build(it, 1);
    check_items(it);
    cut_units += check_line(it, it->work.stream_cuts, parties_of(it) * MGL_WIDE_WARPS, false);
    cut_units += check_line(it, it->work.tile_cuts, parties_of(it), true);
    check_phases(it, it->work.stream_cuts, MGL_WIDE_WARPS);
    check_phases(it, it->work.tile_cuts, 1);
    check_fairness(it);
  }
  assert_true(cut_units > 1000);
}

static void the_number_of_lanes_changes_nothing(void **state) {
  (void)state;
  static mgl_wide_work alone;
  static const uint32_t lanes[] = {2, 3, 32, 64};
  for (uint32_t i = 0; i < 40; i++) {
    iteration *it = random_iteration();
    build(it, 1);
    alone = it->work;
    build(it, lanes[i % 4]);
    assert_memory_equal(&alone, &it->work, sizeof alone);
  }
  lanes_model_free();
}

// 1024 sequences in 2048 rows, of groups of 8, all but the largest number of items.
static void the_largest_iteration_fits(void **state) {
  (void)state;
  static iteration it;
  it = (iteration){.shape = {.kv_heads = 8, .group = 8, .workers = 132}};
  for (uint32_t i = 0; i < 1023; i++) {
    add(&it, 16000, 1);
  }
  add(&it, 0, MGL_MAX_ITERATION_TOKENS - 1023);
  build(&it, 1);
  check_items(&it);
  assert_int_equal(it.work.item_count, 1023 + (2048 - 1023 + 15) / 16);
}

// Where there is hardly any work, most workers have none, and nobody gets a crumb of a unit.
static void small_work_is_not_cut_into_crumbs(void **state) {
  (void)state;
  static iteration it;
  it = (iteration){.shape = {.kv_heads = 8, .group = 4, .workers = 132}};
  add(&it, 0, 65);
  build(&it, 1);
  check_items(&it);
  assert_int_equal(check_line(&it, it.work.tile_cuts, 132, true), 0);
}

// Beside a long prompt, reading gets fewer workers than it would alone, which then read faster.
static void reading_and_multiplying_share_the_workers(void **state) {
  (void)state;
  static iteration it;
  uint32_t readers[2] = {0, 0};
  for (uint32_t prompt = 0; prompt < 2; prompt++) {
    it = (iteration){.shape = {.kv_heads = 8, .group = 4, .workers = 132}};
    for (uint32_t i = 0; i < 256; i++) {
      add(&it, 1000, 1);
    }
    if (prompt != 0) {
      add(&it, 4096, 1024);
    }
    build(&it, 1);
    check_fairness(&it);
    for (uint32_t w = 0; w < 132; w++) {
      const mgl_wide_cut *cuts = &it.work.stream_cuts[w * MGL_WIDE_WARPS];
      readers[prompt] += mgl_wide_before(&cuts[0], &cuts[MGL_WIDE_WARPS]) ? 1 : 0;
    }
  }
  assert_int_equal(readers[0], 132);
  assert_in_range(readers[1], 25, 110);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_work_is_done_once_and_shared_fairly),
      cmocka_unit_test(the_number_of_lanes_changes_nothing),
      cmocka_unit_test(the_largest_iteration_fits),
      cmocka_unit_test(small_work_is_not_cut_into_crumbs),
      cmocka_unit_test(reading_and_multiplying_share_the_workers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
