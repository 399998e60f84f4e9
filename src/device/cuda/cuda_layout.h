// This plans where everything lies in the GPU's memory, before anything is allocated.
//
// There is one allocation of each kind of memory, and offsets in them. All is decided here from the
// fused program, its task graphs and the sizes that the caller wants, so that a program that does
// not fit is refused with the bytes of every part and nothing to undo. Pure: no driver is called.
#ifndef MGL_DEVICE_CUDA_CUDA_LAYOUT_H
#define MGL_DEVICE_CUDA_CUDA_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/cuda/cuda_jit.h"
#include "graph/graph.h"
#include "lower/packed.h"
#include "twin/device_run.h"
#include "twin/task.h"

typedef enum mgl_cuda_memory_kind {
  MGL_CUDA_MEMORY_WEIGHTS,      // packed matrices
  MGL_CUDA_MEMORY_TABLE,        // the embedding table, row by row
  MGL_CUDA_MEMORY_VECTORS,      // norms, biases and rotary frequencies, f32
  MGL_CUDA_MEMORY_KV,           // K and V pages of all layers
  MGL_CUDA_MEMORY_ACTIVATIONS,  // one block, as large as the largest task graph needs
  MGL_CUDA_MEMORY_CARRIED,      // of carrying graphs: every activation of each, twice
  MGL_CUDA_MEMORY_DESCRIPTORS,  // tasks, events, lists, steps and bound ops of all task graphs
  MGL_CUDA_MEMORY_STATE,        // of a launch: mgl_cuda_run and what it points to
  MGL_CUDA_MEMORY_PLANNER,      // mgl_planner, which outlives launches
  MGL_CUDA_MEMORY_TOKENS,       // of all slots
  MGL_CUDA_MEMORY_PARTIALS,     // of attention
  MGL_CUDA_MEMORY_INBOX,        // of several ranks: partial sums of linear_add
  MGL_CUDA_MEMORY_WIDE,         // all of the wide class (cuda_wide.h)
  MGL_CUDA_MEMORY_TRACE,
  MGL_CUDA_MEMORY_STAGING,  // through which weights are packed; freed once they are
  MGL_CUDA_MEMORY_COUNT,
} mgl_cuda_memory_kind;

const char *mgl_cuda_memory_name(mgl_cuda_memory_kind kind);

enum {
  MGL_CUDA_ALIGNMENT = 256,           // of every part
  MGL_CUDA_STAGING_BYTES = 64 << 20,  // at least a row block of the widest matrix
};

// Takes so many of the bytes of a block, and returns where they lie.
static inline uint64_t mgl_cuda_take(uint64_t *bytes, uint64_t more) {
  uint64_t at = *bytes;
  *bytes += (more + MGL_CUDA_ALIGNMENT - 1) / MGL_CUDA_ALIGNMENT * MGL_CUDA_ALIGNMENT;
  return at;
}

#define MGL_CUDA_NOWHERE UINT64_MAX

// The shape of attention and of the output, the same in all layers.
typedef struct mgl_cuda_model {
  uint32_t head_dim;  // HD
  uint32_t kv_heads;  // HKV
  uint32_t group;     // query heads of a KV head
  uint32_t vocab;     // V
  mgl_cuda_experts experts;
  mgl_cuda_extras extras;
} mgl_cuda_model;

// Whether an op writes logits: of one rank, or those of all.
bool mgl_cuda_makes_logits(const mgl_op *op);

// How many of the ops [0, end) are custom ones.
uint32_t mgl_cuda_customs_before(const mgl_graph *program, size_t end);

// Reads the model off a program that mgl_fuse_ops_cuda made, which has checked all but that layers
// are alike.
mgl_status mgl_cuda_model_of(const mgl_graph *program, mgl_cuda_model *out, mgl_error *err);

// What attention may cut the query heads of a KV head into: where groups are large, and so KV heads
// few. (Dense models of such groups keep theirs whole: they were not measured.)
static inline uint32_t mgl_cuda_head_parts(const mgl_cuda_model *model) {
  const bool cuts = model->experts.count != 0 && model->group == MGL_CUDA_QUERY_COLUMNS;
  return cuts ? MGL_CUDA_HEAD_PARTS : 1;
}

// A program is laid out for these sizes.
typedef struct mgl_cuda_sizes {
  const mgl_task_graph *const *graphs;
  uint32_t graph_count;
  uint32_t workers;
  uint32_t schedulers;
  uint32_t iteration_tokens;
  uint32_t sequences;           // of a plan that the host made, at most
  uint32_t slots;               // of the planner: requests at once, running or waiting
  uint64_t planner_bytes;       // mgl_planner_size
  uint32_t pages_per_sequence;  // of the block tables
  uint32_t page_count;          // KV pages; one more is made, for entries that nobody uses
  uint32_t trace_spans;         // of each worker and role, a power of two; 0: no trace
  bool keep_activations;        // every activation has storage of its own
  bool events_only;             // no graph is a carrying one
  bool staging;                 // some weights come from the host
  uint32_t ranks;               // that run the model together; 0 or 1: this one alone
} mgl_cuda_sizes;

// Offsets in MGL_CUDA_MEMORY_DESCRIPTORS.
typedef struct mgl_cuda_graph_layout {
  uint64_t tasks, events, aot_start, aot_tasks, jit_tasks, jit_below, steps, step_start, ops;
  uint64_t customs;  // mgl_custom_launch of each custom op
} mgl_cuda_graph_layout;

// Offsets in MGL_CUDA_MEMORY_STATE. What every launch uploads comes first; plans[1] ends it, of
// which only the head is.
typedef struct mgl_cuda_state_layout {
  uint64_t run, rank_words, workers, scheduler_queues, slots, counters, block_tables, merges, plans;
  uint64_t image_bytes;                                  // that a launch uploads
  uint64_t iteration_ns;                                 // [iteration_capacity]
  uint64_t sequences, keys, next_rows, pending, places;  // [slots]
  uint64_t traces;                                       // [workers]
  uint64_t
      trace_marks;  // [workers, MGL_CUDA_TRACE_MARKS] in MGL_CUDA_MEMORY_TRACE, behind the spans
  uint64_t counter_start[MGL_MAX_GRAPHS];
} mgl_cuda_state_layout;

typedef struct mgl_cuda_layout {
  uint64_t bytes[MGL_CUDA_MEMORY_COUNT];
  uint64_t *matrices;  // [op_count] packed weights, or the table of embed; MGL_CUDA_NOWHERE: none
  uint64_t *extras;    // [op_count] biases of qkv_proj, frequencies of rope_angles, in VECTORS
  uint64_t *vectors;   // [tensor_count] in VECTORS
  uint64_t *kv;        // [tensor_count] K of the layer; V lies kv_half_bytes behind it
  uint64_t kv_half_bytes;
  uint64_t *activations[MGL_MAX_GRAPHS];  // [tensor_count] of each graph, in its kind of memory
  uint64_t copy_bytes[MGL_MAX_GRAPHS];  // from a first copy to the second; 0: not a carrying graph
  mgl_cuda_graph_layout graphs[MGL_MAX_GRAPHS];
  mgl_cuda_state_layout state;
  uint32_t tokens_per_sequence;  // most tokens of one
  uint32_t iteration_capacity;   // iterations whose times are kept
  uint64_t step_bytes;           // weights that an iteration reads, of one pass
  uint32_t inbox_stride;         // words of a rank in an inbox; 0: no linear_add is over ranks
  uint32_t exchanges;            // linear_adds over ranks
  uint32_t stage_pages;          // of a worker in a linear other than logits, on average
} mgl_cuda_layout;

mgl_status mgl_cuda_layout_make(const mgl_graph *program, const mgl_cuda_model *model,
                                const mgl_cuda_sizes *sizes, mgl_cuda_layout *out, mgl_error *err);
void mgl_cuda_layout_free(mgl_cuda_layout *layout);  // of a zeroed one is fine

// Whether other ranks read or write memory of that kind: it lies in one block (cuda_ranks.h).
static inline bool mgl_cuda_memory_is_shared(mgl_cuda_memory_kind kind) {
  return kind == MGL_CUDA_MEMORY_ACTIVATIONS || kind == MGL_CUDA_MEMORY_CARRIED ||
         kind == MGL_CUDA_MEMORY_STATE || kind == MGL_CUDA_MEMORY_INBOX ||
         kind == MGL_CUDA_MEMORY_WIDE;
}

// Which of the linear_adds over ranks an op is, from 1 on; 0: it is none.
uint64_t mgl_cuda_exchange_of(const mgl_graph *program, uint32_t op);

// Returns the kind of memory in which a graph's activations are.
static inline mgl_cuda_memory_kind mgl_cuda_activation_memory(const mgl_cuda_layout *layout,
                                                              uint32_t graph) {
  return layout->copy_bytes[graph] != 0 ? MGL_CUDA_MEMORY_CARRIED : MGL_CUDA_MEMORY_ACTIVATIONS;
}

// MGL_ERR_MEMORY with the bytes of every part if they are more than `free_bytes`.
mgl_status mgl_cuda_layout_check(const mgl_cuda_layout *layout, uint64_t free_bytes,
                                 mgl_error *err);

// A task graph as the protocol sees it, with the host's pointers and without counters.
mgl_graph_view mgl_cuda_graph_view(const mgl_task_graph *graph);

#endif
