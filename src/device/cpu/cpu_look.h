// Reading and writing a CPU program's activations and KV cache by name, as f32 whatever is stored:
// how a test of single ops gives them their inputs and sees what they made. Between iterations.
#ifndef MGL_DEVICE_CPU_CPU_LOOK_H
#define MGL_DEVICE_CPU_CPU_LOOK_H

#include "device/cpu/cpu_program.h"

// The first `count` elements of an activation. MGL_ERR_ARGUMENT: there is none of that name, or it
// has fewer under the largest plan.
mgl_status mgl_cpu_write_activation(mgl_cpu_program *program, const char *name, const float *values,
                                    size_t count, mgl_error *err);
mgl_status mgl_cpu_read_activation(const mgl_cpu_program *program, const char *name, float *out,
                                   size_t count, mgl_error *err);
// What another rank has there, between runs.
mgl_status mgl_cpu_read_rank(const mgl_cpu_program *program, uint32_t rank, const char *name,
                             float *out, size_t count, mgl_error *err);

// A page of a layer's KV cache. k, v: [HKV, P, HD].
mgl_status mgl_cpu_write_kv(mgl_cpu_program *program, const char *name, uint32_t page,
                            const float *k, const float *v, mgl_error *err);
mgl_status mgl_cpu_read_kv(const mgl_cpu_program *program, const char *name, uint32_t page,
                           float *k, float *v, mgl_error *err);

#endif
