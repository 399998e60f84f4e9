#include "app/random_work.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "twin/sampling_rule.h"

enum {
  DEFAULT_REQUESTS = 256,
  MAX_REQUESTS = 65536,
  DEFAULT_LEAST = 100,
  DEFAULT_MOST = 1024,
};

// Streams of random numbers of one seed.
enum { DRAW_INPUT = 1, DRAW_OUTPUT, DRAW_GAP, DRAW_TOKEN };

typedef struct range {
  uint32_t least, most;
} range;

static double draw(const mgl_random_work *work, int stream, uint64_t index) {
  return mgl_sampling_uniform(work->seed ^ (uint64_t)stream << 56, index);
}

static uint32_t draw_length(const mgl_random_work *work, int stream, uint64_t index, range r) {
  return r.least + (uint32_t)(draw(work, stream, index) * (r.most - r.least + 1));
}

// The usual lengths, as far as there is room.
static range usual_range(uint64_t room) {
  range r = {DEFAULT_LEAST, DEFAULT_MOST};
  r.most = room < r.most ? (uint32_t)room : r.most;
  r.most = r.most == 0 ? 1 : r.most;  // refused by the check
  r.least = r.most < r.least ? r.most : r.least;
  return r;
}

// "MIN:MAX", or one number for both. Unchanged if the option is not there.
static mgl_status read_range(const mgl_arguments *arguments, const char *name, range *out,
                             mgl_error *err) {
  const char *text = mgl_arguments_text(arguments, name, NULL);
  if (text == NULL) {
    return MGL_OK;
  }
  unsigned long numbers[2] = {0, 0};
  const char *at = text;
  bool valid = true;
  for (int i = 0; i < 2 && valid; i++) {
    size_t digits = strspn(at, "0123456789");
    valid = digits > 0 && digits < 10;
    numbers[i] = strtoul(at, NULL, 10);
    at += digits;
    if (i == 0 && *at == 0) {
      numbers[1] = numbers[0];
      break;
    }
    valid = valid && *at == (i == 0 ? ':' : 0);
    at += i == 0 && valid ? 1 : 0;
  }
  if (!valid || numbers[0] < 1 || numbers[1] < numbers[0] || numbers[1] > MGL_MAX_CONTEXT) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--%s: expected MIN:MAX, tokens of 1 to %d, found \"%.40s\"", name,
                         MGL_MAX_CONTEXT, text);
  }
  *out = (range){(uint32_t)numbers[0], (uint32_t)numbers[1]};
  return MGL_OK;
}

// What is not said gets what the other leaves of the context, or half of it each.
static mgl_status read_ranges(const mgl_arguments *arguments, uint64_t context, range *input,
                              range *output, mgl_error *err) {
  *input = *output = usual_range(context / 2);
  MGL_TRY(read_range(arguments, "input", input, err));
  MGL_TRY(read_range(arguments, "output", output, err));
  if (!mgl_arguments_has(arguments, "output")) {
    *output = usual_range(input->most < context ? context - input->most : 0);
  } else if (!mgl_arguments_has(arguments, "input")) {
    *input = usual_range(output->most < context ? context - output->most : 0);
  }
  return MGL_OK;
}

static mgl_status check(const mgl_random_work *work, uint64_t context, range input, range output,
                        mgl_error *err) {
  if ((uint64_t)input.most + output.most > context) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "--input and --output: expected %" PRIu64
                         " tokens at most together (the model's context), found %" PRIu64,
                         context, (uint64_t)input.most + output.most);
  }
  if (work->common > input.least) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--common-prefix: expected at most the least of --input, %" PRIu32
                         ", found %" PRIu32,
                         input.least, work->common);
  }
  return MGL_OK;
}

mgl_status mgl_random_work_make(const mgl_arguments *arguments, uint64_t context_tokens,
                                mgl_random_work *out, mgl_error *err) {
  range input;
  range output;
  double rate = mgl_arguments_real(arguments, "arrival-rate", 0);
  double arrival_s = 0;
  *out = (mgl_random_work){
      .seed = mgl_arguments_u64(arguments, "seed", 0),
      .count = (uint32_t)mgl_arguments_u64(arguments, "requests", DEFAULT_REQUESTS),
      .common = (uint32_t)mgl_arguments_u64(arguments, "common-prefix", 0)};
  MGL_TRY(read_ranges(arguments, context_tokens, &input, &output, err));
  MGL_TRY(check(out, context_tokens, input, output, err));
  out->items = mgl_alloc_zeroed(out->count, sizeof *out->items);
  if (out->items == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %" PRIu32 " requests", out->count);
  }
  for (uint32_t i = 0; i < out->count; i++) {
    mgl_work_item *w = &out->items[i];
    w->input = draw_length(out, DRAW_INPUT, i, input);
    w->output = draw_length(out, DRAW_OUTPUT, i, output);
    w->arrival_ns = (uint64_t)(arrival_s * 1e9);
    arrival_s += rate > 0 ? -log1p(-draw(out, DRAW_GAP, i)) / rate : 0;
    out->input_tokens += w->input;
    out->output_tokens += w->output;
    uint32_t tokens = w->input + w->output;
    out->longest_input = w->input > out->longest_input ? w->input : out->longest_input;
    out->longest = tokens > out->longest ? tokens : out->longest;
  }
  return MGL_OK;
}

void mgl_random_work_prompt(const mgl_random_work *work, uint32_t index, uint32_t vocab_size,
                            int32_t *out) {
  for (uint32_t i = 0; i < work->items[index].input; i++) {
    uint64_t of_request = i < work->common ? 0 : index + UINT64_C(1);
    out[i] = (int32_t)(draw(work, DRAW_TOKEN, of_request << 24 | i) * vocab_size);
  }
}

void mgl_random_work_free(mgl_random_work *work) {
  mgl_free(work->items);
  *work = (mgl_random_work){0};
}

static const mgl_option options[] = {
    {.name = "requests",
     .alias = "num-prompts",
     .short_name = 'n',
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MAX_REQUESTS,
     .help = "requests in all [256]"},
    {.name = "input",
     .value_name = "MIN:MAX",
     .type = MGL_OPTION_TEXT,
     .help = "tokens of a prompt, at random in this range [100:1024, as far as the context has "
             "room]"},
    {.name = "output",
     .value_name = "MIN:MAX",
     .type = MGL_OPTION_TEXT,
     .help = "tokens to generate for a prompt, at random in this range [100:1024, as far as the "
             "context has room]"},
    {.name = "common-prefix",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = MGL_MAX_CONTEXT,
     .help = "tokens that all prompts begin with [0]"},
    {.name = "seed",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = UINT64_MAX,
     .help = "of lengths, tokens and arrivals [0]"},
    {.name = "arrival-rate",
     .alias = "request-rate",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 1e-6,
     .max = 1e6,
     .help = "requests that arrive in a second, with random gaps [all at the start]"},
    {.name = "temperature",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 0,
     .max = 100,
     .help = "of sampling; 0: greedy [0]"},
    {.name = "json", .type = MGL_OPTION_FLAG, .help = "print one JSON object"},
};

const mgl_option_group mgl_work_options = {options, sizeof options / sizeof *options};
