// What the parts of the GPU test program share: device, models, the CPU's side, results.
#ifndef MGL_TESTS_GPU_GPU_BENCH_H
#define MGL_TESTS_GPU_GPU_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "batch/plan.h"
#include "graph/graph.h"
#include "model/config.h"
#include "runtime/cuda_driver.h"
#include "runtime/cuda_program.h"

enum { GPU_SEED = 7, GPU_PAGE_TOKENS = MGL_CUDA_KV_PAGE_TOKENS };

typedef struct gpu_bench {
  mgl_cuda_device device;
  int failures;
} gpu_bench;

// Prints "check: what" with ok or FAILED, and counts failures.
void gpu_check(gpu_bench *bench, bool ok, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Ends the program with the error's text.
void gpu_must(mgl_status status, const mgl_error *err);
void *gpu_must_alloc(size_t count, size_t bytes_each);

// --- models (gpu_model.c) ------------------------------------------------------------------------

// Small models of a size that the CPU computes at once, all with dummy weights:
//   tiny   4 layers, 8 heads of 64, groups of 4, norms of heads
//   wide   2 layers, 4 heads of 128, groups of 2, dot products of 1096 and 2200 elements
//   bias   3 layers, 8 heads of 32, groups of 8, biases of Q, K and V
// Any other name is a folder with a config.json.
typedef struct gpu_model {
  const char *name;
  mgl_config config;
  mgl_graph *program;  // canonical
} gpu_model;

void gpu_model_open(const char *name, gpu_model *out);
void gpu_model_close(gpu_model *model);
// Token i of a fixed random text.
int32_t gpu_model_token(const gpu_model *model, uint32_t i);

// Ends the program if it cannot be made.
mgl_cuda_program *gpu_program(gpu_bench *bench, const gpu_model *model,
                              mgl_cuda_program_options options);

// --- numbers -------------------------------------------------------------------------------------

// |gpu - cpu| / |cpu| over all elements (Euclidean); infinite where the GPU's are not finite.
double gpu_error(const float *gpu, const float *cpu, size_t count);
uint32_t gpu_argmax(const float *values, uint32_t count);

// --- times (gpu_measure.c) -----------------------------------------------------------------------

// A job: `batch` requests of `prompt` random tokens, each to get `generate` more.
typedef struct gpu_load {
  uint32_t prompt, generate, batch;
  bool cached;  // prompts have keys: a launch finds what one before it has computed of them
} gpu_load;

typedef struct gpu_measured {
  double median_ms, least_ms;  // of the iterations that only decode: those behind the prompts
  double prompt_ms;
  double turn_us;  // mean, of the planner
  uint32_t iterations;
  uint64_t hash;  // of all tokens, to see that a change of speed changed no result
} gpu_measured;

// One launch.
gpu_measured gpu_measure(mgl_cuda_program *program, const gpu_model *model, const gpu_load *load,
                         const mgl_cuda_launch_options *launch);
// Sorts them.
double gpu_median(double *values, uint32_t count);
// The latest launch's.
void gpu_write_trace(mgl_cuda_program *program, const char *path);

// --- parts: arguments are what follows the part's name -------------------------------------------

void gpu_smoke_run(gpu_bench *bench, int count, char **arguments);
void gpu_ops_run(gpu_bench *bench, int count, char **arguments);
void gpu_sampling_run(gpu_bench *bench, int count, char **arguments);
void gpu_planner_run(gpu_bench *bench, int count, char **arguments);
void gpu_serve_run(gpu_bench *bench, int count, char **arguments);
void gpu_feed_run(gpu_bench *bench, int count, char **arguments);
void gpu_ops_range(gpu_bench *bench, int count, char **arguments);  // of ops, with KEY=VALUEs
void gpu_speed_run(gpu_bench *bench, int count, char **arguments);
void gpu_ablations_run(gpu_bench *bench, int count, char **arguments);
void gpu_modes_run(gpu_bench *bench, int count, char **arguments);
void gpu_faults_run(gpu_bench *bench, int count, char **arguments);
void gpu_reference_run(gpu_bench *bench, int count, char **arguments);
void gpu_contract_run(gpu_bench *bench, int count, char **arguments);
void gpu_soak_run(gpu_bench *bench, int count, char **arguments);
void gpu_hops_run(gpu_bench *bench, int count, char **arguments);
void gpu_start_run(gpu_bench *bench, int count, char **arguments);
void gpu_wide_run(gpu_bench *bench, int count, char **arguments);
void gpu_wide_attend_run(gpu_bench *bench, int count, char **arguments);
void gpu_wide_speed_run(gpu_bench *bench, int count, char **arguments);
void gpu_memcheck_run(gpu_bench *bench, int count, char **arguments);

#endif
