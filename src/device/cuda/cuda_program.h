// A model on the GPU: its task graphs, weights and KV cache in device memory, and launches of the
// megakernel over them.
//
// Everything is made once: ops are fused, one task graph is compiled for every power-of-two token
// count, device code is compiled for the model's shape, all memory is planned, checked against what
// is free, allocated and filled. Then there are two ways to run. A job (generate) is one launch for
// many iterations: the device plans, computes and samples by itself, and the host hands over
// requests, which may come while it runs, and watches tokens arrive, all in pinned memory. A single
// plan (run_plan) is one launch of one iteration that the host planned and whose logits come back.
//
// A launch that finds a fault ends with MGL_ERR_INTERNAL and a message that names the task, the
// worker and the event; the next launch starts afresh.
//
// One program, one thread; that thread has the device's context (mgl_cuda_device_open sets it).
#ifndef MGL_DEVICE_CUDA_CUDA_PROGRAM_H
#define MGL_DEVICE_CUDA_CUDA_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "batch/plan.h"
#include "device/build.h"
#include "device/cpu/cpu_ranks.h"
#include "device/cuda/cuda_code.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_full.h"
#include "device/cuda/cuda_jit.h"
#include "device/cuda/cuda_layout.h"
#include "graph/graph.h"
#include "model/safetensors.h"
#include "twin/device_run.h"
#include "twin/planner.h"
#include "twin/sampling_rule.h"

typedef struct mgl_cuda_program mgl_cuda_program;

typedef struct mgl_cuda_program_options {
  const mgl_graph *program;          // canonical; used only while creating
  const mgl_checkpoint *checkpoint;  // NULL: dummy weights; used only while creating
  mgl_build build;                   // what the graphs, the trace and dummy weights are asked for
  // Tokens of an iteration, 1 to MGL_MAX_ITERATION_TOKENS; those of more than MGL_CUDA_MAX_TOKENS
  // run in the wide class, which has up to MGL_WIDE_MAX_WORKERS workers. Sequences, 1 to
  // MGL_MAX_SEQUENCES, and pages of each, of MGL_CUDA_KV_PAGE_TOKENS tokens. These may be 0:
  // page_count: for all sequences at their longest; logit_rows: one per sequence; workers: one on
  // every multiprocessor that no scheduler block takes. Measured figures are not read.
  mgl_sizes sizes;
  mgl_cuda_code_function *get_code;  // NULL: mgl_cuda_code_get
  mgl_ranks *ranks;  // that run the model together, of which this process is one; NULL: none
  // For debugging:
  bool poison;            // KV cache, activations and partial results begin as NaN
  bool keep_activations;  // every activation keeps its value until the next iteration
} mgl_cuda_program_options;

// The device must outlive *out. MGL_ERR_UNSUPPORTED: a model that the kernels cannot run, no
// compiler. MGL_ERR_MEMORY: the GPU has too little, said part by part before anything is taken.
mgl_status mgl_cuda_program_create(const mgl_cuda_device *device,
                                   const mgl_cuda_program_options *options, mgl_cuda_program **out,
                                   mgl_error *err);
typedef struct mgl_cuda_program_memory {
  uint64_t bytes[MGL_CUDA_MEMORY_COUNT];
  uint64_t free_bytes;  // on the GPU at the moment
  uint32_t page_count, workers;
} mgl_cuda_program_memory;

// Measures what a program with these options would take. It needs the device, but takes nothing of
// it and compiles no device code; whether it fits is not checked.
mgl_status mgl_cuda_program_measure(const mgl_cuda_device *device,
                                    const mgl_cuda_program_options *options,
                                    mgl_cuda_program_memory *out, mgl_error *err);
void mgl_cuda_program_destroy(mgl_cuda_program *program);  // NULL is fine

// --- launches ------------------------------------------------------------------------------------

// How a launch runs. Zeros are the defaults.
typedef struct mgl_cuda_launch_options {
  uint64_t stall_ns;     // no progress for so long is a fault; 0: 1 s
  uint64_t deadline_ns;  // the host ends a launch with requests that gives no sign of life for so
                         // long: no token and no iteration; 0: 10 s
  // Smem pages on their way, at most, for tasks that may run, and for those that wait for their
  // inputs; 0: what was measured to be best, by the task's pages and the graph's tokens
  // (docs/log/162).
  uint32_t in_flight, in_flight_ahead;
  bool no_prefetch;  // loaders wait until a task is let go
  // Iterations with more context than this, in tokens of all sequences added up, are of the wide
  // class, if there is one; 0: what was measured to be best (lower/choose.h).
  uint64_t narrow_context;
  // Mode full: a kernel for every op, in CUDA graphs, instead of the megakernel (runtime/
  // cuda_full.h). What is about tasks, events and descriptors has no meaning there, and in_flight
  // has other defaults.
  bool full;
  // Of mode full: iterations in which every sequence has one token, and all others.
  mgl_cuda_full_how how, mixed_how;
  uint32_t step_batch;  // descriptors fetched at once, 1 to 32; 0: 32
  uint32_t delay_ns;    // random delays before tasks and triggers, at most
  mgl_cuda_injection injection;
  uint32_t injection_task;  // of the graph that runs in that iteration
  uint64_t injection_iteration;
} mgl_cuda_launch_options;

// What a build says of the GPU. Zeros are the defaults, but for the device.
typedef struct mgl_cuda_options {
  const mgl_cuda_device *device;  // opened by the thread that makes the model; outlives it
  mgl_cuda_launch_options launch;
  mgl_cuda_code_function *get_code;  // NULL: mgl_cuda_code_get
  mgl_ranks *ranks;  // mgl_cuda_ranks_start; outlives the model. NULL: one, or nothing but a plan
} mgl_cuda_options;

// Which tokens may be chosen.
typedef struct mgl_cuda_mask {
  const uint64_t *words;  // [ceil(V / 64)] bit t % 64 of word t / 64: token t; NULL: all
  bool is_plain;          // the rule is not applied: of those tokens the largest logit's is taken
} mgl_cuda_mask;

typedef struct mgl_cuda_request {
  uint32_t number;              // by which it is reported; of a source's request
  const int32_t *prompt;        // [prompt_count] ids in [0, V)
  uint32_t prompt_count;        // at least 1
  uint32_t max_new_tokens;      // at least 1
  mgl_sampling_rule rule;       // all zero: greedy
  const mgl_logit_edit *edits;  // [edit_count] before the first token
  uint32_t edit_count;
  const int32_t *stop_ids;
  uint32_t stop_count;  // at most MGL_CUDA_MAX_STOP_IDS
  const mgl_page_key
      *keys;           // [key_count] of the prompt's full pages, by which they are found in the
  uint32_t key_count;  // prefix cache and entered into it; 0: neither
  mgl_cuda_mask mask;  // of the first token
  bool masks_all;      // every token waits for one of its own (mgl_cuda_program_mask)
} mgl_cuda_request;

typedef struct mgl_cuda_token {
  uint32_t request;
  int32_t token;
  mgl_cuda_sequence_state state;      // RUNNING, or STOPPED or LENGTH with the request's last one
  const mgl_cuda_logprobs *logprobs;  // NULL unless asked for; until the callback returns
  uint32_t sampled_ns;                // low half of the device's timer when it was sampled
} mgl_cuda_token;

// Called on the thread that runs the job, while the GPU computes: once per generated token, in
// order for each request.
typedef void mgl_cuda_token_callback(void *context, const mgl_cuda_token *token);

// The device tells this of an iteration that has ended. Counts, planning_ns and pages go on over
// launches; where the host is a thousand iterations late some are left out.
typedef mgl_feed_iteration mgl_cuda_progress;
typedef void mgl_cuda_progress_callback(void *context, const mgl_cuda_progress *progress);

// An mgl_cuda_outcome is what a job left behind. It is filled in as far as the job got, also when
// it failed.
typedef struct mgl_cuda_outcome {
  uint32_t iterations;
  uint64_t *iteration_ns;  // [iteration_capacity] the device's clock when each began, and at the
  uint32_t iteration_capacity;  // end of the last one; the caller's; NULL and 0: not wanted. Of
                                // launches of fewer than 65536 iterations
  uint64_t host_ns;             // of the launch
  bool stopped;                 // it was left: some requests may not have finished
  uint32_t failed_request;      // with MGL_ERR_FORMAT: the one whose logits are not finite
} mgl_cuda_outcome;

// Brings requests to a launch. Both are called on the thread of the launch, before it and while it
// runs, and may call mgl_cuda_program_end.
typedef struct mgl_cuda_request_source {
  // The next request, NULL: there is none now. It is borrowed until the next call, and passes
  // mgl_cuda_program_check.
  const mgl_cuda_request *(*next)(void *context);
  // Called at every look at the launch, some ten microseconds apart. How it goes on: open, it waits
  // for requests when it has none.
  mgl_feed_end (*tend)(void *context);
} mgl_cuda_request_source;

typedef struct mgl_cuda_generate {
  const mgl_cuda_request *requests;       // their numbers are their places here
  uint32_t request_count;                 // any number
  const mgl_cuda_request_source *source;  // instead of the two above, unless NULL
  uint32_t most_edits;     // of a source's requests: edits, with max_new_tokens where generated
  uint32_t most_logprobs;  // tokens join them; and max_new_tokens of those with log probabilities
  bool has_masks;          // whether any has a mask
  mgl_cuda_token_callback *on_token;        // may be NULL
  mgl_cuda_progress_callback *on_progress;  // may be NULL
  bool (*should_stop)(void *context);       // asked all the time; true ends the launch behind the
                                            // present iteration; may be NULL
  void *context;                            // of all of these
  uint32_t chunk_tokens;     // most prompt tokens of one sequence in an iteration; 0: no limit
  bool prompts_first;        // sequences decode only while none computes its prompt
  uint32_t most_iterations;  // 0: as many as it takes
  mgl_cuda_launch_options launch;
  mgl_cuda_outcome *outcome;  // may be NULL
} mgl_cuda_generate;

// Runs all requests to their ends in one launch; the device plans, admits and preempts (batch/
// planner.h). Cached pages of earlier launches are found, unless one failed or a plan ran in
// between. A launch that is left is a success; what it has not finished is forgotten.
mgl_status mgl_cuda_program_generate(mgl_cuda_program *program, const mgl_cuda_generate *job,
                                     mgl_error *err);

// Errors that mgl_cuda_program_generate has with that request.
mgl_status mgl_cuda_program_check(const mgl_cuda_program *program, const mgl_cuda_request *request,
                                  mgl_error *err);
// True if the running launch has memory for what the request asks of sampling.
bool mgl_cuda_program_has_room(const mgl_cuda_program *program, const mgl_cuda_request *request);
// These return what a request counts for most_edits and most_logprobs.
uint32_t mgl_cuda_request_edits(const mgl_cuda_request *request);
uint32_t mgl_cuda_request_logprobs(const mgl_cuda_request *request);

// Ends a request of the running launch, by its number: nothing more is heard of it. Unknown ones
// are fine. On the launch's thread.
void mgl_cuda_program_end(mgl_cuda_program *program, uint32_t number);

// The mask of the next token of a request of the running launch, which waits for it: one that was
// submitted with masks_all. token_count: that it has, prompt included. Unknown requests are fine.
// On the launch's thread.
void mgl_cuda_program_mask(mgl_cuda_program *program, uint32_t number, const mgl_cuda_mask *mask,
                           uint32_t token_count);

// The latest that the device has told.
mgl_cuda_progress mgl_cuda_program_progress(const mgl_cuda_program *program);

// Runs one iteration. The plan's pages are those of its own block tables; its sequence i takes slot
// i. logits: [logit_row_count, V], the caller's; NULL: not wanted. launch: NULL for the defaults.
mgl_status mgl_cuda_program_run_plan(mgl_cuda_program *program, const mgl_plan *plan,
                                     const mgl_cuda_launch_options *launch, float *logits,
                                     mgl_error *err);

// Of a rank other than 0: takes part in all launches of rank 0, until that one quits.
mgl_status mgl_cuda_program_follow(mgl_cuda_program *program, mgl_error *err);
// The same until a command that is not of launches, which is *out.
mgl_status mgl_cuda_program_follow_until(mgl_cuda_program *program, mgl_rank_command *out,
                                         mgl_error *err);

// --- looking in ----------------------------------------------------------------------------------

// The fused program and the task graph for up to 1 << graph tokens; NULL: there is none. Borrowed.
const mgl_graph *mgl_cuda_program_fused(const mgl_cuda_program *program);
const mgl_task_graph *mgl_cuda_program_graph(const mgl_cuda_program *program, uint32_t graph);

// Hash (lower/schedule.h) of the schedule that the latest job ran, one of a single iteration. Which
// one it was is read from the device, where the planner decides it. MGL_ERR_ARGUMENT: several ran.
mgl_status mgl_cuda_program_ran(mgl_cuda_program *program, uint64_t *out, mgl_error *err);

// The first `count` elements of an activation of a graph, bf16 widened, as the latest launch left
// them.
mgl_status mgl_cuda_program_read(mgl_cuda_program *program, uint32_t graph, const char *name,
                                 float *out, size_t count, mgl_error *err);

// The same of an iteration of `tokens` tokens that ran in the wide class. MGL_ERR_UNSUPPORTED: the
// op that makes it was the last one, and leaves it to be finished.
mgl_status mgl_cuda_program_read_large(mgl_cuda_program *program, uint32_t tokens, const char *name,
                                       float *out, size_t count, mgl_error *err);
// Sets the first `count` elements, rounded as they are there.
mgl_status mgl_cuda_program_write_large(mgl_cuda_program *program, uint32_t tokens,
                                        const char *name, const float *values, size_t count,
                                        mgl_error *err);

// From now on launches compute only ops [first, last] of the fused program; tasks of the others
// wait and trigger, and do nothing. All activations become NaN and are not touched before a launch,
// so that mgl_cuda_program_write can give the ops their inputs; the program must have been made
// with keep_activations. first 0 and last UINT32_MAX: all again. Where next_plan or sample is left
// out only run_plan makes sense.
mgl_status mgl_cuda_program_choose(mgl_cuda_program *program, uint32_t first, uint32_t last,
                                   mgl_error *err);
// Sets the first `count` elements of an activation of a graph, rounded to its dtype.
mgl_status mgl_cuda_program_write(mgl_cuda_program *program, uint32_t graph, const char *name,
                                  const float *values, size_t count, mgl_error *err);
// A page of a layer's KV cache. k, v: [HKV, P, HD].
mgl_status mgl_cuda_program_read_kv(mgl_cuda_program *program, const char *name, uint32_t page,
                                    float *k, float *v, mgl_error *err);
mgl_status mgl_cuda_program_write_kv(mgl_cuda_program *program, const char *name, uint32_t page,
                                     const float *k, const float *v, mgl_error *err);

// Something that the user should know and that is no error, "" if there is nothing: device code
// that could not be cached. Borrowed.
const char *mgl_cuda_program_note(const mgl_cuda_program *program);

// Best of `passes` readings of the packed weights by all multiprocessors, in bytes per second.
mgl_status mgl_cuda_program_read_ceiling(mgl_cuda_program *program, uint32_t passes,
                                         double *out_bytes_per_s, mgl_error *err);

// The latest launch in Chrome's trace format: a track per multiprocessor and role.
mgl_status mgl_cuda_program_trace_json(mgl_cuda_program *program, mgl_text *out, mgl_error *err);

typedef struct mgl_cuda_program_info {
  uint64_t memory[MGL_CUDA_MEMORY_COUNT];  // bytes on the GPU
  uint64_t step_bytes;                     // of weights, read by one iteration
  uint64_t kv_bytes_per_token;             // over all layers
  mgl_cuda_model model;
  mgl_cuda_usage usage;  // of the megakernel
  uint32_t workers, smem_pages, graph_count, layer_count;
  uint32_t task_count, event_count;  // of the graph for one token
  uint32_t max_tokens;               // of a sequence
  bool compiled;                     // device code was compiled; false: it was all cached
} mgl_cuda_program_info;

mgl_cuda_program_info mgl_cuda_program_describe(const mgl_cuda_program *program);

#endif
