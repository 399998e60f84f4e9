#include "serve/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "serve/call_grammar.h"
#include "serve/reading.h"

// Two threads, so that nobody waits for the large body of somebody else: one takes small bodies
// only, the other one large bodies first, and with less right to the processor than the engine.
enum { LANE_SMALL, LANE_LARGE, LANES };
enum { LARGE_BODY_BYTES = 128 * 1024, LARGE_LANE_NICE = 10 };

typedef struct lane {
  mgl_jobs *jobs;
  pthread_t thread;
  mgl_job *first, **last;  // that wait to be prepared; under the lock
} lane;

struct mgl_jobs {
  mgl_jobs_options options;
  mgl_job_callbacks callbacks;
  int wake_fd;  // eventfd: there are notes
  struct event *wake;
  lane lanes[LANES];
  uint32_t thread_count;
  atomic_uint active;  // choices; a job counts as one until it is prepared
  // Under the lock:
  pthread_mutex_t lock;
  pthread_cond_t work;
  bool quit;
  mgl_note *first_note, **last_note;
};

// --- notes ---------------------------------------------------------------------------------------

// Under the lock. True: the I/O thread must be woken.
static bool leave_note(mgl_jobs *jobs, mgl_note *note) {
  bool was_empty = jobs->first_note == NULL;
  if (note->is_queued) {
    return false;
  }
  note->is_queued = true;
  note->next = NULL;
  *jobs->last_note = note;
  jobs->last_note = &note->next;
  return was_empty;
}

static void wake_io(int fd) {
  uint64_t one = 1;
  while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

// On a thread of the engine. Behind the unlock the choice may be gone.
static void on_output(void *context, megalith_request *request, const megalith_output *output) {
  mgl_choice *choice = context;
  mgl_jobs *jobs = choice->job->jobs;
  int fd = jobs->wake_fd;
  (void)pthread_mutex_lock(&jobs->lock);
  (void)request;  // nobody uses the choice's before the job is prepared, when all are there
  choice->ended = output->finish != MEGALITH_FINISH_NONE;
  bool wake = leave_note(jobs, &choice->note);
  (void)pthread_mutex_unlock(&jobs->lock);
  if (wake) {
    wake_io(fd);
  }
}

static mgl_note *take_note(mgl_jobs *jobs, bool *ended) {
  (void)pthread_mutex_lock(&jobs->lock);
  mgl_note *note = jobs->first_note;
  if (note != NULL) {
    jobs->first_note = note->next;
    jobs->last_note = jobs->first_note == NULL ? &jobs->first_note : jobs->last_note;
    note->is_queued = false;
    *ended = note->choice != NULL && note->choice->ended;
  }
  (void)pthread_mutex_unlock(&jobs->lock);
  return note;
}

// --- preparing, on threads of their own ----------------------------------------------------------

static mgl_status create_choices(mgl_job *job, mgl_error *err) {
  mgl_ask *ask = &job->ask;
  uint32_t count = (uint32_t)(ask->is_chat ? 1 : ask->prompt_count) * ask->n;
  job->choices = mgl_alloc_zeroed(count, sizeof *job->choices);
  if (job->choices == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u choices", count);
  }
  for (uint32_t i = 0; i < count; i++) {
    mgl_choice *choice = &job->choices[i];
    *choice = (mgl_choice){.job = job, .index = i};
    choice->note = (mgl_note){.choice = choice, .job = job};
  }
  uint32_t active = atomic_fetch_add(&job->jobs->active, count - 1) + count - 1;
  job->counted += count - 1;
  if (active > job->jobs->options.max_active) {
    job->is_overload = true;
    return mgl_error_set(err, MGL_ERR_LIMIT, "the server has as many requests as it takes");
  }
  return MGL_OK;
}

static mgl_status submit(mgl_job *job, mgl_error *err) {
  mgl_ask *ask = &job->ask;
  uint32_t count = (uint32_t)(ask->is_chat ? 1 : ask->prompt_count) * ask->n;
  if (!ask->has_seed) {
    randombytes_buf(&ask->sampling.seed, sizeof ask->sampling.seed);
  }
  MGL_TRY(create_choices(job, err));
  for (uint32_t i = 0; i < count; i++) {
    megalith_sampling sampling;
    megalith_request_options options;
    megalith_request *request = NULL;
    megalith_error error = {0};
    mgl_ask_options(ask, i, &sampling, &options);
    options.on_output = on_output;
    options.context = &job->choices[i];
    if (megalith_engine_submit(job->jobs->options.engine, &options, &request, &error) !=
        MEGALITH_OK) {
      for (uint32_t j = 0; j < i; j++) {
        megalith_request_cancel(job->choices[j].request);
      }
      return mgl_error_set(err, (mgl_status)error.status, "%s", error.text);
    }
    job->choices[i].request = request;
    job->choice_count = i + 1;
  }
  return MGL_OK;
}

// Whether the prompt has opened a thought: only its text tells.
static mgl_status find_thought(mgl_job *job, mgl_error *err) {
  char *prompt = NULL;
  size_t bytes = 0;
  mgl_status status = mgl_reading_render(job->jobs->options.model, &job->ask, &prompt, &bytes, err);
  job->ask.starts_in_thought = status == MGL_OK && mgl_prompt_is_in_thought(prompt, bytes);
  mgl_free(prompt);
  return status;
}

// What the parser of the model's output must know of a chat.
static mgl_status look_at_chat(mgl_job *job, mgl_error *err) {
  mgl_output_syntax syntax = job->jobs->options.syntax;
  bool marks_are_special = syntax.tools == MGL_TOOLS_LLAMA3 || syntax.tools == MGL_TOOLS_MISTRAL;
  if (job->endpoint != MGL_ENDPOINT_CHAT) {
    return MGL_OK;
  }
  job->ask.shows_special =
      job->ask.shows_special || (job->ask.tools_json != NULL && marks_are_special);
  if (syntax.finds_thoughts) {
    MGL_TRY(find_thought(job, err));
  }
  return job->ask.requires_call
             ? mgl_call_grammar_compile(job->jobs->options.model, syntax, &job->ask, err)
             : MGL_OK;
}

static mgl_status read_body(mgl_job *job) {
  const char *expected = job->jobs->options.model_name;
  MGL_TRY(mgl_ask_read(job->jobs->options.model, job->endpoint,
                       job->body.data == NULL ? "" : job->body.data, job->body.bytes, &job->ask,
                       &job->error));
  if (job->ask.model != NULL && strcmp(job->ask.model, expected) != 0) {
    job->is_unknown_model = true;
    return mgl_error_set(&job->error, MGL_ERR_ARGUMENT, "\"model\": expected %.100s, found %.100s",
                         expected, job->ask.model);
  }
  return job->only_reads ? MGL_OK : look_at_chat(job, &job->error);
}

static void prepare(mgl_job *job) {
  mgl_jobs *jobs = job->jobs;
  if (atomic_load(&job->is_abandoned)) {
    job->status = mgl_error_set(&job->error, MGL_ERR_ARGUMENT, "nobody waits for the answer");
    goto tell;
  }
  job->status = read_body(job);
  mgl_text_free(&job->body);
  if (job->status == MGL_OK) {
    job->status = job->only_reads ? mgl_reading_answer(jobs->options.model, jobs->options.engine,
                                                       &job->ask, &job->reading, &job->error)
                                  : submit(job, &job->error);
  }
tell:
  (void)pthread_mutex_lock(&jobs->lock);
  bool wake = leave_note(jobs, &job->note);
  (void)pthread_mutex_unlock(&jobs->lock);
  if (wake) {
    wake_io(jobs->wake_fd);
  }
}

static mgl_job *take_from(lane *from) {
  mgl_job *job = from->first;
  if (job != NULL) {
    from->first = job->next;
    from->last = from->first == NULL ? &from->first : from->last;
  }
  return job;
}

static void *run_lane(void *context) {
  lane *own = context;
  mgl_jobs *jobs = own->jobs;
  if (own == &jobs->lanes[LANE_LARGE]) {
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LARGE_LANE_NICE);  // of this thread alone
  }
  (void)pthread_mutex_lock(&jobs->lock);
  while (!jobs->quit) {
    mgl_job *job = take_from(own);
    if (job == NULL) {
      job = take_from(&jobs->lanes[LANE_SMALL]);
    }
    if (job == NULL) {
      (void)pthread_cond_wait(&jobs->work, &jobs->lock);
      continue;
    }
    (void)pthread_mutex_unlock(&jobs->lock);
    prepare(job);
    (void)pthread_mutex_lock(&jobs->lock);
  }
  (void)pthread_mutex_unlock(&jobs->lock);
  return NULL;
}

// --- on the I/O thread ---------------------------------------------------------------------------

static void end_job(mgl_job *job) {
  mgl_jobs *jobs = job->jobs;
  jobs->callbacks.ended(jobs->callbacks.context, job);
  for (uint32_t i = 0; i < job->choice_count; i++) {
    megalith_request_release(job->choices[i].request);
  }
  (void)atomic_fetch_sub(&jobs->active, job->counted);
  mgl_ask_free(&job->ask);
  mgl_free(job->choices);
  mgl_text_free(&job->body);
  mgl_text_free(&job->reading);
  mgl_free(job);
}

static void hand_on(mgl_choice *choice, bool ended) {
  mgl_job *job = choice->job;
  mgl_jobs *jobs = job->jobs;
  const megalith_output *output = NULL;
  if (!job->is_prepared || choice->is_over) {
    return;  // `prepared` looks at all choices
  }
  if (ended) {  // as soon as the call that left the note has returned, which is a moment
    (void)megalith_request_wait(choice->request, -1);
  }
  // A failed job has told its error; what it had submitted ends as cancelled, unseen.
  while (!job->is_abandoned && job->status == MGL_OK &&
         (output = megalith_request_next(choice->request, 0)) != NULL) {
    jobs->callbacks.output(jobs->callbacks.context, choice, output);
  }
  if (ended) {
    choice->is_over = true;
    job->open_choices--;
  }
}

static void on_prepared(mgl_job *job) {
  mgl_jobs *jobs = job->jobs;
  job->is_prepared = true;
  job->open_choices = job->choice_count;
  if (!job->is_abandoned) {
    jobs->callbacks.prepared(jobs->callbacks.context, job);
  } else if (job->status == MGL_OK) {
    for (uint32_t i = 0; i < job->choice_count; i++) {
      megalith_request_cancel(job->choices[i].request);
    }
  }
  for (uint32_t i = 0; i < job->choice_count; i++) {
    (void)pthread_mutex_lock(&jobs->lock);
    bool ended = job->choices[i].ended;
    (void)pthread_mutex_unlock(&jobs->lock);
    hand_on(&job->choices[i], ended);
  }
}

static void on_wake(evutil_socket_t fd, short what, void *context) {
  mgl_jobs *jobs = context;
  uint64_t count = 0;
  bool ended = false;
  mgl_note *note = NULL;
  (void)what;
  (void)!read(fd, &count, sizeof count);
  while ((note = take_note(jobs, &ended)) != NULL) {
    mgl_job *job = note->job;
    if (note->choice == NULL) {
      on_prepared(job);
    } else {
      hand_on(note->choice, ended);
    }
    // A choice's note may still wait when the choice is over: it was left between the look at
    // `ended` and now. Then the job goes with it.
    bool is_over = job->is_prepared && job->open_choices == 0;
    (void)pthread_mutex_lock(&jobs->lock);
    for (uint32_t i = 0; is_over && i < job->choice_count; i++) {
      is_over = !job->choices[i].note.is_queued;
    }
    (void)pthread_mutex_unlock(&jobs->lock);
    if (is_over) {
      end_job(job);
    }
  }
}

mgl_job *mgl_jobs_start(mgl_jobs *jobs, mgl_endpoint endpoint, mgl_text body, void *owner) {
  mgl_job *job = mgl_alloc_zeroed(1, sizeof *job);
  if (job == NULL) {
    mgl_text_free(&body);
    return NULL;
  }
  *job = (mgl_job){
      .jobs = jobs,
      .owner = owner,
      .endpoint = endpoint,
      .body = body,
      .only_reads = endpoint == MGL_ENDPOINT_TOKENIZE || endpoint == MGL_ENDPOINT_DETOKENIZE,
      .counted = 1};
  job->note.job = job;
  (void)atomic_fetch_add(&jobs->active, 1);
  (void)pthread_mutex_lock(&jobs->lock);
  lane *to = &jobs->lanes[body.bytes > LARGE_BODY_BYTES ? LANE_LARGE : LANE_SMALL];
  *to->last = job;
  to->last = &job->next;
  (void)pthread_cond_broadcast(&jobs->work);  // one of the threads may not take it
  (void)pthread_mutex_unlock(&jobs->lock);
  return job;
}

void mgl_job_abandon(mgl_job *job) {
  if (atomic_load(&job->is_abandoned)) {
    return;
  }
  atomic_store(&job->is_abandoned, true);
  for (uint32_t i = 0; job->is_prepared && job->status == MGL_OK && i < job->choice_count; i++) {
    if (!job->choices[i].is_over) {
      megalith_request_cancel(job->choices[i].request);
    }
  }
}

void mgl_job_pause(mgl_job *job, bool pause) {
  for (uint32_t i = 0; i < job->choice_count; i++) {
    if (!job->choices[i].is_over) {
      (pause ? megalith_request_pause : megalith_request_resume)(job->choices[i].request);
    }
  }
}

void mgl_choice_prompt(mgl_choice *choice, megalith_prompt *out) {
  megalith_request_prompt(choice->request, out);
}

const megalith_result *mgl_choice_result(mgl_choice *choice) {
  return choice->request == NULL ? NULL : megalith_request_result(choice->request);
}

bool mgl_jobs_has_room(const mgl_jobs *jobs) {
  return atomic_load(&jobs->active) < jobs->options.max_active;
}

uint32_t mgl_jobs_active(const mgl_jobs *jobs) {
  return atomic_load(&jobs->active);
}

// -------------------------------------------------------------------------------------------------

mgl_status mgl_jobs_create(struct event_base *base, const mgl_jobs_options *options,
                           const mgl_job_callbacks *callbacks, mgl_jobs **out, mgl_error *err) {
  mgl_jobs *jobs = mgl_alloc_zeroed(1, sizeof *jobs);
  *out = NULL;
  if (jobs == NULL || sodium_init() < 0) {
    mgl_free(jobs);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a server");
  }
  jobs->options = *options;
  jobs->callbacks = *callbacks;
  for (int i = 0; i < LANES; i++) {
    jobs->lanes[i] = (lane){.jobs = jobs};
    jobs->lanes[i].last = &jobs->lanes[i].first;
  }
  jobs->last_note = &jobs->first_note;
  (void)pthread_mutex_init(&jobs->lock, NULL);
  (void)pthread_cond_init(&jobs->work, NULL);
  jobs->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  jobs->wake = event_new(base, jobs->wake_fd, EV_READ | EV_PERSIST, on_wake, jobs);
  bool ready = jobs->wake_fd >= 0 && jobs->wake != NULL && event_add(jobs->wake, NULL) == 0;
  while (ready && jobs->thread_count < LANES) {
    lane *next = &jobs->lanes[jobs->thread_count];
    ready = pthread_create(&next->thread, NULL, run_lane, next) == 0;
    jobs->thread_count += ready ? 1 : 0;
  }
  if (!ready) {
    mgl_jobs_destroy(jobs);
    return mgl_error_set(err, MGL_ERR_IO, "cannot start the threads of a server");
  }
  *out = jobs;
  return MGL_OK;
}

void mgl_jobs_destroy(mgl_jobs *jobs) {
  if (jobs == NULL) {
    return;
  }
  (void)pthread_mutex_lock(&jobs->lock);
  jobs->quit = true;
  (void)pthread_cond_broadcast(&jobs->work);
  (void)pthread_mutex_unlock(&jobs->lock);
  for (uint32_t i = 0; i < jobs->thread_count; i++) {
    (void)pthread_join(jobs->lanes[i].thread, NULL);
  }
  if (jobs->wake != NULL) {
    event_free(jobs->wake);
  }
  if (jobs->wake_fd >= 0) {
    (void)close(jobs->wake_fd);
  }
  (void)pthread_cond_destroy(&jobs->work);
  (void)pthread_mutex_destroy(&jobs->lock);
  mgl_free(jobs);
}
