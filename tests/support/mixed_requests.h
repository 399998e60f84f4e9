// Requests that an engine serves in iterations of prompts, of sequences that decode and of both,
// greedy and sampled, and what they got: for tests that compare ways of running a model.
#ifndef MGL_TEST_SUPPORT_MIXED_REQUESTS_H
#define MGL_TEST_SUPPORT_MIXED_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

enum { MIXED_MOST_REQUESTS = 500, MIXED_MOST_NEW = 24 };

typedef struct mixed_answers {
  int32_t tokens[MIXED_MOST_REQUESTS][MIXED_MOST_NEW];
  double logprobs[MIXED_MOST_REQUESTS][MIXED_MOST_NEW];
  uint32_t counts[MIXED_MOST_REQUESTS];
} mixed_answers;

// All zero before.
typedef struct mixed_served {
  mixed_answers answers;
  uint32_t prompts, decodes, both;  // iterations of that kind
  bool failed;                      // a token too many, or a log probability that is none
} mixed_served;

// Submits the first `count` requests, always the same ones, with tokens below `vocab`, and runs the
// engine until all have their answers.
mgl_status mixed_requests_run(mgl_engine *engine, uint32_t count, uint32_t vocab, mixed_served *out,
                              mgl_error *err);

#endif
