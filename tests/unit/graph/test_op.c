// What op.def's rows promise each other, and the questions that graph/op.h answers from them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "graph/graph.h"

static mgl_op op_of(mgl_op_kind kind) {
  const mgl_op_info *info = mgl_op_info_of(kind);
  mgl_op op = {.kind = kind, .input_count = info->input_count + info->optional_count};
  for (uint32_t i = 0; i < op.input_count; i++) {
    op.inputs[i] = 100 + i;
  }
  return op;
}

static void rows_are_whole(void **state) {
  (void)state;
  for (int kind = 0; kind < MGL_OP_COUNT; kind++) {
    mgl_op op = op_of((mgl_op_kind)kind);
    const mgl_op_info *info = mgl_op_info_of(op.kind);
    assert_in_range(info->input_count, 1, MGL_OP_MAX_INPUTS);
    assert_true(op.input_count <= MGL_OP_MAX_INPUTS);
    assert_true(info->cpu_grain >= 1 && info->cuda_grain >= 1);
    uint32_t updated = 0;
    for (uint32_t i = 0; i < MGL_OP_MAX_INPUTS; i++) {
      assert_true((info->roles[i] != MGL_ROLE_NONE) == (i < op.input_count));
      if (i >= op.input_count) {
        continue;
      }
      mgl_op_range range = mgl_op_inputs(&op, mgl_op_role(&op, i));
      assert_true(range.first <= i && i < range.first + range.count);  // neighbours
      updated += mgl_op_updates(&op, i);
      // The storage that is taken over is that of input 0: the runtimes know no other.
      assert_true(!mgl_op_updates(&op, i) || i == 0 || info->updates == MGL_ROLE_KV);
    }
    assert_int_equal(updated, info->updates == MGL_ROLE_NONE ? 0 : 1);
    assert_int_equal(info->in_place, updated == 1 && info->updates != MGL_ROLE_KV);
  }
}

// What tiles and linears take for granted of an op's inputs.
static void units_have_their_roles(void **state) {
  (void)state;
  for (int kind = 0; kind < MGL_OP_COUNT; kind++) {
    mgl_op op = op_of((mgl_op_kind)kind);
    mgl_unit unit = mgl_op_info_of(op.kind)->unit;
    mgl_op_range matrices = mgl_op_inputs(&op, MGL_ROLE_MATRIX);
    mgl_op_range biases = mgl_op_inputs(&op, MGL_ROLE_BIAS);
    // Of experts, logits say which of them a column of the result is made by.
    bool multiplies = matrices.count > 0 || mgl_op_input(&op, MGL_ROLE_ROUTER) != MGL_NO_TENSOR;
    assert_int_equal(multiplies, unit == MGL_UNIT_COLUMN);
    assert_int_equal(multiplies, mgl_op_is_linear(&op));
    assert_int_equal(mgl_op_input(&op, MGL_ROLE_PART) != MGL_NO_TENSOR,
                     mgl_op_kind_is_exchange(op.kind));
    assert_true(biases.count == 0 || biases.count == matrices.count);
    if (unit == MGL_UNIT_COLUMN || unit == MGL_UNIT_ELEMENT || unit == MGL_UNIT_VECTOR) {
      assert_true(mgl_op_input(&op, MGL_ROLE_X) != MGL_NO_TENSOR ||
                  mgl_op_input(&op, MGL_ROLE_PART) != MGL_NO_TENSOR);
    }
    assert_int_equal(unit == MGL_UNIT_EXPERT, mgl_op_input(&op, MGL_ROLE_ROUTES) != MGL_NO_TENSOR);
    assert_int_equal(unit == MGL_UNIT_EXPERT || (multiplies && matrices.count == 0),
                     mgl_op_inputs(&op, MGL_ROLE_EXPERTS).count > 0);
    assert_int_equal(unit == MGL_UNIT_HEAD, mgl_op_input(&op, MGL_ROLE_KV) != MGL_NO_TENSOR);
  }
}

static void inputs_are_found_by_role(void **state) {
  (void)state;
  mgl_op op = op_of(MGL_OP_QKV_PROJ);
  assert_int_equal(mgl_op_input(&op, MGL_ROLE_NORM), 101);
  assert_int_equal(mgl_op_input(&op, MGL_ROLE_MATRIX), 102);
  assert_int_equal(mgl_op_input(&op, MGL_ROLE_BIAS), 105);
  assert_int_equal(mgl_op_inputs(&op, MGL_ROLE_MATRIX).count, 3);
  op.input_count = mgl_op_info_of(op.kind)->input_count;  // without biases
  assert_int_equal(mgl_op_input(&op, MGL_ROLE_BIAS), MGL_NO_TENSOR);
  assert_int_equal(mgl_op_inputs(&op, MGL_ROLE_BIAS).count, 0);
  op = op_of(MGL_OP_LINEAR_ADD);
  assert_int_equal(mgl_op_input(&op, MGL_ROLE_X), 101);
  assert_true(mgl_op_updates(&op, 0) && !mgl_op_updates(&op, 1));
  assert_true(mgl_op_kind_is_linear(MGL_OP_LOGITS) && !mgl_op_kind_is_linear(MGL_OP_ATTEND));
  assert_false(mgl_op_kind_is_linear(MGL_OP_COUNT));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_are_whole),
      cmocka_unit_test(units_have_their_roles),
      cmocka_unit_test(inputs_are_found_by_role),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
