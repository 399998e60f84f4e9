// megalith bench serve: load for any server with the OpenAI API, and what became of it.
//
// The requests are those of `bench throughput` (random_work.h), or lines of a file. serve/load.h
// asks them; here are the options, the bodies and the figures. Where an arrival rate is given,
// requests come by a Poisson process whether the server keeps up or not; with --concurrency alone,
// each answer makes room for the next request.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/commands.h"
#include "app/human.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/random_work.h"
#include "app/statistics.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/engine.h"
#include "serve/load.h"

enum {
  DEFAULT_VOCAB = 256,
  DEFAULT_TIMEOUT = 600,
  MAX_FILE_BYTES = 256 * 1024 * 1024,
  STATUSES = 600,
};

typedef struct bench {
  const mgl_arguments *arguments;
  mgl_random_work work;
  mgl_load_request *requests;  // [work.count]
  int32_t *prompt;             // [work.longest_input]
  double *gaps_ms;             // [gap_count]
  size_t gap_count, gap_capacity;
  char *file;          // of --prompts
  const char **lines;  // [line_count] in it
  size_t line_count, line_capacity;
  json_t *extra;  // of --extra-body
  mgl_text headers;
  bool is_chat;
  mgl_load_counters counters;
  uint32_t outcomes[MGL_LOAD_OUTCOMES];
  uint32_t statuses[STATUSES];
} bench;

// --- bodies --------------------------------------------------------------------------------------

// Random words for chats, which have no token ids.
static void append_words(const bench *b, uint32_t index, mgl_text *out) {
  static const char *const words[] = {"the", "of",  "and", "one", "two",  "three", "what", "is",
                                      "to",  "was", "for", "as",  "with", "on",    "by",   "at"};
  for (uint32_t i = 0; i < b->work.items[index].input; i++) {
    mgl_text_format(out, i == 0 ? "%s" : " %s", words[b->prompt[i] & 15]);
  }
}

static void append_prompt(bench *b, uint32_t index, const char *line, mgl_text *out) {
  const char *open = b->is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":" : "\"prompt\":";
  mgl_text words = {0};
  if (line == NULL) {
    uint32_t vocab = (uint32_t)mgl_arguments_u64(b->arguments, "vocab-size", DEFAULT_VOCAB);
    mgl_random_work_prompt(&b->work, index, vocab, b->prompt);
  }
  mgl_text_append_string(out, open);
  if (line != NULL) {
    mgl_json_append_string(out, line, strlen(line));
  } else if (b->is_chat) {
    append_words(b, index, &words);
    mgl_json_append_string(out, words.data == NULL ? "" : words.data, words.bytes);
    out->failed = out->failed || words.failed;
  } else {
    for (uint32_t i = 0; i < b->work.items[index].input; i++) {
      mgl_text_format(out, i == 0 ? "[%d" : ",%d", b->prompt[i]);
    }
    mgl_text_append_string(out, "]");
  }
  mgl_text_append_string(out, b->is_chat ? "}]" : "");
  mgl_text_free(&words);
}

// The members of an object, without its braces, with a comma in front.
static mgl_status append_members(const json_t *object, mgl_text *out, mgl_error *err) {
  char *text = json_dumps(object, JSON_COMPACT);
  if (text == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a body");
  }
  size_t bytes = strlen(text);
  if (bytes > 2) {
    mgl_text_append_string(out, ",");
    mgl_text_append(out, text + 1, bytes - 2);
  }
  mgl_free(text);
  return MGL_OK;
}

static mgl_status append_body(void *context, uint32_t index, mgl_text *out, mgl_error *err) {
  bench *b = context;
  const mgl_arguments *a = b->arguments;
  const char *model = mgl_arguments_text(a, "model", NULL);
  const char *line = b->line_count == 0 ? NULL : b->lines[index % b->line_count];
  json_t *of_line = NULL;
  if (line != NULL && line[0] == '{') {
    MGL_TRY(mgl_json_parse(line, strlen(line), "--prompts", &of_line, err));
  }
  mgl_text_format(out, "{\"%s\":%" PRIu32 ",\"temperature\":%g,",
                  b->is_chat ? "max_completion_tokens" : "max_tokens", b->work.items[index].output,
                  mgl_arguments_real(a, "temperature", 0));
  mgl_text_append_string(out, mgl_arguments_has(a, "portable") ? "" : "\"ignore_eos\":true,");
  mgl_text_append_string(out, mgl_arguments_has(a, "no-stream")
                                  ? "\"stream\":false,"
                                  : "\"stream\":true,\"stream_options\":{\"include_usage\":true},");
  if (model != NULL) {
    mgl_text_append_string(out, "\"model\":");
    mgl_json_append_string(out, model, strlen(model));
    mgl_text_append_string(out, ",");
  }
  mgl_text_format(out, "\"seed\":%" PRIu32, index);
  mgl_status status = MGL_OK;
  if (of_line != NULL) {
    status = append_members(of_line, out, err);
  } else {
    mgl_text_append_string(out, ",");
    append_prompt(b, index, line, out);
  }
  if (status == MGL_OK && b->extra != NULL) {
    status = append_members(b->extra, out, err);
  }
  mgl_text_append_string(out, "}");
  json_decref(of_line);
  return status;
}

// --- the run -------------------------------------------------------------------------------------

static void on_gap(void *context, double ms) {
  bench *b = context;
  void *items = b->gaps_ms;
  if (mgl_grow(&items, &b->gap_capacity, b->gap_count + 1, sizeof *b->gaps_ms, NULL) == MGL_OK) {
    b->gaps_ms = items;
    b->gaps_ms[b->gap_count++] = ms;
  }
}

static bool interrupted(void *context) {
  (void)context;
  return mgl_interrupt_seen();
}

static mgl_status read_prompts(bench *b, mgl_error *err) {
  const char *path = mgl_arguments_text(b->arguments, "prompts", NULL);
  size_t bytes = 0;
  if (path == NULL) {
    return MGL_OK;
  }
  MGL_TRY(mgl_file_read_any(path, MAX_FILE_BYTES, &b->file, &bytes, err));
  for (char *line = b->file, *next = NULL; line != NULL; line = next) {
    next = strchr(line, '\n');
    if (next != NULL) {
      *next++ = 0;
    }
    if (line[0] == 0) {
      continue;
    }
    void *items = b->lines;
    MGL_TRY(mgl_grow(&items, &b->line_capacity, b->line_count + 1, sizeof *b->lines, err));
    b->lines = items;
    b->lines[b->line_count++] = line;
  }
  return b->line_count > 0 ? MGL_OK
                           : mgl_error_set(err, MGL_ERR_ARGUMENT,
                                           "%s: expected a prompt a line, found none", path);
}

static mgl_status prepare(bench *b, mgl_error *err) {
  const char *extra = mgl_arguments_text(b->arguments, "extra-body", NULL);
  const char *key = getenv("OPENAI_API_KEY");
  b->is_chat = mgl_arguments_has(b->arguments, "chat");
  MGL_TRY(mgl_random_work_make(b->arguments, MGL_MAX_CONTEXT, &b->work, err));
  MGL_TRY(read_prompts(b, err));
  if (extra != NULL) {
    MGL_TRY(mgl_json_parse(extra, strlen(extra), "--extra-body", &b->extra, err));
    if (!json_is_object(b->extra)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "--extra-body: expected a JSON object");
    }
  }
  if (key != NULL && key[0] != 0) {
    mgl_text_format(&b->headers, "Authorization: Bearer %s\r\n", key);
    MGL_TRY(mgl_text_check(&b->headers, err));
  }
  b->requests = mgl_alloc_zeroed(b->work.count, sizeof *b->requests);
  b->prompt = mgl_alloc_zeroed(b->work.longest_input, sizeof *b->prompt);
  if (b->requests == NULL || b->prompt == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %" PRIu32 " requests",
                         b->work.count);
  }
  for (uint32_t i = 0; i < b->work.count; i++) {
    b->requests[i].arrival_ns = b->work.items[i].arrival_ns;
  }
  return MGL_OK;
}

static mgl_status run(bench *b, mgl_error *err) {
  const mgl_arguments *a = b->arguments;
  mgl_load_options options = {
      .url = a->positional,
      .path = b->is_chat ? "/chat/completions" : "/completions",
      .headers = b->headers.data,
      .concurrency = (uint32_t)mgl_arguments_u64(a, "concurrency", 0),
      .timeout_seconds = (uint32_t)mgl_arguments_u64(a, "timeout", DEFAULT_TIMEOUT),
      .no_keep_alive = mgl_arguments_has(a, "no-keep-alive"),
      .idle_connections = (uint32_t)mgl_arguments_u64(a, "idle", 0),
      .slow_connections = (uint32_t)mgl_arguments_u64(a, "slow", 0),
      .context = b,
      .body = append_body,
      .gap = on_gap,
      .should_stop = interrupted,
  };
  mgl_interrupt_watch();
  return mgl_load_run(&options, b->requests, b->work.count, &b->counters, err);
}

// --- results -------------------------------------------------------------------------------------

typedef struct figures {
  double seconds;  // to the last answer
  uint64_t tokens;
  double first_ms[3], gap_ms[3], end_ms[3], refused_ms[3];  // percentiles 50, 90 and 99
} figures;

// Reorders the values.
static void percentiles(double *values, size_t count, double out[3]) {
  static const unsigned ranks[] = {50, 90, 99};
  for (size_t i = 0; i < 3; i++) {
    out[i] = mgl_percentile(values, count, ranks[i]);
  }
}

static mgl_status add_up(bench *b, figures *out, mgl_error *err) {
  double *times = mgl_alloc_zeroed(3 * (size_t)b->work.count, sizeof *times);
  size_t firsts = 0;
  size_t ends = 0;
  size_t refusals = 0;
  if (times == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the results");
  }
  double *first = times;
  double *end = times + b->work.count;
  double *refused = end + b->work.count;
  *out = (figures){0};
  for (uint32_t i = 0; i < b->work.count; i++) {
    const mgl_load_request *r = &b->requests[i];
    double took = (double)(r->end_ns - r->begin_ns) * 1e-6;
    b->outcomes[r->outcome]++;
    b->statuses[r->status >= 0 && r->status < STATUSES ? r->status : 0]++;
    out->seconds =
        (double)r->end_ns * 1e-9 > out->seconds ? (double)r->end_ns * 1e-9 : out->seconds;
    if (r->outcome == MGL_LOAD_OK) {
      out->tokens += r->tokens;
      end[ends++] = took;
      if (r->first_ns != 0) {
        first[firsts++] = (double)(r->first_ns - r->begin_ns) * 1e-6;
      }
    } else if (r->outcome == MGL_LOAD_REFUSED) {
      refused[refusals++] = took;
    }
  }
  percentiles(first, firsts, out->first_ms);
  percentiles(end, ends, out->end_ms);
  percentiles(refused, refusals, out->refused_ms);
  percentiles(b->gaps_ms, b->gap_count, out->gap_ms);
  mgl_free(times);
  return MGL_OK;
}

static double rate(double count, double seconds) {
  return seconds > 0 ? count / seconds : 0;
}

static void append_percentiles(const char *name, const double ms[3], mgl_text *out) {
  mgl_text_format(out, ", \"%s\": {\"median\": %.6g, \"p90\": %.6g, \"p99\": %.6g}", name, ms[0],
                  ms[1], ms[2]);
}

static void append_json(const bench *b, const figures *f, mgl_text *out) {
  mgl_text_format(out, "{\"requests\": %" PRIu32, b->work.count);
  for (mgl_load_outcome i = MGL_LOAD_OK; i < MGL_LOAD_OUTCOMES; i++) {
    mgl_text_format(out, ", \"%s\": %" PRIu32, mgl_load_outcome_name(i), b->outcomes[i]);
  }
  mgl_text_append_string(out, ", \"statuses\": {");
  const char *comma = "";
  for (int i = 100; i < STATUSES; i++) {
    if (b->statuses[i] > 0) {
      mgl_text_format(out, "%s\"%d\": %" PRIu32, comma, i, b->statuses[i]);
      comma = ", ";
    }
  }
  mgl_text_format(out,
                  "}, \"seconds\": %.6g, \"requests_per_s\": %.6g, \"output_tokens\": %" PRIu64
                  ", \"output_tokens_per_s\": %.6g",
                  f->seconds, rate(b->outcomes[MGL_LOAD_OK], f->seconds), f->tokens,
                  rate((double)f->tokens, f->seconds));
  append_percentiles("first_token_ms", f->first_ms, out);
  append_percentiles("inter_token_ms", f->gap_ms, out);
  append_percentiles("end_to_end_ms", f->end_ms, out);
  append_percentiles("refused_ms", f->refused_ms, out);
  mgl_text_format(out,
                  ", \"idle_open\": %" PRIu32 ", \"slow_open\": %" PRIu32
                  ", \"slow_closed\": %" PRIu32 "}\n",
                  b->counters.idle_open, b->counters.slow_open, b->counters.slow_closed);
}

static void append_times(const char *label, const double ms[3], mgl_text *out) {
  char cells[3][MGL_HUMAN_BYTES];
  for (int i = 0; i < 3; i++) {
    mgl_human_ms(ms[i], cells[i]);
  }
  mgl_text_format(out, "%-22s %s median, %s p90, %s p99\n", label, cells[0], cells[1], cells[2]);
}

static void append_table(const bench *b, const figures *f, mgl_text *out) {
  char cell[MGL_HUMAN_BYTES];
  mgl_text_format(out, "%s: %" PRIu32 " requests, %" PRIu32 " with a whole answer\n\n",
                  b->arguments->positional, b->work.count, b->outcomes[MGL_LOAD_OK]);
  for (mgl_load_outcome i = MGL_LOAD_REFUSED; i < MGL_LOAD_OUTCOMES; i++) {
    if (b->outcomes[i] > 0) {
      mgl_text_format(out, "%-22s %" PRIu32, mgl_load_outcome_name(i), b->outcomes[i]);
      for (int j = 100; i == MGL_LOAD_REFUSED && j < STATUSES; j++) {
        if (b->statuses[j] > 0 && j != 200) {
          mgl_text_format(out, ", %" PRIu32 " with status %d", b->statuses[j], j);
        }
      }
      mgl_text_append_string(out, "\n");
    }
  }
  mgl_human_ms(f->seconds * 1e3, cell);
  mgl_text_format(out, "%-22s %s\n", "time", cell);
  mgl_text_format(out, "%-22s %.6g\n", "requests/s", rate(b->outcomes[MGL_LOAD_OK], f->seconds));
  mgl_human_number(rate((double)f->tokens, f->seconds), cell);
  mgl_text_format(out, "%-22s %s output\n", "tokens/s", cell);
  append_times("time to first token", f->first_ms, out);
  append_times("inter-token latency", f->gap_ms, out);
  append_times("end to end", f->end_ms, out);
  if (b->outcomes[MGL_LOAD_REFUSED] > 0) {
    append_times("refused after", f->refused_ms, out);
  }
  if (b->counters.idle_open + b->counters.slow_open + b->counters.slow_closed > 0) {
    mgl_text_format(out,
                    "%-22s %" PRIu32 " idle and %" PRIu32 " slow ones open at the end, %" PRIu32
                    " slow ones closed\n",
                    "connections", b->counters.idle_open, b->counters.slow_open,
                    b->counters.slow_closed);
  }
}

static mgl_status report(bench *b, mgl_error *err) {
  figures f;
  mgl_text out = {0};
  MGL_TRY(add_up(b, &f, err));
  (mgl_arguments_has(b->arguments, "json") ? append_json : append_table)(b, &f, &out);
  mgl_status status = mgl_output_text(&out, err);
  mgl_text_free(&out);
  return status;
}

static mgl_status bench_serve_command(const mgl_arguments *arguments, mgl_error *err) {
  bench b = {.arguments = arguments};
  mgl_status status = arguments->positional != NULL
                          ? prepare(&b, err)
                          : mgl_error_set(err, MGL_ERR_ARGUMENT,
                                          "expected a URL, as in megalith bench serve "
                                          "http://localhost:8000/v1");
  if (status == MGL_OK && (status = run(&b, err)) == MGL_OK && !mgl_interrupt_seen()) {
    status = report(&b, err);
  }
  mgl_random_work_free(&b.work);
  mgl_free(b.requests);
  mgl_free(b.prompt);
  mgl_free(b.gaps_ms);
  mgl_free(b.file);
  mgl_free(b.lines);
  json_decref(b.extra);
  mgl_text_free(&b.headers);
  return status;
}

static const mgl_option options[] = {
    {.name = "concurrency",
     .alias = "max-concurrency",
     .short_name = 'c',
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = 65536,
     .help = "requests at once at most [all that have arrived]"},
    {.name = "chat",
     .type = MGL_OPTION_FLAG,
     .help = "ask /chat/completions; random prompts are words then [/completions]"},
    {.name = "prompts",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "a prompt a line, instead of random ones; a line that is a JSON object becomes part "
             "of the body"},
    {.name = "model",
     .value_name = "NAME",
     .type = MGL_OPTION_TEXT,
     .help = "the model to ask for [none is named]"},
    {.name = "vocab-size",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = INT32_MAX,
     .help = "random token ids are below it [256]"},
    {.name = "extra-body",
     .value_name = "JSON",
     .type = MGL_OPTION_TEXT,
     .help = "an object whose members join each body"},
    {.name = "portable",
     .type = MGL_OPTION_FLAG,
     .help =
         "ask nothing that OpenAI's own API does not have: answers may end before their length"},
    {.name = "no-stream",
     .type = MGL_OPTION_FLAG,
     .help = "whole answers, which have no time to the first token"},
    {.name = "no-keep-alive",
     .type = MGL_OPTION_FLAG,
     .help = "a connection of its own for each request"},
    {.name = "timeout",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = 86400,
     .help = "seconds without a byte after which a request has failed [600]"},
    {.name = "idle",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = 65536,
     .help = "connections beside the requests that say nothing [0]"},
    {.name = "slow",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = 65536,
     .help = "connections beside the requests that send a header's byte each second [0]"},
};

static const mgl_option_group *const groups[] = {&mgl_work_options, NULL};

const mgl_command mgl_command_bench_serve = {
    .name = "bench serve",
    .summary = "load for a server with the OpenAI API",
    .positional = "URL",
    .takes_file = true,
    .description =
        "Asks any server that speaks the OpenAI API, http://HOST:PORT/v1 or unix:PATH, and tells\n"
        "what became of the requests, errors by their kind: \"refused\" (another status than\n"
        "200), \"connect\", \"closed\" before the answer's end, \"broken\" (a stream without its\n"
        "end), \"timeout\", \"malformed\". Times count from the moment a request is asked,\n"
        "connecting included. Requests and lengths are those of bench throughput with the same\n"
        "--seed and --vocab-size. An API key is taken from OPENAI_API_KEY.",
    .examples =
        "megalith bench serve http://localhost:8000/v1 --concurrency 16 --input 64 --output 128\n"
        "megalith bench serve http://localhost:8000/v1 --arrival-rate 20 --chat --json\n"
        "megalith bench serve http://localhost:8000/v1 -n 100 --idle 1000 --slow 100",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .groups = groups,
    .run = bench_serve_command,
};
