// The prompts of `megalith run`: from the command line, from files with one prompt a line, as text
// or as JSON (--jsonl), or from standard input.
//
// A line of a file that cannot be run keeps its place with the reason, so that the others run; what
// is wrong with a prompt of the command line is an error of the command.
#ifndef MGL_APP_RUN_PROMPTS_H
#define MGL_APP_RUN_PROMPTS_H

#include <megalith.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/options.h"
#include "app/token_input.h"
#include "base/status.h"

enum { MGL_RUN_MAX_PROMPTS = 65536 };

typedef struct mgl_prompt {
  const char *file;  // that it is a line of, borrowed; NULL: it is none
  size_t line;       // from 1
  char *id;          // of a JSON line: its "id" as JSON; NULL: none
  char *error;       // why it cannot run; NULL: it can
  mgl_ids tokens;
  uint32_t max_new_tokens;
  megalith_sampling sampling;
  megalith_logit_bias *biases;    // of a JSON line, what sampling.biases is then; NULL: none
  bool ignores_eos;               // the model's stop tokens do not end it
  megalith_grammar *own_grammar;  // of a JSON line; NULL: the list's
  char **stops;                   // [stop_count] stop texts
  uint32_t stop_count;
} mgl_prompt;

typedef struct mgl_prompt_list {
  mgl_prompt *items;
  size_t count;
  size_t capacity;
  megalith_grammar *grammar;  // of the command line, that outputs must match; NULL: none
} mgl_prompt_list;

// Reads all of them, in the order of the command line; free the list also after a failure.
// `sampling` is that of a prompt that says nothing else; prompt i without a seed of its own gets
// sampling->seed + i.
mgl_status mgl_prompts_collect(const mgl_arguments *arguments, const megalith_model *model,
                               const megalith_sampling *sampling, mgl_prompt_list *out,
                               mgl_error *err);
void mgl_prompts_free(mgl_prompt_list *list);

// Notes why a prompt that is a line cannot run; any other failure, and any other prompt's, stays
// one: returns `status`.
mgl_status mgl_prompt_fail(mgl_prompt *prompt, mgl_status status, const mgl_error *reason,
                           mgl_error *err);

#endif
