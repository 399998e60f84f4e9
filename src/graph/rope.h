// The rotary embedding as data: what a config's kind and parameters come to, computed when a
// program is built. From then on there are frequencies, and the rare rule that depends on a
// sequence's length; no kernel knows of kinds.
//
// The formulas are those of transformers (modeling_rope_utils), in its precision (f32 from the
// exponents on), so its roundings are part of the model.
//
// Two kinds depend on how long a sequence is. transformers asks for the largest position of a
// forward pass, so that what a prompt gives would depend on how it is cut. Here every token has a
// *length*: that of the prompt, if the token belongs to it, otherwise its own position + 1. That is
// what transformers does when a prompt is one forward pass and each token after it another.
//   dynamic   beyond the original context a token turns with the base
//             theta * (factor * length / original - (factor - 1)) ^ (RD / (RD - 2))
//   longrope  beyond it the second frequencies count. When an answer grows beyond it, the engine
//             computes the whole sequence again, as Phi3ForCausalLM.generate does; the other
//             classes of transformers go on with keys that were turned by the first ones.
#ifndef MGL_GRAPH_ROPE_H
#define MGL_GRAPH_ROPE_H

#include <stdint.h>

#include "graph/formulas.h"
#include "model/config.h"

typedef struct mgl_rope_frequencies {
  uint32_t half;         // RD / 2: pairs of a head that turn
  uint32_t value_count;  // half, or twice that: those of lengths above `original` behind the others
  float values[MGL_MAX_HEAD_DIM];
  double original;   // 0: frequencies do not depend on lengths
  double theta;      // of the base that grows, 0: none does
  double factor;     // how fast it grows
  double amplitude;  // of cos and sin
} mgl_rope_frequencies;

void mgl_rope_compute(const mgl_config *config, mgl_rope_frequencies *out);

// Whether a token of such a length turns otherwise than a token of a short sequence.
static inline bool mgl_rope_is_long(const mgl_rope *rope, uint64_t length) {
  return (rope->kind == MGL_ROPE_DYNAMIC || rope->kind == MGL_ROPE_LONGROPE) &&
         (double)length > rope->original_context;
}

#endif
