// The inside of a wide worker's block: its shared memory, and its service warps where there are
// bulk copies (the portable kernel has none: wide_worker_mma.cuh).
//
// Warps 0 to 7 are consumers, two warpgroups that work on one task together. The producer walks
// the block's list: it hands each step over once the step's event is activated (attend before that,
// mgl_wide_begins_early), and fills the ring of stages for linears, with weights ahead of the event
// as far as stages are free. A third warp finds the factors of norms, and waits for attend's event.
// The storer waits for the consumers' outputs, copies what they staged to memory, and triggers the
// event. Where the model runs on several ranks, a fourth warp sends, at its own pace
// (wide_ranks.cuh); where weights are of codes, it makes bf16 of them (linear/wide_widen.cuh).
//
// Memory order: as in the narrow class (role_storer.cuh), and since stages are filled by the copy
// engine, whoever writes what it may read fences for it before arriving, and the producer after
// an event's acquire.
#ifndef MGL_KERNELS_CUDA_ROLES_WIDE_WORKER_CUH
#define MGL_KERNELS_CUDA_ROLES_WIDE_WORKER_CUH

#include "kernels/cuda/common/experts.cuh"
#include "kernels/cuda/common/page_stream.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "twin/wide_layout.h"
#include "twin/wide_run.h"

enum {
  MGL_WIDE_SLOTS = 2,
  // Pieces of sums on their way to other ranks through the memory of staged output.
  MGL_WIDE_BOUNCES = 4,
  MGL_WIDE_BOUNCE_BYTES = MGL_WIDE_STAGED_BYTES / MGL_WIDE_BOUNCES,
  MGL_WIDE_BLOCK_STAGE_BYTES = MGL_CUDA_BLOCK_ROWS * MGL_WIDE_K * 2,  // a column of a row block
  MGL_WIDE_COLUMN_BYTES = MGL_WIDE_TILE_TOKENS * MGL_WIDE_ROW_BYTES,  // and of x, in a stage
  MGL_WIDE_PANEL_COLUMNS = MGL_PANEL_K / MGL_WIDE_K,                  // of weights of codes
  // While workers wait for each other, the memory has nothing else to do: stages of weights fill
  // the ring, and so many columns beyond it go to the L2, before their task may run; a column every
  // so many cycles, some more than the memory takes for one of every worker. What is asked for
  // faster stands in line there, and what others wait for, sums and counters, stands behind it
  // (docs/log/148, 150).
  // In iterations of more tokens what they wait for moves so many bytes itself that only the ring
  // is filled.
  MGL_WIDE_PACE = MGL_WIDE_FEW ? 2000 : 0,
  MGL_WIDE_AHEAD_COLUMNS = MGL_WIDE_FEW ? 4 : 0,
  MGL_WIDE_AHEAD_PAGES = MGL_WIDE_FEW ? 1 : 0,  // of keys and values, for each warp
  // Kernels of the largest tiles have no experts (lower/stages.c), nor has the portable one.
  MGL_WIDE_EXPERTS = MGL_HAS_EXPERTS && MGL_WIDE_FEW && MGL_TARGET_WGMMA,
  // Wanted tiles are found by the producer, or, of ranks, before. With codes or ranks a producer of
  // the largest tiles has too few registers for it, and a call makes it spill in the loop that
  // fills the ring: so of codes of bytes they are found before as well, and nothing is called. Of
  // nibbles and of more ranks the kernel spills more without the call than with it (docs/log/317).
  MGL_WIDE_NIBBLES = (MGL_PACKINGS >> MGL_PACKING_I4) != 0,
  MGL_WIDE_WANTED_FIRST =
      MGL_TARGET_WGMMA && !MGL_WIDE_FEW && MGL_RANKS == 1 && MGL_HAS_CODES && !MGL_WIDE_NIBBLES,
  MGL_WIDE_WANTED_APART =
      !MGL_WIDE_FEW && !MGL_WIDE_WANTED_FIRST && (MGL_HAS_CODES || MGL_RANKS > 2),
  MGL_WIDE_BARRIER_CONSUMERS = 1,
  MGL_WIDE_BARRIER_GROUP = 2,  // and 3: of a warpgroup of consumers
};

// A task between producer, consumers and storer.
struct __align__(16) mgl_wide_slot : mgl_wide_op {
  mgl_cuda_step step;
};

// Behind the staged output in a block's shared memory.
struct mgl_wide_block {
  mgl_wide_slot slots[MGL_WIDE_SLOTS];
  // mbarriers; phase n of a slot's belongs to the n-th task in it.
  uint64_t go[MGL_WIDE_SLOTS];        // by the producer: the task may run
  uint64_t done[MGL_WIDE_SLOTS];      // by every consumer warp: its outputs are written, or staged
  uint64_t factored[MGL_WIDE_SLOTS];  // by the warp of factors: they are there, if there are any;
                                      // of attend, what its event says (mgl_wide_begins_early)
  uint64_t stored[MGL_WIDE_SLOTS];    // by the storer: the slot may be filled again
  uint64_t full[MGL_WIDE_STAGES];
  uint64_t empty[MGL_WIDE_STAGES];
  volatile uint32_t stop;
  volatile uint32_t given;  // 0, or one more than the steps that were handed over, of all
  uint32_t finished;        // by the storer: steps that are done
  uint32_t sent;            // by who sends: steps before this one of all lists are sent
  uint64_t bounced[MGL_WIDE_BOUNCES];  // mbarriers: a piece to be sent has arrived
  // The run's and the plan's; here, since polls drop what the L1 has of them.
  mgl_word *counters;
  uint32_t token_count, logit_rows, takes_rows;
  // Of MGL_WIDE_WANTED: the tiles of tokens that have a row with logits, how many, and a bit for
  // each. Of one rank, unless MGL_WIDE_WANTED_FIRST, the first op that asks finds them; until then
  // there are none.
  uint32_t wanted_count, wanted_bits;
  uint8_t wanted[(MGL_MAX_ITERATION_TOKENS + MGL_WIDE_TILE_TOKENS - 1) / MGL_WIDE_TILE_TOKENS];
  int64_t peers[MGL_RANKS];
  uint32_t rank;
  volatile uint32_t rests;  // 1: nothing is widened beside the task (linear/wide_widen.cuh)
  volatile uint32_t writes[MGL_WIDE_SLOTS];  // 1: the task has a result; 0: it only left its sums
  float __align__(16)
      factors[MGL_WIDE_SLOTS][MGL_WIDE_TILE_TOKENS];  // of the norm before, by token of the tile
  // Of experts_up and _down, by the producer.
  mgl_wide_expert_tile expert_tiles[MGL_WIDE_SLOTS];
};

static_assert(sizeof(mgl_wide_block) <= MGL_WIDE_BLOCK_BYTES, "it has its place");

// An mgl_mma_source says where a thread of the portable kernel finds its share of a tile's stages
// (wide_gemm_mma.cuh).
struct mgl_mma_source {
  const uint8_t *weights;
  const uint8_t *x;
  uint32_t x_column;      // bytes from a column of x to the next
  uint32_t weights_more;  // from this thread's first row block to its second one
  uint32_t blocks;        // of the two, those that there are
  uint32_t stages;
};

// A warp's view of its block.
struct mgl_wide_worker {
  mgl_wide_run *run;
  mgl_wide_block *block;
  uint8_t *memory;  // the ring; a task without stages may use it (mgl_wide_takes_ring)
  uint32_t stages;  // its address in shared memory
  uint8_t *staged;  // MGL_WIDE_STAGED_BYTES
  uint32_t warp, lane;
  uint32_t stage;  // stages of the ring used so far
  uint32_t slot, parity;
  uint32_t parts;  // of the tile's tokens, that are there (MGL_WIDE_PART_TOKENS)
#if !MGL_TARGET_WGMMA
  mgl_mma_source source;
#endif
};

// Of experts_up, what the rows' slots weigh: behind what it stages.
MGL_DEVICE float *mgl_wide_slot_weights(const mgl_wide_worker *w) {
  static_assert(!MGL_WIDE_EXPERTS || MGL_WIDE_TILE_TOKENS * (MGL_WIDE_ROW_BYTES +
                                                             MGL_WIDE_SLOTS * (int)sizeof(float)) <=
                                         MGL_WIDE_STAGED_BYTES,
                "room");
  return (float *)(w->staged + MGL_WIDE_TILE_TOKENS * MGL_WIDE_ROW_BYTES) +
         w->slot * MGL_WIDE_TILE_TOKENS;
}

MGL_DEVICE uint32_t mgl_wide_least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

// Bytes of a column of a row block of codes.
MGL_DEVICE uint32_t mgl_wide_column_bytes(mgl_packing packing) {
  return MGL_CUDA_BLOCK_ROWS * MGL_WIDE_K / 8 * mgl_packing_bits(packing);
}

// Stages of the ring that `columns` columns take, the first of which lacks some before them.
MGL_DEVICE uint32_t mgl_wide_ring_stages(uint32_t columns, uint32_t lacks) {
  return columns == 0 ? 0 : (columns + lacks + MGL_WIDE_COLUMNS - 1) / MGL_WIDE_COLUMNS;
}

MGL_DEVICE mgl_wide_worker mgl_wide_worker_of(mgl_wide_run *run, uint8_t *memory) {
  mgl_wide_worker w;
  w.run = run;
  w.memory = memory;
  w.stages = mgl_shared_address(memory);
#if MGL_TARGET_WGMMA
  w.staged = memory + MGL_WIDE_RING_BYTES;
  w.block = (mgl_wide_block *)(w.staged + MGL_WIDE_STAGED_BYTES);
#else
  w.staged = memory;
  w.block = (mgl_wide_block *)(memory + MGL_WIDE_MMA_RING_BYTES);
#endif
  w.warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  w.lane = threadIdx.x % 32;
  w.stage = 0;
  w.slot = 0;
  w.parity = 0;
  w.parts = 1;
  return w;
}

MGL_DEVICE void mgl_wide_next_slot(mgl_wide_worker *w) {
  w->slot ^= 1;
  w->parity ^= w->slot == 0 ? 1 : 0;
}

MGL_DEVICE bool mgl_wide_has_attention(const mgl_cuda_op *op) {
  return op->kind == MGL_OP_KV_WRITE || op->kind == MGL_OP_ATTEND ||
         (op->flags & MGL_WIDE_ROTATES) != 0;
}

// True for tasks that use the ring's memory as scratch. The producer asks for nothing meanwhile.
MGL_DEVICE bool mgl_wide_takes_ring(uint32_t kind) {
  return kind == MGL_OP_ATTEND;
}

// True for tasks that are handed over before their event is activated, since they begin with what
// does not depend on the iteration; for the rest they wait until `factored`.
MGL_DEVICE bool mgl_wide_begins_early(uint32_t kind) {
  return MGL_TARGET_WGMMA && kind == MGL_OP_ATTEND;
}

// Copies of the copy engine after this fence see what was written before it, and the other way
// round.
MGL_DEVICE void mgl_proxy_fence() {
#if MGL_TARGET_WGMMA
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

MGL_DEVICE void mgl_sync_wide_consumers() {
  mgl_block_sync<MGL_WIDE_BARRIER_CONSUMERS, MGL_WIDE_CONSUMERS>();
}

// All warps of the calling warp's warpgroup wait for each other.
MGL_DEVICE void mgl_sync_wide_group(uint32_t group) {
  if (group == 0) {
    mgl_block_sync<MGL_WIDE_BARRIER_GROUP, 128>();
  } else {
    mgl_block_sync<MGL_WIDE_BARRIER_GROUP + 1, 128>();
  }
}

// Until the phase ends. False: the launch was ended.
MGL_DEVICE bool mgl_wide_wait(mgl_wide_worker *w, uint64_t *barrier, uint32_t parity) {
  while (!mgl_mbarrier_try(barrier, parity)) {
    if (w->block->stop != 0) {
      return mgl_mbarrier_test(barrier, parity);  // it may have ended before
    }
  }
  return true;
}

// --- where a tile and its stages come from -------------------------------------------------------

// Where one tile has all tokens nobody reads weights again in this iteration, so they leave the L2
// first, and sums and activations, which are read and written again, stay there.
MGL_DEVICE uint64_t mgl_wide_weights_policy(bool once) {
  uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return once ? first : normal;
}

// A linear's tile, and what a task has of it.
struct mgl_wide_tile {
  uint32_t first_block, blocks;  // row blocks of the weights
  uint32_t token;                // the first token
  uint32_t tokens;               // that are in the plan; 0: nothing is to be done
  uint32_t split;                // of op.passes along k
  uint32_t number;               // among the op's tiles
  uint32_t first_stage, stages;  // of k
  bool whole;                    // all stages of k
  bool alone;                    // no other tile has these weights
  uint32_t blocks_before;        // row blocks of weights of the experts before, else 0
};

MGL_DEVICE bool mgl_wide_is_logits(const mgl_cuda_op *op) {
  return op->kind == MGL_OP_LOGITS;
}

// Linears of sorted rows.
MGL_DEVICE bool mgl_wide_is_of_experts(uint32_t kind) {
  return MGL_WIDE_EXPERTS && (kind == MGL_OP_EXPERTS_UP || kind == MGL_OP_EXPERTS_DOWN);
}

// Whether other tiles of the same step follow.
MGL_DEVICE bool mgl_wide_has_more(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  return mgl_wide_is_of_experts(slot->op.kind) &&
         (w->block->expert_tiles[w->slot].flags & MGL_WIDE_EXPERT_MORE) != 0;
}

MGL_DEVICE bool mgl_wide_is_up(uint32_t kind) {
  return MGL_WIDE_EXPERTS && kind == MGL_OP_EXPERTS_UP;
}

// Row blocks of an op's matrices, of one expert.
MGL_DEVICE uint32_t mgl_wide_row_blocks(const mgl_cuda_op *op) {
  const bool halves = op->kind == MGL_OP_GATE_UP || mgl_wide_is_up(op->kind);
  const uint32_t columns = halves ? MGL_CUDA_HALF_ROWS : MGL_CUDA_BLOCK_ROWS;
  return (op->n + columns - 1) / columns;
}

// Tiles of features of so many row blocks. Of experts they vary fastest among the tiles, so that
// those who read the same rows do so together.
MGL_DEVICE uint32_t mgl_wide_feature_tiles(uint32_t blocks) {
  return (blocks + MGL_WIDE_FEATURE_BLOCKS - 1) / MGL_WIDE_FEATURE_BLOCKS;
}

// Tiles of an op's tokens, of which the last one need not be whole.
MGL_DEVICE uint32_t mgl_wide_token_tiles(const mgl_cuda_op *op) {
  return (op->tokens + MGL_WIDE_TILE_TOKENS - 1) / MGL_WIDE_TILE_TOKENS;
}

// Of several ranks: whether anybody reads what an op makes of a tile of tokens. (Of one rank, steps
// are given such tiles alone.)
MGL_DEVICE bool mgl_wide_is_wanted(const mgl_wide_block *block, const mgl_cuda_op *op,
                                   uint32_t token) {
  return MGL_RANKS == 1 || (op->flags & MGL_WIDE_WANTED) == 0 ||
         (block->wanted_bits >> token / MGL_WIDE_TILE_TOKENS & 1) != 0;
}

// The same of the tile of a linear's step.
MGL_DEVICE bool mgl_wide_has_wanted(const mgl_wide_block *block, const mgl_cuda_op *op,
                                    uint32_t begin) {
  uint32_t tile = begin / (op->k_padded / MGL_WIDE_K) % mgl_wide_token_tiles(op);
  if ((op->flags & MGL_WIDE_TURNED) != 0) {
    tile = mgl_wide_turned(tile, block->rank, MGL_RANKS);
  }
  return mgl_wide_is_wanted(block, op, tile * MGL_WIDE_TILE_TOKENS);
}

MGL_DEVICE void mgl_wide_expert_rows(const mgl_wide_worker *w, uint32_t blocks,
                                     mgl_wide_tile *tile) {
  const mgl_wide_expert_tile *rows = &w->block->expert_tiles[w->slot];
  tile->first_block = tile->number % mgl_wide_feature_tiles(blocks) * MGL_WIDE_FEATURE_BLOCKS;
  tile->blocks = mgl_wide_least(blocks - tile->first_block, MGL_WIDE_FEATURE_BLOCKS);
  tile->token = rows->row;
  tile->tokens = rows->rows;
  tile->blocks_before = rows->expert * blocks;
  tile->alone = (rows->flags & MGL_WIDE_EXPERT_ALONE) != 0;
}

MGL_DEVICE mgl_wide_tile mgl_wide_tile_of(const mgl_wide_worker *w, const mgl_cuda_op *op,
                                          uint32_t begin, uint32_t end) {
  mgl_wide_tile tile;
  const uint32_t blocks = mgl_wide_row_blocks(op);
  uint32_t token_tiles = mgl_wide_token_tiles(op);
  uint32_t k_stages = op->k_padded / MGL_WIDE_K;
  uint32_t rows = op->kind == MGL_OP_LOGITS ? w->block->logit_rows : w->block->token_count;
  tile.number = begin / k_stages;
  tile.first_stage = begin % k_stages;
  tile.stages = end - begin;
  tile.whole = tile.stages == k_stages;
  // Split i begins at stage k_stages i / passes, and there are no more splits than stages.
  tile.split = (tile.first_stage * op->passes + op->passes - 1) / k_stages;
  tile.blocks_before = 0;
  tile.alone = op->tokens <= MGL_WIDE_TILE_TOKENS;
  if (mgl_wide_is_of_experts(op->kind)) {
    mgl_wide_expert_rows(w, blocks, &tile);
    return tile;
  }
  tile.first_block = tile.number / token_tiles * MGL_WIDE_FEATURE_BLOCKS;
  tile.blocks = mgl_wide_least(blocks - tile.first_block, MGL_WIDE_FEATURE_BLOCKS);
  tile.token = tile.number % token_tiles;
  if (MGL_RANKS > 1 && (op->flags & MGL_WIDE_TURNED) != 0) {
    tile.token = mgl_wide_turned(tile.token, w->block->rank, MGL_RANKS);
  }
  tile.token *= MGL_WIDE_TILE_TOKENS;
  const bool there = rows > tile.token && begin < end;
  tile.tokens = there ? mgl_wide_least(rows - tile.token, MGL_WIDE_TILE_TOKENS) : 0;
  return tile;
}

MGL_DEVICE mgl_wide_tile mgl_wide_tile_of(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  return mgl_wide_tile_of(w, &slot->op, slot->step.begin, slot->step.end);
}

// Bytes of a column of x: of the tokens that are there, in whole swizzles. What lies behind them in
// the stage only reaches sums of tokens that are not.
MGL_DEVICE uint32_t mgl_wide_x_bytes_of(const mgl_wide_tile *tile) {
  return (tile->tokens + MGL_WIDE_ROWS - 1) / MGL_WIDE_ROWS * (MGL_WIDE_ROWS * MGL_WIDE_ROW_BYTES);
}

// The ring is as fast as its producer. A copy takes it 140 cycles where the compiler does not see
// that all lanes have the same operands, since it makes a loop over lanes of it then. What it does
// see is what one lane gives to all, and a branch for one lane that the hardware elects
// (docs/log/130, 134).
MGL_DEVICE uint32_t mgl_wide_uniform(uint32_t value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

MGL_DEVICE const uint8_t *mgl_wide_uniform(const uint8_t *value) {
  const uint64_t bits = (uint64_t)value;
  return (const uint8_t *)((uint64_t)mgl_wide_uniform((uint32_t)(bits >> 32)) << 32 |
                           mgl_wide_uniform((uint32_t)bits));
}

MGL_DEVICE bool mgl_wide_elect() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

// An mgl_wide_source says where a tile's stages come from; it is found once, and the same in all
// lanes.
struct mgl_wide_source {
  const uint8_t *weights;  // of the first row block: the first column; of codes, the first panel
  uint64_t policy;         // of the L2 for them
  uint32_t row_bytes;      // from a row block to the next one
  uint32_t blocks;
  const uint8_t *x;
  uint32_t x_column;  // bytes from a column of x to the next one
  uint32_t x_bytes;   // of a column
  uint32_t columns;
  uint32_t column_bytes;  // of a row block's weights
  uint32_t pace;          // cycles for a column ahead of the event
  uint32_t ahead;         // columns for the L2, ahead of the event
  // Of codes, else 0: the first column's number in its row, and how many columns its stage lacks
  // before it, so that stages begin where groups do; bytes of a panel.
  uint32_t first, lacks, panel_bytes;
};

// Weights of codes: their columns lie in panels, and have fewer bytes, so that they come faster.
MGL_DEVICE void mgl_wide_source_codes(const mgl_wide_slot *slot, const mgl_wide_tile *tile,
                                      mgl_wide_source *s) {
  const mgl_packing packing = (mgl_packing)mgl_wide_uniform(mgl_op_packing(&slot->op));
  const bool one_tile = slot->op.tokens <= MGL_WIDE_TILE_TOKENS;
  s->first = s->lacks = s->panel_bytes = 0;
  if (!one_tile) {  // what is asked for ahead of it would be in the way (MGL_WIDE_PACE)
    s->pace = s->ahead = 0;
  }
  if (packing == MGL_PACKING_BF16) {
    return;
  }
  s->panel_bytes = mgl_wide_uniform(mgl_op_panel_bytes(&slot->op));
  s->row_bytes = mgl_panels_of(slot->op.k) * s->panel_bytes;
  s->row_bytes = mgl_wide_uniform(s->row_bytes);
  s->weights = mgl_wide_uniform(slot->op.weights + (uint64_t)tile->first_block * s->row_bytes);
  s->column_bytes = mgl_wide_column_bytes(packing);
  s->first = mgl_wide_uniform(tile->first_stage);
  s->lacks = s->first % MGL_WIDE_COLUMNS;
  const uint32_t times = MGL_WIDE_BLOCK_STAGE_BYTES / s->column_bytes;
  s->pace /= times;
  s->ahead *= times;
}

MGL_DEVICE mgl_wide_source mgl_wide_source_of(const mgl_wide_slot *slot,
                                              const mgl_wide_tile *tile) {
  mgl_wide_source s;
  s.row_bytes = mgl_wide_uniform(slot->op.k_padded * (MGL_CUDA_BLOCK_ROWS * 2));
  const uint64_t first_block = tile->first_block + (MGL_WIDE_EXPERTS ? tile->blocks_before : 0);
  s.weights = mgl_wide_uniform(slot->op.weights + first_block * s.row_bytes +
                               tile->first_stage * MGL_WIDE_BLOCK_STAGE_BYTES);
  s.policy = mgl_wide_weights_policy(tile->alone);
  s.blocks = mgl_wide_uniform(tile->blocks);
  s.x_column = mgl_wide_uniform(slot->op.tokens * MGL_WIDE_ROW_BYTES);
  s.x_bytes = mgl_wide_uniform(mgl_wide_x_bytes_of(tile));
  s.x = mgl_wide_uniform((const uint8_t *)slot->op.x + tile->first_stage * (uint64_t)s.x_column +
                         (uint64_t)tile->token * MGL_WIDE_ROW_BYTES);
  s.columns = mgl_wide_uniform(tile->tokens == 0 ? 0 : tile->stages);
  s.column_bytes = MGL_WIDE_BLOCK_STAGE_BYTES;
  s.pace = MGL_WIDE_PACE;
  s.ahead = MGL_WIDE_AHEAD_COLUMNS;
  if constexpr (MGL_HAS_CODES) {
    mgl_wide_source_codes(slot, tile, &s);
  } else {
    s.first = s.lacks = s.panel_bytes = 0;
  }
  return s;
}

// The tile's first column in its stage `index` of the ring, and how many there are.
MGL_DEVICE uint32_t mgl_wide_column_of(const mgl_wide_source *source, uint32_t index) {
  return index * MGL_WIDE_COLUMNS - (index == 0 ? 0 : source->lacks);
}

MGL_DEVICE uint32_t mgl_wide_columns_in(const mgl_wide_source *source, uint32_t index) {
  return mgl_wide_least(source->columns - mgl_wide_column_of(source, index),
                        MGL_WIDE_COLUMNS - (index == 0 ? source->lacks : 0));
}

// Where the first row block's weights of a column of the tile lie. Columns of a stage follow each
// other.
MGL_DEVICE const uint8_t *mgl_wide_weights_at(const mgl_wide_source *source, uint32_t column) {
  if (!MGL_HAS_CODES || source->panel_bytes == 0) {
    return source->weights + column * MGL_WIDE_BLOCK_STAGE_BYTES;
  }
  const uint32_t at = source->first + column;
  return source->weights + at / MGL_WIDE_PANEL_COLUMNS * source->panel_bytes +
         at % MGL_WIDE_PANEL_COLUMNS * source->column_bytes;
}

// The weights of stage `index` of the tile. All of the stage's bytes are announced. (Row blocks
// that are there at once need no branch between copies: then they are one instruction each.)
MGL_DEVICE void mgl_wide_load_weights(mgl_wide_worker *w, const mgl_wide_source *source,
                                      uint32_t at, uint32_t index) {
  constexpr uint32_t bytes = MGL_WIDE_COLUMNS * MGL_WIDE_BLOCK_STAGE_BYTES;  // of a row block
  const uint32_t stage = at % MGL_WIDE_STAGES, columns = mgl_wide_columns_in(source, index);
  const uint32_t block_bytes = columns * source->column_bytes;
  uint64_t *full = &w->block->full[stage];
  if (mgl_wide_elect()) {
    const uint32_t to = w->stages + stage * MGL_WIDE_STAGE_BYTES;
    const uint8_t *from = mgl_wide_weights_at(source, mgl_wide_column_of(source, index));
    mgl_mbarrier_expect_at(mgl_shared_address(full),
                           source->blocks * block_bytes + columns * source->x_bytes);
    if (source->blocks == MGL_WIDE_FEATURE_BLOCKS) {
#pragma unroll
      for (uint32_t i = 0; i < MGL_WIDE_FEATURE_BLOCKS; i++) {
        mgl_bulk_copy_by(source->policy, to + i * bytes, from, block_bytes,
                         mgl_shared_address(full));
        from += source->row_bytes;
      }
    } else {
#pragma unroll 1
      for (uint32_t i = 0; i < source->blocks; i++) {
        mgl_bulk_copy_by(source->policy, to + i * bytes, from, block_bytes,
                         mgl_shared_address(full));
        from += source->row_bytes;
      }
    }
  }
}

MGL_DEVICE void mgl_wide_load_x(mgl_wide_worker *w, const mgl_wide_source *source, uint32_t at,
                                uint32_t index) {
  const uint32_t stage = at % MGL_WIDE_STAGES, columns = mgl_wide_columns_in(source, index);
  if (mgl_wide_elect()) {
    const uint32_t to = w->stages + stage * MGL_WIDE_STAGE_BYTES + MGL_WIDE_WEIGHT_BYTES;
    const uint8_t *from =
        source->x + (uint64_t)mgl_wide_column_of(source, index) * source->x_column;
#pragma unroll
    for (uint32_t i = 0; i < MGL_WIDE_COLUMNS; i++) {
      if (i < columns) {
        mgl_bulk_copy_at(to + i * MGL_WIDE_COLUMN_BYTES, from + (uint64_t)i * source->x_column,
                         source->x_bytes, mgl_shared_address(&w->block->full[stage]));
      }
    }
  }
}

typedef enum mgl_wide_state { MGL_WIDE_CLOSED, MGL_WIDE_OPEN, MGL_WIDE_ENDED } mgl_wide_state;

// Whether the step's event is activated, or the launch was ended.
MGL_DEVICE mgl_wide_state mgl_wide_look(const mgl_wide_worker *w, const mgl_cuda_step *step) {
  uint32_t state = MGL_WIDE_OPEN;
  if (step->wait_event != MGL_NO_EVENT && w->lane == 0) {
    const uint64_t fault = mgl_load_relaxed(&w->run->fault);  // both are on their way at once
    const mgl_word *counter = &w->block->counters[step->wait_event];
    // Acquire, paired with the releases of the triggers, of all ranks.
    const uint64_t triggers =
        MGL_RANKS > 1 ? mgl_load_acquire_system(counter) : mgl_load_acquire(counter);
    if (triggers < step->wait_count) {
      state = fault == MGL_WIDE_FAULT_NONE ? MGL_WIDE_CLOSED : MGL_WIDE_ENDED;
    } else {
      mgl_proxy_fence();
    }
  }
  return (mgl_wide_state)__shfl_sync(0xffffffffu, state, 0);
}

// Until the step's event is activated. False: the launch was ended.
MGL_DEVICE bool mgl_wide_wait_event(const mgl_wide_worker *w, const mgl_cuda_step *step) {
  mgl_wide_state state;
  while ((state = mgl_wide_look(w, step)) == MGL_WIDE_CLOSED) {
    mgl_relax();
  }
  return state == MGL_WIDE_OPEN;
}

// When the first worker began a stage, for those who ask where the time goes.
MGL_DEVICE void mgl_wide_note_stage(const mgl_wide_worker *w, const mgl_cuda_step *step) {
  if (blockIdx.x == 0 && w->lane == 0 && w->run->stage_ns != nullptr &&
      w->run->stage_ns[step->trigger_event] == 0) {
    w->run->stage_ns[step->trigger_event] = mgl_global_ns();
  }
}

// --- the storer ----------------------------------------------------------------------------------

// Stores what gate_up staged, a tile of a column of x.
MGL_DEVICE void mgl_wide_store_staged(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const mgl_wide_tile tile = mgl_wide_tile_of(w, slot);
  if (tile.tokens == 0 || w->block->writes[w->slot] == 0) {
    return;
  }
  uint64_t column = tile.first_block / MGL_WIDE_FEATURE_BLOCKS;
  uint8_t *to =
      (uint8_t *)slot->op.out + (column * slot->op.tokens + tile.token) * MGL_WIDE_ROW_BYTES;
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(mgl_shared_address(w->staged)), "r"(mgl_wide_x_bytes_of(&tile))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  mgl_proxy_fence();
}

// One thread.
MGL_DEVICE void mgl_wide_store(mgl_wide_worker *w) {
  uint32_t finished = 0;
  while (mgl_wide_wait(w, &w->block->go[w->slot], w->parity)) {
    const mgl_wide_slot *slot = &w->block->slots[w->slot];
    mgl_mbarrier_wait(&w->block->done[w->slot], w->parity);
    if (slot->op.kind == MGL_OP_GATE_UP || mgl_wide_is_up(slot->op.kind)) {
      mgl_wide_store_staged(w, slot);
    }
    if (slot->step.trigger_event != MGL_NO_EVENT && !mgl_wide_has_more(w, slot)) {
      mgl_add_release(&w->block->counters[slot->step.trigger_event], 1);
    }
    mgl_mbarrier_arrive(&w->block->stored[w->slot]);
    mgl_wide_next_slot(w);
    if (MGL_RANKS > 1) {
      // Release of what the step's consumers have written, for who sends it.
      mgl_shared_store_release(mgl_shared_address(&w->block->finished), ++finished);
    }
  }
}

#endif
