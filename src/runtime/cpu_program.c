#include "runtime/cpu_program.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "runtime/cpu_layout.h"

// --- binding -------------------------------------------------------------------------------------

uint64_t mgl_graph_kv_bytes_per_token(const mgl_graph *graph) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (tensor->placement == MGL_PLACE_KV) {
      bytes += 2 * (uint64_t)tensor->dims[0].number * tensor->dims[1].number *
               mgl_dtype_bytes(tensor->dtype);
    }
  }
  return bytes;
}

static mgl_status bind_kv(mgl_cpu_program *program, const mgl_topology *topology, mgl_error *err) {
  const mgl_graph *graph = program->graph;
  uint64_t tokens = (uint64_t)program->options.page_count * program->options.limits.page_tokens;
  uint64_t bytes = mgl_graph_kv_bytes_per_token(graph) * tokens;
  if (bytes == 0) {
    return MGL_OK;
  }
  MGL_TRY(mgl_pages_map((size_t)bytes, "KV cache", &program->kv_pages, err));
  program->kv_bytes = (size_t)bytes;
  mgl_topology_interleave(topology, program->kv_pages, program->kv_bytes);
  unsigned char *at = program->kv_pages;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (tensor->placement == MGL_PLACE_KV) {
      size_t half = (size_t)tokens * tensor->dims[0].number * tensor->dims[1].number *
                    mgl_dtype_bytes(tensor->dtype);
      program->kv[i] = (mgl_kv_layer){.k = at,
                                      .v = at + half,
                                      .dtype = tensor->dtype,
                                      .page_tokens = program->options.limits.page_tokens,
                                      .kv_head_count = tensor->dims[0].number,
                                      .head_dim = tensor->dims[1].number};
      at += 2 * half;
    }
  }
  return MGL_OK;
}

static mgl_status bind_activations(mgl_cpu_program *program, mgl_error *err) {
  const mgl_graph *graph = program->graph;
  mgl_dim_values largest = {.tokens = program->options.limits.tokens,
                            .logit_rows = program->options.logit_rows,
                            .sequences = program->options.limits.sequences};
  MGL_TRY(mgl_cpu_layout(graph, &largest, program->ranges, &program->activation_bytes, err));
  MGL_TRY(mgl_pages_map(program->activation_bytes, "activations", &program->activations, err));
  for (size_t i = 0; i < graph->tensor_count; i++) {
    if (graph->tensors[i].placement == MGL_PLACE_ACTIVATION) {
      program->data[i] = (unsigned char *)program->activations + program->ranges[i].begin;
    }
  }
  return MGL_OK;
}

// Constants of rope ops, and the scratch that the largest attention op needs.
static mgl_status bind_ops(mgl_cpu_program *program, mgl_error *err) {
  const mgl_graph *graph = program->graph;
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    if (op->kind == MGL_OP_ROPE_ANGLES) {
      uint32_t half_dim = graph->tensors[op->output].dims[1].number;
      program->inv_freq[i] = mgl_alloc_zeroed(half_dim, sizeof(float));
      if (program->inv_freq[i] == NULL) {
        return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for rope frequencies");
      }
      mgl_rope_inv_freq(op, half_dim, program->inv_freq[i]);
    } else if (op->kind == MGL_OP_ATTENTION) {
      const mgl_tensor *q = &graph->tensors[op->inputs[0]];
      const mgl_tensor *kv = &graph->tensors[op->inputs[1]];
      size_t bytes =
          mgl_attention_scratch_bytes(q->dims[1].number, kv->dims[0].number, q->dims[2].number);
      bytes = (bytes + 4095) / 4096 * 4096;
      program->scratch_bytes = bytes > program->scratch_bytes ? bytes : program->scratch_bytes;
    }
  }
  if (program->scratch_bytes > 0) {
    void *scratch = NULL;
    MGL_TRY(mgl_pages_map(program->scratch_bytes * program->options.workers, "attention scratch",
                          &scratch, err));
    program->scratch = scratch;
  }
  return MGL_OK;
}

mgl_status mgl_cpu_program_create(const mgl_graph *graph, const mgl_cpu_weights *weights,
                                  const mgl_cpu_program_options *options,
                                  const mgl_topology *topology, mgl_cpu_program **out,
                                  mgl_error *err) {
  *out = NULL;
  mgl_status status = MGL_OK;
  mgl_cpu_program *program = mgl_alloc_zeroed(1, sizeof *program);
  if (program == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a program");
  }
  program->graph = graph;
  program->options = *options;
  program->kernels = mgl_cpu_kernels_for(options->simd);
  program->data = mgl_alloc_zeroed(graph->tensor_count, sizeof *program->data);
  program->ranges = mgl_alloc_zeroed(graph->tensor_count, sizeof *program->ranges);
  program->kv = mgl_alloc_zeroed(graph->tensor_count, sizeof *program->kv);
  program->inv_freq = mgl_alloc_zeroed(graph->op_count, sizeof *program->inv_freq);
  program->barrier = mgl_alloc_zeroed(graph->op_count, 1);
  if (program->data == NULL || program->ranges == NULL || program->kv == NULL ||
      program->inv_freq == NULL || program->barrier == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a program of %zu ops",
                           graph->op_count);
    goto fail;
  }
  for (size_t i = 0; i < graph->tensor_count; i++) {
    program->data[i] = (void *)(uintptr_t)weights->data[i];
  }
  if ((status = bind_activations(program, err)) != MGL_OK ||
      (status = bind_kv(program, topology, err)) != MGL_OK ||
      (status = bind_ops(program, err)) != MGL_OK ||
      (status = mgl_cpu_find_barriers(graph, program->ranges, program->barrier, err)) != MGL_OK) {
    goto fail;
  }
  *out = program;
  return MGL_OK;
fail:
  mgl_cpu_program_destroy(program);
  return status;
}

void mgl_cpu_program_destroy(mgl_cpu_program *program) {
  if (program == NULL) {
    return;
  }
  for (size_t i = 0; program->inv_freq != NULL && i < program->graph->op_count; i++) {
    mgl_free(program->inv_freq[i]);
  }
  mgl_pages_unmap(program->scratch, program->scratch_bytes * program->options.workers);
  mgl_pages_unmap(program->kv_pages, program->kv_bytes);
  mgl_pages_unmap(program->activations, program->activation_bytes);
  mgl_free(program->data);
  mgl_free(program->ranges);
  mgl_free(program->kv);
  mgl_free(program->inv_freq);
  mgl_free(program->barrier);
  mgl_free(program);
}

void mgl_cpu_program_set_plan(mgl_cpu_program *program, const mgl_plan *plan) {
  const struct {
    const char *name;
    void *data;
  } inputs[] = {{"tokens", plan->tokens},
                {"positions", plan->positions},
                {"slots", plan->slots},
                {"block_tables", plan->block_tables},
                {"logit_rows", plan->logit_rows}};
  assert(plan->logit_row_count <= program->options.logit_rows);
  program->plan = plan;
  for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
    uint32_t tensor = mgl_graph_find(program->graph, inputs[i].name);
    if (tensor != MGL_NO_TENSOR) {
      program->data[tensor] = inputs[i].data;
    }
  }
}

void *mgl_cpu_program_find(const mgl_cpu_program *program, const char *name) {
  uint32_t tensor = mgl_graph_find(program->graph, name);
  return tensor == MGL_NO_TENSOR ? NULL : program->data[tensor];
}

// --- running -------------------------------------------------------------------------------------

static uint64_t elements(const mgl_cpu_program *program, uint32_t tensor) {
  mgl_dim_values values = {.tokens = program->plan->token_count,
                           .logit_rows = program->plan->logit_row_count,
                           .sequences = program->plan->sequence_count};
  return mgl_tensor_elements(&program->graph->tensors[tensor], &values);
}

size_t mgl_cpu_op_units(const mgl_cpu_program *program, size_t op_idx) {
  const mgl_op *op = &program->graph->ops[op_idx];
  const mgl_tensor *output = &program->graph->tensors[op->output];
  switch (op->kind) {
    case MGL_OP_EMBED:
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_ROPE:
    case MGL_OP_KV_WRITE: return program->plan->token_count;
    case MGL_OP_RMSNORM:
      return (size_t)elements(program, op->output) / output->dims[output->rank - 1].number;
    case MGL_OP_LINEAR:
      return elements(program, op->inputs[0]) == 0 ? 0 : mgl_tensor_row_elements(output);
    case MGL_OP_ATTENTION:
      return (size_t)program->plan->attention_item_count * program->kv[op->inputs[1]].kv_head_count;
    case MGL_OP_SILU_MUL:
    case MGL_OP_ADD: return (size_t)elements(program, op->output);
    case MGL_OP_QKV_PROJ:
    case MGL_OP_ATTEND:
    case MGL_OP_LINEAR_ADD:
    case MGL_OP_GATE_UP:
    case MGL_OP_LOGITS: break;  // tasks of mode mega only
    case MGL_OP_COUNT: break;
  }
  assert(0 && "unknown op");
  return 0;
}

size_t mgl_cpu_op_grain(const mgl_cpu_program *program, size_t op_idx) {
  switch (program->graph->ops[op_idx].kind) {
    case MGL_OP_LINEAR:
      return 16;  // a multiple of every kernel's row block; 64 bytes of f32 output
    case MGL_OP_SILU_MUL:
    case MGL_OP_ADD: return 512;  // less is not worth another worker
    default: return 1;
  }
}

static void run_linear(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  const mgl_tensor *tensors = p->graph->tensors;
  const mgl_tensor *w = &tensors[op->inputs[1]];
  mgl_linear_args args = {
      .x = p->data[op->inputs[0]],
      .x_dtype = tensors[op->inputs[0]].dtype,
      .w = p->data[op->inputs[1]],
      .w_dtype = w->dtype,
      .bias = op->input_count == 3 ? p->data[op->inputs[2]] : NULL,
      .token_count = (uint32_t)(elements(p, op->inputs[0]) / w->dims[1].number),
      .k = w->dims[1].number,
      .out = p->data[op->output],
      .out_stride = w->dims[0].number,
  };
  p->kernels->linear(&args, begin, end);
}

static void run_attention(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker, size_t begin,
                          size_t end) {
  mgl_attention_args args = {
      .q = p->data[op->inputs[0]],
      .items = p->plan->attention_items,
      .positions = p->data[op->inputs[2]],
      .block_tables = p->data[op->inputs[3]],
      .block_table_stride = p->plan->limits.pages_per_sequence,
      .kv = p->kv[op->inputs[1]],
      .head_count = p->graph->tensors[op->inputs[0]].dims[1].number,
      .scale = (float)op->attrs[MGL_ATTR_SCALE],
      .out = p->data[op->output],
      .out_dtype = p->graph->tensors[op->output].dtype,
  };
  p->kernels->attention(&args, p->scratch + worker * p->scratch_bytes, begin, end);
}

static void run_rmsnorm(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  const mgl_tensor *output = &p->graph->tensors[op->output];
  mgl_rmsnorm_args args = {
      .x = p->data[op->inputs[0]],
      .x_row_index = op->input_count == 3 ? p->data[op->inputs[2]] : NULL,
      .weight = p->data[op->inputs[1]],
      .width = output->dims[output->rank - 1].number,
      .eps = (float)op->attrs[MGL_ATTR_EPS],
      .out = p->data[op->output],
      .out_dtype = output->dtype,
  };
  p->kernels->rmsnorm(&args, begin, end);
}

void mgl_cpu_op_run(const mgl_cpu_program *p, size_t op_idx, uint32_t worker, size_t begin,
                    size_t end) {
  const mgl_op *op = &p->graph->ops[op_idx];
  const mgl_tensor *tensors = p->graph->tensors;
  const mgl_tensor *out = &tensors[op->output];
  const uint32_t *in = op->inputs;
  switch (op->kind) {
    case MGL_OP_EMBED:
      p->kernels->embed(&(mgl_embed_args){.tokens = p->data[in[0]],
                                          .table = p->data[in[1]],
                                          .table_dtype = tensors[in[1]].dtype,
                                          .width = out->dims[1].number,
                                          .out = p->data[op->output]},
                        begin, end);
      return;
    case MGL_OP_RMSNORM: run_rmsnorm(p, op, begin, end); return;
    case MGL_OP_LINEAR: run_linear(p, op, begin, end); return;
    case MGL_OP_ROPE_ANGLES:
      p->kernels->rope_angles(&(mgl_rope_angles_args){.positions = p->data[in[0]],
                                                      .inv_freq = p->inv_freq[op_idx],
                                                      .half_dim = out->dims[1].number,
                                                      .out = p->data[op->output]},
                              begin, end);
      return;
    case MGL_OP_ROPE:
      p->kernels->rope(&(mgl_rope_args){.x = p->data[op->output],
                                        .angles = p->data[in[1]],
                                        .head_count = out->dims[1].number,
                                        .head_dim = out->dims[2].number},
                       begin, end);
      return;
    case MGL_OP_KV_WRITE:
      p->kernels->kv_write(&(mgl_kv_write_args){.k = p->data[in[0]],
                                                .v = p->data[in[1]],
                                                .slots = p->data[in[2]],
                                                .kv = p->kv[op->output]},
                           begin, end);
      return;
    case MGL_OP_ATTENTION: run_attention(p, op, worker, begin, end); return;
    case MGL_OP_SILU_MUL:
      p->kernels->silu_mul(&(mgl_silu_mul_args){.gate = p->data[in[0]],
                                                .up = p->data[in[1]],
                                                .out = p->data[op->output],
                                                .out_dtype = out->dtype},
                           begin, end);
      return;
    case MGL_OP_ADD:
      p->kernels->add(&(mgl_add_args){.x = p->data[op->output], .y = p->data[in[1]]}, begin, end);
      return;
    case MGL_OP_QKV_PROJ:
    case MGL_OP_ATTEND:
    case MGL_OP_LINEAR_ADD:
    case MGL_OP_GATE_UP:
    case MGL_OP_LOGITS: break;  // tasks of mode mega only
    case MGL_OP_COUNT: break;
  }
  assert(0 && "unknown op");
}
