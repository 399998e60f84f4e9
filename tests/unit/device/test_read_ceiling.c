// The read ceiling: several measurements and what may be told of them; one of a small buffer.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/clock.h"
#include "device/cpu/read_ceiling.h"
#include "support/must.h"

static void check_text(const mgl_read_ceiling *ceiling, const char *expected) {
  mgl_text text = {0};
  mgl_read_ceiling_append(ceiling, &text);
  mgl_read_ceiling_append_refusal(ceiling, &text);
  assert_string_equal(text.data, expected);
  mgl_text_free(&text);
}

static void test_one_is_none(void **state) {
  (void)state;
  mgl_read_ceiling c = {0};
  assert_false(mgl_read_ceiling_is_steady(&c));
  mgl_read_ceiling_add(&c, 40e9);
  assert_false(mgl_read_ceiling_is_steady(&c));
  assert_true(mgl_read_ceiling_spread(&c) == 0);
  check_text(&c, "40 GB/s in 1 measurement: no share is told where they are more than 15% apart");
}

static void test_steady(void **state) {
  (void)state;
  mgl_read_ceiling c = {0};
  mgl_read_ceiling_add(&c, 35e9);
  mgl_read_ceiling_add(&c, 40e9);
  mgl_read_ceiling_add(&c, 38e9);
  assert_true(c.count == 3 && c.least == 35e9 && c.most == 40e9);
  assert_true(mgl_read_ceiling_is_steady(&c));  // 12.5%
  check_text(&c, "40 GB/s in 3 measurements, 12% apart");
}

// The border, and the run of defect 7: 0.024 GB/s in one measurement, 22 in the others.
static void test_unsteady(void **state) {
  (void)state;
  mgl_read_ceiling border = {0};
  mgl_read_ceiling_add(&border, 100e9);
  mgl_read_ceiling_add(&border, 85.1e9);
  assert_true(mgl_read_ceiling_is_steady(&border));
  mgl_read_ceiling_add(&border, 84.9e9);
  assert_false(mgl_read_ceiling_is_steady(&border));
  mgl_read_ceiling absurd = {0};
  mgl_read_ceiling_add(&absurd, 0.024e9);
  mgl_read_ceiling_add(&absurd, 22e9);
  check_text(&absurd,
             "0.024 to 22 GB/s in 2 measurements, 100% apart: no share is told where they are more "
             "than 15% apart");
  mgl_read_ceiling nothing = {0};
  mgl_read_ceiling_add(&nothing, 0);
  mgl_read_ceiling_add(&nothing, 0);
  assert_false(mgl_read_ceiling_is_steady(&nothing));
}

// A buffer that a core reads in a microsecond is still read for a while.
static void test_small_buffer(void **state) {
  (void)state;
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  static const unsigned char memory[65536];
  double rate = 0;
  MUST(mgl_topology_create(&topology, &err));
  MUST(mgl_team_create(topology, 1, &team, &err));
  uint64_t start_ns = mgl_clock_ns();
  MUST(mgl_read_ceiling_measure(team, MGL_SIMD_SCALAR, memory, sizeof memory, 1, &rate, &err));
  assert_true(mgl_clock_ns() - start_ns >= MGL_READ_CEILING_LEAST_NS);
  assert_true(rate > 0);
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_is_none),
      cmocka_unit_test(test_steady),
      cmocka_unit_test(test_unsteady),
      cmocka_unit_test(test_small_buffer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
