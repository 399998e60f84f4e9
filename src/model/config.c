// Reading config.json and generation_config.json into mgl_config and mgl_generation.
//
// One table row per family holds what the family's transformers configuration class assumes about
// absent keys; the readers below then go through the file subject by subject (family, sizes, rope,
// attention window, token ids). What changes results and is not implemented is refused by the name
// of its key. Where transformers 4 and 5 would read the same file differently (a rope theta or type
// given twice with different values), the file is refused instead of guessing. Rejected: defaults
// for the five sizes that shape every tensor; a config without them is damaged, not terse.
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

typedef struct family_info {
  const char *name;  // also its model_type
  const char *architecture;
  uint32_t default_kv_head_count;   // 0: the head count
  uint32_t default_head_dim;        // 0: hidden size / head count
  uint32_t default_context_tokens;  // max_position_embeddings
  int32_t default_bos_id;           // -1: none
  int32_t default_eos_id;           // -1: none
  bool window_needs_switch;         // sliding_window counts only where use_sliding_window is true
  bool qkv_bias;
  bool qk_norm;
} family_info;

// The defaults are those of transformers' Qwen3Config, Qwen2Config, LlamaConfig and MistralConfig
// (the same in 4.57 and 5).
static const family_info families[MGL_FAMILY_COUNT] = {
    [MGL_FAMILY_QWEN3] = {.name = "qwen3",
                          .architecture = "Qwen3ForCausalLM",
                          .default_kv_head_count = 32,
                          .default_head_dim = 128,
                          .default_context_tokens = 32768,
                          .default_bos_id = -1,
                          .default_eos_id = -1,
                          .window_needs_switch = true,
                          .qk_norm = true},
    [MGL_FAMILY_QWEN2] = {.name = "qwen2",
                          .architecture = "Qwen2ForCausalLM",
                          .default_kv_head_count = 32,
                          .default_context_tokens = 32768,
                          .default_bos_id = -1,
                          .default_eos_id = -1,
                          .window_needs_switch = true,
                          .qkv_bias = true},
    [MGL_FAMILY_LLAMA] = {.name = "llama",
                          .architecture = "LlamaForCausalLM",
                          .default_context_tokens = 2048,
                          .default_bos_id = 1,
                          .default_eos_id = 2},
    [MGL_FAMILY_MISTRAL] = {.name = "mistral",
                            .architecture = "MistralForCausalLM",
                            .default_kv_head_count = 8,
                            .default_context_tokens = 131072,
                            .default_bos_id = 1,
                            .default_eos_id = 2},
};

enum {
  DEFAULT_SLIDING_WINDOW = 4096,  // of every family that has the key
  DEFAULT_TOP_K = 50,             // of transformers' sampling
};

// Of generation_config.json: as batch/sampling.h, which stands below this folder.
#define MIN_REPETITION_PENALTY 0.01
#define MAX_REPETITION_PENALTY 100

#define SUPPORTED_FAMILIES \
  "Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM and MistralForCausalLM"

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

static mgl_status refuse_quantization(mgl_json_object o, mgl_error *err) {
  static const char *const keys[] = {"quantization_config", "compression_config", "quantization"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    if (mgl_json_has(o, keys[i])) {
      const json_t *value = json_object_get(o.object, keys[i]);
      const char *method = json_string_value(json_object_get(value, "quant_method"));
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%s: \"%s\" (method %.60s): quantised models are not supported; use the "
                           "model in bf16, fp16 or fp32",
                           o.where, keys[i], method != NULL ? method : "unknown");
    }
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
      {"partial_rotary_factor", 1},
      {"logits_scaling", 1},
      {"logit_scale", 1},
      {"residual_multiplier", 1},
      {"embedding_multiplier", 1},
      {"attention_multiplier", NAN},
      {"scale_emb", 1},
      {"final_logit_softcapping", NAN},
      {"attn_logit_softcapping", NAN},
      {"query_pre_attn_scalar", NAN},
      {"num_experts", 0},
      {"num_local_experts", 0},
  };
  static const struct {
    const char *key;
    bool neutral;
  } flags[] = {
      {"mlp_bias", false},           {"is_causal", true},
      {"use_qk_norm", false},        {"use_bidirectional_attention", false},
      {"is_encoder_decoder", false}, {"add_cross_attention", false},
  };
  MGL_TRY(refuse_quantization(o, err));
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    MGL_TRY(refuse_unless(o, numbers[i].key, numbers[i].neutral, err));
  }
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    MGL_TRY(refuse_flag(o, flags[i].key, flags[i].neutral, err));
  }
  if (family != MGL_FAMILY_QWEN2) {  // Qwen2 has its bias whatever this key says
    MGL_TRY(refuse_flag(o, "attention_bias", false, err));
  }
  const char *activation = "silu";
  MGL_TRY(mgl_json_opt_string(o, "hidden_act", &activation, err));
  if (strcmp(activation, "silu") != 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: \"hidden_act\": expected \"silu\", found \"%.100s\", which is not "
                         "supported",
                         o.where, activation);
  }
  return MGL_OK;
}

// --- sliding windows -----------------------------------------------------------------------------

static mgl_status window_refused(mgl_json_object o, uint64_t window, const mgl_config *config,
                                 mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "%s: a \"sliding_window\" of %" PRIu64
                       " tokens%s is not supported, since it is smaller than "
                       "max_position_embeddings (%" PRIu32 ")",
                       o.where, window,
                       mgl_json_has(o, "sliding_window") ? "" : " (the default of the absent key)",
                       config->context_tokens);
}

// "layer_types": all layers must attend fully. windowed layers are fine if the window covers all.
static mgl_status check_layer_types(mgl_json_object o, const mgl_config *config,
                                    bool window_covers_all, mgl_error *err) {
  if (!mgl_json_has(o, "layer_types")) {
    return MGL_OK;
  }
  const json_t *list = json_object_get(o.object, "layer_types");
  if (!json_is_array(list) || json_array_size(list) != config->layer_count) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"layer_types\": expected a list of num_hidden_layers (%" PRIu32
                         ") names, found %s of %zu",
                         o.where, config->layer_count, json_is_array(list) ? "a list" : "no list",
                         json_array_size(list));
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    const char *type = mgl_json_plain_string(json_array_get(list, i));
    bool fine = type != NULL && (strcmp(type, "full_attention") == 0 ||
                                 (window_covers_all && strcmp(type, "sliding_attention") == 0));
    if (!fine) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%s: \"layer_types\": layer %zu: expected \"full_attention\", found "
                           "\"%.100s\", which is not supported",
                           o.where, i, type != NULL ? type : "(no string)");
    }
  }
  return MGL_OK;
}

// Refuses a window that some layer would apply to a context that the model allows.
static mgl_status check_window(mgl_json_object o, const mgl_config *config, mgl_error *err) {
  const family_info *info = &families[config->family];
  if (config->family == MGL_FAMILY_LLAMA) {  // has no window, so its key means nothing
    return check_layer_types(o, config, false, err);
  }
  bool enabled = !info->window_needs_switch;
  uint64_t window = DEFAULT_SLIDING_WINDOW;
  uint64_t full_layer_count = 0;  // layers before the first windowed one
  if (info->window_needs_switch) {
    full_layer_count = 28;  // max_window_layers of Qwen2Config and Qwen3Config
    MGL_TRY(mgl_json_opt_bool(o, "use_sliding_window", &enabled, err));
  }
  enabled = enabled && !is_null(o, "sliding_window");
  if (enabled) {
    MGL_TRY(mgl_json_opt_u64(o, "sliding_window", 1, INT64_MAX, &window, err));
  }
  bool covers_all = enabled && window >= config->context_tokens;
  if (info->window_needs_switch && enabled) {
    MGL_TRY(mgl_json_opt_u64(o, "max_window_layers", 0, INT64_MAX, &full_layer_count, err));
    enabled = full_layer_count < config->layer_count && !mgl_json_has(o, "layer_types");
  }
  if (enabled && !covers_all) {
    return window_refused(o, window, config, err);
  }
  return check_layer_types(o, config, covers_all, err);
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
  out->rms_norm_eps = 1e-6;
  MGL_TRY(required_u32(o, "hidden_size", MGL_MAX_HIDDEN, &out->hidden_size, err));
  MGL_TRY(required_u32(o, "intermediate_size", MGL_MAX_INTERMEDIATE, &out->intermediate_size, err));
  MGL_TRY(required_u32(o, "num_hidden_layers", MGL_MAX_LAYERS, &out->layer_count, err));
  MGL_TRY(required_u32(o, "vocab_size", MGL_MAX_VOCAB, &out->vocab_size, err));
  MGL_TRY(optional_u32(o, "max_position_embeddings", MGL_MAX_CONTEXT, &out->context_tokens, err));
  MGL_TRY(read_head_sizes(o, out, err));
  MGL_TRY(mgl_json_opt_double(o, "rms_norm_eps", 1e-30, 1, &out->rms_norm_eps, err));
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

// --- rope ----------------------------------------------------------------------------------------

static mgl_status required_double(mgl_json_object o, const char *key, double min, double max,
                                  double *out, mgl_error *err) {
  if (!mgl_json_has(o, key)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\" is missing from the rope parameters",
                         o.where, key);
  }
  return mgl_json_opt_double(o, key, min, max, out, err);
}

// The one object of rope parameters: "rope_scaling" (transformers 4) or "rope_parameters" (5).
// out->object is NULL when there is neither.
static mgl_status find_rope_object(mgl_json_object o, mgl_json_object *out, mgl_error *err) {
  mgl_json_object scaling;
  mgl_json_object parameters;
  MGL_TRY(mgl_json_opt_object(o, "rope_scaling", &scaling, err));
  MGL_TRY(mgl_json_opt_object(o, "rope_parameters", &parameters, err));
  bool has_scaling = json_object_size(scaling.object) != 0;
  bool has_parameters = json_object_size(parameters.object) != 0;
  if (has_scaling && has_parameters && !json_equal(scaling.object, parameters.object)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"rope_scaling\" and \"rope_parameters\" contradict each other; "
                         "expected one of them",
                         o.where);
  }
  *out = has_scaling ? scaling : parameters;
  out->object = has_scaling || has_parameters ? out->object : NULL;
  // transformers 5 can nest one object per layer type; none of the families here needs that.
  for (void *i = json_object_iter((json_t *)(uintptr_t)out->object); i != NULL;
       i = json_object_iter_next((json_t *)(uintptr_t)out->object, i)) {
    if (json_is_object(json_object_iter_value(i))) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%s: rope parameters per layer type (\"%.100s\") are not supported",
                           o.where, json_object_iter_key(i));
    }
  }
  return MGL_OK;
}

static mgl_status read_rope_kind(mgl_json_object rope, bool is_scaling, mgl_rope_kind *out,
                                 mgl_error *err) {
  const char *rope_type = NULL;
  const char *legacy_type = NULL;
  MGL_TRY(mgl_json_opt_string(rope, "rope_type", &rope_type, err));
  MGL_TRY(mgl_json_opt_string(rope, "type", &legacy_type, err));
  if (rope_type != NULL && legacy_type != NULL && strcmp(rope_type, legacy_type) != 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: rope \"type\" \"%.100s\" contradicts \"rope_type\" \"%.100s\"",
                         rope.where, legacy_type, rope_type);
  }
  const char *type = rope_type != NULL ? rope_type : legacy_type;
  if (type == NULL) {
    if (is_scaling) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"rope_scaling\": \"rope_type\" is missing",
                           rope.where);
    }
    type = "default";
  }
  static const char *const names[] = {
      [MGL_ROPE_PLAIN] = "default", [MGL_ROPE_LINEAR] = "linear", [MGL_ROPE_LLAMA3] = "llama3"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(type, names[i]) == 0) {
      *out = (mgl_rope_kind)i;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "%s: rope type \"%.100s\" is not supported; supported are \"default\", "
                       "\"linear\" and \"llama3\"",
                       rope.where, type);
}

// rope_theta at the top (transformers 4) or among the rope parameters (5); not two values.
static mgl_status read_rope_theta(mgl_json_object o, mgl_json_object rope, double *out,
                                  mgl_error *err) {
  *out = 10000;
  MGL_TRY(mgl_json_opt_double(o, "rope_theta", 1, 1e15, out, err));
  double inner = *out;
  MGL_TRY(mgl_json_opt_double(rope, "rope_theta", 1, 1e15, &inner, err));
  if (mgl_json_has(o, "rope_theta") && inner != *out) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"rope_theta\" is given twice: %g and, with the rope parameters, %g",
                         o.where, *out, inner);
  }
  *out = inner;
  return MGL_OK;
}

// The context that a llama3 rope was trained on; some files have it at the top as well.
static mgl_status read_original_context(mgl_json_object o, mgl_json_object rope, double *out,
                                        mgl_error *err) {
  static const char key[] = "original_max_position_embeddings";
  MGL_TRY(mgl_json_opt_double(o, key, 1, MGL_MAX_CONTEXT, out, err));
  double inner = *out;
  if (!mgl_json_has(o, key)) {
    MGL_TRY(required_double(rope, key, 1, MGL_MAX_CONTEXT, &inner, err));
  }
  MGL_TRY(mgl_json_opt_double(rope, key, 1, MGL_MAX_CONTEXT, &inner, err));
  if (mgl_json_has(o, key) && inner != *out) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\" is given twice: %g and %g", o.where, key,
                         *out, inner);
  }
  *out = inner;
  return MGL_OK;
}

static mgl_status read_rope(mgl_json_object o, mgl_rope *out, mgl_error *err) {
  mgl_json_object rope;
  *out = (mgl_rope){.kind = MGL_ROPE_PLAIN, .factor = 1};
  MGL_TRY(find_rope_object(o, &rope, err));
  MGL_TRY(read_rope_theta(o, rope, &out->theta, err));
  if (rope.object == NULL) {
    return MGL_OK;
  }
  bool is_scaling = rope.object == json_object_get(o.object, "rope_scaling");
  MGL_TRY(refuse_unless(rope, "partial_rotary_factor", 1, err));
  MGL_TRY(read_rope_kind(rope, is_scaling, &out->kind, err));
  if (out->kind == MGL_ROPE_PLAIN) {
    return MGL_OK;
  }
  MGL_TRY(required_double(rope, "factor", 1, 1e6, &out->factor, err));
  if (out->kind == MGL_ROPE_LINEAR) {
    return MGL_OK;
  }
  MGL_TRY(required_double(rope, "low_freq_factor", 1e-6, 1e6, &out->low_freq_factor, err));
  MGL_TRY(required_double(rope, "high_freq_factor", 1e-6, 1e6, &out->high_freq_factor, err));
  if (out->high_freq_factor <= out->low_freq_factor) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"high_freq_factor\": expected more than low_freq_factor (%g), found "
                         "%g",
                         o.where, out->low_freq_factor, out->high_freq_factor);
  }
  return read_original_context(o, rope, &out->original_context, err);
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

static mgl_status read_config(mgl_json_object o, mgl_config *out, mgl_generation *generation,
                              mgl_error *err) {
  MGL_TRY(expect_object(o.object, o.where, err));
  MGL_TRY(read_family(o, &out->family, err));
  out->qkv_bias = families[out->family].qkv_bias;
  out->qk_norm = families[out->family].qk_norm;
  MGL_TRY(refuse_features(o, out->family, err));
  MGL_TRY(read_sizes(o, out, err));
  MGL_TRY(check_window(o, out, err));
  MGL_TRY(read_rope(o, &out->rope, err));
  MGL_TRY(read_dtype(o, &out->dtype, err));
  return read_token_ids(o, out, generation, err);
}

mgl_status mgl_config_parse(const char *json, size_t bytes, const char *where, mgl_config *out,
                            mgl_generation *generation, mgl_error *err) {
  json_t *root = NULL;
  *out = (mgl_config){.bos_id = -1};
  *generation = (mgl_generation){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
  MGL_TRY(mgl_json_parse(json, bytes, where, &root, err));
  mgl_json_object o = {.object = root, .where = where};
  mgl_status status = read_config(o, out, generation, err);
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

static mgl_status read_generation(mgl_json_object o, uint32_t vocab_size, mgl_generation *inout,
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
  mgl_status status = read_generation(o, vocab_size, inout, err);
  json_decref(root);
  return status;
}
