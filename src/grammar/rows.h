// The deterministic automaton of a grammar, as far as somebody has been there.
//
// Its places are numbers of configurations (configurations.h) and its rows say where every byte
// leads from one. A row is made when it is first asked for. There are as many places as texts have
// led to, up to a limit; mgl_rows_forget begins anew. One thread at a time.
#ifndef MGL_GRAMMAR_ROWS_H
#define MGL_GRAMMAR_ROWS_H

#include "grammar/matcher.h"

enum {
  MGL_ROWS_MAX = 32768,         // places that are known at once
  MGL_ROWS_MAX_WORK = 8 << 20,  // pairs found between two calls of mgl_rows_begin
  MGL_PLACE_DEAD = 0,           // where no text goes on
  MGL_PLACE_SEVERAL = 0xffff,   // not a place, but more than one
  MGL_PLACE_UNKNOWN = 0xfffe,
};

typedef struct mgl_row {
  uint16_t next[256];  // MGL_PLACE_DEAD: the byte is not allowed
  uint8_t some_kinds;  // sets of kinds of plain characters (vocabulary.h): of which a first byte is
  uint8_t all_kinds;   // allowed; of which all are (of those in ASCII)
  uint16_t ascii_next;  // the one place where all bytes of all_kinds lead; MGL_PLACE_SEVERAL
  uint16_t
      other_next;  // the same of characters beyond ASCII; MGL_PLACE_DEAD: some are not allowed;
                   // MGL_PLACE_UNKNOWN at first, then whoever finds out writes it down
} mgl_row;

typedef struct mgl_place {
  mgl_row *row;  // NULL: not made yet
  uint32_t first_pair, pair_count;
  uint32_t next;   // in its bucket
  uint32_t label;  // the owner's, 0 at first
  bool accepts;
} mgl_place;

struct mgl_row_chunk;

// Zero-initialise, then mgl_rows_init.
typedef struct mgl_rows {
  mgl_steps steps;
  mgl_place *places;  // [count]
  size_t count, capacity;
  mgl_pair *pairs;
  size_t pair_count, pair_capacity;
  uint32_t *buckets;  // [bucket_count] a power of two
  size_t bucket_count;
  struct mgl_row_chunk *chunks;  // newest first
  uint32_t chunk_used;           // rows of the newest
  uint64_t work_limit;
  mgl_error error;  // the first failure since mgl_rows_begin; with one, all that is new is dead
} mgl_rows;

mgl_status mgl_rows_init(mgl_rows *rows, const mgl_automaton *automaton, mgl_error *err);
void mgl_rows_reset(mgl_rows *rows);
void mgl_rows_forget(mgl_rows *rows);  // all places

// Forgets failures, and work that was done.
void mgl_rows_begin(mgl_rows *rows);
// The place of a configuration of rows->steps, new or not; MGL_PLACE_DEAD if nothing goes on from
// it and it accepts nothing.
mgl_status mgl_rows_place(mgl_rows *rows, const mgl_configuration *configuration, uint32_t *out,
                          mgl_error *err);
// The place of a matcher's text.
mgl_status mgl_rows_import(mgl_rows *rows, const mgl_matcher *matcher, uint32_t *out,
                           mgl_error *err);
// Makes a row; use mgl_row_of.
mgl_row *mgl_rows_make(mgl_rows *rows, uint32_t place);

// Valid until mgl_rows_forget. After a failure a row that leads nowhere.
static inline mgl_row *mgl_row_of(mgl_rows *rows, uint32_t place) {
  mgl_row *row = rows->places[place].row;
  return row != NULL ? row : mgl_rows_make(rows, place);
}

#endif
