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

// Evaluates arguments into arena lists of call.
static mgl_status evaluate_arguments(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                     mgl_jinja_call *call) {
  if (node->count == 0) {
    return MGL_OK;
  }
  mgl_jinja_value *values = mgl_arena_alloc_zeroed(&runtime->arena, node->count, sizeof *values);
  mgl_jinja_keyword *keywords =
      mgl_arena_alloc_zeroed(&runtime->arena, node->count, sizeof *keywords);
  if (values == NULL || keywords == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  call->arguments = values;
  call->keywords = keywords;
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next) {
    if (item->kind == MGL_JINJA_NODE_KEYWORD) {
      mgl_jinja_keyword *keyword = &keywords[call->keyword_count++];
      keyword->name = item->value.string;
      MGL_TRY(mgl_jinja_evaluate(runtime, item->first, &keyword->value));
    } else {
      MGL_TRY(mgl_jinja_evaluate(runtime, item, &values[call->argument_count++]));
    }
  }
  runtime->line = node->line;
  return MGL_OK;
}

static const mgl_jinja_keyword *find_keyword(const mgl_jinja_call *call, mgl_jinja_string name) {
  for (size_t i = 0; i < call->keyword_count; i++) {
    if (mgl_jinja_text_equal(call->keywords[i].name, name)) {
      return &call->keywords[i];
    }
  }
  return NULL;
}

static mgl_status fail_argument(mgl_jinja_runtime *runtime, const char *problem,
                                mgl_jinja_string name) {
  return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "%s \"%.*s\"", problem,
                        (int)(name.bytes < 40 ? name.bytes : 40), name.data);
}

// Defines a macro's parameters in the current scope.
static mgl_status bind_parameters(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                  const mgl_jinja_call *call) {
  size_t idx = 0;
  size_t used = 0;
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next, idx++) {
    mgl_jinja_string name = item->value.string;
    const mgl_jinja_keyword *keyword = find_keyword(call, name);
    mgl_jinja_value value = mgl_jinja_undefined(name);
    if (idx < call->argument_count) {
      if (keyword != NULL) {
        return fail_argument(runtime, "a macro got twice its parameter", name);
      }
      value = call->arguments[idx];
    } else if (keyword != NULL) {
      value = keyword->value;
      used++;
    } else if (item->first != NULL) {
      MGL_TRY(mgl_jinja_evaluate(runtime, item->first, &value));
    }
    MGL_TRY(mgl_jinja_define(runtime, runtime->scope, name, value));
  }
  mgl_jinja_string caller = MGL_JINJA_LITERAL("caller");
  const mgl_jinja_keyword *keyword = find_keyword(call, caller);
  if (node->uses_caller && node->kind == MGL_JINJA_NODE_MACRO) {
    MGL_TRY(mgl_jinja_define(runtime, runtime->scope, caller,
                             keyword == NULL ? mgl_jinja_undefined(caller) : keyword->value));
    used += keyword != NULL;
  }
  if (call->argument_count > node->count || used != call->keyword_count) {
    return mgl_jinja_fail(
        runtime, MGL_ERR_ARGUMENT,
        "a macro of %zu parameters got %zu arguments, or a keyword that it does not "
        "have",
        node->count, call->argument_count + call->keyword_count);
  }
  return MGL_OK;
}

static mgl_status call_macro(mgl_jinja_runtime *runtime, const mgl_jinja_macro *callee,
                             const mgl_jinja_call *call, mgl_jinja_value *out) {
  mgl_jinja_scope *saved = runtime->scope;
  int line = runtime->line;
  MGL_TRY(mgl_jinja_new_scope(runtime, callee->closure, &runtime->scope));
  MGL_TRY(bind_parameters(runtime, callee->node, call));
  MGL_TRY(mgl_jinja_run_captured(runtime, callee->node->body, out));
  runtime->scope = saved;
  runtime->line = line;
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
  MGL_TRY(evaluate_arguments(runtime, node, &call));
  runtime->line = node->line;
  if (caller != NULL) {
    size_t bytes = (call.keyword_count + 1) * sizeof call.keywords[0];
    mgl_jinja_keyword *keywords = mgl_arena_alloc(&runtime->arena, bytes);
    if (keywords == NULL) {
      return mgl_jinja_fail_memory(runtime);
    }
    if (call.keyword_count != 0) {
      memcpy(keywords, call.keywords, call.keyword_count * sizeof call.keywords[0]);
    }
    mgl_jinja_value value = {.kind = MGL_JINJA_MACRO,
                             .macro = (mgl_jinja_macro *)(uintptr_t)caller};
    keywords[call.keyword_count++] = (mgl_jinja_keyword){MGL_JINJA_LITERAL("caller"), value};
    call.keywords = keywords;
  }
  return call_value(runtime, callee, &call, out);
}

// A filter or test of the tree on a value.
static mgl_status apply_builtin(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                const char *what, mgl_jinja_value self, mgl_jinja_value *out) {
  mgl_jinja_call call = {.builtin = node->builtin, .self = self};
  MGL_TRY(evaluate_arguments(runtime, node, &call));
  runtime->line = node->line;
  if (node->builtin == NULL) {
    mgl_jinja_string name = node->value.string;
    return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "unknown %s \"%.*s\"", what,
                          (int)(name.bytes < 40 ? name.bytes : 40), name.data);
  }
  MGL_TRY(mgl_jinja_call_builtin(runtime, what, &call, out));
  // What a filter makes of a |safe text is taken to be one too, which errs towards refusing.
  if (self.kind == MGL_JINJA_STRING && self.safe && out->kind == MGL_JINJA_STRING) {
    out->safe = true;
  }
  return MGL_OK;
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
