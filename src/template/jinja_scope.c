// Variables live in chains of scopes: one for the template, one per iteration of a loop, per macro
// call, and per block that has its own. Jinja resolves names when it compiles; the chain gives the
// same result because a template cannot assign to an outer scope (that is what namespaces are for).
#include "template/jinja_builtins.h"
#include "template/jinja_interpreter.h"
#include "template/jinja_operators.h"

mgl_status mgl_jinja_new_scope(mgl_jinja_runtime *runtime, mgl_jinja_scope *parent,
                               mgl_jinja_scope **out) {
  *out = mgl_arena_alloc_zeroed(&runtime->arena, 1, sizeof **out);
  if (*out == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  (*out)->parent = parent;
  return MGL_OK;
}

// *found is NULL if the scope itself has no such variable. A scope is a list: templates have few
// variables, and a hostile one pays for its many.
static mgl_status find_binding(mgl_jinja_runtime *runtime, const mgl_jinja_scope *in,
                               mgl_jinja_string name, mgl_jinja_binding **found) {
  size_t visited = 0;
  mgl_jinja_binding *b = in->bindings;
  for (; b != NULL && !mgl_jinja_text_equal(b->name, name); b = b->next) {
    visited++;
  }
  *found = b;
  return mgl_jinja_charge(runtime, visited / 16);
}

mgl_status mgl_jinja_define(mgl_jinja_runtime *runtime, mgl_jinja_scope *in, mgl_jinja_string name,
                            mgl_jinja_value value) {
  mgl_jinja_binding *found = NULL;
  MGL_TRY(find_binding(runtime, in, name, &found));
  if (found == NULL) {
    found = mgl_arena_alloc(&runtime->arena, sizeof *found);
    if (found == NULL) {
      return mgl_jinja_fail_memory(runtime);
    }
    *found = (mgl_jinja_binding){.name = name, .next = in->bindings};
    in->bindings = found;
  }
  found->value = value;
  return MGL_OK;
}

mgl_status mgl_jinja_look_up(mgl_jinja_runtime *runtime, mgl_jinja_string name,
                             mgl_jinja_value *out) {
  for (mgl_jinja_scope *s = runtime->scope; s != NULL; s = s->parent) {
    mgl_jinja_binding *bound = NULL;
    MGL_TRY(find_binding(runtime, s, name, &bound));
    if (bound != NULL) {
      *out = bound->value;
      return MGL_OK;
    }
  }
  if (mgl_jinja_text_is(name, "self")) {
    *out = (mgl_jinja_value){.kind = MGL_JINJA_SELF};
    return MGL_OK;
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
    MGL_TRY(mgl_jinja_assign(runtime, item, items.list->items[i++]));
  }
  return MGL_OK;
}

mgl_status mgl_jinja_assign(mgl_jinja_runtime *runtime, const mgl_jinja_node *target,
                            mgl_jinja_value value) {
  runtime->line = target->line;
  if (target->kind == MGL_JINJA_NODE_TUPLE) {
    return assign_tuple(runtime, target, value);
  }
  if (target->kind == MGL_JINJA_NODE_NAME) {
    return mgl_jinja_define(runtime, runtime->scope, target->value.string, value);
  }
  mgl_jinja_value object;
  MGL_TRY(mgl_jinja_evaluate(runtime, target->first, &object));
  if (object.kind != MGL_JINJA_NAMESPACE) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT,
                          "an attribute can be set on a namespace() only, found %s",
                          mgl_jinja_type_name(object));
  }
  return mgl_jinja_dict_set(runtime, object.dict, target->value, value);
}
