#include "engine/engine.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/kv_pages.h"

// A request and its sequence.
typedef struct sequence {
  struct sequence *next;  // waiting or running list
  uint32_t request;
  int32_t *tokens;  // prompt and what was generated, room for max_tokens
  uint32_t token_count;
  uint32_t computed_count;  // tokens whose KV is in the cache
  uint32_t prompt_count;
  uint32_t max_tokens;
  int32_t *pages;  // [page_count] taken when the request starts to run
  uint32_t page_count;
  mgl_sampling sampling;
  int32_t stop_ids[MGL_MAX_EOS_IDS];
  uint32_t stop_count;
} sequence;

struct mgl_engine {
  mgl_runner *runner;
  mgl_engine_options options;
  mgl_plan *plan;
  mgl_sampler *sampler;
  mgl_kv_pages pages;
  sequence *waiting;  // in order of submission
  sequence *running;  // in order of admission
  uint32_t running_count;
  uint32_t request_count;
  sequence **planned;  // [limits.sequences] the sequence of each plan entry
};

mgl_status mgl_engine_create(mgl_runner *runner, const mgl_engine_options *options,
                             mgl_engine **out, mgl_error *err) {
  const mgl_plan_limits *limits = mgl_runner_limits(runner);
  *out = NULL;
  mgl_status status = MGL_OK;
  mgl_engine *engine = mgl_alloc_zeroed(1, sizeof *engine);
  if (engine == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for an engine");
  }
  engine->runner = runner;
  engine->options = *options;
  engine->planned = mgl_alloc_zeroed(limits->sequences, sizeof *engine->planned);
  if (engine->planned == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for an engine");
    goto fail;
  }
  if ((status = mgl_plan_create(limits, &engine->plan, err)) != MGL_OK ||
      (status = mgl_sampler_create(mgl_runner_vocab_size(runner), &engine->sampler, err)) !=
          MGL_OK ||
      (status = mgl_kv_pages_init(&engine->pages, mgl_runner_page_count(runner), err)) != MGL_OK) {
    goto fail;
  }
  *out = engine;
  return MGL_OK;
fail:
  mgl_engine_destroy(engine);
  return status;
}

static void sequence_destroy(sequence *s) {
  if (s != NULL) {
    mgl_free(s->tokens);
    mgl_free(s->pages);
    mgl_free(s);
  }
}

static void destroy_list(sequence *s) {
  while (s != NULL) {
    sequence *next = s->next;
    sequence_destroy(s);
    s = next;
  }
}

void mgl_engine_destroy(mgl_engine *engine) {
  if (engine == NULL) {
    return;
  }
  destroy_list(engine->waiting);
  destroy_list(engine->running);
  mgl_plan_destroy(engine->plan);
  mgl_sampler_destroy(engine->sampler);
  mgl_kv_pages_reset(&engine->pages);
  mgl_free(engine->planned);
  mgl_free(engine);
}

static mgl_status check_request(const mgl_engine *engine, const mgl_request *r, mgl_error *err) {
  const mgl_plan_limits *limits = mgl_runner_limits(engine->runner);
  uint64_t most = (uint64_t)limits->pages_per_sequence * limits->page_tokens;
  uint32_t vocab_size = mgl_runner_vocab_size(engine->runner);
  MGL_TRY(mgl_sampling_check(&r->sampling, err));
  if (r->prompt_count < 1 || r->max_new_tokens < 1) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected at least 1 prompt token and 1 new token, found %zu and %u",
                         r->prompt_count, r->max_new_tokens);
  }
  if (r->prompt_count > most || r->max_new_tokens > most - r->prompt_count) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a prompt of %zu tokens and %u new ones do not fit into sequences of %llu",
                         r->prompt_count, r->max_new_tokens, (unsigned long long)most);
  }
  if (r->stop_count > MGL_MAX_EOS_IDS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "stop tokens: expected at most %d, found %u",
                         MGL_MAX_EOS_IDS, r->stop_count);
  }
  for (size_t i = 0; i < r->prompt_count; i++) {
    if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= vocab_size) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "token %zu: expected an id of 0 to %u, found %d",
                           i, vocab_size - 1, r->prompt[i]);
    }
  }
  return MGL_OK;
}

mgl_status mgl_engine_submit(mgl_engine *engine, const mgl_request *request, uint32_t *out_request,
                             mgl_error *err) {
  MGL_TRY(check_request(engine, request, err));
  const mgl_plan_limits *limits = mgl_runner_limits(engine->runner);
  uint32_t prompt_count = (uint32_t)request->prompt_count;
  uint32_t max_tokens = prompt_count + request->max_new_tokens;
  // The last token is sampled but never fed back, so it needs no KV slot.
  uint32_t page_count = (max_tokens - 1 + limits->page_tokens - 1) / limits->page_tokens;
  if (page_count > engine->pages.page_count) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a sequence of %u tokens needs %u KV pages, there are %u", max_tokens,
                         page_count, engine->pages.page_count);
  }
  sequence *s = mgl_alloc_zeroed(1, sizeof *s);
  int32_t *tokens = mgl_alloc_zeroed(max_tokens, sizeof *tokens);
  int32_t *pages = mgl_alloc_zeroed(page_count, sizeof *pages);
  if (s == NULL || tokens == NULL || pages == NULL) {
    mgl_free(s);
    mgl_free(tokens);
    mgl_free(pages);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a request of %u tokens",
                         max_tokens);
  }
  memcpy(tokens, request->prompt, prompt_count * sizeof *tokens);
  *s = (sequence){.request = engine->request_count,
                  .tokens = tokens,
                  .token_count = prompt_count,
                  .prompt_count = prompt_count,
                  .max_tokens = max_tokens,
                  .pages = pages,
                  .page_count = page_count,
                  .sampling = request->sampling,
                  .stop_count = request->stop_count};
  if (request->stop_count > 0) {
    memcpy(s->stop_ids, request->stop_ids, request->stop_count * sizeof *s->stop_ids);
  }
  sequence **tail = &engine->waiting;
  while (*tail != NULL) {
    tail = &(*tail)->next;
  }
  *tail = s;
  *out_request = engine->request_count++;
  return MGL_OK;
}

bool mgl_engine_has_work(const mgl_engine *engine) {
  return engine->waiting != NULL || engine->running != NULL;
}

// Moves waiting requests to the running list while places and pages last.
static void admit(mgl_engine *engine) {
  uint32_t places = mgl_runner_limits(engine->runner)->sequences;
  sequence **tail = &engine->running;
  while (*tail != NULL) {
    tail = &(*tail)->next;
  }
  while (engine->waiting != NULL && engine->running_count < places &&
         mgl_kv_pages_take(&engine->pages, engine->waiting->page_count, engine->waiting->pages)) {
    sequence *s = engine->waiting;
    engine->waiting = s->next;
    s->next = NULL;
    *tail = s;
    tail = &s->next;
    engine->running_count++;
  }
}

// Adds up to `most` tokens of a sequence that are not in the cache yet.
static void plan_sequence(mgl_engine *engine, sequence *s, uint32_t most) {
  uint32_t count = s->token_count - s->computed_count;
  count = count < most ? count : most;
  engine->planned[engine->plan->sequence_count] = s;
  mgl_plan_add(
      engine->plan,
      &(mgl_plan_chunk){
          .tokens = s->tokens + s->computed_count,
          .token_count = count,
          .position = s->computed_count,
          .pages = s->pages,
          .page_count = s->page_count,
          .logits = s->computed_count + count == s->token_count ? MGL_LOGITS_LAST : MGL_LOGITS_NONE,
      });
}

static bool decodes(const sequence *s) {
  return s->computed_count >= s->prompt_count;
}

static bool computes_prompts(const mgl_engine *engine) {
  for (const sequence *s = engine->running; s != NULL; s = s->next) {
    if (!decodes(s)) {
      return true;
    }
  }
  return false;
}

static void plan_iteration(mgl_engine *engine) {
  mgl_plan *plan = engine->plan;
  mgl_plan_clear(plan);
  bool only_prompts = engine->options.prompts_first && computes_prompts(engine);
  for (sequence *s = engine->running; s != NULL; s = s->next) {
    if (decodes(s) && !only_prompts) {
      plan_sequence(engine, s, 1);
    }
  }
  for (sequence *s = engine->running; s != NULL; s = s->next) {
    uint32_t left = plan->limits.tokens - plan->token_count;
    uint32_t chunk = engine->options.chunk_tokens;
    if (!decodes(s) && left > 0) {
      plan_sequence(engine, s, chunk > 0 && chunk < left ? chunk : left);
    }
  }
}

static mgl_finish_reason finish_reason(const sequence *s) {
  for (uint32_t i = 0; i < s->stop_count; i++) {
    if (s->tokens[s->token_count - 1] == s->stop_ids[i]) {
      return MGL_FINISH_STOP;
    }
  }
  return s->token_count == s->max_tokens ? MGL_FINISH_LENGTH : MGL_FINISH_NONE;
}

void mgl_engine_cancel(mgl_engine *engine, uint32_t request) {
  for (sequence **at = &engine->waiting; *at != NULL; at = &(*at)->next) {
    if ((*at)->request == request) {
      sequence *gone = *at;
      *at = gone->next;
      sequence_destroy(gone);
      return;
    }
  }
  for (sequence **at = &engine->running; *at != NULL; at = &(*at)->next) {
    if ((*at)->request == request) {
      sequence *gone = *at;
      *at = gone->next;
      mgl_kv_pages_give_back(&engine->pages, gone->page_count, gone->pages);
      engine->running_count--;
      sequence_destroy(gone);
      return;
    }
  }
}

// Ends a request whose logits mean nothing: the sequences after it in the plan were not committed,
// and would be computed again.
static mgl_status not_finite(mgl_engine *engine, const sequence *s, mgl_error *err) {
  uint32_t request = s->request;
  uint32_t position = s->token_count - 1;
  mgl_engine_cancel(engine, request);
  return mgl_error_set(err, MGL_ERR_FORMAT,
                       "the model's logits are not finite (NaN or infinity) at position %u of "
                       "request %u: damaged weights?",
                       position, request);
}

// Samples for every sequence whose last known token was computed, and ends those that are done.
static mgl_status commit(mgl_engine *engine, const float *logits, mgl_token_callback *on_token,
                         void *context, mgl_iteration *stats, mgl_error *err) {
  const mgl_plan *plan = engine->plan;
  uint32_t vocab_size = mgl_runner_vocab_size(engine->runner);
  uint32_t logit_row = 0;
  for (uint32_t i = 0; i < plan->sequence_count; i++) {
    sequence *s = engine->planned[i];
    uint32_t count = plan->query_start[i + 1] - plan->query_start[i];
    bool decoded = decodes(s);
    *(decoded ? &stats->decode_tokens : &stats->prompt_tokens) += count;
    s->computed_count += count;
    stats->kv_tokens += decoded ? s->computed_count : 0;
    if (s->computed_count < s->token_count) {
      continue;
    }
    const float *row = logits + (size_t)logit_row++ * vocab_size;
    int32_t token = (int32_t)mgl_sample(engine->sampler, row, &s->sampling, s->token_count);
    if (!isfinite(row[token])) {
      return not_finite(engine, s, err);
    }
    s->tokens[s->token_count++] = token;
    mgl_finish_reason reason = finish_reason(s);
    on_token(context, s->request, token, reason);
    if (reason != MGL_FINISH_NONE) {
      mgl_engine_cancel(engine, s->request);
    }
  }
  assert(logit_row == plan->logit_row_count);
  return MGL_OK;
}

// The callbacks of one mgl_engine_run.
typedef struct engine_run {
  mgl_engine *engine;
  mgl_token_callback *on_token;
  mgl_iteration_callback *on_iteration;
  void *context;
  uint64_t start_ns;  // of the present iteration
  mgl_status status;  // of commit
  mgl_error *err;
} engine_run;

// Commits the iteration before and plans the next.
static const mgl_plan *next_plan(void *context, const float *logits) {
  engine_run *run = context;
  mgl_engine *engine = run->engine;
  if (logits == NULL) {
    run->start_ns = mgl_clock_ns();  // not earlier: the first use of a mode compiles its graphs
  } else {
    mgl_iteration stats = {0};
    run->status = commit(engine, logits, run->on_token, run->context, &stats, run->err);
    if (run->status != MGL_OK) {
      return NULL;
    }
    uint64_t now_ns = mgl_clock_ns();
    stats.ns = now_ns - run->start_ns;
    run->start_ns = now_ns;
    if (run->on_iteration != NULL && !run->on_iteration(run->context, &stats)) {
      return NULL;
    }
  }
  if (!mgl_engine_has_work(engine)) {
    return NULL;
  }
  admit(engine);
  plan_iteration(engine);
  return engine->plan;
}

static mgl_status run_planned(mgl_engine *engine, mgl_token_callback *on_token,
                              mgl_iteration_callback *on_iteration, void *context, mgl_error *err) {
  engine_run run = {.engine = engine,
                    .on_token = on_token,
                    .on_iteration = on_iteration,
                    .context = context,
                    .err = err};
  MGL_TRY(mgl_runner_loop(engine->runner, engine->options.mode, next_plan, &run, err));
  return run.status;
}

// --- on a GPU: a launch for whole requests -------------------------------------------------------

typedef struct device_run {
  sequence *sequences[MGL_CUDA_MAX_SEQUENCES];  // of the present launch; they are in `waiting`
  mgl_cuda_request requests[MGL_CUDA_MAX_SEQUENCES];
  uint32_t count;
  uint64_t token_count;  // generated by the present launch
  mgl_token_callback *on_token;
  mgl_iteration_callback *on_iteration;
  void *context;
} device_run;

// The device gives out pages itself and keeps no KV between launches: all begin anew with the
// tokens that they have.
static void rewind_running(mgl_engine *engine) {
  sequence **tail = &engine->running;
  for (; *tail != NULL; tail = &(*tail)->next) {
    mgl_kv_pages_give_back(&engine->pages, (*tail)->page_count, (*tail)->pages);
    (*tail)->computed_count = 0;
  }
  *tail = engine->waiting;
  engine->waiting = engine->running;
  engine->running = NULL;
  engine->running_count = 0;
}

static void choose_requests(const mgl_engine *engine, device_run *run) {
  uint32_t pages = 0;
  run->count = 0;
  for (sequence *s = engine->waiting;
       s != NULL && run->count < mgl_runner_limits(engine->runner)->sequences &&
       s->page_count <= engine->pages.page_count - pages;
       s = s->next) {
    pages += s->page_count;
    run->sequences[run->count] = s;
    run->requests[run->count++] =
        (mgl_cuda_request){.prompt = s->tokens,
                           .prompt_count = s->token_count,
                           .max_new_tokens = s->max_tokens - s->token_count,
                           .temperature = (float)s->sampling.temperature,
                           .top_k = s->sampling.top_k,
                           .top_p = fmaxf((float)s->sampling.top_p, FLT_MIN),  // 0 would be off
                           .seed = s->sampling.seed,
                           .stop_ids = s->stop_ids,
                           .stop_count = s->stop_count};
  }
}

static void device_token(void *context, uint32_t request, int32_t token,
                         mgl_cuda_sequence_state state) {
  device_run *run = context;
  sequence *s = run->sequences[request];
  s->tokens[s->token_count++] = token;
  run->token_count++;
  (void)state;  // says the same
  run->on_token(run->context, s->request, token, finish_reason(s));
}

static bool device_iteration(void *context, const mgl_iteration *iteration) {
  device_run *run = context;
  return run->on_iteration(run->context, iteration);
}

static mgl_status run_launch(mgl_engine *engine, device_run *run, bool *stopped, mgl_error *err) {
  mgl_cuda_job_result result = {0};
  mgl_cuda_job job = {.requests = run->requests,
                      .request_count = run->count,
                      .chunk_tokens = engine->options.chunk_tokens,
                      .prompts_first = engine->options.prompts_first,
                      .on_token = device_token,
                      .on_iteration = run->on_iteration != NULL ? device_iteration : NULL,
                      .should_stop = engine->options.should_stop,
                      .context = run};
  run->token_count = 0;
  mgl_status status = mgl_runner_generate(engine->runner, engine->options.mode, &job, &result, err);
  *stopped = result.stopped;
  for (uint32_t i = 0; i < run->count; i++) {
    sequence *s = run->sequences[i];
    if (status == MGL_ERR_FORMAT && i == result.failed_request) {
      (void)not_finite(engine, s, err);
    } else if (s->token_count > s->prompt_count && finish_reason(s) != MGL_FINISH_NONE) {
      mgl_engine_cancel(engine, s->request);
    }
  }
  if (status == MGL_OK && run->token_count == 0 && !result.stopped) {
    return mgl_error_set(err, MGL_ERR_INTERNAL, "a launch on the GPU generated no token");
  }
  return status;
}

static mgl_status run_on_device(mgl_engine *engine, device_run *run, mgl_error *err) {
  bool stopped = false;
  rewind_running(engine);
  while (engine->waiting != NULL && !stopped) {
    choose_requests(engine, run);
    MGL_TRY(run_launch(engine, run, &stopped, err));
  }
  return MGL_OK;
}

mgl_status mgl_engine_run(mgl_engine *engine, mgl_token_callback *on_token,
                          mgl_iteration_callback *on_iteration, void *context, mgl_error *err) {
  if (mgl_runner_device(engine->runner) == NULL || !mgl_mode_is_for(engine->options.mode, true)) {
    return run_planned(engine, on_token, on_iteration, context, err);
  }
  device_run run = {.on_token = on_token, .on_iteration = on_iteration, .context = context};
  return run_on_device(engine, &run, err);
}

// Adapts the callbacks of a single step.
typedef struct single_step {
  mgl_token_callback *on_token;
  void *context;
  mgl_iteration iteration;
} single_step;

static void step_token(void *context, uint32_t request, int32_t token, mgl_finish_reason reason) {
  const single_step *step = context;
  step->on_token(step->context, request, token, reason);
}

static bool stop_after_one(void *context, const mgl_iteration *iteration) {
  single_step *step = context;
  step->iteration = *iteration;
  return false;
}

mgl_status mgl_engine_step(mgl_engine *engine, mgl_token_callback *on_token, void *context,
                           mgl_iteration *out, mgl_error *err) {
  single_step step = {.on_token = on_token, .context = context};
  if (!mgl_engine_has_work(engine)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "step: no request is waiting or running");
  }
  MGL_TRY(run_planned(engine, step_token, stop_after_one, &step, err));
  if (out != NULL) {
    *out = step.iteration;
  }
  return MGL_OK;
}
