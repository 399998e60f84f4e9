// What a model takes on one GPU, on several, on several with a barrier between ops, and on several
// that do not add up: launches in turn in one job, and medians of their medians.
//
// Narrow: the narrow class alone, with words of activations and exact dependencies. Coarse
// (build.coarse): the same, but all tasks of an op wait for all tasks of every op before that they
// need anything of. Since a sum over ranks ends when the other ranks have sent their parts, that is
// a barrier of all workers of all ranks behind each sum.
// Apart: the narrow class with the same tasks, the same cut and the same device code, but linears
// over ranks take their own part for the sum. What several ranks take beyond that is what sums over
// ranks cost beyond a hop within one GPU; tokens are wrong, of course.
// All programs have the same ranks; the other ranks follow in one until rank 0 says to go on to the
// next.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "compile/shard.h"
#include "device/cuda/cuda_program_parts.h"
#include "gpu/gpu_bench.h"

enum {
  MOST_BATCHES = 8,
  MOST_ROUNDS = 9,
  NARROW_BATCH = 16,  // up to it iterations are the narrow class's in any program
};

typedef enum way { ONE, SEVERAL, NARROW, COARSE, APART, WAYS } way;
static const char *const way_names[WAYS] = {"one GPU", "several", "narrow", "coarse", "apart"};

typedef struct ranks_speed_options {
  gpu_load load;
  uint32_t ranks, rounds;
  uint32_t batches[MOST_BATCHES], batch_count;
  uint32_t most_batch;
  uint32_t tokens;   // of an iteration
  uint32_t prefill;  // tokens of a prompt that is timed; 0: none is
  bool coarse, apart;
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
                             .tokens = MGL_MAX_ITERATION_TOKENS,
                             .prefill = 2048,
                             .coarse = true,
                             .apart = true};
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
      o->tokens = strncmp(text, "tokens=", 7) == 0 ? value : o->tokens;
      o->prefill = strncmp(text, "prefill=", 8) == 0 ? value : o->prefill;
      o->coarse = strncmp(text, "coarse=", 7) == 0 ? value != 0 : o->coarse;
      o->apart = strncmp(text, "apart=", 6) == 0 ? value != 0 : o->apart;
    }
  }
  for (uint32_t i = 0; i < o->batch_count; i++) {
    o->most_batch = o->batches[i] > o->most_batch ? o->batches[i] : o->most_batch;
  }
  return o->folder != NULL && o->rounds >= 1 && o->rounds <= MOST_ROUNDS && o->most_batch >= 1 &&
         o->most_batch <= MGL_CUDA_MAX_TOKENS;
}

static mgl_cuda_program_options sizes_of(const ranks_speed_options *o, way of) {
  const uint32_t most = o->load.prompt + o->load.generate;
  const uint32_t longest = o->prefill + 2 > most ? o->prefill + 2 : most;
  const uint32_t narrow = o->tokens < MGL_CUDA_MAX_TOKENS ? o->tokens : MGL_CUDA_MAX_TOKENS;
  const uint32_t of_batch = o->most_batch * ((most + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS);
  const uint32_t of_one = (longest + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS;
  return (mgl_cuda_program_options){
      .sizes.page_count = of_batch > of_one ? of_batch : of_one,
      .sizes.limits.tokens = of == ONE || of == SEVERAL ? o->tokens : narrow,
      .sizes.sequences = o->most_batch,
      .sizes.limits.pages_per_sequence = of_one};
}

// Whether a program is made.
static bool has_way(const ranks_speed_options *o, way of) {
  return of == ONE || of == SEVERAL || (of == COARSE && o->coarse) || (of == APART && o->apart) ||
         (of == NARROW && o->most_batch > NARROW_BATCH && o->tokens > MGL_CUDA_MAX_TOKENS);
}

// No linear of the narrow class's graphs is over ranks any more.
static mgl_status take_apart(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  const size_t bytes = p->program->op_count * sizeof(mgl_cuda_op);
  mgl_cuda_op *ops = gpu_must_alloc(p->program->op_count, sizeof *ops);
  mgl_status status = MGL_OK;
  for (uint32_t graph = 0; graph < p->graph_count && status == MGL_OK; graph++) {
    mgl_cu_ptr at = p->memory[MGL_CUDA_MEMORY_DESCRIPTORS] + p->layout.graphs[graph].ops;
    status = mgl_cuda_check(driver, driver->copy_to_host(ops, at, bytes), "copy_to_host", err);
    for (size_t i = 0; i < p->program->op_count; i++) {
      if (p->program->ops[i].attrs[MGL_ATTR_OVER] > 0) {
        ops[i].exchange = 0;
      }
    }
    if (status == MGL_OK) {
      status =
          mgl_cuda_check(driver, driver->copy_to_device(at, ops, bytes), "copy_to_device", err);
    }
  }
  mgl_free(ops);
  return status;
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
  return status == MGL_OK && of == APART ? take_apart(s->programs[of], err) : status;
}

// All ranks: all programs, in the same order.
static mgl_status make_ranks(speed_side *s, mgl_error *err) {
  MGL_TRY(mgl_cuda_device_open((int)mgl_ranks_rank(s->ranks), &s->bench->device, err));
  for (way of = SEVERAL; of < WAYS; of++) {
    if (has_way(s->options, of)) {
      MGL_TRY(make_cut(s, of, err));
    }
  }
  return MGL_OK;
}

static void follow_next(speed_side *s) {
  do {
    s->followed = s->followed + 1 < WAYS ? s->followed + 1 : SEVERAL;
  } while (s->programs[s->followed] == NULL);
}

// The life of ranks other than 0.
static _Noreturn void follow(speed_side *s) {
  mgl_error err = {0};
  mgl_rank_command command = MGL_RANK_END;
  mgl_status status = make_ranks(s, &err);
  while (status == MGL_OK && command == MGL_RANK_END) {
    status = mgl_cuda_program_follow_until(s->programs[s->followed], &command, &err);
    follow_next(s);
  }
  mgl_ranks_leave(s->ranks, status == MGL_OK ? NULL : &err);
}

// The others follow in that program.
static void lead_to(speed_side *s, way of) {
  mgl_error err = {0};
  while (of != ONE && of != s->followed) {
    gpu_must(mgl_ranks_post(s->ranks, MGL_RANK_END, NULL, &err), &err);
    follow_next(s);
  }
}

static gpu_measured measure(speed_side *s, way of, const gpu_load *load) {
  lead_to(s, of);
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
  printf(
      "\n| model | batch | one GPU | several | narrow | coarse | apart | one / several | coarse / "
      "narrow | us a sum |\n|---|---|---|---|---|---|---|---|---|---|\n");
  (void)fflush(stdout);
}

static void print_row(const speed_side *s, uint32_t batch, const double *ms) {
  const ranks_speed_options *o = s->options;
  const double narrow = ms[NARROW] > 0 ? ms[NARROW] : ms[SEVERAL];
  printf("| %s | %u |", s->model.name, batch);
  for (way of = ONE; of < WAYS; of++) {
    printf(ms[of] > 0 ? " %.3f |" : " - |", ms[of]);
  }
  printf(" %.2f |", ms[ONE] / ms[SEVERAL]);
  printf(ms[COARSE] > 0 ? " %.2f |" : " - |", ms[COARSE] / narrow);
  printf(ms[APART] > 0 ? " %.2f |\n" : " - |\n",
         (narrow - ms[APART]) * 1e3 / s->programs[SEVERAL]->layout.exchanges);
  (void)fflush(stdout);
  FILE *csv = o->csv != NULL ? fopen(o->csv, "a") : NULL;
  if (csv != NULL) {
    (void)fprintf(csv, "%s,%u,%u,%.4f,%.4f,%.4f,%.4f,%.4f\n", s->model.name, o->ranks, batch,
                  ms[ONE], ms[SEVERAL], ms[NARROW], ms[COARSE], ms[APART]);
    (void)fclose(csv);
  }
}

// What the narrow class alone takes is measured where several would choose another.
static bool is_measured(const speed_side *s, way of, uint32_t batch) {
  return s->programs[of] != NULL && (of != NARROW || batch > NARROW_BATCH);
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
      if (!is_measured(s, of, batch)) {
        continue;
      }
      gpu_measured m = measure(s, of, &load);
      rounds[of][round] = m.median_ms;
      same =
          same && (round == 0 || m.hash == hashes[of] || of == ONE || of == SEVERAL || of == APART);
      hashes[of] = m.hash;
    }
  }
  for (way of = ONE; of < WAYS; of++) {
    ms[of] = gpu_median(rounds[of], o->rounds);
  }
  print_row(s, batch, ms);
  const uint64_t narrow = s->programs[NARROW] != NULL && batch > NARROW_BATCH ? hashes[NARROW]
                          : o->tokens > MGL_CUDA_MAX_TOKENS                   ? hashes[COARSE]
                                                                              : hashes[SEVERAL];
  if (!same || (o->coarse && hashes[COARSE] != narrow)) {
    gpu_check(s->bench, false,
              "%s, batch %u: expected the same tokens in all rounds, narrow and coarse; found "
              "%016llx and %016llx",
              s->model.name, batch, (unsigned long long)narrow, (unsigned long long)hashes[COARSE]);
  }
}

// --- a prompt ------------------------------------------------------------------------------------

// What a launch tells of the iteration that computes the whole prompt.
typedef struct prefilled {
  uint32_t tokens;
  double ms;
  int32_t token;  // the first one behind it
} prefilled;

static void on_prefilled(void *context, const mgl_cuda_progress *progress) {
  prefilled *f = context;
  if (progress->prompt_tokens == f->tokens) {
    f->ms = (double)progress->ns / 1e6;
  }
}

static void on_first_token(void *context, const mgl_cuda_token *token) {
  prefilled *f = context;
  f->token = f->token < 0 ? token->token : f->token;
}

static prefilled prefill(speed_side *s, way of, const int32_t *prompt) {
  mgl_error err = {0};
  prefilled f = {.tokens = s->options->prefill, .token = -1};
  const mgl_cuda_request request = {
      .prompt = prompt, .prompt_count = s->options->prefill, .max_new_tokens = 2};
  lead_to(s, of);
  gpu_must(mgl_cuda_program_generate(s->programs[of],
                                     &(mgl_cuda_generate){.requests = &request,
                                                          .request_count = 1,
                                                          .on_token = on_first_token,
                                                          .on_progress = on_prefilled,
                                                          .context = &f},
                                     &err),
           &err);
  return f;
}

// Where the last prompt's time went at rank 0: from the times at which worker 0 began stages, in
// one layer, the mean of all but the first and the last.
static void print_stages(const speed_side *s, way of) {
  enum { MOST = 4096, LAYER = 32 };
  static uint64_t began[MOST];
  static mgl_cuda_step steps[MOST];
  static mgl_wide_op ops[1024];
  double us[LAYER] = {0};
  uint32_t kinds[LAYER] = {0}, at = 0, layers = 0, starts[2] = {0};
  const mgl_cuda_program *p = s->programs[of];
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_wide_graph *g =
      &p->wide.layout.graphs[mgl_cuda_wide_graph_for(&p->wide.layout, s->options->prefill)];
  const mgl_cu_ptr block = p->memory[MGL_CUDA_MEMORY_WIDE];
  if (g->stage_count > MOST || g->op_count > 1024) {
    return;
  }
  if (driver->copy_to_host(began, block + p->wide.layout.stage_ns, g->stage_count * 8) != 0 ||
      driver->copy_to_host(ops, block + g->ops, g->op_count * sizeof *ops) != 0 ||
      driver->copy_to_host(starts, block + g->step_start, sizeof starts) != 0 || starts[1] > MOST ||
      driver->copy_to_host(steps, block + g->steps, starts[1] * sizeof *steps) != 0) {
    gpu_check(s->bench, false, "no times of stages");
    return;
  }
  uint32_t first = MOST;  // the step of attend before
  for (uint32_t i = 0; i < starts[1]; i++) {
    if (ops[steps[i].op].op.kind != MGL_OP_ATTEND) {
      continue;
    }
    if ((ops[steps[i].op].op.flags & MGL_WIDE_TURNED) != 0) {  // stages of two chains side by side
      return;
    }
    uint32_t last = first, count = 0;
    for (uint32_t j = first; j < i && first != MOST; j++) {
      if (j + 1 < i && steps[j + 1].trigger_event == steps[last].trigger_event) {
        continue;
      }
      if (count < LAYER) {
        kinds[count] = ops[steps[last].op].op.kind;
        us[count++] +=
            (double)(began[steps[j + 1].trigger_event] - began[steps[last].trigger_event]) / 1e3;
      }
      last = j + 1;
    }
    layers += first != MOST ? 1 : 0;
    at = count;
    first = i;
  }
  printf("us a layer, %s:", way_names[of]);
  double all = 0;
  for (uint32_t i = 0; i < at; i++) {
    printf(" %s %.1f,", mgl_op_info_of((mgl_op_kind)kinds[i])->name, us[i] / layers);
    all += us[i] / layers;
  }
  printf(" all %.1f\n", all);
}

static void measure_prefill(speed_side *s) {
  const ranks_speed_options *o = s->options;
  int32_t *prompt = gpu_must_alloc(o->prefill, sizeof *prompt);
  double rounds[2][MOST_ROUNDS] = {{0}};
  int32_t tokens[2] = {0};
  for (uint32_t i = 0; i < o->prefill; i++) {
    prompt[i] = gpu_model_token(&s->model, i);
  }
  for (uint32_t round = 0; round < o->rounds; round++) {
    for (way of = ONE; of <= SEVERAL; of++) {
      prefilled f = prefill(s, of, prompt);
      rounds[of][round] = f.ms;
      tokens[of] = f.token;
      if (round + 1 == o->rounds) {
        print_stages(s, of);
      }
    }
  }
  const double one = gpu_median(rounds[ONE], o->rounds);
  const double several = gpu_median(rounds[SEVERAL], o->rounds);
  printf(
      "\nA prompt of %u tokens: %.2f ms on one GPU, %.2f ms on several: %.2f times as fast; its "
      "next token %d, %d.\n",
      o->prefill, one, several, one / several, tokens[ONE], tokens[SEVERAL]);
  (void)fflush(stdout);
  mgl_free(prompt);
}

// One model in one process, since ranks are started before CUDA is opened.
void gpu_ranks_speed_run(gpu_bench *bench, int count, char **arguments) {
  ranks_speed_options o;
  mgl_error err = {0};
  speed_side s = {.bench = bench, .options = &o, .followed = SEVERAL};
  if (!read_options(count, arguments, &o)) {
    gpu_check(bench, false,
              "ranks_speed: expected a model's folder, batches of 1 to %d, 1 to %d rounds",
              MGL_CUDA_MAX_TOKENS, MOST_ROUNDS);
    return;
  }
  gpu_model_open(o.folder, &s.model);
  gpu_must(mgl_cuda_ranks_start(o.ranks, NULL, &s.ranks, &err), &err);
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
  if (o.prefill > 0 && o.prefill <= o.tokens) {
    measure_prefill(&s);
  }
  for (way of = ONE; of < WAYS; of++) {
    mgl_cuda_program_destroy(s.programs[of]);
  }
  mgl_ranks_stop(s.ranks);
  gpu_model_close(&s.model);
}
