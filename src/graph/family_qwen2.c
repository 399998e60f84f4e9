// Qwen2 and 2.5: Llama's decoder with biases on Q, K and V, which mgl_decoder_qkv adds by config.
#include <assert.h>

#include "graph/decoder.h"

void mgl_family_build_qwen2(mgl_decoder *d) {
  assert(d->config->qkv_bias);
  mgl_family_build_llama(d);
}
