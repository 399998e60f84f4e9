// Answers of chats whose model thinks and calls tools, whole and as events: from outputs that no
// engine has made, since the demo model knows neither.
#include "serve/answer.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/chat_model.h"
#include "support/must.h"

static megalith_model *model;

static int open_model(void **state) {
  (void)state;
  model = open_chat_model(MGL_DEMO_FOLDER, CHAT_MODEL_TEMPLATE);
  return model != NULL ? 0 : -1;
}

static int close_model(void **state) {
  (void)state;
  megalith_model_close(model);
  return 0;
}

#define ASKED(more)                                                                          \
  "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\"," \
  "\"function\":{\"name\":\"f\"}}]" more "}"

static const char said[] =
    "<think>I call f.</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>\n"
    "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>";

// Hands `said` over in pieces, as tokens bring it; everything that comes out is in *out.
static void answer(const char *body, size_t part, mgl_text *out) {
  mgl_ask ask;
  mgl_answer a;
  MUST(mgl_ask_read(model, MGL_ENDPOINT_CHAT, body, strlen(body), &ask, &err));
  mgl_output_syntax syntax = {.tools = MGL_TOOLS_HERMES, .finds_thoughts = true};
  MUST(mgl_answer_init(model, "demo", &ask, 1, syntax, &a, &err));
  for (size_t at = 0; at < sizeof said - 1; at += part) {
    char text[sizeof said];
    bool is_last = at + part >= sizeof said - 1;
    size_t bytes = is_last ? sizeof said - 1 - at : part;
    memcpy(text, said + at, bytes);
    text[bytes] = 0;
    megalith_output output = {.token = 7,
                              .finish = is_last ? MEGALITH_FINISH_STOP : MEGALITH_FINISH_NONE,
                              .text = text,
                              .text_bytes = bytes,
                              .logprob = NAN};
    mgl_answer_output(&a, 0, &output, out);
  }
  mgl_answer_end(&a, out);
  assert_false(out->failed);
  mgl_answer_free(&a);
  mgl_ask_free(&ask);
}

static const char *string_at(const json_t *value, const char *key) {
  return json_string_value(json_object_get(value, key));
}

static void test_whole(void **state) {
  (void)state;
  for (size_t part = 1; part < sizeof said; part += 3) {
    mgl_text out = {0};
    answer(ASKED(""), part, &out);
    json_t *root = json_loads(out.data, 0, NULL);
    assert_non_null(root);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    const json_t *calls = json_object_get(message, "tool_calls");
    const json_t *function = json_object_get(json_array_get(calls, 0), "function");
    assert_string_equal("tool_calls", string_at(choice, "finish_reason"));
    assert_string_equal("I call f.", string_at(message, "reasoning_content"));
    assert_true(json_is_null(json_object_get(message, "content")));
    assert_int_equal(2, json_array_size(calls));
    assert_string_equal("f", string_at(function, "name"));
    assert_string_equal("{\"x\":1}", string_at(function, "arguments"));
    json_decref(root);
    mgl_text_free(&out);
  }
}

static void test_one_call(void **state) {
  mgl_text out = {0};
  (void)state;
  answer(ASKED(",\"parallel_tool_calls\":false"), 4, &out);
  assert_non_null(strstr(out.data, "\"name\":\"f\""));
  assert_null(strstr(out.data, "\"name\":\"g\""));
  mgl_text_free(&out);
}

static void test_events(void **state) {
  mgl_text out = {0};
  char thoughts[64] = "";
  char finish[32] = "";
  char arguments[64] = "";
  size_t calls = 0;
  size_t pieces = 0;
  (void)state;
  answer(ASKED(",\"stream\":true"), 5, &out);
  const char *at = out.data;
  for (; strncmp(at, "data: [DONE]", 12) != 0; at = strstr(at, "\n\n") + 2) {
    json_t *event = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(event);
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
    const char *thought = string_at(delta, "reasoning_content");
    const char *reason = string_at(choice, "finish_reason");
    strncat(thoughts, thought == NULL ? "" : thought, sizeof thoughts - strlen(thoughts) - 1);
    if (call != NULL) {
      bool begins = string_at(call, "id") != NULL;
      const char *piece = string_at(json_object_get(call, "function"), "arguments");
      calls += begins ? 1 : 0;
      pieces += begins ? 0 : 1;
      assert_int_equal((int)calls - 1, json_integer_value(json_object_get(call, "index")));
      strncat(arguments, piece, sizeof arguments - strlen(arguments) - 1);
    }
    if (reason != NULL) {
      (void)snprintf(finish, sizeof finish, "%s", reason);
    }
    json_decref(event);
  }
  assert_string_equal("I call f.", thoughts);
  assert_string_equal("tool_calls", finish);
  assert_int_equal(2, calls);
  assert_string_equal("{\"x\":1}{}", arguments);
  assert_in_range(pieces, 3, 9);  // they came as they were written
  mgl_text_free(&out);
}

// Half a character has no text of its own, but bytes: those of all tokens are the text's. Offsets
// count its characters.
static void test_logprobs_of_parts_of_characters(void **state) {
  static const char text[] = "a \xf0\x9f\x98\x80 \xe6\x97\xa5!";
  static const mgl_endpoint endpoints[] = {MGL_ENDPOINT_CHAT, MGL_ENDPOINT_COMPLETIONS};
  static const char *const bodies[] = {
      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true,"
      "\"top_logprobs\":3}",
      "{\"prompt\":\"x\",\"logprobs\":3}"};
  int32_t ids[32];
  size_t count = 0;
  (void)state;
  assert_int_equal(megalith_model_tokenize(model, text, sizeof text - 1, ids, 32, &count, NULL),
                   MEGALITH_OK);
  assert_in_range(count, 8, 32);  // more tokens than characters
  for (int e = 0; e < 2; e++) {
    mgl_ask ask;
    mgl_answer a;
    mgl_text out = {0}, joined = {0};
    MUST(mgl_ask_read(model, endpoints[e], bodies[e], strlen(bodies[e]), &ask, &err));
    MUST(mgl_answer_init(model, "demo", &ask, 1, (mgl_output_syntax){0}, &a, &err));
    for (size_t i = 0; i < count; i++) {
      // Two of the likeliest are parts of characters, which look alike.
      const megalith_logprob top[] = {{ids[2], -1}, {ids[3], -2}, {ids[0], -3}};
      megalith_output output = {.token = ids[i], .text = "", .top = top, .top_count = 3};
      output.finish = i + 1 < count ? MEGALITH_FINISH_NONE : MEGALITH_FINISH_STOP;
      mgl_answer_output(&a, 0, &output, &out);
    }
    mgl_answer_end(&a, &out);
    json_t *root = json_loads(out.data, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *logprobs = json_object_get(choice, "logprobs");
    const json_t *content = json_object_get(logprobs, "content");
    const json_t *offsets = json_object_get(logprobs, "text_offset");
    for (size_t i = 0; i < json_array_size(content); i++) {
      const json_t *bytes = json_object_get(json_array_get(content, i), "bytes");
      for (size_t j = 0; j < json_array_size(bytes); j++) {
        char byte = (char)json_integer_value(json_array_get(bytes, j));
        mgl_text_append(&joined, &byte, 1);
      }
    }
    if (e == 0) {
      assert_int_equal(joined.bytes, sizeof text - 1);
      assert_memory_equal(joined.data, text, sizeof text - 1);
    } else {
      assert_int_equal(json_array_size(offsets), count);
      assert_int_equal(json_integer_value(json_array_get(offsets, count - 1)), 5);  // of "!"
    }
    json_decref(root);
    mgl_text_free(&joined);
    mgl_text_free(&out);
    mgl_answer_free(&a);
    mgl_ask_free(&ask);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_logprobs_of_parts_of_characters),
      cmocka_unit_test(test_whole),
      cmocka_unit_test(test_one_call),
      cmocka_unit_test(test_events),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
