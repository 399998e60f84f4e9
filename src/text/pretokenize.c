// Scanners that give exactly the matches of the well-known pre-tokeniser expressions.
//
// A backtracking engine tries the alternatives in order; each scanner decides between them by the
// classes of the next two characters, and only whitespace needs a look at the whole run. A run of
// whitespace is scanned at most twice more than it is consumed, so the time is linear. Rejected: a
// regex library (a dependency, quadratic or worse on hostile text).
#include "text/pretokenize.h"

#include <stdint.h>
#include <string.h>

#include "text/unicode.h"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define WORDS_BEFORE_DIGITS "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST_AFTER_DIGITS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char *const PATTERNS[] = {
    [MGL_SPLIT_GPT2] = CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    [MGL_SPLIT_QWEN] = WORDS_BEFORE_DIGITS "\\p{N}" REST_AFTER_DIGITS,
    [MGL_SPLIT_LLAMA3] = WORDS_BEFORE_DIGITS "\\p{N}{1,3}" REST_AFTER_DIGITS,
};

bool mgl_split_pattern_find(const char *regex, mgl_split_pattern *out) {
  for (size_t i = 0; i < sizeof PATTERNS / sizeof PATTERNS[0]; i++) {
    if (strcmp(regex, PATTERNS[i]) == 0) {
      *out = (mgl_split_pattern)i;
      return true;
    }
  }
  return false;
}

typedef struct glyph {
  uint32_t code;
  unsigned class;  // 0 behind the end of the text
  size_t end;      // where the next one starts
} glyph;

static glyph glyph_at(const char *text, size_t bytes, size_t at) {
  if (at == bytes) {
    return (glyph){.end = bytes};
  }
  glyph found = {.end = at};
  found.code = mgl_utf8_next(text, &found.end);
  found.class = mgl_char_class(found.code);
  return found;
}

// The end of the run of characters of one class that starts at `at`, of at most `limit` characters.
static size_t run_end(const char *text, size_t bytes, size_t at, unsigned class, size_t limit) {
  for (; limit > 0; limit--) {
    glyph next = glyph_at(text, bytes, at);
    if (next.class != class) {
      break;
    }
    at = next.end;
  }
  return at;
}

static bool is_newline(char byte) {
  return byte == '\r' || byte == '\n';
}

// The end of 's 't 're 've 'm 'll 'd at the apostrophe `at`, 0 if there is none. With `fold`, in
// any case; U+017F (long s) then is an s, the only character beyond ASCII that folds into these.
static size_t contraction_end(const char *text, size_t bytes, size_t at, bool fold) {
  size_t left = bytes - at;
  const unsigned char *s = (const unsigned char *)text + at;
  if (left >= 3 && fold && s[1] == 0xc5 && s[2] == 0xbf) {
    return at + 3;
  }
  unsigned char bit = fold ? 0x20 : 0;
  char first = left >= 2 && s[1] < 0x80 ? (char)(s[1] | bit) : 0;
  char second = left >= 3 && s[2] < 0x80 ? (char)(s[2] | bit) : 0;
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd': return at + 2;
    case 'r':
    case 'v': return second == 'e' ? at + 3 : 0;
    case 'l': return second == 'l' ? at + 3 : 0;
    default: return 0;
  }
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at a whitespace character, the first alternative only with `newlines`:
// up to the last line end of the run; else the whole run at the end of the text; else the run but
// for its last character, which goes with the word behind it, unless it is the only one.
static size_t whitespace_end(const char *text, size_t bytes, size_t start, bool newlines) {
  size_t at = start;
  size_t last = start;
  size_t line_end = 0;
  for (;;) {
    glyph next = glyph_at(text, bytes, at);
    if (next.class != MGL_CHAR_SPACE) {
      break;
    }
    if (is_newline(text[at])) {
      line_end = next.end;
    }
    last = at;
    at = next.end;
  }
  if (newlines && line_end != 0) {
    return line_end;
  }
  return at == bytes || last == start ? at : last;
}

static size_t gpt2_end(const char *text, size_t bytes, size_t start) {
  glyph first = glyph_at(text, bytes, start);
  if (first.code == '\'') {
    size_t end = contraction_end(text, bytes, start, false);
    if (end != 0) {
      return end;
    }
  }
  glyph head = first.code == ' ' ? glyph_at(text, bytes, first.end) : first;
  if (head.class != 0 && head.class != MGL_CHAR_SPACE) {
    return run_end(text, bytes, head.end, head.class, SIZE_MAX);
  }
  return whitespace_end(text, bytes, start, false);
}

static size_t llama3_end(const char *text, size_t bytes, size_t start, size_t digits) {
  glyph first = glyph_at(text, bytes, start);
  if (first.code == '\'') {
    size_t end = contraction_end(text, bytes, start, true);
    if (end != 0) {
      return end;
    }
  }
  if (first.class == MGL_CHAR_LETTER) {
    return run_end(text, bytes, first.end, MGL_CHAR_LETTER, SIZE_MAX);
  }
  if (first.class == MGL_CHAR_NUMBER) {
    return run_end(text, bytes, first.end, MGL_CHAR_NUMBER, digits - 1);
  }
  glyph second = glyph_at(text, bytes, first.end);
  if (second.class == MGL_CHAR_LETTER && !is_newline(text[start])) {
    return run_end(text, bytes, second.end, MGL_CHAR_LETTER, SIZE_MAX);
  }
  if (first.class == MGL_CHAR_OTHER || (first.code == ' ' && second.class == MGL_CHAR_OTHER)) {
    size_t end = run_end(text, bytes, first.end, MGL_CHAR_OTHER, SIZE_MAX);
    while (end < bytes && is_newline(text[end])) {
      end++;
    }
    return end;
  }
  return whitespace_end(text, bytes, start, true);
}

size_t mgl_split_next(mgl_split_pattern pattern, const char *text, size_t bytes, size_t start) {
  switch (pattern) {
    case MGL_SPLIT_GPT2: return gpt2_end(text, bytes, start);
    case MGL_SPLIT_QWEN: return llama3_end(text, bytes, start, 1);
    case MGL_SPLIT_LLAMA3: return llama3_end(text, bytes, start, 3);
  }
  return bytes;
}
