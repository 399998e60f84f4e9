// Pass 2, partition: op -> tasks.
//
// Requires: a finished program. Ensures: the tasks of an op cut its tile units [0, units) into
// consecutive, non-empty ranges at multiples of its grain, in ascending order; so they write
// disjoint parts of its output.
//
// Default: as many tasks as workers, where the units allow. Tiles that cut output columns read all
// of the input, so fewer and larger ones would move fewer activation bytes, but weights dominate:
// each weight is read once whatever the cut, and one task a worker balances that. Reductions are
// never split, so bits do not depend on the cut.
//
// qkv_proj is cut so that no task crosses the border of what one KV head's attention reads, where
// the workers suffice for that: a crossing task triggers two events, and normalisation pays for
// every such task with an event and two empty tasks. On the GPU, where a stage is as slow as its
// largest task, only as far as that makes no task larger; else widen gives attention one event.
//
// For CUDA, embed has a task a row and rope_angles one task.
#include <assert.h>
#include <string.h>

#include "compile/tgraph.h"

static uint32_t ceil_div(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

static uint32_t at_least_one(uint32_t value) {
  return value == 0 ? 1 : value;
}

// --- overrides -----------------------------------------------------------------------------------

static bool has_grid(const mgl_compile_override *o) {
  return o->grid[0] != 0 || o->grid[1] != 0 || o->grid[2] != 0;
}

static bool names_op(const mgl_tgraph *tg, const mgl_compile_override *o, const mgl_op *op) {
  return strcmp(o->op, mgl_op_name(op)) == 0 ||
         strcmp(o->op, tg->program->tensors[op->output].name) == 0;
}

static mgl_status check_grid(const mgl_tgraph *tg, const mgl_compile_override *o, const mgl_op *op,
                             mgl_error *err) {
  const char *name = mgl_op_name(op);
  if (o->grid[0] == 0 || o->grid[1] == 0 || o->grid[2] == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "partition %s=%u,%u,%u: expected three numbers of at least 1", o->op,
                         o->grid[0], o->grid[1], o->grid[2]);
  }
  if (o->grid[2] != 1) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "partition %s=%u,%u,%u: z must be 1, reductions are not split", o->op,
                         o->grid[0], o->grid[1], o->grid[2]);
  }
  uint32_t most_strides = mgl_tile_is_attention(op) ? MGL_COMPILE_MAX_STRIDES : 1;
  if (o->grid[1] > most_strides) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "partition %s=%u,%u,%u: y (tasks per KV head) is at most %u for %s", o->op,
                         o->grid[0], o->grid[1], o->grid[2], most_strides, name);
  }
  uint32_t units = mgl_tile_units(tg->program, op, MGL_MAX_ITERATION_TOKENS, o->grid[1]);
  uint32_t grain = mgl_tile_grain(op, tg->options->target);
  uint32_t most = ceil_div(units, grain);
  if (o->grid[0] > most) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "partition %s=%u,%u,%u: x is at most %u: %s has %u tile units that are "
                         "cut at multiples of %u",
                         o->op, o->grid[0], o->grid[1], o->grid[2], most, name, units, grain);
  }
  return MGL_OK;
}

static mgl_status check_override(const mgl_tgraph *tg, const mgl_compile_override *o,
                                 uint32_t *strides, mgl_error *err) {
  bool found = false;
  for (size_t i = 0; i < tg->program->op_count; i++) {
    const mgl_op *op = &tg->program->ops[i];
    if (!names_op(tg, o, op)) {
      continue;
    }
    found = true;
    if (!has_grid(o)) {
      break;
    }
    MGL_TRY(check_grid(tg, o, op, err));
    if (mgl_tile_is_attention(op)) {
      if (*strides != 0 && *strides != o->grid[1]) {
        return mgl_error_set(err, MGL_ERR_ARGUMENT,
                             "partition %s: y is %u, but another override says %u; all attention "
                             "ops of a graph have the same",
                             o->op, o->grid[1], *strides);
      }
      *strides = o->grid[1];
    }
  }
  return found ? MGL_OK
               : mgl_error_set(err, MGL_ERR_ARGUMENT,
                               "override of \"%.64s\": the program has no op of that kind, and no "
                               "op with that output",
                               o->op);
}

static mgl_status check_options(const mgl_tgraph *tg, uint32_t *strides, mgl_error *err) {
  const mgl_compile_options *options = tg->options;
  MGL_TRY(mgl_check_program(tg->program, err));
  if (options->tokens < 1 || options->tokens > MGL_MAX_ITERATION_TOKENS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "tokens: expected 1 to %d, found %u",
                         MGL_MAX_ITERATION_TOKENS, options->tokens);
  }
  if (options->logit_rows > options->tokens) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "rows with logits: expected at most the %u tokens of an iteration, found "
                         "%u",
                         options->tokens, options->logit_rows);
  }
  if (options->workers < 1 || options->workers > MGL_COMPILE_MAX_WORKERS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "workers: expected 1 to %d, found %u",
                         MGL_COMPILE_MAX_WORKERS, options->workers);
  }
  for (uint32_t i = 0; i < options->override_count; i++) {
    MGL_TRY(check_override(tg, &options->overrides[i], strides, err));
  }
  return MGL_OK;
}

// The last override that names this op, or NULL.
static const mgl_compile_override *override_of(const mgl_tgraph *tg, const mgl_op *op) {
  for (uint32_t i = tg->options->override_count; i-- > 0;) {
    const mgl_compile_override *o = &tg->options->overrides[i];
    if (has_grid(o) && names_op(tg, o, op)) {
      return o;
    }
  }
  return NULL;
}

// --- how many tasks ------------------------------------------------------------------------------

// On the CPU a stride has whole items of the plan's work list, at least a token each; on the GPU a
// single sequence has many.
static uint32_t limit_strides(const mgl_tgraph *tg, uint32_t strides) {
  uint32_t most = MGL_COMPILE_MAX_STRIDES;
  if (tg->options->target == MGL_TARGET_CPU && tg->options->tokens < most) {
    most = tg->options->tokens;
  }
  return strides < most ? strides : most;
}

// Strides so that the attention of the fewest KV heads has about a task a worker.
static uint32_t default_strides(const mgl_tgraph *tg) {
  uint32_t heads = UINT32_MAX;
  for (size_t i = 0; i < tg->program->op_count; i++) {
    const mgl_op *op = &tg->program->ops[i];
    if (mgl_tile_is_attention(op) && mgl_tile_kv_heads(tg->program, op) < heads) {
      heads = mgl_tile_kv_heads(tg->program, op);
    }
  }
  return at_least_one(tg->options->workers / heads);
}

static uint32_t default_task_count(const mgl_tgraph *tg, const mgl_op *op, uint32_t grains) {
  if (tg->options->target == MGL_TARGET_CUDA && op->kind == MGL_OP_EMBED) {
    return grains;  // begins the chain: the fewer rows a task, the sooner
  }
  if (tg->options->target == MGL_TARGET_CUDA && op->kind == MGL_OP_ROPE_ANGLES) {
    return 1;  // off the critical path, and attention waits for all rows
  }
  return tg->options->workers;
}

static uint32_t task_count_of(const mgl_tgraph *tg, const mgl_op *op) {
  uint32_t units = mgl_tile_units(tg->program, op, tg->options->tokens, tg->strides);
  uint32_t grains = ceil_div(units, mgl_tile_grain(op, tg->options->target));
  const mgl_compile_override *o = override_of(tg, op);
  uint32_t wanted = o != NULL ? o->grid[0] : default_task_count(tg, op, grains);
  return wanted < grains ? wanted : grains;
}

// --- cutting -------------------------------------------------------------------------------------

// Appends `count` tasks over the grains [first, first + grains) of an op.
static void cut(mgl_tgraph *tg, uint32_t op_idx, uint32_t first, uint32_t grains, uint32_t count) {
  const mgl_op *op = &tg->program->ops[op_idx];
  uint32_t units = mgl_tile_units(tg->program, op, tg->options->tokens, tg->strides);
  uint32_t grain = mgl_tile_grain(op, tg->options->target);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t begin = (first + (uint32_t)((uint64_t)grains * i / count)) * grain;
    uint32_t end = (first + (uint32_t)((uint64_t)grains * (i + 1) / count)) * grain;
    end = end < units ? end : units;
    tg->tasks[tg->task_count++] = (mgl_tg_task){
        .op = op_idx,
        .begin = begin,
        .end = end,
        .cost = mgl_tile_cost(tg->program, op, tg->options->tokens, tg->strides, begin, end)};
  }
}

// Runs of qkv_proj's columns that are cut by themselves, in grains: Q of every KV head's group,
// then K, then V of every KV head. NULL where they do not lie on multiples of the grain, or when
// memory is out.
static uint32_t *qkv_segments(mgl_tgraph *tg, const mgl_op *op, uint32_t *out_count) {
  const mgl_graph *program = tg->program;
  uint32_t grain = mgl_tile_grain(op, tg->options->target);
  uint32_t head_dim = program->tensors[op->output].dims[2].number;
  const uint32_t *matrices = op->inputs + mgl_op_inputs(op, MGL_ROLE_MATRIX).first;
  uint32_t q_columns = program->tensors[matrices[0]].dims[0].number;
  uint32_t kv_heads = program->tensors[matrices[1]].dims[0].number / head_dim;
  if (head_dim % grain != 0 || q_columns % (kv_heads * head_dim) != 0) {
    return NULL;
  }
  uint32_t *segments = mgl_arena_alloc_zeroed(&tg->arena, (size_t)kv_heads * 3, sizeof *segments);
  *out_count = kv_heads * 3;
  for (uint32_t i = 0; segments != NULL && i < kv_heads * 3; i++) {
    segments[i] = (i < kv_heads ? q_columns / kv_heads : head_dim) / grain;
  }
  return segments;
}

// Tasks of all segments if none has more than `most` grains.
static uint32_t segment_tasks(const uint32_t *segments, uint32_t count, uint32_t most) {
  uint32_t tasks = 0;
  for (uint32_t i = 0; i < count; i++) {
    tasks += ceil_div(segments[i], most);
  }
  return tasks;
}

// Cuts qkv_proj within its segments into at most `count` tasks: the largest as small as it can be,
// and no more tasks than that takes, since the stage would not end sooner. False where there are
// more segments than tasks; and for CUDA, where widen makes crossing tasks free, where a cut across
// segments has smaller ones.
static bool cut_segments(mgl_tgraph *tg, uint32_t op_idx, uint32_t grains, uint32_t count) {
  uint32_t segment_count = 0;
  const uint32_t *segments = qkv_segments(tg, &tg->program->ops[op_idx], &segment_count);
  if (segments == NULL || segment_count > count) {
    return false;
  }
  uint32_t most = 1;
  while (segment_tasks(segments, segment_count, most) > count) {
    most++;
  }
  if (tg->options->target == MGL_TARGET_CUDA && most > ceil_div(grains, count)) {
    return false;
  }
  uint32_t first = 0;
  for (uint32_t i = 0; i < segment_count; i++) {
    cut(tg, op_idx, first, segments[i], ceil_div(segments[i], most));
    first += segments[i];
  }
  return true;
}

mgl_status mgl_pass_partition(mgl_tgraph *tg, mgl_error *err) {
  size_t op_count = tg->program->op_count;
  uint32_t strides = 0;
  MGL_TRY(check_options(tg, &strides, err));
  tg->strides = limit_strides(tg, strides == 0 ? default_strides(tg) : strides);
  uint64_t total = 0;
  for (size_t i = 0; i < op_count; i++) {
    total += task_count_of(tg, &tg->program->ops[i]);
  }
  if (total > MGL_COMPILE_MAX_TASKS / 2) {
    return mgl_error_set(
        err, MGL_ERR_LIMIT, "the program has %llu tasks for %u workers, at most %d are supported",
        (unsigned long long)total, tg->options->workers, MGL_COMPILE_MAX_TASKS / 2);
  }
  tg->tasks = mgl_arena_alloc_zeroed(&tg->arena, (size_t)total, sizeof *tg->tasks);
  tg->op_first = mgl_arena_alloc_zeroed(&tg->arena, op_count + 1, sizeof *tg->op_first);
  if (tg->tasks == NULL || tg->op_first == NULL) {
    return mgl_out_of_memory(err);
  }
  for (uint32_t i = 0; i < op_count; i++) {
    const mgl_op *op = &tg->program->ops[i];
    uint32_t units = mgl_tile_units(tg->program, op, tg->options->tokens, tg->strides);
    uint32_t count = task_count_of(tg, op);
    uint32_t grains = ceil_div(units, mgl_tile_grain(op, tg->options->target));
    bool done = op->kind == MGL_OP_QKV_PROJ && override_of(tg, op) == NULL &&
                cut_segments(tg, i, grains, count);
    if (!done) {
      cut(tg, i, 0, grains, count);
    }
    tg->op_first[i + 1] = tg->task_count;
    tg->report.weight_bytes +=
        mgl_tile_weight_bytes(tg->program, op, tg->options->tokens, tg->strides, 0, units);
  }
  assert(tg->task_count <= total);
  tg->report.op_count = (uint32_t)op_count;
  tg->report.task_count = tg->task_count;
  return MGL_OK;
}
