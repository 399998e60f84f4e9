// The atomic operations of the runtime protocol, for one target.
//
// The protocol (twin/protocol.h) is one source for CPU threads and GPU warps. It touches shared
// words only through the names below, so that a target is this one file:
//   host       C11 atomics (this part)
//   device     PTX acquire/release at gpu scope (twin/atomics_cuda.h, with __CUDACC__)
//   model      a scheduler that tries all interleavings (tests, with MGL_ATOMICS_MODEL)
// Rules: counters are 64 bit and only grow; a load whose value decides what is read next is an
// acquire and its comment names the release it pairs with.
#ifndef MGL_TWIN_ATOMICS_H
#define MGL_TWIN_ATOMICS_H

#if defined(MGL_ATOMICS_MODEL)
#include "support/atomics_model.h"
#elif defined(__CUDACC__)
#include "twin/atomics_cuda.h"
#else

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MGL_SHARED_FN static inline

typedef struct mgl_word {
  _Atomic uint64_t value;
} mgl_word;

MGL_SHARED_FN uint64_t mgl_load_acquire(const mgl_word *word) {
  return atomic_load_explicit(&word->value, memory_order_acquire);
}

MGL_SHARED_FN uint64_t mgl_load_relaxed(const mgl_word *word) {
  return atomic_load_explicit(&word->value, memory_order_relaxed);
}

MGL_SHARED_FN void mgl_store_release(mgl_word *word, uint64_t value) {
  atomic_store_explicit(&word->value, value, memory_order_release);
}

MGL_SHARED_FN void mgl_store_relaxed(mgl_word *word, uint64_t value) {
  atomic_store_explicit(&word->value, value, memory_order_relaxed);
}

// Adds and returns the value before. Acquire and release: whoever makes the last trigger of an
// event has seen what all the others wrote.
MGL_SHARED_FN uint64_t mgl_add_acq_rel(mgl_word *word, uint64_t amount) {
  return atomic_fetch_add_explicit(&word->value, amount, memory_order_acq_rel);
}

// The same without an order: where only the number counts.
MGL_SHARED_FN uint64_t mgl_add_relaxed(mgl_word *word, uint64_t amount) {
  return atomic_fetch_add_explicit(&word->value, amount, memory_order_relaxed);
}

// Replaces `expected` by `desired`; returns whether it did.
MGL_SHARED_FN bool mgl_cas_acq_rel(mgl_word *word, uint64_t expected, uint64_t desired) {
  return atomic_compare_exchange_strong_explicit(&word->value, &expected, desired,
                                                 memory_order_acq_rel, memory_order_relaxed);
}

// Counters of 32 bits, which a futex can wait for. They may wrap around.
typedef _Atomic uint32_t mgl_count;

MGL_SHARED_FN uint32_t mgl_count_load_acquire(const mgl_count *count) {
  return atomic_load_explicit(count, memory_order_acquire);
}

// Both add and return the value before.
MGL_SHARED_FN uint32_t mgl_count_add_release(mgl_count *count, uint32_t amount) {
  return atomic_fetch_add_explicit(count, amount, memory_order_release);
}

MGL_SHARED_FN uint32_t mgl_count_add_acq_rel(mgl_count *count, uint32_t amount) {
  return atomic_fetch_add_explicit(count, amount, memory_order_acq_rel);
}

// These load and store between a device and its host, on words in memory that both see.
MGL_SHARED_FN uint64_t mgl_load_acquire_system(const mgl_word *word) {
  return mgl_load_acquire(word);
}

MGL_SHARED_FN void mgl_store_release_system(mgl_word *word, uint64_t value) {
  mgl_store_release(word, value);
}

// Sequentially consistent: for the sleep and wake handshake, where each side stores one word and
// then loads the other's.
MGL_SHARED_FN void mgl_fence_seq_cst(void) {
  atomic_thread_fence(memory_order_seq_cst);
}

// One turn of a waiting loop.
MGL_SHARED_FN void mgl_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Wakes waiters that sleep; called after whatever they wait for was stored. The host's runtime
// defines it (device/cpu/cpu_wait.c); a device only spins and has nothing to wake.
void mgl_notify(void);
// The same for waiters of another process that runs the same model.
void mgl_notify_rank(uint32_t rank);

#endif
#endif
