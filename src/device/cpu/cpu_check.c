#include "device/cpu/cpu_check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"

static bool is_finite(const void *values, mgl_dtype dtype, uint64_t at, float *out) {
  const unsigned char *bytes = values;
  uint16_t bits = 0;
  if (dtype == MGL_DTYPE_F32) {
    memcpy(out, bytes + at * sizeof *out, sizeof *out);
  } else {
    memcpy(&bits, bytes + at * sizeof bits, sizeof bits);
    *out = dtype == MGL_DTYPE_BF16 ? mgl_bf16_to_f32(bits) : mgl_f16_to_f32(bits);
  }
  return isfinite(*out);
}

mgl_status mgl_check_numbers(const mgl_graph *program, const mgl_op *op, const void *values,
                             uint64_t count, mgl_error *err) {
  const mgl_tensor *out = &program->tensors[op->output];
  float value = 0;
  if (out->dtype != MGL_DTYPE_F32 && out->dtype != MGL_DTYPE_BF16 && out->dtype != MGL_DTYPE_F16) {
    return MGL_OK;
  }
  for (uint64_t i = 0; i < count; i++) {
    if (!is_finite(values, out->dtype, i, &value)) {
      uint64_t width = mgl_tensor_row_elements(out);
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "check-numbers: op %s computed %s in \"%s\", row %" PRIu64
                           ", element %" PRIu64 "; the activations that it read were finite",
                           mgl_op_name(op), isnan(value) ? "a NaN" : "an infinity", out->name,
                           i / width, i % width);
    }
  }
  return MGL_OK;
}

mgl_status mgl_cpu_check_op(const mgl_cpu_program *program, size_t op_idx, mgl_error *err) {
  const mgl_op *op = &program->graph->ops[op_idx];
  if (program->graph->tensors[op->output].placement != MGL_PLACE_ACTIVATION) {
    return MGL_OK;
  }
  return mgl_check_numbers(program->graph, op, mgl_cpu_program_tensor(program, op->output),
                           mgl_cpu_program_elements(program, op->output), err);
}
