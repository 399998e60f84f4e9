// The family builders: their programs have the ops that each architecture needs, and their weights
// the names and shapes of the Hugging Face checkpoints.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "support/failing_allocations.h"
#include "support/programs.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

static mgl_config three_layers(mgl_family family) {
  mgl_config config = small_config(family);
  config.layer_count = 3;
  return config;
}

static size_t count_ops(const mgl_graph *graph, mgl_op_kind kind) {
  size_t count = 0;
  for (size_t i = 0; i < graph->op_count; i++) {
    count += graph->ops[i].kind == kind;
  }
  return count;
}

static void assert_weight(const mgl_graph *graph, const char *name, uint32_t rank, uint32_t rows,
                          uint32_t columns) {
  uint32_t tensor = mgl_graph_find(graph, name);
  if (tensor == MGL_NO_TENSOR) {
    fail_msg("no weight %s", name);
  }
  const mgl_tensor *t = &graph->tensors[tensor];
  assert_int_equal(t->placement, MGL_PLACE_WEIGHT);
  assert_int_equal(t->rank, rank);
  assert_int_equal(t->dims[0].number, rows);
  if (rank == 2) {
    assert_int_equal(t->dims[1].number, columns);
  }
}

static void every_family_builds(void **state) {
  (void)state;
  for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
    mgl_config config = three_layers((mgl_family)family);
    if (family >= MGL_FAMILY_PHI) {
      continue;  // below, and mixtures in test_cpu_experts.c
    }
    mgl_graph *graph = build_program(&config);
    assert_string_equal(graph->name, mgl_family_name((mgl_family)family));
    assert_int_equal(count_ops(graph, MGL_OP_LINEAR), 3 * 7 + 1);
    assert_int_equal(count_ops(graph, MGL_OP_RMSNORM), 3 * (config.qk_norm ? 4 : 2) + 1);
    assert_int_equal(count_ops(graph, MGL_OP_ATTENTION), 3);
    assert_int_equal(count_ops(graph, MGL_OP_KV_WRITE), 3);
    assert_int_equal(count_ops(graph, MGL_OP_ROPE), 6);
    assert_int_equal(count_ops(graph, MGL_OP_ADD), 6);
    assert_weight(graph, "model.layers.2.self_attn.q_proj.weight", 2, 192, 96);
    assert_weight(graph, "model.layers.2.self_attn.k_proj.weight", 2, 64, 96);
    assert_weight(graph, "model.layers.2.self_attn.o_proj.weight", 2, 96, 192);
    assert_weight(graph, "model.layers.0.mlp.down_proj.weight", 2, 96, 128);
    assert_weight(graph, "model.norm.weight", 1, 96, 0);
    bool biased = mgl_graph_find(graph, "model.layers.0.self_attn.v_proj.bias") != MGL_NO_TENSOR;
    assert_int_equal(biased, family == MGL_FAMILY_QWEN2);
    bool own_head = mgl_graph_find(graph, "lm_head.weight") != MGL_NO_TENSOR;
    assert_int_equal(own_head, !config.tie_word_embeddings);
    if (config.qk_norm) {
      assert_weight(graph, "model.layers.1.self_attn.q_norm.weight", 1, 32, 0);
    }
    uint32_t logits = mgl_graph_find(graph, "logits");
    assert_true(logits != MGL_NO_TENSOR && graph->tensors[logits].is_output);
    assert_int_equal(graph->tensors[logits].dims[0].symbol, MGL_DIM_LOGIT_ROWS);
    mgl_graph_destroy(graph);
  }
}

static void phi_has_other_ops(void **state) {
  (void)state;
  mgl_config config = three_layers(MGL_FAMILY_PHI);
  config.qkv_bias = config.output_bias = config.mlp_bias = config.head_bias = true;
  config.rotary_dim = 16;
  mgl_graph *graph = build_program(&config);
  assert_string_equal(graph->name, "phi");
  assert_int_equal(count_ops(graph, MGL_OP_LINEAR), 3 * 6 + 1);
  assert_int_equal(count_ops(graph, MGL_OP_LAYERNORM), 3 + 1);
  assert_int_equal(count_ops(graph, MGL_OP_RMSNORM), 0);
  assert_int_equal(count_ops(graph, MGL_OP_GELU), 3);
  assert_int_equal(count_ops(graph, MGL_OP_ADD), 6);
  assert_weight(graph, "model.layers.2.input_layernorm.bias", 1, 96, 0);
  assert_weight(graph, "model.layers.2.self_attn.dense.weight", 2, 96, 192);
  assert_weight(graph, "model.layers.2.self_attn.dense.bias", 1, 96, 0);
  assert_weight(graph, "model.layers.0.mlp.fc1.weight", 2, 128, 96);
  assert_weight(graph, "model.layers.0.mlp.fc2.bias", 1, 96, 0);
  assert_weight(graph, "model.final_layernorm.weight", 1, 96, 0);
  assert_true(mgl_graph_find(graph, "lm_head.bias") != MGL_NO_TENSOR);
  mgl_graph_destroy(graph);
}

static void activations_are_f32_unless_all_weights_are_bf16(void **state) {
  (void)state;
  static const mgl_dtype dtypes[] = {MGL_DTYPE_BF16, MGL_DTYPE_F16, MGL_DTYPE_F32};
  for (size_t i = 0; i < 3; i++) {
    mgl_config config = three_layers(MGL_FAMILY_LLAMA);
    config.dtype = dtypes[i];
    mgl_graph *graph = build_program(&config);
    mgl_dtype act = dtypes[i] == MGL_DTYPE_BF16 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
    assert_int_equal(graph->tensors[mgl_graph_find(graph, "0.gated")].dtype, act);
    assert_int_equal(graph->tensors[mgl_graph_find(graph, "kv.0")].dtype, act);
    assert_int_equal(graph->tensors[mgl_graph_find(graph, "0.q")].dtype, MGL_DTYPE_F32);
    mgl_graph_destroy(graph);
  }
}

// Writes a checkpoint with the weights of `graph`, zeros but for the embedding, and a head of its
// own unless head is NULL.
static void write_checkpoint(const temp_folder *folder, const mgl_graph *graph,
                             const uint16_t *table, mgl_dtype head_dtype, const uint16_t *head) {
  safetensors_writer writer;
  safetensors_begin(&writer, folder->path, "model.safetensors");
  uint64_t table_dims[2] = {0};
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *t = &graph->tensors[i];
    if (t->placement != MGL_PLACE_WEIGHT) {
      continue;
    }
    bool is_table = strcmp(t->name, "model.embed_tokens.weight") == 0;
    uint64_t dims[] = {t->dims[0].number, t->rank == 2 ? t->dims[1].number : 0};
    if (is_table) {
      memcpy(table_dims, dims, sizeof dims);
    }
    safetensors_add(&writer, t->name, t->dtype, t->rank, dims, is_table ? table : NULL);
  }
  if (head != NULL) {
    safetensors_add(&writer, "lm_head.weight", head_dtype, 2, table_dims, head);
  }
  safetensors_finish(&writer);
}

// A head beside a tied embedding counts where it differs, as in transformers 5; a copy stays tied.
static void a_stored_head_beside_a_tied_embedding(void **state) {
  (void)state;
  enum { ELEMENTS = 300 * 96 };
  static uint16_t table[ELEMENTS];
  static uint16_t copy[ELEMENTS];
  static uint16_t other[ELEMENTS];
  for (size_t i = 0; i < ELEMENTS; i++) {
    table[i] = copy[i] = other[i] = (uint16_t)(i % 1000);
  }
  other[ELEMENTS - 1] ^= 1;
  static const struct {
    bool ties;
    mgl_dtype dtype;
    const uint16_t *head;
    bool own_head;
  } cases[] = {
      {true, MGL_DTYPE_BF16, NULL, false}, {true, MGL_DTYPE_BF16, copy, false},
      {true, MGL_DTYPE_BF16, other, true}, {true, MGL_DTYPE_F16, copy, true},
      {false, MGL_DTYPE_BF16, copy, true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    temp_folder folder;
    mgl_checkpoint *checkpoint = NULL;
    mgl_graph *graph = NULL;
    mgl_error err = {0};
    mgl_config config = three_layers(MGL_FAMILY_LLAMA);
    config.tie_word_embeddings = true;
    mgl_graph *names = build_program(&config);
    config.tie_word_embeddings = cases[i].ties;
    temp_folder_create(&folder);
    write_checkpoint(&folder, names, table, cases[i].dtype, cases[i].head);
    assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
    if (mgl_family_build(&config, checkpoint, &graph, &err) != MGL_OK) {
      fail_msg("case %zu: %s", i, err.text);
    }
    uint32_t head = mgl_graph_find(graph, "lm_head.weight");
    assert_int_equal(head != MGL_NO_TENSOR, cases[i].own_head);
    if (cases[i].own_head) {
      assert_weight(graph, "lm_head.weight", 2, 300, 96);
      assert_int_equal(graph->tensors[head].dtype, cases[i].dtype);
    }
    mgl_graph_destroy(graph);
    mgl_graph_destroy(names);
    mgl_checkpoint_close(checkpoint);
    temp_folder_remove(&folder);
  }
}

static mgl_status build_once(void *config, mgl_error *err) {
  mgl_graph *graph = NULL;
  mgl_status status = mgl_family_build(config, NULL, &graph, err);
  assert_true(status == MGL_OK || graph == NULL);
  mgl_graph_destroy(graph);
  return status;
}

static void allocation_failures_are_reported(void **state) {
  (void)state;
  mgl_config config = three_layers(MGL_FAMILY_QWEN3);
  assert_true(fail_each_allocation(build_once, &config) > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_family_builds),
      cmocka_unit_test(phi_has_other_ops),
      cmocka_unit_test(activations_are_f32_unless_all_weights_are_bf16),
      cmocka_unit_test(a_stored_head_beside_a_tied_embedding),
      cmocka_unit_test(allocation_failures_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
