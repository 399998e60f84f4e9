// The lexer of chat templates: source bytes to tokens, one at a time, with the white-space rules of
// Jinja under trim_blocks and lstrip_blocks (as transformers renders).
//
// Comments and raw blocks end here; the parser sees text, tag begins and ends, and the tokens in
// between. A string token is unescaped into the arena, all other text is a slice of the source.
#ifndef MGL_TEMPLATE_JINJA_LEX_H
#define MGL_TEMPLATE_JINJA_LEX_H

#include "base/arena.h"
#include "base/status.h"
#include "template/jinja_text.h"

typedef enum mgl_jinja_token_kind {
  MGL_JINJA_TOKEN_END,
  MGL_JINJA_TOKEN_DATA,
  MGL_JINJA_TOKEN_VARIABLE_BEGIN,
  MGL_JINJA_TOKEN_VARIABLE_END,
  MGL_JINJA_TOKEN_BLOCK_BEGIN,
  MGL_JINJA_TOKEN_BLOCK_END,
  MGL_JINJA_TOKEN_NAME,
  MGL_JINJA_TOKEN_STRING,
  MGL_JINJA_TOKEN_INTEGER,
  MGL_JINJA_TOKEN_FLOAT,
  MGL_JINJA_TOKEN_OPERATOR,
} mgl_jinja_token_kind;

typedef struct mgl_jinja_token {
  mgl_jinja_token_kind kind;
  int line;
  mgl_jinja_string text;  // as written; the content of DATA and STRING
  int64_t integer;
  double number;
} mgl_jinja_token;

enum { MGL_JINJA_MAX_BRACKETS = 256 };  // open at one place; the parser's own limit is lower

typedef enum mgl_jinja_lex_mode {
  MGL_JINJA_LEX_TEXT,
  MGL_JINJA_LEX_BLOCK,
  MGL_JINJA_LEX_VARIABLE
} mgl_jinja_lex_mode;

typedef struct mgl_jinja_lexer {
  mgl_arena *arena;
  mgl_error *err;
  const char *where;        // borrowed; goes in front of messages
  mgl_jinja_string source;  // newlines already made "\n"; borrowed
  size_t at;
  int line;
  mgl_jinja_lex_mode mode;
  bool line_starting;  // what was consumed last ended a line
  char tag;            // '{', '%', '#' or 'r': this tag was found behind the text just returned
  size_t brackets;
  char closers[MGL_JINJA_MAX_BRACKETS];
} mgl_jinja_lexer;

// The next token; END again and again at the end.
mgl_status mgl_jinja_lex_next(mgl_jinja_lexer *lexer, mgl_jinja_token *out);

#endif
