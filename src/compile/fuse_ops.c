// Pass 1: patterns of ops become one op each (graph/op.def, "fused ops").
//
// Requires a finished program; ensures a finished one that computes the same bits. Five patterns:
//   qkv_proj + attend   rmsnorm, three linears, [two rmsnorms of heads,] two ropes, kv_write,
//   attention linear_add          linear, add gate_up             rmsnorm, two linears, silu_mul
//   logits              rmsnorm of rows, linear
// and for a GPU a sixth:
//   router, experts_up, experts_down  rmsnorm, linear, route, expert_gate_up, expert_down
// The first two arise together or not at all, since qkv_proj has one result where the three linears
// have three. Everything that matches no pattern stays as it is and where it is.
//
// A pattern is found from its last op backwards, over the producers of its inputs, and its fused op
// stands where its last op stood. That is the same program when
//   - no value inside the pattern has another reader or is an output,
//   - what the fused op reads still has its storage there: in-place ops that take it over come
//   later,
//   - no other op touches the KV tensor between a kv_write and its attention.
// An op belongs to one pattern at most; the one that ends first wins. Rejected: a general matcher
// of patterns as data. Each of these has conditions of its own, which read best as code.
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "graph/act_dtype.h"
#include "model/config.h"
#include "twin/device_run.h"

#define NONE UINT32_MAX

typedef enum fate {
  KEPT,      // copied
  ABSORBED,  // part of a fused op that stands later
  REPLACED,  // by the fused op ops[i]
} fate;

typedef struct fuser {
  const mgl_graph *in;
  mgl_graph *out;
  mgl_dtype act;       // of the program
  bool for_gpu;        // mixtures are fused too, and a linear with an all_reduce
  uint32_t *producer;  // [tensors] the op that writes an activation, or NONE
  uint32_t *reads;     // [tensors] by ops of the program; an output has one more
  uint32_t *taken_by;  // [tensors] the in-place op that takes over the storage, or NONE
  uint32_t
      *touched;   // [tensors] the last op before the one at hand that reads or writes it, or NONE
  uint32_t *map;  // [tensors] its index in `out`
  fate *fates;    // [ops]
  mgl_op *ops;    // [ops] fused ops, with tensors of `in`. The result of qkv_proj stands for Q, K
                  // and V under the tensor of the last linear.
} fuser;

static const mgl_tensor *tensor_of(const fuser *f, uint32_t tensor) {
  return &f->in->tensors[tensor];
}

// The op that writes `tensor`, if it is of that kind, not part of a pattern yet, and has no more
// than the required inputs but for `optional`; NONE otherwise.
static uint32_t producer_of(const fuser *f, uint32_t tensor, mgl_op_kind kind, uint32_t optional) {
  uint32_t op = f->producer[tensor];
  if (op == NONE || f->in->ops[op].kind != kind || f->fates[op] != KEPT ||
      f->in->ops[op].input_count != mgl_op_info_of(kind)->input_count + optional) {
    return NONE;
  }
  return op;
}

// Returns producer_of, if nothing but the pattern reads the value.
static uint32_t sole_producer_of(const fuser *f, uint32_t tensor, mgl_op_kind kind,
                                 uint32_t optional) {
  return f->reads[tensor] == 1 ? producer_of(f, tensor, kind, optional) : NONE;
}

// Whether a tensor still has its storage when op `at` runs.
static bool lives_until(const fuser *f, uint32_t tensor, uint32_t at) {
  return f->taken_by[tensor] == NONE || f->taken_by[tensor] > at;
}

// The rmsnorm that `value` comes from, if `reads` linears of the pattern are its only readers and
// it can be staged by a fused op at `at`: rows [T, D], of the program's act dtype.
static uint32_t staged_norm(const fuser *f, uint32_t value, uint32_t reads, uint32_t optional,
                            uint32_t at) {
  uint32_t norm = producer_of(f, value, MGL_OP_RMSNORM, optional);
  if (norm == NONE || f->reads[value] != reads || tensor_of(f, value)->dtype != f->act ||
      tensor_of(f, value)->rank != 2 || !lives_until(f, f->in->ops[norm].inputs[0], at)) {
    return NONE;
  }
  return norm;
}

static void absorb(fuser *f, const uint32_t *ops, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (ops[i] != NONE) {
      f->fates[ops[i]] = ABSORBED;
    }
  }
}

static void replace(fuser *f, uint32_t at, mgl_op op) {
  f->fates[at] = REPLACED;
  f->ops[at] = op;
}

// --- the simple patterns -------------------------------------------------------------------------

static void match_linear_add(fuser *f, uint32_t at) {
  const mgl_op *add = &f->in->ops[at];
  uint32_t linear = sole_producer_of(f, add->inputs[1], MGL_OP_LINEAR, 0);
  if (linear == NONE && f->for_gpu && add->kind == MGL_OP_ADD) {
    linear = sole_producer_of(f, add->inputs[1], MGL_OP_LINEAR, 1);
  }
  if (linear == NONE) {
    return;
  }
  const uint32_t *in = f->in->ops[linear].inputs;
  if (!lives_until(f, in[0], at)) {
    return;  // also where x is the residual itself
  }
  mgl_op op = {.kind = MGL_OP_LINEAR_ADD,
               .input_count = 3,
               .inputs = {add->inputs[0], in[0], in[1]},
               .output = add->output};
  if (f->in->ops[linear].input_count == 3) {
    op.inputs[op.input_count++] = in[2];
  }
  op.attrs[MGL_ATTR_OVER] = add->attrs[MGL_ATTR_RANKS];  // of an all_reduce
  replace(f, at, op);
  absorb(f, &linear, 1);
}

static void match_gate_up(fuser *f, uint32_t at) {
  const mgl_op *silu_mul = &f->in->ops[at];
  uint32_t gate = sole_producer_of(f, silu_mul->inputs[0], MGL_OP_LINEAR, 0);
  uint32_t up = sole_producer_of(f, silu_mul->inputs[1], MGL_OP_LINEAR, 0);
  if (gate == NONE || up == NONE || tensor_of(f, silu_mul->output)->rank != 2) {
    return;
  }
  uint32_t value = f->in->ops[gate].inputs[0];
  uint32_t norm = staged_norm(f, value, 2, 0, at);
  if (norm == NONE || f->in->ops[up].inputs[0] != value) {
    return;
  }
  const mgl_op *n = &f->in->ops[norm];
  mgl_op op = {
      .kind = MGL_OP_GATE_UP,
      .input_count = 4,
      .inputs = {n->inputs[0], n->inputs[1], f->in->ops[gate].inputs[1], f->in->ops[up].inputs[1]},
      .output = silu_mul->output};
  op.attrs[MGL_ATTR_EPS] = n->attrs[MGL_ATTR_EPS];
  replace(f, at, op);
  absorb(f, (uint32_t[]){norm, gate, up}, 3);
}

// Whether the tasks of a GPU have these experts: in bf16 or codes (which of them, lower/packed.h
// says), of sizes that linears of one token have (tasks_linear_one.cuh), chosen by a softmax. Of
// bf16 rows are whole pairs of pages; those of codes may end within a panel, which x fills up.
static bool are_tasks_for(const fuser *f, const mgl_op *route, const mgl_op *up,
                          const mgl_op *down) {
  const mgl_tensor *w = mgl_graph_input(f->in, up, MGL_ROLE_EXPERTS);
  const mgl_tensor *w_down = mgl_graph_input(f->in, down, MGL_ROLE_EXPERTS);
  const uint32_t slots = mgl_op_slots(f->in, up);
  const uint32_t width = w->dims[2].number, features = w->dims[1].number;
  const bool codes = mgl_dtype_is_code(w->dtype) && mgl_dtype_is_code(w_down->dtype);
  const uint32_t step = codes ? MGL_CUDA_K_ALIGN : 2 * MGL_CUDA_PAGE_K;
  const bool packs = mgl_dtype_fits_bf16(w->dtype) && mgl_dtype_fits_bf16(w_down->dtype);
  return f->act == MGL_DTYPE_BF16 && packs && route->attrs[MGL_ATTR_SCORES] != MGL_SCORES_SIGMOID &&
         (route->attrs[MGL_ATTR_GROUPS] <= 1 || route->attrs[MGL_ATTR_TOP_GROUPS] == 0) &&
         w->dims[0].number <= MGL_FUSE_CUDA_MAX_EXPERTS && slots <= MGL_FUSE_CUDA_MAX_SLOTS &&
         width % step == 0 && width <= MGL_ONE_NORMED_MAX_K && features % MGL_CUDA_K_ALIGN == 0 &&
         slots * (uint64_t)features <= MGL_ONE_MAX_K && slots * features % step == 0;
}

// A mixture: router, experts_up and experts_down stand where the router's linear, expert_gate_up
// and expert_down stood.
static void match_experts(fuser *f, uint32_t at) {
  const mgl_op *ops = f->in->ops;
  const mgl_op *down = &ops[at];
  const bool biased = down->input_count == 5;
  uint32_t up_idx = sole_producer_of(f, down->inputs[1], MGL_OP_EXPERT_GATE_UP, biased ? 2 : 0);
  uint32_t route_idx = producer_of(f, down->inputs[2], MGL_OP_ROUTE, 0);
  if (up_idx == NONE || route_idx == NONE || ops[up_idx].inputs[1] != down->inputs[2] ||
      f->reads[down->inputs[2]] != 2) {
    return;
  }
  const mgl_op *up = &ops[up_idx];
  const mgl_op *route = &ops[route_idx];
  uint32_t linear_idx = sole_producer_of(f, route->inputs[0], MGL_OP_LINEAR, biased ? 1 : 0);
  uint32_t norm_idx = staged_norm(f, up->inputs[0], 2, 0, up_idx);
  if (linear_idx == NONE || norm_idx == NONE || ops[linear_idx].inputs[0] != up->inputs[0] ||
      tensor_of(f, ops[linear_idx].output)->rank != 2 || !are_tasks_for(f, route, up, down)) {
    return;
  }
  const mgl_op *norm = &ops[norm_idx];
  const uint32_t logits = route->inputs[0];
  mgl_op router = {.kind = MGL_OP_ROUTER,
                   .input_count = 3,
                   .inputs = {norm->inputs[0], norm->inputs[1], ops[linear_idx].inputs[1]},
                   .output = logits};
  mgl_op experts_up = {
      .kind = MGL_OP_EXPERTS_UP,
      .input_count = 5,
      .inputs = {norm->inputs[0], norm->inputs[1], logits, up->inputs[2], up->inputs[3]},
      .output = up->output};
  mgl_op experts_down = {.kind = MGL_OP_EXPERTS_DOWN,
                         .input_count = 4,
                         .inputs = {down->inputs[0], down->inputs[1], logits, down->inputs[3]},
                         .output = down->output};
  if (biased) {
    router.inputs[router.input_count++] = ops[linear_idx].inputs[2];
    experts_up.inputs[experts_up.input_count++] = up->inputs[4];
    experts_up.inputs[experts_up.input_count++] = up->inputs[5];
    experts_down.inputs[experts_down.input_count++] = down->inputs[4];
  }
  experts_up.attrs[MGL_ATTR_LIMIT] = up->attrs[MGL_ATTR_LIMIT];
  router.attrs[MGL_ATTR_EPS] = experts_up.attrs[MGL_ATTR_EPS] = norm->attrs[MGL_ATTR_EPS];
  experts_up.attrs[MGL_ATTR_SCALE] = route->attrs[MGL_ATTR_SCALE];
  experts_up.attrs[MGL_ATTR_SCORES] = route->attrs[MGL_ATTR_SCORES];
  experts_up.attrs[MGL_ATTR_RENORMALISE] = route->attrs[MGL_ATTR_RENORMALISE];
  replace(f, linear_idx, router);
  replace(f, up_idx, experts_up);
  replace(f, at, experts_down);
  absorb(f, (uint32_t[]){norm_idx, route_idx}, 2);
}

static void match_logits(fuser *f, uint32_t at) {
  const mgl_op *linear = &f->in->ops[at];
  uint32_t norm = staged_norm(f, linear->inputs[0], 1, 1, at);
  if (norm == NONE || linear->input_count != 2 || tensor_of(f, linear->output)->rank != 2) {
    return;
  }
  const mgl_op *n = &f->in->ops[norm];
  mgl_op op = {.kind = MGL_OP_LOGITS,
               .input_count = 4,
               .inputs = {n->inputs[0], n->inputs[1], n->inputs[2], linear->inputs[1]},
               .output = linear->output};
  op.attrs[MGL_ATTR_EPS] = n->attrs[MGL_ATTR_EPS];
  replace(f, at, op);
  absorb(f, &norm, 1);
}

// --- qkv_proj and attend -------------------------------------------------------------------------

enum { Q, K, V, HEAD_KINDS };

// The ops of one attention block; absent ones are NONE.
typedef struct attention_block {
  uint32_t norm;
  uint32_t linear[HEAD_KINDS];
  uint32_t head_norm[2];
  uint32_t rope[2];
  uint32_t kv_write, attention;
} attention_block;

// The kv_write in front of an attention, if it is the last op that touches the KV tensor before it.
static uint32_t find_kv_write(const fuser *f, uint32_t attention) {
  uint32_t kv = f->in->ops[attention].inputs[1];
  uint32_t op = f->touched[kv];
  return op != NONE && f->in->ops[op].kind == MGL_OP_KV_WRITE ? op : NONE;
}

// From a rotated value back to its linear: rope, a head norm or none.
static bool find_rotated(const fuser *f, uint32_t value, uint32_t which, attention_block *b) {
  b->rope[which] = sole_producer_of(f, value, MGL_OP_ROPE, 0);
  if (b->rope[which] == NONE) {
    return false;
  }
  uint32_t x = f->in->ops[b->rope[which]].inputs[0];
  b->head_norm[which] = sole_producer_of(f, x, MGL_OP_RMSNORM, 0);
  if (b->head_norm[which] != NONE) {
    const mgl_op *norm = &f->in->ops[b->head_norm[which]];
    if (mgl_op_vector_elements(f->in, norm) != tensor_of(f, norm->output)->dims[2].number) {
      return false;  // of all heads together
    }
    x = f->in->ops[b->head_norm[which]].inputs[0];
  }
  b->linear[which] = f->reads[x] == 1 ? f->producer[x] : NONE;
  return b->linear[which] != NONE;
}

// All three linears: of one x, all with a bias or none, not part of another pattern.
static bool linears_match(const fuser *f, const attention_block *b) {
  const mgl_op *q = &f->in->ops[b->linear[Q]];
  for (int i = Q; i < HEAD_KINDS; i++) {
    const mgl_op *op = &f->in->ops[b->linear[i]];
    if (op->kind != MGL_OP_LINEAR || f->fates[b->linear[i]] != KEPT ||
        op->inputs[0] != q->inputs[0] || op->input_count != q->input_count ||
        tensor_of(f, op->output)->rank != 3) {
      return false;
    }
  }
  return true;
}

static bool find_attention_block(const fuser *f, uint32_t attention, attention_block *b) {
  const mgl_op *ops = f->in->ops;
  b->attention = attention;
  b->kv_write = find_kv_write(f, attention);
  if (b->kv_write == NONE || !find_rotated(f, ops[attention].inputs[0], Q, b) ||
      !find_rotated(f, ops[b->kv_write].inputs[0], K, b)) {
    return false;
  }
  uint32_t v = ops[b->kv_write].inputs[1];
  b->linear[V] = f->reads[v] == 1 ? f->producer[v] : NONE;
  if (b->linear[V] == NONE || !linears_match(f, b)) {
    return false;
  }
  if (b->head_norm[Q] != NONE && mgl_op_input(&ops[attention], MGL_ROLE_SINKS) != MGL_NO_TENSOR) {
    return false;  // attend has one or the other
  }
  if ((b->head_norm[Q] == NONE) != (b->head_norm[K] == NONE) ||
      (b->head_norm[Q] != NONE &&
       ops[b->head_norm[Q]].attrs[MGL_ATTR_EPS] != ops[b->head_norm[K]].attrs[MGL_ATTR_EPS])) {
    return false;
  }
  uint32_t angles = ops[b->rope[Q]].inputs[1];
  if (ops[b->rope[K]].inputs[1] != angles || !lives_until(f, angles, attention)) {
    return false;
  }
  uint32_t last = b->linear[Q];
  for (int i = K; i < HEAD_KINDS; i++) {
    last = b->linear[i] > last ? b->linear[i] : last;
  }
  b->norm = staged_norm(f, ops[b->linear[Q]].inputs[0], 3, 0, last);
  return b->norm != NONE;
}

static mgl_op make_qkv_proj(const fuser *f, const attention_block *b, uint32_t output) {
  const mgl_op *ops = f->in->ops;
  mgl_op op = {.kind = MGL_OP_QKV_PROJ,
               .input_count = 5,
               .inputs = {ops[b->norm].inputs[0], ops[b->norm].inputs[1]},
               .output = output};
  bool bias = ops[b->linear[Q]].input_count == 3;
  for (uint32_t i = Q; i < HEAD_KINDS; i++) {
    op.inputs[2 + i] = ops[b->linear[i]].inputs[1];
    if (bias) {
      op.inputs[op.input_count++] = ops[b->linear[i]].inputs[2];
    }
  }
  op.attrs[MGL_ATTR_EPS] = ops[b->norm].attrs[MGL_ATTR_EPS];
  return op;
}

static mgl_op make_attend(const fuser *f, const attention_block *b, uint32_t qkv) {
  const mgl_op *ops = f->in->ops;
  const mgl_op *attention = &ops[b->attention];
  mgl_op op = {.kind = MGL_OP_ATTEND,
               .input_count = 6,
               .inputs = {qkv, attention->inputs[1], ops[b->rope[Q]].inputs[1],
                          attention->inputs[2], ops[b->kv_write].inputs[2], attention->inputs[3]},
               .output = attention->output};
  if (b->head_norm[Q] != NONE) {
    op.inputs[op.input_count++] = ops[b->head_norm[Q]].inputs[1];
    op.inputs[op.input_count++] = ops[b->head_norm[K]].inputs[1];
    op.attrs[MGL_ATTR_EPS] = ops[b->head_norm[Q]].attrs[MGL_ATTR_EPS];
  } else if (mgl_op_input(attention, MGL_ROLE_SINKS) != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = mgl_op_input(attention, MGL_ROLE_SINKS);
  }
  op.attrs[MGL_ATTR_SCALE] = attention->attrs[MGL_ATTR_SCALE];
  op.attrs[MGL_ATTR_WINDOW] = attention->attrs[MGL_ATTR_WINDOW];
  return op;
}

static void match_attention(fuser *f, uint32_t at) {
  attention_block b;
  if (!find_attention_block(f, at, &b)) {
    return;
  }
  uint32_t last = b.linear[Q];
  last = b.linear[K] > last ? b.linear[K] : last;
  last = b.linear[V] > last ? b.linear[V] : last;
  uint32_t qkv = f->in->ops[last].output;
  mgl_op attend = make_attend(f, &b, qkv);
  absorb(f, (uint32_t[]){b.norm, b.linear[Q], b.linear[K], b.linear[V]}, 4);
  absorb(f, (uint32_t[]){b.head_norm[Q], b.head_norm[K], b.rope[Q], b.rope[K], b.kv_write}, 5);
  replace(f, last, make_qkv_proj(f, &b, qkv));
  replace(f, at, attend);
}

// --- the new program -----------------------------------------------------------------------------

static void match(fuser *f) {
  for (uint32_t i = 0; i < f->in->op_count; i++) {
    switch (f->in->ops[i].kind) {
      case MGL_OP_ATTENTION: match_attention(f, i); break;
      case MGL_OP_ADD: match_linear_add(f, i); break;
      case MGL_OP_ALL_REDUCE:
        if (f->for_gpu) {
          match_linear_add(f, i);
        }
        break;
      case MGL_OP_SILU_MUL: match_gate_up(f, i); break;
      case MGL_OP_LINEAR: match_logits(f, i); break;
      case MGL_OP_EXPERT_DOWN:
        if (f->for_gpu) {
          match_experts(f, i);
        }
        break;
      default: break;
    }
    const mgl_op *op = &f->in->ops[i];
    for (uint32_t j = 0; j < op->input_count; j++) {
      f->touched[op->inputs[j]] = i;
    }
    f->touched[op->output] = i;
  }
}

static void survey(fuser *f) {
  const mgl_graph *in = f->in;
  memset(f->producer, 0xff, in->tensor_count * sizeof *f->producer);
  memset(f->taken_by, 0xff, in->tensor_count * sizeof *f->taken_by);
  memset(f->touched, 0xff, in->tensor_count * sizeof *f->touched);
  for (uint32_t i = 0; i < in->op_count; i++) {
    const mgl_op *op = &in->ops[i];
    for (uint32_t j = 0; j < op->input_count; j++) {
      f->reads[op->inputs[j]]++;
    }
    if (mgl_op_info_of(op->kind)->in_place) {
      f->taken_by[op->inputs[0]] = i;
    }
    if (in->tensors[op->output].placement == MGL_PLACE_ACTIVATION) {
      f->producer[op->output] = i;
    }
  }
  for (size_t i = 0; i < in->tensor_count; i++) {
    f->reads[i] += in->tensors[i].is_output ? 1 : 0;
  }
}

// Declares the result of an op (with tensors of `in`) in the new program.
static void declare_output(fuser *f, const mgl_op *op) {
  const mgl_tensor *t = tensor_of(f, op->output);
  if (t->placement != MGL_PLACE_ACTIVATION) {
    return;
  }
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  memcpy(dims, t->dims, sizeof dims);
  if (op->kind == MGL_OP_QKV_PROJ) {  // one made here has the tensor of its last linear
    uint32_t features = 0;
    for (int i = 2; i < 5; i++) {
      features += tensor_of(f, op->inputs[i])->dims[0].number;
    }
    dims[1] = MGL_DIM(features / dims[2].number);
  }
  if (op->kind == MGL_OP_EXPERTS_UP) {  // a row a token
    dims[1] = MGL_DIM((dims[0].number > 1 ? dims[0].number : 1) * dims[1].number);
    dims[0] = MGL_DIM_T;
  }
  f->map[op->output] = mgl_graph_tensor(f->out, t->name, t->placement, t->dtype, t->rank, dims);
  if (t->is_output) {
    mgl_graph_mark_output(f->out, f->map[op->output]);
  }
}

static void write_program(fuser *f) {
  for (size_t i = 0; i < f->in->tensor_count; i++) {
    const mgl_tensor *t = &f->in->tensors[i];
    if (t->placement != MGL_PLACE_ACTIVATION) {
      f->map[i] = mgl_graph_form_tensor(f->out, t->name, t->placement, mgl_tensor_form(t), t->rank,
                                        t->dims);
      if (f->map[i] == MGL_NO_TENSOR) {
        return;  // out->error says why
      }
      f->out->tensors[f->map[i]].made = t->made;
      f->out->tensors[f->map[i]].slice = t->slice;
      f->out->tensors[f->map[i]].k_scale = t->k_scale;
      f->out->tensors[f->map[i]].v_scale = t->v_scale;
    }
  }
  for (size_t i = 0; i < f->in->op_count && f->out->error.status == MGL_OK; i++) {
    if (f->fates[i] == ABSORBED) {
      continue;
    }
    mgl_op op = f->fates[i] == REPLACED ? f->ops[i] : f->in->ops[i];
    declare_output(f, &op);
    if (f->out->error.status != MGL_OK) {
      return;  // the map is incomplete
    }
    for (uint32_t j = 0; j < op.input_count; j++) {
      op.inputs[j] = f->map[op.inputs[j]];
    }
    op.output = f->map[op.output];
    mgl_graph_op(f->out, op);
  }
}

static mgl_status fuse(const mgl_graph *program, bool for_gpu, mgl_graph **out, mgl_error *err) {
  size_t tensors = program->tensor_count;
  size_t ops = program->op_count;
  fuser f = {.in = program, .act = mgl_graph_act_dtype(program), .for_gpu = for_gpu};
  *out = NULL;
  mgl_status status = mgl_graph_create(program->name, &f.out, err);
  if (status != MGL_OK) {
    return status;
  }
  f.producer = mgl_alloc_zeroed(tensors, sizeof *f.producer);
  f.reads = mgl_alloc_zeroed(tensors, sizeof *f.reads);
  f.taken_by = mgl_alloc_zeroed(tensors, sizeof *f.taken_by);
  f.touched = mgl_alloc_zeroed(tensors, sizeof *f.touched);
  f.map = mgl_alloc_zeroed(tensors, sizeof *f.map);
  f.fates = mgl_alloc_zeroed(ops, sizeof *f.fates);
  f.ops = mgl_alloc_zeroed(ops, sizeof *f.ops);
  if (f.producer == NULL || f.reads == NULL || f.taken_by == NULL || f.touched == NULL ||
      f.map == NULL || f.fates == NULL || f.ops == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory fusing %zu ops", ops);
  } else {
    survey(&f);
    match(&f);
    write_program(&f);
    status = mgl_graph_finish(f.out, err);
  }
  mgl_free(f.producer);
  mgl_free(f.reads);
  mgl_free(f.taken_by);
  mgl_free(f.touched);
  mgl_free(f.map);
  mgl_free(f.fates);
  mgl_free(f.ops);
  if (status != MGL_OK) {
    mgl_graph_destroy(f.out);
    return status;
  }
  *out = f.out;
  return MGL_OK;
}

mgl_status mgl_fuse_ops(const mgl_graph *program, mgl_graph **out, mgl_error *err) {
  return fuse(program, false, out, err);
}

mgl_status mgl_fuse_ops_for_gpu(const mgl_graph *program, mgl_graph **out, mgl_error *err) {
  return fuse(program, true, out, err);
}
