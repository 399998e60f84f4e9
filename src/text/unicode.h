// Code points: UTF-8 in and out, and the character classes that the pre-tokenisers ask for.
//
// The classes are those of Oniguruma with Unicode 16 (what the `tokenizers` library links):
// utf8proc gives the categories, a short table in unicode.c what its Unicode version lacks.
#ifndef MGL_TEXT_UNICODE_H
#define MGL_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

// Every code point has exactly one of these; masks of them stand for a class of a pattern.
enum {
  MGL_CHAR_UPPER = 1,     // Lu and Lt
  MGL_CHAR_LOWER = 2,     // Ll
  MGL_CHAR_CASELESS = 4,  // Lm and Lo
  MGL_CHAR_NUMBER = 8,    // \p{N}
  MGL_CHAR_SPACE = 16,    // \s: the Unicode property White_Space
  MGL_CHAR_MARK = 32,     // \p{M}
  MGL_CHAR_PUNCT = 64,    // \p{P}
  MGL_CHAR_SYMBOL = 128,  // \p{S}
  MGL_CHAR_REST = 256,    // control, format, private, unassigned
  MGL_CHAR_LETTER = MGL_CHAR_UPPER | MGL_CHAR_LOWER | MGL_CHAR_CASELESS,  // \p{L}
};

typedef struct mgl_code_range {
  uint32_t first;
  uint32_t last;
} mgl_code_range;

// Whether a code point is in one of the ranges, which are sorted and apart.
bool mgl_code_in_ranges(uint32_t code, const mgl_code_range *ranges, size_t count);

unsigned mgl_char_class(uint32_t code);
bool mgl_char_is_numeric(uint32_t code);  // char::is_numeric of Rust, which has Unicode 17
bool mgl_char_is_word(uint32_t code);     // \w of Rust's regex

typedef enum mgl_utf8_kind {
  MGL_UTF8_VALID,       // one character
  MGL_UTF8_INVALID,     // the longest start of a character that the next byte contradicts
  MGL_UTF8_INCOMPLETE,  // the text ends within a character
} mgl_utf8_kind;

// Classifies the first bytes of a non-empty text and gives their number (1 to 4).
mgl_utf8_kind mgl_utf8_scan(const char *text, size_t bytes, size_t *length);
// Length of the longest prefix that is valid UTF-8.
size_t mgl_utf8_valid_prefix(const char *text, size_t bytes);
// Appends the text with each invalid or incomplete part replaced by one U+FFFD, as Python's
// decode(errors="replace") and Rust's from_utf8_lossy do.
void mgl_utf8_append_lossy(mgl_text *out, const char *text, size_t bytes);
// Writes one code point (1 to 4 bytes) and returns its length.
size_t mgl_utf8_encode(uint32_t code, char *out);

// Decodes the character at *at of a text known to be valid, and moves *at behind it.
static inline uint32_t mgl_utf8_next(const char *text, size_t *at) {
  const unsigned char *s = (const unsigned char *)text + *at;
  if (s[0] < 0x80) {
    *at += 1;
    return s[0];
  }
  if (s[0] < 0xe0) {
    *at += 2;
    return (uint32_t)(s[0] & 0x1f) << 6 | (uint32_t)(s[1] & 0x3f);
  }
  if (s[0] < 0xf0) {
    *at += 3;
    return (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (uint32_t)(s[2] & 0x3f);
  }
  *at += 4;
  return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 |
         (uint32_t)(s[2] & 0x3f) << 6 | (uint32_t)(s[3] & 0x3f);
}

#endif
