#include "engine/runner.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_eager.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/read_ceiling.h"
#include "device/cpu/team.h"
#include "graph/family.h"
#include "twin/planner.h"
#include "twin/wide_items.h"

struct mgl_runner {
  mgl_topology *topology;
  mgl_team *team;
  mgl_simd simd;
  mgl_graph *graph;
  mgl_cpu_weights weights;
  mgl_cpu_memory *memory;
  mgl_cpu_program *program;  // of mode eager
  mgl_mega_mode *mega;       // NULL until mode mega is first used
  mgl_mega_mode_options mega_options;
  mgl_cuda_mode *cuda;  // on a GPU; then the parts above are not there, but for the graph
  const mgl_cuda_device *device;
  mgl_plan_limits limits;
  uint32_t sequences;  // that run at once
  uint32_t logit_rows;
  uint32_t page_count;
  uint32_t vocab_size;
  mgl_rope rope;
};

static const char *const mode_names[MGL_MODE_COUNT] = {
    [MGL_MODE_MEGA] = "mega", [MGL_MODE_EAGER] = "eager", [MGL_MODE_FULL] = "full"};

const char *mgl_mode_name(mgl_mode mode) {
  return mode_names[mode];
}

mgl_status mgl_mode_parse(const char *name, mgl_mode *out, mgl_error *err) {
  for (int mode = 0; mode < MGL_MODE_COUNT; mode++) {
    if (strcmp(name, mode_names[mode]) == 0) {
      *out = (mgl_mode)mode;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "mode: expected mega, eager or full, found \"%.40s\"",
                       name);
}

bool mgl_mode_is_for(mgl_mode mode, bool gpu) {
  return mode != (gpu ? MGL_MODE_EAGER : MGL_MODE_FULL);
}

static mgl_status check_mode(mgl_mode mode, bool gpu, mgl_error *err) {
  return mgl_mode_is_for(mode, gpu)
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_UNSUPPORTED, "mode %s: expected mega or %s %s",
                             mgl_mode_name(mode), gpu ? "full" : "eager",
                             gpu ? "on a GPU; try --device cpu" : "on a CPU; try --device cuda");
}

// The kernels' demand: whole vectors of positions, and whole pages in a split of attention.
static mgl_status check_page_tokens(uint32_t page_tokens, bool on_gpu, mgl_error *err) {
  if (on_gpu && page_tokens != MGL_CUDA_KV_PAGE_TOKENS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "tokens of a KV page: on a GPU %d, found %u",
                         MGL_CUDA_KV_PAGE_TOKENS, page_tokens);
  }
  if (page_tokens < 16 || page_tokens > MGL_ATTENTION_SPLIT ||
      (page_tokens & (page_tokens - 1)) != 0) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "tokens of a KV page: expected 16, 32, 64, 128 or 256, found %u",
                         page_tokens);
  }
  return MGL_OK;
}

// Whether iterations may be larger than the narrow class's, on a GPU.
static bool has_large_iterations(const mgl_runner_options *options) {
  const mgl_cuda_options *cuda = options->cuda;
  return cuda != NULL && cuda->device->sm_count <= MGL_WIDE_MAX_WORKERS;
}

static uint32_t iteration_tokens_of(const mgl_runner_options *options) {
  if (options->iteration_tokens != 0) {
    return options->iteration_tokens;
  }
  if (options->cuda == NULL) {
    return MGL_USUAL_HOST_ITERATION_TOKENS;
  }
  return has_large_iterations(options) ? MGL_USUAL_LARGE_ITERATION_TOKENS
                                       : MGL_USUAL_GPU_ITERATION_TOKENS;
}

static uint32_t sequences_of(const mgl_runner_options *options, uint32_t tokens) {
  uint32_t usual = has_large_iterations(options) ? MGL_USUAL_LARGE_SEQUENCES : MGL_USUAL_SEQUENCES;
  if (options->sequences != 0) {
    return options->sequences;
  }
  usual = usual < tokens ? usual : tokens;
  return options->requests != 0 && options->requests < usual ? options->requests : usual;
}

// Checks the options against the model and fills limits and page count.
static mgl_status size_up(mgl_runner *runner, const mgl_config *config,
                          const mgl_runner_options *options, mgl_error *err) {
  bool on_gpu = options->cuda != NULL;
  uint32_t tokens = iteration_tokens_of(options);
  uint32_t sequences = sequences_of(options, tokens);
  bool large = !on_gpu || has_large_iterations(options);
  uint32_t most_tokens = large ? MGL_MAX_ITERATION_TOKENS : (uint32_t)MGL_CUDA_MAX_TOKENS;
  if (tokens > most_tokens) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "tokens per iteration: expected 1 to %u on %s, found %u", most_tokens,
                         on_gpu ? "this GPU" : "the CPU", tokens);
  }
  if (sequences > MGL_MAX_SEQUENCES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "sequences: expected 1 to %d at once, found %u",
                         MGL_MAX_SEQUENCES, sequences);
  }
  if (options->sequence_tokens < 1 || options->sequence_tokens > config->context_tokens) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a sequence of %u tokens does not fit: the model's context is %u tokens",
                         options->sequence_tokens, config->context_tokens);
  }
  if (options->logit_rows > tokens) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "rows with logits: expected at most the %u tokens of an iteration, found "
                         "%u",
                         tokens, options->logit_rows);
  }
  uint32_t page_tokens = options->page_tokens == 0 ? MGL_PAGE_TOKENS : options->page_tokens;
  MGL_TRY(check_page_tokens(page_tokens, options->cuda != NULL, err));
  uint32_t pages = (options->sequence_tokens + page_tokens - 1) / page_tokens;
  uint64_t pool_pages = (uint64_t)pages * sequences;
  if (options->pool_tokens != 0) {
    pool_pages = (options->pool_tokens - 1) / page_tokens + 1;
  }
  uint32_t most_pages = INT32_MAX / page_tokens;
  most_pages = most_pages < MGL_PLANNER_MAX_PAGES ? most_pages : MGL_PLANNER_MAX_PAGES;
  if (pool_pages > most_pages) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "KV cache: %llu pages, at most %u are supported",
                         (unsigned long long)pool_pages, most_pages);
  }
  runner->limits = (mgl_plan_limits){.tokens = tokens,
                                     .sequences = sequences < tokens ? sequences : tokens,
                                     .pages_per_sequence = pages,
                                     .page_tokens = page_tokens};
  runner->sequences = sequences;
  runner->logit_rows = options->logit_rows == 0 ? runner->limits.sequences : options->logit_rows;
  runner->page_count = (uint32_t)pool_pages;
  runner->vocab_size = config->vocab_size;
  runner->rope = config->rope;
  return MGL_OK;
}

static uint64_t worker_count(const mgl_runner *runner, const mgl_runner_options *options) {
  return options->threads != 0 ? options->threads : mgl_topology_cores(runner->topology);
}

// A thread for each worker, and for each dedicated scheduler.
static mgl_status create_team(mgl_runner *runner, const mgl_runner_options *options,
                              mgl_error *err) {
  uint64_t workers = worker_count(runner, options);
  MGL_TRY(mgl_team_create(runner->topology, workers + options->schedulers, &runner->team, err));
  runner->mega_options = (mgl_mega_mode_options){.workers = (uint32_t)workers,
                                                 .schedulers = options->schedulers,
                                                 .tokens = runner->limits.tokens,
                                                 .logit_rows = runner->logit_rows,
                                                 .simd = runner->simd,
                                                 .launch = options->launch,
                                                 .overrides = options->overrides,
                                                 .override_count = options->override_count,
                                                 .trace_tasks = options->trace_tasks};
  return MGL_OK;
}

_Static_assert((int)MGL_PAGE_TOKENS == (int)MGL_CUDA_KV_PAGE_TOKENS, "one size of KV pages");

static mgl_cuda_mode_options gpu_options(const mgl_runner *runner, const mgl_checkpoint *checkpoint,
                                         const mgl_runner_options *options) {
  return (mgl_cuda_mode_options){.cuda = *options->cuda,
                                 .program = runner->graph,
                                 .checkpoint = checkpoint,
                                 .seed = options->seed,
                                 .limits = runner->limits,
                                 .sequences = runner->sequences,
                                 .page_count = runner->page_count,
                                 .logit_rows = runner->logit_rows,
                                 .schedulers = options->schedulers,
                                 .launch = options->launch,
                                 .overrides = options->overrides,
                                 .override_count = options->override_count,
                                 .trace_spans = options->trace_tasks,
                                 .progress = &options->progress};
}

static mgl_status plan_memory(const mgl_runner *runner, const mgl_checkpoint *checkpoint,
                              const mgl_runner_options *options, mgl_memory_plan *out,
                              mgl_error *err) {
  if (options->cuda != NULL) {
    mgl_cuda_mode_options cuda = gpu_options(runner, checkpoint, options);
    MGL_TRY(mgl_cuda_mode_plan_memory(&cuda, out, err));
  } else {
    MGL_TRY(mgl_team_check(runner->topology, options->threads, err));
    mgl_memory_plan_options cpu = {.limits = runner->limits,
                                   .logit_rows = runner->logit_rows,
                                   .page_count = runner->page_count,
                                   .weights = options->weights,
                                   .workers = (uint32_t)worker_count(runner, options),
                                   .schedulers = options->schedulers,
                                   .launch = options->launch,
                                   .overrides = options->overrides,
                                   .override_count = options->override_count};
    MGL_TRY(mgl_memory_plan_cpu(runner->graph, &cpu, out, err));
  }
  out->sequences = runner->sequences;
  double share = options->memory_share;
  if (share == MGL_USUAL_SHARE) {
    share = options->cuda != NULL ? MGL_USUAL_GPU_SHARE : MGL_USUAL_HOST_SHARE;
  }
  return share == 0 ? MGL_OK : mgl_memory_plan_share(out, share, err);
}

static mgl_status create_on_gpu(mgl_runner *runner, const mgl_checkpoint *checkpoint,
                                const mgl_runner_options *options, mgl_error *err) {
  mgl_cuda_mode_options cuda = gpu_options(runner, checkpoint, options);
  runner->device = options->cuda->device;
  return mgl_cuda_mode_create(&cuda, &runner->cuda, err);
}

static mgl_status create_on_cpu(mgl_runner *runner, const mgl_checkpoint *checkpoint,
                                const mgl_runner_options *options, mgl_error *err) {
  MGL_TRY(mgl_simd_choose(&runner->simd, err));
  MGL_TRY(create_team(runner, options, err));
  MGL_TRY(mgl_cpu_weights_bind(runner->graph, checkpoint, options->weights, options->seed,
                               runner->team, runner->topology, &options->progress, &runner->weights,
                               err));
  mgl_cpu_memory_options memory_options = {
      .page_tokens = runner->limits.page_tokens,
      .page_count = runner->page_count,
      .workers = mgl_team_size(runner->team),
  };
  mgl_cpu_program_options program_options = {
      .simd = runner->simd,
      .largest = {.tokens = runner->limits.tokens,
                  .logit_rows = runner->logit_rows,
                  .sequences = runner->limits.sequences},
  };
  MGL_TRY(mgl_cpu_memory_create(&runner->weights, &memory_options, runner->topology,
                                &runner->memory, err));
  return mgl_cpu_program_create(runner->graph, runner->memory, &program_options, &runner->program,
                                err);
}

static mgl_status check_gpu_forms(const mgl_graph *graph, mgl_error *err) {
  for (size_t i = 0; i < graph->tensor_count; i++) {
    if (graph->tensors[i].group != 0) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "weight \"%s\" is quantised (%s), which runs on the CPU only so far: "
                           "use --device cpu, or the model in bf16",
                           graph->tensors[i].name, mgl_dtype_name(graph->tensors[i].dtype));
    }
  }
  return MGL_OK;
}

// Does what comes before any large memory: sizes, the program, the machine's topology on the CPU.
static mgl_status begin(const mgl_model_folder *folder, const mgl_checkpoint *checkpoint,
                        const mgl_runner_options *options, mgl_runner **out, mgl_error *err) {
  *out = NULL;
  mgl_runner *runner = mgl_alloc_zeroed(1, sizeof *runner);
  if (runner == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a model runner");
  }
  mgl_status status = size_up(runner, &folder->config, options, err);
  if (status == MGL_OK) {
    status = mgl_family_build(&folder->config, checkpoint, &runner->graph, err);
  }
  if (status == MGL_OK && options->cuda != NULL) {
    status = check_gpu_forms(runner->graph, err);
  }
  if (status == MGL_OK && options->cuda == NULL) {
    status = mgl_topology_create(&runner->topology, err);
  }
  if (status != MGL_OK) {
    mgl_runner_destroy(runner);
    return status;
  }
  *out = runner;
  return MGL_OK;
}

mgl_status mgl_runner_plan_memory(const mgl_model_folder *folder, const mgl_runner_options *options,
                                  mgl_memory_plan *out, mgl_error *err) {
  mgl_runner *runner = NULL;
  MGL_TRY(begin(folder, folder->checkpoint, options, &runner, err));
  mgl_status status = plan_memory(runner, folder->checkpoint, options, out, err);
  mgl_runner_destroy(runner);
  return status;
}

static mgl_status share_memory(mgl_runner *runner, const mgl_checkpoint *checkpoint,
                               const mgl_runner_options *options, mgl_error *err) {
  mgl_memory_plan plan;
  if (options->memory_share == 0) {
    return MGL_OK;
  }
  MGL_TRY(plan_memory(runner, checkpoint, options, &plan, err));
  runner->page_count = plan.page_count;
  return MGL_OK;
}

mgl_status mgl_runner_create(const mgl_model_folder *folder, const mgl_runner_options *options,
                             mgl_runner **out, mgl_error *err) {
  const mgl_checkpoint *checkpoint =
      options->weights == MGL_WEIGHTS_DUMMY ? NULL : folder->checkpoint;
  mgl_runner *runner = NULL;
  *out = NULL;
  assert(options->weights == MGL_WEIGHTS_DUMMY || checkpoint != NULL);
  MGL_TRY(begin(folder, checkpoint, options, &runner, err));
  mgl_status status = share_memory(runner, checkpoint, options, err);
  if (status == MGL_OK) {
    status = options->cuda != NULL ? create_on_gpu(runner, checkpoint, options, err)
                                   : create_on_cpu(runner, checkpoint, options, err);
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
  mgl_cuda_mode_destroy(runner->cuda);
  mgl_mega_mode_destroy(runner->mega);
  mgl_cpu_program_destroy(runner->program);
  mgl_cpu_memory_destroy(runner->memory);
  mgl_cpu_weights_release(&runner->weights);
  mgl_team_destroy(runner->team);
  mgl_topology_destroy(runner->topology);
  mgl_graph_destroy(runner->graph);
  mgl_free(runner);
}

mgl_status mgl_runner_prepare(mgl_runner *runner, mgl_mode mode, mgl_error *err) {
  if (runner->cuda != NULL || runner->mega != NULL || mode != MGL_MODE_MEGA) {
    return MGL_OK;
  }
  return mgl_mega_mode_create(runner->graph, runner->memory, runner->team, &runner->mega_options,
                              &runner->mega, err);
}

mgl_status mgl_runner_loop(mgl_runner *runner, mgl_mode mode, mgl_next_plan_callback *next,
                           void *context, mgl_error *err) {
  MGL_TRY(check_mode(mode, runner->cuda != NULL, err));
  if (runner->cuda != NULL) {
    return mgl_cuda_mode_run(runner->cuda, mode == MGL_MODE_FULL, next, context, err);
  }
  if (mode == MGL_MODE_MEGA) {
    MGL_TRY(mgl_runner_prepare(runner, mode, err));
    return mgl_mega_mode_run(runner->mega, next, context, err);
  }
  assert(mode == MGL_MODE_EAGER);
  mgl_logits logits = {0};
  const mgl_plan *plan = next(context, NULL);
  while (plan != NULL) {
    mgl_cpu_eager_run(runner->program, runner->team, plan);
    logits = mgl_logits_of(runner->program);
    plan = next(context, &logits);
  }
  return MGL_OK;
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

mgl_status mgl_runner_generate(mgl_runner *runner, mgl_mode mode, const mgl_cuda_generate *job,
                               mgl_error *err) {
  assert(runner->cuda != NULL);
  MGL_TRY(check_mode(mode, true, err));
  return mgl_cuda_mode_generate(runner->cuda, mode == MGL_MODE_FULL, job, err);
}

mgl_cuda_program *mgl_runner_cuda_program(mgl_runner *runner) {
  return mgl_cuda_mode_program(runner->cuda);
}

mgl_status mgl_runner_trace(const mgl_runner *runner, mgl_text *out, mgl_error *err) {
  if (runner->cuda != NULL) {
    return mgl_cuda_program_trace_json(mgl_cuda_mode_program(runner->cuda), out, err);
  }
  if (runner->mega == NULL || runner->mega_options.trace_tasks == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "there is a trace in mode mega only, if asked for");
  }
  return mgl_mega_mode_trace(runner->mega, out, err);
}

const mgl_plan_limits *mgl_runner_limits(const mgl_runner *runner) {
  return &runner->limits;
}

uint32_t mgl_runner_logit_rows(const mgl_runner *runner) {
  return runner->logit_rows;
}
uint32_t mgl_runner_sequences(const mgl_runner *runner) {
  return runner->sequences;
}
uint32_t mgl_runner_page_count(const mgl_runner *runner) {
  return runner->page_count;
}
const mgl_rope *mgl_runner_rope(const mgl_runner *runner) {
  return &runner->rope;
}

uint32_t mgl_runner_vocab_size(const mgl_runner *runner) {
  return runner->vocab_size;
}
static mgl_cuda_program_info gpu_info(const mgl_runner *runner) {
  return mgl_cuda_program_describe(mgl_cuda_mode_program(runner->cuda));
}

uint32_t mgl_runner_threads(const mgl_runner *runner) {
  return runner->cuda != NULL ? gpu_info(runner).workers : runner->mega_options.workers;
}
const mgl_cuda_device *mgl_runner_device(const mgl_runner *runner) {
  return runner->device;
}
const char *mgl_runner_note(const mgl_runner *runner) {
  return runner->cuda != NULL ? mgl_cuda_program_note(mgl_cuda_mode_program(runner->cuda)) : "";
}
mgl_simd mgl_runner_simd(const mgl_runner *runner) {
  return runner->simd;
}
uint64_t mgl_runner_step_bytes(const mgl_runner *runner) {
  return runner->cuda != NULL ? gpu_info(runner).step_bytes : runner->weights.step_bytes;
}

uint64_t mgl_runner_kv_bytes_per_token(const mgl_runner *runner) {
  return runner->cuda != NULL ? gpu_info(runner).kv_bytes_per_token
                              : mgl_graph_kv_bytes_per_token(runner->graph);
}

mgl_status mgl_runner_read_ceiling(mgl_runner *runner, uint32_t passes, double *out_bytes_per_s,
                                   mgl_error *err) {
  if (runner->cuda != NULL) {
    return mgl_cuda_program_read_ceiling(mgl_cuda_mode_program(runner->cuda), passes,
                                         out_bytes_per_s, err);
  }
  const mgl_cpu_weights *weights = &runner->weights;
  bool use_pages = weights->pages_bytes >= MGL_READ_CEILING_BYTES;
  return mgl_read_ceiling_measure(runner->team, runner->simd, use_pages ? weights->pages : NULL,
                                  use_pages ? weights->pages_bytes : weights->step_bytes, passes,
                                  out_bytes_per_s, err);
}
