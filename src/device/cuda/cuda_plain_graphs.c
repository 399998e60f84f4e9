#include "device/cuda/cuda_plain_graphs.h"

#include <stdio.h>

#include "base/alloc.h"
#include "compile/split.h"
#include "device/debug_dump.h"

// The graphs of one size: of every piece, or of the whole program.
typedef struct graph_set {
  mgl_graph_mode how;  // FULL or PIECEWISE
  uint32_t tokens, logit_rows;
  void **graphs;  // [pieces of the cut] executable; NULL: the op is launched by itself
} graph_set;

typedef struct cut {
  mgl_piece *pieces;  // [count]
  uint32_t count;
} cut;

struct mgl_cuda_plain_graphs {
  mgl_cuda_plain *plain;
  const mgl_cuda_driver *driver;
  mgl_size_list sizes;  // ascending
  cut whole, parts;
  void *stream;
  graph_set *sets;  // [set_count]
  size_t set_count, set_capacity;
  mgl_cuda_graph_counts counts;
  const char *dump_folder;  // NULL: nothing is dumped
};

static const cut *cut_of(const mgl_cuda_plain_graphs *g, mgl_graph_mode how) {
  return how == MGL_GRAPHS_FULL ? &g->whole : &g->parts;
}

// --- capturing -----------------------------------------------------------------------------------

static mgl_status launch_piece(const mgl_cuda_plain_graphs *g, const mgl_piece *piece,
                               const mgl_dim_values *values, mgl_error *err) {
  for (uint32_t op = piece->first; op < piece->last; op++) {
    MGL_TRY(mgl_cuda_plain_launch(g->plain, op, values, g->stream, err));
  }
  return MGL_OK;
}

// As DOT, for whoever looks for a fault.
static mgl_status dump_graph(const mgl_cuda_plain_graphs *g, const graph_set *set, uint32_t piece,
                             void *graph, mgl_error *err) {
  char name[96], path[MGL_DEBUG_DUMP_PATH_BYTES];
  if (g->dump_folder == NULL) {
    return MGL_OK;
  }
  (void)snprintf(name, sizeof name, "%s-%u-%u.piece-%u.dot", mgl_graph_mode_name(set->how),
                 set->tokens, set->logit_rows, piece);
  MGL_TRY(mgl_debug_dump_path(g->dump_folder, name, path, err));
  return MGL_CUDA_CALL(g->driver, graph_print, err, graph, path, 0);
}

static mgl_status capture_piece(const mgl_cuda_plain_graphs *g, const graph_set *set,
                                uint32_t index, void **out, mgl_error *err) {
  const mgl_piece *piece = &cut_of(g, set->how)->pieces[index];
  const mgl_dim_values dims = {set->tokens, set->logit_rows, set->tokens};
  const mgl_dim_values *values = &dims;
  const mgl_cuda_driver *d = g->driver;
  void *graph = NULL;
  MGL_CUDA_TRY(d, capture_begin, err, g->stream, MGL_CU_CAPTURE_RELAXED);
  mgl_status status = launch_piece(g, piece, values, err);
  mgl_cu_result ended = d->capture_end(g->stream, &graph);
  if (status == MGL_OK) {
    status = mgl_cuda_check(d, ended, "capture_end", err);
  }
  if (status == MGL_OK) {
    status = dump_graph(g, set, index, graph, err);
  }
  if (status == MGL_OK) {
    status = MGL_CUDA_CALL(d, graph_instantiate, err, out, graph, 0);
  }
  MGL_CUDA_RELEASE(d, graph_destroy, graph);
  return status;
}

static void release_set(const mgl_cuda_plain_graphs *g, graph_set *set) {
  for (uint32_t i = 0; set->graphs != NULL && i < cut_of(g, set->how)->count; i++) {
    MGL_CUDA_RELEASE(g->driver, graph_release, set->graphs[i]);
  }
  mgl_free(set->graphs);
}

static mgl_status capture_set(mgl_cuda_plain_graphs *g, graph_set *set, mgl_error *err) {
  const cut *c = cut_of(g, set->how);
  set->graphs = mgl_alloc_zeroed(c->count, sizeof *set->graphs);
  MGL_TRY(mgl_alloc_check(set->graphs, err, "graphs"));
  for (uint32_t i = 0; i < c->count; i++) {
    if (!c->pieces[i].splits) {
      MGL_TRY(capture_piece(g, set, i, &set->graphs[i], err));
      g->counts.captured++;
    }
  }
  return MGL_OK;
}

// The graphs of that size, captured if it is their first use.
static mgl_status find_set(mgl_cuda_plain_graphs *g, mgl_graph_mode how, uint32_t tokens,
                           uint32_t logit_rows, const graph_set **out, mgl_error *err) {
  for (size_t i = 0; i < g->set_count; i++) {
    const graph_set *set = &g->sets[i];
    if (set->how == how && set->tokens == tokens && set->logit_rows == logit_rows) {
      *out = set;
      return MGL_OK;
    }
  }
  void *items = g->sets;
  graph_set set = {.how = how, .tokens = tokens, .logit_rows = logit_rows};
  const mgl_cuda_capture since = mgl_cuda_capture_begin(g->driver);
  MGL_TRY(mgl_grow(&items, &g->set_capacity, g->set_count + 1, sizeof *g->sets, err));
  g->sets = items;
  mgl_status status = capture_set(g, &set, err);
  if (status != MGL_OK) {
    release_set(g, &set);
    return status;
  }
  g->sets[g->set_count] = set;
  *out = &g->sets[g->set_count++];
  mgl_cuda_capture_end(g->driver, since, &g->counts);
  return MGL_OK;
}

// --- making them ---------------------------------------------------------------------------------

static void find_sizes(mgl_cuda_plain_graphs *g, const mgl_compilation *c) {
  uint32_t most = mgl_cuda_plain_sizes(g->plain)->limits.tokens;
  if (c != NULL) {
    mgl_compilation_sizes(c, most, &g->sizes);
  }
  if (g->sizes.count == 0) {
    for (uint32_t size = 1; size <= most && size <= MGL_PLAIN_GRAPH_TOKENS; size *= 2) {
      g->sizes.items[g->sizes.count++] = size;
    }
  }
}

static mgl_status find_cuts(mgl_cuda_plain_graphs *g, const mgl_compilation *c, mgl_error *err) {
  const char *names[MGL_MAX_SPLITTING_OPS];
  mgl_split_options whole = {.none = true}, parts = {.names = names};
  for (uint32_t i = 0; c != NULL && i < c->splitting_op_count; i++) {
    names[parts.count++] = c->splitting_ops[i];
  }
  const mgl_graph *program = mgl_cuda_plain_program(g->plain);
  MGL_TRY(mgl_split_program(program, &whole, &g->whole.pieces, &g->whole.count, err));
  return mgl_split_program(program, &parts, &g->parts.pieces, &g->parts.count, err);
}

static uint32_t rows_of(const mgl_cuda_plain_graphs *g, uint32_t tokens) {
  uint32_t most = mgl_cuda_plain_sizes(g->plain)->logit_rows;
  return tokens < most ? tokens : most;
}

// Everything once without graphs, so that the driver has loaded all kernels; then all sizes,
// largest first.
static mgl_status capture_all(mgl_cuda_plain_graphs *g, mgl_graph_mode mode,
                              const mgl_weights_progress *progress, mgl_error *err) {
  const mgl_graph_mode kinds[2] = {mgl_graph_mode_decode(mode), mgl_graph_mode_mixed(mode)};
  const graph_set *unused = NULL;
  uint64_t done = 0, total = 0;
  for (int kind = 0; kind < 2; kind++) {
    total += kinds[kind] != MGL_GRAPHS_NONE ? g->sizes.count : 0;
  }
  uint32_t largest = g->sizes.items[g->sizes.count - 1];
  const mgl_dim_values values = {largest, rows_of(g, largest), largest};
  MGL_TRY(mgl_cuda_plain_stage(g->plain, NULL, &values, err));
  MGL_TRY(launch_piece(g, g->whole.pieces, &values, err));
  MGL_CUDA_TRY(g->driver, context_synchronize, err);
  for (int kind = 0; kind < 2; kind++) {
    for (uint32_t i = g->sizes.count; i-- > 0 && kinds[kind] != MGL_GRAPHS_NONE;) {
      uint32_t size = g->sizes.items[i];
      MGL_TRY(find_set(g, kinds[kind], size, rows_of(g, size), &unused, err));
      done++;
      if (progress->report != NULL) {
        progress->report(progress->context, done, total);
      }
    }
  }
  return mgl_cuda_plain_fetch(g->plain, NULL, NULL, err);
}

mgl_status mgl_cuda_plain_graphs_create(mgl_cuda_plain *plain, const mgl_compilation *c,
                                        const mgl_weights_progress *progress,
                                        mgl_cuda_plain_graphs **out, mgl_error *err) {
  *out = NULL;
  mgl_cuda_plain_graphs *g = mgl_alloc_zeroed(1, sizeof *g);
  MGL_TRY(mgl_alloc_check(g, err, "graphs"));
  g->plain = plain;
  g->driver = &mgl_cuda_plain_device(plain)->driver;
  g->dump_folder = mgl_debug_dump_folder(c);
  find_sizes(g, c);
  mgl_status status = find_cuts(g, c, err);
  if (status == MGL_OK) {
    status = MGL_CUDA_CALL(g->driver, stream_create, err, &g->stream, 0);
  }
  if (status == MGL_OK && c != NULL && c->graph_mode != MGL_GRAPHS_NONE &&
      c->graph_mode != MGL_GRAPHS_MEGA) {
    status = capture_all(g, c->graph_mode, progress, err);
  }
  if (status != MGL_OK) {
    mgl_cuda_plain_graphs_destroy(g);
    return status;
  }
  *out = g;
  return MGL_OK;
}

void mgl_cuda_plain_graphs_destroy(mgl_cuda_plain_graphs *g) {
  if (g == NULL) {
    return;
  }
  for (size_t i = 0; i < g->set_count; i++) {
    release_set(g, &g->sets[i]);
  }
  MGL_CUDA_RELEASE(g->driver, stream_destroy, g->stream);
  mgl_free(g->sets);
  mgl_free(g->whole.pieces);
  mgl_free(g->parts.pieces);
  mgl_free(g);
}

// --- running -------------------------------------------------------------------------------------

// The next size; 0: there is none.
static uint32_t padded(const mgl_cuda_plain_graphs *g, uint32_t tokens) {
  uint32_t i = 0;
  while (i < g->sizes.count && g->sizes.items[i] < tokens) {
    i++;
  }
  return i < g->sizes.count ? g->sizes.items[i] : 0;
}

static mgl_status run_set(mgl_cuda_plain_graphs *g, const graph_set *set, mgl_error *err) {
  const cut *c = cut_of(g, set->how);
  const mgl_dim_values values = {set->tokens, set->logit_rows, set->tokens};
  for (uint32_t i = 0; i < c->count; i++) {
    if (set->graphs[i] == NULL) {
      MGL_TRY(launch_piece(g, &c->pieces[i], &values, err));
      g->counts.ops++;
    } else {
      MGL_CUDA_TRY(g->driver, graph_launch, err, set->graphs[i], g->stream);
      g->counts.graphs++;
    }
  }
  return MGL_OK;
}

mgl_status mgl_cuda_plain_graphs_run(mgl_cuda_plain_graphs *g, mgl_graph_mode mode,
                                     const mgl_plan *plan, float *logits, mgl_error *err) {
  bool decodes = plan->token_count == plan->sequence_count;
  mgl_graph_mode how = decodes ? mgl_graph_mode_decode(mode) : mgl_graph_mode_mixed(mode);
  uint32_t tokens = padded(g, plan->token_count);
  const graph_set *set = NULL;
  g->counts.iterations++;
  if (how == MGL_GRAPHS_NONE || tokens == 0) {
    g->counts.ops += mgl_cuda_plain_program(g->plain)->op_count;
    return mgl_cuda_plain_run(g->plain, plan, false, logits, err);
  }
  // As many rows of logits as tokens where all are wanted, as in most iterations that decode.
  uint32_t rows = decodes ? rows_of(g, tokens) : padded(g, plan->logit_row_count);
  rows = plan->logit_row_count == 0 ? 0 : rows < rows_of(g, tokens) ? rows : rows_of(g, tokens);
  const mgl_dim_values values = {tokens, rows, tokens};
  MGL_TRY(mgl_cuda_plain_stage(g->plain, plan, &values, err));
  MGL_TRY(find_set(g, how, tokens, rows, &set, err));
  MGL_TRY(run_set(g, set, err));
  return mgl_cuda_plain_fetch(g->plain, plan, logits, err);
}

mgl_cuda_graph_counts mgl_cuda_plain_graphs_count(const mgl_cuda_plain_graphs *g) {
  return g->counts;
}
