// Inside of a GPU program: shared by cuda_program.c, cuda_upload.c, cuda_launch.c, cuda_state.c,
// cuda_sampling.c, cuda_fault.c, cuda_trace.c and cuda_look.c only, and tests/gpu/hops.c, which
// empties ops.
#ifndef MGL_RUNTIME_CUDA_PROGRAM_PARTS_H
#define MGL_RUNTIME_CUDA_PROGRAM_PARTS_H

#include "runtime/cuda_plan.h"
#include "runtime/cuda_program.h"
#include "runtime/cuda_steps.h"
#include "runtime/cuda_wide.h"

enum { MGL_CUDA_MAX_PROGRAM_GRAPHS = 7 };  // 1, 2, 4 ... 64 tokens

// The wide class of a program (cuda_wide_launch.c). Without one, all zero.
typedef struct mgl_cuda_wide {
  mgl_cuda_wide_layout layout;
  void *module;
  void *kernel;
  mgl_cuda_usage usage;
  unsigned char *image;  // [layout.image_bytes]
  uint64_t host_ns;      // of the latest launch
} mgl_cuda_wide;

struct mgl_cuda_program {
  const mgl_cuda_device *device;
  mgl_cuda_program_options options;  // without what is used only while creating
  mgl_graph *program;                // fused
  mgl_task_graph *graphs[MGL_CUDA_MAX_PROGRAM_GRAPHS];
  uint32_t graph_count;
  uint32_t workers;
  mgl_cuda_model model;
  mgl_cuda_layout layout;
  mgl_cu_ptr memory[MGL_CUDA_MEMORY_COUNT];
  mgl_cuda_usage usage;
  void *module;
  void *kernel;
  void *weights_module;
  void *stream;        // the launches'
  void *abort_stream;  // for telling a running launch to stop
  mgl_cuda_wide wide;
  uint32_t smem_pages;
  bool has_jit;
  unsigned char *image;       // [state.image_bytes] the state block on the host
  int32_t *host_tokens;       // pinned: [sequences, tokens_per_sequence]
  mgl_cu_ptr host_tokens_at;  // as the device sees it
  uint64_t *fault_word;       // pinned
  mgl_cu_ptr edits;           // [edit_capacity] of the requests of a job, one after the other
  size_t edit_capacity;
  mgl_cuda_logprobs *logprobs;  // pinned: [logprob_capacity] the same
  mgl_cu_ptr logprobs_at;       // as the device sees it
  size_t logprob_capacity;
  size_t first_logprobs[MGL_CUDA_MAX_SEQUENCES];  // of each request of the job
  int32_t *staged;  // [sequences, tokens_per_sequence] prompts on their way
  bool compiled;    // some device code was not in the cache
  char code_note[MGL_CUDA_NOTE_BYTES];
  bool chosen;  // some ops are left out: launches take activations as they are
  bool lost;    // a launch did not end: its memory must stay
};

static inline mgl_cuda_run *mgl_cuda_image_run(const mgl_cuda_program *p) {
  return (mgl_cuda_run *)(void *)(p->image + p->layout.state.run);
}

static inline mgl_cuda_plan *mgl_cuda_image_plan(const mgl_cuda_program *p) {
  return (mgl_cuda_plan *)(void *)(p->image + p->layout.state.plans);
}

static inline mgl_cuda_sequence *mgl_cuda_image_sequences(const mgl_cuda_program *p) {
  return (mgl_cuda_sequence *)(void *)(p->image + p->layout.state.sequences);
}

static inline int32_t *mgl_cuda_image_tables(const mgl_cuda_program *p) {
  return (int32_t *)(void *)(p->image + p->layout.state.block_tables);
}

static inline mgl_cu_ptr mgl_cuda_state_at(const mgl_cuda_program *p, uint64_t offset) {
  return p->memory[MGL_CUDA_MEMORY_STATE] + offset;
}

// Device code by name (cuda_program.c). usage may be NULL.
mgl_status mgl_cuda_load_module(mgl_cuda_program *p, const char *name, const char *kernel,
                                void **module, mgl_cuda_usage *usage, mgl_error *err);

// The wide class in the steps of making a program: checks and memory, code, what lies in memory.
mgl_status mgl_cuda_wide_prepare(mgl_cuda_program *p, mgl_error *err);
mgl_status mgl_cuda_wide_load(mgl_cuda_program *p, mgl_error *err);
mgl_status mgl_cuda_wide_upload(mgl_cuda_program *p, mgl_error *err);
void mgl_cuda_wide_release(mgl_cuda_program *p);
// As mgl_cuda_program_run_plan, in the wide class.
mgl_status mgl_cuda_wide_run_plan(mgl_cuda_program *p, const mgl_plan *plan,
                                  const mgl_cuda_launch_options *options, float *logits,
                                  mgl_error *err);

// Fills the weights, in device memory that is already there (cuda_upload.c).
mgl_status mgl_cuda_upload_weights(mgl_cuda_program *p, const mgl_checkpoint *checkpoint,
                                   mgl_error *err);

// The state block on the host as before the first iteration, without sequences and plan
// (cuda_state.c).
typedef struct mgl_cuda_start {
  const mgl_cuda_launch_options *launch;  // with defaults filled in
  uint32_t most_iterations;
  uint32_t chunk_tokens;
  bool prompts_first;
} mgl_cuda_start;

void mgl_cuda_make_image(mgl_cuda_program *p, const mgl_cuda_start *start);

// Gives the slots of a job in the image their rules, and memory for what these ask for
// (cuda_sampling.c).
mgl_status mgl_cuda_sampling_prepare(mgl_cuda_program *p, const mgl_cuda_generate *job,
                                     mgl_error *err);
void mgl_cuda_sampling_release(mgl_cuda_program *p);

// An activation of a graph with room for `count` elements (cuda_program.c).
typedef struct mgl_cuda_place {
  mgl_cu_ptr at;  // of its first copy
  uint32_t tensor;
  mgl_dtype dtype;  // f32 or bf16
} mgl_cuda_place;

mgl_status mgl_cuda_find_activation(const mgl_cuda_program *p, uint32_t graph, const char *name,
                                    size_t count, mgl_cuda_place *out, mgl_error *err);

// MGL_OK, or what the state that was read back says went wrong (cuda_fault.c).
mgl_status mgl_cuda_describe_fault(const mgl_cuda_program *p, const mgl_cuda_launch_options *launch,
                                   mgl_error *err);

#endif
