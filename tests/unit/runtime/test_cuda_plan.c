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
#include "runtime/cuda_plan.h"

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
  for (uint32_t slot = 0; slot < MGL_CUDA_MAX_SEQUENCES; slot++) {
    mgl_cuda_plan_add(
        &plan, &(mgl_cuda_plan_rows){.tokens = tokens, .count = 1, .slot = slot, .position = 4095});
  }
  mgl_cuda_plan_finish(&plan, 8);
  assert_int_equal(plan.item_count, MGL_CUDA_MAX_ITEMS);
}

static mgl_cuda_sequence sequence(uint32_t prompt, uint32_t count, uint32_t computed) {
  return (mgl_cuda_sequence){.state = MGL_CUDA_SEQUENCE_RUNNING,
                             .prompt_count = prompt,
                             .token_count = count,
                             .computed_count = computed,
                             .max_tokens = count + 10};
}

static void rows_are_divided_by_the_rules(void **state) {
  (void)state;
  const int32_t *all[] = {tokens, tokens, tokens, tokens};
  mgl_cuda_plan_rules rules = {.iteration_tokens = 16, .chunk_tokens = 10, .group = 2};
  mgl_cuda_sequence s[] = {sequence(30, 30, 5), sequence(4, 6, 5), sequence(8, 8, 0),
                           sequence(3, 5, 4)};
  assert_true(mgl_cuda_plan_next(&rules, s, 4, all, &plan));
  assert_int_equal(plan.token_count, 16);
  assert_int_equal(plan.slots[0], 1);  // decodes
  assert_int_equal(plan.positions[0], 5);
  assert_int_equal(plan.slots[1], 3);
  assert_int_equal(plan.slots[2], 0);  // a chunk of its prompt
  assert_int_equal(plan.positions[2], 5);
  assert_int_equal(plan.next_rows[0], 2);
  assert_int_equal(plan.next_rows[2], 12);  // what is left
  assert_int_equal(s[0].computed_count, 15);
  assert_int_equal(s[2].computed_count, 4);
  assert_int_equal(plan.logit_row_count, 2);
  assert_int_equal(plan.logit_slots[0], 1);
  assert_int_equal(plan.logit_slots[1], 3);
  assert_int_equal(plan.logit_slots[2], UINT32_MAX);
  assert_int_equal(plan.sequence_count, 4);
  rules.prompts_first = true;
  s[1] = sequence(4, 7, 6);
  assert_true(mgl_cuda_plan_next(&rules, s, 4, all, &plan));
  assert_int_equal(plan.slots[0], 0);
  assert_int_equal(plan.token_count, 14);
  assert_int_equal(plan.next_rows[1], UINT32_MAX);
  assert_int_equal(plan.logit_row_count, 1);  // the prompt of slot 2 ends
  for (uint32_t i = 0; i < 4; i++) {
    s[i].state = MGL_CUDA_SEQUENCE_LENGTH;
  }
  assert_false(mgl_cuda_plan_next(&rules, s, 4, all, &plan));
  assert_int_equal(plan.graph, UINT32_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(items_cover_what_queries_see),
      cmocka_unit_test(the_worst_plan_fits),
      cmocka_unit_test(rows_are_divided_by_the_rules),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
