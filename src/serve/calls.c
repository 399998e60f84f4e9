// Calls: requests that the engine works on, from the body to the last byte of the answer.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "request/json_text.h"
#include "serve/server_parts.h"

enum {
  KEEP_ALIVE_SECONDS = 15,
  MOST_PENDING_BYTES = 1024 * 1024,  // of a stream whose client takes nothing, before it is paused
};

static double seconds_since(uint64_t start_ns) {
  return (double)(mgl_clock_ns() - start_ns) * 1e-9;
}

// --- lives ---------------------------------------------------------------------------------------

static void free_call(mgl_call *call) {
  mgl_server *server = call->server;
  if (call->next != NULL) {
    call->next->previous = call->previous;
  }
  *(call->previous != NULL ? &call->previous->next : &server->first) = call->next;
  mgl_answer_free(&call->answer);
  mgl_free(call->last_ns);
  mgl_free(call);
}

static void on_gone(void *context) {
  mgl_call *call = context;
  call->exchange = NULL;
  call->server->metrics.cancelled_by_clients++;
  mgl_job_abandon(call->job);
}

static void on_drained(void *context) {
  mgl_call *call = context;
  if (call->is_paused) {
    call->is_paused = false;
    mgl_job_pause(call->job, false);
  }
}

// The answer is complete, or the stream broke; what the engine still does is for nobody.
static void let_exchange_go(mgl_call *call) {
  mgl_exchange_set_watch(call->exchange, (mgl_exchange_watch){0});
  call->exchange = NULL;
}

static void write_events(mgl_call *call, const mgl_text *events) {
  mgl_exchange_write(call->exchange, events->data, events->bytes);
  call->written_ns = mgl_clock_ns();
  if (!call->is_paused && mgl_exchange_pending(call->exchange) > MOST_PENDING_BYTES) {
    call->is_paused = true;
    mgl_job_pause(call->job, true);
  }
}

static void fail_call(mgl_call *call, int status, const char *message, const char *parameter,
                      const char *code) {
  mgl_exchange *exchange = call->exchange;
  mgl_server *server = call->server;
  bool streams = call->has_answer && call->answer.ask->stream;
  let_exchange_go(call);
  if (!streams) {
    mgl_server_reply_error(server, exchange, status, message, parameter, code);
    return;
  }
  mgl_text event = {0};
  mgl_answer_append_error_event(&event, message);
  mgl_exchange_write(exchange, event.data, event.bytes);
  mgl_exchange_end(exchange);
  mgl_text_free(&event);
}

// A comment, which clients of event streams skip, so that nobody on the way gives up on a stream.
void mgl_server_keep_streams(mgl_server *server) {
  static const char comment[] = ": keep-alive\n\n";
  uint64_t now_ns = mgl_clock_ns();
  for (mgl_call *call = server->first; call != NULL; call = call->next) {
    if (call->exchange != NULL && call->has_answer && call->answer.ask->stream &&
        now_ns - call->written_ns >= (uint64_t)KEEP_ALIVE_SECONDS * 1000000000u) {
      mgl_exchange_write(call->exchange, comment, sizeof comment - 1);
      call->written_ns = now_ns;
    }
  }
}

// --- what jobs tell ------------------------------------------------------------------------------

static int status_of(mgl_status status) {
  switch (status) {
    case MGL_OK: return 200;
    case MGL_ERR_ARGUMENT:
    case MGL_ERR_FORMAT:
    case MGL_ERR_UNSUPPORTED:
    case MGL_ERR_LIMIT: return 400;
    case MGL_ERR_MEMORY: return 503;
    case MGL_ERR_IO:
    case MGL_ERR_INTERNAL: break;
  }
  return 500;
}

static void tell_failure(mgl_call *call, mgl_status status, const char *text,
                         const char *parameter) {
  mgl_server *server = call->server;
  server->engine_failed = server->engine_failed || status == MGL_ERR_INTERNAL;
  const bool is_gone = megalith_engine_check(server->options.engine, NULL) != MEGALITH_OK;
  fail_call(call, status == MGL_ERR_INTERNAL && is_gone ? 503 : status_of(status), text, parameter,
            NULL);
}

static void answer_reading(mgl_call *call) {
  mgl_exchange *exchange = call->exchange;
  let_exchange_go(call);
  mgl_server_reply(call->server, exchange, 200, "application/json", "", &call->job->reading);
}

static void begin_stream(mgl_call *call) {
  mgl_server *server = call->server;
  mgl_exchange_begin(call->exchange, 200, "text/event-stream; charset=utf-8",
                     "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
  server->metrics.requests[2]++;
  call->written_ns = mgl_clock_ns();
}

static void on_prepared(void *context, mgl_job *job) {
  mgl_server *server = context;
  mgl_call *call = job->owner;
  mgl_error err = {0};
  if (call->exchange == NULL) {
    return;
  }
  if (job->is_unknown_model) {
    fail_call(call, 404, job->error.text, "model", "model_not_found");
  } else if (job->is_overload) {
    server->metrics.overloads++;
    fail_call(call, 429, job->error.text, NULL, "overloaded");
  } else if (job->status != MGL_OK) {
    tell_failure(call, job->status, job->error.text, job->ask.blamed);
  } else if (job->only_reads) {
    answer_reading(call);
  } else {
    call->last_ns = mgl_alloc_zeroed(job->choice_count, sizeof *call->last_ns);
    call->has_answer =
        call->last_ns != NULL &&
        mgl_answer_init(server->options.model, server->options.model_name, &job->ask,
                        job->choice_count, server->options.syntax, &call->answer, &err) == MGL_OK;
    if (!call->has_answer) {
      tell_failure(call, MGL_ERR_MEMORY, "out of memory for an answer", NULL);
      mgl_job_abandon(job);
    } else if (job->ask.stream) {
      begin_stream(call);
    }
  }
}

static void measure(mgl_call *call, const mgl_choice *choice, const megalith_output *output) {
  mgl_metrics *m = &call->server->metrics;
  uint64_t *last_ns = &call->last_ns[choice->index];
  if (output->token >= 0) {
    m->generated_tokens++;
    if (*last_ns == 0) {
      mgl_histogram_add(&m->first_token, seconds_since(call->start_ns));
    } else {
      mgl_histogram_add(&m->inter_token, seconds_since(*last_ns));
    }
    *last_ns = mgl_clock_ns();
  }
  if (output->finish != MEGALITH_FINISH_NONE) {
    mgl_histogram_add(&m->end_to_end, seconds_since(call->start_ns));
  }
}

static void on_output(void *context, mgl_choice *choice, const megalith_output *output) {
  mgl_server *server = context;
  mgl_call *call = choice->job->owner;
  mgl_text *events = &server->scratch;
  if (call->exchange == NULL || !call->has_answer) {
    return;
  }
  if (output->token >= 0 && call->last_ns[choice->index] == 0 &&
      choice->job->ask.sampling.prompt_logprobs) {
    megalith_prompt prompt;
    mgl_choice_prompt(choice, &prompt);
    mgl_answer_add_prompt(&call->answer, choice->index, &prompt);
  }
  measure(call, choice, output);
  if (output->finish == MEGALITH_FINISH_FAILED || output->finish == MEGALITH_FINISH_CANCELLED) {
    const megalith_result *result = mgl_choice_result(choice);
    bool failed = output->finish == MEGALITH_FINISH_FAILED && result != NULL;
    bool is_gone = megalith_engine_check(server->options.engine, NULL) != MEGALITH_OK;
    fail_call(call, failed && !is_gone ? 500 : 503,
              failed ? result->error : "the server ended the request: it is shutting down", NULL,
              NULL);
    mgl_job_abandon(choice->job);
    return;
  }
  mgl_text_clear(events);
  mgl_answer_output(&call->answer, choice->index, output, events);
  if (events->failed) {
    fail_call(call, 503, "out of memory for an answer", NULL, NULL);
    mgl_job_abandon(choice->job);
  } else if (events->bytes > 0) {
    write_events(call, events);
  }
}

// Whether each choice has had its last output; where memory is out, outputs cannot be read.
static bool is_whole(const mgl_answer *answer) {
  for (uint32_t i = 0; i < answer->choice_count; i++) {
    if (answer->choices[i].finish == MEGALITH_FINISH_NONE) {
      return false;
    }
  }
  return true;
}

static void finish_answer(mgl_call *call) {
  mgl_text out = {0};
  mgl_exchange *exchange = call->exchange;
  mgl_answer_end(&call->answer, &out);
  if (out.failed || !is_whole(&call->answer)) {
    fail_call(call, 503, "out of memory for an answer", NULL, NULL);
    mgl_text_free(&out);
    return;
  }
  let_exchange_go(call);
  if (call->answer.ask->stream) {
    mgl_exchange_write(exchange, out.data, out.bytes);
    mgl_exchange_end(exchange);
  } else {
    mgl_server_reply(call->server, exchange, 200, "application/json", "", &out);
  }
  mgl_text_free(&out);
}

static void log_call(const mgl_call *call) {
  const mgl_server *server = call->server;
  const mgl_job *job = call->job;
  uint64_t tokens = 0;
  if (!server->options.logs_requests) {
    return;
  }
  for (uint32_t i = 0; call->has_answer && i < job->choice_count; i++) {
    tokens += call->answer.choices[i].token_count;
  }
  mgl_text line = {0};
  mgl_text id = {0};
  mgl_json_append_string(&id, call->answer.id, strlen(call->answer.id));
  mgl_text_format(
      &line,
      server->options.logs_json ? "{\"time\":%" PRId64
                                  ",\"path\":\"%s\",\"id\":%s,\"seconds\":%.4f,"
                                  "\"prompt_tokens\":%" PRIu64 ",\"generated_tokens\":%" PRIu64
                                  ",\"outcome\":\"%s\""
                                : "%" PRId64 " %s %s %.4f s, %" PRIu64 " + %" PRIu64 " tokens, %s",
      (int64_t)time(NULL), mgl_endpoint_path(job->endpoint), id.data == NULL ? "\"\"" : id.data,
      seconds_since(call->start_ns), call->answer.prompt_tokens, tokens,
      job->status != MGL_OK             ? "refused"
      : atomic_load(&job->is_abandoned) ? "cut off"
                                        : "done");
  if (job->ask.user != NULL) {
    mgl_text_append_string(&line, server->options.logs_json ? ",\"user\":" : ", user ");
    mgl_json_append_string(&line, job->ask.user, strlen(job->ask.user));
  }
  mgl_text_append_string(&line, server->options.logs_json ? "}\n" : "\n");
  (void)fwrite(line.data == NULL ? "" : line.data, 1, line.bytes, stderr);
  mgl_text_free(&line);
  mgl_text_free(&id);
}

static void on_ended(void *context, mgl_job *job) {
  mgl_server *server = context;
  mgl_call *call = job->owner;
  for (uint32_t i = 0; i < job->choice_count; i++) {
    const megalith_result *result = mgl_choice_result(&job->choices[i]);
    if (result != NULL) {
      server->metrics.finished[result->finish]++;
      mgl_histogram_add_tokens(&server->metrics.prompt_sizes, result->prompt_token_count);
      mgl_histogram_add_tokens(&server->metrics.answer_sizes, result->token_count);
      uint64_t prompt = i % job->ask.n == 0 ? result->prompt_token_count : 0;
      server->metrics.prompt_tokens += prompt;
      call->answer.prompt_tokens += prompt;
    }
  }
  if (call->exchange != NULL && call->has_answer) {
    finish_answer(call);
  }
  log_call(call);
  free_call(call);
}

const mgl_job_callbacks mgl_server_job_callbacks = {
    .prepared = on_prepared, .output = on_output, .ended = on_ended};

// -------------------------------------------------------------------------------------------------

void mgl_server_start_call(mgl_server *server, mgl_exchange *exchange, mgl_endpoint endpoint) {
  mgl_call *call = mgl_alloc_zeroed(1, sizeof *call);
  mgl_text body = {0};
  if (call == NULL) {
    mgl_server_reply_error(server, exchange, 503, "out of memory for a request", NULL, NULL);
    return;
  }
  *call = (mgl_call){
      .server = server, .exchange = exchange, .start_ns = mgl_clock_ns(), .next = server->first};
  if (call->next != NULL) {
    call->next->previous = call;
  }
  server->first = call;
  mgl_exchange_take_body(exchange, &body);
  call->job = mgl_jobs_start(server->jobs, endpoint, body, call);
  if (call->job == NULL) {
    free_call(call);
    mgl_server_reply_error(server, exchange, 503, "out of memory for a request", NULL, NULL);
    return;
  }
  mgl_exchange_set_watch(
      exchange, (mgl_exchange_watch){.context = call, .gone = on_gone, .drained = on_drained});
}
