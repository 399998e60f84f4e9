// Proof that a plan's arrays agree with each other.
#include "batch/plan.h"

static mgl_status broken(mgl_error *err, const char *what, uint32_t which) {
  return mgl_error_set(err, MGL_ERR_INTERNAL, "plan: %s (%u)", what, which);
}

static const int32_t *table_of(const mgl_plan *plan, uint32_t sequence) {
  return plan->block_tables + (size_t)sequence * plan->limits.pages_per_sequence;
}

static uint32_t pages_of(const mgl_plan *plan, uint32_t sequence) {
  return plan->page_start[sequence + 1] - plan->page_start[sequence];
}

static mgl_status check_counts(const mgl_plan *plan, mgl_error *err) {
  const mgl_plan_limits *l = &plan->limits;
  if (plan->token_count > l->tokens || plan->sequence_count > l->sequences ||
      plan->sequence_count > plan->token_count || plan->logit_row_count > plan->token_count ||
      plan->attention_item_count > plan->token_count) {
    return broken(err, "counts exceed the limits", plan->token_count);
  }
  if (plan->query_start[0] != 0 || plan->kv_start[0] != 0 || plan->page_start[0] != 0 ||
      plan->query_start[plan->sequence_count] != plan->token_count) {
    return broken(err, "the rows of all sequences are not all rows", plan->token_count);
  }
  return MGL_OK;
}

static mgl_status check_pages(const mgl_plan *plan, uint32_t sequence, uint32_t page_count,
                              mgl_error *err) {
  const int32_t *table = table_of(plan, sequence);
  uint32_t pages = pages_of(plan, sequence);
  for (uint32_t i = 0; i < plan->limits.pages_per_sequence; i++) {
    if (i >= pages ? table[i] != -1
                   : table[i] < 0 || (uint32_t)table[i] >= page_count ||
                         table[i] != plan->pages[plan->page_start[sequence] + i]) {
      return broken(err, "a block table is not the sequence's pages, padded with -1", sequence);
    }
  }
  return MGL_OK;
}

static mgl_status check_sequence(const mgl_plan *plan, uint32_t sequence, mgl_error *err) {
  uint32_t page_tokens = plan->limits.page_tokens;
  uint32_t first = plan->query_start[sequence];
  uint32_t count = plan->query_start[sequence + 1] - first;
  uint32_t kv_count = plan->kv_start[sequence + 1] - plan->kv_start[sequence];
  uint32_t pages = pages_of(plan, sequence);
  if (count < 1 || count > plan->token_count || plan->new_counts[sequence] != count ||
      plan->steps[sequence] != plan->positions[first] ||
      kv_count != plan->steps[sequence] + count) {
    return broken(err, "a sequence's lengths disagree", sequence);
  }
  if (pages != (kv_count + page_tokens - 1) / page_tokens ||
      pages > plan->limits.pages_per_sequence ||
      plan->last_page_tokens[sequence] != kv_count - (pages - 1) * page_tokens) {
    return broken(err, "a sequence's pages do not hold its KV", sequence);
  }
  for (uint32_t i = 0; i < count; i++) {
    uint32_t position = plan->steps[sequence] + i;
    uint32_t page = (uint32_t)table_of(plan, sequence)[position / page_tokens];
    if (plan->positions[first + i] != position || plan->tokens[first + i] < 0 ||
        plan->slots[first + i] != page * page_tokens + position % page_tokens) {
      return broken(err, "a row's token, position or slot is wrong", first + i);
    }
    uint32_t prompt_count = plan->prompt_counts[sequence];
    if (plan->rope_lengths[first + i] != (position < prompt_count ? prompt_count : position + 1)) {
      return broken(err, "a row's length for the rope is wrong", first + i);
    }
  }
  return MGL_OK;
}

// Pages that a sequence writes are in no other one's table, and once in its own.
static mgl_status check_writes(const mgl_plan *plan, uint32_t sequence, mgl_error *err) {
  const int32_t *table = table_of(plan, sequence);
  uint32_t begin = plan->steps[sequence] / plan->limits.page_tokens;
  for (uint32_t written = begin; written < pages_of(plan, sequence); written++) {
    for (uint32_t other = 0; other < plan->sequence_count; other++) {
      for (uint32_t i = 0; i < pages_of(plan, other); i++) {
        bool itself = other == sequence && i == written;
        if (!itself && table_of(plan, other)[i] == table[written]) {
          return broken(err, "a row writes into a page that something else reads",
                        (uint32_t)table[written]);
        }
      }
    }
  }
  return MGL_OK;
}

static mgl_status check_work(const mgl_plan *plan, mgl_error *err) {
  uint32_t row = 0;
  for (uint32_t i = 0; i < plan->attention_item_count; i++) {
    const mgl_attention_item *item = &plan->attention_items[i];
    if (item->query_begin != row || item->query_count < 1 ||
        item->query_count > MGL_ATTENTION_QUERY_TILE || item->sequence >= plan->sequence_count ||
        row < plan->query_start[item->sequence] ||
        row + item->query_count > plan->query_start[item->sequence + 1]) {
      return broken(err, "the attention work list does not hold each row once", i);
    }
    row += item->query_count;
  }
  if (row != plan->token_count) {
    return broken(err, "the attention work list lacks rows", row);
  }
  for (uint32_t i = 0; i < plan->logit_row_count; i++) {
    if (plan->logit_rows[i] >= plan->token_count ||
        (i > 0 && plan->logit_rows[i] <= plan->logit_rows[i - 1])) {
      return broken(err, "rows with logits do not ascend", i);
    }
  }
  return MGL_OK;
}

mgl_status mgl_plan_check(const mgl_plan *plan, uint32_t page_count, mgl_error *err) {
  MGL_TRY(check_counts(plan, err));
  for (uint32_t i = 0; i < plan->sequence_count; i++) {
    if (plan->query_start[i] >= plan->query_start[i + 1] ||
        plan->query_start[i + 1] > plan->token_count ||
        plan->page_start[i + 1] < plan->page_start[i] ||
        pages_of(plan, i) > plan->limits.pages_per_sequence) {
      return broken(err, "cumulative counts do not ascend", i);
    }
    MGL_TRY(check_pages(plan, i, page_count, err));
    MGL_TRY(check_sequence(plan, i, err));
  }
  for (uint32_t i = 0; i < plan->sequence_count; i++) {
    MGL_TRY(check_writes(plan, i, err));
  }
  return check_work(plan, err);
}
