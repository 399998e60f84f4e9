#include "app/sampling_options.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// "ID=VALUE".
static mgl_status parse_bias(const char *text, mgl_logit_bias *out, mgl_error *err) {
  char *end = NULL;
  errno = 0;
  unsigned long token = strtoul(text, &end, 10);
  bool valid = isdigit((unsigned char)text[0]) && *end == '=' && errno == 0 && token <= INT32_MAX;
  if (valid) {
    const char *value = end + 1;
    out->token = (int32_t)token;
    out->value = strtof(value, &end);
    // Written so that a NaN fails.
    valid = *value != 0 && !isspace((unsigned char)*value) && *end == 0 &&
            out->value >= -MGL_MAX_LOGIT_BIAS && out->value <= MGL_MAX_LOGIT_BIAS;
  }
  return valid ? MGL_OK
               : mgl_error_set(err, MGL_ERR_ARGUMENT,
                               "--logit-bias: expected ID=X, a token's id and a number of %d to "
                               "%d, found \"%.80s\"",
                               -MGL_MAX_LOGIT_BIAS, MGL_MAX_LOGIT_BIAS, text);
}

static mgl_status collect(const mgl_arguments *arguments, mgl_app_sampling *out, mgl_error *err) {
  for (size_t i = 0; i < arguments->count; i++) {
    const mgl_argument *argument = &arguments->items[i];
    if (strcmp(argument->option->name, "logit-bias") == 0) {
      if (out->sampling.bias_count == MGL_MAX_LOGIT_BIASES) {
        return mgl_error_set(err, MGL_ERR_ARGUMENT, "--logit-bias: expected at most %d, found more",
                             MGL_MAX_LOGIT_BIASES);
      }
      MGL_TRY(parse_bias(argument->text, &out->biases[out->sampling.bias_count++], err));
    } else if (strcmp(argument->option->name, "stop") == 0) {
      if (out->stop_count == MGL_MAX_STOP_STRINGS) {
        return mgl_error_set(err, MGL_ERR_ARGUMENT, "--stop: expected at most %d, found more",
                             MGL_MAX_STOP_STRINGS);
      }
      size_t bytes = strlen(argument->text);
      if (bytes < 1 || bytes > MGL_MAX_STOP_BYTES) {
        return mgl_error_set(err, MGL_ERR_ARGUMENT, "--stop: expected 1 to %d bytes, found %zu",
                             MGL_MAX_STOP_BYTES, bytes);
      }
      out->stops[out->stop_count++] = argument->text;
    }
  }
  return MGL_OK;
}

mgl_status mgl_app_sampling_choose(const mgl_arguments *arguments, const mgl_generation *generation,
                                   mgl_app_sampling *out, mgl_error *err) {
  bool samples = generation->do_sample || mgl_arguments_has(arguments, "top-k") ||
                 mgl_arguments_has(arguments, "top-p") || mgl_arguments_has(arguments, "min-p");
  *out = (mgl_app_sampling){
      .sampling = {
          .temperature =
              mgl_arguments_real(arguments, "temperature", samples ? generation->temperature : 0),
          .top_k = (uint32_t)mgl_arguments_u64(arguments, "top-k", generation->top_k),
          .top_p = mgl_arguments_real(arguments, "top-p", generation->top_p),
          .min_p = mgl_arguments_real(arguments, "min-p", generation->min_p),
          .repetition_penalty =
              mgl_arguments_real(arguments, "repetition-penalty", generation->repetition_penalty),
          .presence_penalty = mgl_arguments_real(arguments, "presence-penalty", 0),
          .frequency_penalty = mgl_arguments_real(arguments, "frequency-penalty", 0),
          .logprobs = mgl_arguments_has(arguments, "logprobs"),
          .top_logprobs = (uint32_t)mgl_arguments_u64(arguments, "logprobs", 0),
          .seed = mgl_arguments_u64(arguments, "seed", 0),
      }};
  out->sampling.biases = out->biases;
  MGL_TRY(collect(arguments, out, err));
  return mgl_sampling_check(&out->sampling, err);
}

uint32_t mgl_app_min_tokens(const mgl_arguments *arguments, const mgl_generation *generation,
                            uint32_t max_new_tokens) {
  uint32_t models =
      generation->min_new_tokens < max_new_tokens ? generation->min_new_tokens : max_new_tokens;
  return (uint32_t)mgl_arguments_u64(arguments, "min-tokens", models);
}
