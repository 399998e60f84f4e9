// UTF-8 scanning and character classes.
//
// Categories come from utf8proc (Debian 12: Unicode 15.0). The `tokenizers` library 0.23 links
// Oniguruma with Unicode 16, so what 15.1 and 16.0 added is listed here; with it \p{Lu}, \p{M},
// \p{P} and the other classes agree on all 1,112,064 code points (test_code_points.c checks).
// Rejected: own category tables for everything, which would be 1500 ranges to maintain.
#include "text/unicode.h"

#include <string.h>
#include <utf8proc.h>

typedef struct new_range {
  mgl_code_range range;
  unsigned class;
} new_range;

// Unassigned in Unicode 15.0, assigned in 16.0.
static const new_range NEW_CODES[] = {
    {{0x897, 0x897}, MGL_CHAR_MARK},         {{0x1b4e, 0x1b4f}, MGL_CHAR_PUNCT},
    {{0x1b7f, 0x1b7f}, MGL_CHAR_PUNCT},      {{0x1c89, 0x1c89}, MGL_CHAR_UPPER},
    {{0x1c8a, 0x1c8a}, MGL_CHAR_LOWER},      {{0x2427, 0x2429}, MGL_CHAR_SYMBOL},
    {{0x2ffc, 0x2fff}, MGL_CHAR_SYMBOL},     {{0x31e4, 0x31e5}, MGL_CHAR_SYMBOL},
    {{0x31ef, 0x31ef}, MGL_CHAR_SYMBOL},     {{0xa7cb, 0xa7cc}, MGL_CHAR_UPPER},
    {{0xa7cd, 0xa7cd}, MGL_CHAR_LOWER},      {{0xa7da, 0xa7da}, MGL_CHAR_UPPER},
    {{0xa7db, 0xa7db}, MGL_CHAR_LOWER},      {{0xa7dc, 0xa7dc}, MGL_CHAR_UPPER},
    {{0x105c0, 0x105f3}, MGL_CHAR_CASELESS}, {{0x10d40, 0x10d49}, MGL_CHAR_NUMBER},
    {{0x10d4a, 0x10d4f}, MGL_CHAR_CASELESS}, {{0x10d50, 0x10d65}, MGL_CHAR_UPPER},
    {{0x10d69, 0x10d6d}, MGL_CHAR_MARK},     {{0x10d6e, 0x10d6e}, MGL_CHAR_PUNCT},
    {{0x10d6f, 0x10d6f}, MGL_CHAR_CASELESS}, {{0x10d70, 0x10d85}, MGL_CHAR_LOWER},
    {{0x10d8e, 0x10d8f}, MGL_CHAR_SYMBOL},   {{0x10ec2, 0x10ec4}, MGL_CHAR_CASELESS},
    {{0x10efc, 0x10efc}, MGL_CHAR_MARK},     {{0x11380, 0x11389}, MGL_CHAR_CASELESS},
    {{0x1138b, 0x1138b}, MGL_CHAR_CASELESS}, {{0x1138e, 0x1138e}, MGL_CHAR_CASELESS},
    {{0x11390, 0x113b5}, MGL_CHAR_CASELESS}, {{0x113b7, 0x113b7}, MGL_CHAR_CASELESS},
    {{0x113b8, 0x113c0}, MGL_CHAR_MARK},     {{0x113c2, 0x113c2}, MGL_CHAR_MARK},
    {{0x113c5, 0x113c5}, MGL_CHAR_MARK},     {{0x113c7, 0x113ca}, MGL_CHAR_MARK},
    {{0x113cc, 0x113d0}, MGL_CHAR_MARK},     {{0x113d1, 0x113d1}, MGL_CHAR_CASELESS},
    {{0x113d2, 0x113d2}, MGL_CHAR_MARK},     {{0x113d3, 0x113d3}, MGL_CHAR_CASELESS},
    {{0x113d4, 0x113d5}, MGL_CHAR_PUNCT},    {{0x113d7, 0x113d8}, MGL_CHAR_PUNCT},
    {{0x113e1, 0x113e2}, MGL_CHAR_MARK},     {{0x116d0, 0x116e3}, MGL_CHAR_NUMBER},
    {{0x11bc0, 0x11be0}, MGL_CHAR_CASELESS}, {{0x11be1, 0x11be1}, MGL_CHAR_PUNCT},
    {{0x11bf0, 0x11bf9}, MGL_CHAR_NUMBER},   {{0x11f5a, 0x11f5a}, MGL_CHAR_MARK},
    {{0x13460, 0x143fa}, MGL_CHAR_CASELESS}, {{0x16100, 0x1611d}, MGL_CHAR_CASELESS},
    {{0x1611e, 0x1612f}, MGL_CHAR_MARK},     {{0x16130, 0x16139}, MGL_CHAR_NUMBER},
    {{0x16d40, 0x16d6c}, MGL_CHAR_CASELESS}, {{0x16d6d, 0x16d6f}, MGL_CHAR_PUNCT},
    {{0x16d70, 0x16d79}, MGL_CHAR_NUMBER},   {{0x18cff, 0x18cff}, MGL_CHAR_CASELESS},
    {{0x1cc00, 0x1ccef}, MGL_CHAR_SYMBOL},   {{0x1ccf0, 0x1ccf9}, MGL_CHAR_NUMBER},
    {{0x1cd00, 0x1ceb3}, MGL_CHAR_SYMBOL},   {{0x1e5d0, 0x1e5ed}, MGL_CHAR_CASELESS},
    {{0x1e5ee, 0x1e5ef}, MGL_CHAR_MARK},     {{0x1e5f0, 0x1e5f0}, MGL_CHAR_CASELESS},
    {{0x1e5f1, 0x1e5fa}, MGL_CHAR_NUMBER},   {{0x1e5ff, 0x1e5ff}, MGL_CHAR_PUNCT},
    {{0x1f8b2, 0x1f8bb}, MGL_CHAR_SYMBOL},   {{0x1f8c0, 0x1f8c1}, MGL_CHAR_SYMBOL},
    {{0x1fa89, 0x1fa89}, MGL_CHAR_SYMBOL},   {{0x1fa8f, 0x1fa8f}, MGL_CHAR_SYMBOL},
    {{0x1fabe, 0x1fabe}, MGL_CHAR_SYMBOL},   {{0x1fac6, 0x1fac6}, MGL_CHAR_SYMBOL},
    {{0x1fadc, 0x1fadc}, MGL_CHAR_SYMBOL},   {{0x1fadf, 0x1fadf}, MGL_CHAR_SYMBOL},
    {{0x1fae9, 0x1fae9}, MGL_CHAR_SYMBOL},   {{0x1fbcb, 0x1fbef}, MGL_CHAR_SYMBOL},
    {{0x2ebf0, 0x2ee5d}, MGL_CHAR_CASELESS},
};

// Numbers of Unicode 17.
static const mgl_code_range NEWEST_NUMBERS[] = {{0x11de0, 0x11de9}, {0x16ff4, 0x16ff6}};

// Characters of category So that Unicode calls alphabetic: circled and squared letters.
static const mgl_code_range LETTER_SYMBOLS[] = {
    {0x24b6, 0x24e9},
    {0x1f130, 0x1f149},
    {0x1f150, 0x1f169},
    {0x1f170, 0x1f189},
};

bool mgl_code_in_ranges(uint32_t code, const mgl_code_range *ranges, size_t count) {
  size_t low = 0;
  while (count > low) {
    size_t middle = low + (count - low) / 2;
    if (code > ranges[middle].last) {
      low = middle + 1;
    } else if (code < ranges[middle].first) {
      count = middle;
    } else {
      return true;
    }
  }
  return false;
}

#define IN_RANGES(code, ranges) mgl_code_in_ranges(code, ranges, sizeof(ranges) / sizeof(ranges)[0])

static unsigned ascii_class(uint32_t code) {
  static const char SYMBOLS[] = "$+<=>^`|~";
  if (code >= 'a' && code <= 'z') {
    return MGL_CHAR_LOWER;
  }
  if (code >= 'A' && code <= 'Z') {
    return MGL_CHAR_UPPER;
  }
  if (code >= '0' && code <= '9') {
    return MGL_CHAR_NUMBER;
  }
  // U+001C to U+001F are separators to Python's str.isspace, not to \s.
  if (code == ' ' || (code >= 9 && code <= 13)) {
    return MGL_CHAR_SPACE;
  }
  if (code < ' ' || code == 0x7f) {
    return MGL_CHAR_REST;
  }
  return memchr(SYMBOLS, (int)code, sizeof SYMBOLS - 1) != NULL ? MGL_CHAR_SYMBOL : MGL_CHAR_PUNCT;
}

static unsigned new_class(uint32_t code) {
  for (size_t i = 0; i < sizeof NEW_CODES / sizeof NEW_CODES[0]; i++) {
    if (mgl_code_in_ranges(code, &NEW_CODES[i].range, 1)) {
      return NEW_CODES[i].class;
    }
  }
  return MGL_CHAR_REST;
}

unsigned mgl_char_class(uint32_t code) {
  if (code < 0x80) {
    return ascii_class(code);
  }
  switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return MGL_CHAR_UPPER;
    case UTF8PROC_CATEGORY_LL: return MGL_CHAR_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return MGL_CHAR_CASELESS;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return MGL_CHAR_NUMBER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return MGL_CHAR_MARK;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return MGL_CHAR_PUNCT;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return MGL_CHAR_SYMBOL;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return MGL_CHAR_SPACE;
    case UTF8PROC_CATEGORY_CC: return code == 0x85 ? MGL_CHAR_SPACE : MGL_CHAR_REST;
    case UTF8PROC_CATEGORY_CN: return new_class(code);
    default: return MGL_CHAR_REST;
  }
}

bool mgl_char_is_numeric(uint32_t code) {
  return mgl_char_class(code) == MGL_CHAR_NUMBER || IN_RANGES(code, NEWEST_NUMBERS);
}

bool mgl_char_is_word(uint32_t code) {
  switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    case UTF8PROC_CATEGORY_CN:  // all new numbers are digits
      return (new_class(code) & (MGL_CHAR_LETTER | MGL_CHAR_MARK | MGL_CHAR_NUMBER)) != 0;
    default: break;
  }
  return (mgl_char_class(code) & (MGL_CHAR_LETTER | MGL_CHAR_MARK)) != 0 || code == 0x200c ||
         code == 0x200d || IN_RANGES(code, LETTER_SYMBOLS);
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
