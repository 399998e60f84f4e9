// The linears of the wide class: what becomes of a tile's sums. Thread 4 g + t of a warp has, for
// every eight tokens from 8 j on, the sums of features g (d[4 j], d[4 j + 1]) and g + 8 (d[4 j +
// 2], d[4 j + 3]) of the warp's row block, of tokens 8 j + 2 t and 8 j + 2 t + 1.
#ifndef MGL_KERNELS_CUDA_LINEAR_WIDE_LINEAR_CUH
#define MGL_KERNELS_CUDA_LINEAR_WIDE_LINEAR_CUH

#include "kernels/cuda/linear/logit_row.cuh"
#include "kernels/cuda/linear/wide_codes.cuh"
#include "kernels/cuda/linear/wide_gemm.cuh"
#include "kernels/cuda/linear/wide_gemm_mma.cuh"
#include "kernels/cuda/roles/wide_ranks.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"
#include "kernels/cuda/small/wide_rope_sums.cuh"
#include "kernels/cuda/small/wide_tasks.cuh"

// Sums of eight tokens that are stored between two looks at whether there are more tokens.
enum { MGL_WIDE_SUMS_AT_ONCE = 2 };

// residual += d. Lanes have the residual's own order.
MGL_DEVICE void mgl_wide_finish_add(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                    const mgl_wide_tile *tile, const float (&d)[MGL_WIDE_SUMS]) {
  if (w->warp >= tile->blocks) {
    return;
  }
  uint64_t from = (uint64_t)(tile->first_block + w->warp) * (slot->op.tokens / 8) + tile->token / 8;
  const float4 *residual = (const float4 *)slot->op.residual + from * 32 + w->lane;
  float4 *out = (float4 *)slot->op.out + from * 32 + w->lane;
#pragma unroll
  for (int first = 0; first < MGL_WIDE_TILE_TOKENS / 8; first += 8) {
    if (first * 8 >= tile->tokens) {
      return;
    }
    float4 before[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      before[i] = residual[(first + i) * 32];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float *sum = d + (first + i) * 4;
      float4 v = before[i];
      out[(first + i) * 32] = make_float4(v.x + sum[0], v.y + sum[1], v.z + sum[2], v.w + sum[3]);
    }
  }
}

// The sums of a split, for the norm behind it.
MGL_DEVICE void mgl_wide_finish_part(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                     const mgl_wide_tile *tile, const float (&d)[MGL_WIDE_SUMS]) {
  if (w->warp >= tile->blocks) {
    return;
  }
  uint64_t at = (uint64_t)(tile->first_block + w->warp) * (slot->op.tokens / 8) + tile->token / 8;
  float4 *out =
      (float4 *)((uint8_t *)slot->op.out + tile->split * slot->op.copy_bytes) + at * 32 + w->lane;
#pragma unroll
  for (int i = 0; i < MGL_WIDE_TILE_TOKENS / 8; i++) {
    if (i % MGL_WIDE_SUMS_AT_ONCE == 0 && i * 8 >= tile->tokens) {
      return;
    }
    out[i * 32] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
  }
}

// Waits until the storer has copied what was staged for the task before, and what goes to other
// ranks through the same memory is on its way.
MGL_DEVICE void mgl_wide_wait_staged(mgl_wide_worker *w) {
#if MGL_TARGET_WGMMA
  uint32_t other = w->slot ^ 1;
  // The task before was in the other slot, in this phase or, before slot 0's, in the last one.
  uint32_t parity = other == 0 ? w->parity : w->parity ^ 1;
  mgl_mbarrier_wait(&w->block->stored[other], parity);
  if (MGL_RANKS > 1) {
    mgl_wide_await_sent(w, w->block->slots[w->slot].step.task);
  }
#else
  mgl_sync_wide_consumers();  // staged output takes the ring's place, and nobody reads that now
#endif
}

// silu(gate) * up, staged as a tile of a column of x: a row block has eight features of each.
MGL_DEVICE void mgl_wide_finish_gated(mgl_wide_worker *w, const mgl_wide_tile *tile,
                                      const float (&d)[MGL_WIDE_SUMS]) {
  bool there = w->warp < tile->blocks;
  uint32_t g = w->lane / 4;
  uint32_t chunk = w->warp / 4 * 4 + g / 2;
  uint32_t row = w->lane % 4 * 2 + g % 2;
  uint32_t to = mgl_shared_address(w->staged) + row * MGL_WIDE_ROW_BYTES + (chunk ^ row) * 16 +
                w->warp % 4 * 4;
  mgl_wide_wait_staged(w);
#pragma unroll
  for (int j = 0; j < MGL_WIDE_TILE_TOKENS / 8; j++) {
    if (j % MGL_WIDE_SUMS_AT_ONCE == 0 && j * 8 >= tile->tokens) {
      return;
    }
    float first = mgl_silu_mul(d[4 * j], d[4 * j + 2]);
    float second = mgl_silu_mul(d[4 * j + 1], d[4 * j + 3]);
    // Lanes of even g take the first token of both features, those of odd g the second.
    float give = g % 2 == 0 ? second : first;
    float got = __shfl_xor_sync(0xffffffffu, give, 4);
    uint32_t bits = g % 2 == 0 ? mgl_pack_bf16(first, got) : mgl_pack_bf16(got, second);
    bits = there ? bits : 0;
    mgl_store_shared_word(to + j * (8 * MGL_WIDE_ROW_BYTES), bits);
  }
}

// Transposes 16 features of 16 tokens into rows of 128 bytes whose 16-byte chunks are swizzled;
// words: features g and g + 8 of tokens 2 t and 2 t + 1, then of the next eight tokens; chunk: that
// of the first eight features.
MGL_DEVICE void mgl_wide_store_words(uint32_t rows, uint32_t chunk, uint32_t lane,
                                     const uint32_t (&words)[4]) {
#if MGL_TARGET_WGMMA
  // Lanes 8 i to 8 i + 7 give the rows of matrix i: features 0 to 7 and 8 to 15 of eight tokens,
  // then of the next eight.
  uint32_t row = lane / 16 * 8 + lane % 8;
  uint32_t to = rows + row * 128 + ((chunk + lane / 8 % 2) ^ row % 8) * 16;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
#else
  // Lanes of even g take the first token of both features, those of odd g the second.
  bool odd = lane / 4 % 2 != 0;
  uint32_t row = lane % 4 * 2 + (odd ? 1 : 0);
  uint32_t to = rows + row * 128 + (chunk ^ row) * 16 + lane / 8 * 4;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    uint32_t own = __byte_perm(words[i], words[i + 1], odd ? 0x7632 : 0x5410);
    uint32_t give = __byte_perm(words[i], words[i + 1], odd ? 0x5410 : 0x7632);
    uint32_t got = __shfl_xor_sync(0xffffffffu, give, 4);
    uint32_t even_g = odd ? got : own, odd_g = odd ? own : got;
    uint32_t at = to + i / 2 * (8 * 128);
    mgl_store_shared_word(at, __byte_perm(even_g, odd_g, 0x5410));
    mgl_store_shared_word(at ^ 16, __byte_perm(even_g, odd_g, 0x7632));
  }
#endif
}

// Two values of Q or K, which are normed and rotated before they are rounded to bf16: f16 keeps
// three more bits meanwhile. V is bf16, as it goes into the cache.
MGL_DEVICE uint32_t mgl_wide_pack_row(bool half, float low, float high) {
  uint32_t packed = mgl_pack_bf16(low, high);
  if (half) {
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// d + bias as rows, Q and K as f16, V as bf16: a warpgroup's 64 features of 128 tokens at a time
// through shared memory.
MGL_DEVICE void mgl_wide_finish_rows(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                     const mgl_wide_tile *tile, const float (&d)[MGL_WIDE_SUMS]) {
  constexpr int tokens = MGL_WIDE_TILE_TOKENS / 2;
  uint32_t group = w->warp / 4;
  uint32_t base = mgl_shared_address(w->staged) + group * (MGL_WIDE_STAGED_BYTES / 2);
  uint32_t feature = (tile->first_block + w->warp) * MGL_CUDA_BLOCK_ROWS + w->lane / 4;
  bool there = w->warp < tile->blocks;
  bool half = (tile->first_block + w->warp) * MGL_CUDA_BLOCK_ROWS <
              slot->op.n / (MGL_GROUP + 2) * (MGL_GROUP + 1);
  float low = there && slot->op.bias != nullptr ? slot->op.bias[feature] : 0;
  float high = there && slot->op.bias != nullptr ? slot->op.bias[feature + 8] : 0;
  uint32_t thread = w->warp % 4 * 32 + w->lane;
  // There may be no memory for the last rows of tiles that do not divide the graph's tokens.
  constexpr bool guards = MGL_MAX_ITERATION_TOKENS % MGL_WIDE_TILE_TOKENS != 0;
  mgl_wide_wait_staged(w);
#pragma unroll
  for (int first = 0; first < MGL_WIDE_TILE_TOKENS; first += tokens) {
    if (first >= tile->tokens) {
      return;
    }
    mgl_sync_wide_group(group);
#pragma unroll
    for (int j = 0; j < tokens / 16; j++) {
      const float *sum = d + (first / 8 + 2 * j) * 4;
      const uint32_t words[4] = {mgl_wide_pack_row(half, sum[0] + low, sum[1] + low),
                                 mgl_wide_pack_row(half, sum[2] + high, sum[3] + high),
                                 mgl_wide_pack_row(half, sum[4] + low, sum[5] + low),
                                 mgl_wide_pack_row(half, sum[6] + high, sum[7] + high)};
      mgl_wide_store_words(base + j * (16 * 128), w->warp % 4 * 2, w->lane, words);
    }
    mgl_sync_wide_group(group);
    uint32_t column = tile->first_block * MGL_CUDA_BLOCK_ROWS + group * 64 + thread % 8 * 8;
#pragma unroll
    for (int i = 0; i < tokens / 16; i++) {
      uint32_t token = i * 16 + thread / 8;
      const uint4 v = mgl_load_shared(base + token * 128 + (thread % 8 ^ token % 8) * 16);
      if (column < slot->op.n && (!guards || first + token < tile->tokens)) {
        uint64_t at = (uint64_t)(tile->token + first + token) * slot->op.n + column;
        *(uint4 *)((uint16_t *)slot->op.out + at) = v;
      }
    }
  }
}

// The router's logits, f32 rows.
MGL_DEVICE void mgl_wide_finish_router(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                       const mgl_wide_tile *tile, const float (&d)[MGL_WIDE_SUMS]) {
  const uint32_t feature = (tile->first_block + w->warp) * MGL_CUDA_BLOCK_ROWS + w->lane / 4;
  float *out = (float *)slot->op.out + feature;
#pragma unroll
  for (int i = 0; i < MGL_WIDE_TILE_TOKENS / 4; i++) {
    const uint32_t in_tile = i / 2 * 8 + w->lane % 4 * 2 + i % 2;
    const uint64_t at = (uint64_t)(tile->token + in_tile) * slot->op.n;
    if (in_tile < tile->tokens && feature < slot->op.n) {
      out[at] = d[i / 2 * 4 + i % 2];
    }
    if (in_tile < tile->tokens && feature + 8 < slot->op.n) {
      out[at + 8] = d[i / 2 * 4 + i % 2 + 2];
    }
  }
}

// What experts_down makes of sorted rows, bf16: a warpgroup's 64 features of half of the tile's
// tokens at a time through shared memory. Behind the tile's rows are those of the next expert.
MGL_DEVICE void mgl_wide_finish_slots(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                      const mgl_wide_tile *tile, const float (&d)[MGL_WIDE_SUMS]) {
  constexpr int tokens = MGL_WIDE_TILE_TOKENS / 2;
  const uint32_t group = w->warp / 4, thread = w->warp % 4 * 32 + w->lane;
  const uint32_t base = mgl_shared_address(w->staged) + group * (MGL_WIDE_STAGED_BYTES / 2);
  const uint32_t column = tile->first_block * MGL_CUDA_BLOCK_ROWS + group * 64 + thread % 8 * 8;
  mgl_wide_wait_staged(w);
#pragma unroll
  for (int first = 0; first < MGL_WIDE_TILE_TOKENS; first += tokens) {
    if (first >= tile->tokens) {
      return;
    }
    mgl_sync_wide_group(group);
#pragma unroll
    for (int j = 0; j < tokens / 16; j++) {
      const float *sum = d + (first / 8 + 2 * j) * 4;
      const uint32_t words[4] = {mgl_pack_bf16(sum[0], sum[1]), mgl_pack_bf16(sum[2], sum[3]),
                                 mgl_pack_bf16(sum[4], sum[5]), mgl_pack_bf16(sum[6], sum[7])};
      mgl_wide_store_words(base + j * (16 * 128), w->warp % 4 * 2, w->lane, words);
    }
    mgl_sync_wide_group(group);
#pragma unroll
    for (int i = 0; i < tokens / 16; i++) {
      const uint32_t token = i * 16 + thread / 8;
      const uint4 v = mgl_load_shared(base + token * 128 + (thread % 8 ^ token % 8) * 16);
      if (column < slot->op.n && first + token < tile->tokens) {
        const uint64_t at = (uint64_t)(tile->token + first + token) * slot->op.n + column;
        *(uint4 *)((uint16_t *)slot->op.out + at) = v;
      }
    }
  }
}

// A logit into the rows of all ranks; of one rank, into its own.
MGL_DEVICE void mgl_wide_put_logit(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                   uint32_t token, uint32_t feature, float value) {
  if (!mgl_wide_is_over(&slot->op)) {
    ((float *)slot->op.out)[(uint64_t)token * slot->op.n + feature] = value;
    return;
  }
  float *own = (float *)slot->op.out + (uint64_t)token * slot->with.over.row + feature;
#pragma unroll
  for (uint32_t to = 0; to < MGL_RANKS; to++) {
    *mgl_at_peer(own, w->block->peers[to]) = value;
  }
}

MGL_DEVICE void mgl_wide_put_best(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                  uint64_t *best, uint64_t key) {
  if (!mgl_wide_is_over(&slot->op)) {
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(best), "l"(key) : "memory");
    return;
  }
#pragma unroll
  for (uint32_t to = 0; to < MGL_RANKS; to++) {
    asm volatile(
        "red.relaxed.sys.global.max.u64 [%0], %1;" ::"l"(mgl_at_peer(best, w->block->peers[to])),
        "l"(key)
        : "memory");
  }
}

// The largest of each of eight values over the eight lanes that have the same tokens: in every step
// a lane gives half of what it has away, so that each ends with one of them, whose number it
// returns.
MGL_DEVICE uint32_t mgl_wide_spread_max(uint32_t lane, uint64_t (&values)[8]) {
#pragma unroll
  for (uint32_t half = 4; half > 0; half /= 2) {
    const bool upper = (lane & half * 4) != 0;
#pragma unroll
    for (uint32_t i = 0; i < half; i++) {
      const uint64_t give = upper ? values[i] : values[i + half];
      const uint64_t keep = upper ? values[i + half] : values[i];
      const uint64_t got = __shfl_xor_sync(0xffffffffu, (unsigned long long)give, half * 4);
      values[i] = got > keep ? got : keep;
    }
  }
  return lane / 4;
}

// The logits of a tile into their rows, if some of them are read, and the largest of the warp's
// sixteen features into best, of each token. Of few tokens: eight of a lane's at once.
MGL_DEVICE void mgl_wide_rank_few(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                  const mgl_wide_tile *tile, const float (&d)[MGL_WIDE_SUMS],
                                  uint64_t *best) {
  const uint32_t feature = (tile->first_block + w->warp) * MGL_CUDA_BLOCK_ROWS + w->lane / 4;
  const uint32_t rows = w->warp < tile->blocks ? w->block->logit_rows : 0;
  const uint32_t features = slot->op.n;
  const uint32_t before = mgl_wide_is_over(&slot->op) ? slot->with.over.first : 0;
  const bool takes = w->block->takes_rows != 0;
#pragma unroll
  for (uint32_t first = 0; first < MGL_WIDE_TILE_TOKENS / 4; first += 8) {
    uint64_t ranks[8];
    if (first * 4 >= tile->tokens) {
      break;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
      const uint32_t at = first + i;
      const uint32_t token = tile->token + at / 2 * 8 + w->lane % 4 * 2 + at % 2;
      const float low = d[at / 2 * 4 + at % 2], high = d[at / 2 * 4 + at % 2 + 2];
      const bool has_low = token < rows && feature < features;
      const bool has_high = token < rows && feature + 8 < features;
      const uint64_t low_rank = has_low ? mgl_ordered_best(low, before + feature) : 0;
      const uint64_t high_rank = has_high ? mgl_ordered_best(high, before + feature + 8) : 0;
      if (takes && has_low) {
        mgl_wide_put_logit(w, slot, token, feature, low);
      }
      if (takes && has_high) {
        mgl_wide_put_logit(w, slot, token, feature + 8, high);
      }
      ranks[i] = high_rank > low_rank ? high_rank : low_rank;
    }
    const uint32_t at = first + mgl_wide_spread_max(w->lane, ranks);
    best[at / 2 * 8 + at % 2] = ranks[0];
  }
}

// The same one by one, where sums take so many registers that keys of eight would spill.
MGL_DEVICE void mgl_wide_rank_many(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                   const mgl_wide_tile *tile, const float (&d)[MGL_WIDE_SUMS],
                                   uint64_t *best) {
  uint32_t feature = (tile->first_block + w->warp) * MGL_CUDA_BLOCK_ROWS + w->lane / 4;
  bool there = w->warp < tile->blocks;
  uint32_t rows = w->block->logit_rows;
  const uint32_t before = mgl_wide_is_over(&slot->op) ? slot->with.over.first : 0;
#pragma unroll
  for (int i = 0; i < MGL_WIDE_TILE_TOKENS / 4; i++) {
    uint32_t token = tile->token + i / 2 * 8 + w->lane % 4 * 2 + i % 2;
    float low = d[i / 2 * 4 + i % 2];
    float high = d[i / 2 * 4 + i % 2 + 2];
    uint64_t rank = 0;
    if (there && token < rows) {
      if (feature < slot->op.n) {
        mgl_wide_put_logit(w, slot, token, feature, low);
        rank = mgl_ordered_best(low, before + feature);
      }
      if (feature + 8 < slot->op.n) {
        mgl_wide_put_logit(w, slot, token, feature + 8, high);
        uint64_t other = mgl_ordered_best(high, before + feature + 8);
        rank = other > rank ? other : rank;
      }
    }
    for (int offset = 4; offset < 32; offset *= 2) {
      uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)rank, offset);
      rank = other > rank ? other : rank;
    }
    if (w->lane < 4) {
      best[i / 2 * 8 + i % 2] = rank;
    }
  }
}

// Logits as f32 rows, and the largest of each row: of the warps' sixteen features each, of the
// tile, of the row. Without the second step all tiles' warps would change the few words of the
// rows.
MGL_DEVICE void mgl_wide_finish_logits(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                       const mgl_wide_tile *tile, const float (&d)[MGL_WIDE_SUMS]) {
  static_assert(MGL_WIDE_TILE_TOKENS <= MGL_WIDE_CONSUMERS, "a token each");
  uint64_t *all = (uint64_t *)w->staged;  // [warps][MGL_WIDE_TILE_TOKENS]
  uint64_t *best = all + w->warp * MGL_WIDE_TILE_TOKENS + w->lane % 4 * 2;
  mgl_wide_wait_staged(w);
  mgl_sync_wide_consumers();  // what the task before has left there has been read
  if constexpr (MGL_WIDE_SPARE) {
    mgl_wide_rank_few(w, slot, tile, d, best);
  } else {
    mgl_wide_rank_many(w, slot, tile, d, best);
  }
  mgl_sync_wide_consumers();
  const uint32_t token = w->warp * 32 + w->lane;
  if (w->run->best != nullptr && token < tile->tokens) {
    uint64_t rank = all[token];
#pragma unroll
    for (uint32_t i = 1; i < MGL_WIDE_CONSUMER_WARPS; i++) {
      uint64_t other = all[i * MGL_WIDE_TILE_TOKENS + token];
      rank = other > rank ? other : rank;
    }
    mgl_wide_put_best(w, slot, w->run->best + tile->token + token, rank);
  }
}

// The norm before the linear: the factors of its rows, which a service warp has found meanwhile.
MGL_DEVICE void mgl_wide_apply_factors(const mgl_wide_worker *w, float (&d)[MGL_WIDE_SUMS]) {
  mgl_mbarrier_wait(&w->block->factored[w->slot], w->parity);
  const float2 *factors = (const float2 *)w->block->factors[w->slot] + w->lane % 4;
#pragma unroll
  for (int j = 0; j < MGL_WIDE_TILE_TOKENS / 8; j++) {
    float2 factor = factors[4 * j];
    d[4 * j] *= factor.x;
    d[4 * j + 1] *= factor.y;
    d[4 * j + 2] *= factor.x;
    d[4 * j + 3] *= factor.y;
  }
}

// The same of experts_up, whose factors the rows' tokens have; up is weighed by the rows' slots.
MGL_DEVICE void mgl_wide_apply_slot_rows(const mgl_wide_worker *w, float (&d)[MGL_WIDE_SUMS]) {
  mgl_mbarrier_wait(&w->block->factored[w->slot], w->parity);
  const float2 *factors = (const float2 *)w->block->factors[w->slot] + w->lane % 4;
  const float2 *weights = (const float2 *)mgl_wide_slot_weights(w) + w->lane % 4;
#pragma unroll
  for (int j = 0; j < MGL_WIDE_TILE_TOKENS / 8; j++) {
    const float2 factor = factors[4 * j], weight = weights[4 * j];
    d[4 * j] *= factor.x;
    d[4 * j + 1] *= factor.y;
    d[4 * j + 2] *= factor.x * weight.x;
    d[4 * j + 3] *= factor.y * weight.y;
  }
}

// --- tiles of several tasks ----------------------------------------------------------------------

// This thread's first piece of the sums of a tile, number `record` of the op's parts; the pieces of
// eight tokens and all features are neighbours.
MGL_DEVICE float4 *mgl_wide_part_at(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                    uint32_t record) {
  return (float4 *)slot->parts + (size_t)record * (MGL_WIDE_TILE_SUMS / 4) + w->warp * 32 + w->lane;
}

MGL_DEVICE void mgl_wide_leave_sums(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                    const mgl_wide_tile *tile, uint32_t record,
                                    const float (&d)[MGL_WIDE_SUMS]) {
  float4 *parts = mgl_wide_part_at(w, slot, record);
#pragma unroll
  for (int i = 0; i < MGL_WIDE_SUMS / 4; i++) {
    if (i % MGL_WIDE_SUMS_AT_ONCE == 0 && i * 8 >= tile->tokens) {
      return;
    }
    parts[i * MGL_WIDE_CONSUMERS] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
  }
}

// All consumers: what they have left is there for those who wait for the tile.
MGL_DEVICE void mgl_wide_arrive(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                const mgl_wide_tile *tile) {
  mgl_sync_wide_consumers();
  if (w->warp == 0 && w->lane == 0) {
    // Release of what all threads wrote before the barrier, for mgl_wide_await.
    mgl_count_up_release(slot->arrived + tile->number);
  }
}

// All consumers: until so many have arrived at the tile, or the launch ends.
MGL_DEVICE void mgl_wide_await(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                               const mgl_wide_tile *tile, uint32_t count) {
  if (w->warp == 0 && w->lane == 0) {
    uint32_t seen;
    uint64_t fault;
    do {
      fault = mgl_load_relaxed(&w->run->fault);  // both are on their way at once
      seen = mgl_count_load_acquire(slot->arrived + tile->number);
    } while (seen < count && fault == MGL_WIDE_FAULT_NONE);
  }
  mgl_sync_wide_consumers();
}

// Adds what the task with the last stages of the tile has left. Who does it, and in which order,
// is a matter of the graph, so that every run has the same bits.
MGL_DEVICE void mgl_wide_add_sums(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                  const mgl_wide_tile *tile, float (&d)[MGL_WIDE_SUMS]) {
  const float4 *parts = mgl_wide_part_at(w, slot, tile->number);
  mgl_wide_await(w, slot, tile, 1);
#pragma unroll
  for (int first = 0; first < MGL_WIDE_SUMS / 4; first += 8) {
    if (first * 8 >= tile->tokens) {
      return;
    }
    float4 part[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      part[i] = parts[(first + i) * MGL_WIDE_CONSUMERS];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float *sum = d + 4 * (first + i);
      sum[0] += part[i].x;
      sum[1] += part[i].y;
      sum[2] += part[i].z;
      sum[3] += part[i].w;
    }
  }
}

// What the task with the tile's first stages has left.
MGL_DEVICE void mgl_wide_take_sums(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                   const mgl_wide_tile *tile, float (&d)[MGL_WIDE_SUMS]) {
  const float4 *parts = mgl_wide_part_at(w, slot, tile->number);
  mgl_wide_await(w, slot, tile, 1);
#pragma unroll
  for (int i = 0; i < MGL_WIDE_SUMS / 4; i++) {
    if (i % 8 == 0 && i * 8 >= tile->tokens) {
      return;
    }
    const float4 part = __ldcg(parts + i * MGL_WIDE_CONSUMERS);
    d[4 * i] = part.x;
    d[4 * i + 1] = part.y;
    d[4 * i + 2] = part.z;
    d[4 * i + 3] = part.w;
  }
}

// Units of eight tokens of a tile that all of its splits finish together: this warp's are
// first, first + MGL_WIDE_CONSUMER_WARPS * passes, ...
MGL_DEVICE uint32_t mgl_wide_first_unit(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                        const mgl_wide_tile *tile) {
  return w->warp * slot->op.passes + tile->split;
}

// Of several ranks: adds up what the splits of the tile have left, of this split's share of its
// tokens, into the inboxes of all ranks, and waits for the tile's sums of all of them.
MGL_DEVICE void mgl_wide_exchange(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                  const mgl_wide_tile *tile) {
  const mgl_cuda_op *norm = &slot->with.norm;
  const uint64_t of_part = slot->op.copy_bytes / sizeof(float4);
  const float4 *parts = (const float4 *)slot->op.out;
  float4 *inbox = (float4 *)((uint8_t *)norm->bias + w->block->rank * norm->copy_bytes);
#pragma unroll 1
  for (uint32_t unit = mgl_wide_first_unit(w, slot, tile); unit * 8 < tile->tokens;
       unit += MGL_WIDE_CONSUMER_WARPS * slot->op.passes) {
    const uint64_t column = (uint64_t)(slot->op.tokens / 8) * 32;  // from a column to the next
    const uint64_t first =
        mgl_wide_column(slot->op.tokens, tile->token / 8 + unit, tile->first_block, w->lane);
    float4 v[MGL_WIDE_FEATURE_BLOCKS];
#pragma unroll
    for (uint32_t i = 0; i < MGL_WIDE_FEATURE_BLOCKS; i++) {
      v[i] = make_float4(0, 0, 0, 0);
    }
#pragma unroll 1
    for (uint32_t part = 0; part < slot->op.passes; part++) {
#pragma unroll
      for (uint32_t i = 0; i < MGL_WIDE_FEATURE_BLOCKS; i++) {
        if (i < tile->blocks) {
          v[i] = mgl_wide_plus(v[i], parts[part * of_part + first + i * column]);
        }
      }
    }
#pragma unroll
    for (uint32_t to = 0; to < MGL_RANKS; to++) {
      float4 *there = mgl_at_peer(inbox + first, w->block->peers[to]);
#pragma unroll
      for (uint32_t i = 0; i < MGL_WIDE_FEATURE_BLOCKS; i++) {
        if (i < tile->blocks) {
          there[i * column] = v[i];
        }
      }
    }
  }
  mgl_sync_wide_consumers();
  if (w->warp == 0 && w->lane == 0) {
    mgl_word *counter = &w->block->counters[slot->op.exchange + tile->number];
#pragma unroll
    for (uint32_t to = 0; to < MGL_RANKS; to++) {
      mgl_add_release_system(mgl_at_peer(counter, w->block->peers[to]), 1);
    }
    // Acquire, paired with the releases of all ranks; or the launch ends.
    while (mgl_load_acquire_system(counter) < (uint64_t)slot->op.passes * MGL_RANKS &&
           mgl_load_relaxed(&w->run->fault) == (uint64_t)MGL_WIDE_FAULT_NONE) {
    }
  }
  mgl_sync_wide_consumers();
}

// All consumers: until what all splits of a tile have left is there, of all ranks.
MGL_DEVICE void mgl_wide_meet(mgl_wide_worker *w, const mgl_wide_slot *slot,
                              const mgl_wide_tile *tile) {
  mgl_wide_await(w, slot, tile, slot->op.passes);
  if (mgl_wide_is_over(&slot->op)) {
    mgl_wide_exchange(w, slot, tile);
  }
}

// The norm of a range that has all its features: a warpgroup takes units of eight tokens in turn
// with those of the other splits, a warp a quarter of each, so that all that a unit needs is on its
// way at once.
MGL_DEVICE void mgl_wide_weigh_shared(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                      const mgl_wide_tile *tile) {
  const mgl_cuda_op *norm = &slot->with.norm;
  const uint32_t group = w->warp / 4, range = tile->first_block / MGL_WIDE_FEATURE_BLOCKS;
  // Of no use to a linear_add otherwise; of each group [quarters][tokens].
  float *squares = w->block->factors[w->slot] + group * 32;
  mgl_wide_meet(w, slot, tile);
#pragma unroll 1
  for (uint32_t unit = group * slot->op.passes + tile->split; unit * 8 < tile->tokens;
       unit += 2 * slot->op.passes) {
    float sums[2];
    const uint32_t at = tile->token / 8 + unit;
    mgl_wide_weigh_quarter(norm, at, range, w->warp % 4, w->lane, sums);
    if (w->lane < 4) {
      *(float2 *)&squares[w->warp % 4 * 8 + w->lane * 2] = make_float2(sums[0], sums[1]);
    }
    mgl_sync_wide_group(group);
    if (w->warp % 4 == 0 && w->lane < 8) {
      ((float *)norm->residual)[(size_t)range * norm->row_tiles + at * 8 + w->lane] =
          squares[w->lane] + squares[8 + w->lane] + squares[16 + w->lane] + squares[24 + w->lane];
    }
    mgl_sync_wide_group(group);
  }
}

// The norm behind a linear_add, of the tile's features.
MGL_DEVICE void mgl_wide_finish_weighed(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                        const mgl_wide_tile *tile) {
  static_assert((int)MGL_WIDE_FEATURES == (int)MGL_WIDE_NORM_RANGE, "a tile is a range");
  const uint32_t range = tile->first_block / MGL_WIDE_FEATURE_BLOCKS;
  mgl_wide_arrive(w, slot, tile);
  if constexpr (MGL_WIDE_SPARE) {  // else it spills
    if ((range + 1) * MGL_WIDE_NORM_RANGE <= slot->with.norm.k) {
      mgl_wide_weigh_shared(w, slot, tile);
      return;
    }
  }
  const mgl_wide_reach here = {nullptr, {true, true}};
  mgl_wide_meet(w, slot, tile);
#pragma unroll 1
  for (uint32_t unit = mgl_wide_first_unit(w, slot, tile); unit * 8 < tile->tokens;
       unit += MGL_WIDE_CONSUMER_WARPS * slot->op.passes) {
    mgl_wide_weigh_rows(&here, &slot->with.norm, tile->token / 8 + unit, range, w->lane);
  }
}

// Which head of which eight tokens of the tile a unit of rope_kv is.
MGL_DEVICE mgl_head_sums mgl_wide_head_of(const mgl_wide_worker *w, const mgl_wide_tile *tile,
                                          uint32_t unit) {
  constexpr uint32_t heads = MGL_WIDE_FEATURES / MGL_HEAD_DIM;
  mgl_head_sums sums = {};
  sums.first_feature = tile->first_block * MGL_CUDA_BLOCK_ROWS + unit % heads * MGL_HEAD_DIM;
  sums.row = tile->token + unit / heads * 8 + w->lane % 4 * 2;
  return sums;
}

// rope_kv behind a qkv_proj, of the tile's heads.
MGL_DEVICE void mgl_wide_finish_rotated(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                        const mgl_wide_tile *tile) {
  constexpr uint32_t heads = MGL_WIDE_FEATURES / MGL_HEAD_DIM;
  const float4 *parts = mgl_wide_part_at(w, slot, tile->number * slot->op.passes) - w->warp * 32;
  const uint32_t row_count = tile->token + tile->tokens;
  bool waited = !MGL_WIDE_SPARE;
  mgl_wide_arrive(w, slot, tile);
  if constexpr (!MGL_WIDE_SPARE) {  // pages found before that would spill
    mgl_mbarrier_wait(&w->block->factored[w->slot], w->parity);
    mgl_wide_await(w, slot, tile, slot->op.passes);
  }
#pragma unroll 1
  for (uint32_t unit = mgl_wide_first_unit(w, slot, tile);
       unit / heads * 8 < tile->tokens || !waited;
       unit += MGL_WIDE_CONSUMER_WARPS * slot->op.passes) {
    const uint32_t eight = unit / heads, head = unit % heads;
    mgl_head_sums sums = mgl_wide_head_of(w, tile, unit);
    const bool there = eight * 8 < tile->tokens && sums.first_feature < slot->op.n;
    mgl_head_place place = {{0, 0}};
    if (there) {  // this takes some trips, while the other splits end
      place = mgl_head_find(&slot->with.attention, row_count, w->lane, &sums);
    }
    if (MGL_WIDE_SPARE && !waited) {
      mgl_mbarrier_wait(&w->block->factored[w->slot], w->parity);
      mgl_wide_await(w, slot, tile, slot->op.passes);
      waited = true;
    }
    if (there) {
      const float2 *factors = (const float2 *)w->block->factors[w->slot] + eight * 4;
      mgl_head_finish(&slot->with.attention, row_count,
                      parts + eight * MGL_WIDE_CONSUMERS + head * (MGL_HEAD_DIM / 16 * 32),
                      slot->op.passes, factors[w->lane % 4], slot->op.bias, w->lane, place, &sums);
    }
  }
}

// The products of the tile, by the packing of its weights. resumes: d has sums to go on with.
template <int P>
MGL_DEVICE void mgl_wide_multiply_packed(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                         const mgl_wide_tile *tile, bool resumes,
                                         float (&d)[MGL_WIDE_SUMS]) {
#if MGL_TARGET_WGMMA && MGL_PACKINGS > 1 && defined(MGL_WIDE_TILE)
  if constexpr (P + 1 < MGL_PACKING_MX4) {  // which dense matrices have not
    if (mgl_op_packing(&slot->op) != P) {
      mgl_wide_multiply_packed<P + 1>(w, slot, tile, resumes, d);
      return;
    }
  }
  if constexpr (P != MGL_PACKING_BF16) {
    if constexpr ((MGL_PACKINGS >> P & 1) != 0) {
      mgl_wide_multiply_codes<(mgl_packing)P>(w, slot, tile, d);
    }
    return;
  }
#endif
  mgl_wide_multiply(w, tile->stages, resumes ? 1 : 0, d);
}

MGL_DEVICE bool mgl_wide_is_of_mixture(uint32_t kind) {
  return kind == MGL_OP_ROUTER || mgl_wide_is_of_experts(kind);
}

// Of linears that mixtures have; else false.
MGL_DEVICE bool mgl_wide_finish_mixture(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                        const mgl_wide_tile *tile, float (&d)[MGL_WIDE_SUMS]) {
  if (slot->op.kind == MGL_OP_ROUTER) {
    mgl_wide_finish_router(w, slot, tile, d);
  } else if (mgl_wide_is_up(slot->op.kind)) {
    mgl_wide_apply_slot_rows(w, d);
    mgl_wide_finish_gated(w, tile, d);
  } else if (mgl_wide_is_of_experts(slot->op.kind)) {
    mgl_wide_finish_slots(w, slot, tile, d);
  } else {
    return false;
  }
  return true;
}

MGL_DEVICE void mgl_wide_linear(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                const mgl_wide_tile *tile) {
  float d[MGL_WIDE_SUMS];
#pragma unroll
  for (int i = 0; i < MGL_WIDE_SUMS; i++) {  // else they are taken to be alive between tasks
    asm volatile("mov.f32 %0, 0f00000000;" : "=f"(d[i]));
  }
  const bool cut = !MGL_WIDE_FEW && (slot->op.flags & MGL_WIDE_RESUMES) != 0;
  const bool resumes = MGL_TARGET_WGMMA && cut && tile->first_stage != 0;
  if (resumes) {
    mgl_wide_take_sums(w, slot, tile, d);
  }
  mgl_wide_multiply_packed<MGL_PACKING_BF16>(w, slot, tile, resumes, d);
  if (slot->op.kind == MGL_OP_LINEAR_ADD && (slot->op.passes > 1 || mgl_wide_is_over(&slot->op))) {
    mgl_wide_finish_part(w, slot, tile, d);
    if ((slot->op.flags & MGL_WIDE_WEIGHS) != 0) {
      mgl_wide_finish_weighed(w, slot, tile);
    }
    return;
  }
  if ((slot->op.flags & MGL_WIDE_ROTATES) != 0) {
    mgl_wide_leave_sums(w, slot, tile, tile->number * slot->op.passes + tile->split, d);
    mgl_wide_finish_rotated(w, slot, tile);
    return;
  }
  const bool first = tile->first_stage == 0;
  const bool leaves = cut ? first && !tile->whole : !first;
  if (w->warp == 0 && w->lane == 0) {
    w->block->writes[w->slot] = leaves ? 0 : 1;
  }
  if (leaves) {
    mgl_wide_leave_sums(w, slot, tile, tile->number, d);
    mgl_wide_arrive(w, slot, tile);
    return;
  }
  if (!tile->whole && !resumes) {
    mgl_wide_add_sums(w, slot, tile, d);
  }
  if (slot->op.norm != nullptr) {
    mgl_wide_apply_factors(w, d);
  }
  if constexpr (MGL_WIDE_EXPERTS) {
    if (mgl_wide_finish_mixture(w, slot, tile, d)) {
      return;
    }
  }
  switch (slot->op.kind) {
    case MGL_OP_QKV_PROJ: mgl_wide_finish_rows(w, slot, tile, d); break;
    case MGL_OP_GATE_UP: mgl_wide_finish_gated(w, tile, d); break;
    case MGL_OP_LINEAR_ADD: mgl_wide_finish_add(w, slot, tile, d); break;
    default: mgl_wide_finish_logits(w, slot, tile, d); break;
  }
}

MGL_DEVICE void mgl_wide_task_linear(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  mgl_wide_tile tile = mgl_wide_tile_of(w, slot);
  if (tile.tokens > 0) {
    w->parts = mgl_wide_uniform((tile.tokens + MGL_WIDE_PART_TOKENS - 1) / MGL_WIDE_PART_TOKENS);
    mgl_wide_linear(w, slot, &tile);
  }
}

#endif
