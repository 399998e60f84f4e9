// Recognising Split patterns, and walking their matches.
//
// The expressions with alternatives are known by their text and scanned in pretokenize_words.c. For
// runs of one class the brackets are read, so that no table of ours repeats the hundred ranges of
// DeepSeek's letters. Rejected: reading regular expressions in general, which ends in a
// backtracking engine, quadratic or worse on hostile text.
#include "text/pretokenize.h"

#include <stdint.h>
#include <string.h>

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define JS_CONTRACTIONS "'s|'S|'t|'T|'re|'rE|'Re|'RE|'ve|'vE|'Ve|'VE|'m|'M|'ll|'lL|'Ll|'LL|'d|'D"
#define WHITESPACE "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS_BEFORE_DIGITS "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST_AFTER_DIGITS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" WHITESPACE
#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define NO_WORD "[^\\r\\n\\p{L}\\p{N}]?"
#define O200K(tail, digits)                                                              \
  NO_WORD CAPITALS "*" SMALL "+" tail "|" NO_WORD CAPITALS "+" SMALL "*" tail "|" digits \
                   "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" WHITESPACE
#define DEEPSEEK3(line_end)                                                             \
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^" line_end                   \
  "\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[" line_end "]*|\\s*[" line_end \
  "]+|\\s+(?!\\S)|\\s+"

static const struct {
  const char *regex;
  mgl_split_kind kind;
} PATTERNS[] = {
    {CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", MGL_SPLIT_GPT2},
    {WORDS_BEFORE_DIGITS "\\p{N}" REST_AFTER_DIGITS, MGL_SPLIT_QWEN},
    {WORDS_BEFORE_DIGITS "\\p{N}{1,3}" REST_AFTER_DIGITS, MGL_SPLIT_LLAMA3},
    {O200K("(?i:" CONTRACTIONS ")?", "\\p{N}{1,3}"), MGL_SPLIT_O200K},
    {O200K("(" JS_CONTRACTIONS ")?", "\\p{N}{1,3}"), MGL_SPLIT_O200K_ASCII},
    {O200K("(?:" JS_CONTRACTIONS ")?", "\\p{N}{1,3}"), MGL_SPLIT_O200K_ASCII},
    {O200K("", "\\p{N}"), MGL_SPLIT_TEKKEN},
    {DEEPSEEK3("\r\n"), MGL_SPLIT_DEEPSEEK3},
    {DEEPSEEK3("\\r\\n"), MGL_SPLIT_DEEPSEEK3},
    {"\\s+$", MGL_SPLIT_TRAILING_SPACE},
};

// --- runs of one class ---------------------------------------------------------------------------

// Moves *text behind `start`, if it stands there.
static bool skip(const char **text, const char *start) {
  size_t bytes = strlen(start);
  if (strncmp(*text, start, bytes) != 0) {
    return false;
  }
  *text += bytes;
  return true;
}

// \p{X} of the properties that we have, or \s.
static bool read_property(const char **regex, unsigned *classes) {
  static const struct {
    const char *text;
    unsigned classes;
  } PROPERTIES[] = {
      {"\\p{L}", MGL_CHAR_LETTER}, {"\\p{N}", MGL_CHAR_NUMBER}, {"\\p{P}", MGL_CHAR_PUNCT},
      {"\\p{S}", MGL_CHAR_SYMBOL}, {"\\p{M}", MGL_CHAR_MARK},   {"\\s", MGL_CHAR_SPACE},
  };
  for (size_t i = 0; i < sizeof PROPERTIES / sizeof PROPERTIES[0]; i++) {
    if (skip(regex, PROPERTIES[i].text)) {
      *classes |= PROPERTIES[i].classes;
      return true;
    }
  }
  return false;
}

// One character of a class, escaped where it would mean something else.
static bool read_class_character(const char **regex, uint32_t *code) {
  static const char CONTROLS[] = "tnr";
  static const char CONTROL_CODES[] = "\t\n\r";
  const char *at = *regex;
  if (*at == 0 || strchr("[]^&-", *at) != NULL) {
    return false;
  }
  if (*at != '\\') {
    size_t length = 0;
    *code = mgl_utf8_next(at, &length);
    *regex += length;
    return true;
  }
  const char *control = at[1] == 0 ? NULL : strchr(CONTROLS, at[1]);
  *code = control != NULL ? (uint32_t)CONTROL_CODES[control - CONTROLS] : (unsigned char)at[1];
  *regex += 2;
  return control != NULL ||
         (at[1] != 0 && (mgl_char_class(*code) & (MGL_CHAR_PUNCT | MGL_CHAR_SYMBOL)) != 0 &&
          *code < 0x80);
}

static bool read_range(const char **regex, mgl_split_pattern *out) {
  mgl_code_range range;
  if (out->range_count == MGL_SPLIT_MAX_RANGES || !read_class_character(regex, &range.first)) {
    return false;
  }
  range.last = range.first;
  if (skip(regex, "-") && (!read_class_character(regex, &range.last) || range.last < range.first)) {
    return false;
  }
  out->ranges[out->range_count++] = range;
  return true;
}

// Sorts the ranges and joins those that overlap, for the search.
static void order_ranges(mgl_split_pattern *pattern) {
  mgl_code_range *ranges = pattern->ranges;
  size_t count = 0;
  for (size_t i = 1; i < pattern->range_count; i++) {
    mgl_code_range moving = ranges[i];
    size_t to = i;
    for (; to > 0 && ranges[to - 1].first > moving.first; to--) {
      ranges[to] = ranges[to - 1];
    }
    ranges[to] = moving;
  }
  for (size_t i = 0; i < pattern->range_count; i++) {
    if (count == 0 || ranges[i].first > ranges[count - 1].last) {
      ranges[count++] = ranges[i];
    } else if (ranges[i].last > ranges[count - 1].last) {
      ranges[count - 1].last = ranges[i].last;
    }
  }
  pattern->range_count = count;
}

static bool read_class(const char **regex, mgl_split_pattern *out) {
  if (!skip(regex, "[")) {
    return read_property(regex, &out->classes);
  }
  do {
    if (!read_property(regex, &out->classes) && !read_range(regex, out)) {
      return false;
    }
  } while (!skip(regex, "]"));
  order_ranges(out);
  return true;
}

// A class, once or with + or {1,3}, with \s? in front or not.
static bool read_run(const char *regex, mgl_split_pattern *out) {
  *out = (mgl_split_pattern){.kind = MGL_SPLIT_RUN, .limit = 1};
  out->space_first = skip(&regex, "\\s?");
  if (!read_class(&regex, out)) {
    return false;
  }
  if (skip(&regex, "+")) {
    out->limit = SIZE_MAX;
  } else if (skip(&regex, "{1,3}")) {
    out->limit = 3;
  }
  return *regex == 0;
}

bool mgl_split_pattern_find(const char *regex, mgl_split_pattern *out) {
  for (size_t i = 0; i < sizeof PATTERNS / sizeof PATTERNS[0]; i++) {
    if (strcmp(regex, PATTERNS[i].regex) == 0) {
      *out = (mgl_split_pattern){.kind = PATTERNS[i].kind};
      return true;
    }
  }
  return read_run(regex, out);
}

const char *mgl_split_pattern_regex(mgl_split_kind kind) {
  size_t i = 0;
  while (PATTERNS[i].kind != kind) {
    i++;
  }
  return PATTERNS[i].regex;
}

// --- matches -------------------------------------------------------------------------------------

static bool in_class(const mgl_split_pattern *pattern, uint32_t code) {
  return (pattern->classes != 0 && (mgl_char_class(code) & pattern->classes) != 0) ||
         mgl_code_in_ranges(code, pattern->ranges, pattern->range_count);
}

// The end of the run of the class from `at` on, of at most `limit` characters.
static size_t class_run_end(const mgl_split_pattern *pattern, const char *text, size_t bytes,
                            size_t at) {
  for (size_t count = 0; at < bytes && count < pattern->limit; count++) {
    size_t next = at;
    if (!in_class(pattern, mgl_utf8_next(text, &next))) {
      break;
    }
    at = next;
  }
  return at;
}

// The end of the match at `start`, 0 if there is none.
static size_t run_match_end(const mgl_split_pattern *pattern, const char *text, size_t bytes,
                            size_t start) {
  if (pattern->space_first) {
    size_t behind = start;
    if (mgl_char_class(mgl_utf8_next(text, &behind)) == MGL_CHAR_SPACE) {
      size_t end = class_run_end(pattern, text, bytes, behind);
      if (end > behind) {
        return end;
      }
    }
  }
  size_t end = class_run_end(pattern, text, bytes, start);
  return end > start ? end : 0;
}

// \s+$, where $ is the end or stands in front of a \n: the match in the run of whitespace from
// `start` to *run_end, 0 if there is none.
static size_t trailing_space_end(const char *text, size_t bytes, size_t start, size_t *run_end) {
  size_t line_end = 0;
  size_t at = start;
  while (at < bytes) {
    size_t next = at;
    if (mgl_char_class(mgl_utf8_next(text, &next)) != MGL_CHAR_SPACE) {
      break;
    }
    line_end = text[at] == '\n' && at > start ? at : line_end;
    at = next;
  }
  *run_end = at;
  return at == bytes && at > start ? at : line_end;
}

bool mgl_split_next(const mgl_split_pattern *pattern, const char *text, size_t bytes, size_t from,
                    size_t *start, size_t *end) {
  if (pattern->kind == MGL_SPLIT_LITERAL) {
    const char *found =
        from == bytes ? NULL
                      : memmem(text + from, bytes - from, pattern->literal, pattern->literal_bytes);
    *start = found == NULL ? bytes : (size_t)(found - text);
    *end = *start + pattern->literal_bytes;
    return found != NULL;
  }
  for (size_t at = from; at < bytes;) {
    size_t next = at;
    *start = at;
    switch (pattern->kind) {
      case MGL_SPLIT_RUN: *end = run_match_end(pattern, text, bytes, at); break;
      case MGL_SPLIT_TRAILING_SPACE: *end = trailing_space_end(text, bytes, at, &next); break;
      default: *end = mgl_split_words_end(pattern->kind, text, bytes, at); break;
    }
    if (*end != 0) {
      return true;
    }
    at = next;
    if (next == *start) {
      (void)mgl_utf8_next(text, &at);
    }
  }
  return false;
}
