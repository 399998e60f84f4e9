#include "grammar/matcher.h"

#include <string.h>

#include "base/alloc.h"

enum { MOST_OLD_STACKS = 2048 };  // before stacks that nothing names any more are dropped

static mgl_status take_over(mgl_matcher *m, const mgl_configuration *found, mgl_error *err) {
  void *items = m->at.pairs;
  MGL_TRY(mgl_grow(&items, &m->pair_capacity, found->count + 1u, sizeof *m->at.pairs, err));
  m->at.pairs = items;
  if (found->count > 0) {
    memcpy(m->at.pairs, found->pairs, found->count * sizeof *m->at.pairs);
  }
  m->at.count = found->count;
  m->at.accepts = found->accepts;
  return MGL_OK;
}

mgl_status mgl_matcher_init(mgl_matcher *m, const mgl_automaton *automaton, mgl_error *err) {
  mgl_configuration found;
  *m = (mgl_matcher){0};
  mgl_status status = mgl_steps_init(&m->steps, automaton, err);
  if (status == MGL_OK) {
    status = mgl_steps_begin(&m->steps, &found, err);
  }
  if (status == MGL_OK) {
    status = take_over(m, &found, err);
  }
  if (status != MGL_OK) {
    mgl_matcher_reset(m);
  }
  return status;
}

void mgl_matcher_reset(mgl_matcher *m) {
  mgl_steps_reset(&m->steps);
  mgl_free(m->at.pairs);
  *m = (mgl_matcher){0};
}

// Moves the stacks that are in use to fresh ones.
static mgl_status drop_old_stacks(mgl_matcher *m, mgl_error *err) {
  mgl_steps fresh;
  MGL_TRY(mgl_steps_init(&fresh, m->steps.automaton, err));
  for (uint32_t i = 0; i < m->at.count; i++) {
    mgl_pair *pair = &m->at.pairs[i];
    mgl_status status = mgl_steps_import(&fresh, &m->steps, pair->stack, &pair->stack, err);
    if (status != MGL_OK) {
      m->at.count = 0;
      mgl_steps_reset(&fresh);
      return status;
    }
  }
  mgl_steps_reset(&m->steps);
  m->steps = fresh;
  return MGL_OK;
}

mgl_status mgl_matcher_advance(mgl_matcher *m, const char *bytes, size_t count, bool *alive,
                               mgl_error *err) {
  const mgl_automaton *a = m->steps.automaton;
  *alive = true;
  for (size_t i = 0; i < count; i++) {
    uint8_t byte = (uint8_t)bytes[i];
    mgl_configuration found;
    mgl_closure_begin(&m->steps);
    for (uint32_t j = 0; j < m->at.count; j++) {
      const mgl_state *state = &a->states[m->at.pairs[j].state];
      const mgl_byte_edge *edges = &a->byte_edges[state->first_byte_edge];
      for (uint32_t k = 0; k < state->byte_edge_count; k++) {
        if (edges[k].low <= byte && byte <= edges[k].high) {
          MGL_TRY(
              mgl_closure_add(&m->steps, (mgl_pair){edges[k].target, m->at.pairs[j].stack}, err));
        }
      }
    }
    MGL_TRY(mgl_closure_finish(&m->steps, &found, err));
    MGL_TRY(take_over(m, &found, err));
    m->bytes++;
    if (found.count == 0 && !found.accepts) {
      *alive = false;
      return MGL_OK;
    }
    if (m->steps.stack_count > MOST_OLD_STACKS) {
      MGL_TRY(drop_old_stacks(m, err));
    }
  }
  return MGL_OK;
}
