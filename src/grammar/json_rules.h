// JSON as grammars know it: what stands for a value of any kind, and how texts stand in strings.
//
// Generated JSON is what any reader takes, and a little less: blanks only where one may want them
// (behind `{`, `[`, `,` and `:`, before `}` and `]`; one, or a new line and its indentation), and
// numbers that fit (MGL_JSON_... below), so that no part of it can go on for ever but a string.
#ifndef MGL_GRAMMAR_JSON_RULES_H
#define MGL_GRAMMAR_JSON_RULES_H

#include "grammar/expression.h"

enum {
  MGL_JSON_MAX_INDENT = 20,          // blanks and tabs behind a new line
  MGL_JSON_MAX_INTEGER_DIGITS = 18,  // before the point
  MGL_JSON_MAX_FRACTION_DIGITS = 17,
  MGL_JSON_MAX_EXPONENT_DIGITS = 2,
};

typedef struct mgl_json_rules {
  mgl_builder *b;
  const mgl_expression *quote;      // "
  const mgl_expression *character;  // of a string: itself or any escape of it
  const mgl_expression *blank;      // or nothing
  const mgl_expression *integer, *number, *string, *boolean, *null;
  const mgl_expression *value, *object, *array;  // of anything
} mgl_json_rules;

void mgl_json_rules_init(mgl_json_rules *rules, mgl_builder *b);

// One character of a set, as it stands in a string: itself, or the shortest escape where it needs
// one.
const mgl_expression *mgl_json_set(mgl_builder *b, const mgl_code_range *ranges, size_t count);

// [ ITEM, ITEM ] and { MEMBER, MEMBER } of `inside`, which may be empty; blanks and brackets are
// added.
const mgl_expression *mgl_json_brackets(const mgl_json_rules *rules, const char *open,
                                        const mgl_expression *inside, const char *close);
// A comma with what follows it.
const mgl_expression *mgl_json_comma(const mgl_json_rules *rules);
// KEY: VALUE, where key is a string with its quotes.
const mgl_expression *mgl_json_member(const mgl_json_rules *rules, const mgl_expression *key,
                                      const mgl_expression *value);

#endif
