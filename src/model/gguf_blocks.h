// How GGUF's quantised types become codes, scales and offsets (base/form.h).
//
// Every value is that of the format's own arithmetic in f32: a scale is d, or d times the group's
// integer, which is exact; so is its product with a code up to one rounding, and the minimum of the
// K types is an offset.
#ifndef MGL_MODEL_GGUF_BLOCKS_H
#define MGL_MODEL_GGUF_BLOCKS_H

#include <stdint.h>

#include "base/form.h"
#include "model/gguf.h"

enum { MGL_GGUF_MAX_BLOCK = 256, MGL_GGUF_MAX_GROUPS = 16 };  // of a block

typedef struct mgl_gguf_coding {
  const char *type;
  uint32_t block;  // elements, as the type has it
  mgl_form form;   // its group divides the block
  // One block: codes a byte each, the others a group each. offsets: untouched without them.
  void (*decode)(const unsigned char *block, uint8_t *codes, float *scales, float *offsets);
} mgl_gguf_coding;

// NULL: the type has none (it is plain, or not supported).
const mgl_gguf_coding *mgl_gguf_coding_of(const mgl_gguf_type *type);

#endif
