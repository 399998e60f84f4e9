#include "engine/constraint.h"

#include <pthread.h>
#include <time.h>

#include "base/alloc.h"

typedef enum mask_state { MASK_IDLE, MASK_QUEUED, MASK_RUNNING, MASK_READY } mask_state;

struct mgl_constraint {
  mgl_constraints *owner;
  mgl_grammar *grammar;
  mgl_matcher matcher;
  uint64_t *mask;
  // Under the owner's lock:
  mask_state state;
  bool is_abandoned;  // while its mask is made: who makes it destroys it
  mgl_constraint *next;
  // Written by who makes the mask, before it is ready:
  mgl_status status;
  mgl_error error;
};

struct mgl_constraints {
  pthread_t thread;
  pthread_mutex_t lock;
  // Under the lock:
  pthread_cond_t work;   // something is queued, or quit
  pthread_cond_t ready;  // a mask is made
  mgl_constraint *first, **last;
  bool quit;
};

static void free_constraint(mgl_constraint *c) {
  mgl_matcher_reset(&c->matcher);
  mgl_grammar_release(c->grammar);
  mgl_free(c->mask);
  mgl_free(c);
}

// --- the thread that makes masks -----------------------------------------------------------------

static void *make_masks(void *context) {
  mgl_constraints *cs = context;
  (void)pthread_mutex_lock(&cs->lock);
  while (!cs->quit) {
    mgl_constraint *c = cs->first;
    if (c == NULL) {
      (void)pthread_cond_wait(&cs->work, &cs->lock);
      continue;
    }
    cs->first = c->next;
    cs->last = cs->first == NULL ? &cs->first : cs->last;
    c->state = MASK_RUNNING;
    (void)pthread_mutex_unlock(&cs->lock);
    c->status = mgl_mask_make(mgl_grammar_masks(c->grammar), &c->matcher, c->mask, &c->error);
    (void)pthread_mutex_lock(&cs->lock);
    c->state = MASK_READY;
    if (c->is_abandoned) {
      free_constraint(c);
    }
    (void)pthread_cond_broadcast(&cs->ready);
  }
  (void)pthread_mutex_unlock(&cs->lock);
  return NULL;
}

mgl_status mgl_constraints_create(mgl_constraints **out, mgl_error *err) {
  pthread_condattr_t attributes;
  mgl_constraints *cs = mgl_alloc_zeroed(1, sizeof *cs);
  *out = NULL;
  if (cs == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for grammars");
  }
  cs->last = &cs->first;
  (void)pthread_mutex_init(&cs->lock, NULL);
  (void)pthread_cond_init(&cs->work, NULL);
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&cs->ready, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  if (pthread_create(&cs->thread, NULL, make_masks, cs) != 0) {
    (void)pthread_cond_destroy(&cs->work);
    (void)pthread_cond_destroy(&cs->ready);
    (void)pthread_mutex_destroy(&cs->lock);
    mgl_free(cs);
    return mgl_error_set(err, MGL_ERR_MEMORY, "the system gave no thread for grammars");
  }
  *out = cs;
  return MGL_OK;
}

void mgl_constraints_destroy(mgl_constraints *cs) {
  if (cs != NULL) {
    (void)pthread_mutex_lock(&cs->lock);
    cs->quit = true;
    (void)pthread_cond_signal(&cs->work);
    (void)pthread_mutex_unlock(&cs->lock);
    (void)pthread_join(cs->thread, NULL);
    (void)pthread_cond_destroy(&cs->work);
    (void)pthread_cond_destroy(&cs->ready);
    (void)pthread_mutex_destroy(&cs->lock);
    mgl_free(cs);
  }
}

// --- a constraint --------------------------------------------------------------------------------

mgl_status mgl_constraint_create(mgl_constraints *constraints, mgl_grammar *grammar,
                                 mgl_constraint **out, mgl_error *err) {
  mgl_constraint *c = mgl_alloc_zeroed(1, sizeof *c);
  *out = NULL;
  if (c == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a grammar");
  }
  c->owner = constraints;
  c->grammar = grammar;
  mgl_grammar_keep(grammar);
  c->mask = mgl_alloc_zeroed(mgl_grammar_vocabulary(grammar)->mask_words, sizeof *c->mask);
  mgl_status status = c->mask == NULL
                          ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a grammar")
                          : mgl_matcher_init(&c->matcher, mgl_grammar_automaton(grammar), err);
  if (status != MGL_OK) {
    free_constraint(c);
    return status;
  }
  *out = c;
  return MGL_OK;
}

void mgl_constraint_destroy(mgl_constraint *c) {
  if (c == NULL) {
    return;
  }
  mgl_constraints *cs = c->owner;
  (void)pthread_mutex_lock(&cs->lock);
  bool is_running = c->state == MASK_RUNNING;
  c->is_abandoned = is_running;
  if (c->state == MASK_QUEUED) {
    mgl_constraint **link = &cs->first;
    while (*link != c) {
      link = &(*link)->next;
    }
    *link = c->next;
    cs->last = c->next == NULL ? link : cs->last;
  }
  (void)pthread_mutex_unlock(&cs->lock);
  if (!is_running) {
    free_constraint(c);
  }
}

void mgl_constraint_begin_mask(mgl_constraint *c) {
  mgl_constraints *cs = c->owner;
  (void)pthread_mutex_lock(&cs->lock);
  c->state = MASK_QUEUED;
  c->next = NULL;
  *cs->last = c;
  cs->last = &c->next;
  (void)pthread_cond_signal(&cs->work);
  (void)pthread_mutex_unlock(&cs->lock);
}

bool mgl_constraint_wait(mgl_constraint *c, uint64_t timeout_ns) {
  mgl_constraints *cs = c->owner;
  struct timespec until;
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns;
  until.tv_sec += (time_t)(ns / 1000000000u);
  until.tv_nsec = (long)(ns % 1000000000u);
  (void)pthread_mutex_lock(&cs->lock);
  int result = 0;
  while (c->state != MASK_READY && result == 0 && timeout_ns != 0) {
    result = pthread_cond_timedwait(&cs->ready, &cs->lock, &until);
  }
  bool is_ready = c->state == MASK_READY;
  (void)pthread_mutex_unlock(&cs->lock);
  return is_ready;
}

mgl_status mgl_constraint_mask(mgl_constraint *c, uint64_t **out, bool *any, mgl_error *err) {
  uint32_t words = mgl_grammar_vocabulary(c->grammar)->mask_words;
  *out = c->mask;
  *any = false;
  for (uint32_t i = 0; i < words && c->status == MGL_OK && !*any; i++) {
    *any = c->mask[i] != 0;
  }
  return c->status == MGL_OK ? MGL_OK : mgl_error_set(err, c->status, "%s", c->error.text);
}

bool mgl_constraint_accepts(const mgl_constraint *c) {
  return mgl_matcher_accepts(&c->matcher);
}

mgl_status mgl_constraint_take(mgl_constraint *c, uint32_t token, bool *complete, mgl_error *err) {
  size_t count = 0;
  bool alive = true;
  const char *bytes = mgl_vocabulary_bytes(mgl_grammar_vocabulary(c->grammar), token, &count);
  MGL_TRY(mgl_matcher_advance(&c->matcher, bytes, count, &alive, err));
  *complete = mgl_matcher_is_complete(&c->matcher);
  return alive ? MGL_OK
               : mgl_error_set(err, MGL_ERR_INTERNAL,
                               "token %u does not go on with the grammar that allowed it", token);
}
