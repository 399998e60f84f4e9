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
#include "support/failing_allocations.h"

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
                                         .prompt_count = 50,
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
    static const uint32_t kv_starts[] = {0, 4, 37, 39};
    static const uint32_t page_starts[] = {0, 1, 4, 5};
    static const uint32_t last[] = {4, 1, 2}, new_counts[] = {1, 19, 2}, steps[] = {3, 14, 0};
    static const uint32_t prompts[] = {0, 50, 0};
    static const int32_t pages[] = {0, 7, 2, 9, 0};
    assert_memory_equal(plan->kv_start, kv_starts, sizeof kv_starts);
    assert_memory_equal(plan->page_start, page_starts, sizeof page_starts);
    assert_memory_equal(plan->pages, pages, sizeof pages);
    assert_memory_equal(plan->last_page_tokens, last, sizeof last);
    assert_memory_equal(plan->new_counts, new_counts, sizeof new_counts);
    assert_memory_equal(plan->prompt_counts, prompts, sizeof prompts);
    assert_memory_equal(plan->steps, steps, sizeof steps);
    static const int32_t outputs[] = {-1, -1, -1};
    assert_memory_equal(plan->output_tokens, outputs, sizeof outputs);
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
    static const mgl_attention_item items[] = {{0, 0, 1}, {1, 1, 12}, {1, 13, 7}, {2, 20, 2}};
    assert_int_equal(plan->attention_item_count, 4);
    assert_memory_equal(plan->attention_items, items, sizeof items);
  }
  mgl_plan_destroy(plan);
}

// A plan of three sequences, two of which share a full page that was computed before.
static mgl_plan *sound_plan(void) {
  static const mgl_plan_limits limits = {
      .tokens = 64, .sequences = 3, .pages_per_sequence = 4, .page_tokens = 16};
  static const int32_t pages[3][3] = {{7, 2, 9}, {7, 3, 4}, {5}};
  static const uint32_t positions[] = {40, 16, 0}, counts[] = {1, 20, 12};
  static const int32_t tokens[20] = {0};
  mgl_plan *plan = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_plan_create(&limits, &plan, &err), MGL_OK);
  mgl_plan_clear(plan);
  for (uint32_t i = 0; i < 3; i++) {
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                         .token_count = counts[i],
                                         .position = positions[i],
                                         .pages = pages[i],
                                         .page_count = i < 2 ? 3 : 1,
                                         .logits = i == 2 ? MGL_LOGITS_ALL : MGL_LOGITS_LAST});
  }
  return plan;
}

// Every array is looked at: one wrong number in any of them is found.
static void a_wrong_number_is_found(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_plan *plan = sound_plan();
  const struct {
    void *array;
    uint32_t index;
  } places[] = {
      {plan->tokens, 3},       {plan->positions, 5},       {plan->slots, 7},
      {plan->query_start, 1},  {plan->query_start, 3},     {plan->kv_start, 2},
      {plan->page_start, 1},   {plan->page_start, 3},      {plan->pages, 4},
      {plan->block_tables, 0}, {plan->block_tables, 3},    {plan->last_page_tokens, 1},
      {plan->new_counts, 2},   {plan->steps, 0},           {plan->logit_rows, 0},
      {plan->logit_rows, 13},  {plan->attention_items, 0}, {plan->attention_items, 7},
      {&plan->token_count, 0}, {&plan->sequence_count, 0}, {&plan->attention_item_count, 0},
  };
  if (mgl_plan_check(plan, 10, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(mgl_plan_check(plan, 9, &err), MGL_ERR_INTERNAL);  // there is no page 9
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    uint32_t *place = (uint32_t *)places[i].array + places[i].index;
    uint32_t was = *place;
    *place = was == 0 ? UINT32_MAX : was == UINT32_MAX ? 0 : was - 1;
    if (mgl_plan_check(plan, 10, &err) != MGL_ERR_INTERNAL) {
      fail_msg("number %zu of the cases was changed unseen", i);
    }
    *place = was;
  }
  mgl_plan_destroy(plan);
}

static void a_page_that_is_written_is_nobody_elses(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_plan *plan = sound_plan();
  plan->pages[plan->page_start[1] + 1] = 2;  // slot 0 reads it
  plan->block_tables[4 + 1] = 2;
  for (uint32_t row = 1; row < 17; row++) {
    plan->slots[row] = 2 * 16 + plan->positions[row] % 16;
  }
  assert_int_equal(mgl_plan_check(plan, 10, &err), MGL_ERR_INTERNAL);
  assert_non_null(strstr(err.text, "something else reads (2)"));
  mgl_plan_destroy(plan);
}

static mgl_status create_once(void *limits, mgl_error *err) {
  mgl_plan *plan = NULL;
  mgl_status status = mgl_plan_create(limits, &plan, err);
  mgl_plan_destroy(plan);
  return status;
}

static void memory_may_be_out(void **state) {
  (void)state;
  mgl_plan_limits limits = {
      .tokens = 2048, .sequences = 1024, .pages_per_sequence = 4, .page_tokens = 16};
  assert_true(fail_each_allocation(create_once, &limits) >= 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chunks_become_rows),
      cmocka_unit_test(a_wrong_number_is_found),
      cmocka_unit_test(a_page_that_is_written_is_nobody_elses),
      cmocka_unit_test(memory_may_be_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
