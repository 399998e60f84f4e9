#include "template/jinja_operators.h"

#include <math.h>
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_parse.h"

mgl_status mgl_jinja_require_defined(mgl_jinja_runtime *runtime, mgl_jinja_value value) {
  if (value.kind == MGL_JINJA_UNDEFINED) {
    size_t bytes = value.string.bytes < 100 ? value.string.bytes : 100;
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "'%.*s' is undefined", (int)bytes,
                          value.string.data);
  }
  return MGL_OK;
}

static mgl_status fail_operands(mgl_jinja_runtime *runtime, char op, mgl_jinja_value a,
                                mgl_jinja_value b) {
  MGL_TRY(mgl_jinja_require_defined(runtime, a));
  MGL_TRY(mgl_jinja_require_defined(runtime, b));
  const char *name = op == MGL_JINJA_OP_POWER          ? "**"
                     : op == MGL_JINJA_OP_FLOOR_DIVIDE ? "//"
                                                       : NULL;
  char single[2] = {op, 0};
  return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s has no meaning for a %s and a %s",
                        name != NULL ? name : single, mgl_jinja_type_name(a),
                        mgl_jinja_type_name(b));
}

static mgl_status fail_overflow(const mgl_jinja_runtime *runtime) {
  return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "an integer beyond 64 bits is not supported");
}

// --- arithmetic ----------------------------------------------------------------------------------

static mgl_status integer_power(mgl_jinja_runtime *runtime, int64_t base, int64_t exponent,
                                mgl_jinja_value *out) {
  if (exponent < 0) {
    if (base == 0) {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "division by zero");
    }
    *out = mgl_jinja_float(pow((double)base, (double)exponent));
    return MGL_OK;
  }
  int64_t result = 1;
  // Only 0, 1 and -1 have powers beyond the 63rd.
  if (base >= -1 && base <= 1) {
    result = exponent == 0 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : base;
    *out = mgl_jinja_int(result);
    return MGL_OK;
  }
  for (int64_t i = 0; i < exponent; i++) {
    if (__builtin_mul_overflow(result, base, &result)) {
      return fail_overflow(runtime);
    }
  }
  *out = mgl_jinja_int(result);
  return MGL_OK;
}

static mgl_status integer_arithmetic(mgl_jinja_runtime *runtime, char op, int64_t a, int64_t b,
                                     mgl_jinja_value *out) {
  int64_t result = 0;
  bool overflow = false;
  bool divides = op == '/' || op == '%' || op == MGL_JINJA_OP_FLOOR_DIVIDE;
  if (divides && b == 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "division by zero");
  }
  switch (op) {
    case '+': overflow = __builtin_add_overflow(a, b, &result); break;
    case '-': overflow = __builtin_sub_overflow(a, b, &result); break;
    case '*': overflow = __builtin_mul_overflow(a, b, &result); break;
    case MGL_JINJA_OP_POWER: return integer_power(runtime, a, b, out);
    case '/':
      // Beyond 2^53 the quotient of the rounded operands may differ from the rounded quotient.
      if (a > INT64_C(1) << 53 || a < -(INT64_C(1) << 53) || b > INT64_C(1) << 53 ||
          b < -(INT64_C(1) << 53)) {
        return fail_overflow(runtime);
      }
      *out = mgl_jinja_float((double)a / (double)b);
      return MGL_OK;
    case '%': result = b == -1 ? 0 : a % b; break;
    default:
      overflow = a == INT64_MIN && b == -1;
      result = overflow ? 0 : a / b;
      break;
  }
  if (overflow) {
    return fail_overflow(runtime);
  }
  // Python rounds towards minus infinity, C towards zero.
  bool inexact = divides && b != -1 && a % b != 0 && (a < 0) != (b < 0);
  if (inexact) {
    result = op == '%' ? result + b : result - 1;
  }
  *out = mgl_jinja_int(result);
  return MGL_OK;
}

static double floor_modulo(double a, double b) {
  double result = fmod(a, b);
  if (result != 0) {
    return (result < 0) != (b < 0) ? result + b : result;
  }
  return copysign(0.0, b);
}

// a // b by way of the remainder, as Python does it: floor(a / b) would round twice.
static double floor_divide(double a, double b) {
  double quotient = (a - floor_modulo(a, b)) / b;
  if (quotient == 0) {
    return copysign(0.0, a / b);
  }
  double whole = floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

static mgl_status float_arithmetic(mgl_jinja_runtime *runtime, char op, double a, double b,
                                   mgl_jinja_value *out) {
  double result = 0;
  if ((op == '/' || op == '%' || op == MGL_JINJA_OP_FLOOR_DIVIDE) && b == 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "division by zero");
  }
  switch (op) {
    case '+': result = a + b; break;
    case '-': result = a - b; break;
    case '*': result = a * b; break;
    case '/': result = a / b; break;
    case '%': result = floor_modulo(a, b); break;
    case MGL_JINJA_OP_FLOOR_DIVIDE: result = floor_divide(a, b); break;
    default:
      result = pow(a, b);
      if ((isnan(result) && !isnan(a) && !isnan(b)) || (isinf(result) && !isinf(a) && !isinf(b))) {
        return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED,
                              "this power is no float of finite size");
      }
      break;
  }
  *out = mgl_jinja_float(result);
  return MGL_OK;
}

// text * count, list * count.
static mgl_status repeat(mgl_jinja_runtime *runtime, mgl_jinja_value sequence, int64_t count,
                         mgl_jinja_value *out) {
  count = count < 0 ? 0 : count;
  if (sequence.kind == MGL_JINJA_STRING) {
    size_t bytes = 0;
    char *data = NULL;
    if (__builtin_mul_overflow(sequence.string.bytes, (uint64_t)count, &bytes)) {
      return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "a text repeated %lld times is too long",
                            (long long)count);
    }
    MGL_TRY(mgl_jinja_text_new(runtime, bytes, &data));
    for (size_t at = 0; at < bytes; at += sequence.string.bytes) {
      memcpy(data + at, sequence.string.data, sequence.string.bytes);
    }
    *out = mgl_jinja_string_value((mgl_jinja_string){data, bytes});
    return MGL_OK;
  }
  MGL_TRY(mgl_jinja_list_new(runtime, (mgl_jinja_kind)sequence.kind, out));
  if (sequence.list->count == 0) {
    return MGL_OK;
  }
  for (int64_t i = 0; i < count; i++) {
    MGL_TRY(mgl_jinja_charge(runtime, sequence.list->count));
    for (size_t j = 0; j < sequence.list->count; j++) {
      MGL_TRY(mgl_jinja_list_add(runtime, out->list, sequence.list->items[j]));
    }
  }
  return MGL_OK;
}

static mgl_status join_lists(mgl_jinja_runtime *runtime, const mgl_jinja_list *a,
                             const mgl_jinja_list *b, mgl_jinja_kind kind, mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_list_new(runtime, kind, out));
  MGL_TRY(mgl_jinja_charge(runtime, a->count + b->count));
  for (size_t i = 0; i < a->count + b->count; i++) {
    MGL_TRY(mgl_jinja_list_add(runtime, out->list,
                               i < a->count ? a->items[i] : b->items[i - a->count]));
  }
  return MGL_OK;
}

static bool is_sequence(mgl_jinja_value value) {
  return value.kind == MGL_JINJA_STRING || value.kind == MGL_JINJA_LIST ||
         value.kind == MGL_JINJA_TUPLE;
}

mgl_status mgl_jinja_binary(mgl_jinja_runtime *runtime, char op, mgl_jinja_value a,
                            mgl_jinja_value b, mgl_jinja_value *out) {
  double left = 0;
  double right = 0;
  if (mgl_jinja_is_integer(a) && mgl_jinja_is_integer(b)) {
    return integer_arithmetic(runtime, op, mgl_jinja_as_integer(a), mgl_jinja_as_integer(b), out);
  }
  if (mgl_jinja_as_number(a, &left) && mgl_jinja_as_number(b, &right)) {
    return float_arithmetic(runtime, op, left, right, out);
  }
  if (op == '+' && a.kind == b.kind && is_sequence(a)) {
    if (a.kind != MGL_JINJA_STRING) {
      return join_lists(runtime, a.list, b.list, (mgl_jinja_kind)a.kind, out);
    }
    if (a.safe != b.safe) {  // the other one is escaped
      MGL_TRY(mgl_jinja_escape(runtime, a.string, a.safe, &a));
      MGL_TRY(mgl_jinja_escape(runtime, b.string, b.safe, &b));
    }
    *out = a;
    return mgl_jinja_text_concat(runtime, a.string, b.string, &out->string);
  }
  if (op == '*' && is_sequence(a) && mgl_jinja_is_integer(b)) {
    return repeat(runtime, a, mgl_jinja_as_integer(b), out);
  }
  if (op == '*' && is_sequence(b) && mgl_jinja_is_integer(a)) {
    return repeat(runtime, b, mgl_jinja_as_integer(a), out);
  }
  if (op == '%' && a.kind == MGL_JINJA_STRING) {
    return mgl_jinja_format_percent(runtime, a, b, out);
  }
  return fail_operands(runtime, op, a, b);
}

mgl_status mgl_jinja_unary(mgl_jinja_runtime *runtime, char op, mgl_jinja_value a,
                           mgl_jinja_value *out) {
  if (a.kind == MGL_JINJA_FLOAT) {
    *out = mgl_jinja_float(op == '-' ? -a.number : a.number);
    return MGL_OK;
  }
  if (mgl_jinja_is_integer(a)) {
    return integer_arithmetic(runtime, op, 0, mgl_jinja_as_integer(a), out);
  }
  MGL_TRY(mgl_jinja_require_defined(runtime, a));
  return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%c has no meaning for a %s", op,
                        mgl_jinja_type_name(a));
}

// --- comparison ----------------------------------------------------------------------------------

static mgl_status is_in(mgl_jinja_runtime *runtime, mgl_jinja_value item, mgl_jinja_value container,
                        bool *out) {
  *out = false;
  if (container.kind == MGL_JINJA_STRING) {
    if (item.kind != MGL_JINJA_STRING) {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT,
                            "expected a str to look for in a str, found %s",
                            mgl_jinja_type_name(item));
    }
    MGL_TRY(mgl_jinja_charge(runtime, container.string.bytes / 8));
    *out = mgl_jinja_text_find(container.string, item.string, 0) != SIZE_MAX;
    return MGL_OK;
  }
  if (container.kind == MGL_JINJA_DICT) {
    mgl_jinja_value *found = NULL;
    if (!mgl_jinja_is_hashable(item)) {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "a %s cannot be a dict key",
                            mgl_jinja_type_name(item));
    }
    MGL_TRY(mgl_jinja_dict_find(runtime, container.dict, item, &found));
    *out = found != NULL;
    return MGL_OK;
  }
  mgl_jinja_cursor cursor;
  MGL_TRY(mgl_jinja_iterate(runtime, container, &cursor));
  while (!*out) {
    mgl_jinja_value other;
    bool more = false;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &other, &more));
    if (!more) {
      break;
    }
    MGL_TRY(mgl_jinja_equal(runtime, item, other, out));
  }
  return MGL_OK;
}

mgl_status mgl_jinja_compare(mgl_jinja_runtime *runtime, char op, mgl_jinja_value a,
                             mgl_jinja_value b, bool *out) {
  int order = 0;
  switch (op) {
    case MGL_JINJA_OP_EQUAL: return mgl_jinja_equal(runtime, a, b, out);
    case MGL_JINJA_OP_NOT_EQUAL:
      MGL_TRY(mgl_jinja_equal(runtime, a, b, out));
      *out = !*out;
      return MGL_OK;
    case MGL_JINJA_OP_IN: return is_in(runtime, a, b, out);
    case MGL_JINJA_OP_NOT_IN:
      MGL_TRY(is_in(runtime, a, b, out));
      *out = !*out;
      return MGL_OK;
    default: break;
  }
  MGL_TRY(mgl_jinja_require_defined(runtime, a));
  MGL_TRY(mgl_jinja_require_defined(runtime, b));
  MGL_TRY(mgl_jinja_order(runtime, a, b, &order));
  *out = op == '<'                       ? order < 0
         : op == '>'                     ? order > 0
         : op == MGL_JINJA_OP_LESS_EQUAL ? order <= 0
                                         : order >= 0;
  return MGL_OK;
}

// --- attributes and subscripts -------------------------------------------------------------------

// A method of the object as a value; *known is false if it has none of that name.
static mgl_status get_method(mgl_jinja_runtime *runtime, mgl_jinja_value object,
                             mgl_jinja_string name, mgl_jinja_value *out, bool *known) {
  const mgl_jinja_builtin *builtin = mgl_jinja_find_method(object, name);
  *known = builtin != NULL;
  if (builtin != NULL && object.kind == MGL_JINJA_STRING && object.safe) {
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED,
                          "methods of a |safe text escape their arguments: not supported");
  }
  if (builtin != NULL) {
    mgl_jinja_method *method = mgl_arena_alloc(&runtime->arena, sizeof *method);
    if (method == NULL) {
      return mgl_jinja_fail_memory(runtime);
    }
    *method = (mgl_jinja_method){object, builtin};
    *out = (mgl_jinja_value){.kind = MGL_JINJA_METHOD, .method = method};
  }
  return MGL_OK;
}

static mgl_status find_in_dict(mgl_jinja_runtime *runtime, const mgl_jinja_dict *dict,
                               mgl_jinja_value key, mgl_jinja_value *out) {
  mgl_jinja_value *found = NULL;
  MGL_TRY(mgl_jinja_dict_find(runtime, dict, key, &found));
  if (found != NULL) {
    *out = *found;
  }
  return MGL_OK;
}

static void find_block(const mgl_jinja_runtime *runtime, mgl_jinja_string name,
                       mgl_jinja_value *out) {
  for (const mgl_jinja_node *block = runtime->blocks; block != NULL; block = block->second) {
    if (mgl_jinja_text_equal(block->value.string, name)) {
      *out = (mgl_jinja_value){.kind = MGL_JINJA_BLOCK, .block = block};
    }
  }
}

// What groupby gives has names for its two items.
static bool find_group_field(mgl_jinja_value group, mgl_jinja_string name, mgl_jinja_value *out) {
  bool is_list = mgl_jinja_text_is(name, "list");
  if (is_list || mgl_jinja_text_is(name, "grouper")) {
    *out = group.list->items[is_list ? 1 : 0];
    return true;
  }
  return false;
}

mgl_status mgl_jinja_get_attribute(mgl_jinja_runtime *runtime, mgl_jinja_value object,
                                   mgl_jinja_string name, mgl_jinja_value *out) {
  bool known = false;
  MGL_TRY(mgl_jinja_require_defined(runtime, object));
  *out = mgl_jinja_undefined(name);
  switch ((mgl_jinja_kind)object.kind) {
    case MGL_JINJA_NAMESPACE:
      return find_in_dict(runtime, object.dict, mgl_jinja_string_value(name), out);
    case MGL_JINJA_LOOP:
      MGL_TRY(mgl_jinja_loop_attribute(runtime, object.loop, name, out, &known));
      return known ? MGL_OK : get_method(runtime, object, name, out, &known);
    case MGL_JINJA_SELF: find_block(runtime, name, out); return MGL_OK;
    case MGL_JINJA_CYCLER:
      if (mgl_jinja_text_is(name, "current")) {
        *out = object.list->items[object.list->cursor];
        return MGL_OK;
      }
      break;
    case MGL_JINJA_TUPLE:
      if (object.view != 0 && find_group_field(object, name, out)) {
        return MGL_OK;
      }
      break;
    case MGL_JINJA_MACRO:
    case MGL_JINJA_FUNCTION:
    case MGL_JINJA_METHOD:
      return mgl_jinja_fail(
          runtime, MGL_ERR_UNSUPPORTED, "attributes of a %s are not supported: %.*s",
          mgl_jinja_type_name(object), (int)(name.bytes < 40 ? name.bytes : 40), name.data);
    default: break;
  }
  // As in Jinja, a method hides a key of the same name here: message.items is the method.
  MGL_TRY(get_method(runtime, object, name, out, &known));
  if (!known && object.kind == MGL_JINJA_DICT) {
    return find_in_dict(runtime, object.dict, mgl_jinja_string_value(name), out);
  }
  return MGL_OK;
}

// The item at an index that may be negative; *out is left alone outside of the object.
static mgl_status get_index(mgl_jinja_runtime *runtime, mgl_jinja_value object, int64_t index,
                            mgl_jinja_value *out) {
  size_t length = 0;
  if (object.kind == MGL_JINJA_STRING) {
    MGL_TRY(mgl_jinja_charge(runtime, object.string.bytes / 16));
  }
  (void)mgl_jinja_length(object, &length);
  if (index < 0) {
    index += (int64_t)length;
  }
  if (index < 0 || index >= (int64_t)length) {
    return MGL_OK;
  }
  if (object.kind == MGL_JINJA_RANGE) {
    *out = mgl_jinja_int(object.range->start + object.range->step * index);
  } else if (object.kind == MGL_JINJA_STRING) {
    size_t from = mgl_jinja_text_offset(object.string, (size_t)index);
    mgl_jinja_string rest = mgl_jinja_text_part(object.string, from, object.string.bytes);
    *out = mgl_jinja_string_value(mgl_jinja_text_part(rest, 0, mgl_jinja_text_offset(rest, 1)));
    out->safe = object.safe;
  } else {
    *out = object.list->items[index];
  }
  return MGL_OK;
}

mgl_status mgl_jinja_get_item(mgl_jinja_runtime *runtime, mgl_jinja_value object,
                              mgl_jinja_value key, mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_require_defined(runtime, object));
  *out =
      mgl_jinja_undefined(key.kind == MGL_JINJA_STRING ? key.string : MGL_JINJA_LITERAL("[...]"));
  if (object.kind == MGL_JINJA_DICT) {
    if (mgl_jinja_is_hashable(key)) {
      mgl_jinja_value *found = NULL;
      MGL_TRY(mgl_jinja_dict_find(runtime, object.dict, key, &found));
      if (found != NULL) {
        *out = *found;
        return MGL_OK;
      }
    }
  } else if ((is_sequence(object) || object.kind == MGL_JINJA_RANGE) && mgl_jinja_is_integer(key)) {
    return get_index(runtime, object, mgl_jinja_as_integer(key), out);
  }
  if (key.kind == MGL_JINJA_STRING) {  // Jinja's fallback: object["name"] may be object.name
    return mgl_jinja_get_attribute(runtime, object, key.string, out);
  }
  return MGL_OK;
}

// --- slices --------------------------------------------------------------------------------------

static mgl_status slice_bound(mgl_jinja_runtime *runtime, mgl_jinja_value bound, int64_t fallback,
                              int64_t *out) {
  *out = fallback;
  if (bound.kind == MGL_JINJA_NONE) {
    return MGL_OK;
  }
  if (!mgl_jinja_is_integer(bound)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "expected an int or none in a slice, found %s",
                          mgl_jinja_type_name(bound));
  }
  *out = mgl_jinja_as_integer(bound);
  return MGL_OK;
}

// Python's rule: a negative bound counts from the end, then it is clamped to where a walk in the
// step's direction can start or stop.
static int64_t clamp_bound(int64_t bound, int64_t length, bool forward) {
  int64_t lowest = forward ? 0 : -1;
  int64_t highest = forward ? length : length - 1;
  if (bound < 0) {
    bound = bound < -length ? lowest : bound + length;
  }
  return bound < lowest ? lowest : bound > highest ? highest : bound;
}

static mgl_status slice_text(mgl_jinja_runtime *runtime, mgl_jinja_string text, int64_t start,
                             int64_t step, int64_t count, mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 64));
  if (step == 1 || count == 0) {
    size_t from = count == 0 ? 0 : mgl_jinja_text_offset(text, (size_t)start);
    mgl_jinja_string rest = mgl_jinja_text_part(text, from, text.bytes);
    *out = mgl_jinja_string_value(
        mgl_jinja_text_part(rest, 0, mgl_jinja_text_offset(rest, (size_t)count)));
    return MGL_OK;
  }
  // Walk code point by code point, so that a reversal stays linear.
  mgl_jinja_builder builder = {.runtime = runtime};
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 8));
  size_t at = mgl_jinja_text_offset(text, (size_t)start);
  for (int64_t i = 0; i < count; i++) {
    int32_t codepoint = 0;
    size_t bytes = mgl_jinja_text_decode(text, at, &codepoint);
    mgl_jinja_builder_add(&builder, mgl_jinja_text_part(text, at, at + bytes));
    for (int64_t j = 0; j < (step < 0 ? -step : step) && i + 1 < count; j++) {
      at = step < 0 ? at - mgl_jinja_text_decode_before(text, at, &codepoint)
                    : at + mgl_jinja_text_decode(text, at, &codepoint);
    }
  }
  return mgl_jinja_builder_finish(&builder, out);
}

static mgl_status slice_range(mgl_jinja_runtime *runtime, const mgl_jinja_range *range,
                              int64_t start, int64_t step, int64_t count, mgl_jinja_value *out) {
  mgl_jinja_range *part = mgl_arena_alloc(&runtime->arena, sizeof *part);
  if (part == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  part->start = range->start + start * range->step;
  part->count = count;
  if (__builtin_mul_overflow(step, range->step, &part->step) ||
      __builtin_mul_overflow(part->step, count, &part->stop) ||
      __builtin_add_overflow(part->stop, part->start, &part->stop)) {
    return fail_overflow(runtime);
  }
  *out = (mgl_jinja_value){.kind = MGL_JINJA_RANGE, .range = part};
  return MGL_OK;
}

mgl_status mgl_jinja_slice(mgl_jinja_runtime *runtime, mgl_jinja_value object,
                           const mgl_jinja_value *bounds, mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_require_defined(runtime, object));
  size_t length_found = 0;
  if ((!is_sequence(object) && object.kind != MGL_JINJA_RANGE) ||
      !mgl_jinja_length(object, &length_found)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "a %s cannot be sliced",
                          mgl_jinja_type_name(object));
  }
  int64_t length = (int64_t)length_found;
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  MGL_TRY(slice_bound(runtime, bounds[2], 1, &step));
  if (step == 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "the step of a slice is zero");
  }
  step = step < -INT64_MAX ? -INT64_MAX : step;
  MGL_TRY(slice_bound(runtime, bounds[0], step > 0 ? 0 : INT64_MAX, &start));
  MGL_TRY(slice_bound(runtime, bounds[1], step > 0 ? INT64_MAX : INT64_MIN, &stop));
  start = clamp_bound(start, length, step > 0);
  stop = clamp_bound(stop, length, step > 0);
  int64_t distance = step > 0 ? stop - start : start - stop;
  int64_t stride = step > 0 ? step : -step;
  int64_t count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (object.kind == MGL_JINJA_STRING) {
    MGL_TRY(slice_text(runtime, object.string, start, step, count, out));
    out->safe = object.safe;
    return MGL_OK;
  }
  if (object.kind == MGL_JINJA_RANGE) {
    return slice_range(runtime, object.range, start, step, count, out);
  }
  MGL_TRY(mgl_jinja_list_new(runtime, (mgl_jinja_kind)object.kind, out));
  MGL_TRY(mgl_jinja_charge(runtime, (size_t)count));
  for (int64_t i = 0; i < count; i++) {
    MGL_TRY(mgl_jinja_list_add(runtime, out->list, object.list->items[start + i * step]));
  }
  return MGL_OK;
}
