#include "support/expert_owner.h"

#include <assert.h>
#include <string.h>

#include "graph/balance.h"

static uint32_t draw(uint64_t seed, uint64_t number, uint32_t below) {
  uint64_t hash =
      (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (number + 1) * UINT64_C(0xbf58476d1ce4e5b9);
  hash ^= hash >> 29;
  hash *= UINT64_C(0x94d049bb133111eb);
  return (uint32_t)((hash >> 32) % below);
}

uint32_t expert_owner_expert(const expert_owner *owner, uint32_t row) {
  // Seeds that are multiples of 3: all tokens choose the same experts.
  const uint32_t token = owner->seed % 3 == 0 ? 0 : row / owner->slots;
  return (draw(owner->seed, token, owner->experts) + row % owner->slots) % owner->experts;
}

void expert_owner_init(expert_owner *owner, const mgl_graph *graph, const mgl_op *op,
                       uint32_t tokens, uint64_t seed) {
  const mgl_tensor *w = mgl_graph_input(graph, op, MGL_ROLE_EXPERTS);
  *owner = (expert_owner){.seed = seed,
                          .slots = mgl_op_slots(graph, op),
                          .experts = w->dims[0].number,
                          .columns = w->dims[1].number,
                          .balance = (uint32_t)op->attrs[MGL_ATTR_BALANCE]};
  bool chosen[OWNER_MOST_EXPERTS] = {false};
  assert(owner->experts <= OWNER_MOST_EXPERTS);
  owner->width = (owner->columns + 15) & ~15u;
  for (uint32_t row = 0; row < tokens * owner->slots; row++) {
    chosen[expert_owner_expert(owner, row)] = true;
  }
  for (uint32_t e = 0; e < owner->experts; e++) {
    owner->place[e] = owner->chosen;
    owner->chosen += chosen[e];
  }
}

uint32_t expert_owner_unit(const expert_owner *owner, uint32_t row, uint32_t column) {
  const uint32_t expert = expert_owner_expert(owner, row);
  uint32_t unit = column;
  if (owner->balance == MGL_BALANCE_STATIC) {
    unit = (expert * owner->width + column) / owner->experts;
  } else if (owner->balance == MGL_BALANCE_HYBRID) {
    unit = (owner->place[expert] * owner->width + column) / owner->chosen;
  } else if (owner->balance == MGL_BALANCE_DYNAMIC) {
    unit = draw(owner->seed, (owner->place[expert] * owner->width + column) / 16, owner->columns);
  }
  return unit < owner->columns ? unit : owner->columns - 1;  // the last has what is rounded up to
}
