#include "engine/runner.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "compile/shard.h"
#include "device/compilation.h"
#include "engine/device_choice.h"
#include "graph/family.h"
#include "graph/given_program.h"
#include "graph/graph_text.h"
#include "twin/planner.h"

struct mgl_runner {
  const mgl_device_table *device;
  void *model;  // the device's
  mgl_graph *graph;
  mgl_build build;
  mgl_compilation compilation;  // the build's, checked for this device
  mgl_sizes sizes;
  uint32_t vocab_size;
  mgl_rope rope;
  char note[MGL_SIZES_NOTE_BYTES];  // why the device is not the one that covers more; ""
};

static const mgl_device_table *table_of(bool gpu) {
  return gpu ? &mgl_cuda_table : &mgl_cpu_table;
}

bool mgl_runner_has_mode(const mgl_runner *runner, mgl_mode mode) {
  const mgl_device_table *device = runner->device;
  uint32_t modes = device->modes;
  if (device->modes_of != NULL) {
    modes &= device->modes_of(runner->graph);
  }
  if (runner->build.ranks > 1) {
    modes &= 1u << MGL_MODE_MEGA;
  }
  return (modes >> mode & 1) != 0;
}

mgl_mode mgl_runner_usual_mode(const mgl_runner *runner) {
  const mgl_mode asked = runner->compilation.mode;
  if (runner->build.compilation != NULL && mgl_runner_has_mode(runner, asked)) {
    return asked;
  }
  return mgl_runner_has_mode(runner, MGL_MODE_MEGA) ? MGL_MODE_MEGA : MGL_MODE_FULL;
}

static mgl_status check_mode(const mgl_runner *runner, mgl_mode mode, mgl_error *err) {
  return mgl_runner_has_mode(runner, mode)
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_UNSUPPORTED, "mode %s: expected %s", mgl_mode_name(mode),
                             runner->build.ranks > 1 ? "mega, which alone runs on several ranks"
                                                     : runner->device->mode_hint);
}

// --- sizes ---------------------------------------------------------------------------------------

// The kernels' demand: whole vectors of positions, and whole pages in a split of attention.
static mgl_status check_page_tokens(uint32_t page_tokens, const mgl_device_defaults *usual,
                                    mgl_error *err) {
  if (usual->page_tokens != 0 && page_tokens != usual->page_tokens) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "tokens of a KV page: on a GPU %u, found %u",
                         usual->page_tokens, page_tokens);
  }
  if (page_tokens < 16 || page_tokens > MGL_ATTENTION_SPLIT ||
      (page_tokens & (page_tokens - 1)) != 0) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "tokens of a KV page: expected 16, 32, 64, 128 or 256, found %u",
                         page_tokens);
  }
  return MGL_OK;
}

static uint32_t sequences_of(const mgl_build *build, uint32_t usual, uint32_t tokens) {
  if (build->sequences != 0) {
    return build->sequences;
  }
  usual = usual < tokens ? usual : tokens;
  return build->requests != 0 && build->requests < usual ? build->requests : usual;
}

static mgl_status check_build(const mgl_build *build, const mgl_config *config,
                              const mgl_device_defaults *usual, uint32_t tokens, uint32_t sequences,
                              mgl_error *err) {
  if (tokens > usual->most_tokens) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "tokens per iteration: expected 1 to %u on %s, found %u",
                         usual->most_tokens, usual->where, tokens);
  }
  if (sequences > MGL_MAX_SEQUENCES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "sequences: expected 1 to %d at once, found %u",
                         MGL_MAX_SEQUENCES, sequences);
  }
  if (build->sequence_tokens < 1 || build->sequence_tokens > config->context_tokens) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a sequence of %u tokens does not fit: the model's context is %u tokens",
                         build->sequence_tokens, config->context_tokens);
  }
  if (build->logit_rows > tokens && build->logit_rows != MGL_EVERY_ROW) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "rows with logits: expected at most the %u tokens of an iteration, found "
                         "%u",
                         tokens, build->logit_rows);
  }
  return MGL_OK;
}

// Checks the build against model and device, and says what it comes to, but for what the device
// measures.
static mgl_status size_up(mgl_runner *runner, const mgl_config *config,
                          const mgl_device_defaults *usual, mgl_error *err) {
  const mgl_build *build = &runner->build;
  uint32_t tokens =
      build->iteration_tokens != 0 ? build->iteration_tokens : usual->iteration_tokens;
  uint32_t sequences = sequences_of(build, usual->sequences, tokens);
  uint32_t page_tokens = build->page_tokens == 0 ? MGL_PAGE_TOKENS : build->page_tokens;
  MGL_TRY(check_build(build, config, usual, tokens, sequences, err));
  MGL_TRY(check_page_tokens(page_tokens, usual, err));
  uint32_t pages = (build->sequence_tokens + page_tokens - 1) / page_tokens;
  uint64_t pool_pages = (uint64_t)pages * sequences;
  if (build->pool_tokens != 0) {
    pool_pages = (build->pool_tokens - 1) / page_tokens + 1;
  }
  uint32_t most_pages = INT32_MAX / page_tokens;
  most_pages = most_pages < MGL_PLANNER_MAX_PAGES ? most_pages : MGL_PLANNER_MAX_PAGES;
  if (pool_pages > most_pages) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "KV cache: %llu pages, at most %u are supported",
                         (unsigned long long)pool_pages, most_pages);
  }
  uint32_t sampled = sequences < tokens ? sequences : tokens;
  uint32_t rows = build->logit_rows == 0               ? sampled
                  : build->logit_rows == MGL_EVERY_ROW ? tokens
                                                       : build->logit_rows;
  runner->sizes = (mgl_sizes){
      .limits = {.tokens = tokens,
                 .sequences = sampled,
                 .pages_per_sequence = pages,
                 .page_tokens = page_tokens},
      .sequences = sequences,
      .logit_rows = rows,
      .page_count = (uint32_t)pool_pages,
      .workers = usual->workers,
  };
  const mgl_compilation_place place = {.gpu = runner->device != &mgl_cpu_table,
                                       .ranks = build->ranks,
                                       .sequences = sequences,
                                       .tokens = tokens};
  return build->compilation == NULL ? MGL_OK
                                    : mgl_compilation_check(&runner->compilation, &place, err);
}

static mgl_device_job job_of(const mgl_runner *runner, const mgl_checkpoint *checkpoint) {
  return (mgl_device_job){.program = runner->graph,
                          .checkpoint = checkpoint,
                          .build = &runner->build,
                          .sizes = &runner->sizes};
}

// Measures, and lowers the number of KV pages to what the build's share of the memory has room for.
static mgl_status measure(const mgl_runner *runner, const mgl_checkpoint *checkpoint,
                          mgl_sizes *out, mgl_error *err) {
  const mgl_device_job job = job_of(runner, checkpoint);
  double share = runner->build.memory_share;
  *out = runner->sizes;
  MGL_TRY(runner->device->measure(runner->model, &job, out, err));
  if (share == MGL_USUAL_SHARE) {
    mgl_device_defaults usual;
    runner->device->defaults(runner->model, &runner->build, runner->graph, &usual);
    share = usual.share;
  }
  return share == 0 ? MGL_OK : mgl_sizes_share(out, share, err);
}

// --- making it -----------------------------------------------------------------------------------

// Whether something was asked for that is of fused tasks.
static bool wants_tasks(const mgl_build *build) {
  const mgl_compilation *c = build->compilation;
  bool mega = c != NULL && c->mode == MGL_MODE_MEGA &&
              (c->mode_given || (c->given >> MGL_SET_GRAPH_MODE & 1) != 0);
  return mega || build->fused || build->look || build->given_count > 0 ||
         build->override_count > 0 || build->trace_tasks > 0;
}

// Whether plain kernels have the mode that was asked for, or mode full takes its place.
static bool runs_by_plain_kernels(const mgl_device_table *table, const mgl_compilation *c) {
  return c->mode == MGL_MODE_MEGA || (table->otherwise->modes >> c->mode & 1) != 0;
}

// Sizes and splitting ops of one's own. A zeroed compilation asks for none.
static bool has_own_graphs(const mgl_compilation *c) {
  return c->capture_sizes.count > 0 || c->graph_sizes.count > 0 || c->splitting_op_count > 0;
}

// Fused kernels have graphs of their own powers of two: a size takes the next one of these.
static bool fused_have_sizes(const mgl_runner *runner, const mgl_compilation *c) {
  mgl_error ignored = {0};
  mgl_size_list sizes;
  mgl_compilation_sizes(c, UINT32_MAX, &sizes);
  return !runner->build.plain && c->splitting_op_count == 0 && sizes.count > 0 &&
         sizes.items[sizes.count - 1] <= MGL_INVARIANT_TOKENS &&
         mgl_runner_has_mode(runner, c->mode) &&
         runner->device->covers(runner->graph, &ignored) == MGL_OK;
}

// What a GPU has for plain kernels only: such graphs, and modes, maybe of this program only.
static bool wants_plain_kernels(const mgl_runner *runner, const mgl_compilation *c) {
  return (!mgl_runner_has_mode(runner, c->mode) && runs_by_plain_kernels(runner->device, c)) ||
         (has_own_graphs(c) && !fused_have_sizes(runner, c));
}

// What level 1 found, of a GPU.
static void note_check(mgl_runner *runner, mgl_status status, const mgl_error *why) {
  if (status == MGL_OK) {
    (void)snprintf(runner->note, sizeof runner->note, "level 1: fused tasks cover all ops");
  } else {
    (void)snprintf(runner->note, sizeof runner->note, "level 1: fused tasks do not cover it: %.*s",
                   (int)mgl_device_reason_bytes(why->text), why->text);
  }
}

static void note_plain(mgl_runner *runner, const char *why) {
  const mgl_mode asked = runner->compilation.mode;
  (void)snprintf(runner->note, sizeof runner->note,
                 "mode %s runs the model by plain kernels, which are slow: %.*s",
                 mgl_mode_name(asked == MGL_MODE_MEGA ? MGL_MODE_FULL : asked),
                 (int)mgl_device_reason_bytes(why), why);
}

// Takes a copy of the build's compilation, checked for the device.
static mgl_status take_compilation(mgl_runner *runner, mgl_error *err) {
  mgl_build *build = &runner->build;
  if (build->compilation == NULL) {
    return MGL_OK;
  }
  runner->compilation = *build->compilation;
  build->compilation = &runner->compilation;
  const mgl_compilation_place place = {.gpu = build->cuda != NULL, .ranks = build->ranks};
  MGL_TRY(mgl_compilation_check(&runner->compilation, &place, err));
  build->plain = build->plain || !runner->compilation.use_compiler;
  return MGL_OK;
}

// Level 2 of a program that fused tasks cover in mode mega only: of one with custom ops.
static mgl_status check_chains(const mgl_runner *runner, mgl_error *err) {
  return runner->build.compilation == NULL ||
                 mgl_runner_has_mode(runner, runner->compilation.mode) ||
                 runner->compilation.mode == MGL_MODE_MEGA
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_UNSUPPORTED, "mode %s: expected %s",
                             mgl_mode_name(runner->compilation.mode), runner->device->mode_hint);
}

// The device that runs the program: where a GPU's tasks do not cover it, plain kernels do.
static mgl_status choose_device(mgl_runner *runner, const mgl_build *build, mgl_error *err) {
  const mgl_device_table *table = runner->device;
  mgl_error why = {0};
  if (table->otherwise == NULL) {
    return MGL_OK;
  }
  if (wants_plain_kernels(runner, &runner->compilation)) {
    const mgl_compilation *c = &runner->compilation;
    mgl_status status = table->covers(runner->graph, &why);
    if (c->level == MGL_LEVEL_CHECK) {
      note_check(runner, status, &why);
    } else if (c->level >= MGL_LEVEL_COMPILED && !has_own_graphs(c)) {
      note_plain(runner, status == MGL_OK ? "fused tasks have no such graphs of it" : why.text);
    }
  } else if (!build->plain) {
    mgl_status status = table->covers(runner->graph, &why);
    if (status == MGL_OK) {
      return check_chains(runner, err);
    }
    if (status != MGL_ERR_UNSUPPORTED || wants_tasks(build)) {
      return mgl_error_set(err, status, "%s", why.text);
    }
    if (!runs_by_plain_kernels(table, &runner->compilation)) {
      return mgl_error_set(err, status, "mode %s: expected a model of fused kernels: %s",
                           mgl_mode_name(runner->compilation.mode), why.text);
    }
    note_plain(runner, why.text);
  }
  runner->device = table->otherwise;
  return runner->device->covers(runner->graph, err);
}

// What several CPU ranks have, and several GPUs have not so far.
static mgl_status check_gpu_parts(const mgl_graph *program, uint32_t ranks, mgl_error *err) {
  for (size_t i = 0; i < program->tensor_count; i++) {
    const mgl_tensor *t = &program->tensors[i];
    if (t->slice.whole != 0 && (t->made || t->slice.only_first)) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%u ranks: \"%s\": %s run on one GPU so far",
                           ranks, t->name,
                           t->slice.only_first ? "biases behind a sum over the ranks"
                                               : "weights stored in another order");
    }
  }
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (mgl_op_info_of(op->kind)->unit == MGL_UNIT_EXPERT ||
        mgl_op_input(op, MGL_ROLE_SINKS) != MGL_NO_TENSOR) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%u ranks: \"%s\": mixtures of experts and sinks run on one GPU so far",
                           ranks, program->tensors[op->output].name);
    }
  }
  return MGL_OK;
}

// Puts the program of a rank in the place of the whole one.
static mgl_status cut(mgl_runner *runner, const mgl_build *build, mgl_error *err) {
  mgl_graph *program = NULL;
  const mgl_shard_options options = {.ranks = build->ranks,
                                     .vocab_parallel = build->vocab_parallel,
                                     .reduce_scatter = build->reduce_scatter};
  if (build->cuda != NULL && (build->vocab_parallel || build->reduce_scatter)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%u ranks: tables that are cut and reduce_scatter run on the CPU so far: "
                         "use --device cpu, or leave out --vocab-parallel and --reduce-scatter",
                         build->ranks);
  }
  MGL_TRY(mgl_shard_program_by(runner->graph, &options, &program, err));
  mgl_status status = build->cuda == NULL ? MGL_OK : check_gpu_parts(program, build->ranks, err);
  if (status != MGL_OK) {
    mgl_graph_destroy(program);
    return status;
  }
  mgl_graph_destroy(runner->graph);
  runner->graph = program;
  return MGL_OK;
}

// Of processes that have come by themselves: refuses to go on before anything is exchanged by sizes
// that a program has.
static mgl_status check_alike(const mgl_graph *program, mgl_ranks *ranks, mgl_error *err) {
  mgl_hash own;
  uint64_t least = 0, least_complement = 0;  // which is the most's
  MGL_TRY(mgl_graph_hash(program, &own, err));
  MGL_TRY(mgl_ranks_meet(ranks, own.low, &least, err));
  MGL_TRY(mgl_ranks_meet(ranks, ~own.low, &least_complement, err));
  return least == ~least_complement
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT,
                             "expected all ranks to have the same model, found others");
}

// Puts the program that the user gave in the place of the family's.
static mgl_status take_program(mgl_runner *runner, const mgl_build *build, mgl_error *err) {
  mgl_graph *program = NULL;
  if (build->ranks > 1) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "program: expected one rank, which alone runs a given program, found %u",
                         build->ranks);
  }
  MGL_TRY(mgl_given_program(runner->graph, build->program, &program, err));
  mgl_graph_destroy(runner->graph);
  runner->graph = program;
  return MGL_OK;
}

// Does what comes before any large memory: the program, the device, sizes.
static mgl_status begin(const mgl_model_folder *folder, const mgl_checkpoint *checkpoint,
                        const mgl_build *build, mgl_runner **out, mgl_error *err) {
  *out = NULL;
  mgl_runner *runner = mgl_alloc_zeroed(1, sizeof *runner);
  if (runner == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a model runner");
  }
  mgl_device_defaults usual;
  runner->build = *build;
  runner->device = table_of(build->cuda != NULL);
  runner->vocab_size = folder->config.vocab_size;
  runner->rope = folder->config.rope;
  mgl_status status = take_compilation(runner, err);
  if (status == MGL_OK) {
    status = mgl_family_build(&folder->config, checkpoint, &runner->graph, err);
  }
  if (status == MGL_OK) {
    status = mgl_graph_set_kv(runner->graph, build->kv_dtype, &folder->config.quantization,
                              checkpoint, err);
  }
  if (status == MGL_OK && build->program != NULL) {
    status = take_program(runner, build, err);
  }
  const mgl_compilation *c = runner->build.compilation;
  if (status == MGL_OK && c != NULL && (c->given >> MGL_SET_EXPERT_BALANCE & 1) != 0) {
    status = mgl_graph_set_balance(runner->graph, c->expert_balance, err);
  }
  if (status == MGL_OK && build->cuda != NULL && mgl_graph_has_kv8(runner->graph)) {
    status = mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "KV cache: expected bf16 on a GPU, which has no kernels for fp8 so far, "
                           "found fp8; try --device cpu");
  }
  if (status == MGL_OK && build->ranks > 1) {
    status = cut(runner, build, err);
  }
  if (status == MGL_OK && build->crew != NULL && build->cuda != NULL &&
      build->cuda->ranks != NULL) {
    status = check_alike(runner->graph, build->cuda->ranks, err);
  }
  if (status == MGL_OK) {
    status = choose_device(runner, &runner->build, err);
  }
  if (status == MGL_OK) {
    status = runner->device->open(build, &runner->model, err);
  }
  runner->build.cuda = NULL;  // borrowed until here
  runner->build.program = NULL;
  if (status == MGL_OK) {
    runner->device->defaults(runner->model, build, runner->graph, &usual);
    status = size_up(runner, &folder->config, &usual, err);
  }
  if (status != MGL_OK) {
    mgl_runner_destroy(runner);
    return status;
  }
  *out = runner;
  return MGL_OK;
}

mgl_status mgl_runner_measure(const mgl_model_folder *folder, const mgl_build *build,
                              mgl_sizes *out, mgl_error *err) {
  mgl_runner *runner = NULL;
  MGL_TRY(begin(folder, folder->checkpoint, build, &runner, err));
  mgl_status status = measure(runner, folder->checkpoint, out, err);
  memcpy(out->note, runner->note, sizeof out->note);
  mgl_runner_destroy(runner);
  return status;
}

mgl_status mgl_runner_create(const mgl_model_folder *folder, const mgl_build *build,
                             mgl_runner **out, mgl_error *err) {
  const mgl_checkpoint *checkpoint =
      build->weights == MGL_WEIGHTS_DUMMY ? NULL : folder->checkpoint;
  mgl_runner *runner = NULL;
  *out = NULL;
  assert(build->weights == MGL_WEIGHTS_DUMMY || checkpoint != NULL);
  MGL_TRY(begin(folder, checkpoint, build, &runner, err));
  mgl_status status = MGL_OK;
  if (build->memory_share != 0) {
    mgl_sizes measured;
    status = measure(runner, checkpoint, &measured, err);
    runner->sizes.page_count = measured.page_count;
  }
  if (status == MGL_OK) {
    const mgl_device_job job = job_of(runner, checkpoint);
    status = runner->device->create(runner->model, &job, err);
  }
  if (status != MGL_OK) {
    mgl_runner_destroy(runner);
    return status;
  }
  *out = runner;
  return MGL_OK;
}

void mgl_runner_destroy(mgl_runner *runner) {
  if (runner == NULL) {
    return;
  }
  if (runner->model != NULL) {
    runner->device->destroy(runner->model);
  }
  mgl_graph_destroy(runner->graph);
  mgl_free(runner);
}

mgl_status mgl_runner_check(const mgl_runner *runner, mgl_error *err) {
  return runner->device->check == NULL ? MGL_OK : runner->device->check(runner->model, err);
}

mgl_status mgl_runner_prepare(mgl_runner *runner, mgl_mode mode, mgl_error *err) {
  return runner->device->prepare(runner->model, mode, err);
}

// --- running -------------------------------------------------------------------------------------

mgl_status mgl_runner_loop(mgl_runner *runner, mgl_mode mode, mgl_next_plan_callback *next,
                           void *context, mgl_error *err) {
  MGL_TRY(check_mode(runner, mode, err));
  return runner->device->run_plans(runner->model, mode, next, context, err);
}

// One plan, then the end; keeps its logits.
typedef struct single_run {
  const mgl_plan *plan;
  mgl_logits logits;
} single_run;

static const mgl_plan *next_of_single(void *context, const mgl_logits *logits) {
  single_run *single = context;
  const mgl_plan *plan = single->plan;
  single->plan = NULL;
  if (logits != NULL) {
    single->logits = *logits;
  }
  return plan;
}

mgl_status mgl_runner_run(mgl_runner *runner, mgl_mode mode, const mgl_plan *plan, mgl_logits *out,
                          mgl_error *err) {
  single_run single = {.plan = plan};
  MGL_TRY(mgl_runner_loop(runner, mode, next_of_single, &single, err));
  *out = single.logits;
  return MGL_OK;
}

mgl_status mgl_runner_serve(mgl_runner *runner, mgl_mode mode, struct mgl_engine *engine,
                            const struct mgl_engine_run_context *callbacks, mgl_error *err) {
  MGL_TRY(check_mode(runner, mode, err));
  return runner->device->serve(engine, callbacks, err);
}

mgl_status mgl_runner_trace(const mgl_runner *runner, mgl_text *out, mgl_error *err) {
  return runner->device->trace(runner->model, out, err);
}

mgl_status mgl_runner_read_ceiling(mgl_runner *runner, uint32_t passes, double *out_bytes_per_s,
                                   mgl_error *err) {
  return runner->device->read_ceiling(runner->model, passes, out_bytes_per_s, err);
}

// --- what it is ----------------------------------------------------------------------------------

const mgl_sizes *mgl_runner_sizes(const mgl_runner *runner) {
  return &runner->sizes;
}

const mgl_plan_limits *mgl_runner_limits(const mgl_runner *runner) {
  return &runner->sizes.limits;
}

uint32_t mgl_runner_logit_rows(const mgl_runner *runner) {
  return runner->sizes.logit_rows;
}

uint32_t mgl_runner_sequences(const mgl_runner *runner) {
  return runner->sizes.sequences;
}

uint32_t mgl_runner_page_count(const mgl_runner *runner) {
  return runner->sizes.page_count;
}

bool mgl_runner_hands_out_logits(const mgl_runner *runner) {
  return runner->device->hands_out_logits;
}

uint32_t mgl_runner_vocab_size(const mgl_runner *runner) {
  return runner->vocab_size;
}

const mgl_rope *mgl_runner_rope(const mgl_runner *runner) {
  return &runner->rope;
}

void *mgl_runner_model(mgl_runner *runner) {
  return runner->model;
}

const mgl_device_table *mgl_runner_table(const mgl_runner *runner) {
  return runner->device;
}

const mgl_graph *mgl_runner_program(const mgl_runner *runner) {
  return runner->graph;
}

const mgl_build *mgl_runner_build(const mgl_runner *runner) {
  return &runner->build;
}

static mgl_device_info info_of(const mgl_runner *runner) {
  mgl_device_info info;
  runner->device->describe(runner->model, &info);
  return info;
}

uint32_t mgl_runner_threads(const mgl_runner *runner) {
  return info_of(runner).workers;
}

mgl_simd mgl_runner_simd(const mgl_runner *runner) {
  return info_of(runner).simd;
}

const mgl_cuda_device *mgl_runner_device(const mgl_runner *runner) {
  return info_of(runner).gpu;
}

const char *mgl_runner_note(const mgl_runner *runner) {
  return runner->note[0] != 0 ? runner->note : info_of(runner).note;
}

const mgl_linear_way *mgl_runner_way(const mgl_runner *runner) {
  return info_of(runner).way;
}

mgl_launch_counts mgl_runner_launches(const mgl_runner *runner) {
  return info_of(runner).launches;
}

uint64_t mgl_runner_step_bytes(const mgl_runner *runner) {
  return info_of(runner).step_bytes;
}

uint64_t mgl_runner_short_saved(const mgl_runner *runner, uint32_t tokens) {
  const mgl_device_info info = info_of(runner);
  return tokens <= info.short_tokens ? info.short_saved : 0;
}

void mgl_runner_expert_loads(const mgl_runner *runner, mgl_expert_loads *out) {
  *out = (mgl_expert_loads){0};
  if (runner->device->expert_loads != NULL) {
    runner->device->expert_loads(runner->model, out);
  }
}

uint64_t mgl_runner_kv_bytes_per_token(const mgl_runner *runner) {
  return info_of(runner).kv_bytes_per_token;
}
