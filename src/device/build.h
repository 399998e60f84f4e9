// What is wanted of a model that shall run, and what that comes to on a device.
//
// An mgl_build is what somebody asks for, most of it 0: "the usual". It is filled in once, by a
// command or by the API, and handed down by pointer to the runner, the compiler and the device;
// nobody below changes or copies single fields of it. An mgl_sizes is what it comes to, computed
// once by the engine (engine/runner.c) and measured by the device: `megalith plan` prints it, and
// the device allocates by it.
#ifndef MGL_DEVICE_BUILD_H
#define MGL_DEVICE_BUILD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "batch/plan.h"
#include "compile/compile.h"
#include "device/expert_loads.h"
#include "graph/kv_cache.h"

typedef enum mgl_weight_source {
  MGL_WEIGHTS_AUTO,    // on the CPU as device/cpu/cpu_weights.h says; a GPU's are uploaded
  MGL_WEIGHTS_MAPPED,  // in place, from the checkpoint's mapping
  MGL_WEIGHTS_COPIED,  // copied from the checkpoint into huge pages
  MGL_WEIGHTS_DUMMY,   // drawn (model/dummy_weights.h); no checkpoint
  MGL_WEIGHTS_SHORT,   // in place, and short rows (device/cpu/cpu_shorts.h) in huge pages
} mgl_weight_source;

// Called while a model is made, and not later.
typedef struct mgl_weights_progress {
  void (*report)(void *context, uint64_t done_bytes, uint64_t total_bytes);  // may be NULL
  void *context;
} mgl_weights_progress;

enum {
  MGL_PAGE_TOKENS = 16,      // tokens of a KV page, by default; on a GPU always (docs/log/045)
  MGL_USUAL_SEQUENCES = 64,  // that run at once, by default; more where iterations are large
};

enum { MGL_SIZES_NOTE_BYTES = 512 };

#define MGL_EVERY_ROW UINT32_MAX
#define MGL_USUAL_SHARE (-1.0)  // of the memory that is free; by device

// A task graph that is to be run in the place of the compiler's, with the program that it is of.
// Verified (mgl_task_graph_read_json does it).
typedef struct mgl_given_graph {
  mgl_graph *program;
  mgl_task_graph *graph;
} mgl_given_graph;

// Reads files that `megalith compile -o` wrote. Free *out also after a failure, with its count.
mgl_status mgl_given_graphs_read(const char *const *paths, uint32_t count, mgl_given_graph **out,
                                 mgl_error *err);
void mgl_given_graphs_free(mgl_given_graph *given, uint32_t count);  // NULL is fine

// All pointers must outlive what is built, but for `cuda`, which is read while it is made.
typedef struct mgl_build {
  uint64_t threads;     // on the CPU; 0: one per physical core
  uint32_t ranks;       // processes that run the model together; 0: this one alone
  bool vocab_parallel;  // on the CPU's ranks: how the program is cut (compile/shard.h)
  bool reduce_scatter;
  struct mgl_crew *crew;      // of such processes that are there already, of which this is one
                              // (device/cpu/cpu_crew.h); NULL: this one forks the others
  uint32_t iteration_tokens;  // most tokens of an iteration, 1 to MGL_MAX_ITERATION_TOKENS, on
                              // GPUs of more than MGL_WIDE_MAX_WORKERS multiprocessors to
                              // MGL_CUDA_MAX_TOKENS; 0: the usual number
  uint32_t sequences;  // most sequences that run at once, 1 to MGL_MAX_SEQUENCES; with fewer tokens
                       // of an iteration they take turns. 0: the usual number, or as many as an
                       // iteration has tokens, or `requests`, if those are fewer
  uint32_t requests;   // that there will be, 0 if that is not known. Only for sequences 0
  uint32_t sequence_tokens;  // longest sequence in tokens, 1 to the model's context
  uint32_t logit_rows;       // most rows with logits in an iteration; 0: one per sequence of it,
                             // MGL_EVERY_ROW: every row
  uint32_t page_tokens;      // tokens of a KV page: 16, 32, 64, 128 or 256; 0: MGL_PAGE_TOKENS
  mgl_kv_dtype kv_dtype;     // of the KV cache; on the CPU
  uint64_t pool_tokens;      // KV memory in tokens; 0: sequences * sequence_tokens
  // Unless 0, all that is taken is at most this share of the memory that is free, above 0 to 1, or
  // MGL_USUAL_SHARE: there are as many KV pages as weights and activations leave room for, and no
  // more than pool_tokens says.
  double memory_share;
  mgl_weight_source weights;
  uint64_t seed;        // of dummy weights
  mgl_routing routing;  // of theirs
  bool tune;            // on the CPU: measure how linears walk though the cache folder knows
                        // (device/cpu/cpu_tune.h)
  // For the task graphs (compile/compile.h) and who schedules them:
  mgl_launch launch;  // MGL_LAUNCH_AUTO is the default
  const mgl_compile_override *overrides;
  uint32_t override_count;
  const mgl_given_graph
      *given;            // [given_count] of mode mega: each for iterations of as many tokens as
  uint32_t given_count;  // it says, a power of two, down to half of them
  bool coarse;           // one event between two ops
  bool plain;            // ops as the model has them, none fused
  bool fused;            // on a GPU: fused tasks or nothing, not plain kernels in their place
  const struct mgl_compilation *compilation;  // NULL: the usual one, whatever mode runs
  const char *program;   // text that runs in place of the family's (graph/given_program.h); NULL
  bool look;             // parts of iterations will be run and looked at (engine/op_test.h)
  uint32_t schedulers;   // who only begin iterations; 0: whoever activates the end does
  bool scheduler_warps;  // on a GPU: they are warps of worker blocks, else blocks of their own
  bool events_only;      // on a GPU: tasks wait for counters of events, never for words of
                         // activations (twin/device_run.h)
  // The latest tasks (on a GPU: spans, rounded up to a power of two) that the trace keeps of each
  // worker; 0: no trace.
  uint32_t trace_tasks;
  mgl_weights_progress progress;
  mgl_weights_progress captures;        // on a GPU: the same of sizes whose graphs are captured
  const struct mgl_cuda_options *cuda;  // NULL: on the CPU (device/cuda/cuda_program.h)
} mgl_build;

// What rank 0 of a crew has said that is built, as another process has it: what can be pointed at
// is that process's own, from the same arguments, and progress is rank 0's business.
mgl_build mgl_build_of_first(const mgl_build *first, const mgl_build *own);

typedef struct mgl_sizes {
  mgl_plan_limits limits;  // that plans are made for
  uint32_t sequences;      // that may run at once
  uint32_t logit_rows;     // most rows with logits of an iteration
  uint32_t page_count;     // KV pages
  uint32_t workers;        // that compute
  // Measured by the device, before it takes any:
  uint64_t free_bytes;
  uint64_t weight_bytes;     // that are allocated
  mgl_weight_source source;  // on the CPU: the build's, settled (device/cpu/cpu_weights.h)
  uint64_t short_bytes;      // of weight_bytes: short rows, if they are faster here
  uint64_t mapped_bytes;     // that stay in their files and want to be in the page cache
  uint64_t cold_bytes;       // of these: of experts beyond those that one token chooses; where they
                             // are not in the page cache, they are read when they are chosen
  uint64_t activation_bytes;  // activations, and the workers' scratch
  uint64_t other_bytes;       // what else is as large as the model: descriptors, state of launches
  uint64_t loading_bytes;     // that are only taken while weights are loaded
  uint64_t kv_bytes_per_token;
  uint64_t step_bytes;  // of weights that a step of one sequence reads; 0: the device does not say
  uint64_t expert_bytes;            // of weights: of all experts that data choose among
  char note[MGL_SIZES_NOTE_BYTES];  // what the user should know, or ""
} mgl_sizes;

uint64_t mgl_sizes_kv_bytes(const mgl_sizes *sizes);
// All but what is taken for loading only. Mapped files count.
uint64_t mgl_sizes_total(const mgl_sizes *sizes);

// Lowers page_count until the total is at most `share` (above 0 to 1) of the free memory; where not
// even one page is left, the total without cold bytes.
// MGL_ERR_MEMORY if not even one page is left, with what is needed and what there is.
mgl_status mgl_sizes_share(mgl_sizes *sizes, double share, mgl_error *err);

// Puts copies of the build's given graphs into their places among `graphs` [count], of which number
// i is for iterations of up to 1 << i tokens of `program`; the others stay as they are. A file's
// program has the same tensors in another order, so copies get the numbers of `program`, and are
// verified as graphs of it. Refuses those for other programs, workers, tokens or rows with logits.
mgl_status mgl_build_take_given(const mgl_build *build, const mgl_sizes *sizes, mgl_target target,
                                const mgl_graph *program, mgl_task_graph **graphs, uint32_t count,
                                mgl_error *err);

// The options of a task graph for up to `tokens` tokens, by a build and its sizes.
mgl_compile_options mgl_build_compile(const mgl_build *build, const mgl_sizes *sizes,
                                      mgl_target target, uint32_t tokens);

#endif
