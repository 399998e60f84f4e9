#include "engine/engine.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "batch/page_key.h"
#include "engine/engine_parts.h"

static mgl_planner_limits planner_limits(const mgl_runner *runner,
                                         const mgl_engine_options *options) {
  const mgl_plan_limits *limits = mgl_runner_limits(runner);
  return (mgl_planner_limits){.slots = mgl_runner_sequences(runner),
                              .sequences = mgl_runner_sequences(runner),
                              .iteration_tokens = limits->tokens,
                              .chunk_tokens = options->chunk_tokens,
                              .page_tokens = limits->page_tokens,
                              .page_count = mgl_runner_page_count(runner),
                              .pages_per_sequence = limits->pages_per_sequence,
                              .prompts_first = options->prompts_first,
                              .prefix_cache = options->prefix_cache,
                              .runs = MGL_RUN_TOKENS / limits->page_tokens};
}

mgl_status mgl_engine_create(mgl_runner *runner, const mgl_engine_options *options,
                             mgl_engine **out, mgl_error *err) {
  const mgl_planner_limits limits = planner_limits(runner, options);
  *out = NULL;
  mgl_status status = MGL_OK;
  mgl_engine *engine = mgl_alloc_zeroed(1, sizeof *engine);
  if (engine == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for an engine");
  }
  engine->runner = runner;
  engine->options = *options;
  engine->slots = mgl_alloc_zeroed(limits.slots, sizeof *engine->slots);
  if (engine->slots == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for an engine");
    goto fail;
  }
  if ((status = mgl_plan_create(mgl_runner_limits(runner), &engine->plan, err)) != MGL_OK ||
      (status = mgl_sampler_create(mgl_runner_vocab_size(runner), &engine->sampler, err)) !=
          MGL_OK ||
      (status = mgl_requests_init(&engine->requests, err)) != MGL_OK ||
      (status = mgl_planner_create(&limits, &engine->planner, err)) != MGL_OK) {
    goto fail;
  }
  *out = engine;
  return MGL_OK;
fail:
  mgl_engine_destroy(engine);
  return status;
}

void mgl_engine_destroy(mgl_engine *engine) {
  if (engine == NULL) {
    return;
  }
  mgl_requests_reset(&engine->requests);
  mgl_constraints_destroy(engine->constraints);
  mgl_plan_destroy(engine->plan);
  mgl_sampler_destroy(engine->sampler);
  mgl_planner_destroy(engine->planner);
  mgl_free(engine->slots);
  mgl_free(engine);
}

// --- requests ------------------------------------------------------------------------------------

static mgl_sampling_request sampling_request(const mgl_engine *engine, const mgl_request *r) {
  return (mgl_sampling_request){.sampling = &r->sampling,
                                .prompt = r->prompt,
                                .prompt_count = (uint32_t)r->prompt_count,
                                .max_new_tokens = r->max_new_tokens,
                                .stop_ids = r->stop_ids,
                                .stop_count = r->stop_count,
                                .vocab_size = mgl_runner_vocab_size(engine->runner)};
}

// What devices that choose tokens by themselves, and small logits, cannot do.
static mgl_status check_logits(const mgl_engine *engine, const mgl_request *r, mgl_error *err) {
  const mgl_runner *runner = engine->runner;
  uint32_t tokens = mgl_runner_limits(runner)->tokens;
  bool on_device = !mgl_runner_hands_out_logits(runner);
  if ((r->sampling.allowed_count > 0 || r->sampling.bad_runs.count > 0) && r->grammar != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one of %s and a grammar, found both: together they may leave no "
                         "token",
                         r->sampling.allowed_count > 0 ? "allowed tokens" : "bad words");
  }
  if (r->prompt_logprobs != NULL && on_device) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "log probabilities of prompts work on the CPU only so far, and this "
                         "engine is on a GPU");
  }
  if (r->prompt_logprobs != NULL && mgl_runner_logit_rows(runner) < tokens) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "log probabilities of prompts need an engine with logits for the %u "
                         "tokens of an iteration, found %u",
                         tokens, mgl_runner_logit_rows(runner));
  }
  return MGL_OK;
}

mgl_status mgl_engine_check(const mgl_engine *engine, const mgl_request *r, mgl_error *err) {
  const mgl_sampling_request sampling = sampling_request(engine, r);
  uint32_t vocab_size = sampling.vocab_size;
  MGL_TRY(mgl_sampling_check_request(&sampling, err));
  MGL_TRY(
      mgl_planner_check_request(&engine->planner->limits, r->prompt_count, r->max_new_tokens, err));
  if (r->stop_count > MGL_MAX_EOS_IDS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "stop tokens: expected at most %d, found %u",
                         MGL_MAX_EOS_IDS, r->stop_count);
  }
  if (r->salt_bytes > MGL_MAX_SALT_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "salt: expected at most %d bytes, found %zu",
                         MGL_MAX_SALT_BYTES, r->salt_bytes);
  }
  MGL_TRY(check_logits(engine, r, err));
  for (size_t i = 0; i < r->prompt_count; i++) {
    if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= vocab_size) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "token %zu: expected an id of 0 to %u, found %d",
                           i, vocab_size - 1, r->prompt[i]);
    }
  }
  if (r->grammar != NULL && mgl_grammar_vocabulary(r->grammar)->token_count != vocab_size) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "grammar: expected one of this model (%u tokens), found one of another "
                         "(%u)",
                         vocab_size, mgl_grammar_vocabulary(r->grammar)->token_count);
  }
  return MGL_OK;
}

// Pages of a long prompt have other KV than those of a short one that begins alike, and with kind
// dynamic every length has its own.
static void mark_long_keys(const mgl_rope *rope, uint32_t prompt_count, mgl_page_key *keys,
                           uint32_t key_count) {
  uint64_t mark = rope->kind == MGL_ROPE_DYNAMIC ? prompt_count : 1;
  for (uint32_t i = 0; mgl_rope_is_long(rope, prompt_count) && i < key_count; i++) {
    keys[i].words[0] ^= mark;
  }
}

// A sequence of its own memory; NULL when that is out.
static mgl_sequence *create_sequence(const mgl_engine *engine, const mgl_request *request) {
  uint32_t prompt_count = (uint32_t)request->prompt_count;
  uint32_t max_tokens = prompt_count + request->max_new_tokens;
  uint32_t page_tokens = engine->planner->limits.page_tokens;
  bool has_keys = engine->options.prefix_cache && request->prompt_logprobs == NULL;
  uint32_t key_count = has_keys ? prompt_count / page_tokens : 0;
  mgl_sequence *s = mgl_alloc_zeroed(1, sizeof *s);
  int32_t *tokens = mgl_alloc_zeroed(max_tokens, sizeof *tokens);
  mgl_page_key *keys = mgl_alloc_zeroed(key_count, sizeof *keys);
  if (s == NULL || tokens == NULL || keys == NULL) {
    mgl_free(s);
    mgl_free(tokens);
    mgl_free(keys);
    return NULL;
  }
  memcpy(tokens, request->prompt, prompt_count * sizeof *tokens);
  if (has_keys) {
    mgl_page_keys_compute(tokens, prompt_count, page_tokens, request->salt, request->salt_bytes,
                          keys);
    mark_long_keys(mgl_runner_rope(engine->runner), prompt_count, keys, key_count);
  }
  *s = (mgl_sequence){.slot = MGL_NO_SLOT,
                      .tokens = tokens,
                      .token_count = prompt_count,
                      .prompt_count = prompt_count,
                      .rope_count = prompt_count,
                      .max_tokens = max_tokens,
                      .keys = keys,
                      .key_count = key_count,
                      .stop_count = request->stop_count,
                      .priority = request->priority,
                      .prompt_logprobs = request->prompt_logprobs,
                      .prompt_top = request->prompt_top,
                      .prompt_top_count = request->prompt_top_count};
  if (request->prompt_logprobs != NULL) {
    request->prompt_logprobs[0] = NAN;
    s->prompt_known = 1;
  }
  if (request->stop_count > 0) {
    memcpy(s->stop_ids, request->stop_ids, request->stop_count * sizeof *s->stop_ids);
  }
  return s;
}

mgl_status mgl_engine_submit(mgl_engine *engine, const mgl_request *request, uint32_t *out_request,
                             mgl_error *err) {
  MGL_TRY(mgl_engine_check(engine, request, err));
  mgl_sequence *s = create_sequence(engine, request);
  if (s == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a request of %zu tokens",
                         request->prompt_count + request->max_new_tokens);
  }
  s->request = engine->request_count;
  const mgl_sampling_request sampling = sampling_request(engine, request);
  mgl_status status = mgl_sampling_state_init(&s->sampling, &sampling, err);
  if (status == MGL_OK && request->grammar != NULL) {
    status = mgl_engine_constrain(engine, s, request->grammar, err);
  }
  if (status == MGL_OK) {
    status = mgl_requests_add(&engine->requests, s, err);
  }
  if (status != MGL_OK) {
    mgl_sequence_destroy(s);
    return status;
  }
  mgl_requests_insert(&engine->requests, s);
  *out_request = engine->request_count++;
  return MGL_OK;
}

bool mgl_engine_has_work(const mgl_engine *engine) {
  return engine->requests.queued + engine->active + engine->parked_count > 0;
}

bool mgl_engine_knows(const mgl_engine *engine, uint32_t request) {
  return mgl_requests_find(&engine->requests, request) != NULL;
}

void mgl_engine_withdraw(mgl_engine *engine, mgl_sequence *s) {
  mgl_requests_take(&engine->requests, s);
  if (s->parked) {
    mgl_engine_unpark(engine, s);
  }
  if (s->served) {
    mgl_engine_withdraw_served(engine, s);
  }
  if (s->slot != MGL_NO_SLOT) {
    mgl_planner_end(engine->planner, s->slot);
    engine->slots[s->slot] = NULL;
    engine->active--;
    s->slot = MGL_NO_SLOT;
  }
}

void mgl_engine_cancel(mgl_engine *engine, uint32_t request) {
  mgl_sequence *s = mgl_requests_find(&engine->requests, request);
  if (s != NULL) {
    mgl_engine_withdraw(engine, s);
    mgl_requests_remove(&engine->requests, s);
  }
}

void mgl_engine_pause(mgl_engine *engine, uint32_t request) {
  mgl_sequence *s = mgl_requests_find(&engine->requests, request);
  if (s != NULL) {
    mgl_engine_withdraw(engine, s);
  }
}

void mgl_engine_resume(mgl_engine *engine, uint32_t request) {
  mgl_sequence *s = mgl_requests_find(&engine->requests, request);
  if (s != NULL && s->slot == MGL_NO_SLOT && !s->queued && !s->served && !s->parked) {
    mgl_requests_prepend(&engine->requests, s);
  }
}

void mgl_engine_withdraw_all(mgl_engine *engine, bool forget) {
  for (uint32_t i = engine->planner->count; i > 0; i--) {
    mgl_sequence *s = engine->slots[mgl_planner_order(engine->planner, i - 1)];
    if (s != NULL) {
      mgl_engine_withdraw(engine, s);
      mgl_requests_prepend(&engine->requests, s);
    }
  }
  if (forget) {
    mgl_planner_rewind(engine->planner);
  }
  mgl_planner_settle(engine->planner);
}

void mgl_engine_settle(mgl_engine *engine) {
  mgl_planner_settle(engine->planner);
}

mgl_finish_reason mgl_sequence_finish_reason(const mgl_sequence *s) {
  for (uint32_t i = 0; i < s->stop_count; i++) {
    if (s->tokens[s->token_count - 1] == s->stop_ids[i]) {
      return MGL_FINISH_STOP;
    }
  }
  if (s->is_complete) {
    return MGL_FINISH_COMPLETE;
  }
  return s->token_count == s->max_tokens ? MGL_FINISH_LENGTH : MGL_FINISH_NONE;
}

mgl_status mgl_engine_fail(mgl_engine *engine, uint32_t request, mgl_status status,
                           mgl_error *err) {
  const mgl_engine_options *options = &engine->options;
  mgl_engine_cancel(engine, request);
  if (options->on_failure == NULL) {
    return status;
  }
  options->on_failure(options->context, request, err);
  return MGL_OK;
}

mgl_status mgl_engine_not_finite(mgl_engine *engine, const mgl_sequence *s, mgl_error *err) {
  mgl_status status =
      mgl_error_set(err, MGL_ERR_FORMAT,
                    "the model's logits are not finite (NaN or infinity) at position %u of "
                    "request %u: damaged weights?",
                    s->token_count - 1, s->request);
  return mgl_engine_fail(engine, s->request, status, err);
}

// --- statistics ----------------------------------------------------------------------------------

void mgl_engine_count_iteration(mgl_engine *engine, const mgl_iteration *iteration) {
  mgl_engine_statistics *s = &engine->statistics;
  s->iterations++;
  s->prompt_tokens += iteration->prompt_tokens;
  s->decode_tokens += iteration->decode_tokens;
  s->total_ns += iteration->ns;
}

void mgl_engine_get_statistics(const mgl_engine *engine, mgl_engine_statistics *out) {
  const mgl_planner *planner = engine->planner;
  *out = engine->statistics;  // in which is what a GPU counted
  out->prefix_hit_tokens += planner->counts.prefix_hit_tokens;
  out->prefix_lookup_tokens += planner->counts.prefix_lookup_tokens;
  out->preemptions += planner->counts.preemptions;
  out->pages = planner->limits.page_count;
  out->pages_used = mgl_planner_pages_used(planner);
  if (planner->pages_used_most > out->pages_used_most) {
    out->pages_used_most = planner->pages_used_most;
  }
  out->waiting = engine->requests.queued + engine->parked_count;
  mgl_runner_expert_loads(engine->runner, &out->experts);
  if (engine->device_run != NULL) {
    mgl_engine_count_served(engine, out);
  }
  for (uint32_t i = 0; i < planner->limits.slots; i++) {
    if (engine->slots[i] != NULL) {
      bool waits = mgl_planner_slot_of(planner, i)->state == MGL_SLOT_WAITING;
      *(waits ? &out->waiting : &out->running) += 1;
    }
  }
}

// --- runs ----------------------------------------------------------------------------------------

mgl_status mgl_engine_run(mgl_engine *engine, mgl_token_callback *on_token,
                          mgl_iteration_callback *on_iteration, void *context, mgl_error *err) {
  const mgl_engine_run_context callbacks = {
      .on_token = on_token, .on_iteration = on_iteration, .context = context};
  return mgl_runner_serve(engine->runner, engine->options.mode, engine, &callbacks, err);
}

// Adapts the callbacks of a single step.
typedef struct single_step {
  mgl_token_callback *on_token;
  void *context;
  mgl_iteration iteration;
} single_step;

static bool step_token(void *context, const mgl_generated_token *token) {
  const single_step *step = context;
  return step->on_token(step->context, token);
}

static bool stop_after_one(void *context, const mgl_iteration *iteration) {
  single_step *step = context;
  step->iteration = *iteration;
  return false;
}

mgl_status mgl_engine_step(mgl_engine *engine, mgl_token_callback *on_token, void *context,
                           mgl_iteration *out, mgl_error *err) {
  single_step step = {.on_token = on_token, .context = context};
  const mgl_engine_run_context callbacks = {
      .on_token = step_token, .on_iteration = stop_after_one, .context = &step};
  if (!mgl_engine_has_work(engine)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "step: no request is waiting or running");
  }
  MGL_TRY(mgl_serve_planned(engine, &callbacks, err));
  if (out != NULL) {
    *out = step.iteration;
  }
  return MGL_OK;
}
