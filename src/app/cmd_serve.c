// megalith serve: an HTTP server with the OpenAI API, for one model.
//
// Everything else is in serve/; here are the options, the model, the engine and the signals.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/client.h"
#include "app/commands.h"
#include "app/compile_options.h"
#include "app/model_options.h"
#include "app/output.h"
#include "base/alloc.h"
#include "base/file.h"
#include "request/parameters.h"
#include "serve/server.h"
#include "serve/systemd.h"

enum {
  DEFAULT_PORT = 8000,
  MOST_PROMPT_LOGPROB_ROWS = 256,  // their logits take memory: of 150k tokens 600 KB each
};

typedef struct serving {
  const mgl_arguments *arguments;
  char *name;
  megalith_model *model;
  megalith_engine *engine;
  mgl_server *server;
} serving;

static mgl_status open_model(serving *s, mgl_error *err) {
  const megalith_model_options options = {.size = sizeof options,
                                          .weights = mgl_client_weights(s->arguments)};
  return mgl_client_open(s->arguments, &options, &s->model, &s->name, err);
}

static mgl_status create_engine(serving *s, mgl_error *err) {
  const mgl_arguments *a = s->arguments;
  mgl_client_engine chosen;
  mgl_status status = mgl_client_engine_choose(a, &chosen, err);
  if (status == MGL_OK) {
    megalith_engine_options *options = &chosen.options;
    options->sequences = (uint32_t)mgl_arguments_u64(a, "max-num-seqs", 0);
    options->context_tokens = (uint32_t)mgl_arguments_u64(a, "max-model-len", 0);
    options->background = true;
    options->prompt_logprobs = options->iteration_tokens <= MOST_PROMPT_LOGPROB_ROWS;
    status = mgl_client_engine_create(&chosen, s->model, &s->engine, err);
  }
  mgl_client_engine_free(&chosen);
  return status;
}

// The formats of the options, or what the chat template says.
static mgl_output_syntax choose_syntax(const serving *s) {
  static const struct {
    const char *name;
    mgl_tool_format format;
  } formats[] = {{"none", MGL_TOOLS_NONE},
                 {"hermes", MGL_TOOLS_HERMES},
                 {"llama3", MGL_TOOLS_LLAMA3},
                 {"llama3_json", MGL_TOOLS_LLAMA3},
                 {"mistral", MGL_TOOLS_MISTRAL}};
  const char *chat_template = megalith_model_describe(s->model)->chat_template;
  const char *tools = mgl_arguments_text(s->arguments, "tool-parser", "auto");
  const char *reasoning = mgl_arguments_text(s->arguments, "reasoning-parser", "auto");
  mgl_output_syntax syntax = {.tools = mgl_tool_format_of_template(chat_template),
                              .finds_thoughts = strcmp(reasoning, "auto") == 0
                                                    ? mgl_template_thinks(chat_template)
                                                    : strcmp(reasoning, "none") != 0};
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    syntax.tools = strcmp(tools, formats[i].name) == 0 ? formats[i].format : syntax.tools;
  }
  return syntax;
}

// --- starting again ------------------------------------------------------------------------------

// What a process finds that goes on for a server whose engine has failed: its id, and how many
// times there were. (The variable of another process, which started this one, says nothing.)
static const char again_variable[] = "MEGALITH_STARTED_AGAIN";

static uint32_t times_started_again(void) {
  const char *value = getenv(again_variable);
  long pid = 0;
  unsigned count = 0;
  return value != NULL && sscanf(value, "%ld %u", &pid, &count) == 2 && pid == (long)getpid()
             ? count
             : 0;
}

static mgl_status check_restarts(const mgl_arguments *a, mgl_error *err) {
  if (mgl_arguments_u64(a, "max-restarts", 0) > 0 && a->launcher.name != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected no --max-restarts under %s, whose processes the ranks are",
                         a->launcher.name);
  }
  return MGL_OK;
}

// Executes the program anew with its arguments, which takes the sockets at which clients wait. A
// new process image, not a new engine in this one: ranks are forked, which only a process without
// threads can do, and a driver of GPUs is of no use behind a fault. Returns only if that fails.
static mgl_status start_again(const int *sockets, uint32_t count, uint32_t times, mgl_error *err) {
  enum { MOST_BYTES = 4 << 20 };  // Linux gives words and variables 2 MiB where stacks have 8
  char *words = NULL;             // each ends in a 0
  size_t bytes = 0, argc = 0;
  char value[48];
  MGL_TRY(mgl_file_read_any("/proc/self/cmdline", MOST_BYTES, &words, &bytes, err));
  for (size_t at = 0; at < bytes; at += strlen(words + at) + 1) {
    argc++;
  }
  char **argv = mgl_alloc_zeroed(argc + 1, sizeof *argv);
  for (size_t i = 0, at = 0; argv != NULL && i < argc; i++) {
    argv[i] = words + at;
    at += strlen(words + at) + 1;
  }
  (void)snprintf(value, sizeof value, "%ld %u", (long)getpid(), times);
  if (argv != NULL && setenv(again_variable, value, 1) == 0 && mgl_systemd_pass(sockets, count)) {
    (void)execv("/proc/self/exe", argv);
  }
  int code = errno;
  mgl_free(argv);
  mgl_free(words);
  return mgl_error_set(err, MGL_ERR_IO, "the server cannot start again: %s", strerror(code));
}

static mgl_status create_server(serving *s, mgl_error *err) {
  const mgl_arguments *a = s->arguments;
  mgl_server_options options = {
      .model = s->model,
      .engine = s->engine,
      .model_name = mgl_arguments_text(a, "served-model-name", s->name),
      .host = mgl_arguments_text(a, "host", NULL),
      .port = (uint32_t)mgl_arguments_u64(a, "port", DEFAULT_PORT),
      .unix_path = mgl_arguments_text(a, "unix", NULL),
      .use_inherited = true,
      .api_keys_path = mgl_arguments_text(a, "api-keys", NULL),
      .tls_certificate_path = mgl_arguments_text(a, "tls-cert", NULL),
      .tls_key_path = mgl_arguments_text(a, "tls-key", NULL),
      .max_requests = (uint32_t)mgl_arguments_u64(a, "max-requests", 0),
      .max_connections = (uint32_t)mgl_arguments_u64(a, "max-connections", 0),
      .max_body_bytes = mgl_arguments_u64(a, "max-body-bytes", 0),
      .drain_seconds = (uint32_t)mgl_arguments_u64(a, "drain-seconds", 0),
      .syntax = choose_syntax(s),
      .logs_requests = mgl_arguments_has(a, "log-requests"),
      .ends_with_engine = times_started_again() < mgl_arguments_u64(a, "max-restarts", 0),
      .is_again = times_started_again() > 0,
      .logs_json = strcmp(mgl_arguments_text(a, "log-format", "text"), "json") == 0,
  };
  const char *address = mgl_arguments_has(a, "port") ? "port" : "host";
  if (options.unix_path != NULL && mgl_arguments_has(a, address)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected --unix or an address, found --unix and --%s", address);
  }
  if ((options.tls_certificate_path == NULL) != (options.tls_key_path == NULL)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected both --tls-cert and --tls-key or neither, found one");
  }
  return mgl_server_create(&options, &s->server, err);
}

// --- signals -------------------------------------------------------------------------------------

static mgl_server *served;  // while signals are caught

static void stop_served(int number) {
  (void)number;
  mgl_server_stop(served);
}

static void catch_signals(mgl_server *server) {
  struct sigaction action = {.sa_handler = stop_served};
  served = server;
  (void)sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  (void)sigaction(SIGTERM, &action, NULL);
  (void)sigaction(SIGINT, &action, NULL);
}

static void release_signals(void) {
  (void)signal(SIGTERM, SIG_DFL);
  (void)signal(SIGINT, SIG_DFL);
  served = NULL;
}

// -------------------------------------------------------------------------------------------------

static mgl_status print_parameters(mgl_error *err) {
  mgl_text out = {0};
  mgl_parameters_append_table(&out);
  mgl_status status = mgl_output_text(&out, err);
  mgl_text_free(&out);
  return status;
}

static mgl_status serve_command(const mgl_arguments *arguments, mgl_error *err) {
  serving s = {.arguments = arguments};
  mgl_status status = MGL_OK;
  int sockets[MGL_SERVER_MAX_SOCKETS];
  uint32_t socket_count = 0;
  bool goes_on = false;
  if (mgl_arguments_has(arguments, "parameters")) {
    return print_parameters(err);
  }
  MGL_TRY(check_restarts(arguments, err));
  mgl_systemd_keep_sockets();
  if ((status = open_model(&s, err)) == MGL_OK && (status = create_engine(&s, err)) == MGL_OK &&
      (status = create_server(&s, err)) == MGL_OK) {
    catch_signals(s.server);
    (void)fprintf(stderr, "megalith: serving %s at %s\n",
                  mgl_arguments_text(arguments, "served-model-name", s.name),
                  mgl_server_address(s.server));
    status = mgl_server_run(s.server, err);
    release_signals();
    goes_on = status == MGL_OK && mgl_server_take_sockets(s.server, sockets, &socket_count);
  }
  if (goes_on) {
    megalith_error error = {0};
    (void)megalith_engine_check(s.engine, &error);
    (void)fprintf(stderr, "megalith: %s; the server starts again (%u of %u)\n", error.text,
                  times_started_again() + 1,
                  (unsigned)mgl_arguments_u64(arguments, "max-restarts", 0));
  }
  megalith_engine_destroy(s.engine);
  mgl_server_destroy(s.server);
  megalith_model_close(s.model);
  mgl_free(s.name);
  return goes_on ? start_again(sockets, socket_count, times_started_again() + 1, err) : status;
}

static const char *log_format_choice(uint32_t index) {
  static const char *const names[] = {"text", "json"};
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}

// The latter names are vLLM's.
static const char *tool_choice(uint32_t index) {
  static const char *const names[] = {"auto", "none", "hermes", "llama3", "mistral", "llama3_json"};
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}

static const char *reasoning_choice(uint32_t index) {
  static const char *const names[] = {"auto", "none", "think", "qwen3", "deepseek_r1"};
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}

static const mgl_option options[] = {
    MGL_ROW_PARTITION,
    {.name = "host",
     .value_name = "HOST",
     .type = MGL_OPTION_TEXT,
     .help = "the address or name to listen at; 0.0.0.0 for all of IPv4 [127.0.0.1]"},
    {.name = "port",
     .short_name = 'p',
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = 65535,
     .help = "the port; 0: any that is free [8000]"},
    {.name = "unix",
     .alias = "uds",
     .value_name = "PATH",
     .type = MGL_OPTION_FILE,
     .help = "listen at a Unix socket there instead"},
    {.name = "api-keys",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "a key a line; all but /health, /ready and the pages then needs one of them"},
    {.name = "tls-cert",
     .alias = "ssl-certfile",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "certificates for TLS, in PEM, the server's first"},
    {.name = "tls-key",
     .alias = "ssl-keyfile",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "the key of the first one, in PEM"},
    {.name = "config",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "options from a JSON object or lines of YAML, \"port: 8000\""},
    {.name = "served-model-name",
     .value_name = "NAME",
     .type = MGL_OPTION_TEXT,
     .help = "the model's name in the API [the folder's name]"},
    {.name = "max-num-seqs",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MEGALITH_MAX_SEQUENCES,
     .help = "requests that run together at most [64, on GPUs 256]"},
    {.name = "max-model-len",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = INT32_MAX,
     .help = "tokens of a request at most, prompt and answer together [the model's context]"},
    {.name = "max-requests",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MEGALITH_MAX_REQUESTS / 2,
     .help = "requests that run or wait at most; more get status 429 [512]"},
    {.name = "max-connections",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = 1000000,
     .help = "open connections at most; further ones wait [16384]"},
    {.name = "max-body-bytes",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1024,
     .u64_max = 1 << 30,
     .help = "of a request [8388608]"},
    {.name = "drain-seconds",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = 86400,
     .help = "after SIGTERM, the time that requests have to end [30]"},
    {.name = "max-restarts",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = 1000000,
     .help = "times that the server starts again when its engine or a rank has failed [0]"},
    {.name = "reasoning-parser",
     .value_name = "NAME",
     .type = MGL_OPTION_CHOICE,
     .choices = reasoning_choice,
     .help = "think: <think>...</think> becomes reasoning_content [auto: by the chat template]"},
    {.name = "tool-parser",
     .alias = "tool-call-parser",
     .value_name = "NAME",
     .type = MGL_OPTION_CHOICE,
     .choices = tool_choice,
     .help = "how the model writes calls of tools [auto: by the chat template]"},
    {.name = "log-requests",
     .alias = "enable-log-requests",
     .type = MGL_OPTION_FLAG,
     .help = "a line on standard error for each request, without its text"},
    {.name = "log-format",
     .value_name = "FORMAT",
     .type = MGL_OPTION_CHOICE,
     .choices = log_format_choice,
     .help = "of these lines: text or json [text]"},
    {.name = "parameters",
     .type = MGL_OPTION_FLAG,
     .help = "print the table of the API's parameters, and end"},
    MGL_ROW_ITERATION_TOKENS,
    MGL_ROW_TENSOR_PARALLEL,
};

static const mgl_option_group *const groups[] = {&mgl_memory_options, &mgl_place_options,
                                                 &mgl_compile_options_group, NULL};

const mgl_command mgl_command_serve = {
    .name = "serve",
    .summary = "an HTTP server with the OpenAI API",
    .positional = "MODEL",
    .description =
        "Serves a model over HTTP: /v1/chat/completions, /v1/completions and more, as OpenAI's\n"
        "clients know them. docs/serve.md describes endpoints, parameters and limits. The first\n"
        "SIGTERM or Ctrl-C lets requests end, the second one cuts them off. Each option is also\n"
        "a variable of the environment, --max-requests MEGALITH_MAX_REQUESTS, and may stand in\n"
        "the file of --config; the command line counts first, the file last.",
    .examples =
        "megalith serve path/to/Qwen3-0.6B --port 8000\n"
        "curl localhost:8000/v1/completions -d '{\"prompt\": \"Once upon a time\"}'",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .takes_launchers = true,
    .takes_settings = true,
    .groups = groups,
    .run = serve_command,
};
