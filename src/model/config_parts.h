// What the files that read a config.json share: config.c, config_rope.c for the rotary embedding,
// and config_mixture.c for mixtures of experts.
#ifndef MGL_MODEL_CONFIG_PARTS_H
#define MGL_MODEL_CONFIG_PARTS_H

#include "base/json.h"
#include "model/config.h"

enum { MGL_PHI3_ORIGINAL_CONTEXT = 4096 };  // where the key is absent

// Reads config->rope and config->rotary_dim, and stretches config->context_tokens where the kind
// does. Needs the family and the sizes.
mgl_status mgl_config_read_rope(mgl_json_object o, mgl_config *config, mgl_error *err);

// What a family with mixtures of experts assumes about absent keys, and which keys it has.
typedef struct mgl_mixture_rule {
  uint32_t default_expert_count, default_slots;
  uint32_t default_inner_size;   // moe_intermediate_size; 0: an expert has intermediate_size
  uint32_t default_shared_size;  // shared_expert_intermediate_size; 0: there is no such expert
  bool always_renormalises;      // else the key norm_topk_prob says
  bool default_renormalise;
  bool has_dense_layers;  // decoder_sparse_step and mlp_only_layers
  // Keys and parts as gpt-oss has them: experts_per_token, swiglu_limit; softmax over the chosen,
  // biases of router and experts.
  bool is_gpt_oss;
  bool is_deepseek;  // keys as DeepSeek-V3 has them: n_routed_experts, n_shared_experts,
                     // first_k_dense_replace, groups; sigmoid, a bias that chooses
} mgl_mixture_rule;

// Reads config->mixture. Needs the sizes.
mgl_status mgl_config_read_mixture(mgl_json_object o, const mgl_mixture_rule *rule,
                                   mgl_config *config, mgl_error *err);

#endif
