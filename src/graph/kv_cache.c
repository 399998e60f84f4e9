#include "graph/kv_cache.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[MGL_KV_DTYPE_COUNT] = {"auto", "fp8"};

const char *mgl_kv_dtype_name(uint32_t index) {
  return index < MGL_KV_DTYPE_COUNT ? names[index] : NULL;
}

mgl_status mgl_kv_dtype_parse(const char *name, mgl_kv_dtype *out, mgl_error *err) {
  for (int i = 0; i < MGL_KV_DTYPE_COUNT; i++) {
    if (strcmp(name, names[i]) == 0) {
      *out = (mgl_kv_dtype)i;
      return MGL_OK;
    }
  }
  if (strcmp(name, "fp8_e4m3") == 0) {
    *out = MGL_KV_FP8;
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "dtype of the KV cache: expected \"auto\" or \"fp8\" (E4M3), found "
                       "\"%.40s\"",
                       name);
}

bool mgl_kv_scale_is_valid(float scale) {
  return scale > 0 && isfinite(scale);
}

// --- scales of a checkpoint ----------------------------------------------------------------------

// How scales are called, behind "model.layers.N.self_attn."; the first pair that is there counts.
static const struct {
  const char *k, *v;
} spellings[] = {
    {"k_scale", "v_scale"},                          // compressed-tensors, vLLM
    {"attn.k_scale", "attn.v_scale"},                // vLLM's own name
    {"k_proj.k_scale", "v_proj.v_scale"},            // ModelOpt
    {"k_proj.output_scale", "v_proj.output_scale"},  // compressed-tensors before, Quark
    {"kv_scale", "kv_scale"},                        // AutoFP8: one for both
};

// Zero points that come with scales, and make them those of another code.
static const char *const zero_points[] = {"k_zero_point", "v_zero_point"};

typedef struct scale_name {
  char text[MGL_GRAPH_MAX_NAME_BYTES];
} scale_name;

static scale_name name_of(uint32_t layer, const char *suffix) {
  scale_name name;
  (void)snprintf(name.text, sizeof name.text, "model.layers.%u.self_attn.%s", layer, suffix);
  return name;
}

static mgl_status read_scale(const mgl_checkpoint *checkpoint, const char *name, float *out,
                             mgl_error *err) {
  const mgl_stored_tensor *tensor = NULL;
  MGL_TRY(mgl_checkpoint_find(checkpoint, name, &tensor, err));
  const bool is_one = tensor->packed == NULL && tensor->bytes == mgl_dtype_bytes(tensor->dtype);
  if (!is_one) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: tensor \"%s\": expected one scale for the layer's KV cache, found "
                         "%s of %u dims and %llu bytes",
                         mgl_checkpoint_path_of(checkpoint, name), name, tensor->stored_dtype,
                         tensor->rank, (unsigned long long)tensor->bytes);
  }
  mgl_widen_f32(tensor->dtype, tensor->data, 1, out);
  if (!mgl_kv_scale_is_valid(*out)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: tensor \"%s\": expected a positive scale, found %g",
                         mgl_checkpoint_path_of(checkpoint, name), name, (double)*out);
  }
  return MGL_OK;
}

static mgl_status read_scales(const mgl_checkpoint *checkpoint, uint32_t layer, mgl_tensor *kv,
                              mgl_error *err) {
  for (size_t i = 0; i < sizeof zero_points / sizeof *zero_points; i++) {
    const scale_name zero = name_of(layer, zero_points[i]);
    const mgl_stored_tensor *tensor = mgl_checkpoint_raw(checkpoint, zero.text);
    for (uint64_t b = 0; tensor != NULL && b < tensor->bytes; b++) {
      if (((const unsigned char *)tensor->data)[b] != 0) {
        return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "%s: tensor \"%s\": a KV cache with zero points is not supported: "
                             "expected zeros; without --kv-dtype fp8 they do not count",
                             mgl_checkpoint_path_of(checkpoint, zero.text), zero.text);
      }
    }
  }
  for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
    const scale_name k = name_of(layer, spellings[i].k), v = name_of(layer, spellings[i].v);
    const bool has_k = mgl_checkpoint_has(checkpoint, k.text) != 0;
    const bool has_v = mgl_checkpoint_has(checkpoint, v.text) != 0;
    if (has_k != has_v) {
      const char *there = has_k ? k.text : v.text;
      return mgl_error_set(
          err, MGL_ERR_FORMAT, "%s: tensor \"%s\": expected \"%s\" with it, which is missing",
          mgl_checkpoint_path_of(checkpoint, there), there, has_k ? v.text : k.text);
    }
    if (has_k) {
      MGL_TRY(read_scale(checkpoint, k.text, &kv->k_scale, err));
      return read_scale(checkpoint, v.text, &kv->v_scale, err);
    }
  }
  return MGL_OK;
}

// The layer of a cache: N of "kv.N".
static bool layer_of(const mgl_tensor *kv, uint32_t *out) {
  int end = 0;
  return sscanf(kv->name, "kv.%u%n", out, &end) == 1 && kv->name[end] == 0;
}

mgl_status mgl_graph_set_kv(mgl_graph *graph, mgl_kv_dtype dtype,
                            const mgl_quantization *quantization, const mgl_checkpoint *checkpoint,
                            mgl_error *err) {
  if (dtype == MGL_KV_AUTO) {
    return MGL_OK;
  }
  if (checkpoint != NULL && quantization->kv_of_another_kind) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "the KV cache in fp8: the scales of this checkpoint are of another kind: "
                         "expected 8 bits of float, one scale for a layer, in \"kv_cache_scheme\" "
                         "or \"kv_cache_quant_algo\"; leave --kv-dtype out");
  }
  for (size_t i = 0; i < graph->tensor_count; i++) {
    mgl_tensor *tensor = &graph->tensors[i];
    uint32_t layer = 0;
    if (tensor->placement != MGL_PLACE_KV) {
      continue;
    }
    tensor->dtype = MGL_DTYPE_KV8;
    tensor->k_scale = tensor->v_scale = 1;
    if (checkpoint != NULL && layer_of(tensor, &layer)) {
      MGL_TRY(read_scales(checkpoint, layer, tensor, err));
    }
  }
  return MGL_OK;
}

bool mgl_graph_has_kv8(const mgl_graph *graph) {
  for (size_t i = 0; i < graph->tensor_count; i++) {
    if (graph->tensors[i].placement == MGL_PLACE_KV && graph->tensors[i].dtype == MGL_DTYPE_KV8) {
      return true;
    }
  }
  return false;
}
