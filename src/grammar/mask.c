#include "grammar/mask.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"

enum {
  DEAD = 0,  // the configuration from which nothing goes on
  NONE = UINT32_MAX,
  ALL_KINDS = MGL_TOKEN_GROUPS - 1,
  FIRST_BUCKETS = 256,
  MOST_LOOKED_AT = 128,  // configurations, to decide about groups
  MOST_ROUTES = 512,     // of characters beyond ASCII out of one configuration
};

typedef struct known {
  uint32_t first_pair, pair_count;
  uint32_t row;   // NONE: not made yet
  uint32_t mask;  // NONE: not kept
  uint32_t next;  // in its bucket
  bool accepts;
} known;

struct mgl_mask_maker {
  pthread_mutex_t lock;
  const mgl_automaton *automaton;
  const mgl_vocabulary *vocabulary;
  mgl_steps steps;
  known *all;  // [count]
  size_t count, capacity;
  mgl_pair *pairs;
  size_t pair_count, pair_capacity;
  uint16_t *rows;  // [row_count][256]
  size_t row_count, row_capacity;
  uint32_t *buckets;  // [bucket_count] a power of two
  size_t bucket_count;
  uint64_t *masks;                  // [MGL_MASK_KEPT][mask_words], those in use
  uint32_t mask_of[MGL_MASK_KEPT];  // configurations
  uint32_t next_mask;
  uint64_t work_limit;
  mgl_status status;  // the first failure of the mask that is being made
  mgl_error error;
};

static void forget_all(mgl_mask_maker *m) {
  memset(m->buckets, 0, m->bucket_count * sizeof *m->buckets);
  memset(m->mask_of, 0, sizeof m->mask_of);
  m->pair_count = m->row_count = 0;
  m->all[DEAD] = (known){.row = NONE, .mask = NONE};
  m->count = 1;
  mgl_steps_forget(&m->steps);
}

mgl_status mgl_mask_maker_create(const mgl_automaton *automaton, const mgl_vocabulary *vocabulary,
                                 mgl_mask_maker **out, mgl_error *err) {
  mgl_mask_maker *m = mgl_alloc_zeroed(1, sizeof *m);
  *out = NULL;
  if (m == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the masks of a grammar");
  }
  (void)pthread_mutex_init(&m->lock, NULL);
  m->automaton = automaton;
  m->vocabulary = vocabulary;
  m->bucket_count = FIRST_BUCKETS;
  m->capacity = FIRST_BUCKETS;
  m->buckets = mgl_alloc_zeroed(m->bucket_count, sizeof *m->buckets);
  m->all = mgl_alloc_zeroed(m->capacity, sizeof *m->all);
  mgl_status status = mgl_steps_init(&m->steps, automaton, err);
  if (status != MGL_OK || m->buckets == NULL || m->all == NULL) {
    mgl_mask_maker_destroy(m);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the masks of a grammar");
  }
  forget_all(m);
  *out = m;
  return MGL_OK;
}

void mgl_mask_maker_destroy(mgl_mask_maker *m) {
  if (m != NULL) {
    (void)pthread_mutex_destroy(&m->lock);
    mgl_steps_reset(&m->steps);
    mgl_free(m->all);
    mgl_free(m->pairs);
    mgl_free(m->rows);
    mgl_free(m->buckets);
    mgl_free(m->masks);
    mgl_free(m);
  }
}

// --- configurations that are known ---------------------------------------------------------------

static size_t hash_of(const mgl_pair *pairs, uint32_t count, bool accepts) {
  uint64_t hash = accepts ? 1 : 2;
  for (uint32_t i = 0; i < count; i++) {
    hash = (hash ^ ((uint64_t)pairs[i].state << 32 | pairs[i].stack)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return (size_t)hash;
}

static mgl_status double_buckets(mgl_mask_maker *m, mgl_error *err) {
  uint32_t *buckets = mgl_alloc_zeroed(m->bucket_count * 2, sizeof *buckets);
  if (buckets == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the masks of a grammar");
  }
  mgl_free(m->buckets);
  m->buckets = buckets;
  m->bucket_count *= 2;
  for (uint32_t i = 1; i < m->count; i++) {
    known *k = &m->all[i];
    size_t at =
        hash_of(m->pairs + k->first_pair, k->pair_count, k->accepts) & (m->bucket_count - 1);
    k->next = buckets[at];
    buckets[at] = i;
  }
  return MGL_OK;
}

// The number of a configuration, DEAD if nothing goes on from it and it accepts nothing.
static mgl_status number_of(mgl_mask_maker *m, const mgl_configuration *c, uint32_t *out,
                            mgl_error *err) {
  void *items = m->pairs;
  *out = DEAD;
  if (c->count == 0 && !c->accepts) {
    return MGL_OK;
  }
  size_t hash = hash_of(c->pairs, c->count, c->accepts);
  for (uint32_t i = m->buckets[hash & (m->bucket_count - 1)]; i != 0; i = m->all[i].next) {
    const known *k = &m->all[i];
    if (k->pair_count == c->count && k->accepts == c->accepts &&
        (c->count == 0 ||
         memcmp(m->pairs + k->first_pair, c->pairs, c->count * sizeof *c->pairs) == 0)) {
      *out = i;
      return MGL_OK;
    }
  }
  if (m->count == MGL_MASK_MAX_CONFIGURATIONS) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "the grammar is too ambiguous: a token can lead to more than %d "
                         "configurations",
                         MGL_MASK_MAX_CONFIGURATIONS);
  }
  MGL_TRY(mgl_grow(&items, &m->pair_capacity, m->pair_count + c->count, sizeof *m->pairs, err));
  m->pairs = items;
  items = m->all;
  MGL_TRY(mgl_grow(&items, &m->capacity, m->count + 1, sizeof *m->all, err));
  m->all = items;
  if (m->count >= m->bucket_count) {
    MGL_TRY(double_buckets(m, err));
  }
  if (c->count > 0) {
    memcpy(m->pairs + m->pair_count, c->pairs, c->count * sizeof *c->pairs);
  }
  uint32_t *bucket = &m->buckets[hash & (m->bucket_count - 1)];
  m->all[m->count] = (known){.first_pair = (uint32_t)m->pair_count,
                             .pair_count = c->count,
                             .row = NONE,
                             .mask = NONE,
                             .next = *bucket,
                             .accepts = c->accepts};
  m->pair_count += c->count;
  *out = *bucket = (uint32_t)m->count++;
  return MGL_OK;
}

// --- rows ----------------------------------------------------------------------------------------

// Where the byte leads to from a configuration.
static mgl_status step(mgl_mask_maker *m, uint32_t from, uint8_t byte, uint32_t *out,
                       mgl_error *err) {
  const mgl_automaton *a = m->automaton;
  mgl_configuration found;
  mgl_closure_begin(&m->steps);
  for (uint32_t i = 0; i < m->all[from].pair_count; i++) {
    mgl_pair pair = m->pairs[m->all[from].first_pair + i];
    const mgl_state *state = &a->states[pair.state];
    const mgl_byte_edge *edges = &a->byte_edges[state->first_byte_edge];
    m->steps.work += state->byte_edge_count;
    for (uint32_t k = 0; k < state->byte_edge_count; k++) {
      if (edges[k].low <= byte && byte <= edges[k].high) {
        MGL_TRY(mgl_closure_add(&m->steps, (mgl_pair){edges[k].target, pair.stack}, err));
      }
    }
  }
  MGL_TRY(mgl_closure_finish(&m->steps, &found, err));
  if (m->steps.work > m->work_limit) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "the grammar is too ambiguous: a mask takes more than %d steps",
                         MGL_MASK_MAX_WORK);
  }
  return number_of(m, &found, out, err);
}

// Bytes between which nothing changes lead to the same place.
static mgl_status fill_row(mgl_mask_maker *m, uint32_t from, uint16_t *row, mgl_error *err) {
  const mgl_automaton *a = m->automaton;
  bool begins[257] = {true};
  for (uint32_t i = 0; i < m->all[from].pair_count; i++) {
    const mgl_state *state = &a->states[m->pairs[m->all[from].first_pair + i].state];
    const mgl_byte_edge *edges = &a->byte_edges[state->first_byte_edge];
    for (uint32_t k = 0; k < state->byte_edge_count; k++) {
      begins[edges[k].low] = true;
      begins[edges[k].high + 1] = true;
    }
  }
  uint32_t next = DEAD;
  for (int byte = 0; byte < 256; byte++) {
    if (begins[byte]) {
      MGL_TRY(step(m, from, (uint8_t)byte, &next, err));
    }
    row[byte] = (uint16_t)next;
  }
  return MGL_OK;
}

static void make_row(mgl_mask_maker *m, uint32_t from) {
  enum { BYTES = 256 };
  uint16_t row[BYTES] = {0};
  void *items = m->rows;
  if (m->status == MGL_OK) {
    m->status = fill_row(m, from, row, &m->error);
  }
  if (m->status == MGL_OK) {
    m->status = mgl_grow(&items, &m->row_capacity, m->row_count + 1, sizeof row, &m->error);
    m->rows = items;
  }
  if (m->status == MGL_OK) {
    memcpy(m->rows + m->row_count * BYTES, row, sizeof row);
    m->all[from].row = (uint32_t)m->row_count++;
  }
}

// Once something has failed, everything is dead.
static inline uint32_t follow(mgl_mask_maker *m, uint32_t from, uint8_t byte) {
  if (m->all[from].row == NONE) {
    make_row(m, from);
    if (m->status != MGL_OK) {
      return DEAD;
    }
  }
  return m->rows[(size_t)m->all[from].row * 256 + byte];
}

// --- groups --------------------------------------------------------------------------------------

// Configurations that characters lead to, without duplicates.
typedef struct places {
  uint32_t at[MOST_LOOKED_AT];
  uint32_t count;
  uint32_t routes;
  bool met_old;  // one led to where another had led before
} places;

static bool add_place(places *p, uint32_t place, uint32_t new_from) {
  for (uint32_t i = 0; i < p->count; i++) {
    if (p->at[i] == place) {
      p->met_old = p->met_old || i < new_from;
      return true;
    }
  }
  if (p->count == MOST_LOOKED_AT) {
    return false;
  }
  p->at[p->count++] = place;
  return true;
}

// Whether every byte of [low, high], and behind it `left` continuation bytes, goes on; adds where
// to if `to` is not NULL. False, too, where there are too many ways.
static bool goes_on(mgl_mask_maker *m, uint32_t from, int low, int high, int left, places *to,
                    uint32_t new_from, uint32_t *routes) {
  uint32_t last = DEAD;
  if (++*routes > MOST_ROUTES) {
    return false;
  }
  for (int byte = low; byte <= high; byte++) {
    uint32_t next = follow(m, from, (uint8_t)byte);
    if (next == DEAD) {
      return false;
    }
    if (next == last) {
      continue;
    }
    last = next;
    if (left > 0 ? !goes_on(m, next, 0x80, 0xbf, left - 1, to, new_from, routes)
                 : to != NULL && !add_place(to, next, new_from)) {
      return false;
    }
  }
  return true;
}

// Whether all characters of a kind go on.
static bool kind_goes_on(mgl_mask_maker *m, uint32_t from, int kind, places *to,
                         uint32_t new_from) {
  static const struct {
    uint8_t lead_low, lead_high, low, high;
    int left;
  } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
               {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
               {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
               {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};
  uint32_t routes = 0;
  if (kind < MGL_PLAIN_KINDS - 1) {
    for (uint32_t byte = ' '; byte < 0x7f; byte++) {
      if (mgl_plain_kind(byte) == kind &&
          !goes_on(m, from, (int)byte, (int)byte, 0, to, new_from, &routes)) {
        return false;
      }
    }
    return true;
  }
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    uint32_t last = DEAD;
    for (int lead = forms[i].lead_low; lead <= forms[i].lead_high; lead++) {
      uint32_t next = follow(m, from, (uint8_t)lead);
      if (next == DEAD) {
        return false;
      }
      if (next != last &&
          !goes_on(m, next, forms[i].low, forms[i].high, forms[i].left, to, new_from, &routes)) {
        return false;
      }
      last = next;
    }
  }
  return true;
}

// Whether no plain character goes on.
static bool is_plain_dead(mgl_mask_maker *m, uint32_t from) {
  for (uint32_t byte = ' '; byte < 0x100; byte++) {
    bool is_plain = byte >= 0x80 || mgl_plain_kind(byte) >= 0;
    if (is_plain && follow(m, from, (uint8_t)byte) != DEAD) {
      return false;
    }
  }
  return true;
}

// Tokens made of `kinds` alone are allowed if they have at most `chars` characters, else not.
typedef struct decided {
  uint32_t kinds;  // 0: nothing is decided
  uint32_t chars;
} decided;

// Goes through all texts of plain characters at once, one character after the other. Kinds that do
// not always go on are dropped; where nothing new is reached, what goes on does so for ever.
static decided decide(mgl_mask_maker *m, uint32_t start) {
  places seen = {.at = {start}, .count = 1};
  uint32_t kinds = ALL_KINDS;
  uint32_t from = 0;
  for (uint32_t chars = 0; chars < MGL_PLAIN_MAX_CHARS; chars++) {
    uint32_t end = seen.count;
    bool all_dead = chars > 0 && !seen.met_old;
    for (uint32_t i = from; i < end && all_dead; i++) {
      all_dead = is_plain_dead(m, seen.at[i]);
    }
    if (all_dead) {
      return (decided){kinds, chars};
    }
    for (uint32_t i = from; i < end; i++) {
      for (int kind = 0; kind < MGL_PLAIN_KINDS; kind++) {
        if ((kinds >> kind & 1) != 0 && !kind_goes_on(m, seen.at[i], kind, NULL, 0)) {
          kinds &= ~(1u << kind);
        }
      }
    }
    for (uint32_t i = from; i < end; i++) {
      for (int kind = 0; kind < MGL_PLAIN_KINDS; kind++) {
        if ((kinds >> kind & 1) != 0 && !kind_goes_on(m, seen.at[i], kind, &seen, end)) {
          return (decided){0};
        }
      }
    }
    if (kinds == 0) {
      return (decided){0};
    }
    if (seen.count == end) {
      break;
    }
    from = end;
  }
  return (decided){kinds, MGL_PLAIN_MAX_CHARS};
}

static bool is_decided(decided d, uint32_t group) {
  return group != 0 && (group & ~d.kinds) == 0;
}

static void apply(const mgl_vocabulary *v, decided d, uint64_t *mask) {
  const uint64_t *short_enough =
      d.kinds == 0 ? NULL : v->plain_up_to + (size_t)(d.chars - 1) * v->mask_words;
  if (d.kinds == ALL_KINDS) {
    memcpy(mask, short_enough, v->mask_words * sizeof *mask);
    return;
  }
  memset(mask, 0, v->mask_words * sizeof *mask);
  for (uint32_t group = 1; group < MGL_TOKEN_GROUPS; group++) {
    const uint64_t *tokens = is_decided(d, group) ? v->groups[group].tokens : NULL;
    for (uint32_t i = 0; tokens != NULL && i < v->mask_words; i++) {
      mask[i] |= tokens[i] & short_enough[i];
    }
  }
}

// --- walks ---------------------------------------------------------------------------------------

static void walk(mgl_mask_maker *m, const mgl_token_group *group, uint32_t start, uint64_t *mask) {
  const uint32_t *order = m->vocabulary->order;
  uint32_t places_at[MGL_MASK_MAX_TOKEN_BYTES + 1];
  uint32_t ends[MGL_MASK_MAX_TOKEN_BYTES + 1];
  uint32_t depth = 0;
  places_at[0] = start;
  ends[0] = group->node_count;
  for (uint32_t i = 0; i < group->node_count;) {
    const mgl_trie_node *node = &group->nodes[i];
    while (i >= ends[depth]) {
      depth--;
    }
    uint32_t next = follow(m, places_at[depth], node->byte);
    if (next == DEAD) {
      i = node->end;
      continue;
    }
    for (uint32_t j = 0; j < node->token_count; j++) {
      uint32_t id = order[node->first_token + j];
      mask[id / 64] |= UINT64_C(1) << (id % 64);
    }
    i++;
    if (node->end > i) {
      depth++;
      places_at[depth] = next;
      ends[depth] = node->end;
    }
  }
}

static void find_first_bytes(mgl_mask_maker *m, uint32_t start, uint64_t bytes[4]) {
  memset(bytes, 0, 4 * sizeof *bytes);
  for (uint32_t byte = 0; byte < 256; byte++) {
    if (follow(m, start, (uint8_t)byte) != DEAD) {
      bytes[byte / 64] |= UINT64_C(1) << (byte % 64);
    }
  }
}

static void make(mgl_mask_maker *m, uint32_t start, uint64_t *mask) {
  const mgl_vocabulary *v = m->vocabulary;
  uint64_t alive[4];
  decided d = decide(m, start);
  apply(v, d, mask);
  find_first_bytes(m, start, alive);
  for (uint32_t i = 0; i < MGL_TOKEN_GROUPS && m->status == MGL_OK; i++) {
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

// The number of where a matcher is.
static mgl_status import(mgl_mask_maker *m, const mgl_matcher *matcher, uint32_t *out,
                         mgl_error *err) {
  mgl_configuration found;
  mgl_closure_begin(&m->steps);
  for (uint32_t i = 0; i < matcher->at.count; i++) {
    mgl_pair pair = matcher->at.pairs[i];
    MGL_TRY(mgl_steps_import(&m->steps, &matcher->steps, pair.stack, &pair.stack, err));
    MGL_TRY(mgl_closure_add(&m->steps, pair, err));
  }
  MGL_TRY(mgl_closure_finish(&m->steps, &found, err));
  found.accepts = matcher->at.accepts;
  return number_of(m, &found, out, err);
}

static void keep(mgl_mask_maker *m, uint32_t number, const uint64_t *mask) {
  size_t words = m->vocabulary->mask_words;
  if (m->masks == NULL) {
    m->masks = mgl_alloc_zeroed((size_t)MGL_MASK_KEPT * words, sizeof *m->masks);
    if (m->masks == NULL) {
      return;  // it only takes longer
    }
  }
  uint32_t slot = m->next_mask;
  m->next_mask = (slot + 1) % MGL_MASK_KEPT;
  m->all[m->mask_of[slot]].mask = NONE;
  m->mask_of[slot] = number;
  m->all[number].mask = slot;
  memcpy(m->masks + slot * words, mask, words * sizeof *mask);
}

static mgl_status make_or_find(mgl_mask_maker *m, const mgl_matcher *matcher, uint64_t *mask,
                               mgl_error *err) {
  const mgl_vocabulary *v = m->vocabulary;
  uint32_t start = DEAD;
  if (m->count > MGL_MASK_KEPT_CONFIGURATIONS) {
    forget_all(m);
  }
  m->status = MGL_OK;
  m->work_limit = m->steps.work + MGL_MASK_MAX_WORK;
  MGL_TRY(import(m, matcher, &start, err));
  if (m->all[start].mask != NONE) {
    memcpy(mask, m->masks + m->all[start].mask * (size_t)v->mask_words,
           v->mask_words * sizeof *mask);
  } else {
    make(m, start, mask);
    if (m->status != MGL_OK) {
      return mgl_error_set(err, m->status, "%s", m->error.text);
    }
    keep(m, start, mask);
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
