#include "support/random_program.h"

#include <stdio.h>
#include <stdlib.h>

#include "graph/balance.h"

enum { MAX_LIVE = 12, KV_TENSORS = 2, MAX_TENSORS = 4096 };

// What a tensor may be used for.
typedef enum shape {
  HIDDEN,    // f32[T,D]
  NORMED,    // act[T,D]
  QUERIES,   // f32[T,H,HD]
  KEYS,      // f32[T,HKV,HD]
  ANGLES,    // f32[T,HD/2,2]
  PACKED,    // f32[T,H+2*HKV,HD]
  ATTENDED,  // act[T,H,HD]
  GATE,      // f32[T,F]
  GATED,     // act[T,F]
  LAST,      // act[L,D]
  LOGITS,    // f32[L,V]
  PLANNED,   // i32[1]
  SAMPLED,   // i32[L]
  SHAPES,
} shape;

typedef struct generator {
  random_source random;
  mgl_graph *g;
  mgl_dtype act;
  uint32_t d, head_dim, kv_heads, heads, f, v;
  uint32_t tokens, positions, slots, block_tables, logit_rows;
  uint32_t kv[KV_TENSORS];
  uint32_t live[SHAPES][MAX_LIVE];
  uint32_t live_count[SHAPES];
  unsigned char was_read[MAX_TENSORS];
  uint32_t next_name;
} generator;

uint32_t random_below(random_source *source, uint32_t limit) {
  source->state = source->state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(source->state >> 33) % limit;
}

static uint32_t below(generator *s, uint32_t limit) {
  return random_below(&s->random, limit);
}

static uint32_t declare(generator *s, const char *prefix, mgl_placement placement, mgl_dtype dtype,
                        uint32_t rank, const mgl_dim *dims) {
  char name[32];
  (void)snprintf(name, sizeof name, "%s%u", prefix, s->next_name++);
  return mgl_graph_tensor(s->g, name, placement, dtype, rank, dims);
}

static uint32_t vector(generator *s, uint32_t n) {
  mgl_dim dims[] = {MGL_DIM(n)};
  return declare(s, "w", MGL_PLACE_WEIGHT, MGL_DTYPE_BF16, 1, dims);
}

static uint32_t matrix(generator *s, uint32_t n, uint32_t k) {
  mgl_dim dims[] = {MGL_DIM(n), MGL_DIM(k)};
  return declare(s, "w", MGL_PLACE_WEIGHT, MGL_DTYPE_BF16, 2, dims);
}

static uint32_t index_input(generator *s, const char *name, mgl_dim dim) {
  return mgl_graph_tensor(s->g, name, MGL_PLACE_INPUT, MGL_DTYPE_I32, 1, &dim);
}

// A fresh activation of that shape.
static uint32_t result(generator *s, shape kind) {
  mgl_dim dims[3] = {MGL_DIM_T};
  mgl_dtype dtype = MGL_DTYPE_F32;
  uint32_t rank = 2;
  switch (kind) {
    case NORMED:
      dtype = s->act;
      dims[1] = MGL_DIM(s->d);
      break;
    case LAST:
      dtype = s->act;
      dims[0] = MGL_DIM_L;
      dims[1] = MGL_DIM(s->d);
      break;
    case HIDDEN: dims[1] = MGL_DIM(s->d); break;
    case GATED:
      dtype = s->act;
      dims[1] = MGL_DIM(s->f);
      break;
    case GATE: dims[1] = MGL_DIM(s->f); break;
    case LOGITS:
      dims[0] = MGL_DIM_L;
      dims[1] = MGL_DIM(s->v);
      break;
    case PLANNED:
    case SAMPLED:
      dtype = MGL_DTYPE_I32;
      rank = 1;
      dims[0] = kind == PLANNED ? MGL_DIM(1) : MGL_DIM_L;
      break;
    case ANGLES:
      rank = 3;
      dims[1] = MGL_DIM(s->head_dim / 2);
      dims[2] = MGL_DIM(2);
      break;
    case ATTENDED:
      dtype = s->act;
      rank = 3;
      dims[1] = MGL_DIM(s->heads);
      break;
    case QUERIES:
      rank = 3;
      dims[1] = MGL_DIM(s->heads);
      break;
    case KEYS:
      rank = 3;
      dims[1] = MGL_DIM(s->kv_heads);
      break;
    case PACKED:
      rank = 3;
      dims[1] = MGL_DIM(s->heads + 2 * s->kv_heads);
      break;
    case SHAPES: abort();
  }
  if (rank == 3 && kind != ANGLES) {
    dims[2] = MGL_DIM(s->head_dim);
  }
  return declare(s, "t", MGL_PLACE_ACTIVATION, dtype, rank, dims);
}

static void forget(generator *s, shape kind, uint32_t at) {
  s->live[kind][at] = s->live[kind][--s->live_count[kind]];
}

static void keep(generator *s, shape kind, uint32_t tensor) {
  if (tensor == MGL_NO_TENSOR || tensor >= MAX_TENSORS) {
    (void)fprintf(stderr, "random program: %s\n", s->g->error.text);
    abort();
  }
  if (s->live_count[kind] == MAX_LIVE) {
    uint32_t at = below(s, MAX_LIVE);
    if (s->was_read[s->live[kind][at]] == 0) {
      mgl_graph_mark_output(s->g, s->live[kind][at]);
    }
    forget(s, kind, at);
  }
  s->live[kind][s->live_count[kind]++] = tensor;
}

// A live tensor of that shape, or MGL_NO_TENSOR; mostly a recent one, so that programs are deep.
static uint32_t pick(generator *s, shape kind) {
  uint32_t count = s->live_count[kind];
  if (count == 0) {
    return MGL_NO_TENSOR;
  }
  uint32_t at = below(s, 3) != 0 ? count - 1 : below(s, count);
  return s->live[kind][at];
}

static void take_over(generator *s, shape kind, uint32_t tensor) {
  for (uint32_t i = 0; i < s->live_count[kind]; i++) {
    if (s->live[kind][i] == tensor) {
      forget(s, kind, i);
      return;
    }
  }
}

static void mark_reads(generator *s, const mgl_op *op) {
  for (uint32_t i = 0; i < op->input_count; i++) {
    s->was_read[op->inputs[i]] = 1;
  }
}

static uint32_t append(generator *s, mgl_op op, shape kind) {
  op.output = result(s, kind);
  mark_reads(s, &op);
  mgl_graph_op(s->g, op);
  keep(s, kind, op.output);
  return op.output;
}

// --- one op each; they do nothing where an input is missing
// ---------------------------------------

static void add_linear(generator *s) {
  static const struct {
    shape from, to;
  } kinds[] = {{NORMED, HIDDEN}, {NORMED, QUERIES}, {NORMED, KEYS}, {ATTENDED, HIDDEN},
               {NORMED, GATE},   {GATED, HIDDEN},   {HIDDEN, GATE}, {LAST, LOGITS}};
  uint32_t kind = below(s, sizeof kinds / sizeof kinds[0]);
  const uint32_t sizes[SHAPES] = {
      [HIDDEN] = s->d, [NORMED] = s->d,
      [LAST] = s->d,   [QUERIES] = s->heads * s->head_dim,
      [GATE] = s->f,   [KEYS] = s->kv_heads * s->head_dim,
      [GATED] = s->f,  [ATTENDED] = s->heads * s->head_dim,
      [LOGITS] = s->v,
  };
  uint32_t x = pick(s, kinds[kind].from);
  if (x != MGL_NO_TENSOR) {
    uint32_t n = sizes[kinds[kind].to];
    mgl_op op = {.kind = MGL_OP_LINEAR, .input_count = 2};
    op.inputs[0] = x;
    op.inputs[1] = matrix(s, n, sizes[kinds[kind].from]);
    if (below(s, 2) == 0) {
      op.inputs[op.input_count++] = vector(s, n);
    }
    (void)append(s, op, kinds[kind].to);
  }
}

static void add_norm(generator *s) {
  static const shape from[] = {HIDDEN, HIDDEN, QUERIES, KEYS, HIDDEN};
  static const shape to[] = {NORMED, NORMED, QUERIES, KEYS, LAST};
  uint32_t kind = below(s, 5);
  uint32_t x = pick(s, from[kind]);
  if (x != MGL_NO_TENSOR) {
    mgl_op op = {.kind = MGL_OP_RMSNORM, .input_count = 2};
    op.inputs[0] = x;
    op.inputs[1] = vector(s, from[kind] == HIDDEN ? s->d : s->head_dim);
    op.attrs[MGL_ATTR_EPS] = 1e-6;
    if (below(s, 4) == 0) {
      op.kind = MGL_OP_LAYERNORM;
      op.inputs[op.input_count++] = vector(s, from[kind] == HIDDEN ? s->d : s->head_dim);
    }
    if (to[kind] == LAST) {
      op.inputs[op.input_count++] = s->logit_rows;
    }
    (void)append(s, op, to[kind]);
  }
}

static void add_rope(generator *s) {
  shape kind = below(s, 2) == 0 ? QUERIES : KEYS;
  uint32_t x = pick(s, kind);
  uint32_t angles = pick(s, ANGLES);
  if (x != MGL_NO_TENSOR && angles != MGL_NO_TENSOR) {
    take_over(s, kind, x);
    (void)append(s, (mgl_op){.kind = MGL_OP_ROPE, .input_count = 2, .inputs = {x, angles}}, kind);
  }
}

static void add_kv_write(generator *s) {
  uint32_t k = pick(s, KEYS);
  uint32_t v = pick(s, KEYS);
  if (k != MGL_NO_TENSOR && v != MGL_NO_TENSOR) {
    mgl_graph_kv_write(s->g, k, v, s->slots, s->kv[below(s, KV_TENSORS)]);
    mark_reads(s, &s->g->ops[s->g->op_count - 1]);
  }
}

static void add_attention(generator *s) {
  uint32_t q = pick(s, QUERIES);
  if (q != MGL_NO_TENSOR) {
    mgl_op op = {.kind = MGL_OP_ATTENTION,
                 .input_count = 4,
                 .inputs = {q, s->kv[below(s, KV_TENSORS)], s->positions, s->block_tables}};
    op.attrs[MGL_ATTR_SCALE] = 0.25;
    (void)append(s, op, ATTENDED);
  }
}

static void add_elementwise(generator *s, bool sum) {
  shape kind = sum ? HIDDEN : GATE;
  uint32_t x = pick(s, kind);
  uint32_t y = pick(s, kind);
  if (x != MGL_NO_TENSOR) {
    if (sum) {
      take_over(s, kind, x);
    }
    mgl_op op = {.kind = sum ? MGL_OP_ADD : MGL_OP_SILU_MUL, .input_count = 2, .inputs = {x, y}};
    if (!sum && below(s, 3) == 0) {
      op = (mgl_op){.kind = MGL_OP_GELU, .input_count = 1, .inputs = {x}};
    }
    (void)append(s, op, sum ? HIDDEN : GATED);
  }
}

static void add_qkv_proj(generator *s) {
  uint32_t x = pick(s, HIDDEN);
  if (x == MGL_NO_TENSOR) {
    return;
  }
  const uint32_t sizes[] = {s->heads * s->head_dim, s->kv_heads * s->head_dim,
                            s->kv_heads * s->head_dim};
  mgl_op op = {.kind = MGL_OP_QKV_PROJ, .input_count = 2, .inputs = {x, vector(s, s->d)}};
  op.attrs[MGL_ATTR_EPS] = 1e-6;
  for (uint32_t i = 0; i < 3; i++) {
    op.inputs[op.input_count++] = matrix(s, sizes[i], s->d);
  }
  for (uint32_t i = below(s, 2) * 3; i < 3; i++) {
    op.inputs[op.input_count++] = vector(s, sizes[i]);
  }
  (void)append(s, op, PACKED);
}

static void add_attend(generator *s) {
  uint32_t qkv = pick(s, PACKED);
  uint32_t angles = pick(s, ANGLES);
  if (qkv != MGL_NO_TENSOR && angles != MGL_NO_TENSOR) {
    mgl_op op = {.kind = MGL_OP_ATTEND,
                 .input_count = 6,
                 .inputs = {qkv, s->kv[below(s, KV_TENSORS)], angles, s->positions, s->slots,
                            s->block_tables}};
    op.attrs[MGL_ATTR_SCALE] = 0.25;
    op.attrs[MGL_ATTR_EPS] = 1e-6;
    if (below(s, 2) == 0) {
      op.inputs[op.input_count++] = vector(s, s->head_dim);
      op.inputs[op.input_count++] = vector(s, s->head_dim);
    }
    (void)append(s, op, ATTENDED);
  }
}

static void add_linear_add(generator *s) {
  static const shape from[] = {NORMED, ATTENDED, GATED};
  uint32_t kind = below(s, 3);
  const uint32_t k[] = {s->d, s->heads * s->head_dim, s->f};
  uint32_t residual = pick(s, HIDDEN);
  uint32_t x = pick(s, from[kind]);
  if (residual != MGL_NO_TENSOR && x != MGL_NO_TENSOR) {
    take_over(s, HIDDEN, residual);
    mgl_op op = {.kind = MGL_OP_LINEAR_ADD,
                 .input_count = 3,
                 .inputs = {residual, x, matrix(s, s->d, k[kind])}};
    (void)append(s, op, HIDDEN);
  }
}

static void add_normed_projection(generator *s, bool logits) {
  uint32_t x = pick(s, HIDDEN);
  if (x != MGL_NO_TENSOR) {
    mgl_op op = {.kind = logits ? MGL_OP_LOGITS : MGL_OP_GATE_UP,
                 .input_count = 4,
                 .inputs = {x, vector(s, s->d)}};
    op.attrs[MGL_ATTR_EPS] = 1e-6;
    op.inputs[2] = logits ? s->logit_rows : matrix(s, s->f, s->d);
    op.inputs[3] = matrix(s, logits ? s->v : s->f, s->d);
    (void)append(s, op, logits ? LOGITS : GATED);
  }
}

static uint32_t experts(generator *s, uint32_t count, uint32_t n, uint32_t k) {
  mgl_dim dims[] = {MGL_DIM(count), MGL_DIM(n), MGL_DIM(k)};
  return declare(s, "w", MGL_PLACE_WEIGHT, MGL_DTYPE_BF16, 3, dims);
}

// Of the op that was appended last.
static void set_balance(generator *s, uint32_t balance) {
  if (s->g->error.status == MGL_OK) {
    s->g->ops[s->g->op_count - 1].attrs[MGL_ATTR_BALANCE] = balance;
  }
}

// A mixture of experts: from the router's logits to the residual stream.
static void add_mixture(generator *s) {
  uint32_t x = pick(s, NORMED);
  uint32_t residual = pick(s, HIDDEN);
  if (x == MGL_NO_TENSOR || residual == MGL_NO_TENSOR) {
    return;
  }
  const uint32_t count = 1 + below(s, 6);
  const uint32_t biases = below(s, 2);
  const mgl_route_options options = {.slots = 1 + below(s, count),
                                     .scores = (mgl_scores)below(s, MGL_SCORES_COUNT),
                                     .renormalise = below(s, 2) == 0,
                                     .scale = 1.5};
  const mgl_expert_weights w = {.gate = experts(s, count, s->f, s->d),
                                .up = experts(s, count, s->f, s->d),
                                .down = experts(s, count, s->d, s->f),
                                .gate_bias = biases == 0 ? MGL_NO_TENSOR : vector(s, count * s->f),
                                .up_bias = biases == 0 ? MGL_NO_TENSOR : vector(s, count * s->f),
                                .down_bias = biases == 0 ? MGL_NO_TENSOR : vector(s, count * s->d)};
  char names[4][32];
  for (uint32_t i = 0; i < 4; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%u", s->next_name++);
  }
  uint32_t logits = mgl_graph_linear(s->g, names[0], x, matrix(s, count, s->d), MGL_NO_TENSOR, 0);
  uint32_t routes = mgl_graph_route(s->g, names[1], logits,
                                    biases == 0 ? MGL_NO_TENSOR : vector(s, count), &options);
  uint32_t gated = mgl_graph_expert_gate_up(s->g, names[2], s->act, x, routes, &w, below(s, 2) * 7);
  const uint32_t balance = s->next_name % MGL_BALANCE_COUNT;  // draws nothing
  set_balance(s, balance);
  s->was_read[x] = 1;
  s->was_read[residual] = 1;
  take_over(s, HIDDEN, residual);
  keep(s, HIDDEN, mgl_graph_expert_down(s->g, names[3], residual, gated, routes, &w));
  set_balance(s, balance);
}

static void add_source(generator *s, bool angles) {
  if (angles) {
    const mgl_config config = {.head_dim = s->head_dim,
                               .rope = {.kind = MGL_ROPE_PLAIN, .theta = 10000}};
    mgl_rope_frequencies rope;
    mgl_rope_compute(&config, &rope);
    char name[32];
    (void)snprintf(name, sizeof name, "t%u", s->next_name++);
    keep(s, ANGLES, mgl_graph_rope_angles(s->g, name, s->positions, MGL_NO_TENSOR, &rope));
  } else {
    mgl_op op = {.kind = MGL_OP_EMBED, .input_count = 2};
    op.inputs[0] = s->tokens;
    op.inputs[1] = matrix(s, s->v, s->d);
    (void)append(s, op, HIDDEN);
  }
}

static void add_next_plan(generator *s) {
  (void)append(s, (mgl_op){.kind = MGL_OP_NEXT_PLAN, .input_count = 1, .inputs = {s->tokens}},
               PLANNED);
}

static void add_sample(generator *s) {
  if (s->live_count[LOGITS] == 0) {
    add_normed_projection(s, true);
  }
  mgl_op op = {
      .kind = MGL_OP_SAMPLE, .input_count = 2, .inputs = {pick(s, LOGITS), pick(s, PLANNED)}};
  (void)append(s, op, SAMPLED);
}

// GPUs have no tasks for mixtures.
static void add_op(generator *s, bool is_cuda) {
  uint32_t choice = below(s, is_cuda ? 24 : 25);
  switch (is_cuda && choice == 23 ? 24 : choice) {
    case 0: add_source(s, below(s, 2) == 0); break;
    case 1:
    case 2:
    case 3:
    case 4: add_norm(s); break;
    case 5:
    case 6:
    case 7:
    case 8:
    case 9: add_linear(s); break;
    case 10: add_rope(s); break;
    case 11: add_kv_write(s); break;
    case 12: add_attention(s); break;
    case 13:
    case 14: add_elementwise(s, false); break;
    case 15:
    case 16: add_elementwise(s, true); break;
    case 17: add_qkv_proj(s); break;
    case 18:
    case 19: add_attend(s); break;
    case 20:
    case 21: add_linear_add(s); break;
    case 22: add_normed_projection(s, false); break;
    case 23: add_mixture(s); break;
    default: add_normed_projection(s, true); break;
  }
}

// Adds up a linear's results, which nothing else reads, over the ranks; or what one has added to
// zeros in place, as experts do.
static void add_all_reduce(generator *s, uint32_t ranks) {
  static const shape from[] = {NORMED, ATTENDED, GATED};
  const uint32_t kind = below(s, 3);
  const uint32_t k[] = {s->d, s->heads * s->head_dim, s->f};
  uint32_t residual = pick(s, HIDDEN);
  uint32_t x = pick(s, from[kind]);
  if (residual == MGL_NO_TENSOR || x == MGL_NO_TENSOR) {
    return;
  }
  take_over(s, HIDDEN, residual);
  const uint32_t w = matrix(s, s->d, k[kind]);
  mgl_op op = {.kind = MGL_OP_LINEAR, .input_count = 2, .inputs = {x, w}};
  char name[32];
  if (below(s, 2) == 0) {
    (void)snprintf(name, sizeof name, "t%u", s->next_name++);
    const uint32_t zeros = mgl_graph_zeros(s->g, name, residual);
    op = (mgl_op){.kind = MGL_OP_LINEAR_ADD, .input_count = 3, .inputs = {zeros, x, w}};
  }
  uint32_t part = append(s, op, HIDDEN);
  take_over(s, HIDDEN, part);
  (void)snprintf(name, sizeof name, "t%u", s->next_name++);
  s->was_read[residual] = s->was_read[part] = 1;
  keep(s, HIDDEN, mgl_graph_all_reduce(s->g, name, residual, part, ranks));
}

// The same with each rank's columns added up there, and gathered.
static void add_reduce_scatter(generator *s, uint32_t ranks) {
  uint32_t x = pick(s, NORMED);
  if (x == MGL_NO_TENSOR || s->d % ranks != 0) {
    return;
  }
  mgl_op op = {.kind = MGL_OP_LINEAR, .input_count = 2, .inputs = {x, matrix(s, s->d, s->d)}};
  char name[32];
  uint32_t part = append(s, op, HIDDEN);
  take_over(s, HIDDEN, part);
  (void)snprintf(name, sizeof name, "t%u", s->next_name++);
  const uint32_t share = mgl_graph_reduce_scatter(s->g, name, part, ranks);
  (void)snprintf(name, sizeof name, "t%u", s->next_name++);
  s->was_read[part] = s->was_read[share] = 1;
  keep(s, HIDDEN, mgl_graph_all_gather(s->g, name, share, ranks));
}

static void add_all_gather(generator *s, uint32_t ranks) {
  uint32_t x = pick(s, HIDDEN);
  if (x == MGL_NO_TENSOR) {
    return;
  }
  mgl_op op = {.kind = MGL_OP_LOGITS,
               .input_count = 4,
               .inputs = {x, vector(s, s->d), s->logit_rows, matrix(s, s->v, s->d)}};
  op.attrs[MGL_ATTR_EPS] = 1e-6;
  uint32_t part = append(s, op, LOGITS);
  char name[32];
  (void)snprintf(name, sizeof name, "t%u", s->next_name++);
  take_over(s, LOGITS, part);
  s->was_read[part] = 1;
  mgl_graph_mark_output(s->g, mgl_graph_all_gather(s->g, name, part, ranks));
}

static void begin(generator *s) {
  mgl_error err = {0};
  static const uint32_t widths[] = {16, 40, 64, 96};
  static const uint32_t head_dims[] = {8, 16, 32};
  if (mgl_graph_create("random", &s->g, &err) != MGL_OK) {
    abort();
  }
  s->act = below(s, 2) == 0 ? MGL_DTYPE_F32 : MGL_DTYPE_BF16;
  s->d = widths[below(s, 4)];
  s->f = widths[below(s, 4)] * 2;
  s->v = 33 + below(s, 100);
  s->head_dim = head_dims[below(s, 3)];
  s->kv_heads = 1 + below(s, 4);
  s->heads = s->kv_heads * (1 + below(s, 3));
  s->tokens = index_input(s, "tokens", MGL_DIM_T);
  s->positions = index_input(s, "positions", MGL_DIM_T);
  s->slots = index_input(s, "slots", MGL_DIM_T);
  s->block_tables = index_input(s, "block_tables", MGL_DIM_R);
  s->logit_rows = index_input(s, "logit_rows", MGL_DIM_L);
  for (uint32_t i = 0; i < KV_TENSORS; i++) {
    mgl_dim dims[] = {MGL_DIM(s->kv_heads), MGL_DIM(s->head_dim)};
    s->kv[i] = declare(s, "kv", MGL_PLACE_KV, s->act, 2, dims);
  }
  add_source(s, true);
  add_source(s, false);
}

static mgl_graph *make_program(uint64_t seed, uint32_t op_count, bool is_cuda, uint32_t ranks) {
  generator *s = calloc(1, sizeof *s);
  if (s == NULL) {
    abort();
  }
  s->random.state = seed * 0x9e3779b97f4a7c15u + 12345;
  begin(s);
  if (is_cuda) {
    add_next_plan(s);
  }
  for (uint32_t i = 0; s->g->op_count < op_count && i < op_count * 10; i++) {
    const uint32_t exchange = ranks > 1 ? below(s, 10) : 10;
    if (exchange < 2) {
      add_all_reduce(s, ranks);
    } else if (exchange == 2) {
      add_reduce_scatter(s, ranks);
    } else {
      add_op(s, is_cuda);
    }
  }
  if (ranks > 1) {
    add_all_gather(s, ranks);
  }
  for (uint32_t i = is_cuda ? 1 + below(s, 2) : 0; i > 0; i--) {
    add_sample(s);
  }
  for (uint32_t kind = 0; kind < SHAPES; kind++) {
    for (uint32_t i = 0; i < s->live_count[kind]; i++) {
      if (s->was_read[s->live[kind][i]] == 0) {
        mgl_graph_mark_output(s->g, s->live[kind][i]);
      }
    }
  }
  mgl_error err = {0};
  if (mgl_graph_finish(s->g, &err) != MGL_OK) {
    (void)fprintf(stderr, "random program %llu: %s\n", (unsigned long long)seed, err.text);
    abort();
  }
  mgl_graph *g = s->g;
  free(s);
  return g;
}

mgl_graph *random_program(uint64_t seed, uint32_t op_count) {
  return make_program(seed, op_count, false, 1);
}

mgl_graph *random_cuda_program(uint64_t seed, uint32_t op_count) {
  return make_program(seed, op_count, true, 1);
}

mgl_graph *random_rank_program(uint64_t seed, uint32_t op_count, uint32_t ranks) {
  return make_program(seed, op_count, false, ranks);
}
