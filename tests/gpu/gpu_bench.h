// What the parts of the GPU test program share: device, kernel, programs, results.
#ifndef MGL_TESTS_GPU_GPU_BENCH_H
#define MGL_TESTS_GPU_GPU_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "graph/graph.h"
#include "runtime/cuda_driver.h"
#include "runtime/cuda_skeleton.h"
#include "task/task.h"

// The report and whether all checks passed.
typedef struct gpu_bench {
  mgl_cuda_device device;
  void *cubin;
  int failures;
} gpu_bench;

// Prints "check: what" with ok or FAILED, and counts failures.
void gpu_check(gpu_bench *bench, bool ok, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Ends the program with the error's text.
void gpu_must(mgl_status status, const mgl_error *err);
void *gpu_must_alloc(size_t count, size_t bytes_each);
uint64_t gpu_median(uint64_t *values, size_t count);  // sorts them

// --- hand-made task graphs (hand_graph.c) --------------------------------------------------------

// All tasks of a stage wait for all tasks of the stage before. Their tiles are empty: a task's
// whole cost is that of the protocol.
typedef struct hand_stages {
  uint32_t count;
  uint32_t width;  // tasks of a stage
  uint32_t workers;
  bool jit;
  bool massive;  // every scheduler queues its share
} hand_stages;

mgl_task_graph *hand_graph_create(const hand_stages *stages);

// --- the reference (reference.c) -----------------------------------------------------------------

typedef struct reference reference;

reference *reference_create(const mgl_graph *program, const void *const *weights);
void reference_destroy(reference *r);
// Runs one token through the (canonical) program; returns its logits [V].
const double *reference_run(reference *r, int32_t token, size_t *vocab);

// --- the CPU (cpu_side.c) ------------------------------------------------------------------------

typedef struct cpu_side cpu_side;

cpu_side *cpu_side_create(const mgl_graph *program, const void **weights);
void cpu_side_destroy(cpu_side *c);
const float *cpu_side_run(cpu_side *c, int32_t token);  // logits [V]

// --- parts ---------------------------------------------------------------------------------------

void gpu_tokens_run(gpu_bench *bench, const char *folder, uint32_t launches);
void gpu_smoke_run(gpu_bench *bench, const char *folder);  // short, for a sanitizer
void gpu_launches_run(gpu_bench *bench, const char *folder, uint32_t launches);
void gpu_faults_run(gpu_bench *bench, const char *folder);
void gpu_hops_run(gpu_bench *bench, bool quick);

// A program with drawn weights (tokens.c).
typedef struct gpu_program {
  mgl_graph *canonical, *fused;
  void **canonical_weights, **fused_weights;  // [tensor_count] by tensor index; the same memory
} gpu_program;

void gpu_program_load(const char *folder, const char *name, gpu_program *out);
void gpu_program_free(gpu_program *program);

#endif
