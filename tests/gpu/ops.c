// Every op's result, op by op, after iterations of the same plans on the GPU, on the CPU and
// exactly. Rounding errors grow from layer to layer, on both sides alike, so the GPU's error is
// held against the CPU's (gpu_errors). The first op with a large ratio is where to look: what
// stands behind it computes with wrong input.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"
#include "gpu/gpu_twin.h"

enum {
  TOKENS = 64,
  SEQUENCES = 20,
  PAGES = 40,
  ROWS = 256,  // of a case, at least: chance then moves the errors of results by a twentieth
};

// Iterations to compare: in the first of them sequence i has `context + i * context_step` tokens in
// the cache; others behind it go on, until there are ROWS rows.
typedef struct ops_case {
  uint32_t tokens, sequences, context, context_step;
} ops_case;

static const ops_case cases[] = {{1, 1, 0, 0},    {3, 1, 0, 0},    {16, 1, 0, 0},
                                 {17, 1, 0, 0},   {33, 1, 0, 0},   {64, 1, 0, 0},
                                 {1, 1, 40, 0},   {1, 1, 300, 0},  {17, 1, 300, 0},
                                 {64, 1, 250, 0}, {17, 17, 5, 13}, {64, 3, 100, 90}};

enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct sides {
  gpu_bench *bench;
  gpu_model model;
  gpu_twin cpu, exact;
  mgl_cuda_program *gpu;
  mgl_plan *plan;
  int32_t pages[SEQUENCES][PAGES];
} sides;

static void run_all(sides *s) {
  mgl_error err = {0};
  gpu_must(mgl_cuda_program_run_plan(s->gpu, s->plan, NULL, NULL, &err), &err);
  gpu_twin_run(&s->cpu, s->plan, 0, UINT32_MAX);
  gpu_twin_run(&s->exact, s->plan, 0, UINT32_MAX);
}

// Each case has texts of its own.
static void add(sides *s, uint32_t text, uint32_t sequence, uint32_t position, uint32_t count,
                mgl_plan_logits logits) {
  int32_t tokens[TOKENS];
  for (uint32_t i = 0; i < count; i++) {
    tokens[i] = gpu_model_token(&s->model, (text * SEQUENCES + sequence) * 1000 + position + i);
  }
  mgl_plan_add(s->plan, &(mgl_plan_chunk){.tokens = tokens,
                                          .token_count = count,
                                          .position = position,
                                          .pages = s->pages[sequence],
                                          .page_count = PAGES,
                                          .logits = logits});
}

static void make_context(sides *s, uint32_t text, uint32_t sequence, uint32_t tokens) {
  for (uint32_t at = 0; at < tokens; at += TOKENS) {
    mgl_plan_clear(s->plan);
    add(s, text, sequence, at, tokens - at < TOKENS ? tokens - at : TOKENS, MGL_LOGITS_NONE);
    run_all(s);
  }
}

static void add_errors(sides *s, gpu_errors *errors) {
  mgl_error err = {0};
  const gpu_twin *c = &s->cpu;
  uint32_t graph = 0;
  while ((1u << graph) < s->plan->token_count) {
    graph++;
  }
  for (uint32_t op = 0; op < c->fused->op_count; op++) {
    const mgl_tensor *result = &c->fused->tensors[c->fused->ops[op].output];
    size_t count = gpu_twin_elements(c, op);
    float *values = gpu_must_alloc(count, sizeof *values);
    gpu_must(mgl_cuda_program_read(s->gpu, graph, result->name, values, count, &err), &err);
    gpu_errors_add(&errors[op], values, c->results[op], s->exact.results[op], count);
    mgl_free(values);
  }
}

static void run_case(sides *s, uint32_t number, gpu_errors *errors) {
  const ops_case *c = &cases[number];
  uint32_t positions[SEQUENCES];
  for (uint32_t i = 0; i < c->sequences; i++) {
    positions[i] = c->context + i * c->context_step;
    make_context(s, number, i, positions[i]);
  }
  for (uint32_t rows = 0; rows < ROWS; rows += c->tokens) {
    mgl_plan_clear(s->plan);
    for (uint32_t i = 0; i < c->sequences; i++) {
      uint32_t count = c->tokens * (i + 1) / c->sequences - c->tokens * i / c->sequences;
      add(s, number, i, positions[i], count, MGL_LOGITS_ALL);
      positions[i] += count;
    }
    run_all(s);
    add_errors(s, errors);
  }
}

static void print_table(const sides *s, const gpu_errors *errors) {
  const mgl_graph *fused = s->cpu.fused;
  printf(
      "\nRelative error (Euclidean) of each op's result on the GPU, and its ratio to the CPU's; "
      "columns: tokens x sequences @ cached tokens of the first.\n\n| op | result |");
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
      const gpu_errors *e = &errors[i * fused->op_count + op];
      double ratio = gpu_errors_ratio(e);
      const char *mark = ratio <= gpu_most_ratio(ROWS) ? "" : "**";
      printf(" %s%.1e: %.2f%s |", mark, gpu_error_of_gpu(e), ratio, mark);
    }
  }
  printf("\n\n");
}

static void check_case(const sides *s, const ops_case *c, const gpu_errors *errors) {
  const mgl_graph *fused = s->cpu.fused;
  uint32_t worst = 0;
  uint32_t first = UINT32_MAX;
  double most_cpu = 0;
  for (uint32_t op = 0; op < fused->op_count; op++) {
    double ratio = gpu_errors_ratio(&errors[op]);
    worst = ratio > gpu_errors_ratio(&errors[worst]) ? op : worst;
    first = !(ratio <= gpu_most_ratio(ROWS)) && first == UINT32_MAX ? op : first;
    most_cpu = fmax(most_cpu, gpu_error_of_cpu(&errors[op]));
  }
  gpu_check(s->bench, first == UINT32_MAX && most_cpu < GPU_MOST_CPU_ERROR,
            "%s, %u tokens of %u sequences behind %u: at most %.2f of the CPU's error, at %s (%.1e "
            "of %.1e); the CPU's is at most %.1e%s%s",
            s->model.name, c->tokens, c->sequences, c->context, gpu_errors_ratio(&errors[worst]),
            fused->tensors[fused->ops[worst].output].name, gpu_error_of_gpu(&errors[worst]),
            gpu_error_of_cpu(&errors[worst]), most_cpu,
            first == UINT32_MAX ? "" : "; the first too large is ",
            first == UINT32_MAX ? "" : fused->tensors[fused->ops[first].output].name);
}

static void compare(gpu_bench *bench, const char *name) {
  static const mgl_plan_limits limits = {.tokens = TOKENS,
                                         .sequences = SEQUENCES,
                                         .pages_per_sequence = PAGES,
                                         .page_tokens = GPU_PAGE_TOKENS};
  mgl_error err = {0};
  sides s = {.bench = bench};
  printf("\n## Ops: %s\n", name);
  (void)fflush(stdout);
  gpu_model_open(name, &s.model);
  gpu_twin_open(&s.model, TOKENS, SEQUENCES * PAGES, &s.cpu);
  gpu_twin_open_exact(&s.model, &s.cpu, &s.exact);
  s.gpu = gpu_program(bench, &s.model,
                      (mgl_cuda_program_options){.sizes.limits.tokens = TOKENS,
                                                 .sizes.sequences = SEQUENCES,
                                                 .sizes.limits.pages_per_sequence = PAGES,
                                                 .sizes.logit_rows = TOKENS,
                                                 .poison = true,
                                                 .keep_activations = true});
  gpu_must(mgl_plan_create(&limits, &s.plan, &err), &err);
  for (uint32_t i = 0; i < SEQUENCES; i++) {
    for (uint32_t j = 0; j < PAGES; j++) {  // pages of a sequence are not neighbours
      s.pages[i][j] = (int32_t)(j * SEQUENCES + (i * 7 + j * 3) % SEQUENCES);
    }
  }
  size_t op_count = s.cpu.fused->op_count;
  gpu_errors *errors = gpu_must_alloc(CASES * op_count, sizeof *errors);
  for (uint32_t i = 0; i < CASES; i++) {
    run_case(&s, i, errors + i * op_count);
  }
  print_table(&s, errors);
  for (size_t i = 0; i < CASES; i++) {
    check_case(&s, &cases[i], errors + i * op_count);
  }
  mgl_free(errors);
  mgl_plan_destroy(s.plan);
  mgl_cuda_program_destroy(s.gpu);
  gpu_twin_close(&s.exact);
  gpu_twin_close(&s.cpu);
  gpu_model_close(&s.model);
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
