// mgl_shard_program: the shapes and slices of a rank's program for every family that can be cut, the
// task graphs of such programs under all options, what cannot be cut, and what the verifier refuses.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "compile/shard.h"
#include "support/programs.h"

// Eight query heads, four KV heads.
static mgl_config config_of(mgl_family family) {
  mgl_config config = small_config(family);
  config.head_count = 8;
  config.kv_head_count = 4;
  config.vocab_size = 320;
  return config;
}

static mgl_graph *shard(const mgl_config *config, uint32_t ranks) {
  mgl_graph *whole = build_program(config);
  mgl_graph *part = NULL;
  MUST(mgl_shard_program(whole, ranks, &part, &err));
  mgl_graph_destroy(whole);
  return part;
}

// With tables and sums cut, too.
static mgl_graph *shard_by(const mgl_config *config, uint32_t ranks, bool table, bool sums) {
  mgl_graph *whole = build_program(config);
  mgl_graph *part = NULL;
  const mgl_shard_options options = {
      .ranks = ranks, .vocab_parallel = table, .reduce_scatter = sums};
  MUST(mgl_shard_program_by(whole, &options, &part, &err));
  mgl_graph_destroy(whole);
  return part;
}

static const mgl_tensor *find(const mgl_graph *graph, const char *name) {
  uint32_t tensor = mgl_graph_find(graph, name);
  if (tensor == MGL_NO_TENSOR) {
    fail_msg("no tensor \"%s\"", name);
  }
  return &graph->tensors[tensor];
}

// The weight is [rows, columns], a part of `whole` along `dim` that `share` ranks have.
static void check_part(const mgl_graph *graph, const char *name, uint32_t rows, uint32_t columns,
                       uint32_t dim, uint32_t whole, uint32_t share) {
  const mgl_tensor *t = find(graph, name);
  assert_int_equal(t->dims[0].number, rows);
  assert_int_equal(t->dims[1].number, columns);
  assert_int_equal(t->slice.whole, whole);
  assert_int_equal(t->slice.dim, dim);
  assert_int_equal(t->slice.share, share);
}

static void a_rank_has_its_part_of_each_weight(void **state) {
  (void)state;
  const mgl_config config = config_of(MGL_FAMILY_QWEN3);  // its embedding is its output projection
  for (uint32_t ranks = 2; ranks <= MGL_MAX_RANKS; ranks *= 2) {
    mgl_graph *g = shard(&config, ranks);
    const uint32_t share = ranks > 4 ? ranks / 4 : 1;
    check_part(g, "model.layers.1.self_attn.q_proj.weight", 256 / ranks, 96, 0, 256, 1);
    check_part(g, "model.layers.1.self_attn.k_proj.weight", 128 * share / ranks, 96, 0, 128, share);
    check_part(g, "model.layers.1.self_attn.o_proj.weight", 96, 256 / ranks, 1, 256, 1);
    check_part(g, "model.layers.0.mlp.gate_proj.weight", 128 / ranks, 96, 0, 128, 1);
    check_part(g, "model.layers.0.mlp.down_proj.weight", 96, 128 / ranks, 1, 128, 1);
    check_part(g, "model.embed_tokens.weight.part", 320 / ranks, 96, 0, 320, 1);
    assert_true(find(g, "model.embed_tokens.weight.part")->slice.renamed);
    assert_int_equal(find(g, "model.embed_tokens.weight")->slice.whole, 0);
    assert_int_equal(find(g, "model.embed_tokens.weight")->dims[0].number, 320);
    assert_int_equal(find(g, "kv.0")->dims[0].number, 4 * share / ranks);
    assert_int_equal(find(g, "0.attention")->dims[1].number, 8 / ranks);
    assert_int_equal(find(g, "logits.part")->dims[1].number, 320 / ranks);
    assert_int_equal(find(g, "logits")->dims[1].number, 320);
    assert_true(find(g, "logits")->is_output);
    assert_false(find(g, "logits.part")->is_output);
    // Neighbours share a KV head; all parts together are the whole weight.
    const mgl_tensor *k = find(g, "model.layers.0.self_attn.k_proj.weight");
    for (uint32_t rank = 0; rank < ranks; rank++) {
      assert_int_equal(mgl_slice_begin(k, rank), rank / share * k->dims[0].number);
    }
    assert_int_equal(mgl_slice_begin(k, ranks - 1) + k->dims[0].number, 128);
    mgl_graph_destroy(g);
  }
}

// Biases by rows are cut; those of sums are rank 0's. Codes are cut with their scales.
static void biases_and_codes_are_cut(void **state) {
  (void)state;
  mgl_config config = config_of(MGL_FAMILY_LLAMA);
  config.output_bias = config.mlp_bias = true;
  config.quantization.method = MGL_QUANT_COMPRESSED;
  config.quantization.drawn = (mgl_form){.dtype = MGL_DTYPE_I4, .group = 32};
  mgl_graph *g = shard(&config, 4);
  const mgl_tensor *gate = find(g, "model.layers.0.mlp.gate_proj.bias");
  const mgl_tensor *down = find(g, "model.layers.0.mlp.down_proj.bias");
  assert_int_equal(gate->dims[0].number, 32);
  assert_int_equal(mgl_slice_begin(gate, 3), 96);
  assert_false(gate->slice.only_first);
  assert_int_equal(down->dims[0].number, 96);
  assert_true(down->slice.only_first);
  for (uint32_t rank = 0; rank < 4; rank++) {
    assert_int_equal(mgl_slice_begin(down, rank), 0);
  }
  check_part(g, "model.layers.0.mlp.down_proj.weight", 96, 32, 1, 128, 1);
  assert_int_equal(find(g, "model.layers.0.mlp.down_proj.weight")->group, 32);
  assert_int_equal(find(g, "model.layers.0.mlp.down_proj.weight")->dtype, MGL_DTYPE_I4);
  mgl_graph_destroy(g);
}

static mgl_task_graph *compile(const mgl_graph *program, mgl_compile_options options) {
  mgl_task_graph *tasks = NULL;
  options.verify = true;
  MUST(mgl_compile(program, &options, &tasks, NULL, &err));
  return tasks;
}

// Every exchange waits AOT for an event of all ranks, whatever the options.
static void check_exchanges(const mgl_task_graph *tasks) {
  uint32_t exchanges = 0;
  for (uint32_t i = 0; i < tasks->task_count; i++) {
    if (mgl_op_kind_is_exchange(tasks->tasks[i].type)) {
      exchanges++;
      assert_int_equal(tasks->tasks[i].flags, 0);
      assert_int_equal(tasks->events[tasks->tasks[i].dependent_event].flags,
                       MGL_EVENT_HAS_AOT | MGL_EVENT_REMOTE);
    }
  }
  assert_true(exchanges >= 5);
}

// A rank has the same rows or columns of every expert, and its part of every expert's bias; the
// router is whole. What it adds up begins at zeros and ends in a sum over the ranks.
static void experts_and_sinks_are_cut(void **state) {
  (void)state;
  mgl_config config = config_of(MGL_FAMILY_GPT_OSS);
  config.sinks = true;
  config.mixture = (mgl_mixture){.expert_count = 6,
                                 .slots = 2,
                                 .inner_size = 128,
                                 .scale = 1,
                                 .limit = 7,
                                 .router_bias = true,
                                 .expert_biases = true};
  mgl_graph *g = shard(&config, 4);
  const mgl_tensor *gate = find(g, "model.layers.0.mlp.experts.gate_proj.weight");
  const mgl_tensor *down = find(g, "model.layers.0.mlp.experts.down_proj.weight");
  const mgl_tensor *gate_bias = find(g, "model.layers.0.mlp.experts.gate_proj.bias");
  const mgl_tensor *down_bias = find(g, "model.layers.0.mlp.experts.down_proj.bias");
  check_part(g, gate->name, 6, 32, 1, 128, 1);
  assert_int_equal(gate->dims[2].number, 96);
  check_part(g, down->name, 6, 96, 2, 128, 1);
  assert_int_equal(down->dims[2].number, 32);
  assert_int_equal(mgl_slice_begin(gate, 3), 96);
  assert_int_equal(mgl_slice_begin(down, 2), 64);
  assert_int_equal(gate_bias->dims[0].number, 6 * 32);
  assert_int_equal(gate_bias->slice.pieces, 6);
  assert_int_equal(mgl_stored_dim(gate_bias, 0), 6 * 128);
  assert_int_equal(mgl_slice_begin(gate_bias, 3), 96);
  assert_int_equal(down_bias->dims[0].number, 6 * 96);
  assert_true(down_bias->slice.only_first);
  assert_int_equal(find(g, "model.layers.0.mlp.router.weight")->slice.whole, 0);
  const mgl_tensor *sinks = find(g, "model.layers.0.self_attn.sinks");
  assert_int_equal(sinks->dims[0].number, 2);
  assert_int_equal(mgl_slice_begin(sinks, 3), 6);
  uint32_t zeros = 0;
  for (size_t i = 0; i < g->op_count; i++) {
    const mgl_op *op = &g->ops[i];
    if (op->kind == MGL_OP_EXPERT_DOWN) {
      zeros += g->ops[i - 1].kind == MGL_OP_ZEROS && op->inputs[0] == g->ops[i - 1].output;
      assert_int_equal(g->ops[i + 1].kind, MGL_OP_ALL_REDUCE);
      assert_int_equal(mgl_op_input(&g->ops[i + 1], MGL_ROLE_PART), op->output);
    }
  }
  assert_int_equal(zeros, config.layer_count);
  for (uint32_t workers = 1; workers < 6; workers += 2) {
    for (uint32_t tokens = 1; tokens <= 64; tokens *= 8) {
      mgl_task_graph *tasks =
          compile(g, (mgl_compile_options){.tokens = tokens, .workers = workers});
      check_exchanges(tasks);
      mgl_task_graph_destroy(tasks);
    }
  }
  mgl_graph_destroy(g);
}

static void fusion_leaves_two_exchanges_a_layer(void **state) {
  (void)state;
  static const char expected[] =
      "rope_angles embed "
      "qkv_proj attend linear all_reduce gate_up linear all_reduce "
      "qkv_proj attend linear all_reduce gate_up linear all_reduce logits all_gather ";
  static const mgl_family families[] = {MGL_FAMILY_QWEN3, MGL_FAMILY_QWEN2, MGL_FAMILY_LLAMA,
                                        MGL_FAMILY_MISTRAL, MGL_FAMILY_PHI3};
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    const mgl_config config = config_of(families[i]);
    mgl_graph *part = shard(&config, 2);
    mgl_graph *fused = NULL;
    char list[sizeof expected + 100] = "";
    MUST(mgl_fuse_ops(part, &fused, &err));
    for (size_t op = 0; op < fused->op_count; op++) {
      strncat(list, mgl_op_info_of(fused->ops[op].kind)->name, 20);
      strncat(list, " ", 2);
    }
    assert_string_equal(list, expected);
    check_part(fused, "model.layers.1.self_attn.o_proj.weight", 96, 128, 1, 256, 1);
    mgl_graph_destroy(fused);
    mgl_graph_destroy(part);
  }
}

// A table that is the output projection's matrix, too, is there once, in parts.
static void tables_and_sums_may_be_cut(void **state) {
  (void)state;
  static const char expected[] =
      "rope_angles embed reduce_scatter all_gather "
      "qkv_proj attend linear reduce_scatter all_gather add "
      "gate_up linear reduce_scatter all_gather add "
      "qkv_proj attend linear reduce_scatter all_gather add "
      "gate_up linear reduce_scatter all_gather add logits all_gather ";
  const mgl_config config = config_of(MGL_FAMILY_QWEN3);
  for (uint32_t ranks = 2; ranks <= MGL_MAX_RANKS; ranks *= 2) {
    mgl_graph *part = shard_by(&config, ranks, true, true);
    mgl_graph *fused = NULL;
    char list[sizeof expected + 100] = "";
    MUST(mgl_fuse_ops(part, &fused, &err));
    for (size_t op = 0; op < fused->op_count; op++) {
      strncat(list, mgl_op_info_of(fused->ops[op].kind)->name, 20);
      strncat(list, " ", 2);
    }
    assert_string_equal(list, expected);
    check_part(fused, "model.embed_tokens.weight.part", 320 / ranks, 96, 0, 320, 1);
    assert_int_equal(mgl_graph_find(fused, "model.embed_tokens.weight"), MGL_NO_TENSOR);
    assert_int_equal(find(fused, "embedded.share")->dims[1].number, 96 / ranks);
    mgl_graph_destroy(fused);
    mgl_graph_destroy(part);
  }
  mgl_config odd = config;  // what cannot be divided stays whole
  odd.hidden_size = 100;
  mgl_graph *part = shard_by(&odd, 8, true, true);
  assert_int_equal(find(part, "model.embed_tokens.weight")->dims[0].number, 320);
  for (size_t op = 0; op < part->op_count; op++) {
    assert_int_not_equal(part->ops[op].kind, MGL_OP_REDUCE_SCATTER);
  }
  mgl_graph_destroy(part);
}

static void task_graphs_are_proven_under_all_options(void **state) {
  (void)state;
  const mgl_config config = config_of(MGL_FAMILY_QWEN3);
  for (uint32_t at = 0; at < 6; at++) {
    const uint32_t ranks = 2u << at / 2;
    mgl_graph *part = shard_by(&config, ranks, at % 2 == 1, at % 2 == 1);
    mgl_graph *fused = NULL;
    MUST(mgl_fuse_ops(part, &fused, &err));
    for (uint32_t workers = 1; workers < 10; workers += 3) {
      for (uint32_t tokens = 1; tokens <= 64; tokens *= 8) {
        for (uint32_t i = 0; i < 8; i++) {
          const mgl_compile_options options = {
              .tokens = tokens,
              .workers = workers,
              .launch = (i & 1) != 0 ? MGL_LAUNCH_JIT : MGL_LAUNCH_AUTO,
              .coarse = (i & 2) != 0};
          mgl_task_graph *tasks = compile((i & 4) != 0 ? part : fused, options);
          check_exchanges(tasks);
          mgl_task_graph_destroy(tasks);
        }
      }
    }
    mgl_graph_destroy(fused);
    mgl_graph_destroy(part);
  }
}

static void expect_refused(const mgl_graph *program, const mgl_task_graph *tasks,
                           const char *text) {
  mgl_error err = {0};
  assert_int_equal(mgl_task_graph_verify(program, tasks, &err), MGL_ERR_FORMAT);
  if (strstr(err.text, text) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", text, err.text);
  }
}

static void the_verifier_refuses_what_other_ranks_break(void **state) {
  (void)state;
  const mgl_config config = config_of(MGL_FAMILY_LLAMA);
  mgl_graph *part = shard(&config, 2);
  mgl_task_graph *tasks = compile(part, (mgl_compile_options){.tokens = 2, .workers = 2});
  for (uint32_t i = 0; i < tasks->event_count; i++) {  // an event that only this rank triggers
    if ((tasks->events[i].flags & MGL_EVENT_REMOTE) != 0) {
      tasks->events[i].flags &= (uint16_t)~MGL_EVENT_REMOTE;
      expect_refused(part, tasks, "event flags must tell the kinds of its tasks");
      tasks->events[i].flags |= MGL_EVENT_REMOTE;
    }
  }
  // A part that is written over while other ranks may still read it.
  const uint32_t read = mgl_graph_find(part, "0.o");
  const uint32_t later = mgl_graph_find(part, "1.o");
  const uint64_t offset = tasks->activation_offsets[later];
  tasks->activation_offsets[later] = tasks->activation_offsets[read];
  expect_refused(part, tasks, "\"0.o\" and \"1.o\" share bytes");
  tasks->activation_offsets[later] = offset;
  MUST(mgl_task_graph_verify(part, tasks, &err));
  mgl_task_graph_destroy(tasks);
  mgl_graph_destroy(part);
}

static void expect_uncut(const mgl_config *config, uint32_t ranks, const char *text) {
  mgl_error err = {0};
  mgl_graph *whole = build_program(config);
  mgl_graph *part = NULL;
  assert_int_not_equal(mgl_shard_program(whole, ranks, &part, &err), MGL_OK);
  assert_null(part);
  if (strstr(err.text, text) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", text, err.text);
  }
  mgl_graph_destroy(whole);
}

static void what_cannot_be_cut_is_refused(void **state) {
  (void)state;
  mgl_config config = config_of(MGL_FAMILY_LLAMA);
  expect_uncut(&config, 1, "ranks: expected 2 to 8, found 1");
  expect_uncut(&config, 9, "ranks: expected 2 to 8, found 9");
  expect_uncut(&config, 3, "3 ranks: \"0.q\": its 8 heads cannot be cut into 3 equal parts");
  config.vocab_size = 301;
  expect_uncut(&config, 2, "2 ranks: \"logits\": its 301 columns cannot be cut into 2");
  config.vocab_size = 320;
  config.intermediate_size = 130;
  expect_uncut(&config, 4, "4 ranks: \"0.gate\": its 130 columns cannot be cut into 4");
  config.intermediate_size = 128;
  config.head_count = 4;
  config.kv_head_count = 4;
  expect_uncut(&config, 8, "has fewer query heads than there are ranks");
  config.head_count = 12;
  config.kv_head_count = 3;
  expect_uncut(&config, 2, "2 ranks: \"0.k\": its 3 heads cannot be cut into 2 equal parts");
  config = config_of(MGL_FAMILY_QWEN3_MOE);
  config.mixture = (mgl_mixture){.expert_count = 4, .slots = 2, .inner_size = 98, .scale = 1};
  expect_uncut(&config, 4,
               "4 ranks: \"model.layers.0.mlp.experts.gate_proj.weight\": its 98 rows cannot be "
               "cut into 4 equal parts");
  config.mixture.inner_size = 96;
  config.quantization.method = MGL_QUANT_COMPRESSED;
  config.quantization.drawn = (mgl_form){.dtype = MGL_DTYPE_I4, .group = 32};
  expect_uncut(&config, 2, "parts of 48 columns would cut its groups of 32");
  config = config_of(MGL_FAMILY_QWEN3);
  config.whole_qk_norm = true;
  expect_uncut(&config, 2, "a norm over all heads together runs on one rank so far");
  config = config_of(MGL_FAMILY_LLAMA);
  config.quantization.method = MGL_QUANT_COMPRESSED;
  config.quantization.drawn = (mgl_form){.dtype = MGL_DTYPE_I4, .group = 64};
  expect_uncut(
      &config, 4,
      "4 ranks: \"model.layers.0.mlp.down_proj.weight\": parts of 32 columns would cut its "
      "groups of 64");
}

static void lack_of_memory_is_reported(void **state) {
  (void)state;
  const mgl_config config = config_of(MGL_FAMILY_QWEN3);
  mgl_graph *whole = build_program(&config);
  int64_t live = mgl_alloc_live();
  mgl_status status = MGL_ERR_MEMORY;
  for (uint64_t i = 1; status != MGL_OK; i++) {
    mgl_error err = {0};
    mgl_graph *part = NULL;
    mgl_alloc_fail_nth(i);
    status = mgl_shard_program(whole, 2, &part, &err);
    mgl_alloc_fail_nth(0);
    assert_true(status == MGL_OK || status == MGL_ERR_MEMORY);
    mgl_graph_destroy(part);
    assert_int_equal(mgl_alloc_live(), live);
  }
  mgl_graph_destroy(whole);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rank_has_its_part_of_each_weight),
      cmocka_unit_test(biases_and_codes_are_cut),
      cmocka_unit_test(experts_and_sinks_are_cut),
      cmocka_unit_test(fusion_leaves_two_exchanges_a_layer),
      cmocka_unit_test(tables_and_sums_may_be_cut),
      cmocka_unit_test(task_graphs_are_proven_under_all_options),
      cmocka_unit_test(the_verifier_refuses_what_other_ranks_break),
      cmocka_unit_test(what_cannot_be_cut_is_refused),
      cmocka_unit_test(lack_of_memory_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
