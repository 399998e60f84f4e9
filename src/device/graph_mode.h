// How a model's ops are compiled and launched: levels, graph modes, and the modes of a run that
// they come to.
//
// A *level* says what is made of the program: nothing (0), checks (1), fused ops (2), pieces (3). A
// *graph mode* says, of level 3, what is launched together in an iteration: with different answers
// for iterations in which every sequence decodes and for mixed ones, where prompts are computed,
// too. A *mode* is both in one word, as --mode has it. On a GPU a graph is a CUDA graph; on the CPU
// it is a task graph that the host launches for one iteration, while in mode mega one launch runs
// many.
#ifndef MGL_DEVICE_GRAPH_MODE_H
#define MGL_DEVICE_GRAPH_MODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum mgl_compile_level {
  MGL_LEVEL_EAGER,      // 0: the program's own ops, one after the other
  MGL_LEVEL_CHECK,      // 1: the same, after all that other levels would compile was compiled
  MGL_LEVEL_COMPILED,   // 2: fused ops, one after the other
  MGL_LEVEL_PIECEWISE,  // 3: fused ops in graphs, by the graph mode
  MGL_LEVEL_COUNT,
} mgl_compile_level;

typedef enum mgl_graph_mode {
  MGL_GRAPHS_NONE,       // op by op
  MGL_GRAPHS_PIECEWISE,  // a graph for each piece between splitting ops, which run by themselves
  MGL_GRAPHS_FULL,       // one graph an iteration
  MGL_GRAPHS_MEGA,       // one launch for many iterations
  MGL_GRAPHS_FULL_DECODE_ONLY,    // (full, none): iterations that decode, mixed ones
  MGL_GRAPHS_FULL_AND_PIECEWISE,  // (full, piecewise)
  MGL_GRAPHS_COUNT,
} mgl_graph_mode;

const char *mgl_graph_mode_name(mgl_graph_mode mode);  // "FULL_AND_PIECEWISE"
// In capitals or small letters, with _ or -.
mgl_status mgl_graph_mode_parse(const char *name, mgl_graph_mode *out, mgl_error *err);

// The six predicates. The first two and the last return one of NONE, PIECEWISE, FULL and MEGA.
mgl_graph_mode mgl_graph_mode_decode(mgl_graph_mode mode);  // of iterations that only decode
mgl_graph_mode mgl_graph_mode_mixed(mgl_graph_mode mode);   // of all others
bool mgl_graph_mode_is_separate(mgl_graph_mode mode);       // these two differ
bool mgl_graph_mode_has_full(mgl_graph_mode mode);          // one of them is FULL
bool mgl_graph_mode_needs_pieces(mgl_graph_mode mode);      // one of them is PIECEWISE
mgl_graph_mode mgl_graph_mode_max(mgl_graph_mode mode);     // the one that launches more at once

// How a graph is launched.
typedef enum mgl_mode {
  MGL_MODE_MEGA,                // one megakernel (twin/protocol.h)
  MGL_MODE_EAGER,               // op by op, nothing fused: level 0
  MGL_MODE_FULL,                // one graph an iteration
  MGL_MODE_COMPILED,            // fused ops, one by one: level 2
  MGL_MODE_PIECEWISE,           // these four: level 3 and the graph mode of that name
  MGL_MODE_FULL_DECODE_ONLY,    //
  MGL_MODE_FULL_AND_PIECEWISE,  //
  MGL_MODE_COUNT,
} mgl_mode;

const char *mgl_mode_name(mgl_mode mode);  // "full-and-piecewise"
mgl_status mgl_mode_parse(const char *name, mgl_mode *out, mgl_error *err);

// Whether the usual compilation has it; others must be asked for.
bool mgl_mode_is_fused(mgl_mode mode);

// The mode that level and graph mode come to; below level 3 the graph mode is NONE.
mgl_mode mgl_mode_of(mgl_compile_level level, mgl_graph_mode graphs);
mgl_graph_mode mgl_mode_graphs(mgl_mode mode);

#endif
