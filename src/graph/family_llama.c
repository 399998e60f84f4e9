// Llama 2 and 3.x: the plain decoder; rope, biases and windows are the config's.
#include "graph/decoder.h"

void mgl_family_build_llama(mgl_decoder *d) {
  uint32_t x = mgl_decoder_begin(d);
  for (uint32_t layer = 0; layer < d->config->layer_count; layer++) {
    uint32_t normed = mgl_decoder_norm(d, layer, "input_layernorm", x);
    mgl_qkv qkv = mgl_decoder_qkv(d, layer, normed);
    if (d->config->qk_norm) {
      mgl_decoder_qk_norm(d, layer, &qkv);
    }
    x = mgl_decoder_add(d, layer, "attended", x, mgl_decoder_attention(d, layer, qkv));
    normed = mgl_decoder_norm(d, layer, "post_attention_layernorm", x);
    x = mgl_decoder_feed_forward_or_experts(d, layer, x, normed);
  }
  mgl_decoder_end(d, x);
}
