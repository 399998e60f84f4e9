#include "device/build.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "graph/graph_text.h"

uint64_t mgl_sizes_kv_bytes(const mgl_sizes *sizes) {
  return (uint64_t)sizes->page_count * sizes->limits.page_tokens * sizes->kv_bytes_per_token;
}

// All but the KV pages.
static uint64_t fixed_bytes(const mgl_sizes *sizes) {
  return sizes->weight_bytes + sizes->mapped_bytes + sizes->activation_bytes + sizes->other_bytes;
}

uint64_t mgl_sizes_total(const mgl_sizes *sizes) {
  return fixed_bytes(sizes) + mgl_sizes_kv_bytes(sizes);
}

static double mib(double bytes) {
  return bytes / (1 << 20);
}

mgl_status mgl_sizes_share(mgl_sizes *sizes, double share, mgl_error *err) {
  double page_bytes = (double)sizes->kv_bytes_per_token * sizes->limits.page_tokens;
  double fixed = (double)fixed_bytes(sizes);
  double wanted = (double)sizes->free_bytes * share;
  double while_loading = (double)sizes->free_bytes - (double)sizes->loading_bytes;
  double room = wanted < while_loading ? wanted : while_loading;
  fixed -= room - fixed < page_bytes ? (double)sizes->cold_bytes : 0;  // a model beyond the memory
  double budget = room - fixed;
  double pages = budget / page_bytes;
  if (!(pages >= 1)) {
    return mgl_error_set(
        err, MGL_ERR_MEMORY,
        "no memory for a KV page: weights take %.0f MiB, activations and the rest "
        "%.0f MiB, a page %.2f MiB, and %.0f MiB are %.3g of what is free; a "
        "larger memory share or fewer sequences may help",
        mib((double)(sizes->weight_bytes + sizes->mapped_bytes - sizes->cold_bytes)),
        mib((double)(sizes->activation_bytes + sizes->other_bytes)), mib(page_bytes), mib(wanted),
        share);
  }
  if (pages < sizes->page_count) {
    sizes->page_count = (uint32_t)pages;
  }
  return MGL_OK;
}

mgl_compile_options mgl_build_compile(const mgl_build *build, const mgl_sizes *sizes,
                                      mgl_target target, uint32_t tokens) {
  uint32_t rows = tokens < sizes->logit_rows ? tokens : sizes->logit_rows;
  return (mgl_compile_options){.target = target,
                               .tokens = tokens,
                               .logit_rows = target == MGL_TARGET_CPU ? rows : 0,
                               .workers = sizes->workers,
                               .launch = build->launch,
                               .overrides = build->overrides,
                               .override_count = build->override_count,
                               .coarse = build->coarse};
}

// --- given task graphs ---------------------------------------------------------------------------

static mgl_status read_given(const char *path, mgl_given_graph *out, mgl_error *err) {
  char *text = NULL;
  size_t bytes = 0;
  MGL_TRY(mgl_file_read(path, MGL_TASK_GRAPH_JSON_MAX_BYTES, &text, &bytes, err));
  mgl_status status = mgl_task_graph_read_json(text, bytes, path, &out->program, &out->graph, err);
  mgl_free(text);
  return status;
}

mgl_status mgl_given_graphs_read(const char *const *paths, uint32_t count, mgl_given_graph **out,
                                 mgl_error *err) {
  *out = NULL;
  if (count == 0) {
    return MGL_OK;
  }
  *out = mgl_alloc_zeroed(count, sizeof **out);
  if (*out == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for task graphs");
  }
  for (uint32_t i = 0; i < count; i++) {
    MGL_TRY(read_given(paths[i], &(*out)[i], err));
  }
  return MGL_OK;
}

void mgl_given_graphs_free(mgl_given_graph *given, uint32_t count) {
  for (uint32_t i = 0; given != NULL && i < count; i++) {
    mgl_task_graph_destroy(given[i].graph);
    mgl_graph_destroy(given[i].program);
  }
  mgl_free(given);
}

// Whether the programs are one: as text, since one came out of a file.
static mgl_status check_program(const mgl_graph *own, const mgl_graph *given, mgl_error *err) {
  mgl_text texts[2] = {{0}, {0}};
  mgl_graph_print(own, &texts[0]);
  mgl_graph_print(given, &texts[1]);
  mgl_status status = mgl_text_check(&texts[0], err);
  if (status == MGL_OK) {
    status = mgl_text_check(&texts[1], err);
  }
  if (status == MGL_OK && strcmp(texts[0].data, texts[1].data) != 0) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "task graph: expected one of this model's fused program (\"%s\"), found "
                           "one of another (\"%s\")",
                           own->name, given->name);
  }
  mgl_text_free(&texts[0]);
  mgl_text_free(&texts[1]);
  return status;
}

static const char *owner_of(mgl_target target) {
  return target == MGL_TARGET_CPU ? "a CPU" : "a GPU";
}

// Number of the graph for so many tokens.
static uint32_t place_of(uint32_t tokens) {
  uint32_t place = 0;
  while (1u << place < tokens) {
    place++;
  }
  return place;
}

static void *copy_of(const void *from, size_t count, size_t bytes_each) {
  void *to = mgl_alloc_zeroed(count > 0 ? count : 1, bytes_each);
  return to != NULL && count > 0 ? memcpy(to, from, count * bytes_each) : to;
}

// Where the activations of `program` lie in a given graph, by the numbers of `program`.
static uint64_t *offsets_for(const mgl_graph *program, const mgl_given_graph *given) {
  uint64_t *offsets = mgl_alloc_zeroed(program->tensor_count, sizeof *offsets);
  for (uint32_t i = 0; offsets != NULL && i < program->tensor_count; i++) {
    const uint32_t theirs = mgl_graph_find(given->program, program->tensors[i].name);
    offsets[i] = theirs == MGL_NO_TENSOR ? 0 : given->graph->activation_offsets[theirs];
  }
  return offsets;
}

// A given graph as one of `program`.
static mgl_status copy_for(const mgl_graph *program, const mgl_given_graph *given,
                           mgl_task_graph **out, mgl_error *err) {
  const mgl_task_graph *from = given->graph;
  mgl_task_graph *to = copy_of(from, 1, sizeof *from);
  *out = to;
  if (to != NULL) {
    const size_t starts = from->worker_count + (size_t)1;
    to->tasks = copy_of(from->tasks, from->task_count, sizeof *from->tasks);
    to->events = copy_of(from->events, from->event_count, sizeof *from->events);
    to->aot_start = copy_of(from->aot_start, starts, sizeof *from->aot_start);
    to->aot_tasks = copy_of(from->aot_tasks, from->aot_start[starts - 1], sizeof *from->aot_tasks);
    to->activation_offsets = offsets_for(program, given);
    to->tensor_count = (uint32_t)program->tensor_count;
  }
  if (to == NULL || to->tasks == NULL || to->events == NULL || to->aot_start == NULL ||
      to->aot_tasks == NULL || to->activation_offsets == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a task graph of %u tasks",
                         from->task_count);
  }
  return mgl_task_graph_verify(program, to, err);
}

mgl_status mgl_build_take_given(const mgl_build *build, const mgl_sizes *sizes, mgl_target target,
                                const mgl_graph *program, mgl_task_graph **graphs, uint32_t count,
                                mgl_error *err) {
  for (uint32_t i = 0; i < build->given_count; i++) {
    const mgl_task_graph *graph = build->given[i].graph;
    uint32_t place = place_of(graph->tokens);
    uint32_t rows = graph->tokens < sizes->logit_rows ? graph->tokens : sizes->logit_rows;
    if (graph->target != target || graph->worker_count != sizes->workers) {
      return mgl_error_set(
          err, MGL_ERR_ARGUMENT,
          "task graph: expected one for %u workers of %s, found one for %u of %s%s", sizes->workers,
          owner_of(target), graph->worker_count, owner_of(graph->target),
          target == MGL_TARGET_CPU ? "; see --threads" : "");
    }
    MGL_TRY(check_program(program, build->given[i].program, err));
    if (1u << place != graph->tokens || place >= count) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "task graph: expected one for a power of two of tokens up to %u, found "
                           "one for %u",
                           1u << (count - 1), graph->tokens);
    }
    if (graph->logit_rows < rows || graphs[place] != NULL) {
      return mgl_error_set(
          err, MGL_ERR_ARGUMENT,
          "task graph for %u tokens: expected one with at least %u rows of logits, "
          "found %s",
          graph->tokens, rows, graphs[place] != NULL ? "two" : "fewer");
    }
    MGL_TRY(copy_for(program, &build->given[i], &graphs[place], err));
  }
  return MGL_OK;
}

mgl_build mgl_build_of_first(const mgl_build *first, const mgl_build *own) {
  mgl_build build = *first;
  build.crew = own->crew;
  build.overrides = own->overrides;
  build.override_count = own->override_count;
  build.given = own->given;
  build.given_count = own->given_count;
  build.compilation = own->compilation;
  build.program = NULL;
  build.progress = build.captures = (mgl_weights_progress){0};
  build.cuda = NULL;
  return build;
}
