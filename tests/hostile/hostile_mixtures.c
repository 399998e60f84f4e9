// Cases: mixtures of experts whose configs and weights do not fit together, or not at all.
//
// A folder is the demo model's but for its config and weights, which are a small mixture's, all
// zeros but where a case says otherwise.
#include <string.h>

#include "hostile/hostile.h"
#include "hostile/hostile_model.h"

enum { HIDDEN = 64, INNER = 32, EXPERTS = 4, VOCABULARY = 1024, BF16_NAN = 0x7fc0 };

// What a case changes.
typedef struct change {
  const char *key, *value;  // of the config
  const char *tensor;       // that ends so is left out, or, with a shape, has that one
  const char *shape;
  uint64_t elements;  // of that shape
  const char *dtype;
  uint64_t dtype_bytes;
  int fill;  // its bytes, of every two of them the upper one in front; 0: zeros
} change;

typedef struct model {
  hostile_model files;
  const change *of;
} model;

static void add(model *m, const char *name, const char *dtype, const char *shape,
                uint64_t elements) {
  uint64_t element_bytes = strcmp(dtype, "U8") == 0 ? 1 : 2;
  int fill = 0;
  if (m->of->tensor != NULL && hostile_ends_with(name, m->of->tensor)) {
    if (m->of->shape == NULL && m->of->dtype == NULL && m->of->fill == 0) {
      return;
    }
    shape = m->of->shape != NULL ? m->of->shape : shape;
    elements = m->of->shape != NULL ? m->of->elements : elements;
    element_bytes = m->of->dtype != NULL ? m->of->dtype_bytes : element_bytes;
    dtype = m->of->dtype != NULL ? m->of->dtype : dtype;
    fill = m->of->fill;
  }
  const uint64_t begin = m->files.data.bytes;
  for (uint64_t i = 0; i < elements * element_bytes; i++) {
    const char byte = (char)(element_bytes == 2 && i % 2 == 1 ? fill >> 8 : fill & 255);
    mgl_text_append(&m->files.data, &byte, 1);
  }
  hostile_model_tensor(&m->files, name, dtype, shape, begin);
}

static void write_all(model *m, const char *config) {
  hostile_model_write(&m->files, config);
}

#define AT "model.layers.0."

static void add_attention(model *m) {
  add(m, "model.embed_tokens.weight", "BF16", "[1024,64]", (uint64_t)VOCABULARY * HIDDEN);
  add(m, "model.norm.weight", "BF16", "[64]", HIDDEN);
  add(m, AT "input_layernorm.weight", "BF16", "[64]", HIDDEN);
  add(m, AT "post_attention_layernorm.weight", "BF16", "[64]", HIDDEN);
  add(m, AT "self_attn.q_proj.weight", "BF16", "[64,64]", (uint64_t)HIDDEN * HIDDEN);
  add(m, AT "self_attn.k_proj.weight", "BF16", "[32,64]", UINT64_C(32) * HIDDEN);
  add(m, AT "self_attn.v_proj.weight", "BF16", "[32,64]", UINT64_C(32) * HIDDEN);
  add(m, AT "self_attn.o_proj.weight", "BF16", "[64,64]", (uint64_t)HIDDEN * HIDDEN);
}

#define SIZES                                                                                \
  "\"hidden_size\":64,\"intermediate_size\":32,\"num_hidden_layers\":1,"                     \
  "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,\"vocab_size\":1024," \
  "\"tie_word_embeddings\":true,\"max_position_embeddings\":512"

// A Mixtral, whose experts are stored one by one.
static void write_mixtral(const change *of) {
  model m = {.of = of};
  char config[1024];
  add_attention(&m);
  add(&m, AT "block_sparse_moe.gate.weight", "BF16", "[4,64]", (uint64_t)EXPERTS * HIDDEN);
  for (int e = 0; e < EXPERTS; e++) {
    static const char *const names[] = {"w1", "w3", "w2"};
    for (int i = 0; i < 3; i++) {
      char name[96];
      (void)snprintf(name, sizeof name, AT "block_sparse_moe.experts.%d.%s.weight", e, names[i]);
      add(&m, name, "BF16", i == 2 ? "[64,32]" : "[32,64]", (uint64_t)INNER * HIDDEN);
    }
  }
  (void)snprintf(config, sizeof config,
                 "{\"architectures\":[\"MixtralForCausalLM\"],\"num_local_experts\":4,"
                 "\"num_experts_per_tok\":2," SIZES "}");
  write_all(&m, of->key == NULL ? config : hostile_edit(config, of->key, of->value));
}

// A gpt-oss with experts in MXFP4.
static void write_oss(const change *of) {
  model m = {.of = of};
  char config[1024];
  add_attention(&m);
  add(&m, AT "self_attn.q_proj.bias", "BF16", "[64]", HIDDEN);
  add(&m, AT "self_attn.k_proj.bias", "BF16", "[32]", 32);
  add(&m, AT "self_attn.v_proj.bias", "BF16", "[32]", 32);
  add(&m, AT "self_attn.o_proj.bias", "BF16", "[64]", HIDDEN);
  add(&m, AT "self_attn.sinks", "BF16", "[2]", 2);
  add(&m, AT "mlp.router.weight", "BF16", "[4,64]", (uint64_t)EXPERTS * HIDDEN);
  add(&m, AT "mlp.router.bias", "BF16", "[4]", EXPERTS);
  add(&m, AT "mlp.experts.gate_up_proj_bias", "BF16", "[4,64]", UINT64_C(4) * 2 * INNER);
  add(&m, AT "mlp.experts.down_proj_bias", "BF16", "[4,64]", UINT64_C(4) * HIDDEN);
  add(&m, AT "mlp.experts.gate_up_proj_blocks", "U8", "[4,64,2,16]", UINT64_C(4) * 64 * 2 * 16);
  add(&m, AT "mlp.experts.gate_up_proj_scales", "U8", "[4,64,2]", UINT64_C(4) * 64 * 2);
  add(&m, AT "mlp.experts.down_proj_blocks", "U8", "[4,64,1,16]", UINT64_C(4) * 64 * 16);
  add(&m, AT "mlp.experts.down_proj_scales", "U8", "[4,64,1]", UINT64_C(4) * 64);
  (void)snprintf(config, sizeof config,
                 "{\"architectures\":[\"GptOssForCausalLM\"],\"num_local_experts\":4,"
                 "\"num_experts_per_tok\":2,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
                 "\"original_max_position_embeddings\":128},\"quantization_config\":"
                 "{\"quant_method\":\"mxfp4\"}," SIZES "}");
  write_all(&m, of->key == NULL ? config : hostile_edit(config, of->key, of->value));
}

static void mixtrals(void) {
  static const struct {
    const char *name;
    change change;
  } cases[] = {
      {"a missing expert", {.tensor = "experts.3.w2.weight"}},
      {"a missing router", {.tensor = "moe.gate.weight"}},
      {"an expert's matrix of other rows",
       {.tensor = "experts.2.w1.weight", .shape = "[31,64]", .elements = UINT64_C(31) * 64}},
      {"an expert's matrix turned round",
       {.tensor = "experts.0.w2.weight", .shape = "[32,64]", .elements = UINT64_C(32) * 64}},
      {"an expert's matrix of rank 3",
       {.tensor = "experts.1.w3.weight", .shape = "[1,32,64]", .elements = UINT64_C(32) * 64}},
      {"an expert of another dtype",
       {.tensor = "experts.3.w1.weight", .dtype = "F32", .dtype_bytes = 4}},
      {"an expert of integers",
       {.tensor = "experts.3.w1.weight", .dtype = "I64", .dtype_bytes = 8}},
      {"a router of too few experts",
       {.tensor = "moe.gate.weight", .shape = "[3,64]", .elements = UINT64_C(3) * 64}},
      {"a router that is a vector",
       {.tensor = "moe.gate.weight", .shape = "[256]", .elements = 256}},
      {"more slots than experts", {.key = "num_experts_per_tok", .value = "5"}},
      {"no slot", {.key = "num_experts_per_tok", .value = "0"}},
      {"more experts than weights", {.key = "num_local_experts", .value = "5"}},
      {"too many experts", {.key = "num_local_experts", .value = "1025"}},
      {"experts of another size", {.key = "intermediate_size", .value = "40"}},
      {"experts of no size", {.key = "intermediate_size", .value = "0"}},
      {"experts larger than anything", {.key = "intermediate_size", .value = "4294967295"}},
      {"numbers of experts that differ", {.key = "num_experts", .value = "3"}},
  };
  const change none = {0};
  write_mixtral(&none);
  hostile_valid(NULL, HOSTILE_RUN, "a small Mixtral");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_mixtral(&cases[i].change);
    hostile_refused(NULL, HOSTILE_RUN, "mixture: %s", cases[i].name);
  }
}

static void routers_of_no_numbers(void) {
  const change nan = {.tensor = "moe.gate.weight", .fill = BF16_NAN};
  const change nan_bias = {.tensor = "router.bias", .fill = BF16_NAN};
  const change nan_sinks = {.tensor = "self_attn.sinks", .fill = BF16_NAN};
  write_mixtral(&nan);
  hostile_refused(NULL, HOSTILE_RUN, "mixture: a router of NaNs");
  write_oss(&nan_bias);
  hostile_refused(NULL, HOSTILE_RUN, "gpt-oss: a router's bias of NaNs");
  write_oss(&nan_sinks);
  hostile_refused(NULL, HOSTILE_RUN, "gpt-oss: sinks of NaNs");
}

static void gpt_oss(void) {
  static const struct {
    const char *name;
    change change;
  } cases[] = {
      {"no scales", {.tensor = "gate_up_proj_scales"}},
      {"no blocks", {.tensor = "down_proj_blocks"}},
      {"no sinks", {.tensor = "self_attn.sinks"}},
      {"no bias of experts", {.tensor = "down_proj_bias"}},
      {"no bias of the router", {.tensor = "router.bias"}},
      {"scales of other groups",
       {.tensor = "gate_up_proj_scales", .shape = "[4,64,4]", .elements = UINT64_C(4) * 64 * 4}},
      {"scales of fewer experts",
       {.tensor = "down_proj_scales", .shape = "[3,64,1]", .elements = UINT64_C(3) * 64}},
      {"scales of rank 2", {.tensor = "down_proj_scales", .shape = "[256,1]", .elements = 256}},
      {"scales of 16 bits", {.tensor = "down_proj_scales", .dtype = "BF16", .dtype_bytes = 2}},
      {"scales that are no numbers", {.tensor = "gate_up_proj_scales", .fill = 0xff}},
      {"blocks of 8 bytes",
       {.tensor = "gate_up_proj_blocks", .shape = "[4,64,4,8]", .elements = UINT64_C(4) * 64 * 32}},
      {"blocks of rank 3",
       {.tensor = "down_proj_blocks", .shape = "[4,64,16]", .elements = UINT64_C(4) * 64 * 16}},
      {"sinks of other heads", {.tensor = "self_attn.sinks", .shape = "[3]", .elements = 3}},
      {"a bias of other experts",
       {.tensor = "gate_up_proj_bias", .shape = "[5,64]", .elements = UINT64_C(5) * 64}},
      {"groups that do not divide", {.key = "intermediate_size", .value = "40"}},
      {"experts by another method",
       {.key = "quantization_config", .value = "{\"quant_method\":\"gptq\",\"bits\":4}"}},
      {"another slope", {.key = "swiglu_alpha", .value = "1"}},
      {"a limit below 0", {.key = "swiglu_limit", .value = "-7"}},
      {"layers of another kind", {.key = "layer_types", .value = "[\"chunked_attention\"]"}},
      {"slots that differ", {.key = "experts_per_token", .value = "3"}},
  };
  const change none = {0};
  write_oss(&none);
  hostile_valid(NULL, HOSTILE_RUN, "a small gpt-oss");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_oss(&cases[i].change);
    hostile_refused(NULL, HOSTILE_RUN, "gpt-oss: %s", cases[i].name);
  }
}

void hostile_mixtures(void) {
  mixtrals();
  gpt_oss();
  routers_of_no_numbers();
  hostile_valid(NULL, HOSTILE_RUN, NULL);
}
