// megalith score: what probability a model gives to each token of a text.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "app/client.h"
#include "app/commands.h"
#include "app/compile_options.h"
#include "app/interrupt.h"
#include "app/logit_comparison.h"
#include "app/model_options.h"
#include "app/npy.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/token_input.h"
#include "base/alloc.h"
#include "request/json_text.h"

typedef struct score {
  const mgl_arguments *arguments;
  megalith_model *model;
  const megalith_model_info *info;  // of the model
  mgl_ids tokens;
  double *logprobs;            // [tokens.count]; NAN at 0
  mgl_npy npy;                 // open with --logits
  mgl_logit_comparison usual;  // with --kv-dtype: with the logits of the usual cache
  mgl_progress progress;
} score;

static mgl_status read_tokens(score *s, mgl_error *err) {
  const char *ids = mgl_arguments_text(s->arguments, "tokens", NULL);
  const char *text = mgl_arguments_text(s->arguments, "text", NULL);
  if (ids != NULL) {
    MGL_TRY(mgl_tokens_parse(ids, strlen(ids), "--tokens", s->info->vocab_size, &s->tokens, err));
  } else {
    const megalith_request_options options = {.size = sizeof options, .text = text};
    MGL_TRY(mgl_client_encode(s->model, &options, &s->tokens, err));
  }
  if (s->tokens.count < 1) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected at least 1 token, found none",
                         ids != NULL ? "--tokens" : "--text");
  }
  if (s->tokens.count > s->info->context_tokens) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "expected at most %" PRIu32 " tokens (the model's context), found %zu",
                         s->info->context_tokens, s->tokens.count);
  }
  return MGL_OK;
}

// A function of logits, as this command's files have them, and what has gone wrong in it.
typedef struct listener {
  score *s;
  mgl_status (*take)(score *s, size_t position, const float *logits, mgl_error *err);
} listener;

static megalith_status on_logits(void *context, size_t position, const float *logits,
                                 megalith_error *error) {
  const listener *l = context;
  mgl_error err = {0};
  mgl_progress_update(&l->s->progress, position + 1, l->s->tokens.count);
  const mgl_status status = mgl_interrupt_seen() ? mgl_error_set(&err, MGL_ERR_IO, "interrupted")
                                                 : l->take(l->s, position, logits, &err);
  memcpy(error->text, err.text, sizeof error->text);
  return (megalith_status)status;
}

static mgl_status take_logits(score *s, size_t position, const float *logits, mgl_error *err) {
  if (s->usual.count > 0) {
    MGL_TRY(mgl_logit_comparison_add(&s->usual, position, logits, err));
  }
  return s->npy.file.temporary_path == NULL ? MGL_OK : mgl_npy_write_row(&s->npy, logits, err);
}

static mgl_status keep_usual_logits(score *s, size_t position, const float *logits,
                                    mgl_error *err) {
  return mgl_logit_comparison_keep(&s->usual, position, logits, err);
}

// An engine for as many tokens. usual_cache: whatever --kv-dtype says.
static mgl_status start(score *s, bool usual_cache, megalith_engine **out, mgl_error *err) {
  mgl_client_engine chosen;
  mgl_status status = mgl_client_engine_choose(s->arguments, &chosen, err);
  if (status == MGL_OK) {
    chosen.options.context_tokens = (uint32_t)s->tokens.count;
    chosen.options.scoring = true;
    chosen.options.kv_dtype = usual_cache ? NULL : chosen.options.kv_dtype;
    status = mgl_client_engine_create(&chosen, s->model, out, err);
  }
  mgl_client_engine_free(&chosen);
  return status;
}

static mgl_status score_by(score *s, megalith_engine *engine, listener to, mgl_error *err) {
  megalith_error error = {0};
  mgl_progress_start(&s->progress, "scoring", MGL_PROGRESS_COUNT);
  mgl_status status =
      mgl_client_status(megalith_engine_score(engine, s->tokens.ids, s->tokens.count, s->logprobs,
                                              on_logits, &to, &error),
                        &error, err);
  mgl_progress_finish(&s->progress);
  return status;
}

// With --kv-dtype: the logits of the same model with the usual cache, to compare with.
static mgl_status score_usual(score *s, mgl_error *err) {
  const uint32_t vocab_size = s->info->vocab_size;
  const size_t most = mgl_logit_comparison_most(vocab_size);
  megalith_engine *engine = NULL;
  if (strcmp(mgl_arguments_text(s->arguments, "kv-dtype", "auto"), "auto") == 0) {
    return MGL_OK;
  }
  MGL_TRY(mgl_logit_comparison_begin(s->tokens.count < most ? s->tokens.count : most, vocab_size,
                                     &s->usual, err));
  MGL_TRY(start(s, true, &engine, err));
  mgl_status status = score_by(s, engine, (listener){s, keep_usual_logits}, err);
  megalith_engine_destroy(engine);
  return status;
}

static mgl_status compute(score *s, mgl_error *err) {
  megalith_engine *engine = NULL;
  const char *logits_path = mgl_arguments_text(s->arguments, "logits", NULL);
  s->logprobs = mgl_alloc_zeroed(s->tokens.count, sizeof *s->logprobs);
  if (s->logprobs == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu log probabilities",
                         s->tokens.count);
  }
  MGL_TRY(score_usual(s, err));
  MGL_TRY(start(s, false, &engine, err));
  mgl_interrupt_watch();
  mgl_status status = MGL_OK;
  if (logits_path != NULL) {
    const uint64_t dims[] = {s->tokens.count, s->info->vocab_size};
    status = mgl_npy_create(logits_path, 2, dims, &s->npy, err);
  }
  if (status == MGL_OK) {
    status = score_by(s, engine, (listener){s, take_logits}, err);
  }
  if (status == MGL_OK && logits_path != NULL) {
    status = mgl_npy_commit(&s->npy, err);
  }
  megalith_engine_destroy(engine);
  return status;
}

// --- output --------------------------------------------------------------------------------------

// Mean negative log probability of the tokens behind the first; NAN when there are none.
static double mean_nll(const score *s) {
  double sum = 0;
  for (size_t i = 1; i < s->tokens.count; i++) {
    sum -= s->logprobs[i];
  }
  return s->tokens.count < 2 ? NAN : sum / (double)(s->tokens.count - 1);
}

static void append_json(const score *s, mgl_text *out) {
  double nll = mean_nll(s);
  mgl_text_append_string(out, "{\"tokens\": [");
  for (size_t i = 0; i < s->tokens.count; i++) {
    mgl_text_format(out, "%s%" PRId32, i == 0 ? "" : ", ", s->tokens.ids[i]);
  }
  mgl_text_append_string(out, "], \"logprobs\": [");
  for (size_t i = 0; i < s->tokens.count; i++) {
    mgl_text_append_string(out, i == 0 ? "" : ", ");
    mgl_json_append_double(out, s->logprobs[i]);
  }
  mgl_text_append_string(out, "], \"perplexity\": ");
  mgl_json_append_double(out, exp(nll));
  mgl_text_append_string(out, ", \"nll\": ");
  mgl_json_append_double(out, nll);
  if (s->usual.count > 0) {
    mgl_text_append_string(out, ", \"kv_kl\": ");
    mgl_json_append_double(out, mgl_logit_comparison_kl(&s->usual));
    mgl_text_append_string(out, ", \"kv_same_likeliest\": ");
    mgl_json_append_double(out, mgl_logit_comparison_same(&s->usual));
  }
  mgl_text_append_string(out, "}\n");
}

// The text of one token in quotes, control characters escaped.
static mgl_status append_token_text(const score *s, int32_t id, mgl_text *out, mgl_error *err) {
  mgl_text text = {0};
  if (!s->info->has_tokenizer) {
    return MGL_OK;
  }
  mgl_status status = mgl_client_append_token(s->model, id, &text, err);
  mgl_text_append_string(out, "\"");
  for (size_t i = 0; i < text.bytes; i++) {
    unsigned char c = (unsigned char)text.data[i];
    if (c == '\n' || c == '\t' || c == '\r') {
      mgl_text_append_string(out, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
    } else if (c == '"' || c == '\\') {
      mgl_text_format(out, "\\%c", c);
    } else if (c < 0x20 || c == 0x7f) {
      mgl_text_format(out, "\\x%02x", c);
    } else {
      mgl_text_append(out, (const char *)&c, 1);
    }
  }
  mgl_text_append_string(out, "\"");
  mgl_text_free(&text);
  return status;
}

static mgl_status append_table(const score *s, mgl_text *out, mgl_error *err) {
  mgl_text_append_string(out, "position      id      logprob  token\n");
  for (size_t i = 0; i < s->tokens.count; i++) {
    mgl_text_format(out, "%8zu %7" PRId32, i, s->tokens.ids[i]);
    if (i == 0) {
      mgl_text_format(out, " %12s  ", "-");
    } else {
      mgl_text_format(out, " %12.6f  ", s->logprobs[i]);
    }
    MGL_TRY(append_token_text(s, s->tokens.ids[i], out, err));
    mgl_text_append_string(out, "\n");
  }
  if (s->tokens.count < 2) {
    mgl_text_append_string(out, "perplexity: none, since nothing comes before a single token\n");
  } else {
    double nll = mean_nll(s);
    mgl_text_format(out, "perplexity: %.6g over %zu tokens (mean negative log probability %.6f)\n",
                    exp(nll), s->tokens.count - 1, nll);
  }
  if (s->usual.count > 0) {
    mgl_text_format(out,
                    "KL to the usual KV cache: %.6f nats over %zu tokens, same likeliest %.1f%%\n",
                    mgl_logit_comparison_kl(&s->usual), s->usual.added,
                    100 * mgl_logit_comparison_same(&s->usual));
  }
  return MGL_OK;
}

static mgl_status print_scores(const score *s, mgl_error *err) {
  mgl_text out = {0};
  mgl_status status = MGL_OK;
  if (mgl_arguments_has(s->arguments, "json")) {
    append_json(s, &out);
  } else {
    status = append_table(s, &out, err);
  }
  if (status == MGL_OK) {
    status = mgl_output_text(&out, err);
  }
  mgl_text_free(&out);
  return status;
}

// A folder without a tokenizer still scores ids.
static mgl_status open_model(score *s, mgl_error *err) {
  const megalith_model_options options = {
      .size = sizeof options,
      .weights = mgl_client_weights(s->arguments),
      .needs_tokenizer = mgl_arguments_has(s->arguments, "text")};
  MGL_TRY(mgl_client_open(s->arguments, &options, &s->model, NULL, err));
  s->info = megalith_model_describe(s->model);
  return MGL_OK;
}

// How often --tokens and --text were given: of two texts, which one is meant?
static size_t count_inputs(const mgl_arguments *arguments) {
  size_t count = 0;
  for (size_t i = 0; i < arguments->count; i++) {
    const char *name = arguments->items[i].option->name;
    count += strcmp(name, "tokens") == 0 || strcmp(name, "text") == 0;
  }
  return count;
}

static mgl_status score_command(const mgl_arguments *arguments, mgl_error *err) {
  score s = {.arguments = arguments, .npy = {.file = {.fd = -1}}};
  bool has_tokens = mgl_arguments_has(arguments, "tokens");
  bool has_text = mgl_arguments_has(arguments, "text");
  if (has_tokens != has_text && count_inputs(arguments) > 1) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--%s: expected it once, found it %zu times: see megalith score --help",
                         has_tokens ? "tokens" : "text", count_inputs(arguments));
  }
  if (has_tokens == has_text) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one of --tokens and --text, found %s: see megalith score --help",
                         has_tokens ? "both" : "neither");
  }
  mgl_status status = open_model(&s, err);
  if (status == MGL_OK) {
    status = read_tokens(&s, err);
  }
  if (status == MGL_OK) {
    status = compute(&s, err);
  }
  if (status == MGL_OK) {
    status = print_scores(&s, err);
  }
  mgl_logit_comparison_free(&s.usual);
  mgl_npy_close(&s.npy);
  mgl_free(s.logprobs);
  mgl_free(s.tokens.ids);
  megalith_model_close(s.model);
  return status;
}

static const mgl_option options[] = {
    {.name = "tokens",
     .value_name = "IDS",
     .type = MGL_OPTION_TEXT,
     .help = "token ids to score, with commas between them"},
    {.name = "text", .value_name = "TEXT", .type = MGL_OPTION_TEXT, .help = "text to score"},
    {.name = "json",
     .type = MGL_OPTION_FLAG,
     .help = "print an object: tokens, logprobs, perplexity, nll (mean negative log probability)"},
    {.name = "logits",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "write the logits of every position to a NumPy file, float32 [tokens, vocabulary]"},
    MGL_ROW_KV_DTYPE,
    MGL_ROW_ITERATION_TOKENS_OF("64"),
    MGL_ROW_MODE,
    MGL_ROW_TENSOR_PARALLEL,
    MGL_ROW_VOCAB_PARALLEL,
    MGL_ROW_REDUCE_SCATTER,
};

static const mgl_option_group *const groups[] = {&mgl_place_options, &mgl_compile_options_group,
                                                 NULL};

const mgl_command mgl_command_score = {
    .name = "score",
    .summary = "log probability of each token of a text, and perplexity",
    .positional = "MODEL",
    .text_hint = "text stands behind --text, in quotes",
    .description =
        "Prints the natural logarithm of the probability of each token behind those\n"
        "before it; the first token has none. The perplexity is exp(-mean). With --kv-dtype fp8\n"
        "also the KL divergence to the same model with the usual KV cache.",
    .examples =
        "megalith score --text \"Once upon a time\"\n"
        "megalith score path/to/model --tokens 1,2,3 --json --logits logits.npy",
    .options = options,
    .takes_launchers = true,
    .option_count = sizeof options / sizeof *options,
    .groups = groups,
    .run = score_command,
};
