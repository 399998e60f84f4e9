// A storm on the public API: 16 threads submit, cancel (often twice), pause, resume, poll, wait and
// release at random, on two engines of one model, which are destroyed and created anew meanwhile;
// callbacks call back in; some threads fork. What megalith.h allows, and nothing else: a handle is
// released when its last user has done with it, and an engine's handle is used under a lock.
//
// Checked: every request gets one last call, which waits come after; answers are right; cancelled
// requests end; nothing is left. What is wrong besides, the sanitizers find: this takes 60 seconds
// under the thread sanitizer, 20 under the other (600 with MGL_TEST_LONG), 5 otherwise.
// MGL_TEST_SECONDS and MGL_TEST_SEED choose.
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "unit/api/api_bed.h"

#if defined(__SANITIZE_ADDRESS__)
enum { USUAL_SECONDS = 20, LONG_SECONDS = 600 };
#elif defined(MGL_TEST_SANITIZED)
enum { USUAL_SECONDS = 60, LONG_SECONDS = 600 };
#else
enum { USUAL_SECONDS = 5, LONG_SECONDS = 60 };
#endif

enum { CLIENTS = 16, ENGINES = 2, SLOTS = 40, PATIENCE_MS = 120000 };

// What the storm did, printed at its end.
typedef enum figure {
  SUBMITTED,
  NESTED,  // submitted by callbacks
  CALLS,   // of on_output
  LAST_CALLS,
  CANCELS,
  PAUSES,
  RESUMES,
  OUTPUTS_READ,
  WAITS_OVER,  // that saw the end
  RELEASES,
  RELEASED_IN_CALLBACK,
  ANSWERS,  // that ran to their end, and were compared
  ENGINES_DESTROYED,
  RUNS,     // of the engine that a thread drives
  REFUSED,  // submissions and steps that must be refused
  FORKS,
  FIGURES,
} figure;

static const char *const figure_names[FIGURES] = {"submitted",
                                                  "by callbacks",
                                                  "callbacks",
                                                  "last callbacks",
                                                  "cancels",
                                                  "pauses",
                                                  "resumes",
                                                  "outputs read",
                                                  "waits to the end",
                                                  "releases",
                                                  "releases in callbacks",
                                                  "answers compared",
                                                  "engines destroyed",
                                                  "runs",
                                                  "refused",
                                                  "forks"};

// A request with all who use it; the last user releases it.
typedef struct ticket {
  megalith_request *request;
  struct listener *listener;  // NULL: no callback
  uint32_t question;
  atomic_uint users;
  atomic_flag reading;
} ticket;

// What a callback gets. Freed by the last of: the request's last call, and its ticket's last user.
typedef struct listener {
  megalith_engine *engine;
  uint64_t random;
  atomic_uint owners;
  bool may_pause;
  bool releases;        // the request's handle, at the first call
  uint32_t last_calls;  // not atomic: who has waited must see it
} listener;

typedef struct slot {
  pthread_mutex_t lock;
  ticket *ticket;
} slot;

// Engine 0 computes in the background; a thread of ours drives engine 1.
typedef struct engine_place {
  pthread_rwlock_t lock;  // read: the handle is used; write: destroyed
  megalith_engine *engine;
} engine_place;

static atomic_ullong figures[FIGURES];
static slot slots[SLOTS];
static engine_place places[ENGINES];
static atomic_bool ends, driver_ends;
static sem_t driver_is_ready;

typedef struct client {
  pthread_t thread;
  uint64_t random;
} client;

static void count(figure f) {
  atomic_fetch_add_explicit(&figures[f], 1, memory_order_relaxed);
}

// Not cmocka's: this may be on any thread.
static void must(bool holds, const char *what) {
  if (!holds) {
    (void)fprintf(stderr, "storm: %s\n", what);
    abort();
  }
}

// xorshift64*; 0 to below.
static uint32_t draw(uint64_t *random, uint32_t below) {
  *random ^= *random >> 12;
  *random ^= *random << 25;
  *random ^= *random >> 27;
  return (uint32_t)((*random * 0x2545f4914f6cdd1du) >> 33) % below;
}

// --- requests and their users --------------------------------------------------------------------

static void drop_listener(listener *l) {
  if (atomic_fetch_sub_explicit(&l->owners, 1, memory_order_acq_rel) == 1) {
    mgl_free(l);
  }
}

static void check_result(const ticket *t) {
  const megalith_result *result = megalith_request_result(t->request);
  must(result != NULL, "a request is over and has no result");
  must(result->finish != MEGALITH_FINISH_FAILED, result->error);
  if (t->listener != NULL) {
    must(t->listener->last_calls == 1, "a wait came before the last callback, or there were two");
  }
  if (result->finish == MEGALITH_FINISH_STOP) {
    check_answer(t->request, t->question);
    count(ANSWERS);
  } else {
    nothing_more_than_the_answer(t->request, t->question);
  }
}

static void drop_ticket(ticket *t, uint64_t *random) {
  if (atomic_fetch_sub_explicit(&t->users, 1, memory_order_acq_rel) != 1) {
    return;
  }
  if (draw(random, 2) == 0) {
    megalith_request_cancel(t->request);
    must(megalith_request_wait(t->request, PATIENCE_MS), "a cancelled request does not end");
    count(CANCELS);
    count(WAITS_OVER);
    check_result(t);
  }
  megalith_request_release(t->request);
  count(RELEASES);
  if (t->listener != NULL) {
    drop_listener(t->listener);
  }
  mgl_free(t);
}

// NULL: the slot is empty, or a callback would have to wait for it.
static ticket *use_slot(slot *s, bool in_callback) {
  if (in_callback) {
    if (pthread_mutex_trylock(&s->lock) != 0) {
      return NULL;
    }
  } else {
    (void)pthread_mutex_lock(&s->lock);
  }
  ticket *t = s->ticket;
  if (t != NULL) {
    (void)atomic_fetch_add_explicit(&t->users, 1, memory_order_relaxed);
  }
  (void)pthread_mutex_unlock(&s->lock);
  return t;
}

// --- callbacks -----------------------------------------------------------------------------------

static void on_output(void *context, megalith_request *request, const megalith_output *output);

static listener *create_listener(megalith_engine *engine, uint64_t *random, uint32_t owners) {
  listener *l = mgl_alloc_zeroed(1, sizeof *l);
  must(l != NULL, "out of memory");
  l->engine = engine;
  l->random = (uint64_t)draw(random, 1u << 30) * 2 + 1;
  atomic_init(&l->owners, owners);
  return l;
}

// A request that nobody has a ticket of. False: refused.
static bool submit_untracked(megalith_engine *engine, uint64_t *random) {
  listener *l = create_listener(engine, random, 1);
  char question[MAX_QUESTION];
  char answer[MAX_QUESTION];
  ask(draw(random, 50), question, answer);
  l->releases = draw(random, 2) == 0;
  megalith_request *request = NULL;
  megalith_request_options options = {.size = sizeof options,
                                      .text = question,
                                      .max_new_tokens = 1 + draw(random, 8),
                                      .on_output = on_output,
                                      .context = l};
  bool releases = l->releases;  // *l may be gone after the submission
  if (megalith_engine_submit(engine, &options, releases ? &request : NULL, NULL) != MEGALITH_OK) {
    mgl_free(l);
    return false;
  }
  count(SUBMITTED);
  return true;
}

// Of another request, of either engine.
static void meddle(listener *l) {
  ticket *t = use_slot(&slots[draw(&l->random, SLOTS)], true);
  if (t == NULL) {
    return;
  }
  bool is_own = t->listener == l;  // which is over for this callback before its last call returns
  switch (draw(&l->random, is_own ? 3 : 4)) {
    case 0: megalith_request_cancel(t->request); break;
    case 1: megalith_request_pause(t->request); break;
    case 2: megalith_request_resume(t->request); break;
    default:
      if (megalith_request_wait(t->request, 0)) {
        check_result(t);
      }
      break;
  }
  // Not by drop_ticket, which may wait.
  if (atomic_fetch_sub_explicit(&t->users, 1, memory_order_acq_rel) == 1) {
    megalith_request_release(t->request);
    count(RELEASES);
    if (t->listener != NULL) {
      drop_listener(t->listener);
    }
    mgl_free(t);
  }
}

static void call_back(listener *l, megalith_request *request, bool is_last) {
  megalith_statistics statistics = {.size = sizeof statistics};
  switch (draw(&l->random, 24)) {
    case 0: megalith_request_cancel(request); break;
    case 1:
      if (l->may_pause) {
        megalith_request_pause(request);
      }
      break;
    case 2: megalith_request_resume(request); break;
    case 3:
      if (draw(&l->random, 4) == 0) {
        bool is_submitted = submit_untracked(l->engine, &l->random);
        count(is_submitted ? NESTED : REFUSED);
      }
      break;
    case 4: meddle(l); break;
    case 5:
      must(megalith_engine_step(l->engine, NULL) == MEGALITH_ERROR_ARGUMENT, "a callback steps");
      count(REFUSED);
      break;
    case 6:
      must(megalith_engine_get_statistics(l->engine, &statistics, NULL) == MEGALITH_OK, "counts");
      (void)megalith_engine_has_work(l->engine);
      break;
    case 7: must(megalith_request_wait(request, -1) == is_last, "a callback waits"); break;
    default: break;
  }
}

static void on_output(void *context, megalith_request *request, const megalith_output *output) {
  listener *l = context;
  bool is_last = output->finish != MEGALITH_FINISH_NONE;
  count(CALLS);
  must(l->last_calls == 0, "on_output is called after its last call");
  if (l->releases) {
    l->releases = false;
    megalith_request_release(request);
    count(RELEASED_IN_CALLBACK);
  }
  call_back(l, request, is_last);
  if (is_last) {
    l->last_calls++;
    count(LAST_CALLS);
    drop_listener(l);
  }
}

// --- clients -------------------------------------------------------------------------------------

static ticket *submit_ticket(uint64_t *random) {
  engine_place *place = &places[draw(random, ENGINES)];
  ticket *t = mgl_alloc_zeroed(1, sizeof *t);
  must(t != NULL, "out of memory");
  atomic_init(&t->users, 1);
  t->question = draw(random, 50);
  (void)pthread_rwlock_rdlock(&place->lock);
  megalith_request_options options = {.max_new_tokens = 64};
  if (draw(random, 4) > 0) {
    t->listener = create_listener(place->engine, random, 2);
    t->listener->may_pause = true;
    options.on_output = on_output;
    options.context = t->listener;
  }
  t->request = submit_question(place->engine, t->question, options);
  (void)pthread_rwlock_unlock(&place->lock);
  count(SUBMITTED);
  return t;
}

static void read_outputs(ticket *t, uint64_t *random) {
  if (atomic_flag_test_and_set_explicit(&t->reading, memory_order_acquire)) {
    return;  // by another thread
  }
  for (uint32_t i = draw(random, 6); i > 0; i--) {
    const megalith_output *output = megalith_request_next(t->request, (int)draw(random, 4));
    if (output != NULL) {
      count(OUTPUTS_READ);
      must(strlen(output->text) == output->text_bytes, "an output without its end");
    }
    if (output != NULL && output->finish != MEGALITH_FINISH_NONE) {
      check_result(t);
    }
  }
  atomic_flag_clear_explicit(&t->reading, memory_order_release);
}

static void use_ticket(ticket *t, uint64_t *random) {
  switch (draw(random, 8)) {
    case 0:
    case 1:
      for (uint32_t i = draw(random, 3); i < 3; i++) {
        megalith_request_cancel(t->request);
        count(CANCELS);
      }
      break;
    case 2:
      megalith_request_pause(t->request);
      count(PAUSES);
      break;
    case 3:
    case 4:
      megalith_request_resume(t->request);
      count(RESUMES);
      break;
    case 5: read_outputs(t, random); break;
    default:
      if (megalith_request_wait(t->request, (int)draw(random, 5))) {
        count(WAITS_OVER);
        check_result(t);
      }
      break;
  }
}

// Puts a new request into an empty slot, or uses or empties a full one.
static void visit_slot(uint64_t *random) {
  slot *s = &slots[draw(random, SLOTS)];
  ticket *t = use_slot(s, false);
  if (t == NULL) {
    ticket *made = submit_ticket(random);
    (void)pthread_mutex_lock(&s->lock);
    ticket *loser = s->ticket == NULL ? NULL : made;
    s->ticket = s->ticket == NULL ? made : s->ticket;
    (void)pthread_mutex_unlock(&s->lock);
    if (loser != NULL) {
      drop_ticket(loser, random);
    }
    return;
  }
  use_ticket(t, random);
  if (draw(random, 6) == 0) {
    (void)pthread_mutex_lock(&s->lock);
    bool is_there = s->ticket == t;
    s->ticket = is_there ? NULL : s->ticket;
    (void)pthread_mutex_unlock(&s->lock);
    if (is_there) {
      drop_ticket(t, random);
    }
  }
  drop_ticket(t, random);
}

// One after the other as fast as it goes, so that the second cancellation meets the first one's.
static void submit_and_cancel(uint64_t *random) {
  for (uint32_t i = 0; i < 8; i++) {
    ticket *t = submit_ticket(random);
    megalith_request_cancel(t->request);
    if (draw(random, 2) == 0) {
      (void)sched_yield();
    }
    megalith_request_cancel(t->request);
    count(CANCELS);
    count(CANCELS);
    drop_ticket(t, random);
  }
}

static void fork_once(uint64_t *random) {
  bool executes = draw(random, 2) == 0;
  pid_t child = fork();
  if (child == 0) {
    if (executes) {
      (void)execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
    }
    _exit(7);
  }
  must(child > 0, strerror(errno));
  int status = 0;
  pid_t ended = 0;
  do {
    ended = waitpid(child, &status, 0);
  } while (ended < 0 && errno == EINTR);
  must(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child did not exit");
  count(FORKS);
}

static void create_in(engine_place *place, bool background) {
  // Places and pages for a few only, so that requests wait for each other and lose their pages.
  place->engine = create((megalith_engine_options){
      .background = background, .threads = background ? 2 : 1, .sequences = 6, .kv_tokens = 1024});
}

static void destroy_in_background(void) {
  engine_place *place = &places[0];
  (void)pthread_rwlock_wrlock(&place->lock);
  megalith_engine_destroy(place->engine);
  create_in(place, true);
  (void)pthread_rwlock_unlock(&place->lock);
  count(ENGINES_DESTROYED);
}

static void look_at_engine(uint64_t *random) {
  engine_place *place = &places[draw(random, ENGINES)];
  megalith_statistics statistics = {.size = sizeof statistics};
  (void)pthread_rwlock_rdlock(&place->lock);
  must(megalith_engine_get_statistics(place->engine, &statistics, NULL) == MEGALITH_OK, "counts");
  must(statistics.pages == 64 && statistics.pages_used <= 64, "KV pages");
  must(megalith_engine_describe(place->engine)->sequences == 6, "describe");
  (void)megalith_engine_has_work(place->engine);
  megalith_engine_stop(place->engine);
  must(megalith_engine_step(place->engine, NULL) == MEGALITH_ERROR_ARGUMENT, "a client steps");
  must(submit_untracked(place->engine, random), "a submission is refused");
  (void)pthread_rwlock_unlock(&place->lock);
  count(REFUSED);
}

static void *be_client(void *context) {
  client *c = context;
  while (!atomic_load_explicit(&ends, memory_order_relaxed)) {
    uint32_t what = draw(&c->random, 4000);
    if (what < 2) {
      destroy_in_background();
    } else if (what < 5) {
      fork_once(&c->random);
    } else if (what < 100) {
      look_at_engine(&c->random);
    } else if (what < 300) {
      submit_and_cancel(&c->random);
    } else {
      visit_slot(&c->random);
    }
  }
  return NULL;
}

// Drives engine 1, and destroys it now and then.
static void *be_driver(void *context) {
  client *c = context;
  engine_place *place = &places[1];
  create_in(place, false);
  (void)sem_post(&driver_is_ready);
  while (!atomic_load_explicit(&driver_ends, memory_order_relaxed)) {
    bool runs = draw(&c->random, 2) == 0;
    megalith_status status =
        runs ? megalith_engine_run(place->engine, NULL) : megalith_engine_step(place->engine, NULL);
    must(status == MEGALITH_OK, "the engine that a thread drives has failed");
    count(RUNS);
    if (!megalith_engine_has_work(place->engine)) {
      (void)sched_yield();
    }
    if (draw(&c->random, 2000) == 0) {
      (void)pthread_rwlock_wrlock(&place->lock);
      megalith_engine_destroy(place->engine);
      create_in(place, false);
      (void)pthread_rwlock_unlock(&place->lock);
      count(ENGINES_DESTROYED);
    }
  }
  megalith_engine_destroy(place->engine);
  return NULL;
}

// --- the storm -----------------------------------------------------------------------------------

static uint64_t number_of(const char *variable, uint64_t usual) {
  const char *text = getenv(variable);
  return text == NULL || *text == 0 ? usual : strtoull(text, NULL, 10);
}

static void init_places(void) {
  pthread_rwlockattr_t attributes;
  (void)pthread_rwlockattr_init(&attributes);
  // Else those who destroy would wait for ever.
  (void)pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  for (size_t i = 0; i < ENGINES; i++) {
    (void)pthread_rwlock_init(&places[i].lock, &attributes);
  }
  (void)pthread_rwlockattr_destroy(&attributes);
  for (size_t i = 0; i < SLOTS; i++) {
    (void)pthread_mutex_init(&slots[i].lock, NULL);
  }
}

// Callbacks still come by: a ticket leaves its slot before it is dropped.
static void empty_slots(uint64_t *random) {
  for (size_t i = 0; i < SLOTS; i++) {
    (void)pthread_mutex_lock(&slots[i].lock);
    ticket *t = slots[i].ticket;
    slots[i].ticket = NULL;
    (void)pthread_mutex_unlock(&slots[i].lock);
    if (t != NULL) {
      drop_ticket(t, random);
    }
  }
}

static void print_figures(void) {
  for (int f = 0; f < FIGURES; f++) {
    (void)printf("%s%llu %s", f == 0 ? "" : ", ", (unsigned long long)figures[f], figure_names[f]);
  }
  (void)printf("\n");
}

static void a_storm_leaves_nothing(void **state) {
  bool is_long = getenv("MGL_TEST_LONG") != NULL;
  uint64_t seconds = number_of("MGL_TEST_SECONDS", is_long ? LONG_SECONDS : USUAL_SECONDS);
  uint64_t seed = number_of("MGL_TEST_SEED", 1);
  const struct timespec duration = {.tv_sec = (time_t)seconds};
  const int64_t live = mgl_alloc_live();
  client clients[CLIENTS + 1];
  (void)state;
  (void)printf("%d threads, %llu seconds, MGL_TEST_SEED=%llu\n", CLIENTS,
               (unsigned long long)seconds, (unsigned long long)seed);
  init_places();
  (void)sem_init(&driver_is_ready, 0, 0);
  for (uint32_t i = 0; i <= CLIENTS; i++) {
    clients[i].random = (seed * 1000 + i) * 0x9e3779b97f4a7c15u | 1;
  }
  create_in(&places[0], true);
  client *driver = &clients[CLIENTS];
  must(pthread_create(&driver->thread, NULL, be_driver, driver) == 0, "no thread");
  (void)sem_wait(&driver_is_ready);
  for (uint32_t i = 0; i < CLIENTS; i++) {
    must(pthread_create(&clients[i].thread, NULL, be_client, &clients[i]) == 0, "no thread");
  }
  (void)nanosleep(&duration, NULL);
  atomic_store(&ends, true);
  for (uint32_t i = 0; i < CLIENTS; i++) {
    (void)pthread_join(clients[i].thread, NULL);
  }
  empty_slots(&clients[0].random);
  atomic_store(&driver_ends, true);
  (void)pthread_join(driver->thread, NULL);
  megalith_engine_destroy(places[0].engine);
  print_figures();
  for (int f = 0; f < FIGURES; f++) {
    assert_true(figures[f] > 0);
  }
  assert_int_equal(mgl_alloc_live(), live);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_storm_leaves_nothing)};
  return cmocka_run_group_tests(tests, open_model, close_model);
}
