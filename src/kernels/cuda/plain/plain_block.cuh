// Plain kernels: blocks, sums over their threads, and elements of any dtype.
//
// A plain kernel is slow and correct: it takes every shape and dtype that the CPU takes. Its body
// is a function of an op and a place, written in what C and CUDA C have in common: a host that says
// that a block has one thread runs it as it is (tests/support/fake_cuda_plain.c), so that all but
// the threads' cooperation is tested without a GPU.
//
// Sums have one order, whatever else is in an iteration: a lane adds its elements in ascending
// order, then lanes and warps are added in the order below. So rows have the same bits in every
// iteration. Products and sums of linears are fused; all else is rounded as in kernels_scalar.c.
// Where fused tasks cover the model (mgl_plain_op.fused_order), sums and functions are theirs.
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_BLOCK_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_BLOCK_CUH

#include <stdint.h>

#include "base/dtype.h"
#include "twin/plain_op.h"

typedef struct mgl_plain_place {
  uint32_t block, blocks;    // of the grid
  uint32_t thread, threads;  // of the block: MGL_PLAIN_THREADS, on a host 1
} mgl_plain_place;

enum { MGL_PLAIN_LANES = 32, MGL_PLAIN_WARPS = MGL_PLAIN_THREADS / MGL_PLAIN_LANES };

#ifdef __CUDACC__

#define MGL_PLAIN_FN static __device__ __forceinline__
#define MGL_PLAIN_SHARED __shared__
#define MGL_PLAIN_UNROLL _Pragma("unroll")
#define MGL_PLAIN_INFINITY __int_as_float(0x7f800000)

// Of all lanes of a warp; the same bits in each.
MGL_PLAIN_FN float mgl_plain_warp_sum(float value) {
  for (int step = MGL_PLAIN_LANES / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  return value;
}

MGL_PLAIN_FN float mgl_plain_warp_max(float value) {
  for (int step = MGL_PLAIN_LANES / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

MGL_PLAIN_FN void mgl_plain_sync() {
  __syncthreads();
}

// A bit for each lane of a warp that says so; the same in all of them.
MGL_PLAIN_FN uint32_t mgl_plain_ballot(bool yes) {
  return __ballot_sync(0xffffffffu, yes);
}

MGL_PLAIN_FN uint32_t mgl_plain_lowest_bit(uint32_t bits) {
  return (uint32_t)__ffs((int)bits) - 1;
}

MGL_PLAIN_FN float mgl_plain_fma(float a, float b, float sum) {
  return fmaf(a, b, sum);
}

MGL_PLAIN_FN float mgl_plain_rsqrt(float value) {
  return rsqrtf(value);
}

MGL_PLAIN_FN float mgl_plain_divide_fast(float a, float b) {
  return __fdividef(a, b);
}

MGL_PLAIN_FN float mgl_plain_exp_fast(float value) {
  return __expf(value);
}

MGL_PLAIN_FN void mgl_plain_turn(float angle, float *cosine, float *sine) {
  sincosf(angle, sine, cosine);
}

MGL_PLAIN_FN float mgl_plain_f16(mgl_f16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

#else

#include <math.h>

#define MGL_PLAIN_FN static inline
#define MGL_PLAIN_SHARED static
#define MGL_PLAIN_UNROLL
#define MGL_PLAIN_INFINITY INFINITY

MGL_PLAIN_FN float mgl_plain_warp_sum(float value) {
  return value;
}

MGL_PLAIN_FN float mgl_plain_warp_max(float value) {
  return value;
}

MGL_PLAIN_FN void mgl_plain_sync(void) {}

MGL_PLAIN_FN uint32_t mgl_plain_ballot(bool yes) {
  return yes;
}

MGL_PLAIN_FN uint32_t mgl_plain_lowest_bit(uint32_t bits) {
  (void)bits;
  return 0;
}

// Rounded twice: without the instruction, libm's takes a hundred times as long.
MGL_PLAIN_FN float mgl_plain_fma(float a, float b, float sum) {
  return a * b + sum;
}

MGL_PLAIN_FN float mgl_plain_rsqrt(float value) {
  return 1.0f / sqrtf(value);
}

MGL_PLAIN_FN float mgl_plain_divide_fast(float a, float b) {
  return a / b;
}

MGL_PLAIN_FN float mgl_plain_exp_fast(float value) {
  return expf(value);
}

MGL_PLAIN_FN void mgl_plain_turn(float angle, float *cosine, float *sine) {
  *cosine = cosf(angle);
  *sine = sinf(angle);
}

MGL_PLAIN_FN float mgl_plain_f16(mgl_f16 bits) {
  return mgl_f16_to_f32(bits);
}

#endif

// --- sums ----------------------------------------------------------------------------------------

MGL_PLAIN_FN uint32_t mgl_plain_lanes(mgl_plain_place at) {
  return at.threads < MGL_PLAIN_LANES ? at.threads : (uint32_t)MGL_PLAIN_LANES;
}

// What a thread's warp is, and how far it is to its next, of all warps of the grid.
MGL_PLAIN_FN uint64_t mgl_plain_first_warp(mgl_plain_place at) {
  return ((uint64_t)at.block * at.threads + at.thread) / mgl_plain_lanes(at);
}

MGL_PLAIN_FN uint64_t mgl_plain_warp_step(mgl_plain_place at) {
  return (uint64_t)at.blocks * at.threads / mgl_plain_lanes(at);
}

// Of all threads of the block, which all call it, by what their warps have; the same bits in each.
MGL_PLAIN_FN float mgl_plain_join(mgl_plain_place at, float value, bool adds) {
  MGL_PLAIN_SHARED float parts[MGL_PLAIN_WARPS];
  uint32_t lanes = mgl_plain_lanes(at);
  float all = adds ? 0 : -MGL_PLAIN_INFINITY;
  if (at.thread % lanes == 0) {
    parts[at.thread / lanes] = value;
  }
  mgl_plain_sync();
  for (uint32_t i = 0; i < at.threads / lanes; i++) {
    all = adds ? all + parts[i] : fmaxf(all, parts[i]);
  }
  mgl_plain_sync();  // before the next call's parts
  return all;
}

MGL_PLAIN_FN float mgl_plain_sum(mgl_plain_place at, float value) {
  return mgl_plain_join(at, mgl_plain_warp_sum(value), true);
}

MGL_PLAIN_FN float mgl_plain_max(mgl_plain_place at, float value) {
  return mgl_plain_join(at, mgl_plain_warp_max(value), false);
}

// --- elements ------------------------------------------------------------------------------------

MGL_PLAIN_FN float mgl_plain_load(const void *data, uint32_t dtype, uint64_t index) {
  switch (dtype) {
    case MGL_DTYPE_F32: return ((const float *)data)[index];
    case MGL_DTYPE_F16: return mgl_plain_f16(((const mgl_f16 *)data)[index]);
    default: return mgl_bf16_to_f32(((const mgl_bf16 *)data)[index]);
  }
}

MGL_PLAIN_FN void mgl_plain_store(void *data, uint32_t dtype, uint64_t index, float value) {
  if (dtype == MGL_DTYPE_BF16) {
    ((mgl_bf16 *)data)[index] = mgl_f32_to_bf16(value);
  } else {
    ((float *)data)[index] = value;
  }
}

// Row `row` of an f32 tensor, of uint32_t, and so on: the first element.
MGL_PLAIN_FN const float *mgl_plain_f32(const mgl_plain_tensor *tensor) {
  return (const float *)tensor->data;
}

MGL_PLAIN_FN const uint32_t *mgl_plain_u32(const mgl_plain_tensor *tensor) {
  return (const uint32_t *)tensor->data;
}

enum { MGL_PLAIN_RUN = 8 };  // elements of a row that are loaded at once

typedef struct mgl_plain_words {
  _Alignas(16) uint32_t words[4];
} mgl_plain_words;

// Elements k to k + 7 of a row of plain elements; those behind its end are 0.
MGL_PLAIN_FN void mgl_plain_load_run(const void *row, uint32_t dtype, uint32_t k, uint32_t width,
                                     float out[MGL_PLAIN_RUN]) {
  if (dtype != MGL_DTYPE_F32 && width - k >= MGL_PLAIN_RUN && (uintptr_t)row % 16 == 0) {
    mgl_plain_words run = *(const mgl_plain_words *)(const void *)((const mgl_bf16 *)row + k);
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < MGL_PLAIN_RUN; i++) {
      uint16_t bits = (uint16_t)(run.words[i / 2] >> (i % 2 * 16));
      out[i] = dtype == MGL_DTYPE_BF16 ? mgl_bf16_to_f32(bits) : mgl_plain_f16(bits);
    }
    return;
  }
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < MGL_PLAIN_RUN; i++) {
    out[i] = k + i < width ? mgl_plain_load(row, dtype, k + i) : 0.0f;
  }
}

// Codes of 8 bits, one behind the other.
MGL_PLAIN_FN bool mgl_plain_has_bytes(const mgl_plain_tensor *w) {
  return w->dtype == MGL_DTYPE_E4M3 || w->dtype == MGL_DTYPE_I8;
}

// The bits of element i of a row of codes (base/form.h): 8 bits each in order, or blocks of
// MGL_CODE_BLOCK (128) of 4 bits.
MGL_PLAIN_FN uint32_t mgl_plain_code_bits(const mgl_plain_tensor *w, const uint8_t *row,
                                          uint32_t i) {
  if (mgl_plain_has_bytes(w)) {
    return row[i];
  }
  uint16_t word = ((const uint16_t *)(const void *)row)[i / 128 * 32 + i % 32];
  return (uint32_t)word >> (i % 128 / 32 * 4) & 15;
}

MGL_PLAIN_FN float mgl_plain_code(const mgl_plain_tensor *w, const uint8_t *row, uint32_t i) {
  uint32_t group = i / w->group;
  uint32_t bits = mgl_plain_code_bits(w, row, i);
  float value = ((const float *)(const void *)(row + w->scales))[group] * w->code[bits];
  return w->offsets == 0 ? value : value - ((const float *)(const void *)(row + w->offsets))[group];
}

// Elements k to k + 7 of row `row` of a matrix of any form; those behind its end are 0.
MGL_PLAIN_FN void mgl_plain_weights(const mgl_plain_tensor *w, uint64_t row, uint32_t k,
                                    float out[MGL_PLAIN_RUN]) {
  const uint8_t *at = (const uint8_t *)w->data + row * w->row_bytes;
  if (w->code == 0) {
    mgl_plain_load_run(at, w->dtype, k, w->width, out);
    return;
  }
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < MGL_PLAIN_RUN; i++) {
    out[i] = k + i < w->width ? mgl_plain_code(w, at, k + i) : 0.0f;
  }
}

#endif
