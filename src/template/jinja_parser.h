// The inside of the parser: its state, tokens, errors and nodes (jinja_parser.c), and what
// expressions (jinja_parse_expression.c) give to statements (jinja_parse.c).
//
// Functions return NULL (or false) after an error; the error itself is in parser->err.
#ifndef MGL_TEMPLATE_JINJA_PARSER_H
#define MGL_TEMPLATE_JINJA_PARSER_H

#include "template/jinja_lex.h"
#include "template/jinja_parse.h"

typedef struct mgl_jinja_parser {
  mgl_jinja_lexer lexer;
  mgl_jinja_token token;
  mgl_jinja_token ahead;
  bool has_ahead;
  mgl_arena *arena;
  mgl_jinja_node *newest;  // of all nodes
  mgl_error *err;
  size_t depth;            // open constructs, against MGL_TEMPLATE_MAX_DEPTH
  size_t loops;            // loops around this place, for break and continue
  uint8_t uses;            // names that were read since the innermost macro began
  mgl_jinja_node *blocks;  // the last one that ended
  mgl_status status;       // of the failure
} mgl_jinja_parser;

// --- errors --------------------------------------------------------------------------------------

// NULL, with the message "WHERE: line N: ..." in p->err.
void *mgl_jinja_parse_fail(mgl_jinja_parser *p, mgl_status status, int line, const char *format,
                           ...) __attribute__((format(printf, 4, 5)));
void *mgl_jinja_parse_fail_memory(mgl_jinja_parser *p);
// "expected EXPECTED, found ..." of the current token.
void *mgl_jinja_parse_fail_expected(mgl_jinja_parser *p, const char *expected);

// Counts an open construct; p->depth-- closes it.
bool mgl_jinja_parse_enter(mgl_jinja_parser *p);

// --- tokens --------------------------------------------------------------------------------------

bool mgl_jinja_advance(mgl_jinja_parser *p);
bool mgl_jinja_look_ahead(mgl_jinja_parser *p);  // p->ahead is the token behind the current one
bool mgl_jinja_is_token(const mgl_jinja_token *token, mgl_jinja_token_kind kind, const char *text);
bool mgl_jinja_at_operator(const mgl_jinja_parser *p, const char *text);
bool mgl_jinja_at_name(const mgl_jinja_parser *p, const char *text);

// Consume the current token, which must be that one.
bool mgl_jinja_expect_operator(mgl_jinja_parser *p, const char *text);
bool mgl_jinja_expect_kind(mgl_jinja_parser *p, mgl_jinja_token_kind kind, const char *expected);
bool mgl_jinja_expect_name(mgl_jinja_parser *p, mgl_jinja_string *out, const char *expected);

// --- nodes ---------------------------------------------------------------------------------------

mgl_jinja_node *mgl_jinja_new_node(mgl_jinja_parser *p, mgl_jinja_node_kind kind, int line);
mgl_jinja_node *mgl_jinja_new_text_node(mgl_jinja_parser *p, mgl_jinja_node_kind kind, int line,
                                        mgl_jinja_string text);
// NULL if `first` is, so that calls nest.
mgl_jinja_node *mgl_jinja_new_operation(mgl_jinja_parser *p, mgl_jinja_node_kind kind, int line,
                                        char op, mgl_jinja_node *first, mgl_jinja_node *second);
// Appends to a list whose last link is *tail; false if the item is NULL.
bool mgl_jinja_add_item(mgl_jinja_node *parent, mgl_jinja_node ***tail, mgl_jinja_node *item);

// --- expressions (jinja_parse_expression.c) ------------------------------------------------------

mgl_jinja_node *mgl_jinja_parse_expression(mgl_jinja_parser *p);
// The same without "a if b else c".
mgl_jinja_node *mgl_jinja_parse_or(mgl_jinja_parser *p);
mgl_jinja_node *mgl_jinja_parse_name(mgl_jinja_parser *p);
// One expression, or several with commas: a tuple. `element` parses each; end_name may end it.
mgl_jinja_node *mgl_jinja_parse_tuple(mgl_jinja_parser *p,
                                      mgl_jinja_node *(*element)(mgl_jinja_parser *),
                                      const char *end_name, bool in_parentheses);
// A filter's name and arguments, behind the '|'. `object` is NULL in {% filter %} and block sets.
mgl_jinja_node *mgl_jinja_parse_filter(mgl_jinja_parser *p, mgl_jinja_node *object);
// true, false and none, with a capital or without. False: no constant.
bool mgl_jinja_constant_of_name(mgl_jinja_string name, mgl_jinja_value *out);

#endif
