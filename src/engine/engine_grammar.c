// Requests with grammars: masks before their tokens are chosen, and those that wait for one.
#include <assert.h>

#include "engine/engine_parts.h"

mgl_status mgl_engine_constrain(mgl_engine *engine, mgl_sequence *s, mgl_grammar *grammar,
                                mgl_error *err) {
  if (engine->constraints == NULL) {
    MGL_TRY(mgl_constraints_create(&engine->constraints, err));
  }
  MGL_TRY(mgl_constraint_create(engine->constraints, grammar, &s->constraint, err));
  mgl_constraint_begin_mask(s->constraint);
  return MGL_OK;
}

bool mgl_engine_has_mask(const mgl_sequence *s) {
  return s->constraint == NULL || mgl_constraint_wait(s->constraint, MGL_MASK_PATIENCE_NS);
}

// --- masks ---------------------------------------------------------------------------------------

static bool is_stop(const mgl_sequence *s, int32_t token) {
  for (uint32_t i = 0; i < s->stop_count; i++) {
    if (s->stop_ids[i] == token) {
      return true;
    }
  }
  return false;
}

mgl_status mgl_engine_mask(const mgl_engine *engine, mgl_sequence *s, const uint64_t **out,
                           bool *must_stop, mgl_error *err) {
  uint64_t *mask = NULL;
  bool any = false;
  uint32_t vocab_size = mgl_runner_vocab_size(engine->runner);
  bool accepts = s->constraint != NULL && mgl_constraint_accepts(s->constraint);
  *out = NULL;
  *must_stop = false;
  if (s->constraint == NULL) {
    return MGL_OK;
  }
  MGL_TRY(mgl_constraint_mask(s->constraint, &mask, &any, err));
  for (uint32_t i = 0; i < vocab_size / 64 + 1 && s->sampling.allowed != NULL; i++) {
    mask[i] &= i < (vocab_size + 63) / 64 ? s->sampling.allowed[i] : 0;
  }
  // A stop token ends the text, whatever its own text is.
  for (int set = 0; set < 2; set++) {
    for (uint32_t i = 0; i < s->stop_count; i++) {
      uint32_t id = (uint32_t)s->stop_ids[i];
      if (id >= vocab_size) {
        continue;
      }
      uint64_t bit = UINT64_C(1) << (id % 64);
      mask[id / 64] = set == 1 && accepts ? mask[id / 64] | bit : mask[id / 64] & ~bit;
    }
    if (set == 0) {
      MGL_TRY(mgl_constraint_mask(s->constraint, &mask, &any, err));
      *must_stop = !any;
    }
  }
  *out = mask;
  if (*must_stop && (!accepts || s->stop_count == 0)) {
    return mgl_error_set(
        err, MGL_ERR_FORMAT,
        "request %u: no token of the vocabulary goes on with the grammar behind %u "
        "generated tokens",
        s->request, s->token_count - s->prompt_count);
  }
  return MGL_OK;
}

bool mgl_engine_masks_all(const mgl_sequence *s) {
  return s->constraint != NULL || s->sampling.bad_runs.count > 0;
}

bool mgl_engine_is_masked(const mgl_sequence *s) {
  return s->sampling.allowed != NULL || mgl_engine_masks_all(s);
}

mgl_status mgl_engine_fill_mask(const mgl_engine *engine, mgl_sequence *s, uint64_t *words,
                                bool *must_stop, mgl_error *err) {
  const mgl_sampling_state *state = &s->sampling;
  uint32_t vocab_size = mgl_runner_vocab_size(engine->runner);
  const uint64_t *of_grammar = NULL;
  MGL_TRY(mgl_engine_mask(engine, s, &of_grammar, must_stop, err));
  const uint64_t *from = of_grammar != NULL ? of_grammar : state->allowed;
  for (uint32_t i = 0; i < (vocab_size + 63) / 64; i++) {
    words[i] = from != NULL ? from[i] : UINT64_MAX;
  }
  for (uint32_t i = 0; i < state->barred_count && !*must_stop; i++) {
    uint32_t token = (uint32_t)state->barred[i];
    words[token / 64] &= ~(UINT64_C(1) << token % 64);
  }
  return MGL_OK;
}

mgl_status mgl_engine_follow(mgl_sequence *s, mgl_error *err) {
  int32_t token = s->tokens[s->token_count - 1];
  if (s->constraint == NULL || is_stop(s, token)) {
    return MGL_OK;
  }
  MGL_TRY(mgl_constraint_take(s->constraint, (uint32_t)token, &s->is_complete, err));
  if (!s->is_complete && s->token_count < s->max_tokens) {
    mgl_constraint_begin_mask(s->constraint);
  }
  return MGL_OK;
}

// --- those that wait -----------------------------------------------------------------------------

void mgl_engine_park(mgl_engine *engine, mgl_sequence *s) {
  assert(!s->queued && !s->parked && s->slot == MGL_NO_SLOT);
  s->parked = true;
  s->after = engine->parked;
  engine->parked = s;
  engine->parked_count++;
}

void mgl_engine_unpark(mgl_engine *engine, mgl_sequence *s) {
  mgl_sequence **link = &engine->parked;
  while (*link != s) {
    link = &(*link)->after;
  }
  *link = s->after;
  s->after = NULL;
  s->parked = false;
  engine->parked_count--;
}

void mgl_engine_queue_parked(mgl_engine *engine) {
  mgl_sequence *s = engine->parked;
  while (s != NULL) {
    mgl_sequence *next = s->after;
    if (mgl_constraint_wait(s->constraint, 0)) {
      mgl_engine_unpark(engine, s);
      mgl_requests_prepend(&engine->requests, s);
    }
    s = next;
  }
}

bool mgl_engine_gather(mgl_engine *engine) {
  const mgl_engine_options *options = &engine->options;
  for (;;) {
    if (options->before_plan != NULL) {
      options->before_plan(options->context);
    }
    mgl_engine_queue_parked(engine);
    if (engine->requests.queued + engine->active > 0 || engine->parked_count == 0) {
      return true;
    }
    if (options->should_stop != NULL && options->should_stop(options->context)) {
      return false;
    }
    (void)mgl_engine_has_mask(engine->parked);
  }
}
