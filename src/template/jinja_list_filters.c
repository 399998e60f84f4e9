// Filters on sequences. Those that are generators in Jinja give an ITERATOR here: it is always
// true, has no length and can be read once, which a template may stumble over just as with Jinja.
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_operators.h"

// --- ends and sizes ------------------------------------------------------------------------------

static mgl_status filter_length(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                mgl_jinja_value *out) {
  size_t length = 0;
  if (!mgl_jinja_length(call->self, &length)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "length: a %s has no length",
                          mgl_jinja_type_name(call->self));
  }
  if (call->self.kind == MGL_JINJA_STRING) {
    MGL_TRY(mgl_jinja_charge(runtime, call->self.string.bytes / 64));
  }
  *out = mgl_jinja_int((int64_t)length);
  return MGL_OK;
}

static mgl_status filter_first(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  mgl_jinja_cursor cursor;
  bool more = false;
  MGL_TRY(mgl_jinja_iterate(runtime, call->self, &cursor));
  *out = mgl_jinja_undefined(MGL_JINJA_LITERAL("the first item of nothing"));
  return mgl_jinja_next(runtime, &cursor, out, &more);
}

static mgl_status filter_last(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  mgl_jinja_value items;
  size_t length = 0;
  if (!mgl_jinja_length(call->self, &length)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "last: a %s cannot be read from its end",
                          mgl_jinja_type_name(call->self));
  }
  MGL_TRY(mgl_jinja_collect(runtime, call->self, MGL_JINJA_LIST, &items));
  *out = items.list->count == 0 ? mgl_jinja_undefined(MGL_JINJA_LITERAL("the last item of nothing"))
                                : items.list->items[items.list->count - 1];
  return MGL_OK;
}

static mgl_status filter_list(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  return mgl_jinja_collect(runtime, call->self, MGL_JINJA_LIST, out);
}

static mgl_status filter_items(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  if (call->self.kind == MGL_JINJA_UNDEFINED) {
    return mgl_jinja_list_new(runtime, MGL_JINJA_ITERATOR, out);
  }
  if (call->self.kind != MGL_JINJA_DICT) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "items: expected a dict, found a %s",
                          mgl_jinja_type_name(call->self));
  }
  MGL_TRY(mgl_jinja_dict_view(runtime, call->self.dict, MGL_JINJA_VIEW_ITEMS, out));
  out->kind = MGL_JINJA_ITERATOR;
  return MGL_OK;
}

static mgl_status filter_reverse(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  mgl_jinja_value bounds[3] = {mgl_jinja_none(), mgl_jinja_none(), mgl_jinja_int(-1)};
  if (call->self.kind == MGL_JINJA_STRING) {
    return mgl_jinja_slice(runtime, call->self, bounds, out);
  }
  mgl_jinja_value items;
  MGL_TRY(mgl_jinja_collect(runtime, call->self, MGL_JINJA_LIST, &items));
  MGL_TRY(mgl_jinja_slice(runtime, items, bounds, out));
  // reversed() of anything that is not lazy itself is lazy.
  out->kind = call->self.kind == MGL_JINJA_ITERATOR ? MGL_JINJA_LIST : MGL_JINJA_ITERATOR;
  return MGL_OK;
}

// --- attributes of items -------------------------------------------------------------------------

static bool is_all_digits(mgl_jinja_string text) {
  for (size_t i = 0; i < text.bytes; i++) {
    if (text.data[i] < '0' || text.data[i] > '9') {
      return false;
    }
  }
  return text.bytes != 0 && text.bytes < 18;
}

// item.a.b for "a.b"; a part of digits is an index. ABSENT or none: the item itself. `fallback`
// replaces what is undefined on the way unless it is ABSENT or none.
static mgl_status get_path(mgl_jinja_runtime *runtime, mgl_jinja_value item, mgl_jinja_value path,
                           mgl_jinja_value fallback, mgl_jinja_value *out) {
  bool has_fallback = fallback.kind != MGL_JINJA_ABSENT && fallback.kind != MGL_JINJA_NONE;
  *out = item;
  if (path.kind == MGL_JINJA_ABSENT || path.kind == MGL_JINJA_NONE) {
    return MGL_OK;
  }
  if (path.kind != MGL_JINJA_STRING) {
    MGL_TRY(mgl_jinja_get_item(runtime, item, path, out));
    *out = out->kind == MGL_JINJA_UNDEFINED && has_fallback ? fallback : *out;
    return MGL_OK;
  }
  for (size_t start = 0; start <= path.string.bytes;) {
    size_t end = mgl_jinja_text_find(path.string, MGL_JINJA_LITERAL("."), start);
    end = end == SIZE_MAX ? path.string.bytes : end;
    mgl_jinja_string part = mgl_jinja_text_part(path.string, start, end);
    mgl_jinja_value key = mgl_jinja_string_value(part);
    if (is_all_digits(part)) {
      int64_t index = 0;
      for (size_t i = 0; i < part.bytes; i++) {
        index = index * 10 + (part.data[i] - '0');
      }
      key = mgl_jinja_int(index);
    }
    MGL_TRY(mgl_jinja_get_item(runtime, *out, key, out));
    *out = out->kind == MGL_JINJA_UNDEFINED && has_fallback ? fallback : *out;
    start = end + 1;
  }
  return MGL_OK;
}

// Small letters for a text, where a filter ignores case.
static mgl_status fold_case(mgl_jinja_runtime *runtime, mgl_jinja_value value, bool case_sensitive,
                            mgl_jinja_value *out) {
  *out = value;
  if (value.kind == MGL_JINJA_STRING && !case_sensitive) {
    return mgl_jinja_change_case(runtime, value.string, MGL_JINJA_CASE_LOWER, out);
  }
  return MGL_OK;
}

// --- mapping and selecting -----------------------------------------------------------------------

// Calls a filter or test by its name, with the arguments of `call` from the `skip`th on.
static mgl_status call_by_name(mgl_jinja_runtime *runtime, const mgl_jinja_call *call, size_t skip,
                               bool is_test, mgl_jinja_value item, mgl_jinja_value *out) {
  mgl_jinja_value name = call->arguments[skip - 1];
  const char *what = is_test ? "test" : "filter";
  mgl_jinja_call inner = {.self = item};
  if (name.kind == MGL_JINJA_STRING) {
    inner.builtin = is_test ? mgl_jinja_find_test(name.string) : mgl_jinja_find_filter(name.string);
  }
  if (inner.builtin == NULL) {
    mgl_jinja_string text =
        name.kind == MGL_JINJA_STRING ? name.string : MGL_JINJA_LITERAL("(not a str)");
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "%s: unknown %s \"%.*s\"",
                          call->builtin->name, what, (int)(text.bytes < 40 ? text.bytes : 40),
                          text.data);
  }
  if (runtime->depth >= MGL_JINJA_MAX_RENDER_DEPTH) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "evaluation nested deeper than %d levels",
                          MGL_JINJA_MAX_RENDER_DEPTH);
  }
  inner.arguments = call->arguments + skip;
  inner.argument_count = call->argument_count - skip;
  inner.keywords = call->keywords;
  inner.keyword_count = call->keyword_count;
  runtime->depth++;
  MGL_TRY(mgl_jinja_call_builtin(runtime, what, &inner, out));
  runtime->depth--;
  return MGL_OK;
}

// map(attribute="a.b", default=x).
static mgl_status read_map_keywords(mgl_jinja_runtime *runtime, const mgl_jinja_call *call,
                                    mgl_jinja_value *attribute, mgl_jinja_value *fallback) {
  for (size_t i = 0; i < call->keyword_count; i++) {
    if (mgl_jinja_text_is(call->keywords[i].name, "attribute")) {
      *attribute = call->keywords[i].value;
    } else if (mgl_jinja_text_is(call->keywords[i].name, "default")) {
      *fallback = call->keywords[i].value;
    } else {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "map: unknown argument \"%.*s\"",
                            (int)call->keywords[i].name.bytes, call->keywords[i].name.data);
    }
  }
  return MGL_OK;
}

static mgl_status filter_map(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  mgl_jinja_value attribute = {.kind = MGL_JINJA_ABSENT};
  mgl_jinja_value fallback = {.kind = MGL_JINJA_ABSENT};
  mgl_jinja_cursor cursor;
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_ITERATOR, out));
  if (!mgl_jinja_is_true(call->self)) {
    return MGL_OK;
  }
  if (call->argument_count == 0) {
    MGL_TRY(read_map_keywords(runtime, call, &attribute, &fallback));
    if (attribute.kind == MGL_JINJA_ABSENT) {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "map: expected a filter or attribute=");
    }
  }
  MGL_TRY(mgl_jinja_iterate(runtime, call->self, &cursor));
  for (;;) {
    mgl_jinja_value item;
    bool more = false;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &item, &more));
    if (!more) {
      return MGL_OK;
    }
    if (call->argument_count == 0) {
      MGL_TRY(get_path(runtime, item, attribute, fallback, &item));
    } else {
      MGL_TRY(call_by_name(runtime, call, 1, false, item, &item));
    }
    MGL_TRY(mgl_jinja_list_add(runtime, out->list, item));
  }
}

// select, reject, selectattr, rejectattr.
static mgl_status filter_select(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                mgl_jinja_value *out) {
  bool wanted = call->builtin->name[0] == 's';
  size_t skip = strstr(call->builtin->name, "attr") != NULL ? 1 : 0;
  mgl_jinja_value absent = {.kind = MGL_JINJA_ABSENT};
  mgl_jinja_cursor cursor;
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_ITERATOR, out));
  if (!mgl_jinja_is_true(call->self)) {
    return MGL_OK;
  }
  if (call->argument_count < skip) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s: expected the name of an attribute",
                          call->builtin->name);
  }
  MGL_TRY(mgl_jinja_iterate(runtime, call->self, &cursor));
  for (;;) {
    mgl_jinja_value item;
    bool more = false;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &item, &more));
    if (!more) {
      return MGL_OK;
    }
    mgl_jinja_value tested = item;
    if (skip != 0) {
      MGL_TRY(get_path(runtime, item, call->arguments[0], absent, &tested));
    }
    if (call->argument_count > skip) {
      MGL_TRY(call_by_name(runtime, call, skip + 1, true, tested, &tested));
    }
    if (mgl_jinja_is_true(tested) == wanted) {
      MGL_TRY(mgl_jinja_list_add(runtime, out->list, item));
    }
  }
}

static mgl_status filter_join(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  mgl_jinja_string separator = MGL_JINJA_LITERAL("");
  mgl_jinja_value items = call->self;
  mgl_jinja_value absent = {.kind = MGL_JINJA_ABSENT};
  if (call->bound[0].kind != MGL_JINJA_ABSENT) {
    MGL_TRY(mgl_jinja_to_text(runtime, call->bound[0], &separator));
  }
  if (call->bound[1].kind != MGL_JINJA_ABSENT && call->bound[1].kind != MGL_JINJA_NONE) {
    MGL_TRY(mgl_jinja_collect(runtime, call->self, MGL_JINJA_LIST, &items));
    for (size_t i = 0; i < items.list->count; i++) {
      MGL_TRY(
          get_path(runtime, items.list->items[i], call->bound[1], absent, &items.list->items[i]));
    }
  }
  return mgl_jinja_join(runtime, separator, items, false, out);
}

static mgl_status filter_unique(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                mgl_jinja_value *out) {
  bool case_sensitive = false;
  mgl_jinja_value absent = {.kind = MGL_JINJA_ABSENT};
  mgl_jinja_value seen;
  mgl_jinja_cursor cursor;
  mgl_jinja_bool_argument(call, 0, &case_sensitive);
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_ITERATOR, out));
  MGL_TRY(mgl_jinja_dict_new(runtime, &seen));
  MGL_TRY(mgl_jinja_iterate(runtime, call->self, &cursor));
  for (;;) {
    mgl_jinja_value item;
    mgl_jinja_value key;
    bool more = false;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &item, &more));
    if (!more) {
      return MGL_OK;
    }
    MGL_TRY(get_path(runtime, item, call->bound[1], absent, &key));
    MGL_TRY(fold_case(runtime, key, case_sensitive, &key));
    size_t before = seen.dict->count;
    MGL_TRY(mgl_jinja_dict_set(runtime, seen.dict, key, mgl_jinja_none()));
    if (seen.dict->count != before) {
      MGL_TRY(mgl_jinja_list_add(runtime, out->list, item));
    }
  }
}

// --- ordering ------------------------------------------------------------------------------------

typedef struct sort_item {
  mgl_jinja_value key;
  mgl_jinja_value item;
} sort_item;

// Stable merge sort of items[0, count), with as many items of scratch space. A reversed sort keeps
// equal items in their order, too.
static mgl_status merge_sort(mgl_jinja_runtime *runtime, sort_item *items, sort_item *scratch,
                             size_t count, bool reverse) {
  if (count < 2) {
    return MGL_OK;
  }
  size_t half = count / 2;
  MGL_TRY(merge_sort(runtime, items, scratch, half, reverse));
  MGL_TRY(merge_sort(runtime, items + half, scratch, count - half, reverse));
  memcpy(scratch, items, count * sizeof *items);
  size_t left = 0;
  size_t right = half;
  for (size_t i = 0; i < count; i++) {
    bool take_left = right == count;
    if (!take_left && left < half) {
      int order = 0;
      MGL_TRY(mgl_jinja_order(runtime, scratch[right].key, scratch[left].key, &order));
      take_left = reverse ? order <= 0 : order >= 0;
    }
    items[i] = take_left ? scratch[left++] : scratch[right++];
  }
  return MGL_OK;
}

// Sorts `list` in place by the keys that `keys` holds in the same order.
static mgl_status sort_by_keys(mgl_jinja_runtime *runtime, mgl_jinja_list *list,
                               const mgl_jinja_list *keys, bool reverse) {
  size_t count = list->count;
  sort_item *items = mgl_arena_alloc_zeroed(&runtime->arena, count, 2 * sizeof *items);
  if (items == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  for (size_t i = 0; i < count; i++) {
    items[i] = (sort_item){keys->items[i], list->items[i]};
  }
  MGL_TRY(merge_sort(runtime, items, items + count, count, reverse));
  for (size_t i = 0; i < count; i++) {
    list->items[i] = items[i].item;
  }
  return MGL_OK;
}

// The key of an item for sort: its attributes "a,b" in a list, or itself.
static mgl_status sort_key(mgl_jinja_runtime *runtime, mgl_jinja_value item,
                           mgl_jinja_value attribute, bool case_sensitive, mgl_jinja_value *out) {
  mgl_jinja_value absent = {.kind = MGL_JINJA_ABSENT};
  mgl_jinja_value part;
  bool several = attribute.kind == MGL_JINJA_STRING;
  size_t start = 0;
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, out));
  do {
    mgl_jinja_value path = attribute;
    if (several) {
      size_t end = mgl_jinja_text_find(attribute.string, MGL_JINJA_LITERAL(","), start);
      end = end == SIZE_MAX ? attribute.string.bytes : end;
      path = mgl_jinja_string_value(mgl_jinja_text_part(attribute.string, start, end));
      start = end + 1;
    }
    MGL_TRY(get_path(runtime, item, path, absent, &part));
    MGL_TRY(fold_case(runtime, part, case_sensitive, &part));
    MGL_TRY(mgl_jinja_list_add(runtime, out->list, part));
  } while (several && start <= attribute.string.bytes);
  return MGL_OK;
}

static mgl_status filter_sort(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                              mgl_jinja_value *out) {
  bool reverse = false;
  bool case_sensitive = false;
  mgl_jinja_value keys;
  mgl_jinja_bool_argument(call, 0, &reverse);
  mgl_jinja_bool_argument(call, 1, &case_sensitive);
  MGL_TRY(mgl_jinja_collect(runtime, call->self, MGL_JINJA_LIST, out));
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, &keys));
  for (size_t i = 0; i < out->list->count; i++) {
    mgl_jinja_value key;
    MGL_TRY(sort_key(runtime, out->list->items[i], call->bound[2], case_sensitive, &key));
    MGL_TRY(mgl_jinja_list_add(runtime, keys.list, key));
  }
  return sort_by_keys(runtime, out->list, keys.list, reverse);
}

static mgl_status filter_dictsort(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                  mgl_jinja_value *out) {
  bool case_sensitive = false;
  bool reverse = false;
  mgl_jinja_string by = MGL_JINJA_LITERAL("key");
  mgl_jinja_value keys;
  mgl_jinja_bool_argument(call, 0, &case_sensitive);
  MGL_TRY(mgl_jinja_string_argument(runtime, call, 1, &by));
  mgl_jinja_bool_argument(call, 2, &reverse);
  bool by_value = mgl_jinja_text_is(by, "value");
  if (call->self.kind != MGL_JINJA_DICT || (!by_value && !mgl_jinja_text_is(by, "key"))) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT,
                          "dictsort: expected a dict and by=\"key\" or \"value\", found a %s",
                          mgl_jinja_type_name(call->self));
  }
  MGL_TRY(mgl_jinja_dict_view(runtime, call->self.dict, MGL_JINJA_VIEW_ITEMS, out));
  out->kind = MGL_JINJA_LIST;
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, &keys));
  for (size_t i = 0; i < out->list->count; i++) {
    mgl_jinja_value key;
    MGL_TRY(fold_case(runtime, out->list->items[i].list->items[by_value ? 1 : 0], case_sensitive,
                      &key));
    MGL_TRY(mgl_jinja_list_add(runtime, keys.list, key));
  }
  return sort_by_keys(runtime, out->list, keys.list, reverse);
}

// min and max: the first of the smallest or largest items.
static mgl_status filter_extreme(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  bool largest = call->builtin->name[1] == 'a';
  bool case_sensitive = false;
  mgl_jinja_value absent = {.kind = MGL_JINJA_ABSENT};
  mgl_jinja_value best = absent;
  mgl_jinja_cursor cursor;
  mgl_jinja_bool_argument(call, 0, &case_sensitive);
  *out = mgl_jinja_undefined(MGL_JINJA_LITERAL("the extreme of nothing"));
  MGL_TRY(mgl_jinja_iterate(runtime, call->self, &cursor));
  for (;;) {
    mgl_jinja_value item;
    mgl_jinja_value key;
    bool more = false;
    int order = 0;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &item, &more));
    if (!more) {
      return MGL_OK;
    }
    MGL_TRY(get_path(runtime, item, call->bound[1], absent, &key));
    MGL_TRY(fold_case(runtime, key, case_sensitive, &key));
    if (best.kind != MGL_JINJA_ABSENT) {
      MGL_TRY(mgl_jinja_order(runtime, key, best, &order));
    }
    if (best.kind == MGL_JINJA_ABSENT || (largest ? order > 0 : order < 0)) {
      best = key;
      *out = item;
    }
  }
}

static mgl_status filter_sum(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  mgl_jinja_value absent = {.kind = MGL_JINJA_ABSENT};
  mgl_jinja_cursor cursor;
  *out = call->bound[1].kind == MGL_JINJA_ABSENT ? mgl_jinja_int(0) : call->bound[1];
  if (out->kind == MGL_JINJA_STRING) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "sum: cannot start from a str, use join");
  }
  MGL_TRY(mgl_jinja_iterate(runtime, call->self, &cursor));
  for (;;) {
    mgl_jinja_value item;
    bool more = false;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &item, &more));
    if (!more) {
      return MGL_OK;
    }
    MGL_TRY(get_path(runtime, item, call->bound[0], absent, &item));
    MGL_TRY(mgl_jinja_binary(runtime, '+', *out, item, out));
  }
}

// --- parts ---------------------------------------------------------------------------------------

// Adds a list of items[from, to) to `out`, made up to `count` items with `fill` unless that is
// none.
static mgl_status add_slice(mgl_jinja_runtime *runtime, mgl_jinja_list *out,
                            const mgl_jinja_list *items, size_t from, size_t to, int64_t count,
                            mgl_jinja_value fill) {
  mgl_jinja_value part;
  bool fills = fill.kind != MGL_JINJA_ABSENT && fill.kind != MGL_JINJA_NONE;
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, &part));
  for (size_t i = from; i < to; i++) {
    MGL_TRY(mgl_jinja_charge(runtime, 1));
    MGL_TRY(mgl_jinja_list_add(runtime, part.list, items->items[i]));
  }
  for (int64_t i = (int64_t)(to - from); fills && i < count; i++) {
    MGL_TRY(mgl_jinja_charge(runtime, 1));
    MGL_TRY(mgl_jinja_list_add(runtime, part.list, fill));
  }
  return mgl_jinja_list_add(runtime, out, part);
}

// Lists of `linecount` items.
static mgl_status filter_batch(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  int64_t count = 0;
  mgl_jinja_value items;
  mgl_jinja_value none = mgl_jinja_none();
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &count));
  MGL_TRY(mgl_jinja_collect(runtime, call->self, MGL_JINJA_LIST, &items));
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_ITERATOR, out));
  size_t start = 0;
  for (size_t i = 0; i < items.list->count; i++) {
    if ((int64_t)(i - start) == count) {  // also at once where it is 0, as in Jinja
      MGL_TRY(add_slice(runtime, out->list, items.list, start, i, 0, none));
      start = i;
    }
  }
  return start == items.list->count ? MGL_OK
                                    : add_slice(runtime, out->list, items.list, start,
                                                items.list->count, count, call->bound[1]);
}

// So many lists of about the same length, the longer ones first.
static mgl_status filter_slice(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  int64_t slices = 0;
  mgl_jinja_value items;
  MGL_TRY(mgl_jinja_integer_argument(runtime, call, 0, &slices));
  MGL_TRY(mgl_jinja_collect(runtime, call->self, MGL_JINJA_LIST, &items));
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_ITERATOR, out));
  if (slices == 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "slice: division by zero");
  }
  size_t each = slices < 0 ? 0 : items.list->count / (size_t)slices;
  size_t longer = slices < 0 ? 0 : items.list->count % (size_t)slices;
  size_t at = 0;
  for (int64_t i = 0; i < slices; i++) {
    bool is_longer = (size_t)i < longer;
    size_t end = at + each + (is_longer ? 1 : 0);
    MGL_TRY(mgl_jinja_charge(runtime, 1));
    MGL_TRY(add_slice(runtime, out->list, items.list, at, end, (int64_t)each + 1, call->bound[1]));
    at = end;
  }
  return MGL_OK;
}

// Adds (grouper, [item]) to the groups, or the item to the latest group if its key is the same.
static mgl_status add_to_group(mgl_jinja_runtime *runtime, mgl_jinja_list *groups,
                               mgl_jinja_value last_key, mgl_jinja_value key, mgl_jinja_value item,
                               mgl_jinja_value shown) {
  bool same = false;
  if (last_key.kind != MGL_JINJA_ABSENT) {
    MGL_TRY(mgl_jinja_equal(runtime, last_key, key, &same));
  }
  if (!same) {
    mgl_jinja_value group;
    mgl_jinja_value members;
    MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_TUPLE, &group));
    MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, &members));
    group.view = 1;
    MGL_TRY(mgl_jinja_list_add(runtime, group.list, shown));
    MGL_TRY(mgl_jinja_list_add(runtime, group.list, members));
    MGL_TRY(mgl_jinja_list_add(runtime, groups, group));
  }
  mgl_jinja_value group = groups->items[groups->count - 1];
  return mgl_jinja_list_add(runtime, group.list->items[1].list, item);
}

// Items sorted by an attribute, in a pair for each of its values: (grouper, list).
static mgl_status filter_groupby(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                 mgl_jinja_value *out) {
  bool case_sensitive = false;
  mgl_jinja_value items;
  mgl_jinja_value keys;
  mgl_jinja_bool_argument(call, 2, &case_sensitive);
  MGL_TRY(mgl_jinja_collect(runtime, call->self, MGL_JINJA_LIST, &items));
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, &keys));
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_LIST, out));
  for (size_t i = 0; i < items.list->count; i++) {
    mgl_jinja_value key;
    MGL_TRY(get_path(runtime, items.list->items[i], call->bound[0], call->bound[1], &key));
    MGL_TRY(fold_case(runtime, key, case_sensitive, &key));
    MGL_TRY(mgl_jinja_list_add(runtime, keys.list, key));
  }
  MGL_TRY(sort_by_keys(runtime, items.list, keys.list, false));
  mgl_jinja_value last = {.kind = MGL_JINJA_ABSENT};
  for (size_t i = 0; i < items.list->count; i++) {
    mgl_jinja_value item = items.list->items[i];
    mgl_jinja_value shown;
    mgl_jinja_value key;
    MGL_TRY(get_path(runtime, item, call->bound[0], call->bound[1], &shown));
    MGL_TRY(fold_case(runtime, shown, case_sensitive, &key));
    MGL_TRY(add_to_group(runtime, out->list, last, key, item, shown));
    last = key;
  }
  return MGL_OK;
}

const mgl_jinja_builtin mgl_jinja_list_filters[] = {
    {"length", "", 0, filter_length},
    {"count", "", 0, filter_length},
    {"first", "", 0, filter_first},
    {"last", "", 0, filter_last},
    {"list", "", 0, filter_list},
    {"items", "", 0, filter_items},
    {"reverse", "", 0, filter_reverse},
    {"join", "d attribute", 0, filter_join},
    {"map", NULL, 0, filter_map},
    {"select", NULL, 0, filter_select},
    {"reject", NULL, 0, filter_select},
    {"selectattr", NULL, 0, filter_select},
    {"rejectattr", NULL, 0, filter_select},
    {"unique", "case_sensitive attribute", 0, filter_unique},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort},
    {"min", "case_sensitive attribute", 0, filter_extreme},
    {"max", "case_sensitive attribute", 0, filter_extreme},
    {"sum", "attribute start", 0, filter_sum},
    {"batch", "linecount fill_with", 1, filter_batch},
    {"slice", "slices fill_with", 1, filter_slice},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby},
    {NULL, NULL, 0, NULL},
};
