// Plain attention in the order of the fused tasks (attend/tasks_attend.cuh): the same bits, for a
// query head of a token a block. Where rows lie is the plain cache's: K [pages, HKV, HD, P], V
// [pages, HKV, P, HD].
//
// As there, a chunk has 128 positions, doubled until 16 of them hold the context; a warp takes
// every eighth tile of 16 positions with an online softmax of its own; warps, then chunks, are
// merged in order. All eight columns of a product are the one query. Only on a GPU: a host's blocks
// of one thread take the order of plain_attention.cuh.
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_ORDERED_ATTENTION_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_ORDERED_ATTENTION_CUH

#include "kernels/cuda/plain/plain_block.cuh"
#include "kernels/cuda/plain/plain_ordered.cuh"

// What a block knows of its query head.
typedef struct mgl_plain_query {
  const float *q;        // [HD]
  const int32_t *table;  // of its sequence
  uint32_t kv_head;
  uint32_t first, count;  // it attends to positions [first, count)
} mgl_plain_query;

// Where in a KV head's page a position lies: *out_head is the number of that head of that page.
MGL_PLAIN_FN uint32_t mgl_plain_find_position(const mgl_plain_op *op, const mgl_plain_query *query,
                                              uint32_t position, uint64_t *out_head) {
  uint64_t page = (uint64_t)query->table[position / op->page_tokens];
  *out_head = page * op->in[1].rows + query->kv_head;
  return position % op->page_tokens;
}

#ifdef __CUDACC__

enum {
  MGL_ORDERED_TILE = 16,                                  // positions
  MGL_ORDERED_STEP = MGL_ORDERED_TILE * MGL_PLAIN_WARPS,  // from a warp's tile to its next
  MGL_ORDERED_CHUNK = 128,                                // as MGL_CUDA_MIN_CHUNK
  MGL_ORDERED_CHUNKS = 16,                                // as MGL_CUDA_MAX_CHUNKS
  MGL_ORDERED_HEAD_DIM = 128,                             // at most
  MGL_ORDERED_VALUES = MGL_ORDERED_HEAD_DIM / 16,
};
static_assert(MGL_PLAIN_WARPS == MGL_ORDERED_SLICES, "as many warps as share an item");

MGL_PLAIN_FN bool mgl_plain_attends_ordered(const mgl_plain_op *op) {
  return op->fused_order != 0 && op->in[1].dtype == MGL_DTYPE_BF16 && op->in[1].last % 32 == 0 &&
         op->in[1].last <= MGL_ORDERED_HEAD_DIM;
}

// A sum of weighed values, its maximum score (times log2 e) and its sum of weights.
typedef struct mgl_ordered_part {
  float value, max, sum;
} mgl_ordered_part;

// Online softmax of a warp; every lane has its own part of `sum`.
typedef struct mgl_ordered_state {
  float max, sum;
  float values[MGL_ORDERED_VALUES][4];
} mgl_ordered_state;

// What the warps of a block hand on to each other.
typedef struct mgl_ordered_shared {
  mgl_bf16 q[MGL_ORDERED_HEAD_DIM];
  float values[MGL_PLAIN_WARPS][MGL_ORDERED_HEAD_DIM];
  float max[MGL_PLAIN_WARPS], sum[MGL_PLAIN_WARPS];
  mgl_ordered_part chunks[MGL_ORDERED_CHUNKS][MGL_ORDERED_HEAD_DIM];
} mgl_ordered_shared;

MGL_PLAIN_FN float mgl_ordered_base(float max) {
  return max == -MGL_PLAIN_INFINITY ? 0.0f : max;
}

// Position in a tile of row `row` < 8 of the scores; row + 8 has that + 2.
MGL_PLAIN_FN uint32_t mgl_ordered_position(uint32_t row) {
  return row / 2 * 4 + row % 2;
}

// Elements d and d + 1 of the key of a position; 0 where it is not seen.
MGL_PLAIN_FN uint32_t mgl_ordered_key(const mgl_plain_op *op, const mgl_plain_query *query,
                                      uint32_t position, uint32_t d) {
  const mgl_plain_tensor *kv = &op->in[1];
  uint64_t head;
  if (position >= query->count) {
    return 0;
  }
  uint32_t offset = mgl_plain_find_position(op, query, position, &head);
  const mgl_bf16 *k = (const mgl_bf16 *)kv->data + (head * kv->last + d) * op->page_tokens + offset;
  return k[0] | (uint32_t)k[op->page_tokens] << 16;
}

// Element d of the values of positions `position` and the next one.
MGL_PLAIN_FN uint32_t mgl_ordered_value(const mgl_plain_op *op, const mgl_plain_query *query,
                                        uint32_t position, uint32_t d) {
  const mgl_plain_tensor *kv = &op->in[1];
  uint32_t pair = 0;
  for (uint32_t i = 0; i < 2; i++) {
    uint64_t head;
    if (position + i < query->count) {
      uint32_t offset = mgl_plain_find_position(op, query, position + i, &head);
      uint64_t row = head * op->page_tokens + offset;
      pair |= (uint32_t)((const mgl_bf16 *)kv->v)[row * kv->last + d] << 16 * i;
    }
  }
  return pair;
}

// The scores of this lane's two positions of the tile at `first`.
MGL_PLAIN_FN void mgl_ordered_scores(const mgl_plain_op *op, const mgl_plain_query *query,
                                     const mgl_bf16 *q, uint32_t first, float scores[2]) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES;
  const uint32_t position = first + mgl_ordered_position(lane / 4);
  float products[2][4] = {};  // of the first and the second half of each lane's elements
  for (uint32_t piece = 0; piece < op->in[1].last; piece += 32) {
    MGL_PLAIN_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
      const uint32_t d = piece + lane % 4 * 8 + half * 4;
      const uint32_t a[4] = {mgl_ordered_key(op, query, position, d),
                             mgl_ordered_key(op, query, position + 2, d),
                             mgl_ordered_key(op, query, position, d + 2),
                             mgl_ordered_key(op, query, position + 2, d + 2)};
      mgl_mma(products[half], a, q[d] | (uint32_t)q[d + 1] << 16,
              q[d + 2] | (uint32_t)q[d + 3] << 16);
    }
  }
  scores[0] = products[0][0] + products[1][0];
  scores[1] = products[0][2] + products[1][2];
}

// One step of the online softmax: weights become two words of B for the product with V.
MGL_PLAIN_FN void mgl_ordered_softmax(const mgl_plain_op *op, const mgl_plain_query *query,
                                      uint32_t first, const float scores[2],
                                      mgl_ordered_state *state, uint32_t weights[2]) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES;
  const uint32_t position = first + mgl_ordered_position(lane / 4);
  const float factor = (float)op->attrs[MGL_ATTR_SCALE] * 1.44269504f;  // log2 e
  const uint32_t begin = query->first;
  float low =
      position < query->count && position >= begin ? scores[0] * factor : -MGL_PLAIN_INFINITY;
  float high = position + 2 < query->count && position + 2 >= begin ? scores[1] * factor
                                                                    : -MGL_PLAIN_INFINITY;
  float max = fmaxf(low, high);
  for (int offset = 4; offset < MGL_PLAIN_LANES; offset *= 2) {
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
  }
  max = fmaxf(max, state->max);
  const float base = mgl_ordered_base(max);
  const float decay = exp2f(state->max - base);
  const mgl_bf16 low_bits = mgl_f32_to_bf16(exp2f(low - base));
  const mgl_bf16 high_bits = mgl_f32_to_bf16(exp2f(high - base));
  state->max = max;
  state->sum = state->sum * decay + (mgl_bf16_to_f32(low_bits) + mgl_bf16_to_f32(high_bits));
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < MGL_ORDERED_VALUES * 4; i++) {
    state->values[i / 4][i % 4] *= decay;
  }
  // Lane 4 g + t needs rows 2t and 2t + 1, of which lanes 8t and 8t + 4 have one each.
  const int from = (int)(lane % 4 * 8);
  weights[0] = __shfl_sync(0xffffffffu, (uint32_t)low_bits, from) |
               __shfl_sync(0xffffffffu, (uint32_t)low_bits, from + 4) << 16;
  weights[1] = __shfl_sync(0xffffffffu, (uint32_t)high_bits, from) |
               __shfl_sync(0xffffffffu, (uint32_t)high_bits, from + 4) << 16;
}

// A warp's tile at `first`.
MGL_PLAIN_FN void mgl_ordered_attend_tile(const mgl_plain_op *op, const mgl_plain_query *query,
                                          const mgl_bf16 *q, uint32_t first,
                                          mgl_ordered_state *state) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES, position = first + lane % 4 * 4;
  float scores[2];
  uint32_t weights[2];
  mgl_ordered_scores(op, query, q, first, scores);
  mgl_ordered_softmax(op, query, first, scores, state, weights);
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < MGL_ORDERED_VALUES; i++) {
    const uint32_t d = i * 16 + lane / 4;
    if (i * 16 < op->in[1].last) {  // the same in all lanes
      const uint32_t a[4] = {mgl_ordered_value(op, query, position, d),
                             mgl_ordered_value(op, query, position, d + 8),
                             mgl_ordered_value(op, query, position + 2, d),
                             mgl_ordered_value(op, query, position + 2, d + 8)};
      mgl_mma(state->values[i], a, weights[0], weights[1]);
    }
  }
}

// The parts of a whole, added up in ascending order.
MGL_PLAIN_FN mgl_ordered_part mgl_ordered_merge(const float *values, const float *max,
                                                const float *sum, uint32_t count, uint32_t stride,
                                                uint32_t value_stride) {
  mgl_ordered_part whole = {0, -MGL_PLAIN_INFINITY, 0};
  for (uint32_t i = 0; i < count; i++) {
    whole.max = fmaxf(whole.max, max[i * stride]);
  }
  const float base = mgl_ordered_base(whole.max);
  for (uint32_t i = 0; i < count; i++) {
    const float factor = exp2f(max[i * stride] - base);
    whole.value += values[i * value_stride] * factor;
    whole.sum += sum[i * stride] * factor;
  }
  return whole;
}

// All warps: positions from `begin` on of a chunk that ends at `end`. The results of an element are
// its thread's.
MGL_PLAIN_FN void mgl_ordered_attend_chunk(const mgl_plain_op *op, const mgl_plain_query *query,
                                           uint32_t begin, uint32_t end, mgl_ordered_shared *s,
                                           mgl_ordered_part *out) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES, warp = threadIdx.x / MGL_PLAIN_LANES;
  const uint32_t from = query->first / MGL_ORDERED_STEP * MGL_ORDERED_STEP;  // as mgl_window_begin
  mgl_ordered_state state = {};
  state.max = -MGL_PLAIN_INFINITY;
  begin = begin < from ? from : begin;
  for (uint32_t first = begin + warp * MGL_ORDERED_TILE; first < end; first += MGL_ORDERED_STEP) {
    mgl_ordered_attend_tile(op, query, s->q, first, &state);
  }
  for (int offset = 4; offset < MGL_PLAIN_LANES; offset *= 2) {
    state.sum += __shfl_xor_sync(0xffffffffu, state.sum, offset);
  }
  if (lane % 4 == 0) {
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < MGL_ORDERED_VALUES; i++) {
      s->values[warp][i * 16 + lane / 4] = state.values[i][0];
      s->values[warp][i * 16 + 8 + lane / 4] = state.values[i][2];
    }
  }
  if (lane == 0) {
    s->max[warp] = state.max;
    s->sum[warp] = state.sum;
  }
  __syncthreads();
  if (threadIdx.x < op->in[1].last) {
    out[threadIdx.x] = mgl_ordered_merge(&s->values[0][threadIdx.x], s->max, s->sum,
                                         MGL_PLAIN_WARPS, 1, MGL_ORDERED_HEAD_DIM);
  }
  __syncthreads();  // before the next chunk's sums
}

// One query head.
MGL_PLAIN_FN void mgl_ordered_attend(const mgl_plain_op *op, const mgl_plain_query *query,
                                     uint64_t unit) {
  __shared__ mgl_ordered_shared s;
  const uint32_t head_dim = op->in[1].last, d = threadIdx.x;
  enum { PART = sizeof(mgl_ordered_part) / sizeof(float) };
  uint64_t chunk = MGL_ORDERED_CHUNK;
  while (chunk * MGL_ORDERED_CHUNKS < query->count) {
    chunk *= 2;
  }
  const uint32_t chunks = (uint32_t)((query->count + chunk - 1) / chunk);
  if (d < head_dim) {
    s.q[d] = mgl_f32_to_bf16(query->q[d]);
  }
  __syncthreads();
  for (uint32_t i = 0; i < chunks; i++) {
    const uint64_t end = (i + 1) * chunk;
    mgl_ordered_attend_chunk(op, query, (uint32_t)(i * chunk),
                             end < query->count ? (uint32_t)end : query->count, &s, s.chunks[i]);
  }
  if (d < head_dim) {  // of what this thread has left itself
    mgl_ordered_part part = s.chunks[0][d];
    if (chunks > 1) {
      const uint32_t stride = MGL_ORDERED_HEAD_DIM * PART;
      part = mgl_ordered_merge(&s.chunks[0][d].value, &s.chunks[0][d].max, &s.chunks[0][d].sum,
                               chunks, stride, stride);
    }
    if (op->input_count > 4) {  // as mgl_attend_write
      const float sink = mgl_plain_f32(&op->in[4])[unit % (op->out.width / head_dim)];
      part.sum += exp2f(sink * 1.44269504f - part.max);
    }
    mgl_plain_store(op->out.data, op->out.dtype, unit * head_dim + d, part.value / part.sum);
  }
  __syncthreads();  // before the next query
}

#else

MGL_PLAIN_FN bool mgl_plain_attends_ordered(const mgl_plain_op *op) {
  (void)op;
  return false;
}

MGL_PLAIN_FN void mgl_ordered_attend(const mgl_plain_op *op, const mgl_plain_query *query,
                                     uint64_t unit) {
  (void)op, (void)query, (void)unit;
}

#endif

#endif
