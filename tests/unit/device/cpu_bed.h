// A program on the CPU with dummy weights, memory and a plan, for tests that run its ops themselves.
#ifndef MGL_TESTS_UNIT_DEVICE_CPU_BED_H
#define MGL_TESTS_UNIT_DEVICE_CPU_BED_H

#include "base/topology.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/cpu_weights.h"
#include "support/must.h"

typedef struct cpu_bed {
  mgl_graph *graph;
  mgl_topology *topology;
  mgl_team *team;
  mgl_cpu_weights weights;
  mgl_cpu_memory *memory;
  mgl_cpu_program *program;
  mgl_plan *plan;
  mgl_task_graph *tasks;  // that the program was laid out for; NULL: none
} cpu_bed;

typedef struct cpu_bed_options {
  uint32_t threads;
  mgl_cpu_memory_options memory;
  mgl_cpu_program_options program;
  mgl_plan_limits limits;
} cpu_bed_options;

// Takes graph and tasks (NULL: none) over.
static inline void cpu_bed_open(cpu_bed *b, mgl_graph *graph, mgl_task_graph *tasks,
                                const cpu_bed_options *options) {
  mgl_cpu_program_options program = options->program;
  program.task_graph = tasks;
  *b = (cpu_bed){.graph = graph, .tasks = tasks};
  MUST(mgl_topology_create(&b->topology, &err));
  MUST(mgl_team_create(b->topology, options->threads, &b->team, &err));
  MUST(mgl_cpu_weights_bind(graph, NULL, MGL_WEIGHTS_DUMMY, 3, b->team, b->topology, NULL,
                            &b->weights, &err));
  MUST(mgl_cpu_memory_create(&b->weights, &options->memory, b->topology, &b->memory, &err));
  MUST(mgl_cpu_program_create(graph, b->memory, &program, &b->program, &err));
  MUST(mgl_plan_create(&options->limits, &b->plan, &err));
}

static inline void cpu_bed_close(cpu_bed *b) {
  mgl_plan_destroy(b->plan);
  mgl_cpu_program_destroy(b->program);
  mgl_cpu_memory_destroy(b->memory);
  mgl_cpu_weights_release(&b->weights);
  mgl_team_destroy(b->team);
  mgl_topology_destroy(b->topology);
  mgl_task_graph_destroy(b->tasks);
  mgl_graph_destroy(b->graph);
}

#endif
