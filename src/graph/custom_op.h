// Ops that a user of the library brings: what op.def says of others, at run time.
//
// A custom op is computed row by row: a row of its output (a token's, or of logits) comes from the
// same rows of its activations and plan inputs, and from whole weights. So tiles, dependencies
// and storage follow as for every other op (task/tile.h), and it runs in all modes. In the graph it
// has the kind CUSTOM, or CUSTOM_UPDATE where it writes its first input in place.
//
// Registered once for the process and never removed: programs point to them. Thread-safe.
#ifndef MGL_GRAPH_CUSTOM_OP_H
#define MGL_GRAPH_CUSTOM_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/graph.h"

enum {
  MGL_MAX_CUSTOM_OPS = 256,
  MGL_CUSTOM_NAME_BYTES = 64,
  MGL_CUSTOM_SOURCE_BYTES = 1 << 20,
};

// One share of one iteration.
typedef struct mgl_custom_call {
  const mgl_op *op;
  const mgl_tensor *tensors;  // of the program
  // Whole tensors, row-major; weights of one dim are f32, whatever their dtype.
  const void *inputs[MGL_OP_MAX_INPUTS];
  void *output;       // the same
  size_t begin, end;  // rows to compute
  size_t rows;        // that the iteration has
} mgl_custom_call;

typedef struct mgl_custom_op {
  char name[MGL_CUSTOM_NAME_BYTES];
  uint32_t input_count;  // 1 to MGL_OP_MAX_INPUTS; the first one is an activation
  bool updates;          // writes input 0, whose storage its output has
  uint32_t attr_count;
  char attr_names[MGL_MAX_CUSTOM_ATTRS][MGL_CUSTOM_NAME_BYTES];
  // Says what the output is: dtype, rank and dims of *out, which comes as a copy of input 0. NULL:
  // that.
  mgl_status (*shape)(const struct mgl_custom_op *op, const mgl_tensor *const *in,
                      const double *attrs, mgl_tensor *out, mgl_error *err);
  // Computes rows; called by several threads at once, for rows that are disjoint.
  void (*run)(const struct mgl_custom_op *op, const mgl_custom_call *call);
  void *functions[2], *context;  // of whoever registered it
  char *cuda_source;             // owned; NULL: none (device/cuda/cuda_custom.h)
  uint32_t cuda_tile_rows;       // that a block of its kernel computes
} mgl_custom_op;

// Copies it. Refuses names that are taken, and what is out of range.
mgl_status mgl_custom_op_register(const mgl_custom_op *op, mgl_error *err);
// NULL: there is none of that name.
const mgl_custom_op *mgl_custom_op_find(const char *name);

// Checks an op of kind CUSTOM or CUSTOM_UPDATE against its registration.
mgl_status mgl_custom_op_check(const mgl_op *op, const mgl_tensor *const *in, const mgl_tensor *out,
                               mgl_error *err);

#endif
