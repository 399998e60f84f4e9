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
  size_t tokens = limits->tokens, sequences = limits->sequences;
  size_t pages = sequences * limits->pages_per_sequence;
  const struct {
    void *place;  // of the pointer
    size_t count, bytes_each;
  } arrays[] = {
      {&plan->tokens, tokens, sizeof *plan->tokens},
      {&plan->positions, tokens, sizeof *plan->positions},
      {&plan->slots, tokens, sizeof *plan->slots},
      {&plan->rope_lengths, tokens, sizeof *plan->rope_lengths},
      {&plan->query_start, sequences + 1, sizeof *plan->query_start},
      {&plan->kv_start, sequences + 1, sizeof *plan->kv_start},
      {&plan->page_start, sequences + 1, sizeof *plan->page_start},
      {&plan->pages, pages, sizeof *plan->pages},
      {&plan->block_tables, pages, sizeof *plan->block_tables},
      {&plan->last_page_tokens, sequences, sizeof *plan->last_page_tokens},
      {&plan->new_counts, sequences, sizeof *plan->new_counts},
      {&plan->prompt_counts, sequences, sizeof *plan->prompt_counts},
      {&plan->steps, sequences, sizeof *plan->steps},
      {&plan->logit_rows, tokens, sizeof *plan->logit_rows},
      {&plan->output_tokens, tokens, sizeof *plan->output_tokens},
      {&plan->attention_items, tokens, sizeof *plan->attention_items},
      {&plan->table_used, sequences, sizeof *plan->table_used},
  };
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
    void *memory = mgl_alloc_zeroed(arrays[i].count, arrays[i].bytes_each);
    memcpy(arrays[i].place, &memory, sizeof memory);
    if (memory == NULL) {
      goto fail;
    }
  }
  for (size_t i = 0; i < sequences; i++) {
    plan->table_used[i] = limits->pages_per_sequence;  // padded when the row is first used
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
  mgl_free(plan->rope_lengths);
  mgl_free(plan->query_start);
  mgl_free(plan->kv_start);
  mgl_free(plan->page_start);
  mgl_free(plan->pages);
  mgl_free(plan->block_tables);
  mgl_free(plan->last_page_tokens);
  mgl_free(plan->new_counts);
  mgl_free(plan->prompt_counts);
  mgl_free(plan->steps);
  mgl_free(plan->logit_rows);
  mgl_free(plan->output_tokens);
  mgl_free(plan->attention_items);
  mgl_free(plan->table_used);
  mgl_free(plan);
}

void mgl_plan_clear(mgl_plan *plan) {
  plan->token_count = 0;
  plan->sequence_count = 0;
  plan->logit_row_count = 0;
  plan->attention_item_count = 0;
  plan->query_start[0] = 0;
  plan->kv_start[0] = 0;
  plan->page_start[0] = 0;
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

// Adds what the plan says of the sequence as a whole; returns its block table.
static const int32_t *add_sequence(mgl_plan *plan, uint32_t sequence, const mgl_plan_chunk *chunk) {
  uint32_t page_tokens = plan->limits.page_tokens;
  uint32_t kv_count = chunk->position + chunk->token_count;
  uint32_t pages = (kv_count + page_tokens - 1) / page_tokens;
  int32_t *table = plan->block_tables + (size_t)sequence * plan->limits.pages_per_sequence;
  memcpy(table, chunk->pages, pages * sizeof *table);
  memcpy(plan->pages + plan->page_start[sequence], chunk->pages, pages * sizeof *table);
  // The entries behind the pages of whoever had this row before are -1 already.
  for (uint32_t i = pages; i < plan->table_used[sequence]; i++) {
    table[i] = -1;
  }
  plan->table_used[sequence] = pages;
  plan->kv_start[sequence + 1] = plan->kv_start[sequence] + kv_count;
  plan->page_start[sequence + 1] = plan->page_start[sequence] + pages;
  plan->last_page_tokens[sequence] = kv_count - (pages - 1) * page_tokens;
  plan->new_counts[sequence] = chunk->token_count;
  plan->prompt_counts[sequence] = chunk->prompt_count;
  plan->steps[sequence] = chunk->position;
  return table;
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
  const int32_t *table = add_sequence(plan, sequence, chunk);
  for (uint32_t i = 0; i < chunk->token_count; i++) {
    uint32_t row = first + i;
    uint32_t position = chunk->position + i;
    plan->tokens[row] = chunk->tokens[i];
    plan->positions[row] = position;
    plan->slots[row] = (uint32_t)table[position / limits->page_tokens] * limits->page_tokens +
                       position % limits->page_tokens;
    plan->rope_lengths[row] = position < chunk->prompt_count ? chunk->prompt_count : position + 1;
    bool last = i + 1 == chunk->token_count;
    if (chunk->logits == MGL_LOGITS_ALL || (chunk->logits == MGL_LOGITS_LAST && last)) {
      plan->output_tokens[plan->logit_row_count] = -1;
      plan->logit_rows[plan->logit_row_count++] = row;
    }
  }
  add_attention_items(plan, sequence, first, chunk->token_count);
  plan->token_count += chunk->token_count;
  plan->query_start[plan->sequence_count] = plan->token_count;
}
