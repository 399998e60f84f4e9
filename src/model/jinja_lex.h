// The lexer of chat templates: source bytes to tokens, one at a time, with the white-space rules of
// Jinja under trim_blocks and lstrip_blocks (as transformers renders).
//
// Comments and raw blocks end here; the parser sees text, tag begins and ends, and the tokens in
// between. A string token is unescaped into the arena, all other text is a slice of the source.
#ifndef MGL_MODEL_JINJA_LEX_H
#define MGL_MODEL_JINJA_LEX_H

#include "base/arena.h"
#include "base/status.h"
#include "model/jinja_text.h"

typedef enum jinja_token_kind {
  JINJA_TOKEN_END,
  JINJA_TOKEN_DATA,
  JINJA_TOKEN_VARIABLE_BEGIN,
  JINJA_TOKEN_VARIABLE_END,
  JINJA_TOKEN_BLOCK_BEGIN,
  JINJA_TOKEN_BLOCK_END,
  JINJA_TOKEN_NAME,
  JINJA_TOKEN_STRING,
  JINJA_TOKEN_INTEGER,
  JINJA_TOKEN_FLOAT,
  JINJA_TOKEN_OPERATOR,
} jinja_token_kind;

typedef struct jinja_token {
  jinja_token_kind kind;
  int line;
  jinja_string text;  // as written; the content of DATA and STRING
  int64_t integer;
  double number;
} jinja_token;

enum { JINJA_MAX_BRACKETS = 256 };  // open at one place; the parser's own limit is lower

typedef enum jinja_lex_mode { JINJA_LEX_TEXT, JINJA_LEX_BLOCK, JINJA_LEX_VARIABLE } jinja_lex_mode;

typedef struct jinja_lexer {
  mgl_arena *arena;
  mgl_error *err;
  const char *where;    // borrowed; goes in front of messages
  jinja_string source;  // newlines already made "\n"; borrowed
  size_t at;
  int line;
  jinja_lex_mode mode;
  bool line_starting;  // what was consumed last ended a line
  char tag;            // '{', '%', '#' or 'r': this tag was found behind the text just returned
  size_t brackets;
  char closers[JINJA_MAX_BRACKETS];
} jinja_lexer;

// The next token; END again and again at the end.
mgl_status jinja_lex_next(jinja_lexer *lexer, jinja_token *out);

#endif
