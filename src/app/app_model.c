#include "app/app_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/commands.h"
#include "app/device.h"
#include "app/model_path.h"
#include "app/progress.h"
#include "base/alloc.h"

static mgl_weight_source weight_source(const char *format) {
  if (strcmp(format, "dummy") == 0) {
    return MGL_WEIGHTS_DUMMY;
  }
  if (strcmp(format, "copied") == 0) {
    return MGL_WEIGHTS_COPIED;
  }
  if (strcmp(format, "short") == 0) {
    return MGL_WEIGHTS_SHORT;
  }
  return strcmp(format, "mapped") == 0 ? MGL_WEIGHTS_MAPPED : MGL_WEIGHTS_AUTO;
}

mgl_status mgl_app_compilation(const mgl_arguments *arguments, mgl_compilation *out, bool *given,
                               mgl_error *err) {
  mgl_compile_settings settings;
  mgl_mode mode = MGL_MODE_MEGA;
  mgl_compilation_init(out);
  mgl_status status = mgl_app_compile_settings(arguments, &settings, err);
  *given = settings.json.bytes > 0;
  if (status == MGL_OK && *given) {
    status = mgl_compilation_read(out, "settings", settings.json.data, err);
  }
  mgl_text_free(&settings.json);
  MGL_TRY(status);
  const mgl_argument *argument = mgl_arguments_find(arguments, "mode");
  if (*given && argument != NULL) {
    char name[64];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(argument->text, ","), argument->text);
    MGL_TRY(mgl_mode_parse(name, &mode, err));
    MGL_TRY(mgl_compilation_set_mode(out, mode, err));
  }
  return *given ? mgl_compilation_check(out, NULL, err) : MGL_OK;
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
  *out = (mgl_app_model){.source = MGL_WEIGHTS_AUTO};
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
  mgl_site_leave(&model->site);
  mgl_overrides_free(&model->overrides);
  mgl_given_graphs_free(model->given, model->given_count);
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

static uint32_t number_of(const mgl_arguments *arguments, const char *name) {
  const mgl_argument *argument = mgl_arguments_find(arguments, name);
  return argument == NULL ? 0 : (uint32_t)argument->u64;
}

// Whether --mode, where the command has it, names mode mega, among others maybe.
static bool names_mega(const mgl_arguments *arguments) {
  const mgl_argument *argument = mgl_arguments_find(arguments, "mode");
  return argument != NULL && strstr(argument->text, mgl_mode_name(MGL_MODE_MEGA)) != NULL;
}

// --memory-share, --kv-tokens, --kv-dtype, --iteration-tokens and --tune, where the command has
// them.
static mgl_status choose_sizes(const mgl_arguments *arguments, mgl_build *options, mgl_error *err) {
  const mgl_argument *share = mgl_arguments_find(arguments, "memory-share");
  const mgl_argument *tokens = mgl_arguments_find(arguments, "kv-tokens");
  if (share != NULL && tokens != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one of --memory-share and --kv-tokens, found both");
  }
  options->page_tokens = number_of(arguments, "page-tokens");
  const mgl_argument *kv_dtype = mgl_arguments_find(arguments, "kv-dtype");
  if (kv_dtype != NULL) {
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
  const mgl_argument *argument = mgl_arguments_find(arguments, "mode");
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

// --task-graph, where the command has it.
static mgl_status read_task_graphs(mgl_app_model *model, const mgl_arguments *arguments,
                                   mgl_build *build, mgl_error *err) {
  uint32_t count = 0;
  const char **paths = mgl_alloc_zeroed(arguments->count + 1, sizeof *paths);
  if (paths == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for task graphs");
  }
  for (size_t i = 0; i < arguments->count; i++) {
    if (strcmp(arguments->items[i].option->name, "task-graph") == 0) {
      paths[count++] = arguments->items[i].text;
    }
  }
  mgl_given_graphs_free(model->given, model->given_count);  // of an earlier runner
  model->given_count = count;
  mgl_status status = mgl_given_graphs_read(paths, count, &model->given, err);
  mgl_free(paths);
  build->given = model->given;
  build->given_count = count;
  return status;
}

uint32_t mgl_app_ranks(const mgl_arguments *arguments) {
  const mgl_argument *ranks = mgl_arguments_find(arguments, "tensor-parallel");
  if (ranks != NULL) {
    return (uint32_t)ranks->u64;
  }
  return arguments->launcher.name != NULL ? arguments->launcher.size : 1;
}

// All that the arguments say of a runner.
static mgl_status choose_build(mgl_app_model *model, const mgl_arguments *arguments,
                               mgl_build *build, mgl_error *err) {
  MGL_TRY(choose_sizes(arguments, build, err));
  MGL_TRY(choose_compilation(model, arguments, build, err));
  MGL_TRY(read_partitions(model, arguments, build, err));
  MGL_TRY(read_task_graphs(model, arguments, build, err));
  build->threads = number_of(arguments, "threads");
  build->weights = model->source;
  build->ranks = mgl_app_ranks(arguments);
  build->vocab_parallel = mgl_arguments_find(arguments, "vocab-parallel") != NULL;
  build->reduce_scatter = mgl_arguments_find(arguments, "reduce-scatter") != NULL;
  build->fused = names_mega(arguments);
  build->coarse = mgl_arguments_find(arguments, "coarse") != NULL;
  build->events_only = mgl_arguments_find(arguments, "events") != NULL;
  build->scheduler_warps = mgl_arguments_find(arguments, "scheduler-warps") != NULL;
  if (arguments->launcher.rank != 0) {
    build->memory_share = 0;  // rank 0 has divided the memory
  }
  return MGL_OK;
}

// A runner, or with `plan` what it would take.
static mgl_status on_device(mgl_app_model *model, const mgl_arguments *arguments, mgl_build *build,
                            mgl_runner **runner, mgl_sizes *plan, const char **device,
                            mgl_error *err) {
  mgl_error no_cpu = {0}, no_gpu = {0};
  MGL_TRY(choose_build(model, arguments, build, err));
  const mgl_cuda_launch_options launch = {
      .in_flight = number_of(arguments, "in-flight"),
      .in_flight_ahead = number_of(arguments, "in-flight-ahead"),
      .no_prefetch = mgl_arguments_find(arguments, "no-prefetch") != NULL,
      .step_batch = number_of(arguments, "step-batch")};
  mgl_start start = {.folder = &model->folder,
                     .build = build,
                     .launch = &launch,
                     .traces = mgl_app_wants_trace(arguments)};
  MGL_TRY(mgl_device_wanted(arguments, &start.device, err));
  start.not_on_cpu = mgl_device_check_cpu(arguments, &no_cpu) != MGL_OK ? no_cpu.text : NULL;
  start.not_on_gpu = mgl_device_check_gpu(arguments, &no_gpu) != MGL_OK ? no_gpu.text : NULL;
  mgl_status status = plan != NULL ? mgl_site_measure(&model->site, &start, plan, device, err)
                                   : mgl_site_start(&model->site, &start, runner, err);
  if (model->site.note[0] != 0) {
    (void)fprintf(stderr, "megalith: note: %s\n", model->site.note);
  }
  return status;
}

mgl_status mgl_app_model_start(mgl_app_model *model, const mgl_arguments *arguments,
                               mgl_build *options, mgl_runner **out, mgl_error *err) {
  making progress = {0};
  *out = NULL;
  mgl_progress_start(&progress.weights,
                     model->source == MGL_WEIGHTS_DUMMY ? "making weights" : "loading weights",
                     MGL_PROGRESS_BYTES);
  options->crew = model->crew;
  if (arguments->launcher.rank == 0) {
    options->progress = (mgl_weights_progress){.report = report, .context = &progress};
    options->captures = (mgl_weights_progress){.report = report_captures, .context = &progress};
  }
  mgl_status status = on_device(model, arguments, options, out, NULL, NULL, err);
  mgl_progress_finish(&progress.weights);
  mgl_progress_finish(&progress.captures);
  return status;
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
  return on_device(model, arguments, options, NULL, out, device, err);
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
