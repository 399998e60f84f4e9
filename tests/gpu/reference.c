// The reference: a tensor program for one token, op by op, sums in double. Rows that enter a
// product are rounded to bf16 where the program says so; that is all it shares with the kernels.
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"

struct reference {
  const mgl_graph *program;
  float **weights;  // [tensor_count] widened
  double **values;  // [tensor_count] of activations
};

static size_t elements_of(const mgl_tensor *tensor) {
  mgl_dim_values one = {1, 1, 1};
  return (size_t)mgl_tensor_elements(tensor, &one);
}

reference *reference_create(const mgl_graph *program, const void *const *weights) {
  reference *r = gpu_must_alloc(1, sizeof *r);
  r->program = program;
  r->weights = gpu_must_alloc(program->tensor_count, sizeof *r->weights);
  r->values = gpu_must_alloc(program->tensor_count, sizeof *r->values);
  for (size_t i = 0; i < program->tensor_count; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    size_t count = elements_of(tensor);
    if (tensor->placement == MGL_PLACE_WEIGHT) {
      r->weights[i] = gpu_must_alloc(count, sizeof(float));
      mgl_widen_f32(tensor->rank == 2 ? tensor->dtype : MGL_DTYPE_F32, weights[i], count,
                    r->weights[i]);
    } else if (tensor->placement == MGL_PLACE_ACTIVATION) {
      r->values[i] = gpu_must_alloc(count, sizeof(double));
    }
  }
  return r;
}

void reference_destroy(reference *r) {
  for (size_t i = 0; i < r->program->tensor_count; i++) {
    mgl_free(r->weights[i]);
    mgl_free(r->values[i]);
  }
  mgl_free(r->weights);
  mgl_free(r->values);
  mgl_free(r);
}

static double round_to(mgl_dtype dtype, double value) {
  return dtype == MGL_DTYPE_BF16 ? (double)mgl_bf16_to_f32(mgl_f32_to_bf16((float)value)) : value;
}

static void run_rmsnorm(const reference *r, const mgl_op *op, size_t count) {
  const double *x = r->values[op->inputs[0]];
  const float *weight = r->weights[op->inputs[1]];
  mgl_dtype dtype = r->program->tensors[op->output].dtype;
  double squares = 0;
  for (size_t i = 0; i < count; i++) {
    squares += x[i] * x[i];
  }
  double scale = 1 / sqrt(squares / (double)count + op->attrs[MGL_ATTR_EPS]);
  for (size_t i = 0; i < count; i++) {
    r->values[op->output][i] = round_to(dtype, x[i] * scale * (double)weight[i]);
  }
}

static void run_linear(const reference *r, const mgl_op *op, size_t count) {
  const double *x = r->values[op->inputs[0]];
  size_t width = r->program->tensors[op->inputs[1]].dims[1].number;
  for (size_t n = 0; n < count; n++) {
    const float *w = r->weights[op->inputs[1]] + n * width;
    double sums[8] = {0};
    for (size_t i = 0; i < width; i += 8) {
      for (size_t j = 0; j < 8; j++) {
        sums[j] += x[i + j] * (double)w[i + j];
      }
    }
    r->values[op->output][n] =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
}

static void run_op(const reference *r, const mgl_op *op, int32_t token) {
  const mgl_tensor *out = &r->program->tensors[op->output];
  size_t count = elements_of(out);
  double *values = r->values[op->output];
  switch (op->kind) {
    case MGL_OP_EMBED:
      for (size_t i = 0; i < count; i++) {
        values[i] = (double)r->weights[op->inputs[1]][(size_t)token * count + i];
      }
      return;
    case MGL_OP_RMSNORM: run_rmsnorm(r, op, count); return;
    case MGL_OP_LINEAR: run_linear(r, op, count); return;
    case MGL_OP_ADD:
      for (size_t i = 0; i < count; i++) {
        values[i] = r->values[op->inputs[0]][i] + r->values[op->inputs[1]][i];
      }
      return;
    case MGL_OP_SILU_MUL:
      for (size_t i = 0; i < count; i++) {
        double gate = r->values[op->inputs[0]][i];
        values[i] = round_to(out->dtype, gate / (1 + exp(-gate)) * r->values[op->inputs[1]][i]);
      }
      return;
    default: {
      mgl_error err = {0};
      gpu_must(mgl_error_set(&err, MGL_ERR_UNSUPPORTED, "the reference lacks %s",
                             mgl_op_info_of(op->kind)->name),
               &err);
    }
  }
}

const double *reference_run(reference *r, int32_t token, size_t *vocab) {
  const mgl_graph *program = r->program;
  for (size_t i = 0; i < program->op_count; i++) {
    run_op(r, &program->ops[i], token);
  }
  uint32_t logits = program->ops[program->op_count - 1].output;
  *vocab = elements_of(&program->tensors[logits]);
  return r->values[logits];
}
