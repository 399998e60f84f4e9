// Programs for tests that need one and do not ask how it came about.
#ifndef MGL_TESTS_SUPPORT_PROGRAMS_H
#define MGL_TESTS_SUPPORT_PROGRAMS_H

#include <stdio.h>
#include <string.h>

#include "compile/compile.h"
#include "graph/family.h"
#include "graph/graph_text.h"
#include "model/config.h"
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

// The program of a config.json, not fused.
static inline mgl_graph *parsed_model(const char *json, size_t bytes, const char *name) {
  mgl_config config;
  mgl_generation generation;
  MUST(mgl_config_parse(json, bytes, name, &config, &generation, &err));
  return build_program(&config);
}

// Of a model with weights of codes, but for the last linear, fused for a GPU.
static inline mgl_graph *coded_program(uint32_t hidden, uint32_t intermediate) {
  char json[1024];
  (void)snprintf(
      json, sizeof json,
      "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":304,"
      "\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":3,"
      "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":64,"
      "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
      "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\","
      "\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
      "\"format\":\"pack-quantized\",\"ignore\":[\"lm_head\"],\"config_groups\":{\"group_0\":{"
      "\"targets\":"
      "[\"Linear\"],\"weights\":{\"type\":\"int\",\"symmetric\":false,\"num_bits\":4,"
      "\"strategy\":\"group\",\"group_size\":64}}}}}",
      hidden, intermediate);
  mgl_config config;
  mgl_generation generation;
  MUST(mgl_config_parse(json, strlen(json), "coded", &config, &generation, &err));
  mgl_graph *canonical = build_program(&config);
  mgl_graph *program = NULL;
  MUST(mgl_fuse_ops_cuda(canonical, &program, &err));
  mgl_graph_destroy(canonical);
  return program;
}

static inline mgl_graph *parse_program(const char *text) {
  mgl_graph *graph = NULL;
  MUST(mgl_graph_parse(text, strlen(text), "test", &graph, &err));
  return graph;
}

#endif
