// The compiler for the GPU: the two device ops, what its kernels lack, and what the target changes
// in a task graph. (That dependencies are exact for both targets is tested in
// test_random_programs.c.)
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
#include "model/model_folder.h"
#include "support/programs.h"
#include "task/tile.h"

enum { WORKERS = 132 };

static mgl_config default_config(void) {
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.vocab_size = 304;
  config.tie_word_embeddings = false;
  return config;
}

static mgl_graph *fuse(const mgl_graph *graph) {
  mgl_graph *fused = NULL;
  MUST(mgl_fuse_ops_cuda(graph, &fused, &err));
  return fused;
}

static mgl_task_graph *compile(const mgl_graph *program, uint32_t tokens, uint32_t workers,
                               mgl_compile_report *report) {
  mgl_task_graph *g = NULL;
  mgl_compile_options options = {
      .target = MGL_TARGET_CUDA, .tokens = tokens, .workers = workers, .verify = true};
  MUST(mgl_compile(program, &options, &g, report, &err));
  return g;
}

static mgl_graph *read_bench_config(const char *name) {
  char path[1024];
  mgl_model_folder folder;
  (void)snprintf(path, sizeof path, "%s/../../bench/configs/%s", MGL_TEST_DATA, name);
  MUST(mgl_model_folder_open(path, 0, &folder, &err));
  mgl_graph *program = build_program(&folder.config);
  mgl_model_folder_close(&folder);
  mgl_graph *fused = fuse(program);
  mgl_graph_destroy(program);
  return fused;
}

// --- the program ---------------------------------------------------------------------------------

static void next_plan_comes_first_and_sample_last(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
    mgl_config config = default_config();
    config.family = (mgl_family)family;
    config.qk_norm = family == MGL_FAMILY_QWEN3;
    config.qkv_bias = family == MGL_FAMILY_QWEN2;
    if (family == MGL_FAMILY_PHI) {
      continue;  // refused, below
    }
    mgl_graph *graph = build_program(&config);
    mgl_graph *fused = fuse(graph);
    assert_int_equal(fused->op_count, 2 + 5 * 2 + 1 + 2);
    const mgl_op *first = &fused->ops[0];
    const mgl_op *last = &fused->ops[fused->op_count - 1];
    const mgl_tensor *plan = &fused->tensors[first->output];
    const mgl_tensor *sampled = &fused->tensors[last->output];
    assert_int_equal(first->kind, MGL_OP_NEXT_PLAN);
    assert_string_equal(fused->tensors[first->inputs[0]].name, "tokens");
    assert_string_equal(plan->name, "next_plan");
    assert_false(plan->is_output);
    assert_int_equal(last->kind, MGL_OP_SAMPLE);
    assert_int_equal(last->inputs[0], mgl_graph_find(fused, "logits"));
    assert_int_equal(last->inputs[1], first->output);
    assert_string_equal(sampled->name, "sampled");
    assert_true(sampled->is_output);
    assert_true(fused->tensors[last->inputs[0]].is_output);  // logits can still be read
    assert_true(mgl_graph_find(fused, "angles") != MGL_NO_TENSOR);
    assert_true(mgl_graph_find(fused, "embedded") != MGL_NO_TENSOR);
    mgl_text text = {0};
    mgl_graph_print(fused, &text);
    assert_non_null(strstr(text.data, "\nnext_plan = next_plan(tokens) : i32[1]\n"));
    assert_non_null(strstr(text.data, "\nsampled = sample(logits, next_plan) : i32[L]\n"));
    mgl_graph *again = parse_program(text.data);
    assert_int_equal(again->op_count, fused->op_count);
    mgl_text_free(&text);
    mgl_graph_destroy(again);
    mgl_graph_destroy(fused);
    mgl_graph_destroy(graph);
  }
  assert_int_equal(mgl_alloc_live(), live);
}

static void expect_refusal(const mgl_graph *graph, const char *message) {
  mgl_error err = {0};
  mgl_graph *fused = NULL;
  assert_int_equal(mgl_fuse_ops_cuda(graph, &fused, &err), MGL_ERR_UNSUPPORTED);
  assert_null(fused);
  if (strstr(err.text, message) == NULL || strstr(err.text, "try --device cpu") == NULL) {
    fail_msg("expected \"%s\" and the hint in \"%s\"", message, err.text);
  }
}

static void models_without_kernels_are_refused(void **state) {
  (void)state;
  static const struct {
    size_t field;
    uint32_t value;
    const char *message;
  } cases[] = {
      {offsetof(mgl_config, head_dim), 48,
       "expected a head dim that is a multiple of 32 and at most 128, found 48 in \"0.attention\""},
      {offsetof(mgl_config, head_dim), 160, "at most 128, found 160"},
      {offsetof(mgl_config, head_count), 18,
       "expected at most 8 query heads per KV head, found 9 (18 / 2)"},
      {offsetof(mgl_config, hidden_size), 100,
       "expected a multiple of 8 as the columns (input features) of \"model.embed_tokens.weight\", "
       "found 100"},
      {offsetof(mgl_config, intermediate_size), 132,
       "expected a multiple of 8 as the rows (output features) of "
       "\"model.layers.0.mlp.gate_proj.weight\", found 132"},
      {offsetof(mgl_config, vocab_size), 301,
       "expected a multiple of 8 as the rows (output features) of \"lm_head.weight\", found 301"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_config config = default_config();
    memcpy((char *)&config + cases[i].field, &cases[i].value, sizeof cases[i].value);
    mgl_graph *graph = build_program(&config);
    expect_refusal(graph, cases[i].message);
    mgl_graph_destroy(graph);
  }
  mgl_config config = default_config();
  config.dtype = MGL_DTYPE_F32;
  mgl_graph *graph = build_program(&config);
  expect_refusal(graph, "expected matrices in bf16, found \"model.embed_tokens.weight\" in f32");
  mgl_graph_destroy(graph);
}

// What the CPU has and the GPU lacks is refused by name; what is data only runs there too.
static void features_without_kernels_are_refused(void **state) {
  (void)state;
  const mgl_rope yarn = {.kind = MGL_ROPE_YARN,
                         .theta = 1e4,
                         .factor = 4,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .original_context = 64,
                         .attention_factor = 1.2};
  mgl_rope dynamic = {.kind = MGL_ROPE_DYNAMIC, .theta = 1e4, .factor = 4, .original_context = 64};
  mgl_rope longrope = {.kind = MGL_ROPE_LONGROPE, .theta = 1e4, .original_context = 64};
  for (int i = 0; i < MGL_MAX_HEAD_DIM / 2; i++) {
    longrope.short_factors[i] = longrope.long_factors[i] = 1;
  }
  const mgl_config plain = default_config();
  const struct {
    mgl_config config;
    const char *message;
  } cases[] = {
      {.config = {.output_bias = true, .qkv_bias = true}, .message = NULL},
      {.config = {.mlp_bias = true}, .message = "a bias of the feed-forward part"},
      {.config = {.rope = dynamic}, .message = "depends on the sequence's length"},
      {.config = {.rope = longrope}, .message = "depends on the sequence's length"},
      {.config = {.window_tokens = 16, .window_layers = {2}}, .message = NULL},
      {.config = {.rotary_dim = 16}, .message = "partial rotary"},
      {.config = {.rotary_dim = 16, .rope = yarn}, .message = "multiplies parts of heads"},
      {.config = {.family = MGL_FAMILY_PHI, .qkv_bias = true},
       .message = "no kernel for a layer norm (\"0.input_layernorm\")"},
      {.config = {.family = MGL_FAMILY_QWEN3_MOE,
                  .mixture = {.expert_count = 4, .slots = 2, .inner_size = 64, .scale = 1}},
       .message = "a mixture of experts"},
      {.config = {.rope = yarn}, .message = NULL},
      {.config = {.qkv_bias = true}, .message = NULL},
      {.config = {.fused_weights = true, .family = MGL_FAMILY_PHI3}, .message = NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const mgl_config *c = &cases[i].config;
    mgl_config config = plain;
    config.family = c->family;
    config.qk_norm = c->family == MGL_FAMILY_QWEN3;
    config.qkv_bias = c->qkv_bias;
    config.output_bias = c->output_bias;
    config.mlp_bias = c->mlp_bias;
    config.rotary_dim = c->rotary_dim;
    config.fused_weights = c->fused_weights;
    config.mixture = c->mixture;
    config.window_tokens = c->window_tokens;
    config.window_layers[0] = c->window_layers[0];
    config.rope = c->rope.theta != 0 ? c->rope : plain.rope;
    mgl_graph *graph = build_program(&config);
    if (cases[i].message != NULL) {
      expect_refusal(graph, cases[i].message);
    } else {
      mgl_graph_destroy(fuse(graph));
    }
    mgl_graph_destroy(graph);
  }
}

#define HEAD                   \
  "program test\n"             \
  "input tokens i32[T]\n"      \
  "input rows i32[L]\n"        \
  "weight table bf16[48,32]\n" \
  "weight norm bf16[32]\n"     \
  "weight w bf16[32,32]\n"     \
  "weight wf f32[32,32]\n"     \
  "x = embed(tokens, table) : f32[T,32]\n"
#define LOGITS "l = logits(x, norm, rows, table) eps=1 : f32[L,48]\noutput l\n"

static void programs_without_kernels_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      {HEAD LOGITS, NULL},
      {HEAD "n = rmsnorm(x, norm) eps=1 : f32[T,32]\noutput n\n" LOGITS,
       "expected only ops that the GPU has kernels for (embed, rope_angles, qkv_proj, attend, "
       "linear_add, gate_up, logits), found rmsnorm in \"n\""},
      {HEAD "output x\n", "expected one logits, found 0 in \"test\""},
      {HEAD LOGITS "m = logits(x, norm, rows, table) eps=1 : f32[L,48]\noutput m\n",
       "expected one logits, found 2"},
      {HEAD "g = gate_up(x, norm, w, wf) eps=1 : bf16[T,32]\noutput g\n" LOGITS,
       "expected matrices in bf16, found \"wf\" in f32"},
      {HEAD "g = gate_up(x, norm, w, w) eps=1 : f32[T,32]\noutput g\n" LOGITS,
       "expected activations that feed linears in bf16, found \"g\" in f32"},
      {HEAD "p = next_plan(tokens) : i32[1]\noutput p\n" LOGITS, "found next_plan in \"p\""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_graph *graph = parse_program(cases[i].text);
    if (cases[i].message == NULL) {
      mgl_graph_destroy(fuse(graph));
    } else {
      expect_refusal(graph, cases[i].message);
    }
    mgl_graph_destroy(graph);
  }
}

static void names_of_the_device_ops_must_be_free(void **state) {
  (void)state;
  mgl_graph *graph = parse_program(HEAD LOGITS "weight sampled bf16[32]\n");
  mgl_error err = {0};
  mgl_graph *fused = NULL;
  assert_int_equal(mgl_fuse_ops_cuda(graph, &fused, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "\"sampled\" is declared twice"));
  assert_null(fused);
  mgl_graph_destroy(graph);
}

static void failed_allocations_are_reported(void **state) {
  (void)state;
  mgl_config config = default_config();
  mgl_graph *graph = build_program(&config);
  int64_t live = mgl_alloc_live();
  for (uint64_t n = 1;; n++) {
    mgl_error err = {0};
    mgl_graph *fused = NULL;
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_fuse_ops_for(MGL_TARGET_CUDA, graph, &fused, &err);
    mgl_alloc_fail_nth(0);
    mgl_graph_destroy(fused);
    assert_int_equal(mgl_alloc_live(), live);
    if (status == MGL_OK) {
      break;
    }
    assert_true(status == MGL_ERR_MEMORY || status == MGL_ERR_LIMIT);
    assert_null(fused);
  }
  mgl_graph_destroy(graph);
}

// --- the task graph ------------------------------------------------------------------------------

typedef struct stage {
  uint32_t tasks, workers;        // workers that have some
  uint32_t units_min, units_max;  // of a task
} stage;

static stage stage_of(const mgl_task_graph *g, uint32_t op) {
  stage s = {.units_min = UINT32_MAX};
  unsigned char seen[MGL_COMPILE_MAX_WORKERS] = {0};
  for (uint32_t i = 0; i < g->task_count; i++) {
    const mgl_task *t = &g->tasks[i];
    if (t->op != op) {
      continue;
    }
    uint32_t units = t->end - t->begin;
    s.tasks++;
    s.workers += seen[t->worker]++ == 0;
    s.units_min = units < s.units_min ? units : s.units_min;
    s.units_max = units > s.units_max ? units : s.units_max;
  }
  return s;
}

static void check_stages(const mgl_graph *program, const mgl_task_graph *g) {
  for (uint32_t op = 0; op < program->op_count; op++) {
    const mgl_op *o = &program->ops[op];
    stage s = stage_of(g, op);
    uint32_t grain = mgl_tile_grain(o, MGL_TARGET_CUDA);
    uint32_t expected = 0;
    switch (o->kind) {
      case MGL_OP_NEXT_PLAN:
      case MGL_OP_ROPE_ANGLES: expected = 1; break;
      case MGL_OP_EMBED:
      case MGL_OP_SAMPLE: expected = g->tokens; break;
      case MGL_OP_ATTEND: expected = mgl_tile_kv_heads(program, o) * g->attention_strides; break;
      case MGL_OP_QKV_PROJ: expected = s.tasks; break;  // fewer where that makes none larger
      default: {
        uint32_t units = mgl_tile_units(program, o, g->tokens, g->attention_strides);
        expected = units / grain < WORKERS ? units / grain : WORKERS;
        assert_int_equal(grain, o->kind == MGL_OP_GATE_UP ? 8 : 16);
      }
    }
    assert_int_equal(s.tasks, expected);
    assert_int_equal(s.workers, s.tasks);  // nobody has two tasks of a stage
    assert_true(s.units_max - s.units_min <= grain);
    if (o->kind == MGL_OP_QKV_PROJ) {
      uint32_t grains = mgl_tile_units(program, o, g->tokens, 1) / grain;
      assert_int_equal(s.units_max, (grains + WORKERS - 1) / WORKERS * grain);
    }
  }
}

// Weight bytes of the worker that has most, and of the one that has least, over the mean.
static void check_balance(const mgl_graph *program, const mgl_task_graph *g) {
  double bytes[WORKERS] = {0};
  double total = 0;
  for (uint32_t i = 0; i < g->task_count; i++) {
    const mgl_task *t = &g->tasks[i];
    assert_int_equal(t->flags, 0);  // AOT, and no forks
    // With more tokens the placement balances weights and the KV bytes that it expects together.
    double b = g->tokens > 1
                   ? t->cost
                   : (double)mgl_tile_weight_bytes(program, &program->ops[t->op], 1,
                                                   g->attention_strides, t->begin, t->end);
    bytes[t->worker] += b;
    total += b;
  }
  for (uint32_t w = 0; w < WORKERS; w++) {
    double share = bytes[w] * WORKERS / total;
    if (share > (g->tokens == 1 ? 1.02 : 1.05) || share < (g->tokens == 1 ? 0.98 : 0.95)) {
      fail_msg("%s, %u tokens: worker %u has %.3f of the mean", program->name, g->tokens, w, share);
    }
  }
}

static void bench_configs_are_balanced_over_132_workers(void **state) {
  (void)state;
  static const char *const names[] = {"llama-3.2-1b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-8b"};
#ifdef MGL_TEST_SANITIZED
  static const uint32_t tokens[] = {1, 64};
#else
  static const uint32_t tokens[] = {1, 8, 16, 64};
#endif
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    mgl_graph *program = read_bench_config(names[i]);
    for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
      mgl_compile_report report;
      mgl_task_graph *g = compile(program, tokens[t], WORKERS, &report);
      assert_int_equal(g->target, MGL_TARGET_CUDA);
      assert_int_equal(g->attention_strides, WORKERS / 8);
      assert_int_equal(report.chain_length, report.op_count - 2);  // but rope_angles, next_plan
      assert_int_equal(report.empty_tasks, 0);
      assert_int_equal(g->tasks[0].type, MGL_OP_NEXT_PLAN);
      assert_int_equal(g->tasks[0].dependent_event, MGL_NO_EVENT);
      check_stages(program, g);
      check_balance(program, g);
      mgl_task_graph_destroy(g);
    }
    mgl_graph_destroy(program);
  }
}

// More strides than tokens, up to the limit; all units of a head meet all its rows and columns.
static void strides_do_not_depend_on_tokens(void **state) {
  (void)state;
  static const struct {
    uint32_t kv_heads, workers, strides;
  } cases[] = {{2, 132, 64}, {2, 20, 10}, {2, 1, 1}, {1, 132, 64}, {6, 132, 22}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_config config = default_config();
    config.kv_head_count = cases[i].kv_heads;
    mgl_graph *graph = build_program(&config);
    mgl_graph *fused = fuse(graph);
    for (uint32_t tokens = 1; tokens <= 64; tokens *= 8) {
      mgl_task_graph *g = compile(fused, tokens, cases[i].workers, NULL);
      assert_int_equal(g->attention_strides, cases[i].strides);
      mgl_task_graph_destroy(g);
    }
    const mgl_op *attend = &fused->ops[4];
    assert_int_equal(attend->kind, MGL_OP_ATTEND);
    mgl_tile_access first;
    mgl_tile_access last;
    mgl_tile_regions(fused, attend, 1, cases[i].strides, 0, 1, &first);
    mgl_tile_regions(fused, attend, 1, cases[i].strides, cases[i].strides - 1, cases[i].strides,
                     &last);
    assert_memory_equal(&first.reads, &last.reads, first.read_count * sizeof first.reads[0]);
    assert_memory_equal(&first.writes, &last.writes, first.write_count * sizeof first.writes[0]);
    // Together the units of all heads read the modelled context once.
    uint64_t context = (uint64_t)MGL_TILE_MODEL_CONTEXT * 2 * 32 * 2;
    uint64_t cost = mgl_tile_cost(fused, attend, 1, cases[i].strides, 0, 1);
    assert_true(cost >= context / cases[i].strides && cost < context / cases[i].strides + 4096);
    mgl_graph_destroy(fused);
    mgl_graph_destroy(graph);
  }
}

// Bytes that differ with the worker: next_plan has a task of its own, modelled as work.
static void device_tiles(void **state) {
  (void)state;
  mgl_config config = default_config();
  mgl_graph *graph = build_program(&config);
  mgl_graph *fused = fuse(graph);
  const mgl_op *next_plan = &fused->ops[0];
  const mgl_op *sample = &fused->ops[fused->op_count - 1];
  mgl_tile_access access;
  assert_int_equal(mgl_tile_units(fused, next_plan, 7, 3), 1);
  assert_int_equal(mgl_tile_grain(next_plan, MGL_TARGET_CUDA), 1);
  assert_int_equal(mgl_tile_units(fused, sample, 7, 3), 7);
  assert_int_equal(mgl_tile_grain(sample, MGL_TARGET_CUDA), 1);
  mgl_tile_regions(fused, next_plan, 7, 3, 0, 1, &access);
  assert_int_equal(access.read_count, 0);
  assert_int_equal(access.write_count, 1);
  assert_int_equal(access.writes[0].row_end, 1);
  assert_int_equal(access.writes[0].column_end, 1);
  mgl_tile_regions(fused, sample, 7, 3, 2, 4, &access);
  assert_int_equal(access.read_count, 2);
  assert_int_equal(access.reads[0].tensor, sample->inputs[0]);
  assert_int_equal(access.reads[0].row_begin, 2);
  assert_int_equal(access.reads[0].row_end, 4);
  assert_int_equal(access.reads[0].column_end, 304);
  assert_int_equal(access.reads[1].tensor, next_plan->output);
  assert_int_equal(access.write_count, 1);
  assert_int_equal(access.writes[0].row_begin, 2);
  assert_int_equal(access.writes[0].row_end, 4);
  assert_int_equal(mgl_tile_cost(fused, sample, 7, 3, 2, 4), 2 * 304 * 4 + 4 + 2 * 4);
  assert_int_equal(mgl_tile_cost(fused, next_plan, 7, 3, 0, 1), 4 + MGL_TILE_NEXT_PLAN_BYTES);
  // One row a task, up to the workers; each waits for all logits and for the plan.
  mgl_task_graph *g = compile(fused, 64, 20, NULL);
  assert_int_equal(stage_of(g, (uint32_t)fused->op_count - 1).tasks, 20);
  assert_int_equal(stage_of(g, 2).tasks, 64);  // embed: a row a task, even so
  mgl_task_graph_destroy(g);
  mgl_graph_destroy(fused);
  mgl_graph_destroy(graph);
}

static void json_keeps_the_target(void **state) {
  (void)state;
  mgl_graph *graph =
      parse_program(HEAD
                    "g = gate_up(x, norm, w, w) eps=1 : bf16[T,32]\n"
                    "y = linear_add(x, g, w) : f32[T,32]\n"
                    "l = logits(y, norm, rows, table) eps=1 : f32[L,48]\noutput l\n");
  mgl_graph *fused = fuse(graph);
  mgl_task_graph *g = compile(fused, 2, 6, NULL);
  mgl_text json = {0};
  MUST(mgl_task_graph_write_json(fused, g, &json, &err));
  mgl_error err = {0};
  static const struct {
    const char *target, *message;  // in the place of "target":"cuda"; what is wrong then
  } cases[] = {
      {"\"target\":\"cuda\"", NULL},
      {"\"target\":\"cpu\"", "a task's tile must begin and end at multiples"},
      {"\"origin\":\"cuda\"", "a task's tile must begin and end at multiples"},  // absent: cpu
      {"\"target\":\"tpu\"", "expected \"cpu\" or \"cuda\" as target"},
      {"\"target\":1", "target"},
  };
  const char *at = strstr(json.data, cases[0].target);
  assert_non_null(at);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_text changed = {0};
    mgl_graph *program = NULL;
    mgl_task_graph *read = NULL;
    mgl_text_append(&changed, json.data, (size_t)(at - json.data));
    mgl_text_append_string(&changed, cases[i].target);
    mgl_text_append_string(&changed, at + strlen(cases[0].target));
    mgl_status status =
        mgl_task_graph_read_json(changed.data, changed.bytes, "test", &program, &read, &err);
    assert_int_equal(status, cases[i].message == NULL ? MGL_OK : MGL_ERR_FORMAT);
    if (cases[i].message == NULL) {
      assert_int_equal(read->target, MGL_TARGET_CUDA);
    } else if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\" in \"%s\"", cases[i].message, err.text);
    }
    mgl_text_free(&changed);
    mgl_graph_destroy(program);
    mgl_task_graph_destroy(read);
  }
  mgl_text_free(&json);
  mgl_task_graph_destroy(g);
  mgl_graph_destroy(fused);
  mgl_graph_destroy(graph);
}

// --- mixtures ------------------------------------------------------------------------------------

enum { EXPERTS = 24, SLOTS = 8, INNER = 128, WIDTH = 1024 };

static mgl_config mixture_config(void) {
  mgl_config config = default_config();
  config.family = MGL_FAMILY_QWEN3_MOE;
  config.hidden_size = WIDTH;
  config.mixture = (mgl_mixture){.expert_count = EXPERTS,
                                 .slots = SLOTS,
                                 .inner_size = INNER,
                                 .renormalise = true,
                                 .scale = 1};
  return config;
}

// Its ops of a kind; *last is the last one.
static uint32_t count_ops(const mgl_graph *fused, mgl_op_kind kind, const mgl_op **last) {
  uint32_t count = 0;
  for (size_t i = 0; i < fused->op_count; i++) {
    if (fused->ops[i].kind == kind) {
      *last = &fused->ops[i];
      count++;
    }
  }
  return count;
}

// A layer's mixture becomes three ops: experts_down follows experts_up, which follows router.
static void mixtures_become_three_ops(void **state) {
  (void)state;
  const mgl_config config = mixture_config();
  mgl_graph *graph = build_program(&config);
  mgl_graph *fused = fuse(graph);
  const mgl_op *router = NULL;
  const mgl_op *up = NULL;
  const mgl_op *down = NULL;
  assert_int_equal(count_ops(fused, MGL_OP_ROUTER, &router), config.layer_count);
  assert_int_equal(count_ops(fused, MGL_OP_EXPERTS_UP, &up), config.layer_count);
  assert_int_equal(count_ops(fused, MGL_OP_EXPERTS_DOWN, &down), config.layer_count);
  assert_true(up == router + 1 && down == up + 1);
  const mgl_tensor *acts = &fused->tensors[up->output];
  assert_int_equal(acts->rank, 2);
  assert_int_equal(acts->dims[0].symbol, MGL_DIM_TOKENS);
  assert_int_equal(acts->dims[0].number, 0);
  assert_int_equal(acts->dims[1].number, SLOTS * INNER);
  assert_true(mgl_op_input(up, MGL_ROLE_ROUTER) == router->output &&
              mgl_op_input(down, MGL_ROLE_ROUTER) == router->output);
  assert_true(up->attrs[MGL_ATTR_RENORMALISE] == 1 && up->attrs[MGL_ATTR_EPS] > 0);
  // Bytes of a step: of all slots of a token, gate, up and down.
  uint64_t bytes = mgl_tile_weight_bytes(fused, up, 1, 1, 0, SLOTS * INNER) +
                   mgl_tile_weight_bytes(fused, down, 1, 1, 0, WIDTH);
  assert_int_equal(bytes, 3 * SLOTS * INNER * WIDTH * 2 + WIDTH * 2);  // and the norm
  mgl_graph_destroy(fused);
  mgl_graph_destroy(graph);
}

// Whatever tokens choose, no worker has much more of them than another.
static void tasks_of_mixtures_are_even(void **state) {
  (void)state;
  mgl_graph *fused = read_bench_config("qwen3-30b-a3b");
  for (uint32_t tokens = 1; tokens <= 32; tokens *= 4) {
    mgl_task_graph *g = compile(fused, tokens, WORKERS, NULL);
    for (uint32_t i = 0; i < g->task_count; i++) {
      const mgl_task *task = &g->tasks[i];
      bool up = task->type == MGL_OP_EXPERTS_UP;
      if (up || task->type == MGL_OP_EXPERTS_DOWN) {
        assert_true(task->end - task->begin <= (up ? 6 * 8 : 16));
      }
    }
    mgl_task_graph_destroy(g);
  }
  mgl_graph_destroy(fused);
}

// All that gpt-oss has is in the ops of tasks: windows in turn, sinks, biases, the clamped activation.
static void gpt_oss_is_fused(void **state) {
  (void)state;
  mgl_graph *fused = read_bench_config("gpt-oss-20b");
  uint32_t windows = 0;
  for (size_t i = 0; i < fused->op_count; i++) {
    const mgl_op *op = &fused->ops[i];
    windows += op->kind == MGL_OP_ATTEND && op->attrs[MGL_ATTR_WINDOW] == 128;
    assert_true((op->kind == MGL_OP_ATTEND) == (mgl_op_input(op, MGL_ROLE_SINKS) != MGL_NO_TENSOR));
    assert_true(
        op->kind != MGL_OP_EXPERTS_UP ||
        (op->attrs[MGL_ATTR_LIMIT] == 7 && mgl_op_inputs(op, MGL_ROLE_EXPERT_BIAS).count == 2));
    assert_true(op->kind != MGL_OP_EXPERTS_DOWN ||
                mgl_op_inputs(op, MGL_ROLE_EXPERT_BIAS).count == 1);
    bool biased = op->kind == MGL_OP_LINEAR_ADD || op->kind == MGL_OP_ROUTER;
    assert_true(!biased || mgl_op_inputs(op, MGL_ROLE_BIAS).count == 1);
  }
  assert_int_equal(windows, 12);
  mgl_graph_destroy(fused);
}

static void mixtures_without_kernels_are_refused(void **state) {
  (void)state;
  mgl_config configs[5];
  for (int i = 0; i < 5; i++) {
    configs[i] = mixture_config();
  }
  configs[0].hidden_size = WIDTH + 512;       // no whole pairs of pages
  configs[1].mixture.inner_size = INNER + 8;  // row blocks of down end in the middle
  configs[2].mixture.slots = SLOTS - 1;       // nor are those of down's pages whole
  configs[3].mixture.scores = MGL_SCORES_SIGMOID;
  configs[4].mixture.expert_count = 1024;
  for (int i = 0; i < 5; i++) {
    mgl_graph *graph = build_program(&configs[i]);
    expect_refusal(graph, "a mixture of experts");
    mgl_graph_destroy(graph);
  }
}

static void targets_have_names(void **state) {
  (void)state;
  mgl_target target = MGL_TARGET_CPU;
  assert_string_equal(mgl_target_name(MGL_TARGET_CPU), "cpu");
  assert_true(mgl_target_parse("cuda", &target));
  assert_int_equal(target, MGL_TARGET_CUDA);
  assert_false(mgl_target_parse("", &target));
  assert_int_equal(target, MGL_TARGET_CUDA);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(next_plan_comes_first_and_sample_last),
      cmocka_unit_test(models_without_kernels_are_refused),
      cmocka_unit_test(features_without_kernels_are_refused),
      cmocka_unit_test(programs_without_kernels_are_refused),
      cmocka_unit_test(names_of_the_device_ops_must_be_free),
      cmocka_unit_test(failed_allocations_are_reported),
      cmocka_unit_test(bench_configs_are_balanced_over_132_workers),
      cmocka_unit_test(strides_do_not_depend_on_tokens),
      cmocka_unit_test(device_tiles),
      cmocka_unit_test(json_keeps_the_target),
      cmocka_unit_test(mixtures_become_three_ops),
      cmocka_unit_test(tasks_of_mixtures_are_even),
      cmocka_unit_test(gpt_oss_is_fused),
      cmocka_unit_test(mixtures_without_kernels_are_refused),
      cmocka_unit_test(targets_have_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
