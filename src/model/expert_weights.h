// Weights of experts under the names by which programs know them.
//
// A program has one tensor [E,N,K] for a matrix of all experts of a layer, named as in
// "model.layers.0.mlp.experts.gate_proj.weight". Checkpoints have each expert's matrix by itself,
// with its number behind "experts.", or all in one tensor: gate and up above each other in
// gate_up_proj [E,2F,D], and down_proj [E,D,F]. The former is what is looked up; the latter is made
// to look so.
#ifndef MGL_MODEL_EXPERT_WEIGHTS_H
#define MGL_MODEL_EXPERT_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint.h"
#include "model/config.h"

// The name of an expert's matrix. A name without "experts." in it is the only expert's own.
void mgl_expert_weight_name(const char *name, uint32_t expert, char *out, size_t out_bytes);

// Names the experts' matrices in the tensors that have all of a layer's, as far as the checkpoint
// has such tensors. Their shapes are checked.
mgl_status mgl_expert_weights_name(const mgl_config *config, mgl_checkpoint *checkpoint,
                                   mgl_error *err);

#endif
