#include "device/cpu/cpu_pieces.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_check.h"
#include "device/cpu/cpu_layout.h"
#include "device/cpu/cpu_mega.h"
#include "device/cpu/cpu_tasks.h"
#include "task/tile.h"

enum { EACH = MGL_CPU_MEGA_MAX_GRAPHS };  // graphs of one runtime

struct mgl_cpu_pieces {
  const mgl_graph *graph;
  mgl_team *team;
  mgl_cpu_memory *memory;
  mgl_cpu_program *program;
  bool check_numbers;
  uint32_t workers;
  mgl_piece *pieces;  // [piece_count]
  uint32_t piece_count;
  uint32_t *graph_of;       // [piece_count] in `graphs`; of pieces that split, nothing
  mgl_task_graph **graphs;  // [graph_count] not equal
  uint32_t graph_count;
  mgl_cpu_mega **megas;  // [mega_count] of EACH graphs
  uint32_t mega_count;
  uint32_t now;  // piece that runs
};

// --- compiling -----------------------------------------------------------------------------------

static bool names_op(const mgl_graph *program, const mgl_compile_override *o, const mgl_op *op) {
  return strcmp(o->op, mgl_op_name(op)) == 0 ||
         strcmp(o->op, program->tensors[op->output].name) == 0;
}

static bool names_some(const mgl_graph *program, const mgl_compile_override *o) {
  size_t op = 0;
  while (op < program->op_count && !names_op(program, o, &program->ops[op])) {
    op++;
  }
  return op < program->op_count;
}

// Compiles a view of `whole`, with the overrides that are about its ops, and those that no op of a
// whole program has, so that they are refused.
static mgl_status compile_view(const mgl_graph *whole, const mgl_graph *view,
                               const mgl_compile_options *options, mgl_task_graph **out,
                               mgl_error *err) {
  mgl_compile_options own = *options;
  mgl_compile_override *overrides =
      mgl_alloc_zeroed((size_t)options->override_count + 1, sizeof *overrides);
  if (overrides == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the compiler's options");
  }
  own.overrides = overrides;
  own.override_count = 0;
  for (uint32_t i = 0; i < options->override_count; i++) {
    const mgl_compile_override *o = &options->overrides[i];
    if (names_some(view, o) || !names_some(whole, o)) {
      overrides[own.override_count++] = *o;
    }
  }
  mgl_status status = mgl_compile(view, &own, out, NULL, err);
  mgl_free(overrides);
  return status;
}

static bool is_equal(const mgl_task_graph *a, const mgl_task_graph *b) {
  uint32_t aot = a->aot_start[a->worker_count];
  return a->task_count == b->task_count && a->event_count == b->event_count &&
         a->ready_count == b->ready_count && a->attention_strides == b->attention_strides &&
         memcmp(a->tasks, b->tasks, a->task_count * sizeof *a->tasks) == 0 &&
         memcmp(a->events, b->events, a->event_count * sizeof *a->events) == 0 &&
         memcmp(a->aot_start, b->aot_start, (a->worker_count + 1) * sizeof *a->aot_start) == 0 &&
         memcmp(a->aot_tasks, b->aot_tasks, aot * sizeof *a->aot_tasks) == 0;
}

// Takes the graph over.
static void keep(mgl_cpu_pieces *p, uint32_t piece, mgl_task_graph *graph) {
  uint32_t i = 0;
  while (i < p->graph_count && !is_equal(p->graphs[i], graph)) {
    i++;
  }
  if (i < p->graph_count) {
    mgl_task_graph_destroy(graph);
  } else {
    p->graphs[p->graph_count++] = graph;
  }
  p->graph_of[piece] = i;
}

static mgl_status compile_pieces(mgl_cpu_pieces *p, const mgl_compile_options *options,
                                 mgl_error *err) {
  for (uint32_t i = 0; i < p->piece_count; i++) {
    if (!p->pieces[i].splits) {
      mgl_task_graph *graph = NULL;
      const mgl_graph view = mgl_piece_view(p->graph, &p->pieces[i]);
      MGL_TRY(compile_view(p->graph, &view, options, &graph, err));
      keep(p, i, graph);
    }
  }
  return MGL_OK;
}

// The piece of each op.
static mgl_status find_steps(const mgl_graph *graph, const mgl_piece *pieces, uint32_t count,
                             uint32_t **out, mgl_error *err) {
  uint32_t *step = mgl_alloc_zeroed(graph->op_count, sizeof *step);
  if (step == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the pieces of a program");
  }
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t op = pieces[i].first; op < pieces[i].last; op++) {
      step[op] = i;
    }
  }
  *out = step;
  return MGL_OK;
}

// --- binding -------------------------------------------------------------------------------------

static mgl_status bind_pieces(mgl_cpu_pieces *p, const mgl_cpu_pieces_options *options,
                              mgl_error *err) {
  const mgl_compile_options *o = &options->compile;
  mgl_compile_options compile = *o;
  mgl_cpu_program_options program = {
      .simd = options->simd,
      .largest = {o->tokens, o->logit_rows == 0 ? o->tokens : o->logit_rows, o->tokens}};
  uint32_t *step = NULL;
  MGL_TRY(find_steps(p->graph, p->pieces, p->piece_count, &step, err));
  program.step = step;
  mgl_status status = mgl_cpu_program_create(p->graph, p->memory, &program, &p->program, err);
  mgl_free(step);
  MGL_TRY(status);
  compile.offsets = p->program->offsets;
  compile.offset_bytes = p->program->activation_bytes;
  return compile_pieces(p, &compile, err);
}

// All of the program: the compiler's own layout, where activations share more.
static mgl_status bind_whole(mgl_cpu_pieces *p, const mgl_cpu_pieces_options *options,
                             mgl_error *err) {
  MGL_TRY(compile_pieces(p, &options->compile, err));
  mgl_cpu_program_options program = {.simd = options->simd, .task_graph = p->graphs[0]};
  return mgl_cpu_program_create(p->graph, p->memory, &program, &p->program, err);
}

static void run_task(void *context, uint32_t worker, const mgl_task_graph *graph,
                     const mgl_task *task) {
  const mgl_cpu_pieces *p = context;
  (void)graph;
  mgl_cpu_task_run(p->program, worker, p->pieces[p->now].first + task->op, task->begin, task->end);
}

static int next_plan(void *context, uint64_t iteration) {
  const mgl_cpu_pieces *p = context;
  return iteration == 0 ? (int)(p->graph_of[p->now] % EACH) : -1;
}

static uint64_t pulses(void *context) {
  return mgl_cpu_memory_pulses(((const mgl_cpu_pieces *)context)->memory);
}

static const char *op_name(void *context, const mgl_task_graph *graph, uint32_t op) {
  const mgl_cpu_pieces *p = context;
  (void)graph;
  return p->graph->tensors[p->graph->ops[p->pieces[p->now].first + op].output].name;
}

static mgl_status start_megas(mgl_cpu_pieces *p, mgl_error *err) {
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.context = p;
  options.run_task = run_task;
  options.next_plan = next_plan;
  options.pulses = pulses;
  options.op_name = op_name;
  for (uint32_t first = 0; first < p->graph_count; first += EACH) {
    uint32_t count = p->graph_count - first < EACH ? p->graph_count - first : EACH;
    MGL_TRY(mgl_cpu_mega_create((const mgl_task_graph *const *)&p->graphs[first], count, p->team,
                                &options, &p->megas[p->mega_count], err));
    p->mega_count++;
  }
  return MGL_OK;
}

mgl_status mgl_cpu_pieces_create(const mgl_graph *graph, mgl_cpu_memory *memory, mgl_team *team,
                                 const mgl_cpu_pieces_options *options, mgl_cpu_pieces **out,
                                 mgl_error *err) {
  *out = NULL;
  mgl_cpu_pieces *p = mgl_alloc_zeroed(1, sizeof *p);
  if (p == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the pieces of a program");
  }
  p->graph = graph;
  p->team = team;
  p->memory = memory;
  p->check_numbers = options->check_numbers;
  p->workers = options->compile.workers;
  mgl_status status = mgl_split_program(graph, options->split, &p->pieces, &p->piece_count, err);
  if (status == MGL_OK) {
    p->graph_of = mgl_alloc_zeroed(p->piece_count, sizeof *p->graph_of);
    p->graphs = mgl_alloc_zeroed(p->piece_count, sizeof(void *));
    p->megas = mgl_alloc_zeroed(p->piece_count / EACH + 1, sizeof(void *));
    bool fine = p->graph_of != NULL && p->graphs != NULL && p->megas != NULL;
    status = !fine ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the pieces of a program")
             : options->split->none ? bind_whole(p, options, err)
                                    : bind_pieces(p, options, err);
  }
  if (status == MGL_OK) {
    status = start_megas(p, err);
  }
  if (status != MGL_OK) {
    mgl_cpu_pieces_destroy(p);
    return status;
  }
  *out = p;
  return MGL_OK;
}

void mgl_cpu_pieces_destroy(mgl_cpu_pieces *p) {
  if (p == NULL) {
    return;
  }
  for (uint32_t i = 0; i < p->mega_count; i++) {
    mgl_cpu_mega_destroy(p->megas[i]);
  }
  for (uint32_t i = 0; i < p->graph_count; i++) {
    mgl_task_graph_destroy(p->graphs[i]);
  }
  mgl_cpu_program_destroy(p->program);
  mgl_free(p->megas);
  mgl_free(p->graphs);
  mgl_free(p->graph_of);
  mgl_free(p->pieces);
  mgl_free(p);
}

// --- running -------------------------------------------------------------------------------------

// As the compiler cuts attention (compile/partition.c): about a share a worker.
static uint32_t strides_of(const mgl_cpu_pieces *p, const mgl_op *op) {
  uint32_t heads = mgl_tile_is_attention(op) ? mgl_tile_kv_heads(p->graph, op) : 1;
  uint32_t strides = p->workers / heads, most = mgl_cpu_plan(p->program)->token_count;
  strides = strides < most ? strides : most;
  return strides == 0 ? 1 : strides;
}

static void run_share(void *context, uint32_t index) {
  const mgl_cpu_pieces *p = context;
  uint32_t op_idx = p->pieces[p->now].first;
  const mgl_op *op = &p->graph->ops[op_idx];
  size_t begin = 0, end = 0;
  mgl_team_share(
      index, mgl_team_size(p->team),
      mgl_tile_units(p->graph, op, mgl_cpu_plan(p->program)->token_count, p->program->strides),
      mgl_tile_grain(op, MGL_TARGET_CPU), &begin, &end);
  mgl_cpu_task_run(p->program, index, op_idx, (uint32_t)begin, (uint32_t)end);
}

static mgl_status run_op(mgl_cpu_pieces *p, mgl_error *err) {
  uint32_t op = p->pieces[p->now].first;
  p->program->strides = strides_of(p, &p->graph->ops[op]);
  mgl_team_run(p->team, run_share, p);
  return p->check_numbers ? mgl_cpu_check_op(p->program, op, err) : MGL_OK;
}

static mgl_status run_graph(mgl_cpu_pieces *p, mgl_error *err) {
  uint32_t graph = p->graph_of[p->now];
  p->program->strides = p->graphs[graph]->attention_strides;
  return mgl_cpu_mega_run(p->megas[graph / EACH], err);
}

mgl_status mgl_cpu_pieces_run(mgl_cpu_pieces *p, const mgl_plan *plan, mgl_error *err) {
  mgl_status status = MGL_OK;
  mgl_cpu_program_set_plan(p->program, plan);
  for (p->now = 0; p->now < p->piece_count && status == MGL_OK; p->now++) {
    status = p->pieces[p->now].splits ? run_op(p, err) : run_graph(p, err);
  }
  mgl_cpu_program_end_plan(p->program);
  return status;
}

const mgl_cpu_program *mgl_cpu_pieces_program(const mgl_cpu_pieces *p) {
  return p->program;
}

mgl_cpu_pieces_counts mgl_cpu_pieces_count(const mgl_cpu_pieces *p) {
  mgl_cpu_pieces_counts counts = {.compiled = p->graph_count};
  for (uint32_t i = 0; i < p->piece_count; i++) {
    *(p->pieces[i].splits ? &counts.ops : &counts.graphs) += 1;
  }
  return counts;
}

void mgl_cpu_pieces_print(const mgl_cpu_pieces *p, mgl_text *out) {
  for (uint32_t i = 0; i < p->piece_count; i++) {
    const mgl_piece *piece = &p->pieces[i];
    if (piece->splits) {
      mgl_text_format(out, "%u: op by itself:", i);
    } else {
      mgl_text_format(out, "%u: piece, task graph %u:", i, p->graph_of[i]);
    }
    for (uint32_t op = piece->first; op < piece->last; op++) {
      const mgl_op *o = &p->graph->ops[op];
      mgl_text_format(out, " %s=%s", p->graph->tensors[o->output].name, mgl_op_name(o));
    }
    mgl_text_append_string(out, "\n");
  }
}

const mgl_task_graph *mgl_cpu_pieces_graph(const mgl_cpu_pieces *p, uint32_t number,
                                           mgl_graph *out_view) {
  uint32_t piece = 0;
  if (number >= p->graph_count) {
    return NULL;
  }
  while (p->pieces[piece].splits || p->graph_of[piece] != number) {
    piece++;
  }
  *out_view = mgl_piece_view(p->graph, &p->pieces[piece]);
  return p->graphs[number];
}

// --- without memory ------------------------------------------------------------------------------

mgl_status mgl_cpu_pieces_check(const mgl_graph *graph, const mgl_cpu_pieces_options *options,
                                mgl_error *err) {
  const mgl_compile_options *o = &options->compile;
  const mgl_dim_values largest = {o->tokens, o->logit_rows == 0 ? o->tokens : o->logit_rows,
                                  o->tokens};
  mgl_compile_options compile = *o;
  mgl_piece *pieces = NULL;
  uint32_t *step = NULL;
  uint32_t count = 0;
  size_t bytes = 0;
  mgl_byte_range *ranges = mgl_alloc_zeroed(graph->tensor_count, sizeof *ranges);
  uint64_t *offsets = mgl_alloc_zeroed(graph->tensor_count, sizeof *offsets);
  compile.verify = true;
  mgl_status status = ranges == NULL || offsets == NULL
                          ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a layout")
                          : mgl_split_program(graph, options->split, &pieces, &count, err);
  if (status == MGL_OK && !options->split->none) {
    status = find_steps(graph, pieces, count, &step, err);
    if (status == MGL_OK) {
      status = mgl_cpu_layout_pieces(graph, &largest, step, ranges, &bytes, err);
    }
    for (size_t i = 0; status == MGL_OK && i < graph->tensor_count; i++) {
      offsets[i] = ranges[i].begin;
    }
    compile.offsets = offsets;
    compile.offset_bytes = bytes;
  }
  for (uint32_t i = 0; i < count && status == MGL_OK; i++) {
    mgl_task_graph *made = NULL;
    const mgl_graph view = mgl_piece_view(graph, &pieces[i]);
    if (!pieces[i].splits) {
      status = compile_view(graph, &view, &compile, &made, err);
    }
    mgl_task_graph_destroy(made);
  }
  mgl_free(step);
  mgl_free(pieces);
  mgl_free(offsets);
  mgl_free(ranges);
  return status;
}

mgl_status mgl_cpu_pieces_measure(const mgl_graph *graph, const mgl_split_options *split,
                                  const mgl_dim_values *largest, mgl_cpu_program_sizes *out,
                                  mgl_error *err) {
  mgl_piece *pieces = NULL;
  uint32_t *step = NULL;
  uint32_t count = 0;
  MGL_TRY(mgl_split_program(graph, split, &pieces, &count, err));
  mgl_status status = find_steps(graph, pieces, count, &step, err);
  if (status == MGL_OK) {
    mgl_cpu_program_options options = {.largest = *largest, .step = step};
    status = mgl_cpu_program_measure(graph, &options, out, err);
  }
  mgl_free(step);
  mgl_free(pieces);
  return status;
}
