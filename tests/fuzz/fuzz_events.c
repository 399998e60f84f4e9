// Fuzzes the writer of answers and of streams' events: the first bytes choose what is asked, the
// rest are the outputs of a model, any bytes. Every event is `data: ` and valid JSON in one line.
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_model.h"
#include "serve/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) {
    abort();
  }
}

static void check_json(const char *text, size_t bytes) {
  json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
  require(json_is_object(root));
  json_decref(root);
}

static void check_events(const char *text) {
  while (*text != 0) {
    const char *end = strstr(text, "\n\n");
    require(end != NULL);
    const char *line = strncmp(text, "event: ", 7) == 0 ? strchr(text, '\n') + 1 : text;
    require(line < end && strncmp(line, "data: ", 6) == 0);
    require(memchr(line, '\n', (size_t)(end - line)) == NULL);
    if (strncmp(line + 6, "[DONE]", 6) != 0) {
      check_json(line + 6, (size_t)(end - line - 6));
    }
    text = end + 2;
  }
}

static void push(mgl_answer *answer, const char *text, size_t bytes, bool is_last, mgl_text *out) {
  megalith_logprob top[2] = {{1, -0.5}, {2, NAN}};
  char *copy = malloc(bytes + 1);
  memcpy(copy, text, bytes);
  copy[bytes] = 0;
  megalith_output output = {.token = (int32_t)(bytes * 7 % 1024),
                            .finish = is_last ? MEGALITH_FINISH_STOP : MEGALITH_FINISH_NONE,
                            .text = copy,
                            .text_bytes = bytes,
                            .logprob = bytes % 3 == 0 ? -INFINITY : -0.25,
                            .top = top,
                            .top_count = 2};
  mgl_answer_output(answer, 0, &output, out);
  free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const bodies[] = {
      "{\"prompt\":\"x\",\"logprobs\":2}",
      "{\"prompt\":\"x\",\"echo\":true,\"return_token_ids\":true}",
      "{\"prompt\":\"x\",\"stream\":true,\"logprobs\":2}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}",
      "{\"input\":\"x\"}",
      "{\"input\":\"x\",\"stream\":true}",
  };
  mgl_ask ask;
  mgl_answer answer;
  mgl_text out = {0};
  mgl_error err = {0};
  if (size < 2 || size > 512) {
    return 0;
  }
  size_t body = data[0] % (sizeof bodies / sizeof *bodies);
  mgl_endpoint endpoint = body < 3   ? MGL_ENDPOINT_COMPLETIONS
                          : body < 5 ? MGL_ENDPOINT_CHAT
                                     : MGL_ENDPOINT_RESPONSES;
  mgl_output_syntax syntax = {.tools = (mgl_tool_format)(data[1] & 3),
                              .finds_thoughts = (data[1] & 4) != 0};
  require(mgl_ask_read(&fuzz_model, endpoint, bodies[body], strlen(bodies[body]), &ask, &err) ==
          MGL_OK);
  ask.tools_json = endpoint == MGL_ENDPOINT_CHAT ? strdup("[]") : NULL;
  require(mgl_answer_init(&fuzz_model, "demo \"model\"\n", &ask, 1, syntax, &answer, &err) ==
          MGL_OK);
  size_t part = 1 + data[1] / 8;
  for (size_t at = 2; at < size; at += part) {
    push(&answer, (const char *)data + at, size - at < part ? size - at : part, false, &out);
  }
  push(&answer, "", 0, true, &out);
  mgl_answer_end(&answer, &out);
  require(!out.failed && strlen(out.data) == out.bytes);
  if (ask.stream) {
    mgl_answer_append_error_event(&out, "x\"\n\xff");
    check_events(out.data);
  } else {
    check_json(out.data, out.bytes);
  }
  mgl_text_free(&out);
  mgl_answer_free(&answer);
  mgl_ask_free(&ask);
  return 0;
}
