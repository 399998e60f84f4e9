// Programs for tests that need one and do not ask how it came about.
#ifndef MGL_TESTS_SUPPORT_PROGRAMS_H
#define MGL_TESTS_SUPPORT_PROGRAMS_H

#include <string.h>

#include "graph/family.h"
#include "graph/graph_text.h"
#include "support/must.h"

// Two layers, three query heads to a KV head, and what sets the family apart.
static inline mgl_config small_config(mgl_family family) {
  return (mgl_config){.family = family,
                      .hidden_size = 96,
                      .intermediate_size = 128,
                      .layer_count = 2,
                      .head_count = 6,
                      .kv_head_count = 2,
                      .head_dim = 32,
                      .vocab_size = 300,
                      .context_tokens = 128,
                      .rms_norm_eps = 1e-6,
                      .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                      .qkv_bias = family == MGL_FAMILY_QWEN2,
                      .qk_norm = family == MGL_FAMILY_QWEN3,
                      .tie_word_embeddings = family == MGL_FAMILY_QWEN3,
                      .dtype = MGL_DTYPE_BF16};
}

static inline mgl_graph *build_program(const mgl_config *config) {
  mgl_graph *graph = NULL;
  MUST(mgl_family_build(config, NULL, &graph, &err));
  return graph;
}

static inline mgl_graph *parse_program(const char *text) {
  mgl_graph *graph = NULL;
  MUST(mgl_graph_parse(text, strlen(text), "test", &graph, &err));
  return graph;
}

#endif
