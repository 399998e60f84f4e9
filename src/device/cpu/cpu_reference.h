// The scalar reference interpreter: a canonical program, op by op, by the scalar kernels, every
// value kept. It knows no fused op, no task and no other storage than a tensor's own, so that what
// the pipeline makes of the same ops can be held against it (engine/op_test.h).
//
// It can also move each result by about one rounding, at random. How far the results of a range
// then go from the unmoved ones is what rounding may do to them, whatever the depth of the range
// and its dtypes: the yardstick for another order of summation. (Monte Carlo arithmetic; rejected:
// constants an op, which are too tight behind many ops or too loose behind one.)
//
// One thread calls it; a team of its own computes.
#ifndef MGL_DEVICE_CPU_CPU_REFERENCE_H
#define MGL_DEVICE_CPU_CPU_REFERENCE_H

#include "device/build.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/team.h"

typedef struct mgl_cpu_reference {
  mgl_topology *topology;
  mgl_team *team;
  mgl_cpu_weights weights;
  mgl_cpu_memory *memory;
  mgl_cpu_program *program;
  float **values;  // [tensor_count] of activations: as stored, widened; else NULL
} mgl_cpu_reference;

// Binds a canonical program for plans within `sizes`. Graph and checkpoint (NULL: the weights of
// the build are dummies) must outlive *out.
mgl_status mgl_cpu_reference_create(const mgl_graph *graph, const mgl_checkpoint *checkpoint,
                                    const mgl_build *build, const mgl_sizes *sizes,
                                    mgl_cpu_reference *out, mgl_error *err);
void mgl_cpu_reference_destroy(mgl_cpu_reference *reference);  // zeros are fine

// Runs the ops i with ops[i], in order, on the kept values of their inputs, and keeps their
// results. seed: of how results are moved; 0: not at all.
mgl_status mgl_cpu_reference_run(mgl_cpu_reference *reference, const mgl_plan *plan,
                                 const bool *ops, uint64_t seed, mgl_error *err);

#endif
