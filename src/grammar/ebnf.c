#include "grammar/ebnf.h"

#include <string.h>

#include "text/token_table.h"
#include "text/unicode.h"

enum { MOST_NAME_BYTES = 80 };

typedef struct ebnf_parser {
  mgl_builder *b;
  const char *text;
  size_t bytes;
  size_t at;
  int nesting;
  uint32_t first_rule;    // of the builder's; those before are not the grammar's
  mgl_token_table names;  // of rules, from first_rule on
} ebnf_parser;

static size_t line_of(const ebnf_parser *p, size_t at) {
  size_t line = 1;
  for (size_t i = 0; i < at && i < p->bytes; i++) {
    line += p->text[i] == '\n' ? 1 : 0;
  }
  return line;
}

static void *refuse(ebnf_parser *p, size_t at, const char *what) {
  return mgl_builder_fail(p->b, MGL_ERR_ARGUMENT, "grammar, line %zu: %s", line_of(p, at), what);
}

static bool ends(const ebnf_parser *p) {
  return p->at >= p->bytes;
}

static char peek(const ebnf_parser *p) {
  return ends(p) ? 0 : p->text[p->at];
}

static bool sees(const ebnf_parser *p, const char *word) {
  size_t count = strlen(word);
  return p->bytes - p->at >= count && memcmp(p->text + p->at, word, count) == 0;
}

static bool take(ebnf_parser *p, const char *word) {
  bool is_there = sees(p, word);
  p->at += is_there ? strlen(word) : 0;
  return is_there;
}

static void skip_blanks(ebnf_parser *p) {
  while (!ends(p)) {
    char c = peek(p);
    if (c == '#') {
      while (!ends(p) && peek(p) != '\n') {
        p->at++;
      }
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      p->at++;
    } else {
      return;
    }
  }
}

static bool is_name_byte(char c, bool is_first) {
  char lower = (char)(c | 0x20);
  return (lower >= 'a' && lower <= 'z') || c == '_' ||
         (!is_first && ((c >= '0' && c <= '9') || c == '-' || c == '.'));
}

static size_t name_bytes(const ebnf_parser *p) {
  size_t count = 0;
  while (p->at + count < p->bytes && is_name_byte(p->text[p->at + count], count == 0)) {
    count++;
  }
  return count;
}

// Whether a rule begins here: a name, and ::= behind it.
static bool sees_rule(const ebnf_parser *p) {
  ebnf_parser ahead = *p;
  ahead.at += name_bytes(p);
  bool has_name = ahead.at > p->at;
  while (peek(&ahead) == ' ' || peek(&ahead) == '\t') {
    ahead.at++;
  }
  return has_name && sees(&ahead, "::=");
}

// The rule of the name that stands here, made if it is new.
static uint32_t read_name(ebnf_parser *p) {
  char name[MOST_NAME_BYTES + 1];
  size_t count = name_bytes(p);
  if (count > MOST_NAME_BYTES) {
    (void)refuse(p, p->at, "expected names of at most 80 bytes");
    return UINT32_MAX;
  }
  memcpy(name, p->text + p->at, count);
  name[count] = 0;
  p->at += count;
  int32_t known = mgl_token_table_find(&p->names, name, count);
  if (known >= 0) {
    return p->first_rule + (uint32_t)known;
  }
  uint32_t rule = mgl_rule_add(p->b, name);
  if (rule != UINT32_MAX && mgl_token_table_add(&p->names, (int32_t)(rule - p->first_rule), name,
                                                count, NULL) != MGL_OK) {
    (void)mgl_builder_fail(p->b, MGL_ERR_MEMORY, "out of memory for a grammar");
  }
  return rule;
}

// --- characters ----------------------------------------------------------------------------------

static uint32_t read_hex(ebnf_parser *p, int digits) {
  uint32_t code = 0;
  for (int i = 0; i < digits; i++) {
    char c = peek(p);
    char lower = (char)(c | 0x20);
    bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (lower < 'a' || lower > 'f')) {
      (void)refuse(p, p->at, "expected a hexadecimal digit");
      return 0;
    }
    code = code * 16 + (uint32_t)(is_digit ? c - '0' : lower - 'a' + 10);
    p->at++;
  }
  if (code > MGL_GRAMMAR_MAX_CODE || (code >= 0xd800 && code <= 0xdfff)) {
    (void)refuse(p, p->at, "expected the code point of a character");
    return 0;
  }
  return code;
}

static uint32_t read_character(ebnf_parser *p) {
  static const char escapes[] = "n\nr\rt\t\\\\\"\"''[[]]--^^//";  // pairs
  size_t begin = p->at;
  if (!take(p, "\\")) {
    return mgl_utf8_next(p->text, &p->at);
  }
  char c = peek(p);
  p->at += ends(p) ? 0 : 1;
  for (size_t i = 0; i + 1 < sizeof escapes; i += 2) {
    if (escapes[i] == c && c != 0) {
      return (uint32_t)escapes[i + 1];
    }
  }
  if (c == 'x' || c == 'u' || c == 'U') {
    return read_hex(p, c == 'x' ? 2 : c == 'u' ? 4 : 8);
  }
  (void)refuse(p, begin,
               "expected one of \\n \\r \\t \\\\ \\\" \\' \\[ \\] \\- \\^ \\xHH \\uHHHH "
               "\\UHHHHHHHH");
  return 0;
}

static const mgl_expression *parse_text(ebnf_parser *p) {
  size_t begin = p->at;
  char quote = p->text[p->at++];
  size_t count = 0;
  while (p->at + count < p->bytes && p->text[p->at + count] != '\n' &&
         (p->text[p->at + count] != quote || p->text[p->at + count - 1] == '\\')) {
    count++;
  }
  char *out = mgl_builder_alloc(p->b, count + 8, 1);  // no text is longer than it looks
  count = 0;
  while (out != NULL && !ends(p) && peek(p) != quote && peek(p) != '\n') {
    uint32_t code = read_character(p);
    if (mgl_builder_failed(p->b)) {
      return NULL;
    }
    count += mgl_utf8_encode(code, out + count);
  }
  if (out == NULL || peek(p) != quote) {
    return refuse(p, begin, "a text without its closing quote on the line");
  }
  p->at++;
  return mgl_expression_bytes(p->b, out, count);
}

static const mgl_expression *parse_set(ebnf_parser *p) {
  static const mgl_code_range everything[] = {{0, MGL_GRAMMAR_MAX_CODE}};
  size_t begin = p->at++;
  bool is_negated = take(p, "^");
  size_t capacity = 0;
  while (p->at + capacity < p->bytes && p->text[p->at + capacity] != '\n') {
    capacity++;
  }
  mgl_code_range *ranges = mgl_builder_alloc(p->b, capacity + 1, sizeof *ranges);
  size_t count = 0;
  while (ranges != NULL && !ends(p) && peek(p) != ']' && peek(p) != '\n') {
    uint32_t low = read_character(p);
    uint32_t high = low;
    if (sees(p, "-") && p->at + 1 < p->bytes && p->text[p->at + 1] != ']') {
      p->at++;
      high = read_character(p);
    }
    if (mgl_builder_failed(p->b)) {
      return NULL;
    }
    if (low > high) {
      return refuse(p, begin, "a range that goes backward");
    }
    ranges[count++] = (mgl_code_range){low, high};
  }
  if (ranges == NULL || !take(p, "]")) {
    return refuse(p, begin, "a [ without its ] on the line");
  }
  const mgl_code_range *set = ranges;
  if (is_negated) {
    set = mgl_ranges_without(p->b, everything, 1, ranges, count, &count);
  }
  return set == NULL ? NULL : mgl_expression_set(p->b, set, count);
}

// --- expressions ---------------------------------------------------------------------------------

static const mgl_expression *parse_choice(ebnf_parser *p);

static const mgl_expression *parse_atom(ebnf_parser *p) {
  static const mgl_code_range but_line_ends[] = {
      {0, '\n' - 1}, {'\n' + 1, '\r' - 1}, {'\r' + 1, MGL_GRAMMAR_MAX_CODE}};
  size_t begin = p->at;
  char c = peek(p);
  if (c == '"' || c == '\'') {
    return parse_text(p);
  }
  if (c == '[') {
    return parse_set(p);
  }
  if (take(p, ".")) {
    return mgl_expression_set(p->b, but_line_ends, 3);
  }
  if (take(p, "(")) {
    if (sees(p, "=")) {
      return mgl_builder_fail(p->b, MGL_ERR_UNSUPPORTED,
                              "grammar, line %zu: looking ahead, (=...), is not supported",
                              line_of(p, begin));
    }
    if (++p->nesting > MGL_GRAMMAR_MAX_NESTING) {
      return refuse(p, begin, "expected at most 64 parentheses within each other");
    }
    const mgl_expression *inside = parse_choice(p);
    p->nesting--;
    skip_blanks(p);
    return inside == NULL || take(p, ")") ? inside : refuse(p, begin, "a ( without its )");
  }
  return mgl_expression_rule(p->b, read_name(p));
}

static bool read_number(ebnf_parser *p, uint64_t *out) {
  size_t begin = p->at;
  *out = 0;
  while (peek(p) >= '0' && peek(p) <= '9' && p->at - begin < 7) {
    *out = *out * 10 + (uint64_t)(p->text[p->at++] - '0');
  }
  return p->at > begin;
}

static const mgl_expression *parse_bounds(ebnf_parser *p, const mgl_expression *e) {
  size_t begin = p->at - 1;
  uint64_t min = 0;
  uint64_t most = 0;
  skip_blanks(p);
  bool is_sound = read_number(p, &min);
  uint64_t max = min;
  skip_blanks(p);
  if (take(p, ",")) {
    skip_blanks(p);
    max = read_number(p, &most) ? most : MGL_REPEAT_UNBOUNDED;
    skip_blanks(p);
  }
  if (!is_sound || !take(p, "}") || max < min) {
    return refuse(p, begin, "expected {n}, {n,} or {n,m} with n up to m");
  }
  return mgl_expression_repeat(p->b, e, min, max);
}

static const mgl_expression *parse_repeat(ebnf_parser *p) {
  enum { MOST_SIGNS = 8 };
  const mgl_expression *e = parse_atom(p);
  for (int i = 0; i < MOST_SIGNS && e != NULL; i++) {
    if (take(p, "*")) {
      e = mgl_expression_repeat(p->b, e, 0, MGL_REPEAT_UNBOUNDED);
    } else if (take(p, "+")) {
      e = mgl_expression_repeat(p->b, e, 1, MGL_REPEAT_UNBOUNDED);
    } else if (take(p, "?")) {
      e = mgl_expression_optional(p->b, e);
    } else if (take(p, "{")) {
      e = parse_bounds(p, e);
    } else {
      break;
    }
  }
  return e;
}

// Whether a part of a sequence begins here.
static bool sees_part(const ebnf_parser *p) {
  char c = peek(p);
  return c == '"' || c == '\'' || c == '[' || c == '(' || c == '.' ||
         (is_name_byte(c, true) && !sees_rule(p));
}

static const mgl_expression *parse_sequence(ebnf_parser *p) {
  mgl_expression_list list = {0};
  skip_blanks(p);
  while (sees_part(p) && !mgl_builder_failed(p->b)) {
    mgl_expression_list_add(p->b, &list, parse_repeat(p));
    skip_blanks(p);
  }
  return mgl_builder_failed(p->b) ? NULL : mgl_expression_sequence(p->b, list.parts, list.count);
}

static const mgl_expression *parse_choice(ebnf_parser *p) {
  mgl_expression_list list = {0};
  do {
    mgl_expression_list_add(p->b, &list, parse_sequence(p));
  } while (take(p, "|") && !mgl_builder_failed(p->b));
  return mgl_builder_failed(p->b) ? NULL : mgl_expression_choice(p->b, list.parts, list.count);
}

static void parse_rule(ebnf_parser *p) {
  size_t begin = p->at;
  if (!sees_rule(p)) {
    (void)refuse(p, begin, "expected a rule: NAME ::= ...");
    return;
  }
  uint32_t rule = read_name(p);
  skip_blanks(p);
  (void)take(p, "::=");
  if (rule != UINT32_MAX && p->b->rules[rule].body != NULL) {
    (void)mgl_builder_fail(p->b, MGL_ERR_ARGUMENT, "grammar, line %zu: rule %s is defined twice",
                           line_of(p, begin), p->b->rules[rule].name);
    return;
  }
  mgl_rule_set(p->b, rule, parse_choice(p));
  skip_blanks(p);
}

static const mgl_expression *parse(ebnf_parser *p) {
  static const char root[] = "root";
  size_t valid = mgl_utf8_valid_prefix(p->text, p->bytes);
  if (valid != p->bytes) {
    return refuse(p, valid, "expected UTF-8");
  }
  skip_blanks(p);
  while (!ends(p) && !mgl_builder_failed(p->b)) {
    parse_rule(p);
  }
  int32_t first = mgl_token_table_find(&p->names, root, sizeof root - 1);
  return first >= 0 ? mgl_expression_rule(p->b, p->first_rule + (uint32_t)first)
                    : refuse(p, 0, "expected a rule named root, where a text begins");
}

const mgl_expression *mgl_ebnf_parse(mgl_builder *b, const char *text, size_t bytes) {
  ebnf_parser p = {.b = b, .text = text, .bytes = bytes, .first_rule = (uint32_t)b->rule_count};
  const mgl_expression *e = parse(&p);
  mgl_token_table_free(&p.names);
  return e;
}
