#include "device/cuda/cuda_plain_norms.h"

#include "base/alloc.h"

static uint32_t maker_of(const mgl_graph *program, uint32_t tensor, uint32_t before) {
  for (uint32_t i = before; i > 0; i--) {
    if (program->ops[i - 1].output == tensor) {
      return i - 1;
    }
  }
  return MGL_CUDA_NO_NORM;
}

// The tensor whose storage a tensor has, seen from op number `before`.
static uint32_t root_of(const mgl_graph *program, uint32_t tensor, uint32_t before) {
  uint32_t maker = maker_of(program, tensor, before);
  while (maker != MGL_CUDA_NO_NORM && mgl_op_info_of(program->ops[maker].kind)->in_place) {
    tensor = program->ops[maker].inputs[0];
    maker = maker_of(program, tensor, maker);
  }
  return tensor;
}

// An RMS norm has one weight; a layer norm has two.
static bool is_rms_norm(const mgl_op *op) {
  return mgl_op_info_of(op->kind)->unit == MGL_UNIT_VECTOR &&
         mgl_op_inputs(op, MGL_ROLE_NORM).count == 1;
}

// A linear, also of experts.
static bool multiplies(const mgl_op *op) {
  return mgl_op_input(op, MGL_ROLE_MATRIX) != MGL_NO_TENSOR ||
         mgl_op_input(op, MGL_ROLE_EXPERTS) != MGL_NO_TENSOR;
}

// Whether the norm is one of whole rows of f32, and its input is the same when the linear runs.
static bool can_read_through(const mgl_graph *program, uint32_t norm, uint32_t linear) {
  const mgl_op *op = &program->ops[norm];
  const mgl_tensor *x = &program->tensors[op->inputs[0]];
  if (!is_rms_norm(op) || x->dtype != MGL_DTYPE_F32 || x->placement != MGL_PLACE_ACTIVATION ||
      x->rank != 2 || x->dims[1].number != program->tensors[op->inputs[1]].dims[0].number) {
    return false;
  }
  const uint32_t root = root_of(program, op->inputs[0], norm);
  for (uint32_t i = norm + 1; i < linear; i++) {
    const mgl_op *between = &program->ops[i];
    if (between->custom != NULL || (mgl_op_info_of(between->kind)->in_place &&
                                    root_of(program, between->output, i + 1) == root)) {
      return false;
    }
  }
  return true;
}

mgl_status mgl_cuda_plain_find_norms(const mgl_graph *program, uint32_t **out, mgl_error *err) {
  const uint32_t count = (uint32_t)program->op_count;
  uint32_t *norms = mgl_alloc_zeroed(2 * program->op_count, sizeof *norms);
  MGL_TRY(mgl_alloc_check(norms, err, "a program of %u ops", count));
  uint32_t *steps = norms + count;
  for (uint32_t i = 0; i < count; i++) {
    const mgl_op *op = &program->ops[i];
    norms[i] = MGL_CUDA_NO_NORM;
    steps[i] = i;
    uint32_t norm = multiplies(op) ? maker_of(program, mgl_op_input(op, MGL_ROLE_X), i)
                                   : (uint32_t)MGL_CUDA_NO_NORM;
    if (norm == MGL_CUDA_NO_NORM || !can_read_through(program, norm, i)) {
      continue;
    }
    norms[i] = norm;
    for (uint32_t j = norm + 1; j <= i; j++) {
      steps[j] = steps[norm];
    }
  }
  *out = norms;
  return MGL_OK;
}

uint32_t mgl_cuda_plain_share_sums(const mgl_graph *program) {
  uint32_t sums = 1;
  for (size_t i = 0; i < program->tensor_count; i++) {
    const uint32_t group = program->tensors[i].group;
    const uint32_t own = group == 32 ? 4 : group == 64 ? 2 : 1;
    sums = own > sums ? own : sums;
  }
  return sums;
}
