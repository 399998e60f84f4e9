// Packed weights, for both compilers: where an element lies, how a tensor becomes packed, and how
// dummy values are drawn into that form.
//
// Role: the kernels of weights.cu are these functions, one call per thread; the host's twin
// (device/cuda/cuda_pack.h) uses the same offsets, and the tests run the bodies of the kernels on
// the host, thread by thread. Method: a thread makes whole chunks of 8 elements, 16 bytes, which
// are contiguous in both orders, so that a warp stores 512 bytes and loads 64 of each of 8 rows.
// Rejected: a transpose through shared memory; 64 bytes of a row are whole sectors already.
#ifndef MGL_TWIN_PACKING_H
#define MGL_TWIN_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "twin/device_run.h"

#ifdef __CUDACC__
typedef struct mgl_dummy_stream {  // as in model/dummy_weights.h
  uint64_t start;
  float offset;
  float scale;
} mgl_dummy_stream;
#else
#include <string.h>

#include "model/dummy_weights.h"
#endif

enum {
  MGL_PACKED_CHUNK = 8,           // elements of a row that one lane multiplies, in two k-steps
  MGL_PACKED_GROUP = 32,          // elements of each row of a block that lie together
  MGL_PACKED_GROUP_BYTES = 1024,  // in so many bytes
  MGL_PACKED_MAX_K = 1 << 30,     // elements of a row, at most
  MGL_PACK_THREADS = 256,         // of a block of the packing and drawing kernels; any grid will do
  MGL_PACK_BATCH = 4,             // chunks that a thread loads before it stores the first
  MGL_READ_CONSUMER_WARPS = 8,    // mgl_read_ceiling: warps that fold
  MGL_READ_THREADS = (MGL_READ_CONSUMER_WARPS + 1) * 32,  // of its blocks; the last warp loads
  MGL_READ_PAGES = MGL_CUDA_MAX_PAGES,                    // of its ring, at most
};

_Static_assert(sizeof(mgl_dummy_stream) == 16, "a kernel parameter has the host's layout");
_Static_assert(MGL_CUDA_PAGE_K % MGL_PACKED_GROUP == 0 && MGL_CUDA_K_ALIGN % MGL_PACKED_GROUP == 0,
               "pages and rows are whole groups");
_Static_assert(2 * MGL_CUDA_BLOCK_ROWS * MGL_CUDA_PAGE_K == MGL_CUDA_PAGE_BYTES,
               "a full page of a row block fills an smem page");

// --- positions -----------------------------------------------------------------------------------

// Elements of a padded row. k is at most MGL_PACKED_MAX_K.
MGL_SHARED_FN uint32_t mgl_packed_k(uint32_t k) {
  return (k + (MGL_CUDA_K_ALIGN - 1)) / MGL_CUDA_K_ALIGN * MGL_CUDA_K_ALIGN;
}

// Bytes of a row block: two halves.
MGL_SHARED_FN uint64_t mgl_packed_block_bytes(uint32_t k) {
  return (uint64_t)mgl_packed_k(k) * MGL_CUDA_BLOCK_ROWS * sizeof(uint16_t);
}

// The definition of the packed layout: the byte at which element `element` of row `row` (0 to 7) of
// half row block `half` begins; halves 2 b and 2 b + 1 make up block b. The comment on mgl_cuda_op
// counts by pages; since every page before the last is full and holds whole groups, groups follow
// each other as if there were no pages.
MGL_SHARED_FN uint64_t mgl_packed_offset(uint32_t k, uint64_t half, uint32_t row,
                                         uint32_t element) {
  uint32_t in_chunk = element % MGL_PACKED_CHUNK;  // 4 s + 2 h + i
  uint32_t lane =
      row * (MGL_PACKED_GROUP / MGL_PACKED_CHUNK) + element % MGL_PACKED_GROUP / MGL_PACKED_CHUNK;
  return half / 2 * mgl_packed_block_bytes(k) +
         (uint64_t)(element / MGL_PACKED_GROUP) * MGL_PACKED_GROUP_BYTES +
         in_chunk / 4 * (MGL_PACKED_GROUP_BYTES / 2) + lane * 16 +
         (in_chunk % 4 / 2 * 2 + (uint32_t)(half % 2)) * 4 + in_chunk % 2 * 2;
}

// Chunks of a half row block are numbered so that consecutive threads read 64 bytes of a row each:
// chunk `chunk` has MGL_PACKED_CHUNK elements of this row of the half, from this element on.
MGL_SHARED_FN uint32_t mgl_packed_chunk_row(uint32_t chunk) {
  return chunk % 32 / (MGL_PACKED_GROUP / MGL_PACKED_CHUNK);
}

MGL_SHARED_FN uint32_t mgl_packed_chunk_element(uint32_t chunk) {
  return chunk / 32 * MGL_PACKED_GROUP +
         chunk % (MGL_PACKED_GROUP / MGL_PACKED_CHUNK) * MGL_PACKED_CHUNK;
}

MGL_SHARED_FN uint64_t mgl_packed_chunk_offset(uint32_t k, uint64_t half, uint32_t chunk) {
  return mgl_packed_offset(k, half, mgl_packed_chunk_row(chunk), mgl_packed_chunk_element(chunk));
}

// Half row blocks of so many rows; the last one may be padded.
MGL_SHARED_FN uint32_t mgl_packed_blocks(uint32_t row_count) {
  return row_count / MGL_CUDA_HALF_ROWS + (row_count % MGL_CUDA_HALF_ROWS != 0 ? 1 : 0);
}

// --- chunks --------------------------------------------------------------------------------------

typedef struct mgl_chunk {
  _Alignas(16) uint32_t word[MGL_PACKED_CHUNK / 2];  // the element of lower index in the low half
} mgl_chunk;

// Both at multiples of 16 bytes.
MGL_SHARED_FN mgl_chunk mgl_chunk_load(const void *address) {
#ifdef __CUDACC__
  return *(const mgl_chunk *)address;
#else
  mgl_chunk chunk;
  memcpy(&chunk, address, sizeof chunk);
  return chunk;
#endif
}

MGL_SHARED_FN void mgl_chunk_store(void *address, mgl_chunk chunk) {
#ifdef __CUDACC__
  *(mgl_chunk *)address = chunk;
#else
  memcpy(address, &chunk, sizeof chunk);
#endif
}

// A chunk into packed form: `to` is where its first element lies; its four pairs of elements go to
// the two k-steps, low and high.
MGL_SHARED_FN void mgl_chunk_store_packed(uint8_t *to, mgl_chunk chunk) {
  for (uint32_t i = 0; i < MGL_PACKED_CHUNK / 2; i++) {
    uint8_t *at = to + i / 2 * (MGL_PACKED_GROUP_BYTES / 2) + i % 2 * 8;
#ifdef __CUDACC__
    *(uint32_t *)at = chunk.word[i];
#else
    memcpy(at, &chunk.word[i], sizeof chunk.word[i]);
#endif
  }
}

// An mgl_place says where a thread stands in its launch.
typedef struct mgl_place {
  uint32_t block, block_count;
  uint32_t thread, thread_count;
} mgl_place;

// --- packing -------------------------------------------------------------------------------------

// A chunk of row block `block` of a row-major matrix. `aligned`: rows begin at multiples of 16
// bytes.
MGL_SHARED_FN mgl_chunk mgl_pack_chunk(const uint16_t *rows, uint32_t row_count, uint32_t k,
                                       uint32_t block, uint32_t index, bool aligned) {
  mgl_chunk chunk = {{0, 0, 0, 0}};
  uint32_t row = block * MGL_CUDA_HALF_ROWS + mgl_packed_chunk_row(index);
  uint32_t element = mgl_packed_chunk_element(index);
  if (row >= row_count || element >= k) {
    return chunk;
  }
  const uint16_t *from = rows + (uint64_t)row * k + element;
  if (aligned) {
    return mgl_chunk_load(from);
  }
  for (uint32_t i = 0; i < MGL_PACKED_CHUNK; i++) {
    uint32_t bits = element + i < k ? from[i] : 0;
    chunk.word[i / 2] |= bits << (i % 2 * 16);
  }
  return chunk;
}

// A thread's share of packing row_count rows of k elements, at any alignment: half row block i
// becomes half first_block + i * block_stride. Blocks of threads take row blocks in turn.
MGL_SHARED_FN void mgl_pack_share(mgl_place at, const uint16_t *rows, uint32_t row_count,
                                  uint32_t k, uint32_t first_block, uint32_t block_stride,
                                  uint8_t *packed) {
  bool aligned = (uintptr_t)rows % sizeof(mgl_chunk) == 0 && k % MGL_PACKED_CHUNK == 0;
  uint32_t chunk_count = mgl_packed_k(k);  // of a row block: 8 rows of k_padded / 8
  uint32_t block_count = mgl_packed_blocks(row_count);
  for (uint32_t block = at.block; block < block_count; block += at.block_count) {
    uint64_t half = first_block + (uint64_t)block * block_stride;
    for (uint32_t first = at.thread; first < chunk_count;
         first += at.thread_count * MGL_PACK_BATCH) {
      mgl_chunk batch[MGL_PACK_BATCH];
      for (uint32_t i = 0; i < MGL_PACK_BATCH; i++) {
        uint32_t index = first + i * at.thread_count;
        if (index < chunk_count) {
          batch[i] = mgl_pack_chunk(rows, row_count, k, block, index, aligned);
        }
      }
      for (uint32_t i = 0; i < MGL_PACK_BATCH; i++) {
        uint32_t index = first + i * at.thread_count;
        if (index < chunk_count) {
          mgl_chunk_store_packed(packed + mgl_packed_chunk_offset(k, half, index), batch[i]);
        }
      }
    }
  }
}

// --- dummy weights -------------------------------------------------------------------------------

// Element `index` of the stream, rounded to bf16: the formula of model/dummy_weights.h.
MGL_SHARED_FN uint32_t mgl_dummy_bf16(mgl_dummy_stream stream, uint64_t index) {
  uint64_t x = stream.start + (index + 1) * UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  x ^= x >> 31;
  float unit = (float)(int32_t)(x >> 40) * 0x1p-23f - 1.0f;  // 24 bits: exact
  float value = stream.offset + stream.scale * unit;         // two roundings: never fused
#ifdef __CUDACC__
  uint32_t bits = __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
#endif
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;  // no NaN can occur
}

// Elements index to index + 7, of which the first `count` are drawn and the others are zero.
MGL_SHARED_FN mgl_chunk mgl_dummy_chunk(mgl_dummy_stream stream, uint64_t index, uint32_t count) {
  mgl_chunk chunk = {{0, 0, 0, 0}};
  for (uint32_t i = 0; i < MGL_PACKED_CHUNK; i++) {
    uint32_t bits = i < count ? mgl_dummy_bf16(stream, index + i) : 0;
    chunk.word[i / 2] |= bits << (i % 2 * 16);
  }
  return chunk;
}

// Packs a share as mgl_pack_share does, of the matrix whose element (row, e) is number row * k + e
// of the stream.
MGL_SHARED_FN void mgl_dummy_packed_share(mgl_place at, mgl_dummy_stream stream, uint32_t row_count,
                                          uint32_t k, uint32_t first_block, uint32_t block_stride,
                                          uint8_t *packed) {
  uint32_t chunk_count = mgl_packed_k(k);
  uint32_t block_count = mgl_packed_blocks(row_count);
  for (uint32_t block = at.block; block < block_count; block += at.block_count) {
    uint64_t half = first_block + (uint64_t)block * block_stride;
    for (uint32_t index = at.thread; index < chunk_count; index += at.thread_count) {
      uint32_t row = block * MGL_CUDA_HALF_ROWS + mgl_packed_chunk_row(index);
      uint32_t element = mgl_packed_chunk_element(index);
      uint32_t count = row < row_count && element < k ? k - element : 0;
      mgl_chunk_store_packed(packed + mgl_packed_chunk_offset(k, half, index),
                             mgl_dummy_chunk(stream, (uint64_t)row * k + element, count));
    }
  }
}

// Elements 0 to count - 1 of the stream, one after the other; `out` at a multiple of 16 bytes.
MGL_SHARED_FN void mgl_dummy_rows_share(mgl_place at, mgl_dummy_stream stream, uint64_t count,
                                        uint16_t *out) {
  uint64_t step = (uint64_t)at.block_count * at.thread_count * MGL_PACKED_CHUNK;
  uint64_t first = ((uint64_t)at.block * at.thread_count + at.thread) * MGL_PACKED_CHUNK;
  for (uint64_t index = first; index < count; index += step) {
    if (count - index >= MGL_PACKED_CHUNK) {
      mgl_chunk_store(out + index, mgl_dummy_chunk(stream, index, MGL_PACKED_CHUNK));
    } else {
      for (uint64_t i = index; i < count; i++) {
        out[i] = (uint16_t)mgl_dummy_bf16(stream, i);
      }
    }
  }
}

#endif
