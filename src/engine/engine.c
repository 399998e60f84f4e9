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
                              .prefix_cache = options->prefix_cache};
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

// What GPUs and small logits cannot do.
static mgl_status check_device(const mgl_engine *engine, const mgl_request *r, mgl_error *err) {
  const mgl_runner *runner = engine->runner;
  uint32_t tokens = mgl_runner_limits(runner)->tokens;
  bool on_gpu = mgl_runner_device(runner) != NULL;
  if (r->sampling.allowed_count > 0 && on_gpu) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "allowed tokens work on the CPU only so far, and this engine is on a GPU");
  }
  if (r->sampling.allowed_count > 0 && r->grammar != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one of allowed tokens and a grammar, found both: together they "
                         "may leave no token");
  }
  if (r->prompt_logprobs != NULL && on_gpu) {
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
  MGL_TRY(check_device(engine, r, err));
  for (size_t i = 0; i < r->prompt_count; i++) {
    if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= vocab_size) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "token %zu: expected an id of 0 to %u, found %d",
                           i, vocab_size - 1, r->prompt[i]);
    }
  }
  if (r->grammar != NULL && mgl_engine_on_device(engine)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "grammars are not supported on a GPU yet, which chooses tokens by itself: "
                         "use device cpu");
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

// Takes a sequence from its slot or from the queue; the slot is freed before the next plan.
static void withdraw(mgl_engine *engine, mgl_sequence *s) {
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
    withdraw(engine, s);
    mgl_requests_remove(&engine->requests, s);
  }
}

void mgl_engine_pause(mgl_engine *engine, uint32_t request) {
  mgl_sequence *s = mgl_requests_find(&engine->requests, request);
  if (s != NULL) {
    withdraw(engine, s);
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
      withdraw(engine, s);
      mgl_requests_prepend(&engine->requests, s);
    }
  }
  if (forget) {
    mgl_planner_rewind(engine->planner);
  }
  mgl_planner_settle(engine->planner);
}

void mgl_engine_settle(mgl_engine *engine) {
  if (!mgl_engine_on_device(engine)) {
    mgl_planner_settle(engine->planner);
  }
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

// --- iterations ----------------------------------------------------------------------------------

// Hands requests to the planner, in the order of the queue, while it has free slots.
static void hand_over(mgl_engine *engine) {
  uint32_t slots = engine->planner->limits.slots;
  for (uint32_t i = 0; i < slots && engine->requests.first != NULL; i++) {
    if (!mgl_planner_is_free(engine->planner, i)) {
      continue;
    }
    mgl_sequence *s = engine->requests.first;
    mgl_requests_take(&engine->requests, s);
    s->slot = i;
    engine->slots[i] = s;
    engine->active++;
    // Tokens that were generated before a pause are computed again like a prompt.
    mgl_planner_submit(engine->planner, i,
                       &(mgl_planner_request){.prompt_count = s->token_count,
                                              .max_tokens = s->max_tokens,
                                              .key_count = s->key_count,
                                              .keys = s->keys});
  }
}

// Which rows of an entry have logits. The same until they are committed.
static mgl_plan_logits logits_of(const mgl_sequence *s, const mgl_plan_entry *e) {
  if (s->prompt_logprobs != NULL && s->prompt_known < s->prompt_count) {
    return MGL_LOGITS_ALL;
  }
  return (e->flags & MGL_ENTRY_SAMPLES) != 0 ? MGL_LOGITS_LAST : MGL_LOGITS_NONE;
}

// Expands what the planner decided.
static void fill_plan(mgl_engine *engine) {
  const mgl_plan_entry *entries = mgl_planner_entries(engine->planner);
  mgl_plan_clear(engine->plan);
  for (uint32_t i = 0; i < engine->planner->entry_count; i++) {
    const mgl_plan_entry *e = &entries[i];
    const mgl_sequence *s = engine->slots[e->slot];
    mgl_plan_add(engine->plan,
                 &(mgl_plan_chunk){
                     .tokens = s->tokens + e->position,
                     .token_count = e->count,
                     .position = e->position,
                     .prompt_count = s->rope_count,
                     .pages = mgl_planner_pages_of(engine->planner, e->slot),
                     .page_count = mgl_planner_slot_of(engine->planner, e->slot)->page_count,
                     .logits = logits_of(s, e),
                 });
  }
#ifdef MGL_CHECK_PLANS
  mgl_error err = {0};
  assert(mgl_plan_check(engine->plan, engine->planner->limits.page_count, &err) == MGL_OK);
#endif
}

mgl_status mgl_engine_not_finite(mgl_engine *engine, const mgl_sequence *s, mgl_error *err) {
  uint32_t request = s->request;
  uint32_t position = s->token_count - 1;
  mgl_engine_cancel(engine, request);
  return mgl_error_set(err, MGL_ERR_FORMAT,
                       "the model's logits are not finite (NaN or infinity) at position %u of "
                       "request %u: damaged weights?",
                       position, request);
}

// Gives a sequence its next token, from its row of the logits. top: where token->top points to.
static mgl_status choose_token(const mgl_engine *engine, mgl_sequence *s, const float *logits,
                               uint32_t best, mgl_token_logprob *top, mgl_generated_token *token,
                               mgl_error *err) {
  const mgl_sampling_rule *rule = &s->sampling.rule;
  mgl_sampling_state_count(&s->sampling, s->tokens, s->token_count);
  mgl_sampling_state plain = {.rule.top_p = 1};
  bool must_stop = false;
  mgl_sample_row row = {
      .logits = logits, .best = best, .position = s->token_count, .state = &s->sampling};
  MGL_TRY(mgl_engine_mask(engine, s, &row.mask, &must_stop, err));
  row.state = must_stop ? &plain : row.state;
  uint32_t id = mgl_sample(engine->sampler, &row);
  s->tokens[s->token_count++] = (int32_t)id;
  MGL_TRY(mgl_engine_follow(s, err));
  *token = (mgl_generated_token){.request = s->request,
                                 .token = (int32_t)id,
                                 .finish = mgl_sequence_finish_reason(s),
                                 .logprob = NAN,
                                 .top = top};
  if ((rule->flags & MGL_SAMPLING_LOGPROBS) != 0) {
    token->top_count = mgl_sample_logprobs(engine->sampler, logits, best, id, rule->top_logprobs,
                                           top, &token->logprob);
  }
  return MGL_OK;
}

// With longrope, a sequence that has grown beyond the original context is computed again with the
// frequencies of long ones: what is cached was turned by the others.
static void begin_again_if_long(mgl_engine *engine, mgl_sequence *s) {
  const mgl_rope *rope = mgl_runner_rope(engine->runner);
  if (rope->kind == MGL_ROPE_LONGROPE && mgl_rope_is_long(rope, s->token_count) &&
      !mgl_rope_is_long(rope, s->rope_count)) {
    s->rope_count = s->token_count;
    s->key_count = 0;  // they name pages of short prompts
    withdraw(engine, s);
    mgl_requests_prepend(&engine->requests, s);
  }
}

// Ends a request whose logits mean nothing. Without anyone to tell it to, the run ends too.
static mgl_status fail_request(mgl_engine *engine, const mgl_sequence *s, mgl_error *err) {
  const mgl_engine_options *options = &engine->options;
  uint32_t request = s->request;
  mgl_status status = mgl_engine_not_finite(engine, s, err);
  if (options->on_failure == NULL) {
    return status;
  }
  options->on_failure(options->context, request, err);
  return MGL_OK;
}

static mgl_status sample(mgl_engine *engine, mgl_sequence *s, const mgl_logits *logits,
                         uint32_t logit_row, const mgl_engine_run_context *callbacks,
                         mgl_error *err) {
  const float *row = logits->rows + (size_t)logit_row * mgl_runner_vocab_size(engine->runner);
  uint32_t best = logits->best[logit_row];
  if (!isfinite(row[best])) {
    return fail_request(engine, s, err);
  }
  if (!mgl_engine_has_mask(s)) {
    withdraw(engine, s);
    mgl_engine_park(engine, s);
    return MGL_OK;
  }
  mgl_token_logprob top[MGL_MAX_TOP_LOGPROBS];
  mgl_generated_token token;
  mgl_status status = choose_token(engine, s, row, best, top, &token, err);
  if (status != MGL_OK) {
    mgl_engine_cancel(engine, s->request);
    return status;
  }
  engine->plan->output_tokens[logit_row] = token.token;
  if (!callbacks->on_token(callbacks->context, &token) || token.finish != MGL_FINISH_NONE) {
    mgl_engine_cancel(engine, token.request);
    return MGL_OK;
  }
  begin_again_if_long(engine, s);
  return MGL_OK;
}

// Scores the tokens of the prompt that an entry's rows predict. False: logits are not finite.
static bool score_prompt(mgl_engine *engine, mgl_sequence *s, const mgl_plan_entry *e,
                         const mgl_logits *logits, uint32_t logit_row) {
  uint32_t vocab_size = mgl_runner_vocab_size(engine->runner);
  for (uint32_t i = 0; i < e->count && e->position + i + 1 < s->prompt_count; i++) {
    uint32_t next = e->position + i + 1;
    uint32_t best = logits->best[logit_row + i];
    const float *row = logits->rows + (size_t)(logit_row + i) * vocab_size;
    if (!isfinite(row[best])) {
      return false;
    }
    (void)mgl_sample_logprobs(
        engine->sampler, row, best, (uint32_t)s->tokens[next], s->prompt_top_count,
        s->prompt_top + (size_t)next * s->prompt_top_count, &s->prompt_logprobs[next]);
  }
  uint32_t known = e->position + e->count + 1;
  known = known < s->prompt_count ? known : s->prompt_count;
  s->prompt_known = known > s->prompt_known ? known : s->prompt_known;
  return true;
}

// Samples for every sequence whose last known token was computed, and ends those that are done. If
// one of them fails, the others begin anew from the tokens that they have.
static mgl_status commit(mgl_engine *engine, const mgl_logits *logits,
                         const mgl_engine_run_context *callbacks, mgl_iteration *stats,
                         mgl_error *err) {
  const mgl_plan_entry *entries = mgl_planner_entries(engine->planner);
  uint32_t logit_row = 0;
  for (uint32_t i = 0; i < engine->planner->entry_count; i++) {
    const mgl_plan_entry *e = &entries[i];
    bool decodes = (e->flags & MGL_ENTRY_DECODES) != 0;
    *(decodes ? &stats->decode_tokens : &stats->prompt_tokens) += e->count;
    stats->kv_tokens += decodes ? e->position + e->count : 0;
    mgl_sequence *s = engine->slots[e->slot];
    mgl_plan_logits rows = logits_of(s, e);
    mgl_status status = MGL_OK;
    bool is_sound = true;
    if (rows == MGL_LOGITS_ALL) {
      is_sound = score_prompt(engine, s, e, logits, logit_row);
      logit_row += e->count - 1;
    }
    if (!is_sound) {
      status = fail_request(engine, s, err);
    } else if ((e->flags & MGL_ENTRY_SAMPLES) != 0) {
      status = sample(engine, s, logits, logit_row, callbacks, err);
    }
    logit_row += rows != MGL_LOGITS_NONE ? 1 : 0;
    if (status != MGL_OK) {
      mgl_engine_withdraw_all(engine, false);
      return status;
    }
  }
  assert(logit_row == engine->plan->logit_row_count);
  return MGL_OK;
}

typedef struct planned_run {
  mgl_engine *engine;
  const mgl_engine_run_context *callbacks;
  uint64_t start_ns;  // of the present iteration
  mgl_status status;  // of commit
  mgl_error *err;
} planned_run;

// Commits the iteration before; false: the run ends.
static bool commit_iteration(planned_run *run, const mgl_logits *logits) {
  mgl_engine *engine = run->engine;
  const mgl_engine_run_context *callbacks = run->callbacks;
  mgl_iteration stats = {0};
  run->status = commit(engine, logits, callbacks, &stats, run->err);
  if (run->status != MGL_OK) {
    return false;
  }
  uint64_t now_ns = mgl_clock_ns();
  stats.ns = now_ns - run->start_ns;
  run->start_ns = now_ns;
  mgl_engine_count_iteration(engine, &stats);
  return callbacks->on_iteration == NULL || callbacks->on_iteration(callbacks->context, &stats);
}

// Commits the iteration before and plans the next.
static const mgl_plan *next_plan(void *context, const mgl_logits *logits) {
  planned_run *run = context;
  mgl_engine *engine = run->engine;
  if (logits == NULL) {
    run->start_ns = mgl_clock_ns();  // not earlier: the first use of a mode compiles its graphs
  } else if (!commit_iteration(run, logits)) {
    return NULL;
  }
  if (engine->options.before_plan != NULL) {
    engine->options.before_plan(engine->options.context);
  }
  uint64_t planning_ns = mgl_clock_ns();
  mgl_engine_queue_parked(engine, engine->requests.queued + engine->active == 0);
  mgl_planner_settle(engine->planner);
  hand_over(engine);
  uint32_t tokens = mgl_planner_plan(engine->planner);
  if (tokens == 0) {
    assert(!mgl_engine_has_work(engine));
    return NULL;
  }
  fill_plan(engine);
  engine->statistics.planning_ns += mgl_clock_ns() - planning_ns;
  return engine->plan;
}

static mgl_status run_planned(mgl_engine *engine, const mgl_engine_run_context *callbacks,
                              mgl_error *err) {
  planned_run run = {.engine = engine, .callbacks = callbacks, .err = err};
  mgl_status status = mgl_runner_loop(engine->runner, engine->options.mode, next_plan, &run, err);
  if (status != MGL_OK) {
    mgl_engine_withdraw_all(engine, true);  // what the last iteration computed is not known
    return status;
  }
  return run.status;
}

mgl_status mgl_engine_run(mgl_engine *engine, mgl_token_callback *on_token,
                          mgl_iteration_callback *on_iteration, void *context, mgl_error *err) {
  const mgl_engine_run_context callbacks = {
      .on_token = on_token, .on_iteration = on_iteration, .context = context};
  return mgl_engine_on_device(engine) ? mgl_engine_run_on_device(engine, &callbacks, err)
                                      : run_planned(engine, &callbacks, err);
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
  MGL_TRY(run_planned(engine, &callbacks, err));
  if (out != NULL) {
    *out = step.iteration;
  }
  return MGL_OK;
}
