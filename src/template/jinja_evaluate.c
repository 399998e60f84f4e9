// Expressions, by a walk over their tree: calls of macros, functions, methods, filters and tests,
// then the operators.
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_interpreter.h"
#include "template/jinja_operators.h"

mgl_status mgl_jinja_enter_depth(mgl_jinja_runtime *runtime) {
  if (runtime->depth >= MGL_JINJA_MAX_RENDER_DEPTH) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "evaluation nested deeper than %d levels",
                          MGL_JINJA_MAX_RENDER_DEPTH);
  }
  runtime->depth++;
  return mgl_jinja_charge(runtime, 1);
}

// --- calls ---------------------------------------------------------------------------------------

// Arguments under construction.
typedef struct arguments {
  mgl_jinja_list values;
  mgl_jinja_keyword *keywords;
  size_t keyword_count, keyword_capacity;
} arguments;

static mgl_status add_keyword(mgl_jinja_runtime *runtime, arguments *a, mgl_jinja_string name,
                              mgl_jinja_value value) {
  if (a->keyword_count == a->keyword_capacity) {
    size_t capacity = a->keyword_capacity == 0 ? 4 : a->keyword_capacity * 2;
    mgl_jinja_keyword *moved = mgl_arena_alloc_zeroed(&runtime->arena, capacity, sizeof *moved);
    if (moved == NULL) {
      return mgl_jinja_fail_memory(runtime);
    }
    if (a->keyword_count != 0) {
      memcpy(moved, a->keywords, a->keyword_count * sizeof *moved);
    }
    a->keywords = moved;
    a->keyword_capacity = capacity;
  }
  a->keywords[a->keyword_count++] = (mgl_jinja_keyword){name, value};
  return MGL_OK;
}

// *value: each of its items is an argument.
static mgl_status unpack_list(mgl_jinja_runtime *runtime, mgl_jinja_value value, arguments *a) {
  mgl_jinja_cursor cursor;
  MGL_TRY(mgl_jinja_iterate(runtime, value, &cursor));
  for (;;) {
    mgl_jinja_value item;
    bool more = false;
    MGL_TRY(mgl_jinja_next(runtime, &cursor, &item, &more));
    if (!more) {
      return MGL_OK;
    }
    MGL_TRY(mgl_jinja_list_add(runtime, &a->values, item));
  }
}

// **value: each of its pairs is a keyword.
static mgl_status unpack_dict(mgl_jinja_runtime *runtime, mgl_jinja_value value, arguments *a) {
  if (value.kind != MGL_JINJA_DICT) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "expected a dict behind **, found a %s",
                          mgl_jinja_type_name(value));
  }
  for (size_t i = 0; i < value.dict->count; i++) {
    mgl_jinja_value key = value.dict->pairs[i].key;
    MGL_TRY(mgl_jinja_charge(runtime, 1 + a->keyword_count / 16));
    if (key.kind != MGL_JINJA_STRING) {
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "a keyword must be a str, found a %s",
                            mgl_jinja_type_name(key));
    }
    for (size_t k = 0; k < a->keyword_count; k++) {
      if (mgl_jinja_text_equal(a->keywords[k].name, key.string)) {
        return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "the keyword \"%.*s\" is given twice",
                              (int)(key.string.bytes < 40 ? key.string.bytes : 40),
                              key.string.data);
      }
    }
    MGL_TRY(add_keyword(runtime, a, key.string, value.dict->pairs[i].value));
  }
  return MGL_OK;
}

static mgl_status evaluate_argument(mgl_jinja_runtime *runtime, const mgl_jinja_node *item,
                                    arguments *a) {
  bool is_plain = item->kind != MGL_JINJA_NODE_KEYWORD && item->kind != MGL_JINJA_NODE_UNPACK;
  mgl_jinja_value value;
  MGL_TRY(mgl_jinja_evaluate(runtime, is_plain ? item : item->first, &value));
  if (is_plain) {
    return mgl_jinja_list_add(runtime, &a->values, value);
  }
  if (item->kind == MGL_JINJA_NODE_KEYWORD) {
    return add_keyword(runtime, a, item->value.string, value);
  }
  return item->op == '*' ? unpack_list(runtime, value, a) : unpack_dict(runtime, value, a);
}

// Evaluates arguments into arena lists of call. `caller`, if not NULL, is one more keyword.
static mgl_status evaluate_arguments(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                     const mgl_jinja_macro *caller, mgl_jinja_call *call) {
  arguments a = {0};
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next) {
    MGL_TRY(evaluate_argument(runtime, item, &a));
  }
  if (caller != NULL) {
    mgl_jinja_value value = {.kind = MGL_JINJA_MACRO,
                             .macro = (mgl_jinja_macro *)(uintptr_t)caller};
    MGL_TRY(add_keyword(runtime, &a, MGL_JINJA_LITERAL("caller"), value));
  }
  call->arguments = a.values.items;
  call->argument_count = a.values.count;
  call->keywords = a.keywords;
  call->keyword_count = a.keyword_count;
  runtime->line = node->line;
  return MGL_OK;
}

// Takes a keyword out of the call, so that the end sees what no parameter wanted.
static bool take_keyword(mgl_jinja_call *call, mgl_jinja_string name, mgl_jinja_value *out) {
  mgl_jinja_keyword *keywords = (mgl_jinja_keyword *)(uintptr_t)call->keywords;
  for (size_t i = 0; i < call->keyword_count; i++) {
    if (mgl_jinja_text_equal(keywords[i].name, name)) {
      *out = keywords[i].value;
      call->keyword_count--;
      memmove(keywords + i, keywords + i + 1, (call->keyword_count - i) * sizeof *keywords);
      return true;
    }
  }
  return false;
}

// Defines varargs, the arguments behind the parameters, or refuses these.
static mgl_status bind_varargs(mgl_jinja_runtime *runtime, const mgl_jinja_call *call, size_t from,
                               bool catches) {
  size_t count = call->argument_count;
  if (!catches && count > from) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "a macro of %zu parameters got %zu arguments",
                          from, count);
  }
  if (!catches) {
    return MGL_OK;
  }
  mgl_jinja_value rest;
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_TUPLE, &rest));
  for (size_t i = from; i < count; i++) {
    MGL_TRY(mgl_jinja_list_add(runtime, rest.list, call->arguments[i]));
  }
  return mgl_jinja_define(runtime, runtime->scope, MGL_JINJA_LITERAL("varargs"), rest);
}

// The same of kwargs, the keywords that no parameter has.
static mgl_status bind_kwargs(mgl_jinja_runtime *runtime, const mgl_jinja_call *call,
                              bool catches) {
  if (!catches && call->keyword_count != 0) {
    mgl_jinja_string name = call->keywords[0].name;
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT,
                          "a macro got a keyword that it does not have, or twice: \"%.*s\"",
                          (int)(name.bytes < 40 ? name.bytes : 40), name.data);
  }
  if (!catches) {
    return MGL_OK;
  }
  mgl_jinja_value rest;
  MGL_TRY(mgl_jinja_dict_new(runtime, &rest));
  for (size_t i = 0; i < call->keyword_count; i++) {
    MGL_TRY(mgl_jinja_dict_set(runtime, rest.dict, mgl_jinja_string_value(call->keywords[i].name),
                               call->keywords[i].value));
  }
  return mgl_jinja_define(runtime, runtime->scope, MGL_JINJA_LITERAL("kwargs"), rest);
}

// Defines a macro's parameters in the current scope, then caller, kwargs and varargs where its body
// uses them and no parameter has that name.
static mgl_status bind_parameters(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                  mgl_jinja_call *call) {
  unsigned catches = node->uses;
  size_t idx = 0;
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next, idx++) {
    mgl_jinja_string name = item->value.string;
    mgl_jinja_value value = mgl_jinja_undefined(name);
    if (idx < call->argument_count) {
      value = call->arguments[idx];
    } else if (!take_keyword(call, name, &value) && item->first != NULL) {
      MGL_TRY(mgl_jinja_evaluate(runtime, item->first, &value));
    }
    MGL_TRY(mgl_jinja_define(runtime, runtime->scope, name, value));
    catches &= mgl_jinja_text_is(name, "caller")    ? ~(unsigned)MGL_JINJA_USES_CALLER
               : mgl_jinja_text_is(name, "varargs") ? ~(unsigned)MGL_JINJA_USES_VARARGS
               : mgl_jinja_text_is(name, "kwargs")  ? ~(unsigned)MGL_JINJA_USES_KWARGS
                                                    : ~0u;
  }
  if ((catches & MGL_JINJA_USES_CALLER) != 0) {
    mgl_jinja_string caller = MGL_JINJA_LITERAL("caller");
    mgl_jinja_value value = mgl_jinja_undefined(caller);
    (void)take_keyword(call, caller, &value);
    MGL_TRY(mgl_jinja_define(runtime, runtime->scope, caller, value));
  }
  MGL_TRY(bind_kwargs(runtime, call, (catches & MGL_JINJA_USES_KWARGS) != 0));
  return bind_varargs(runtime, call, node->count, (catches & MGL_JINJA_USES_VARARGS) != 0);
}

static mgl_status call_macro(mgl_jinja_runtime *runtime, const mgl_jinja_macro *callee,
                             mgl_jinja_call *call, mgl_jinja_value *out) {
  mgl_jinja_scope *saved = runtime->scope;
  int line = runtime->line;
  MGL_TRY(mgl_jinja_new_scope(runtime, callee->closure, &runtime->scope));
  MGL_TRY(bind_parameters(runtime, callee->node, call));
  MGL_TRY(mgl_jinja_run_captured(runtime, callee->node->body, out));
  runtime->scope = saved;
  runtime->line = line;
  return MGL_OK;
}

// loop(items), a joiner, self.name().
static mgl_status call_object(mgl_jinja_runtime *runtime, mgl_jinja_value callee,
                              const mgl_jinja_call *call, mgl_jinja_value *out) {
  if (call->keyword_count != 0 || (callee.kind != MGL_JINJA_LOOP && call->argument_count != 0)) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "a %s takes no such arguments",
                          mgl_jinja_type_name(callee));
  }
  if (callee.kind == MGL_JINJA_LOOP) {
    return mgl_jinja_call_loop(runtime, callee.loop, call->arguments, call->argument_count, out);
  }
  if (callee.kind == MGL_JINJA_BLOCK) {
    return mgl_jinja_call_block(runtime, callee.block, out);
  }
  *out = callee.list->cursor == 0 ? mgl_jinja_string_value(MGL_JINJA_LITERAL(""))
                                  : callee.list->items[0];
  callee.list->cursor = 1;
  return MGL_OK;
}

static mgl_status call_value(mgl_jinja_runtime *runtime, mgl_jinja_value callee,
                             mgl_jinja_call *call, mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_require_defined(runtime, callee));
  switch ((mgl_jinja_kind)callee.kind) {
    case MGL_JINJA_MACRO: return call_macro(runtime, callee.macro, call, out);
    case MGL_JINJA_FUNCTION:
      call->builtin = callee.function;
      return mgl_jinja_call_builtin(runtime, "function", call, out);
    case MGL_JINJA_METHOD:
      call->builtin = callee.method->builtin;
      call->self = callee.method->self;
      return mgl_jinja_call_builtin(runtime, "method", call, out);
    case MGL_JINJA_LOOP:
    case MGL_JINJA_JOINER:
    case MGL_JINJA_BLOCK: return call_object(runtime, callee, call, out);
    default:
      return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "a %s cannot be called",
                            mgl_jinja_type_name(callee));
  }
}

mgl_status mgl_jinja_evaluate_call(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                   const mgl_jinja_macro *caller, mgl_jinja_value *out) {
  mgl_jinja_value callee;
  mgl_jinja_call call = {0};
  MGL_TRY(mgl_jinja_evaluate(runtime, node->first, &callee));
  MGL_TRY(evaluate_arguments(runtime, node, caller, &call));
  return call_value(runtime, callee, &call, out);
}

// A filter or test of the tree on a value.
static mgl_status apply_builtin(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                const char *what, mgl_jinja_value self, mgl_jinja_value *out) {
  mgl_jinja_call call = {.builtin = node->builtin, .self = self};
  MGL_TRY(evaluate_arguments(runtime, node, NULL, &call));
  if (node->builtin == NULL) {
    mgl_jinja_string name = node->value.string;
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "unknown %s \"%.*s\"", what,
                          (int)(name.bytes < 40 ? name.bytes : 40), name.data);
  }
  return mgl_jinja_call_builtin(runtime, what, &call, out);
}

mgl_status mgl_jinja_apply_filters(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                   mgl_jinja_value text, mgl_jinja_value *out) {
  if (node == NULL) {
    *out = text;
    return MGL_OK;
  }
  MGL_TRY(mgl_jinja_enter_depth(runtime));
  mgl_jinja_value inner;
  MGL_TRY(mgl_jinja_apply_filters(runtime, node->first, text, &inner));
  runtime->depth--;
  return apply_builtin(runtime, node, "filter", inner, out);
}

// --- expressions ---------------------------------------------------------------------------------

static mgl_status evaluate_list(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                mgl_jinja_kind kind, mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_list_new(runtime, kind, out));
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next) {
    mgl_jinja_value value;
    MGL_TRY(mgl_jinja_evaluate(runtime, item, &value));
    MGL_TRY(mgl_jinja_list_add(runtime, out->list, value));
  }
  return MGL_OK;
}

static mgl_status evaluate_dict(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_dict_new(runtime, out));
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next->next) {
    mgl_jinja_value key;
    mgl_jinja_value value;
    MGL_TRY(mgl_jinja_evaluate(runtime, item, &key));
    MGL_TRY(mgl_jinja_evaluate(runtime, item->next, &value));
    MGL_TRY(mgl_jinja_dict_set(runtime, out->dict, key, value));
  }
  return MGL_OK;
}

static mgl_status evaluate_binary(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                  mgl_jinja_value *out) {
  mgl_jinja_value left;
  mgl_jinja_value right;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->first, &left));
  MGL_TRY(mgl_jinja_evaluate(runtime, node->second, &right));
  runtime->line = node->line;
  double base = 0;
  bool is_folded = node->first->kind != MGL_JINJA_NODE_NAME &&
                   node->first->kind != MGL_JINJA_NODE_ATTRIBUTE &&
                   node->first->kind != MGL_JINJA_NODE_CALL;
  if (node->op == MGL_JINJA_OP_POWER && is_folded &&
      node->second->kind != MGL_JINJA_NODE_CONSTANT && mgl_jinja_as_number(left, &base) &&
      base < 0) {
    // Jinja folds constants: "-2 ** n" becomes Python's "-2 ** n", which is -(2 ** n).
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED,
                          "a power of a negative expression is ambiguous: put it in a variable");
  }
  return mgl_jinja_binary(runtime, node->op, left, right, out);
}

static mgl_status evaluate_concat(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                  mgl_jinja_value *out) {
  mgl_jinja_string joined = MGL_JINJA_LITERAL("");
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next) {
    mgl_jinja_value value;
    mgl_jinja_string text;
    MGL_TRY(mgl_jinja_evaluate(runtime, item, &value));
    runtime->line = node->line;
    MGL_TRY(mgl_jinja_to_text(runtime, value, &text));
    MGL_TRY(mgl_jinja_text_concat(runtime, joined, text, &joined));
  }
  *out = mgl_jinja_string_value(joined);
  return MGL_OK;
}

// a < b < c: true if every neighbouring pair is; b is evaluated once, and c only if needed.
static mgl_status evaluate_compare(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                   mgl_jinja_value *out) {
  mgl_jinja_value left;
  bool holds = true;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->first, &left));
  for (const mgl_jinja_node *item = node->items; item != NULL && holds; item = item->next) {
    mgl_jinja_value right;
    MGL_TRY(mgl_jinja_evaluate(runtime, item->first, &right));
    runtime->line = item->line;
    MGL_TRY(mgl_jinja_compare(runtime, item->op, left, right, &holds));
    left = right;
  }
  *out = mgl_jinja_bool(holds);
  return MGL_OK;
}

static mgl_status evaluate_condition(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                     mgl_jinja_value *out) {
  mgl_jinja_value test;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->first, &test));
  if (mgl_jinja_is_true(test)) {
    return mgl_jinja_evaluate(runtime, node->second, out);
  }
  if (node->third == NULL) {
    *out = mgl_jinja_undefined(MGL_JINJA_LITERAL("an inline if without else"));
    return MGL_OK;
  }
  return mgl_jinja_evaluate(runtime, node->third, out);
}

static mgl_status evaluate_subscript(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                     mgl_jinja_value *out) {
  mgl_jinja_value object;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->first, &object));
  if (node->kind == MGL_JINJA_NODE_ATTRIBUTE) {
    runtime->line = node->line;
    return mgl_jinja_get_attribute(runtime, object, node->value.string, out);
  }
  if (node->kind == MGL_JINJA_NODE_ITEM) {
    mgl_jinja_value key;
    MGL_TRY(mgl_jinja_evaluate(runtime, node->second, &key));
    runtime->line = node->line;
    return mgl_jinja_get_item(runtime, object, key, out);
  }
  mgl_jinja_value bounds[3];
  size_t i = 0;
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next) {
    MGL_TRY(mgl_jinja_evaluate(runtime, item, &bounds[i++]));
  }
  runtime->line = node->line;
  return mgl_jinja_slice(runtime, object, bounds, out);
}

// and / or give one of their operands, as in Python.
static mgl_status evaluate_logic(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                 mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_evaluate(runtime, node->first, out));
  if (mgl_jinja_is_true(*out) == (node->kind == MGL_JINJA_NODE_AND)) {
    return mgl_jinja_evaluate(runtime, node->second, out);
  }
  return MGL_OK;
}

// Unary operators, filters and tests: all have one operand in `first`.
static mgl_status evaluate_unary(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                 mgl_jinja_value *out) {
  mgl_jinja_value operand;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->first, &operand));
  runtime->line = node->line;
  switch ((mgl_jinja_node_kind)node->kind) {
    case MGL_JINJA_NODE_NOT: *out = mgl_jinja_bool(!mgl_jinja_is_true(operand)); return MGL_OK;
    case MGL_JINJA_NODE_UNARY: return mgl_jinja_unary(runtime, node->op, operand, out);
    case MGL_JINJA_NODE_FILTER: return apply_builtin(runtime, node, "filter", operand, out);
    default: return apply_builtin(runtime, node, "test", operand, out);
  }
}

static mgl_status evaluate_node(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                mgl_jinja_value *out) {
  switch ((mgl_jinja_node_kind)node->kind) {
    case MGL_JINJA_NODE_CONSTANT: *out = node->value; return MGL_OK;
    case MGL_JINJA_NODE_NAME: return mgl_jinja_look_up(runtime, node->value.string, out);
    case MGL_JINJA_NODE_LIST: return evaluate_list(runtime, node, MGL_JINJA_LIST, out);
    case MGL_JINJA_NODE_TUPLE: return evaluate_list(runtime, node, MGL_JINJA_TUPLE, out);
    case MGL_JINJA_NODE_DICT: return evaluate_dict(runtime, node, out);
    case MGL_JINJA_NODE_BINARY: return evaluate_binary(runtime, node, out);
    case MGL_JINJA_NODE_CONCAT: return evaluate_concat(runtime, node, out);
    case MGL_JINJA_NODE_COMPARE: return evaluate_compare(runtime, node, out);
    case MGL_JINJA_NODE_CONDITION: return evaluate_condition(runtime, node, out);
    case MGL_JINJA_NODE_CALL: return mgl_jinja_evaluate_call(runtime, node, NULL, out);
    case MGL_JINJA_NODE_AND:
    case MGL_JINJA_NODE_OR: return evaluate_logic(runtime, node, out);
    case MGL_JINJA_NODE_ATTRIBUTE:
    case MGL_JINJA_NODE_ITEM:
    case MGL_JINJA_NODE_SLICE: return evaluate_subscript(runtime, node, out);
    case MGL_JINJA_NODE_NOT:
    case MGL_JINJA_NODE_UNARY:
    case MGL_JINJA_NODE_FILTER:
    case MGL_JINJA_NODE_TEST: return evaluate_unary(runtime, node, out);
    default:
      return mgl_jinja_fail(runtime, MGL_ERR_INTERNAL, "node %d is not an expression", node->kind);
  }
}

mgl_status mgl_jinja_evaluate(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                              mgl_jinja_value *out) {
  runtime->line = node->line;
  MGL_TRY(mgl_jinja_enter_depth(runtime));
  MGL_TRY(evaluate_node(runtime, node, out));
  runtime->depth--;
  return MGL_OK;
}
