#include "app/sampling_options.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app/client.h"
#include "base/alloc.h"
#include "base/limits.h"

// As megalith.h has them.
enum { MGL_MAX_PENALTY = 2, MGL_MAX_LOGIT_BIAS = 100 };
static const double least_repetition = 0.01, most_repetition = 100;

// An id that ends with the character `end`; true if it is one.
static bool parse_token(const char *text, char end, int32_t *out) {
  char *found_end = NULL;
  errno = 0;
  unsigned long token = strtoul(text, &found_end, 10);
  *out = (int32_t)token;
  return isdigit((unsigned char)text[0]) && *found_end == end && errno == 0 && token <= INT32_MAX;
}

// "ID=VALUE".
static mgl_status parse_bias(const char *text, megalith_logit_bias *out, mgl_error *err) {
  bool valid = parse_token(text, '=', &out->token);
  if (valid) {
    const char *value = strchr(text, '=') + 1;
    char *end = NULL;
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
  megalith_sampling *s = &out->sampling;
  for (size_t i = 0; i < arguments->count; i++) {
    const mgl_argument *argument = &arguments->items[i];
    if (strcmp(argument->option->name, "logit-bias") == 0) {
      if (s->bias_count == MEGALITH_MAX_LOGIT_BIASES) {
        return mgl_error_set(err, MGL_ERR_ARGUMENT, "--logit-bias: expected at most %d, found more",
                             MEGALITH_MAX_LOGIT_BIASES);
      }
      MGL_TRY(parse_bias(argument->text, &out->biases[s->bias_count++], err));
    }
  }
  return MGL_OK;
}

// To the library 0 is the default; to a user it is a mistake.
static mgl_status check(const megalith_sampling *sampling, mgl_error *err) {
  megalith_error error = {0};
  if (!(sampling->top_p > 0)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "top-p: expected above 0 and at most 1, found %g",
                         sampling->top_p);
  }
  return mgl_client_status(megalith_sampling_check(sampling, &error), &error, err);
}

mgl_status mgl_app_sampling_choose(const mgl_arguments *arguments, const megalith_model_info *model,
                                   mgl_app_sampling *out, mgl_error *err) {
  const megalith_sampling *usual = model->sampling;
  const bool samples = usual->temperature > 0 || mgl_arguments_has(arguments, "top-k") ||
                       mgl_arguments_has(arguments, "top-p") ||
                       mgl_arguments_has(arguments, "min-p");
  *out = (mgl_app_sampling){.sampling = *usual};
  megalith_sampling *s = &out->sampling;
  s->temperature = mgl_arguments_real(arguments, "temperature", samples ? model->temperature : 0);
  s->top_k = (uint32_t)mgl_arguments_u64(arguments, "top-k", usual->top_k);
  s->top_p = mgl_arguments_real(arguments, "top-p", usual->top_p);
  s->min_p = mgl_arguments_real(arguments, "min-p", usual->min_p);
  s->repetition_penalty =
      mgl_arguments_real(arguments, "repetition-penalty", usual->repetition_penalty);
  s->presence_penalty = mgl_arguments_real(arguments, "presence-penalty", 0);
  s->frequency_penalty = mgl_arguments_real(arguments, "frequency-penalty", 0);
  s->min_new_tokens = (uint32_t)mgl_arguments_u64(arguments, "min-tokens", usual->min_new_tokens);
  s->logprobs = mgl_arguments_has(arguments, "logprobs");
  s->top_logprobs = (uint32_t)mgl_arguments_u64(arguments, "logprobs", 0);
  s->seed = mgl_arguments_u64(arguments, "seed", 0);
  s->biases = out->biases;
  MGL_TRY(collect(arguments, out, err));
  return check(s, err);
}

// --- JSON ----------------------------------------------------------------------------------------

static mgl_status read_biases(mgl_json_object o, megalith_sampling *inout,
                              megalith_logit_bias **biases, mgl_error *err) {
  mgl_json_object list;
  MGL_TRY(mgl_json_opt_object(o, "logit_bias", &list, err));
  size_t count = json_object_size(list.object);
  if (list.object == NULL) {
    return MGL_OK;
  }
  if (count > MEGALITH_MAX_LOGIT_BIASES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "\"logit_bias\": expected at most %d, found %zu",
                         MEGALITH_MAX_LOGIT_BIASES, count);
  }
  *biases = mgl_alloc_zeroed(count + 1, sizeof **biases);
  if (*biases == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu logit biases", count);
  }
  inout->biases = *biases;
  inout->bias_count = 0;
  const char *key = NULL;
  json_t *value = NULL;
  json_object_foreach((json_t *)list.object, key, value) {
    megalith_logit_bias *bias = &(*biases)[inout->bias_count++];
    bias->value = (float)json_number_value(value);
    if (!parse_token(key, '\0', &bias->token) || !json_is_number(value)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "\"logit_bias\": expected ids of tokens with numbers, found \"%.80s\"",
                           key);
    }
  }
  return MGL_OK;
}

static mgl_status read_u32(mgl_json_object o, const char *key, uint64_t most, uint32_t *inout,
                           mgl_error *err) {
  uint64_t value = *inout;
  MGL_TRY(mgl_json_opt_u64(o, key, 0, most, &value, err));
  *inout = (uint32_t)value;
  return MGL_OK;
}

mgl_status mgl_app_sampling_read(mgl_json_object o, megalith_sampling *inout,
                                 megalith_logit_bias **biases, mgl_error *err) {
  static const double most = MGL_MAX_PENALTY;
  MGL_TRY(mgl_json_opt_u64(o, "seed", 0, INT64_MAX, &inout->seed, err));
  MGL_TRY(read_u32(o, "top_k", MGL_MAX_VOCAB, &inout->top_k, err));
  MGL_TRY(read_u32(o, "min_tokens", MGL_MAX_CONTEXT, &inout->min_new_tokens, err));
  MGL_TRY(read_u32(o, "logprobs", MEGALITH_MAX_TOP_LOGPROBS, &inout->top_logprobs, err));
  inout->logprobs = inout->logprobs || mgl_json_has(o, "logprobs");
  MGL_TRY(mgl_json_opt_double(o, "temperature", 0, 100, &inout->temperature, err));
  MGL_TRY(mgl_json_opt_double(o, "top_p", 0, 1, &inout->top_p, err));
  MGL_TRY(mgl_json_opt_double(o, "min_p", 0, 1, &inout->min_p, err));
  MGL_TRY(mgl_json_opt_double(o, "repetition_penalty", least_repetition, most_repetition,
                              &inout->repetition_penalty, err));
  MGL_TRY(mgl_json_opt_double(o, "presence_penalty", -most, most, &inout->presence_penalty, err));
  MGL_TRY(mgl_json_opt_double(o, "frequency_penalty", -most, most, &inout->frequency_penalty, err));
  MGL_TRY(read_biases(o, inout, biases, err));
  return check(inout, err);
}

// --- the options ---------------------------------------------------------------------------------

static const mgl_option options[] = {
    {.name = "min-tokens",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = MGL_MAX_CONTEXT,
     .help = "no token that ends the text before so many [the model's min_new_tokens, or 0]"},
    {.name = "temperature",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 0,
     .max = 100,
     .help = "0 takes the likeliest token; higher is more random [the model's default]"},
    {.name = "top-k",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = MGL_MAX_VOCAB,
     .help = "sample from the N likeliest tokens; 0: all [the model's default; 50 where a "
             "model that samples has none]"},
    {.name = "top-p",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 0,
     .max = 1,
     .help = "sample from the likeliest tokens that together reach X [the model's default]"},
    {.name = "min-p",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 0,
     .max = 1,
     .help = "sample from tokens at least X times as likely as the likeliest [the model's "
             "default, or 0]"},
    {.name = "repetition-penalty",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 0.01,
     .max = 100,
     .help = "above 1, tokens of prompt and text come again less often [the model's default, "
             "or 1]"},
    {.name = "presence-penalty",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = -MGL_MAX_PENALTY,
     .max = MGL_MAX_PENALTY,
     .help = "subtracted from logits of tokens that were generated [0]"},
    {.name = "frequency-penalty",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = -MGL_MAX_PENALTY,
     .max = MGL_MAX_PENALTY,
     .help = "subtracted from them for each time that they were [0]"},
    {.name = "logit-bias",
     .value_name = "ID=X",
     .type = MGL_OPTION_TEXT,
     .repeatable = true,
     .help = "add X (-100 to 100) to the logit of a token; may be given several times"},
    {.name = "logprobs",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = MEGALITH_MAX_TOP_LOGPROBS,
     .help = "a line per token instead of text: its log probability, id and text, and those "
             "of the N likeliest"},
    {.name = "seed",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = UINT64_MAX,
     .help = "of the random numbers; prompt i uses N + i, counted from 0 [0]"},
};

const mgl_option_group mgl_sampling_options = {options, sizeof options / sizeof *options};
