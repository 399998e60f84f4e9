// Frequencies and factors of every kind against what transformers computes (5.23,
// ROPE_INIT_FUNCTIONS, heads of 64 dims).
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/rope.h"

enum { SAMPLES = 6 };

static const uint32_t sampled[SAMPLES] = {0, 1, 5, 12, 20, 31};

// One unit in the last place of powf, and the roundings after it.
static void assert_sampled(const float *found, const double *expected, const char *name) {
  for (int i = 0; i < SAMPLES; i++) {
    double value = (double)found[sampled[i]];
    if (!(fabs(value - expected[i]) <= 8 * 0x1p-24 * expected[i])) {
      fail_msg("%s: frequency %u: expected %.9g, found %.9g", name, sampled[i], expected[i], value);
    }
  }
}

typedef struct rope_case {
  const char *name;
  mgl_rope rope;
  double expected[SAMPLES];
} rope_case;

static void frequencies_are_those_of_transformers(void **state) {
  (void)state;
  static const rope_case cases[] = {
      {"linear",
       {.kind = MGL_ROPE_LINEAR, .theta = 1e4, .factor = 2.5},
       {0.400000006, 0.299957693, 0.0948549435, 0.0126491114, 0.00126491114, 5.33408602e-05}},
      {"llama3",
       {.kind = MGL_ROPE_LLAMA3,
        .theta = 5e5,
        .factor = 32,
        .low_freq_factor = 1,
        .high_freq_factor = 4,
        .original_context = 8192},
       {1, 0.663601279, 0.128687382, 0.00729266508, 8.57025589e-06, 9.41830649e-08}},
      {"yarn",
       {.kind = MGL_ROPE_YARN,
        .theta = 1e6,
        .factor = 4,
        .beta_fast = 32,
        .beta_slow = 1,
        .truncate = true,
        .original_context = 32768},
       {1, 0.649381638, 0.115478203, 0.00515479548, 4.44569851e-05, 3.84981632e-07}},
      {"yarn with another ramp",
       {.kind = MGL_ROPE_YARN,
        .theta = 1e4,
        .factor = 8,
        .beta_fast = 16,
        .beta_slow = 2,
        .original_context = 512},
       {1, 0.749894202, 0.237137362, 0.00732499827, 0.000395284733, 1.66690188e-05}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const mgl_config config = {.head_dim = 64, .rope = cases[i].rope};
    mgl_rope_frequencies found;
    mgl_rope_compute(&config, &found);
    assert_int_equal(found.half, 32);
    assert_int_equal(found.value_count, 32);
    assert_true(found.original == 0 && found.amplitude == 1);
    assert_sampled(found.values, cases[i].expected, cases[i].name);
  }
}

static void longrope_has_two_sets(void **state) {
  (void)state;
  static const double short_ones[] = {
      1, 0.74246949, 0.225845128, 0.0282346215, 0.00263523124, 0.000101795536};
  static const double long_ones[] = {
      1, 0.499929428, 0.067753531, 0.0045175394, 0.000287479779, 8.08194818e-06};
  mgl_config config = {.head_dim = 80,
                       .rotary_dim = 64,
                       .rope = {.kind = MGL_ROPE_LONGROPE,
                                .theta = 1e4,
                                .original_context = 4096,
                                .attention_factor = 1.25}};
  for (int i = 0; i < 32; i++) {
    config.rope.short_factors[i] = (float)(1 + 0.01 * i);
    config.rope.long_factors[i] = (float)(1 + 0.5 * i);
  }
  mgl_rope_frequencies found;
  mgl_rope_compute(&config, &found);
  assert_int_equal(found.half, 32);
  assert_int_equal(found.value_count, 64);
  assert_true(found.original == 4096 && found.theta == 0 && found.amplitude == 1.25);
  assert_sampled(found.values, short_ones, "short");
  assert_sampled(found.values + 32, long_ones, "long");
  assert_false(mgl_rope_is_long(&config.rope, 4096));
  assert_true(mgl_rope_is_long(&config.rope, 4097));
}

static void the_base_of_dynamic_grows(void **state) {
  (void)state;
  static const struct {
    uint32_t length;
    double expected[SAMPLES];
  } cases[] = {
      {2049, {1, 0.749846995, 0.237062767, 0.0315988995, 0.00315829925, 0.000133092195}},
      {5000, {1, 0.705043435, 0.174212515, 0.015086568, 0.000921122672, 1.97102472e-05}},
  };
  const mgl_config config = {
      .head_dim = 64,
      .rope = {.kind = MGL_ROPE_DYNAMIC, .theta = 1e4, .factor = 4, .original_context = 2048}};
  mgl_rope_frequencies rope;
  mgl_rope_compute(&config, &rope);
  assert_int_equal(rope.value_count, 32);
  assert_true(rope.original == 2048 && rope.theta == 1e4 && rope.factor == 4);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    float found[32];
    float base =
        mgl_rope_grown_base(rope.theta, rope.factor, rope.original, cases[i].length, rope.half);
    for (uint32_t j = 0; j < 32; j++) {
      found[j] = mgl_rope_frequency(base, j, 32);
    }
    assert_sampled(found, cases[i].expected, "dynamic");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(frequencies_are_those_of_transformers),
      cmocka_unit_test(longrope_has_two_sets),
      cmocka_unit_test(the_base_of_dynamic_grows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
