// The modes between eager and mega on the CPU: a fused program op by op (level 2), in pieces, or as
// one task graph an iteration, as the graph mode says for iterations that decode and for mixed ones.
//
// An iteration is padded to the next size that has graphs; above the largest its ops are launched one
// by one. Made at the first use of such a mode; the runner owns it.
#ifndef MGL_ENGINE_PIECE_MODE_H
#define MGL_ENGINE_PIECE_MODE_H

#include "base/simd.h"
#include "base/status.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_pieces.h"
#include "device/cpu/team.h"
#include "device/graph_mode.h"
#include "engine/device_table.h"

typedef struct mgl_piece_mode mgl_piece_mode;

// Fuses the program. The job's parts, memory and team must outlive *out.
mgl_status mgl_piece_mode_create(const mgl_device_job *job, mgl_cpu_memory *memory, mgl_team *team,
                                 mgl_simd simd, mgl_piece_mode **out, mgl_error *err);
void mgl_piece_mode_destroy(mgl_piece_mode *mode);  // NULL is fine

// Makes the graphs that the mode launches, largest first, which runs would make otherwise.
mgl_status mgl_piece_mode_prepare(mgl_piece_mode *mode, mgl_mode how, mgl_error *err);

// Runs iterations until `next` returns NULL.
mgl_status mgl_piece_mode_run(mgl_piece_mode *mode, mgl_mode how, mgl_next_plan_callback *next,
                              void *context, mgl_error *err);

mgl_launch_counts mgl_piece_mode_counts(const mgl_piece_mode *mode);

// Whether an iteration only decodes: every sequence has one token.
bool mgl_plan_decodes(const mgl_plan *plan);

// Level 1: compiles and verifies what the other levels would, for every size, and keeps nothing.
mgl_status mgl_piece_mode_check(const mgl_device_job *job, mgl_error *err);

// Whether the splitting ops that were asked for are of the program.
mgl_status mgl_piece_mode_check_names(const mgl_device_job *job, mgl_error *err);

// Bytes of activations of these modes, where they are more than in *sizes.
mgl_status mgl_piece_mode_measure(const mgl_device_job *job, const mgl_graph *fused,
                                  mgl_cpu_program_sizes *out, mgl_error *err);

#endif
