// Linears on the CPU, canonical and fused: the ops linear, linear_add, qkv_proj, gate_up and
// logits.
//
// A block of tokens at a time goes through all features that the caller asks for, so that a worker
// needs scratch for a block only, however many tokens an iteration has. Fused ops norm the block
// first; the stage of the worker's scratch keeps it, so that all tiles that a worker runs of one
// op, and of other ops that norm the same x, make it once an iteration (if that is a single block).
// With many tokens, x is packed (mgl_linear_args.packed). Results are the same bits in every way.
#ifndef MGL_DEVICE_CPU_CPU_LINEARS_H
#define MGL_DEVICE_CPU_CPU_LINEARS_H

#include <stdbool.h>
#include <stdint.h>

#include "device/cpu/cpu_program.h"
#include "graph/graph.h"

// Output features (columns) [begin, end) for all rows of the present plan, as worker `worker`.
void mgl_cpu_linear_run(const mgl_cpu_program *program, uint32_t op, uint32_t worker,
                        uint32_t begin, uint32_t end);

// Packs rows into the worker's scratch, where they lie until the next call for it. args.out is
// ignored.
const void *mgl_cpu_pack(const mgl_cpu_program *program, uint32_t worker, mgl_pack_args args);

// Features [0, features) of args.w, in calls of a few seconds at most, between which the worker
// tells that it is at work. args.way is ignored; args.next_w is what is read behind them.
void mgl_cpu_multiply(const mgl_cpu_program *program, uint32_t worker, mgl_linear_args args,
                      uint32_t features);

// The weights that such a call reads, in the order in which it reads them for the first block:
// those from byte `from` on, as far as they lie in one piece. Returns their bytes, and where they
// are; 0: there are no more (other ops have none). Reads nothing that a plan changes, so it may be
// called at any time.
size_t mgl_cpu_linear_weights(const mgl_cpu_program *program, uint32_t op, uint32_t begin,
                              uint32_t end, size_t from, const void **out);

#endif
