// Random tensor programs over all op kinds, canonical and fused: forks, joins, in-place ops, KV
// tensors shared by several writers, results that nothing reads (marked as outputs).
#ifndef MGL_TESTS_SUPPORT_RANDOM_PROGRAM_H
#define MGL_TESTS_SUPPORT_RANDOM_PROGRAM_H

#include <stdint.h>

#include "graph/graph.h"

typedef struct random_source {
  uint64_t state;
} random_source;

uint32_t random_below(random_source *source, uint32_t limit);

// A finished program of about op_count ops; the same seed gives the same one. Failures abort.
// Destroy with mgl_graph_destroy.
mgl_graph *random_program(uint64_t seed, uint32_t op_count);
// The same with next_plan and one or two sample ops, which the CPU does not run.
mgl_graph *random_cuda_program(uint64_t seed, uint32_t op_count);
// The program of each of several CPU ranks, with exchanges between them.
mgl_graph *random_rank_program(uint64_t seed, uint32_t op_count, uint32_t ranks);

#endif
