#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"
#include "graph/family.h"
#include "model/model_folder.h"

// A model with weights of codes. Rows of fp8 and int8 end within a panel, and within a group.
#define CODED(hidden, intermediate, quantization) CODED_OF(1000, hidden, intermediate, quantization)
#define CODED_OF(vocab, hidden, intermediate, quantization)                                   \
  "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":" #vocab \
  ","                                                                                         \
  "\"hidden_size\":" #hidden ",\"intermediate_size\":" #intermediate                          \
  ","                                                                                         \
  "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":2,"              \
  "\"head_dim\":128,\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,"                 \
  "\"rope_theta\":10000,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","           \
  "\"hidden_act\":\"silu\",\"quantization_config\":{" quantization "}}"
#define COMPRESSED(format, symmetric, weights)                                         \
  "\"quant_method\":\"compressed-tensors\",\"format\":\"" format                       \
  "\","                                                                                \
  "\"ignore\":[\"lm_head\"],\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"]," \
  "\"weights\":{\"type\":\"int\",\"symmetric\":" symmetric "," weights "}}}"
#define INT4(symmetric, group)            \
  COMPRESSED("pack-quantized", symmetric, \
             "\"num_bits\":4,\"strategy\":\"group\",\"group_size\":" #group)
#define INT8 COMPRESSED("int-quantized", "true", "\"num_bits\":8,\"strategy\":\"channel\"")

// A mixture of codes: of experts of so many features a panel of down has parts of several.
#define CODED_MIXTURE(features, experts, slots, quantization)                                      \
  "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":1000," \
  "\"hidden_size\":2048,\"intermediate_size\":3072,\"moe_intermediate_size\":" #features           \
  ",\"num_experts\":" #experts ",\"num_experts_per_tok\":" #slots                                  \
  ",\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[1],"                    \
  "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":1,\"head_dim\":128,"  \
  "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"                  \
  "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\","             \
  "\"quantization_config\":{" quantization "}}"

// gpt-oss, with windows shorter than a chunk of attention.
#define OSS(hidden, features, more)                                                            \
  "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"vocab_size\":1000," \
  "\"hidden_size\":" #hidden ",\"intermediate_size\":" #features                               \
  ",\"num_local_experts\":16,\"num_experts_per_tok\":4,\"num_hidden_layers\":3,"               \
  "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"head_dim\":64,"                      \
  "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-5,\"rope_theta\":150000,"             \
  "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,"               \
  "\"beta_slow\":1.0,\"truncate\":false,\"original_max_position_embeddings\":4096},"           \
  "\"attention_bias\":true,\"swiglu_limit\":7.0,\"sliding_window\":40,"                        \
  "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"" more "}"

static const struct {
  const char *name;
  const char *json;
} small_models[] = {
    {"oss", OSS(1024, 256, "")},
    // Rows end within a panel, of gate and up and of down's slots; the others' within a page.
    {"oss_mxfp4", OSS(1600, 320, ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}")},
    {"windows",  // longer and shorter than a chunk, in every layer
     "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"vocab_size\":1000,"
     "\"hidden_size\":256,\"intermediate_size\":640,\"num_hidden_layers\":3,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":64,\"sliding_window\":200,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
     "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
    {"experts_fp8",
     CODED_MIXTURE(768, 40, 4, "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]")},
    {"experts_int4", CODED_MIXTURE(256, 24, 8, INT4("true", 128))},
    {"fp8", CODED(1088, 2240, "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]")},
    {"int4", CODED(1152, 2304, INT4("true", 128))},
    // Rows of whole panels, of one of the matrices an odd number of them.
    {"fp8_whole", CODED(2048, 5120, "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]")},
    {"int4_whole", CODED(2048, 5120, INT4("true", 128))},
    {"int8_whole", CODED(2048, 5120, INT8)},
    {"fp8_cut",
     CODED_OF(4096, 2048, 5120, "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]")},
    {"int4_cut", CODED_OF(4096, 2048, 5120, INT4("true", 128))},
    {"int4_32", CODED(1088, 2240, INT4("true", 32))},
    {"zeros", CODED(2048, 3072, INT4("false", 128))},
    {"zeros_64", CODED(1088, 2240, INT4("false", 64))},
    {"int8", CODED(1088, 2240, INT8)},
    {"tiny",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":1000,"
     "\"hidden_size\":256,\"intermediate_size\":640,\"num_hidden_layers\":4,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":64,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
    {"wide",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":4104,"
     "\"hidden_size\":1096,\"intermediate_size\":2200,\"num_hidden_layers\":2,"
     "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":128,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-5,\"rope_theta\":500000,"
     "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
    {"whole",  // rows of whole pairs of pages, as most real models have
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":4104,"
     "\"hidden_size\":2048,\"intermediate_size\":3072,\"num_hidden_layers\":2,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":128,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
    {"experts",  // a page of down has parts of four experts
     "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":"
     "1000,"
     "\"hidden_size\":1024,\"intermediate_size\":640,\"moe_intermediate_size\":128,"
     "\"num_experts\":24,\"num_experts_per_tok\":8,\"norm_topk_prob\":false,"
     "\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"num_hidden_layers\":3,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":64,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
    {"slots",  // a dense layer between, and pages that begin in one expert and end in the next
     "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":"
     "4104,"
     "\"hidden_size\":2048,\"intermediate_size\":3072,\"moe_intermediate_size\":768,"
     "\"num_experts\":40,\"num_experts_per_tok\":4,\"norm_topk_prob\":true,"
     "\"decoder_sparse_step\":1,\"mlp_only_layers\":[1],\"num_hidden_layers\":3,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":1,\"head_dim\":128,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
    {"cut",  // that its halves have rows of whole pairs of pages, too
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":4096,"
     "\"hidden_size\":2048,\"intermediate_size\":4096,\"num_hidden_layers\":3,"
     "\"num_attention_heads\":16,\"num_key_value_heads\":4,\"head_dim\":128,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
    {"sums",  // as wide as Qwen3-8B, with as little between two sums over ranks as can be
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":4096,"
     "\"hidden_size\":4096,\"intermediate_size\":256,\"num_hidden_layers\":32,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":128,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
    {"bias",
     "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":512,"
     "\"hidden_size\":256,\"intermediate_size\":512,\"num_hidden_layers\":3,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":1,"
     "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"},
};

void gpu_model_open(const char *name, gpu_model *out) {
  mgl_error err = {0};
  *out = (gpu_model){.name = name};
  const char *json = NULL;
  for (size_t i = 0; i < sizeof small_models / sizeof small_models[0]; i++) {
    json = strcmp(name, small_models[i].name) == 0 ? small_models[i].json : json;
  }
  if (json != NULL) {
    mgl_generation generation;
    gpu_must(mgl_config_parse(json, strlen(json), name, &out->config, &generation, &err), &err);
  } else {
    mgl_model_folder folder;
    gpu_must(mgl_model_folder_open(name, 0, &folder, &err), &err);
    out->config = folder.config;
    mgl_model_folder_close(&folder);
    const char *slash = strrchr(name, '/');
    out->name = slash != NULL && slash[1] != '\0' ? slash + 1 : name;
  }
  gpu_must(mgl_family_build(&out->config, NULL, &out->program, &err), &err);
}

void gpu_model_close(gpu_model *model) {
  mgl_graph_destroy(model->program);
  *model = (gpu_model){0};
}

int32_t gpu_model_token(const gpu_model *model, uint32_t i) {
  uint64_t x = (i + UINT64_C(1)) * UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 31;
  return (int32_t)(x % model->config.vocab_size);
}

mgl_cuda_program *gpu_program(gpu_bench *bench, const gpu_model *model,
                              mgl_cuda_program_options options) {
  mgl_error err = {0};
  mgl_cuda_program *program = NULL;
  options.program = model->program;
  options.build.seed = GPU_SEED;
  gpu_must(mgl_cuda_program_create(&bench->device, &options, &program, &err), &err);
  return program;
}
