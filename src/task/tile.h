// Tiles: which part of an op a task computes, and which parts of tensors that reads and writes.
//
// A task computes *tile units* [begin, end) of its op, whose row of graph/op.def says which. Tile
// units are fixed when a task graph is compiled for T tokens; they cut columns (output features,
// heads), never the tokens that an iteration brings or not:
//   COLUMN, ELEMENT
//       one output column, for all rows; of all_gather one column of each rank's part
//   ROW, VECTOR
//       one row (a vector of heads: token * heads + head); of sample, one of logits
//   WHOLE
//       all of it: there is one unit
//   HEAD
//       kv_head * strides + stride: that KV head, for every strides-th item of a work list of the
//       plan, beginning with `stride`. What an item is, the target says:
//         CPU   attention: up to 12 consecutive tokens of a sequence; attend: a whole sequence. So
//               there are never more strides than tokens.
//         CUDA  (query tile, chunk of cached positions): a long sequence has many items, so strides
//               are not limited by the tokens, and a unit may write any token's row of its KV
//               head's columns of the result, and read any row of Q, K and V of that head.
//
// A region is a rectangle of a tensor seen as a matrix: dim 0 are the rows, all others flattened
// the columns. A KV tensor is seen as [HKV, 1], since block tables are known only at run time:
// kv_write writes all KV heads of its tokens, attend writes (before it reads) its KV heads' rows of
// its sequences' new tokens. A tile of experts that shares them by data (graph/balance.h) may write
// any part of its result; its region is the union over all routes. Tasks of one op never wait for
// each other: where their regions meet (KV rows, outputs of several strides of one head or of
// shares of experts) what they really touch is disjoint.
// On CUDA that asks of attend's kernel: one unit writes a new token's K and V into the cache, no
// unit reads these slots from the cache in the same iteration (new keys and values come from qkv),
// and a row of the result that several chunks contribute to is written by whoever finishes last.
#ifndef MGL_TASK_TILE_H
#define MGL_TASK_TILE_H

#include <stdint.h>

#include "graph/graph.h"
#include "twin/task.h"

enum {
  MGL_TILE_MAX_REGIONS = 16,  // as many as ranks, at least
  MGL_TILE_MAX_OPERANDS = 20,
  // The cost model's guess where only a plan knows: cached tokens of a sequence.
  MGL_TILE_MODEL_CONTEXT = 1024,
  // next_plan costs this beyond its operands: the bytes that a worker could move meanwhile (some
  // microseconds at an SM's 25 GB/s), so that placement gives its worker less of the weights.
  MGL_TILE_NEXT_PLAN_BYTES = 64 << 10,
};

typedef struct mgl_region {
  uint32_t tensor;
  uint32_t row_begin, row_end;
  uint32_t column_begin, column_end;
} mgl_region;

// An mgl_tile_access is what a tile reads and writes of activations and KV; inputs from the plan
// and weights are written by no task and left out. In place counts as both: the storage that an
// in-place op takes over is read and written as its input tensor, and written as its output.
// Rectangles are not empty.
typedef struct mgl_tile_access {
  uint32_t read_count, write_count;
  mgl_region reads[MGL_TILE_MAX_REGIONS];
  mgl_region writes[MGL_TILE_MAX_REGIONS];
} mgl_tile_access;

// Everything that a tile touches: regions of activations and KV, its share of each weight, and what
// may be read of the plan's inputs. A weight [D] is a matrix of D rows and one column; rows chosen
// by data (embed's table) count as all rows.
typedef struct mgl_tile_operand {
  mgl_region region;
  uint32_t input;  // index in op->inputs; MGL_TILE_OUTPUT for the output
} mgl_tile_operand;

#define MGL_TILE_OUTPUT UINT32_MAX

// Number of tile units of an op in a graph for `tokens` tokens (T = L = R = tokens), with `strides`
// tasks per KV head in attention ops (at least 1; ignored by the others).
uint32_t mgl_tile_units(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                        uint32_t strides);

// Units that stay together: every task begins at a multiple, and ends at one or with the op. Where
// units are columns, 16 on the CPU, so that no two tasks write one cache line of f32 and every
// kernel's row block is whole; for CUDA the columns of a row block of the packed weights: 16, and 8
// of gate_up, whose row blocks hold as many features of gate and of up. 1 elsewhere.
uint32_t mgl_tile_grain(const mgl_op *op, mgl_target target);

bool mgl_tile_is_attention(const mgl_op *op);
// KV heads of an attention op.
uint32_t mgl_tile_kv_heads(const mgl_graph *graph, const mgl_op *op);

void mgl_tile_regions(const mgl_graph *graph, const mgl_op *op, uint32_t tokens, uint32_t strides,
                      uint32_t begin, uint32_t end, mgl_tile_access *out);

// Operands in the order of the op's inputs (several for one input where it is no rectangle), then
// the output's. Returns their number, at most MGL_TILE_MAX_OPERANDS.
uint32_t mgl_tile_operands(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                           uint32_t strides, uint32_t begin, uint32_t end,
                           mgl_tile_operand out[MGL_TILE_MAX_OPERANDS]);

// Bytes that a task moves from memory: its share of weights, what it reads and writes of
// activations, and in attention the KV cache of its heads and sequences, with
// MGL_TILE_MODEL_CONTEXT tokens in each of `tokens` sequences.
uint64_t mgl_tile_cost(const mgl_graph *graph, const mgl_op *op, uint32_t tokens, uint32_t strides,
                       uint32_t begin, uint32_t end);
// The weights' part of it.
uint64_t mgl_tile_weight_bytes(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                               uint32_t strides, uint32_t begin, uint32_t end);

#endif
