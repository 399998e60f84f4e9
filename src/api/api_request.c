#include <string.h>
#include <time.h>

#include "api/api_parts.h"
#include "base/alloc.h"

// --- lives ---------------------------------------------------------------------------------------

static void destroy_request(megalith_request *request) {
  mgl_token_list_free(&request->prompt);
  mgl_text_output_destroy(request->output);
  (void)pthread_cond_destroy(&request->changed);
  mgl_free(request->tokens);
  mgl_free(request->text_ends);
  mgl_text_free(&request->text);
  mgl_text_free(&request->read_text);
  mgl_free(request);
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

void mgl_api_drop_request(megalith_request *request) {
  hub *h = request->hub;
  (void)pthread_mutex_lock(&h->lock);
  bool is_last = --request->references == 0;
  (void)pthread_mutex_unlock(&h->lock);
  if (is_last) {
    destroy_request(request);
    mgl_api_drop_hub(h);
  }
}

void mgl_api_append_inbox(megalith_request *request) {
  hub *h = request->hub;
  if (!request->in_inbox) {
    request->in_inbox = true;
    request->next_in_inbox = NULL;
    *h->inbox_end = request;
    h->inbox_end = &request->next_in_inbox;
    (void)pthread_cond_signal(&h->wake);
  }
}

// --- outputs, by the engine's thread -------------------------------------------------------------

static megalith_finish finish_of(mgl_finish_reason reason) {
  switch (reason) {
    case MGL_FINISH_NONE: return MEGALITH_FINISH_NONE;
    case MGL_FINISH_STOP: return MEGALITH_FINISH_STOP;
    case MGL_FINISH_LENGTH: return MEGALITH_FINISH_LENGTH;
  }
  return MEGALITH_FINISH_NONE;
}

// Makes what was appended to request->text since the last output an output, and tells everyone.
// Under the lock; gives it back for the callback.
static void publish(megalith_request *request, int32_t token, megalith_finish finish) {
  hub *h = request->hub;
  size_t begin = request->output_count == 0 ? 0 : request->text_ends[request->output_count - 1];
  request->text_ends[request->output_count++] = request->text.bytes;
  if (token >= 0) {
    request->tokens[request->token_count++] = token;
  }
  if (finish != MEGALITH_FINISH_NONE) {
    request->finish = finish;
    h->outstanding--;
    h->held -= request->shall_pause ? 1 : 0;
  }
  megalith_output output = {.token = token,
                            .finish = finish,
                            .text = request->text.bytes > begin ? request->text.data + begin : "",
                            .text_bytes = request->text.bytes - begin};
  (void)pthread_cond_broadcast(&request->changed);
  (void)pthread_mutex_unlock(&h->lock);
  if (request->on_output != NULL) {
    request->on_output(request->context, request, &output);
  }
}

bool mgl_api_accept_token(megalith_request *request, int32_t token, mgl_finish_reason reason) {
  mgl_error err = {0};
  bool stopped = false;
  mgl_status status = MGL_OK;
  megalith_finish finish = finish_of(reason);
  if (request->finish != MEGALITH_FINISH_NONE) {  // only this thread sets it
    return false;
  }
  (void)pthread_mutex_lock(&request->hub->lock);  // the text may move in memory
  if (reason != MGL_FINISH_STOP) {
    status = mgl_text_output_push(request->output, token, &request->text, &stopped, &err);
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
  if (request->finish != MEGALITH_FINISH_NONE) {
    return;
  }
  (void)pthread_mutex_lock(&request->hub->lock);
  if (finish == MEGALITH_FINISH_FAILED) {
    (void)mgl_api_report(err->status, err, &request->error);
  }
  // What waits for more is worth as much as the rest; without memory for it, it is lost.
  (void)mgl_text_output_finish(request->output, &request->text, &stopped, NULL);
  publish(request, -1, finish);
}

// --- wishes, by any thread -----------------------------------------------------------------------

void megalith_request_cancel(megalith_request *request) {
  (void)pthread_mutex_lock(&request->hub->lock);
  if (request->finish == MEGALITH_FINISH_NONE) {
    request->cancelled = true;
    mgl_api_append_inbox(request);
  }
  (void)pthread_mutex_unlock(&request->hub->lock);
}

static void set_pause(megalith_request *request, bool shall_pause) {
  hub *h = request->hub;
  (void)pthread_mutex_lock(&h->lock);
  if (request->finish == MEGALITH_FINISH_NONE && request->shall_pause != shall_pause) {
    request->shall_pause = shall_pause;
    h->held += shall_pause ? 1 : 0;
    h->held -= shall_pause ? 0 : 1;
    mgl_api_append_inbox(request);
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
  if (request != NULL) {
    megalith_request_cancel(request);
    mgl_api_drop_request(request);
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

// Waits under the lock while the request has not finished and has no more than `outputs`; that many
// are never there for SIZE_MAX.
static void wait_for(megalith_request *request, size_t outputs, int timeout_ms) {
  struct timespec until = timeout_ms > 0 ? deadline_of(timeout_ms) : (struct timespec){0};
  int code = timeout_ms == 0 ? 1 : 0;
  while (code == 0 && request->finish == MEGALITH_FINISH_NONE && request->output_count <= outputs) {
    code = timeout_ms < 0 ? pthread_cond_wait(&request->changed, &request->hub->lock)
                          : pthread_cond_timedwait(&request->changed, &request->hub->lock, &until);
  }
}

// Copies the next output for the reader. False: no memory for its text.
static bool read_output(megalith_request *request) {
  size_t i = request->read_count;
  size_t begin = i == 0 ? 0 : request->text_ends[i - 1];
  size_t bytes = request->text_ends[i] - begin;
  bool is_last = request->finish != MEGALITH_FINISH_NONE && i + 1 == request->output_count;
  mgl_text_clear(&request->read_text);
  if (bytes > 0) {
    mgl_text_append(&request->read_text, request->text.data + begin, bytes);
  }
  if (mgl_text_check(&request->read_text, NULL) != MGL_OK) {
    return false;
  }
  request->read = (megalith_output){
      .token = i < request->token_count ? request->tokens[i] : -1,
      .finish = is_last ? request->finish : MEGALITH_FINISH_NONE,
      .text = bytes > 0 ? request->read_text.data : "",
      .text_bytes = bytes,
  };
  request->read_count++;
  return true;
}

const megalith_output *megalith_request_next(megalith_request *request, int timeout_ms) {
  (void)pthread_mutex_lock(&request->hub->lock);
  wait_for(request, request->read_count, timeout_ms);
  bool is_there = request->read_count < request->output_count && read_output(request);
  (void)pthread_mutex_unlock(&request->hub->lock);
  return is_there ? &request->read : NULL;
}

bool megalith_request_wait(megalith_request *request, int timeout_ms) {
  (void)pthread_mutex_lock(&request->hub->lock);
  wait_for(request, SIZE_MAX, timeout_ms);
  bool finished = request->finish != MEGALITH_FINISH_NONE;
  (void)pthread_mutex_unlock(&request->hub->lock);
  return finished;
}

const megalith_result *megalith_request_result(megalith_request *request) {
  (void)pthread_mutex_lock(&request->hub->lock);
  bool finished = request->finish != MEGALITH_FINISH_NONE;
  if (finished) {  // nothing of it changes any more
    request->result = (megalith_result){.finish = request->finish,
                                        .tokens = request->tokens,
                                        .token_count = request->token_count,
                                        .prompt_token_count = request->asked.prompt_count,
                                        .text = request->text.bytes > 0 ? request->text.data : "",
                                        .text_bytes = request->text.bytes,
                                        .error = request->error.text,
                                        .status = request->error.status};
  }
  (void)pthread_mutex_unlock(&request->hub->lock);
  return finished ? &request->result : NULL;
}
