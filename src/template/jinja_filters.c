// Filters on single values: text, numbers, defaults, JSON.
//
// As in Jinja, a text filter takes any value and works on its str().
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_operators.h"

static bool is_given(const mgl_jinja_call *call, size_t idx) {
  return call->bound[idx].kind != MGL_JINJA_ABSENT && call->bound[idx].kind != MGL_JINJA_NONE;
}

// --- text ----------------------------------------------------------------------------------------

static mgl_status filter_case(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  const char *name = call->builtin->name;
  mgl_jinja_case how = strcmp(name, "upper") == 0   ? MGL_JINJA_CASE_UPPER
                       : strcmp(name, "lower") == 0 ? MGL_JINJA_CASE_LOWER
                       : strcmp(name, "title") == 0 ? MGL_JINJA_CASE_WORDS
                                                    : MGL_JINJA_CASE_CAPITALIZE;
  mgl_jinja_string text;
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  return mgl_jinja_change_case(runtime, text, how, out);
}

static mgl_status filter_trim(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  mgl_jinja_string text;
  mgl_jinja_string chars = {0};
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  if (is_given(call, 0)) {
    if (call->self.safe) {
      return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED,
                            "trim with characters on a |safe text is not supported");
    }
    MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &chars));
    MGL_TRY(mgl_jinja_charge(runtime, chars.bytes / 8 * (text.bytes / 8 + 1)));
  }
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 64));
  *out = mgl_jinja_string_value(
      mgl_jinja_text_strip(text, is_given(call, 0) ? &chars : NULL, true, true));
  return MGL_OK;
}

static mgl_status filter_replace(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  mgl_jinja_string text;
  mgl_jinja_string old;
  mgl_jinja_string by;
  int64_t count = -1;
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  MGL_TRY(mgl_jinja_to_text(runtime, call->bound[0], &old));
  MGL_TRY(mgl_jinja_to_text(runtime, call->bound[1], &by));
  if (is_given(call, 2)) {
    MGL_TRY(mgl_jinja_integer_argument(runtime, call, 2, &count));
  }
  return mgl_jinja_replace(runtime, text, old, by, count, out);
}

static mgl_status filter_string(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                mgl_jinja_value *out) {
  mgl_jinja_string text;
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  *out = mgl_jinja_string_value(text);
  return MGL_OK;
}

static mgl_status filter_safe(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  MGL_TRY(filter_string(runtime, call, out));
  out->safe = true;
  return MGL_OK;
}

static mgl_status repeat_space(mgl_jinja_runtime *runtime, int64_t count, mgl_jinja_string *out) {
  mgl_jinja_value text;
  MGL_TRY(mgl_jinja_binary(runtime, '*', mgl_jinja_string_value(MGL_JINJA_LITERAL(" ")),
                           mgl_jinja_int(count), &text));
  *out = text.string;
  return MGL_OK;
}

static mgl_status filter_indent(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                mgl_jinja_value *out) {
  bool first = false;
  bool blank = false;
  int64_t width = 4;
  mgl_jinja_string indent = {0};
  if (call->self.kind != MGL_JINJA_STRING) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "indent: expected a str, found a %s",
                          mgl_jinja_type_name(call->self));
  }
  mgl_jinja_bool_argument(call, 1, &first);
  mgl_jinja_bool_argument(call, 2, &blank);
  if (call->bound[0].kind == MGL_JINJA_STRING) {
    indent = call->bound[0].string;
  } else {
    MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &width));
    MGL_TRY(repeat_space(runtime, width, &indent));
  }
  // Jinja adds a newline before it splits, so that a last empty line counts.
  mgl_jinja_string text;
  mgl_jinja_value lines;
  MGL_TRY(mgl_jinja_text_concat(runtime, call->self.string, MGL_JINJA_LITERAL("\n"), &text));
  MGL_TRY(mgl_jinja_split_lines(runtime, text, false, &lines));
  mgl_jinja_builder builder = {.runtime = runtime};
  for (size_t i = 0; i < lines.list->count; i++) {
    mgl_jinja_string line = lines.list->items[i].string;
    mgl_jinja_builder_add(&builder, i == 0 ? MGL_JINJA_LITERAL("") : MGL_JINJA_LITERAL("\n"));
    if (i == 0 ? first : blank || line.bytes != 0) {
      mgl_jinja_builder_add(&builder, indent);
    }
    mgl_jinja_builder_add(&builder, line);
  }
  return mgl_jinja_builder_finish(&builder, out);
}

// --- numbers -------------------------------------------------------------------------------------

// A text as Python's int() and float() read it: white space around, underscores between digits.
// False if it does not fit or holds what strtod knows and Python does not (hexadecimal floats).
static bool clean_number(mgl_jinja_string text, char *out, size_t bytes) {
  text = mgl_jinja_text_strip(text, NULL, true, true);
  size_t used = 0;
  for (size_t i = 0; i < text.bytes; i++) {
    char c = text.data[i];
    bool between = i > 0 && i + 1 < text.bytes && text.data[i - 1] >= '0' &&
                   text.data[i - 1] <= '9' && text.data[i + 1] >= '0' && text.data[i + 1] <= '9';
    if (c == '_' && between) {
      continue;
    }
    if (used + 1 == bytes || c == 0 || c == 'x' || c == 'X' || c == '(') {
      return false;
    }
    out[used++] = c;
  }
  out[used] = 0;
  return used != 0;
}

static bool parse_float(mgl_jinja_string text, double *out) {
  char digits[512];
  if (!clean_number(text, digits, sizeof digits)) {
    return false;
  }
  char *end = NULL;
  *out = strtod(digits, &end);
  return *end == 0;
}

static mgl_status truncate_float(mgl_jinja_runtime *runtime, double number, mgl_jinja_value *out) {
  if (!(number > -0x1p63 && number < 0x1p63)) {
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "int: %g is beyond 64 bits", number);
  }
  *out = mgl_jinja_int((int64_t)number);
  return MGL_OK;
}

static mgl_status filter_int(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  int64_t base = 10;
  double number = 0;
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 1, &base));
  MGL_TRY(mgl_jinja_require_defined(runtime, call->self));
  if (base != 10) {
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "int: base %lld is not supported",
                          (long long)base);
  }
  if (mgl_jinja_is_integer(call->self)) {
    *out = mgl_jinja_int(mgl_jinja_as_integer(call->self));
    return MGL_OK;
  }
  if (call->self.kind == MGL_JINJA_FLOAT) {
    number = call->self.number;
    if (!isnan(number)) {
      return truncate_float(runtime, number, out);
    }
  } else if (call->self.kind == MGL_JINJA_STRING) {
    char digits[64];
    char *end = NULL;
    if (clean_number(call->self.string, digits, sizeof digits)) {
      errno = 0;
      long long integer = strtoll(digits, &end, 10);
      if (*end == 0 && errno == 0) {
        *out = mgl_jinja_int(integer);
        return MGL_OK;
      }
    }
    if (parse_float(call->self.string, &number) && isfinite(number)) {
      return truncate_float(runtime, number, out);
    }
  }
  *out = call->bound[0].kind == MGL_JINJA_ABSENT ? mgl_jinja_int(0) : call->bound[0];
  return MGL_OK;
}

static mgl_status filter_float(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  double number = 0;
  MGL_TRY(mgl_jinja_require_defined(runtime, call->self));
  if (mgl_jinja_as_number(call->self, &number) ||
      (call->self.kind == MGL_JINJA_STRING && parse_float(call->self.string, &number))) {
    *out = mgl_jinja_float(number);
  } else {
    *out = call->bound[0].kind == MGL_JINJA_ABSENT ? mgl_jinja_float(0) : call->bound[0];
  }
  return MGL_OK;
}

static mgl_status filter_abs(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  if (call->self.kind == MGL_JINJA_FLOAT) {
    *out = mgl_jinja_float(fabs(call->self.number));
    return MGL_OK;
  }
  bool negative = mgl_jinja_is_integer(call->self) && mgl_jinja_as_integer(call->self) < 0;
  return mgl_jinja_unary(runtime, negative ? '-' : '+', call->self, out);
}

static mgl_status filter_round(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  int64_t precision = 0;
  mgl_jinja_string method = MGL_JINJA_LITERAL("common");
  double number = 0;
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &precision));
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 1, &method));
  if (!mgl_jinja_as_number(call->self, &number) || precision < 0 || precision > 15) {
    return mgl_jinja_fail(
        runtime, MGL_ERR_ARGUMENT,
        "round: expected a number and a precision of 0 to 15, found a %s and %lld",
        mgl_jinja_type_name(call->self), (long long)precision);
  }
  if (mgl_jinja_text_is(method, "common")) {
    if (mgl_jinja_is_integer(call->self)) {
      *out = mgl_jinja_int(mgl_jinja_as_integer(call->self));
      return MGL_OK;
    }
    char digits[400];  // printf rounds the exact binary value, half to even, as Python does
    (void)snprintf(digits, sizeof digits, "%.*f", (int)precision, number);
    *out = mgl_jinja_float(strtod(digits, NULL));
    return MGL_OK;
  }
  bool up = mgl_jinja_text_is(method, "ceil");
  if (!up && !mgl_jinja_text_is(method, "floor")) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "round: the method is common, ceil or floor");
  }
  double scale = pow(10, (double)precision);
  double scaled = number * scale;
  if (!isfinite(scaled)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "round: expected a finite number");
  }
  // Python's ceil gives an int, which has no negative zero.
  *out = mgl_jinja_float(((up ? ceil(scaled) : floor(scaled)) + 0.0) / scale);
  return MGL_OK;
}

// --- defaults and JSON ---------------------------------------------------------------------------

static mgl_status filter_default(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  (void)runtime;
  bool falsy_too = false;
  mgl_jinja_bool_argument(call, 1, &falsy_too);
  bool replaced =
      call->self.kind == MGL_JINJA_UNDEFINED || (falsy_too && !mgl_jinja_is_true(call->self));
  mgl_jinja_value fallback = call->bound[0].kind == MGL_JINJA_ABSENT
                                 ? mgl_jinja_string_value(MGL_JINJA_LITERAL(""))
                                 : call->bound[0];
  *out = replaced ? fallback : call->self;
  return MGL_OK;
}

// An attribute only: a dict's keys are none.
static mgl_status filter_attr(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  mgl_jinja_string name = {0};
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &name));
  MGL_TRY(mgl_jinja_require_defined(runtime, call->self));
  if (call->self.kind == MGL_JINJA_SELF ||
      (call->self.kind == MGL_JINJA_DICT && mgl_jinja_find_method(call->self, name) == NULL)) {
    *out = mgl_jinja_undefined(name);
    return MGL_OK;
  }
  return mgl_jinja_get_attribute(runtime, call->self, name, out);
}

// separators=(",", ":").
static mgl_status read_separators(mgl_jinja_runtime *runtime, mgl_jinja_value value,
                                  mgl_jinja_json_options *options) {
  bool is_pair = (value.kind == MGL_JINJA_TUPLE || value.kind == MGL_JINJA_LIST) &&
                 value.list->count == 2 && value.list->items[0].kind == MGL_JINJA_STRING &&
                 value.list->items[1].kind == MGL_JINJA_STRING;
  if (!is_pair) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "tojson: separators are a pair of str");
  }
  options->item_separator = value.list->items[0].string;
  options->key_separator = value.list->items[1].string;
  return MGL_OK;
}

// transformers' tojson: json.dumps without escapes for what is beyond ASCII.
static mgl_status filter_tojson(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                mgl_jinja_value *out) {
  mgl_jinja_json_options options = {
      .item_separator = MGL_JINJA_LITERAL(", "),
      .key_separator = MGL_JINJA_LITERAL(": "),
  };
  mgl_jinja_bool_argument(call, 0, &options.ascii);
  mgl_jinja_bool_argument(call, 3, &options.sort_keys);
  if (is_given(call, 1)) {
    options.pretty = true;
    options.item_separator = MGL_JINJA_LITERAL(",");
    if (call->bound[1].kind == MGL_JINJA_STRING) {
      options.indent = call->bound[1].string;
    } else {
      int64_t width = 0;
      MGL_TRY(mgl_jinja_integer_argument(runtime, call, 1, &width));
      MGL_TRY(repeat_space(runtime, width, &options.indent));
    }
  }
  if (is_given(call, 2)) {
    MGL_TRY(read_separators(runtime, call->bound[2], &options));
  }
  return mgl_jinja_to_json(runtime, call->self, &options, out);
}

const mgl_jinja_builtin mgl_jinja_filters[] = {
    {"trim", "chars", 0, filter_trim},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson},
    {"default", "default_value boolean", 0, filter_default},
    {"d", "default_value boolean", 0, filter_default},
    {"attr", "name", 1, filter_attr},
    {"upper", "", 0, filter_case},
    {"lower", "", 0, filter_case},
    {"capitalize", "", 0, filter_case},
    {"title", "", 0, filter_case},
    {"replace", "old new count", 2, filter_replace},
    {"string", "", 0, filter_string},
    {"safe", "", 0, filter_safe},
    {"indent", "width first blank", 0, filter_indent},
    {"int", "default base", 0, filter_int},
    {"float", "default", 0, filter_float},
    {"abs", "", 0, filter_abs},
    {"round", "precision method", 0, filter_round},
    {NULL, NULL, 0, NULL},
};
