// Models in GGUF files (tests/data/gguf, made by tools/make_gguf_cases.py) against a forward pass in
// float64 over what PyPI's gguf makes of the same bytes; and, where weights are plain, against the
// same model as a folder: there the bits must be equal.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "batch/plan.h"
#include "device/cpu/cpu_weights.h"
#include "engine/runner.h"
#include "graph/family.h"
#include "model/dummy_weights.h"
#include "model/model_folder.h"
#include "support/must.h"
#include "support/reference_model.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

#define CASES MGL_TEST_DATA "/gguf/"

enum { TOKENS = 6, VOCABULARY = 48, SEED = 3, PATH_BYTES = 1024 };

static const int32_t tokens[TOKENS] = {5, 17, 3, 40, 22, 9};

typedef struct logits {
  float rows[TOKENS][VOCABULARY];
} logits;

// Runs the tokens in one iteration in both modes, which must give the same bits.
static void run(const mgl_model_folder *folder, mgl_weight_source source, logits *out) {
  mgl_runner *runner = NULL;
  mgl_plan *plan = NULL;
  mgl_logits found = {0};
  mgl_build build = {
      .threads = 2, .sequences = 1, .sequence_tokens = 32, .logit_rows = TOKENS, .weights = source};
  MUST(mgl_runner_create(folder, &build, &runner, &err));
  MUST(mgl_plan_create(mgl_runner_limits(runner), &plan, &err));
  int32_t pages[32];
  for (int32_t i = 0; i < 32; i++) {
    pages[i] = i;
  }
  mgl_plan_chunk chunk = {.tokens = tokens,
                          .token_count = TOKENS,
                          .prompt_count = TOKENS,
                          .pages = pages,
                          .page_count = mgl_runner_limits(runner)->pages_per_sequence,
                          .logits = MGL_LOGITS_ALL};
  static const mgl_mode modes[] = {MGL_MODE_EAGER, MGL_MODE_MEGA};
  for (int m = 0; m < 2; m++) {
    mgl_plan_clear(plan);
    mgl_plan_add(plan, &chunk);
    MUST(mgl_runner_run(runner, modes[m], plan, &found, &err));
    if (m == 1) {
      assert_memory_equal(out, found.rows, sizeof *out);
    }
    memcpy(out, found.rows, sizeof *out);
  }
  mgl_plan_destroy(plan);
  mgl_runner_destroy(runner);
}

static void run_file(const char *name, mgl_weight_source source, logits *out) {
  char path[PATH_BYTES];
  mgl_model_folder folder;
  (void)snprintf(path, sizeof path, CASES "%s.gguf", name);
  MUST(mgl_model_folder_open(path, MGL_NEED_WEIGHTS, &folder, &err));
  assert_int_equal(folder.config.vocab_size, VOCABULARY);
  run(&folder, source, out);
  mgl_model_folder_close(&folder);
}

// Against the forward pass: weights are those of gguf.dequantize, so what is left is rounding of
// activations, in bf16 where all weights are bf16 or codes.
static void gives_the_logits_of_gguf(void **state) {
  (void)state;
  static const struct {
    const char *name;
    double most_kl;
  } cases[] = {{"llama_f16", 1e-9},
               {"qwen2_f32", 1e-9},
               {"qwen3_bf16", 1e-3},
               {"llama_mixed", 1e-3},
               {"qwen3_tied", 1e-3}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char path[PATH_BYTES];
    char *expected = NULL;
    size_t bytes = 0;
    logits found[2];
    (void)snprintf(path, sizeof path, CASES "%s.f32", cases[i].name);
    MUST(mgl_file_read(path, sizeof *found, &expected, &bytes, &err));
    assert_int_equal(bytes, sizeof *found);
    run_file(cases[i].name, MGL_WEIGHTS_MAPPED, &found[0]);
    run_file(cases[i].name, MGL_WEIGHTS_COPIED, &found[1]);
    assert_memory_equal(&found[0], &found[1], sizeof *found);
    logits wanted;
    memcpy(&wanted, expected, sizeof wanted);
    mgl_divergence d =
        mgl_reference_divergence(wanted.rows[0], found[0].rows[0], TOKENS, VOCABULARY);
    print_message("%s: KL at most %g, logits %g\n", cases[i].name, d.max_kl, d.max_logit_error);
    assert_true(d.max_kl <= cases[i].most_kl);
    mgl_free(expected);
  }
}

// --- the same as a folder ------------------------------------------------------------------------

// The names and shapes are the file's, the values those that the tool drew.
static void write_folder(const mgl_checkpoint *checkpoint, const char *config, mgl_dtype dtype,
                         const temp_folder *folder) {
  safetensors_writer writer;
  temp_folder_write_text(folder, "config.json", config);
  safetensors_begin(&writer, folder->path, "model.safetensors");
  for (size_t i = 0; i < mgl_checkpoint_tensor_count(checkpoint); i++) {
    const mgl_stored_tensor *t = mgl_checkpoint_at(checkpoint, i);
    size_t count = (size_t)(t->rank == 2 ? t->dims[0] * t->dims[1] : t->dims[0]);
    unsigned char *values = malloc(count * sizeof(float));
    mgl_dummy_weights_fill(t->name, SEED, dtype, t->rank, t->dims, 0, count, values);
    safetensors_add(&writer, t->name, dtype, t->rank, t->dims, values);
    free(values);
  }
  safetensors_finish(&writer);
}

static void gives_the_bits_of_a_folder(void **state) {
  (void)state;
  static const struct {
    const char *name;
    mgl_dtype dtype;
    const char *config;
  } cases[] = {
      {"llama_f16", MGL_DTYPE_F16,
       "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":64,"
       "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
       "\"head_dim\":16,\"vocab_size\":48,\"max_position_embeddings\":256,"
       "\"rms_norm_eps\":1e-5,\"bos_token_id\":null,\"eos_token_id\":null,"
       "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
       "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}"},
      {"qwen3_bf16", MGL_DTYPE_BF16,
       "{\"model_type\":\"qwen3\",\"hidden_size\":32,\"intermediate_size\":64,"
       "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
       "\"head_dim\":16,\"vocab_size\":48,\"max_position_embeddings\":256,"
       "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}"},
      {"qwen2_f32", MGL_DTYPE_F32,
       "{\"model_type\":\"qwen2\",\"hidden_size\":48,\"intermediate_size\":64,"
       "\"num_hidden_layers\":1,\"num_attention_heads\":3,\"num_key_value_heads\":1,"
       "\"head_dim\":16,\"vocab_size\":48,\"max_position_embeddings\":256,"
       "\"rms_norm_eps\":1e-5}"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char path[PATH_BYTES];
    temp_folder place;
    mgl_model_folder file, folder;
    logits of_file, of_folder;
    (void)snprintf(path, sizeof path, CASES "%s.gguf", cases[i].name);
    temp_folder_create(&place);
    MUST(mgl_model_folder_open(path, MGL_NEED_WEIGHTS, &file, &err));
    write_folder(file.checkpoint, cases[i].config, cases[i].dtype, &place);
    MUST(mgl_model_folder_open(place.path, MGL_NEED_WEIGHTS, &folder, &err));
    run(&file, MGL_WEIGHTS_MAPPED, &of_file);
    run(&folder, MGL_WEIGHTS_MAPPED, &of_folder);
    assert_memory_equal(&of_file, &of_folder, sizeof of_file);
    assert_int_equal(file.config.family, folder.config.family);
    assert_int_equal(file.config.rope.kind, folder.config.rope.kind);
    assert_int_equal(file.config.context_tokens, folder.config.context_tokens);
    assert_int_equal(file.config.tie_word_embeddings, folder.config.tie_word_embeddings);
    mgl_model_folder_close(&file);
    mgl_model_folder_close(&folder);
    temp_folder_remove(&place);
  }
}

// As a GPU's upload binds weights: without threads. Interleaved rows must be in order.
static void binds_weights_without_a_team(void **state) {
  (void)state;
  mgl_model_folder folder;
  mgl_graph *graph = NULL;
  mgl_cpu_weights weights;
  MUST(mgl_model_folder_open(CASES "llama_f16.gguf", MGL_NEED_WEIGHTS, &folder, &err));
  MUST(mgl_family_build(&folder.config, folder.checkpoint, &graph, &err));
  MUST(mgl_cpu_weights_bind(graph, folder.checkpoint, MGL_WEIGHTS_MAPPED, 0, NULL, NULL, NULL,
                            &weights, &err));
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *t = &graph->tensors[i];
    if (t->placement != MGL_PLACE_WEIGHT || t->rank != 2) {
      continue;
    }
    uint64_t dims[] = {t->dims[0].number, t->dims[1].number};
    size_t count = (size_t)(dims[0] * dims[1]);
    assert_int_equal(t->dtype, MGL_DTYPE_F16);
    mgl_f16 *drawn = malloc(count * sizeof *drawn);
    mgl_dummy_weights_fill(t->name, SEED, t->dtype, 2, dims, 0, count, drawn);
    assert_memory_equal(weights.data[i], drawn, count * sizeof *drawn);
    free(drawn);
  }
  mgl_cpu_weights_release(&weights);
  mgl_graph_destroy(graph);
  mgl_model_folder_close(&folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gives_the_logits_of_gguf),
      cmocka_unit_test(gives_the_bits_of_a_folder),
      cmocka_unit_test(binds_weights_without_a_team),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
