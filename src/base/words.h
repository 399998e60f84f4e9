// What a word that nobody knows was likely meant to be.
#ifndef MGL_BASE_WORDS_H
#define MGL_BASE_WORDS_H

#include <stddef.h>

enum {
  MGL_MAX_WORD_BYTES = 32,  // longer ones are like none
  MGL_MAX_LIKELY_WORDS = 3,
  MGL_MEANT_BYTES = 160,  // of the text of mgl_words_ask
};

// The candidates that `word` most likely meant, at most MGL_MAX_LIKELY_WORDS, in their order; the
// first rule that finds any decides: the same but for case and _ for -; the word begins it; two
// typing mistakes at most (one in a short word); it begins the word; all of its parts between
// dashes are in the word (max-new-tokens: max-tokens), or all of the word's in it. More than
// MGL_MAX_LIKELY_WORDS by one rule are no answer. Returns how many.
size_t mgl_words_likely(const char *word, const char *const *candidates, size_t count,
                        const char *out[MGL_MAX_LIKELY_WORDS]);

// " (did you mean --a, --b or --c?)" of them, with `dashes` before each; nothing of none.
void mgl_words_ask(const char *dashes, const char *word, const char *const *candidates,
                   size_t count, char out[MGL_MEANT_BYTES]);

#endif
