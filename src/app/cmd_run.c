// megalith run: text in, text out, as it is generated.
//
// All prompts (run_prompts.h) are submitted to one engine, which runs up to 64 of them together.
// Their outputs appear in the order of the prompts: that of the first prompt that is not finished
// streams, those of later ones wait in memory for their turn; with --jsonl, each is one JSON object
// once it is finished. Statistics go to standard error.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/chat_options.h"
#include "app/client.h"
#include "app/commands.h"
#include "app/compile_options.h"
#include "app/grammar_options.h"
#include "app/interrupt.h"
#include "app/model_options.h"
#include "app/output.h"
#include "app/output_file.h"
#include "app/progress.h"
#include "app/run_prompts.h"
#include "app/sampling_options.h"
#include "app/statistics.h"
#include "base/alloc.h"
#include "base/limits.h"
#include "request/json_text.h"

enum {
  CEILING_MEASUREMENTS = 3,
  USUAL_SEQUENCES = 64,  // that run at once; more of them only where the device wants it
  USUAL_PAGE_TOKENS = 16,
};

struct run;

// What has come of a prompt.
typedef struct stream {
  struct run *run;
  megalith_request *request;  // NULL: it was not submitted
  mgl_text text;              // not written yet; with --jsonl, all of it
  mgl_text logprobs;          // with --jsonl: the items of a list
  uint64_t generated;
  bool finished;
  const char *finish;  // why: "stop", "length", "interrupted"; "error": it could not run
} stream;

typedef struct run {
  const mgl_arguments *arguments;
  megalith_model *model;
  mgl_client_engine chosen;   // what the arguments say of the engine
  mgl_app_sampling sampling;  // of the command line; its seed is that of prompt 0
  mgl_prompt_list prompts;
  stream *streams;      // [prompts.count]
  size_t failed_count;  // prompts that could not run
  size_t current;       // the stream whose text is being written
  bool is_json;
  megalith_engine *engine;
  mgl_output_file trace;
  mgl_progress progress;
  bool shows_text;  // standard output is a terminal: text and bar must not mix
  uint64_t done_tokens;
  uint64_t total_tokens;
  mgl_statistics statistics;
  mgl_status status;  // the first failure inside a callback
  mgl_error *err;
} run;

// --- output --------------------------------------------------------------------------------------

// One object for a prompt, in the place of its text.
static void append_json(const run *r, size_t i, mgl_text *out) {
  const stream *s = &r->streams[i];
  const mgl_prompt *prompt = &r->prompts.items[i];
  mgl_text_format(out, "{\"index\": %zu", i);
  if (prompt->file != NULL) {
    mgl_text_format(out, ", \"line\": %zu", prompt->line);
  }
  if (prompt->id != NULL) {
    mgl_text_format(out, ", \"id\": %s", prompt->id);
  }
  if (prompt->error != NULL) {
    mgl_text_append_string(out, ", \"finish_reason\": \"error\", \"error\": ");
    mgl_json_append_string(out, prompt->error, strlen(prompt->error));
    mgl_text_append_string(out, "}\n");
    return;
  }
  mgl_text_append_string(out, ", \"text\": ");
  mgl_json_append_string(out, s->text.data == NULL ? "" : s->text.data, s->text.bytes);
  mgl_text_append_string(out, ", \"tokens\": [");
  const megalith_result *result = megalith_request_result(s->request);
  for (size_t t = 0; t < result->token_count; t++) {
    mgl_text_format(out, t == 0 ? "%d" : ", %d", result->tokens[t]);
  }
  if (prompt->sampling.logprobs) {
    mgl_text_append_string(out, "], \"logprobs\": [");
    mgl_text_append(out, s->logprobs.data == NULL ? "" : s->logprobs.data, s->logprobs.bytes);
    out->failed = out->failed || s->logprobs.failed;
  }
  mgl_text_format(out,
                  "], \"finish_reason\": \"%s\", \"prompt_tokens\": %zu, "
                  "\"generated_tokens\": %" PRIu64 "}\n",
                  s->finish, prompt->tokens.count, s->generated);
}

// Appends what can be written of the current stream, and empties it.
static void take_ready(run *r, stream *s, mgl_text *out) {
  if (r->is_json && !s->finished) {
    return;
  }
  if (r->is_json) {
    append_json(r, r->current, out);
  } else {
    mgl_text_append(out, s->text.data == NULL ? "" : s->text.data, s->text.bytes);
    if (s->finished) {
      mgl_text_append_string(out, r->current + 1 < r->prompts.count ? "\n\n" : "\n");
    }
  }
  out->failed = out->failed || s->text.failed;
  mgl_text_clear(&s->text);
}

// Writes what the current stream has, and moves on while streams are finished.
static mgl_status write_ready(run *r, mgl_error *err) {
  mgl_text out = {0};
  bool moves = true;
  while (moves && r->current < r->prompts.count) {
    stream *s = &r->streams[r->current];
    take_ready(r, s, &out);
    moves = s->finished;
    if (moves) {
      mgl_text_free(&s->text);
      mgl_text_free(&s->logprobs);
      r->current++;
    }
  }
  mgl_status status = mgl_text_check(&out, err);
  if (status == MGL_OK && out.bytes > 0) {
    if (r->shows_text) {
      mgl_progress_finish(&r->progress);
    }
    status = mgl_output_write(out.data, out.bytes, err);
  }
  mgl_text_free(&out);
  return status;
}

// --- generation ----------------------------------------------------------------------------------

// Appends a token's text as JSON.
static mgl_status append_token_text(const run *r, int32_t token, mgl_text *out, mgl_error *err) {
  mgl_text piece = {0};
  mgl_status status = mgl_client_append_token(r->model, token, &piece, err);
  mgl_json_append_string(out, piece.data == NULL ? "" : piece.data, piece.bytes);
  mgl_text_free(&piece);
  return status;
}

// A line: a token's log probability, id and text, then those of the likeliest, with tabs between
// them.
static mgl_status append_logprobs_line(const run *r, const megalith_output *token, mgl_text *out,
                                       mgl_error *err) {
  mgl_text_format(out, "%.4f\t%d\t", token->logprob, token->token);
  MGL_TRY(append_token_text(r, token->token, out, err));
  for (uint32_t i = 0; i < token->top_count; i++) {
    mgl_text_format(out, "\t%.4f\t%d\t", token->top[i].logprob, token->top[i].token);
    MGL_TRY(append_token_text(r, token->top[i].token, out, err));
  }
  mgl_text_append_string(out, "\n");
  return MGL_OK;
}

// The same as an item of a list.
static void append_logprobs_item(const megalith_output *token, mgl_text *out) {
  mgl_text_append_string(out, out->bytes > 0 ? ", " : "");
  mgl_text_format(out, "{\"token\": %d, \"logprob\": ", token->token);
  mgl_json_append_double(out, token->logprob);
  mgl_text_append_string(out, ", \"top\": [");
  for (uint32_t i = 0; i < token->top_count; i++) {
    mgl_text_format(out, "%s{\"token\": %d, \"logprob\": ", i == 0 ? "" : ", ",
                    token->top[i].token);
    mgl_json_append_double(out, token->top[i].logprob);
    mgl_text_append_string(out, "}");
  }
  mgl_text_append_string(out, "]}");
}

// Adds what an output brings to a stream.
static mgl_status add_output(run *r, stream *s, const megalith_output *output, mgl_error *err) {
  s->generated += output->token >= 0 ? 1 : 0;
  if (isnan(output->logprob) || r->is_json) {
    mgl_text_append(&s->text, output->text, output->text_bytes);
  }
  if (!isnan(output->logprob) && r->is_json) {
    append_logprobs_item(output, &s->logprobs);
  } else if (!isnan(output->logprob)) {  // lines take the place of the text
    MGL_TRY(append_logprobs_line(r, output, &s->text, err));
  }
  return mgl_text_check(&s->text, err);
}

static const char *finish_of(megalith_finish finish) {
  return finish == MEGALITH_FINISH_LENGTH      ? "length"
         : finish == MEGALITH_FINISH_CANCELLED ? "interrupted"
                                               : "stop";
}

static mgl_status accept_output(run *r, stream *s, const megalith_output *output, mgl_error *err) {
  MGL_TRY(add_output(r, s, output, err));
  if (output->finish == MEGALITH_FINISH_FAILED) {
    const megalith_result *result = megalith_request_result(s->request);
    return mgl_error_set(err, (mgl_status)result->status, "%s", result->error);
  }
  s->finished = output->finish != MEGALITH_FINISH_NONE;
  s->finish = finish_of(output->finish);
  return s == &r->streams[r->current] ? write_ready(r, err) : MGL_OK;
}

static void on_output(void *context, megalith_request *request, const megalith_output *output) {
  stream *s = context;
  run *r = s->run;
  const mgl_prompt *prompt = &r->prompts.items[s - r->streams];
  (void)request;
  if (r->status == MGL_OK) {
    r->status = accept_output(r, s, output, r->err);
  }
  r->done_tokens += s->finished ? prompt->max_new_tokens - s->generated + 1 : 1;
  mgl_progress_update(&r->progress, r->done_tokens, r->total_tokens);
  if (r->status != MGL_OK && r->engine != NULL) {
    megalith_engine_stop(r->engine);
  }
}

// Marks a prompt that cannot run, and says so.
static void give_up(run *r, size_t i) {
  const mgl_prompt *prompt = &r->prompts.items[i];
  stream *s = &r->streams[i];
  s->finished = true;
  s->finish = "error";
  r->failed_count++;
  (void)fprintf(stderr, "megalith: %s line %zu: %s\n", prompt->file, prompt->line, prompt->error);
}

static mgl_status submit(run *r, size_t i, mgl_error *err) {
  mgl_prompt *prompt = &r->prompts.items[i];
  stream *s = &r->streams[i];
  mgl_error reason = {0};
  if (prompt->error == NULL) {
    const megalith_request_options request = {
        .size = sizeof request,
        .tokens = prompt->tokens.ids,
        .token_count = prompt->tokens.count,
        .max_new_tokens = prompt->max_new_tokens,
        .sampling = &prompt->sampling,
        .ignore_model_stops = prompt->ignores_eos,
        .stop_texts = (const char *const *)prompt->stops,
        .stop_text_count = prompt->stop_count,
        .on_output = on_output,
        .context = s,
        .grammar = prompt->own_grammar != NULL ? prompt->own_grammar : r->prompts.grammar};
    megalith_error error = {0};
    s->run = r;
    mgl_status status = mgl_client_status(
        megalith_engine_submit(r->engine, &request, &s->request, &error), &error, &reason);
    if (status != MGL_OK) {
      MGL_TRY(mgl_prompt_fail(prompt, status, &reason, err));
    }
  }
  if (prompt->error != NULL) {
    give_up(r, i);
  }
  return MGL_OK;
}

// Sizes for all prompts that can run: no more memory than they can use together.
static void choose_sizes(run *r, megalith_engine_options *options) {
  const uint64_t page = options->page_tokens != 0 ? options->page_tokens : USUAL_PAGE_TOKENS;
  uint64_t pool_tokens = 0;
  uint32_t count = 0;
  options->context_tokens = 1;
  for (size_t i = 0; i < r->prompts.count; i++) {
    const mgl_prompt *prompt = &r->prompts.items[i];
    uint32_t tokens = (uint32_t)prompt->tokens.count + prompt->max_new_tokens;
    if (prompt->error == NULL) {
      count++;
      options->context_tokens = tokens > options->context_tokens ? tokens : options->context_tokens;
      pool_tokens += (tokens + page - 1) / page * page;
      r->total_tokens += tokens;
    }
  }
  options->requests = count;
  if (count <= USUAL_SEQUENCES) {
    options->sequences = count;
  }
  if (count <= USUAL_SEQUENCES && options->kv_tokens == 0 && options->memory_share == 0) {
    options->kv_tokens = pool_tokens;
  }
}

// Where no prompt can run, no weights are loaded; plain output is then nothing at all.
static mgl_status report_failures(run *r, mgl_error *err) {
  for (size_t i = 0; i < r->prompts.count; i++) {
    give_up(r, i);
  }
  return r->is_json ? write_ready(r, err) : MGL_OK;
}

static mgl_status allocate(run *r, mgl_error *err) {
  size_t count = r->prompts.count;
  r->streams = mgl_alloc_zeroed(count, sizeof *r->streams);
  return r->streams != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu prompts", count);
}

// After an iteration.
static void on_iteration(void *context, megalith_engine *engine,
                         const megalith_iteration *iteration) {
  run *r = context;
  if (r->status == MGL_OK) {
    r->status = mgl_statistics_add(&r->statistics, iteration, r->err);
  }
  r->done_tokens += iteration->prompt_tokens;
  mgl_progress_update(&r->progress, r->done_tokens, r->total_tokens);
  if (r->status != MGL_OK || mgl_interrupt_seen()) {
    megalith_engine_stop(engine);
  }
}

static mgl_status start(run *r, mgl_error *err) {
  megalith_engine_options *options = &r->chosen.options;
  choose_sizes(r, options);
  options->on_iteration = on_iteration;
  options->iteration_context = r;
  MGL_TRY(mgl_client_engine_create(&r->chosen, r->model, &r->engine, err));
  for (size_t i = 0; i < r->prompts.count; i++) {
    MGL_TRY(submit(r, i, err));
  }
  return MGL_OK;
}

static mgl_status run_engine(run *r, mgl_error *err) {
  megalith_error error = {0};
  return mgl_client_status(megalith_engine_run(r->engine, &error), &error, err);
}

// After an interrupt: what exists of every output, in order.
static mgl_status write_rest(run *r, mgl_error *err) {
  for (size_t i = r->current; i < r->prompts.count; i++) {
    if (!r->streams[i].finished) {
      megalith_request_cancel(r->streams[i].request);
    }
  }
  MGL_TRY(run_engine(r, err));
  return r->status;
}

static mgl_status generate(run *r, mgl_error *err) {
  r->err = err;
  r->shows_text = isatty(STDOUT_FILENO);
  mgl_interrupt_watch();
  mgl_progress_start(&r->progress, "generating", MGL_PROGRESS_COUNT);
  mgl_status status = write_ready(r, err);  // of prompts that could not run
  if (status == MGL_OK) {
    mgl_error reason = {0};  // r->err has what a callback found
    status = run_engine(r, &reason);
    status = r->status != MGL_OK ? r->status
             : status != MGL_OK  ? mgl_error_set(err, status, "%s", reason.text)
                                 : MGL_OK;
  }
  mgl_progress_finish(&r->progress);
  return status == MGL_OK && mgl_interrupt_seen() ? write_rest(r, err) : status;
}

// The text is out by now, so a ceiling that cannot be measured is no failure of the run. It is
// measured only now, since before it would delay the first token.
static void print_statistics(const run *r) {
  mgl_read_ceiling ceiling = {0};
  mgl_error no_ceiling = {0};
  mgl_status status = MGL_OK;
  for (int i = 0; i < CEILING_MEASUREMENTS && status == MGL_OK && r->statistics.step_count > 0;
       i++) {
    double rate = 0;
    megalith_error error = {0};
    status = mgl_client_status(megalith_engine_read_ceiling(r->engine, &rate, &error), &error,
                               &no_ceiling);
    if (status == MGL_OK) {
      mgl_read_ceiling_add(&ceiling, rate);
    }
  }
  uint64_t generated = 0;
  for (size_t i = 0; i < r->prompts.count; i++) {
    generated += r->streams[i].generated;
  }
  mgl_statistics_print(&r->statistics, generated, megalith_engine_describe(r->engine), &ceiling,
                       no_ceiling.text);
}

static void release(run *r) {
  mgl_output_file_close(&r->trace);
  r->status = r->status != MGL_OK ? r->status : MGL_ERR_INTERNAL;  // what ends now is not written
  megalith_engine_destroy(r->engine);
  for (size_t i = 0; r->streams != NULL && i < r->prompts.count; i++) {
    megalith_request_release(r->streams[i].request);
    mgl_text_free(&r->streams[i].text);
    mgl_text_free(&r->streams[i].logprobs);
  }
  mgl_free(r->streams);
  mgl_prompts_free(&r->prompts);
  mgl_statistics_free(&r->statistics);
  mgl_client_engine_free(&r->chosen);
  megalith_model_close(r->model);
}

// What the folder must have. With --jsonl a line may have messages, or token ids only.
static mgl_status open_model(run *r, mgl_error *err) {
  bool is_chat = mgl_arguments_has(r->arguments, "chat");
  if (!is_chat && mgl_arguments_has(r->arguments, "system")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "--system needs --chat: see megalith run --help");
  }
  if (!is_chat && !r->is_json &&
      (mgl_arguments_has(r->arguments, "tools") || mgl_arguments_has(r->arguments, "chat-var"))) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--tools and --chat-var need --chat, or --jsonl with messages: see "
                         "megalith run --help");
  }
  const megalith_model_options options = {.size = sizeof options,
                                          .weights = mgl_client_weights(r->arguments),
                                          .needs_tokenizer = !r->is_json,
                                          .needs_chat_template = is_chat};
  return mgl_client_open(r->arguments, &options, &r->model, NULL, err);
}

static mgl_status choose_sampling(run *r, mgl_error *err) {
  const megalith_model_info *info = megalith_model_describe(r->model);
  MGL_TRY(mgl_app_sampling_choose(r->arguments, info, &r->sampling, err));
  if (info->unapplied[0] != 0) {
    (void)fprintf(stderr, "megalith: note: not applied of the model's generation_config.json: %s\n",
                  info->unapplied);
  }
  return MGL_OK;
}

static mgl_status open_trace(run *r, mgl_error *err) {
  const char *path = mgl_arguments_text(r->arguments, "trace", NULL);
  if (path == NULL) {
    return MGL_OK;
  }
  return r->chosen.is_mega ? mgl_output_file_create(path, &r->trace, err)
                           : mgl_error_set(err, MGL_ERR_ARGUMENT,
                                           "--trace: expected --mode mega, since no other mode has "
                                           "tasks to record");
}

static megalith_status get_trace(const void *engine, char *text, size_t capacity, size_t *bytes,
                                 megalith_error *error) {
  return megalith_engine_trace((megalith_engine *)(uintptr_t)engine, text, capacity, bytes, error);
}

static mgl_status write_trace(run *r, mgl_error *err) {
  mgl_text trace = {0};
  if (r->trace.temporary_path == NULL) {
    return MGL_OK;
  }
  mgl_status status = mgl_client_append(get_trace, r->engine, &trace, err);
  if (status == MGL_OK) {
    status = mgl_output_file_write(&r->trace, trace.data, trace.bytes, err);
  }
  if (status == MGL_OK) {
    status = mgl_output_file_commit(&r->trace, err);
  }
  mgl_text_free(&trace);
  return status;
}

static bool can_run(const run *r) {
  for (size_t i = 0; i < r->prompts.count; i++) {
    if (r->prompts.items[i].error == NULL) {
      return true;
    }
  }
  return false;
}

static mgl_status run_prompts(run *r, mgl_error *err) {
  MGL_TRY(start(r, err));
  MGL_TRY(generate(r, err));
  mgl_status status = write_trace(r, err);
  print_statistics(r);
  return status;
}

static mgl_status run_command(const mgl_arguments *arguments, mgl_error *err) {
  run r = {.arguments = arguments,
           .trace = {.fd = -1},
           .is_json = mgl_arguments_has(arguments, "jsonl")};
  mgl_status status = MGL_OK;
  if ((status = open_model(&r, err)) == MGL_OK &&
      (status = mgl_client_engine_choose(arguments, &r.chosen, err)) == MGL_OK &&
      (status = open_trace(&r, err)) == MGL_OK && (status = choose_sampling(&r, err)) == MGL_OK &&
      (status = mgl_prompts_collect(arguments, r.model, &r.sampling.sampling, &r.prompts, err)) ==
          MGL_OK &&
      (status = allocate(&r, err)) == MGL_OK) {
    status = can_run(&r) ? run_prompts(&r, err) : report_failures(&r, err);
  }
  if (status == MGL_OK && r.failed_count > 0) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT, "%zu of %zu prompts could not run",
                           r.failed_count, r.prompts.count);
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
     .help = "prompts from a file or pipe, one a line; - is standard input"},
    {.name = "jsonl",
     .type = MGL_OPTION_FLAG,
     .help =
         "files, or standard input without any, have a JSON object a line, with prompt, "
         "messages or tokens, and id, max_tokens, stop, ignore_eos, tools, chat_template_kwargs, "
         "continue_final_message, response_format, structured_outputs and what samples, named as "
         "the options with _ for -; so has the output"},
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
    {.name = "stop",
     .value_name = "TEXT",
     .type = MGL_OPTION_TEXT,
     .repeatable = true,
     .help = "end before this text; up to 16 of them [none]"},
    {.name = "ignore-eos", .type = MGL_OPTION_FLAG, .help = "go on behind the model's stop tokens"},
    MGL_ROW_ITERATION_TOKENS,
    MGL_ROW_PARTITION,
    MGL_ROW_TASK_GRAPH,
    MGL_ROW_MODE,
    MGL_ROW_TRACE,
    MGL_ROW_TENSOR_PARALLEL,
    MGL_ROW_VOCAB_PARALLEL,
    MGL_ROW_REDUCE_SCATTER,
};

static const mgl_option_group *const groups[] = {&mgl_chat_options,
                                                 &mgl_sampling_options,
                                                 &mgl_grammar_options,
                                                 &mgl_memory_options,
                                                 &mgl_place_options,
                                                 &mgl_compile_options_group,
                                                 NULL};

const mgl_command mgl_command_run = {
    .name = "run",
    .summary = "generate text",
    .positional = "MODEL",
    .text_hint = "a prompt stands behind -p, in quotes",
    .description =
        "Continues each prompt and streams the text to standard output, statistics to standard\n"
        "error. Without a prompt, text on standard input is the prompt. Several outputs appear in\n"
        "the order of the prompts with an empty line between them. A line of a file that cannot "
        "be\n"
        "run is reported with its number; the others run all the same.",
    .examples =
        "megalith run -p \"Once upon a time\"\n"
        "megalith run -p \"Once\" -p \"Then\" -n 50 --temperature 0.8 --seed 7\n"
        "megalith run --jsonl -f questions.jsonl > answers.jsonl\n"
        "megalith run path/to/Qwen3-0.6B --chat -p \"Why is the sky blue?\"",
    .options = options,
    .takes_launchers = true,
    .option_count = sizeof options / sizeof *options,
    .groups = groups,
    .run = run_command,
};
