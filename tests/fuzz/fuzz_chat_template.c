// Fuzz target: arbitrary bytes as a chat template, parsed and rendered over a fixed conversation.
// Nothing but an error may come of it: no crash, no leak, no long run.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "template/chat_template.h"

static const char context_text[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" Be brief. \"},"
    "{\"role\": \"user\", \"content\": \"Gr\\u00fc\\u00dfe \\ud83d\\ude42\\n\"},"
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\":"
    "{\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, true, null]}}}]}],"
    "\"tools\": [], \"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"n\": 3,"
    "\"add_generation_prompt\": true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  json_t *context = NULL;
  mgl_error err = {0};
  if (mgl_json_parse(context_text, strlen(context_text), "context", &context, &err) != MGL_OK) {
    abort();
  }
  mgl_chat_template *parsed = NULL;
  mgl_text out = {0};
  mgl_status status = mgl_chat_template_parse((const char *)data, bytes, "fuzz", &parsed, &err);
  if (status == MGL_OK) {
    status = mgl_chat_template_render(parsed, context, &out, &err);
  }
  // Every failure has one message with its place, and no failure is Megalith's own.
  if (status == MGL_ERR_INTERNAL ||
      (status != MGL_OK && strncmp(err.text, "fuzz: line ", 11) != 0)) {
    abort();
  }
  mgl_text_free(&out);
  mgl_chat_template_destroy(parsed);
  json_decref(context);
  return 0;
}
