// Packed weights, for both compilers: where an element lies, how a tensor becomes packed, and how
// dummy values are drawn into that form.
//
// Role: the kernels of weights.cu are these functions, one call per thread; the host's twin
// (device/cuda/cuda_pack.h) uses the same offsets, and the tests run the bodies of the kernels on
// the host, thread by thread. Method: a thread makes whole chunks of 8 elements, 16 bytes, which
// are contiguous in both orders, so that a warp stores 512 bytes and loads 64 of each of 8 rows.
// Rejected: a transpose through shared memory; 64 bytes of a row are whole sectors already.
//
// Weights of codes (base/form.h) are packed in panels, at the end of this file.
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

// --- panels --------------------------------------------------------------------------------------

// A packing says how a matrix lies in device memory: as bf16 (above), or as one of the codes.
typedef enum mgl_packing {
  MGL_PACKING_BF16,
  MGL_PACKING_E4M3,
  MGL_PACKING_I8,
  MGL_PACKING_I4,
  MGL_PACKING_Z4,   // codes of I4 with a zero point for each group
  MGL_PACKING_MX4,  // E2M1, of experts alone
  MGL_PACKING_COUNT,
} mgl_packing;
#define MGL_PACKING_NAMES "bf16", "e4m3", "i8", "i4", "z4", "mx4"

// A row block of codes is panels, one after the other: each has 1024 elements of the 16 rows, the
// last one filled up with codes of scale 0. A panel is its codes in the order in which tensor cores
// want the elements, 64 columns after 64 columns, and then its scales, f32: of the first group of
// each row in the order of mgl_panel_scale_offset, of the second group, and so on. A group that is
// longer than a panel has a scale in each. With zero points these stand behind each group's scales
// in the same order: bf16 twice, what is added to 128 + the code (mgl_panel_zero). (What fills a
// row up has no value then; x is 0 there.)
//
// In 64 columns, lane 4 g + t of a warp has the elements 32 j + 8 t + 4 s + 2 h + i of rows g + 8 u
// (j, s, h, i, u: 0 or 1). Codes of 8 bits: byte 2 i + h of the lane's 32-bit word 2 s + u of the
// 16 bytes at 512 j + 16 lane. Codes of 4 bits: word 2 j + s of the 16 bytes at 16 lane, bits 4 u
// of byte 2 i + h. Of E2M1 the four codes of a row are neighbours, since they choose bytes of a
// table (mgl_e2m1_four): bits 16 u + 4 (2 i + h) of that word; and there is no code of -0.
//
// Of E2M1 scales are of 32 elements, bf16, and stand behind the codes of each 64 columns. So a row
// block is bytes in the order of its columns, of which the loader takes any whole 64 by one copy.
enum {
  MGL_PANEL_K = 1024,
  MGL_PANEL_COLUMNS = 64,
  MGL_PANEL_SCALE_BYTES = 64,  // of a group's rows; of its zero points too
  MGL_PANEL_LEAST_GROUP = 32,
  MGL_MX4_GROUP = 32,
  MGL_MX4_MOST_SLOTS = 8,     // of a token: with more there is no room for x in scratch
  MGL_MX4_CODES_BYTES = 512,  // of 64 columns
  MGL_MX4_SCALE_BYTES = 32,   // of a group's rows
  MGL_MX4_BYTES = MGL_MX4_CODES_BYTES + 2 * MGL_MX4_SCALE_BYTES,
};

// An op's flags have its packing, and the logarithm of the elements that share a scale in a panel.
enum { MGL_PACKING_SHIFT = 8, MGL_GROUP_SHIFT_SHIFT = 12, MGL_PACKING_MASK = 15 };

MGL_SHARED_FN uint32_t mgl_op_packing(const mgl_cuda_op *op) {
  return op->flags >> MGL_PACKING_SHIFT & MGL_PACKING_MASK;
}

MGL_SHARED_FN uint32_t mgl_op_group_shift(const mgl_cuda_op *op) {
  return op->flags >> MGL_GROUP_SHIFT_SHIFT & MGL_PACKING_MASK;
}

MGL_SHARED_FN uint32_t mgl_packing_flags(mgl_packing packing, uint32_t group_shift) {
  return (uint32_t)packing << MGL_PACKING_SHIFT | group_shift << MGL_GROUP_SHIFT_SHIFT;
}

// Bits of a code.
MGL_SHARED_FN uint32_t mgl_packing_bits(mgl_packing packing) {
  return packing == MGL_PACKING_BF16 ? 16 : packing >= MGL_PACKING_I4 ? 4 : 8;
}

// Panels that one smem page has of a task's stream.
MGL_SHARED_FN uint32_t mgl_packing_panels(mgl_packing packing) {
  return packing >= MGL_PACKING_I4 ? 2 : 1;
}

MGL_SHARED_FN uint32_t mgl_panels_of(uint32_t k) {
  return (k + (MGL_PANEL_K - 1)) / MGL_PANEL_K;
}

// Of E2M1, bytes of the first k elements of a row block, a multiple of 64.
MGL_SHARED_FN uint32_t mgl_mx4_bytes(uint32_t k) {
  return k / MGL_PANEL_COLUMNS * MGL_MX4_BYTES;
}

MGL_SHARED_FN uint32_t mgl_panel_codes_bytes(mgl_packing packing) {
  return MGL_CUDA_BLOCK_ROWS * MGL_PANEL_K / 8 * mgl_packing_bits(packing);
}

// Bytes of a group's scales, and zero points if there are any.
MGL_SHARED_FN uint32_t mgl_panel_group_bytes(mgl_packing packing) {
  return packing == MGL_PACKING_Z4    ? 2 * MGL_PANEL_SCALE_BYTES
         : packing == MGL_PACKING_MX4 ? MGL_MX4_SCALE_BYTES
                                      : MGL_PANEL_SCALE_BYTES;
}

// group: elements of a row that share a scale, a power of two; MGL_PANEL_K where they are more.
MGL_SHARED_FN uint32_t mgl_panel_bytes(mgl_packing packing, uint32_t group) {
  return mgl_panel_codes_bytes(packing) + MGL_PANEL_K / group * mgl_panel_group_bytes(packing);
}

MGL_SHARED_FN uint32_t mgl_op_panel_bytes(const mgl_cuda_op *op) {
  return mgl_panel_bytes((mgl_packing)mgl_op_packing(op), 1u << mgl_op_group_shift(op));
}

// Where in a panel the scale of a row (0 to 15) and of a group of the panel lies. Rows g and g + 8
// are neighbours, as lanes read them.
MGL_SHARED_FN uint32_t mgl_panel_scale_offset(mgl_packing packing, uint32_t group_idx,
                                              uint32_t row) {
  if (packing == MGL_PACKING_MX4) {
    return group_idx / 2 * MGL_MX4_BYTES + MGL_MX4_CODES_BYTES +
           group_idx % 2 * MGL_MX4_SCALE_BYTES + row % 8 * 4 + row / 8 * 2;
  }
  return mgl_panel_codes_bytes(packing) + group_idx * mgl_panel_group_bytes(packing) + row % 8 * 8 +
         row / 8 * 4;
}

// A matrix of codes in its rows (base/form.h): what the packing of a range of rows reads.
typedef struct mgl_code_rows {
  const uint8_t *rows;  // of row_bytes each: codes, then scales
  uint32_t row_count, row_bytes;
  uint32_t scales;   // bytes from a row's begin to its scales
  uint32_t offsets;  // and to its offsets; 0: there are none
  uint32_t k;
  uint32_t group;  // elements of a scale; MGL_PANEL_K or less, or k and more: one scale
} mgl_code_rows;

// A row's code of an element; one of value 0 where there is none.
MGL_SHARED_FN uint32_t mgl_code_of(mgl_packing packing, const mgl_code_rows *m, uint32_t row,
                                   uint32_t element) {
  if (row >= m->row_count || element >= m->k) {
    return mgl_packing_bits(packing) == 4 && packing != MGL_PACKING_MX4 ? 8 : 0;
  }
  const uint8_t *from = m->rows + (uint64_t)row * m->row_bytes;
  if (mgl_packing_bits(packing) != 4) {
    return from[element];
  }
  uint32_t place = element % 128 / 32;  // base/form.h
  uint32_t byte = from[element / 128 * 64 + element % 32 * 2 + place / 2];
  const uint32_t code = byte >> 4 * (place % 2) & 15;
  return packing == MGL_PACKING_MX4 && code == 8 ? 0 : code;
}

// 32-bit word `index` of the codes of panel `panel` of the row block that begins with these rows.
// Row halves: row g of half u is rows[u] + g.
MGL_SHARED_FN uint32_t mgl_panel_word(mgl_packing packing, const mgl_code_rows *m,
                                      const uint32_t rows[2], uint32_t panel, uint32_t index) {
  const uint32_t words = mgl_packing_bits(packing) * 32;  // of 64 columns
  const uint32_t in_columns = index % words;
  const uint32_t lane = in_columns / 4 % 32, word = in_columns % 4;
  const uint32_t g = lane / 4, t = lane % 4;
  const uint32_t first = panel * MGL_PANEL_K + index / words * MGL_PANEL_COLUMNS + 8 * t;
  uint32_t out = 0;
  if (mgl_packing_bits(packing) == 4) {
    for (uint32_t i = 0; i < 8; i++) {  // 2 h + u in the two low bits, i above
      uint32_t element = first + word / 2 * 32 + word % 2 * 4 + i / 2 % 2 * 2 + i / 4;
      uint32_t code = mgl_code_of(packing, m, rows[i % 2] + g, element);
      out |= packing == MGL_PACKING_MX4 ? code << (i % 2 * 16 + (i / 4 * 2 + i / 2 % 2) * 4)
                                        : code << (i % 4 * 4 + i / 4 * 16);
    }
    return out;
  }
  for (uint32_t i = 0; i < 4; i++) {  // 2 i + h
    uint32_t element = first + in_columns / 128 * 32 + word / 2 * 4 + i % 2 * 2 + i / 2;
    out |= mgl_code_of(packing, m, rows[word % 2] + g, element) << 8 * i;
  }
  return out;
}

// Where in a panel that word lies.
MGL_SHARED_FN uint32_t mgl_panel_word_offset(mgl_packing packing, uint32_t index) {
  const uint32_t words = MGL_MX4_CODES_BYTES / 4;
  return packing == MGL_PACKING_MX4 ? index / words * MGL_MX4_BYTES + index % words * 4 : index * 4;
}

// The bits of word `index` of codes that are of rows of half u.
MGL_SHARED_FN uint32_t mgl_panel_half_mask(mgl_packing packing, uint32_t u, uint32_t index) {
  if (packing == MGL_PACKING_MX4) {
    return u == 0 ? 0xffffu : 0xffff0000u;
  }
  if (mgl_packing_bits(packing) == 4) {
    return u == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u;
  }
  return index % 2 == u ? UINT32_MAX : 0;
}

// Writes those bits of a word that are in the mask.
MGL_SHARED_FN void mgl_panel_put(uint8_t *to, uint32_t bits, uint32_t mask) {
#ifdef __CUDACC__
  *(uint32_t *)to = (*(uint32_t *)to & ~mask) | (bits & mask);
#else
  uint32_t word;
  memcpy(&word, to, sizeof word);
  word = (word & ~mask) | (bits & mask);
  memcpy(to, &word, sizeof word);
#endif
}

// The float of a row of the matrix for the group that has an element, of those from `at` bytes
// behind the row's begin on, as bits; 0 where there is none.
MGL_SHARED_FN uint32_t mgl_panel_float(const mgl_code_rows *m, uint32_t at, uint32_t row,
                                       uint32_t element) {
  if (row >= m->row_count || element >= m->k) {
    return 0;
  }
  const uint8_t *from =
      m->rows + (uint64_t)row * m->row_bytes + at + element / m->group * sizeof(float);
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 4; i++) {  // rows have any length
    bits |= (uint32_t)from[i] << 8 * i;
  }
  return bits;
}

// An offset's zero point: how many scales it is, if it is a whole number of them and not too large
// for bf16; else MGL_NO_ZERO.
enum { MGL_NO_ZERO = -1000, MGL_MOST_ZERO = 100 };

MGL_SHARED_FN int32_t mgl_zero_of(float scale, float offset) {
  if (offset == 0) {
    return 0;
  }
  const float ratio = offset / scale;
  if (!(ratio >= -MGL_MOST_ZERO && ratio <= MGL_MOST_ZERO)) {
    return MGL_NO_ZERO;
  }
  const int32_t zero = (int32_t)(ratio < 0 ? ratio - 0.5f : ratio + 0.5f);
  return scale * (float)zero == offset ? zero : MGL_NO_ZERO;
}

// The zero point of a row in a panel's group, as the device adds it.
MGL_SHARED_FN uint32_t mgl_panel_zero(const mgl_code_rows *m, uint32_t row, uint32_t element) {
  const uint32_t bits[2] = {mgl_panel_float(m, m->scales, row, element),
                            mgl_panel_float(m, m->offsets, row, element)};
#ifdef __CUDACC__
  const float scale = __uint_as_float(bits[0]), offset = __uint_as_float(bits[1]);
#else
  float scale, offset;
  memcpy(&scale, &bits[0], sizeof scale);
  memcpy(&offset, &bits[1], sizeof offset);
#endif
  const float added = -136.0f - (float)mgl_zero_of(scale, offset);
#ifdef __CUDACC__
  const uint32_t pattern = __float_as_uint(added);
#else
  uint32_t pattern;
  memcpy(&pattern, &added, sizeof pattern);
#endif
  return pattern >> 16 | (pattern & 0xffff0000u);  // whole numbers below 256 are exact
}

// A thread's share of packing codes: half row blocks as in mgl_pack_share, but only those halves
// that are half `u` of their row block, since both have bits of the same words. So what is packed
// takes two launches, one after the other; gate and up, of which each has one of the halves, leave
// the other's bits as they are.
MGL_SHARED_FN void mgl_pack_codes_share(mgl_place at, mgl_packing packing, mgl_code_rows m,
                                        uint32_t u, uint32_t first_half, uint32_t half_stride,
                                        uint8_t *packed) {
  const uint32_t group = m.group < MGL_PANEL_K ? m.group : (uint32_t)MGL_PANEL_K;
  const uint32_t panel_bytes = mgl_panel_bytes(packing, group);
  const uint32_t panels = mgl_panels_of(m.k);
  const uint32_t words = mgl_panel_codes_bytes(packing) / 4;
  const uint32_t scales = MGL_PANEL_K / group * MGL_CUDA_HALF_ROWS;  // of a half
  const uint32_t halves = mgl_packed_blocks(m.row_count);
  for (uint64_t i = at.block; i < (uint64_t)halves * panels; i += at.block_count) {
    const uint32_t half_idx = (uint32_t)(i / panels), panel = (uint32_t)(i % panels);
    const uint64_t half = first_half + (uint64_t)half_idx * half_stride;
    if (half % 2 != u) {
      continue;
    }
    uint8_t *to = packed + (half / 2 * panels + panel) * panel_bytes;
    uint32_t rows[2] = {UINT32_MAX - 8, UINT32_MAX - 8};  // no rows
    rows[u] = half_idx * MGL_CUDA_HALF_ROWS;
    for (uint32_t j = at.thread; j < words; j += at.thread_count) {
      mgl_panel_put(to + mgl_panel_word_offset(packing, j),
                    mgl_panel_word(packing, &m, rows, panel, j),
                    mgl_panel_half_mask(packing, u, j));
    }
    for (uint32_t j = at.thread; j < scales; j += at.thread_count) {
      uint32_t row = j % MGL_CUDA_HALF_ROWS, idx = j / MGL_CUDA_HALF_ROWS;
      uint32_t element = panel * MGL_PANEL_K + idx * group;
      const uint32_t place = mgl_panel_scale_offset(packing, idx, row + u * MGL_CUDA_HALF_ROWS);
      const uint32_t scale = mgl_panel_float(&m, m.scales, rows[u] + row, element);
      if (packing == MGL_PACKING_MX4) {
        mgl_panel_put(to + place - 2 * u, scale >> 16 << 16 * u, 0xffffu << 16 * u);
        continue;
      }
      mgl_panel_put(to + place, scale, UINT32_MAX);
      if (packing == MGL_PACKING_Z4) {
        mgl_panel_put(to + place + MGL_PANEL_SCALE_BYTES,
                      mgl_panel_zero(&m, rows[u] + row, element), UINT32_MAX);
      }
    }
  }
}

// A panel of a row that is the rows of several matrices one behind the other (down of a token's
// experts) is put together from parts of theirs: so many columns, whose codes and scales, with zero
// points if there are any, lie at `from` in the matrix's row block and go to `to` in the panel.
// Groups do not go over the end of a matrix's row.
typedef struct mgl_panel_part {
  uint32_t columns;
  uint32_t codes_from, codes_to, codes_bytes;
  uint32_t scales_from, scales_to, scales_bytes;
} mgl_panel_part;

// The part that begins with column `column` of a matrix of k columns, where the panel has `done`
// columns already.
MGL_SHARED_FN mgl_panel_part mgl_panel_part_of(mgl_packing packing, uint32_t panel_bytes,
                                               uint32_t done, uint32_t column, uint32_t k) {
  const uint32_t codes = mgl_panel_codes_bytes(packing), scales = panel_bytes - codes;
  const uint32_t in_panel = column % MGL_PANEL_K, before = column / MGL_PANEL_K * panel_bytes;
  uint32_t count = MGL_PANEL_K - (done > in_panel ? done : in_panel);
  count = count < k - column ? count : k - column;
  mgl_panel_part part;
  part.columns = count;
  if (packing == MGL_PACKING_MX4) {  // scales are among codes
    part.codes_from = column / MGL_PANEL_COLUMNS * MGL_MX4_BYTES;
    part.codes_to = done / MGL_PANEL_COLUMNS * MGL_MX4_BYTES;
    part.codes_bytes = count / MGL_PANEL_COLUMNS * MGL_MX4_BYTES;
    part.scales_from = part.scales_to = part.scales_bytes = 0;
    return part;
  }
  part.codes_from = before + in_panel * (codes / MGL_PANEL_K);
  part.codes_to = done * (codes / MGL_PANEL_K);
  part.codes_bytes = count * (codes / MGL_PANEL_K);
  part.scales_from = before + codes + in_panel * scales / MGL_PANEL_K;
  part.scales_to = codes + done * scales / MGL_PANEL_K;
  part.scales_bytes = count * scales / MGL_PANEL_K;
  return part;
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

// Packs a share as mgl_pack_share does, of the matrix whose element (row, e) is number
// first + row * stride + e of the stream.
MGL_SHARED_FN void mgl_dummy_packed_share(mgl_place at, mgl_dummy_stream stream, uint64_t first,
                                          uint64_t stride, uint32_t row_count, uint32_t k,
                                          uint32_t first_block, uint32_t block_stride,
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
                             mgl_dummy_chunk(stream, first + row * stride + element, count));
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
