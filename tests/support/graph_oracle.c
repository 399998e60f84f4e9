#include "support/graph_oracle.h"

#include <stdlib.h>

// --- bit matrices --------------------------------------------------------------------------------

bit_matrix bit_matrix_create(uint32_t size) {
  bit_matrix m = {size, (size + 63) / 64, NULL};
  m.bits = calloc((size_t)size * m.words + 1, sizeof *m.bits);
  if (m.bits == NULL) {
    abort();
  }
  return m;
}

void bit_matrix_set(bit_matrix *m, uint32_t row, uint32_t column) {
  m->bits[row * m->words + column / 64] |= (uint64_t)1 << column % 64;
}

bool bit_matrix_get(const bit_matrix *m, uint32_t row, uint32_t column) {
  return (m->bits[row * m->words + column / 64] >> column % 64 & 1) != 0;
}

static void or_row(bit_matrix *m, uint32_t row, const bit_matrix *from, uint32_t from_row) {
  for (size_t i = 0; i < m->words; i++) {
    m->bits[row * m->words + i] |= from->bits[from_row * m->words + i];
  }
}

void bit_matrix_close(bit_matrix *m) {
  for (uint32_t row = 0; row < m->size; row++) {
    for (uint32_t before = 0; before < row; before++) {
      if (bit_matrix_get(m, row, before)) {
        or_row(m, row, m, before);
      }
    }
  }
}

// --- tasks ---------------------------------------------------------------------------------------

static bool overlap(const mgl_region *a, const mgl_region *b) {
  return a->tensor == b->tensor && a->row_begin < b->row_end && b->row_begin < a->row_end &&
         a->column_begin < b->column_end && b->column_begin < a->column_end;
}

bool oracle_conflict(const mgl_tile_access *a, const mgl_tile_access *b) {
  for (uint32_t i = 0; i < a->write_count; i++) {
    for (uint32_t j = 0; j < b->read_count; j++) {
      if (overlap(&a->writes[i], &b->reads[j])) {
        return true;
      }
    }
    for (uint32_t j = 0; j < b->write_count; j++) {
      if (overlap(&a->writes[i], &b->writes[j])) {
        return true;
      }
    }
  }
  for (uint32_t i = 0; i < a->read_count; i++) {
    for (uint32_t j = 0; j < b->write_count; j++) {
      if (overlap(&a->reads[i], &b->writes[j])) {
        return true;
      }
    }
  }
  return false;
}

bit_matrix oracle_order(const mgl_task_graph *g) {
  bit_matrix tasks = bit_matrix_create(g->task_count);
  for (uint32_t i = 0; i < g->task_count; i++) {
    for (uint32_t j = 0; j < i && g->tasks[i].dependent_event != MGL_NO_EVENT; j++) {
      if (g->tasks[j].trigger_event == g->tasks[i].dependent_event) {
        bit_matrix_set(&tasks, i, j);
      }
    }
  }
  bit_matrix_close(&tasks);
  return tasks;
}

uint32_t oracle_root(const mgl_graph *program, uint32_t tensor) {
  for (size_t i = program->op_count; i-- > 0;) {
    const mgl_op *op = &program->ops[i];
    if (op->output == tensor && mgl_op_info_of(op->kind)->in_place) {
      return oracle_root(program, op->inputs[0]);
    }
  }
  return tensor;
}

bool oracle_touches(const mgl_graph *program, const mgl_op *op, uint32_t root) {
  bool found = oracle_root(program, op->output) == root;
  for (uint32_t i = 0; i < op->input_count; i++) {
    found |= oracle_root(program, op->inputs[i]) == root;
  }
  return found;
}
