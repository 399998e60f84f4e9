// The forward context: all that the ops of an iteration may read besides their own inputs and
// weights. There is one a program, set when an iteration begins and poisoned when it is over.
//
// Who computes asks mgl_forward_plan, which fails an assertion behind the end, where the plan may
// be another iteration's already; and the plan's arrays, which stand for the program's inputs, are
// then at an address that no process has. What a caller asks for afterwards (logits, activations)
// needs the sizes of the iteration only, which stay (mgl_cpu_program.dims).
//
// Fields that other engines have here and this one has no use for: a flag for drafts, speculation,
// and token counts of data-parallel ranks. Nothing drafts, and ranks of one model share a plan.
#ifndef MGL_DEVICE_CPU_CPU_FORWARD_H
#define MGL_DEVICE_CPU_CPU_FORWARD_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "batch/plan.h"

#define MGL_FORWARD_POISON ((const void *)UINTPTR_MAX)

typedef struct mgl_forward {
  bool live;               // set by mgl_forward_begin, until mgl_forward_end
  const mgl_plan *plan;    // whose rows these are: positions, slots, pages, rows of logits, items
                           // of attention; borrowed until the end
  const mgl_kv_layer *kv;  // [tensors of the program] the KV caches that it reads and writes
  uint32_t padded_tokens;  // that graph and memory are made for, at least the plan's
  uint32_t rank, rank_count;  // of those that compute the same plan; 0 and 0: there is one
} mgl_forward;

static inline void mgl_forward_begin(mgl_forward *f, const mgl_forward *of) {
  *f = *of;
  f->live = true;
}

// Nothing where it is over already.
static inline void mgl_forward_end(mgl_forward *f) {
  *f = (mgl_forward){.plan = MGL_FORWARD_POISON, .kv = MGL_FORWARD_POISON};
}

static inline const mgl_plan *mgl_forward_plan(const mgl_forward *f) {
  assert(f->live);  // an op that runs behind the end of its iteration
  return f->plan;
}

#endif
