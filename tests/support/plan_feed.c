#include "support/plan_feed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/must.h"
#include "support/programs.h"

plan_feed *plan_feed_create(const mgl_plan_limits *limits, uint32_t vocab, uint32_t sequences,
                            uint32_t context) {
  plan_feed *feed = calloc(1, sizeof *feed);
  assert_non_null(feed);
  assert_true(sequences <= PLAN_FEED_SEQUENCES && context <= PLAN_FEED_CONTEXT);
  feed->vocab = vocab;
  feed->sequences = sequences;
  feed->context = context;
  MUST(mgl_plan_create(limits, &feed->plan, &err));
  return feed;
}

void plan_feed_destroy(plan_feed *feed) {
  mgl_plan_destroy(feed->plan);
  free(feed);
}

void plan_feed_fill(plan_feed *f, const plan_step *step) {
  const uint32_t page_count = f->context / MGL_PAGE_TOKENS;
  mgl_plan_clear(f->plan);
  for (uint32_t i = 0; i < step->sequences; i++) {
    uint32_t count = step->tokens + (i == 0 ? step->more : 0);
    if (f->position[i] + count > f->context) {
      f->position[i] = 0;
    }
    for (uint32_t j = 0; j < count; j++) {
      uint32_t at = f->position[i] + j;
      f->tokens[i][at] = (int32_t)((i * 7919U + at * 104729U + 13U) % f->vocab);
    }
    for (uint32_t j = 0; j < page_count; j++) {
      f->pages[i][j] = (int32_t)(j * f->sequences + (f->sequences - 1 - i));
    }
    mgl_plan_add(f->plan, &(mgl_plan_chunk){.tokens = &f->tokens[i][f->position[i]],
                                            .token_count = count,
                                            .position = f->position[i],
                                            .pages = f->pages[i],
                                            .page_count = page_count,
                                            .logits = step->logits});
    f->position[i] += count;
  }
}

mgl_config small_mixture_config(void) {
  mgl_config config = small_config(MGL_FAMILY_QWEN2_MOE);
  config.qkv_bias = true;
  config.mixture = (mgl_mixture){.expert_count = 9,
                                 .slots = 3,
                                 .inner_size = 72,
                                 .shared_size = 56,
                                 .shared_gate = true,
                                 .renormalise = true,
                                 .scale = 1,
                                 .dense_layers = {1}};
  return config;
}
