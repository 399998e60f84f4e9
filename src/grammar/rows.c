#include "grammar/rows.h"

#include <string.h>

#include "base/alloc.h"
#include "grammar/vocabulary.h"

enum { FIRST_BUCKETS = 256, CHUNK_ROWS = 64 };

typedef struct mgl_row_chunk {
  struct mgl_row_chunk *older;
  mgl_row rows[CHUNK_ROWS];
} mgl_row_chunk;

static mgl_row dead_row;  // all bytes lead to MGL_PLACE_DEAD

static mgl_status out_of_memory(mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the masks of a grammar");
}

mgl_status mgl_rows_init(mgl_rows *r, const mgl_automaton *automaton, mgl_error *err) {
  void *items = NULL;
  *r = (mgl_rows){.bucket_count = FIRST_BUCKETS};
  r->buckets = mgl_alloc_zeroed(FIRST_BUCKETS, sizeof *r->buckets);
  mgl_status status = r->buckets == NULL ? out_of_memory(err) : MGL_OK;
  if (status == MGL_OK) {
    status = mgl_grow(&items, &r->capacity, 1, sizeof *r->places, err);
    r->places = items;
  }
  if (status == MGL_OK) {
    status = mgl_steps_init(&r->steps, automaton, err);
  }
  if (status != MGL_OK) {
    mgl_rows_reset(r);
    return status;
  }
  mgl_rows_forget(r);
  return MGL_OK;
}

static void free_chunks(mgl_rows *r, mgl_row_chunk *keep) {
  while (r->chunks != keep) {
    mgl_row_chunk *chunk = r->chunks;
    r->chunks = chunk->older;
    mgl_free(chunk);
  }
}

void mgl_rows_reset(mgl_rows *r) {
  free_chunks(r, NULL);
  mgl_steps_reset(&r->steps);
  mgl_free(r->places);
  mgl_free(r->pairs);
  mgl_free(r->buckets);
  *r = (mgl_rows){0};
}

void mgl_rows_forget(mgl_rows *r) {
  memset(r->buckets, 0, r->bucket_count * sizeof *r->buckets);
  free_chunks(r, NULL);
  r->pair_count = 0;
  r->places[MGL_PLACE_DEAD] = (mgl_place){.row = &dead_row};
  r->count = 1;
  mgl_steps_forget(&r->steps);
}

void mgl_rows_begin(mgl_rows *r) {
  r->error.status = MGL_OK;
  r->work_limit = r->steps.work + MGL_ROWS_MAX_WORK;
}

// --- places --------------------------------------------------------------------------------------

static size_t hash_of(const mgl_pair *pairs, uint32_t count, bool accepts) {
  uint64_t hash = accepts ? 1 : 2;
  for (uint32_t i = 0; i < count; i++) {
    hash = (hash ^ ((uint64_t)pairs[i].state << 32 | pairs[i].stack)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return (size_t)hash;
}

static mgl_status double_buckets(mgl_rows *r, mgl_error *err) {
  uint32_t *buckets = mgl_alloc_zeroed(r->bucket_count * 2, sizeof *buckets);
  if (buckets == NULL) {
    return out_of_memory(err);
  }
  mgl_free(r->buckets);
  r->buckets = buckets;
  r->bucket_count *= 2;
  for (uint32_t i = 1; i < r->count; i++) {
    mgl_place *p = &r->places[i];
    size_t at = hash_of(r->pairs + p->first_pair, p->pair_count, p->accepts);
    at &= r->bucket_count - 1;
    p->next = buckets[at];
    buckets[at] = i;
  }
  return MGL_OK;
}

static uint32_t find_place(const mgl_rows *r, const mgl_configuration *c, size_t hash) {
  uint32_t i = r->buckets[hash & (r->bucket_count - 1)];
  for (; i != 0; i = r->places[i].next) {
    const mgl_place *p = &r->places[i];
    if (p->pair_count == c->count && p->accepts == c->accepts &&
        (c->count == 0 ||
         memcmp(r->pairs + p->first_pair, c->pairs, c->count * sizeof *c->pairs) == 0)) {
      return i;
    }
  }
  return 0;
}

mgl_status mgl_rows_place(mgl_rows *r, const mgl_configuration *c, uint32_t *out, mgl_error *err) {
  void *items = r->pairs;
  size_t hash = hash_of(c->pairs, c->count, c->accepts);
  bool is_dead = c->count == 0 && !c->accepts;
  *out = is_dead ? MGL_PLACE_DEAD : find_place(r, c, hash);
  if (is_dead || *out != 0) {
    return MGL_OK;
  }
  if (r->count == MGL_ROWS_MAX) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "the grammar is too ambiguous: a token can lead to more than %d places",
                         MGL_ROWS_MAX);
  }
  MGL_TRY(mgl_grow(&items, &r->pair_capacity, r->pair_count + c->count, sizeof *r->pairs, err));
  r->pairs = items;
  items = r->places;
  MGL_TRY(mgl_grow(&items, &r->capacity, r->count + 1, sizeof *r->places, err));
  r->places = items;
  if (r->count >= r->bucket_count) {
    MGL_TRY(double_buckets(r, err));
  }
  if (c->count > 0) {
    memcpy(r->pairs + r->pair_count, c->pairs, c->count * sizeof *c->pairs);
  }
  uint32_t *bucket = &r->buckets[hash & (r->bucket_count - 1)];
  r->places[r->count] = (mgl_place){.first_pair = (uint32_t)r->pair_count,
                                    .pair_count = c->count,
                                    .next = *bucket,
                                    .accepts = c->accepts};
  r->pair_count += c->count;
  *out = *bucket = (uint32_t)r->count++;
  return MGL_OK;
}

mgl_status mgl_rows_import(mgl_rows *r, const mgl_matcher *matcher, uint32_t *out, mgl_error *err) {
  mgl_configuration found;
  mgl_closure_begin(&r->steps);
  for (uint32_t i = 0; i < matcher->at.count; i++) {
    mgl_pair pair = matcher->at.pairs[i];
    MGL_TRY(mgl_steps_import(&r->steps, &matcher->steps, pair.stack, &pair.stack, err));
    MGL_TRY(mgl_closure_add(&r->steps, pair, err));
  }
  MGL_TRY(mgl_closure_finish(&r->steps, &found, err));
  found.accepts = matcher->at.accepts;
  return mgl_rows_place(r, &found, out, err);
}

// --- rows ----------------------------------------------------------------------------------------

static mgl_status step(mgl_rows *r, uint32_t from, uint8_t byte, uint32_t *out, mgl_error *err) {
  const mgl_automaton *a = r->steps.automaton;
  mgl_configuration found;
  mgl_closure_begin(&r->steps);
  for (uint32_t i = 0; i < r->places[from].pair_count; i++) {
    mgl_pair pair = r->pairs[r->places[from].first_pair + i];
    const mgl_state *state = &a->states[pair.state];
    const mgl_byte_edge *edges = &a->byte_edges[state->first_byte_edge];
    r->steps.work += state->byte_edge_count;
    for (uint32_t k = 0; k < state->byte_edge_count; k++) {
      if (edges[k].low <= byte && byte <= edges[k].high) {
        MGL_TRY(mgl_closure_add(&r->steps, (mgl_pair){edges[k].target, pair.stack}, err));
      }
    }
  }
  MGL_TRY(mgl_closure_finish(&r->steps, &found, err));
  if (r->steps.work > r->work_limit) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "the grammar is too ambiguous: a mask takes more than %d steps",
                         MGL_ROWS_MAX_WORK);
  }
  return mgl_rows_place(r, &found, out, err);
}

// Bytes between which no edge begins or ends lead to the same place.
static mgl_status fill_row(mgl_rows *r, uint32_t from, mgl_row *row, mgl_error *err) {
  const mgl_automaton *a = r->steps.automaton;
  bool begins[257] = {true};
  for (uint32_t i = 0; i < r->places[from].pair_count; i++) {
    const mgl_state *state = &a->states[r->pairs[r->places[from].first_pair + i].state];
    const mgl_byte_edge *edges = &a->byte_edges[state->first_byte_edge];
    for (uint32_t k = 0; k < state->byte_edge_count; k++) {
      begins[edges[k].low] = true;
      begins[edges[k].high + 1] = true;
    }
  }
  uint32_t next = MGL_PLACE_DEAD;
  for (int byte = 0; byte < 256; byte++) {
    if (begins[byte]) {
      MGL_TRY(step(r, from, (uint8_t)byte, &next, err));
    }
    row->next[byte] = (uint16_t)next;
  }
  return MGL_OK;
}

static void note_kinds(mgl_row *row) {
  unsigned some = 0;
  unsigned all = (1u << MGL_PLAIN_KINDS) - 1;
  uint32_t one = MGL_PLACE_DEAD;
  for (uint32_t byte = ' '; byte < 256; byte++) {
    int kind = mgl_plain_kind(byte);
    if (kind >= 0) {
      unsigned bit = 1u << kind;
      some |= row->next[byte] != MGL_PLACE_DEAD ? bit : 0;
      all &= row->next[byte] == MGL_PLACE_DEAD ? ~bit : ~0u;
    }
  }
  for (uint32_t byte = ' '; byte < 0x7f; byte++) {
    int kind = mgl_plain_kind(byte);
    if (kind >= 0 && (all >> kind & 1) != 0) {
      uint32_t next = row->next[byte];
      one = one == MGL_PLACE_DEAD || one == next ? next : MGL_PLACE_SEVERAL;
    }
  }
  row->some_kinds = (uint8_t)some;
  row->all_kinds = (uint8_t)all;
  row->ascii_next = (uint16_t)one;
  row->other_next = MGL_PLACE_UNKNOWN;
}

mgl_row *mgl_rows_make(mgl_rows *r, uint32_t place) {
  if (r->error.status != MGL_OK) {
    return &dead_row;
  }
  if (r->chunks == NULL || r->chunk_used == CHUNK_ROWS) {
    mgl_row_chunk *chunk = mgl_alloc(sizeof *chunk);
    if (chunk == NULL) {
      (void)out_of_memory(&r->error);
      return &dead_row;
    }
    chunk->older = r->chunks;
    r->chunks = chunk;
    r->chunk_used = 0;
  }
  mgl_row *row = &r->chunks->rows[r->chunk_used];
  if (fill_row(r, place, row, &r->error) != MGL_OK) {
    return &dead_row;
  }
  note_kinds(row);
  r->chunk_used++;
  r->places[place].row = row;
  return row;
}
