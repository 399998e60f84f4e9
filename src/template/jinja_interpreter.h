// The inside of the interpreter: variables (jinja_scope.c), expressions (jinja_evaluate.c) and
// statements (jinja_render.c), which call each other.
#ifndef MGL_TEMPLATE_JINJA_INTERPRETER_H
#define MGL_TEMPLATE_JINJA_INTERPRETER_H

#include "template/jinja_parse.h"
#include "template/jinja_value.h"

typedef struct mgl_jinja_binding {
  mgl_jinja_string name;
  mgl_jinja_value value;
  struct mgl_jinja_binding *next;
} mgl_jinja_binding;

typedef struct mgl_jinja_scope {
  mgl_jinja_binding *bindings;  // newest first
  struct mgl_jinja_scope *parent;
} mgl_jinja_scope;

// A macro, or the body of a call block; closes over the scope it was defined in.
typedef struct mgl_jinja_macro {
  const mgl_jinja_node *node;
  mgl_jinja_scope *closure;
} mgl_jinja_macro;

// Counts a nested evaluation; runtime->depth-- ends it.
mgl_status mgl_jinja_enter_depth(mgl_jinja_runtime *runtime);

// --- variables -----------------------------------------------------------------------------------

mgl_status mgl_jinja_new_scope(mgl_jinja_runtime *runtime, mgl_jinja_scope *parent,
                               mgl_jinja_scope **out);
// Sets a variable of that scope itself.
mgl_status mgl_jinja_define(mgl_jinja_runtime *runtime, mgl_jinja_scope *in, mgl_jinja_string name,
                            mgl_jinja_value value);
// Scopes from inside out, then `self`, the context, the global functions; else undefined.
mgl_status mgl_jinja_look_up(mgl_jinja_runtime *runtime, mgl_jinja_string name,
                             mgl_jinja_value *out);
// To a NAME, a TUPLE of targets, or an attribute of a namespace().
mgl_status mgl_jinja_assign(mgl_jinja_runtime *runtime, const mgl_jinja_node *target,
                            mgl_jinja_value value);

// --- expressions ---------------------------------------------------------------------------------

mgl_status mgl_jinja_evaluate(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                              mgl_jinja_value *out);
// caller: the body of the call block around a call; NULL without one.
mgl_status mgl_jinja_evaluate_call(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                   const mgl_jinja_macro *caller, mgl_jinja_value *out);
// The filters of a block set or filter block: a chain whose innermost has no operand.
mgl_status mgl_jinja_apply_filters(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                   mgl_jinja_value text, mgl_jinja_value *out);

// --- statements ----------------------------------------------------------------------------------

enum { MGL_JINJA_FLOW_NEXT, MGL_JINJA_FLOW_BREAK, MGL_JINJA_FLOW_CONTINUE };

mgl_status mgl_jinja_run_body(mgl_jinja_runtime *runtime, const mgl_jinja_node *body);

// Makes what was emitted since `start` a value and takes it off the output.
mgl_status mgl_jinja_cut_output(mgl_jinja_runtime *runtime, size_t start, mgl_jinja_value *out);
// Runs `body` with its text as a value instead of on the output.
mgl_status mgl_jinja_run_captured(mgl_jinja_runtime *runtime, const mgl_jinja_node *body,
                                  mgl_jinja_value *out);
// self.name(): a block's text.
mgl_status mgl_jinja_call_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                                mgl_jinja_value *out);

// --- loops (jinja_loop.c) ------------------------------------------------------------------------

mgl_status mgl_jinja_run_for(mgl_jinja_runtime *runtime, const mgl_jinja_node *node);
// loop(items) within a recursive loop: the text of the whole loop over other items.
mgl_status mgl_jinja_call_loop(mgl_jinja_runtime *runtime, const struct mgl_jinja_loop *loop,
                               const mgl_jinja_value *arguments, size_t count,
                               mgl_jinja_value *out);

#endif
