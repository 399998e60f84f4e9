// The model runner: a model folder made ready to run iterations of plans.
//
// It owns the tensor program, the weights, the KV memory and the team, and knows nothing of
// requests. On a GPU it owns a GPU program in the place of memory and team. One runner, one thread
// at a time: that which created it.
#ifndef MGL_ENGINE_RUNNER_H
#define MGL_ENGINE_RUNNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/limits.h"
#include "base/status.h"
#include "batch/plan.h"
#include "device/cpu/cpu_weights.h"
#include "engine/cuda_mode.h"
#include "engine/mega_mode.h"
#include "engine/memory_plan.h"
#include "graph/graph.h"
#include "model/model_folder.h"

// How a graph is launched.
typedef enum mgl_mode {
  MGL_MODE_MEGA,   // one run of the megakernel: tasks and events, no barriers (the default)
  MGL_MODE_EAGER,  // on a CPU: op by op, a barrier where one depends on another
  MGL_MODE_FULL,   // on a GPU: a kernel for every op, in CUDA graphs (device/cuda/cuda_full.h)
  MGL_MODE_COUNT,
} mgl_mode;

const char *mgl_mode_name(mgl_mode mode);
mgl_status mgl_mode_parse(const char *name, mgl_mode *out, mgl_error *err);

enum {
  MGL_PAGE_TOKENS = 16,  // tokens of a KV page, by default; on a GPU always (docs/log/045)
  // The most tokens of an iteration, by default. On the CPU, where results do not depend on it,
  // twice as many compute prompts 13% faster and cost others 50 ms of waiting on two cores
  // (docs/log/102).
  MGL_USUAL_HOST_ITERATION_TOKENS = 128,
  MGL_USUAL_GPU_ITERATION_TOKENS = 64,
  // On GPUs with kernels for more (MGL_CUDA_MAX_TOKENS; docs/log/106 has others).
  MGL_USUAL_LARGE_ITERATION_TOKENS = 2048,
  MGL_USUAL_SEQUENCES = 64,         // that run at once, by default
  MGL_USUAL_LARGE_SEQUENCES = 256,  // where iterations are large
};

#define MGL_USUAL_SHARE (-1.0)  // the next two, by device
#define MGL_USUAL_HOST_SHARE 0.5
#define MGL_USUAL_GPU_SHARE 0.9

typedef struct mgl_runner_options {
  uint64_t threads;           // 0: one per physical core
  uint32_t iteration_tokens;  // most tokens of an iteration, 1 to MGL_MAX_ITERATION_TOKENS, on
                              // GPUs of more than MGL_WIDE_MAX_WORKERS multiprocessors to
                              // MGL_CUDA_MAX_TOKENS; 0: the usual number
  uint32_t sequences;  // most sequences that run at once, 1 to MGL_MAX_SEQUENCES; with fewer tokens
                       // of an iteration they take turns. 0: the usual number, or as many as an
                       // iteration has tokens, or `requests`, if those are fewer
  uint32_t requests;   // that there will be, 0 if that is not known. Only for sequences 0
  uint32_t sequence_tokens;  // longest sequence in tokens, 1 to the model's context
  uint32_t logit_rows;       // most rows with logits in an iteration; 0: one per sequence of it
  uint32_t page_tokens;      // tokens of a KV page: 16, 32, 64, 128 or 256; 0: MGL_PAGE_TOKENS
  uint64_t pool_tokens;      // KV memory in tokens; 0: sequences * sequence_tokens
  // Unless 0, all that the runner takes is at most this share of the memory that is free, above 0
  // to 1, or MGL_USUAL_SHARE: there are as many KV pages as weights and activations leave room for,
  // and no more than pool_tokens says.
  double memory_share;
  mgl_weight_source weights;
  uint64_t seed;  // of dummy weights
  // Mode mega (engine/mega_mode.h) takes these:
  uint32_t schedulers;
  mgl_launch launch;
  const mgl_compile_override *overrides;  // must outlive the runner
  uint32_t override_count;
  uint32_t trace_tasks;  // tasks (on a GPU: spans) that the trace keeps of each worker; 0: no trace
  mgl_weights_progress progress;
  const mgl_cuda_options *cuda;  // NULL: on the CPU; borrowed while creating. Threads mean nothing
                                 // there
} mgl_runner_options;

typedef struct mgl_runner mgl_runner;

// Builds the program, plans memory, binds weights and starts the team; on a GPU, compiles and fills
// it. The folder must outlive the runner, with its checkpoint open unless the weights are dummies.
// Sizes are checked before memory is taken; errors say how much is needed and how much there is.
mgl_status mgl_runner_create(const mgl_model_folder *folder, const mgl_runner_options *options,
                             mgl_runner **out, mgl_error *err);
void mgl_runner_destroy(mgl_runner *runner);  // NULL is fine

// Plans the memory that mgl_runner_create with these options takes, without taking it. It needs no
// checkpoint: without one, weights have the dtype that config.json names.
mgl_status mgl_runner_plan_memory(const mgl_model_folder *folder, const mgl_runner_options *options,
                                  mgl_memory_plan *out, mgl_error *err);

// Makes what a mode needs before its first run, task graphs and their memory, which that run would
// make otherwise.
mgl_status mgl_runner_prepare(mgl_runner *runner, mgl_mode mode, mgl_error *err);

// Runs iterations until `next` returns NULL: in mode mega, without leaving the megakernel between
// them. `next` (engine/mega_mode.h) gets the logits of the iteration before, valid until the plan
// that it returns is run; it may be called on another thread than this one, and must not call the
// runner.
mgl_status mgl_runner_loop(mgl_runner *runner, mgl_mode mode, mgl_next_plan_callback *next,
                           void *context, mgl_error *err);

// Runs one iteration. *out is valid until the next run.
mgl_status mgl_runner_run(mgl_runner *runner, mgl_mode mode, const mgl_plan *plan, mgl_logits *out,
                          mgl_error *err);

// Whether the mode runs there. (An error where it does not is MGL_ERR_UNSUPPORTED.)
bool mgl_mode_is_for(mgl_mode mode, bool gpu);

// Whole requests in one launch, on a GPU only.
mgl_status mgl_runner_generate(mgl_runner *runner, mgl_mode mode, const mgl_cuda_generate *job,
                               mgl_error *err);
mgl_cuda_program *mgl_runner_cuda_program(mgl_runner *runner);

// Chrome trace JSON of the latest loop or job in mode mega; an error unless options.trace_tasks was
// set.
mgl_status mgl_runner_trace(const mgl_runner *runner, mgl_text *out, mgl_error *err);

// Returns the limits that plans must be made for.
const mgl_plan_limits *mgl_runner_limits(const mgl_runner *runner);
// Returns how many rows of an iteration may have logits: what the options asked for.
uint32_t mgl_runner_logit_rows(const mgl_runner *runner);
uint32_t mgl_runner_sequences(const mgl_runner *runner);  // that may run at once
uint32_t mgl_runner_page_count(const mgl_runner *runner);
uint32_t mgl_runner_vocab_size(const mgl_runner *runner);
const mgl_rope *mgl_runner_rope(const mgl_runner *runner);  // of the model's config
uint32_t mgl_runner_threads(const mgl_runner *runner);      // that compute; on a GPU, its workers
mgl_simd mgl_runner_simd(const mgl_runner *runner);         // of the CPU only

// The GPU, NULL on the CPU; and what the user should know of it ("": nothing;
// device/cuda/cuda_program.h).
const mgl_cuda_device *mgl_runner_device(const mgl_runner *runner);
const char *mgl_runner_note(const mgl_runner *runner);

// Bytes of weights that one decode step reads, and of KV that one token of context adds to it.
uint64_t mgl_runner_step_bytes(const mgl_runner *runner);
uint64_t mgl_runner_kv_bytes_per_token(const mgl_runner *runner);

// The read ceiling (device/cpu/read_ceiling.h) of this runner's team, over the memory of its
// weights where that is large and its own, else over a buffer; on a GPU, over the packed weights.
mgl_status mgl_runner_read_ceiling(mgl_runner *runner, uint32_t passes, double *out_bytes_per_s,
                                   mgl_error *err);

#endif
