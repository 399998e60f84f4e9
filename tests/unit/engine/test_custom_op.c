// Ops that a user brings: in a program's text, they run at every level and in every mode with the
// same bits, as splitting ops and as tasks of the megakernel; one that does what a built-in op does
// gives that op's bits. What does not fit is refused with one message, before anything is loaded.
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
#include "engine/runner.h"
#include "graph/custom_op.h"
#include "graph/given_program.h"
#include "support/fake_cuda.h"
#include "support/programs.h"
#include "unit/engine/program_text.h"

enum { VOCAB = 300, CONTEXT = 96, SEQUENCES = 6, TOKENS = 24, ITERATIONS = 12 };

// --- three ops -----------------------------------------------------------------------------------

static size_t columns_of(const mgl_custom_call *call) {
  return (size_t)mgl_tensor_row_elements(&call->tensors[call->op->output]);
}

// x + y, in place, as add does.
static void run_my_add(const mgl_custom_op *op, const mgl_custom_call *call) {
  const size_t columns = columns_of(call);
  float *x = call->output;
  const float *y = call->inputs[1];
  (void)op;
  assert_ptr_equal(call->output, call->inputs[0]);
  for (size_t i = call->begin * columns; i < call->end * columns; i++) {
    x[i] += y[i];
  }
}

// x times a weight's column, and more behind later positions.
static void run_my_scale(const mgl_custom_op *op, const mgl_custom_call *call) {
  const size_t columns = columns_of(call);
  const float *x = call->inputs[0];
  const float *gain = call->inputs[1];  // as all weights of one dim
  const int32_t *positions = call->inputs[2];
  float *out = call->output;
  (void)op;
  assert_true(call->end <= call->rows);
  for (size_t row = call->begin; row < call->end; row++) {
    for (size_t i = 0; i < columns; i++) {
      out[row * columns + i] = x[row * columns + i] * (1 + gain[i]) *
                               (1 + (float)call->op->custom_attrs[0] * (float)positions[row]);
    }
  }
}

// Of logits.
static void run_my_cap(const mgl_custom_op *op, const mgl_custom_call *call) {
  const float cap = (float)call->op->custom_attrs[0];
  const size_t columns = columns_of(call);
  const float *x = call->inputs[0];
  float *out = call->output;
  (void)op;
  for (size_t i = call->begin * columns; i < call->end * columns; i++) {
    out[i] = cap * (x[i] / cap / (1 + (x[i] < 0 ? -x[i] : x[i]) / cap));
  }
}

static mgl_status shape_of_cap(const mgl_custom_op *op, const mgl_tensor *const *in,
                               const double *attrs, mgl_tensor *out, mgl_error *err) {
  (void)op;
  (void)out;
  return attrs[0] > 0 && in[0]->dtype == MGL_DTYPE_F32
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT, "expected f32 and a cap above 0");
}

static int register_ops(void **state) {
  (void)state;
  const mgl_custom_op ops[] = {
      {.name = "my_add", .input_count = 2, .updates = true, .run = run_my_add},
      {.name = "my_scale",
       .input_count = 3,
       .attr_count = 1,
       .attr_names = {"slope"},
       .run = run_my_scale},
      {.name = "my_cap",
       .input_count = 1,
       .attr_count = 1,
       .attr_names = {"cap"},
       .shape = shape_of_cap,
       .run = run_my_cap},
  };
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    mgl_error err = {0};
    if (mgl_custom_op_register(&ops[i], &err) != MGL_OK) {
      print_message("%s\n", err.text);
      return 1;
    }
  }
  return 0;
}

// --- running -------------------------------------------------------------------------------------

static mgl_status make_runner(const mgl_config *config, const char *program,
                              const mgl_compilation *compilation, uint32_t threads,
                              mgl_runner **out, mgl_error *err) {
  const mgl_model_folder folder = {.config = *config};
  const mgl_build build = {.threads = threads,
                           .iteration_tokens = TOKENS,
                           .sequences = SEQUENCES,
                           .sequence_tokens = CONTEXT,
                           .logit_rows = TOKENS,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = 5,
                           .program = program,
                           .compilation = compilation};
  return mgl_runner_create(&folder, &build, out, err);
}

// The logits of iterations of prompts and decoding.
static float *run_mode(const mgl_config *config, const char *program, mgl_mode mode,
                       const mgl_compilation *compilation, uint32_t threads, size_t *count) {
  static int32_t tokens[SEQUENCES][CONTEXT], pages[SEQUENCES][CONTEXT / MGL_PAGE_TOKENS];
  mgl_runner *runner = NULL;
  mgl_plan *plan = NULL;
  uint32_t position[SEQUENCES] = {0};
  float *out = calloc((size_t)ITERATIONS * TOKENS * VOCAB, sizeof *out);
  MUST(make_runner(config, program, compilation, threads, &runner, &err));
  MUST(mgl_plan_create(mgl_runner_limits(runner), &plan, &err));
  *count = 0;
  for (uint32_t i = 0; i < ITERATIONS; i++) {
    mgl_logits logits = {0};
    mgl_plan_clear(plan);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
      uint32_t chunk = (i + s) % 3 == 0 ? 2 + (s + i) % 3 : 1;
      for (uint32_t j = 0; j < CONTEXT / MGL_PAGE_TOKENS; j++) {
        pages[s][j] = (int32_t)(j * SEQUENCES + s);
      }
      for (uint32_t j = 0; j < chunk; j++) {
        tokens[s][position[s] + j] = (int32_t)((s * 37 + (position[s] + j) * 11 + i) % VOCAB);
      }
      mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = &tokens[s][position[s]],
                                           .token_count = chunk,
                                           .position = position[s],
                                           .pages = pages[s],
                                           .page_count = CONTEXT / MGL_PAGE_TOKENS,
                                           .logits = (mgl_plan_logits)((i + s) % 3)});
      position[s] += chunk;
    }
    MUST(mgl_runner_run(runner, mode, plan, &logits, &err));
    size_t values = (size_t)plan->logit_row_count * VOCAB;
    memcpy(out + *count, logits.rows, values * sizeof *out);
    for (uint32_t row = 0; row < plan->logit_row_count; row++) {  // the best is noted by rows
      for (uint32_t v = 0; v < VOCAB; v++) {
        assert_true(logits.rows[(size_t)row * VOCAB + v] <=
                    logits.rows[(size_t)row * VOCAB + logits.best[row]]);
      }
    }
    *count += values;
  }
  mgl_plan_destroy(plan);
  mgl_runner_destroy(runner);
  return out;
}

static void read_compilation(mgl_compilation *c, const char *json) {
  mgl_compilation_init(c);
  MUST(mgl_compilation_read(c, "test", json, &err));
  MUST(mgl_compilation_check(c, NULL, &err));
}

// Every mode gives the bits of `expected`.
static void check_modes(const mgl_config *config, const char *program, const float *expected,
                        size_t expected_count) {
  static const char *const settings[] = {
      NULL,
      "{\"graph_sizes\": [16], \"graph_mode\": \"FULL_AND_PIECEWISE\"}",
      "{\"splitting_ops\": [\"my_add\", \"attention\"]}",
      "{\"level\": 0, \"check_numbers\": true}",
  };
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    static mgl_compilation c;
    if (settings[i] != NULL) {
      read_compilation(&c, settings[i]);
    }
    for (int mode = 0; mode < MGL_MODE_COUNT; mode++) {
      for (uint32_t threads = 1; threads <= 3; threads += 2) {
        size_t count = 0;
        float *found = run_mode(config, program, (mgl_mode)mode, settings[i] == NULL ? NULL : &c,
                                threads, &count);
        assert_int_equal(count, expected_count);
        if (memcmp(found, expected, count * sizeof *found) != 0) {
          fail_msg("%s, %s, %u threads: other bits", mgl_mode_name((mgl_mode)mode),
                   settings[i] == NULL ? "" : settings[i], threads);
        }
        free(found);
      }
    }
  }
}

static void an_op_like_a_built_in_one_gives_its_bits(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  size_t count = 0;
  int64_t live = mgl_alloc_live();
  float *expected = run_mode(&config, NULL, MGL_MODE_EAGER, NULL, 1, &count);
  char *own = text_of_model(&config);
  char *program = changed_text(&config, false);
  size_t again = 0;
  float *same = run_mode(&config, own, MGL_MODE_MEGA, NULL, 2, &again);
  assert_int_equal(again, count);
  assert_memory_equal(same, expected, count * sizeof *same);
  check_modes(&config, program, expected, count);
  free(same);
  free(own);
  free(program);
  free(expected);
  assert_int_equal(mgl_alloc_live(), live);
}

static void ops_with_weights_inputs_and_attributes(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN2);
  size_t count = 0, plain_count = 0;
  uint32_t capped = 0, changed = 0;
  char *program = changed_text(&config, true);
  float *plain = run_mode(&config, NULL, MGL_MODE_EAGER, NULL, 1, &plain_count);
  float *expected = run_mode(&config, program, MGL_MODE_EAGER, NULL, 1, &count);
  assert_int_equal(count, plain_count);
  for (size_t i = 0; i < count; i++) {
    assert_true(expected[i] > -2.5f && expected[i] < 2.5f);
    capped += plain[i] > 2.5f || plain[i] < -2.5f;
    changed += expected[i] != plain[i];
  }
  assert_true(changed > count / 2);
  print_message("%u of %zu logits were above the cap\n", capped, count);
  check_modes(&config, program, expected, count);
  free(program);
  free(plain);
  free(expected);
}

// --- text ----------------------------------------------------------------------------------------

static void what_is_printed_is_read_again(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN2);
  char *text = changed_text(&config, true);
  mgl_graph *graph = parse_program(text);
  mgl_text first = {0}, second = {0};
  mgl_graph_print(graph, &first);
  mgl_graph *again = parse_program(first.data);
  mgl_graph_print(again, &second);
  assert_string_equal(first.data, second.data);
  assert_non_null(strstr(first.data, "logits = my_cap(raw) cap=2.5 : f32[L,300]"));
  mgl_text_free(&first);
  mgl_text_free(&second);
  mgl_graph_destroy(graph);
  mgl_graph_destroy(again);
  free(text);
}

static void programs_that_do_not_fit_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *what, *with, *message;
  } cases[] = {
      {"cap=2.5", "", "expected all attributes of the op"},
      {"cap=2.5", "cup=2.5", "attribute \"cup\" is unknown here or given twice"},
      {"cap=2.5", "cap=-1", "my_cap: result \"logits\": expected f32 and a cap above 0"},
      {"my_cap(raw)", "my_cup(raw)", "unknown op \"my_cup\""},
      {"my_cap(raw)", "custom(raw)", "unknown op \"custom\""},
      {"my_cap(raw)", "my_cap(raw, raw)", "my_cap: expected 1 inputs, found 2"},
      {"f32[L,300]\noutput", "f32[L,299]\noutput",
       "expected the type that its shape function says"},
      {"my_scale(", "my_add(", "attribute \"slope\" is unknown here"},
      {", my.gain, positions) slope", ", kv.0, positions) slope", "found a KV cache"},
      {", my.gain, positions) slope", ", my.gain, logit_rows) slope",
       "expected a plan's input with as many rows as the result"},
      {"output logits", "", "\"logits\" is never read"},
      {"\nlogits = my_cap(raw)", "\nlogit = my_cap(raw)", "\"logits\" is not an activation"},
      {"input positions i32[T]", "input positions i32[R]", "positions"},
      {"input positions", "input place i32[T]\ninput positions",
       "program: \"place\": expected inputs and KV caches of the model's own program"},
      {"weight my.gain bf16[96]", "weight my.gain i4.32[2,96]",
       "input \"my.gain\": expected a weight that is not of codes"},
  };
  const mgl_config config = small_config(MGL_FAMILY_QWEN2);
  int64_t live = mgl_alloc_live();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *text = changed_text(&config, true);
    mgl_runner *runner = NULL;
    mgl_error err = {0};
    size_t at = 0;
    replace(text, TEXT_BYTES, &at, cases[i].what, cases[i].with);
    mgl_status status = make_runner(&config, text, NULL, 1, &runner, &err);
    const char *message = cases[i].message;
    if (status == MGL_OK || strstr(err.text, message) == NULL || strchr(err.text, '\n') != NULL ||
        strncmp(err.text, "program", 7) != 0) {
      fail_msg("%s: expected \"%s\", found \"%s\"", cases[i].with, message, err.text);
    }
    assert_null(runner);
    free(text);
  }
  assert_int_equal(mgl_alloc_live(), live);
}

// --- registering, and where such an op cannot run ------------------------------------------------

static void registrations_that_mean_nothing_are_refused(void **state) {
  (void)state;
  const struct {
    mgl_custom_op op;
    const char *message;
  } cases[] = {
      {{.name = "My", .input_count = 1, .run = run_my_cap}, "expected a name of 1 to 63 small"},
      {{.name = "", .input_count = 1, .run = run_my_cap}, "expected a name of 1 to 63 small"},
      {{.name = "attention", .input_count = 1, .run = run_my_cap}, "one of the built-in ones"},
      {{.name = "my_add", .input_count = 1, .run = run_my_cap}, "registered already"},
      {{.name = "my_none", .input_count = 0, .run = run_my_cap}, "expected 1 to 8 inputs, found 0"},
      {{.name = "my_many", .input_count = 9, .run = run_my_cap}, "expected 1 to 8 inputs, found 9"},
      {{.name = "my_empty", .input_count = 1}, "expected a function for the CPU"},
      {{.name = "my_twice",
        .input_count = 1,
        .run = run_my_cap,
        .attr_count = 2,
        .attr_names = {"a", "a"}},
       "attribute \"a\": expected a name of its own"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_error err = {0};
    assert_int_not_equal(mgl_custom_op_register(&cases[i].op, &err), MGL_OK);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\", found \"%s\"", cases[i].message, err.text);
    }
  }
  assert_null(mgl_custom_op_find("my_none"));
  assert_non_null(mgl_custom_op_find("my_add"));
}

static void a_gpu_without_a_source_and_several_ranks_refuse_them(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN2);
  const mgl_model_folder folder = {.config = config};
  char *add = changed_text(&config, false);
  mgl_cuda_device device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  mgl_build build = {.iteration_tokens = TOKENS,
                     .sequences = SEQUENCES,
                     .sequence_tokens = CONTEXT,
                     .weights = MGL_WEIGHTS_DUMMY,
                     .program = add,
                     .cuda = &cuda};
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "cuda: custom op my_add"));
  assert_non_null(strstr(err.text, "it has no CUDA source; try --device cpu"));
  assert_int_equal(fake.live, 0);
  build.cuda = NULL;
  build.ranks = 2;
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "program: expected one rank"));
  free(add);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_op_like_a_built_in_one_gives_its_bits),
      cmocka_unit_test(ops_with_weights_inputs_and_attributes),
      cmocka_unit_test(what_is_printed_is_read_again),
      cmocka_unit_test(programs_that_do_not_fit_are_refused),
      cmocka_unit_test(registrations_that_mean_nothing_are_refused),
      cmocka_unit_test(a_gpu_without_a_source_and_several_ranks_refuse_them),
  };
  return cmocka_run_group_tests(tests, register_ops, NULL);
}
