// Masks: which tokens may come next.
//
// A maker belongs to a grammar and a vocabulary and is shared by all texts of that grammar. A mask
// is a walk over the vocabulary's tries along rows of a deterministic automaton (rows.h). Before
// the walk, whole groups of tokens are decided: where all characters of some kinds are allowed now
// and for as long as a token can be (inside a string), tokens made of these kinds need no look;
// where characters of a kind are not allowed behind them either, tokens with such need none. What
// is known is dropped when there is much of it; masks never change by that. Any thread: a mutex
// guards a maker.
#ifndef MGL_GRAMMAR_MASK_H
#define MGL_GRAMMAR_MASK_H

#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

enum {
  MGL_MASK_KEPT_PLACES = 8192,  // that are known between masks
  MGL_MASK_KEPT = 64,           // masks, the latest
};

typedef struct mgl_mask_maker mgl_mask_maker;

// Both are borrowed.
mgl_status mgl_mask_maker_create(const mgl_automaton *automaton, const mgl_vocabulary *vocabulary,
                                 mgl_mask_maker **out, mgl_error *err);
void mgl_mask_maker_destroy(mgl_mask_maker *maker);  // NULL is fine

// The tokens whose bytes can come next: [mask_words], bit t of word t / 64. No bits of special
// tokens but where the grammar asks for one. MGL_ERR_LIMIT: the grammar is too ambiguous here.
mgl_status mgl_mask_make(mgl_mask_maker *maker, const mgl_matcher *matcher, uint64_t *mask,
                         mgl_error *err);

// Learns for so long what the beginnings of texts need, so that those who generate them do not
// wait.
void mgl_mask_warm(mgl_mask_maker *maker, uint64_t budget_ns);

#endif
