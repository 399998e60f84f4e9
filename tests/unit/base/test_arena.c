// The bump allocator: alignment, growth in place, the limit, failing allocations.
#include "base/arena.h"

// cmocka.h wants these first.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/alloc.h"

static void memory_is_aligned_and_separate(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  mgl_arena arena = {0};
  unsigned char *blocks[500];
  for (size_t i = 0; i < 500; i++) {
    assert_non_null(mgl_arena_alloc_text(&arena, i % 3));  // moves the cursor off its alignment
    blocks[i] = mgl_arena_alloc(&arena, i);
    assert_non_null(blocks[i]);
    assert_int_equal((uintptr_t)blocks[i] % 16, 0);
    memset(blocks[i], (int)(i % 251), i);
  }
  for (size_t i = 0; i < 500; i++) {
    for (size_t j = 0; j < i; j++) {
      assert_int_equal(blocks[i][j], i % 251);
    }
  }
  const unsigned char *zeroed = mgl_arena_alloc_zeroed(&arena, 100, 70);
  for (size_t i = 0; i < 7000; i++) {
    assert_int_equal(zeroed[i], 0);
  }
  assert_null(mgl_arena_alloc_zeroed(&arena, SIZE_MAX / 2, 3));
  assert_non_null(mgl_arena_alloc(&arena, 3 << 20));  // larger than any regular chunk
  mgl_arena_free(&arena);
  assert_int_equal(mgl_alloc_live(), live);
}

static void the_newest_block_grows_in_place(void **state) {
  (void)state;
  mgl_arena arena = {0};
  char *first = mgl_arena_alloc_text(&arena, 10);
  assert_true(mgl_arena_extend(&arena, first, 10, 5));
  char *second = mgl_arena_alloc_text(&arena, 1);
  assert_ptr_equal(second, first + 15);
  assert_false(mgl_arena_extend(&arena, first, 15, 1));        // not the newest
  assert_false(mgl_arena_extend(&arena, second, 0, 1));        // empty: may be anyone's
  assert_false(mgl_arena_extend(&arena, second, 1, 1 << 20));  // the chunk is full
  mgl_arena_free(&arena);
  assert_false(mgl_arena_extend(&arena, second, 1, 1));
}

static void the_limit_and_failures_give_null(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  mgl_arena arena = {.limit = 10000};
  size_t got = 0;
  while (mgl_arena_alloc(&arena, 100) != NULL) {
    got++;
  }
  assert_true(got >= 40 && got <= 100);
  assert_true(arena.over_limit);
  assert_true(arena.bytes <= 10000);
  mgl_arena_free(&arena);
  assert_false(arena.over_limit);
  assert_int_equal(arena.limit, 10000);
  mgl_alloc_fail_nth(1);
  assert_null(mgl_arena_alloc(&arena, 1));
  assert_false(arena.over_limit);
  assert_non_null(mgl_arena_alloc_text(&arena, 0));
  mgl_alloc_fail_nth(0);
  mgl_arena_free(&arena);
  assert_int_equal(mgl_alloc_live(), live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_is_aligned_and_separate),
      cmocka_unit_test(the_newest_block_grows_in_place),
      cmocka_unit_test(the_limit_and_failures_give_null),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
