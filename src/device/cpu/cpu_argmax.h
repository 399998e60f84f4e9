// The largest logit of each row, found where the logits are made: each worker notes the largest of
// the columns that it computes, and whoever plans the next iteration combines one note a worker.
// Rejected: a pass over all logits by one thread while the others wait (docs/log/035).
//
// The order is total, so that the choice does not depend on who computed which columns: a NaN
// before all numbers, then larger logits first, then smaller indices first.
#ifndef MGL_DEVICE_CPU_CPU_ARGMAX_H
#define MGL_DEVICE_CPU_CPU_ARGMAX_H

#include <stddef.h>
#include <stdint.h>

#include "device/cpu/cpu_program.h"

// Notes columns [begin, end) of all rows of the present plan's logits, which `worker` has just
// computed. Does nothing where `tensor` is not the program's "logits".
void mgl_cpu_program_note_logits(const mgl_cpu_program *program, uint32_t tensor, uint32_t worker,
                                 size_t begin, size_t end);

// The same of rows [begin, end), all of their columns.
void mgl_cpu_program_note_logit_rows(const mgl_cpu_program *program, uint32_t tensor,
                                     uint32_t worker, size_t begin, size_t end);

// The index of the largest logit of each row of the present plan, [plan->logit_row_count]; the
// smallest of equal ones, and the first NaN where there is one. After all work of the iteration;
// valid until the next call for any program of this memory.
const uint32_t *mgl_cpu_program_best_logits(const mgl_cpu_program *program);

#endif
