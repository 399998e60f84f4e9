// UTF-8 scanning and character classes.
//
// Categories come from utf8proc (Debian 12: Unicode 15.0). The `tokenizers` library 0.23 links
// Oniguruma with Unicode 16, so the letters and numbers added by 15.1 and 16.0 are listed here;
// with them \p{L}, \p{N} and \s agree on all 1,112,064 code points (tools/make_tokenizer_cases.py
// checks). Rejected: own category tables for everything, which would be 700 ranges to maintain.
#include "text/unicode.h"

#include <utf8proc.h>

typedef struct code_range {
  uint32_t first;
  uint32_t last;
} code_range;

static const code_range NEW_LETTERS[] = {
    {0x1c89, 0x1c8a},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},   {0x105c0, 0x105f3},
    {0x10d4a, 0x10d65}, {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4}, {0x11380, 0x11389},
    {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7},
    {0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0}, {0x13460, 0x143fa},
    {0x16100, 0x1611d}, {0x16d40, 0x16d6c}, {0x18cff, 0x18cff}, {0x1e5d0, 0x1e5ed},
    {0x1e5f0, 0x1e5f0}, {0x2ebf0, 0x2ee5d},
};

static const code_range NEW_NUMBERS[] = {
    {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x16130, 0x16139},
    {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa},
};

// Characters of category So that Unicode calls alphabetic: circled and squared letters.
static const code_range LETTER_SYMBOLS[] = {
    {0x24b6, 0x24e9},
    {0x1f130, 0x1f149},
    {0x1f150, 0x1f169},
    {0x1f170, 0x1f189},
};

static bool in_ranges(uint32_t code, const code_range *ranges, size_t count) {
  for (size_t i = 0; i < count && code >= ranges[i].first; i++) {
    if (code <= ranges[i].last) {
      return true;
    }
  }
  return false;
}

#define IN_RANGES(code, ranges) in_ranges(code, ranges, sizeof(ranges) / sizeof(ranges)[0])

static unsigned ascii_class(uint32_t code) {
  if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') {
    return MGL_CHAR_LETTER;
  }
  if (code >= '0' && code <= '9') {
    return MGL_CHAR_NUMBER;
  }
  // U+001C to U+001F are separators to Python's str.isspace, not to \s.
  return code == ' ' || (code >= 9 && code <= 13) ? MGL_CHAR_SPACE : MGL_CHAR_OTHER;
}

unsigned mgl_char_class(uint32_t code) {
  if (code < 0x80) {
    return ascii_class(code);
  }
  switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return MGL_CHAR_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return MGL_CHAR_NUMBER;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return MGL_CHAR_SPACE;
    case UTF8PROC_CATEGORY_CC: return code == 0x85 ? MGL_CHAR_SPACE : MGL_CHAR_OTHER;
    case UTF8PROC_CATEGORY_CN:
      if (IN_RANGES(code, NEW_LETTERS)) {
        return MGL_CHAR_LETTER;
      }
      return IN_RANGES(code, NEW_NUMBERS) ? MGL_CHAR_NUMBER : MGL_CHAR_OTHER;
    default: return MGL_CHAR_OTHER;
  }
}

bool mgl_char_is_word(uint32_t code) {
  switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  return mgl_char_class(code) == MGL_CHAR_LETTER || code == 0x200c || code == 0x200d ||
         IN_RANGES(code, LETTER_SYMBOLS);
}

mgl_utf8_kind mgl_utf8_scan(const char *text, size_t bytes, size_t *length) {
  const unsigned char *s = (const unsigned char *)text;
  *length = 1;
  if (s[0] < 0x80) {
    return MGL_UTF8_VALID;
  }
  if (s[0] < 0xc2 || s[0] > 0xf4) {
    return MGL_UTF8_INVALID;
  }
  size_t needed = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and what lies above U+10FFFF.
  unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
  unsigned high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < needed; i++) {
    if (i == bytes) {
      return MGL_UTF8_INCOMPLETE;
    }
    if (s[i] < low || s[i] > high) {
      return MGL_UTF8_INVALID;
    }
    *length = i + 1;
    low = 0x80;
    high = 0xbf;
  }
  return MGL_UTF8_VALID;
}

size_t mgl_utf8_valid_prefix(const char *text, size_t bytes) {
  size_t at = 0;
  while (at < bytes) {
    size_t length = 0;
    if (mgl_utf8_scan(text + at, bytes - at, &length) != MGL_UTF8_VALID) {
      break;
    }
    at += length;
  }
  return at;
}

void mgl_utf8_append_lossy(mgl_text *out, const char *text, size_t bytes) {
  size_t at = 0;
  while (at < bytes) {
    size_t valid = mgl_utf8_valid_prefix(text + at, bytes - at);
    mgl_text_append(out, text + at, valid);
    at += valid;
    if (at < bytes) {
      size_t length = 0;
      (void)mgl_utf8_scan(text + at, bytes - at, &length);
      mgl_text_append_string(out, "\xef\xbf\xbd");
      at += length;
    }
  }
}

size_t mgl_utf8_encode(uint32_t code, char *out) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  if (code < 0x800) {
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
  }
  if (code < 0x10000) {
    out[0] = (char)(0xe0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3f));
    out[2] = (char)(0x80 | (code & 0x3f));
    return 3;
  }
  out[0] = (char)(0xf0 | code >> 18);
  out[1] = (char)(0x80 | (code >> 12 & 0x3f));
  out[2] = (char)(0x80 | (code >> 6 & 0x3f));
  out[3] = (char)(0x80 | (code & 0x3f));
  return 4;
}
