// Which tile really writes an element of the result of an op of experts, for routes drawn at random:
// the inverse of mgl_expert_share_of, by other arithmetic. Tests of tiles and of compiled programs
// take the union that such a tile declares and look at what is written of it.
#ifndef MGL_TESTS_SUPPORT_EXPERT_OWNER_H
#define MGL_TESTS_SUPPORT_EXPERT_OWNER_H

#include <stdint.h>

#include "graph/graph.h"

enum { OWNER_MOST_EXPERTS = 64 };

// Routes of one iteration of an op with balance other than columns.
typedef struct expert_owner {
  uint64_t seed;
  uint32_t slots, experts, columns, width, chosen;
  uint32_t balance;
  uint32_t place[OWNER_MOST_EXPERTS];  // of a chosen expert among those
} expert_owner;

void expert_owner_init(expert_owner *owner, const mgl_graph *graph, const mgl_op *op,
                       uint32_t tokens, uint64_t seed);
uint32_t expert_owner_expert(const expert_owner *owner, uint32_t row);
// The tile unit; tasks that take pieces by turns have those that are drawn for them.
uint32_t expert_owner_unit(const expert_owner *owner, uint32_t row, uint32_t column);

#endif
