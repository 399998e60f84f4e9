// Passes and verifier share these rules: what a program must fulfil, who touches which piece of
// activation storage, and when one piece may take over another's bytes (the layout pass chooses by
// it, the verifier proves by it).
#include "compile/tgraph.h"

mgl_status mgl_check_program(const mgl_graph *program, mgl_error *err) {
  if (program->op_count == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "the program has no ops");
  }
  for (size_t i = 0; i < program->tensor_count; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    if (tensor->placement == MGL_PLACE_ACTIVATION &&
        (mgl_tensor_row_elements(tensor) > MGL_COMPILE_MAX_ROW_ELEMENTS ||
         tensor->dims[0].number > MGL_MAX_ITERATION_TOKENS)) {
      return mgl_error_set(err, MGL_ERR_LIMIT,
                           "activation \"%s\": expected at most %d rows of %d elements",
                           tensor->name, MGL_MAX_ITERATION_TOKENS, MGL_COMPILE_MAX_ROW_ELEMENTS);
    }
  }
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    uint32_t residual = mgl_op_input(op, MGL_ROLE_RESIDUAL);
    if (residual != MGL_NO_TENSOR && residual == mgl_op_input(op, MGL_ROLE_X)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "linear_add reads all of \"%s\" while it overwrites it",
                           program->tensors[residual].name);
    }
  }
  return MGL_OK;
}

mgl_dim_values mgl_compile_dims(const mgl_compile_options *options) {
  uint32_t logit_rows = options->logit_rows == 0 ? options->tokens : options->logit_rows;
  return (mgl_dim_values){options->tokens, logit_rows, options->tokens};
}

static bool is_activation(const mgl_graph *program, uint32_t tensor) {
  return program->tensors[tensor].placement == MGL_PLACE_ACTIVATION;
}

// What no op of the program wrote before this one reads it: another program's, in a piece
// (compile/split.h).
static void find_outer(const mgl_graph *program, const mgl_dim_values *dims, const mgl_op *op,
                       mgl_storage *storages) {
  for (uint32_t i = 0; i < op->input_count; i++) {
    uint32_t tensor = op->inputs[i];
    if (is_activation(program, tensor) && storages[tensor].root == MGL_NO_TENSOR) {
      const mgl_tensor *t = &program->tensors[tensor];
      storages[tensor].root = tensor;
      storages[tensor].bytes = mgl_tensor_elements(t, dims) * mgl_dtype_bytes(t->dtype);
      storages[tensor].is_output = true;
    }
  }
}

// Root of every activation, sizes and first ops.
static void find_roots(const mgl_graph *program, const mgl_dim_values *dims,
                       mgl_storage *storages) {
  for (uint32_t op_idx = 0; op_idx < program->op_count; op_idx++) {
    const mgl_op *op = &program->ops[op_idx];
    const uint32_t part = mgl_op_input(op, MGL_ROLE_PART);
    find_outer(program, dims, op, storages);
    if (part != MGL_NO_TENSOR) {
      storages[storages[part].root].is_output = true;
    }
    if (!is_activation(program, op->output)) {
      continue;
    }
    const mgl_tensor *tensor = &program->tensors[op->output];
    uint32_t root = op->output;
    if (mgl_op_info_of(op->kind)->in_place) {
      root = storages[op->inputs[0]].root;
    } else {
      storages[root].bytes = mgl_tensor_elements(tensor, dims) * mgl_dtype_bytes(tensor->dtype);
      storages[root].first_op = op_idx;
    }
    storages[op->output].root = root;
    storages[root].is_output |= tensor->is_output;
  }
}

// The distinct roots that an op touches.
static uint32_t roots_of_op(const mgl_graph *program, const mgl_storage *storages, const mgl_op *op,
                            uint32_t roots[MGL_OP_MAX_INPUTS + 1]) {
  uint32_t count = 0;
  for (uint32_t i = 0; i <= op->input_count; i++) {
    uint32_t tensor = i < op->input_count ? op->inputs[i] : op->output;
    if (!is_activation(program, tensor)) {
      continue;
    }
    uint32_t root = storages[tensor].root;
    bool seen = false;
    for (uint32_t j = 0; j < count; j++) {
      seen |= roots[j] == root;
    }
    if (!seen) {
      roots[count++] = root;
    }
  }
  return count;
}

bool mgl_find_storages(const mgl_graph *program, const mgl_dim_values *dims, mgl_arena *arena,
                       mgl_storage **out) {
  mgl_storage *storages = mgl_arena_alloc_zeroed(arena, program->tensor_count, sizeof *storages);
  uint32_t *ops = mgl_arena_alloc(arena, program->op_count * (MGL_OP_MAX_INPUTS + 1) * sizeof *ops);
  if (storages == NULL || ops == NULL) {
    return false;
  }
  for (size_t i = 0; i < program->tensor_count; i++) {
    storages[i].root = MGL_NO_TENSOR;
  }
  find_roots(program, dims, storages);
  uint32_t roots[MGL_OP_MAX_INPUTS + 1];
  for (uint32_t op = 0; op < program->op_count; op++) {
    uint32_t count = roots_of_op(program, storages, &program->ops[op], roots);
    for (uint32_t i = 0; i < count; i++) {
      storages[roots[i]].op_count++;
    }
  }
  uint32_t used = 0;
  for (size_t i = 0; i < program->tensor_count; i++) {
    storages[i].ops = ops + used;
    used += storages[i].op_count;
    storages[i].op_count = 0;
  }
  for (uint32_t op = 0; op < program->op_count; op++) {
    uint32_t count = roots_of_op(program, storages, &program->ops[op], roots);
    for (uint32_t i = 0; i < count; i++) {
      mgl_storage *s = &storages[roots[i]];
      ops[(size_t)(s->ops - ops) + s->op_count++] = op;
      s->last_op = op;
    }
  }
  *out = storages;
  return true;
}

bool mgl_storage_is_free(const mgl_storage *a, const mgl_storage *b, const uint32_t *op_first,
                         const mgl_task_set *before) {
  if (a->is_output) {
    return false;  // read after the iteration, or by other ranks until its end
  }
  for (uint32_t i = a->op_count; i-- > 0;) {  // the last one is the likeliest to be missing
    uint32_t op = a->ops[i];
    if (!mgl_task_set_contains(before[b->first_op], op_first[op], op_first[op + 1])) {
      return false;
    }
  }
  return true;
}

bool mgl_find_common_ancestors(const mgl_task_set *ancestors, const uint32_t *op_first,
                               size_t op_count, mgl_arena *arena, mgl_span_list *scratch,
                               mgl_task_set **out) {
  mgl_task_set *before = mgl_arena_alloc_zeroed(arena, op_count, sizeof *before);
  if (before == NULL) {
    return false;
  }
  for (size_t op = 0; op < op_count; op++) {
    for (uint32_t task = op_first[op]; task < op_first[op + 1]; task++) {
      if (task == op_first[op]) {
        before[op] = ancestors[task];
      } else if (ancestors[task].spans != ancestors[task - 1].spans &&
                 (!mgl_task_set_intersect(before[op], ancestors[task], scratch) ||
                  !mgl_span_list_take(scratch, arena, &before[op]))) {
        return false;
      }
    }
  }
  *out = before;
  return true;
}

bool mgl_find_settled(const mgl_task_set *before, size_t op_count, mgl_arena *arena,
                      uint32_t **out) {
  uint32_t *settled = mgl_arena_alloc(arena, op_count * sizeof *settled);
  if (settled == NULL) {
    return false;
  }
  uint32_t least = UINT32_MAX;
  for (size_t op = op_count; op-- > 0;) {
    mgl_task_set set = before[op];
    uint32_t prefix = set.span_count > 0 && set.spans[0].first == 0 ? set.spans[0].last : 0;
    least = prefix < least ? prefix : least;
    settled[op] = least;
  }
  *out = settled;
  return true;
}

uint32_t mgl_op_of_task(const uint32_t *op_first, size_t op_count, uint32_t task) {
  size_t low = 0;
  size_t high = op_count;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (op_first[middle] <= task) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return (uint32_t)low;
}
