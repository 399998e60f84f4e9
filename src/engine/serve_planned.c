// Serving by plans of the host: before each iteration requests go to the planner as it has slots,
// what it decides becomes a plan, and behind it every sequence whose last token was computed gets
// the next one, sampled from its logits. A device that plans by itself needs it for single
// iterations only.
#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "engine/engine_parts.h"

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
    mgl_engine_withdraw(engine, s);
    mgl_requests_prepend(&engine->requests, s);
  }
}

static mgl_status sample(mgl_engine *engine, mgl_sequence *s, const mgl_logits *logits,
                         uint32_t logit_row, const mgl_engine_run_context *callbacks,
                         mgl_error *err) {
  const float *row = logits->rows + (size_t)logit_row * mgl_runner_vocab_size(engine->runner);
  uint32_t best = logits->best[logit_row];
  if (!isfinite(row[best])) {
    return mgl_engine_not_finite(engine, s, err);
  }
  if (!mgl_engine_has_mask(s)) {
    mgl_engine_withdraw(engine, s);
    mgl_engine_park(engine, s);
    return MGL_OK;
  }
  mgl_token_logprob top[MGL_MAX_TOP_LOGPROBS];
  mgl_generated_token token;
  mgl_status status = choose_token(engine, s, row, best, top, &token, err);
  if (status != MGL_OK) {
    return mgl_engine_fail(engine, s->request, status, err);
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
      status = mgl_engine_not_finite(engine, s, err);
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
  if (!mgl_engine_gather(engine)) {
    return NULL;
  }
  uint64_t planning_ns = mgl_clock_ns();
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

mgl_status mgl_serve_planned(mgl_engine *engine, const mgl_engine_run_context *callbacks,
                             mgl_error *err) {
  planned_run run = {.engine = engine, .callbacks = callbacks, .err = err};
  mgl_status status = mgl_runner_loop(engine->runner, engine->options.mode, next_plan, &run, err);
  if (status != MGL_OK) {
    mgl_engine_withdraw_all(engine, true);  // what the last iteration computed is not known
    return status;
  }
  return run.status;
}
