// The host and the kernel of the wide class share these: the plan of an iteration and the launch.
//
// The wide class is a second megakernel, for large iterations. Its tasks are long
// (tens of microseconds), so its machinery is small: a launch runs one iteration, every worker
// walks its list of steps, and a task waits for the counter of its event. Weights, KV cache, block
// tables and sequences are those of the narrow class (device_run.h), so that iterations of both
// may follow each other in any order.
//
// Steps and ops have the structs of the narrow class, where these fields mean something else:
//   step.begin, step.end   units [begin, end). Of a linear, stages of k of one tile: a tile's
//                          stages are one behind the other, and tiles (feature tile, token tile,
//                          of which the last varies fastest) too; of attend, a party's share
//   op.tokens              rows of op.x (of a norm: of the residual stream), a multiple of a tile's
//   op.row_tiles           norms: rows of the result
//   op.residual            norms: sums of squares of every range of MGL_WIDE_NORM_RANGE features,
//                          f32 [ranges][row_tiles]; op.norm of the linear behind it is the same
//   op.passes              linears: equal splits along k. Split i of linear_add leaves its sums at
//                          out + i * copy_bytes in the form of the residual stream, and the norm
//                          behind it adds them (bias, passes, copy_bytes)
//   op.x, op.out, op.residual   in the forms of wide_layout.h
//   step.trigger_kind      the event that the step triggers at the other ranks, or MGL_NO_EVENT
//
// A tile whose stages are several tasks'. Without flags there are two at most: the one with the
// last stages leaves its sums in `parts`, the one with the first waits for them and adds them. With
// MGL_WIDE_WEIGHS or MGL_WIDE_ROTATES all splits leave their sums, wait for each other, and finish
// equal shares of the tile's tokens: the norm behind linear_add, or rope_kv behind qkv_proj, which
// so are no stages of their own. Nobody waits for ever: who is waited for is its worker's first
// task of the stage.
//
// Weights of codes. In iterations of so many tokens that tiles would decode the same codes again,
// an op's codes become bf16 once (MGL_WIDE_WIDEN), in a region that the layers' ops of one kind
// take in turn, and the linear reads that (MGL_WIDE_WIDENED). Those of the first linear the
// consumers make; all others a service warp without other work (MGL_WIDE_BESIDE), by a list of its
// own. Its steps wait for the end of the stage that read the region before, and trigger the event
// that the linear waits for.
//
// Several ranks. All run the same steps. Split i of a linear_add of rank r is part r * passes + i
// of the sum; it lies in an inbox at every rank, where the worker's idle warp copies it while the
// next tile is multiplied, and the norm behind it adds all parts, in that order, at every rank.
// The end of such a stage counts the steps of all ranks. There are two inboxes, which exchanges use
// in turn: who writes into one again has seen the end of the exchange between, which no rank brings
// about before its norm has read that inbox. Logits go into the rows of all ranks, and so do the
// largest of them; the stage of all_gather only waits for them.
//
// Where each rank adds up tiles of tokens of its own (MGL_WIDE_SCATTERS), it alone has their
// residual stream, and its norm writes their x, and their sums of squares, at all ranks, in a stage
// that ends when the steps of all ranks have: fewer bytes between ranks, and fewer additions. With
// few tokens (MGL_WIDE_WEIGHS) there is no stage between: the splits of a tile add up their sums at
// their rank first, each of its share of tokens, send that to all inboxes, and wait for the same
// tile of all ranks, by a counter behind those of stages (op.exchange + tile), before they do the
// norm.
//
// Where rows are so shared out, the order of tiles matters (MGL_WIDE_TURNED). Of every R tiles of
// tokens one is a rank's own; the steps of all ranks are the same, but number tiles from the own
// one on. A linear_add computes the others' tiles first, so that their parts travel while own tiles
// are multiplied; the linear behind the norm begins with own tiles, whose x is there as soon as the
// norm has run here, and so the others' x travels meanwhile. Tiles are halved into chains, where
// there are enough: what a chain waits for hides behind the other one. Then rope_kv and attend are
// done chain by chain, too, and steps stand in the order in which they would begin
// (lower/stages_order.c). Where there is one chain, and qkv_proj's last round leaves half of the
// workers without a tile, these do rope_kv of own tiles. The service warp that sends walks the list
// by itself, so that no worker waits for the link.
//
// Tiles of tokens that have no row of the plan have nothing to do, nor have those without a row
// with logits where only such rows are read (MGL_WIDE_WANTED, and logits themselves). Which these
// are only the iteration knows; steps are those of all tiles. Of one rank the tiles that there are
// come first in their line (mgl_wide_pick_tile); of several a step keeps its tile, and one that is
// not wanted is empty.
//
// Counters of stages lie twice, and iterations take them in turn: a turn of the planner clears
// those of the iteration after the one that it begins, which no rank begins before all have taken
// part in this one.
#ifndef MGL_TWIN_WIDE_RUN_H
#define MGL_TWIN_WIDE_RUN_H

#include <stdint.h>

#include "twin/device_run.h"
#include "twin/wide_attention.h"
#include "twin/wide_experts.h"
#include "twin/wide_items.h"

enum {
  // A worker's warps: consumers first, so that they form whole warpgroups.
  MGL_WIDE_CONSUMER_WARPS = 8,
  MGL_WIDE_CONSUMERS = MGL_WIDE_CONSUMER_WARPS * 32,
  MGL_WIDE_THREADS = MGL_WIDE_CONSUMERS + 128,  // producer, storer, factors, one for few models

  MGL_WIDE_NORM_RANGE = 128,  // features of a norm's unit

  // A linear's tile: so many row blocks of packed weights, by so many tokens. Where there is wgmma,
  // iterations of few tokens have smaller tiles, and so kernels of their own (wide_64.cu).
  MGL_WIDE_FEATURE_BLOCKS = MGL_WIDE_CONSUMER_WARPS,
  MGL_WIDE_FEATURES = MGL_WIDE_FEATURE_BLOCKS * MGL_CUDA_BLOCK_ROWS,
  MGL_WIDE_LEAST_TILE = 64,
  MGL_WIDE_MOST_TILE = 256,
  MGL_WIDE_MIDDLE_TILE = 192,
  MGL_WIDE_TILES = 4,  // 64, 128, 192 and 256
  // Graphs of so many tokens and more make bf16 of codes once an iteration (MGL_WIDE_WIDEN).
  MGL_WIDE_WIDEN_TOKENS = 1280,
  MGL_WIDE_MOST_CODED_TILE = 128,    // of weights of codes as they are (linear/wide_codes.cuh)
  MGL_WIDE_MOST_EXPERTS_TILE = 192,  // and with experts, of each of which few rows have one
#ifdef MGL_WIDE_TILE
  MGL_WIDE_TILE_TOKENS = MGL_WIDE_TILE,
#else
  MGL_WIDE_TILE_TOKENS = MGL_WIDE_MOST_TILE,
#endif
  MGL_WIDE_FEW = MGL_WIDE_TILE_TOKENS < MGL_WIDE_MOST_TILE,
  MGL_WIDE_SPARE = MGL_WIDE_TILE_TOKENS < MGL_WIDE_MIDDLE_TILE,  // registers, beside its sums
  MGL_WIDE_TILE_SUMS = MGL_WIDE_FEATURES * MGL_WIDE_TILE_TOKENS,

  // Shared memory of a block: the ring of stages, then the staged output, then mgl_wide_block. A
  // stage has so many columns of 64 elements of k, of all rows and all tokens: two where there is
  // room for enough of them, since a copy of twice as many bytes takes its issuer no longer.
  MGL_WIDE_RING_BYTES = 192 << 10,
  MGL_WIDE_COLUMNS = MGL_WIDE_TILE_TOKENS < MGL_WIDE_MIDDLE_TILE ? 2 : 1,
  MGL_WIDE_WEIGHT_BYTES = MGL_WIDE_COLUMNS * MGL_WIDE_FEATURES * 128,
  MGL_WIDE_X_BYTES = MGL_WIDE_COLUMNS * MGL_WIDE_TILE_TOKENS * 128,
  MGL_WIDE_STAGE_BYTES = MGL_WIDE_WEIGHT_BYTES + MGL_WIDE_X_BYTES,
  MGL_WIDE_STAGES = MGL_WIDE_RING_BYTES / MGL_WIDE_STAGE_BYTES,
  MGL_WIDE_STAGED_BYTES = MGL_WIDE_MOST_TILE * 128,
  MGL_WIDE_BLOCK_BYTES = 3072,
  MGL_WIDE_SMEM_BYTES = MGL_WIDE_RING_BYTES + MGL_WIDE_STAGED_BYTES + MGL_WIDE_BLOCK_BYTES,

  // The portable kernel's: consumers alone, and a ring of smaller stages, which is the staged
  // output's memory and attention's too; 99 KiB in all, which every GPU gives a block.
  MGL_WIDE_MMA_THREADS = MGL_WIDE_CONSUMERS,
  MGL_WIDE_MMA_STAGES = 4,
  MGL_WIDE_MMA_K = 32,  // elements of a stage
  MGL_WIDE_MMA_WEIGHT_BYTES = MGL_WIDE_FEATURES * MGL_WIDE_MMA_K * 2,
  MGL_WIDE_MMA_STAGE_BYTES = MGL_WIDE_MMA_WEIGHT_BYTES + MGL_WIDE_TILE_TOKENS * MGL_WIDE_MMA_K * 2,
  MGL_WIDE_MMA_RING_BYTES = MGL_WIDE_MMA_STAGES * MGL_WIDE_MMA_STAGE_BYTES,
  MGL_WIDE_MMA_SMEM_BYTES = MGL_WIDE_MMA_RING_BYTES + MGL_WIDE_BLOCK_BYTES,
};

typedef enum mgl_wide_op_flags {
  // rmsnorm: of the rows whose logits are wanted, else of all; route: copies rows (wide_experts.h)
  MGL_WIDE_GATHERS = 8,
  MGL_WIDE_WEIGHS = 16,   // linear_add: with the norm behind it
  MGL_WIDE_ROTATES = 32,  // qkv_proj: with rope_kv
  MGL_WIDE_OVER = 64,     // linear_add and logits over several ranks: what they make goes to all
  // linear_add over ranks: each rank adds up the rows of its own tiles of tokens alone, so parts go
  // to that one; and the norm behind it, MGL_WIDE_OVER too: of these rows, for all ranks.
  MGL_WIDE_SCATTERS = 128,
  // Linears, norms and rope_kv: tiles of tokens are numbered from this rank's own
  // (mgl_wide_turned). A step of rope_kv is of one tile. attend: in two phases (mgl_wide_shape).
  MGL_WIDE_TURNED = 1 << 16,
  // Linears: of a tile of two steps the one with the first stages leaves its sums, and the other
  // one goes on with them, so that they are to the bit those of one step.
  MGL_WIDE_RESUMES = 1 << 17,
  // Behind the last layer's attention: only rows with logits are read of what it makes, so tiles of
  // tokens without one are left out.
  MGL_WIDE_WANTED = 1 << 18,
  MGL_WIDE_WIDENED = 1 << 19,  // linears: their weights are those that MGL_WIDE_WIDEN made
  MGL_WIDE_BESIDE = 1 << 20,   // MGL_WIDE_WIDEN: by a warp that has nothing else to do
} mgl_wide_op_flags;

// The kind of an op of stages that makes bf16 of a linear's codes. Its units are panels
// (twin/packing.h), row block by row block; op.weights: the codes, op.out: where the weights lie as
// the linear wants them.
enum { MGL_WIDE_WIDEN = MGL_OP_COUNT };

// Lists of steps: one of each worker, and behind these one of each worker's warp that has only what
// is done beside (MGL_WIDE_BESIDE).
#define MGL_WIDE_LISTS_OF(workers) (2 * (workers))

// Why a launch ended early.
typedef enum mgl_wide_fault {
  MGL_WIDE_FAULT_NONE,
  MGL_WIDE_FAULT_HOST,  // the host ended it
} mgl_wide_fault;

// Of logits with MGL_WIDE_OVER: elements of a whole row, and its first that is this rank's.
typedef struct mgl_wide_over {
  uint32_t row, first;
} mgl_wide_over;

// The tile of tokens with the turned number `tile` of a rank: of every `ranks` tiles, from the
// rank's own on.
MGL_SHARED_FN uint32_t mgl_wide_turned(uint32_t tile, uint32_t rank, uint32_t ranks) {
  return tile / ranks * ranks + (tile + rank) % ranks;
}

// An op of the wide class.
typedef struct mgl_wide_op {
  mgl_cuda_op op;
  union {
    mgl_wide_attention attention;  // of rope_kv (kind kv_write), attend and MGL_WIDE_ROTATES
    mgl_cuda_op norm;              // of MGL_WIDE_WEIGHS
    mgl_wide_over over;            // of logits with MGL_WIDE_OVER
    mgl_wide_experts experts;      // of route, experts_up and _down, and add
  } with;
  // Linears with tiles of several tasks have these: how many tasks have left their sums, 0 before
  // the launch; and the sums, MGL_WIDE_TILE_SUMS floats for every split of each tile, or for the
  // one that leaves them.
  uint32_t *arrived;  // [tiles]
  float *parts;
} mgl_wide_op;

// The plan of an iteration.
typedef struct mgl_wide_plan {
  uint32_t token_count;
  uint32_t sequence_count;
  uint32_t logit_row_count;
  uint32_t takes_rows;      // 0: of each row only the largest logit is read
  mgl_feed_iteration note;  // what the host tells of the iteration, where the device has planned it
  int32_t tokens[MGL_MAX_ITERATION_TOKENS];
  uint32_t positions[MGL_MAX_ITERATION_TOKENS];
  uint32_t slots[MGL_MAX_ITERATION_TOKENS];  // row of the block tables of each token
  uint32_t logit_slots[MGL_MAX_SEQUENCES];   // [L] sequence slots to sample for
  uint32_t logit_rows[MGL_MAX_SEQUENCES];    // [L] rows whose logits are wanted
} mgl_wide_plan;

// One launch.
typedef struct mgl_wide_run {
  const mgl_cuda_step *steps;  // every worker's list, one after the other; NULL: nothing is to do
  uint64_t tile_tokens;        // of their linears: the kernel for others has nothing to do
  const uint32_t *step_start;  // [MGL_WIDE_LISTS_OF(workers) + 1]
  const mgl_wide_op *ops;
  mgl_word *counters;  // of events; 0 before the launch
  const mgl_wide_plan *plan;
  const int32_t *block_tables;
  uint64_t *best;  // ordered f32 << 32 | ~index, the largest of each logit row; 0 before the launch
  uint64_t *stage_ns;            // [stages] the global timer when each began; NULL: not wanted
  int64_t peers[MGL_MAX_RANKS];  // of several ranks: bytes from this one's block to the others'
  uint32_t rank, rank_count;
  mgl_word fault;  // mgl_wide_fault
} mgl_wide_run;

#endif
