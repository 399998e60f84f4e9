// Plans of iterations for tests that run a model without an engine: so many sequences with so many
// tokens each, behind what they have; the tokens follow from sequence and position, and KV pages
// stand in scattered order.
#ifndef MGL_TESTS_SUPPORT_PLAN_FEED_H
#define MGL_TESTS_SUPPORT_PLAN_FEED_H

#include <stdint.h>

#include "batch/plan.h"
#include "device/build.h"
#include "model/config.h"

enum { PLAN_FEED_SEQUENCES = 40, PLAN_FEED_CONTEXT = 128 };  // at most

typedef struct plan_step {
  uint32_t sequences, tokens;
  uint32_t more;  // tokens that the first has besides
  mgl_plan_logits logits;
} plan_step;

typedef struct plan_feed {
  mgl_plan *plan;  // owned
  uint32_t vocab, context, sequences;
  uint32_t position[PLAN_FEED_SEQUENCES];
  int32_t tokens[PLAN_FEED_SEQUENCES][PLAN_FEED_CONTEXT];
  int32_t pages[PLAN_FEED_SEQUENCES][PLAN_FEED_CONTEXT / MGL_PAGE_TOKENS];
} plan_feed;

// Of so many sequences of at most `context` tokens. Ends the test if it fails.
plan_feed *plan_feed_create(const mgl_plan_limits *limits, uint32_t vocab, uint32_t sequences,
                            uint32_t context);
void plan_feed_destroy(plan_feed *feed);

// feed->plan becomes the next iteration. A sequence whose context is full begins again.
void plan_feed_fill(plan_feed *feed, const plan_step *step);

// small_config (programs.h) with experts: 9 of which a token has 3, one that all have, and a layer
// without.
mgl_config small_mixture_config(void);

#endif
