// Mistral: Llama's decoder; the sliding window of its layers is the config's.
#include "graph/decoder.h"

void mgl_family_build_mistral(mgl_decoder *d) {
  mgl_family_build_llama(d);
}
