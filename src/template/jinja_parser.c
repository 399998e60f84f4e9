#include "template/jinja_parser.h"

#include <stdarg.h>
#include <stdio.h>

#include "template/chat_template.h"

// --- tokens and errors ---------------------------------------------------------------------------

void *mgl_jinja_parse_fail(mgl_jinja_parser *p, mgl_status status, int line, const char *format,
                           ...) {
  char text[MGL_ERROR_TEXT_BYTES];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  p->status = mgl_error_set(p->err, status, "%s: line %d: %s", p->lexer.where, line, text);
  return NULL;
}

void *mgl_jinja_parse_fail_memory(mgl_jinja_parser *p) {
  if (p->arena->over_limit) {
    return mgl_jinja_parse_fail(p, MGL_ERR_LIMIT, p->token.line,
                                "the parsed template needs more than %d MiB",
                                MGL_TEMPLATE_MAX_MEMORY_BYTES >> 20);
  }
  return mgl_jinja_parse_fail(p, MGL_ERR_MEMORY, p->token.line,
                              "out of memory while parsing the template");
}

// What the current token is, for messages.
static const char *token_name(const mgl_jinja_parser *p, char *text, size_t bytes) {
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

void *mgl_jinja_parse_fail_expected(mgl_jinja_parser *p, const char *expected) {
  char text[64];
  return mgl_jinja_parse_fail(p, MGL_ERR_FORMAT, p->token.line, "expected %s, found %s", expected,
                              token_name(p, text, sizeof text));
}

bool mgl_jinja_advance(mgl_jinja_parser *p) {
  if (p->has_ahead) {
    p->token = p->ahead;
    p->has_ahead = false;
    return true;
  }
  p->status = mgl_jinja_lex_next(&p->lexer, &p->token);
  return p->status == MGL_OK;
}

bool mgl_jinja_look_ahead(mgl_jinja_parser *p) {
  if (!p->has_ahead) {
    p->status = mgl_jinja_lex_next(&p->lexer, &p->ahead);
    p->has_ahead = p->status == MGL_OK;
  }
  return p->has_ahead;
}

bool mgl_jinja_is_token(const mgl_jinja_token *token, mgl_jinja_token_kind kind, const char *text) {
  return token->kind == kind && mgl_jinja_text_is(token->text, text);
}

bool mgl_jinja_at_operator(const mgl_jinja_parser *p, const char *text) {
  return mgl_jinja_is_token(&p->token, MGL_JINJA_TOKEN_OPERATOR, text);
}

bool mgl_jinja_at_name(const mgl_jinja_parser *p, const char *text) {
  return mgl_jinja_is_token(&p->token, MGL_JINJA_TOKEN_NAME, text);
}

bool mgl_jinja_expect_operator(mgl_jinja_parser *p, const char *text) {
  if (!mgl_jinja_at_operator(p, text)) {
    char quoted[8];
    (void)snprintf(quoted, sizeof quoted, "'%s'", text);
    (void)mgl_jinja_parse_fail_expected(p, quoted);
    return false;
  }
  return mgl_jinja_advance(p);
}

bool mgl_jinja_expect_kind(mgl_jinja_parser *p, mgl_jinja_token_kind kind, const char *expected) {
  if (p->token.kind != kind) {
    (void)mgl_jinja_parse_fail_expected(p, expected);
    return false;
  }
  return mgl_jinja_advance(p);
}

bool mgl_jinja_expect_name(mgl_jinja_parser *p, mgl_jinja_string *out, const char *expected) {
  *out = p->token.text;
  return mgl_jinja_expect_kind(p, MGL_JINJA_TOKEN_NAME, expected);
}

bool mgl_jinja_parse_enter(mgl_jinja_parser *p) {
  if (++p->depth > MGL_TEMPLATE_MAX_DEPTH) {
    (void)mgl_jinja_parse_fail(p, MGL_ERR_LIMIT, p->token.line, "nested deeper than %d levels",
                               MGL_TEMPLATE_MAX_DEPTH);
    return false;
  }
  return true;
}

// --- nodes ---------------------------------------------------------------------------------------

mgl_jinja_node *mgl_jinja_new_node(mgl_jinja_parser *p, mgl_jinja_node_kind kind, int line) {
  mgl_jinja_node *node = mgl_arena_alloc_zeroed(p->arena, 1, sizeof *node);
  if (node == NULL) {
    return mgl_jinja_parse_fail_memory(p);
  }
  node->kind = (uint8_t)kind;
  node->line = line;
  node->made_before = p->newest;
  p->newest = node;
  return node;
}

mgl_jinja_node *mgl_jinja_new_text_node(mgl_jinja_parser *p, mgl_jinja_node_kind kind, int line,
                                        mgl_jinja_string text) {
  mgl_jinja_node *node = mgl_jinja_new_node(p, kind, line);
  if (node != NULL) {
    node->value = mgl_jinja_string_value(text);
  }
  return node;
}

mgl_jinja_node *mgl_jinja_new_operation(mgl_jinja_parser *p, mgl_jinja_node_kind kind, int line,
                                        char op, mgl_jinja_node *first, mgl_jinja_node *second) {
  mgl_jinja_node *node = first == NULL ? NULL : mgl_jinja_new_node(p, kind, line);
  if (node != NULL) {
    node->op = op;
    node->first = first;
    node->second = second;
  }
  return node;
}

bool mgl_jinja_add_item(mgl_jinja_node *parent, mgl_jinja_node ***tail, mgl_jinja_node *item) {
  if (item == NULL) {
    return false;
  }
  **tail = item;
  *tail = &item->next;
  parent->count++;
  return true;
}
