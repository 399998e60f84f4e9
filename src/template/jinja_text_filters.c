// Filters that escape, strip, lay out or measure text.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "template/jinja_builtins.h"
#include "template/jinja_operators.h"

static bool is_safe(mgl_jinja_value value) {
  return value.kind == MGL_JINJA_STRING && value.safe;
}

// --- escaping ------------------------------------------------------------------------------------

mgl_status mgl_jinja_escape(mgl_jinja_runtime *runtime, mgl_jinja_string text, bool safe,
                            mgl_jinja_value *out) {
  static const char special[] = "&<>'\"";
  static const char *const by[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  mgl_jinja_builder builder = {.runtime = runtime};
  *out = mgl_jinja_string_value(text);
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 16));
  if (!safe) {
    size_t plain = 0;
    for (size_t at = 0; at < text.bytes; at++) {
      const char *found = text.data[at] == 0 ? NULL : strchr(special, text.data[at]);
      if (found != NULL) {
        const char *entity = by[found - special];
        mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, plain, at));
        mgl_jinja_builder_add(&builder, (mgl_jinja_string){entity, strlen(entity)});
        plain = at + 1;
      }
    }
    mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, plain, text.bytes));
    MGL_TRY(mgl_jinja_builder_finish(&builder, out));
  }
  out->safe = true;
  return MGL_OK;
}

// escape, which leaves a |safe text alone, and forceescape, which does not.
static mgl_status filter_escape(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                mgl_jinja_value *out) {
  bool forces = call->builtin->name[0] == 'f';
  mgl_jinja_string text;
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  return mgl_jinja_escape(runtime, text, is_safe(call->self) && !forces, out);
}

// --- tags ----------------------------------------------------------------------------------------

// The text without tags and comments; one that does not end is text, and what is behind it.
static mgl_status remove_tags(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                              mgl_jinja_value *out) {
  mgl_jinja_builder builder = {.runtime = runtime};
  size_t at = 0;
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 16));
  for (;;) {
    size_t start = mgl_jinja_text_find(text, MGL_JINJA_LITERAL("<"), at);
    if (start == SIZE_MAX) {
      break;
    }
    bool is_comment =
        mgl_jinja_text_find(
            mgl_jinja_text_part(text, start, start + 4 < text.bytes ? start + 4 : text.bytes),
            MGL_JINJA_LITERAL("<!--"), 0) == 0;
    size_t end = is_comment ? mgl_jinja_text_find(text, MGL_JINJA_LITERAL("-->"), start + 4)
                            : mgl_jinja_text_find(text, MGL_JINJA_LITERAL(">"), start);
    if (end == SIZE_MAX) {
      break;
    }
    mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, at, start));
    at = end + (is_comment ? 3 : 1);
  }
  mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, at, text.bytes));
  return mgl_jinja_builder_finish(&builder, out);
}

// The character of "&name;" at text[at]; *length is what it takes. 0: no entity stands there.
static mgl_status read_entity(mgl_jinja_runtime *runtime, mgl_jinja_string text, size_t at,
                              size_t *length, int32_t *out) {
  static const struct {
    const char *name;
    int32_t code;
  } known[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
  *length = 0;
  mgl_jinja_string rest = mgl_jinja_text_part(text, at, text.bytes);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    size_t bytes = strlen(known[i].name);
    if (rest.bytes >= bytes && memcmp(rest.data, known[i].name, bytes) == 0) {
      *length = bytes;
      *out = known[i].code;
      return MGL_OK;
    }
  }
  char next = (char)(rest.bytes > 1 ? rest.data[1] : 0);
  if (rest.bytes > 3 && next == '#') {
    char digits[12] = {0};
    bool hex = (rest.data[2] | 0x20) == 'x';
    size_t start = hex ? 3 : 2;
    size_t end = start;
    while (end < rest.bytes && end - start < 8 &&
           strchr(hex ? "0123456789abcdefABCDEF" : "0123456789", rest.data[end]) != NULL &&
           rest.data[end] != 0) {
      digits[end - start] = rest.data[end];
      end++;
    }
    long code = strtol(digits, NULL, hex ? 16 : 10);
    bool is_plain = code >= 0x20 && code < 0x110000 && !(code >= 0x7f && code < 0xa0) &&
                    !(code >= 0xd800 && code < 0xe000) && (code & 0xfffe) != 0xfffe &&
                    !(code >= 0xfdd0 && code < 0xfdf0);
    if (end > start && is_plain && end < rest.bytes && rest.data[end] == ';') {
      *length = end + 1;
      *out = (int32_t)code;
      return MGL_OK;
    }
  }
  if (next == '#' || (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z')) {
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED,
                          "striptags: this entity is not supported: %.*s",
                          (int)(rest.bytes < 12 ? rest.bytes : 12), rest.data);
  }
  return MGL_OK;
}

static mgl_status unescape(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                           mgl_jinja_value *out) {
  mgl_jinja_builder builder = {.runtime = runtime};
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 8));
  for (size_t at = 0; at < text.bytes;) {
    size_t mark = mgl_jinja_text_find(text, MGL_JINJA_LITERAL("&"), at);
    size_t length = 0;
    int32_t code = 0;
    mark = mark == SIZE_MAX ? text.bytes : mark;
    mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, at, mark));
    if (mark == text.bytes) {
      break;
    }
    MGL_TRY(read_entity(runtime, text, mark, &length, &code));
    if (length == 0) {
      mgl_jinja_builder_add(&builder, MGL_JINJA_LITERAL("&"));
      length = 1;
    } else {
      mgl_jinja_builder_add_codepoint(&builder, code);
    }
    at = mark + length;
  }
  return mgl_jinja_builder_finish(&builder, out);
}

// Comments and tags away, white space to single spaces, entities to characters.
static mgl_status filter_striptags(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                   mgl_jinja_value *out) {
  mgl_jinja_string text;
  mgl_jinja_value plain;
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  MGL_TRY(remove_tags(runtime, text, &plain));
  mgl_jinja_value words;
  mgl_jinja_value joined;
  MGL_TRY(mgl_jinja_split_words(runtime, plain.string, &words));
  MGL_TRY(mgl_jinja_join(runtime, MGL_JINJA_LITERAL(" "), words, true, &joined));
  return unescape(runtime, joined.string, out);
}

// --- sizes ---------------------------------------------------------------------------------------

// Python's \w.
static bool is_word(int32_t c) {
  utf8proc_category_t category = utf8proc_category(c);
  return c == '_' || mgl_jinja_is_alphabetic(c) || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

static mgl_status filter_wordcount(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                   mgl_jinja_value *out) {
  mgl_jinja_string text;
  int64_t count = 0;
  bool inside = false;
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 2));
  for (size_t at = 0; at < text.bytes;) {
    int32_t c = 0;
    at += mgl_jinja_text_decode(text, at, &c);
    bool word = is_word(c);
    count += word && !inside;
    inside = word;
  }
  *out = mgl_jinja_int(count);
  return MGL_OK;
}

mgl_status mgl_jinja_pad(mgl_jinja_runtime *runtime, mgl_jinja_string text, int64_t width,
                         int32_t fill, char side, mgl_jinja_value *out) {
  mgl_jinja_builder builder = {.runtime = runtime};
  int64_t length = (int64_t)mgl_jinja_text_length(text);
  int64_t pad = width > length ? width - length : 0;
  // Python's rule for an odd rest in the middle.
  int64_t left = side == '<' ? 0 : side == '>' ? pad : pad / 2 + (pad & width & 1);
  MGL_TRY(mgl_jinja_charge(runtime, (size_t)pad / 8 + text.bytes / 64));
  if (pad > MGL_JINJA_MAX_PAD) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "a text padded to %lld characters is too long",
                          (long long)width);
  }
  mgl_jinja_builder_add_fill(&builder, fill, left);
  mgl_jinja_builder_add(&builder, text);
  mgl_jinja_builder_add_fill(&builder, fill, pad - left);
  return mgl_jinja_builder_finish(&builder, out);
}

static mgl_status filter_center(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                mgl_jinja_value *out) {
  int64_t width = 80;
  mgl_jinja_string text;
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &width));
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  return mgl_jinja_pad(runtime, text, width, ' ', '^', out);
}

// A cut text, which ends before a word unless words may be cut, and the end mark.
static mgl_status cut(mgl_jinja_runtime *runtime, mgl_jinja_value text, size_t length,
                      bool cuts_words, mgl_jinja_string end, mgl_jinja_value *out) {
  mgl_jinja_string kept =
      mgl_jinja_text_part(text.string, 0, mgl_jinja_text_offset(text.string, length));
  if (!cuts_words) {
    size_t space = mgl_jinja_text_find_last(kept, MGL_JINJA_LITERAL(" "));
    kept = mgl_jinja_text_part(kept, 0, space == SIZE_MAX ? kept.bytes : space);
  }
  mgl_jinja_value left = mgl_jinja_string_value(kept);
  left.safe = text.safe;
  return mgl_jinja_binary(runtime, '+', left, mgl_jinja_string_value(end), out);
}

static mgl_status filter_truncate(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                  mgl_jinja_value *out) {
  int64_t length = 255;
  int64_t leeway = 5;
  bool cuts_words = false;
  mgl_jinja_string end = MGL_JINJA_LITERAL("...");
  size_t found = 0;
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &length));
  mgl_jinja_bool_argument(call, 1, &cuts_words);
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 2, &end));
  if (call->bound[3].kind != MGL_JINJA_NONE) {
    MGL_TRY(mgl_jinja_integer_argument(runtime, call, 3, &leeway));
  }
  int64_t end_length = (int64_t)mgl_jinja_text_length(end);
  if (!mgl_jinja_length(call->self, &found) || length < end_length || leeway < 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT,
                          "truncate: expected a text, at least as many characters as end has and a "
                          "leeway from 0, found a %s, %lld and %lld",
                          mgl_jinja_type_name(call->self), (long long)length, (long long)leeway);
  }
  MGL_TRY(mgl_jinja_charge(runtime, found / 4));
  if ((int64_t)found <= length || (int64_t)found - length <= leeway) {
    *out = call->self;
    return MGL_OK;
  }
  if (call->self.kind != MGL_JINJA_STRING) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "truncate: expected a str, found a %s",
                          mgl_jinja_type_name(call->self));
  }
  return cut(runtime, call->self, (size_t)(length - end_length), cuts_words, end, out);
}

const mgl_jinja_builtin mgl_jinja_text_filters[] = {
    {"escape", "", 0, filter_escape},
    {"e", "", 0, filter_escape},
    {"forceescape", "", 0, filter_escape},
    {"striptags", "", 0, filter_striptags},
    {"wordcount", "", 0, filter_wordcount},
    {"center", "width", 0, filter_center},
    {"truncate", "length killwords end leeway", 0, filter_truncate},
    {"format", NULL, 0, mgl_jinja_filter_format},
    {NULL, NULL, 0, NULL},
};
