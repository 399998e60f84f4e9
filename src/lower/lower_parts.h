// What the lowerings share among themselves.
#ifndef MGL_LOWER_LOWER_PARTS_H
#define MGL_LOWER_LOWER_PARTS_H

#include "lower/schedule.h"

// A schedule with the numbers of `sizes`, all zero behind them; NULL: out of memory.
mgl_schedule *mgl_schedule_create(const mgl_schedule *sizes);
// The workers' lists, from each step's worker, by counting sort.
void mgl_schedule_fill_lists(mgl_schedule *schedule);
mgl_status mgl_schedule_out_of_memory(mgl_error *err);

// Kinds all of whose inputs from other tasks of the iteration are activations, which tasks can
// await word by word (lower/words.h).
static inline bool mgl_kind_waits_for_words(uint32_t kind) {
  return mgl_op_kind_is_linear(kind) || kind == MGL_OP_ATTEND;
}

// Kinds whose results say themselves, word by word, that they are written.
static inline bool mgl_kind_writes_words(uint32_t kind) {
  return kind == MGL_OP_EMBED || kind == MGL_OP_ROPE_ANGLES ||
         (mgl_kind_waits_for_words(kind) && kind != MGL_OP_LOGITS);
}

#endif
