#include <math.h>
#include <string.h>
#include <time.h>

#include "api/api_parts.h"
#include "base/alloc.h"

// --- lives ---------------------------------------------------------------------------------------

void mgl_api_destroy_request(megalith_request *request) {
  hub *h = request->hub;
  mgl_token_list_free(&request->prompt);
  mgl_text_output_destroy(request->output);
  (void)pthread_cond_destroy(&request->changed);
  mgl_grammar_release(request->asked.grammar);
  mgl_free(request->biases);
  mgl_free(request->allowed);
  mgl_token_list_free(&request->bad_tokens);
  mgl_free(request->bad_ends);
  mgl_free(request->prompt_logprobs);
  mgl_free(request->prompt_top);
  mgl_free(request->prompt_told);
  mgl_free(request->tokens);
  mgl_free(request->logprobs);
  mgl_free(request->top);
  mgl_free(request->text_ends);
  mgl_text_free(&request->text);
  mgl_text_free(&request->read_text);
  mgl_free(request);
  if (h != NULL) {
    mgl_api_drop_hub(h);
  }
}

void mgl_api_drop_hub(hub *h) {
  (void)pthread_mutex_lock(&h->lock);
  bool is_last = --h->references == 0;
  (void)pthread_mutex_unlock(&h->lock);
  if (is_last) {
    (void)pthread_cond_destroy(&h->wake);
    (void)pthread_mutex_destroy(&h->lock);
    mgl_free(h);
  }
}

void mgl_api_append_inbox(megalith_request *request) {
  hub *h = request->hub;
  request->next_in_inbox = NULL;
  *h->inbox_end = request;
  h->inbox_end = &request->next_in_inbox;
  (void)pthread_cond_signal(&h->wake);
}

// --- outputs, by the engine's thread -------------------------------------------------------------

static megalith_finish finish_of(mgl_finish_reason reason) {
  switch (reason) {
    case MGL_FINISH_NONE: return MEGALITH_FINISH_NONE;
    case MGL_FINISH_COMPLETE:
    case MGL_FINISH_STOP: return MEGALITH_FINISH_STOP;
    case MGL_FINISH_LENGTH: return MEGALITH_FINISH_LENGTH;
  }
  return MEGALITH_FINISH_NONE;
}

// Behind the first token, what the engine found out about the prompt in the caller's form.
static void keep_prompt(megalith_request *request) {
  size_t count = request->prompt.count * request->asked.prompt_top_count;
  for (size_t i = request->asked.prompt_top_count; i < count; i++) {
    const mgl_token_logprob *from = &request->prompt_top[i];
    request->prompt_told[i] = (megalith_logprob){from->token, from->logprob};
  }
}

// Keeps a token and what is asked about it.
static void keep_token(megalith_request *request, const mgl_generated_token *token) {
  size_t i = request->token_count++;
  if (i == 0 && request->prompt_logprobs != NULL) {
    keep_prompt(request);
  }
  request->tokens[i] = token->token;
  if (request->logprobs != NULL) {
    request->logprobs[i] = token->logprob;
    for (uint32_t j = 0; j < request->top_count; j++) {
      request->top[i * request->top_count + j] =
          (megalith_logprob){token->top[j].token, token->top[j].logprob};
    }
  }
}

// Output i without its text. Under the lock, or on the engine's thread.
static megalith_output output_of(const megalith_request *request, size_t i) {
  megalith_output output = {.token = -1, .text = "", .logprob = NAN};
  if (i < request->token_count) {
    output.token = request->tokens[i];
    if (request->logprobs != NULL) {
      output.logprob = request->logprobs[i];
      output.top = request->top + i * request->top_count;
      output.top_count = request->top_count;
    }
  }
  return output;
}

// Once, when the last output is made: nothing of it changes any more, and many threads may read it.
static megalith_result result_of(const megalith_request *request) {
  return (megalith_result){.finish = request->finish,
                           .tokens = request->tokens,
                           .token_count = request->token_count,
                           .prompt_token_count = request->asked.prompt_count,
                           .text = request->text.bytes > 0 ? request->text.data : "",
                           .text_bytes = request->text.bytes,
                           .error = request->error.text,
                           .status = request->error.status,
                           .logprobs = request->logprobs,
                           .top = request->top,
                           .top_count = request->top_count};
}

// Calls on_output without the lock, and takes note that it runs, and where.
static void call(megalith_request *request, const megalith_output *output) {
  hub *h = request->hub;
  h->speaking = request;
  h->speaker = pthread_self();
  (void)pthread_mutex_unlock(&h->lock);
  request->on_output(request->context, request, output);
  (void)pthread_mutex_lock(&h->lock);
  h->speaking = NULL;
  if (mgl_life_called(&request->life)) {
    (void)pthread_cond_broadcast(&request->changed);
  }
}

// Makes what was appended to request->text since the last output an output, and tells everyone:
// of the last one, on_output first, so that nobody frees what it uses. token: NULL, none. Under the
// lock, which it gives back.
static void publish(megalith_request *request, const mgl_generated_token *token,
                    megalith_finish finish) {
  hub *h = request->hub;
  bool has_callback = request->on_output != NULL;
  size_t begin = request->output_count == 0 ? 0 : request->text_ends[request->output_count - 1];
  request->text_ends[request->output_count++] = request->text.bytes;
  if (token != NULL) {
    keep_token(request, token);
  }
  if (finish != MEGALITH_FINISH_NONE) {
    request->finish = finish;
    request->result = result_of(request);
    h->outstanding--;
    h->held -= request->life.shall_pause ? 1 : 0;
    mgl_life_finish(&request->life, has_callback);
  }
  (void)pthread_cond_broadcast(&request->changed);
  if (has_callback) {
    megalith_output output = output_of(request, request->output_count - 1);
    output.finish = finish;
    output.text = request->text.bytes > begin ? request->text.data + begin : "";
    output.text_bytes = request->text.bytes - begin;
    call(request, &output);
  }
  (void)pthread_mutex_unlock(&h->lock);
}

bool mgl_api_accept_token(megalith_request *request, const mgl_generated_token *token) {
  mgl_finish_reason reason = token->finish;
  mgl_error err = {0};
  bool stopped = false;
  mgl_status status = MGL_OK;
  megalith_finish finish = finish_of(reason);
  if (request->life.finished) {
    return false;
  }
  (void)pthread_mutex_lock(&request->hub->lock);  // the text may move in memory
  if (reason != MGL_FINISH_STOP) {
    status = mgl_text_output_push(request->output, token->token, &request->text, &stopped, &err);
  }
  if (status == MGL_OK && reason != MGL_FINISH_NONE && !stopped) {
    status = mgl_text_output_finish(request->output, &request->text, &stopped, &err);
  }
  if (status != MGL_OK) {
    (void)mgl_api_report(status, &err, &request->error);
    finish = MEGALITH_FINISH_FAILED;
  } else if (stopped) {
    finish = MEGALITH_FINISH_STOP;
  }
  publish(request, token, finish);
  return reason == MGL_FINISH_NONE && finish != MEGALITH_FINISH_NONE;
}

void mgl_api_end_request(megalith_request *request, megalith_finish finish, const mgl_error *err) {
  bool stopped = false;
  if (request->life.finished) {
    return;
  }
  (void)pthread_mutex_lock(&request->hub->lock);
  if (finish == MEGALITH_FINISH_FAILED) {
    (void)mgl_api_report(err->status, err, &request->error);
  }
  // What waits for more is worth as much as the rest; without memory for it, it is lost.
  (void)mgl_text_output_finish(request->output, &request->text, &stopped, NULL);
  publish(request, NULL, finish);
}

// --- wishes, by any thread -----------------------------------------------------------------------

void megalith_request_cancel(megalith_request *request) {
  (void)pthread_mutex_lock(&request->hub->lock);
  if (mgl_life_cancel(&request->life)) {
    mgl_api_append_inbox(request);
  }
  (void)pthread_mutex_unlock(&request->hub->lock);
}

static void set_pause(megalith_request *request, bool shall_pause) {
  hub *h = request->hub;
  bool changed = false;
  (void)pthread_mutex_lock(&h->lock);
  if (mgl_life_pause(&request->life, shall_pause, &changed)) {
    mgl_api_append_inbox(request);
  }
  if (changed) {
    h->held += shall_pause ? 1 : 0;
    h->held -= shall_pause ? 0 : 1;
  }
  (void)pthread_mutex_unlock(&h->lock);
}

void megalith_request_pause(megalith_request *request) {
  set_pause(request, true);
}

void megalith_request_resume(megalith_request *request) {
  set_pause(request, false);
}

void megalith_request_release(megalith_request *request) {
  if (request == NULL) {
    return;
  }
  hub *h = request->hub;
  (void)pthread_mutex_lock(&h->lock);
  if (mgl_life_cancel(&request->life)) {
    mgl_api_append_inbox(request);
  }
  bool is_last = mgl_life_drop(&request->life, MGL_HELD_BY_CALLER);
  (void)pthread_mutex_unlock(&h->lock);
  if (is_last) {
    mgl_api_destroy_request(request);
  }
}

// --- reading, by any thread ----------------------------------------------------------------------

// Until when to wait, from now.
static struct timespec deadline_of(int timeout_ms) {
  struct timespec until = {0};
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  return until;
}

// What follows is under the lock.

bool mgl_api_is_in_callback(const hub *h) {
  return (h->speaking != NULL || h->tells) && pthread_equal(h->speaker, pthread_self()) != 0;
}

// For all but its own callback, a request has finished when that has returned for the last time.
static bool is_over(const megalith_request *request) {
  const hub *h = request->hub;
  return request->life.over ||
         (request->life.finished && h->speaking == request && mgl_api_is_in_callback(h));
}

// Outputs that the calling thread may see.
static size_t seen_outputs(const megalith_request *request) {
  return request->output_count - (request->life.finished && !is_over(request) ? 1 : 0);
}

// On a thread that computes, nothing would come while it waits.
static bool may_wait(const hub *h) {
  bool computes = h->has_computer && pthread_equal(h->computer, pthread_self()) != 0;
  return !computes && !mgl_api_is_in_callback(h);
}

// Waits while the request is not over and has no more than `outputs`; that many are never there for
// SIZE_MAX.
static void wait_for(megalith_request *request, size_t outputs, int timeout_ms) {
  struct timespec until = timeout_ms > 0 ? deadline_of(timeout_ms) : (struct timespec){0};
  int code = timeout_ms == 0 || !may_wait(request->hub) ? 1 : 0;
  while (code == 0 && !is_over(request) && seen_outputs(request) <= outputs) {
    code = timeout_ms < 0 ? pthread_cond_wait(&request->changed, &request->hub->lock)
                          : pthread_cond_timedwait(&request->changed, &request->hub->lock, &until);
  }
}

// Copies the next output for the reader. False: no memory for its text.
static bool read_output(megalith_request *request) {
  size_t i = request->read_count;
  size_t begin = i == 0 ? 0 : request->text_ends[i - 1];
  size_t bytes = request->text_ends[i] - begin;
  bool is_last = request->life.finished && i + 1 == request->output_count;
  mgl_text_clear(&request->read_text);
  if (bytes > 0) {
    mgl_text_append(&request->read_text, request->text.data + begin, bytes);
  }
  if (mgl_text_check(&request->read_text, NULL) != MGL_OK) {
    return false;
  }
  request->read = output_of(request, i);
  request->read.finish = is_last ? request->finish : MEGALITH_FINISH_NONE;
  request->read.text = bytes > 0 ? request->read_text.data : "";
  request->read.text_bytes = bytes;
  request->read_count++;
  return true;
}

const megalith_output *megalith_request_next(megalith_request *request, int timeout_ms) {
  (void)pthread_mutex_lock(&request->hub->lock);
  wait_for(request, request->read_count, timeout_ms);
  bool is_there = request->read_count < seen_outputs(request) && read_output(request);
  (void)pthread_mutex_unlock(&request->hub->lock);
  return is_there ? &request->read : NULL;
}

bool megalith_request_wait(megalith_request *request, int timeout_ms) {
  (void)pthread_mutex_lock(&request->hub->lock);
  wait_for(request, SIZE_MAX, timeout_ms);
  bool finished = is_over(request);
  (void)pthread_mutex_unlock(&request->hub->lock);
  return finished;
}

void megalith_request_prompt(megalith_request *request, megalith_prompt *out) {
  (void)pthread_mutex_lock(&request->hub->lock);
  *out = (megalith_prompt){0};
  if (request->prompt_logprobs != NULL) {
    out->tokens = request->prompt.ids;
    out->token_count = request->prompt.count;
  }
  // The engine has filled them before the first token; what it wrote is seen through the lock.
  if (request->prompt_logprobs != NULL && request->token_count > 0) {
    out->logprobs = request->prompt_logprobs;
    out->top = request->prompt_told;
    out->top_count = request->asked.prompt_top_count;
  }
  (void)pthread_mutex_unlock(&request->hub->lock);
}

const megalith_result *megalith_request_result(megalith_request *request) {
  (void)pthread_mutex_lock(&request->hub->lock);
  bool finished = is_over(request);
  (void)pthread_mutex_unlock(&request->hub->lock);
  return finished ? &request->result : NULL;
}
