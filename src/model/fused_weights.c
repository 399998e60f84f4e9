#include "model/fused_weights.h"

#include <stdio.h>

#include "base/alloc.h"

enum {
  PARTS = 5,  // of a layer
  NAME_BYTES = 64,
};

// A layer's parts, with their texts.
typedef struct fused_layer {
  char qkv[NAME_BYTES], gate_up[NAME_BYTES], names[PARTS][NAME_BYTES];
} fused_layer;

static void name_layer(const mgl_config *config, uint32_t layer, fused_layer *texts,
                       mgl_tensor_part parts[PARTS]) {
  static const char *const names[PARTS] = {"self_attn.q_proj", "self_attn.k_proj",
                                           "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"};
  const uint64_t q = (uint64_t)config->head_count * config->head_dim;
  const uint64_t kv = (uint64_t)config->kv_head_count * config->head_dim;
  const uint64_t inner = config->intermediate_size;
  const uint64_t rows[PARTS] = {q, kv, kv, inner, inner};
  const uint64_t first[PARTS] = {0, q, q + kv, 0, inner};
  (void)snprintf(texts->qkv, NAME_BYTES, "model.layers.%u.self_attn.qkv_proj.weight", layer);
  (void)snprintf(texts->gate_up, NAME_BYTES, "model.layers.%u.mlp.gate_up_proj.weight", layer);
  for (int i = 0; i < PARTS; i++) {
    (void)snprintf(texts->names[i], NAME_BYTES, "model.layers.%u.%s.weight", layer, names[i]);
    parts[i] = (mgl_tensor_part){.matrix = i < 3 ? texts->qkv : texts->gate_up,
                                 .name = texts->names[i],
                                 .first = first[i],
                                 .rows = rows[i],
                                 .total_rows = i < 3 ? q + 2 * kv : 2 * inner};
  }
}

mgl_status mgl_fused_weights_name(const mgl_config *config, mgl_checkpoint *checkpoint,
                                  mgl_error *err) {
  const uint32_t layers = config->layer_count;
  fused_layer *texts = mgl_alloc_zeroed(layers, sizeof *texts);
  mgl_tensor_part *parts = mgl_alloc_zeroed(layers, PARTS * sizeof *parts);
  mgl_status status = MGL_OK;
  if (texts == NULL || parts == NULL) {
    status =
        mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the weights of %u layers", layers);
  } else {
    for (uint32_t i = 0; i < layers; i++) {
      name_layer(config, i, &texts[i], parts + (size_t)i * PARTS);
    }
    status = mgl_checkpoint_add_parts(checkpoint, parts, (size_t)layers * PARTS, err);
  }
  mgl_free(texts);
  mgl_free(parts);
  return status;
}
