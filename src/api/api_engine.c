// The thread that computes: what it takes in between iterations, what it gives out, and when it
// stops. Creation and end are in api_create.c.
#include <string.h>

#include "api/api_parts.h"
#include "base/alloc.h"

// --- requests that the engine has ----------------------------------------------------------------

// The entry of that number, NULL if there is none or its request has left.
static active_request *find_active(const megalith_engine *engine, uint32_t number) {
  size_t low = 0;
  size_t high = engine->active_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (engine->active[middle].number < number) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  active_request *found = low < engine->active_count ? &engine->active[low] : NULL;
  return found != NULL && found->number == number && found->request != NULL ? found : NULL;
}

// Makes room for one more: first of what has left, if that is half of all.
static mgl_status reserve_active(megalith_engine *engine, mgl_error *err) {
  void *items = engine->active;
  if (engine->gone_count > engine->active_count / 2) {
    size_t kept = 0;
    for (size_t i = 0; i < engine->active_count; i++) {
      if (engine->active[i].request != NULL) {
        engine->active[kept++] = engine->active[i];
      }
    }
    engine->active_count = kept;
    engine->gone_count = 0;
  }
  MGL_TRY(mgl_grow(&items, &engine->active_capacity, engine->active_count + 1,
                   sizeof *engine->active, err));
  engine->active = items;
  return MGL_OK;
}

// Lets a request go that has finished and that the engine below names no more. One that is still in
// the inbox stays until it is taken out there. entry: NULL, it never entered.
static void leave(megalith_engine *engine, megalith_request *request, active_request *entry) {
  hub *h = engine->hub;
  bool is_last = false;
  (void)pthread_mutex_lock(&h->lock);
  bool has_left = mgl_life_leave(&request->life, &is_last);
  (void)pthread_mutex_unlock(&h->lock);
  if (has_left && entry != NULL) {
    entry->request = NULL;
    engine->gone_count++;
  }
  if (is_last) {
    mgl_api_destroy_request(request);
  }
}

static mgl_status enter(megalith_engine *engine, megalith_request *request, mgl_error *err) {
  MGL_TRY(reserve_active(engine, err));
  MGL_TRY(mgl_engine_submit(engine->engine, &request->asked, &request->number, err));
  engine->active[engine->active_count++] =
      (active_request){.number = request->number, .request = request};
  request->entered = true;
  if (request->prompt_logprobs == NULL) {
    mgl_token_list_free(&request->prompt);  // the engine below has its copy
    request->asked.prompt = NULL;
  }
  return MGL_OK;
}

// --- the inbox -----------------------------------------------------------------------------------

static megalith_request *take_from_inbox(hub *h, mgl_request_wishes *out) {
  (void)pthread_mutex_lock(&h->lock);
  megalith_request *request = h->inbox;
  if (request != NULL) {
    h->inbox = request->next_in_inbox;
    h->inbox_end = h->inbox == NULL ? &h->inbox : h->inbox_end;
    *out = mgl_life_take(&request->life);
  }
  (void)pthread_mutex_unlock(&h->lock);
  return request;
}

// Takes a finished request out of the engine, or out of the inbox only if it never entered.
static void let_go(megalith_engine *engine, megalith_request *request) {
  if (!request->entered) {
    leave(engine, request, NULL);
    return;
  }
  active_request *entry = find_active(engine, request->number);
  mgl_engine_cancel(engine->engine, request->number);
  if (entry != NULL) {
    leave(engine, request, entry);
  }
}

static void grant(megalith_engine *engine, megalith_request *request, mgl_request_wishes w) {
  mgl_error err = {0};
  if (w.cancelled || request->life.finished) {
    mgl_api_end_request(request, MEGALITH_FINISH_CANCELLED, NULL);
  } else if (!request->entered && enter(engine, request, &err) != MGL_OK) {
    mgl_api_end_request(request, MEGALITH_FINISH_FAILED, &err);
  } else if (w.shall_pause != request->is_paused) {
    (w.shall_pause ? mgl_engine_pause : mgl_engine_resume)(engine->engine, request->number);
    request->is_paused = w.shall_pause;
  }
  if (request->life.finished) {
    let_go(engine, request);
  }
}

static void note_statistics(megalith_engine *engine) {
  mgl_engine_statistics statistics;
  mgl_engine_get_statistics(engine->engine, &statistics);
  (void)pthread_mutex_lock(&engine->hub->lock);
  engine->hub->statistics = statistics;
  (void)pthread_mutex_unlock(&engine->hub->lock);
}

void mgl_api_before_plan(void *context) {
  megalith_engine *engine = context;
  mgl_request_wishes w;
  megalith_request *request = NULL;
  while ((request = take_from_inbox(engine->hub, &w)) != NULL) {
    grant(engine, request, w);
  }
  note_statistics(engine);
}

// With nothing to compute, no plan comes that would take back what the cancelled held.
static void settle(megalith_engine *engine) {
  if (!mgl_engine_has_work(engine->engine)) {
    mgl_engine_settle(engine->engine);
    note_statistics(engine);
  }
}

// --- running -------------------------------------------------------------------------------------

static bool shall_stop(hub *h) {
  (void)pthread_mutex_lock(&h->lock);
  bool stop = h->stop_run || h->quit;
  (void)pthread_mutex_unlock(&h->lock);
  return stop;
}

bool mgl_api_should_stop(void *context) {
  megalith_engine *engine = context;
  return shall_stop(engine->hub);
}

static bool on_token(void *context, const mgl_generated_token *token) {
  megalith_engine *engine = context;
  active_request *entry = find_active(engine, token->request);
  if (entry == NULL) {
    return true;
  }
  megalith_request *request = entry->request;
  if (mgl_api_accept_token(request, token)) {
    (void)pthread_mutex_lock(&engine->hub->lock);
    if (mgl_life_enqueue(&request->life)) {  // which takes it out of the engine below
      mgl_api_append_inbox(request);
    }
    (void)pthread_mutex_unlock(&engine->hub->lock);
  }
  if (token->finish != MGL_FINISH_NONE) {
    leave(engine, request, entry);
  }
  return true;
}

void mgl_api_on_failure(void *context, uint32_t number, const mgl_error *err) {
  megalith_engine *engine = context;
  active_request *entry = find_active(engine, number);
  if (entry != NULL) {
    mgl_api_end_request(entry->request, MEGALITH_FINISH_FAILED, err);
    leave(engine, entry->request, entry);
  }
}

// Calls on_iteration, and takes note that it runs, and where.
static void tell(megalith_engine *engine, const mgl_iteration *iteration) {
  hub *h = engine->hub;
  const megalith_iteration told = {.prompt_tokens = iteration->prompt_tokens,
                                   .generated = iteration->decode_tokens,
                                   .context_tokens = iteration->kv_tokens,
                                   .ns = iteration->ns};
  if (engine->on_iteration == NULL) {
    return;
  }
  (void)pthread_mutex_lock(&h->lock);
  h->tells = true;
  h->speaker = pthread_self();
  (void)pthread_mutex_unlock(&h->lock);
  engine->on_iteration(engine->iteration_context, engine, &told);
  (void)pthread_mutex_lock(&h->lock);
  h->tells = false;
  (void)pthread_mutex_unlock(&h->lock);
}

static bool on_iteration(void *context, const mgl_iteration *iteration) {
  megalith_engine *engine = context;
  tell(engine, iteration);
  return !shall_stop(engine->hub);
}

void mgl_api_end_all(megalith_engine *engine, megalith_finish finish, const mgl_error *err) {
  mgl_request_wishes w;
  megalith_request *request = NULL;
  for (size_t i = 0; i < engine->active_count; i++) {
    active_request *entry = &engine->active[i];
    if (entry->request != NULL) {
      mgl_api_end_request(entry->request, finish, err);
      mgl_engine_cancel(engine->engine, entry->number);
      leave(engine, entry->request, entry);
    }
  }
  while ((request = take_from_inbox(engine->hub, &w)) != NULL) {
    mgl_api_end_request(request, finish, err);
    let_go(engine, request);
  }
}

// From now on the engine can only be destroyed.
static mgl_status end_engine(megalith_engine *engine, mgl_status status, const mgl_error *err) {
  engine->watches_ranks = false;
  (void)pthread_mutex_lock(&engine->hub->lock);
  (void)mgl_api_report(status, err, &engine->hub->broken);
  (void)pthread_mutex_unlock(&engine->hub->lock);
  mgl_api_end_all(engine, MEGALITH_FINISH_FAILED, err);
  return status;
}

// A run has failed. Where a request is to blame, the engine below has thrown it out, and the others
// go on; everything else is the engine's end.
static mgl_status survive(megalith_engine *engine, mgl_status status, const mgl_error *err) {
  bool is_of_request = false;
  for (size_t i = 0; i < engine->active_count; i++) {
    active_request *entry = &engine->active[i];
    if (entry->request != NULL && !entry->request->life.finished &&
        !mgl_engine_knows(engine->engine, entry->number)) {
      is_of_request = true;
      mgl_api_end_request(entry->request, MEGALITH_FINISH_FAILED, err);
      leave(engine, entry->request, entry);
    }
  }
  if (is_of_request) {
    return MGL_OK;
  }
  return end_engine(engine, status, err);
}

void mgl_api_check_ranks(megalith_engine *engine) {
  mgl_error err = {0};
  const mgl_status status = mgl_runner_check(engine->runner, &err);
  if (status != MGL_OK) {
    (void)end_engine(engine, status, &err);
  }
}

static mgl_status check_broken(const megalith_engine *engine, mgl_error *err) {
  hub *h = engine->hub;
  (void)pthread_mutex_lock(&h->lock);
  megalith_error broken = h->broken;
  (void)pthread_mutex_unlock(&h->lock);
  return broken.status == MEGALITH_OK ? MGL_OK
                                      : mgl_error_set(err, (mgl_status)broken.status,
                                                      "the engine has failed: %s", broken.text);
}

mgl_status mgl_api_drive(megalith_engine *engine, mgl_error *err) {
  mgl_api_before_plan(engine);
  while (mgl_engine_has_work(engine->engine) && !shall_stop(engine->hub)) {
    mgl_status status = mgl_engine_run(engine->engine, on_token, on_iteration, engine, err);
    if (status != MGL_OK) {
      MGL_TRY(survive(engine, status, err));
    }
    mgl_api_before_plan(engine);
  }
  settle(engine);
  return MGL_OK;
}

static mgl_status drive_once(megalith_engine *engine, mgl_error *err) {
  mgl_api_before_plan(engine);
  if (mgl_engine_has_work(engine->engine)) {
    mgl_iteration iteration;
    mgl_status status = mgl_engine_step(engine->engine, on_token, engine, &iteration, err);
    if (status == MGL_OK) {
      tell(engine, &iteration);
    } else {
      MGL_TRY(survive(engine, status, err));
    }
    mgl_api_before_plan(engine);
  }
  settle(engine);
  return MGL_OK;
}

mgl_status mgl_api_may_drive(const megalith_engine *engine, mgl_error *err) {
  if (engine->background) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "this engine computes in the background: it cannot be stepped or run");
  }
  const hub *h = engine->hub;
  (void)pthread_mutex_lock(&engine->hub->lock);
  bool in_callback = mgl_api_is_in_callback(h);
  (void)pthread_mutex_unlock(&engine->hub->lock);
  if (in_callback) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "a callback cannot step or run the engine that called it");
  }
  if (pthread_equal(h->computer, pthread_self()) == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected to be stepped and run by the thread that created the engine, "
                         "found another: create it there, or set background");
  }
  return check_broken(engine, err);
}

megalith_status megalith_engine_step(megalith_engine *engine, megalith_error *error) {
  mgl_error err = {0};
  mgl_status status = mgl_api_may_drive(engine, &err);
  if (status == MGL_OK) {
    status = drive_once(engine, &err);
  }
  return mgl_api_report(status, &err, error);
}

megalith_status megalith_engine_run(megalith_engine *engine, megalith_error *error) {
  mgl_error err = {0};
  mgl_status status = mgl_api_may_drive(engine, &err);
  if (status == MGL_OK) {
    status = mgl_api_drive(engine, &err);
    (void)pthread_mutex_lock(&engine->hub->lock);
    engine->hub->stop_run = false;
    (void)pthread_mutex_unlock(&engine->hub->lock);
  }
  return mgl_api_report(status, &err, error);
}

megalith_status megalith_engine_check(const megalith_engine *engine, megalith_error *error) {
  mgl_error err = {0};
  return mgl_api_report(check_broken(engine, &err), &err, error);
}

void megalith_engine_stop(megalith_engine *engine) {
  if (!engine->background) {
    (void)pthread_mutex_lock(&engine->hub->lock);
    engine->hub->stop_run = true;
    (void)pthread_mutex_unlock(&engine->hub->lock);
  }
}

bool megalith_engine_has_work(const megalith_engine *engine) {
  (void)pthread_mutex_lock(&engine->hub->lock);
  const hub *h = engine->hub;
  bool is_last_call = h->speaking != NULL && h->speaking->life.finished;
  // The inbox, too: else who steps only while there is work never ends a paused request that was
  // cancelled.
  bool has_work =
      h->outstanding > h->held || h->inbox != NULL || (is_last_call && !mgl_api_is_in_callback(h));
  (void)pthread_mutex_unlock(&engine->hub->lock);
  return has_work;
}

megalith_status megalith_engine_get_statistics(const megalith_engine *engine,
                                               megalith_statistics *out, megalith_error *error) {
  mgl_error err = {0};
  megalith_statistics all;
  mgl_status status = mgl_api_read_options(out, sizeof all, "megalith_statistics", &all, &err);
  if (status != MGL_OK) {
    return mgl_api_report(status, &err, error);
  }
  size_t size = out->size;
  hub *h = engine->hub;
  (void)pthread_mutex_lock(&h->lock);
  const mgl_engine_statistics *s = &h->statistics;
  all = (megalith_statistics){.size = size,
                              .iterations = s->iterations,
                              .prompt_tokens = s->prompt_tokens,
                              .generated_tokens = s->decode_tokens,
                              .prefix_hit_tokens = s->prefix_hit_tokens,
                              .prefix_lookup_tokens = s->prefix_lookup_tokens,
                              .preemptions = s->preemptions,
                              .planning_ns = s->planning_ns,
                              .total_ns = s->total_ns,
                              .pages = s->pages,
                              .pages_used = s->pages_used,
                              .pages_used_most = s->pages_used_most,
                              .running = s->running,
                              .waiting = s->waiting,
                              .paused = h->held,
                              .expert_rows = s->experts.rows,
                              .expert_reads = s->experts.reads,
                              .expert_largest_over_mean = s->experts.largest_over_mean};
  (void)pthread_mutex_unlock(&h->lock);
  memcpy(out, &all, size < sizeof all ? size : sizeof all);
  return MEGALITH_OK;
}
