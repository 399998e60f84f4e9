// Quantised mixtures of experts under the names that real checkpoints have, in every spelling of
// quantised weights, beside the same mixture in bf16.
//
// Scales are powers of two, so that every weight that a code stands for is exact in bf16, and both
// models have the same weights and bf16 activations. What may differ is where sums are rounded: the
// KL divergence must be below BAR (most products and sums are exact, and the bits the same), which
// experts, matrices or scales in another order exceed by far: the last test doubles one expert's.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/score.h"
#include "model/model_folder.h"
#include "support/must.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

enum { HIDDEN = 160, INNER = 96, SHARED = 64, EXPERTS = 4, HEADS = 2, HEAD_DIM = 64, VOCAB = 120 };
enum {
  GROUP = 32,
  TOKENS = 40,
  MODULE_BYTES = 160,
  MAX_ELEMENTS = VOCAB * HIDDEN + 2 * HIDDEN * HIDDEN
};
#define BAR 1e-6
// Beside integers x is rounded to 15 bits of the largest of 128 elements.
#define BAR_OF_INTEGERS 1e-4

// --- drawing -------------------------------------------------------------------------------------

static uint32_t state_of_random;

static uint32_t random_bits(void) {
  state_of_random = state_of_random * 1664525u + 1013904223u;
  return state_of_random >> 8;
}

// 2^-4 to 2^-7.
static float random_scale(void) {
  return ldexpf(1, -4 - (int)(random_bits() % 4));
}

// Of E4M3 without the large ones: up to 3.75.
static uint8_t random_e4m3(void) {
  return (uint8_t)(random_bits() % 0x48 | (random_bits() & 0x80));
}

// --- matrices ------------------------------------------------------------------------------------

// One matrix [rows, k] of a module, written as codes, or as the bf16 that they stand for.
typedef struct matrix {
  safetensors_writer *writer;
  const char *module;
  uint32_t rows, k;
  bool plain;
  bool damaged;    // scales are twice as large
  float *weights;  // [rows, k]
} matrix;

static void write_part(const matrix *m, const char *suffix, const char *dtype, uint64_t bytes,
                       uint32_t rank, const uint64_t *dims, const void *data) {
  char name[200];
  (void)snprintf(name, sizeof name, "%s%s", m->module, suffix);
  if (!m->plain) {
    safetensors_add_as(m->writer, name, dtype, bytes, rank, dims, data);
  }
}

static void to_bf16(const float *from, size_t count, mgl_bf16 *to) {
  for (size_t i = 0; i < count; i++) {
    to[i] = mgl_f32_to_bf16(from[i]);
    assert_true(mgl_bf16_to_f32(to[i]) == from[i]);  // exact, as the test needs it
  }
}

static void write_plain(safetensors_writer *writer, const char *module, uint32_t rank,
                        const uint64_t *dims, const float *weights) {
  static mgl_bf16 rounded[MAX_ELEMENTS];
  char name[200];
  const size_t count = (size_t)dims[0] * (rank == 2 ? dims[1] : 1);
  assert_true(count <= MAX_ELEMENTS);
  to_bf16(weights, count, rounded);
  (void)snprintf(name, sizeof name, "%s.weight", module);
  safetensors_add(writer, name, MGL_DTYPE_BF16, rank, dims, rounded);
}

// FP8: bytes and scales of blocks [block_rows, block_columns]; `inverse`: of weight_scale_inv.
static void write_fp8(const matrix *m, uint32_t block_rows, uint32_t block_columns,
                      const char *scale_name, bool one_scale) {
  const uint32_t rows = (m->rows - 1) / block_rows + 1, columns = (m->k - 1) / block_columns + 1;
  uint8_t *codes = malloc((size_t)m->rows * m->k);
  float *scales = malloc((size_t)rows * columns * sizeof *scales);
  for (uint32_t i = 0; i < rows * columns; i++) {
    scales[i] = random_scale();
  }
  for (uint32_t i = 0; i < m->rows * m->k; i++) {
    codes[i] = random_e4m3();
    m->weights[i] = mgl_e4m3_to_f32(codes[i]) *
                    scales[i / m->k / block_rows * columns + i % m->k / block_columns];
  }
  for (uint32_t i = 0; i < rows * columns; i++) {
    scales[i] *= m->damaged ? 2 : 1;
  }
  write_part(m, ".weight", "F8_E4M3", 1, 2, (uint64_t[]){m->rows, m->k}, codes);
  write_part(m, scale_name, "F32", 4, one_scale ? 0 : 2, (uint64_t[]){rows, columns}, scales);
  free(codes);
  free(scales);
}

static void fp8_blocks(const matrix *m) {
  write_fp8(m, 128, 128, ".weight_scale_inv", false);
}

static void fp8_rows(const matrix *m) {
  write_fp8(m, 1, m->k, ".weight_scale", false);
}

static void fp8_tensor(const matrix *m) {
  const float one = 1;
  write_fp8(m, m->rows, m->k, ".weight_scale", true);
  write_part(m, ".input_scale", "F32", 4, 0, NULL, &one);
}

// Codes of 4 bits with scales, and zero points, of groups.
typedef struct nibbles {
  uint8_t *codes;  // [rows, k]
  float *scales;   // [rows, groups]
  uint8_t *zeros;  // [rows, groups]
  uint32_t groups;
} nibbles;

static nibbles draw_nibbles(const matrix *m, bool has_zeros) {
  nibbles n = {.groups = m->k / GROUP};
  n.codes = malloc((size_t)m->rows * m->k);
  n.scales = malloc((size_t)m->rows * n.groups * sizeof *n.scales);
  n.zeros = malloc((size_t)m->rows * n.groups);
  for (uint32_t i = 0; i < m->rows * n.groups; i++) {
    n.scales[i] = random_scale() / 4;
    n.zeros[i] = has_zeros ? (uint8_t)(3 + random_bits() % 10) : 8;
  }
  for (uint32_t i = 0; i < m->rows * m->k; i++) {
    const uint32_t group = i / m->k * n.groups + i % m->k / GROUP;
    n.codes[i] = random_bits() % 16;
    m->weights[i] = (float)((int)n.codes[i] - (int)n.zeros[group]) * n.scales[group];
  }
  for (uint32_t i = 0; i < m->rows * n.groups; i++) {
    n.scales[i] *= m->damaged ? 2 : 1;
  }
  return n;
}

static void free_nibbles(nibbles *n) {
  free(n->codes);
  free(n->scales);
  free(n->zeros);
}

// Eight values of 4 bits to a word, the place of each by `order`.
static uint32_t word_of(const uint8_t *values, size_t stride, const uint8_t order[8]) {
  uint32_t word = 0;
  for (uint32_t i = 0; i < 8; i++) {
    word |= (uint32_t)(values[order[i] * stride] & 15) << 4 * i;
  }
  return word;
}

static const uint8_t in_order[8] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint8_t awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

static void packed(const matrix *m, bool has_zeros) {
  nibbles n = draw_nibbles(m, has_zeros);
  uint32_t *words = malloc((size_t)m->rows * m->k / 8 * sizeof *words);
  mgl_bf16 *scales = malloc((size_t)m->rows * n.groups * sizeof *scales);
  for (uint32_t i = 0; i < m->rows * m->k / 8; i++) {
    words[i] = word_of(n.codes + (size_t)8 * i, 1, in_order);
  }
  to_bf16(n.scales, (size_t)m->rows * n.groups, scales);
  write_part(m, ".weight_packed", "I32", 4, 2, (uint64_t[]){m->rows, m->k / 8}, words);
  write_part(m, ".weight_scale", "BF16", 2, 2, (uint64_t[]){m->rows, n.groups}, scales);
  write_part(m, ".weight_shape", "I64", 8, 1, (uint64_t[]){2}, (int64_t[]){m->rows, m->k});
  if (has_zeros) {
    for (uint32_t r = 0; r < m->rows / 8; r++) {
      for (uint32_t g = 0; g < n.groups; g++) {
        words[r * n.groups + g] =
            word_of(n.zeros + (size_t)8 * r * n.groups + g, n.groups, in_order);
      }
    }
    write_part(m, ".weight_zero_point", "I32", 4, 2, (uint64_t[]){m->rows / 8, n.groups}, words);
  }
  free(words);
  free(scales);
  free_nibbles(&n);
}

static void int4_symmetric(const matrix *m) {
  packed(m, false);
}

static void int4_zeros(const matrix *m) {
  packed(m, true);
}

static void write_scales_turned(const matrix *m, const nibbles *n) {
  mgl_f16 *scales = malloc((size_t)m->rows * n->groups * sizeof *scales);
  for (uint32_t r = 0; r < m->rows; r++) {
    for (uint32_t g = 0; g < n->groups; g++) {
      scales[g * m->rows + r] = mgl_f32_to_f16(n->scales[r * n->groups + g]);
    }
  }
  write_part(m, ".scales", "F16", 2, 2, (uint64_t[]){n->groups, m->rows}, scales);
  free(scales);
}

static void gptq(const matrix *m) {
  nibbles n = draw_nibbles(m, true);
  uint32_t *words = malloc((size_t)m->rows * m->k / 8 * sizeof *words);
  int32_t *order = malloc(m->k * sizeof *order);
  for (uint32_t i = 0; i < m->k / 8; i++) {
    for (uint32_t r = 0; r < m->rows; r++) {
      words[i * m->rows + r] = word_of(n.codes + (size_t)r * m->k + (size_t)8 * i, 1, in_order);
    }
  }
  write_part(m, ".qweight", "I32", 4, 2, (uint64_t[]){m->k / 8, m->rows}, words);
  for (uint32_t i = 0; i < m->rows * n.groups; i++) {
    n.zeros[i]--;  // as the format has it
  }
  for (uint32_t g = 0; g < n.groups; g++) {
    for (uint32_t r = 0; r < m->rows / 8; r++) {
      words[g * m->rows / 8 + r] =
          word_of(n.zeros + (size_t)8 * r * n.groups + g, n.groups, in_order);
    }
  }
  for (uint32_t i = 0; i < m->k; i++) {
    order[i] = (int32_t)(i / GROUP);
  }
  write_part(m, ".qzeros", "I32", 4, 2, (uint64_t[]){n.groups, m->rows / 8}, words);
  write_part(m, ".g_idx", "I32", 4, 1, (uint64_t[]){m->k}, order);
  write_scales_turned(m, &n);
  free(words);
  free(order);
  free_nibbles(&n);
}

static void awq(const matrix *m) {
  nibbles n = draw_nibbles(m, true);
  uint32_t *words = malloc((size_t)m->rows * m->k / 8 * sizeof *words);
  for (uint32_t i = 0; i < m->k; i++) {
    for (uint32_t r = 0; r < m->rows / 8; r++) {
      words[i * m->rows / 8 + r] = word_of(n.codes + (size_t)8 * r * m->k + i, m->k, awq_order);
    }
  }
  write_part(m, ".qweight", "I32", 4, 2, (uint64_t[]){m->k, m->rows / 8}, words);
  for (uint32_t g = 0; g < n.groups; g++) {
    for (uint32_t r = 0; r < m->rows / 8; r++) {
      words[g * m->rows / 8 + r] =
          word_of(n.zeros + (size_t)8 * r * n.groups + g, n.groups, awq_order);
    }
  }
  write_part(m, ".qzeros", "I32", 4, 2, (uint64_t[]){n.groups, m->rows / 8}, words);
  write_scales_turned(m, &n);
  free(words);
  free_nibbles(&n);
}

// NVFP4: two codes of E2M1 to a byte, scales E4M3 of 16, and one of the matrix: a divisor
// (compressed-tensors) or a factor (ModelOpt).
static void write_nvfp4(const matrix *m, const char *codes_name, const char *whole_name,
                        float whole, bool divides) {
  static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const uint32_t groups = m->k / 16;
  const float factor = divides ? 1 / whole : whole;
  uint8_t *codes = calloc((size_t)m->rows * m->k / 2, 1),
          *scales = malloc((size_t)m->rows * groups);
  for (uint32_t i = 0; i < m->rows * groups; i++) {
    scales[i] = mgl_f32_to_e4m3(random_scale() * 16);
  }
  for (uint32_t i = 0; i < m->rows * m->k; i++) {
    const uint32_t code = random_bits() % 16;
    const float value = (code & 8) != 0 ? -values[code & 7] : values[code & 7];
    codes[i / 2] |= (uint8_t)(code << 4 * (i % 2));
    m->weights[i] = value * factor * mgl_e4m3_to_f32(scales[i / m->k * groups + i % m->k / 16]);
  }
  for (uint32_t i = 0; i < m->rows * groups; i++) {
    scales[i] = (uint8_t)(scales[i] + (m->damaged ? 8 : 0));  // twice
  }
  write_part(m, codes_name, "U8", 1, 2, (uint64_t[]){m->rows, m->k / 2}, codes);
  write_part(m, ".weight_scale", "F8_E4M3", 1, 2, (uint64_t[]){m->rows, groups}, scales);
  write_part(m, whole_name, "F32", 4, divides ? 1 : 0, (uint64_t[]){1}, &whole);
  free(codes);
  free(scales);
}

static void nvfp4_compressed(const matrix *m) {
  const float one = 1;
  write_nvfp4(m, ".weight_packed", ".weight_global_scale", 64, true);
  write_part(m, ".input_global_scale", "F32", 4, 1, (uint64_t[]){1}, &one);
}

static void nvfp4_modelopt(const matrix *m) {
  const float one = 1;
  write_nvfp4(m, ".weight", ".weight_scale_2", 0x1p-6f, false);
  write_part(m, ".input_scale", "F32", 4, 0, NULL, &one);
}

// --- formats and families ------------------------------------------------------------------------

#define CT(args)                                                                                  \
  "{\"quant_method\":\"compressed-tensors\",\"ignore\":[\"lm_head\",\"re:.*mlp.gate$\","          \
  "\"re:.*block_sparse_moe.gate$\",\"re:.*shared_expert_gate$\"],\"config_groups\":{\"group_0\":" \
  "{\"targets\":[\"Linear\"],\"weights\":{" args "}}}}"

typedef struct format {
  const char *name, *config;
  void (*write)(const matrix *m);
  bool integers;  // codes are
} format;

static const format formats[] = {
    {"fp8 in blocks",
     "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\","
     "\"weight_block_size\":[128,128],\"modules_to_not_convert\":[\"lm_head\","
     "\"model.layers.0.mlp.gate\",\"model.layers.1.mlp.gate\"]}",
     fp8_blocks, false},
    {"compressed-tensors fp8 by rows",
     CT("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\",\"symmetric\":true"), fp8_rows,
     false},
    {"compressed-tensors fp8 of tensors",
     CT("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\",\"symmetric\":true"), fp8_tensor,
     false},
    {"modelopt fp8",
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\",\"ignore\":[\"lm_head\","
     "\"model.layers.0.mlp.gate\",\"model.layers.1.mlp.gate\"]}",
     fp8_tensor, false},
    {"compressed-tensors int4",
     CT("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32,"
        "\"symmetric\":true"),
     int4_symmetric, true},
    {"compressed-tensors int4 with zero points",
     CT("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32,"
        "\"symmetric\":false"),
     int4_zeros, true},
    {"gptq",
     "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"desc_act\":false,\"sym\":false}",
     gptq, true},
    {"awq",
     "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"version\":\"gemm\","
     "\"zero_point\":true,\"modules_to_not_convert\":[\"gate\"]}",
     awq, true},
    {"compressed-tensors nvfp4",
     CT("\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16,"
        "\"symmetric\":true"),
     nvfp4_compressed, false},
    {"modelopt nvfp4",
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"lm_head\","
     "\"model.layers.0.mlp.gate\",\"model.layers.1.mlp.gate\"]}",
     nvfp4_modelopt, false},
};

typedef struct family {
  const char *name, *config;  // of config.json: what sets it apart
  const char *mixture;        // in front of "gate.weight" and "experts."
  const char *matrices[3];    // of an expert: gate, up, down
  bool head_norms, shared;
} family;

static const family families[] = {
    {"Qwen3-MoE",
     "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"num_experts\":4,\"num_experts_per_tok\":2,"
     "\"moe_intermediate_size\":96,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,"
     "\"mlp_only_layers\":[]",
     "mlp",
     {"gate_proj", "up_proj", "down_proj"},
     .head_norms = true},
    {"Mixtral",
     "\"architectures\":[\"MixtralForCausalLM\"],\"num_local_experts\":4,"
     "\"num_experts_per_tok\":2",
     "block_sparse_moe",
     {"w1", "w3", "w2"},
     .head_norms = false},
    {"Qwen2-MoE",
     "\"architectures\":[\"Qwen2MoeForCausalLM\"],\"num_experts\":4,\"num_experts_per_tok\":2,"
     "\"moe_intermediate_size\":96,\"shared_expert_intermediate_size\":64,"
     "\"norm_topk_prob\":false,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"qkv_bias\":false",
     "mlp",
     {"gate_proj", "up_proj", "down_proj"},
     .shared = true},
};

enum {
  FORMATS = sizeof formats / sizeof *formats,
  FAMILIES = sizeof families / sizeof *families,
  LAYERS = 2,
};

typedef struct build {
  safetensors_writer writer;
  const family *family;
  const format *format;
  bool plain;    // the dequantised model
  bool damaged;  // the scales of one expert are twice as large
  float *weights;
} build;

static void add_norm(build *b, const char *module, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    b->weights[i] = 1 + (float)(random_bits() % 16) / 16;
  }
  write_plain(&b->writer, module, 1, (uint64_t[]){count}, b->weights);
}

static void add_plain(build *b, const char *module, uint32_t rows, uint32_t k, float scale) {
  for (uint32_t i = 0; i < rows * k; i++) {
    b->weights[i] = ((float)(random_bits() % 255) - 127) / 128 * scale;
  }
  write_plain(&b->writer, module, 2, (uint64_t[]){rows, k}, b->weights);
}

static void add_matrix(build *b, const char *module, uint32_t rows, uint32_t k) {
  const matrix m = {.writer = &b->writer,
                    .module = module,
                    .rows = rows,
                    .k = k,
                    .plain = b->plain,
                    .damaged = b->damaged && strstr(module, "experts.2.") != NULL,
                    .weights = b->weights};
  b->format->write(&m);
  if (b->plain) {
    write_plain(&b->writer, module, 2, (uint64_t[]){rows, k}, b->weights);
  }
}

// "model.layers.LAYER." and the rest.
__attribute__((format(printf, 3, 4))) static const char *module_of(char out[MODULE_BYTES],
                                                                   uint32_t layer, const char *text,
                                                                   ...) {
  size_t used = (size_t)snprintf(out, MODULE_BYTES, "model.layers.%u.", layer);
  va_list args;
  va_start(args, text);
  (void)vsnprintf(out + used, MODULE_BYTES - used, text, args);
  va_end(args);
  return out;
}

static void add_layer(build *b, uint32_t layer) {
  char module[MODULE_BYTES];
  const family *f = b->family;
  static const struct {
    const char *name;
    uint32_t rows, k;
  } attention[] = {{"self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN},
                   {"self_attn.k_proj", HEAD_DIM, HIDDEN},
                   {"self_attn.v_proj", HEAD_DIM, HIDDEN},
                   {"self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM}};
  static const char *const norms[] = {"input_layernorm", "post_attention_layernorm"};
  for (size_t i = 0; i < 2; i++) {
    add_norm(b, module_of(module, layer, "%s", norms[i]), HIDDEN);
  }
  for (size_t i = 0; i < 2 && f->head_norms; i++) {
    add_norm(b, module_of(module, layer, "self_attn.%s_norm", i == 0 ? "q" : "k"), HEAD_DIM);
  }
  for (size_t i = 0; i < 4; i++) {
    add_matrix(b, module_of(module, layer, "%s", attention[i].name), attention[i].rows,
               attention[i].k);
  }
  add_plain(b, module_of(module, layer, "%s.gate", f->mixture), EXPERTS, HIDDEN, 0.25f);
  for (uint32_t e = 0; e < EXPERTS; e++) {
    for (size_t i = 0; i < 3; i++) {
      add_matrix(b, module_of(module, layer, "%s.experts.%u.%s", f->mixture, e, f->matrices[i]),
                 i == 2 ? HIDDEN : INNER, i == 2 ? INNER : HIDDEN);
    }
  }
  for (size_t i = 0; i < 3 && f->shared; i++) {
    add_matrix(b, module_of(module, layer, "%s.shared_expert.%s", f->mixture, f->matrices[i]),
               i == 2 ? HIDDEN : SHARED, i == 2 ? SHARED : HIDDEN);
  }
  if (f->shared) {
    add_plain(b, module_of(module, layer, "%s.shared_expert_gate", f->mixture), 1, HIDDEN, 0.25f);
  }
}

static void write_model(const temp_folder *folder, build *b) {
  char config[2048];
  state_of_random = 1;
  b->weights = malloc(MAX_ELEMENTS * sizeof *b->weights);
  safetensors_begin(&b->writer, folder->path, "model.safetensors");
  add_plain(b, "model.embed_tokens", VOCAB, HIDDEN, 1);
  add_plain(b, "lm_head", VOCAB, HIDDEN, 0.25f);
  add_norm(b, "model.norm", HIDDEN);
  for (uint32_t layer = 0; layer < LAYERS; layer++) {
    add_layer(b, layer);
  }
  safetensors_finish(&b->writer);
  free(b->weights);
  (void)snprintf(config, sizeof config,
                 "{%s,\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
                 "\"num_attention_heads\":%d,\"num_key_value_heads\":1,\"head_dim\":%d,"
                 "\"vocab_size\":%d,\"max_position_embeddings\":128,\"tie_word_embeddings\":false,"
                 "\"torch_dtype\":\"bfloat16\",\"quantization_config\":%s}",
                 b->family->config, HIDDEN, INNER, LAYERS, HEADS, HEAD_DIM, VOCAB,
                 b->plain ? "null" : b->format->config);
  temp_folder_write_text(folder, "config.json", config);
}

// --- running -------------------------------------------------------------------------------------

static mgl_status keep(void *context, size_t position, const float *logits, mgl_error *err) {
  (void)err;
  memcpy((float *)context + position * VOCAB, logits, VOCAB * sizeof *logits);
  return MGL_OK;
}

static float *logits_of(build b) {
  temp_folder folder;
  mgl_model_folder model = {0};
  mgl_runner *runner = NULL;
  int32_t tokens[TOKENS];
  double logprobs[TOKENS];
  float *out = calloc((size_t)TOKENS * VOCAB, sizeof *out);
  temp_folder_create(&folder);
  write_model(&folder, &b);
  for (int32_t i = 0; i < TOKENS; i++) {
    tokens[i] = i * 29 % VOCAB;
  }
  mgl_error error = {0};
  if (mgl_model_folder_open(folder.path, MGL_NEED_WEIGHTS, &model, &error) != MGL_OK) {
    fail_msg("%s in %s: %s", b.family->name, b.format->name, error.text);
  }
  mgl_build options = mgl_score_build(TOKENS, 0);
  options.threads = 2;
  MUST(mgl_runner_create(&model, &options, &runner, &err));
  const mgl_score_request request = {
      .mode = MGL_MODE_MEGA, .tokens = tokens, .count = TOKENS, .on_logits = keep, .context = out};
  MUST(mgl_score(runner, &request, logprobs, &err));
  mgl_runner_destroy(runner);
  mgl_model_folder_close(&model);
  temp_folder_remove(&folder);
  return out;
}

// Mean KL(a || b) over the positions.
static double divergence(const float *a, const float *b) {
  double sum = 0;
  for (size_t p = 0; p < TOKENS; p++, a += VOCAB, b += VOCAB) {
    double of_a = 0, of_b = 0;
    for (size_t i = 0; i < VOCAB; i++) {
      of_a += exp((double)a[i]);
      of_b += exp((double)b[i]);
    }
    for (size_t i = 0; i < VOCAB; i++) {
      const double log_a = (double)a[i] - log(of_a), log_b = (double)b[i] - log(of_b);
      sum += exp(log_a) * (log_a - log_b);
    }
  }
  return sum / TOKENS;
}

static double compare(const family *f, const format *to, bool damaged) {
  float *codes = logits_of((build){.family = f, .format = to, .damaged = damaged});
  float *plain = logits_of((build){.family = f, .format = to, .plain = true});
  const double kl = divergence(plain, codes);
  free(codes);
  free(plain);
  return kl;
}

static double bar_of(const format *f) {
  return f->integers ? BAR_OF_INTEGERS : BAR;
}

static void every_format_is_read_under_every_familys_names(void **state) {
  double worst = 0;
  (void)state;
  for (size_t i = 0; i < FAMILIES; i++) {
    for (size_t j = 0; j < FORMATS; j++) {
      const double kl = compare(&families[i], &formats[j], false);
      if (!(kl < bar_of(&formats[j]))) {
        fail_msg("%s in %s: KL %.3g", families[i].name, formats[j].name, kl);
      }
      worst = fmax(worst, kl);
    }
  }
  print_message("%d mixtures, worst KL %.3g\n", FAMILIES * FORMATS, worst);
}

// The bar can be missed: of one expert of each layer scales are twice as large.
static void other_scales_of_one_expert_exceed_the_bar(void **state) {
  (void)state;
  for (size_t j = 0; j < FORMATS; j++) {
    const double kl = compare(&families[j % FAMILIES], &formats[j], true);
    if (!(kl > 100 * bar_of(&formats[j]))) {
      fail_msg("%s in %s: KL %.3g", families[j % FAMILIES].name, formats[j].name, kl);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_format_is_read_under_every_familys_names),
      cmocka_unit_test(other_scales_of_one_expert_exceed_the_bar),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
