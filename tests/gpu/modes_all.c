// Every mode beside the others, through the engine: iterations that decode, and jobs in which
// prompts come while others decode. One runner has all modes of fused kernels, so weights and KV
// are the same memory, and rounds of the modes are in turn; mode eager (plain kernels) has a runner
// of its own. Modes that are chains of kernels must give the same tokens, eager among them (of bf16
// weights plain kernels have the bits of fused ones), and mode mega too where it has no wide class
// (`tokens` up to 64).
//   Decode: `batch` prompts are computed first; figures are of the iterations in which most rows
// decode, whose time is per token of every sequence, since a mode may need several iterations for
// that.
//   Mixed: `batch` requests are under way, and where one ends the next one comes. Lengths differ
// (prompts of half to one and a half `prompt`, a quarter to one and a quarter of `generate`).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/compilation.h"
#include "engine/engine.h"
#include "gpu/gpu_bench.h"
#include "model/model_folder.h"

enum {
  MOST_BATCHES = 8,
  MOST_ROUNDS = 9,
  MOST_STEPS = 1 << 14,
  WARM_BATCH = 64,  // all sizes of graphs
  WIDE_TOKENS = 2048,
  EAGER_TOKENS = 64,
  IDLE_NS = 2 * 1000 * 1000,  // that a launch without requests waits for the next one
};

static const struct {
  mgl_mode mode;
  bool chain;  // of kernels: the same bits
} modes[] = {{MGL_MODE_MEGA, false},
             {MGL_MODE_FULL, true},
             {MGL_MODE_FULL_AND_PIECEWISE, true},
             {MGL_MODE_FULL_DECODE_ONLY, true},
             {MGL_MODE_PIECEWISE, true},
             {MGL_MODE_COMPILED, true},
             {MGL_MODE_EAGER, true}};
enum { MODES = sizeof modes / sizeof *modes, EAGER = MODES - 1 };

typedef struct all_options {
  uint32_t batches[MOST_BATCHES];
  uint32_t batch_count;
  uint32_t prompt, generate, rounds;
  uint32_t tokens;        // of an iteration
  uint32_t eager;         // the largest batch of mode eager, which is slow
  uint32_t memory;        // 1: a runner for each mode, to see what its graphs take
  uint32_t large_rounds;  // of batches above WARM_BATCH
  const char *csv;
  const char *only;  // the modes that run, separated by commas; NULL: all
} all_options;

typedef struct world {
  gpu_bench *bench;
  mgl_model_folder folder;
  const char *name;
  mgl_runner *fused, *eager;
  const all_options *options;
  FILE *csv;
} world;

// A job under way.
typedef struct job {
  mgl_engine *engine;
  const world *w;
  uint32_t batch, total;  // requests at once, and in all
  bool mixed;
  uint32_t submitted, ended, tokens;
  uint64_t last_ns;  // when the latest token came
  uint64_t hashes[MGL_MAX_SEQUENCES * 2];
  double us[MOST_STEPS];  // of iterations that decode, per token
  uint32_t rows[MOST_STEPS], steps;
  uint32_t iterations, mixed_iterations;
} job;

typedef struct figures {
  double value;        // decode: ms per token of every sequence; mixed: tokens/s
  double mixed_share;  // of iterations
  uint64_t hash;
} figures;

// --- a job ---------------------------------------------------------------------------------------

static uint32_t prompt_of(const job *j, uint32_t i) {
  const uint32_t prompt = j->w->options->prompt;
  return j->mixed ? prompt / 2 + i * 37 % (prompt + 1) : prompt;
}

static uint32_t generate_of(const job *j, uint32_t i) {
  const uint32_t generate = j->w->options->generate;
  return j->mixed ? generate / 4 + 1 + i * 29 % (generate + 1) : generate;
}

static void submit_one(job *j) {
  int32_t prompt[4096];
  mgl_error err = {0};
  uint32_t i = j->submitted++, number = 0, count = prompt_of(j, i);
  const uint32_t vocab = j->w->folder.config.vocab_size;
  for (uint32_t t = 0; t < count; t++) {
    prompt[t] =
        (int32_t)(((uint64_t)(i * 4096 + t + 1) * UINT64_C(0x9E3779B97F4A7C15) >> 20) % vocab);
  }
  const mgl_request request = {.prompt = prompt,
                               .prompt_count = count,
                               .max_new_tokens = generate_of(j, i),
                               .sampling = {.top_p = 1}};
  gpu_must(mgl_engine_submit(j->engine, &request, &number, &err), &err);
}

static void come(void *context) {
  job *j = context;
  while (j->submitted < j->total && j->submitted - j->ended < j->batch) {
    submit_one(j);
  }
}

static bool on_token(void *context, const mgl_generated_token *token) {
  job *j = context;
  uint64_t *hash = &j->hashes[token->request % (MGL_MAX_SEQUENCES * 2)];
  *hash = (*hash ^ ((uint64_t)(uint32_t)token->token + 1)) * UINT64_C(0x9E3779B97F4A7C15);
  j->tokens++;
  j->ended += token->finish != MGL_FINISH_NONE ? 1 : 0;
  j->last_ns = mgl_clock_ns();
  return true;
}

static bool on_iteration(void *context, const mgl_iteration *iteration) {
  job *j = context;
  j->iterations++;
  j->mixed_iterations += iteration->prompt_tokens > 0 && iteration->decode_tokens > 0 ? 1 : 0;
  if (iteration->prompt_tokens == 0 && iteration->decode_tokens > 0 && j->steps < MOST_STEPS) {
    j->rows[j->steps] = iteration->decode_tokens;
    j->us[j->steps++] = (double)iteration->ns / 1e3 / iteration->decode_tokens;
  }
  return true;
}

// Of the iterations with the most rows, per token.
static double median_us(job *j) {
  uint32_t most = 0, count = 0;
  for (uint32_t i = 0; i < j->steps; i++) {
    most = j->rows[i] > most ? j->rows[i] : most;
  }
  for (uint32_t i = 0; i < j->steps; i++) {
    if (j->rows[i] == most) {
      j->us[count++] = j->us[i];
    }
  }
  return count > 0 ? gpu_median(j->us, count) : 0;
}

static figures run_job(const world *w, mgl_runner *runner, mgl_mode mode, uint32_t batch,
                       bool mixed) {
  job *j = gpu_must_alloc(1, sizeof *j);
  mgl_error err = {0};
  figures out = {0};
  *j = (job){.w = w, .batch = batch, .mixed = mixed};
  uint32_t more = batch / 2 < 3 ? 3 : batch / 2;
  j->total = mixed ? batch + more : batch;
  const mgl_engine_options options = {.mode = mode,
                                      .prompts_first = !mixed,
                                      .before_plan = come,
                                      .context = j,
                                      .idle_ns = mixed ? (uint64_t)IDLE_NS : 0};
  gpu_must(mgl_engine_create(runner, &options, &j->engine, &err), &err);
  come(j);
  uint64_t begin = mgl_clock_ns();
  while (mgl_engine_has_work(j->engine)) {
    gpu_must(mgl_engine_run(j->engine, on_token, on_iteration, j, &err), &err);
    come(j);
  }
  out.value = mixed ? j->tokens / ((double)(j->last_ns - begin) / 1e9) : median_us(j) * batch / 1e3;
  out.mixed_share = j->iterations > 0 ? (double)j->mixed_iterations / j->iterations : 0;
  for (uint32_t i = 0; i < j->total && i < MGL_MAX_SEQUENCES * 2; i++) {
    out.hash = out.hash * UINT64_C(0x9E3779B97F4A7C15) ^ j->hashes[i];
  }
  if (j->ended != j->total) {
    gpu_check(w->bench, false, "%s, %s: %u of %u requests ended", w->name, mgl_mode_name(mode),
              j->ended, j->total);
  }
  mgl_engine_destroy(j->engine);
  free(j);
  return out;
}

// --- runners -------------------------------------------------------------------------------------

static uint32_t largest_batch(const all_options *o) {
  uint32_t most = 1;
  for (uint32_t i = 0; i < o->batch_count; i++) {
    most = o->batches[i] > most ? o->batches[i] : most;
  }
  return most;
}

static mgl_runner *make_runner(const world *w, bool eager) {
  const all_options *o = w->options;
  static mgl_compilation level_0;
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  const mgl_cuda_options cuda = {.device = &w->bench->device};
  mgl_compilation_init(&level_0);
  gpu_must(mgl_compilation_read(&level_0, "eager", "{\"level\": 0}", &err), &err);
  gpu_must(mgl_compilation_check(&level_0, NULL, &err), &err);
  const mgl_build build = {.iteration_tokens = eager ? EAGER_TOKENS : o->tokens,
                           .sequences = eager ? o->eager : largest_batch(o),
                           .sequence_tokens = 2 * o->prompt + 2 * o->generate + 2,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = GPU_SEED,
                           .compilation = eager ? &level_0 : NULL,
                           .cuda = &cuda};
  gpu_must(mgl_runner_create(&w->folder, &build, &runner, &err), &err);
  return runner;
}

// What a mode's graphs take, by a runner that has this mode only.
static void tell_memory(world *w) {
  printf("\n%s, graphs of a job of 64 sequences, by mode:\n\n", w->name);
  for (size_t i = 1; i < EAGER; i++) {
    mgl_runner *runner = make_runner(w, false);
    (void)run_job(w, runner, modes[i].mode, WARM_BATCH, true);
    printf("- %s: %s\n", mgl_mode_name(modes[i].mode), mgl_runner_note(runner));
    (void)fflush(stdout);
    mgl_runner_destroy(runner);
  }
}

static bool is_wanted(const all_options *o, size_t i) {
  const char *name = mgl_mode_name(modes[i].mode);
  const size_t bytes = strlen(name);
  for (const char *at = o->only; at != NULL; at = strchr(at, ',')) {
    at += *at == ',' ? 1 : 0;
    if (strncmp(at, name, bytes) == 0 && (at[bytes] == 0 || at[bytes] == ',')) {
      return true;
    }
  }
  return o->only == NULL;
}

// --- cells ---------------------------------------------------------------------------------------

static void measure_cell(world *w, uint32_t batch, bool mixed) {
  const all_options *o = w->options;
  double values[MODES][MOST_ROUNDS];
  uint64_t hash = 0;
  uint32_t rounds = batch > WARM_BATCH ? o->large_rounds : o->rounds;
  double share = 0;
  for (uint32_t round = 0; round < rounds; round++) {
    for (size_t i = 0; i < MODES; i++) {
      if (!is_wanted(o, i) || (i == EAGER && (batch > o->eager || round > 0))) {
        values[i][round] = 0;
        continue;
      }
      mgl_runner *runner = i == EAGER ? w->eager : w->fused;
      figures f = run_job(w, runner, modes[i].mode, batch, mixed);
      values[i][round] = f.value;
      share = modes[i].mode == MGL_MODE_FULL ? f.mixed_share : share;
      bool narrow = o->tokens <= MGL_CUDA_MAX_TOKENS;
      if (!modes[i].chain && !narrow) {
        continue;
      }
      hash = hash == 0 ? f.hash : hash;
      if (hash != f.hash) {
        gpu_check(w->bench, false,
                  "%s, batch %u, %s: tokens of mode %s: hash %016llx, expected %016llx", w->name,
                  batch, mixed ? "mixed" : "decode", mgl_mode_name(modes[i].mode),
                  (unsigned long long)f.hash, (unsigned long long)hash);
      }
    }
  }
  printf("| %s | %u | %s |", w->name, batch, mixed ? "mixed, tokens/s" : "decode, ms");
  for (size_t i = 0; i < MODES; i++) {
    uint32_t count = i == EAGER ? 1 : rounds;
    double median = gpu_median(values[i], count);
    if (median == 0) {
      printf(" - |");
      continue;
    }
    printf(mixed ? " %.0f |" : " %.3f |", median);
    if (w->csv != NULL) {
      (void)fprintf(w->csv, "%s,%u,%s,%s,%.4f,%.4f,%.4f,%u\n", w->name, batch,
                    mixed ? "mixed" : "decode", mgl_mode_name(modes[i].mode), median, values[i][0],
                    values[i][count - 1], count);
    }
  }
  printf(" %.2f | %016llx |\n", share, (unsigned long long)hash);
  (void)fflush(stdout);
}

static void measure_model(gpu_bench *bench, const char *path, const all_options *o, FILE *csv) {
  mgl_error err = {0};
  const char *slash = strrchr(path, '/');
  world w = {.bench = bench, .name = slash != NULL ? slash + 1 : path, .options = o, .csv = csv};
  gpu_must(mgl_model_folder_open(path, 0, &w.folder, &err), &err);
  uint64_t begin = mgl_clock_ns();
  printf("\n## All modes: %s\n", w.name);
  if (o->memory != 0) {
    tell_memory(&w);
  }
  bool any_fused = false;
  for (size_t i = 0; i < EAGER; i++) {
    any_fused = any_fused || is_wanted(o, i);
  }
  w.fused = any_fused ? make_runner(&w, false) : NULL;
  w.eager = o->eager > 0 ? make_runner(&w, true) : NULL;
  for (size_t i = 0; i < EAGER; i++) {
    if (is_wanted(o, i)) {
      (void)run_job(&w, w.fused, modes[i].mode, WARM_BATCH, true);
    }
  }
  printf(
      "\nPrompts of %u tokens, %u generated; %s. Made and warm after %.1f s.\n\n| model | batch | "
      "|",
      o->prompt, o->generate, any_fused ? mgl_runner_note(w.fused) : "",
      (double)(mgl_clock_ns() - begin) / 1e9);
  for (size_t i = 0; i < MODES; i++) {
    printf(" %s |", mgl_mode_name(modes[i].mode));
  }
  printf(" mixed iterations of full | tokens' hash |\n|---|---|---|");
  for (size_t i = 0; i < MODES + 2; i++) {
    printf("---|");
  }
  printf("\n");
  for (uint32_t i = 0; i < o->batch_count; i++) {
    measure_cell(&w, o->batches[i], false);
    measure_cell(&w, o->batches[i], true);
  }
  mgl_runner_destroy(w.eager);
  mgl_runner_destroy(w.fused);
  mgl_model_folder_close(&w.folder);
}

// --- options -------------------------------------------------------------------------------------

// False: the argument is a folder.
static bool set_option(all_options *o, const char *argument) {
  const struct {
    const char *key;
    uint32_t *to;
  } numbers[] = {{"prompt=", &o->prompt},
                 {"generate=", &o->generate},
                 {"rounds=", &o->rounds},
                 {"tokens=", &o->tokens},
                 {"eager=", &o->eager},
                 {"memory=", &o->memory},
                 {"large_rounds=", &o->large_rounds}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    if (strncmp(argument, numbers[i].key, strlen(numbers[i].key)) == 0) {
      *numbers[i].to = (uint32_t)strtoul(argument + strlen(numbers[i].key), NULL, 10);
      return true;
    }
  }
  if (strncmp(argument, "only=", 5) == 0) {
    o->only = argument + 5;
    return true;
  }
  if (strncmp(argument, "csv=", 4) == 0) {
    o->csv = argument + 4;
    return true;
  }
  if (strncmp(argument, "batches=", 8) != 0) {
    return false;
  }
  const char *at = argument + 8;
  for (o->batch_count = 0; *at != 0 && o->batch_count < MOST_BATCHES;) {
    char *end = NULL;
    o->batches[o->batch_count++] = (uint32_t)strtoul(at, &end, 10);
    at = *end == ',' ? end + 1 : end;
    if (end == at && *end != 0) {
      break;
    }
  }
  return true;
}

void gpu_modes_all_run(gpu_bench *bench, int count, char **arguments) {
  all_options o = {.batches = {1, 16, 64, 256},
                   .batch_count = 4,
                   .prompt = 64,
                   .generate = 32,
                   .rounds = 3,
                   .large_rounds = 1,
                   .tokens = WIDE_TOKENS,
                   .eager = 16};
  for (int i = 0; i < count; i++) {
    (void)set_option(&o, arguments[i]);
  }
  o.rounds = o.rounds < MOST_ROUNDS ? o.rounds : (uint32_t)MOST_ROUNDS;
  o.large_rounds = o.large_rounds < MOST_ROUNDS ? o.large_rounds : (uint32_t)MOST_ROUNDS;
  FILE *csv = o.csv != NULL ? fopen(o.csv, "wb") : NULL;
  if (o.csv != NULL && csv == NULL) {
    gpu_check(bench, false, "%s cannot be written", o.csv);
    return;
  }
  if (csv != NULL) {
    (void)fprintf(csv, "model,batch,kind,mode,median,least,most,rounds\n");
  }
  all_options ignored = o;
  for (int i = 0; i < count; i++) {
    if (!set_option(&ignored, arguments[i])) {
      measure_model(bench, arguments[i], &o, csv);
    }
  }
  if (csv != NULL) {
    (void)fclose(csv);
  }
}
