// The order in which a linear task's weight pages are streamed: loader and consumers walk it alike.
//
//   for each pass over the weights (tokens beyond 8 * row_tiles need another)
//     for each batch of row blocks (as many as the partial sums have room for)
//       for each group of pages along k (as many as the activations' registers hold)
//         for each row block of the batch, for each page of the group along k: one page
//
// Ops of one token (mgl_of_one) take row block after row block, a group being all its
// pages. The order of pages does not change a bit: each sum takes its pages by ascending k.
//
// A page of codes has one panel, or two (twin/packing.h): for ops of one token those that follow
// each other in their row block, else those of two row blocks of a batch. A group is one panel.
#ifndef MGL_KERNELS_CUDA_COMMON_PAGE_STREAM_CUH
#define MGL_KERNELS_CUDA_COMMON_PAGE_STREAM_CUH

#include "kernels/cuda/common/target.h"
#include "twin/device_run.h"
#include "twin/packing.h"
#include "twin/page_ring.h"
#include "twin/variant.h"

#ifndef MGL_PACKINGS
#define MGL_PACKINGS 1  // bit 1 << mgl_packing for each that the model has
#endif
#ifndef MGL_PAGE_BYTES
#define MGL_PAGE_BYTES MGL_CUDA_PAGE_BYTES  // from an smem page to the next; codes have scales
#endif

#ifndef MGL_K_NORMED
#define MGL_K_NORMED 0  // k of the model's linears of bf16 (mgl_cuda_extras); 0: not known
#endif
#ifndef MGL_K_CODED_NORMED
#define MGL_K_CODED_NORMED 0  // of all those of codes that have a norm
#endif
#ifndef MGL_K_CODED_ADDED_1
#define MGL_K_CODED_ADDED_1 0
#endif
#ifndef MGL_K_CODED_ADDED_2
#define MGL_K_CODED_ADDED_2 0
#endif
#ifndef MGL_K_ADDED_1
#define MGL_K_ADDED_1 0
#endif
#ifndef MGL_K_ADDED_2
#define MGL_K_ADDED_2 0
#endif

enum { MGL_HAS_CODES = MGL_PACKINGS > 1, MGL_HAS_MX4 = MGL_PACKINGS >> MGL_PACKING_MX4 & 1 };

// Row blocks of a batch, for a number of row tiles, but for the bodies of 2 to 16 tokens.
static __device__ constexpr uint32_t mgl_batch_blocks(uint32_t row_tiles) {
  return row_tiles == 4 ? 2 : 4;
}

enum {
  MGL_GROUP_PAGES = 2,  // pages along k of a group, but for ops of one token
  MGL_ALL_PAGES = 0,    // of those with codes: a row block after the other
};

// Of any op in the megakernel, with so many pages behind the ring.
MGL_DEVICE uint32_t mgl_op_batch_blocks(const mgl_cuda_op *op, uint32_t pages) {
  return mgl_op_kind_is_linear(op->kind) && mgl_by_rows(op, MGL_TARGET_CAPABILITY, MGL_HAS_CODES)
             ? mgl_rows_batch_blocks(op->row_tiles, pages, MGL_PAGE_BYTES)
             : mgl_batch_blocks(op->row_tiles);
}

// Columns of the output that a row block makes.
MGL_DEVICE uint32_t mgl_block_columns(uint32_t kind) {
  return kind == MGL_OP_GATE_UP ? MGL_CUDA_HALF_ROWS : MGL_CUDA_BLOCK_ROWS;
}

// Bytes of page `page` along k.
MGL_DEVICE uint32_t mgl_page_bytes(uint32_t k_padded, uint32_t page) {
  uint32_t left = k_padded - page * MGL_CUDA_PAGE_K;
  return (left < MGL_CUDA_PAGE_K ? left : MGL_CUDA_PAGE_K) * (MGL_CUDA_BLOCK_ROWS * 2);
}

MGL_DEVICE uint32_t mgl_pages_of_block(uint32_t k_padded) {
  return (k_padded + MGL_CUDA_PAGE_K - 1) / MGL_CUDA_PAGE_K;
}

// Bytes of a row block.
MGL_DEVICE uint64_t mgl_block_bytes(uint32_t k_padded) {
  return (uint64_t)k_padded * (MGL_CUDA_BLOCK_ROWS * 2);
}

// Pages of a row block of codes, for ops of one token.
MGL_DEVICE uint32_t mgl_coded_pages(uint32_t packing, uint32_t k_padded) {
  uint32_t panels = mgl_packing_panels((mgl_packing)packing);
  return (mgl_panels_of(k_padded) + panels - 1) / panels;
}

// Pages of a group along k.
MGL_DEVICE uint32_t mgl_group_pages(const mgl_cuda_op *op) {
  if (mgl_of_one(op) || mgl_of_cut_one(op)) {
    bool codes = MGL_HAS_CODES && mgl_op_packing(op) != MGL_PACKING_BF16;
    return codes ? (uint32_t)MGL_ALL_PAGES : mgl_pages_of_block(op->k_padded);
  }
  return MGL_GROUP_PAGES;
}

// True for ops whose weights come through pages.
MGL_DEVICE bool mgl_is_paged(uint32_t kind) {
  return mgl_op_kind_is_linear(kind) || kind == MGL_CUDA_OP_STREAMED;
}

#endif
