// Mixtures of experts on the CPU: the ops expert_gate_up and expert_down.
//
// A tile has, by default, columns of the result for all rows, so a share of every expert that some
// token chose: all workers read all chosen experts, each its rows of them, however tokens are
// spread over experts. Else it has a share of a line of experts, found when the routes are there,
// or pieces of it as long as there are any (graph/balance.h). A worker sorts the tokens by their
// experts in its scratch and goes through these in the order of their numbers; rows of x are
// gathered there by address, and the products are those of linears on an expert's slice of the
// weights. Results are added in the order of experts, which is that of a token's slots. So their
// bits depend on nothing but the token, and weights that nobody chose are not read. Rejected: a
// tile for a part of the slots, which reads whole experts; one expert would then be in several
// slots, and be read by several workers.
#ifndef MGL_DEVICE_CPU_CPU_EXPERTS_H
#define MGL_DEVICE_CPU_CPU_EXPERTS_H

#include <stdint.h>

#include "device/cpu/cpu_program.h"
#include "graph/graph.h"

// Output columns [begin, end) for all rows of the present plan, as worker `worker`.
void mgl_cpu_experts_run(const mgl_cpu_program *program, const mgl_op *op, uint32_t worker,
                         uint32_t begin, uint32_t end);

#endif
