// Tiles: which part of an op a task computes, and which parts of tensors that reads and writes.
//
// A task computes *tile units* [begin, end) of its op. Tile units are fixed when a task graph is
// compiled for T tokens; they cut columns (output features, heads), never the tokens that an
// iteration brings or not:
//   linear, qkv_proj, linear_add, gate_up, logits, silu_mul, add   one output column, for all rows
//   rmsnorm, rope, embed, rope_angles, kv_write                    one row (rmsnorm of heads: token
//   * heads + head) attention, attend   kv_head * strides + stride: that KV head, for every
//   strides-th item of the plan's work
//                       list (attend: every strides-th sequence), beginning with `stride`
// A region is a rectangle of a tensor seen as a matrix: dim 0 are the rows, all others flattened
// the columns. A KV tensor is seen as [HKV, 1]. Inputs from the plan and weights are written by no
// task: no regions.
#ifndef MGL_TASK_TILE_H
#define MGL_TASK_TILE_H

#include <stdint.h>

#include "graph/graph.h"

enum { MGL_TILE_MAX_REGIONS = 12 };

typedef struct mgl_region {
  uint32_t tensor;
  uint32_t row_begin, row_end;
  uint32_t column_begin, column_end;
} mgl_region;

// What a tile reads and writes; in place counts as both. Storage that an in-place op takes over is
// still two tensors here.
typedef struct mgl_tile_access {
  uint32_t read_count, write_count;
  mgl_region reads[MGL_TILE_MAX_REGIONS];
  mgl_region writes[MGL_TILE_MAX_REGIONS];
} mgl_tile_access;

// Number of tile units of an op in a graph for `tokens` tokens (T = L = R = tokens), with `strides`
// tasks per KV head in attention ops (at least 1; ignored by the others).
uint32_t mgl_tile_units(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                        uint32_t strides);

// Units that should stay together: a multiple of 16 columns for linears, so that no two tasks write
// one cache line and every kernel's row block is whole; 1 elsewhere.
uint32_t mgl_tile_grain(const mgl_op *op);

void mgl_tile_regions(const mgl_graph *graph, const mgl_op *op, uint32_t tokens, uint32_t strides,
                      uint32_t begin, uint32_t end, mgl_tile_access *out);

// Bytes that a task moves from memory: its share of weights, and what it reads and writes of
// activations.
uint64_t mgl_tile_cost(const mgl_graph *graph, const mgl_op *op, uint32_t tokens, uint32_t strides,
                       uint32_t begin, uint32_t end);

#endif
