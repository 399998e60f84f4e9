// Tasks of which an iteration has few: the rows of the embedding, the angles of RoPE, and the plan
// of the next iteration.
//
// The plan of iteration i + 1 is made while iteration i computes, from counts alone: which token a
// sequence decodes is known only after sampling, which fills it in. So between two iterations
// stands nothing but the choice of tokens, and loaders know early what comes next. The price is
// that a sequence which ends by a stop token has a row in one more iteration, for nothing.
//   Rejected: planning after sampling, a chain of loads and stores between any two iterations.
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
                  offsetof(mgl_cuda_sequence, host_tokens) == 32 &&
                  offsetof(mgl_cuda_sequence, rule) == 48,
              "state and counts, limits, and tokens are a 16-byte load each");
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
  uint4 tokens;  // host_tokens and tokens
  uint32_t max_tokens;
  uint32_t prompt;   // tokens of its prompt that are to be computed, at most the limit of a chunk
  uint32_t decodes;  // 1: it is to compute one more token, which this iteration may bring
};

static __device__ inline void mgl_read_planned(const mgl_plan_limits *limits, uint32_t slot,
                                               mgl_planned *planned) {
  // Always three loads, of some slot, so that nothing stands between those of a lane's slots.
  const mgl_cuda_sequence *sequence = &limits->sequences[slot < limits->slots ? slot : 0];
  planned->counts = mgl_load_l2(sequence);
  planned->tokens = mgl_load_l2(&sequence->host_tokens);
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
  planning->tokens[slot] = (const int32_t *)((uint64_t)planned->tokens.w << 32 | planned->tokens.z);
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

#endif
