// Which schedule runs an iteration: by the target, the mode, and how many tokens it has. Compilers
// that print it and devices that run it ask here, so that both have the same one.
#ifndef MGL_LOWER_CHOOSE_H
#define MGL_LOWER_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "compile/compile.h"
#include "lower/stages.h"

enum {
  // Most tokens of an iteration of task graphs on a GPU where there are stages, which take less
  // time for more (docs/log/156); and where those have no tiles of few tokens, of models whose
  // weights are up to so many bytes a layer.
  MGL_NARROW_TOKENS = 16,
  MGL_NARROW_TOKENS_SMALL = 32,
  MGL_SMALL_LAYER_BYTES = 288 << 20,
  // Of more tokens than these, with much context (mgl_narrow_context), they are of the wide class
  // too: 8 sequences of 4096 tokens take 0.97 to 1.09 of the time there (docs/log/197; sm_90a).
  MGL_LONG_TOKENS = 8,
  MGL_NARROW_CONTEXT = 8192,         // of large layers
  MGL_NARROW_CONTEXT_SMALL = 14336,  // of up to MGL_SMALL_LAYER_BYTES (docs/log/314)
  MGL_NARROW_CONTEXT_CODED = 4096,   // of weights of codes (docs/log/222)
  // Rows with logits of stages, where nothing is said: of as many sequences as run at once there.
  MGL_STAGES_USUAL_ROWS = 256,
  // Of a launch for every op: from so many positions on attention of one token has blocks for as
  // many chunks as there may be; below, for as many as it has there (docs/log/066).
  MGL_KERNELS_LONG_CONTEXT = 512,
};

// Iterations of up to how many tokens a GPU's task graphs compute faster than stages: they take as
// long as their products with every weight do, stages one to four ms in which they wait for each
// other (docs/log/105). step_bytes: of its weights; few: there are tiles of fewer tokens.
uint32_t mgl_narrow_tokens(const mgl_graph *program, uint64_t step_bytes, bool few);

// Up to how many tokens of context, of all sequences added up, iterations of MGL_LONG_TOKENS to
// MGL_NARROW_TOKENS tokens take less time as task graphs. The wide class reads keys and values
// faster; what its stages wait for each other is the less, the longer they are.
uint64_t mgl_narrow_context(const mgl_graph *program, uint64_t step_bytes);

// Whether large iterations of a program that mgl_fuse_ops_cuda made have kernels: the portable ones
// have none for codes and experts.
bool mgl_stages_run(const mgl_graph *program, bool few);

// The number of the graph of stages for so many tokens. There is one for every power of two below
// MGL_WIDE_MOST_TILE, one for every multiple of that, since tiles of a larger graph that an
// iteration does not fill would leave some workers with less to do than others (docs/log/297), and
// one for MGL_WIDE_MIDDLE_TILE where that is worth it.
uint32_t mgl_stages_graph_for(const mgl_graph *program, const mgl_stages_graphs *of,
                              uint32_t tokens);
// The stages of a graph. Programs with codes that are not widened, or experts, have smaller tiles.
mgl_stages_options mgl_stages_options_of(const mgl_graph *program, const mgl_stages_graphs *of,
                                         uint32_t graph);

// Steps of a KV head of attention in a launch for every op.
uint32_t mgl_kernels_strides(const mgl_task_graph *graph, bool long_context);

typedef struct mgl_iteration_options {
  // As for the task graph: target, tokens (of the iteration), logit_rows, workers, and what is
  // about tasks.
  mgl_compile_options compile;
  bool few;      // of a GPU: there are tiles of 64, 128 and 192 tokens (sm_90a)
  bool kernels;  // of a GPU: a launch for every op (mode full)
} mgl_iteration_options;

// Makes the schedule that runs iterations of options->compile.tokens tokens. `program` is fused for
// the target. MGL_ERR_UNSUPPORTED: a GPU has no iterations of so many tokens of that program.
mgl_status mgl_lower_iteration(const mgl_graph *program, const mgl_iteration_options *options,
                               mgl_schedule **out, mgl_error *err);

#endif
