// Sampling parameters of a request, and what of its sequence sampling must know.
//
// The parameters are what a user gives; checked and turned into a rule (sampling_rule.h) they are
// what host and device apply. A sequence's edits are the tokens whose logits may change (those of
// the prompt and generated ones for penalties, those with a bias, stop tokens that must wait), each
// once, so that applying them costs what they are and never the vocabulary.
// One sequence, one thread.
#ifndef MGL_BATCH_SAMPLING_H
#define MGL_BATCH_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "twin/sampling_rule.h"

enum {
  MGL_MAX_LOGIT_BIASES = 1024,  // of a request
  MGL_MAX_LOGIT_BIAS = 100,     // either way, as MGL_MAX_PENALTY
  MGL_MAX_PENALTY = 2,          // presence and frequency
  MGL_MAX_BAD_RUNS = 512,       // of a request
  MGL_MAX_BAD_RUN_TOKENS = 1024,
};

#define MGL_MIN_REPETITION_PENALTY 0.01
#define MGL_MAX_REPETITION_PENALTY 100

typedef struct mgl_logit_bias {
  int32_t token;  // in [0, V), at most once in a list
  float value;    // at most MGL_MAX_LOGIT_BIAS either way
} mgl_logit_bias;

// Runs of tokens that are not generated: behind all tokens of a run but its last, that one is not
// chosen. Run i has the tokens from ends[i - 1] (0 for the first) to ends[i].
typedef struct mgl_bad_runs {
  const int32_t *tokens;  // [ends[count - 1]]
  const uint32_t *ends;   // [count] ascending: a run has 1 to MGL_MAX_BAD_RUN_TOKENS
  uint32_t count;         // at most MGL_MAX_BAD_RUNS
} mgl_bad_runs;

// Zeros are off, but top_p is 1 then.
typedef struct mgl_sampling {
  double temperature;  // 0: greedy; else logits are divided by it; at most 100
  uint32_t top_k;      // 0: off; else only the k largest logits
  double top_p;        // 1: off; else the smallest set of largest probabilities that reaches top_p
  double min_p;        // 0 to 1; only tokens with at least so much of the largest probability
  double repetition_penalty;     // 1 (and 0): off; 0.01 to 100: logits of tokens that the prompt or
                                 // the answer has are divided by it where positive, else multiplied
  double presence_penalty;       // -2 to 2, subtracted from logits of tokens that were generated
  double frequency_penalty;      // -2 to 2, subtracted as often as the token was generated
  const mgl_logit_bias *biases;  // [bias_count], added to logits; copied
  uint32_t bias_count;           // at most MGL_MAX_LOGIT_BIASES
  const int32_t *allowed;  // [allowed_count] no other tokens are chosen; copied. NULL with 0: all
  uint32_t allowed_count;
  mgl_bad_runs bad_runs;  // copied; not with `allowed`, since both together may leave no token
  uint32_t min_tokens;    // no stop token before so many were generated; at most max_new_tokens
  bool logprobs;          // log probabilities of the generated tokens are wanted,
  uint32_t top_logprobs;  // and those of so many of the likeliest; at most MGL_MAX_TOP_LOGPROBS
  uint64_t seed;
} mgl_sampling;

// Checks the ranges above, as far as they do not depend on model and request.
mgl_status mgl_sampling_check(const mgl_sampling *sampling, mgl_error *err);

// Makes the rule of parameters that were checked. prompt_count: tokens of the prompt.
mgl_sampling_rule mgl_sampling_rule_of(const mgl_sampling *sampling, uint32_t prompt_count);

// A sequence, as sampling sees it.
typedef struct mgl_sampling_state {
  mgl_sampling_rule rule;
  mgl_logit_edit *edits;  // [edit_count] in no order; room for edit_capacity
  uint32_t edit_count;
  uint32_t edit_capacity;
  uint32_t counted;     // tokens of the sequence that the edits know
  uint64_t *allowed;    // [ceil(V / 64)] a bit for each token that may be chosen; NULL: all may
  int32_t *bad_tokens;  // of bad_runs, which point at these
  uint32_t *bad_ends;
  mgl_bad_runs bad_runs;
  uint32_t prompt_count;
  int32_t *barred;  // [barred_count] last tokens of runs that have come so far; room for all runs
  uint32_t barred_count;
} mgl_sampling_state;

typedef struct mgl_sampling_request {
  const mgl_sampling *sampling;
  const int32_t *prompt;  // [prompt_count]
  uint32_t prompt_count;
  uint32_t max_new_tokens;
  const int32_t *stop_ids;  // [stop_count]
  uint32_t stop_count;
  uint32_t vocab_size;
} mgl_sampling_request;

// Checks the parameters, alone and against the request.
mgl_status mgl_sampling_check_request(const mgl_sampling_request *request, mgl_error *err);

// Checks them too, and makes the edits with room for all that will be
// generated. O(prompt log prompt), and nothing where no parameter asks for it.
mgl_status mgl_sampling_state_init(mgl_sampling_state *state, const mgl_sampling_request *request,
                                   mgl_error *err);
void mgl_sampling_state_reset(mgl_sampling_state *state);  // an all-zero one is fine

// Whether a token may be chosen.
static inline bool mgl_sampling_allows(const mgl_sampling_state *state, uint32_t token) {
  return state->allowed == NULL || (state->allowed[token / 64] >> token % 64 & 1) != 0;
}

// Counts the tokens from `counted` on as generated, and finds what is barred behind them. tokens:
// [token_count] of the sequence, prompt included. O(edits) for each new one, and O(bad runs).
void mgl_sampling_state_count(mgl_sampling_state *state, const int32_t *tokens,
                              uint32_t token_count);

// The natural logarithm of a token's probability: of its logit, the largest one, and the sum of all
// weights at temperature 1.
double mgl_logprob(float logit, float largest, uint64_t mass);

#endif
