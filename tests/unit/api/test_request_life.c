// Every order in which threads may take the steps of a request's life (src/api/request_life.h).
//
// The functions are the real ones. Around them stands a model of their callers: each step under the
// hub's lock is one step here, and so are the beginning and the end of a callback. Callers are not
// threads but what may happen next: any wish of any thread, as long as a small number of them is
// left, and what callbacks may do. The engine's thread is the little machine `engine_steps`, which
// follows api_engine.c. A depth-first search goes through all states; two are taken for equal if a
// 64-bit hash is.
//
// Checked: nothing of a freed request is read; nobody drops a reference that he does not have;
// nothing is called once a caller may know that the request is over; each request gets one last
// call; a wish is never lost; after the engine's end nothing is left but what callers still hold.
// The two defects that were there, and three more, are put back one by one, and must be found.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/request_life.h"
#include "base/alloc.h"

#ifdef MGL_TEST_SANITIZED
enum { CANCELS = 1, PAUSES = 1 };
#else
enum {
  CANCELS = 2,  // of each request, besides its release
  PAUSES = 2,   // and resumptions, of the first one
};
#endif

enum {
  REQUESTS = 2,
  TABLE_BITS = 23,
  MOST_STATES = 1 << (TABLE_BITS - 1),
  MOST_PENDING = 1 << 16,  // of the search's stack
};

typedef enum mutation {
  SOUND,
  DROPS_IN_INBOX,       // a request that never entered is dropped without a look at the inbox
  OVER_TOO_EARLY,       // waits end when the last output is made, before on_output has it
  WISHES_AFTER_FINISH,  // a finished request gets into the inbox again
  QUEUED_TWICE,         // without a look whether it is there already
  LEAVES_IN_CALLBACK,   // a request leaves although its last call has not returned
  MUTATIONS,
} mutation;

static const char *const mutation_names[MUTATIONS] = {"sound",          "drops in inbox",
                                                      "over too early", "wishes after finish",
                                                      "queued twice",   "leaves in callback"};

typedef struct model_request {
  mgl_request_life life;
  bool submitted, freed;
  bool entered, below_knows, is_paused;  // the engine's thread's
  bool has_callback;
  bool may_be_named;  // by its caller: the handle was not released
  bool context_gone;  // its caller has seen that it is over, and has freed what on_output uses
  uint8_t last_calls;
  uint8_t cancels_left, pauses_left;
} model_request;

// Where the engine's thread is.
typedef enum place {
  AT_CHOICE,   // between steps: takes from the inbox, or computes a token
  AT_GRANT,    // has taken `present` with `wishes`
  AT_PUBLISH,  // makes an output of `present`, the last one if `finishes`
  IN_CALLBACK,
  AT_ENQUEUE,  // a stop text has ended it
  AT_LEAVE,    // the engine below names it no more
  AT_ENDING,   // after all that is active: the inbox
  ENDED,
} place;

typedef struct world {
  model_request requests[REQUESTS];
  uint8_t inbox[REQUESTS + 1];
  uint8_t inbox_count;
  uint8_t place, after;  // `after`: of a publication
  uint8_t present;
  bool finishes;
  bool ending;  // the engine is destroyed, or has failed
  mgl_request_wishes wishes;
} world;

static world now;
static const char *error;
static mutation mutant;
static world pending[MOST_PENDING];
static size_t pending_count;
static uint64_t *seen;  // [1 << TABLE_BITS], 0: free
static uint64_t state_count;

// --- the search ----------------------------------------------------------------------------------

static void fail_with(const char *text) {
  error = error == NULL ? text : error;
}

static uint64_t hash_of(const world *w) {
  const unsigned char *bytes = (const unsigned char *)w;
  uint64_t hash = 1;
  for (size_t i = 0; i < sizeof *w; i++) {
    hash = ((hash ^ bytes[i]) + 0x632be59bd9b4e019u) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash | 1;
}

// Clears what nothing depends on any more, so that more states are equal.
static void normalise(world *w) {
  if (w->place == AT_CHOICE || w->place == AT_ENDING || w->place == ENDED) {
    w->present = 0;
    w->after = 0;
    w->finishes = false;
  }
  for (uint8_t r = 0; r < REQUESTS; r++) {
    model_request *request = &w->requests[r];
    if (request->freed) {
      *request = (model_request){.submitted = true,
                                 .freed = true,
                                 .has_callback = request->has_callback,
                                 .life = {.over = request->life.over},
                                 .last_calls = request->last_calls};
    }
  }
}

// `now` is a state that can be reached.
static void reach(void) {
  normalise(&now);
  uint64_t hash = hash_of(&now);
  size_t at = (size_t)(hash >> (64 - TABLE_BITS));
  while (seen[at] != 0 && seen[at] != hash) {
    at = (at + 1) & (((size_t)1 << TABLE_BITS) - 1);
  }
  if (seen[at] == 0) {
    seen[at] = hash;
    if (++state_count >= MOST_STATES || pending_count == MOST_PENDING) {
      fail_with("too many states for the search");
      return;
    }
    pending[pending_count++] = now;
  }
}

// --- the steps, with the mutations ---------------------------------------------------------------

static mgl_request_life *life_of(uint8_t r) {
  if (now.requests[r].freed) {
    fail_with("a freed request is read");
  }
  return &now.requests[r].life;
}

static void append(uint8_t r) {
  for (uint8_t i = 0; i < now.inbox_count; i++) {
    if (now.inbox[i] == r) {
      fail_with("a request is in the inbox twice");
      return;
    }
  }
  now.inbox[now.inbox_count++] = r;
}

static void drop(uint8_t r, unsigned char holder) {
  mgl_request_life *life = life_of(r);
  if ((life->holders & holder) == 0) {
    fail_with("a reference is dropped twice");
    return;
  }
  now.requests[r].freed = mgl_life_drop(life, holder);
}

static void cancel(uint8_t r) {
  mgl_request_life *life = life_of(r);
  bool appends = mgl_life_cancel(life);
  if (mutant == WISHES_AFTER_FINISH && life->finished) {
    appends = mgl_life_enqueue(life);
  }
  if (appends || (mutant == QUEUED_TWICE && !life->finished)) {
    append(r);
  }
}

static void change_pause(uint8_t r) {
  mgl_request_life *life = life_of(r);
  bool changed = false;
  if (mgl_life_pause(life, !life->shall_pause, &changed)) {
    append(r);
  }
}

static void finish(uint8_t r) {
  model_request *request = &now.requests[r];
  mgl_life_finish(life_of(r), request->has_callback);
  if (mutant == OVER_TOO_EARLY) {
    request->life.over = true;
  }
}

static void leave(uint8_t r) {
  model_request *request = &now.requests[r];
  mgl_request_life *life = life_of(r);
  if (request->below_knows) {
    fail_with("a request leaves that the engine below knows");
  }
  if (mutant == DROPS_IN_INBOX && !request->entered) {
    drop(r, MGL_HELD_BY_ENGINE);
    return;
  }
  if (life->over && !life->in_inbox && (life->holders & MGL_HELD_BY_ENGINE) == 0) {
    fail_with("a reference is dropped twice");
    return;
  }
  bool is_last = false;
  (void)mgl_life_leave(life, &is_last);
  request->freed = is_last;
}

// --- what threads and callbacks may do -----------------------------------------------------------

// One wish for request r, from state `from`; `by_callback`: of r itself.
static void wishes(const world *from, uint8_t r, bool by_callback) {
  const model_request *request = &from->requests[r];
  if (!request->submitted || (!request->may_be_named && !by_callback)) {
    return;
  }
  if (request->cancels_left > 0) {
    now = *from;
    now.requests[r].cancels_left--;
    cancel(r);
    reach();
  }
  if (request->pauses_left > 0) {
    now = *from;
    now.requests[r].pauses_left--;
    change_pause(r);
    reach();
  }
  if (request->may_be_named) {
    now = *from;
    now.requests[r].may_be_named = false;
    cancel(r);
    drop(r, MGL_HELD_BY_CALLER);
    reach();
  }
}

static void caller_steps(const world *from) {
  for (uint8_t r = 0; r < REQUESTS; r++) {
    const model_request *request = &from->requests[r];
    wishes(from, r, false);
    if (!request->submitted && !from->ending) {
      for (int kind = 0; kind < 4; kind++) {
        now = *from;
        model_request *added = &now.requests[r];
        added->submitted = true;
        added->has_callback = (kind & 1) != 0;
        added->may_be_named = (kind & 2) != 0;
        added->life = mgl_life_begin(added->may_be_named);
        append(r);
        reach();
      }
    }
    // A wait returns, by any thread but its callback's; the caller frees the context.
    if (request->submitted && request->may_be_named && request->life.over &&
        !request->context_gone) {
      now = *from;
      now.requests[r].context_gone = true;
      reach();
    }
  }
}

static void callback_steps(const world *from) {
  uint8_t r = from->present;
  now = *from;
  if (now.requests[r].context_gone) {
    fail_with("on_output is called after a wait has returned");
    return;
  }
  wishes(from, r, true);
  // It returns.
  now = *from;
  bool is_over = mgl_life_called(life_of(r));
  if (is_over != now.finishes) {
    fail_with("a last call that is not the last, or the other way round");
  }
  now.requests[r].last_calls = (uint8_t)(now.requests[r].last_calls + (now.finishes ? 1 : 0));
  now.place = now.after;
  reach();
}

// --- the engine's thread, as in api_engine.c -----------------------------------------------------

static void publish_then(bool finishes, place after) {
  now.finishes = finishes;
  now.after = (uint8_t)after;
  now.place = AT_PUBLISH;
}

static void check_idle(const world *w) {
  for (uint8_t r = 0; r < REQUESTS; r++) {
    const model_request *request = &w->requests[r];
    const mgl_request_life *life = &request->life;
    if (request->submitted && !request->freed && w->inbox_count == 0 && !life->finished &&
        (life->cancelled || life->shall_pause != request->is_paused || !request->entered)) {
      fail_with("a wish is lost");
    }
  }
}

static void check_end(const world *w) {
  if (w->inbox_count != 0) {
    fail_with("something waits for an engine that has ended");
  }
  for (uint8_t r = 0; r < REQUESTS; r++) {
    const model_request *request = &w->requests[r];
    if (request->submitted && (request->freed == request->may_be_named || !request->life.over ||
                               request->last_calls != (request->has_callback ? 1 : 0))) {
      fail_with("a request outlives its engine without a caller, or has not had its last call");
    }
  }
}

static void take_one(const world *from, place next) {
  now = *from;
  uint8_t r = now.inbox[0];
  now.inbox_count--;
  memmove(now.inbox, now.inbox + 1, sizeof now.inbox - 1);
  now.inbox[sizeof now.inbox - 1] = 0;
  if (now.requests[r].freed) {
    fail_with("a freed request is in the inbox");
    return;
  }
  now.wishes = mgl_life_take(life_of(r));
  now.present = r;
  now.place = (uint8_t)next;
  reach();
}

// A token, a last token, a token that completes a stop text, a fault; or the engine's end.
static void choose(const world *from) {
  check_idle(from);
  if (from->inbox_count > 0) {
    take_one(from, AT_GRANT);
  }
  for (uint8_t r = 0; r < REQUESTS; r++) {
    const model_request *request = &from->requests[r];
    if (!request->below_knows || request->is_paused) {
      continue;
    }
    for (int kind = 0; kind < 4; kind++) {
      now = *from;
      now.present = r;
      if (request->life.finished) {  // by a stop text: the token is not looked at
        now.requests[r].below_knows = kind == 0;
        now.place = kind == 0 ? AT_CHOICE : AT_LEAVE;
      } else {
        now.requests[r].below_knows = kind == 0 || kind == 2;
        publish_then(kind != 0, kind == 0 ? AT_CHOICE : kind == 2 ? AT_ENQUEUE : AT_LEAVE);
      }
      reach();
    }
  }
  now = *from;
  now.ending = true;
  now.place = AT_ENDING;
  reach();
}

static void grant(const world *from) {
  uint8_t r = from->present;
  const model_request *request = &from->requests[r];
  for (int enters = 0; enters < 2; enters++) {
    now = *from;
    model_request *p = &now.requests[r];
    (void)life_of(r);
    if (from->wishes.cancelled || request->life.finished || from->ending ||
        (!request->entered && enters == 0)) {
      p->below_knows = false;
      now.place = AT_LEAVE;
      if (!request->life.finished) {
        publish_then(true, AT_LEAVE);
      }
    } else {
      p->below_knows = !p->entered || p->below_knows;
      p->entered = true;
      p->is_paused = from->wishes.shall_pause;
      now.place = AT_CHOICE;
    }
    now.wishes = (mgl_request_wishes){0};
    reach();
  }
}

// All that is active, then what waits to enter.
static void end_all(const world *from) {
  for (uint8_t r = 0; r < REQUESTS; r++) {
    if (from->requests[r].entered && from->requests[r].below_knows) {
      now = *from;
      now.present = r;
      now.requests[r].below_knows = false;
      now.place = AT_LEAVE;
      if (!from->requests[r].life.finished) {
        publish_then(true, AT_LEAVE);
      }
      reach();
      return;
    }
  }
  if (from->inbox_count > 0) {
    take_one(from, AT_GRANT);
    return;
  }
  now = *from;
  now.place = ENDED;
  reach();
}

static void engine_steps(const world *from) {
  uint8_t r = from->present;
  now = *from;
  switch ((place)from->place) {
    case AT_CHOICE: choose(from); return;
    case AT_GRANT: grant(from); return;
    case IN_CALLBACK: callback_steps(from); return;
    case AT_ENDING: end_all(from); return;
    case ENDED: check_end(from); return;
    case AT_PUBLISH:
      if (now.finishes) {
        finish(r);
      }
      now.place = now.after;
      if (now.requests[r].has_callback) {
        now.place = IN_CALLBACK;
      }
      if (mutant == LEAVES_IN_CALLBACK && now.finishes && now.place == IN_CALLBACK) {
        now.requests[r].life.over = true;
        leave(r);
      }
      break;
    case AT_ENQUEUE:
      if (mgl_life_enqueue(life_of(r))) {
        append(r);
      }
      now.place = AT_CHOICE;
      break;
    case AT_LEAVE:
      leave(r);
      now.place = now.ending ? AT_ENDING : AT_CHOICE;
      break;
  }
  reach();
}

// -------------------------------------------------------------------------------------------------

// The first error in any order of steps, NULL if there is none.
static const char *search(mutation m) {
  mutant = m;
  error = NULL;
  state_count = 0;
  pending_count = 0;
  memset(seen, 0, sizeof *seen << TABLE_BITS);
  memset(&now, 0, sizeof now);
  for (uint8_t r = 0; r < REQUESTS; r++) {
    now.requests[r].cancels_left = CANCELS;
    now.requests[r].pauses_left = r == 0 ? PAUSES : 0;
  }
  reach();
  while (pending_count > 0 && error == NULL) {
    const world from = pending[--pending_count];
    engine_steps(&from);
    caller_steps(&from);
  }
  return error;
}

static void every_order_is_sound(void **state) {
  (void)state;
  const char *found = search(SOUND);
  (void)printf("%llu states of %d requests that are cancelled, paused and released at any moment\n",
               (unsigned long long)state_count, REQUESTS);
  if (found != NULL) {
    fail_msg("%s", found);
  }
  assert_true(state_count > 10000);
}

static void each_defect_is_found(void **state) {
  (void)state;
  for (int m = SOUND + 1; m < MUTATIONS; m++) {
    const char *found = search((mutation)m);
    (void)printf("%s: %s, after %llu states\n", mutation_names[m],
                 found == NULL ? "not found" : found, (unsigned long long)state_count);
    assert_non_null(found);
    assert_string_not_equal(found, "too many states for the search");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_order_is_sound),
      cmocka_unit_test(each_defect_is_found),
  };
  seen = mgl_alloc_zeroed((size_t)1 << TABLE_BITS, sizeof *seen);
  if (seen == NULL) {
    (void)fprintf(stderr, "out of memory for the table of states\n");
    return 1;
  }
  int code = cmocka_run_group_tests(tests, NULL, NULL);
  mgl_free(seen);
  return code;
}
