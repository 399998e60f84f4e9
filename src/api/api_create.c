// An engine's beginning and end, on the caller's thread or on one of its own.
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/api_parts.h"
#include "base/alloc.h"
#include "device/cpu/team.h"
#include "engine/score.h"

_Static_assert((int)MEGALITH_MAX_SEQUENCES == (int)MGL_MAX_SEQUENCES, "one limit");
_Static_assert((int)MEGALITH_MAX_ITERATION_TOKENS == (int)MGL_MAX_ITERATION_TOKENS, "one limit");
_Static_assert((int)MEGALITH_MAX_RANKS == (int)MGL_MAX_RANKS, "one limit");
_Static_assert((int)MEGALITH_MAX_THREADS == (int)MGL_TEAM_MAX_THREADS, "one limit");

enum {
  DEFAULT_NEW_TOKENS = 256,
  // In the background, a launch on a GPU waits so long for another request before it ends.
  IDLE_NS = 200 * 1000 * 1000,
  RANKS_LOOK_NS = 250 * 1000 * 1000,  // without work, between two looks whether all ranks live
};

// --- the runner ----------------------------------------------------------------------------------

static mgl_status check_options(const megalith_engine_options *options, mgl_error *err) {
  // Written so that a NaN fails.
  if (!(options->memory_share >= 0 && options->memory_share <= 1)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "memory_share: expected 0 to 1, found %g",
                         options->memory_share);
  }
  if (options->memory_share > 0 && options->kv_tokens > 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one of memory_share and kv_tokens, found both");
  }
  if (options->task_graphs == NULL && options->task_graph_count > 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "task_graphs: expected %u, found NULL",
                         options->task_graph_count);
  }
  if (options->ranks > MGL_MAX_RANKS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "ranks: expected at most %d, found %u", MGL_MAX_RANKS,
                         options->ranks);
  }
  if (options->meeting != NULL &&
      (options->ranks < 2 || options->rank >= options->ranks || options->meeting[0] == 0)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "meeting: expected a text, and a rank below ranks, which is 2 or more; "
                         "found rank %u of %u",
                         options->rank, options->ranks);
  }
  return MGL_OK;
}

// What `compilation` and `mode` say, before anything is loaded. *given: they say something that the
// usual way of the device does not do by itself.
static mgl_status read_compilation(megalith_engine *engine, const megalith_engine_options *options,
                                   bool *given, mgl_error *err) {
  engine->mode = MGL_MODE_MEGA;
  *given = options->compilation != NULL;
  mgl_compilation_init(&engine->compilation);
  if (options->compilation != NULL) {
    MGL_TRY(mgl_compilation_read(&engine->compilation, "compilation", options->compilation, err));
  }
  if (options->mode != NULL) {
    MGL_TRY(mgl_mode_parse(options->mode, &engine->mode, err));
    *given = *given || !mgl_mode_is_fused(engine->mode);
  }
  if (*given && options->mode != NULL) {
    MGL_TRY(mgl_compilation_set_mode(&engine->compilation, engine->mode, err));
  }
  if (*given) {
    MGL_TRY(mgl_compilation_check(&engine->compilation, NULL, err));
    engine->mode = engine->compilation.mode;
  }
  if (options->task_graph_count > 0 && engine->mode != MGL_MODE_MEGA) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "task_graphs: expected mode mega, since no other mode runs task graphs");
  }
  return MGL_OK;
}

static void on_weights(void *context, uint64_t done, uint64_t total) {
  const megalith_engine *engine = context;
  engine->on_progress(engine->progress_context, MEGALITH_PROGRESS_WEIGHTS, done, total);
}

static void on_graphs(void *context, uint64_t done, uint64_t total) {
  const megalith_engine *engine = context;
  engine->on_progress(engine->progress_context, MEGALITH_PROGRESS_GRAPHS, done, total);
}

// How much of what: tokens, sequences, memory.
static void choose_sizes(const megalith_model *model, const megalith_engine_options *options,
                         mgl_build *build) {
  const uint32_t context = model->folder.config.context_tokens;
  const uint32_t most = options->context_tokens == 0 ? context : options->context_tokens;
  if (options->scoring) {
    *build = mgl_score_build(most, options->iteration_tokens);
  } else {
    *build = (mgl_build){.iteration_tokens = options->iteration_tokens,
                         .sequences = options->sequences,
                         .requests = options->requests,
                         .sequence_tokens = most,
                         .logit_rows = options->prompt_logprobs ? MGL_EVERY_ROW : 0};
  }
  build->page_tokens = options->page_tokens;
  build->pool_tokens = options->kv_tokens;
  build->memory_share = options->memory_share;
  if (options->kv_tokens == 0 && options->memory_share == 0 && options->requests == 0 &&
      !options->scoring) {
    build->memory_share = MGL_USUAL_SHARE;
  }
}

static mgl_status choose_build(megalith_engine *engine, const megalith_engine_options *options,
                               mgl_build *build, mgl_error *err) {
  const megalith_model *model = engine->model;
  bool compiles = false;
  choose_sizes(model, options, build);
  if (options->kv_dtype != NULL) {
    MGL_TRY(mgl_kv_dtype_parse(options->kv_dtype, &build->kv_dtype, err));
  }
  MGL_TRY(read_compilation(engine, options, &compiles, err));
  if (options->partitions != NULL) {
    MGL_TRY(mgl_overrides_read(&engine->overrides, "partitions", options->partitions, err));
  }
  engine->given_count = options->task_graph_count;
  MGL_TRY(mgl_given_graphs_read(options->task_graphs, engine->given_count, &engine->given, err));
  build->threads = options->threads;
  build->ranks = options->ranks;
  build->crew = engine->crew;
  build->vocab_parallel = options->vocab_parallel;
  build->reduce_scatter = options->reduce_scatter;
  build->weights = model->source;
  build->seed = model->dummy_seed;
  build->tune = options->tune;
  build->fused = options->mode != NULL && engine->mode == MGL_MODE_MEGA;
  build->overrides = engine->overrides.items;
  build->override_count = (uint32_t)engine->overrides.count;
  build->given = engine->given;
  build->given_count = engine->given_count;
  build->compilation = compiles ? &engine->compilation : NULL;
  build->program = options->program;
  if (engine->on_progress != NULL) {
    build->progress = (mgl_weights_progress){.report = on_weights, .context = engine};
    build->captures = (mgl_weights_progress){.report = on_graphs, .context = engine};
  }
  return MGL_OK;
}

// What the options came to.
static mgl_status describe(megalith_engine *engine, const megalith_engine_options *options,
                           const mgl_build *build, mgl_error *err) {
  const mgl_runner *runner = engine->runner;
  const mgl_plan_limits *limits = mgl_runner_limits(runner);
  uint64_t kv_tokens = (uint64_t)mgl_runner_page_count(runner) * limits->page_tokens;
  if (options->context_tokens > kv_tokens && options->requests == 0) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "context_tokens: expected at most the %llu tokens of the KV memory, "
                         "found %u",
                         (unsigned long long)kv_tokens, options->context_tokens);
  }
  engine->info = (megalith_engine_info){
      .device = mgl_runner_device(runner) != NULL ? engine->site.device.name : "cpu",
      .workers = mgl_runner_threads(runner),
      .sequences = mgl_runner_sequences(runner),
      .context_tokens =
          build->sequence_tokens < kv_tokens ? build->sequence_tokens : (uint32_t)kv_tokens,
      .kv_tokens = kv_tokens,
      .page_tokens = limits->page_tokens,
      .note = engine->site.note,
      .step_bytes = mgl_runner_step_bytes(runner),
      .kv_bytes_per_token = mgl_runner_kv_bytes_per_token(runner),
  };
  return MGL_OK;
}

static mgl_status start_runner(megalith_engine *engine, const megalith_engine_options *options,
                               mgl_error *err) {
  mgl_build build;
  mgl_start start = {
      .folder = &engine->model->folder,
      .build = &build,
      .traces = options->trace,
      .not_on_gpu = options->threads != 0 ? "threads is for the CPU; try --device cpu" : NULL,
  };
  MGL_TRY(options->device != NULL ? mgl_device_parse("device", options->device, &start.device, err)
                                  : mgl_device_usual(&start.device, err));
  engine->watches_ranks = options->ranks > 1;
  if (options->meeting != NULL) {
    const mgl_crew_options crew = {
        .rank = options->rank, .count = options->ranks, .meeting = options->meeting};
    MGL_TRY(mgl_crew_open(&crew, &engine->crew, err));
  }
  MGL_TRY(choose_build(engine, options, &build, err));
  MGL_TRY(mgl_site_start(&engine->site, &start, &engine->runner, err));
  return describe(engine, options, &build, err);
}

// On the thread that will compute.
static mgl_status start(megalith_engine *engine, const megalith_engine_options *options,
                        mgl_error *err) {
  uint32_t models = engine->model->folder.generation.max_new_tokens;
  engine->default_new_tokens = models != 0 ? models : DEFAULT_NEW_TOKENS;
  engine->scoring = options->scoring;
  engine->on_progress = options->on_progress;
  engine->progress_context = options->progress_context;
  engine->on_iteration = options->on_iteration;
  engine->iteration_context = options->iteration_context;
  MGL_TRY(start_runner(engine, options, err));
  if (options->mode == NULL) {
    engine->mode = mgl_runner_usual_mode(engine->runner);
  }
  mgl_engine_options engine_options = {.mode = engine->mode,
                                       .chunk_tokens = options->chunk_tokens,
                                       .prefix_cache = !options->no_prefix_cache,
                                       .before_plan = mgl_api_before_plan,
                                       .should_stop = mgl_api_should_stop,
                                       .on_failure = mgl_api_on_failure,
                                       .context = engine,
                                       .idle_ns = options->background ? IDLE_NS : 0};
  MGL_TRY(mgl_runner_prepare(engine->runner, engine_options.mode, err));
  MGL_TRY(mgl_engine_create(engine->runner, &engine_options, &engine->engine, err));
  mgl_api_before_plan(engine);  // for the statistics
  return MGL_OK;
}

// On the same thread: ends all requests, and what start made.
static void finish(megalith_engine *engine) {
  if (engine->engine != NULL) {
    mgl_api_end_all(engine, MEGALITH_FINISH_CANCELLED, NULL);
  }
  mgl_engine_destroy(engine->engine);
  mgl_runner_destroy(engine->runner);
  mgl_site_leave(&engine->site);
  mgl_crew_close(engine->crew);
  mgl_overrides_free(&engine->overrides);
  mgl_given_graphs_free(engine->given, engine->given_count);
}

// --- a thread of its own -------------------------------------------------------------------------

// What creator and thread exchange until the engine is there.
typedef struct birth {
  megalith_engine *engine;
  const megalith_engine_options *options;
  bool done;  // under the hub's lock, with the condition below
  pthread_cond_t changed;
  mgl_status status;
  mgl_error *err;
} birth;

// Under the hub's lock. True: nothing came for RANKS_LOOK_NS.
static bool wait_a_while(hub *h) {
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += RANKS_LOOK_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  return pthread_cond_timedwait(&h->wake, &h->lock, &until) == ETIMEDOUT;
}

static bool wait_for_work(megalith_engine *engine) {
  hub *h = engine->hub;
  (void)pthread_mutex_lock(&h->lock);
  while (h->inbox == NULL && !h->quit) {
    if (!engine->watches_ranks) {
      (void)pthread_cond_wait(&h->wake, &h->lock);
    } else if (wait_a_while(h)) {
      (void)pthread_mutex_unlock(&h->lock);
      mgl_api_check_ranks(engine);
      (void)pthread_mutex_lock(&h->lock);
    }
  }
  bool go_on = !h->quit;
  (void)pthread_mutex_unlock(&h->lock);
  return go_on;
}

static void *compute(void *argument) {
  birth *b = argument;
  megalith_engine *engine = b->engine;
  hub *h = engine->hub;
  mgl_status status = start(engine, b->options, b->err);
  (void)pthread_mutex_lock(&h->lock);
  b->status = status;
  b->done = true;
  (void)pthread_cond_signal(&b->changed);
  (void)pthread_mutex_unlock(&h->lock);  // `b` is gone from here on
  while (status == MGL_OK && wait_for_work(engine)) {
    mgl_error ignored;  // every request has it, and so has every later submission
    (void)mgl_api_drive(engine, &ignored);
  }
  finish(engine);
  return NULL;
}

static mgl_status start_thread(megalith_engine *engine, const megalith_engine_options *options,
                               mgl_error *err) {
  hub *h = engine->hub;
  birth b = {.engine = engine, .options = options, .status = MGL_OK, .err = err};
  sigset_t all;
  sigset_t before;
  (void)pthread_cond_init(&b.changed, NULL);
  // Signals are the business of the caller's threads.
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = pthread_create(&engine->thread, NULL, compute, &b);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code != 0) {
    (void)pthread_cond_destroy(&b.changed);
    return mgl_error_set(err, MGL_ERR_MEMORY, "could not start the engine's thread: %s",
                         strerror(code));
  }
  (void)pthread_mutex_lock(&h->lock);
  while (!b.done) {
    (void)pthread_cond_wait(&b.changed, &h->lock);
  }
  (void)pthread_mutex_unlock(&h->lock);
  (void)pthread_cond_destroy(&b.changed);
  if (b.status != MGL_OK) {
    (void)pthread_join(engine->thread, NULL);
    return b.status;
  }
  engine->background = true;
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

static hub *create_hub(void) {
  hub *h = mgl_alloc_zeroed(1, sizeof *h);
  if (h != NULL) {
    (void)pthread_mutex_init(&h->lock, NULL);
    (void)pthread_cond_init(&h->wake, NULL);
    h->references = 1;
    h->inbox_end = &h->inbox;
  }
  return h;
}

static void release(megalith_engine *engine) {
  mgl_free(engine->active);
  megalith_model_close(engine->model);
  mgl_api_drop_hub(engine->hub);
  mgl_free(engine);
}

static mgl_status create(megalith_model *model, const megalith_engine_options *given,
                         megalith_engine **out, mgl_error *err) {
  megalith_engine_options options;
  MGL_TRY(mgl_api_read_options(given, sizeof options, "megalith_engine_options", &options, err));
  MGL_TRY(check_options(&options, err));
  if (!model->has_weights) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "engine: expected a model with weights, found one that was opened with "
                         "MEGALITH_WEIGHTS_NONE");
  }
  megalith_engine *engine = mgl_alloc_zeroed(1, sizeof *engine);
  hub *h = create_hub();
  if (engine == NULL || h == NULL) {
    mgl_free(engine);
    if (h != NULL) {
      mgl_api_drop_hub(h);
    }
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for an engine");
  }
  engine->model = model;
  engine->hub = h;
  mgl_api_keep_model(model);
  mgl_status status = MGL_OK;
  h->has_computer = !options.background;
  h->computer = pthread_self();
  if (options.background) {
    status = start_thread(engine, &options, err);
  } else if ((status = start(engine, &options, err)) != MGL_OK) {
    finish(engine);
  }
  if (status != MGL_OK) {
    release(engine);
    return status;
  }
  *out = engine;
  return MGL_OK;
}

megalith_status megalith_device_check(const char *device, megalith_error *error) {
  mgl_device_choice ignored;
  mgl_error err = {0};
  const mgl_status status = device != NULL ? mgl_device_parse("device", device, &ignored, &err)
                                           : mgl_device_usual(&ignored, &err);
  return mgl_api_report(status, &err, error);
}

megalith_status megalith_engine_create(megalith_model *model,
                                       const megalith_engine_options *options,
                                       megalith_engine **out, megalith_error *error) {
  mgl_error err = {0};
  *out = NULL;
  return mgl_api_report(create(model, options, out, &err), &err, error);
}

void megalith_engine_destroy(megalith_engine *engine) {
  if (engine == NULL) {
    return;
  }
  (void)pthread_mutex_lock(&engine->hub->lock);
  assert(!mgl_api_is_in_callback(engine->hub));  // it would wait for itself
  engine->hub->quit = true;
  (void)pthread_cond_signal(&engine->hub->wake);
  (void)pthread_mutex_unlock(&engine->hub->lock);
  if (engine->background) {
    (void)pthread_join(engine->thread, NULL);
  } else {
    finish(engine);
  }
  release(engine);
}

const megalith_engine_info *megalith_engine_describe(const megalith_engine *engine) {
  return &engine->info;
}
