// The prompts of `megalith run`: from the command line, from files with one prompt a line, as text
// or as JSON (--jsonl), or from standard input.
//
// A line of a file that cannot be run keeps its place with the reason, so that the others run; what
// is wrong with a prompt of the command line is an error of the command.
#ifndef MGL_APP_RUN_PROMPTS_H
#define MGL_APP_RUN_PROMPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/options.h"
#include "base/status.h"
#include "engine/sampler.h"
#include "grammar/cache.h"
#include "model/model_folder.h"

enum { MGL_RUN_MAX_PROMPTS = 65536 };

typedef struct mgl_prompt {
  const char *file;  // that it is a line of, borrowed; NULL: it is none
  size_t line;       // from 1
  char *id;          // of a JSON line: its "id" as JSON; NULL: none
  char *error;       // why it cannot run; NULL: it can
  mgl_token_list tokens;
  uint32_t max_new_tokens;
  mgl_sampling sampling;
  mgl_logit_bias *biases;  // of a JSON line, what sampling.biases is then; NULL: none
  int32_t stop_ids[MGL_MAX_EOS_IDS];
  uint32_t stop_id_count;
  mgl_grammar *grammar;  // that the output must match; NULL: none
  char **stops;          // [stop_count] stop texts
  uint32_t stop_count;
} mgl_prompt;

typedef struct mgl_prompt_list {
  mgl_prompt *items;
  size_t count;
  size_t capacity;
} mgl_prompt_list;

// Reads all of them, in the order of the command line; free the list also after a failure.
// `sampling` is that of a prompt that says nothing else; prompt i without a seed of its own gets
// sampling->seed + i. grammars: where those that are asked for come from; NULL without a tokenizer.
mgl_status mgl_prompts_collect(const mgl_arguments *arguments, const mgl_model_folder *folder,
                               const mgl_sampling *sampling, mgl_grammar_cache *grammars,
                               mgl_prompt_list *out, mgl_error *err);
void mgl_prompts_free(mgl_prompt_list *list);

// Notes why a prompt that is a line cannot run; any other failure, and any other prompt's, stays
// one: returns `status`.
mgl_status mgl_prompt_fail(mgl_prompt *prompt, mgl_status status, const mgl_error *reason,
                           mgl_error *err);

#endif
