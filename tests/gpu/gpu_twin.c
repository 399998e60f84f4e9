#include "gpu/gpu_twin.h"

#include "base/alloc.h"
#include "compile/compile.h"
#include "runtime/cpu_tasks.h"
#include "task/tile.h"

void gpu_twin_open(const gpu_model *model, uint32_t tokens, uint32_t page_count, gpu_twin *out) {
  mgl_error err = {0};
  gpu_twin *t = out;
  mgl_simd simd = MGL_SIMD_SCALAR;
  *t = (gpu_twin){0};
  gpu_must(mgl_simd_choose(&simd, &err), &err);
  gpu_must(mgl_topology_create(&t->topology, &err), &err);
  gpu_must(mgl_team_create(t->topology, 0, &t->team, &err), &err);
  gpu_must(mgl_cpu_weights_bind(model->program, NULL, MGL_WEIGHTS_DUMMY, GPU_SEED, t->team,
                                t->topology, NULL, &t->weights, &err),
           &err);
  mgl_cpu_memory_options memory = {
      .page_tokens = GPU_PAGE_TOKENS, .page_count = page_count, .workers = 1};
  gpu_must(mgl_cpu_memory_create(&t->weights, &memory, t->topology, &t->memory, &err), &err);
  gpu_must(mgl_fuse_ops(model->program, &t->fused, &err), &err);
  mgl_compile_options compile = {.tokens = tokens, .workers = 1};
  gpu_must(mgl_compile(t->fused, &compile, &t->graph, NULL, &err), &err);
  mgl_cpu_program_options program = {.simd = simd, .task_graph = t->graph};
  gpu_must(mgl_cpu_program_create(t->fused, t->memory, &program, &t->program, &err), &err);
  t->results = gpu_must_alloc(t->fused->op_count, sizeof *t->results);
  const mgl_dim_values largest = {tokens, tokens, tokens};
  for (size_t i = 0; i < t->fused->op_count; i++) {
    const mgl_tensor *result = &t->fused->tensors[t->fused->ops[i].output];
    t->results[i] = gpu_must_alloc((size_t)mgl_tensor_elements(result, &largest), sizeof(float));
  }
}

void gpu_twin_close(gpu_twin *t) {
  for (size_t i = 0; i < t->fused->op_count; i++) {
    mgl_free(t->results[i]);
  }
  mgl_free(t->results);
  mgl_cpu_program_destroy(t->program);
  mgl_task_graph_destroy(t->graph);
  mgl_graph_destroy(t->fused);
  mgl_cpu_memory_destroy(t->memory);
  mgl_cpu_weights_release(&t->weights);
  mgl_team_destroy(t->team);
  mgl_topology_destroy(t->topology);
}

void gpu_twin_run(gpu_twin *t, const mgl_plan *plan, uint32_t first, uint32_t last) {
  mgl_cpu_program_set_plan(t->program, plan);
  for (uint32_t i = first; i < t->fused->op_count && i <= last; i++) {
    const mgl_op *op = &t->fused->ops[i];
    const mgl_tensor *result = &t->fused->tensors[op->output];
    mgl_cpu_task_run(t->program, 0, i, 0,
                     mgl_tile_units(t->fused, op, t->graph->tokens, t->graph->attention_strides));
    mgl_widen_f32(result->dtype, mgl_cpu_program_tensor(t->program, op->output),
                  gpu_twin_elements(t, i), t->results[i]);
  }
}

size_t gpu_twin_elements(const gpu_twin *t, uint32_t op) {
  return (size_t)mgl_cpu_program_elements(t->program, t->fused->ops[op].output);
}

uint32_t gpu_twin_producer(const gpu_twin *t, uint32_t tensor) {
  for (uint32_t i = 0; i < t->fused->op_count; i++) {
    if (t->fused->ops[i].output == tensor) {
      return i;
    }
  }
  return UINT32_MAX;
}
