// megalith run: text in, text out, as it is generated.
//
// All prompts are submitted to one engine, which runs up to 64 of them together. Their outputs
// appear in the order of the prompts: that of the first prompt that is not finished streams, those
// of later ones wait in memory for their turn. Statistics go to standard error.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/app_model.h"
#include "app/commands.h"
#include "app/human.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/statistics.h"
#include "base/alloc.h"
#include "base/file.h"
#include "engine/engine.h"

enum {
  DEFAULT_MAX_TOKENS = 256,
  MAX_PROMPTS = 65536,
  CEILING_PASSES = 3,
};

// A prompt and what has come of it.
typedef struct stream {
  mgl_token_list prompt;
  uint32_t max_new_tokens;
  uint32_t generated;
  bool finished;
  mgl_detokenizer *detokenizer;
  mgl_text text;  // not written yet
} stream;

typedef struct run {
  const mgl_arguments *arguments;
  mgl_app_model model;
  mgl_sampling sampling;  // seed of prompt 0
  stream *streams;        // [stream_count]
  size_t stream_count;
  size_t stream_capacity;
  size_t current;  // the stream whose text is being written
  mgl_runner *runner;
  mgl_engine *engine;
  mgl_output_file trace;
  mgl_progress progress;
  bool shows_text;  // standard output is a terminal: text and bar must not mix
  uint64_t done_tokens;
  uint64_t total_tokens;
  mgl_statistics statistics;
  mgl_status status;  // the first failure inside a callback
  mgl_error *err;
} run;

// --- prompts -------------------------------------------------------------------------------------

static mgl_status encode_prompt(const run *r, const char *text, size_t bytes, mgl_token_list *out,
                                mgl_error *err) {
  const mgl_model_folder *folder = &r->model.folder;
  if (!mgl_arguments_has(r->arguments, "chat")) {
    mgl_encode_options options = {.add_special = true};
    return mgl_tokenizer_encode(folder->tokenizer, text, bytes, options, out, err);
  }
  if (memchr(text, 0, bytes) != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected text, found a NUL byte, which a chat template cannot take");
  }
  mgl_text chat = {0};
  const char *system = mgl_arguments_text(r->arguments, "system", NULL);
  mgl_status status = mgl_model_folder_chat(folder, system, text, &chat, err);
  if (status == MGL_OK) {
    status = mgl_text_check(&chat, err);
  }
  if (status == MGL_OK) {
    status = mgl_tokenizer_encode(folder->tokenizer, chat.data == NULL ? "" : chat.data, chat.bytes,
                                  (mgl_encode_options){0}, out, err);
  }
  mgl_text_free(&chat);
  return status;
}

// How many tokens a prompt may get; the default is cut to the context, an explicit number is not.
static mgl_status limit_tokens(const run *r, stream *s, mgl_error *err) {
  uint64_t context = r->model.folder.config.context_tokens;
  uint32_t models = r->model.folder.generation.max_new_tokens;
  uint64_t wanted =
      mgl_arguments_u64(r->arguments, "max-tokens", models != 0 ? models : DEFAULT_MAX_TOKENS);
  if (s->prompt.count == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected at least 1 token, found an empty text");
  }
  if (s->prompt.count >= context) {
    return mgl_error_set(
        err, MGL_ERR_LIMIT, "expected at most %llu tokens (the model's context is %llu), found %zu",
        (unsigned long long)(context - 1), (unsigned long long)context, s->prompt.count);
  }
  uint64_t left = context - s->prompt.count;
  if (wanted > left && mgl_arguments_has(r->arguments, "max-tokens")) {
    return mgl_error_set(
        err, MGL_ERR_LIMIT,
        "%zu tokens and %llu new ones do not fit into the model's context of %llu: "
        "expected --max-tokens %llu at most",
        s->prompt.count, (unsigned long long)wanted, (unsigned long long)context,
        (unsigned long long)left);
  }
  s->max_new_tokens = (uint32_t)(wanted < left ? wanted : left);
  return MGL_OK;
}

static mgl_status add_prompt(run *r, const char *text, size_t bytes, mgl_error *err) {
  void *items = r->streams;
  if (r->stream_count == MAX_PROMPTS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d prompts, found more",
                         MAX_PROMPTS);
  }
  MGL_TRY(mgl_grow(&items, &r->stream_capacity, r->stream_count + 1, sizeof *r->streams, err));
  r->streams = items;
  stream *s = &r->streams[r->stream_count++];
  *s = (stream){0};
  mgl_status status = encode_prompt(r, text, bytes, &s->prompt, err);
  if (status == MGL_OK) {
    status = limit_tokens(r, s, err);
  }
  if (status == MGL_OK) {
    status = mgl_detokenizer_create(r->model.folder.tokenizer, true, &s->detokenizer, err);
  }
  if (status != MGL_OK) {
    mgl_error_prefix(err, "prompt %zu", r->stream_count);
  }
  return status;
}

static mgl_status add_input(run *r, mgl_error *err) {
  mgl_text text = {0};
  mgl_status status = mgl_input_read(MGL_TOKENIZER_MAX_TEXT_BYTES, &text, err);
  if (status == MGL_OK) {
    status = add_prompt(r, text.data == NULL ? "" : text.data, text.bytes, err);
  }
  mgl_text_free(&text);
  return status;
}

static mgl_status add_file(run *r, const char *path, mgl_error *err) {
  char *text = NULL;
  size_t bytes = 0;
  if (strcmp(path, "-") == 0) {
    return add_input(r, err);
  }
  MGL_TRY(mgl_file_read_any(path, MGL_TOKENIZER_MAX_TEXT_BYTES, &text, &bytes, err));
  mgl_status status = add_prompt(r, text, bytes, err);
  mgl_free(text);
  return status;
}

static mgl_status collect_prompts(run *r, mgl_error *err) {
  for (size_t i = 0; i < r->arguments->count; i++) {
    const mgl_argument *argument = &r->arguments->items[i];
    if (strcmp(argument->option->name, "prompt") == 0) {
      MGL_TRY(add_prompt(r, argument->text, strlen(argument->text), err));
    } else if (strcmp(argument->option->name, "file") == 0) {
      MGL_TRY(add_file(r, argument->text, err));
    }
  }
  if (r->stream_count > 0) {
    return MGL_OK;
  }
  if (isatty(STDIN_FILENO)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "no prompt: expected -p TEXT, -f FILE or text on standard input: see "
                         "megalith run --help");
  }
  return add_input(r, err);
}

// --- sampling ------------------------------------------------------------------------------------

// What generation_config.json says, with the given options in its place. An option of sampling
// without --temperature turns sampling on.
static mgl_status choose_sampling(run *r, mgl_error *err) {
  const mgl_generation *generation = &r->model.folder.generation;
  const mgl_arguments *arguments = r->arguments;
  bool samples = generation->do_sample || mgl_arguments_has(arguments, "top-k") ||
                 mgl_arguments_has(arguments, "top-p");
  r->sampling = (mgl_sampling){
      .temperature =
          mgl_arguments_real(arguments, "temperature", samples ? generation->temperature : 0),
      .top_k = (uint32_t)mgl_arguments_u64(arguments, "top-k", generation->top_k),
      .top_p = mgl_arguments_real(arguments, "top-p", generation->top_p),
      .seed = mgl_arguments_u64(arguments, "seed", 0),
  };
  MGL_TRY(mgl_sampling_check(&r->sampling, err));
  if (generation->unapplied[0] != 0) {
    (void)fprintf(stderr, "megalith: note: not applied of the model's generation_config.json: %s\n",
                  generation->unapplied);
  }
  return MGL_OK;
}

// --- generation ----------------------------------------------------------------------------------

// Writes what the current stream has, and moves on while streams are finished.
static mgl_status write_ready(run *r, mgl_error *err) {
  while (r->current < r->stream_count) {
    stream *s = &r->streams[r->current];
    if (s->finished) {
      mgl_text_append_string(&s->text, r->current + 1 < r->stream_count ? "\n\n" : "\n");
    }
    MGL_TRY(mgl_text_check(&s->text, err));
    if (s->text.bytes > 0) {
      if (r->shows_text) {
        mgl_progress_finish(&r->progress);
      }
      MGL_TRY(mgl_output_write(s->text.data, s->text.bytes, err));
    }
    if (!s->finished) {
      mgl_text_clear(&s->text);
      return MGL_OK;
    }
    mgl_text_free(&s->text);
    r->current++;
  }
  return MGL_OK;
}

static mgl_status accept_token(run *r, stream *s, int32_t token, mgl_finish_reason reason,
                               mgl_error *err) {
  if (reason != MGL_FINISH_STOP) {
    MGL_TRY(mgl_detokenizer_push(s->detokenizer, token, &s->text, err));
  }
  if (reason != MGL_FINISH_NONE) {
    MGL_TRY(mgl_detokenizer_finish(s->detokenizer, &s->text, err));
    s->finished = true;
  }
  return s == &r->streams[r->current] ? write_ready(r, err) : MGL_OK;
}

static void on_token(void *context, uint32_t request, int32_t token, mgl_finish_reason reason) {
  run *r = context;
  stream *s = &r->streams[request];
  s->generated++;
  r->done_tokens += reason == MGL_FINISH_NONE ? 1 : s->max_new_tokens - s->generated + 1;
  mgl_progress_update(&r->progress, r->done_tokens, r->total_tokens);
  if (r->status == MGL_OK) {
    r->status = accept_token(r, s, token, reason, r->err);
  }
}

static mgl_status start(run *r, mgl_error *err) {
  const mgl_generation *generation = &r->model.folder.generation;
  uint32_t longest = 0;
  uint64_t pool_tokens = 0;
  for (size_t i = 0; i < r->stream_count; i++) {
    const stream *s = &r->streams[i];
    uint32_t tokens = (uint32_t)s->prompt.count + s->max_new_tokens;
    longest = tokens > longest ? tokens : longest;
    pool_tokens += (tokens + MGL_PAGE_TOKENS - 1) / MGL_PAGE_TOKENS * MGL_PAGE_TOKENS;
    r->total_tokens += tokens;
  }
  mgl_runner_options options = {.sequences = (uint32_t)(r->stream_count < MGL_MAX_ITERATION_TOKENS
                                                            ? r->stream_count
                                                            : MGL_MAX_ITERATION_TOKENS),
                                .sequence_tokens = longest};
  if (r->stream_count <= options.sequences) {
    options.pool_tokens = pool_tokens;  // no more than all of them can use together
  }
  MGL_TRY(mgl_app_model_start(&r->model, r->arguments, &options, &r->runner, err));
  mgl_engine_options engine_options = {.mode = mgl_app_mode(r->arguments),
                                       .should_stop = mgl_interrupt_seen};
  MGL_TRY(mgl_engine_create(r->runner, &engine_options, &r->engine, err));
  for (size_t i = 0; i < r->stream_count; i++) {
    const stream *s = &r->streams[i];
    mgl_request request = {.prompt = s->prompt.ids,
                           .prompt_count = s->prompt.count,
                           .max_new_tokens = s->max_new_tokens,
                           .sampling = r->sampling,
                           .stop_ids = generation->eos_ids,
                           .stop_count = generation->eos_count};
    request.sampling.seed += i;
    uint32_t number = 0;
    MGL_TRY(mgl_engine_submit(r->engine, &request, &number, err));
  }
  return MGL_OK;
}

// After an interrupt: what exists of every output, in order.
static mgl_status write_rest(run *r, mgl_error *err) {
  for (size_t i = r->current; i < r->stream_count; i++) {
    stream *s = &r->streams[i];
    if (!s->finished) {
      MGL_TRY(mgl_detokenizer_finish(s->detokenizer, &s->text, err));
      s->finished = true;
    }
  }
  return write_ready(r, err);
}

// After an iteration; false ends the run.
static bool on_iteration(void *context, const mgl_iteration *iteration) {
  run *r = context;
  if (r->status == MGL_OK) {
    r->status = mgl_statistics_add(&r->statistics, iteration, r->err);
  }
  r->done_tokens += iteration->prompt_tokens;
  mgl_progress_update(&r->progress, r->done_tokens, r->total_tokens);
  return r->status == MGL_OK && !mgl_interrupt_seen();
}

static mgl_status generate(run *r, mgl_error *err) {
  r->err = err;
  r->shows_text = isatty(STDOUT_FILENO);
  mgl_interrupt_watch();
  mgl_progress_start(&r->progress, "generating", MGL_PROGRESS_COUNT);
  mgl_status status = mgl_engine_run(r->engine, on_token, on_iteration, r, err);
  status = status == MGL_OK ? r->status : status;
  mgl_progress_finish(&r->progress);
  return status == MGL_OK && mgl_interrupt_seen() ? write_rest(r, err) : status;
}

// The text is out by now, so a ceiling that cannot be measured is no failure of the run.
static void print_statistics(const run *r) {
  double ceiling = 0;
  mgl_error no_ceiling = {0};
  if (r->statistics.step_count > 0) {
    (void)mgl_runner_read_ceiling(r->runner, CEILING_PASSES, &ceiling, &no_ceiling);
  }
  uint64_t generated = 0;
  for (size_t i = 0; i < r->stream_count; i++) {
    generated += r->streams[i].generated;
  }
  mgl_statistics_print(&r->statistics, generated, r->runner, ceiling, no_ceiling.text);
}

static void release(run *r) {
  mgl_output_file_close(&r->trace);
  mgl_engine_destroy(r->engine);
  mgl_runner_destroy(r->runner);
  for (size_t i = 0; i < r->stream_count; i++) {
    mgl_token_list_free(&r->streams[i].prompt);
    mgl_detokenizer_destroy(r->streams[i].detokenizer);
    mgl_text_free(&r->streams[i].text);
  }
  mgl_free(r->streams);
  mgl_statistics_free(&r->statistics);
  mgl_app_model_close(&r->model);
}

static mgl_status run_command(const mgl_arguments *arguments, mgl_error *err) {
  run r = {.arguments = arguments, .trace = {.fd = -1}};
  unsigned needs = MGL_NEED_TOKENIZER | MGL_NEED_WEIGHTS;
  if (mgl_arguments_has(arguments, "chat")) {
    needs |= MGL_NEED_CHAT_TEMPLATE;
  } else if (mgl_arguments_has(arguments, "system")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "--system needs --chat: see megalith run --help");
  }
  mgl_status status = mgl_app_model_open(arguments, needs, &r.model, err);
  if (status == MGL_OK) {
    status = mgl_app_trace_open(arguments, mgl_app_mode(arguments) != MGL_MODE_EAGER, &r.trace, err);
  }
  if (status == MGL_OK) {
    status = choose_sampling(&r, err);
  }
  if (status == MGL_OK) {
    status = collect_prompts(&r, err);
  }
  if (status == MGL_OK) {
    status = start(&r, err);
  }
  if (status == MGL_OK) {
    status = generate(&r, err);
  }
  if (status == MGL_OK) {
    status = mgl_app_trace_write(&r.trace, r.runner, err);
    print_statistics(&r);
  }
  release(&r);
  return status;
}

static const mgl_option options[] = {
    {.name = "prompt",
     .short_name = 'p',
     .value_name = "TEXT",
     .type = MGL_OPTION_TEXT,
     .repeatable = true,
     .help = "a prompt; several prompts run together"},
    {.name = "file",
     .short_name = 'f',
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .repeatable = true,
     .help = "a prompt that is the whole content of a file or pipe; - is standard input"},
    {.name = "chat",
     .type = MGL_OPTION_FLAG,
     .help = "a prompt is a user's message, put into the model's chat template"},
    {.name = "system",
     .value_name = "TEXT",
     .type = MGL_OPTION_TEXT,
     .help = "system message of the chat [none]"},
    {.name = "max-tokens",
     .short_name = 'n',
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_CONTEXT,
     .help =
         "tokens to generate for a prompt at most [the model's max_new_tokens, or 256, as far as "
         "the context allows]"},
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
     .help =
         "sample from the N likeliest tokens; 0: all [the model's default; 50 where a model that "
         "samples has none]"},
    {.name = "top-p",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 0,
     .max = 1,
     .help = "sample from the likeliest tokens that together reach X [the model's default]"},
    {.name = "seed",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = UINT64_MAX,
     .help = "of the random numbers; prompt i uses N + i, counted from 0 [0]"},
    MGL_ROW_DEVICE,
    MGL_ROW_THREADS,
    MGL_ROW_MODE,
    MGL_ROW_LOAD_FORMAT,
    MGL_ROW_TRACE,
};

const mgl_command mgl_command_run = {
    .name = "run",
    .summary = "generate text",
    .positional = "MODEL",
    .description =
        "Continues each prompt and streams the text to standard output, statistics to standard\n"
        "error. Without a prompt, text on standard input is the prompt. Several outputs appear in\n"
        "the order of the prompts with an empty line between them.",
    .examples =
        "megalith run -p \"Once upon a time\"\n"
        "megalith run -p \"Once\" -p \"Then\" -n 50 --temperature 0.8 --seed 7\n"
        "megalith run path/to/Qwen3-0.6B --chat -p \"Why is the sky blue?\"",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run_command,
};
