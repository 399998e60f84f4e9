// Expressions, by recursive descent along Jinja's grammar: one function per level of precedence.
// Two quirks of that grammar are kept on purpose, since templates may rely on them: filters bind
// tighter than any binary operator but looser than a unary sign, and "-2 ** 2" is (-2) ** 2.
#include <stdio.h>
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_parser.h"

static mgl_jinja_node *parse_primary(mgl_jinja_parser *p);
static mgl_jinja_node *parse_postfix(mgl_jinja_parser *p, mgl_jinja_node *node);
static bool parse_arguments(mgl_jinja_parser *p, mgl_jinja_node *call);

// --- operands ------------------------------------------------------------------------------------

static bool at_tuple_end(const mgl_jinja_parser *p, const char *end_name) {
  return p->token.kind == MGL_JINJA_TOKEN_VARIABLE_END ||
         p->token.kind == MGL_JINJA_TOKEN_BLOCK_END || mgl_jinja_at_operator(p, ")") ||
         (end_name != NULL && mgl_jinja_at_name(p, end_name));
}

mgl_jinja_node *mgl_jinja_parse_tuple(mgl_jinja_parser *p,
                                      mgl_jinja_node *(*element)(mgl_jinja_parser *),
                                      const char *end_name, bool in_parentheses) {
  int line = p->token.line;
  if (at_tuple_end(p, end_name)) {
    return in_parentheses ? mgl_jinja_new_node(p, MGL_JINJA_NODE_TUPLE, line)
                          : mgl_jinja_parse_fail_expected(p, "an expression");
  }
  mgl_jinja_node *node = element(p);
  if (node == NULL || !mgl_jinja_at_operator(p, ",")) {
    return node;
  }
  mgl_jinja_node *tuple = mgl_jinja_new_node(p, MGL_JINJA_NODE_TUPLE, line);
  if (tuple == NULL) {
    return NULL;
  }
  mgl_jinja_node **tail = &tuple->items;
  if (!mgl_jinja_add_item(tuple, &tail, node)) {
    return NULL;
  }
  while (mgl_jinja_at_operator(p, ",")) {
    if (!mgl_jinja_advance(p)) {
      return NULL;
    }
    if (at_tuple_end(p, end_name)) {
      break;
    }
    if (!mgl_jinja_add_item(tuple, &tail, element(p))) {
      return NULL;
    }
  }
  return tuple;
}

// A list or dict behind its open bracket.
static mgl_jinja_node *parse_display(mgl_jinja_parser *p, bool is_dict) {
  const char *close = is_dict ? "}" : "]";
  mgl_jinja_node *node =
      mgl_jinja_new_node(p, is_dict ? MGL_JINJA_NODE_DICT : MGL_JINJA_NODE_LIST, p->token.line);
  if (node == NULL || !mgl_jinja_advance(p)) {
    return NULL;
  }
  mgl_jinja_node **tail = &node->items;
  while (!mgl_jinja_at_operator(p, close)) {
    if (node->count != 0) {
      if (!mgl_jinja_expect_operator(p, ",")) {
        return NULL;
      }
      if (mgl_jinja_at_operator(p, close)) {
        break;
      }
    }
    if (!mgl_jinja_add_item(node, &tail, mgl_jinja_parse_expression(p))) {
      return NULL;
    }
    if (is_dict && (!mgl_jinja_expect_operator(p, ":") ||
                    !mgl_jinja_add_item(node, &tail, mgl_jinja_parse_expression(p)))) {
      return NULL;
    }
  }
  return mgl_jinja_advance(p) ? node : NULL;
}

// Adjacent strings are one.
static mgl_jinja_node *parse_strings(mgl_jinja_parser *p) {
  mgl_jinja_node *node =
      mgl_jinja_new_text_node(p, MGL_JINJA_NODE_CONSTANT, p->token.line, p->token.text);
  if (node == NULL || !mgl_jinja_advance(p)) {
    return NULL;
  }
  while (p->token.kind == MGL_JINJA_TOKEN_STRING) {
    mgl_jinja_string *text = &node->value.string;
    size_t bytes = text->bytes + p->token.text.bytes;
    char *joined = mgl_arena_alloc_text(p->arena, bytes);
    if (joined == NULL) {
      return mgl_jinja_parse_fail_memory(p);
    }
    memcpy(joined, text->data, text->bytes);
    memcpy(joined + text->bytes, p->token.text.data, p->token.text.bytes);
    *text = (mgl_jinja_string){joined, bytes};
    if (!mgl_jinja_advance(p)) {
      return NULL;
    }
  }
  return node;
}

bool mgl_jinja_constant_of_name(mgl_jinja_string name, mgl_jinja_value *out) {
  if (mgl_jinja_text_is(name, "true") || mgl_jinja_text_is(name, "True")) {
    *out = mgl_jinja_bool(true);
  } else if (mgl_jinja_text_is(name, "false") || mgl_jinja_text_is(name, "False")) {
    *out = mgl_jinja_bool(false);
  } else if (mgl_jinja_text_is(name, "none") || mgl_jinja_text_is(name, "None")) {
    *out = mgl_jinja_none();
  } else {
    return false;
  }
  return true;
}

mgl_jinja_node *mgl_jinja_parse_name(mgl_jinja_parser *p) {
  mgl_jinja_string name = p->token.text;
  mgl_jinja_node *node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_NAME, p->token.line, name);
  if (node == NULL) {
    return NULL;
  }
  if (mgl_jinja_constant_of_name(name, &node->value)) {
    node->kind = MGL_JINJA_NODE_CONSTANT;
  }
  unsigned uses = mgl_jinja_text_is(name, "caller")    ? MGL_JINJA_USES_CALLER
                  : mgl_jinja_text_is(name, "varargs") ? MGL_JINJA_USES_VARARGS
                  : mgl_jinja_text_is(name, "kwargs")  ? MGL_JINJA_USES_KWARGS
                                                       : 0;
  p->uses = (uint8_t)(p->uses | uses);
  return mgl_jinja_advance(p) ? node : NULL;
}

static mgl_jinja_node *parse_primary(mgl_jinja_parser *p) {
  if (!mgl_jinja_parse_enter(p)) {
    return NULL;
  }
  mgl_jinja_node *node = NULL;
  const mgl_jinja_token *token = &p->token;
  if (token->kind == MGL_JINJA_TOKEN_NAME) {
    node = mgl_jinja_parse_name(p);
  } else if (token->kind == MGL_JINJA_TOKEN_STRING) {
    node = parse_strings(p);
  } else if (token->kind == MGL_JINJA_TOKEN_INTEGER || token->kind == MGL_JINJA_TOKEN_FLOAT) {
    node = mgl_jinja_new_node(p, MGL_JINJA_NODE_CONSTANT, token->line);
    if (node != NULL) {
      node->value = token->kind == MGL_JINJA_TOKEN_FLOAT ? mgl_jinja_float(token->number)
                                                         : mgl_jinja_int(token->integer);
      node = mgl_jinja_advance(p) ? node : NULL;
    }
  } else if (mgl_jinja_at_operator(p, "(")) {
    node = mgl_jinja_advance(p) ? mgl_jinja_parse_tuple(p, mgl_jinja_parse_expression, NULL, true)
                                : NULL;
    if (node != NULL && !mgl_jinja_expect_operator(p, ")")) {
      node = NULL;
    }
  } else if (mgl_jinja_at_operator(p, "[") || mgl_jinja_at_operator(p, "{")) {
    node = parse_display(p, mgl_jinja_at_operator(p, "{"));
  } else {
    node = mgl_jinja_parse_fail_expected(p, "an expression");
  }
  p->depth--;
  return node;
}

// --- subscripts and calls ------------------------------------------------------------------------

// One bound of a slice, or a constant none where it is left out.
static mgl_jinja_node *parse_bound(mgl_jinja_parser *p) {
  if (mgl_jinja_at_operator(p, ":") || mgl_jinja_at_operator(p, "]") ||
      mgl_jinja_at_operator(p, ",")) {
    mgl_jinja_node *node = mgl_jinja_new_node(p, MGL_JINJA_NODE_CONSTANT, p->token.line);
    if (node != NULL) {
      node->value = mgl_jinja_none();
    }
    return node;
  }
  return mgl_jinja_parse_expression(p);
}

static mgl_jinja_node *parse_slice(mgl_jinja_parser *p, mgl_jinja_node *object,
                                   mgl_jinja_node *start, int line) {
  mgl_jinja_node *node = mgl_jinja_new_operation(p, MGL_JINJA_NODE_SLICE, line, 0, object, NULL);
  if (node == NULL || !mgl_jinja_advance(p)) {
    return NULL;
  }
  mgl_jinja_node **tail = &node->items;
  if (!mgl_jinja_add_item(node, &tail, start) || !mgl_jinja_add_item(node, &tail, parse_bound(p))) {
    return NULL;
  }
  if (mgl_jinja_at_operator(p, ":") && !mgl_jinja_advance(p)) {
    return NULL;
  }
  return mgl_jinja_add_item(node, &tail, parse_bound(p)) ? node : NULL;
}

// "[...]" or ".name" behind an object.
static mgl_jinja_node *parse_subscript(mgl_jinja_parser *p, mgl_jinja_node *object) {
  int line = p->token.line;
  bool is_dot = mgl_jinja_at_operator(p, ".");
  if (!mgl_jinja_advance(p)) {
    return NULL;
  }
  if (is_dot) {
    mgl_jinja_node *node = NULL;
    if (p->token.kind == MGL_JINJA_TOKEN_NAME) {
      node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_ATTRIBUTE, line, p->token.text);
    } else if (p->token.kind == MGL_JINJA_TOKEN_INTEGER) {
      mgl_jinja_node *index = mgl_jinja_new_node(p, MGL_JINJA_NODE_CONSTANT, line);
      node = index == NULL
                 ? NULL
                 : mgl_jinja_new_operation(p, MGL_JINJA_NODE_ITEM, line, 0, object, index);
      if (node != NULL) {
        index->value = mgl_jinja_int(p->token.integer);
      }
    } else {
      return mgl_jinja_parse_fail_expected(p, "a name or number behind '.'");
    }
    if (node != NULL) {
      node->first = object;
    }
    return node != NULL && mgl_jinja_advance(p) ? node : NULL;
  }
  if (mgl_jinja_at_operator(p, "]")) {
    return mgl_jinja_parse_fail_expected(p, "an index");
  }
  mgl_jinja_node *index = parse_bound(p);
  if (index == NULL) {
    return NULL;
  }
  mgl_jinja_node *node =
      mgl_jinja_at_operator(p, ":")
          ? parse_slice(p, object, index, line)
          : mgl_jinja_new_operation(p, MGL_JINJA_NODE_ITEM, line, 0, object, index);
  if (mgl_jinja_at_operator(p, ",")) {
    return mgl_jinja_parse_fail(p, MGL_ERR_UNSUPPORTED, p->token.line,
                                "several indexes in [] are not supported");
  }
  return node != NULL && mgl_jinja_expect_operator(p, "]") ? node : NULL;
}

static mgl_jinja_node *parse_call(mgl_jinja_parser *p, mgl_jinja_node *callee) {
  mgl_jinja_node *node =
      mgl_jinja_new_operation(p, MGL_JINJA_NODE_CALL, p->token.line, 0, callee, NULL);
  return node != NULL && parse_arguments(p, node) ? node : NULL;
}

// What arguments have been read; Jinja wants them in this order, * and ** once.
typedef enum argument_kind {
  ARGUMENT_PLAIN,
  ARGUMENT_KEYWORD,
  ARGUMENT_LIST,  // *x
  ARGUMENT_DICT,  // **x
} argument_kind;

static bool may_follow(const bool seen[4], argument_kind kind) {
  switch (kind) {
    case ARGUMENT_PLAIN:
      return !seen[ARGUMENT_KEYWORD] && !seen[ARGUMENT_LIST] && !seen[ARGUMENT_DICT];
    case ARGUMENT_LIST: return !seen[ARGUMENT_LIST] && !seen[ARGUMENT_DICT];
    default: return !seen[ARGUMENT_DICT];
  }
}

// The kind of the argument at the current token.
static bool find_argument_kind(mgl_jinja_parser *p, argument_kind *out) {
  *out = mgl_jinja_at_operator(p, "*")    ? ARGUMENT_LIST
         : mgl_jinja_at_operator(p, "**") ? ARGUMENT_DICT
                                          : ARGUMENT_PLAIN;
  if (p->token.kind == MGL_JINJA_TOKEN_NAME) {
    if (!mgl_jinja_look_ahead(p)) {
      return false;
    }
    if (mgl_jinja_is_token(&p->ahead, MGL_JINJA_TOKEN_OPERATOR, "=")) {
      *out = ARGUMENT_KEYWORD;
    }
  }
  return true;
}

static mgl_jinja_node *parse_argument(mgl_jinja_parser *p, argument_kind kind) {
  if (kind == ARGUMENT_PLAIN) {
    return mgl_jinja_parse_expression(p);
  }
  bool is_keyword = kind == ARGUMENT_KEYWORD;
  mgl_jinja_node *argument = mgl_jinja_new_text_node(
      p, is_keyword ? MGL_JINJA_NODE_KEYWORD : MGL_JINJA_NODE_UNPACK, p->token.line, p->token.text);
  if (argument == NULL || !mgl_jinja_advance(p) || (is_keyword && !mgl_jinja_advance(p))) {
    return NULL;
  }
  argument->op = kind == ARGUMENT_DICT ? MGL_JINJA_OP_POWER : '*';
  argument->first = mgl_jinja_parse_expression(p);
  return argument->first == NULL ? NULL : argument;
}

// "(a, b, name=c, *d, **e)" into call->items.
static bool parse_arguments(mgl_jinja_parser *p, mgl_jinja_node *call) {
  mgl_jinja_node **tail = &call->items;
  bool seen[4] = {false};
  if (!mgl_jinja_expect_operator(p, "(")) {
    return false;
  }
  while (!mgl_jinja_at_operator(p, ")")) {
    argument_kind kind = ARGUMENT_PLAIN;
    if (call->count != 0) {
      if (!mgl_jinja_expect_operator(p, ",")) {
        return false;
      }
      if (mgl_jinja_at_operator(p, ")")) {
        break;
      }
    }
    if (!find_argument_kind(p, &kind)) {
      return false;
    }
    if (!may_follow(seen, kind)) {
      (void)mgl_jinja_parse_fail_expected(
          p, "arguments in the order plain ones, keywords and *, **, the last two once");
      return false;
    }
    seen[kind] = true;
    if (!mgl_jinja_add_item(call, &tail, parse_argument(p, kind))) {
      return false;
    }
  }
  return mgl_jinja_advance(p);
}

static mgl_jinja_node *parse_postfix(mgl_jinja_parser *p, mgl_jinja_node *node) {
  while (node != NULL) {
    if (mgl_jinja_at_operator(p, ".") || mgl_jinja_at_operator(p, "[")) {
      node = parse_subscript(p, node);
    } else if (mgl_jinja_at_operator(p, "(")) {
      node = parse_call(p, node);
    } else {
      break;
    }
  }
  return node;
}

// --- filters and tests ---------------------------------------------------------------------------

mgl_jinja_node *mgl_jinja_parse_filter(mgl_jinja_parser *p, mgl_jinja_node *object) {
  mgl_jinja_string name;
  int line = p->token.line;
  if (!mgl_jinja_expect_name(p, &name, "the name of a filter")) {
    return NULL;
  }
  mgl_jinja_node *node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_FILTER, line, name);
  if (node == NULL) {
    return NULL;
  }
  node->first = object;
  node->builtin = mgl_jinja_find_filter(name);
  if (mgl_jinja_at_operator(p, ".")) {
    return mgl_jinja_parse_fail_expected(
        p, "the end of a filter's name (names with dots are not supported)");
  }
  return !mgl_jinja_at_operator(p, "(") || parse_arguments(p, node) ? node : NULL;
}

// True where a token behind "is NAME" is the test's argument, without parentheses.
static bool at_bare_argument(const mgl_jinja_parser *p) {
  switch (p->token.kind) {
    case MGL_JINJA_TOKEN_NAME:
      return !mgl_jinja_at_name(p, "else") && !mgl_jinja_at_name(p, "or") &&
             !mgl_jinja_at_name(p, "and");
    case MGL_JINJA_TOKEN_STRING:
    case MGL_JINJA_TOKEN_INTEGER:
    case MGL_JINJA_TOKEN_FLOAT: return true;
    default: return mgl_jinja_at_operator(p, "[") || mgl_jinja_at_operator(p, "{");
  }
}

// "is [not] NAME [argument]".
static mgl_jinja_node *parse_test(mgl_jinja_parser *p, mgl_jinja_node *object) {
  int line = p->token.line;
  if (!mgl_jinja_advance(p)) {
    return NULL;
  }
  bool negated = mgl_jinja_at_name(p, "not");
  if (negated && !mgl_jinja_advance(p)) {
    return NULL;
  }
  mgl_jinja_string name;
  if (!mgl_jinja_expect_name(p, &name, "the name of a test")) {
    return NULL;
  }
  mgl_jinja_node *node = mgl_jinja_new_text_node(p, MGL_JINJA_NODE_TEST, line, name);
  if (node == NULL) {
    return NULL;
  }
  node->first = object;
  node->builtin = mgl_jinja_find_test(name);
  if (mgl_jinja_at_operator(p, "(")) {
    if (!parse_arguments(p, node)) {
      return NULL;
    }
  } else if (at_bare_argument(p)) {
    if (mgl_jinja_at_name(p, "is")) {
      return mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, p->token.line,
                                  "tests with \"is\" cannot be chained");
    }
    mgl_jinja_node **tail = &node->items;
    if (!mgl_jinja_add_item(node, &tail, parse_postfix(p, parse_primary(p)))) {
      return NULL;
    }
  }
  return negated ? mgl_jinja_new_operation(p, MGL_JINJA_NODE_NOT, line, 0, node, NULL) : node;
}

static mgl_jinja_node *parse_filters(mgl_jinja_parser *p, mgl_jinja_node *node) {
  while (node != NULL) {
    if (mgl_jinja_at_operator(p, "|")) {
      node = mgl_jinja_advance(p) ? mgl_jinja_parse_filter(p, node) : NULL;
    } else if (mgl_jinja_at_name(p, "is")) {
      node = parse_test(p, node);
    } else if (mgl_jinja_at_operator(p, "(")) {
      node = parse_call(p, node);
    } else {
      break;
    }
  }
  return node;
}

// --- operators -----------------------------------------------------------------------------------

static mgl_jinja_node *parse_unary(mgl_jinja_parser *p, bool with_filter) {
  mgl_jinja_node *node = NULL;
  if (mgl_jinja_at_operator(p, "-") || mgl_jinja_at_operator(p, "+")) {
    int line = p->token.line;
    char op = p->token.text.data[0];
    if (!mgl_jinja_parse_enter(p) || !mgl_jinja_advance(p)) {
      return NULL;
    }
    node = mgl_jinja_new_operation(p, MGL_JINJA_NODE_UNARY, line, op, parse_unary(p, false), NULL);
    p->depth--;
  } else {
    node = parse_primary(p);
  }
  node = parse_postfix(p, node);
  return with_filter ? parse_filters(p, node) : node;
}

// The operator at the current token if it belongs to this level, else 0.
static char operator_of_level(const mgl_jinja_parser *p, int level) {
  static const struct {
    const char *text;
    int level;
    char op;
  } table[] = {
      {"**", 0, MGL_JINJA_OP_POWER},
      {"*", 1, '*'},
      {"/", 1, '/'},
      {"//", 1, MGL_JINJA_OP_FLOOR_DIVIDE},
      {"%", 1, '%'},
      {"~", 2, '~'},
      {"+", 3, '+'},
      {"-", 3, '-'},
  };
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    if (table[i].level == level && mgl_jinja_at_operator(p, table[i].text)) {
      return table[i].op;
    }
  }
  return 0;
}

enum { POWER_LEVEL = 0, CONCAT_LEVEL = 2, SUM_LEVEL = 3 };

static mgl_jinja_node *parse_arithmetic(mgl_jinja_parser *p, int level);

// a ~ b ~ c is one node: all parts are made to text and joined.
static mgl_jinja_node *parse_concat(mgl_jinja_parser *p, mgl_jinja_node *first) {
  mgl_jinja_node *node = mgl_jinja_new_node(p, MGL_JINJA_NODE_CONCAT, p->token.line);
  if (node == NULL) {
    return NULL;
  }
  mgl_jinja_node **tail = &node->items;
  if (!mgl_jinja_add_item(node, &tail, first)) {
    return NULL;
  }
  while (mgl_jinja_at_operator(p, "~")) {
    if (!mgl_jinja_advance(p) ||
        !mgl_jinja_add_item(node, &tail, parse_arithmetic(p, CONCAT_LEVEL - 1))) {
      return NULL;
    }
  }
  return node;
}

// All arithmetic is left-associative, ** too.
static mgl_jinja_node *parse_arithmetic(mgl_jinja_parser *p, int level) {
  mgl_jinja_node *left =
      level == POWER_LEVEL ? parse_unary(p, true) : parse_arithmetic(p, level - 1);
  for (char op = 0; left != NULL && (op = operator_of_level(p, level)) != 0;) {
    int line = p->token.line;
    if (op == '~') {
      left = parse_concat(p, left);
      continue;
    }
    mgl_jinja_node *right = NULL;
    if (mgl_jinja_advance(p)) {
      right = level == POWER_LEVEL ? parse_unary(p, true) : parse_arithmetic(p, level - 1);
    }
    left = right == NULL ? NULL
                         : mgl_jinja_new_operation(p, MGL_JINJA_NODE_BINARY, line, op, left, right);
  }
  return left;
}

// The comparison at the current token (which may be two tokens: not in), consumed; 0 if none.
static bool parse_comparison_operator(mgl_jinja_parser *p, char *op) {
  static const struct {
    const char *text;
    char op;
  } table[] = {
      {"==", MGL_JINJA_OP_EQUAL},
      {"!=", MGL_JINJA_OP_NOT_EQUAL},
      {"<=", MGL_JINJA_OP_LESS_EQUAL},
      {">=", MGL_JINJA_OP_GREATER_EQUAL},
      {"<", '<'},
      {">", '>'},
  };
  *op = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    if (mgl_jinja_at_operator(p, table[i].text)) {
      *op = table[i].op;
      return mgl_jinja_advance(p);
    }
  }
  if (mgl_jinja_at_name(p, "in")) {
    *op = MGL_JINJA_OP_IN;
    return mgl_jinja_advance(p);
  }
  if (mgl_jinja_at_name(p, "not")) {
    if (!mgl_jinja_look_ahead(p)) {
      return false;
    }
    if (mgl_jinja_is_token(&p->ahead, MGL_JINJA_TOKEN_NAME, "in")) {
      *op = MGL_JINJA_OP_NOT_IN;
      return mgl_jinja_advance(p) && mgl_jinja_advance(p);
    }
  }
  return true;
}

static mgl_jinja_node *parse_compare(mgl_jinja_parser *p) {
  int line = p->token.line;
  mgl_jinja_node *left = parse_arithmetic(p, SUM_LEVEL);
  mgl_jinja_node *node = NULL;
  mgl_jinja_node **tail = NULL;
  while (left != NULL) {
    char op = 0;
    int op_line = p->token.line;
    if (!parse_comparison_operator(p, &op)) {
      return NULL;
    }
    if (op == 0) {
      break;
    }
    if (node == NULL) {
      node = mgl_jinja_new_operation(p, MGL_JINJA_NODE_COMPARE, line, 0, left, NULL);
      if (node == NULL) {
        return NULL;
      }
      tail = &node->items;
    }
    mgl_jinja_node *right = parse_arithmetic(p, SUM_LEVEL);
    if (!mgl_jinja_add_item(
            node, &tail,
            mgl_jinja_new_operation(p, MGL_JINJA_NODE_COMPARISON, op_line, op, right, NULL))) {
      return NULL;
    }
  }
  return node == NULL ? left : node;
}

static mgl_jinja_node *parse_not(mgl_jinja_parser *p) {
  if (!mgl_jinja_at_name(p, "not")) {
    return parse_compare(p);
  }
  int line = p->token.line;
  if (!mgl_jinja_parse_enter(p) || !mgl_jinja_advance(p)) {
    return NULL;
  }
  mgl_jinja_node *node =
      mgl_jinja_new_operation(p, MGL_JINJA_NODE_NOT, line, 0, parse_not(p), NULL);
  p->depth--;
  return node;
}

static mgl_jinja_node *parse_and(mgl_jinja_parser *p) {
  mgl_jinja_node *left = parse_not(p);
  while (left != NULL && mgl_jinja_at_name(p, "and")) {
    int line = p->token.line;
    mgl_jinja_node *right = mgl_jinja_advance(p) ? parse_not(p) : NULL;
    left =
        right == NULL ? NULL : mgl_jinja_new_operation(p, MGL_JINJA_NODE_AND, line, 0, left, right);
  }
  return left;
}

mgl_jinja_node *mgl_jinja_parse_or(mgl_jinja_parser *p) {
  mgl_jinja_node *left = parse_and(p);
  while (left != NULL && mgl_jinja_at_name(p, "or")) {
    int line = p->token.line;
    mgl_jinja_node *right = mgl_jinja_advance(p) ? parse_and(p) : NULL;
    left =
        right == NULL ? NULL : mgl_jinja_new_operation(p, MGL_JINJA_NODE_OR, line, 0, left, right);
  }
  return left;
}

// a if b else c.
mgl_jinja_node *mgl_jinja_parse_expression(mgl_jinja_parser *p) {
  if (!mgl_jinja_parse_enter(p)) {
    return NULL;
  }
  mgl_jinja_node *node = mgl_jinja_parse_or(p);
  while (node != NULL && mgl_jinja_at_name(p, "if")) {
    int line = p->token.line;
    mgl_jinja_node *test = mgl_jinja_advance(p) ? mgl_jinja_parse_or(p) : NULL;
    mgl_jinja_node *condition =
        test == NULL ? NULL
                     : mgl_jinja_new_operation(p, MGL_JINJA_NODE_CONDITION, line, 0, test, node);
    if (condition != NULL && mgl_jinja_at_name(p, "else")) {
      condition->third = mgl_jinja_advance(p) ? mgl_jinja_parse_expression(p) : NULL;
      condition = condition->third == NULL ? NULL : condition;
    }
    node = condition;
  }
  p->depth--;
  return node;
}
