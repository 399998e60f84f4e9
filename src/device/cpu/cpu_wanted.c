#include "device/cpu/cpu_wanted.h"

#include <stdbool.h>
#include <string.h>

// Ops that mgl_cpu_wanted is asked for: they compute row by row. (Attention does so with queries,
// but reads K and V of all rows.)
static bool leaves_rows_out(const mgl_op *op) {
  return mgl_op_is_linear(op) || mgl_op_input(op, MGL_ROLE_QKV) != MGL_NO_TENSOR;
}

static bool picks_rows(const mgl_op *op, uint32_t tensor) {
  return mgl_op_input(op, MGL_ROLE_ROWS) != MGL_NO_TENSOR && mgl_op_input(op, MGL_ROLE_X) == tensor;
}

void mgl_cpu_find_wanted(const mgl_graph *graph, unsigned char *out) {
  memset(out, 0, graph->op_count);
  for (size_t i = graph->op_count; i-- > 0;) {
    const uint32_t tensor = graph->ops[i].output;
    bool only_wanted = leaves_rows_out(&graph->ops[i]), read = false;
    for (size_t j = i + 1; only_wanted && j < graph->op_count; j++) {
      const mgl_op *reader = &graph->ops[j];
      for (uint32_t k = 0; k < reader->input_count; k++) {
        if (reader->inputs[k] == tensor) {
          read = true;
          only_wanted =
              only_wanted && (picks_rows(reader, tensor) ||
                              (out[j] != 0 && mgl_op_input(reader, MGL_ROLE_QKV) != tensor));
        }
      }
    }
    out[i] = only_wanted && read;
  }
}

mgl_cpu_rows mgl_cpu_wanted(const mgl_cpu_program *program, uint32_t op, uint32_t rows) {
  if (program->only_wanted == NULL || program->only_wanted[op] == 0) {
    return (mgl_cpu_rows){0, rows};
  }
  const mgl_plan *plan = mgl_cpu_plan(program);
  const uint32_t count = plan->logit_row_count;
  return count == 0 ? (mgl_cpu_rows){0, 0}
                    : (mgl_cpu_rows){plan->logit_rows[0], plan->logit_rows[count - 1] + 1};
}
