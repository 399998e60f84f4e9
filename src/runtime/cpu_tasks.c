// See cpu_tasks.h. All functions here run on any worker and write to nothing but their tile's
// output, the KV cache, and the worker's scratch and notes.
#include "runtime/cpu_tasks.h"

#include <assert.h>
#include <string.h>

#include "graph/act_dtype.h"
#include "runtime/cpu_argmax.h"

// Elements of gate, and of up, that lie in scratch at a time: 64 KiB, so that they stay in the L2
// cache until silu_mul reads them. With 64 tokens that is 128 columns, enough rows of weights for a
// kernel call to be free; with one, mostly the whole tile: each call begins its stream of weights
// anew (SPEED.md, "Mega against eager").
enum { GATE_UP_ELEMENTS = 8192, GATE_UP_LEAST_COLUMNS = 128 };

static size_t align64(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

static uint32_t smaller(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

static uint32_t gate_up_columns(uint32_t tokens) {
  uint32_t columns = GATE_UP_ELEMENTS / tokens / 16 * 16;
  return columns > GATE_UP_LEAST_COLUMNS ? columns : GATE_UP_LEAST_COLUMNS;
}

// --- scratch -------------------------------------------------------------------------------------

// The first 64 bytes of a worker's scratch say whose rows are staged behind them. Memory starts
// zeroed and iterations count from 1, so that nothing is staged at first; a new iteration makes
// every key stale, whichever program runs it.
typedef struct stage_key {
  uint64_t iteration;
  uint32_t x, norm, rows;  // tensors; rows: MGL_NO_TENSOR where all rows are staged
  float eps;
} stage_key;

_Static_assert(sizeof(stage_key) <= 64, "the key has the first 64 bytes of the scratch");

// Heads of one attend op.
typedef struct heads {
  uint32_t head_count, kv_head_count, head_dim, group;
} heads;

static heads heads_of(const mgl_graph *graph, const mgl_op *op) {
  const mgl_tensor *kv = &graph->tensors[op->inputs[1]];
  const mgl_tensor *out = &graph->tensors[op->output];
  return (heads){.head_count = out->dims[1].number,
                 .kv_head_count = kv->dims[0].number,
                 .head_dim = kv->dims[1].number,
                 .group = out->dims[1].number / kv->dims[0].number};
}

// Work scratch of a tile of up to MGL_ATTENTION_QUERY_TILE tokens of one KV head: offsets in bytes.
typedef struct attend_layout {
  size_t q;  // f32 [tokens, group, HD], normed and rotated
  size_t k;  // f32 [tokens, HD]
  size_t attention;
  size_t bytes;
} attend_layout;

static attend_layout lay_out_attend(const heads *h) {
  attend_layout layout = {0};
  size_t row = (size_t)MGL_ATTENTION_QUERY_TILE * h->head_dim * sizeof(float);
  layout.k = align64(row * h->group);
  layout.attention = layout.k + align64(row);
  layout.bytes = layout.attention +
                 align64(mgl_attention_scratch_bytes(h->head_count, h->kv_head_count, h->head_dim));
  return layout;
}

static size_t work_bytes(const mgl_graph *graph, const mgl_op *op, const mgl_dim_values *largest) {
  heads h;
  size_t elements;
  switch (op->kind) {
    case MGL_OP_ATTENTION:
      h = heads_of(graph, op);
      return align64(mgl_attention_scratch_bytes(h.head_count, h.kv_head_count, h.head_dim));
    case MGL_OP_ATTEND: h = heads_of(graph, op); return lay_out_attend(&h).bytes;
    case MGL_OP_GATE_UP:
      elements = (size_t)GATE_UP_LEAST_COLUMNS * largest->tokens;
      return 2 * sizeof(float) * (elements > GATE_UP_ELEMENTS ? elements : GATE_UP_ELEMENTS);
    default: return 0;
  }
}

static size_t stage_bytes(const mgl_graph *graph, mgl_dtype act, const mgl_op *op,
                          const mgl_dim_values *largest) {
  if (op->kind != MGL_OP_QKV_PROJ && op->kind != MGL_OP_GATE_UP && op->kind != MGL_OP_LOGITS) {
    return 0;
  }
  uint32_t rows = op->kind == MGL_OP_LOGITS ? largest->logit_rows : largest->tokens;
  uint32_t width = graph->tensors[op->inputs[1]].dims[0].number;
  return align64((size_t)rows * width * mgl_dtype_bytes(act));
}

mgl_cpu_scratch_sizes mgl_cpu_scratch_needed(const mgl_graph *graph,
                                             const mgl_dim_values *largest) {
  mgl_dtype act = mgl_graph_act_dtype(graph);
  size_t stage = 0;
  size_t work = 0;
  for (size_t i = 0; i < graph->op_count; i++) {
    size_t bytes = stage_bytes(graph, act, &graph->ops[i], largest);
    stage = bytes > stage ? bytes : stage;
    bytes = work_bytes(graph, &graph->ops[i], largest);
    work = bytes > work ? bytes : work;
  }
  stage += 64;  // the key
  return (mgl_cpu_scratch_sizes){.stage_bytes = stage, .total_bytes = stage + align64(work)};
}

static unsigned char *worker_scratch(const mgl_cpu_program *p, uint32_t worker) {
  assert(worker < p->memory->options.workers);
  return p->memory->scratch + worker * p->memory->scratch_bytes;
}

void *mgl_cpu_work_scratch(const mgl_cpu_program *p, uint32_t worker) {
  return worker_scratch(p, worker) + p->stage_bytes;
}

// --- linears -------------------------------------------------------------------------------------

// The normed rows of x (inputs 0 and 1 of the op) in the worker's stage, made unless they are
// there.
static const void *stage_rows(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker) {
  unsigned char *scratch = worker_scratch(p, worker);
  bool some = op->kind == MGL_OP_LOGITS;
  stage_key wanted = {.iteration = p->iteration,
                      .x = op->inputs[0],
                      .norm = op->inputs[1],
                      .rows = some ? op->inputs[2] : MGL_NO_TENSOR,
                      .eps = (float)op->attrs[MGL_ATTR_EPS]};
  stage_key present;
  memcpy(&present, scratch, sizeof present);
  unsigned char *rows = scratch + 64;
  if (memcmp(&present, &wanted, sizeof wanted) == 0) {
    return rows;
  }
  mgl_rmsnorm_args args = {
      .x = mgl_cpu_program_tensor(p, wanted.x),
      .x_row_index = some ? mgl_cpu_program_tensor(p, wanted.rows) : NULL,
      .weight = mgl_cpu_program_tensor(p, wanted.norm),
      .width = p->graph->tensors[wanted.norm].dims[0].number,
      .eps = wanted.eps,
      .out = rows,
      .out_dtype = p->act,
  };
  p->kernels->rmsnorm(&args, 0, some ? p->plan->logit_row_count : p->plan->token_count);
  memcpy(scratch, &wanted, sizeof wanted);
  return rows;
}

// A linear over the rows of weight tensor `w` from `first` on: unit 0 is that row.
static mgl_linear_args linear_from(const mgl_cpu_program *p, uint32_t w, uint32_t first) {
  const mgl_tensor *weight = &p->graph->tensors[w];
  size_t row_bytes = weight->dims[1].number * mgl_dtype_bytes(weight->dtype);
  return (mgl_linear_args){
      .w = (const unsigned char *)mgl_cpu_program_tensor(p, w) + first * row_bytes,
      .w_dtype = weight->dtype,
      .x_dtype = p->act,
      .k = weight->dims[1].number,
      .token_count = p->plan->token_count,
  };
}

static void run_qkv_proj(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker,
                         uint32_t begin, uint32_t end) {
  const mgl_tensor *out = &p->graph->tensors[op->output];
  const void *x = stage_rows(p, op, worker);
  for (uint32_t i = 0, offset = 0; i < 3; i++) {
    uint32_t w = op->inputs[2 + i];
    uint32_t features = p->graph->tensors[w].dims[0].number;
    uint32_t first = begin > offset ? begin : offset;
    uint32_t last = smaller(end, offset + features);
    if (first < last) {
      mgl_linear_args args = linear_from(p, w, first - offset);
      args.x = x;
      if (op->input_count == 8) {
        args.bias = (const float *)mgl_cpu_program_tensor(p, op->inputs[5 + i]) + first - offset;
      }
      args.out = (float *)mgl_cpu_program_tensor(p, op->output) + first;
      args.out_stride = (uint32_t)mgl_tensor_row_elements(out);
      p->kernels->linear(&args, 0, last - first);
    }
    offset += features;
  }
}

// silu(gate) * up of columns [begin, end), a few of them at a time.
static void run_gate_up(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker, uint32_t begin,
                        uint32_t end) {
  const mgl_tensor *out = &p->graph->tensors[op->output];
  const void *x = stage_rows(p, op, worker);
  float *gate = mgl_cpu_work_scratch(p, worker);
  const uint32_t columns = gate_up_columns(p->plan->token_count);
  float *up = gate + (size_t)columns * p->plan->token_count;
  for (uint32_t first = begin, count; first < end; first += count) {
    count = smaller(end - first, columns);
    for (uint32_t i = 0; i < 2; i++) {
      mgl_linear_args args = linear_from(p, op->inputs[2 + i], first);
      args.x = x;
      args.out = i == 0 ? gate : up;
      args.out_stride = columns;
      p->kernels->linear(&args, 0, count);
    }
    for (uint32_t t = 0; t < p->plan->token_count; t++) {
      size_t at = (size_t)t * out->dims[1].number + first;
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

static void run_logits(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker, uint32_t begin,
                       uint32_t end) {
  mgl_linear_args args = linear_from(p, op->inputs[3], 0);
  args.x = stage_rows(p, op, worker);
  args.token_count = p->plan->logit_row_count;
  args.out = mgl_cpu_program_tensor(p, op->output);
  args.out_stride = p->graph->tensors[op->output].dims[1].number;
  p->kernels->linear(&args, begin, end);
  mgl_cpu_program_note_logits(p, op->output, worker, begin, end);
}

static void run_linear_add(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin,
                           uint32_t end) {
  mgl_linear_args args = linear_from(p, op->inputs[2], 0);
  args.x = mgl_cpu_program_tensor(p, op->inputs[1]);
  args.x_dtype = p->graph->tensors[op->inputs[1]].dtype;
  args.token_count = (uint32_t)(mgl_cpu_program_elements(p, op->inputs[1]) / args.k);
  args.residual = mgl_cpu_program_tensor(p, op->inputs[0]);
  args.out = mgl_cpu_program_tensor(p, op->output);
  args.out_stride = (uint32_t)mgl_tensor_row_elements(&p->graph->tensors[op->output]);
  p->kernels->linear(&args, begin, end);
}

// --- weights -------------------------------------------------------------------------------------

// Rows [first, first + count) of weight tensor `w`.
typedef struct weight_rows {
  uint32_t w, first, count;
} weight_rows;

// Piece `index` of what a tile of a linear op reads; its rows may be none. False: there are no
// more.
static bool find_rows(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin, uint32_t end,
                      uint32_t index, weight_rows *out) {
  uint32_t first = begin, last = end, w = op->inputs[2], columns;
  switch (op->kind) {
    case MGL_OP_LINEAR: w = op->inputs[1]; break;
    case MGL_OP_LINEAR_ADD: break;
    case MGL_OP_LOGITS: w = op->inputs[3]; break;
    case MGL_OP_QKV_PROJ: {
      uint32_t offset = 0;
      for (uint32_t i = 0; i < index && i < 3; i++) {
        offset += p->graph->tensors[op->inputs[2 + i]].dims[0].number;
      }
      if (index >= 3) {
        return false;
      }
      w = op->inputs[2 + index];
      first = begin > offset ? begin - offset : 0;
      last = end > offset ? smaller(end - offset, p->graph->tensors[w].dims[0].number) : 0;
      *out = (weight_rows){w, first, first < last ? last - first : 0};
      return true;
    }
    case MGL_OP_GATE_UP:
      columns = gate_up_columns(p->largest.tokens);
      first = begin + index / 2 * columns;
      if (first >= end) {
        return false;
      }
      *out = (weight_rows){op->inputs[2 + index % 2], first, smaller(end - first, columns)};
      return true;
    default: return false;
  }
  *out = (weight_rows){w, first, last - first};
  return index == 0 && first < last;
}

size_t mgl_cpu_task_weights(const mgl_cpu_program *p, uint32_t op_idx, uint32_t begin, uint32_t end,
                            size_t from, const void **out) {
  weight_rows rows;
  for (uint32_t i = 0; find_rows(p, &p->graph->ops[op_idx], begin, end, i, &rows); i++) {
    const mgl_tensor *weight = &p->graph->tensors[rows.w];
    size_t row_bytes = weight->dims[1].number * mgl_dtype_bytes(weight->dtype);
    size_t bytes = rows.count * row_bytes;
    if (from < bytes) {
      *out =
          (const unsigned char *)mgl_cpu_program_tensor(p, rows.w) + rows.first * row_bytes + from;
      return bytes - from;
    }
    from -= bytes;
  }
  return 0;
}

// --- attention -----------------------------------------------------------------------------------

// One attend op and the KV head that a tile unit computes of it.
typedef struct attend_unit {
  const mgl_cpu_program *p;
  const mgl_op *op;
  heads h;
  uint32_t kv_head;
  const float *qkv;     // [T, H + 2 HKV, HD]
  size_t qkv_stride;    // floats of a token
  const float *angles;  // [T, HD / 2, 2]
  unsigned char *scratch;
  attend_layout layout;
} attend_unit;

// Heads [head, head + count) of the tokens [first, first + tokens) of qkv, normed (where `norm` is
// given) and rotated into out [tokens, count, HD].
static void prepare_heads(const attend_unit *u, uint32_t first, uint32_t tokens, uint32_t head,
                          uint32_t count, const float *norm, float *out) {
  size_t head_dim = u->h.head_dim;
  for (uint32_t t = 0; t < tokens; t++) {
    const float *from = u->qkv + (first + t) * u->qkv_stride + head * head_dim;
    float *to = out + t * count * head_dim;
    if (norm == NULL) {
      memcpy(to, from, count * head_dim * sizeof *to);
      continue;
    }
    mgl_rmsnorm_args args = {
        .x = from,
        .weight = norm,
        .width = u->h.head_dim,
        .eps = (float)u->op->attrs[MGL_ATTR_EPS],
        .out = to,
        .out_dtype = MGL_DTYPE_F32,
    };
    u->p->kernels->rmsnorm(&args, 0, count);
  }
  mgl_rope_args args = {
      .x = out,
      .angles = u->angles + first * head_dim,
      .head_count = count,
      .head_dim = u->h.head_dim,
  };
  u->p->kernels->rope(&args, 0, tokens);
}

// Consecutive tokens [first, first + tokens) of one sequence: their K and V go into the cache, then
// their queries attend, which see these tokens and earlier ones only.
static void attend_tokens(const attend_unit *u, uint32_t sequence, uint32_t first,
                          uint32_t tokens) {
  const mgl_cpu_program *p = u->p;
  const uint32_t *in = u->op->inputs;
  const heads *h = &u->h;
  const mgl_tensor *out = &p->graph->tensors[u->op->output];
  bool normed = u->op->input_count == 8;
  size_t head_dim = h->head_dim;
  float *q = (float *)(void *)(u->scratch + u->layout.q);
  float *k = (float *)(void *)(u->scratch + u->layout.k);
  prepare_heads(u, first, tokens, h->head_count + u->kv_head, 1,
                normed ? mgl_cpu_program_tensor(p, in[7]) : NULL, k);
  mgl_kv_write_args write = {
      .k = k,
      .v = u->qkv + first * u->qkv_stride +
           (h->head_count + h->kv_head_count + u->kv_head) * head_dim,
      .k_stride = head_dim,
      .v_stride = u->qkv_stride,
      .head_begin = u->kv_head,
      .head_end = u->kv_head + 1,
      .slots = (const uint32_t *)mgl_cpu_program_tensor(p, in[4]) + first,
      .kv = p->kv[in[1]],
  };
  p->kernels->kv_write(&write, 0, tokens);
  prepare_heads(u, first, tokens, u->kv_head * h->group, h->group,
                normed ? mgl_cpu_program_tensor(p, in[6]) : NULL, q);
  mgl_attention_item item = {.sequence = sequence, .query_begin = 0, .query_count = tokens};
  size_t out_row = h->head_count * head_dim * mgl_dtype_bytes(out->dtype);
  mgl_attention_args attention = {
      .q = q,
      .q_stride = h->group * head_dim,
      .q_head_begin = u->kv_head * h->group,
      .items = &item,
      .positions = (const uint32_t *)mgl_cpu_program_tensor(p, in[3]) + first,
      .block_tables = mgl_cpu_program_tensor(p, in[5]),
      .block_table_stride = p->plan->limits.pages_per_sequence,
      .kv = p->kv[in[1]],
      .head_count = h->head_count,
      .scale = (float)u->op->attrs[MGL_ATTR_SCALE],
      .out = (unsigned char *)mgl_cpu_program_tensor(p, u->op->output) + first * out_row,
      .out_dtype = out->dtype,
  };
  p->kernels->attention(&attention, u->scratch + u->layout.attention, u->kv_head, u->kv_head + 1);
}

static void run_attend(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker, uint32_t begin,
                       uint32_t end) {
  const mgl_plan *plan = p->plan;
  attend_unit u = {
      .p = p,
      .op = op,
      .h = heads_of(p->graph, op),
      .qkv = mgl_cpu_program_tensor(p, op->inputs[0]),
      .qkv_stride = (size_t)mgl_tensor_row_elements(&p->graph->tensors[op->inputs[0]]),
      .angles = mgl_cpu_program_tensor(p, op->inputs[2]),
      .scratch = mgl_cpu_work_scratch(p, worker),
  };
  u.layout = lay_out_attend(&u.h);
  for (uint32_t unit = begin; unit < end; unit++) {
    u.kv_head = unit / p->strides;
    for (uint32_t s = unit % p->strides; s < plan->sequence_count; s += p->strides) {
      uint32_t last = plan->query_start[s + 1];
      for (uint32_t first = plan->query_start[s], tokens; first < last; first += tokens) {
        tokens = smaller(last - first, MGL_ATTENTION_QUERY_TILE);
        attend_tokens(&u, s, first, tokens);
      }
    }
  }
}

// Every strides-th item of the work list, for one KV head a unit.
static void run_attention(const mgl_cpu_program *p, uint32_t op, uint32_t worker, uint32_t begin,
                          uint32_t end) {
  size_t kv_heads = p->kv[p->graph->ops[op].inputs[1]].kv_head_count;
  for (uint32_t unit = begin; unit < end; unit++) {
    size_t kv_head = unit / p->strides;
    for (size_t item = unit % p->strides; item < p->plan->attention_item_count;
         item += p->strides) {
      mgl_cpu_op_run(p, op, worker, item * kv_heads + kv_head, item * kv_heads + kv_head + 1);
    }
  }
}

// --- dispatch ------------------------------------------------------------------------------------

// Columns [begin, end) of an op that works element by element.
static void run_columns(const mgl_cpu_program *p, uint32_t op, uint32_t worker, uint32_t begin,
                        uint32_t end) {
  uint32_t output = p->graph->ops[op].output;
  size_t columns = (size_t)mgl_tensor_row_elements(&p->graph->tensors[output]);
  size_t rows = (size_t)mgl_cpu_program_elements(p, output) / columns;
  if (end - begin == columns) {
    mgl_cpu_op_run(p, op, worker, 0, rows * columns);
    return;
  }
  for (size_t row = 0; row < rows; row++) {
    mgl_cpu_op_run(p, op, worker, row * columns + begin, row * columns + end);
  }
}

// Units that are the same for tiles and for mode eager, of rows that the plan brings.
static void run_present(const mgl_cpu_program *p, uint32_t op, uint32_t worker, uint32_t begin,
                        uint32_t end) {
  size_t units = mgl_cpu_op_units(p, op);
  if (begin < units) {
    mgl_cpu_op_run(p, op, worker, begin, end < units ? end : units);
  }
}

void mgl_cpu_task_run(const mgl_cpu_program *p, uint32_t worker, uint32_t op_idx, uint32_t begin,
                      uint32_t end) {
  const mgl_op *op = &p->graph->ops[op_idx];
  if (begin >= end || mgl_cpu_program_elements(p, op->output) == 0) {
    return;
  }
  switch (op->kind) {
    case MGL_OP_EMBED:
    case MGL_OP_RMSNORM:
    case MGL_OP_LINEAR:
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_ROPE:
    case MGL_OP_KV_WRITE: run_present(p, op_idx, worker, begin, end); return;
    case MGL_OP_ATTENTION: run_attention(p, op_idx, worker, begin, end); return;
    case MGL_OP_SILU_MUL:
    case MGL_OP_ADD: run_columns(p, op_idx, worker, begin, end); return;
    case MGL_OP_QKV_PROJ: run_qkv_proj(p, op, worker, begin, end); return;
    case MGL_OP_ATTEND: run_attend(p, op, worker, begin, end); return;
    case MGL_OP_LINEAR_ADD: run_linear_add(p, op, begin, end); return;
    case MGL_OP_GATE_UP: run_gate_up(p, op, worker, begin, end); return;
    case MGL_OP_LOGITS: run_logits(p, op, worker, begin, end); return;
    case MGL_OP_NEXT_PLAN:
    case MGL_OP_SAMPLE: break;  // refused when the program was made
    case MGL_OP_COUNT: break;
  }
  assert(0 && "unknown op");
}
