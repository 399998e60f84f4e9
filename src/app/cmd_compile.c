// megalith compile: a model's task graphs, and what each pass of the compiler did.
//
// Needs config.json only: weights take the dtype that it names. One column of the table is one task
// graph, for one token count; the rows follow the passes (compile/compile.c).
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/app_model.h"
#include "app/commands.h"
#include "app/human.h"
#include "app/output.h"
#include "app/output_file.h"
#include "base/alloc.h"
#include "base/simd.h"
#include "base/topology.h"
#include "compile/compile.h"
#include "compile/overrides.h"
#include "compile/shard.h"
#include "device/cpu/read_ceiling.h"
#include "device/cuda/cuda_variant.h"
#include "graph/balance.h"
#include "graph/family.h"
#include "graph/graph_text.h"
#include "kernels/cpu/cpu_variant.h"
#include "lower/choose.h"
#include "lower/stages.h"
#include "task/tile.h"

enum {
  MAX_GRAPHS = 12,  // of --tokens all: 1, 2, 4, ..., 2048
  CEILING_PASSES = 5,
  PASS_WIDTH = 13,  // columns of the table
  LABEL_WIDTH = 30,
  COLUMN_WIDTH = 11,
  CUDA_WORKERS = 132,  // multiprocessors of an H100 SXM
  BODIES_CAPABILITY = 90,
};

typedef struct compilation {
  const mgl_arguments *arguments;
  mgl_app_model model;
  mgl_graph *canonical;
  mgl_graph *fused;          // NULL with --no-fuse
  const mgl_graph *program;  // the one of these that is compiled
  uint32_t tokens[MAX_GRAPHS];
  uint32_t graph_count;
  mgl_compile_report reports[MAX_GRAPHS];  // [graph_count]
  mgl_overrides overrides;
  mgl_launch launch;
  mgl_target target;
  uint32_t workers;
  double bandwidth;  // bytes per second; 0: not known
  mgl_cpu_variants variants;
} compilation;

// What --dump takes. Op fusion comes before the compiler's own passes, so that mode eager has it
// too; lowering comes behind them.
static const char *dump_choice(uint32_t index) {
  static const char *const first[] = {"list", "fuse_ops"};
  const uint32_t count = sizeof first / sizeof *first;
  if (index < count) {
    return first[index];
  }
  const char *pass = mgl_pass_name(index - count);
  bool is_next = pass == NULL && (index == count || mgl_pass_name(index - count - 1) != NULL);
  return is_next ? "lower" : pass;
}

static const char *mode_choice(uint32_t index) {
  static const char *const modes[] = {"mega", "full"};
  return index < sizeof modes / sizeof *modes ? modes[index] : NULL;
}

static const char *target_choice(uint32_t index) {
  return index <= MGL_TARGET_CUDA ? mgl_target_name((mgl_target)index) : NULL;
}

// --- arguments -----------------------------------------------------------------------------------

static mgl_status parse_tokens(compilation *c, mgl_error *err) {
  const char *text = mgl_arguments_text(c->arguments, "tokens", "1");
  if (strcmp(text, "all") == 0) {
    for (uint32_t n = 1; n <= MGL_MAX_ITERATION_TOKENS; n *= 2) {
      c->tokens[c->graph_count++] = n;
    }
    return MGL_OK;
  }
  char *end = NULL;
  unsigned long value = strtoul(text, &end, 10);
  if (!isdigit((unsigned char)text[0]) || *end != 0 || value < 1 ||
      value > MGL_MAX_ITERATION_TOKENS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--tokens: expected 1 to %d or all, found \"%.80s\"",
                         MGL_MAX_ITERATION_TOKENS, text);
  }
  c->tokens[c->graph_count++] = (uint32_t)value;
  return MGL_OK;
}

static bool parse_launch(const char *text, mgl_launch *out) {
  *out = strcmp(text, "jit") == 0 ? MGL_LAUNCH_JIT : MGL_LAUNCH_AOT;
  return strcmp(text, "jit") == 0 || strcmp(text, "aot") == 0;
}

// --launch, for one op or for all.
static mgl_status read_launch(compilation *c, const char *text, mgl_error *err) {
  const char *equals = strchr(text, '=');
  mgl_compile_override *override = NULL;
  if (equals == NULL) {
    return parse_launch(text, &c->launch)
               ? MGL_OK
               : mgl_error_set(err, MGL_ERR_ARGUMENT,
                               "--launch: expected aot, jit, OP=aot or OP=jit, found \"%.80s\"",
                               text);
  }
  if (equals == text) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "--launch: expected OP=aot|jit, found \"%.80s\"",
                         text);
  }
  MGL_TRY(mgl_overrides_append(&c->overrides, text, (size_t)(equals - text), &override, err));
  return parse_launch(equals + 1, &override->launch)
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT,
                             "--launch: expected aot or jit behind \"=\", found \"%.80s\"", text);
}

// In the order given: where two name the same op, the last one counts.
static mgl_status read_variant(compilation *c, const char *text, mgl_error *err) {
  mgl_status status = mgl_cpu_variants_set(&c->variants, text, strlen(text), err);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "--variant");
  }
  return status;
}

static mgl_status parse_overrides(compilation *c, mgl_error *err) {
  for (size_t i = 0; i < c->arguments->count; i++) {
    const mgl_argument *argument = &c->arguments->items[i];
    if (strcmp(argument->option->name, "partition") == 0) {
      MGL_TRY(mgl_overrides_read(&c->overrides, "--partition", argument->text, err));
    } else if (strcmp(argument->option->name, "launch") == 0) {
      MGL_TRY(read_launch(c, argument->text, err));
    } else if (strcmp(argument->option->name, "variant") == 0) {
      MGL_TRY(read_variant(c, argument->text, err));
    }
  }
  return MGL_OK;
}

// What --target cuda excludes: no GPU is looked at, and its kernels are of fused ops.
static mgl_status parse_target(compilation *c, mgl_error *err) {
  (void)mgl_target_parse(mgl_arguments_text(c->arguments, "target", "cpu"), &c->target);
  if (c->target == MGL_TARGET_CPU) {
    return MGL_OK;
  }
  if (mgl_arguments_has(c->arguments, "no-fuse")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--no-fuse: expected --target cpu with it, the GPU has kernels for fused "
                         "ops only");
  }
  if (mgl_arguments_has(c->arguments, "variant")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--variant: expected --target cpu with it, a GPU's bodies follow from the "
                         "shapes of tasks");
  }
  if (mgl_arguments_has(c->arguments, "measure")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--measure: expected --target cpu with it, since it measures this "
                         "machine's cores; give the GPU's rate with --bandwidth");
  }
  return MGL_OK;
}

static mgl_status check_arguments(const compilation *c, mgl_error *err) {
  const char *dump = mgl_arguments_text(c->arguments, "dump", NULL);
  const char *alone = dump != NULL ? "dump" : "output";
  if (c->graph_count > 1 && (dump != NULL || mgl_arguments_has(c->arguments, "output"))) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--%s: expected one token count with it, found "
                         "--tokens all",
                         alone);
  }
  if (mgl_arguments_has(c->arguments, "bandwidth") && mgl_arguments_has(c->arguments, "measure")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected one of --bandwidth and --measure");
  }
  if (mgl_arguments_has(c->arguments, "mode") &&
      (c->target != MGL_TARGET_CUDA || dump == NULL || strcmp(dump, "lower") != 0)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--mode: expected --target cuda and --dump lower with it");
  }
  if (dump != NULL && mgl_arguments_has(c->arguments, "json")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--dump and --json both write to standard output: expected one of them");
  }
  return MGL_OK;
}

// Workers and bandwidth: from the arguments, or else from the machine; or an H100's workers.
static mgl_status look_at_machine(compilation *c, mgl_error *err) {
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_simd simd = MGL_SIMD_SCALAR;
  bool measures = mgl_arguments_has(c->arguments, "measure");
  c->bandwidth = 1e9 * mgl_arguments_real(c->arguments, "bandwidth", 0);
  c->workers = (uint32_t)mgl_arguments_u64(c->arguments, "workers",
                                           c->target == MGL_TARGET_CUDA ? CUDA_WORKERS : 0);
  if (c->workers > 0 && !measures) {
    return MGL_OK;
  }
  MGL_TRY(mgl_topology_create(&topology, err));
  c->workers = c->workers > 0 ? c->workers : mgl_topology_cores(topology);
  mgl_status status = measures ? mgl_simd_choose(&simd, err) : MGL_OK;
  if (status == MGL_OK && measures) {
    status = mgl_team_create(topology, 0, &team, err);
  }
  if (status == MGL_OK && measures) {
    status = mgl_read_ceiling_measure(team, simd, NULL, MGL_READ_CEILING_BYTES, CEILING_PASSES,
                                      &c->bandwidth, err);
  }
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
  return status;
}

// --- compiling -----------------------------------------------------------------------------------

// Whether the schedule of mode full on a GPU is wanted.
static bool dumps_kernels(const compilation *c) {
  return c->target == MGL_TARGET_CUDA &&
         strcmp(mgl_arguments_text(c->arguments, "dump", ""), "lower") == 0 &&
         strcmp(mgl_arguments_text(c->arguments, "mode", ""), "full") == 0;
}

// --expert-balance, of whole programs, as the runner sets it.
static mgl_status set_balance(compilation *c, mgl_error *err) {
  const char *name = mgl_arguments_text(c->arguments, "expert-balance", NULL);
  mgl_balance balance = MGL_BALANCE_COLUMNS;
  if (name == NULL) {
    return MGL_OK;
  }
  if (c->target != MGL_TARGET_CPU) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--expert-balance: a GPU's tasks share chosen experts evenly always; "
                         "expected --target cpu");
  }
  MGL_TRY(mgl_balance_parse(name, &balance, err));
  return mgl_graph_set_balance(c->canonical, balance, err);
}

static mgl_status build_program(compilation *c, mgl_error *err) {
  MGL_TRY(mgl_app_model_open(c->arguments, 0, &c->model, err));
  MGL_TRY(mgl_family_build(&c->model.folder.config, NULL, &c->canonical, err));
  MGL_TRY(set_balance(c, err));
  if (mgl_app_ranks(c->arguments) > 1) {
    mgl_graph *cut = NULL;
    const mgl_shard_options options = {
        .ranks = mgl_app_ranks(c->arguments),
        .vocab_parallel = mgl_arguments_has(c->arguments, "vocab-parallel"),
        .reduce_scatter = mgl_arguments_has(c->arguments, "reduce-scatter")};
    MGL_TRY(mgl_shard_program_by(c->canonical, &options, &cut, err));
    mgl_graph_destroy(c->canonical);
    c->canonical = cut;
  }
  c->program = c->canonical;
  if (mgl_arguments_has(c->arguments, "no-fuse")) {
    return MGL_OK;
  }
  mgl_status status = mgl_fuse_ops_for(c->target, c->canonical, &c->fused, err);
  if (status == MGL_ERR_UNSUPPORTED && dumps_kernels(c)) {
    return MGL_OK;  // plain kernels run it as it is
  }
  c->program = c->fused;
  return status;
}

static mgl_status save_graph(const compilation *c, const mgl_task_graph *graph, mgl_error *err) {
  mgl_text json = {0};
  mgl_status status = mgl_task_graph_write_json(c->program, graph, &json, err);
  if (status == MGL_OK) {
    status = mgl_output_file_save(mgl_arguments_text(c->arguments, "output", NULL), &json, err);
  }
  mgl_text_free(&json);
  return status;
}

static mgl_compile_options compile_options(const compilation *c, uint32_t index) {
  return (mgl_compile_options){.target = c->target,
                               .tokens = c->tokens[index],
                               .workers = c->workers,
                               .launch = c->launch,
                               .overrides = c->overrides.items,
                               .override_count = (uint32_t)c->overrides.count,
                               .coarse = mgl_arguments_has(c->arguments, "coarse"),
                               .verify = mgl_arguments_has(c->arguments, "verify")};
}

// The schedules that run iterations of so many tokens. On a GPU with tensor cores for warpgroups.
static mgl_status dump_schedules(const compilation *c, mgl_text *dump, mgl_error *err) {
  for (uint32_t i = 0; i < c->graph_count; i++) {
    const mgl_iteration_options options = {
        .compile = compile_options(c, i), .few = true, .kernels = dumps_kernels(c)};
    mgl_schedule *schedule = NULL;
    MGL_TRY(mgl_lower_iteration(c->program, &options, &schedule, err));
    mgl_status status =
        options.compile.verify ? mgl_schedule_verify(c->program, schedule, err) : MGL_OK;
    if (status == MGL_OK) {
      mgl_schedule_print(c->program, schedule, dump);
      status = mgl_text_check(dump, err);
    }
    mgl_schedule_destroy(schedule);
    MGL_TRY(status);
  }
  return MGL_OK;
}

// Compiles all graphs; *dump receives what --dump asks for.
static mgl_status compile_all(compilation *c, mgl_text *dump, mgl_error *err) {
  const char *pass = mgl_arguments_text(c->arguments, "dump", NULL);
  bool is_fusion = pass != NULL && strcmp(pass, "fuse_ops") == 0;
  mgl_status status = MGL_OK;
  if (pass != NULL && strcmp(pass, "lower") == 0) {
    return dump_schedules(c, dump, err);
  }
  for (uint32_t i = 0; i < c->graph_count && status == MGL_OK; i++) {
    mgl_task_graph *graph = NULL;
    mgl_compile_options options = compile_options(c, i);
    options.dump = is_fusion ? NULL : pass;
    options.dump_text = dump;
    status = mgl_compile(c->program, &options, &graph, &c->reports[i], err);
    if (status == MGL_OK && mgl_arguments_has(c->arguments, "output")) {
      status = save_graph(c, graph, err);
    }
    mgl_task_graph_destroy(graph);
  }
  if (is_fusion) {
    mgl_graph_print(c->program, dump);
  }
  return status;
}

// --- statistics ----------------------------------------------------------------------------------

typedef enum statistic_unit {
  UNIT_COUNT,
  UNIT_BYTES,
  UNIT_RATIO,
  UNIT_PERCENT,
  UNIT_MS
} statistic_unit;

// In the order of the passes.
typedef enum statistic {
  OPS_BEFORE,
  OPS,
  TASKS,
  WEIGHTS,
  READ_MS,
  PAIRS,
  STAGES,
  CHAIN,
  EVENTS_FUSED,
  FUSION_RATIO,
  PAIRS_PRUNED,
  EVENTS_PRUNED,
  TASKS_EMPTY,
  SHARE_ADDED,
  EVENTS_ADDED,
  TASKS_AOT,
  TASKS_JIT,
  WORKER_MAX,
  WORKER_MEAN,
  ACTIVATIONS,
  DESCRIPTORS,
  COMPILE_MS,
  STATISTIC_COUNT,
} statistic;

static const struct {
  const char *pass;   // that did it
  const char *label;  // of the table
  const char *key;    // of --json
  statistic_unit unit;
} statistics[STATISTIC_COUNT] = {
    [OPS_BEFORE] = {"fuse_ops", "ops of the model", "ops_before_fusion", UNIT_COUNT},
    [OPS] = {"fuse_ops", "ops left", "ops", UNIT_COUNT},
    [TASKS] = {"partition", "tasks", "tasks", UNIT_COUNT},
    [WEIGHTS] = {"partition", "weights read per iteration", "weight_bytes", UNIT_BYTES},
    [READ_MS] = {"partition", "time for that", "read_ms", UNIT_MS},
    [PAIRS] = {"depend", "pairs of dependent tasks", "dependent_pairs", UNIT_COUNT},
    [STAGES] = {"depend", "stages", "stages", UNIT_COUNT},
    [CHAIN] = {"depend", "longest chain of stages", "chain", UNIT_COUNT},
    [EVENTS_FUSED] = {"fuse_events", "events instead of pairs", "fused_events", UNIT_COUNT},
    [FUSION_RATIO] = {"fuse_events", "pairs per event", "pairs_per_event", UNIT_RATIO},
    [PAIRS_PRUNED] = {"prune", "pairs that no others imply", "pruned_pairs", UNIT_COUNT},
    [EVENTS_PRUNED] = {"fuse_pruned", "events left", "pruned_events", UNIT_COUNT},
    [TASKS_EMPTY] = {"normalise", "empty tasks", "empty_tasks", UNIT_COUNT},
    [SHARE_ADDED] = {"normalise", "share of all tasks", "empty_share", UNIT_PERCENT},
    [EVENTS_ADDED] = {"normalise", "events added", "added_events", UNIT_COUNT},
    [TASKS_AOT] = {"label", "AOT tasks", "aot_tasks", UNIT_COUNT},
    [TASKS_JIT] = {"label", "JIT tasks", "jit_tasks", UNIT_COUNT},
    [WORKER_MAX] = {"place", "AOT bytes of a worker, most", "worker_bytes_max", UNIT_BYTES},
    [WORKER_MEAN] = {"place", "the same, mean", "worker_bytes_mean", UNIT_BYTES},
    [ACTIVATIONS] = {"lay_out", "activations", "activation_bytes", UNIT_BYTES},
    [DESCRIPTORS] = {"emit", "descriptors", "descriptor_bytes", UNIT_BYTES},
    [COMPILE_MS] = {"all", "time", "compile_ms", UNIT_MS},
};

static void collect(const compilation *c, uint32_t index, double out[STATISTIC_COUNT]) {
  const mgl_compile_report *r = &c->reports[index];
  double all_tasks = (double)r->task_count + (double)r->empty_tasks;
  out[OPS_BEFORE] = (double)c->canonical->op_count;
  out[OPS] = r->op_count;
  out[STAGES] = r->stage_count;
  out[CHAIN] = r->chain_length;
  out[TASKS] = r->task_count;
  out[PAIRS] = (double)r->dependent_pairs;
  out[EVENTS_FUSED] = r->fused_events;
  out[FUSION_RATIO] = r->fused_events == 0 ? 0 : (double)r->dependent_pairs / r->fused_events;
  out[PAIRS_PRUNED] = (double)r->pruned_pairs;
  out[EVENTS_PRUNED] = r->pruned_events;
  out[TASKS_EMPTY] = r->empty_tasks;
  out[EVENTS_ADDED] = r->added_events;
  out[SHARE_ADDED] = all_tasks > 0 ? 100 * r->empty_tasks / all_tasks : 0;
  out[TASKS_AOT] = (double)r->task_count - r->jit_tasks;
  out[TASKS_JIT] = r->jit_tasks;
  out[WORKER_MAX] = (double)r->worker_bytes_max;
  out[WORKER_MEAN] = (double)r->worker_bytes_total / c->workers;
  out[ACTIVATIONS] = (double)r->activation_bytes;
  out[DESCRIPTORS] = (double)r->descriptor_bytes;
  out[WEIGHTS] = (double)r->weight_bytes;
  out[READ_MS] = c->bandwidth > 0 ? 1e3 * (double)r->weight_bytes / c->bandwidth : 0;
  out[COMPILE_MS] = r->ms;
}

static void append_value(mgl_text *out, statistic_unit unit, double value) {
  char text[MGL_HUMAN_BYTES];
  char number[MGL_HUMAN_BYTES];
  switch (unit) {
    case UNIT_COUNT: (void)snprintf(text, sizeof text, "%.0f", value); break;
    case UNIT_BYTES: mgl_human_size((uint64_t)value, text); break;
    case UNIT_MS: mgl_human_ms(value, text); break;
    case UNIT_RATIO: mgl_human_number(value, text); break;
    case UNIT_PERCENT:
      mgl_human_number(value, number);
      (void)snprintf(text, sizeof text, "%.20s %%", number);
      break;
  }
  mgl_text_format(out, "%*s", COLUMN_WIDTH, text);
}

static void append_label(const compilation *c, statistic s, mgl_text *out) {
  char label[LABEL_WIDTH + MGL_HUMAN_BYTES];
  char rate[MGL_HUMAN_BYTES];
  bool is_first = s == 0 || strcmp(statistics[s].pass, statistics[s - 1].pass) != 0;
  (void)snprintf(label, sizeof label, "%s", statistics[s].label);
  if (s == READ_MS) {
    mgl_human_rate(c->bandwidth, rate);
    (void)snprintf(label, sizeof label, "%s at %s", statistics[s].label, rate);
  }
  mgl_text_format(out, "%-*s%-*s", PASS_WIDTH, is_first ? statistics[s].pass : "", LABEL_WIDTH,
                  label);
}

// Whether an engine can run such a graph.
static bool is_run(const compilation *c, uint32_t tokens) {
  return c->target == MGL_TARGET_CPU || tokens <= MGL_CUDA_MAX_TOKENS;
}

// Whether ops like an earlier one have been told of: layers are alike.
static bool is_like_before(const mgl_graph *program, size_t op) {
  for (size_t i = 0; i < op; i++) {
    if (program->ops[i].kind == program->ops[op].kind) {
      return true;
    }
  }
  return false;
}

// The bodies of device code that compute the ops of the first layer, and those that are no layer's,
// on GPUs of compute capability 9.0, in one mode.
static void append_bodies_of(const compilation *c, uint32_t tokens, bool full, mgl_text *out) {
  char label[LABEL_WIDTH];
  (void)snprintf(label, sizeof label, "mode %s, sm_90a", full ? "full" : "mega");
  mgl_text_format(out, "\n%-*s%-*sbecause, up to %" PRIu32 " token%s\n", PASS_WIDTH, "bodies",
                  LABEL_WIDTH, label, tokens, tokens == 1 ? "" : "s");
  for (uint32_t i = 0; i < c->program->op_count; i++) {
    if (!is_like_before(c->program, i)) {
      const mgl_bodies bodies =
          mgl_bodies_of(c->program, tokens, MGL_CUDA_MAX_TOKENS, c->workers, BODIES_CAPABILITY, i);
      const char *name = !full ? bodies.mega : bodies.full != NULL ? bodies.full : "none";
      mgl_text_format(out, "%-*s%-*s%s\n", PASS_WIDTH,
                      mgl_op_info_of(c->program->ops[i].kind)->name, LABEL_WIDTH, name,
                      full ? bodies.full_why : bodies.mega_why);
    }
  }
}

static void append_bodies(const compilation *c, mgl_text *out) {
  for (uint32_t g = 0; g < c->graph_count && is_run(c, c->tokens[g]); g++) {
    append_bodies_of(c, c->tokens[g], false, out);
    append_bodies_of(c, c->tokens[g], true, out);
  }
}

// Which kernel computes each kind of op on this machine, and why.
static void append_kernels(const compilation *c, mgl_text *out) {
  mgl_simd simd = mgl_simd_detected();
  const mgl_simd widest = simd;
  if (mgl_simd_choose(&simd, NULL) != MGL_OK) {
    return;
  }
  mgl_text_format(out, "\n%-*s%-*s%s\n", PASS_WIDTH, "kernels", LABEL_WIDTH, "on this machine",
                  "because");
  for (uint32_t i = 0; i < c->program->op_count; i++) {
    if (!is_like_before(c->program, i)) {
      const mgl_op *op = &c->program->ops[i];
      const char *name = mgl_tile_is_attention(op) ? "attention" : mgl_op_name(op);
      uint32_t kernel = mgl_cpu_variant_find(name);
      bool asked = kernel < MGL_CPU_VARIANT_COUNT && c->variants.asked[kernel] != 0;
      mgl_simd taken = asked ? (mgl_simd)(c->variants.asked[kernel] - 1) : simd;
      mgl_simd owner =
          kernel < MGL_CPU_VARIANT_COUNT ? mgl_cpu_variant_owner(kernel, taken) : taken;
      mgl_text_format(out, "%-*s%-*s%s\n", PASS_WIDTH, mgl_op_name(op), LABEL_WIDTH,
                      op->custom != NULL ? "its function" : mgl_simd_name(owner),
                      asked            ? "--variant says so"
                      : owner != taken ? "levels above share it: it is stored once"
                      : simd == widest ? "the widest of this processor"
                                       : "MEGALITH_SIMD says so");
    }
  }
}

static void append_table(const compilation *c, mgl_text *out) {
  double values[MAX_GRAPHS][STATISTIC_COUNT];
  mgl_text_format(out, "%s (%s)%s, %" PRIu32 " worker%s%s%s\n", c->model.name, c->program->name,
                  c->target == MGL_TARGET_CUDA ? " for cuda" : "", c->workers,
                  c->workers == 1 ? "" : "s", c->fused == NULL ? ", ops not fused" : "",
                  mgl_arguments_has(c->arguments, "coarse") ? ", one event per pair of ops" : "");
  mgl_text_format(out, "%-*s%-*s", PASS_WIDTH, "pass", LABEL_WIDTH, "for iterations of up to");
  for (uint32_t i = 0; i < c->graph_count; i++) {
    char tokens[16];
    (void)snprintf(tokens, sizeof tokens, "%" PRIu32 " token%s", c->tokens[i],
                   c->tokens[i] == 1 ? "" : "s");
    mgl_text_format(out, "%*s", COLUMN_WIDTH, tokens);
    collect(c, i, values[i]);
  }
  mgl_text_append_string(out, "\n");
  for (uint32_t s = 0; s < STATISTIC_COUNT; s++) {
    if (s == READ_MS && c->bandwidth <= 0) {
      continue;
    }
    append_label(c, s, out);
    for (uint32_t i = 0; i < c->graph_count; i++) {
      append_value(out, statistics[s].unit, values[i][s]);
    }
    mgl_text_append_string(out, "\n");
  }
  if (!is_run(c, c->tokens[c->graph_count - 1])) {
    mgl_text_format(out,
                    "\nNothing runs graphs for more than %d tokens on a GPU: such iterations have "
                    "%s.\n",
                    MGL_CUDA_MAX_TOKENS,
                    mgl_stages_cover(c->program) ? "stages there (--dump lower)"
                                                 : "no kernels there for this model");
  }
  if (c->target == MGL_TARGET_CUDA) {
    append_bodies(c, out);
  } else {
    append_kernels(c, out);
  }
}

static void append_json(const compilation *c, mgl_text *out) {
  mgl_text_append_string(out, "{\"model\": ");
  mgl_json_append_string(out, c->model.name, strlen(c->model.name));
  mgl_text_format(out,
                  ", \"family\": \"%s\", \"target\": \"%s\", \"workers\": %" PRIu32
                  ", \"bandwidth_bytes_per_s\": ",
                  c->program->name, mgl_target_name(c->target), c->workers);
  mgl_json_append_double(out, c->bandwidth > 0 ? c->bandwidth : (double)NAN);
  mgl_text_append_string(out, ", \"graphs\": [");
  for (uint32_t i = 0; i < c->graph_count; i++) {
    double values[STATISTIC_COUNT];
    collect(c, i, values);
    mgl_text_format(out, "%s{\"tokens\": %" PRIu32 ", \"is_run\": %s", i == 0 ? "" : ", ",
                    c->tokens[i], is_run(c, c->tokens[i]) ? "true" : "false");
    for (uint32_t s = 0; s < STATISTIC_COUNT; s++) {
      statistic_unit unit = statistics[s].unit;
      mgl_text_format(out, ", \"%s\": ", statistics[s].key);
      if (s == READ_MS && c->bandwidth <= 0) {
        mgl_text_append_string(out, "null");
      } else if (unit == UNIT_COUNT || unit == UNIT_BYTES) {
        mgl_text_format(out, "%.0f", values[s]);
      } else {
        mgl_json_append_double(out, unit == UNIT_PERCENT ? values[s] / 100 : values[s]);
      }
    }
    mgl_text_append_string(out, "}");
  }
  mgl_text_append_string(out, "]}\n");
}

// -------------------------------------------------------------------------------------------------

static mgl_status print_passes(mgl_error *err) {
  mgl_text out = {0};
  const char *name = NULL;
  for (uint32_t i = 1; (name = dump_choice(i)) != NULL; i++) {
    mgl_text_format(&out, "%s\n", name);
  }
  mgl_status status = mgl_output_text(&out, err);
  mgl_text_free(&out);
  return status;
}

static mgl_status compile_and_print(compilation *c, mgl_error *err) {
  const char *dump = mgl_arguments_text(c->arguments, "dump", NULL);
  mgl_text out = {0};
  MGL_TRY(parse_target(c, err));
  MGL_TRY(parse_tokens(c, err));
  MGL_TRY(parse_overrides(c, err));
  MGL_TRY(check_arguments(c, err));
  if (dump != NULL && strcmp(dump, "list") == 0) {
    return print_passes(err);
  }
  MGL_TRY(build_program(c, err));
  MGL_TRY(look_at_machine(c, err));
  mgl_status status = compile_all(c, &out, err);
  if (status == MGL_OK && mgl_arguments_has(c->arguments, "json")) {
    append_json(c, &out);
  } else if (status == MGL_OK && dump == NULL) {
    append_table(c, &out);
  }
  if (status == MGL_OK) {
    status = mgl_output_text(&out, err);
  }
  mgl_text_free(&out);
  return status;
}

static mgl_status compile_command(const mgl_arguments *arguments, mgl_error *err) {
  compilation c = {.arguments = arguments};
  mgl_status status = compile_and_print(&c, err);
  mgl_overrides_free(&c.overrides);
  mgl_graph_destroy(c.fused);
  mgl_graph_destroy(c.canonical);
  mgl_app_model_close(&c.model);
  return status;
}

static const mgl_option options[] = {
    {.name = "tokens",
     .short_name = 'n',
     .value_name = "N",
     .type = MGL_OPTION_TEXT,
     .help = "compile for iterations of up to N tokens, 1 to 2048; all: for 1, 2, 4 to 2048; what "
             "GPUs run for more than 16, --dump lower prints [1]"},
    {.name = "target",
     .value_name = "TARGET",
     .type = MGL_OPTION_CHOICE,
     .choices = target_choice,
     .help = "what the task graph is for: cpu or cuda; needs no GPU [cpu]"},
    {.name = "workers",
     .short_name = 'w',
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_COMPILE_MAX_WORKERS,
     .help = "workers that tasks are made for and placed on [one per core; 132 for cuda]"},
    MGL_ROW_PARTITION,
    {.name = "launch",
     .value_name = "OP=aot|jit",
     .type = MGL_OPTION_TEXT,
     .repeatable = true,
     .help = "place the tasks of an op ahead of time or let workers take them; without "
             "OP=, of all ops [the compiler decides]"},
    {.name = "variant",
     .value_name = "OP=NAME",
     .type = MGL_OPTION_TEXT,
     .repeatable = true,
     .help = "CPU: compute an op with another kernel, attention=scalar [the widest that the "
             "processor has]"},
    {.name = "no-fuse",
     .type = MGL_OPTION_FLAG,
     .help = "compile the ops as the model has them, without fusing any"},
    {.name = "mode",
     .value_name = "MODE",
     .type = MGL_OPTION_CHOICE,
     .choices = mode_choice,
     .help = "of a GPU, with --dump lower: mega or full [mega]"},
    {.name = "coarse",
     .type = MGL_OPTION_FLAG,
     .help = "one event per pair of ops instead of exact dependencies, for comparison"},
    {.name = "expert-balance",
     .value_name = "HOW",
     .type = MGL_OPTION_CHOICE,
     .choices = mgl_balance_name,
     .help = "of a CPU: how tasks share a mixture's experts, as run and serve take it: columns of "
             "every one, static, dynamic or hybrid shares of them [columns]"},
    {.name = "verify",
     .type = MGL_OPTION_FLAG,
     .help = "check what each pass promises, and the result"},
    {.name = "bandwidth",
     .value_name = "GB/s",
     .type = MGL_OPTION_REAL,
     .min = 1e-3,
     .max = 1e6,
     .help = "print how long an iteration needs to read the weights at this rate"},
    {.name = "measure",
     .type = MGL_OPTION_FLAG,
     .help = "the same at the rate that this machine's cores read memory with"},
    {.name = "json", .type = MGL_OPTION_FLAG, .help = "print the statistics as an object"},
    {.name = "dump",
     .value_name = "PASS",
     .type = MGL_OPTION_CHOICE,
     .choices = dump_choice,
     .help = "print what PASS leaves instead of the statistics; list prints the passes' names; "
             "lower: the schedule that runs iterations of so many tokens"},
    {.name = "output",
     .short_name = 'o',
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "write the task graph as JSON (megalith graph reads it)"},
    MGL_ROW_TENSOR_PARALLEL,
    MGL_ROW_VOCAB_PARALLEL,
    MGL_ROW_REDUCE_SCATTER,
};

const mgl_command mgl_command_compile = {
    .name = "compile",
    .summary = "compile a model to a task graph and print what each pass did",
    .positional = "MODEL",
    .description =
        "Turns a model into a task graph: fuses ops, cuts them into tasks, finds which tasks wait\n"
        "for which, and places them on workers. Of MODEL only config.json is needed. On GPUs\n"
        "iterations of more than 64 tokens, and by default of more than 16, have stages of their\n"
        "own instead of a task graph; graphs for more are there to look at.",
    .examples =
        "megalith compile --tokens all\n"
        "megalith compile path/to/model --workers 8 --bandwidth 200 -o task_graph.json\n"
        "megalith compile path/to/model --target cuda --dump place\n"
        "megalith compile --partition gate_up=16 --launch attend=jit --json",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = compile_command,
};
