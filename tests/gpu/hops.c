// What a dependency costs on the device: chains of stages whose tasks do nothing, under AOT and JIT
// launch, alone and while every worker's loader streams weights.
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"
#include "graph/graph_text.h"

enum {
  STAGES = 128,
  WIDE_JIT_STAGES = 4,  // a JIT stage of all workers takes up to 10 ms
  ITERATIONS = 20,
  LAUNCHES = 5
};
#define STREAM_BYTES (UINT64_C(4) << 30)

static const char program_text[] =
    "program hops\n"
    "input tokens i32[T]\n"
    "weight table bf16[1,64]\n"
    "x = embed(tokens, table) : f32[T,64]\n"
    "output x\n";

typedef struct hop_way {
  const char *name;
  bool jit;
  bool massive;
  uint32_t schedulers;
  bool scheduler_warps;
} hop_way;

// One cell of the table: ns per stage, and what the loaders moved meanwhile.
typedef struct hop_time {
  double ns;
  double gigabytes_per_s;
} hop_time;

static hop_time measure(mgl_cuda_skeleton *skeleton, uint32_t stages, uint32_t stream_pages,
                        uint32_t launches) {
  mgl_error err = {0};
  int32_t tokens[ITERATIONS];
  uint64_t times[ITERATIONS + 1];
  uint64_t each[LAUNCHES * ITERATIONS];
  size_t count = 0;
  double bytes = 0;
  double ns = 0;
  for (uint32_t i = 0; i < launches; i++) {
    mgl_cuda_launch launch = {.iterations = ITERATIONS,
                              .stall_ns = UINT64_C(1000000000),
                              .deadline_ns = UINT64_C(10000000000),
                              .stream_pages = stream_pages};
    mgl_cuda_outcome outcome = {.tokens = tokens, .iteration_ns = times};
    gpu_must(mgl_cuda_skeleton_run(skeleton, &launch, &outcome, &err), &err);
    for (uint32_t j = 1; j < ITERATIONS; j++) {  // the first starts while blocks still arrive
      each[count++] = times[j + 1] - times[j];
    }
    bytes += (double)outcome.streamed_bytes;
    ns += (double)(times[ITERATIONS] - times[0]);
  }
  return (hop_time){(double)gpu_median(each, count) / stages, bytes / ns};
}

void gpu_hops_run(gpu_bench *bench, bool quick) {
  static const hop_way ways[] = {
      {"AOT", false, false, 0, false},
      {"AOT, 1 scheduler block", false, false, 1, false},
      {"JIT, embedded", true, false, 0, false},
      {"JIT, 1 scheduler warp", true, false, 1, true},
      {"JIT, 1 scheduler block", true, false, 1, false},
      {"JIT, 4 scheduler blocks, shares", true, true, 4, false},
  };
  static const uint32_t pages[] = {0, 2, 12};
  mgl_error err = {0};
  mgl_graph *program = NULL;
  uint16_t table[64] = {0};
  const void *weights[3] = {0};
  gpu_must(mgl_graph_parse(program_text, sizeof program_text - 1, "hops", &program, &err), &err);
  weights[mgl_graph_find(program, "table")] = table;
  uint32_t launches = quick ? 1 : LAUNCHES;
  printf(
      "\n## A dependency hop (chains of stages of empty tasks, median of %u launches of %d "
      "iterations)\n\n",
      launches, ITERATIONS);
  printf(
      "us per stage; in brackets GB/s that the loader warps of all workers streamed meanwhile, "
      "2 and 12 pages of 16 KB in flight each\n\n");
  printf("| launch | tasks a stage | alone | 2 pages | 12 pages |\n|---|---|---|---|---|\n");
  for (size_t i = 0; i < 2 * sizeof ways / sizeof ways[0]; i++) {
    const hop_way *way = &ways[i / 2];
    uint32_t workers = bench->device.sm_count - (way->scheduler_warps ? 0 : way->schedulers);
    hand_stages stages = {.count = way->jit && i % 2 == 1 ? WIDE_JIT_STAGES : STAGES,
                          .width = i % 2 == 0 ? 1 : workers,
                          .workers = workers,
                          .jit = way->jit,
                          .massive = way->massive && i % 2 == 1};
    mgl_task_graph *graph = hand_graph_create(&stages);
    const mgl_task_graph *graphs[] = {graph};
    mgl_cuda_skeleton_options options = {.program = program,
                                         .graphs = graphs,
                                         .graph_count = 1,
                                         .weights = weights,
                                         .schedulers = way->schedulers,
                                         .scheduler_warps = way->scheduler_warps,
                                         .max_iterations = ITERATIONS,
                                         .stream_bytes = STREAM_BYTES};
    mgl_cuda_skeleton *skeleton = NULL;
    gpu_must(mgl_cuda_skeleton_create(&bench->device, bench->cubin, &options, &skeleton, &err),
             &err);
    printf("| %s | %u |", way->name, stages.width);
    for (size_t j = 0; j < sizeof pages / sizeof pages[0]; j++) {
      hop_time time = measure(skeleton, stages.count, pages[j], launches);
      printf(pages[j] == 0 ? " %.2f |" : " %.2f (%.0f) |", time.ns / 1e3, time.gigabytes_per_s);
    }
    printf("\n");
    (void)fflush(stdout);
    mgl_cuda_skeleton_destroy(skeleton);
    mgl_task_graph_destroy(graph);
  }
  mgl_graph_destroy(program);
}
