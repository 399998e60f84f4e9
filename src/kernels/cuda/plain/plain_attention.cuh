// Plain attention over paged KV of any head dim, group and window: a block computes a query head of
// a token, split by split of 256 absolute positions, as the CPU's scalar kernel does. The cache has
// the CPU's layout: K [pages, HKV, HD, P], V [pages, HKV, P, HD].
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_ATTENTION_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_ATTENTION_CUH

#include "kernels/cuda/plain/plain_block.cuh"
#include "kernels/cuda/plain/plain_ordered_attention.cuh"

enum {
  MGL_PLAIN_SPLIT = 256,         // as MGL_ATTENTION_SPLIT
  MGL_PLAIN_MAX_HEAD_DIM = 512,  // as MGL_MAX_HEAD_DIM
};

MGL_PLAIN_FN void mgl_plain_kv_write(const mgl_plain_op *op, mgl_plain_place at) {
  const mgl_plain_tensor *kv = &op->out;
  uint32_t head_dim = kv->last, width = kv->rows * head_dim, page_tokens = op->page_tokens;
  for (uint64_t t = at.block; t < op->units; t += at.blocks) {
    uint32_t slot = mgl_plain_u32(&op->in[2])[t];
    uint64_t page = slot / page_tokens;
    uint32_t offset = slot % page_tokens;
    const float *k = mgl_plain_f32(&op->in[0]) + t * width;
    const float *v = mgl_plain_f32(&op->in[1]) + t * width;
    for (uint32_t i = at.thread; i < width; i += at.threads) {
      uint64_t head = page * kv->rows + i / head_dim;
      uint32_t dim = i % head_dim;
      mgl_plain_store(kv->data, kv->dtype, (head * head_dim + dim) * page_tokens + offset, k[i]);
      mgl_plain_store(kv->v, kv->dtype, (head * page_tokens + offset) * head_dim + dim, v[i]);
    }
  }
}

MGL_PLAIN_FN float mgl_plain_score(const mgl_plain_op *op, const mgl_plain_query *query,
                                   uint32_t position) {
  const mgl_plain_tensor *kv = &op->in[1];
  uint64_t head;
  uint32_t offset = mgl_plain_find_position(op, query, position, &head);
  float score = 0;
  for (uint32_t i = 0; i < kv->last; i++) {
    score += query->q[i] *
             mgl_plain_load(kv->data, kv->dtype, (head * kv->last + i) * op->page_tokens + offset);
  }
  return score * (float)op->attrs[MGL_ATTR_SCALE];
}

// The weighed sum of element `dim` of the values of positions [from, to); weights[0] is from's.
MGL_PLAIN_FN float mgl_plain_weigh(const mgl_plain_op *op, const mgl_plain_query *query,
                                   uint32_t from, uint32_t to, const float *weights, uint32_t dim) {
  const mgl_plain_tensor *kv = &op->in[1];
  float sum = 0;
  for (uint32_t p = from; p < to; p++) {
    uint64_t head;
    uint32_t offset = mgl_plain_find_position(op, query, p, &head);
    sum += weights[p - from] *
           mgl_plain_load(kv->v, kv->dtype, (head * op->page_tokens + offset) * kv->last + dim);
  }
  return sum;
}

// One query head; `merged` keeps what the splits so far come to.
MGL_PLAIN_FN void mgl_plain_attend(const mgl_plain_op *op, mgl_plain_place at,
                                   const mgl_plain_query *query, uint64_t unit) {
  MGL_PLAIN_SHARED float weights[MGL_PLAIN_SPLIT];
  MGL_PLAIN_SHARED float merged[MGL_PLAIN_MAX_HEAD_DIM];  // each element is one thread's
  uint32_t head_dim = op->out.last;
  float merged_max = -MGL_PLAIN_INFINITY, merged_sum = 0;
  for (uint32_t from = query->first, to; from < query->count; from = to) {
    bool is_first = from == query->first;
    to = (from / MGL_PLAIN_SPLIT + 1) * MGL_PLAIN_SPLIT;
    to = to < query->count ? to : query->count;
    float max = -MGL_PLAIN_INFINITY, sum = 0;
    for (uint32_t p = from + at.thread; p < to; p += at.threads) {
      weights[p - from] = mgl_plain_score(op, query, p);
      max = fmaxf(max, weights[p - from]);
    }
    max = mgl_plain_max(at, max);
    for (uint32_t p = from + at.thread; p < to; p += at.threads) {
      weights[p - from] = expf(weights[p - from] - max);
      sum += weights[p - from];
    }
    sum = mgl_plain_sum(at, sum);  // all weights are there behind it
    float max_of_both = fmaxf(merged_max, max);
    float old_scale = is_first ? 0.0f : expf(merged_max - max_of_both);
    float new_scale = expf(max - max_of_both);
    for (uint32_t i = at.thread; i < head_dim; i += at.threads) {
      float old = is_first ? 0.0f : merged[i] * old_scale;
      merged[i] = old + mgl_plain_weigh(op, query, from, to, weights, i) * new_scale;
    }
    merged_sum = merged_sum * old_scale + sum * new_scale;
    merged_max = max_of_both;
    if (to == query->count && op->input_count > 4) {  // a sink far above: infinite, the result 0
      uint32_t heads = op->out.width / head_dim;
      merged_sum += expf(mgl_plain_f32(&op->in[4])[unit % heads] - merged_max);
    }
    mgl_plain_sync();  // before the next split's weights
  }
  for (uint32_t i = at.thread; i < head_dim; i += at.threads) {
    mgl_plain_store(op->out.data, op->out.dtype, unit * head_dim + i, merged[i] / merged_sum);
  }
}

MGL_PLAIN_FN void mgl_plain_attention(const mgl_plain_op *op, mgl_plain_place at) {
  uint32_t head_dim = op->out.last, heads = op->out.width / head_dim;
  uint32_t window = (uint32_t)op->attrs[MGL_ATTR_WINDOW];
  for (uint64_t unit = at.block; unit < op->units; unit += at.blocks) {
    uint64_t t = unit / heads;
    uint32_t position = mgl_plain_u32(&op->in[2])[t];
    mgl_plain_query query;
    query.q = mgl_plain_f32(&op->in[0]) + unit * head_dim;
    query.table = (const int32_t *)op->in[3].data + (uint64_t)op->sequences[t] * op->table_stride;
    query.kv_head = (uint32_t)(unit % heads) / (heads / op->in[1].rows);
    query.first = window != 0 && position >= window ? position + 1 - window : 0;
    query.count = position + 1;
    if (mgl_plain_attends_ordered(op)) {
      mgl_ordered_attend(op, &query, unit);
    } else {
      mgl_plain_attend(op, at, &query, unit);
    }
  }
}

#endif
