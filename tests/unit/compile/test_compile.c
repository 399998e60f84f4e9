// The compiler on small programs: options and their errors, labels, placement, reports, dumps, and
// every allocation made to fail once.
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
#include "compile/tgraph.h"
#include "support/programs.h"
#include "support/random_program.h"

// A layer of fused ops: D = 64, H = 8, HKV = 4, HD = 32, F = 128, V = 160.
static const char layer_text[] =
    "program layer\n"
    "input tokens i32[T]\n"
    "input positions i32[T]\n"
    "input slots i32[T]\n"
    "input tables i32[R]\n"
    "input rows i32[L]\n"
    "weight table bf16[160,64]\n"
    "weight norm bf16[64]\n"
    "weight wq bf16[256,64]\n"
    "weight wk bf16[128,64]\n"
    "weight wv bf16[128,64]\n"
    "weight wo bf16[64,256]\n"
    "weight wg bf16[128,64]\n"
    "weight wu bf16[128,64]\n"
    "weight wd bf16[64,128]\n"
    "kv kv0 bf16[4,32]\n"
    "angles = rope_angles(positions) values=[1,0.562341,0.316228,0.001,0.001,0.001,0.001,0.001,"
    "0.001,0.001,0.001,0.001,0.001,0.001,0.001,0.001] : "
    "f32[T,16,2]\n"
    "x = embed(tokens, table) : f32[T,64]\n"
    "qkv = qkv_proj(x, norm, wq, wk, wv) eps=0.001 : f32[T,16,32]\n"
    "att = attend(qkv, kv0, angles, positions, slots, tables) eps=0.001 scale=0.25 : "
    "bf16[T,8,32]\n"
    "x1 = linear_add(x, att, wo) : f32[T,64]\n"
    "gu = gate_up(x1, norm, wg, wu) eps=0.001 : bf16[T,128]\n"
    "x2 = linear_add(x1, gu, wd) : f32[T,64]\n"
    "l = logits(x2, norm, rows, table) eps=0.001 : f32[L,160]\n"
    "output l\n";

static mgl_task_graph *compile(const mgl_graph *program, const mgl_compile_options *options,
                               mgl_compile_report *report) {
  mgl_error err = {0};
  mgl_task_graph *g = NULL;
  if (mgl_compile(program, options, &g, report, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return g;
}

static uint32_t tasks_of(const mgl_task_graph *g, mgl_op_kind kind, uint16_t flags) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < g->task_count; i++) {
    count += g->tasks[i].type == kind && (g->tasks[i].flags & flags) == flags;
  }
  return count;
}

static void default_partition_follows_the_workers(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  static const uint32_t workers[] = {1, 2, 3, 7, 132};
  for (size_t i = 0; i < 5; i++) {
    uint32_t w = workers[i];
    mgl_compile_options options = {.tokens = 8, .workers = w, .verify = true};
    mgl_task_graph *g = compile(p, &options, NULL);
    assert_int_equal(tasks_of(g, MGL_OP_EMBED, 0), w < 8 ? w : 8);             // rows
    assert_int_equal(tasks_of(g, MGL_OP_LINEAR_ADD, 0), 2 * (w < 4 ? w : 4));  // 64 / 16 columns
    assert_int_equal(tasks_of(g, MGL_OP_QKV_PROJ, 0), w < 32 ? w : 32);        // 512 / 16
    assert_int_equal(tasks_of(g, MGL_OP_LOGITS, 0), w < 10 ? w : 10);          // 160 / 16
    assert_int_equal(g->attention_strides, w == 132 ? 8 : 1);  // no more than tokens
    assert_int_equal(tasks_of(g, MGL_OP_ATTEND, 0), w == 132 ? 32 : w < 4 ? w : 4);
    assert_int_equal(tasks_of(g, UINT16_MAX, MGL_TASK_EMPTY),
                     g->task_count - tasks_of(g, MGL_OP_EMBED, 0) -
                         tasks_of(g, MGL_OP_LINEAR_ADD, 0) - tasks_of(g, MGL_OP_QKV_PROJ, 0) -
                         tasks_of(g, MGL_OP_LOGITS, 0) - tasks_of(g, MGL_OP_ATTEND, 0) -
                         tasks_of(g, MGL_OP_GATE_UP, 0) - tasks_of(g, MGL_OP_ROPE_ANGLES, 0));
    mgl_task_graph_destroy(g);
  }
  mgl_graph_destroy(p);
}

// More workers a KV head than attention may have strides: 64, and no more than tokens.
static void strides_have_a_limit(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  for (int target = MGL_TARGET_CPU; target <= MGL_TARGET_CUDA; target++) {
    mgl_compile_options options = {
        .target = (mgl_target)target, .tokens = 512, .workers = 4 * 65, .verify = true};
    mgl_task_graph *g = compile(p, &options, NULL);
    assert_int_equal(g->attention_strides, MGL_COMPILE_MAX_STRIDES);
    mgl_task_graph_destroy(g);
  }
  mgl_graph_destroy(p);
}

static void qkv_tasks_do_not_cross_heads(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  mgl_compile_options options = {.tokens = 1, .workers = 20};
  mgl_compile_report report;
  mgl_task_graph *g = compile(p, &options, &report);
  for (uint32_t i = 0; i < g->task_count; i++) {
    const mgl_task *t = &g->tasks[i];
    if (t->type == MGL_OP_QKV_PROJ) {  // Q in groups of 64 columns, K and V in heads of 32
      uint32_t width = t->begin < 256 ? 64 : 32;
      assert_int_equal(t->begin / width, (t->end - 1) / width);
    }
  }
  assert_int_equal(tasks_of(g, MGL_OP_QKV_PROJ, 0), 16);  // of 32: 20 would not be smaller
  assert_int_equal(report.empty_tasks, 4);                // from the angles to each head
  mgl_task_graph_destroy(g);
  mgl_graph_destroy(p);
}

static void overrides_change_partition_and_launch(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  mgl_compile_override overrides[] = {
      {.op = "gate_up", .grid = {3, 1, 1}},
      {.op = "attend", .grid = {8, 4, 1}},
      {.op = "linear_add", .grid = {4, 1, 1}, .launch = MGL_LAUNCH_JIT},
      {.op = "x2", .grid = {2, 1, 1}, .launch = MGL_LAUNCH_AOT},
  };
  mgl_compile_options options = {
      .tokens = 2, .workers = 2, .overrides = overrides, .override_count = 4, .verify = true};
  mgl_compile_report report;
  mgl_task_graph *g = compile(p, &options, &report);
  assert_int_equal(tasks_of(g, MGL_OP_GATE_UP, 0), 3);
  assert_int_equal(g->attention_strides, 2);  // 4, cut to the tokens
  assert_int_equal(tasks_of(g, MGL_OP_ATTEND, 0), 8);
  assert_int_equal(tasks_of(g, MGL_OP_LINEAR_ADD, 0), 4 + 2);
  assert_int_equal(tasks_of(g, MGL_OP_LINEAR_ADD, MGL_TASK_JIT), 4);
  assert_int_equal(report.jit_tasks, 4 + tasks_of(g, MGL_OP_ATTEND, MGL_TASK_JIT));
  mgl_task_graph_destroy(g);
  mgl_graph_destroy(p);
}

static void labels_follow_the_modelled_gain(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  mgl_compile_report report;
  // The default partition has a task a worker: nothing to even out.
  mgl_compile_options options = {.tokens = 64, .workers = 16, .verify = true};
  mgl_task_graph_destroy(compile(p, &options, &report));
  assert_int_equal(report.jit_tasks, 0);
  // Many small tasks of different lengths: worth a scheduler; what follows waits for all of them.
  mgl_compile_override fine = {.op = "attend", .grid = {256, 64, 1}};
  options.overrides = &fine;
  options.override_count = 1;
  mgl_task_graph *g = compile(p, &options, &report);
  assert_int_equal(report.jit_tasks, 256);
  assert_int_equal(tasks_of(g, MGL_OP_ATTEND, MGL_TASK_JIT), 256);
  uint32_t massive = 0;
  for (uint32_t i = 0; i < g->event_count; i++) {
    massive += g->events[i].type == MGL_EVENT_LAUNCH_MASSIVE_TASKS;
  }
  assert_true(massive > 0);
  mgl_task_graph_destroy(g);
  // Several heads a worker, but each task has all sequences, so that all take as long.
  fine.grid[0] = 4;
  fine.grid[1] = 1;
  options.workers = 2;
  mgl_task_graph_destroy(compile(p, &options, &report));
  assert_int_equal(report.jit_tasks, 0);
  // One token: never.
  fine.grid[0] = 256;
  fine.grid[1] = 64;
  options.workers = 16;
  options.tokens = 1;
  mgl_task_graph_destroy(compile(p, &options, &report));
  assert_int_equal(report.jit_tasks, 0);
  // No imbalance: never.
  options.tokens = 64;
  options.imbalance = 1;
  mgl_task_graph_destroy(compile(p, &options, &report));
  assert_int_equal(report.jit_tasks, 0);
  options.launch = MGL_LAUNCH_JIT;
  mgl_task_graph_destroy(compile(p, &options, &report));
  assert_int_equal(report.jit_tasks, report.task_count);
  mgl_graph_destroy(p);
}

// In the canonical form, a linear of one attention output's columns would follow without barrier;
// an elementwise op does.
static void followers_are_jit_until_a_barrier(void **state) {
  (void)state;
  static const char text[] =
      "program followers\n"
      "input positions i32[T]\n"
      "input tables i32[R]\n"
      "input tokens i32[T]\n"
      "weight table bf16[40,256]\n"
      "weight wq bf16[256,256]\n"
      "weight hn bf16[32]\n"
      "weight wo bf16[64,256]\n"
      "kv kv0 bf16[8,32]\n"
      "x = embed(tokens, table) : f32[T,256]\n"
      "q = linear(x, wq) : f32[T,8,32]\n"
      "a = attention(q, kv0, positions, tables) scale=0.25 : f32[T,8,32]\n"
      "n = rmsnorm(a, hn) eps=0.001 : f32[T,8,32]\n"
      "s = silu_mul(a, a) : f32[T,8,32]\n"
      "t = silu_mul(s, s) : f32[T,8,32]\n"
      "o = linear(t, wo) : f32[T,64]\n"
      "output n\n"
      "output o\n";
  mgl_graph *p = parse_program(text);
  mgl_compile_override fine = {.op = "attention", .grid = {512, 64, 1}};
  mgl_compile_options options = {
      .tokens = 64, .workers = 16, .overrides = &fine, .override_count = 1, .verify = true};
  mgl_task_graph *g = compile(p, &options, NULL);
  assert_int_equal(tasks_of(g, MGL_OP_ATTENTION, MGL_TASK_JIT), 512);
  assert_int_equal(tasks_of(g, MGL_OP_SILU_MUL, MGL_TASK_JIT), 2 * 16);
  assert_int_equal(tasks_of(g, MGL_OP_LINEAR, MGL_TASK_JIT), 0);   // waits for all
  assert_int_equal(tasks_of(g, MGL_OP_RMSNORM, MGL_TASK_JIT), 0);  // whole rows: all heads
  mgl_task_graph_destroy(g);
  mgl_graph_destroy(p);
}

static void wrong_options_are_explained(void **state) {
  (void)state;
  static const struct {
    mgl_compile_override o;
    const char *message;
  } cases[] = {
      {{.op = "conv", .grid = {1, 1, 1}},
       "override of \"conv\": the program has no op of that kind"},
      {{.op = "conv", .launch = MGL_LAUNCH_JIT}, "override of \"conv\""},
      {{.op = "rmsnorm", .grid = {1, 1, 1}}, "override of \"rmsnorm\""},
      {{.op = "gate_up", .grid = {0, 1, 1}}, "expected three numbers of at least 1"},
      {{.op = "gate_up", .grid = {1, 1, 0}}, "expected three numbers of at least 1"},
      {{.op = "gate_up", .grid = {9, 1, 1}}, "x is at most 8"},
      {{.op = "gu", .grid = {9, 1, 1}}, "x is at most 8"},
      {{.op = "gate_up", .grid = {1, 2, 1}}, "y (tasks per KV head) is at most 1 for gate_up"},
      {{.op = "gate_up", .grid = {1, 1, 2}}, "z must be 1"},
      {{.op = "attend", .grid = {1, 65, 1}}, "y (tasks per KV head) is at most 64"},
      {{.op = "attend", .grid = {9, 2, 1}}, "x is at most 8"},
      {{.op = "embed", .grid = {2049, 1, 1}}, "x is at most 2048"},
  };
  mgl_graph *p = parse_program(layer_text);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_compile_options options = {
        .tokens = 4, .workers = 2, .overrides = &cases[i].o, .override_count = 1};
    mgl_task_graph *g = NULL;
    mgl_error err = {0};
    assert_int_equal(mgl_compile(p, &options, &g, NULL, &err), MGL_ERR_ARGUMENT);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\" in \"%s\"", cases[i].message, err.text);
    }
    assert_null(g);
  }
  const mgl_compile_options wrong[] = {
      {.tokens = 0, .workers = 1},
      {.tokens = MGL_MAX_ITERATION_TOKENS + 1, .workers = 1},
      {.tokens = 4, .logit_rows = 5, .workers = 1},
      {.tokens = 1, .workers = 0},
      {.tokens = 1, .workers = MGL_COMPILE_MAX_WORKERS + 1},
      {.tokens = 1, .workers = 1, .dump = "nothing"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    mgl_task_graph *g = NULL;
    mgl_error err = {0};
    assert_int_equal(mgl_compile(p, &wrong[i], &g, NULL, &err), MGL_ERR_ARGUMENT);
  }
  mgl_graph_destroy(p);
}

static void two_attention_grids_must_agree(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  mgl_compile_override overrides[] = {{.op = "attend", .grid = {8, 2, 1}},
                                      {.op = "att", .grid = {8, 4, 1}}};
  mgl_compile_options options = {
      .tokens = 4, .workers = 2, .overrides = overrides, .override_count = 2};
  mgl_task_graph *g = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_compile(p, &options, &g, NULL, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "another override says 2"));
  mgl_graph_destroy(p);
}

static void overwritten_input_is_refused(void **state) {
  (void)state;
  mgl_graph *p = parse_program(
      "program bad\ninput tokens i32[T]\nweight table bf16[40,32]\n"
      "weight w bf16[32,32]\nx = embed(tokens, table) : f32[T,32]\n"
      "y = linear_add(x, x, w) : f32[T,32]\noutput y\n");
  mgl_compile_options options = {.tokens = 4, .workers = 2};
  mgl_task_graph *g = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_compile(p, &options, &g, NULL, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "while it overwrites it"));
  mgl_graph_destroy(p);
}

static void placement_balances_bytes(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  for (uint32_t workers = 1; workers <= 24; workers++) {
    mgl_compile_options options = {.tokens = 1, .workers = workers};
    mgl_compile_report report;
    mgl_task_graph *g = compile(p, &options, &report);
    uint64_t most = 0;
    uint64_t largest = 0;
    uint64_t total = 0;
    for (uint32_t w = 0; w < workers; w++) {
      uint64_t bytes = 0;
      uint32_t per_op[8] = {0};
      for (uint32_t i = g->aot_start[w]; i < g->aot_start[w + 1]; i++) {
        const mgl_task *task = &g->tasks[g->aot_tasks[i]];
        bytes += task->cost;
        largest = task->cost > largest ? task->cost : largest;
        per_op[task->op]++;
      }
      for (uint32_t op = 0; op < 8; op++) {
        assert_true(per_op[op] <= 1);  // no op has more tasks than workers
      }
      most = bytes > most ? bytes : most;
      total += bytes;
    }
    assert_int_equal(most, report.worker_bytes_max);
    assert_int_equal(total, report.worker_bytes_total);
    // Greedy over whole tasks: nobody is further above the mean than two of the largest.
    assert_true(most <= total / workers + 2 * largest);
    mgl_task_graph_destroy(g);
  }
  mgl_graph_destroy(p);
}

static void every_pass_dumps(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  for (uint32_t i = 0; mgl_pass_name(i) != NULL; i++) {
    mgl_text first = {0};
    mgl_text second = {0};
    mgl_compile_options options = {
        .tokens = 8, .workers = 7, .dump = mgl_pass_name(i), .dump_text = &first};
    mgl_task_graph_destroy(compile(p, &options, NULL));
    options.dump_text = &second;
    mgl_task_graph_destroy(compile(p, &options, NULL));
    assert_true(first.bytes > 20);
    assert_int_equal(strncmp(first.data, mgl_pass_name(i), strlen(mgl_pass_name(i))), 0);
    assert_string_equal(first.data, second.data);
    mgl_text_free(&first);
    mgl_text_free(&second);
  }
  mgl_graph_destroy(p);
}

static void dumps_say_what_a_pass_did(void **state) {
  (void)state;
  static const struct {
    const char *pass, *text;
  } cases[] = {
      {"partition",
       "partition: 14 tasks of 8 ops, 1 attention strides\n"
       "  rope_angles angles tasks 0-0: 1 units at multiples of 1, 128 to 128 bytes\n"
       "  embed x tasks 1-1: 1 units at multiples of 1, 384 to 384 bytes\n"},
      {"depend", "  attend att tasks 4-5: first after {0 2-3}\n"},
      {"fuse_pruned",
       "fuse_pruned: 6 events\n"
       "  e0: {1} -> {2-3}\n"
       "  e1: {0 2-3} -> {4-5}\n"},
  };
  mgl_graph *p = parse_program(layer_text);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_text text = {0};
    mgl_compile_options options = {
        .tokens = 1, .workers = 2, .dump = cases[i].pass, .dump_text = &text};
    mgl_task_graph_destroy(compile(p, &options, NULL));
    if (strstr(text.data, cases[i].text) == NULL) {
      fail_msg("expected\n%s\nin\n%s", cases[i].text, text.data);
    }
    mgl_text_free(&text);
  }
  mgl_graph_destroy(p);
}

static void wide_forks_stay_within_pending_triggers(void **state) {
  (void)state;
  // One embed, read by 600 norms whose results are each read by two gates: hundreds of events.
  mgl_text text = {0};
  mgl_text_append_string(&text,
                         "program wide\ninput tokens i32[T]\nweight table bf16[40,32]\n"
                         "weight w bf16[32]\nx = embed(tokens, table) : f32[T,32]\n"
                         "y = embed(tokens, table) : f32[T,32]\n");
  enum { WIDTH = 600 };
  for (int i = 0; i < WIDTH; i++) {
    mgl_text_format(&text, "n%d = rmsnorm(y, w) eps=0.001 : f32[T,32]\n", i);
    mgl_text_format(&text, "s%d = silu_mul(x, n%d) : f32[T,32]\noutput s%d\n", i, i, i);
  }
  mgl_graph *p = parse_program(text.data);
  mgl_compile_options options = {.tokens = 1, .workers = 3, .verify = true};
  mgl_compile_report report;
  mgl_task_graph *g = compile(p, &options, &report);
  assert_true(report.empty_tasks >= WIDTH);
  mgl_task_graph_destroy(g);
  mgl_graph_destroy(p);
  mgl_text_free(&text);
}

static void failed_allocations_are_reported(void **state) {
  (void)state;
  mgl_graph *p = parse_program(layer_text);
  int64_t live = mgl_alloc_live();
  mgl_text text = {0};
  mgl_compile_options options = {
      .tokens = 4, .workers = 5, .verify = true, .dump = "depend", .dump_text = &text};
  uint64_t n = 1;
  for (;; n++) {
    mgl_task_graph *g = NULL;
    mgl_error err = {0};
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_compile(p, &options, &g, NULL, &err);
    uint64_t count = mgl_alloc_count();
    mgl_alloc_fail_nth(0);
    mgl_task_graph_destroy(g);
    mgl_text_free(&text);
    assert_int_equal(mgl_alloc_live(), live);
    if (count < n) {
      assert_int_equal(status, MGL_OK);
      break;
    }
    assert_int_equal(status, MGL_ERR_MEMORY);
    assert_null(g);
  }
  assert_true(n > 20);
  mgl_graph_destroy(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(default_partition_follows_the_workers),
      cmocka_unit_test(strides_have_a_limit),
      cmocka_unit_test(qkv_tasks_do_not_cross_heads),
      cmocka_unit_test(overrides_change_partition_and_launch),
      cmocka_unit_test(labels_follow_the_modelled_gain),
      cmocka_unit_test(followers_are_jit_until_a_barrier),
      cmocka_unit_test(wrong_options_are_explained),
      cmocka_unit_test(two_attention_grids_must_agree),
      cmocka_unit_test(overwritten_input_is_refused),
      cmocka_unit_test(placement_balances_bytes),
      cmocka_unit_test(every_pass_dumps),
      cmocka_unit_test(dumps_say_what_a_pass_did),
      cmocka_unit_test(wide_forks_stay_within_pending_triggers),
      cmocka_unit_test(failed_allocations_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
