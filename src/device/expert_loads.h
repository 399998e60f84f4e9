// What the experts of mixtures had to do: which a device counts, and commands and metrics show.
#ifndef MGL_DEVICE_EXPERT_LOADS_H
#define MGL_DEVICE_EXPERT_LOADS_H

#include <stdint.h>

// Since the start, over all mixtures of the model: layers whose experts data choose. All 0 where
// there are none, and on devices that do not count.
typedef struct mgl_expert_loads {
  uint32_t mixtures;
  uint32_t experts;          // of each
  uint64_t rows;             // that experts computed: tokens times their slots
  uint64_t runs;             // of mixtures: iterations times mixtures
  uint64_t reads;            // of experts' weights: of each run, as many as it hit
  uint64_t bytes;            // that these reads are
  uint64_t step_bytes;       // the part of a step of one token
  double largest_over_mean;  // of a mixture: rows of its busiest expert over the mean of its
                             // experts; the mean over mixtures
  double most_over_mean;     // of the mixture where that is most
} mgl_expert_loads;

// What routers of dummy weights do: as their random weights make them; of which later experts are
// chosen less and less; or all tokens choose the same experts.
typedef enum mgl_routing { MGL_ROUTING_UNIFORM, MGL_ROUTING_SKEWED, MGL_ROUTING_ONE } mgl_routing;

#endif
