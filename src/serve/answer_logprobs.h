// Log probabilities in answers: of tokens that were generated, and of prompts.
#ifndef MGL_SERVE_ANSWER_LOGPROBS_H
#define MGL_SERVE_ANSWER_LOGPROBS_H

#include "serve/answer.h"

// Notes those of one output, if they are asked for.
void mgl_answer_add_logprob(const mgl_answer *answer, const megalith_output *output,
                            mgl_answer_choice *choice);
// `,"logprobs":...` of what was noted since the last mgl_answer_clear_logprobs.
void mgl_answer_append_logprobs(const mgl_answer *answer, const mgl_answer_choice *choice,
                                mgl_text *out);
void mgl_answer_clear_logprobs(mgl_answer_choice *choice);
// "name":[items].
void mgl_answer_append_list(const char *name, const mgl_text *items, mgl_text *out);

#endif
