#include "device/cpu/cpu_program.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_argmax.h"
#include "device/cpu/cpu_experts.h"
#include "device/cpu/cpu_layout.h"
#include "device/cpu/cpu_linears.h"
#include "device/cpu/cpu_regions.h"
#include "device/cpu/cpu_tasks.h"
#include "device/cpu/cpu_wanted.h"
#include "graph/act_dtype.h"
#include "graph/custom_op.h"
#include "kernels/cpu/route.h"

// --- binding -------------------------------------------------------------------------------------

// Activations where ops run one after the other: the layout of cpu_layout.c, and its barriers.
static mgl_status lay_out(mgl_cpu_program *program, const uint32_t *step, size_t *out_bytes,
                          mgl_error *err) {
  const mgl_graph *graph = program->graph;
  mgl_byte_range *ranges = mgl_alloc_zeroed(graph->tensor_count, sizeof *ranges);
  program->barrier = mgl_alloc_zeroed(graph->op_count, 1);
  if (ranges == NULL || program->barrier == NULL) {
    mgl_free(ranges);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a layout of %zu tensors",
                         graph->tensor_count);
  }
  mgl_status status = mgl_cpu_layout_pieces(graph, &program->largest, step, ranges, out_bytes, err);
  if (status == MGL_OK) {
    status = mgl_cpu_find_barriers(graph, ranges, program->barrier, err);
  }
  for (size_t i = 0; i < graph->tensor_count; i++) {
    program->offsets[i] = ranges[i].begin;
  }
  mgl_free(ranges);
  return status;
}

// Activations where the task graph says.
static void take_layout(mgl_cpu_program *program, const mgl_task_graph *task_graph,
                        size_t *out_bytes) {
  const mgl_graph *graph = program->graph;
  assert(task_graph->tensor_count == graph->tensor_count);
  memcpy(program->offsets, task_graph->activation_offsets,
         graph->tensor_count * sizeof *program->offsets);
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    if (mgl_op_info_of(op->kind)->in_place) {
      assert(program->offsets[op->output] == program->offsets[op->inputs[0]]);
    }
  }
  *out_bytes = (size_t)task_graph->activation_bytes;
}

static mgl_status bind_tensors(mgl_cpu_program *program, mgl_error *err) {
  const mgl_graph *graph = program->graph;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (tensor->placement == MGL_PLACE_WEIGHT) {
      MGL_TRY(mgl_cpu_memory_find_weight(program->memory, tensor, &program->data[i], err));
      program->shorts[i] =
          program->way.short_tokens > 0 ? mgl_cpu_memory_find_short(program->memory, tensor) : NULL;
    } else if (tensor->placement == MGL_PLACE_KV) {
      MGL_TRY(mgl_cpu_memory_find_kv(program->memory, tensor, &program->kv[i], err));
    }
  }
  return MGL_OK;
}

// Debug and sanitized builds check what tiles of experts write.
#ifdef MGL_CHECK_REGIONS
enum { ALWAYS_CHECKS = 1 };
#else
enum { ALWAYS_CHECKS = 0 };
#endif

static mgl_status start_check(mgl_cpu_program *program, const mgl_cpu_program_options *options,
                              mgl_error *err) {
  return ALWAYS_CHECKS || options->check_regions
             ? mgl_cpu_regions_create(program->graph, program->largest.tokens, &program->regions,
                                      err)
             : MGL_OK;
}

// Refuses what was made for the GPU, which does not run here.
static mgl_status check_target(const mgl_graph *graph, const mgl_task_graph *tasks,
                               mgl_error *err) {
  for (size_t i = 0; i < graph->op_count; i++) {
    mgl_op_kind kind = graph->ops[i].kind;
    if (kind == MGL_OP_NEXT_PLAN || kind == MGL_OP_SAMPLE) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "expected a program for the CPU, found the op %s, which runs on a GPU "
                           "only: fuse the model's ops with target cpu",
                           mgl_op_info_of(kind)->name);
    }
  }
  if (tasks != NULL && tasks->target != MGL_TARGET_CPU) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "expected a task graph for the CPU, found one for cuda, whose tiles and "
                         "attention strides are the GPU's: compile it with target cpu");
  }
  return MGL_OK;
}

static mgl_dim_values largest_of(const mgl_cpu_program_options *options) {
  const mgl_task_graph *tasks = options->task_graph;
  return tasks == NULL ? options->largest
                       : (mgl_dim_values){tasks->tokens, tasks->logit_rows, tasks->tokens};
}

mgl_status mgl_cpu_program_measure(const mgl_graph *graph, const mgl_cpu_program_options *options,
                                   mgl_cpu_program_sizes *out, mgl_error *err) {
  mgl_dim_values largest = largest_of(options);
  size_t scratch_bytes = mgl_cpu_scratch_lay_out(graph, &largest).bytes;
  *out = (mgl_cpu_program_sizes){.scratch_bytes = (scratch_bytes + MGL_CPU_SCRATCH_ALIGNMENT - 1) /
                                                  MGL_CPU_SCRATCH_ALIGNMENT *
                                                  MGL_CPU_SCRATCH_ALIGNMENT};
  if (options->task_graph != NULL) {
    out->activation_bytes = (size_t)options->task_graph->activation_bytes;
    return MGL_OK;
  }
  mgl_byte_range *ranges = mgl_alloc_zeroed(graph->tensor_count, sizeof *ranges);
  if (ranges == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a layout of %zu tensors",
                         graph->tensor_count);
  }
  mgl_status status =
      mgl_cpu_layout_pieces(graph, &largest, options->step, ranges, &out->activation_bytes, err);
  mgl_free(ranges);
  return status;
}

mgl_status mgl_cpu_program_create(const mgl_graph *graph, mgl_cpu_memory *memory,
                                  const mgl_cpu_program_options *options, mgl_cpu_program **out,
                                  mgl_error *err) {
  *out = NULL;
  MGL_TRY(check_target(graph, options->task_graph, err));
  mgl_status status = MGL_OK;
  mgl_cpu_program *program = mgl_alloc_zeroed(1, sizeof *program);
  if (program == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a program");
  }
  const mgl_task_graph *tasks = options->task_graph;
  program->graph = graph;
  program->memory = memory;
  program->kernels = memory->options.kernels != NULL ? memory->options.kernels
                                                     : mgl_cpu_kernels_for(options->simd);
  program->way = memory->options.way != NULL ? *memory->options.way : program->kernels->usual;
  program->largest = largest_of(options);
  program->strides = tasks == NULL ? 1 : tasks->attention_strides;
  program->logits = mgl_graph_find(graph, "logits");
  program->act = mgl_graph_act_dtype(graph);
  program->data = mgl_alloc_zeroed(graph->tensor_count, sizeof *program->data);
  program->shorts = mgl_alloc_zeroed(graph->tensor_count, sizeof *program->shorts);
  program->offsets = mgl_alloc_zeroed(graph->tensor_count, sizeof *program->offsets);
  program->kv = mgl_alloc_zeroed(graph->tensor_count, sizeof *program->kv);
  program->pieces = mgl_alloc_zeroed(graph->op_count, sizeof *program->pieces);
  program->only_wanted = options->only_wanted ? mgl_alloc_zeroed(graph->op_count, 1) : NULL;
  if (program->data == NULL || program->shorts == NULL || program->offsets == NULL ||
      program->kv == NULL || program->pieces == NULL ||
      (options->only_wanted && program->only_wanted == NULL)) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a program of %zu ops",
                           graph->op_count);
    goto fail;
  }
  if (options->only_wanted) {
    mgl_cpu_find_wanted(graph, program->only_wanted);
  }
  size_t activation_bytes = 0;
  if (tasks != NULL) {
    take_layout(program, tasks, &activation_bytes);
  } else if ((status = lay_out(program, options->step, &activation_bytes, err)) != MGL_OK) {
    goto fail;
  }
  program->activation_bytes = activation_bytes;
  program->scratch = mgl_cpu_scratch_lay_out(graph, &program->largest);
  if ((status = start_check(program, options, err)) != MGL_OK ||
      (status = bind_tensors(program, err)) != MGL_OK ||
      (status = mgl_cpu_memory_reserve(memory, activation_bytes, program->scratch.bytes,
                                       program->largest.logit_rows, err)) != MGL_OK) {
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
  mgl_free(program->data);
  mgl_free(program->shorts);
  mgl_free(program->offsets);
  mgl_free(program->kv);
  mgl_free(program->barrier);
  mgl_free(program->pieces);
  mgl_free(program->only_wanted);
  mgl_cpu_regions_destroy(program->regions);
  mgl_free(program);
}

// Where the plan's arrays lie; NULL: there is none.
static void set_inputs(mgl_cpu_program *program, const mgl_plan *plan) {
  const struct {
    const char *name;
    const void *data;
  } inputs[] = {{"tokens", plan != NULL ? plan->tokens : MGL_FORWARD_POISON},
                {"positions", plan != NULL ? plan->positions : MGL_FORWARD_POISON},
                {"rope_lengths", plan != NULL ? plan->rope_lengths : MGL_FORWARD_POISON},
                {"slots", plan != NULL ? plan->slots : MGL_FORWARD_POISON},
                {"block_tables", plan != NULL ? plan->block_tables : MGL_FORWARD_POISON},
                {"logit_rows", plan != NULL ? plan->logit_rows : MGL_FORWARD_POISON}};
  for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
    uint32_t tensor = mgl_graph_find(program->graph, inputs[i].name);
    if (tensor != MGL_NO_TENSOR) {
      program->data[tensor] = inputs[i].data;
    }
  }
}

void mgl_cpu_program_set_plan(mgl_cpu_program *program, const mgl_plan *plan) {
  const mgl_cpu_memory_options *memory = &program->memory->options;
  assert(plan->token_count <= program->largest.tokens &&
         plan->logit_row_count <= program->largest.logit_rows &&
         plan->sequence_count <= program->largest.sequences);
  assert(plan->limits.page_tokens == memory->page_tokens);
  mgl_forward_begin(&program->forward, &(mgl_forward){.plan = plan,
                                                      .kv = program->kv,
                                                      .padded_tokens = program->largest.tokens,
                                                      .rank = memory->rank,
                                                      .rank_count = memory->rank_count});
  program->dims = (mgl_dim_values){plan->token_count, plan->logit_row_count, plan->sequence_count};
  program->iteration = ++program->memory->iteration;
  set_inputs(program, plan);
}

void mgl_cpu_program_end_plan(mgl_cpu_program *program) {
  mgl_forward_end(&program->forward);
  set_inputs(program, NULL);
}

void *mgl_cpu_program_tensor(const mgl_cpu_program *program, uint32_t tensor) {
  return program->graph->tensors[tensor].placement == MGL_PLACE_ACTIVATION
             ? program->memory->activations + program->offsets[tensor]
             : (void *)(uintptr_t)program->data[tensor];
}

const float *mgl_cpu_program_part(const mgl_cpu_program *program, uint32_t tensor, uint32_t rank) {
  const mgl_cpu_memory_options *o = &program->memory->options;
  assert(rank < o->rank_count);
  return (const float *)(const void *)(o->shared[rank] + program->offsets[tensor]);
}

// --- running -------------------------------------------------------------------------------------

uint64_t mgl_cpu_program_elements(const mgl_cpu_program *program, uint32_t tensor) {
  return mgl_tensor_elements(&program->graph->tensors[tensor], &program->dims);
}

void *mgl_cpu_program_input(const mgl_cpu_program *program, const mgl_op *op, mgl_role role) {
  uint32_t tensor = mgl_op_input(op, role);
  return tensor == MGL_NO_TENSOR ? NULL : mgl_cpu_program_tensor(program, tensor);
}

size_t mgl_cpu_op_units(const mgl_cpu_program *program, size_t op_idx) {
  const mgl_op *op = &program->graph->ops[op_idx];
  const mgl_tensor *output = &program->graph->tensors[op->output];
  switch (mgl_op_info_of(op->kind)->unit) {
    case MGL_UNIT_ROW: return mgl_cpu_plan(program)->token_count;
    case MGL_UNIT_VECTOR:
      return (size_t)mgl_cpu_program_elements(program, op->output) /
             mgl_op_vector_elements(program->graph, op);
    case MGL_UNIT_COLUMN:
      return mgl_cpu_program_elements(program, mgl_op_input(op, MGL_ROLE_X)) == 0
                 ? 0
                 : mgl_tensor_row_elements(output);
    case MGL_UNIT_EXPERT: return mgl_tensor_row_elements(output);
    case MGL_UNIT_HEAD:
      return (size_t)mgl_cpu_plan(program)->attention_item_count *
             program->kv[mgl_op_input(op, MGL_ROLE_KV)].kv_head_count;
    case MGL_UNIT_ELEMENT:
      return mgl_op_kind_is_exchange(op->kind)
                 ? mgl_op_row_units(program->graph, op)
                 : (size_t)mgl_cpu_program_elements(program, op->output);
    case MGL_UNIT_WHOLE:
    case MGL_UNIT_COUNT: break;
  }
  return 1;
}

size_t mgl_cpu_op_grain(const mgl_cpu_program *program, size_t op_idx) {
  switch (mgl_op_info_of(program->graph->ops[op_idx].kind)->unit) {
    case MGL_UNIT_COLUMN:
    case MGL_UNIT_EXPERT:
      return 16;  // a multiple of every kernel's row block; 64 bytes of f32 output
    case MGL_UNIT_ELEMENT: return 512;  // less is not worth another worker
    default: return 1;
  }
}

static void run_attention(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker, size_t begin,
                          size_t end) {
  const mgl_tensor *q = mgl_graph_input(p->graph, op, MGL_ROLE_Q);
  mgl_attention_args args = {
      .q = mgl_cpu_program_input(p, op, MGL_ROLE_Q),
      .q_stride = (size_t)q->dims[1].number * q->dims[2].number,
      .items = mgl_cpu_plan(p)->attention_items,
      .positions = mgl_cpu_program_input(p, op, MGL_ROLE_POSITIONS),
      .block_tables = mgl_cpu_program_input(p, op, MGL_ROLE_BLOCK_TABLES),
      .block_table_stride = mgl_cpu_plan(p)->limits.pages_per_sequence,
      .kv = p->kv[mgl_op_input(op, MGL_ROLE_KV)],
      .head_count = q->dims[1].number,
      .window = (uint32_t)op->attrs[MGL_ATTR_WINDOW],
      .scale = (float)op->attrs[MGL_ATTR_SCALE],
      .sinks = mgl_cpu_program_input(p, op, MGL_ROLE_SINKS),
      .out = mgl_cpu_program_tensor(p, op->output),
      .out_dtype = p->graph->tensors[op->output].dtype,
  };
  p->kernels->attention(&args, mgl_cpu_work_scratch(p, worker), begin, end);
}

static void run_rope_angles(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  double amplitude = op->attrs[MGL_ATTR_AMPLITUDE];
  mgl_rope_angles_args args = {
      .positions = mgl_cpu_program_input(p, op, MGL_ROLE_POSITIONS),
      .lengths = mgl_cpu_program_input(p, op, MGL_ROLE_LENGTHS),
      .inv_freq = op->values,
      .half_dim = p->graph->tensors[op->output].dims[1].number,
      .amplitude = amplitude == 0 ? 1 : (float)amplitude,
      .original = op->attrs[MGL_ATTR_ORIGINAL],
      .theta = op->attrs[MGL_ATTR_THETA],
      .factor = op->attrs[MGL_ATTR_FACTOR],
      .out = mgl_cpu_program_tensor(p, op->output),
  };
  p->kernels->rope_angles(&args, begin, end);
}

static void run_norm(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  const mgl_tensor *output = &p->graph->tensors[op->output];
  mgl_op_range weights = mgl_op_inputs(op, MGL_ROLE_NORM);
  uint32_t last = op->inputs[weights.first + weights.count - 1];
  mgl_rmsnorm_args args = {
      .x = mgl_cpu_program_input(p, op, MGL_ROLE_X),
      .x_row_index = mgl_cpu_program_input(p, op, MGL_ROLE_ROWS),
      .weight = mgl_cpu_program_input(p, op, MGL_ROLE_NORM),
      .shift = mgl_cpu_program_tensor(p, last),
      .width = mgl_op_vector_elements(p->graph, op),
      .eps = (float)op->attrs[MGL_ATTR_EPS],
      .out = mgl_cpu_program_tensor(p, op->output),
      .out_dtype = output->dtype,
  };
  (weights.count == 2 ? p->kernels->layernorm : p->kernels->rmsnorm)(&args, begin, end);
}

static void run_kv_write(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  const mgl_kv_layer *kv = &p->kv[op->output];
  size_t stride = (size_t)kv->kv_head_count * kv->head_dim;
  mgl_kv_write_args args = {
      .k = mgl_cpu_program_input(p, op, MGL_ROLE_K),
      .v = mgl_cpu_program_input(p, op, MGL_ROLE_V),
      .k_stride = stride,
      .v_stride = stride,
      .head_end = kv->kv_head_count,
      .slots = mgl_cpu_program_input(p, op, MGL_ROLE_SLOTS),
      .kv = *kv,
  };
  p->kernels->kv_write(&args, begin, end);
}

static void run_embed(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  mgl_embed_args args = {
      .tokens = mgl_cpu_program_input(p, op, MGL_ROLE_TOKENS),
      .table = mgl_cpu_program_input(p, op, MGL_ROLE_TABLE),
      .table_dtype = mgl_graph_input(p->graph, op, MGL_ROLE_TABLE)->dtype,
      .table_form = mgl_tensor_form(mgl_graph_input(p->graph, op, MGL_ROLE_TABLE)),
      .width = p->graph->tensors[op->output].dims[1].number,
      .out = mgl_cpu_program_tensor(p, op->output)};
  if (op->attrs[MGL_ATTR_OVER] == 0) {
    p->kernels->embed(&args, begin, end);
    return;
  }
  const uint32_t rows = mgl_graph_input(p->graph, op, MGL_ROLE_TABLE)->dims[0].number;
  const int64_t first = (int64_t)rows * p->memory->options.rank;
  for (size_t row = begin; row < end; row++) {  // of the tokens that this rank has
    const int64_t of = args.tokens[row] - first;
    const int32_t token = (int32_t)of;
    mgl_embed_args one = args;
    one.tokens = &token;
    one.out = args.out + row * args.width;
    if (of >= 0 && of < rows) {
      p->kernels->embed(&one, 0, 1);
    } else {
      memset(one.out, 0, args.width * sizeof *one.out);
    }
  }
}

static void run_rope(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  const mgl_tensor *out = &p->graph->tensors[op->output];
  const mgl_tensor *angles = mgl_graph_input(p->graph, op, MGL_ROLE_ANGLES);
  mgl_rope_args args = {.x = mgl_cpu_program_tensor(p, op->output),
                        .angles = mgl_cpu_program_input(p, op, MGL_ROLE_ANGLES),
                        .head_count = out->dims[1].number,
                        .head_dim = out->dims[2].number,
                        .rotary_dim = 2 * angles->dims[1].number};
  p->kernels->rope(&args, begin, end);
}

static void run_silu_mul(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  mgl_silu_mul_args args = {.gate = mgl_cpu_program_input(p, op, MGL_ROLE_X),
                            .up = mgl_cpu_program_input(p, op, MGL_ROLE_Y),
                            .out = mgl_cpu_program_tensor(p, op->output),
                            .out_dtype = p->graph->tensors[op->output].dtype};
  p->kernels->silu_mul(&args, begin, end);
}

static void run_gelu(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  mgl_gelu_args args = {.x = mgl_cpu_program_input(p, op, MGL_ROLE_X),
                        .out = mgl_cpu_program_tensor(p, op->output),
                        .out_dtype = p->graph->tensors[op->output].dtype};
  p->kernels->gelu(&args, begin, end);
}

static void run_add(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  mgl_add_args args = {.x = mgl_cpu_program_tensor(p, op->output),
                       .y = mgl_cpu_program_input(p, op, MGL_ROLE_Y)};
  p->kernels->add(&args, begin, end);
}

static void run_route(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  const mgl_tensor *out = &p->graph->tensors[op->output];
  mgl_route_args args = {
      .logits = mgl_cpu_program_input(p, op, MGL_ROLE_X),
      .bias = mgl_cpu_program_input(p, op, MGL_ROLE_EXPERT_BIAS),
      .expert_count = mgl_graph_input(p->graph, op, MGL_ROLE_X)->dims[1].number,
      .slots = out->dims[1].number,
      .scores = (mgl_scores)op->attrs[MGL_ATTR_SCORES],
      .renormalise = op->attrs[MGL_ATTR_RENORMALISE] != 0,
      .scale = (float)op->attrs[MGL_ATTR_SCALE],
      .groups = (uint32_t)op->attrs[MGL_ATTR_GROUPS],
      .top_groups = (uint32_t)op->attrs[MGL_ATTR_TOP_GROUPS],
      .out = mgl_cpu_program_tensor(p, op->output),
  };
  mgl_route(&args, begin, end);
}

static void run_zeros(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  memset((float *)mgl_cpu_program_tensor(p, op->output) + begin, 0, (end - begin) * sizeof(float));
}

// Columns [begin, end) of all rows, in the order of the ranks, so that all get the same bits.
static void run_all_reduce(const mgl_cpu_program *p, const mgl_op *op, size_t begin, size_t end) {
  const uint32_t part = mgl_op_input(op, MGL_ROLE_PART);
  const uint32_t ranks = (uint32_t)op->attrs[MGL_ATTR_RANKS];
  const size_t columns = mgl_op_row_units(p->graph, op);
  const size_t rows = (size_t)mgl_cpu_program_elements(p, op->output) / columns;
  float *out = mgl_cpu_program_tensor(p, op->output);
  const float *parts[MGL_MAX_RANKS];
  for (uint32_t rank = 0; rank < ranks; rank++) {
    parts[rank] = mgl_cpu_program_part(p, part, rank);
  }
  for (size_t row = 0; row < rows; row++) {
    for (size_t i = row * columns + begin; i < row * columns + end; i++) {
      float sum = parts[0][i];
      for (uint32_t rank = 1; rank < ranks; rank++) {
        sum += parts[rank][i];
      }
      out[i] += sum;
    }
  }
}

// Columns [begin, end) of this rank's, in the order of the ranks.
static void run_reduce_scatter(const mgl_cpu_program *p, const mgl_op *op, size_t begin,
                               size_t end) {
  const uint32_t part = mgl_op_input(op, MGL_ROLE_PART);
  const uint32_t ranks = (uint32_t)op->attrs[MGL_ATTR_RANKS];
  const size_t columns = mgl_op_row_units(p->graph, op);
  const size_t rows = (size_t)mgl_cpu_program_elements(p, op->output) / columns;
  float *out = mgl_cpu_program_tensor(p, op->output);
  for (size_t row = 0; row < rows; row++) {
    const size_t from = (row * ranks + p->memory->options.rank) * columns;
    const float *first = mgl_cpu_program_part(p, part, 0) + from;
    memcpy(out + row * columns + begin, first + begin, (end - begin) * sizeof *out);
    for (uint32_t rank = 1; rank < ranks; rank++) {
      const float *more = mgl_cpu_program_part(p, part, rank) + from;
      for (size_t i = begin; i < end; i++) {
        out[row * columns + i] += more[i];
      }
    }
  }
}

// Columns [begin, end) of every rank's part.
static void run_all_gather(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker,
                           size_t begin, size_t end) {
  const uint32_t part = mgl_op_input(op, MGL_ROLE_PART);
  const uint32_t ranks = (uint32_t)op->attrs[MGL_ATTR_RANKS];
  const size_t columns = mgl_op_row_units(p->graph, op);
  const size_t rows = (size_t)mgl_cpu_program_elements(p, op->output) / (columns * ranks);
  float *out = mgl_cpu_program_tensor(p, op->output);
  for (uint32_t rank = 0; rank < ranks; rank++) {
    const float *from = mgl_cpu_program_part(p, part, rank);
    for (size_t row = 0; row < rows; row++) {
      memcpy(out + (row * ranks + rank) * columns + begin, from + row * columns + begin,
             (end - begin) * sizeof *out);
    }
    mgl_cpu_program_note_logits(p, op->output, worker, rank * columns + begin,
                                rank * columns + end);
  }
}

// Rows [begin, end) of a custom op.
static void run_custom(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker, size_t begin,
                       size_t end) {
  mgl_custom_call call = {.op = op,
                          .tensors = p->graph->tensors,
                          .output = mgl_cpu_program_tensor(p, op->output),
                          .begin = begin,
                          .end = end};
  call.rows = p->graph->tensors[op->output].dims[0].symbol == MGL_DIM_TOKENS
                  ? mgl_cpu_plan(p)->token_count
                  : mgl_cpu_plan(p)->logit_row_count;
  for (uint32_t i = 0; i < op->input_count; i++) {
    call.inputs[i] = mgl_cpu_program_tensor(p, op->inputs[i]);
  }
  op->custom->run(op->custom, &call);
  mgl_cpu_program_note_logit_rows(p, op->output, worker, begin, end);
}

void mgl_cpu_op_run(const mgl_cpu_program *p, size_t op_idx, uint32_t worker, size_t begin,
                    size_t end) {
  const mgl_op *op = &p->graph->ops[op_idx];
  (void)mgl_cpu_plan(p);
  switch (op->kind) {
    case MGL_OP_EMBED: run_embed(p, op, begin, end); return;
    case MGL_OP_RMSNORM:
    case MGL_OP_LAYERNORM: run_norm(p, op, begin, end); return;
    case MGL_OP_LINEAR:
      mgl_cpu_linear_run(p, (uint32_t)op_idx, worker, (uint32_t)begin, (uint32_t)end);
      return;
    case MGL_OP_ROPE_ANGLES: run_rope_angles(p, op, begin, end); return;
    case MGL_OP_ROPE: run_rope(p, op, begin, end); return;
    case MGL_OP_KV_WRITE: run_kv_write(p, op, begin, end); return;
    case MGL_OP_ATTENTION: run_attention(p, op, worker, begin, end); return;
    case MGL_OP_SILU_MUL: run_silu_mul(p, op, begin, end); return;
    case MGL_OP_GELU: run_gelu(p, op, begin, end); return;
    case MGL_OP_ADD: run_add(p, op, begin, end); return;
    case MGL_OP_ROUTE: run_route(p, op, begin, end); return;
    case MGL_OP_ZEROS: run_zeros(p, op, begin, end); return;
    case MGL_OP_ALL_REDUCE: run_all_reduce(p, op, begin, end); return;
    case MGL_OP_REDUCE_SCATTER: run_reduce_scatter(p, op, begin, end); return;
    case MGL_OP_ALL_GATHER: run_all_gather(p, op, worker, begin, end); return;
    case MGL_OP_CUSTOM:
    case MGL_OP_CUSTOM_UPDATE: run_custom(p, op, worker, begin, end); return;
    case MGL_OP_EXPERT_GATE_UP:
    case MGL_OP_EXPERT_DOWN:
      mgl_cpu_experts_run(p, op, worker, (uint32_t)begin, (uint32_t)end);
      return;
    default: break;  // fused ops run as tasks only, those of the GPU were refused at creation
  }
  assert(0 && "unknown op");
}
