// rope_kv straight from the sums of qkv_proj, for iterations whose tiles are few: what
// wide_rope_kv.cuh does with finished rows, without a stage of its own and a trip of Q, K and V
// through memory. A warp has one head of eight tokens, in the order of the products' sums
// (wide_layout.h): lane 4 g + t has features 16 i + g and 16 i + g + 8 of tokens 2 t and 2 t + 1,
// so that both halves of a pair that is rotated are the lane's.
//
// It is for heads that lie within a tile of 128 features. Q, K and V are not rounded before they
// are rotated.
#ifndef MGL_KERNELS_CUDA_SMALL_WIDE_ROPE_SUMS_CUH
#define MGL_KERNELS_CUDA_SMALL_WIDE_ROPE_SUMS_CUH

#include "kernels/cuda/small/wide_rope_kv.cuh"

enum {
  MGL_HEAD_BLOCKS = MGL_HEAD_DIM / 16,  // 16 features each
  MGL_HEAD_PAIRS = MGL_HEAD_BLOCKS / 2,
};

// x, y: feature g of the lane's tokens; z, w: feature g + 8.
typedef struct mgl_head_sums {
  float4 v[MGL_HEAD_BLOCKS];
  uint32_t first_feature;  // of qkv_proj
  uint32_t row;            // of the lane's first token
} mgl_head_sums;

// Where a head of K or V goes, which takes some trips to find out, before its sums are there: page
// times positions of a page, plus the position in it. (What it is rotated by would not fit into
// registers meanwhile.)
typedef struct mgl_head_place {
  uint32_t at[2];  // of V: of the lane's tokens; of K the first: of the token that the lane takes
} mgl_head_place;

// What a head of Q or K is rotated by: cos and sin of features g, of both tokens, then of g + 8.
typedef struct mgl_head_turns {
  float2 of[MGL_HEAD_PAIRS][4];
} mgl_head_turns;

// v: the sum of `count` parts, in their order. from: the lane's piece of the first block in the
// first part.
MGL_DEVICE void mgl_head_add(const float4 *from, uint32_t count, mgl_head_sums *s) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_BLOCKS; i++) {
    s->v[i] = from[i * 32];
  }
#pragma unroll 1
  for (uint32_t part = 1; part < count; part++) {
    float4 more[MGL_HEAD_BLOCKS];
#pragma unroll
    for (uint32_t i = 0; i < MGL_HEAD_BLOCKS; i++) {
      more[i] = from[(size_t)part * (MGL_WIDE_TILE_SUMS / 4) + i * 32];
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_HEAD_BLOCKS; i++) {
      s->v[i] = make_float4(s->v[i].x + more[i].x, s->v[i].y + more[i].y, s->v[i].z + more[i].z,
                            s->v[i].w + more[i].w);
    }
  }
}

// Factors of the norm before qkv_proj, of the lane's tokens, and qkv_proj's bias, if it has one.
MGL_DEVICE void mgl_head_scale(float2 factor, const float *bias, uint32_t lane, mgl_head_sums *s) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_BLOCKS; i++) {
    const uint32_t feature = s->first_feature + i * 16 + lane / 4;
    const float low = bias != nullptr ? bias[feature] : 0;
    const float high = bias != nullptr ? bias[feature + 8] : 0;
    s->v[i] = make_float4(s->v[i].x * factor.x + low, s->v[i].y * factor.y + low,
                          s->v[i].z * factor.x + high, s->v[i].w * factor.y + high);
  }
}

// The RMS norm of Q or K.
MGL_DEVICE void mgl_head_norm(float eps, const float *norm, uint32_t lane, mgl_head_sums *s) {
  float sums[2] = {0, 0};
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_BLOCKS; i++) {
    sums[0] += s->v[i].x * s->v[i].x + s->v[i].z * s->v[i].z;
    sums[1] += s->v[i].y * s->v[i].y + s->v[i].w * s->v[i].w;
  }
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {
    sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], offset);
    sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], offset);
  }
  const float first = rsqrtf(sums[0] * (1.0f / (float)MGL_HEAD_DIM) + eps);
  const float second = rsqrtf(sums[1] * (1.0f / (float)MGL_HEAD_DIM) + eps);
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_BLOCKS; i++) {
    const float low = norm[i * 16 + lane / 4], high = norm[i * 16 + lane / 4 + 8];
    s->v[i] = make_float4(s->v[i].x * first * low, s->v[i].y * second * low,
                          s->v[i].z * first * high, s->v[i].w * second * high);
  }
}

// Cos and sin of a pair for the lane's two tokens, applied to the halves of it.
MGL_DEVICE void mgl_head_turn(const float2 turn[2], float *low_first, float *high_first,
                              float *low_second, float *high_second) {
  const float x[2] = {*low_first, *low_second}, y[2] = {*high_first, *high_second};
  *low_first = x[0] * turn[0].x - y[0] * turn[0].y;
  *high_first = y[0] * turn[0].x + x[0] * turn[0].y;
  *low_second = x[1] * turn[1].x - y[1] * turn[1].y;
  *high_second = y[1] * turn[1].x + x[1] * turn[1].y;
}

MGL_DEVICE void mgl_head_rotate(const mgl_head_turns *turns, mgl_head_sums *s) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_PAIRS; i++) {
    float4 *x = &s->v[i], *y = &s->v[i + MGL_HEAD_PAIRS];
    mgl_head_turn(&turns->of[i][0], &x->x, &y->x, &x->y, &y->y);
    mgl_head_turn(&turns->of[i][2], &x->z, &y->z, &x->w, &y->w);
  }
}

// Rows of Q or of K: a lane of even g takes two neighbouring features of its first token, one of
// odd g of its second. to: of the token that the lane takes.
MGL_DEVICE void mgl_head_store_rows(uint16_t *to, float scale, bool there, uint32_t lane,
                                    const mgl_head_sums *s) {
  const bool odd = lane / 4 % 2 != 0;
  to += lane / 4 - (odd ? 1 : 0);
#pragma unroll
  for (uint32_t i = 0; i < 2 * MGL_HEAD_BLOCKS; i++) {
    const float4 v = s->v[i / 2];
    const float first = (i % 2 == 0 ? v.x : v.z) * scale, second = (i % 2 == 0 ? v.y : v.w) * scale;
    const float got = __shfl_xor_sync(0xffffffffu, odd ? first : second, 4);
    const uint32_t bits = odd ? mgl_pack_bf16(got, second) : mgl_pack_bf16(first, got);
    if (there) {
      *(uint32_t *)(to + i * 8) = bits;
    }
  }
}

// V of one of the lane's tokens: a page has it position-fastest.
MGL_DEVICE void mgl_head_store_values(uint16_t *to, uint32_t lane, bool second,
                                      const mgl_head_sums *s) {
  to += lane / 4 * MGL_CUDA_KV_PAGE_TOKENS;
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_BLOCKS; i++) {
    const float4 v = s->v[i];
    const uint32_t bits = second ? mgl_pack_bf16(v.y, v.w) : mgl_pack_bf16(v.x, v.z);
    to[i * 16 * MGL_CUDA_KV_PAGE_TOKENS] = (uint16_t)bits;
    to[(i * 16 + 8) * MGL_CUDA_KV_PAGE_TOKENS] = (uint16_t)(bits >> 16);
  }
}

MGL_DEVICE uint32_t mgl_head_place_of(const mgl_wide_attention *a, uint32_t row) {
  const uint32_t position = a->positions[row];
  return mgl_wide_page(a, a->slots[row], position) * MGL_CUDA_KV_PAGE_TOKENS +
         position % MGL_CUDA_KV_PAGE_TOKENS;
}

// In elements, of a KV head of which a position has `stride`.
MGL_DEVICE size_t mgl_head_offset(const mgl_wide_attention *a, uint32_t at, uint32_t kv_head,
                                  uint32_t stride) {
  return mgl_wide_page_offset(a, at / MGL_CUDA_KV_PAGE_TOKENS, kv_head) +
         at % MGL_CUDA_KV_PAGE_TOKENS * stride;
}

// row_count: rows of the iteration.
MGL_DEVICE mgl_head_place mgl_head_find(const mgl_wide_attention *a, uint32_t row_count,
                                        uint32_t lane, const mgl_head_sums *s) {
  const uint32_t q_heads = a->kv_heads * MGL_GROUP;
  const uint32_t head = s->first_feature / MGL_HEAD_DIM;
  const bool is_v = head >= q_heads + a->kv_heads;
  const uint32_t row = s->row + (is_v ? 0 : lane / 4 % 2);
  mgl_head_place place = {{0, 0}};
  if (head >= q_heads && row < row_count) {
    place.at[0] = mgl_head_place_of(a, row);
  }
  if (is_v && row + 1 < row_count) {
    place.at[1] = mgl_head_place_of(a, row + 1);
  }
  return place;
}

MGL_DEVICE void mgl_head_load_turns(const mgl_wide_attention *a, uint32_t lane,
                                    const mgl_head_sums *s, mgl_head_turns *out) {
  const float2 *angles = (const float2 *)a->angles + (size_t)s->row * (MGL_HEAD_DIM / 2) + lane / 4;
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_PAIRS; i++) {
    const float2 *of = angles + i * 16;
    out->of[i][0] = of[0];
    out->of[i][1] = of[MGL_HEAD_DIM / 2];
    out->of[i][2] = of[8];
    out->of[i][3] = of[8 + MGL_HEAD_DIM / 2];
  }
}

// Adds a head's sums (mgl_head_add, mgl_head_scale), and norms, rotates and stores it.
MGL_DEVICE void mgl_head_finish(const mgl_wide_attention *a, uint32_t row_count, const float4 *from,
                                uint32_t count, float2 factor, const float *bias, uint32_t lane,
                                mgl_head_place place, mgl_head_sums *s) {
  const uint32_t q_heads = a->kv_heads * MGL_GROUP;
  const uint32_t head = s->first_feature / MGL_HEAD_DIM;
  if (head >= q_heads + a->kv_heads) {
    mgl_head_add(from, count, s);
    mgl_head_scale(factor, bias, lane, s);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      if (s->row + i < row_count) {
        const size_t at = mgl_head_offset(a, place.at[i], head - q_heads - a->kv_heads, 1);
        mgl_head_store_values(a->v_cache + at, lane, i != 0, s);
      }
    }
    return;
  }
  const bool is_q = head < q_heads;
  const float *norm = is_q ? a->q_norm : a->k_norm;
  const uint32_t row = s->row + lane / 4 % 2;
  mgl_head_turns turns;
  mgl_head_load_turns(a, lane, s, &turns);
  mgl_head_add(from, count, s);
  mgl_head_scale(factor, bias, lane, s);
  if (norm != nullptr) {
    mgl_head_norm(a->eps, norm, lane, s);
  }
  mgl_head_rotate(&turns, s);
  uint16_t *to = is_q ? a->q + ((size_t)row * q_heads + head) * MGL_HEAD_DIM
                      : a->k_cache + mgl_head_offset(a, place.at[0], head - q_heads, MGL_HEAD_DIM);
  const float scale = is_q ? a->scale * 1.4426950408889634f : 1.0f;  // scores are powers of 2
  mgl_head_store_rows(to, scale, row < row_count, lane, s);
}

#endif
