// The weights of a GGUF file as a checkpoint: tensors under the names that a folder gives them.
//
// A plain tensor is used where it lies, a quantised one becomes a packed matrix of codes
// (gguf_blocks.h). Rows of q and k of architecture "llama" are put back into their order: the
// converter of llama.cpp interleaves them (row 2i of a head was row i, row 2i + 1 was row
// i + head_dim / 2), so they are made when they are loaded even if they are plain.
#ifndef MGL_MODEL_GGUF_WEIGHTS_H
#define MGL_MODEL_GGUF_WEIGHTS_H

#include "base/file.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/gguf.h"

// The form of the linears of most layers, as far as the first one tells; group 0: they are plain.
mgl_form mgl_gguf_layer_form(const mgl_gguf *gguf, const mgl_gguf_type **type);

// Makes the checkpoint. It takes over the mapping of the file's bytes, also on failure; these must
// be those of `gguf`, which may go afterwards. A tensor that has no name in a folder is refused.
mgl_status mgl_gguf_weights_open(const mgl_gguf *gguf, const mgl_config *config, mgl_file_map *map,
                                 mgl_checkpoint **out, mgl_error *err);

#endif
