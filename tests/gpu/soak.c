// Very many iterations: no launch may hang, and every launch gives the tokens of the first of its
// kind. Then the same with random delays before tasks and triggers, and with faults in between.
//
// Part memcheck runs everything once, briefly and with patient watchdogs: under compute-sanitizer
// an iteration takes a thousand times as long.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "batch/sampling.h"
#include "gpu/gpu_bench.h"

enum {
  SEQUENCES = 16,
  PAGES = 48,  // of a sequence
  ITERATION = MGL_CUDA_MAX_TOKENS,
  MOST_LAUNCHES_SHOWN = 3,  // of those that fail
};

typedef struct soak_options {
  uint32_t iterations, delays, seconds;
} soak_options;

// Jobs of different shape; the iterations of a launch follow from it.
typedef struct workload {
  uint32_t requests, prompt, prompt_step, generate, chunk;
  bool sampled;
} workload;

static const workload workloads[] = {
    {.requests = 1, .prompt = 40, .generate = 500},
    {.requests = 3, .prompt = 5, .prompt_step = 61, .generate = 400},
    {.requests = 8, .prompt = 1, .prompt_step = 33, .generate = 300, .chunk = 7, .sampled = true},
    {.requests = 16, .prompt = 3, .prompt_step = 17, .generate = 350, .chunk = 16},
    {.requests = 16, .prompt = 250, .prompt_step = 1, .generate = 200, .sampled = true},
    {.requests = 5, .prompt = 300, .prompt_step = 40, .generate = 100, .chunk = 1},
};

enum { WORKLOADS = sizeof workloads / sizeof workloads[0] };

typedef struct machine {
  const char *name;
  mgl_launch launch;
  uint32_t schedulers;
  bool scheduler_warps;
  uint32_t share;  // one in so many of the iterations
  bool full;       // its launches are of mode full: no delays, no injected faults
} machine;

static const machine machines[] = {
    {.name = "default", .share = 1},
    {.name = "all JIT, no schedulers", .launch = MGL_LAUNCH_JIT, .share = 5},
    {.name = "all JIT, 2 schedulers", .launch = MGL_LAUNCH_JIT, .schedulers = 2, .share = 5},
    {.name = "all JIT, 2 scheduler warps",
     .launch = MGL_LAUNCH_JIT,
     .schedulers = 2,
     .scheduler_warps = true,
     .share = 5},
    {.name = "mode full", .share = 2, .full = true},
};

typedef struct soak {
  gpu_bench *bench;
  const gpu_model *model;
  const machine *machine;
  mgl_cuda_program *program;
  uint64_t expected[WORKLOADS];  // hash of all tokens
  uint32_t failures;
} soak;

// --- one launch ----------------------------------------------------------------------------------

typedef struct token_hash {
  uint64_t of[SEQUENCES];
} token_hash;

static void on_token(void *context, const mgl_cuda_token *token) {
  uint64_t *hash = &((token_hash *)context)->of[token->request];
  *hash = (*hash ^ (uint32_t)token->token) * UINT64_C(0x100000001b3) + 1;
}

// The hash of all tokens in *hash, iterations in *iterations.
static mgl_status launch(soak *s, const workload *w, const mgl_cuda_launch_options *options,
                         uint64_t *hash, uint32_t *iterations, mgl_error *err) {
  mgl_cuda_request requests[SEQUENCES];
  int32_t prompts[SEQUENCES][PAGES * GPU_PAGE_TOKENS];
  token_hash tokens = {{0}};
  mgl_cuda_outcome outcome = {0};
  for (uint32_t i = 0; i < w->requests; i++) {
    uint32_t count = w->prompt + i * w->prompt_step;
    for (uint32_t j = 0; j < count; j++) {
      prompts[i][j] = gpu_model_token(s->model, i * 1000 + j);
    }
    bool sampled = w->sampled && i % 2 == 0;
    mgl_sampling sampling = {.temperature = 0.9,
                             .top_k = i % 4 == 0 ? 50 : 0,
                             .top_p = 0.95,
                             .frequency_penalty = i % 8 == 0 ? 0.1 : 0,
                             .seed = i};
    requests[i] = (mgl_cuda_request){
        .prompt = prompts[i], .prompt_count = count, .max_new_tokens = w->generate};
    if (sampled) {
      requests[i].rule = mgl_sampling_rule_of(&sampling, count);
    }
  }
  mgl_cuda_generate job = {.requests = requests,
                           .request_count = w->requests,
                           .on_token = on_token,
                           .context = &tokens,
                           .chunk_tokens = w->chunk,
                           .launch = *options,
                           .outcome = &outcome};
  job.launch.full = s->machine->full;
  mgl_status status = mgl_cuda_program_generate(s->program, &job, err);
  *iterations = outcome.iterations;
  *hash = 1;
  for (uint32_t i = 0; i < w->requests; i++) {
    *hash = (*hash ^ tokens.of[i]) * UINT64_C(0x9E3779B97F4A7C15);
  }
  return status;
}

// Launches workload after workload until there were so many iterations; a line of the table.
static void run_for(soak *s, uint32_t wanted, uint32_t seconds, uint32_t delay_ns) {
  mgl_cuda_launch_options options = {.delay_ns = delay_ns};
  mgl_error err = {0};
  uint64_t done = 0;
  uint64_t start = mgl_clock_ns();
  uint32_t launches = 0;
  uint32_t unlike = 0;
  if (wanted == 0) {
    return;
  }
  while (done < wanted && (mgl_clock_ns() - start) / UINT64_C(1000000000) < seconds) {
    uint32_t i = launches % WORKLOADS;
    uint64_t hash = 0;
    uint32_t iterations = 0;
    if (launch(s, &workloads[i], &options, &hash, &iterations, &err) != MGL_OK) {
      gpu_check(s->bench, false, "%s, launch %u: %s", s->machine->name, launches, err.text);
      s->failures++;
      break;
    }
    s->expected[i] = s->expected[i] == 0 ? hash : s->expected[i];
    unlike += hash != s->expected[i] ? 1 : 0;
    done += iterations;
    launches++;
  }
  double took = (double)(mgl_clock_ns() - start) / 1e9;
  printf("| %s | %u | %llu | %u | %.1f | %.0f | %u |\n", s->machine->name, delay_ns,
         (unsigned long long)done, launches, took, took > 0 ? (double)done / took : 0, unlike);
  (void)fflush(stdout);
  s->failures += unlike;
  if (done < wanted && s->failures == 0) {
    gpu_check(s->bench, false, "%s: %llu of %u iterations in %u s", s->machine->name,
              (unsigned long long)done, wanted, seconds);
    s->failures++;
  }
}

static void run_workload(soak *s, uint32_t workload_idx) {
  mgl_error err = {0};
  uint32_t iterations = 0;
  gpu_must(launch(s, &workloads[workload_idx], &(mgl_cuda_launch_options){0},
                  &s->expected[workload_idx], &iterations, &err),
           &err);
}

// --- faults in between ---------------------------------------------------------------------------

// Tasks from all over the graph hang or lose their trigger in a batch; the launch after each one
// gives the tokens of the first one of all.
static void fail_in_between(soak *s) {
  enum { ROUNDS = 6, AT_ITERATION = 150, FAULTY = 3 };
  const workload *w = &workloads[FAULTY];
  uint32_t named = 0;
  uint32_t whole = 0;
  if (s->expected[FAULTY] == 0) {
    run_workload(s, FAULTY);
  }
  for (uint32_t round = 0; round < ROUNDS; round++) {
    mgl_error err = {0};
    uint64_t hash = 0;
    uint32_t iterations = 0;
    // Behind the prompts all 16 sequences decode: the graph for 16 tokens.
    const mgl_task_graph *graph = mgl_cuda_program_graph(s->program, 4);
    uint32_t task = (uint32_t)((uint64_t)graph->task_count * (2 * round + 1) / (2 * ROUNDS));
    while ((graph->tasks[task].flags & MGL_TASK_EMPTY) != 0 && task > 0) {
      task--;
    }
    mgl_cuda_launch_options options = {
        .stall_ns = UINT64_C(300000000),
        .injection = round % 2 == 0 ? MGL_INJECT_HANG : MGL_INJECT_LOSE,
        .injection_task = task,
        .injection_iteration = AT_ITERATION};
    mgl_status status = launch(s, w, &options, &hash, &iterations, &err);
    char op[64];  // as a message names it
    (void)snprintf(op, sizeof op, "(%s \"",
                   mgl_op_info_of((mgl_op_kind)graph->tasks[task].type)->name);
    bool found = status == MGL_ERR_INTERNAL && strstr(err.text, op) != NULL;
    named += found ? 1 : 0;
    if (!found) {
      gpu_check(s->bench, false, "task %u %s...) %s: %s", task, op,
                round % 2 == 0 ? "hangs" : "loses its trigger",
                status == MGL_OK ? "no fault was raised" : err.text);
    }
    err = (mgl_error){0};
    status = launch(s, w, &(mgl_cuda_launch_options){0}, &hash, &iterations, &err);
    whole += status == MGL_OK && hash == s->expected[FAULTY] ? 1 : 0;
  }
  gpu_check(s->bench, named == ROUNDS && whole == ROUNDS,
            "%s: %u of %d injected faults name their op, and %u launches behind them give the "
            "first one's tokens",
            s->machine->name, named, ROUNDS, whole);
}

// --- the parts -----------------------------------------------------------------------------------

static bool open_soak(soak *s, gpu_bench *bench, const gpu_model *model, const machine *m) {
  mgl_error err = {0};
  *s = (soak){.bench = bench, .model = model, .machine = m};
  mgl_cuda_program_options options = {.program = model->program,
                                      .build.seed = GPU_SEED,
                                      .sizes.limits.tokens = ITERATION,
                                      .sizes.sequences = SEQUENCES,
                                      .sizes.limits.pages_per_sequence = PAGES,
                                      .build.launch = m->launch,
                                      .build.schedulers = m->schedulers,
                                      .build.scheduler_warps = m->scheduler_warps,
                                      .poison = true};
  if (mgl_cuda_program_create(&bench->device, &options, &s->program, &err) != MGL_OK) {
    gpu_check(bench, false, "%s, %s: the program cannot be made: %s", model->name, m->name,
              err.text);
    return false;
  }
  return true;
}

static void soak_model(gpu_bench *bench, const char *name, const soak_options *o) {
  static const uint32_t delays[] = {300, 3000, 20000};  // ns
  gpu_model model;
  uint64_t first[WORKLOADS] = {0};
  uint32_t failures = 0;
  gpu_model_open(name, &model);
  printf("\n## Soak: %s\n", model.name);
  (void)fflush(stdout);
  for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
    soak s;
    if (!open_soak(&s, bench, &model, &machines[i])) {
      failures++;
      continue;
    }
    memcpy(s.expected, first, sizeof first);  // all programs give the same tokens
    printf(
        "\n| program | delays, up to ns | iterations | launches | s | iterations/s | launches with "
        "other tokens |\n|---|---|---|---|---|---|---|\n");
    run_for(&s, o->iterations / machines[i].share, o->seconds, 0);
    size_t delay_count = machines[i].full ? 0 : sizeof delays / sizeof delays[0];
    for (size_t j = 0; j < delay_count && s.failures == 0; j++) {
      run_for(&s, (o->delays / machines[i].share + 2) / 3, o->seconds, delays[j]);
    }
    memcpy(first, s.expected, sizeof first);
    failures += s.failures;
    if (s.failures == 0 && !machines[i].full) {
      printf("\n");
      fail_in_between(&s);
    }
    mgl_cuda_program_destroy(s.program);
  }
  printf("\n");
  gpu_check(bench, failures == 0,
            "%s: no launch hung, and every one gave the tokens of the first of its kind",
            model.name);
  gpu_model_close(&model);
}

static bool set_option(soak_options *o, const char *argument) {
  const struct {
    const char *key;
    uint32_t *value;
  } numbers[] = {
      {"iterations=", &o->iterations}, {"delays=", &o->delays}, {"seconds=", &o->seconds}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    size_t length = strlen(numbers[i].key);
    if (strncmp(argument, numbers[i].key, length) == 0) {
      *numbers[i].value = (uint32_t)strtoul(argument + length, NULL, 10);
      return true;
    }
  }
  return false;
}

void gpu_soak_run(gpu_bench *bench, int count, char **arguments) {
  soak_options o = {.iterations = 100000, .delays = 10000, .seconds = 60};
  char name[] = "tiny";
  char *model = name;
  for (int i = 0; i < count; i++) {
    model = set_option(&o, arguments[i]) ? model : arguments[i];
  }
  soak_model(bench, model, &o);
  gpu_faults_run(bench, 1, &model);
}

// --- memcheck ------------------------------------------------------------------------------------

enum { CHECKED_PROMPT = 300, CHECKED_TOKENS = 40 };

static const mgl_cuda_launch_options patient = {.stall_ns = UINT64_C(60000000000),
                                                .deadline_ns = UINT64_C(120000000000)};

// Prompts in full chunks beyond the first softmax chunk, then three sequences at once.
static uint32_t check_plans(soak *s, mgl_plan *plan, float *logits, mgl_error *err) {
  static const struct {
    uint32_t position, count;
  } chunks[] = {{0, 64}, {64, 64}, {128, 64}, {192, 64}, {256, 44}};
  mgl_cuda_launch_options options = patient;
  options.full = s->machine->full;
  int32_t tokens[CHECKED_PROMPT];
  int32_t pages[3][PAGES];
  for (uint32_t i = 0; i < CHECKED_PROMPT; i++) {
    tokens[i] = gpu_model_token(s->model, i);
  }
  for (uint32_t i = 0; i < 3 * PAGES; i++) {
    pages[i % 3][i / 3] = (int32_t)i;
  }
  for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
    mgl_plan_clear(plan);
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens + chunks[i].position,
                                         .token_count = chunks[i].count,
                                         .position = chunks[i].position,
                                         .pages = pages[0],
                                         .page_count = PAGES,
                                         .logits = MGL_LOGITS_NONE});
    gpu_must(mgl_cuda_program_run_plan(s->program, plan, &options, NULL, err), err);
  }
  mgl_plan_clear(plan);
  for (uint32_t i = 0; i < 3; i++) {  // one decodes, two begin
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                         .token_count = i == 0 ? 1 : 9 * i,
                                         .position = i == 0 ? CHECKED_PROMPT : 0,
                                         .pages = pages[i],
                                         .page_count = PAGES,
                                         .logits = MGL_LOGITS_LAST});
  }
  gpu_must(mgl_cuda_program_run_plan(s->program, plan, &options, logits, err), err);
  uint32_t bad = 0;
  for (size_t i = 0; i < 3 * (size_t)s->model->config.vocab_size; i++) {
    bad += isfinite(logits[i]) ? 0 : 1;
  }
  return bad;
}

// only: part of the machines' names; NULL: all of them.
static void memcheck_model(gpu_bench *bench, const char *name, const char *only) {
  static const workload job = {
      .requests = 3, .prompt = 2, .prompt_step = 9, .generate = 5, .chunk = 8, .sampled = true};
  static const mgl_plan_limits limits = {.tokens = ITERATION,
                                         .sequences = SEQUENCES,
                                         .pages_per_sequence = PAGES,
                                         .page_tokens = GPU_PAGE_TOKENS};
  mgl_error err = {0};
  mgl_plan *plan = NULL;
  gpu_model model;
  uint64_t first = 0;
  gpu_model_open(name, &model);
  float *logits = gpu_must_alloc(3 * (size_t)model.config.vocab_size, sizeof *logits);
  gpu_must(mgl_plan_create(&limits, &plan, &err), &err);
  printf("\n## Memcheck: %s\n\n", model.name);
  for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
    soak s;
    uint64_t hash = 0;
    uint32_t iterations = 0;
    uint64_t start = mgl_clock_ns();
    if ((only != NULL && strstr(machines[i].name, only) == NULL) ||
        !open_soak(&s, bench, &model, &machines[i])) {
      continue;
    }
    uint32_t bad = check_plans(&s, plan, logits, &err);
    gpu_must(launch(&s, &job, &patient, &hash, &iterations, &err), &err);
    first = first == 0 ? hash : first;
    gpu_check(bench, bad == 0 && hash == first,
              "%s, %s: 6 plans and a job of %u iterations; finite logits, the same tokens; %.1f s",
              model.name, machines[i].name, iterations, (double)(mgl_clock_ns() - start) / 1e9);
    mgl_cuda_program_destroy(s.program);
  }
  mgl_plan_destroy(plan);
  mgl_free(logits);
  gpu_model_close(&model);
}

void gpu_memcheck_run(gpu_bench *bench, int count, char **arguments) {
  const char *only = NULL;
  int models = 0;
  for (int i = 0; i < count; i++) {
    bool is_only = strncmp(arguments[i], "only=", 5) == 0;
    only = is_only ? arguments[i] + 5 : only;
    models += is_only ? 0 : 1;
  }
  if (models == 0) {
    memcheck_model(bench, "tiny", only);
  }
  for (int i = 0; i < count; i++) {
    if (strncmp(arguments[i], "only=", 5) != 0) {
      memcheck_model(bench, arguments[i], only);
    }
  }
}
