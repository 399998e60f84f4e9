// Fuzzes the readers of config.json and generation_config.json. An accepted configuration must keep
// the promises that later code relies on.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "graph/rope.h"
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void expect(int fine) {
  if (!fine) {
    __builtin_trap();
  }
}

static void check_config(const mgl_config *c) {
  expect(c->family < MGL_FAMILY_COUNT);
  expect(c->hidden_size >= 1 && c->hidden_size <= MGL_MAX_HIDDEN);
  expect(c->intermediate_size >= 1 && c->intermediate_size <= MGL_MAX_INTERMEDIATE);
  expect(c->layer_count >= 1 && c->layer_count <= MGL_MAX_LAYERS);
  expect(c->head_count >= 1 && c->head_count <= MGL_MAX_HEADS);
  expect(c->kv_head_count >= 1 && c->head_count % c->kv_head_count == 0);
  expect(c->head_dim >= 2 && c->head_dim <= MGL_MAX_HEAD_DIM && c->head_dim % 2 == 0);
  expect(c->vocab_size >= 1 && c->vocab_size <= MGL_MAX_VOCAB);
  expect(c->context_tokens >= 1 && c->context_tokens <= MGL_MAX_CONTEXT);
  expect(c->rms_norm_eps > 0 && c->rope.theta >= 1 && c->rope.factor > 0);
  expect(c->rope.kind != MGL_ROPE_LLAMA3 ||
         (c->rope.high_freq_factor > c->rope.low_freq_factor && c->rope.low_freq_factor > 0 &&
          c->rope.original_context >= 1));
  expect(c->rotary_dim % 2 == 0 && c->rotary_dim < c->head_dim);
  expect(c->window_tokens < c->context_tokens);
  mgl_rope_frequencies rope;
  mgl_rope_compute(c, &rope);
  for (uint32_t i = 0; i < rope.value_count; i++) {
    expect(isfinite(rope.values[i]) && rope.values[i] >= 0);
  }
  expect(isfinite(rope.amplitude) && rope.amplitude > 0);
  expect(c->bos_id >= -1 && c->bos_id < (int32_t)c->vocab_size);
}

static void check_generation(const mgl_generation *g, uint32_t vocab_size) {
  expect(g->eos_count <= MGL_MAX_EOS_IDS);
  for (uint32_t i = 0; i < g->eos_count; i++) {
    expect(g->eos_ids[i] >= 0 && g->eos_ids[i] < (int32_t)vocab_size);
  }
  expect(g->temperature >= 0 && g->top_p >= 0 && g->top_p <= 1);
  expect(g->min_p >= 0 && g->min_p <= 1 && g->repetition_penalty > 0);
  expect(memchr(g->unapplied, 0, sizeof g->unapplied - 1) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  const char *text = (const char *)data;
  mgl_config config;
  mgl_generation generation;
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  if (mgl_config_parse(text, bytes, "fuzz", &config, &generation, &err) == MGL_OK) {
    check_config(&config);
    check_generation(&generation, config.vocab_size);
  } else {
    expect(err.text[0] != 0);
  }
  generation = (mgl_generation){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
  if (mgl_generation_parse(text, bytes, "fuzz", 1000, &generation, &err) == MGL_OK) {
    check_generation(&generation, 1000);
  }
  expect(mgl_alloc_live() == live);
  return 0;
}
