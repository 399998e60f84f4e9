// Plans of iterations as the megakernel reads them, made on the host: of launches for one
// iteration. Pure. All other plans the device makes itself (twin/plan_turn.h).
#ifndef MGL_DEVICE_CUDA_CUDA_PLAN_H
#define MGL_DEVICE_CUDA_CUDA_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "batch/plan.h"
#include "twin/device_run.h"

// The least 1 << graph that holds so many tokens.
uint32_t mgl_cuda_graph_for(uint32_t tokens);

// An empty plan: no rows; logit_slots: none.
void mgl_cuda_plan_clear(mgl_cuda_plan *plan);

// Adds `count` consecutive tokens of the sequence in `slot`, which has none yet.
typedef struct mgl_cuda_plan_rows {
  const int32_t *tokens;  // [count]
  uint32_t count;         // at most what is left of MGL_CUDA_MAX_TOKENS (asserted)
  uint32_t slot;
  uint32_t position;  // of the first
  bool samples;       // the logits of the last one are wanted, and a token is drawn from them
} mgl_cuda_plan_rows;

void mgl_cuda_plan_add(mgl_cuda_plan *plan, const mgl_cuda_plan_rows *rows);

// Makes the attention work list and chooses the graph, once all rows are there. group: query heads
// of a KV head.
void mgl_cuda_plan_finish(mgl_cuda_plan *plan, uint32_t group);

// A plan of the engine: sequence i of it gets slot i, and nothing is sampled. block_tables: [slots,
// stride] page numbers, filled in; entries that the plan does not use get `spare`. Errors: more
// than slots, stride, pages or vocabulary allow.
typedef struct mgl_cuda_plan_limits {
  uint32_t iteration_tokens, logit_rows, slots, stride, page_count, vocab, group;
} mgl_cuda_plan_limits;

// Whether a plan is within them, but for its pages; and a row [stride] of the block tables: pages
// up to the sequence's last position, then the spare one.
mgl_status mgl_cuda_plan_check(const mgl_plan *from, const mgl_cuda_plan_limits *limits,
                               mgl_error *err);
mgl_status mgl_cuda_plan_pages(const mgl_plan *from, const mgl_cuda_plan_limits *limits,
                               uint32_t sequence, int32_t *table, mgl_error *err);

mgl_status mgl_cuda_plan_from(const mgl_plan *from, const mgl_cuda_plan_limits *limits,
                              mgl_cuda_plan *plan, int32_t *block_tables, mgl_error *err);

#endif
