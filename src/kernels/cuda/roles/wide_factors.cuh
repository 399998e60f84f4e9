// The warp of a wide worker that finds the factors of norms (wide_worker.cuh).
#ifndef MGL_KERNELS_CUDA_ROLES_WIDE_FACTORS_CUH
#define MGL_KERNELS_CUDA_ROLES_WIDE_FACTORS_CUH

#include "kernels/cuda/roles/wide_worker.cuh"

MGL_DEVICE float mgl_wide_factor(const mgl_cuda_op *op, float squares) {
  return 1.0f / sqrtf(squares / (float)op->k + op->eps);
}

// The factors of four rows by the norm before the linear. Loads come in batches without a branch
// between them: with one, each waits for the one before (docs/log/229).
MGL_DEVICE float4 mgl_wide_factors(const mgl_cuda_op *op, uint32_t row) {
  constexpr uint32_t batch = 8;
  const uint32_t ranges = (op->k + MGL_WIDE_NORM_RANGE - 1) / MGL_WIDE_NORM_RANGE;
  const float *squares = op->norm + row;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (uint32_t first = 0; first < ranges; first += batch) {
    float4 v[batch];
#pragma unroll
    for (uint32_t i = 0; i < batch; i++) {
      const uint32_t range = mgl_wide_least(first + i, ranges - 1);
      v[i] = *(const float4 *)(squares + (size_t)range * op->tokens);
    }
#pragma unroll
    for (uint32_t i = 0; i < batch; i++) {
      const bool there = first + i < ranges;
      sum.x += there ? v[i].x : 0;
      sum.y += there ? v[i].y : 0;
      sum.z += there ? v[i].z : 0;
      sum.w += there ? v[i].w : 0;
    }
  }
  return make_float4(mgl_wide_factor(op, sum.x), mgl_wide_factor(op, sum.y),
                     mgl_wide_factor(op, sum.z), mgl_wide_factor(op, sum.w));
}

// One warp: for every task, the factors of the tile's tokens by the norm before the linear, while
// the consumers multiply. For those that begin early it waits for their event; if the launch is
// ended, the producer meets that at its next event.
MGL_DEVICE void mgl_wide_find_factors(mgl_wide_worker *w) {
  while (mgl_wide_wait(w, &w->block->go[w->slot], w->parity)) {
    const mgl_wide_slot *slot = &w->block->slots[w->slot];
    const mgl_cuda_op *op = &slot->op;
    mgl_wide_note_stage(w, &slot->step);  // here nobody waits for it
    if (mgl_op_kind_is_linear(op->kind) && op->norm != nullptr) {
      const uint32_t first = mgl_wide_tile_of(w, slot).token;
#pragma unroll 1
      for (uint32_t token = w->lane * 4; token < MGL_WIDE_TILE_TOKENS; token += 32 * 4) {
        *(float4 *)&w->block->factors[w->slot][token] = mgl_wide_factors(op, first + token);
      }
    }
    if (mgl_wide_is_up(op->kind)) {
      const mgl_wide_slot_row *rows = slot->with.experts.rows + mgl_wide_tile_of(w, slot).token;
      for (uint32_t token = w->lane; token < MGL_WIDE_TILE_TOKENS; token += 32) {
        w->block->factors[w->slot][token] = rows[token].factor;
        mgl_wide_slot_weights(w)[token] = rows[token].weight;
      }
    }
    if (mgl_wide_begins_early(op->kind)) {
      (void)mgl_wide_wait_event(w, &slot->step);
    }
    __syncwarp();
    if (w->lane == 0) {
      mgl_mbarrier_arrive(&w->block->factored[w->slot]);
    }
    mgl_wide_next_slot(w);
  }
}

#endif
