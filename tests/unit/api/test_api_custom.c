// Custom ops and programs through the public API: what a registration and a program may say, and
// what the functions of an op are told. (test_custom_op.c has all modes.)
#include "unit/api/api_bed.h"

enum { TEXT_BYTES = 1 << 20 };

static uint32_t shapes_asked, rows_seen, width_seen;

static bool ask_shape(void *context, const megalith_tensor_type *inputs, const double *attributes,
                      megalith_tensor_type *output, megalith_error *error) {
  shapes_asked++;
  assert_string_equal(context, "context");
  assert_int_equal(inputs[0].rows, MEGALITH_ROWS_LOGITS);
  assert_int_equal(inputs[0].dtype, MEGALITH_F32);
  assert_int_equal(inputs[0].rank, 2);
  assert_int_equal(inputs[0].dims[0], 0);
  assert_memory_equal(&inputs[0], output, sizeof *output);
  if (attributes[1] < 0) {
    (void)snprintf(error->text, sizeof error->text, "expected an offset of at least 0");
    return false;
  }
  return true;
}

static void add_offset(const megalith_custom_call *call) {
  const size_t columns = call->output_type->dims[1];
  float *logits = call->output;
  assert_ptr_equal(call->output, call->inputs[0]);
  assert_int_equal(call->size, sizeof *call);
  assert_true(call->end_row <= call->output_type->dims[0]);
  assert_int_equal(call->input_types[0].dims[0], call->output_type->dims[0]);
  __atomic_fetch_add(&rows_seen, call->end_row - call->first_row, __ATOMIC_RELAXED);
  __atomic_store_n(&width_seen, (uint32_t)columns, __ATOMIC_RELAXED);
  for (size_t row = call->first_row; row < call->end_row; row++) {
    logits[row * columns + (size_t)call->attributes[0]] += (float)call->attributes[1];
  }
}

static const char *const names[] = {"token", "offset"};

static megalith_custom_op usual(const char *name) {
  return (megalith_custom_op){.size = sizeof(megalith_custom_op),
                              .name = name,
                              .input_count = 1,
                              .mutated_inputs = 1,
                              .attributes = names,
                              .attribute_count = 2,
                              .shape = ask_shape,
                              .cpu = add_offset,
                              .context = (void *)(uintptr_t) "context"};
}

// The demo's program with `line` behind what made its logits, which are "raw" then.
static char *changed(const char *line) {
  static char text[TEXT_BYTES], out[TEXT_BYTES];
  megalith_error error = {0};
  size_t bytes = 0;
  assert_int_equal(megalith_model_program(model, NULL, 0, &bytes, &error), MEGALITH_OK);
  assert_true(bytes > 0 && bytes < TEXT_BYTES);
  assert_int_equal(megalith_model_program(model, text, sizeof text, &bytes, &error), MEGALITH_OK);
  assert_int_equal(strlen(text), bytes);
  char *at = strstr(text, "\nlogits = ");
  char *end = strchr(at + 1, '\n');
  (void)snprintf(out, sizeof out, "%.*s\nraw = %.*s\n%s%s", (int)(at - text), text,
                 (int)(end - at - 10), at + 10, line, end);
  return out;
}

static megalith_status try_program(const char *program, megalith_error *error) {
  megalith_engine *engine = NULL;
  const megalith_engine_options options = {
      .size = sizeof options, .threads = 2, .kv_tokens = 4096, .program = program};
  megalith_status status = megalith_engine_create(model, &options, &engine, error);
  megalith_engine_destroy(engine);
  return status;
}

static void an_op_changes_what_is_generated(void **state) {
  (void)state;
  megalith_error error = {0};
  const megalith_custom_op op = usual("add_offset");
  assert_int_equal(megalith_custom_op_register(&op, &error), MEGALITH_OK);
  char line[128];
  (void)snprintf(line, sizeof line, "logits = add_offset(raw) token=65 offset=1000 : f32[L,%u]",
                 megalith_model_describe(model)->vocab_size);
  megalith_engine *engine = create((megalith_engine_options){.program = changed(line)});
  megalith_request *request =
      submit(engine, (megalith_request_options){.text = "What is 1 + 1?", .max_new_tokens = 5});
  run(engine);
  const megalith_result *result = megalith_request_result(request);
  assert_int_equal(result->token_count, 5);
  for (size_t i = 0; i < 5; i++) {
    assert_int_equal(result->tokens[i], 65);
  }
  assert_int_equal(rows_seen, 5);  // a row of logits a token
  assert_int_equal(width_seen, megalith_model_describe(model)->vocab_size);
  assert_true(shapes_asked > 0);
  megalith_request_release(request);
  megalith_engine_destroy(engine);
  assert_int_equal(
      try_program(changed("logits = add_offset(raw) token=65 offset=-1 : f32[L,512]"), &error),
      MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "expected an offset of at least 0"));
  assert_int_equal(try_program("program empty\n", &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "program: expected an output \"logits\""));
  assert_int_not_equal(try_program("hello", &error), MEGALITH_OK);
  assert_non_null(strstr(error.text, "program line 1: expected \"program NAME\""));
}

static void registrations_are_checked(void **state) {
  (void)state;
  static char long_name[100];
  memset(long_name, 'a', sizeof long_name - 1);
  struct {
    megalith_custom_op op;
    const char *message;
  } cases[] = {{usual(NULL), "expected names of 1 to 63 bytes, found NULL"},
               {usual(long_name), "found a longer one"},
               {usual("linear"), "one of the built-in ones"},
               {usual("two_inputs"), "mutated_inputs: expected 0, or 1"},
               {usual("many_attributes"), "expected at most 4 attributes, found 5"},
               {usual("no_rule"), "expected cuda_source and cuda_tile_rows together"},
               {usual("no_cpu"), "expected a function for the CPU"},
               {usual("no_size"), "expected size to be sizeof(megalith_custom_op)"}};
  cases[3].op.mutated_inputs = 2;
  cases[4].op.attribute_count = 5;
  cases[5].op.cuda_source = "__global__ void f() {}";
  cases[6].op.cpu = NULL;
  cases[7].op.size = 1;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    megalith_error error = {0};
    assert_int_not_equal(megalith_custom_op_register(&cases[i].op, &error), MEGALITH_OK);
    if (strstr(error.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\", found \"%s\"", cases[i].message, error.text);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(registrations_are_checked),
      cmocka_unit_test(an_op_changes_what_is_generated),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
