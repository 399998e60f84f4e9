// Method: one pass sorts the logits' weights into buckets of 1/32 temperature, and sums and counts
// them. With which key does a sum over descending keys, of ones or of weights, reach a target? The
// buckets say in which one, and only that is sorted. Keys descend by logit, equal ones by ascending
// id. Without a cut by rank, ids in ascending order take the place of keys, and blocks of them that
// of buckets.
//   Rejected: sorting the whole vocabulary (10 ms for 150k entries).
#include "engine/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum {
  BUCKETS_PER_TEMPERATURE = 32,
  BUCKETS = MGL_WEIGHT_REACH * BUCKETS_PER_TEMPERATURE + 1,
  BLOCK_IDS = 1024,
};

typedef struct candidate {
  float logit;
  uint32_t id;
} candidate;

struct mgl_sampler {
  uint32_t vocab_size;
  candidate *candidates;  // [vocab_size] of a bucket
  float *edited;          // [vocab_size] a row with its edits
  uint64_t *block_mass;   // [ceil(vocab_size / BLOCK_IDS)] sums of weights
  uint64_t mass[BUCKETS];
  uint32_t count[BUCKETS];
};

mgl_status mgl_sampler_create(uint32_t vocab_size, mgl_sampler **out, mgl_error *err) {
  *out = NULL;
  mgl_sampler *sampler = mgl_alloc_zeroed(1, sizeof *sampler);
  if (sampler != NULL) {
    sampler->vocab_size = vocab_size;
    sampler->candidates = mgl_alloc_zeroed(vocab_size, sizeof *sampler->candidates);
    sampler->edited = mgl_alloc_zeroed(vocab_size, sizeof *sampler->edited);
    sampler->block_mass =
        mgl_alloc_zeroed((vocab_size + BLOCK_IDS - 1) / BLOCK_IDS, sizeof *sampler->block_mass);
  }
  if (sampler == NULL || sampler->candidates == NULL || sampler->edited == NULL ||
      sampler->block_mass == NULL) {
    mgl_sampler_destroy(sampler);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a sampler of %u tokens",
                         vocab_size);
  }
  *out = sampler;
  return MGL_OK;
}

void mgl_sampler_destroy(mgl_sampler *sampler) {
  if (sampler != NULL) {
    mgl_free(sampler->candidates);
    mgl_free(sampler->edited);
    mgl_free(sampler->block_mass);
    mgl_free(sampler);
  }
}

uint32_t mgl_argmax(const float *logits, uint32_t count) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < count; i++) {
    if (!(logits[i] <= logits[best])) {  // larger, or a NaN among the two
      if (isnan(logits[best])) {
        break;
      }
      best = i;
    }
  }
  return best;
}

// --- edits ---------------------------------------------------------------------------------------

// Takes out of a row what a mask does not allow. A word at a time: most have all tokens or none.
static void apply_mask(float *logits, uint32_t count, const uint64_t *mask) {
  for (uint32_t first = 0; first < count; first += 64) {
    uint64_t word = mask[first / 64];
    uint32_t end = count - first < 64 ? count : first + 64;
    for (uint32_t i = first; i < end && word != UINT64_MAX; i++) {
      logits[i] = (word >> (i - first) & 1) != 0 ? logits[i] : MGL_LOGIT_OUT;
    }
  }
}

// The row with its edits and without what its masks do not allow, in the sampler's scratch.
static const float *edit_row(mgl_sampler *sampler, const mgl_sample_row *row) {
  const mgl_sampling_state *state = row->state;
  float *edited = sampler->edited;
  memcpy(edited, row->logits, sampler->vocab_size * sizeof *edited);
  bool edits = mgl_edits_apply(&state->rule, row->position);
  for (uint32_t i = 0; i < state->edit_count && edits; i++) {
    const mgl_logit_edit *edit = &state->edits[i];
    edited[edit->token] =
        mgl_edited_logit(&state->rule, edit, row->position, row->logits[edit->token]);
  }
  if (row->mask != NULL) {
    apply_mask(edited, sampler->vocab_size, row->mask);
  }
  if (state->allowed != NULL) {
    apply_mask(edited, sampler->vocab_size, state->allowed);
  }
  for (uint32_t i = 0; i < state->barred_count; i++) {
    edited[state->barred[i]] = MGL_LOGIT_OUT;
  }
  return edited;
}

// The first token that is allowed: where all of them are out by the model's own logits.
static uint32_t first_allowed(const mgl_sampler *sampler, const mgl_sampling_state *state) {
  uint32_t i = 0;
  while (i + 1 < sampler->vocab_size && !mgl_sampling_allows(state, i)) {
    i++;
  }
  return i;
}

// --- drawing -------------------------------------------------------------------------------------

// A row to draw from.
typedef struct drawing {
  mgl_sampler *sampler;
  const mgl_sampling_rule *rule;
  const float *logits;
  float largest;
  uint32_t bucket;  // whose candidates the sampler holds, sorted; BUCKETS: none
  uint32_t held;
} drawing;

// Returns the weight of a logit; what is behind min-p has none.
static uint64_t weight_of(const drawing *d, float logit) {
  float below = mgl_logit_below(logit, d->largest, d->rule->inverse);
  return below >= d->rule->least ? mgl_logit_weight(below) : 0;
}

// The choice among all that has weight, in ascending order of ids.
static uint32_t draw_by_id(const drawing *d, double uniform) {
  uint32_t vocab_size = d->sampler->vocab_size;
  uint64_t *masses = d->sampler->block_mass;
  uint64_t whole = 0;
  for (uint32_t first = 0; first < vocab_size; first += BLOCK_IDS) {
    uint32_t end = vocab_size - first < BLOCK_IDS ? vocab_size : first + BLOCK_IDS;
    uint64_t mass = 0;
    for (uint32_t i = first; i < end; i++) {
      mass += weight_of(d, d->logits[i]);
    }
    masses[first / BLOCK_IDS] = mass;
    whole += mass;
  }
  uint64_t target = mgl_chosen_sum(uniform, whole);
  uint32_t block = 0;
  while (masses[block] < target) {
    target -= masses[block++];
  }
  uint32_t id = block * BLOCK_IDS;
  for (uint64_t weight = 0; (weight = weight_of(d, d->logits[id])) < target; id++) {
    target -= weight;
  }
  return id;
}

static uint32_t bucket_of(float below) {
  return (uint32_t)(-below * (float)BUCKETS_PER_TEMPERATURE);
}

// Fills the buckets; returns the sum of all weights.
static uint64_t fill_buckets(const drawing *d, uint64_t *out_count) {
  mgl_sampler *sampler = d->sampler;
  uint64_t whole = 0;
  uint64_t count = 0;
  memset(sampler->mass, 0, sizeof sampler->mass);
  memset(sampler->count, 0, sizeof sampler->count);
  for (uint32_t i = 0; i < sampler->vocab_size; i++) {
    float below = mgl_logit_below(d->logits[i], d->largest, d->rule->inverse);
    if (below >= d->rule->least) {
      uint64_t weight = mgl_logit_weight(below);
      uint32_t bucket = bucket_of(below);
      sampler->mass[bucket] += weight;
      sampler->count[bucket]++;
      whole += weight;
      count++;
    }
  }
  *out_count = count;
  return whole;
}

static int by_key(const void *a, const void *b) {
  const candidate *x = a;
  const candidate *y = b;
  return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : x->id < y->id ? -1 : 1;
}

// Makes the sampler hold a bucket's candidates in descending order.
static void hold_bucket(drawing *d, uint32_t bucket) {
  candidate *candidates = d->sampler->candidates;
  if (d->bucket == bucket) {
    return;
  }
  uint32_t count = 0;
  for (uint32_t i = 0; i < d->sampler->vocab_size; i++) {
    float below = mgl_logit_below(d->logits[i], d->largest, d->rule->inverse);
    if (below >= d->rule->least && bucket_of(below) == bucket) {
      candidates[count++] = (candidate){d->logits[i], i};
    }
  }
  qsort(candidates, count, sizeof *candidates, by_key);
  d->bucket = bucket;
  d->held = count;
}

// A boundary is where a sum over descending keys reaches a target.
typedef struct boundary {
  uint32_t id;
  uint64_t mass;  // of all keys down to this one
} boundary;

// `wanted` keys, no more than have weight.
static boundary boundary_by_count(drawing *d, uint64_t wanted) {
  uint64_t mass = 0;
  uint32_t bucket = 0;
  for (; d->sampler->count[bucket] < wanted; bucket++) {
    wanted -= d->sampler->count[bucket];
    mass += d->sampler->mass[bucket];
  }
  hold_bucket(d, bucket);
  for (uint64_t i = 0; i < wanted; i++) {
    mass += weight_of(d, d->sampler->candidates[i].logit);
  }
  return (boundary){d->sampler->candidates[wanted - 1].id, mass};
}

// A sum of weights, 1 to that of all.
static boundary boundary_by_mass(drawing *d, uint64_t target) {
  uint64_t mass = 0;
  uint32_t bucket = 0;
  for (; mass + d->sampler->mass[bucket] < target; bucket++) {
    mass += d->sampler->mass[bucket];
  }
  hold_bucket(d, bucket);
  uint32_t i = 0;
  mass += weight_of(d, d->sampler->candidates[0].logit);
  while (mass < target) {
    mass += weight_of(d, d->sampler->candidates[++i].logit);
  }
  return (boundary){d->sampler->candidates[i].id, mass};
}

// The choice among what top-k and top-p leave, in descending order.
static uint32_t draw_by_rank(drawing *d, double uniform) {
  const mgl_sampling_rule *rule = d->rule;
  uint64_t count = 0;
  uint64_t kept = fill_buckets(d, &count);
  if (rule->top_k > 0 && rule->top_k < count) {
    kept = boundary_by_count(d, rule->top_k).mass;
  }
  if (rule->top_p < 1) {
    kept = boundary_by_mass(d, mgl_top_p_sum(rule->top_p, kept)).mass;
  }
  return boundary_by_mass(d, mgl_chosen_sum(uniform, kept)).id;
}

uint32_t mgl_sample(mgl_sampler *sampler, const mgl_sample_row *row) {
  const mgl_sampling_rule *rule = &row->state->rule;
  const float *logits = row->logits;
  uint32_t best = row->best;
  if (!isfinite(logits[best])) {
    return best;
  }
  if (mgl_edits_apply(rule, row->position) || row->mask != NULL || row->state->allowed != NULL ||
      row->state->barred_count > 0) {
    logits = edit_row(sampler, row);
    best = mgl_argmax(logits, sampler->vocab_size);
  }
  if (!mgl_sampling_allows(row->state, best)) {
    return first_allowed(sampler, row->state);
  }
  if ((rule->flags & MGL_SAMPLING_DRAWS) == 0 || !isfinite(logits[best])) {
    return best;
  }
  drawing d = {.sampler = sampler,
               .rule = rule,
               .logits = logits,
               .largest = logits[best],
               .bucket = BUCKETS};
  double uniform = mgl_sampling_uniform(rule->seed, row->position);
  return mgl_sampling_ranks(rule, sampler->vocab_size) ? draw_by_rank(&d, uniform)
                                                       : draw_by_id(&d, uniform);
}

// --- log probabilities ---------------------------------------------------------------------------

uint32_t mgl_sample_logprobs(const mgl_sampler *sampler, const float *logits, uint32_t best,
                             uint32_t token, uint32_t top_count, mgl_token_logprob *top,
                             double *logprob) {
  candidate first[MGL_MAX_TOP_LOGPROBS + 1];  // descending; room for one too many
  uint32_t kept = 0;
  float largest = logits[best];
  uint64_t mass = 0;
  for (uint32_t i = 0; i < sampler->vocab_size; i++) {
    mass += mgl_logit_weight(logits[i] - largest);
    if (top_count == 0 || (kept == top_count && !(logits[i] > first[kept - 1].logit))) {
      continue;
    }
    uint32_t at = kept;
    for (; at > 0 && logits[i] > first[at - 1].logit; at--) {
      first[at] = first[at - 1];
    }
    first[at] = (candidate){logits[i], i};
    kept += kept < top_count ? 1 : 0;
  }
  for (uint32_t i = 0; i < kept; i++) {
    top[i] = (mgl_token_logprob){(int32_t)first[i].id, mgl_logprob(first[i].logit, largest, mass)};
  }
  *logprob = mgl_logprob(logits[token], largest, mass);
  return kept;
}
