#include "grammar/expression.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

enum { TICKS_PER_CLOCK = 256, FIRST_SURROGATE = 0xd800, LAST_SURROGATE = 0xdfff };

void mgl_builder_free(mgl_builder *b) {
  mgl_arena_free(&b->arena);
  mgl_free(b->rules);
  b->rules = NULL;
  b->rule_count = b->rule_capacity = 0;
}

void *mgl_builder_fail(mgl_builder *b, mgl_status status, const char *format, ...) {
  if (b->error.status == MGL_OK) {
    char text[MGL_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)mgl_error_set(&b->error, status, "%s", text);
  }
  return NULL;
}

bool mgl_builder_failed(mgl_builder *b) {
  if (b->error.status == MGL_OK && b->deadline_ns != 0 && ++b->ticks % TICKS_PER_CLOCK == 0 &&
      mgl_clock_ns() > b->deadline_ns) {
    (void)mgl_builder_fail(b, MGL_ERR_LIMIT, "it takes too long to compile: make it smaller");
  }
  return b->error.status != MGL_OK;
}

void *mgl_builder_alloc(mgl_builder *b, size_t count, size_t bytes_each) {
  if (mgl_builder_failed(b)) {
    return NULL;
  }
  b->arena.limit = MGL_GRAMMAR_MAX_MEMORY_BYTES;
  void *memory = mgl_arena_alloc_zeroed(&b->arena, count, bytes_each);
  if (memory == NULL && b->arena.over_limit) {
    return mgl_builder_fail(b, MGL_ERR_LIMIT, "it takes more than %d MiB to compile",
                            MGL_GRAMMAR_MAX_MEMORY_BYTES >> 20);
  }
  return memory != NULL ? memory : mgl_builder_fail(b, MGL_ERR_MEMORY, "out of memory");
}

// --- expressions ---------------------------------------------------------------------------------

static mgl_expression *create(mgl_builder *b, mgl_expression_kind kind, size_t count) {
  mgl_expression *e = mgl_builder_alloc(b, 1, sizeof *e);
  if (e != NULL && count > UINT32_MAX / 2) {
    return mgl_builder_fail(b, MGL_ERR_LIMIT, "an expression has %zu parts", count);
  }
  if (e != NULL) {
    e->kind = kind;
    e->count = (uint32_t)count;
  }
  return e;
}

const mgl_expression *mgl_expression_bytes(mgl_builder *b, const char *bytes, size_t count) {
  mgl_expression *e = create(b, MGL_EXPRESSION_BYTES, count);
  char *copy = e == NULL ? NULL : mgl_builder_alloc(b, count + 1, 1);
  if (copy == NULL) {
    return NULL;
  }
  memcpy(copy, bytes, count);
  e->bytes = copy;
  return e;
}

const mgl_expression *mgl_expression_string(mgl_builder *b, const char *string) {
  return mgl_expression_bytes(b, string, strlen(string));
}

static int by_low(const void *a, const void *b) {
  uint32_t x = ((const mgl_code_range *)a)->first;
  uint32_t y = ((const mgl_code_range *)b)->first;
  return x < y ? -1 : x > y ? 1 : 0;
}

// Sorts ranges and joins what touches, in place; returns how many are left.
static size_t join_ranges(mgl_code_range *ranges, size_t count) {
  size_t kept = 0;
  qsort(ranges, count, sizeof *ranges, by_low);
  for (size_t i = 0; i < count; i++) {
    if (kept > 0 && ranges[i].first <= ranges[kept - 1].last + 1) {
      if (ranges[i].last > ranges[kept - 1].last) {
        ranges[kept - 1].last = ranges[i].last;
      }
    } else {
      ranges[kept++] = ranges[i];
    }
  }
  return kept;
}

const mgl_code_range *mgl_ranges_without(mgl_builder *b, const mgl_code_range *ranges, size_t count,
                                         const mgl_code_range *without, size_t without_count,
                                         size_t *out_count) {
  mgl_code_range *all = mgl_builder_alloc(b, count + 1, sizeof *all);
  mgl_code_range *minus = mgl_builder_alloc(b, without_count + 1, sizeof *minus);
  mgl_code_range *out = mgl_builder_alloc(b, count + without_count + 1, sizeof *out);
  *out_count = 0;
  if (all == NULL || minus == NULL || out == NULL) {
    return NULL;
  }
  if (count > 0) {
    memcpy(all, ranges, count * sizeof *all);
  }
  if (without_count > 0) {
    memcpy(minus, without, without_count * sizeof *minus);
  }
  count = join_ranges(all, count);
  without_count = join_ranges(minus, without_count);
  size_t j = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t low = all[i].first;
    while (j < without_count && minus[j].last < low) {
      j++;
    }
    for (size_t k = j; k < without_count && minus[k].first <= all[i].last; k++) {
      if (minus[k].first > low) {
        out[(*out_count)++] = (mgl_code_range){low, minus[k].first - 1};
      }
      low = minus[k].last + 1;
    }
    if (low <= all[i].last) {
      out[(*out_count)++] = (mgl_code_range){low, all[i].last};
    }
  }
  return out;
}

const mgl_expression *mgl_expression_set(mgl_builder *b, const mgl_code_range *ranges,
                                         size_t count) {
  static const mgl_code_range surrogates[] = {{FIRST_SURROGATE, LAST_SURROGATE}};
  mgl_expression *e = create(b, MGL_EXPRESSION_SET, count);
  size_t kept = 0;
  if (e == NULL) {
    return NULL;
  }
  e->ranges = mgl_ranges_without(b, ranges, count, surrogates, 1, &kept);
  e->count = (uint32_t)kept;
  return e->ranges == NULL ? NULL : e;
}

static const mgl_expression *join(mgl_builder *b, mgl_expression_kind kind,
                                  const mgl_expression *const *parts, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (parts[i] == NULL) {
      return NULL;
    }
  }
  if (count == 1) {
    return mgl_builder_failed(b) ? NULL : parts[0];
  }
  mgl_expression *e = create(b, kind, count);
  const mgl_expression **copy = e == NULL ? NULL : mgl_builder_alloc(b, count + 1, sizeof *copy);
  if (copy == NULL) {
    return NULL;
  }
  if (count > 0) {
    memcpy(copy, parts, count * sizeof *copy);
  }
  e->parts = copy;
  return e;
}

const mgl_expression *mgl_expression_sequence(mgl_builder *b, const mgl_expression *const *parts,
                                              size_t count) {
  return join(b, MGL_EXPRESSION_SEQUENCE, parts, count);
}

const mgl_expression *mgl_expression_choice(mgl_builder *b, const mgl_expression *const *parts,
                                            size_t count) {
  return join(b, MGL_EXPRESSION_CHOICE, parts, count);
}

const mgl_expression *mgl_expression_repeat(mgl_builder *b, const mgl_expression *body,
                                            uint64_t min, uint64_t max) {
  bool is_bounded = max != MGL_REPEAT_UNBOUNDED;
  if (min > MGL_GRAMMAR_MAX_REPEAT || (is_bounded && max > MGL_GRAMMAR_MAX_REPEAT)) {
    return mgl_builder_fail(b, MGL_ERR_LIMIT, "expected at most %d repetitions, found %llu",
                            MGL_GRAMMAR_MAX_REPEAT,
                            (unsigned long long)(is_bounded && max > min ? max : min));
  }
  if (max < min) {
    return mgl_expression_choice(b, NULL, 0);
  }
  mgl_expression *e = body == NULL ? NULL : create(b, MGL_EXPRESSION_REPEAT, 0);
  if (e != NULL) {
    e->body = body;
    e->min = (uint32_t)min;
    e->max = (uint32_t)max;
  }
  return e;
}

const mgl_expression *mgl_expression_optional(mgl_builder *b, const mgl_expression *body) {
  return mgl_expression_repeat(b, body, 0, 1);
}

// --- rules ---------------------------------------------------------------------------------------

const mgl_expression *mgl_expression_rule(mgl_builder *b, uint32_t rule) {
  mgl_expression *e = create(b, MGL_EXPRESSION_RULE, 0);
  if (e != NULL) {
    e->rule = rule;
  }
  return e;
}

void mgl_expression_list_add(mgl_builder *b, mgl_expression_list *list,
                             const mgl_expression *part) {
  if (list->count == list->capacity) {
    size_t capacity = list->capacity == 0 ? 8 : list->capacity * 2;
    const mgl_expression **parts = mgl_builder_alloc(b, capacity, sizeof *parts);
    if (parts == NULL) {
      return;
    }
    if (list->count > 0) {
      memcpy(parts, list->parts, list->count * sizeof *parts);
    }
    list->parts = parts;
    list->capacity = capacity;
  }
  list->parts[list->count++] = part;
}

uint32_t mgl_rule_add(mgl_builder *b, const char *name) {
  enum { SHOWN_BYTES = 80 };
  size_t bytes = strlen(name) < SHOWN_BYTES ? strlen(name) : SHOWN_BYTES;
  char *copy = mgl_builder_alloc(b, bytes + 1, 1);
  void *items = b->rules;
  if (copy == NULL) {
    return UINT32_MAX;
  }
  if (b->rule_count == MGL_GRAMMAR_MAX_RULES) {
    (void)mgl_builder_fail(b, MGL_ERR_LIMIT, "expected at most %d rules, found more",
                           MGL_GRAMMAR_MAX_RULES);
    return UINT32_MAX;
  }
  if (mgl_grow(&items, &b->rule_capacity, b->rule_count + 1, sizeof *b->rules, NULL) != MGL_OK) {
    (void)mgl_builder_fail(b, MGL_ERR_MEMORY, "out of memory");
    return UINT32_MAX;
  }
  memcpy(copy, name, bytes);
  b->rules = items;
  b->rules[b->rule_count] = (mgl_rule){.name = copy};
  return (uint32_t)b->rule_count++;
}

void mgl_rule_set(mgl_builder *b, uint32_t rule, const mgl_expression *body) {
  if (rule < b->rule_count) {
    b->rules[rule].body = body;
  }
}
