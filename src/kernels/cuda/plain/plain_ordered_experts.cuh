// Plain mixtures in the order of the fused tasks (roles/loader_experts.cuh,
// linear/tasks_experts.cuh), where these cover the model: the same bits. Experts are chosen by
// their logits; of a token, gate and up of its S experts are linears of x, and down is one linear
// of S * F inputs, in the order of the experts' numbers.
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_ORDERED_EXPERTS_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_ORDERED_EXPERTS_CUH

#include "kernels/cuda/plain/plain_experts.cuh"
#include "kernels/cuda/plain/plain_ordered_codes.cuh"

// --- route ---------------------------------------------------------------------------------------

MGL_PLAIN_FN bool mgl_plain_routes_ordered(const mgl_plain_op *op) {
  return op->fused_order != 0 && op->input_count == 1 && op->attrs[MGL_ATTR_GROUPS] <= 1 &&
         (uint32_t)op->attrs[MGL_ATTR_SCORES] != MGL_PLAIN_SIGMOID;
}

// Whether a weight is a part of all experts' sum, and not of the chosen ones' only.
MGL_PLAIN_FN bool mgl_ordered_counts_all(const mgl_plain_op *op) {
  return (uint32_t)op->attrs[MGL_ATTR_SCORES] == MGL_PLAIN_SOFTMAX &&
         op->attrs[MGL_ATTR_RENORMALISE] == 0;
}

// The routes of a token, by a block.
MGL_PLAIN_FN void mgl_ordered_route(const mgl_plain_op *op, mgl_plain_place at, uint64_t token,
                                    mgl_plain_experts *e) {
  const uint32_t count = op->in[0].width, slots = op->out.width / 2;
  const uint32_t lanes = mgl_plain_lanes(at);
  const float *logits = mgl_plain_f32(&op->in[0]) + token * count;
  float *out = (float *)op->out.data + token * op->out.width;
  float top = -MGL_PLAIN_INFINITY, sum = 0;
  for (uint32_t i = at.thread; i < count; i += at.threads) {
    e->choice[i] = isnan(logits[i]) ? -MGL_PLAIN_INFINITY : logits[i];
    top = fmaxf(top, e->choice[i]);
  }
  top = mgl_plain_max(at, top);  // all choices are there behind it
  for (uint32_t i = at.thread; i < count; i += at.threads) {
    e->chosen[i] = mgl_plain_rank(e->choice, count, i) < slots;
    e->scores[i] = mgl_plain_exp_fast(e->choice[i] - top);
  }
  mgl_plain_sync();
  if (at.thread < lanes) {  // a lane every 32nd expert
    for (uint32_t i = at.thread; i < count; i += lanes) {
      sum += e->chosen[i] || mgl_ordered_counts_all(op) ? e->scores[i] : 0.0f;
    }
    sum = mgl_plain_warp_sum(sum);
  }
  if (at.thread == 0) {
    uint32_t slot = 0;
    for (uint32_t i = 0; i < count && slot < slots; i++) {
      if (e->chosen[i]) {
        out[2 * slot] = (float)i;
        out[2 * slot++ + 1] =
            mgl_plain_divide_fast(e->scores[i], sum) * (float)op->attrs[MGL_ATTR_SCALE];
      }
    }
  }
  mgl_plain_sync();  // before the next token's scores
}

MGL_PLAIN_FN void mgl_plain_route(const mgl_plain_op *op, mgl_plain_place at) {
  MGL_PLAIN_SHARED mgl_plain_experts e;
  for (uint64_t t = at.block; t < op->units; t += at.blocks) {
    if (mgl_plain_routes_ordered(op)) {
      mgl_ordered_route(op, at, t, &e);
    } else {
      mgl_plain_route_token(op, at, t, &e);
    }
  }
}

// Whether experts and x are such as fused tasks multiply.
MGL_PLAIN_FN bool mgl_experts_are_ordered(const mgl_plain_op *op, const mgl_plain_tensor *x,
                                          const mgl_plain_tensor *w) {
  return mgl_ordered_takes(op, x, w) || mgl_coded_takes(op, x, w);
}

// --- gate and up ---------------------------------------------------------------------------------

enum { MGL_ORDERED_PAIRS = MGL_ORDERED_FEATURES / 2 };  // features of gate and of up in a tile

MGL_PLAIN_FN void mgl_ordered_activate(const mgl_plain_op *op, uint32_t row, uint32_t n, float gate,
                                       float up) {
  const float limit = (float)op->attrs[MGL_ATTR_LIMIT];
  float weight = mgl_plain_weight_of(&op->in[1], row);
  if (op->input_count > 4) {
    const uint64_t bias = (uint64_t)mgl_plain_expert_of(&op->in[1], row) * op->out.width + n;
    gate += mgl_plain_f32(&op->in[4])[bias];
    up += mgl_plain_f32(&op->in[5])[bias];
  }
  if (limit != 0) {  // as mgl_expert_activate
    gate = MGL_PLAIN_CLAMPED_SLOPE * fminf(gate, limit);
    up = fmaxf(fminf(up, limit), -limit) + 1.0f;
    weight *= 1.0f / MGL_PLAIN_CLAMPED_SLOPE;
  }
  const float scaled = up * weight;
  const float value =
      mgl_plain_divide_fast(gate, 1.0f + mgl_plain_exp_fast(-gate)) * scaled;  // as mgl_silu_mul
  mgl_plain_store(op->out.data, op->out.dtype, (uint64_t)row * op->out.width + n, value);
}

// Features n to n + 7 of gate and up of an expert, for up to eight rows that have it.
MGL_PLAIN_FN void mgl_ordered_gate_up_rows(const mgl_plain_op *op, uint32_t expert, uint32_t n,
                                           const uint32_t rows[MGL_PLAIN_TOKENS]) {
  const uint32_t features = op->out.width, slots = op->in[1].width / 2;
  mgl_ordered_source s = mgl_ordered_source_of(&op->in[2], &op->in[3], op->in[2].width);
#ifdef __CUDACC__
  __shared__ mgl_ordered_parts parts;
  const uint32_t row = threadIdx.x % MGL_PLAIN_LANES / 4;
  uint32_t mine = MGL_ORDERED_NO_ROW, of_thread = MGL_ORDERED_NO_ROW;
  const uint32_t token = threadIdx.x / MGL_ORDERED_PAIRS;
  const uint32_t feature = threadIdx.x % MGL_ORDERED_PAIRS;
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < MGL_PLAIN_TOKENS; i++) {
    mine = i == row ? rows[i] : mine;
    of_thread = i == token ? rows[i] : of_thread;
  }
  s.low = s.high = n + row < features ? expert * features + n + row : MGL_ORDERED_NO_ROW;
  s.x = mine != MGL_ORDERED_NO_ROW ? mgl_ordered_row(op, mine / slots) : 0;
  mgl_ordered_multiply_any(op, &s, &parts);
  if (of_thread != MGL_ORDERED_NO_ROW && n + feature < features) {
    mgl_ordered_activate(op, of_thread, n + feature,
                         mgl_ordered_total(op, &s, &parts, token, feature),
                         mgl_ordered_total(op, &s, &parts, token, feature + MGL_ORDERED_PAIRS));
  }
#else
  for (uint32_t i = 0; i < MGL_PLAIN_TOKENS && rows[i] != MGL_ORDERED_NO_ROW; i++) {
    s.x = mgl_ordered_row(op, rows[i] / slots);
    for (uint32_t f = n; f < n + MGL_ORDERED_PAIRS && f < features; f++) {
      mgl_ordered_source up = s;
      s.low = up.low = expert * features + f;
      up.w_low = s.w_high;
      mgl_ordered_activate(op, rows[i], f, mgl_ordered_one(op, &s), mgl_ordered_one(op, &up));
    }
  }
#endif
}

MGL_PLAIN_FN void mgl_ordered_gate_up_tile(const mgl_plain_op *op, mgl_plain_place at,
                                           uint32_t expert, uint32_t n) {
  const uint32_t slots = op->in[1].width / 2, lanes = mgl_plain_lanes(at);
  mgl_plain_walk walk = {&op->in[1], expert, at.thread % lanes, lanes, op->in[1].rows * slots,
                         0,          0};
  for (;;) {  // every warp finds the same rows
    uint32_t rows[MGL_PLAIN_TOKENS];
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < MGL_PLAIN_TOKENS; i++) {
      rows[i] = mgl_plain_next_row(&walk);
    }
    if (rows[0] == MGL_ORDERED_NO_ROW) {
      return;
    }
    mgl_ordered_gate_up_rows(op, expert, n, rows);
  }
}

MGL_PLAIN_FN void mgl_plain_expert_gate_up(const mgl_plain_op *op, mgl_plain_place at) {
  if (!mgl_experts_are_ordered(op, &op->in[0], &op->in[2]) ||
      !mgl_experts_are_ordered(op, &op->in[0], &op->in[3])) {
    mgl_plain_gate_up(op, at);
    return;
  }
  const uint32_t experts = op->in[2].rows / op->out.width;
  const uint32_t each = (op->out.width + MGL_ORDERED_PAIRS - 1) / MGL_ORDERED_PAIRS;
  for (uint64_t i = at.block; i < (uint64_t)each * experts; i += at.blocks) {
    mgl_ordered_gate_up_tile(op, at, (uint32_t)(i / each),
                             (uint32_t)(i % each) * MGL_ORDERED_PAIRS);
  }
}

// --- down ----------------------------------------------------------------------------------------

// Features from n on of a token, added to the residual, which is there.
MGL_PLAIN_FN void mgl_ordered_down_tile(const mgl_plain_op *op, uint32_t n, uint32_t t) {
  const mgl_plain_tensor *w = &op->in[3];
  const uint32_t slots = op->in[2].width / 2, features = op->out.width;
  float *out = (float *)op->out.data + (uint64_t)t * features;
  mgl_ordered_source s = mgl_ordered_source_of(w, w, slots * w->width);
  s.routes = mgl_plain_f32(&op->in[2]) + (uint64_t)t * op->in[2].width;
  s.expert_rows = features;
  s.x = (const uint8_t *)op->in[1].data + (uint64_t)t * slots * w->width * sizeof(mgl_bf16);
#ifdef __CUDACC__
  __shared__ mgl_ordered_parts parts;
  const uint32_t row = threadIdx.x % MGL_PLAIN_LANES / 4, feature = threadIdx.x;
  s.low = n + row < features ? n + row : MGL_ORDERED_NO_ROW;
  s.high = n + row + 8 < features ? n + row + 8 : MGL_ORDERED_NO_ROW;
  mgl_ordered_multiply_any(op, &s, &parts);
  if (feature < MGL_ORDERED_FEATURES && n + feature < features) {
    if (op->input_count > 4) {
      mgl_plain_add_biases(op, t, n + feature);
    }
    out[n + feature] += mgl_ordered_total(op, &s, &parts, 0, feature);
  }
#else
  for (uint32_t i = n; i < n + MGL_ORDERED_FEATURES && i < features; i++) {
    s.low = i;
    if (op->input_count > 4) {
      mgl_plain_add_biases(op, t, i);
    }
    out[i] += mgl_ordered_one(op, &s);
  }
#endif
}

MGL_PLAIN_FN void mgl_plain_expert_down(const mgl_plain_op *op, mgl_plain_place at) {
  if (!mgl_experts_are_ordered(op, &op->in[1], &op->in[3])) {
    mgl_plain_down(op, at);
    return;
  }
  const uint32_t tiles = (op->out.width + MGL_ORDERED_FEATURES - 1) / MGL_ORDERED_FEATURES;
  for (uint64_t i = at.block; i < (uint64_t)tiles * op->in[2].rows; i += at.blocks) {
    mgl_ordered_down_tile(op, (uint32_t)(i % tiles) * MGL_ORDERED_FEATURES, (uint32_t)(i / tiles));
  }
}

#endif
