// The atomic operations of the runtime protocol on the device: the part of twin/atomics.h for CUDA.
//
// PTX instructions at gpu scope, on words in device memory; at system scope where their names say
// so, on words in pinned host memory. They order one thread's accesses; a
// warp or a block that works for that thread joins it through barriers (bar.sync), which the memory
// model counts as synchronisation too, so that what consumer warps wrote before the barrier is
// published by the controller's release, and what its acquire has seen they may read after the next
// barrier, by ordinary loads. (ld.acquire.gpu also drops the SM's L1 lines, which are not kept
// coherent.) Never through the non-coherent path. Rejected: __threadfence() around volatile
// accesses, which fences more and is no acquire; libcu++, which NVRTC does not ship.
#ifndef MGL_TWIN_ATOMICS_CUDA_H
#define MGL_TWIN_ATOMICS_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#define MGL_SHARED_FN static __device__ inline

typedef struct mgl_word {
  uint64_t value;
} mgl_word;

MGL_SHARED_FN uint64_t mgl_load_acquire(const mgl_word *word) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

MGL_SHARED_FN uint64_t mgl_load_relaxed(const mgl_word *word) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

MGL_SHARED_FN void mgl_store_release(mgl_word *word, uint64_t value) {
  asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(word), "l"((unsigned long long)value)
               : "memory");
}

MGL_SHARED_FN void mgl_store_relaxed(mgl_word *word, uint64_t value) {
  asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(word), "l"((unsigned long long)value)
               : "memory");
}

// With the host, on words in pinned memory.
MGL_SHARED_FN uint64_t mgl_load_acquire_system(const mgl_word *word) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

MGL_SHARED_FN void mgl_store_release_system(mgl_word *word, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"((unsigned long long)value)
               : "memory");
}

MGL_SHARED_FN uint64_t mgl_add_acq_rel(mgl_word *word, uint64_t amount) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(word), "l"((unsigned long long)amount)
               : "memory");
  return before;
}

MGL_SHARED_FN uint64_t mgl_add_relaxed(mgl_word *word, uint64_t amount) {
  unsigned long long before;
  asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(word), "l"((unsigned long long)amount)
               : "memory");
  return before;
}

// Adds, where nobody needs the value before: no answer has to come back.
MGL_SHARED_FN void mgl_add_release(mgl_word *word, uint64_t amount) {
  asm volatile("red.release.gpu.add.u64 [%0], %1;" ::"l"(word), "l"((unsigned long long)amount)
               : "memory");
}

// The same on a word in another GPU's memory.
MGL_SHARED_FN void mgl_add_release_system(mgl_word *word, uint64_t amount) {
  asm volatile("red.release.sys.add.u64 [%0], %1;" ::"l"(word), "l"((unsigned long long)amount)
               : "memory");
}

MGL_SHARED_FN bool mgl_cas_acq_rel(mgl_word *word, uint64_t expected, uint64_t desired) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(word), "l"((unsigned long long)expected), "l"((unsigned long long)desired)
               : "memory");
  return before == expected;
}

// Counters of 32 bits in device memory, by one thread for its block: a release covers what the
// block wrote before the barrier in front of it, and what an acquire has seen the block may read
// behind the next one.
typedef uint32_t mgl_count;

MGL_SHARED_FN uint32_t mgl_count_load_acquire(const mgl_count *count) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
  return value;
}

MGL_SHARED_FN void mgl_count_up_release(mgl_count *count) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}

// Adds, and returns the value before.
MGL_SHARED_FN uint32_t mgl_count_add_acq_rel(mgl_count *count, uint32_t amount) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(count), "r"(amount)
               : "memory");
  return before;
}

// Adds 1, or goes back to 0 from `most`, and returns the value before.
MGL_SHARED_FN uint32_t mgl_count_up_acq_rel(mgl_count *count, uint32_t most) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(count), "r"(most)
               : "memory");
  return before;
}

// What this thread wrote before is seen by the host before what it writes after.
MGL_SHARED_FN void mgl_fence_system(void) {
  __threadfence_system();
}

// What this thread wrote before is seen by its block before what it writes after; on the other
// side, between what it reads.
MGL_SHARED_FN void mgl_fence_block(void) {
  __threadfence_block();
}

MGL_SHARED_FN void mgl_fence_seq_cst(void) {
  asm volatile("fence.sc.gpu;" ::: "memory");
}

// One turn of a waiting loop: leaves the issue slots to other warps and the L2 to other SMs.
MGL_SHARED_FN void mgl_relax(void) {
  asm volatile("nanosleep.u32 20;" ::: "memory");
}

// Workers only spin on the device: there is nobody to wake.
MGL_SHARED_FN void mgl_notify(void) {}

// Of a word in a block's shared memory, at its address there, between warps of the block.
MGL_SHARED_FN uint32_t mgl_shared_load_acquire(uint32_t at) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}

MGL_SHARED_FN void mgl_shared_store_release(uint32_t at, uint32_t value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

#endif
