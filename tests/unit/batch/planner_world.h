// A small world around a planner: random requests whose tokens share prefixes, KV cells that
// remember what was written into them, and iterations that read and write cells as the plans say.
//
// It knows nothing of the planner's insides. What a cell at position q of a sequence must hold is a
// hash of the sequence's tokens up to q, so a page that is shared by mistake, given out twice, read
// before it is computed or overwritten while in use shows as a wrong cell. In a late world an
// iteration runs after the next one was planned, with the block tables as they are then, and its
// stop tokens are told yet a turn later: as on a GPU.
#ifndef MGL_TESTS_PLANNER_WORLD_H
#define MGL_TESTS_PLANNER_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "batch/page_key.h"
#include "twin/planner.h"

enum { WORLD_NONE = -1 };

typedef struct world_request {
  uint32_t number;  // in order of submission
  uint32_t prompt_count, max_tokens;
  uint32_t stop_at;      // it stops when it has so many tokens; above max_tokens: never
  int32_t *tokens;       // [max_tokens]
  uint64_t *histories;   // [max_tokens] hash of tokens [0, q]
  mgl_page_key *keys;    // [prompt_count / P]
  uint32_t planned;      // rows planned since the last start
  uint32_t token_count;  // after the planned iterations
  uint32_t sampled;      // tokens after the iterations that ran
  uint32_t masked_to;    // tokens up to which masks are there; 0: it needs none
  bool stopped, cancelled, paused;
  bool admitted;         // had a row
  uint32_t rows_behind;  // rows planned behind its stop token
  uint32_t idle_turns;   // turns without a row while it is the first that runs
} world_request;

// What a turn does to a planner, for a second planner that does the same.
typedef struct world_mirror {
  void (*submit)(void *context, uint32_t slot, const mgl_planner_request *request);
  void (*wish)(void *context, uint32_t slot, int wish);  // 0: end, 1: pause, 2: resume
  void (*mask)(void *context, uint32_t slot, uint32_t masked_to);
  void (*settle)(void *context);
  void (*plan)(void *context);
  void *context;
} world_mirror;

typedef struct world {
  mgl_planner_limits limits;
  mgl_planner *planner;
  uint64_t random;
  uint32_t arrive_percent;                   // that another request comes, in a turn
  uint32_t cancel_permille, pause_permille;  // of each request, in a turn
  uint32_t stop_percent;                     // of requests
  uint32_t mask_percent;                     // of requests whose tokens wait for masks
  uint32_t families;                         // of prompts with the same beginning
  world_request *requests;                   // [slots]; tokens NULL: none
  uint64_t *cells;                           // [page_count * P]
  mgl_plan_entry *flying;                    // the iteration that was planned and has not run
  uint32_t flying_count;
  uint32_t submitted, ended;
  uint32_t resumed;
  const world_mirror *mirror;  // may be NULL
} world;

static inline uint32_t world_random(world *w, uint32_t below) {
  w->random = w->random * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((w->random >> 33) % below);
}

static inline bool world_chance(world *w, uint32_t percent) {
  return world_random(w, 100) < percent;
}

static inline uint64_t world_mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

static inline void world_init(world *w, const mgl_planner_limits *limits, uint64_t seed) {
  mgl_error err = {0};
  memset(w, 0, sizeof *w);
  w->limits = *limits;
  w->random = seed * 2 + 1;
  if (mgl_planner_create(limits, &w->planner, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  w->requests = mgl_alloc_zeroed(limits->slots, sizeof *w->requests);
  w->flying = mgl_alloc_zeroed(limits->slots, sizeof *w->flying);
  w->cells = mgl_alloc_zeroed((size_t)limits->page_count * limits->page_tokens, sizeof *w->cells);
  assert_true(w->requests != NULL && w->flying != NULL && w->cells != NULL);
}

static inline void world_forget(world_request *r) {
  mgl_free(r->tokens);
  mgl_free(r->histories);
  mgl_free(r->keys);
  memset(r, 0, sizeof *r);
}

static inline void world_free(world *w) {
  for (uint32_t i = 0; i < w->limits.slots; i++) {
    world_forget(&w->requests[i]);
  }
  mgl_planner_destroy(w->planner);
  mgl_free(w->requests);
  mgl_free(w->flying);
  mgl_free(w->cells);
}

// Tokens of a family are the same up to a length of the request's own.
static inline void world_make_tokens(world *w, world_request *r) {
  uint32_t family = world_random(w, w->families);
  uint32_t shared = world_random(w, r->prompt_count + 1);
  uint64_t history = 1;
  r->tokens = mgl_alloc_zeroed(r->max_tokens, sizeof *r->tokens);
  r->histories = mgl_alloc_zeroed(r->max_tokens, sizeof *r->histories);
  r->keys = mgl_alloc_zeroed(r->prompt_count / w->limits.page_tokens, sizeof *r->keys);
  assert_true(r->tokens != NULL && r->histories != NULL && r->keys != NULL);
  for (uint32_t q = 0; q < r->max_tokens; q++) {
    bool common = q < shared;
    uint64_t token = world_mix(common ? family : 1000 + r->number, q);
    r->tokens[q] = (int32_t)(token & 0xffff);
    history = world_mix(history, (uint64_t)r->tokens[q] + 1);
    r->histories[q] = history;
  }
  mgl_page_keys_compute(r->tokens, r->prompt_count, w->limits.page_tokens, NULL, 0, r->keys);
}

// Puts a new request into a free slot, if there is one.
static inline void world_submit(world *w) {
  // The last token of a sequence needs no KV.
  uint32_t most = w->limits.pages_per_sequence * w->limits.page_tokens;
  uint32_t pool = w->limits.page_count * w->limits.page_tokens + 1;
  most = most < pool ? most : pool;
  uint32_t slot = 0;
  while (slot < w->limits.slots &&
         (w->requests[slot].tokens != NULL || !mgl_planner_is_free(w->planner, slot))) {
    slot++;
  }
  if (slot == w->limits.slots) {
    return;
  }
  world_request *r = &w->requests[slot];
  r->number = w->submitted++;
  r->prompt_count = 1 + world_random(w, most - 1);
  if (world_chance(w, 50)) {
    r->prompt_count = 1 + r->prompt_count / 8;
  }
  r->max_tokens = r->prompt_count + 1 + world_random(w, most - r->prompt_count);
  r->stop_at = world_chance(w, w->stop_percent)
                   ? r->prompt_count + 1 + world_random(w, r->max_tokens - r->prompt_count)
                   : UINT32_MAX;
  r->token_count = r->prompt_count;
  r->sampled = r->prompt_count;
  r->masked_to = world_chance(w, w->mask_percent) ? r->prompt_count + 1 : 0;
  world_make_tokens(w, r);
  mgl_planner_request request = {.prompt_count = r->prompt_count,
                                 .max_tokens = r->max_tokens,
                                 .key_count = r->prompt_count / w->limits.page_tokens,
                                 .masked_to = r->masked_to,
                                 .keys = r->keys};
  mgl_planner_submit(w->planner, slot, &request);
  if (w->mirror != NULL) {
    w->mirror->submit(w->mirror->context, slot, &request);
  }
}

static inline void world_wish(world *w, uint32_t slot, int wish) {
  static void (*const functions[])(mgl_planner *, uint32_t) = {mgl_planner_end, mgl_planner_pause,
                                                               mgl_planner_resume};
  functions[wish](w->planner, slot);
  if (w->mirror != NULL) {
    w->mirror->wish(w->mirror->context, slot, wish);
  }
}

// The mask for the next token gets ready.
static inline void world_mask(world *w, uint32_t slot) {
  uint32_t to = w->requests[slot].sampled + 1;
  w->requests[slot].masked_to = to;
  mgl_planner_mask(w->planner, slot, to);
  if (w->mirror != NULL) {
    w->mirror->mask(w->mirror->context, slot, to);
  }
}

static inline bool world_ended(const world_request *r) {
  return r->stopped || r->cancelled || r->token_count == r->max_tokens;
}

// Cancels, pauses, resumes and makes masks at random, and tells of those that stopped.
static inline void world_wishes(world *w) {
  for (uint32_t i = 0; i < w->limits.slots; i++) {
    world_request *r = &w->requests[i];
    if (r->tokens == NULL || world_ended(r)) {
      continue;
    }
    if (r->masked_to != 0 && r->sampled == r->masked_to && world_chance(w, 40)) {
      world_mask(w, i);
    }
    if (r->sampled >= r->stop_at) {
      r->stopped = true;
      world_wish(w, i, 0);
    } else if (world_random(w, 1000) < w->cancel_permille) {
      r->cancelled = true;
      world_wish(w, i, 0);
    } else if (!r->paused && world_random(w, 1000) < w->pause_permille) {
      r->paused = true;
      r->planned = 0;
      world_wish(w, i, 1);
    } else if (r->paused && world_chance(w, 20)) {
      r->paused = false;
      w->resumed++;
      world_wish(w, i, 2);
    }
  }
}

// Slots that the settle has freed are forgotten, but not before their last iteration ran.
static inline void world_forget_ended(world *w) {
  for (uint32_t i = 0; i < w->limits.slots; i++) {
    world_request *r = &w->requests[i];
    bool flies = false;
    for (uint32_t k = 0; k < w->flying_count; k++) {
      flies = flies || w->flying[k].slot == i;
    }
    if (r->tokens != NULL && world_ended(r) && !flies) {
      assert_int_equal(mgl_planner_slot_of(w->planner, i)->state, MGL_SLOT_FREE);
      world_forget(r);
      w->ended++;
    }
  }
}

static inline uint64_t *world_cell(const world *w, uint32_t slot, uint32_t position) {
  int32_t page = mgl_planner_pages_of(w->planner, slot)[position / w->limits.page_tokens];
  assert_true(page >= 0 && (uint32_t)page < w->limits.page_count);
  return &w->cells[(size_t)page * w->limits.page_tokens + position % w->limits.page_tokens];
}

static inline void world_check_cells(const world *w, const mgl_plan_entry *e, uint32_t end) {
  const world_request *r = &w->requests[e->slot];
  for (uint32_t q = 0; q < end; q++) {
    if (*world_cell(w, e->slot, q) != r->histories[q]) {
      fail_msg("request %u reads the KV of something else at position %u", r->number, q);
    }
  }
}

// Runs the iteration that flies: all reads of what was there before, all writes, all reads.
static inline void world_run(world *w) {
  for (uint32_t i = 0; i < w->flying_count; i++) {
    world_check_cells(w, &w->flying[i], w->flying[i].position);
  }
  for (uint32_t i = 0; i < w->flying_count; i++) {
    const mgl_plan_entry *e = &w->flying[i];
    for (uint32_t q = e->position; q < e->position + e->count; q++) {
      *world_cell(w, e->slot, q) = w->requests[e->slot].histories[q];
    }
  }
  for (uint32_t i = 0; i < w->flying_count; i++) {
    const mgl_plan_entry *e = &w->flying[i];
    world_check_cells(w, e, e->position + e->count);
    if ((e->flags & MGL_ENTRY_SAMPLES) != 0) {
      w->requests[e->slot].sampled++;
    }
  }
  w->flying_count = 0;
}

// The entries against what each request has to compute.
static inline void world_take_plan(world *w) {
  const mgl_planner *p = w->planner;
  const mgl_plan_entry *entries = mgl_planner_entries(p);
  uint32_t tokens = 0, samples = 0;
  for (uint32_t i = 0; i < p->entry_count; i++) {
    const mgl_plan_entry *e = &entries[i];
    world_request *r = &w->requests[e->slot];
    uint32_t end = e->position + e->count;
    assert_non_null(r->tokens);
    assert_true(!world_ended(r) && !r->paused && e->count >= 1);
    for (uint32_t k = 0; k < i; k++) {
      assert_int_not_equal(entries[k].slot, e->slot);
    }
    if (e->position != r->planned) {  // it starts (again), maybe behind cached pages
      assert_true(e->position % w->limits.page_tokens == 0 && e->position < r->token_count);
      assert_true(e->position <= r->prompt_count);
      assert_true(e->position == 0 || w->limits.prefix_cache != 0);
    }
    assert_true(end <= r->token_count);
    assert_true(r->masked_to == 0 || r->token_count < r->masked_to);
    assert_int_equal((e->flags & MGL_ENTRY_SAMPLES) != 0, end == r->token_count);
    assert_int_equal((e->flags & MGL_ENTRY_DECODES) != 0, i < p->decode_entry_count);
    if ((e->flags & MGL_ENTRY_DECODES) != 0) {
      assert_true(e->count == 1 && end > r->prompt_count);
    } else {
      assert_true(w->limits.chunk_tokens == 0 || e->count <= w->limits.chunk_tokens);
    }
    assert_true(mgl_planner_slot_of(p, e->slot)->page_count * w->limits.page_tokens >= end);
    r->rows_behind += r->token_count >= r->stop_at ? e->count : 0;
    assert_true(r->rows_behind <= w->limits.late);
    r->planned = end;
    r->token_count += (e->flags & MGL_ENTRY_SAMPLES) != 0 ? 1 : 0;
    r->admitted = true;
    tokens += e->count;
    samples += (e->flags & MGL_ENTRY_SAMPLES) != 0 ? 1 : 0;
    w->flying[i] = *e;
  }
  assert_int_equal(tokens, p->token_count);
  assert_int_equal(samples, p->sample_count);
  assert_true(tokens <= w->limits.iteration_tokens && p->running <= w->limits.sequences);
  w->flying_count = p->entry_count;
}

// A turn of the engine. arrive: requests may come.
static inline void world_turn(world *w, bool arrive) {
  world_wishes(w);
  mgl_planner_settle(w->planner);
  if (w->mirror != NULL) {
    w->mirror->settle(w->mirror->context);
  }
  world_forget_ended(w);
  while (arrive && world_chance(w, w->arrive_percent)) {
    world_submit(w);
  }
  // In a late world the iteration before runs now, after the plan, with the tables as they are.
  mgl_plan_entry *before = NULL;
  uint32_t before_count = w->flying_count;
  if (before_count > 0) {
    before = mgl_alloc(before_count * sizeof *before);
    assert_non_null(before);
    memcpy(before, w->flying, before_count * sizeof *before);
  }
  (void)mgl_planner_plan(w->planner);
  if (w->mirror != NULL) {
    w->mirror->plan(w->mirror->context);
  }
  world_take_plan(w);
  if (w->limits.late == 0) {
    assert_int_equal(before_count, 0);
    world_run(w);
  } else {
    mgl_plan_entry *after = w->flying;
    uint32_t after_count = w->flying_count;
    w->flying = before;
    w->flying_count = before_count;
    world_run(w);
    w->flying = after;
    w->flying_count = after_count;
  }
  mgl_free(before);
}

#endif
