// Binding arguments to builtins, the tests, and the global functions.
#include "template/jinja_builtins.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "template/jinja_operators.h"
#include "template/jinja_parse.h"

// --- lookup and binding --------------------------------------------------------------------------

static const mgl_jinja_builtin *find(const mgl_jinja_builtin *table, mgl_jinja_string name) {
  for (; table->name != NULL; table++) {
    if (mgl_jinja_text_is(name, table->name)) {
      return table;
    }
  }
  return NULL;
}

const mgl_jinja_builtin *mgl_jinja_find_filter(mgl_jinja_string name) {
  const mgl_jinja_builtin *found = find(mgl_jinja_filters, name);
  found = found != NULL ? found : find(mgl_jinja_list_filters, name);
  return found != NULL ? found : find(mgl_jinja_text_filters, name);
}

// Index of a parameter by its name in "first second third"; SIZE_MAX if it is not among them.
static size_t parameter_index(const char *parameters, mgl_jinja_string name) {
  size_t idx = 0;
  for (const char *at = parameters; *at != 0; idx++) {
    size_t bytes = strcspn(at, " ");
    if (mgl_jinja_text_equal(name, (mgl_jinja_string){at, bytes})) {
      return idx;
    }
    at += bytes;
    at += *at == ' ';
  }
  return SIZE_MAX;
}

static size_t parameter_count(const char *parameters) {
  size_t count = *parameters != 0;
  for (; *parameters != 0; parameters++) {
    count += *parameters == ' ';
  }
  return count;
}

static mgl_status bind(mgl_jinja_runtime *runtime, const char *what, mgl_jinja_call *call) {
  const mgl_jinja_builtin *builtin = call->builtin;
  size_t count = parameter_count(builtin->parameters);
  if (call->argument_count > count) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s %s takes at most %zu arguments, found %zu",
                          what, builtin->name, count, call->argument_count);
  }
  for (size_t i = 0; i < call->argument_count; i++) {
    call->bound[i] = call->arguments[i];
  }
  for (size_t i = 0; i < call->keyword_count; i++) {
    mgl_jinja_string name = call->keywords[i].name;
    size_t idx = parameter_index(builtin->parameters, name);
    if (idx == SIZE_MAX || call->bound[idx].kind != MGL_JINJA_ABSENT) {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s %s: %s argument \"%.*s\"", what,
                            builtin->name, idx == SIZE_MAX ? "unknown" : "repeated",
                            (int)(name.bytes < 40 ? name.bytes : 40), name.data);
    }
    call->bound[idx] = call->keywords[i].value;
  }
  for (size_t i = 0; i < builtin->required; i++) {
    if (call->bound[i].kind == MGL_JINJA_ABSENT) {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s %s: argument %zu of \"%s\" is missing",
                            what, builtin->name, i + 1, builtin->parameters);
    }
  }
  return MGL_OK;
}

// Filters that make a |safe text of one; others give plain text.
static bool keeps_safe(const mgl_jinja_builtin *filter) {
  static const char *const names[] = {"upper",  "lower",  "capitalize", "trim",
                                      "center", "indent", "string"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(filter->name, names[i]) == 0) {
      return true;
    }
  }
  return false;
}

mgl_status mgl_jinja_call_builtin(mgl_jinja_runtime *runtime, const char *what,
                                  mgl_jinja_call *call, mgl_jinja_value *out) {
  if (call->builtin->function == NULL) {
    return mgl_jinja_fail(
        runtime, MGL_ERR_UNSUPPORTED, "%s %s%s%s is not supported", what,
        call->self.kind == MGL_JINJA_ABSENT ? "" : mgl_jinja_type_name(call->self),
        call->self.kind == MGL_JINJA_ABSENT ? "" : ".", call->builtin->name);
  }
  if (call->builtin->parameters != NULL) {
    MGL_TRY(bind(runtime, what, call));
  }
  MGL_TRY(call->builtin->function(runtime, call, out));
  if (call->self.kind == MGL_JINJA_STRING && call->self.safe && out->kind == MGL_JINJA_STRING) {
    out->safe = out->safe || keeps_safe(call->builtin);
  }
  return MGL_OK;
}

static mgl_status fail_type(mgl_jinja_runtime *runtime, const mgl_jinja_call *call, size_t idx,
                            const char *expected) {
  return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s: argument %zu: expected %s, found %s",
                        call->builtin->name, idx + 1, expected,
                        mgl_jinja_type_name(call->bound[idx]));
}

mgl_status mgl_jinja_string_argument(mgl_jinja_runtime *runtime, const mgl_jinja_call *call,
                                     size_t idx, mgl_jinja_string *out) {
  if (call->bound[idx].kind == MGL_JINJA_ABSENT) {
    return MGL_OK;
  }
  if (call->bound[idx].kind != MGL_JINJA_STRING) {
    return fail_type(runtime, call, idx, "a str");
  }
  *out = call->bound[idx].string;
  return MGL_OK;
}

mgl_status mgl_jinja_integer_argument(mgl_jinja_runtime *runtime, const mgl_jinja_call *call,
                                      size_t idx, int64_t *out) {
  if (call->bound[idx].kind == MGL_JINJA_ABSENT) {
    return MGL_OK;
  }
  if (!mgl_jinja_is_integer(call->bound[idx])) {
    return fail_type(runtime, call, idx, "an int");
  }
  *out = mgl_jinja_as_integer(call->bound[idx]);
  return MGL_OK;
}

void mgl_jinja_bool_argument(const mgl_jinja_call *call, size_t idx, bool *out) {
  if (call->bound[idx].kind != MGL_JINJA_ABSENT) {
    *out = mgl_jinja_is_true(call->bound[idx]);
  }
}

// --- tests ---------------------------------------------------------------------------------------

// Tests that look at the value's type alone share one function and differ by their name.
static mgl_status test_type(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                            mgl_jinja_value *out) {
  (void)runtime;
  const char *name = call->builtin->name;
  mgl_jinja_value v = call->self;
  bool is_bool = v.kind == MGL_JINJA_BOOL;
  bool sized = v.kind == MGL_JINJA_STRING || v.kind == MGL_JINJA_LIST ||
               v.kind == MGL_JINJA_TUPLE || v.kind == MGL_JINJA_DICT || v.kind == MGL_JINJA_RANGE ||
               v.kind == MGL_JINJA_UNDEFINED;
  const struct {
    const char *name;
    bool holds;
  } table[] = {
      {"defined", v.kind != MGL_JINJA_UNDEFINED},
      {"undefined", v.kind == MGL_JINJA_UNDEFINED},
      {"none", v.kind == MGL_JINJA_NONE},
      {"string", v.kind == MGL_JINJA_STRING},
      {"mapping", v.kind == MGL_JINJA_DICT},
      {"iterable",
       mgl_jinja_is_iterable(v) || v.kind == MGL_JINJA_LOOP || v.kind == MGL_JINJA_SELF},
      {"sequence", sized},
      {"number", is_bool || v.kind == MGL_JINJA_INT || v.kind == MGL_JINJA_FLOAT},
      {"integer", v.kind == MGL_JINJA_INT},
      {"float", v.kind == MGL_JINJA_FLOAT},
      {"boolean", is_bool},
      {"true", is_bool && v.boolean},
      {"false", is_bool && !v.boolean},
      {"callable", mgl_jinja_is_callable(v)},
      {"escaped", v.kind == MGL_JINJA_STRING && v.safe},
  };
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    if (strcmp(name, table[i].name) == 0) {
      *out = mgl_jinja_bool(table[i].holds);
    }
  }
  return MGL_OK;
}

static mgl_status compare_with(mgl_jinja_runtime *runtime, mgl_jinja_call *call, char op,
                               mgl_jinja_value *out) {
  bool holds = false;
  MGL_TRY(mgl_jinja_compare(runtime, op, call->self, call->bound[0], &holds));
  *out = mgl_jinja_bool(holds);
  return MGL_OK;
}

static mgl_status test_equal(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  return compare_with(runtime, call, MGL_JINJA_OP_EQUAL, out);
}

static mgl_status test_not_equal(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  return compare_with(runtime, call, MGL_JINJA_OP_NOT_EQUAL, out);
}

static mgl_status test_less(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                            mgl_jinja_value *out) {
  return compare_with(runtime, call, '<', out);
}

static mgl_status test_less_equal(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                  mgl_jinja_value *out) {
  return compare_with(runtime, call, MGL_JINJA_OP_LESS_EQUAL, out);
}

static mgl_status test_greater(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  return compare_with(runtime, call, '>', out);
}

static mgl_status test_greater_equal(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                     mgl_jinja_value *out) {
  return compare_with(runtime, call, MGL_JINJA_OP_GREATER_EQUAL, out);
}

static mgl_status test_in(mgl_jinja_runtime *runtime, mgl_jinja_call *call, mgl_jinja_value *out) {
  return compare_with(runtime, call, MGL_JINJA_OP_IN, out);
}

// Python's `is`. Equal texts and numbers may be one object or two, which nothing here can tell.
static mgl_status test_same(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                            mgl_jinja_value *out) {
  mgl_jinja_value a = call->self;
  mgl_jinja_value b = call->bound[0];
  bool same = false;
  bool known = true;
  *out = mgl_jinja_bool(false);
  if (a.kind != b.kind) {
    return MGL_OK;
  }
  switch ((mgl_jinja_kind)a.kind) {
    case MGL_JINJA_NONE:
    case MGL_JINJA_SELF: same = true; break;
    case MGL_JINJA_BOOL: same = a.boolean == b.boolean; break;
    case MGL_JINJA_INT:
      same = a.integer == b.integer;
      known = !same || (a.integer >= -5 && a.integer <= 256);
      break;
    case MGL_JINJA_FLOAT: known = a.number != b.number; break;
    case MGL_JINJA_STRING:
      same = mgl_jinja_text_equal(a.string, b.string);
      known = !same || a.string.data == b.string.data || a.string.bytes < 2;
      break;
    case MGL_JINJA_UNDEFINED:
    case MGL_JINJA_METHOD:
    case MGL_JINJA_BLOCK: break;
    default: same = a.list == b.list; break;  // whichever pointer it is
  }
  if (!known) {
    return mgl_jinja_fail(
        runtime, MGL_ERR_UNSUPPORTED,
        "sameas of two equal values of type %s is not supported: use ==", mgl_jinja_type_name(a));
  }
  *out = mgl_jinja_bool(same);
  return MGL_OK;
}

// Whether a name is that of a filter or test.
static mgl_status test_name(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                            mgl_jinja_value *out) {
  bool is_test = call->builtin->name[0] == 't';
  mgl_jinja_value v = call->self;
  if (!mgl_jinja_is_hashable(v)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s: a %s is no name", call->builtin->name,
                          mgl_jinja_type_name(v));
  }
  const mgl_jinja_builtin *found = v.kind != MGL_JINJA_STRING ? NULL
                                   : is_test                  ? mgl_jinja_find_test(v.string)
                                                              : mgl_jinja_find_filter(v.string);
  *out = mgl_jinja_bool(found != NULL);
  return MGL_OK;
}

// value % divisor == remainder; the divisor is the argument of divisibleby, else 2.
static mgl_status test_remainder(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  mgl_jinja_value divisor =
      call->bound[0].kind == MGL_JINJA_ABSENT ? mgl_jinja_int(2) : call->bound[0];
  mgl_jinja_value remainder;
  bool holds = false;
  MGL_TRY(mgl_jinja_binary(runtime, '%', call->self, divisor, &remainder));
  int64_t wanted = strcmp(call->builtin->name, "odd") == 0;
  MGL_TRY(mgl_jinja_equal(runtime, remainder, mgl_jinja_int(wanted), &holds));
  *out = mgl_jinja_bool(holds);
  return MGL_OK;
}

// isupper and islower of the text: some letter has a case, and all that have one have this.
static mgl_status test_case(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                            mgl_jinja_value *out) {
  mgl_jinja_string text;
  MGL_TRY(mgl_jinja_to_text(runtime, call->self, &text));
  mgl_jinja_call method = {.self = mgl_jinja_string_value(text)};
  bool upper = strcmp(call->builtin->name, "upper") == 0;
  method.builtin = find(mgl_jinja_string_methods,
                        upper ? MGL_JINJA_LITERAL("isupper") : MGL_JINJA_LITERAL("islower"));
  return mgl_jinja_call_builtin(runtime, "method", &method, out);
}

static const mgl_jinja_builtin tests[] = {
    {"defined", "", 0, test_type},
    {"undefined", "", 0, test_type},
    {"none", "", 0, test_type},
    {"string", "", 0, test_type},
    {"mapping", "", 0, test_type},
    {"iterable", "", 0, test_type},
    {"sequence", "", 0, test_type},
    {"number", "", 0, test_type},
    {"integer", "", 0, test_type},
    {"float", "", 0, test_type},
    {"boolean", "", 0, test_type},
    {"true", "", 0, test_type},
    {"false", "", 0, test_type},
    {"callable", "", 0, test_type},
    {"equalto", "other", 1, test_equal},
    {"eq", "other", 1, test_equal},
    {"==", "other", 1, test_equal},
    {"ne", "other", 1, test_not_equal},
    {"!=", "other", 1, test_not_equal},
    {"lt", "other", 1, test_less},
    {"lessthan", "other", 1, test_less},
    {"<", "other", 1, test_less},
    {"le", "other", 1, test_less_equal},
    {"<=", "other", 1, test_less_equal},
    {"gt", "other", 1, test_greater},
    {"greaterthan", "other", 1, test_greater},
    {">", "other", 1, test_greater},
    {"ge", "other", 1, test_greater_equal},
    {">=", "other", 1, test_greater_equal},
    {"in", "seq", 1, test_in},
    {"odd", "", 0, test_remainder},
    {"even", "", 0, test_remainder},
    {"divisibleby", "num", 1, test_remainder},
    {"upper", "", 0, test_case},
    {"lower", "", 0, test_case},
    {"sameas", "other", 1, test_same},
    {"escaped", "", 0, test_type},
    {"filter", "", 0, test_name},
    {"test", "", 0, test_name},
    {NULL, NULL, 0, NULL},
};

const mgl_jinja_builtin *mgl_jinja_find_test(mgl_jinja_string name) {
  return find(tests, name);
}

// --- global functions ----------------------------------------------------------------------------

// dict(...) and namespace(...): pairs of an optional mapping, then the keywords.
static mgl_status make_dict(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                            mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_dict_new(runtime, out));
  if (call->argument_count > 1 ||
      (call->argument_count == 1 && call->arguments[0].kind != MGL_JINJA_DICT)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s(): expected one dict and keywords",
                          call->builtin->name);
  }
  if (call->argument_count == 1) {
    const mgl_jinja_dict *from = call->arguments[0].dict;
    for (size_t i = 0; i < from->count; i++) {
      MGL_TRY(mgl_jinja_dict_set(runtime, out->dict, from->pairs[i].key, from->pairs[i].value));
    }
  }
  for (size_t i = 0; i < call->keyword_count; i++) {
    MGL_TRY(mgl_jinja_dict_set(runtime, out->dict, mgl_jinja_string_value(call->keywords[i].name),
                               call->keywords[i].value));
  }
  return MGL_OK;
}

static mgl_status make_namespace(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  MGL_TRY(make_dict(runtime, call, out));
  out->kind = MGL_JINJA_NAMESPACE;
  return MGL_OK;
}

// cycler(a, b, ...), whose next() gives them in turn.
static mgl_status make_cycler(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  if (call->argument_count == 0 || call->keyword_count != 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "cycler(): expected items to cycle through");
  }
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_CYCLER, out));
  for (size_t i = 0; i < call->argument_count; i++) {
    MGL_TRY(mgl_jinja_list_add(runtime, out->list, call->arguments[i]));
  }
  return MGL_OK;
}

static mgl_status cycler_next(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  (void)runtime;
  mgl_jinja_list *items = call->self.list;
  *out = items->items[items->cursor];
  items->cursor = (items->cursor + 1) % items->count;
  return MGL_OK;
}

static mgl_status cycler_reset(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  (void)runtime;
  call->self.list->cursor = 0;
  *out = mgl_jinja_none();
  return MGL_OK;
}

static const mgl_jinja_builtin cycler_methods[] = {
    {"next", "", 0, cycler_next},
    {"reset", "", 0, cycler_reset},
    {NULL, NULL, 0, NULL},
};

// joiner(sep): nothing when it is called first, then sep.
static mgl_status make_joiner(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  mgl_jinja_value separator = call->bound[0].kind == MGL_JINJA_ABSENT
                                  ? mgl_jinja_string_value(MGL_JINJA_LITERAL(", "))
                                  : call->bound[0];
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_JOINER, out));
  return mgl_jinja_list_add(runtime, out->list, separator);
}

static mgl_status make_range(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  int64_t first = 0;
  mgl_jinja_range range = {.step = 1};
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &first));
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 1, &range.stop));
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 2, &range.step));
  if (call->bound[1].kind == MGL_JINJA_ABSENT) {
    range.stop = first;
  } else {
    range.start = first;
  }
  if (range.step == 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "range(): the step is zero");
  }
  // Bounds of 62 bits keep the arithmetic below and every item within 64.
  const int64_t most = INT64_C(1) << 61;
  if (first > most || first < -most || range.stop > most || range.stop < -most ||
      range.step > most || range.step < -most) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "range(): bounds beyond 61 bits");
  }
  int64_t distance = range.step > 0 ? range.stop - range.start : range.start - range.stop;
  int64_t stride = range.step > 0 ? range.step : -range.step;
  range.count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (range.count > MGL_JINJA_MAX_RANGE) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "range() of more than %d items",
                          MGL_JINJA_MAX_RANGE);
  }
  mgl_jinja_range *kept = mgl_arena_alloc(&runtime->arena, sizeof *kept);
  if (kept == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  *kept = range;
  *out = (mgl_jinja_value){.kind = MGL_JINJA_RANGE, .range = kept};
  return MGL_OK;
}

static mgl_status raise_exception(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                  mgl_jinja_value *out) {
  mgl_jinja_string text;
  MGL_TRY(mgl_jinja_to_text(runtime, call->bound[0], &text));
  *out = mgl_jinja_none();
  return mgl_jinja_fail(
      runtime, MGL_ERR_ARGUMENT, "the template refuses the messages: %.*s",
      (int)(text.bytes < MGL_ERROR_TEXT_BYTES ? text.bytes : MGL_ERROR_TEXT_BYTES), text.data);
}

static mgl_status strftime_now(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  mgl_jinja_string format = {0};
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 0, &format));
  char pattern[256];
  char text[1024];
  if (format.bytes + 1 > sizeof pattern) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "strftime_now(): a format of more than %zu bytes",
                          sizeof pattern - 1);
  }
  memcpy(pattern, format.data, format.bytes);
  pattern[format.bytes] = 0;
  time_t now = time(NULL);
  struct tm local;
  if (localtime_r(&now, &local) == NULL) {
    return mgl_jinja_fail(runtime, MGL_ERR_INTERNAL, "strftime_now(): the clock cannot be read");
  }
  size_t bytes = strftime(text, sizeof text, pattern, &local);  // 0 also for an empty result
  char *copy = NULL;
  MGL_TRY(mgl_jinja_text_new(runtime, bytes, &copy));
  memcpy(copy, text, bytes);
  *out = mgl_jinja_string_value((mgl_jinja_string){copy, bytes});
  return MGL_OK;
}

static const mgl_jinja_builtin globals[] = {
    {"namespace", NULL, 0, make_namespace},
    {"dict", NULL, 0, make_dict},
    {"range", "start stop step", 1, make_range},
    {"raise_exception", "message", 1, raise_exception},
    {"strftime_now", "format", 1, strftime_now},
    {"lipsum", NULL, 0, NULL},
    {"cycler", NULL, 0, make_cycler},
    {"joiner", "sep", 0, make_joiner},
    {NULL, NULL, 0, NULL},
};

const mgl_jinja_builtin *mgl_jinja_find_global(mgl_jinja_string name) {
  return find(globals, name);
}

const mgl_jinja_builtin *mgl_jinja_find_method(mgl_jinja_value object, mgl_jinja_string name) {
  switch ((mgl_jinja_kind)object.kind) {
    case MGL_JINJA_STRING: return find(mgl_jinja_string_methods, name);
    case MGL_JINJA_DICT: return find(mgl_jinja_dict_methods, name);
    case MGL_JINJA_LIST:
    case MGL_JINJA_TUPLE: return find(mgl_jinja_list_methods, name);
    case MGL_JINJA_LOOP: return find(mgl_jinja_loop_methods, name);
    case MGL_JINJA_CYCLER: return find(cycler_methods, name);
    default: return NULL;
  }
}
