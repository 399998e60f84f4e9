// Plans made on the host: every query sees every position once, tiles and chunks keep their rules,
// and rows are divided as the rules say.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cuda/cuda_plan.h"

enum { TOKENS = 60000 };

static mgl_cuda_plan plan;
static int32_t tokens[TOKENS];

static uint64_t next_random(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *state >> 33;
}

// Chunk size of a query by the words of device_run.h.
static uint32_t chunk_of(uint32_t position) {
  uint32_t chunk = MGL_CUDA_MIN_CHUNK;
  while (chunk * MGL_CUDA_MAX_CHUNKS < position + 1) {
    chunk *= 2;
  }
  return chunk;
}

static void check_item(const mgl_cuda_item *item, uint32_t index, uint32_t group) {
  uint32_t last = item->position + item->count - 1;
  uint32_t chunk = chunk_of(last);
  assert_true(item->count >= 1 && item->count * group <= MGL_CUDA_QUERY_COLUMNS);
  assert_int_equal(chunk_of(item->position), chunk);
  assert_int_equal(item->kv_begin, item->chunk * chunk);
  assert_true(item->kv_end > item->kv_begin && item->kv_end - item->kv_begin <= chunk);
  assert_true(item->kv_end <= last + 1);
  assert_true(item->chunk < item->chunks && item->chunks <= MGL_CUDA_MAX_CHUNKS);
  assert_int_equal(item->partial + item->chunk, index);
  for (uint32_t i = 0; i < item->count; i++) {
    assert_int_equal(plan.slots[item->row + i], item->slot);
    assert_int_equal(plan.positions[item->row + i], item->position + i);
  }
  assert_int_equal(plan.slots[item->fresh_row], item->slot);
  assert_int_equal(plan.positions[item->fresh_row], item->fresh);
  assert_true(item->fresh_row == 0 || plan.slots[item->fresh_row - 1] != item->slot);
}

// Positions that row `row` sees, counted over all items, are those up to its own.
static void check_coverage(uint32_t row) {
  uint32_t seen = 0;
  for (uint32_t i = 0; i < plan.item_count; i++) {
    const mgl_cuda_item *item = &plan.items[i];
    if (row >= item->row && row < item->row + item->count) {
      uint32_t end = plan.positions[row] + 1;
      end = end < item->kv_end ? end : item->kv_end;
      seen += end > item->kv_begin ? end - item->kv_begin : 0;
    }
  }
  assert_int_equal(seen, plan.positions[row] + 1);
}

static void items_cover_what_queries_see(void **state) {
  (void)state;
  uint64_t random = 3;
  for (uint32_t i = 0; i < 300; i++) {
    static const uint32_t borders[] = {0, 255, 256, 4095, 4096, 8192, 16384, 50000};
    uint32_t group = 1 + (uint32_t)(next_random(&random) % 8);
    mgl_cuda_plan_clear(&plan);
    for (uint32_t slot = 0; plan.token_count < MGL_CUDA_MAX_TOKENS && slot < 10; slot++) {
      uint32_t left = MGL_CUDA_MAX_TOKENS - plan.token_count;
      uint32_t position = borders[next_random(&random) % 8] + (uint32_t)(next_random(&random) % 80);
      mgl_cuda_plan_add(&plan,
                        &(mgl_cuda_plan_rows){.tokens = tokens,
                                              .count = 1 + (uint32_t)(next_random(&random) % left),
                                              .slot = slot,
                                              .position = position,
                                              .samples = true});
    }
    mgl_cuda_plan_finish(&plan, group);
    assert_true(plan.item_count <= MGL_CUDA_MAX_ITEMS);
    assert_true(1u << plan.graph >= plan.token_count);
    for (uint32_t j = 0; j < plan.item_count; j++) {
      check_item(&plan.items[j], j, group);
    }
    for (uint32_t row = 0; row < plan.token_count; row++) {
      check_coverage(row);
    }
  }
}

static void the_worst_plan_fits(void **state) {
  (void)state;
  mgl_cuda_plan_clear(&plan);
  for (uint32_t slot = 0; slot < MGL_CUDA_MAX_TOKENS; slot++) {
    mgl_cuda_plan_add(
        &plan, &(mgl_cuda_plan_rows){.tokens = tokens, .count = 1, .slot = slot, .position = 4095});
  }
  mgl_cuda_plan_finish(&plan, 8);
  assert_int_equal(plan.item_count, MGL_CUDA_MAX_ITEMS);
}

// A plan says what all of its items are like.
static void plans_know_their_kind(void **state) {
  (void)state;
  static const struct {
    uint32_t counts[2], positions[2];
    mgl_plan_kind kind;
  } cases[] = {
      {{1, 1}, {0, 2047}, MGL_PLAN_SHORT},   {{1, 1}, {5, 2048}, MGL_PLAN_DECODES},
      {{1, 1}, {9000, 4}, MGL_PLAN_DECODES}, {{1, 2}, {7, 100}, MGL_PLAN_ANY},
      {{2, 1}, {2048, 0}, MGL_PLAN_ANY},     {{1, 1}, {127, 128}, MGL_PLAN_SHORT},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (uint32_t group = 1; group <= 8; group++) {
      mgl_cuda_plan_clear(&plan);
      for (uint32_t slot = 0; slot < 2; slot++) {
        mgl_cuda_plan_add(&plan, &(mgl_cuda_plan_rows){.tokens = tokens,
                                                       .count = cases[i].counts[slot],
                                                       .slot = slot,
                                                       .position = cases[i].positions[slot]});
      }
      mgl_cuda_plan_finish(&plan, group);
      assert_int_equal(plan.kind, cases[i].kind);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plans_know_their_kind),
      cmocka_unit_test(items_cover_what_queries_see),
      cmocka_unit_test(the_worst_plan_fits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
