// The plan: rows, positions, slots, block tables, logit rows and the attention work list of what
// was added.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "batch/plan.h"

static void chunks_become_rows(void **state) {
  (void)state;
  static const mgl_plan_limits limits = {
      .tokens = 64, .sequences = 3, .pages_per_sequence = 4, .page_tokens = 16};
  static const int32_t pages_a[] = {7, 2, 9};
  static const int32_t pages_b[] = {0};
  int32_t tokens[20];
  mgl_plan *plan = NULL;
  mgl_error err = {0};
  for (int i = 0; i < 20; i++) {
    tokens[i] = 100 + i;
  }
  assert_int_equal(mgl_plan_create(&limits, &plan, &err), MGL_OK);
  for (int round = 0; round < 2; round++) {  // a cleared plan is as good as a new one
    mgl_plan_clear(plan);
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                         .token_count = 1,
                                         .position = 3,
                                         .pages = pages_b,
                                         .page_count = 1,
                                         .logits = MGL_LOGITS_LAST});
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                         .token_count = 19,
                                         .position = 14,
                                         .pages = pages_a,
                                         .page_count = 3,
                                         .logits = MGL_LOGITS_NONE});
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens + 5,
                                         .token_count = 2,
                                         .position = 0,
                                         .pages = pages_b,
                                         .page_count = 1,
                                         .logits = MGL_LOGITS_ALL});
    assert_int_equal(plan->token_count, 22);
    assert_int_equal(plan->sequence_count, 3);
    static const uint32_t starts[] = {0, 1, 20, 22};
    assert_memory_equal(plan->query_start, starts, sizeof starts);
    assert_int_equal(plan->tokens[0], 100);
    assert_int_equal(plan->tokens[20], 105);
    assert_int_equal(plan->slots[0], 3);
    for (uint32_t i = 0; i < 19; i++) {
      uint32_t position = 14 + i;
      assert_int_equal(plan->positions[1 + i], position);
      assert_int_equal(plan->slots[1 + i], (uint32_t)pages_a[position / 16] * 16 + position % 16);
    }
    static const int32_t tables[] = {0, -1, -1, -1, 7, 2, 9, -1, 0, -1, -1, -1};
    assert_memory_equal(plan->block_tables, tables, sizeof tables);
    static const uint32_t rows[] = {0, 20, 21};
    assert_int_equal(plan->logit_row_count, 3);
    assert_memory_equal(plan->logit_rows, rows, sizeof rows);
    static const mgl_attention_item items[] = {
        {0, 0, 1}, {1, 1, 8}, {1, 9, 8}, {1, 17, 3}, {2, 20, 2}};
    assert_int_equal(plan->attention_item_count, 5);
    assert_memory_equal(plan->attention_items, items, sizeof items);
  }
  mgl_plan_destroy(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_become_rows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
