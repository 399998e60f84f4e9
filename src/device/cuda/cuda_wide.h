// The wide class on the host: schedules of stages (lower/stages.c) bound to memory. Pure: addresses
// in, bytes out; launches are in cuda_wide_launch.c.
//
// There is a graph for every multiple of 256 tokens (of some programs for every power of two), and
// with wgmma one for 64, one for 128 and, where that is worth it, one for 192, which have smaller
// tiles; all share one block of activations.
#ifndef MGL_DEVICE_CUDA_CUDA_WIDE_H
#define MGL_DEVICE_CUDA_CUDA_WIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "batch/plan.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_layout.h"
#include "device/cuda/cuda_ranks.h"
#include "graph/graph.h"
#include "lower/choose.h"
#include "twin/wide_chain.h"
#include "twin/wide_run.h"

enum {
  MGL_CUDA_WIDE_GRAPHS = 11,  // at most
};

typedef struct mgl_cuda_wide_sizes {
  uint32_t tokens;              // most of an iteration: 1 to MGL_MAX_ITERATION_TOKENS
  uint32_t sequences;           // of an iteration, 1 to MGL_MAX_SEQUENCES
  uint32_t logit_rows;          // of an iteration, 1 to MGL_MAX_SEQUENCES
  uint32_t pages_per_sequence;  // of the block tables
  uint32_t workers;             // 1 to MGL_WIDE_MAX_WORKERS
  bool few;                     // there are kernels for smaller tiles than MGL_WIDE_MOST_TILE
  uint32_t ranks;               // that run the model together; 0 or 1: this one alone
} mgl_cuda_wide_sizes;

typedef struct mgl_cuda_wide_graph {
  uint32_t tokens;
  uint32_t tile_tokens;  // of its linears
  uint32_t op_count, step_count, stage_count;
  uint64_t ops, steps, step_start;  // offsets
} mgl_cuda_wide_graph;

// Offsets in one block of memory.
typedef struct mgl_cuda_wide_layout {
  mgl_cuda_wide_sizes sizes;
  uint64_t bytes;  // of the block
  mgl_cuda_wide_graph graphs[MGL_CUDA_WIDE_GRAPHS];
  uint32_t graph_count;
  // Activations, of the largest graph.
  uint64_t residual, squares, x, qkv, q, attended, gated, gathered, logits, angles, parts;
  uint64_t part_bytes;  // of parts
  // Of experts (twin/wide_experts.h), of the largest graph: the router's logits, x sorted by
  // expert, what experts_down makes of each sorted row, and the lists.
  uint64_t router, sorted, slot_sums, routes, counts, places, tiles, tile_count, slot_rows;
  uint64_t inbox, inbox_bytes;  // of several ranks: the first of two, which have so many bytes each
  uint64_t widened, widened_bytes;  // weights that are made of codes
  uint32_t shared_tiles;            // of several tasks, most of a graph
  // Attention has these; between launches stream_partials are all ones, merges 0.
  uint64_t stream_partials, stream_partial_bytes, tile_partials, merges, merge_bytes;
  // A launch uploads an image (run, plan, work, tables), and begins with zeros in `zeros`.
  uint64_t image, image_bytes;
  uint64_t plan, work, tables;  // offsets in the image; the run is at its begin
  // Counters of events, the largest of each logit row, splits that have arrived, and when each
  // stage began.
  uint64_t zeros, zero_bytes;
  uint64_t best, arrived, stage_ns;  // offsets in the block
  // Of several ranks: counters of events lie here instead, twice, so many bytes apart; behind those
  // of `stages` events those of shared tiles.
  uint64_t counters, counters_bytes;
  uint32_t stages;
} mgl_cuda_wide_layout;

// `program` is fused for the GPU.
mgl_status mgl_cuda_wide_lay_out(const mgl_graph *program, const mgl_cuda_model *model,
                                 const mgl_cuda_wide_sizes *sizes, mgl_cuda_wide_layout *out,
                                 mgl_error *err);

// The graph for so many tokens, at most as many as the layout's sizes say.
uint32_t mgl_cuda_wide_graph_for(const mgl_cuda_wide_layout *wide, uint32_t tokens);

// A program in device memory, for its wide graphs.
typedef struct mgl_cuda_wide_addresses {
  const mgl_graph *program;
  const mgl_cuda_model *model;
  const mgl_cuda_layout *layout;
  const mgl_cuda_wide_layout *wide;
  const mgl_cu_ptr *base;       // [MGL_CUDA_MEMORY_COUNT] of `layout`
  mgl_cu_ptr block;             // of `wide`
  const mgl_cuda_peers *peers;  // of several ranks, which all have `block` in what they map; else
                                // NULL
} mgl_cuda_wide_addresses;

// A graph as the device has it, in memory of the caller.
typedef struct mgl_cuda_wide_lists {
  mgl_wide_op *ops;      // [op_count]
  mgl_cuda_step *steps;  // [step_count]
  uint32_t *step_start;  // [MGL_WIDE_LISTS_OF(workers) + 1]
  uint64_t *hash;        // of its schedule (lower/schedule.h); NULL: not wanted
  bool *cut;             // an op of the range lacks what one before the range does of it; NULL
} mgl_cuda_wide_lists;

// Ops of the program that are computed; steps of others are left out, and nobody waits for them.
typedef struct mgl_cuda_wide_range {
  uint32_t first, last;
} mgl_cuda_wide_range;

mgl_status mgl_cuda_wide_make_graph(const mgl_cuda_wide_addresses *a, uint32_t graph,
                                    mgl_cuda_wide_range range, const mgl_cuda_wide_lists *out,
                                    mgl_error *err);

// Where an iteration has an activation, and in which form.
typedef struct mgl_cuda_wide_value {
  enum {
    MGL_CUDA_WIDE_PLAIN,     // f32 rows
    MGL_CUDA_WIDE_X,         // bf16, and
    MGL_CUDA_WIDE_QKV,       // f16 and behind `halves` columns bf16, and
    MGL_CUDA_WIDE_RESIDUAL,  // f32, as twin/wide_layout.h says
  } form;
  uint64_t at, bytes;  // in the block
  uint32_t rows, columns, halves;
} mgl_cuda_wide_value;

// Of an iteration of `tokens` tokens. False: there is no such activation.
bool mgl_cuda_wide_find(const mgl_graph *program, const mgl_cuda_wide_layout *wide, uint32_t tokens,
                        const char *name, mgl_cuda_wide_value *out);
// The first `count` elements of what lies in its bytes, as f32; and rounded into them.
void mgl_cuda_wide_unpack(const mgl_cuda_wide_value *value, const unsigned char *bytes,
                          size_t count, float *out);
void mgl_cuda_wide_pack(const mgl_cuda_wide_value *value, const float *from, size_t count,
                        unsigned char *bytes);

// The run of a launch of so many tokens, at the begin of the image.
void mgl_cuda_wide_set_run(const mgl_cuda_wide_addresses *a, uint32_t tokens,
                           const int32_t *block_tables, unsigned char *image);

// Makes what turns between iterations get.
mgl_wide_chain mgl_cuda_wide_make_chain(const mgl_cuda_wide_addresses *a);

// The image of a launch: `image` has image_bytes. Errors: more than the sizes, pages or vocabulary
// allow.
mgl_status mgl_cuda_wide_make_image(const mgl_cuda_wide_addresses *a, const mgl_plan *plan,
                                    uint32_t page_count, unsigned char *image, mgl_error *err);

#endif
