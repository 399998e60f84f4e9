// Formulas that more than one place computes by, on the host and on a GPU: what is rounded where is
// part of a model. One source for both; libm's functions are all that it needs.
#ifndef MGL_GRAPH_FORMULAS_H
#define MGL_GRAPH_FORMULAS_H

#include <stdint.h>

#ifndef __CUDACC__
#include <math.h>
#endif

// gelu by tanh is x / (1 + exp(-MGL_GELU_SLOPE (x + MGL_GELU_CUBE x^3))).
#define MGL_GELU_SLOPE 0x1.988454p+0f  // 2 sqrt(2 / pi)
#define MGL_GELU_CUBE 0.044715f

// Inverse frequency i of a rope of RD = 2 * half dims with this base. (Kernels compute those of a
// base that grows.)
static inline float mgl_rope_frequency(float base, uint32_t i, uint32_t half) {
  return 1.0f / powf(base, (float)(2 * i) / (float)(2 * half));
}

// The base of kind dynamic (graph/rope.h) for a length above `original`.
static inline float mgl_rope_grown_base(double theta, double factor, double original,
                                        uint32_t length, uint32_t half) {
  double growth = factor * length / original - (factor - 1);
  double dims = 2.0 * half;
  return (float)(theta * pow(growth, dims / (dims - 2)));
}

#endif
