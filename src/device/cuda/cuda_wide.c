#include "device/cuda/cuda_wide.h"

#include <assert.h>
#include <string.h>

#include "device/cuda/cuda_steps.h"
#include "twin/wide_layout.h"

_Static_assert((int)MGL_WIDE_MAX_TOKENS == (int)MGL_PLAN_MAX_TOKENS, "as batch/plan.h says");
_Static_assert(MGL_WIDE_LEAST_TILE << (MGL_CUDA_WIDE_GRAPHS - 1) == MGL_WIDE_MAX_TOKENS,
               "a graph for every power of two");
_Static_assert(MGL_WIDE_LEAST_TILE << (MGL_WIDE_TILES - 1) == MGL_WIDE_MOST_TILE,
               "and tiles for the first ones");
_Static_assert(sizeof(mgl_wide_op) == sizeof(mgl_cuda_op) + sizeof(mgl_wide_attention) + 16,
               "no padding that the device might not have");

enum { UNIT_TOKENS = 8 };  // of embed and of norms

static uint32_t ceil_div(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

static uint64_t take(uint64_t *bytes, uint64_t more) {
  uint64_t at = *bytes;
  *bytes += (more + MGL_CUDA_ALIGNMENT - 1) / MGL_CUDA_ALIGNMENT * MGL_CUDA_ALIGNMENT;
  return at;
}

static uint32_t graph_tokens(const mgl_cuda_wide_sizes *sizes, uint32_t graph) {
  return (uint32_t)(sizes->few ? MGL_WIDE_LEAST_TILE : MGL_WIDE_MOST_TILE) << graph;
}

uint32_t mgl_cuda_wide_graph_for(const mgl_cuda_wide_layout *wide, uint32_t tokens) {
  uint32_t graph = 0;
  while (graph_tokens(&wide->sizes, graph) < tokens) {
    graph++;
  }
  return graph;
}

// --- graphs --------------------------------------------------------------------------------------

// A graph under construction: one worker's steps, or with NULLs only counts.
typedef struct builder {
  const mgl_cuda_wide_addresses *a;
  uint32_t workers, worker;
  uint32_t tokens, tile_tokens;
  mgl_wide_op *ops;
  mgl_cuda_step *steps;
  uint32_t step_at;  // of the worker's steps: the next one
  uint32_t op_count, step_count, stage_count;
  uint32_t stage_tasks, previous_tasks;  // of this stage so far, and of the one before
  uint32_t splits;         // of the linear whose parts the next norm adds; 1: there are none
  bool weighed;            // that linear does the norm too
  bool rotated;            // qkv_proj does rope_kv too
  uint32_t arrived_count;  // counters of tiles of several tasks so far
  uint64_t part_bytes;     // most bytes of the sums of a linear's tasks
} builder;

// Of a residual stream of this graph, or of a part of one.
static uint64_t stream_bytes(const builder *b, uint32_t hidden) {
  return (uint64_t)b->tokens * ceil_div(hidden, MGL_WIDE_K) * MGL_WIDE_K * sizeof(float);
}

static mgl_cu_ptr block_at(const builder *b, uint64_t offset) {
  return b->a->block + offset;
}

static const float *vector_at(const builder *b, uint64_t offset) {
  return offset == MGL_CUDA_NOWHERE
             ? NULL
             : mgl_cuda_pointer(b->a->base[MGL_CUDA_MEMORY_VECTORS] + offset);
}

static const float *norm_of(const builder *b, const mgl_op *op, uint32_t input) {
  return vector_at(b, b->a->layout->vectors[op->inputs[input]]);
}

// The next op's tasks wait for all of this stage.
static void end_stage(builder *b) {
  b->previous_tasks = b->stage_tasks;
  b->stage_tasks = 0;
  b->stage_count++;
}

// A task of the op that add_op adds next.
static void add_task(builder *b, uint32_t worker, uint32_t begin, uint32_t end) {
  if (b->steps != NULL && worker == b->worker) {
    b->steps[b->step_at++] = (mgl_cuda_step){
        .task = b->step_count,
        .op = b->op_count,
        .begin = begin,
        .end = end,
        .wait_event = b->stage_count == 0 ? MGL_NO_EVENT : b->stage_count - 1,
        .wait_count = b->previous_tasks,
        .trigger_event = b->stage_count,
    };
  }
  b->step_count++;
  b->stage_tasks++;
}

static void add_op(builder *b, const mgl_wide_op *op) {
  if (b->ops != NULL) {
    b->ops[b->op_count] = *op;
  }
  b->op_count++;
}

// Tasks of an op in this stage: `count` with equal shares of `units`, in turn to the workers.
static void add_tasks(builder *b, const mgl_wide_op *op, uint32_t units, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    add_task(b, b->stage_tasks % b->workers, (uint32_t)((uint64_t)units * i / count),
             (uint32_t)((uint64_t)units * (i + 1) / count));
  }
  add_op(b, op);
}

static void add_shared(builder *b, const mgl_wide_op *op, uint32_t units) {
  add_tasks(b, op, units, units < b->workers ? units : b->workers);
}

// --- ops -----------------------------------------------------------------------------------------

static void add_begin(builder *b, const mgl_op *op) {
  const mgl_graph *program = b->a->program;
  uint32_t op_idx = (uint32_t)(op - program->ops);
  mgl_wide_op out = {.op = {.kind = (uint32_t)op->kind, .tokens = b->tokens, .passes = 1}};
  uint64_t row = mgl_tensor_row_elements(&program->tensors[op->output]);
  if (op->kind == MGL_OP_EMBED) {
    out.op.n = (uint32_t)row;
    out.op.out = mgl_cuda_pointer(block_at(b, b->a->wide->residual));
    if (b->ops != NULL) {
      out.op.weights =
          mgl_cuda_pointer(b->a->base[MGL_CUDA_MEMORY_TABLE] + b->a->layout->matrices[op_idx]);
    }
    add_shared(b, &out, b->tokens / UNIT_TOKENS);
  } else {
    out.op.out = mgl_cuda_pointer(block_at(b, b->a->wide->angles));
    if (b->ops != NULL) {
      out.op.angles = vector_at(b, b->a->layout->extras[op_idx]);
    }
    add_shared(b, &out, b->tokens);
  }
}

// Rows of the gathered x: whole tiles, and no more than the graph has.
static uint32_t gathered_rows(const builder *b) {
  uint32_t rows = ceil_div(b->a->wide->sizes.logit_rows, b->tile_tokens) * b->tile_tokens;
  return rows < b->tokens ? rows : b->tokens;
}

// The norm in front of a linear, whose inputs 0 and 1 are the residual stream and the norm's
// weights. splits: of the linear before, whose parts the norm adds.
static mgl_wide_op norm_before(const builder *b, const mgl_op *op, uint32_t splits) {
  const mgl_cuda_wide_layout *wide = b->a->wide;
  mgl_packed_matrices m = mgl_packed_matrices_of(b->a->program, op);
  bool gathers = op->kind == MGL_OP_LOGITS;
  mgl_wide_op out = {
      .op = {.kind = MGL_OP_RMSNORM,
             .flags = gathers ? MGL_WIDE_GATHERS : 0,
             .k = m.k,
             .k_padded = m.k_padded,
             .n = m.k,
             .tokens = b->tokens,
             .row_tiles = gathers ? gathered_rows(b) : b->tokens,
             .passes = splits,
             .copy_bytes = stream_bytes(b, m.k),
             .x = mgl_cuda_pointer(block_at(b, wide->residual)),
             .residual = mgl_cuda_pointer(block_at(b, wide->squares)),
             .out = mgl_cuda_pointer(block_at(b, gathers ? wide->gathered : wide->x))}};
  if (b->ops != NULL) {
    out.op.norm = norm_of(b, op, 1);
    out.op.bias = splits > 1 ? mgl_cuda_pointer(block_at(b, wide->parts)) : NULL;
  }
  return out;
}

// It is a stage, unless the linear before does it.
static void add_norm(builder *b, const mgl_op *op) {
  mgl_wide_op norm = norm_before(b, op, b->splits);
  uint32_t units = norm.op.row_tiles / UNIT_TOKENS;
  if (!b->weighed) {
    add_shared(b, &norm, units * ceil_div(norm.op.k, MGL_WIDE_NORM_RANGE));
    end_stage(b);
  }
  b->splits = 1;
  b->weighed = false;
}

// --- linears -------------------------------------------------------------------------------------

// How the tiles of a linear become tasks.
typedef struct tile_cut {
  enum { WHOLE, SPLIT, EVEN } how;
  uint32_t passes;  // SPLIT: tasks of each tile, all of them at once, each a worker's only one
} tile_cut;

// The first linear behind a linear_add.
static const mgl_op *linear_behind(const builder *b, const mgl_op *op) {
  const mgl_graph *program = b->a->program;
  do {
    op++;
    assert(op < program->ops + program->op_count);
  } while (mgl_packed_matrices_of(program, op).count == 0);
  return op;
}

static mgl_wide_attention attention_of(const builder *b, const mgl_op *op) {
  const mgl_cuda_wide_layout *wide = b->a->wide;
  mgl_cu_ptr image = block_at(b, wide->image);
  mgl_wide_attention out = {
      .qkv = mgl_cuda_pointer(block_at(b, wide->qkv)),
      .q = mgl_cuda_pointer(block_at(b, wide->q)),
      .out = mgl_cuda_pointer(block_at(b, wide->attended)),
      .angles = mgl_cuda_pointer(block_at(b, wide->angles)),
      .positions = mgl_cuda_pointer(image + wide->plan + offsetof(mgl_wide_plan, positions)),
      .slots = mgl_cuda_pointer(image + wide->plan + offsetof(mgl_wide_plan, slots)),
      .work = mgl_cuda_pointer(image + wide->work),
      .stream_partials = mgl_cuda_pointer(block_at(b, wide->stream_partials)),
      .tile_partials = mgl_cuda_pointer(block_at(b, wide->tile_partials)),
      .merges = mgl_cuda_pointer(block_at(b, wide->merges)),
      .block_table_stride = wide->sizes.pages_per_sequence,
      .kv_heads = b->a->model->kv_heads,
      .tokens = b->tokens,
      .eps = (float)op->attrs[MGL_ATTR_EPS],
      .scale = (float)op->attrs[MGL_ATTR_SCALE]};
  if (b->ops != NULL) {
    mgl_cu_ptr kv = b->a->base[MGL_CUDA_MEMORY_KV] + b->a->layout->kv[op->inputs[1]];
    out.k_cache = mgl_cuda_pointer(kv);
    out.v_cache = mgl_cuda_pointer(kv + b->a->layout->kv_half_bytes);
    if (op->input_count > 6) {
      out.q_norm = norm_of(b, op, 6);
      out.k_norm = norm_of(b, op, 7);
    }
  }
  return out;
}

static const mgl_op *attend_behind(const builder *b, const mgl_op *op) {
  while (op->kind != MGL_OP_ATTEND) {
    op++;
    assert(op < b->a->program->ops + b->a->program->op_count);
  }
  return op;
}

// Whether a stage's end and an idle worker cost more than what sharing tiles of the graph does.
static bool has_few_tokens(const builder *b) {
  return b->tokens == b->tile_tokens;
}

// Whether a qkv_proj can do rope_kv: heads lie within tiles.
static bool can_rotate(const builder *b) {
  return has_few_tokens(b) && MGL_WIDE_FEATURES % b->a->model->head_dim == 0;
}

// Parts of linear_add cost little, since whoever does the norm behind it adds them: as many as
// there are workers for; and so with qkv_proj and rope_kv. Other linears pay for joining two parts
// of a tile: that is done where half of the workers would have nothing to do, and with few tokens
// where the last round of tiles would leave most workers without one (docs/log/082).
static tile_cut cut_of(const builder *b, const mgl_op *op, uint32_t tiles, uint32_t k_stages) {
  enum { JOIN_STAGES = 16 };  // of k, below which joining costs more than it gains
  enum { MOST_IDLE = 15 };    // percent of a tile's time
  bool joins = k_stages > JOIN_STAGES && op->kind != MGL_OP_LOGITS;
  uint32_t most = b->workers / tiles;
  most = most < MGL_CUDA_WIDE_MAX_SPLITS ? most : MGL_CUDA_WIDE_MAX_SPLITS;
  most = most < k_stages ? most : k_stages;
  if (most >= 1 &&
      (op->kind == MGL_OP_LINEAR_ADD || (op->kind == MGL_OP_QKV_PROJ && can_rotate(b)))) {
    return (tile_cut){SPLIT, most};
  }
  if (joins && most >= MGL_CUDA_WIDE_JOINED) {
    return (tile_cut){SPLIT, MGL_CUDA_WIDE_JOINED};
  }
  uint64_t slots = (uint64_t)ceil_div(tiles, b->workers) * b->workers;
  bool idle = slots * 100 > tiles * (UINT64_C(100) + MOST_IDLE);
  return (tile_cut){joins && most == 0 && idle && has_few_tokens(b) ? EVEN : WHOLE, 1};
}

// Where worker `worker` begins in the line of all stages of k of all tiles: not near a tile's end.
static uint32_t even_cut(const builder *b, uint32_t tiles, uint32_t k_stages, uint32_t worker) {
  enum { SNAP = 4 };
  uint32_t at = (uint32_t)((uint64_t)tiles * k_stages * worker / b->workers);
  uint32_t inside = at % k_stages;
  if (inside < SNAP) {
    return at - inside;
  }
  return k_stages - inside < SNAP ? at + k_stages - inside : at;
}

static void add_linear_tasks(builder *b, const tile_cut *cut, uint32_t tiles, uint32_t k_stages) {
  if (cut->how == EVEN) {
    for (uint32_t worker = 0; worker < b->workers; worker++) {
      uint32_t end = even_cut(b, tiles, k_stages, worker + 1);
      for (uint32_t at = even_cut(b, tiles, k_stages, worker), next = 0; at < end; at = next) {
        next = (at / k_stages + 1) * k_stages;
        next = next < end ? next : end;
        add_task(b, worker, at, next);
      }
    }
    return;
  }
  for (uint32_t split = 0; split < cut->passes; split++) {
    for (uint32_t tile = 0; tile < tiles; tile++) {
      add_task(b, b->stage_tasks % b->workers, tile * k_stages + k_stages * split / cut->passes,
               tile * k_stages + k_stages * (split + 1) / cut->passes);
    }
  }
}

// Room for what tasks of a tile leave for each other, and what is done with it.
static void share_tiles(builder *b, const mgl_op *op, const tile_cut *cut, uint32_t tiles,
                        mgl_wide_op *out) {
  uint64_t bytes = (uint64_t)tiles * MGL_WIDE_FEATURES * b->tile_tokens * sizeof(float);
  out->op.passes = 1;
  if (op->kind == MGL_OP_LINEAR_ADD) {
    const mgl_op *next = linear_behind(b, op);
    out->op.passes = cut->passes;
    out->op.copy_bytes = stream_bytes(b, out->op.n);
    bytes = cut->passes * out->op.copy_bytes;
    b->splits = cut->passes;
    b->weighed = has_few_tokens(b) && cut->passes > 1 && next->kind != MGL_OP_LOGITS;
    if (b->weighed) {
      out->op.flags = MGL_WIDE_WEIGHS;
      out->with.norm = norm_before(b, next, cut->passes).op;
    }
  } else if (op->kind == MGL_OP_QKV_PROJ && cut->how == SPLIT && can_rotate(b)) {
    b->rotated = true;
    out->op.passes = cut->passes;
    out->op.flags = MGL_WIDE_ROTATES;
    out->with.attention = attention_of(b, attend_behind(b, op));
    bytes *= cut->passes;
  }
  if (cut->passes > 1 || cut->how == EVEN || out->op.flags != 0) {
    out->arrived =
        mgl_cuda_pointer(block_at(b, b->a->wide->arrived + b->arrived_count * sizeof(uint32_t)));
    out->parts = mgl_cuda_pointer(block_at(b, b->a->wide->parts));
    b->arrived_count += tiles;
    b->part_bytes = bytes > b->part_bytes ? bytes : b->part_bytes;
  }
}

// Where a linear's x, result and other activations lie.
static void place_linear(const builder *b, const mgl_op *op, mgl_cuda_op *out) {
  const mgl_cuda_wide_layout *wide = b->a->wide;
  uint64_t to = 0;
  uint64_t from = wide->x;
  switch (op->kind) {
    case MGL_OP_QKV_PROJ: to = wide->qkv; break;
    case MGL_OP_GATE_UP: to = wide->gated; break;
    case MGL_OP_LOGITS: to = wide->logits, from = wide->gathered; break;
    default:
      to = out->passes > 1 ? wide->parts : wide->residual;
      // Its x comes from attend or from gate_up.
      from = b->a->program->tensors[op->inputs[1]].rank == 3 ? wide->attended : wide->gated;
      break;
  }
  out->x = mgl_cuda_pointer(block_at(b, from));
  out->out = mgl_cuda_pointer(block_at(b, to));
  out->residual = mgl_cuda_pointer(block_at(b, wide->residual));
  if (op->kind != MGL_OP_LINEAR_ADD) {
    out->norm = mgl_cuda_pointer(block_at(b, wide->squares));
    out->eps = (float)op->attrs[MGL_ATTR_EPS];
  }
}

static void add_linear(builder *b, const mgl_op *op) {
  mgl_packed_matrices m = mgl_packed_matrices_of(b->a->program, op);
  uint32_t op_idx = (uint32_t)(op - b->a->program->ops);
  uint32_t rows = op->kind == MGL_OP_LOGITS ? gathered_rows(b) : b->tokens;
  uint32_t tiles = ceil_div(m.row_blocks, MGL_WIDE_FEATURE_BLOCKS) * (rows / b->tile_tokens);
  uint32_t k_stages = m.k_padded / MGL_WIDE_K;
  if (op->kind != MGL_OP_LINEAR_ADD) {
    add_norm(b, op);
  }
  tile_cut cut = cut_of(b, op, tiles, k_stages);
  mgl_wide_op out = {
      .op = {.kind = (uint32_t)op->kind,
             .k = m.k,
             .k_padded = m.k_padded,
             .n = (uint32_t)mgl_tensor_row_elements(&b->a->program->tensors[op->output]),
             .tokens = rows}};
  share_tiles(b, op, &cut, tiles, &out);
  place_linear(b, op, &out.op);
  if (b->ops != NULL) {
    out.op.weights =
        mgl_cuda_pointer(b->a->base[MGL_CUDA_MEMORY_WEIGHTS] + b->a->layout->matrices[op_idx]);
    out.op.bias = op->kind == MGL_OP_QKV_PROJ ? vector_at(b, b->a->layout->extras[op_idx]) : NULL;
  }
  add_linear_tasks(b, &cut, tiles, k_stages);
  add_op(b, &out);
  end_stage(b);
}

static void add_attend(builder *b, const mgl_op *op) {
  mgl_wide_op out = {.op = {.kind = MGL_OP_KV_WRITE, .tokens = b->tokens, .passes = 1},
                     .with.attention = attention_of(b, op)};
  if (!b->rotated) {
    add_shared(b, &out, b->tokens);
    end_stage(b);
  }
  b->rotated = false;
  out.op.kind = MGL_OP_ATTEND;
  add_tasks(b, &out, b->workers, b->workers);
  end_stage(b);
}

static void build(builder *b) {
  const mgl_graph *program = b->a->program;
  b->splits = 1;
  for (size_t i = 0; i < program->op_count; i++) {  // both wait for nothing
    if (program->ops[i].kind == MGL_OP_EMBED || program->ops[i].kind == MGL_OP_ROPE_ANGLES) {
      add_begin(b, &program->ops[i]);
    }
  }
  end_stage(b);
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (op->kind == MGL_OP_ATTEND) {
      add_attend(b, op);
    } else if (mgl_packed_matrices_of(program, op).count > 0) {
      add_linear(b, op);
    }
  }
}

void mgl_cuda_wide_make_graph(const mgl_cuda_wide_addresses *a, uint32_t graph, mgl_wide_op *ops,
                              mgl_cuda_step *steps, uint32_t *step_start) {
  uint32_t workers = a->wide->sizes.workers;
  uint32_t at = 0;
  for (uint32_t worker = 0; worker < workers; worker++) {
    builder b = {.a = a,
                 .workers = workers,
                 .worker = worker,
                 .tokens = a->wide->graphs[graph].tokens,
                 .tile_tokens = a->wide->graphs[graph].tile_tokens,
                 .ops = ops,
                 .steps = steps,
                 .step_at = at};
    build(&b);
    step_start[worker] = at;
    at = b.step_at;
  }
  step_start[workers] = at;
  assert(at == a->wide->graphs[graph].step_count);
}

// --- memory --------------------------------------------------------------------------------------

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
  return ceil_div(k, MGL_WIDE_K) * MGL_WIDE_K;
}

static void lay_out_activations(const mgl_graph *program, const mgl_cuda_model *model,
                                uint64_t part_bytes, uint32_t gathered, mgl_cuda_wide_layout *out) {
  const mgl_cuda_wide_sizes *sizes = &out->sizes;
  uint32_t tokens = out->graphs[out->graph_count - 1].tokens;
  uint32_t hidden = widest(program, MGL_OP_EMBED);
  uint32_t heads = widest(program, MGL_OP_ATTEND);
  uint64_t logit_rows = sizes->logit_rows;
  out->residual = take(&out->bytes, (uint64_t)tokens * padded(hidden) * sizeof(float));
  out->squares = take(&out->bytes, (uint64_t)ceil_div(hidden, MGL_WIDE_NORM_RANGE) * tokens * 4);
  out->x = take(&out->bytes, mgl_wide_x_bytes(tokens, padded(hidden)));
  out->qkv = take(&out->bytes, (uint64_t)tokens * widest(program, MGL_OP_QKV_PROJ) * 2);
  out->q = take(&out->bytes, (uint64_t)tokens * heads * 2);
  out->attended = take(&out->bytes, mgl_wide_x_bytes(tokens, padded(heads)));
  out->gated = take(&out->bytes, mgl_wide_x_bytes(tokens, padded(widest(program, MGL_OP_GATE_UP))));
  out->gathered = take(&out->bytes, mgl_wide_x_bytes(gathered, padded(hidden)));
  out->logits = take(&out->bytes, logit_rows * model->vocab * sizeof(float));
  out->angles = take(&out->bytes, (uint64_t)tokens * model->head_dim * sizeof(float));
  out->parts = take(&out->bytes, part_bytes);
  out->stream_partial_bytes = mgl_wide_stream_partial_bytes(sizes->workers, model->head_dim);
  out->stream_partials = take(&out->bytes, out->stream_partial_bytes);
  out->tile_partials =
      take(&out->bytes, mgl_wide_tile_partial_bytes(sizes->workers, model->head_dim));
  out->merge_bytes = (uint64_t)MGL_WIDE_MAX_ITEMS * model->kv_heads * sizeof(uint32_t);
  out->merges = take(&out->bytes, out->merge_bytes);
}

static void lay_out_image(mgl_cuda_wide_layout *out) {
  const mgl_cuda_wide_sizes *sizes = &out->sizes;
  uint64_t bytes = 0;
  (void)take(&bytes, sizeof(mgl_wide_run));
  out->plan = take(&bytes, sizeof(mgl_wide_plan));
  out->work = take(&bytes, sizeof(mgl_wide_work));
  out->tables =
      take(&bytes, (uint64_t)sizes->sequences * sizes->pages_per_sequence * sizeof(int32_t));
  out->image_bytes = bytes;
  out->image = take(&out->bytes, bytes);
}

void mgl_cuda_wide_lay_out(const mgl_graph *program, const mgl_cuda_model *model,
                           const mgl_cuda_wide_sizes *sizes, mgl_cuda_wide_layout *out) {
  *out = (mgl_cuda_wide_layout){.sizes = *sizes};
  out->graph_count = mgl_cuda_wide_graph_for(out, sizes->tokens) + 1;
  uint32_t stages = 0;
  uint32_t gathered = 0;
  uint64_t part_bytes = 0;
  for (uint32_t i = 0; i < out->graph_count; i++) {
    mgl_cuda_wide_graph *g = &out->graphs[i];
    mgl_cuda_wide_addresses nowhere = {.program = program, .model = model, .wide = out};
    g->tokens = graph_tokens(sizes, i);
    g->tile_tokens = g->tokens < MGL_WIDE_MOST_TILE ? g->tokens : (uint32_t)MGL_WIDE_MOST_TILE;
    builder b = {.a = &nowhere,
                 .workers = sizes->workers,
                 .tokens = g->tokens,
                 .tile_tokens = g->tile_tokens};
    build(&b);
    g->op_count = b.op_count;
    g->step_count = b.step_count;
    g->stage_count = b.stage_count;
    g->ops = take(&out->bytes, (uint64_t)g->op_count * sizeof(mgl_wide_op));
    g->steps = take(&out->bytes, (uint64_t)g->step_count * sizeof(mgl_cuda_step));
    g->step_start = take(&out->bytes, (sizes->workers + UINT64_C(1)) * sizeof(uint32_t));
    stages = g->stage_count > stages ? g->stage_count : stages;
    gathered = gathered_rows(&b) > gathered ? gathered_rows(&b) : gathered;
    part_bytes = b.part_bytes > part_bytes ? b.part_bytes : part_bytes;
    out->shared_tiles = b.arrived_count > out->shared_tiles ? b.arrived_count : out->shared_tiles;
  }
  lay_out_activations(program, model, part_bytes, gathered, out);
  lay_out_image(out);
  out->zeros = take(&out->bytes, stages * sizeof(mgl_word));
  out->best = take(&out->bytes, sizes->logit_rows * sizeof(uint64_t));
  out->arrived = take(&out->bytes, out->shared_tiles * sizeof(uint32_t));
  out->stage_ns = take(&out->bytes, stages * sizeof(uint64_t));
  out->zero_bytes = out->bytes - out->zeros;
}

// --- the image -----------------------------------------------------------------------------------

static mgl_status check_plan(const mgl_cuda_wide_addresses *a, const mgl_plan *from,
                             mgl_error *err) {
  const mgl_cuda_wide_sizes *sizes = &a->wide->sizes;
  if (from->limits.page_tokens != MGL_CUDA_KV_PAGE_TOKENS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "KV pages of %u tokens: on the GPU they have %d",
                         from->limits.page_tokens, MGL_CUDA_KV_PAGE_TOKENS);
  }
  if (from->token_count < 1 || from->token_count > sizes->tokens ||
      from->sequence_count > sizes->sequences || from->logit_row_count > sizes->logit_rows) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a plan of %u tokens, %u sequences and %u rows of logits: the GPU program "
                         "is for up to %u, %u and %u",
                         from->token_count, from->sequence_count, from->logit_row_count,
                         sizes->tokens, sizes->sequences, sizes->logit_rows);
  }
  for (uint32_t i = 0; i < from->token_count; i++) {
    if (from->tokens[i] < 0 || (uint32_t)from->tokens[i] >= a->model->vocab) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "token %u: expected an id of 0 to %u, found %d",
                           i, a->model->vocab - 1, from->tokens[i]);
    }
  }
  return MGL_OK;
}

// The pages up to the sequence's last position.
static mgl_status copy_pages(const mgl_cuda_wide_addresses *a, const mgl_plan *from,
                             uint32_t sequence, uint32_t page_count, int32_t *table,
                             mgl_error *err) {
  uint32_t stride = a->wide->sizes.pages_per_sequence;
  uint32_t last = from->positions[from->query_start[sequence + 1] - 1];
  uint32_t pages = last / MGL_CUDA_KV_PAGE_TOKENS + 1;
  const int32_t *pages_from =
      from->block_tables + (size_t)sequence * from->limits.pages_per_sequence;
  if (pages > stride) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "sequence %u has a token at position %u: the GPU program is for up to %u "
                         "tokens",
                         sequence, last, stride * MGL_CUDA_KV_PAGE_TOKENS);
  }
  for (uint32_t i = 0; i < stride; i++) {
    table[i] = i < pages ? pages_from[i] : (int32_t)page_count;  // else the spare one
    if (i < pages && (pages_from[i] < 0 || (uint32_t)pages_from[i] >= page_count)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "sequence %u: expected KV pages of 0 to %u, found %d", sequence,
                           page_count - 1, pages_from[i]);
    }
  }
  return MGL_OK;
}

uint32_t mgl_cuda_wide_narrow_tokens(const mgl_graph *program, uint64_t step_bytes, bool few) {
  uint64_t layers = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    layers += program->ops[i].kind == MGL_OP_ATTEND ? 1 : 0;
  }
  bool small = step_bytes <= layers * MGL_CUDA_SMALL_LAYER_BYTES;
  return small && !few ? MGL_CUDA_NARROW_TOKENS_SMALL : MGL_CUDA_NARROW_TOKENS;
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
                      .counters = mgl_cuda_pointer(a->block + wide->zeros),
                      .plan = mgl_cuda_pointer(a->block + wide->image + wide->plan),
                      .best = mgl_cuda_pointer(a->block + wide->best),
                      .stage_ns = mgl_cuda_pointer(a->block + wide->stage_ns)};
  memcpy(image, &run, sizeof run);
}

_Static_assert((int)MGL_WIDE_LISTS == (int)MGL_CUDA_WIDE_GRAPHS, "one for each graph");

mgl_wide_chain mgl_cuda_wide_make_chain(const mgl_cuda_wide_addresses *a) {
  const mgl_cuda_wide_layout *wide = a->wide;
  mgl_cu_ptr image = a->block + wide->image;
  mgl_wide_chain chain = {.run = mgl_cuda_pointer(image),
                          .plan = mgl_cuda_pointer(image + wide->plan),
                          .work = mgl_cuda_pointer(image + wide->work),
                          .zeros = mgl_cuda_pointer(a->block + wide->zeros),
                          .zero_count = wide->zero_bytes / sizeof(uint64_t),
                          .shape = {a->model->kv_heads, a->model->group, wide->sizes.workers},
                          .list_count = wide->graph_count};
  for (uint32_t i = 0; i < wide->graph_count; i++) {
    const mgl_cuda_wide_graph *g = &wide->graphs[i];
    chain.lists[i] = (mgl_wide_list){.tokens = g->tokens,
                                     .tile_tokens = g->tile_tokens,
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
  mgl_plan_entry entries[MGL_WIDE_MAX_SEQUENCES];
  MGL_TRY(check_plan(a, plan, err));
  mgl_cuda_wide_set_run(a, plan->token_count,
                        mgl_cuda_pointer(a->block + wide->image + wide->tables), image);
  to->token_count = plan->token_count;
  to->sequence_count = plan->sequence_count;
  to->logit_row_count = plan->logit_row_count;
  memcpy(to->tokens, plan->tokens, plan->token_count * sizeof *to->tokens);
  memcpy(to->positions, plan->positions, plan->token_count * sizeof *to->positions);
  memcpy(to->logit_rows, plan->logit_rows, plan->logit_row_count * sizeof *to->logit_rows);
  for (uint32_t i = 0; i < plan->sequence_count; i++) {
    uint32_t first = plan->query_start[i];
    uint32_t end = plan->query_start[i + 1];
    MGL_TRY(copy_pages(a, plan, i, page_count, tables + (size_t)i * wide->sizes.pages_per_sequence,
                       err));
    entries[i] =
        (mgl_plan_entry){.slot = i, .position = plan->positions[first], .count = end - first};
    for (uint32_t row = first; row < end; row++) {
      to->slots[row] = i;
    }
  }
  mgl_wide_build((mgl_lanes){0, 1},
                 &(mgl_wide_shape){a->model->kv_heads, a->model->group, wide->sizes.workers},
                 entries, plan->sequence_count, work);
  return MGL_OK;
}
