// Of a schedule's verifier: that ops, units, tiles and lists are as they must be, each by itself.
// What happens before what is verify.c's.
#include <stdlib.h>

#include "compile/compile.h"
#include "lower/packed.h"
#include "lower/stages.h"
#include "lower/verify_parts.h"
#include "task/tile.h"
#include "twin/wide_layout.h"
#include "twin/wide_run.h"

// --- ops -----------------------------------------------------------------------------------------

static mgl_stages_options options_of(const mgl_schedule *s) {
  return (mgl_stages_options){.tokens = s->tokens,
                              .tile_tokens = s->tile_tokens,
                              .logit_rows = s->logit_rows,
                              .workers = s->worker_count};
}

// The linear_add that the residual stream comes from that a linear begins with, or NULL.
static const mgl_op *added_before(const mgl_verifier *v, const mgl_op *linear) {
  for (size_t i = 0; i < v->program->op_count; i++) {
    const mgl_op *op = &v->program->ops[i];
    if (op->output == linear->inputs[0]) {
      return op->kind == MGL_OP_LINEAR_ADD ? op : NULL;
    }
  }
  return NULL;
}

// Ranks over which what an op of a stage makes, or a norm adds, is summed or gathered.
static uint32_t ranks_of(const mgl_verifier *v, const mgl_schedule_op *op) {
  const mgl_op *of = &v->program->ops[op->op];
  const mgl_op *linear = op->kind == MGL_OP_RMSNORM ? added_before(v, of) : of;
  bool has = linear != NULL && (op->kind == MGL_OP_RMSNORM || op->kind == (uint32_t)of->kind);
  return has ? mgl_stages_ranks(v->program, linear) : 1;
}

// Tiles of a linear of stages; of experts only the device knows them.
static uint32_t tiles_of(const mgl_verifier *v, const mgl_schedule_op *op, uint32_t rows) {
  const mgl_schedule *s = v->s;
  const mgl_op *of = &v->program->ops[op->op];
  const mgl_packed_matrices m = mgl_packed_matrices_of(v->program, of);
  if (op->kind != (uint32_t)of->kind || m.count == 0 || m.experts != 0) {
    return 0;
  }
  return mgl_ceil_div(m.row_blocks, MGL_WIDE_FEATURE_BLOCKS) * mgl_ceil_div(rows, s->tile_tokens);
}

// Units of an op of stages, by its own numbers (twin/wide_run.h).
static mgl_status check_stage_units(const mgl_verifier *v, uint32_t idx, mgl_error *err) {
  const mgl_schedule *s = v->s;
  const mgl_schedule_op *op = &s->ops[idx];
  const mgl_stages_options options = options_of(s);
  mgl_packed_matrices m = mgl_packed_matrices_of(v->program, &v->program->ops[op->op]);
  bool gathers = v->program->ops[op->op].kind == MGL_OP_LOGITS;
  uint32_t rows = gathers ? mgl_stages_gathered_rows(&options) : s->tokens;
  const uint32_t tiles = tiles_of(v, op, rows);
  const mgl_op *of = &v->program->ops[op->op];
  const uint32_t row = (uint32_t)mgl_tensor_row_elements(&v->program->tensors[of->output]);
  uint32_t units = 0;
  switch (op->kind) {
    case MGL_OP_EMBED: units = s->tokens / 8; break;
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_KV_WRITE: units = s->tokens; break;
    case MGL_OP_ATTEND:
      units = mgl_stages_attend_units(mgl_stages_border(v->program, &options), s->worker_count);
      break;
    case MGL_WIDE_WIDEN:
      rows = s->tokens;
      units = mgl_stages_panels(v->program, of);
      break;
    case MGL_OP_RMSNORM:
      units = rows / 8 * mgl_ceil_div(m.k, MGL_WIDE_NORM_RANGE);
      units /= (op->flags & MGL_WIDE_TURNED) != 0 ? ranks_of(v, op) : 1;
      break;
    default:
      units =
          mgl_op_kind_is_exchange((mgl_op_kind)op->kind) ? 1 : tiles * (m.k_padded / MGL_WIDE_K);
      break;
  }
  const mgl_stages_mixture mixture = mgl_stages_mixture_of(v->program, of);
  if (mixture.experts != 0 && op->kind == (uint32_t)of->kind) {
    units = s->worker_count;  // shares of the tiles
  } else if (mixture.experts != 0 && op->kind == mixture.around) {
    units = mixture.up ? s->tokens / MGL_WIDE_ROUTED
                       : s->tokens / 8 * mgl_ceil_div(row, MGL_WIDE_NORM_RANGE);
  }
  if (op->units != units || op->rows != rows) {
    return mgl_schedule_wrong(err, "an op of a stage must have the rows and units of its kind", idx,
                              op->units);
  }
  if (op->tiles != tiles) {
    return mgl_schedule_wrong(err, "a linear must have the tiles of its result", idx, op->tiles);
  }
  return MGL_OK;
}

// Most parts that an op of a stage makes, or adds.
static uint32_t most_splits(const mgl_verifier *v, const mgl_schedule_op *op) {
  const mgl_op *of = &v->program->ops[op->op];
  const mgl_op *before = op->kind == MGL_OP_RMSNORM ? added_before(v, of) : NULL;
  if (before != NULL) {
    return MGL_STAGES_MAX_SPLITS * mgl_stages_ranks(v->program, before);
  }
  bool may = op->kind == MGL_OP_LINEAR_ADD || (op->flags & MGL_WIDE_ROTATES) != 0;
  return may ? (uint32_t)MGL_STAGES_MAX_SPLITS : 1;
}

// Whether a linear follows a norm whose rows are turned.
static bool begins_with_turned(const mgl_verifier *v, const mgl_schedule_op *op) {
  const mgl_op *of = &v->program->ops[op->op];
  const bool normed = op->kind == (uint32_t)of->kind && mgl_op_is_linear(of) &&
                      of->kind != MGL_OP_LINEAR_ADD && of->kind != MGL_OP_LOGITS;
  const mgl_op *before = normed ? added_before(v, of) : NULL;
  const mgl_stages_options options = options_of(v->s);
  return before != NULL && mgl_stages_turn(&options, mgl_stages_ranks(v->program, before));
}

// Whether a rotation follows a linear whose tiles do not all trigger the same event: its steps wait
// for the tiles that they read, and so are turned as these are.
static bool rotates_apart(const mgl_verifier *v, uint32_t idx) {
  const mgl_schedule *s = v->s;
  uint32_t first = MGL_NO_EVENT;
  bool apart = false;
  for (uint32_t i = 0; i < s->step_count && idx > 0; i++) {
    if (s->steps[i].op == idx - 1) {
      first = first == MGL_NO_EVENT ? s->steps[i].trigger : first;
      apart = apart || s->steps[i].trigger != first;
    }
  }
  return apart;
}

// Whether the rows of what a linear makes reach no other row's logits: there is no attention behind
// it. Programs with experts have all rows.
static bool is_last(const mgl_verifier *v, uint32_t op) {
  bool last = mgl_op_is_linear(&v->program->ops[op]);
  for (uint32_t i = 0; i < v->program->op_count; i++) {
    const mgl_op *at = &v->program->ops[i];
    last = last && (i <= op || at->kind != MGL_OP_ATTEND) &&
           mgl_stages_mixture_of(v->program, at).experts == 0;
  }
  return last;
}

// What an op of stages does besides.
static mgl_status check_stage_flags(const mgl_verifier *v, uint32_t idx, mgl_error *err) {
  const mgl_schedule_op *op = &v->s->ops[idx];
  const mgl_op *of = &v->program->ops[op->op];
  const mgl_op *with = op->with == MGL_NO_OP ? NULL : &v->program->ops[op->with];
  const mgl_stages_mixture mixture = mgl_stages_mixture_of(v->program, of);
  const bool routes = mixture.up && op->kind == mixture.around;
  const bool adds =
      mixture.experts != 0 && !mixture.up && op->kind == mixture.around &&
      mgl_tensor_row_elements(&v->program->tensors[of->output]) % MGL_WIDE_NORM_RANGE ==
          0;  // all ranges are whole
  bool right = false;
  const uint32_t ranks = ranks_of(v, op);
  const bool sums = op->kind == MGL_OP_RMSNORM || op->kind == MGL_OP_LINEAR_ADD;
  const mgl_stages_options options = options_of(v->s);
  const bool scatters = sums && mgl_stages_turn(&options, ranks);
  const bool over = ranks > 1 && (scatters || op->kind != MGL_OP_RMSNORM);
  const bool chained = (op->kind == MGL_OP_KV_WRITE || op->kind == MGL_OP_ATTEND) &&
                       mgl_stages_border(v->program, &options) > 0;
  const bool turned = scatters                      ? of->kind != MGL_OP_LOGITS
                      : op->kind == MGL_OP_KV_WRITE ? chained || rotates_apart(v, idx)
                                                    : chained || begins_with_turned(v, op);
  const bool wants =
      op->kind != (uint32_t)MGL_WIDE_WIDEN && is_last(v, op->op) && of->kind != MGL_OP_LOGITS;
  const bool resumes = (op->flags & MGL_WIDE_RESUMES) != 0;
  const bool may_resume =
      op->kind == (uint32_t)of->kind && mgl_op_is_linear(of) && of->kind != MGL_OP_LOGITS &&
      op->splits == 1 && v->s->tile_tokens == MGL_WIDE_MOST_TILE && ranks == 1 && !turned && !wants;
  const bool widened =
      op->kind == (uint32_t)of->kind && mgl_stages_widen(v->program, of, v->s->tile_tokens);
  const uint32_t others =
      op->flags & ~(uint32_t)(MGL_WIDE_OVER | MGL_WIDE_SCATTERS | MGL_WIDE_TURNED |
                              MGL_WIDE_RESUMES | MGL_WIDE_WANTED | MGL_WIDE_WIDENED);
  switch (others) {
    case 0: right = with == NULL && (op->kind != (uint32_t)MGL_WIDE_WIDEN || op->stage == 0); break;
    case MGL_WIDE_BESIDE:  // not what all do in the first stage
      right = with == NULL && op->kind == (uint32_t)MGL_WIDE_WIDEN && op->stage != 0;
      break;
    case MGL_WIDE_GATHERS: right = with == NULL && (op->kind == MGL_OP_RMSNORM || routes); break;
    case MGL_WIDE_WEIGHS:
      right = (op->kind == MGL_OP_LINEAR_ADD ? op->splits > 1 : adds) && with != NULL &&
              with->inputs[0] == of->output && with->kind != MGL_OP_LOGITS;
      break;
    case MGL_WIDE_ROTATES:
      right = op->kind == MGL_OP_QKV_PROJ && with != NULL && with->kind == MGL_OP_ATTEND &&
              with->inputs[0] == of->output &&
              MGL_WIDE_FEATURES % v->program->tensors[with->inputs[1]].dims[1].number == 0;
      break;
    default: break;
  }
  const bool has_gathers = (op->flags & MGL_WIDE_GATHERS) != 0;
  const bool gathers = routes ? has_gathers  // one of two does; what the other one leaves, it reads
                              : op->kind == MGL_OP_RMSNORM && of->kind == MGL_OP_LOGITS;
  right = right && gathers == has_gathers && over == ((op->flags & MGL_WIDE_OVER) != 0) &&
          scatters == ((op->flags & MGL_WIDE_SCATTERS) != 0) &&
          turned == ((op->flags & MGL_WIDE_TURNED) != 0) && (!resumes || may_resume) &&
          wants == ((op->flags & MGL_WIDE_WANTED) != 0) && (!resumes || with == NULL) &&
          widened == ((op->flags & MGL_WIDE_WIDENED) != 0) && op->splits >= 1 &&
          op->splits <= most_splits(v, op);
  return right ? MGL_OK
               : mgl_schedule_wrong(err, "an op of a stage has flags that its kind has no use for",
                                    idx, op->flags);
}

// Counters of a linear's tiles that several steps make, if it has any.
static uint32_t counters_of(const mgl_verifier *v, const mgl_schedule_op *op) {
  return (op->flags & MGL_WIDE_RESUMES) != 0
             ? mgl_stages_resumed_tiles(op->tiles, v->s->worker_count)
             : op->tiles;
}

// A linear that leaves sums must have room for them.
static mgl_status check_parts(const mgl_verifier *v, uint32_t idx, mgl_error *err) {
  const mgl_schedule *s = v->s;
  const mgl_schedule_op *op = &s->ops[idx];
  const mgl_op *of = &v->program->ops[op->op];
  uint32_t features = (uint32_t)mgl_tensor_row_elements(&v->program->tensors[of->output]);
  if ((op->flags & MGL_WIDE_OVER) != 0) {
    const bool weighs = (op->flags & MGL_WIDE_WEIGHS) != 0;
    uint64_t all = (uint64_t)(weighs ? 1 : op->splits) * mgl_stages_ranks(v->program, of) *
                   mgl_stages_stream_bytes(s->tokens, features);
    if (of->kind == MGL_OP_LINEAR_ADD && all > s->inbox_bytes) {
      return mgl_schedule_wrong(err, "inboxes must have room for the parts of all ranks", idx,
                                s->inbox_bytes);
    }
    if (!weighs) {
      return MGL_OK;
    }
  }
  uint64_t bytes =
      of->kind == MGL_OP_LINEAR_ADD
          ? op->splits * mgl_stages_stream_bytes(s->tokens, features)
          : (uint64_t)op->splits * op->tiles * MGL_WIDE_FEATURES * s->tile_tokens * sizeof(float);
  if ((op->flags & MGL_WIDE_RESUMES) != 0) {
    bytes = (uint64_t)counters_of(v, op) * MGL_WIDE_FEATURES * s->tile_tokens * sizeof(float);
  }
  bool leaves =
      op->first_shared != MGL_NOT_SHARED || op->splits > 1 ||
      (op->flags & ~(uint32_t)(MGL_WIDE_TURNED | MGL_WIDE_WANTED | MGL_WIDE_WIDENED)) != 0;
  if (!leaves) {
    return MGL_OK;
  }
  return op->first_shared != MGL_NOT_SHARED && op->first_shared <= s->shared_tiles &&
                 counters_of(v, op) <= s->shared_tiles - op->first_shared && bytes <= s->part_bytes
             ? MGL_OK
             : mgl_schedule_wrong(err,
                                  "a linear's steps must have counters and room for their sums",
                                  idx, op->first_shared);
}

static mgl_status check_stage_op(const mgl_verifier *v, uint32_t idx, mgl_error *err) {
  const mgl_schedule_op *op = &v->s->ops[idx];
  mgl_op_kind kind = v->program->ops[op->op].kind;
  bool linear = mgl_op_is_linear(&v->program->ops[op->op]);
  const mgl_stages_mixture mixture = mgl_stages_mixture_of(v->program, &v->program->ops[op->op]);
  const bool experts = mixture.experts != 0;
  bool known =
      op->kind == (uint32_t)kind
          ? linear || kind == MGL_OP_EMBED || kind == MGL_OP_ROPE_ANGLES || kind == MGL_OP_ATTEND ||
                mgl_op_kind_is_exchange(kind)
          : (op->kind == MGL_OP_RMSNORM && linear && kind != MGL_OP_LINEAR_ADD) ||
                (op->kind == MGL_WIDE_WIDEN &&
                 mgl_stages_widen(v->program, &v->program->ops[op->op], v->s->tile_tokens)) ||
                (op->kind == MGL_OP_KV_WRITE && kind == MGL_OP_ATTEND) ||
                (experts && op->kind == mixture.around);
  if (!known) {
    return mgl_schedule_wrong(err, "an op of a stage must be of a kind that its op has", idx,
                              op->kind);
  }
  MGL_TRY(check_stage_units(v, idx, err));
  MGL_TRY(check_stage_flags(v, idx, err));
  if (op->kind == (uint32_t)kind && linear && !experts) {
    return check_parts(v, idx, err);
  }
  return op->first_shared == MGL_NOT_SHARED
             ? MGL_OK
             : mgl_schedule_wrong(err, "only linears of all rows have counters of tiles", idx,
                                  op->first_shared);
}

static mgl_status check_op(const mgl_verifier *v, uint32_t idx, mgl_error *err) {
  const mgl_schedule *s = v->s;
  const mgl_schedule_op *op = &s->ops[idx];
  if (op->op >= v->program->op_count ||
      (op->with != MGL_NO_OP && op->with >= v->program->op_count)) {
    return mgl_schedule_wrong(err, "an op must be one of the program", idx, op->op);
  }
  if (s->lowering == MGL_LOWER_STAGES) {
    return check_stage_op(v, idx, err);
  }
  const mgl_op *of = &v->program->ops[op->op];
  if (s->lowering != MGL_LOWER_KERNELS && op->op != idx) {
    return mgl_schedule_wrong(err, "ops must stand as in the program", idx, op->op);
  }
  if (op->kind != (uint32_t)of->kind || op->flags != 0 || op->tiles != 0 || op->splits != 1 ||
      op->rows != s->tokens || op->first_shared != MGL_NOT_SHARED ||
      (op->with != MGL_NO_OP && s->lowering != MGL_LOWER_KERNELS)) {
    return mgl_schedule_wrong(err, "an op must be its program's, and nothing besides", idx,
                              op->kind);
  }
  return op->units == mgl_tile_units(v->program, of, s->tokens, s->strides)
             ? MGL_OK
             : mgl_schedule_wrong(err, "an op must have its units", idx, op->units);
}

// Whether the lowering leaves an op of the program to others: iterations of stages are planned and
// sampled by launches of their own.
static bool is_left_out(const mgl_verifier *v, mgl_op_kind kind) {
  return v->s->lowering == MGL_LOWER_STAGES && (kind == MGL_OP_NEXT_PLAN || kind == MGL_OP_SAMPLE);
}

// There must be room for all weights that are made of codes.
static mgl_status check_widened(const mgl_verifier *v, mgl_error *err) {
  const mgl_schedule *s = v->s;
  const uint64_t bytes = s->lowering == MGL_LOWER_STAGES
                             ? mgl_stages_widened_at(v->program, MGL_WIDENED_COUNT, s->tile_tokens)
                             : 0;
  return s->widened_bytes == bytes
             ? MGL_OK
             : mgl_schedule_wrong(err, "there must be room for what is made of codes, and no more",
                                  0, s->widened_bytes);
}

static mgl_status check_ops(mgl_verifier *v, mgl_error *err) {
  const mgl_schedule *s = v->s;
  uint32_t *seen = mgl_arena_alloc_zeroed(&v->arena, v->program->op_count, sizeof *seen);
  if (seen == NULL) {
    return mgl_verifier_out_of_memory(v, err);
  }
  if (s->tokens < 1 || s->tokens > MGL_MAX_ITERATION_TOKENS || s->worker_count < 1 ||
      s->worker_count > MGL_COMPILE_MAX_WORKERS || s->op_count < 1 || s->step_count < 1 ||
      s->event_count < 1) {
    return mgl_schedule_wrong(
        err, "tokens must be 1 to 2048, workers 1 to 4096, and there must be work", 0, s->tokens);
  }
  bool stages = s->lowering == MGL_LOWER_STAGES;
  if (stages ? s->tile_tokens < MGL_WIDE_LEAST_TILE || s->tile_tokens > MGL_WIDE_MOST_TILE ||
                   s->tokens % MGL_WIDE_LEAST_TILE != 0
             : s->strides < 1 || s->strides > MGL_COMPILE_MAX_STRIDES) {
    return mgl_schedule_wrong(err, "tiles must have 64 to 256 tokens, KV heads 1 to 64 strides", 0,
                              s->strides);
  }
  for (uint32_t i = 0; i < s->op_count; i++) {
    MGL_TRY(check_op(v, i, err));
    const mgl_schedule_op *op = &s->ops[i];
    seen[op->op] += op->kind == (uint32_t)v->program->ops[op->op].kind;
    if (op->with != MGL_NO_OP && !stages) {
      seen[op->with]++;
    }
  }
  for (uint32_t i = 0; i < v->program->op_count; i++) {
    if (seen[i] != (is_left_out(v, v->program->ops[i].kind) ? 0 : 1)) {
      return mgl_schedule_wrong(err, "every op of the program must be computed once", i, seen[i]);
    }
  }
  return MGL_OK;
}

// --- tiles ---------------------------------------------------------------------------------------

static int compare_steps(const void *a, const void *b) {
  const mgl_numbered_step *x = a;
  const mgl_numbered_step *y = b;
  if (x->op != y->op) {
    return x->op < y->op ? -1 : 1;
  }
  return (x->begin > y->begin) - (x->begin < y->begin);
}

static uint32_t grain_of(const mgl_verifier *v, uint32_t op) {
  const mgl_schedule *s = v->s;
  return s->lowering == MGL_LOWER_STAGES
             ? 1
             : mgl_tile_grain(&v->program->ops[s->ops[op].op], s->target);
}

static mgl_status number_steps(mgl_verifier *v, mgl_error *err) {
  const mgl_schedule *s = v->s;
  v->steps = mgl_arena_alloc_zeroed(&v->arena, s->step_count, sizeof *v->steps);
  v->number = mgl_arena_alloc(&v->arena, s->step_count * sizeof *v->number);
  v->op_first = mgl_arena_alloc_zeroed(&v->arena, s->op_count + (size_t)1, sizeof *v->op_first);
  if (v->steps == NULL || v->number == NULL || v->op_first == NULL) {
    return mgl_verifier_out_of_memory(v, err);
  }
  for (uint32_t i = 0; i < s->step_count; i++) {
    const mgl_schedule_step *step = &s->steps[i];
    v->number[i] = MGL_NO_OP;
    if (step->op == MGL_NO_OP) {
      continue;
    }
    if (step->op >= s->op_count || step->begin >= step->end || step->end > s->ops[step->op].units) {
      return mgl_schedule_wrong(err, "a step must compute units of an op", i, step->op);
    }
    v->steps[v->count++] =
        (mgl_numbered_step){.op = step->op, .begin = step->begin, .end = step->end, .step = i};
    v->op_first[step->op + 1]++;
  }
  qsort(v->steps, v->count, sizeof *v->steps, compare_steps);
  for (uint32_t op = 0; op < s->op_count; op++) {
    v->op_first[op + 1] += v->op_first[op];
  }
  for (uint32_t i = 0; i < v->count; i++) {
    v->number[v->steps[i].step] = i;
  }
  return MGL_OK;
}

static mgl_status check_cut(const mgl_verifier *v, uint32_t op, mgl_error *err) {
  uint32_t grain = grain_of(v, op);
  uint32_t next = 0;
  for (uint32_t i = v->op_first[op]; i < v->op_first[op + 1]; i++) {
    if (v->steps[i].begin != next || next % grain != 0) {
      return mgl_schedule_wrong(err, "the steps of an op must cut its units without gap or overlap",
                                op, v->steps[i].begin);
    }
    next = v->steps[i].end;
  }
  return next == v->s->ops[op].units
             ? MGL_OK
             : mgl_schedule_wrong(err, "the steps of an op must cover its units", op, next);
}

// Whether a step is the first one of its worker in its stage.
static bool is_first_of_stage(const mgl_verifier *v, uint32_t step_idx) {
  const mgl_schedule *s = v->s;
  const mgl_schedule_step *step = &s->steps[step_idx];
  for (uint32_t i = s->list_start[step->worker]; i < s->list_start[step->worker + 1]; i++) {
    const mgl_schedule_step *other = &s->steps[s->list[i]];
    if (s->ops[other->op].stage == s->ops[step->op].stage) {
      return s->list[i] == step_idx;
    }
  }
  return false;
}

// The steps of a tile, [from, to) by number. Who waits for the others: of a tile whose sums are
// joined the step with the first units, or, if it goes on with them, the one with the last units;
// else all of them or none. Who is waited for must be its worker's first step, which nothing keeps
// from running.
static mgl_status check_tile(const mgl_verifier *v, uint32_t op_idx, uint32_t from, uint32_t to,
                             mgl_error *err) {
  const mgl_schedule_op *op = &v->s->ops[op_idx];
  uint32_t per_tile = op->units / op->tiles;
  bool all_wait = (op->flags & (MGL_WIDE_WEIGHS | MGL_WIDE_ROTATES)) != 0;
  bool sends = (op->flags & MGL_WIDE_OVER) != 0 && !all_wait;
  bool summed_later = sends || (op->splits > 1 && !all_wait);
  const bool resumes = (op->flags & MGL_WIDE_RESUMES) != 0;
  if (resumes && to - from > 1 && v->steps[from].begin / per_tile >= counters_of(v, op)) {
    return mgl_schedule_wrong(err, "sums to go on with must have room", op_idx, from);
  }
  if (all_wait || summed_later ? to - from != op->splits : to - from > MGL_STAGES_JOINED) {
    return mgl_schedule_wrong(err, "a tile must have as many steps as its sums are added of",
                              op_idx, to - from);
  }
  for (uint32_t i = from; i < to; i++) {
    const mgl_numbered_step *n = &v->steps[i];
    uint32_t tile = n->begin / per_tile;
    if ((n->end - 1) / per_tile != tile) {
      return mgl_schedule_wrong(err, "a step must not go on into the next tile", op_idx, n->end);
    }
    if ((all_wait || summed_later) &&
        n->begin - tile * per_tile != per_tile * (i - from) / op->splits) {
      return mgl_schedule_wrong(err, "the splits of a tile must be equal", op_idx, n->begin);
    }
    bool is_awaited = !summed_later && to - from > 1 && (all_wait || (i > from) != resumes);
    if (is_awaited && !is_first_of_stage(v, n->step)) {
      return mgl_schedule_wrong(
          err, "who is waited for in a tile must be its worker's first step of the stage", op_idx,
          n->step);
    }
  }
  return to - from == 1 || sends || op->first_shared != MGL_NOT_SHARED
             ? MGL_OK
             : mgl_schedule_wrong(err, "tiles of several steps must have counters", op_idx,
                                  to - from);
}

static mgl_status check_tiles(const mgl_verifier *v, mgl_error *err) {
  uint32_t shared = 0;  // counters so far: they must not overlap
  for (uint32_t op = 0; op < v->s->op_count; op++) {
    const mgl_schedule_op *o = &v->s->ops[op];
    MGL_TRY(check_cut(v, op, err));
    if (o->tiles == 0) {
      continue;
    }
    if (o->first_shared != MGL_NOT_SHARED) {
      if (o->first_shared < shared) {
        return mgl_schedule_wrong(err, "two ops must not share counters of tiles", op,
                                  o->first_shared);
      }
      shared = o->first_shared + counters_of(v, o);
    }
    uint32_t per_tile = o->units / o->tiles;
    for (uint32_t from = v->op_first[op], to = from; from < v->op_first[op + 1]; from = to) {
      while (to < v->op_first[op + 1] &&
             v->steps[to].begin / per_tile == v->steps[from].begin / per_tile) {
        to++;
      }
      MGL_TRY(check_tile(v, op, from, to, err));
    }
  }
  return MGL_OK;
}

// --- lists ---------------------------------------------------------------------------------------

static mgl_status check_lists(const mgl_verifier *v, mgl_error *err) {
  const mgl_schedule *s = v->s;
  uint32_t listed = 0;
  for (uint32_t i = 0; i < s->step_count; i++) {
    if (s->steps[i].worker != MGL_SCHEDULE_ANYONE) {
      if (s->steps[i].worker >= s->worker_count || s->steps[i].op == MGL_NO_OP) {
        return mgl_schedule_wrong(err, "a step's worker must be one of the schedule's", i,
                                  s->steps[i].worker);
      }
      listed++;
    } else if (s->lowering == MGL_LOWER_STAGES ||
               (s->lowering == MGL_LOWER_WORDS && s->steps[i].op != MGL_NO_OP)) {
      return mgl_schedule_wrong(err, "every step of stages or words must have a worker", i,
                                s->steps[i].op);
    }
  }
  if (s->list_start[0] != 0 || s->list_start[s->worker_count] != listed) {
    return mgl_schedule_wrong(err, "the workers' lists must hold the steps that have a worker",
                              listed, s->list_start[s->worker_count]);
  }
  for (uint32_t w = 0; w < s->worker_count; w++) {
    if (s->list_start[w + 1] < s->list_start[w] || s->list_start[w + 1] > listed) {
      return mgl_schedule_wrong(err, "the workers' lists must follow each other", w,
                                s->list_start[w + 1]);
    }
    for (uint32_t i = s->list_start[w]; i < s->list_start[w + 1]; i++) {
      if (s->list[i] >= s->step_count || s->steps[s->list[i]].worker != w ||
          (i > s->list_start[w] && s->list[i] <= s->list[i - 1])) {
        return mgl_schedule_wrong(err, "a worker's list must hold its steps, ascending", w,
                                  s->list[i]);
      }
    }
  }
  return MGL_OK;
}

// --- waits ---------------------------------------------------------------------------------------

// Steps of launches wait for the one before, and trigger the end of their own.
static mgl_status check_launch(const mgl_verifier *v, uint32_t idx, mgl_error *err) {
  const mgl_schedule_step *step = &v->s->steps[idx];
  const uint32_t stage = v->s->ops[step->op].stage;
  return step->trigger == stage && step->event == (stage == 0 ? MGL_NO_EVENT : stage - 1)
             ? MGL_OK
             : mgl_schedule_wrong(
                   err, "a step must wait for the stage before its own, and trigger its own", idx,
                   stage);
}

// A step of a turned rotation is of one tile of tokens.
static mgl_status check_rotation(const mgl_verifier *v, uint32_t op, mgl_error *err) {
  const mgl_schedule_op *o = &v->s->ops[op];
  const uint32_t rows = v->s->tile_tokens;
  const bool turned = o->kind == MGL_OP_KV_WRITE && (o->flags & MGL_WIDE_TURNED) != 0;
  for (uint32_t i = v->op_first[op]; i < v->op_first[op + 1] && turned; i++) {
    const mgl_numbered_step *n = &v->steps[i];
    if (n->begin / rows != (n->end - 1) / rows) {
      return mgl_schedule_wrong(err, "a turned rotation's step must be of one tile of tokens",
                                n->step, n->end);
    }
  }
  return MGL_OK;
}

// The event of the second chain that keeps the first one from being more than a layer ahead: that
// of its own tiles of the last linear of the layer before that makes no sums, or of the first layer
// what the rotation waits for.
static uint32_t chain_behind(const mgl_verifier *v, uint32_t attend) {
  const mgl_schedule *s = v->s;
  for (uint32_t op = attend; op-- > 0;) {
    const mgl_schedule_op *o = &s->ops[op];
    const bool makes = o->tiles > 0 && (o->flags & MGL_WIDE_TURNED) != 0 &&
                       o->kind != MGL_OP_LINEAR_ADD && o->kind != MGL_OP_QKV_PROJ;
    for (uint32_t i = v->op_first[op]; i < v->op_first[op + 1] && makes; i++) {
      if (v->steps[i].begin / (o->units / o->tiles) == s->tokens / s->tile_tokens / 2) {
        return s->steps[v->steps[i].step].trigger;
      }
    }
  }
  return attend == 0 ? MGL_NO_EVENT : s->steps[v->steps[v->op_first[attend - 1]].step].event;
}

// Attention in two phases: steps are units; those of a phase wait for, and trigger, the same. Of
// two steps between them the first one is what the first phase waits for, beside the rotation of
// its rows, and the second one what the second phase waits for.
static mgl_status check_phases(const mgl_verifier *v, uint32_t op, mgl_error *err) {
  const mgl_schedule *s = v->s;
  const mgl_schedule_op *o = &s->ops[op];
  const uint32_t first = v->op_first[op], count = v->op_first[op + 1] - first;
  if (o->kind != MGL_OP_ATTEND || (o->flags & MGL_WIDE_TURNED) == 0) {
    return MGL_OK;
  }
  if (count != o->units || count < 2 * MGL_WIDE_IDLE_PARTIES) {
    return mgl_schedule_wrong(err, "a step of attention in two phases must be a unit", op, count);
  }
  const uint32_t second = o->units / 2;  // of two between
  const mgl_schedule_step *before = &s->steps[v->steps[first].step];
  const mgl_schedule_step *behind = &s->steps[v->steps[first + count - 1].step];
  for (uint32_t i = 0; i < count; i++) {
    const mgl_schedule_step *step = &s->steps[v->steps[first + i].step];
    const uint32_t event = i + 1 == second ? chain_behind(v, op)
                           : i <= second   ? before->event
                                           : behind->event;
    const uint32_t trigger = i + 1 == second ? before->event
                             : i == second   ? behind->event
                             : i < second    ? before->trigger
                                             : behind->trigger;
    if (step->event != event || step->trigger != trigger) {
      return mgl_schedule_wrong(err, "a phase of attention must wait for the rotation of its rows",
                                v->steps[first + i].step, step->event);
    }
  }
  return MGL_OK;
}

// A step of a turned linear behind a turned norm waits for the end of the norm here, if its tile of
// tokens is this rank's own, and else for the others' end: both are of the same steps.
static mgl_status check_turned(const mgl_verifier *v, uint32_t op, mgl_error *err) {
  const mgl_schedule *s = v->s;
  const mgl_schedule_op *o = &s->ops[op];
  const mgl_schedule_op *norm = op > 0 ? &s->ops[op - 1] : NULL;
  if ((o->flags & MGL_WIDE_TURNED) == 0 || o->tiles == 0 || o->kind == MGL_OP_LINEAR_ADD) {
    return MGL_OK;
  }
  const uint32_t per_tile = o->units / o->tiles, tiles = s->tokens / s->tile_tokens;
  const uint32_t ranks = mgl_stages_ranks(v->program, added_before(v, &v->program->ops[o->op]));
  for (uint32_t i = v->op_first[op]; i < v->op_first[op + 1]; i++) {
    const uint32_t event = s->steps[v->steps[i].step].event;
    const bool own = v->steps[i].begin / per_tile % tiles % ranks == 0;
    bool right = false;
    for (uint32_t j = v->op_first[op - 1]; j < v->op_first[op] && !right; j++) {
      const uint32_t end = s->steps[v->steps[j].step].trigger;
      right = event == (own ? end : mgl_stages_others(norm, end));
    }
    if (!right) {
      return mgl_schedule_wrong(err, "a turned tile must wait for the norm of whose rows it has",
                                v->steps[i].step, event);
    }
  }
  return MGL_OK;
}

// Ops whose steps trigger the same event are a stage; the next op begins the next one. Steps of a
// stage wait for the end of the one before, but for those of turned tiles and those that are done
// beside, of which verify.c proves that they wait for what they need.
static mgl_status check_stages(const mgl_verifier *v, mgl_error *err) {
  const mgl_schedule *s = v->s;
  uint32_t before = MGL_NO_EVENT;  // the end of the stage before
  for (uint32_t op = 0; op < s->op_count; op++) {
    const uint32_t first = v->steps[v->op_first[op]].step;
    const uint32_t last = op == 0 ? first : v->steps[v->op_first[op - 1]].step;
    const bool same = op > 0 && s->steps[first].trigger == s->steps[last].trigger;
    if (s->ops[op].stage != (op == 0 ? 0 : s->ops[op - 1].stage + (same ? 0 : 1))) {
      return mgl_schedule_wrong(err, "ops that trigger the same event must be a stage", op,
                                s->ops[op].stage);
    }
    before = op > 0 && !same ? s->steps[last].trigger : before;
    MGL_TRY(check_turned(v, op, err));
    MGL_TRY(check_rotation(v, op, err));
    MGL_TRY(check_phases(v, op, err));
    for (uint32_t i = v->op_first[op]; i < v->op_first[op + 1]; i++) {
      const mgl_schedule_step *step = &s->steps[v->steps[i].step];
      const bool turned = (s->ops[op].flags & MGL_WIDE_TURNED) != 0;
      const bool beside = (s->ops[op].flags & MGL_WIDE_BESIDE) != 0;
      const bool waits = step->event == before || beside;
      if (!turned && (step->trigger != s->steps[first].trigger || !waits)) {
        return mgl_schedule_wrong(
            err, "a step must wait for the stage before its own, and trigger its own",
            v->steps[i].step, step->event);
      }
    }
  }
  return MGL_OK;
}

// Steps wait in the manner of their lowering.
static mgl_status check_waits(const mgl_verifier *v, mgl_error *err) {
  const mgl_schedule *s = v->s;
  uint32_t own = s->lowering == MGL_LOWER_STAGES    ? MGL_WAIT_STAGE
                 : s->lowering == MGL_LOWER_KERNELS ? MGL_WAIT_KERNEL
                                                    : MGL_WAIT_EVENT;
  for (uint32_t i = 0; i < s->step_count; i++) {
    const mgl_schedule_step *step = &s->steps[i];
    bool words = s->lowering == MGL_LOWER_WORDS && step->wait == MGL_WAIT_WORDS;
    if (step->wait != MGL_WAIT_NOTHING && step->wait != own && !words) {
      return mgl_schedule_wrong(err, "a step must wait as its lowering does", i, step->wait);
    }
    if (s->lowering == MGL_LOWER_KERNELS && step->op != MGL_NO_OP) {
      MGL_TRY(check_launch(v, i, err));
    }
  }
  return s->lowering == MGL_LOWER_STAGES ? check_stages(v, err) : MGL_OK;
}

mgl_status mgl_verify_ops(mgl_verifier *v, mgl_error *err) {
  MGL_TRY(check_ops(v, err));
  MGL_TRY(check_widened(v, err));
  MGL_TRY(number_steps(v, err));
  MGL_TRY(check_waits(v, err));
  MGL_TRY(check_lists(v, err));
  return check_tiles(v, err);
}
