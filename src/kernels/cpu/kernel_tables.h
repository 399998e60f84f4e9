// Internal to src/kernels/cpu: the tables of the instruction sets that the compiler could build.
#ifndef MGL_KERNELS_CPU_KERNEL_TABLES_H
#define MGL_KERNELS_CPU_KERNEL_TABLES_H

#include "kernels/cpu/cpu_kernels.h"

typedef struct kernel_level {
  mgl_cpu_kernels kernels;
  uint64_t (*read_stream)(const void *memory, size_t bytes);
} kernel_level;

extern const kernel_level mgl_level_scalar;
#if defined(__x86_64__)
extern const kernel_level mgl_level_avx2;
extern const kernel_level mgl_level_avx512;
extern const kernel_level mgl_level_avx512_bf16;
extern const kernel_level mgl_level_amx_bf16;
#elif defined(__aarch64__)
extern const kernel_level mgl_level_neon;
extern const kernel_level mgl_level_neon_bf16;
#endif

// Attention scratch of one worker: where each array lies, in floats; every array is 64-byte
// aligned. A *pair* is one query token with one query head of the KV head: token * G +
// head_in_group.
typedef struct attention_layout {
  size_t pair_count;     // MGL_ATTENTION_QUERY_TILE * G
  size_t width;          // HD rounded up to 16
  size_t query_columns;  // [HD, pairs]: q with the pair fastest
  size_t weights;        // [pairs, MGL_ATTENTION_SPLIT]: scores, then exp(score - max)
  size_t split_out;      // [pairs, width]: weighted V of the split at hand
  size_t merged_out;     // [pairs, width]: weighted V of the splits so far
  size_t split_max;      // [pairs]
  size_t split_sum;      // [pairs]
  size_t merged_max;     // [pairs]
  size_t merged_sum;     // [pairs]
  size_t total;
} attention_layout;

// The first position that a token at `position` attends to.
static inline size_t mgl_attention_first(const mgl_attention_args *args, size_t position) {
  return args->window != 0 && position >= args->window ? position + 1 - args->window : 0;
}

attention_layout mgl_attention_layout(uint32_t group, uint32_t head_dim);

// What the vector levels take over from the scalar one (kernels_scalar.c).
void mgl_scalar_embed(const mgl_embed_args *args, size_t begin, size_t end);
void mgl_scalar_rope_angles(const mgl_rope_angles_args *args, size_t begin, size_t end);
float mgl_scalar_largest(const float *x, size_t count);
uint64_t mgl_scalar_read_stream(const void *memory, size_t bytes);

#endif
