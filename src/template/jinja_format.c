// Text made by a format: "%5.2f" % value (the operator and the filter format) and "{:>5}".format().
//
// Both end in one function that lays out a number or a text by a spec. Numbers go through snprintf,
// whose digits are Python's. What Python can and this cannot is refused: widths and precisions
// beyond MAX_SPEC, grouped digits behind zeros, %n, and |safe texts as formats, which would escape.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_operators.h"

enum { MAX_SPEC = 1000, MAX_DIGITS = 1500 };

typedef struct spec {
  int32_t fill;
  char align;  // '<', '>', '^', '=' (between sign and digits); 0: the type's own
  char sign;   // '+', ' ' or 0
  bool alternate;
  bool zero;
  int64_t width;
  char group;         // ',' or '_'; 0: none
  int64_t precision;  // -1: none
  char type;          // 0: the value's own
} spec;

static mgl_status fail_spec(mgl_jinja_runtime *runtime, mgl_status status, const char *what,
                            mgl_jinja_value value) {
  return mgl_jinja_fail(runtime, status, "format: %s for a %s", what, mgl_jinja_type_name(value));
}

// --- laying out ----------------------------------------------------------------------------------

// `head` (a sign, a prefix) stays in front of what fills the width between them for '='.
static void add_aligned(mgl_jinja_builder *builder, const spec *s, char align,
                        mgl_jinja_string head, mgl_jinja_string body) {
  int64_t length = (int64_t)(mgl_jinja_text_length(head) + mgl_jinja_text_length(body));
  int64_t pad = s->width > length ? s->width - length : 0;
  int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
  mgl_jinja_builder_add_fill(builder, s->fill, align == '=' ? 0 : left);
  mgl_jinja_builder_add(builder, head);
  mgl_jinja_builder_add_fill(builder, s->fill, align == '=' ? pad : 0);
  mgl_jinja_builder_add(builder, body);
  mgl_jinja_builder_add_fill(builder, s->fill, pad - left);
}

static void add_text(mgl_jinja_builder *builder, const spec *s, mgl_jinja_string text) {
  if (s->precision >= 0) {
    text = mgl_jinja_text_part(text, 0, mgl_jinja_text_offset(text, (size_t)s->precision));
  }
  add_aligned(builder, s, s->align == 0 ? '<' : s->align, MGL_JINJA_LITERAL(""), text);
}

// Puts separators between the digits of the whole part, from its end.
static mgl_jinja_string group_digits(mgl_jinja_string digits, char mark, char *out) {
  size_t whole = 0;
  while (whole < digits.bytes && strchr(".e", digits.data[whole]) == NULL) {
    whole++;
  }
  size_t used = 0;
  for (size_t i = 0; i < digits.bytes; i++) {
    if (i > 0 && i < whole && (whole - i) % 3 == 0) {
      out[used++] = mark;
    }
    out[used++] = digits.data[i];
  }
  return (mgl_jinja_string){out, used};
}

// Digits without their sign.
static mgl_status add_number(mgl_jinja_builder *builder, const spec *s, bool negative,
                             const char *prefix, mgl_jinja_string digits) {
  char head[8];
  char grouped[MAX_DIGITS * 2];
  (void)snprintf(head, sizeof head, "%s%s",
                 negative         ? "-"
                 : s->sign == '+' ? "+"
                 : s->sign == ' ' ? " "
                                  : "",
                 prefix);
  if (s->group != 0) {
    if (s->fill == '0' && s->width > 0) {
      return mgl_jinja_fail(builder->runtime, MGL_ERR_UNSUPPORTED,
                            "format: grouped digits behind zeros are not supported");
    }
    digits = group_digits(digits, s->group, grouped);
  }
  add_aligned(builder, s, s->align == 0 ? '>' : s->align, (mgl_jinja_string){head, strlen(head)},
              digits);
  return MGL_OK;
}

static mgl_status add_integer(mgl_jinja_builder *builder, const spec *s, int64_t value,
                              bool has_precision) {
  char digits[MAX_DIGITS];
  uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  char type = (char)(s->type | 0x20);
  unsigned base = type == 'x' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  const char *prefix = !s->alternate || base == 10 ? ""
                       : s->type == 'X'            ? "0X"
                       : base == 16                ? "0x"
                       : base == 8                 ? "0o"
                                                   : "0b";
  size_t at = sizeof digits;
  do {
    digits[--at] = (s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[left % base];
    left /= base;
  } while (left != 0);
  while (has_precision && (int64_t)(sizeof digits - at) < s->precision) {
    digits[--at] = '0';
  }
  if (s->group != 0 && base != 10) {
    return mgl_jinja_fail(builder->runtime, MGL_ERR_UNSUPPORTED,
                          "format: grouped digits are supported for decimal numbers only");
  }
  return add_number(builder, s, value < 0, prefix,
                    (mgl_jinja_string){digits + at, sizeof digits - at});
}

static mgl_status add_double(mgl_jinja_builder *builder, const spec *s, double value) {
  char digits[MAX_DIGITS];
  char pattern[8];
  bool percent = s->type == '%';
  double size = fabs(percent ? value * 100 : value);
  (void)snprintf(pattern, sizeof pattern, "%%%s.*%c", s->alternate ? "#" : "",
                 percent ? 'f' : s->type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  int bytes = snprintf(digits, sizeof digits - 1, pattern,
                       (int)(s->precision < 0 ? 6 : s->precision), size);
#pragma GCC diagnostic pop
  if (bytes < 0 || (size_t)bytes >= sizeof digits - 1) {
    return mgl_jinja_fail(builder->runtime, MGL_ERR_UNSUPPORTED, "format: too many digits");
  }
  if (percent) {
    digits[bytes++] = '%';
  }
  return add_number(builder, s, signbit(value) != 0 && !isnan(value), "",
                    (mgl_jinja_string){digits, (size_t)bytes});
}

static mgl_status add_character(mgl_jinja_builder *builder, const spec *s, mgl_jinja_value value) {
  char bytes[MGL_JINJA_UTF8_BYTES];
  mgl_jinja_string text = {bytes, 0};
  if (value.kind == MGL_JINJA_STRING && mgl_jinja_text_length(value.string) == 1) {
    text = value.string;
  } else if (mgl_jinja_is_integer(value)) {
    int64_t code = mgl_jinja_as_integer(value);
    if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      return fail_spec(builder->runtime, MGL_ERR_ARGUMENT, "a code point out of range", value);
    }
    text.bytes = mgl_jinja_text_encode((int32_t)code, bytes);
  } else {
    return fail_spec(builder->runtime, MGL_ERR_ARGUMENT, "c needs one character", value);
  }
  add_aligned(builder, s, s->align == 0 ? '<' : s->align, MGL_JINJA_LITERAL(""), text);
  return MGL_OK;
}

static mgl_status check_size(mgl_jinja_runtime *runtime, const spec *s) {
  if (s->width > MAX_SPEC || s->precision > MAX_SPEC) {
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED,
                          "format: a width or precision beyond %d is not supported", MAX_SPEC);
  }
  return MGL_OK;
}

// The repr of a value, with what is beyond ASCII escaped for 'a'.
static mgl_status to_repr(mgl_jinja_runtime *runtime, mgl_jinja_value value, char how,
                          mgl_jinja_string *out) {
  mgl_jinja_value text;
  if (how == 'a') {
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "format: ascii() is not supported");
  }
  if (how != 'r') {
    return mgl_jinja_to_text(runtime, value, out);
  }
  MGL_TRY(mgl_jinja_to_repr(runtime, value, &text));
  *out = text.string;
  return MGL_OK;
}

// --- percent -------------------------------------------------------------------------------------

typedef struct percent {
  mgl_jinja_string format;
  size_t at;
  mgl_jinja_value values;
  bool is_tuple;  // else `values` is the one value
  bool is_map;    // or has values by names
  size_t used;    // of them
  mgl_jinja_builder builder;
} percent;

static mgl_status fail_format(const percent *p) {
  return mgl_jinja_fail(p->builder.runtime, MGL_ERR_ARGUMENT, "format: a malformed %% in \"%.*s\"",
                        (int)(p->format.bytes < 60 ? p->format.bytes : 60), p->format.data);
}

static char peek(const percent *p) {
  return p->at < p->format.bytes ? p->format.data[p->at] : 0;
}

static mgl_status next_value(percent *p, mgl_jinja_value *out) {
  size_t count = p->is_tuple ? p->values.list->count : 1;
  if (p->used >= count) {
    return mgl_jinja_fail(p->builder.runtime, MGL_ERR_ARGUMENT,
                          "format: not enough values for \"%.*s\"",
                          (int)(p->format.bytes < 60 ? p->format.bytes : 60), p->format.data);
  }
  *out = p->is_tuple ? p->values.list->items[p->used] : p->values;
  p->used++;
  return MGL_OK;
}

// A number of digits, or '*' for the next value.
static mgl_status read_size(percent *p, int64_t *out) {
  mgl_jinja_value value;
  if (peek(p) == '*') {
    p->at++;
    MGL_TRY(next_value(p, &value));
    if (!mgl_jinja_is_integer(value) || mgl_jinja_as_integer(value) < 0) {
      return fail_spec(p->builder.runtime, MGL_ERR_UNSUPPORTED, "* needs an int from 0", value);
    }
    *out = mgl_jinja_as_integer(value);
    return MGL_OK;
  }
  for (*out = 0; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
    *out = *out > MAX_SPEC ? *out : *out * 10 + (peek(p) - '0');
  }
  return MGL_OK;
}

// "(name)flags width.precision", up to the type.
static mgl_status read_percent_spec(percent *p, spec *s, mgl_jinja_value *named) {
  if (peek(p) == '(') {
    size_t start = ++p->at;
    for (size_t depth = 1; p->at < p->format.bytes; p->at++) {
      depth += (peek(p) == '(') - (size_t)(peek(p) == ')');
      if (depth == 0) {
        break;
      }
    }
    if (peek(p) != ')' || p->values.kind != MGL_JINJA_DICT) {
      return fail_format(p);
    }
    mgl_jinja_value key = mgl_jinja_string_value(mgl_jinja_text_part(p->format, start, p->at++));
    mgl_jinja_value *found = NULL;
    MGL_TRY(mgl_jinja_dict_find(p->builder.runtime, p->values.dict, key, &found));
    if (found == NULL) {
      return fail_format(p);
    }
    *named = *found;
  }
  for (; peek(p) != 0 && strchr("-+ #0", peek(p)) != NULL; p->at++) {
    char flag = peek(p);
    s->align = flag == '-' ? '<' : s->align;
    s->sign = flag == '+' || (flag == ' ' && s->sign != '+') ? flag : s->sign;
    s->alternate = s->alternate || flag == '#';
    s->zero = s->zero || flag == '0';
  }
  MGL_TRY(read_size(p, &s->width));
  if (peek(p) == '.') {
    p->at++;
    MGL_TRY(read_size(p, &s->precision));
  }
  while (peek(p) != 0 && strchr("hlL", peek(p)) != NULL) {
    p->at++;
  }
  return check_size(p->builder.runtime, s);
}

static mgl_status add_percent_number(percent *p, spec *s, mgl_jinja_value value) {
  double number = 0;
  bool is_whole = strchr("diuoxX", s->type) != NULL;
  if (s->zero && s->align != '<') {
    s->fill = '0';
    s->align = '=';
  }
  if (!mgl_jinja_as_number(value, &number)) {
    return fail_spec(p->builder.runtime, MGL_ERR_ARGUMENT, "a number is needed", value);
  }
  if (!is_whole) {
    return add_double(&p->builder, s, number);
  }
  if (value.kind == MGL_JINJA_FLOAT) {
    if (strchr("oxX", s->type) != NULL || !isfinite(number)) {
      return fail_spec(p->builder.runtime, MGL_ERR_ARGUMENT, "an int is needed", value);
    }
    if (!(number > -0x1p63 && number < 0x1p63)) {
      return fail_spec(p->builder.runtime, MGL_ERR_UNSUPPORTED, "beyond 64 bits", value);
    }
    value = mgl_jinja_int((int64_t)number);
  }
  return add_integer(&p->builder, s, mgl_jinja_as_integer(value), s->precision >= 0);
}

// What stands behind a '%'.
static mgl_status add_percent(percent *p) {
  spec s = {.fill = ' ', .align = '>', .precision = -1};
  mgl_jinja_value value = {.kind = MGL_JINJA_ABSENT};
  MGL_TRY(read_percent_spec(p, &s, &value));
  s.type = peek(p);
  p->at++;
  if (s.type == '%') {
    mgl_jinja_builder_add(&p->builder, MGL_JINJA_LITERAL("%"));
    return MGL_OK;
  }
  if (s.type == 0 || strchr("sracdiuoxXeEfFgG", s.type) == NULL) {
    return fail_format(p);
  }
  if (value.kind == MGL_JINJA_ABSENT) {
    MGL_TRY(next_value(p, &value));
  }
  if (s.type == 'c') {
    return add_character(&p->builder, &s, value);
  }
  if (strchr("sra", s.type) != NULL) {
    mgl_jinja_string text;
    MGL_TRY(to_repr(p->builder.runtime, value, s.type, &text));
    add_text(&p->builder, &s, text);
    return p->builder.status;
  }
  return add_percent_number(p, &s, value);
}

mgl_status mgl_jinja_format_percent(mgl_jinja_runtime *runtime, mgl_jinja_value format,
                                    mgl_jinja_value values, mgl_jinja_value *out) {
  percent p = {.format = format.string, .values = values, .builder = {.runtime = runtime}};
  if (format.safe) {
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED,
                          "a |safe text as a format escapes its values: not supported");
  }
  p.is_tuple = values.kind == MGL_JINJA_TUPLE;
  // Python takes all of these for a mapping, whose values need not be used.
  p.is_map = values.kind == MGL_JINJA_DICT || values.kind == MGL_JINJA_LIST ||
             values.kind == MGL_JINJA_RANGE || values.kind == MGL_JINJA_UNDEFINED ||
             values.kind == MGL_JINJA_SELF;
  MGL_TRY(mgl_jinja_charge(runtime, format.string.bytes / 8));
  while (p.at < p.format.bytes) {
    size_t end = mgl_jinja_text_find(p.format, MGL_JINJA_LITERAL("%"), p.at);
    end = end == SIZE_MAX ? p.format.bytes : end;
    mgl_jinja_builder_add(&p.builder, mgl_jinja_text_part(p.format, p.at, end));
    p.at = end + 1;
    if (end < p.format.bytes) {
      MGL_TRY(mgl_jinja_charge(runtime, 1));
      MGL_TRY(add_percent(&p));
    }
    MGL_TRY(p.builder.status);
  }
  size_t count = p.is_tuple ? values.list->count : 1;
  if (p.used < count && !p.is_map) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "format: not all values are used");
  }
  return mgl_jinja_builder_finish(&p.builder, out);
}

// The filter: "..." | format(a, b), or by names.
mgl_status mgl_jinja_filter_format(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                   mgl_jinja_value *out) {
  mgl_jinja_string text;
  mgl_jinja_value values;
  bool by_name = call->keyword_count != 0;
  if (by_name && call->argument_count != 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT,
                          "format: expected positional values or named ones, found both");
  }
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  MGL_TRY(by_name ? mgl_jinja_dict_new(runtime, &values)
                  : mgl_jinja_list_new(runtime, MGL_JINJA_TUPLE, &values));
  for (size_t i = 0; i < call->argument_count; i++) {
    MGL_TRY(mgl_jinja_list_add(runtime, values.list, call->arguments[i]));
  }
  for (size_t i = 0; i < call->keyword_count; i++) {
    MGL_TRY(mgl_jinja_dict_set(runtime, values.dict, mgl_jinja_string_value(call->keywords[i].name),
                               call->keywords[i].value));
  }
  mgl_jinja_value format = mgl_jinja_string_value(text);
  format.safe = call->self.kind == MGL_JINJA_STRING && call->self.safe;
  return mgl_jinja_format_percent(runtime, format, values, out);
}

// --- braces --------------------------------------------------------------------------------------

typedef struct braces {
  const mgl_jinja_call *call;
  int64_t next;  // the index of the next {}; -1: fields have numbers
} braces;

static mgl_status fail_braces(mgl_jinja_runtime *runtime, mgl_jinja_string format) {
  return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "format: malformed braces in \"%.*s\"",
                        (int)(format.bytes < 60 ? format.bytes : 60), format.data);
}

static bool read_digits(mgl_jinja_string text, size_t *at, int64_t *out) {
  size_t start = *at;
  for (*out = 0; *at < text.bytes && text.data[*at] >= '0' && text.data[*at] <= '9'; (*at)++) {
    *out = *out > INT32_MAX ? *out : *out * 10 + (text.data[*at] - '0');
  }
  return *at != start;
}

// The spec behind a ':'.
static bool parse_spec(mgl_jinja_string text, spec *s) {
  size_t at = 0;
  int32_t first = 0;
  size_t bytes = text.bytes == 0 ? 0 : mgl_jinja_text_decode(text, 0, &first);
  *s = (spec){.fill = ' ', .precision = -1};
  if (bytes > 0 && bytes < text.bytes && strchr("<>^=", text.data[bytes]) != NULL) {
    s->fill = first;
    s->align = text.data[bytes];
    at = bytes + 1;
  } else if (bytes > 0 && strchr("<>^=", text.data[0]) != NULL) {
    s->align = text.data[at++];
  }
  bool has_fill = at > 1;
  if (at < text.bytes && strchr("+- ", text.data[at]) != NULL) {
    s->sign = text.data[at++];
  }
  if (at < text.bytes && text.data[at] == '#') {
    s->alternate = true;
    at++;
  }
  if (at < text.bytes && text.data[at] == '0' && !has_fill) {
    s->zero = true;
    s->fill = '0';
    at++;
  }
  (void)read_digits(text, &at, &s->width);
  if (at < text.bytes && strchr(",_", text.data[at]) != NULL) {
    s->group = text.data[at++];
  }
  if (at < text.bytes && text.data[at] == '.') {
    at++;
    if (!read_digits(text, &at, &s->precision)) {
      return false;
    }
  }
  if (at < text.bytes) {
    s->type = text.data[at++];
  }
  return at == text.bytes;
}

static mgl_status add_formatted_number(mgl_jinja_builder *builder, spec *s, mgl_jinja_value value) {
  double number = 0;
  (void)mgl_jinja_as_number(value, &number);
  if (s->zero && s->align == 0) {
    s->align = '=';
  }
  bool is_whole = value.kind != MGL_JINJA_FLOAT;
  s->type = s->type == 0 && is_whole ? 'd' : s->type;
  if (is_whole && strchr("dxXob", s->type) != NULL) {
    if (s->precision >= 0) {
      return fail_spec(builder->runtime, MGL_ERR_ARGUMENT, "no precision is allowed", value);
    }
    return add_integer(builder, s, mgl_jinja_as_integer(value), false);
  }
  if (is_whole && s->type == 'c' && s->sign == 0 && s->precision < 0) {
    return add_character(builder, s, value);
  }
  if (s->type != 0 && strchr("eEfFgG%", s->type) != NULL) {
    return add_double(builder, s, number);
  }
  if (s->type == 0 && s->precision < 0 && !s->alternate) {
    mgl_jinja_string text;
    MGL_TRY(mgl_jinja_to_text(builder->runtime, mgl_jinja_float(fabs(number)), &text));
    return add_number(builder, s, signbit(number) != 0 && !isnan(number), "", text);
  }
  bool is_known = s->type == 'n' || s->type == 0;
  return fail_spec(builder->runtime, is_known ? MGL_ERR_UNSUPPORTED : MGL_ERR_ARGUMENT,
                   "this spec is not supported", value);
}

// format(value, text).
static mgl_status add_formatted(mgl_jinja_builder *builder, mgl_jinja_value value,
                                mgl_jinja_string text) {
  spec s;
  mgl_jinja_string plain;
  bool is_number = mgl_jinja_is_integer(value) || value.kind == MGL_JINJA_FLOAT;
  if (text.bytes == 0) {
    MGL_TRY(mgl_jinja_to_text(builder->runtime, value, &plain));
    mgl_jinja_builder_add(builder, plain);
    return builder->status;
  }
  if ((!is_number && value.kind != MGL_JINJA_STRING) || !parse_spec(text, &s)) {
    return fail_spec(builder->runtime, MGL_ERR_ARGUMENT, "this spec has no meaning", value);
  }
  MGL_TRY(check_size(builder->runtime, &s));
  if (is_number) {
    return add_formatted_number(builder, &s, value);
  }
  if ((s.type != 0 && s.type != 's') || s.sign != 0 || s.align == '=' || s.alternate ||
      s.group != 0) {
    return fail_spec(builder->runtime, MGL_ERR_ARGUMENT, "this spec has no meaning", value);
  }
  add_text(builder, &s, value.string);
  return builder->status;
}

// The value of "name" or "3" or "" at the start of a field; *at ends behind it.
static mgl_status find_field(mgl_jinja_runtime *runtime, braces *b, mgl_jinja_string field,
                             size_t *at, mgl_jinja_value *out) {
  int64_t index = 0;
  size_t end = 0;
  while (end < field.bytes && field.data[end] != '.' && field.data[end] != '[') {
    end++;
  }
  bool is_number = read_digits(field, at, &index) && *at == end;
  *at = end;
  if (end != 0 && !is_number) {
    mgl_jinja_string name = mgl_jinja_text_part(field, 0, end);
    for (size_t i = 0; i < b->call->keyword_count; i++) {
      if (mgl_jinja_text_equal(b->call->keywords[i].name, name)) {
        *out = b->call->keywords[i].value;
        return MGL_OK;
      }
    }
    return fail_braces(runtime, field);
  }
  if ((end == 0 && b->next < 0) || (end != 0 && b->next > 0)) {
    return fail_braces(runtime, field);
  }
  index = end == 0 ? b->next++ : index;
  b->next = end == 0 ? b->next : -1;
  if ((uint64_t)index >= b->call->argument_count) {
    return fail_braces(runtime, field);
  }
  *out = b->call->arguments[index];
  return MGL_OK;
}

// "name.attribute[key]".
static mgl_status get_field(mgl_jinja_runtime *runtime, braces *b, mgl_jinja_string field,
                            mgl_jinja_value *out) {
  size_t at = 0;
  MGL_TRY(find_field(runtime, b, field, &at, out));
  while (at < field.bytes) {
    bool is_item = field.data[at] == '[';
    size_t start = ++at;
    while (at < field.bytes &&
           (is_item ? field.data[at] != ']' : field.data[at] != '.' && field.data[at] != '[')) {
      at++;
    }
    mgl_jinja_string name = mgl_jinja_text_part(field, start, at);
    if (name.bytes == 0 || (is_item && at == field.bytes)) {
      return fail_braces(runtime, field);
    }
    if (is_item) {
      size_t digits = 0;
      int64_t index = 0;
      bool is_number = read_digits(name, &digits, &index) && digits == name.bytes;
      mgl_jinja_value key = is_number ? mgl_jinja_int(index) : mgl_jinja_string_value(name);
      MGL_TRY(mgl_jinja_get_item(runtime, *out, key, out));
      at++;
    } else {
      MGL_TRY(mgl_jinja_get_attribute(runtime, *out, name, out));
    }
  }
  return MGL_OK;
}

static mgl_status format_braces(mgl_jinja_runtime *runtime, braces *b, mgl_jinja_string format,
                                size_t depth, mgl_jinja_value *out);

// A field between its braces: name, "!r", ":spec".
static mgl_status add_field(mgl_jinja_builder *builder, braces *b, mgl_jinja_string field,
                            size_t depth) {
  mgl_jinja_runtime *runtime = builder->runtime;
  size_t end = 0;
  char how = 0;
  bool in_item = false;
  while (end < field.bytes && (in_item || (field.data[end] != '!' && field.data[end] != ':'))) {
    in_item = field.data[end] == '[' || (in_item && field.data[end] != ']');
    end++;
  }
  mgl_jinja_string name = mgl_jinja_text_part(field, 0, end);
  if (end < field.bytes && field.data[end] == '!') {
    how = end + 1 < field.bytes ? field.data[end + 1] : 0;
    end += 2;
    if (how == 0 || strchr("sra", how) == NULL || (end < field.bytes && field.data[end] != ':')) {
      return fail_braces(runtime, field);
    }
  }
  mgl_jinja_value value;
  mgl_jinja_value inner;
  MGL_TRY(get_field(runtime, b, name, &value));
  if (how != 0) {
    mgl_jinja_string text;
    MGL_TRY(to_repr(runtime, value, how, &text));
    value = mgl_jinja_string_value(text);
  }
  MGL_TRY(format_braces(runtime, b, mgl_jinja_text_part(field, end + 1, field.bytes), depth + 1,
                        &inner));
  return add_formatted(builder, value, inner.string);
}

static mgl_status format_braces(mgl_jinja_runtime *runtime, braces *b, mgl_jinja_string format,
                                size_t depth, mgl_jinja_value *out) {
  mgl_jinja_builder builder = {.runtime = runtime};
  MGL_TRY(mgl_jinja_charge(runtime, 1 + format.bytes / 8));
  if (depth > 2) {
    return fail_braces(runtime, format);
  }
  for (size_t at = 0; at < format.bytes;) {
    char c = format.data[at];
    bool doubled = at + 1 < format.bytes && format.data[at + 1] == c;
    if (c != '{' && c != '}') {
      size_t start = at;
      while (at < format.bytes && format.data[at] != '{' && format.data[at] != '}') {
        at++;
      }
      mgl_jinja_builder_add(&builder, mgl_jinja_text_part(format, start, at));
    } else if (doubled) {
      mgl_jinja_builder_add(&builder, mgl_jinja_text_part(format, at, at + 1));
      at += 2;
    } else {
      size_t start = ++at;
      for (size_t open = 1; c == '{' && at < format.bytes; at++) {
        open += (format.data[at] == '{') - (size_t)(format.data[at] == '}');
        if (open == 0) {
          break;
        }
      }
      if (c == '}' || at == format.bytes) {
        return fail_braces(runtime, format);
      }
      MGL_TRY(add_field(&builder, b, mgl_jinja_text_part(format, start, at++), depth));
    }
    MGL_TRY(builder.status);
  }
  return mgl_jinja_builder_finish(&builder, out);
}

mgl_status mgl_jinja_method_format(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                   mgl_jinja_value *out) {
  braces b = {.call = call};
  return format_braces(runtime, &b, call->self.string, 0, out);
}
