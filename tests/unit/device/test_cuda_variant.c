// Which body computes what on a GPU: what twin/variant.def chooses, for shapes on both sides of
// every condition. The expected names are those of the chain of conditions that stood in the
// controller before there was a table.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda/cuda_variant.h"

// A linear of `k` for graphs of `tokens` tokens.
static mgl_cuda_op linear(uint32_t tokens, uint32_t k, bool normed, mgl_packing packing) {
  bool codes = packing != MGL_PACKING_BF16;
  mgl_cuda_op op = {
      .kind = normed ? MGL_OP_GATE_UP : MGL_OP_LINEAR_ADD,
      .flags = mgl_packing_flags(packing, 5) | (normed ? (uint32_t)MGL_CUDA_X_NORMED : 0),
      .tokens = tokens,
      .k = k,
      .row_tiles = tokens <= 8             ? 1
                   : tokens <= 16 || codes ? 2
                                           : 4,
      .passes = tokens <= (codes ? 16 : 32) ? 1 : 2};
  return op;
}

static void the_megakernel_has_a_body_for_every_shape(void **state) {
  (void)state;
  static const struct {
    uint32_t tokens, k;
    bool normed;
    uint32_t capability;
    mgl_packing packing;
    const char *name;
  } cases[] = {
      {1, 4096, true, 90, MGL_PACKING_BF16, "linear_one_normed"},
      {1, 5120, true, 90, MGL_PACKING_BF16, "linear_rows_1_normed"},
      {1, 12288, false, 90, MGL_PACKING_BF16, "linear_one"},
      {1, 13312, false, 90, MGL_PACKING_BF16, "linear_rows_1"},
      {1, 13312, false, 80, MGL_PACKING_BF16, "linear_whole"},
      {1, 1536, false, 90, MGL_PACKING_BF16, "linear_whole"},
      {1, 1600, true, 90, MGL_PACKING_BF16, "linear_one_normed"},
      {1, 2880, true, 80, MGL_PACKING_BF16, "linear_one_normed"},
      {2, 2880, true, 90, MGL_PACKING_BF16, "linear_1"},
      {1, 1160, true, 90, MGL_PACKING_BF16, "linear_1"},
      {1, 4992, true, 90, MGL_PACKING_BF16, "linear_1"},
      {2, 2048, true, 90, MGL_PACKING_BF16, "linear_rows_1_normed"},
      {8, 2048, false, 90, MGL_PACKING_BF16, "linear_rows_1"},
      {8, 2048, false, 86, MGL_PACKING_BF16, "linear_whole"},
      {16, 2048, false, 90, MGL_PACKING_BF16, "linear_rows_2"},
      {16, 2048, true, 100, MGL_PACKING_BF16, "linear_rows_2_normed"},
      {16, 2048, true, 80, MGL_PACKING_BF16, "linear_2"},
      {16, 1536, true, 90, MGL_PACKING_BF16, "linear_2"},
      {32, 2048, true, 90, MGL_PACKING_BF16, "linear_4"},
      {64, 2048, false, 90, MGL_PACKING_BF16, "linear_4"},
      {1, 4096, true, 90, MGL_PACKING_I4, "i4 one_normed"},
      {1, 12288, false, 80, MGL_PACKING_I8, "i8 one"},
      {1, 5120, true, 90, MGL_PACKING_E4M3, "e4m3 rows_1_normed"},
      {8, 1536, false, 90, MGL_PACKING_I4, "i4 rows_1"},
      {16, 1536, true, 90, MGL_PACKING_I8, "i8 rows_2_normed"},
      {64, 2048, false, 90, MGL_PACKING_E4M3, "e4m3 rows_2"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char name[MGL_TASK_FUNCTION_NAME_BYTES];
    mgl_cuda_op op = linear(cases[i].tokens, cases[i].k, cases[i].normed, cases[i].packing);
    mgl_task_function_name(mgl_task_function_of(&op, cases[i].capability, true), name);
    assert_string_equal(name, cases[i].name);
  }
}

// Experts have theirs, whatever the number of tokens.
static void experts_have_bodies(void **state) {
  (void)state;
  static const struct {
    uint32_t tokens;
    bool normed;
    mgl_packing packing;
    const char *name;
  } cases[] = {{1, true, MGL_PACKING_BF16, "experts_up"},
               {8, true, MGL_PACKING_BF16, "experts_up"},
               {16, false, MGL_PACKING_BF16, "experts_down_rows"},
               {1, true, MGL_PACKING_E4M3, "e4m3 experts_up"},
               {8, false, MGL_PACKING_E4M3, "e4m3 experts_down"},
               {16, true, MGL_PACKING_I4, "i4 experts_up_rows"},
               {64, false, MGL_PACKING_Z4, "z4 experts_down_rows"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char name[MGL_TASK_FUNCTION_NAME_BYTES];
    mgl_cuda_op op = linear(cases[i].tokens, 2048, cases[i].normed, cases[i].packing);
    op.flags |= MGL_CUDA_EXPERTS;
    mgl_task_function_name(mgl_task_function_of(&op, 90, true), name);
    assert_string_equal(name, cases[i].name);
  }
}

// Attention has a warp for each item where tasks have several short ones that decode.
static void attention_has_a_body_for_every_plan(void **state) {
  (void)state;
  static const struct {
    mgl_plan_kind kind;
    bool apart;
    uint32_t items, units;
    mgl_task_function function;
  } cases[] = {
      {MGL_PLAN_ANY, true, 144, 1, MGL_CALL_ATTEND},
      {MGL_PLAN_DECODES, true, 144, 1, MGL_CALL_ATTEND_DECODE},
      {MGL_PLAN_SHORT, true, 16, 1, MGL_CALL_ATTEND_DECODE},
      {MGL_PLAN_SHORT, true, 17, 1, MGL_CALL_ATTEND_WARPS},
      {MGL_PLAN_SHORT, false, 17, 1, MGL_CALL_ATTEND_DECODE},
      {MGL_PLAN_SHORT, true, 1024, 1, MGL_CALL_ATTEND_WARPS},
      {MGL_PLAN_SHORT, true, 512, 2, MGL_CALL_ATTEND_WARPS},
      {MGL_PLAN_SHORT, true, 513, 2, MGL_CALL_ATTEND_DECODE},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_cuda_op op = {.kind = MGL_OP_ATTEND,
                      .passes = cases[i].units,
                      .flags = cases[i].apart ? (uint32_t)MGL_CUDA_UNITS_APART : 0};
    assert_int_equal(mgl_attend_function(&op, cases[i].kind, cases[i].items, 16),
                     cases[i].function);
  }
}

// What the table says for people fits the body that it chooses.
static void choices_have_reasons(void **state) {
  (void)state;
  static const struct {
    uint32_t tokens, k;
    uint32_t capability;
    mgl_packing packing;
    const char *name, *why;
  } cases[] = {
      {1, 4096, 90, MGL_PACKING_BF16, "linear_one_normed", "one token, whole pairs of pages"},
      {16, 2048, 90, MGL_PACKING_BF16, "linear_rows_2_normed",
       "up to 16 tokens, whole pairs of pages, from sm_90 on"},
      {8, 1536, 80, MGL_PACKING_BF16, "linear_whole", "up to 8 tokens, whole pages"},
      {64, 2048, 80, MGL_PACKING_BF16, "linear_4", "of any shape"},
      {1, 4096, 90, MGL_PACKING_I4, "i4 one_normed", "codes, one token, whole pairs of pages"},
      {9, 4096, 90, MGL_PACKING_I8, "i8 rows_2_normed", "codes, of any shape"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char name[MGL_TASK_FUNCTION_NAME_BYTES];
    mgl_cuda_op op = linear(cases[i].tokens, cases[i].k, true, cases[i].packing);
    mgl_task_function_name(mgl_task_function_of(&op, cases[i].capability, true), name);
    assert_string_equal(name, cases[i].name);
    assert_string_equal(mgl_task_function_why(&op, cases[i].capability), cases[i].why);
  }
  mgl_cuda_op attend = {.kind = MGL_OP_ATTEND, .tokens = 1};
  assert_string_equal(mgl_task_function_why(&attend, 90), "its only one");
  for (int kernel = 0; kernel < MGL_FULL_KERNELS; kernel++) {
    assert_true(mgl_full_kernel_why((mgl_full_kernel)kernel)[0] != 0);
  }
  assert_string_equal(mgl_full_kernel_why(MGL_FULL_LINEAR_8_ANY), "up to 8 tokens");
  assert_string_equal(mgl_full_kernel_why(MGL_FULL_KERNELS), "it is computed beside another op");
}

// No body stands in the table twice: of equal implementations a second one would be a second copy
// in the device code. (Mode full's two for decode attention differ in what registers they are given.)
static void equal_bodies_are_stored_once(void **state) {
  (void)state;
#define MGL_STRING(...) #__VA_ARGS__
  static const char *const mega[] = {
#define MGL_TASK(ENUM, name, KIND, order, ...) MGL_STRING(__VA_ARGS__),
#define MGL_TASK_ATTEND(ENUM, name, order, ...) MGL_STRING(__VA_ARGS__),
#define MGL_TASK_LINEAR(ENUM, name, order, from, ...) MGL_STRING(__VA_ARGS__),
#define MGL_TASK_CODED(ENUM, name, ...) MGL_STRING(__VA_ARGS__),
#include "twin/variant.def"
  };
  static const char *const full[] = {
#define MGL_KERNEL_ATTEND(ENUM, name, threads, blocks, condition, why, ...) \
  MGL_STRING(blocks) " " MGL_STRING(__VA_ARGS__),
#define MGL_KERNEL_LINEAR(ENUM, name, blocks, scratch, condition, why, ...) \
  MGL_STRING(blocks) " " MGL_STRING(__VA_ARGS__),
#include "twin/variant.def"
  };
  for (size_t i = 0; i < sizeof mega / sizeof *mega; i++) {
    for (size_t j = 0; j < i; j++) {
      assert_string_not_equal(mega[i], mega[j]);
    }
  }
  for (size_t i = 0; i < sizeof full / sizeof *full; i++) {
    for (size_t j = 0; j < i; j++) {
      assert_string_not_equal(full[i], full[j]);
    }
  }
  assert_true(sizeof mega / sizeof *mega > 20 && sizeof full / sizeof *full > 10);
}

static void mode_full_has_a_kernel_for_every_shape(void **state) {
  (void)state;
  static const struct {
    uint32_t tokens, k;
    bool normed;
    uint32_t pages;
    const char *name;
  } cases[] = {
      {1, 4096, true, 1, "mgl_op_linear_1_normed"},
      {1, 5120, true, 6, "mgl_op_linear_8_shared_normed"},
      {1, 5120, true, 7, "mgl_op_linear_8_normed"},
      {1, 12288, false, 99, "mgl_op_linear_1"},
      {4, 2048, false, 6, "mgl_op_linear_8_shared"},
      {8, 2048, false, 4, "mgl_op_linear_8_shared"},
      {8, 2048, false, 5, "mgl_op_linear_8"},
      {8, 2000, false, 1, "mgl_op_linear_8_any"},
      {16, 2048, true, 1, "mgl_op_linear_16_normed"},
      {16, 2048, false, 1, "mgl_op_linear_16"},
      {16, 2000, true, 1, "mgl_op_linear_16_any"},
      {32, 2048, true, 1, "mgl_op_linear_32_any"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_cuda_op op = linear(cases[i].tokens, cases[i].k, cases[i].normed, MGL_PACKING_BF16);
    mgl_full_kernel kernel = mgl_full_kernel_of(&op, (mgl_full_case){.pages = cases[i].pages});
    assert_string_equal(mgl_full_info_of(kernel)->name, cases[i].name);
  }
}

static void attention_has_a_kernel_for_every_plan(void **state) {
  (void)state;
  static const struct {
    uint32_t tokens;
    mgl_full_case of;
    const char *name;
  } cases[] = {{1, {0}, "mgl_op_attend"},
               {1, {.long_context = true}, "mgl_op_attend_long"},
               {2, {.calm = true}, "mgl_op_attend_long"},
               {2, {0}, "mgl_op_attend_any"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_cuda_op op = {.kind = MGL_OP_ATTEND, .tokens = cases[i].tokens};
    mgl_full_kernel kernel = mgl_full_kernel_of(&op, cases[i].of);
    assert_string_equal(mgl_full_info_of(kernel)->name, cases[i].name);
    assert_int_equal(mgl_full_info_of(kernel)->threads, MGL_OP_OTHER_THREADS);
  }
  mgl_cuda_op angles = {.kind = MGL_OP_ROPE_ANGLES, .tokens = 1};
  assert_int_equal(mgl_full_kernel_of(&angles, (mgl_full_case){0}), MGL_FULL_KERNELS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_megakernel_has_a_body_for_every_shape),
      cmocka_unit_test(experts_have_bodies),
      cmocka_unit_test(attention_has_a_body_for_every_plan),
      cmocka_unit_test(choices_have_reasons),
      cmocka_unit_test(equal_bodies_are_stored_once),
      cmocka_unit_test(mode_full_has_a_kernel_for_every_shape),
      cmocka_unit_test(attention_has_a_kernel_for_every_plan),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
