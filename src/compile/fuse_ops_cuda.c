// Pass 1 for the GPU: the fused ops of fuse_ops.c, next_plan before them, sample behind them.
//
// Requires a finished program; ensures a finished one that the GPU's kernels can run, or says what
// they lack. next_plan and sample make an iteration end where the next one begins: next_plan waits
// for nothing and works while the layers run, sample waits for it and for the logits. They are ops
// and not part of the runtime, so that tasks, events, the verifier and traces show them like all
// others. Rejected: a sampler in the epilogue of logits, which needs all of a row.
#include <string.h>

#include "compile/compile.h"
#include "graph/custom_op.h"

// --- what the kernels have -----------------------------------------------------------------------

// Every refusal ends alike; `op` names what it is about.
#define HINT "; try --device cpu"

static const char *output_name(const mgl_graph *program, const mgl_op *op) {
  return program->tensors[op->output].name;
}

static bool has_kernel(mgl_op_kind kind) {
  switch (kind) {
    case MGL_OP_EMBED:
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_QKV_PROJ:
    case MGL_OP_ATTEND:
    case MGL_OP_LINEAR_ADD:
    case MGL_OP_GATE_UP:
    case MGL_OP_ROUTER:
    case MGL_OP_EXPERTS_UP:
    case MGL_OP_EXPERTS_DOWN:
    case MGL_OP_LOGITS:
    case MGL_OP_CUSTOM:
    case MGL_OP_CUSTOM_UPDATE:
    case MGL_OP_ALL_GATHER: return true;
    default: return false;
  }
}

static mgl_status check_bf16(const mgl_tensor *tensor, const char *what, mgl_error *err) {
  return tensor->dtype == MGL_DTYPE_BF16
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "cuda: expected %s in bf16, found \"%s\" in %s" HINT, what,
                             tensor->name, mgl_dtype_name(tensor->dtype));
}

static mgl_status check_matrices(const mgl_graph *program, const mgl_op *op, mgl_error *err) {
  static const char *const names[] = {"rows (output features)", "columns (input features)"};
  for (uint32_t i = 0; i < op->input_count; i++) {
    const mgl_tensor *w = &program->tensors[op->inputs[i]];
    bool is_table = mgl_op_role(op, i) == MGL_ROLE_TABLE;
    if (!is_table && mgl_op_role(op, i) != MGL_ROLE_MATRIX) {
      continue;
    }
    if (!mgl_dtype_is_code(w->dtype)) {
      MGL_TRY(check_bf16(w, "matrices", err));
    }
    for (uint32_t d = is_table; d < 2; d++) {  // a table's rows are only looked up
      if (w->dims[d].number % MGL_FUSE_CUDA_FEATURE_STEP != 0) {
        return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "cuda: expected a multiple of %d as the %s of \"%s\", found %u" HINT,
                             MGL_FUSE_CUDA_FEATURE_STEP, names[d], w->name, w->dims[d].number);
      }
    }
  }
  return MGL_OK;
}

static mgl_status check_attend(const mgl_graph *program, const mgl_op *op, mgl_error *err) {
  const mgl_tensor *kv = mgl_graph_input(program, op, MGL_ROLE_KV);
  const mgl_tensor *out = &program->tensors[op->output];
  uint32_t head_dim = kv->dims[1].number;
  uint32_t group = out->dims[1].number / kv->dims[0].number;
  if (head_dim % MGL_FUSE_CUDA_HEAD_DIM_STEP != 0 || head_dim > MGL_FUSE_CUDA_MAX_HEAD_DIM) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "cuda: expected a head dim that is a multiple of %d and at most %d, found "
                         "%u in \"%s\"" HINT,
                         MGL_FUSE_CUDA_HEAD_DIM_STEP, MGL_FUSE_CUDA_MAX_HEAD_DIM, head_dim,
                         out->name);
  }
  if (group > MGL_FUSE_CUDA_MAX_GROUP) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "cuda: expected at most %d query heads per KV head, found %u (%u / %u) in "
                         "\"%s\"" HINT,
                         MGL_FUSE_CUDA_MAX_GROUP, group, out->dims[1].number, kv->dims[0].number,
                         out->name);
  }
  return check_bf16(kv, "the KV cache", err);
}

// Tasks of a custom op read activations, weights of one dim, and of the plan what lies where a plan
// of the device has it; and logits stay logits.
static mgl_status check_custom(const mgl_graph *program, const mgl_op *op, mgl_error *err) {
  const mgl_tensor *out = &program->tensors[op->output];
  const mgl_tensor *x = &program->tensors[op->inputs[0]];
  if (op->custom->cuda_source == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "cuda: custom op %s (\"%s\"): it has no CUDA source" HINT, mgl_op_name(op),
                         out->name);
  }
  for (uint32_t i = 0; i < op->input_count; i++) {
    const mgl_tensor *in = &program->tensors[op->inputs[i]];
    bool of_plan = in->placement == MGL_PLACE_INPUT &&
                   (strcmp(in->name, "tokens") == 0 || strcmp(in->name, "positions") == 0);
    if (!of_plan && in->placement != MGL_PLACE_ACTIVATION &&
        (in->placement != MGL_PLACE_WEIGHT || in->rank != 1)) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "cuda: custom op %s (\"%s\"): in the megakernel expected activations, "
                           "weights of one dim, tokens and positions as its inputs, found "
                           "\"%s\"" HINT,
                           mgl_op_name(op), out->name, in->name);
    }
  }
  bool logits = out->dims[0].symbol == MGL_DIM_LOGIT_ROWS;
  bool same = out->rank == x->rank && out->rank == 2 && out->dtype == MGL_DTYPE_F32 &&
              out->dims[1].number == x->dims[1].number;
  return !logits || same
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "cuda: custom op %s: in the megakernel expected \"%s\" as large as "
                             "\"%s\", f32[L,%u]" HINT,
                             mgl_op_name(op), out->name, x->name, x->dims[1].number);
}

static mgl_status lacks(const char *what, const char *where, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "cuda: the GPU has no kernel for %s (\"%s\")" HINT,
                       what, where);
}

// What the kernels for the CPU have and those for the GPU lack.
static mgl_status check_features(const mgl_graph *program, const mgl_op *op, mgl_error *err) {
  const char *name = output_name(program, op);
  if (mgl_op_input(op, MGL_ROLE_ROUTES) != MGL_NO_TENSOR) {
    return lacks("a mixture of experts", name, err);
  }
  if (op->kind == MGL_OP_ATTENTION && mgl_op_input(op, MGL_ROLE_SINKS) != MGL_NO_TENSOR) {
    return lacks("attention with sinks and norms of heads", name, err);
  }
  if (op->kind == MGL_OP_LAYERNORM) {
    return lacks("a layer norm", name, err);
  }
  if (op->kind == MGL_OP_LINEAR && mgl_op_input(op, MGL_ROLE_BIAS) != MGL_NO_TENSOR) {
    return lacks("a bias of the feed-forward part", name, err);
  }
  if (op->kind == MGL_OP_ROPE_ANGLES && op->attrs[MGL_ATTR_ORIGINAL] != 0) {
    return lacks("a rope that depends on the sequence's length (dynamic, longrope)", name, err);
  }
  if (op->kind == MGL_OP_ROPE_ANGLES && op->attrs[MGL_ATTR_AMPLITUDE] != 0) {
    return lacks("a rope that multiplies parts of heads", name, err);
  }
  if (op->kind == MGL_OP_ATTEND &&
      mgl_graph_input(program, op, MGL_ROLE_ANGLES)->dims[1].number * 2 !=
          program->tensors[op->output].dims[2].number) {
    return lacks("a rope of parts of heads (partial rotary)", name, err);
  }
  return MGL_OK;
}

static mgl_status check_op(const mgl_graph *program, const mgl_op *op, mgl_error *err) {
  if (!has_kernel(op->kind)) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "cuda: expected only ops that the GPU has kernels for (embed, rope_angles, "
        "qkv_proj, attend, linear_add, gate_up, logits), found %s in \"%s\"" HINT,
        mgl_op_info_of(op->kind)->name, output_name(program, op));
  }
  MGL_TRY(check_matrices(program, op, err));
  if (op->custom != NULL) {
    return check_custom(program, op, err);
  }
  return op->kind == MGL_OP_ATTEND ? check_attend(program, op, err) : MGL_OK;
}

// Checks that linears and attention hand on what the next linear's kernel reads.
static mgl_status check_activations(const mgl_graph *program, const mgl_op *op, mgl_error *err) {
  return op->kind == MGL_OP_ATTEND || op->kind == MGL_OP_GATE_UP || op->kind == MGL_OP_EXPERTS_UP
             ? check_bf16(&program->tensors[op->output], "activations that feed linears", err)
             : MGL_OK;
}

// The only op of that kind.
static mgl_status find_only(const mgl_graph *program, mgl_op_kind kind, uint32_t *out,
                            mgl_error *err) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].kind == kind) {
      *out = i;
      count++;
    }
  }
  return count == 1 ? MGL_OK
                    : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                                    "cuda: expected one %s, found %u in \"%s\"" HINT,
                                    mgl_op_info_of(kind)->name, count, program->name);
}

static mgl_status check_program(const mgl_graph *program, uint32_t *embed, uint32_t *logits,
                                mgl_error *err) {
  for (size_t i = 0; i < program->op_count; i++) {  // first: an op that did not fuse says less
    MGL_TRY(check_features(program, &program->ops[i], err));
  }
  for (size_t i = 0; i < program->op_count; i++) {
    MGL_TRY(check_op(program, &program->ops[i], err));
    MGL_TRY(check_activations(program, &program->ops[i], err));
  }
  MGL_TRY(find_only(program, MGL_OP_EMBED, embed, err));
  return find_only(program, MGL_OP_LOGITS, logits, err);
}

// --- the two ops ---------------------------------------------------------------------------------

static mgl_status add_device_ops(mgl_graph *program, uint32_t embed, uint32_t logits,
                                 mgl_error *err) {
  const mgl_dim one = MGL_DIM(1);
  const mgl_dim rows = MGL_DIM_L;
  uint32_t tokens = mgl_op_input(&program->ops[embed], MGL_ROLE_TOKENS);
  uint32_t scores = program->ops[logits].output;
  for (size_t i = logits; i < program->op_count; i++) {  // of several ranks: all of them
    const mgl_op *op = &program->ops[i];
    bool changes = op->kind == MGL_OP_ALL_GATHER || op->custom != NULL;
    scores = changes && op->inputs[0] == scores ? op->output : scores;
  }
  uint32_t next_plan =
      mgl_graph_tensor(program, "next_plan", MGL_PLACE_ACTIVATION, MGL_DTYPE_I32, 1, &one);
  uint32_t sampled =
      mgl_graph_tensor(program, "sampled", MGL_PLACE_ACTIVATION, MGL_DTYPE_I32, 1, &rows);
  mgl_graph_mark_output(program, sampled);
  mgl_graph_op(program, (mgl_op){.kind = MGL_OP_SAMPLE,
                                 .input_count = 2,
                                 .inputs = {scores, next_plan},
                                 .output = sampled});
  mgl_graph_op(
      program,
      (mgl_op){
          .kind = MGL_OP_NEXT_PLAN, .input_count = 1, .inputs = {tokens}, .output = next_plan});
  if (program->error.status == MGL_OK) {  // next_plan to the front: it reads an input only
    mgl_op op = program->ops[program->op_count - 1];
    memmove(program->ops + 1, program->ops, (program->op_count - 1) * sizeof op);
    program->ops[0] = op;
  }
  return mgl_graph_finish(program, err);
}

mgl_status mgl_fuse_ops_cuda(const mgl_graph *program, mgl_graph **out, mgl_error *err) {
  mgl_graph *fused = NULL;
  uint32_t embed = 0;
  uint32_t logits = 0;
  *out = NULL;
  MGL_TRY(mgl_fuse_ops_for_gpu(program, &fused, err));
  mgl_status status = check_program(fused, &embed, &logits, err);
  if (status == MGL_OK) {
    status = add_device_ops(fused, embed, logits, err);
  }
  if (status != MGL_OK) {
    mgl_graph_destroy(fused);
    return status;
  }
  *out = fused;
  return MGL_OK;
}

mgl_status mgl_fuse_ops_for(mgl_target target, const mgl_graph *program, mgl_graph **out,
                            mgl_error *err) {
  return target == MGL_TARGET_CUDA ? mgl_fuse_ops_cuda(program, out, err)
                                   : mgl_fuse_ops(program, out, err);
}
