// Every op's result, op by op, after one iteration of the same plan on the GPU and on the CPU. The
// first op with a large error is where to look: what stands behind it computes with wrong input.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"
#include "gpu/gpu_twin.h"

enum { TOKENS = 64, SEQUENCES = 20, PAGES = 32 };

#define MOST_ERROR 3e-2

// An iteration to compare: sequence i has `context + i * context_step` tokens in the cache.
typedef struct ops_case {
  uint32_t tokens, sequences, context, context_step;
} ops_case;

static const ops_case cases[] = {{1, 1, 0, 0},    {3, 1, 0, 0},    {16, 1, 0, 0},
                                 {17, 1, 0, 0},   {33, 1, 0, 0},   {64, 1, 0, 0},
                                 {1, 1, 40, 0},   {1, 1, 300, 0},  {17, 1, 300, 0},
                                 {64, 1, 250, 0}, {17, 17, 5, 13}, {64, 3, 100, 90}};

enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct both {
  gpu_bench *bench;
  gpu_model model;
  gpu_twin cpu;
  mgl_cuda_program *gpu;
  mgl_plan *plan;
  int32_t pages[SEQUENCES][PAGES];
} both;

static void run_both(both *b) {
  mgl_error err = {0};
  gpu_must(mgl_cuda_program_run_plan(b->gpu, b->plan, NULL, NULL, &err), &err);
  gpu_twin_run(&b->cpu, b->plan, 0, UINT32_MAX);
}

static void add(both *b, uint32_t sequence, uint32_t position, uint32_t count,
                mgl_plan_logits logits) {
  int32_t tokens[TOKENS];
  for (uint32_t i = 0; i < count; i++) {
    tokens[i] = gpu_model_token(&b->model, sequence * 1000 + position + i);
  }
  mgl_plan_add(b->plan, &(mgl_plan_chunk){.tokens = tokens,
                                          .token_count = count,
                                          .position = position,
                                          .pages = b->pages[sequence],
                                          .page_count = PAGES,
                                          .logits = logits});
}

static void make_context(both *b, uint32_t sequence, uint32_t tokens) {
  for (uint32_t at = 0; at < tokens; at += TOKENS) {
    mgl_plan_clear(b->plan);
    add(b, sequence, at, tokens - at < TOKENS ? tokens - at : TOKENS, MGL_LOGITS_NONE);
    run_both(b);
  }
}

static void run_case(both *b, const ops_case *c) {
  for (uint32_t i = 0; i < c->sequences; i++) {
    make_context(b, i, c->context + i * c->context_step);
  }
  mgl_plan_clear(b->plan);
  for (uint32_t i = 0; i < c->sequences; i++) {
    uint32_t count = c->tokens * (i + 1) / c->sequences - c->tokens * i / c->sequences;
    add(b, i, c->context + i * c->context_step, count, MGL_LOGITS_ALL);
  }
  run_both(b);
}

// Error of one op's result; negative where the GPU's program has no such tensor.
static double compare_op(both *b, uint32_t op) {
  mgl_error err = {0};
  const gpu_twin *c = &b->cpu;
  const mgl_tensor *result = &c->fused->tensors[c->fused->ops[op].output];
  const mgl_graph *gpu = mgl_cuda_program_fused(b->gpu);
  size_t count = gpu_twin_elements(c, op);
  uint32_t graph = 0;
  while ((1u << graph) < b->plan->token_count) {
    graph++;
  }
  if (mgl_graph_find(gpu, result->name) == MGL_NO_TENSOR) {
    return -1;
  }
  float *values = gpu_must_alloc(count, sizeof *values);
  gpu_must(mgl_cuda_program_read(b->gpu, graph, result->name, values, count, &err), &err);
  double error = gpu_error(values, c->results[op], count);
  mgl_free(values);
  return error;
}

static void print_table(const both *b, const double *errors) {
  const mgl_graph *fused = b->cpu.fused;
  printf(
      "\nRelative error (Euclidean) of each op's result; columns: tokens x sequences @ cached "
      "tokens of the first.\n\n| op | result |");
  for (size_t i = 0; i < CASES; i++) {
    printf(" %ux%u @ %u |", cases[i].tokens, cases[i].sequences, cases[i].context);
  }
  printf("\n|---|---|");
  for (size_t i = 0; i < CASES; i++) {
    printf("---|");
  }
  for (uint32_t op = 0; op < fused->op_count; op++) {
    printf("\n| %s | %s |", mgl_op_info_of(fused->ops[op].kind)->name,
           fused->tensors[fused->ops[op].output].name);
    for (size_t i = 0; i < CASES; i++) {
      double error = errors[i * fused->op_count + op];
      printf(" %s%.1e%s |", error < MOST_ERROR ? "" : "**", error, error < MOST_ERROR ? "" : "**");
    }
  }
  printf("\n\n");
}

static void check_case(both *b, const ops_case *c, const double *errors) {
  const mgl_graph *fused = b->cpu.fused;
  double worst = 0;
  uint32_t first = UINT32_MAX;
  for (uint32_t op = 0; op < fused->op_count; op++) {
    worst = errors[op] > worst ? errors[op] : worst;
    if (!(errors[op] < MOST_ERROR) && first == UINT32_MAX) {
      first = op;
    }
  }
  gpu_check(b->bench, first == UINT32_MAX,
            "%s, %u tokens of %u sequences behind %u: largest error %.1e%s%s", b->model.name,
            c->tokens, c->sequences, c->context, worst, first == UINT32_MAX ? "" : ", first at ",
            first == UINT32_MAX ? "" : fused->tensors[fused->ops[first].output].name);
}

static void compare(gpu_bench *bench, const char *name) {
  static const mgl_plan_limits limits = {.tokens = TOKENS,
                                         .sequences = SEQUENCES,
                                         .pages_per_sequence = PAGES,
                                         .page_tokens = GPU_PAGE_TOKENS};
  mgl_error err = {0};
  both b = {.bench = bench};
  printf("\n## Ops: %s\n", name);
  (void)fflush(stdout);
  gpu_model_open(name, &b.model);
  gpu_twin_open(&b.model, TOKENS, SEQUENCES * PAGES, &b.cpu);
  b.gpu = gpu_program(bench, &b.model,
                      (mgl_cuda_program_options){.iteration_tokens = TOKENS,
                                                 .sequences = SEQUENCES,
                                                 .pages_per_sequence = PAGES,
                                                 .logit_rows = TOKENS,
                                                 .poison = true,
                                                 .keep_activations = true});
  gpu_must(mgl_plan_create(&limits, &b.plan, &err), &err);
  for (uint32_t i = 0; i < SEQUENCES; i++) {
    for (uint32_t j = 0; j < PAGES; j++) {  // pages of a sequence are not neighbours
      b.pages[i][j] = (int32_t)(j * SEQUENCES + (i * 7 + j * 3) % SEQUENCES);
    }
  }
  size_t op_count = b.cpu.fused->op_count;
  double *errors = gpu_must_alloc(CASES * op_count, sizeof *errors);
  for (size_t i = 0; i < CASES; i++) {
    run_case(&b, &cases[i]);
    for (uint32_t op = 0; op < op_count; op++) {
      errors[i * op_count + op] = compare_op(&b, op);
    }
  }
  print_table(&b, errors);
  for (size_t i = 0; i < CASES; i++) {
    check_case(&b, &cases[i], errors + i * op_count);
  }
  mgl_free(errors);
  mgl_plan_destroy(b.plan);
  mgl_cuda_program_destroy(b.gpu);
  gpu_twin_close(&b.cpu);
  gpu_model_close(&b.model);
}

void gpu_ops_run(gpu_bench *bench, int count, char **arguments) {
  if (count == 0) {
    compare(bench, "tiny");
  } else if (strchr(arguments[0], '=') != NULL) {
    gpu_ops_range(bench, count, arguments);
    return;
  }
  for (int i = 0; i < count; i++) {
    compare(bench, arguments[i]);
  }
}
