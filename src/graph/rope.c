#include "graph/rope.h"

#include <math.h>

// The frequency of wavelengths below original / high, that over factor above original / low, and
// between them a mixture.
static float llama3_frequency(const mgl_rope *rope, float freq) {
  const float factor = (float)rope->factor;
  const float low = (float)rope->low_freq_factor;
  const float high = (float)rope->high_freq_factor;
  const float original = (float)rope->original_context;
  float wavelength = 2.0f * 3.14159265358979323846f / freq;
  if (wavelength > original / low) {
    return freq / factor;
  }
  if (wavelength >= original / high) {
    float smooth = (original / wavelength - low) / (high - low);
    return (1.0f - smooth) * (freq / factor) + smooth * freq;
  }
  return freq;
}

// The dim that turns so often over the original context.
static double yarn_dim(const mgl_rope *rope, double turns, double dims) {
  const double pi = 3.14159265358979323846;
  return dims * log(rope->original_context / (turns * 2 * pi)) / (2 * log(rope->theta));
}

// Where yarn's ramp begins and ends, in pairs.
static void find_yarn_ramp(const mgl_rope *rope, double dims, double *low, double *high) {
  *low = yarn_dim(rope, rope->beta_fast, dims);
  *high = yarn_dim(rope, rope->beta_slow, dims);
  if (rope->truncate) {
    *low = floor(*low);
    *high = ceil(*high);
  }
  *low = fmax(*low, 0);
  *high = fmin(*high, dims - 1);
  *high += *low == *high ? 0.001 : 0;
}

static void compute_yarn(const mgl_rope *rope, uint32_t half, float *out) {
  double low = 0;
  double high = 0;
  find_yarn_ramp(rope, 2.0 * half, &low, &high);
  for (uint32_t i = 0; i < half; i++) {
    float base = powf((float)rope->theta, (float)(2 * i) / (float)(2 * half));
    float ramp = ((float)i - (float)low) / (float)(high - low);
    float kept = 1.0f - (ramp < 0 ? 0.0f : ramp > 1 ? 1.0f : ramp);
    out[i] = 1.0f / ((float)rope->factor * base) * (1.0f - kept) + 1.0f / base * kept;
  }
}

static void compute_longrope(const mgl_rope *rope, uint32_t half, float *out) {
  for (uint32_t i = 0; i < half; i++) {
    float base = powf((float)rope->theta, (float)(2 * i) / (float)(2 * half));
    out[i] = 1.0f / (rope->short_factors[i] * base);
    out[half + i] = 1.0f / (rope->long_factors[i] * base);
  }
}

void mgl_rope_compute(const mgl_config *config, mgl_rope_frequencies *out) {
  const mgl_rope *rope = &config->rope;
  const uint32_t half = (config->rotary_dim != 0 ? config->rotary_dim : config->head_dim) / 2;
  *out = (mgl_rope_frequencies){.half = half, .value_count = half, .amplitude = 1};
  for (uint32_t i = 0; i < half; i++) {
    float freq = mgl_rope_frequency((float)rope->theta, i, half);
    freq = rope->kind == MGL_ROPE_LINEAR ? freq / (float)rope->factor : freq;
    out->values[i] = rope->kind == MGL_ROPE_LLAMA3 ? llama3_frequency(rope, freq) : freq;
  }
  if (rope->kind == MGL_ROPE_YARN) {
    compute_yarn(rope, half, out->values);
  } else if (rope->kind == MGL_ROPE_LONGROPE) {
    compute_longrope(rope, half, out->values);
    out->value_count = 2 * half;
    out->original = rope->original_context;
  } else if (rope->kind == MGL_ROPE_DYNAMIC) {
    out->original = rope->original_context;
    out->theta = rope->theta;
    out->factor = rope->factor;
  }
  out->amplitude = rope->attention_factor != 0 ? rope->attention_factor : 1;
}
