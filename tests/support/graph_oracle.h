// Naive judges of task graphs, for tests of the compiler and of its verifier: every pair looked at,
// "comes before" as a matrix of bits. They share no code with what they judge.
#ifndef MGL_TESTS_SUPPORT_GRAPH_ORACLE_H
#define MGL_TESTS_SUPPORT_GRAPH_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"
#include "task/tile.h"
#include "twin/task.h"

typedef struct bit_matrix {
  uint32_t size;
  size_t words;    // a row
  uint64_t *bits;  // free() it
} bit_matrix;

bit_matrix bit_matrix_create(uint32_t size);
void bit_matrix_set(bit_matrix *m, uint32_t row, uint32_t column);
bool bit_matrix_get(const bit_matrix *m, uint32_t row, uint32_t column);
// Row r holds what comes directly before r, with a smaller number; then all that comes before.
void bit_matrix_close(bit_matrix *m);

// True if one writes a region that overlaps one that the other reads or writes.
bool oracle_conflict(const mgl_tile_access *a, const mgl_tile_access *b);
// What comes before what in a task graph, empty tasks included; by position.
bit_matrix oracle_order(const mgl_task_graph *g);
// The first tensor of a chain of in-place ops.
uint32_t oracle_root(const mgl_graph *program, uint32_t tensor);
// True if an op reads or writes a tensor of that chain.
bool oracle_touches(const mgl_graph *program, const mgl_op *op, uint32_t root);

#endif
