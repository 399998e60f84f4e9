// The arithmetic of choosing a token, one source for host and device: from the same logits both
// choose the same token.
//
// Every float operation is written out and rounded on its own (neither compiler contracts), and
// weights are integers, whose sums have one value in whatever order threads add them. So the token
// is a function of the logits' bits, the rule, the edits and the position, and of nothing else.
// engine/sampler.h says what the steps are and where their order comes from.
//   Rejected: sums of floats in a fixed order, where every pass has to keep to one assignment of
//   logits to threads; exp of the C library, which differs between targets.
#ifndef MGL_TWIN_SAMPLING_RULE_H
#define MGL_TWIN_SAMPLING_RULE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MGL_LOGIT_OUT __uint_as_float(0xff800000u)
#else
#include <math.h>
#define MGL_LOGIT_OUT (-INFINITY)  // the logit of a token that must not be chosen
#endif

enum {
  MGL_WEIGHT_BITS = 40,   // the largest logit's weight is 2^40; 2^20 of them fit into 64 bits
  MGL_WEIGHT_REACH = 28,  // exp(-28) 2^40 < 1: what lies so far below has no weight
  MGL_MAX_TOP_LOGPROBS = 20,
};

typedef enum mgl_sampling_flags {
  MGL_SAMPLING_DRAWS = 1,      // the token is drawn; else it is the largest (edited) logit's
  MGL_SAMPLING_EDITS = 2,      // logits are edited
  MGL_SAMPLING_HOLDS = 4,      // logits of stop tokens are edited before stop_position
  MGL_SAMPLING_COUNTS = 8,     // generated tokens join the edits
  MGL_SAMPLING_LOGPROBS = 16,  // log probabilities are wanted
  MGL_SAMPLING_MASKED = 32,    // on a GPU: a mask says which tokens may be chosen
} mgl_sampling_flags;

// A request's parameters as they are applied. All zero is greedy. Made by mgl_sampling_rule_of.
typedef struct mgl_sampling_rule {
  uint64_t seed;
  uint32_t flags;  // mgl_sampling_flags
  uint32_t top_k;  // 0: off
  float top_p;     // 1: off
  float inverse;   // of the temperature
  float least;  // log of min-p, at least -MGL_WEIGHT_REACH: what a logit may lie below the largest
                // one, in temperatures
  float repetition_penalty;  // 1: off
  float presence_penalty;
  float frequency_penalty;
  uint32_t stop_position;  // of the first token that may be a stop token
  uint32_t top_logprobs;   // 0 to MGL_MAX_TOP_LOGPROBS
} mgl_sampling_rule;

_Static_assert(sizeof(mgl_sampling_rule) == 48, "a rule is three 16-byte loads");

// Why a token has an edit: bits of mgl_logit_edit.marks. From bit 2 on they count how often the
// token was generated.
typedef enum mgl_logit_edit_marks {
  MGL_EDIT_IN_PROMPT = 1,
  MGL_EDIT_STOPS = 2,      // the token ends the request
  MGL_EDIT_GENERATED = 4,  // once
} mgl_logit_edit_marks;

// A token whose logit is not always taken as it is. A sequence has one edit per token id at most.
typedef struct mgl_logit_edit {
  int32_t token;
  uint32_t marks;
  float bias;
  float logit;  // the model's, while the row is edited in place (device)
} mgl_logit_edit;

_Static_assert(sizeof(mgl_logit_edit) == 16, "an edit is a 16-byte load");

// True if a sequence's edits have an effect on the token at `position`.
static inline bool mgl_edits_apply(const mgl_sampling_rule *rule, uint32_t position) {
  return (rule->flags & MGL_SAMPLING_EDITS) != 0 ||
         ((rule->flags & MGL_SAMPLING_HOLDS) != 0 && position < rule->stop_position);
}

// A logit as it counts at `position`.
static inline float mgl_edited_logit(const mgl_sampling_rule *rule, const mgl_logit_edit *edit,
                                     uint32_t position, float logit) {
  uint32_t generated = edit->marks / MGL_EDIT_GENERATED;
  if ((edit->marks & MGL_EDIT_STOPS) != 0 && position < rule->stop_position) {
    return MGL_LOGIT_OUT;
  }
  logit = logit + edit->bias;
  if (generated > 0 || (edit->marks & MGL_EDIT_IN_PROMPT) != 0) {
    logit = logit > 0 ? logit / rule->repetition_penalty : logit * rule->repetition_penalty;
  }
  logit = logit - rule->frequency_penalty * (float)generated;
  return generated > 0 ? logit - rule->presence_penalty : logit;
}

// How far a logit lies below the largest one, in temperatures: 0 or negative. Monotone, since each
// rounding is.
static inline float mgl_logit_below(float logit, float largest, float inverse) {
  return (logit - largest) * inverse;
}

// exp(below) 2^MGL_WEIGHT_BITS as an integer, to 24 bits; below <= 0. Relative error: at most 3e-7,
// and 6e-8 for each 1 that it lies below.
static inline uint64_t mgl_logit_weight(float below) {
  if (!(below > -(float)MGL_WEIGHT_REACH)) {
    return 0;
  }
  // exp(below) = 2^n 2^f, |f| <= 1/2. Adding 1.5 * 2^23 rounds to a whole number.
  float power = below * 1.44269504f;
  float n = power + 12582912.0f;
  n = n - 12582912.0f;
  float f = power - n;
  // The polynomial of degree 5 that is 1 at 0 and has the least relative error, 9e-8.
  float e = 1.3264727e-3f;
  e = e * f + 9.671513e-3f;
  e = e * f + 5.5507336e-2f;
  e = e * f + 2.4022242e-1f;
  e = e * f + 6.93147e-1f;
  e = e * f + 1.0f;
  uint64_t bits = (uint64_t)(uint32_t)(e * 16777216.0f);  // exact: e has 24 bits, and is above 0.5
  return bits << (MGL_WEIGHT_BITS - 24) >> (uint32_t)(int32_t)-n;
}

// The generator: uniform in [0, 1), 53 bits, of (seed, position).
static inline double mgl_sampling_uniform(uint64_t seed, uint64_t position) {
  // splitmix64's output function over a counter; two rounds decorrelate nearby seeds and positions.
  uint64_t x = seed;
  for (int round = 0; round < 2; round++) {
    x += (position + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    x ^= x >> 31;
  }
  return (double)(x >> 11) * (1.0 / 9007199254740992.0);
}

// The least sum of weights that is larger than `uniform` of the whole, which is at least 1.
static inline uint64_t mgl_chosen_sum(double uniform, uint64_t whole) {
  uint64_t sum = (uint64_t)(uniform * (double)whole) + 1;
  return sum < whole ? sum : whole;
}

// The least sum of weights that reaches top_p of the whole.
static inline uint64_t mgl_top_p_sum(float top_p, uint64_t whole) {
  double reached = (double)top_p * (double)whole;
  uint64_t sum = (uint64_t)reached;
  sum += (double)sum < reached ? 1 : 0;
  return sum < 1 ? 1 : sum < whole ? sum : whole;
}

// True if candidates are walked in descending order of logits, since something is cut off by it;
// else in ascending order of ids.
static inline bool mgl_sampling_ranks(const mgl_sampling_rule *rule, uint32_t vocab_size) {
  return (rule->top_k != 0 && rule->top_k < vocab_size) || rule->top_p < 1;
}

#endif
