// The small tasks of the wide class: embed, rope_angles and the norms. A unit of embed and of norms
// is eight tokens, which lie together in the residual stream; lane 4 g + t has tokens 2 t and 2 t +
// 1 of them, as in the sums of a product (wide_layout.h).
#ifndef MGL_KERNELS_CUDA_WIDE_TASKS_CUH
#define MGL_KERNELS_CUDA_WIDE_TASKS_CUH

#include "kernels/cuda/wide_worker.cuh"

static __device__ __forceinline__ uint32_t mgl_wide_least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

// Columns of 16 features of eight tokens: where this lane's are.
static __device__ __forceinline__ uint64_t mgl_wide_column(uint32_t tokens, uint32_t unit,
                                                           uint32_t column, uint32_t lane) {
  return ((uint64_t)column * (tokens / 8) + unit) * 32 + lane;
}

// --- embed and rope_angles -----------------------------------------------------------------------

static __device__ __forceinline__ float mgl_wide_table_value(const mgl_cuda_op *op, int32_t token,
                                                             uint32_t feature) {
  const uint16_t *table = (const uint16_t *)op->weights;
  return mgl_widen_bf16(__ldg(table + (uint64_t)(uint32_t)token * op->n + feature));
}

static __device__ __forceinline__ void mgl_wide_task_embed(const mgl_wide_worker *w,
                                                           const mgl_wide_slot *slot) {
  const mgl_cuda_op *op = &slot->op;
  const mgl_wide_plan *plan = w->run->plan;
  uint32_t g = w->lane / 4;
  for (uint32_t unit = slot->step.begin; unit < slot->step.end; unit++) {
    uint32_t row = unit * 8 + w->lane % 4 * 2;
    int32_t first = row < plan->token_count ? plan->tokens[row] : 0;
    int32_t second = row + 1 < plan->token_count ? plan->tokens[row + 1] : 0;
#pragma unroll 4
    for (uint32_t column = w->warp; column < op->n / 16; column += MGL_WIDE_CONSUMER_WARPS) {
      uint32_t feature = column * 16 + g;
      ((float4 *)op->out)[mgl_wide_column(op->tokens, unit, column, w->lane)] = make_float4(
          mgl_wide_table_value(op, first, feature), mgl_wide_table_value(op, second, feature),
          mgl_wide_table_value(op, first, feature + 8),
          mgl_wide_table_value(op, second, feature + 8));
    }
  }
}

// Units are rows: [HD / 2] pairs of cosine and sine of position times frequency.
static __device__ __forceinline__ void mgl_wide_task_angles(const mgl_wide_worker *w,
                                                            const mgl_wide_slot *slot) {
  const uint32_t half = MGL_HEAD_DIM / 2;
  const mgl_wide_plan *plan = w->run->plan;
  uint32_t end = mgl_wide_least(slot->step.end, plan->token_count);
  for (uint32_t i = slot->step.begin * half + w->warp * 32 + w->lane; i < end * half;
       i += MGL_WIDE_CONSUMERS) {
    float angle = (float)plan->positions[i / half] * __ldg(slot->op.angles + i % half);
    float2 pair;
    sincosf(angle, &pair.y, &pair.x);
    ((float2 *)slot->op.out)[i] = pair;
  }
}

// --- norms ---------------------------------------------------------------------------------------

// Of a norm under way.
struct mgl_wide_norm {
  const mgl_cuda_op *op;
  uint32_t unit;
  uint32_t rows[2];  // gather: of the residual stream, that become rows 2 t and 2 t + 1 of the unit
};

// A column of 16 features. `first`: where the linear before was split along k, with its parts,
// whose sum becomes the residual stream.
template <bool gather, bool first>
static __device__ __forceinline__ float4 mgl_wide_norm_load(const mgl_wide_norm *n, uint32_t column,
                                                            uint32_t lane) {
  const mgl_cuda_op *op = n->op;
  if (gather) {
    const uint8_t *x = (const uint8_t *)op->x;
    float v[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      v[i] = *(const float *)(x + mgl_wide_residual_offset(op->tokens, n->rows[i % 2],
                                                           column * 16 + i / 2 * 8 + lane / 4));
    }
    return make_float4(v[0], v[1], v[2], v[3]);
  }
  uint64_t at = mgl_wide_column(op->tokens, n->unit, column, lane);
  float4 v = ((const float4 *)op->x)[at];
  if (first && op->bias != nullptr) {
    for (uint32_t i = 0; i < op->passes; i++) {
      float4 part = ((const float4 *)((const uint8_t *)op->bias + i * op->copy_bytes))[at];
      v = make_float4(v.x + part.x, v.y + part.y, v.z + part.z, v.w + part.w);
    }
    ((float4 *)op->x)[at] = v;
  }
  return v;
}

static __device__ __forceinline__ void mgl_wide_norm_add(float (&sums)[2], float4 v) {
  sums[0] += v.x * v.x + v.z * v.z;
  sums[1] += v.y * v.y + v.w * v.w;
}

// 32 features of the tokens as a chunk of x for each lane: those of even g take the first token,
// those of odd g the second.
static __device__ __forceinline__ void mgl_wide_norm_store(const mgl_wide_norm *n, uint32_t group,
                                                           uint32_t lane, const float factors[2],
                                                           float4 low, float4 high) {
  const float *norm = n->op->norm + group * 32 + lane / 4;
  const float first[4] = {low.x, low.z, high.x, high.z};
  const float second[4] = {low.y, low.w, high.y, high.w};
  bool odd = lane / 4 % 2 != 0;
  float keep[4];
  float give[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float weight = __ldg(norm + 8 * i);
    float a = first[i] * factors[0] * weight;
    float b = second[i] * factors[1] * weight;
    keep[i] = odd ? b : a;
    give[i] = odd ? a : b;
  }
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t own = mgl_pack_bf16(keep[2 * i], keep[2 * i + 1]);
    uint32_t got = __shfl_xor_sync(0xffffffffu, mgl_pack_bf16(give[2 * i], give[2 * i + 1]), 4);
    uint32_t even_g = odd ? got : own;
    uint32_t odd_g = odd ? own : got;
    words[2 * i] = __byte_perm(even_g, odd_g, 0x5410);
    words[2 * i + 1] = __byte_perm(even_g, odd_g, 0x7632);
  }
  uint32_t token = n->unit * 8 + lane % 4 * 2 + (odd ? 1 : 0);
  uint64_t at = mgl_wide_x_chunk(n->op->row_tiles, token, group * 4 + lane / 8);
  *(uint4 *)((uint8_t *)n->op->out + at) = make_uint4(words[0], words[1], words[2], words[3]);
}

// Of eight tokens. All consumers. What is read twice comes from the L2: in registers it would
// spill.
template <bool gather>
static __device__ __forceinline__ void mgl_wide_norm_unit(const mgl_wide_worker *w,
                                                          const mgl_wide_norm *n) {
  const uint32_t groups = n->op->k / 32;
  float sums[2] = {0, 0};
#pragma unroll 4
  for (uint32_t group = w->warp; group < groups; group += MGL_WIDE_CONSUMER_WARPS) {
    mgl_wide_norm_add(sums, mgl_wide_norm_load<gather, true>(n, group * 2, w->lane));
    mgl_wide_norm_add(sums, mgl_wide_norm_load<gather, true>(n, group * 2 + 1, w->lane));
  }
  for (int offset = 4; offset < 32; offset *= 2) {
    sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], offset);
    sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], offset);
  }
  if (w->lane < 4) {
    w->block->sums[w->warp][w->lane * 2] = sums[0];
    w->block->sums[w->warp][w->lane * 2 + 1] = sums[1];
  }
  mgl_sync_wide_consumers();
  float factors[2] = {0, 0};
  for (uint32_t i = 0; i < MGL_WIDE_CONSUMER_WARPS; i++) {
    factors[0] += w->block->sums[i][w->lane % 4 * 2];
    factors[1] += w->block->sums[i][w->lane % 4 * 2 + 1];
  }
  factors[0] = 1.0f / sqrtf(factors[0] / (float)n->op->k + n->op->eps);
  factors[1] = 1.0f / sqrtf(factors[1] / (float)n->op->k + n->op->eps);
  mgl_sync_wide_consumers();  // the sums may be written again
#pragma unroll 4
  for (uint32_t group = w->warp; group < groups; group += MGL_WIDE_CONSUMER_WARPS) {
    mgl_wide_norm_store(n, group, w->lane, factors,
                        mgl_wide_norm_load<gather, false>(n, group * 2, w->lane),
                        mgl_wide_norm_load<gather, false>(n, group * 2 + 1, w->lane));
  }
}

// op.tokens: rows of the residual stream; op.row_tiles: rows of the result's form.
static __device__ __forceinline__ void mgl_wide_task_norm(const mgl_wide_worker *w,
                                                          const mgl_wide_slot *slot) {
  const mgl_wide_plan *plan = w->run->plan;
  bool gathers = (slot->op.flags & MGL_WIDE_GATHERS) != 0;
  uint32_t rows = gathers ? plan->logit_row_count : plan->token_count;
  mgl_wide_norm n;
  n.op = &slot->op;
  for (n.unit = slot->step.begin; n.unit < slot->step.end && n.unit * 8 < rows; n.unit++) {
    uint32_t row = n.unit * 8 + w->lane % 4 * 2;
    if (gathers) {
      n.rows[0] = row < rows ? plan->logit_rows[row] : 0;
      n.rows[1] = row + 1 < rows ? plan->logit_rows[row + 1] : 0;
      mgl_wide_norm_unit<true>(w, &n);
    } else {
      mgl_wide_norm_unit<false>(w, &n);
    }
  }
}

#endif
