// Plain kernels in CUDA graphs: the whole program in one, or a graph for each piece between
// splitting ops (compile/split.h), which are launched by themselves.
//
// Graphs are captured by size: an iteration is padded to the next one (13 tokens run as 16) with
// rows that compute into a KV page of nobody; above the largest size kernels are launched one by
// one. An iteration in which every sequence has one token has the key (sequences, 1), and as many
// rows of logits as sequences; of all others tokens and rows of logits are padded each. What was
// asked for is captured when it is made, largest first behind a warm-up; other sizes, and other
// rows of logits, at their first use. Kernels read all that changes from fixed places, so a graph
// serves every plan of its size.
#ifndef MGL_DEVICE_CUDA_CUDA_PLAIN_GRAPHS_H
#define MGL_DEVICE_CUDA_CUDA_PLAIN_GRAPHS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "batch/plan.h"
#include "device/build.h"
#include "device/compilation.h"
#include "device/cuda/cuda_capture.h"
#include "device/cuda/cuda_plain.h"

enum { MGL_PLAIN_GRAPH_TOKENS = 64 };  // of the largest size, where nobody says

typedef struct mgl_cuda_plain_graphs mgl_cuda_plain_graphs;

// `plain` outlives *out. compilation: NULL, the usual one, which captures nothing beforehand.
// progress: of what is captured; it is called in here only.
mgl_status mgl_cuda_plain_graphs_create(mgl_cuda_plain *plain, const mgl_compilation *compilation,
                                        const mgl_weights_progress *progress,
                                        mgl_cuda_plain_graphs **out, mgl_error *err);
void mgl_cuda_plain_graphs_destroy(mgl_cuda_plain_graphs *graphs);  // NULL is fine

// Runs one iteration as that graph mode says; as mgl_cuda_plain_run.
mgl_status mgl_cuda_plain_graphs_run(mgl_cuda_plain_graphs *graphs, mgl_graph_mode mode,
                                     const mgl_plan *plan, float *logits, mgl_error *err);

mgl_cuda_graph_counts mgl_cuda_plain_graphs_count(const mgl_cuda_plain_graphs *graphs);

#endif
