// The same program on the CPU, in mode eager, with the CPU's kernels: what the GPU's logits are
// compared with besides the reference.
#include "base/alloc.h"
#include "gpu/gpu_bench.h"
#include "runtime/cpu_eager.h"

struct cpu_side {
  mgl_topology *topology;
  mgl_team *team;
  mgl_cpu_weights weights;
  mgl_cpu_memory *memory;
  mgl_cpu_program *program;
  mgl_plan *plan;
};

cpu_side *cpu_side_create(const mgl_graph *program, const void **weights) {
  static const mgl_plan_limits limits = {
      .tokens = 1, .sequences = 1, .pages_per_sequence = 1, .page_tokens = 16};
  mgl_error err = {0};
  cpu_side *c = gpu_must_alloc(1, sizeof *c);
  mgl_simd simd = MGL_SIMD_SCALAR;
  gpu_must(mgl_simd_choose(&simd, &err), &err);
  gpu_must(mgl_topology_create(&c->topology, &err), &err);
  gpu_must(mgl_team_create(c->topology, 0, &c->team, &err), &err);
  c->weights = (mgl_cpu_weights){.graph = program, .data = weights};
  mgl_cpu_memory_options memory = {
      .page_tokens = limits.page_tokens, .page_count = 1, .workers = mgl_team_size(c->team)};
  mgl_cpu_program_options options = {.simd = simd,
                                     .largest = {.tokens = 1, .logit_rows = 1, .sequences = 1}};
  gpu_must(mgl_cpu_memory_create(&c->weights, &memory, c->topology, &c->memory, &err), &err);
  gpu_must(mgl_cpu_program_create(program, c->memory, &options, &c->program, &err), &err);
  gpu_must(mgl_plan_create(&limits, &c->plan, &err), &err);
  return c;
}

void cpu_side_destroy(cpu_side *c) {
  mgl_plan_destroy(c->plan);
  mgl_cpu_program_destroy(c->program);
  mgl_cpu_memory_destroy(c->memory);
  mgl_team_destroy(c->team);
  mgl_topology_destroy(c->topology);
  mgl_free(c);
}

const float *cpu_side_run(cpu_side *c, int32_t token) {
  static const int32_t page = 0;
  mgl_plan_clear(c->plan);
  mgl_plan_add(c->plan, &(mgl_plan_chunk){.tokens = &token,
                                          .token_count = 1,
                                          .pages = &page,
                                          .page_count = 1,
                                          .logits = MGL_LOGITS_LAST});
  mgl_cpu_eager_run(c->program, c->team, c->plan);
  return mgl_cpu_program_find(c->program, "logits");
}
