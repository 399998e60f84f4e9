// The engine: requests in, tokens out. Three verbs: plan a batch, run an iteration, commit its
// results.
//
// Sequences that decode come first in every iteration, then chunks of prompts fill what is left of
// its tokens. A request waits until a place and all pages of its longest possible sequence are
// free, in order of submission; so a running request never lacks pages. Results do not depend on
// what else runs. One engine, one thread.
#ifndef MGL_ENGINE_ENGINE_H
#define MGL_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/iteration.h"
#include "engine/runner.h"
#include "engine/sampler.h"

typedef struct mgl_engine mgl_engine;

typedef enum mgl_finish_reason {
  MGL_FINISH_NONE,    // still running
  MGL_FINISH_STOP,    // produced a stop token
  MGL_FINISH_LENGTH,  // reached max_new_tokens
} mgl_finish_reason;

typedef struct mgl_request {
  const int32_t *prompt;  // token ids in [0, V); copied
  size_t prompt_count;    // at least 1
  uint32_t
      max_new_tokens;  // at least 1; prompt_count + max_new_tokens <= the runner's sequence_tokens
  mgl_sampling sampling;    // copied, with its biases
  const int32_t *stop_ids;  // generation ends with the first of these; copied
  uint32_t stop_count;      // at most MGL_MAX_EOS_IDS
} mgl_request;

// A token as it is handed out.
typedef struct mgl_generated_token {
  uint32_t request;
  int32_t token;
  mgl_finish_reason finish;      // other than NONE: it is the request's last
  double logprob;                // of the token (engine/sampler.h, step 1); NaN unless asked for
  const mgl_token_logprob *top;  // [top_count] the likeliest, most likely first; until the callback
  uint32_t top_count;            // returns
} mgl_generated_token;

// Called once per generated token, in order of tokens. False ends the request (a stop string): it
// is cancelled, and nothing more is heard of it.
typedef bool mgl_token_callback(void *context, const mgl_generated_token *token);

typedef struct mgl_engine_options {
  mgl_mode mode;
  uint32_t
      chunk_tokens;    // most prompt tokens of one sequence in an iteration; 0: no limit of its own
  bool prompts_first;  // sequences decode only while none that runs still computes its prompt, so
                       // that all decode together (bench); results are the same
  bool (*should_stop)(void);  // asked while a launch runs on a GPU; true ends it; may be NULL
} mgl_engine_options;

// The runner must outlive the engine.
mgl_status mgl_engine_create(mgl_runner *runner, const mgl_engine_options *options,
                             mgl_engine **out, mgl_error *err);
void mgl_engine_destroy(mgl_engine *engine);  // NULL is fine

// Queues a request; *out_request numbers requests from 0 in order of submission. Checks every
// limit.
mgl_status mgl_engine_submit(mgl_engine *engine, const mgl_request *request, uint32_t *out_request,
                             mgl_error *err);

// True while some request has not finished.
bool mgl_engine_has_work(const mgl_engine *engine);

// Plans, runs and commits iterations until no work is left or on_iteration (may be NULL) says stop.
// In mode mega all of it is one run of the megakernel, and the callbacks are called on any of its
// threads, one at a time; they must not call the engine or the runner.
// On a GPU, a launch runs as many requests to their ends as have places and pages, and the next one
// those that wait; on_iteration is called for each iteration when its launch has ended. What a
// launch that was stopped leaves unfinished is taken up again by the next run.
// Logits that are not finite end the run with an error that names the request, which is cancelled.
mgl_status mgl_engine_run(mgl_engine *engine, mgl_token_callback *on_token,
                          mgl_iteration_callback *on_iteration, void *context, mgl_error *err);

// The same for one iteration; an error when there is no work. *out may be NULL.
mgl_status mgl_engine_step(mgl_engine *engine, mgl_token_callback *on_token, void *context,
                           mgl_iteration *out, mgl_error *err);

// Ends a request now, finished or not; its callback is not called again. Unknown numbers are
// ignored.
void mgl_engine_cancel(mgl_engine *engine, uint32_t request);

#endif
