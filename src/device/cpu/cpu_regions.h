// What tiles of experts really write, checked while they run.
//
// Which part of its result such a tile computes, data may say (graph/balance.h). The compiler and
// the verifier prove orders for the union, which task/tile.h declares; that no two tasks of an op
// write the same element, that none is left out, and that the union holds what is written, they
// cannot see. Here every result of an op of experts has a word for each grain of each row: the
// iteration that wrote it last. A task claims what it writes, and a task that reads the result
// looks at all of it. Debug and sanitized builds check always (MGL_CHECK_REGIONS), others where an
// option asks for it.
#ifndef MGL_DEVICE_CPU_CPU_REGIONS_H
#define MGL_DEVICE_CPU_CPU_REGIONS_H

#include "device/cpu/cpu_program.h"
#include "graph/balance.h"

// For results of up to so many tokens. *out is NULL where the program has no ops of experts.
mgl_status mgl_cpu_regions_create(const mgl_graph *graph, uint32_t tokens, mgl_cpu_regions **out,
                                  mgl_error *err);
void mgl_cpu_regions_destroy(mgl_cpu_regions *regions);  // NULL is fine

// The task of tile units [begin, end) writes these columns of a row of the op's result, in the
// program's present iteration: inside of what the tile declares, and nobody else has. Any worker.
mgl_status mgl_cpu_regions_check_write(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin,
                                       uint32_t end, uint32_t row, mgl_expert_share columns,
                                       mgl_error *err);
// All of a tensor that an op of experts makes is written in the present iteration. Others are not
// looked at.
mgl_status mgl_cpu_regions_check_read(const mgl_cpu_program *p, uint32_t tensor, mgl_error *err);

// The same for workers, who have nobody to tell: a failure is a programmer's error and ends the
// process with the message. Without a check (p->regions NULL) they do nothing.
void mgl_cpu_regions_write(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin, uint32_t end,
                           uint32_t row, mgl_expert_share columns);
void mgl_cpu_regions_read(const mgl_cpu_program *p, uint32_t tensor);

#endif
