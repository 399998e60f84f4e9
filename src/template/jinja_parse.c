// Text, output and statements; expressions have a file of their own.
#include "template/jinja_parse.h"

#include "template/jinja_parser.h"

static bool parse_body(mgl_jinja_parser *p, const char *tag, int tag_line, const char *const *ends,
                       mgl_jinja_node **out);

// "%}", the statements up to {% END %}, with END the current token then.
static bool parse_block(mgl_jinja_parser *p, const char *tag, int tag_line, const char *const *ends,
                        mgl_jinja_node **out) {
  if (mgl_jinja_at_operator(p, ":") && !mgl_jinja_advance(p)) {
    return false;
  }
  return mgl_jinja_expect_kind(p, MGL_JINJA_TOKEN_BLOCK_END, "'%}'") &&
         parse_body(p, tag, tag_line, ends, out);
}

// The same for a block with one possible end, which is consumed.
static bool parse_block_to(mgl_jinja_parser *p, const char *tag, int tag_line, const char *end,
                           mgl_jinja_node **out) {
  const char *const ends[] = {end, NULL};
  return parse_block(p, tag, tag_line, ends, out) && mgl_jinja_advance(p);
}

static mgl_jinja_node *parse_target_primary(mgl_jinja_parser *p);

// What a loop assigns to: a name or a tuple of them, but not the name that the loop itself has.
static mgl_jinja_node *parse_target(mgl_jinja_parser *p, const char *end_name) {
  mgl_jinja_node *node = mgl_jinja_parse_tuple(p, parse_target_primary, end_name, false);
  if (node == NULL) {
    return NULL;
  }
  const mgl_jinja_node *name = node->kind == MGL_JINJA_NODE_TUPLE ? node->items : node;
  for (; name != NULL; name = name->next) {
    if (name->kind == MGL_JINJA_NODE_NAME && mgl_jinja_text_is(name->value.string, "loop")) {
      return mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, name->line,
                                  "a loop cannot assign to \"loop\"");
    }
  }
  return node;
}

static mgl_jinja_node *parse_target_primary(mgl_jinja_parser *p) {
  mgl_jinja_node *node = NULL;
  int line = p->token.line;
  if (!mgl_jinja_parse_enter(p)) {
    return NULL;
  }
  if (mgl_jinja_at_operator(p, "(")) {
    node = mgl_jinja_advance(p) ? mgl_jinja_parse_tuple(p, parse_target_primary, NULL, true) : NULL;
    node = node != NULL && mgl_jinja_expect_operator(p, ")") ? node : NULL;
  } else {
    mgl_jinja_string name;
    mgl_jinja_value constant;
    if (!mgl_jinja_expect_name(p, &name, "a name to assign to")) {
      return NULL;
    }
    if (mgl_jinja_constant_of_name(name, &constant)) {
      return mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, line, "cannot assign to \"%.*s\"",
                                  (int)name.bytes, name.data);
    }
    node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_NAME, line, name);
  }
  p->depth--;
  return node;
}

// set x = ..., set ns.x = ..., set x | filter %} text {% endset.
static mgl_jinja_node *parse_set_target(mgl_jinja_parser *p) {
  if (p->token.kind == MGL_JINJA_TOKEN_NAME) {
    if (!mgl_jinja_look_ahead(p)) {
      return NULL;
    }
    if (mgl_jinja_is_token(&p->ahead, MGL_JINJA_TOKEN_OPERATOR, ".")) {
      mgl_jinja_node *object = mgl_jinja_parse_name(p);
      mgl_jinja_string name;
      int line = p->token.line;
      if (object == NULL || !mgl_jinja_advance(p) ||
          !mgl_jinja_expect_name(p, &name, "the name of an attribute")) {
        return NULL;
      }
      mgl_jinja_node *node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_ATTRIBUTE, line, name);
      if (node != NULL) {
        node->first = object;
      }
      return node;
    }
  }
  return parse_target_primary(p);
}

static mgl_jinja_node *parse_set(mgl_jinja_parser *p, int line) {
  mgl_jinja_node *target = mgl_jinja_parse_tuple(p, parse_set_target, NULL, false);
  if (target == NULL) {
    return NULL;
  }
  mgl_jinja_node *node = mgl_jinja_new_operation(p, MGL_JINJA_NODE_SET, line, 0, target, NULL);
  if (node == NULL) {
    return NULL;
  }
  if (mgl_jinja_at_operator(p, "=")) {
    node->second = mgl_jinja_advance(p)
                       ? mgl_jinja_parse_tuple(p, mgl_jinja_parse_expression, NULL, false)
                       : NULL;
    return node->second == NULL ? NULL : node;
  }
  node->kind = MGL_JINJA_NODE_SET_BLOCK;
  while (mgl_jinja_at_operator(p, "|")) {
    node->second = mgl_jinja_advance(p) ? mgl_jinja_parse_filter(p, node->second) : NULL;
    if (node->second == NULL) {
      return NULL;
    }
  }
  return parse_block_to(p, "set", line, "endset", &node->body) ? node : NULL;
}

static mgl_jinja_node *parse_for(mgl_jinja_parser *p, int line) {
  static const char *const ends[] = {"endfor", "else", NULL};
  mgl_jinja_node *node = mgl_jinja_new_node(p, MGL_JINJA_NODE_FOR, line);
  if (node == NULL || (node->first = parse_target(p, "in")) == NULL) {
    return NULL;
  }
  if (!mgl_jinja_at_name(p, "in")) {
    return mgl_jinja_parse_fail_expected(p, "\"in\"");
  }
  if (!mgl_jinja_advance(p) ||
      (node->second = mgl_jinja_parse_tuple(p, mgl_jinja_parse_or, "recursive", false)) == NULL) {
    return NULL;
  }
  if (mgl_jinja_at_name(p, "if") &&
      (!mgl_jinja_advance(p) || (node->third = mgl_jinja_parse_expression(p)) == NULL)) {
    return NULL;
  }
  if (mgl_jinja_at_name(p, "recursive")) {
    node->op = 'r';
    if (!mgl_jinja_advance(p)) {
      return NULL;
    }
  }
  p->loops++;
  bool parsed = parse_block(p, "for", line, ends, &node->body);
  p->loops--;
  if (!parsed) {
    return NULL;
  }
  bool has_else = mgl_jinja_at_name(p, "else");
  if (!mgl_jinja_advance(p) ||
      (has_else && !parse_block_to(p, "for", line, "endfor", &node->otherwise))) {
    return NULL;
  }
  return node;
}

static mgl_jinja_node *parse_if(mgl_jinja_parser *p, int line) {
  static const char *const ends[] = {"elif", "else", "endif", NULL};
  mgl_jinja_node *first = NULL;
  mgl_jinja_node **link = &first;
  for (;;) {
    mgl_jinja_node *node = mgl_jinja_new_node(p, MGL_JINJA_NODE_IF, p->token.line);
    *link = node;
    if (node == NULL ||
        (node->first = mgl_jinja_parse_tuple(p, mgl_jinja_parse_or, NULL, false)) == NULL ||
        !parse_block(p, "if", line, ends, &node->body)) {
      return NULL;
    }
    bool has_elif = mgl_jinja_at_name(p, "elif");
    bool has_else = mgl_jinja_at_name(p, "else");
    if (!mgl_jinja_advance(p)) {
      return NULL;
    }
    link = &node->otherwise;
    if (!has_elif) {
      bool parsed = !has_else || parse_block_to(p, "if", line, "endif", link);
      return parsed ? first : NULL;
    }
  }
}

// "(a, b=1)" into node->items as NAMEs with their default in `first`.
static bool parse_parameters(mgl_jinja_parser *p, mgl_jinja_node *node) {
  mgl_jinja_node **tail = &node->items;
  bool defaults = false;
  if (!mgl_jinja_expect_operator(p, "(")) {
    return false;
  }
  while (!mgl_jinja_at_operator(p, ")")) {
    mgl_jinja_string name;
    int line = p->token.line;
    if ((node->count != 0 && !mgl_jinja_expect_operator(p, ",")) ||
        !mgl_jinja_expect_name(p, &name, "the name of a parameter")) {
      return false;
    }
    mgl_jinja_node *parameter = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_NAME, line, name);
    if (!mgl_jinja_add_item(node, &tail, parameter)) {
      return false;
    }
    if (mgl_jinja_at_operator(p, "=")) {
      defaults = true;
      if (!mgl_jinja_advance(p) || (parameter->first = mgl_jinja_parse_expression(p)) == NULL) {
        return false;
      }
    } else if (mgl_jinja_text_is(name, "caller")) {
      (void)mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, line,
                                 "a parameter \"caller\" must have a default value");
      return false;
    } else if (defaults) {
      (void)mgl_jinja_parse_fail_expected(p, "a default value, since the parameter before has one");
      return false;
    }
  }
  return mgl_jinja_advance(p);
}

// The rest of a macro or call block from its parameters on: break and continue do not reach out of
// it, and a use of `caller` in it is its own; so are varargs and kwargs. Parameters of these names
// are parameters.
static mgl_jinja_node *parse_macro_body(mgl_jinja_parser *p, mgl_jinja_node *node, const char *tag,
                                        const char *end) {
  size_t loops = p->loops;
  uint8_t uses = p->uses;
  p->loops = 0;
  p->uses = 0;
  bool parsed = parse_block_to(p, tag, node->line, end, &node->body);
  node->uses = p->uses;
  p->uses |= uses;
  p->loops = loops;
  return parsed ? node : NULL;
}

static mgl_jinja_node *parse_macro(mgl_jinja_parser *p, int line) {
  mgl_jinja_node *node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_MACRO, line, p->token.text);
  mgl_jinja_string name;
  if (node == NULL || !mgl_jinja_expect_name(p, &name, "the name of a macro") ||
      !parse_parameters(p, node)) {
    return NULL;
  }
  return parse_macro_body(p, node, "macro", "endmacro");
}

static mgl_jinja_node *parse_call_block(mgl_jinja_parser *p, int line) {
  mgl_jinja_node *node = mgl_jinja_new_node(p, MGL_JINJA_NODE_CALL_BLOCK, line);
  if (node == NULL || (mgl_jinja_at_operator(p, "(") && !parse_parameters(p, node))) {
    return NULL;
  }
  node->first = mgl_jinja_parse_expression(p);
  if (node->first == NULL) {
    return NULL;
  }
  if (node->first->kind != MGL_JINJA_NODE_CALL) {
    return mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, line, "expected a call behind \"call\"");
  }
  return parse_macro_body(p, node, "call", "endcall");
}

static mgl_jinja_node *parse_with(mgl_jinja_parser *p, int line) {
  mgl_jinja_node *node = mgl_jinja_new_node(p, MGL_JINJA_NODE_WITH, line);
  mgl_jinja_node **tail = node == NULL ? NULL : &node->items;
  while (node != NULL && p->token.kind != MGL_JINJA_TOKEN_BLOCK_END) {
    if ((node->count != 0 && !mgl_jinja_expect_operator(p, ",")) ||
        !mgl_jinja_add_item(node, &tail, parse_target_primary(p)) ||
        !mgl_jinja_expect_operator(p, "=") ||
        !mgl_jinja_add_item(node, &tail, mgl_jinja_parse_expression(p))) {
      return NULL;
    }
  }
  return node != NULL && parse_block_to(p, "with", line, "endwith", &node->body) ? node : NULL;
}

static mgl_jinja_node *parse_filter_block(mgl_jinja_parser *p, int line) {
  mgl_jinja_node *node = mgl_jinja_new_node(p, MGL_JINJA_NODE_FILTER_BLOCK, line);
  if (node == NULL || (node->second = mgl_jinja_parse_filter(p, NULL)) == NULL) {
    return NULL;
  }
  while (mgl_jinja_at_operator(p, "|")) {
    node->second = mgl_jinja_advance(p) ? mgl_jinja_parse_filter(p, node->second) : NULL;
    if (node->second == NULL) {
      return NULL;
    }
  }
  return parse_block_to(p, "filter", line, "endfilter", &node->body) ? node : NULL;
}

// transformers' extension that marks what the model wrote; it renders as its content.
static mgl_jinja_node *parse_generation(mgl_jinja_parser *p, int line) {
  mgl_jinja_node *node = mgl_jinja_new_node(p, MGL_JINJA_NODE_SCOPE, line);
  size_t loops = p->loops;
  p->loops = 0;
  bool parsed = node != NULL && parse_block_to(p, "generation", line, "endgeneration", &node->body);
  p->loops = loops;
  return parsed ? node : NULL;
}

// {% block name scoped %}: what it uses of a macro around it is not the macro's.
static mgl_jinja_node *parse_named_block(mgl_jinja_parser *p, int line) {
  mgl_jinja_node *node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_BLOCK, line, p->token.text);
  mgl_jinja_string name;
  size_t loops = p->loops;
  uint8_t uses = p->uses;
  if (node == NULL || !mgl_jinja_expect_name(p, &name, "the name of a block")) {
    return NULL;
  }
  for (const mgl_jinja_node *other = p->blocks; other != NULL; other = other->second) {
    if (mgl_jinja_text_equal(other->value.string, name)) {
      return mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, line, "the block \"%.*s\" is defined twice",
                                  (int)(name.bytes < 40 ? name.bytes : 40), name.data);
    }
  }
  node->second = p->blocks;
  p->blocks = node;
  if (mgl_jinja_at_name(p, "scoped")) {
    node->op = 's';
    if (!mgl_jinja_advance(p)) {
      return NULL;
    }
  }
  if (mgl_jinja_at_name(p, "required")) {
    return mgl_jinja_parse_fail(p, MGL_ERR_UNSUPPORTED, line, "required blocks are not supported");
  }
  p->loops = 0;
  bool parsed = parse_block_to(p, "block", line, "endblock", &node->body);
  p->loops = loops;
  p->uses = uses;
  if (parsed && p->token.kind == MGL_JINJA_TOKEN_NAME &&
      mgl_jinja_text_equal(p->token.text, name)) {
    parsed = mgl_jinja_advance(p);
  }
  return parsed ? node : NULL;
}

static mgl_jinja_node *parse_flow(mgl_jinja_parser *p, mgl_jinja_node_kind kind, int line) {
  if (p->loops == 0) {
    return mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, line, "\"%s\" outside of a loop",
                                kind == MGL_JINJA_NODE_BREAK ? "break" : "continue");
  }
  return mgl_jinja_new_node(p, kind, line);
}

// The statement behind "{%".
static mgl_jinja_node *parse_statement(mgl_jinja_parser *p) {
  static const char *const unsupported[] = {"extends", "include", "import",     "from",  "print",
                                            "do",      "trans",   "autoescape", "debug", NULL};
  mgl_jinja_string name;
  int line = p->token.line;
  if (!mgl_jinja_expect_name(p, &name, "the name of a statement")) {
    return NULL;
  }
  static const struct {
    const char *name;
    mgl_jinja_node *(*parse)(mgl_jinja_parser *p, int line);
  } statements[] = {
      {"if", parse_if},
      {"for", parse_for},
      {"set", parse_set},
      {"macro", parse_macro},
      {"with", parse_with},
      {"call", parse_call_block},
      {"filter", parse_filter_block},
      {"generation", parse_generation},
      {"block", parse_named_block},
  };
  for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
    if (mgl_jinja_text_is(name, statements[i].name)) {
      return statements[i].parse(p, line);
    }
  }
  if (mgl_jinja_text_is(name, "break")) {
    return parse_flow(p, MGL_JINJA_NODE_BREAK, line);
  }
  if (mgl_jinja_text_is(name, "continue")) {
    return parse_flow(p, MGL_JINJA_NODE_CONTINUE, line);
  }
  for (size_t i = 0; unsupported[i] != NULL; i++) {
    if (mgl_jinja_text_is(name, unsupported[i])) {
      return mgl_jinja_parse_fail(p, MGL_ERR_UNSUPPORTED, line, "{%% %s %%} is not supported",
                                  unsupported[i]);
    }
  }
  return mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, line,
                              "unknown or misplaced statement {%% %.*s %%}",
                              (int)(name.bytes < 40 ? name.bytes : 40), name.data);
}

static bool at_one_of(const mgl_jinja_parser *p, const char *const *ends) {
  for (size_t i = 0; ends[i] != NULL; i++) {
    if (mgl_jinja_at_name(p, ends[i])) {
      return true;
    }
  }
  return false;
}

// One piece of a body; *ended when it was the "{% END" that ends it.
static mgl_jinja_node *parse_piece(mgl_jinja_parser *p, const char *const *ends, bool *ended) {
  int line = p->token.line;
  if (p->token.kind == MGL_JINJA_TOKEN_DATA) {
    mgl_jinja_node *node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_DATA, line, p->token.text);
    return node != NULL && mgl_jinja_advance(p) ? node : NULL;
  }
  bool is_block = p->token.kind == MGL_JINJA_TOKEN_BLOCK_BEGIN;
  if (!mgl_jinja_advance(p)) {
    return NULL;
  }
  if (is_block) {
    *ended = at_one_of(p, ends);
    mgl_jinja_node *node = *ended ? NULL : parse_statement(p);
    return node != NULL && mgl_jinja_expect_kind(p, MGL_JINJA_TOKEN_BLOCK_END, "'%}'") ? node
                                                                                       : NULL;
  }
  mgl_jinja_node *node = mgl_jinja_new_operation(
      p, MGL_JINJA_NODE_OUTPUT, line, 0,
      mgl_jinja_parse_tuple(p, mgl_jinja_parse_expression, NULL, false), NULL);
  return node != NULL && mgl_jinja_expect_kind(p, MGL_JINJA_TOKEN_VARIABLE_END, "'}}'") ? node
                                                                                        : NULL;
}

// Statements up to one of `ends`, whose name is the current token then; up to the end of the
// template when `tag` is NULL.
static bool parse_body(mgl_jinja_parser *p, const char *tag, int tag_line, const char *const *ends,
                       mgl_jinja_node **out) {
  *out = NULL;
  if (!mgl_jinja_parse_enter(p)) {
    return false;
  }
  while (p->token.kind != MGL_JINJA_TOKEN_END) {
    bool ended = false;
    mgl_jinja_node *node = parse_piece(p, ends, &ended);
    if (ended) {
      p->depth--;
      return true;
    }
    if (node == NULL) {
      return false;
    }
    *out = node;
    out = &node->next;
  }
  p->depth--;
  if (tag != NULL) {
    (void)mgl_jinja_parse_fail(
        p, MGL_ERR_FORMAT, p->token.line,
        "the template ends within the {%% %s %%} of line %d: expected {%% %s %%}", tag, tag_line,
        ends[0][0] == 'e' && ends[1] != NULL && ends[2] != NULL ? ends[2] : ends[0]);
    return false;
  }
  return true;
}

mgl_status mgl_jinja_parse(mgl_jinja_string source, const char *where, mgl_arena *arena,
                           mgl_jinja_tree *out, mgl_error *err) {
  static const char *const no_ends[] = {NULL};
  mgl_jinja_parser p = {.arena = arena, .err = err};
  p.lexer = (mgl_jinja_lexer){.arena = arena,
                              .err = err,
                              .where = where,
                              .source = source,
                              .line = 1,
                              .line_starting = true};
  mgl_jinja_node *body = NULL;
  *out = (mgl_jinja_tree){0};
  if (!mgl_jinja_advance(&p) || !parse_body(&p, NULL, 0, no_ends, &body)) {
    return p.status;
  }
  *out = (mgl_jinja_tree){.body = body, .newest = p.newest, .blocks = p.blocks};
  return MGL_OK;
}
