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
// Batches above WARM_BATCH have `large_prompt` and `large_generate`, since chains of kernels take
// several iterations for each of their tokens.
//   Each round begins with another mode. A cell has at least `rounds` of them, and goes on, up to
// MOST_ROUNDS, until `cell_seconds` are over; mode eager has one. Verdicts (modes_verdict.h): mega
// is slower than no other mode, and FULL_AND_PIECEWISE than neither of the two that it is made of.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/compilation.h"
#include "engine/engine.h"
#include "gpu/gpu_bench.h"
#include "gpu/modes_verdict.h"
#include "model/model_folder.h"

enum {
  MOST_BATCHES = 8,
  MOST_ROUNDS = 9,
  MOST_CELLS = 2 * MOST_BATCHES,
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
enum { AT_MEGA, AT_FULL_AND_PIECEWISE = 2, AT_DECODE_ONLY, AT_PIECEWISE };  // in `modes`

typedef struct all_options {
  uint32_t batches[MOST_BATCHES];
  uint32_t batch_count;
  uint32_t prompt, generate, large_prompt, large_generate;
  uint32_t rounds, cell_seconds;
  uint32_t tokens;  // of an iteration
  uint32_t eager;   // the largest batch of mode eager, which is slow
  uint32_t memory;  // 1: a runner for each mode, to see what its graphs take
  const char *csv;
  const char *only;  // the modes that run, separated by commas; NULL: all
} all_options;

// What a batch gave, in all modes that ran.
typedef struct cell {
  uint32_t batch;
  bool mixed;  // figures are tokens/s, else ms per token of every sequence
  mode_rounds modes[MODES];
} cell;

typedef struct world {
  gpu_bench *bench;
  mgl_model_folder folder;
  const char *name;
  mgl_runner *fused, *eager;
  const all_options *options;
  FILE *csv;
  cell cells[MOST_CELLS];
  uint32_t cell_count;
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
  const all_options *o = j->w->options;
  const uint32_t prompt = j->batch > WARM_BATCH ? o->large_prompt : o->prompt;
  return j->mixed ? prompt / 2 + i * 37 % (prompt + 1) : prompt;
}

static uint32_t generate_of(const job *j, uint32_t i) {
  const all_options *o = j->w->options;
  const uint32_t generate = j->batch > WARM_BATCH ? o->large_generate : o->generate;
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
  printf("\n%s, graphs of a mixed job of 64 sequences, by mode:\n\n", w->name);
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

// A job of a mode; modes that must give the same tokens are held against *hash, 0: none yet.
static figures run_mode(world *w, size_t i, const cell *c, uint64_t *hash) {
  const bool narrow = w->options->tokens <= MGL_CUDA_MAX_TOKENS;
  mgl_runner *runner = i == EAGER ? w->eager : w->fused;
  figures f = run_job(w, runner, modes[i].mode, c->batch, c->mixed);
  if (modes[i].chain || narrow) {
    *hash = *hash == 0 ? f.hash : *hash;
    if (*hash != f.hash) {
      gpu_check(w->bench, false,
                "%s, batch %u, %s: tokens of mode %s: hash %016llx, expected %016llx", w->name,
                c->batch, c->mixed ? "mixed" : "decode", mgl_mode_name(modes[i].mode),
                (unsigned long long)f.hash, (unsigned long long)*hash);
    }
  }
  return f;
}

static void print_cell(const world *w, const cell *c, double share, uint64_t hash) {
  printf("| %u | %s |", c->batch, c->mixed ? "mixed, tokens/s" : "decode, ms");
  for (size_t i = 0; i < MODES; i++) {
    const mode_rounds *m = &c->modes[i];
    if (m->count == 0) {
      printf(" - |");
      continue;
    }
    if (m->count == 1) {
      printf(c->mixed ? " %.0f |" : " %.3f |", m->median);
    } else {
      printf(c->mixed ? " %.0f (%.0f to %.0f) |" : " %.3f (%.3f to %.3f) |", m->median, m->least,
             m->most);
    }
    if (w->csv != NULL) {
      (void)fprintf(w->csv, "%s,%u,%s,%s,%.4f,%.4f,%.4f,%u\n", w->name, c->batch,
                    c->mixed ? "mixed" : "decode", mgl_mode_name(modes[i].mode), m->median,
                    m->least, m->most, m->count);
    }
  }
  printf(" %u | %.2f | %016llx |\n", c->modes[AT_FULL_AND_PIECEWISE].count, share,
         (unsigned long long)hash);
  (void)fflush(stdout);
}

static void measure_cell(world *w, uint32_t batch, bool mixed) {
  const all_options *o = w->options;
  double values[MODES][MOST_ROUNDS];
  uint32_t counts[MODES] = {0};
  uint64_t hash = 0;
  double share = 0;
  cell *c = &w->cells[w->cell_count++];
  *c = (cell){.batch = batch, .mixed = mixed};
  if (mixed && batch <= WARM_BATCH) {  // graphs of sizes that occur here, and their faster ways
    for (size_t i = 0; i < EAGER; i++) {
      if (is_wanted(o, i)) {
        (void)run_mode(w, i, c, &hash);
      }
    }
  }
  const uint64_t begin = mgl_clock_ns();
  for (uint32_t round = 0; round < MOST_ROUNDS; round++) {
    if (round >= o->rounds && mgl_clock_ns() - begin >= o->cell_seconds * UINT64_C(1000000000)) {
      break;
    }
    for (size_t turn = 0; turn < MODES; turn++) {
      const size_t i = (turn + round) % MODES;
      if (!is_wanted(o, i) || (i == EAGER && (batch > o->eager || round > 0))) {
        continue;
      }
      figures f = run_mode(w, i, c, &hash);
      values[i][counts[i]++] = f.value;
      share = modes[i].mode == MGL_MODE_FULL ? f.mixed_share : share;
    }
  }
  for (size_t i = 0; i < MODES; i++) {
    c->modes[i] = mode_rounds_of(values[i], counts[i]);
  }
  print_cell(w, c, share, hash);
}

// --- verdicts ------------------------------------------------------------------------------------

// Prints how a mode stands to another one, and counts where it is slower.
static void print_verdict(const cell *c, size_t one, size_t other, uint32_t *slower) {
  static const char *const words[] = {[MODE_SAME] = "same",
                                      [MODE_FASTER] = "faster",
                                      [MODE_SLOWER] = "SLOWER",
                                      [MODE_UNKNOWN] = "too few rounds"};
  const mode_rounds *a = &c->modes[one], *b = &c->modes[other];
  if (one == other || a->count == 0 || b->count == 0) {
    printf(" - |");
    return;
  }
  const mode_verdict verdict = mode_compare(a, b, c->mixed);
  *slower += verdict == MODE_SLOWER ? 1 : 0;
  printf(" %.3f, %s |", mode_factor(a, b, c->mixed), words[verdict]);
}

// The best of the other modes; mega itself where there is none.
static size_t next_to_mega(const cell *c) {
  size_t best = AT_MEGA;
  for (size_t i = AT_MEGA + 1; i < MODES; i++) {
    if (c->modes[i].count > 0 &&
        (best == AT_MEGA || mode_factor(&c->modes[i], &c->modes[best], c->mixed) > 1)) {
      best = i;
    }
  }
  return best;
}

static void print_verdicts(world *w) {
  uint32_t mega = 0, pieces = 0, decode_only = 0;
  printf(
      "\nTimes as fast by medians; *same*: ranges overlap, or medians are no further apart than "
      "one "
      "mode's rounds.\n\n| batch | | mega beside the best other | which | full-and-piecewise "
      "beside "
      "piecewise | beside full-decode-only |\n|---|---|---|---|---|---|\n");
  for (uint32_t i = 0; i < w->cell_count; i++) {
    const cell *c = &w->cells[i];
    const size_t best = next_to_mega(c);
    printf("| %u | %s |", c->batch, c->mixed ? "mixed" : "decode");
    print_verdict(c, AT_MEGA, best, &mega);
    printf(" %s |", mgl_mode_name(modes[best].mode));
    print_verdict(c, AT_FULL_AND_PIECEWISE, AT_PIECEWISE, &pieces);
    print_verdict(c, AT_FULL_AND_PIECEWISE, AT_DECODE_ONLY, &decode_only);
    printf("\n");
  }
  printf("\n");
  gpu_check(w->bench, mega + pieces + decode_only == 0,
            "%s, %u cells: mega is slower in %u; full-and-piecewise is slower than piecewise in "
            "%u, than full-decode-only in %u",
            w->name, w->cell_count, mega, pieces, decode_only);
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
      "\nPrompts of %u tokens, %u generated, above %d sequences %u and %u; medians, and the least "
      "and most of the rounds; %s. Made and warm after %.1f s.\n\n| batch | |",
      o->prompt, o->generate, WARM_BATCH, o->large_prompt, o->large_generate,
      any_fused ? mgl_runner_note(w.fused) : "", (double)(mgl_clock_ns() - begin) / 1e9);
  for (size_t i = 0; i < MODES; i++) {
    printf(" %s |", mgl_mode_name(modes[i].mode));
  }
  printf(" rounds | mixed iterations of full | tokens' hash |\n|---|---|");
  for (size_t i = 0; i < MODES + 3; i++) {
    printf("---|");
  }
  printf("\n");
  for (uint32_t i = 0; i < o->batch_count; i++) {
    measure_cell(&w, o->batches[i], false);
    measure_cell(&w, o->batches[i], true);
  }
  print_verdicts(&w);
  printf("\n%s took %.1f s.\n", w.name, (double)(mgl_clock_ns() - begin) / 1e9);
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
                 {"large_prompt=", &o->large_prompt},
                 {"large_generate=", &o->large_generate},
                 {"rounds=", &o->rounds},
                 {"cell_seconds=", &o->cell_seconds},
                 {"tokens=", &o->tokens},
                 {"eager=", &o->eager},
                 {"memory=", &o->memory}};
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
                   .large_prompt = 16,
                   .large_generate = 8,
                   .rounds = 3,
                   .cell_seconds = 4,
                   .tokens = WIDE_TOKENS,
                   .eager = 16};
  for (int i = 0; i < count; i++) {
    (void)set_option(&o, arguments[i]);
  }
  o.rounds = o.rounds < MOST_ROUNDS ? o.rounds : (uint32_t)MOST_ROUNDS;
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
