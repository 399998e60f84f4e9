// A small model and its GPU program, for tests over the fake GPU (fake_cuda.h).
#ifndef MGL_TESTS_SUPPORT_FAKE_MODEL_H
#define MGL_TESTS_SUPPORT_FAKE_MODEL_H

#include "device/cuda/cuda_program.h"
#include "graph/graph.h"
#include "model/safetensors.h"

enum { FAKE_MODEL_SEED = 5 };  // of its weights where there is no checkpoint

// Two layers with heads of 32, a bias of Q, K and V, and a vocabulary of 512. Fails the test where
// it cannot be made.
mgl_graph *fake_model_graph(const mgl_checkpoint *checkpoint);

// Its program; of the options, what is said of the model and the device's code is set here.
mgl_cuda_program *fake_model_program(const mgl_cuda_device *device,
                                     mgl_cuda_program_options options);

// The options of a small program of it: 16 tokens an iteration, 4 sequences of 8 pages.
extern const mgl_cuda_program_options fake_model_usual;

// Generates so many tokens for a prompt of three.
mgl_status fake_model_run(mgl_cuda_program *program, uint32_t tokens,
                          mgl_cuda_launch_options launch, mgl_error *err);

#endif
