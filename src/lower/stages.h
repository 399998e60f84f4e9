// Sizes of the stages' lowering (stages.c) that memory is planned by.
#ifndef MGL_LOWER_STAGES_H
#define MGL_LOWER_STAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "lower/schedule.h"

enum {
  MGL_STAGES_MAX_SPLITS = 8,  // of a tile along k
  MGL_STAGES_JOINED = 2,      // where one step adds them
  MGL_STAGES_CHAINS = 2,      // halves of the tokens, where tiles are turned
};

static inline uint32_t mgl_ceil_div(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

// What the graphs of stages of a program depend on, beside it.
typedef struct mgl_stages_graphs {
  bool few;  // of a GPU: there are tiles of 64, 128 and 192 tokens (sm_90a)
  uint32_t logit_rows, workers;
} mgl_stages_graphs;

// Whether stages have kernels for all ops of a program that mgl_fuse_ops_cuda made.
bool mgl_stages_cover(const mgl_graph *program);
// The first op that they have no kernel for, or MGL_NO_OP.
uint32_t mgl_stages_lacking(const mgl_graph *program);

// Of an op of experts; experts 0: it is none.
typedef struct mgl_stages_mixture {
  uint32_t experts, slots;
  uint32_t features;    // of an expert
  uint32_t row_blocks;  // of the op's matrices, of one expert
  bool up;              // experts_up, else experts_down
  uint32_t around;      // the kind of what is done before experts_up, or behind experts_down
} mgl_stages_mixture;
mgl_stages_mixture mgl_stages_mixture_of(const mgl_graph *program, const mgl_op *op);
// Tokens of the tiles of a program with experts, each of which tokens * slots / experts rows have;
// a tile that is partly filled costs as much as a whole one. 0: it has none.
uint32_t mgl_stages_expert_tile(const mgl_graph *program, uint32_t tokens);
bool mgl_stages_has_experts(const mgl_graph *program);
// The router whose logits an op of experts reads, or NULL.
const mgl_op *mgl_stages_router_of(const mgl_graph *program, const mgl_op *op);

// Bytes of the residual stream of so many tokens, and of each part of a linear's sums in its form.
uint64_t mgl_stages_stream_bytes(uint32_t tokens, uint32_t hidden);
// Ranks over which an op's results are summed or gathered (linear_add, logits); 1: this one alone.
uint32_t mgl_stages_ranks(const mgl_graph *program, const mgl_op *op);
// Over which the program's linear_adds are summed, and whether any op is over several ranks.
uint32_t mgl_stages_ranks_of_sums(const mgl_graph *program);
bool mgl_stages_has_ranks(const mgl_graph *program);
// Whether each rank adds up the rows of its own tiles of tokens alone, and tiles are turned
// (MGL_WIDE_SCATTERS, MGL_WIDE_TURNED), of sums over so many ranks: all have as many tiles.
bool mgl_stages_turn(const mgl_stages_options *options, uint32_t ranks);
// The row at which an iteration's rows are cut into two chains that go through all ops by
// themselves, attention among them: its steps are as many of the rows before it as there are
// workers, then two of none, and as many of the rows behind it (mgl_wide_shape.border). 0: they are
// not cut.
uint32_t mgl_stages_border(const mgl_graph *program, const mgl_stages_options *options);
uint32_t mgl_stages_attend_units(uint32_t border, uint32_t workers);
// Puts the steps of a schedule with a border in the order in which they would begin, each at the
// worker that would be free then (stages_order.c). Where memory ends, *schedule does too.
mgl_status mgl_stages_put_in_order(const mgl_graph *program, mgl_schedule **schedule,
                                   mgl_error *err);
// The event at the other ranks that a step of the op triggers beside `trigger`, its own one;
// MGL_NO_EVENT: none. That of a turned norm is the one behind: what is there for own tiles at once
// is there for the others' later.
uint32_t mgl_stages_others(const mgl_schedule_op *op, uint32_t trigger);
// Of a linear of so many tiles with MGL_WIDE_RESUMES, those that may have two steps, and so have
// counters and room for sums: the first ones, two a worker.
uint32_t mgl_stages_resumed_tiles(uint32_t tiles, uint32_t workers);
// Tokens of the tiles, `most` or fewer, with which the linears of a graph of so many tokens take
// the least time.
uint32_t mgl_stages_tile_tokens(const mgl_graph *program, uint32_t tokens, uint32_t most,
                                const mgl_stages_graphs *of);
// Whether a graph of MGL_WIDE_MIDDLE_TILE tokens is worth having beside that of MGL_WIDE_MOST_TILE:
// where linears take as many columns of products as tiles have. Not of codes or experts, which have
// other tiles, nor over ranks, where it was not tried.
bool mgl_stages_has_middle(const mgl_graph *program, const mgl_stages_graphs *of);
// Whether a linear's codes become bf16 before it multiplies them, in every iteration: where tiles
// have more tokens than those that decode by themselves (MGL_WIDE_WIDEN).
bool mgl_stages_widen(const mgl_graph *program, const mgl_op *op, uint32_t tile_tokens);
// Where these lie: matrices of one kind have a region that layers take in turn.
typedef enum mgl_widened {
  MGL_WIDENED_QKV,
  MGL_WIDENED_O,
  MGL_WIDENED_GATE_UP,
  MGL_WIDENED_DOWN,
  MGL_WIDENED_COUNT,
} mgl_widened;
mgl_widened mgl_stages_widened(const mgl_graph *program, const mgl_op *op);
// Panels of a linear's codes, which are the units of making bf16 of them.
uint32_t mgl_stages_panels(const mgl_graph *program, const mgl_op *op);
// A region's first byte; of MGL_WIDENED_COUNT: bytes of all of them.
uint64_t mgl_stages_widened_at(const mgl_graph *program, mgl_widened region, uint32_t tile_tokens);
// Whether iterations of a graph of so many tokens widen codes: what that takes is saved many times.
bool mgl_stages_widen_program(const mgl_graph *program, uint32_t tokens);
// Rows of the gathered x: whole tiles, and no more than the graph has.
uint32_t mgl_stages_gathered_rows(const mgl_stages_options *options);

#endif
