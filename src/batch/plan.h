// The plan: what one iteration computes, as a struct of arrays. The engine fills it from what the
// planner decided (twin/planner.h), kernels read it.
//
// Tokens are packed: rows of one sequence are consecutive and in ascending position, one sequence
// follows the other, and cumulative counts say where each begins. A sequence that decodes has one
// row, a chunk of a prompt has many; kernels do not tell them apart. All arrays are allocated once,
// for the limits, and reused; the counts say how much of each is valid. Dimension letters: T
// tokens, R sequences, L rows that need logits, P tokens of a KV page.
//
// Other engines call these arrays: input_ids (tokens), slot_mapping (slots), cu_seqlens_q or
// qo_indptr (query_start), cu_seqlens_k (kv_start), paged_kv_indptr (page_start), paged_kv_indices
// (pages), paged_kv_last_page_len (last_page_tokens), num_new_tokens (new_counts), prompt_lengths
// (prompt_counts), step (steps).
#ifndef MGL_BATCH_PLAN_H
#define MGL_BATCH_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "kernels/cpu/cpu_kernels.h"

enum {
  // The contract: up to this many tokens an iteration, the bits of a result do not depend on what
  // shares the iteration, on any device.
  MGL_INVARIANT_TOKENS = 64,
};

typedef struct mgl_plan_limits {
  uint32_t tokens;              // 1 to MGL_MAX_ITERATION_TOKENS
  uint32_t sequences;           // of one iteration: 1 to tokens
  uint32_t pages_per_sequence;  // at least 1
  uint32_t page_tokens;         // P
} mgl_plan_limits;

typedef struct mgl_plan {
  mgl_plan_limits limits;
  uint32_t token_count;      // T
  uint32_t sequence_count;   // R
  uint32_t logit_row_count;  // L
  uint32_t attention_item_count;

  // These arrays have a place for each row, in order.
  int32_t *tokens;         // [T] token ids
  uint32_t *positions;     // [T] absolute position in the sequence
  uint32_t *slots;         // [T] KV slot that the row writes = page * P + position % P
  uint32_t *rope_lengths;  // [T] length of graph/rope.h: the prompt's, in the answer position + 1

  // These arrays have a place for each sequence.
  uint32_t *query_start;       // [R + 1] first row of each, cumulative
  uint32_t *kv_start;          // [R + 1] cumulative lengths of KV, this iteration's included
  uint32_t *page_start;        // [R + 1] first entry of each in `pages`, cumulative
  int32_t *pages;              // [page_start[R]] pages that hold the KV, packed
  int32_t *block_tables;       // [R, pages_per_sequence] the same pages, padded with -1
  uint32_t *last_page_tokens;  // [R] tokens in the last of these pages, 1 to P
  uint32_t *new_counts;        // [R] rows = query_start[i + 1] - query_start[i]
  uint32_t *prompt_counts;     // [R] tokens of the prompt; 0 where it is not known
  uint32_t *steps;  // [R] tokens computed before this iteration = position of the first row

  // These arrays have a place for each row whose logits are wanted.
  uint32_t *logit_rows;    // [L] ascending
  int32_t *output_tokens;  // [L] what was sampled from them; -1 before

  mgl_attention_item *attention_items;  // work list, at most one item a token

  uint32_t *table_used;  // [sequences] entries of each row of block_tables that are not -1
} mgl_plan;

mgl_status mgl_plan_create(const mgl_plan_limits *limits, mgl_plan **out, mgl_error *err);
void mgl_plan_destroy(mgl_plan *plan);  // NULL is fine
void mgl_plan_clear(mgl_plan *plan);

// Proves that all arrays say the same, that pages are below page_count, and that no row writes into
// a page that another sequence reads. MGL_ERR_INTERNAL names the first contradiction. For tests and
// debugging: quadratic in rows.
mgl_status mgl_plan_check(const mgl_plan *plan, uint32_t page_count, mgl_error *err);

typedef enum mgl_plan_logits {
  MGL_LOGITS_NONE,  // a chunk in the middle of a prompt
  MGL_LOGITS_LAST,  // of the last token
  MGL_LOGITS_ALL,   // of every token (scoring)
} mgl_plan_logits;

// A run of consecutive tokens of one sequence.
typedef struct mgl_plan_chunk {
  const int32_t *tokens;  // [token_count]
  uint32_t token_count;   // at least 1, and no more than what is left of limits.tokens
  uint32_t position;      // of the first token
  uint32_t prompt_count;  // tokens of the sequence's prompt, 0: not known
  const int32_t *pages;   // the sequence's block table; it covers position + token_count tokens
  uint32_t page_count;    // at most limits.pages_per_sequence
  mgl_plan_logits logits;
} mgl_plan_chunk;

// Adds a chunk of a sequence that is not in the plan yet. The caller keeps within the limits
// (asserted).
void mgl_plan_add(mgl_plan *plan, const mgl_plan_chunk *chunk);

#endif
