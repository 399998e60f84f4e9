// Statements, by a walk over their tree.
//
// Text goes straight to the output; where a construct needs it as a value (macros, block set,
// filter blocks) it is cut off the output's end again.
#include "template/jinja_render.h"

#include <string.h>

#include "template/chat_template.h"
#include "template/jinja_interpreter.h"
#include "template/jinja_operators.h"

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

mgl_status mgl_jinja_cut_output(mgl_jinja_runtime *runtime, size_t start, mgl_jinja_value *out) {
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

mgl_status mgl_jinja_run_captured(mgl_jinja_runtime *runtime, const mgl_jinja_node *body,
                                  mgl_jinja_value *out) {
  size_t start = runtime->out->bytes;
  MGL_TRY(mgl_jinja_run_body(runtime, body));
  return mgl_jinja_cut_output(runtime, start, out);
}

// --- statements ----------------------------------------------------------------------------------

static mgl_status run_output(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value;
  mgl_jinja_string text;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->first, &value));
  runtime->line = node->line;
  MGL_TRY(mgl_jinja_to_text(runtime, value, &text));
  return emit(runtime, text);
}

static mgl_status run_if(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  for (;;) {
    mgl_jinja_value test;
    MGL_TRY(mgl_jinja_evaluate(runtime, node->first, &test));
    if (mgl_jinja_is_true(test)) {
      return mgl_jinja_run_body(runtime, node->body);
    }
    // An elif is an IF that stands alone in `otherwise`; so is an else with one if, which may be
    // taken the same way.
    const mgl_jinja_node *otherwise = node->otherwise;
    if (otherwise == NULL || otherwise->kind != MGL_JINJA_NODE_IF || otherwise->next != NULL) {
      return mgl_jinja_run_body(runtime, otherwise);
    }
    node = otherwise;
  }
}

static mgl_status run_set(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->second, &value));
  return mgl_jinja_assign(runtime, node->first, value);
}

// A body with text that becomes a value, in a scope of its own.
static mgl_status run_scoped(mgl_jinja_runtime *runtime, const mgl_jinja_node *body,
                             mgl_jinja_value *out) {
  mgl_jinja_scope *saved = runtime->scope;
  MGL_TRY(mgl_jinja_new_scope(runtime, saved, &runtime->scope));
  MGL_TRY(mgl_jinja_run_captured(runtime, body, out));
  runtime->scope = saved;
  return MGL_OK;
}

static mgl_status run_set_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value text;
  MGL_TRY(run_scoped(runtime, node->body, &text));
  if (runtime->flow != MGL_JINJA_FLOW_NEXT) {
    return MGL_OK;
  }
  MGL_TRY(mgl_jinja_apply_filters(runtime, node->second, text, &text));
  return mgl_jinja_assign(runtime, node->first, text);
}

static mgl_status run_filter_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value;
  mgl_jinja_string text;
  MGL_TRY(run_scoped(runtime, node->body, &value));
  if (runtime->flow != MGL_JINJA_FLOW_NEXT) {
    return MGL_OK;
  }
  MGL_TRY(mgl_jinja_apply_filters(runtime, node->second, value, &value));
  MGL_TRY(mgl_jinja_to_text(runtime, value, &text));
  return emit(runtime, text);
}

static mgl_status run_with(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_scope *saved = runtime->scope;
  mgl_jinja_scope *inner = NULL;
  MGL_TRY(mgl_jinja_new_scope(runtime, saved, &inner));
  for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next->next) {
    mgl_jinja_value value;
    runtime->scope = saved;  // one target's value does not see the others
    MGL_TRY(mgl_jinja_evaluate(runtime, item->next, &value));
    runtime->scope = inner;
    MGL_TRY(mgl_jinja_assign(runtime, item, value));
  }
  runtime->scope = inner;
  MGL_TRY(mgl_jinja_run_body(runtime, node->body));
  runtime->scope = saved;
  return MGL_OK;
}

static mgl_status new_macro(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                            mgl_jinja_macro **out) {
  *out = mgl_arena_alloc(&runtime->arena, sizeof **out);
  if (*out == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  **out = (mgl_jinja_macro){.node = node, .closure = runtime->scope};
  return MGL_OK;
}

static mgl_status run_macro(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value = {.kind = MGL_JINJA_MACRO};
  MGL_TRY(new_macro(runtime, node, &value.macro));
  return mgl_jinja_define(runtime, runtime->scope, node->value.string, value);
}

static mgl_status run_call_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_macro *caller = NULL;
  mgl_jinja_value value;
  mgl_jinja_string text;
  MGL_TRY(new_macro(runtime, node, &caller));
  MGL_TRY(mgl_jinja_evaluate_call(runtime, node->first, caller, &value));
  MGL_TRY(mgl_jinja_to_text(runtime, value, &text));
  return emit(runtime, text);
}

static mgl_status run_scope(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_scope *saved = runtime->scope;
  MGL_TRY(mgl_jinja_new_scope(runtime, saved, &runtime->scope));
  MGL_TRY(mgl_jinja_run_body(runtime, node->body));
  runtime->scope = saved;
  return MGL_OK;
}

// A named block where it stands, or where self.name() calls it. Unless it is scoped it sees the
// variables of the template's top level only.
static mgl_status run_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                            mgl_jinja_scope *around) {
  mgl_jinja_scope *saved = runtime->scope;
  mgl_jinja_scope *parent = node->op == 's' ? around : runtime->top;
  MGL_TRY(mgl_jinja_new_scope(runtime, parent, &runtime->scope));
  MGL_TRY(mgl_jinja_run_body(runtime, node->body));
  runtime->scope = saved;
  return MGL_OK;
}

mgl_status mgl_jinja_call_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                mgl_jinja_value *out) {
  size_t start = runtime->out->bytes;
  MGL_TRY(run_block(runtime, node, runtime->top));
  return mgl_jinja_cut_output(runtime, start, out);
}

static mgl_status run_statement(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  switch ((mgl_jinja_node_kind)node->kind) {
    case MGL_JINJA_NODE_DATA: return emit(runtime, node->value.string);
    case MGL_JINJA_NODE_OUTPUT: return run_output(runtime, node);
    case MGL_JINJA_NODE_IF: return run_if(runtime, node);
    case MGL_JINJA_NODE_FOR: return mgl_jinja_run_for(runtime, node);
    case MGL_JINJA_NODE_SET: return run_set(runtime, node);
    case MGL_JINJA_NODE_SET_BLOCK: return run_set_block(runtime, node);
    case MGL_JINJA_NODE_WITH: return run_with(runtime, node);
    case MGL_JINJA_NODE_MACRO: return run_macro(runtime, node);
    case MGL_JINJA_NODE_CALL_BLOCK: return run_call_block(runtime, node);
    case MGL_JINJA_NODE_FILTER_BLOCK: return run_filter_block(runtime, node);
    case MGL_JINJA_NODE_SCOPE: return run_scope(runtime, node);
    case MGL_JINJA_NODE_BLOCK: return run_block(runtime, node, runtime->scope);
    case MGL_JINJA_NODE_BREAK: runtime->flow = MGL_JINJA_FLOW_BREAK; return MGL_OK;
    case MGL_JINJA_NODE_CONTINUE: runtime->flow = MGL_JINJA_FLOW_CONTINUE; return MGL_OK;
    default:
      return mgl_jinja_fail(runtime, MGL_ERR_INTERNAL, "node %d is not a statement", node->kind);
  }
}

mgl_status mgl_jinja_run_body(mgl_jinja_runtime *runtime, const mgl_jinja_node *body) {
  MGL_TRY(mgl_jinja_enter_depth(runtime));
  for (const mgl_jinja_node *node = body; node != NULL && runtime->flow == MGL_JINJA_FLOW_NEXT;
       node = node->next) {
    runtime->line = node->line;
    MGL_TRY(mgl_jinja_charge(runtime, 1));
    MGL_TRY(run_statement(runtime, node));
  }
  runtime->depth--;
  return MGL_OK;
}

mgl_status mgl_jinja_render(mgl_jinja_runtime *runtime, const mgl_jinja_tree *tree) {
  runtime->line = 1;
  runtime->flow = MGL_JINJA_FLOW_NEXT;
  runtime->blocks = tree->blocks;
  MGL_TRY(mgl_jinja_new_scope(runtime, NULL, &runtime->scope));
  runtime->top = runtime->scope;
  return mgl_jinja_run_body(runtime, tree->body);
}
