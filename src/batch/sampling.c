// Method of the edits: all tokens that need one are written down with their reason and sorted, and
// neighbours of one id become one. Later ones are looked for from front to back: the edits are
// walked for each token anyway.
//   Rejected: a count for every id of the vocabulary (a megabyte for each sequence); a hash table.
#include "batch/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define LEAST_TEMPERATURE 1e-30F  // below it, 1 / temperature would not be finite

// Written so that a NaN fails.
static mgl_status check_range(const char *name, double value, double min, double max,
                              mgl_error *err) {
  if (value >= min && value <= max) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected %g to %g, found %g", name, min, max,
                       value);
}

mgl_status mgl_sampling_check(const mgl_sampling *s, mgl_error *err) {
  MGL_TRY(check_range("temperature", s->temperature, 0, 100, err));
  if (!(s->top_p > 0 && s->top_p <= 1)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "top-p: expected above 0 and at most 1, found %g",
                         s->top_p);
  }
  MGL_TRY(check_range("min-p", s->min_p, 0, 1, err));
  if (s->repetition_penalty != 0) {
    MGL_TRY(check_range("repetition penalty", s->repetition_penalty, MGL_MIN_REPETITION_PENALTY,
                        MGL_MAX_REPETITION_PENALTY, err));
  }
  MGL_TRY(
      check_range("presence penalty", s->presence_penalty, -MGL_MAX_PENALTY, MGL_MAX_PENALTY, err));
  MGL_TRY(check_range("frequency penalty", s->frequency_penalty, -MGL_MAX_PENALTY, MGL_MAX_PENALTY,
                      err));
  if (s->bias_count > MGL_MAX_LOGIT_BIASES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "logit biases: expected at most %d, found %u",
                         MGL_MAX_LOGIT_BIASES, s->bias_count);
  }
  for (uint32_t i = 0; i < s->bias_count; i++) {
    MGL_TRY(check_range("logit bias", (double)s->biases[i].value, -MGL_MAX_LOGIT_BIAS,
                        MGL_MAX_LOGIT_BIAS, err));
  }
  if (s->top_logprobs > MGL_MAX_TOP_LOGPROBS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "log probabilities: expected at most %d, found %u",
                         MGL_MAX_TOP_LOGPROBS, s->top_logprobs);
  }
  return MGL_OK;
}

static bool repeats(const mgl_sampling *s) {
  return s->repetition_penalty != 0 && s->repetition_penalty != 1;
}

// Edits of generated tokens.
static bool counts(const mgl_sampling *s) {
  return repeats(s) || s->presence_penalty != 0 || s->frequency_penalty != 0;
}

mgl_sampling_rule mgl_sampling_rule_of(const mgl_sampling *s, uint32_t prompt_count) {
  float temperature = (float)s->temperature;
  float top_p = (float)s->top_p;
  float least = s->min_p > 0 ? (float)log(s->min_p) : -(float)MGL_WEIGHT_REACH;
  mgl_sampling_rule rule = {
      .seed = s->seed,
      .top_k = s->top_k,
      .top_p = s->top_p > 0 && top_p == 0 ? 1e-30F : top_p,
      .inverse = 1 / (temperature > LEAST_TEMPERATURE ? temperature : LEAST_TEMPERATURE),
      .least = least > -(float)MGL_WEIGHT_REACH ? least : -(float)MGL_WEIGHT_REACH,
      .repetition_penalty = repeats(s) ? (float)s->repetition_penalty : 1,
      .presence_penalty = (float)s->presence_penalty,
      .frequency_penalty = (float)s->frequency_penalty,
      .stop_position = prompt_count + s->min_tokens,
      .top_logprobs = s->logprobs ? s->top_logprobs : 0,
  };
  rule.flags |= s->temperature > 0 && s->top_k != 1 ? MGL_SAMPLING_DRAWS : 0;
  rule.flags |= counts(s) ? MGL_SAMPLING_EDITS | MGL_SAMPLING_COUNTS : 0;
  rule.flags |= s->bias_count > 0 ? MGL_SAMPLING_EDITS : 0;
  rule.flags |= s->min_tokens > 0 ? MGL_SAMPLING_HOLDS : 0;
  rule.flags |= s->logprobs ? MGL_SAMPLING_LOGPROBS : 0;
  return rule;
}

// --- edits ---------------------------------------------------------------------------------------

static int by_token(const void *a, const void *b) {
  const mgl_logit_edit *x = a;
  const mgl_logit_edit *y = b;
  return x->token < y->token ? -1 : x->token > y->token ? 1 : 0;
}

// Sorts edits and makes one of those of a token. Returns how many are left.
static uint32_t merge_edits(mgl_logit_edit *edits, uint32_t count) {
  uint32_t kept = 0;
  if (count > 0) {
    qsort(edits, count, sizeof *edits, by_token);
  }
  for (uint32_t i = 0; i < count; i++) {
    if (kept > 0 && edits[kept - 1].token == edits[i].token) {
      edits[kept - 1].bias += edits[i].bias;
      edits[kept - 1].marks |= edits[i].marks;
    } else {
      edits[kept++] = edits[i];
    }
  }
  return kept;
}

static mgl_status check_biases(const mgl_sampling_request *r, mgl_error *err) {
  const mgl_sampling *s = r->sampling;
  for (uint32_t i = 0; i < s->bias_count; i++) {
    int32_t token = s->biases[i].token;
    if (token < 0 || (uint32_t)token >= r->vocab_size) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "logit bias: expected a token of 0 to %u, found %d", r->vocab_size - 1,
                           token);
    }
    for (uint32_t j = 0; j < i; j++) {
      if (s->biases[j].token == token) {
        return mgl_error_set(err, MGL_ERR_ARGUMENT,
                             "logit bias: expected each token once, found token %d twice", token);
      }
    }
  }
  return MGL_OK;
}

static bool is_stop(const mgl_sampling_request *r, int32_t token) {
  for (uint32_t i = 0; i < r->stop_count; i++) {
    if (r->stop_ids[i] == token) {
      return true;
    }
  }
  return false;
}

static mgl_status check_allowed(const mgl_sampling_request *r, mgl_error *err) {
  const mgl_sampling *s = r->sampling;
  bool goes_on = s->allowed_count == 0 || s->min_tokens == 0;
  for (uint32_t i = 0; i < s->allowed_count; i++) {
    int32_t token = s->allowed[i];
    if (token < 0 || (uint32_t)token >= r->vocab_size) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "allowed tokens: expected ids of 0 to %u, found %d", r->vocab_size - 1,
                           token);
    }
    goes_on = goes_on || !is_stop(r, token);
  }
  return goes_on ? MGL_OK
                 : mgl_error_set(err, MGL_ERR_ARGUMENT,
                                 "min tokens: expected an allowed token that does not stop, found "
                                 "stop tokens only");
}

static mgl_status check_bad_runs(const mgl_sampling_request *r, mgl_error *err) {
  const mgl_bad_runs *runs = &r->sampling->bad_runs;
  if (runs->count > MGL_MAX_BAD_RUNS) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "bad words: expected at most %d runs of tokens, found %u",
                         MGL_MAX_BAD_RUNS, runs->count);
  }
  if (runs->count > 0 && r->sampling->allowed_count > 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one of bad words and allowed tokens, found both: together they "
                         "may leave no token");
  }
  if (runs->count > 0 && runs->count + r->stop_count >= r->vocab_size) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "bad words: expected to leave a token of a vocabulary of %u, found %u runs "
        "of tokens and %u stop tokens",
        r->vocab_size, runs->count, r->stop_count);
  }
  for (uint32_t i = 0, begin = 0; i < runs->count; begin = runs->ends[i++]) {
    if (runs->ends[i] <= begin || runs->ends[i] - begin > MGL_MAX_BAD_RUN_TOKENS) {
      return mgl_error_set(err, MGL_ERR_LIMIT, "bad words: expected 1 to %d tokens, found %u",
                           MGL_MAX_BAD_RUN_TOKENS, runs->ends[i] - begin);
    }
    for (uint32_t j = begin; j < runs->ends[i]; j++) {
      if (runs->tokens[j] < 0 || (uint32_t)runs->tokens[j] >= r->vocab_size) {
        return mgl_error_set(err, MGL_ERR_ARGUMENT, "bad words: expected ids of 0 to %u, found %d",
                             r->vocab_size - 1, runs->tokens[j]);
      }
    }
  }
  return MGL_OK;
}

mgl_status mgl_sampling_check_request(const mgl_sampling_request *r, mgl_error *err) {
  MGL_TRY(mgl_sampling_check(r->sampling, err));
  MGL_TRY(check_biases(r, err));
  MGL_TRY(check_allowed(r, err));
  MGL_TRY(check_bad_runs(r, err));
  if (r->sampling->min_tokens > r->max_new_tokens) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "min tokens: expected at most the most tokens, %u, found %u",
                         r->max_new_tokens, r->sampling->min_tokens);
  }
  if (r->sampling->min_tokens > 0 && r->stop_count >= r->vocab_size) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "min tokens: expected a token that does not stop, found %u stop tokens in "
                         "a vocabulary of %u",
                         r->stop_count, r->vocab_size);
  }
  return MGL_OK;
}

// Every reason for an edit. edits: room for all of them.
static uint32_t list_edits(const mgl_sampling_request *r, mgl_logit_edit *edits) {
  const mgl_sampling *s = r->sampling;
  uint32_t count = 0;
  for (uint32_t i = 0; i < r->prompt_count && repeats(s); i++) {
    edits[count++] = (mgl_logit_edit){.token = r->prompt[i], .marks = MGL_EDIT_IN_PROMPT};
  }
  for (uint32_t i = 0; i < s->bias_count; i++) {
    edits[count++] = (mgl_logit_edit){.token = s->biases[i].token, .bias = s->biases[i].value};
  }
  for (uint32_t i = 0; i < r->stop_count && s->min_tokens > 0; i++) {
    if (r->stop_ids[i] >= 0 && (uint32_t)r->stop_ids[i] < r->vocab_size) {
      edits[count++] = (mgl_logit_edit){.token = r->stop_ids[i], .marks = MGL_EDIT_STOPS};
    }
  }
  return count;
}

static mgl_status init_allowed(mgl_sampling_state *state, const mgl_sampling_request *r,
                               mgl_error *err) {
  const mgl_sampling *s = r->sampling;
  if (s->allowed_count == 0) {
    return MGL_OK;
  }
  state->allowed = mgl_alloc_zeroed((r->vocab_size + 63) / 64, sizeof *state->allowed);
  if (state->allowed == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the tokens that a request allows");
  }
  for (uint32_t i = 0; i < s->allowed_count; i++) {
    uint32_t token = (uint32_t)s->allowed[i];
    state->allowed[token / 64] |= UINT64_C(1) << token % 64;
  }
  return MGL_OK;
}

static mgl_status init_bad_runs(mgl_sampling_state *state, const mgl_bad_runs *runs,
                                mgl_error *err) {
  uint32_t count = runs->count;
  uint32_t tokens = count == 0 ? 0 : runs->ends[count - 1];
  if (count == 0) {
    return MGL_OK;
  }
  state->bad_tokens = mgl_alloc_zeroed(tokens, sizeof *state->bad_tokens);
  state->bad_ends = mgl_alloc_zeroed(count, sizeof *state->bad_ends);
  state->barred = mgl_alloc_zeroed(count, sizeof *state->barred);
  if (state->bad_tokens == NULL || state->bad_ends == NULL || state->barred == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the bad words of a request");
  }
  memcpy(state->bad_tokens, runs->tokens, tokens * sizeof *state->bad_tokens);
  memcpy(state->bad_ends, runs->ends, count * sizeof *state->bad_ends);
  state->bad_runs = (mgl_bad_runs){state->bad_tokens, state->bad_ends, count};
  return MGL_OK;
}

static mgl_status init_edits(mgl_sampling_state *state, const mgl_sampling_request *r,
                             mgl_error *err) {
  const mgl_sampling *s = r->sampling;
  if ((state->rule.flags & (MGL_SAMPLING_EDITS | MGL_SAMPLING_HOLDS)) == 0) {
    return MGL_OK;
  }
  size_t most = (repeats(s) ? r->prompt_count : 0) + (size_t)s->bias_count + r->stop_count;
  uint32_t growth = counts(s) ? r->max_new_tokens : 0;
  mgl_logit_edit *all = mgl_alloc_zeroed(most + 1, sizeof *all);
  if (all != NULL) {
    state->edit_count = merge_edits(all, list_edits(r, all));
    state->edit_capacity = state->edit_count + growth;
    state->edits = mgl_alloc_zeroed((size_t)state->edit_capacity + 1, sizeof *state->edits);
  }
  if (state->edits == NULL) {
    mgl_free(all);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the penalties of a request");
  }
  memcpy(state->edits, all, state->edit_count * sizeof *all);
  mgl_free(all);
  return MGL_OK;
}

mgl_status mgl_sampling_state_init(mgl_sampling_state *state, const mgl_sampling_request *r,
                                   mgl_error *err) {
  *state = (mgl_sampling_state){0};
  MGL_TRY(mgl_sampling_check_request(r, err));
  state->rule = mgl_sampling_rule_of(r->sampling, r->prompt_count);
  state->counted = r->prompt_count;
  state->prompt_count = r->prompt_count;
  mgl_status status = init_allowed(state, r, err);
  if (status == MGL_OK) {
    status = init_bad_runs(state, &r->sampling->bad_runs, err);
  }
  if (status == MGL_OK) {
    status = init_edits(state, r, err);
  }
  if (status != MGL_OK) {
    mgl_sampling_state_reset(state);
  }
  return status;
}

void mgl_sampling_state_reset(mgl_sampling_state *state) {
  mgl_free(state->edits);
  mgl_free(state->allowed);
  mgl_free(state->bad_tokens);
  mgl_free(state->bad_ends);
  mgl_free(state->barred);
  *state = (mgl_sampling_state){0};
}

// Runs are begun by generated tokens alone, so that an answer is free to go on with a prompt's.
static void find_barred(mgl_sampling_state *state, const int32_t *tokens, uint32_t token_count) {
  const mgl_bad_runs *runs = &state->bad_runs;
  uint32_t generated = token_count - state->prompt_count;
  state->barred_count = 0;
  for (uint32_t i = 0, begin = 0; i < runs->count; begin = runs->ends[i++]) {
    uint32_t before = runs->ends[i] - begin - 1;
    if (before <= generated &&
        (before == 0 || memcmp(tokens + token_count - before, runs->tokens + begin,
                               before * sizeof *tokens) == 0)) {
      state->barred[state->barred_count++] = runs->tokens[begin + before];
    }
  }
}

void mgl_sampling_state_count(mgl_sampling_state *state, const int32_t *tokens,
                              uint32_t token_count) {
  find_barred(state, tokens, token_count);
  if ((state->rule.flags & MGL_SAMPLING_COUNTS) == 0) {
    return;
  }
  for (; state->counted < token_count; state->counted++) {
    int32_t token = tokens[state->counted];
    uint32_t i = 0;
    while (i < state->edit_count && state->edits[i].token != token) {
      i++;
    }
    if (i == state->edit_count) {
      state->edits[state->edit_count++] = (mgl_logit_edit){.token = token};
    }
    state->edits[i].marks += MGL_EDIT_GENERATED;
  }
}

double mgl_logprob(float logit, float largest, uint64_t mass) {
  return (double)logit - (double)largest - log(ldexp((double)mass, -MGL_WEIGHT_BITS));
}
