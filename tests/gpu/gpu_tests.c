// The GPU test program. Prints its report as Markdown. Exit codes: 0 passed, 1 a check failed, 77
// no GPU here (skipped).
//   gpu_tests smoke [MODEL...]    tokens and logits against the CPU (default: tiny)
//   gpu_tests ops [MODEL...]      every op's result: errors of GPU and CPU against exact results
//                                 (default: tiny)
//   gpu_tests sampling [MODEL...] every token and log probability against the host's sampler
//                                 (default: tiny, wide, bias), and what sampling costs
//   gpu_tests planner             the planner decides as on the host; what a plan takes
//   gpu_tests serve [MODEL...]    many requests in one launch give what each gives alone (default:
//                                 tiny, wide)
//   gpu_tests feed [MODEL]        latency of tokens and requests, and an idle launch (tiny)
//   gpu_tests ops model=MODEL [from=OP] [to=OP] [tokens=N] [context=N] [alone=1] [inputs=random]
//                 [seed=N]        some ops through the whole pipeline, the others left out
//   gpu_tests faults [MODEL]      hanging tasks and lost triggers are found and named
//   gpu_tests reference [chunk=N] DIR...  KL against transformers; tests/gpu/reference.py makes DIR
//   gpu_tests contract [MODEL...] [only=TEXT] [but=TEXT] [brief=1]
//                                 the same bits in every way to run (default: tiny, wide, whole,
//                                 bias, experts, slots); only: in those ways whose name has the text
//   gpu_tests soak [MODEL] [iterations=N] [delays=N] [seconds=N]
//                                 very many iterations, then with random delays, then faults
//   gpu_tests memcheck [MODEL...] [only=TEXT]
//                                 a short run of everything, for compute-sanitizer (default: tiny)
//   gpu_tests wide [MODEL...] [batch=N] [context=N] [runs=N] [between=N] [prompts=0] [job=0]
//       [prompt=N]
//                                 iterations of more than 64 tokens: their logits' error against
//                                 exact ones beside the CPU's; of a folder instead their speed;
//                                 prompt=N: the errors of a prompt of N tokens alone
//   gpu_tests start FOLDER... [cold=0]
//                                 what a start takes without and with cached code, and whether
//                                 memory is as planned
//   gpu_tests plain [data=DIR] [only=TEXT] [tasks=1] | FOLDER...
//                                 models by plain kernels: those of tests/data/reference against
//                                 transformers, wide ones against the CPU; or a folder's speed
//                                 (tasks=1: models that tasks cover by these, against transformers)
//   gpu_tests launch [FOLDER...]  plain kernels op by op, in pieces and in graphs: the same bits, and
//                                 as many launches as each mode says
//   gpu_tests custom_tasks [FOLDER...]
//                                 custom ops in the megakernel: the bits of a host, and samples of
//                                 them; or what one takes behind a model's logits
//   gpu_tests hops [FOLDER...]    what a dependency hop costs, AOT and JIT; then in real models
//   gpu_tests schedules [MODEL...] [tokens=N]
//                                 iterations of 1 to 2048 tokens run the schedules that megalith
//                                 compile prints: their hashes, in modes mega and full
//   gpu_tests task_graphs [MODEL...] [only=TEXT]
//                                 task graphs written, read and cut in many ways give the same bits
//                                 (default: tiny, wide, whole)
//   gpu_tests wide_attend [TEXT]  attention of the wide class against scalar arithmetic
//   gpu_tests wide_speed [TEXT]   what it takes; TEXT: only cases that have it in their names
//   gpu_tests speed FOLDER... [prompt=N] [generate=N] [batch=N] [tokens=N] [in_flight=N] [ahead=N]
//                             [prefetch=0] [workers=N] [runs=N] [sweep=1] [full=1] [trace=FILE]
//   gpu_tests modes FOLDER... [batches=N,N...] [contexts=N,N...] [generate=N] [rounds=N]
//                             [prefill=N] [csv=FILE]  mega against full, interleaved; prompts in
//                             iterations of up to N tokens
//   gpu_tests modes_all FOLDER... [batches=N,N...] [prompt=N] [generate=N] [rounds=N] [eager=N]
//                             [tokens=N] [memory=1] [only=MODE,MODE...] [csv=FILE]
//                             [large_prompt=N] [large_generate=N] [cell_seconds=N]  every mode:
//                             iterations that decode, and jobs in which prompts come meanwhile;
//                             large: of batches above 64
//   gpu_tests modes_same [dense|codes|FORM|experts|mixture] [fused] [small] [requests=N]  500
//                             requests get the same bits in every mode, of a dense model, of
//                             weights of codes (FORM: such as e4m3.128), of experts of codes and of
//                             a mixture; fused: only those of fused kernels; small: of one layer
//   gpu_tests ops_same [dense|codes|mixture]  op after op has the same bits by fused tasks and by
//                             plain kernels
//   gpu_tests ablations FOLDER... [prompt=N] [generate=N] [batch=N] [rounds=N] [csv=FILE]
//                                 [jit=0] [trace=DIR] [only=TEXT]  what each mechanism is worth
//   gpu_tests ranks [MODEL] [ranks=N] [tokens=N] [gpus=1]
//                                 one model on several GPUs beside one (cut), and the loss of one
//   gpu_tests ranks_speed MODEL [ranks=N] [batches=N,N...] [prompt=N] [generate=N] [rounds=N]
//                         [tokens=N] [prefill=N] [coarse=0] [apart=0] [csv=FILE]
//                                 one GPU, several, several with a barrier between ops, and several
//                                 whose sums are not over ranks; then a prompt of N tokens
//   gpu_tests ranks_work FOLDER [ranks=N] [requests=N]
//                                 256 requests on one GPU and on several: their tokens
// With MEGALITH_KERNELS=portable in the environment all of it runs the portable kernels.
// MODEL: tiny, wide, whole, bias, experts, slots, cut, sums, or a folder with a config.json.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"

enum { SKIPPED = 77 };

void gpu_check(gpu_bench *bench, bool ok, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("- %s: ", ok ? "ok" : "FAILED");
  (void)vprintf(format, arguments);
  printf("\n");
  (void)fflush(stdout);
  va_end(arguments);
  bench->failures += ok ? 0 : 1;
}

void gpu_must(mgl_status status, const mgl_error *err) {
  if (status != MGL_OK) {
    printf("\nFAILED: %s\n", err->text);
    (void)fflush(stdout);
    _Exit(1);  // without destructors: a kernel that hangs would keep them waiting
  }
}

void *gpu_must_alloc(size_t count, size_t bytes_each) {
  void *memory = mgl_alloc_zeroed(count > 0 ? count : 1, bytes_each);
  mgl_error err = {0};
  if (memory == NULL) {
    gpu_must(mgl_error_set(&err, MGL_ERR_MEMORY, "out of memory"), &err);
  }
  return memory;
}

double gpu_error(const float *values, const float *wanted, size_t count) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < count; i++) {
    double difference = (double)values[i] - (double)wanted[i];
    error += difference * difference;
    norm += (double)wanted[i] * (double)wanted[i];
  }
  return isfinite(error) && norm > 0 ? sqrt(error / norm) : error == 0 ? 0 : (double)INFINITY;
}

void gpu_errors_add(gpu_errors *errors, const float *gpu, const float *cpu, const float *exact,
                    size_t count) {
  for (size_t i = 0; i < count; i++) {
    double of_gpu = (double)gpu[i] - (double)exact[i];
    double of_cpu = (double)cpu[i] - (double)exact[i];
    errors->gpu += of_gpu * of_gpu;
    errors->cpu += of_cpu * of_cpu;
    errors->norm += (double)exact[i] * (double)exact[i];
  }
}

static double relative(double squares, double norm) {
  return isfinite(squares) && norm > 0 ? sqrt(squares / norm) : squares == 0 ? 0 : (double)INFINITY;
}

double gpu_most_ratio(uint32_t rows) {
  return 1.15 + 0.8 / sqrt(rows < GPU_ENOUGH_ROWS ? rows : GPU_ENOUGH_ROWS);
}

double gpu_error_of_gpu(const gpu_errors *errors) {
  return relative(errors->gpu, errors->norm);
}

double gpu_error_of_cpu(const gpu_errors *errors) {
  return relative(errors->cpu, errors->norm);
}

double gpu_errors_ratio(const gpu_errors *errors) {
  double more = gpu_error_of_gpu(errors) - GPU_LEAST_ERROR;
  double cpu = gpu_error_of_cpu(errors);
  return more <= 0 ? 0 : cpu > 0 ? more / cpu : (double)INFINITY;
}

uint32_t gpu_argmax(const float *values, uint32_t count) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < count; i++) {
    best = values[i] > values[best] ? i : best;
  }
  return best;
}

static void open_device(gpu_bench *bench) {
  mgl_error err = {0};
  if (mgl_cuda_device_open(0, &bench->device, &err) != MGL_OK) {
    printf("skipped: %s\n", err.text);
    exit(SKIPPED);
  }
  char date[32];
  time_t now = time(NULL);
  (void)strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
  static const char *const kernels[] = {"portable", "with bulk copies",
                                        "with bulk copies and wgmma"};
  printf(
      "%s, %u multiprocessors, compute capability %u.%u, driver for CUDA %d.%d, kernels %s, %s.\n",
      bench->device.name, bench->device.sm_count, bench->device.major, bench->device.minor,
      bench->device.driver_version / 1000, bench->device.driver_version % 1000 / 10,
      kernels[bench->device.kernels], date);
  (void)fflush(stdout);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(gpu_bench *bench, int count, char **arguments);
  } parts[] = {{"smoke", gpu_smoke_run},
               {"ops", gpu_ops_run},
               {"schedules", gpu_schedules_run},
               {"task_graphs", gpu_task_graphs_run},
               {"sampling", gpu_sampling_run},
               {"planner", gpu_planner_run},
               {"serve", gpu_serve_run},
               {"feed", gpu_feed_run},
               {"faults", gpu_faults_run},
               {"reference", gpu_reference_run},
               {"contract", gpu_contract_run},
               {"soak", gpu_soak_run},
               {"memcheck", gpu_memcheck_run},
               {"speed", gpu_speed_run},
               {"ablations", gpu_ablations_run},
               {"modes", gpu_modes_run},
               {"modes_all", gpu_modes_all_run},
               {"modes_same", gpu_modes_same_run},
               {"ops_same", gpu_ops_same_run},
               {"hops", gpu_hops_run},
               {"plain", gpu_plain_run},
               {"launch", gpu_launch_run},
               {"custom_tasks", gpu_custom_tasks_run},
               {"start", gpu_start_run},
               {"wide", gpu_wide_run},
               {"wide_attend", gpu_wide_attend_run},
               {"wide_speed", gpu_wide_speed_run},
               {"ranks", gpu_ranks_run},
               {"ranks_speed", gpu_ranks_speed_run},
               {"ranks_work", gpu_ranks_work_run}};
  gpu_bench bench = {0};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    if (argc >= 2 && strcmp(argv[1], parts[i].name) == 0) {
      if (strncmp(parts[i].name, "ranks", 5) != 0) {  // which start processes first
        open_device(&bench);
      }
      parts[i].run(&bench, argc - 2, argv + 2);
      printf("\n%s\n", bench.failures == 0 ? "All checks passed." : "CHECKS FAILED.");
      (void)fflush(stdout);
      mgl_cuda_device_close(&bench.device);
      return bench.failures == 0 ? 0 : 1;
    }
  }
  printf("usage: gpu_tests PART [ARGUMENT...], where PART is one of:");
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    printf(" %s", parts[i].name);
  }
  printf("\n");
  return 1;
}
