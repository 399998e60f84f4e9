// From a model's configuration to its tensor program. One builder file per family.
#ifndef MGL_GRAPH_FAMILY_H
#define MGL_GRAPH_FAMILY_H

#include "base/status.h"
#include "graph/graph.h"
#include "model/config.h"
#include "model/safetensors.h"

// Builds the program of `config`. Weights take the dtypes that the checkpoint stores; without one
// (NULL: dummy weights, or a compile without weights) they take config->dtype. The act dtype is
// bf16 when every linear weight is bf16, f32 otherwise; the KV cache has the act dtype. The output
// is "logits".
mgl_status mgl_family_build(const mgl_config *config, const mgl_checkpoint *checkpoint,
                            mgl_graph **out, mgl_error *err);

#endif
