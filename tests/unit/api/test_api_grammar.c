// Requests with grammars through the public API: what they generate, how they end, and that others
// do not notice.
#include "api_bed.h"

static megalith_grammar *grammar_of(megalith_grammar_kind kind, const char *text) {
  megalith_error error = {0};
  megalith_grammar *grammar = NULL;
  megalith_grammar_options options = {.size = sizeof options, .kind = kind, .text = text};
  if (megalith_grammar_create(model, &options, &grammar, &error) != MEGALITH_OK) {
    fail_msg("%s: %s", text, error.text);
  }
  return grammar;
}

// Submits and lets go of the grammar at once, which the request keeps.
static megalith_request *submit_with(megalith_engine *engine, megalith_grammar_kind kind,
                                     const char *text, megalith_request_options options) {
  options.grammar = grammar_of(kind, text);
  options.text = options.text == NULL ? "Say something:" : options.text;
  megalith_request *request = submit(engine, options);
  megalith_grammar_release(options.grammar);
  return request;
}

static void expect_text(megalith_request *request, const char *expected) {
  const megalith_result *result = megalith_request_result(request);
  assert_non_null(result);
  if (result->finish == MEGALITH_FINISH_FAILED) {
    fail_msg("%s", result->error);
  }
  assert_string_equal(result->text, expected);
  assert_int_equal(result->finish, MEGALITH_FINISH_STOP);
  megalith_request_release(request);
}

static void grammars_of_one_text_give_it(void **state) {
  (void)state;
  static const char schema[] =
      "{\"properties\":{\"\xc3\xa4\\\"\":{\"const\":[1,{\"b\":null}]}},\"required\":"
      "[\"\xc3\xa4\\\"\"]}";
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_request *regex =
      submit_with(engine, MEGALITH_GRAMMAR_REGEX, "The quick br[o]wn f\\u00f6x{3}\\.",
                  (megalith_request_options){.max_new_tokens = 100});
  megalith_request *choice = submit_with(engine, MEGALITH_GRAMMAR_CHOICE, "[\"yes, of course\"]",
                                         (megalith_request_options){.max_new_tokens = 100});
  megalith_request *ebnf =
      submit_with(engine, MEGALITH_GRAMMAR_EBNF, "root ::= a{3} \"!\"\na ::= \"\xf0\x9f\x98\x80\"",
                  (megalith_request_options){.max_new_tokens = 100});
  megalith_request *json = submit_with(engine, MEGALITH_GRAMMAR_REGEX, "\\{\"a\":1\\}",
                                       (megalith_request_options){.max_new_tokens = 100});
  megalith_request *one = submit_with(engine, MEGALITH_GRAMMAR_JSON_SCHEMA, schema,
                                      (megalith_request_options){.max_new_tokens = 200});
  run(engine);
  expect_text(regex, "The quick brown f\xc3\xb6xxx.");
  expect_text(choice, "yes, of course");
  expect_text(ebnf, "\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80!");
  expect_text(json, "{\"a\":1}");
  const megalith_result *result = megalith_request_result(one);
  assert_non_null(strstr(result->text, "\"\xc3\xa4\\\"\":"));
  assert_non_null(strstr(result->text, "[1,{\"b\":null}]"));
  megalith_request_release(one);
  megalith_engine_destroy(engine);
}

// A model that knows the answer gives it within the grammar, and ends with its own stop token where
// it may.
static void the_model_still_chooses(void **state) {
  (void)state;
  char question[MAX_QUESTION];
  char answer[MAX_QUESTION];
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_request *requests[8];
  for (uint32_t i = 0; i < 8; i++) {
    ask(i, question, answer);
    const megalith_message message = {.role = "user", .content = question};
    megalith_request_options options = {.messages = &message, .message_count = 1};
    options.grammar =
        i % 2 == 0 ? grammar_of(MEGALITH_GRAMMAR_REGEX, "[0-9]+ \\+ [0-9]+ = [0-9]+\\.?") : NULL;
    requests[i] = submit(engine, options);
    megalith_grammar_release(options.grammar);
  }
  run(engine);
  for (uint32_t i = 0; i < 8; i++) {
    ask(i, question, answer);
    expect_text(requests[i], answer);
  }
  megalith_engine_destroy(engine);
}

// Without stop tokens, and with a least number of tokens, a text ends where it must.
static void complete_texts_end_by_themselves(void **state) {
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){0});
  const megalith_sampling sampling = {.size = sizeof sampling, .min_new_tokens = 50};
  megalith_request *plain =
      submit_with(engine, MEGALITH_GRAMMAR_CHOICE, "[\"no\"]",
                  (megalith_request_options){.ignore_model_stops = true, .max_new_tokens = 60});
  megalith_request *least =
      submit_with(engine, MEGALITH_GRAMMAR_CHOICE, "[\"no\"]",
                  (megalith_request_options){.sampling = &sampling, .max_new_tokens = 60});
  // Where the text may end and may go on, min_new_tokens holds.
  megalith_request *longer =
      submit_with(engine, MEGALITH_GRAMMAR_REGEX, "(ab)*",
                  (megalith_request_options){.sampling = &sampling, .max_new_tokens = 60});
  megalith_request *endless =
      submit_with(engine, MEGALITH_GRAMMAR_REGEX, "(ab)*",
                  (megalith_request_options){.ignore_model_stops = true, .max_new_tokens = 20});
  run(engine);
  expect_text(plain, "no");
  expect_text(least, "no");
  assert_true(megalith_request_result(longer)->token_count >= 50);
  assert_int_equal(megalith_request_result(endless)->finish, MEGALITH_FINISH_LENGTH);
  assert_int_equal(megalith_request_result(endless)->token_count, 20);
  assert_memory_equal(megalith_request_result(endless)->text, "abababab", 8);
  megalith_request_release(longer);
  megalith_request_release(endless);
  megalith_engine_destroy(engine);
}

// Pages for two of six requests: they take turns, are computed again, and keep their place in the
// grammar.
static void preempted_requests_keep_their_place(void **state) {
  (void)state;
  enum { COUNT = 6 };
  megalith_engine *engine = create((megalith_engine_options){
      .kv_tokens = 256, .context_tokens = 128, .page_tokens = 16, .sequences = COUNT});
  megalith_request *requests[COUNT];
  for (int i = 0; i < COUNT; i++) {
    requests[i] = submit_with(engine, MEGALITH_GRAMMAR_REGEX, "(x[0-9]y){24}!",
                              (megalith_request_options){.max_new_tokens = 110});
  }
  megalith_error error = {0};
  for (int i = 0; i < 5; i++) {
    assert_int_equal(megalith_engine_step(engine, &error), MEGALITH_OK);
  }
  megalith_request_pause(requests[0]);
  assert_int_equal(megalith_engine_step(engine, &error), MEGALITH_OK);
  megalith_request_resume(requests[0]);
  run(engine);
  for (int i = 0; i < COUNT; i++) {
    const megalith_result *result = megalith_request_result(requests[i]);
    assert_int_equal(result->finish, MEGALITH_FINISH_STOP);
    assert_int_equal(result->text_bytes, 24 * 3 + 1);
    assert_string_equal(result->text, megalith_request_result(requests[COUNT - 1])->text);
    if (i < COUNT - 1) {
      megalith_request_release(requests[i]);
    }
  }
  megalith_request_release(requests[COUNT - 1]);
  megalith_engine_destroy(engine);
}

static void bad_grammars_are_refused(void **state) {
  static const struct {
    megalith_grammar_kind kind;
    const char *text, *message;
  } cases[] = {
      {MEGALITH_GRAMMAR_REGEX, "a(b", "regex, byte 1: a ( without its )"},
      {MEGALITH_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"not\":{}}}}",
       "schema at /properties/a: \"not\" is not supported"},
      {MEGALITH_GRAMMAR_JSON_SCHEMA, "{\"proprties\":{}}", "did you mean properties?"},
      {MEGALITH_GRAMMAR_EBNF, "root ::= x", "rule x: it is used, and defined nowhere"},
      {MEGALITH_GRAMMAR_EBNF, "root ::= root \"a\" | \"b\"", "recursion on the left"},
      {MEGALITH_GRAMMAR_EBNF, "root ::= \"a\" root", "no text matches it"},
      {MEGALITH_GRAMMAR_CHOICE, "[]", "expected a list of texts"},
      {(megalith_grammar_kind)9, "", "expected a kind of 1 to 6, found 9"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    megalith_error error = {0};
    megalith_grammar *grammar = NULL;
    megalith_grammar_options options = {
        .size = sizeof options, .kind = cases[i].kind, .text = cases[i].text};
    assert_int_not_equal(megalith_grammar_create(model, &options, &grammar, &error), MEGALITH_OK);
    assert_null(grammar);
    if (strstr(error.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\", found \"%s\"", cases[i].message, error.text);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(grammars_of_one_text_give_it),
      cmocka_unit_test(the_model_still_chooses),
      cmocka_unit_test(complete_texts_end_by_themselves),
      cmocka_unit_test(preempted_requests_keep_their_place),
      cmocka_unit_test(bad_grammars_are_refused),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
