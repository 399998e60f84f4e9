// Tasks of which an iteration has few: the rows of the embedding, the angles of RoPE, the plan of
// the next iteration, and sampling.
//
// The plan of iteration i + 1 is made while iteration i computes, from counts alone: which token a
// sequence decodes is known only after sampling, which fills it in. So between two iterations
// stands nothing but the choice of tokens, and loaders know early what comes next. The price is
// that a sequence which ends by a stop token has a row in one more iteration, for nothing.
//   Rejected: planning after sampling, a chain of loads and stores between any two iterations.
//
// Sampling chooses by sums of weights that are integers. They have one value in whatever order
// threads add, so a choice is the same from run to run without a fixed order of summation.
//   Rejected: sums of floats in a fixed order, where every pass has to keep to one assignment of
//   logits to threads.
#ifndef MGL_KERNELS_CUDA_TASKS_ITERATION_CUH
#define MGL_KERNELS_CUDA_TASKS_ITERATION_CUH

#include "kernels/cuda/worker.cuh"

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

enum {
  // Positions after which chunks of attention grow are multiples of this.
  MGL_CHUNKED_POSITIONS = MGL_CUDA_MIN_CHUNK * MGL_CUDA_MAX_CHUNKS,
  MGL_PLAN_PAIR = 2,  // slots, and rows, that a lane plans: 2 lane and 2 lane + 1
};

static_assert(MGL_CUDA_MAX_SEQUENCES == 32 * MGL_PLAN_PAIR, "a warp plans all sequences");
static_assert(MGL_CUDA_MAX_TOKENS == 32 * MGL_PLAN_PAIR, "and all rows");
static_assert(sizeof(mgl_cuda_sequence) % 16 == 0 &&
                  offsetof(mgl_cuda_sequence, max_tokens) == 16 &&
                  offsetof(mgl_cuda_sequence, seed) == 32,
              "state and counts, limits, seed and tokens are a 16-byte load each");
static_assert(offsetof(mgl_cuda_plan, items) % 16 == 0 && sizeof(mgl_cuda_plan) % 16 == 0 &&
                  sizeof(mgl_cuda_item) == 48,
              "an item is three 16-byte stores");

// In scratch: the plan while it is made.
struct mgl_planning {
  // By sequence slot.
  uint32_t first_row[MGL_CUDA_MAX_SEQUENCES];
  uint32_t row_count[MGL_CUDA_MAX_SEQUENCES];
  uint32_t position[MGL_CUDA_MAX_SEQUENCES];     // of the first row
  uint32_t known_count[MGL_CUDA_MAX_SEQUENCES];  // tokens that are known before sampling
  const int32_t *tokens[MGL_CUDA_MAX_SEQUENCES];
  // By row.
  uint32_t slots[MGL_CUDA_MAX_TOKENS];
  uint32_t tile_tokens[MGL_CUDA_MAX_TOKENS];  // of the tile that begins here
  uint32_t tile_chunks[MGL_CUDA_MAX_TOKENS];  // 0: none begins here
  uint32_t tile_shift[MGL_CUDA_MAX_TOKENS];   // binary logarithm of its chunks' size
  uint32_t tile_item[MGL_CUDA_MAX_TOKENS];    // its first item
  uint32_t token_count;
  uint32_t graph;
};

static_assert(sizeof(mgl_planning) <= MGL_CUDA_SCRATCH_BYTES, "scratch");

// What can be known before the task may run.
struct mgl_plan_limits {
  mgl_cuda_sequence *sequences;
  uint32_t slots;         // that there are
  uint32_t tokens;        // rows of the plan, at most; 0: the launch ends
  uint32_t chunk;         // rows of a prompt, at most
  uint32_t tile;          // tokens of a tile of attention, at most
  uint32_t graph_tokens;  // lane g: of graph g
  bool prompts_first;
};

static __device__ inline mgl_plan_limits mgl_read_plan_limits(const mgl_worker *w) {
  const mgl_cuda_run *run = w->run;
  uint32_t graphs = run->protocol.graph_count;
  mgl_plan_limits limits;
  limits.sequences = run->sequences;
  limits.slots = run->sequence_slots;
  limits.graph_tokens = w->lane < graphs ? run->graphs[w->lane].tokens : 0;
  uint32_t most = __shfl_sync(0xffffffffu, limits.graph_tokens, (int)graphs - 1);
  limits.tokens = mgl_min(mgl_min(run->iteration_tokens, MGL_CUDA_MAX_TOKENS), most);
  if (mgl_task_slot(w)->iteration + 1 >= run->most_iterations) {
    limits.tokens = 0;  // so that counts are those of the iterations that ran
  }
  limits.chunk = run->chunk_tokens != 0 ? mgl_min(run->chunk_tokens, limits.tokens) : limits.tokens;
  uint32_t group = run->group;
  limits.tile = group < MGL_CUDA_QUERY_COLUMNS ? MGL_CUDA_QUERY_COLUMNS / group : 1;
  limits.prompts_first = run->prompts_first != 0;
  return limits;
}

// A sequence as it is read, and what it is to compute.
struct mgl_planned {
  uint4 counts;  // state, tokens, computed tokens, tokens of the prompt
  uint4 seed_and_tokens;
  uint32_t max_tokens;
  uint32_t prompt;   // tokens of its prompt that are to be computed, at most the limit of a chunk
  uint32_t decodes;  // 1: it is to compute one more token, which this iteration may bring
};

static __device__ inline void mgl_read_planned(const mgl_plan_limits *limits, uint32_t slot,
                                               mgl_planned *planned) {
  // Always three loads, of some slot, so that nothing stands between those of a lane's slots.
  const mgl_cuda_sequence *sequence = &limits->sequences[slot < limits->slots ? slot : 0];
  planned->counts = mgl_load_l2(sequence);
  planned->seed_and_tokens = mgl_load_l2(&sequence->seed);
  planned->max_tokens = mgl_read_word(&sequence->max_tokens);
}

// After this iteration tokens [0, position) of a sequence are computed. One whose prompt is among
// them then has position + 1 tokens, the last one sampled in this iteration or, if it was left out
// of it, before: with position + 1 = max_tokens it is complete, and has nothing more to compute.
// Whether that token stops it is not known yet.
static __device__ inline void mgl_want_rows(const mgl_plan_limits *limits, uint32_t slot,
                                            mgl_planned *planned, mgl_planning *planning) {
  uint32_t position = planned->counts.z;
  uint32_t prompt = planned->counts.w > position ? planned->counts.w - position : 0;
  bool runs =
      slot < limits->slots && planned->counts.x == MGL_CUDA_SEQUENCE_RUNNING && limits->tokens != 0;
  planned->prompt = runs ? mgl_min(prompt, limits->chunk) : 0;
  planned->decodes = runs && prompt == 0 && position + 1 < planned->max_tokens ? 1 : 0;
  planning->position[slot] = position;
  planning->known_count[slot] = planned->counts.y;
  planning->tokens[slot] =
      (const int32_t *)((uint64_t)planned->seed_and_tokens.w << 32 | planned->seed_and_tokens.z);
}

// One warp: who gets which rows. Decoding sequences come first, then prompts, each in the order of
// slots; a prompt gets what those before it left: the prefix sums of what they want say how much.
static __device__ void mgl_divide_rows(const mgl_worker *w, const mgl_plan_limits *limits,
                                       mgl_planning *planning, mgl_cuda_plan *plan) {
  mgl_planned planned[MGL_PLAN_PAIR];
  for (uint32_t i = 0; i < MGL_PLAN_PAIR; i++) {
    mgl_read_planned(limits, w->lane * MGL_PLAN_PAIR + i, &planned[i]);
  }
  for (uint32_t i = 0; i < MGL_PLAN_PAIR; i++) {
    mgl_want_rows(limits, w->lane * MGL_PLAN_PAIR + i, &planned[i], planning);
  }
  bool prompts = __any_sync(0xffffffffu, planned[0].prompt + planned[1].prompt != 0) != 0;
  if (limits->prompts_first && prompts) {
    planned[0].decodes = planned[1].decodes = 0;
  }
  // Both sums in one word: no more than 64 decode, and no more than 64 * 64 tokens are wanted.
  uint32_t total;
  uint32_t wanted = (planned[0].decodes + planned[1].decodes) << 16;
  wanted += planned[0].prompt + planned[1].prompt;
  uint32_t before = mgl_warp_prefix(wanted, w->lane, &total);
  uint32_t decode_rows = mgl_min(total >> 16, limits->tokens);
  uint32_t prompt_rows = limits->tokens - decode_rows;
  uint32_t sequences = 0;
  for (uint32_t i = 0; i < MGL_PLAN_PAIR; i++) {
    uint32_t slot = w->lane * MGL_PLAN_PAIR + i;
    uint32_t decodes_before = before >> 16;
    uint32_t prompts_before = mgl_min(before & 0xffff, prompt_rows);
    uint32_t first = decode_rows + prompts_before;
    uint32_t count = mgl_min(planned[i].prompt, prompt_rows - prompts_before);
    if (planned[i].decodes != 0) {
      first = decodes_before;
      count = first < decode_rows ? 1 : 0;
    }
    planning->first_row[slot] = first;
    planning->row_count[slot] = count;
    for (uint32_t row = first; row < first + count; row++) {
      planning->slots[row] = slot;
    }
    plan->next_rows[slot] = count != 0 ? first : UINT32_MAX;
    if (count != 0) {
      limits->sequences[slot].computed_count = planned[i].counts.z + count;
    }
    sequences += (uint32_t)__popc(__ballot_sync(0xffffffffu, count != 0));
    before += planned[i].decodes << 16 | planned[i].prompt;
  }
  if (w->lane == 0) {
    planning->token_count = decode_rows + mgl_min(total & 0xffff, prompt_rows);
    plan->sequence_count = sequences;
  }
}

// Cuts the tokens of each sequence into tiles of attention, and each tile into chunks of positions.
//
// Bits do not depend on the cut. The chunks of a token are pieces of absolute positions, whose size
// follows from the token's own position p: MGL_CUDA_MIN_CHUNK doubled until MGL_CUDA_MAX_CHUNKS of
// them hold p + 1. It grows at p = 2048, 4096, 8192, and so on, all multiples of
// MGL_CHUNKED_POSITIONS, which no tile crosses, so all tokens of a tile have the size that the last
// one has. Chunks that only later tokens of the tile see add nothing to an earlier one.
//
// There are enough items: a tile has at least one of MGL_CUDA_MAX_TOKENS rows and at most
// MGL_CUDA_MAX_CHUNKS chunks, and MGL_CUDA_MAX_ITEMS is their product.
static __device__ inline void mgl_cut_tile(mgl_planning *planning, uint32_t row, uint32_t slot,
                                           uint32_t tile) {
  uint32_t fresh = planning->position[slot];
  uint32_t position = fresh + row - planning->first_row[slot];
  uint32_t begin = fresh;  // tiles are counted from here
  uint32_t end = fresh + planning->row_count[slot];
  // No more than one boundary: a sequence has fewer rows than there are positions between two.
  uint32_t boundary = (fresh / MGL_CHUNKED_POSITIONS + 1) * MGL_CHUNKED_POSITIONS;
  if (position >= boundary) {
    begin = boundary;
  } else {
    end = mgl_min(end, boundary);
  }
  planning->tile_chunks[row] = 0;
  if ((position - begin) % tile == 0) {
    uint32_t count = mgl_min(tile, end - position);
    uint32_t last = position + count - 1;
    uint32_t shift = 0;
    while (1u << shift < MGL_CUDA_MIN_CHUNK || last >> shift >= MGL_CUDA_MAX_CHUNKS) {
      shift++;
    }
    planning->tile_tokens[row] = count;
    planning->tile_shift[row] = shift;
    planning->tile_chunks[row] = (last >> shift) + 1;
  }
}

static_assert(MGL_CUDA_MAX_TOKENS <= MGL_CHUNKED_POSITIONS, "see above");
static_assert(MGL_CUDA_MAX_ITEMS >= MGL_CUDA_MAX_TOKENS * MGL_CUDA_MAX_CHUNKS, "see above");

// One warp: what the plan says of each row. Logits are wanted of a sequence's last token.
static __device__ void mgl_plan_rows(const mgl_worker *w, const mgl_plan_limits *limits,
                                     mgl_planning *planning, mgl_cuda_plan *plan) {
  uint32_t rows = planning->token_count;
  uint32_t marks[MGL_PLAN_PAIR];  // 1 << 16 with logits, plus items that begin here
  int32_t tokens[MGL_PLAN_PAIR];
  for (uint32_t i = 0; i < MGL_PLAN_PAIR; i++) {
    uint32_t row = w->lane * MGL_PLAN_PAIR + i;
    tokens[i] = -1;  // sampling fills it in
    if (row < rows) {
      uint32_t slot = planning->slots[row];
      uint32_t position = planning->position[slot] + row - planning->first_row[slot];
      if (position < planning->known_count[slot]) {
        tokens[i] = (int32_t)mgl_read_word((const uint32_t *)planning->tokens[slot] + position);
      }
    }
  }
  for (uint32_t i = 0; i < MGL_PLAN_PAIR; i++) {
    uint32_t row = w->lane * MGL_PLAN_PAIR + i;
    marks[i] = 0;
    if (row < rows) {
      uint32_t slot = planning->slots[row];
      uint32_t position = planning->position[slot] + row - planning->first_row[slot];
      bool ends = row + 1 == planning->first_row[slot] + planning->row_count[slot];
      bool complete = ends && position + 1 >= planning->known_count[slot];
      plan->tokens[row] = tokens[i];
      plan->positions[row] = position;
      plan->slots[row] = slot;
      mgl_cut_tile(planning, row, slot, limits->tile);
      marks[i] = planning->tile_chunks[row] + (complete ? 1u << 16 : 0);
    }
  }
  uint32_t total;
  uint32_t before = mgl_warp_prefix(marks[0] + marks[1], w->lane, &total);
  for (uint32_t i = 0; i < MGL_PLAN_PAIR; i++) {
    uint32_t row = w->lane * MGL_PLAN_PAIR + i;
    planning->tile_item[row] = before & 0xffff;
    if (marks[i] >> 16 != 0) {
      plan->logit_rows[before >> 16] = row;
      plan->logit_slots[before >> 16] = planning->slots[row];
    }
    before += marks[i];
  }
  uint32_t fitting = __ballot_sync(0xffffffffu, limits->graph_tokens >= rows);
  if (w->lane == 0) {
    planning->graph = rows != 0 ? (uint32_t)__ffs((int)fitting) - 1 : UINT32_MAX;
    plan->graph = planning->graph;
    plan->token_count = rows;
    plan->logit_row_count = total >> 16;
    plan->item_count = total & 0xffff;
  }
}

// All threads: four to a row, each writes every fourth item of the tile that begins there.
static __device__ void mgl_plan_items(const mgl_worker *w, const mgl_planning *planning,
                                      mgl_cuda_plan *plan) {
  enum { SHARE = MGL_CUDA_CONSUMERS / MGL_CUDA_MAX_TOKENS };
  uint32_t row = w->thread / SHARE;
  if (row >= planning->token_count) {
    return;
  }
  uint32_t slot = planning->slots[row];
  uint32_t first_row = planning->first_row[slot];
  uint32_t fresh = planning->position[slot];
  uint32_t position = fresh + row - first_row;
  uint32_t count = planning->tile_tokens[row];
  uint32_t chunks = planning->tile_chunks[row];
  uint32_t shift = planning->tile_shift[row];
  uint32_t first = planning->tile_item[row];
  for (uint32_t chunk = w->thread % SHARE; chunk < chunks; chunk += SHARE) {
    uint32_t kv_begin = chunk << shift;
    uint32_t kv_end = mgl_min(position + count, kv_begin + (1u << shift));
    uint4 *item = (uint4 *)&plan->items[first + chunk];
    item[0] = make_uint4(slot, row, count, position);
    item[1] = make_uint4(first_row, fresh, kv_begin, kv_end);
    item[2] = make_uint4(chunk, chunks, first, first);
  }
}

// Makes the plan of the next iteration. The sequences' states are those after the sampling of the
// iteration before this one.
static __device__ inline void mgl_task_next_plan(mgl_worker *w) {
  mgl_cuda_run *run = w->run;
  uint64_t next = mgl_task_slot(w)->iteration + 1;
  mgl_cuda_plan *plan = &run->plans[next & 1];
  mgl_planning *planning = (mgl_planning *)w->scratch;
  mgl_plan_limits limits = mgl_read_plan_limits(w);
  if (!mgl_task_begin(w)) {
    return;
  }
  mgl_sync_consumers();  // no warp is in the task before: scratch is free
  if (w->warp == 0) {
    mgl_divide_rows(w, &limits, planning, plan);
    __syncwarp();
    mgl_plan_rows(w, &limits, planning, plan);
  }
  mgl_sync_consumers();
  mgl_plan_items(w, planning, plan);
  uint32_t graph = planning->graph == UINT32_MAX ? 255 : planning->graph;
  mgl_sync_consumers();
  if (w->thread == 0) {
    // Release, paired with the acquire of loaders; through the barrier it covers all threads'
    // writes.
    mgl_store_release(&run->announced[next & 1], (next + 1) << 8 | graph);
  }
}

// --- the largest logit ---------------------------------------------------------------------------

// Larger floats have larger bits; all zeros are one, and so are all NaNs, the largest.
static __device__ inline uint32_t mgl_order_float(float value) {
  uint32_t bits = value == 0 ? 0 : __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return UINT32_MAX;
  }
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

static __device__ inline float mgl_float_of_order(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
}

static __device__ inline bool mgl_is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}

// A logit and its index in one word. The largest word is the largest logit's, the smallest index
// among equals; descending words are the order in which the host's sampler sorts.
static __device__ inline uint64_t mgl_ordered_best(float value, uint32_t index) {
  return (uint64_t)mgl_order_float(value) << 32 | (uint32_t)~index;
}

static __device__ inline float mgl_key_logit(uint64_t key) {
  return mgl_float_of_order((uint32_t)(key >> 32));
}

static __device__ inline uint32_t mgl_key_index(uint64_t key) {
  return ~(uint32_t)key;
}

// --- choosing from all logits --------------------------------------------------------------------
//
// As engine/sampler.c: temperature, then top-k, then top-p; where something is cut, the choice goes
// through what is left in descending order, else through all in ascending order of ids. (With top-k
// alone sampler.c goes through them as its selection left them, in no order.)
//
// "The k-th", "where the sum reaches top_p" and "where the sum passes the random number" are one
// question: with which key does a running sum over descending keys, of ones or of weights, reach a
// target? A list of sorted keys with running sums answers it. It is first made of the keys within a
// few temperatures of the largest logit, where the answer nearly always is. If it is not, or if
// those are too many, passes over the row narrow down an interval of keys that contains the answer,
// until what is in it fits into a list.

enum {
  MGL_LIST_KEYS = 2048,
  MGL_LOGIT_QUADS = 4,        // 16-byte loads of a thread at once
  MGL_WEIGHT_BITS = 40,       // the largest logit's weight is 2^40; 2^20 of them fit into 64 bits
  MGL_FIRST_REACH = 8,        // of the first list, in temperatures below the largest logit
  MGL_NEGLIGIBLE_REACH = 28,  // exp(-28) 2^40 < 1
};

// What is to be sampled. By the row's thread into scratch, then in each thread's registers.
struct mgl_choice {
  uint64_t best;  // the largest logit's key
  uint64_t seed, position;
  float temperature, top_p;
  uint32_t top_k;
  uint32_t wanted;  // 0: nothing
};

struct mgl_sampling_scratch {
  uint64_t keys[MGL_LIST_KEYS];
  uint64_t sums[MGL_LIST_KEYS];  // of the weights of keys up to this one
  uint64_t partial[2][MGL_CUDA_CONSUMER_WARPS];
  uint32_t counts[MGL_CUDA_CONSUMER_WARPS];
  uint32_t listed;  // keys that were to be in the list
  mgl_choice choice;
};

static_assert(sizeof(mgl_sampling_scratch) <= MGL_CUDA_SCRATCH_BYTES, "scratch");

// A row of logits, as a thread sees it.
struct mgl_logit_row {
  const mgl_worker *w;
  mgl_sampling_scratch *scratch;
  const float *logits;  // [count], aligned to 4 bytes
  uint32_t count;
  uint32_t shift;  // floats from a multiple of 16 bytes to the first logit
  float largest;
  float inverse;  // of the temperature
};

// exp((logit - largest) / temperature) as an integer.
static __device__ inline uint64_t mgl_weight(const mgl_logit_row *row, float logit) {
  float below = (logit - row->largest) * row->inverse;
  if (!(below > -(float)MGL_NEGLIGIBLE_REACH)) {
    return 0;
  }
  return (uint64_t)(expf(below) * (float)(1ull << MGL_WEIGHT_BITS));
}

// Id of the float `part` of quad number `quad` of the row; at least `count` where it is none of it.
static __device__ inline uint32_t mgl_logit_id(const mgl_logit_row *row, uint32_t quad,
                                               uint32_t part) {
  return quad * 4 + part - row->shift;
}

static __device__ inline uint32_t mgl_quad_count(const mgl_logit_row *row) {
  return (row->shift + row->count + 3) / 4;
}

// Quads first + i * stride. Those behind the row repeat its last one: their ids say so.
static __device__ inline void mgl_load_quads(const mgl_logit_row *row, uint32_t first,
                                             uint32_t stride, float4 quads[MGL_LOGIT_QUADS]) {
  uint32_t last = mgl_quad_count(row) - 1;
  const float *aligned = row->logits - row->shift;
#pragma unroll
  for (uint32_t i = 0; i < MGL_LOGIT_QUADS; i++) {
    uint4 v = mgl_load_l2(aligned + (size_t)mgl_min(first + i * stride, last) * 4);
    quads[i].x = __uint_as_float(v.x);
    quads[i].y = __uint_as_float(v.y);
    quads[i].z = __uint_as_float(v.z);
    quads[i].w = __uint_as_float(v.w);
  }
}

static __device__ inline float mgl_quad_part(const float4 *quad, uint32_t part) {
  return part == 0 ? quad->x : part == 1 ? quad->y : part == 2 ? quad->z : quad->w;
}

template <typename number>
static __device__ inline number mgl_lanes_sum(number value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// What a pass over the row finds. Logits without weight do not count.
struct mgl_survey {
  uint32_t count;  // of keys in the interval
  uint64_t mass;   // and the sum of their weights
  uint32_t all_count;
  uint64_t all_mass;
};

// All threads: surveys keys [low, high) and puts them into the list, in no order, as far as they
// fit. Begins and ends with barriers.
static __device__ mgl_survey mgl_survey_row(const mgl_logit_row *row, uint64_t low, uint64_t high) {
  mgl_sampling_scratch *scratch = row->scratch;
  uint32_t thread = row->w->thread;
  mgl_sync_consumers();  // the list before has been used
  if (thread == 0) {
    scratch->listed = 0;
  }
  mgl_sync_consumers();
  uint64_t mass = 0, all_mass = 0;
  uint32_t all_count = 0;
  uint32_t quad_count = mgl_quad_count(row);
  for (uint32_t first = thread; first < quad_count; first += MGL_LOGIT_QUADS * MGL_CUDA_CONSUMERS) {
    float4 quads[MGL_LOGIT_QUADS];
    mgl_load_quads(row, first, MGL_CUDA_CONSUMERS, quads);
#pragma unroll
    for (uint32_t i = 0; i < MGL_LOGIT_QUADS * 4; i++) {
      uint32_t id = mgl_logit_id(row, first + i / 4 * MGL_CUDA_CONSUMERS, i % 4);
      float logit = mgl_quad_part(&quads[i / 4], i % 4);
      uint64_t weight = id < row->count ? mgl_weight(row, logit) : 0;
      if (weight == 0) {
        continue;
      }
      all_mass += weight;
      all_count++;
      uint64_t key = mgl_ordered_best(logit, id);
      if (key >= low && key < high) {
        mass += weight;
        uint32_t at = atomicAdd(&scratch->listed, 1u);
        if (at < MGL_LIST_KEYS) {
          scratch->keys[at] = key;
        }
      }
    }
  }
  mass = mgl_lanes_sum((unsigned long long)mass);
  all_mass = mgl_lanes_sum((unsigned long long)all_mass);
  all_count = mgl_lanes_sum(all_count);
  if (row->w->lane == 0) {
    scratch->partial[0][row->w->warp] = mass;
    scratch->partial[1][row->w->warp] = all_mass;
    scratch->counts[row->w->warp] = all_count;
  }
  mgl_sync_consumers();
  mgl_survey survey = {scratch->listed, 0, 0, 0};
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    survey.mass += scratch->partial[0][i];
    survey.all_mass += scratch->partial[1][i];
    survey.all_count += scratch->counts[i];
  }
  return survey;
}

// All threads: brings the list into descending order (bitonic), `padded` a power of two.
static __device__ void mgl_sort_list(const mgl_logit_row *row, uint32_t count, uint32_t padded) {
  uint64_t *keys = row->scratch->keys;
  uint32_t thread = row->w->thread;
  for (uint32_t i = count + thread; i < padded; i += MGL_CUDA_CONSUMERS) {
    keys[i] = 0;
  }
  mgl_sync_consumers();
  for (uint32_t run = 2; run <= padded; run *= 2) {
    for (uint32_t stride = run / 2; stride > 0; stride /= 2) {
      for (uint32_t i = thread; i < padded / 2; i += MGL_CUDA_CONSUMERS) {
        uint32_t at = 2 * i - (i & (stride - 1));
        uint64_t first = keys[at];
        uint64_t second = keys[at + stride];
        if ((first < second) == ((at & run) == 0)) {
          keys[at] = second;
          keys[at + stride] = first;
        }
      }
      mgl_sync_consumers();
    }
  }
}

// All threads: sorts the list and makes its running sums. Ends with a barrier.
static __device__ void mgl_finish_list(const mgl_logit_row *row, uint32_t count) {
  mgl_sampling_scratch *scratch = row->scratch;
  const mgl_worker *w = row->w;
  uint32_t padded = MGL_CUDA_CONSUMERS;
  while (padded < count) {
    padded *= 2;
  }
  mgl_sort_list(row, count, padded);
  uint32_t each = padded / MGL_CUDA_CONSUMERS;
  uint64_t sum = 0;
  for (uint32_t i = w->thread * each; i < (w->thread + 1) * each; i++) {
    sum += i < count ? mgl_weight(row, mgl_key_logit(scratch->keys[i])) : 0;
    scratch->sums[i] = sum;
  }
  unsigned long long total;
  uint64_t before = mgl_warp_prefix((unsigned long long)sum, w->lane, &total);
  if (w->lane == 0) {
    scratch->partial[0][w->warp] = total;
  }
  mgl_sync_consumers();
  for (uint32_t i = 0; i < w->warp; i++) {
    before += scratch->partial[0][i];
  }
  for (uint32_t i = w->thread * each; i < (w->thread + 1) * each; i++) {
    scratch->sums[i] += before;
  }
  mgl_sync_consumers();
}

// An interval of keys [low, high), how many are in it and above it, and the same of their weights.
// `mass` is that of the keys in it, or unknown where the interval is not a list.
struct mgl_interval {
  uint64_t low, high;
  uint64_t count, above_count;
  uint64_t mass, above_mass;
  bool listed;  // the list in scratch is it
};

// What is counted up to a target.
enum mgl_measure { MGL_BY_COUNT, MGL_BY_MASS };

struct mgl_boundary {
  uint64_t key;
  uint64_t mass;  // of all keys down to this one
};

// The boundary in the list, which contains it. All threads search for themselves.
static __device__ mgl_boundary mgl_look_up(const mgl_logit_row *row, const mgl_interval *list,
                                           mgl_measure measure, uint64_t target) {
  const mgl_sampling_scratch *scratch = row->scratch;
  uint32_t at;
  if (measure == MGL_BY_COUNT) {
    at = (uint32_t)(target - list->above_count) - 1;
  } else {
    uint32_t end = (uint32_t)list->count - 1;
    at = 0;
    while (at < end) {
      uint32_t middle = (at + end) / 2;
      if (list->above_mass + scratch->sums[middle] >= target) {
        end = middle;
      } else {
        at = middle + 1;
      }
    }
  }
  mgl_boundary boundary = {scratch->keys[at], list->above_mass + scratch->sums[at]};
  return boundary;
}

// A key to divide [low, high) at, itself the least of the upper part: of the value in the middle,
// or the middle key where the ends have one value.
static __device__ inline uint64_t mgl_middle_key(uint64_t low, uint64_t high) {
  float smallest = mgl_key_logit(low);
  float middle = smallest + (mgl_key_logit(high - 1) - smallest) * 0.5f;
  uint64_t key = (uint64_t)mgl_order_float(middle) << 32;
  return key > low && key < high ? key : low + (high - low) / 2;
}

static __device__ inline bool mgl_reaches(const mgl_interval *interval, mgl_measure measure,
                                          uint64_t target) {
  return measure == MGL_BY_COUNT ? interval->above_count + interval->count >= target
                                 : interval->above_mass + interval->mass >= target;
}

// Surveys the upper part of `in`, from `middle` on: *upper. It is made a list if it fits.
static __device__ mgl_survey mgl_survey_upper(const mgl_logit_row *row, const mgl_interval *in,
                                              uint64_t middle, mgl_interval *upper) {
  mgl_survey survey = mgl_survey_row(row, middle, in->high);
  *upper = *in;
  upper->low = middle;
  upper->count = survey.count;
  upper->mass = survey.mass;
  upper->listed = survey.count <= MGL_LIST_KEYS;
  if (upper->listed) {
    mgl_finish_list(row, survey.count);
  }
  return survey;
}

// All threads: the key with which the sum reaches the target, which all keys of `all` together
// reach. *list is the present list, or an interval that was too large for one; it changes if the
// boundary is not in a list yet.
static __device__ mgl_boundary mgl_find_boundary(const mgl_logit_row *row, const mgl_interval *all,
                                                 mgl_interval *list, mgl_measure measure,
                                                 uint64_t target) {
  mgl_interval left = *all;
  uint64_t above = measure == MGL_BY_COUNT ? list->above_count : list->above_mass;
  if (target > above && mgl_reaches(list, measure, target)) {
    if (list->listed) {
      return mgl_look_up(row, list, measure, target);
    }
    left = *list;
  }
  while (left.low < left.high) {
    bool fits = left.count <= MGL_LIST_KEYS;
    uint64_t middle = fits ? left.low : mgl_middle_key(left.low, left.high);
    mgl_interval upper;
    (void)mgl_survey_upper(row, &left, middle, &upper);
    if (mgl_reaches(&upper, measure, target)) {
      *list = upper;
      if (upper.listed) {
        return mgl_look_up(row, list, measure, target);
      }
      left = upper;
    } else {
      left.above_count += upper.count;
      left.above_mass += upper.mass;
      left.count -= upper.count;
      left.high = middle;
    }
  }
  mgl_boundary none = {0, 0};  // never: the target was reached by all
  return none;
}

// --- the choice ----------------------------------------------------------------------------------

// As mgl_sampling_uniform of engine/sampler.c.
static __device__ inline double mgl_sampling_uniform(uint64_t seed, uint64_t position) {
  uint64_t x = seed;
  for (int round = 0; round < 2; round++) {
    x += (position + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    x ^= x >> 31;
  }
  return (double)(x >> 11) * (1.0 / 9007199254740992.0);
}

// The least integer sum that is larger than `uniform` of the whole.
static __device__ inline uint64_t mgl_chosen_sum(double uniform, uint64_t whole) {
  uint64_t sum = (uint64_t)(uniform * (double)whole) + 1;
  return sum < whole ? sum : whole;
}

// One warp: the sum of the weights of ids [begin, end).
static __device__ uint64_t mgl_range_mass(const mgl_logit_row *row, uint32_t begin, uint32_t end) {
  uint64_t mass = 0;
  uint32_t quad_end = (row->shift + end + 3) / 4;
  for (uint32_t first = (row->shift + begin) / 4 + row->w->lane; first < quad_end;
       first += MGL_LOGIT_QUADS * 32) {
    float4 quads[MGL_LOGIT_QUADS];
    mgl_load_quads(row, first, 32, quads);
#pragma unroll
    for (uint32_t i = 0; i < MGL_LOGIT_QUADS * 4; i++) {
      uint32_t id = mgl_logit_id(row, first + i / 4 * 32, i % 4);
      bool inside = id >= begin && id < end;
      mass += inside ? mgl_weight(row, mgl_quad_part(&quads[i / 4], i % 4)) : 0;
    }
  }
  return mgl_lanes_sum((unsigned long long)mass);
}

// All threads: the choice among all, in ascending order of ids. Each warp sums one of eight parts,
// then the part in which the choice lies is divided again, until it is one id.
static __device__ uint32_t mgl_choose_by_id(const mgl_logit_row *row, double uniform) {
  uint64_t *masses = row->scratch->partial[0];
  uint32_t begin = 0;
  uint32_t end = row->count;
  uint64_t target = 0;  // of the masses from `begin` on; 0: not known yet
  do {
    uint32_t part = (end - begin + MGL_CUDA_CONSUMER_WARPS - 1) / MGL_CUDA_CONSUMER_WARPS;
    uint32_t from = mgl_min(begin + row->w->warp * part, end);
    uint64_t mass = mgl_range_mass(row, from, mgl_min(from + part, end));
    if (row->w->lane == 0) {
      masses[row->w->warp] = mass;
    }
    mgl_sync_consumers();
    if (target == 0) {
      uint64_t whole = 0;
      for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
        whole += masses[i];
      }
      target = mgl_chosen_sum(uniform, whole);
    }
    uint32_t chosen = 0;
    while (chosen + 1 < MGL_CUDA_CONSUMER_WARPS && masses[chosen] < target) {
      target -= masses[chosen++];
    }
    begin += chosen * part;
    end = mgl_min(begin + part, end);
    mgl_sync_consumers();  // all have read the masses
  } while (end - begin > 1);
  return begin;
}

// All threads: the choice among what top-k and top-p leave, in descending order.
static __device__ uint32_t mgl_choose_from_top(const mgl_logit_row *row, const mgl_choice *choice,
                                               double uniform) {
  // Rounding is monotone: what lies above largest - 32 temperatures, as all that has weight does,
  // is not below the rounded difference.
  float temperature = 1 / row->inverse;
  mgl_interval all = {};
  all.low = (uint64_t)mgl_order_float(row->largest - 32 * temperature) << 32;
  all.high = choice->best + 1;
  all.count = row->count;
  float reach = row->largest - MGL_FIRST_REACH * temperature;
  uint64_t middle = (uint64_t)mgl_order_float(reach) << 32;
  mgl_interval list;
  mgl_survey survey = mgl_survey_upper(row, &all, middle, &list);
  all.count = survey.all_count;
  all.mass = survey.all_mass;
  uint64_t kept = all.mass;
  if (choice->top_k > 0 && choice->top_k < all.count) {  // else all that has weight is kept
    kept = mgl_find_boundary(row, &all, &list, MGL_BY_COUNT, choice->top_k).mass;
  }
  if (choice->top_p < 1) {
    double reached = (double)choice->top_p * (double)kept;
    uint64_t target = (uint64_t)reached;
    target += (double)target < reached ? 1 : 0;
    target = target < 1 ? 1 : target < kept ? target : kept;
    kept = mgl_find_boundary(row, &all, &list, MGL_BY_MASS, target).mass;
  }
  uint64_t target = mgl_chosen_sum(uniform, kept);
  return mgl_key_index(mgl_find_boundary(row, &all, &list, MGL_BY_MASS, target).key);
}

// All threads: a token for a row with a finite largest logit.
static __device__ uint32_t mgl_choose(const mgl_worker *w, uint32_t row_index,
                                      const mgl_choice *choice) {
  const mgl_cuda_op *op = &mgl_task_slot(w)->op;
  mgl_logit_row row;
  row.w = w;
  row.scratch = (mgl_sampling_scratch *)w->scratch;
  row.logits = (const float *)op->x + (size_t)row_index * op->x_stride;
  row.count = op->n;
  row.shift = (uint32_t)((uint64_t)row.logits / 4 % 4);
  row.largest = mgl_key_logit(choice->best);
  row.inverse = 1 / (choice->temperature > 1e-30f ? choice->temperature : 1e-30f);
  double uniform = mgl_sampling_uniform(choice->seed, choice->position);
  if ((choice->top_k == 0 || choice->top_k >= op->n) && !(choice->top_p < 1)) {
    return mgl_choose_by_id(&row, uniform);
  }
  return mgl_choose_from_top(&row, choice, uniform);
}

// --- sample --------------------------------------------------------------------------------------

// A logit row, as its thread keeps it. Read before the task may run, but for `best` and what of the
// sequence changes.
struct mgl_sampled {
  mgl_cuda_sequence *sequence;  // NULL: nothing is sampled for the row
  mgl_cuda_sequence copy;       // of it; stop ids that are not set are -1
  const uint32_t *next_row_at;
  uint32_t next_row;
  uint32_t vocab;
  uint64_t best;
};

// True if the sequence's token is not just the largest logit.
static __device__ inline bool mgl_is_random(const mgl_cuda_run *run, uint32_t slot) {
  if (slot == UINT32_MAX) {
    return false;
  }
  uint4 limits = mgl_load_l2(&run->sequences[slot].max_tokens);  // max_tokens, top_k, temperature
  return limits.y != 1 && __uint_as_float(limits.z) != 0;
}

// What is constant in a launch.
static __device__ inline void mgl_read_sequence(mgl_cuda_run *run, uint32_t slot,
                                                const mgl_cuda_plan *next, mgl_sampled *sampled) {
  mgl_cuda_sequence *from = &run->sequences[slot];
  mgl_cuda_sequence *to = &sampled->copy;
  uint4 limits = mgl_load_l2(&from->max_tokens);
  uint4 seed_and_tokens = mgl_load_l2(&from->seed);
  to->max_tokens = limits.x;
  to->top_k = limits.y;
  to->temperature = __uint_as_float(limits.z);
  to->top_p = __uint_as_float(limits.w);
  to->seed = (uint64_t)seed_and_tokens.y << 32 | seed_and_tokens.x;
  to->tokens = (int32_t *)((uint64_t)seed_and_tokens.w << 32 | seed_and_tokens.z);
  to->host_tokens = from->host_tokens;
  uint32_t stop_count = from->stop_count;
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_MAX_STOP_IDS; i++) {
    to->stop_ids[i] = i < stop_count ? from->stop_ids[i] : -1;  // which is no token
  }
  sampled->sequence = from;
  sampled->next_row_at = &next->next_rows[slot];
  sampled->vocab = run->vocab;
}

// What other tasks wrote, all in one go.
static __device__ inline void mgl_read_sampled(const uint64_t *best, mgl_sampled *sampled) {
  sampled->best = *(const volatile uint64_t *)best;
  if (sampled->sequence != nullptr) {
    uint4 counts = mgl_load_l2(sampled->sequence);
    sampled->next_row = mgl_read_word(sampled->next_row_at);
    sampled->copy.state = counts.x;
    sampled->copy.token_count = counts.y;
  }
}

// Hands the token on. Also a sequence that ends here may have a row in the next plan: it needs some
// valid token. One that ended before has none.
static __device__ inline void mgl_append_token(mgl_cuda_plan *next, const mgl_sampled *sampled,
                                               uint32_t token) {
  const mgl_cuda_sequence *copy = &sampled->copy;
  if (sampled->next_row != UINT32_MAX) {
    next->tokens[sampled->next_row] = token < sampled->vocab ? (int32_t)token : 0;
  }
  if (copy->state != MGL_CUDA_SEQUENCE_RUNNING) {
    return;
  }
  mgl_cuda_sequence *sequence = sampled->sequence;
  if (!mgl_is_finite(mgl_key_logit(sampled->best))) {
    sequence->state = MGL_CUDA_SEQUENCE_NOT_FINITE;
    return;
  }
  copy->tokens[copy->token_count] = (int32_t)token;
  if (copy->host_tokens != nullptr) {
    // Volatile is relaxed at system scope: one store of four bytes, which the host polls.
    ((volatile int32_t *)copy->host_tokens)[copy->token_count] = (int32_t)token;
  }
  uint32_t stops = 0;  // without branches: few cycles
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_MAX_STOP_IDS; i++) {
    stops |= copy->stop_ids[i] == (int32_t)token ? 1 : 0;
  }
  sequence->token_count = copy->token_count + 1;
  if (stops != 0) {
    sequence->state = MGL_CUDA_SEQUENCE_STOPPED;
  } else if (copy->token_count + 1 == copy->max_tokens) {
    sequence->state = MGL_CUDA_SEQUENCE_LENGTH;
  }
}

// All threads: the row of thread `owner`, whose token is drawn.
static __device__ void mgl_sample_randomly(mgl_worker *w, uint32_t owner, mgl_cuda_plan *next,
                                           const mgl_sampled *sampled) {
  mgl_sampling_scratch *scratch = (mgl_sampling_scratch *)w->scratch;
  const mgl_cuda_sequence *copy = &sampled->copy;
  mgl_sync_consumers();  // no warp is in the task before, or uses the choice before
  if (w->thread == owner) {
    mgl_choice *choice = &scratch->choice;
    choice->best = sampled->best;
    choice->seed = copy->seed;
    choice->position = copy->token_count;
    choice->temperature = copy->temperature;
    choice->top_p = copy->top_p;
    choice->top_k = copy->top_k;
    choice->wanted =
        copy->state == MGL_CUDA_SEQUENCE_RUNNING && mgl_is_finite(mgl_key_logit(sampled->best)) ? 1
                                                                                                : 0;
  }
  mgl_sync_consumers();
  mgl_choice choice = scratch->choice;
  uint32_t token = mgl_key_index(choice.best);
  if (choice.wanted != 0) {
    token = mgl_choose(w, mgl_task_slot(w)->begin + owner, &choice);
  }
  if (w->thread == owner) {
    mgl_append_token(next, sampled, token);
  }
}

// Logit rows [begin, end): a thread each where the token is the largest logit, and all threads one
// after the other where it is drawn. Runs after this iteration's logits and the next one's plan.
static __device__ inline void mgl_task_sample(mgl_worker *w) {
  mgl_cuda_run *run = w->run;
  const mgl_slot *slot = mgl_task_slot(w);
  const mgl_cuda_plan *plan = slot->plan;
  mgl_cuda_plan *next = &run->plans[(slot->iteration + 1) & 1];
  uint32_t begin = slot->begin;
  uint32_t end = mgl_min(slot->end, mgl_read_word(&plan->logit_row_count));
  static_assert(MGL_CUDA_MAX_TOKENS == 64, "a lane looks at two rows");
  uint64_t random = 0;                     // bit i: the token of row begin + i is drawn
  for (uint32_t i = 0; i < 64; i += 32) {  // in every warp, so that all know without a barrier
    uint32_t row = begin + i + w->lane;
    bool drawn = row < end && mgl_is_random(run, mgl_read_word(&plan->logit_slots[row]));
    random |= (uint64_t)__ballot_sync(0xffffffffu, drawn) << i;
  }
  mgl_sampled sampled;
  sampled.sequence = nullptr;
  uint32_t row = begin + w->thread;
  if (row < end) {
    uint32_t sequence_slot = mgl_read_word(&plan->logit_slots[row]);
    if (sequence_slot != UINT32_MAX) {
      mgl_read_sequence(run, sequence_slot, next, &sampled);
    }
  }
  if (!mgl_task_begin(w)) {
    return;
  }
  if (row < end) {
    mgl_read_sampled(&run->best[row], &sampled);
    if (sampled.sequence != nullptr && (random >> w->thread & 1) == 0) {
      mgl_append_token(next, &sampled, mgl_key_index(sampled.best));
    }
    run->best[row] = 0;
  }
  for (; random != 0; random &= random - 1) {
    mgl_sample_randomly(w, (uint32_t)__ffsll((long long)random) - 1, next, &sampled);
  }
}

#endif
