// Phi-1, 1.5 and 2: attention and a feed-forward part without a gate read the same layer norm, and
// both are added to the residual. No op of it is fused: a family that runs by the model's own ops.
#include "graph/decoder.h"

void mgl_family_build_phi(mgl_decoder *d) {
  d->output_name = "self_attn.dense";
  uint32_t x = mgl_decoder_begin(d);
  for (uint32_t layer = 0; layer < d->config->layer_count; layer++) {
    uint32_t normed = mgl_decoder_layernorm(d, layer, "input_layernorm", x);
    uint32_t attended = mgl_decoder_attention(d, layer, mgl_decoder_qkv(d, layer, normed));
    uint32_t fed = mgl_decoder_gelu_feed_forward(d, layer, normed);
    x = mgl_decoder_add(d, layer, "attended", x, attended);
    x = mgl_decoder_add(d, layer, "fed_forward", x, fed);
  }
  mgl_decoder_end_layernorm(d, x);
}
