// What the parts of the GPU test program share: device, models, the CPU's side, results.
#ifndef MGL_TESTS_GPU_GPU_BENCH_H
#define MGL_TESTS_GPU_GPU_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "batch/plan.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_program.h"
#include "device/cuda/cuda_ranks.h"
#include "graph/graph.h"
#include "model/config.h"

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
//   cut    3 layers, 16 heads of 128, groups of 4, dot products that can be halved
//   sums   32 layers, sums over ranks of 4096 elements and little else
//   bias   3 layers, 8 heads of 32, groups of 8, biases of Q, K and V
//   fp8, int8, int4, int4_whole, int4_32, zeros, zeros_64   3 layers, heads as of Qwen3-8B;
//          weights of codes: blocks of 128 x 128, a scale a row, groups of 128 or 32; zero points
//   fp8_cut, int4_cut   the same, whose rows can be halved
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

// |values - wanted| / |wanted| over all elements (Euclidean); infinite where `values` are not
// finite.
double gpu_error(const float *values, const float *wanted, size_t count);

// How far values of the GPU and of the CPU's bf16 path are from exact ones (gpu_twin.h): sums of
// squares over what has been added; zeros to begin with.
typedef struct gpu_errors {
  double gpu, cpu, norm;
} gpu_errors;

// The rule: over `rows` rows, the GPU's error is at most gpu_most_ratio(rows) times the CPU's, plus
// GPU_LEAST_ERROR.
//
// Both sides round to bf16, and only exact results tell an error of the one from an error of the
// other. The CPU rounds at six places of a layer (both norms, K, V, what was attended, what was
// gated), the GPU at eight (Q and the weights of softmax besides). Equal and independent roundings
// add up to sqrt(8 / 6) = 1.15 times the error. The rest is chance: over a few rows, roundings that
// fall otherwise make another error of the same model. tests/gpu/roundings.py emulates both sides
// of the small models in double, 20 times with other roundings: 1.05 to 1.18 on average over 17
// rows or more, and of all results at most 1.2 over 300 rows, 1.27 over 64, 1.4 over 17, 2.1 over
// one. With one rounding more, of Q and K before they are rotated, logits have 1.2 to 1.36 on
// average; with one after every op, as transformers in bf16 does it, 1.8 to 2.3.
//
// The floor is what f32 itself loses: angles of some hundred radians.
enum { GPU_ENOUGH_ROWS = 64 };
#define GPU_LEAST_ERROR 1e-5

// 1.15 + 0.8 / sqrt(rows), and 1.25 from GPU_ENOUGH_ROWS on.
double gpu_most_ratio(uint32_t rows);

// More than this is no rounding: then the CPU is no yardstick.
#define GPU_MOST_CPU_ERROR 0.1

void gpu_errors_add(gpu_errors *errors, const float *gpu, const float *cpu, const float *exact,
                    size_t count);
// Relative (Euclidean).
double gpu_error_of_gpu(const gpu_errors *errors);
double gpu_error_of_cpu(const gpu_errors *errors);
// What must be at most gpu_most_ratio: 0 below GPU_LEAST_ERROR, infinite where the GPU's values are
// not finite, or the CPU's are exact and the GPU's are not.
double gpu_errors_ratio(const gpu_errors *errors);
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
void gpu_schedules_run(gpu_bench *bench, int count, char **arguments);
void gpu_task_graphs_run(gpu_bench *bench, int count, char **arguments);
void gpu_sampling_run(gpu_bench *bench, int count, char **arguments);
void gpu_planner_run(gpu_bench *bench, int count, char **arguments);
void gpu_serve_run(gpu_bench *bench, int count, char **arguments);
void gpu_feed_run(gpu_bench *bench, int count, char **arguments);
void gpu_ops_range(gpu_bench *bench, int count, char **arguments);  // of ops, with KEY=VALUEs
void gpu_speed_run(gpu_bench *bench, int count, char **arguments);
void gpu_ablations_run(gpu_bench *bench, int count, char **arguments);
void gpu_modes_run(gpu_bench *bench, int count, char **arguments);
void gpu_modes_all_run(gpu_bench *bench, int count, char **arguments);
void gpu_modes_same_run(gpu_bench *bench, int count, char **arguments);
void gpu_ops_same_run(gpu_bench *bench, int count, char **arguments);
void gpu_faults_run(gpu_bench *bench, int count, char **arguments);
void gpu_reference_run(gpu_bench *bench, int count, char **arguments);
void gpu_contract_run(gpu_bench *bench, int count, char **arguments);
void gpu_soak_run(gpu_bench *bench, int count, char **arguments);
void gpu_hops_run(gpu_bench *bench, int count, char **arguments);
void gpu_plain_run(gpu_bench *bench, int count, char **arguments);
void gpu_launch_run(gpu_bench *bench, int count, char **arguments);
void gpu_custom_tasks_run(gpu_bench *bench, int count, char **arguments);
void gpu_start_run(gpu_bench *bench, int count, char **arguments);
void gpu_wide_run(gpu_bench *bench, int count, char **arguments);
void gpu_wide_attend_run(gpu_bench *bench, int count, char **arguments);
void gpu_ranks_run(gpu_bench *bench, int count, char **arguments);
void gpu_ranks_speed_run(gpu_bench *bench, int count, char **arguments);
void gpu_ranks_work_run(gpu_bench *bench, int count, char **arguments);
void gpu_wide_speed_run(gpu_bench *bench, int count, char **arguments);
void gpu_memcheck_run(gpu_bench *bench, int count, char **arguments);

#endif
