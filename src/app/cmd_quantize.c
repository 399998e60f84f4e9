// megalith quantize: a model's matrices in 8 or 4 bits, as a new folder.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "app/app_model.h"
#include "app/commands.h"
#include "app/human.h"
#include "app/logit_comparison.h"
#include "app/model_path.h"
#include "app/output.h"
#include "app/progress.h"
#include "base/alloc.h"
#include "base/file.h"
#include "engine/quantize_model.h"
#include "engine/score.h"

enum { MAX_TEXT_BYTES = 1 << 20 };

// --- how far the new model is from the old -------------------------------------------------------

typedef struct comparison {
  mgl_token_list tokens;
  mgl_logit_comparison logits;  // of the old model with the new one
} comparison;

static mgl_status score_folder(const mgl_model_folder *folder, comparison *c,
                               mgl_status (*on_logits)(void *, size_t, const float *, mgl_error *),
                               mgl_error *err) {
  mgl_runner *runner = NULL;
  mgl_build options = mgl_score_build((uint32_t)c->tokens.count, 0);
  double *logprobs = mgl_alloc_zeroed(c->tokens.count, sizeof *logprobs);
  if (logprobs == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a score");
  }
  mgl_status status = mgl_runner_create(folder, &options, &runner, err);
  if (status == MGL_OK) {
    mgl_score_request request = {.mode = MGL_MODE_MEGA,
                                 .tokens = c->tokens.ids,
                                 .count = c->tokens.count,
                                 .on_logits = on_logits,
                                 .context = &c->logits};
    status = mgl_score(runner, &request, logprobs, err);
  }
  mgl_runner_destroy(runner);
  mgl_free(logprobs);
  return status;
}

static mgl_status read_text(const mgl_arguments *arguments, const mgl_model_folder *folder,
                            comparison *c, mgl_error *err) {
  char *text = NULL;
  size_t bytes = 0;
  mgl_encode_options options = {.add_special = true};
  MGL_TRY(mgl_file_read_any(mgl_arguments_text(arguments, "text-file", NULL), MAX_TEXT_BYTES, &text,
                            &bytes, err));
  mgl_status status =
      mgl_tokenizer_encode(folder->tokenizer, text, bytes, options, &c->tokens, err);
  mgl_free(text);
  size_t most = mgl_logit_comparison_most(folder->config.vocab_size);
  most = most < folder->config.context_tokens ? most : folder->config.context_tokens;
  c->tokens.count = c->tokens.count < most ? c->tokens.count : most;
  if (status == MGL_OK && c->tokens.count == 0) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT, "--text-file: expected at least 1 token");
  }
  return status;
}

static mgl_status compare(const mgl_arguments *arguments, const char *from, const char *to,
                          mgl_text *out, mgl_error *err) {
  comparison c = {0};
  mgl_model_folder old = {0}, new = {0};
  mgl_status status = mgl_model_folder_open(from, MGL_NEED_TOKENIZER | MGL_NEED_WEIGHTS, &old, err);
  if (status == MGL_OK) {
    status = read_text(arguments, &old, &c, err);
  }
  if (status == MGL_OK) {
    status = mgl_logit_comparison_begin(c.tokens.count, old.config.vocab_size, &c.logits, err);
  }
  if (status == MGL_OK) {
    status = score_folder(&old, &c, mgl_logit_comparison_keep, err);
  }
  if (status == MGL_OK) {
    status = mgl_model_folder_open(to, MGL_NEED_WEIGHTS, &new, err);
  }
  if (status == MGL_OK) {
    status = score_folder(&new, &c, mgl_logit_comparison_add, err);
  }
  if (status == MGL_OK) {
    mgl_text_format(out, "KL to the original  %.5f nats over %zu tokens\n",
                    mgl_logit_comparison_kl(&c.logits), c.tokens.count);
    mgl_text_format(out, "same likeliest      %.1f%%\n",
                    100 * mgl_logit_comparison_same(&c.logits));
  }
  mgl_logit_comparison_free(&c.logits);
  mgl_token_list_free(&c.tokens);
  mgl_model_folder_close(&old);
  mgl_model_folder_close(&new);
  return status;
}

// -------------------------------------------------------------------------------------------------

static void on_progress(void *context, uint64_t done, uint64_t total) {
  mgl_progress_update(context, done, total);
}

static mgl_status write_model(const mgl_arguments *arguments, const char *from, mgl_text *out,
                              mgl_error *err) {
  mgl_topology *topology = NULL;
  mgl_progress progress = {0};
  mgl_quantise_result result;
  mgl_quantise_options options = {.from = from,
                                  .to_folder = mgl_arguments_text(arguments, "output", NULL),
                                  .group = (uint32_t)mgl_arguments_u64(arguments, "group", 0),
                                  .report = on_progress,
                                  .context = &progress};
  const char *to = mgl_arguments_text(arguments, "to", "");
  while (strcmp(mgl_quantise_to_name((uint32_t)options.to), to) != 0) {
    options.to++;
  }
  MGL_TRY(mgl_topology_create(&topology, err));
  mgl_status status =
      mgl_team_create(topology, mgl_arguments_u64(arguments, "threads", 0), &options.team, err);
  if (status == MGL_OK) {
    mgl_progress_start(&progress, "quantising", MGL_PROGRESS_BYTES);
    status = mgl_quantise_model(&options, &result, err);
    mgl_progress_finish(&progress);
  }
  mgl_team_destroy(options.team);
  mgl_topology_destroy(topology);
  if (status == MGL_OK) {
    char before[MGL_HUMAN_BYTES], after[MGL_HUMAN_BYTES];
    mgl_human_size(result.from_bytes, before);
    mgl_human_size(result.to_bytes, after);
    mgl_text_format(
        out, "%s\nquantised           %" PRIu32 " matrices to %s\nsize                %s, was %s\n",
        options.to_folder, result.matrices, to, after, before);
  }
  return status;
}

static mgl_status quantize_command(const mgl_arguments *arguments, mgl_error *err) {
  mgl_text out = {0};
  char *from = NULL, *name = NULL;
  if (!mgl_arguments_has(arguments, "to") || !mgl_arguments_has(arguments, "output")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected --to and --output: see megalith quantize --help");
  }
  mgl_status status = mgl_app_model_path(arguments, &from, &name, err);
  if (status == MGL_OK) {
    status = write_model(arguments, from, &out, err);
  }
  if (status == MGL_OK && mgl_arguments_has(arguments, "text-file")) {
    status = compare(arguments, from, mgl_arguments_text(arguments, "output", NULL), &out, err);
  }
  if (status == MGL_OK) {
    status = mgl_output_text(&out, err);
  }
  mgl_free(from);
  mgl_free(name);
  mgl_text_free(&out);
  return status;
}

static const mgl_option options_of_quantize[] = {
    {.name = "to",
     .value_name = "FORMAT",
     .type = MGL_OPTION_CHOICE,
     .choices = mgl_quantise_to_name,
     .help = "fp8 (E4M3), int8 or int4"},
    {.name = "output",
     .short_name = 'o',
     .value_name = "FOLDER",
     .type = MGL_OPTION_FILE,
     .help = "the new model's folder"},
    {.name = "group",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 32,
     .u64_max = 4096,
     .help = "weights of a row that share a scale, a multiple of 32 [int4: 128; else a whole row]"},
    {.name = "text-file",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "print the KL divergence to the original on this text"},
    {.name = "threads",
     .short_name = 't',
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = 4096,
     .help = "worker threads [one per core]"},
};

const mgl_command mgl_command_quantize = {
    .name = "quantize",
    .summary = "a model's weights in 8 or 4 bits, as a new folder",
    .positional = "MODEL",
    .description =
        "Rounds the matrices of a model's layers to 8 or 4 bits, each to the nearest, with the\n"
        "scales that make the error least. The new folder is one that vLLM and transformers read\n"
        "too (compressed-tensors). Embedding, output projection and norms stay as they are.",
    .examples =
        "megalith quantize path/to/model --to int4 -o path/to/new\n"
        "megalith quantize --to fp8 -o demo-fp8 --text-file README.md",
    .options = options_of_quantize,
    .option_count = sizeof options_of_quantize / sizeof *options_of_quantize,
    .run = quantize_command,
};
