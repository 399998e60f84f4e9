// Scanners that give exactly the matches of the well-known pre-tokeniser expressions.
//
// A backtracking engine tries the alternatives in order; each scanner decides between them by the
// classes of the next two characters, and only whitespace and O200K's words need a look at the
// whole run. Each run is scanned a fixed number of times more than it is consumed, so the time is
// linear. Rejected: a regex library (a dependency, quadratic or worse on hostile text).
#include <stdint.h>
#include <string.h>

#include "text/pretokenize.h"

enum {
  // [^\s\p{L}\p{N}]
  NO_WORD = MGL_CHAR_MARK | MGL_CHAR_PUNCT | MGL_CHAR_SYMBOL | MGL_CHAR_REST,
  LETTER_OR_MARK = MGL_CHAR_LETTER | MGL_CHAR_MARK,
  PUNCT_OR_SYMBOL = MGL_CHAR_PUNCT | MGL_CHAR_SYMBOL,
  // What O200K takes for capitals and for small letters; letters without case and marks are both.
  EITHER_CASE = MGL_CHAR_CASELESS | MGL_CHAR_MARK,
  CAPITALS = MGL_CHAR_UPPER | EITHER_CASE,
  SMALL = MGL_CHAR_LOWER | EITHER_CASE,
};

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

// The end of the run of characters of the classes that starts at `at`, of at most `limit`
// characters.
static size_t run_end(const char *text, size_t bytes, size_t at, unsigned classes, size_t limit) {
  for (; limit > 0; limit--) {
    glyph next = glyph_at(text, bytes, at);
    if ((next.class & classes) == 0) {
      break;
    }
    at = next.end;
  }
  return at;
}

static bool is_newline(char byte) {
  return byte == '\r' || byte == '\n';
}

static size_t newlines_end(const char *text, size_t bytes, size_t at, bool slashes) {
  while (at < bytes && (is_newline(text[at]) || (slashes && text[at] == '/'))) {
    at++;
  }
  return at;
}

typedef enum fold_kind {
  FOLD_NONE,
  FOLD_ASCII,
  FOLD_UNICODE,  // U+017F (long s) is an s, the only character beyond ASCII that folds into these
} fold_kind;

// The end of 's 't 're 've 'm 'll 'd at `at`, 0 if there is none.
static size_t contraction_end(const char *text, size_t bytes, size_t at, fold_kind fold) {
  size_t left = bytes - at;
  const unsigned char *s = (const unsigned char *)text + at;
  if (left < 2 || s[0] != '\'') {
    return 0;
  }
  if (left >= 3 && fold == FOLD_UNICODE && s[1] == 0xc5 && s[2] == 0xbf) {
    return at + 3;
  }
  unsigned char bit = fold == FOLD_NONE ? 0 : 0x20;
  char first = s[1] < 0x80 ? (char)(s[1] | bit) : 0;
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
  static const unsigned RUNS[] = {MGL_CHAR_LETTER, MGL_CHAR_NUMBER, NO_WORD};
  size_t contraction = contraction_end(text, bytes, start, FOLD_NONE);
  if (contraction != 0) {
    return contraction;
  }
  glyph first = glyph_at(text, bytes, start);
  glyph head = first.code == ' ' ? glyph_at(text, bytes, first.end) : first;
  for (size_t i = 0; i < sizeof RUNS / sizeof RUNS[0]; i++) {
    if ((head.class & RUNS[i]) != 0) {
      return run_end(text, bytes, head.end, RUNS[i], SIZE_MAX);
    }
  }
  return whitespace_end(text, bytes, start, false);
}

// What Llama 3 and O200K have behind their words: `digits` numbers, punctuation with the line ends
// (and slashes) behind it, whitespace.
static size_t rest_end(const char *text, size_t bytes, size_t start, size_t digits, bool slashes) {
  glyph first = glyph_at(text, bytes, start);
  if (first.class == MGL_CHAR_NUMBER) {
    return run_end(text, bytes, first.end, MGL_CHAR_NUMBER, digits - 1);
  }
  glyph head = first.code == ' ' ? glyph_at(text, bytes, first.end) : first;
  if ((head.class & NO_WORD) != 0) {
    size_t end = run_end(text, bytes, head.end, NO_WORD, SIZE_MAX);
    return newlines_end(text, bytes, end, slashes);
  }
  return whitespace_end(text, bytes, start, true);
}

static size_t llama3_end(const char *text, size_t bytes, size_t start, size_t digits) {
  size_t contraction = contraction_end(text, bytes, start, FOLD_UNICODE);
  if (contraction != 0) {
    return contraction;
  }
  glyph first = glyph_at(text, bytes, start);
  glyph head = first;
  if ((first.class & (MGL_CHAR_LETTER | MGL_CHAR_NUMBER)) == 0 && !is_newline(text[start])) {
    head = glyph_at(text, bytes, first.end);
  }
  if ((head.class & MGL_CHAR_LETTER) != 0) {
    return run_end(text, bytes, head.end, MGL_CHAR_LETTER, SIZE_MAX);
  }
  return rest_end(text, bytes, start, digits, false);
}

// CAPITALS* SMALL+ at `at`, 0 if it does not match: a run of capitals with the small letters behind
// it or, without such, the run up to the last character that can be a small one.
static size_t capitalised_end(const char *text, size_t bytes, size_t at) {
  size_t last_small = 0;
  for (;;) {
    glyph next = glyph_at(text, bytes, at);
    if (next.class == MGL_CHAR_LOWER) {
      return run_end(text, bytes, next.end, SMALL, SIZE_MAX);
    }
    if ((next.class & CAPITALS) == 0) {
      return last_small;
    }
    at = next.end;
    last_small = (next.class & SMALL) != 0 ? at : last_small;
  }
}

// [^\r\n\p{L}\p{N}]?CAPITALS*SMALL+|[^\r\n\p{L}\p{N}]?CAPITALS+SMALL*, 0 if neither matches. The
// second one is reached by runs of capitals only, so that no small letter follows.
static size_t o200k_word_end(const char *text, size_t bytes, size_t start) {
  glyph first = glyph_at(text, bytes, start);
  bool prefix =
      (first.class & (MGL_CHAR_LETTER | MGL_CHAR_NUMBER)) == 0 && !is_newline(text[start]);
  size_t end = prefix ? capitalised_end(text, bytes, first.end) : 0;
  if (end == 0) {
    end = capitalised_end(text, bytes, start);
  }
  if (end == 0) {
    size_t word = prefix ? first.end : start;
    end = run_end(text, bytes, word, CAPITALS, SIZE_MAX);
    end = end > word ? end : 0;
  }
  return end;
}

static size_t o200k_end(const char *text, size_t bytes, size_t start, fold_kind fold) {
  size_t end = o200k_word_end(text, bytes, start);
  if (end == 0) {
    return rest_end(text, bytes, start, 3, true);
  }
  size_t contraction = contraction_end(text, bytes, end, fold);
  return contraction != 0 ? contraction : end;
}

static size_t tekken_end(const char *text, size_t bytes, size_t start) {
  size_t end = o200k_word_end(text, bytes, start);
  return end != 0 ? end : rest_end(text, bytes, start, 1, true);
}

static bool is_ascii_letter(char byte) {
  return ((unsigned char)byte | 0x20) >= 'a' && ((unsigned char)byte | 0x20) <= 'z';
}

static size_t deepseek3_end(const char *text, size_t bytes, size_t start) {
  glyph first = glyph_at(text, bytes, start);
  if (first.code < 0x80 && (first.class & PUNCT_OR_SYMBOL) != 0) {
    size_t end = first.end;
    while (end < bytes && is_ascii_letter(text[end])) {
      end++;
    }
    if (end > first.end) {
      return end;
    }
  }
  glyph second = glyph_at(text, bytes, first.end);
  bool prefix =
      (first.class & (MGL_CHAR_LETTER | PUNCT_OR_SYMBOL)) == 0 && !is_newline(text[start]);
  if ((first.class & LETTER_OR_MARK) != 0 || (prefix && (second.class & LETTER_OR_MARK) != 0)) {
    return run_end(text, bytes, first.end, LETTER_OR_MARK, SIZE_MAX);
  }
  glyph head = first.code == ' ' ? second : first;
  if ((head.class & PUNCT_OR_SYMBOL) != 0) {
    size_t end = run_end(text, bytes, head.end, PUNCT_OR_SYMBOL, SIZE_MAX);
    return newlines_end(text, bytes, end, false);
  }
  return first.class == MGL_CHAR_SPACE ? whitespace_end(text, bytes, start, true) : 0;
}

size_t mgl_split_words_end(mgl_split_kind kind, const char *text, size_t bytes, size_t start) {
  switch (kind) {
    case MGL_SPLIT_GPT2: return gpt2_end(text, bytes, start);
    case MGL_SPLIT_QWEN: return llama3_end(text, bytes, start, 1);
    case MGL_SPLIT_LLAMA3: return llama3_end(text, bytes, start, 3);
    case MGL_SPLIT_O200K: return o200k_end(text, bytes, start, FOLD_UNICODE);
    case MGL_SPLIT_O200K_ASCII: return o200k_end(text, bytes, start, FOLD_ASCII);
    case MGL_SPLIT_TEKKEN: return tekken_end(text, bytes, start);
    case MGL_SPLIT_DEEPSEEK3: return deepseek3_end(text, bytes, start);
    case MGL_SPLIT_TRAILING_SPACE:
    case MGL_SPLIT_RUN:
    case MGL_SPLIT_LITERAL: break;
  }
  return 0;
}
