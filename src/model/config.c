// Reading config.json and generation_config.json into mgl_config and mgl_generation.
//
// One table row per family holds what the family's transformers configuration class assumes about
// absent keys; the readers below then go through the file subject by subject (family, sizes, rope
// in config_rope.c, attention window, token ids). What changes results and is not implemented is
// refused by the name of its key. Where transformers 4 and 5 would read the same file differently
// (a rope theta or type given twice with different values), the file is refused instead of
// guessing. Rejected: defaults for the five sizes that shape every tensor; a config without them is
// damaged, not terse.
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "model/config_parts.h"

// Which layers a sliding window is of.
typedef enum window_rule {
  WINDOW_NEVER,     // the family has none, and its key means nothing
  WINDOW_OF_ALL,    // of every layer, unless sliding_window is null
  WINDOW_SWITCHED,  // where use_sliding_window is true: from layer max_window_layers on, or as
                    // layer_types says
  WINDOW_IN_TURN,   // of every other layer from the first on, or as layer_types says
} window_rule;

typedef struct family_info {
  const char *name;  // also its model_type
  const char *architecture;
  uint32_t default_kv_head_count;   // 0: the head count
  uint32_t default_head_dim;        // 0: hidden size / head count
  uint32_t default_context_tokens;  // max_position_embeddings
  int32_t default_bos_id;           // -1: none
  int32_t default_eos_id;           // -1: none
  double default_eps;
  const char *eps_key;     // NULL: rms_norm_eps
  const char *activation;  // hidden_act; NULL: silu
  window_rule window;
  uint32_t default_window;  // sliding_window; 0: none
  bool qkv_bias;
  bool has_qkv_bias;  // the key means something
  bool
      has_attention_bias;  // the key means something: Q, K, V and output have biases where it is true
  bool has_mlp_bias;
  bool all_biases;      // of every linear, whatever keys say
  bool no_output_bias;  // whatever attention_bias says
  bool default_attention_bias;
  bool sinks;
  bool qk_norm;
  bool whole_qk_norm;
  bool has_qk_norm;  // the key use_qk_norm means something
  bool fused_weights;
  const mgl_mixture_rule *mixture;  // NULL: there are no experts
} family_info;

static const mgl_mixture_rule qwen3_moe = {.default_expert_count = 128,
                                           .default_slots = 8,
                                           .default_inner_size = 768,
                                           .has_dense_layers = true};
static const mgl_mixture_rule qwen2_moe = {.default_expert_count = 60,
                                           .default_slots = 4,
                                           .default_inner_size = 1408,
                                           .default_shared_size = 5632,
                                           .has_dense_layers = true};
static const mgl_mixture_rule mixtral = {
    .default_expert_count = 8, .default_slots = 2, .always_renormalises = true};
static const mgl_mixture_rule olmoe = {.default_expert_count = 64, .default_slots = 8};
static const mgl_mixture_rule glm4_moe = {.default_expert_count = 128,
                                          .default_slots = 8,
                                          .default_inner_size = 1408,
                                          .default_renormalise = true,
                                          .is_deepseek = true};
static const mgl_mixture_rule gpt_oss = {.default_expert_count = 128,
                                         .default_slots = 4,
                                         .is_gpt_oss = true,
                                         .always_renormalises = true};

// The defaults are those of transformers' Qwen3Config, Qwen2Config, LlamaConfig, MistralConfig,
// Phi3Config and PhiConfig (the same in 4.57 and 5), Qwen3MoeConfig, Qwen2MoeConfig,
// MixtralConfig, OlmoeConfig, Glm4MoeConfig and GptOssConfig (of 5).
static const family_info families[MGL_FAMILY_COUNT] = {
    [MGL_FAMILY_QWEN3] = {.name = "qwen3",
                          .architecture = "Qwen3ForCausalLM",
                          .default_kv_head_count = 32,
                          .default_head_dim = 128,
                          .default_context_tokens = 32768,
                          .default_bos_id = -1,
                          .default_eos_id = -1,
                          .default_eps = 1e-6,
                          .window = WINDOW_SWITCHED,
                          .default_window = 4096,
                          .has_attention_bias = true,
                          .qk_norm = true},
    [MGL_FAMILY_QWEN2] = {.name = "qwen2",
                          .architecture = "Qwen2ForCausalLM",
                          .default_kv_head_count = 32,
                          .default_context_tokens = 32768,
                          .default_bos_id = -1,
                          .default_eos_id = -1,
                          .default_eps = 1e-6,
                          .window = WINDOW_SWITCHED,
                          .default_window = 4096,
                          .qkv_bias = true},
    [MGL_FAMILY_LLAMA] = {.name = "llama",
                          .architecture = "LlamaForCausalLM",
                          .default_context_tokens = 2048,
                          .default_bos_id = 1,
                          .default_eos_id = 2,
                          .default_eps = 1e-6,
                          .has_attention_bias = true,
                          .has_mlp_bias = true},
    [MGL_FAMILY_MISTRAL] = {.name = "mistral",
                            .architecture = "MistralForCausalLM",
                            .default_kv_head_count = 8,
                            .default_context_tokens = 131072,
                            .default_bos_id = 1,
                            .default_eos_id = 2,
                            .default_eps = 1e-6,
                            .window = WINDOW_OF_ALL,
                            .default_window = 4096},
    [MGL_FAMILY_PHI3] = {.name = "phi3",
                         .architecture = "Phi3ForCausalLM",
                         .default_context_tokens = 4096,
                         .default_bos_id = 1,
                         .default_eos_id = 32000,
                         .default_eps = 1e-5,
                         .window = WINDOW_OF_ALL,
                         .fused_weights = true},
    [MGL_FAMILY_PHI] = {.name = "phi",
                        .architecture = "PhiForCausalLM",
                        .default_context_tokens = 2048,
                        .default_bos_id = 1,
                        .default_eos_id = 2,
                        .default_eps = 1e-5,
                        .eps_key = "layer_norm_eps",
                        .activation = "gelu_new",
                        .all_biases = true},
    [MGL_FAMILY_QWEN3_MOE] = {.name = "qwen3_moe",
                              .architecture = "Qwen3MoeForCausalLM",
                              .default_kv_head_count = 4,
                              .default_context_tokens = 32768,
                              .default_bos_id = -1,
                              .default_eos_id = -1,
                              .default_eps = 1e-6,
                              .has_attention_bias = true,
                              .qk_norm = true,
                              .mixture = &qwen3_moe},
    [MGL_FAMILY_QWEN2_MOE] = {.name = "qwen2_moe",
                              .architecture = "Qwen2MoeForCausalLM",
                              .default_kv_head_count = 16,
                              .default_context_tokens = 32768,
                              .default_bos_id = -1,
                              .default_eos_id = -1,
                              .default_eps = 1e-6,
                              .qkv_bias = true,
                              .has_qkv_bias = true,
                              .mixture = &qwen2_moe},
    [MGL_FAMILY_MIXTRAL] = {.name = "mixtral",
                            .architecture = "MixtralForCausalLM",
                            .default_kv_head_count = 8,
                            .default_context_tokens = 131072,
                            .default_bos_id = 1,
                            .default_eos_id = 2,
                            .default_eps = 1e-5,
                            .window = WINDOW_OF_ALL,
                            .mixture = &mixtral},
    [MGL_FAMILY_OLMOE] = {.name = "olmoe",
                          .architecture = "OlmoeForCausalLM",
                          .default_context_tokens = 4096,
                          .default_bos_id = -1,
                          .default_eos_id = 50279,
                          .default_eps = 1e-5,
                          .has_attention_bias = true,
                          .qk_norm = true,
                          .whole_qk_norm = true,
                          .mixture = &olmoe},
    [MGL_FAMILY_GLM4_MOE] = {.name = "glm4_moe",
                             .architecture = "Glm4MoeForCausalLM",
                             .default_kv_head_count = 8,
                             .default_context_tokens = 131072,
                             .default_bos_id = -1,
                             .default_eos_id = -1,
                             .default_eps = 1e-5,
                             .has_attention_bias = true,
                             .no_output_bias = true,
                             .has_qk_norm = true,
                             .mixture = &glm4_moe},
    [MGL_FAMILY_GPT_OSS] = {.name = "gpt_oss",
                            .architecture = "GptOssForCausalLM",
                            .default_kv_head_count = 8,
                            .default_head_dim = 64,
                            .default_context_tokens = 131072,
                            .default_bos_id = -1,
                            .default_eos_id = -1,
                            .default_eps = 1e-5,
                            .window = WINDOW_IN_TURN,
                            .default_window = 128,
                            .has_attention_bias = true,
                            .default_attention_bias = true,
                            .sinks = true,
                            .mixture = &gpt_oss},
};

enum {
  DEFAULT_TOP_K = 50,             // of transformers' sampling
  DEFAULT_MAX_WINDOW_LAYERS = 28  // of Qwen2Config and Qwen3Config
};

// Of generation_config.json: as batch/sampling.h, which stands below this folder.
#define MIN_REPETITION_PENALTY 0.01
#define MAX_REPETITION_PENALTY 100

#define SUPPORTED_FAMILIES                                                                      \
  "Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM, MistralForCausalLM, Phi3ForCausalLM, " \
  "PhiForCausalLM, Qwen3MoeForCausalLM, Qwen2MoeForCausalLM, MixtralForCausalLM, "              \
  "OlmoeForCausalLM, Glm4MoeForCausalLM and GptOssForCausalLM"

const char *mgl_family_name(mgl_family family) {
  return families[family].name;
}

static bool is_null(mgl_json_object o, const char *key) {
  return json_is_null(json_object_get(o.object, key));
}

// --- family --------------------------------------------------------------------------------------

// The first of "architectures", NULL when there is none.
static mgl_status read_architecture(mgl_json_object o, const char **out, mgl_error *err) {
  *out = NULL;
  if (!mgl_json_has(o, "architectures")) {
    return MGL_OK;
  }
  const json_t *list = json_object_get(o.object, "architectures");
  const json_t *first = json_array_get(list, 0);
  if (!json_is_array(list) ||
      (json_array_size(list) != 0 && mgl_json_plain_string(first) == NULL)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"architectures\": expected a list of names",
                         o.where);
  }
  *out = json_string_value(first);
  return MGL_OK;
}

static mgl_status read_family(mgl_json_object o, mgl_family *out, mgl_error *err) {
  const char *architecture = NULL;
  const char *model_type = NULL;
  MGL_TRY(read_architecture(o, &architecture, err));
  MGL_TRY(mgl_json_opt_string(o, "model_type", &model_type, err));
  if (architecture == NULL && model_type == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"architectures\" and \"model_type\" are missing: expected one of "
                         "%s; is this the config.json of a model?",
                         o.where, SUPPORTED_FAMILIES);
  }
  for (int i = 0; i < MGL_FAMILY_COUNT; i++) {
    bool same_architecture =
        architecture == NULL || strcmp(architecture, families[i].architecture) == 0;
    bool same_type = model_type == NULL || strcmp(model_type, families[i].name) == 0;
    if (same_architecture && same_type) {
      *out = (mgl_family)i;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "%s: architecture \"%.100s\" with model_type \"%.100s\" is not supported; "
                       "supported are %s",
                       o.where, architecture != NULL ? architecture : "(none)",
                       model_type != NULL ? model_type : "(none)", SUPPORTED_FAMILIES);
}

// --- features that are refused -------------------------------------------------------------------

// Refuses a number that other architectures scale by, unless it is absent or changes nothing.
static mgl_status refuse_unless(mgl_json_object o, const char *key, double neutral,
                                mgl_error *err) {
  if (!mgl_json_has(o, key)) {
    return MGL_OK;
  }
  const json_t *value = json_object_get(o.object, key);
  double found = json_number_value(value);
  if (json_is_number(value) && found == neutral) {
    return MGL_OK;
  }
  if (isnan(neutral)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: \"%s\" is not supported; expected no such key", o.where, key);
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: \"%s\" is supported only as %g", o.where, key,
                       neutral);
}

static mgl_status refuse_flag(mgl_json_object o, const char *key, bool neutral, mgl_error *err) {
  bool value = neutral;
  MGL_TRY(mgl_json_opt_bool(o, key, &value, err));
  if (value != neutral) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: \"%s\": %s is not supported", o.where, key,
                         value ? "true" : "false");
  }
  return MGL_OK;
}

// Keys of other architectures that would change the arithmetic. A known architecture does not have
// them in transformers; a file that does is a hybrid that this engine would run wrong.
static mgl_status refuse_features(mgl_json_object o, mgl_family family, mgl_error *err) {
  static const struct {
    const char *key;
    double neutral;  // NAN: none
  } numbers[] = {
      {"logits_scaling", 1},
      {"logit_scale", 1},
      {"residual_multiplier", 1},
      {"embedding_multiplier", 1},
      {"attention_multiplier", NAN},
      {"scale_emb", 1},
      {"final_logit_softcapping", NAN},
      {"attn_logit_softcapping", NAN},
      {"query_pre_attn_scalar", NAN},
      {"clip_qkv", NAN},
      {"num_experts", 0},  // the last two: of dense families
      {"num_local_experts", 0},
  };
  enum { NUMBERS = sizeof numbers / sizeof numbers[0], OF_DENSE = 2 };
  const size_t count = families[family].mixture != NULL ? NUMBERS - OF_DENSE : NUMBERS;
  static const struct {
    const char *key;
    bool neutral;
  } flags[] = {
      {"lm_head_bias", false},
      {"is_causal", true},
      {"use_bidirectional_attention", false},
      {"is_encoder_decoder", false},
      {"add_cross_attention", false},
      {"qk_layernorm", false},
  };
  if (families[family].mixture != NULL && families[family].window == WINDOW_NEVER) {
    MGL_TRY(refuse_flag(o, "use_sliding_window", false, err));
  }
  if (!families[family].has_qk_norm) {
    MGL_TRY(refuse_flag(o, "use_qk_norm", false, err));
  }
  for (size_t i = 0; i < count; i++) {
    MGL_TRY(refuse_unless(o, numbers[i].key, numbers[i].neutral, err));
  }
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    MGL_TRY(refuse_flag(o, flags[i].key, flags[i].neutral, err));
  }
  const char *expected = families[family].activation != NULL ? families[family].activation : "silu";
  const char *activation = expected;
  MGL_TRY(mgl_json_opt_string(o, "hidden_act", &activation, err));
  if (strcmp(activation, expected) != 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: \"hidden_act\": expected \"%s\", found \"%.100s\", which is not "
                         "supported",
                         o.where, expected, activation);
  }
  return MGL_OK;
}

// Biases of attention and of the feed-forward part. Qwen2 has its own whatever the key says.
static mgl_status read_biases(mgl_json_object o, mgl_config *out, mgl_error *err) {
  const family_info *info = &families[out->family];
  bool attention_bias = info->default_attention_bias;
  out->qkv_bias = info->qkv_bias;
  if (info->has_qkv_bias) {
    MGL_TRY(mgl_json_opt_bool(o, "qkv_bias", &out->qkv_bias, err));
  }
  if (info->all_biases) {
    out->qkv_bias = out->output_bias = out->mlp_bias = out->head_bias = true;
    return MGL_OK;
  }
  if (info->has_attention_bias) {
    MGL_TRY(mgl_json_opt_bool(o, "attention_bias", &attention_bias, err));
    out->qkv_bias = attention_bias;
    out->output_bias = attention_bias && !info->no_output_bias;
  } else if (!info->qkv_bias) {
    MGL_TRY(refuse_flag(o, "attention_bias", false, err));
  }
  return info->has_mlp_bias ? mgl_json_opt_bool(o, "mlp_bias", &out->mlp_bias, err)
                            : refuse_flag(o, "mlp_bias", false, err);
}

// --- sliding windows -----------------------------------------------------------------------------

static void set_window(mgl_config *config, uint32_t layer) {
  config->window_layers[layer / 64] |= UINT64_C(1) << layer % 64;
}

// "layer_types": which layers have the window. A family whose layers are all alike may have the
// list too, where it says what they are.
static mgl_status read_layer_types(mgl_json_object o, const json_t *list, bool may_window,
                                   bool may_be_full, mgl_config *config, mgl_error *err) {
  if (!json_is_array(list) || json_array_size(list) != config->layer_count) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"layer_types\": expected a list of num_hidden_layers (%" PRIu32
                         ") names, found %s of %zu",
                         o.where, config->layer_count, json_is_array(list) ? "a list" : "no list",
                         json_array_size(list));
  }
  for (uint32_t i = 0; i < config->layer_count; i++) {
    const char *type = mgl_json_plain_string(json_array_get(list, i));
    bool full = type != NULL && strcmp(type, "full_attention") == 0;
    bool windowed = type != NULL && strcmp(type, "sliding_attention") == 0;
    if (!(full && may_be_full) && !(windowed && may_window)) {
      const char *expected = !may_window    ? "\"full_attention\""
                             : !may_be_full ? "\"sliding_attention\""
                                            : "\"full_attention\" or \"sliding_attention\"";
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%s: \"layer_types\": layer %" PRIu32
                           ": expected %s, found \"%.100s\", "
                           "which is not supported",
                           o.where, i, expected, type != NULL ? type : "(no string)");
    }
    if (windowed) {
      set_window(config, i);
    }
  }
  return MGL_OK;
}

// The window that is on in some layer, 0: none; and the first such layer.
static mgl_status read_window_size(mgl_json_object o, const mgl_config *config, uint64_t *out,
                                   uint64_t *out_first_layer, mgl_error *err) {
  const family_info *info = &families[config->family];
  bool enabled = info->window == WINDOW_OF_ALL || info->window == WINDOW_IN_TURN;
  uint64_t window = info->default_window;
  *out = 0;
  *out_first_layer = 0;
  if (info->window == WINDOW_SWITCHED) {
    MGL_TRY(mgl_json_opt_bool(o, "use_sliding_window", &enabled, err));
    *out_first_layer = DEFAULT_MAX_WINDOW_LAYERS;
    MGL_TRY(mgl_json_opt_u64(o, "max_window_layers", 0, INT64_MAX, out_first_layer, err));
  }
  if (enabled && !is_null(o, "sliding_window")) {
    MGL_TRY(mgl_json_opt_u64(o, "sliding_window", 1, INT64_MAX, &window, err));
    *out = window;
  }
  return MGL_OK;
}

// Needs the sizes and the context as the rope stretches it.
static mgl_status read_window(mgl_json_object o, mgl_config *config, mgl_error *err) {
  const json_t *types = json_object_get(o.object, "layer_types");
  const window_rule rule = families[config->family].window;
  uint64_t window = 0;
  uint64_t first_layer = 0;
  MGL_TRY(read_window_size(o, config, &window, &first_layer, err));
  bool covers_all = window >= config->context_tokens;
  if (mgl_json_has(o, "layer_types")) {
    bool may_be_full = rule != WINDOW_OF_ALL || window == 0 || covers_all;
    MGL_TRY(read_layer_types(o, types, window != 0, may_be_full, config, err));
  } else if (window != 0) {
    for (uint64_t i = first_layer; i < config->layer_count; i += rule == WINDOW_IN_TURN ? 2 : 1) {
      set_window(config, (uint32_t)i);
    }
  }
  config->window_tokens = covers_all ? 0 : (uint32_t)window;
  if (config->window_tokens == 0) {
    memset(config->window_layers, 0, sizeof config->window_layers);
  }
  return MGL_OK;
}

// --- sizes ---------------------------------------------------------------------------------------

static mgl_status required_u32(mgl_json_object o, const char *key, uint32_t max, uint32_t *out,
                               mgl_error *err) {
  uint64_t value = 0;
  MGL_TRY(mgl_json_u64(o, key, 1, max, &value, err));
  *out = (uint32_t)value;
  return MGL_OK;
}

// Leaves *out as it was when the key is absent or null.
static mgl_status optional_u32(mgl_json_object o, const char *key, uint32_t max, uint32_t *out,
                               mgl_error *err) {
  uint64_t value = *out;
  MGL_TRY(mgl_json_opt_u64(o, key, 1, max, &value, err));
  *out = (uint32_t)value;
  return MGL_OK;
}

static mgl_status read_head_sizes(mgl_json_object o, mgl_config *out, mgl_error *err) {
  const family_info *info = &families[out->family];
  MGL_TRY(required_u32(o, "num_attention_heads", MGL_MAX_HEADS, &out->head_count, err));
  // A null means "as many as heads" in every family, an absent key the family's default.
  bool as_heads = is_null(o, "num_key_value_heads") || info->default_kv_head_count == 0;
  out->kv_head_count = as_heads ? out->head_count : info->default_kv_head_count;
  MGL_TRY(optional_u32(o, "num_key_value_heads", MGL_MAX_HEADS, &out->kv_head_count, err));
  if (out->head_count % out->kv_head_count != 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"num_attention_heads\": expected a multiple of "
                         "num_key_value_heads (%" PRIu32 "%s), found %" PRIu32,
                         o.where, out->kv_head_count,
                         mgl_json_has(o, "num_key_value_heads") ? "" : ", by default",
                         out->head_count);
  }
  if (info->default_head_dim != 0) {
    out->head_dim = info->default_head_dim;
  } else if (!mgl_json_has(o, "head_dim")) {
    if (out->hidden_size % out->head_count != 0) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: \"hidden_size\": expected a multiple of num_attention_heads "
                           "(%" PRIu32 ") where head_dim is absent, found %" PRIu32,
                           o.where, out->head_count, out->hidden_size);
    }
    out->head_dim = out->hidden_size / out->head_count;
  }
  MGL_TRY(optional_u32(o, "head_dim", MGL_MAX_HEAD_DIM, &out->head_dim, err));
  if (out->head_dim % 2 != 0 || out->head_dim > MGL_MAX_HEAD_DIM) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"head_dim\": expected an even number of at most %d, found %" PRIu32
                         "%s",
                         o.where, MGL_MAX_HEAD_DIM, out->head_dim,
                         mgl_json_has(o, "head_dim") ? "" : " (hidden_size / num_attention_heads)");
  }
  return MGL_OK;
}

static mgl_status read_sizes(mgl_json_object o, mgl_config *out, mgl_error *err) {
  out->context_tokens = families[out->family].default_context_tokens;
  out->rms_norm_eps = families[out->family].default_eps;
  MGL_TRY(required_u32(o, "hidden_size", MGL_MAX_HIDDEN, &out->hidden_size, err));
  MGL_TRY(required_u32(o, "intermediate_size", MGL_MAX_INTERMEDIATE, &out->intermediate_size, err));
  MGL_TRY(required_u32(o, "num_hidden_layers", MGL_MAX_LAYERS, &out->layer_count, err));
  MGL_TRY(required_u32(o, "vocab_size", MGL_MAX_VOCAB, &out->vocab_size, err));
  MGL_TRY(optional_u32(o, "max_position_embeddings", MGL_MAX_CONTEXT, &out->context_tokens, err));
  MGL_TRY(read_head_sizes(o, out, err));
  const char *eps_key = families[out->family].eps_key;
  eps_key = eps_key != NULL ? eps_key : "rms_norm_eps";
  MGL_TRY(mgl_json_opt_double(o, eps_key, 1e-30, 1, &out->rms_norm_eps, err));
  return mgl_json_opt_bool(o, "tie_word_embeddings", &out->tie_word_embeddings, err);
}

static mgl_status read_dtype(mgl_json_object o, mgl_dtype *out, mgl_error *err) {
  static const struct {
    const char *name;
    mgl_dtype dtype;
  } names[] = {
      {"bfloat16", MGL_DTYPE_BF16}, {"float16", MGL_DTYPE_F16}, {"float32", MGL_DTYPE_F32}};
  const char *key = mgl_json_has(o, "dtype") ? "dtype" : "torch_dtype";
  const char *found = "bfloat16";
  MGL_TRY(mgl_json_opt_string(o, key, &found, err));
  const char *name = strncmp(found, "torch.", 6) == 0 ? found + 6 : found;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(name, names[i].name) == 0) {
      *out = names[i].dtype;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "%s: \"%s\": expected \"bfloat16\", \"float16\" or \"float32\", found "
                       "\"%.100s\", which is not supported",
                       o.where, key, found);
}

// MXFP4 is how gpt-oss is published, in tensors of its own (oss_weights.h): no other family has
// them, nor it others.
static mgl_status check_quantization(mgl_json_object o, const mgl_config *config, mgl_error *err) {
  const mgl_quant_method method = config->quantization.method;
  const bool is_oss = config->family == MGL_FAMILY_GPT_OSS;
  if (method == MGL_QUANT_NONE || is_oss == (method == MGL_QUANT_MXFP4)) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": \"quant_method\" \"%s\" is not supported for "
                       "model_type \"%s\": expected %s",
                       o.where, config->quantization.format, families[config->family].name,
                       is_oss ? "\"mxfp4\", or no quantization_config" : "another");
}

// --- token ids -----------------------------------------------------------------------------------

static mgl_status token_id(const json_t *value, mgl_json_object o, const char *key,
                           uint32_t vocab_size, int32_t *out, mgl_error *err) {
  json_int_t id = json_integer_value(value);
  if (!json_is_integer(value) || id < 0 || id >= vocab_size) {
    if (!json_is_integer(value)) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\": expected an integer token id%s",
                           o.where, key, strcmp(key, "eos_token_id") == 0 ? " or a list" : "");
    }
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"%s\": expected a token id below vocab_size (%" PRIu32
                         "), found %" JSON_INTEGER_FORMAT,
                         o.where, key, vocab_size, id);
  }
  *out = (int32_t)id;
  return MGL_OK;
}

// "eos_token_id": one id or a list. Leaves *inout as it was when the key is absent or null.
static mgl_status read_eos(mgl_json_object o, uint32_t vocab_size, mgl_generation *inout,
                           mgl_error *err) {
  static const char key[] = "eos_token_id";
  if (!mgl_json_has(o, key)) {
    return MGL_OK;
  }
  const json_t *value = json_object_get(o.object, key);
  size_t count = json_is_array(value) ? json_array_size(value) : 1;
  if (count > MGL_MAX_EOS_IDS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: \"%s\": expected at most %d ids, found %zu",
                         o.where, key, MGL_MAX_EOS_IDS, count);
  }
  inout->eos_count = 0;
  for (size_t i = 0; i < count; i++) {
    const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
    MGL_TRY(token_id(item, o, key, vocab_size, &inout->eos_ids[i], err));
    inout->eos_count++;
  }
  return MGL_OK;
}

static mgl_status read_token_ids(mgl_json_object o, mgl_config *config, mgl_generation *generation,
                                 mgl_error *err) {
  const family_info *info = &families[config->family];
  bool in_vocab = (int64_t)info->default_bos_id < config->vocab_size;
  config->bos_id = in_vocab && !is_null(o, "bos_token_id") ? info->default_bos_id : -1;
  if (mgl_json_has(o, "bos_token_id")) {
    MGL_TRY(token_id(json_object_get(o.object, "bos_token_id"), o, "bos_token_id",
                     config->vocab_size, &config->bos_id, err));
  }
  in_vocab = info->default_eos_id >= 0 && (int64_t)info->default_eos_id < config->vocab_size;
  if (in_vocab && !is_null(o, "eos_token_id")) {
    generation->eos_ids[0] = info->default_eos_id;
    generation->eos_count = 1;
  }
  return read_eos(o, config->vocab_size, generation, err);
}

// --- the two files -------------------------------------------------------------------------------

static mgl_status expect_object(const json_t *root, const char *where, mgl_error *err) {
  if (!json_is_object(root)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected a JSON object", where);
  }
  return MGL_OK;
}

mgl_status mgl_config_read(mgl_json_object o, mgl_config *out, mgl_generation *generation,
                           mgl_error *err) {
  *out = (mgl_config){.bos_id = -1};
  *generation = (mgl_generation){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
  MGL_TRY(expect_object(o.object, o.where, err));
  MGL_TRY(read_family(o, &out->family, err));
  out->qk_norm = families[out->family].qk_norm;
  out->whole_qk_norm = families[out->family].whole_qk_norm;
  out->sinks = families[out->family].sinks;
  if (families[out->family].has_qk_norm) {
    MGL_TRY(mgl_json_opt_bool(o, "use_qk_norm", &out->qk_norm, err));
  }
  out->fused_weights = families[out->family].fused_weights;
  MGL_TRY(refuse_features(o, out->family, err));
  MGL_TRY(read_biases(o, out, err));
  MGL_TRY(read_sizes(o, out, err));
  MGL_TRY(mgl_config_read_rope(o, out, err));
  MGL_TRY(read_window(o, out, err));
  if (families[out->family].mixture != NULL) {
    MGL_TRY(mgl_config_read_mixture(o, families[out->family].mixture, out, err));
  }
  MGL_TRY(read_dtype(o, &out->dtype, err));
  MGL_TRY(mgl_quantization_read(o, &out->quantization, err));
  MGL_TRY(check_quantization(o, out, err));
  return read_token_ids(o, out, generation, err);
}

mgl_status mgl_config_parse(const char *json, size_t bytes, const char *where, mgl_config *out,
                            mgl_generation *generation, mgl_error *err) {
  json_t *root = NULL;
  MGL_TRY(mgl_json_parse(json, bytes, where, &root, err));
  mgl_json_object o = {.object = root, .where = where};
  mgl_status status = mgl_config_read(o, out, generation, err);
  json_decref(root);
  return status;
}

// A number of generation_config.json that changes the output unless it is `neutral`.
typedef struct generation_number {
  const char *key;
  double neutral;
} generation_number;

static const generation_number unapplied_numbers[] = {
    {"typical_p", 1},
    {"top_h", 0},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"penalty_alpha", 0},
    {"guidance_scale", 1},
    {"no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"encoder_no_repeat_ngram_size", 0},
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"diversity_penalty", 0},
    {"min_length", 0},
    {"max_length", 20},  // what transformers writes for "none"
};

// Keys that change the output unless they are null or empty.
static const char *const unapplied_others[] = {
    "suppress_tokens",     "begin_suppress_tokens", "bad_words_ids",
    "force_words_ids",     "forced_bos_token_id",   "forced_eos_token_id",
    "sequence_bias",       "stop_strings",          "exponential_decay_length_penalty",
    "watermarking_config", "dola_layers",           "constraints",
};

static void add_unapplied(mgl_generation *generation, const char *key) {
  char *names = generation->unapplied;
  size_t used = strlen(names);
  (void)snprintf(names + used, sizeof generation->unapplied - used, "%s%s", used == 0 ? "" : ", ",
                 key);
}

static void find_unapplied(mgl_json_object o, mgl_generation *inout) {
  for (size_t i = 0; i < sizeof unapplied_numbers / sizeof *unapplied_numbers; i++) {
    const generation_number *number = &unapplied_numbers[i];
    const json_t *value = json_object_get(o.object, number->key);
    bool is_neutral = value == NULL || json_is_null(value) ||
                      (json_is_number(value) && json_number_value(value) == number->neutral);
    bool is_overruled = strcmp(number->key, "max_length") == 0 && inout->max_new_tokens != 0;
    if (!is_neutral && !is_overruled) {
      add_unapplied(inout, number->key);
    }
  }
  for (size_t i = 0; i < sizeof unapplied_others / sizeof *unapplied_others; i++) {
    const json_t *value = json_object_get(o.object, unapplied_others[i]);
    bool is_empty = value == NULL || json_is_null(value) ||
                    (json_is_array(value) && json_array_size(value) == 0) ||
                    (json_is_object(value) && json_object_size(value) == 0) ||
                    (json_is_string(value) && json_string_length(value) == 0);
    if (!is_empty) {
      add_unapplied(inout, unapplied_others[i]);
    }
  }
}

mgl_status mgl_generation_read(mgl_json_object o, uint32_t vocab_size, mgl_generation *inout,
                               mgl_error *err) {
  MGL_TRY(expect_object(o.object, o.where, err));
  MGL_TRY(read_eos(o, vocab_size, inout, err));
  MGL_TRY(mgl_json_opt_bool(o, "do_sample", &inout->do_sample, err));
  MGL_TRY(mgl_json_opt_double(o, "temperature", 0, 1000, &inout->temperature, err));
  uint64_t top_k = inout->do_sample ? DEFAULT_TOP_K : inout->top_k;
  MGL_TRY(mgl_json_opt_u64(o, "top_k", 0, INT32_MAX, &top_k, err));
  inout->top_k = (uint32_t)top_k;
  MGL_TRY(mgl_json_opt_double(o, "top_p", 0, 1, &inout->top_p, err));
  MGL_TRY(mgl_json_opt_double(o, "min_p", 0, 1, &inout->min_p, err));
  MGL_TRY(mgl_json_opt_double(o, "repetition_penalty", MIN_REPETITION_PENALTY,
                              MAX_REPETITION_PENALTY, &inout->repetition_penalty, err));
  uint64_t min_new_tokens = inout->min_new_tokens;
  MGL_TRY(mgl_json_opt_u64(o, "min_new_tokens", 0, UINT32_MAX, &min_new_tokens, err));
  inout->min_new_tokens = (uint32_t)min_new_tokens;
  uint64_t max_new_tokens = inout->max_new_tokens;
  MGL_TRY(mgl_json_opt_u64(o, "max_new_tokens", 1, UINT32_MAX, &max_new_tokens, err));
  inout->max_new_tokens = (uint32_t)max_new_tokens;
  find_unapplied(o, inout);
  return MGL_OK;
}

mgl_status mgl_generation_parse(const char *json, size_t bytes, const char *where,
                                uint32_t vocab_size, mgl_generation *inout, mgl_error *err) {
  json_t *root = NULL;
  MGL_TRY(mgl_json_parse(json, bytes, where, &root, err));
  mgl_json_object o = {.object = root, .where = where};
  mgl_status status = mgl_generation_read(o, vocab_size, inout, err);
  json_decref(root);
  return status;
}
