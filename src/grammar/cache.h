// The grammars that a model's requests use, compiled once each.
//
// Requests that ask for the same grammar share it: its automaton, and what its masks have learned.
// The least recently used go when there are many; who still uses one keeps it. The vocabulary is
// made with the first grammar. Any thread; compiling holds no lock, so the same new grammar may be
// compiled twice at once.
#ifndef MGL_GRAMMAR_CACHE_H
#define MGL_GRAMMAR_CACHE_H

#include "grammar/grammar.h"

enum {
  MGL_GRAMMAR_CACHE_ENTRIES = 64,
  MGL_GRAMMAR_CACHE_BYTES = 64 << 20,  // of texts and automata
};

typedef struct mgl_grammar_cache mgl_grammar_cache;

// tokenizer: borrowed. token_count: of the model.
mgl_status mgl_grammar_cache_create(const mgl_tokenizer *tokenizer, uint32_t token_count,
                                    mgl_grammar_cache **out, mgl_error *err);
void mgl_grammar_cache_destroy(mgl_grammar_cache *cache);  // NULL is fine

// The grammar, compiled now if it is new; the caller releases it.
mgl_status mgl_grammar_cache_get(mgl_grammar_cache *cache, const mgl_grammar_source *source,
                                 mgl_grammar **out, mgl_error *err);

#endif
