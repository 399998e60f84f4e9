#include "grammar/mask.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "grammar/rows.h"

enum {
  ALL_KINDS = MGL_TOKEN_GROUPS - 1,
  MOST_LOOKED_AT = 128,  // places, to decide about groups
  MOST_ROUTES = 512,     // of characters beyond ASCII out of one place
};

struct mgl_mask_maker {
  pthread_mutex_t lock;
  const mgl_vocabulary *vocabulary;
  mgl_rows rows;                    // a place's label: one more than where its mask is kept
  uint64_t *masks;                  // [MGL_MASK_KEPT][mask_words]; NULL: none yet
  uint32_t mask_of[MGL_MASK_KEPT];  // places
  uint32_t next_mask;
};

static void forget_all(mgl_mask_maker *m) {
  memset(m->mask_of, 0, sizeof m->mask_of);
  mgl_rows_forget(&m->rows);
}

mgl_status mgl_mask_maker_create(const mgl_automaton *automaton, const mgl_vocabulary *vocabulary,
                                 mgl_mask_maker **out, mgl_error *err) {
  mgl_mask_maker *m = mgl_alloc_zeroed(1, sizeof *m);
  *out = NULL;
  if (m == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the masks of a grammar");
  }
  mgl_status status = mgl_rows_init(&m->rows, automaton, err);
  if (status != MGL_OK) {
    mgl_free(m);
    return status;
  }
  (void)pthread_mutex_init(&m->lock, NULL);
  m->vocabulary = vocabulary;
  *out = m;
  return MGL_OK;
}

void mgl_mask_maker_destroy(mgl_mask_maker *m) {
  if (m != NULL) {
    (void)pthread_mutex_destroy(&m->lock);
    mgl_rows_reset(&m->rows);
    mgl_free(m->masks);
    mgl_free(m);
  }
}

// --- groups --------------------------------------------------------------------------------------

// Places that characters lead to, without duplicates.
typedef struct place_list {
  uint32_t at[MOST_LOOKED_AT];
  uint32_t count;
  bool met_old;  // one led to where another had led before
} place_list;

// What one look at a place's characters needs: where to add what they lead to (NULL: nowhere), and
// from which of them on they are new.
typedef struct look {
  mgl_rows *rows;
  place_list *to;
  uint32_t new_from;
  uint32_t routes;
} look;

static bool add_place(place_list *list, uint32_t place, uint32_t new_from) {
  for (uint32_t i = 0; i < list->count; i++) {
    if (list->at[i] == place) {
      list->met_old = list->met_old || i < new_from;
      return true;
    }
  }
  if (list->count == MOST_LOOKED_AT) {
    return false;
  }
  list->at[list->count++] = place;
  return true;
}

// Whether every byte of [low, high], and behind it `left` continuation bytes, goes on. False, too,
// where there are too many ways.
static bool goes_on(look *l, uint32_t from, int low, int high, int left) {
  const mgl_row *row = mgl_row_of(l->rows, from);
  uint32_t last = MGL_PLACE_DEAD;
  if (++l->routes > MOST_ROUTES) {
    return false;
  }
  for (int byte = low; byte <= high; byte++) {
    uint32_t next = row->next[byte];
    if (next == MGL_PLACE_DEAD) {
      return false;
    }
    if (next == last) {
      continue;
    }
    last = next;
    if (left > 0 ? !goes_on(l, next, 0x80, 0xbf, left - 1)
                 : l->to != NULL && !add_place(l->to, next, l->new_from)) {
      return false;
    }
  }
  return true;
}

// Whether all characters beyond ASCII go on.
static bool look_at_others(look *l, uint32_t from) {
  static const struct {
    uint8_t lead_low, lead_high, low, high;
    int left;
  } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
               {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
               {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
               {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};
  const mgl_row *row = mgl_row_of(l->rows, from);
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    uint32_t last = MGL_PLACE_DEAD;
    for (int lead = forms[i].lead_low; lead <= forms[i].lead_high; lead++) {
      uint32_t next = row->next[lead];
      if (next == MGL_PLACE_DEAD ||
          (next != last && !goes_on(l, next, forms[i].low, forms[i].high, forms[i].left))) {
        return false;
      }
      last = next;
    }
  }
  return true;
}

// Where all characters beyond ASCII lead to: one place, MGL_PLACE_SEVERAL or MGL_PLACE_DEAD.
static uint32_t other_next(mgl_rows *rows, uint32_t from) {
  mgl_row *row = mgl_row_of(rows, from);
  if (row->other_next == MGL_PLACE_UNKNOWN) {
    place_list to = {0};
    look l = {.rows = rows, .to = &to};
    bool all = look_at_others(&l, from);
    row->other_next = (uint16_t)(!all            ? MGL_PLACE_DEAD
                                 : to.count == 1 ? to.at[0]
                                                 : (uint32_t)MGL_PLACE_SEVERAL);
  }
  return row->other_next;
}

enum { OTHERS = 1 << (MGL_PLAIN_KINDS - 1) };

// Of these kinds those of which all characters go on.
static uint32_t kinds_that_go_on(mgl_rows *rows, uint32_t from, uint32_t kinds) {
  uint32_t all = mgl_row_of(rows, from)->all_kinds & ~(uint32_t)OTHERS;
  if ((kinds & OTHERS) != 0 && other_next(rows, from) != MGL_PLACE_DEAD) {
    all |= OTHERS;
  }
  return kinds & all;
}

// Adds where these kinds, which all go on, lead to.
static bool add_next(mgl_rows *rows, uint32_t from, uint32_t kinds, place_list *to,
                     uint32_t new_from) {
  const mgl_row *row = mgl_row_of(rows, from);
  if ((kinds & OTHERS) != 0 && other_next(rows, from) == MGL_PLACE_SEVERAL) {
    look l = {.rows = rows, .to = to, .new_from = new_from};
    if (!look_at_others(&l, from)) {
      return false;
    }
  } else if ((kinds & OTHERS) != 0 && !add_place(to, other_next(rows, from), new_from)) {
    return false;
  }
  if (row->ascii_next != MGL_PLACE_SEVERAL) {
    return (kinds & ~(uint32_t)OTHERS) == 0 || add_place(to, row->ascii_next, new_from);
  }
  uint32_t last = MGL_PLACE_DEAD;
  for (uint32_t byte = ' '; byte < 0x7f; byte++) {
    int kind = mgl_plain_kind(byte);
    uint32_t next = row->next[byte];
    if (kind >= 0 && (kinds >> kind & 1) != 0 && next != last) {
      last = next;
      if (!add_place(to, next, new_from)) {
        return false;
      }
    }
  }
  return true;
}

// What is known of tokens of plain characters without a look at them.
typedef struct decided {
  uint32_t kinds;  // tokens made of these alone are allowed if they have
  uint32_t chars;  // at most so many characters, and else not
  uint32_t dead;  // tokens made of these, some or all, and of `kinds` are not allowed: nowhere that
                  // `kinds` lead to does one of these go on
} decided;

static decided decided_with(mgl_rows *rows, const place_list *seen, uint32_t kinds,
                            uint32_t chars) {
  uint32_t some = 0;
  for (uint32_t i = 0; i < seen->count; i++) {
    some |= mgl_row_of(rows, seen->at[i])->some_kinds;
  }
  return (decided){.kinds = kinds, .chars = chars, .dead = ~some & ALL_KINDS & ~kinds};
}

// Goes through all texts of plain characters at once, one character after the other. Kinds that do
// not always go on are dropped; where nothing new is reached, what goes on does so for ever.
static decided decide_kinds(mgl_rows *rows, uint32_t start, uint32_t kinds) {
  place_list seen = {.at = {start}, .count = 1};
  uint32_t from = 0;
  for (uint32_t chars = 0; chars < MGL_PLAIN_MAX_CHARS; chars++) {
    uint32_t end = seen.count;
    bool all_dead = chars > 0 && !seen.met_old;
    for (uint32_t i = from; i < end && all_dead; i++) {
      all_dead = mgl_row_of(rows, seen.at[i])->some_kinds == 0;
    }
    if (all_dead) {
      return decided_with(rows, &seen, kinds, chars);
    }
    for (uint32_t i = from; i < end; i++) {
      kinds = kinds_that_go_on(rows, seen.at[i], kinds);
    }
    bool fits = true;
    for (uint32_t i = from; i < end && fits; i++) {
      fits = add_next(rows, seen.at[i], kinds, &seen, end);
    }
    if (!fits || kinds == 0) {
      seen.count = 1;
      return decided_with(rows, &seen, 0, 0);
    }
    if (seen.count == end) {
      break;
    }
    from = end;
  }
  return decided_with(rows, &seen, kinds, MGL_PLAIN_MAX_CHARS);
}

// All kinds at once, as inside a string; if that says nothing (a blank ends a word, and then no
// letter goes on), as many of them as go together, those with most tokens first.
static decided decide(mgl_rows *rows, uint32_t start) {
  static const uint32_t order[] = {1, 32, 4, 2, 8, 16};
  decided all = decide_kinds(rows, start, ALL_KINDS);
  bool says_nothing = all.kinds == 0;
  for (size_t i = 0; i < MGL_PLAIN_KINDS && says_nothing; i++) {
    uint32_t kinds = all.kinds | order[i];
    decided more = decide_kinds(rows, start, kinds);
    all = more.kinds == kinds ? more : all;
  }
  return all;
}

static bool is_decided(decided d, uint32_t group) {
  return group != 0 && (group & ~(d.kinds | d.dead)) == 0;
}

static void apply(const mgl_vocabulary *v, decided d, uint64_t *mask) {
  if (d.kinds == ALL_KINDS) {
    memcpy(mask, v->plain_up_to + (size_t)(d.chars - 1) * v->mask_words,
           v->mask_words * sizeof *mask);
    return;
  }
  memset(mask, 0, v->mask_words * sizeof *mask);
  for (uint32_t group = 1; group < MGL_TOKEN_GROUPS; group++) {
    const uint64_t *tokens = (group & ~d.kinds) == 0 ? v->groups[group].tokens : NULL;
    const uint64_t *short_enough = v->plain_up_to + (size_t)(d.chars - 1) * v->mask_words;
    for (uint32_t i = 0; tokens != NULL && i < v->mask_words; i++) {
      mask[i] |= tokens[i] & short_enough[i];
    }
  }
}

// --- walks ---------------------------------------------------------------------------------------

static void walk(mgl_mask_maker *m, const mgl_token_group *group, uint32_t start, uint64_t *mask) {
  const uint32_t *order = m->vocabulary->order;
  const mgl_row *path[MGL_MASK_MAX_TOKEN_BYTES + 1];
  uint32_t ends[MGL_MASK_MAX_TOKEN_BYTES + 1];
  uint32_t depth = 0;
  path[0] = mgl_row_of(&m->rows, start);
  ends[0] = group->node_count;
  for (uint32_t i = 0; i < group->node_count;) {
    const mgl_trie_node node = group->nodes[i];
    uint32_t end = node.end_and_byte >> 8;
    while (i >= ends[depth]) {
      depth--;
    }
    uint32_t next = path[depth]->next[node.end_and_byte & 0xff];
    if (next == MGL_PLACE_DEAD) {
      i = end;
      continue;
    }
    for (uint32_t j = node.tokens & 0xff, at = node.tokens >> 8; j > 0; j--, at++) {
      mask[order[at] / 64] |= UINT64_C(1) << (order[at] % 64);
    }
    i++;
    if (end > i) {
      depth++;
      path[depth] = mgl_row_of(&m->rows, next);
      ends[depth] = end;
    }
  }
}

static void make(mgl_mask_maker *m, uint32_t start, uint64_t *mask) {
  const mgl_vocabulary *v = m->vocabulary;
  const mgl_row *row = mgl_row_of(&m->rows, start);
  uint64_t alive[4] = {0};
  decided d = decide(&m->rows, start);
  apply(v, d, mask);
  for (uint32_t byte = 0; byte < 256; byte++) {
    alive[byte / 64] |= row->next[byte] != MGL_PLACE_DEAD ? UINT64_C(1) << (byte % 64) : 0;
  }
  for (uint32_t i = 0; i < MGL_TOKEN_GROUPS && m->rows.error.status == MGL_OK; i++) {
    const mgl_token_group *group = &v->groups[i];
    const uint64_t *first = group->first_bytes;
    bool may = ((first[0] & alive[0]) | (first[1] & alive[1]) | (first[2] & alive[2]) |
                (first[3] & alive[3])) != 0;
    if (may && !is_decided(d, i)) {
      walk(m, group, start, mask);
    }
  }
}

// --- masks ---------------------------------------------------------------------------------------

static void keep(mgl_mask_maker *m, uint32_t place, const uint64_t *mask) {
  size_t words = m->vocabulary->mask_words;
  uint32_t slot = m->next_mask;
  if (m->masks == NULL) {
    m->masks = mgl_alloc_zeroed((size_t)MGL_MASK_KEPT * words, sizeof *m->masks);
    if (m->masks == NULL) {
      return;  // it only takes longer
    }
  }
  m->next_mask = (slot + 1) % MGL_MASK_KEPT;
  m->rows.places[m->mask_of[slot]].label = 0;
  m->mask_of[slot] = place;
  m->rows.places[place].label = slot + 1;
  memcpy(m->masks + slot * words, mask, words * sizeof *mask);
}

static mgl_status make_or_find(mgl_mask_maker *m, const mgl_matcher *matcher, uint64_t *mask,
                               mgl_error *err) {
  const mgl_vocabulary *v = m->vocabulary;
  uint32_t place = MGL_PLACE_DEAD;
  if (m->rows.count > MGL_MASK_KEPT_PLACES) {
    forget_all(m);
  }
  mgl_rows_begin(&m->rows);
  MGL_TRY(mgl_rows_import(&m->rows, matcher, &place, err));
  uint32_t kept = m->rows.places[place].label;
  if (kept != 0) {
    memcpy(mask, m->masks + (kept - 1) * (size_t)v->mask_words, v->mask_words * sizeof *mask);
  } else {
    make(m, place, mask);
    if (m->rows.error.status != MGL_OK) {
      return mgl_error_set(err, m->rows.error.status, "%s", m->rows.error.text);
    }
    keep(m, place, mask);
  }
  for (uint32_t i = 0; i < v->mask_words && v->drops_first_blank && matcher->bytes == 0; i++) {
    mask[i] &= ~v->blanks[i];
  }
  return MGL_OK;
}

mgl_status mgl_mask_make(mgl_mask_maker *m, const mgl_matcher *matcher, uint64_t *mask,
                         mgl_error *err) {
  (void)pthread_mutex_lock(&m->lock);
  mgl_status status = make_or_find(m, matcher, mask, err);
  if (status != MGL_OK) {
    forget_all(m);
  }
  (void)pthread_mutex_unlock(&m->lock);
  return status;
}

void mgl_mask_warm(mgl_mask_maker *m, uint64_t budget_ns) {
  enum { MOST_PLACES = 2000, MOST_MASKS = MGL_MASK_KEPT * 3 / 4, LEAST_KINDS = 2 };
  uint64_t end_ns = mgl_clock_ns() + budget_ns;
  uint64_t *mask = mgl_alloc_zeroed(m->vocabulary->mask_words, sizeof *mask);
  mgl_configuration begin;
  uint32_t place = MGL_PLACE_DEAD;
  uint32_t made = 0;
  (void)pthread_mutex_lock(&m->lock);
  mgl_rows *rows = &m->rows;
  mgl_rows_begin(rows);
  bool goes_on = mask != NULL && mgl_steps_begin(&rows->steps, &begin, NULL) == MGL_OK &&
                 mgl_rows_place(rows, &begin, &place, NULL) == MGL_OK;
  // Places are numbered as they are found, so this goes from near to far.
  for (uint32_t i = 1; i < rows->count && i < MOST_PLACES && goes_on; i++) {
    uint32_t kinds = mgl_row_of(rows, i)->some_kinds;
    if (__builtin_popcount(kinds) >= LEAST_KINDS && made < MOST_MASKS) {
      make(m, i, mask);
      made++;
      if (rows->error.status == MGL_OK) {
        keep(m, i, mask);
      }
    }
    goes_on = rows->error.status == MGL_OK && mgl_clock_ns() < end_ns;
  }
  if (rows->error.status != MGL_OK) {
    forget_all(m);  // whoever needs what failed here will be told
  }
  (void)pthread_mutex_unlock(&m->lock);
  mgl_free(mask);
}
