// Between the two files that compile an automaton: automaton_build.c makes states and edges of
// expressions, automaton.c removes what leads nowhere and lays the rest out.
#ifndef MGL_GRAMMAR_AUTOMATON_PARTS_H
#define MGL_GRAMMAR_AUTOMATON_PARTS_H

#include "grammar/automaton.h"

typedef enum mgl_edge_kind { MGL_EDGE_BYTE, MGL_EDGE_EMPTY, MGL_EDGE_CALL } mgl_edge_kind;

typedef struct mgl_edge {
  uint32_t from, target;
  uint32_t rule;  // of calls
  uint8_t low, high;
  uint8_t kind;
} mgl_edge;

typedef struct mgl_draft {
  mgl_builder *b;
  mgl_edge *edges;  // [edge_count]
  size_t edge_count, edge_capacity;
  uint32_t state_count;
  uint32_t *starts, *ends;  // [rules of the builder]
} mgl_draft;

// States and edges of all rules. On failure the builder knows why.
void mgl_draft_build(mgl_draft *draft);

#endif
