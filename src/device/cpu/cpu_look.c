#include "device/cpu/cpu_look.h"

static void store_f32(mgl_dtype dtype, void *to, size_t at, float value) {
  if (dtype == MGL_DTYPE_BF16) {
    ((mgl_bf16 *)to)[at] = mgl_f32_to_bf16(value);
  } else if (dtype == MGL_DTYPE_KV8) {
    ((uint8_t *)to)[at] = mgl_f32_to_e4m3(value);
  } else {
    ((float *)to)[at] = value;
  }
}

static float load_f32(mgl_dtype dtype, const void *from, size_t at) {
  float value = 0;
  mgl_widen_f32(dtype, (const unsigned char *)from + at * mgl_dtype_bytes(dtype), 1, &value);
  return value;
}

mgl_status mgl_cpu_write_activation(mgl_cpu_program *p, const char *name, const float *values,
                                    size_t count, mgl_error *err) {
  uint32_t tensor = 0;
  MGL_TRY(mgl_graph_find_activation(p->graph, name, count, &p->largest, &tensor, err));
  void *to = mgl_cpu_program_tensor(p, tensor);
  for (size_t i = 0; i < count; i++) {
    store_f32(p->graph->tensors[tensor].dtype, to, i, values[i]);
  }
  return MGL_OK;
}

mgl_status mgl_cpu_read_activation(const mgl_cpu_program *p, const char *name, float *out,
                                   size_t count, mgl_error *err) {
  uint32_t tensor = 0;
  MGL_TRY(mgl_graph_find_activation(p->graph, name, count, &p->largest, &tensor, err));
  mgl_widen_f32(p->graph->tensors[tensor].dtype, mgl_cpu_program_tensor(p, tensor), count, out);
  return MGL_OK;
}

mgl_status mgl_cpu_read_rank(const mgl_cpu_program *p, uint32_t rank, const char *name, float *out,
                             size_t count, mgl_error *err) {
  uint32_t tensor = 0;
  MGL_TRY(mgl_graph_find_activation(p->graph, name, count, &p->largest, &tensor, err));
  if (rank >= p->memory->options.rank_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected a rank below %u, found %u",
                         p->memory->options.rank_count, rank);
  }
  mgl_widen_f32(p->graph->tensors[tensor].dtype, mgl_cpu_program_part(p, tensor, rank), count, out);
  return MGL_OK;
}

static mgl_status find_layer(const mgl_cpu_program *p, const char *name, uint32_t page,
                             mgl_kv_layer *out, mgl_error *err) {
  uint32_t tensor = mgl_graph_find(p->graph, name);
  if (tensor == MGL_NO_TENSOR || p->graph->tensors[tensor].placement != MGL_PLACE_KV ||
      page >= p->memory->options.page_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected a KV tensor with more than %u pages, found \"%s\"", page, name);
  }
  *out = p->kv[tensor];
  return MGL_OK;
}

// Where a layer has element i of a page's [HKV, P, HD], of K and of V (kernels/cpu/cpu_kernels.h).
typedef struct kv_place {
  size_t k, v;
} kv_place;

static kv_place place_of(const mgl_kv_layer *layer, uint32_t page, size_t i) {
  size_t dims = layer->head_dim;
  size_t tokens = layer->page_tokens;
  size_t block = mgl_kv_block(layer, page, i / (tokens * dims));
  size_t token = i / dims % tokens;
  size_t dim = i % dims;
  return (kv_place){.k = block + dim * tokens + token, .v = block + token * dims + dim};
}

static size_t page_elements(const mgl_kv_layer *layer) {
  return (size_t)layer->kv_head_count * layer->page_tokens * layer->head_dim;
}

mgl_status mgl_cpu_write_kv(mgl_cpu_program *p, const char *name, uint32_t page, const float *k,
                            const float *v, mgl_error *err) {
  mgl_kv_layer layer = {0};
  MGL_TRY(find_layer(p, name, page, &layer, err));
  const float k_scale = mgl_kv_k_scale(&layer), v_scale = mgl_kv_v_scale(&layer);
  for (size_t i = 0; i < page_elements(&layer); i++) {
    kv_place at = place_of(&layer, page, i);
    store_f32(layer.dtype, layer.k, at.k, k[i] / k_scale);
    store_f32(layer.dtype, layer.v, at.v, v[i] / v_scale);
  }
  return MGL_OK;
}

mgl_status mgl_cpu_read_kv(const mgl_cpu_program *p, const char *name, uint32_t page, float *k,
                           float *v, mgl_error *err) {
  mgl_kv_layer layer = {0};
  MGL_TRY(find_layer(p, name, page, &layer, err));
  const float k_scale = mgl_kv_k_scale(&layer), v_scale = mgl_kv_v_scale(&layer);
  for (size_t i = 0; i < page_elements(&layer); i++) {
    kv_place at = place_of(&layer, page, i);
    k[i] = load_f32(layer.dtype, layer.k, at.k) * k_scale;
    v[i] = load_f32(layer.dtype, layer.v, at.v) * v_scale;
  }
  return MGL_OK;
}
