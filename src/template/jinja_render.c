// Statements, by a walk over their tree.
//
// Text goes straight to the output; where a construct needs it as a value (macros, block set,
// filter blocks) it is cut off the output's end again.
#include "template/jinja_render.h"

#include <string.h>

#include "template/chat_template.h"
#include "template/jinja_interpreter.h"
#include "template/jinja_operators.h"

enum { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

// A running loop. Items are drawn from the source as they are needed, since the loop's filter may
// read what its body has set.
typedef struct mgl_jinja_loop {
  const mgl_jinja_node *node;
  mgl_jinja_scope *outer;
  mgl_jinja_cursor source;
  mgl_jinja_list items;  // drawn so far, those that passed the filter
  bool drained;
  size_t index;  // of the current item
} loop;

static mgl_status run_body(mgl_jinja_runtime *runtime, const mgl_jinja_node *body);

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

mgl_status mgl_jinja_run_captured(mgl_jinja_runtime *runtime, const mgl_jinja_node *body,
                                  mgl_jinja_value *out) {
  size_t start = runtime->out->bytes;
  MGL_TRY(run_body(runtime, body));
  return cut_output(runtime, start, out);
}

// --- loops ---------------------------------------------------------------------------------------

// Whether the loop's filter lets an item through.
static mgl_status passes_filter(mgl_jinja_runtime *runtime, const loop *l, mgl_jinja_value item,
                                bool *out) {
  *out = true;
  if (l->node->third == NULL) {
    return MGL_OK;
  }
  mgl_jinja_scope *saved = runtime->scope;
  mgl_jinja_value test;
  MGL_TRY(mgl_jinja_new_scope(runtime, l->outer, &runtime->scope));
  MGL_TRY(mgl_jinja_assign(runtime, l->node->first, item));
  MGL_TRY(mgl_jinja_evaluate(runtime, l->node->third, &test));
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
  mgl_jinja_scope *saved = runtime->scope;
  bool completed = false;  // an iteration ran to its end; Jinja's else asks for just that
  mgl_jinja_value source;
  loop *l = mgl_arena_alloc_zeroed(&runtime->arena, 1, sizeof *l);
  if (l == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  l->node = node;
  l->outer = saved;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->second, &source));
  runtime->line = node->line;
  MGL_TRY(mgl_jinja_iterate(runtime, source, &l->source));
  for (;; l->index++) {
    MGL_TRY(draw_items(runtime, l, l->index + 1));
    if (l->index >= l->items.count) {
      break;
    }
    MGL_TRY(mgl_jinja_new_scope(runtime, saved, &runtime->scope));
    mgl_jinja_value self = {.kind = MGL_JINJA_LOOP, .loop = l};
    MGL_TRY(mgl_jinja_define(runtime, runtime->scope, MGL_JINJA_LITERAL("loop"), self));
    MGL_TRY(mgl_jinja_assign(runtime, node->first, l->items.items[l->index]));
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
    MGL_TRY(mgl_jinja_new_scope(runtime, saved, &runtime->scope));
    MGL_TRY(run_body(runtime, node->otherwise));
    runtime->scope = saved;
  }
  return MGL_OK;
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
  if (runtime->flow != FLOW_NEXT) {
    return MGL_OK;
  }
  MGL_TRY(mgl_jinja_apply_filters(runtime, node->second, text, &text));
  return mgl_jinja_assign(runtime, node->first, text);
}

static mgl_status run_filter_block(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value value;
  mgl_jinja_string text;
  MGL_TRY(run_scoped(runtime, node->body, &value));
  if (runtime->flow != FLOW_NEXT) {
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
  MGL_TRY(run_body(runtime, node->body));
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
  MGL_TRY(mgl_jinja_enter_depth(runtime));
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
  MGL_TRY(mgl_jinja_new_scope(runtime, NULL, &runtime->scope));
  return run_body(runtime, body);
}
