// Tasks in which ranks of a model meet: the second half of a linear_add over ranks, which adds up
// what all of them sent, and the gathering of logits.
//
// A rank's parts of a tile come from the same worker of the other ranks, since all run one task
// graph. So nobody waits in a circle: a task waits only for parts that a task at the same place of
// the other lists sends before it waits for anything.
#ifndef MGL_KERNELS_CUDA_SMALL_TASKS_RANKS_CUH
#define MGL_KERNELS_CUDA_SMALL_TASKS_RANKS_CUH

#include "kernels/cuda/common/ranks.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/linear/logit_row.cuh"
#include "kernels/cuda/linear/tasks_linear.cuh"

// The residual at `at` and, onto it, the parts of all ranks of an element, added in the order of
// ranks. One loop waits for all of them, since parts that are there while something else is waited
// for would not find registers. What it returns once the run has failed is of no use.
MGL_DEVICE float mgl_sum_of_parts(const mgl_worker *w, const mgl_exchange *e, size_t element,
                                  const uint8_t *at, bool carried) {
  uint64_t words[MGL_RANKS] = {};
  float residual = mgl_load_l2_float(at);
  bool all = false;
  while (!all && w->block->stop == 0) {
#pragma unroll
    for (uint32_t rank = 0; rank < MGL_RANKS; rank++) {
      words[rank] = mgl_load_part(e->inbox + (size_t)rank * e->stride + element);
    }
    all = true;
    if (carried && mgl_is_open(__float_as_uint(residual))) {
      residual = mgl_load_l2_float(at);
      all = !mgl_is_open(__float_as_uint(residual));
    }
#pragma unroll
    for (uint32_t rank = 0; rank < MGL_RANKS; rank++) {
      all = all && (uint32_t)(words[rank] >> 32) == e->tag;
    }
  }
  float sum = __uint_as_float((uint32_t)words[0]);
#pragma unroll
  for (uint32_t rank = 1; rank < MGL_RANKS; rank++) {
    sum += __uint_as_float((uint32_t)words[rank]);
  }
  return residual + sum;
}

// Row blocks [begin, end) of the slot, whose parts this rank has sent: residual + sum of the parts.
MGL_DEVICE void mgl_task_sum_parts(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  const mgl_cuda_op *op = &slot->op;
  const uint32_t first = slot->begin * MGL_CUDA_BLOCK_ROWS;
  const uint32_t count = mgl_min(slot->end * MGL_CUDA_BLOCK_ROWS, op->n) - first;
  const uint32_t rows = mgl_linear_rows(slot);
  const bool copies = mgl_has_copies(op);
  const bool carried = MGL_CARRIES && (op->flags & MGL_CUDA_CARRIED) != 0;
  for (uint32_t i = w->thread; i < count * op->tokens; i += MGL_CUDA_CONSUMERS) {
    const uint32_t row = i / count;
    const size_t element = (size_t)row * op->n + first + i % count;
    uint8_t *out = (uint8_t *)op->out + element * sizeof(float);
    if (row >= rows) {
      if (copies) {
        mgl_open_word(out, slot);
      }
      continue;
    }
    const uint8_t *at = (const uint8_t *)op->residual + slot->copy_at + element * sizeof(float);
    const float sum = mgl_sum_of_parts(w, &slot->exchange, element, at, carried);
    if (!mgl_task_is_mute(w)) {
      mgl_write_word(out, __float_as_uint(sum), slot, copies);
    }
  }
}

// 16 bytes that another GPU has written, or has in its memory.
MGL_DEVICE uint4 mgl_load_system(const void *address) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

// Four logits of a row, into the whole row; returns the largest of their keys.
MGL_DEVICE uint64_t mgl_place_logits(float *row, uint32_t column, uint4 v) {
  const float values[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                           __uint_as_float(v.w)};
  uint64_t best = 0;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint64_t key = mgl_ordered_best(values[i], column + i);
    best = key > best ? key : best;
    row[column + i] = values[i];
  }
  return best;
}

// Columns [begin, end) of every rank's part of the logits, for all rows that have some; and what
// the tasks of logits do on one rank, the largest logit of each row.
MGL_DEVICE void mgl_task_all_gather(mgl_worker *w) {
  if (MGL_RANKS == 1) {
    return;  // it is not called
  }
  const mgl_cuda_run *run = w->run;
  const mgl_slot *slot = mgl_task_slot(w);
  const mgl_cuda_op *op = &slot->op;
  const uint32_t quads = (slot->end - slot->begin) / 4;
  const uint32_t rows = __ldcg(&slot->plan->logit_row_count);
  if (!mgl_task_begin(w) || mgl_task_is_mute(w)) {
    return;
  }
  for (uint32_t row = 0; row < rows; row++) {
    const float *from = (const float *)op->x + (size_t)row * op->x_stride + slot->begin;
    float *to = (float *)op->out + (size_t)row * op->n;
    uint64_t best = 0;
    for (uint32_t i = w->thread; i < quads * MGL_RANKS; i += MGL_CUDA_CONSUMERS) {
      const uint32_t rank = i / quads;
      const uint32_t at = i % quads * 4;
      const uint4 v = mgl_load_system(mgl_at_peer(from + at, run->peers[rank]));
      const uint64_t key = mgl_place_logits(to, rank * op->x_stride + slot->begin + at, v);
      best = key > best ? key : best;
    }
    best = mgl_warp_max(best);
    if (w->lane == 0) {
      atomicMax((unsigned long long *)&w->run->best[row], (unsigned long long)best);
    }
  }
}

#endif
