// rope_kv of the wide class: norms and rotates Q and K, puts K and V into the paged cache, and
// leaves Q scaled, so that attention finds all it reads in the form in which it reads it.
//
// Rows of Q and K are taken by parts of a warp, V by runs of up to 8 positions of half a page: a
// page has V position-fastest, so that 8 consecutive tokens fill 16 bytes of each of its rows.
//
// Rejected: rotating in the epilogue of qkv_proj: a head's two halves lie in different warps there
// (where sums go through memory anyway, they do not: wide_rope_sums.cuh).
#ifndef MGL_KERNELS_CUDA_SMALL_WIDE_ROPE_KV_CUH
#define MGL_KERNELS_CUDA_SMALL_WIDE_ROPE_KV_CUH

#include "kernels/cuda/common/worker.cuh"
#include "twin/wide_attention.h"

enum {
  MGL_ROPE_LANES = MGL_HEAD_DIM / 8,  // that have a head of Q or K: 4 elements of each half
  MGL_ROPE_PITCH = MGL_ROPE_LANES <= 4   ? 4
                   : MGL_ROPE_LANES <= 8 ? 8
                                         : 16,  // lanes set aside
  MGL_ROPE_HEADS = 32 / MGL_ROPE_PITCH,         // heads of a warp at once
  MGL_ROPE_PASSES = 4,                          // of them in flight
  MGL_ROPE_V_LANES = MGL_HEAD_DIM / 4,          // that have a head of V: 4 elements
  MGL_ROPE_V_HEADS = 32 / MGL_ROPE_V_LANES,
  MGL_ROPE_V_ROWS = 8,  // rows of V that a warp takes at once
};

static_assert(MGL_HEAD_DIM % 32 == 0 && MGL_HEAD_DIM <= 128, "lanes of a head");
static_assert(MGL_CUDA_KV_PAGE_TOKENS == 2 * MGL_ROPE_V_ROWS, "runs of V are halves of a page");

// The page that holds a position of a row's sequence.
MGL_DEVICE uint32_t mgl_wide_page(const mgl_wide_attention *a, uint32_t slot, uint32_t position) {
  const int32_t *table = a->block_tables + (size_t)slot * a->block_table_stride;
  return (uint32_t)table[position / MGL_CUDA_KV_PAGE_TOKENS];
}

// Elements before a KV head of a page, of K and of V.
MGL_DEVICE size_t mgl_wide_page_offset(const mgl_wide_attention *a, uint32_t page,
                                       uint32_t kv_head) {
  return ((size_t)page * a->kv_heads + kv_head) * (MGL_CUDA_KV_PAGE_TOKENS * MGL_HEAD_DIM);
}

// Four elements of Q or K as qkv_proj leaves them, f16.
MGL_DEVICE void mgl_wide_unpack4(uint2 bits, float out[4]) {
  asm("{\n.reg .f16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
      : "=f"(out[0]), "=f"(out[1])
      : "r"(bits.x));
  asm("{\n.reg .f16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
      : "=f"(out[2]), "=f"(out[3])
      : "r"(bits.y));
}

MGL_DEVICE uint2 mgl_wide_pack4(const float v[4]) {
  return make_uint2(mgl_pack_bf16(v[0], v[1]), mgl_pack_bf16(v[2], v[3]));
}

// A lane's part of the weights of one norm.
typedef struct mgl_rope_norm {
  float4 low, high;
} mgl_rope_norm;

MGL_DEVICE mgl_rope_norm mgl_rope_load_norm(const float *norm, uint32_t part) {
  mgl_rope_norm n = {};
  if (norm != nullptr && part < MGL_ROPE_LANES) {
    n.low = *(const float4 *)(norm + part * 4);
    n.high = *(const float4 *)(norm + part * 4 + MGL_HEAD_DIM / 2);
  }
  return n;
}

// A warp's job: up to MGL_ROPE_HEADS * MGL_ROPE_PASSES heads of Q or of K of a row. What the lane
// has of it, as loaded: while one job is computed, the next one's is on its way.
typedef struct mgl_rope_job {
  uint32_t row;
  uint32_t head, end;  // the lane's first head of these, and their end
  bool is_q;
  uint32_t position, slot;
  uint2 bits[MGL_ROPE_PASSES][2];
  uint4 angles[2];  // cos and sin of 4 pairs
} mgl_rope_job;

// Job number `number` of the rows from `begin` on: those of Q, then those of K of each.
MGL_DEVICE void mgl_rope_load(const mgl_wide_attention *a, uint32_t begin, uint32_t number,
                              uint32_t lane, mgl_rope_job *job) {
  const uint32_t of_job = MGL_ROPE_HEADS * MGL_ROPE_PASSES, q_heads = a->kv_heads * MGL_GROUP;
  const uint32_t q_jobs = (q_heads + of_job - 1) / of_job;
  const uint32_t of_row = q_jobs + (a->kv_heads + of_job - 1) / of_job;
  const uint32_t part = lane % MGL_ROPE_PITCH < MGL_ROPE_LANES ? lane % MGL_ROPE_PITCH : 0;
  const uint32_t of = number % of_row;
  job->row = begin + number / of_row;
  job->is_q = of < q_jobs;
  job->head = (job->is_q ? of : of - q_jobs) * of_job + lane / MGL_ROPE_PITCH;
  job->end = job->is_q ? q_heads : a->kv_heads;
  const uint16_t *x = a->qkv + (size_t)job->row * (q_heads + 2 * a->kv_heads) * MGL_HEAD_DIM +
                      (job->is_q ? 0 : q_heads * MGL_HEAD_DIM) + part * 4;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ROPE_PASSES; i++) {
    uint32_t head = job->head + i * MGL_ROPE_HEADS;
    head = head < job->end ? head : job->end - 1;
    job->bits[i][0] = mgl_load_l2_pair(x + head * MGL_HEAD_DIM);
    job->bits[i][1] = mgl_load_l2_pair(x + head * MGL_HEAD_DIM + MGL_HEAD_DIM / 2);
  }
  const float *angles = a->angles + (size_t)job->row * MGL_HEAD_DIM + part * 8;
  job->angles[0] = mgl_load_l2(angles);
  job->angles[1] = mgl_load_l2(angles + 4);
  job->position = a->positions[job->row];
  job->slot = a->slots[job->row];
}

// The RMS norm of a job's heads, each in MGL_ROPE_PITCH lanes.
MGL_DEVICE void mgl_rope_apply_norm(float eps, const mgl_rope_norm *norm, bool present,
                                    float x[MGL_ROPE_PASSES][2][4]) {
  const float weights[2][4] = {{norm->low.x, norm->low.y, norm->low.z, norm->low.w},
                               {norm->high.x, norm->high.y, norm->high.z, norm->high.w}};
  float sums[MGL_ROPE_PASSES];
#pragma unroll
  for (uint32_t i = 0; i < MGL_ROPE_PASSES; i++) {
    sums[i] = 0;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      sums[i] += x[i][0][j] * x[i][0][j] + x[i][1][j] * x[i][1][j];
    }
    sums[i] = present ? sums[i] : 0;
  }
#pragma unroll
  for (int offset = 1; offset < MGL_ROPE_PITCH; offset *= 2) {
#pragma unroll
    for (uint32_t i = 0; i < MGL_ROPE_PASSES; i++) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], offset);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_ROPE_PASSES; i++) {
    const float factor = rsqrtf(sums[i] * (1.0f / (float)MGL_HEAD_DIM) + eps);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      x[i][0][j] = x[i][0][j] * factor * weights[0][j];
      x[i][1][j] = x[i][1][j] * factor * weights[1][j];
    }
  }
}

MGL_DEVICE void mgl_rope_finish(const mgl_wide_attention *a, const mgl_rope_norm norms[2],
                                uint32_t lane, const mgl_rope_job *job) {
  const uint32_t part = lane % MGL_ROPE_PITCH;
  const bool present = part < MGL_ROPE_LANES;
  const uint32_t v[8] = {job->angles[0].x, job->angles[0].y, job->angles[0].z, job->angles[0].w,
                         job->angles[1].x, job->angles[1].y, job->angles[1].z, job->angles[1].w};
  float x[MGL_ROPE_PASSES][2][4];
#pragma unroll
  for (uint32_t i = 0; i < MGL_ROPE_PASSES; i++) {
    mgl_wide_unpack4(job->bits[i][0], x[i][0]);
    mgl_wide_unpack4(job->bits[i][1], x[i][1]);
  }
  if (a->q_norm != nullptr) {  // a model has both norms or none
    mgl_rope_apply_norm(a->eps, job->is_q ? &norms[0] : &norms[1], present, x);
  }
  uint16_t *to = a->q + (size_t)job->row * a->kv_heads * (MGL_GROUP * MGL_HEAD_DIM);
  uint32_t stride = MGL_HEAD_DIM;                // from a head to the next one
  float scale = a->scale * 1.4426950408889634f;  // scores are powers of 2
  if (!job->is_q) {
    to = a->k_cache + mgl_wide_page_offset(a, mgl_wide_page(a, job->slot, job->position), 0) +
         job->position % MGL_CUDA_KV_PAGE_TOKENS * MGL_HEAD_DIM;
    stride = MGL_CUDA_KV_PAGE_TOKENS * MGL_HEAD_DIM;
    scale = 1.0f;
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_ROPE_PASSES; i++) {
    const uint32_t head = job->head + i * MGL_ROPE_HEADS;
    float out[2][4];
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      const float cosine = __uint_as_float(v[2 * j]), sine = __uint_as_float(v[2 * j + 1]);
      out[0][j] = (x[i][0][j] * cosine - x[i][1][j] * sine) * scale;
      out[1][j] = (x[i][1][j] * cosine + x[i][0][j] * sine) * scale;
    }
    if (present && head < job->end) {
      *(uint2 *)(to + head * stride + part * 4) = mgl_wide_pack4(out[0]);
      *(uint2 *)(to + head * stride + part * 4 + MGL_HEAD_DIM / 2) = mgl_wide_pack4(out[1]);
    }
  }
}

// Q and K of rows [begin, end), jobs warp, warp + MGL_WIDE_WARPS, ...
MGL_DEVICE void mgl_rope_rows(const mgl_wide_attention *a, uint32_t begin, uint32_t end,
                              uint32_t warp, uint32_t lane) {
  const uint32_t of_job = MGL_ROPE_HEADS * MGL_ROPE_PASSES;
  const uint32_t of_row =
      (a->kv_heads * MGL_GROUP + of_job - 1) / of_job + (a->kv_heads + of_job - 1) / of_job;
  const uint32_t jobs = (end - begin) * of_row;
  const mgl_rope_norm norms[2] = {mgl_rope_load_norm(a->q_norm, lane % MGL_ROPE_PITCH),
                                  mgl_rope_load_norm(a->k_norm, lane % MGL_ROPE_PITCH)};
  mgl_rope_job job;
  if (warp < jobs) {
    mgl_rope_load(a, begin, warp, lane, &job);
  }
#pragma unroll 1
  for (uint32_t i = warp; i < jobs; i += MGL_WIDE_WARPS) {
    const mgl_rope_job own = job;
    if (i + MGL_WIDE_WARPS < jobs) {
      mgl_rope_load(a, begin, i + MGL_WIDE_WARPS, lane, &job);
    }
    mgl_rope_finish(a, norms, lane, &own);
  }
}

// Elements 4 part .. 4 part + 3 of V of positions `first` to `end` - 1 of half a page, which `v`
// has by position, to `to`: in pieces as large as there are. Half pages are written by several
// tasks where prompts do not begin with one.
MGL_DEVICE void mgl_rope_store_v(uint16_t *to, uint32_t first, uint32_t end,
                                 const uint2 v[MGL_ROPE_V_ROWS]) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {  // elements
    uint32_t words[MGL_ROPE_V_ROWS / 2];
#pragma unroll
    for (uint32_t k = 0; k < MGL_ROPE_V_ROWS / 2; k++) {
      uint32_t low = i < 2 ? v[2 * k].x : v[2 * k].y;
      uint32_t high = i < 2 ? v[2 * k + 1].x : v[2 * k + 1].y;
      words[k] = __byte_perm(low, high, i % 2 == 0 ? 0x5410 : 0x7632);
    }
    if (end - first == MGL_ROPE_V_ROWS) {
      *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
#pragma unroll
      for (uint32_t k = 0; k < MGL_ROPE_V_ROWS / 2; k++) {
        if (first <= 2 * k && 2 * k + 1 < end) {
          *(uint32_t *)(to + 2 * k) = words[k];
        } else if (first <= 2 * k && 2 * k < end) {
          to[2 * k] = (uint16_t)words[k];
        } else if (first == 2 * k + 1 && 2 * k + 1 < end) {
          to[2 * k + 1] = (uint16_t)(words[k] >> 16);
        }
      }
    }
    to += MGL_CUDA_KV_PAGE_TOKENS;
  }
}

// Stores one position, which lies at `to`.
MGL_DEVICE void mgl_rope_store_one(uint16_t *to, uint2 v) {
  to[0] = (uint16_t)v.x;
  to[MGL_CUDA_KV_PAGE_TOKENS] = (uint16_t)(v.x >> 16);
  to[2 * MGL_CUDA_KV_PAGE_TOKENS] = (uint16_t)v.y;
  to[3 * MGL_CUDA_KV_PAGE_TOKENS] = (uint16_t)(v.y >> 16);
}

// V of KV heads [kv_head, kv_head + MGL_ROPE_V_HEADS) of the runs that begin in rows first to
// first + 7, by one warp. A run is of one sequence and of one half of a page; rows [begin, end) are
// the task's. Where every row is a run, as of sequences that decode, all are loaded at once.
MGL_DEVICE void mgl_rope_values(const mgl_wide_attention *a, uint32_t first, uint32_t begin,
                                uint32_t end, uint32_t kv_head, uint32_t lane) {
  const uint32_t part = lane % MGL_ROPE_V_LANES;
  const uint32_t stride = a->kv_heads * (MGL_GROUP + 2) * MGL_HEAD_DIM;
  kv_head += lane / MGL_ROPE_V_LANES;
  const bool present = lane < MGL_ROPE_V_LANES * MGL_ROPE_V_HEADS && kv_head < a->kv_heads;
  const uint16_t *x = a->qkv + (a->kv_heads * (MGL_GROUP + 1) + kv_head) * MGL_HEAD_DIM + part * 4;
  // Lane i knows row first + i: where its V begins in the pages of a KV head, and whether it begins
  // a run.
  const uint32_t row = first + lane < end ? first + lane : end - 1;
  const uint32_t position = a->positions[row], slot = a->slots[row];
  const uint32_t page = mgl_wide_page(a, slot, position);
  const uint32_t before = __shfl_up_sync(0xffffffffu, slot, 1);
  const bool own_begins = first + lane >= end || first + lane == begin ||
                          position % MGL_ROPE_V_ROWS == 0 || (lane > 0 && slot != before) ||
                          (lane == 0 && slot != a->slots[row - 1]);
  const uint32_t begins = __ballot_sync(0xffffffffu, own_begins);
  const uint32_t left = end - first < MGL_ROPE_V_ROWS ? end - first : MGL_ROPE_V_ROWS;
  uint2 v[MGL_ROPE_V_ROWS] = {};
  if ((begins & 0x1ffu) == 0x1ffu) {  // the last one has one row too
#pragma unroll
    for (uint32_t k = 0; k < MGL_ROPE_V_ROWS; k++) {
      if (k < left && present) {
        v[k] = mgl_load_l2_pair(x + (size_t)(first + k) * stride);
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < MGL_ROPE_V_ROWS; k++) {
      const uint32_t k_page = __shfl_sync(0xffffffffu, page, (int)k);
      const uint32_t k_position = __shfl_sync(0xffffffffu, position, (int)k);
      if (k < left && present) {
        mgl_rope_store_one(a->v_cache + mgl_wide_page_offset(a, k_page, kv_head) +
                               part * 4 * MGL_CUDA_KV_PAGE_TOKENS +
                               k_position % MGL_CUDA_KV_PAGE_TOKENS,
                           v[k]);
      }
    }
    return;
  }
  for (uint32_t own = begins & ((1u << left) - 1); own != 0; own &= own - 1) {
    const uint32_t at = (uint32_t)__ffs((int)own) - 1;
    const uint32_t count = (uint32_t)__ffs((int)(begins >> (at + 1)));  // up to the next run
    const uint32_t run_page = __shfl_sync(0xffffffffu, page, (int)at);
    const uint32_t run_position = __shfl_sync(0xffffffffu, position, (int)at);
    const uint32_t from = run_position % MGL_ROPE_V_ROWS;  // in its half page
#pragma unroll
    for (uint32_t k = 0; k < MGL_ROPE_V_ROWS; k++) {
      if (k >= from && k < from + count && present) {
        v[k] = mgl_load_l2_pair(x + (size_t)(first + at + k - from) * stride);
      }
    }
    if (present) {
      mgl_rope_store_v(a->v_cache + mgl_wide_page_offset(a, run_page, kv_head) +
                           part * 4 * MGL_CUDA_KV_PAGE_TOKENS +
                           (run_position % MGL_CUDA_KV_PAGE_TOKENS - from),
                       from, from + count, v);
    }
  }
}

// Rows [begin, end) of the iteration. All consumers call it; needs no shared memory and no barrier.
MGL_DEVICE void mgl_wide_rope_kv(const mgl_wide_attention *a, uint32_t begin, uint32_t end,
                                 uint32_t thread) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  const uint32_t of_runs = (a->kv_heads + MGL_ROPE_V_HEADS - 1) / MGL_ROPE_V_HEADS;
  if (begin >= end) {
    return;
  }
  mgl_rope_rows(a, begin, end, warp, lane);
  const uint32_t jobs = (end - begin + MGL_ROPE_V_ROWS - 1) / MGL_ROPE_V_ROWS * of_runs;
#pragma unroll 1
  for (uint32_t i = warp; i < jobs; i += MGL_WIDE_WARPS) {
    mgl_rope_values(a, begin + i / of_runs * MGL_ROPE_V_ROWS, begin, end,
                    i % of_runs * MGL_ROPE_V_HEADS, lane);
  }
}

#endif
