// The pushdown automaton over bytes that a grammar becomes.
//
// Each rule is a small automaton without memory, whose edges take a byte, or take nothing, or call
// another rule; the stack holds where calls return to. It stays nondeterministic: making it
// deterministic can take exponentially many states, and what a text reaches of them is made while
// it is matched (configurations.h). From every state that is left some text leads to the end of its
// rule, so a text that is alive can always be completed. No rule calls itself before it has taken a
// byte: each closure is finite. Immutable once compiled; many threads may read it.
#ifndef MGL_GRAMMAR_AUTOMATON_H
#define MGL_GRAMMAR_AUTOMATON_H

#include "grammar/expression.h"

typedef struct mgl_byte_edge {
  uint32_t target;
  uint8_t low, high;
} mgl_byte_edge;

enum { MGL_NO_RULE = UINT32_MAX };

// Taken without a byte.
typedef struct mgl_free_edge {
  uint32_t target;  // of calls: where they return to
  uint32_t rule;    // MGL_NO_RULE: no call
  bool is_tail;     // nothing is left to do where the call returns to: it leaves no trace
} mgl_free_edge;

typedef struct mgl_state {
  uint32_t first_byte_edge, byte_edge_count;
  uint32_t first_free_edge, free_edge_count;
  bool is_end;  // of its rule
} mgl_state;

typedef struct mgl_automaton {
  mgl_state *states;  // [state_count]
  uint32_t state_count;
  mgl_byte_edge *byte_edges;
  mgl_free_edge *free_edges;
  uint32_t byte_edge_count, free_edge_count;
  uint32_t *starts;  // [rule_count] the first state of each rule
  uint32_t rule_count;
} mgl_automaton;

// Compiles rule `root` and what it calls. Refused, with the name of a rule: recursion on the left,
// and a root that no finite text matches.
mgl_status mgl_automaton_compile(mgl_builder *b, uint32_t root, mgl_automaton **out,
                                 mgl_error *err);
void mgl_automaton_destroy(mgl_automaton *automaton);  // NULL is fine

#endif
