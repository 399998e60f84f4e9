// Loops: their items, the variable `loop`, and loops that call themselves.
#include <stdio.h>

#include "template/jinja_builtins.h"
#include "template/jinja_interpreter.h"
#include "template/jinja_operators.h"

// A running loop. Items are drawn from the source as they are needed, since the loop's filter may
// read what its body has set.
typedef struct mgl_jinja_loop {
  const mgl_jinja_node *node;
  mgl_jinja_scope *outer;
  mgl_jinja_cursor source;
  mgl_jinja_list items;  // drawn so far, those that passed the filter
  bool drained;
  size_t index;             // of the current item
  size_t depth;             // of loops that called this one as loop(items)
  mgl_jinja_value changed;  // the latest arguments of loop.changed(), a TUPLE; ABSENT: none yet
} loop;

// --- items ---------------------------------------------------------------------------------------

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
  LOOP_UNKNOWN,
} loop_field;

static loop_field find_loop_field(mgl_jinja_string name) {
  static const char *const names[] = {"index",    "index0",   "first",     "last",
                                      "length",   "revindex", "revindex0", "previtem",
                                      "nextitem", "depth",    "depth0"};
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
    case LOOP_DEPTH: *out = mgl_jinja_int((int64_t)l->depth + 1); break;
    case LOOP_DEPTH0: *out = mgl_jinja_int((int64_t)l->depth); break;
    case LOOP_UNKNOWN: break;
  }
  return MGL_OK;
}

static mgl_status loop_cycle(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                             mgl_jinja_value *out) {
  if (call->argument_count == 0 || call->keyword_count != 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "loop.cycle: expected items to cycle through");
  }
  *out = call->arguments[call->self.loop->index % call->argument_count];
  return MGL_OK;
}

// Whether the arguments are others than at the latest call.
static mgl_status loop_changed(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                               mgl_jinja_value *out) {
  loop *l = call->self.loop;
  mgl_jinja_value given;
  bool same = false;
  if (call->keyword_count != 0) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "loop.changed: expected no keywords");
  }
  MGL_TRY(mgl_jinja_list_new(runtime, MGL_JINJA_TUPLE, &given));
  for (size_t i = 0; i < call->argument_count; i++) {
    MGL_TRY(mgl_jinja_list_add(runtime, given.list, call->arguments[i]));
  }
  if (l->changed.kind != MGL_JINJA_ABSENT) {
    MGL_TRY(mgl_jinja_equal(runtime, l->changed, given, &same));
  }
  l->changed = given;
  *out = mgl_jinja_bool(!same);
  return MGL_OK;
}

const mgl_jinja_builtin mgl_jinja_loop_methods[] = {
    {"cycle", NULL, 0, loop_cycle},
    {"changed", NULL, 0, loop_changed},
    {NULL, NULL, 0, NULL},
};

mgl_status mgl_jinja_loop_text(mgl_jinja_runtime *runtime, loop *l, mgl_jinja_builder *builder) {
  char text[64];
  MGL_TRY(draw_items(runtime, l, SIZE_MAX));
  int bytes = snprintf(text, sizeof text, "<LoopContext %zu/%zu>", l->index + 1, l->items.count);
  mgl_jinja_builder_add(builder, (mgl_jinja_string){text, (size_t)bytes});
  return MGL_OK;
}

// --- running -------------------------------------------------------------------------------------

static mgl_status run_item(mgl_jinja_runtime *runtime, loop *l) {
  MGL_TRY(mgl_jinja_new_scope(runtime, l->outer, &runtime->scope));
  mgl_jinja_value self = {.kind = MGL_JINJA_LOOP, .loop = l};
  MGL_TRY(mgl_jinja_define(runtime, runtime->scope, MGL_JINJA_LITERAL("loop"), self));
  MGL_TRY(mgl_jinja_assign(runtime, l->node->first, l->items.items[l->index]));
  return mgl_jinja_run_body(runtime, l->node->body);
}

// Runs a loop statement over `source`, in the scope where it stands.
static mgl_status run_loop(mgl_jinja_runtime *runtime, const mgl_jinja_node *node,
                           mgl_jinja_scope *outer, size_t depth, mgl_jinja_value source) {
  mgl_jinja_scope *saved = runtime->scope;
  bool completed = false;  // an iteration ran to its end; Jinja's else asks for just that
  loop *l = mgl_arena_alloc_zeroed(&runtime->arena, 1, sizeof *l);
  if (l == NULL) {
    return mgl_jinja_fail_memory(runtime);
  }
  l->node = node;
  l->outer = outer;
  l->depth = depth;
  MGL_TRY(mgl_jinja_iterate(runtime, source, &l->source));
  for (;; l->index++) {
    MGL_TRY(draw_items(runtime, l, l->index + 1));
    if (l->index >= l->items.count) {
      break;
    }
    MGL_TRY(run_item(runtime, l));
    runtime->scope = saved;
    int flow = runtime->flow;
    runtime->flow = MGL_JINJA_FLOW_NEXT;
    completed = completed || flow == MGL_JINJA_FLOW_NEXT;
    if (flow == MGL_JINJA_FLOW_BREAK) {
      break;
    }
  }
  if (!completed && node->otherwise != NULL) {
    MGL_TRY(mgl_jinja_new_scope(runtime, outer, &runtime->scope));
    MGL_TRY(mgl_jinja_run_body(runtime, node->otherwise));
  }
  runtime->scope = saved;
  return MGL_OK;
}

mgl_status mgl_jinja_run_for(mgl_jinja_runtime *runtime, const mgl_jinja_node *node) {
  mgl_jinja_value source;
  MGL_TRY(mgl_jinja_evaluate(runtime, node->second, &source));
  runtime->line = node->line;
  return run_loop(runtime, node, runtime->scope, 0, source);
}

mgl_status mgl_jinja_call_loop(mgl_jinja_runtime *runtime, const loop *l,
                               const mgl_jinja_value *arguments, size_t count,
                               mgl_jinja_value *out) {
  if (l->node->op != 'r') {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT,
                          "loop() needs a loop that is marked \"recursive\"");
  }
  if (count != 1) {
    return mgl_jinja_fail(runtime, MGL_ERR_ARGUMENT, "loop(): expected 1 argument, found %zu",
                          count);
  }
  size_t start = runtime->out->bytes;
  MGL_TRY(mgl_jinja_enter_depth(runtime));
  MGL_TRY(run_loop(runtime, l->node, l->outer, l->depth + 1, arguments[0]));
  runtime->depth--;
  return mgl_jinja_cut_output(runtime, start, out);
}
