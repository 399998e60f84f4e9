#include "device/cpu/cpu_linears.h"

#include <assert.h>
#include <string.h>

#include "device/cpu/cpu_argmax.h"
#include "device/cpu/cpu_tasks.h"
#include "device/cpu/cpu_wanted.h"
#include "kernels/cpu/short_rows.h"

enum {
  // Products of one kernel call, at most: some seconds of scalar code. Between calls the worker
  // tells that it is at work.
  CALL_LEAST_FEATURES = 128,
  MAX_PIECES = 3,
};
static const uint64_t CALL_PRODUCTS = UINT64_C(1) << 31;

static uint32_t smaller(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

// --- rows ----------------------------------------------------------------------------------------

// One run of an op, and the block of rows at hand.
typedef struct linear_run {
  const mgl_cpu_program *p;
  const mgl_op *op;
  uint32_t worker;
  uint32_t k;
  mgl_dtype x_dtype;
  mgl_cpu_rows rows;      // of x in this iteration
  bool packs;             // x is packed
  bool splits;            // and split
  bool reads_shorts;      // of weights that have short rows
  bool whole;             // it is packed as whole numbers besides, for weights that want it
  uint32_t first, count;  // of the block
} linear_run;

// A block's rows of x, and, packed as whole numbers, what linears of integer codes read.
typedef struct block_x {
  const void *rows, *whole;
} block_x;

// Whose rows lie in the stage. Memory starts zeroed and iterations count from 1, so that nothing is
// staged at first; a new iteration makes every key stale, whichever program runs it.
typedef struct stage_key {
  uint64_t iteration;
  uint32_t x, norm, index;  // tensors; index: MGL_NO_TENSOR where rows are those of x
  uint32_t first;           // row of the block
  float eps;
  uint32_t packed;  // 1: they are packed as well
} stage_key;

_Static_assert(sizeof(stage_key) == 32, "compared as bytes; it has 64 of the scratch");

static mgl_pack_args packing_of(const linear_run *run, const void *rows) {
  return (mgl_pack_args){.x = rows,
                         .dtype = run->x_dtype,
                         .split = run->splits,
                         .whole = run->whole,
                         .token_count = run->count,
                         .k = run->k};
}

const void *mgl_cpu_pack(const mgl_cpu_program *p, uint32_t worker, mgl_pack_args args) {
  // They take the place of packed rows of the stage.
  const uint32_t none = 0;
  unsigned char *scratch = mgl_cpu_scratch_of(p, worker);
  memcpy(scratch + p->scratch.stage_key + offsetof(stage_key, packed), &none, sizeof none);
  args.out = scratch + p->scratch.packed;
  p->kernels->pack(&args);
  return args.out;
}

// The block's rows of x, normed, made unless they are there.
static block_x stage_block(const linear_run *run) {
  const mgl_cpu_program *p = run->p;
  const mgl_op *op = run->op;
  unsigned char *scratch = mgl_cpu_scratch_of(p, run->worker);
  void *rows = scratch + p->scratch.stage;
  stage_key wanted = {.iteration = p->iteration,
                      .x = mgl_op_input(op, MGL_ROLE_X),
                      .norm = mgl_op_input(op, MGL_ROLE_NORM),
                      .index = mgl_op_input(op, MGL_ROLE_ROWS),
                      .first = run->first,
                      .eps = (float)op->attrs[MGL_ATTR_EPS]};
  stage_key present;
  memcpy(&present, scratch + p->scratch.stage_key, sizeof present);
  wanted.packed = present.packed;
  if (memcmp(&present, &wanted, sizeof wanted) != 0) {
    const float *x = mgl_cpu_program_tensor(p, wanted.x);
    bool some = wanted.index != MGL_NO_TENSOR;
    const uint32_t *index = some ? mgl_cpu_program_tensor(p, wanted.index) : NULL;
    mgl_rmsnorm_args args = {
        .x = some ? x : x + (size_t)run->first * run->k,
        .x_row_index = some ? index + run->first : NULL,
        .weight = mgl_cpu_program_tensor(p, wanted.norm),
        .width = run->k,
        .eps = wanted.eps,
        .out = rows,
        .out_dtype = p->act,
    };
    p->kernels->rmsnorm(&args, 0, run->count);
    wanted.packed = 0;
  }
  if ((run->packs || run->whole) && wanted.packed == 0) {
    (void)mgl_cpu_pack(p, run->worker, packing_of(run, rows));
    wanted.packed = 1;
  }
  memcpy(scratch + p->scratch.stage_key, &wanted, sizeof wanted);
  const void *packed = scratch + p->scratch.packed;
  return (block_x){.rows = run->packs ? packed : rows, .whole = packed};
}

// The block's rows of an x that lies in memory.
static block_x find_block(const linear_run *run) {
  const unsigned char *x = mgl_cpu_program_input(run->p, run->op, MGL_ROLE_X);
  x += (size_t)run->first * run->k * mgl_dtype_bytes(run->x_dtype);
  block_x block = {.rows = x};
  if (run->packs || run->whole) {
    block.whole = mgl_cpu_pack(run->p, run->worker, packing_of(run, x));
    block.rows = run->packs ? block.whole : x;
  }
  return block;
}

static bool is_normed(const mgl_op *op) {
  return mgl_op_input(op, MGL_ROLE_NORM) != MGL_NO_TENSOR;
}

static block_x block_of(const linear_run *run) {
  return is_normed(run->op) ? stage_block(run) : find_block(run);
}

// --- weights -------------------------------------------------------------------------------------

// Rows [first, first + count) of weight tensor `w`, with their biases, and the column of the op's
// output that the first of them gives.
typedef struct weight_rows {
  uint32_t w, bias;  // bias: MGL_NO_TENSOR if there is none
  uint32_t first, count;
  uint32_t column;
} weight_rows;

static uint32_t features_of(const mgl_cpu_program *p, uint32_t w) {
  return p->graph->tensors[w].dims[0].number;
}

// Finds what features [begin, end) of an op other than gate_up read, piece by piece. Returns the
// number of pieces.
static uint32_t find_pieces(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin,
                            uint32_t end, weight_rows pieces[MAX_PIECES]) {
  mgl_op_range matrices = mgl_op_inputs(op, MGL_ROLE_MATRIX);
  mgl_op_range biases = mgl_op_inputs(op, MGL_ROLE_BIAS);
  uint32_t count = 0;
  for (uint32_t i = 0, offset = 0; i < matrices.count; i++) {
    weight_rows piece = {.w = op->inputs[matrices.first + i], .bias = MGL_NO_TENSOR};
    uint32_t features = features_of(p, piece.w);
    piece.column = begin > offset ? begin : offset;
    uint32_t last = smaller(end, offset + features);
    if (i < biases.count) {
      piece.bias = op->inputs[biases.first + i];
    }
    if (piece.column < last) {
      piece.first = piece.column - offset;
      piece.count = last - piece.column;
      pieces[count++] = piece;
    }
    offset += features;
  }
  return count;
}

static const unsigned char *weight_at(const mgl_cpu_program *p, uint32_t w, uint32_t row) {
  const mgl_tensor *weight = &p->graph->tensors[w];
  return (const unsigned char *)mgl_cpu_program_tensor(p, w) + row * mgl_tensor_row_bytes(weight);
}

// The matrix of gate (0) or of up (1).
static uint32_t gate_up_weight(const mgl_op *op, uint32_t which) {
  return op->inputs[mgl_op_inputs(op, MGL_ROLE_MATRIX).first + which];
}

// Piece `index` of what a tile reads for its first block; false: there are no more.
static bool find_piece(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin, uint32_t end,
                       uint32_t index, weight_rows *out) {
  if (op->kind == MGL_OP_GATE_UP) {
    uint32_t columns = mgl_cpu_gate_up_columns(smaller(p->largest.tokens, MGL_CPU_BLOCK_TOKENS));
    uint32_t first = begin + index / 2 * columns;
    if (first >= end) {
      return false;
    }
    *out = (weight_rows){
        .w = gate_up_weight(op, index % 2), .first = first, .count = smaller(end - first, columns)};
    return true;
  }
  weight_rows pieces[MAX_PIECES];
  if (index >= find_pieces(p, op, begin, end, pieces)) {
    return false;
  }
  *out = pieces[index];
  return true;
}

size_t mgl_cpu_linear_weights(const mgl_cpu_program *p, uint32_t op_idx, uint32_t begin,
                              uint32_t end, size_t from, const void **out) {
  const mgl_op *op = &p->graph->ops[op_idx];
  weight_rows rows;
  for (uint32_t i = 0; mgl_op_is_linear(op) && find_piece(p, op, begin, end, i, &rows); i++) {
    const mgl_tensor *weight = &p->graph->tensors[rows.w];
    const unsigned char *shorts =
        mgl_linear_reads_shorts(&p->way, p->largest.tokens) ? p->shorts[rows.w] : NULL;
    const unsigned char *at = weight_at(p, rows.w, rows.first);
    size_t bytes = rows.count * mgl_tensor_row_bytes(weight);
    if (shorts != NULL) {  // whole groups
      const size_t group_bytes = mgl_short_layout_of(weight->dims[1].number).bytes;
      const size_t first = rows.first / MGL_SHORT_ROWS;
      at = shorts + first * group_bytes;
      bytes = (mgl_short_groups(rows.first + rows.count) - first) * group_bytes;
    }
    if (from < bytes) {
      *out = at + from;
      return bytes - from;
    }
    from -= bytes;
  }
  return 0;
}

// --- products ------------------------------------------------------------------------------------

// A block_out is what a block gives for one piece, or for a part of it.
typedef struct block_out {
  float *out;             // of row run->first and the piece's first feature
  const float *residual;  // the same, or NULL
  uint32_t stride;
} block_out;

void mgl_cpu_multiply(const mgl_cpu_program *p, uint32_t worker, mgl_linear_args args,
                      uint32_t features) {
  const uint64_t most = CALL_PRODUCTS / ((uint64_t)args.token_count * args.k) / CALL_LEAST_FEATURES;
  const uint64_t step = most == 0 ? (uint64_t)CALL_LEAST_FEATURES : most * CALL_LEAST_FEATURES;
  const mgl_form form = mgl_linear_form(&args);
  const size_t row_bytes = form.group == 0 ? (size_t)args.k * mgl_dtype_bytes(form.dtype)
                                           : mgl_row_layout_of(form, args.k).bytes;
  const void *after = args.next_w;
  const uint32_t after_rows = args.next_rows;
  args.way = &p->way;
  for (uint32_t begin = 0, end; begin < features; begin = end) {
    end = step < features - begin ? begin + (uint32_t)step : features;
    args.next_w = end < features ? (const unsigned char *)args.w + end * row_bytes : after;
    args.next_rows = end < features ? features - end : after_rows;
    p->kernels->linear(&args, begin, end);
    mgl_cpu_memory_pulse(p->memory, worker);
  }
}

// next: what is computed behind this piece; NULL: nothing.
static void compute(const linear_run *run, const block_x *x, const weight_rows *piece,
                    const weight_rows *next, block_out to) {
  const mgl_cpu_program *p = run->p;
  const mgl_tensor *weight = &p->graph->tensors[piece->w];
  const bool whole = mgl_code_is_integer(weight->dtype);
  mgl_linear_args args = {
      .w_short = run->reads_shorts ? p->shorts[piece->w] : NULL,
      .short_first = piece->first,
      .x = whole ? x->whole : x->rows,
      .x_dtype = run->x_dtype,
      .packed = run->packs || whole,
      .split = run->splits,
      .w = weight_at(p, piece->w, piece->first),
      .w_dtype = weight->dtype,
      .w_group = weight->group,
      .w_offsets = weight->offsets,
      .bias = piece->bias == MGL_NO_TENSOR
                  ? NULL
                  : (const float *)mgl_cpu_program_tensor(p, piece->bias) + piece->first,
      .residual = to.residual,
      .token_count = run->count,
      .k = run->k,
      .out = to.out,
      .out_stride = to.stride,
      .next_w = next == NULL ? NULL : weight_at(p, next->w, next->first),
      .next_rows = next == NULL ? 0 : next->count,
  };
  mgl_cpu_multiply(p, run->worker, args, piece->count);
}

static void run_block(const linear_run *run, const weight_rows *pieces, uint32_t piece_count) {
  const mgl_cpu_program *p = run->p;
  const block_x x = block_of(run);
  const float *residual = mgl_cpu_program_input(p, run->op, MGL_ROLE_RESIDUAL);
  block_out to = {.stride = (uint32_t)mgl_tensor_row_elements(&p->graph->tensors[run->op->output])};
  size_t row = (size_t)run->first * to.stride;
  bool is_last = run->first + run->count == run->rows.end;
  for (uint32_t i = 0; i < piece_count; i++) {
    const weight_rows *next = i + 1 < piece_count ? &pieces[i + 1] : is_last ? NULL : pieces;
    to.out = (float *)mgl_cpu_program_tensor(p, run->op->output) + row + pieces[i].column;
    to.residual = residual == NULL ? NULL : residual + row + pieces[i].column;
    compute(run, &x, &pieces[i], next, to);
  }
}

// silu(gate) * up of columns [begin, end), a few of them at a time.
static void run_gate_up_block(const linear_run *run, uint32_t begin, uint32_t end) {
  const mgl_cpu_program *p = run->p;
  const mgl_op *op = run->op;
  const mgl_tensor *out = &p->graph->tensors[op->output];
  const block_x x = block_of(run);
  const uint32_t columns = mgl_cpu_gate_up_columns(run->count);
  const uint32_t w_gate = gate_up_weight(op, 0);
  const uint32_t w_up = gate_up_weight(op, 1);
  float *gate = mgl_cpu_work_scratch(p, run->worker);
  float *up = gate + (size_t)columns * run->count;
  for (uint32_t first = begin, count; first < end; first += count) {
    count = smaller(end - first, columns);
    uint32_t after = smaller(end - first - count, columns);
    const weight_rows pieces[] = {
        {.w = w_gate, .bias = MGL_NO_TENSOR, .first = first, .count = count},
        {.w = w_up, .bias = MGL_NO_TENSOR, .first = first, .count = count},
        {.w = w_gate, .bias = MGL_NO_TENSOR, .first = first + count, .count = after},
    };
    compute(run, &x, &pieces[0], &pieces[1], (block_out){.out = gate, .stride = columns});
    compute(run, &x, &pieces[1], after > 0 ? &pieces[2] : NULL,
            (block_out){.out = up, .stride = columns});
    for (uint32_t t = 0; t < run->count; t++) {
      size_t at = (size_t)(run->first + t) * out->dims[1].number + first;
      mgl_silu_mul_args args = {
          .gate = gate + (size_t)t * columns,
          .up = up + (size_t)t * columns,
          .out = (unsigned char *)mgl_cpu_program_tensor(p, op->output) +
                 at * mgl_dtype_bytes(out->dtype),
          .out_dtype = out->dtype,
      };
      p->kernels->silu_mul(&args, 0, count);
    }
  }
}

// Whether an op reads codes, and whole numbers among them. x is then not packed in another way,
// plain matrices among them or not.
static bool reads_codes(const mgl_cpu_program *p, const mgl_op *op, bool *integers) {
  bool codes = false;
  *integers = false;
  for (uint32_t i = 0; i < op->input_count; i++) {
    const mgl_tensor *input = &p->graph->tensors[op->inputs[i]];
    codes = codes || input->group != 0;
    *integers = *integers || mgl_code_is_integer(input->dtype);
  }
  return codes;
}

static bool has_shorts(const mgl_cpu_program *p, const mgl_op *op) {
  bool has = false;
  for (uint32_t i = 0; i < op->input_count; i++) {
    has = has || p->shorts[op->inputs[i]] != NULL;
  }
  return has;
}

static linear_run begin_run(const mgl_cpu_program *p, uint32_t op_idx, uint32_t worker) {
  const mgl_op *op = &p->graph->ops[op_idx];
  linear_run run = {.p = p, .op = op, .worker = worker};
  uint32_t x = mgl_op_input(op, MGL_ROLE_X);
  run.k = mgl_graph_input(p->graph, op, MGL_ROLE_MATRIX)->dims[1].number;
  run.x_dtype = is_normed(op) ? p->act : p->graph->tensors[x].dtype;
  run.rows = mgl_cpu_wanted(p, op_idx,
                            mgl_op_input(op, MGL_ROLE_ROWS) != MGL_NO_TENSOR
                                ? mgl_cpu_plan(p)->logit_row_count
                                : (uint32_t)(mgl_cpu_program_elements(p, x) / run.k));
  return run;
}

void mgl_cpu_linear_run(const mgl_cpu_program *p, uint32_t op_idx, uint32_t worker, uint32_t begin,
                        uint32_t end) {
  linear_run run = begin_run(p, op_idx, worker);
  weight_rows pieces[MAX_PIECES];
  bool is_gate_up = run.op->kind == MGL_OP_GATE_UP;
  bool codes = reads_codes(p, run.op, &run.whole);
  bool shorts = !codes && has_shorts(p, run.op);
  uint32_t piece_count = is_gate_up ? 0 : find_pieces(p, run.op, begin, end, pieces);
  for (run.first = run.rows.begin; run.first < run.rows.end; run.first += run.count) {
    run.count = smaller(run.rows.end - run.first, MGL_CPU_BLOCK_TOKENS);
    run.reads_shorts = shorts && mgl_linear_reads_shorts(&p->way, run.count);
    run.packs = !codes && (mgl_linear_packs(&p->way, run.count, end - begin) ||
                           (run.reads_shorts && run.count > 1));
    run.splits = run.packs && p->way.split && run.x_dtype == MGL_DTYPE_BF16;
    if (is_gate_up) {
      run_gate_up_block(&run, begin, end);
    } else {
      run_block(&run, pieces, piece_count);
    }
  }
  mgl_cpu_program_note_logits(p, run.op->output, worker, begin, end);
}
