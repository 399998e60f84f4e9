// Where a text can be in an automaton: sets of pairs of a state and a stack.
//
// A stack is a node in a tree of return addresses, each with its parent, so that stacks share what
// they have in common; equal stacks are one node, so pairs compare as two numbers. One thread each.
//   Rejected: sets of whole stacks, each an array; a grammar of some depth copies them per byte.
#ifndef MGL_GRAMMAR_CONFIGURATIONS_H
#define MGL_GRAMMAR_CONFIGURATIONS_H

#include "grammar/automaton.h"

enum {
  MGL_GRAMMAR_MAX_DEPTH = 256,   // of calls within calls while a text is matched
  MGL_GRAMMAR_MAX_PAIRS = 4096,  // that one byte may lead to: more is too ambiguous
  MGL_GRAMMAR_MAX_STACKS = 1 << 18,
};

typedef struct mgl_pair {
  uint32_t state;
  uint32_t stack;  // 0: nothing to return to
} mgl_pair;

typedef struct mgl_stack {
  uint32_t state;  // to return to
  uint32_t parent;
  uint32_t depth;
  uint32_t next;  // in its bucket
} mgl_stack;

// Where a text is: the pairs whose states take bytes, ascending, and whether it may end here.
typedef struct mgl_configuration {
  mgl_pair *pairs;  // [count]
  uint32_t count;
  bool accepts;
} mgl_configuration;

// Zero-initialise, then mgl_steps_init.
typedef struct mgl_steps {
  const mgl_automaton *automaton;  // borrowed
  mgl_stack *stacks;               // [stack_count]; stacks[0] is the empty one
  size_t stack_count, stack_capacity;
  uint32_t *buckets;  // [bucket_count] a power of two
  size_t bucket_count;
  // Of one closure:
  mgl_pair *found;  // [found_count] all pairs, in the order in which they were found
  size_t found_count, found_capacity;
  uint32_t *seen;  // [seen_count] a power of two: one more than the index in `found`, 0: free
  size_t seen_count;
  mgl_pair *kept;  // [found_capacity] those that take bytes
  bool accepts;
  uint64_t work;  // pairs found so far
} mgl_steps;

mgl_status mgl_steps_init(mgl_steps *steps, const mgl_automaton *automaton, mgl_error *err);
void mgl_steps_reset(mgl_steps *steps);   // an all-zero one is fine
void mgl_steps_forget(mgl_steps *steps);  // all stacks; pairs that name them mean nothing then

// A closure: begin, add what it begins with, finish. *out is borrowed until the next one.
void mgl_closure_begin(mgl_steps *steps);
mgl_status mgl_closure_add(mgl_steps *steps, mgl_pair pair, mgl_error *err);
mgl_status mgl_closure_finish(mgl_steps *steps, mgl_configuration *out, mgl_error *err);

// Where a text begins.
mgl_status mgl_steps_begin(mgl_steps *steps, mgl_configuration *out, mgl_error *err);

// The stack `from_stack` of other steps over the same automaton, in these.
mgl_status mgl_steps_import(mgl_steps *steps, const mgl_steps *from, uint32_t from_stack,
                            uint32_t *out, mgl_error *err);

#endif
