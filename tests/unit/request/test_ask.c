// Bodies: what each parameter becomes, and the message of each that is refused.
#include "request/ask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "request/parameters.h"
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

static void read_ask(mgl_endpoint endpoint, const char *body, mgl_ask *out) {
  mgl_error err = {0};
  if (mgl_ask_read(model, endpoint, body, strlen(body), out, &err) != MGL_OK) {
    fail_msg("%s: %s", body, err.text);
  }
}

typedef struct refusal {
  mgl_endpoint endpoint;
  const char *body;
  const char *parameter;  // to blame
  const char *message;    // a part of it
} refusal;

#define C MGL_ENDPOINT_COMPLETIONS
#define M MGL_ENDPOINT_CHAT
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

static const refusal refusals[] = {
    {C, "", "", "expected JSON"},
    {C, "[]", "", "expected a JSON object"},
    {C, "{\"prompt\":\"x\",\"prompt\":\"y\"}", "", "duplicate"},
    {C, "{}", "prompt", "it is missing"},
    {C, "{\"prompt\":null}", "prompt", "it is missing"},
    {C, "{\"prompt\":\"\"}", "prompt", "not empty"},
    {C, "{\"prompt\":[]}", "prompt", "expected a text, texts, token ids"},
    {C, "{\"prompt\":[1,\"x\"]}", "prompt", "found 1"},
    {C, "{\"prompt\":[[1],[-1]]}", "prompt", "found [-1]"},
    {C, "{\"prompt\":{\"x\":1}}", "prompt", "found {\"x\":1}"},
    {C, "{\"prompt\":\"x\",\"temperatur\":1}", "temperatur", "did you mean temperature?"},
    {C, "{\"prompt\":\"x\",\"messages\":[]}", "messages", "of /v1/chat/completions, not of"},
    {C, "{\"prompt\":\"x\",\"temperature\":-1}", "temperature", "0 to 100, found -1"},
    {C, "{\"prompt\":\"x\",\"temperature\":\"1\"}", "temperature", "found \"1\""},
    {C, "{\"prompt\":\"x\",\"top_p\":1.5}", "top_p", "0 to 1, found 1.5"},
    {C, "{\"prompt\":\"x\",\"top_k\":-2}", "top_k", "expected -1 to 16777216, found -2"},
    {C, "{\"prompt\":\"x\",\"min_p\":true}", "min_p", "found true"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":0}", "max_tokens", "without echo"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":-1}", "max_tokens", "0 to 16777216, found -1"},
    {M, "{" USER ",\"max_tokens\":0}", "max_tokens", "1 to 16777216, found 0"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":1.5}", "max_tokens", "found 1.5"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":2,\"min_tokens\":3}", "min_tokens", "at most max_tokens"},
    {C, "{\"prompt\":\"x\",\"n\":0}", "n", "1 to 128, found 0"},
    {C, "{\"prompt\":[\"x\",\"y\"],\"n\":100}", "n",
     "128 choices of all prompts together, found 200"},
    {C, "{\"prompt\":\"x\",\"best_of\":2}", "best_of", "expected only 1"},
    {C, "{\"prompt\":\"x\",\"seed\":-1}", "seed", "found -1"},
    {C, "{\"prompt\":\"x\",\"stop\":[\"a\",1]}", "stop", "found 1"},
    {C, "{\"prompt\":\"x\",\"stop\":\"\"}", "stop", "1 to 256 bytes, found \"\""},
    {C, "{\"prompt\":\"x\",\"stop_token_ids\":[-5]}", "stop_token_ids", "found [-5]"},
    {C, "{\"prompt\":\"x\",\"stop_token_ids\":[5,1024]}", "stop_token_ids", "found 1024"},
    {C, "{\"prompt\":[[5],[6,1024]]}", "prompt", "expected ids of 0 to 1023, found 1024"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"1024\":1}}", "logit_bias", "found it for \"1024\""},
    {C, "{\"prompt\":\"x\",\"allowed_token_ids\":[1024]}", "allowed_token_ids", "found 1024"},
    {C, "{\"prompt\":\"x\",\"allowed_token_ids\":[4],\"structured_outputs\":{\"regex\":\"a\"}}",
     "allowed_token_ids", "expected no \"structured_outputs\" beside it"},
    {C, "{\"prompt\":\"x\",\"bad_words\":[\"a\"],\"response_format\":{\"type\":\"json_object\"}}",
     "bad_words", "expected no \"response_format\" beside it"},
    {C, "{\"prompt\":\"x\",\"bad_words\":[\"a\"],\"allowed_token_ids\":[4]}", "bad_words",
     "found both"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"x\":1}}", "logit_bias", "found it for \"x\""},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"5\":101}}", "logit_bias", "found it for \"5\""},
    {C, "{\"prompt\":\"x\",\"logprobs\":21}", "logprobs", "0 to 20, found 21"},
    {C, "{\"prompt\":\"x\",\"stream_options\":{}}", "stream_options", "\"stream\": true beside it"},
    {C, "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"x\":true}}", "stream_options",
     "include_usage"},
    {C, "{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", "found \"y\""},
    {C, "{\"prompt\":\"x\",\"prompt_logprobs\":21}", "prompt_logprobs", "0 to 20, found 21"},
    {C, "{\"prompt\":\"x\",\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs",
     "no \"stream\""},
    {C, "{\"prompt\":\"x\",\"allowed_token_ids\":[]}", "allowed_token_ids", "1 or more token ids"},
    {C, "{\"prompt\":\"x\",\"allowed_token_ids\":[-1]}", "allowed_token_ids", "found [-1]"},
    {C, "{\"prompt\":\"x\",\"priority\":0.5}", "priority", "found 0.5"},
    {C, "{\"prompt\":\"x\",\"priority\":3000000000}", "priority", "-2147483648 to 2147483647"},
    {C, "{\"prompt\":\"x\",\"skip_special_tokens\":1}", "skip_special_tokens", "found 1"},
    {M, "{" USER ",\"chat_template_kwargs\":{\"enable_thinkin\":1}}", "chat_template_kwargs",
     "did you mean enable_thinking?"},
    {M, "{" USER ",\"chat_template_kwargs\":{\"messages\":1}}", "chat_template_kwargs",
     "\"messages\" is no variable"},
    {M, "{" USER ",\"chat_template_kwargs\":[]}", "chat_template_kwargs", "an object"},
    {M,
     "{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"parameters\":5}}]}",
     "tools", "\"tools\"[0]: expected"},
    {M, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":5}]}", "messages",
     "objects with a function"},
    {MGL_ENDPOINT_TOKENIZE, "{\"prompt\":[5]}", "prompt", "expected a text, found [5]"},
    {C, "{\"prompt\":\"x\",\"cache_salt\":\"\"}", "cache_salt", "1 to 256 bytes"},
    {M, "{" USER ",\"tool_choice\":\"required\"}", "tool_choice", "\"tools\" beside it"},
    {M, "{" USER ",\"tool_choice\":\"x\"}", "tool_choice", "auto, none, required, or {"},
    {M,
     "{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
     "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
     "tool_choice", "a function of \"tools\", found g"},
    {M,
     "{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
     "\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}}",
     "tool_choice", "no \"response_format\" beside"},
    {M, "{" USER ",\"tools\":[{\"type\":\"x\"}]}", "tools", "\"tools\"[0]: expected"},
    {M, "{" USER ",\"top_logprobs\":2}", "top_logprobs", "\"logprobs\": true beside it"},
    {M, "{" USER ",\"logprobs\":2}", "logprobs", "true or false, found 2"},
    {M, "{" USER ",\"reasoning_effort\":\"huge\"}", "reasoning_effort", "found \"huge\""},
    {M, "{" USER ",\"add_generation_prompt\":false}", "add_generation_prompt", "opposite"},
    {M, "{" USER ",\"functions\":[]}", "functions", "expected null"},
    {M, "{\"messages\":[]}", "messages", "1 to 65536 messages"},
    {M, "{\"messages\":[{\"content\":\"x\"}]}", "messages", "\"messages\"[0]: expected"},
    {M, "{\"prompt\":\"x\"}", "prompt", "a parameter of /v1/completions"},
};

static void test_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    const refusal *c = &refusals[i];
    mgl_ask ask;
    mgl_error err = {0};
    mgl_status status = mgl_ask_read(model, c->endpoint, c->body, strlen(c->body), &ask, &err);
    if (status == MGL_OK || strstr(err.text, c->message) == NULL ||
        strcmp(ask.blamed, c->parameter) != 0) {
      fail_msg("%s: expected \"%s\" of \"%s\", found \"%s\" of \"%s\"", c->body, c->message,
               c->parameter, err.text, ask.blamed);
    }
    mgl_ask_free(&ask);
  }
}

static void test_completion(void **state) {
  (void)state;
  mgl_ask ask;
  megalith_sampling sampling;
  megalith_request_options options;
  read_ask(C,
           "{\"model\":\"m\",\"prompt\":[[1,2],[3]],\"n\":2,\"max_tokens\":7,\"temperature\":0.5,"
           "\"top_p\":0.9,\"top_k\":-1,\"min_p\":0.1,\"seed\":40,\"stop\":[\"a\",\"b\"],"
           "\"stop_token_ids\":[5],\"ignore_eos\":true,\"logit_bias\":{\"7\":-100},\"logprobs\":3,"
           "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5,"
           "\"min_tokens\":2,\"cache_salt\":\"s\",\"stream\":true,"
           "\"stream_options\":{\"include_usage\":true},\"best_of\":1,\"user\":null,"
           "\"allowed_token_ids\":[4,5],\"priority\":-7,\"skip_special_tokens\":false,"
           "\"echo\":true}",
           &ask);
  assert_int_equal(2, ask.prompt_count);
  assert_true(ask.stream && ask.include_usage && ask.has_seed);
  mgl_ask_options(&ask, 3, &sampling, &options);
  assert_int_equal(1, options.token_count);
  assert_int_equal(3, options.tokens[0]);
  assert_int_equal(7, options.max_new_tokens);
  assert_int_equal(43, sampling.seed);
  assert_int_equal(0, sampling.top_k);
  assert_int_equal(2, sampling.min_new_tokens);
  assert_int_equal(3, sampling.top_logprobs);
  assert_true(sampling.logprobs && options.ignore_model_stops);
  assert_true(sampling.temperature == 0.5 && sampling.top_p == 0.9 && sampling.min_p == 0.1);
  assert_true(sampling.presence_penalty == 1 && sampling.frequency_penalty == -1);
  assert_true(sampling.repetition_penalty == 1.5);
  assert_int_equal(1, sampling.bias_count);
  assert_true(sampling.biases[0].token == 7 && sampling.biases[0].value == -100);
  assert_string_equal("b", options.stop_texts[1]);
  assert_int_equal(5, options.stop_tokens[0]);
  assert_int_equal(1, options.cache_salt_bytes);
  assert_true(sampling.allowed_count == 2 && sampling.allowed[1] == 5);
  assert_true(options.priority == -7 && options.keep_special);
  assert_true(sampling.prompt_logprobs && sampling.prompt_top_logprobs == 3);
  mgl_ask_options(&ask, 1, &sampling, &options);
  assert_int_equal(2, options.token_count);
  mgl_ask_free(&ask);
}

static void test_chat(void **state) {
  (void)state;
  mgl_ask ask;
  megalith_sampling sampling;
  megalith_request_options options;
  read_ask(M,
           "{" USER
           ",\"max_completion_tokens\":9,\"logprobs\":true,\"top_logprobs\":2,"
           "\"chat_template_kwargs\":{\"bomb\":1},\"reasoning_effort\":\"none\","
           "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
           &ask);
  mgl_ask_options(&ask, 0, &sampling, &options);
  assert_string_equal("[{\"role\":\"user\",\"content\":\"x\"}]", options.messages_json);
  assert_string_equal("{\"bomb\":1,\"enable_thinking\":false}", options.chat_variables_json);
  assert_non_null(options.tools_json);
  assert_int_equal(9, options.max_new_tokens);
  assert_true(sampling.logprobs && sampling.top_logprobs == 2);
  mgl_ask_free(&ask);
  read_ask(M,
           "{" USER
           ",\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\",\"function\":"
           "{\"name\":\"f\"}}]}",
           &ask);
  mgl_ask_options(&ask, 0, &sampling, &options);
  assert_null(options.tools_json);
  mgl_ask_free(&ask);
}

static void test_responses(void **state) {
  (void)state;
  mgl_ask ask;
  read_ask(MGL_ENDPOINT_RESPONSES,
           "{\"instructions\":\"be brief\",\"input\":[{\"type\":\"message\",\"role\":\"user\","
           "\"content\":[{\"type\":\"input_text\",\"text\":\"x\"}]}]}",
           &ask);
  assert_string_equal(
      "[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":\"user\","
      "\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]",
      ask.messages_json);
  mgl_ask_free(&ask);
  read_ask(MGL_ENDPOINT_RESPONSES, "{\"input\":\"hi\"}", &ask);
  assert_string_equal("[{\"role\":\"user\",\"content\":\"hi\"}]", ask.messages_json);
  mgl_ask_free(&ask);
}

// A few bytes of a body must not become hundreds of bytes of memory each.
static void test_bombs(void **state) {
  (void)state;
  enum { BYTES = 3 * 400000 };
  mgl_ask ask;
  mgl_error err = {0};
  char *body = malloc(BYTES + 1);
  for (size_t i = 0; i < BYTES; i += 3) {
    memcpy(body + i, "{},", 3);
  }
  assert_int_equal(MGL_ERR_LIMIT, mgl_ask_read(model, C, body, BYTES, &ask, &err));
  mgl_ask_free(&ask);
  memset(body, '[', BYTES);
  assert_int_equal(MGL_ERR_LIMIT, mgl_ask_read(model, C, body, 60000, &ask, &err));
  assert_non_null(strstr(err.text, "nested deeper than 64"));
  mgl_ask_free(&ask);
  free(body);
}

// What the demo's own template does not know is refused, too.
static void test_plain_template(void **state) {
  static const refusal plain[] = {
      {M, "{" USER ",\"reasoning_effort\":\"low\"}", "reasoning_effort", "no variable for it"},
      {M, "{" USER ",\"chat_template_kwargs\":{\"x\":1}}", "chat_template_kwargs", "which has 0"},
      {M, "{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}", "tools",
       "shows it no tools"},
  };
  megalith_model *demo = NULL;
  (void)state;
  assert_int_equal(MEGALITH_OK, megalith_model_open(MGL_DEMO_FOLDER, NULL, &demo, NULL));
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
    mgl_ask ask;
    mgl_error err = {0};
    assert_int_not_equal(MGL_OK,
                         mgl_ask_read(demo, M, plain[i].body, strlen(plain[i].body), &ask, &err));
    assert_non_null(strstr(err.text, plain[i].message));
    assert_string_equal(plain[i].parameter, ask.blamed);
    mgl_ask_free(&ask);
  }
  megalith_model_close(demo);
}

// Names are unique at each endpoint, and every row has what the documentation prints.
static void test_table(void **state) {
  (void)state;
  const mgl_parameter *p = NULL;
  for (size_t i = 0; (p = mgl_parameter_at(i)) != NULL; i++) {
    const mgl_parameter *other = NULL;
    assert_non_null(p->otherwise);
    assert_non_null(p->meaning);
    assert_true(p->type != MGL_PARAMETER_READ || (p->read != NULL && p->schema != NULL));
    mgl_text schema = {0};
    mgl_parameter_append_schema(p, 1024, &schema);
    json_t *root = json_loads(schema.data, 0, NULL);
    if (!json_is_object(root)) {
      fail_msg("%s: %s is no schema", p->name, schema.data);
    }
    json_decref(root);
    mgl_text_free(&schema);
    for (size_t j = 0; j < i; j++) {
      other = mgl_parameter_at(j);
      if (strcmp(p->name, other->name) == 0 && (p->endpoints & other->endpoints) != 0) {
        fail_msg("%s stands twice in the table for one endpoint", p->name);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refusals),       cmocka_unit_test(test_completion),
      cmocka_unit_test(test_chat),           cmocka_unit_test(test_responses),
      cmocka_unit_test(test_bombs),          cmocka_unit_test(test_table),
      cmocka_unit_test(test_plain_template),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
