#include "device/cuda/cuda_steps.h"

#include <string.h>

#include "device/cuda/cuda_custom.h"
#include "lower/packed.h"
#include "lower/schedule.h"
#include "task/protocol_check.h"
#include "twin/device_run.h"
#include "twin/protocol.h"

enum { TILE_TOKENS = 8, MOST_ROW_TILES = 4, MOST_CODED_TILES = 2 };

mgl_cu_ptr mgl_cuda_activation(const mgl_cuda_addresses *a, uint32_t graph, uint32_t tensor) {
  return a->base[mgl_cuda_activation_memory(a->layout, graph)] +
         a->layout->activations[graph][tensor];
}

static const float *vector_at(const mgl_cuda_addresses *a, uint64_t offset) {
  return mgl_cuda_vector_at(a->base, offset);
}

static const float *norm_of(const mgl_cuda_addresses *a, const mgl_op *op, uint32_t input) {
  return vector_at(a, a->layout->vectors[op->inputs[input]]);
}

// How many tokens one reading of a weight serves: 8, 16, 32, or twice 32; of codes at most 16.
static void set_tiles(mgl_cuda_op *out, uint32_t rows) {
  if (mgl_op_packing(out) != MGL_PACKING_BF16) {
    out->row_tiles = rows <= TILE_TOKENS ? 1 : MOST_CODED_TILES;
    out->passes = (rows + TILE_TOKENS * MOST_CODED_TILES - 1) / (TILE_TOKENS * MOST_CODED_TILES);
    return;
  }
  out->row_tiles = rows <= TILE_TOKENS ? 1 : rows <= 2 * TILE_TOKENS ? 2 : MOST_ROW_TILES;
  out->passes = rows <= TILE_TOKENS * MOST_ROW_TILES ? 1 : 2;
}

static uint32_t carried_flag(const mgl_cuda_addresses *a, uint32_t graph) {
  return a->layout->copy_bytes[graph] != 0 ? MGL_CUDA_CARRIED : 0;
}

static void bind_x(const mgl_cuda_addresses *a, uint32_t graph, const mgl_op *op, uint32_t input,
                   mgl_cuda_op *out) {
  out->x = mgl_cuda_pointer(mgl_cuda_activation(a, graph, op->inputs[input]));
  out->x_stride = (uint32_t)mgl_tensor_row_elements(&a->program->tensors[op->inputs[input]]);
}

// The router is computed as qkv_proj is, and the experts of one token as gate_up and linear_add, of
// S * F features, whose weights lie elsewhere for every slot (device_run.h).
static void size_mixture(const mgl_graph *program, const mgl_op *op, mgl_cuda_op *out) {
  out->kind = mgl_op_kind_of_one(op->kind);
  if (mgl_op_input(op, MGL_ROLE_ROUTER) == MGL_NO_TENSOR) {
    return;
  }
  out->flags |= MGL_CUDA_EXPERTS;
  out->k = (uint32_t)mgl_tensor_row_elements(mgl_graph_input(program, op, MGL_ROLE_X));
  const uint32_t whole = mgl_op_packing(out) == MGL_PACKING_BF16 ? 1 : MGL_PANEL_K;
  out->k_padded = (out->k + whole - 1) / whole * whole;
  out->row_tiles = 1;
  out->passes = 1;
}

static void size_linear(const mgl_graph *program, uint32_t rows, const mgl_op *op,
                        mgl_cuda_op *out) {
  mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
  out->flags = mgl_packed_flags(&m);
  set_tiles(out, rows);
  out->k = m.k;
  out->k_padded = m.k_padded;
  if (mgl_op_inputs(op, MGL_ROLE_NORM).count > 0) {
    out->flags |= MGL_CUDA_X_NORMED;
  }
  size_mixture(program, op, out);
}

static void bind_linear(const mgl_cuda_addresses *a, uint32_t graph, uint32_t op_idx,
                        mgl_cuda_op *out) {
  const mgl_op *op = &a->program->ops[op_idx];
  bool adds = mgl_op_inputs(op, MGL_ROLE_RESIDUAL).count > 0;
  out->weights = mgl_cuda_pointer(a->base[MGL_CUDA_MEMORY_WEIGHTS] + a->layout->matrices[op_idx]);
  bind_x(a, graph, op, adds ? 1 : 0, out);
  out->flags |= carried_flag(a, graph);
  if (adds) {
    out->residual = mgl_cuda_pointer(mgl_cuda_activation(a, graph, op->inputs[0]));
    out->exchange = mgl_cuda_exchange_of(a->program, op_idx);
  } else {
    out->norm = norm_of(a, op, 1);
  }
  out->bias = vector_at(a, a->layout->extras[op_idx]);
  const mgl_op_range biases = mgl_op_inputs(op, MGL_ROLE_EXPERT_BIAS);
  if (biases.count > 0) {
    out->bias = norm_of(a, op, biases.first);
  }
  if (biases.count > 1) {
    out->residual = norm_of(a, op, biases.first + 1);  // mgl_op_up_bias
  }
  uint32_t logits = mgl_op_input(op, MGL_ROLE_ROUTER);
  if (logits != MGL_NO_TENSOR) {
    out->angles = mgl_cuda_pointer(mgl_cuda_activation(a, graph, logits));
  }
}

static void bind_attend(const mgl_cuda_addresses *a, uint32_t graph, const mgl_op *op,
                        mgl_cuda_op *out) {
  mgl_cu_ptr kv = a->base[MGL_CUDA_MEMORY_KV] + a->layout->kv[op->inputs[1]];
  out->k = a->program->tensors[op->inputs[1]].dims[1].number;
  bind_x(a, graph, op, 0, out);
  out->flags = carried_flag(a, graph);
  out->angles = mgl_cuda_pointer(mgl_cuda_activation(a, graph, op->inputs[2]));
  if (mgl_op_input(op, MGL_ROLE_Q_NORM) != MGL_NO_TENSOR) {
    out->q_norm = norm_of(a, op, 6);
    out->k_norm = norm_of(a, op, 7);
  }
  if (mgl_op_input(op, MGL_ROLE_SINKS) != MGL_NO_TENSOR) {
    out->bias = norm_of(a, op, 6);  // mgl_op_sinks
  }
  out->k_padded = (uint32_t)op->attrs[MGL_ATTR_WINDOW];  // mgl_op_window
  out->k_cache = mgl_cuda_pointer(kv);
  out->v_cache = mgl_cuda_pointer(kv + a->layout->kv_half_bytes);
}

mgl_cuda_op mgl_cuda_size_op(const mgl_graph *program, uint32_t tokens, uint32_t logit_rows,
                             uint32_t op_idx) {
  const mgl_op *op = &program->ops[op_idx];
  const mgl_tensor *result = &program->tensors[op->output];
  mgl_cuda_op out = {.kind = (uint32_t)op->kind,
                     .n = (uint32_t)mgl_tensor_row_elements(result),
                     .eps = (float)op->attrs[MGL_ATTR_EPS],
                     .scale = (float)op->attrs[MGL_ATTR_SCALE],
                     .tokens = tokens};
  if (op->custom != NULL) {
    out.kind = MGL_OP_CUSTOM;  // in place or not
  }
  set_tiles(&out, tokens);
  if (mgl_op_kind_is_linear((uint32_t)op->kind)) {
    bool few = op->kind == MGL_OP_LOGITS && logit_rows < tokens;
    size_linear(program, few ? logit_rows : tokens, op, &out);
  }
  return out;
}

// Whether an op's output is what sample reads.
static bool is_sampled(const mgl_graph *program, const mgl_op *op) {
  for (size_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].kind == MGL_OP_SAMPLE && program->ops[i].inputs[0] == op->output) {
      return true;
    }
  }
  return false;
}

static void bind_custom(const mgl_cuda_addresses *a, uint32_t graph, uint32_t op_idx,
                        mgl_cuda_op *out) {
  const mgl_op *op = &a->program->ops[op_idx];
  out->k = mgl_cuda_custom_number(a->program, op_idx);
  out->flags = is_sampled(a->program, op) ? MGL_CUDA_CUSTOM_LOGITS : 0;
  out->weights =
      mgl_cuda_pointer(a->base[MGL_CUDA_MEMORY_DESCRIPTORS] + a->layout->graphs[graph].customs +
                       mgl_cuda_customs_before(a->program, op_idx) * sizeof(mgl_custom_launch));
}

mgl_custom_launch mgl_cuda_bind_custom(const mgl_cuda_addresses *a, uint32_t graph, uint32_t tokens,
                                       uint32_t op_idx) {
  const mgl_op *op = &a->program->ops[op_idx];
  mgl_custom_launch out = mgl_cuda_custom_bind_task(a->program, op, tokens);
  for (uint32_t i = 0; i < op->input_count; i++) {
    const uint32_t tensor = op->inputs[i];
    if (a->program->tensors[tensor].placement == MGL_PLACE_ACTIVATION) {
      out.inputs[i] = mgl_cuda_pointer(mgl_cuda_activation(a, graph, tensor));
    } else if (a->program->tensors[tensor].placement == MGL_PLACE_WEIGHT) {
      out.inputs[i] = norm_of(a, op, i);
    }
  }
  out.output = mgl_cuda_pointer(mgl_cuda_activation(a, graph, op->output));
  return out;
}

mgl_cuda_op mgl_cuda_bind_op(const mgl_cuda_addresses *a, uint32_t graph, uint32_t tokens,
                             uint32_t op_idx) {
  const mgl_op *op = &a->program->ops[op_idx];
  const mgl_tensor *result = &a->program->tensors[op->output];
  mgl_cuda_op out = mgl_cuda_size_op(a->program, tokens, a->logit_rows, op_idx);
  out.copy_bytes = a->layout->copy_bytes[graph];
  out.out = mgl_cuda_pointer(mgl_cuda_activation(a, graph, op->output));
  if (mgl_op_kind_is_linear((uint32_t)op->kind)) {
    bind_linear(a, graph, op_idx, &out);
    return out;
  }
  switch (op->kind) {
    case MGL_OP_ATTEND: bind_attend(a, graph, op, &out); break;
    case MGL_OP_EMBED:
      out.k = out.n;
      out.weights = mgl_cuda_pointer(a->base[MGL_CUDA_MEMORY_TABLE] + a->layout->matrices[op_idx]);
      break;
    case MGL_OP_ROPE_ANGLES:
      out.k = result->dims[1].number;
      out.angles = vector_at(a, a->layout->extras[op_idx]);
      break;
    case MGL_OP_ALL_GATHER: bind_x(a, graph, op, 0, &out); break;
    case MGL_OP_CUSTOM:
    case MGL_OP_CUSTOM_UPDATE: bind_custom(a, graph, op_idx, &out); break;
    case MGL_OP_SAMPLE:
      bind_x(a, graph, op, 0, &out);
      out.k = out.x_stride;
      out.n = out.x_stride;
      break;
    default: break;  // next_plan: all that it reads is in mgl_cuda_run
  }
  return out;
}

bool mgl_cuda_units_are_apart(const mgl_task_graph *graph, uint32_t op) {
  for (uint32_t worker = 0; worker < graph->worker_count; worker++) {
    uint32_t next_head = 0;
    for (uint32_t i = graph->aot_start[worker]; i < graph->aot_start[worker + 1]; i++) {
      const mgl_task *task = &graph->tasks[graph->aot_tasks[i]];
      if (task->op != op || (task->flags & MGL_TASK_EMPTY) != 0) {
        continue;
      }
      for (uint32_t unit = task->begin; unit < task->end; unit++) {
        uint32_t head = unit / graph->attention_strides;
        if (head < next_head) {
          return false;
        }
        next_head = head + 1;
      }
    }
  }
  return true;
}

uint32_t mgl_cuda_most_units(const mgl_task_graph *graph, uint32_t op) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    if (task->op == op && task->end - task->begin > most) {
      most = task->end - task->begin;
    }
  }
  return most;
}

// How many columns of an op's result make a row block; 1: its units are none.
static uint32_t columns_of_block(const mgl_graph *program, const mgl_op *op) {
  if (mgl_packed_matrices_of(program, op).count == 0) {
    return 1;
  }
  return mgl_op_info_of(op->kind)->cuda_grain;
}

// Triggers that activate the event of a step in each run. (The others' all_gathers gather from as
// many ranks.)
static uint32_t triggers_of(const mgl_graph *program, const mgl_schedule *s,
                            const mgl_schedule_step *step) {
  const double ranks = program->ops[step->op].attrs[MGL_ATTR_RANKS];
  if (step->event == MGL_NO_EVENT) {
    return 0;
  }
  return s->events[step->event].trigger_count * (ranks > 0 ? (uint32_t)ranks : 1);
}

static mgl_cuda_step make_step(const mgl_graph *program, const mgl_task_graph *graph,
                               const mgl_schedule *s, uint32_t task_idx) {
  const mgl_event *trigger = &graph->events[graph->tasks[task_idx].trigger_event];
  const mgl_schedule_step *from = &s->steps[task_idx];
  uint32_t columns = columns_of_block(program, &program->ops[from->op]);
  return (mgl_cuda_step){.task = task_idx,
                         .op = from->op,
                         .begin = from->begin / columns,
                         .end = (from->end + columns - 1) / columns,
                         .wait_event = from->event,
                         .wait_count = triggers_of(program, s, from),
                         .trigger_event = from->trigger,
                         .trigger_kind = (uint32_t)trigger->type << 16 | trigger->flags};
}

// How many of the JIT tasks come before a task.
static uint32_t jit_below(const mgl_cuda_lists *lists, uint32_t jit_count, uint32_t task) {
  mgl_graph_view view = {.jit_tasks = lists->jit_tasks, .jit_count = jit_count};
  return mgl_jit_below(&view, task);
}

mgl_status mgl_cuda_make_steps(const mgl_graph *program, const mgl_task_graph *graph, bool carrying,
                               const mgl_cuda_lists *out, mgl_error *err) {
  mgl_schedule *s = NULL;
  MGL_TRY(mgl_lower_graph(program, graph, carrying ? MGL_LOWER_WORDS : MGL_LOWER_TASKS, &s, err));
  uint32_t jit_count = mgl_protocol_jit_tasks(graph, out->jit_tasks);
  uint32_t listed = s->list_start[s->worker_count];
  for (uint32_t i = 0; i < listed; i++) {
    out->steps[i] = make_step(program, graph, s, s->list[i]);
    out->jit_below[i] = jit_below(out, jit_count, s->list[i]);
  }
  for (uint32_t i = 0; i < jit_count; i++) {
    out->steps[listed + i] = make_step(program, graph, s, out->jit_tasks[i]);
  }
  memcpy(out->step_start, s->list_start, (s->worker_count + (size_t)1) * sizeof *out->step_start);
  *out->hash = mgl_schedule_hash(s);
  mgl_schedule_destroy(s);
  return MGL_OK;
}
