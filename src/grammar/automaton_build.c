// Expressions to states and edges. Each expression is put between two states, and no edge ever
// leads back to the first of them, so alternatives share it and few edges are empty.
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/automaton_parts.h"

static uint32_t add_state(mgl_draft *d) {
  if (d->state_count == MGL_GRAMMAR_MAX_STATES) {
    (void)mgl_builder_fail(d->b, MGL_ERR_LIMIT,
                           "expected an automaton of at most %d states, found more: make bounds "
                           "of lengths or the grammar smaller",
                           MGL_GRAMMAR_MAX_STATES);
    return 0;
  }
  return d->state_count++;
}

static void add_edge(mgl_draft *d, mgl_edge edge) {
  void *items = d->edges;
  if (mgl_builder_failed(d->b)) {
    return;
  }
  if (d->edge_count == MGL_GRAMMAR_MAX_EDGES) {
    (void)mgl_builder_fail(d->b, MGL_ERR_LIMIT,
                           "expected an automaton of at most %d edges, found more",
                           MGL_GRAMMAR_MAX_EDGES);
  } else if (mgl_grow(&items, &d->edge_capacity, d->edge_count + 1, sizeof *d->edges, NULL) !=
             MGL_OK) {
    (void)mgl_builder_fail(d->b, MGL_ERR_MEMORY, "out of memory for an automaton");
  } else {
    d->edges = items;
    d->edges[d->edge_count++] = edge;
  }
}

static void add_bytes(mgl_draft *d, uint32_t from, uint32_t to, int low, int high) {
  add_edge(d, (mgl_edge){.from = from,
                         .target = to,
                         .low = (uint8_t)low,
                         .high = (uint8_t)high,
                         .kind = MGL_EDGE_BYTE});
}

static void add_empty(mgl_draft *d, uint32_t from, uint32_t to) {
  add_edge(d, (mgl_edge){.from = from, .target = to, .kind = MGL_EDGE_EMPTY});
}

// --- characters ----------------------------------------------------------------------------------

enum { MOST_UTF8 = 4, CONTINUATION_LOW = 0x80, CONTINUATION_HIGH = 0xbf };

// What of one set is shared: full[n] takes n continuation bytes, any, to the state behind the set.
typedef struct set_tails {
  uint32_t full[MOST_UTF8];  // full[0] is the state behind it; UINT32_MAX: not made yet
} set_tails;

static uint32_t tail(mgl_draft *d, set_tails *tails, int count) {
  if (tails->full[count] == UINT32_MAX) {
    uint32_t next = tail(d, tails, count - 1);
    tails->full[count] = add_state(d);
    add_bytes(d, tails->full[count], next, CONTINUATION_LOW, CONTINUATION_HIGH);
  }
  return tails->full[count];
}

static void encode(uint32_t code, int bytes, uint8_t out[MOST_UTF8]) {
  static const uint8_t leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (int i = bytes - 1; i > 0; i--) {
    out[i] = (uint8_t)(CONTINUATION_LOW | (code & 0x3f));
    code >>= 6;
  }
  out[0] = (uint8_t)(leads[bytes] | code);
}

// The encodings from `low` to `high`, both of `count` bytes.
static void add_encoded(mgl_draft *d, set_tails *tails, uint32_t from, const uint8_t *low,
                        const uint8_t *high, int count) {
  static const uint8_t least[] = {0x80, 0x80, 0x80};
  static const uint8_t most[] = {0xbf, 0xbf, 0xbf};
  size_t rest = (size_t)count - 1;
  int first = low[0];
  int last = high[0];
  if (count == 1) {
    add_bytes(d, from, tails->full[0], first, last);
    return;
  }
  if (first == last) {
    bool is_full = memcmp(low + 1, least, rest) == 0 && memcmp(high + 1, most, rest) == 0;
    uint32_t next = is_full ? tail(d, tails, count - 1) : add_state(d);
    add_bytes(d, from, next, first, first);
    if (!is_full) {
      add_encoded(d, tails, next, low + 1, high + 1, count - 1);
    }
    return;
  }
  if (memcmp(low + 1, least, rest) != 0) {
    uint32_t next = add_state(d);
    add_bytes(d, from, next, first, first);
    add_encoded(d, tails, next, low + 1, most, count - 1);
    first++;
  }
  if (memcmp(high + 1, most, rest) != 0) {
    uint32_t next = add_state(d);
    add_bytes(d, from, next, last, last);
    add_encoded(d, tails, next, least, high + 1, count - 1);
    last--;
  }
  if (first <= last) {
    add_bytes(d, from, tail(d, tails, count - 1), first, last);
  }
}

static void add_set(mgl_draft *d, const mgl_expression *e, uint32_t from, uint32_t to) {
  static const uint32_t ends[] = {0, 0x7f, 0x7ff, 0xffff, MGL_GRAMMAR_MAX_CODE};
  set_tails tails = {{to, UINT32_MAX, UINT32_MAX, UINT32_MAX}};
  for (uint32_t i = 0; i < e->count; i++) {
    for (int bytes = 1; bytes <= MOST_UTF8; bytes++) {
      uint32_t least = bytes == 1 ? 0 : ends[bytes - 1] + 1;
      uint32_t low = e->ranges[i].first > least ? e->ranges[i].first : least;
      uint32_t high = e->ranges[i].last < ends[bytes] ? e->ranges[i].last : ends[bytes];
      if (low <= high) {
        uint8_t first[MOST_UTF8];
        uint8_t last[MOST_UTF8];
        encode(low, bytes, first);
        encode(high, bytes, last);
        add_encoded(d, &tails, from, first, last, bytes);
      }
    }
  }
}

// --- texts ---------------------------------------------------------------------------------------

static void add_text(mgl_draft *d, const mgl_expression *e, uint32_t from, uint32_t to) {
  if (e->count == 0) {
    add_empty(d, from, to);
  }
  for (uint32_t i = 0; i < e->count && !mgl_builder_failed(d->b); i++) {
    uint32_t next = i + 1 == e->count ? to : add_state(d);
    uint8_t byte = (uint8_t)e->bytes[i];
    add_bytes(d, from, next, byte, byte);
    from = next;
  }
}

static int by_text(const void *a, const void *b) {
  const mgl_expression *x = *(const mgl_expression *const *)a;
  const mgl_expression *y = *(const mgl_expression *const *)b;
  int order = memcmp(x->bytes, y->bytes, x->count < y->count ? x->count : y->count);
  return order != 0 ? order : x->count < y->count ? -1 : x->count > y->count ? 1 : 0;
}

// Many texts share their beginnings, so that no position has as many states as there are texts.
static void add_texts(mgl_draft *d, const mgl_expression **texts, size_t count, uint32_t from,
                      uint32_t to) {
  uint32_t longest = 0;
  for (size_t i = 0; i < count; i++) {
    longest = texts[i]->count > longest ? texts[i]->count : longest;
  }
  uint32_t *path = mgl_builder_alloc(d->b, (size_t)longest + 1, sizeof *path);
  if (path == NULL) {
    return;
  }
  qsort(texts, count, sizeof *texts, by_text);
  path[0] = from;
  for (size_t i = 0; i < count && !mgl_builder_failed(d->b); i++) {
    const mgl_expression *text = texts[i];
    uint32_t at = 0;
    if (i > 0 && by_text(&texts[i - 1], &texts[i]) == 0) {
      continue;
    }
    while (i > 0 && at < text->count && at < texts[i - 1]->count &&
           text->bytes[at] == texts[i - 1]->bytes[at]) {
      at++;
    }
    for (; at < text->count; at++) {
      path[at + 1] = add_state(d);
      add_bytes(d, path[at], path[at + 1], (uint8_t)text->bytes[at], (uint8_t)text->bytes[at]);
    }
    add_empty(d, path[text->count], to);
  }
}

// --- expressions ---------------------------------------------------------------------------------

static void add(mgl_draft *d, const mgl_expression *e, uint32_t from, uint32_t to);

static void add_choice(mgl_draft *d, const mgl_expression *e, uint32_t from, uint32_t to) {
  enum { LEAST_TEXTS = 2 };
  const mgl_expression **texts = mgl_builder_alloc(d->b, (size_t)e->count + 1, sizeof *texts);
  size_t text_count = 0;
  if (texts == NULL) {
    return;
  }
  for (uint32_t i = 0; i < e->count; i++) {
    if (e->parts[i]->kind == MGL_EXPRESSION_BYTES) {
      texts[text_count++] = e->parts[i];
    }
  }
  if (text_count >= LEAST_TEXTS) {
    add_texts(d, texts, text_count, from, to);
  }
  for (uint32_t i = 0; i < e->count; i++) {
    if (text_count < LEAST_TEXTS || e->parts[i]->kind != MGL_EXPRESSION_BYTES) {
      add(d, e->parts[i], from, to);
    }
  }
}

static void add_repeat(mgl_draft *d, const mgl_expression *e, uint32_t from, uint32_t to) {
  for (uint32_t i = 0; i < e->min && !mgl_builder_failed(d->b); i++) {
    uint32_t next = i + 1 == e->min && e->max == e->min ? to : add_state(d);
    add(d, e->body, from, next);
    from = next;
  }
  if (e->max == MGL_REPEAT_UNBOUNDED) {
    uint32_t loop = add_state(d);
    add_empty(d, from, loop);
    add(d, e->body, loop, loop);
    add_empty(d, loop, to);
    return;
  }
  if (e->max == 0) {
    add_empty(d, from, to);
  }
  for (uint32_t i = e->min; i < e->max && !mgl_builder_failed(d->b); i++) {
    uint32_t next = i + 1 == e->max ? to : add_state(d);
    add_empty(d, from, to);
    add(d, e->body, from, next);
    from = next;
  }
}

static void add(mgl_draft *d, const mgl_expression *e, uint32_t from, uint32_t to) {
  if (mgl_builder_failed(d->b)) {
    return;
  }
  switch (e->kind) {
    case MGL_EXPRESSION_BYTES: add_text(d, e, from, to); break;
    case MGL_EXPRESSION_SET: add_set(d, e, from, to); break;
    case MGL_EXPRESSION_SEQUENCE:
      for (uint32_t i = 0; i < e->count; i++) {
        uint32_t next = i + 1 == e->count ? to : add_state(d);
        add(d, e->parts[i], from, next);
        from = next;
      }
      if (e->count == 0) {
        add_empty(d, from, to);
      }
      break;
    case MGL_EXPRESSION_CHOICE: add_choice(d, e, from, to); break;
    case MGL_EXPRESSION_REPEAT: add_repeat(d, e, from, to); break;
    case MGL_EXPRESSION_RULE:
      add_edge(d, (mgl_edge){.from = from, .target = to, .rule = e->rule, .kind = MGL_EDGE_CALL});
      break;
  }
}

void mgl_draft_build(mgl_draft *d) {
  size_t count = d->b->rule_count;
  d->starts = mgl_builder_alloc(d->b, count + 1, sizeof *d->starts);
  d->ends = mgl_builder_alloc(d->b, count + 1, sizeof *d->ends);
  for (uint32_t i = 0; i < count && !mgl_builder_failed(d->b); i++) {
    const mgl_rule *rule = &d->b->rules[i];
    d->starts[i] = add_state(d);
    d->ends[i] = add_state(d);
    if (rule->body == NULL) {
      (void)mgl_builder_fail(d->b, MGL_ERR_ARGUMENT, "rule %s: it is used, and defined nowhere",
                             rule->name);
      return;
    }
    add(d, rule->body, d->starts[i], d->ends[i]);
  }
}
