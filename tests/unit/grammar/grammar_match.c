// Not a test: the C side of tools/check_json_schema.py. Each line of standard input is a JSON object
// {"schema": SCHEMA, "texts": [TEXT, ...]}; the answer is a line {"error": MESSAGE}, or
// {"matches": [true or false, ...]}.
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

static bool matches(const mgl_grammar *g, const json_t *text) {
  mgl_matcher m;
  bool alive = false;
  if (mgl_matcher_init(&m, mgl_grammar_automaton(g), NULL) != MGL_OK) {
    return false;
  }
  bool result = mgl_matcher_advance(&m, json_string_value(text), json_string_length(text), &alive,
                                    NULL) == MGL_OK &&
                alive && mgl_matcher_accepts(&m);
  mgl_matcher_reset(&m);
  return result;
}

static json_t *answer(const json_t *line, mgl_vocabulary *v) {
  mgl_error err = {0};
  mgl_grammar *g = NULL;
  const json_t *texts = json_object_get(line, "texts");
  char *schema = json_dumps(json_object_get(line, "schema"), JSON_COMPACT | JSON_ENCODE_ANY);
  const mgl_grammar_source source = {
      .kind = MGL_GRAMMAR_JSON_SCHEMA, .text = schema, .bytes = strlen(schema)};
  json_t *out = json_object();
  if (mgl_grammar_compile(&source, v, NULL, &g, &err) != MGL_OK) {
    (void)json_object_set_new(out, "error", json_string(err.text));
  } else {
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(texts); i++) {
      (void)json_array_append_new(list, json_boolean(matches(g, json_array_get(texts, i))));
    }
    (void)json_object_set_new(out, "matches", list);
  }
  mgl_grammar_release(g);
  free(schema);
  return out;
}

int main(void) {
  char *line = NULL;
  size_t capacity = 0;
  mgl_vocabulary *v = NULL;
  const mgl_vocabulary_token token = {.bytes = "x", .count = 1};
  if (mgl_vocabulary_create(&token, 1, &v, NULL) != MGL_OK) {
    return 1;
  }
  while (getline(&line, &capacity, stdin) > 0) {
    json_t *root = json_loads(line, JSON_ALLOW_NUL, NULL);
    json_t *out =
        root == NULL ? json_pack("{s:s}", "error", "no JSON that jansson reads") : answer(root, v);
    char *text = json_dumps(out, JSON_COMPACT);
    (void)puts(text);
    free(text);
    json_decref(out);
    json_decref(root);
  }
  free(line);
  mgl_vocabulary_release(v);
  return 0;
}
