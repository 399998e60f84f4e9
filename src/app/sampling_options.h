// Sampling on the command line: the options, and what they and the model's defaults come to.
#ifndef MGL_APP_SAMPLING_OPTIONS_H
#define MGL_APP_SAMPLING_OPTIONS_H

#include <megalith.h>
#include <stdbool.h>

#include "app/options.h"
#include "base/json.h"
#include "base/status.h"

typedef struct mgl_app_sampling {
  megalith_sampling sampling;
  megalith_logit_bias biases[MEGALITH_MAX_LOGIT_BIASES];
} mgl_app_sampling;

// What generation_config.json says, with the given options in its place. An option that cuts what
// is sampled, without --temperature, turns sampling on. Stays where it is: sampling.biases points
// into *out.
mgl_status mgl_app_sampling_choose(const mgl_arguments *arguments, const megalith_model_info *model,
                                   mgl_app_sampling *out, mgl_error *err);

// The same of an object of JSON, on top of *inout: the keys of MGL_APP_SAMPLING_KEYS, of which
// logit_bias is an object of ids and numbers. *biases (NULL before) is then where inout->biases
// points to, the caller's.
mgl_status mgl_app_sampling_read(mgl_json_object o, megalith_sampling *inout,
                                 megalith_logit_bias **biases, mgl_error *err);

#define MGL_APP_SAMPLING_KEYS                                                         \
  "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", \
      "frequency_penalty", "logit_bias", "min_tokens", "logprobs", "seed"

extern const mgl_option_group mgl_sampling_options;

#endif
