// What becomes of a job's outputs: the JSON of answers, and the events of streams.
//
// Text goes in piece by piece, JSON comes out; nothing here knows of connections. One thread.
#ifndef MGL_SERVE_ANSWER_H
#define MGL_SERVE_ANSWER_H

#include <megalith.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "request/ask.h"
#include "serve/output_parser.h"

// A choice, as far as it has come.
typedef struct mgl_answer_choice {
  mgl_output_parser parser;  // of chats
  mgl_text text;             // what is said
  mgl_text thoughts;
  mgl_text calls;  // of tools, JSON with commas
  uint32_t call_count;
  mgl_text token_ids;  // with commas
  // Log probabilities, as JSON with commas: in chats all in the first.
  mgl_text tokens, logprobs, tops, offsets;
  size_t offset;    // in characters, of the next token
  mgl_text prompt;  // log probabilities of the prompt, JSON with commas
  uint32_t token_count;
  megalith_finish finish;
  bool is_begun;  // its first event has gone out
} mgl_answer_choice;

typedef struct mgl_answer {
  const megalith_model *model;
  const char *model_name;
  const mgl_ask *ask;
  char id[MGL_ASK_MAX_ID_BYTES + 64];
  int64_t created;             // seconds since 1970
  mgl_answer_choice *choices;  // [choice_count]
  uint32_t choice_count;
  uint32_t event_count;    // of /v1/responses, whose events are numbered
  uint64_t prompt_tokens;  // of all prompts; known when choices have ended
} mgl_answer;

mgl_status mgl_answer_init(const megalith_model *model, const char *model_name, const mgl_ask *ask,
                           uint32_t choice_count, mgl_output_syntax syntax, mgl_answer *out,
                           mgl_error *err);
void mgl_answer_free(mgl_answer *answer);

// Takes in the log probabilities of a choice's prompt, in front of its first output, if the ask
// wants them (sampling.prompt_logprobs).
void mgl_answer_add_prompt(mgl_answer *answer, uint32_t choice, const megalith_prompt *prompt);
// Takes in one output. In streams appends the event to *events, if it makes one.
void mgl_answer_output(mgl_answer *answer, uint32_t choice, const megalith_output *output,
                       mgl_text *events);
// All choices have ended. A stream's last events, or else the whole answer.
void mgl_answer_end(mgl_answer *answer, mgl_text *out);

// {"error": ...} as the OpenAI API has it. parameter: NULL, none.
void mgl_answer_append_error(mgl_text *out, int status, const char *message, const char *parameter,
                             const char *code);
// The same as an event of a stream that breaks.
void mgl_answer_append_error_event(mgl_text *out, const char *message);

#endif
