#include "support/fake_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "graph/family.h"
#include "support/fake_cuda.h"

static const char *const config_json =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":512,"
    "\"hidden_size\":256,\"intermediate_size\":200,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"max_position_embeddings\":16384,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}";

static const char *const coded_json =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":512,"
    "\"hidden_size\":256,\"intermediate_size\":320,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"max_position_embeddings\":16384,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\",\"quantization_config\":"
    "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}";

mgl_graph *fake_model_graph(const mgl_checkpoint *checkpoint) {
  mgl_error err = {0};
  mgl_config config;
  mgl_generation generation;
  mgl_graph *graph = NULL;
  const char *json = fake.codes ? coded_json : config_json;
  assert_int_equal(mgl_config_parse(json, strlen(json), "test", &config, &generation, &err),
                   MGL_OK);
  assert_int_equal(mgl_family_build(&config, checkpoint, &graph, &err), MGL_OK);
  return graph;
}

mgl_cuda_program *fake_model_program(const mgl_cuda_device *device,
                                     mgl_cuda_program_options options) {
  mgl_error err = {0};
  mgl_cuda_program *program = NULL;
  mgl_graph *graph = fake_model_graph(options.checkpoint);
  options.program = graph;
  options.build.seed = FAKE_MODEL_SEED;
  options.get_code = fake_cuda_code;
  if (mgl_cuda_program_create(device, &options, &program, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  mgl_graph_destroy(graph);
  return program;
}

const mgl_cuda_program_options fake_model_usual = {
    .sizes.limits.tokens = 16, .sizes.sequences = 4, .sizes.limits.pages_per_sequence = 8};

mgl_status fake_model_run(mgl_cuda_program *program, uint32_t tokens,
                          mgl_cuda_launch_options launch, mgl_error *err) {
  static const int32_t prompt[] = {1, 2, 3};
  mgl_cuda_request request = {.prompt = prompt, .prompt_count = 3, .max_new_tokens = tokens};
  mgl_cuda_generate job = {.requests = &request, .request_count = 1, .launch = launch};
  return mgl_cuda_program_generate(program, &job, err);
}
