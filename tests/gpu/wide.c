// Iterations of more than 64 tokens (the wide class): how far their logits are from exact ones,
// held against the CPU's bf16 path on the same tokens (gpu_errors), with the same tokens in
// iterations of up to 64 (the narrow class) beside; and for a folder how fast they are.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/cuda/cuda_program_parts.h"
#include "gpu/gpu_bench.h"
#include "gpu/gpu_twin.h"
#include "lower/stages.h"

enum {
  TOKENS = 2048,
  NARROW = 64,
  PROMPT = 300,
  OTHER_PROMPT = 200,
  SEQUENCES = 100,  // of a few tokens
  FEW = 5,
  MIDDLE = 75,  // sequences, of two tokens
  ALONE = 11,   // sequences of these, by themselves
  PAGES = 24,   // of each sequence
  MOST_ROWS = SEQUENCES,
  SPEED_TOKENS = 2048,
  LEAST_DECODE = 4,  // sequences that are timed
};

typedef struct wide_sides {
  gpu_bench *bench;
  gpu_model model;
  mgl_cuda_program *program;
  mgl_plan *plan;
  int32_t *pages;  // [sequences * pages_each]
  uint32_t pages_each;
  uint32_t rows;                // most with logits
  float *wide;                  // [rows, V] logits
  float *narrow, *cpu, *exact;  // the same of small iterations; not where speed is measured
  float *rounded;               // of weights that iterations of many tokens round (MGL_WIDE_WIDEN)
  gpu_twin cpu_twin, exact_twin, rounded_twin;
  int32_t *tokens;  // of a text
} wide_sides;

// Whether iterations of so many tokens make bf16 of codes, as transformers in bf16 would: then their
// error is held against that of such weights.
static bool rounds_weights(const wide_sides *s, uint32_t tokens) {
  const mgl_cuda_wide_layout *wide = &s->program->wide.layout;
  const mgl_cuda_wide_graph *graph = &wide->graphs[mgl_cuda_wide_graph_for(wide, tokens)];
  return mgl_packed_has_codes(s->program->program) && graph->tile_tokens > MGL_WIDE_MOST_CODED_TILE;
}

static void open_sides(wide_sides *s, gpu_bench *bench, const char *name, uint32_t sequences,
                       uint32_t pages_each, bool twins) {
  mgl_error err = {0};
  *s = (wide_sides){.bench = bench,
                    .pages_each = pages_each,
                    .rows = sequences > MOST_ROWS ? sequences : (uint32_t)MOST_ROWS};
  gpu_model_open(name, &s->model);
  s->program = gpu_program(bench, &s->model,
                           (mgl_cuda_program_options){.sizes.limits.tokens = TOKENS,
                                                      .sizes.sequences = sequences,
                                                      .sizes.limits.pages_per_sequence = pages_each,
                                                      .sizes.page_count = sequences * pages_each,
                                                      .sizes.logit_rows = s->rows});
  mgl_plan_limits limits = {.tokens = TOKENS,
                            .sequences = sequences,
                            .pages_per_sequence = pages_each,
                            .page_tokens = GPU_PAGE_TOKENS};
  gpu_must(mgl_plan_create(&limits, &s->plan, &err), &err);
  s->pages = gpu_must_alloc((size_t)sequences * pages_each, sizeof *s->pages);
  for (uint32_t i = 0; i < sequences * pages_each; i++) {  // neighbours are not neighbours
    s->pages[i] = (int32_t)((uint64_t)i * 7919 % (sequences * pages_each));
  }
  s->tokens = gpu_must_alloc(1 << 16, sizeof *s->tokens);
  for (uint32_t i = 0; i < 1 << 16; i++) {
    s->tokens[i] = gpu_model_token(&s->model, i);
  }
  float **const logits[] = {&s->wide, &s->narrow, &s->cpu, &s->exact, &s->rounded};
  for (size_t i = 0; i < (twins ? 5 : 1); i++) {
    *logits[i] = gpu_must_alloc((size_t)s->rows * s->model.config.vocab_size, sizeof(float));
  }
  if (twins) {
    gpu_twin_open(&s->model, NARROW, sequences * pages_each, &s->cpu_twin);
    gpu_twin_open_exact(&s->model, &s->cpu_twin, &s->exact_twin);
    if (rounds_weights(s, TOKENS)) {
      gpu_twin_open_rounded(&s->model, &s->cpu_twin, &s->rounded_twin);
    }
  }
}

static void close_sides(wide_sides *s) {
  mgl_plan_destroy(s->plan);
  mgl_cuda_program_destroy(s->program);
  mgl_free(s->pages);
  mgl_free(s->tokens);
  mgl_free(s->wide);
  if (s->exact != NULL) {
    mgl_free(s->narrow);
    mgl_free(s->cpu);
    mgl_free(s->exact);
    mgl_free(s->rounded);
    if (s->rounded_twin.fused != NULL) {
      gpu_twin_close(&s->rounded_twin);
    }
    gpu_twin_close(&s->exact_twin);
    gpu_twin_close(&s->cpu_twin);
  }
  gpu_model_close(&s->model);
}

// Tokens [position, position + count) of sequence `sequence`, whose text begins at `text`.
static void add(wide_sides *s, uint32_t sequence, uint32_t text, uint32_t position, uint32_t count,
                mgl_plan_logits logits) {
  mgl_plan_add(s->plan, &(mgl_plan_chunk){.tokens = s->tokens + text + position,
                                          .token_count = count,
                                          .position = position,
                                          .pages = s->pages + (size_t)sequence * s->pages_each,
                                          .page_count = s->pages_each,
                                          .logits = logits});
}

static void run(wide_sides *s, float *logits) {
  mgl_error err = {0};
  gpu_must(mgl_cuda_program_run_plan(s->program, s->plan, NULL, logits, &err), &err);
}

// The present plan, of at most NARROW tokens, in the narrow class, on the CPU and exactly; the
// logits go to rows from `row` on. Returns the next row.
static uint32_t run_small(wide_sides *s, uint32_t row) {
  size_t at = (size_t)row * s->model.config.vocab_size;
  size_t count = (size_t)s->plan->logit_row_count * s->model.config.vocab_size;
  gpu_twin *const twins[] = {&s->cpu_twin, &s->exact_twin, &s->rounded_twin};
  float *const logits[] = {s->cpu, s->exact, s->rounded};
  run(s, s->narrow + at);
  for (int i = 0; i < (s->rounded_twin.fused != NULL ? 3 : 2); i++) {
    gpu_twin_run(twins[i], s->plan, 0, UINT32_MAX);
    memcpy(logits[i] + at, twins[i]->results[twins[i]->fused->op_count - 1], count * sizeof(float));
  }
  return row + s->plan->logit_row_count;
}

// tokens: of the iteration that made them.
static void check_rows(wide_sides *s, uint32_t rows, uint32_t tokens, const char *what) {
  const bool rounded = rounds_weights(s, tokens);
  const float *cpu = rounded ? s->rounded : s->cpu;
  uint32_t vocab = s->model.config.vocab_size;
  uint32_t same = 0;
  gpu_errors wide = {0};
  gpu_errors narrow = {0};
  gpu_errors_add(&wide, s->wide, cpu, s->exact, (size_t)rows * vocab);
  gpu_errors_add(&narrow, s->narrow, s->cpu, s->exact, (size_t)rows * vocab);
  for (uint32_t i = 0; i < rows; i++) {
    const float *row = s->exact + (size_t)i * vocab;
    same += gpu_argmax(s->wide + (size_t)i * vocab, vocab) == gpu_argmax(row, vocab) ? 1 : 0;
  }
  double ratio = gpu_errors_ratio(&wide);
  gpu_check(s->bench,
            rows >= GPU_ENOUGH_ROWS && ratio <= gpu_most_ratio(GPU_ENOUGH_ROWS) &&
                gpu_error_of_cpu(&wide) < GPU_MOST_CPU_ERROR,
            "%s: %s: error of %u rows of logits %.2e, %.2f of the CPU's%s (%.2e; narrow class %.2f "
            "of its %.2e), at most %.2f; %u have the exact largest logit",
            s->model.name, what, rows, gpu_error_of_gpu(&wide), ratio,
            rounded ? " of weights as bf16" : "", gpu_error_of_cpu(&wide),
            gpu_errors_ratio(&narrow), gpu_error_of_cpu(&narrow), gpu_most_ratio(GPU_ENOUGH_ROWS),
            same);
}

// A chunk of at most NARROW tokens of sequence 0, with the logits of every `step`th token from
// `first` on. Returns the next row.
static uint32_t run_chunk(wide_sides *s, uint32_t at, uint32_t count, uint32_t first, uint32_t step,
                          uint32_t row) {
  mgl_plan_clear(s->plan);
  add(s, 0, 0, at, count, MGL_LOGITS_NONE);
  for (uint32_t i = 0; i < count; i++) {
    if (at + i >= first && (at + i - first) % step == 0) {
      s->plan->logit_rows[s->plan->logit_row_count++] = i;
    }
  }
  return run_small(s, row);
}

// Of the present plan, whose logits s->wide has: launches that the host ends early, wherever they
// are, end, and leave nothing behind that the next one trips over.
static void check_ended(wide_sides *s, uint32_t rows) {
  enum { STEPS = 24 };
  uint64_t bytes = (uint64_t)rows * s->model.config.vocab_size * sizeof(float);
  float *again = gpu_must_alloc(bytes, 1);
  uint32_t ended = 0;
  uint64_t whole_ns = s->program->wide.host_ns;  // the plan has run before
  run(s, again);
  // The shorter one: what a busy host adds to a launch would leave most of them too much time.
  whole_ns = whole_ns < s->program->wide.host_ns ? whole_ns : s->program->wide.host_ns;
  for (uint64_t i = 0; i < STEPS; i++) {
    mgl_error err = {0};
    mgl_cuda_launch_options options = {.deadline_ns = 1 + whole_ns * i / STEPS};
    ended += mgl_cuda_program_run_plan(s->program, s->plan, &options, NULL, &err) != MGL_OK;
    gpu_must(s->program->lost ? MGL_ERR_INTERNAL : MGL_OK, &err);
  }
  run(s, again);
  gpu_check(s->bench, ended > STEPS / 4 && memcmp(again, s->wide, (size_t)bytes) == 0,
            "%s: the same bits behind %u launches that were ended early", s->model.name, ended);
  mgl_free(again);
}

// A prompt at once, and in chunks of 64: logits of up to MOST_ROWS tokens, the last one among them.
static void check_prompt(wide_sides *s, uint32_t count, const char *what) {
  uint32_t vocab = s->model.config.vocab_size;
  uint32_t step = (count + MOST_ROWS - 1) / MOST_ROWS;
  uint32_t first = (count - 1) % step;
  uint32_t rows = 0;
  for (uint32_t at = 0; at < count; at += NARROW) {
    rows = run_chunk(s, at, count - at < NARROW ? count - at : NARROW, first, step, rows);
  }
  for (int repeat = 0; repeat < 2; repeat++) {
    mgl_plan_clear(s->plan);
    add(s, 1, 0, 0, count, MGL_LOGITS_NONE);
    s->plan->logit_row_count = rows;
    for (uint32_t i = 0; i < rows; i++) {
      s->plan->logit_rows[i] = first + i * step;
    }
    if (repeat == 0) {
      run(s, s->wide);
      check_rows(s, rows, count, what);
    } else {
      float *again = gpu_must_alloc((size_t)rows * vocab, sizeof *again);
      run(s, again);
      gpu_check(s->bench, memcmp(again, s->wide, (size_t)rows * vocab * sizeof *again) == 0,
                "%s: %s: the same bits again", s->model.name, what);
      mgl_free(again);
      check_ended(s, rows);
    }
  }
}

// Behind check_prompt: one sequence decodes while the second chunk of another's prompt is computed.
static void check_mixed(wide_sides *s) {
  const uint32_t begin = OTHER_PROMPT - NARROW - 7;  // of the second chunk
  mgl_plan_clear(s->plan);
  add(s, 0, 0, PROMPT, 1, MGL_LOGITS_LAST);
  uint32_t rows = run_small(s, 0);
  for (uint32_t at = 0; at < OTHER_PROMPT;) {
    uint32_t end = at < begin ? begin : OTHER_PROMPT;
    uint32_t chunk = end - at < NARROW ? end - at : NARROW;
    mgl_plan_clear(s->plan);
    add(s, 2, 1000, at, chunk, at < begin ? MGL_LOGITS_NONE : MGL_LOGITS_ALL);
    rows = run_small(s, rows);
    at += chunk;
  }
  mgl_plan_clear(s->plan);
  add(s, 3, 1000, 0, begin, MGL_LOGITS_LAST);
  run(s, s->wide);
  mgl_plan_clear(s->plan);
  add(s, 1, 0, PROMPT, 1, MGL_LOGITS_LAST);
  add(s, 3, 1000, begin, OTHER_PROMPT - begin, MGL_LOGITS_ALL);
  run(s, s->wide);
  check_rows(s, rows, s->plan->token_count,
             "a decoding sequence beside the second chunk of a prompt");
}

// `count` tokens of each of many sequences from `position` on, twice. The narrow class comes last,
// and writes what it finds later.
static void check_many(wide_sides *s, uint32_t sequences, uint32_t position, uint32_t count,
                       const char *what) {
  mgl_error err = {0};
  size_t logits = (size_t)sequences * s->model.config.vocab_size;
  float *again = gpu_must_alloc(logits, sizeof *again);
  mgl_plan_clear(s->plan);
  for (uint32_t i = 0; i < sequences; i++) {
    add(s, i, i * 10, position, count, MGL_LOGITS_LAST);
  }
  // In the wide class, however few they are.
  gpu_must(mgl_cuda_wide_run_plan(s->program, s->plan, NULL, s->wide, &err), &err);
  gpu_must(mgl_cuda_wide_run_plan(s->program, s->plan, NULL, again, &err), &err);
  gpu_check(s->bench, memcmp(again, s->wide, logits * sizeof *again) == 0,
            "%s: %s: the same bits again", s->model.name, what);
  mgl_free(again);
  uint32_t rows = 0;
  for (uint32_t i = 0; i < sequences; i++) {
    mgl_plan_clear(s->plan);
    add(s, i, i * 10, position, count, MGL_LOGITS_LAST);
    rows = run_small(s, rows);
  }
  check_rows(s, rows, sequences * count, what);
}

// Of sequences of one tile some by themselves have the bits that they have among all.
static void check_alone(wide_sides *s, uint32_t sequences, uint32_t some, uint32_t position) {
  mgl_error err = {0};
  float *alone = gpu_must_alloc((size_t)sequences * s->model.config.vocab_size, sizeof *alone);
  float *const logits[] = {s->wide, alone};
  for (uint32_t run = 0; run < 2; run++) {
    mgl_plan_clear(s->plan);
    for (uint32_t i = 0; i < (run == 0 ? sequences : some); i++) {
      add(s, i, i * 10, position, 1, MGL_LOGITS_LAST);
    }
    gpu_must(mgl_cuda_wide_run_plan(s->program, s->plan, NULL, logits[run], &err), &err);
  }
  gpu_check(s->bench,
            memcmp(alone, s->wide, (size_t)some * s->model.config.vocab_size * sizeof *alone) == 0,
            "%s: %u sequences have the same bits as among %u", s->model.name, some, sequences);
  mgl_free(alone);
}

// --- jobs ----------------------------------------------------------------------------------------

enum { REQUESTS = 90, NEW_TOKENS = 12, JUDGED = 9, JOB_STEP = 37 };

// Two logits that may change places, as in part smoke.
#define MOST_GAP 0.15

typedef struct wide_job {
  int32_t tokens[REQUESTS][NEW_TOKENS];
  uint32_t counts[REQUESTS];
} wide_job;

static void on_token(void *context, const mgl_cuda_token *token) {
  wide_job *job = context;
  uint32_t request = token->request;
  if (job->counts[request] < NEW_TOKENS) {
    job->tokens[request][job->counts[request]++] = token->token;
  }
}

static uint32_t prompt_of(uint32_t request) {
  return 5 + request * JOB_STEP % (PROMPT - 10);
}

static void generate(wide_sides *s, wide_job *out, mgl_cuda_outcome *outcome) {
  mgl_error err = {0};
  mgl_cuda_request requests[REQUESTS] = {0};
  *out = (wide_job){0};
  for (uint32_t i = 0; i < REQUESTS; i++) {
    requests[i].prompt = s->tokens + i * (size_t)JOB_STEP;
    requests[i].prompt_count = prompt_of(i);
    requests[i].max_new_tokens = NEW_TOKENS;
  }
  mgl_cuda_generate job = {.requests = requests,
                           .request_count = REQUESTS,
                           .on_token = on_token,
                           .context = out,
                           .outcome = outcome};
  gpu_must(mgl_cuda_program_generate(s->program, &job, &err), &err);
}

// How far the largest logit lies above that of the token that was generated, at most, when the
// narrow class computes the same text.
static double judge(wide_sides *s, const wide_job *job, uint32_t request) {
  uint32_t vocab = s->model.config.vocab_size;
  uint32_t prompt = prompt_of(request);
  uint32_t count = prompt + NEW_TOKENS - 1;
  int32_t text[PROMPT + NEW_TOKENS];
  double worst = 0;
  memcpy(text, s->tokens + request * (size_t)JOB_STEP, prompt * sizeof *text);
  memcpy(text + prompt, job->tokens[request], (NEW_TOKENS - 1) * sizeof *text);
  for (uint32_t at = 0; at < count;) {
    uint32_t end = at < prompt - 1 ? prompt - 1 : count;  // of the prompt, or what was generated
    uint32_t chunk = end - at < NARROW ? end - at : NARROW;
    mgl_plan_clear(s->plan);
    mgl_plan_add(s->plan,
                 &(mgl_plan_chunk){.tokens = text + at,
                                   .token_count = chunk,
                                   .position = at,
                                   .pages = s->pages,
                                   .page_count = s->pages_each,
                                   .logits = at < prompt - 1 ? MGL_LOGITS_NONE : MGL_LOGITS_ALL});
    run(s, s->narrow);
    for (uint32_t i = 0; at >= prompt - 1 && i < chunk; i++) {
      const float *row = s->narrow + (size_t)i * vocab;
      int32_t token = job->tokens[request][at + i - (prompt - 1)];
      double gap = (double)row[gpu_argmax(row, vocab)] - (double)row[token];
      worst = gap > worst ? gap : worst;
    }
    at += chunk;
  }
  return worst;
}

// Requests whose prompts and whose decoding take iterations of both classes.
static void check_jobs(wide_sides *s) {
  wide_job *first = gpu_must_alloc(1, sizeof *first);
  wide_job *second = gpu_must_alloc(1, sizeof *second);
  mgl_cuda_outcome outcome = {0};
  uint32_t whole = 0;
  double worst = 0;
  generate(s, first, &outcome);
  generate(s, second, &outcome);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    whole += first->counts[i] == NEW_TOKENS ? 1 : 0;
  }
  gpu_check(s->bench, whole == REQUESTS, "%s: a job of %d requests: %u have all their tokens",
            s->model.name, REQUESTS, whole);
  gpu_check(s->bench, memcmp(first, second, sizeof *first) == 0,
            "%s: the same tokens again (%u iterations, %.1f ms)", s->model.name, outcome.iterations,
            (double)outcome.host_ns / 1e6);
  for (uint32_t i = 0; i < REQUESTS; i += REQUESTS / JUDGED) {
    double gap = judge(s, first, i);
    worst = gap > worst ? gap : worst;
  }
  gpu_check(s->bench, worst < MOST_GAP,
            "%s: tokens of %d requests lie %.3f below the narrow class's largest logits at most",
            s->model.name, JUDGED, worst);
  mgl_free(first);
  mgl_free(second);
}

static void check_model(gpu_bench *bench, const char *name) {
  wide_sides s;
  printf("\n## Wide: %s\n\n", name);
  open_sides(&s, bench, name, SEQUENCES, PAGES, true);
  for (uint32_t i = 0; i < MGL_WIDE_TILES; i++) {
    const mgl_cuda_wide_kernel *kernel = &s.program->wide.kernels[i];
    if (kernel->module != NULL) {
      printf("- tiles of %d tokens: %u registers, %u bytes spilled\n",
             i + 1 == MGL_WIDE_TILES ? MGL_WIDE_MOST_TILE : MGL_WIDE_LEAST_TILE * ((int)i + 1),
             kernel->usage.registers, kernel->usage.spill_bytes);
    }
  }
  (void)fflush(stdout);
  check_prompt(&s, PROMPT, "a prompt of 300 tokens");
  check_mixed(&s);
  check_many(&s, SEQUENCES, 0, FEW, "short prompts of many sequences");
  check_many(&s, SEQUENCES, FEW, 1, "many sequences decode");
  check_many(&s, SEQUENCES, FEW + 1, 2, "two tokens of each of many sequences");
  check_many(&s, MIDDLE, FEW + 3, 2, "150 tokens, of which tiles may have 192");
  check_many(&s, GPU_ENOUGH_ROWS, FEW + 5, 1, "64 sequences decode");
  check_alone(&s, GPU_ENOUGH_ROWS, ALONE, FEW + 5);
  check_jobs(&s);
  close_sides(&s);
  open_sides(&s, bench, name, 2, TOKENS / GPU_PAGE_TOKENS, true);
  check_prompt(&s, TOKENS, "a prompt of 2048 tokens");
  close_sides(&s);
}

// A prompt of so many tokens alone, which an emulated GPU takes long enough for.
static void check_one_prompt(gpu_bench *bench, const char *name, uint32_t tokens) {
  wide_sides s;
  char what[64];
  printf("\n## Wide: a prompt of %s\n\n", name);
  (void)snprintf(what, sizeof what, "a prompt of %u tokens", tokens);
  open_sides(&s, bench, name, 2, TOKENS / GPU_PAGE_TOKENS, true);
  check_prompt(&s, tokens < TOKENS ? tokens : (uint32_t)TOKENS, what);
  close_sides(&s);
}

// --- speed ---------------------------------------------------------------------------------------

typedef struct wide_load {
  uint32_t batch, context, runs;
  uint32_t between;   // sizes that are timed beside powers of two, in each octave
  bool prompts, job;  // whether they are timed
  uint32_t prompt;    // tokens of one that is checked, and nothing else; 0: there is none
} wide_load;

// Operations of all linears for a token, without the last one.
static double linear_flop(const mgl_cuda_program *p) {
  double flop = 0;
  for (size_t i = 0; i < p->program->op_count; i++) {
    const mgl_op *op = &p->program->ops[i];
    mgl_packed_matrices m = mgl_packed_matrices_of(p->program, op);
    const mgl_stages_mixture mixture = mgl_stages_mixture_of(p->program, op);
    const uint32_t rows_dim = mixture.experts != 0 ? 1 : 0;
    const double slots = mixture.experts != 0 ? mixture.slots : 1;
    for (uint32_t j = 0; j < m.count && op->kind != MGL_OP_LOGITS; j++) {
      flop +=
          2.0 * slots * m.k * p->program->tensors[op->inputs[m.first + j]].dims[rows_dim].number;
    }
  }
  return flop;
}

// Milliseconds of a launch of the wide class, of as many tokens as the plan has.
static double timed_run(wide_sides *s, uint32_t runs) {
  mgl_error err = {0};
  double times[64];
  runs = runs < 64 ? runs : 64;
  for (uint32_t i = 0; i < runs; i++) {
    gpu_must(mgl_cuda_wide_run_plan(s->program, s->plan, NULL, NULL, &err), &err);
    times[i] = (double)s->program->wide.host_ns / 1e6;
  }
  return gpu_median(times, runs);
}

// The same of the narrow class, with the upload of its plan (some 0.1 ms).
static double timed_narrow_run(wide_sides *s, uint32_t runs) {
  double times[64];
  runs = runs < 64 ? runs : 64;
  for (uint32_t i = 0; i < runs; i++) {
    uint64_t start = mgl_clock_ns();
    run(s, NULL);
    times[i] = (double)(mgl_clock_ns() - start) / 1e6;
  }
  return gpu_median(times, runs);
}

// Where a launch's time goes: by kind of op, from the times at which stages began.
static void print_stages(const wide_sides *s, uint32_t graph) {
  mgl_error err = {0};
  const mgl_cuda_program *p = s->program;
  const mgl_cuda_wide_graph *g = &p->wide.layout.graphs[graph];
  uint64_t *began = gpu_must_alloc(g->stage_count, sizeof *began);
  mgl_wide_op *ops = gpu_must_alloc(g->op_count, sizeof *ops);
  enum {
    EMBED,
    NORM,
    QKV,
    ROTATION,
    ATTEND,
    O,
    GATE_UP,
    DOWN,
    ROUTER,
    ROUTE,
    SORT,
    UP,
    DOWNS,
    ADD,
    KINDS
  };
  double sums[KINDS] = {0};
  static const char *const names[KINDS] = {
      "embed",  "norm",  "qkv",  "rope_kv",    "attend",       "o",  "gate_up", "down",
      "router", "route", "sort", "experts_up", "experts_down", "add"};
  mgl_cu_ptr block = p->memory[MGL_CUDA_MEMORY_WIDE];
  gpu_must(mgl_cuda_check(&p->device->driver,
                          p->device->driver.copy_to_host(began, block + p->wide.layout.stage_ns,
                                                         g->stage_count * sizeof *began),
                          "copy", &err),
           &err);
  gpu_must(
      mgl_cuda_check(&p->device->driver,
                     p->device->driver.copy_to_host(ops, block + g->ops, g->op_count * sizeof *ops),
                     "copy", &err),
      &err);
  // Op 0 and 1 share stage 0; the last stage is the logits'. What is widened is in others' stages.
  uint32_t count = 0;
  for (uint32_t i = 0; i < g->op_count; i++) {
    if (ops[i].op.kind != (uint32_t)MGL_WIDE_WIDEN) {
      ops[count++] = ops[i];
    }
  }
  for (uint32_t i = 0; i + 1 < g->stage_count; i++) {
    uint32_t kind = ops[i + 1].op.kind;
    bool gathers = (ops[i + 1].op.flags & MGL_WIDE_GATHERS) != 0;
    uint32_t at = i == 0                            ? EMBED
                  : kind == MGL_OP_RMSNORM          ? NORM
                  : kind == MGL_OP_QKV_PROJ         ? QKV
                  : kind == MGL_OP_KV_WRITE         ? ROTATION
                  : kind == MGL_OP_ATTEND           ? ATTEND
                  : kind == MGL_OP_GATE_UP          ? GATE_UP
                  : kind == MGL_OP_ROUTER           ? ROUTER
                  : kind == MGL_OP_ROUTE            ? (gathers ? SORT : ROUTE)
                  : kind == MGL_OP_EXPERTS_UP       ? UP
                  : kind == MGL_OP_EXPERTS_DOWN     ? DOWNS
                  : ops[i].op.kind == MGL_OP_ATTEND ? O
                  : kind == MGL_OP_LINEAR_ADD       ? DOWN
                                                    : ADD;
    sums[at] += (double)(began[i + 1] - began[i]) / 1e3;
  }
  mgl_cuda_program_info info = mgl_cuda_program_describe(p);
  printf("us a layer:");
  for (int i = NORM; i < KINDS; i++) {
    if (sums[i] > 0) {
      printf(" %s %.1f", names[i], sums[i] / info.layer_count);
    }
  }
  printf("\n");
  mgl_free(began);
  mgl_free(ops);
}

// Of the logits of the present plan, which runs once more: a change of speed changes none of them.
static uint64_t hash_of_logits(wide_sides *s) {
  const size_t count = (size_t)s->plan->logit_row_count * s->model.config.vocab_size;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  mgl_error err = {0};
  gpu_must(mgl_cuda_wide_run_plan(s->program, s->plan, NULL, s->wide, &err), &err);
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &s->wide[i], sizeof bits);
    hash = (hash ^ bits) * UINT64_C(0x100000001b3);
  }
  return hash;
}

// Number `i` of the sizes that are timed from `most` downwards: powers of two, with `between` more
// in each octave; 0: that was all.
static uint32_t size_of(uint32_t most, uint32_t least, uint32_t between, uint32_t i) {
  const uint32_t parts = 2 * (between + 1), octave = most >> i / (between + 1);
  const uint32_t size = octave / parts * (parts - i % (between + 1));
  return size >= least ? size : 0;
}

static void time_prompts(wide_sides *s, const wide_load *load) {
  mgl_cuda_program_info info = mgl_cuda_program_describe(s->program);
  double heads = (double)info.model.kv_heads * info.model.group * info.model.head_dim;
  printf(
      "\n| prompt tokens | ms | tokens/s | TFLOP/s of linears | with attention (causal) | hash of "
      "logits |\n|---|---|---|---|---|---|\n");
  for (uint32_t i = 0, count; (count = size_of(TOKENS, 128, load->between, i)) > 0; i++) {
    mgl_plan_clear(s->plan);
    add(s, 0, 0, 0, count, MGL_LOGITS_LAST);
    double ms = timed_run(s, load->runs);
    double linears = linear_flop(s->program) * count;
    double attention = 2.0 * heads * count * (count + 1.0) * info.layer_count;
    printf("| %u | %.3f | %.0f | %.1f | %.1f | %016" PRIx64 " |\n", count, ms, count / ms * 1e3,
           linears / ms / 1e9, (linears + attention) / ms / 1e9, hash_of_logits(s));
    print_stages(s, mgl_cuda_wide_graph_for(&s->program->wide.layout, count));
    (void)fflush(stdout);
  }
}

static void time_decode(wide_sides *s, const wide_load *load) {
  mgl_cuda_program_info info = mgl_cuda_program_describe(s->program);
  uint32_t at_once = SPEED_TOKENS / load->context;
  for (uint32_t i = 0; i < load->batch; i += at_once) {
    mgl_plan_clear(s->plan);
    for (uint32_t j = i; j < i + at_once && j < load->batch; j++) {
      add(s, j, j * 13, 0, load->context - 1, MGL_LOGITS_LAST);
    }
    run(s, NULL);
  }
  printf(
      "\n| batch | context | ms | tokens/s | floor ms at 3.1 TB/s | share | hash of logits | "
      "narrow "
      "class, ms |\n|---|---|---|---|---|---|---|---|\n");
  for (uint32_t j = 0, batch; (batch = size_of(load->batch, LEAST_DECODE, load->between, j)) > 0;
       j++) {
    mgl_plan_clear(s->plan);
    for (uint32_t i = 0; i < batch; i++) {
      add(s, i, i * 13, load->context - 1, 1, MGL_LOGITS_LAST);
    }
    double ms = timed_run(s, load->runs);
    double bytes =
        (double)info.step_bytes + (double)batch * load->context * (double)info.kv_bytes_per_token;
    printf("| %u | %u | %.3f | %.0f | %.3f | %.3f | %016" PRIx64 " |", batch, load->context, ms,
           batch / ms * 1e3, bytes / 3.1e9, bytes / 3.1e9 / ms, hash_of_logits(s));
    if (batch <= NARROW) {
      printf(" %.3f |\n", timed_narrow_run(s, load->runs));
    } else {
      printf(" |\n");
    }
    print_stages(s, mgl_cuda_wide_graph_for(&s->program->wide.layout, batch));
    (void)fflush(stdout);
  }
}

// Requests from their prompts to their ends in one job.
static void time_job(wide_sides *s, const wide_load *load) {
  enum { GENERATE = 64 };
  mgl_error err = {0};
  uint32_t count = load->batch / 2;
  uint32_t prompt = load->context - GENERATE - 60;
  mgl_cuda_request *requests = gpu_must_alloc(count, sizeof *requests);
  mgl_cuda_outcome outcome = {0};
  for (uint32_t i = 0; i < count; i++) {
    requests[i].prompt = s->tokens + i * 13;
    requests[i].prompt_count = prompt;
    requests[i].max_new_tokens = GENERATE;
  }
  mgl_cuda_generate job = {.requests = requests, .request_count = count, .outcome = &outcome};
  gpu_must(mgl_cuda_program_generate(s->program, &job, &err), &err);
  double seconds = (double)outcome.host_ns / 1e9;
  printf(
      "\n%u requests of %u + %d tokens at once: %.2f s, %u iterations, %.0f prompt tokens/s and "
      "%.0f output tokens/s over all of it\n",
      count, prompt, GENERATE, seconds, outcome.iterations, count * prompt / seconds,
      count * GENERATE / seconds);
  (void)fflush(stdout);
  mgl_free(requests);
}

static void time_model(gpu_bench *bench, const char *name, const wide_load *load) {
  wide_sides s;
  uint32_t pages = (load->context + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS;
  pages = pages < TOKENS / GPU_PAGE_TOKENS ? TOKENS / GPU_PAGE_TOKENS : pages;
  printf("\n## Wide, speed: %s\n", name);
  if (load->prompts) {
    open_sides(&s, bench, name, 2, pages, false);
    time_prompts(&s, load);
    close_sides(&s);
  }
  if (load->batch > 0) {
    open_sides(&s, bench, name, load->batch,
               (load->context + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS, false);
    time_decode(&s, load);
    if (load->job) {
      time_job(&s, load);
    }
    close_sides(&s);
  }
}

void gpu_wide_run(gpu_bench *bench, int count, char **arguments) {
  wide_load load = {.batch = 256, .context = 1024, .runs = 5, .prompts = true, .job = true};
  int models = 0;
  for (int i = 0; i < count; i++) {
    const char *value = strchr(arguments[i], '=');
    uint32_t number = value != NULL ? (uint32_t)strtoul(value + 1, NULL, 10) : 0;
    if (value == NULL) {
      arguments[models++] = arguments[i];
    } else if (strncmp(arguments[i], "batch=", 6) == 0) {
      load.batch = number;
    } else if (strncmp(arguments[i], "context=", 8) == 0) {
      load.context = number;
    } else if (strncmp(arguments[i], "runs=", 5) == 0) {
      load.runs = number;
    } else if (strncmp(arguments[i], "between=", 8) == 0) {
      load.between = number;
    } else if (strncmp(arguments[i], "prompt=", 7) == 0) {
      load.prompt = number;
    } else if (strncmp(arguments[i], "prompts=", 8) == 0) {
      load.prompts = number != 0;
    } else if (strncmp(arguments[i], "job=", 4) == 0) {
      load.job = number != 0;
    }
  }
  for (int i = 0; i < models; i++) {
    if (load.prompt > 0) {
      check_one_prompt(bench, arguments[i], load.prompt);
    } else if (strchr(arguments[i], '/') != NULL) {
      time_model(bench, arguments[i], &load);
    } else {
      check_model(bench, arguments[i]);
    }
  }
  if (models == 0) {
    check_model(bench, "tiny");
    check_model(bench, "wide");
    check_model(bench, "bias");
    check_model(bench, "experts");
  }
}
