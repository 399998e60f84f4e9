// What a config.json says of mixtures of experts. Transformers names their number num_experts or
// num_local_experts, and reads either in every family; both with different numbers are refused.
#include <inttypes.h>

#include "model/config_parts.h"

static mgl_status read_number(mgl_json_object o, const char *key, uint32_t max, uint32_t *inout,
                              mgl_error *err) {
  uint64_t value = *inout;
  MGL_TRY(mgl_json_opt_u64(o, key, 1, max, &value, err));
  *inout = (uint32_t)value;
  return MGL_OK;
}

static mgl_status read_expert_count(mgl_json_object o, const char *key, uint32_t *out,
                                    mgl_error *err) {
  const bool both = mgl_json_has(o, key) && mgl_json_has(o, "num_local_experts");
  uint32_t local = *out;
  MGL_TRY(read_number(o, "num_local_experts", MGL_MAX_EXPERTS, &local, err));
  *out = local;
  MGL_TRY(read_number(o, key, MGL_MAX_EXPERTS, out, err));
  if (both && *out != local) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"%s\" is %" PRIu32 " and \"num_local_experts\" %" PRIu32
                         ": expected the same number",
                         o.where, key, *out, local);
  }
  return MGL_OK;
}

static mgl_status make_dense(mgl_json_object o, const json_t *layer, mgl_config *config,
                             mgl_error *err) {
  const json_int_t number = json_integer_value(layer);
  if (!json_is_integer(layer) || number < 0 || number >= config->layer_count) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"mlp_only_layers\": expected numbers of layers below "
                         "num_hidden_layers (%" PRIu32 ")",
                         o.where, config->layer_count);
  }
  config->mixture.dense_layers[number / 64] |= UINT64_C(1) << number % 64;
  return MGL_OK;
}

// decoder_sparse_step: every so-manieth layer is a mixture; but for those of mlp_only_layers.
static mgl_status read_dense_layers(mgl_json_object o, mgl_config *config, mgl_error *err) {
  static const char key[] = "mlp_only_layers";
  const json_t *list = json_object_get(o.object, key);
  uint32_t step = 1;
  MGL_TRY(read_number(o, "decoder_sparse_step", MGL_MAX_LAYERS, &step, err));
  for (uint32_t i = 0; i < config->layer_count; i++) {
    if ((i + 1) % step != 0) {
      config->mixture.dense_layers[i / 64] |= UINT64_C(1) << i % 64;
    }
  }
  if (mgl_json_has(o, key) && !json_is_array(list)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\": expected a list of layers", o.where,
                         key);
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    MGL_TRY(make_dense(o, json_array_get(list, i), config, err));
  }
  return MGL_OK;
}

// The matrix of one expert has to be one of the program's (graph/graph.h).
static mgl_status check_inner_size(mgl_json_object o, const mgl_config *config, uint32_t inner,
                                   mgl_error *err) {
  if ((uint64_t)inner * config->hidden_size > INT32_MAX) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "%s: an expert of %" PRIu32 " x %" PRIu32
                         " weights: at most 2^31 - 1 are supported",
                         o.where, inner, config->hidden_size);
  }
  return MGL_OK;
}

// What DeepSeek-V3's router brought, in families without its attention.
static mgl_status read_deepseek(mgl_json_object o, mgl_config *config, mgl_error *err) {
  mgl_mixture *m = &config->mixture;
  uint64_t shared = 1;
  uint64_t dense = 1;
  m->scores = MGL_SCORES_SIGMOID;
  m->choice_bias = true;
  MGL_TRY(mgl_json_opt_u64(o, "n_shared_experts", 0, MGL_MAX_INTERMEDIATE / m->inner_size, &shared,
                           err));
  MGL_TRY(mgl_json_opt_u64(o, "first_k_dense_replace", 0, MGL_MAX_LAYERS, &dense, err));
  MGL_TRY(mgl_json_opt_double(o, "routed_scaling_factor", 1e-6, 1e6, &m->scale, err));
  m->shared_size = (uint32_t)shared * m->inner_size;
  for (uint32_t i = 0; i < config->layer_count && i < dense; i++) {
    m->dense_layers[i / 64] |= UINT64_C(1) << i % 64;
  }
  m->groups = 1;
  m->top_groups = 1;
  MGL_TRY(read_number(o, "n_group", m->expert_count, &m->groups, err));
  MGL_TRY(read_number(o, "topk_group", m->groups, &m->top_groups, err));
  if (m->expert_count % m->groups != 0 || m->expert_count / m->groups * m->top_groups < m->slots) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"n_group\": expected a divisor of the %" PRIu32
                         " experts, and enough experts in topk_group (%" PRIu32
                         ") of the groups for the %" PRIu32 " of a token; found %" PRIu32,
                         o.where, m->expert_count, m->top_groups, m->slots, m->groups);
  }
  return check_inner_size(o, config, m->shared_size, err);
}

// What gpt-oss calls its own, and the numbers of its activation.
static mgl_status read_gpt_oss(mgl_json_object o, mgl_mixture *m, mgl_error *err) {
  uint32_t slots = m->slots;
  double slope = MGL_CLAMPED_SLOPE;
  m->scores = MGL_SCORES_SOFTMAX_OF_CHOSEN;
  m->renormalise = false;  // they are a softmax
  m->router_bias = true;
  m->expert_biases = true;
  m->limit = 7;
  MGL_TRY(mgl_json_opt_double(o, "swiglu_limit", 1e-6, 1e6, &m->limit, err));
  MGL_TRY(mgl_json_opt_double(o, "swiglu_alpha", 1e-6, 1e6, &slope, err));
  if (slope != MGL_CLAMPED_SLOPE) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: \"swiglu_alpha\" is supported only as %g",
                         o.where, MGL_CLAMPED_SLOPE);
  }
  MGL_TRY(read_number(o, "experts_per_token", UINT32_MAX, &slots, err));
  if (!mgl_json_has(o, "num_experts_per_tok")) {
    m->slots = slots;
  }
  if (slots != m->slots) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"experts_per_token\" is %" PRIu32
                         " and \"num_experts_per_tok\" %" PRIu32 ": expected the same number",
                         o.where, slots, m->slots);
  }
  return MGL_OK;
}

mgl_status mgl_config_read_mixture(mgl_json_object o, const mgl_mixture_rule *rule,
                                   mgl_config *config, mgl_error *err) {
  mgl_mixture *m = &config->mixture;
  *m = (mgl_mixture){.expert_count = rule->default_expert_count,
                     .slots = rule->default_slots,
                     .inner_size = config->intermediate_size,
                     .shared_size = rule->default_shared_size,
                     .shared_gate = rule->default_shared_size != 0,
                     .scores = MGL_SCORES_SOFTMAX,
                     .renormalise = rule->always_renormalises || rule->default_renormalise,
                     .scale = 1};
  MGL_TRY(read_expert_count(o, rule->is_deepseek ? "n_routed_experts" : "num_experts",
                            &m->expert_count, err));
  MGL_TRY(read_number(o, "num_experts_per_tok", UINT32_MAX, &m->slots, err));
  if (rule->is_gpt_oss) {
    MGL_TRY(read_gpt_oss(o, m, err));
  }
  if (m->slots > m->expert_count) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"num_experts_per_tok\": expected at most the %" PRIu32
                         " experts of a layer, found %" PRIu32,
                         o.where, m->expert_count, m->slots);
  }
  if (rule->default_inner_size != 0) {
    m->inner_size = rule->default_inner_size;
    MGL_TRY(read_number(o, "moe_intermediate_size", MGL_MAX_INTERMEDIATE, &m->inner_size, err));
  }
  if (rule->default_shared_size != 0) {
    MGL_TRY(read_number(o, "shared_expert_intermediate_size", MGL_MAX_INTERMEDIATE, &m->shared_size,
                        err));
  }
  MGL_TRY(check_inner_size(o, config, m->inner_size, err));
  MGL_TRY(check_inner_size(o, config, m->shared_size, err));
  if (!rule->always_renormalises) {
    MGL_TRY(mgl_json_opt_bool(o, "norm_topk_prob", &m->renormalise, err));
  }
  if (rule->is_deepseek) {
    MGL_TRY(read_deepseek(o, config, err));
  }
  return rule->has_dense_layers ? read_dense_layers(o, config, err) : MGL_OK;
}
