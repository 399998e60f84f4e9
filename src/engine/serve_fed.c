// Serving by feeding a GPU: launches that take in requests while they run.
//
// The device has a planner of its own (twin/plan_turn.h), which admits, preempts and caches
// as the host's does. What the engine has queued goes to it as it has slots; requests that come,
// end or pause while a launch runs are told to it at once. A launch ends when there is nothing more
// to do, or when it must: to be stopped, or since a request needs more memory for sampling than it
// was made with. What it has not finished then waits again, with the tokens that it has.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine_parts.h"

enum { MOST_EMPTY_LAUNCHES = 16 };  // one after the other; more mean that nothing goes on

// A launch under way.
struct mgl_device_run {
  mgl_engine *engine;
  const mgl_engine_run_context *callbacks;
  void *model;  // of the device
  mgl_cuda_program *program;
  mgl_sequence **served;  // [served_count] that the device has, in order of submission
  uint32_t served_count;
  size_t served_capacity;
  mgl_cuda_request request;  // the latest one that was given to it
  uint64_t *mask;            // [ceil(V / 64)] of the latest one that needs it
  uint32_t masked_count;     // served, whose tokens all have masks of their own
  uint32_t unmasked_count;   // of those, for whose next mask the launch waits
  mgl_status status;         // of a request that failed, where nobody listens: the run ends
  mgl_error *err;
  bool stop;               // the run is to end
  bool needs_room;         // the first of the queue needs another launch
  bool asks;               // before_plan is due
  uint64_t idle_since_ns;  // 0: there is something to do
  uint64_t token_count;
  uint32_t empty_launches;   // the latest ones, without a token
  mgl_cuda_progress before;  // the latest that was counted
};

// --- requests ------------------------------------------------------------------------------------

static mgl_cuda_request request_of(mgl_sequence *s) {
  mgl_sampling_state_count(&s->sampling, s->tokens, s->token_count);
  return (mgl_cuda_request){.number = s->request,
                            .prompt = s->tokens,
                            .prompt_count = s->token_count,
                            .max_new_tokens = s->max_tokens - s->token_count,
                            .rule = s->sampling.rule,
                            .edits = s->sampling.edits,
                            .edit_count = s->sampling.edit_count,
                            .stop_ids = s->stop_ids,
                            .stop_count = s->stop_count,
                            .keys = s->keys,
                            .key_count = s->key_count,
                            .masks_all = mgl_engine_masks_all(s)};
}

// Fails one request; the run goes on, unless nobody listens.
static void fail(mgl_device_run *run, mgl_sequence *s, mgl_status status) {
  if (mgl_engine_fail(run->engine, s->request, status, run->err) != MGL_OK) {
    run->status = status;
    run->stop = true;
  }
}

// The mask of a sequence's next token, which is made. False: there is none, and the request fails.
static bool find_mask(mgl_device_run *run, mgl_sequence *s, mgl_cuda_mask *out) {
  mgl_sampling_state_count(&s->sampling, s->tokens, s->token_count);
  *out = (mgl_cuda_mask){.words = run->mask};
  mgl_status status = mgl_engine_fill_mask(run->engine, s, run->mask, &out->is_plain, run->err);
  if (status != MGL_OK) {
    fail(run, s, status);
  }
  return status == MGL_OK;
}

// The first of the queue that can be served; those whose masks are not made yet are put aside.
static mgl_sequence *first_queued(mgl_device_run *run) {
  mgl_engine *engine = run->engine;
  mgl_sequence *s = NULL;
  while ((s = engine->requests.first) != NULL && !run->stop) {
    if (s->constraint != NULL && !mgl_constraint_wait(s->constraint, 0)) {
      mgl_requests_take(&engine->requests, s);
      mgl_engine_park(engine, s);
      continue;
    }
    run->request = request_of(s);
    if (!mgl_engine_is_masked(s) || find_mask(run, s, &run->request.mask)) {
      return s;
    }
  }
  return NULL;
}

static const mgl_cuda_request *device_next(void *context) {
  mgl_device_run *run = context;
  mgl_sequence *s = first_queued(run);
  if (s == NULL) {
    return NULL;
  }
  if (run->served_count == run->served_capacity ||
      !mgl_cuda_program_has_room(run->program, &run->request)) {
    run->needs_room = true;
    return NULL;
  }
  mgl_requests_take(&run->engine->requests, s);
  s->served = true;
  run->masked_count += run->request.masks_all ? 1 : 0;
  run->served[run->served_count++] = s;
  return &run->request;
}

// The launch has computed the sequence's newest token, and waits for the next one's mask.
static void await_mask(mgl_device_run *run, mgl_sequence *s) {
  s->unmasked = true;
  run->unmasked_count++;
}

// Sends masks that are made to the launch. From the end: one that fails is removed.
static void send_masks(mgl_device_run *run) {
  for (uint32_t i = run->served_count; i > 0 && run->unmasked_count > 0; i--) {
    mgl_sequence *s = run->served[i - 1];
    mgl_cuda_mask mask;
    bool is_made = s->constraint == NULL || (s->unmasked && mgl_constraint_wait(s->constraint, 0));
    if (s->unmasked && is_made && find_mask(run, s, &mask)) {
      mgl_cuda_program_mask(run->program, s->request, &mask, s->token_count);
      s->unmasked = false;
      run->unmasked_count--;
    }
  }
}

static void leave_launch(mgl_device_run *run, mgl_sequence *s) {
  run->masked_count -= mgl_engine_masks_all(s) ? 1 : 0;
  run->unmasked_count -= s->unmasked ? 1 : 0;
  s->unmasked = false;
  s->served = false;
}

static void remove_served(mgl_device_run *run, mgl_sequence *s) {
  uint32_t at = 0;
  while (run->served[at] != s) {
    at++;
  }
  memmove(&run->served[at], &run->served[at + 1],
          (run->served_count - at - 1) * sizeof(mgl_sequence *));
  run->served_count--;
  leave_launch(run, s);
}

void mgl_engine_withdraw_served(mgl_engine *engine, mgl_sequence *s) {
  mgl_cuda_program_end(engine->device_run->program, s->request);
  remove_served(engine->device_run, s);
}

void mgl_engine_count_served(const mgl_engine *engine, mgl_engine_statistics *out) {
  const mgl_device_run *run = engine->device_run;
  uint32_t running = run->before.running;
  running = running < run->served_count ? running : run->served_count;
  out->running += running;
  out->waiting += run->served_count - running;
  out->pages_used = run->before.pages_used;
}

// --- what comes back -----------------------------------------------------------------------------

// Reads what the device found out of a token's probability.
static void read_logprobs(const mgl_cuda_logprobs *from, uint32_t top_count, mgl_token_logprob *top,
                          mgl_generated_token *token) {
  token->logprob = mgl_logprob(from->logit, from->largest, from->mass);
  token->top = top;
  token->top_count = top_count;
  for (uint32_t i = 0; i < top_count; i++) {
    top[i] = (mgl_token_logprob){from->top[i].token,
                                 mgl_logprob(from->top[i].logit, from->largest, from->mass)};
  }
}

static void device_token(void *context, const mgl_cuda_token *from) {
  mgl_device_run *run = context;
  mgl_engine *engine = run->engine;
  mgl_sequence *s = mgl_requests_find(&engine->requests, from->request);
  mgl_token_logprob top[MGL_MAX_TOP_LOGPROBS];
  assert(s != NULL && s->served);
  s->tokens[s->token_count++] = from->token;
  run->token_count++;
  mgl_status status = mgl_engine_follow(s, run->err);
  if (status != MGL_OK) {
    fail(run, s, status);
    return;
  }
  mgl_generated_token token = {.request = s->request,
                               .token = from->token,
                               .finish = mgl_sequence_finish_reason(s),
                               .logprob = NAN};
  if (from->logprobs != NULL) {
    uint32_t vocab_size = mgl_runner_vocab_size(engine->runner);
    uint32_t wanted = s->sampling.rule.top_logprobs;
    read_logprobs(from->logprobs, vocab_size < wanted ? vocab_size : wanted, top, &token);
  }
  bool wanted = run->callbacks->on_token(run->callbacks->context, &token);
  if (token.finish != MGL_FINISH_NONE && token.finish != MGL_FINISH_COMPLETE) {
    remove_served(run, s);  // its slot is free already
  }
  if (!wanted || token.finish != MGL_FINISH_NONE) {
    mgl_engine_cancel(engine, token.request);
  } else if (mgl_engine_masks_all(s)) {
    await_mask(run, s);
  }
}

static void count_progress(mgl_device_run *run, const mgl_cuda_progress *now) {
  mgl_engine_statistics *s = &run->engine->statistics;
  const mgl_planner_counts *before = &run->before.counts;
  s->prefix_hit_tokens += now->counts.prefix_hit_tokens - before->prefix_hit_tokens;
  s->prefix_lookup_tokens += now->counts.prefix_lookup_tokens - before->prefix_lookup_tokens;
  s->preemptions += now->counts.preemptions - before->preemptions;
  s->planning_ns += now->planning_ns - run->before.planning_ns;
  s->pages_used_most =
      now->pages_used_most > s->pages_used_most ? now->pages_used_most : s->pages_used_most;
  run->before = *now;
}

static void device_progress(void *context, const mgl_cuda_progress *progress) {
  mgl_device_run *run = context;
  const mgl_iteration iteration = {.prompt_tokens = progress->prompt_tokens,
                                   .decode_tokens = progress->decode_tokens,
                                   .kv_tokens = progress->kv_tokens,
                                   .ns = progress->ns};
  run->asks = true;
  count_progress(run, progress);
  if (run->stop) {
    return;
  }
  mgl_engine_count_iteration(run->engine, &iteration);
  run->stop = run->callbacks->on_iteration != NULL &&
              !run->callbacks->on_iteration(run->callbacks->context, &iteration);
}

// --- launches ------------------------------------------------------------------------------------

// Whether the launch may go on without work: more may come for a while.
static bool waits_for_more(mgl_device_run *run) {
  const mgl_engine_options *options = &run->engine->options;
  if (options->before_plan == NULL || options->idle_ns == 0) {
    return false;
  }
  uint64_t now_ns = mgl_clock_ns();
  run->idle_since_ns = run->idle_since_ns == 0 ? now_ns : run->idle_since_ns;
  return now_ns - run->idle_since_ns < options->idle_ns;
}

static mgl_feed_end device_tend(void *context) {
  mgl_device_run *run = context;
  mgl_engine *engine = run->engine;
  const mgl_engine_options *options = &engine->options;
  run->stop = run->stop || (options->should_stop != NULL && options->should_stop(options->context));
  if (run->stop || run->needs_room) {
    return MGL_FEED_LEAVE;
  }
  if (options->before_plan != NULL && (run->asks || run->served_count == 0)) {
    run->asks = false;
    options->before_plan(options->context);
  }
  mgl_engine_queue_parked(engine);
  send_masks(run);
  bool waits = run->masked_count + engine->parked_count > 0;
  if (engine->requests.first != NULL || waits ||
      (options->before_plan != NULL && run->served_count > 0)) {
    run->idle_since_ns = 0;
    return MGL_FEED_OPEN;
  }
  return waits_for_more(run) ? MGL_FEED_OPEN : MGL_FEED_CLOSED;
}

// Finds what any queued request asks of sampling.
static void find_needs(const mgl_engine *engine, mgl_cuda_generate *job) {
  for (mgl_sequence *s = engine->requests.first; s != NULL; s = s->after) {
    const mgl_cuda_request request = request_of(s);
    uint32_t edits = mgl_cuda_request_edits(&request);
    uint32_t logprobs = mgl_cuda_request_logprobs(&request);
    job->most_edits = edits > job->most_edits ? edits : job->most_edits;
    job->most_logprobs = logprobs > job->most_logprobs ? logprobs : job->most_logprobs;
    job->has_masks = job->has_masks || mgl_engine_is_masked(s);
  }
}

static mgl_status run_launch(mgl_device_run *run, mgl_error *err) {
  static const mgl_cuda_request_source source = {.next = device_next, .tend = device_tend};
  mgl_engine *engine = run->engine;
  mgl_cuda_outcome outcome = {0};
  mgl_cuda_generate job = {.source = &source,
                           .on_token = device_token,
                           .on_progress = device_progress,
                           .context = run,
                           .chunk_tokens = engine->options.chunk_tokens,
                           .prompts_first = engine->options.prompts_first,
                           .outcome = &outcome};
  find_needs(engine, &job);
  run->needs_room = false;
  run->idle_since_ns = 0;
  run->token_count = 0;
  run->before = mgl_cuda_program_progress(run->program);
  engine->device_run = run;
  mgl_status status = mgl_device_cuda_generate(run->model, engine->options.mode, &job, err);
  engine->device_run = NULL;
  while (run->served_count > 0) {
    mgl_sequence *s = run->served[--run->served_count];
    leave_launch(run, s);
    mgl_requests_prepend(&engine->requests, s);
  }
  if (status == MGL_ERR_FORMAT) {
    const mgl_sequence *failed = mgl_requests_find(&engine->requests, outcome.failed_request);
    return failed != NULL ? mgl_engine_not_finite(engine, failed, err) : status;
  }
  // One without a token may be right: all its requests were cancelled or paused, and the next one
  // came when it had ended.
  bool moved = run->token_count > 0 || run->stop || run->needs_room;
  run->empty_launches = moved ? 0 : run->empty_launches + 1;
  if (status == MGL_OK && run->empty_launches == MOST_EMPTY_LAUNCHES &&
      engine->requests.first != NULL) {
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "%u launches on the GPU one after the other generated no token",
                         run->empty_launches);
  }
  return status;
}

mgl_status mgl_serve_fed(mgl_engine *engine, const mgl_engine_run_context *callbacks,
                         mgl_error *err) {
  void *model = mgl_runner_model(engine->runner);
  mgl_device_run run = {.engine = engine,
                        .callbacks = callbacks,
                        .model = model,
                        .program = mgl_device_cuda_program(model),
                        .served_capacity = MGL_MAX_SEQUENCES,
                        .err = err};
  mgl_status status = MGL_OK;
  mgl_engine_withdraw_all(engine, true);
  if (engine->options.before_plan != NULL) {
    engine->options.before_plan(engine->options.context);
  }
  run.served = mgl_alloc_zeroed(run.served_capacity, sizeof(mgl_sequence *));
  run.mask = mgl_alloc_zeroed((mgl_runner_vocab_size(engine->runner) + 63) / 64, sizeof *run.mask);
  if (run.served == NULL || run.mask == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a run on the GPU");
  }
  while (status == MGL_OK && !run.stop && engine->requests.queued + engine->parked_count > 0) {
    if (engine->requests.first != NULL) {
      status = run_launch(&run, err);
      status = status == MGL_OK ? run.status : status;
    } else {
      run.stop = !mgl_engine_gather(engine);
    }
  }
  mgl_free(run.mask);
  mgl_free(run.served);
  return status;
}
