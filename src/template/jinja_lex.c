#include "template/jinja_lex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static char byte_at(const mgl_jinja_lexer *lexer, size_t at) {
  return at < lexer->source.bytes ? lexer->source.data[at] : 0;
}

static bool starts_with(const mgl_jinja_lexer *lexer, size_t at, const char *literal) {
  size_t bytes = strlen(literal);
  return bytes <= lexer->source.bytes - at && memcmp(lexer->source.data + at, literal, bytes) == 0;
}

// The offset behind white space that starts at `at`.
static size_t skip_space(const mgl_jinja_lexer *lexer, size_t at) {
  while (at < lexer->source.bytes) {
    int32_t codepoint = 0;
    size_t bytes = mgl_jinja_text_decode(lexer->source, at, &codepoint);
    if (!mgl_jinja_is_space(codepoint)) {
      break;
    }
    at += bytes;
  }
  return at;
}

// Moves to `at`, counting lines.
static void move_to(mgl_jinja_lexer *lexer, size_t at) {
  for (size_t i = lexer->at; i < at; i++) {
    lexer->line += lexer->source.data[i] == '\n';
  }
  if (at > lexer->at) {
    lexer->line_starting = lexer->source.data[at - 1] == '\n';
  }
  lexer->at = at;
}

static mgl_status lex_error(const mgl_jinja_lexer *lexer, const char *what) {
  return mgl_error_set(lexer->err, MGL_ERR_FORMAT, "%s: line %d: %s", lexer->where, lexer->line,
                       what);
}

// --- text, comments and raw blocks ---------------------------------------------------------------

// Offset behind a tag's end mark "X}" at `at`: "+X}" keeps what follows, "-X}" eats white space,
// "X}" one newline if `trims`. 0 if there is no such mark.
static size_t behind_end(const mgl_jinja_lexer *lexer, size_t at, char mark, bool trims) {
  char sign = byte_at(lexer, at);
  size_t start = sign == '-' || sign == '+' ? at + 1 : at;
  if (byte_at(lexer, start) != mark || byte_at(lexer, start + 1) != '}') {
    return 0;
  }
  size_t end = start + 2;
  if (start != at) {
    return sign == '-' ? skip_space(lexer, end) : end;
  }
  return trims && byte_at(lexer, end) == '\n' ? end + 1 : end;
}

// Offset behind "{% raw %}" at `at`; 0 if that is not what stands there.
static size_t behind_raw(const mgl_jinja_lexer *lexer, size_t at) {
  at += 2;
  if (byte_at(lexer, at) == '-' || byte_at(lexer, at) == '+') {
    at++;
  }
  at = skip_space(lexer, at);
  if (!starts_with(lexer, at, "raw")) {
    return 0;
  }
  at = skip_space(lexer, at + 3);
  return byte_at(lexer, at) == '+' ? 0 : behind_end(lexer, at, '%', false);
}

// The text in front of a tag, cut as its sign asks: "-" takes all white space off its end, else a
// block or comment at the start of a line takes the spaces in front of it.
static mgl_jinja_string strip_before_tag(mgl_jinja_string text, char sign, bool line_starting,
                                         bool is_variable) {
  if (sign == '-') {
    return mgl_jinja_text_strip(text, NULL, false, true);
  }
  if (sign == '+' || is_variable) {
    return text;
  }
  size_t line = text.bytes;
  while (line > 0 && text.data[line - 1] != '\n') {
    line--;
  }
  if (line == 0 && !line_starting) {
    return text;
  }
  mgl_jinja_string rest = mgl_jinja_text_part(text, line, text.bytes);
  return mgl_jinja_text_strip(rest, NULL, true, false).bytes == 0
             ? mgl_jinja_text_part(text, 0, line)
             : text;
}

static mgl_status skip_comment(mgl_jinja_lexer *lexer) {
  for (size_t at = lexer->at; at < lexer->source.bytes; at++) {
    size_t end = behind_end(lexer, at, '#', true);
    if (end != 0) {
      move_to(lexer, end);
      return MGL_OK;
    }
  }
  return lex_error(lexer, "a comment {# without its end #}");
}

// The content of a raw block, which starts at the lexer's place.
static mgl_status lex_raw(mgl_jinja_lexer *lexer, mgl_jinja_token *out) {
  size_t start = lexer->at;
  for (size_t at = start; at + 1 < lexer->source.bytes; at++) {
    if (lexer->source.data[at] != '{' || lexer->source.data[at + 1] != '%') {
      continue;
    }
    char sign = byte_at(lexer, at + 2);
    size_t name = skip_space(lexer, sign == '-' || sign == '+' ? at + 3 : at + 2);
    if (!starts_with(lexer, name, "endraw")) {
      continue;
    }
    size_t end = behind_end(lexer, skip_space(lexer, name + strlen("endraw")), '%', true);
    if (end != 0) {
      mgl_jinja_string text = mgl_jinja_text_part(lexer->source, start, at);
      *out = (mgl_jinja_token){.kind = MGL_JINJA_TOKEN_DATA, .line = lexer->line};
      out->text = strip_before_tag(text, sign, lexer->line_starting, false);
      move_to(lexer, end);
      return MGL_OK;
    }
  }
  return lex_error(lexer, "a {% raw %} without its {% endraw %}");
}

// Finds the next tag, returns the text in front of it and remembers the tag for the next call.
static void lex_text(mgl_jinja_lexer *lexer, mgl_jinja_token *out) {
  size_t start = lexer->at;
  size_t at = start;
  char mark = 0;
  for (; at + 1 < lexer->source.bytes; at++) {
    mark = lexer->source.data[at + 1];
    if (lexer->source.data[at] == '{' && (mark == '{' || mark == '%' || mark == '#')) {
      break;
    }
  }
  *out = (mgl_jinja_token){.kind = MGL_JINJA_TOKEN_DATA, .line = lexer->line};
  if (at + 1 >= lexer->source.bytes) {
    out->text = mgl_jinja_text_part(lexer->source, start, lexer->source.bytes);
    move_to(lexer, lexer->source.bytes);
    return;
  }
  mgl_jinja_string text = mgl_jinja_text_part(lexer->source, start, at);
  char sign = byte_at(lexer, at + 2);
  out->text = strip_before_tag(text, sign, lexer->line_starting, mark == '{');
  size_t raw = mark == '%' ? behind_raw(lexer, at) : 0;
  lexer->tag = raw != 0 ? 'r' : mark;
  move_to(lexer, raw != 0 ? raw : at + (sign == '-' || sign == '+' ? 3 : 2));
}

// --- inside a tag --------------------------------------------------------------------------------

static bool is_digit_of(char c, int base) {
  if (base <= 10) {
    return c >= '0' && c < '0' + base;
  }
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// Offset behind digits that single underscores may separate.
static size_t skip_digits(const mgl_jinja_lexer *lexer, size_t at, int base) {
  while (is_digit_of(byte_at(lexer, at), base) ||
         (byte_at(lexer, at) == '_' && is_digit_of(byte_at(lexer, at + 1), base))) {
    at++;
  }
  return at;
}

// Offset behind the fraction and exponent of a float whose digits end at `at`; `at` if it has none.
static size_t skip_fraction(const mgl_jinja_lexer *lexer, size_t at) {
  if (byte_at(lexer, at) == '.' && is_digit_of(byte_at(lexer, at + 1), 10)) {
    at = skip_digits(lexer, at + 1, 10);
  }
  if (byte_at(lexer, at) == 'e' || byte_at(lexer, at) == 'E') {
    size_t digits = at + 1;
    digits += byte_at(lexer, digits) == '+' || byte_at(lexer, digits) == '-';
    if (is_digit_of(byte_at(lexer, digits), 10)) {
      at = skip_digits(lexer, digits, 10);
    }
  }
  return at;
}

static mgl_status lex_number(mgl_jinja_lexer *lexer, mgl_jinja_token *out) {
  size_t start = lexer->at;
  char prefix = (char)(byte_at(lexer, start + 1) | 0x20);
  int base = 10;
  size_t end = start;
  bool is_float = false;
  if (byte_at(lexer, start) == '0' && (prefix == 'x' || prefix == 'o' || prefix == 'b')) {
    base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : 2;
    end = skip_digits(lexer, start + 2, base);
  }
  if (end <= start + 2) {
    base = 10;
    size_t digits = skip_digits(lexer, start, 10);
    bool after_dot = start > 0 && lexer->source.data[start - 1] == '.';
    end = after_dot ? digits : skip_fraction(lexer, digits);
    is_float = end != digits;
    if (!is_float && byte_at(lexer, start) == '0') {
      end = skip_digits(lexer, start, 1);  // "007" is a zero followed by a 7: a syntax error
    }
  }
  char digits[128];
  size_t count = 0;
  for (size_t i = base == 10 ? start : start + 2; i < end; i++) {
    if (lexer->source.data[i] != '_') {
      if (count + 1 == sizeof digits) {
        return lex_error(lexer, "a number with too many digits");
      }
      digits[count++] = lexer->source.data[i];
    }
  }
  digits[count] = 0;
  errno = 0;
  if (is_float) {
    out->kind = MGL_JINJA_TOKEN_FLOAT;
    out->number = strtod(digits, NULL);
  } else {
    out->kind = MGL_JINJA_TOKEN_INTEGER;
    out->integer = strtoll(digits, NULL, base);
    if (errno != 0) {
      return lex_error(lexer, "an integer beyond 64 bits");
    }
  }
  out->text = mgl_jinja_text_part(lexer->source, start, end);
  move_to(lexer, end);
  return MGL_OK;
}

// Reads an escape of `count` hexadecimal digits at `at` into *codepoint.
static bool read_hex(mgl_jinja_string text, size_t at, size_t count, int32_t *codepoint) {
  uint32_t value = 0;
  if (count > text.bytes - at) {
    return false;
  }
  for (size_t i = at; i < at + count; i++) {
    char c = text.data[i];
    if (!is_digit_of(c, 16)) {
      return false;
    }
    value = value * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  *codepoint = (int32_t)value;
  return value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
}

// Decodes the escape behind a backslash at text[*at], appends it, moves *at behind it.
static mgl_status unescape_one(const mgl_jinja_lexer *lexer, mgl_jinja_string text, size_t *at,
                               char *out, size_t *bytes) {
  static const char simple[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
  char c = text.data[*at];
  for (size_t i = 0; i + 1 < sizeof simple; i += 2) {
    if (simple[i] == c) {
      out[(*bytes)++] = simple[i + 1];
      *at += 1;
      return MGL_OK;
    }
  }
  int32_t codepoint = 0;
  if (c == '\n') {
    *at += 1;
    return MGL_OK;
  }
  if (c >= '0' && c <= '7') {
    for (int i = 0; i < 3 && *at < text.bytes && is_digit_of(text.data[*at], 8); i++, (*at)++) {
      codepoint = codepoint * 8 + (text.data[*at] - '0');
    }
  } else if (c == 'x' || c == 'u' || c == 'U') {
    size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    if (!read_hex(text, *at + 1, count, &codepoint)) {
      return lex_error(lexer, "a malformed \\x, \\u or \\U escape in a string");
    }
    *at += 1 + count;
  } else if (c == 'N' || ((unsigned char)c & 0x80u) != 0) {
    return lex_error(lexer, "an unknown escape in a string (\\N or a backslash before non-ASCII)");
  } else {
    out[(*bytes)++] = '\\';  // Python keeps an unknown escape as it is
    out[(*bytes)++] = c;
    *at += 1;
    return MGL_OK;
  }
  *bytes += mgl_jinja_text_encode(codepoint, out + *bytes);
  return MGL_OK;
}

static mgl_status lex_string(mgl_jinja_lexer *lexer, mgl_jinja_token *out) {
  char quote = lexer->source.data[lexer->at];
  size_t end = lexer->at + 1;
  bool escapes = false;
  while (end < lexer->source.bytes && lexer->source.data[end] != quote) {
    bool escape = lexer->source.data[end] == '\\';
    escapes = escapes || escape;
    end += escape ? 2 : 1;
  }
  if (end >= lexer->source.bytes) {
    return lex_error(lexer, "a string without its closing quote");
  }
  mgl_jinja_string text = mgl_jinja_text_part(lexer->source, lexer->at + 1, end);
  out->kind = MGL_JINJA_TOKEN_STRING;
  out->text = text;
  if (escapes) {
    char *unescaped = mgl_arena_alloc_text(lexer->arena, text.bytes);  // escapes only shrink
    if (unescaped == NULL) {
      return mgl_error_set(lexer->err, MGL_ERR_MEMORY, "%s: line %d: out of memory", lexer->where,
                           lexer->line);
    }
    size_t bytes = 0;
    for (size_t at = 0; at < text.bytes;) {
      if (text.data[at] != '\\') {
        unescaped[bytes++] = text.data[at++];
        continue;
      }
      at++;
      MGL_TRY(unescape_one(lexer, text, &at, unescaped, &bytes));
    }
    out->text = (mgl_jinja_string){unescaped, bytes};
  }
  move_to(lexer, end + 1);
  return MGL_OK;
}

static bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static mgl_status lex_operator(mgl_jinja_lexer *lexer, mgl_jinja_token *out) {
  static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
  size_t bytes = 0;
  for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
    bytes = starts_with(lexer, lexer->at, two[i]) ? 2 : bytes;
  }
  char c = lexer->source.data[lexer->at];
  if (bytes == 0) {
    if (c == 0 || strchr("+-/*%~[](){}><=.:|,;", c) == NULL) {
      return mgl_error_set(lexer->err, MGL_ERR_FORMAT, "%s: line %d: unexpected character '%c'",
                           lexer->where, lexer->line, c);
    }
    bytes = 1;
  }
  if (c == '(' || c == '[' || c == '{') {
    if (lexer->brackets == MGL_JINJA_MAX_BRACKETS) {
      return mgl_error_set(lexer->err, MGL_ERR_LIMIT, "%s: line %d: more than %d open brackets",
                           lexer->where, lexer->line, MGL_JINJA_MAX_BRACKETS);
    }
    lexer->closers[lexer->brackets++] = (char)(c == '(' ? ')' : c == '[' ? ']' : '}');
  } else if (c == ')' || c == ']' || c == '}') {
    if (lexer->brackets == 0 || lexer->closers[--lexer->brackets] != c) {
      return mgl_error_set(lexer->err, MGL_ERR_FORMAT,
                           "%s: line %d: '%c' closes no bracket of its kind", lexer->where,
                           lexer->line, c);
    }
  }
  out->kind = MGL_JINJA_TOKEN_OPERATOR;
  out->text = mgl_jinja_text_part(lexer->source, lexer->at, lexer->at + bytes);
  move_to(lexer, lexer->at + bytes);
  return MGL_OK;
}

static mgl_status lex_in_tag(mgl_jinja_lexer *lexer, mgl_jinja_token *out) {
  bool is_block = lexer->mode == MGL_JINJA_LEX_BLOCK;
  for (;;) {
    // The end mark is looked for in front of white space and operators, but not within brackets,
    // where "}}" may close two dicts.
    if (lexer->brackets == 0) {
      bool plus = !is_block && byte_at(lexer, lexer->at) == '+';
      size_t end = plus ? 0 : behind_end(lexer, lexer->at, is_block ? '%' : '}', is_block);
      if (end != 0) {
        *out = (mgl_jinja_token){.line = lexer->line};
        out->kind = is_block ? MGL_JINJA_TOKEN_BLOCK_END : MGL_JINJA_TOKEN_VARIABLE_END;
        move_to(lexer, end);
        lexer->mode = MGL_JINJA_LEX_TEXT;
        return MGL_OK;
      }
    }
    size_t behind = skip_space(lexer, lexer->at);
    if (behind == lexer->at) {
      break;
    }
    move_to(lexer, behind);
  }
  *out = (mgl_jinja_token){.kind = MGL_JINJA_TOKEN_END, .line = lexer->line};
  if (lexer->at == lexer->source.bytes) {
    return MGL_OK;
  }
  char c = lexer->source.data[lexer->at];
  if (c >= '0' && c <= '9') {
    return lex_number(lexer, out);
  }
  if (c == '"' || c == '\'') {
    return lex_string(lexer, out);
  }
  if (is_name_byte(c)) {
    size_t end = lexer->at;
    while (is_name_byte(byte_at(lexer, end))) {
      end++;
    }
    out->kind = MGL_JINJA_TOKEN_NAME;
    out->text = mgl_jinja_text_part(lexer->source, lexer->at, end);
    move_to(lexer, end);
    return MGL_OK;
  }
  return lex_operator(lexer, out);
}

mgl_status mgl_jinja_lex_next(mgl_jinja_lexer *lexer, mgl_jinja_token *out) {
  while (lexer->mode == MGL_JINJA_LEX_TEXT) {
    char tag = lexer->tag;
    lexer->tag = 0;
    if (tag == '{' || tag == '%') {
      bool is_block = tag == '%';
      *out = (mgl_jinja_token){.line = lexer->line};
      out->kind = is_block ? MGL_JINJA_TOKEN_BLOCK_BEGIN : MGL_JINJA_TOKEN_VARIABLE_BEGIN;
      lexer->mode = is_block ? MGL_JINJA_LEX_BLOCK : MGL_JINJA_LEX_VARIABLE;
      lexer->brackets = 0;
      return MGL_OK;
    }
    if (tag == '#') {
      MGL_TRY(skip_comment(lexer));
      continue;
    }
    if (tag == 'r') {
      MGL_TRY(lex_raw(lexer, out));
    } else if (lexer->at == lexer->source.bytes) {
      *out = (mgl_jinja_token){.kind = MGL_JINJA_TOKEN_END, .line = lexer->line};
      return MGL_OK;
    } else {
      lex_text(lexer, out);
    }
    if (out->text.bytes != 0) {
      return MGL_OK;
    }
  }
  return lex_in_tag(lexer, out);
}
