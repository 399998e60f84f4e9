// Tensor parallelism: from a model's program to the program of each of several ranks.
//
// All ranks run the same program and differ only in which part of a weight they have
// (mgl_weight_slice), so one task graph serves them all. Cut are
//   by rows      Q, K and V (by heads), gate and up, the output projection, and their biases
//   by columns   what multiplies those: the projections behind attention and the inner features;
//                of experts likewise, of each of them; and sinks by heads
// and with them heads, KV caches and inner features. What a linear by columns makes is a part of a
// sum, to which rank 0 adds the bias, and the add behind it becomes an all_reduce; the logits of a
// rank's rows of the vocabulary become all of them by an all_gather. The rest every rank computes
// for itself. Where there are fewer KV heads than ranks, neighbouring ranks have the same KV head.
//
// Two things may be cut otherwise, with the same bits:
//   vocab_parallel   the embedding's table, by rows: each rank has the rows of its tokens, and
//                    zeros for others, which reduce_scatter and all_gather add up. A table that is
//                    the output projection's matrix, too, is there once.
//   reduce_scatter   a sum over the ranks: each rank adds up its columns, and an all_gather hands
//                    them to all. A rank reads twice a row's width where an all_reduce reads it
//                    once for every rank, and waits twice.
#ifndef MGL_COMPILE_SHARD_H
#define MGL_COMPILE_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/graph.h"

// Cuts a canonical program (before op fusion) for `ranks` ranks, 2 to MGL_MAX_RANKS. Refuses with
// MGL_ERR_UNSUPPORTED, and the name of the tensor, what cannot be divided (columns with groups of a
// scale each, too), and norms over all heads together.
typedef struct mgl_shard_options {
  uint32_t ranks;
  bool vocab_parallel, reduce_scatter;
} mgl_shard_options;

mgl_status mgl_shard_program_by(const mgl_graph *program, const mgl_shard_options *options,
                                mgl_graph **out, mgl_error *err);
mgl_status mgl_shard_program(const mgl_graph *program, uint32_t ranks, mgl_graph **out,
                             mgl_error *err);

#endif
