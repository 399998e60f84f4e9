// Names of devices, and the environment's choice.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/device_choice.h"

static void names(void **state) {
  static const struct {
    const char *text;
    mgl_device_kind kind;
    uint32_t ordinal;
  } good[] = {{"auto", MGL_DEVICE_AUTO, 0},
              {"cpu", MGL_DEVICE_CPU, 0},
              {"cuda", MGL_DEVICE_CUDA, 0},
              {"cuda:0", MGL_DEVICE_CUDA, 0},
              {"cuda:9999", MGL_DEVICE_CUDA, 9999}};
  static const char *const bad[] = {"",        "gpu",        "cuda:", "cuda:x",
                                    "cuda:-1", "cuda:99999", "cpu ",  "CPU"};
  mgl_device_choice out;
  mgl_error err = {0};
  (void)state;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    assert_int_equal(mgl_device_parse("here", good[i].text, &out, &err), MGL_OK);
    assert_int_equal(out.kind, good[i].kind);
    assert_int_equal(out.ordinal, good[i].ordinal);
    assert_true(out.named);
    assert_true(mgl_device_auto_tries(&out) == (out.kind == MGL_DEVICE_AUTO));
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(mgl_device_parse("here", bad[i], &out, &err), MGL_ERR_ARGUMENT);
    assert_memory_equal(err.text, "here: expected auto, cpu, cuda or cuda:N, found \"", 20);
  }
}

static void environment(void **state) {
  mgl_device_choice out;
  mgl_error err = {0};
  (void)state;
  (void)setenv("MEGALITH_DEVICE", "cuda:3", 1);
  assert_int_equal(mgl_device_usual(&out, &err), MGL_OK);
  assert_int_equal(out.kind, MGL_DEVICE_CUDA);
  assert_int_equal(out.ordinal, 3);
  (void)setenv("MEGALITH_DEVICE", "tpu", 1);
  assert_int_equal(mgl_device_usual(&out, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "MEGALITH_DEVICE: "));
  (void)setenv("MEGALITH_DEVICE", "", 1);
  assert_int_equal(mgl_device_usual(&out, &err), MGL_OK);
  assert_int_equal(out.kind, MGL_DEVICE_AUTO);
  assert_true(mgl_device_auto_tries(&out) == mgl_device_exists());
}

static void falling_back(void **state) {
  (void)state;
  assert_true(mgl_device_may_fall_back(MGL_ERR_MEMORY));
  assert_true(mgl_device_may_fall_back(MGL_ERR_UNSUPPORTED));
  assert_false(mgl_device_may_fall_back(MGL_ERR_FORMAT));
  assert_false(mgl_device_may_fall_back(MGL_ERR_ARGUMENT));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names),
      cmocka_unit_test(environment),
      cmocka_unit_test(falling_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
