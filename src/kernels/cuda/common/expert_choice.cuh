// The choice of a token's experts by a warp, of the narrow class's loaders and of route in large
// iterations: largest logits first, lower numbers first among equal ones, as the CPU does.
#ifndef MGL_KERNELS_CUDA_COMMON_EXPERT_CHOICE_CUH
#define MGL_KERNELS_CUDA_COMMON_EXPERT_CHOICE_CUH

#include "kernels/cuda/common/experts.cuh"

enum {
  // Of a token, in each lane; one where there are no experts, whose code is compiled, too.
  MGL_EXPERT_LANE_LOGITS = MGL_EXPERTS == 0 ? 1 : (MGL_EXPERTS + 31) / 32,
};

// Numbers in the order of logits, above 0; a NaN is below all others.
MGL_DEVICE uint32_t mgl_expert_order(uint32_t logit) {
  bool nan = (logit & 0x7fffffffu) > 0x7f800000u;
  uint32_t order = (logit & 0x80000000u) != 0 ? ~logit : logit | 0x80000000u;
  return nan ? 1 : order;
}

// A lane's logits in descending order, of equal ones those of lower numbers first; places: which of
// the lane's experts they are of.
struct mgl_expert_row {
  uint32_t order[MGL_EXPERT_LANE_LOGITS], place[MGL_EXPERT_LANE_LOGITS];
};

MGL_DEVICE void mgl_expert_sort(mgl_expert_row *row) {
#pragma unroll
  for (int from = 0; from + 1 < MGL_EXPERT_LANE_LOGITS; from++) {
#pragma unroll
    for (int i = MGL_EXPERT_LANE_LOGITS - 1; i > from; i--) {
      // Neighbours change places only if the later one is larger: equal ones stay as they were.
      const bool swaps = row->order[i] > row->order[i - 1];
      const uint32_t order = row->order[i], place = row->place[i];
      row->order[i] = swaps ? row->order[i - 1] : order;
      row->place[i] = swaps ? row->place[i - 1] : place;
      row->order[i - 1] = swaps ? order : row->order[i - 1];
      row->place[i - 1] = swaps ? place : row->place[i - 1];
    }
  }
}

// Which of this lane's experts is the next one, if it has taken so many.
MGL_DEVICE uint32_t mgl_expert_nth(const mgl_expert_row *row, uint32_t taken) {
  uint32_t place = row->place[0];
#pragma unroll
  for (uint32_t i = 1; i < MGL_EXPERT_LANE_LOGITS; i++) {
    place = i == taken ? row->place[i] : place;
  }
  return place;
}

// The whole warp: of this lane's experts those that are among the S of the token, a bit each, and
// the largest of all logits; everybody waits for it once a layer, so that turns only count what is
// taken (docs/log/282). Each turn takes the largest ones that are left. TIES: of equal ones that of
// the lowest number, else all of them.
template <bool TIES>
MGL_DEVICE uint32_t mgl_expert_take(const uint32_t logits[MGL_EXPERT_LANE_LOGITS], uint32_t *top) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t taken = 0, chosen = 0;
  mgl_expert_row row;
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    row.order[i] = i * 32 + lane < MGL_EXPERTS ? mgl_expert_order(logits[i]) : 0;
    row.place[i] = i;
  }
  mgl_expert_sort(&row);
#pragma unroll(TIES ? 1 : 8)
  for (uint32_t slot = 0; slot < MGL_EXPERT_SLOTS; slot++) {
    const uint32_t largest = __reduce_max_sync(0xffffffffu, row.order[0]);
    bool is_mine = row.order[0] == largest;
    if (TIES) {
      const uint32_t mine = is_mine ? mgl_expert_nth(&row, taken) * 32 + lane : 0xffffffffu;
      is_mine = mine == __reduce_min_sync(0xffffffffu, mine);
    }
    *top = slot == 0 ? largest : *top;
    taken += is_mine ? 1 : 0;
#pragma unroll
    for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
      const bool last = i + 1 == MGL_EXPERT_LANE_LOGITS;
      row.order[i] = !is_mine ? row.order[i] : last ? 0 : row.order[last ? i : i + 1];
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    chosen |= i < taken ? 1u << row.place[i] : 0;
  }
  return chosen;
}

// The lowest number is looked for only where equal ones made too many.
MGL_DEVICE uint32_t mgl_expert_find(const uint32_t logits[MGL_EXPERT_LANE_LOGITS], uint32_t *top) {
  const uint32_t chosen = mgl_expert_take<false>(logits, top);
  const bool ties = __reduce_add_sync(0xffffffffu, __popc(chosen)) != MGL_EXPERT_SLOTS;
  return ties ? mgl_expert_take<true>(logits, top) : chosen;
}

// The whole warp: writes the S experts of a row in ascending order.
MGL_DEVICE void mgl_expert_choose(const uint32_t logits[MGL_EXPERT_LANE_LOGITS],
                                  uint32_t routes_at) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t top = 0;
  const uint32_t chosen = mgl_expert_find(logits, &top);
  float largest = __uint_as_float((top & 0x80000000u) != 0 ? top & 0x7fffffffu : ~top);
  float weights[MGL_EXPERT_LANE_LOGITS];
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    weights[i] = __expf(__uint_as_float(logits[i]) - largest);
    bool counts = (chosen >> i & 1) != 0 || (MGL_EXPERT_SOFTMAX_OF_ALL && !MGL_EXPERT_RENORMALISE);
    sum += counts ? weights[i] : 0.0f;
  }
  sum = mgl_warp_sum(sum);
  uint32_t before = 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    const bool is_chosen = (chosen >> i & 1) != 0;
    const uint32_t all = __ballot_sync(0xffffffffu, is_chosen);
    const uint32_t slot = before + __popc(all & ((1u << lane) - 1));
    mgl_expert_put(routes_at + slot * MGL_EXPERT_ROUTE_BYTES, i * 32 + lane,
                   __fdividef(weights[i], sum) * MGL_EXPERT_SCALE, is_chosen);
    before += __popc(all);
  }
}

#endif
