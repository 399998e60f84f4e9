// The model of the engine's tests: small enough for hundreds of requests in a second.
#ifndef MGL_TESTS_SMALL_ENGINE_H
#define MGL_TESTS_SMALL_ENGINE_H

#include "engine/runner.h"
#include "support/must.h"

enum { SMALL_ENGINE_VOCAB = 160 };

static inline mgl_config small_engine_config(uint32_t context_tokens) {
  return (mgl_config){.family = MGL_FAMILY_QWEN2,
                      .hidden_size = 64,
                      .intermediate_size = 96,
                      .layer_count = 2,
                      .head_count = 4,
                      .kv_head_count = 2,
                      .head_dim = 16,
                      .vocab_size = SMALL_ENGINE_VOCAB,
                      .context_tokens = context_tokens,
                      .rms_norm_eps = 1e-6,
                      .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                      .qkv_bias = true,
                      .dtype = MGL_DTYPE_BF16};
}

// On two threads, with dummy weights; sequences of up to context_tokens, what else is set in
// `options` as it is.
static inline mgl_runner *small_engine_runner(uint32_t context_tokens, mgl_build options) {
  mgl_model_folder folder = {.config = small_engine_config(context_tokens)};
  mgl_runner *runner = NULL;
  options.threads = 2;
  options.sequence_tokens = context_tokens;
  options.weights = MGL_WEIGHTS_DUMMY;
  options.seed = 3;
  MUST(mgl_runner_create(&folder, &options, &runner, &err));
  return runner;
}

#endif
