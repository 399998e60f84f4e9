// A worker's scratch on the CPU: what lies where, and how much of it a program needs.
//
// Three parts. The *stage* holds normed rows of a block of tokens, for qkv_proj, gate_up or logits,
// under a key that says whose they are. *packed* holds rows as a linear reads them
// (mgl_linear_args.packed): those of the stage, or of any other linear's x. *work* is free between
// tasks. Sizes are for a block of tokens and not for an iteration, so that they do not grow with
// it.
#ifndef MGL_DEVICE_CPU_CPU_SCRATCH_H
#define MGL_DEVICE_CPU_CPU_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"

enum {
  // Rows that a linear computes in one pass over its weights. A pass costs a byte of weights for so
  // many products, 2 GB/s where a core does 450 GFLOP/s.
  MGL_CPU_BLOCK_TOKENS = 256,
};

typedef struct mgl_cpu_scratch_layout {
  size_t stage_key;  // offsets, multiples of 64
  size_t stage;
  size_t packed;
  size_t work;
  size_t bytes;
} mgl_cpu_scratch_layout;

// For the largest op of a program, for plans up to these dims.
mgl_cpu_scratch_layout mgl_cpu_scratch_lay_out(const mgl_graph *graph,
                                               const mgl_dim_values *largest);

// Columns of gate, and of up, that lie in the work part at a time when a block has `tokens` tokens.
uint32_t mgl_cpu_gate_up_columns(uint32_t tokens);

// Heads of an attention or attend op.
typedef struct mgl_cpu_heads {
  uint32_t head_count, kv_head_count, head_dim, group;
} mgl_cpu_heads;

mgl_cpu_heads mgl_cpu_heads_of(const mgl_graph *graph, const mgl_op *op);

// Work part of up to MGL_ATTENTION_QUERY_TILE tokens of one KV head of an attend op: offsets in
// bytes.
typedef struct mgl_cpu_attend_layout {
  size_t q;  // f32 [tokens, group, HD], normed and rotated
  size_t k;  // f32 [tokens, HD]
  size_t attention;
  size_t bytes;
} mgl_cpu_attend_layout;

mgl_cpu_attend_layout mgl_cpu_lay_out_attend(const mgl_cpu_heads *heads);

// Work part of an op of experts, for iterations of `tokens` tokens: offsets in bytes.
typedef struct mgl_cpu_expert_layout {
  size_t first;   // u32 [E + 1]: where the rows of each expert begin in `rows`
  size_t rows;    // u32 [T * S]: token * S + slot, by expert
  size_t gather;  // rows of x of one expert
  size_t sums;    // f32: of gate and of up, or of down
  size_t bytes;
} mgl_cpu_expert_layout;

mgl_cpu_expert_layout mgl_cpu_lay_out_experts(const mgl_graph *graph, const mgl_op *op,
                                              uint32_t tokens);

#endif
