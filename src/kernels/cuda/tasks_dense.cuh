// The dense tasks, in the simplest form that reads weights by coalesced 16-byte loads: embed,
// rmsnorm, linear, linear_add, gate_up, logits, silu_mul, add. Run by the consumer warps of a
// block.
//
// A tile is a range of output columns for all rows (embed, rmsnorm: of rows); see task/tile.h. The
// row of activations is staged in shared memory as f32 once per task; a warp then makes two columns
// at a time. Weights never change while the kernel runs and take the non-coherent path; activations
// come from other SMs of this launch and must not. Rounding points are the CPU's: rows that enter a
// product are rounded to bf16, everything else is f32.
#ifndef MGL_KERNELS_CUDA_TASKS_DENSE_CUH
#define MGL_KERNELS_CUDA_TASKS_DENSE_CUH

#include "kernels/cuda/worker.cuh"

static __device__ inline float mgl_load_element(const void *data, uint32_t bf16, size_t index) {
  return bf16 != 0 ? mgl_widen_bf16(((const uint16_t *)data)[index]) : ((const float *)data)[index];
}

static __device__ inline void mgl_store_element(void *data, uint32_t bf16, size_t index,
                                                float value) {
  if (bf16 != 0) {
    ((uint16_t *)data)[index] = mgl_round_bf16(value);
  } else {
    ((float *)data)[index] = value;
  }
}

// Sum over all consumers; contains two barriers.
static __device__ float mgl_consumers_sum(mgl_block *block, float value, uint32_t thread) {
  value = mgl_warp_sum(value);
  if (thread % 32 == 0) {
    block->sums[thread / 32] = value;
  }
  mgl_sync_consumers();
  float sum = 0;
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    sum += block->sums[i];
  }
  mgl_sync_consumers();
  return sum;
}

// 1 / sqrt(mean(x^2) + eps) of one row.
static __device__ float mgl_row_scale(mgl_block *block, const float *x, uint32_t width, float eps,
                                      uint32_t thread) {
  float squares = 0;
  for (uint32_t i = thread; i < width; i += MGL_CUDA_CONSUMERS) {
    squares += x[i] * x[i];
  }
  return 1.0f / sqrtf(mgl_consumers_sum(block, squares, thread) / (float)width + eps);
}

// --- embed, rmsnorm, add, silu_mul ---------------------------------------------------------------

static __device__ void mgl_task_embed(const mgl_cuda_op *op, uint32_t begin, uint32_t end,
                                      uint32_t thread) {
  const int32_t *tokens = (const int32_t *)op->inputs[0];
  const uint16_t *table = (const uint16_t *)op->inputs[1];
  float *out = (float *)op->output;
  for (uint32_t row = begin; row < end && row < op->rows; row++) {
    const uint16_t *from = table + (size_t)tokens[row] * op->columns;
    for (uint32_t i = thread; i < op->columns; i += MGL_CUDA_CONSUMERS) {
      out[(size_t)row * op->columns + i] = mgl_widen_bf16(from[i]);
    }
  }
}

static __device__ void mgl_task_rmsnorm(const mgl_cuda_op *op, mgl_block *block, uint32_t begin,
                                        uint32_t end, uint32_t thread) {
  const float *weight = (const float *)op->inputs[1];
  const uint32_t *rows = (const uint32_t *)op->inputs[2];
  for (uint32_t row = begin; row < end && row < op->rows; row++) {
    uint32_t source = rows != nullptr ? rows[row] : row;
    const float *x = (const float *)op->inputs[0] + (size_t)source * op->width;
    float scale = mgl_row_scale(block, x, op->width, op->eps, thread);
    for (uint32_t i = thread; i < op->width; i += MGL_CUDA_CONSUMERS) {
      mgl_store_element(op->output, op->out_bf16, (size_t)row * op->width + i,
                        x[i] * scale * weight[i]);
    }
  }
}

static __device__ void mgl_task_add(const mgl_cuda_op *op, uint32_t begin, uint32_t end,
                                    uint32_t thread) {
  for (uint32_t row = 0; row < op->rows; row++) {
    for (uint32_t i = begin + thread; i < end; i += MGL_CUDA_CONSUMERS) {
      size_t at = (size_t)row * op->columns + i;
      ((float *)op->output)[at] =
          ((const float *)op->inputs[0])[at] + ((const float *)op->inputs[1])[at];
    }
  }
}

static __device__ inline float mgl_silu(float x) {
  return x / (1.0f + expf(-x));
}

static __device__ void mgl_task_silu_mul(const mgl_cuda_op *op, uint32_t begin, uint32_t end,
                                         uint32_t thread) {
  for (uint32_t row = 0; row < op->rows; row++) {
    for (uint32_t i = begin + thread; i < end; i += MGL_CUDA_CONSUMERS) {
      size_t at = (size_t)row * op->columns + i;
      float gate = ((const float *)op->inputs[0])[at];
      float up = ((const float *)op->inputs[1])[at];
      mgl_store_element(op->output, op->out_bf16, at, mgl_silu(gate) * up);
    }
  }
}

// --- products ------------------------------------------------------------------------------------

// Stages a row of x, with a norm if `norm` is given. Ends with a barrier.
static __device__ void mgl_stage_row(const mgl_cuda_op *op, const void *x, const float *norm,
                                     uint32_t row, mgl_block *block, float *staged,
                                     uint32_t thread) {
  mgl_sync_consumers();  // the row before has been read
  if (norm != nullptr) {
    const float *from = (const float *)x + (size_t)row * op->width;
    float scale = mgl_row_scale(block, from, op->width, op->eps, thread);
    for (uint32_t i = thread; i < op->width; i += MGL_CUDA_CONSUMERS) {
      staged[i] = mgl_widen_bf16(mgl_round_bf16(from[i] * scale * norm[i]));
    }
  } else {
    for (uint32_t i = thread; i < op->width; i += MGL_CUDA_CONSUMERS) {
      staged[i] = mgl_load_element(x, op->x_bf16, (size_t)row * op->width + i);
    }
  }
  mgl_sync_consumers();
}

// 16 bytes of weights, past the L1: every byte is used once.
static __device__ inline uint4 mgl_load_weights(const uint16_t *from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

static __device__ inline float mgl_dot8(uint4 w, const float *x, float sum) {
  float4 low = *(const float4 *)x;
  float4 high = *(const float4 *)(x + 4);
  sum = fmaf(mgl_widen_bf16(w.x), low.x, sum);
  sum = fmaf(__uint_as_float(w.x & 0xffff0000u), low.y, sum);
  sum = fmaf(mgl_widen_bf16(w.y), low.z, sum);
  sum = fmaf(__uint_as_float(w.y & 0xffff0000u), low.w, sum);
  sum = fmaf(mgl_widen_bf16(w.z), high.x, sum);
  sum = fmaf(__uint_as_float(w.z & 0xffff0000u), high.y, sum);
  sum = fmaf(mgl_widen_bf16(w.w), high.z, sum);
  return fmaf(__uint_as_float(w.w & 0xffff0000u), high.w, sum);
}

// Dot products of the staged row with two rows of weights, by one warp. width is a multiple of 8.
static __device__ inline void mgl_dot_pair(const uint16_t *w0, const uint16_t *w1, const float *x,
                                           uint32_t width, float *out0, float *out1) {
  float sum0 = 0;
  float sum1 = 0;
#pragma unroll 4
  for (uint32_t i = threadIdx.x % 32 * 8; i < width; i += 256) {
    uint4 a = mgl_load_weights(w0 + i);
    uint4 b = mgl_load_weights(w1 + i);
    sum0 = mgl_dot8(a, x + i, sum0);
    sum1 = mgl_dot8(b, x + i, sum1);
  }
  *out0 = mgl_warp_sum(sum0);
  *out1 = mgl_warp_sum(sum1);
}

// An f32 as an integer of the same order, above its complemented index: the largest is the largest
// element with the lowest index. Never 0.
static __device__ inline uint64_t mgl_argmax_key(float value, uint32_t index) {
  uint32_t bits = __float_as_uint(value);
  bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (uint64_t)bits << 32 | (uint32_t)~index;
}

// The block's largest key becomes part of the launch's.
static __device__ void mgl_raise_best(mgl_cuda_run *run, mgl_block *block, uint64_t best,
                                      uint32_t thread) {
  if (thread % 32 == 0) {
    block->best[thread / 32] = best;
  }
  mgl_sync_consumers();
  if (thread == 0) {
    for (uint32_t i = 1; i < MGL_CUDA_CONSUMER_WARPS; i++) {
      best = block->best[i] > best ? block->best[i] : best;
    }
    // Relaxed: the task's trigger releases it.
    atomicMax((unsigned long long *)&run->best.value, (unsigned long long)best);
  }
}

// linear, linear_add and logits: columns [begin, end) of x w^T, two a warp.
static __device__ void mgl_task_product(mgl_cuda_run *run, const mgl_cuda_op *op, mgl_block *block,
                                        float *staged, uint32_t begin, uint32_t end,
                                        uint32_t thread) {
  bool is_add = op->kind == MGL_OP_LINEAR_ADD;
  bool is_logits = op->kind == MGL_OP_LOGITS;
  const void *x = is_add ? op->inputs[1] : op->inputs[0];
  const float *norm = is_logits ? (const float *)op->inputs[1] : nullptr;
  const uint32_t *rows = is_logits ? (const uint32_t *)op->inputs[2] : nullptr;
  const uint16_t *w = (const uint16_t *)op->inputs[is_logits ? 3 : is_add ? 2 : 1];
  const float *bias = op->kind == MGL_OP_LINEAR ? (const float *)op->inputs[2] : nullptr;
  const float *residual = is_add ? (const float *)op->inputs[0] : nullptr;
  float *out = (float *)op->output;
  uint64_t best = 0;
  for (uint32_t row = 0; row < op->rows; row++) {
    mgl_stage_row(op, x, norm, rows != nullptr ? rows[row] : row, block, staged, thread);
    for (uint32_t n = begin + thread / 32 * 2; n < end; n += MGL_CUDA_CONSUMER_WARPS * 2) {
      uint32_t last = n + 1 < end ? n + 1 : n;
      float value[2];
      mgl_dot_pair(w + (size_t)n * op->width, w + (size_t)last * op->width, staged, op->width,
                   &value[0], &value[1]);
      for (uint32_t i = 0; i <= last - n; i++) {
        size_t at = (size_t)row * op->columns + n + i;
        float result = value[i];
        result += bias != nullptr ? bias[n + i] : 0;
        result += residual != nullptr && thread % 32 == 0 ? residual[at] : 0;
        if (thread % 32 == 0) {
          out[at] = result;
        }
        uint64_t key = mgl_argmax_key(result, n + i);
        best = key > best ? key : best;
      }
    }
  }
  if (op->is_argmax != 0) {
    mgl_raise_best(run, block, best, thread);
  }
}

static __device__ void mgl_task_gate_up(const mgl_cuda_op *op, mgl_block *block, float *staged,
                                        uint32_t begin, uint32_t end, uint32_t thread) {
  const uint16_t *w_gate = (const uint16_t *)op->inputs[2];
  const uint16_t *w_up = (const uint16_t *)op->inputs[3];
  for (uint32_t row = 0; row < op->rows; row++) {
    mgl_stage_row(op, op->inputs[0], (const float *)op->inputs[1], row, block, staged, thread);
    for (uint32_t n = begin + thread / 32; n < end; n += MGL_CUDA_CONSUMER_WARPS) {
      float gate;
      float up;
      mgl_dot_pair(w_gate + (size_t)n * op->width, w_up + (size_t)n * op->width, staged, op->width,
                   &gate, &up);
      if (thread % 32 == 0) {
        mgl_store_element(op->output, op->out_bf16, (size_t)row * op->columns + n,
                          mgl_silu(gate) * up);
      }
    }
  }
}

// Dispatch over the kinds that this file knows; the host refuses programs with others.
static __device__ void mgl_run_task(mgl_cuda_run *run, mgl_block *block, float *staged,
                                    uint32_t thread) {
  const mgl_cuda_op *op = block->op;
  uint32_t begin = block->begin;
  uint32_t end = block->end;
  switch (op->kind) {
    case MGL_OP_EMBED: mgl_task_embed(op, begin, end, thread); break;
    case MGL_OP_RMSNORM: mgl_task_rmsnorm(op, block, begin, end, thread); break;
    case MGL_OP_ADD: mgl_task_add(op, begin, end, thread); break;
    case MGL_OP_SILU_MUL: mgl_task_silu_mul(op, begin, end, thread); break;
    case MGL_OP_GATE_UP: mgl_task_gate_up(op, block, staged, begin, end, thread); break;
    case MGL_OP_LINEAR:
    case MGL_OP_LINEAR_ADD:
    case MGL_OP_LOGITS: mgl_task_product(run, op, block, staged, begin, end, thread); break;
  }
}

#endif
