#include "grammar/regex.h"

#include <string.h>

#include "grammar/json_rules.h"
#include "text/unicode.h"

typedef struct regex_parser {
  mgl_builder *b;
  const char *text;
  size_t bytes;
  size_t at;
  mgl_regex_options options;
  int nesting;
} regex_parser;

static void *refuse(regex_parser *p, size_t at, const char *what) {
  return mgl_builder_fail(p->b, MGL_ERR_ARGUMENT, "regex, byte %zu: %s", at, what);
}

static void *unsupported(regex_parser *p, size_t at, const char *what) {
  return mgl_builder_fail(p->b, MGL_ERR_UNSUPPORTED, "regex, byte %zu: %s not supported", at, what);
}

static bool ends(const regex_parser *p) {
  return p->at >= p->bytes;
}

static bool sees(const regex_parser *p, const char *word) {
  size_t count = strlen(word);
  return p->bytes - p->at >= count && memcmp(p->text + p->at, word, count) == 0;
}

static bool take(regex_parser *p, const char *word) {
  bool is_there = sees(p, word);
  p->at += is_there ? strlen(word) : 0;
  return is_there;
}

// --- sets of characters --------------------------------------------------------------------------

typedef struct range_list {
  mgl_code_range *ranges;
  size_t count, capacity;
} range_list;

static void add_range(regex_parser *p, range_list *list, uint32_t low, uint32_t high) {
  if (list->count == list->capacity) {
    size_t capacity = list->capacity == 0 ? 16 : list->capacity * 2;
    mgl_code_range *ranges = mgl_builder_alloc(p->b, capacity, sizeof *ranges);
    if (ranges == NULL) {
      return;
    }
    if (list->count > 0) {
      memcpy(ranges, list->ranges, list->count * sizeof *ranges);
    }
    list->ranges = ranges;
    list->capacity = capacity;
  }
  list->ranges[list->count++] = (mgl_code_range){low, high};
}

static const mgl_code_range everything[] = {{0, MGL_GRAMMAR_MAX_CODE}};

static const mgl_expression *set_of(regex_parser *p, const mgl_code_range *ranges, size_t count,
                                    bool is_negated) {
  if (is_negated) {
    ranges = mgl_ranges_without(p->b, everything, 1, ranges, count, &count);
    if (ranges == NULL) {
      return NULL;
    }
  }
  return p->options.in_json ? mgl_json_set(p->b, ranges, count)
                            : mgl_expression_set(p->b, ranges, count);
}

static void add_class(regex_parser *p, range_list *list, char letter) {
  static const mgl_code_range digit[] = {{'0', '9'}};
  static const mgl_code_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  static const mgl_code_range space[] = {
      {'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
      {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
  char lower = (char)(letter | 0x20);
  const mgl_code_range *ranges = lower == 'd' ? digit : lower == 'w' ? word : space;
  size_t count = lower == 'd' ? 1 : lower == 'w' ? 4 : sizeof space / sizeof *space;
  if (letter != lower) {
    ranges = mgl_ranges_without(p->b, everything, 1, ranges, count, &count);
  }
  for (size_t i = 0; ranges != NULL && i < count; i++) {
    add_range(p, list, ranges[i].first, ranges[i].last);
  }
}

static int hex_value(char c) {
  char lower = (char)(c | 0x20);
  return c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static uint32_t read_hex(regex_parser *p, int digits) {
  uint32_t code = 0;
  for (int i = 0; i < digits; i++) {
    int value = ends(p) ? -1 : hex_value(p->text[p->at]);
    if (value < 0) {
      (void)refuse(p, p->at, "expected a hexadecimal digit");
      return 0;
    }
    code = code * 16 + (uint32_t)value;
    p->at++;
  }
  return code;
}

static uint32_t read_braced_hex(regex_parser *p) {
  uint32_t code = 0;
  size_t begin = p->at;
  while (!ends(p) && hex_value(p->text[p->at]) >= 0 && code <= MGL_GRAMMAR_MAX_CODE) {
    code = code * 16 + (uint32_t)hex_value(p->text[p->at++]);
  }
  if (p->at == begin || !take(p, "}") || code > MGL_GRAMMAR_MAX_CODE) {
    (void)refuse(p, begin, "expected \\u{...} with a code point up to 10FFFF");
    return 0;
  }
  return code;
}

// Behind "\u".
static uint32_t read_unicode(regex_parser *p) {
  size_t begin = p->at;
  if (take(p, "{")) {
    return read_braced_hex(p);
  }
  uint32_t code = read_hex(p, 4);
  if (code >= 0xd800 && code <= 0xdbff && take(p, "\\u")) {
    uint32_t second = read_hex(p, 4);
    if (second >= 0xdc00 && second <= 0xdfff) {
      return 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
    }
    (void)refuse(p, begin, "expected the second half of a character");
  }
  if (code >= 0xd800 && code <= 0xdfff) {
    (void)refuse(p, begin, "half of a character (a surrogate) on its own");
  }
  return code;
}

// Behind a backslash, what stands for one character.
static uint32_t read_escaped(regex_parser *p) {
  static const char letters[] = "t\tn\nr\rf\fv\v";  // pairs
  size_t begin = p->at - 1;
  if (ends(p)) {
    (void)refuse(p, begin, "a backslash at the end");
    return 0;
  }
  char c = p->text[p->at++];
  for (size_t i = 0; i + 1 < sizeof letters; i += 2) {
    if (letters[i] == c) {
      return (uint32_t)letters[i + 1];
    }
  }
  if (c == 'x') {
    return read_hex(p, 2);
  }
  if (c == 'u') {
    return read_unicode(p);
  }
  bool digit_follows = !ends(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9';
  if (c == '0' && !digit_follows) {
    return 0;
  }
  if (c >= '0' && c <= '9') {
    (void)unsupported(p, begin, "back references and octal characters are");
  } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') {
    (void)unsupported(p, begin,
                      c == 'b' || c == 'B' ? "word boundaries (\\b) are" : "this escape is");
  } else if ((unsigned char)c >= 0x80) {
    p->at--;
    return mgl_utf8_next(p->text, &p->at);
  }
  return (uint32_t)c;
}

// One element of [...]: a character, or UINT32_MAX for a class, which is added.
static uint32_t read_class_element(regex_parser *p, range_list *list) {
  if (!take(p, "\\")) {
    return mgl_utf8_next(p->text, &p->at);
  }
  char c = ends(p) ? 0 : p->text[p->at];
  if (c != 0 && strchr("dDwWsS", c) != NULL) {
    p->at++;
    add_class(p, list, c);
    return UINT32_MAX;
  }
  if (c == 'b') {
    p->at++;
    return '\b';
  }
  if (c == '-') {
    p->at++;
    return '-';
  }
  return read_escaped(p);
}

// Behind "[".
static const mgl_expression *parse_class(regex_parser *p) {
  size_t begin = p->at - 1;
  range_list list = {0};
  bool is_negated = take(p, "^");
  while (!ends(p) && !sees(p, "]") && !mgl_builder_failed(p->b)) {
    size_t at = p->at;
    uint32_t low = read_class_element(p, &list);
    bool is_range = sees(p, "-") && p->bytes - p->at > 1 && p->text[p->at + 1] != ']';
    uint32_t high = low;
    if (is_range) {
      p->at++;
      high = read_class_element(p, &list);
    }
    if (is_range && (low == UINT32_MAX || high == UINT32_MAX)) {
      return refuse(p, at, "a range between characters, of which one is a class");
    }
    if (low > high) {
      return refuse(p, at, "a range that goes backward");
    }
    if (low != UINT32_MAX) {
      add_range(p, &list, low, high);
    }
  }
  if (!take(p, "]")) {
    return refuse(p, begin, "a [ without its ]");
  }
  return set_of(p, list.ranges, list.count, is_negated);
}

// --- expressions ---------------------------------------------------------------------------------

static const mgl_expression *parse_choice(regex_parser *p, bool is_top);

static const mgl_expression *parse_group(regex_parser *p) {
  size_t begin = p->at - 1;
  if (take(p, "?")) {
    bool is_named = sees(p, "<") && p->bytes - p->at > 1 && p->text[p->at + 1] != '=' &&
                    p->text[p->at + 1] != '!';
    if (is_named) {
      const char *end = memchr(p->text + p->at, '>', p->bytes - p->at);
      if (end == NULL) {
        return refuse(p, begin, "a group's name without its >");
      }
      p->at = (size_t)(end - p->text) + 1;
    } else if (!take(p, ":")) {
      bool looks = sees(p, "=") || sees(p, "!") || sees(p, "<");
      return unsupported(p, begin, looks ? "looking ahead or behind is" : "flags are");
    }
  }
  if (++p->nesting > MGL_GRAMMAR_MAX_NESTING) {
    return mgl_builder_fail(p->b, MGL_ERR_LIMIT,
                            "regex, byte %zu: expected at most %d groups within each other", begin,
                            MGL_GRAMMAR_MAX_NESTING);
  }
  const mgl_expression *inside = parse_choice(p, false);
  p->nesting--;
  if (inside != NULL && !take(p, ")")) {
    return refuse(p, begin, "a ( without its )");
  }
  return inside;
}

static const mgl_expression *parse_atom(regex_parser *p) {
  static const mgl_code_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  size_t begin = p->at;
  if (take(p, "(")) {
    return parse_group(p);
  }
  if (take(p, "[")) {
    return parse_class(p);
  }
  if (take(p, ".")) {
    return set_of(p, line_ends, 3, true);
  }
  if (sees(p, "^") || sees(p, "$")) {
    return unsupported(p, begin, "^ and $ inside of an expression are");
  }
  if (sees(p, "*") || sees(p, "+") || sees(p, "?") || sees(p, "{")) {
    return refuse(p, begin, "nothing that could be repeated stands before it (a brace is \\{)");
  }
  uint32_t code = 0;
  if (take(p, "\\")) {
    char c = ends(p) ? 0 : p->text[p->at];
    if (c != 0 && strchr("dDwWsS", c) != NULL) {
      range_list list = {0};
      p->at++;
      add_class(p, &list, c);
      return set_of(p, list.ranges, list.count, false);
    }
    code = read_escaped(p);
  } else {
    code = mgl_utf8_next(p->text, &p->at);
  }
  return set_of(p, &(mgl_code_range){code, code}, 1, false);
}

// A number of at most six digits; false if there is none.
static bool read_number(regex_parser *p, uint64_t *out) {
  size_t begin = p->at;
  *out = 0;
  while (!ends(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9' && p->at - begin < 7) {
    *out = *out * 10 + (uint64_t)(p->text[p->at++] - '0');
  }
  return p->at > begin;
}

static const mgl_expression *parse_repeat(regex_parser *p) {
  const mgl_expression *e = parse_atom(p);
  size_t begin = p->at;
  uint64_t min = 0;
  uint64_t max = MGL_REPEAT_UNBOUNDED;
  if (ends(p) || e == NULL) {
    return e;
  }
  if (take(p, "+")) {
    min = 1;
  } else if (take(p, "?")) {
    max = 1;
  } else if (take(p, "{")) {
    bool is_sound = read_number(p, &min);
    max = min;
    if (take(p, ",")) {
      uint64_t most = 0;
      max = read_number(p, &most) ? most : MGL_REPEAT_UNBOUNDED;
    }
    if (!is_sound || !take(p, "}") || max < min) {
      return refuse(p, begin, "expected {n}, {n,} or {n,m} with n up to m (a brace is \\{)");
    }
  } else if (!take(p, "*")) {
    return e;
  }
  if (!take(p, "?") && sees(p, "+")) {
    return unsupported(p, p->at, "a quantifier that gives nothing back (*+) is");
  }
  if (sees(p, "*") || sees(p, "+") || sees(p, "?") || sees(p, "{")) {
    return refuse(p, p->at, "a quantifier behind another one");
  }
  return mgl_expression_repeat(p->b, e, min, max);
}

static const mgl_expression *anything(regex_parser *p) {
  return mgl_expression_repeat(p->b, set_of(p, everything, 1, false), 0, MGL_REPEAT_UNBOUNDED);
}

static const mgl_expression *parse_sequence(regex_parser *p, bool is_top) {
  mgl_expression_list list = {0};
  bool begins = is_top && take(p, "^");
  bool is_closed = false;
  if (is_top && p->options.searches && !begins) {
    mgl_expression_list_add(p->b, &list, anything(p));
  }
  while (!ends(p) && !sees(p, "|") && !sees(p, ")") && !mgl_builder_failed(p->b)) {
    bool is_last = p->at + 1 == p->bytes || p->text[p->at + 1] == '|';
    if (is_top && is_last && take(p, "$")) {
      is_closed = true;
      break;
    }
    mgl_expression_list_add(p->b, &list, parse_repeat(p));
  }
  if (is_top && p->options.searches && !is_closed) {
    mgl_expression_list_add(p->b, &list, anything(p));
  }
  return mgl_builder_failed(p->b) ? NULL : mgl_expression_sequence(p->b, list.parts, list.count);
}

static const mgl_expression *parse_choice(regex_parser *p, bool is_top) {
  mgl_expression_list list = {0};
  do {
    mgl_expression_list_add(p->b, &list, parse_sequence(p, is_top));
  } while (take(p, "|") && !mgl_builder_failed(p->b));
  return mgl_builder_failed(p->b) ? NULL : mgl_expression_choice(p->b, list.parts, list.count);
}

const mgl_expression *mgl_regex_parse(mgl_builder *b, const char *text, size_t bytes,
                                      mgl_regex_options options) {
  regex_parser p = {.b = b, .text = text, .bytes = bytes, .options = options};
  if (mgl_utf8_valid_prefix(text, bytes) != bytes) {
    return refuse(&p, mgl_utf8_valid_prefix(text, bytes), "expected UTF-8");
  }
  const mgl_expression *e = parse_choice(&p, true);
  if (e != NULL && !ends(&p)) {
    return refuse(&p, p.at, "a ) without its (");
  }
  return e;
}
