// What config.json and generation_config.json say, checked and in one struct.
//
// Everything that later code relies on (ranges, divisibility, supported features) is checked here,
// once; later code asserts. A feature that Megalith lacks is refused by name, never run wrong.
#ifndef MGL_MODEL_CONFIG_H
#define MGL_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/limits.h"
#include "base/status.h"
#include "model/quantization.h"

// Limits on sizes in config.json. They exist so that hostile values cannot overflow a product.
enum {
  MGL_MAX_HIDDEN = 65536,
  MGL_MAX_INTERMEDIATE = 262144,
  MGL_MAX_LAYERS = 1024,
  MGL_MAX_HEADS = 1024,
  MGL_MAX_HEAD_DIM = 512,
  MGL_MAX_EOS_IDS = 16,
  MGL_MAX_EXPERTS = 1024,     // of a layer
  MGL_UNAPPLIED_BYTES = 768,  // room for all the names
};

typedef enum mgl_family {
  MGL_FAMILY_QWEN3,      // Qwen3ForCausalLM: per-head RMS norm on Q and K
  MGL_FAMILY_QWEN2,      // Qwen2ForCausalLM (Qwen2 and 2.5): bias on Q, K and V
  MGL_FAMILY_LLAMA,      // LlamaForCausalLM (Llama 2 and 3.x)
  MGL_FAMILY_MISTRAL,    // MistralForCausalLM
  MGL_FAMILY_PHI3,       // Phi3ForCausalLM (Phi-3, 3.5, 4 and 4-mini): fused weights
  MGL_FAMILY_PHI,        // PhiForCausalLM (Phi-1, 1.5 and 2): layer norms, parallel parts, biases
  MGL_FAMILY_QWEN3_MOE,  // Qwen3MoeForCausalLM: Qwen3 with a mixture of experts
  MGL_FAMILY_QWEN2_MOE,  // Qwen2MoeForCausalLM: Qwen2 with one, and an expert that all tokens have
  MGL_FAMILY_MIXTRAL,    // MixtralForCausalLM: Mistral with one
  MGL_FAMILY_OLMOE,      // OlmoeForCausalLM: Llama with one, and a norm over all of Q, and of K
  MGL_FAMILY_GLM4_MOE,   // Glm4MoeForCausalLM (GLM-4.5 to 4.7): sigmoid routing as DeepSeek's
  MGL_FAMILY_GPT_OSS,    // GptOssForCausalLM: sinks, windows in turn, a clamped activation
  MGL_FAMILY_COUNT,
} mgl_family;

// What the frequencies of the rotary embedding are; graph/rope.h has the formulas.
typedef enum mgl_rope_kind {
  MGL_ROPE_PLAIN,
  MGL_ROPE_LINEAR,    // positions divided by factor
  MGL_ROPE_LLAMA3,    // frequency-dependent interpolation
  MGL_ROPE_YARN,      // the same with another ramp, and a factor of attention
  MGL_ROPE_DYNAMIC,   // a base that grows with the sequence, beyond the original context
  MGL_ROPE_LONGROPE,  // a factor for each frequency, others beyond the original context
  MGL_ROPE_KIND_COUNT,
} mgl_rope_kind;

typedef struct mgl_rope {
  mgl_rope_kind kind;
  double theta;
  double factor;            // linear, llama3, yarn, dynamic
  double low_freq_factor;   // llama3
  double high_freq_factor;  // llama3
  double beta_fast;         // yarn
  double beta_slow;         // yarn
  bool truncate;            // yarn: the ramp begins and ends at whole dims
  double original_context;  // llama3, yarn, longrope: original_max_position_embeddings; dynamic:
                            // max_position_embeddings
  double attention_factor;  // yarn, longrope: of cos and sin; 0: 1
  float short_factors[MGL_MAX_HEAD_DIM / 2];  // longrope: [rotary dims / 2]
  float long_factors[MGL_MAX_HEAD_DIM / 2];   // the same, of sequences beyond original_context
} mgl_rope;

// What the router's logits become.
typedef enum mgl_scores {
  MGL_SCORES_SOFTMAX,            // over all experts
  MGL_SCORES_SOFTMAX_OF_CHOSEN,  // the logits choose, then softmax over the slots of a token
  MGL_SCORES_SIGMOID,
  MGL_SCORES_COUNT,
} mgl_scores;

#define MGL_CLAMPED_SLOPE 1.702  // of the sigmoid in the clamped activation

// The feed-forward part as a mixture of experts.
typedef struct mgl_mixture {
  uint32_t expert_count;  // E; 0: every layer has a plain feed-forward part
  uint32_t slots;         // experts of a token
  uint32_t inner_size;    // F of an expert
  uint32_t shared_size;   // F of the expert that all tokens have, besides; 0: there is none
  bool shared_gate;       // whose result is multiplied by a sigmoid
  mgl_scores scores;
  bool choice_bias;             // scores are chosen by what a bias makes of them
  bool router_bias;             // the router's logits have one
  bool expert_biases;           // gate, up and down of every expert have one
  double limit;                 // gate and up are clamped to it, and the activation is
                                // gate * sigmoid(1.702 gate) * (up + 1); 0: neither
  bool renormalise;             // a token's weights are divided by their sum
  double scale;                 // and multiplied with this
  uint32_t groups, top_groups;  // 0: experts are not in groups
  uint64_t
      dense_layers[MGL_MAX_LAYERS / 64];  // a bit for each layer with a plain feed-forward part
} mgl_mixture;

typedef struct mgl_config {
  mgl_family family;
  uint32_t hidden_size;        // D
  uint32_t intermediate_size;  // F
  uint32_t layer_count;
  uint32_t head_count;      // H, a multiple of kv_head_count
  uint32_t kv_head_count;   // HKV
  uint32_t head_dim;        // HD, even
  uint32_t rotary_dim;      // even: the first dims of a head that turn; 0: all
  uint32_t vocab_size;      // V
  uint32_t context_tokens;  // max_position_embeddings, or what yarn and dynamic make of it
  double rms_norm_eps;      // of layer norms too
  mgl_rope rope;
  bool tie_word_embeddings;
  bool qkv_bias;
  bool output_bias;  // of the output projection of attention
  bool mlp_bias;     // of gate, up and down
  bool head_bias;    // of the output projection of the model
  bool qk_norm;
  bool whole_qk_norm;  // over all heads together
  bool sinks;          // attention has a sink a head (graph/op.def)
  bool fused_weights;  // the checkpoint has qkv_proj and gate_up_proj (model/fused_weights.h)
  // Tokens that a query of a windowed layer attends to, itself included; 0: no layer has a window.
  uint32_t window_tokens;
  uint64_t window_layers[MGL_MAX_LAYERS / 64];  // a bit for each layer
  mgl_mixture mixture;
  mgl_dtype dtype;  // dtype or torch_dtype; what --load-format dummy draws (bf16 when absent)
  mgl_quantization quantization;
  int32_t bos_id;  // -1 when absent
} mgl_config;

// Defaults of generation_config.json (config.json's eos_token_id where it is absent).
typedef struct mgl_generation {
  int32_t eos_ids[MGL_MAX_EOS_IDS];
  uint32_t eos_count;
  bool do_sample;      // false: greedy
  double temperature;  // 1 when absent
  uint32_t top_k;      // 0: off. When absent, 50 where do_sample is true (transformers' default)
  double top_p;        // 1 when absent: off
  double min_p;        // 0 when absent: off
  double repetition_penalty;  // 1 when absent: off
  uint32_t min_new_tokens;    // 0 when absent
  uint32_t max_new_tokens;    // 0 when absent
  // Names of the keys that would change the output and that Megalith does not apply, with ", "
  // between them; "" when there are none. For a caller to say so.
  char unapplied[MGL_UNAPPLIED_BYTES];
} mgl_generation;

// "qwen3", "qwen2", "llama", "mistral", "phi3", "phi", "qwen3_moe", "qwen2_moe", "mixtral",
// "olmoe", "glm4_moe", "gpt_oss"
const char *mgl_family_name(mgl_family family);

// Tokens that a query of the layer attends to, itself included; 0: all before it.
static inline uint32_t mgl_config_window(const mgl_config *config, uint32_t layer) {
  return (config->window_layers[layer / 64] >> layer % 64 & 1) != 0 ? config->window_tokens : 0;
}

// Whether the layer's feed-forward part is a mixture of experts.
static inline bool mgl_config_is_mixture(const mgl_config *config, uint32_t layer) {
  return config->mixture.expert_count != 0 &&
         (config->mixture.dense_layers[layer / 64] >> layer % 64 & 1) == 0;
}

// Parses the text of a config.json. `where` names it in messages. Fills *generation with the
// defaults of an absent generation_config.json. On failure both hold no usable value. Absent keys
// mean what they mean to the family's transformers class, except that hidden_size,
// intermediate_size, num_hidden_layers, num_attention_heads and vocab_size are required.
mgl_status mgl_config_parse(const char *json, size_t bytes, const char *where, mgl_config *out,
                            mgl_generation *generation, mgl_error *err);

// The same of a parsed one.
mgl_status mgl_config_read(mgl_json_object o, mgl_config *out, mgl_generation *generation,
                           mgl_error *err);

// Parses the text of a generation_config.json on top of what mgl_config_parse put into *inout.
mgl_status mgl_generation_parse(const char *json, size_t bytes, const char *where,
                                uint32_t vocab_size, mgl_generation *inout, mgl_error *err);
mgl_status mgl_generation_read(mgl_json_object o, uint32_t vocab_size, mgl_generation *inout,
                               mgl_error *err);

#endif
