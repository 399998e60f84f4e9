// Chooses the kernel table of a SIMD level, and lays out the attention scratch.
//
// Each level is one translation unit with its own compiler flags; a build for another architecture
// has the scalar table only.
#include "kernels/cpu/cpu_kernels.h"

#include <assert.h>

#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/whole.h"

enum {
  PACK_LEAST_FEATURES = 64,  // docs/log/101
  PADDED_ELEMENTS = 32,      // of K, by any table
};

static const kernel_level *const levels[MGL_SIMD_COUNT] = {
    [MGL_SIMD_SCALAR] = &mgl_level_scalar,
#if defined(__x86_64__)
    [MGL_SIMD_AVX2] = &mgl_level_avx2,
    [MGL_SIMD_AVX512] = &mgl_level_avx512,
    [MGL_SIMD_AVX512_BF16] = &mgl_level_avx512_bf16,
    [MGL_SIMD_AMX_BF16] = &mgl_level_amx_bf16,
#elif defined(__aarch64__)
    [MGL_SIMD_NEON] = &mgl_level_neon,
    [MGL_SIMD_NEON_BF16] = &mgl_level_neon_bf16,
#endif
};

const mgl_cpu_kernels *mgl_cpu_kernels_for(mgl_simd simd) {
  assert(simd < MGL_SIMD_COUNT && levels[simd] != NULL);
  return &levels[simd]->kernels;
}

uint64_t mgl_cpu_read_stream(mgl_simd simd, const void *memory, size_t bytes) {
  assert(simd < MGL_SIMD_COUNT && levels[simd] != NULL);
  return levels[simd]->read_stream(memory, bytes);
}

// Split operands are f32.
size_t mgl_packed_bytes(uint32_t token_count, uint32_t k, mgl_dtype dtype) {
  assert(dtype == MGL_DTYPE_BF16 || dtype == MGL_DTYPE_F32);
  (void)dtype;
  size_t padded = ((size_t)k + PADDED_ELEMENTS - 1) / PADDED_ELEMENTS * PADDED_ELEMENTS;
  return padded * sizeof(float) * token_count;
}

size_t mgl_whole_bytes(uint32_t token_count, uint32_t k) {
  return token_count * mgl_whole_layout_of(k).bytes;
}

bool mgl_linear_packs(const mgl_linear_way *way, uint32_t token_count, size_t features) {
  return token_count >= way->pack_tokens && features >= PACK_LEAST_FEATURES;
}

static size_t take(size_t *total, size_t count) {
  size_t offset = *total;
  *total += (count + 15) / 16 * 16;
  return offset;
}

attention_layout mgl_attention_layout(uint32_t group, uint32_t head_dim) {
  attention_layout layout = {
      .pair_count = (size_t)MGL_ATTENTION_QUERY_TILE * group,
      .width = ((size_t)head_dim + 15) / 16 * 16,
  };
  layout.query_columns = take(&layout.total, layout.pair_count * head_dim);
  layout.weights = take(&layout.total, layout.pair_count * MGL_ATTENTION_SPLIT);
  layout.split_out = take(&layout.total, layout.pair_count * layout.width);
  layout.merged_out = take(&layout.total, layout.pair_count * layout.width);
  layout.split_max = take(&layout.total, layout.pair_count);
  layout.split_sum = take(&layout.total, layout.pair_count);
  layout.merged_max = take(&layout.total, layout.pair_count);
  layout.merged_sum = take(&layout.total, layout.pair_count);
  return layout;
}

size_t mgl_attention_scratch_bytes(uint32_t head_count, uint32_t kv_head_count, uint32_t head_dim) {
  return mgl_attention_layout(head_count / kv_head_count, head_dim).total * sizeof(float);
}
