// Which matrices are quantised, by the names that families give them, and what the new config.json
// says of those that are not. How well is asked by test_cli_quantize.sh.
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/topology.h"
#include "engine/quantize_model.h"
#include "support/must.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

static const char config[] =
    "{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", \"hidden_size\": "
    "32,"
    " \"intermediate_size\": 32, \"num_hidden_layers\": 1, \"vocab_size\": 8,"
    " \"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"num_local_experts\": 2, "
    "\"num_experts_per_tok\": 1,"
    " \"torch_dtype\": \"bfloat16\"}";

// Of several families, since the names alone count.
static const char *const quantised[] = {"model.layers.0.self_attn.q_proj",
                                        "model.layers.0.mlp.experts.1.down_proj",
                                        "model.layers.0.block_sparse_moe.experts.0.w1",
                                        "model.layers.0.block_sparse_moe.experts.0.w2",
                                        "model.layers.0.block_sparse_moe.experts.1.w3",
                                        "model.layers.0.self_attn.dense",
                                        "model.layers.0.mlp.fc1",
                                        "model.layers.0.mlp.fc2"};
static const char *const ignored[] = {"lm_head", "model.layers.0.block_sparse_moe.gate",
                                      "model.layers.0.mlp.shared_expert_gate"};
enum {
  QUANTISED = sizeof quantised / sizeof *quantised,
  IGNORED = sizeof ignored / sizeof *ignored
};

static void add(safetensors_writer *writer, const char *module) {
  char name[128];
  (void)snprintf(name, sizeof name, "%s.weight", module);
  safetensors_add(writer, name, MGL_DTYPE_BF16, 2, (uint64_t[]){32, 32}, NULL);
}

static void write_folder(const temp_folder *folder) {
  safetensors_writer writer;
  safetensors_begin(&writer, folder->path, "model.safetensors");
  add(&writer, "model.embed_tokens");
  for (int i = 0; i < QUANTISED; i++) {
    add(&writer, quantised[i]);
  }
  for (int i = 0; i < IGNORED; i++) {
    add(&writer, ignored[i]);
  }
  safetensors_add(&writer, "model.norm.weight", MGL_DTYPE_BF16, 1, (uint64_t[]){32}, NULL);
  safetensors_finish(&writer);
  temp_folder_write_text(folder, "config.json", config);
}

static void matrices_of_layers_and_experts(void **state) {
  temp_folder from, to;
  mgl_topology *topology = NULL;
  mgl_quantise_result result;
  mgl_quantise_options options = {.to = MGL_QUANTISE_FP8};
  char path[TEMP_PATH_BYTES];
  (void)state;
  temp_folder_create(&from);
  temp_folder_create(&to);
  write_folder(&from);
  options.from = from.path;
  options.to_folder = to.path;
  MUST(mgl_topology_create(&topology, &err));
  MUST(mgl_team_create(topology, 1, &options.team, &err));
  MUST(mgl_quantise_model(&options, &result, &err));
  assert_int_equal(result.matrices, QUANTISED);
  temp_folder_path(&to, "config.json", path);
  json_t *root = json_load_file(path, 0, NULL);
  assert_non_null(root);
  const json_t *names = json_object_get(json_object_get(root, "quantization_config"), "ignore");
  assert_int_equal(json_array_size(names), IGNORED);
  for (int i = 0; i < IGNORED; i++) {
    bool found = false;
    for (size_t j = 0; j < json_array_size(names); j++) {
      found = found || strcmp(json_string_value(json_array_get(names, j)), ignored[i]) == 0;
    }
    assert_true(found);
  }
  json_decref(root);
  mgl_team_destroy(options.team);
  mgl_topology_destroy(topology);
  temp_folder_remove(&from);
  temp_folder_remove(&to);
}

// What could be written, nobody could read: nothing is.
static void gpt_oss_is_refused(void **state) {
  temp_folder from;
  char to[TEMP_PATH_BYTES];
  mgl_quantise_result result;
  mgl_error err = {0};
  (void)state;
  temp_folder_create(&from);
  temp_folder_write_text(
      &from, "config.json",
      "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", \"head_dim\": 32,"
      " \"hidden_size\": 32, \"intermediate_size\": 32, \"num_hidden_layers\": 1, \"vocab_size\": "
      "8,"
      " \"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"num_local_experts\": 2,"
      " \"num_experts_per_tok\": 1, \"sliding_window\": 8, \"rope_scaling\": {\"rope_type\": "
      "\"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 64}, \"torch_dtype\": "
      "\"bfloat16\"}");
  temp_folder_path(&from, "new", to);
  const mgl_quantise_options options = {.from = from.path, .to_folder = to};
  const mgl_status status = mgl_quantise_model(&options, &result, &err);
  if (status != MGL_ERR_UNSUPPORTED || strstr(err.text, "is a gpt-oss model") == NULL) {
    fail_msg("%s", err.text);
  }
  assert_int_not_equal(access(to, F_OK), 0);
  temp_folder_remove(&from);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(matrices_of_layers_and_experts),
      cmocka_unit_test(gpt_oss_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
