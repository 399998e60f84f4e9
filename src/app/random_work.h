// Requests of random lengths, tokens and arrivals, all drawn from one seed: so the engine alone
// (bench throughput) and a server around it (bench serve) can be given the same work.
#ifndef MGL_APP_RANDOM_WORK_H
#define MGL_APP_RANDOM_WORK_H

#include <stdint.h>

#include "app/options.h"
#include "base/status.h"

typedef struct mgl_work_item {
  uint32_t input, output;  // tokens
  uint64_t arrival_ns;     // from the start
} mgl_work_item;

typedef struct mgl_random_work {
  uint64_t seed;
  uint32_t count;
  uint32_t common;       // tokens that all prompts begin with
  mgl_work_item *items;  // [count]
  uint64_t input_tokens, output_tokens;
  uint32_t longest_input, longest;  // of one request; input and output together
} mgl_random_work;

// By the arguments of mgl_work_options. Lengths above context_tokens together are refused. Free
// with mgl_random_work_free, also after a failure.
mgl_status mgl_random_work_make(const mgl_arguments *arguments, uint64_t context_tokens,
                                mgl_random_work *out, mgl_error *err);
// The tokens of a prompt, below vocab_size; out has room for longest_input.
void mgl_random_work_prompt(const mgl_random_work *work, uint32_t index, uint32_t vocab_size,
                            int32_t *out);
void mgl_random_work_free(mgl_random_work *work);

extern const mgl_option_group mgl_work_options;

#endif
