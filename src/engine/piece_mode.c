#include "engine/piece_mode.h"

#include <stdio.h>

#include "base/alloc.h"
#include "device/compilation.h"
#include "device/debug_dump.h"
#include "engine/mega_mode.h"

// A cut of the program, bound for iterations of up to so many tokens.
typedef struct entry {
  mgl_graph_mode how;  // NONE: op by op
  uint32_t tokens;
  mgl_cpu_pieces *pieces;
} entry;

struct mgl_piece_mode {
  mgl_device_job job;
  mgl_cpu_memory *memory;
  mgl_team *team;
  mgl_simd simd;
  mgl_graph *fused;          // NULL: the ops are not fused
  const mgl_graph *program;  // that, or the job's
  mgl_size_list sizes;       // ascending
  entry *entries;            // [entry_count]
  size_t entry_count, entry_capacity;
  mgl_launch_counts counts;
};

static const mgl_compilation *compilation_of(const mgl_device_job *job) {
  return job->build->compilation;
}

static bool is_fused(const mgl_device_job *job) {
  const mgl_compilation *c = compilation_of(job);
  return !job->build->plain && (c == NULL || c->use_compiler);
}

// --- sizes ---------------------------------------------------------------------------------------

// Powers of two where nothing was asked for, as in mode mega.
static void find_sizes(const mgl_device_job *job, mgl_size_list *out) {
  uint32_t most = job->sizes->limits.tokens;
  *out = (mgl_size_list){0};
  if (compilation_of(job) != NULL) {
    mgl_compilation_sizes(compilation_of(job), most, out);
  }
  for (uint32_t size = 1; out->count == 0 || (size / 2 < most && size > 1); size *= 2) {
    out->items[out->count++] = size < most ? size : most;
  }
}

static bool is_in(const mgl_size_list *list, uint32_t size) {
  uint32_t i = 0;
  while (i < list->count && list->items[i] != size) {
    i++;
  }
  return i < list->count;
}

// What an iteration is padded to: nothing where its size has an entry of its own. 0: no graph.
static uint32_t padded(const mgl_piece_mode *mode, uint32_t tokens) {
  const mgl_compilation *c = compilation_of(&mode->job);
  uint32_t i = 0;
  if (c != NULL && is_in(&c->compile_sizes, tokens)) {
    return tokens;
  }
  while (i < mode->sizes.count && mode->sizes.items[i] < tokens) {
    i++;
  }
  return i < mode->sizes.count ? mode->sizes.items[i] : 0;
}

// --- entries -------------------------------------------------------------------------------------

typedef struct split {
  const char *names[MGL_MAX_SPLITTING_OPS];
  mgl_split_options options;
} split;

static void split_of(const mgl_device_job *job, mgl_graph_mode how, split *out) {
  const mgl_compilation *c = compilation_of(job);
  out->options = (mgl_split_options){
      .names = out->names, .none = how == MGL_GRAPHS_FULL, .every = how == MGL_GRAPHS_NONE};
  for (uint32_t i = 0; c != NULL && how == MGL_GRAPHS_PIECEWISE && i < c->splitting_op_count; i++) {
    out->names[out->options.count++] = c->splitting_ops[i];
  }
}

static mgl_cpu_pieces_options options_of(const mgl_device_job *job, mgl_simd simd, uint32_t tokens,
                                         const split *s) {
  const mgl_compilation *c = compilation_of(job);
  return (mgl_cpu_pieces_options){
      .simd = simd,
      .compile = mgl_build_compile(job->build, job->sizes, MGL_TARGET_CPU, tokens),
      .split = &s->options,
      .check_numbers = c != NULL && c->check_numbers};
}

// For whoever looks for a fault: the pieces and task graphs of an entry.
static mgl_status dump_entry(const mgl_piece_mode *mode, const entry *e, const mgl_text *passes,
                             mgl_error *err) {
  char name[96];
  mgl_text text = {0};
  mgl_graph view;
  const mgl_build *build = mode->job.build;
  const mgl_task_graph *graph = NULL;
  mgl_cpu_pieces_print(e->pieces, &text);
  (void)snprintf(name, sizeof name, "%s-%u.pieces.txt", mgl_graph_mode_name(e->how), e->tokens);
  mgl_status status = mgl_debug_dump(build, name, &text, err);
  mgl_text_free(&text);
  if (status == MGL_OK && passes->bytes > 0) {  // op by op there are no task graphs
    (void)snprintf(name, sizeof name, "%s-%u.passes.txt", mgl_graph_mode_name(e->how), e->tokens);
    status = mgl_debug_dump(build, name, passes, err);
  }
  for (uint32_t i = 0;
       status == MGL_OK && (graph = mgl_cpu_pieces_graph(e->pieces, i, &view)) != NULL; i++) {
    (void)snprintf(name, sizeof name, "%s-%u.graph-%u.json", mgl_graph_mode_name(e->how), e->tokens,
                   i);
    status = mgl_debug_dump_graph(build, name, &view, graph, err);
  }
  return status;
}

static mgl_status find_entry(mgl_piece_mode *mode, mgl_graph_mode how, uint32_t tokens,
                             mgl_cpu_pieces **out, mgl_error *err) {
  for (size_t i = 0; i < mode->entry_count; i++) {
    if (mode->entries[i].how == how && mode->entries[i].tokens == tokens) {
      *out = mode->entries[i].pieces;
      return MGL_OK;
    }
  }
  void *items = mode->entries;
  split s;
  MGL_TRY(
      mgl_grow(&items, &mode->entry_capacity, mode->entry_count + 1, sizeof *mode->entries, err));
  mode->entries = items;
  split_of(&mode->job, how, &s);
  mgl_cpu_pieces_options options = options_of(&mode->job, mode->simd, tokens, &s);
  mgl_text passes = {0};
  if (mgl_debug_dump_folder(compilation_of(&mode->job)) != NULL) {
    options.compile.dump = MGL_ALL_PASSES;  // of one piece behind the other
    options.compile.dump_text = &passes;
  }
  mgl_status status =
      mgl_cpu_pieces_create(mode->program, mode->memory, mode->team, &options, out, err);
  if (status == MGL_OK) {
    mode->entries[mode->entry_count++] = (entry){how, tokens, *out};
    mode->counts.entries += mgl_cpu_pieces_count(*out).compiled;
    status = dump_entry(mode, &mode->entries[mode->entry_count - 1], &passes, err);
  }
  mgl_text_free(&passes);
  return status;
}

// What runs iterations of so many tokens that way.
static mgl_status entry_for(mgl_piece_mode *mode, mgl_graph_mode how, uint32_t tokens,
                            mgl_cpu_pieces **out, mgl_error *err) {
  uint32_t size = how == MGL_GRAPHS_NONE ? 0 : padded(mode, tokens);
  return size == 0 ? find_entry(mode, MGL_GRAPHS_NONE, mode->job.sizes->limits.tokens, out, err)
                   : find_entry(mode, how, size, out, err);
}

mgl_status mgl_piece_mode_create(const mgl_device_job *job, mgl_cpu_memory *memory, mgl_team *team,
                                 mgl_simd simd, mgl_piece_mode **out, mgl_error *err) {
  *out = NULL;
  mgl_piece_mode *mode = mgl_alloc_zeroed(1, sizeof *mode);
  if (mode == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for modes with pieces");
  }
  mode->job = *job;
  mode->memory = memory;
  mode->team = team;
  mode->simd = simd;
  find_sizes(job, &mode->sizes);
  mgl_status status = is_fused(job) ? mgl_fuse_ops(job->program, &mode->fused, err) : MGL_OK;
  mode->program = mode->fused != NULL ? mode->fused : job->program;
  if (status == MGL_OK) {
    status = mgl_debug_dump_program(job->build, "fused.txt", mode->program, err);
  }
  if (status != MGL_OK) {
    mgl_piece_mode_destroy(mode);
    return status;
  }
  *out = mode;
  return MGL_OK;
}

void mgl_piece_mode_destroy(mgl_piece_mode *mode) {
  if (mode == NULL) {
    return;
  }
  for (size_t i = 0; i < mode->entry_count; i++) {
    mgl_cpu_pieces_destroy(mode->entries[i].pieces);
  }
  mgl_free(mode->entries);
  mgl_graph_destroy(mode->fused);
  mgl_free(mode);
}

mgl_status mgl_piece_mode_prepare(mgl_piece_mode *mode, mgl_mode how, mgl_error *err) {
  const mgl_graph_mode graphs = mgl_mode_graphs(how);
  const mgl_graph_mode kinds[2] = {mgl_graph_mode_decode(graphs), mgl_graph_mode_mixed(graphs)};
  mgl_cpu_pieces *unused = NULL;
  for (uint32_t kind = 0; kind < 2; kind++) {
    for (uint32_t i = mode->sizes.count; i-- > 0;) {
      MGL_TRY(entry_for(mode, kinds[kind], mode->sizes.items[i], &unused, err));
    }
  }
  return MGL_OK;
}

// --- running -------------------------------------------------------------------------------------

bool mgl_plan_decodes(const mgl_plan *plan) {
  return plan->token_count == plan->sequence_count;
}

mgl_status mgl_piece_mode_run(mgl_piece_mode *mode, mgl_mode how, mgl_next_plan_callback *next,
                              void *context, mgl_error *err) {
  const mgl_graph_mode graphs = mgl_mode_graphs(how);
  const mgl_plan *plan = next(context, NULL);
  while (plan != NULL) {
    mgl_cpu_pieces *pieces = NULL;
    mgl_graph_mode present =
        mgl_plan_decodes(plan) ? mgl_graph_mode_decode(graphs) : mgl_graph_mode_mixed(graphs);
    MGL_TRY(entry_for(mode, present, plan->token_count, &pieces, err));
    MGL_TRY(mgl_cpu_pieces_run(pieces, plan, err));
    mgl_cpu_pieces_counts counts = mgl_cpu_pieces_count(pieces);
    mode->counts.iterations++;
    mode->counts.graphs += counts.graphs;
    mode->counts.ops += counts.ops;
    mgl_logits logits = mgl_logits_of(mgl_cpu_pieces_program(pieces));
    plan = next(context, &logits);
  }
  return MGL_OK;
}

mgl_launch_counts mgl_piece_mode_counts(const mgl_piece_mode *mode) {
  return mode->counts;
}

// --- before there is memory ----------------------------------------------------------------------

static mgl_status check_cut(const mgl_device_job *job, const mgl_graph *program, uint32_t tokens,
                            mgl_graph_mode how, mgl_error *err) {
  split s;
  split_of(job, how, &s);
  const mgl_cpu_pieces_options options = options_of(job, (mgl_simd)0, tokens, &s);
  mgl_status status = mgl_cpu_pieces_check(program, &options, err);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "%s, up to %u tokens", mgl_graph_mode_name(how), tokens);
  }
  return status;
}

mgl_status mgl_piece_mode_check(const mgl_device_job *job, mgl_error *err) {
  mgl_size_list sizes;
  mgl_graph *fused = NULL;
  find_sizes(job, &sizes);
  mgl_status status = mgl_fuse_ops(job->program, &fused, err);
  for (uint32_t i = sizes.count; i-- > 0 && status == MGL_OK;) {
    status = check_cut(job, fused, sizes.items[i], MGL_GRAPHS_FULL, err);
    if (status == MGL_OK) {
      status = check_cut(job, fused, sizes.items[i], MGL_GRAPHS_PIECEWISE, err);
    }
  }
  mgl_graph_destroy(fused);
  return status;
}

mgl_status mgl_piece_mode_check_names(const mgl_device_job *job, mgl_error *err) {
  mgl_graph *fused = NULL;
  mgl_piece *pieces = NULL;
  uint32_t count = 0;
  split s;
  split_of(job, MGL_GRAPHS_PIECEWISE, &s);
  mgl_status status = is_fused(job) ? mgl_fuse_ops(job->program, &fused, err) : MGL_OK;
  if (status == MGL_OK) {
    status =
        mgl_split_program(fused != NULL ? fused : job->program, &s.options, &pieces, &count, err);
  }
  mgl_free(pieces);
  mgl_graph_destroy(fused);
  return status;
}

mgl_status mgl_piece_mode_measure(const mgl_device_job *job, const mgl_graph *fused,
                                  mgl_cpu_program_sizes *out, mgl_error *err) {
  const mgl_sizes *sizes = job->sizes;
  const mgl_dim_values largest = {sizes->limits.tokens, sizes->logit_rows, sizes->limits.tokens};
  split s;
  split_of(job, MGL_GRAPHS_PIECEWISE, &s);
  return mgl_cpu_pieces_measure(fused, &s.options, &largest, out, err);
}
