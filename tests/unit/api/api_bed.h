// Shared by the API's tests: the demo model, engines that are created or the test fails, and
// questions whose answers are known.
#ifndef MGL_TESTS_API_BED_H
#define MGL_TESTS_API_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <megalith.h>

static megalith_model *model;

static inline int open_model(void **state) {
  megalith_error error = {0};
  (void)state;
  (void)setenv("MEGALITH_DEVICE", "cpu", 1);
  if (megalith_model_open(MGL_DEMO_FOLDER, NULL, &model, &error) != MEGALITH_OK) {
    (void)fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  return 0;
}

static inline int close_model(void **state) {
  (void)state;
  megalith_model_close(model);
  return 0;
}

static inline megalith_engine *create(megalith_engine_options options) {
  megalith_error error = {0};
  megalith_engine *engine = NULL;
  options.size = sizeof options;
  options.threads = options.threads == 0 ? 2 : options.threads;
  options.kv_tokens = options.kv_tokens == 0 ? 8192 : options.kv_tokens;
  if (megalith_engine_create(model, &options, &engine, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
  return engine;
}

// Fails unless such an engine is refused, with this text in the message.
static inline void refuse_engine(megalith_engine_options options, megalith_status status,
                                 const char *text) {
  megalith_error error = {0};
  megalith_engine *engine = NULL;
  options.size = sizeof options;
  assert_int_equal(megalith_engine_create(model, &options, &engine, &error), status);
  assert_null(engine);
  if (strstr(error.text, text) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", text, error.text);
  }
}

static inline megalith_request *submit(megalith_engine *engine, megalith_request_options options) {
  megalith_error error = {0};
  megalith_request *request = NULL;
  options.size = sizeof options;
  if (megalith_engine_submit(engine, &options, &request, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
  return request;
}

static inline void run(megalith_engine *engine) {
  megalith_error error = {0};
  if (megalith_engine_run(engine, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
}

// --- questions whose answers are known -----------------------------------------------------------

enum { MAX_QUESTION = 64 };

static inline void ask(uint32_t i, char question[MAX_QUESTION], char answer[MAX_QUESTION]) {
  uint32_t a = 11 + i * 7 % 80;
  uint32_t b = 12 + i * 13 % 70;
  (void)snprintf(question, MAX_QUESTION, "What is %u + %u?", a, b);
  (void)snprintf(answer, MAX_QUESTION, "%u + %u = %u.", a, b, a + b);
}

static inline megalith_request *submit_question(megalith_engine *engine, uint32_t i,
                                                megalith_request_options options) {
  char question[MAX_QUESTION];
  char answer[MAX_QUESTION];
  ask(i, question, answer);
  const megalith_message message = {.role = "user", .content = question};
  options.messages = &message;
  options.message_count = 1;
  return submit(engine, options);
}

static inline void check_answer(megalith_request *request, uint32_t i) {
  char question[MAX_QUESTION];
  char answer[MAX_QUESTION];
  ask(i, question, answer);
  const megalith_result *result = megalith_request_result(request);
  assert_non_null(result);
  assert_int_equal(result->finish, MEGALITH_FINISH_STOP);
  assert_string_equal(result->text, answer);
  assert_int_equal(result->text_bytes, strlen(answer));
  assert_string_equal(result->error, "");
}

static inline void nothing_more_than_the_answer(megalith_request *request, uint32_t i) {
  char question[MAX_QUESTION];
  char answer[MAX_QUESTION];
  ask(i, question, answer);
  const megalith_result *result = megalith_request_result(request);
  assert_memory_equal(result->text, answer, result->text_bytes);
}

#endif
