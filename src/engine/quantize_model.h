// Writing a model again with the matrices of its layers in 8 or 4 bits.
//
// The new folder is what vLLM and transformers read as compressed-tensors: fp8 as "float-quantized"
// (a scale for each row), int8 and int4 as "pack-quantized" (int8: a scale for each row unless a
// group is given; int4: for each group). Scales are bf16, chosen for the least squared error, codes
// the nearest. Embedding, head, routers, norms and biases are copied, and so are the tokenizer's
// files; matrices that stay are named in "ignore".
#ifndef MGL_ENGINE_QUANTIZE_MODEL_H
#define MGL_ENGINE_QUANTIZE_MODEL_H

#include <stdint.h>

#include "base/status.h"
#include "device/cpu/team.h"

typedef enum mgl_quantise_to {
  MGL_QUANTISE_FP8,
  MGL_QUANTISE_INT8,
  MGL_QUANTISE_INT4,
  MGL_QUANTISE_COUNT,
} mgl_quantise_to;

const char *mgl_quantise_to_name(uint32_t index);  // "fp8", "int8", "int4"; NULL behind the last

enum { MGL_QUANTISE_INT4_GROUP = 128 };

typedef struct mgl_quantise_options {
  const char *from, *to_folder;  // to_folder is made; it may be there if it is empty of a model
  mgl_quantise_to to;
  uint32_t group;  // 0: a whole row, with int4 MGL_QUANTISE_INT4_GROUP
  mgl_team *team;
  void (*report)(void *context, uint64_t done_bytes, uint64_t total_bytes);  // may be NULL
  void *context;
} mgl_quantise_options;

typedef struct mgl_quantise_result {
  uint64_t from_bytes, to_bytes;  // of all tensors
  uint32_t matrices;              // that are quantised
} mgl_quantise_result;

mgl_status mgl_quantise_model(const mgl_quantise_options *options, mgl_quantise_result *out,
                              mgl_error *err);

#endif
