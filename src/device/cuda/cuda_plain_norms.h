// Which linears of a program that is not fused read what an RMS norm made, and so compute the norm
// themselves where sums have the order of fused tasks (kernels/cuda/plain/plain_ordered.cuh): a
// linear reads the norm's input then.
#ifndef MGL_DEVICE_CUDA_CUDA_PLAIN_NORMS_H
#define MGL_DEVICE_CUDA_CUDA_PLAIN_NORMS_H

#include <stdint.h>

#include "base/status.h"
#include "graph/graph.h"

#define MGL_CUDA_NO_NORM UINT32_MAX

// *out, which mgl_free frees: [op_count] the norm of each op, or MGL_CUDA_NO_NORM; then [op_count]
// steps as mgl_cpu_layout_pieces takes them, each op its own but for those from a norm to the last
// linear behind it, so that what the norm reads outlives these.
mgl_status mgl_cuda_plain_find_norms(const mgl_graph *program, uint32_t **out, mgl_error *err);

// How many sums fused tasks make of the 128 columns of codes that a warp has in a panel: as many as
// the smallest group of the program needs.
uint32_t mgl_cuda_plain_share_sums(const mgl_graph *program);

#endif
