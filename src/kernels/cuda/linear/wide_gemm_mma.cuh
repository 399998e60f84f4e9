// The main loop of the wide class's linears with what compute capability 8.0 has: mma.sync, and
// stages of 32 elements along k that all threads copy by cp.async, each the same pieces of every
// stage. The tile, its order of k and what a thread has of the sums in the end are those of
// wide_gemm.cuh, so that both share what becomes of them (wide_linear.cuh).
//
// While it multiplies, a warp has two row blocks and half of the tokens: with one row block and all
// tokens, as the sums are handed on, operands from shared memory would bound the products. Behind
// the last stage two neighbouring warps exchange a half each.
#ifndef MGL_KERNELS_CUDA_LINEAR_WIDE_GEMM_MMA_CUH
#define MGL_KERNELS_CUDA_LINEAR_WIDE_GEMM_MMA_CUH

#include "kernels/cuda/linear/wide_gemm.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"
#include "kernels/cuda/small/wide_rows.cuh"

#if !MGL_TARGET_WGMMA

enum {
  MGL_MMA_ROW_BYTES = MGL_WIDE_MMA_K * 2,  // of a token in a stage
  MGL_MMA_ROW_CHUNKS = MGL_MMA_ROW_BYTES / 16,
  MGL_MMA_BLOCK_BYTES = MGL_CUDA_BLOCK_ROWS * MGL_WIDE_MMA_K * 2,  // of a row block
  MGL_MMA_BLOCK_THREADS = MGL_MMA_BLOCK_BYTES / 16,                // that copy one at once
  MGL_MMA_BLOCKS = MGL_WIDE_CONSUMERS / MGL_MMA_BLOCK_THREADS,     // at once
  MGL_MMA_TOKENS = MGL_WIDE_CONSUMERS / MGL_MMA_ROW_CHUNKS,        // that are copied at once
  MGL_MMA_AHEAD = MGL_WIDE_MMA_STAGES - 1,  // stages asked for before they are multiplied
  MGL_MMA_HALF = MGL_WIDE_SUMS / 2,         // sums of a row block while they are made
};

static_assert(2 * MGL_MMA_BLOCKS == MGL_WIDE_FEATURE_BLOCKS, "a thread copies of two row blocks");
static_assert(MGL_WIDE_K == 2 * MGL_WIDE_MMA_K, "a stage is half a column of x");
static_assert(MGL_WIDE_CONSUMERS * MGL_MMA_HALF * 4 <= MGL_WIDE_MMA_RING_BYTES, "the exchange");

// --- copies --------------------------------------------------------------------------------------

// This thread's share of a tile's stages. x: in its column, half a row's chunks lie where bit 2 of
// their places is 0 (of the row's number: 1), so that the other half is one exclusive or away.
MGL_DEVICE void mgl_wide_set_source(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                    const mgl_wide_tile *tile) {
  const mgl_cuda_op *op = &slot->op;
  const uint32_t thread = w->warp * 32 + w->lane;
  const uint32_t block = thread / MGL_MMA_BLOCK_THREADS;
  const uint32_t token = thread / MGL_MMA_ROW_CHUNKS, chunk = thread % MGL_MMA_ROW_CHUNKS;
  const uint32_t block_bytes = op->k_padded * (MGL_CUDA_BLOCK_ROWS * 2);
  mgl_mma_source *source = &w->source;
  source->weights = op->weights + (uint64_t)(tile->first_block + block) * block_bytes +
                    tile->first_stage * (2 * MGL_MMA_BLOCK_BYTES) +
                    thread % MGL_MMA_BLOCK_THREADS * 16;
  source->weights_more = MGL_MMA_BLOCKS * block_bytes;
  source->blocks = (block < tile->blocks ? 1 : 0) + (block + MGL_MMA_BLOCKS < tile->blocks ? 1 : 0);
  source->x_column = op->tokens * MGL_WIDE_ROW_BYTES;
  source->x = (const uint8_t *)op->x + (uint64_t)tile->first_stage * source->x_column +
              (tile->token + token) * MGL_WIDE_ROW_BYTES + (chunk ^ token % MGL_WIDE_ROWS) * 16;
  source->stages = 2 * tile->stages;
}

MGL_DEVICE uint32_t mgl_wide_stage_at(const mgl_wide_worker *w, uint32_t stage) {
  return w->stages + stage % MGL_WIDE_MMA_STAGES * MGL_WIDE_MMA_STAGE_BYTES;
}

// Asks for the weights of a stage; nothing beyond the last one.
MGL_DEVICE void mgl_wide_ask_weights(const mgl_wide_worker *w, uint32_t stage) {
  const mgl_mma_source *source = &w->source;
  const uint8_t *from = source->weights + stage * MGL_MMA_BLOCK_BYTES;
  const uint32_t to = mgl_wide_stage_at(w, stage) + (w->warp * 32 + w->lane) * 16;
  const bool there = stage < source->stages;
  if (there && source->blocks > 0) {
    mgl_copy_async(to, from, 16);
  }
  if (there && source->blocks > 1) {
    mgl_copy_async(to + MGL_MMA_BLOCKS * MGL_MMA_BLOCK_BYTES, from + source->weights_more, 16);
  }
}

// Asks for the stage's x, in rows of 64 bytes, swizzled so that ldmatrix meets no bank twice. It
// ends a group of copies.
MGL_DEVICE void mgl_wide_ask_x(const mgl_wide_worker *w, uint32_t stage) {
  const mgl_mma_source *source = &w->source;
  const uint32_t thread = w->warp * 32 + w->lane;
  const uint32_t token = thread / MGL_MMA_ROW_CHUNKS, chunk = thread % MGL_MMA_ROW_CHUNKS;
  const uint64_t column = (uint64_t)(source->x + (uint64_t)(stage / 2) * source->x_column);
  const uint8_t *from = (const uint8_t *)(column ^ stage % 2 * MGL_MMA_ROW_BYTES);
  const uint32_t to = mgl_wide_stage_at(w, stage) + MGL_WIDE_MMA_WEIGHT_BYTES +
                      token * MGL_MMA_ROW_BYTES + (chunk ^ token / 2 % MGL_MMA_ROW_CHUNKS) * 16;
  if (stage < source->stages) {
#pragma unroll
    for (int i = 0; i < MGL_WIDE_TILE_TOKENS / MGL_MMA_TOKENS; i++) {
      mgl_copy_async(to + i * (MGL_MMA_TOKENS * MGL_MMA_ROW_BYTES),
                     from + i * (MGL_MMA_TOKENS * MGL_WIDE_ROW_BYTES), 16);
    }
  }
  mgl_copy_commit();
}

// --- products ------------------------------------------------------------------------------------

// A lane's addresses in stage 0: of its warp's weights, and of x for ldmatrix: tokens 0 to 7 of
// chunks 0 and 1, then tokens 8 to 15.
struct mgl_wide_operands {
  uint32_t weights, x;
};

MGL_DEVICE mgl_wide_operands mgl_wide_operands_of(const mgl_wide_worker *w) {
  const uint32_t row = w->lane / 16 * 8 + w->lane % 8, chunk = w->lane / 8 % 2;
  mgl_wide_operands o;
  o.weights = w->stages + w->warp / 2 * (2 * MGL_MMA_BLOCK_BYTES) + w->lane * 16;
  o.x = w->stages + MGL_WIDE_MMA_WEIGHT_BYTES +
        (w->warp % 2 * (MGL_WIDE_TILE_TOKENS / 2) + row) * MGL_MMA_ROW_BYTES +
        (chunk ^ row / 2 % MGL_MMA_ROW_CHUNKS) * 16;
  return o;
}

// d += the products of a stage: two steps of 16 along k, each of 16 pairs of eight tokens by two
// row blocks. The operands of the next pair are asked for before a pair's products.
MGL_DEVICE void mgl_wide_multiply_stage(const mgl_wide_operands *o, uint32_t offset,
                                        float (&d)[MGL_WIDE_SUMS]) {
  constexpr int pairs = MGL_WIDE_TILE_TOKENS / 2 / 16;
  uint32_t a[2][4];
  uint32_t b[2][4];
  mgl_load_matrices(o->x + offset, b[0]);
#pragma unroll
  for (int i = 0; i < 2 * pairs; i++) {
    const int step = i / pairs, pair = i % pairs, next = i + 1;
    if (pair == 0) {
      mgl_load_shared_words(o->weights + offset + step * 512, a[0]);
      mgl_load_shared_words(o->weights + offset + step * 512 + MGL_MMA_BLOCK_BYTES, a[1]);
    }
    if (next < 2 * pairs) {
      mgl_load_matrices(
          ((o->x + offset) ^ next / pairs * 32) + next % pairs * (16 * MGL_MMA_ROW_BYTES),
          b[next % 2]);
    }
#pragma unroll
    for (int block = 0; block < 2; block++) {
      float *sums = d + block * MGL_MMA_HALF + pair * 8;
      mgl_mma(sums, a[block], b[i % 2][0], b[i % 2][1]);
      mgl_mma(sums + 4, a[block], b[i % 2][2], b[i % 2][3]);
    }
  }
}

// Warps 2 p and 2 p + 1 have the sums of row blocks 2 p and 2 p + 1, the one of the first half of
// the tokens, the other one of the second; afterwards each has its own row block's, of all tokens.
MGL_DEVICE void mgl_wide_exchange(const mgl_wide_worker *w, float (&d)[MGL_WIDE_SUMS]) {
  const bool second = w->warp % 2 != 0;
  const uint32_t warp_bytes = MGL_MMA_HALF * 32 * 4;
  const uint32_t to = w->stages + w->warp * warp_bytes + w->lane * 16;
  const uint32_t from = w->stages + (w->warp ^ 1) * warp_bytes + w->lane * 16;
  mgl_sync_wide_consumers();  // nobody reads the last stages
#pragma unroll
  for (int i = 0; i < MGL_MMA_HALF; i += 4) {
    const float *low = d + i, *high = d + MGL_MMA_HALF + i;
    mgl_store_shared(to + i * 128,
                     make_float4(second ? low[0] : high[0], second ? low[1] : high[1],
                                 second ? low[2] : high[2], second ? low[3] : high[3]));
  }
  mgl_sync_wide_consumers();
#pragma unroll
  for (int i = 0; i < MGL_MMA_HALF; i += 4) {
    uint32_t got[4];
    mgl_load_shared_words(from + i * 128, got);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float *low = d + i + j, *high = d + MGL_MMA_HALF + i + j;
      *low = second ? __uint_as_float(got[j]) : *low;
      *high = second ? *high : __uint_as_float(got[j]);
    }
  }
}

// The products of a tile over `count` stages of MGL_WIDE_K, at least one, of which the first
// MGL_MMA_AHEAD halves have been asked for.
MGL_DEVICE void mgl_wide_multiply(mgl_wide_worker *w, uint32_t count, uint32_t,
                                  float (&d)[MGL_WIDE_SUMS]) {
  const mgl_wide_operands operands = mgl_wide_operands_of(w);
  const uint32_t stages = count * 2;
#pragma unroll
  for (int i = 0; i < MGL_WIDE_SUMS; i++) {
    d[i] = 0;
  }
#pragma unroll 1
  for (uint32_t stage = 0; stage < stages; stage++) {
    mgl_copy_wait<MGL_MMA_AHEAD - 1>();
    mgl_sync_wide_consumers();  // all threads' copies; and nobody reads the stage before
    mgl_wide_ask_weights(w, stage + MGL_MMA_AHEAD);
    mgl_wide_ask_x(w, stage + MGL_MMA_AHEAD);
    mgl_wide_multiply_stage(&operands, stage % MGL_WIDE_MMA_STAGES * MGL_WIDE_MMA_STAGE_BYTES, d);
  }
  mgl_wide_exchange(w, d);
}

#endif

#endif
