// Grammars: what a text must be, compiled for a vocabulary.
//
// Front ends make one expression of a JSON Schema, a regular expression, a list of texts, or EBNF;
// that becomes an automaton (automaton.h). A request follows it with a matcher of its own
// (matcher.h), and the grammar's maker of masks, which all its requests share, says which tokens
// may come next (mask.h). Compiling takes up to some hundred milliseconds, has limits in size and
// time, and runs on any thread.
#ifndef MGL_GRAMMAR_GRAMMAR_H
#define MGL_GRAMMAR_GRAMMAR_H

#include "grammar/mask.h"

enum {
  MGL_GRAMMAR_COMPILE_MS = 3000,  // more is refused
  MGL_GRAMMAR_WARM_MS = 25,       // then masks are made that will be needed
};

typedef enum mgl_grammar_kind {
  MGL_GRAMMAR_JSON_SCHEMA,  // the schema
  MGL_GRAMMAR_JSON_OBJECT,  // no text: any JSON object
  MGL_GRAMMAR_REGEX,        // a regular expression, of the whole text
  MGL_GRAMMAR_CHOICE,       // a JSON array of texts
  MGL_GRAMMAR_EBNF,
  MGL_GRAMMAR_PARTS,  // a JSON value that puts all of these together: parts.h
} mgl_grammar_kind;

typedef struct mgl_grammar mgl_grammar;

typedef struct mgl_grammar_source {
  mgl_grammar_kind kind;
  const char *text;
  size_t bytes;
} mgl_grammar_source;

// vocabulary: kept until the grammar is gone. tokenizer: borrowed during the call, for parts that
// name special tokens; may be NULL. MGL_ERR_ARGUMENT, _UNSUPPORTED, _LIMIT: the text is to blame,
// and the message says where.
mgl_status mgl_grammar_compile(const mgl_grammar_source *source, mgl_vocabulary *vocabulary,
                               const mgl_tokenizer *tokenizer, mgl_grammar **out, mgl_error *err);
// Any thread. The last release frees it; NULL is fine there.
void mgl_grammar_keep(mgl_grammar *grammar);
void mgl_grammar_release(mgl_grammar *grammar);

const mgl_automaton *mgl_grammar_automaton(const mgl_grammar *grammar);
const mgl_vocabulary *mgl_grammar_vocabulary(const mgl_grammar *grammar);
mgl_mask_maker *mgl_grammar_masks(mgl_grammar *grammar);
// Memory of the automaton.
size_t mgl_grammar_bytes(const mgl_grammar *grammar);

#endif
