#include "grammar/json_rules.h"

#include <stdio.h>

static const mgl_expression *range(mgl_builder *b, uint32_t low, uint32_t high) {
  return mgl_expression_set(b, &(mgl_code_range){low, high}, 1);
}

static const mgl_expression *digits(mgl_builder *b, uint64_t min, uint64_t max) {
  return mgl_expression_repeat(b, range(b, '0', '9'), min, max);
}

static const mgl_expression *hex(mgl_builder *b) {
  static const mgl_code_range ranges[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  return mgl_expression_set(b, ranges, 3);
}

// Behind "\u": any code unit that is a character, or the two halves of one.
static const mgl_expression *unicode_escape(mgl_builder *b) {
  static const mgl_code_range not_d[] = {
      {'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
  static const mgl_code_range d[] = {{'D', 'D'}, {'d', 'd'}};
  static const mgl_code_range first_half[] = {{'8', '9'}, {'A', 'B'}, {'a', 'b'}};
  static const mgl_code_range second_half[] = {{'C', 'F'}, {'c', 'f'}};
  const mgl_expression *two = mgl_expression_repeat(b, hex(b), 2, 2);
  const mgl_expression *plain = MGL_CHOICE(
      b, MGL_SEQUENCE(b, mgl_expression_set(b, not_d, 5), mgl_expression_repeat(b, hex(b), 3, 3)),
      MGL_SEQUENCE(b, mgl_expression_set(b, d, 2), range(b, '0', '7'), two));
  const mgl_expression *pair =
      MGL_SEQUENCE(b, mgl_expression_set(b, d, 2), mgl_expression_set(b, first_half, 3), two,
                   mgl_expression_string(b, "\\u"), mgl_expression_set(b, d, 2),
                   mgl_expression_set(b, second_half, 2), two);
  return MGL_CHOICE(b, plain, pair);
}

static const mgl_expression *character(mgl_builder *b) {
  static const mgl_code_range plain[] = {{' ', '!'}, {'#', '['}, {']', MGL_GRAMMAR_MAX_CODE}};
  static const mgl_code_range letters[] = {{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 'b'},
                                           {'f', 'f'}, {'n', 'n'}, {'r', 'r'},   {'t', 't'}};
  const mgl_expression *escape =
      MGL_SEQUENCE(b, mgl_expression_string(b, "\\"),
                   MGL_CHOICE(b, mgl_expression_set(b, letters, 8),
                              MGL_SEQUENCE(b, mgl_expression_string(b, "u"), unicode_escape(b))));
  return MGL_CHOICE(b, mgl_expression_set(b, plain, 3), escape);
}

static const mgl_expression *in_rule(mgl_builder *b, const char *name, const mgl_expression *body) {
  uint32_t rule = mgl_rule_add(b, name);
  mgl_rule_set(b, rule, body);
  return mgl_expression_rule(b, rule);
}

static const mgl_expression *integer(mgl_builder *b) {
  return MGL_SEQUENCE(b, mgl_expression_optional(b, mgl_expression_string(b, "-")),
                      MGL_CHOICE(b, mgl_expression_string(b, "0"),
                                 MGL_SEQUENCE(b, range(b, '1', '9'),
                                              digits(b, 0, MGL_JSON_MAX_INTEGER_DIGITS - 1))));
}

static const mgl_expression *number(mgl_builder *b) {
  static const mgl_code_range e[] = {{'E', 'E'}, {'e', 'e'}};
  static const mgl_code_range sign[] = {{'+', '+'}, {'-', '-'}};
  const mgl_expression *fraction =
      MGL_SEQUENCE(b, mgl_expression_string(b, "."), digits(b, 1, MGL_JSON_MAX_FRACTION_DIGITS));
  const mgl_expression *exponent = MGL_SEQUENCE(
      b, mgl_expression_set(b, e, 2), mgl_expression_optional(b, mgl_expression_set(b, sign, 2)),
      digits(b, 1, MGL_JSON_MAX_EXPONENT_DIGITS));
  return MGL_SEQUENCE(b, integer(b), mgl_expression_optional(b, fraction),
                      mgl_expression_optional(b, exponent));
}

static const mgl_expression *blank(mgl_builder *b) {
  static const mgl_code_range indent[] = {{' ', ' '}, {'\t', '\t'}};
  return mgl_expression_optional(
      b, MGL_CHOICE(b, mgl_expression_string(b, " "),
                    MGL_SEQUENCE(b, mgl_expression_string(b, "\n"),
                                 mgl_expression_repeat(b, mgl_expression_set(b, indent, 2), 0,
                                                       MGL_JSON_MAX_INDENT))));
}

void mgl_json_rules_init(mgl_json_rules *r, mgl_builder *b) {
  *r = (mgl_json_rules){.b = b, .quote = mgl_expression_string(b, "\""), .character = character(b)};
  r->blank = in_rule(b, "blank", blank(b));
  r->integer = in_rule(b, "integer", integer(b));
  r->number = in_rule(b, "number", number(b));
  r->string = in_rule(
      b, "string",
      MGL_SEQUENCE(b, r->quote, mgl_expression_repeat(b, r->character, 0, MGL_REPEAT_UNBOUNDED),
                   r->quote));
  r->boolean = MGL_CHOICE(b, mgl_expression_string(b, "true"), mgl_expression_string(b, "false"));
  r->null = mgl_expression_string(b, "null");
  uint32_t value = mgl_rule_add(b, "value");
  uint32_t object = mgl_rule_add(b, "object");
  uint32_t array = mgl_rule_add(b, "array");
  r->value = mgl_expression_rule(b, value);
  r->object = mgl_expression_rule(b, object);
  r->array = mgl_expression_rule(b, array);
  mgl_rule_set(b, value,
               MGL_CHOICE(b, r->object, r->array, r->string, r->number, r->boolean, r->null));
  const mgl_expression *member = mgl_json_member(r, r->string, r->value);
  const mgl_expression *comma = mgl_json_comma(r);
  const mgl_expression *members = MGL_SEQUENCE(
      b, member, mgl_expression_repeat(b, MGL_SEQUENCE(b, comma, member), 0, MGL_REPEAT_UNBOUNDED));
  const mgl_expression *items = MGL_SEQUENCE(
      b, r->value,
      mgl_expression_repeat(b, MGL_SEQUENCE(b, comma, r->value), 0, MGL_REPEAT_UNBOUNDED));
  const mgl_expression *none = mgl_expression_sequence(b, NULL, 0);
  mgl_rule_set(
      b, object,
      MGL_CHOICE(b, mgl_json_brackets(r, "{", members, "}"), mgl_json_brackets(r, "{", none, "}")));
  mgl_rule_set(
      b, array,
      MGL_CHOICE(b, mgl_json_brackets(r, "[", items, "]"), mgl_json_brackets(r, "[", none, "]")));
}

const mgl_expression *mgl_json_brackets(const mgl_json_rules *r, const char *open,
                                        const mgl_expression *inside, const char *close) {
  mgl_builder *b = r->b;
  if (inside != NULL && inside->kind == MGL_EXPRESSION_SEQUENCE && inside->count == 0) {
    return MGL_SEQUENCE(b, mgl_expression_string(b, open), r->blank,
                        mgl_expression_string(b, close));
  }
  return MGL_SEQUENCE(b, mgl_expression_string(b, open), r->blank, inside, r->blank,
                      mgl_expression_string(b, close));
}

const mgl_expression *mgl_json_comma(const mgl_json_rules *r) {
  return MGL_SEQUENCE(r->b, mgl_expression_string(r->b, ","), r->blank);
}

const mgl_expression *mgl_json_member(const mgl_json_rules *r, const mgl_expression *key,
                                      const mgl_expression *value) {
  return MGL_SEQUENCE(r->b, key, mgl_expression_string(r->b, ":"), r->blank, value);
}

// --- characters of strings -----------------------------------------------------------------------

static const mgl_expression *escaped(mgl_builder *b, uint32_t code) {
  static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";  // pairs: the character, its letter
  char text[8];
  for (size_t i = 0; i + 1 < sizeof shorts; i += 2) {
    if ((uint32_t)(unsigned char)shorts[i] == code) {
      (void)snprintf(text, sizeof text, "\\%c", shorts[i + 1]);
      return mgl_expression_string(b, text);
    }
  }
  (void)snprintf(text, sizeof text, "\\u%04x", (unsigned)code & 0xffff);
  return mgl_expression_string(b, text);
}

const mgl_expression *mgl_json_set(mgl_builder *b, const mgl_code_range *ranges, size_t count) {
  static const mgl_code_range special[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
  enum { MOST_ESCAPED = 34 };
  const mgl_expression *parts[MOST_ESCAPED + 1];
  size_t part_count = 0;
  size_t plain_count = 0;
  const mgl_code_range *plain = mgl_ranges_without(b, ranges, count, special, 3, &plain_count);
  if (plain == NULL) {
    return NULL;
  }
  for (uint32_t code = 0; code <= '\\'; code++) {
    bool is_wanted = false;
    for (size_t i = 0; i < count; i++) {
      is_wanted = is_wanted || (ranges[i].first <= code && code <= ranges[i].last);
    }
    if (is_wanted && (code < ' ' || code == '"' || code == '\\')) {
      parts[part_count++] = escaped(b, code);
    }
  }
  if (plain_count > 0 || part_count == 0) {
    parts[part_count++] = mgl_expression_set(b, plain, plain_count);
  }
  return mgl_expression_choice(b, parts, part_count);
}
