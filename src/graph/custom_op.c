#include "graph/custom_op.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"

static struct {
  pthread_mutex_t lock;
  mgl_custom_op *ops[MGL_MAX_CUSTOM_OPS];
  size_t count;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

// --- registering ---------------------------------------------------------------------------------

static bool is_name(const char *name) {
  size_t bytes = strlen(name);
  return bytes >= 1 && bytes < MGL_CUSTOM_NAME_BYTES &&
         strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == bytes;
}

static mgl_status check_registration(const mgl_custom_op *op, mgl_error *err) {
  if (!is_name(op->name)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "custom op \"%.64s\": expected a name of 1 to %d small letters, digits or "
                         "'_'",
                         op->name, MGL_CUSTOM_NAME_BYTES - 1);
  }
  for (int kind = 0; kind < MGL_OP_COUNT; kind++) {
    if (strcmp(mgl_op_info_of((mgl_op_kind)kind)->name, op->name) == 0) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "custom op \"%s\": expected a name that no op has, found one of the "
                           "built-in ones",
                           op->name);
    }
  }
  if (op->input_count < 1 || op->input_count > MGL_OP_MAX_INPUTS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "custom op \"%s\": expected 1 to %d inputs, found %u",
                         op->name, MGL_OP_MAX_INPUTS, op->input_count);
  }
  for (uint32_t i = 0; i < op->attr_count; i++) {
    bool again = false;
    for (uint32_t j = 0; j < i; j++) {
      again = again || strcmp(op->attr_names[i], op->attr_names[j]) == 0;
    }
    if (again || !is_name(op->attr_names[i]) || strcmp(op->attr_names[i], "values") == 0) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "custom op \"%s\": attribute \"%.64s\": expected a name of its own of 1 "
                           "to %d small letters, digits or '_', and not \"values\"",
                           op->name, op->attr_names[i], MGL_CUSTOM_NAME_BYTES - 1);
    }
  }
  return op->run != NULL ? MGL_OK
                         : mgl_error_set(err, MGL_ERR_ARGUMENT,
                                         "custom op \"%s\": expected a function for the CPU, which "
                                         "is also what a GPU's is compared with",
                                         op->name);
}

static const mgl_custom_op *find(const char *name) {
  for (size_t i = 0; i < registry.count; i++) {
    if (strcmp(registry.ops[i]->name, name) == 0) {
      return registry.ops[i];
    }
  }
  return NULL;
}

// Under the lock.
static mgl_status add(const mgl_custom_op *op, mgl_error *err) {
  if (find(op->name) != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "custom op \"%s\": expected a name that no op has, found one that is "
                         "registered already",
                         op->name);
  }
  if (registry.count == MGL_MAX_CUSTOM_OPS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "custom op \"%s\": expected at most %d of them",
                         op->name, MGL_MAX_CUSTOM_OPS);
  }
  mgl_custom_op *copy = mgl_alloc(sizeof *copy);
  char *source = op->cuda_source != NULL ? mgl_strdup(op->cuda_source) : NULL;
  if (copy == NULL || (op->cuda_source != NULL && source == NULL)) {
    mgl_free(copy);
    mgl_free(source);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a custom op");
  }
  *copy = *op;
  copy->cuda_source = source;
  registry.ops[registry.count++] = copy;
  return MGL_OK;
}

mgl_status mgl_custom_op_register(const mgl_custom_op *op, mgl_error *err) {
  MGL_TRY(check_registration(op, err));
  (void)pthread_mutex_lock(&registry.lock);
  mgl_status status = add(op, err);
  (void)pthread_mutex_unlock(&registry.lock);
  return status;
}

const mgl_custom_op *mgl_custom_op_find(const char *name) {
  (void)pthread_mutex_lock(&registry.lock);
  const mgl_custom_op *op = find(name);
  (void)pthread_mutex_unlock(&registry.lock);
  return op;
}

// --- in a program --------------------------------------------------------------------------------

static bool is_value(mgl_dtype dtype) {
  return dtype == MGL_DTYPE_F32 || dtype == MGL_DTYPE_BF16;
}

static mgl_status check_input(const mgl_custom_op *custom, const mgl_tensor *in, bool first,
                              mgl_dim rows, mgl_error *err) {
  const char *wrong = NULL;
  switch (in->placement) {
    case MGL_PLACE_ACTIVATION:
      wrong = mgl_dim_same(in->dims[0], rows) ? NULL : "expected as many rows as the result has";
      break;
    case MGL_PLACE_INPUT:
      wrong = mgl_dim_same(in->dims[0], rows)
                  ? NULL
                  : "expected a plan's input with as many rows as the result";
      break;
    case MGL_PLACE_WEIGHT:
      wrong = mgl_dtype_is_code(in->dtype) ? "expected a weight that is not of codes" : NULL;
      break;
    case MGL_PLACE_KV:
      wrong = "expected activations, weights or inputs of the plan, found a KV cache";
      break;
  }
  if (first && in->placement != MGL_PLACE_ACTIVATION) {
    wrong = "expected an activation as the first input";
  }
  return wrong == NULL ? MGL_OK
                       : mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: input \"%s\": %s", custom->name,
                                       in->name, wrong);
}

static bool same_type(const mgl_tensor *a, const mgl_tensor *b) {
  return a->dtype == b->dtype && mgl_tensor_same_shape(a, b);
}

mgl_status mgl_custom_op_check(const mgl_op *op, const mgl_tensor *const *in, const mgl_tensor *out,
                               mgl_error *err) {
  const mgl_custom_op *custom = op->custom;
  if (op->input_count != custom->input_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected %u inputs, found %u", custom->name,
                         custom->input_count, op->input_count);
  }
  const bool by_rows =
      out->placement == MGL_PLACE_ACTIVATION && is_value(out->dtype) &&
      (out->dims[0].symbol == MGL_DIM_TOKENS || out->dims[0].symbol == MGL_DIM_LOGIT_ROWS) &&
      out->dims[0].number == 0;
  if (!by_rows) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "%s: result \"%s\": expected f32 or bf16 with a row a token, [T,...], or a "
        "row of logits, [L,...]",
        custom->name, out->name);
  }
  for (uint32_t i = 0; i < op->input_count; i++) {
    MGL_TRY(check_input(custom, in[i], i == 0, out->dims[0], err));
  }
  mgl_tensor wanted = *in[0];
  if (custom->shape != NULL) {
    mgl_status status = custom->shape(custom, in, op->custom_attrs, &wanted, err);
    if (status != MGL_OK) {
      mgl_error_prefix(err, "%s: result \"%s\"", custom->name, out->name);
      return status;
    }
  }
  if (!same_type(&wanted, out) || (custom->updates && !same_type(in[0], out))) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "%s: result \"%s\": expected the type that its shape function says%s",
                         custom->name, out->name,
                         custom->updates ? ", which is that of the input that it writes" : "");
  }
  return MGL_OK;
}
