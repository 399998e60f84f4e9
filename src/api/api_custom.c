// Custom ops and programs as text: between the types of megalith.h and those of graph/.
#include <string.h>

#include "api/api_parts.h"
#include "graph/custom_op.h"
#include "graph/family.h"
#include "graph/graph_text.h"

_Static_assert((int)MEGALITH_MAX_CUSTOM_INPUTS == (int)MGL_OP_MAX_INPUTS, "one limit");
_Static_assert((int)MEGALITH_MAX_CUSTOM_ATTRIBUTES == (int)MGL_MAX_CUSTOM_ATTRS, "one limit");
_Static_assert((int)MEGALITH_MAX_TENSOR_DIMS == (int)MGL_GRAPH_MAX_RANK, "one limit");

// What was registered, behind mgl_custom_op.functions.
enum { SHAPE, CPU };

static const struct {
  megalith_dtype api;
  mgl_dtype own;
} dtypes[] = {{MEGALITH_F32, MGL_DTYPE_F32},
              {MEGALITH_BF16, MGL_DTYPE_BF16},
              {MEGALITH_F16, MGL_DTYPE_F16},
              {MEGALITH_I32, MGL_DTYPE_I32}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static megalith_tensor_type type_of(const mgl_tensor *tensor) {
  megalith_tensor_type type = {.rank = tensor->rank};
  for (size_t i = 0; i < DTYPES; i++) {
    type.dtype = tensor->dtype == dtypes[i].own ? dtypes[i].api : type.dtype;
  }
  if (tensor->placement == MGL_PLACE_WEIGHT && tensor->rank == 1) {
    type.dtype = MEGALITH_F32;  // on all devices, whatever its file has
  }
  type.rows = tensor->dims[0].symbol == MGL_DIM_TOKENS       ? MEGALITH_ROWS_TOKENS
              : tensor->dims[0].symbol == MGL_DIM_LOGIT_ROWS ? MEGALITH_ROWS_LOGITS
                                                             : MEGALITH_ROWS_FIXED;
  for (uint32_t i = 0; i < tensor->rank; i++) {
    type.dims[i] = tensor->dims[i].symbol == MGL_DIM_NUMBER ? tensor->dims[i].number : 0;
  }
  return type;
}

static mgl_status take_type(const megalith_tensor_type *type, mgl_tensor *out, mgl_error *err) {
  size_t i = 0;
  while (i < DTYPES && type->dtype != dtypes[i].api) {
    i++;
  }
  if (i == DTYPES || type->rank < 1 || type->rank > MEGALITH_MAX_TENSOR_DIMS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected a known dtype and 1 to %d dims from the shape function, found "
                         "dtype %d and %u dims",
                         MEGALITH_MAX_TENSOR_DIMS, (int)type->dtype, type->rank);
  }
  out->dtype = dtypes[i].own;
  out->rank = type->rank;
  out->dims[0] = type->rows == MEGALITH_ROWS_TOKENS   ? MGL_DIM_T
                 : type->rows == MEGALITH_ROWS_LOGITS ? MGL_DIM_L
                                                      : MGL_DIM(type->dims[0]);
  for (uint32_t d = 1; d < type->rank; d++) {
    out->dims[d] = MGL_DIM(type->dims[d]);
  }
  return MGL_OK;
}

static mgl_status ask_shape(const mgl_custom_op *op, const mgl_tensor *const *in,
                            const double *attrs, mgl_tensor *out, mgl_error *err) {
  megalith_tensor_type inputs[MEGALITH_MAX_CUSTOM_INPUTS];
  megalith_tensor_type result;
  megalith_error error = {0};
  megalith_custom_shape *shape = NULL;
  memcpy(&shape, &op->functions[SHAPE], sizeof shape);
  for (uint32_t i = 0; i < op->input_count; i++) {
    inputs[i] = type_of(in[i]);
  }
  result = inputs[0];
  if (!shape(op->context, inputs, attrs, &result, &error)) {
    error.text[sizeof error.text - 1] = 0;
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s",
                         error.text[0] != 0 ? error.text : "the shape function refuses the inputs");
  }
  return take_type(&result, out, err);
}

static void run(const mgl_custom_op *op, const mgl_custom_call *call) {
  megalith_tensor_type inputs[MEGALITH_MAX_CUSTOM_INPUTS];
  megalith_custom_cpu *cpu = NULL;
  memcpy(&cpu, &op->functions[CPU], sizeof cpu);
  for (uint32_t i = 0; i < op->input_count; i++) {
    inputs[i] = type_of(&call->tensors[call->op->inputs[i]]);
    inputs[i].dims[0] =
        inputs[i].rows == MEGALITH_ROWS_FIXED ? inputs[i].dims[0] : (uint32_t)call->rows;
  }
  megalith_tensor_type output = type_of(&call->tensors[call->op->output]);
  output.dims[0] = (uint32_t)call->rows;
  const megalith_custom_call out = {.size = sizeof out,
                                    .context = op->context,
                                    .attributes = call->op->custom_attrs,
                                    .input_types = inputs,
                                    .inputs = call->inputs,
                                    .output_type = &output,
                                    .output = call->output,
                                    .first_row = (uint32_t)call->begin,
                                    .end_row = (uint32_t)call->end};
  cpu(&out);
}

static mgl_status copy_name(const char *name, char out[MGL_CUSTOM_NAME_BYTES], mgl_error *err) {
  if (name == NULL || strlen(name) >= MGL_CUSTOM_NAME_BYTES) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "custom op: expected names of 1 to %d bytes, found %s",
                         MGL_CUSTOM_NAME_BYTES - 1, name == NULL ? "NULL" : "a longer one");
  }
  memcpy(out, name, strlen(name) + 1);
  return MGL_OK;
}

static mgl_status check_rest(const megalith_custom_op *op, mgl_error *err) {
  if ((op->mutated_inputs & ~1u) != 0) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "custom op \"%s\": mutated_inputs: expected 0, or 1: only the first input, "
        "whose storage the output then has, can be written so far; found %u",
        op->name, op->mutated_inputs);
  }
  if (op->attribute_count > MEGALITH_MAX_CUSTOM_ATTRIBUTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "custom op \"%s\": expected at most %d attributes, found %zu", op->name,
                         MEGALITH_MAX_CUSTOM_ATTRIBUTES, op->attribute_count);
  }
  if ((op->cuda_source != NULL) != (op->cuda_tile_rows != 0)) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "custom op \"%s\": expected cuda_source and cuda_tile_rows together, found "
        "one of them",
        op->name);
  }
  if (op->cuda_source != NULL && strlen(op->cuda_source) > MGL_CUSTOM_SOURCE_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "custom op \"%s\": cuda_source: expected at most %d bytes", op->name,
                         MGL_CUSTOM_SOURCE_BYTES);
  }
  return MGL_OK;
}

static mgl_status register_op(const megalith_custom_op *given, mgl_error *err) {
  megalith_custom_op op;
  MGL_TRY(mgl_api_read_options(given, sizeof op, "megalith_custom_op", &op, err));
  mgl_custom_op own = {.input_count = op.input_count,
                       .updates = (op.mutated_inputs & 1) != 0,
                       .shape = op.shape != NULL ? ask_shape : NULL,
                       .run = op.cpu != NULL ? run : NULL,
                       .context = op.context,
                       .cuda_source = (char *)(uintptr_t)op.cuda_source,
                       .cuda_tile_rows = op.cuda_tile_rows};
  MGL_TRY(copy_name(op.name, own.name, err));
  MGL_TRY(check_rest(&op, err));
  own.attr_count = (uint32_t)op.attribute_count;
  for (uint32_t i = 0; i < own.attr_count; i++) {
    MGL_TRY(copy_name(op.attributes[i], own.attr_names[i], err));
  }
  memcpy(&own.functions[SHAPE], &op.shape, sizeof op.shape);
  memcpy(&own.functions[CPU], &op.cpu, sizeof op.cpu);
  return mgl_custom_op_register(&own, err);
}

megalith_status megalith_custom_op_register(const megalith_custom_op *op, megalith_error *error) {
  mgl_error err = {0};
  return mgl_api_report(register_op(op, &err), &err, error);
}

megalith_status megalith_model_program(const megalith_model *model, char *text, size_t capacity,
                                       size_t *bytes, megalith_error *error) {
  mgl_error err = {0};
  mgl_graph *graph = NULL;
  mgl_text all = {0};
  const mgl_checkpoint *checkpoint =
      model->source == MGL_WEIGHTS_DUMMY ? NULL : model->folder.checkpoint;
  const mgl_status status = mgl_family_build(&model->folder.config, checkpoint, &graph, &err);
  if (status == MGL_OK) {
    mgl_graph_print(graph, &all);
  }
  mgl_graph_destroy(graph);
  return mgl_api_give_text(status, &all, text, capacity, bytes, &err, error);
}
