#include "batch/plan.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

mgl_status mgl_plan_create(const mgl_plan_limits *limits, mgl_plan **out, mgl_error *err) {
  assert(limits->tokens >= 1 && limits->tokens <= MGL_MAX_ITERATION_TOKENS);
  assert(limits->sequences >= 1 && limits->sequences <= limits->tokens);
  *out = NULL;
  mgl_plan *plan = mgl_alloc_zeroed(1, sizeof *plan);
  if (plan == NULL) {
    goto fail;
  }
  plan->limits = *limits;
  plan->tokens = mgl_alloc_zeroed(limits->tokens, sizeof *plan->tokens);
  plan->positions = mgl_alloc_zeroed(limits->tokens, sizeof *plan->positions);
  plan->slots = mgl_alloc_zeroed(limits->tokens, sizeof *plan->slots);
  plan->query_start = mgl_alloc_zeroed(limits->sequences + 1, sizeof *plan->query_start);
  plan->block_tables = mgl_alloc_zeroed((size_t)limits->sequences * limits->pages_per_sequence,
                                        sizeof *plan->block_tables);
  plan->logit_rows = mgl_alloc_zeroed(limits->tokens, sizeof *plan->logit_rows);
  plan->attention_items = mgl_alloc_zeroed(limits->tokens, sizeof *plan->attention_items);
  if (plan->tokens == NULL || plan->positions == NULL || plan->slots == NULL ||
      plan->query_start == NULL || plan->block_tables == NULL || plan->logit_rows == NULL ||
      plan->attention_items == NULL) {
    goto fail;
  }
  *out = plan;
  return MGL_OK;
fail:
  mgl_plan_destroy(plan);
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a plan of %u tokens, %u sequences",
                       limits->tokens, limits->sequences);
}

void mgl_plan_destroy(mgl_plan *plan) {
  if (plan == NULL) {
    return;
  }
  mgl_free(plan->tokens);
  mgl_free(plan->positions);
  mgl_free(plan->slots);
  mgl_free(plan->query_start);
  mgl_free(plan->block_tables);
  mgl_free(plan->logit_rows);
  mgl_free(plan->attention_items);
  mgl_free(plan);
}

void mgl_plan_clear(mgl_plan *plan) {
  plan->token_count = 0;
  plan->sequence_count = 0;
  plan->logit_row_count = 0;
  plan->attention_item_count = 0;
  plan->query_start[0] = 0;
}

// Cuts the rows [first, first + count) of a sequence into items of at most
// MGL_ATTENTION_QUERY_TILE.
static void add_attention_items(mgl_plan *plan, uint32_t sequence, uint32_t first, uint32_t count) {
  for (uint32_t done = 0; done < count; done += MGL_ATTENTION_QUERY_TILE) {
    uint32_t left = count - done;
    plan->attention_items[plan->attention_item_count++] = (mgl_attention_item){
        .sequence = sequence,
        .query_begin = first + done,
        .query_count = left < MGL_ATTENTION_QUERY_TILE ? left : MGL_ATTENTION_QUERY_TILE,
    };
  }
}

void mgl_plan_add(mgl_plan *plan, const mgl_plan_chunk *chunk) {
  const mgl_plan_limits *limits = &plan->limits;
  assert(chunk->token_count >= 1 && chunk->token_count <= limits->tokens - plan->token_count);
  assert(plan->sequence_count < limits->sequences);
  assert(chunk->page_count <= limits->pages_per_sequence);
  assert((uint64_t)chunk->page_count * limits->page_tokens >=
         (uint64_t)chunk->position + chunk->token_count);
  uint32_t sequence = plan->sequence_count++;
  uint32_t first = plan->token_count;
  int32_t *table = plan->block_tables + (size_t)sequence * limits->pages_per_sequence;
  memcpy(table, chunk->pages, chunk->page_count * sizeof *table);
  for (uint32_t i = chunk->page_count; i < limits->pages_per_sequence; i++) {
    table[i] = -1;
  }
  for (uint32_t i = 0; i < chunk->token_count; i++) {
    uint32_t row = first + i;
    uint32_t position = chunk->position + i;
    plan->tokens[row] = chunk->tokens[i];
    plan->positions[row] = position;
    plan->slots[row] = (uint32_t)table[position / limits->page_tokens] * limits->page_tokens +
                       position % limits->page_tokens;
    bool last = i + 1 == chunk->token_count;
    if (chunk->logits == MGL_LOGITS_ALL || (chunk->logits == MGL_LOGITS_LAST && last)) {
      plan->logit_rows[plan->logit_row_count++] = row;
    }
  }
  add_attention_items(plan, sequence, first, chunk->token_count);
  plan->token_count += chunk->token_count;
  plan->query_start[plan->sequence_count] = plan->token_count;
}
