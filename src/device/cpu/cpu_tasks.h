// Tasks on the CPU: one tile of any op, canonical or fused, under the present plan.
//
// A tile computes the same bits as mode eager computes for the canonical ops behind it: fused ops
// run the kernels of those ops one after the other, on a part small enough that what lies between
// them stays in the worker's scratch.
#ifndef MGL_DEVICE_CPU_CPU_TASKS_H
#define MGL_DEVICE_CPU_CPU_TASKS_H

#include <stddef.h>
#include <stdint.h>

#include "device/cpu/cpu_program.h"
#include "graph/graph.h"

// Runs tile units [begin, end) (task/tile.h) of op `op` as worker `worker`. Rows that the plan does
// not bring are left out; strides of attention ops are those of program->strides. Any worker may
// call it, at the same time as others for other tiles; everything that the tile reads must be
// complete.
void mgl_cpu_task_run(const mgl_cpu_program *program, uint32_t worker, uint32_t op, uint32_t begin,
                      uint32_t end);

// A worker's scratch (cpu_scratch.h), and the work part of it.
unsigned char *mgl_cpu_scratch_of(const mgl_cpu_program *program, uint32_t worker);
void *mgl_cpu_work_scratch(const mgl_cpu_program *program, uint32_t worker);

#endif
