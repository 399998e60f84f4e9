// config.json: the shapes of public models, and everything refused. (generation_config.json:
// test_generation.c.)
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/json.h"
#include "model/config.h"

// --- good configurations -------------------------------------------------------------------------

#define QWEN3_0_6B                                                                           \
  "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":1024," \
  "\"intermediate_size\":3072,\"num_hidden_layers\":28,\"num_attention_heads\":16,"          \
  "\"num_key_value_heads\":8,\"head_dim\":128,\"vocab_size\":151936,"                        \
  "\"max_position_embeddings\":40960,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000,"         \
  "\"rope_scaling\":null,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","         \
  "\"attention_bias\":false,\"hidden_act\":\"silu\",\"sliding_window\":null,"                \
  "\"use_sliding_window\":false,\"max_window_layers\":28,\"bos_token_id\":151643,"           \
  "\"eos_token_id\":151645}"
#define QWEN3_1_7B                                                                           \
  "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":2048," \
  "\"intermediate_size\":6144,\"num_hidden_layers\":28,\"num_attention_heads\":16,"          \
  "\"num_key_value_heads\":8,\"head_dim\":128,\"vocab_size\":151936,"                        \
  "\"max_position_embeddings\":40960,\"rope_theta\":1000000,\"tie_word_embeddings\":true}"
#define QWEN3_8B                                                                             \
  "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":4096," \
  "\"intermediate_size\":12288,\"num_hidden_layers\":36,\"num_attention_heads\":32,"         \
  "\"num_key_value_heads\":8,\"vocab_size\":151936,\"max_position_embeddings\":40960,"       \
  "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000},"                  \
  "\"tie_word_embeddings\":false,\"dtype\":\"bfloat16\",\"use_sliding_window\":false,"       \
  "\"sliding_window\":4096}"
#define QWEN25_0_5B                                                                         \
  "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"hidden_size\":896," \
  "\"intermediate_size\":4864,\"num_hidden_layers\":24,\"num_attention_heads\":14,"         \
  "\"num_key_value_heads\":2,\"vocab_size\":151936,\"max_position_embeddings\":32768,"      \
  "\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"tie_word_embeddings\":true,"           \
  "\"use_sliding_window\":false,\"sliding_window\":32768,\"max_window_layers\":21,"         \
  "\"torch_dtype\":\"bfloat16\",\"bos_token_id\":151643,\"eos_token_id\":151645}"
#define LLAMA32_1B                                                                           \
  "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":2048," \
  "\"intermediate_size\":8192,\"num_hidden_layers\":16,\"num_attention_heads\":32,"          \
  "\"num_key_value_heads\":8,\"head_dim\":64,\"vocab_size\":128256,"                         \
  "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,"       \
  "\"rope_scaling\":{\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"      \
  "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"                     \
  "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"pretraining_tp\":1,"          \
  "\"mlp_bias\":false,\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009]}"
#define LLAMA31_8B                                                                           \
  "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":4096," \
  "\"intermediate_size\":14336,\"num_hidden_layers\":32,\"num_attention_heads\":32,"         \
  "\"num_key_value_heads\":8,\"vocab_size\":128256,\"max_position_embeddings\":131072,"      \
  "\"rms_norm_eps\":1e-05,\"rope_parameters\":{\"rope_theta\":500000.0,\"factor\":8.0,"      \
  "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                                        \
  "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"                     \
  "\"dtype\":\"float16\",\"bos_token_id\":128000,\"eos_token_id\":128001}"
#define MISTRAL_7B                                                                      \
  "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\","             \
  "\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"          \
  "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":32768,"          \
  "\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,"  \
  "\"sliding_window\":null,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"," \
  "\"bos_token_id\":1,\"eos_token_id\":2}"
// Least keys of a Llama 2 like model: everything else is a default.
#define LLAMA_LEAST                                                        \
  "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96," \
  "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":100}"

// The same of a Phi-3, whose heads have 20 dims.
#define PHI3_LEAST                                                        \
  "{\"model_type\":\"phi3\",\"hidden_size\":80,\"intermediate_size\":96," \
  "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":100}"

// And of a Phi.
#define PHI_LEAST                                                        \
  "{\"model_type\":\"phi\",\"hidden_size\":64,\"intermediate_size\":96," \
  "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":100}"

typedef struct good_case {
  const char *name;
  const char *json;
  mgl_config config;
  uint32_t eos_count;
  int32_t last_eos;
} good_case;

static const good_case good_cases[] = {
    {.name = "Qwen3-0.6B",
     .json = QWEN3_0_6B,
     .config = {.family = MGL_FAMILY_QWEN3,
                .hidden_size = 1024,
                .intermediate_size = 3072,
                .layer_count = 28,
                .head_count = 16,
                .kv_head_count = 8,
                .head_dim = 128,
                .vocab_size = 151936,
                .context_tokens = 40960,
                .rms_norm_eps = 1e-6,
                .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e6, .factor = 1},
                .tie_word_embeddings = true,
                .qk_norm = true,
                .dtype = MGL_DTYPE_BF16,
                .bos_id = 151643},
     .eos_count = 1,
     .last_eos = 151645},
    {.name = "Qwen3-1.7B",
     .json = QWEN3_1_7B,
     .config = {.family = MGL_FAMILY_QWEN3,
                .hidden_size = 2048,
                .intermediate_size = 6144,
                .layer_count = 28,
                .head_count = 16,
                .kv_head_count = 8,
                .head_dim = 128,
                .vocab_size = 151936,
                .context_tokens = 40960,
                .rms_norm_eps = 1e-6,
                .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e6, .factor = 1},
                .tie_word_embeddings = true,
                .qk_norm = true,
                .dtype = MGL_DTYPE_BF16,
                .bos_id = -1},
     .eos_count = 0,
     .last_eos = 0},
    {.name = "Qwen3-8B",
     .json = QWEN3_8B,
     .config = {.family = MGL_FAMILY_QWEN3,
                .hidden_size = 4096,
                .intermediate_size = 12288,
                .layer_count = 36,
                .head_count = 32,
                .kv_head_count = 8,
                .head_dim = 128,
                .vocab_size = 151936,
                .context_tokens = 40960,
                .rms_norm_eps = 1e-6,
                .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e6, .factor = 1},
                .qk_norm = true,
                .dtype = MGL_DTYPE_BF16,
                .bos_id = -1},
     .eos_count = 0,
     .last_eos = 0},
    {.name = "Qwen2.5-0.5B",
     .json = QWEN25_0_5B,
     .config = {.family = MGL_FAMILY_QWEN2,
                .hidden_size = 896,
                .intermediate_size = 4864,
                .layer_count = 24,
                .head_count = 14,
                .kv_head_count = 2,
                .head_dim = 64,
                .vocab_size = 151936,
                .context_tokens = 32768,
                .rms_norm_eps = 1e-6,
                .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e6, .factor = 1},
                .tie_word_embeddings = true,
                .qkv_bias = true,
                .dtype = MGL_DTYPE_BF16,
                .bos_id = 151643},
     .eos_count = 1,
     .last_eos = 151645},
    {.name = "Llama-3.2-1B",
     .json = LLAMA32_1B,
     .config = {.family = MGL_FAMILY_LLAMA,
                .hidden_size = 2048,
                .intermediate_size = 8192,
                .layer_count = 16,
                .head_count = 32,
                .kv_head_count = 8,
                .head_dim = 64,
                .vocab_size = 128256,
                .context_tokens = 131072,
                .rms_norm_eps = 1e-5,
                .rope = {.kind = MGL_ROPE_LLAMA3,
                         .theta = 5e5,
                         .factor = 32,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .original_context = 8192},
                .tie_word_embeddings = true,
                .dtype = MGL_DTYPE_BF16,
                .bos_id = 128000},
     .eos_count = 3,
     .last_eos = 128009},
    {.name = "Llama-3.1-8B",
     .json = LLAMA31_8B,
     .config = {.family = MGL_FAMILY_LLAMA,
                .hidden_size = 4096,
                .intermediate_size = 14336,
                .layer_count = 32,
                .head_count = 32,
                .kv_head_count = 8,
                .head_dim = 128,
                .vocab_size = 128256,
                .context_tokens = 131072,
                .rms_norm_eps = 1e-5,
                .rope = {.kind = MGL_ROPE_LLAMA3,
                         .theta = 5e5,
                         .factor = 8,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .original_context = 8192},
                .dtype = MGL_DTYPE_F16,
                .bos_id = 128000},
     .eos_count = 1,
     .last_eos = 128001},
    {.name = "Mistral-7B-v0.3",
     .json = MISTRAL_7B,
     .config = {.family = MGL_FAMILY_MISTRAL,
                .hidden_size = 4096,
                .intermediate_size = 14336,
                .layer_count = 32,
                .head_count = 32,
                .kv_head_count = 8,
                .head_dim = 128,
                .vocab_size = 32768,
                .context_tokens = 32768,
                .rms_norm_eps = 1e-5,
                .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e6, .factor = 1},
                .dtype = MGL_DTYPE_BF16,
                .bos_id = 1},
     .eos_count = 1,
     .last_eos = 2},
    {.name = "least keys",
     .json = LLAMA_LEAST,
     .config = {.family = MGL_FAMILY_LLAMA,
                .hidden_size = 64,
                .intermediate_size = 96,
                .layer_count = 2,
                .head_count = 4,
                .kv_head_count = 4,
                .head_dim = 16,
                .vocab_size = 100,
                .context_tokens = 2048,
                .rms_norm_eps = 1e-6,
                .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4, .factor = 1},
                .dtype = MGL_DTYPE_BF16,
                .bos_id = 1},
     .eos_count = 1,
     .last_eos = 2},
};

static void assert_config_equal(const mgl_config *a, const mgl_config *b) {
  assert_int_equal(a->family, b->family);
  assert_int_equal(a->hidden_size, b->hidden_size);
  assert_int_equal(a->intermediate_size, b->intermediate_size);
  assert_int_equal(a->layer_count, b->layer_count);
  assert_int_equal(a->head_count, b->head_count);
  assert_int_equal(a->kv_head_count, b->kv_head_count);
  assert_int_equal(a->head_dim, b->head_dim);
  assert_int_equal(a->vocab_size, b->vocab_size);
  assert_int_equal(a->context_tokens, b->context_tokens);
  assert_true(a->rms_norm_eps == b->rms_norm_eps);
  assert_int_equal(a->rope.kind, b->rope.kind);
  assert_true(a->rope.theta == b->rope.theta);
  assert_true(a->rope.factor == b->rope.factor);
  assert_true(a->rope.low_freq_factor == b->rope.low_freq_factor);
  assert_true(a->rope.high_freq_factor == b->rope.high_freq_factor);
  assert_true(a->rope.original_context == b->rope.original_context);
  assert_int_equal(a->tie_word_embeddings, b->tie_word_embeddings);
  assert_int_equal(a->qkv_bias, b->qkv_bias);
  assert_int_equal(a->qk_norm, b->qk_norm);
  assert_int_equal(a->dtype, b->dtype);
  assert_int_equal(a->bos_id, b->bos_id);
}

static void test_public_models(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof good_cases / sizeof good_cases[0]; i++) {
    const good_case *c = &good_cases[i];
    mgl_config config;
    mgl_generation generation;
    mgl_error err = {0};
    if (mgl_config_parse(c->json, strlen(c->json), c->name, &config, &generation, &err) != MGL_OK) {
      fail_msg("%s: %s", c->name, err.text);
    }
    assert_config_equal(&config, &c->config);
    assert_int_equal(generation.eos_count, c->eos_count);
    if (c->eos_count != 0) {
      assert_int_equal(generation.eos_ids[c->eos_count - 1], c->last_eos);
    }
    assert_false(generation.do_sample);
    assert_true(generation.temperature == 1 && generation.top_p == 1 && generation.top_k == 0);
  }
}

// --- variations of a good configuration ----------------------------------------------------------

// Parses `base` with the members of `patch` put over it; "(absent)" as a value removes a key.
static mgl_status parse_patched(const char *base, const char *patch, mgl_config *config,
                                mgl_generation *generation, mgl_error *err) {
  json_t *root = NULL;
  json_t *changes = NULL;
  const char *key;
  json_t *value;
  assert_int_equal(mgl_json_parse(base, strlen(base), "base", &root, err), MGL_OK);
  if (mgl_json_parse(patch, strlen(patch), "patch", &changes, err) != MGL_OK) {
    fail_msg("bad patch %s: %s", patch, err->text);
  }
  json_object_foreach(changes, key, value) {
    const char *text = json_string_value(value);
    if (text != NULL && strcmp(text, "(absent)") == 0) {
      assert_int_equal(json_object_del(root, key), 0);
    } else {
      assert_int_equal(json_object_set(root, key, value), 0);
    }
  }
  char *json = json_dumps(root, 0);
  assert_non_null(json);
  json_decref(root);
  json_decref(changes);
  mgl_status status = mgl_config_parse(json, strlen(json), "config.json", config, generation, err);
  mgl_free(json);
  return status;
}

typedef struct bad_case {
  const char *base;
  const char *patch;
  mgl_status status;
  const char *in_message;
} bad_case;

#define FORMAT MGL_ERR_FORMAT
#define NOT_SUPPORTED MGL_ERR_UNSUPPORTED

static const bad_case bad_cases[] = {
    // family
    {LLAMA32_1B, "{\"architectures\":[\"GemmaForCausalLM\"]}", NOT_SUPPORTED, "GemmaForCausalLM"},
    {LLAMA32_1B, "{\"architectures\":[\"GemmaForCausalLM\"]}", NOT_SUPPORTED,
     "supported are Qwen3ForCausalLM"},
    {LLAMA32_1B, "{\"architectures\":[\"LlamaForSequenceClassification\"]}", NOT_SUPPORTED,
     "LlamaForSequenceClassification"},
    {LLAMA32_1B, "{\"architectures\":\"LlamaForCausalLM\"}", FORMAT, "list of names"},
    {LLAMA32_1B, "{\"architectures\":[7]}", FORMAT, "list of names"},
    {LLAMA32_1B, "{\"model_type\":\"mistral\"}", NOT_SUPPORTED, "mistral"},
    {LLAMA32_1B, "{\"model_type\":5}", FORMAT, "model_type"},
    {LLAMA_LEAST, "{\"model_type\":null}", FORMAT, "is this the config.json of a model"},
    {LLAMA_LEAST, "{\"model_type\":\"deepseek_v3\"}", NOT_SUPPORTED, "deepseek_v3"},
    // features
    {QWEN3_0_6B, "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":3}}", NOT_SUPPORTED,
     "found 3"},
    {QWEN3_0_6B, "{\"quantization\":{\"bits\":4}}", NOT_SUPPORTED, "MLX"},
    {QWEN3_0_6B, "{\"hidden_act\":\"gelu\"}", NOT_SUPPORTED, "\"gelu\""},
    {MISTRAL_7B, "{\"attention_bias\":true}", NOT_SUPPORTED, "attention_bias"},
    {QWEN3_0_6B, "{\"mlp_bias\":true}", NOT_SUPPORTED, "mlp_bias"},
    {LLAMA32_1B, "{\"attention_bias\":1}", FORMAT, "attention_bias"},
    {LLAMA32_1B, "{\"mlp_bias\":1}", FORMAT, "mlp_bias"},
    {PHI_LEAST, "{\"hidden_act\":\"silu\"}", NOT_SUPPORTED, "expected \"gelu_new\""},
    {PHI_LEAST, "{\"qk_layernorm\":true}", NOT_SUPPORTED, "qk_layernorm"},
    {PHI_LEAST, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NOT_SUPPORTED,
     "phi model"},
    {LLAMA32_1B, "{\"partial_rotary_factor\":0.5}", NOT_SUPPORTED, "partial_rotary_factor"},
    {LLAMA32_1B, "{\"logits_scaling\":8.0}", NOT_SUPPORTED, "logits_scaling"},
    {LLAMA32_1B, "{\"residual_multiplier\":0.22}", NOT_SUPPORTED, "residual_multiplier"},
    {LLAMA32_1B, "{\"embedding_multiplier\":12}", NOT_SUPPORTED, "embedding_multiplier"},
    {LLAMA32_1B, "{\"attention_multiplier\":0.015625}", NOT_SUPPORTED, "attention_multiplier"},
    {LLAMA32_1B, "{\"final_logit_softcapping\":30.0}", NOT_SUPPORTED, "final_logit_softcapping"},
    {QWEN3_0_6B, "{\"num_experts\":128}", NOT_SUPPORTED, "num_experts"},
    {QWEN25_0_5B, "{\"is_causal\":false}", NOT_SUPPORTED, "is_causal"},
    // windows
    {MISTRAL_7B, "{\"sliding_window\":0}", FORMAT, "sliding_window"},
    {MISTRAL_7B, "{\"sliding_window\":\"wide\"}", FORMAT, "sliding_window"},
    {QWEN3_0_6B,
     "{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
     NOT_SUPPORTED, "layer 1"},
    {MISTRAL_7B,
     "{\"num_hidden_layers\":1,\"layer_types\":[\"full_attention\"],\"sliding_window\":64}",
     NOT_SUPPORTED, "layer 0: expected \"sliding_attention\""},
    {QWEN25_0_5B, "{\"use_sliding_window\":true,\"max_window_layers\":-1}", FORMAT,
     "max_window_layers"},
    {QWEN3_0_6B, "{\"layer_types\":[\"full_attention\"]}", FORMAT, "layer_types"},
    {QWEN3_0_6B, "{\"num_hidden_layers\":1,\"layer_types\":[\"linear_attention\"]}", NOT_SUPPORTED,
     "linear_attention"},
    // sizes
    {LLAMA_LEAST, "{\"hidden_size\":\"(absent)\"}", FORMAT, "\"hidden_size\" is missing"},
    {LLAMA_LEAST, "{\"intermediate_size\":null}", FORMAT, "\"intermediate_size\" is missing"},
    {LLAMA_LEAST, "{\"num_hidden_layers\":0}", FORMAT, "expected 1 to 1024, found 0"},
    {LLAMA_LEAST, "{\"num_hidden_layers\":1000000}", FORMAT, "found 1000000"},
    {LLAMA_LEAST, "{\"num_attention_heads\":-4}", FORMAT, "found -4"},
    {LLAMA_LEAST, "{\"vocab_size\":9223372036854775807}", FORMAT, "vocab_size"},
    {LLAMA_LEAST, "{\"vocab_size\":\"100\"}", FORMAT, "vocab_size"},
    {LLAMA_LEAST, "{\"hidden_size\":64.5}", FORMAT, "hidden_size"},
    {LLAMA_LEAST, "{\"hidden_size\":66}", FORMAT, "multiple of num_attention_heads"},
    {LLAMA_LEAST, "{\"num_key_value_heads\":3}", FORMAT, "multiple of num_key_value_heads (3)"},
    {LLAMA_LEAST, "{\"num_key_value_heads\":0}", FORMAT, "num_key_value_heads"},
    {QWEN25_0_5B, "{\"num_key_value_heads\":\"(absent)\"}", FORMAT, "(32, by default)"},
    {LLAMA_LEAST, "{\"head_dim\":15}", FORMAT, "even"},
    {LLAMA_LEAST, "{\"hidden_size\":60}", FORMAT, "even"},
    {LLAMA_LEAST, "{\"hidden_size\":65536}", FORMAT, "head_dim"},
    {LLAMA_LEAST, "{\"head_dim\":4096}", FORMAT, "head_dim"},
    {LLAMA_LEAST, "{\"max_position_embeddings\":1000000000}", FORMAT, "max_position_embeddings"},
    {LLAMA_LEAST, "{\"rms_norm_eps\":0}", FORMAT, "rms_norm_eps"},
    {LLAMA_LEAST, "{\"rms_norm_eps\":\"small\"}", FORMAT, "rms_norm_eps"},
    {LLAMA_LEAST, "{\"tie_word_embeddings\":\"yes\"}", FORMAT, "tie_word_embeddings"},
    {LLAMA_LEAST, "{\"torch_dtype\":\"float8_e4m3fn\"}", NOT_SUPPORTED, "float8_e4m3fn"},
    {LLAMA_LEAST, "{\"dtype\":16}", FORMAT, "\"dtype\""},
    // rope
    {LLAMA32_1B, "{\"rope_theta\":0}", FORMAT, "rope_theta"},
    {LLAMA32_1B, "{\"rope_theta\":\"big\"}", FORMAT, "rope_theta"},
    {LLAMA32_1B, "{\"rope_scaling\":8}", FORMAT, "rope_scaling"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"factor\":2}}", FORMAT, "\"rope_type\" is missing"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"rope_type\":\"proportional\",\"factor\":4}}", NOT_SUPPORTED,
     "rope type \"proportional\" is not supported"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":0.5}}", FORMAT,
     "\"factor\""},
    {LLAMA32_1B,
     "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_slow\":32}}",
     FORMAT, "beta_fast"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"type\":\"dynamic\"}}", FORMAT, "\"factor\" is missing"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"type\":\"longrope\"}}", FORMAT,
     "\"short_factor\": expected a list of 32 numbers"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2]}}", FORMAT,
     "found a list of 2"},
    {PHI3_LEAST,
     "{\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2],\"long_factor\":[1,0]},"
     "\"partial_rotary_factor\":0.2}",
     FORMAT, "\"long_factor\": entry 1"},
    {PHI3_LEAST,  // Phi3Config looks for it at the top only
     "{\"rope_scaling\":{\"type\":\"longrope\",\"original_max_position_embeddings\":1024}}", FORMAT,
     "is 1024, but a phi3 model has it at the top, or else 4096"},
    {PHI3_LEAST, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NOT_SUPPORTED, "phi3"},
    {PHI3_LEAST, "{\"partial_rotary_factor\":0.05}", FORMAT, "partial_rotary_factor"},
    {PHI3_LEAST, "{\"partial_rotary_factor\":0.75}", FORMAT, "is even"},
    {PHI3_LEAST, "{\"partial_rotary_factor\":2}", FORMAT, "partial_rotary_factor"},
    {PHI3_LEAST,
     "{\"partial_rotary_factor\":1,\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", FORMAT,
     "given twice"},
    {PHI3_LEAST, "{\"attention_bias\":true}", NOT_SUPPORTED, "attention_bias"},
    {PHI3_LEAST, "{\"mlp_bias\":true}", NOT_SUPPORTED, "mlp_bias"},
    {PHI3_LEAST, "{\"lm_head_bias\":true}", NOT_SUPPORTED, "lm_head_bias"},
    {LLAMA32_1B, "{\"partial_rotary_factor\":0.5}", NOT_SUPPORTED, "partial_rotary_factor"},
    {LLAMA32_1B,
     "{\"rope_scaling\":{\"type\":\"mrope\",\"rope_type\":\"default\",\"mrope_section\":[1]}}",
     FORMAT, "contradicts"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"type\":\"linear\"}}", FORMAT, "\"factor\" is missing"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", FORMAT, "factor"},
    {LLAMA32_1B, "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", FORMAT,
     "\"low_freq_factor\" is missing"},
    {LLAMA32_1B,
     "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
     "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
     FORMAT, "high_freq_factor"},
    {LLAMA32_1B,
     "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
     "\"high_freq_factor\":4}}",
     FORMAT, "\"original_max_position_embeddings\" is missing"},
    {LLAMA32_1B, "{\"original_max_position_embeddings\":4096}", FORMAT, "given twice"},
    {LLAMA31_8B, "{\"rope_theta\":10000}", FORMAT, "\"rope_theta\" is given twice"},
    {LLAMA31_8B, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", FORMAT,
     "contradict each other"},
    {QWEN3_8B, "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
     NOT_SUPPORTED, "per layer type"},
    {QWEN3_8B, "{\"rope_parameters\":{\"rope_theta\":1e6,\"partial_rotary_factor\":0.5}}",
     NOT_SUPPORTED, "partial_rotary_factor"},
    // token ids
    {LLAMA_LEAST, "{\"eos_token_id\":100}", FORMAT, "below vocab_size (100), found 100"},
    {LLAMA_LEAST, "{\"eos_token_id\":[1,-2]}", FORMAT, "found -2"},
    {LLAMA_LEAST, "{\"eos_token_id\":\"</s>\"}", FORMAT, "eos_token_id"},
    {LLAMA_LEAST, "{\"eos_token_id\":[[1]]}", FORMAT, "eos_token_id"},
    {LLAMA_LEAST, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", MGL_ERR_LIMIT,
     "at most 16 ids, found 17"},
    {LLAMA_LEAST, "{\"bos_token_id\":4294967297}", FORMAT, "bos_token_id"},
};

static void test_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bad_cases / sizeof bad_cases[0]; i++) {
    const bad_case *c = &bad_cases[i];
    mgl_config config;
    mgl_generation generation;
    mgl_error err = {0};
    int64_t live = mgl_alloc_live();
    mgl_status status = parse_patched(c->base, c->patch, &config, &generation, &err);
    if (status != c->status || strstr(err.text, c->in_message) == NULL ||
        strstr(err.text, "config.json: ") != err.text) {
      fail_msg("%s: status %d, message \"%s\", expected %d and \"%s\"", c->patch, status, err.text,
               c->status, c->in_message);
    }
    assert_int_equal(mgl_alloc_live(), live);
  }
}

static void test_broken_json(void **state) {
  (void)state;
  static const struct {
    const char *json;
    const char *in_message;
  } cases[] = {
      {"", "expected JSON"},
      {"{", "expected JSON"},
      {"[]", "expected a JSON object"},
      {"null", "expected a JSON object"},
      {"{\"vocab_size\":1,\"vocab_size\":2}", "duplicate"},
      {"{} {}", "expected JSON"},
      {"{\"a\":\"\xff\"}", "expected JSON"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_config config;
    mgl_generation generation;
    mgl_error err = {0};
    const char *json = cases[i].json;
    assert_int_not_equal(
        mgl_config_parse(json, strlen(json), "config.json", &config, &generation, &err), MGL_OK);
    if (strstr(err.text, cases[i].in_message) == NULL) {
      fail_msg("%s: %s", json, err.text);
    }
    assert_int_not_equal(mgl_generation_parse(json, strlen(json), "g.json", 10, &generation, &err),
                         MGL_OK);
  }
}

// What looks suspicious and is fine.
static void test_accepted(void **state) {
  (void)state;
  static const struct {
    const char *base;
    const char *patch;
  } cases[] = {
      {LLAMA32_1B, "{\"pretraining_tp\":4,\"attention_dropout\":0.1,\"unknown\":{}}"},
      {LLAMA32_1B, "{\"sliding_window\":16}"},  // LlamaConfig has no window
      {LLAMA32_1B, "{\"logits_scaling\":1.0,\"final_logit_softcapping\":null}"},
      {LLAMA32_1B, "{\"original_max_position_embeddings\":8192}"},
      {LLAMA32_1B, "{\"architectures\":null}"},
      {LLAMA32_1B, "{\"model_type\":null}"},
      {LLAMA32_1B, "{\"quantization_config\":null,\"rope_parameters\":{}}"},
      {LLAMA32_1B, "{\"hidden_size\":2056}"},  // head_dim is given
      {LLAMA31_8B, "{\"rope_theta\":500000}"},
      {MISTRAL_7B, "{\"sliding_window\":32768}"},
      {MISTRAL_7B, "{\"sliding_window\":\"(absent)\",\"max_position_embeddings\":4096}"},
      {QWEN25_0_5B, "{\"attention_bias\":true}"},  // Qwen2 ignores the key
      {QWEN25_0_5B, "{\"use_sliding_window\":true,\"max_window_layers\":24,\"sliding_window\":8}"},
      {QWEN25_0_5B, "{\"use_sliding_window\":true,\"sliding_window\":null}"},
      {QWEN25_0_5B, "{\"num_key_value_heads\":null}"},
      {QWEN3_0_6B,
       "{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\","
       "\"full_attention\"],\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":"
       "0}"},
      {QWEN3_0_6B,
       "{\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"],"
       "\"use_sliding_window\":true,\"sliding_window\":40960}"},
      {LLAMA_LEAST, "{\"torch_dtype\":\"torch.float32\"}"},
      {LLAMA_LEAST, "{\"vocab_size\":1}"},  // too small for the default bos and eos ids
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_config config;
    mgl_generation generation;
    mgl_error err = {0};
    if (parse_patched(cases[i].base, cases[i].patch, &config, &generation, &err) != MGL_OK) {
      fail_msg("%s: %s", cases[i].patch, err.text);
    }
  }
}

static mgl_config parse_good(const char *base, const char *patch) {
  mgl_config config;
  mgl_generation generation;
  mgl_error err = {0};
  if (parse_patched(base, patch, &config, &generation, &err) != MGL_OK) {
    fail_msg("%s: %s", patch, err.text);
  }
  return config;
}

// The windows of the layers, with blanks between them; 0: none.
static void assert_windows(const mgl_config *config, const char *expected) {
  char text[256] = "";
  for (uint32_t i = 0; i < config->layer_count; i++) {
    size_t used = strlen(text);
    (void)snprintf(text + used, sizeof text - used, i == 0 ? "%u" : " %u",
                   mgl_config_window(config, i));
  }
  assert_string_equal(text, expected);
}

static void test_windows(void **state) {
  (void)state;
#define LAYERS_3 "{\"num_hidden_layers\":3,"
  mgl_config c = parse_good(MISTRAL_7B, LAYERS_3 "\"sliding_window\":4096}");
  assert_windows(&c, "4096 4096 4096");
  c = parse_good(MISTRAL_7B, LAYERS_3 "\"sliding_window\":\"(absent)\"}");
  assert_windows(&c, "4096 4096 4096");
  c = parse_good(MISTRAL_7B, LAYERS_3 "\"sliding_window\":32768}");
  assert_windows(&c, "0 0 0");  // as long as the context
  c = parse_good(LLAMA32_1B, LAYERS_3 "\"sliding_window\":16}");
  assert_windows(&c, "0 0 0");
  c = parse_good(PHI3_LEAST, LAYERS_3 "\"sliding_window\":2047}");
  assert_windows(&c, "2047 2047 2047");
  c = parse_good(PHI3_LEAST, "{\"num_hidden_layers\":3}");
  assert_windows(&c, "0 0 0");
#define QWEN_ON LAYERS_3 "\"use_sliding_window\":true,\"sliding_window\":100,"
  c = parse_good(QWEN25_0_5B, QWEN_ON "\"max_window_layers\":1}");
  assert_windows(&c, "0 100 100");
  c = parse_good(QWEN25_0_5B, QWEN_ON "\"max_window_layers\":\"(absent)\"}");
  assert_windows(&c, "0 0 0");  // 28 layers are full
  c = parse_good(QWEN25_0_5B, LAYERS_3 "\"max_window_layers\":0,\"sliding_window\":100}");
  assert_windows(&c, "0 0 0");
  c = parse_good(QWEN3_0_6B, QWEN_ON
                 "\"layer_types\":[\"sliding_attention\",\"full_attention\","
                 "\"sliding_attention\"]}");
  assert_windows(&c, "100 0 100");
#undef LAYERS_3
#undef QWEN_ON
}

static void test_biases(void **state) {
  (void)state;
  mgl_config c = parse_good(LLAMA_LEAST, "{\"attention_bias\":true}");
  assert_true(c.qkv_bias && c.output_bias && !c.mlp_bias);
  c = parse_good(LLAMA_LEAST, "{\"mlp_bias\":true}");
  assert_true(!c.qkv_bias && !c.output_bias && c.mlp_bias);
  c = parse_good(QWEN3_0_6B, "{\"attention_bias\":true}");
  assert_true(c.qkv_bias && c.output_bias && !c.mlp_bias);
  c = parse_good(QWEN25_0_5B, "{\"attention_bias\":false}");
  assert_true(c.qkv_bias && !c.output_bias && !c.mlp_bias && !c.head_bias);
  c = parse_good(PHI_LEAST, "{\"layer_norm_eps\":0.5}");
  assert_true(c.qkv_bias && c.output_bias && c.mlp_bias && c.head_bias);
  assert_true(c.rms_norm_eps == 0.5 && c.rotary_dim == 8 && c.head_dim == 16);
  assert_true(c.context_tokens == 2048 && c.bos_id == 1 && c.kv_head_count == 4);
  c = parse_good(PHI_LEAST, "{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}");
  assert_true(c.rotary_dim == 4 && c.rms_norm_eps == 1e-5);
}

// What yarn and dynamic make of the context, and the factors that they and longrope derive.
static void test_ropes(void **state) {
  (void)state;
  mgl_config c = parse_good(QWEN25_0_5B,
                            "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
                            "\"original_max_position_embeddings\":32768}}");
  assert_int_equal(c.rope.kind, MGL_ROPE_YARN);
  assert_int_equal(c.context_tokens, 131072);
  assert_true(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.truncate);
  assert_true(fabs(c.rope.attention_factor - 1.138629436111989) < 1e-15);
  c = parse_good(LLAMA_LEAST,
                 "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":40,\"mscale\":0.7,"
                 "\"mscale_all_dim\":1.0,\"beta_fast\":16,\"truncate\":false,"
                 "\"original_max_position_embeddings\":1024}}");
  assert_int_equal(c.context_tokens, 40960);
  assert_true(c.rope.beta_fast == 16 && !c.rope.truncate);
  assert_true(fabs(c.rope.attention_factor - (0.07 * log(40) + 1) / (0.1 * log(40) + 1)) < 1e-15);
  c = parse_good(LLAMA_LEAST, "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}");
  assert_int_equal(c.context_tokens, 4096);
  assert_true(c.rope.original_context == 2048);
  c = parse_good(PHI3_LEAST,
                 "{\"partial_rotary_factor\":0.2,\"max_position_embeddings\":131072,"
                 "\"original_max_position_embeddings\":4096,"
                 "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1.5],"
                 "\"long_factor\":[2,60]}}");
  assert_int_equal(c.rope.kind, MGL_ROPE_LONGROPE);
  assert_int_equal(c.rotary_dim, 4);
  assert_int_equal(c.context_tokens, 131072);
  assert_true(c.rope.short_factors[1] == 1.5f && c.rope.long_factors[1] == 60);
  assert_true(fabs(c.rope.attention_factor - 1.1902380714238083) < 1e-15);
  assert_true(c.fused_weights && c.rms_norm_eps == 1e-5);
}

static void test_absent_and_null_differ(void **state) {
  (void)state;
  mgl_config config;
  mgl_generation generation;
  mgl_error err = {0};
  assert_int_equal(
      parse_patched(QWEN25_0_5B, "{\"num_key_value_heads\":null}", &config, &generation, &err),
      MGL_OK);
  assert_int_equal(config.kv_head_count, 14);
  assert_int_equal(parse_patched(MISTRAL_7B, "{\"num_key_value_heads\":\"(absent)\"}", &config,
                                 &generation, &err),
                   MGL_OK);
  assert_int_equal(config.kv_head_count, 8);
  assert_int_equal(
      parse_patched(QWEN3_0_6B, "{\"head_dim\":\"(absent)\"}", &config, &generation, &err), MGL_OK);
  assert_int_equal(config.head_dim, 128);  // not 1024 / 16
  assert_int_equal(parse_patched(LLAMA_LEAST, "{\"eos_token_id\":null,\"bos_token_id\":null}",
                                 &config, &generation, &err),
                   MGL_OK);
  assert_int_equal(generation.eos_count, 0);
  assert_int_equal(config.bos_id, -1);
  assert_int_equal(parse_patched(LLAMA_LEAST, "{\"vocab_size\":2}", &config, &generation, &err),
                   MGL_OK);
  assert_int_equal(generation.eos_count, 0);
  assert_int_equal(config.bos_id, 1);
  assert_int_equal(parse_patched(LLAMA_LEAST,
                                 "{\"rope_scaling\":{\"type\":\"linear\","
                                 "\"factor\":2.5},\"torch_dtype\":\"float32\"}",
                                 &config, &generation, &err),
                   MGL_OK);
  assert_int_equal(config.rope.kind, MGL_ROPE_LINEAR);
  assert_true(config.rope.factor == 2.5);
  assert_int_equal(config.dtype, MGL_DTYPE_F32);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_public_models), cmocka_unit_test(test_refused),
      cmocka_unit_test(test_broken_json),   cmocka_unit_test(test_accepted),
      cmocka_unit_test(test_windows),       cmocka_unit_test(test_biases),
      cmocka_unit_test(test_ropes),         cmocka_unit_test(test_absent_and_null_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
