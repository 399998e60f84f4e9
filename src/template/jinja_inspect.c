// What a template expects of its variables, read off its tree.
//
// A template looks into the parts of a content if it loops over, or maps or selects from, something
// that came from ".content": by itself, through variables, or through the parameters of macros. The
// scopes of variables do not count; a wrong guess needs one name for two things. Rejected: trying
// the template on a message with parts, since many print what they do not expect.
//
// Its variables are the names that it reads and defines nowhere, scopes again left aside.
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_parse.h"

enum { MAX_NAMES = 256, MAX_HOPS = 16 };

// Names, such as of variables that hold a content. Templates have few; what does not fit is not
// followed.
typedef struct name_set {
  mgl_jinja_string names[MAX_NAMES];
  size_t count;
} name_set;

static bool has_name(const name_set *set, mgl_jinja_string name) {
  for (size_t i = 0; i < set->count; i++) {
    if (mgl_jinja_text_equal(set->names[i], name)) {
      return true;
    }
  }
  return false;
}

static bool is_text(const mgl_jinja_node *node, const char *text) {
  return node != NULL && node->kind == MGL_JINJA_NODE_CONSTANT &&
         node->value.kind == MGL_JINJA_STRING && mgl_jinja_text_is(node->value.string, text);
}

// message.get('content').
static bool is_get(const mgl_jinja_node *call) {
  return call->first->kind == MGL_JINJA_NODE_ATTRIBUTE &&
         mgl_jinja_text_is(call->first->value.string, "get") && is_text(call->items, "content");
}

// Whether an expression gives a content, or a part of one that is still a list.
static bool is_content(const name_set *set, const mgl_jinja_node *node, int hops) {
  for (; node != NULL && hops < MAX_HOPS; hops++) {
    switch ((mgl_jinja_node_kind)node->kind) {
      case MGL_JINJA_NODE_NAME: return has_name(set, node->value.string);
      case MGL_JINJA_NODE_ATTRIBUTE: return mgl_jinja_text_is(node->value.string, "content");
      case MGL_JINJA_NODE_ITEM: return is_text(node->second, "content");
      case MGL_JINJA_NODE_CALL: return is_get(node);
      case MGL_JINJA_NODE_FILTER:
      case MGL_JINJA_NODE_SLICE: node = node->first; break;
      case MGL_JINJA_NODE_AND:
      case MGL_JINJA_NODE_OR:
        if (is_content(set, node->first, hops + 1)) {
          return true;
        }
        node = node->second;
        break;
      case MGL_JINJA_NODE_CONDITION:
        if (is_content(set, node->second, hops + 1)) {
          return true;
        }
        node = node->third;
        break;
      default: return false;
    }
  }
  return false;
}

// Notes that a target holds a content if the value is one. True if that is news.
static bool follow(name_set *set, const mgl_jinja_node *target, const mgl_jinja_node *value) {
  if (target->kind != MGL_JINJA_NODE_NAME || has_name(set, target->value.string) ||
      set->count == MAX_NAMES || !is_content(set, value, 0)) {
    return false;
  }
  set->names[set->count++] = target->value.string;
  return true;
}

// The parameters of the macros of that name, if a call gives them a content.
static bool follow_call(name_set *set, const mgl_jinja_tree *tree, const mgl_jinja_node *call) {
  bool news = false;
  if (call->first->kind != MGL_JINJA_NODE_NAME) {
    return false;
  }
  for (const mgl_jinja_node *macro = tree->newest; macro != NULL; macro = macro->made_before) {
    if (macro->kind != MGL_JINJA_NODE_MACRO ||
        !mgl_jinja_text_equal(macro->value.string, call->first->value.string)) {
      continue;
    }
    const mgl_jinja_node *parameter = macro->items;
    const mgl_jinja_node *argument = call->items;
    for (; parameter != NULL && argument != NULL && argument->kind != MGL_JINJA_NODE_KEYWORD;
         parameter = parameter->next, argument = argument->next) {
      news = follow(set, parameter, argument) || news;
    }
  }
  return news;
}

static bool follow_node(name_set *set, const mgl_jinja_tree *tree, const mgl_jinja_node *node) {
  bool news = false;
  if (node->kind == MGL_JINJA_NODE_SET) {
    return follow(set, node->first, node->second);
  }
  if (node->kind == MGL_JINJA_NODE_WITH) {
    for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next->next) {
      news = follow(set, item, item->next) || news;
    }
  }
  return node->kind == MGL_JINJA_NODE_CALL ? follow_call(set, tree, node) : news;
}

static bool looks_into(const name_set *set, const mgl_jinja_node *node) {
  static const char *const filters[] = {"map", "selectattr", "rejectattr"};
  if (node->kind == MGL_JINJA_NODE_FOR) {
    return is_content(set, node->second, 0);
  }
  for (size_t i = 0; node->kind == MGL_JINJA_NODE_FILTER && i < sizeof filters / sizeof *filters;
       i++) {
    if (mgl_jinja_text_is(node->value.string, filters[i])) {
      return is_content(set, node->first, 0);
    }
  }
  return false;
}

bool mgl_jinja_takes_parts(const mgl_jinja_tree *tree) {
  name_set set = {0};
  bool news = true;
  while (news) {  // each round but the last adds a name
    news = false;
    for (const mgl_jinja_node *node = tree->newest; node != NULL; node = node->made_before) {
      news = follow_node(&set, tree, node) || news;
    }
  }
  for (const mgl_jinja_node *node = tree->newest; node != NULL; node = node->made_before) {
    if (looks_into(&set, node)) {
      return true;
    }
  }
  return false;
}

// --- variables -----------------------------------------------------------------------------------

static bool binds(const mgl_jinja_node *target, mgl_jinja_string name) {
  if (target != NULL && target->kind == MGL_JINJA_NODE_TUPLE) {
    for (const mgl_jinja_node *item = target->items; item != NULL; item = item->next) {
      if (binds(item, name)) {
        return true;
      }
    }
  }
  return target != NULL && target->kind == MGL_JINJA_NODE_NAME &&
         mgl_jinja_text_equal(target->value.string, name);
}

// Whether a statement gives the name a value.
static bool defines(const mgl_jinja_node *node, mgl_jinja_string name) {
  switch ((mgl_jinja_node_kind)node->kind) {
    case MGL_JINJA_NODE_SET:
    case MGL_JINJA_NODE_SET_BLOCK:
    case MGL_JINJA_NODE_FOR: return binds(node->first, name);
    case MGL_JINJA_NODE_WITH:
      for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next->next) {
        if (binds(item, name)) {
          return true;
        }
      }
      return false;
    case MGL_JINJA_NODE_MACRO:
    case MGL_JINJA_NODE_CALL_BLOCK:
      for (const mgl_jinja_node *item = node->items; item != NULL; item = item->next) {
        if (binds(item, name)) {
          return true;
        }
      }
      return node->kind == MGL_JINJA_NODE_MACRO && mgl_jinja_text_equal(node->value.string, name);
    default: return false;
  }
}

// Whether it asks "NAME is defined", or takes "NAME | default(...)".
static bool asks_for(const mgl_jinja_node *node, mgl_jinja_string name) {
  bool is_question =
      node->kind == MGL_JINJA_NODE_TEST && (mgl_jinja_text_is(node->value.string, "defined") ||
                                            mgl_jinja_text_is(node->value.string, "undefined"));
  bool has_default =
      node->kind == MGL_JINJA_NODE_FILTER && (mgl_jinja_text_is(node->value.string, "default") ||
                                              mgl_jinja_text_is(node->value.string, "d"));
  return (is_question || has_default) && binds(node->first, name);
}

static bool is_variable(const mgl_jinja_tree *tree, mgl_jinja_string name) {
  static const char *const specials[] = {"loop", "self", "caller", "varargs", "kwargs"};
  bool is_defined = mgl_jinja_find_global(name) != NULL;
  for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
    is_defined = is_defined || mgl_jinja_text_is(name, specials[i]);
  }
  for (const mgl_jinja_node *node = tree->newest; node != NULL; node = node->made_before) {
    if (asks_for(node, name)) {
      return true;
    }
    is_defined = is_defined || defines(node, name);
  }
  return !is_defined;
}

size_t mgl_jinja_variables(const mgl_jinja_tree *tree, mgl_jinja_string *names, size_t capacity) {
  name_set seen = {0};
  size_t count = 0;
  for (const mgl_jinja_node *node = tree->newest; node != NULL; node = node->made_before) {
    if (node->kind != MGL_JINJA_NODE_NAME || has_name(&seen, node->value.string) ||
        seen.count == MAX_NAMES) {
      continue;
    }
    seen.names[seen.count++] = node->value.string;
    if (count < capacity && is_variable(tree, node->value.string)) {
      names[count++] = node->value.string;
    }
  }
  return count;
}
