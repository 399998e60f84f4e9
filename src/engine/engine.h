// The engine: requests in, tokens out. Three verbs: plan a batch, run an iteration, commit its
// results.
//
// What an iteration computes is decided by the planner (twin/planner.h): sequences that decode,
// then chunks of prompts; requests are admitted in order of submission as KV pages allow, take
// pages as they grow, and the last one gives its pages back and is computed again later when they
// run out. Prompts that begin alike share pages. None of it changes a result: a request gets the
// same tokens as alone (up to MGL_INVARIANT_TOKENS tokens an iteration, to the bit; GPUs have
// more unless less is asked for). One engine, one thread.
#ifndef MGL_ENGINE_ENGINE_H
#define MGL_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/iteration.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "grammar/grammar.h"

typedef struct mgl_engine mgl_engine;

typedef enum mgl_finish_reason {
  MGL_FINISH_NONE,      // still running
  MGL_FINISH_STOP,      // produced a stop token
  MGL_FINISH_LENGTH,    // reached max_new_tokens
  MGL_FINISH_COMPLETE,  // this token, which is text, completed its grammar
} mgl_finish_reason;

typedef struct mgl_request {
  const int32_t *prompt;  // token ids in [0, V); copied
  size_t prompt_count;    // at least 1
  uint32_t
      max_new_tokens;  // at least 1; prompt_count + max_new_tokens <= the runner's sequence_tokens
  mgl_sampling sampling;    // copied, with its biases
  const int32_t *stop_ids;  // generation ends with the first of these; copied
  uint32_t stop_count;      // at most MGL_MAX_EOS_IDS
  const void *salt;         // requests share pages of their prompts only under the same salt; NULL
  size_t salt_bytes;        // with 0 bytes is one too; at most MGL_MAX_SALT_BYTES
  int32_t priority;         // of those that wait, ones with less go first; else in their order
  // Unless NULL, the caller's memory for the log probability of each token of the prompt behind
  // those before it, filled before the first token is handed out; NaN for the first. Needs a CPU
  // and a runner with logits for all rows of an iteration, and takes nothing from the prefix cache.
  double *prompt_logprobs;        // [prompt_count]
  mgl_token_logprob *prompt_top;  // [prompt_count, prompt_top_count] the likeliest; the first row
                                  // is not written
  uint32_t prompt_top_count;      // at most MGL_MAX_TOP_LOGPROBS and V
  mgl_grammar *grammar;           // that the generated text must match; NULL: none. Kept
} mgl_request;

enum { MGL_MAX_SALT_BYTES = 256 };

// A token as it is handed out.
typedef struct mgl_generated_token {
  uint32_t request;
  int32_t token;
  mgl_finish_reason finish;      // other than NONE: it is the request's last
  double logprob;                // of the token (engine/sampler.h, step 1); NaN unless asked for
  const mgl_token_logprob *top;  // [top_count] the likeliest, most likely first; until the callback
  uint32_t top_count;            // returns
} mgl_generated_token;

// Called once per generated token, in order of tokens. False ends the request (a stop text): it is
// cancelled, and nothing more is heard of it.
typedef bool mgl_token_callback(void *context, const mgl_generated_token *token);

typedef struct mgl_engine_options {
  mgl_mode mode;
  uint32_t
      chunk_tokens;    // most prompt tokens of one sequence in an iteration; 0: no limit of its own
  bool prompts_first;  // sequences decode only while none that runs still computes its prompt, so
                       // that all decode together (bench); results are the same
  bool prefix_cache;   // pages of prompts are kept and shared
  // Called between iterations, on the thread that plans (on a GPU: on the thread that runs the
  // engine, while it computes the next). It may submit, cancel, pause and resume requests, which
  // the next plan respects. May be NULL.
  void (*before_plan)(void *context);
  // Asked while a launch runs on a GPU, and while all requests wait for masks; true ends the run.
  // May be NULL.
  bool (*should_stop)(void *context);
  // On the CPU, a request's logits are not finite: it is cancelled already. May be NULL: then the
  // run ends with this error, and so it does on a GPU.
  void (*on_failure)(void *context, uint32_t request, const mgl_error *err);
  void *context;     // of these three
  uint64_t idle_ns;  // on a GPU a run without work goes on for so long, asking before_plan
} mgl_engine_options;

// Since the engine was created. On a GPU decode_tokens has some rows of sequences that had stopped,
// and planning goes on beside the iterations, by one of the GPU's many warps.
typedef struct mgl_engine_statistics {
  uint64_t iterations;
  uint64_t prompt_tokens, decode_tokens;  // computed; recomputed ones are prompt tokens
  uint64_t prefix_hit_tokens;             // found in cached pages, of
  uint64_t prefix_lookup_tokens;          // those of all requests when they were admitted
  uint64_t preemptions;
  uint64_t planning_ns;                         // part of total_ns
  uint64_t total_ns;                            // of iterations
  uint32_t pages, pages_used, pages_used_most;  // of KV; used: held by requests, not only cached
  uint32_t running, waiting;                    // requests; of paused ones neither
  mgl_expert_loads experts;                     // of mixtures on the CPU
} mgl_engine_statistics;

// The runner must outlive the engine.
mgl_status mgl_engine_create(mgl_runner *runner, const mgl_engine_options *options,
                             mgl_engine **out, mgl_error *err);
void mgl_engine_destroy(mgl_engine *engine);  // NULL is fine

// Queues a request; *out_request numbers requests from 0 in order of submission. Checks every
// limit.
mgl_status mgl_engine_submit(mgl_engine *engine, const mgl_request *request, uint32_t *out_request,
                             mgl_error *err);

// The checks of mgl_engine_submit alone. Reads only what never changes: any thread may call it.
mgl_status mgl_engine_check(const mgl_engine *engine, const mgl_request *request, mgl_error *err);

// True while some request has neither finished nor is paused.
bool mgl_engine_has_work(const mgl_engine *engine);

// Plans, runs and commits iterations until no work is left or on_iteration (may be NULL) says stop.
// In mode mega all of it is one run of the megakernel, and the callbacks are called on any of its
// threads, one at a time; they must not call the engine or the runner (before_plan may).
// On a GPU all of it is one launch, on_iteration is heard an iteration late, and what a run that
// was stopped leaves unfinished is taken up again by the next one. Logits that are not finite end
// the run with an error that names the request, which is cancelled (but see on_failure).
mgl_status mgl_engine_run(mgl_engine *engine, mgl_token_callback *on_token,
                          mgl_iteration_callback *on_iteration, void *context, mgl_error *err);

// Plans, runs and commits one iteration; it is an error when there is no work. *out may be NULL.
mgl_status mgl_engine_step(mgl_engine *engine, mgl_token_callback *on_token, void *context,
                           mgl_iteration *out, mgl_error *err);

// Ends a request now, finished or not; its callback is not called again. Unknown numbers are
// ignored.
void mgl_engine_cancel(mgl_engine *engine, uint32_t request);

// A paused request keeps its tokens and gives its pages and its place away before the next
// iteration; resumed, it waits in front of the others and is computed again. Unknown numbers are
// ignored.
void mgl_engine_pause(mgl_engine *engine, uint32_t request);
void mgl_engine_resume(mgl_engine *engine, uint32_t request);

// True until the request has finished or was cancelled.
bool mgl_engine_knows(const mgl_engine *engine, uint32_t request);

// Between runs, without work: what was cancelled or paused since the last plan gives its pages back
// now. (On a GPU the next run does that.)
void mgl_engine_settle(mgl_engine *engine);

void mgl_engine_get_statistics(const mgl_engine *engine, mgl_engine_statistics *out);

#endif
