// Custom ops on the fake GPU: every mode that runs there gives the same bits and, for an op that
// does what a built-in one does, that op's; each launch has the grid of its tile rule, the op's
// types, attributes and tensors, and its place among the others. In the megakernel they are tasks.
// (test_cuda_custom_code.c compiles sources.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/compilation.h"
#include "device/cuda/cuda_custom.h"
#include "engine/runner.h"
#include "graph/custom_op.h"
#include "support/fake_cuda.h"
#include "support/fake_cuda_calls.h"
#include "support/plan_feed.h"
#include "support/programs.h"
#include "unit/engine/program_text.h"

enum { VOCAB = 300, WIDTH = 96, CONTEXT = 64, SEQUENCES = 14, TOKENS = 40, LAYERS = 2 };
enum { FUSED_VOCAB = 512 };
enum { ADD_ROWS = 3, SCALE_ROWS = 16, CAP_ROWS = 1 };

// --- three ops, as a GPU would compute them ------------------------------------------------------

static void my_add(const megalith_custom_call *call) {
  const uint32_t columns = call->output_type->dims[1];
  float *out = call->output;
  const float *x = call->inputs[0], *y = call->inputs[1];
  for (size_t i = (size_t)call->first_row * columns; i < (size_t)call->end_row * columns; i++) {
    out[i] = x[i] + y[i];
  }
}

static void my_scale(const megalith_custom_call *call) {
  const uint32_t columns = call->output_type->dims[1];
  const float *x = call->inputs[0], *gain = call->inputs[1];
  const int32_t *positions = call->inputs[2];
  float *out = call->output;
  for (uint32_t row = call->first_row; row < call->end_row; row++) {
    for (uint32_t i = 0; i < columns; i++) {
      out[row * columns + i] = x[row * columns + i] * (1 + gain[i]) *
                               (1 + (float)call->attributes[0] * (float)positions[row]);
    }
  }
}

static void my_cap(const megalith_custom_call *call) {
  const float cap = (float)call->attributes[0];
  const uint32_t columns = call->output_type->dims[1];
  const float *x = call->inputs[0];
  float *out = call->output;
  assert_int_equal(call->end_row, call->first_row + CAP_ROWS);
  for (size_t i = (size_t)call->first_row * columns; i < (size_t)call->end_row * columns; i++) {
    out[i] = cap * (x[i] / cap / (1 + (x[i] < 0 ? -x[i] : x[i]) / cap));
  }
}

// Adds its column to each logit.
static void my_lift(const megalith_custom_call *call) {
  const uint32_t columns = call->output_type->dims[1];
  const float *x = call->inputs[0];
  float *out = call->output;
  for (size_t i = (size_t)call->first_row * columns; i < (size_t)call->end_row * columns; i++) {
    out[i] = x[i] + (float)(i % columns);
  }
}

static void run_nothing(const mgl_custom_op *op, const mgl_custom_call *call) {
  (void)op, (void)call;
  fail_msg("the CPU's function was called for a GPU");
}

static int register_ops(void **state) {
  (void)state;
  const mgl_custom_op ops[] = {
      {.name = "my_add",
       .input_count = 2,
       .updates = true,
       .run = run_nothing,
       .cuda_source = (char *)(uintptr_t) "source of my_add",
       .cuda_tile_rows = ADD_ROWS},
      {.name = "my_scale",
       .input_count = 3,
       .attr_count = 1,
       .attr_names = {"slope"},
       .run = run_nothing,
       .cuda_source = (char *)(uintptr_t) "source of my_scale",
       .cuda_tile_rows = SCALE_ROWS},
      {.name = "my_cap",
       .input_count = 1,
       .attr_count = 1,
       .attr_names = {"cap"},
       .run = run_nothing,
       .cuda_source = (char *)(uintptr_t) "source of my_cap",
       .cuda_tile_rows = CAP_ROWS},
      {.name = "my_lift",
       .input_count = 1,
       .run = run_nothing,
       .cuda_source = (char *)(uintptr_t) "source of my_lift",
       .cuda_tile_rows = 2},
      {.name = "my_pick",
       .input_count = 2,
       .run = run_nothing,
       .cuda_source = (char *)(uintptr_t) "source of my_pick",
       .cuda_tile_rows = 2},
      {.name = "my_host", .input_count = 1, .run = run_nothing},
  };
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    MUST(mgl_custom_op_register(&ops[i], &err));
  }
  fake_cuda_custom_set("my_add", my_add);
  fake_cuda_custom_set("my_scale", my_scale);
  fake_cuda_custom_set("my_cap", my_cap);
  fake_cuda_custom_set("my_lift", my_lift);
  return 0;
}

// --- running -------------------------------------------------------------------------------------

static mgl_cuda_device device;

static mgl_status try_runner_of(const mgl_model_folder *folder, const char *program,
                                const char *json, mgl_runner **out, mgl_error *error) {
  static mgl_compilation c;
  device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  mgl_compilation_init(&c);
  MUST(mgl_compilation_read(&c, "test", json, &err));
  MUST(mgl_compilation_check(&c, NULL, &err));
  const mgl_build build = {.iteration_tokens = TOKENS,
                           .sequences = SEQUENCES,
                           .sequence_tokens = CONTEXT,
                           .logit_rows = TOKENS,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = 5,
                           .program = program,
                           .compilation = &c,
                           .cuda = &cuda};
  return mgl_runner_create(folder, &build, out, error);
}

static mgl_status try_runner(const char *program, const char *json, mgl_runner **out,
                             mgl_error *error) {
  const mgl_model_folder folder = {.config = small_config(MGL_FAMILY_QWEN3)};
  return try_runner_of(&folder, program, json, out, error);
}

static mgl_runner *make_runner(const char *program, const char *json) {
  mgl_runner *runner = NULL;
  MUST(try_runner(program, json, &runner, &err));
  return runner;
}

static const plan_step steps[] = {
    {3, 5, 2, MGL_LOGITS_LAST}, {3, 1, 0, MGL_LOGITS_LAST},  {13, 1, 0, MGL_LOGITS_LAST},
    {2, 1, 9, MGL_LOGITS_ALL},  {14, 1, 0, MGL_LOGITS_NONE}, {14, 2, 7, MGL_LOGITS_LAST},
};
enum { STEPS = sizeof steps / sizeof *steps };

static float *run_steps(const char *program, const char *json) {
  mgl_runner *runner = make_runner(program, json);
  plan_feed *f = plan_feed_create(mgl_runner_limits(runner), VOCAB, SEQUENCES, CONTEXT);
  float *out = calloc((size_t)STEPS * TOKENS * VOCAB, sizeof *out);
  assert_non_null(out);
  for (uint32_t i = 0; i < STEPS; i++) {
    mgl_logits logits = {0};
    plan_feed_fill(f, &steps[i]);
    MUST(mgl_runner_run(runner, mgl_runner_usual_mode(runner), f->plan, &logits, &err));
    memcpy(out + (size_t)i * TOKENS * VOCAB, logits.rows,
           (size_t)f->plan->logit_row_count * VOCAB * sizeof *out);
  }
  plan_feed_destroy(f);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
  return out;
}

static void modes_have_the_same_bits(void **state) {
  (void)state;
  static const char *const ways[] = {
      "{\"level\": 0, \"check_numbers\": true}",
      "{\"level\": 0}",
      "{\"level\": 1}",
      "{}",  // the usual one, which here is FULL
      "{\"graph_mode\": \"FULL\", \"graph_sizes\": [40]}",
      "{\"graph_mode\": \"PIECEWISE\"}",
      "{\"graph_mode\": \"FULL_DECODE_ONLY\"}",
      "{\"graph_mode\": \"FULL_AND_PIECEWISE\", \"graph_sizes\": [16]}",
      "{\"splitting_ops\": [\"my_add\", \"attention\"]}",
      "{\"splitting_ops\": [\"my_add\"], \"capture_sizes\": [13, 1]}",
  };
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  const size_t bytes = (size_t)STEPS * TOKENS * VOCAB * sizeof(float);
  char *only_add = changed_text(&config, false), *all = changed_text(&config, true);
  float *built_in = run_steps(NULL, ways[0]), *expected = run_steps(all, ways[0]);
  assert_memory_not_equal(expected, built_in, bytes);
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    float *added = run_steps(only_add, ways[i]), *found = run_steps(all, ways[i]);
    if (memcmp(added, built_in, bytes) != 0 || memcmp(found, expected, bytes) != 0) {
      fail_msg("%s: other bits", ways[i]);
    }
    free(added);
    free(found);
  }
  free(built_in);
  free(expected);
  free(only_add);
  free(all);
}

// --- launches ------------------------------------------------------------------------------------

static void check_type(const megalith_tensor_type *type, megalith_dtype dtype, megalith_rows rows,
                       uint32_t rank, uint32_t first, uint32_t second) {
  assert_int_equal(type->dtype, dtype);
  assert_int_equal(type->rows, rows);
  assert_int_equal(type->rank, rank);
  assert_int_equal(type->dims[0], first);
  assert_int_equal(type->dims[1], second);
}

static void check_launch(const fake_cuda_custom_launch *l, const char *name, uint32_t rows,
                         uint32_t tile_rows, bool in_graph) {
  uint32_t tiles = (rows + tile_rows - 1) / tile_rows;
  uint32_t most = 16 * FAKE_CUDA_WORKERS;
  assert_string_equal(l->name, name);
  assert_int_equal(l->threads, MGL_CUSTOM_THREADS);
  assert_int_equal(l->blocks, tiles < most ? tiles : most);
  assert_int_equal(l->launch.rows, rows);
  assert_int_equal(l->launch.tile_rows, tile_rows);
  assert_int_equal(l->in_graph, in_graph);
}

// Of an iteration with so many tokens and rows of logits, as they are launched.
static void check_launches(uint32_t tokens, uint32_t rows, bool in_graph) {
  const fake_cuda_custom_launch *l = fake_cuda_custom_launches;
  assert_int_equal(fake_cuda_custom_launch_count, rows == 0 ? 2 : 3);
  check_launch(&l[0], "my_add", tokens, ADD_ROWS, in_graph);
  check_type(&l[0].launch.output_type, MEGALITH_F32, MEGALITH_ROWS_TOKENS, 2, tokens, WIDTH);
  check_type(&l[0].launch.input_types[0], MEGALITH_F32, MEGALITH_ROWS_TOKENS, 2, tokens, WIDTH);
  assert_ptr_equal(l[0].launch.output, l[0].launch.inputs[0]);  // in place
  assert_ptr_not_equal(l[0].launch.output, l[0].launch.inputs[1]);
  assert_null(l[0].launch.inputs[2]);
  check_launch(&l[1], "my_scale", tokens, SCALE_ROWS, in_graph);
  check_type(&l[1].launch.input_types[1], MEGALITH_F32, MEGALITH_ROWS_FIXED, 1, WIDTH, 0);
  check_type(&l[1].launch.input_types[2], MEGALITH_I32, MEGALITH_ROWS_TOKENS, 1, tokens, 0);
  assert_true(l[1].launch.attributes[0] == 0.001 && l[1].launch.attributes[1] == 0);
  assert_ptr_not_equal(l[1].launch.output, l[1].launch.inputs[0]);
  if (rows > 0) {
    check_launch(&l[2], "my_cap", rows, CAP_ROWS, in_graph);
    check_type(&l[2].launch.output_type, MEGALITH_F32, MEGALITH_ROWS_LOGITS, 2, rows, VOCAB);
    assert_true(l[2].launch.attributes[0] == 2.5);
  }
}

// The kernels of an iteration are those of the program's ops, in its order.
static void check_order(const mgl_graph *program, uint32_t rows) {
  uint32_t at = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    const mgl_tensor *out = &program->tensors[op->output];
    char name[96];
    if (rows == 0 && out->dims[0].symbol == MGL_DIM_LOGIT_ROWS) {
      continue;  // has nothing to do
    }
    while (at < fake_cuda_call_count && strcmp(fake_cuda_calls[at].name, FAKE_CUDA_GRAPH) == 0) {
      at++;
    }
    (void)snprintf(name, sizeof name, "%s%s", op->custom != NULL ? "custom " : "mgl_plain_kernel_",
                   mgl_op_name(op));
    assert_true(at < fake_cuda_call_count);
    assert_string_equal(fake_cuda_calls[at++].name, name);
  }
  while (at < fake_cuda_call_count && strcmp(fake_cuda_calls[at].name, FAKE_CUDA_GRAPH) == 0) {
    at++;  // of ops that have nothing to do
  }
  assert_int_equal(at, fake_cuda_call_count);
}

static void launches_have_the_ops_grid_arguments_and_order(void **state) {
  (void)state;
  static const struct {
    const char *json;
    uint32_t largest;  // 0: no graphs
    bool outside;      // custom ops split
  } ways[] = {{"{\"level\": 0}", 0, false},
              {"{\"graph_mode\": \"FULL\", \"graph_sizes\": [16]}", 16, false},
              {"{\"graph_mode\": \"PIECEWISE\", \"graph_sizes\": [16]}", 16, false},
              {"{\"splitting_ops\": [\"my_add\", \"my_scale\", \"my_cap\"], \"graph_sizes\": [16]}",
               16, true}};
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  char *all = changed_text(&config, true);
  for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
    mgl_runner *runner = make_runner(all, ways[way].json);
    plan_feed *f = plan_feed_create(mgl_runner_limits(runner), VOCAB, SEQUENCES, CONTEXT);
    for (uint32_t i = 0; i < STEPS; i++) {
      mgl_logits logits = {0};
      plan_feed_fill(f, &steps[i]);
      fake_cuda_calls_clear();
      MUST(mgl_runner_run(runner, mgl_runner_usual_mode(runner), f->plan, &logits, &err));
      uint32_t tokens = f->plan->token_count, rows = f->plan->logit_row_count;
      bool graphs = tokens <= ways[way].largest;
      bool decodes = tokens == f->plan->sequence_count;
      uint32_t padded = !graphs       ? tokens
                        : tokens <= 4 ? (tokens == 3 ? 4 : tokens)
                        : tokens <= 8 ? 8
                                      : 16;
      uint32_t padded_rows = !graphs || rows == 0 ? rows
                             : decodes            ? padded
                             : rows <= 2          ? rows
                             : rows <= 4          ? 4
                             : rows <= 8          ? 8
                                                  : 16;
      check_launches(padded, padded_rows, graphs && !ways[way].outside);
      check_order(mgl_runner_program(runner), padded_rows);
    }
    plan_feed_destroy(f);
    mgl_runner_destroy(runner);
  }
  free(all);
}

// Blocks take tiles in turn where there are more than run at once.
static void many_tiles_share_the_blocks(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  char *all = changed_text(&config, true);
  mgl_runner *runner = make_runner(all, "{\"level\": 0}");
  plan_feed *f = plan_feed_create(mgl_runner_limits(runner), VOCAB, SEQUENCES, CONTEXT);
  mgl_logits few = {0};
  plan_feed_fill(f, &(plan_step){1, 33, 0, MGL_LOGITS_ALL});
  fake_cuda_calls_clear();
  MUST(mgl_runner_run(runner, MGL_MODE_EAGER, f->plan, &few, &err));
  float *expected = malloc((size_t)33 * VOCAB * sizeof *expected);
  memcpy(expected, few.rows, (size_t)33 * VOCAB * sizeof *expected);
  plan_feed_destroy(f);
  assert_int_equal(fake_cuda_custom_launches[2].blocks, 33);
  device.sm_count = 1;  // 16 blocks at most
  f = plan_feed_create(mgl_runner_limits(runner), VOCAB, SEQUENCES, CONTEXT);
  plan_feed_fill(f, &(plan_step){1, 33, 0, MGL_LOGITS_ALL});
  fake_cuda_calls_clear();
  MUST(mgl_runner_run(runner, MGL_MODE_EAGER, f->plan, &few, &err));
  assert_int_equal(fake_cuda_custom_launches[2].blocks, 16);
  assert_memory_equal(few.rows, expected, (size_t)33 * VOCAB * sizeof *expected);
  free(expected);
  plan_feed_destroy(f);
  mgl_runner_destroy(runner);
  free(all);
}

// Each source is compiled once for a program, however often the op stands in it.
static void sources_are_compiled_once(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  char *text = text_of_model(&config);
  uint32_t before = fake_cuda_custom_compilations("my_add");
  for (size_t at = 0; strstr(text + at, " = add(") != NULL;) {
    replace(text, TEXT_BYTES, &at, " = add(", " = my_add(");
  }
  mgl_runner *runner = make_runner(text, "{\"level\": 0}");
  uint32_t ops = 0;
  const mgl_graph *program = mgl_runner_program(runner);
  for (size_t i = 0; i < program->op_count; i++) {
    ops += program->ops[i].custom != NULL;
  }
  assert_int_equal(ops, 2 * LAYERS);
  assert_int_equal(fake_cuda_custom_compilations("my_add"), before + 1);
  assert_string_equal(fake_cuda_custom_source("my_add"), "#line 1 \"my_add\"\nsource of my_add\n");
  mgl_runner_destroy(runner);
  free(text);
}

// --- the megakernel ------------------------------------------------------------------------------

// The model's program with my_scale before its last norm and, behind its logits, `caps`, which ends
// with "logits = ..."; freed by the caller.
static char *scaled_text(const char *caps) {
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.vocab_size = FUSED_VOCAB;
  char *text = text_of_model(&config), scaled[300];
  size_t at = 0;
  replace(text, TEXT_BYTES, &at, "weight ", "weight my.gain bf16[96]\nweight ");
  at = 0;
  replace(text, TEXT_BYTES, &at, "\nlogits = ", "\nraw = ");
  replace(text, TEXT_BYTES, &at, "\noutput", caps);
  const char *norm = strstr(text, ", model.norm.weight, logit_rows)"), *x = norm, *line = norm;
  assert_non_null(norm);
  while (x[-1] != '(') {
    x--;
  }
  while (line[-1] != '\n') {
    line--;
  }
  char old[160];
  (void)snprintf(old, sizeof old, "rmsnorm(%.*s, model.norm", (int)(norm - x), x);
  (void)snprintf(scaled, sizeof scaled,
                 "\nscaled = my_scale(%.*s, my.gain, positions) slope=0.001 : f32[T,96]\n",
                 (int)(norm - x), x);
  at = (size_t)(line - text) - 1;
  replace(text, TEXT_BYTES, &at, "\n", scaled);
  replace(text, TEXT_BYTES, &at, old, "rmsnorm(scaled, model.norm");
  return text;
}

static mgl_runner *make_mega(const char *program, const char *json) {
  mgl_model_folder folder = {.config = small_config(MGL_FAMILY_QWEN3)};
  mgl_runner *runner = NULL;
  folder.config.vocab_size = FUSED_VOCAB;
  MUST(try_runner_of(&folder, program, json, &runner, &err));
  return runner;
}

// (The fake device's logits are zeros.)
static void in_the_megakernel_they_are_tasks(void **state) {
  (void)state;
  char *program = scaled_text(
      "\nadded = my_add(raw, raw) : f32[L,512]\nlogits = my_lift(added) : f32[L,512]\noutput");
  mgl_runner *runner = make_mega(program, "{\"graph_mode\": \"MEGA\"}");
  plan_feed *f = plan_feed_create(mgl_runner_limits(runner), FUSED_VOCAB, SEQUENCES, CONTEXT);
  assert_int_equal(mgl_runner_usual_mode(runner), MGL_MODE_MEGA);
  for (uint32_t i = 0; i < STEPS; i++) {
    mgl_logits logits = {0};
    uint32_t rows[3] = {0};
    plan_feed_fill(f, &steps[i]);
    fake_cuda_calls_clear();
    MUST(mgl_runner_run(runner, MGL_MODE_MEGA, f->plan, &logits, &err));
    const uint32_t tokens = f->plan->token_count, wanted = f->plan->logit_row_count;
    for (uint32_t at = 0; at < fake_cuda_custom_launch_count; at++) {
      const fake_cuda_custom_launch *l = &fake_cuda_custom_launches[at];
      const bool scales = strcmp(l->name, "my_scale") == 0;
      rows[scales ? 0 : strcmp(l->name, "my_add") == 0 ? 1 : 2]++;
      assert_int_equal(l->launch.rows, scales ? tokens : wanted);
      check_type(&l->launch.output_type, MEGALITH_F32,
                 scales ? MEGALITH_ROWS_TOKENS : MEGALITH_ROWS_LOGITS, 2, scales ? tokens : wanted,
                 scales ? WIDTH : FUSED_VOCAB);
      if (scales) {
        const uint32_t *positions = l->launch.inputs[2];
        check_type(&l->launch.input_types[2], MEGALITH_I32, MEGALITH_ROWS_TOKENS, 1, tokens, 0);
        check_type(&l->launch.input_types[1], MEGALITH_F32, MEGALITH_ROWS_FIXED, 1, WIDTH, 0);
        assert_int_equal(positions[0], f->plan->positions[0]);
        assert_true(l->launch.attributes[0] == 0.001);
      } else if (strcmp(l->name, "my_add") == 0) {
        assert_ptr_equal(l->launch.output, l->launch.inputs[0]);  // in place
      }
    }
    assert_true(rows[0] > 0 && rows[1] > 0 && rows[2] > 0);
    for (uint32_t at = 0; at < wanted * FUSED_VOCAB; at++) {
      assert_true(logits.rows[at] == (float)(at % FUSED_VOCAB));
    }
  }
  // One source each, in the order of the program, and one compilation.
  const char *source = fake_cuda_custom_source(MGL_CUDA_CUSTOM_DISPATCH);
  assert_non_null(strstr(source, "namespace mgl_custom_0 {\n#line 1 \"my_scale\"\nsource of"));
  assert_non_null(strstr(source, "case 2: mgl_custom_2::my_lift(call); return;"));
  plan_feed_destroy(f);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
  // Other modes have no fused kernels for them; mega is the usual one.
  runner = make_mega(program, "{}");
  assert_int_equal(mgl_runner_usual_mode(runner), MGL_MODE_MEGA);
  mgl_runner_destroy(runner);
  runner = make_mega(program, "{\"graph_mode\": \"FULL\"}");
  assert_int_equal(mgl_runner_usual_mode(runner), MGL_MODE_FULL);
  assert_non_null(strstr(mgl_runner_note(runner), "mode full runs the model by plain kernels"));
  mgl_runner_destroy(runner);
  free(program);
}

// What no task can compute is refused with the reason where the megakernel is asked for by name,
// and runs otherwise where nobody insists.
static void what_no_task_computes_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *caps, *message;
  } cases[] = {{"\nlogits = my_pick(raw, logit_rows) : f32[L,512]\noutput",
                "custom op my_pick (\"logits\"): in the megakernel expected activations, weights "
                "of one dim, "
                "tokens and positions as its inputs, found \"logit_rows\""},
               {"\nlogits = my_host(raw) : f32[L,512]\noutput",
                "custom op my_host (\"logits\"): it has no CUDA source"}};
  mgl_model_folder folder = {.config = small_config(MGL_FAMILY_QWEN3)};
  folder.config.vocab_size = FUSED_VOCAB;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *program = scaled_text(cases[i].caps);
    mgl_runner *runner = NULL;
    mgl_error err = {0};
    assert_int_equal(try_runner_of(&folder, program, "{\"graph_mode\": \"MEGA\"}", &runner, &err),
                     MGL_ERR_UNSUPPORTED);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\", found \"%s\"", cases[i].message, err.text);
    }
    assert_int_equal(fake.live, 0);
    free(program);
  }
  char *program = scaled_text(cases[0].caps);
  mgl_runner *runner = NULL;
  MUST(try_runner_of(&folder, program, "{\"preset\": \"fastest\"}", &runner, &err));
  assert_int_equal(mgl_runner_usual_mode(runner), MGL_MODE_FULL);
  assert_non_null(strstr(mgl_runner_note(runner), "mode full runs the model by plain kernels"));
  assert_non_null(strstr(mgl_runner_note(runner), "custom op my_pick"));
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
  free(program);
}

// --- sources that do not compile -----------------------------------------------------------------

static mgl_status no_code(const mgl_cuda_device *of, const char *name, const mgl_cuda_shape *shape,
                          const char *kernel, mgl_cuda_code *out, mgl_error *err) {
  return shape->custom == NULL
             ? fake_cuda_code(of, name, shape, kernel, out, err)
             : mgl_error_set(err, MGL_ERR_INTERNAL, "%s does not compile for sm_90a", name);
}

static void a_source_that_does_not_compile_is_refused(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  const mgl_model_folder folder = {.config = config};
  char *program = changed_text(&config, false);
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = no_code};
  const mgl_build build = {.iteration_tokens = TOKENS,
                           .sequences = SEQUENCES,
                           .sequence_tokens = CONTEXT,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .program = program,
                           .cuda = &cuda};
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_ARGUMENT);
  assert_string_equal(err.text,
                      "custom op my_add: kernels/cuda/custom.cu does not compile for sm_90a");
  assert_int_equal(fake.live, 0);
  free(program);
}

static void failures_leave_nothing_behind(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  char *program = changed_text(&config, true);
  const int64_t live = mgl_alloc_live();
  uint32_t failed = 0;
  bool reached = true;
  for (uint64_t n = 200; reached; n++) {  // those before are test_plain's
    mgl_runner *runner = NULL;
    mgl_error err = {0};
    mgl_alloc_fail_nth(n);
    mgl_status status = try_runner(program, "{\"level\": 0}", &runner, &err);
    reached = mgl_alloc_count() >= n;
    mgl_alloc_fail_nth(0);
    assert_true(status == MGL_OK || (reached && status == MGL_ERR_MEMORY));
    mgl_runner_destroy(runner);
    assert_int_equal(mgl_alloc_live(), live);
    assert_int_equal(fake.live, 0);
    failed += status != MGL_OK;
  }
  assert_true(failed > 10);
  free(program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(failures_leave_nothing_behind),
      cmocka_unit_test(modes_have_the_same_bits),
      cmocka_unit_test(launches_have_the_ops_grid_arguments_and_order),
      cmocka_unit_test(many_tiles_share_the_blocks),
      cmocka_unit_test(sources_are_compiled_once),
      cmocka_unit_test(in_the_megakernel_they_are_tasks),
      cmocka_unit_test(what_no_task_computes_is_refused),
      cmocka_unit_test(a_source_that_does_not_compile_is_refused),
  };
  return cmocka_run_group_tests(tests, register_ops, NULL);
}
