// Limits that many folders share, host and device: each has one name, and stands here. What only
// one folder knows stays in its header.
#ifndef MGL_BASE_LIMITS_H
#define MGL_BASE_LIMITS_H

enum {
  MGL_MAX_ITERATION_TOKENS = 2048,  // rows of a plan, and what the largest task graph is for
  MGL_MAX_SEQUENCES = 1024,         // that run at once: slots of the planner
  MGL_MAX_CONTEXT = 1 << 24,        // tokens of a sequence
  MGL_MAX_VOCAB = 1 << 20,          // tokens that a model knows
  MGL_MAX_RANKS = 8,                // processes that run one model together
};

#endif
