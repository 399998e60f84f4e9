// Building, asking, comparing and iterating the values of the template interpreter.
#include "template/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "template/chat_template.h"

// --- errors and bounds ---------------------------------------------------------------------------

mgl_status mgl_jinja_fail(const mgl_jinja_runtime *runtime, mgl_status status, const char *format,
                          ...) {
  char text[MGL_ERROR_TEXT_BYTES];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return mgl_error_set(runtime->err, status, "%s: line %d: %s", runtime->where, runtime->line,
                       text);
}

mgl_status mgl_jinja_fail_memory(const mgl_jinja_runtime *runtime) {
  if (runtime->arena.over_limit) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "the template needs more than %d MiB of memory",
                          MGL_TEMPLATE_MAX_MEMORY_BYTES >> 20);
  }
  return mgl_jinja_fail(runtime, MGL_ERR_MEMORY, "out of memory while rendering the template");
}

mgl_status mgl_jinja_charge(mgl_jinja_runtime *runtime, size_t steps) {
  if (steps > MGL_TEMPLATE_MAX_STEPS - runtime->steps) {
    runtime->steps = MGL_TEMPLATE_MAX_STEPS;
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "the template takes more than %d steps",
                          MGL_TEMPLATE_MAX_STEPS);
  }
  runtime->steps += steps;
  return MGL_OK;
}

// --- making values -------------------------------------------------------------------------------

mgl_jinja_value mgl_jinja_none(void) {
  return (mgl_jinja_value){.kind = MGL_JINJA_NONE};
}

mgl_jinja_value mgl_jinja_bool(bool value) {
  return (mgl_jinja_value){.kind = MGL_JINJA_BOOL, .boolean = value};
}

mgl_jinja_value mgl_jinja_int(int64_t value) {
  return (mgl_jinja_value){.kind = MGL_JINJA_INT, .integer = value};
}

mgl_jinja_value mgl_jinja_float(double value) {
  return (mgl_jinja_value){.kind = MGL_JINJA_FLOAT, .number = value};
}

mgl_jinja_value mgl_jinja_string_value(mgl_jinja_string text) {
  return (mgl_jinja_value){.kind = MGL_JINJA_STRING, .string = text};
}

mgl_jinja_value mgl_jinja_undefined(mgl_jinja_string name) {
  return (mgl_jinja_value){.kind = MGL_JINJA_UNDEFINED, .string = name};
}

mgl_status mgl_jinja_text_new(mgl_jinja_runtime *runtime, size_t bytes, char **out) {
  MGL_TRY(mgl_jinja_charge(runtime, bytes / 64));
  *out = mgl_arena_alloc_text(&runtime->arena, bytes);
  return *out == NULL ? mgl_jinja_fail_memory(runtime) : MGL_OK;
}

mgl_status mgl_jinja_text_concat(mgl_jinja_runtime *runtime, mgl_jinja_string a, mgl_jinja_string b,
                                 mgl_jinja_string *out) {
  // A chain of concatenations grows its newest part in place. The shorter strings that share that
  // memory stay valid: only bytes behind them are written.
  if (mgl_arena_extend(&runtime->arena, a.data, a.bytes, b.bytes)) {
    MGL_TRY(mgl_jinja_charge(runtime, b.bytes / 64));
    memcpy((char *)a.data + a.bytes, b.data, b.bytes);
    *out = (mgl_jinja_string){a.data, a.bytes + b.bytes};
    return MGL_OK;
  }
  char *data = NULL;
  MGL_TRY(mgl_jinja_text_new(runtime, a.bytes + b.bytes, &data));
  if (a.bytes != 0) {
    memcpy(data, a.data, a.bytes);
  }
  if (b.bytes != 0) {
    memcpy(data + a.bytes, b.data, b.bytes);
  }
  *out = (mgl_jinja_string){data, a.bytes + b.bytes};
  return MGL_OK;
}

// Doubles a list in the arena; the old one stays behind as waste, at most as much as is in use.
static mgl_status grow(mgl_jinja_runtime *runtime, void **items, size_t count, size_t *capacity,
                       size_t bytes_each) {
  if (count < *capacity) {
    return MGL_OK;
  }
  size_t larger = *capacity == 0 ? 4 : *capacity * 2;
  void *moved = mgl_arena_alloc(&runtime->arena, larger * bytes_each);
  if (moved == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  if (count != 0) {
    memcpy(moved, *items, count * bytes_each);
  }
  *items = moved;
  *capacity = larger;
  return MGL_OK;
}

mgl_status mgl_jinja_list_new(mgl_jinja_runtime *runtime, mgl_jinja_kind kind,
                              mgl_jinja_value *out) {
  mgl_jinja_list *list = mgl_arena_alloc_zeroed(&runtime->arena, 1, sizeof *list);
  if (list == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  *out = (mgl_jinja_value){.kind = (uint8_t)kind, .list = list};
  return MGL_OK;
}

mgl_status mgl_jinja_list_add(mgl_jinja_runtime *runtime, mgl_jinja_list *list,
                              mgl_jinja_value item) {
  void *items = list->items;
  MGL_TRY(grow(runtime, &items, list->count, &list->capacity, sizeof list->items[0]));
  list->items = items;
  list->items[list->count++] = item;
  return MGL_OK;
}

mgl_status mgl_jinja_dict_new(mgl_jinja_runtime *runtime, mgl_jinja_value *out) {
  mgl_jinja_dict *dict = mgl_arena_alloc_zeroed(&runtime->arena, 1, sizeof *dict);
  if (dict == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  *out = (mgl_jinja_value){.kind = MGL_JINJA_DICT, .dict = dict};
  return MGL_OK;
}

// Charged, since a comparison of two long texts is no small step.
static mgl_status strings_equal(mgl_jinja_runtime *runtime, mgl_jinja_string a, mgl_jinja_string b,
                                bool *out) {
  *out = mgl_jinja_text_equal(a, b);
  return a.bytes < 64 || a.bytes != b.bytes ? MGL_OK : mgl_jinja_charge(runtime, a.bytes / 64);
}

mgl_status mgl_jinja_dict_find(mgl_jinja_runtime *runtime, const mgl_jinja_dict *dict,
                               mgl_jinja_value key, mgl_jinja_value **found) {
  *found = NULL;
  MGL_TRY(mgl_jinja_charge(runtime, dict->count / 16));
  for (size_t i = 0; i < dict->count; i++) {
    mgl_jinja_pair *pair = &dict->pairs[i];
    bool same = false;
    if (pair->key.kind == MGL_JINJA_STRING && key.kind == MGL_JINJA_STRING) {
      MGL_TRY(strings_equal(runtime, pair->key.string, key.string, &same));
    } else {
      MGL_TRY(mgl_jinja_equal(runtime, pair->key, key, &same));
    }
    if (same) {
      *found = &pair->value;
      return MGL_OK;
    }
  }
  return MGL_OK;
}

static mgl_status dict_add(mgl_jinja_runtime *runtime, mgl_jinja_dict *dict, mgl_jinja_value key,
                           mgl_jinja_value value) {
  void *pairs = dict->pairs;
  MGL_TRY(grow(runtime, &pairs, dict->count, &dict->capacity, sizeof dict->pairs[0]));
  dict->pairs = pairs;
  dict->pairs[dict->count++] = (mgl_jinja_pair){key, value};
  return MGL_OK;
}

mgl_status mgl_jinja_dict_set(mgl_jinja_runtime *runtime, mgl_jinja_dict *dict, mgl_jinja_value key,
                              mgl_jinja_value value) {
  if (!mgl_jinja_is_hashable(key)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "a %s cannot be a dict key",
                          mgl_jinja_type_name(key));
  }
  mgl_jinja_value *found = NULL;
  MGL_TRY(mgl_jinja_dict_find(runtime, dict, key, &found));
  if (found != NULL) {
    *found = value;
    return MGL_OK;
  }
  return dict_add(runtime, dict, key, value);
}

mgl_status mgl_jinja_dict_view(mgl_jinja_runtime *runtime, const mgl_jinja_dict *dict,
                               mgl_jinja_view view, mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_VIEW, out));
  out->view = (uint8_t)view;
  for (size_t i = 0; i < dict->count; i++) {
    MGL_TRY(mgl_jinja_charge(runtime, 1));
    mgl_jinja_value item = view == MGL_JINJA_VIEW_KEYS ? dict->pairs[i].key : dict->pairs[i].value;
    if (view == MGL_JINJA_VIEW_ITEMS) {
      MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_TUPLE, &item));
      MGL_TRY(mgl_jinja_list_add(runtime, item.list, dict->pairs[i].key));
      MGL_TRY(mgl_jinja_list_add(runtime, item.list, dict->pairs[i].value));
    }
    MGL_TRY(mgl_jinja_list_add(runtime, out->list, item));
  }
  return MGL_OK;
}

static mgl_status object_from_json(mgl_jinja_runtime *runtime, const json_t *json, size_t depth,
                                   mgl_jinja_dict *dict) {
  const char *key = NULL;
  size_t key_bytes = 0;
  json_t *member = NULL;
  // jansson's iterator takes a mutable object but does not change it. Its keys are unique, so they
  // need no search.
  json_object_keylen_foreach((json_t *)(uintptr_t)json, key, key_bytes, member) {
    mgl_jinja_value value;
    MGL_TRY(mgl_jinja_from_json(runtime, member, depth + 1, &value));
    mgl_jinja_string text = {key, key_bytes};
    MGL_TRY(dict_add(runtime, dict, mgl_jinja_string_value(text), value));
  }
  return MGL_OK;
}

mgl_status mgl_jinja_from_json(mgl_jinja_runtime *runtime, const json_t *json, size_t depth,
                               mgl_jinja_value *out) {
  if (depth > MGL_JINJA_MAX_CONTEXT_DEPTH) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "the context is nested deeper than %d levels",
                          MGL_JINJA_MAX_CONTEXT_DEPTH);
  }
  switch (json_typeof(json)) {
    case JSON_NULL: *out = mgl_jinja_none(); return MGL_OK;
    case JSON_TRUE: *out = mgl_jinja_bool(true); return MGL_OK;
    case JSON_FALSE: *out = mgl_jinja_bool(false); return MGL_OK;
    case JSON_INTEGER: *out = mgl_jinja_int((int64_t)json_integer_value(json)); return MGL_OK;
    case JSON_REAL: *out = mgl_jinja_float(json_real_value(json)); return MGL_OK;
    case JSON_STRING:
      *out = mgl_jinja_string_value(
          (mgl_jinja_string){json_string_value(json), json_string_length(json)});
      return MGL_OK;
    case JSON_OBJECT:
      MGL_TRY(mgl_jinja_dict_new(runtime, out));
      return object_from_json(runtime, json, depth, out->dict);
    case JSON_ARRAY: break;
  }
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, out));
  for (size_t i = 0; i < json_array_size(json); i++) {
    mgl_jinja_value item;
    MGL_TRY(mgl_jinja_from_json(runtime, json_array_get(json, i), depth + 1, &item));
    MGL_TRY(mgl_jinja_list_add(runtime, out->list, item));
  }
  return MGL_OK;
}

// --- asking values -------------------------------------------------------------------------------

const char *mgl_jinja_type_name(mgl_jinja_value value) {
  switch ((mgl_jinja_kind)value.kind) {
    case MGL_JINJA_ABSENT: return "missing argument";
    case MGL_JINJA_UNDEFINED: return "Undefined";
    case MGL_JINJA_NONE: return "None";
    case MGL_JINJA_BOOL: return "bool";
    case MGL_JINJA_INT: return "int";
    case MGL_JINJA_FLOAT: return "float";
    case MGL_JINJA_STRING: return "str";
    case MGL_JINJA_LIST: return "list";
    case MGL_JINJA_TUPLE: return "tuple";
    case MGL_JINJA_VIEW: return "dict view";
    case MGL_JINJA_ITERATOR: return "generator";
    case MGL_JINJA_DICT: return "dict";
    case MGL_JINJA_RANGE: return "range";
    case MGL_JINJA_NAMESPACE: return "Namespace";
    case MGL_JINJA_LOOP: return "loop";
    case MGL_JINJA_CYCLER: return "Cycler";
    case MGL_JINJA_JOINER: return "Joiner";
    case MGL_JINJA_SELF: return "TemplateReference";
    case MGL_JINJA_BLOCK: return "block";
    case MGL_JINJA_MACRO: return "macro";
    case MGL_JINJA_FUNCTION: return "function";
    case MGL_JINJA_METHOD: return "method";
  }
  return "unknown";
}

bool mgl_jinja_is_true(mgl_jinja_value value) {
  size_t length = 0;
  switch ((mgl_jinja_kind)value.kind) {
    case MGL_JINJA_ABSENT:
    case MGL_JINJA_UNDEFINED:
    case MGL_JINJA_NONE: return false;
    case MGL_JINJA_BOOL: return value.boolean;
    case MGL_JINJA_INT: return value.integer != 0;
    case MGL_JINJA_FLOAT: return value.number != 0;
    case MGL_JINJA_STRING: return value.string.bytes != 0;
    default: return !mgl_jinja_length(value, &length) || length != 0;
  }
}

bool mgl_jinja_is_callable(mgl_jinja_value value) {
  // Jinja's undefined object has a __call__, which only raises.
  return value.kind == MGL_JINJA_UNDEFINED || value.kind == MGL_JINJA_MACRO ||
         value.kind == MGL_JINJA_FUNCTION || value.kind == MGL_JINJA_METHOD ||
         value.kind == MGL_JINJA_LOOP || value.kind == MGL_JINJA_JOINER ||
         value.kind == MGL_JINJA_BLOCK;
}

static bool is_hashable_at(mgl_jinja_value value, size_t depth) {
  switch ((mgl_jinja_kind)value.kind) {
    case MGL_JINJA_LIST:
    case MGL_JINJA_DICT:
    case MGL_JINJA_VIEW: return false;
    case MGL_JINJA_TUPLE:
      for (size_t i = 0; i < value.list->count; i++) {
        if (depth > MGL_JINJA_MAX_VALUE_DEPTH || !is_hashable_at(value.list->items[i], depth + 1)) {
          return false;
        }
      }
      return true;
    default: return true;
  }
}

bool mgl_jinja_is_hashable(mgl_jinja_value value) {
  return is_hashable_at(value, 0);
}

bool mgl_jinja_is_integer(mgl_jinja_value value) {
  return value.kind == MGL_JINJA_INT || value.kind == MGL_JINJA_BOOL;
}

int64_t mgl_jinja_as_integer(mgl_jinja_value value) {
  return value.kind == MGL_JINJA_BOOL ? value.boolean : value.integer;
}

bool mgl_jinja_as_number(mgl_jinja_value value, double *out) {
  if (value.kind == MGL_JINJA_FLOAT) {
    *out = value.number;
    return true;
  }
  if (mgl_jinja_is_integer(value)) {
    *out = (double)mgl_jinja_as_integer(value);
    return true;
  }
  return false;
}

bool mgl_jinja_length(mgl_jinja_value value, size_t *out) {
  switch ((mgl_jinja_kind)value.kind) {
    case MGL_JINJA_UNDEFINED: *out = 0; return true;
    case MGL_JINJA_STRING: *out = mgl_jinja_text_length(value.string); return true;
    case MGL_JINJA_LIST:
    case MGL_JINJA_TUPLE:
    case MGL_JINJA_VIEW: *out = value.list->count; return true;
    case MGL_JINJA_DICT: *out = value.dict->count; return true;
    case MGL_JINJA_RANGE: *out = (size_t)value.range->count; return true;
    default: return false;
  }
}

// --- comparing -----------------------------------------------------------------------------------

static mgl_status equal_at(mgl_jinja_runtime *runtime, mgl_jinja_value a, mgl_jinja_value b,
                           size_t depth, bool *out);

static mgl_status check_depth(mgl_jinja_runtime *runtime, size_t depth) {
  MGL_TRY(mgl_jinja_charge(runtime, 1));
  if (depth > MGL_JINJA_MAX_VALUE_DEPTH) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "a value is nested deeper than %d levels",
                          MGL_JINJA_MAX_VALUE_DEPTH);
  }
  return MGL_OK;
}

static mgl_status dicts_equal(mgl_jinja_runtime *runtime, const mgl_jinja_dict *a,
                              const mgl_jinja_dict *b, size_t depth, bool *out) {
  *out = a->count == b->count;
  for (size_t i = 0; i < a->count && *out; i++) {
    mgl_jinja_value *other = NULL;
    MGL_TRY(mgl_jinja_dict_find(runtime, b, a->pairs[i].key, &other));
    *out = other != NULL;
    if (other != NULL) {
      MGL_TRY(equal_at(runtime, a->pairs[i].value, *other, depth + 1, out));
    }
  }
  return MGL_OK;
}

static bool ranges_equal(const mgl_jinja_range *a, const mgl_jinja_range *b) {
  return a->count == b->count &&
         (a->count == 0 || (a->start == b->start && (a->count == 1 || a->step == b->step)));
}

// Equal as numbers, without rounding a large integer to a double.
static bool numbers_equal(mgl_jinja_value a, mgl_jinja_value b) {
  if (a.kind != MGL_JINJA_FLOAT && b.kind != MGL_JINJA_FLOAT) {
    return mgl_jinja_as_integer(a) == mgl_jinja_as_integer(b);
  }
  if (a.kind == MGL_JINJA_FLOAT && b.kind == MGL_JINJA_FLOAT) {
    return a.number == b.number;
  }
  double number = a.kind == MGL_JINJA_FLOAT ? a.number : b.number;
  int64_t integer = mgl_jinja_as_integer(a.kind == MGL_JINJA_FLOAT ? b : a);
  return number >= -0x1p63 && number < 0x1p63 && number == floor(number) &&
         (int64_t)number == integer;
}

static bool is_number(mgl_jinja_value value) {
  return value.kind == MGL_JINJA_FLOAT || mgl_jinja_is_integer(value);
}

static mgl_status equal_at(mgl_jinja_runtime *runtime, mgl_jinja_value a, mgl_jinja_value b,
                           size_t depth, bool *out) {
  MGL_TRY(check_depth(runtime, depth));
  *out = false;
  if (is_number(a) && is_number(b)) {
    *out = numbers_equal(a, b);
    return MGL_OK;
  }
  if (a.kind != b.kind) {
    return MGL_OK;
  }
  switch ((mgl_jinja_kind)a.kind) {
    case MGL_JINJA_UNDEFINED:
    case MGL_JINJA_NONE: *out = true; return MGL_OK;
    case MGL_JINJA_STRING: return strings_equal(runtime, a.string, b.string, out);
    case MGL_JINJA_DICT: return dicts_equal(runtime, a.dict, b.dict, depth, out);
    case MGL_JINJA_RANGE: *out = ranges_equal(a.range, b.range); return MGL_OK;
    case MGL_JINJA_LIST:
    case MGL_JINJA_TUPLE:
      *out = a.list->count == b.list->count;
      for (size_t i = 0; i < a.list->count && *out; i++) {
        MGL_TRY(equal_at(runtime, a.list->items[i], b.list->items[i], depth + 1, out));
      }
      return MGL_OK;
    case MGL_JINJA_VIEW:
    case MGL_JINJA_METHOD:
      return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "comparing a %s is not supported",
                            mgl_jinja_type_name(a));
    default: *out = a.list == b.list; return MGL_OK;  // identity, whichever pointer it is
  }
}

mgl_status mgl_jinja_equal(mgl_jinja_runtime *runtime, mgl_jinja_value a, mgl_jinja_value b,
                           bool *out) {
  return equal_at(runtime, a, b, 0, out);
}

static mgl_status order_at(mgl_jinja_runtime *runtime, mgl_jinja_value a, mgl_jinja_value b,
                           size_t depth, int *order) {
  MGL_TRY(check_depth(runtime, depth));
  double left = 0;
  double right = 0;
  if (mgl_jinja_is_integer(a) && mgl_jinja_is_integer(b)) {
    int64_t x = mgl_jinja_as_integer(a);
    int64_t y = mgl_jinja_as_integer(b);
    *order = (x > y) - (x < y);
    return MGL_OK;
  }
  if (mgl_jinja_as_number(a, &left) && mgl_jinja_as_number(b, &right)) {
    if (isnan(left) || isnan(right)) {
      return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "ordering a NaN is not supported");
    }
    *order = (left > right) - (left < right);
    return MGL_OK;
  }
  if (a.kind == MGL_JINJA_STRING && b.kind == MGL_JINJA_STRING) {
    *order = mgl_jinja_text_compare(a.string, b.string);
    return mgl_jinja_charge(runtime, a.string.bytes / 64);
  }
  if (a.kind != b.kind || (a.kind != MGL_JINJA_LIST && a.kind != MGL_JINJA_TUPLE)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "cannot order a %s and a %s",
                          mgl_jinja_type_name(a), mgl_jinja_type_name(b));
  }
  // As in Python, the first pair that is not equal decides; only that pair must have an order.
  for (size_t i = 0; i < a.list->count && i < b.list->count; i++) {
    bool same = false;
    MGL_TRY(equal_at(runtime, a.list->items[i], b.list->items[i], depth + 1, &same));
    if (!same) {
      return order_at(runtime, a.list->items[i], b.list->items[i], depth + 1, order);
    }
  }
  *order = (a.list->count > b.list->count) - (a.list->count < b.list->count);
  return MGL_OK;
}

mgl_status mgl_jinja_order(mgl_jinja_runtime *runtime, mgl_jinja_value a, mgl_jinja_value b,
                           int *order) {
  return order_at(runtime, a, b, 0, order);
}

// --- iteration -----------------------------------------------------------------------------------

bool mgl_jinja_is_iterable(mgl_jinja_value value) {
  switch ((mgl_jinja_kind)value.kind) {
    case MGL_JINJA_UNDEFINED:
    case MGL_JINJA_STRING:
    case MGL_JINJA_LIST:
    case MGL_JINJA_TUPLE:
    case MGL_JINJA_VIEW:
    case MGL_JINJA_ITERATOR:
    case MGL_JINJA_DICT:
    case MGL_JINJA_RANGE: return true;
    default: return false;
  }
}

mgl_status mgl_jinja_iterate(mgl_jinja_runtime *runtime, mgl_jinja_value source,
                             mgl_jinja_cursor *out) {
  if (!mgl_jinja_is_iterable(source)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "a %s cannot be iterated over",
                          mgl_jinja_type_name(source));
  }
  *out = (mgl_jinja_cursor){.source = source, .position = 0};
  return MGL_OK;
}

mgl_status mgl_jinja_next(mgl_jinja_runtime *runtime, mgl_jinja_cursor *cursor,
                          mgl_jinja_value *out, bool *more) {
  MGL_TRY(mgl_jinja_charge(runtime, 1));
  mgl_jinja_value source = cursor->source;
  size_t *position = source.kind == MGL_JINJA_ITERATOR ? &source.list->cursor : &cursor->position;
  *more = false;
  switch ((mgl_jinja_kind)source.kind) {
    case MGL_JINJA_STRING:
      *more = *position < source.string.bytes;
      if (*more) {
        int32_t codepoint = 0;
        size_t bytes = mgl_jinja_text_decode(source.string, *position, &codepoint);
        *out = mgl_jinja_string_value(
            mgl_jinja_text_part(source.string, *position, *position + bytes));
        *position += bytes;
      }
      return MGL_OK;
    case MGL_JINJA_DICT:
      *more = *position < source.dict->count;
      if (*more) {
        *out = source.dict->pairs[(*position)++].key;
      }
      return MGL_OK;
    case MGL_JINJA_RANGE:
      *more = (int64_t)*position < source.range->count;
      if (*more) {
        *out = mgl_jinja_int(source.range->start + source.range->step * (int64_t)(*position)++);
      }
      return MGL_OK;
    case MGL_JINJA_LIST:
    case MGL_JINJA_TUPLE:
    case MGL_JINJA_VIEW:
    case MGL_JINJA_ITERATOR:
      *more = *position < source.list->count;
      if (*more) {
        *out = source.list->items[(*position)++];
      }
      return MGL_OK;
    default: return MGL_OK;
  }
}

mgl_status mgl_jinja_collect(mgl_jinja_runtime *runtime, mgl_jinja_value source,
                             mgl_jinja_kind kind, mgl_jinja_value *out) {
  mgl_jinja_cursor cursor;
  MGL_TRY(mgl_jinja_iterate(runtime, source, &cursor));
  MGL_TRY(mgl_jinja_list_new(runtime, kind, out));
  for (;;) {
    mgl_jinja_value item;
    bool more = false;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &item, &more));
    if (!more) {
      return MGL_OK;
    }
    MGL_TRY(mgl_jinja_list_add(runtime, out->list, item));
  }
}
