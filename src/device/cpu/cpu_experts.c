#include "device/cpu/cpu_experts.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "device/cpu/cpu_linears.h"
#include "device/cpu/cpu_regions.h"
#include "device/cpu/cpu_tasks.h"
#include "graph/balance.h"
#include "twin/pieces.h"

// Of the activation that is clamped: gate * sigmoid(SLOPE * gate) * (up + 1).
#define SLOPE ((float)MGL_CLAMPED_SLOPE)

// One run of an op.
typedef struct expert_run {
  const mgl_cpu_program *p;
  const mgl_op *op;
  uint32_t worker;
  uint32_t begin, end;     // tile units
  uint32_t tokens, slots;  // of this iteration, of a token
  uint32_t experts;
  uint32_t chosen;   // of them, by some token
  uint32_t columns;  // of the result
  bool is_down;
  uint32_t k;           // columns of x
  uint32_t slots_of_x;  // slots that have the same row of x: all of a token, or one
  mgl_dtype x_dtype;
  const float *routes;  // [T, S, 2]
  uint32_t *first;      // [E + 1] into rows
  uint32_t *rows;       // [T * S] token * S + slot, sorted by expert
  unsigned char *gather;
  float *sums;
} expert_run;

// Rows [at, at + count) of `rows`, all of one expert.
typedef struct expert_rows {
  uint32_t expert;
  uint32_t at, count;
  uint32_t begin, end;  // columns of the result
  const void *x;        // [count, K], or what pack made of them
  bool packed, split;
} expert_rows;

static uint32_t smaller(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

static uint32_t expert_of(const expert_run *r, uint32_t row) {
  uint32_t expert = (uint32_t)lrintf(r->routes[2 * (size_t)row]);
  assert(expert < r->experts);  // as op route makes them
  return expert;
}

static float weight_of(const expert_run *r, uint32_t row) {
  return r->routes[2 * (size_t)row + 1];
}

// --- rows by experts -----------------------------------------------------------------------------

static void sort_rows(const expert_run *r) {
  const uint32_t count = r->tokens * r->slots;
  memset(r->first, 0, ((size_t)r->experts + 1) * sizeof *r->first);
  for (uint32_t row = 0; row < count; row++) {
    r->first[expert_of(r, row) + 1]++;
  }
  for (uint32_t e = 0; e < r->experts; e++) {
    r->first[e + 1] += r->first[e];
  }
  for (uint32_t row = 0; row < count; row++) {  // first[e] goes on to where e + 1 begins
    r->rows[r->first[expert_of(r, row)]++] = row;
  }
  for (uint32_t e = r->experts; e > 0; e--) {
    r->first[e] = r->first[e - 1];
  }
  r->first[0] = 0;
}

static uint32_t count_chosen(const expert_run *r) {
  uint32_t chosen = 0;
  for (uint32_t e = 0; e < r->experts; e++) {
    chosen += r->first[e + 1] > r->first[e];
  }
  return chosen;
}

// The rows of x: in their place if it is one, else gathered in scratch; and packed where it pays.
static void find_x(const expert_run *r, expert_rows *b) {
  const mgl_cpu_program *p = r->p;
  const unsigned char *x = mgl_cpu_program_input(p, r->op, MGL_ROLE_X);
  const size_t bytes = r->k * mgl_dtype_bytes(r->x_dtype);
  b->x = x + r->rows[b->at] / r->slots_of_x * bytes;
  for (uint32_t i = 0; b->count > 1 && i < b->count; i++) {
    memcpy(r->gather + i * bytes, x + r->rows[b->at + i] / r->slots_of_x * bytes, bytes);
    b->x = r->gather;
  }
  const mgl_tensor *w = mgl_graph_input(p->graph, r->op, MGL_ROLE_EXPERTS);
  const bool whole = mgl_code_is_integer(w->dtype);
  b->packed = whole || (w->group == 0 && mgl_linear_packs(&p->way, b->count, b->end - b->begin));
  b->split = b->packed && !whole && p->way.split && r->x_dtype == MGL_DTYPE_BF16;
  if (b->packed) {
    b->x = mgl_cpu_pack(p, r->worker,
                        (mgl_pack_args){.x = b->x,
                                        .dtype = r->x_dtype,
                                        .split = b->split,
                                        .whole = whole,
                                        .token_count = b->count,
                                        .k = r->k});
  }
}

// --- products ------------------------------------------------------------------------------------

// Rows [first, first + count) of an expert's matrix, the `which`-th of the op, times x. in_place:
// added to what is in out.
static void multiply(const expert_run *r, const expert_rows *b, uint32_t which, uint32_t first,
                     uint32_t count, float *out, uint32_t stride, bool in_place) {
  const mgl_op *op = r->op;
  const mgl_op_range matrices = mgl_op_inputs(op, MGL_ROLE_EXPERTS);
  const mgl_op_range biases = mgl_op_inputs(op, MGL_ROLE_EXPERT_BIAS);
  const uint32_t tensor = op->inputs[matrices.first + which];
  const mgl_tensor *w = &r->p->graph->tensors[tensor];
  const void *const *experts = mgl_cpu_program_tensor(r->p, tensor);
  const float *bias = NULL;
  if (which < biases.count && !r->is_down) {
    bias = mgl_cpu_program_tensor(r->p, op->inputs[biases.first + which]);
    bias += (size_t)b->expert * w->dims[1].number + first;
  }
  mgl_cpu_multiply(r->p, r->worker,
                   (mgl_linear_args){.x = b->x,
                                     .x_dtype = r->x_dtype,
                                     .packed = b->packed,
                                     .split = b->split,
                                     .w = (const unsigned char *)experts[b->expert] +
                                          first * mgl_tensor_inner_bytes(w),
                                     .w_dtype = w->dtype,
                                     .w_group = w->group,
                                     .w_offsets = w->offsets,
                                     .bias = bias,
                                     .residual = in_place ? out : NULL,
                                     .token_count = b->count,
                                     .k = r->k,
                                     .out = out,
                                     .out_stride = stride},
                   count);
}

// What silu_mul shall get for a row: the weight goes into up, and of a clamped activation, which is
// silu(SLOPE * gate) / SLOPE * (up + 1), what silu does not do.
static void weigh(float *gate, float *up, uint32_t count, float weight, float limit) {
  if (limit == 0) {
    for (uint32_t i = 0; i < count; i++) {
      up[i] *= weight;
    }
    return;
  }
  weight /= SLOPE;
  for (uint32_t i = 0; i < count; i++) {
    float up_i = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];  // a NaN stays one
    gate[i] = SLOPE * (gate[i] > limit ? limit : gate[i]);
    up[i] = (up_i + 1) * weight;
  }
}

static void gate_up(const expert_run *r, const expert_rows *b) {
  const mgl_cpu_program *p = r->p;
  const mgl_tensor *out = &p->graph->tensors[r->op->output];
  const uint32_t columns = mgl_cpu_gate_up_columns(b->count);
  float *gate = r->sums;
  float *up = gate + (size_t)columns * b->count;
  for (uint32_t first = b->begin, count; first < b->end; first += count) {
    count = smaller(b->end - first, columns);
    multiply(r, b, 0, first, count, gate, columns, false);
    multiply(r, b, 1, first, count, up, columns, false);
    for (uint32_t i = 0; i < b->count; i++) {
      const uint32_t row = r->rows[b->at + i];
      const size_t at = (size_t)row * out->dims[1].number + first;
      mgl_silu_mul_args args = {.gate = gate + (size_t)i * columns,
                                .up = up + (size_t)i * columns,
                                .out = (unsigned char *)mgl_cpu_program_tensor(p, r->op->output) +
                                       at * mgl_dtype_bytes(out->dtype),
                                .out_dtype = out->dtype};
      weigh(gate + (size_t)i * columns, up + (size_t)i * columns, count, weight_of(r, row),
            (float)r->op->attrs[MGL_ATTR_LIMIT]);
      p->kernels->silu_mul(&args, 0, count);
    }
  }
}

// The columns of a token's row of the result.
static float *result_of(const expert_run *r, uint32_t token, uint32_t column) {
  const mgl_tensor *out = &r->p->graph->tensors[r->op->output];
  float *rows = mgl_cpu_program_tensor(r->p, r->op->output);  // which are the residual's
  return rows + (size_t)token * out->dims[1].number + column;
}

static void down(const expert_run *r, const expert_rows *b) {
  if (b->count == 1) {
    float *out = result_of(r, r->rows[b->at] / r->slots, b->begin);
    multiply(r, b, 0, b->begin, b->end - b->begin, out, b->end - b->begin, true);
    return;
  }
  const uint32_t columns = mgl_cpu_gate_up_columns(b->count);
  for (uint32_t first = b->begin, count; first < b->end; first += count) {
    count = smaller(b->end - first, columns);
    multiply(r, b, 0, first, count, r->sums, columns, false);
    for (uint32_t i = 0; i < b->count; i++) {
      mgl_add_args args = {.x = result_of(r, r->rows[b->at + i] / r->slots, first),
                           .y = r->sums + (size_t)i * columns};
      r->p->kernels->add(&args, 0, count);
    }
  }
}

// The biases of the slots of all tokens, times their weights.
static void add_biases(const expert_run *r) {
  const float *bias = mgl_cpu_program_input(r->p, r->op, MGL_ROLE_EXPERT_BIAS);
  const uint32_t columns = r->p->graph->tensors[r->op->output].dims[1].number;
  for (uint32_t row = 0; bias != NULL && row < r->tokens * r->slots; row++) {
    const float *from = bias + (size_t)expert_of(r, row) * columns + r->begin;
    const float weight = weight_of(r, row);
    float *to = result_of(r, row / r->slots, r->begin);
    for (uint32_t i = 0; i < r->end - r->begin; i++) {
      to[i] += weight * from[i];
    }
  }
}

// --- shares --------------------------------------------------------------------------------------

// Columns of the result that come from all rows of one expert.
static void run_expert(const expert_run *r, uint32_t expert, mgl_expert_share share) {
  for (uint32_t at = r->first[expert], count; at < r->first[expert + 1]; at += count) {
    count = smaller(r->first[expert + 1] - at, MGL_CPU_BLOCK_TOKENS);
    expert_rows rows = {
        .expert = expert, .at = at, .count = count, .begin = share.begin, .end = share.end};
    find_x(r, &rows);
    if (r->is_down) {
      down(r, &rows);
      continue;
    }
    gate_up(r, &rows);
    for (uint32_t i = 0; r->p->regions != NULL && i < count; i++) {
      mgl_cpu_regions_write(r->p, r->op, r->begin, r->end, r->rows[at + i], share);
    }
  }
}

// What the tile units [begin, end) are of the line of experts, or of every chosen one.
static void run_units(const expert_run *r, mgl_balance balance, uint32_t begin, uint32_t end) {
  const bool all = balance == MGL_BALANCE_STATIC;
  for (uint32_t e = 0, place = 0; e < r->experts; e++) {
    if (r->first[e + 1] == r->first[e]) {
      continue;
    }
    mgl_expert_share share = mgl_expert_share_of(balance, r->columns, begin, end, all ? e : place,
                                                 all ? r->experts : r->chosen);
    place++;
    if (share.begin < share.end) {
      run_expert(r, e, share);
    }
  }
}

// Pieces of equal size, PIECES a worker, or as many as there are grains.
static void run_pieces(const expert_run *r) {
  enum { PIECES = 8 };
  const uint32_t grains = (r->columns + MGL_SHARE_GRAIN - 1) / MGL_SHARE_GRAIN;
  const uint32_t count = smaller(PIECES * r->p->memory->options.workers, grains);
  mgl_word *word = &r->p->pieces[r->op - r->p->graph->ops];
  for (;;) {
    const uint64_t piece = mgl_take_piece(word, r->p->iteration);
    if (piece >= count) {
      return;
    }
    const uint64_t begin = grains * piece / count * MGL_SHARE_GRAIN;
    const uint64_t end = grains * (piece + 1) / count * MGL_SHARE_GRAIN;
    run_units(r, MGL_BALANCE_HYBRID, (uint32_t)begin, smaller((uint32_t)end, r->columns));
  }
}

static void run_shares(const expert_run *r) {
  if (!mgl_op_shares_by_data(r->op)) {
    run_units(r, MGL_BALANCE_COLUMNS, r->begin, r->end);
  } else if (mgl_op_balance(r->op) == MGL_BALANCE_DYNAMIC) {
    run_pieces(r);
  } else {
    run_units(r, mgl_op_balance(r->op), r->begin, r->end);
  }
}

// All of what experts made is there, and nobody else has these columns of the result.
static void check_down(const expert_run *r) {
  if (r->p->regions == NULL) {
    return;
  }
  mgl_cpu_regions_read(r->p, mgl_op_input(r->op, MGL_ROLE_X));
  for (uint32_t token = 0; token < r->tokens; token++) {
    mgl_cpu_regions_write(r->p, r->op, r->begin, r->end, token,
                          (mgl_expert_share){r->begin, r->end});
  }
}

void mgl_cpu_experts_run(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker,
                         uint32_t begin, uint32_t end) {
  const mgl_tensor *w = mgl_graph_input(p->graph, op, MGL_ROLE_EXPERTS);
  const mgl_tensor *x = mgl_graph_input(p->graph, op, MGL_ROLE_X);
  const mgl_cpu_expert_layout layout = mgl_cpu_lay_out_experts(p->graph, op, p->largest.tokens);
  const bool is_down = mgl_op_input(op, MGL_ROLE_RESIDUAL) != MGL_NO_TENSOR;
  unsigned char *scratch = mgl_cpu_work_scratch(p, worker);
  const uint32_t slots = mgl_op_slots(p->graph, op);
  expert_run r = {.p = p,
                  .op = op,
                  .worker = worker,
                  .begin = begin,
                  .end = end,
                  .tokens = mgl_cpu_plan(p)->token_count,
                  .slots = slots,
                  .experts = w->dims[0].number,
                  .columns = w->dims[1].number,
                  .is_down = is_down,
                  .k = w->dims[2].number,
                  .slots_of_x = is_down ? 1 : slots,
                  .x_dtype = x->dtype,
                  .routes = mgl_cpu_program_input(p, op, MGL_ROLE_ROUTES),
                  .first = (uint32_t *)(void *)(scratch + layout.first),
                  .rows = (uint32_t *)(void *)(scratch + layout.rows),
                  .gather = scratch + layout.gather,
                  .sums = (float *)(void *)(scratch + layout.sums)};
  sort_rows(&r);
  r.chosen = count_chosen(&r);
  if (is_down) {
    check_down(&r);
    add_biases(&r);
  } else if (begin == 0) {  // one of the tasks of the op
    mgl_cpu_loads_note(&p->memory->loads, mgl_cpu_program_input(p, op, MGL_ROLE_EXPERTS), r.first);
  }
  run_shares(&r);
}
