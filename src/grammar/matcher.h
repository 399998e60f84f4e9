// Follows one text through an automaton.
//
// It keeps nothing of the text but where it is. One thread at a time.
#ifndef MGL_GRAMMAR_MATCHER_H
#define MGL_GRAMMAR_MATCHER_H

#include "grammar/configurations.h"

typedef struct mgl_matcher {
  mgl_steps steps;
  mgl_configuration at;  // its own memory
  size_t pair_capacity;
  uint64_t bytes;  // taken so far
} mgl_matcher;

// At the beginning of a text. automaton: borrowed. Free with mgl_matcher_reset (an all-zero one,
// too).
mgl_status mgl_matcher_init(mgl_matcher *matcher, const mgl_automaton *automaton, mgl_error *err);
void mgl_matcher_reset(mgl_matcher *matcher);

// Takes bytes. *alive becomes false where no text of the grammar goes on so; the matcher is of no
// use then. Fails for lack of memory and where the grammar is too ambiguous (MGL_ERR_LIMIT).
mgl_status mgl_matcher_advance(mgl_matcher *matcher, const char *bytes, size_t count, bool *alive,
                               mgl_error *err);

// Whether the text may end here.
static inline bool mgl_matcher_accepts(const mgl_matcher *matcher) {
  return matcher->at.accepts;
}

// Whether it must: nothing can follow.
static inline bool mgl_matcher_is_complete(const mgl_matcher *matcher) {
  return matcher->at.accepts && matcher->at.count == 0;
}

#endif
