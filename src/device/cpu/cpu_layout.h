// This decides where activations lie in their block, and which ops must wait for a barrier.
#ifndef MGL_DEVICE_CPU_CPU_LAYOUT_H
#define MGL_DEVICE_CPU_CPU_LAYOUT_H

#include <stddef.h>

#include "base/status.h"
#include "graph/graph.h"

// A range of the activation block.
typedef struct mgl_byte_range {
  size_t begin, end;
} mgl_byte_range;

// Gives every activation a range, so that ranges of tensors that live at the same time are
// disjoint. An in-place op's output takes its input's range. `values` are the largest dims.
// *out_bytes: the block.
mgl_status mgl_cpu_layout(const mgl_graph *graph, const mgl_dim_values *values,
                          mgl_byte_range *ranges, size_t *out_bytes, mgl_error *err);

// The same where ops of one piece run in any order: step[op], ascending, is the number of its piece,
// and tensors that live during the same piece do not share.
mgl_status mgl_cpu_layout_pieces(const mgl_graph *graph, const mgl_dim_values *values,
                                 const uint32_t *step, mgl_byte_range *ranges, size_t *out_bytes,
                                 mgl_error *err);

// barrier[op] = 1 where op reads what an op since the last barrier wrote, or writes what such an op
// read or wrote, by storage and not by name.
mgl_status mgl_cpu_find_barriers(const mgl_graph *graph, const mgl_byte_range *ranges,
                                 unsigned char *barrier, mgl_error *err);

#endif
