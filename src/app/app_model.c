#include "app/app_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/commands.h"
#include "app/model_path.h"
#include "app/progress.h"
#include "base/alloc.h"
#include "base/file.h"
#include "device/cuda/cuda_ranks.h"

enum {
  TRACE_TASKS = 65536,  // tasks of each worker that --trace keeps
  TRACE_SPANS = 1024,   // on a GPU: spans of each multiprocessor and role
};

const char *mgl_mode_choice(uint32_t index) {
  return index < MGL_MODE_COUNT ? mgl_mode_name((mgl_mode)index) : NULL;
}

static mgl_weight_source weight_source(const char *format) {
  if (strcmp(format, "dummy") == 0) {
    return MGL_WEIGHTS_DUMMY;
  }
  return strcmp(format, "copied") == 0 ? MGL_WEIGHTS_COPIED : MGL_WEIGHTS_MAPPED;
}

mgl_mode mgl_app_mode(const mgl_arguments *arguments) {
  mgl_mode mode = MGL_MODE_MEGA;
  mgl_compilation compilation;
  mgl_error ignored;  // it was reported when the model was started, or will be
  bool given = false;
  if (mgl_app_compilation(arguments, &compilation, &given, &ignored) == MGL_OK && given) {
    return compilation.mode;
  }
  const char *name = mgl_arguments_text(arguments, "mode", mgl_mode_name(mode));
  (void)mgl_mode_parse(name, &mode, NULL);  // the parser of the arguments has checked it
  return mode;
}

mgl_mode mgl_app_mode_of(const mgl_arguments *arguments, const mgl_runner *runner) {
  return mgl_arguments_has(arguments, "mode") ? mgl_app_mode(arguments)
                                              : mgl_runner_usual_mode(runner);
}

// --- the model -----------------------------------------------------------------------------------

// Before anything else, so that the processes find each other while rank 0 reads what is asked.
static mgl_status open_crew(const mgl_arguments *arguments, mgl_app_model *out, mgl_error *err) {
  const mgl_launcher *l = &arguments->launcher;
  const mgl_crew_options options = {.rank = l->rank, .count = l->size, .meeting = l->meeting};
  return l->name == NULL ? MGL_OK : mgl_crew_open(&options, &out->crew, err);
}

mgl_status mgl_app_model_open(const mgl_arguments *arguments, unsigned needs, mgl_app_model *out,
                              mgl_error *err) {
  char *path = NULL;
  *out = (mgl_app_model){.source = MGL_WEIGHTS_MAPPED};
  const unsigned weights = MGL_NEED_WEIGHTS | MGL_WANT_WEIGHTS;
  if ((needs & weights) != 0) {  // only such commands have the option
    out->source = weight_source(mgl_arguments_text(arguments, "load-format", "auto"));
  }
  if (out->source == MGL_WEIGHTS_DUMMY) {
    needs &= ~weights;
  }
  MGL_TRY(open_crew(arguments, out, err));
  MGL_TRY(mgl_app_model_path(arguments, &path, &out->name, err));
  mgl_status status = mgl_model_folder_open(path, needs, &out->folder, err);
  mgl_free(path);
  if (status != MGL_OK) {
    if (arguments->positional != NULL) {
      mgl_model_path_explain(arguments, err);
    }
    mgl_app_model_close(out);
  }
  return status;
}

void mgl_app_model_close(mgl_app_model *model) {
  mgl_model_folder_close(&model->folder);
  mgl_free(model->name);
  mgl_crew_close(model->crew);
  mgl_ranks_stop(model->ranks);
  mgl_cuda_device_close(&model->device);
  mgl_overrides_free(&model->overrides);
  for (uint32_t i = 0; i < model->given_count; i++) {
    mgl_task_graph_destroy(model->given[i].graph);
    mgl_graph_destroy(model->given[i].program);
  }
  mgl_free(model->given);
  *model = (mgl_app_model){0};
}

// While a model is made: its weights, then graphs of sizes that were asked for.
typedef struct making {
  mgl_progress weights, captures;
} making;

static void report(void *context, uint64_t done_bytes, uint64_t total_bytes) {
  mgl_progress_update(&((making *)context)->weights, done_bytes, total_bytes);
}

static void report_captures(void *context, uint64_t done, uint64_t total) {
  making *m = context;
  if (m->captures.label == NULL) {
    mgl_progress_finish(&m->weights);
    mgl_progress_start(&m->captures, "capturing graphs", MGL_PROGRESS_COUNT);
  }
  mgl_progress_update(&m->captures, done, total);
}

// What is made of the options, once the device is known: a runner, or its plan.
typedef struct outcome {
  mgl_runner **runner;  // NULL: only the plan is wanted
  mgl_sizes *plan;
  const char **device;
} outcome;

static mgl_status start(const mgl_app_model *model, const mgl_arguments *arguments,
                        mgl_build *options, const outcome *out, mgl_error *err) {
  making progress = {0};
  options->weights = model->source;
  if (out->runner == NULL) {
    *out->device = options->cuda != NULL ? model->device.name : "CPU";
    return mgl_runner_measure(&model->folder, options, out->plan, err);
  }
  bool is_dummy = model->source == MGL_WEIGHTS_DUMMY;
  uint32_t trace = options->cuda != NULL ? TRACE_SPANS : TRACE_TASKS;
  options->crew = model->crew;
  if (arguments->launcher.rank != 0) {
    options->memory_share = 0;  // rank 0 has divided the memory
  }
  mgl_progress_start(&progress.weights, is_dummy ? "making weights" : "loading weights",
                     MGL_PROGRESS_BYTES);
  options->trace_tasks = mgl_app_wants_trace(arguments) ? trace : 0;
  if (arguments->launcher.rank == 0 &&
      (model->ranks == NULL || mgl_ranks_rank(model->ranks) == 0)) {
    options->progress = (mgl_weights_progress){.report = report, .context = &progress};
    options->captures = (mgl_weights_progress){.report = report_captures, .context = &progress};
  }
  mgl_status status = mgl_runner_create(&model->folder, options, out->runner, err);
  mgl_progress_finish(&progress.weights);
  mgl_progress_finish(&progress.captures);
  return status;
}

// The last one of that name; NULL also where the command has no such option.
static const mgl_argument *find_argument(const mgl_arguments *arguments, const char *name) {
  const mgl_argument *found = NULL;
  for (size_t i = 0; i < arguments->count; i++) {
    if (strcmp(arguments->items[i].option->name, name) == 0) {
      found = &arguments->items[i];
    }
  }
  return found;
}

static uint32_t number_of(const mgl_arguments *arguments, const char *name) {
  const mgl_argument *argument = find_argument(arguments, name);
  return argument == NULL ? 0 : (uint32_t)argument->u64;
}

// Whether --mode, where the command has it, names mode mega, among others maybe.
static bool names_mega(const mgl_arguments *arguments) {
  const mgl_argument *argument = find_argument(arguments, "mode");
  return argument != NULL && strstr(argument->text, mgl_mode_name(MGL_MODE_MEGA)) != NULL;
}

static void note_of(const outcome *out) {
  if (out->runner != NULL && mgl_runner_note(*out->runner)[0] != 0) {
    (void)fprintf(stderr, "megalith: note: %s\n", mgl_runner_note(*out->runner));
  }
}

static mgl_status start_on_opened(mgl_app_model *model, const mgl_arguments *arguments,
                                  mgl_build *options, const outcome *out, mgl_error *err) {
  mgl_cuda_device_choose_code(&model->device, options->compilation);
  mgl_cuda_options cuda = {
      .device = &model->device,
      .ranks = model->ranks,
      .launch = {.in_flight = number_of(arguments, "in-flight"),
                 .in_flight_ahead = number_of(arguments, "in-flight-ahead"),
                 .no_prefetch = find_argument(arguments, "no-prefetch") != NULL,
                 .step_batch = number_of(arguments, "step-batch")},
  };
  options->cuda = &cuda;
  options->fused = names_mega(arguments);
  options->coarse = find_argument(arguments, "coarse") != NULL;
  options->events_only = find_argument(arguments, "events") != NULL;
  options->scheduler_warps = find_argument(arguments, "scheduler-warps") != NULL;
  mgl_status status = start(model, arguments, options, out, err);
  options->cuda = NULL;
  options->coarse = options->events_only = options->scheduler_warps = options->fused = false;
  return status;
}

// Rank r of several runs on GPU ordinal + r. Others than rank 0 do not return.
static mgl_status start_on_gpu(mgl_app_model *model, const mgl_arguments *arguments,
                               uint32_t ordinal, mgl_build *options, const outcome *out,
                               mgl_error *err) {
  uint32_t rank = 0;
  MGL_TRY(mgl_device_check_gpu(arguments, err));
  if (options->ranks > 1 && out->runner != NULL) {  // before anything of CUDA is open
    MGL_TRY(mgl_cuda_ranks_start(options->ranks, &model->ranks, err));
    rank = mgl_ranks_rank(model->ranks);
  }
  mgl_status status = mgl_cuda_device_open((int)(ordinal + rank), &model->device, err);
  if (status == MGL_OK) {
    status = start_on_opened(model, arguments, options, out, err);
  }
  if (rank != 0) {
    mgl_ranks_leave(model->ranks, err);
  }
  if (status != MGL_OK) {
    if (model->ranks != NULL) {
      mgl_ranks_abandon(model->ranks);
      mgl_ranks_stop(model->ranks);
      model->ranks = NULL;
    }
    mgl_cuda_device_close(&model->device);
    return status;
  }
  note_of(out);
  return MGL_OK;
}

// --memory-share, --kv-tokens, --kv-dtype, --iteration-tokens and --tune, where the command has
// them.
static mgl_status choose_sizes(const mgl_app_model *model, const mgl_arguments *arguments,
                               mgl_build *options, mgl_error *err) {
  const mgl_argument *share = find_argument(arguments, "memory-share");
  const mgl_argument *tokens = find_argument(arguments, "kv-tokens");
  if (share != NULL && tokens != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one of --memory-share and --kv-tokens, found both");
  }
  options->page_tokens = number_of(arguments, "page-tokens");
  const mgl_argument *kv_dtype = find_argument(arguments, "kv-dtype");
  if (kv_dtype != NULL && !model->usual_kv_dtype) {
    MGL_TRY(mgl_kv_dtype_parse(kv_dtype->text, &options->kv_dtype, err));
  }
  options->tune = mgl_arguments_has(arguments, "tune");
  if (options->iteration_tokens == 0) {
    options->iteration_tokens = number_of(arguments, "iteration-tokens");
  }
  if (tokens != NULL) {
    options->pool_tokens = tokens->u64;
    options->memory_share = 0;
  } else if (share != NULL) {
    options->memory_share = share->real;
  }
  return MGL_OK;
}

// --level and the like, where the command has them. On a GPU modes that only plain kernels have ask
// for them by themselves.
static mgl_status choose_compilation(mgl_app_model *model, const mgl_arguments *arguments,
                                     mgl_build *options, mgl_error *err) {
  bool given = false;
  MGL_TRY(mgl_app_compilation(arguments, &model->compilation, &given, err));
  const mgl_argument *argument = find_argument(arguments, "mode");
  bool is_mega = names_mega(arguments);
  for (const char *at = argument == NULL ? "" : argument->text; !given && !is_mega && *at != 0;) {
    char name[64];
    mgl_mode mode = MGL_MODE_MEGA;
    size_t bytes = strcspn(at, ",");
    (void)snprintf(name, sizeof name, "%.*s", (int)bytes, at);
    MGL_TRY(mgl_mode_parse(name, &mode, err));
    given = mode != MGL_MODE_MEGA && mode != MGL_MODE_FULL;
    if (given) {
      MGL_TRY(mgl_compilation_set_mode(&model->compilation, mode, err));
      MGL_TRY(mgl_compilation_check(&model->compilation, NULL, err));
    }
    at += bytes + (at[bytes] == ',');
  }
  options->compilation = given ? &model->compilation : NULL;
  return MGL_OK;
}

// --partition, where the command has it.
static mgl_status read_partitions(mgl_app_model *model, const mgl_arguments *arguments,
                                  mgl_build *build, mgl_error *err) {
  for (size_t i = 0; i < arguments->count; i++) {
    if (strcmp(arguments->items[i].option->name, "partition") == 0) {
      MGL_TRY(mgl_overrides_read(&model->overrides, "--partition", arguments->items[i].text, err));
    }
  }
  if (model->overrides.count > 0) {
    build->overrides = model->overrides.items;
    build->override_count = (uint32_t)model->overrides.count;
  }
  return MGL_OK;
}

static mgl_status read_task_graph(const char *path, mgl_given_graph *out, mgl_error *err) {
  char *text = NULL;
  size_t bytes = 0;
  MGL_TRY(mgl_file_read(path, MGL_TASK_GRAPH_JSON_MAX_BYTES, &text, &bytes, err));
  mgl_status status = mgl_task_graph_read_json(text, bytes, path, &out->program, &out->graph, err);
  mgl_free(text);
  return status;
}

// --task-graph, where the command has it.
static mgl_status read_task_graphs(mgl_app_model *model, const mgl_arguments *arguments,
                                   mgl_build *build, mgl_error *err) {
  if (model->given != NULL) {  // of an earlier runner
    build->given = model->given;
    build->given_count = model->given_count;
    return MGL_OK;
  }
  model->given = mgl_alloc_zeroed(arguments->count + 1, sizeof *model->given);
  if (model->given == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for task graphs");
  }
  for (size_t i = 0; i < arguments->count; i++) {
    if (strcmp(arguments->items[i].option->name, "task-graph") == 0) {
      MGL_TRY(read_task_graph(arguments->items[i].text, &model->given[model->given_count], err));
      model->given_count++;
    }
  }
  if (model->given_count > 0 && mgl_app_mode(arguments) != MGL_MODE_MEGA) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "--task-graph: expected --mode mega, since no other mode runs task graphs");
  }
  build->given = model->given;
  build->given_count = model->given_count;
  return MGL_OK;
}

uint32_t mgl_app_ranks(const mgl_arguments *arguments) {
  const mgl_argument *ranks = find_argument(arguments, "tensor-parallel");
  if (ranks != NULL) {
    return (uint32_t)ranks->u64;
  }
  return arguments->launcher.name != NULL ? arguments->launcher.size : 1;
}

static mgl_status on_device(mgl_app_model *model, const mgl_arguments *arguments,
                            mgl_build *options, const outcome *out, mgl_error *err) {
  mgl_device_choice device;
  mgl_error reason = {0};
  MGL_TRY(choose_sizes(model, arguments, options, err));
  MGL_TRY(choose_compilation(model, arguments, options, err));
  MGL_TRY(read_partitions(model, arguments, options, err));
  MGL_TRY(read_task_graphs(model, arguments, options, err));
  MGL_TRY(mgl_device_wanted(arguments, &device, err));
  options->ranks = mgl_app_ranks(arguments);
  options->vocab_parallel = find_argument(arguments, "vocab-parallel") != NULL;
  options->reduce_scatter = find_argument(arguments, "reduce-scatter") != NULL;
  if (device.kind == MGL_DEVICE_CUDA && model->crew != NULL) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "processes that %s has started run on the CPU so far: use --device cpu, or "
        "--tensor-parallel without %s",
        arguments->launcher.name, arguments->launcher.name);
  }
  if (device.kind == MGL_DEVICE_CUDA) {
    return start_on_gpu(model, arguments, device.ordinal, options, out, err);
  }
  if (mgl_device_auto_tries(&device) && options->ranks < 2 && model->given_count == 0) {
    mgl_status status = mgl_device_check_gpu(arguments, &reason);
    if (status == MGL_OK) {
      status = start_on_gpu(model, arguments, 0, options, out, &reason);
      if (status == MGL_OK) {
        return MGL_OK;
      }
      if (!mgl_device_may_fall_back(status)) {
        return mgl_error_set(err, status, "%s", reason.text);
      }
    }
    mgl_device_note_cpu(reason.text);
  }
  MGL_TRY(mgl_device_check_cpu(arguments, err));
  options->threads = mgl_arguments_u64(arguments, "threads", 0);
  MGL_TRY(start(model, arguments, options, out, err));
  note_of(out);
  return MGL_OK;
}

mgl_status mgl_app_model_start(mgl_app_model *model, const mgl_arguments *arguments,
                               mgl_build *options, mgl_runner **out, mgl_error *err) {
  *out = NULL;
  return on_device(model, arguments, options, &(outcome){.runner = out}, err);
}

mgl_status mgl_app_follow(const mgl_arguments *arguments, mgl_error *err) {
  const mgl_launcher *l = &arguments->launcher;
  mgl_app_model model = {0};
  mgl_runner *runner = NULL;
  mgl_error why = {0};
  mgl_build build = {.sequences = 1, .sequence_tokens = 1};  // rank 0 says what is built
  mgl_status status = mgl_app_model_open(arguments, MGL_WANT_WEIGHTS, &model, &why);
  if (status == MGL_OK && model.folder.checkpoint == NULL) {
    model.source = MGL_WEIGHTS_DUMMY;
  }
  if (status == MGL_OK) {
    status = mgl_app_model_start(&model, arguments, &build, &runner, &why);
  }
  mgl_runner_destroy(runner);
  mgl_app_model_close(&model);
  return mgl_error_set(err, status, "as rank %u of %u: %s", l->rank, l->size, why.text);
}

mgl_status mgl_app_model_plan(mgl_app_model *model, const mgl_arguments *arguments,
                              mgl_build *options, mgl_sizes *out, const char **device,
                              mgl_error *err) {
  return on_device(model, arguments, options, &(outcome){.plan = out, .device = device}, err);
}

// --- traces --------------------------------------------------------------------------------------

bool mgl_app_wants_trace(const mgl_arguments *arguments) {
  for (size_t i = 0; i < arguments->count; i++) {
    if (strcmp(arguments->items[i].option->name, "trace") == 0) {
      return true;
    }
  }
  return false;
}

mgl_status mgl_app_trace_open(const mgl_arguments *arguments, bool uses_mega, mgl_output_file *out,
                              mgl_error *err) {
  *out = (mgl_output_file){.fd = -1};
  if (!mgl_app_wants_trace(arguments)) {
    return MGL_OK;
  }
  if (!uses_mega) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--trace: expected --mode mega, since no other mode has tasks to record");
  }
  return mgl_output_file_create(mgl_arguments_text(arguments, "trace", NULL), out, err);
}

mgl_status mgl_app_trace_write(mgl_output_file *file, const mgl_runner *runner, mgl_error *err) {
  mgl_text trace = {0};
  if (file->temporary_path == NULL) {
    return MGL_OK;
  }
  mgl_status status = mgl_runner_trace(runner, &trace, err);
  if (status == MGL_OK) {
    status = mgl_text_check(&trace, err);
  }
  if (status == MGL_OK) {
    status = mgl_output_file_write(file, trace.data, trace.bytes, err);
  }
  if (status == MGL_OK) {
    status = mgl_output_file_commit(file, err);
  }
  mgl_text_free(&trace);
  return status;
}
