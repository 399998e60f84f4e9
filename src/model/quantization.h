// What "quantization_config" of a config.json says, as far as the tensors do not say it themselves.
//
// How a weight is written follows from its tensors: their names, dtypes and shapes
// (packed_weights.h). So lists of modules that were left out, and schemes for some modules, need
// not be read: a module without scales is plain. What is read here is what no tensor shows (how
// GPTQ stores zero points, blocks that do not divide a matrix), what would make the answer another
// one (transforms, sparsity), and the form of weights that are drawn.
#ifndef MGL_MODEL_QUANTIZATION_H
#define MGL_MODEL_QUANTIZATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/form.h"
#include "base/json.h"
#include "base/status.h"

typedef enum mgl_quant_method {
  MGL_QUANT_NONE,
  MGL_QUANT_FP8,         // fp8: blocks or whole tensors
  MGL_QUANT_FBGEMM,      // fbgemm_fp8
  MGL_QUANT_COMPRESSED,  // compressed-tensors
  MGL_QUANT_MODELOPT,
  MGL_QUANT_GPTQ,
  MGL_QUANT_AWQ,
  MGL_QUANT_MXFP4,  // the experts only
  MGL_QUANT_GGUF,   // no config: what a GGUF file has
  MGL_QUANT_COUNT,
} mgl_quant_method;

enum {
  MGL_QUANT_FORMAT_BYTES = 48,
  MGL_MXFP4_GROUP = 32,  // elements that share a scale
};

typedef struct mgl_quantization {
  mgl_quant_method method;
  char format[MGL_QUANT_FORMAT_BYTES];  // for reports: "fp8", "compressed-tensors int4"
  uint32_t bits;                        // gptq, awq: 4 or 8
  uint32_t group;           // elements of K that share a scale; 0: not said, or a whole row
  uint32_t block_rows;      // rows that share one; 0: not said, or 1
  bool is_sure;             // all matrices have such groups and blocks: there are no other schemes
  bool has_zeros;           // all have zero points (compressed-tensors)
  bool has_order;           // columns have groups of their own, in a tensor (desc_act, actorder)
  bool kv_of_another_kind;  // scales of the KV cache are for something else than FP8 a tensor
  bool zeros_less_one;      // gptq: zero points are stored less 1
  mgl_form drawn;           // of the layers' linears with dummy weights
} mgl_quantization;

// Reads the member "quantization_config" (or "compression_config") of a config.json. One that is
// absent gives MGL_QUANT_NONE.
mgl_status mgl_quantization_read(mgl_json_object config, mgl_quantization *out, mgl_error *err);

#endif
