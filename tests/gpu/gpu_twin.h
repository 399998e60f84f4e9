// The CPU's twin of a GPU program: the same fused ops with the same dummy weights, run one after
// the other by a team of threads, every result kept. And its exact twin: the same weights widened
// to f32, so that activations and KV cache are f32 too and nothing is rounded to bf16. What is left
// of error there is f32's (2e-6 to 8e-6 in the logits of the small models, from those of
// tests/gpu/roundings.py in double), a thousandth of bf16's; against it both sides' roundings can
// be measured (gpu_errors), while a difference of the two says nothing about which of them is
// wrong.
#ifndef MGL_TESTS_GPU_GPU_TWIN_H
#define MGL_TESTS_GPU_GPU_TWIN_H

#include "device/cpu/cpu_program.h"
#include "gpu/gpu_bench.h"

typedef struct gpu_twin {
  mgl_graph *widened;  // canonical, of an exact or a rounded twin; NULL: the model's is used
  mgl_topology *topology;
  mgl_team *team;
  mgl_cpu_weights weights;
  mgl_cpu_memory *memory;
  mgl_graph *fused;
  mgl_task_graph *graph;
  mgl_cpu_program *program;
  float **results;  // [op_count] of the fused program, each widened
} gpu_twin;

// For plans of up to `tokens` tokens, with KV pages of GPU_PAGE_TOKENS. Ends the program on
// failure.
void gpu_twin_open(const gpu_model *model, uint32_t tokens, uint32_t page_count, gpu_twin *out);
// The exact twin of `cpu`, for the same plans.
void gpu_twin_open_exact(const gpu_model *model, const gpu_twin *cpu, gpu_twin *out);
// The twin of `cpu` whose weights are bf16, of codes what they stand for, rounded: what transformers
// in bf16 multiplies. For the same plans.
void gpu_twin_open_rounded(const gpu_model *model, const gpu_twin *cpu, gpu_twin *out);
void gpu_twin_close(gpu_twin *twin);
// Begins an iteration and runs ops [first, last], as many as there are.
void gpu_twin_run(gpu_twin *twin, const mgl_plan *plan, uint32_t first, uint32_t last);
// Elements of an op's result under the present plan.
size_t gpu_twin_elements(const gpu_twin *twin, uint32_t op);
// The op whose result the tensor is, UINT32_MAX: none's.
uint32_t gpu_twin_producer(const gpu_twin *twin, uint32_t tensor);

#endif
