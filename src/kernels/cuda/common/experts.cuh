// What loader and consumers share of a mixture of experts: its sizes, which the compiler knows, and
// the routes of an iteration's tokens in shared memory.
#ifndef MGL_KERNELS_CUDA_COMMON_EXPERTS_CUH
#define MGL_KERNELS_CUDA_COMMON_EXPERTS_CUH

#include "kernels/cuda/common/worker.cuh"

#ifndef MGL_EXPERTS  // E, of every layer that has experts; 0: none has
#define MGL_EXPERTS 0
#define MGL_EXPERT_SLOTS 1      // S, of a token
#define MGL_EXPERT_FEATURES 64  // F, of an expert
#define MGL_EXPERT_WIDTH 1024   // D
#define MGL_EXPERT_SOFTMAX_OF_ALL 1
#define MGL_EXPERT_RENORMALISE 0
#define MGL_EXPERT_SCALE 1.0f
#endif

#ifndef MGL_EXPERT_BIASES  // of gate, up and down
#define MGL_EXPERT_BIASES 0
#endif
#ifndef MGL_EXPERT_LIMIT  // of gate and up; 0: silu, not clamped
#define MGL_EXPERT_LIMIT 0.0f
#endif
#define MGL_EXPERT_SLOPE 1.702f  // of silu, where these are clamped

#if MGL_EXPERTS
#define MGL_TARGET_IF_EXPERTS(...) __VA_ARGS__
#else
#define MGL_TARGET_IF_EXPERTS(...)
#endif

enum {
  MGL_HAS_EXPERTS = MGL_EXPERTS != 0,
  // Of codes: rows of gate and up, or of down over all slots, end within a panel. There x is 0.
  MGL_EXPERTS_CUT =
      MGL_EXPERT_WIDTH % 1024 != 0 || MGL_EXPERT_SLOTS * MGL_EXPERT_FEATURES % 1024 != 0,
  // In scratch, of each slot of each token: the number of its expert and its weight. Before that
  // lies what linears of one token use.
  MGL_EXPERT_ROUTES_AT = 8192,
  MGL_EXPERT_ROUTE_BYTES = 8,
};

static_assert(MGL_EXPERT_ROUTES_AT +
                      MGL_CUDA_MAX_TOKENS * MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES <=
                  MGL_CUDA_SCRATCH_BYTES,
              "the routes of an iteration");

// The routes of row `row`, in shared memory: of each slot the expert's number and its weight.
MGL_DEVICE const uint32_t *mgl_expert_routes(const mgl_worker *w, uint32_t row) {
  return (const uint32_t *)(w->scratch + MGL_EXPERT_ROUTES_AT) +
         row * (MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES / (uint32_t)sizeof(uint32_t));
}

// The weight of the slot that a column of gate and up belongs to.
MGL_DEVICE float mgl_expert_weight(const mgl_worker *w, uint32_t row, uint32_t column) {
  return __uint_as_float(mgl_expert_routes(w, row)[column / MGL_EXPERT_FEATURES * 2 + 1]);
}

// What gate and up of a column come to, which belongs to a slot of that weight.
MGL_DEVICE float mgl_expert_activate(float gate, float up, float weight) {
  if (MGL_EXPERT_LIMIT != 0.0f) {
    gate = MGL_EXPERT_SLOPE * fminf(gate, MGL_EXPERT_LIMIT);
    up = fmaxf(fminf(up, MGL_EXPERT_LIMIT), -MGL_EXPERT_LIMIT) + 1.0f;
    weight *= 1.0f / MGL_EXPERT_SLOPE;
  }
  return mgl_silu_mul(gate, up * weight);
}

// Several tokens: each expert that they hit is read once (linear/tasks_experts_rows.cuh). Gate and
// up go through parts, an expert with up to 8 rows of the iteration that have it; down through
// passes of 16 rows, of which each has its hits.
enum {
  MGL_EXPERT_PART_ROWS = 8,
  MGL_EXPERT_PASS_ROWS = 16,
  MGL_EXPERT_PASSES = MGL_CUDA_MAX_TOKENS / MGL_EXPERT_PASS_ROWS,
  MGL_EXPERT_MOST_HITS = MGL_EXPERTS < MGL_EXPERT_PASS_ROWS * MGL_EXPERT_SLOTS
                             ? MGL_EXPERTS
                             : MGL_EXPERT_PASS_ROWS * MGL_EXPERT_SLOTS,
  MGL_EXPERT_PAIRS = MGL_CUDA_MAX_TOKENS * MGL_EXPERT_SLOTS,
  MGL_EXPERT_MOST_PARTS = (MGL_EXPERTS < MGL_EXPERT_PAIRS ? MGL_EXPERTS : MGL_EXPERT_PAIRS) +
                          MGL_EXPERT_PAIRS / MGL_EXPERT_PART_ROWS,
  // In scratch, behind the routes, as words: how many hits each pass has, and how many parts there
  // are. Of each hit the number of the expert, and the slots of the pass's rows that it is, four
  // bits each, 15: none. Of each part the number of the expert, how many rows that have it the
  // parts before have taken, and all rows that have it, a bit each.
  MGL_EXPERT_COUNTS_AT = MGL_EXPERT_ROUTES_AT + MGL_EXPERT_PAIRS * MGL_EXPERT_ROUTE_BYTES,
  MGL_EXPERT_PARTS_COUNT_AT = MGL_EXPERT_COUNTS_AT + MGL_EXPERT_PASSES * (int)sizeof(uint32_t),
  MGL_EXPERT_HIT_BYTES = 16,
  MGL_EXPERT_HITS_AT = MGL_EXPERT_COUNTS_AT + 32,
  MGL_EXPERT_PARTS_AT =
      MGL_EXPERT_HITS_AT + MGL_EXPERT_PASSES * MGL_EXPERT_MOST_HITS * MGL_EXPERT_HIT_BYTES,
  // Partial sums of every other row block of down.
  MGL_EXPERT_SUMS_AT =
      (MGL_EXPERT_PARTS_AT + MGL_EXPERT_MOST_PARTS * MGL_EXPERT_HIT_BYTES + 127) / 128 * 128,
  // Only where there is room for all that.
  MGL_EXPERTS_BY_HITS = MGL_HAS_EXPERTS && MGL_EXPERT_SLOTS < 15 && MGL_CUDA_MAX_TOKENS == 64 &&
                        MGL_EXPERTS <= 512 && MGL_EXPERT_WIDTH % 1024 == 0 &&
                        MGL_EXPERT_SUMS_AT + 8192 <= 32768,
};

// Where the share of gate and up that ends, or begins, with row block `at` of S * F features does
// so in the line of all row blocks of all parts.
MGL_DEVICE uint32_t mgl_part_share(uint32_t at, uint32_t parts) {
  return at * parts / MGL_EXPERT_SLOTS;
}

// Only if it is there; without a branch, of which a choice would have one for each of its logits.
MGL_DEVICE void mgl_expert_put(uint32_t address, uint32_t expert, float weight, bool there) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p st.shared.v2.u32 [%0], {%1, %2};\n}" ::"r"(
          address),
      "r"(expert), "r"(__float_as_uint(weight)), "r"(there ? 1u : 0u)
      : "memory");
}

#endif
