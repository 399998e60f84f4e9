#include "device/cuda/cuda_plan.h"

#include <assert.h>
#include <string.h>

_Static_assert((int)MGL_CUDA_MAX_TOKENS <= (int)MGL_MAX_ITERATION_TOKENS, "plans hold them");

uint32_t mgl_cuda_graph_for(uint32_t tokens) {
  uint32_t graph = 0;
  while ((1u << graph) < tokens) {
    graph++;
  }
  return graph;
}

void mgl_cuda_plan_clear(mgl_cuda_plan *plan) {
  memset(plan, 0, offsetof(mgl_cuda_plan, items));
  memset(plan->logit_slots, 0xff, sizeof plan->logit_slots);
  plan->graph = UINT32_MAX;
}

void mgl_cuda_plan_add(mgl_cuda_plan *plan, const mgl_cuda_plan_rows *rows) {
  assert(rows->count >= 1 && rows->count <= MGL_CUDA_MAX_TOKENS - plan->token_count);
  assert(rows->slot < MGL_MAX_SEQUENCES);
  uint32_t first = plan->token_count;
  for (uint32_t i = 0; i < rows->count; i++) {
    plan->tokens[first + i] = rows->tokens[i];
    plan->positions[first + i] = rows->position + i;
    plan->slots[first + i] = rows->slot;
  }
  plan->token_count += rows->count;
  plan->sequence_count++;
  if (rows->samples) {
    plan->logit_rows[plan->logit_row_count] = plan->token_count - 1;
    plan->logit_slots[plan->logit_row_count++] = rows->slot;
  }
}

// Positions of a chunk, for a query at `position`.
static uint32_t chunk_of(uint32_t position) {
  uint64_t chunk = MGL_CUDA_MIN_CHUNK;
  while (chunk * MGL_CUDA_MAX_CHUNKS < (uint64_t)position + 1) {
    chunk *= 2;
  }
  return (uint32_t)chunk;
}

// All chunks of a tile of query tokens.
static void add_items(mgl_cuda_plan *plan, mgl_cuda_item item) {
  uint32_t seen = item.position + item.count;  // positions that the last token sees
  uint32_t chunk = chunk_of(seen - 1);
  item.chunks = (seen + chunk - 1) / chunk;
  item.partial = plan->item_count;
  for (item.chunk = 0; item.chunk < item.chunks; item.chunk++) {
    item.kv_begin = item.chunk * chunk;
    item.kv_end = seen - item.kv_begin < chunk ? seen : item.kv_begin + chunk;
    assert(plan->item_count < MGL_CUDA_MAX_ITEMS);
    plan->items[plan->item_count++] = item;
  }
}

static mgl_plan_kind kind_of(const mgl_cuda_plan *plan) {
  mgl_plan_kind kind = MGL_PLAN_SHORT;
  for (uint32_t i = 0; i < plan->item_count; i++) {
    const mgl_cuda_item *item = &plan->items[i];
    if (item->count != 1 || item->fresh != item->position) {
      return MGL_PLAN_ANY;
    }
    bool is_short = item->kv_end - item->kv_begin <= MGL_CUDA_MIN_CHUNK;
    kind = is_short ? kind : MGL_PLAN_DECODES;
  }
  return kind;
}

void mgl_cuda_plan_finish(mgl_cuda_plan *plan, uint32_t group) {
  const uint32_t border =
      MGL_CUDA_MIN_CHUNK * MGL_CUDA_MAX_CHUNKS;  // chunks grow at multiples only
  uint32_t most = MGL_CUDA_QUERY_COLUMNS / group;
  uint32_t fresh_row = 0;
  plan->item_count = 0;
  for (uint32_t row = 0; row < plan->token_count;) {
    uint32_t slot = plan->slots[row];
    uint32_t position = plan->positions[row];
    fresh_row = row == 0 || plan->slots[row - 1] != slot ? row : fresh_row;
    uint32_t count = 1;
    while (count < most && row + count < plan->token_count && plan->slots[row + count] == slot &&
           (position + count) % border != 0) {
      count++;
    }
    mgl_cuda_item item = {.slot = slot,
                          .row = row,
                          .count = count,
                          .position = position,
                          .fresh_row = fresh_row,
                          .fresh = plan->positions[fresh_row],
                          .heads = group};
    add_items(plan, item);
    row += count;
  }
  plan->kind = (uint32_t)kind_of(plan);
  plan->graph = plan->token_count == 0 ? UINT32_MAX : mgl_cuda_graph_for(plan->token_count);
}

// --- of the engine -------------------------------------------------------------------------------

mgl_status mgl_cuda_plan_check(const mgl_plan *from, const mgl_cuda_plan_limits *limits,
                               mgl_error *err) {
  if (from->limits.page_tokens != MGL_CUDA_KV_PAGE_TOKENS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "KV pages of %u tokens: on the GPU they have %d",
                         from->limits.page_tokens, MGL_CUDA_KV_PAGE_TOKENS);
  }
  if (from->token_count < 1 || from->token_count > limits->iteration_tokens ||
      from->sequence_count > limits->slots || from->logit_row_count > limits->logit_rows) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a plan of %u tokens, %u sequences and %u rows of logits: the GPU program "
                         "is for up to %u, %u and %u",
                         from->token_count, from->sequence_count, from->logit_row_count,
                         limits->iteration_tokens, limits->slots, limits->logit_rows);
  }
  for (uint32_t i = 0; i < from->token_count; i++) {
    if (from->tokens[i] < 0 || (uint32_t)from->tokens[i] >= limits->vocab) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "token %u: expected an id of 0 to %u, found %d",
                           i, limits->vocab - 1, from->tokens[i]);
    }
  }
  return MGL_OK;
}

mgl_status mgl_cuda_plan_pages(const mgl_plan *from, const mgl_cuda_plan_limits *limits,
                               uint32_t sequence, int32_t *table, mgl_error *err) {
  uint32_t last = from->positions[from->query_start[sequence + 1] - 1];
  uint32_t pages = last / MGL_CUDA_KV_PAGE_TOKENS + 1;
  const int32_t *pages_from =
      from->block_tables + (size_t)sequence * from->limits.pages_per_sequence;
  if (pages > limits->stride) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "sequence %u has a token at position %u: the GPU program is for up to %u "
                         "tokens",
                         sequence, last, limits->stride * MGL_CUDA_KV_PAGE_TOKENS);
  }
  for (uint32_t i = 0; i < limits->stride; i++) {
    table[i] = i < pages ? pages_from[i] : (int32_t)limits->page_count;
    if (i < pages && (pages_from[i] < 0 || (uint32_t)pages_from[i] >= limits->page_count)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "sequence %u: expected KV pages of 0 to %u, found %d", sequence,
                           limits->page_count - 1, pages_from[i]);
    }
  }
  return MGL_OK;
}

mgl_status mgl_cuda_plan_from(const mgl_plan *from, const mgl_cuda_plan_limits *limits,
                              mgl_cuda_plan *plan, int32_t *block_tables, mgl_error *err) {
  MGL_TRY(mgl_cuda_plan_check(from, limits, err));
  mgl_cuda_plan_clear(plan);
  for (size_t i = (size_t)from->sequence_count * limits->stride;
       i < (size_t)limits->slots * limits->stride; i++) {
    block_tables[i] = (int32_t)limits->page_count;  // the spare one
  }
  for (uint32_t i = 0; i < from->sequence_count; i++) {
    uint32_t first = from->query_start[i];
    MGL_TRY(mgl_cuda_plan_pages(from, limits, i, block_tables + (size_t)i * limits->stride, err));
    mgl_cuda_plan_add(plan, &(mgl_cuda_plan_rows){.tokens = from->tokens + first,
                                                  .count = from->query_start[i + 1] - first,
                                                  .slot = i,
                                                  .position = from->positions[first]});
  }
  plan->logit_row_count = from->logit_row_count;
  memcpy(plan->logit_rows, from->logit_rows, from->logit_row_count * sizeof *plan->logit_rows);
  mgl_cuda_plan_finish(plan, limits->group);
  return MGL_OK;
}
