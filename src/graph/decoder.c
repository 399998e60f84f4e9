#include "graph/decoder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/expert_weights.h"
#include "model/packed_weights.h"

// "model.layers.LAYER.NAME", in a buffer that lasts until the end of the full expression's block.
typedef struct tensor_name {
  char text[MGL_GRAPH_MAX_NAME_BYTES];
} tensor_name;

static tensor_name layer_weight(uint32_t layer, const char *name) {
  tensor_name result;
  (void)snprintf(result.text, sizeof result.text, "model.layers.%u.%s", layer, name);
  return result;
}

// Activations are named "LAYER.NAME".
static tensor_name layer_value(uint32_t layer, const char *name) {
  tensor_name result;
  (void)snprintf(result.text, sizeof result.text, "%u.%s", layer, name);
  return result;
}

// Of a quantised model, the matrices of the layers: all tools leave embedding and head as they are.
static bool is_drawn_in_codes(const mgl_config *config, const char *name) {
  const mgl_quant_method method = config->quantization.method;
  return method != MGL_QUANT_NONE && strstr(name, "_proj.weight") != NULL &&
         (method != MGL_QUANT_MXFP4 || strstr(name, ".experts.") != NULL);
}

// Declares a weight with the form that the checkpoint stores. Its shape is the config's; the
// loader compares it with the file's.
static uint32_t weight(mgl_decoder *d, const char *name, uint32_t rank, uint32_t rows,
                       uint32_t columns) {
  mgl_form form = mgl_form_plain(d->config->dtype);
  bool made = false;
  if (d->checkpoint == NULL && is_drawn_in_codes(d->config, name)) {
    form = d->config->quantization.drawn;
    form.group = form.group < columns ? form.group : columns;
  }
  if (d->checkpoint != NULL && d->graph->error.status == MGL_OK) {
    const mgl_stored_tensor *stored = NULL;
    if (mgl_checkpoint_find(d->checkpoint, name, &stored, &d->graph->error) != MGL_OK) {
      return MGL_NO_TENSOR;
    }
    made = stored->packed != NULL;
    form = made ? stored->packed->form : mgl_form_plain(stored->dtype);
  }
  mgl_dim dims[] = {MGL_DIM(rows), MGL_DIM(columns)};
  uint32_t tensor = mgl_graph_form_tensor(d->graph, name, MGL_PLACE_WEIGHT, form, rank, dims);
  if (tensor != MGL_NO_TENSOR) {
    d->graph->tensors[tensor].made = made;
  }
  return tensor;
}

// bf16 activations need weights that are exact in bf16, in every linear. One that is not ends this
// build with the graph's sticky error, and mgl_family_build starts again with f32.
static void check_act(mgl_decoder *d, uint32_t linear_weight) {
  if (d->graph->error.status == MGL_OK && d->act == MGL_DTYPE_BF16 &&
      !mgl_dtype_fits_bf16(d->graph->tensors[linear_weight].dtype)) {
    d->act_fits = false;
    (void)mgl_error_set(&d->graph->error, MGL_ERR_UNSUPPORTED, "not all weights are bf16");
  }
}

// x times the weight NAME.weight [features, columns], with NAME.bias if asked for.
static uint32_t linear(mgl_decoder *d, uint32_t layer, const char *name, const char *result,
                       uint32_t x, uint32_t features, uint32_t columns, bool bias, uint32_t heads) {
  char text[64];
  (void)snprintf(text, sizeof text, "%s.weight", name);
  uint32_t w = weight(d, layer_weight(layer, text).text, 2, features, columns);
  uint32_t b = MGL_NO_TENSOR;
  if (bias) {
    (void)snprintf(text, sizeof text, "%s.bias", name);
    b = weight(d, layer_weight(layer, text).text, 1, features, 0);
  }
  check_act(d, w);
  return mgl_graph_linear(d->graph, layer_value(layer, result).text, x, w, b, heads);
}

static uint32_t input(mgl_decoder *d, const char *name, mgl_dim dim) {
  return mgl_graph_tensor(d->graph, name, MGL_PLACE_INPUT, MGL_DTYPE_I32, 1, &dim);
}

uint32_t mgl_decoder_begin(mgl_decoder *d) {
  const mgl_config *c = d->config;
  d->tokens = input(d, "tokens", MGL_DIM_T);
  d->positions = input(d, "positions", MGL_DIM_T);
  d->slots = input(d, "slots", MGL_DIM_T);
  d->block_tables = input(d, "block_tables", MGL_DIM_R);
  d->logit_rows = input(d, "logit_rows", MGL_DIM_L);
  uint32_t table = weight(d, "model.embed_tokens.weight", 2, c->vocab_size, c->hidden_size);
  mgl_rope_frequencies rope;
  mgl_rope_compute(c, &rope);
  // Where whole heads turn, what cos and sin are multiplied with goes into the scores: the product
  // of a Q and a K has its square. So no kernel of theirs needs to know.
  d->scale = 1.0 / sqrt((double)c->head_dim);
  if (2 * rope.half == c->head_dim) {
    d->scale *= rope.amplitude * rope.amplitude;
    rope.amplitude = 1;
  }
  uint32_t lengths = rope.original != 0 ? input(d, "rope_lengths", MGL_DIM_T) : MGL_NO_TENSOR;
  d->angles = mgl_graph_rope_angles(d->graph, "angles", d->positions, lengths, &rope);
  return mgl_graph_embed(d->graph, "embedded", d->tokens, table);
}

uint32_t mgl_decoder_norm(mgl_decoder *d, uint32_t layer, const char *name, uint32_t x) {
  char text[64];
  (void)snprintf(text, sizeof text, "%s.weight", name);
  uint32_t w = weight(d, layer_weight(layer, text).text, 1, d->config->hidden_size, 0);
  return mgl_graph_rmsnorm(d->graph, layer_value(layer, name).text, d->act, x, w, MGL_NO_TENSOR,
                           d->config->rms_norm_eps);
}

// Weight and bias of a layer norm of that name.
static mgl_norm_weights layernorm_weights(mgl_decoder *d, const char *name) {
  char text[MGL_GRAPH_MAX_NAME_BYTES + 8];
  (void)snprintf(text, sizeof text, "%s.weight", name);
  uint32_t w = weight(d, text, 1, d->config->hidden_size, 0);
  (void)snprintf(text, sizeof text, "%s.bias", name);
  return (mgl_norm_weights){.weight = w, .shift = weight(d, text, 1, d->config->hidden_size, 0)};
}

uint32_t mgl_decoder_layernorm(mgl_decoder *d, uint32_t layer, const char *name, uint32_t x) {
  mgl_norm_weights weights = layernorm_weights(d, layer_weight(layer, name).text);
  return mgl_graph_layernorm(d->graph, layer_value(layer, name).text, d->act, x, weights,
                             MGL_NO_TENSOR, d->config->rms_norm_eps);
}

mgl_qkv mgl_decoder_qkv(mgl_decoder *d, uint32_t layer, uint32_t x) {
  const mgl_config *c = d->config;
  uint32_t q_features = c->head_count * c->head_dim;
  uint32_t kv_features = c->kv_head_count * c->head_dim;
  return (mgl_qkv){
      .q = linear(d, layer, "self_attn.q_proj", "q", x, q_features, c->hidden_size, c->qkv_bias,
                  c->head_count),
      .k = linear(d, layer, "self_attn.k_proj", "k", x, kv_features, c->hidden_size, c->qkv_bias,
                  c->kv_head_count),
      .v = linear(d, layer, "self_attn.v_proj", "v", x, kv_features, c->hidden_size, c->qkv_bias,
                  c->kv_head_count),
  };
}

void mgl_decoder_qk_norm(mgl_decoder *d, uint32_t layer, mgl_qkv *qkv) {
  const mgl_config *c = d->config;
  const uint32_t q = c->whole_qk_norm ? c->head_count * c->head_dim : c->head_dim;
  const uint32_t k = c->whole_qk_norm ? c->kv_head_count * c->head_dim : c->head_dim;
  uint32_t wq = weight(d, layer_weight(layer, "self_attn.q_norm.weight").text, 1, q, 0);
  uint32_t wk = weight(d, layer_weight(layer, "self_attn.k_norm.weight").text, 1, k, 0);
  qkv->q = mgl_graph_rmsnorm(d->graph, layer_value(layer, "q_norm").text, MGL_DTYPE_F32, qkv->q, wq,
                             MGL_NO_TENSOR, c->rms_norm_eps);
  qkv->k = mgl_graph_rmsnorm(d->graph, layer_value(layer, "k_norm").text, MGL_DTYPE_F32, qkv->k, wk,
                             MGL_NO_TENSOR, c->rms_norm_eps);
}

uint32_t mgl_decoder_attention(mgl_decoder *d, uint32_t layer, mgl_qkv qkv) {
  const mgl_config *c = d->config;
  mgl_dim kv_dims[] = {MGL_DIM(c->kv_head_count), MGL_DIM(c->head_dim)};
  char kv_name[32];
  (void)snprintf(kv_name, sizeof kv_name, "kv.%u", layer);
  uint32_t kv = mgl_graph_tensor(d->graph, kv_name, MGL_PLACE_KV, d->act, 2, kv_dims);
  uint32_t q = mgl_graph_rope(d->graph, layer_value(layer, "q_rope").text, qkv.q, d->angles);
  uint32_t k = mgl_graph_rope(d->graph, layer_value(layer, "k_rope").text, qkv.k, d->angles);
  mgl_graph_kv_write(d->graph, k, qkv.v, d->slots, kv);
  mgl_attention_inputs inputs = {.q = q,
                                 .kv = kv,
                                 .positions = d->positions,
                                 .block_tables = d->block_tables,
                                 .scale = d->scale,
                                 .window = mgl_config_window(c, layer),
                                 .sinks = MGL_NO_TENSOR};
  if (c->sinks) {
    inputs.sinks = weight(d, layer_weight(layer, "self_attn.sinks").text, 1, c->head_count, 0);
  }
  uint32_t attended =
      mgl_graph_attention(d->graph, layer_value(layer, "attention").text, d->act, &inputs);
  return linear(d, layer, d->output_name, "o", attended, c->hidden_size,
                c->head_count * c->head_dim, c->output_bias, 0);
}

// down(silu(gate(x)) * up(x)) with weights "PREFIX.gate_proj" and so on, F = inner.
static uint32_t gated_feed_forward(mgl_decoder *d, uint32_t layer, const char *prefix,
                                   const char *result, uint32_t inner, uint32_t x) {
  const mgl_config *c = d->config;
  char name[64];
  (void)snprintf(name, sizeof name, "%s.gate_proj", prefix);
  uint32_t gate = linear(d, layer, name, "gate", x, inner, c->hidden_size, c->mlp_bias, 0);
  (void)snprintf(name, sizeof name, "%s.up_proj", prefix);
  uint32_t up = linear(d, layer, name, "up", x, inner, c->hidden_size, c->mlp_bias, 0);
  uint32_t gated = mgl_graph_silu_mul(d->graph, layer_value(layer, result).text, d->act, gate, up);
  (void)snprintf(name, sizeof name, "%s.down_proj", prefix);
  return linear(d, layer, name, "down", gated, c->hidden_size, inner, c->mlp_bias, 0);
}

uint32_t mgl_decoder_feed_forward(mgl_decoder *d, uint32_t layer, uint32_t x) {
  return gated_feed_forward(d, layer, "mlp", "gated", d->config->intermediate_size, x);
}

// --- mixtures of experts -------------------------------------------------------------------------

// Names of a mixture's weights, behind "model.layers.LAYER.".
typedef struct mixture_names {
  const char *router, *gate, *up, *down;
  const char *choice_bias;  // NULL: none, whatever the config says
  const char *router_bias, *gate_bias, *up_bias, *down_bias;  // likewise
} mixture_names;

static const mixture_names usual_names = {.router = "mlp.gate.weight",
                                          .gate = "mlp.experts.gate_proj.weight",
                                          .up = "mlp.experts.up_proj.weight",
                                          .down = "mlp.experts.down_proj.weight",
                                          .choice_bias = "mlp.gate.e_score_correction_bias"};
static const mixture_names mixtral_names = {.router = "block_sparse_moe.gate.weight",
                                            .gate = "block_sparse_moe.experts.w1.weight",
                                            .up = "block_sparse_moe.experts.w3.weight",
                                            .down = "block_sparse_moe.experts.w2.weight"};
static const mixture_names oss_names = {.router = "mlp.router.weight",
                                        .gate = "mlp.experts.gate_proj.weight",
                                        .up = "mlp.experts.up_proj.weight",
                                        .down = "mlp.experts.down_proj.weight",
                                        .router_bias = "mlp.router.bias",
                                        .gate_bias = "mlp.experts.gate_proj.bias",
                                        .up_bias = "mlp.experts.up_proj.bias",
                                        .down_bias = "mlp.experts.down_proj.bias"};
static const mixture_names shared_names = {.router = "mlp.shared_expert_gate.weight",
                                           .gate = "mlp.shared_expert.gate_proj.weight",
                                           .up = "mlp.shared_expert.up_proj.weight",
                                           .down = "mlp.shared_expert.down_proj.weight"};

// Declares the matrices [rows, columns] of all experts as one tensor, in the form of the first one.
static uint32_t expert_weight(mgl_decoder *d, uint32_t layer, const char *name, uint32_t experts,
                              uint32_t rows, uint32_t columns) {
  const tensor_name all = layer_weight(layer, name);
  mgl_form form = mgl_form_plain(d->config->dtype);
  bool made = false;
  if (d->checkpoint != NULL && d->graph->error.status == MGL_OK) {
    tensor_name first;
    const mgl_stored_tensor *stored = NULL;
    mgl_expert_weight_name(all.text, 0, first.text, sizeof first.text);
    if (mgl_checkpoint_find(d->checkpoint, first.text, &stored, &d->graph->error) != MGL_OK) {
      return MGL_NO_TENSOR;
    }
    made = stored->packed != NULL;
    form = made ? stored->packed->form : mgl_form_plain(stored->dtype);
  } else if (is_drawn_in_codes(d->config, all.text)) {
    form = d->config->quantization.drawn;
    form.group = form.group < columns ? form.group : columns;
  }
  mgl_dim dims[] = {MGL_DIM(experts), MGL_DIM(rows), MGL_DIM(columns)};
  uint32_t tensor = mgl_graph_form_tensor(d->graph, all.text, MGL_PLACE_WEIGHT, form, 3, dims);
  if (tensor != MGL_NO_TENSOR) {
    d->graph->tensors[tensor].made = made;
  }
  check_act(d, tensor);
  return tensor;
}

// A bias of a mixture, or MGL_NO_TENSOR where the model has none.
static uint32_t mixture_bias(mgl_decoder *d, uint32_t layer, const char *name, bool has,
                             uint32_t elements) {
  return name != NULL && has ? weight(d, layer_weight(layer, name).text, 1, elements, 0)
                             : MGL_NO_TENSOR;
}

// x plus what `options->slots` of so many experts make of the normed x.
static uint32_t mix(mgl_decoder *d, uint32_t layer, const mixture_names *names, const char *prefix,
                    uint32_t experts, uint32_t inner, const mgl_route_options *options, uint32_t x,
                    uint32_t normed) {
  const uint32_t hidden = d->config->hidden_size;
  const mgl_mixture *m = &d->config->mixture;
  char text[64];
  uint32_t router = weight(d, layer_weight(layer, names->router).text, 2, experts, hidden);
  check_act(d, router);
  (void)snprintf(text, sizeof text, "%srouter", prefix);
  uint32_t bias = mixture_bias(d, layer, names->router_bias, m->router_bias, experts);
  uint32_t logits =
      mgl_graph_linear(d->graph, layer_value(layer, text).text, normed, router, bias, 0);
  (void)snprintf(text, sizeof text, "%sroutes", prefix);
  bias = mixture_bias(d, layer, names->choice_bias, m->choice_bias, experts);
  uint32_t routes = mgl_graph_route(d->graph, layer_value(layer, text).text, logits, bias, options);
  const mgl_expert_weights weights = {
      .gate = expert_weight(d, layer, names->gate, experts, inner, hidden),
      .up = expert_weight(d, layer, names->up, experts, inner, hidden),
      .down = expert_weight(d, layer, names->down, experts, hidden, inner),
      .gate_bias = mixture_bias(d, layer, names->gate_bias, m->expert_biases, experts * inner),
      .up_bias = mixture_bias(d, layer, names->up_bias, m->expert_biases, experts * inner),
      .down_bias = mixture_bias(d, layer, names->down_bias, m->expert_biases, experts * hidden)};
  (void)snprintf(text, sizeof text, "%sgated", prefix);
  uint32_t gated = mgl_graph_expert_gate_up(d->graph, layer_value(layer, text).text, d->act, normed,
                                            routes, &weights, m->limit);
  (void)snprintf(text, sizeof text, "%sfed_forward", prefix);
  return mgl_graph_expert_down(d->graph, layer_value(layer, text).text, x, gated, routes, &weights);
}

uint32_t mgl_decoder_feed_forward_or_experts(mgl_decoder *d, uint32_t layer, uint32_t x,
                                             uint32_t normed) {
  const mgl_mixture *m = &d->config->mixture;
  if (!mgl_config_is_mixture(d->config, layer)) {
    return mgl_decoder_add(d, layer, "fed_forward", x, mgl_decoder_feed_forward(d, layer, normed));
  }
  const mgl_route_options options = {.slots = m->slots,
                                     .scores = m->scores,
                                     .renormalise = m->renormalise,
                                     .scale = m->scale,
                                     .groups = m->groups,
                                     .top_groups = m->top_groups};
  const mixture_names *names = d->config->family == MGL_FAMILY_MIXTRAL   ? &mixtral_names
                               : d->config->family == MGL_FAMILY_GPT_OSS ? &oss_names
                                                                         : &usual_names;
  if (m->shared_size != 0 && !m->shared_gate) {
    uint32_t shared =
        gated_feed_forward(d, layer, "mlp.shared_experts", "shared_gated", m->shared_size, normed);
    x = mgl_decoder_add(d, layer, "shared", x, shared);
  } else if (m->shared_size != 0) {  // a mixture of one, whose weight the sigmoid of its logit is
    const mgl_route_options shared = {.slots = 1, .scores = MGL_SCORES_SIGMOID, .scale = 1};
    x = mix(d, layer, &shared_names, "shared_", 1, m->shared_size, &shared, x, normed);
  }
  return mix(d, layer, names, "", m->expert_count, m->inner_size, &options, x, normed);
}

uint32_t mgl_decoder_gelu_feed_forward(mgl_decoder *d, uint32_t layer, uint32_t x) {
  const mgl_config *c = d->config;
  uint32_t inner =
      linear(d, layer, "mlp.fc1", "inner", x, c->intermediate_size, c->hidden_size, c->mlp_bias, 0);
  uint32_t active = mgl_graph_gelu(d->graph, layer_value(layer, "active").text, d->act, inner);
  return linear(d, layer, "mlp.fc2", "down", active, c->hidden_size, c->intermediate_size,
                c->mlp_bias, 0);
}

uint32_t mgl_decoder_add(mgl_decoder *d, uint32_t layer, const char *name, uint32_t x, uint32_t y) {
  return mgl_graph_add(d->graph, layer_value(layer, name).text, x, y);
}

// Whether the output projection is the embedding table. As in transformers 5, a head that the
// checkpoint stores beside a tied embedding counts where it differs; a copy is read as one.
static bool head_is_embedding(mgl_decoder *d) {
  const mgl_stored_tensor *head = NULL;
  const mgl_stored_tensor *table = NULL;
  if (!d->config->tie_word_embeddings || d->checkpoint == NULL ||
      d->graph->error.status != MGL_OK || !mgl_checkpoint_has(d->checkpoint, "lm_head.weight")) {
    return d->config->tie_word_embeddings;
  }
  if (mgl_checkpoint_find(d->checkpoint, "lm_head.weight", &head, &d->graph->error) != MGL_OK ||
      mgl_checkpoint_find(d->checkpoint, "model.embed_tokens.weight", &table, &d->graph->error) !=
          MGL_OK) {
    return false;  // the graph's sticky error ends the build
  }
  return head->packed == NULL && table->packed == NULL && head->dtype == table->dtype &&
         head->rank == table->rank &&
         memcmp(head->dims, table->dims, head->rank * sizeof *head->dims) == 0 &&
         head->bytes == table->bytes && memcmp(head->data, table->data, head->bytes) == 0;
}

// The output projection of normed rows.
static void project(mgl_decoder *d, uint32_t last) {
  const mgl_config *c = d->config;
  uint32_t head = head_is_embedding(d)
                      ? mgl_graph_find(d->graph, "model.embed_tokens.weight")
                      : weight(d, "lm_head.weight", 2, c->vocab_size, c->hidden_size);
  uint32_t bias = c->head_bias ? weight(d, "lm_head.bias", 1, c->vocab_size, 0) : MGL_NO_TENSOR;
  check_act(d, head);
  mgl_graph_mark_output(d->graph, mgl_graph_linear(d->graph, "logits", last, head, bias, 0));
}

void mgl_decoder_end(mgl_decoder *d, uint32_t x) {
  uint32_t norm = weight(d, "model.norm.weight", 1, d->config->hidden_size, 0);
  project(d, mgl_graph_rmsnorm(d->graph, "final_norm", d->act, x, norm, d->logit_rows,
                               d->config->rms_norm_eps));
}

void mgl_decoder_end_layernorm(mgl_decoder *d, uint32_t x) {
  mgl_norm_weights weights = layernorm_weights(d, "model.final_layernorm");
  project(d, mgl_graph_layernorm(d->graph, "final_norm", d->act, x, weights, d->logit_rows,
                                 d->config->rms_norm_eps));
}
