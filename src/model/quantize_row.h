// Rounding rows of numbers to codes and scales (base/form.h).
#ifndef MGL_MODEL_QUANTIZE_ROW_H
#define MGL_MODEL_QUANTIZE_ROW_H

#include <stdint.h>

#include "base/form.h"
#include "base/status.h"

// How a group's scale is chosen.
typedef enum mgl_quantise_rule {
  MGL_QUANTISE_RANGE,  // so that the largest magnitude has the largest code
  MGL_QUANTISE_ERROR,  // of some scales up to that one, the one with the least squared error
} mgl_quantise_rule;

// Room for a row and what it becomes.
typedef struct mgl_row_quantiser {
  mgl_form form;
  uint32_t k, groups;
  float *values;  // [k], the caller's
  uint8_t *codes;
  float *scales, *offsets;  // [groups]; offsets are 0, but of i4 zero points times scales
} mgl_row_quantiser;

mgl_status mgl_row_quantiser_create(mgl_form form, uint32_t k, mgl_row_quantiser *out,
                                    mgl_error *err);
void mgl_row_quantiser_destroy(mgl_row_quantiser *quantiser);

// Rounds values to codes, each to the nearest. Scales are exact in bf16. Values must be finite.
void mgl_row_quantise(mgl_row_quantiser *quantiser, mgl_quantise_rule rule);

#endif
