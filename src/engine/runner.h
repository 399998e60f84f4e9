// The model runner: a model folder made ready to run iterations of plans.
//
// It owns the tensor program, the weights, the KV memory and the team, and knows nothing of
// requests. On a GPU it owns a GPU program in the place of memory and team. One runner, one thread
// at a time: that which created it.
#ifndef MGL_ENGINE_RUNNER_H
#define MGL_ENGINE_RUNNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/device_table.h"
#include "graph/graph.h"
#include "model/model_folder.h"

typedef struct mgl_runner mgl_runner;

// Builds the program, plans memory, binds weights and starts the team; on a GPU, compiles and fills
// it. The folder must outlive the runner, with its checkpoint open unless the weights are dummies.
// Sizes are checked before memory is taken; errors say how much is needed and how much there is.
mgl_status mgl_runner_create(const mgl_model_folder *folder, const mgl_build *build,
                             mgl_runner **out, mgl_error *err);
void mgl_runner_destroy(mgl_runner *runner);  // NULL is fine

// Plans the memory that mgl_runner_create with these options takes, without taking it. It needs no
// checkpoint: without one, weights have the dtype that config.json names.
mgl_status mgl_runner_measure(const mgl_model_folder *folder, const mgl_build *build,
                              mgl_sizes *out, mgl_error *err);

// Whether it can still run: MGL_ERR_INTERNAL, and why, once a rank of several has ended.
mgl_status mgl_runner_check(const mgl_runner *runner, mgl_error *err);

// Makes what a mode needs before its first run, task graphs and their memory, which that run would
// make otherwise.
mgl_status mgl_runner_prepare(mgl_runner *runner, mgl_mode mode, mgl_error *err);

// Runs iterations until `next` returns NULL: in mode mega, without leaving the megakernel between
// them. `next` (engine/iteration.h) gets the logits of the iteration before, valid until the plan
// that it returns is run; it may be called on another thread than this one, and must not call the
// runner.
mgl_status mgl_runner_loop(mgl_runner *runner, mgl_mode mode, mgl_next_plan_callback *next,
                           void *context, mgl_error *err);

// Runs one iteration. *out is valid until the next run.
mgl_status mgl_runner_run(mgl_runner *runner, mgl_mode mode, const mgl_plan *plan, mgl_logits *out,
                          mgl_error *err);

// Whether the mode runs there. (An error where it does not is MGL_ERR_UNSUPPORTED.)
bool mgl_runner_has_mode(const mgl_runner *runner, mgl_mode mode);
mgl_mode mgl_runner_usual_mode(const mgl_runner *runner);  // mega where it is there

struct mgl_engine;
struct mgl_engine_run_context;

// Serves the engine's requests in the device's own way (device_table.h).
mgl_status mgl_runner_serve(mgl_runner *runner, mgl_mode mode, struct mgl_engine *engine,
                            const struct mgl_engine_run_context *callbacks, mgl_error *err);
void *mgl_runner_model(mgl_runner *runner);  // the device's, for how it serves
// For tests of single ops (op_test.h): the device's functions, the canonical program, and what was
// asked for.
const mgl_device_table *mgl_runner_table(const mgl_runner *runner);
const mgl_graph *mgl_runner_program(const mgl_runner *runner);
const mgl_build *mgl_runner_build(const mgl_runner *runner);

// Chrome trace JSON of the latest loop or job in mode mega; an error unless options.trace_tasks was
// set.
mgl_status mgl_runner_trace(const mgl_runner *runner, mgl_text *out, mgl_error *err);

// Returns what the build came to; figures of memory are not kept (mgl_runner_measure).
const mgl_sizes *mgl_runner_sizes(const mgl_runner *runner);
// Returns the limits that plans must be made for.
const mgl_plan_limits *mgl_runner_limits(const mgl_runner *runner);
// Returns how many rows of an iteration may have logits: what the options asked for.
uint32_t mgl_runner_logit_rows(const mgl_runner *runner);
uint32_t mgl_runner_sequences(const mgl_runner *runner);  // that may run at once
uint32_t mgl_runner_page_count(const mgl_runner *runner);
bool mgl_runner_hands_out_logits(const mgl_runner *runner);
uint32_t mgl_runner_vocab_size(const mgl_runner *runner);
const mgl_rope *mgl_runner_rope(const mgl_runner *runner);  // of the model's config
uint32_t mgl_runner_threads(const mgl_runner *runner);      // that compute; on a GPU, its workers
mgl_simd mgl_runner_simd(const mgl_runner *runner);         // of the CPU only
const mgl_linear_way *mgl_runner_way(const mgl_runner *runner);  // of linears; NULL on a GPU

// The GPU, NULL on the CPU; and what the user should know: that plain kernels run the model, and
// why, or of device code (device/cuda/cuda_program.h). "": nothing.
const mgl_cuda_device *mgl_runner_device(const mgl_runner *runner);
const char *mgl_runner_note(const mgl_runner *runner);

// What modes that launch graphs and ops have launched so far.
mgl_launch_counts mgl_runner_launches(const mgl_runner *runner);

// Bytes of weights that one decode step reads, and of KV that one token of context adds to it.
uint64_t mgl_runner_step_bytes(const mgl_runner *runner);
// Of these, what an iteration of so many tokens does not read, as it has short rows.
uint64_t mgl_runner_short_saved(const mgl_runner *runner, uint32_t tokens);
uint64_t mgl_runner_kv_bytes_per_token(const mgl_runner *runner);

// What experts had to do so far; all 0 on a GPU. Between two calls `bytes` grows by what was read;
// of mgl_runner_step_bytes step_bytes are theirs.
void mgl_runner_expert_loads(const mgl_runner *runner, mgl_expert_loads *out);

// The read ceiling (device/cpu/read_ceiling.h) of this runner's team, over the memory of its
// weights where that is large and its own, else over a buffer; on a GPU, over the packed weights.
mgl_status mgl_runner_read_ceiling(mgl_runner *runner, uint32_t passes, double *out_bytes_per_s,
                                   mgl_error *err);

#endif
