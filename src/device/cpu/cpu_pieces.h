// A fused program in pieces (compile/split.h), bound to memory for iterations of up to T tokens: a
// task graph for each piece, which the host launches, one run of the megakernel each; between them
// single ops, which the team shares.
//
// One piece is mode full, the program cut at every op level 2, cut at attention mode piecewise.
// Pieces whose task graphs are equal share one, as those of most layers do: tasks name their op from
// the piece's first on. One thread, which created the team.
#ifndef MGL_DEVICE_CPU_CPU_PIECES_H
#define MGL_DEVICE_CPU_CPU_PIECES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/simd.h"
#include "base/status.h"
#include "batch/plan.h"
#include "compile/compile.h"
#include "compile/split.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/team.h"

typedef struct mgl_cpu_pieces mgl_cpu_pieces;

typedef struct mgl_cpu_pieces_options {
  mgl_simd simd;
  mgl_compile_options compile;     // of the whole program; overrides may name ops of any piece
  const mgl_split_options *split;  // used only while creating
  bool check_numbers;              // after every op that runs alone (cpu_check.h)
} mgl_cpu_pieces_options;

// Graph, memory and team must outlive *out.
mgl_status mgl_cpu_pieces_create(const mgl_graph *graph, mgl_cpu_memory *memory, mgl_team *team,
                                 const mgl_cpu_pieces_options *options, mgl_cpu_pieces **out,
                                 mgl_error *err);
void mgl_cpu_pieces_destroy(mgl_cpu_pieces *pieces);  // NULL is fine

// Runs one iteration.
mgl_status mgl_cpu_pieces_run(mgl_cpu_pieces *pieces, const mgl_plan *plan, mgl_error *err);

// The binding that the latest iteration's logits lie in.
const mgl_cpu_program *mgl_cpu_pieces_program(const mgl_cpu_pieces *pieces);

typedef struct mgl_cpu_pieces_counts {
  uint32_t graphs, ops;  // that an iteration launches
  uint32_t compiled;     // task graphs that are not equal
} mgl_cpu_pieces_counts;

mgl_cpu_pieces_counts mgl_cpu_pieces_count(const mgl_cpu_pieces *pieces);

// Compiles and verifies every piece for these options, and keeps nothing.
mgl_status mgl_cpu_pieces_check(const mgl_graph *graph, const mgl_cpu_pieces_options *options,
                                mgl_error *err);

// Bytes of activations of the program in these pieces.
mgl_status mgl_cpu_pieces_measure(const mgl_graph *graph, const mgl_split_options *split,
                                  const mgl_dim_values *largest, mgl_cpu_program_sizes *out,
                                  mgl_error *err);

#endif
