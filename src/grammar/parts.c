#include "grammar/parts.h"

#include <string.h>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/vocabulary.h"

typedef struct parts_reader {
  mgl_builder *b;
  const mgl_json_rules *rules;
  const mgl_tokenizer *tokenizer;
} parts_reader;

typedef const mgl_expression *read_part(parts_reader *r, const json_t *value, const json_t *whole);

static const mgl_expression *read_any(parts_reader *r, const json_t *part);

const mgl_expression *mgl_choice_expression(mgl_builder *b, const json_t *texts) {
  size_t count = json_array_size(texts);
  const mgl_expression **parts = mgl_builder_alloc(b, count + 1, sizeof *parts);
  if (parts == NULL) {
    return NULL;
  }
  for (size_t i = 0; i < count; i++) {
    const json_t *text = json_array_get(texts, i);
    if (!json_is_string(text) || json_string_length(text) == 0) {
      return mgl_builder_fail(b, MGL_ERR_ARGUMENT, "choice %zu: expected a text that is not empty",
                              i);
    }
    parts[i] = mgl_expression_bytes(b, json_string_value(text), json_string_length(text));
  }
  return count > 0 ? mgl_expression_choice(b, parts, count)
                   : mgl_builder_fail(b, MGL_ERR_ARGUMENT, "choice: expected a list of texts");
}

static const mgl_expression *not_text(parts_reader *r, const char *name) {
  return mgl_builder_fail(r->b, MGL_ERR_ARGUMENT, "\"%s\": expected a text that is not empty",
                          name);
}

static bool is_text(const json_t *value) {
  return json_is_string(value) && json_string_length(value) > 0;
}

static const mgl_expression *read_text(parts_reader *r, const json_t *value, const json_t *whole) {
  (void)whole;
  return is_text(value)
             ? mgl_expression_bytes(r->b, json_string_value(value), json_string_length(value))
             : not_text(r, "text");
}

static const mgl_expression *read_schema(parts_reader *r, const json_t *value,
                                         const json_t *whole) {
  (void)whole;
  return mgl_json_schema_expression(r->b, r->rules, value);
}

static const mgl_expression *read_json_object(parts_reader *r, const json_t *value,
                                              const json_t *whole) {
  (void)whole;
  return json_is_true(value)
             ? r->rules->object
             : mgl_builder_fail(r->b, MGL_ERR_ARGUMENT, "\"json_object\": expected true");
}

static const mgl_expression *read_regex(parts_reader *r, const json_t *value, const json_t *whole) {
  (void)whole;
  return is_text(value) ? mgl_regex_parse(r->b, json_string_value(value), json_string_length(value),
                                          (mgl_regex_options){0})
                        : not_text(r, "regex");
}

static const mgl_expression *read_choice(parts_reader *r, const json_t *value,
                                         const json_t *whole) {
  (void)whole;
  return mgl_choice_expression(r->b, value);
}

static const mgl_expression *read_grammar(parts_reader *r, const json_t *value,
                                          const json_t *whole) {
  (void)whole;
  return is_text(value) ? mgl_ebnf_parse(r->b, json_string_value(value), json_string_length(value))
                        : not_text(r, "grammar");
}

static const mgl_expression *read_token(parts_reader *r, const json_t *value, const json_t *whole) {
  char bytes[MGL_SPECIAL_BYTES];
  bool is_special = false;
  bool is_token = false;
  mgl_text text = {0};
  (void)whole;
  int32_t id = is_text(value) && r->tokenizer != NULL
                   ? mgl_tokenizer_find(r->tokenizer, json_string_value(value))
                   : -1;
  if (id >= 0 &&
      mgl_tokenizer_token_bytes(r->tokenizer, id, &text, &is_token, &is_special, NULL) == MGL_OK) {
    mgl_text_free(&text);
  }
  if (!is_special) {
    return mgl_builder_fail(r->b, MGL_ERR_ARGUMENT,
                            "\"token\": expected a special token of the tokenizer, found %.60s",
                            json_is_string(value) ? json_string_value(value) : "no text");
  }
  mgl_special_bytes((uint32_t)id, bytes);
  return mgl_expression_bytes(r->b, bytes, sizeof bytes);
}

enum { MOST_WORD_BYTES = 64 };

// What may follow in a text without a word, when its last `at` bytes are the word's first ones and
// no more of them are: rules[k] stands for the same of k. (The automaton of Knuth, Morris and
// Pratt; over characters, which can be parts of the word only if they are one byte.)
static const mgl_expression *go_on_without(mgl_builder *b, const char *word, size_t bytes,
                                           size_t at, const uint32_t *rules) {
  static const mgl_code_range everything[] = {{0, MGL_GRAMMAR_MAX_CODE}};
  const mgl_expression *parts[MOST_WORD_BYTES + 2];
  mgl_code_range taken[MOST_WORD_BYTES];
  size_t taken_count = 0;
  size_t part_count = 0;
  size_t rest_count = 0;
  parts[part_count++] = mgl_expression_sequence(b, NULL, 0);
  for (size_t k = at + 1; k > 0; k--) {
    // Longest first: the word's first k - 1 bytes are the last ones now, and its next one follows.
    uint32_t code = (uint32_t)word[k - 1];
    bool is_new = memcmp(word, word + (at - (k - 1)), k - 1) == 0;
    for (size_t j = 0; j < taken_count; j++) {
      is_new = is_new && taken[j].first != code;
    }
    if (is_new) {
      taken[taken_count++] = (mgl_code_range){code, code};
    }
    if (is_new && k < bytes) {
      parts[part_count++] = MGL_SEQUENCE(b, mgl_expression_bytes(b, word + k - 1, 1),
                                         mgl_expression_rule(b, rules[k]));
    }
  }
  const mgl_code_range *rest =
      mgl_ranges_without(b, everything, 1, taken, taken_count, &rest_count);
  parts[part_count++] = rest == NULL ? NULL
                                     : MGL_SEQUENCE(b, mgl_expression_set(b, rest, rest_count),
                                                    mgl_expression_rule(b, rules[0]));
  return mgl_expression_choice(b, parts, part_count);
}

static const mgl_expression *read_text_without(parts_reader *r, const json_t *value,
                                               const json_t *whole) {
  const char *word = json_string_value(value);
  size_t bytes = json_string_length(value);
  uint32_t rules[MOST_WORD_BYTES] = {0};
  (void)whole;
  if (!is_text(value)) {
    return not_text(r, "text_without");
  }
  for (size_t i = 0; i < bytes; i++) {
    if (bytes > MOST_WORD_BYTES || (unsigned char)word[i] >= 0x80) {
      return mgl_builder_fail(r->b, MGL_ERR_UNSUPPORTED,
                              "\"text_without\": expected at most %d ASCII characters",
                              MOST_WORD_BYTES);
    }
  }
  for (size_t i = 0; i < bytes; i++) {
    rules[i] = mgl_rule_add(r->b, "text_without");
  }
  for (size_t i = 0; i < bytes && !mgl_builder_failed(r->b); i++) {
    mgl_rule_set(r->b, rules[i], go_on_without(r->b, word, bytes, i, rules));
  }
  return mgl_expression_rule(r->b, rules[0]);
}

static const mgl_expression *read_list(parts_reader *r, const json_t *value, bool is_choice) {
  size_t count = json_array_size(value);
  const mgl_expression **parts = mgl_builder_alloc(r->b, count + 1, sizeof *parts);
  if (parts == NULL || !json_is_array(value)) {
    return mgl_builder_fail(r->b, MGL_ERR_ARGUMENT, "expected a list of parts");
  }
  for (size_t i = 0; i < count; i++) {
    parts[i] = read_any(r, json_array_get(value, i));
  }
  return (is_choice ? mgl_expression_choice : mgl_expression_sequence)(r->b, parts, count);
}

static const mgl_expression *read_sequence(parts_reader *r, const json_t *value,
                                           const json_t *whole) {
  (void)whole;
  return read_list(r, value, false);
}

static const mgl_expression *read_any_of(parts_reader *r, const json_t *value,
                                         const json_t *whole) {
  (void)whole;
  return read_list(r, value, true);
}

static const mgl_expression *read_repeat(parts_reader *r, const json_t *value,
                                         const json_t *whole) {
  const json_t *min = json_object_get(whole, "min");
  const json_t *max = json_object_get(whole, "max");
  if ((min != NULL && (!json_is_integer(min) || json_integer_value(min) < 0)) ||
      (max != NULL && (!json_is_integer(max) || json_integer_value(max) < 0))) {
    return mgl_builder_fail(r->b, MGL_ERR_ARGUMENT,
                            "\"repeat\": expected min and max to be whole numbers from 0 on");
  }
  return mgl_expression_repeat(
      r->b, read_any(r, value), (uint64_t)json_integer_value(min),
      max == NULL ? MGL_REPEAT_UNBOUNDED : (uint64_t)json_integer_value(max));
}

static const mgl_expression *read_any(parts_reader *r, const json_t *part) {
  static const struct {
    const char *name;
    read_part *read;
  } kinds[] = {{"text", read_text},
               {"schema", read_schema},
               {"json_object", read_json_object},
               {"regex", read_regex},
               {"choice", read_choice},
               {"grammar", read_grammar},
               {"token", read_token},
               {"text_without", read_text_without},
               {"sequence", read_sequence},
               {"any_of", read_any_of},
               {"repeat", read_repeat}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !mgl_builder_failed(r->b); i++) {
    const json_t *value = json_object_get(part, kinds[i].name);
    if (value != NULL) {
      return kinds[i].read(r, value, part);
    }
  }
  return mgl_builder_fail(r->b, MGL_ERR_ARGUMENT,
                          "expected a part: an object with text, schema, json_object, regex, "
                          "choice, grammar, token, text_without, sequence, any_of or repeat");
}

const mgl_expression *mgl_parts_expression(mgl_builder *b, const mgl_json_rules *rules,
                                           const mgl_tokenizer *tokenizer, const json_t *part) {
  parts_reader r = {.b = b, .rules = rules, .tokenizer = tokenizer};
  return read_any(&r, part);
}
