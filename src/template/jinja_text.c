// Code points and character classes: decoding by hand (hot), classes from utf8proc's tables except
// white space and line ends, whose Python definitions match no single Unicode category.
#include "template/jinja_text.h"

#include <string.h>
#include <utf8proc.h>

size_t mgl_jinja_text_decode(mgl_jinja_string text, size_t at, int32_t *codepoint) {
  unsigned char first = (unsigned char)text.data[at];
  if (first < 0x80) {
    *codepoint = first;
    return 1;
  }
  size_t left = text.bytes - at;
  utf8proc_int32_t found = -1;
  utf8proc_ssize_t bytes = utf8proc_iterate(
      (const utf8proc_uint8_t *)text.data + at,
      (utf8proc_ssize_t)(left < MGL_JINJA_UTF8_BYTES ? left : MGL_JINJA_UTF8_BYTES), &found);
  if (bytes <= 0) {
    *codepoint = first;
    return 1;
  }
  *codepoint = found;
  return (size_t)bytes;
}

size_t mgl_jinja_text_decode_before(mgl_jinja_string text, size_t at, int32_t *codepoint) {
  size_t start = at - 1;
  while (start > 0 && at - start < MGL_JINJA_UTF8_BYTES &&
         ((unsigned char)text.data[start] & 0xc0u) == 0x80u) {
    start--;
  }
  if (start + mgl_jinja_text_decode((mgl_jinja_string){text.data, at}, start, codepoint) == at) {
    return at - start;
  }
  *codepoint = (unsigned char)text.data[at - 1];
  return 1;
}

size_t mgl_jinja_text_encode(int32_t codepoint, char *out) {
  utf8proc_ssize_t bytes = utf8proc_encode_char(codepoint, (utf8proc_uint8_t *)out);
  return bytes > 0 ? (size_t)bytes : 0;
}

size_t mgl_jinja_text_invalid_at(mgl_jinja_string text) {
  size_t at = 0;
  while (at < text.bytes) {
    int32_t codepoint = 0;
    size_t bytes = mgl_jinja_text_decode(text, at, &codepoint);
    if (bytes == 1 && ((unsigned char)text.data[at] & 0x80u) != 0) {
      return at;
    }
    at += bytes;
  }
  return text.bytes;
}

size_t mgl_jinja_text_length(mgl_jinja_string text) {
  size_t length = 0;
  for (size_t i = 0; i < text.bytes; i++) {
    length += ((unsigned char)text.data[i] & 0xc0u) != 0x80u;
  }
  return length;
}

size_t mgl_jinja_text_offset(mgl_jinja_string text, size_t length) {
  size_t at = 0;
  while (at < text.bytes && length > 0) {
    at++;
    while (at < text.bytes && ((unsigned char)text.data[at] & 0xc0u) == 0x80u) {
      at++;
    }
    length--;
  }
  return at;
}

mgl_jinja_string mgl_jinja_text_part(mgl_jinja_string text, size_t from, size_t to) {
  return from < to ? (mgl_jinja_string){text.data + from, to - from} : (mgl_jinja_string){"", 0};
}

bool mgl_jinja_text_equal(mgl_jinja_string a, mgl_jinja_string b) {
  return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

bool mgl_jinja_text_is(mgl_jinja_string a, const char *literal) {
  return mgl_jinja_text_equal(a, (mgl_jinja_string){literal, strlen(literal)});
}

int mgl_jinja_text_compare(mgl_jinja_string a, mgl_jinja_string b) {
  // The byte order of UTF-8 is the order of its code points.
  size_t shared = a.bytes < b.bytes ? a.bytes : b.bytes;
  int order = shared == 0 ? 0 : memcmp(a.data, b.data, shared);
  return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

size_t mgl_jinja_text_find(mgl_jinja_string text, mgl_jinja_string part, size_t from) {
  if (from > text.bytes || part.bytes > text.bytes - from) {
    return SIZE_MAX;
  }
  if (part.bytes == 0) {
    return from;
  }
  const char *found = memmem(text.data + from, text.bytes - from, part.data, part.bytes);
  return found == NULL ? SIZE_MAX : (size_t)(found - text.data);
}

size_t mgl_jinja_text_find_last(mgl_jinja_string text, mgl_jinja_string part) {
  if (part.bytes > text.bytes) {
    return SIZE_MAX;
  }
  for (size_t at = text.bytes - part.bytes;; at--) {
    if (part.bytes == 0 || memcmp(text.data + at, part.data, part.bytes) == 0) {
      return at;
    }
    if (at == 0) {
      return SIZE_MAX;
    }
  }
}

bool mgl_jinja_is_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool mgl_jinja_is_line_end(int32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool mgl_jinja_is_printable(int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
  }
}

bool mgl_jinja_is_upper(int32_t c) {
  return utf8proc_isupper(c) != 0;
}

bool mgl_jinja_is_lower(int32_t c) {
  return utf8proc_islower(c) != 0;
}

bool mgl_jinja_is_alphabetic(int32_t c) {
  utf8proc_category_t category = utf8proc_category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool mgl_jinja_is_digit(int32_t c) {
  return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

static bool is_stripped(int32_t codepoint, const mgl_jinja_string *chars) {
  if (chars == NULL) {
    return mgl_jinja_is_space(codepoint);
  }
  for (size_t at = 0; at < chars->bytes;) {
    int32_t other = 0;
    at += mgl_jinja_text_decode(*chars, at, &other);
    if (other == codepoint) {
      return true;
    }
  }
  return false;
}

mgl_jinja_string mgl_jinja_text_strip(mgl_jinja_string text, const mgl_jinja_string *chars,
                                      bool left, bool right) {
  size_t from = 0;
  size_t to = text.bytes;
  int32_t codepoint = 0;
  while (left && from < to) {
    size_t bytes = mgl_jinja_text_decode(text, from, &codepoint);
    if (!is_stripped(codepoint, chars)) {
      break;
    }
    from += bytes;
  }
  while (right && to > from) {
    size_t bytes = mgl_jinja_text_decode_before(text, to, &codepoint);
    if (!is_stripped(codepoint, chars)) {
      break;
    }
    to -= bytes;
  }
  return mgl_jinja_text_part(text, from, to);
}
