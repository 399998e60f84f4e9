// Sets of tasks as sorted spans of consecutive numbers.
//
// Tasks of one op are numbered one after the other, and tiles that neighbour each other depend on
// neighbours, so the sets that the compiler works with (producers, consumers, ancestors) are a few
// spans where a list would hold thousands of numbers: after a barrier, "everything before" is one
// span. Rejected: bit sets, 170 MB for the ancestors of an 8B model's events.
#ifndef MGL_COMPILE_TASK_SET_H
#define MGL_COMPILE_TASK_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

typedef struct mgl_span {
  uint32_t first, last;  // tasks [first, last), not empty
} mgl_span;

// Spans ascend and do not touch; so equal sets have equal spans. Spans lie in an arena and never
// change.
typedef struct mgl_task_set {
  const mgl_span *spans;
  uint32_t span_count;
} mgl_task_set;

// Spans under construction, in any order. Zero-initialise; free with mgl_span_list_free.
typedef struct mgl_span_list {
  mgl_span *spans;
  size_t count;
  size_t capacity;
} mgl_span_list;

bool mgl_span_list_add(mgl_span_list *list, uint32_t first, uint32_t last);  // false: out of memory
// Without joining it to the one before: for pairs that are no spans.
bool mgl_span_list_push(mgl_span_list *list, mgl_span span);
bool mgl_span_list_add_set(mgl_span_list *list, mgl_task_set set);
void mgl_span_list_free(mgl_span_list *list);
// Their union, and empties the list. False: out of memory.
bool mgl_span_list_take(mgl_span_list *list, mgl_arena *arena, mgl_task_set *out);

uint64_t mgl_task_set_size(mgl_task_set set);
uint64_t mgl_task_set_hash(mgl_task_set set);
bool mgl_task_set_equal(mgl_task_set a, mgl_task_set b);
// True if every task of [first, last) is in the set.
bool mgl_task_set_contains(mgl_task_set set, uint32_t first, uint32_t last);
bool mgl_task_set_is_subset(mgl_task_set inner, mgl_task_set outer);
// Adds the tasks of a that are not in b to the list.
bool mgl_task_set_subtract(mgl_task_set a, mgl_task_set b, mgl_span_list *out);
bool mgl_task_set_intersect(mgl_task_set a, mgl_task_set b, mgl_span_list *out);

#endif
