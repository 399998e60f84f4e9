// Cuts a program into pieces at splitting ops: what lies between two of them is a piece, which is
// compiled and launched by itself, and a splitting op runs alone between pieces.
//
// With L attention ops, which split where nobody says otherwise, there are L + 1 pieces and L ops
// between them. A piece is a view of the program: the same tensors under the same numbers, and a
// range of the ops. So it is not a finished program: it may read, and take over the storage of,
// activations that earlier pieces made. Hence all pieces share one layout of activations, in which
// whatever lives during a piece has storage of its own there.
#ifndef MGL_COMPILE_SPLIT_H
#define MGL_COMPILE_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/graph.h"

enum { MGL_MAX_SPLITTING_OPS = 64 };  // names

typedef struct mgl_piece {
  uint32_t first, last;  // ops [first, last) of the program
  bool splits;           // one op, which splits
} mgl_piece;

// A zeroed one asks for attention ops.
typedef struct mgl_split_options {
  const char *const *names;  // [count] of ops that split: of a kind of op ("linear"), of the output
                             // of one ("3.gated"), or "attention" for any kind of it
  uint32_t count;
  bool none;   // one piece: all of the program
  bool every;  // every op splits: no pieces
} mgl_split_options;

// *out: [*count] in program order, freed with mgl_free. MGL_ERR_ARGUMENT: a name is no op's.
mgl_status mgl_split_program(const mgl_graph *program, const mgl_split_options *options,
                             mgl_piece **out, uint32_t *count, mgl_error *err);

// The piece as a program of its own for mgl_compile and mgl_task_graph_verify. Borrowed from
// `program`: nothing of it is freed.
mgl_graph mgl_piece_view(const mgl_graph *program, const mgl_piece *piece);

#endif
