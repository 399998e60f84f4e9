// Inside of a GPU program: shared by cuda_program.c, cuda_upload.c, cuda_launch.c, cuda_state.c,
// cuda_feed.c, cuda_sampling.c, cuda_fault.c, cuda_trace.c and cuda_look.c only, and
// tests/gpu/hops.c and ranks_speed.c, which change ops.
#ifndef MGL_DEVICE_CUDA_CUDA_PROGRAM_PARTS_H
#define MGL_DEVICE_CUDA_CUDA_PROGRAM_PARTS_H

#include "device/cuda/cuda_full.h"
#include "device/cuda/cuda_plan.h"
#include "device/cuda/cuda_program.h"
#include "device/cuda/cuda_ranks.h"
#include "device/cuda/cuda_steps.h"
#include "device/cuda/cuda_wide.h"

enum { MGL_CUDA_MAX_PROGRAM_GRAPHS = 7 };  // 1, 2, 4 ... 64 tokens

// A kernel of the wide class; without its module it is not there.
typedef struct mgl_cuda_wide_kernel {
  void *module;
  void *kernel;
  mgl_cuda_usage usage;
} mgl_cuda_wide_kernel;

// The wide class of a program (cuda_wide_launch.c). Without one, all zero.
typedef struct mgl_cuda_wide {
  uint32_t tokens;          // most of an iteration; options.iteration_tokens is the narrow class's
  uint32_t rows;            // with logits
  uint32_t narrow_tokens;   // most tokens of the iterations of a job that are not of this class
  uint64_t narrow_context;  // and most tokens of context of those
  mgl_cuda_wide_layout layout;
  uint64_t schedules[MGL_CUDA_WIDE_GRAPHS];  // hashes of those that the device has of its graphs
  bool cut[MGL_CUDA_WIDE_GRAPHS];  // of the chosen ops one lacks what an op before them does
  mgl_cuda_wide_kernel
      kernels[MGL_WIDE_TILES];  // the smallest tiles first, of which not all may be
  void *plan_module;
  void *plan_kernel;
  void *sample_kernel;
  unsigned char *image;  // [layout.image_bytes]
  uint64_t host_ns;      // of the latest launch
  uint64_t queued;       // iterations of the chain that runs
  bool faulted;          // the run on the device has the fault of a launch that was ended
} mgl_cuda_wide;

// A slot as the host sees it.
typedef struct mgl_cuda_slot {
  enum {
    MGL_CUDA_SLOT_FREE,
    MGL_CUDA_SLOT_BUSY,
    MGL_CUDA_SLOT_ENDING,  // ended by the host: free once the device has settled
  } state;
  uint32_t number;  // of the request
  uint32_t prompt_count, max_tokens;
  uint32_t seen;  // tokens that were reported or are prompt
  bool logprobs;
  uint32_t stop_count;
  int32_t stop_ids[MGL_CUDA_MAX_STOP_IDS];
  uint64_t ended_at;  // commands that were sent when it was ended
  bool second_mask;   // of ranks other than 0: which of its two masks the slot's request has
} mgl_cuda_slot;

// The host's side of the feed. The pinned block holds the feed and what is by slot.
typedef struct mgl_cuda_feeding {
  uint32_t slot_count;
  mgl_planner_limits limits;
  bool planner_lost;     // what the device's planner knows is of no use: it is made anew
  uint64_t tables_at;    // offset of the block tables in it
  mgl_cuda_slot *slots;  // [slot_count]
  uint32_t busy, ending;
  uint32_t next_slot;  // where to look for a free one
  mgl_cuda_progress latest;
  bool failed;  // a sequence's logits are not finite
  uint32_t failed_slot;

  void *block;    // pinned
  mgl_cu_ptr at;  // as the device sees it
  uint64_t commands_at, iterations_at, sequences_at, tokens_at, keys_at, cells_at, bytes;
  uint64_t command_mask;
  mgl_ring_end commands, iterations;
  uint64_t log_base;  // of several ranks: the launch's first command in the log
  mgl_feed_end end;   // that was sent
  mgl_feed *feed;

  mgl_cu_ptr edits;              // [slot_count, edit_capacity]
  mgl_logit_edit *staged_edits;  // pinned: the same
  mgl_cu_ptr staged_edits_at;
  uint32_t edit_capacity;
  mgl_cuda_logprobs *logprobs;  // pinned: [slot_count, logprob_capacity]
  mgl_cu_ptr logprobs_at;       // as the device sees it
  uint32_t logprob_capacity;
  uint64_t *masks;  // pinned: [slot_count, mask_stride] (mgl_cuda_sequence.mask), of ranks other
                    // than 0 twice; NULL: none yet
  mgl_cu_ptr masks_at;  // as the device sees it
} mgl_cuda_feeding;

struct mgl_cuda_program {
  const mgl_cuda_device *device;
  const mgl_cuda_program_options *options;  // only while creating
  mgl_cuda_code_function *get_code;         // NULL: mgl_cuda_code_get
  mgl_build build;                          // of the options
  // Those of the options, with what they left open. Tokens of an iteration and rows with logits are
  // the narrow class's.
  mgl_sizes sizes;
  uint32_t trace_spans;  // a power of two, or 0
  mgl_graph *program;    // fused
  mgl_task_graph *graphs[MGL_CUDA_MAX_PROGRAM_GRAPHS];
  uint64_t schedules[MGL_CUDA_MAX_PROGRAM_GRAPHS];  // hashes of those that the device has of them
  uint32_t graph_count;
  uint32_t workers;
  mgl_cuda_model model;
  mgl_cuda_layout layout;
  mgl_cu_ptr memory[MGL_CUDA_MEMORY_COUNT];
  mgl_ranks *ranks;  // that run the model together; NULL: this one alone
  mgl_cuda_peers peers;
  mgl_cuda_usage usage;
  void *module;
  void *kernel;
  void *weights_module;
  void *stream;        // the launches'
  void *abort_stream;  // for telling a running launch to stop
  mgl_cuda_wide wide;
  uint32_t packings;    // of the weights: bit 1 << mgl_packing
  uint32_t page_bytes;  // from an smem page to the next
  uint32_t smem_pages;
  bool has_jit;              // some task of some graph is JIT
  bool streams_jit;          // and one of those is a linear's
  unsigned char *image;      // pinned: [state.image_bytes] the state block on the host
  uint64_t iterations_past;  // of launches so far, at least
  uint64_t *fault_word;      // pinned
  mgl_cuda_feeding feeding;
  bool compiled;  // some device code was not in the cache
  char code_note[MGL_CUDA_NOTE_BYTES];
  mgl_cuda_full *full;         // NULL until mode full is first used
  mgl_size_list graph_sizes;   // of mode full, ascending; none: powers of two
  bool ran_full;               // the latest launch was of mode full
  bool chosen;                 // some ops are left out: launches take activations as they are
  uint32_t first_op, last_op;  // then, those that are computed
  bool lost;                   // a launch did not end: its memory must stay
};

// Blocks of dedicated schedulers.
static inline uint32_t mgl_cuda_scheduler_blocks(const mgl_cuda_program *p) {
  const uint32_t each = MGL_CUDA_BLOCK_SCHEDULERS;
  return p->build.scheduler_warps ? 0 : (p->build.schedulers + each - 1) / each;
}

static inline mgl_cuda_run *mgl_cuda_image_run(const mgl_cuda_program *p) {
  return (mgl_cuda_run *)(void *)(p->image + p->layout.state.run);
}

static inline mgl_cuda_plan *mgl_cuda_image_plan(const mgl_cuda_program *p) {
  return (mgl_cuda_plan *)(void *)(p->image + p->layout.state.plans);
}

static inline int32_t *mgl_cuda_image_tables(const mgl_cuda_program *p) {
  return (int32_t *)(void *)(p->image + p->layout.state.block_tables);
}

static inline mgl_cu_ptr mgl_cuda_state_at(const mgl_cuda_program *p, uint64_t offset) {
  return p->memory[MGL_CUDA_MEMORY_STATE] + offset;
}

// Device code that is loaded.
typedef struct mgl_cuda_module {
  const char *name;    // of the source
  const char *kernel;  // whose usage is wanted
  void **module;
  mgl_cuda_usage *usage;  // may be NULL
} mgl_cuda_module;

// All of it at once (cuda_program.c): up to MGL_CUDA_MAX_CODES.
mgl_status mgl_cuda_load_modules(mgl_cuda_program *p, const mgl_cuda_module *modules, size_t count,
                                 mgl_error *err);

// The wide class in the steps of making a program: what the options leave to it, checks and memory,
// code, what lies in memory.
void mgl_cuda_wide_set_options(mgl_cuda_program *p);
mgl_status mgl_cuda_wide_prepare(mgl_cuda_program *p, mgl_error *err);
size_t mgl_cuda_wide_modules(mgl_cuda_program *p, mgl_cuda_module *out);  // and how many
mgl_status mgl_cuda_wide_load(mgl_cuda_program *p, mgl_error *err);       // once they are there
mgl_status mgl_cuda_wide_upload(mgl_cuda_program *p, mgl_error *err);
// Of it the lists of steps alone, of the ops that are chosen.
mgl_status mgl_cuda_wide_upload_graphs(mgl_cuda_program *p, mgl_error *err);
// MGL_ERR_UNSUPPORTED: such iterations cannot begin with the first chosen op (cuda_look.c).
mgl_status mgl_cuda_look_check_large(const mgl_cuda_program *p, uint32_t tokens, mgl_error *err);
void mgl_cuda_wide_release(mgl_cuda_program *p);
// Runs a plan as mgl_cuda_program_run_plan does, in the wide class.
mgl_status mgl_cuda_wide_run_plan(mgl_cuda_program *p, const mgl_plan *plan,
                                  const mgl_cuda_launch_options *options, float *logits,
                                  mgl_error *err);

// What a launch that has ended came to, by the stream's last word.
mgl_status mgl_cuda_launch_ended(mgl_cuda_program *p, mgl_cu_result code, mgl_error *err);

// A chain of iterations of the wide class on the stream of the launches, whose first one the
// planner has planned (planning.wide_tokens of the image): begin, then queue again and again until
// *over and the stream is idle, then end, which brings `planning` back. Ended by
// mgl_cuda_wide_abort where it does not end.
mgl_status mgl_cuda_wide_begin(mgl_cuda_program *p, mgl_error *err);
mgl_status mgl_cuda_wide_queue(mgl_cuda_program *p, bool *over, mgl_error *err);
mgl_status mgl_cuda_wide_abort(mgl_cuda_program *p, mgl_error *err);
mgl_status mgl_cuda_wide_end(mgl_cuda_program *p, mgl_error *err);

// A launch goes on where another one of the same job has ended: `kept` is what that one left in the
// image, which was made anew (cuda_feed.c). All that it read of commands has had its effect.
void mgl_cuda_feed_resume(mgl_cuda_program *p, const mgl_cuda_planning *kept);

// Fills the weights, in device memory that is already there (cuda_upload.c).
mgl_status mgl_cuda_upload_weights(mgl_cuda_program *p, const mgl_checkpoint *checkpoint,
                                   mgl_error *err);

// The state block on the host as before the first iteration, without sequences and plan
// (cuda_state.c).
typedef struct mgl_cuda_start {
  const mgl_cuda_launch_options *launch;  // with defaults filled in
  uint32_t most_iterations;
} mgl_cuda_start;

void mgl_cuda_make_image(mgl_cuda_program *p, const mgl_cuda_start *start);

// Smem pages that weights go through in a graph (mgl_cuda_graph.ring_pages).
uint32_t mgl_cuda_ring_pages(const mgl_cuda_program *p, const mgl_task_graph *graph);

// --- the feed of requests (cuda_feed.c) ----------------------------------------------------------

// Memory, once the layout is known; the planner's limits and bytes, before.
mgl_status mgl_cuda_feed_limits(mgl_cuda_program *p, uint64_t *out_planner_bytes, mgl_error *err);
mgl_status mgl_cuda_feed_create(mgl_cuda_program *p, mgl_error *err);
void mgl_cuda_feed_destroy(mgl_cuda_program *p);

// Before a launch: makes the feed anew, sends what is left of the launch before, and gives the
// image its pointers.
mgl_status mgl_cuda_feed_begin(mgl_cuda_program *p, const mgl_cuda_generate *job, mgl_error *err);

// Of a rank other than 0: hands on the commands that rank 0 has sent since the last time.
void mgl_cuda_feed_follow(mgl_cuda_program *p);

// Puts a checked request into a free slot. There is one, and room for what it asks for.
void mgl_cuda_feed_submit(mgl_cuda_program *p, uint32_t slot, const mgl_cuda_request *r);
// UINT32_MAX: none can be had now.
uint32_t mgl_cuda_feed_free_slot(mgl_cuda_program *p);
// Requests in slots that have not ended.
uint32_t mgl_cuda_feed_busy(const mgl_cuda_program *p);
void mgl_cuda_feed_set_end(mgl_cuda_program *p, mgl_feed_end end);

// Reports what has arrived since the last look; returns whether anything has.
bool mgl_cuda_feed_report(mgl_cuda_program *p, const mgl_cuda_generate *job);

// Memory for edits, log probabilities and masks (cuda_sampling.c).
mgl_status mgl_cuda_sampling_reserve(mgl_cuda_program *p, uint32_t most_edits,
                                     uint32_t most_logprobs, bool has_masks, mgl_error *err);
// Writes a slot's mask where the device reads it; returns its address there, NULL without a mask.
const uint64_t *mgl_cuda_sampling_mask(mgl_cuda_program *p, uint32_t slot,
                                       const mgl_cuda_mask *mask);
void mgl_cuda_sampling_release(mgl_cuda_program *p);
// Of several ranks, rank 0: the slot's mask and edits, for the others.
void mgl_cuda_sampling_log(const mgl_cuda_program *p, const mgl_feed_command *command, bool masked);
// The others: that in this rank's memory. Of a command of SUBMIT the sequence gets its addresses
// here.
void mgl_cuda_sampling_adopt(mgl_cuda_program *p, const mgl_feed_command *command,
                             mgl_cuda_sequence *sequence);

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
