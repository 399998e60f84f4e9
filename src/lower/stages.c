// Large iterations as stages: a stage is one op, or two that wait for the same; its steps are
// spread over all workers, and the next stage waits for all of them.
//
//   requires  a program that mgl_fuse_ops_cuda made
//   ensures   every op's units are cut without gap; events are the ends of stages, in order; a
//             tile's steps stand as twin/wide_run.h asks, so that nobody waits for ever; of several
//             ranks all have the same steps
//
// A stage's end costs some eight microseconds; so norms and the rotation, which are short, are done
// by those who have made a tile of the linear before, where its tiles are few (MGL_WIDE_WEIGHS,
// MGL_WIDE_ROTATES).
#include <assert.h>
#include <string.h>

#include "lower/lower_parts.h"
#include "lower/packed.h"
#include "lower/stages.h"
#include "lower/stages_builder.h"
#include "twin/wide_layout.h"
#include "twin/wide_run.h"

enum { UNIT_TOKENS = 8 };  // of embed and of norms

// The first linear from `op` on, or NULL.
static const mgl_op *linear_from(const builder *b, const mgl_op *op) {
  const mgl_op *end = b->program->ops + b->program->op_count;
  while (op < end && mgl_packed_matrices_of(b->program, op).count == 0) {
    op++;
  }
  return op < end ? op : NULL;
}

// Makes bf16 of a linear's codes, for a linear that waits for the stage that has just ended: beside
// all stages since what read the region before, by warps that have nothing else to do.
static void add_widening(builder *b, const mgl_op *op) {
  const uint32_t wait = b->region_read[mgl_stages_widened(b->program, op)];
  const uint32_t panels = mgl_stages_panels(b->program, op), workers = b->options->workers;
  const uint32_t steps = panels < workers ? panels : workers;
  mgl_schedule_op out = simple(b, (mgl_op_kind)MGL_WIDE_WIDEN, op, panels);
  out.flags = MGL_WIDE_BESIDE;
  for (uint32_t i = 0; i < steps; i++) {
    put_step(b, b->op_count, &out, i, (uint32_t)((uint64_t)panels * i / steps),
             (uint32_t)((uint64_t)panels * (i + 1) / steps), wait, b->ready[0][ROWS_OF_OWN]);
  }
  b->stage_count--;
  add_op(b, &out);
  b->stage_count++;
}

// --- linears -------------------------------------------------------------------------------------

// How the tiles of a linear become steps.
typedef struct tile_cut {
  // RESUMED: of the first tiles, which the last round is part of, some are two steps of which one
  // goes on with the other one's sums (MGL_WIDE_RESUMES).
  enum { WHOLE, SPLIT, EVEN, RESUMED } how;
  uint32_t passes;  // SPLIT: steps of each tile, all of them at once, each a worker's only one
} tile_cut;

static const mgl_op *attend_behind(const builder *b, const mgl_op *op) {
  while (op->kind != MGL_OP_ATTEND) {
    op++;
    assert(op < b->program->ops + b->program->op_count);
  }
  return op;
}

// MGL_WIDE_WANTED, if of what an op makes only rows with logits are read: no attention is behind
// it. Rows of experts are others.
static uint32_t wanted_flag(const builder *b, const mgl_op *op) {
  bool wanted = op->kind != MGL_OP_LOGITS && !mgl_stages_has_experts(b->program);
  for (const mgl_op *at = op; wanted && at < b->program->ops + b->program->op_count; at++) {
    wanted = at->kind != MGL_OP_ATTEND;
  }
  return wanted ? (uint32_t)MGL_WIDE_WANTED : 0;
}

// Whether a stage's end and an idle worker cost more than what sharing tiles of the graph does.
static bool has_few_tokens(const builder *b) {
  return b->options->tokens == b->options->tile_tokens ||
         (b->options->tokens <= MGL_WIDE_MOST_TILE && !mgl_stages_has_ranks(b->program));
}

// Whether a qkv_proj can do the rotation: heads lie within tiles.
static bool can_rotate(const builder *b, const mgl_op *op) {
  const mgl_op *attend = attend_behind(b, op);
  uint32_t head_dim = b->program->tensors[attend->inputs[1]].dims[1].number;
  return has_few_tokens(b) && MGL_WIDE_FEATURES % head_dim == 0;
}

enum { JOIN_STAGES = 16 };  // of k, below which joining steps of a tile costs more than it gains

// Whether tiles of a last round are worth sharing out to all workers, by steps that go on with
// sums that others have left: where each worker so has less to do by as much as joining needs. Not
// where it is not known which tiles there are.
static bool is_resumed(const builder *b, const mgl_op *op, uint32_t tiles, uint32_t k_stages) {
  const uint32_t workers = b->options->workers, last = tiles % workers;
  const bool can = b->options->tile_tokens == MGL_WIDE_MOST_TILE && tiles > workers && last > 0 &&
                   op->kind != MGL_OP_LOGITS && !has_few_tokens(b) &&
                   !mgl_stages_has_ranks(b->program) && wanted_flag(b, op) == 0;
  return can && (uint64_t)(workers - last) * k_stages > (uint64_t)workers * JOIN_STAGES;
}

// Parts of linear_add cost little, since whoever does the norm behind it adds them: as many as
// there are workers for; and so with qkv_proj and the rotation. Other linears pay for joining two
// parts of a tile: that is done where half of the workers would have nothing to do, and with few
// tokens, or the small tiles of mixtures, where the last round of tiles would leave most workers
// without one (docs/log/082, 300).
static tile_cut cut_of(const builder *b, const mgl_op *op, uint32_t tiles, uint32_t k_stages) {
  enum { MOST_IDLE = 15 };  // percent of a tile's time
  bool joins = k_stages > JOIN_STAGES && op->kind != MGL_OP_LOGITS;
  uint32_t workers = b->options->workers;
  uint32_t most = workers / tiles;
  most = most < MGL_STAGES_MAX_SPLITS ? most : MGL_STAGES_MAX_SPLITS;
  most = most < k_stages ? most : k_stages;
  if (most >= 1 &&
      (op->kind == MGL_OP_LINEAR_ADD || (op->kind == MGL_OP_QKV_PROJ && can_rotate(b, op)))) {
    return (tile_cut){SPLIT, most};
  }
  if (mgl_stages_ranks(b->program, op) > 1) {
    return (tile_cut){WHOLE, 1};  // sums that are to be joined would have to be joined first
  }
  if (joins && most >= MGL_STAGES_JOINED) {
    return (tile_cut){SPLIT, MGL_STAGES_JOINED};
  }
  uint64_t slots = (uint64_t)mgl_ceil_div(tiles, workers) * workers;
  bool idle = slots * 100 > tiles * (UINT64_C(100) + MOST_IDLE);
  if (is_resumed(b, op, tiles, k_stages)) {
    return (tile_cut){RESUMED, 1};
  }
  const bool even =
      has_few_tokens(b) || mgl_stages_expert_tile(b->program, b->options->tokens) != 0;
  return (tile_cut){joins && most == 0 && idle && even ? EVEN : WHOLE, 1};
}

// Cycles that a worker needs for a linear, for all that depends on how large tiles are: a stage of
// k takes what its products, its copies into shared memory or its weights' way from memory take,
// whichever is longest; then sums of a tile that is split are left and read again.
static uint64_t linear_cycles(const builder *b, const mgl_op *op) {
  enum { PRODUCTS = 2048 };        // of bf16, a cycle (sm_90)
  enum { COPIES = 55 };            // bytes a cycle from the L2
  enum { SUMS = 50 };              // and of sums, to it and back
  enum { MEMORY_PERCENT = 1900 };  // bytes a cycle from memory, a worker's share of 4.5 TB/s
  const mgl_stages_options *o = b->options;
  mgl_packed_matrices m = mgl_packed_matrices_of(b->program, op);
  uint32_t rows = op->kind == MGL_OP_LOGITS ? mgl_stages_gathered_rows(o) : o->tokens;
  uint32_t k_stages = m.k_padded / MGL_WIDE_K;
  uint32_t tiles =
      mgl_ceil_div(m.row_blocks, MGL_WIDE_FEATURE_BLOCKS) * mgl_ceil_div(rows, o->tile_tokens);
  tile_cut cut = cut_of(b, op, tiles, k_stages);
  uint64_t weights = UINT64_C(2) * MGL_WIDE_FEATURES * MGL_WIDE_K;  // bytes of a stage
  uint64_t cycles = (uint64_t)MGL_WIDE_FEATURES * MGL_WIDE_K * o->tile_tokens / PRODUCTS;
  uint64_t copies = (weights + UINT64_C(2) * MGL_WIDE_K * o->tile_tokens) / COPIES;
  uint64_t memory = weights * 100 * o->tile_tokens / rows / MEMORY_PERCENT;
  cycles = copies > cycles ? copies : cycles;
  cycles = memory > cycles ? memory : cycles;
  uint64_t stages = cut.how == EVEN ? mgl_ceil_div(tiles * k_stages, o->workers)
                                    : (uint64_t)mgl_ceil_div(tiles * cut.passes, o->workers) *
                                          mgl_ceil_div(k_stages, cut.passes);
  uint64_t sums =
      cut.how == SPLIT ? UINT64_C(2) * 4 * MGL_WIDE_FEATURES * o->tile_tokens / SUMS : 0;
  return stages * cycles + sums;
}

// The next smaller tiles that divide so many tokens; 0: there are none.
static uint32_t next_tile(uint32_t tokens, uint32_t tile) {
  return tile <= MGL_WIDE_LEAST_TILE                                ? 0
         : tokens % (tile / 2) == 0 && tile != MGL_WIDE_MIDDLE_TILE ? tile / 2
                                                                    : (uint32_t)MGL_WIDE_LEAST_TILE;
}

// Whether so many cycles are worth other tiles, or a graph of its own: smaller tiles read weights
// again, if out of the L2.
static bool is_worth(uint64_t cycles, uint64_t others) {
  enum { WORTH_PERCENT = 90 };
  return cycles < others / 100 * WORTH_PERCENT;
}

// Tokens of the tiles with which the linears of a graph take the least cycles, and these.
static uint32_t best_tile(const mgl_graph *program, uint32_t tokens, uint32_t most,
                          const mgl_stages_graphs *of, uint64_t *out_cycles) {
  uint32_t best = tokens < most ? tokens : most;
  *out_cycles = UINT64_MAX;
  for (uint32_t tile = best; tile >= MGL_WIDE_LEAST_TILE; tile = next_tile(tokens, tile)) {
    const mgl_stages_options options = {.tokens = tokens,
                                        .tile_tokens = tile,
                                        .logit_rows = of->logit_rows,
                                        .workers = of->workers};
    const builder b = {.program = program, .options = &options};
    uint64_t cycles = 0;
    for (size_t i = 0; i < program->op_count; i++) {
      if (mgl_packed_matrices_of(program, &program->ops[i]).count > 0) {
        cycles += linear_cycles(&b, &program->ops[i]);
      }
    }
    if (*out_cycles == UINT64_MAX || is_worth(cycles, *out_cycles)) {
      best = tile;
      *out_cycles = cycles;
    }
  }
  return best;
}

uint32_t mgl_stages_tile_tokens(const mgl_graph *program, uint32_t tokens, uint32_t most,
                                const mgl_stages_graphs *of) {
  uint64_t cycles;
  const uint32_t of_experts = mgl_stages_expert_tile(program, tokens);
  if (of_experts != 0) {
    return of_experts;
  }
  if (tokens > MGL_WIDE_MOST_TILE || mgl_stages_has_ranks(program)) {
    return tokens < most ? tokens : most;
  }
  return best_tile(program, tokens, most, of, &cycles);
}

bool mgl_stages_has_middle(const mgl_graph *program, const mgl_stages_graphs *of) {
  uint64_t middle, most;
  if (!of->few || mgl_stages_has_ranks(program) || mgl_stages_has_experts(program) ||
      mgl_packed_has_codes(program)) {
    return false;
  }
  (void)best_tile(program, MGL_WIDE_MIDDLE_TILE, MGL_WIDE_MOST_TILE, of, &middle);
  (void)best_tile(program, MGL_WIDE_MOST_TILE, MGL_WIDE_MOST_TILE, of, &most);
  return is_worth(middle, most);
}

// Where worker `worker` begins in the line of all stages of k of all tiles: not near a tile's end.
static uint32_t even_cut(const builder *b, uint32_t tiles, uint32_t k_stages, uint32_t worker) {
  enum { SNAP = 4 };
  uint32_t at = (uint32_t)((uint64_t)tiles * k_stages * worker / b->options->workers);
  uint32_t inside = at % k_stages;
  if (inside < SNAP) {
    return at - inside;
  }
  return k_stages - inside < SNAP ? at + k_stages - inside : at;
}

// The line of the first tiles, of which each worker has one or two by length, is cut evenly. A
// worker goes through its length from the end: it begins with a tile's first stages, and ends with
// the last ones of a tile whose first ones have been the next worker's first step. All that follows
// are whole rounds.
static void add_resumed_steps(builder *b, const mgl_schedule_op *op, uint32_t k_stages) {
  const uint32_t workers = b->options->workers, line = workers + op->tiles % workers;
  for (uint32_t worker = 0; worker < workers; worker++) {
    const uint32_t begin = even_cut(b, line, k_stages, worker);
    for (uint32_t at = even_cut(b, line, k_stages, worker + 1), next = 0; at > begin; at = next) {
      next = (at - 1) / k_stages * k_stages;
      next = next > begin ? next : begin;
      add_step(b, op, worker, next, at);
    }
  }
  for (uint32_t tile = line; tile < op->tiles; tile++) {
    add_step(b, op, tile % workers, tile * k_stages, (tile + 1) * k_stages);
  }
}

static void add_linear_steps(builder *b, const mgl_schedule_op *op, const tile_cut *cut,
                             uint32_t k_stages) {
  const uint32_t workers = b->options->workers, tiles = op->tiles;
  if (cut->how == RESUMED) {
    add_resumed_steps(b, op, k_stages);
    return;
  }
  if (cut->how == EVEN) {
    for (uint32_t worker = 0; worker < workers; worker++) {
      uint32_t end = even_cut(b, tiles, k_stages, worker + 1);
      for (uint32_t at = even_cut(b, tiles, k_stages, worker), next = 0; at < end; at = next) {
        next = (at / k_stages + 1) * k_stages;
        next = next < end ? next : end;
        add_step(b, op, worker, at, next);
      }
    }
    return;
  }
  for (uint32_t split = 0; split < cut->passes; split++) {
    for (uint32_t tile = 0; tile < tiles; tile++) {
      add_step(b, op, b->stage_steps % workers, tile * k_stages + k_stages * split / cut->passes,
               tile * k_stages + k_stages * (split + 1) / cut->passes);
    }
  }
}

// Of a linear_add over ranks every split is a part that all ranks add in the norm behind it; where
// the linear does the norm too, the splits' sum is.
static void send_parts(builder *b, const tile_cut *cut, uint32_t ranks, mgl_schedule_op *out) {
  const mgl_op *op = &b->program->ops[out->op];
  uint32_t features = (uint32_t)mgl_tensor_row_elements(&b->program->tensors[op->output]);
  const mgl_op *next = linear_from(b, op + 1);
  const uint64_t part = mgl_stages_stream_bytes(b->options->tokens, features);
  b->weighed = has_few_tokens(b) && cut->passes > 1 && next->kind != MGL_OP_LOGITS;
  const uint64_t bytes = ranks * (b->weighed ? 1 : cut->passes) * part;
  b->turned = mgl_stages_turn(b->options, ranks);
  out->flags = MGL_WIDE_OVER | (b->turned ? MGL_WIDE_SCATTERS | MGL_WIDE_TURNED : 0);
  out->splits = cut->passes;
  b->splits = ranks * cut->passes;
  if (b->weighed) {
    out->flags |= MGL_WIDE_WEIGHS;
    out->with = (uint32_t)(next - b->program->ops);
    out->first_shared = b->shared_tiles;
    b->shared_tiles += out->tiles;
    b->part_bytes = cut->passes * part > b->part_bytes ? cut->passes * part : b->part_bytes;
  }
  b->inbox_bytes = bytes > b->inbox_bytes ? bytes : b->inbox_bytes;
}

// What becomes of the sums of a tile's steps, and room for them.
static void share_tiles(builder *b, const mgl_op *op, const tile_cut *cut, mgl_schedule_op *out) {
  uint64_t bytes =
      (uint64_t)out->tiles * MGL_WIDE_FEATURES * b->options->tile_tokens * sizeof(float);
  uint32_t shared = out->tiles;
  const uint32_t ranks = mgl_stages_ranks(b->program, op);
  if (ranks > 1) {
    out->flags = MGL_WIDE_OVER;
    if (op->kind == MGL_OP_LINEAR_ADD) {
      send_parts(b, cut, ranks, out);
    }
    return;
  }
  if (op->kind == MGL_OP_LINEAR_ADD) {
    const mgl_op *next = linear_from(b, op + 1);
    uint32_t features = (uint32_t)mgl_tensor_row_elements(&b->program->tensors[op->output]);
    out->splits = cut->passes;
    bytes = cut->passes * mgl_stages_stream_bytes(b->options->tokens, features);
    b->splits = cut->passes;
    b->weighed = has_few_tokens(b) && cut->passes > 1 && next->kind != MGL_OP_LOGITS;
    if (b->weighed) {
      out->flags = MGL_WIDE_WEIGHS;
      out->with = (uint32_t)(next - b->program->ops);
    }
  } else if (op->kind == MGL_OP_QKV_PROJ && cut->how == SPLIT && can_rotate(b, op)) {
    b->rotated = true;
    out->splits = cut->passes;
    out->flags = MGL_WIDE_ROTATES;
    out->with = (uint32_t)(attend_behind(b, op) - b->program->ops);
    bytes *= cut->passes;
  }
  if (cut->how == RESUMED) {
    out->flags = MGL_WIDE_RESUMES;
    shared = mgl_stages_resumed_tiles(out->tiles, b->options->workers);
    bytes = (uint64_t)shared * MGL_WIDE_FEATURES * b->options->tile_tokens * sizeof(float);
  }
  if (cut->passes > 1 || cut->how == EVEN || out->flags != 0) {
    out->first_shared = b->shared_tiles;
    b->shared_tiles += shared;
    b->part_bytes = bytes > b->part_bytes ? bytes : b->part_bytes;
  }
}

// --- sums of which each rank has its own rows ----------------------------------------------------
//
// Tiles of tokens are turned (MGL_WIDE_TURNED): of every R tiles number 0 is this rank's own. They
// form chains, each with events of its own, so that the sums of a chain travel while the other's
// products run.

// Of the tiles of tokens; there are whole groups of a tile of each rank.
static uint32_t chains_of(const builder *b) {
  const uint32_t groups =
      b->options->tokens / b->options->tile_tokens / mgl_stages_ranks_of_sums(b->program);
  return groups % MGL_STAGES_CHAINS == 0 ? MGL_STAGES_CHAINS : 1;
}

uint32_t mgl_stages_border(const mgl_graph *program, const mgl_stages_options *options) {
  const builder b = {.program = program, .options = options};
  const uint32_t ranks = mgl_stages_ranks_of_sums(program), chains = MGL_STAGES_CHAINS;
  const uint32_t of_rows = options->tokens / options->tile_tokens;
  // Chains of one tile of tokens for each rank have too little to hide what they wait for behind:
  // with them Qwen3-8B took 6% longer for 1024 tokens (docs/log/301). Nor may steps of a tile wait
  // for each other, which stand first in their stage.
  bool can =
      mgl_stages_turn(options, ranks) && of_rows / ranks >= 2 * chains && chains_of(&b) == chains;
  for (const mgl_op *op = program->ops; op < program->ops + program->op_count && can; op++) {
    const mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
    const uint32_t tiles = mgl_ceil_div(m.row_blocks, MGL_WIDE_FEATURE_BLOCKS) * of_rows;
    can = mgl_stages_mixture_of(program, op).experts == 0;
    if (can && m.count > 0 && op->kind != MGL_OP_LINEAR_ADD && op->kind != MGL_OP_LOGITS) {
      can = cut_of(&b, op, tiles, m.k_padded / MGL_WIDE_K).passes == 1;
    }
  }
  return can ? options->tokens / chains : 0;
}

// Steps of the linear that is added next, of the tiles of a chain that are this rank's, or others'.
static void add_turned_steps(builder *b, uint32_t idx, const mgl_schedule_op *op,
                             const tile_cut *cut, uint32_t chain, row_owner owner,
                             uint32_t trigger) {
  const uint32_t ranks = mgl_stages_ranks_of_sums(b->program),
                 of_rows = op->rows / b->options->tile_tokens;
  const uint32_t k_stages = op->units / op->tiles, chains = chains_of(b);
  const uint32_t first = of_rows / ranks * chain / chains * ranks;
  const uint32_t last = of_rows / ranks * (chain + 1) / chains * ranks;
  // Which tiles of tokens are wanted is not known here; each one's are as many workers' as it has.
  const bool wanted = (op->flags & MGL_WIDE_WANTED) != 0;
  const uint32_t of_features = op->tiles / of_rows;
  for (uint32_t split = 0; split < cut->passes; split++) {
    for (uint32_t i = 0; i < op->tiles; i++) {
      const uint32_t tile = wanted ? i % of_features * of_rows + i / of_features : i;
      const uint32_t of_tokens = tile % of_rows;
      const row_owner is = of_tokens % ranks == 0 ? ROWS_OF_OWN : ROWS_OF_OTHERS;
      if (of_tokens >= first && of_tokens < last && is == owner) {
        put_step(b, idx, op, b->stage_steps++ % b->options->workers,
                 tile * k_stages + k_stages * split / cut->passes,
                 tile * k_stages + k_stages * (split + 1) / cut->passes, b->ready[chain][owner],
                 trigger);
      }
    }
  }
}

// Whether the first chain's own tiles are work for all, behind which the other one's norm can wait.
static bool own_tiles_last(const builder *b, const mgl_op *linear) {
  const uint32_t blocks = mgl_packed_matrices_of(b->program, linear).row_blocks;
  const uint32_t tiles =
      b->options->tokens / b->options->tile_tokens / mgl_stages_ranks_of_sums(b->program);
  return mgl_ceil_div(blocks, MGL_WIDE_FEATURE_BLOCKS) * (tiles / chains_of(b)) >=
         b->options->workers;
}

// A linear_add, chain by chain: the first one's parts travel behind the second one's products, the
// second one's behind the norm. Of a chain tiles of other ranks' tokens come first. What follows a
// chain waits for all ranks' steps of it; gathered rows, for those of all chains.
static void add_turned_sums(builder *b, const mgl_schedule_op *op, const tile_cut *cut) {
  const bool whole = linear_from(b, &b->program->ops[op->op] + 1)->kind == MGL_OP_LOGITS;
  const uint32_t chains = chains_of(b);
  uint32_t ends[MGL_STAGES_CHAINS];
  for (uint32_t chain = 0; chain < chains; chain++) {
    ends[chain] = whole ? end_event(b) : b->event_count++;
  }
  for (uint32_t chain = 0; chain < chains; chain++) {
    add_turned_steps(b, b->op_count, op, cut, chain, ROWS_OF_OTHERS, ends[chain]);
    add_turned_steps(b, b->op_count, op, cut, chain, ROWS_OF_OWN, ends[chain]);
    b->ready[chain][ROWS_OF_OWN] = b->ready[chain][ROWS_OF_OTHERS] = ends[chain];
  }
}

// The norm of a chain's own rows: they are ready here at its end, others when the others' ends are
// here. before: steps of k_stages that stand between the norm of the chain before and this one. The
// norm is the work of those workers that have fewer of them than the others, if it takes them no
// longer than such a step: a unit takes a warp as long as some two stages of k (docs/log/289).
static void add_turned_norm(builder *b, uint32_t idx, const mgl_schedule_op *norm, uint32_t chain,
                            uint32_t before, uint32_t k_stages) {
  enum { UNIT_STAGES = 2 };
  const uint32_t chains = chains_of(b), all = b->options->workers;
  const uint32_t fewer = all - before % all;
  const uint32_t units = norm->units / chains, begin = units * chain, end = b->event_count;
  const bool fits = mgl_ceil_div(units, fewer * MGL_WIDE_CONSUMER_WARPS) * UNIT_STAGES <= k_stages;
  const uint32_t workers = b->border > 0 ? mgl_ceil_div(all, 2) : fits ? fewer : all;
  const uint32_t count = units < workers ? units : workers;
  b->event_count += 2;  // mgl_stages_others
  for (uint32_t i = 0; i < count; i++) {
    put_step(
        b, idx, norm, (b->stage_steps + i) % all, begin + (uint32_t)((uint64_t)units * i / count),
        begin + (uint32_t)((uint64_t)units * (i + 1) / count), b->ready[chain][ROWS_OF_OWN], end);
  }
  b->ready[chain][ROWS_OF_OWN] = end;
  b->ready[chain][ROWS_OF_OTHERS] = end + 1;
}

// A norm and the linear behind it. Own tiles of the first chain need the other ranks least, so they
// come first, and the second chain's norm, whose parts are still on their way, behind them. Where
// own tiles do not last, all of them come before those whose x is still on its way: a tile that
// waited for it would hold up an own one behind it.
static void add_turned_linear(builder *b, const mgl_schedule_op *norm, const mgl_schedule_op *op,
                              const tile_cut *cut) {
  const bool attends = b->program->ops[op->op + 1].kind != MGL_OP_LINEAR_ADD;
  const uint32_t chains = chains_of(b), idx = b->op_count + 1, workers = b->options->workers;
  const uint32_t last = op->tiles * cut->passes % workers;  // tiles of the last round
  b->beside = attends && 2 * last <= workers && chains == 1 ? last : 0;
  const bool lasts = own_tiles_last(b, &b->program->ops[op->op]);
  uint32_t ends[MGL_STAGES_CHAINS][ROW_OWNERS];
  for (uint32_t i = 0; i < chains * ROW_OWNERS; i++) {
    ends[i / ROW_OWNERS][i % ROW_OWNERS] =
        !attends || b->beside > 0 || b->border > 0 ? b->event_count++ : end_event(b);
  }
  add_turned_norm(b, b->op_count, norm, 0, 0, 0);
  for (uint32_t chain = 0; chain < chains; chain++) {
    const uint32_t first = b->stage_steps;
    if (chain == 0 || !lasts) {
      add_turned_steps(b, idx, op, cut, chain, ROWS_OF_OWN, ends[chain][ROWS_OF_OWN]);
    }
    if (chain + 1 < chains) {
      add_turned_norm(b, b->op_count, norm, chain + 1, b->stage_steps - first,
                      op->units / op->tiles / cut->passes);
    }
  }
  for (uint32_t chain = 0; chain < chains; chain++) {
    add_turned_steps(b, idx, op, cut, chain, ROWS_OF_OTHERS, ends[chain][ROWS_OF_OTHERS]);
  }
  for (uint32_t chain = 1; chain < chains && lasts; chain++) {
    add_turned_steps(b, idx, op, cut, chain, ROWS_OF_OWN, ends[chain][ROWS_OF_OWN]);
  }
  for (uint32_t i = 0; i < chains * ROW_OWNERS; i++) {
    b->ready[i / ROW_OWNERS][i % ROW_OWNERS] = ends[i / ROW_OWNERS][i % ROW_OWNERS];
  }
  b->behind = attends ? b->behind : ends[chains - 1][ROWS_OF_OWN];
  add_op(b, norm);
  b->stage_count++;
  add_op(b, op);
}

// --- linears and norms ---------------------------------------------------------------------------

// The norm in front of a linear.
static mgl_schedule_op norm_before(const builder *b, const mgl_op *op, uint32_t k, uint32_t rows) {
  const bool gathers = op->kind == MGL_OP_LOGITS;
  mgl_schedule_op norm =
      simple(b, MGL_OP_RMSNORM, op, rows / UNIT_TOKENS * mgl_ceil_div(k, MGL_WIDE_NORM_RANGE));
  norm.rows = rows;
  norm.splits = b->splits;
  norm.flags =
      (gathers ? MGL_WIDE_GATHERS : 0) | (b->turned ? MGL_WIDE_OVER | MGL_WIDE_SCATTERS : 0);
  if (b->turned && !gathers) {
    norm.flags |= MGL_WIDE_TURNED;
    norm.units /= mgl_stages_ranks_of_sums(b->program);
  }
  norm.flags |= wanted_flag(b, op);
  return norm;
}

static void add_linear(builder *b, const mgl_op *op) {
  mgl_packed_matrices m = mgl_packed_matrices_of(b->program, op);
  uint32_t rows =
      op->kind == MGL_OP_LOGITS ? mgl_stages_gathered_rows(b->options) : b->options->tokens;
  uint32_t k_stages = m.k_padded / MGL_WIDE_K;
  const mgl_schedule_op norm = norm_before(b, op, m.k, rows);
  const bool turned = (norm.flags & MGL_WIDE_TURNED) != 0;
  if (op->kind != MGL_OP_LINEAR_ADD) {
    if (!b->weighed && !turned) {  // else the linear before does it, or it is cut with this one
      add_spread(b, &norm);
      end_stage(b);
    }
    b->splits = 1;
    b->weighed = b->turned = false;
  }
  mgl_schedule_op out = simple(b, op->kind, op, 0);
  out.rows = rows;
  out.tiles = mgl_ceil_div(m.row_blocks, MGL_WIDE_FEATURE_BLOCKS) *
              mgl_ceil_div(rows, b->options->tile_tokens);
  out.units = out.tiles * k_stages;
  tile_cut cut = cut_of(b, op, out.tiles, k_stages);
  share_tiles(b, op, &cut, &out);
  out.flags |= wanted_flag(b, op);
  if (mgl_stages_widen(b->program, op, b->options->tile_tokens)) {
    out.flags |= MGL_WIDE_WIDENED;
    if (op != linear_from(b, b->program->ops)) {
      add_widening(b, op);
    }
  }
  if (op->kind != MGL_OP_LINEAR_ADD && turned) {
    out.flags |= MGL_WIDE_TURNED;
    add_turned_linear(b, &norm, &out, &cut);
  } else if (op->kind == MGL_OP_LINEAR_ADD && b->turned) {
    add_turned_sums(b, &out, &cut);
    add_op(b, &out);
  } else {
    add_linear_steps(b, &out, &cut, k_stages);
    add_op(b, &out);
  }
  end_stage(b);
  b->region_read[mgl_stages_widened(b->program, op)] = b->ready[0][ROWS_OF_OWN];
}

// --- mixtures ------------------------------------------------------------------------------------

// An expert's rows are not known here, so a step is a worker's share of the tiles that there will
// be (twin/wide_experts.h).
static void add_expert_linear(builder *b, const mgl_op *op) {
  const mgl_schedule_op out = simple(b, op->kind, op, b->options->workers);
  add_steps(b, &out, out.units);
  end_stage(b);
}

static void add_experts(builder *b, const mgl_op *op) {
  const uint32_t tokens = b->options->tokens;
  const mgl_stages_mixture m = mgl_stages_mixture_of(b->program, op);
  const uint32_t row = (uint32_t)mgl_tensor_row_elements(&b->program->tensors[op->output]);
  mgl_schedule_op around =
      simple(b, (mgl_op_kind)m.around, op,
             m.up ? tokens / MGL_WIDE_ROUTED
                  : tokens / UNIT_TOKENS * mgl_ceil_div(row, MGL_WIDE_NORM_RANGE));
  if (m.up) {
    add_spread(b, &around);
    end_stage(b);
    around.flags = MGL_WIDE_GATHERS;
    add_spread(b, &around);
    end_stage(b);
  }
  add_expert_linear(b, op);
  if (!m.up) {
    const mgl_op *next = linear_from(b, op + 1);
    b->weighed = row % MGL_WIDE_NORM_RANGE == 0 && next->kind != MGL_OP_LOGITS;
    around.flags = b->weighed ? MGL_WIDE_WEIGHS : 0;
    around.with = b->weighed ? (uint32_t)(next - b->program->ops) : MGL_NO_OP;
    add_spread(b, &around);
    end_stage(b);
  }
}

// --- all of it -----------------------------------------------------------------------------------

// Steps of the rotation of a chain's rows that an owner has, which `count` workers share.
static void add_turned_rotation(builder *b, const mgl_schedule_op *op, uint32_t chain,
                                row_owner owner, uint32_t count, uint32_t trigger) {
  const uint32_t ranks = mgl_stages_ranks_of_sums(b->program), chains = chains_of(b),
                 rows = b->options->tile_tokens;
  const uint32_t tiles = b->options->tokens / rows / chains, groups = tiles / ranks;
  const uint32_t owned = owner == ROWS_OF_OWN ? groups : tiles - groups;
  const uint32_t most = count / owned < rows ? count / owned : rows, steps = most > 0 ? most : 1;
  for (uint32_t tile = chain * tiles; tile < (chain + 1) * tiles; tile++) {
    const row_owner is = tile % ranks == 0 ? ROWS_OF_OWN : ROWS_OF_OTHERS;
    for (uint32_t i = 0; i < steps && is == owner; i++) {
      put_step(b, b->op_count, op, b->stage_steps++ % b->options->workers,
               tile * rows + rows * i / steps, tile * rows + rows * (i + 1) / steps,
               b->ready[chain][owner], trigger);
    }
  }
}

// Attention in two phases: of the first chain's rows, whose keys and values are of that chain too,
// and of the second one's, which wait for those of both. A step has one event; so a step of no rows
// tells the second phase that the first chain's keys are there. Another one keeps the first chain
// from being more than a layer ahead: all steps further apart than that are ordered.
static void add_chained_attend(builder *b, mgl_schedule_op *rotation, mgl_schedule_op *attend) {
  const uint32_t workers = b->options->workers, idx = b->op_count + 1;
  uint32_t rotated[MGL_STAGES_CHAINS], ends[MGL_STAGES_CHAINS];
  rotation->flags = attend->flags = MGL_WIDE_TURNED;
  for (uint32_t chain = 0; chain < MGL_STAGES_CHAINS; chain++) {
    rotated[chain] = b->event_count++;
    ends[chain] = b->event_count++;
    add_turned_rotation(b, rotation, chain, ROWS_OF_OWN, workers / 4, rotated[chain]);
    add_turned_rotation(b, rotation, chain, ROWS_OF_OTHERS, workers / 4, rotated[chain]);
  }
  const uint32_t behind = b->behind != MGL_NO_EVENT ? b->behind : b->ready[0][ROWS_OF_OWN];
  put_step(b, idx, attend, 0, workers, workers + 1, behind, rotated[0]);
  for (uint32_t unit = 0; unit < attend->units; unit++) {
    const uint32_t chain = unit > workers + 1 ? 1 : 0;
    if (unit != workers) {
      put_step(b, idx, attend, 0, unit, unit + 1, rotated[chain],
               unit == workers + 1 ? rotated[1] : ends[chain]);
    }
  }
  add_op(b, rotation);
  b->stage_count++;
  add_op(b, attend);
  for (uint32_t chain = 0; chain < MGL_STAGES_CHAINS; chain++) {
    b->ready[chain][ROWS_OF_OWN] = b->ready[chain][ROWS_OF_OTHERS] = ends[chain];
  }
  end_stage(b);
}

static void add_attend(builder *b, const mgl_op *op) {
  const uint32_t workers = b->options->workers, units = mgl_stages_attend_units(b->border, workers);
  mgl_schedule_op rotation = simple(b, MGL_OP_KV_WRITE, op, b->options->tokens);
  mgl_schedule_op attend = simple(b, MGL_OP_ATTEND, op, units);
  if (b->border > 0) {
    add_chained_attend(b, &rotation, &attend);
    return;
  }
  if (b->beside > 0) {
    rotation.flags = MGL_WIDE_TURNED;
    const uint32_t end = end_event(b);
    add_turned_rotation(b, &rotation, 0, ROWS_OF_OWN, workers - b->beside, end);
    add_turned_rotation(b, &rotation, 0, ROWS_OF_OTHERS, workers, end);
    add_op(b, &rotation);
    end_stage(b);
  } else if (!b->rotated) {
    add_spread(b, &rotation);
    end_stage(b);
  }
  b->rotated = false;
  b->beside = 0;
  add_steps(b, &attend, attend.units);
  end_stage(b);
}

// Waits for the logits of all ranks, which have sent theirs.
static void add_gather(builder *b, const mgl_op *op) {
  mgl_schedule_op gather = simple(b, MGL_OP_ALL_GATHER, op, 1);
  add_spread(b, &gather);
  end_stage(b);
}

// Embed and rope_angles, which wait for nothing.
static void add_first_stage(builder *b) {
  for (size_t i = 0; i < b->program->op_count; i++) {
    const mgl_op *op = &b->program->ops[i];
    uint32_t tokens = b->options->tokens;
    if (op->kind == MGL_OP_EMBED || op->kind == MGL_OP_ROPE_ANGLES) {
      uint32_t units = op->kind == MGL_OP_EMBED ? tokens / UNIT_TOKENS : tokens;
      mgl_schedule_op out = simple(b, op->kind, op, units);
      add_spread(b, &out);
    }
  }
  const mgl_op *first = linear_from(b, b->program->ops);
  if (mgl_stages_widen(b->program, first, b->options->tile_tokens)) {  // which nothing hides
    const mgl_schedule_op out =
        simple(b, (mgl_op_kind)MGL_WIDE_WIDEN, first, mgl_stages_panels(b->program, first));
    add_spread(b, &out);
  }
  end_stage(b);
}

static builder build(const mgl_graph *program, const mgl_stages_options *options,
                     mgl_schedule *out) {
  builder b = {.program = program,
               .options = options,
               .out = out,
               .splits = 1,
               .event = MGL_NO_EVENT,
               .border = mgl_stages_border(program, options),
               .behind = MGL_NO_EVENT};
  set_ready(&b, MGL_NO_EVENT);
  memset(b.region_read, 0xff, sizeof b.region_read);  // MGL_NO_EVENT
  add_first_stage(&b);
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (op->kind == MGL_OP_ATTEND) {
      add_attend(&b, op);
    } else if (op->kind == MGL_OP_ALL_GATHER) {
      add_gather(&b, op);
    } else if (mgl_stages_mixture_of(program, op).experts != 0) {
      add_experts(&b, op);
    } else if (mgl_packed_matrices_of(program, op).count > 0) {
      add_linear(&b, op);
    }
  }
  return b;
}

mgl_status mgl_lower_stages(const mgl_graph *program, const mgl_stages_options *options,
                            mgl_schedule **out, mgl_error *err) {
  uint32_t lacking = mgl_stages_lacking(program);
  if (lacking != MGL_NO_OP) {
    const mgl_op *op = &program->ops[lacking];
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "cuda: large iterations have no kernel for op %u, %s of \"%s\"", lacking,
                         mgl_op_info_of(op->kind)->name, program->tensors[op->output].name);
  }
  mgl_schedule sizes = {.lowering = MGL_LOWER_STAGES,
                        .target = MGL_TARGET_CUDA,
                        .tokens = options->tokens,
                        .logit_rows = options->logit_rows,
                        .worker_count = options->workers,
                        .tile_tokens = options->tile_tokens};
  builder counted = build(program, options, &sizes);
  sizes.op_count = counted.op_count;
  sizes.step_count = counted.step_count;
  sizes.event_count = counted.event_count;
  sizes.part_bytes = counted.part_bytes;
  sizes.inbox_bytes = counted.inbox_bytes;
  sizes.shared_tiles = counted.shared_tiles;
  sizes.widened_bytes = mgl_stages_widened_at(program, MGL_WIDENED_COUNT, options->tile_tokens);
  *out = mgl_schedule_create(&sizes);
  if (*out == NULL) {
    return mgl_schedule_out_of_memory(err);
  }
  (void)build(program, options, *out);
  if (counted.border > 0) {
    MGL_TRY(mgl_stages_put_in_order(program, out, err));
  }
  for (uint32_t i = 0; i < counted.event_count; i++) {
    (*out)->events[i].type = MGL_EVENT_LAUNCH_TASKS;
  }
  mgl_schedule_fill_lists(*out);
  return MGL_OK;
}
