// Weights of a tensor program in memory: where the CPU kernels read them.
//
// Matrices are used in place in the mapped file, or copied once into huge pages; those of codes,
// and plain ones whose rows lie in another order in the file, are always made there. Vectors (norms
// and biases) become f32 arrays. Dummy weights are drawn into huge pages.
//
// A file lies in the page cache in pieces, at whose ends a processor's prefetchers stop, so that
// weights in place are read up to a third slower than copied ones (docs/log/277, 288). So
// MGL_WEIGHTS_AUTO copies what every token reads, where memory allows, and leaves experts, of which
// a token reads few, in their files.
#ifndef MGL_DEVICE_CPU_CPU_WEIGHTS_H
#define MGL_DEVICE_CPU_CPU_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/build.h"
#include "device/cpu/team.h"
#include "graph/graph.h"
#include "model/safetensors.h"

typedef struct mgl_cpu_weights {
  const mgl_graph *graph;  // the program that they were bound for; borrowed
  // [tensor_count]: matrices in their dtype, vectors as f32; of experts a table [E] of where each
  // one's matrix is, as a file has them anywhere; NULL: not a weight
  const void **data;
  const void **experts;  // these tables, one after the other
  uint64_t step_bytes;   // read by one decode step of one sequence: every matrix once, embeddings
                         // only as output projection, of experts those that a token has
  void *pages;           // copied, made or drawn matrices
  size_t pages_bytes;
  float *vectors;  // all vectors, one after the other
  // [tensor_count] short rows beside plain ones (cpu_shorts.h), NULL of what has none; NULL: all of
  // them
  const void **shorts;
  void *short_pages;
  size_t short_bytes;
} mgl_cpu_weights;

// Checks every weight's shape against the checkpoint and binds it. The graph must outlive *out, and
// the checkpoint too unless the source is MGL_WEIGHTS_COPIED. seed is for dummy weights. Other
// programs of the same model find these weights by name (cpu_memory.h).
mgl_status mgl_cpu_weights_bind(const mgl_graph *graph, const mgl_checkpoint *checkpoint,
                                mgl_weight_source source, uint64_t seed, mgl_team *team,
                                const mgl_topology *topology, const mgl_weights_progress *progress,
                                mgl_cpu_weights *out, mgl_error *err);
// The same for a rank of several: of weights that are cut, only its part is read and bound.
mgl_status mgl_cpu_weights_bind_rank(const mgl_graph *graph, const mgl_checkpoint *checkpoint,
                                     mgl_weight_source source, uint64_t seed, mgl_team *team,
                                     const mgl_topology *topology, uint32_t rank,
                                     const mgl_weights_progress *progress, mgl_cpu_weights *out,
                                     mgl_error *err);
typedef struct mgl_cpu_weight_sizes {
  size_t matrix_bytes;  // of all matrices, each padded to whole pages
  size_t made_bytes;    // of those among them that are made, and never used in place
  size_t expert_bytes;  // of experts that are not made
  size_t vector_bytes;  // as f32
} mgl_cpu_weight_sizes;

// Measures what binding takes: vectors and what is made always, other matrices unless they are
// used in place.
mgl_cpu_weight_sizes mgl_cpu_weights_measure(const mgl_graph *graph);
// Bytes of the matrices that are not used in place.
size_t mgl_cpu_weights_page_bytes(const mgl_cpu_weight_sizes *sizes, mgl_weight_source source);

// The source itself; of MGL_WEIGHTS_AUTO MGL_WEIGHTS_MAPPED, if copies would take more than half of
// the memory that is free.
mgl_weight_source mgl_cpu_weights_settle(const mgl_graph *graph, mgl_weight_source source,
                                         uint64_t free_bytes);

// Bytes of weights that one decode step of one sequence reads.
uint64_t mgl_cpu_weights_step_bytes(const mgl_graph *graph);

// Bytes of all experts that data choose among.
uint64_t mgl_cpu_weights_expert_bytes(const mgl_graph *graph);

// Of those that are used where they lie in their files: all but as many as one token has.
uint64_t mgl_cpu_weights_cold_bytes(const mgl_graph *graph, mgl_weight_source source);

void mgl_cpu_weights_release(mgl_cpu_weights *weights);

#endif
