// Which canonical ops and tensors stand behind those of a fused program: found by the names of
// tensors and weights, which fusion keeps, so that nobody asks a fused op what it was made of.
#ifndef MGL_ENGINE_OP_PARTS_H
#define MGL_ENGINE_OP_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/graph.h"

// The canonical tensors that make up a fused activation, one beside the other in each row: the one
// of its name, or, where that is only a part, the results of all the op's matrices.
typedef struct mgl_value_parts {
  uint32_t tensors[MGL_OP_MAX_INPUTS];
  uint32_t count;
} mgl_value_parts;

// The op of a program that makes an activation, UINT32_MAX: none.
uint32_t mgl_op_maker(const mgl_graph *graph, uint32_t tensor);

// MGL_ERR_INTERNAL: the canonical program does not have it.
mgl_status mgl_value_parts_find(const mgl_graph *canonical, const mgl_graph *fused, uint32_t tensor,
                                mgl_value_parts *out, mgl_error *err);

// Sets out[i] for each canonical op i that ops [first, last] of the fused program stand for.
mgl_status mgl_op_parts_find(const mgl_graph *canonical, const mgl_graph *fused, uint32_t first,
                             uint32_t last, bool *out, mgl_error *err);

#endif
