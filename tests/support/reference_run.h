// A model of the oracle (reference_model.h) run by a runner of any device, and held against what
// transformers answered.
//
// The bar: over the stored positions the mean KL divergence from transformers in fp32 is no larger
// than that of transformers in bf16; and, fed the reference's own tokens, the engine chooses the
// next one of the greedy continuation wherever the reference's top two logits differ by more than
// the bf16 error. (The largest KL of one position is reported, not judged: it is the maximum of few
// values and passes the bar by chance.)
#ifndef MGL_TESTS_SUPPORT_REFERENCE_RUN_H
#define MGL_TESTS_SUPPORT_REFERENCE_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "batch/plan.h"
#include "engine/runner.h"
#include "support/reference_model.h"

enum { MGL_REFERENCE_MAX_MODES = 2 };

typedef struct mgl_reference_run {
  const mgl_reference *reference;
  mgl_runner *runner;
  mgl_mode modes[MGL_REFERENCE_MAX_MODES];  // [mode_count] which must give the same bits
  uint32_t mode_count;
  mgl_plan *plan;
  int32_t *pages;  // [page_count] of the sequence
  uint32_t page_count;
  uint32_t prompt_count;  // tokens that count as the prompt's (graph/rope.h)
} mgl_reference_run;

typedef struct mgl_reference_verdict {
  mgl_divergence found;
  size_t wrong, decided;  // steps where the margin demands a token; and another was chosen
  bool fine;
} mgl_reference_verdict;

// The build of a runner for that.
mgl_build mgl_reference_build(const mgl_reference *reference);

// All pointers are borrowed. The sequence's KV pages lie in descending order, every second one of
// the pool. Whatever fails ends the test.
void mgl_reference_run_open(mgl_reference_run *out, const mgl_reference_model *model,
                            mgl_runner *runner, const mgl_mode *modes, uint32_t mode_count);
// The prompt in chunks of so many tokens, then the continuation.
mgl_reference_verdict mgl_reference_run_judge(mgl_reference_run *run, uint32_t chunk_tokens);
// "mean KL 1.2e-05 (0.40 of bf16's), ...".
void mgl_reference_verdict_print(const mgl_reference_verdict *verdict,
                                 const mgl_reference *reference, char *out, size_t bytes);
void mgl_reference_run_close(mgl_reference_run *run);

#endif
