// The router of a mixture of experts: which experts a token has, and with what weights.
#ifndef MGL_KERNELS_CPU_ROUTE_H
#define MGL_KERNELS_CPU_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

// The experts of tokens: op.def says which and with what weights. Unit: a token t. One function for
// all tables of kernels (cpu_kernels.h): a token's logits are few, and routes are the same bits
// whatever linears are computed with. NaNs count as the smallest.
typedef struct mgl_route_args {
  const float *logits;    // [T, E]
  const float *bias;      // [E] or NULL
  uint32_t expert_count;  // E, at most MGL_MAX_EXPERTS
  uint32_t slots;         // S, at most E
  mgl_scores scores;
  bool renormalise;
  float scale;
  uint32_t groups, top_groups;  // 0: none
  float *out;                   // [T, S, 2]
} mgl_route_args;

void mgl_route(const mgl_route_args *args, size_t begin, size_t end);

#endif
