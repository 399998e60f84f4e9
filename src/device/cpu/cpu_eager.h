// Mode eager on the CPU: the ops in order, each split over all workers, a barrier where one op
// needs what another worker may still be computing.
#ifndef MGL_DEVICE_CPU_CPU_EAGER_H
#define MGL_DEVICE_CPU_CPU_EAGER_H

#include "batch/plan.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/team.h"

// Runs one iteration; returns when its outputs are complete.
void mgl_cpu_eager_run(mgl_cpu_program *program, mgl_team *team, const mgl_plan *plan);

// Only ops [first, last] of one; they find what the ops before them made where it is stored.
void mgl_cpu_eager_run_ops(mgl_cpu_program *program, mgl_team *team, const mgl_plan *plan,
                           size_t first, size_t last);

// All of one, looking at what every op computed before the next one runs (cpu_check.h).
mgl_status mgl_cpu_eager_run_checked(mgl_cpu_program *program, mgl_team *team, const mgl_plan *plan,
                                     mgl_error *err);

#endif
