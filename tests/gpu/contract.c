// The numerics contract: the same tokens give the same bits of logits, run after run, for any
// number of workers, however tasks are launched, alone or in a batch of up to 16, however the
// prompt was chunked, for a job of many iterations as for single plans, and in mode full as in mode
// mega.
//
// Everything is compared with one baseline: the default program, chunks of 64, alone. Three parts:
// logits of every position of one sequence (`ways` on `machines`); logits around the context
// lengths where the softmax chunks double; tokens of whole jobs, greedy and sampled.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "batch/sampling.h"
#include "gpu/gpu_bench.h"

enum {
  PROMPT = 300,  // crosses the first softmax chunk of 256 positions
  DECODED = 8,
  TOKENS = PROMPT + DECODED,
  OTHERS = 15,
  SEQUENCES = OTHERS + 1,
  OTHER_FIRST = 5,  // cached tokens of the others: 5, 24, 43 ...
  OTHER_STEP = 19,
  OTHER_PAGES = 40,
  EDGE = 6,  // positions before and behind a border that are compared
  MOST_CONTEXT = 8192 + 2 * MGL_CUDA_MAX_TOKENS,
  LONG_PAGES = MOST_CONTEXT / GPU_PAGE_TOKENS,
  PAGE_STEP = 7919,
  ITERATION = MGL_CUDA_MAX_TOKENS,
  MOST_NEW = 30,  // tokens of a job's request
  FEW_WORKERS = 7,
};

// How a program is made.
typedef struct machine {
  const char *name;
  mgl_launch launch;
  uint32_t workers, schedulers;
  bool scheduler_warps;
  bool hybrid;  // attention and one linear of the second layer JIT, all else as labelled
  bool coarse;
  bool events_only;  // no activation carries its readiness
  bool full;         // its launches are of mode full
} machine;

static const machine machines[] = {
    {.name = "default"},
    {.name = "all AOT", .launch = MGL_LAUNCH_AOT},
    {.name = "all JIT, no schedulers", .launch = MGL_LAUNCH_JIT},
    {.name = "all JIT, 1 scheduler in a block", .launch = MGL_LAUNCH_JIT, .schedulers = 1},
    {.name = "all JIT, 6 schedulers in 2 blocks", .launch = MGL_LAUNCH_JIT, .schedulers = 6},
    {.name = "all JIT, 4 scheduler warps",
     .launch = MGL_LAUNCH_JIT,
     .schedulers = 4,
     .scheduler_warps = true},
    {.name = "hybrid", .hybrid = true},
    {.name = "hybrid, 2 scheduler warps", .hybrid = true, .schedulers = 2, .scheduler_warps = true},
    {.name = "100 workers", .workers = 100},
    {.name = "coarse events", .coarse = true},
    {.name = "events only", .events_only = true},
    {.name = "mode full", .full = true},
    {.name = "7 workers", .workers = FEW_WORKERS},
    {.name = "7 workers, all JIT", .launch = MGL_LAUNCH_JIT, .workers = FEW_WORKERS},
    {.name = "7 workers, mode full", .workers = FEW_WORKERS, .full = true},
};

enum { MACHINES = sizeof machines / sizeof machines[0] };

static const mgl_compile_override hybrid_overrides[] = {
    {.op = "attend", .launch = MGL_LAUNCH_JIT}, {.op = "1.gated", .launch = MGL_LAUNCH_JIT}};

// How the observed sequence's tokens reach the program.
typedef struct way {
  uint32_t chunk;   // prompt tokens an iteration
  uint32_t others;  // sequences that share the iterations
  uint32_t runs;
  mgl_cuda_launch_options launch;
} way;

// On the default program; then it also runs in all batches of 2 to 16.
static const way all_ways[] = {
    {.chunk = 64, .runs = 10},
    {.chunk = 1, .runs = 1},
    {.chunk = 7, .runs = 1},
    {.chunk = 13, .runs = 1},
    {.chunk = 16, .runs = 1},
    {.chunk = 17, .runs = 1},
    {.chunk = 33, .runs = 1},
    {.chunk = 1, .others = OTHERS, .runs = 10},
    {.chunk = 13, .others = 5, .runs = 1},
    {.chunk = 33, .others = 3, .runs = 1},
    {.chunk = 64, .runs = 1, .launch = {.step_batch = 1}},
    {.chunk = 7, .others = 7, .runs = 1, .launch = {.step_batch = 1}},
    {.chunk = 64, .runs = 1, .launch = {.in_flight = 1, .in_flight_ahead = 1}},
    {.chunk = 64, .runs = 1, .launch = {.in_flight = 12, .in_flight_ahead = 12}},
    {.chunk = 1, .others = 2, .runs = 1, .launch = {.in_flight = 2, .in_flight_ahead = 2}},
    {.chunk = 64, .runs = 1, .launch = {.no_prefetch = true}},
    {.chunk = 33, .others = 9, .runs = 2, .launch = {.delay_ns = 3000}},
};

// On every other program.
static const way few_ways[] = {
    {.chunk = 64, .runs = 2},
    {.chunk = 7, .others = OTHERS, .runs = 1},
    {.chunk = 1, .others = 3, .runs = 1},
    {.chunk = 17, .others = 1, .runs = 1, .launch = {.step_batch = 1}},
    {.chunk = 33, .others = 9, .runs = 1, .launch = {.delay_ns = 3000}},
};

// What a request of a job produced.
typedef struct answer {
  uint32_t count;
  int32_t tokens[MOST_NEW];
} answer;

typedef struct job_answers {
  answer of[SEQUENCES];
} job_answers;

typedef struct contract {
  gpu_bench *bench;
  gpu_model model;
  mgl_cuda_program *program;
  mgl_plan *plan;
  const char *machine;
  bool full;
  bool broken;  // a launch failed: the rest of this program is skipped
  uint32_t page_count;
  int32_t pages[SEQUENCES][LONG_PAGES];
  int32_t tokens[SEQUENCES][MOST_CONTEXT];
  uint32_t other_at[SEQUENCES];
  float *rows;      // [ITERATION, V] of one launch
  float *expected;  // [TOKENS, V]
  float *found;
  job_answers answers;  // by request, each alone
  uint32_t launches, jobs;
  uint32_t unlike;  // runs, and requests of jobs, with other results
} contract;

// --- programs ------------------------------------------------------------------------------------

// Weights of codes have no just-in-time tasks, and no kernels of mode full.
static bool has_codes(const contract *c) {
  return c->model.config.quantization.method != MGL_QUANT_NONE;
}

// Tasks of codes and of experts are in their worker's list, and mode full has none.
static bool has_full(const contract *c) {
  return !has_codes(c) && c->model.config.mixture.expert_count == 0;
}

static bool is_there(const contract *c, const machine *m) {
  return has_full(c) || (m->launch != MGL_LAUNCH_JIT && !m->hybrid && !m->full);
}

// False, with a failed check: it cannot be made.
static bool open_machine(contract *c, const machine *m) {
  mgl_error err = {0};
  mgl_cuda_program_options options = {.program = c->model.program,
                                      .build.seed = GPU_SEED,
                                      .sizes.limits.tokens = ITERATION,
                                      .sizes.sequences = SEQUENCES,
                                      .sizes.limits.pages_per_sequence = LONG_PAGES,
                                      .sizes.page_count = c->page_count,
                                      .sizes.logit_rows = ITERATION,
                                      .build.launch = m->launch,
                                      .build.overrides = m->hybrid ? hybrid_overrides : NULL,
                                      .build.override_count = m->hybrid ? 2 : 0,
                                      .build.coarse = m->coarse,
                                      .build.events_only = m->events_only,
                                      .sizes.workers = m->workers,
                                      .build.schedulers = m->schedulers,
                                      .build.scheduler_warps = m->scheduler_warps,
                                      .poison = true};
  c->machine = m->name;
  c->full = m->full;
  c->broken = false;
  c->launches = 0;
  c->jobs = 0;
  c->unlike = 0;
  if (mgl_cuda_program_create(&c->bench->device, &options, &c->program, &err) != MGL_OK) {
    gpu_check(c->bench, false, "%s, %s: the program cannot be made: %s", c->model.name, m->name,
              err.text);
    return false;
  }
  return true;
}

static void close_machine(contract *c) {
  mgl_cuda_program_destroy(c->program);
  c->program = NULL;
}

static void failed_launch(contract *c, const mgl_error *err) {
  gpu_check(c->bench, false, "%s, %s: a launch failed: %s", c->model.name, c->machine, err->text);
  c->broken = true;
}

// --- plans ---------------------------------------------------------------------------------------

// Another order of pages for every `turn`: the place of a token in memory must not matter.
static void place_pages(contract *c, uint32_t turn) {
  uint64_t page = turn % c->page_count;
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    for (uint32_t i = 0; i < (s == 0 ? LONG_PAGES : OTHER_PAGES); i++) {
      c->pages[s][i] = (int32_t)(page++ * PAGE_STEP % c->page_count);
    }
  }
}

static void add(contract *c, uint32_t sequence, uint32_t position, uint32_t count,
                mgl_plan_logits logits) {
  mgl_plan_add(c->plan, &(mgl_plan_chunk){.tokens = &c->tokens[sequence][position],
                                          .token_count = count,
                                          .position = position,
                                          .pages = c->pages[sequence],
                                          .page_count = sequence == 0 ? LONG_PAGES : OTHER_PAGES,
                                          .logits = logits});
}

static void run_plan(contract *c, const mgl_cuda_launch_options *launch) {
  mgl_error err = {0};
  float *rows = c->plan->logit_row_count > 0 ? c->rows : NULL;
  mgl_cuda_launch_options options = *launch;
  options.full = c->full;
  if (!c->broken &&
      mgl_cuda_program_run_plan(c->program, c->plan, &options, rows, &err) != MGL_OK) {
    failed_launch(c, &err);
  }
  c->launches++;
  mgl_plan_clear(c->plan);
}

// Gives the others their first tokens.
static void begin_others(contract *c, const way *w) {
  for (uint32_t s = 1; s <= w->others; s++) {
    c->other_at[s] = OTHER_FIRST + OTHER_STEP * (s - 1);
    for (uint32_t at = 0; at < c->other_at[s]; at += ITERATION) {
      uint32_t left = c->other_at[s] - at;
      add(c, s, at, left < ITERATION ? left : ITERATION, MGL_LOGITS_NONE);
      run_plan(c, &w->launch);
    }
  }
}

static void add_other(contract *c, uint32_t s) {
  add(c, s, c->other_at[s], 1, s % 2 == 0 ? MGL_LOGITS_LAST : MGL_LOGITS_NONE);
  c->other_at[s] += c->other_at[s] + 1 < OTHER_PAGES * GPU_PAGE_TOKENS ? 1 : 0;
}

// Positions [begin, end) of the observed sequence, in the middle of the others; the logits of those
// from `first` on go to out, one row each.
static void feed(contract *c, const way *w, uint32_t begin, uint32_t end, uint32_t first,
                 float *out) {
  size_t vocab = c->model.config.vocab_size;
  for (uint32_t at = begin; at < end;) {
    uint32_t room = ITERATION - w->others;
    uint32_t count = end - at < w->chunk ? end - at : w->chunk;
    count = count < room ? count : room;
    bool wanted = at + count > first;
    for (uint32_t s = 1; s <= w->others / 2; s++) {
      add_other(c, s);
    }
    uint32_t row = c->plan->logit_row_count;
    add(c, 0, at, count, wanted ? MGL_LOGITS_ALL : MGL_LOGITS_NONE);
    for (uint32_t s = w->others / 2 + 1; s <= w->others; s++) {
      add_other(c, s);
    }
    run_plan(c, &w->launch);
    for (uint32_t i = 0; wanted && i < count; i++) {
      if (at + i >= first) {
        memcpy(out + (at + i - first) * vocab, c->rows + (row + i) * vocab, vocab * sizeof *out);
      }
    }
    at += count;
  }
}

// --- logits of every position --------------------------------------------------------------------

static uint64_t hash_of(const void *data, size_t bytes) {
  const unsigned char *at = data;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < bytes; i++) {
    hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
  }
  return hash;
}

// Says where `found` differs first; counts it.
static bool same_rows(contract *c, const way *w, uint32_t first, uint32_t count, const float *found,
                      const float *expected) {
  size_t vocab = c->model.config.vocab_size;
  for (size_t i = 0; i < count * vocab; i++) {
    if (memcmp(&found[i], &expected[i], sizeof *found) != 0) {
      c->unlike++;
      if (c->unlike <= 3) {
        gpu_check(c->bench, false,
                  "%s, %s, chunks of %u, %u others, pages in flight %u and %u, steps %u, delays of "
                  "%u ns: position %zu, logit %zu is %.9g instead of %.9g",
                  c->model.name, c->machine, w->chunk, w->others, w->launch.in_flight,
                  w->launch.in_flight_ahead, w->launch.step_batch, w->launch.delay_ns,
                  first + i / vocab, i % vocab, (double)found[i], (double)expected[i]);
      }
      return false;
    }
  }
  return true;
}

// The whole sequence, its last tokens one by one; all its logits.
static void run_way(contract *c, const way *w, uint32_t turn, float *out) {
  size_t vocab = c->model.config.vocab_size;
  way decode = *w;
  decode.chunk = 1;
  memset(out, 0xff, TOKENS * vocab * sizeof *out);
  place_pages(c, turn);
  begin_others(c, w);
  feed(c, w, 0, PROMPT, 0, out);
  feed(c, &decode, PROMPT, TOKENS, PROMPT, out + PROMPT * vocab);
}

static uint32_t try_way(contract *c, const way *w, uint32_t turn) {
  uint32_t runs = 0;
  while (runs < w->runs && !c->broken) {
    run_way(c, w, turn + runs, c->found);
    runs++;
    if (!c->broken) {
      (void)same_rows(c, w, 0, TOKENS, c->found, c->expected);
    }
  }
  return runs;
}

static void check_finite(contract *c) {
  size_t count = TOKENS * (size_t)c->model.config.vocab_size;
  size_t bad = 0;
  for (size_t i = 0; i < count; i++) {
    bad += isfinite(c->expected[i]) ? 0 : 1;
  }
  gpu_check(c->bench, bad == 0, "%s: all logits of the baseline are finite", c->model.name);
}

// --- borders of the softmax chunks ---------------------------------------------------------------

// Logits of the positions around `border`, reached in several ways.
static void check_border(contract *c, uint32_t border) {
  static const struct {
    uint32_t before, across;  // chunks up to the compared positions, and over them
    uint32_t others;
    bool full;
  } paths[] = {{64, 12, 0, false}, {64, 1, 0, false},   {33, 5, 0, false},
               {64, 1, 15, false}, {48, 12, 15, false}, {64, 1, 3, true}};
  uint32_t first = border - EDGE;
  size_t vocab = c->model.config.vocab_size;
  float *expected = gpu_must_alloc(2 * EDGE * vocab, sizeof *expected);
  float *found = gpu_must_alloc(2 * EDGE * vocab, sizeof *found);
  uint32_t unlike = 0;
  for (uint32_t i = 0; i < sizeof paths / sizeof paths[0] && !c->broken; i++) {
    way w = {.chunk = paths[i].before, .others = paths[i].others};
    if (paths[i].full && !has_full(c)) {
      continue;
    }
    float *out = i == 0 ? expected : found;
    place_pages(c, border + i);
    begin_others(c, &w);
    feed(c, &(way){.chunk = w.chunk}, 0, first, first, out);
    w.chunk = paths[i].across;
    c->full = paths[i].full;
    feed(c, &w, first, border + EDGE, first, out);
    if (i > 0 && !c->broken) {
      unlike += same_rows(c, &w, first, 2 * EDGE, found, expected) ? 0 : 1;
    }
  }
  c->full = false;
  bool finite = true;
  for (size_t i = 0; i < 2 * EDGE * vocab; i++) {
    finite = finite && isfinite(expected[i]);
  }
  gpu_check(c->bench, unlike == 0 && finite && !c->broken,
            "%s: context %u: positions %u to %u have the same bits decoded, in one chunk, in "
            "chunks of 5, among 15 others%s; hash %016llx",
            c->model.name, border, first, border + EDGE - 1,
            has_full(c) ? ", and in mode full" : "",
            (unsigned long long)hash_of(expected, 2 * EDGE * vocab * sizeof *expected));
  mgl_free(expected);
  mgl_free(found);
}

// --- whole jobs ----------------------------------------------------------------------------------

static void on_token(void *context, const mgl_cuda_token *token) {
  answer *a = &((job_answers *)context)->of[token->request];
  if (a->count < MOST_NEW) {
    a->tokens[a->count] = token->token;
  }
  a->count++;
}

// Request 0 continues the observed sequence's prompt greedily; every other one is ragged, and every
// second one is sampled.
static mgl_cuda_request request_of(const contract *c, uint32_t i) {
  mgl_cuda_request request = {.prompt = c->tokens[i],
                              .prompt_count = i == 0 ? PROMPT : OTHER_FIRST + OTHER_STEP * (i - 1),
                              .max_new_tokens = MOST_NEW - i};
  if (i % 2 == 1) {
    mgl_sampling sampling = {.temperature = 0.8,
                             .top_k = i % 4 == 1 ? 40 : 0,
                             .top_p = i % 3 == 0 ? 0.9 : 1,
                             .presence_penalty = i % 5 == 0 ? 0.5 : 0,
                             .seed = 1000 + i};
    request.rule = mgl_sampling_rule_of(&sampling, request.prompt_count);
  }
  return request;
}

typedef struct job_way {
  uint32_t first, count;  // requests
  uint32_t chunk;
  bool prompts_first;
  mgl_cuda_launch_options launch;
} job_way;

static void run_job(contract *c, const job_way *w, job_answers *out) {
  mgl_error err = {0};
  mgl_cuda_request requests[SEQUENCES];
  for (uint32_t i = 0; i < w->count; i++) {
    requests[i] = request_of(c, (w->first + i) % SEQUENCES);
  }
  mgl_cuda_generate job = {.requests = requests,
                           .request_count = w->count,
                           .on_token = on_token,
                           .context = out,
                           .chunk_tokens = w->chunk,
                           .prompts_first = w->prompts_first,
                           .launch = w->launch};
  job.launch.full = c->full;
  *out = (job_answers){0};
  if (!c->broken && mgl_cuda_program_generate(c->program, &job, &err) != MGL_OK) {
    failed_launch(c, &err);
  }
  c->launches++;
}

static void try_job(contract *c, const job_way *w) {
  job_answers found;
  if (c->broken) {
    return;
  }
  run_job(c, w, &found);
  c->jobs++;
  for (uint32_t i = 0; i < w->count && !c->broken; i++) {
    uint32_t request = (w->first + i) % SEQUENCES;
    if (memcmp(&found.of[i], &c->answers.of[request], sizeof found.of[i]) != 0) {
      c->unlike++;
      gpu_check(c->bench, false,
                "%s, %s: request %u of a job of %u from %u, chunks of %u: other tokens",
                c->model.name, c->machine, request, w->count, w->first, w->chunk);
    }
  }
}

// How much of it a program does: with all batches too, with few chunks and batches, or of these
// only chunks of several tokens.
typedef enum extent { EXTENT_ALL, EXTENT_FEW, EXTENT_BRIEF } extent;

// Bytes of weights from which on programs of few workers are brief: an iteration of 7 takes 24 ms
// where one of 132 takes 1 (Llama-3.2-1B, 2.3 GiB).
static const uint64_t brief_few_bytes = UINT64_C(3) << 30;

enum { BRIEF_CHUNK = 17 };  // of their jobs: with a graph for more than 16 tokens

static const uint32_t job_chunks[] = {1, 7, 13, 16, 17, 33, 64};
static const uint32_t job_batches[] = {10, 3, 1};  // by extent: jobs of all sequences

enum { JOB_CHUNKS = sizeof job_chunks / sizeof *job_chunks };

static extent extent_of(const contract *c, const machine *m, bool baseline) {
  uint64_t bytes = mgl_cuda_program_describe(c->program).step_bytes;
  if (m->workers == FEW_WORKERS && bytes >= brief_few_bytes) {
    return EXTENT_BRIEF;
  }
  return baseline || m->full ? EXTENT_ALL : EXTENT_FEW;
}

// Chunks of 1 to 64, batches of 2 to 16, ten runs.
static void check_jobs(contract *c, extent how_much) {
  bool all = how_much == EXTENT_ALL;
  for (size_t i = 0; i < JOB_CHUNKS; i++) {
    if (how_much == EXTENT_BRIEF && job_chunks[i] != BRIEF_CHUNK) {
      continue;
    }
    try_job(c,
            &(job_way){
                .count = all ? 1 : SEQUENCES, .chunk = job_chunks[i], .prompts_first = i % 2 == 1});
  }
  for (uint32_t count = 2; all && count <= SEQUENCES; count++) {
    try_job(c, &(job_way){.first = count * 5,
                          .count = count,
                          .chunk = count % 3 == 0 ? 0 : ITERATION / count});
  }
  for (uint32_t i = 0; i < job_batches[how_much]; i++) {
    try_job(
        c, &(job_way){.count = SEQUENCES,
                      .launch = {.step_batch = i % 2 == 0 ? 0 : 1, .delay_ns = i == 1 ? 2000 : 0}});
  }
}

// What each request gives alone; request 0 by single plans, one token after the other.
static void expect_jobs(contract *c) {
  uint32_t vocab = c->model.config.vocab_size;
  way w = {.chunk = ITERATION};
  job_answers one;
  for (uint32_t i = 0; i < SEQUENCES; i++) {
    run_job(c, &(job_way){.first = i, .count = 1}, &one);
    c->answers.of[i] = one.of[0];
  }
  int32_t saved[MOST_NEW];
  memcpy(saved, &c->tokens[0][PROMPT], sizeof saved);
  answer plans = {0};
  place_pages(c, 5);
  feed(c, &w, 0, PROMPT, PROMPT - 1, c->found);
  while (plans.count < MOST_NEW && !c->broken) {
    int32_t token = (int32_t)gpu_argmax(c->found, vocab);
    plans.tokens[plans.count] = token;
    c->tokens[0][PROMPT + plans.count] = token;
    feed(c, &w, PROMPT + plans.count, PROMPT + plans.count + 1, PROMPT + plans.count, c->found);
    plans.count++;
  }
  memcpy(&c->tokens[0][PROMPT], saved, sizeof saved);
  gpu_check(c->bench, !c->broken && memcmp(&plans, &c->answers.of[0], sizeof plans) == 0,
            "%s: a job's greedy tokens are those of %d single plans", c->model.name, MOST_NEW);
}

// All ways and jobs; a line of the table.
static void check_machine(contract *c, extent how_much) {
  bool all = how_much == EXTENT_ALL;
  const way *ways = all ? all_ways : few_ways;
  size_t count = all ? sizeof all_ways / sizeof *all_ways : sizeof few_ways / sizeof *few_ways;
  size_t bytes = TOKENS * (size_t)c->model.config.vocab_size * sizeof *c->expected;
  uint32_t runs = 0;
  for (size_t i = 0; i < count; i++) {
    if (how_much != EXTENT_BRIEF || ways[i].chunk > 1) {
      runs += try_way(c, &ways[i], (uint32_t)i * 97);
    }
  }
  for (uint32_t others = 1; all && others <= OTHERS; others++) {
    runs += try_way(c, &(way){.chunk = ITERATION, .others = others, .runs = 1}, others * 31);
  }
  check_jobs(c, how_much);
  mgl_cuda_program_info info = mgl_cuda_program_describe(c->program);
  printf("| %s | %u | %u | %016llx | %u | %u | %u |\n", c->machine, info.workers, runs,
         (unsigned long long)hash_of(c->found, bytes), c->jobs, c->launches, c->unlike);
  (void)fflush(stdout);
}

// --- the part ------------------------------------------------------------------------------------

static void open_contract(contract *c, const char *name) {
  static const mgl_plan_limits limits = {.tokens = ITERATION,
                                         .sequences = SEQUENCES,
                                         .pages_per_sequence = LONG_PAGES,
                                         .page_tokens = GPU_PAGE_TOKENS};
  mgl_error err = {0};
  gpu_model_open(name, &c->model);
  gpu_must(mgl_plan_create(&limits, &c->plan, &err), &err);
  size_t vocab = c->model.config.vocab_size;
  c->page_count = LONG_PAGES + OTHERS * OTHER_PAGES + 1;
  c->page_count += c->page_count % PAGE_STEP == 0 ? 1 : 0;  // PAGE_STEP is prime
  c->rows = gpu_must_alloc(ITERATION * vocab, sizeof *c->rows);
  c->expected = gpu_must_alloc(TOKENS * vocab, sizeof *c->expected);
  c->found = gpu_must_alloc(TOKENS * vocab, sizeof *c->found);
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    for (uint32_t i = 0; i < MOST_CONTEXT; i++) {
      c->tokens[s][i] = gpu_model_token(&c->model, s * 100003 + i);
    }
  }
}

static void close_contract(contract *c) {
  mgl_plan_destroy(c->plan);
  mgl_free(c->rows);
  mgl_free(c->expected);
  mgl_free(c->found);
  gpu_model_close(&c->model);
}

// What all else is compared with, on the default program. False: there is no such thing.
static bool make_baseline(contract *c, bool borders_too) {
  static const uint32_t borders[] = {256, 4096, 8192};
  run_way(c, &all_ways[0], 0, c->expected);
  check_finite(c);
  for (size_t i = 0; borders_too && i < sizeof borders / sizeof borders[0]; i++) {
    if (borders[i] + EDGE <= c->model.config.context_tokens) {
      check_border(c, borders[i]);
    }
  }
  expect_jobs(c);
  printf(
      "\nLogits of all %d positions of one sequence (runs, hash) and tokens of up to %d requests "
      "(jobs).\n\n"
      "| program | workers | runs | hash | jobs | launches | different |\n"
      "|---|---|---|---|---|---|---|\n",
      TOKENS, SEQUENCES);
  c->launches = 0;
  c->unlike = 0;
  return !c->broken;
}

// Which programs, and how much of each.
typedef struct choice {
  const char *only, *but;  // part of the name of each machine, and of those left out; NULL: all
  bool brief;              // no program does more than EXTENT_BRIEF
} choice;

static bool is_chosen(const choice *of, const char *name) {
  return (of->only == NULL || strstr(name, of->only) != NULL) &&
         (of->but == NULL || strstr(name, of->but) == NULL);
}

// The first machine makes the baseline in any case. Borders are compared where nothing is left out.
static void check_model(gpu_bench *bench, const char *name, const choice *of) {
  bool borders = of->only == NULL && of->but == NULL && !of->brief;
  contract *c = gpu_must_alloc(1, sizeof *c);
  uint32_t unlike = 0;
  uint32_t done = 0;
  uint32_t wanted = 0;
  bool whole = true;
  c->bench = bench;
  open_contract(c, name);
  printf("\n## Contract: %s\n\n", c->model.name);
  (void)fflush(stdout);
  bool brief = false;
  for (size_t i = 0; i < MACHINES && whole; i++) {
    bool named = is_chosen(of, machines[i].name) && is_there(c, &machines[i]);
    if (i > 0 && !named) {
      continue;
    }
    wanted += named ? 1 : 0;
    if (!open_machine(c, &machines[i])) {
      continue;
    }
    whole = i > 0 || make_baseline(c, borders);
    if (whole && named) {
      extent how_much = of->brief ? EXTENT_BRIEF : extent_of(c, &machines[i], i == 0);
      brief = brief || how_much == EXTENT_BRIEF;
      check_machine(c, how_much);
      done += c->broken ? 0 : 1;
    }
    unlike += c->unlike;
    close_machine(c);
  }
  if (brief && !of->brief) {
    printf(
        "\nSkipped by programs of %u jobs, which take 20 times as long as the first one and more "
        "with a model of this size: chunks of one token, and all other jobs.\n",
        1 + job_batches[EXTENT_BRIEF]);
  }
  printf("\n");
  gpu_check(bench, unlike == 0 && done > 0 && done == wanted,
            "%s: the same bits on %u of %u programs in every run and job, alone and in batches of "
            "2 to 16, in chunks of 1 to 64 tokens",
            c->model.name, done, wanted);
  close_contract(c);
  mgl_free(c);
}

void gpu_contract_run(gpu_bench *bench, int count, char **arguments) {
  static const char *const small[] = {"tiny",  "wide",       "whole",     "bias", "experts",
                                      "slots", "fp8",        "fp8_whole", "int4", "int4_whole",
                                      "int8",  "int8_whole", "zeros"};
  choice of = {0};
  int models = 0;
  for (int i = 0; i < count; i++) {
    bool is_only = strncmp(arguments[i], "only=", 5) == 0;
    bool is_but = strncmp(arguments[i], "but=", 4) == 0;
    bool is_brief = strcmp(arguments[i], "brief=1") == 0;
    of.only = is_only ? arguments[i] + 5 : of.only;
    of.but = is_but ? arguments[i] + 4 : of.but;
    of.brief = of.brief || is_brief;
    models += is_only || is_but || is_brief ? 0 : 1;
  }
  for (size_t i = 0; models == 0 && i < sizeof small / sizeof small[0]; i++) {
    check_model(bench, small[i], &of);
  }
  for (int i = 0; i < count; i++) {
    if (strchr(arguments[i], '=') == NULL) {
      check_model(bench, arguments[i], &of);
    }
  }
}
