#include "model/expert_weights.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

enum { NAME_BYTES = 96, PARTS = 3 };  // gate, up and down of an expert

// The names that the parts of an expert's matrices point at.
typedef struct expert_names {
  char parts[PARTS][NAME_BYTES];
} expert_names;

typedef struct layer_names {
  char gate_up[NAME_BYTES], down[NAME_BYTES];
} layer_names;

void mgl_expert_weight_name(const char *name, uint32_t expert, char *out, size_t out_bytes) {
  static const char mark[] = ".experts.";
  const char *at = strstr(name, mark);
  if (at == NULL) {
    (void)snprintf(out, out_bytes, "%s", name);
    return;
  }
  at += sizeof mark - 1;
  (void)snprintf(out, out_bytes, "%.*s%u.%s", (int)(at - name), name, expert, at);
}

// Whether the checkpoint has the layer's experts in two tensors, whose names go to *out.
static bool find_layer(const mgl_checkpoint *checkpoint, uint32_t layer, layer_names *out) {
  (void)snprintf(out->gate_up, NAME_BYTES, "model.layers.%u.mlp.experts.gate_up_proj", layer);
  (void)snprintf(out->down, NAME_BYTES, "model.layers.%u.mlp.experts.down_proj", layer);
  return mgl_checkpoint_has(checkpoint, out->gate_up) || mgl_checkpoint_has(checkpoint, out->down);
}

static void name_expert(const mgl_config *config, uint32_t layer, uint32_t expert,
                        const layer_names *from, expert_names *names, mgl_tensor_part *parts) {
  static const char *const usual[PARTS] = {"mlp.experts.%u.gate_proj", "mlp.experts.%u.up_proj",
                                           "mlp.experts.%u.down_proj"};
  static const char *const mixtral[PARTS] = {"block_sparse_moe.experts.%u.w1",
                                             "block_sparse_moe.experts.%u.w3",
                                             "block_sparse_moe.experts.%u.w2"};
  const uint64_t inner = config->mixture.inner_size;
  const uint64_t count = config->mixture.expert_count;
  const uint64_t hidden = config->hidden_size;
  for (uint32_t i = 0; i < PARTS; i++) {
    const char *format = config->family == MGL_FAMILY_MIXTRAL ? mixtral[i] : usual[i];
    char text[NAME_BYTES];
    (void)snprintf(text, sizeof text, format, expert);
    (void)snprintf(names->parts[i], NAME_BYTES, "model.layers.%u.%.60s.weight", layer, text);
    parts[i] = i < 2 ? (mgl_tensor_part){.matrix = from->gate_up,
                                         .first = (2 * expert + i) * inner,
                                         .rows = inner,
                                         .total_rows = 2 * count * inner}
                     : (mgl_tensor_part){.matrix = from->down,
                                         .first = expert * hidden,
                                         .rows = hidden,
                                         .total_rows = count * hidden};
    parts[i].name = names->parts[i];
  }
}

mgl_status mgl_expert_weights_name(const mgl_config *config, mgl_checkpoint *checkpoint,
                                   mgl_error *err) {
  const size_t experts = config->mixture.expert_count;
  const size_t most = experts * config->layer_count;
  layer_names *layers = mgl_alloc_zeroed(config->layer_count, sizeof *layers);
  expert_names *names = mgl_alloc_zeroed(most, sizeof *names);
  mgl_tensor_part *parts = mgl_alloc_zeroed(most, PARTS * sizeof *parts);
  mgl_status status = MGL_OK;
  size_t count = 0;
  if (layers == NULL || names == NULL || parts == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the names of %zu experts", most);
  }
  for (uint32_t layer = 0; status == MGL_OK && layer < config->layer_count; layer++) {
    bool stored_together =
        mgl_config_is_mixture(config, layer) && find_layer(checkpoint, layer, &layers[layer]);
    for (uint32_t e = 0; stored_together && e < experts; e++) {
      name_expert(config, layer, e, &layers[layer], &names[count], parts + count * PARTS);
      count++;
    }
  }
  if (status == MGL_OK && count != 0) {
    status = mgl_checkpoint_add_parts(checkpoint, parts, count * PARTS, err);
  }
  mgl_free(layers);
  mgl_free(names);
  mgl_free(parts);
  return status;
}
