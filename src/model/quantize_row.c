// Rounding rows to codes: symmetric, a group at a time, each value to the nearest code.
//
// Scales are rounded to bf16 first, as checkpoints store them, and codes are chosen for the rounded
// scale. Where the error decides, the candidates are the range's scale times 1, 0.98 ... 0.7: large
// values are then clipped, the others finer. Rejected: a search by the gradient; the error is not
// smooth, and this is within a few percent of the best scale.
#include "model/quantize_row.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/e4m3.h"

enum { CANDIDATES = 16 };
#define CANDIDATE_STEP 0.02f

mgl_status mgl_row_quantiser_create(mgl_form form, uint32_t k, mgl_row_quantiser *out,
                                    mgl_error *err) {
  uint32_t groups = mgl_row_layout_of(form, k).groups;
  *out = (mgl_row_quantiser){.form = form,
                             .k = k,
                             .groups = groups,
                             .values = mgl_alloc_zeroed(k, sizeof(float)),
                             .codes = mgl_alloc_zeroed(k, 1),
                             .scales = mgl_alloc_zeroed(groups, sizeof(float)),
                             .offsets = mgl_alloc_zeroed(groups, sizeof(float))};
  if (out->values == NULL || out->codes == NULL || out->scales == NULL || out->offsets == NULL) {
    mgl_row_quantiser_destroy(out);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a row of %u codes", k);
  }
  return MGL_OK;
}

void mgl_row_quantiser_destroy(mgl_row_quantiser *quantiser) {
  mgl_free(quantiser->values);
  mgl_free(quantiser->codes);
  mgl_free(quantiser->scales);
  mgl_free(quantiser->offsets);
  *quantiser = (mgl_row_quantiser){0};
}

static float largest_code(mgl_dtype code) {
  switch (code) {
    case MGL_DTYPE_E4M3: return 448;
    case MGL_DTYPE_I8: return 127;
    case MGL_DTYPE_I4: return 7;
    default: return 6;
  }
}

static uint8_t nearest_e2m1(float value) {
  static const float borders[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};  // between codes
  float magnitude = fabsf(value);
  uint8_t code = 0;
  // At a border the even code wins: the lower one of an even index, the upper one of an odd.
  while (code < 7 && (magnitude > borders[code] || (magnitude == borders[code] && code % 2 == 1))) {
    code++;
  }
  return (uint8_t)(code | (value < 0 ? 8 : 0));
}

static uint8_t nearest(mgl_dtype code, float value) {
  float clipped;
  switch (code) {
    case MGL_DTYPE_E4M3: return mgl_f32_to_e4m3(value);
    case MGL_DTYPE_I8:
      clipped = rintf(value);
      return (uint8_t)(int8_t)(clipped < -128 ? -128 : clipped > 127 ? 127 : clipped);
    case MGL_DTYPE_I4:
      clipped = rintf(value);
      return (uint8_t)((clipped < -8 ? -8 : clipped > 7 ? 7 : clipped) + 8);
    default: return nearest_e2m1(value);
  }
}

// Rounds a group by a scale.
static void round_group(mgl_dtype code, const float *values, uint32_t count, float scale,
                        uint8_t *codes) {
  if (code == MGL_DTYPE_E4M3 && scale > 0) {  // as below, without a call a value
    for (uint32_t i = 0; i < count; i++) {
      codes[i] = mgl_e4m3_nearest(values[i] / scale);
    }
    return;
  }
  for (uint32_t i = 0; i < count; i++) {
    codes[i] = scale > 0 ? nearest(code, values[i] / scale) : nearest(code, 0);
  }
}

// The squared error of a group that is rounded by a scale.
static double group_error(mgl_dtype code, const float *values, uint32_t count, float scale,
                          uint8_t *codes) {
  double error = 0;
  round_group(code, values, count, scale, codes);
  for (uint32_t i = 0; i < count; i++) {
    double difference = (double)values[i] - (double)scale * mgl_code_value(code, codes[i]);
    error += difference * difference;
  }
  return error;
}

static float in_bf16(float value) {
  return mgl_bf16_to_f32(mgl_f32_to_bf16(value));
}

// A group of I4 with a zero point: its least and its largest value, or 0, are codes 0 and 15.
static void round_with_zero(mgl_row_quantiser *q, uint32_t g, const float *values, uint32_t count) {
  float least = 0, largest = 0;
  for (uint32_t i = 0; i < count; i++) {
    least = fminf(least, values[i]);
    largest = fmaxf(largest, values[i]);
  }
  const float scale = in_bf16((largest - least) / 15);
  const float zero = scale > 0 ? rintf(-least / scale) - 8 : 0;
  for (uint32_t i = 0; i < count; i++) {
    const float value = scale > 0 ? values[i] / scale + zero : 0;
    q->codes[g * q->form.group + i] = nearest(MGL_DTYPE_I4, value);
  }
  q->scales[g] = scale;
  q->offsets[g] = scale * zero;
}

void mgl_row_quantise(mgl_row_quantiser *q, mgl_quantise_rule rule) {
  const mgl_dtype code = q->form.dtype;
  for (uint32_t g = 0; g < q->groups; g++) {
    uint32_t begin = g * q->form.group;
    uint32_t count = q->k - begin < q->form.group ? q->k - begin : q->form.group;
    const float *values = q->values + begin;
    if (q->form.offsets && code == MGL_DTYPE_I4) {
      round_with_zero(q, g, values, count);
      continue;
    }
    float largest = 0;
    for (uint32_t i = 0; i < count; i++) {
      largest = fmaxf(largest, fabsf(values[i]));
    }
    float range = in_bf16(largest / largest_code(code)), best = range;
    uint8_t *codes = q->codes + begin;
    double least = DBL_MAX;
    for (int i = 0; rule == MGL_QUANTISE_ERROR && i < CANDIDATES; i++) {
      float scale = i == 0 ? range : in_bf16(range * (1 - CANDIDATE_STEP * (float)i));
      double error = group_error(code, values, count, scale, codes);
      if (error < least) {
        least = error;
        best = scale;
      }
    }
    q->scales[g] = best;
    round_group(code, values, count, best, codes);
  }
}
