// From edges to the automaton: which rules can match nothing at all, which the empty text, what is
// left of the edges then, and where they lie.
#include "grammar/automaton.h"

#include <string.h>

#include "base/alloc.h"
#include "grammar/automaton_parts.h"

// Edges by a key, as lists in one array: those of k are edges[first[k] .. first[k + 1]).
typedef struct edge_index {
  uint32_t *first;
  uint32_t *edges;
} edge_index;

typedef enum index_key { BY_FROM, BY_TARGET, BY_RULE } index_key;

static uint32_t key_of(const mgl_edge *edge, index_key key) {
  return key == BY_FROM ? edge->from : key == BY_TARGET ? edge->target : edge->rule;
}

static bool has_key(const mgl_edge *edge, index_key key) {
  return key != BY_RULE || edge->kind == MGL_EDGE_CALL;
}

static edge_index index_edges(const mgl_draft *d, index_key key, size_t key_count) {
  edge_index index = {.first = mgl_builder_alloc(d->b, key_count + 1, sizeof *index.first),
                      .edges = mgl_builder_alloc(d->b, d->edge_count + 1, sizeof *index.edges)};
  uint32_t *next = mgl_builder_alloc(d->b, key_count + 1, sizeof *next);
  if (index.first == NULL || index.edges == NULL || next == NULL) {
    return index;
  }
  for (size_t i = 0; i < d->edge_count; i++) {
    if (has_key(&d->edges[i], key)) {
      index.first[key_of(&d->edges[i], key) + 1]++;
    }
  }
  for (size_t k = 0; k < key_count; k++) {
    index.first[k + 1] += index.first[k];
    next[k + 1] = index.first[k + 1];
  }
  for (size_t i = 0; i < d->edge_count; i++) {
    if (has_key(&d->edges[i], key)) {
      index.edges[next[key_of(&d->edges[i], key)]++] = (uint32_t)i;
    }
  }
  return index;
}

// --- what leads to an end ------------------------------------------------------------------------

// States from which their rule's end can be reached, and rules whose start is one.
typedef struct reach {
  const mgl_draft *d;
  edge_index by_target, by_rule;
  bool takes_bytes;  // along edges that take bytes, too
  bool *states, *rules;
  uint32_t *rule_of_start;  // [state_count] MGL_NO_RULE: none starts there
  uint32_t *queue;
  size_t queued;
} reach;

static void reach_state(reach *r, uint32_t state) {
  if (!r->states[state]) {
    r->states[state] = true;
    r->queue[r->queued++] = state;
  }
}

static void follow_back(reach *r, const mgl_edge *edge) {
  bool passes = edge->kind == MGL_EDGE_EMPTY || (edge->kind == MGL_EDGE_BYTE && r->takes_bytes) ||
                (edge->kind == MGL_EDGE_CALL && r->rules[edge->rule]);
  if (passes && r->states[edge->target]) {
    reach_state(r, edge->from);
  }
}

// Fills states and rules; on failure they mean nothing and the builder knows.
static reach find_reach(const mgl_draft *d, bool takes_bytes) {
  mgl_builder *b = d->b;
  reach r = {.d = d,
             .by_target = index_edges(d, BY_TARGET, d->state_count),
             .by_rule = index_edges(d, BY_RULE, b->rule_count),
             .takes_bytes = takes_bytes,
             .states = mgl_builder_alloc(b, d->state_count + 1u, sizeof *r.states),
             .rules = mgl_builder_alloc(b, b->rule_count + 1, sizeof *r.rules),
             .rule_of_start = mgl_builder_alloc(b, d->state_count + 1u, sizeof *r.rule_of_start),
             .queue = mgl_builder_alloc(b, d->state_count + 1u, sizeof *r.queue)};
  if (mgl_builder_failed(b)) {
    return r;
  }
  memset(r.rule_of_start, 0xff, d->state_count * sizeof *r.rule_of_start);
  for (uint32_t i = 0; i < b->rule_count; i++) {
    r.rule_of_start[d->starts[i]] = i;
    reach_state(&r, d->ends[i]);
  }
  while (r.queued > 0) {
    uint32_t state = r.queue[--r.queued];
    uint32_t rule = r.rule_of_start[state];
    for (uint32_t i = r.by_target.first[state]; i < r.by_target.first[state + 1]; i++) {
      follow_back(&r, &d->edges[r.by_target.edges[i]]);
    }
    if (rule != MGL_NO_RULE) {
      r.rules[rule] = true;
      for (uint32_t i = r.by_rule.first[rule]; i < r.by_rule.first[rule + 1]; i++) {
        follow_back(&r, &d->edges[r.by_rule.edges[i]]);
      }
    }
  }
  return r;
}

// Removes edges that no text can follow to an end.
static void prune(mgl_draft *d, const reach *productive) {
  size_t kept = 0;
  for (size_t i = 0; i < d->edge_count; i++) {
    const mgl_edge edge = d->edges[i];
    if (productive->states[edge.target] &&
        (edge.kind != MGL_EDGE_CALL || productive->rules[edge.rule])) {
      d->edges[kept++] = edge;
    }
  }
  d->edge_count = kept;
}

// --- recursion on the left -----------------------------------------------------------------------

typedef struct left_search {
  const mgl_draft *d;
  edge_index by_from;
  const bool *nullable;  // rules
  uint32_t *seen;        // [state_count] the rule for which a state was seen, plus one
  uint32_t *queue;       // of states
  uint32_t *calls;       // rules that rule i calls first, as lists behind each other
  size_t call_count, call_capacity;
  size_t *first_call;  // [rule_count + 1]
} left_search;

static void note_call(left_search *s, uint32_t rule) {
  void *items = s->calls;
  if (mgl_grow(&items, &s->call_capacity, s->call_count + 1, sizeof *s->calls, NULL) != MGL_OK) {
    (void)mgl_builder_fail(s->d->b, MGL_ERR_MEMORY, "out of memory for an automaton");
    return;
  }
  s->calls = items;
  s->calls[s->call_count++] = rule;
}

// Lists the rules that `rule` can call before it has taken a byte.
static void list_first_calls(left_search *s, uint32_t rule) {
  size_t queued = 0;
  s->first_call[rule] = s->call_count;
  s->queue[queued++] = s->d->starts[rule];
  s->seen[s->d->starts[rule]] = rule + 1;
  while (queued > 0) {
    uint32_t state = s->queue[--queued];
    for (uint32_t i = s->by_from.first[state]; i < s->by_from.first[state + 1]; i++) {
      const mgl_edge *edge = &s->d->edges[s->by_from.edges[i]];
      if (edge->kind == MGL_EDGE_CALL) {
        note_call(s, edge->rule);
      }
      bool passes =
          edge->kind == MGL_EDGE_EMPTY || (edge->kind == MGL_EDGE_CALL && s->nullable[edge->rule]);
      if (passes && s->seen[edge->target] != rule + 1) {
        s->seen[edge->target] = rule + 1;
        s->queue[queued++] = edge->target;
      }
    }
  }
  s->first_call[rule + 1] = s->call_count;
}

// A depth-first search for a circle; marks: 0 new, 1 on the path, 2 done.
static void refuse_circles(left_search *s) {
  size_t count = s->d->b->rule_count;
  uint8_t *marks = mgl_builder_alloc(s->d->b, count + 1, 1);
  size_t *next = mgl_builder_alloc(s->d->b, count + 1, sizeof *next);
  uint32_t *path = mgl_builder_alloc(s->d->b, count + 1, sizeof *path);
  for (uint32_t root = 0; root < count && !mgl_builder_failed(s->d->b); root++) {
    size_t depth = 0;
    if (marks[root] == 0) {
      path[depth++] = root;
      marks[root] = 1;
      next[root] = s->first_call[root];
    }
    while (depth > 0) {
      uint32_t rule = path[depth - 1];
      if (next[rule] == s->first_call[rule + 1]) {
        marks[rule] = 2;
        depth--;
        continue;
      }
      uint32_t callee = s->calls[next[rule]++];
      if (marks[callee] == 1) {
        (void)mgl_builder_fail(s->d->b, MGL_ERR_UNSUPPORTED,
                               "rule %s: recursion on the left (it calls itself before it has "
                               "taken a character) is not supported: put the recursion at the end",
                               s->d->b->rules[callee].name);
        return;
      }
      if (marks[callee] == 0) {
        marks[callee] = 1;
        next[callee] = s->first_call[callee];
        path[depth++] = callee;
      }
    }
  }
}

static void refuse_left_recursion(const mgl_draft *d, const bool *nullable) {
  mgl_builder *b = d->b;
  left_search s = {.d = d,
                   .by_from = index_edges(d, BY_FROM, d->state_count),
                   .nullable = nullable,
                   .seen = mgl_builder_alloc(b, d->state_count + 1u, sizeof *s.seen),
                   .queue = mgl_builder_alloc(b, d->state_count + 1u, sizeof *s.queue),
                   .first_call = mgl_builder_alloc(b, b->rule_count + 2, sizeof *s.first_call)};
  for (uint32_t i = 0; i < b->rule_count && !mgl_builder_failed(b); i++) {
    list_first_calls(&s, i);
  }
  if (!mgl_builder_failed(b)) {
    refuse_circles(&s);
  }
  mgl_free(s.calls);
}

// --- the result ----------------------------------------------------------------------------------

static mgl_automaton *allocate(mgl_draft *d) {
  size_t bytes = 0;
  mgl_automaton *a = mgl_alloc_zeroed(1, sizeof *a);
  for (size_t i = 0; i < d->edge_count; i++) {
    bytes += d->edges[i].kind == MGL_EDGE_BYTE ? 1 : 0;
  }
  if (a != NULL) {
    a->states = mgl_alloc_zeroed(d->state_count, sizeof *a->states);
    a->byte_edges = mgl_alloc_zeroed(bytes, sizeof *a->byte_edges);
    a->free_edges = mgl_alloc_zeroed(d->edge_count - bytes, sizeof *a->free_edges);
    a->starts = mgl_alloc_zeroed(d->b->rule_count, sizeof *a->starts);
  }
  if (a == NULL || a->states == NULL || a->byte_edges == NULL || a->free_edges == NULL ||
      a->starts == NULL) {
    mgl_automaton_destroy(a);
    return mgl_builder_fail(d->b, MGL_ERR_MEMORY, "out of memory for an automaton");
  }
  a->state_count = d->state_count;
  a->rule_count = (uint32_t)d->b->rule_count;
  memcpy(a->starts, d->starts, d->b->rule_count * sizeof *a->starts);
  for (uint32_t i = 0; i < a->rule_count; i++) {
    a->states[d->ends[i]].is_end = true;
  }
  return a;
}

// Whether nothing but empty edges leads on from a state, to its rule's end.
static bool only_ends(const mgl_automaton *a, uint32_t state) {
  enum { MOST_STEPS = 8 };
  for (int i = 0; i < MOST_STEPS && !a->states[state].is_end; i++) {
    const mgl_state *s = &a->states[state];
    if (s->byte_edge_count != 0 || s->free_edge_count != 1 ||
        a->free_edges[s->first_free_edge].rule != MGL_NO_RULE) {
      return false;
    }
    state = a->free_edges[s->first_free_edge].target;
  }
  return a->states[state].is_end;
}

static mgl_automaton *lay_out(mgl_draft *d) {
  edge_index by_from = index_edges(d, BY_FROM, d->state_count);
  mgl_automaton *a = mgl_builder_failed(d->b) ? NULL : allocate(d);
  for (uint32_t i = 0; a != NULL && i < a->state_count; i++) {
    mgl_state *state = &a->states[i];
    state->first_byte_edge = a->byte_edge_count;
    state->first_free_edge = a->free_edge_count;
    for (uint32_t j = by_from.first[i]; j < by_from.first[i + 1]; j++) {
      const mgl_edge *edge = &d->edges[by_from.edges[j]];
      if (edge->kind == MGL_EDGE_BYTE) {
        a->byte_edges[a->byte_edge_count++] =
            (mgl_byte_edge){.target = edge->target, .low = edge->low, .high = edge->high};
      } else {
        a->free_edges[a->free_edge_count++] = (mgl_free_edge){
            .target = edge->target, .rule = edge->kind == MGL_EDGE_CALL ? edge->rule : MGL_NO_RULE};
      }
    }
    state->byte_edge_count = a->byte_edge_count - state->first_byte_edge;
    state->free_edge_count = a->free_edge_count - state->first_free_edge;
  }
  for (uint32_t i = 0; a != NULL && i < a->free_edge_count; i++) {
    mgl_free_edge *edge = &a->free_edges[i];
    edge->is_tail = edge->rule != MGL_NO_RULE && only_ends(a, edge->target);
  }
  return a;
}

mgl_status mgl_automaton_compile(mgl_builder *b, uint32_t root, mgl_automaton **out,
                                 mgl_error *err) {
  mgl_draft d = {.b = b};
  *out = NULL;
  mgl_draft_build(&d);
  if (!mgl_builder_failed(b)) {
    reach productive = find_reach(&d, true);
    if (!mgl_builder_failed(b) && !productive.rules[root]) {
      (void)mgl_builder_fail(b, MGL_ERR_ARGUMENT,
                             "rule %s: no text matches it (recursion without an end, or parts that "
                             "exclude each other)",
                             b->rules[root].name);
    }
    if (!mgl_builder_failed(b)) {
      prune(&d, &productive);
      reach nullable = find_reach(&d, false);
      if (!mgl_builder_failed(b)) {
        refuse_left_recursion(&d, nullable.rules);
      }
    }
  }
  mgl_automaton *a = mgl_builder_failed(b) ? NULL : lay_out(&d);
  mgl_free(d.edges);
  if (a == NULL) {
    return mgl_error_set(err, b->error.status, "%s", b->error.text);
  }
  // The root's rule comes first for those who match.
  uint32_t first = a->starts[0];
  a->starts[0] = a->starts[root];
  a->starts[root] = first;
  for (uint32_t i = 0; root != 0 && i < a->free_edge_count; i++) {
    uint32_t *rule = &a->free_edges[i].rule;
    *rule = *rule == 0 ? root : *rule == root ? 0 : *rule;
  }
  *out = a;
  return MGL_OK;
}

void mgl_automaton_destroy(mgl_automaton *a) {
  if (a != NULL) {
    mgl_free(a->states);
    mgl_free(a->byte_edges);
    mgl_free(a->free_edges);
    mgl_free(a->starts);
    mgl_free(a);
  }
}
