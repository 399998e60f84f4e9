// Recursive descent along Jinja's grammar, one function per level of precedence. Two quirks of that
// grammar are kept on purpose, since templates may rely on them: filters bind tighter than any
// binary operator but looser than a unary sign, and "-2 ** 2" is (-2) ** 2.
//
// Functions return NULL (or false) after an error; the error itself is in parser->err. The file is
// longer than usual because a grammar is one subject.
#include "model/jinja_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/chat_template.h"
#include "model/jinja_builtins.h"
#include "model/jinja_lex.h"

typedef struct parser {
  mgl_jinja_lexer lexer;
  mgl_jinja_token token;
  mgl_jinja_token ahead;
  bool has_ahead;
  mgl_arena *arena;
  mgl_error *err;
  size_t depth;       // open constructs, against MGL_TEMPLATE_MAX_DEPTH
  size_t loops;       // loops around this place, for break and continue
  bool in_macro;      // varargs and kwargs have a meaning here
  bool uses_caller;   // "caller" was read since the innermost macro began
  mgl_status status;  // of the failure
} parser;

static mgl_jinja_node *parse_expression(parser *p);
static mgl_jinja_node *parse_or(parser *p);
static mgl_jinja_node *parse_unary(parser *p, bool with_filter);
static mgl_jinja_node *parse_primary(parser *p);
static mgl_jinja_node *parse_postfix(parser *p, mgl_jinja_node *node);
static bool parse_arguments(parser *p, mgl_jinja_node *call);

// --- tokens and errors ---------------------------------------------------------------------------

static void *fail(parser *p, mgl_status status, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void *fail(parser *p, mgl_status status, int line, const char *format, ...) {
  char text[MGL_ERROR_TEXT_BYTES];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  p->status = mgl_error_set(p->err, status, "%s: line %d: %s", p->lexer.where, line, text);
  return NULL;
}

static void *fail_memory(parser *p) {
  if (p->arena->over_limit) {
    return fail(p, MGL_ERR_LIMIT, p->token.line, "the parsed template needs more than %d MiB",
                MGL_TEMPLATE_MAX_MEMORY_BYTES >> 20);
  }
  return fail(p, MGL_ERR_MEMORY, p->token.line, "out of memory while parsing the template");
}

// For messages: what the current token is.
static const char *token_name(const parser *p, char *text, size_t bytes) {
  switch (p->token.kind) {
    case MGL_JINJA_TOKEN_END: return "the end of the template";
    case MGL_JINJA_TOKEN_DATA: return "text";
    case MGL_JINJA_TOKEN_VARIABLE_BEGIN: return "'{{'";
    case MGL_JINJA_TOKEN_VARIABLE_END: return "'}}'";
    case MGL_JINJA_TOKEN_BLOCK_BEGIN: return "'{%'";
    case MGL_JINJA_TOKEN_BLOCK_END: return "'%}'";
    case MGL_JINJA_TOKEN_STRING: return "a string";
    default:
      (void)snprintf(text, bytes, "'%.*s'",
                     (int)(p->token.text.bytes < 40 ? p->token.text.bytes : 40),
                     p->token.text.data);
      return text;
  }
}

static void *fail_expected(parser *p, const char *expected) {
  char text[64];
  return fail(p, MGL_ERR_FORMAT, p->token.line, "expected %s, found %s", expected,
              token_name(p, text, sizeof text));
}

static bool advance(parser *p) {
  if (p->has_ahead) {
    p->token = p->ahead;
    p->has_ahead = false;
    return true;
  }
  p->status = mgl_jinja_lex_next(&p->lexer, &p->token);
  return p->status == MGL_OK;
}

static bool look_ahead(parser *p) {
  if (!p->has_ahead) {
    p->status = mgl_jinja_lex_next(&p->lexer, &p->ahead);
    p->has_ahead = p->status == MGL_OK;
  }
  return p->has_ahead;
}

static bool is_token(const mgl_jinja_token *token, mgl_jinja_token_kind kind, const char *text) {
  return token->kind == kind && mgl_jinja_text_is(token->text, text);
}

static bool at_operator(const parser *p, const char *text) {
  return is_token(&p->token, MGL_JINJA_TOKEN_OPERATOR, text);
}

static bool at_name(const parser *p, const char *text) {
  return is_token(&p->token, MGL_JINJA_TOKEN_NAME, text);
}

static bool expect_operator(parser *p, const char *text) {
  if (!at_operator(p, text)) {
    char quoted[8];
    (void)snprintf(quoted, sizeof quoted, "'%s'", text);
    (void)fail_expected(p, quoted);
    return false;
  }
  return advance(p);
}

static bool expect_kind(parser *p, mgl_jinja_token_kind kind, const char *expected) {
  if (p->token.kind != kind) {
    (void)fail_expected(p, expected);
    return false;
  }
  return advance(p);
}

static bool expect_name(parser *p, mgl_jinja_string *out, const char *expected) {
  *out = p->token.text;
  return expect_kind(p, MGL_JINJA_TOKEN_NAME, expected);
}

static bool enter(parser *p) {
  if (++p->depth > MGL_TEMPLATE_MAX_DEPTH) {
    (void)fail(p, MGL_ERR_LIMIT, p->token.line, "nested deeper than %d levels",
               MGL_TEMPLATE_MAX_DEPTH);
    return false;
  }
  return true;
}

// --- nodes ---------------------------------------------------------------------------------------

static mgl_jinja_node *new_node(parser *p, mgl_jinja_node_kind kind, int line) {
  mgl_jinja_node *node = mgl_arena_alloc_zeroed(p->arena, 1, sizeof *node);
  if (node == NULL) {
    return fail_memory(p);
  }
  node->kind = (uint8_t)kind;
  node->line = line;
  return node;
}

static mgl_jinja_node *new_text_node(parser *p, mgl_jinja_node_kind kind, int line,
                                     mgl_jinja_string text) {
  mgl_jinja_node *node = new_node(p, kind, line);
  if (node != NULL) {
    node->value = mgl_jinja_string_value(text);
  }
  return node;
}

static mgl_jinja_node *new_operation(parser *p, mgl_jinja_node_kind kind, int line, char op,
                                     mgl_jinja_node *first, mgl_jinja_node *second) {
  mgl_jinja_node *node = first == NULL ? NULL : new_node(p, kind, line);
  if (node != NULL) {
    node->op = op;
    node->first = first;
    node->second = second;
  }
  return node;
}

// Appends to a list whose last link is *tail.
static bool add_item(mgl_jinja_node *parent, mgl_jinja_node ***tail, mgl_jinja_node *item) {
  if (item == NULL) {
    return false;
  }
  **tail = item;
  *tail = &item->next;
  parent->count++;
  return true;
}

// --- expressions ---------------------------------------------------------------------------------

static bool at_tuple_end(const parser *p, const char *end_name) {
  return p->token.kind == MGL_JINJA_TOKEN_VARIABLE_END ||
         p->token.kind == MGL_JINJA_TOKEN_BLOCK_END || at_operator(p, ")") ||
         (end_name != NULL && at_name(p, end_name));
}

// One expression, or several with commas: a tuple. `element` parses each; end_name may end it.
static mgl_jinja_node *parse_tuple(parser *p, mgl_jinja_node *(*element)(parser *),
                                   const char *end_name, bool in_parentheses) {
  int line = p->token.line;
  if (at_tuple_end(p, end_name)) {
    return in_parentheses ? new_node(p, MGL_JINJA_NODE_TUPLE, line)
                          : fail_expected(p, "an expression");
  }
  mgl_jinja_node *node = element(p);
  if (node == NULL || !at_operator(p, ",")) {
    return node;
  }
  mgl_jinja_node *tuple = new_node(p, MGL_JINJA_NODE_TUPLE, line);
  if (tuple == NULL) {
    return NULL;
  }
  mgl_jinja_node **tail = &tuple->items;
  if (!add_item(tuple, &tail, node)) {
    return NULL;
  }
  while (at_operator(p, ",")) {
    if (!advance(p)) {
      return NULL;
    }
    if (at_tuple_end(p, end_name)) {
      break;
    }
    if (!add_item(tuple, &tail, element(p))) {
      return NULL;
    }
  }
  return tuple;
}

// A list or dict behind its open bracket.
static mgl_jinja_node *parse_display(parser *p, bool is_dict) {
  const char *close = is_dict ? "}" : "]";
  mgl_jinja_node *node =
      new_node(p, is_dict ? MGL_JINJA_NODE_DICT : MGL_JINJA_NODE_LIST, p->token.line);
  if (node == NULL || !advance(p)) {
    return NULL;
  }
  mgl_jinja_node **tail = &node->items;
  while (!at_operator(p, close)) {
    if (node->count != 0) {
      if (!expect_operator(p, ",")) {
        return NULL;
      }
      if (at_operator(p, close)) {
        break;
      }
    }
    if (!add_item(node, &tail, parse_expression(p))) {
      return NULL;
    }
    if (is_dict && (!expect_operator(p, ":") || !add_item(node, &tail, parse_expression(p)))) {
      return NULL;
    }
  }
  return advance(p) ? node : NULL;
}

// Adjacent strings are one.
static mgl_jinja_node *parse_strings(parser *p) {
  mgl_jinja_node *node = new_text_node(p, MGL_JINJA_NODE_CONSTANT, p->token.line, p->token.text);
  if (node == NULL || !advance(p)) {
    return NULL;
  }
  while (p->token.kind == MGL_JINJA_TOKEN_STRING) {
    mgl_jinja_string *text = &node->value.string;
    size_t bytes = text->bytes + p->token.text.bytes;
    char *joined = mgl_arena_alloc_text(p->arena, bytes);
    if (joined == NULL) {
      return fail_memory(p);
    }
    memcpy(joined, text->data, text->bytes);
    memcpy(joined + text->bytes, p->token.text.data, p->token.text.bytes);
    *text = (mgl_jinja_string){joined, bytes};
    if (!advance(p)) {
      return NULL;
    }
  }
  return node;
}

// true, false and none, with a capital or without.
static bool constant_of_name(mgl_jinja_string name, mgl_jinja_value *out) {
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

static mgl_jinja_node *parse_name(parser *p) {
  mgl_jinja_string name = p->token.text;
  mgl_jinja_node *node = new_text_node(p, MGL_JINJA_NODE_NAME, p->token.line, name);
  if (node == NULL) {
    return NULL;
  }
  if (constant_of_name(name, &node->value)) {
    node->kind = MGL_JINJA_NODE_CONSTANT;
  } else if (p->in_macro &&
             (mgl_jinja_text_is(name, "varargs") || mgl_jinja_text_is(name, "kwargs"))) {
    return fail(p, MGL_ERR_UNSUPPORTED, p->token.line,
                "\"%.*s\" in a macro is not supported: name the macro's parameters",
                (int)name.bytes, name.data);
  }
  p->uses_caller = p->uses_caller || mgl_jinja_text_is(name, "caller");
  return advance(p) ? node : NULL;
}

static mgl_jinja_node *parse_primary(parser *p) {
  if (!enter(p)) {
    return NULL;
  }
  mgl_jinja_node *node = NULL;
  const mgl_jinja_token *token = &p->token;
  if (token->kind == MGL_JINJA_TOKEN_NAME) {
    node = parse_name(p);
  } else if (token->kind == MGL_JINJA_TOKEN_STRING) {
    node = parse_strings(p);
  } else if (token->kind == MGL_JINJA_TOKEN_INTEGER || token->kind == MGL_JINJA_TOKEN_FLOAT) {
    node = new_node(p, MGL_JINJA_NODE_CONSTANT, token->line);
    if (node != NULL) {
      node->value = token->kind == MGL_JINJA_TOKEN_FLOAT ? mgl_jinja_float(token->number)
                                                         : mgl_jinja_int(token->integer);
      node = advance(p) ? node : NULL;
    }
  } else if (at_operator(p, "(")) {
    node = advance(p) ? parse_tuple(p, parse_expression, NULL, true) : NULL;
    if (node != NULL && !expect_operator(p, ")")) {
      node = NULL;
    }
  } else if (at_operator(p, "[") || at_operator(p, "{")) {
    node = parse_display(p, at_operator(p, "{"));
  } else {
    node = fail_expected(p, "an expression");
  }
  p->depth--;
  return node;
}

// One bound of a slice, or a constant none where it is left out.
static mgl_jinja_node *parse_bound(parser *p) {
  if (at_operator(p, ":") || at_operator(p, "]") || at_operator(p, ",")) {
    mgl_jinja_node *node = new_node(p, MGL_JINJA_NODE_CONSTANT, p->token.line);
    if (node != NULL) {
      node->value = mgl_jinja_none();
    }
    return node;
  }
  return parse_expression(p);
}

static mgl_jinja_node *parse_slice(parser *p, mgl_jinja_node *object, mgl_jinja_node *start,
                                   int line) {
  mgl_jinja_node *node = new_operation(p, MGL_JINJA_NODE_SLICE, line, 0, object, NULL);
  if (node == NULL || !advance(p)) {
    return NULL;
  }
  mgl_jinja_node **tail = &node->items;
  if (!add_item(node, &tail, start) || !add_item(node, &tail, parse_bound(p))) {
    return NULL;
  }
  if (at_operator(p, ":") && !advance(p)) {
    return NULL;
  }
  return add_item(node, &tail, parse_bound(p)) ? node : NULL;
}

// "[...]" or ".name" behind an object.
static mgl_jinja_node *parse_subscript(parser *p, mgl_jinja_node *object) {
  int line = p->token.line;
  bool is_dot = at_operator(p, ".");
  if (!advance(p)) {
    return NULL;
  }
  if (is_dot) {
    mgl_jinja_node *node = NULL;
    if (p->token.kind == MGL_JINJA_TOKEN_NAME) {
      node = new_text_node(p, MGL_JINJA_NODE_ATTRIBUTE, line, p->token.text);
    } else if (p->token.kind == MGL_JINJA_TOKEN_INTEGER) {
      mgl_jinja_node *index = new_node(p, MGL_JINJA_NODE_CONSTANT, line);
      node = index == NULL ? NULL : new_operation(p, MGL_JINJA_NODE_ITEM, line, 0, object, index);
      if (node != NULL) {
        index->value = mgl_jinja_int(p->token.integer);
      }
    } else {
      return fail_expected(p, "a name or number behind '.'");
    }
    if (node != NULL) {
      node->first = object;
    }
    return node != NULL && advance(p) ? node : NULL;
  }
  if (at_operator(p, "]")) {
    return fail_expected(p, "an index");
  }
  mgl_jinja_node *index = parse_bound(p);
  if (index == NULL) {
    return NULL;
  }
  mgl_jinja_node *node = at_operator(p, ":")
                             ? parse_slice(p, object, index, line)
                             : new_operation(p, MGL_JINJA_NODE_ITEM, line, 0, object, index);
  if (at_operator(p, ",")) {
    return fail(p, MGL_ERR_UNSUPPORTED, p->token.line, "several indexes in [] are not supported");
  }
  return node != NULL && expect_operator(p, "]") ? node : NULL;
}

static mgl_jinja_node *parse_call(parser *p, mgl_jinja_node *callee) {
  mgl_jinja_node *node = new_operation(p, MGL_JINJA_NODE_CALL, p->token.line, 0, callee, NULL);
  return node != NULL && parse_arguments(p, node) ? node : NULL;
}

// "(a, b, name=c)" into call->items.
static bool parse_arguments(parser *p, mgl_jinja_node *call) {
  mgl_jinja_node **tail = &call->items;
  bool keywords = false;
  if (!expect_operator(p, "(")) {
    return false;
  }
  while (!at_operator(p, ")")) {
    if (call->count != 0) {
      if (!expect_operator(p, ",")) {
        return false;
      }
      if (at_operator(p, ")")) {
        break;
      }
    }
    if (at_operator(p, "*") || at_operator(p, "**")) {
      (void)fail(p, MGL_ERR_UNSUPPORTED, p->token.line,
                 "unpacking arguments with * or ** is not supported");
      return false;
    }
    bool is_keyword = false;
    if (p->token.kind == MGL_JINJA_TOKEN_NAME) {
      if (!look_ahead(p)) {
        return false;
      }
      is_keyword = is_token(&p->ahead, MGL_JINJA_TOKEN_OPERATOR, "=");
    }
    if (!is_keyword && keywords) {
      (void)fail_expected(p, "a keyword argument behind a keyword argument");
      return false;
    }
    keywords = is_keyword;
    mgl_jinja_node *argument = NULL;
    if (is_keyword) {
      argument = new_text_node(p, MGL_JINJA_NODE_KEYWORD, p->token.line, p->token.text);
      if (argument == NULL || !advance(p) || !advance(p)) {
        return false;
      }
      argument->first = parse_expression(p);
      argument = argument->first == NULL ? NULL : argument;
    } else {
      argument = parse_expression(p);
    }
    if (!add_item(call, &tail, argument)) {
      return false;
    }
  }
  return advance(p);
}

static mgl_jinja_node *parse_postfix(parser *p, mgl_jinja_node *node) {
  while (node != NULL) {
    if (at_operator(p, ".") || at_operator(p, "[")) {
      node = parse_subscript(p, node);
    } else if (at_operator(p, "(")) {
      node = parse_call(p, node);
    } else {
      break;
    }
  }
  return node;
}

// A filter's name and arguments, behind the '|'. `object` is NULL in {% filter %} and block sets.
static mgl_jinja_node *parse_one_filter(parser *p, mgl_jinja_node *object) {
  mgl_jinja_string name;
  int line = p->token.line;
  if (!expect_name(p, &name, "the name of a filter")) {
    return NULL;
  }
  mgl_jinja_node *node = new_text_node(p, MGL_JINJA_NODE_FILTER, line, name);
  if (node == NULL) {
    return NULL;
  }
  node->first = object;
  node->builtin = mgl_jinja_find_filter(name);
  if (at_operator(p, ".")) {
    return fail_expected(p, "the end of a filter's name (names with dots are not supported)");
  }
  return !at_operator(p, "(") || parse_arguments(p, node) ? node : NULL;
}

// True where a token behind "is NAME" is the test's argument, without parentheses.
static bool at_bare_argument(const parser *p) {
  switch (p->token.kind) {
    case MGL_JINJA_TOKEN_NAME:
      return !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and");
    case MGL_JINJA_TOKEN_STRING:
    case MGL_JINJA_TOKEN_INTEGER:
    case MGL_JINJA_TOKEN_FLOAT: return true;
    default: return at_operator(p, "[") || at_operator(p, "{");
  }
}

// "is [not] NAME [argument]".
static mgl_jinja_node *parse_test(parser *p, mgl_jinja_node *object) {
  int line = p->token.line;
  if (!advance(p)) {
    return NULL;
  }
  bool negated = at_name(p, "not");
  if (negated && !advance(p)) {
    return NULL;
  }
  mgl_jinja_string name;
  if (!expect_name(p, &name, "the name of a test")) {
    return NULL;
  }
  mgl_jinja_node *node = new_text_node(p, MGL_JINJA_NODE_TEST, line, name);
  if (node == NULL) {
    return NULL;
  }
  node->first = object;
  node->builtin = mgl_jinja_find_test(name);
  if (at_operator(p, "(")) {
    if (!parse_arguments(p, node)) {
      return NULL;
    }
  } else if (at_bare_argument(p)) {
    if (at_name(p, "is")) {
      return fail(p, MGL_ERR_FORMAT, p->token.line, "tests with \"is\" cannot be chained");
    }
    mgl_jinja_node **tail = &node->items;
    if (!add_item(node, &tail, parse_postfix(p, parse_primary(p)))) {
      return NULL;
    }
  }
  return negated ? new_operation(p, MGL_JINJA_NODE_NOT, line, 0, node, NULL) : node;
}

static mgl_jinja_node *parse_filters(parser *p, mgl_jinja_node *node) {
  while (node != NULL) {
    if (at_operator(p, "|")) {
      node = advance(p) ? parse_one_filter(p, node) : NULL;
    } else if (at_name(p, "is")) {
      node = parse_test(p, node);
    } else if (at_operator(p, "(")) {
      node = parse_call(p, node);
    } else {
      break;
    }
  }
  return node;
}

static mgl_jinja_node *parse_unary(parser *p, bool with_filter) {
  mgl_jinja_node *node = NULL;
  if (at_operator(p, "-") || at_operator(p, "+")) {
    int line = p->token.line;
    char op = p->token.text.data[0];
    if (!enter(p) || !advance(p)) {
      return NULL;
    }
    node = new_operation(p, MGL_JINJA_NODE_UNARY, line, op, parse_unary(p, false), NULL);
    p->depth--;
  } else {
    node = parse_primary(p);
  }
  node = parse_postfix(p, node);
  return with_filter ? parse_filters(p, node) : node;
}

// The operator at the current token if it belongs to this level, else 0.
static char operator_of_level(const parser *p, int level) {
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
    if (table[i].level == level && at_operator(p, table[i].text)) {
      return table[i].op;
    }
  }
  return 0;
}

enum { POWER_LEVEL = 0, CONCAT_LEVEL = 2, SUM_LEVEL = 3 };

static mgl_jinja_node *parse_arithmetic(parser *p, int level);

// a ~ b ~ c is one node: all parts are made to text and joined.
static mgl_jinja_node *parse_concat(parser *p, mgl_jinja_node *first) {
  mgl_jinja_node *node = new_node(p, MGL_JINJA_NODE_CONCAT, p->token.line);
  if (node == NULL) {
    return NULL;
  }
  mgl_jinja_node **tail = &node->items;
  if (!add_item(node, &tail, first)) {
    return NULL;
  }
  while (at_operator(p, "~")) {
    if (!advance(p) || !add_item(node, &tail, parse_arithmetic(p, CONCAT_LEVEL - 1))) {
      return NULL;
    }
  }
  return node;
}

// All arithmetic is left-associative, ** too.
static mgl_jinja_node *parse_arithmetic(parser *p, int level) {
  mgl_jinja_node *left =
      level == POWER_LEVEL ? parse_unary(p, true) : parse_arithmetic(p, level - 1);
  for (char op = 0; left != NULL && (op = operator_of_level(p, level)) != 0;) {
    int line = p->token.line;
    if (op == '~') {
      left = parse_concat(p, left);
      continue;
    }
    mgl_jinja_node *right = NULL;
    if (advance(p)) {
      right = level == POWER_LEVEL ? parse_unary(p, true) : parse_arithmetic(p, level - 1);
    }
    left = right == NULL ? NULL : new_operation(p, MGL_JINJA_NODE_BINARY, line, op, left, right);
  }
  return left;
}

// The comparison at the current token (which may be two tokens: not in), consumed; 0 if none.
static bool parse_comparison_operator(parser *p, char *op) {
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
    if (at_operator(p, table[i].text)) {
      *op = table[i].op;
      return advance(p);
    }
  }
  if (at_name(p, "in")) {
    *op = MGL_JINJA_OP_IN;
    return advance(p);
  }
  if (at_name(p, "not")) {
    if (!look_ahead(p)) {
      return false;
    }
    if (is_token(&p->ahead, MGL_JINJA_TOKEN_NAME, "in")) {
      *op = MGL_JINJA_OP_NOT_IN;
      return advance(p) && advance(p);
    }
  }
  return true;
}

static mgl_jinja_node *parse_compare(parser *p) {
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
      node = new_operation(p, MGL_JINJA_NODE_COMPARE, line, 0, left, NULL);
      if (node == NULL) {
        return NULL;
      }
      tail = &node->items;
    }
    mgl_jinja_node *right = parse_arithmetic(p, SUM_LEVEL);
    if (!add_item(node, &tail,
                  new_operation(p, MGL_JINJA_NODE_COMPARISON, op_line, op, right, NULL))) {
      return NULL;
    }
  }
  return node == NULL ? left : node;
}

static mgl_jinja_node *parse_not(parser *p) {
  if (!at_name(p, "not")) {
    return parse_compare(p);
  }
  int line = p->token.line;
  if (!enter(p) || !advance(p)) {
    return NULL;
  }
  mgl_jinja_node *node = new_operation(p, MGL_JINJA_NODE_NOT, line, 0, parse_not(p), NULL);
  p->depth--;
  return node;
}

static mgl_jinja_node *parse_and(parser *p) {
  mgl_jinja_node *left = parse_not(p);
  while (left != NULL && at_name(p, "and")) {
    int line = p->token.line;
    mgl_jinja_node *right = advance(p) ? parse_not(p) : NULL;
    left = right == NULL ? NULL : new_operation(p, MGL_JINJA_NODE_AND, line, 0, left, right);
  }
  return left;
}

static mgl_jinja_node *parse_or(parser *p) {
  mgl_jinja_node *left = parse_and(p);
  while (left != NULL && at_name(p, "or")) {
    int line = p->token.line;
    mgl_jinja_node *right = advance(p) ? parse_and(p) : NULL;
    left = right == NULL ? NULL : new_operation(p, MGL_JINJA_NODE_OR, line, 0, left, right);
  }
  return left;
}

// a if b else c.
static mgl_jinja_node *parse_expression(parser *p) {
  if (!enter(p)) {
    return NULL;
  }
  mgl_jinja_node *node = parse_or(p);
  while (node != NULL && at_name(p, "if")) {
    int line = p->token.line;
    mgl_jinja_node *test = advance(p) ? parse_or(p) : NULL;
    mgl_jinja_node *condition =
        test == NULL ? NULL : new_operation(p, MGL_JINJA_NODE_CONDITION, line, 0, test, node);
    if (condition != NULL && at_name(p, "else")) {
      condition->third = advance(p) ? parse_expression(p) : NULL;
      condition = condition->third == NULL ? NULL : condition;
    }
    node = condition;
  }
  p->depth--;
  return node;
}

// --- statements ----------------------------------------------------------------------------------

static bool parse_body(parser *p, const char *tag, int tag_line, const char *const *ends,
                       mgl_jinja_node **out);

// "%}", the statements up to {% END %}, with END the current token then.
static bool parse_block(parser *p, const char *tag, int tag_line, const char *const *ends,
                        mgl_jinja_node **out) {
  if (at_operator(p, ":") && !advance(p)) {
    return false;
  }
  return expect_kind(p, MGL_JINJA_TOKEN_BLOCK_END, "'%}'") &&
         parse_body(p, tag, tag_line, ends, out);
}

// The same for a block with one possible end, which is consumed.
static bool parse_block_to(parser *p, const char *tag, int tag_line, const char *end,
                           mgl_jinja_node **out) {
  const char *const ends[] = {end, NULL};
  return parse_block(p, tag, tag_line, ends, out) && advance(p);
}

static mgl_jinja_node *parse_target_primary(parser *p);

// What a loop assigns to: a name or a tuple of them, but not the name that the loop itself has.
static mgl_jinja_node *parse_target(parser *p, const char *end_name) {
  mgl_jinja_node *node = parse_tuple(p, parse_target_primary, end_name, false);
  if (node == NULL) {
    return NULL;
  }
  const mgl_jinja_node *name = node->kind == MGL_JINJA_NODE_TUPLE ? node->items : node;
  for (; name != NULL; name = name->next) {
    if (name->kind == MGL_JINJA_NODE_NAME && mgl_jinja_text_is(name->value.string, "loop")) {
      return fail(p, MGL_ERR_FORMAT, name->line, "a loop cannot assign to \"loop\"");
    }
  }
  return node;
}

static mgl_jinja_node *parse_target_primary(parser *p) {
  mgl_jinja_node *node = NULL;
  int line = p->token.line;
  if (!enter(p)) {
    return NULL;
  }
  if (at_operator(p, "(")) {
    node = advance(p) ? parse_tuple(p, parse_target_primary, NULL, true) : NULL;
    node = node != NULL && expect_operator(p, ")") ? node : NULL;
  } else {
    mgl_jinja_string name;
    mgl_jinja_value constant;
    if (!expect_name(p, &name, "a name to assign to")) {
      return NULL;
    }
    if (constant_of_name(name, &constant)) {
      return fail(p, MGL_ERR_FORMAT, line, "cannot assign to \"%.*s\"", (int)name.bytes, name.data);
    }
    node = new_text_node(p, MGL_JINJA_NODE_NAME, line, name);
  }
  p->depth--;
  return node;
}

// set x = ..., set ns.x = ..., set x | filter %} text {% endset.
static mgl_jinja_node *parse_set_target(parser *p) {
  if (p->token.kind == MGL_JINJA_TOKEN_NAME) {
    if (!look_ahead(p)) {
      return NULL;
    }
    if (is_token(&p->ahead, MGL_JINJA_TOKEN_OPERATOR, ".")) {
      mgl_jinja_node *object = parse_name(p);
      mgl_jinja_string name;
      int line = p->token.line;
      if (object == NULL || !advance(p) || !expect_name(p, &name, "the name of an attribute")) {
        return NULL;
      }
      mgl_jinja_node *node = new_text_node(p, MGL_JINJA_NODE_ATTRIBUTE, line, name);
      if (node != NULL) {
        node->first = object;
      }
      return node;
    }
  }
  return parse_target_primary(p);
}

static mgl_jinja_node *parse_set(parser *p, int line) {
  mgl_jinja_node *target = parse_tuple(p, parse_set_target, NULL, false);
  if (target == NULL) {
    return NULL;
  }
  mgl_jinja_node *node = new_operation(p, MGL_JINJA_NODE_SET, line, 0, target, NULL);
  if (node == NULL) {
    return NULL;
  }
  if (at_operator(p, "=")) {
    node->second = advance(p) ? parse_tuple(p, parse_expression, NULL, false) : NULL;
    return node->second == NULL ? NULL : node;
  }
  node->kind = MGL_JINJA_NODE_SET_BLOCK;
  while (at_operator(p, "|")) {
    node->second = advance(p) ? parse_one_filter(p, node->second) : NULL;
    if (node->second == NULL) {
      return NULL;
    }
  }
  return parse_block_to(p, "set", line, "endset", &node->body) ? node : NULL;
}

static mgl_jinja_node *parse_for(parser *p, int line) {
  static const char *const ends[] = {"endfor", "else", NULL};
  mgl_jinja_node *node = new_node(p, MGL_JINJA_NODE_FOR, line);
  if (node == NULL || (node->first = parse_target(p, "in")) == NULL) {
    return NULL;
  }
  if (!at_name(p, "in")) {
    return fail_expected(p, "\"in\"");
  }
  if (!advance(p) || (node->second = parse_tuple(p, parse_or, "recursive", false)) == NULL) {
    return NULL;
  }
  if (at_name(p, "if") && (!advance(p) || (node->third = parse_expression(p)) == NULL)) {
    return NULL;
  }
  if (at_name(p, "recursive")) {
    return fail(p, MGL_ERR_UNSUPPORTED, line, "recursive loops are not supported: use a macro");
  }
  p->loops++;
  bool parsed = parse_block(p, "for", line, ends, &node->body);
  p->loops--;
  if (!parsed) {
    return NULL;
  }
  bool has_else = at_name(p, "else");
  if (!advance(p) || (has_else && !parse_block_to(p, "for", line, "endfor", &node->otherwise))) {
    return NULL;
  }
  return node;
}

static mgl_jinja_node *parse_if(parser *p, int line) {
  static const char *const ends[] = {"elif", "else", "endif", NULL};
  mgl_jinja_node *first = NULL;
  mgl_jinja_node **link = &first;
  for (;;) {
    mgl_jinja_node *node = new_node(p, MGL_JINJA_NODE_IF, p->token.line);
    *link = node;
    if (node == NULL || (node->first = parse_tuple(p, parse_or, NULL, false)) == NULL ||
        !parse_block(p, "if", line, ends, &node->body)) {
      return NULL;
    }
    bool has_elif = at_name(p, "elif");
    bool has_else = at_name(p, "else");
    if (!advance(p)) {
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
static bool parse_parameters(parser *p, mgl_jinja_node *node) {
  mgl_jinja_node **tail = &node->items;
  bool defaults = false;
  if (!expect_operator(p, "(")) {
    return false;
  }
  while (!at_operator(p, ")")) {
    mgl_jinja_string name;
    int line = p->token.line;
    if ((node->count != 0 && !expect_operator(p, ",")) ||
        !expect_name(p, &name, "the name of a parameter")) {
      return false;
    }
    if (mgl_jinja_text_is(name, "varargs") || mgl_jinja_text_is(name, "kwargs") ||
        mgl_jinja_text_is(name, "caller")) {
      (void)fail(p, MGL_ERR_UNSUPPORTED, line, "a parameter named \"%.*s\" is not supported",
                 (int)name.bytes, name.data);
      return false;
    }
    mgl_jinja_node *parameter = new_text_node(p, MGL_JINJA_NODE_NAME, line, name);
    if (!add_item(node, &tail, parameter)) {
      return false;
    }
    if (at_operator(p, "=")) {
      defaults = true;
      if (!advance(p) || (parameter->first = parse_expression(p)) == NULL) {
        return false;
      }
    } else if (defaults) {
      (void)fail_expected(p, "a default value, since the parameter before has one");
      return false;
    }
  }
  return advance(p);
}

// The rest of a macro or call block from its parameters on: break and continue do not reach out of
// it, and a use of `caller` in it is its own.
static mgl_jinja_node *parse_macro_body(parser *p, mgl_jinja_node *node, const char *tag,
                                        const char *end) {
  size_t loops = p->loops;
  bool in_macro = p->in_macro;
  bool uses_caller = p->uses_caller;
  p->loops = 0;
  p->in_macro = true;
  p->uses_caller = false;
  bool parsed = parse_block_to(p, tag, node->line, end, &node->body);
  node->uses_caller = p->uses_caller;
  p->uses_caller = p->uses_caller || uses_caller;
  p->in_macro = in_macro;
  p->loops = loops;
  return parsed ? node : NULL;
}

static mgl_jinja_node *parse_macro(parser *p, int line) {
  mgl_jinja_node *node = new_text_node(p, MGL_JINJA_NODE_MACRO, line, p->token.text);
  mgl_jinja_string name;
  if (node == NULL || !expect_name(p, &name, "the name of a macro") || !parse_parameters(p, node)) {
    return NULL;
  }
  return parse_macro_body(p, node, "macro", "endmacro");
}

static mgl_jinja_node *parse_call_block(parser *p, int line) {
  mgl_jinja_node *node = new_node(p, MGL_JINJA_NODE_CALL_BLOCK, line);
  if (node == NULL || (at_operator(p, "(") && !parse_parameters(p, node))) {
    return NULL;
  }
  node->first = parse_expression(p);
  if (node->first == NULL) {
    return NULL;
  }
  if (node->first->kind != MGL_JINJA_NODE_CALL) {
    return fail(p, MGL_ERR_FORMAT, line, "expected a call behind \"call\"");
  }
  return parse_macro_body(p, node, "call", "endcall");
}

static mgl_jinja_node *parse_with(parser *p, int line) {
  mgl_jinja_node *node = new_node(p, MGL_JINJA_NODE_WITH, line);
  mgl_jinja_node **tail = node == NULL ? NULL : &node->items;
  while (node != NULL && p->token.kind != MGL_JINJA_TOKEN_BLOCK_END) {
    if ((node->count != 0 && !expect_operator(p, ",")) ||
        !add_item(node, &tail, parse_target_primary(p)) || !expect_operator(p, "=") ||
        !add_item(node, &tail, parse_expression(p))) {
      return NULL;
    }
  }
  return node != NULL && parse_block_to(p, "with", line, "endwith", &node->body) ? node : NULL;
}

static mgl_jinja_node *parse_filter_block(parser *p, int line) {
  mgl_jinja_node *node = new_node(p, MGL_JINJA_NODE_FILTER_BLOCK, line);
  if (node == NULL || (node->second = parse_one_filter(p, NULL)) == NULL) {
    return NULL;
  }
  while (at_operator(p, "|")) {
    node->second = advance(p) ? parse_one_filter(p, node->second) : NULL;
    if (node->second == NULL) {
      return NULL;
    }
  }
  return parse_block_to(p, "filter", line, "endfilter", &node->body) ? node : NULL;
}

// transformers' extension that marks what the model wrote; it renders as its content.
static mgl_jinja_node *parse_generation(parser *p, int line) {
  mgl_jinja_node *node = new_node(p, MGL_JINJA_NODE_SCOPE, line);
  size_t loops = p->loops;
  p->loops = 0;
  bool parsed = node != NULL && parse_block_to(p, "generation", line, "endgeneration", &node->body);
  p->loops = loops;
  return parsed ? node : NULL;
}

static mgl_jinja_node *parse_flow(parser *p, mgl_jinja_node_kind kind, int line) {
  if (p->loops == 0) {
    return fail(p, MGL_ERR_FORMAT, line, "\"%s\" outside of a loop",
                kind == MGL_JINJA_NODE_BREAK ? "break" : "continue");
  }
  return new_node(p, kind, line);
}

// The statement behind "{%".
static mgl_jinja_node *parse_statement(parser *p) {
  static const char *const unsupported[] = {"block", "extends", "include", "import",
                                            "from",  "print",   "do",      "autoescape",
                                            "trans", "debug",   NULL};
  mgl_jinja_string name;
  int line = p->token.line;
  if (!expect_name(p, &name, "the name of a statement")) {
    return NULL;
  }
  static const struct {
    const char *name;
    mgl_jinja_node *(*parse)(parser *p, int line);
  } statements[] = {
      {"if", parse_if},
      {"for", parse_for},
      {"set", parse_set},
      {"macro", parse_macro},
      {"with", parse_with},
      {"call", parse_call_block},
      {"filter", parse_filter_block},
      {"generation", parse_generation},
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
      return fail(p, MGL_ERR_UNSUPPORTED, line, "{%% %s %%} is not supported", unsupported[i]);
    }
  }
  return fail(p, MGL_ERR_FORMAT, line, "unknown or misplaced statement {%% %.*s %%}",
              (int)(name.bytes < 40 ? name.bytes : 40), name.data);
}

static bool at_one_of(const parser *p, const char *const *ends) {
  for (size_t i = 0; ends[i] != NULL; i++) {
    if (at_name(p, ends[i])) {
      return true;
    }
  }
  return false;
}

// One piece of a body; *ended when it was the "{% END" that ends it.
static mgl_jinja_node *parse_piece(parser *p, const char *const *ends, bool *ended) {
  int line = p->token.line;
  if (p->token.kind == MGL_JINJA_TOKEN_DATA) {
    mgl_jinja_node *node = new_text_node(p, MGL_JINJA_NODE_DATA, line, p->token.text);
    return node != NULL && advance(p) ? node : NULL;
  }
  bool is_block = p->token.kind == MGL_JINJA_TOKEN_BLOCK_BEGIN;
  if (!advance(p)) {
    return NULL;
  }
  if (is_block) {
    *ended = at_one_of(p, ends);
    mgl_jinja_node *node = *ended ? NULL : parse_statement(p);
    return node != NULL && expect_kind(p, MGL_JINJA_TOKEN_BLOCK_END, "'%}'") ? node : NULL;
  }
  mgl_jinja_node *node = new_operation(p, MGL_JINJA_NODE_OUTPUT, line, 0,
                                       parse_tuple(p, parse_expression, NULL, false), NULL);
  return node != NULL && expect_kind(p, MGL_JINJA_TOKEN_VARIABLE_END, "'}}'") ? node : NULL;
}

// Statements up to one of `ends`, whose name is the current token then; up to the end of the
// template when `tag` is NULL.
static bool parse_body(parser *p, const char *tag, int tag_line, const char *const *ends,
                       mgl_jinja_node **out) {
  *out = NULL;
  if (!enter(p)) {
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
    (void)fail(p, MGL_ERR_FORMAT, p->token.line,
               "the template ends within the {%% %s %%} of line %d: expected {%% %s %%}", tag,
               tag_line,
               ends[0][0] == 'e' && ends[1] != NULL && ends[2] != NULL ? ends[2] : ends[0]);
    return false;
  }
  return true;
}

mgl_status mgl_jinja_parse(mgl_jinja_string source, const char *where, mgl_arena *arena,
                           const mgl_jinja_node **out, mgl_error *err) {
  static const char *const no_ends[] = {NULL};
  parser p = {.arena = arena, .err = err};
  p.lexer = (mgl_jinja_lexer){.arena = arena,
                              .err = err,
                              .where = where,
                              .source = source,
                              .line = 1,
                              .line_starting = true};
  mgl_jinja_node *body = NULL;
  *out = NULL;
  if (!advance(&p) || !parse_body(&p, NULL, 0, no_ends, &body)) {
    return p.status;
  }
  *out = body;
  return MGL_OK;
}
