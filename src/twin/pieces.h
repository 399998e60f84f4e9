// Pieces of one op that its tasks take in turns: a shared word for each op.
//
// The word holds the iteration that it counts and how many pieces of it were taken, so nobody has
// to clear it between iterations. All tasks of the op end before the next iteration begins
// (twin/protocol.h): two iterations never take from one word at the same time.
#ifndef MGL_TWIN_PIECES_H
#define MGL_TWIN_PIECES_H

#include "twin/atomics.h"

enum { MGL_PIECE_BITS = 24 };  // of the word: more pieces than an op has, and tasks that find none

// The number of the next piece in this iteration, from 0 on: each to one caller. The caller stops
// at the first number that is no piece.
MGL_SHARED_FN uint64_t mgl_take_piece(mgl_word *word, uint64_t iteration) {
  const uint64_t begin = iteration << MGL_PIECE_BITS;
  for (;;) {
    const uint64_t was = mgl_load_relaxed(word);
    const uint64_t next = (was >> MGL_PIECE_BITS == begin >> MGL_PIECE_BITS ? was : begin) + 1;
    // What a piece is made of was ordered before its task; the word orders nothing else.
    if (mgl_cas_acq_rel(word, was, next)) {
      return next - begin - 1;
    }
  }
}

#endif
