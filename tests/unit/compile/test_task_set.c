// Sets of tasks against bits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compile/task_set.h"
#include "support/random_program.h"

enum { UNIVERSE = 60, ROUNDS = 3000 };

typedef struct pair {
  mgl_task_set set;
  uint64_t bits;
} pair;

static pair random_set(random_source *random, mgl_span_list *list, mgl_arena *arena) {
  pair p = {0};
  uint32_t count = random_below(random, 8);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t first = random_below(random, UNIVERSE);
    uint32_t last = first + random_below(random, 9);
    last = last > UNIVERSE ? UNIVERSE : last;
    assert_true(mgl_span_list_add(list, first, last));
    for (uint32_t task = first; task < last; task++) {
      p.bits |= (uint64_t)1 << task;
    }
  }
  assert_true(mgl_span_list_take(list, arena, &p.set));
  return p;
}

static uint64_t bits_of(mgl_task_set set) {
  uint64_t bits = 0;
  for (uint32_t i = 0; i < set.span_count; i++) {
    assert_true(set.spans[i].first < set.spans[i].last);
    assert_true(i == 0 || set.spans[i - 1].last < set.spans[i].first);
    for (uint32_t task = set.spans[i].first; task < set.spans[i].last; task++) {
      bits |= (uint64_t)1 << task;
    }
  }
  return bits;
}

static uint64_t count_bits(uint64_t bits) {
  uint64_t count = 0;
  for (; bits != 0; bits &= bits - 1) {
    count++;
  }
  return count;
}

static void operations_agree_with_bits(void **state) {
  (void)state;
  random_source random = {3};
  mgl_arena arena = {0};
  mgl_span_list list = {0};
  for (int i = 0; i < ROUNDS; i++) {
    pair a = random_set(&random, &list, &arena);
    pair b = random_set(&random, &list, &arena);
    mgl_task_set result;
    assert_int_equal(bits_of(a.set), a.bits);
    assert_int_equal(mgl_task_set_size(a.set), count_bits(a.bits));
    assert_int_equal(mgl_task_set_equal(a.set, b.set), a.bits == b.bits);
    assert_true(a.bits != b.bits || mgl_task_set_hash(a.set) == mgl_task_set_hash(b.set));
    assert_int_equal(mgl_task_set_is_subset(a.set, b.set), (a.bits & ~b.bits) == 0);
    assert_true(mgl_task_set_subtract(a.set, b.set, &list));
    assert_true(mgl_span_list_take(&list, &arena, &result));
    assert_int_equal(bits_of(result), a.bits & ~b.bits);
    assert_true(mgl_task_set_intersect(a.set, b.set, &list));
    assert_true(mgl_span_list_take(&list, &arena, &result));
    assert_int_equal(bits_of(result), a.bits & b.bits);
    assert_true(mgl_span_list_add_set(&list, a.set) && mgl_span_list_add_set(&list, b.set));
    assert_true(mgl_span_list_take(&list, &arena, &result));
    assert_int_equal(bits_of(result), a.bits | b.bits);
    uint32_t first = random_below(&random, UNIVERSE);
    uint32_t last = first + random_below(&random, 4);
    uint64_t range = 0;
    for (uint32_t task = first; task < last; task++) {
      range |= (uint64_t)1 << task;
    }
    assert_int_equal(mgl_task_set_contains(a.set, first, last), (range & ~a.bits) == 0);
  }
  mgl_span_list_free(&list);
  mgl_arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(operations_agree_with_bits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
