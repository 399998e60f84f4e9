// Values as text: Python's str and repr, and json.dumps.
//
// Output is compared byte by byte with what a model was trained on, so floats use the shortest
// digits that read back as the same number, and repr escapes exactly what Python's does.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/jinja_interpreter.h"
#include "template/jinja_operators.h"
#include "template/jinja_value.h"

// --- building ------------------------------------------------------------------------------------

void mgl_jinja_builder_add(mgl_jinja_builder *builder, mgl_jinja_string text) {
  if (builder->status != MGL_OK || text.bytes == 0) {
    return;
  }
  if (text.bytes > builder->capacity - builder->bytes) {
    size_t needed = builder->bytes + text.bytes;
    size_t capacity = needed < 64 ? 128 : needed * 2;
    char *data = NULL;
    builder->status = mgl_jinja_text_new(builder->runtime, capacity, &data);
    if (builder->status != MGL_OK) {
      return;
    }
    if (builder->bytes != 0) {
      memcpy(data, builder->data, builder->bytes);
    }
    builder->data = data;
    builder->capacity = capacity;
  }
  memcpy(builder->data + builder->bytes, text.data, text.bytes);
  builder->bytes += text.bytes;
}

void mgl_jinja_builder_add_codepoint(mgl_jinja_builder *builder, int32_t codepoint) {
  char bytes[MGL_JINJA_UTF8_BYTES];
  mgl_jinja_builder_add(builder,
                        (mgl_jinja_string){bytes, mgl_jinja_text_encode(codepoint, bytes)});
}

void mgl_jinja_builder_add_fill(mgl_jinja_builder *builder, int32_t codepoint, int64_t count) {
  enum { AT_ONCE = 64 };
  char bytes[AT_ONCE * MGL_JINJA_UTF8_BYTES];
  size_t each = mgl_jinja_text_encode(codepoint, bytes);
  for (size_t i = 1; i < AT_ONCE; i++) {
    memcpy(bytes + i * each, bytes, each);
  }
  for (; count > 0; count -= AT_ONCE) {
    size_t now = count < AT_ONCE ? (size_t)count : AT_ONCE;
    mgl_jinja_builder_add(builder, (mgl_jinja_string){bytes, now * each});
  }
}

static void add_literal(mgl_jinja_builder *builder, const char *literal) {
  mgl_jinja_builder_add(builder, (mgl_jinja_string){literal, strlen(literal)});
}

mgl_status mgl_jinja_builder_finish(mgl_jinja_builder *builder, mgl_jinja_value *out) {
  *out = mgl_jinja_string_value(
      (mgl_jinja_string){builder->bytes == 0 ? "" : builder->data, builder->bytes});
  return builder->status;
}

// --- str and repr --------------------------------------------------------------------------------

// repr of a float: the shortest digits that read back the same, with an exponent below 1e-4 and
// from 1e16.
static void add_float(mgl_jinja_builder *builder, double value) {
  if (isnan(value) || isinf(value)) {
    add_literal(builder, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    return;
  }
  char text[64];
  int precision = 0;
  do {
    (void)snprintf(text, sizeof text, "%.*e", precision, value);
  } while (strtod(text, NULL) != value && ++precision < 17);
  char *mark = strchr(text, 'e');
  int exponent = (int)strtol(mark + 1, NULL, 10);
  if (exponent >= -4 && exponent < 16) {
    int decimals = precision - exponent;
    (void)snprintf(text, sizeof text, "%.*f", decimals > 1 ? decimals : 1, value);
    add_literal(builder, text);
    return;
  }
  *mark = 0;
  add_literal(builder, text);
  (void)snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
  add_literal(builder, text);
}

static void add_escaped(mgl_jinja_builder *builder, const char *format, int32_t codepoint) {
  char text[16];
  (void)snprintf(text, sizeof text, format, (unsigned)codepoint);
  add_literal(builder, text);
}

static void add_string_repr(mgl_jinja_builder *builder, mgl_jinja_string text) {
  bool single = memchr(text.data, '\'', text.bytes) != NULL;
  bool both = single && memchr(text.data, '"', text.bytes) != NULL;
  char quote = (char)(single && !both ? '"' : '\'');
  mgl_jinja_builder_add(builder, (mgl_jinja_string){&quote, 1});
  for (size_t at = 0; at < text.bytes;) {
    int32_t c = 0;
    size_t bytes = mgl_jinja_text_decode(text, at, &c);
    if (c == quote || c == '\\') {
      add_literal(builder, "\\");
      mgl_jinja_builder_add_codepoint(builder, c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      add_literal(builder, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (!mgl_jinja_is_printable(c)) {
      add_escaped(builder, c > 0xffff ? "\\U%08x" : c > 0xff ? "\\u%04x" : "\\x%02x", c);
    } else {
      mgl_jinja_builder_add(builder, mgl_jinja_text_part(text, at, at + bytes));
    }
    at += bytes;
  }
  mgl_jinja_builder_add(builder, (mgl_jinja_string){&quote, 1});
}

static mgl_status enter_value(mgl_jinja_builder *builder, size_t depth) {
  MGL_TRY(builder->status);
  MGL_TRY(mgl_jinja_charge(builder->runtime, 1));
  if (depth > MGL_JINJA_MAX_VALUE_DEPTH) {
    return mgl_jinja_fail(builder->runtime, MGL_ERR_LIMIT,
                          "a value is nested deeper than %d levels", MGL_JINJA_MAX_VALUE_DEPTH);
  }
  return MGL_OK;
}

static mgl_status add_repr(mgl_jinja_builder *builder, mgl_jinja_value value, size_t depth);

static mgl_status add_list_repr(mgl_jinja_builder *builder, const mgl_jinja_list *list,
                                const char *open, const char *close, size_t depth) {
  add_literal(builder, open);
  for (size_t i = 0; i < list->count; i++) {
    if (i != 0) {
      add_literal(builder, ", ");
    }
    MGL_TRY(add_repr(builder, list->items[i], depth + 1));
  }
  add_literal(builder, close);
  return MGL_OK;
}

static mgl_status add_dict_repr(mgl_jinja_builder *builder, const mgl_jinja_dict *dict,
                                size_t depth) {
  add_literal(builder, "{");
  for (size_t i = 0; i < dict->count; i++) {
    if (i != 0) {
      add_literal(builder, ", ");
    }
    MGL_TRY(add_repr(builder, dict->pairs[i].key, depth + 1));
    add_literal(builder, ": ");
    MGL_TRY(add_repr(builder, dict->pairs[i].value, depth + 1));
  }
  add_literal(builder, "}");
  return MGL_OK;
}

static void add_range_repr(mgl_jinja_builder *builder, const mgl_jinja_range *range) {
  char text[96];
  long long start = range->start;
  long long stop = range->stop;
  if (range->step == 1) {
    (void)snprintf(text, sizeof text, "range(%lld, %lld)", start, stop);
  } else {
    (void)snprintf(text, sizeof text, "range(%lld, %lld, %lld)", start, stop,
                   (long long)range->step);
  }
  add_literal(builder, text);
}

static void add_macro_repr(mgl_jinja_builder *builder, const mgl_jinja_node *node) {
  add_literal(builder, "<Macro ");
  if (node->kind == MGL_JINJA_NODE_MACRO) {
    add_string_repr(builder, node->value.string);
  } else {
    add_literal(builder, "anonymous");
  }
  add_literal(builder, ">");
}

static mgl_status add_repr(mgl_jinja_builder *builder, mgl_jinja_value value, size_t depth) {
  static const char *const view_open[] = {"dict_keys([", "dict_values([", "dict_items(["};
  MGL_TRY(enter_value(builder, depth));
  char text[32];
  switch ((mgl_jinja_kind)value.kind) {
    case MGL_JINJA_UNDEFINED: add_literal(builder, "Undefined"); return MGL_OK;
    case MGL_JINJA_NONE: add_literal(builder, "None"); return MGL_OK;
    case MGL_JINJA_BOOL: add_literal(builder, value.boolean ? "True" : "False"); return MGL_OK;
    case MGL_JINJA_FLOAT: add_float(builder, value.number); return MGL_OK;
    case MGL_JINJA_STRING:
      add_literal(builder, value.safe ? "Markup(" : "");
      add_string_repr(builder, value.string);
      add_literal(builder, value.safe ? ")" : "");
      return MGL_OK;
    case MGL_JINJA_LIST: return add_list_repr(builder, value.list, "[", "]", depth);
    case MGL_JINJA_TUPLE:
      return add_list_repr(builder, value.list, "(", value.list->count == 1 ? ",)" : ")", depth);
    case MGL_JINJA_VIEW:
      return add_list_repr(builder, value.list, view_open[value.view], "])", depth);
    case MGL_JINJA_DICT: return add_dict_repr(builder, value.dict, depth);
    case MGL_JINJA_RANGE: add_range_repr(builder, value.range); return MGL_OK;
    case MGL_JINJA_INT:
      (void)snprintf(text, sizeof text, "%lld", (long long)value.integer);
      add_literal(builder, text);
      return MGL_OK;
    case MGL_JINJA_NAMESPACE:
      add_literal(builder, "<Namespace ");
      MGL_TRY(add_dict_repr(builder, value.dict, depth));
      add_literal(builder, ">");
      return MGL_OK;
    case MGL_JINJA_LOOP: return mgl_jinja_loop_text(builder->runtime, value.loop, builder);
    case MGL_JINJA_MACRO: add_macro_repr(builder, value.macro->node); return MGL_OK;
    case MGL_JINJA_SELF: add_literal(builder, "<TemplateReference None>"); return MGL_OK;
    default:
      return mgl_jinja_fail(builder->runtime, MGL_ERR_UNSUPPORTED,
                            "printing a %s is not supported (is a call's () or a |list missing?)",
                            mgl_jinja_type_name(value));
  }
}

mgl_status mgl_jinja_to_repr(mgl_jinja_runtime *runtime, mgl_jinja_value value,
                             mgl_jinja_value *out) {
  mgl_jinja_builder builder = {.runtime = runtime};
  MGL_TRY(add_repr(&builder, value, 0));
  return mgl_jinja_builder_finish(&builder, out);
}

mgl_status mgl_jinja_to_text(mgl_jinja_runtime *runtime, mgl_jinja_value value,
                             mgl_jinja_string *out) {
  if (value.kind == MGL_JINJA_STRING) {
    *out = value.string;
    return MGL_OK;
  }
  if (value.kind == MGL_JINJA_UNDEFINED) {
    *out = MGL_JINJA_LITERAL("");
    return MGL_OK;
  }
  mgl_jinja_builder builder = {.runtime = runtime};
  mgl_jinja_value text;
  MGL_TRY(add_repr(&builder, value, 0));
  MGL_TRY(mgl_jinja_builder_finish(&builder, &text));
  *out = text.string;
  return MGL_OK;
}

// --- JSON ----------------------------------------------------------------------------------------

typedef struct json_writer {
  mgl_jinja_builder builder;
  const mgl_jinja_json_options *options;
} json_writer;

static void add_json_escape(mgl_jinja_builder *builder, int32_t c) {
  switch (c) {
    case '"': add_literal(builder, "\\\""); return;
    case '\\': add_literal(builder, "\\\\"); return;
    case '\n': add_literal(builder, "\\n"); return;
    case '\r': add_literal(builder, "\\r"); return;
    case '\t': add_literal(builder, "\\t"); return;
    case '\f': add_literal(builder, "\\f"); return;
    case '\b': add_literal(builder, "\\b"); return;
    default: break;
  }
  if (c > 0xffff) {
    add_escaped(builder, "\\u%04x", 0xd800 + ((c - 0x10000) >> 10));
    c = 0xdc00 + ((c - 0x10000) & 0x3ff);
  }
  add_escaped(builder, "\\u%04x", c);
}

static void add_json_string(json_writer *writer, mgl_jinja_string text) {
  mgl_jinja_builder *builder = &writer->builder;
  add_literal(builder, "\"");
  size_t plain = 0;  // start of the run that needs no escape
  for (size_t at = 0; at < text.bytes;) {
    int32_t c = 0;
    size_t bytes = mgl_jinja_text_decode(text, at, &c);
    if (c < 0x20 || c == '"' || c == '\\' || (c > 0x7e && writer->options->ascii)) {
      mgl_jinja_builder_add(builder, mgl_jinja_text_part(text, plain, at));
      add_json_escape(builder, c);
      plain = at + bytes;
    }
    at += bytes;
  }
  mgl_jinja_builder_add(builder, mgl_jinja_text_part(text, plain, text.bytes));
  add_literal(builder, "\"");
}

static void add_json_break(json_writer *writer, size_t depth) {
  if (writer->options->pretty) {
    add_literal(&writer->builder, "\n");
    for (size_t i = 0; i < depth; i++) {
      mgl_jinja_builder_add(&writer->builder, writer->options->indent);
    }
  }
}

static mgl_status add_json_number(json_writer *writer, mgl_jinja_value value) {
  if (value.kind == MGL_JINJA_FLOAT && !isfinite(value.number)) {
    add_literal(&writer->builder, isnan(value.number) ? "NaN"
                                  : value.number < 0  ? "-Infinity"
                                                      : "Infinity");
    return MGL_OK;
  }
  return add_repr(&writer->builder, value, 0);
}

// A key that is no string becomes one, as in Python.
static mgl_status add_json_key(json_writer *writer, mgl_jinja_value key) {
  switch ((mgl_jinja_kind)key.kind) {
    case MGL_JINJA_STRING: add_json_string(writer, key.string); return MGL_OK;
    case MGL_JINJA_NONE: add_literal(&writer->builder, "\"null\""); return MGL_OK;
    case MGL_JINJA_BOOL:
      add_literal(&writer->builder, key.boolean ? "\"true\"" : "\"false\"");
      return MGL_OK;
    case MGL_JINJA_INT:
    case MGL_JINJA_FLOAT:
      add_literal(&writer->builder, "\"");
      MGL_TRY(add_json_number(writer, key));
      add_literal(&writer->builder, "\"");
      return MGL_OK;
    default:
      return mgl_jinja_fail(writer->builder.runtime, MGL_ERR_ARGUMENT,
                            "tojson: a dict key must be a string or number, found a %s",
                            mgl_jinja_type_name(key));
  }
}

// A copy of the dict with its keys in order.
static mgl_status sort_keys(mgl_jinja_runtime *runtime, const mgl_jinja_dict *dict,
                            mgl_jinja_dict *out) {
  *out = *dict;
  out->pairs = mgl_arena_alloc(&runtime->arena, dict->count * sizeof dict->pairs[0]);
  if (out->pairs == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  for (size_t i = 0; i < dict->count; i++) {
    size_t place = i;
    for (; place > 0; place--) {  // insertion sort: charged per comparison, dicts are small
      int order = 0;
      MGL_TRY(mgl_jinja_order(runtime, dict->pairs[i].key, out->pairs[place - 1].key, &order));
      if (order >= 0) {
        break;
      }
      out->pairs[place] = out->pairs[place - 1];
    }
    out->pairs[place] = dict->pairs[i];
  }
  return MGL_OK;
}

static mgl_status add_json(json_writer *writer, mgl_jinja_value value, size_t depth);

static mgl_status add_json_dict(json_writer *writer, const mgl_jinja_dict *dict, size_t depth) {
  mgl_jinja_builder *builder = &writer->builder;
  mgl_jinja_dict sorted;
  if (writer->options->sort_keys) {
    MGL_TRY(sort_keys(builder->runtime, dict, &sorted));
    dict = &sorted;
  }
  add_literal(builder, "{");
  for (size_t i = 0; i < dict->count; i++) {
    if (i != 0) {
      mgl_jinja_builder_add(builder, writer->options->item_separator);
    }
    add_json_break(writer, depth + 1);
    MGL_TRY(add_json_key(writer, dict->pairs[i].key));
    mgl_jinja_builder_add(builder, writer->options->key_separator);
    MGL_TRY(add_json(writer, dict->pairs[i].value, depth + 1));
  }
  if (dict->count != 0) {
    add_json_break(writer, depth);
  }
  add_literal(builder, "}");
  return MGL_OK;
}

static mgl_status add_json(json_writer *writer, mgl_jinja_value value, size_t depth) {
  mgl_jinja_builder *builder = &writer->builder;
  MGL_TRY(enter_value(builder, depth));
  switch ((mgl_jinja_kind)value.kind) {
    case MGL_JINJA_NONE: add_literal(builder, "null"); return MGL_OK;
    case MGL_JINJA_BOOL: add_literal(builder, value.boolean ? "true" : "false"); return MGL_OK;
    case MGL_JINJA_INT:
    case MGL_JINJA_FLOAT: return add_json_number(writer, value);
    case MGL_JINJA_STRING: add_json_string(writer, value.string); return MGL_OK;
    case MGL_JINJA_DICT: return add_json_dict(writer, value.dict, depth);
    case MGL_JINJA_LIST:
    case MGL_JINJA_TUPLE: break;
    default:
      return mgl_jinja_fail(builder->runtime, MGL_ERR_ARGUMENT, "tojson: a %s has no JSON form",
                            mgl_jinja_type_name(value));
  }
  add_literal(builder, "[");
  for (size_t i = 0; i < value.list->count; i++) {
    if (i != 0) {
      mgl_jinja_builder_add(builder, writer->options->item_separator);
    }
    add_json_break(writer, depth + 1);
    MGL_TRY(add_json(writer, value.list->items[i], depth + 1));
  }
  if (value.list->count != 0) {
    add_json_break(writer, depth);
  }
  add_literal(builder, "]");
  return MGL_OK;
}

mgl_status mgl_jinja_to_json(mgl_jinja_runtime *runtime, mgl_jinja_value value,
                             const mgl_jinja_json_options *options, mgl_jinja_value *out) {
  json_writer writer = {.builder = {.runtime = runtime}, .options = options};
  MGL_TRY(add_json(&writer, value, 0));
  return mgl_jinja_builder_finish(&writer.builder, out);
}
