#include "grammar/configurations.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum { FIRST_BUCKETS = 64, FIRST_SEEN = 64 };

static mgl_status out_of_memory(mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for matching a grammar");
}

static size_t hash_of(uint32_t a, uint32_t b) {
  uint64_t key = ((uint64_t)a << 32 | b) * UINT64_C(0x9e3779b97f4a7c15);
  return (size_t)(key >> 29);
}

mgl_status mgl_steps_init(mgl_steps *s, const mgl_automaton *automaton, mgl_error *err) {
  void *items = NULL;
  *s = (mgl_steps){.automaton = automaton, .bucket_count = FIRST_BUCKETS, .seen_count = FIRST_SEEN};
  s->buckets = mgl_alloc_zeroed(FIRST_BUCKETS, sizeof *s->buckets);
  s->seen = mgl_alloc_zeroed(FIRST_SEEN, sizeof *s->seen);
  if (s->buckets == NULL || s->seen == NULL ||
      mgl_grow(&items, &s->stack_capacity, 1, sizeof *s->stacks, NULL) != MGL_OK) {
    mgl_steps_reset(s);
    return out_of_memory(err);
  }
  s->stacks = items;
  mgl_steps_forget(s);
  return MGL_OK;
}

void mgl_steps_reset(mgl_steps *s) {
  mgl_free(s->stacks);
  mgl_free(s->buckets);
  mgl_free(s->found);
  mgl_free(s->seen);
  mgl_free(s->kept);
  *s = (mgl_steps){0};
}

void mgl_steps_forget(mgl_steps *s) {
  memset(s->buckets, 0, s->bucket_count * sizeof *s->buckets);
  s->stacks[0] = (mgl_stack){0};
  s->stack_count = 1;
}

// --- stacks --------------------------------------------------------------------------------------

static void link_stack(mgl_steps *s, uint32_t index) {
  mgl_stack *stack = &s->stacks[index];
  uint32_t *bucket = &s->buckets[hash_of(stack->state, stack->parent) & (s->bucket_count - 1)];
  stack->next = *bucket;
  *bucket = index;
}

static mgl_status double_buckets(mgl_steps *s, mgl_error *err) {
  uint32_t *buckets = mgl_alloc_zeroed(s->bucket_count * 2, sizeof *buckets);
  if (buckets == NULL) {
    return out_of_memory(err);
  }
  mgl_free(s->buckets);
  s->buckets = buckets;
  s->bucket_count *= 2;
  for (uint32_t i = 1; i < s->stack_count; i++) {
    link_stack(s, i);
  }
  return MGL_OK;
}

static mgl_status push(mgl_steps *s, uint32_t state, uint32_t parent, uint32_t *out,
                       mgl_error *err) {
  void *items = s->stacks;
  uint32_t at = s->buckets[hash_of(state, parent) & (s->bucket_count - 1)];
  while (at != 0 && (s->stacks[at].state != state || s->stacks[at].parent != parent)) {
    at = s->stacks[at].next;
  }
  *out = at;
  if (at != 0) {
    return MGL_OK;
  }
  if (s->stack_count == MGL_GRAMMAR_MAX_STACKS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "the grammar is too ambiguous: more than %d stacks",
                         MGL_GRAMMAR_MAX_STACKS);
  }
  if (s->stack_count >= s->bucket_count) {
    MGL_TRY(double_buckets(s, err));
  }
  MGL_TRY(mgl_grow(&items, &s->stack_capacity, s->stack_count + 1, sizeof *s->stacks, err));
  s->stacks = items;
  *out = (uint32_t)s->stack_count++;
  s->stacks[*out] =
      (mgl_stack){.state = state, .parent = parent, .depth = s->stacks[parent].depth + 1};
  link_stack(s, *out);
  return MGL_OK;
}

mgl_status mgl_steps_import(mgl_steps *s, const mgl_steps *from, uint32_t from_stack, uint32_t *out,
                            mgl_error *err) {
  uint32_t path[MGL_GRAMMAR_MAX_DEPTH];
  uint32_t depth = 0;
  for (; from_stack != 0; from_stack = from->stacks[from_stack].parent) {
    path[depth++] = from->stacks[from_stack].state;
  }
  *out = 0;
  while (depth > 0) {
    MGL_TRY(push(s, path[--depth], *out, out, err));
  }
  return MGL_OK;
}

// --- closures ------------------------------------------------------------------------------------

void mgl_closure_begin(mgl_steps *s) {
  if (s->found_count * 4 > s->seen_count) {
    memset(s->seen, 0, s->seen_count * sizeof *s->seen);
  } else {
    for (size_t i = 0; i < s->found_count; i++) {
      size_t at = hash_of(s->found[i].state, s->found[i].stack) & (s->seen_count - 1);
      while (s->seen[at] != 0) {  // a run of them was taken together, so it can go together
        s->seen[at] = 0;
        at = (at + 1) & (s->seen_count - 1);
      }
    }
  }
  s->found_count = 0;
  s->accepts = false;
}

static mgl_status double_seen(mgl_steps *s, mgl_error *err) {
  uint32_t *seen = mgl_alloc_zeroed(s->seen_count * 2, sizeof *seen);
  if (seen == NULL) {
    return out_of_memory(err);
  }
  mgl_free(s->seen);
  s->seen = seen;
  s->seen_count *= 2;
  for (size_t i = 0; i < s->found_count; i++) {
    size_t at = hash_of(s->found[i].state, s->found[i].stack) & (s->seen_count - 1);
    while (s->seen[at] != 0) {
      at = (at + 1) & (s->seen_count - 1);
    }
    s->seen[at] = (uint32_t)i + 1;
  }
  return MGL_OK;
}

static mgl_status grow_found(mgl_steps *s, mgl_error *err) {
  size_t capacity = s->found_capacity == 0 ? 16 : s->found_capacity * 2;
  mgl_pair *found = mgl_realloc(s->found, capacity * sizeof *found);
  if (found == NULL) {
    return out_of_memory(err);
  }
  s->found = found;
  mgl_pair *kept = mgl_realloc(s->kept, capacity * sizeof *kept);
  if (kept == NULL) {
    return out_of_memory(err);
  }
  s->kept = kept;
  s->found_capacity = capacity;
  return MGL_OK;
}

mgl_status mgl_closure_add(mgl_steps *s, mgl_pair pair, mgl_error *err) {
  size_t at = hash_of(pair.state, pair.stack) & (s->seen_count - 1);
  for (; s->seen[at] != 0; at = (at + 1) & (s->seen_count - 1)) {
    const mgl_pair *other = &s->found[s->seen[at] - 1];
    if (other->state == pair.state && other->stack == pair.stack) {
      return MGL_OK;
    }
  }
  if (s->found_count == MGL_GRAMMAR_MAX_PAIRS) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "the grammar is too ambiguous: a text can be at more than %d places of it",
                         MGL_GRAMMAR_MAX_PAIRS);
  }
  if (s->found_count == s->found_capacity) {
    MGL_TRY(grow_found(s, err));
  }
  s->found[s->found_count++] = pair;
  s->seen[at] = (uint32_t)s->found_count;
  s->work++;
  return s->found_count * 2 > s->seen_count ? double_seen(s, err) : MGL_OK;
}

// Follows the edges of a pair that take no byte.
static mgl_status follow(mgl_steps *s, mgl_pair pair, mgl_error *err) {
  const mgl_automaton *a = s->automaton;
  const mgl_state *state = &a->states[pair.state];
  if (state->is_end && pair.stack == 0) {
    s->accepts = true;
  } else if (state->is_end) {
    const mgl_stack *top = &s->stacks[pair.stack];
    MGL_TRY(mgl_closure_add(s, (mgl_pair){top->state, top->parent}, err));
  }
  for (uint32_t i = 0; i < state->free_edge_count; i++) {
    const mgl_free_edge *edge = &a->free_edges[state->first_free_edge + i];
    mgl_pair next = {edge->target, pair.stack};
    if (edge->rule != MGL_NO_RULE) {
      next.state = a->starts[edge->rule];
      if (!edge->is_tail && s->stacks[pair.stack].depth == MGL_GRAMMAR_MAX_DEPTH) {
        continue;  // a text does not get deeper: what it could say there is not allowed
      }
      if (!edge->is_tail) {
        MGL_TRY(push(s, edge->target, pair.stack, &next.stack, err));
      }
    }
    MGL_TRY(mgl_closure_add(s, next, err));
  }
  return MGL_OK;
}

static int by_pair(const void *a, const void *b) {
  const mgl_pair *x = a;
  const mgl_pair *y = b;
  return x->state != y->state ? (x->state < y->state ? -1 : 1)
                              : (x->stack > y->stack) - (x->stack < y->stack);
}

mgl_status mgl_closure_finish(mgl_steps *s, mgl_configuration *out, mgl_error *err) {
  uint32_t kept = 0;
  for (size_t i = 0; i < s->found_count; i++) {
    mgl_pair pair = s->found[i];
    MGL_TRY(follow(s, pair, err));
    if (s->automaton->states[pair.state].byte_edge_count > 0) {
      s->kept[kept++] = pair;
    }
  }
  if (kept > 1) {
    qsort(s->kept, kept, sizeof *s->kept, by_pair);
  }
  *out = (mgl_configuration){.pairs = s->kept, .count = kept, .accepts = s->accepts};
  return MGL_OK;
}

mgl_status mgl_steps_begin(mgl_steps *s, mgl_configuration *out, mgl_error *err) {
  mgl_closure_begin(s);
  MGL_TRY(mgl_closure_add(s, (mgl_pair){s->automaton->starts[0], 0}, err));
  return mgl_closure_finish(s, out, err);
}
