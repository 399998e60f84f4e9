// See cpu_tasks.h. All functions here run on any worker and write to nothing but their tile's
// output, the KV cache, and the worker's scratch and notes.
#include "device/cpu/cpu_tasks.h"

#include <assert.h>
#include <string.h>

#include "device/cpu/cpu_experts.h"
#include "device/cpu/cpu_linears.h"
#include "device/cpu/cpu_wanted.h"

static uint32_t smaller(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

unsigned char *mgl_cpu_scratch_of(const mgl_cpu_program *p, uint32_t worker) {
  assert(worker < p->memory->options.workers);
  return p->memory->scratch + worker * p->memory->scratch_bytes;
}

void *mgl_cpu_work_scratch(const mgl_cpu_program *p, uint32_t worker) {
  return mgl_cpu_scratch_of(p, worker) + p->scratch.work;
}

// --- attention -----------------------------------------------------------------------------------

// One attend op.
typedef struct attend_run {
  const mgl_cpu_program *p;
  const mgl_op *op;
  mgl_cpu_heads h;
  const float *qkv;           // [T, H + 2 HKV, HD]
  size_t qkv_stride;          // floats of a token
  const float *angles;        // [T, RD / 2, 2]
  uint32_t rotary_dim;        // RD
  const uint32_t *positions;  // [T]
  mgl_cpu_rows wanted;        // queries that attend; others only leave K and V
  unsigned char *scratch;
  mgl_cpu_attend_layout layout;
} attend_run;

// Consecutive tokens [first, first + tokens) of one sequence, for the KV head of a tile unit.
typedef struct attend_step {
  uint32_t unit, sequence, first, tokens;
} attend_step;

// Heads [head, head + count) of the tokens [first, first + tokens) of qkv, normed (where `norm` is
// given) and rotated into out [tokens, count, HD].
static void prepare_heads(const attend_run *u, uint32_t first, uint32_t tokens, uint32_t head,
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
      .angles = u->angles + (size_t)first * u->rotary_dim,
      .head_count = count,
      .head_dim = u->h.head_dim,
      .rotary_dim = u->rotary_dim,
  };
  u->p->kernels->rope(&args, 0, tokens);
}

static uint32_t kv_head_of(const attend_run *u, const attend_step *at) {
  return at->unit / u->p->strides;
}

// The step at or behind `at`, whose tokens are counted here; of the unit behind the last if there
// is none.
static attend_step find_step(const attend_run *u, attend_step at, uint32_t end) {
  const mgl_plan *plan = mgl_cpu_plan(u->p);
  while (at.unit < end) {
    if (at.sequence >= plan->sequence_count) {
      at.unit++;
      at.sequence = at.unit % u->p->strides;
      at.first = 0;
      continue;
    }
    uint32_t begin = plan->query_start[at.sequence], last = plan->query_start[at.sequence + 1];
    at.first = at.first < begin ? begin : at.first;
    if (at.first < last) {
      at.tokens = smaller(last - at.first, MGL_ATTENTION_QUERY_TILE);
      return at;
    }
    at.sequence += u->p->strides;
  }
  return at;
}

static const int32_t *block_tables_of(const attend_run *u) {
  return mgl_cpu_program_input(u->p, u->op, MGL_ROLE_BLOCK_TABLES);
}

// What a step attends to.
static mgl_attention_range range_of(const attend_run *u, const attend_step *at) {
  size_t end = (size_t)u->positions[at->first + at->tokens - 1] + 1;
  uint32_t window = (uint32_t)u->op->attrs[MGL_ATTR_WINDOW], first = u->positions[at->first];
  return (mgl_attention_range){
      .block_table =
          block_tables_of(u) + (size_t)at->sequence * mgl_cpu_plan(u->p)->limits.pages_per_sequence,
      .kv_head = kv_head_of(u, at),
      .begin = window != 0 && first >= window ? first + 1 - window : 0,
      .end = end,
  };
}

// K and V of a step's tokens go into the cache.
static void keep_tokens(const attend_run *u, const attend_step *at) {
  const mgl_cpu_program *p = u->p;
  const mgl_op *op = u->op;
  const mgl_cpu_heads *h = &u->h;
  const uint32_t kv_head = kv_head_of(u, at), first = at->first, tokens = at->tokens;
  size_t head_dim = h->head_dim;
  float *k = (float *)(void *)(u->scratch + u->layout.k);
  prepare_heads(u, first, tokens, h->head_count + kv_head, 1,
                mgl_cpu_program_input(p, op, MGL_ROLE_K_NORM), k);
  mgl_kv_write_args write = {
      .k = k,
      .v = u->qkv + first * u->qkv_stride + (h->head_count + h->kv_head_count + kv_head) * head_dim,
      .k_stride = head_dim,
      .v_stride = u->qkv_stride,
      .head_begin = kv_head,
      .head_end = kv_head + 1,
      .slots = (const uint32_t *)mgl_cpu_program_input(p, op, MGL_ROLE_SLOTS) + first,
      .kv = p->kv[mgl_op_input(op, MGL_ROLE_KV)],
  };
  p->kernels->kv_write(&write, 0, tokens);
}

// The queries of a step attend, once their tokens are in the cache: they see these and earlier ones
// only. next: what is attended to afterwards.
static void attend_tokens(const attend_run *u, const attend_step *at, mgl_attention_range next) {
  const mgl_cpu_program *p = u->p;
  const mgl_op *op = u->op;
  const mgl_cpu_heads *h = &u->h;
  const mgl_tensor *out = &p->graph->tensors[op->output];
  const uint32_t kv_head = kv_head_of(u, at), first = at->first, tokens = at->tokens;
  size_t head_dim = h->head_dim;
  float *q = (float *)(void *)(u->scratch + u->layout.q);
  prepare_heads(u, first, tokens, kv_head * h->group, h->group,
                mgl_cpu_program_input(p, op, MGL_ROLE_Q_NORM), q);
  mgl_attention_item item = {.sequence = at->sequence, .query_begin = 0, .query_count = tokens};
  size_t out_row = h->head_count * head_dim * mgl_dtype_bytes(out->dtype);
  mgl_attention_args attention = {
      .q = q,
      .q_stride = h->group * head_dim,
      .q_head_begin = kv_head * h->group,
      .items = &item,
      .positions = u->positions + first,
      .block_tables = block_tables_of(u),
      .block_table_stride = mgl_cpu_plan(p)->limits.pages_per_sequence,
      .kv = p->kv[mgl_op_input(op, MGL_ROLE_KV)],
      .head_count = h->head_count,
      .window = (uint32_t)op->attrs[MGL_ATTR_WINDOW],
      .scale = (float)op->attrs[MGL_ATTR_SCALE],
      .sinks = mgl_cpu_program_input(p, op, MGL_ROLE_SINKS),
      .out = (unsigned char *)mgl_cpu_program_tensor(p, op->output) + first * out_row,
      .out_dtype = out->dtype,
      .next = next,
  };
  p->kernels->attention(&attention, u->scratch + u->layout.attention, kv_head, kv_head + 1);
}

// The tokens of a step that are wanted.
static attend_step wanted_of(const attend_run *u, attend_step at) {
  uint32_t end = smaller(at.first + at.tokens, u->wanted.end);
  at.first = at.first < u->wanted.begin ? u->wanted.begin : at.first;
  at.tokens = at.first < end ? end - at.first : 0;
  return at;
}

static void run_attend(const mgl_cpu_program *p, const mgl_op *op, uint32_t worker, uint32_t begin,
                       uint32_t end) {
  const mgl_tensor *qkv = mgl_graph_input(p->graph, op, MGL_ROLE_QKV);
  const mgl_tensor *angles = mgl_graph_input(p->graph, op, MGL_ROLE_ANGLES);
  attend_run u = {
      .p = p,
      .op = op,
      .h = mgl_cpu_heads_of(p->graph, op),
      .qkv = mgl_cpu_program_input(p, op, MGL_ROLE_QKV),
      .qkv_stride = (size_t)mgl_tensor_row_elements(qkv),
      .angles = mgl_cpu_program_input(p, op, MGL_ROLE_ANGLES),
      .rotary_dim = 2 * angles->dims[1].number,
      .positions = mgl_cpu_program_input(p, op, MGL_ROLE_POSITIONS),
      .wanted = mgl_cpu_wanted(p, (uint32_t)(op - p->graph->ops), mgl_cpu_plan(p)->token_count),
      .scratch = mgl_cpu_work_scratch(p, worker),
  };
  u.layout = mgl_cpu_lay_out_attend(&u.h);
  attend_step at = find_step(&u, (attend_step){.unit = begin, .sequence = begin % p->strides}, end);
  while (at.unit < end) {
    attend_step next = at;
    next.first += at.tokens;
    next = find_step(&u, next, end);
    mgl_attention_range none = {0};
    attend_step wanted = wanted_of(&u, at);
    keep_tokens(&u, &at);
    if (wanted.tokens > 0) {
      attend_tokens(&u, &wanted, next.unit < end ? range_of(&u, &next) : none);
    }
    mgl_cpu_memory_pulse(p->memory, worker);
    at = next;
  }
}

// Every strides-th item of the work list, for one KV head a unit.
static void run_attention(const mgl_cpu_program *p, uint32_t op, uint32_t worker, uint32_t begin,
                          uint32_t end) {
  size_t kv_heads = p->kv[mgl_op_input(&p->graph->ops[op], MGL_ROLE_KV)].kv_head_count;
  for (uint32_t unit = begin; unit < end; unit++) {
    size_t kv_head = unit / p->strides;
    for (size_t item = unit % p->strides; item < mgl_cpu_plan(p)->attention_item_count;
         item += p->strides) {
      mgl_cpu_op_run(p, op, worker, item * kv_heads + kv_head, item * kv_heads + kv_head + 1);
      mgl_cpu_memory_pulse(p->memory, worker);
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
  (void)mgl_cpu_plan(p);
  if (begin >= end || mgl_cpu_program_elements(p, op->output) == 0) {
    return;
  }
  switch (mgl_op_info_of(op->kind)->unit) {
    case MGL_UNIT_ROW:
    case MGL_UNIT_VECTOR: run_present(p, op_idx, worker, begin, end); return;
    case MGL_UNIT_ELEMENT:
      if (mgl_op_kind_is_exchange(op->kind)) {
        mgl_cpu_op_run(p, op_idx, worker, begin, end);
      } else {
        run_columns(p, op_idx, worker, begin, end);
      }
      return;
    case MGL_UNIT_COLUMN: mgl_cpu_linear_run(p, op_idx, worker, begin, end); return;
    case MGL_UNIT_EXPERT: mgl_cpu_experts_run(p, op, worker, begin, end); return;
    case MGL_UNIT_HEAD:
      if (op->kind == MGL_OP_ATTEND) {
        run_attend(p, op, worker, begin, end);
      } else {
        run_attention(p, op_idx, worker, begin, end);
      }
      return;
    case MGL_UNIT_WHOLE:
    case MGL_UNIT_COUNT: break;  // of the GPU: refused when the program was made
  }
  assert(0 && "unknown op");
}
