#include "compile/task_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

bool mgl_span_list_push(mgl_span_list *list, mgl_span span) {
  void *spans = list->spans;
  if (mgl_grow(&spans, &list->capacity, list->count + 1, sizeof(mgl_span), NULL) != MGL_OK) {
    return false;
  }
  list->spans = spans;
  list->spans[list->count++] = span;
  return true;
}

bool mgl_span_list_add(mgl_span_list *list, uint32_t first, uint32_t last) {
  if (first >= last) {
    return true;
  }
  if (list->count > 0 && list->spans[list->count - 1].last == first) {
    list->spans[list->count - 1].last = last;
    return true;
  }
  return mgl_span_list_push(list, (mgl_span){first, last});
}

bool mgl_span_list_add_set(mgl_span_list *list, mgl_task_set set) {
  for (uint32_t i = 0; i < set.span_count; i++) {
    if (!mgl_span_list_add(list, set.spans[i].first, set.spans[i].last)) {
      return false;
    }
  }
  return true;
}

void mgl_span_list_free(mgl_span_list *list) {
  mgl_free(list->spans);
  *list = (mgl_span_list){0};
}

static int compare_spans(const void *a, const void *b) {
  const mgl_span *x = a;
  const mgl_span *y = b;
  return x->first != y->first ? (x->first < y->first ? -1 : 1)
                              : (x->last > y->last) - (x->last < y->last);
}

bool mgl_span_list_take(mgl_span_list *list, mgl_arena *arena, mgl_task_set *out) {
  bool sorted = true;
  for (size_t i = 1; sorted && i < list->count; i++) {
    sorted = list->spans[i - 1].first <= list->spans[i].first;
  }
  if (!sorted) {
    qsort(list->spans, list->count, sizeof *list->spans, compare_spans);
  }
  size_t count = 0;
  for (size_t i = 0; i < list->count; i++) {
    mgl_span span = list->spans[i];
    if (count > 0 && list->spans[count - 1].last >= span.first) {
      mgl_span *end = &list->spans[count - 1];
      end->last = end->last > span.last ? end->last : span.last;
    } else {
      list->spans[count++] = span;
    }
  }
  *out = (mgl_task_set){NULL, (uint32_t)count};
  list->count = 0;
  if (count == 0) {
    return true;
  }
  mgl_span *copy = mgl_arena_alloc(arena, count * sizeof *copy);
  if (copy == NULL) {
    return false;
  }
  memcpy(copy, list->spans, count * sizeof *copy);
  out->spans = copy;
  return true;
}

uint64_t mgl_task_set_size(mgl_task_set set) {
  uint64_t size = 0;
  for (uint32_t i = 0; i < set.span_count; i++) {
    size += set.spans[i].last - set.spans[i].first;
  }
  return size;
}

uint64_t mgl_task_set_hash(mgl_task_set set) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint32_t i = 0; i < set.span_count; i++) {
    hash ^= (uint64_t)set.spans[i].first << 32 | set.spans[i].last;
    hash *= 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

bool mgl_task_set_equal(mgl_task_set a, mgl_task_set b) {
  return a.span_count == b.span_count &&
         (a.span_count == 0 || a.spans == b.spans ||
          memcmp(a.spans, b.spans, a.span_count * sizeof *a.spans) == 0);
}

bool mgl_task_set_contains(mgl_task_set set, uint32_t first, uint32_t last) {
  uint32_t low = 0;  // the first span that ends behind `first`
  uint32_t high = set.span_count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (set.spans[middle].last <= first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return first >= last ||
         (low < set.span_count && set.spans[low].first <= first && set.spans[low].last >= last);
}

bool mgl_task_set_is_subset(mgl_task_set inner, mgl_task_set outer) {
  for (uint32_t i = 0; i < inner.span_count; i++) {
    if (!mgl_task_set_contains(outer, inner.spans[i].first, inner.spans[i].last)) {
      return false;
    }
  }
  return true;
}

bool mgl_task_set_subtract(mgl_task_set a, mgl_task_set b, mgl_span_list *out) {
  uint32_t j = 0;
  for (uint32_t i = 0; i < a.span_count; i++) {
    uint32_t first = a.spans[i].first;
    uint32_t last = a.spans[i].last;
    while (j < b.span_count && b.spans[j].last <= first) {
      j++;
    }
    for (uint32_t k = j; k < b.span_count && b.spans[k].first < last; k++) {
      if (first < b.spans[k].first && !mgl_span_list_add(out, first, b.spans[k].first)) {
        return false;
      }
      first = b.spans[k].last > first ? b.spans[k].last : first;
    }
    if (!mgl_span_list_add(out, first, last)) {
      return false;
    }
  }
  return true;
}

bool mgl_task_set_intersect(mgl_task_set a, mgl_task_set b, mgl_span_list *out) {
  uint32_t i = 0;
  uint32_t j = 0;
  while (i < a.span_count && j < b.span_count) {
    mgl_span x = a.spans[i];
    mgl_span y = b.spans[j];
    uint32_t first = x.first > y.first ? x.first : y.first;
    uint32_t last = x.last < y.last ? x.last : y.last;
    if (!mgl_span_list_add(out, first, last)) {
      return false;
    }
    if (x.last < y.last) {
      i++;
    } else {
      j++;
    }
  }
  return true;
}
