// Methods of strings, dicts and lists, and the text functions that filters share with them.
//
// Methods that change a list or dict exist in Python and are blocked by Jinja's immutable sandbox;
// here they are table entries without a function.
#include <string.h>
#include <utf8proc.h>

#include "template/jinja_builtins.h"

// A search from the right compares at every place.
static mgl_status charge_search(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                                mgl_jinja_string part) {
  return mgl_jinja_charge(runtime, text.bytes / 16 + text.bytes / 256 * (part.bytes / 64));
}

static mgl_status charge_text(mgl_jinja_runtime *runtime, mgl_jinja_string text) {
  return mgl_jinja_charge(runtime, text.bytes / 64);
}

// --- case ----------------------------------------------------------------------------------------

enum {
  SHARP_S = 0xdf,
  DOTTED_CAPITAL_I = 0x130,
  COMBINING_DOT = 0x307,
  CAPITAL_SIGMA = 0x3a3,
  FINAL_SIGMA = 0x3c2
};

static void add_upper(mgl_jinja_builder *builder, int32_t c, bool title) {
  if (c == SHARP_S) {
    mgl_jinja_builder_add(builder, title ? MGL_JINJA_LITERAL("Ss") : MGL_JINJA_LITERAL("SS"));
    return;
  }
  mgl_jinja_builder_add_codepoint(builder, title ? utf8proc_totitle(c) : utf8proc_toupper(c));
}

// A capital sigma becomes a final one behind a letter and before none.
static void add_lower(mgl_jinja_builder *builder, mgl_jinja_string text, size_t at, size_t next,
                      int32_t c) {
  int32_t other = 0;
  if (c == CAPITAL_SIGMA && at > 0) {
    (void)mgl_jinja_text_decode_before(text, at, &other);
    bool behind_letter = mgl_jinja_is_alphabetic(other);
    other = 0;
    if (next < text.bytes) {
      (void)mgl_jinja_text_decode(text, next, &other);
    }
    if (behind_letter && !mgl_jinja_is_alphabetic(other)) {
      mgl_jinja_builder_add_codepoint(builder, FINAL_SIGMA);
      return;
    }
  }
  mgl_jinja_builder_add_codepoint(builder, c == DOTTED_CAPITAL_I ? 'i' : utf8proc_tolower(c));
  if (c == DOTTED_CAPITAL_I) {
    mgl_jinja_builder_add_codepoint(builder, COMBINING_DOT);
  }
}

// True if a letter behind `previous` starts a word, for the forms that have words.
static bool starts_word(mgl_jinja_case how, int32_t previous) {
  if (how == MGL_JINJA_CASE_TITLE) {
    return !mgl_jinja_is_upper(previous) && !mgl_jinja_is_lower(previous) &&
           utf8proc_category(previous) != UTF8PROC_CATEGORY_LT;
  }
  return mgl_jinja_is_space(previous) ||
         (previous != 0 && strchr("-({[<", previous) != NULL && previous < 0x80);
}

mgl_status mgl_jinja_change_case(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                                 mgl_jinja_case how, mgl_jinja_value *out) {
  mgl_jinja_builder builder = {.runtime = runtime};
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 2));
  int32_t previous = 0;
  for (size_t at = 0; at < text.bytes;) {
    int32_t c = 0;
    size_t bytes = mgl_jinja_text_decode(text, at, &c);
    bool first = at == 0 || (how != MGL_JINJA_CASE_CAPITALIZE && starts_word(how, previous));
    if (how == MGL_JINJA_CASE_UPPER || (how != MGL_JINJA_CASE_LOWER && first)) {
      bool title = how == MGL_JINJA_CASE_CAPITALIZE || how == MGL_JINJA_CASE_TITLE;
      add_upper(&builder, c, title);
    } else {
      add_lower(&builder, text, at, at + bytes, c);
    }
    previous = c;
    at += bytes;
  }
  return mgl_jinja_builder_finish(&builder, out);
}

static mgl_status method_case(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  const char *name = call->builtin->name;
  mgl_jinja_case how = strcmp(name, "upper") == 0   ? MGL_JINJA_CASE_UPPER
                       : strcmp(name, "lower") == 0 ? MGL_JINJA_CASE_LOWER
                       : strcmp(name, "title") == 0 ? MGL_JINJA_CASE_TITLE
                                                    : MGL_JINJA_CASE_CAPITALIZE;
  return mgl_jinja_change_case(runtime, call->self.string, how, out);
}

// isupper, islower, isdigit, isalpha, isalnum, isspace, isascii.
static mgl_status method_is(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                            mgl_jinja_value *out) {
  const char *name = call->builtin->name + 2;
  mgl_jinja_string text = call->self.string;
  bool all = true;
  bool cased = false;
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 16));
  bool by_case = strcmp(name, "upper") == 0 || strcmp(name, "lower") == 0;
  for (size_t at = 0; at < text.bytes && all;) {
    int32_t c = 0;
    at += mgl_jinja_text_decode(text, at, &c);
    bool upper = mgl_jinja_is_upper(c);
    bool lower = mgl_jinja_is_lower(c);
    cased = cased || upper || lower;
    if (by_case) {
      all = name[0] == 'u' ? !lower : !upper;
    } else if (strcmp(name, "space") == 0) {
      all = mgl_jinja_is_space(c);
    } else if (strcmp(name, "ascii") == 0) {
      all = c < 0x80;
    } else {
      all = (strcmp(name, "digit") != 0 && mgl_jinja_is_alphabetic(c)) ||
            (strcmp(name, "alpha") != 0 && mgl_jinja_is_digit(c));
    }
  }
  bool empty_holds = strcmp(name, "ascii") == 0;
  *out = mgl_jinja_bool(all && (text.bytes != 0 || empty_holds) && (!by_case || cased));
  return MGL_OK;
}

// --- stripping, searching, replacing -------------------------------------------------------------

static mgl_status method_strip(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  char side = call->builtin->name[0];
  mgl_jinja_string chars = {0};
  bool has_chars = call->bound[0].kind != MGL_JINJA_ABSENT && call->bound[0].kind != MGL_JINJA_NONE;
  MGL_TRY(charge_text(runtime, call->self.string));
  if (has_chars) {
    MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &chars));
    MGL_TRY(mgl_jinja_charge(runtime, chars.bytes / 8 * (call->self.string.bytes / 8 + 1)));
  }
  *out = mgl_jinja_string_value(
      mgl_jinja_text_strip(call->self.string, has_chars ? &chars : NULL, side != 'r', side != 'l'));
  return MGL_OK;
}

static bool has_affix(mgl_jinja_string text, mgl_jinja_string affix, bool at_start) {
  if (affix.bytes > text.bytes) {
    return false;
  }
  size_t from = at_start ? 0 : text.bytes - affix.bytes;
  return mgl_jinja_text_equal(mgl_jinja_text_part(text, from, from + affix.bytes),
                              affix.bytes == 0 ? MGL_JINJA_LITERAL("") : affix);
}

// startswith and endswith: of one string or any of a tuple.
static mgl_status method_affix(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  bool at_start = call->builtin->name[0] == 's';
  mgl_jinja_value affix = call->bound[0];
  bool holds = false;
  if (affix.kind == MGL_JINJA_TUPLE) {
    MGL_TRY(mgl_jinja_charge(runtime, affix.list->count));
    for (size_t i = 0; i < affix.list->count && !holds; i++) {
      if (affix.list->items[i].kind != MGL_JINJA_STRING) {
        return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s: expected a tuple of str, found a %s",
                              call->builtin->name, mgl_jinja_type_name(affix.list->items[i]));
      }
      MGL_TRY(charge_text(runtime, affix.list->items[i].string));
      holds = has_affix(call->self.string, affix.list->items[i].string, at_start);
    }
  } else {
    mgl_jinja_string text = {0};
    MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &text));
    holds = has_affix(call->self.string, text, at_start);
  }
  *out = mgl_jinja_bool(holds);
  return MGL_OK;
}

static mgl_status method_remove_affix(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                      mgl_jinja_value *out) {
  bool at_start = strcmp(call->builtin->name, "removeprefix") == 0;
  mgl_jinja_string text = call->self.string;
  mgl_jinja_string affix = {0};
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &affix));
  if (has_affix(text, affix, at_start)) {
    text = at_start ? mgl_jinja_text_part(text, affix.bytes, text.bytes)
                    : mgl_jinja_text_part(text, 0, text.bytes - affix.bytes);
  }
  *out = mgl_jinja_string_value(text);
  return MGL_OK;
}

// find, rfind and index.
static mgl_status method_find(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  const char *name = call->builtin->name;
  mgl_jinja_string text = call->self.string;
  mgl_jinja_string part = {0};
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &part));
  MGL_TRY(charge_search(runtime, text, part));
  size_t at =
      name[0] == 'r' ? mgl_jinja_text_find_last(text, part) : mgl_jinja_text_find(text, part, 0);
  if (at == SIZE_MAX && name[0] == 'i') {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "index: the text does not occur");
  }
  *out = mgl_jinja_int(
      at == SIZE_MAX ? -1 : (int64_t)mgl_jinja_text_length(mgl_jinja_text_part(text, 0, at)));
  return MGL_OK;
}

static mgl_status method_count(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  mgl_jinja_string text = call->self.string;
  mgl_jinja_string part = {0};
  int64_t count = 0;
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &part));
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 16));
  if (part.bytes == 0) {
    count = (int64_t)mgl_jinja_text_length(text) + 1;
  }
  for (size_t at = 0; part.bytes != 0; count++) {
    at = mgl_jinja_text_find(text, part, at);
    if (at == SIZE_MAX) {
      break;
    }
    at += part.bytes;
  }
  *out = mgl_jinja_int(count);
  return MGL_OK;
}

mgl_status mgl_jinja_replace(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                             mgl_jinja_string old, mgl_jinja_string by, int64_t count,
                             mgl_jinja_value *out) {
  mgl_jinja_builder builder = {.runtime = runtime};
  size_t done = 0;
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 16));
  for (int64_t i = 0; count < 0 || i < count; i++) {
    if (old.bytes == 0) {  // Python puts the new text in front of every character, and at the end
      mgl_jinja_builder_add(&builder, by);
      if (done == text.bytes) {
        break;
      }
      size_t next = done + mgl_jinja_text_offset(mgl_jinja_text_part(text, done, text.bytes), 1);
      mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, done, next));
      done = next;
    } else {
      size_t at = mgl_jinja_text_find(text, old, done);
      if (at == SIZE_MAX) {
        break;
      }
      mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, done, at));
      mgl_jinja_builder_add(&builder, by);
      done = at + old.bytes;
    }
    MGL_TRY(builder.status);
  }
  mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, done, text.bytes));
  return mgl_jinja_builder_finish(&builder, out);
}

static mgl_status method_replace(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  mgl_jinja_string old = {0};
  mgl_jinja_string by = {0};
  int64_t count = -1;
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &old));
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 1, &by));
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 2, &count));
  return mgl_jinja_replace(runtime, call->self.string, old, by, count, out);
}

// --- splitting and joining -----------------------------------------------------------------------

static mgl_status add_part(mgl_jinja_runtime *runtime, mgl_jinja_value list,
                           mgl_jinja_string part) {
  MGL_TRY(mgl_jinja_charge(runtime, 1));
  return mgl_jinja_list_add(runtime, list.list, mgl_jinja_string_value(part));
}

static mgl_status reverse_list(mgl_jinja_value list) {
  for (size_t i = 0; i < list.list->count / 2; i++) {
    mgl_jinja_value swapped = list.list->items[i];
    list.list->items[i] = list.list->items[list.list->count - 1 - i];
    list.list->items[list.list->count - 1 - i] = swapped;
  }
  return MGL_OK;
}

// Offset of the first white space (or the first other character) from `at` on.
static size_t find_space(mgl_jinja_string text, size_t at, bool wanted) {
  while (at < text.bytes) {
    int32_t c = 0;
    size_t bytes = mgl_jinja_text_decode(text, at, &c);
    if (mgl_jinja_is_space(c) == wanted) {
      break;
    }
    at += bytes;
  }
  return at;
}

// split() at runs of white space.
static mgl_status split_words(mgl_jinja_runtime *runtime, mgl_jinja_string text, int64_t most,
                              mgl_jinja_value list) {
  size_t at = find_space(text, 0, false);
  for (int64_t i = 0; at < text.bytes; i++) {
    if (most >= 0 && i == most) {
      return add_part(runtime, list, mgl_jinja_text_part(text, at, text.bytes));
    }
    size_t end = find_space(text, at, true);
    MGL_TRY(add_part(runtime, list, mgl_jinja_text_part(text, at, end)));
    at = find_space(text, end, false);
  }
  return MGL_OK;
}

mgl_status mgl_jinja_split_words(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                                 mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 16));
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, out));
  return split_words(runtime, text, -1, *out);
}

static mgl_status split_words_from_right(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                                         int64_t most, mgl_jinja_value list) {
  text = mgl_jinja_text_strip(text, NULL, false, true);
  for (int64_t i = 0; text.bytes != 0 && !(most >= 0 && i == most); i++) {
    size_t start = text.bytes;
    while (start > 0) {
      int32_t c = 0;
      size_t bytes = mgl_jinja_text_decode_before(text, start, &c);
      if (mgl_jinja_is_space(c)) {
        break;
      }
      start -= bytes;
    }
    MGL_TRY(add_part(runtime, list, mgl_jinja_text_part(text, start, text.bytes)));
    text = mgl_jinja_text_strip(mgl_jinja_text_part(text, 0, start), NULL, false, true);
  }
  if (text.bytes != 0) {
    MGL_TRY(add_part(runtime, list, text));
  }
  return reverse_list(list);
}

static mgl_status split_at(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                           mgl_jinja_string separator, int64_t most, mgl_jinja_value list) {
  size_t done = 0;
  for (int64_t i = 0; most < 0 || i < most; i++) {
    size_t at = mgl_jinja_text_find(text, separator, done);
    if (at == SIZE_MAX) {
      break;
    }
    MGL_TRY(add_part(runtime, list, mgl_jinja_text_part(text, done, at)));
    done = at + separator.bytes;
  }
  return add_part(runtime, list, mgl_jinja_text_part(text, done, text.bytes));
}

static mgl_status split_at_from_right(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                                      mgl_jinja_string separator, int64_t most,
                                      mgl_jinja_value list) {
  for (int64_t i = 0; most < 0 || i < most; i++) {
    size_t at = mgl_jinja_text_find_last(text, separator);
    if (at == SIZE_MAX) {
      break;
    }
    MGL_TRY(add_part(runtime, list, mgl_jinja_text_part(text, at + separator.bytes, text.bytes)));
    text = mgl_jinja_text_part(text, 0, at);
  }
  MGL_TRY(add_part(runtime, list, text));
  return reverse_list(list);
}

static mgl_status method_split(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  bool from_right = call->builtin->name[0] == 'r';
  mgl_jinja_string text = call->self.string;
  mgl_jinja_string separator = {0};
  int64_t most = -1;
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 16));
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 1, &most));
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, out));
  if (call->bound[0].kind == MGL_JINJA_ABSENT || call->bound[0].kind == MGL_JINJA_NONE) {
    return from_right ? split_words_from_right(runtime, text, most, *out)
                      : split_words(runtime, text, most, *out);
  }
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &separator));
  MGL_TRY(charge_search(runtime, text, separator));
  if (separator.bytes == 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "split: the separator is empty");
  }
  return from_right ? split_at_from_right(runtime, text, separator, most, *out)
                    : split_at(runtime, text, separator, most, *out);
}

mgl_status mgl_jinja_split_lines(mgl_jinja_runtime *runtime, mgl_jinja_string text, bool keep_ends,
                                 mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 16));
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, out));
  size_t start = 0;
  for (size_t at = 0; at < text.bytes;) {
    int32_t c = 0;
    size_t end = at + mgl_jinja_text_decode(text, at, &c);
    if (mgl_jinja_is_line_end(c)) {
      end += c == '\r' && end < text.bytes && text.data[end] == '\n';
      MGL_TRY(add_part(runtime, *out, mgl_jinja_text_part(text, start, keep_ends ? end : at)));
      start = end;
    }
    at = end;
  }
  return start < text.bytes ? add_part(runtime, *out, mgl_jinja_text_part(text, start, text.bytes))
                            : MGL_OK;
}

static mgl_status method_splitlines(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                    mgl_jinja_value *out) {
  bool keep_ends = false;
  mgl_jinja_bool_argument(call, 0, &keep_ends);
  return mgl_jinja_split_lines(runtime, call->self.string, keep_ends, out);
}

// partition and rpartition: (before, separator, behind).
static mgl_status method_partition(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                   mgl_jinja_value *out) {
  bool from_right = call->builtin->name[0] == 'r';
  mgl_jinja_string text = call->self.string;
  mgl_jinja_string separator = {0};
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &separator));
  MGL_TRY(charge_search(runtime, text, separator));
  if (separator.bytes == 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "partition: the separator is empty");
  }
  size_t at = from_right ? mgl_jinja_text_find_last(text, separator)
                         : mgl_jinja_text_find(text, separator, 0);
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_TUPLE, out));
  mgl_jinja_string empty = MGL_JINJA_LITERAL("");
  if (at == SIZE_MAX) {
    MGL_TRY(add_part(runtime, *out, from_right ? empty : text));
    MGL_TRY(add_part(runtime, *out, empty));
    return add_part(runtime, *out, from_right ? text : empty);
  }
  MGL_TRY(add_part(runtime, *out, mgl_jinja_text_part(text, 0, at)));
  MGL_TRY(add_part(runtime, *out, separator));
  return add_part(runtime, *out, mgl_jinja_text_part(text, at + separator.bytes, text.bytes));
}

mgl_status mgl_jinja_join(mgl_jinja_runtime *runtime, mgl_jinja_string separator,
                          mgl_jinja_value items, bool strings_only, mgl_jinja_value *out) {
  mgl_jinja_builder builder = {.runtime = runtime};
  mgl_jinja_cursor cursor;
  MGL_TRY(mgl_jinja_iterate(runtime, items, &cursor));
  for (bool first = true;; first = false) {
    mgl_jinja_value item;
    mgl_jinja_string text;
    bool more = false;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &item, &more));
    if (!more) {
      return mgl_jinja_builder_finish(&builder, out);
    }
    if (strings_only && item.kind != MGL_JINJA_STRING) {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "join: expected str items, found a %s",
                            mgl_jinja_type_name(item));
    }
    MGL_TRY(mgl_jinja_to_text(runtime, item, &text));
    mgl_jinja_builder_add(&builder, first ? MGL_JINJA_LITERAL("") : separator);
    mgl_jinja_builder_add(&builder, text);
  }
}

static mgl_status method_join(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  return mgl_jinja_join(runtime, call->self.string, call->bound[0], true, out);
}

// center, ljust and rjust.
static mgl_status method_pad(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  char name = call->builtin->name[0];
  int64_t width = 0;
  int32_t fill = ' ';
  mgl_jinja_string text = MGL_JINJA_LITERAL(" ");
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &width));
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 1, &text));
  if (mgl_jinja_text_length(text) != 1) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s: expected one character to fill with",
                          call->builtin->name);
  }
  (void)mgl_jinja_text_decode(text, 0, &fill);
  char side = (char)(name == 'c' ? '^' : name == 'l' ? '<' : '>');
  return mgl_jinja_pad(runtime, call->self.string, width, fill, side, out);
}

// Zeros behind the sign.
static mgl_status method_zfill(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  int64_t width = 0;
  mgl_jinja_value padded;
  mgl_jinja_string text = call->self.string;
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &width));
  size_t sign = text.bytes != 0 && (text.data[0] == '-' || text.data[0] == '+') ? 1 : 0;
  width = width < (int64_t)sign ? 0 : width - (int64_t)sign;
  MGL_TRY(mgl_jinja_pad(runtime, mgl_jinja_text_part(text, sign, text.bytes), width, '0', '>',
                        &padded));
  mgl_jinja_string joined;
  MGL_TRY(
      mgl_jinja_text_concat(runtime, mgl_jinja_text_part(text, 0, sign), padded.string, &joined));
  *out = mgl_jinja_string_value(joined);
  return MGL_OK;
}

// --- dicts and lists -----------------------------------------------------------------------------

static mgl_status method_view(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  char name = call->builtin->name[0];
  mgl_jinja_view view = name == 'k'   ? MGL_JINJA_VIEW_KEYS
                        : name == 'v' ? MGL_JINJA_VIEW_VALUES
                                      : MGL_JINJA_VIEW_ITEMS;
  return mgl_jinja_dict_view(runtime, call->self.dict, view, out);
}

static mgl_status method_get(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  mgl_jinja_value *found = NULL;
  if (!mgl_jinja_is_hashable(call->bound[0])) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "get: a %s cannot be a dict key",
                          mgl_jinja_type_name(call->bound[0]));
  }
  MGL_TRY(mgl_jinja_dict_find(runtime, call->self.dict, call->bound[0], &found));
  *out = found != NULL                             ? *found
         : call->bound[1].kind == MGL_JINJA_ABSENT ? mgl_jinja_none()
                                                   : call->bound[1];
  return MGL_OK;
}

static mgl_status method_copy(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  (void)runtime;
  *out = call->self;  // nothing can change the original
  return MGL_OK;
}

// list.count and list.index.
static mgl_status method_count_items(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                     mgl_jinja_value *out) {
  bool wants_index = call->builtin->name[0] == 'i';
  int64_t count = 0;
  for (size_t i = 0; i < call->self.list->count; i++) {
    bool same = false;
    MGL_TRY(mgl_jinja_equal(runtime, call->self.list->items[i], call->bound[0], &same));
    if (same && wants_index) {
      *out = mgl_jinja_int((int64_t)i);
      return MGL_OK;
    }
    count += same;
  }
  if (wants_index) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "index: the value is not in the list");
  }
  *out = mgl_jinja_int(count);
  return MGL_OK;
}

// --- tables --------------------------------------------------------------------------------------

const mgl_jinja_builtin mgl_jinja_string_methods[] = {
    {"strip", "chars", 0, method_strip},
    {"lstrip", "chars", 0, method_strip},
    {"rstrip", "chars", 0, method_strip},
    {"split", "sep maxsplit", 0, method_split},
    {"rsplit", "sep maxsplit", 0, method_split},
    {"splitlines", "keepends", 0, method_splitlines},
    {"partition", "sep", 1, method_partition},
    {"rpartition", "sep", 1, method_partition},
    {"join", "iterable", 1, method_join},
    {"startswith", "prefix", 1, method_affix},
    {"endswith", "suffix", 1, method_affix},
    {"removeprefix", "prefix", 1, method_remove_affix},
    {"removesuffix", "suffix", 1, method_remove_affix},
    {"upper", "", 0, method_case},
    {"lower", "", 0, method_case},
    {"title", "", 0, method_case},
    {"capitalize", "", 0, method_case},
    {"replace", "old new count", 2, method_replace},
    {"find", "sub", 1, method_find},
    {"rfind", "sub", 1, method_find},
    {"index", "sub", 1, method_find},
    {"count", "sub", 1, method_count},
    {"isupper", "", 0, method_is},
    {"islower", "", 0, method_is},
    {"isdigit", "", 0, method_is},
    {"isalpha", "", 0, method_is},
    {"isalnum", "", 0, method_is},
    {"isspace", "", 0, method_is},
    {"isascii", "", 0, method_is},
    {"center", "width fillchar", 1, method_pad},
    {"ljust", "width fillchar", 1, method_pad},
    {"rjust", "width fillchar", 1, method_pad},
    {"zfill", "width", 1, method_zfill},
    {"format", NULL, 0, mgl_jinja_method_format},
    {"casefold", NULL, 0, NULL},
    {"encode", NULL, 0, NULL},
    {"expandtabs", NULL, 0, NULL},
    {"format_map", NULL, 0, NULL},
    {"isdecimal", NULL, 0, NULL},
    {"isidentifier", NULL, 0, NULL},
    {"isnumeric", NULL, 0, NULL},
    {"isprintable", NULL, 0, NULL},
    {"istitle", NULL, 0, NULL},
    {"maketrans", NULL, 0, NULL},
    {"rindex", NULL, 0, NULL},
    {"swapcase", NULL, 0, NULL},
    {"translate", NULL, 0, NULL},
    {NULL, NULL, 0, NULL},
};

const mgl_jinja_builtin mgl_jinja_dict_methods[] = {
    {"items", "", 0, method_view},  {"keys", "", 0, method_view},
    {"values", "", 0, method_view}, {"get", "key default", 1, method_get},
    {"copy", "", 0, method_copy},   {"clear", NULL, 0, NULL},
    {"fromkeys", NULL, 0, NULL},    {"pop", NULL, 0, NULL},
    {"popitem", NULL, 0, NULL},     {"setdefault", NULL, 0, NULL},
    {"update", NULL, 0, NULL},      {NULL, NULL, 0, NULL},
};

const mgl_jinja_builtin mgl_jinja_list_methods[] = {
    {"count", "value", 1, method_count_items},
    {"index", "value", 1, method_count_items},
    {"copy", "", 0, method_copy},
    {"append", NULL, 0, NULL},
    {"clear", NULL, 0, NULL},
    {"extend", NULL, 0, NULL},
    {"insert", NULL, 0, NULL},
    {"pop", NULL, 0, NULL},
    {"remove", NULL, 0, NULL},
    {"reverse", NULL, 0, NULL},
    {"sort", NULL, 0, NULL},
    {NULL, NULL, 0, NULL},
};
