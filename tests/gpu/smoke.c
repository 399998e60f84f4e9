// A prompt and a few tokens: logits of every step against the CPU's, each fed the CPU's tokens;
// then the same tokens generated in one launch.
//
// Of a mixture two sides may choose other experts where two logits of a router are closer than
// rounding is fine, and then everything behind is another sum (of 4 experts a token 4e-2 of the
// logits, on the CPU beside exact results, too). So what routers say is compared as well: experts
// change places only within rounding, and logits are compared where none did. There a mixture's
// logits have to be as near to exact ones as the CPU's are (gpu_errors), since a small mixture's
// CPU is off by 1.0e-2 to 1.5e-2 itself (docs/log/254), so that the difference of two sides that
// are equally good exceeds what is enough for dense models.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/runner.h"
#include "gpu/gpu_bench.h"
#include "gpu/gpu_twin.h"

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
  bool is_mixture;
  gpu_twin twin, exact;  // of a mixture: the CPU's, every result of which is kept, and exact ones
  gpu_errors errors;     // of a mixture: of logits, until one of the three has another expert,
  uint32_t alike;        // in so many steps: what is behind reads other keys and values, too
  bool parted;
  uint32_t exchanges;      // experts that one side chose and the other one did not
  double widest_exchange;  // how far apart these are on the CPU, of the root mean square of logits
} sides;

// --- routers -------------------------------------------------------------------------------------

static bool is_chosen(const float *logits, uint32_t experts, uint32_t slots, uint32_t expert) {
  uint32_t before = 0;
  for (uint32_t i = 0; i < experts; i++) {
    before += logits[i] > logits[expert] || (logits[i] == logits[expert] && i < expert) ? 1 : 0;
  }
  return before < slots;
}

// Of a token's logits.
static uint32_t compare_choices(sides *s, const float *gpu, const float *cpu, uint32_t experts,
                                uint32_t slots) {
  double squares = 0, least = INFINITY, most = -INFINITY;
  uint32_t exchanges = 0;
  for (uint32_t i = 0; i < experts; i++) {
    const bool here = is_chosen(cpu, experts, slots, i);
    squares += (double)cpu[i] * (double)cpu[i];
    if (here != is_chosen(gpu, experts, slots, i)) {
      exchanges += here ? 1 : 0;
      least = cpu[i] < least ? cpu[i] : least;
      most = cpu[i] > most ? cpu[i] : most;
    }
  }
  const double width = exchanges == 0 ? 0 : (most - least) / sqrt(squares / experts);
  s->widest_exchange = width > s->widest_exchange ? width : s->widest_exchange;
  return exchanges;
}

// How many experts of the plan's tokens the exact twin has for others of the CPU's.
static uint32_t compare_exact(sides *s, const float *cpu, const float *exact, uint32_t experts,
                              uint32_t slots) {
  uint32_t others = 0;
  for (size_t at = 0; at < (size_t)s->plan->token_count * experts; at += experts) {
    for (uint32_t i = 0; i < experts; i++) {
      others += is_chosen(cpu + at, experts, slots, i) && !is_chosen(exact + at, experts, slots, i);
    }
  }
  return others;
}

// How many experts of the plan's tokens are others than the CPU's; *of_exact: of the exact twin's.
// *error becomes the largest one of a router's logits.
static uint32_t compare_routers(sides *s, uint32_t *of_exact, double *error) {
  mgl_error err = {0};
  const mgl_graph *fused = s->twin.fused;
  uint32_t exchanges = 0, graph = 0;
  while ((1u << graph) < s->plan->token_count) {
    graph++;
  }
  gpu_twin_run(&s->twin, s->plan, 0, UINT32_MAX);
  gpu_twin_run(&s->exact, s->plan, 0, UINT32_MAX);
  *error = 0;
  for (uint32_t i = 0; i < fused->op_count; i++) {
    if (fused->ops[i].kind != MGL_OP_ROUTE) {
      continue;
    }
    const uint32_t tensor = mgl_op_input(&fused->ops[i], MGL_ROLE_X);
    const uint32_t experts = fused->tensors[tensor].dims[1].number;
    const uint32_t slots = fused->tensors[fused->ops[i].output].dims[1].number;
    const float *cpu = s->twin.results[gpu_twin_producer(&s->twin, tensor)];
    const size_t count = (size_t)s->plan->token_count * experts;
    float *gpu = gpu_must_alloc(count, sizeof *gpu);
    gpu_must(mgl_cuda_program_read(s->gpu, graph, fused->tensors[tensor].name, gpu, count, &err),
             &err);
    const double here = gpu_error(gpu, cpu, count);
    *error = here > *error ? here : *error;
    for (size_t at = 0; at < count; at += experts) {
      exchanges += compare_choices(s, gpu + at, cpu + at, experts, slots);
    }
    *of_exact += compare_exact(s, cpu, s->exact.results[gpu_twin_producer(&s->twin, tensor)],
                               experts, slots);
    mgl_free(gpu);
  }
  s->exchanges += exchanges;
  return exchanges;
}

// -------------------------------------------------------------------------------------------------

static void open_sides(sides *s, const char *name) {
  mgl_error err = {0};
  gpu_model_open(name, &s->model);
  s->is_mixture = s->model.config.mixture.expert_count != 0;  // whose routers' logits are read
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
                                                  .poison = true,
                                                  .keep_activations = s->is_mixture});
  gpu_must(mgl_plan_create(mgl_runner_limits(s->cpu), &s->plan, &err), &err);
  if (s->is_mixture) {
    gpu_twin_open(&s->model, 8, PAGES, &s->twin);
    gpu_twin_open_exact(&s->model, &s->twin, &s->exact);
  }
  s->logits = gpu_must_alloc(s->model.config.vocab_size, sizeof *s->logits);
}

static void close_sides(sides *s) {
  if (s->is_mixture) {
    gpu_twin_close(&s->exact);
    gpu_twin_close(&s->twin);
  }
  mgl_plan_destroy(s->plan);
  mgl_cuda_program_destroy(s->gpu);
  mgl_runner_destroy(s->cpu);
  mgl_free(s->logits);
  gpu_model_close(&s->model);
}

// Step by step. Returns the largest error of a step in which both have the same experts; *compared:
// how many there are.
static double compare_steps(sides *s, uint32_t *compared) {
  static const int32_t pages[PAGES] = {2, 0, 3, 1};
  mgl_error err = {0};
  double worst = 0;
  uint32_t vocab = s->model.config.vocab_size;
  int32_t tokens[PROMPT];
  for (uint32_t i = 0; i < PROMPT; i++) {
    tokens[i] = gpu_model_token(&s->model, i);
  }
  printf(
      "\n| step | tokens | relative error | token, CPU | token, GPU | gap | error of routers | "
      "other experts |\n");
  printf("|---|---|---|---|---|---|---|---|\n");
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
    double of_routers = 0;
    uint32_t of_exact = 0;
    const uint32_t others = s->is_mixture ? compare_routers(s, &of_exact, &of_routers) : 0;
    worst = others == 0 && error > worst ? error : worst;
    *compared += others == 0 ? 1 : 0;
    s->parted = s->parted || others + of_exact != 0;
    if (s->is_mixture && !s->parted) {
      gpu_errors_add(&s->errors, s->logits, wanted, s->exact.results[s->exact.fused->op_count - 1],
                     vocab);
      s->alike++;
    }
    printf("| %u | %u | %.2e | %u | %u | %.3g | %.2e | %u |\n", step, s->plan->token_count, error,
           best, chosen, s->gaps[step], of_routers, others);
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
  uint32_t compared = 0;
  double worst = compare_steps(&s, &compared);
  printf("\n");
  if (s.is_mixture) {
    gpu_check(bench, s.widest_exchange < 2 * MOST_ERROR && compared >= GENERATE / 2,
              "%s: %u experts are others, of logits up to %.2e apart (below %.0e); %u of %d steps "
              "have the same",
              name, s.exchanges, s.widest_exchange, 2 * MOST_ERROR, compared, GENERATE);
    const double ratio = gpu_errors_ratio(&s.errors);
    gpu_check(bench,
              s.alike > 0 && gpu_error_of_cpu(&s.errors) < GPU_MOST_CPU_ERROR &&
                  ratio <= gpu_most_ratio(s.alike),
              "%s: logits of the first %u steps are off exact ones by %.2e, the CPU's by %.2e: "
              "%.2f times, at most %.2f; off the CPU's by up to %.2e",
              name, s.alike, gpu_error_of_gpu(&s.errors), gpu_error_of_cpu(&s.errors), ratio,
              gpu_most_ratio(s.alike), worst);
  } else {
    gpu_check(bench, worst < MOST_ERROR, "%s: largest relative error of logits %.2e, below %.0e",
              name, worst, MOST_ERROR);
  }
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
