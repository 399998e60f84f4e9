// twin/atomics.h for the test that tries all interleavings (MGL_ATOMICS_MODEL): a shared word is
// plain memory, and before every access the running actor gives the others a chance.
//
// What it models: sequentially consistent interleavings of single accesses. Weak memory is not
// modelled; for that there are the thread sanitizer and the comments that pair each acquire with
// its release. These functions run on coroutine stacks, which the address sanitizer must not track.
#ifndef SUPPORT_ATOMICS_MODEL_H
#define SUPPORT_ATOMICS_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_FN __attribute__((no_sanitize("address", "undefined")))
#define MGL_SHARED_FN MODEL_FN static inline __attribute__((unused))

typedef struct mgl_word {
  uint64_t value;
} mgl_word;

typedef enum model_access { MODEL_LOAD, MODEL_STORE, MODEL_UPDATE, MODEL_NOTIFY } model_access;

enum { MODEL_OWN_RANK = 255 };

// Defined by the test. `before` may switch to another actor; `after` tells what the access read (or
// stored), on which the actor's further way depends; of a notification, whose sleepers it wakes.
void model_before(const mgl_word *word, model_access access);
void model_after(const mgl_word *word, model_access access, uint64_t value);

MGL_SHARED_FN uint64_t mgl_load_acquire(const mgl_word *word) {
  model_before(word, MODEL_LOAD);
  uint64_t value = word->value;
  model_after(word, MODEL_LOAD, value);
  return value;
}

MGL_SHARED_FN uint64_t mgl_load_relaxed(const mgl_word *word) {
  return mgl_load_acquire(word);
}

MGL_SHARED_FN void mgl_store_release(mgl_word *word, uint64_t value) {
  model_before(word, MODEL_STORE);
  word->value = value;
  model_after(word, MODEL_STORE, value);
}

MGL_SHARED_FN void mgl_store_relaxed(mgl_word *word, uint64_t value) {
  mgl_store_release(word, value);
}

MGL_SHARED_FN uint64_t mgl_add_acq_rel(mgl_word *word, uint64_t amount) {
  model_before(word, MODEL_UPDATE);
  uint64_t value = word->value;
  word->value = value + amount;
  model_after(word, MODEL_UPDATE, value);
  return value;
}

MGL_SHARED_FN uint64_t mgl_add_relaxed(mgl_word *word, uint64_t amount) {
  return mgl_add_acq_rel(word, amount);
}

MGL_SHARED_FN bool mgl_cas_acq_rel(mgl_word *word, uint64_t expected, uint64_t desired) {
  model_before(word, MODEL_UPDATE);
  bool equal = word->value == expected;
  if (equal) {
    word->value = desired;
  }
  model_after(word, MODEL_UPDATE, equal ? 1 : 0);
  return equal;
}

MGL_SHARED_FN void mgl_fence_seq_cst(void) {}
MGL_SHARED_FN void mgl_relax(void) {}

// One step that wakes whoever sleeps. The handshake below it (cpu_wait.c) makes it one.
MGL_SHARED_FN void mgl_notify_rank(uint32_t rank) {
  model_before((const mgl_word *)0, MODEL_NOTIFY);
  model_after((const mgl_word *)0, MODEL_NOTIFY, rank);
}

MGL_SHARED_FN void mgl_notify(void) {
  mgl_notify_rank(MODEL_OWN_RANK);
}

#endif
