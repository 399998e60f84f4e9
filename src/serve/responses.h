// Answers of /v1/responses: the same as those of chats in another form, whole or as typed events.
#ifndef MGL_SERVE_RESPONSES_H
#define MGL_SERVE_RESPONSES_H

#include "serve/answer.h"

// As mgl_answer_output and mgl_answer_end, which call these.
void mgl_responses_output(mgl_answer *answer, const megalith_output *output, mgl_text *events);
void mgl_responses_end(mgl_answer *answer, mgl_text *out);

#endif
