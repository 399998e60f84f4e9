// An engine on a GPU over the fake driver, and what came of its requests.
#ifndef MGL_TESTS_CUDA_ENGINE_BED_H
#define MGL_TESTS_CUDA_ENGINE_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cuda/cuda_ranks.h"
#include "engine/engine.h"
#include "support/fake_cuda.h"

enum { VOCAB = 512, CONTEXT = 128, PLACES = 4, MAX_REQUESTS = 16, MAX_TOKENS = 64 };

static const mgl_config config = {.family = MGL_FAMILY_QWEN2,
                                  .hidden_size = 256,
                                  .intermediate_size = 200,
                                  .layer_count = 2,
                                  .head_count = 8,
                                  .kv_head_count = 2,
                                  .head_dim = 32,
                                  .vocab_size = VOCAB,
                                  .context_tokens = CONTEXT,
                                  .rms_norm_eps = 1e-6,
                                  .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                                  .qkv_bias = true,
                                  .dtype = MGL_DTYPE_BF16};

typedef struct bed {
  mgl_cuda_device device;
  mgl_ranks *ranks;  // that the engine runs on; NULL: there is one
  mgl_runner *runner;
  mgl_engine *engine;
  uint32_t submitted;  // the first token of request n is 5 n
  int32_t tokens[MAX_REQUESTS][MAX_TOKENS];
  uint32_t counts[MAX_REQUESTS];
  mgl_finish_reason reasons[MAX_REQUESTS];
  mgl_iteration sum;
  uint32_t iterations;
  uint32_t most_iterations;  // on_iteration stops behind so many; 0: never
} bed;

// given: a task graph that takes the place of the compiler's own; NULL: none does.
static inline void open_bed_with(bed *b, mgl_engine_options options, const mgl_given_graph *given) {
  mgl_error err = {0};
  mgl_model_folder folder = {.config = config};
  mgl_ranks *ranks = b->ranks;
  *b = (bed){.device = fake_cuda_device(), .ranks = ranks};
  mgl_cuda_options cuda = {.device = &b->device, .get_code = fake_cuda_code, .ranks = ranks};
  mgl_build runner = {.sequences = PLACES,
                      .iteration_tokens = MGL_CUDA_MAX_TOKENS,
                      .sequence_tokens = CONTEXT,
                      .weights = MGL_WEIGHTS_DUMMY,
                      .given = given,
                      .given_count = given != NULL ? 1 : 0,
                      .ranks = ranks != NULL ? mgl_ranks_count(ranks) : 0,
                      .cuda = &cuda};
  if (ranks != NULL) {
    folder.config.intermediate_size = 256;
  }
  fake.runs = 0;
  if (mgl_runner_create(&folder, &runner, &b->runner, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_ptr_equal(mgl_runner_device(b->runner), &b->device);
  assert_string_equal(mgl_runner_note(b->runner), "");
  assert_int_equal(mgl_engine_create(b->runner, &options, &b->engine, &err), MGL_OK);
}

static inline void open_bed(bed *b, mgl_engine_options options) {
  b->ranks = NULL;
  open_bed_with(b, options, NULL);
}

// On two GPUs.
static inline void open_bed_on_ranks(bed *b, mgl_engine_options options) {
  mgl_error err = {0};
  assert_int_equal(mgl_cuda_ranks_start(2, NULL, &b->ranks, &err), MGL_OK);
  open_bed_with(b, options, NULL);  // returns in rank 0
}

static inline void close_bed(bed *b) {
  mgl_engine_destroy(b->engine);
  mgl_runner_destroy(b->runner);
  mgl_ranks_stop(b->ranks);
  assert_int_equal(fake.live, 0);
}

static inline uint32_t submit(bed *b, uint32_t prompt_count, uint32_t max_new_tokens,
                              int32_t stop) {
  int32_t prompt[CONTEXT];
  uint32_t number = 0;
  mgl_error err = {0};
  for (uint32_t i = 0; i < prompt_count; i++) {
    prompt[i] = (int32_t)((i * 37 + b->submitted * 5) % VOCAB);
  }
  b->submitted++;
  mgl_request request = {.prompt = prompt,
                         .prompt_count = prompt_count,
                         .max_new_tokens = max_new_tokens,
                         .sampling = {.top_p = 1},
                         .stop_ids = &stop,
                         .stop_count = stop < 0 ? 0 : 1};
  if (mgl_engine_submit(b->engine, &request, &number, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return number;
}

static inline bool on_token(void *context, const mgl_generated_token *token) {
  bed *b = context;
  uint32_t request = token->request;
  assert_int_equal(b->reasons[request], MGL_FINISH_NONE);
  assert_true(b->counts[request] < MAX_TOKENS);
  b->tokens[request][b->counts[request]++] = token->token;
  b->reasons[request] = token->finish;
  return true;
}

static inline bool on_iteration(void *context, const mgl_iteration *iteration) {
  bed *b = context;
  assert_true(iteration->prompt_tokens + iteration->decode_tokens > 0);
  b->sum.prompt_tokens += iteration->prompt_tokens;
  b->sum.decode_tokens += iteration->decode_tokens;
  b->sum.kv_tokens += iteration->kv_tokens;
  b->sum.ns += iteration->ns;
  b->iterations++;
  return b->most_iterations == 0 || b->iterations < b->most_iterations;
}

static inline void run(bed *b) {
  mgl_error err = {0};
  if (mgl_engine_run(b->engine, on_token, on_iteration, b, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

#endif
