#include <assert.h>
#include <math.h>

#include "kernels/cpu/route.h"

// What logits become, and what is chosen by. Returns nothing chosen yet.
static void score(const mgl_route_args *a, const float *logits, float *scores, float *choice) {
  float top = -INFINITY;
  float sum = 0;
  for (uint32_t e = 0; e < a->expert_count; e++) {
    scores[e] = isnan(logits[e]) ? -INFINITY : logits[e];
    top = fmaxf(top, scores[e]);
  }
  if (a->scores == MGL_SCORES_SOFTMAX) {
    for (uint32_t e = 0; e < a->expert_count; e++) {
      scores[e] = expf(scores[e] - top);
      sum += scores[e];
    }
    for (uint32_t e = 0; e < a->expert_count; e++) {
      scores[e] /= sum;
    }
  } else if (a->scores == MGL_SCORES_SIGMOID) {
    for (uint32_t e = 0; e < a->expert_count; e++) {
      scores[e] = 1 / (1 + expf(-scores[e]));
    }
  }
  for (uint32_t e = 0; e < a->expert_count; e++) {
    float by = scores[e] + (a->bias != NULL ? a->bias[e] : 0);
    choice[e] = isnan(by) ? -INFINITY : by;
  }
}

// Whether expert a comes before expert b in the order of choice.
static bool is_before(const float *choice, uint32_t a, uint32_t b) {
  return choice[a] > choice[b] || (choice[a] == choice[b] && a < b);
}

// Puts the first `count` of items [0, size) in the order of choice into out.
static void choose(const float *choice, uint32_t size, uint32_t count, uint32_t *out) {
  uint32_t found = 0;
  for (uint32_t e = 0; e < size; e++) {
    if (found == count && !is_before(choice, e, out[count - 1])) {
      continue;
    }
    uint32_t at = found < count ? found++ : count - 1;
    for (; at > 0 && is_before(choice, e, out[at - 1]); at--) {
      out[at] = out[at - 1];
    }
    out[at] = e;
  }
}

// Makes the experts of all but the best groups the last in the order of choice. A group is as good
// as the two best of its experts together.
static void leave_groups(const mgl_route_args *a, float *choice) {
  const uint32_t size = a->expert_count / a->groups;
  float best[MGL_MAX_EXPERTS];
  uint32_t order[MGL_MAX_EXPERTS];
  for (uint32_t g = 0; g < a->groups; g++) {
    uint32_t two[2];
    choose(choice + (size_t)g * size, size, size < 2 ? 1 : 2, two);
    best[g] =
        choice[(size_t)g * size + two[0]] + (size < 2 ? 0 : choice[(size_t)g * size + two[1]]);
  }
  choose(best, a->groups, a->groups, order);
  for (uint32_t i = a->top_groups; i < a->groups; i++) {
    for (uint32_t e = order[i] * size; e < (order[i] + 1) * size; e++) {
      choice[e] = -INFINITY;
    }
  }
}

// Sorts the few numbers of a token's experts.
static void sort_numbers(uint32_t *numbers, uint32_t count) {
  for (uint32_t i = 1; i < count; i++) {
    uint32_t number = numbers[i];
    uint32_t at = i;
    for (; at > 0 && numbers[at - 1] > number; at--) {
      numbers[at] = numbers[at - 1];
    }
    numbers[at] = number;
  }
}

static void write_weights(const mgl_route_args *a, const float *scores, const uint32_t *chosen,
                          float *out) {
  float top = -INFINITY;
  float sum = 0;
  for (uint32_t s = 0; s < a->slots; s++) {
    top = fmaxf(top, scores[chosen[s]]);
  }
  const bool softmax = a->scores == MGL_SCORES_SOFTMAX_OF_CHOSEN;
  for (uint32_t s = 0; s < a->slots; s++) {
    float weight = softmax ? expf(scores[chosen[s]] - top) : scores[chosen[s]];
    out[2 * s] = (float)chosen[s];
    out[2 * s + 1] = weight;
    sum += weight;
  }
  const float divisor = softmax || a->renormalise ? sum : 1;
  for (uint32_t s = 0; s < a->slots; s++) {
    out[2 * s + 1] = out[2 * s + 1] / divisor * a->scale;
  }
}

void mgl_route(const mgl_route_args *a, size_t begin, size_t end) {
  assert(a->expert_count <= MGL_MAX_EXPERTS && a->slots <= a->expert_count);
  float scores[MGL_MAX_EXPERTS];
  float choice[MGL_MAX_EXPERTS];
  uint32_t chosen[MGL_MAX_EXPERTS];
  for (size_t t = begin; t < end; t++) {
    score(a, a->logits + t * a->expert_count, scores, choice);
    if (a->groups > 1 && a->top_groups != 0) {
      leave_groups(a, choice);
    }
    choose(choice, a->expert_count, a->slots, chosen);
    sort_numbers(chosen, a->slots);
    write_weights(a, scores, chosen, a->out + t * a->slots * 2);
  }
}
