// Mistral without a sliding window (config.c refuses one that would change results): Llama's
// decoder.
#include "graph/decoder.h"

void mgl_family_build_mistral(mgl_decoder *d) {
  mgl_family_build_llama(d);
}
