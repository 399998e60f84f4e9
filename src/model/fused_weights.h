// Checkpoints that store Q, K and V of a layer in one matrix, and gate and up in another (Phi-3).
//
// The rows of such a matrix are the rows of the matrices that it fuses, one after the other, so
// that they can be found under the names that other families store them by. No byte moves, and
// nothing behind the checkpoint knows of it.
#ifndef MGL_MODEL_FUSED_WEIGHTS_H
#define MGL_MODEL_FUSED_WEIGHTS_H

#include "model/config.h"
#include "model/safetensors.h"

mgl_status mgl_fused_weights_name(const mgl_config *config, mgl_checkpoint *checkpoint,
                                  mgl_error *err);

#endif
