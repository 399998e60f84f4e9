// Cases: quantised weights whose scales, zero points, orders of columns or configs are wrong, in
// every family of formats.
//
// A folder is the demo model's but for its config and weights: a Llama of one layer, whose matrices
// are quantised and mean nothing, sound but for what a case changes in one of them. A case that is
// accepted would answer wrongly without a word.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hostile/hostile.h"
#include "hostile/hostile_model.h"

enum { HIDDEN = 128, INNER = 256, KV = 64, VOCABULARY = 1024, GROUP = 32, MAX_TENSORS = 5 };

// What the elements of a tensor are.
typedef enum content {
  SAME,    // all have the bits `bits`
  SHAPE,   // the matrix's rows, then its columns
  GROUPS,  // element i is of group i / GROUP
} content;

// A tensor of a quantised matrix [N, K]: its dims are N and K over these numbers; a divisor of 0
// means that there is no such dim, of -1 that the dim is 1.
typedef struct part {
  const char *suffix, *dtype;
  int rows_over, columns_over;
  content content;
  uint32_t bits;
} part;

typedef struct format {
  const char *name, *config;
  part parts[MAX_TENSORS];
} format;

#define CT(weights) \
  "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{\"weights\":" weights "}}}"

static const format fp8_blocks = {
    "fp8 in blocks",
    "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}",
    {{".weight", "F8_E4M3", 1, 1, .bits = 0x31},
     {".weight_scale_inv", "F32", 128, 128, .bits = 0x3c000000}}};
static const format fp8_rows = {
    "fp8 by rows",
    CT("{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\",\"symmetric\":true}"),
    {{".weight", "F8_E4M3", 1, 1, .bits = 0x31}, {".weight_scale", "BF16", 1, -1, .bits = 0x3c00}}};
static const format int4_groups = {
    "int4 in groups",
    CT("{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32,"
       "\"symmetric\":false}"),
    {{".weight_packed", "I32", 1, 8, .bits = 0x12345678},
     {".weight_scale", "BF16", 1, GROUP, .bits = 0x3c00},
     {".weight_zero_point", "I32", 8, GROUP, .bits = 0x33333333},
     {".weight_shape", "I64", 0, 0, .content = SHAPE}}};
static const format gptq = {
    "gptq",
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"desc_act\":false,\"sym\":false}",
    {{".qweight", "I32", 8, 1, .bits = 0x12345678},
     {".qzeros", "I32", GROUP, 8, .bits = 0x33333333},
     {".scales", "F16", GROUP, 1, .bits = 0x2000},
     {".g_idx", "I32", 1, 0, .content = GROUPS}}};
static const format awq = {
    "awq",
    "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"version\":\"gemm\","
    "\"zero_point\":true}",
    {{".qweight", "I32", 1, 8, .bits = 0x12345678},
     {".qzeros", "I32", GROUP, 8, .bits = 0x33333333},
     {".scales", "F16", GROUP, 1, .bits = 0x2000}}};
static const format nvfp4 = {
    "nvfp4",
    CT("{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16,"
       "\"symmetric\":true}"),
    {{".weight_packed", "U8", 1, 2, .bits = 0x12},
     {".weight_scale", "F8_E4M3", 1, 16, .bits = 0x31},
     {".weight_global_scale", "F32", -1, 0, .bits = 0x45000000}}};

// What a case changes: of the tensor that ends so (in one matrix), or of the config.
typedef struct change {
  const format *of;
  const char *name;
  const char *tensor;
  const char *shape;  // with its elements; without one, dtype and bits: the tensor is left out
  uint64_t elements;
  const char *dtype;
  uint32_t bits;     // 0: those it has
  const char *more;  // a tensor F32 [1] that is there too
  const char *key, *value;
} change;

static uint64_t bytes_of(const char *dtype) {
  return strstr(dtype, "64") != NULL                               ? 8
         : strstr(dtype, "32") != NULL                             ? 4
         : strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0 ? 2
                                                                   : 1;
}

static void add(hostile_model *m, const char *name, const char *dtype, const char *shape,
                uint64_t elements, content what, uint32_t bits, const uint32_t sizes[2]) {
  const uint64_t begin = m->data.bytes, bytes = bytes_of(dtype);
  for (uint64_t i = 0; i < elements; i++) {
    const uint64_t value = what == SAME ? bits : what == SHAPE ? sizes[i % 2] : i / GROUP;
    for (uint64_t b = 0; b < bytes; b++) {
      const char byte = (char)(value >> (8 * b) & 255);
      mgl_text_append(&m->data, &byte, 1);
    }
  }
  hostile_model_tensor(m, name, dtype, shape, begin);
}

static void add_plain(hostile_model *m, const char *name, uint32_t rows, uint32_t columns) {
  char shape[32];
  (void)snprintf(shape, sizeof shape, columns == 0 ? "[%u]" : "[%u,%u]", rows, columns);
  add(m, name, "BF16", shape, (uint64_t)rows * (columns == 0 ? 1 : columns), SAME, 0x3c00, NULL);
}

static uint32_t over(uint32_t size, int divisor) {
  return divisor < 0 ? 1 : (size + (uint32_t)divisor - 1) / (uint32_t)divisor;
}

// The shape of a part, and how many elements that is.
static uint64_t shape_of(const part *p, uint32_t first, uint32_t second, char shape[32]) {
  if (p->content == SHAPE) {
    (void)snprintf(shape, 32, "[2]");
    return 2;
  }
  if (p->columns_over == 0) {
    (void)snprintf(shape, 32, "[%u]", over(first, p->rows_over));
    return over(first, p->rows_over);
  }
  (void)snprintf(shape, 32, "[%u,%u]", over(first, p->rows_over), over(second, p->columns_over));
  return (uint64_t)over(first, p->rows_over) * over(second, p->columns_over);
}

static void add_matrix(hostile_model *m, const change *c, const char *module, uint32_t rows,
                       uint32_t columns) {
  const uint32_t sizes[] = {rows, columns};
  const bool is_turned = c->of == &gptq || c->of == &awq;
  for (const part *p = c->of->parts; p < c->of->parts + MAX_TENSORS && p->suffix != NULL; p++) {
    char name[128], shape[32];
    (void)snprintf(name, sizeof name, "model.layers.0.%s%s", module, p->suffix);
    uint64_t elements =
        is_turned ? shape_of(p, columns, rows, shape) : shape_of(p, rows, columns, shape);
    if (c->tensor == NULL || !hostile_ends_with(name, c->tensor)) {
      add(m, name, p->dtype, shape, elements, p->content, p->bits, sizes);
    } else if (c->shape != NULL || c->dtype != NULL || c->bits != 0) {
      add(m, name, c->dtype != NULL ? c->dtype : p->dtype, c->shape != NULL ? c->shape : shape,
          c->shape != NULL ? c->elements : elements, c->bits != 0 ? SAME : p->content,
          c->bits != 0 ? c->bits : p->bits, sizes);
    }
  }
}

static void write_model(const change *c) {
  hostile_model m = {{0}, {0}};
  char config[1024];
  add_plain(&m, "model.embed_tokens.weight", VOCABULARY, HIDDEN);
  add_plain(&m, "model.norm.weight", HIDDEN, 0);
  add_plain(&m, "model.layers.0.input_layernorm.weight", HIDDEN, 0);
  add_plain(&m, "model.layers.0.post_attention_layernorm.weight", HIDDEN, 0);
  add_matrix(&m, c, "self_attn.q_proj", HIDDEN, HIDDEN);
  add_matrix(&m, c, "self_attn.k_proj", KV, HIDDEN);
  add_matrix(&m, c, "self_attn.v_proj", KV, HIDDEN);
  add_matrix(&m, c, "self_attn.o_proj", HIDDEN, HIDDEN);
  add_matrix(&m, c, "mlp.gate_proj", INNER, HIDDEN);
  add_matrix(&m, c, "mlp.up_proj", INNER, HIDDEN);
  add_matrix(&m, c, "mlp.down_proj", HIDDEN, INNER);
  if (c->more != NULL) {
    add(&m, c->more, "F32", "[1]", 1, SAME, 0x3c000000, NULL);
  }
  (void)snprintf(config, sizeof config,
                 "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,"
                 "\"intermediate_size\":256,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                 "\"num_key_value_heads\":1,\"head_dim\":64,\"vocab_size\":1024,"
                 "\"tie_word_embeddings\":true,\"max_position_embeddings\":512,"
                 "\"quantization_config\":%s}",
                 c->of->config);
  hostile_model_write(&m, c->key == NULL ? config : hostile_edit(config, c->key, c->value));
}

#define Q "q_proj"
#define UP "up_proj"
#define DOWN "down_proj"

static const change of_fp8[] = {
    {&fp8_blocks, "no scales", .tensor = Q ".weight_scale_inv"},
    {&fp8_blocks, "scales of three groups", .tensor = Q ".weight_scale_inv", .shape = "[1,3]",
     .elements = 3},
    {&fp8_blocks, "scales of more blocks", .tensor = UP ".weight_scale_inv", .shape = "[4,1]",
     .elements = 4},
    {&fp8_blocks, "one scale for blocks of rows", .tensor = UP ".weight_scale_inv",
     .shape = "[1,1]", .elements = 1},
    {&fp8_blocks, "a scale for each row", .tensor = UP ".weight_scale_inv", .shape = "[256,1]",
     .elements = 256},
    {&fp8_blocks, "one scale for groups", .tensor = DOWN ".weight_scale_inv", .shape = "[1,1]",
     .elements = 1},
    {&fp8_blocks, "scales of rank 3", .tensor = Q ".weight_scale_inv", .shape = "[1,1,1]",
     .elements = 1},
    {&fp8_blocks, "no scale at all", .tensor = Q ".weight_scale_inv", .shape = "[0,1]",
     .elements = 0},
    {&fp8_blocks, "scales of integers", .tensor = Q ".weight_scale_inv", .dtype = "I32"},
    {&fp8_blocks, "a scale that is NaN", .tensor = Q ".weight_scale_inv", .bits = 0x7fc00000},
    {&fp8_blocks, "a scale below 0", .tensor = Q ".weight_scale_inv", .bits = 0xbc000000},
    {&fp8_blocks, "an infinite scale", .tensor = Q ".weight_scale_inv", .bits = 0x7f800000},
    {&fp8_blocks, "a scale beyond f32's weights", .tensor = Q ".weight_scale_inv",
     .bits = 0x7f000000},
    {&fp8_blocks, "codes that are NaN", .tensor = Q ".weight", .bits = 0x7f},
    {&fp8_blocks, "scales in two spellings",
     .more = "model.layers.0.self_attn.q_proj.weight_scale"},
    {&fp8_blocks, "a scale of nothing", .more = "model.layers.0.self_attn.x_proj.weight_scale_inv"},
    {&fp8_blocks, "scales of a plain weight", .tensor = Q ".weight", .dtype = "BF16",
     .bits = 0x3c00},
    {&fp8_blocks, "a matrix of another size", .tensor = Q ".weight", .shape = "[128,256]",
     .elements = UINT64_C(128) * 256},
    {&fp8_blocks, "codes of E5M2", .tensor = Q ".weight", .dtype = "F8_E5M2"},
    {&fp8_blocks, "blocks of no rows", .key = "weight_block_size", .value = "[0,128]"},
    {&fp8_blocks, "blocks of one number", .key = "weight_block_size", .value = "[128]"},
    {&fp8_blocks, "blocks of other rows", .key = "weight_block_size", .value = "[64,128]"},
    {&fp8_blocks, "blocks of other columns", .key = "weight_block_size", .value = "[128,64]"},
    {&fp8_blocks, "codes said to be E5M2", .key = "fmt", .value = "\"e5m2\""},
    {&fp8_rows, "scales of every second row", .tensor = Q ".weight_scale", .shape = "[64,1]",
     .elements = 64},
    {&fp8_rows, "scales of two groups", .tensor = Q ".weight_scale", .shape = "[128,2]",
     .elements = 256},
    {&fp8_rows, "scales of one row too many", .tensor = Q ".weight_scale", .shape = "[129,1]",
     .elements = 129},
    {&fp8_rows, "scales that are codes", .tensor = Q ".weight_scale", .dtype = "I8"},
};

static const change of_integers[] = {
    {&int4_groups, "no shape", .tensor = Q ".weight_shape"},
    {&int4_groups, "no scales", .tensor = Q ".weight_scale"},
    {&int4_groups, "no zero points", .tensor = Q ".weight_zero_point"},
    {&int4_groups, "a shape of three", .tensor = Q ".weight_shape", .shape = "[3]", .elements = 3},
    {&int4_groups, "a shape of nothing", .tensor = Q ".weight_shape", .bits = 0x7fffffff},
    {&int4_groups, "groups that do not divide", .tensor = Q ".weight_scale", .shape = "[128,3]",
     .elements = 384},
    {&int4_groups, "groups of half the size", .tensor = Q ".weight_scale", .shape = "[128,8]",
     .elements = 1024},
    {&int4_groups, "groups of twice the size", .tensor = Q ".weight_scale", .shape = "[128,2]",
     .elements = 256},
    {&int4_groups, "one scale for a row", .tensor = Q ".weight_scale", .shape = "[128,1]",
     .elements = 128},
    {&int4_groups, "scales below 0", .tensor = Q ".weight_scale", .bits = 0xbc00},
    {&int4_groups, "scales that are NaN", .tensor = DOWN ".weight_scale", .bits = 0x7fc0},
    {&int4_groups, "zero points of other rows", .tensor = Q ".weight_zero_point", .shape = "[8,4]",
     .elements = 32},
    {&int4_groups, "zero points of other groups", .tensor = Q ".weight_zero_point",
     .shape = "[16,3]", .elements = 48},
    {&int4_groups, "zero points of bytes", .tensor = Q ".weight_zero_point", .dtype = "I8"},
    {&int4_groups, "codes of fewer columns", .tensor = Q ".weight_packed", .shape = "[128,15]",
     .elements = UINT64_C(128) * 15},
    {&int4_groups, "an order of columns", .more = "model.layers.0.self_attn.q_proj.weight_g_idx"},
    {&int4_groups, "a plain weight beside it", .more = "model.layers.0.self_attn.q_proj.weight"},
    {&int4_groups, "a group of no number", .key = "group_size", .value = "0"},
    {&int4_groups, "a group of another size", .key = "group_size", .value = "64"},
    {&int4_groups, "an order that is missing", .key = "num_bits",
     .value = "4,\"actorder\":\"group\""},
    {&int4_groups, "3 bits", .key = "num_bits", .value = "3"},
    {&int4_groups, "numbers of no kind", .key = "type", .value = "\"complex\""},
    {&int4_groups, "a transform", .key = "quant_method",
     .value = "\"compressed-tensors\",\"transform_config\":{\"config_groups\":{}}"},
    {&int4_groups, "sparsity", .key = "quant_method",
     .value = "\"compressed-tensors\",\"sparsity_config\":{\"format\":\"sparse-24\"}"},
};

static const change of_transposed[] = {
    {&gptq, "no zero points", .tensor = Q ".qzeros"},
    {&gptq, "no scales", .tensor = UP ".scales"},
    {&gptq, "zero points of fewer groups", .tensor = Q ".qzeros", .shape = "[3,16]",
     .elements = 48},
    {&gptq, "zero points of other rows", .tensor = Q ".qzeros", .shape = "[4,15]", .elements = 60},
    {&gptq, "scales of fewer rows", .tensor = Q ".scales", .shape = "[4,127]", .elements = 508},
    {&gptq, "scales of twice the groups", .tensor = Q ".scales", .shape = "[8,128]",
     .elements = 1024},
    {&gptq, "scales below 0", .tensor = Q ".scales", .bits = 0xa000},
    {&gptq, "scales that are infinite", .tensor = Q ".scales", .bits = 0x7c00},
    {&gptq, "codes of other columns", .tensor = Q ".qweight", .shape = "[15,128]",
     .elements = UINT64_C(15) * 128},
    {&gptq, "an order too short", .tensor = Q ".g_idx", .shape = "[127]", .elements = 127},
    {&gptq, "an order out of range", .tensor = Q ".g_idx", .bits = 4},
    {&gptq, "an order below 0", .tensor = Q ".g_idx", .bits = 0xffffffff},
    {&gptq, "an order by activations", .tensor = Q ".g_idx", .bits = 1},
    {&gptq, "an order of 64 bits", .tensor = Q ".g_idx", .dtype = "I64"},
    {&gptq, "groups that do not divide", .key = "group_size", .value = "48"},
    {&gptq, "groups of another size", .key = "group_size", .value = "64"},
    {&gptq, "groups of nothing", .key = "group_size", .value = "0"},
    {&gptq, "a row for a group", .key = "group_size", .value = "-1"},
    {&gptq, "5 bits", .key = "bits", .value = "5"},
    {&gptq, "8 bits that are 4", .key = "bits", .value = "8"},
    {&gptq, "another format", .key = "desc_act", .value = "false,\"checkpoint_format\":\"marlin\""},
    {&gptq, "rules for modules", .key = "desc_act", .value = "false,\"dynamic\":{\"-:.*\":{}}"},
    {&gptq, "tensors of another method", .key = "quant_method", .value = "\"awq\""},
    {&gptq, "a method that nobody has", .key = "quant_method", .value = "\"bitsandbytes\""},
    {&gptq, "no config", .key = "quantization_config", .value = "null"},
    {&gptq, "a config that is a list", .key = "quantization_config", .value = "[]"},
    {&awq, "no zero points", .tensor = Q ".qzeros"},
    {&awq, "zero points of fewer groups", .tensor = Q ".qzeros", .shape = "[3,16]", .elements = 48},
    {&awq, "scales that are NaN", .tensor = DOWN ".scales", .bits = 0x7e00},
    {&awq, "scales of other groups", .tensor = Q ".scales", .shape = "[2,128]", .elements = 256},
    {&awq, "an order of columns", .more = "model.layers.0.self_attn.q_proj.g_idx"},
    {&awq, "codes of other rows", .tensor = Q ".qweight", .shape = "[128,15]",
     .elements = UINT64_C(128) * 15},
    {&awq, "a kernel of another version", .key = "version", .value = "\"gemv\""},
    {&awq, "3 bits", .key = "bits", .value = "3"},
};

static const change of_floats[] = {
    {&nvfp4, "no scale of the matrix", .tensor = Q ".weight_global_scale"},
    {&nvfp4, "a scale of the matrix that is 0", .tensor = Q ".weight_global_scale",
     .bits = 0x80000000},
    {&nvfp4, "a scale of the matrix that is NaN", .tensor = Q ".weight_global_scale",
     .bits = 0x7fc00000},
    {&nvfp4, "two scales of the matrix", .tensor = Q ".weight_global_scale", .shape = "[2]",
     .elements = 2},
    {&nvfp4, "groups of 32", .tensor = Q ".weight_scale", .shape = "[128,4]", .elements = 512},
    {&nvfp4, "scales that are NaN", .tensor = Q ".weight_scale", .bits = 0x7f},
    {&nvfp4, "scales below 0", .tensor = Q ".weight_scale", .bits = 0xb1},
    {&nvfp4, "scales of bytes", .tensor = Q ".weight_scale", .dtype = "U8"},
};

static void refuse_all(const change *cases, size_t count) {
  const format *of = NULL;
  for (size_t i = 0; i < count; i++) {
    if (cases[i].of != of) {
      of = cases[i].of;
      write_model(&(change){.of = of});
      hostile_valid(NULL, HOSTILE_RUN, of->name);
    }
    write_model(&cases[i]);
    hostile_refused(NULL, HOSTILE_RUN, "%s: %s", of->name, cases[i].name);
  }
}

#define REFUSE_ALL(cases) refuse_all(cases, sizeof(cases) / sizeof *(cases))

void hostile_quantised(void) {
  REFUSE_ALL(of_fp8);
  REFUSE_ALL(of_integers);
  REFUSE_ALL(of_transposed);
  REFUSE_ALL(of_floats);
  hostile_valid(NULL, HOSTILE_RUN, NULL);
}
