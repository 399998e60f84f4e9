#include "device/cuda/cuda_wide.h"

#include <string.h>

#include "device/cuda/cuda_plan.h"
#include "device/cuda/cuda_steps.h"
#include "lower/packed.h"
#include "lower/schedule.h"
#include "lower/stages.h"
#include "twin/wide_layout.h"

_Static_assert(MGL_WIDE_LEAST_TILE << (MGL_WIDE_TILES - 2) == MGL_WIDE_MOST_TILE,
               "a graph for each size of tiles");
_Static_assert((MGL_CUDA_WIDE_GRAPHS - MGL_WIDE_TILES + 1) * MGL_WIDE_MOST_TILE ==
                   MGL_MAX_ITERATION_TOKENS,
               "and for every multiple of the largest");
_Static_assert(sizeof(mgl_wide_op) == sizeof(mgl_cuda_op) + sizeof(mgl_wide_attention) + 16,
               "no padding that the device might not have");

uint32_t mgl_cuda_wide_graph_for(const mgl_cuda_wide_layout *wide, uint32_t tokens) {
  uint32_t graph = 0;
  while (graph + 1 < wide->graph_count && wide->graphs[graph].tokens < tokens) {
    graph++;
  }
  return graph;
}

// --- graphs --------------------------------------------------------------------------------------

static mgl_stages_graphs graphs_of(const mgl_cuda_wide_sizes *sizes) {
  return (mgl_stages_graphs){sizes->few, sizes->logit_rows, sizes->workers};
}

static mgl_stages_options stages_of(const mgl_graph *program, const mgl_cuda_wide_sizes *sizes,
                                    uint32_t graph) {
  const mgl_stages_graphs of = graphs_of(sizes);
  return mgl_stages_options_of(program, &of, graph);
}

static void *block_at(const mgl_cuda_wide_addresses *a, uint64_t offset) {
  return mgl_cuda_pointer(a->block + offset);
}

static const float *vector_at(const mgl_cuda_wide_addresses *a, uint64_t offset) {
  return mgl_cuda_vector_at(a->base, offset);
}

static const float *norm_of(const mgl_cuda_wide_addresses *a, const mgl_op *op, uint32_t input) {
  return vector_at(a, a->layout->vectors[op->inputs[input]]);
}

static void bind_embed(const mgl_cuda_wide_addresses *a, uint32_t op_idx, mgl_cuda_op *out) {
  const mgl_op *op = &a->program->ops[op_idx];
  out->n = (uint32_t)mgl_tensor_row_elements(&a->program->tensors[op->output]);
  out->out = block_at(a, a->wide->residual);
  out->weights = mgl_cuda_pointer(a->base[MGL_CUDA_MEMORY_TABLE] + a->layout->matrices[op_idx]);
}

static void bind_angles(const mgl_cuda_wide_addresses *a, uint32_t op_idx, mgl_cuda_op *out) {
  out->out = block_at(a, a->wide->angles);
  out->angles = vector_at(a, a->layout->extras[op_idx]);
}

// --- several ranks -------------------------------------------------------------------------------

// The inbox of a linear_add over ranks: of its exchange.
static uint64_t inbox_of(const mgl_cuda_wide_addresses *a, uint32_t op_idx) {
  return a->wide->inbox + mgl_cuda_exchange_of(a->program, op_idx) % 2 * a->wide->inbox_bytes;
}

// Where a norm finds the parts that the linear_add before has left.
static uint64_t parts_before(const mgl_cuda_wide_addresses *a, const mgl_op *linear) {
  for (uint32_t i = 0; i < a->program->op_count; i++) {
    if (a->program->ops[i].output == linear->inputs[0] &&
        mgl_cuda_exchange_of(a->program, i) != 0) {
      return inbox_of(a, i);
    }
  }
  return a->wide->parts;
}

// What a linear over ranks sends, and where it begins with it.
static void bind_over(const mgl_cuda_wide_addresses *a, const mgl_schedule_op *of,
                      mgl_wide_op *out) {
  const mgl_cuda_peers *peers = a->peers;
  mgl_wide_over *over = &out->with.over;
  uint64_t to = 0;
  if (of->kind == MGL_OP_LOGITS) {
    over->row = a->model->vocab;
    over->first = peers->rank * out->op.n;
    to = a->wide->logits + over->first * sizeof(float);
  } else {
    to = inbox_of(a, of->op) + (uint64_t)peers->rank * of->splits * out->op.copy_bytes;
  }
  out->op.out = block_at(a, to);
}

// The norm in front of a linear, whose inputs 0 and 1 are the residual stream and the norm's
// weights. rows: of the result; parts: that the linear before left, which the norm adds.
static mgl_cuda_op norm_before(const mgl_cuda_wide_addresses *a, const mgl_schedule *s,
                               uint32_t op_idx, uint32_t rows, uint32_t parts) {
  const mgl_cuda_wide_layout *wide = a->wide;
  const mgl_op *op = &a->program->ops[op_idx];
  mgl_packed_matrices m = mgl_packed_matrices_of(a->program, op);
  bool gathers = op->kind == MGL_OP_LOGITS;
  return (mgl_cuda_op){.kind = MGL_OP_RMSNORM,
                       .flags = gathers ? MGL_WIDE_GATHERS : 0,
                       .k = m.k,
                       .k_padded = m.k_padded,
                       .n = m.k,
                       .tokens = s->tokens,
                       .row_tiles = rows,
                       .passes = parts,
                       .copy_bytes = mgl_stages_stream_bytes(s->tokens, m.k),
                       .x = block_at(a, wide->residual),
                       .residual = block_at(a, wide->squares),
                       .out = block_at(a, gathers ? wide->gathered : wide->x),
                       .norm = norm_of(a, op, 1),
                       .bias = parts > 1 ? block_at(a, parts_before(a, op)) : NULL};
}

static mgl_wide_attention attention_of(const mgl_cuda_wide_addresses *a, const mgl_schedule *s,
                                       uint32_t op_idx) {
  const mgl_cuda_wide_layout *wide = a->wide;
  const mgl_op *op = &a->program->ops[op_idx];
  uint64_t image = wide->image;
  mgl_cu_ptr kv = a->base[MGL_CUDA_MEMORY_KV] + a->layout->kv[op->inputs[1]];
  bool normed = op->input_count > 6;
  return (mgl_wide_attention){
      .qkv = block_at(a, wide->qkv),
      .q = block_at(a, wide->q),
      .out = block_at(a, wide->attended),
      .angles = block_at(a, wide->angles),
      .q_norm = normed ? norm_of(a, op, 6) : NULL,
      .k_norm = normed ? norm_of(a, op, 7) : NULL,
      .k_cache = mgl_cuda_pointer(kv),
      .v_cache = mgl_cuda_pointer(kv + a->layout->kv_half_bytes),
      .positions = block_at(a, image + wide->plan + offsetof(mgl_wide_plan, positions)),
      .slots = block_at(a, image + wide->plan + offsetof(mgl_wide_plan, slots)),
      .work = block_at(a, image + wide->work),
      .stream_partials = block_at(a, wide->stream_partials),
      .tile_partials = block_at(a, wide->tile_partials),
      .merges = block_at(a, wide->merges),
      .block_table_stride = wide->sizes.pages_per_sequence,
      .kv_heads = a->model->kv_heads,
      .tokens = s->tokens,
      .eps = (float)op->attrs[MGL_ATTR_EPS],
      .scale = (float)op->attrs[MGL_ATTR_SCALE]};
}

// Where a linear's x, result and other activations lie.
static void place_linear(const mgl_cuda_wide_addresses *a, const mgl_op *op, mgl_cuda_op *out) {
  const mgl_cuda_wide_layout *wide = a->wide;
  uint64_t to = 0;
  uint64_t from = wide->x;
  switch (op->kind) {
    case MGL_OP_QKV_PROJ: to = wide->qkv; break;
    case MGL_OP_GATE_UP: to = wide->gated; break;
    case MGL_OP_ROUTER: to = wide->router; break;
    case MGL_OP_LOGITS: to = wide->logits, from = wide->gathered; break;
    default:
      to = out->passes > 1 ? wide->parts : wide->residual;
      // Its x comes from attend or from gate_up.
      from = a->program->tensors[op->inputs[1]].rank == 3 ? wide->attended : wide->gated;
      break;
  }
  out->x = block_at(a, from);
  out->out = block_at(a, to);
  out->residual = block_at(a, wide->residual);
  if (op->kind != MGL_OP_LINEAR_ADD) {
    out->norm = block_at(a, wide->squares);
    out->eps = (float)op->attrs[MGL_ATTR_EPS];
  }
}

// Where the bf16 of a linear's codes lies.
static void *widened_at(const mgl_cuda_wide_addresses *a, const mgl_schedule *s, uint32_t op_idx) {
  const mgl_op *op = &a->program->ops[op_idx];
  return block_at(
      a, a->wide->widened +
             mgl_stages_widened_at(a->program, mgl_stages_widened(a->program, op), s->tile_tokens));
}

static const uint8_t *weights_at(const mgl_cuda_wide_addresses *a, uint32_t op_idx) {
  return mgl_cuda_pointer(a->base[MGL_CUDA_MEMORY_WEIGHTS] + a->layout->matrices[op_idx]);
}

// What makes bf16 of a linear's codes.
static void bind_widening(const mgl_cuda_wide_addresses *a, const mgl_schedule *s,
                          const mgl_schedule_op *of, mgl_cuda_op *out) {
  const mgl_packed_matrices m = mgl_packed_matrices_of(a->program, &a->program->ops[of->op]);
  out->flags = of->flags | mgl_packed_flags(&m);
  out->k = m.k;
  out->k_padded = m.k_padded;
  out->weights = weights_at(a, of->op);
  out->out = widened_at(a, s, of->op);
}

static void bind_linear(const mgl_cuda_wide_addresses *a, const mgl_schedule *s,
                        const mgl_schedule_op *of, mgl_wide_op *out) {
  const mgl_op *op = &a->program->ops[of->op];
  mgl_packed_matrices m = mgl_packed_matrices_of(a->program, op);
  const bool widened = (of->flags & MGL_WIDE_WIDENED) != 0;
  out->op.flags = of->flags | (widened ? 0 : mgl_packed_flags(&m));
  out->op.k = m.k;
  out->op.k_padded = m.k_padded;
  out->op.n = (uint32_t)mgl_tensor_row_elements(&a->program->tensors[op->output]);
  out->op.tokens = of->rows;
  if (op->kind == MGL_OP_LINEAR_ADD) {
    out->op.copy_bytes = mgl_stages_stream_bytes(s->tokens, out->op.n);
  }
  if ((of->flags & MGL_WIDE_WEIGHS) != 0) {
    const bool over = (of->flags & MGL_WIDE_OVER) != 0;
    out->with.norm = norm_before(a, s, of->with, s->tokens, over ? a->peers->count : of->splits);
    out->op.exchange = over ? a->wide->stages + of->first_shared : 0;
  } else if ((of->flags & MGL_WIDE_ROTATES) != 0) {
    out->with.attention = attention_of(a, s, of->with);
  }
  if (of->first_shared != MGL_NOT_SHARED) {
    out->arrived = block_at(a, a->wide->arrived + of->first_shared * sizeof(uint32_t));
    out->parts = block_at(a, a->wide->parts);
  }
  place_linear(a, op, &out->op);
  if ((of->flags & MGL_WIDE_OVER) != 0 && (of->flags & MGL_WIDE_WEIGHS) == 0) {
    bind_over(a, of, out);
  }
  out->op.weights = widened ? widened_at(a, s, of->op) : weights_at(a, of->op);
  out->op.bias = op->kind == MGL_OP_QKV_PROJ ? vector_at(a, a->layout->extras[of->op]) : NULL;
}

// --- experts -------------------------------------------------------------------------------------

static mgl_wide_experts experts_of(const mgl_cuda_wide_addresses *a, const mgl_schedule *s,
                                   const mgl_stages_mixture *m) {
  const mgl_cuda_wide_layout *wide = a->wide;
  return (mgl_wide_experts){.routes = block_at(a, wide->routes),
                            .counts = block_at(a, wide->counts),
                            .places = block_at(a, wide->places),
                            .tiles = block_at(a, wide->tiles),
                            .tile_count = block_at(a, wide->tile_count),
                            .rows = block_at(a, wide->slot_rows),
                            .squares = block_at(a, wide->squares),
                            .x = block_at(a, wide->x),
                            .sorted_rows = mgl_wide_sorted_rows(s->tokens, m->experts, m->slots)};
}

// Of an op of experts that it computes, or a part of it.
static void bind_experts(const mgl_cuda_wide_addresses *a, const mgl_schedule *s,
                         const mgl_schedule_op *of, mgl_wide_op *out) {
  const mgl_cuda_wide_layout *wide = a->wide;
  const mgl_op *op = &a->program->ops[of->op];
  const mgl_packed_matrices matrices = mgl_packed_matrices_of(a->program, op);
  const mgl_stages_mixture m = mgl_stages_mixture_of(a->program, op);
  const uint32_t row = (uint32_t)mgl_tensor_row_elements(&a->program->tensors[op->output]);
  out->with.experts = experts_of(a, s, &m);
  out->op.flags = of->flags | mgl_packed_flags(&matrices);
  out->op.k = matrices.k;
  out->op.k_padded = matrices.k_padded;
  out->op.n = m.up ? m.features : row;
  if (of->kind != (uint32_t)op->kind && m.up) {
    out->op.eps = (float)op->attrs[MGL_ATTR_EPS];
    out->op.x = block_at(a, (of->flags & MGL_WIDE_GATHERS) != 0 ? wide->x : wide->router);
    out->op.out = block_at(a, wide->sorted);
    return;
  }
  if (of->kind != (uint32_t)op->kind) {
    out->op.x = block_at(a, wide->slot_sums);
    out->op.out = block_at(a, wide->residual);
    if ((of->flags & MGL_WIDE_WEIGHS) != 0) {
      out->op.norm = norm_of(a, &a->program->ops[of->with], 1);
    }
    return;
  }
  out->op.tokens = out->with.experts.sorted_rows;
  out->op.x = block_at(a, m.up ? wide->sorted : wide->gated);
  out->op.out = block_at(a, m.up ? wide->gated : wide->slot_sums);
  out->op.weights =
      mgl_cuda_pointer(a->base[MGL_CUDA_MEMORY_WEIGHTS] + a->layout->matrices[of->op]);
}

static mgl_wide_op bind_op(const mgl_cuda_wide_addresses *a, const mgl_schedule *s,
                           const mgl_schedule_op *of) {
  mgl_wide_op out = {.op = {.kind = of->kind, .tokens = s->tokens, .passes = of->splits}};
  const mgl_op *op = &a->program->ops[of->op];
  if (mgl_stages_mixture_of(a->program, op).experts != 0 && of->kind != MGL_OP_RMSNORM) {
    bind_experts(a, s, of, &out);
    return out;
  }
  switch (of->kind) {
    case MGL_WIDE_WIDEN: bind_widening(a, s, of, &out.op); break;
    case MGL_OP_EMBED: bind_embed(a, of->op, &out.op); break;
    case MGL_OP_ROPE_ANGLES: bind_angles(a, of->op, &out.op); break;
    case MGL_OP_RMSNORM:
      out.op = norm_before(a, s, of->op, of->rows, of->splits);
      out.op.flags = of->flags;
      break;
    case MGL_OP_KV_WRITE:
    case MGL_OP_ATTEND:
      out.with.attention = attention_of(a, s, of->op);
      out.op.flags = of->flags;
      break;
    default:
      if (!mgl_op_kind_is_exchange((mgl_op_kind)of->kind)) {  // that only waits
        bind_linear(a, s, of, &out);
      }
      break;
  }
  return out;
}

// Whether a step is computed.
static bool is_in(mgl_cuda_wide_range range, uint32_t op) {
  return op >= range.first && op <= range.last;
}

// Events count the steps of the range that trigger them, of all ranks.
static void count_triggers(const mgl_cuda_wide_addresses *a, mgl_schedule *s,
                           mgl_cuda_wide_range range) {
  for (uint32_t i = 0; i < s->event_count; i++) {
    s->events[i].trigger_count = 0;
  }
  for (uint32_t i = 0; i < s->step_count; i++) {
    const mgl_schedule_op *op = &s->ops[s->steps[i].op];
    const uint32_t others = mgl_stages_others(op, s->steps[i].trigger);
    if (is_in(range, op->op)) {
      s->events[s->steps[i].trigger].trigger_count++;
      if (others != MGL_NO_EVENT) {
        s->events[others].trigger_count += a->peers->count - 1;
      }
    }
  }
}

static mgl_cuda_step make_step(const mgl_schedule *s, uint32_t idx) {
  const mgl_schedule_step *step = &s->steps[idx];
  const uint32_t event = step->event;
  return (mgl_cuda_step){.task = idx,
                         .op = step->op,
                         .begin = step->begin,
                         .end = step->end,
                         .wait_event = event,
                         .wait_count = event == MGL_NO_EVENT ? 0 : s->events[event].trigger_count,
                         .trigger_event = step->trigger,
                         .trigger_kind = mgl_stages_others(&s->ops[step->op], step->trigger)};
}

// Whether an op of the range has its norm or its rotation in one that is not.
static bool is_cut(const mgl_schedule *s, mgl_cuda_wide_range range) {
  bool cut = false;
  for (uint32_t i = 0; i < s->op_count; i++) {
    const bool helps = (s->ops[i].flags & (MGL_WIDE_WEIGHS | MGL_WIDE_ROTATES)) != 0;
    cut = cut || (helps && !is_in(range, s->ops[i].op) && is_in(range, s->ops[i].with));
  }
  return cut;
}

mgl_status mgl_cuda_wide_make_graph(const mgl_cuda_wide_addresses *a, uint32_t graph,
                                    mgl_cuda_wide_range range, const mgl_cuda_wide_lists *out,
                                    mgl_error *err) {
  mgl_stages_options options = stages_of(a->program, &a->wide->sizes, graph);
  mgl_schedule *s = NULL;
  uint32_t count = 0;
  MGL_TRY(mgl_lower_stages(a->program, &options, &s, err));
  if (out->hash != NULL) {
    *out->hash = mgl_schedule_hash(s);
  }
  for (uint32_t i = 0; i < s->op_count; i++) {
    out->ops[i] = bind_op(a, s, &s->ops[i]);
  }
  for (uint32_t i = 0; i < s->op_count && range.last < a->program->op_count - 1; i++) {
    out->ops[i].op.flags &= ~(uint32_t)MGL_WIDE_WANTED;  // somebody looks at all rows
  }
  const bool cut = is_cut(s, range);
  count_triggers(a, s, range);
  for (uint32_t list = 0; list < MGL_WIDE_LISTS_OF(s->worker_count); list++) {
    out->step_start[list] = count;
    const uint32_t worker = list % s->worker_count;
    for (uint32_t i = s->list_start[worker]; i < s->list_start[worker + 1]; i++) {
      const mgl_schedule_op *op = &s->ops[s->steps[s->list[i]].op];
      const bool beside = (op->flags & MGL_WIDE_BESIDE) != 0;
      if (is_in(range, op->op) && beside == (list >= s->worker_count)) {
        out->steps[count++] = make_step(s, s->list[i]);
      }
    }
  }
  out->step_start[MGL_WIDE_LISTS_OF(s->worker_count)] = count;
  if (out->cut != NULL) {
    *out->cut = cut;
  }
  mgl_schedule_destroy(s);
  return MGL_OK;
}

// Elements of a row of the widest result of an op of that kind.
static uint32_t widest(const mgl_graph *program, mgl_op_kind kind) {
  uint32_t most = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    uint32_t row = (uint32_t)mgl_tensor_row_elements(&program->tensors[program->ops[i].output]);
    most = program->ops[i].kind == kind && row > most ? row : most;
  }
  return most;
}

static uint32_t padded(uint32_t k) {
  return mgl_ceil_div(k, MGL_WIDE_K) * MGL_WIDE_K;
}

// --- looking at what they make -------------------------------------------------------------------

bool mgl_cuda_wide_find(const mgl_graph *program, const mgl_cuda_wide_layout *wide, uint32_t tokens,
                        const char *name, mgl_cuda_wide_value *out) {
  const uint32_t tensor = mgl_graph_find(program, name);
  uint32_t op = 0;
  while (op < program->op_count && program->ops[op].output != tensor) {
    op++;
  }
  if (tensor == MGL_NO_TENSOR || op == program->op_count) {
    return false;
  }
  const uint32_t columns = (uint32_t)mgl_tensor_row_elements(&program->tensors[tensor]);
  const uint32_t rows = wide->graphs[mgl_cuda_wide_graph_for(wide, tokens)].tokens;
  *out = (mgl_cuda_wide_value){.rows = rows, .columns = columns};
  switch (program->ops[op].kind) {
    case MGL_OP_ROPE_ANGLES: out->at = wide->angles; break;
    case MGL_OP_LOGITS:
      out->at = wide->logits;
      out->rows = wide->sizes.logit_rows;
      break;
    case MGL_OP_QKV_PROJ:
      out->form = MGL_CUDA_WIDE_QKV;
      out->at = wide->qkv;
      // K and V have as many heads.
      out->halves = columns - (columns - widest(program, MGL_OP_ATTEND)) / 2;
      out->bytes = (uint64_t)rows * columns * sizeof(mgl_bf16);
      return true;
    case MGL_OP_ATTEND:
    case MGL_OP_GATE_UP:
      out->form = MGL_CUDA_WIDE_X;
      out->at = program->ops[op].kind == MGL_OP_ATTEND ? wide->attended : wide->gated;
      out->bytes = mgl_wide_x_bytes(rows, padded(columns));
      return true;
    case MGL_OP_EMBED:
    case MGL_OP_LINEAR_ADD:
      out->form = MGL_CUDA_WIDE_RESIDUAL;
      out->at = wide->residual;
      out->bytes = (uint64_t)rows * padded(columns) * sizeof(float);
      return true;
    default: return false;
  }
  out->bytes = (uint64_t)out->rows * columns * sizeof(float);
  return true;
}

// Byte of element i.
static size_t place_of(const mgl_cuda_wide_value *value, size_t i) {
  const uint32_t row = (uint32_t)(i / value->columns), column = (uint32_t)(i % value->columns);
  switch (value->form) {
    case MGL_CUDA_WIDE_X: return (size_t)mgl_wide_x_offset(value->rows, row, column);
    case MGL_CUDA_WIDE_RESIDUAL: return (size_t)mgl_wide_residual_offset(value->rows, row, column);
    case MGL_CUDA_WIDE_QKV: return i * sizeof(mgl_bf16);
    default: return i * sizeof(float);
  }
}

// Whether element i is f16, or at least no f32.
static bool is_f16(const mgl_cuda_wide_value *value, size_t i) {
  return value->form == MGL_CUDA_WIDE_QKV && i % value->columns < value->halves;
}
static bool is_short(const mgl_cuda_wide_value *value) {
  return value->form == MGL_CUDA_WIDE_X || value->form == MGL_CUDA_WIDE_QKV;
}

void mgl_cuda_wide_unpack(const mgl_cuda_wide_value *value, const unsigned char *bytes,
                          size_t count, float *out) {
  for (size_t i = 0; i < count; i++) {
    uint16_t bits = 0;
    if (is_short(value)) {
      memcpy(&bits, bytes + place_of(value, i), sizeof bits);
      out[i] = is_f16(value, i) ? mgl_f16_to_f32(bits) : mgl_bf16_to_f32(bits);
    } else {
      memcpy(&out[i], bytes + place_of(value, i), sizeof *out);
    }
  }
}

void mgl_cuda_wide_pack(const mgl_cuda_wide_value *value, const float *from, size_t count,
                        unsigned char *bytes) {
  for (size_t i = 0; i < count; i++) {
    const uint16_t bits = is_f16(value, i) ? mgl_f32_to_f16(from[i]) : mgl_f32_to_bf16(from[i]);
    if (is_short(value)) {
      memcpy(bytes + place_of(value, i), &bits, sizeof bits);
    } else {
      memcpy(bytes + place_of(value, i), &from[i], sizeof *from);
    }
  }
}

// --- memory --------------------------------------------------------------------------------------

// Of all mixtures of a program, which have as many experts and slots (cuda_layout.c).
static void lay_out_experts(const mgl_graph *program, uint64_t *gated, mgl_cuda_wide_layout *out) {
  const uint32_t tokens = out->graphs[out->graph_count - 1].tokens;
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_stages_mixture m = mgl_stages_mixture_of(program, &program->ops[i]);
    if (m.experts == 0) {
      continue;
    }
    const uint32_t hidden = padded(widest(program, MGL_OP_EMBED));
    const uint64_t slots = (uint64_t)tokens * m.slots;
    const uint32_t rows = mgl_wide_sorted_rows(tokens, m.experts, m.slots);
    const uint32_t tiles = mgl_wide_most_tiles(tokens, m.experts, m.slots, MGL_WIDE_LEAST_TILE);
    *gated = mgl_wide_x_bytes(rows, padded(m.features));
    out->router = mgl_cuda_take(&out->bytes, (uint64_t)tokens * m.experts * sizeof(float));
    out->sorted = mgl_cuda_take(&out->bytes, mgl_wide_x_bytes(rows, hidden));
    out->slot_sums = mgl_cuda_take(&out->bytes, (uint64_t)rows * hidden * sizeof(mgl_bf16));
    out->routes = mgl_cuda_take(&out->bytes, slots * sizeof(mgl_wide_route));
    out->counts = mgl_cuda_take(&out->bytes,
                                (uint64_t)tokens / MGL_WIDE_ROUTED * m.experts * sizeof(uint32_t));
    out->places = mgl_cuda_take(&out->bytes, slots * sizeof(uint32_t));
    out->tiles = mgl_cuda_take(&out->bytes, (uint64_t)tiles * sizeof(mgl_wide_expert_tile));
    out->tile_count = mgl_cuda_take(&out->bytes, sizeof(uint32_t));
    // Behind the last row the factors of a whole tile are read.
    out->slot_rows = mgl_cuda_take(
        &out->bytes, ((uint64_t)rows + MGL_WIDE_MOST_EXPERTS_TILE) * sizeof(mgl_wide_slot_row));
    return;
  }
}

static void lay_out_activations(const mgl_graph *program, const mgl_cuda_model *model,
                                uint64_t part_bytes, uint32_t gathered, mgl_cuda_wide_layout *out) {
  const mgl_cuda_wide_sizes *sizes = &out->sizes;
  uint32_t tokens = out->graphs[out->graph_count - 1].tokens;
  uint32_t hidden = widest(program, MGL_OP_EMBED);
  uint32_t heads = widest(program, MGL_OP_ATTEND);
  uint64_t logit_rows = sizes->logit_rows;
  out->residual = mgl_cuda_take(&out->bytes, (uint64_t)tokens * padded(hidden) * sizeof(float));
  out->squares =
      mgl_cuda_take(&out->bytes, (uint64_t)mgl_ceil_div(hidden, MGL_WIDE_NORM_RANGE) * tokens * 4);
  out->x = mgl_cuda_take(&out->bytes, mgl_wide_x_bytes(tokens, padded(hidden)));
  out->qkv = mgl_cuda_take(&out->bytes, (uint64_t)tokens * widest(program, MGL_OP_QKV_PROJ) * 2);
  out->q = mgl_cuda_take(&out->bytes, (uint64_t)tokens * heads * 2);
  out->attended = mgl_cuda_take(&out->bytes, mgl_wide_x_bytes(tokens, padded(heads)));
  uint64_t gated = mgl_wide_x_bytes(tokens, padded(widest(program, MGL_OP_GATE_UP)));
  uint64_t of_experts = 0;
  lay_out_experts(program, &of_experts, out);
  out->gated = mgl_cuda_take(&out->bytes, of_experts > gated ? of_experts : gated);
  out->gathered = mgl_cuda_take(&out->bytes, mgl_wide_x_bytes(gathered, padded(hidden)));
  out->logits = mgl_cuda_take(&out->bytes, logit_rows * model->vocab * sizeof(float));
  out->angles = mgl_cuda_take(&out->bytes, (uint64_t)tokens * model->head_dim * sizeof(float));
  out->part_bytes = part_bytes;
  out->parts = mgl_cuda_take(&out->bytes, part_bytes);
  out->inbox = mgl_cuda_take(&out->bytes, 2 * out->inbox_bytes);
  out->widened = mgl_cuda_take(&out->bytes, out->widened_bytes);
  out->stream_partial_bytes = mgl_wide_stream_partial_bytes(sizes->workers, model->head_dim);
  out->stream_partials = mgl_cuda_take(&out->bytes, out->stream_partial_bytes);
  out->tile_partials =
      mgl_cuda_take(&out->bytes, mgl_wide_tile_partial_bytes(sizes->workers, model->head_dim));
  out->merge_bytes = (uint64_t)MGL_WIDE_MAX_ITEMS * model->kv_heads * sizeof(uint32_t);
  out->merges = mgl_cuda_take(&out->bytes, out->merge_bytes);
}

static void lay_out_image(mgl_cuda_wide_layout *out) {
  const mgl_cuda_wide_sizes *sizes = &out->sizes;
  uint64_t bytes = 0;
  (void)mgl_cuda_take(&bytes, sizeof(mgl_wide_run));
  out->plan = mgl_cuda_take(&bytes, sizeof(mgl_wide_plan));
  out->work = mgl_cuda_take(&bytes, sizeof(mgl_wide_work));
  out->tables = mgl_cuda_take(
      &bytes, (uint64_t)sizes->sequences * sizes->pages_per_sequence * sizeof(int32_t));
  out->image_bytes = bytes;
  out->image = mgl_cuda_take(&out->bytes, bytes);
}

// The graph of so many tokens, and what its steps leave for each other.
static mgl_status lay_out_graph(const mgl_graph *program, uint32_t graph, uint64_t *part_bytes,
                                mgl_cuda_wide_layout *out, mgl_error *err) {
  mgl_stages_options options = stages_of(program, &out->sizes, graph);
  mgl_cuda_wide_graph *g = &out->graphs[graph];
  mgl_schedule *s = NULL;
  MGL_TRY(mgl_lower_stages(program, &options, &s, err));
  g->tokens = options.tokens;
  g->tile_tokens = options.tile_tokens;
  g->op_count = s->op_count;
  g->step_count = s->step_count;
  g->stage_count = s->event_count;
  g->ops = mgl_cuda_take(&out->bytes, (uint64_t)g->op_count * sizeof(mgl_wide_op));
  g->steps = mgl_cuda_take(&out->bytes, (uint64_t)g->step_count * sizeof(mgl_cuda_step));
  g->step_start = mgl_cuda_take(
      &out->bytes, (MGL_WIDE_LISTS_OF(out->sizes.workers) + UINT64_C(1)) * sizeof(uint32_t));
  out->widened_bytes =
      s->widened_bytes > out->widened_bytes ? s->widened_bytes : out->widened_bytes;
  *part_bytes = s->part_bytes > *part_bytes ? s->part_bytes : *part_bytes;
  out->inbox_bytes = s->inbox_bytes > out->inbox_bytes ? s->inbox_bytes : out->inbox_bytes;
  out->shared_tiles = s->shared_tiles > out->shared_tiles ? s->shared_tiles : out->shared_tiles;
  mgl_schedule_destroy(s);
  return MGL_OK;
}

mgl_status mgl_cuda_wide_lay_out(const mgl_graph *program, const mgl_cuda_model *model,
                                 const mgl_cuda_wide_sizes *sizes, mgl_cuda_wide_layout *out,
                                 mgl_error *err) {
  *out = (mgl_cuda_wide_layout){.sizes = *sizes};
  const mgl_stages_graphs of = graphs_of(sizes);
  out->graph_count = mgl_stages_graph_for(program, &of, sizes->tokens) + 1;
  uint32_t stages = 0;
  uint32_t gathered = 0;
  uint64_t part_bytes = 0;
  for (uint32_t i = 0; i < out->graph_count; i++) {
    MGL_TRY(lay_out_graph(program, i, &part_bytes, out, err));
    mgl_stages_options options = stages_of(program, sizes, i);
    uint32_t rows = mgl_stages_gathered_rows(&options);
    gathered = rows > gathered ? rows : gathered;
    stages = out->graphs[i].stage_count > stages ? out->graphs[i].stage_count : stages;
  }
  lay_out_activations(program, model, part_bytes, gathered, out);
  lay_out_image(out);
  out->zeros = mgl_cuda_take(&out->bytes, stages * sizeof(mgl_word));
  out->best = mgl_cuda_take(&out->bytes, sizes->logit_rows * sizeof(uint64_t));
  out->arrived = mgl_cuda_take(&out->bytes, out->shared_tiles * sizeof(uint32_t));
  out->stage_ns = mgl_cuda_take(&out->bytes, stages * sizeof(uint64_t));
  out->zero_bytes = out->bytes - out->zeros;
  if (sizes->ranks > 1) {
    out->stages = stages;
    out->counters_bytes = (stages + out->shared_tiles) * sizeof(mgl_word);
    out->counters = mgl_cuda_take(&out->bytes, 2 * out->counters_bytes);
  }
  return MGL_OK;
}

// --- the image -----------------------------------------------------------------------------------

static mgl_word *counters_at(const mgl_cuda_wide_addresses *a, uint32_t idx) {
  const mgl_cuda_wide_layout *wide = a->wide;
  return a->peers == NULL
             ? mgl_cuda_pointer(a->block + wide->zeros)
             : mgl_cuda_pointer(a->block + wide->counters + idx * wide->counters_bytes);
}

void mgl_cuda_wide_set_run(const mgl_cuda_wide_addresses *a, uint32_t tokens,
                           const int32_t *block_tables, unsigned char *image) {
  const mgl_cuda_wide_layout *wide = a->wide;
  const mgl_cuda_wide_graph *g = &wide->graphs[mgl_cuda_wide_graph_for(wide, tokens)];
  mgl_wide_run run = {.block_tables = block_tables,
                      .steps = mgl_cuda_pointer(a->block + g->steps),
                      .tile_tokens = g->tile_tokens,
                      .step_start = mgl_cuda_pointer(a->block + g->step_start),
                      .ops = mgl_cuda_pointer(a->block + g->ops),
                      .counters = counters_at(a, 0),
                      .plan = mgl_cuda_pointer(a->block + wide->image + wide->plan),
                      .best = mgl_cuda_pointer(a->block + wide->best),
                      .stage_ns = mgl_cuda_pointer(a->block + wide->stage_ns)};
  if (a->peers != NULL) {
    run.rank = a->peers->rank;
    run.rank_count = a->peers->count;
    for (uint32_t rank = 0; rank < a->peers->count; rank++) {
      run.peers[rank] = (int64_t)(a->peers->at[rank] - a->peers->at[a->peers->rank]);
    }
  }
  memcpy(image, &run, sizeof run);
}

_Static_assert((int)MGL_WIDE_LISTS == (int)MGL_CUDA_WIDE_GRAPHS, "one for each graph");

// Where attention's work of a graph is cut.
static uint32_t border_of(const mgl_cuda_wide_addresses *a, uint32_t graph) {
  const mgl_stages_options options = stages_of(a->program, &a->wide->sizes, graph);
  return mgl_stages_border(a->program, &options);
}

mgl_wide_chain mgl_cuda_wide_make_chain(const mgl_cuda_wide_addresses *a) {
  const mgl_cuda_wide_layout *wide = a->wide;
  mgl_cu_ptr image = a->block + wide->image;
  mgl_wide_chain chain = {.run = mgl_cuda_pointer(image),
                          .plan = mgl_cuda_pointer(image + wide->plan),
                          .work = mgl_cuda_pointer(image + wide->work),
                          .zeros = mgl_cuda_pointer(a->block + wide->zeros),
                          .zero_count = wide->zero_bytes / sizeof(uint64_t),
                          .shape = {a->model->kv_heads, a->model->group, wide->sizes.workers, 0},
                          .list_count = wide->graph_count};
  if (a->peers != NULL) {
    chain.counters[0] = counters_at(a, 0);
    chain.counters[1] = counters_at(a, 1);
    chain.counter_count = wide->counters_bytes / sizeof(mgl_word);
  }
  for (uint32_t i = 0; i < wide->graph_count; i++) {
    const mgl_cuda_wide_graph *g = &wide->graphs[i];
    chain.lists[i] = (mgl_wide_list){.tokens = g->tokens,
                                     .tile_tokens = g->tile_tokens,
                                     .border = border_of(a, i),
                                     .steps = mgl_cuda_pointer(a->block + g->steps),
                                     .step_start = mgl_cuda_pointer(a->block + g->step_start),
                                     .ops = mgl_cuda_pointer(a->block + g->ops)};
  }
  return chain;
}

mgl_status mgl_cuda_wide_make_image(const mgl_cuda_wide_addresses *a, const mgl_plan *plan,
                                    uint32_t page_count, unsigned char *image, mgl_error *err) {
  const mgl_cuda_wide_layout *wide = a->wide;
  mgl_wide_plan *to = (mgl_wide_plan *)(void *)(image + wide->plan);
  mgl_wide_work *work = (mgl_wide_work *)(void *)(image + wide->work);
  int32_t *tables = (int32_t *)(void *)(image + wide->tables);
  mgl_plan_entry entries[MGL_MAX_SEQUENCES];
  const mgl_cuda_plan_limits limits = {.iteration_tokens = wide->sizes.tokens,
                                       .logit_rows = wide->sizes.logit_rows,
                                       .slots = wide->sizes.sequences,
                                       .stride = wide->sizes.pages_per_sequence,
                                       .page_count = page_count,
                                       .vocab = a->model->vocab};
  MGL_TRY(mgl_cuda_plan_check(plan, &limits, err));
  mgl_cuda_wide_set_run(a, plan->token_count,
                        mgl_cuda_pointer(a->block + wide->image + wide->tables), image);
  to->token_count = plan->token_count;
  to->sequence_count = plan->sequence_count;
  to->logit_row_count = plan->logit_row_count;
  to->takes_rows = 1;
  memcpy(to->tokens, plan->tokens, plan->token_count * sizeof *to->tokens);
  memcpy(to->positions, plan->positions, plan->token_count * sizeof *to->positions);
  memcpy(to->logit_rows, plan->logit_rows, plan->logit_row_count * sizeof *to->logit_rows);
  for (uint32_t i = 0; i < plan->sequence_count; i++) {
    uint32_t first = plan->query_start[i];
    uint32_t end = plan->query_start[i + 1];
    MGL_TRY(mgl_cuda_plan_pages(plan, &limits, i, tables + (size_t)i * limits.stride, err));
    entries[i] =
        (mgl_plan_entry){.slot = i, .position = plan->positions[first], .count = end - first};
    for (uint32_t row = first; row < end; row++) {
      to->slots[row] = i;
    }
  }
  const mgl_wide_shape shape = {a->model->kv_heads, a->model->group, wide->sizes.workers,
                                border_of(a, mgl_cuda_wide_graph_for(wide, plan->token_count))};
  mgl_wide_build((mgl_lanes){0, 1}, &shape, entries, plan->sequence_count, work);
  return MGL_OK;
}
