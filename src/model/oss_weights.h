// The experts of gpt-oss under the names by which programs know experts' weights.
//
// A checkpoint has, for all experts of a layer together, gate and up in one tensor, whose rows take
// turns (gate is even), and down; each with a bias. Plain ones are transposed: gate_up_proj
// [E,D,2F] and down_proj [E,F,D]. MXFP4 ones are not: gate_up_proj_blocks U8 [E,2F,D/32,16], the
// even element low, with gate_up_proj_scales U8 [E,2F,D/32], E8M0; and down_proj likewise
// [E,D,F/32,16]. What is found under "experts.N.gate_proj.weight" and so on are packed matrices
// (packed_weights.h) with every other row; biases are such matrices of one column.
#ifndef MGL_MODEL_OSS_WEIGHTS_H
#define MGL_MODEL_OSS_WEIGHTS_H

#include "model/checkpoint.h"
#include "model/config.h"

// Names the experts' matrices and biases. Shapes are checked; what is missing, of another shape, or
// there in both forms, is an error.
mgl_status mgl_oss_weights_name(const mgl_config *config, mgl_checkpoint *checkpoint,
                                mgl_error *err);

#endif
