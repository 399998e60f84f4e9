// What a model takes on one GPU, on several, and on several with a barrier between ops: launches in
// turn in one job, and medians of their medians.
//
// Fine: words of activations and exact dependencies. Coarse (build.coarse): all tasks of an op wait
// for all tasks of every op before that they need anything of. Since a sum over ranks ends when the
// other ranks have sent their parts, that is a barrier of all workers of all ranks behind each sum.
// Both programs have the same ranks; the other ranks follow in one until rank 0 says to change.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "compile/shard.h"
#include "gpu/gpu_bench.h"

enum {
  MOST_BATCHES = 8,
  MOST_ROUNDS = 9,
  ONE_TOKENS = 128,  // of an iteration of one GPU: the wide class runs those of more than 16
  LEAST_TOKENS = 16,
};

typedef enum way { ONE, FINE, COARSE, WAYS } way;
static const char *const way_names[WAYS] = {"one GPU", "fine", "coarse"};

typedef struct ranks_speed_options {
  gpu_load load;
  uint32_t ranks, rounds;
  uint32_t batches[MOST_BATCHES], batch_count;
  uint32_t most_batch;
  bool coarse;
  const char *csv, *folder;
} ranks_speed_options;

typedef struct speed_side {
  gpu_bench *bench;
  const ranks_speed_options *options;
  gpu_model model;
  mgl_ranks *ranks;
  mgl_cuda_program *programs[WAYS];  // NULL: is not measured
  way followed;                      // by the other ranks
} speed_side;

static bool read_options(int count, char **arguments, ranks_speed_options *o) {
  *o = (ranks_speed_options){.load = {.prompt = 64, .generate = 128},
                             .ranks = 2,
                             .rounds = 3,
                             .batches = {1, 16, 64},
                             .batch_count = 3,
                             .coarse = true};
  for (int i = 0; i < count; i++) {
    const char *text = arguments[i];
    const char *equals = strchr(text, '=');
    char *end = (char *)(uintptr_t)text;
    if (equals == NULL) {
      o->folder = text;
    } else if (strncmp(text, "csv=", 4) == 0) {
      o->csv = equals + 1;
    } else if (strncmp(text, "batches=", 8) == 0) {
      end = (char *)(uintptr_t)equals;
      for (o->batch_count = 0; o->batch_count < MOST_BATCHES && *end != 0;) {
        o->batches[o->batch_count++] = (uint32_t)strtoul(end + 1, &end, 10);
      }
    } else {
      uint32_t value = (uint32_t)strtoul(equals + 1, NULL, 10);
      o->load.prompt = strncmp(text, "prompt=", 7) == 0 ? value : o->load.prompt;
      o->load.generate = strncmp(text, "generate=", 9) == 0 ? value : o->load.generate;
      o->ranks = strncmp(text, "ranks=", 6) == 0 ? value : o->ranks;
      o->rounds = strncmp(text, "rounds=", 7) == 0 ? value : o->rounds;
      o->coarse = strncmp(text, "coarse=", 7) == 0 ? value != 0 : o->coarse;
    }
  }
  for (uint32_t i = 0; i < o->batch_count; i++) {
    o->most_batch = o->batches[i] > o->most_batch ? o->batches[i] : o->most_batch;
  }
  return o->folder != NULL && o->rounds >= 1 && o->rounds <= MOST_ROUNDS && o->most_batch >= 1 &&
         o->most_batch <= MGL_CUDA_MAX_TOKENS;
}

static mgl_cuda_program_options sizes_of(const ranks_speed_options *o, way of) {
  const uint32_t longest = o->load.prompt + o->load.generate;
  const uint32_t tokens = o->most_batch > LEAST_TOKENS ? MGL_CUDA_MAX_TOKENS : LEAST_TOKENS;
  return (mgl_cuda_program_options){
      .sizes.limits.tokens = of == ONE && tokens > LEAST_TOKENS ? ONE_TOKENS : tokens,
      .sizes.sequences = o->most_batch,
      .sizes.limits.pages_per_sequence = (longest + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS};
}

static mgl_status make_cut(speed_side *s, way of, mgl_error *err) {
  mgl_graph *cut = NULL;
  mgl_cuda_program_options options = sizes_of(s->options, of);
  MGL_TRY(mgl_shard_program(s->model.program, s->options->ranks, &cut, err));
  options.program = cut;
  options.build.seed = GPU_SEED;
  options.build.ranks = s->options->ranks;
  options.build.coarse = of == COARSE;
  options.ranks = s->ranks;
  mgl_status status = mgl_cuda_program_create(&s->bench->device, &options, &s->programs[of], err);
  mgl_graph_destroy(cut);
  return status;
}

// All ranks: both programs, in the same order.
static mgl_status make_ranks(speed_side *s, mgl_error *err) {
  MGL_TRY(mgl_cuda_device_open((int)mgl_ranks_rank(s->ranks), &s->bench->device, err));
  MGL_TRY(make_cut(s, FINE, err));
  return s->options->coarse ? make_cut(s, COARSE, err) : MGL_OK;
}

// The life of ranks other than 0.
static _Noreturn void follow(speed_side *s) {
  mgl_error err = {0};
  mgl_rank_command command = MGL_RANK_END;
  mgl_status status = make_ranks(s, &err);
  while (status == MGL_OK && command == MGL_RANK_END) {
    status = mgl_cuda_program_follow_until(s->programs[s->followed], &command, &err);
    s->followed = s->followed == FINE ? COARSE : FINE;
  }
  mgl_ranks_leave(s->ranks, status == MGL_OK ? NULL : &err);
}

static gpu_measured measure(speed_side *s, way of, const gpu_load *load) {
  mgl_error err = {0};
  if (of != ONE && of != s->followed) {
    gpu_must(mgl_ranks_post(s->ranks, MGL_RANK_END, NULL, &err), &err);
    s->followed = of;
  }
  return gpu_measure(s->programs[of], &s->model, load, &(mgl_cuda_launch_options){0});
}

static void print_ways(const speed_side *s) {
  for (way of = ONE; of < WAYS; of++) {
    if (s->programs[of] != NULL) {
      mgl_cuda_program_info info = mgl_cuda_program_describe(s->programs[of]);
      printf(
          "- %s: %u tasks and %u events of one token, %u registers, %u bytes spilled, device "
          "code %s\n",
          way_names[of], info.task_count, info.event_count, info.usage.registers,
          info.usage.spill_bytes, info.compiled ? "compiled now" : "cached");
    }
  }
  printf("\n| model | batch | one GPU | fine | coarse | one / fine | coarse / fine |\n");
  printf("|---|---|---|---|---|---|---|\n");
  (void)fflush(stdout);
}

static void print_row(const speed_side *s, uint32_t batch, const double *ms) {
  const ranks_speed_options *o = s->options;
  printf("| %s | %u |", s->model.name, batch);
  for (way of = ONE; of < WAYS; of++) {
    printf(ms[of] > 0 ? " %.3f |" : " - |", ms[of]);
  }
  printf(" %.2f |", ms[ONE] / ms[FINE]);
  printf(ms[COARSE] > 0 ? " %.2f |\n" : " - |\n", ms[COARSE] / ms[FINE]);
  (void)fflush(stdout);
  FILE *csv = o->csv != NULL ? fopen(o->csv, "a") : NULL;
  if (csv != NULL) {
    (void)fprintf(csv, "%s,%u,%u,%.4f,%.4f,%.4f\n", s->model.name, o->ranks, batch, ms[ONE],
                  ms[FINE], ms[COARSE]);
    (void)fclose(csv);
  }
}

static void measure_batch(speed_side *s, uint32_t batch) {
  const ranks_speed_options *o = s->options;
  double rounds[WAYS][MOST_ROUNDS] = {{0}};
  double ms[WAYS] = {0};
  uint64_t hashes[WAYS] = {0};
  bool same = true;
  gpu_load load = o->load;
  load.batch = batch;
  for (uint32_t round = 0; round < o->rounds; round++) {
    for (way of = ONE; of < WAYS; of++) {
      if (s->programs[of] == NULL) {
        continue;
      }
      gpu_measured m = measure(s, of, &load);
      rounds[of][round] = m.median_ms;
      same = same && (round == 0 || m.hash == hashes[of]);
      hashes[of] = m.hash;
    }
  }
  for (way of = ONE; of < WAYS; of++) {
    ms[of] = gpu_median(rounds[of], o->rounds);
  }
  print_row(s, batch, ms);
  if (!same || (o->coarse && hashes[FINE] != hashes[COARSE])) {
    gpu_check(
        s->bench, false,
        "%s, batch %u: expected the same tokens in all rounds, fine and coarse; found %016llx "
        "and %016llx",
        s->model.name, batch, (unsigned long long)hashes[FINE], (unsigned long long)hashes[COARSE]);
  }
}

// One model in one process, since ranks are started before CUDA is opened.
void gpu_ranks_speed_run(gpu_bench *bench, int count, char **arguments) {
  ranks_speed_options o;
  mgl_error err = {0};
  speed_side s = {.bench = bench, .options = &o, .followed = FINE};
  if (!read_options(count, arguments, &o)) {
    gpu_check(bench, false,
              "ranks_speed: expected a model's folder, batches of 1 to %d, 1 to %d rounds",
              MGL_CUDA_MAX_TOKENS, MOST_ROUNDS);
    return;
  }
  gpu_model_open(o.folder, &s.model);
  gpu_must(mgl_cuda_ranks_start(o.ranks, &s.ranks, &err), &err);
  if (mgl_ranks_rank(s.ranks) != 0) {
    follow(&s);
  }
  gpu_must(make_ranks(&s, &err), &err);
  s.programs[ONE] = gpu_program(bench, &s.model, sizes_of(&o, ONE));
  printf(
      "\n## %s on one %s and on %u: milliseconds an iteration\n\nPrompts of %u tokens, %u "
      "generated; medians of %u launches, in turn.\n\n",
      s.model.name, bench->device.name, o.ranks, o.load.prompt, o.load.generate, o.rounds);
  print_ways(&s);
  for (uint32_t i = 0; i < o.batch_count; i++) {
    measure_batch(&s, o.batches[i]);
  }
  for (way of = ONE; of < WAYS; of++) {
    mgl_cuda_program_destroy(s.programs[of]);
  }
  mgl_ranks_stop(s.ranks);
  gpu_model_close(&s.model);
}
