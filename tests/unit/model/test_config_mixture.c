// What config.json says of mixtures of experts: the keys of real models, defaults, and what is
// refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/config.h"

// Sizes as those of Qwen3-30B-A3B; `rest` begins with a comma.
#define CONFIG(architecture, layers, rest)                                  \
  "{\"architectures\":[\"" architecture                                     \
  "\"],\"hidden_size\":2048,\"intermediate_size\":6144,"                    \
  "\"num_hidden_layers\":" layers                                           \
  ",\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128," \
  "\"vocab_size\":151936" rest "}"
#define QWEN3(rest) CONFIG("Qwen3MoeForCausalLM", "48", rest)
#define QWEN2(rest) CONFIG("Qwen2MoeForCausalLM", "24", rest)
#define MIXTRAL(rest) CONFIG("MixtralForCausalLM", "32", rest)
#define GLM4(rest) CONFIG("Glm4MoeForCausalLM", "46", rest)
#define OLMOE(rest) CONFIG("OlmoeForCausalLM", "16", rest)

#define YARN                                                                      \
  ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0," \
  "\"beta_slow\":1.0,\"truncate\":false,\"original_max_position_embeddings\":4096}"
#define OSS(rest) CONFIG("GptOssForCausalLM", "24", YARN rest)

static mgl_status parse(const char *json, mgl_config *config, mgl_error *err) {
  mgl_generation generation;
  return mgl_config_parse(json, strlen(json), "config.json", config, &generation, err);
}

static mgl_config parsed(const char *json) {
  mgl_config config;
  mgl_error err = {0};
  if (parse(json, &config, &err) != MGL_OK) {
    fail_msg("%s: %s", json, err.text);
  }
  return config;
}

static void models_as_the_hub_has_them(void **state) {
  (void)state;
  mgl_config c = parsed(
      QWEN3(",\"num_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":768,"
            "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"
            "\"router_aux_loss_coef\":0.001,\"output_router_logits\":false,"
            "\"use_sliding_window\":false,\"sliding_window\":null,\"max_window_layers\":48"));
  assert_int_equal(c.family, MGL_FAMILY_QWEN3_MOE);
  assert_true(c.qk_norm && !c.qkv_bias && c.window_tokens == 0);
  assert_int_equal(c.mixture.expert_count, 128);
  assert_int_equal(c.mixture.slots, 8);
  assert_int_equal(c.mixture.inner_size, 768);
  assert_int_equal(c.mixture.shared_size, 0);
  assert_int_equal(c.mixture.scores, MGL_SCORES_SOFTMAX);
  assert_true(c.mixture.renormalise && c.mixture.scale == 1);
  for (uint32_t i = 0; i < 48; i++) {
    assert_true(mgl_config_is_mixture(&c, i));
  }
  c =
      parsed(QWEN2(",\"num_experts\":60,\"num_experts_per_tok\":4,\"moe_intermediate_size\":1408,"
                   "\"shared_expert_intermediate_size\":5632,\"norm_topk_prob\":false"));
  assert_int_equal(c.family, MGL_FAMILY_QWEN2_MOE);
  assert_true(c.qkv_bias && !c.mixture.renormalise && c.mixture.shared_gate);
  assert_int_equal(c.mixture.shared_size, 5632);
  c = parsed(MIXTRAL(",\"num_local_experts\":8,\"num_experts_per_tok\":2,\"sliding_window\":null"));
  assert_int_equal(c.family, MGL_FAMILY_MIXTRAL);
  assert_int_equal(c.mixture.inner_size, 6144);
  assert_true(c.mixture.renormalise && c.mixture.expert_count == 8 && c.mixture.slots == 2);
}

static void absent_keys(void **state) {
  (void)state;
  mgl_mixture m = parsed(QWEN3("")).mixture;
  assert_true(m.expert_count == 128 && m.slots == 8 && m.inner_size == 768 && !m.renormalise);
  m = parsed(QWEN2("")).mixture;
  assert_true(m.expert_count == 60 && m.slots == 4 && m.inner_size == 1408 &&
              m.shared_size == 5632);
  mgl_config c = parsed(MIXTRAL(""));
  m = c.mixture;
  assert_true(m.expert_count == 8 && m.slots == 2 && m.shared_size == 0);
  assert_true(c.rope.theta == 1e6);
  c = parsed(MIXTRAL(",\"rope_scaling\":null,\"rope_theta\":10000"));
  assert_true(c.rope.theta == 10000);
  // Either name of their number.
  m = parsed(QWEN3(",\"num_local_experts\":16")).mixture;
  assert_int_equal(m.expert_count, 16);
  m = parsed(QWEN3(",\"num_local_experts\":16,\"num_experts\":16")).mixture;
  assert_int_equal(m.expert_count, 16);
}

static void layers_without_experts(void **state) {
  (void)state;
  mgl_config c = parsed(QWEN3(",\"decoder_sparse_step\":2,\"mlp_only_layers\":[3,47]"));
  for (uint32_t i = 0; i < 48; i++) {
    assert_int_equal(mgl_config_is_mixture(&c, i), i % 2 == 1 && i != 3 && i != 47);
  }
}

static void keys_of_deepseek_s_router(void **state) {
  (void)state;
  mgl_config c = parsed(
      GLM4(",\"n_routed_experts\":160,\"num_experts_per_tok\":8,\"moe_intermediate_size\":1536,"
           "\"n_shared_experts\":2,\"first_k_dense_replace\":3,\"n_group\":4,\"topk_group\":2,"
           "\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,\"use_qk_norm\":true,"
           "\"attention_bias\":true,\"partial_rotary_factor\":0.5,\"num_nextn_predict_layers\":1"));
  assert_int_equal(c.family, MGL_FAMILY_GLM4_MOE);
  assert_true(c.qk_norm && !c.whole_qk_norm && c.qkv_bias && !c.output_bias);
  assert_int_equal(c.rotary_dim, 64);
  assert_true(c.mixture.expert_count == 160 && c.mixture.slots == 8);
  assert_int_equal(c.mixture.shared_size, 2 * 1536);
  assert_false(c.mixture.shared_gate);
  assert_int_equal(c.mixture.scores, MGL_SCORES_SIGMOID);
  assert_true(c.mixture.choice_bias && c.mixture.renormalise && c.mixture.scale == 2.5);
  assert_true(c.mixture.groups == 4 && c.mixture.top_groups == 2);
  for (uint32_t i = 0; i < 46; i++) {
    assert_int_equal(mgl_config_is_mixture(&c, i), i >= 3);
  }
  c = parsed(GLM4(""));
  assert_true(c.mixture.expert_count == 128 && c.mixture.shared_size == 1408 && !c.qk_norm);
  assert_true(mgl_config_is_mixture(&c, 1) && !mgl_config_is_mixture(&c, 0) && c.rotary_dim == 64);
  c = parsed(OLMOE(",\"clip_qkv\":null"));
  assert_true(c.qk_norm && c.whole_qk_norm && c.mixture.expert_count == 64);
  assert_true(c.mixture.inner_size == 6144 && !c.mixture.renormalise);
}

static void gpt_oss(void **state) {
  (void)state;
  mgl_config c = parsed(OSS(
      ",\"num_local_experts\":32,\"num_experts_per_tok\":4,\"experts_per_token\":4,"
      "\"attention_bias\":true,\"swiglu_limit\":7.0,\"sliding_window\":128,\"rope_theta\":150000,"
      "\"initial_context_length\":4096,\"quantization_config\":{\"quant_method\":\"mxfp4\","
      "\"modules_to_not_convert\":[\"lm_head\"]}"));
  assert_int_equal(c.family, MGL_FAMILY_GPT_OSS);
  assert_true(c.sinks && c.qkv_bias && c.output_bias && !c.qk_norm && !c.mlp_bias);
  assert_true(c.mixture.expert_count == 32 && c.mixture.slots == 4);
  assert_int_equal(c.mixture.inner_size, 6144);
  assert_int_equal(c.mixture.scores, MGL_SCORES_SOFTMAX_OF_CHOSEN);
  assert_true(c.mixture.router_bias && c.mixture.expert_biases && c.mixture.limit == 7);
  assert_false(c.mixture.renormalise);
  assert_int_equal(c.quantization.method, MGL_QUANT_MXFP4);
  assert_true(c.rope.kind == MGL_ROPE_YARN && !c.rope.truncate && c.rope.theta == 150000);
  for (uint32_t i = 0; i < 24; i++) {
    assert_int_equal(mgl_config_window(&c, i), i % 2 == 0 ? 128 : 0);
  }
  c = parsed(OSS(""));  // as GptOssConfig has it where keys are absent
  assert_true(c.mixture.expert_count == 128 && c.mixture.slots == 4 && c.mixture.limit == 7);
  assert_true(c.sinks && c.output_bias && c.rope.theta == 150000);
  assert_int_equal(mgl_config_window(&c, 22), 128);
  assert_int_equal(mgl_config_window(&c, 23), 0);
  c = parsed(OSS(",\"experts_per_token\":2,\"attention_bias\":false,\"sliding_window\":null"));
  assert_true(c.mixture.slots == 2 && !c.qkv_bias && !c.output_bias && c.window_tokens == 0);
}

static void refused(void **state) {
  (void)state;
  static const struct {
    const char *json;
    mgl_status status;
    const char *in_message;
  } cases[] = {
      {QWEN3(",\"num_experts\":4,\"num_experts_per_tok\":5"), MGL_ERR_FORMAT,
       "\"num_experts_per_tok\": expected at most the 4 experts of a layer, found 5"},
      {QWEN3(",\"num_experts\":4,\"num_experts_per_tok\":4294967295"), MGL_ERR_FORMAT,
       "found 4294967295"},
      {QWEN3(",\"num_experts_per_tok\":0"), MGL_ERR_FORMAT, "num_experts_per_tok"},
      {QWEN3(",\"num_experts\":0"), MGL_ERR_FORMAT, "num_experts"},
      {QWEN3(",\"num_experts\":1025"), MGL_ERR_FORMAT, "num_experts"},
      {QWEN3(",\"num_experts\":\"8\""), MGL_ERR_FORMAT, "num_experts"},
      {QWEN3(",\"num_experts\":16,\"num_local_experts\":8"), MGL_ERR_FORMAT,
       "\"num_experts\" is 16 and \"num_local_experts\" 8"},
      {QWEN3(",\"moe_intermediate_size\":0"), MGL_ERR_FORMAT, "moe_intermediate_size"},
      {QWEN3(",\"norm_topk_prob\":1"), MGL_ERR_FORMAT, "norm_topk_prob"},
      {QWEN3(",\"decoder_sparse_step\":0"), MGL_ERR_FORMAT, "decoder_sparse_step"},
      {QWEN3(",\"mlp_only_layers\":7"), MGL_ERR_FORMAT, "mlp_only_layers"},
      {QWEN3(",\"mlp_only_layers\":[48]"), MGL_ERR_FORMAT, "below num_hidden_layers (48)"},
      {QWEN3(",\"mlp_only_layers\":[-1]"), MGL_ERR_FORMAT, "mlp_only_layers"},
      {QWEN3(",\"mlp_only_layers\":[0.5]"), MGL_ERR_FORMAT, "mlp_only_layers"},
      {QWEN3(",\"use_sliding_window\":true"), MGL_ERR_UNSUPPORTED, "use_sliding_window"},
      {OLMOE(",\"clip_qkv\":8.0"), MGL_ERR_UNSUPPORTED, "clip_qkv"},
      {OLMOE(",\"use_qk_norm\":true"), MGL_ERR_UNSUPPORTED, "use_qk_norm"},
      {OSS(",\"swiglu_alpha\":1.5"), MGL_ERR_UNSUPPORTED,
       "\"swiglu_alpha\" is supported only as 1.702"},
      {OSS(",\"swiglu_limit\":0"), MGL_ERR_FORMAT, "swiglu_limit"},
      {OSS(",\"num_experts_per_tok\":4,\"experts_per_token\":2"), MGL_ERR_FORMAT,
       "\"experts_per_token\" is 2 and \"num_experts_per_tok\" 4"},
      {OSS(",\"num_local_experts\":3"), MGL_ERR_FORMAT,
       "at most the 3 experts of a layer, found 4"},
      {OSS(",\"quantization_config\":{\"quant_method\":\"fp8\"}"), MGL_ERR_UNSUPPORTED,
       "\"fp8\" is not supported for model_type \"gpt_oss\": expected \"mxfp4\""},
      {QWEN3(",\"quantization_config\":{\"quant_method\":\"mxfp4\"}"), MGL_ERR_UNSUPPORTED,
       "\"mxfp4\" is not supported for model_type \"qwen3_moe\""},
      {OSS(",\"mlp_bias\":true"), MGL_ERR_UNSUPPORTED, "mlp_bias"},
      {OSS(",\"layer_types\":[\"chunked_attention\"]"), MGL_ERR_FORMAT, "layer_types"},
      {CONFIG("GptOssForCausalLM", "24", ""), MGL_ERR_FORMAT, "\"rope_scaling\" is missing"},
      {GLM4(",\"n_group\":3"), MGL_ERR_FORMAT, "n_group"},
      {GLM4(",\"n_group\":32,\"topk_group\":1"), MGL_ERR_FORMAT, "n_group"},
      {GLM4(",\"n_group\":4,\"topk_group\":5"), MGL_ERR_FORMAT, "topk_group"},
      {GLM4(",\"n_shared_experts\":1000000000"), MGL_ERR_FORMAT, "n_shared_experts"},
      {GLM4(",\"routed_scaling_factor\":0"), MGL_ERR_FORMAT, "routed_scaling_factor"},
      {QWEN2(",\"shared_expert_intermediate_size\":0"), MGL_ERR_FORMAT,
       "shared_expert_intermediate_size"},
      {"{\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":65536,"
       "\"intermediate_size\":262144,\"num_hidden_layers\":1,\"num_attention_heads\":512,"
       "\"num_key_value_heads\":8,\"vocab_size\":100}",
       MGL_ERR_LIMIT, "an expert of 262144 x 65536 weights"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_config config;
    mgl_error err = {0};
    mgl_status status = parse(cases[i].json, &config, &err);
    if (status != cases[i].status || strstr(err.text, cases[i].in_message) == NULL ||
        strstr(err.text, "config.json: ") != err.text) {
      fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", cases[i].json, (int)status, err.text,
               (int)cases[i].status, cases[i].in_message);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(models_as_the_hub_has_them),
      cmocka_unit_test(absent_keys),
      cmocka_unit_test(layers_without_experts),
      cmocka_unit_test(keys_of_deepseek_s_router),
      cmocka_unit_test(gpt_oss),
      cmocka_unit_test(refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
