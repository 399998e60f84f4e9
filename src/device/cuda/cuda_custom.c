#include "device/cuda/cuda_custom.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "graph/custom_op.h"

_Static_assert((int)MEGALITH_MAX_CUSTOM_INPUTS == (int)MGL_OP_MAX_INPUTS &&
                   (int)MEGALITH_MAX_CUSTOM_ATTRIBUTES == (int)MGL_MAX_CUSTOM_ATTRS &&
                   (int)MEGALITH_MAX_TENSOR_DIMS == (int)MGL_GRAPH_MAX_RANK,
               "a launch has room for every op");

struct mgl_cuda_customs {
  const mgl_cuda_device *device;
  const mgl_graph *program;
  mgl_cuda_code_function *get_code;
  char *note;        // while it is made
  void **modules;    // [op_count] NULL: an op before it has the same, or it is no custom one
  void **functions;  // [op_count] NULL: no custom op
};

// --- what is there -------------------------------------------------------------------------------

const mgl_op *mgl_cuda_custom_find(const mgl_graph *program) {
  for (size_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].custom != NULL) {
      return &program->ops[i];
    }
  }
  return NULL;
}

mgl_status mgl_cuda_custom_check(const mgl_op *op, const char *output, mgl_error *err) {
  return op->custom->cuda_source != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "cuda: custom op %s (\"%s\"): it has no CUDA source; try --device cpu",
                             mgl_op_name(op), output);
}

// --- making them ---------------------------------------------------------------------------------

// The module of an op's kernel. A source that does not compile is its author's error.
static mgl_status load_op(mgl_cuda_customs *c, const mgl_custom_op *custom, void **out,
                          mgl_error *err) {
  mgl_text text = {0};
  mgl_cuda_code code = {0};
  mgl_text_format(&text, "#line 1 \"%s\"\n%s\n", custom->name, custom->cuda_source);
  const mgl_cuda_source source = {.name = custom->name, .text = text.data};
  const mgl_cuda_shape shape = {.custom = &source, .head_dim = 32, .group = 1};  // of any model
  mgl_status status = mgl_text_check(&text, err);
  if (status == MGL_OK) {
    status =
        c->get_code(c->device, "kernels/cuda/custom.cu", &shape, "mgl_custom_kernel", &code, err);
  }
  if (status == MGL_OK) {
    status = MGL_CUDA_CALL(&c->device->driver, module_load, err, out, code.cubin);
  }
  if (code.note[0] != 0) {
    (void)snprintf(c->note, MGL_CUDA_NOTE_BYTES, "%s", code.note);
  }
  mgl_free(code.cubin);
  mgl_text_free(&text);
  if (status != MGL_OK) {
    status = status == MGL_ERR_INTERNAL ? MGL_ERR_ARGUMENT : status;
    mgl_error_prefix(err, "custom op %s", custom->name);
  }
  return status;
}

static mgl_status load_all(mgl_cuda_customs *c, mgl_error *err) {
  for (size_t i = 0; i < c->program->op_count; i++) {
    const mgl_custom_op *custom = c->program->ops[i].custom;
    for (size_t before = 0; custom != NULL && before < i && c->functions[i] == NULL; before++) {
      c->functions[i] = c->program->ops[before].custom == custom ? c->functions[before] : NULL;
    }
    if (custom != NULL && c->functions[i] == NULL) {
      MGL_TRY(load_op(c, custom, &c->modules[i], err));
      MGL_CUDA_TRY(&c->device->driver, module_function, err, &c->functions[i], c->modules[i],
                   "mgl_custom_kernel");
    }
  }
  return MGL_OK;
}

mgl_status mgl_cuda_customs_create(const mgl_cuda_device *device, const mgl_graph *program,
                                   mgl_cuda_code_function *get_code, char note[MGL_CUDA_NOTE_BYTES],
                                   mgl_cuda_customs **out, mgl_error *err) {
  *out = NULL;
  mgl_cuda_customs *c = mgl_alloc_zeroed(1, sizeof *c);
  MGL_TRY(mgl_alloc_check(c, err, "custom ops"));
  *c = (mgl_cuda_customs){.device = device, .program = program, .get_code = get_code, .note = note};
  c->modules = mgl_alloc_zeroed(program->op_count, sizeof *c->modules);
  c->functions = mgl_alloc_zeroed(program->op_count, sizeof *c->functions);
  mgl_status status = c->modules != NULL && c->functions != NULL
                          ? load_all(c, err)
                          : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for custom ops");
  c->note = NULL;
  if (status != MGL_OK) {
    mgl_cuda_customs_destroy(c);
    return status;
  }
  *out = c;
  return MGL_OK;
}

void mgl_cuda_customs_destroy(mgl_cuda_customs *c) {
  if (c == NULL) {
    return;
  }
  for (size_t i = 0; c->modules != NULL && i < c->program->op_count; i++) {
    MGL_CUDA_RELEASE(&c->device->driver, module_unload, c->modules[i]);
  }
  mgl_free(c->modules);
  mgl_free(c->functions);
  mgl_free(c);
}

// --- launches ------------------------------------------------------------------------------------

static megalith_tensor_type type_of(const mgl_tensor *tensor, const mgl_dim_values *values) {
  megalith_tensor_type type = {.rank = tensor->rank};
  switch (tensor->dtype) {
    case MGL_DTYPE_BF16: type.dtype = MEGALITH_BF16; break;
    case MGL_DTYPE_F16: type.dtype = MEGALITH_F16; break;
    case MGL_DTYPE_I32: type.dtype = MEGALITH_I32; break;
    default: type.dtype = MEGALITH_F32; break;
  }
  if (tensor->placement == MGL_PLACE_WEIGHT && tensor->rank == 1) {
    type.dtype = MEGALITH_F32;  // whatever its file has
  }
  type.rows = tensor->dims[0].symbol == MGL_DIM_TOKENS       ? MEGALITH_ROWS_TOKENS
              : tensor->dims[0].symbol == MGL_DIM_LOGIT_ROWS ? MEGALITH_ROWS_LOGITS
                                                             : MEGALITH_ROWS_FIXED;
  for (uint32_t i = 0; i < tensor->rank; i++) {
    type.dims[i] = (uint32_t)mgl_dim_value(tensor->dims[i], values);
  }
  return type;
}

mgl_custom_launch mgl_cuda_custom_bind(const mgl_graph *program, const mgl_op *op,
                                       const mgl_dim_values *values) {
  mgl_custom_launch launch = {.output_type = type_of(&program->tensors[op->output], values),
                              .tile_rows = op->custom->cuda_tile_rows};
  for (uint32_t i = 0; i < op->input_count; i++) {
    launch.input_types[i] = type_of(&program->tensors[op->inputs[i]], values);
  }
  memcpy(launch.attributes, op->custom_attrs, sizeof launch.attributes);
  launch.rows = launch.output_type.dims[0];
  return launch;
}

// --- in the megakernel ---------------------------------------------------------------------------

mgl_custom_launch mgl_cuda_custom_bind_task(const mgl_graph *program, const mgl_op *op,
                                            uint32_t tokens) {
  const mgl_dim_values largest = {tokens, tokens, tokens};
  mgl_custom_launch launch = mgl_cuda_custom_bind(program, op, &largest);
  for (uint32_t i = 0; i < op->input_count; i++) {
    const mgl_tensor *tensor = &program->tensors[op->inputs[i]];
    if (tensor->placement == MGL_PLACE_INPUT) {  // no other passes mgl_fuse_ops_cuda
      launch.of_plan[i] =
          strcmp(tensor->name, "tokens") == 0 ? MGL_CUSTOM_OF_TOKENS : MGL_CUSTOM_OF_POSITIONS;
    }
  }
  return launch;
}

// Whether an op before it has the same source.
static bool is_again(const mgl_graph *program, size_t op) {
  bool found = false;
  for (size_t i = 0; i < op; i++) {
    found = found || program->ops[i].custom == program->ops[op].custom;
  }
  return found;
}

uint32_t mgl_cuda_custom_number(const mgl_graph *program, uint32_t op) {
  uint32_t number = 0;
  for (uint32_t i = 0; i < op && program->ops[i].custom != program->ops[op].custom; i++) {
    number += program->ops[i].custom != NULL && !is_again(program, i) ? 1 : 0;
  }
  return number;
}

void mgl_cuda_custom_text(const mgl_graph *program, mgl_text *out) {
  if (mgl_cuda_custom_find(program) == NULL) {
    return;
  }
  for (uint32_t i = 0; i < program->op_count; i++) {
    const mgl_custom_op *custom = program->ops[i].custom;
    if (custom != NULL && !is_again(program, i)) {
      mgl_text_format(out, "namespace mgl_custom_%u {\n#line 1 \"%s\"\n%s\n}\n",
                      mgl_cuda_custom_number(program, i), custom->name, custom->cuda_source);
    }
  }
  mgl_text_format(out,
                  "#line 1 \"%s\"\nstatic __device__ void %s(uint32_t number, "
                  "const megalith_custom_call *call) {\n  switch (number) {\n",
                  MGL_CUDA_CUSTOM_DISPATCH, MGL_CUDA_CUSTOM_DISPATCH);
  for (uint32_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].custom != NULL && !is_again(program, i)) {
      uint32_t number = mgl_cuda_custom_number(program, i);
      mgl_text_format(out, "    case %u: mgl_custom_%u::%s(call); return;\n", number, number,
                      program->ops[i].custom->name);
    }
  }
  mgl_text_format(out, "    default: return;\n  }\n}\n");
}

mgl_status mgl_cuda_custom_launch(const mgl_cuda_customs *c, uint32_t op, mgl_custom_launch *launch,
                                  unsigned most_blocks, void *stream, mgl_error *err) {
  void *parameters[] = {launch};
  const uint64_t tiles = ((uint64_t)launch->rows + launch->tile_rows - 1) / launch->tile_rows;
  if (tiles == 0) {
    return MGL_OK;
  }
  return MGL_CUDA_CALL(&c->device->driver, launch, err, c->functions[op],
                       (unsigned)(tiles < most_blocks ? tiles : most_blocks), 1, 1,
                       MGL_CUSTOM_THREADS, 1, 1, 0, stream, parameters, NULL);
}
