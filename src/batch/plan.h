// The plan: what one iteration computes, as a struct of arrays. The engine fills it, kernels read
// it.
//
// All arrays are allocated once, for the limits, and reused; the counts say how much of each is
// valid. Rows of tokens of one sequence are consecutive and in ascending position. Dimension
// letters: T tokens, R sequences, L rows that need logits, P tokens of a KV page.
#ifndef MGL_BATCH_PLAN_H
#define MGL_BATCH_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/cpu/cpu_kernels.h"

// Up to this many tokens an iteration, the bits of a result do not depend on what shares the
// iteration.
enum { MGL_MAX_ITERATION_TOKENS = 64 };

typedef struct mgl_plan_limits {
  uint32_t tokens;              // 1 to MGL_MAX_ITERATION_TOKENS
  uint32_t sequences;           // 1 to tokens
  uint32_t pages_per_sequence;  // at least 1
  uint32_t page_tokens;         // P
} mgl_plan_limits;

typedef struct mgl_plan {
  mgl_plan_limits limits;
  uint32_t token_count;      // T
  uint32_t sequence_count;   // R
  uint32_t logit_row_count;  // L
  uint32_t attention_item_count;
  int32_t *tokens;                      // [T] token ids
  uint32_t *positions;                  // [T] absolute position in the sequence
  uint32_t *slots;                      // [T] KV slot = page * P + position % P
  uint32_t *query_start;                // [R + 1] first row of each sequence, cumulative
  int32_t *block_tables;                // [R, pages_per_sequence] page numbers, padded with -1
  uint32_t *logit_rows;                 // [L] rows whose logits are wanted, ascending
  mgl_attention_item *attention_items;  // work list, at most one item a token
} mgl_plan;

mgl_status mgl_plan_create(const mgl_plan_limits *limits, mgl_plan **out, mgl_error *err);
void mgl_plan_destroy(mgl_plan *plan);  // NULL is fine
void mgl_plan_clear(mgl_plan *plan);

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
  const int32_t *pages;   // the sequence's block table; it covers position + token_count tokens
  uint32_t page_count;    // at most limits.pages_per_sequence
  mgl_plan_logits logits;
} mgl_plan_chunk;

// Adds a chunk of a sequence that is not in the plan yet. The caller keeps within the limits
// (asserted).
void mgl_plan_add(mgl_plan *plan, const mgl_plan_chunk *chunk);

#endif
