// A tree walk. Variables live in chains of scopes: one for the template, one per iteration of a
// loop, per macro call, and per block that has its own. Jinja resolves names when it compiles; the
// chain gives the same result because a template cannot assign to an outer scope (that is what
// namespaces are for).
//
// Text goes straight to the output; where a construct needs it as a value (macros, block set,
// filter blocks) it is cut off the output's end again.
#include "model/jinja_render.h"

#include <string.h>

#include "model/chat_template.h"
#include "model/jinja_builtins.h"
#include "model/jinja_operators.h"

enum { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

typedef struct binding {
  mgl_jinja_string name;
  mgl_jinja_value value;
  struct binding *next;
} binding;

typedef struct mgl_jinja_scope {
  binding *bindings;  // newest first
  struct mgl_jinja_scope *parent;
} scope;

// A macro, or the body of a call block; closes over the scope it was defined in.
typedef struct mgl_jinja_macro {
  const mgl_jinja_node *node;
  scope *closure;
} macro;

// A running loop. Items are drawn from the source as they are needed, since the loop's filter may
// read what its body has set.
typedef struct mgl_jinja_loop {
  const mgl_jinja_node *node;
  scope *outer;
  mgl_jinja_cursor source;
  mgl_jinja_list items;  // drawn so far, those that passed the filter
  bool drained;
  size_t index;  // of the current item
} loop;

static mgl_status evaluate(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                           mgl_jinja_value *out);
static mgl_status run_body(mgl_jinja_runtime *runtime, const mgl_jinja_node *body);

// --- scopes --------------------------------------------------------------------------------------

static mgl_status new_scope(mgl_jinja_runtime *runtime, scope *parent, scope **out) {
  *out = mgl_arena_alloc_zeroed(&runtime->arena, 1, sizeof **out);
  if (*out == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  (*out)->parent = parent;
  return MGL_OK;
}

// *found is NULL if the scope itself has no such variable. A scope is a list: templates have few
// variables, and a hostile one pays for its many.
static mgl_status find_binding(mgl_jinja_runtime *runtime, const scope *in, mgl_jinja_string name,
                               binding **found) {
  size_t visited = 0;
  binding *b = in->bindings;
  for (; b != NULL && !mgl_jinja_text_equal(b->name, name); b = b->next) {
    visited++;
  }
  *found = b;
  return mgl_jinja_charge(runtime, visited / 16);
}

static mgl_status define(mgl_jinja_runtime *runtime, scope *in, mgl_jinja_string name,
                         mgl_jinja_value value) {
  binding *found = NULL;
  MGL_TRY(find_binding(runtime, in, name, &found));
  if (found == NULL) {
    found = mgl_arena_alloc(&runtime->arena, sizeof *found);
    if (found == NULL) {
      return mgl_jinja_fail_memory(runtime);
    }
    *found = (binding){.name = name, .next = in->bindings};
    in->bindings = found;
  }
  found->value = value;
  return MGL_OK;
}

// Scopes from inside out, then the context, then the global functions.
static mgl_status look_up(mgl_jinja_runtime *runtime, mgl_jinja_string name, mgl_jinja_value *out) {
  for (scope *s = runtime->scope; s != NULL; s = s->parent) {
    binding *bound = NULL;
    MGL_TRY(find_binding(runtime, s, name, &bound));
    if (bound != NULL) {
      *out = bound->value;
      return MGL_OK;
    }
  }
  mgl_jinja_value *found = NULL;
  MGL_TRY(mgl_jinja_dict_find(runtime, &runtime->context, mgl_jinja_string_value(name), &found));
  if (found != NULL) {
    *out = *found;
    return MGL_OK;
  }
  const mgl_jinja_builtin *function = mgl_jinja_find_global(name);
  *out = function == NULL ? mgl_jinja_undefined(name)
                          : (mgl_jinja_value){.kind = MGL_JINJA_FUNCTION, .function = function};
  return MGL_OK;
}

static mgl_status assign(mgl_jinja_runtime *runtime, const mgl_jinja_node *target,
                         mgl_jinja_value value);

static mgl_status assign_tuple(mgl_jinja_runtime *runtime, const mgl_jinja_node *target,
                               mgl_jinja_value value) {
  MGL_TRY(mgl_jinja_require_defined(runtime, value));
  mgl_jinja_value items;
  MGL_TRY(mgl_jinja_collect(runtime, value, MGL_JINJA_LIST, &items));
  if (items.list->count != target->count) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "expected %zu values to assign, found %zu",
                          target->count, items.list->count);
  }
  size_t i = 0;
  for (const mgl_jinja_node *item = target->items; item != NULL; item = item->next) {
    MGL_TRY(assign(runtime, item, items.list->items[i++]));
  }
  return MGL_OK;
}

static mgl_status assign(mgl_jinja_runtime *runtime, const mgl_jinja_node *target,
                         mgl_jinja_value value) {
  runtime->line = target->line;
  if (target->kind == MGL_JINJA_NODE_TUPLE) {
    return assign_tuple(runtime, target, value);
  }
  if (target->kind == MGL_JINJA_NODE_NAME) {
    return define(runtime, runtime->scope, target->value.string, value);
  }
  mgl_jinja_value object;
  MGL_TRY(evaluate(runtime, target->first, &object));
  if (object.kind != MGL_JINJA_NAMESPACE) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT,
                          "an attribute can be set on a namespace() only, found %s",
                          mgl_jinja_type_name(object));
  }
  return mgl_jinja_dict_set(runtime, object.dict, target->value, value);
}

// --- output --------------------------------------------------------------------------------------

static mgl_status emit(mgl_jinja_runtime *runtime, mgl_jinja_string text) {
  mgl_text *out = runtime->out;
  MGL_TRY(mgl_jinja_charge(runtime, text.bytes / 64));
  if (text.bytes > MGL_TEMPLATE_MAX_OUTPUT_BYTES - (out->bytes - runtime->out_start)) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "the rendered text exceeds %d MiB",
                          MGL_TEMPLATE_MAX_OUTPUT_BYTES >> 20);
  }
  mgl_text_append(out, text.data, text.bytes);
  return out->failed ? mgl_jinja_fail_memory(runtime) : MGL_OK;
}

// Makes what was emitted since `start` a value and takes it off the output.
static mgl_status cut_output(mgl_jinja_runtime *runtime, size_t start, mgl_jinja_value *out) {
  size_t bytes = runtime->out->bytes - start;
  char *copy = NULL;
  MGL_TRY(mgl_jinja_text_new(runtime, bytes, &copy));
  if (bytes != 0) {
    memcpy(copy, runtime->out->data + start, bytes);
    runtime->out->bytes = start;
    runtime->out->data[start] = 0;
  }
  *out = mgl_jinja_string_value((mgl_jinja_string){copy, bytes});
  return MGL_OK;
}

static mgl_status run_captured(mgl_jinja_runtime *runtime, const mgl_jinja_node *body,
                               mgl_jinja_value *out) {
  size_t start = runtime->out->bytes;
  MGL_TRY(run_body(runtime, body));
  return cut_output(runtime, start, out);
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
      MGL_TRY(evaluate(runtime, item->first, &keyword->value));
    } else {
      MGL_TRY(evaluate(runtime, item, &values[call->argument_count++]));
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
      MGL_TRY(evaluate(runtime, item->first, &value));
    }
    MGL_TRY(define(runtime, runtime->scope, name, value));
  }
  mgl_jinja_string caller = MGL_JINJA_LITERAL("caller");
  const mgl_jinja_keyword *keyword = find_keyword(call, caller);
  if (node->uses_caller && node->kind == MGL_JINJA_NODE_MACRO) {
    MGL_TRY(define(runtime, runtime->scope, caller,
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

static mgl_status enter_depth(mgl_jinja_runtime *runtime) {
  if (runtime->depth >= MGL_JINJA_MAX_RENDER_DEPTH) {
    return mgl_jinja_fail(runtime, MGL_ERR_LIMIT, "evaluation nested deeper than %d levels",
                          MGL_JINJA_MAX_RENDER_DEPTH);
  }
  runtime->depth++;
  return mgl_jinja_charge(runtime, 1);
}

static mgl_status call_macro(mgl_jinja_runtime *runtime, const macro *callee,
                             const mgl_jinja_call *call, mgl_jinja_value *out) {
  scope *saved = runtime->scope;
  int line = runtime->line;
  MGL_TRY(new_scope(runtime, callee->closure, &runtime->scope));
  MGL_TRY(bind_parameters(runtime, callee->node, call));
  MGL_TRY(run_captured(runtime, callee->node->body, out));
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

static mgl_status evaluate_call(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                const macro *caller, mgl_jinja_value *out) {
  mgl_jinja_value callee;
  mgl_jinja_call call = {0};
  MGL_TRY(evaluate(runtime, node->first, &callee));
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
    mgl_jinja_value value = {.kind = MGL_JINJA_MACRO, .macro = (macro *)(uintptr_t)caller};
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

// The filters of a block set or filter block: a chain whose innermost has no operand.
static mgl_status apply_filters(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                mgl_jinja_value text, mgl_jinja_value *out) {
  if (node == NULL) {
    *out = text;
    return MGL_OK;
  }
  MGL_TRY(enter_depth(runtime));
  mgl_jinja_value inner;
  MGL_TRY(apply_filters(runtime, node->first, text, &inner));
  runtime->depth--;
  return apply_builtin(runtime, node, "filter", inner, out);
}

// --- expressions ---------------------------------------------------------------------------------

static mgl_status evaluate_list(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                mgl_jinja_kind kind, mgl_jinja_value *out) {
  MGL_TRY(mgl_jinja_list_new(runtime, kind, out));
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next) {
    mgl_jinja_value value;
    MGL_TRY(evaluate(runtime, item, &value));
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
    MGL_TRY(evaluate(runtime, item, &key));
    MGL_TRY(evaluate(runtime, item->next, &value));
    MGL_TRY(mgl_jinja_dict_set(runtime, out->dict, key, value));
  }
  return MGL_OK;
}

static mgl_status evaluate_binary(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                  mgl_jinja_value *out) {
  mgl_jinja_value left;
  mgl_jinja_value right;
  MGL_TRY(evaluate(runtime, node->first, &left));
  MGL_TRY(evaluate(runtime, node->second, &right));
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
    MGL_TRY(evaluate(runtime, item, &value));
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
  MGL_TRY(evaluate(runtime, node->first, &left));
  for (const mgl_jinja_node *item = node->items; item != NULL && holds; item = item->next) {
    mgl_jinja_value right;
    MGL_TRY(evaluate(runtime, item->first, &right));
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
  MGL_TRY(evaluate(runtime, node->first, &test));
  if (mgl_jinja_is_true(test)) {
    return evaluate(runtime, node->second, out);
  }
  if (node->third == NULL) {
    *out = mgl_jinja_undefined(MGL_JINJA_LITERAL("an inline if without else"));
    return MGL_OK;
  }
  return evaluate(runtime, node->third, out);
}

static mgl_status evaluate_subscript(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                     mgl_jinja_value *out) {
  mgl_jinja_value object;
  MGL_TRY(evaluate(runtime, node->first, &object));
  if (node->kind == MGL_JINJA_NODE_ATTRIBUTE) {
    runtime->line = node->line;
    return mgl_jinja_get_attribute(runtime, object, node->value.string, out);
  }
  if (node->kind == MGL_JINJA_NODE_ITEM) {
    mgl_jinja_value key;
    MGL_TRY(evaluate(runtime, node->second, &key));
    runtime->line = node->line;
    return mgl_jinja_get_item(runtime, object, key, out);
  }
  mgl_jinja_value bounds[3];
  size_t i = 0;
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next) {
    MGL_TRY(evaluate(runtime, item, &bounds[i++]));
  }
  runtime->line = node->line;
  return mgl_jinja_slice(runtime, object, bounds, out);
}

// and / or give one of their operands, as in Python.
static mgl_status evaluate_logic(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                 mgl_jinja_value *out) {
  MGL_TRY(evaluate(runtime, node->first, out));
  if (mgl_jinja_is_true(*out) == (node->kind == MGL_JINJA_NODE_AND)) {
    return evaluate(runtime, node->second, out);
  }
  return MGL_OK;
}

// Unary operators, filters and tests: all have one operand in `first`.
static mgl_status evaluate_unary(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                 mgl_jinja_value *out) {
  mgl_jinja_value operand;
  MGL_TRY(evaluate(runtime, node->first, &operand));
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
    case MGL_JINJA_NODE_NAME: return look_up(runtime, node->value.string, out);
    case MGL_JINJA_NODE_LIST: return evaluate_list(runtime, node, MGL_JINJA_LIST, out);
    case MGL_JINJA_NODE_TUPLE: return evaluate_list(runtime, node, MGL_JINJA_TUPLE, out);
    case MGL_JINJA_NODE_DICT: return evaluate_dict(runtime, node, out);
    case MGL_JINJA_NODE_BINARY: return evaluate_binary(runtime, node, out);
    case MGL_JINJA_NODE_CONCAT: return evaluate_concat(runtime, node, out);
    case MGL_JINJA_NODE_COMPARE: return evaluate_compare(runtime, node, out);
    case MGL_JINJA_NODE_CONDITION: return evaluate_condition(runtime, node, out);
    case MGL_JINJA_NODE_CALL: return evaluate_call(runtime, node, NULL, out);
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

static mgl_status evaluate(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                           mgl_jinja_value *out) {
  runtime->line = node->line;
  MGL_TRY(enter_depth(runtime));
  MGL_TRY(evaluate_node(runtime, node, out));
  runtime->depth--;
  return MGL_OK;
}

// --- loops ---------------------------------------------------------------------------------------

// Whether the loop's filter lets an item through.
static mgl_status passes_filter(mgl_jinja_runtime *runtime, const loop *l, mgl_jinja_value item,
                                bool *out) {
  *out = true;
  if (l->node->third == NULL) {
    return MGL_OK;
  }
  scope *saved = runtime->scope;
  mgl_jinja_value test;
  MGL_TRY(new_scope(runtime, l->outer, &runtime->scope));
  MGL_TRY(assign(runtime, l->node->first, item));
  MGL_TRY(evaluate(runtime, l->node->third, &test));
  runtime->scope = saved;
  *out = mgl_jinja_is_true(test);
  return MGL_OK;
}

// Draws items until `count` of them are there or the source ends.
static mgl_status draw_items(mgl_jinja_runtime *runtime, loop *l, size_t count) {
  while (l->items.count < count && !l->drained) {
    mgl_jinja_value item;
    bool more = false;
    bool passes = false;
    MGL_TRY(mgl_jinja_next(runtime, &l->source, &item, &more));
    if (!more) {
      l->drained = true;
      break;
    }
    MGL_TRY(passes_filter(runtime, l, item, &passes));
    if (passes) {
      MGL_TRY(mgl_jinja_list_add(runtime, &l->items, item));
    }
  }
  return MGL_OK;
}

typedef enum loop_field {
  LOOP_INDEX,
  LOOP_INDEX0,
  LOOP_FIRST,
  LOOP_LAST,
  LOOP_LENGTH,
  LOOP_REVINDEX,
  LOOP_REVINDEX0,
  LOOP_PREVITEM,
  LOOP_NEXTITEM,
  LOOP_DEPTH,
  LOOP_DEPTH0,
  LOOP_UNSUPPORTED,
  LOOP_UNKNOWN = LOOP_UNSUPPORTED + 2,
} loop_field;

static loop_field find_loop_field(mgl_jinja_string name) {
  static const char *const names[] = {"index",    "index0",    "first",    "last",     "length",
                                      "revindex", "revindex0", "previtem", "nextitem", "depth",
                                      "depth0",   "cycle",     "changed"};
  size_t i = 0;
  while (i < sizeof names / sizeof names[0] && !mgl_jinja_text_is(name, names[i])) {
    i++;
  }
  return (loop_field)i;
}

mgl_status mgl_jinja_loop_attribute(mgl_jinja_runtime *runtime, loop *l, mgl_jinja_string name,
                                    mgl_jinja_value *out, bool *known) {
  loop_field field = find_loop_field(name);
  *known = field < LOOP_UNKNOWN;
  bool counts = field == LOOP_LENGTH || field == LOOP_REVINDEX || field == LOOP_REVINDEX0;
  bool peeks = field == LOOP_LAST || field == LOOP_NEXTITEM;
  MGL_TRY(draw_items(runtime, l, counts ? SIZE_MAX : peeks ? l->index + 2 : 0));
  int64_t index = (int64_t)l->index;
  int64_t length = (int64_t)l->items.count;
  switch (field) {
    case LOOP_INDEX: *out = mgl_jinja_int(index + 1); break;
    case LOOP_INDEX0: *out = mgl_jinja_int(index); break;
    case LOOP_FIRST: *out = mgl_jinja_bool(index == 0); break;
    case LOOP_LAST: *out = mgl_jinja_bool(index + 1 >= length); break;
    case LOOP_LENGTH: *out = mgl_jinja_int(length); break;
    case LOOP_REVINDEX: *out = mgl_jinja_int(length - index); break;
    case LOOP_REVINDEX0: *out = mgl_jinja_int(length - index - 1); break;
    case LOOP_PREVITEM:
      *out = index > 0 ? l->items.items[index - 1]
                       : mgl_jinja_undefined(MGL_JINJA_LITERAL("previtem"));
      break;
    case LOOP_NEXTITEM:
      *out = index + 1 < length ? l->items.items[index + 1]
                                : mgl_jinja_undefined(MGL_JINJA_LITERAL("nextitem"));
      break;
    case LOOP_DEPTH: *out = mgl_jinja_int(1); break;
    case LOOP_DEPTH0: *out = mgl_jinja_int(0); break;
    case LOOP_UNKNOWN: break;
    default:
      return mgl_jinja_fail(runtime, MGL_ERR_UNSUPPORTED, "loop.%.*s is not supported",
                            (int)name.bytes, name.data);
  }
  return MGL_OK;
}

static mgl_status run_for(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  scope *saved = runtime->scope;
  bool completed = false;  // an iteration ran to its end; Jinja's else asks for just that
  mgl_jinja_value source;
  loop *l = mgl_arena_alloc_zeroed(&runtime->arena, 1, sizeof *l);
  if (l == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  l->node = node;
  l->outer = saved;
  MGL_TRY(evaluate(runtime, node->second, &source));
  runtime->line = node->line;
  MGL_TRY(mgl_jinja_iterate(runtime, source, &l->source));
  for (;; l->index++) {
    MGL_TRY(draw_items(runtime, l, l->index + 1));
    if (l->index >= l->items.count) {
      break;
    }
    MGL_TRY(new_scope(runtime, saved, &runtime->scope));
    mgl_jinja_value self = {.kind = MGL_JINJA_LOOP, .loop = l};
    MGL_TRY(define(runtime, runtime->scope, MGL_JINJA_LITERAL("loop"), self));
    MGL_TRY(assign(runtime, node->first, l->items.items[l->index]));
    MGL_TRY(run_body(runtime, node->body));
    runtime->scope = saved;
    int flow = runtime->flow;
    runtime->flow = FLOW_NEXT;
    completed = completed || flow == FLOW_NEXT;
    if (flow == FLOW_BREAK) {
      break;
    }
  }
  if (!completed && node->otherwise != NULL) {
    MGL_TRY(new_scope(runtime, saved, &runtime->scope));
    MGL_TRY(run_body(runtime, node->otherwise));
    runtime->scope = saved;
  }
  return MGL_OK;
}

// --- statements ----------------------------------------------------------------------------------

static mgl_status run_output(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value;
  mgl_jinja_string text;
  MGL_TRY(evaluate(runtime, node->first, &value));
  runtime->line = node->line;
  MGL_TRY(mgl_jinja_to_text(runtime, value, &text));
  return emit(runtime, text);
}

static mgl_status run_if(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  for (;;) {
    mgl_jinja_value test;
    MGL_TRY(evaluate(runtime, node->first, &test));
    if (mgl_jinja_is_true(test)) {
      return run_body(runtime, node->body);
    }
    // An elif is an IF that stands alone in `otherwise`; so is an else with one if, which may be
    // taken the same way.
    const mgl_jinja_node *otherwise = node->otherwise;
    if (otherwise == NULL || otherwise->kind != MGL_JINJA_NODE_IF || otherwise->next != NULL) {
      return run_body(runtime, otherwise);
    }
    node = otherwise;
  }
}

static mgl_status run_set(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value;
  MGL_TRY(evaluate(runtime, node->second, &value));
  return assign(runtime, node->first, value);
}

// A body with text that becomes a value, in a scope of its own.
static mgl_status run_scoped(mgl_jinja_runtime *runtime, const mgl_jinja_node *body,
                             mgl_jinja_value *out) {
  scope *saved = runtime->scope;
  MGL_TRY(new_scope(runtime, saved, &runtime->scope));
  MGL_TRY(run_captured(runtime, body, out));
  runtime->scope = saved;
  return MGL_OK;
}

static mgl_status run_set_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value text;
  MGL_TRY(run_scoped(runtime, node->body, &text));
  if (runtime->flow != FLOW_NEXT) {
    return MGL_OK;
  }
  MGL_TRY(apply_filters(runtime, node->second, text, &text));
  return assign(runtime, node->first, text);
}

static mgl_status run_filter_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value;
  mgl_jinja_string text;
  MGL_TRY(run_scoped(runtime, node->body, &value));
  if (runtime->flow != FLOW_NEXT) {
    return MGL_OK;
  }
  MGL_TRY(apply_filters(runtime, node->second, value, &value));
  MGL_TRY(mgl_jinja_to_text(runtime, value, &text));
  return emit(runtime, text);
}

static mgl_status run_with(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  scope *saved = runtime->scope;
  scope *inner = NULL;
  MGL_TRY(new_scope(runtime, saved, &inner));
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next->next) {
    mgl_jinja_value value;
    runtime->scope = saved;  // one target's value does not see the others
    MGL_TRY(evaluate(runtime, item->next, &value));
    runtime->scope = inner;
    MGL_TRY(assign(runtime, item, value));
  }
  runtime->scope = inner;
  MGL_TRY(run_body(runtime, node->body));
  runtime->scope = saved;
  return MGL_OK;
}

static mgl_status new_macro(mgl_jinja_runtime *runtime, const mgl_jinja_node *node, macro **out) {
  *out = mgl_arena_alloc(&runtime->arena, sizeof **out);
  if (*out == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  **out = (macro){.node = node, .closure = runtime->scope};
  return MGL_OK;
}

static mgl_status run_macro(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value = {.kind = MGL_JINJA_MACRO};
  MGL_TRY(new_macro(runtime, node, &value.macro));
  return define(runtime, runtime->scope, node->value.string, value);
}

static mgl_status run_call_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  macro *caller = NULL;
  mgl_jinja_value value;
  mgl_jinja_string text;
  MGL_TRY(new_macro(runtime, node, &caller));
  MGL_TRY(evaluate_call(runtime, node->first, caller, &value));
  MGL_TRY(mgl_jinja_to_text(runtime, value, &text));
  return emit(runtime, text);
}

static mgl_status run_scope(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  scope *saved = runtime->scope;
  MGL_TRY(new_scope(runtime, saved, &runtime->scope));
  MGL_TRY(run_body(runtime, node->body));
  runtime->scope = saved;
  return MGL_OK;
}

static mgl_status run_statement(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  switch ((mgl_jinja_node_kind)node->kind) {
    case MGL_JINJA_NODE_DATA: return emit(runtime, node->value.string);
    case MGL_JINJA_NODE_OUTPUT: return run_output(runtime, node);
    case MGL_JINJA_NODE_IF: return run_if(runtime, node);
    case MGL_JINJA_NODE_FOR: return run_for(runtime, node);
    case MGL_JINJA_NODE_SET: return run_set(runtime, node);
    case MGL_JINJA_NODE_SET_BLOCK: return run_set_block(runtime, node);
    case MGL_JINJA_NODE_WITH: return run_with(runtime, node);
    case MGL_JINJA_NODE_MACRO: return run_macro(runtime, node);
    case MGL_JINJA_NODE_CALL_BLOCK: return run_call_block(runtime, node);
    case MGL_JINJA_NODE_FILTER_BLOCK: return run_filter_block(runtime, node);
    case MGL_JINJA_NODE_SCOPE: return run_scope(runtime, node);
    case MGL_JINJA_NODE_BREAK: runtime->flow = FLOW_BREAK; return MGL_OK;
    case MGL_JINJA_NODE_CONTINUE: runtime->flow = FLOW_CONTINUE; return MGL_OK;
    default:
      return mgl_jinja_fail(runtime, MGL_ERR_INTERNAL, "node %d is not a statement", node->kind);
  }
}

static mgl_status run_body(mgl_jinja_runtime *runtime, const mgl_jinja_node *body) {
  MGL_TRY(enter_depth(runtime));
  for (const mgl_jinja_node *node = body; node != NULL && runtime->flow == FLOW_NEXT;
       node = node->next) {
    runtime->line = node->line;
    MGL_TRY(mgl_jinja_charge(runtime, 1));
    MGL_TRY(run_statement(runtime, node));
  }
  runtime->depth--;
  return MGL_OK;
}

mgl_status mgl_jinja_render(mgl_jinja_runtime *runtime, const mgl_jinja_node *body) {
  runtime->line = 1;
  runtime->flow = FLOW_NEXT;
  MGL_TRY(new_scope(runtime, NULL, &runtime->scope));
  return run_body(runtime, body);
}
