// Plain mixtures of experts: a token's experts, and their products. Weights are read of experts
// only that a token has: a warp computes a few features of an expert (gate, up) or of the result
// (down), and takes the rows that have an expert together, up to eight, so that its weights are
// read once for these.
//
// Every element of the result is computed by one warp, expert after expert in the order of their
// numbers, and rows do not depend on their neighbours.
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_EXPERTS_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_EXPERTS_CUH

#include "kernels/cuda/plain/plain_linear.cuh"

enum {
  MGL_PLAIN_MAX_EXPERTS = 1024,  // as MGL_MAX_EXPERTS
  MGL_PLAIN_SOFTMAX = 0,         // as mgl_scores has them
  MGL_PLAIN_SOFTMAX_OF_CHOSEN = 1,
  MGL_PLAIN_SIGMOID = 2,
  MGL_PLAIN_PAIRS = MGL_PLAIN_FEATURES / 2,  // features of gate and of up that a warp computes
};

#define MGL_PLAIN_CLAMPED_SLOPE 1.702f  // of silu, of activations that are clamped

// --- route ---------------------------------------------------------------------------------------

typedef struct mgl_plain_experts {
  float scores[MGL_PLAIN_MAX_EXPERTS];
  float choice[MGL_PLAIN_MAX_EXPERTS];  // what is chosen by; of groups that are left -infinity
  float groups[MGL_PLAIN_MAX_EXPERTS];  // how good each is
  bool chosen[MGL_PLAIN_MAX_EXPERTS];
} mgl_plain_experts;

// How many of items [0, size) come before item i: larger ones, and equal ones of lower number.
MGL_PLAIN_FN uint32_t mgl_plain_rank(const float *values, uint32_t size, uint32_t i) {
  uint32_t rank = 0;
  for (uint32_t j = 0; j < size; j++) {
    rank += values[j] > values[i] || (values[j] == values[i] && j < i);
  }
  return rank;
}

// Scores of a token's experts, and what is chosen by.
MGL_PLAIN_FN void mgl_plain_scores(const mgl_plain_op *op, mgl_plain_place at, uint64_t token,
                                   mgl_plain_experts *e) {
  uint32_t count = op->in[0].width, kind = (uint32_t)op->attrs[MGL_ATTR_SCORES];
  const float *logits = mgl_plain_f32(&op->in[0]) + token * count;
  const float *bias = op->input_count > 1 ? mgl_plain_f32(&op->in[1]) : 0;
  float top = -MGL_PLAIN_INFINITY, sum = 0;
  for (uint32_t i = at.thread; i < count; i += at.threads) {
    e->scores[i] = isnan(logits[i]) ? -MGL_PLAIN_INFINITY : logits[i];
    top = fmaxf(top, e->scores[i]);
  }
  top = mgl_plain_max(at, top);
  for (uint32_t i = at.thread; i < count && kind != MGL_PLAIN_SOFTMAX_OF_CHOSEN; i += at.threads) {
    e->scores[i] =
        kind == MGL_PLAIN_SOFTMAX ? expf(e->scores[i] - top) : 1 / (1 + expf(-e->scores[i]));
  }
  mgl_plain_sync();
  for (uint32_t i = 0; i < count; i++) {  // by every thread, in the order that the CPU has
    sum += e->scores[i];
  }
  mgl_plain_sync();
  for (uint32_t i = at.thread; i < count; i += at.threads) {
    e->scores[i] = kind == MGL_PLAIN_SOFTMAX ? e->scores[i] / sum : e->scores[i];
    float by = e->scores[i] + (bias != 0 ? bias[i] : 0);
    e->choice[i] = isnan(by) ? -MGL_PLAIN_INFINITY : by;
  }
  mgl_plain_sync();
}

// Makes the experts of all but the best groups the last in the order of choice. A group is as good
// as the two best of its experts together.
MGL_PLAIN_FN void mgl_plain_leave_groups(mgl_plain_place at, uint32_t count, uint32_t groups,
                                         uint32_t top_groups, mgl_plain_experts *e) {
  uint32_t size = count / groups;
  for (uint32_t g = at.thread; g < groups; g += at.threads) {
    float first = -MGL_PLAIN_INFINITY, second = -MGL_PLAIN_INFINITY;
    for (uint32_t i = g * size; i < (g + 1) * size; i++) {
      float value = e->choice[i];
      second = fmaxf(second, fminf(first, value));
      first = fmaxf(first, value);
    }
    e->groups[g] = size < 2 ? first : first + second;
  }
  mgl_plain_sync();
  for (uint32_t i = at.thread; i < count; i += at.threads) {
    if (mgl_plain_rank(e->groups, groups, i / size) >= top_groups) {
      e->choice[i] = -MGL_PLAIN_INFINITY;
    }
  }
  mgl_plain_sync();
}

// Numbers and weights of the chosen ones in the order of their numbers, by one thread: they are
// few, and the CPU adds them in this order.
MGL_PLAIN_FN void mgl_plain_write_routes(const mgl_plain_op *op, const mgl_plain_experts *e,
                                         float *out) {
  uint32_t count = op->in[0].width, slots = op->out.width / 2, slot = 0;
  bool softmax = (uint32_t)op->attrs[MGL_ATTR_SCORES] == MGL_PLAIN_SOFTMAX_OF_CHOSEN;
  float top = -MGL_PLAIN_INFINITY, sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    top = e->chosen[i] ? fmaxf(top, e->scores[i]) : top;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (e->chosen[i]) {
      float weight = softmax ? expf(e->scores[i] - top) : e->scores[i];
      out[2 * slot] = (float)i;
      out[2 * slot++ + 1] = weight;
      sum += weight;
    }
  }
  float divisor = softmax || op->attrs[MGL_ATTR_RENORMALISE] != 0 ? sum : 1;
  for (slot = 0; slot < slots; slot++) {
    out[2 * slot + 1] = out[2 * slot + 1] / divisor * (float)op->attrs[MGL_ATTR_SCALE];
  }
}

MGL_PLAIN_FN void mgl_plain_route_token(const mgl_plain_op *op, mgl_plain_place at, uint64_t t,
                                        mgl_plain_experts *e) {
  uint32_t count = op->in[0].width, slots = op->out.width / 2;
  uint32_t groups = (uint32_t)op->attrs[MGL_ATTR_GROUPS];
  uint32_t top_groups = (uint32_t)op->attrs[MGL_ATTR_TOP_GROUPS];
  mgl_plain_scores(op, at, t, e);
  if (groups > 1 && top_groups != 0) {
    mgl_plain_leave_groups(at, count, groups, top_groups, e);
  }
  for (uint32_t i = at.thread; i < count; i += at.threads) {
    e->chosen[i] = mgl_plain_rank(e->choice, count, i) < slots;
  }
  mgl_plain_sync();
  if (at.thread == 0) {
    mgl_plain_write_routes(op, e, (float *)op->out.data + t * op->out.width);
  }
  mgl_plain_sync();  // before the next token's scores
}

// --- rows of an expert ---------------------------------------------------------------------------

// routes f32[T,S,2]; a row is a slot of a token: token * S + slot.
MGL_PLAIN_FN uint32_t mgl_plain_expert_of(const mgl_plain_tensor *routes, uint32_t row) {
  return (uint32_t)mgl_plain_f32(routes)[2 * (uint64_t)row];
}

MGL_PLAIN_FN float mgl_plain_weight_of(const mgl_plain_tensor *routes, uint32_t row) {
  return mgl_plain_f32(routes)[2 * (uint64_t)row + 1];
}

// A walk over the rows that have an expert: a warp looks at as many at once as it has lanes.
typedef struct mgl_plain_walk {
  const mgl_plain_tensor *routes;
  uint32_t expert, lane, lanes;
  uint32_t end, at;  // rows that there are, and that were looked at
  uint32_t hits;     // of the `lanes` rows before `at`, a bit each: those to come
} mgl_plain_walk;

// The next row, or MGL_PLAIN_NO_ROW behind the last; the same in all lanes, which all call it.
MGL_PLAIN_FN uint32_t mgl_plain_next_row(mgl_plain_walk *walk) {
  while (walk->hits == 0 && walk->at < walk->end) {
    uint32_t row = walk->at + walk->lane;
    walk->hits =
        mgl_plain_ballot(row < walk->end && mgl_plain_expert_of(walk->routes, row) == walk->expert);
    walk->at += walk->lanes;
  }
  if (walk->hits == 0) {
    return MGL_PLAIN_NO_ROW;
  }
  uint32_t lane = mgl_plain_lowest_bit(walk->hits);
  walk->hits &= walk->hits - 1;
  return walk->at - walk->lanes + lane;
}

// What gate and up of a feature come to, times the weight of the slot.
MGL_PLAIN_FN float mgl_plain_activate(const mgl_plain_op *op, float gate, float up, float weight) {
  float limit = (float)op->attrs[MGL_ATTR_LIMIT];
  if (limit != 0) {
    gate = MGL_PLAIN_CLAMPED_SLOPE * fminf(gate, limit);
    up = fmaxf(fminf(up, limit), -limit) + 1;
    weight /= MGL_PLAIN_CLAMPED_SLOPE;
  }
  return gate / (1.0f + expf(-gate)) * (up * weight);
}

// --- gate and up ---------------------------------------------------------------------------------

// Features n and n + 1 of an expert, for the rows of p.
MGL_PLAIN_FN void mgl_plain_gate_up_rows(const mgl_plain_op *op, uint32_t lane, uint32_t lanes,
                                         uint32_t expert, uint32_t n, const mgl_plain_products *p,
                                         const uint32_t *rows) {
  float sums[MGL_PLAIN_FEATURES][MGL_PLAIN_TOKENS] = {{0}};
  bool biased = op->input_count > 4;
  mgl_plain_multiply(p, lane, lanes, sums);
  MGL_PLAIN_UNROLL
  for (uint32_t f = 0; f < MGL_PLAIN_PAIRS; f++) {
    MGL_PLAIN_UNROLL
    for (uint32_t j = 0; j < MGL_PLAIN_TOKENS; j++) {
      if (rows[j] != MGL_PLAIN_NO_ROW) {
        float gate = mgl_plain_warp_sum(sums[f][j]);
        float up = mgl_plain_warp_sum(sums[MGL_PLAIN_PAIRS + f][j]);
        if (lane == 0 && n + f < op->out.width) {
          uint64_t bias = (uint64_t)expert * op->out.width + n + f;
          gate += biased ? mgl_plain_f32(&op->in[4])[bias] : 0;
          up += biased ? mgl_plain_f32(&op->in[5])[bias] : 0;
          mgl_plain_store(
              op->out.data, op->out.dtype, (uint64_t)rows[j] * op->out.width + n + f,
              mgl_plain_activate(op, gate, up, mgl_plain_weight_of(&op->in[1], rows[j])));
        }
      }
    }
  }
}

MGL_PLAIN_FN void mgl_plain_gate_up_tile(const mgl_plain_op *op, uint32_t lane, uint32_t lanes,
                                         uint32_t expert, uint32_t n) {
  uint32_t slots = op->in[1].width / 2, features = op->out.width;
  mgl_plain_walk walk = {&op->in[1], expert, lane, lanes, op->in[1].rows * slots, 0, 0};
  mgl_plain_products p;
  uint32_t rows[MGL_PLAIN_TOKENS];
  p.x = &op->in[0];
  MGL_PLAIN_UNROLL
  for (uint32_t f = 0; f < MGL_PLAIN_PAIRS; f++) {  // behind the last feature: that one again
    uint64_t row = (uint64_t)expert * features + (n + f < features ? n + f : features - 1);
    p.w[f] = &op->in[2];
    p.w[MGL_PLAIN_PAIRS + f] = &op->in[3];
    p.w_rows[f] = p.w_rows[MGL_PLAIN_PAIRS + f] = row;
  }
  for (;;) {
    MGL_PLAIN_UNROLL
    for (uint32_t j = 0; j < MGL_PLAIN_TOKENS; j++) {
      rows[j] = mgl_plain_next_row(&walk);
      p.x_rows[j] = rows[j] == MGL_PLAIN_NO_ROW ? MGL_PLAIN_NO_ROW : rows[j] / slots;
    }
    if (rows[0] == MGL_PLAIN_NO_ROW) {
      return;
    }
    mgl_plain_gate_up_rows(op, lane, lanes, expert, n, &p, rows);
  }
}

MGL_PLAIN_FN void mgl_plain_gate_up(const mgl_plain_op *op, mgl_plain_place at) {
  uint32_t lanes = mgl_plain_lanes(at);
  uint32_t experts = op->in[2].rows / op->out.width;
  uint64_t each = (op->units + MGL_PLAIN_PAIRS - 1) / MGL_PLAIN_PAIRS;
  for (uint64_t i = mgl_plain_first_warp(at); i < each * experts; i += mgl_plain_warp_step(at)) {
    mgl_plain_gate_up_tile(op, at.thread % lanes, lanes, (uint32_t)(i / each),
                           (uint32_t)(i % each) * MGL_PLAIN_PAIRS);
  }
}

// --- down ----------------------------------------------------------------------------------------

// The first slot of a token whose expert is at least `expert`; S: there is none. (Searched anew for
// every expert: a place for each token would take registers that the products need.)
MGL_PLAIN_FN uint32_t mgl_plain_find_slot(const mgl_plain_tensor *routes, uint32_t token,
                                          uint32_t expert) {
  uint32_t slots = routes->width / 2, begin = 0, end = slots;
  while (begin < end) {
    uint32_t middle = (begin + end) / 2;
    bool before = mgl_plain_expert_of(routes, token * slots + middle) < expert;
    begin = before ? middle + 1 : begin;
    end = before ? end : middle;
  }
  return begin;
}

// The next expert from `expert` on that any of the tokens from t on has, and in p the rows that
// have it. MGL_PLAIN_NO_ROW: there is none.
MGL_PLAIN_FN uint32_t mgl_plain_next_expert(const mgl_plain_op *op, uint32_t t, uint32_t expert,
                                            mgl_plain_products *p) {
  const mgl_plain_tensor *routes = &op->in[2];
  uint32_t slots = routes->width / 2, first = MGL_PLAIN_NO_ROW;
  for (uint32_t j = 0; j < MGL_PLAIN_TOKENS && t + j < routes->rows; j++) {
    uint32_t slot = mgl_plain_find_slot(routes, t + j, expert);
    if (slot < slots) {
      uint32_t found = mgl_plain_expert_of(routes, (t + j) * slots + slot);
      first = found < first ? found : first;
    }
  }
  MGL_PLAIN_UNROLL
  for (uint32_t j = 0; j < MGL_PLAIN_TOKENS; j++) {
    p->x_rows[j] = MGL_PLAIN_NO_ROW;
    if (first != MGL_PLAIN_NO_ROW && t + j < routes->rows) {
      uint32_t slot = mgl_plain_find_slot(routes, t + j, first);
      uint32_t row = (t + j) * slots + slot;
      bool has = slot < slots && mgl_plain_expert_of(routes, row) == first;
      p->x_rows[j] = has ? row : MGL_PLAIN_NO_ROW;
    }
  }
  return first;
}

// The biases of all slots of a token, times their weights, to feature n.
MGL_PLAIN_FN void mgl_plain_add_biases(const mgl_plain_op *op, uint32_t token, uint32_t n) {
  const mgl_plain_tensor *routes = &op->in[2];
  uint32_t slots = routes->width / 2;
  float *out = (float *)op->out.data + (uint64_t)token * op->out.width + n;
  for (uint32_t row = token * slots; row < (token + 1) * slots; row++) {
    uint64_t bias = (uint64_t)mgl_plain_expert_of(routes, row) * op->out.width + n;
    *out += mgl_plain_weight_of(routes, row) * mgl_plain_f32(&op->in[4])[bias];
  }
}

// Adds an expert's products to the results: a lane one of the 32, since all results of one lane on
// their way at once would take too many registers.
MGL_PLAIN_FN void mgl_plain_add_products(const mgl_plain_op *op, uint32_t lane, uint32_t lanes,
                                         uint32_t n, uint32_t t, const mgl_plain_products *p,
                                         float sums[MGL_PLAIN_FEATURES][MGL_PLAIN_TOKENS]) {
  for (uint32_t i = lane; i < MGL_PLAIN_FEATURES * MGL_PLAIN_TOKENS; i += lanes) {
    float mine = 0;
    bool there = false;
    MGL_PLAIN_UNROLL
    for (uint32_t f = 0; f < MGL_PLAIN_FEATURES; f++) {
      MGL_PLAIN_UNROLL
      for (uint32_t j = 0; j < MGL_PLAIN_TOKENS; j++) {
        if (p->x_rows[j] != MGL_PLAIN_NO_ROW) {  // the same in all lanes
          float sum = mgl_plain_warp_sum(sums[f][j]);
          bool is_mine = i == f * MGL_PLAIN_TOKENS + j;
          mine = is_mine ? sum : mine;
          there = there || is_mine;
        }
      }
    }
    uint32_t feature = n + i / MGL_PLAIN_TOKENS, token = t + i % MGL_PLAIN_TOKENS;
    if (there && feature < op->out.width) {
      ((float *)op->out.data)[(uint64_t)token * op->out.width + feature] += mine;
    }
  }
}

// Features from n on, of tokens from t on. The results are in memory, where the residual was.
MGL_PLAIN_FN void mgl_plain_down_tile(const mgl_plain_op *op, uint32_t lane, uint32_t lanes,
                                      uint32_t n, uint32_t t) {
  uint32_t features = op->out.width, expert = 0;
  mgl_plain_products p;
  p.x = &op->in[1];
  for (uint32_t i = lane; op->input_count > 4 && i < MGL_PLAIN_FEATURES * MGL_PLAIN_TOKENS;
       i += lanes) {  // by the lane that goes on with the element
    uint32_t feature = n + i / MGL_PLAIN_TOKENS, token = t + i % MGL_PLAIN_TOKENS;
    if (feature < features && token < op->in[2].rows) {
      mgl_plain_add_biases(op, token, feature);
    }
  }
  for (;;) {
    float sums[MGL_PLAIN_FEATURES][MGL_PLAIN_TOKENS] = {{0}};
    expert = mgl_plain_next_expert(op, t, expert, &p);
    if (expert == MGL_PLAIN_NO_ROW) {
      return;
    }
    mgl_plain_take_rows(&p, &op->in[3], (uint64_t)expert * features, n, features);
    mgl_plain_multiply(&p, lane, lanes, sums);
    mgl_plain_add_products(op, lane, lanes, n, t, &p, sums);
    expert++;
  }
}

MGL_PLAIN_FN void mgl_plain_down(const mgl_plain_op *op, mgl_plain_place at) {
  uint32_t lanes = mgl_plain_lanes(at);
  uint64_t token_tiles = (op->in[2].rows + MGL_PLAIN_TOKENS - 1) / MGL_PLAIN_TOKENS;
  uint64_t tiles = (op->units + MGL_PLAIN_FEATURES - 1) / MGL_PLAIN_FEATURES * token_tiles;
  for (uint64_t i = mgl_plain_first_warp(at); i < tiles; i += mgl_plain_warp_step(at)) {
    mgl_plain_down_tile(op, at.thread % lanes, lanes,
                        (uint32_t)(i / token_tiles) * MGL_PLAIN_FEATURES,
                        (uint32_t)(i % token_tiles) * MGL_PLAIN_TOKENS);
  }
}

#endif
