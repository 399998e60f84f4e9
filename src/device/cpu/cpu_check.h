// Looks for numbers that are none: after an op, at all that it computed for the present plan.
#ifndef MGL_DEVICE_CPU_CPU_CHECK_H
#define MGL_DEVICE_CPU_CPU_CHECK_H

#include "base/status.h"
#include "device/cpu/cpu_program.h"

// MGL_ERR_FORMAT names the op, its output, and the first element that is infinite or no number.
// What goes into the KV cache was the output of ops before. Between runs of the team.
mgl_status mgl_cpu_check_op(const mgl_cpu_program *program, size_t op_idx, mgl_error *err);

// Of `count` elements of what `op` of a program computed; the GPU's copies are checked by it too.
mgl_status mgl_check_numbers(const mgl_graph *program, const mgl_op *op, const void *values,
                             uint64_t count, mgl_error *err);

#endif
