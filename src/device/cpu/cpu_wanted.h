// Rows that are wanted: behind the last layer's K and V, an op's rows matter only where logits are.
//
// Of a prompt only the last token's logits are wanted. What is behind the last write of K and V
// reads no other row of its inputs, so that other rows need not be computed: the last layer's
// queries, attention and linears of a prompt, a sixteenth of a model of 16 layers. An op leaves
// out what lies in front of the first wanted row and behind the last one; rows in between, of other
// prompts or of none, are computed with them. Results have the same bits, since rows do not depend
// on each other.
#ifndef MGL_DEVICE_CPU_CPU_WANTED_H
#define MGL_DEVICE_CPU_CPU_WANTED_H

#include <stdint.h>

#include "device/cpu/cpu_program.h"

// Marks in out [op_count] with 1 the ops whose outputs are read in wanted rows only: by ops that
// pick rows with logits, or by such ops in turn.
void mgl_cpu_find_wanted(const mgl_graph *graph, unsigned char *out);

// Rows of an iteration; none if begin is end.
typedef struct mgl_cpu_rows {
  uint32_t begin, end;
} mgl_cpu_rows;

// Those of `rows` rows that op `op` has to compute under the present plan.
mgl_cpu_rows mgl_cpu_wanted(const mgl_cpu_program *program, uint32_t op, uint32_t rows);

#endif
