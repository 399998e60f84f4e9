// Unicode text for the template interpreter: strings as slices of UTF-8, seen as Python sees them,
// by code points.
//
// A slice borrows its bytes; none of these functions allocates. All text is valid UTF-8 (the
// template is checked when it is parsed, jansson checks the context); a stray byte would count as
// one character and cannot do harm.
#ifndef MGL_TEMPLATE_JINJA_TEXT_H
#define MGL_TEMPLATE_JINJA_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mgl_jinja_string {
  const char *data;
  size_t bytes;
} mgl_jinja_string;

// A slice of a literal.
#define MGL_JINJA_LITERAL(text) ((mgl_jinja_string){(text), sizeof(text) - 1})

enum { MGL_JINJA_UTF8_BYTES = 4 };  // of the longest code point

// Decodes the code point at byte `at` (< bytes) and returns its length in bytes.
size_t mgl_jinja_text_decode(mgl_jinja_string text, size_t at, int32_t *codepoint);
// Length of the code point that ends before byte `at` (> 0).
size_t mgl_jinja_text_decode_before(mgl_jinja_string text, size_t at, int32_t *codepoint);
// Writes up to MGL_JINJA_UTF8_BYTES bytes, returns how many.
size_t mgl_jinja_text_encode(int32_t codepoint, char *out);
// Byte offset of the first invalid sequence, `bytes` if there is none.
size_t mgl_jinja_text_invalid_at(mgl_jinja_string text);

size_t mgl_jinja_text_length(mgl_jinja_string text);                 // in code points
size_t mgl_jinja_text_offset(mgl_jinja_string text, size_t length);  // bytes of the first `length`
mgl_jinja_string mgl_jinja_text_part(mgl_jinja_string text, size_t from,
                                     size_t to);  // byte offsets

bool mgl_jinja_text_equal(mgl_jinja_string a, mgl_jinja_string b);
bool mgl_jinja_text_is(mgl_jinja_string a, const char *literal);
int mgl_jinja_text_compare(mgl_jinja_string a, mgl_jinja_string b);  // by code points: <0, 0, >0
// First or last occurrence, as a byte offset; SIZE_MAX if there is none.
size_t mgl_jinja_text_find(mgl_jinja_string text, mgl_jinja_string part, size_t from);
size_t mgl_jinja_text_find_last(mgl_jinja_string text, mgl_jinja_string part);

// Python's str.isspace for one character, and the line ends of str.splitlines.
bool mgl_jinja_is_space(int32_t codepoint);
bool mgl_jinja_is_line_end(int32_t codepoint);
bool mgl_jinja_is_printable(int32_t codepoint);  // Python's repr shows it as it is
bool mgl_jinja_is_upper(int32_t codepoint);
bool mgl_jinja_is_lower(int32_t codepoint);
bool mgl_jinja_is_alphabetic(int32_t codepoint);
bool mgl_jinja_is_digit(int32_t codepoint);

// Cuts white space (chars NULL) or any of `chars` off the ends.
mgl_jinja_string mgl_jinja_text_strip(mgl_jinja_string text, const mgl_jinja_string *chars,
                                      bool left, bool right);

#endif
