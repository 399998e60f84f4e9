// Plain kernels of rows and elements: a block computes a row (token, vector), or a thread an
// element. What each op computes, graph/op.def says.
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_ROWS_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_ROWS_CUH

#include "graph/formulas.h"
#include "kernels/cuda/plain/plain_block.cuh"

// --- embed ---------------------------------------------------------------------------------------

MGL_PLAIN_FN void mgl_plain_embed(const mgl_plain_op *op, mgl_plain_place at) {
  const mgl_plain_tensor *table = &op->in[1];
  const int32_t *tokens = (const int32_t *)op->in[0].data;
  for (uint64_t t = at.block; t < op->units; t += at.blocks) {
    float *out = (float *)op->out.data + t * op->out.width;
    const uint8_t *row = (const uint8_t *)table->data + (uint64_t)tokens[t] * table->row_bytes;
    for (uint32_t i = at.thread; i < op->out.width; i += at.threads) {
      out[i] =
          table->code != 0 ? mgl_plain_code(table, row, i) : mgl_plain_load(row, table->dtype, i);
    }
  }
}

// --- norms ---------------------------------------------------------------------------------------

// The input of vector `unit` of as many elements as its norm's weight, which with rows is another
// row's.
MGL_PLAIN_FN const float *mgl_plain_vector(const mgl_plain_op *op, const mgl_plain_tensor *rows,
                                           uint64_t unit) {
  uint32_t width = op->in[1].rows;
  uint32_t vectors = op->out.width / width;  // of a row
  uint64_t row = unit / vectors;
  uint64_t source = rows == 0 ? row : mgl_plain_u32(rows)[row];
  return mgl_plain_f32(&op->in[0]) + source * op->out.width + unit % vectors * width;
}

// The norms of heads in the order of attend (attend/attend_rows.cuh): a warp computes a head, a
// lane every 32nd pair of elements half a head apart.
MGL_PLAIN_FN void mgl_plain_head_norms(const mgl_plain_op *op, mgl_plain_place at) {
  const float *weight = mgl_plain_f32(&op->in[1]);
  uint32_t lanes = mgl_plain_lanes(at), lane = at.thread % lanes;
  uint32_t width = op->in[1].rows, half = width / 2;
  for (uint64_t unit = mgl_plain_first_warp(at); unit < op->units;
       unit += mgl_plain_warp_step(at)) {
    const float *x = mgl_plain_vector(op, 0, unit);
    float *out = (float *)op->out.data + unit * width;
    float squares = 0;
    for (uint32_t i = lane; i < half; i += lanes) {
      squares += x[i] * x[i] + x[i + half] * x[i + half];
    }
    squares = mgl_plain_warp_sum(squares);
    float inverse = mgl_plain_rsqrt(
        mgl_plain_fma(squares, 1.0f / (float)width, (float)op->attrs[MGL_ATTR_EPS]));
    for (uint32_t i = lane; i < width; i += lanes) {
      out[i] = x[i] * inverse * weight[i];
    }
  }
}

MGL_PLAIN_FN void mgl_plain_rmsnorm(const mgl_plain_op *op, mgl_plain_place at) {
  if (op->fused_order != 0 && op->input_count == 2 && op->out.dtype == MGL_DTYPE_F32 &&
      op->in[1].rows % 2 == 0) {
    mgl_plain_head_norms(op, at);
    return;
  }
  const float *weight = mgl_plain_f32(&op->in[1]);
  const mgl_plain_tensor *rows = op->input_count > 2 ? &op->in[2] : 0;
  uint32_t width = op->in[1].rows;
  for (uint64_t unit = at.block; unit < op->units; unit += at.blocks) {
    const float *x = mgl_plain_vector(op, rows, unit);
    float squares = 0;
    for (uint32_t i = at.thread; i < width; i += at.threads) {
      squares += x[i] * x[i];
    }
    squares = mgl_plain_sum(at, squares);
    float inverse = 1.0f / sqrtf(squares / (float)width + (float)op->attrs[MGL_ATTR_EPS]);
    for (uint32_t i = at.thread; i < width; i += at.threads) {
      mgl_plain_store(op->out.data, op->out.dtype, unit * width + i, x[i] * inverse * weight[i]);
    }
  }
}

MGL_PLAIN_FN void mgl_plain_layernorm(const mgl_plain_op *op, mgl_plain_place at) {
  const float *weight = mgl_plain_f32(&op->in[1]);
  const float *shift = mgl_plain_f32(&op->in[2]);
  const mgl_plain_tensor *rows = op->input_count > 3 ? &op->in[3] : 0;
  uint32_t width = op->in[1].rows;
  for (uint64_t unit = at.block; unit < op->units; unit += at.blocks) {
    const float *x = mgl_plain_vector(op, rows, unit);
    float sum = 0, squares = 0;
    for (uint32_t i = at.thread; i < width; i += at.threads) {
      sum += x[i];
    }
    float mean = mgl_plain_sum(at, sum) / (float)width;
    for (uint32_t i = at.thread; i < width; i += at.threads) {
      squares += (x[i] - mean) * (x[i] - mean);
    }
    squares = mgl_plain_sum(at, squares);
    float inverse = 1.0f / sqrtf(squares / (float)width + (float)op->attrs[MGL_ATTR_EPS]);
    for (uint32_t i = at.thread; i < width; i += at.threads) {
      mgl_plain_store(op->out.data, op->out.dtype, unit * width + i,
                      (x[i] - mean) * inverse * weight[i] + shift[i]);
    }
  }
}

// --- rope ----------------------------------------------------------------------------------------

MGL_PLAIN_FN void mgl_plain_rope_angles(const mgl_plain_op *op, mgl_plain_place at) {
  const uint32_t *positions = mgl_plain_u32(&op->in[0]);
  double original = op->attrs[MGL_ATTR_ORIGINAL], theta = op->attrs[MGL_ATTR_THETA];
  double amplitude = op->attrs[MGL_ATTR_AMPLITUDE];
  float factor = amplitude == 0 ? 1.0f : (float)amplitude;
  uint32_t half = op->out.width / 2;
  for (uint64_t t = at.block; t < op->units; t += at.blocks) {
    uint32_t length = op->input_count > 1 ? mgl_plain_u32(&op->in[1])[t] : 0;
    bool is_long = op->input_count > 1 && length > original;
    bool grows = is_long && theta != 0;
    const float *frequencies = is_long && !grows ? op->values + half : op->values;
    float base =
        grows ? mgl_rope_grown_base(theta, op->attrs[MGL_ATTR_FACTOR], original, length, half)
              : 0.0f;
    float *out = (float *)op->out.data + t * op->out.width;
    for (uint32_t i = at.thread; i < half; i += at.threads) {
      float frequency = grows ? mgl_rope_frequency(base, i, half) : frequencies[i];
      float angle = (float)positions[t] * frequency;
      float cosine, sine;
      mgl_plain_turn(angle, &cosine, &sine);
      out[2 * i] = cosine * factor;
      out[2 * i + 1] = sine * factor;
    }
  }
}

MGL_PLAIN_FN void mgl_plain_rope(const mgl_plain_op *op, mgl_plain_place at) {
  uint32_t head_dim = op->out.last, half = op->in[1].width / 2;
  uint32_t pairs = op->out.width / head_dim * half;
  for (uint64_t t = at.block; t < op->units; t += at.blocks) {
    const float *angles = mgl_plain_f32(&op->in[1]) + t * op->in[1].width;
    for (uint32_t p = at.thread; p < pairs; p += at.threads) {
      uint32_t i = p % half;
      float *x = (float *)op->out.data + t * op->out.width + p / half * head_dim;
      float cosine = angles[2 * i], sine = angles[2 * i + 1];
      float low = x[i], high = x[i + half];
      x[i] = low * cosine - high * sine;
      x[i + half] = high * cosine + low * sine;
    }
  }
}

// --- elements ------------------------------------------------------------------------------------

// Element by element: the first of this thread, and how far it is to its next.
MGL_PLAIN_FN uint64_t mgl_plain_first(mgl_plain_place at) {
  return (uint64_t)at.block * at.threads + at.thread;
}

MGL_PLAIN_FN uint64_t mgl_plain_step(mgl_plain_place at) {
  return (uint64_t)at.blocks * at.threads;
}

MGL_PLAIN_FN void mgl_plain_silu_mul(const mgl_plain_op *op, mgl_plain_place at) {
  const float *gates = mgl_plain_f32(&op->in[0]), *up = mgl_plain_f32(&op->in[1]);
  for (uint64_t i = mgl_plain_first(at); i < op->units; i += mgl_plain_step(at)) {
    float gate = gates[i];
    float product = gate / (1.0f + expf(-gate)) * up[i];
    if (op->fused_order != 0 && op->out.dtype == MGL_DTYPE_BF16) {  // as mgl_silu_mul
      product = mgl_plain_divide_fast(gate, 1.0f + mgl_plain_exp_fast(-gate)) * up[i];
    }
    mgl_plain_store(op->out.data, op->out.dtype, i, product);
  }
}

MGL_PLAIN_FN void mgl_plain_gelu(const mgl_plain_op *op, mgl_plain_place at) {
  for (uint64_t i = mgl_plain_first(at); i < op->units; i += mgl_plain_step(at)) {
    float x = mgl_plain_f32(&op->in[0])[i];
    float inner = MGL_GELU_SLOPE * (x + MGL_GELU_CUBE * x * x * x);
    mgl_plain_store(op->out.data, op->out.dtype, i, x / (1.0f + expf(-inner)));
  }
}

MGL_PLAIN_FN void mgl_plain_add(const mgl_plain_op *op, mgl_plain_place at) {
  float *x = (float *)op->out.data;
  for (uint64_t i = mgl_plain_first(at); i < op->units; i += mgl_plain_step(at)) {
    x[i] += mgl_plain_f32(&op->in[1])[i];
  }
}

#endif
