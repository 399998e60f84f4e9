// Many lanes of the planner on one thread: each lane runs on a stack of its own up to the next call
// of twin/planner_lanes.h, lanes in a random order each time. So a lane that depends on what
// another one writes between two such calls gives other decisions than one lane does, and is found.
//
// Included by twin/planner_lanes.h with MGL_PLANNER_LANES_MODEL, in one source file of a test.
#ifndef MGL_TESTS_LANES_MODEL_H
#define MGL_TESTS_LANES_MODEL_H

#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

#define MGL_PLANNER_FN static inline

enum { LANES_MODEL_MOST = 64, LANES_MODEL_STACK = 256 * 1024 };

typedef enum lanes_model_call { CALL_NONE, CALL_SYNC, CALL_PREFIX, CALL_MIN } lanes_model_call;

static struct lanes_model {
  ucontext_t main, lanes[LANES_MODEL_MOST];
  char *stacks;
  uint32_t count, running, random;
  lanes_model_call call[LANES_MODEL_MOST];
  uint32_t value[LANES_MODEL_MOST], prefix[LANES_MODEL_MOST];
  uint32_t total, least;
  void (*run)(mgl_lanes lanes, void *context);
  void *context;
} lanes_model;

// Ends this lane's turn; returns once all lanes have come to the same call.
static void lanes_model_meet(lanes_model_call call, uint32_t lane, uint32_t value) {
  lanes_model.call[lane] = call;
  lanes_model.value[lane] = value;
  if (swapcontext(&lanes_model.lanes[lane], &lanes_model.main) != 0) {
    abort();
  }
}

static void lanes_model_enter(void) {
  uint32_t lane = lanes_model.running;
  lanes_model.call[lane] = CALL_NONE;
  lanes_model.run((mgl_lanes){.lane = lane, .count = lanes_model.count}, lanes_model.context);
  lanes_model.call[lane] = CALL_NONE;
}

// Every lane once, in a random order, up to its next call or its end.
static void lanes_model_round(void) {
  uint32_t order[LANES_MODEL_MOST];
  for (uint32_t i = 0; i < lanes_model.count; i++) {
    lanes_model.random = lanes_model.random * 1664525u + 1013904223u;
    uint32_t at = (lanes_model.random >> 8) % (i + 1);
    order[i] = order[at];
    order[at] = i;
  }
  for (uint32_t i = 0; i < lanes_model.count; i++) {
    lanes_model.running = order[i];
    if (swapcontext(&lanes_model.main, &lanes_model.lanes[order[i]]) != 0) {
      abort();
    }
  }
}

static void lanes_model_begin(uint32_t lane) {
  ucontext_t *context = &lanes_model.lanes[lane];
  if (getcontext(context) != 0) {
    abort();
  }
  context->uc_stack.ss_sp = lanes_model.stacks + (size_t)lane * LANES_MODEL_STACK;
  context->uc_stack.ss_size = LANES_MODEL_STACK;
  context->uc_link = &lanes_model.main;
  makecontext(context, lanes_model_enter, 0);
}

// Runs `run` on all lanes to its end. Aborts when lanes do not make the same calls.
static void lanes_model_run(uint32_t count, void (*run)(mgl_lanes lanes, void *context),
                            void *context) {
  if (lanes_model.stacks == NULL) {
    lanes_model.stacks = malloc((size_t)LANES_MODEL_MOST * LANES_MODEL_STACK);
    if (lanes_model.stacks == NULL) {
      abort();
    }
  }
  lanes_model.count = count;
  lanes_model.run = run;
  lanes_model.context = context;
  for (uint32_t i = 0; i < count; i++) {
    lanes_model_begin(i);
  }
  for (;;) {
    lanes_model_round();
    lanes_model.total = 0;
    lanes_model.least = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
      if (lanes_model.call[i] != lanes_model.call[0]) {
        abort();
      }
      uint32_t value = lanes_model.value[i];
      lanes_model.prefix[i] = lanes_model.total;
      lanes_model.total += value;
      lanes_model.least = value < lanes_model.least ? value : lanes_model.least;
    }
    if (lanes_model.call[0] == CALL_NONE) {
      return;
    }
  }
}

static void lanes_model_free(void) {
  free(lanes_model.stacks);
  lanes_model.stacks = NULL;
}

MGL_PLANNER_FN void mgl_lanes_sync(mgl_lanes lanes) {
  lanes_model_meet(CALL_SYNC, lanes.lane, 0);
}

MGL_PLANNER_FN uint32_t mgl_lanes_prefix(mgl_lanes lanes, uint32_t value, uint32_t *total) {
  lanes_model_meet(CALL_PREFIX, lanes.lane, value);
  *total = lanes_model.total;
  return lanes_model.prefix[lanes.lane];
}

MGL_PLANNER_FN uint32_t mgl_lanes_min(mgl_lanes lanes, uint32_t value) {
  lanes_model_meet(CALL_MIN, lanes.lane, value);
  return lanes_model.least;
}

#endif
