// Sampling on the command line: the options, and what they and the model's defaults come to.
#ifndef MGL_APP_SAMPLING_OPTIONS_H
#define MGL_APP_SAMPLING_OPTIONS_H

#include <stdbool.h>

#include "app/options.h"
#include "base/json.h"
#include "base/status.h"
#include "batch/sampling.h"
#include "model/config.h"

typedef struct mgl_app_sampling {
  mgl_sampling sampling;
  mgl_logit_bias biases[MGL_MAX_LOGIT_BIASES];
} mgl_app_sampling;

// What generation_config.json says, with the given options in its place. An option that cuts what
// is sampled, without --temperature, turns sampling on. Stays where it is: sampling.biases points
// into *out.
mgl_status mgl_app_sampling_choose(const mgl_arguments *arguments, const mgl_generation *generation,
                                   mgl_app_sampling *out, mgl_error *err);

// The same of an object of JSON, on top of *inout: the keys of MGL_APP_SAMPLING_KEYS, of which
// logit_bias is an object of ids and numbers. *biases (NULL before) is then where inout->biases
// points to, the caller's.
mgl_status mgl_app_sampling_read(mgl_json_object o, mgl_sampling *inout, mgl_logit_bias **biases,
                                 mgl_error *err);

#define MGL_APP_SAMPLING_KEYS                                                         \
  "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", \
      "frequency_penalty", "logit_bias", "min_tokens", "logprobs", "seed"

#define MGL_ROWS_SAMPLING                                                                       \
  {.name = "min-tokens",                                                                        \
   .value_name = "N",                                                                           \
   .type = MGL_OPTION_U64,                                                                      \
   .u64_min = 0,                                                                                \
   .u64_max = MGL_MAX_CONTEXT,                                                                  \
   .help = "no token that ends the text before so many [the model's min_new_tokens, or 0]"},    \
      {.name = "temperature",                                                                   \
       .value_name = "X",                                                                       \
       .type = MGL_OPTION_REAL,                                                                 \
       .min = 0,                                                                                \
       .max = 100,                                                                              \
       .help = "0 takes the likeliest token; higher is more random [the model's default]"},     \
      {.name = "top-k",                                                                         \
       .value_name = "N",                                                                       \
       .type = MGL_OPTION_U64,                                                                  \
       .u64_min = 0,                                                                            \
       .u64_max = MGL_MAX_VOCAB,                                                                \
       .help =                                                                                  \
           "sample from the N likeliest tokens; 0: all [the model's default; 50 where a "       \
           "model that samples has none]"},                                                     \
      {.name = "top-p",                                                                         \
       .value_name = "X",                                                                       \
       .type = MGL_OPTION_REAL,                                                                 \
       .min = 0,                                                                                \
       .max = 1,                                                                                \
       .help = "sample from the likeliest tokens that together reach X [the model's default]"}, \
      {.name = "min-p",                                                                         \
       .value_name = "X",                                                                       \
       .type = MGL_OPTION_REAL,                                                                 \
       .min = 0,                                                                                \
       .max = 1,                                                                                \
       .help =                                                                                  \
           "sample from tokens at least X times as likely as the likeliest [the model's "       \
           "default, or 0]"},                                                                   \
      {.name = "repetition-penalty",                                                            \
       .value_name = "X",                                                                       \
       .type = MGL_OPTION_REAL,                                                                 \
       .min = MGL_MIN_REPETITION_PENALTY,                                                       \
       .max = MGL_MAX_REPETITION_PENALTY,                                                       \
       .help =                                                                                  \
           "above 1, tokens of prompt and text come again less often [the model's default, "    \
           "or 1]"},                                                                            \
      {.name = "presence-penalty",                                                              \
       .value_name = "X",                                                                       \
       .type = MGL_OPTION_REAL,                                                                 \
       .min = -MGL_MAX_PENALTY,                                                                 \
       .max = MGL_MAX_PENALTY,                                                                  \
       .help = "subtracted from logits of tokens that were generated [0]"},                     \
      {.name = "frequency-penalty",                                                             \
       .value_name = "X",                                                                       \
       .type = MGL_OPTION_REAL,                                                                 \
       .min = -MGL_MAX_PENALTY,                                                                 \
       .max = MGL_MAX_PENALTY,                                                                  \
       .help = "subtracted from them for each time that they were [0]"},                        \
      {.name = "logit-bias",                                                                    \
       .value_name = "ID=X",                                                                    \
       .type = MGL_OPTION_TEXT,                                                                 \
       .repeatable = true,                                                                      \
       .help = "add X (-100 to 100) to the logit of a token; may be given several times"},      \
      {.name = "logprobs",                                                                      \
       .value_name = "N",                                                                       \
       .type = MGL_OPTION_U64,                                                                  \
       .u64_min = 0,                                                                            \
       .u64_max = MGL_MAX_TOP_LOGPROBS,                                                         \
       .help =                                                                                  \
           "a line per token instead of text: its log probability, id and text, and those "     \
           "of the N likeliest"},                                                               \
  {                                                                                             \
    .name = "seed", .value_name = "N", .type = MGL_OPTION_U64, .u64_min = 0,                    \
    .u64_max = UINT64_MAX,                                                                      \
    .help = "of the random numbers; prompt i uses N + i, counted from 0 [0]"                    \
  }

#endif
