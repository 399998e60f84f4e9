// Phi-3, 3.5, 4 and 4-mini: Llama's decoder. Its checkpoints fuse Q, K and V, and gate and up, into
// one matrix each; the rows are found by model/fused_weights.h, so that the program has them apart.
#include "graph/decoder.h"

void mgl_family_build_phi3(mgl_decoder *d) {
  mgl_family_build_llama(d);
}
