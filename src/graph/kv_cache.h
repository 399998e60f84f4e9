// What the elements of a KV cache are: those of the activations, or 8 bits.
//
// A family builds its program with caches of the activation dtype. mgl_graph_set_kv makes them what
// the user asked for, with the scales that the checkpoint has; from then on the KV tensor of the
// program says all there is to know (its dtype, k_scale and v_scale), and layouts, sizes, costs
// and kernels ask it. In 8 bits an element is the E4M3 code of a value over its scale (base/dtype.h
// says how it is rounded), and stands for code times scale.
#ifndef MGL_GRAPH_KV_CACHE_H
#define MGL_GRAPH_KV_CACHE_H

#include <stdbool.h>

#include "base/status.h"
#include "graph/graph.h"
#include "model/checkpoint.h"
#include "model/quantization.h"

typedef enum mgl_kv_dtype {
  MGL_KV_AUTO,  // as the activations: bf16, or f32
  MGL_KV_FP8,   // MGL_DTYPE_KV8
  MGL_KV_DTYPE_COUNT,
} mgl_kv_dtype;

const char *mgl_kv_dtype_name(uint32_t index);  // "auto", "fp8"; NULL behind the last one
// Also takes "fp8_e4m3", as serving engines in Python have it.
mgl_status mgl_kv_dtype_parse(const char *name, mgl_kv_dtype *out, mgl_error *err);

bool mgl_kv_scale_is_valid(float scale);  // positive and finite

// Makes all KV caches of a program what was asked for. The scales of layer N, which "kv.N" is of,
// are those that the checkpoint has for its attention, in any spelling; 1 where it has none, or
// without one (NULL). Refuses scales that are not one positive number, one of K without one of V,
// and a checkpoint whose config says that they are of another dtype.
mgl_status mgl_graph_set_kv(mgl_graph *graph, mgl_kv_dtype dtype,
                            const mgl_quantization *quantization, const mgl_checkpoint *checkpoint,
                            mgl_error *err);

// Whether a program has a cache of 8 bits.
bool mgl_graph_has_kv8(const mgl_graph *graph);

#endif
