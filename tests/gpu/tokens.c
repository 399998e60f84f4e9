// 100 tokens in one launch, from compiled task graphs: AOT, JIT and hybrid, embedded and dedicated
// schedulers. All ways must give the same bits, and logits within bf16 error of the reference,
// which is fed the GPU's tokens and must find each of them (nearly) largest.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "gpu/gpu_bench.h"
#include "graph/graph_text.h"
#include "model/dummy_weights.h"

enum { TOKENS = 100, SEED = 7 };
#define STALL_NS UINT64_C(1000000000)
#define DEADLINE_NS UINT64_C(10000000000)

// --- programs ------------------------------------------------------------------------------------

static void *draw(const mgl_tensor *tensor) {
  uint64_t dims[2] = {tensor->dims[0].number, tensor->rank == 2 ? tensor->dims[1].number : 1};
  size_t count = (size_t)(dims[0] * dims[1]);
  void *stored = gpu_must_alloc(count, mgl_dtype_bytes(tensor->dtype));
  mgl_dummy_weights_fill(tensor->name, SEED, tensor->dtype, tensor->rank, dims, 0, count, stored);
  if (tensor->rank == 2) {
    return stored;
  }
  float *widened = gpu_must_alloc(count, sizeof *widened);
  mgl_widen_f32(tensor->dtype, stored, count, widened);
  mgl_free(stored);
  return widened;
}

void gpu_program_load(const char *folder, const char *name, gpu_program *out) {
  mgl_error err = {0};
  char path[512];
  char text[1 << 16];
  (void)snprintf(path, sizeof path, "%s/%s.txt", folder, name);
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    gpu_must(mgl_error_set(&err, MGL_ERR_IO, "%s cannot be opened", path), &err);
  }
  size_t bytes = fread(text, 1, sizeof text, file);
  (void)fclose(file);
  gpu_must(mgl_graph_parse(text, bytes, path, &out->canonical, &err), &err);
  gpu_must(mgl_fuse_ops(out->canonical, &out->fused, &err), &err);
  out->canonical_weights = gpu_must_alloc(out->canonical->tensor_count, sizeof(void *));
  out->fused_weights = gpu_must_alloc(out->fused->tensor_count, sizeof(void *));
  for (uint32_t i = 0; i < out->canonical->tensor_count; i++) {
    const mgl_tensor *tensor = &out->canonical->tensors[i];
    if (tensor->placement == MGL_PLACE_WEIGHT) {
      out->canonical_weights[i] = draw(tensor);
      uint32_t fused = mgl_graph_find(out->fused, tensor->name);
      if (fused != MGL_NO_TENSOR) {
        out->fused_weights[fused] = out->canonical_weights[i];
      }
    }
  }
}

void gpu_program_free(gpu_program *program) {
  for (uint32_t i = 0; i < program->canonical->tensor_count; i++) {
    mgl_free(program->canonical_weights[i]);
  }
  mgl_free(program->canonical_weights);
  mgl_free(program->fused_weights);
  mgl_graph_destroy(program->canonical);
  mgl_graph_destroy(program->fused);
}

// --- one way of launching ------------------------------------------------------------------------

typedef struct way {
  const char *name;
  mgl_launch launch;
  const char *override;  // an op kind that is JIT
  uint32_t schedulers;
  bool scheduler_warps;
  bool in_turn;  // a second graph, all JIT, takes every other iteration
} way;

static const way ways[] = {
    {"AOT", MGL_LAUNCH_AOT, NULL, 0, false, false},
    {"AOT, scheduler block", MGL_LAUNCH_AOT, NULL, 1, false, false},
    {"JIT, embedded", MGL_LAUNCH_JIT, NULL, 0, false, false},
    {"JIT, scheduler warp", MGL_LAUNCH_JIT, NULL, 1, true, false},
    {"JIT, 1 scheduler block", MGL_LAUNCH_JIT, NULL, 1, false, false},
    {"JIT, 4 scheduler blocks", MGL_LAUNCH_JIT, NULL, 4, false, false},
    {"hybrid, embedded", MGL_LAUNCH_AOT, "linear", 0, false, false},
    {"hybrid, 1 scheduler block", MGL_LAUNCH_AOT, "linear", 1, false, false},
    {"AOT and JIT graphs in turn", MGL_LAUNCH_AOT, NULL, 0, false, true},
};

typedef struct run_result {
  int32_t tokens[TOKENS];
  float *logits;  // [vocab] of the last iteration
} run_result;

static mgl_task_graph *compile(const mgl_graph *program, const way *w, uint32_t workers,
                               mgl_compile_report *report) {
  mgl_error err = {0};
  // "linear" stands for whatever op adds to the residual: linear, or linear_add where it is fused.
  mgl_compile_override overrides[] = {{.op = w->override, .launch = MGL_LAUNCH_JIT},
                                      {.op = "linear_add", .launch = MGL_LAUNCH_JIT}};
  uint32_t first = 0;
  uint32_t last = 0;
  for (size_t i = 0; w->override != NULL && i < program->op_count; i++) {
    last = program->ops[i].kind == MGL_OP_LINEAR_ADD ? 2 : last;
    last = program->ops[i].kind == MGL_OP_LINEAR && last < 1 ? 1 : last;
    first = program->ops[i].kind == MGL_OP_LINEAR_ADD ? 1 : first;
  }
  mgl_compile_options options = {.tokens = 1,
                                 .workers = workers,
                                 .launch = w->launch,
                                 .overrides = overrides + first,
                                 .override_count = last - first,
                                 .verify = true};
  mgl_task_graph *graph = NULL;
  gpu_must(mgl_compile(program, &options, &graph, report, &err), &err);
  return graph;
}

// How much of it, and how patiently.
typedef struct run_amount {
  uint32_t launches;
  uint32_t tokens;  // up to TOKENS
  uint64_t stall_ns;
} run_amount;

static void run_way(gpu_bench *bench, const char *name, const mgl_graph *program, void **weights,
                    const way *w, const run_amount *amount, run_result *out, bool *differs) {
  mgl_error err = {0};
  mgl_compile_report report = {0};
  uint32_t workers = bench->device.sm_count - (w->scheduler_warps ? 0 : w->schedulers);
  mgl_task_graph *graph = compile(program, w, workers, &report);
  mgl_task_graph *second = w->in_turn ? compile(program, &ways[2], workers, NULL) : NULL;
  const mgl_task_graph *graphs[] = {graph, second};
  mgl_cuda_skeleton_options options = {.program = program,
                                       .graphs = graphs,
                                       .graph_count = w->in_turn ? 2 : 1,
                                       .weights = (const void *const *)weights,
                                       .schedulers = w->schedulers,
                                       .scheduler_warps = w->scheduler_warps,
                                       .max_iterations = TOKENS};
  mgl_cuda_skeleton *skeleton = NULL;
  gpu_must(mgl_cuda_skeleton_create(&bench->device, bench->cubin, &options, &skeleton, &err), &err);
  uint64_t times[TOKENS + 1];
  size_t vocab = program->tensors[mgl_graph_find(program, "logits")].dims[1].number;
  uint64_t *each = gpu_must_alloc((size_t)amount->launches * amount->tokens, sizeof *each);
  float *logits = gpu_must_alloc(vocab, sizeof *logits);
  for (uint32_t i = 0; i < amount->launches; i++) {
    run_result now = {.logits = logits};
    mgl_cuda_launch launch = {.first_token = 1,
                              .iterations = amount->tokens,
                              .stall_ns = amount->stall_ns,
                              .deadline_ns = 10 * amount->stall_ns};
    mgl_cuda_outcome outcome = {.tokens = now.tokens, .iteration_ns = times};
    gpu_must(mgl_cuda_skeleton_run(skeleton, &launch, &outcome, &err), &err);
    gpu_must(mgl_cuda_skeleton_read(skeleton, w->in_turn ? (amount->tokens - 1) % 2 : 0, "logits",
                                    logits, vocab, &err),
             &err);
    for (uint32_t j = 0; j < amount->tokens; j++) {
      each[i * amount->tokens + j] = times[j + 1] - times[j];
    }
    if (out->logits == NULL) {
      *out = now;
      out->logits = gpu_must_alloc(vocab, sizeof *logits);
      memcpy(out->logits, logits, vocab * sizeof *logits);
    } else if (memcmp(out->tokens, now.tokens, sizeof now.tokens) != 0 ||
               memcmp(out->logits, logits, vocab * sizeof *logits) != 0) {
      *differs = true;
    }
  }
  uint64_t median = gpu_median(each, (size_t)amount->launches * amount->tokens);
  printf("| %s | %s | %u | %u | %u | %u | %u | %.1f |\n", name, w->name, workers,
         report.chain_length, report.task_count, report.jit_tasks, graph->event_count,
         (double)median / 1e3);
  mgl_free(each);
  mgl_free(logits);
  mgl_cuda_skeleton_destroy(skeleton);
  mgl_task_graph_destroy(graph);
  mgl_task_graph_destroy(second);
}

// --- checks --------------------------------------------------------------------------------------

// |gpu - other| / |other|, with `other` as f32 or as double.
static double relative_error(const float *gpu, const float *other, const double *other_double,
                             size_t count) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < count; i++) {
    double value = other != NULL ? (double)other[i] : other_double[i];
    double difference = (double)gpu[i] - value;
    error += difference * difference;
    norm += value * value;
  }
  return sqrt(error / norm);
}

// Feeds the GPU's tokens to the reference and to the CPU.
static void check_result(gpu_bench *bench, const char *name, const gpu_program *program,
                         const run_result *gpu) {
  reference *r =
      reference_create(program->canonical, (const void *const *)program->canonical_weights);
  cpu_side *c = cpu_side_create(program->canonical, (const void **)program->canonical_weights);
  const double *wanted = NULL;
  const float *cpu = NULL;
  int32_t token = 1;
  size_t vocab = 0;
  uint32_t equal = 0;
  uint32_t equal_cpu = 0;
  uint32_t distinct = 0;
  double worst_gap = 0;
  bool in_range = true;
  for (uint32_t i = 0; i < TOKENS && in_range; i++) {
    wanted = reference_run(r, token, &vocab);
    cpu = cpu_side_run(c, token);
    size_t best = 0;
    size_t best_cpu = 0;
    bool seen = false;
    for (size_t j = 1; j < vocab; j++) {
      best = wanted[j] > wanted[best] ? j : best;
      best_cpu = cpu[j] > cpu[best_cpu] ? j : best_cpu;
    }
    token = gpu->tokens[i];
    in_range = token >= 0 && (size_t)token < vocab;
    double gap = in_range ? wanted[best] - wanted[token] : INFINITY;
    worst_gap = gap > worst_gap ? gap : worst_gap;
    equal += (size_t)token == best ? 1 : 0;
    equal_cpu += (size_t)token == best_cpu ? 1 : 0;
    for (uint32_t j = 0; j < i; j++) {
      seen = seen || gpu->tokens[j] == token;
    }
    distinct += seen ? 0 : 1;
  }
  double error = relative_error(gpu->logits, NULL, wanted, vocab);
  double error_cpu = relative_error(gpu->logits, cpu, NULL, vocab);
  gpu_check(bench, error < 1e-2 && error_cpu < 1e-2,
            "%s: logits of token %d: relative error %.2e to the reference in double, %.2e to the "
            "CPU's eager mode (bf16: below 1e-2)",
            name, TOKENS, error, error_cpu);
  gpu_check(bench, worst_gap < 0.1,
            "%s: of %d tokens %u are the reference's argmax and %u the CPU's (%u distinct; the "
            "largest gap in logits is %.3g)",
            name, TOKENS, equal, equal_cpu, distinct, worst_gap);
  cpu_side_destroy(c);
  reference_destroy(r);
}

void gpu_tokens_run(gpu_bench *bench, const char *folder, uint32_t launches) {
  static const char *const names[] = {"skeleton_chain", "skeleton_mlp"};
  printf("\n## %d tokens in one launch (%u launches, medians of all iterations)\n\n", TOKENS,
         launches);
  printf("| program | launch | workers | chain | tasks | JIT | events | us a token |\n");
  printf("|---|---|---|---|---|---|---|---|\n");
  run_amount amount = {launches, TOKENS, STALL_NS};
  run_result results[4] = {0};
  bool differs[4] = {0};
  gpu_program programs[2];
  for (uint32_t i = 0; i < 2; i++) {
    gpu_program_load(folder, names[i], &programs[i]);
    const gpu_program *p = &programs[i];
    for (size_t j = 0; j < sizeof ways / sizeof ways[0]; j++) {
      char fused_name[64];
      (void)snprintf(fused_name, sizeof fused_name, "%s, fused", names[i]);
      run_way(bench, names[i], p->canonical, p->canonical_weights, &ways[j], &amount,
              &results[2 * i], &differs[2 * i]);
      run_way(bench, fused_name, p->fused, p->fused_weights, &ways[j], &amount, &results[2 * i + 1],
              &differs[2 * i + 1]);
    }
  }
  printf("\nIn turn: every other iteration is JIT; the median lies among those.\n\n");
  for (uint32_t i = 0; i < 4; i++) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s%s", names[i / 2], i % 2 == 1 ? ", fused" : "");
    gpu_check(bench, !differs[i], "%s: the same bits in every way and launch", name);
    check_result(bench, name, &programs[i / 2], &results[i]);
    mgl_free(results[i].logits);
  }
  gpu_program_free(&programs[0]);
  gpu_program_free(&programs[1]);
}

void gpu_smoke_run(gpu_bench *bench, const char *folder) {
  run_amount amount = {1, 3, UINT64_C(10000000000)};
  gpu_program program;
  gpu_program_load(folder, "skeleton_chain", &program);
  printf("\n## Smoke: 3 tokens of skeleton_chain\n\n");
  for (size_t i = 0; i < 5; i += 2) {
    run_result result = {0};
    bool differs = false;
    run_way(bench, "skeleton_chain, fused", program.fused, program.fused_weights, &ways[i], &amount,
            &result, &differs);
    mgl_free(result.logits);
  }
  gpu_program_free(&program);
}

// Many short launches of one skeleton: every one must end by itself, with the same tokens.
void gpu_launches_run(gpu_bench *bench, const char *folder, uint32_t launches) {
  static const way *const storms[] = {&ways[0], &ways[2], &ways[4], &ways[5]};
  gpu_program program;
  gpu_program_load(folder, "skeleton_chain", &program);
  printf("\n## Ends of launches\n\n");
  for (size_t i = 0; i < sizeof storms / sizeof storms[0]; i++) {
    const way *w = storms[i];
    mgl_error err = {0};
    mgl_task_graph *graph = compile(program.fused, w, bench->device.sm_count - w->schedulers, NULL);
    const mgl_task_graph *graphs[] = {graph};
    mgl_cuda_skeleton_options options = {.program = program.fused,
                                         .graphs = graphs,
                                         .graph_count = 1,
                                         .weights = (const void *const *)program.fused_weights,
                                         .schedulers = w->schedulers,
                                         .max_iterations = TOKENS};
    mgl_cuda_skeleton *skeleton = NULL;
    gpu_must(mgl_cuda_skeleton_create(&bench->device, bench->cubin, &options, &skeleton, &err),
             &err);
    int32_t first[3] = {0};
    uint32_t wrong = 0;
    for (uint32_t j = 0; j < launches; j++) {
      int32_t tokens[3] = {0};
      uint64_t times[4];
      mgl_cuda_launch launch = {.first_token = 1,
                                .iterations = j == 0 ? 3 : 1 + j % 3,
                                .stall_ns = STALL_NS,
                                .deadline_ns = DEADLINE_NS};
      mgl_cuda_outcome outcome = {.tokens = tokens, .iteration_ns = times};
      gpu_must(mgl_cuda_skeleton_run(skeleton, &launch, &outcome, &err), &err);
      if (j == 0) {
        memcpy(first, tokens, sizeof first);
      }
      wrong += memcmp(first, tokens, launch.iterations * sizeof *tokens) != 0 ? 1 : 0;
    }
    gpu_check(bench, wrong == 0, "%s: %u launches of 1 to 3 tokens ended, %u with other tokens",
              w->name, launches, wrong);
    mgl_cuda_skeleton_destroy(skeleton);
    mgl_task_graph_destroy(graph);
  }
  gpu_program_free(&program);
}

// --- faults --------------------------------------------------------------------------------------

typedef struct fault_case {
  const char *name;
  const way *way;
  mgl_cuda_injection injection;
} fault_case;

void gpu_faults_run(gpu_bench *bench, const char *folder) {
  static const fault_case cases[] = {
      {"AOT task hangs", &ways[0], MGL_INJECT_HANG},
      {"AOT task loses its trigger", &ways[0], MGL_INJECT_LOSE},
      {"JIT task hangs, embedded", &ways[2], MGL_INJECT_HANG},
      {"JIT task loses its trigger, embedded", &ways[2], MGL_INJECT_LOSE},
      {"JIT task hangs, scheduler block", &ways[4], MGL_INJECT_HANG},
  };
  gpu_program program;
  gpu_program_load(folder, "skeleton_chain", &program);
  printf("\n## Faults (stall after %.1f s)\n\n", (double)STALL_NS / 1e9);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const way *w = cases[i].way;
    mgl_error err = {0};
    uint32_t workers = bench->device.sm_count - (w->scheduler_warps ? 0 : w->schedulers);
    mgl_task_graph *graph = compile(program.canonical, w, workers, NULL);
    const mgl_task_graph *graphs[] = {graph};
    mgl_cuda_skeleton_options options = {.program = program.canonical,
                                         .graphs = graphs,
                                         .graph_count = 1,
                                         .weights = (const void *const *)program.canonical_weights,
                                         .schedulers = w->schedulers,
                                         .scheduler_warps = w->scheduler_warps,
                                         .max_iterations = TOKENS};
    mgl_cuda_skeleton *skeleton = NULL;
    gpu_must(mgl_cuda_skeleton_create(&bench->device, bench->cubin, &options, &skeleton, &err),
             &err);
    int32_t tokens[TOKENS];
    uint64_t times[TOKENS + 1];
    mgl_cuda_launch launch = {.first_token = 1,
                              .iterations = TOKENS,
                              .stall_ns = STALL_NS,
                              .deadline_ns = DEADLINE_NS,
                              .injection = cases[i].injection,
                              .injection_task = graph->task_count / 2,
                              .injection_iteration = 10};
    mgl_cuda_outcome outcome = {.tokens = tokens, .iteration_ns = times};
    mgl_status status = mgl_cuda_skeleton_run(skeleton, &launch, &outcome, &err);
    char named[32];
    (void)snprintf(named, sizeof named, "task %u (", launch.injection_task);
    bool is_named = strstr(err.text, named) != NULL ||
                    (launch.injection == MGL_INJECT_LOSE && strstr(err.text, "or one beside it"));
    gpu_check(bench,
              status == MGL_ERR_INTERNAL && is_named && outcome.host_ns < UINT64_C(2000000000),
              "%s: after %.2f s: %s", cases[i].name, (double)outcome.host_ns / 1e9, err.text);
    launch.injection = MGL_INJECT_NONE;
    err = (mgl_error){0};
    status = mgl_cuda_skeleton_run(skeleton, &launch, &outcome, &err);
    gpu_check(bench, status == MGL_OK, "%s: the launch after it ends by itself%s%s", cases[i].name,
              status == MGL_OK ? "" : ": ", err.text);
    mgl_cuda_skeleton_destroy(skeleton);
    mgl_task_graph_destroy(graph);
  }
  gpu_program_free(&program);
}
