// What the model families share: a decoder of pre-norm layers with grouped-query attention and a
// feed-forward part, gated or not. A family file composes these parts in the order in which a token
// meets them.
#ifndef MGL_GRAPH_DECODER_H
#define MGL_GRAPH_DECODER_H

#include "graph/graph.h"
#include "model/config.h"
#include "model/safetensors.h"

// State of one build. The uint32_t are tensor indices.
typedef struct mgl_decoder {
  mgl_graph *graph;
  const mgl_config *config;
  const mgl_checkpoint *checkpoint;  // NULL: weights take config->dtype
  mgl_dtype act;                     // dtype of activations that feed linears, and of the KV cache
  bool act_fits;                     // false once a linear weight was met that is not bf16
  uint32_t tokens, positions, slots, block_tables, logit_rows;
  uint32_t angles;
  double scale;             // of attention's scores
  const char *output_name;  // of its output projection
} mgl_decoder;

typedef struct mgl_qkv {
  uint32_t q, k, v;  // f32 [T, heads, HD]
} mgl_qkv;

// Declares the inputs and the rotary angles; returns the embedded tokens x, f32 [T, D].
uint32_t mgl_decoder_begin(mgl_decoder *decoder);
// RMS norm of x with weight "model.layers.LAYER.NAME.weight".
uint32_t mgl_decoder_norm(mgl_decoder *decoder, uint32_t layer, const char *name, uint32_t x);
// The same with a layer norm, which also has ".bias".
uint32_t mgl_decoder_layernorm(mgl_decoder *decoder, uint32_t layer, const char *name, uint32_t x);
// The three projections of the normed x, with bias if the config says so.
mgl_qkv mgl_decoder_qkv(mgl_decoder *decoder, uint32_t layer, uint32_t x);
// RMS norm of every head of q and k (weights q_norm and k_norm), or of all heads together.
void mgl_decoder_qk_norm(mgl_decoder *decoder, uint32_t layer, mgl_qkv *qkv);
// RoPE, KV write, attention (with the layer's window), output projection.
uint32_t mgl_decoder_attention(mgl_decoder *decoder, uint32_t layer, mgl_qkv qkv);
// down(silu(gate(x)) * up(x)), with biases if the config says so.
uint32_t mgl_decoder_feed_forward(mgl_decoder *decoder, uint32_t layer, uint32_t x);
// x plus the feed-forward part of the normed x: the gated one, or the layer's mixture of experts.
uint32_t mgl_decoder_feed_forward_or_experts(mgl_decoder *decoder, uint32_t layer, uint32_t x,
                                             uint32_t normed);
// fc2(gelu(fc1(x))), likewise.
uint32_t mgl_decoder_gelu_feed_forward(mgl_decoder *decoder, uint32_t layer, uint32_t x);
// x + y; `name` distinguishes the two sums of a layer.
uint32_t mgl_decoder_add(mgl_decoder *decoder, uint32_t layer, const char *name, uint32_t x,
                         uint32_t y);
// Final norm of the rows that need logits, and the output projection: output "logits". A tied
// projection is the embedding, unless the checkpoint stores a "lm_head.weight" that differs.
void mgl_decoder_end(mgl_decoder *decoder, uint32_t x);

// The same behind the layer norm "model.final_layernorm".
void mgl_decoder_end_layernorm(mgl_decoder *decoder, uint32_t x);

// The family builders, each in its own file.
void mgl_family_build_qwen3(mgl_decoder *decoder);
void mgl_family_build_qwen2(mgl_decoder *decoder);
void mgl_family_build_llama(mgl_decoder *decoder);
void mgl_family_build_mistral(mgl_decoder *decoder);
void mgl_family_build_phi3(mgl_decoder *decoder);
void mgl_family_build_phi(mgl_decoder *decoder);

#endif
