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
#ifndef MGL_COMPILE_SHARD_H
#define MGL_COMPILE_SHARD_H

#include "base/status.h"
#include "graph/graph.h"

// Cuts a canonical program (before op fusion) for `ranks` ranks, 2 to MGL_MAX_RANKS. Refuses with
// MGL_ERR_UNSUPPORTED, and the name of the tensor, what cannot be divided (columns with groups of a
// scale each, too), and norms over all heads together.
mgl_status mgl_shard_program(const mgl_graph *program, uint32_t ranks, mgl_graph **out,
                             mgl_error *err);

#endif
