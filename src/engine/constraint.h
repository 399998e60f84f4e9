// Requests whose text a grammar constrains: where each is in its grammar, and its next mask.
//
// The engine's thread follows the text, which is quick. Masks, which may take long, are made by a
// thread of their own as soon as a token is known, beside the iteration that computes the next
// logits. So a mask is there when it is needed; where it is not, the engine waits a moment, and
// then goes on without the request, which joins again when its mask is there. Other requests never
// wait longer than that moment for somebody's grammar.
//
// A constraint belongs to the engine's thread, but between mgl_constraint_begin_mask and a
// mgl_constraint_wait that has returned true.
#ifndef MGL_ENGINE_CONSTRAINT_H
#define MGL_ENGINE_CONSTRAINT_H

#include "grammar/grammar.h"

enum { MGL_MASK_PATIENCE_NS = 1000000 };  // that an iteration waits for a mask

typedef struct mgl_constraints mgl_constraints;  // of an engine: the thread
typedef struct mgl_constraint mgl_constraint;    // of a sequence

mgl_status mgl_constraints_create(mgl_constraints **out, mgl_error *err);
// There must be no constraint any more. NULL is fine.
void mgl_constraints_destroy(mgl_constraints *constraints);

// Keeps the grammar.
mgl_status mgl_constraint_create(mgl_constraints *constraints, mgl_grammar *grammar,
                                 mgl_constraint **out, mgl_error *err);
void mgl_constraint_destroy(mgl_constraint *constraint);  // at any time; NULL is fine

// Begins to make the mask for the next token.
void mgl_constraint_begin_mask(mgl_constraint *constraint);
// Waits until the mask is made, for up to so many nanoseconds.
bool mgl_constraint_wait(mgl_constraint *constraint, uint64_t timeout_ns);
// The mask, once it is made: [mask words of the vocabulary]. Its holder may change it. *any:
// whether it has any token.
mgl_status mgl_constraint_mask(mgl_constraint *constraint, uint64_t **out, bool *any,
                               mgl_error *err);
// Whether the text may end here.
bool mgl_constraint_accepts(const mgl_constraint *constraint);
// Follows a token that the mask allowed. *complete: nothing can follow it.
mgl_status mgl_constraint_take(mgl_constraint *constraint, uint32_t token, bool *complete,
                               mgl_error *err);

#endif
