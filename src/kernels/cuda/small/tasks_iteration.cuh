// Tasks of which an iteration has few: the rows of the embedding, the angles of RoPE, and the
// question for the plan of the next iteration.
//
// The plan of iteration i + 1 is made while iteration i computes, from counts alone: which token a
// sequence decodes is known only after sampling, which fills it in. So between two iterations
// stands nothing but the choice of tokens, and loaders know early what comes next. The price is
// that a sequence which ends by a stop token has a row in one more iteration, for nothing.
//   Rejected: planning after sampling, a chain of loads and stores between any two iterations.
#ifndef MGL_KERNELS_CUDA_SMALL_TASKS_ITERATION_CUH
#define MGL_KERNELS_CUDA_SMALL_TASKS_ITERATION_CUH

#include "kernels/cuda/common/worker.cuh"

// A word that another SM may have written in this launch: a volatile access bypasses the L1.
static __device__ inline uint32_t mgl_read_word(const uint32_t *address) {
  return *(const volatile uint32_t *)address;
}

static __device__ inline uint32_t mgl_min(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

static __device__ inline uint32_t mgl_max(uint32_t a, uint32_t b) {
  return a < b ? b : a;
}

// Sum of the lanes before; *total of all.
template <typename number>
static __device__ inline number mgl_warp_prefix(number value, uint32_t lane, number *total) {
  number sum = value;
  for (uint32_t offset = 1; offset < 32; offset *= 2) {
    number before = __shfl_up_sync(0xffffffffu, sum, offset);
    sum += lane >= offset ? before : 0;
  }
  *total = __shfl_sync(0xffffffffu, sum, 31);
  return sum - value;
}

// --- outputs that carry their readiness ----------------------------------------------------------

static __device__ inline void mgl_store_quad(float *to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}

static __device__ inline void mgl_store_pair(float2 *to, float2 v) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(v.x), "f"(v.y)
               : "memory");
}

static __device__ inline void mgl_open_quad(float *at) {
  float open = __uint_as_float(MGL_CUDA_OPEN);
  mgl_store_quad(at, make_float4(open, open, open, open));
}

// Floats [begin, end), both multiples of 4, by all consumers.
static __device__ inline void mgl_open_floats(const mgl_worker *w, float *at, uint32_t begin,
                                              uint32_t end) {
  for (uint32_t i = begin + w->thread * 4; i < end; i += MGL_CUDA_CONSUMERS * 4) {
    mgl_open_quad(at + i);
  }
}

// --- embed ---------------------------------------------------------------------------------------

static __device__ inline void mgl_write_embedding(float *to, float *open, uint4 v) {
  float4 low, high;
  low.x = mgl_widen_bf16(v.x);
  low.y = __uint_as_float(v.x & 0xffff0000u);
  low.z = mgl_widen_bf16(v.y);
  low.w = __uint_as_float(v.y & 0xffff0000u);
  high.x = mgl_widen_bf16(v.z);
  high.y = __uint_as_float(v.z & 0xffff0000u);
  high.z = mgl_widen_bf16(v.w);
  high.w = __uint_as_float(v.w & 0xffff0000u);
  mgl_store_quad(to, low);
  mgl_store_quad(to + 4, high);
  if (open != nullptr) {
    mgl_open_quad(open);
    mgl_open_quad(open + 4);
  }
}

// Rows [begin, end) of the iteration, 8 elements a thread at a time. (Elements are never
// MGL_CUDA_OPEN: their low halves are zeros.)
static __device__ inline void mgl_task_embed(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  const mgl_cuda_plan *plan = slot->plan;
  const uint4 *table = (const uint4 *)slot->op.weights;
  uint32_t pieces = slot->op.n / 8;
  uint32_t begin = slot->begin;
  uint32_t end = mgl_min(slot->end, mgl_read_word(&plan->token_count));
  float *to = (float *)((uint8_t *)slot->op.out + slot->copy_at);
  float *open = (float *)((uint8_t *)slot->op.out + slot->open_at);
  bool copies = mgl_has_copies(&slot->op);
#ifdef MGL_POISON_PLANS
  if (mgl_read_word(&plan->token_count) == MGL_PLAN_POISON) {
    __trap();  // an iteration whose plan is over
  }
#endif
  if (!mgl_task_begin(w) || mgl_task_is_mute(w)) {
    return;
  }
  for (uint32_t first = begin; first < end; first += 32) {
    // The tokens of 32 rows at once, so that the loads of a row do not wait for those before.
    uint32_t mine = first + w->lane;
    uint32_t token = mine < end ? mgl_read_word((const uint32_t *)&plan->tokens[mine]) : 0;
    uint32_t count = mgl_min(end - first, 32);
    for (uint32_t i = 0; i < count; i++) {
      const uint4 *from = table + (size_t)__shfl_sync(0xffffffffu, token, (int)i) * pieces;
      size_t at = (size_t)(first + i) * slot->op.n;
#pragma unroll 2
      for (uint32_t piece = w->thread; piece < pieces; piece += MGL_CUDA_CONSUMERS) {
        mgl_write_embedding(to + at + piece * 8, copies ? open + at + piece * 8 : nullptr,
                            __ldg(from + piece));
      }
    }
  }
  if (copies) {
    mgl_open_floats(w, open, mgl_max(begin, end) * slot->op.n, slot->end * slot->op.n);
  }
}

// --- rope_angles ---------------------------------------------------------------------------------

// Angle i of rows of MGL_HEAD_DIM / 2. Positions are in the plan before the iteration begins.
static __device__ inline float2 mgl_angle(const mgl_slot *slot, uint32_t i) {
  uint32_t row = i / (MGL_HEAD_DIM / 2);
  uint32_t position = mgl_read_word(&slot->plan->positions[row]);
  float angle = (float)position * __ldg(slot->op.angles + i % (MGL_HEAD_DIM / 2));
  float2 out;
  sincosf(angle, &out.y, &out.x);
  return out;
}

static __device__ inline void mgl_task_rope_angles(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  float2 *out = (float2 *)((uint8_t *)slot->op.out + slot->copy_at);
  float *open = (float *)((uint8_t *)slot->op.out + slot->open_at);
  uint32_t end = mgl_min(slot->end, mgl_read_word(&slot->plan->token_count));
  uint32_t i = slot->begin * (MGL_HEAD_DIM / 2) + w->thread;
  end *= MGL_HEAD_DIM / 2;
  float2 angle = {0, 0};
  if (i < end) {
    angle = mgl_angle(slot, i);
  }
  if (!mgl_task_begin(w) || mgl_task_is_mute(w)) {  // (the iteration before may read `out`)
    return;
  }
  while (i < end) {
    mgl_store_pair(out + i, angle);
    i += MGL_CUDA_CONSUMERS;
    if (i < end) {
      angle = mgl_angle(slot, i);
    }
  }
  if (mgl_has_copies(&slot->op)) {
    mgl_open_floats(w, open, slot->begin * MGL_HEAD_DIM, slot->end * MGL_HEAD_DIM);
  }
}

// --- the plan of the next iteration --------------------------------------------------------------

// Says that the plan of the next iteration is wanted. The planner warp makes it, and triggers the
// event in this task's stead (role_planner.cuh).
static __device__ inline void mgl_task_next_plan(mgl_worker *w) {
  mgl_cuda_run *run = w->run;
  mgl_slot *slot = &w->block->slots[w->slot];
  mgl_cuda_planning *planning = &run->planning;
  if (!mgl_task_begin(w) || run->planner == nullptr) {  // NULL: the host made the only plan
    return;
  }
  mgl_sync_consumers();  // what any of them wrote before is covered by the release below
  if (w->thread == 0) {
    bool lost = slot->mute != 0;
    planning->trigger = slot->trigger;
    planning->event = lost ? MGL_NO_EVENT : slot->trigger_event;
    planning->graph = slot->graph;
    planning->run = slot->run;
    slot->trigger = nullptr;
    slot->trigger_event = MGL_NO_EVENT;
    // Release, paired with the acquire of the planner.
    mgl_store_release(&planning->wanted, slot->iteration + 1);
  }
}

#endif
