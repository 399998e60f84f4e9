#include "engine/cuda_mode.h"

#include "base/alloc.h"
#include "engine/sampler.h"

struct mgl_cuda_mode {
  mgl_cuda_program *program;
  mgl_cuda_launch_options launch;
  uint32_t iteration_tokens;
  uint32_t vocab;
  float *logits;  // [logit_rows, V]
  uint32_t best[MGL_CUDA_MAX_TOKENS];
};

static mgl_cuda_program_options program_options(const mgl_cuda_mode_options *options) {
  return (mgl_cuda_program_options){
      .program = options->program,
      .checkpoint = options->checkpoint,
      .seed = options->seed,
      .iteration_tokens = options->limits.tokens,
      .sequences = options->limits.sequences,
      .pages_per_sequence = options->limits.pages_per_sequence,
      .page_count = options->page_count,
      .logit_rows = options->logit_rows,
      .launch = options->launch,
      .overrides = options->overrides,
      .override_count = options->override_count,
      .coarse = options->cuda.coarse,
      .events_only = options->cuda.events_only,
      .schedulers = options->schedulers,
      .scheduler_warps = options->cuda.scheduler_warps,
      .get_code = options->cuda.get_code,
      .trace_spans = options->trace_spans,
      .progress = options->progress->report,
      .progress_context = options->progress->context,
  };
}

mgl_status mgl_cuda_mode_plan_memory(const mgl_cuda_mode_options *options, mgl_memory_plan *out,
                                     mgl_error *err) {
  mgl_cuda_program_options program = program_options(options);
  return mgl_memory_plan_gpu(options->cuda.device, &program, options->limits.page_tokens, out, err);
}

mgl_status mgl_cuda_mode_create(const mgl_cuda_mode_options *options, mgl_cuda_mode **out,
                                mgl_error *err) {
  *out = NULL;
  mgl_cuda_mode *mode = mgl_alloc_zeroed(1, sizeof *mode);
  if (mode == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a GPU program");
  }
  mode->launch = options->cuda.launch;
  mode->iteration_tokens = options->limits.tokens;
  mgl_cuda_program_options program = program_options(options);
  mgl_status status = mgl_cuda_program_create(options->cuda.device, &program, &mode->program, err);
  if (status == MGL_OK) {
    mode->vocab = mgl_cuda_program_describe(mode->program).model.vocab;
    mode->logits =
        mgl_alloc_zeroed((size_t)options->logit_rows * mode->vocab, sizeof *mode->logits);
    if (mode->logits == NULL) {
      status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u rows of logits",
                             options->logit_rows);
    }
  }
  if (status != MGL_OK) {
    mgl_cuda_mode_destroy(mode);
    return status;
  }
  *out = mode;
  return MGL_OK;
}

void mgl_cuda_mode_destroy(mgl_cuda_mode *mode) {
  if (mode != NULL) {
    mgl_cuda_program_destroy(mode->program);
    mgl_free(mode->logits);
    mgl_free(mode);
  }
}

mgl_cuda_program *mgl_cuda_mode_program(mgl_cuda_mode *mode) {
  return mode->program;
}

static mgl_cuda_launch_options launch_options(const mgl_cuda_mode *mode, bool full) {
  mgl_cuda_launch_options launch = mode->launch;
  launch.full = full;
  return launch;
}

mgl_status mgl_cuda_mode_run(mgl_cuda_mode *mode, bool full, mgl_next_plan_callback *next,
                             void *context, mgl_error *err) {
  mgl_cuda_launch_options launch = launch_options(mode, full);
  const mgl_logits logits = {.rows = mode->logits, .best = mode->best};
  const mgl_plan *plan = next(context, NULL);
  while (plan != NULL) {
    MGL_TRY(mgl_cuda_program_run_plan(mode->program, plan, &launch, mode->logits, err));
    for (uint32_t row = 0; row < plan->logit_row_count; row++) {
      mode->best[row] = mgl_argmax(mode->logits + (size_t)row * mode->vocab, mode->vocab);
    }
    plan = next(context, &logits);
  }
  return MGL_OK;
}

// --- jobs: what each iteration computed ----------------------------------------------------------

// A request as the device's planner saw it, iteration by iteration.
typedef struct replayed {
  uint32_t prompt_count, max_tokens;
  uint32_t generated;  // in the whole launch
  bool stopped;        // its last token stopped it
  uint32_t computed, sampled;
  uint64_t stop_iteration;  // that sampled the last token of a request that stopped
} replayed;

// A launch, from the job and what came of it.
typedef struct replay {
  const mgl_cuda_mode *mode;
  const mgl_cuda_job *job;
  mgl_cuda_outcome outcome;
  replayed requests[MGL_CUDA_MAX_SEQUENCES];
} replay;

static void count_token(void *context, const mgl_cuda_token *token) {
  replay *r = context;
  r->requests[token->request].generated++;
  r->requests[token->request].stopped = token->state == MGL_CUDA_SEQUENCE_STOPPED;
  r->job->on_token(r->job->context, token);
}

static bool should_stop(void *context) {
  const replay *r = context;
  return r->job->should_stop(r->job->context);
}

// The plan of an iteration is made during the one before: of a stop token it knows if it is older.
static bool has_rows(const replayed *s, uint64_t iteration) {
  bool known_to_stop =
      s->stopped && s->sampled == s->generated && s->stop_iteration + 2 <= iteration;
  return !known_to_stop && (s->computed < s->prompt_count || s->computed + 1 < s->max_tokens);
}

// Adds `count` rows of a request to an iteration. A row behind its last token was for nothing.
static void replay_rows(replayed *s, uint64_t iteration, uint32_t count, mgl_iteration *stats) {
  bool decodes = s->computed >= s->prompt_count;
  s->computed += count;
  if (decodes && s->sampled < s->generated) {
    stats->decode_tokens += count;
    stats->kv_tokens += s->computed;
  } else if (!decodes) {
    stats->prompt_tokens += count;
  }
  if (s->computed >= s->prompt_count && s->sampled < s->generated) {
    s->sampled++;
    s->stop_iteration = iteration;
  }
}

// As mgl_divide_rows of kernels/cuda/tasks_iteration.cuh.
static void replay_iteration(replay *r, uint64_t iteration, mgl_iteration *stats) {
  uint32_t count = r->job->request_count;
  uint32_t left = r->mode->iteration_tokens;
  uint32_t chunk = r->job->chunk_tokens > 0 ? r->job->chunk_tokens : left;
  bool prompts = false;
  bool had_row[MGL_CUDA_MAX_SEQUENCES] = {false};
  for (uint32_t i = 0; i < count; i++) {
    prompts = prompts || r->requests[i].computed < r->requests[i].prompt_count;
  }
  for (uint32_t i = 0; i < count && !(prompts && r->job->prompts_first); i++) {
    replayed *s = &r->requests[i];
    if (left > 0 && s->computed >= s->prompt_count && has_rows(s, iteration)) {
      replay_rows(s, iteration, 1, stats);
      had_row[i] = true;
      left--;
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    replayed *s = &r->requests[i];
    uint32_t rows = s->computed < s->prompt_count ? s->prompt_count - s->computed : 0;
    rows = rows < chunk ? rows : chunk;
    rows = rows < left ? rows : left;
    if (rows > 0 && !had_row[i]) {
      replay_rows(s, iteration, rows, stats);
      left -= rows;
    }
  }
}

// Reports the iterations; false: on_iteration wants no more. Of a launch that was stopped, only
// those whose end is known.
static bool report_iterations(replay *r) {
  for (uint32_t i = 0; i < r->outcome.iterations && i + 1 < r->outcome.iteration_capacity; i++) {
    mgl_iteration stats = {0};
    const uint64_t *times = r->outcome.iteration_ns;
    if (times[i + 1] <= times[i]) {
      return true;
    }
    stats.ns = times[i + 1] - times[i];
    replay_iteration(r, i, &stats);
    if (stats.prompt_tokens + stats.decode_tokens > 0 &&
        !r->job->on_iteration(r->job->context, &stats)) {
      return false;
    }
  }
  return true;
}

mgl_status mgl_cuda_mode_generate(mgl_cuda_mode *mode, bool full, const mgl_cuda_job *job,
                                  mgl_cuda_job_result *result, mgl_error *err) {
  replay r = {.mode = mode, .job = job};
  uint64_t capacity = 2;
  *result = (mgl_cuda_job_result){0};
  for (uint32_t i = 0; i < job->request_count; i++) {
    const mgl_cuda_request *request = &job->requests[i];
    r.requests[i] = (replayed){.prompt_count = request->prompt_count,
                               .max_tokens = request->prompt_count + request->max_new_tokens};
    capacity += r.requests[i].max_tokens + UINT64_C(1);
  }
  if (job->on_iteration != NULL) {
    r.outcome.iteration_capacity = (uint32_t)capacity;
    r.outcome.iteration_ns = mgl_alloc_zeroed((size_t)capacity, sizeof *r.outcome.iteration_ns);
    if (r.outcome.iteration_ns == NULL) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the times of a launch");
    }
  }
  mgl_cuda_generate generate = {.requests = job->requests,
                                .request_count = job->request_count,
                                .on_token = count_token,
                                .should_stop = job->should_stop != NULL ? should_stop : NULL,
                                .context = &r,
                                .chunk_tokens = job->chunk_tokens,
                                .prompts_first = job->prompts_first,
                                .most_iterations = UINT32_MAX,  // not to end them all is fine
                                .launch = launch_options(mode, full),
                                .outcome = &r.outcome};
  mgl_status status = mgl_cuda_program_generate(mode->program, &generate, err);
  result->stopped = r.outcome.stopped;
  result->failed_request = r.outcome.failed_request;
  if (status == MGL_OK && job->on_iteration != NULL) {
    result->stopped = !report_iterations(&r) || result->stopped;
  }
  mgl_free(r.outcome.iteration_ns);
  return status;
}
