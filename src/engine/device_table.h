// A device as runner and engine see it: a table of functions, and what they hand each other.
//
// There are three: device_cpu.c, device_cuda.c and, for models that no fused task of a GPU covers,
// device_cuda_plain.c. What a device is asked of a model in the order of
// a model's life: open (nothing large is taken), defaults (what is taken where a build says
// nothing), measure (what it would take), create; then prepare, run_plans and serve, any number of
// times; destroy. Nobody above asks which device it is, but to say its name.
#ifndef MGL_ENGINE_DEVICE_TABLE_H
#define MGL_ENGINE_DEVICE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/simd.h"
#include "base/status.h"
#include "base/text.h"
#include "device/build.h"
#include "device/cuda/cuda_program.h"
#include "device/graph_mode.h"
#include "engine/iteration.h"
#include "graph/graph.h"
#include "kernels/cpu/cpu_kernels.h"
#include "model/safetensors.h"

// A model that a device shall run. All must outlive it there, but for the checkpoint of dummy
// weights (NULL) and of copied ones.
typedef struct mgl_device_job {
  const mgl_graph *program;  // canonical
  const mgl_checkpoint *checkpoint;
  const mgl_build *build;
  const mgl_sizes *sizes;  // measured figures are not read
} mgl_device_job;

typedef struct mgl_device_defaults {
  const char *where;          // "the CPU"
  uint32_t iteration_tokens;  // where the build does not say
  uint32_t most_tokens;       // of an iteration
  uint32_t sequences;         // where the build does not say
  uint32_t page_tokens;       // the only ones that there are; 0: what the kernels of the CPU take
  uint32_t workers;           // 0: known when it is made
  double share;               // for MGL_USUAL_SHARE
} mgl_device_defaults;

// What the modes between eager and mega have launched so far; a launch of mode mega is none.
typedef struct mgl_launch_counts {
  uint64_t iterations;
  uint64_t graphs;   // launches of graphs
  uint64_t ops;      // of single ops
  uint64_t entries;  // graphs that were made, of all sizes and pieces; equal ones count once a size
} mgl_launch_counts;

typedef struct mgl_device_info {
  uint32_t workers;      // that compute
  mgl_simd simd;         // of the CPU only
  uint64_t step_bytes;   // of weights that one decode step reads
  uint64_t short_saved;  // of these, what an iteration of short_tokens or fewer does not read
  uint32_t short_tokens;
  uint64_t kv_bytes_per_token;  // that one token of context adds to it
  const mgl_cuda_device *gpu;   // NULL on the CPU
  const char *note;             // what the user should know of it, or ""
  const mgl_linear_way *way;    // how linears walk; NULL on a GPU
  mgl_launch_counts launches;
} mgl_device_info;

// Running parts of an iteration and looking at what they make, for tests of single ops (op_test.h).
// The build must have asked for it (mgl_build.look), and the mode be prepared. Values
// are f32 here, whatever is stored; an activation is that of the graph for so many tokens.
typedef struct mgl_device_look {
  // The mode that is looked at from now on, mega before; MGL_ERR_UNSUPPORTED says which can be.
  mgl_status (*take_mode)(void *model, mgl_mode mode, mgl_error *err);
  const mgl_graph *(*program)(const void *model);  // whose ops are chosen: as the mode runs them
  // From now on only ops [first, last] compute. Activations become NaN.
  mgl_status (*choose)(void *model, uint32_t first, uint32_t last, mgl_error *err);
  mgl_status (*write)(void *model, uint32_t tokens, const char *name, const float *values,
                      size_t count, mgl_error *err);
  mgl_status (*read)(void *model, uint32_t tokens, const char *name, float *out, size_t count,
                     mgl_error *err);
  // The same of any rank of several, on the CPU.
  mgl_status (*read_rank)(void *model, uint32_t rank, uint32_t tokens, const char *name, float *out,
                          size_t count, mgl_error *err);
  // A page of a layer's KV cache. k, v: [HKV, P, HD].
  mgl_status (*write_kv)(void *model, const char *name, uint32_t page, const float *k,
                         const float *v, mgl_error *err);
  mgl_status (*read_kv)(void *model, const char *name, uint32_t page, float *k, float *v,
                        mgl_error *err);
} mgl_device_look;

struct mgl_engine;
struct mgl_engine_run_context;

typedef struct mgl_device_table {
  // Those who are served see logits: the engine chooses tokens, so that masks of grammars hold.
  bool hands_out_logits;
  uint32_t modes;         // bit (1 << mgl_mode) for each that runs there
  const char *mode_hint;  // what to expect and do, for others
  // Those of them that run a program that it covers; NULL: all of them.
  uint32_t (*modes_of)(const mgl_graph *program);
  // MGL_ERR_UNSUPPORTED says what of a program it cannot run. NULL: it runs all.
  mgl_status (*covers)(const mgl_graph *program, mgl_error *err);
  const struct mgl_device_table *otherwise;  // what runs what it does not cover; NULL: nothing
  // *out is the device's own; destroy frees it, whatever became of it.
  mgl_status (*open)(const mgl_build *build, void **out, mgl_error *err);
  void (*defaults)(const void *model, const mgl_build *build, const mgl_graph *program,
                   mgl_device_defaults *out);
  // Measures what create would take: fills the figures of *sizes, and workers.
  mgl_status (*measure)(void *model, const mgl_device_job *job, mgl_sizes *sizes, mgl_error *err);
  mgl_status (*create)(void *model, const mgl_device_job *job, mgl_error *err);
  void (*destroy)(void *model);
  // Whether it can still run, also between runs. NULL: nothing of it fails by itself.
  mgl_status (*check)(const void *model, mgl_error *err);
  // Makes what a mode needs before its first run, which that run would make otherwise.
  mgl_status (*prepare)(void *model, mgl_mode mode, mgl_error *err);
  // Runs iterations until `next` returns NULL.
  mgl_status (*run_plans)(void *model, mgl_mode mode, mgl_next_plan_callback *next, void *context,
                          mgl_error *err);
  // Serves the engine's requests until there are none or its run ends: by plans of the host
  // (serve_planned.c), or by feeding the device, which plans by itself (serve_fed.c).
  mgl_status (*serve)(struct mgl_engine *engine, const struct mgl_engine_run_context *callbacks,
                      mgl_error *err);
  // The rate at which it reads memory, over the weights where it can; the best of `passes`.
  void (*expert_loads)(const void *model, mgl_expert_loads *out);  // NULL: not counted
  mgl_status (*read_ceiling)(void *model, uint32_t passes, double *out_bytes_per_s, mgl_error *err);
  // Chrome trace JSON of the latest run in mode mega.
  mgl_status (*trace)(const void *model, mgl_text *out, mgl_error *err);
  void (*describe)(const void *model, mgl_device_info *out);
  mgl_device_look look;
} mgl_device_table;

extern const mgl_device_table mgl_cpu_table;
extern const mgl_device_table mgl_cuda_table;
extern const mgl_device_table mgl_cuda_plain_table;

// A launch for whole requests on a GPU, under the build's launch options.
mgl_status mgl_device_cuda_generate(void *model, mgl_mode mode, const mgl_cuda_generate *job,
                                    mgl_error *err);
mgl_cuda_program *mgl_device_cuda_program(void *model);

#endif
