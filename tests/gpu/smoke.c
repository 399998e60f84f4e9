// A prompt and a few tokens: logits of every step against the CPU's, each fed the CPU's tokens;
// then the same tokens generated in one launch.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/runner.h"
#include "gpu/gpu_bench.h"

enum { PROMPT = 5, GENERATE = 8, PAGES = 4 };

#define MOST_ERROR 2e-2  // bf16 weights and activations, rounded in other places than on the CPU
#define MOST_GAP 0.15    // of two logits that may change places

typedef struct sides {
  gpu_bench *bench;
  gpu_model model;
  mgl_runner *cpu;
  mgl_cuda_program *gpu;
  mgl_plan *plan;
  float *logits;             // of the GPU
  int32_t tokens[GENERATE];  // the CPU's
  double gaps[GENERATE];     // between the CPU's largest logit and that of the GPU's token
} sides;

static void open_sides(sides *s, const char *name) {
  mgl_error err = {0};
  gpu_model_open(name, &s->model);
  mgl_model_folder folder = {.config = s->model.config};
  mgl_build cpu = {.iteration_tokens = 8,
                   .sequences = 1,
                   .sequence_tokens = PAGES * GPU_PAGE_TOKENS,
                   .weights = MGL_WEIGHTS_DUMMY,
                   .seed = GPU_SEED};
  gpu_must(mgl_runner_create(&folder, &cpu, &s->cpu, &err), &err);
  s->gpu = gpu_program(s->bench, &s->model,
                       (mgl_cuda_program_options){.sizes.limits.tokens = 8,
                                                  .sizes.sequences = 1,
                                                  .sizes.limits.pages_per_sequence = PAGES,
                                                  .poison = true});
  gpu_must(mgl_plan_create(mgl_runner_limits(s->cpu), &s->plan, &err), &err);
  s->logits = gpu_must_alloc(s->model.config.vocab_size, sizeof *s->logits);
}

static void close_sides(sides *s) {
  mgl_plan_destroy(s->plan);
  mgl_cuda_program_destroy(s->gpu);
  mgl_runner_destroy(s->cpu);
  mgl_free(s->logits);
  gpu_model_close(&s->model);
}

// Step by step. Returns the largest error.
static double compare_steps(sides *s) {
  static const int32_t pages[PAGES] = {2, 0, 3, 1};
  mgl_error err = {0};
  double worst = 0;
  uint32_t vocab = s->model.config.vocab_size;
  int32_t tokens[PROMPT];
  for (uint32_t i = 0; i < PROMPT; i++) {
    tokens[i] = gpu_model_token(&s->model, i);
  }
  printf("\n| step | tokens | relative error | token, CPU | token, GPU | gap |\n");
  printf("|---|---|---|---|---|---|\n");
  for (uint32_t step = 0; step < GENERATE; step++) {
    mgl_logits cpu = {0};
    mgl_plan_clear(s->plan);
    mgl_plan_add(s->plan, &(mgl_plan_chunk){.tokens = step == 0 ? tokens : &s->tokens[step - 1],
                                            .token_count = step == 0 ? PROMPT : 1,
                                            .position = step == 0 ? 0 : PROMPT + step - 1,
                                            .pages = pages,
                                            .page_count = PAGES,
                                            .logits = MGL_LOGITS_LAST});
    gpu_must(mgl_runner_run(s->cpu, MGL_MODE_MEGA, s->plan, &cpu, &err), &err);
    const float *wanted = cpu.rows;
    gpu_must(mgl_cuda_program_run_plan(s->gpu, s->plan, NULL, s->logits, &err), &err);
    uint32_t best = gpu_argmax(wanted, vocab);
    uint32_t chosen = gpu_argmax(s->logits, vocab);
    double error = gpu_error(s->logits, wanted, vocab);
    s->tokens[step] = (int32_t)best;
    s->gaps[step] = (double)wanted[best] - (double)wanted[chosen];
    worst = error > worst ? error : worst;
    printf("| %u | %u | %.2e | %u | %u | %.3g |\n", step, s->plan->token_count, error, best, chosen,
           s->gaps[step]);
    (void)fflush(stdout);
  }
  return worst;
}

typedef struct generated {
  int32_t tokens[GENERATE];
  uint32_t count;
  mgl_cuda_sequence_state state;
} generated;

static void on_token(void *context, const mgl_cuda_token *token) {
  generated *g = context;
  if (g->count < GENERATE) {
    g->tokens[g->count++] = token->token;
  }
  g->state = token->state;
}

static void generate(sides *s, generated *out) {
  mgl_error err = {0};
  int32_t prompt[PROMPT];
  for (uint32_t i = 0; i < PROMPT; i++) {
    prompt[i] = gpu_model_token(&s->model, i);
  }
  mgl_cuda_request request = {.prompt = prompt, .prompt_count = PROMPT, .max_new_tokens = GENERATE};
  mgl_cuda_outcome outcome = {0};
  mgl_cuda_generate job = {.requests = &request,
                           .request_count = 1,
                           .on_token = on_token,
                           .context = out,
                           .outcome = &outcome};
  *out = (generated){0};
  gpu_must(mgl_cuda_program_generate(s->gpu, &job, &err), &err);
  gpu_check(s->bench, out->count == GENERATE && out->state == MGL_CUDA_SEQUENCE_LENGTH,
            "%s: one launch: %u tokens in %u iterations, %.2f ms", s->model.name, out->count,
            outcome.iterations, (double)outcome.host_ns / 1e6);
}

static void smoke(gpu_bench *bench, const char *name) {
  sides s = {.bench = bench};
  printf("\n## Smoke: %s, prompt of %d tokens, %d generated\n", name, PROMPT, GENERATE);
  (void)fflush(stdout);
  open_sides(&s, name);
  mgl_cuda_program_info info = mgl_cuda_program_describe(s.gpu);
  printf("\n%u workers, %u tasks, %u events; %u registers, %u bytes spilled, %u smem pages\n",
         info.workers, info.task_count, info.event_count, info.usage.registers,
         info.usage.spill_bytes, info.smem_pages);
  (void)fflush(stdout);
  double worst = compare_steps(&s);
  printf("\n");
  gpu_check(bench, worst < MOST_ERROR, "%s: largest relative error of logits %.2e, below %.0e",
            name, worst, MOST_ERROR);
  generated first;
  generated second;
  generate(&s, &first);
  generate(&s, &second);
  gpu_check(bench, memcmp(first.tokens, second.tokens, sizeof first.tokens) == 0,
            "%s: a second launch gives the same tokens", name);
  uint32_t same = 0;
  while (same < GENERATE && first.tokens[same] == s.tokens[same]) {
    same++;
  }
  gpu_check(
      bench,
      same == GENERATE || s.gaps[same] > 0 ? same == GENERATE || s.gaps[same] < MOST_GAP : false,
      "%s: %u of %d tokens are the CPU's%s", name, same, GENERATE,
      same < GENERATE ? ", then two logits change places" : "");
  close_sides(&s);
}

void gpu_smoke_run(gpu_bench *bench, int count, char **arguments) {
  if (count == 0) {
    smoke(bench, "tiny");
  }
  for (int i = 0; i < count; i++) {
    smoke(bench, arguments[i]);
  }
}
