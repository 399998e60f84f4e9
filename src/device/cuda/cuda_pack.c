// The scalar twin of weight packing: one element after the other, each at mgl_packed_offset.
//
// Role: the reference for the kernels' own order (whole chunks, packing.h), and the way back in
// tests. Speed does not matter: weights are packed on the device.
#include "device/cuda/cuda_pack.h"

#include <assert.h>
#include <string.h>

uint64_t mgl_cuda_packed_bytes(uint32_t rows, uint32_t k) {
  assert(rows % MGL_CUDA_HALF_ROWS == 0);
  if (k > MGL_PACKED_MAX_K) {
    return UINT64_MAX;
  }
  // At most 2^28 blocks of 2^35 bytes: 2^63. Half of the last block may be unused.
  return ((uint64_t)rows + MGL_CUDA_HALF_ROWS) / MGL_CUDA_BLOCK_ROWS * mgl_packed_block_bytes(k);
}

// The half row block that holds row `row` of the matrix.
static uint64_t row_block(uint32_t row, uint32_t first_block, uint32_t block_stride) {
  return first_block + (uint64_t)(row / MGL_CUDA_HALF_ROWS) * block_stride;
}

void mgl_cuda_pack_rows(const uint16_t *rows, uint32_t row_count, uint32_t k, uint32_t first_block,
                        uint32_t block_stride, uint8_t *packed) {
  assert(k >= 1 && k <= MGL_PACKED_MAX_K);
  uint64_t padded_rows = (uint64_t)mgl_packed_blocks(row_count) * MGL_CUDA_HALF_ROWS;
  uint32_t k_padded = mgl_packed_k(k);
  for (uint64_t row = 0; row < padded_rows; row++) {
    uint64_t block = row_block((uint32_t)row, first_block, block_stride);
    for (uint32_t e = 0; e < k_padded; e++) {
      uint16_t value = row < row_count && e < k ? rows[row * k + e] : 0;
      memcpy(packed + mgl_packed_offset(k, block, (uint32_t)row % MGL_CUDA_HALF_ROWS, e), &value,
             sizeof value);
    }
  }
}

void mgl_cuda_unpack_rows(const uint8_t *packed, uint32_t row_count, uint32_t k,
                          uint32_t first_block, uint32_t block_stride, uint16_t *rows) {
  assert(k >= 1 && k <= MGL_PACKED_MAX_K);
  for (uint32_t row = 0; row < row_count; row++) {
    uint64_t block = row_block(row, first_block, block_stride);
    for (uint32_t e = 0; e < k; e++) {
      memcpy(&rows[(uint64_t)row * k + e],
             packed + mgl_packed_offset(k, block, row % MGL_CUDA_HALF_ROWS, e), sizeof *rows);
    }
  }
}
