// Variants of the CPU's kernels: the one that was asked for is taken, all others stay, and what there
// is not is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/cpu_variant.h"

static mgl_status set(mgl_cpu_variants *v, const char *text, mgl_error *err) {
  return mgl_cpu_variants_set(v, text, strlen(text), err);
}

static void what_is_asked_for_is_taken(void **state) {
  (void)state;
  const mgl_simd usual = mgl_simd_detected();
  const mgl_cpu_kernels *own = mgl_cpu_kernels_for(usual);
  const mgl_cpu_kernels *scalar = mgl_cpu_kernels_for(MGL_SIMD_SCALAR);
  mgl_cpu_variants v = {0};
  mgl_error err = {0};
  mgl_cpu_kernels table = mgl_cpu_variants_apply(&v, usual);
  assert_memory_equal(&table, own, sizeof table);
  assert_int_equal(set(&v, "attention=scalar", &err), MGL_OK);
  table = mgl_cpu_variants_apply(&v, usual);
  assert_true(table.attention == scalar->attention);
  assert_true(table.rmsnorm == own->rmsnorm && table.kv_write == own->kv_write);
  assert_true(table.linear == own->linear && table.pack == own->pack);
  for (uint32_t i = 0; i < MGL_CPU_VARIANT_COUNT; i++) {
    v.asked[i] = MGL_SIMD_SCALAR + 1;
    assert_int_equal(mgl_cpu_variant_find(mgl_cpu_variant_name(i)), i);
  }
  table = mgl_cpu_variants_apply(&v, usual);
  assert_true(table.embed == scalar->embed && table.rmsnorm == scalar->rmsnorm &&
              table.layernorm == scalar->layernorm && table.rope == scalar->rope &&
              table.rope_angles == scalar->rope_angles && table.kv_write == scalar->kv_write &&
              table.silu_mul == scalar->silu_mul && table.gelu == scalar->gelu &&
              table.add == scalar->add);
  assert_true(table.linear == own->linear && table.pack == own->pack &&
              table.largest == own->largest);
}

// Kernels that no instruction makes faster are stored once. Of these nothing can be chosen.
static void equal_kernels_are_stored_once(void **state) {
  (void)state;
  const mgl_simd top = mgl_simd_detected();
  uint32_t shared = 0;
  if (top == MGL_SIMD_SCALAR) {
    print_message("skipped: this processor has one level\n");
    skip();
  }
  for (uint32_t op = 0; op < MGL_CPU_VARIANT_COUNT; op++) {
    char text[64];
    mgl_cpu_variants v = {0};
    mgl_error err = {0};
    bool all = true;
    (void)snprintf(text, sizeof text, "%s=scalar", mgl_cpu_variant_name(op));
    for (int level = 0; level <= (int)top; level++) {
      mgl_simd owner = mgl_cpu_variant_owner(op, (mgl_simd)level);
      assert_true((int)owner <= level);
      assert_int_equal(mgl_cpu_variant_owner(op, owner), owner);
      all = all && owner == MGL_SIMD_SCALAR;
    }
    mgl_status status = set(&v, text, &err);
    if (status != (all ? MGL_ERR_ARGUMENT : MGL_OK) ||
        (all && strstr(err.text, "only kernel all levels of this processor share") == NULL)) {
      fail_msg("%s: \"%s\"", text, err.text);
    }
    shared += all;
  }
  const mgl_cpu_kernels *scalar = mgl_cpu_kernels_for(MGL_SIMD_SCALAR);
  const mgl_cpu_kernels *own = mgl_cpu_kernels_for(top);
  assert_true(own->rope_angles == scalar->rope_angles);
  assert_true(own->attention != scalar->attention && own->rmsnorm != scalar->rmsnorm);
  assert_true(shared >= 1 && shared < MGL_CPU_VARIANT_COUNT / 2);
}

static void what_there_is_not_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"attention", "expected OP=NAME, such as attention=scalar, found \"attention\""},
      {"linear=scalar",
       "expected an op of embed, rmsnorm, layernorm, rope_angles, rope, kv_write, "
       "attention, silu_mul, gelu, add, found \"linear\""},
      {"=scalar", "found \"\"; MEGALITH_SIMD"},
      {"add=", "add: expected a kernel that this processor runs, of scalar"},
      {"add=fastest", "found \"fastest\""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_cpu_variants v = {0};
    mgl_error err = {0};
    assert_int_equal(set(&v, cases[i].text, &err), MGL_ERR_ARGUMENT);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("%s: expected \"%s\", found \"%s\"", cases[i].text, cases[i].message, err.text);
    }
    assert_memory_equal(&v, &(mgl_cpu_variants){0}, sizeof v);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_asked_for_is_taken),
      cmocka_unit_test(equal_kernels_are_stored_once),
      cmocka_unit_test(what_there_is_not_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
