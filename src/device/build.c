#include "device/build.h"

#include <string.h>

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

mgl_status mgl_build_take_given(const mgl_build *build, const mgl_sizes *sizes, mgl_target target,
                                const mgl_graph *program, mgl_task_graph **graphs, bool *is_given,
                                uint32_t count, mgl_error *err) {
  for (uint32_t i = 0; i < build->given_count; i++) {
    mgl_task_graph *graph = build->given[i].graph;
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
    if (graph->logit_rows < rows || is_given[place]) {
      return mgl_error_set(
          err, MGL_ERR_ARGUMENT,
          "task graph for %u tokens: expected one with at least %u rows of logits, "
          "found %s",
          graph->tokens, rows, is_given[place] ? "two" : "fewer");
    }
    graphs[place] = graph;
    is_given[place] = true;
  }
  return MGL_OK;
}
