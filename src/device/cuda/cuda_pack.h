// Packed weights of the GPU backend on the host: sizes, and the scalar twin of the kernels that
// pack (kernels/cuda/weights.cu), with its inverse.
//
// The layout is described at mgl_cuda_op (twin/device_run.h) and defined by
// mgl_packed_offset (twin/packing.h): blocks of 8 rows, each k_padded = k rounded up to 64
// elements of bf16, in the order in which tensor cores want them. Pure functions, any thread.
#ifndef MGL_DEVICE_CUDA_CUDA_PACK_H
#define MGL_DEVICE_CUDA_CUDA_PACK_H

#include <stdint.h>

#include "twin/packing.h"

// Bytes of a packed matrix of `rows` (a multiple of 8) output features with k elements each.
// UINT64_MAX, a size that no allocation gives, where k is above MGL_PACKED_MAX_K.
uint64_t mgl_cuda_packed_bytes(uint32_t rows, uint32_t k);

// Packs rows [row_count, k] (bf16, row-major): row block i becomes block first_block + i *
// block_stride of `packed`. Where row_count is no multiple of 8 the last block's other rows are
// zero, as are elements from k on. gate_up: gate with (0, 2), up with (1, 2); qkv: Q, K and V with
// stride 1, each first_block where the one before ended. k: 1 to MGL_PACKED_MAX_K.
void mgl_cuda_pack_rows(const uint16_t *rows, uint32_t row_count, uint32_t k, uint32_t first_block,
                        uint32_t block_stride, uint8_t *packed);

// The inverse: the row_count rows of k elements that were packed there.
void mgl_cuda_unpack_rows(const uint8_t *packed, uint32_t row_count, uint32_t k,
                          uint32_t first_block, uint32_t block_stride, uint16_t *rows);

#endif
