// Schedules of all lowerings, of models and of random programs, proven by the verifier; and mutated
// ones, of which it must find every one.
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compile/compile.h"
#include "lower/choose.h"
#include "lower/schedule.h"
#include "lower/stages.h"
#include "lower/words.h"
#include "model/config.h"
#include "support/bench_model.h"
#include "support/must.h"
#include "support/programs.h"
#include "support/random_program.h"
#include "support/reference_model.h"
#include "twin/device_run.h"
#include "twin/wide_run.h"

#ifdef MGL_TEST_SANITIZED
enum { PROGRAMS = 40, MUTATIONS = 500, SAMPLES = 1, MODEL_STEP = 5 };
#else
enum { PROGRAMS = 200, MUTATIONS = 3000, SAMPLES = 2, MODEL_STEP = 1 };
#endif

static mgl_task_graph *compile_graph(const mgl_graph *program, mgl_target target, uint32_t tokens,
                                     uint32_t workers) {
  const mgl_compile_options options = {.target = target, .tokens = tokens, .workers = workers};
  mgl_task_graph *graph = NULL;
  MUST(mgl_compile(program, &options, &graph, NULL, &err));
  return graph;
}

// Calls `judge` with the schedule, and destroys it.
typedef void judge_function(const mgl_graph *program, mgl_schedule *schedule, void *context);

static void verify(const mgl_graph *program, mgl_schedule *schedule, void *context) {
  uint32_t *count = context;
  MUST(mgl_schedule_verify(program, schedule, &err));
  count[schedule->lowering]++;
}

static void judge_graph(const mgl_graph *program, mgl_target target, uint32_t tokens,
                        uint32_t workers, judge_function *judge, void *context) {
  mgl_task_graph *graph = compile_graph(program, target, tokens, workers);
  mgl_schedule *schedule = NULL;
  MUST(mgl_lower_graph(program, graph, MGL_LOWER_TASKS, &schedule, &err));
  judge(program, schedule, context);
  mgl_schedule_destroy(schedule);
  if (target == MGL_TARGET_CUDA && mgl_words_carry(program, graph)) {
    MUST(mgl_lower_graph(program, graph, MGL_LOWER_WORDS, &schedule, &err));
    judge(program, schedule, context);
    mgl_schedule_destroy(schedule);
  }
  mgl_task_graph_destroy(graph);
}

static void judge_tiles(const mgl_graph *program, uint32_t tokens, uint32_t tile, uint32_t workers,
                        judge_function *judge, void *context) {
  mgl_schedule *schedule = NULL;
  const mgl_stages_options options = {tokens, tile, tokens < 1024 ? tokens : 1024, workers};
  MUST(mgl_lower_stages(program, &options, &schedule, &err));
  judge(program, schedule, context);
  mgl_schedule_destroy(schedule);
}

// With tiles of all sizes that iterations of so many tokens may have.
static void judge_stages(const mgl_graph *program, uint32_t tokens, uint32_t workers,
                         judge_function *judge, void *context) {
  uint32_t most = tokens < MGL_WIDE_MOST_TILE ? tokens : (uint32_t)MGL_WIDE_MOST_TILE;
  uint32_t least = tokens <= MGL_WIDE_MOST_TILE ? (uint32_t)MGL_WIDE_LEAST_TILE : most;
  for (uint32_t tile = most; tile >= least;
       tile = tile == MGL_WIDE_MIDDLE_TILE ? (uint32_t)MGL_WIDE_LEAST_TILE : tile / 2) {
    judge_tiles(program, tokens, tile, workers, judge, context);
  }
}

static void judge_kernels(const mgl_graph *program, uint32_t tokens, uint32_t workers,
                          bool plan_at_logits, judge_function *judge, void *context) {
  mgl_kernels_options options = {tokens, tokens, workers, 4, plan_at_logits};
  mgl_schedule *schedule = NULL;
  MUST(mgl_lower_kernels(program, &options, &schedule, &err));
  judge(program, schedule, context);
  mgl_schedule_destroy(schedule);
}

// --- schedules -----------------------------------------------------------------------------------

static void schedules_of_models_are_right(void **state) {
  (void)state;
  static const char *const models[] = {"qwen3-0.6b", "llama-3.2-1b", "qwen3-1.7b", "qwen3-8b"};
  random_source source = {1};
  uint32_t counts[MGL_LOWER_COUNT] = {0};
  for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
    mgl_graph *program = fused_model(models[m]);
    for (uint32_t log = 0; log <= 11; log++) {
      uint32_t tokens = UINT32_C(1) << log;
      for (uint32_t i = 0; i < SAMPLES; i++) {
        uint32_t workers = i == 0 ? 132 : 1 + random_below(&source, 132);
        if (tokens <= 16 && (i == 0 || m == 0)) {
          uint32_t words = counts[MGL_LOWER_WORDS];
          judge_graph(program, MGL_TARGET_CUDA, tokens, workers, verify, counts);
          assert_true(i > 0 || counts[MGL_LOWER_WORDS] == words + 1);
        }
        if (tokens >= MGL_WIDE_LEAST_TILE) {
          judge_stages(program, tokens, workers, verify, counts);
        }
        judge_kernels(program, tokens, workers, i % 2 != 0, verify, counts);
      }
    }
    judge_stages(program, MGL_WIDE_MIDDLE_TILE, 132, verify, counts);
    for (uint32_t tiles = 3; tiles < 8; tiles += tiles == 3 ? 2 : 1) {  // between powers of two
      judge_stages(program, tiles * MGL_WIDE_MOST_TILE, 132, verify, counts);
    }
    mgl_graph_destroy(program);
  }
  for (uint32_t i = 0; i < MGL_LOWER_COUNT; i++) {
    print_message("%s: %u schedules\n", mgl_lowering_name((mgl_lowering)i), counts[i]);
    assert_true(counts[i] > 0);
  }
}

// Of a rank of several: parts of sums of all of them, and logits that all of them make.
static void schedules_of_ranks_are_right(void **state) {
  (void)state;
  static const char *const models[] = {"llama-3.2-1b", "qwen3-8b"};
  uint32_t counts[MGL_LOWER_COUNT] = {0};
  for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
    mgl_graph *canonical = bench_model(models[m]);
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
      mgl_graph *program = fused_part(canonical, ranks);
      for (uint32_t tokens = MGL_WIDE_LEAST_TILE; tokens <= 2048; tokens *= 2) {
        judge_stages(program, tokens, 132, verify, counts);
        judge_stages(program, tokens, 7, verify, counts);
      }
      mgl_graph_destroy(program);
    }
    mgl_graph_destroy(canonical);
  }
  assert_int_equal(counts[MGL_LOWER_STAGES], 2 * 3 * 9 * 2);
}

// What is chosen for an iteration of some number of tokens, by some number of workers. Programs of
// which the portable kernels have no large iterations get the others.
static void judge_iteration(const mgl_graph *program, mgl_target target, bool kernels,
                            uint32_t most_tokens, random_source *source, uint32_t *counts) {
  uint32_t tokens = 1 + random_below(source, most_tokens);
  const mgl_iteration_options options = {
      .compile = {.target = target,
                  .tokens = tokens,
                  .logit_rows = 1 + random_below(source, tokens < 1024 ? tokens : 1024),
                  .workers = 1 + random_below(source, 132)},
      .few = random_below(source, 2) == 0 || !mgl_stages_run(program, false),
      .kernels = kernels};
  mgl_schedule *schedule = NULL;
  MUST(mgl_lower_iteration(program, &options, &schedule, &err));
  verify(program, schedule, counts);
  mgl_schedule_destroy(schedule);
}

// A model in all ways that it has of being run, of iterations of few, some and many tokens; most:
// of a task graph of the CPU. Whether a GPU has fused tasks for it.
static bool judge_model(const mgl_graph *canonical, uint32_t most, random_source *source,
                        uint32_t *counts) {
  mgl_graph *fused = NULL;
  mgl_error why = {0};
  MUST(mgl_fuse_ops(canonical, &fused, &err));
  judge_iteration(fused, MGL_TARGET_CPU, false, most, source, counts);
  mgl_graph_destroy(fused);
  judge_kernels(canonical, 1 + random_below(source, 2048), 1 + random_below(source, 132), false,
                verify, counts);
  mgl_status status = mgl_fuse_ops_cuda(canonical, &fused, &why);
  if (status != MGL_OK) {
    assert_int_equal(status, MGL_ERR_UNSUPPORTED);
    return false;
  }
  bool large = mgl_stages_cover(fused);
  for (uint32_t tokens = 16; tokens <= (large ? 2048 : MGL_CUDA_MAX_TOKENS); tokens *= 4) {
    judge_iteration(fused, MGL_TARGET_CUDA, false, tokens, source, counts);
  }
  judge_iteration(fused, MGL_TARGET_CUDA, true, 2048, source, counts);
  mgl_graph_destroy(fused);
  return true;
}

// Every model of bench/configs and of the oracle.
static void iterations_of_every_model_are_right(void **state) {
  (void)state;
  random_source source = {5};
  uint32_t counts[MGL_LOWER_COUNT] = {0};
  uint32_t models = 0;
  uint32_t covered = 0;
  DIR *folder = opendir(BENCH_CONFIGS);
  assert_non_null(folder);
  for (struct dirent *entry = NULL; (entry = readdir(folder)) != NULL;) {
    if (entry->d_name[0] != '.' && models++ % MODEL_STEP == 0) {
      mgl_graph *canonical = bench_model(entry->d_name);
      covered += judge_model(canonical, 32, &source, counts);
      mgl_graph_destroy(canonical);
    }
  }
  (void)closedir(folder);
  assert_true(models >= 9 && covered * MODEL_STEP >= 8);
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i += MODEL_STEP) {
    mgl_reference reference;
    MUST(mgl_reference_load(MGL_TEST_DATA "/reference", MGL_REFERENCE_NAMES[i], &reference, &err));
    mgl_graph *canonical =
        parsed_model(reference.config_json, strlen(reference.config_json), MGL_REFERENCE_NAMES[i]);
    covered += judge_model(canonical, 2048, &source, counts);
    models++;
    mgl_graph_destroy(canonical);
    mgl_reference_reset(&reference);
  }
  print_message(
      "%u models, %u with fused tasks on a GPU: %u schedules by tasks, %u by words, %u "
      "by stages, %u by kernels\n",
      models, covered, counts[MGL_LOWER_TASKS], counts[MGL_LOWER_WORDS], counts[MGL_LOWER_STAGES],
      counts[MGL_LOWER_KERNELS]);
  assert_true(covered >= (MODEL_STEP == 1 ? 13 : 2));
}

// Shapes that no model has, among them those that a GPU has no fused tasks for.
static mgl_config random_config(random_source *source) {
  mgl_config config = small_config((mgl_family)random_below(source, MGL_FAMILY_COUNT));
  config.layer_count = 1 + random_below(source, 4);
  config.kv_head_count = 1 + random_below(source, 4);
  config.head_count = config.kv_head_count * (1 + random_below(source, 8));
  config.head_dim = 32 * (1 + random_below(source, 4));
  config.hidden_size = 8 * (1 + random_below(source, 600));
  config.intermediate_size = 8 * (1 + random_below(source, 900));
  config.vocab_size = (random_below(source, 4) == 0 ? 1 : 8) * (1 + random_below(source, 5000));
  config.tie_word_embeddings = random_below(source, 2) == 0;
  return config;
}

static void iterations_of_random_models_are_right(void **state) {
  (void)state;
  random_source source = {6};
  uint32_t counts[MGL_LOWER_COUNT] = {0};
  uint32_t covered = 0;
  for (uint32_t i = 0; i < PROGRAMS; i++) {
    mgl_config config = random_config(&source);
    mgl_graph *canonical = build_program(&config);
    covered += judge_model(canonical, 64, &source, counts);
    mgl_graph_destroy(canonical);
  }
  print_message(
      "%u of %d with fused tasks on a GPU: %u schedules by tasks, %u by words, %u by "
      "stages, %u by kernels\n",
      covered, PROGRAMS, counts[MGL_LOWER_TASKS], counts[MGL_LOWER_WORDS], counts[MGL_LOWER_STAGES],
      counts[MGL_LOWER_KERNELS]);
  assert_true(covered >= PROGRAMS / 4 && counts[MGL_LOWER_WORDS] > 0);
}

// lacking: what large iterations lack first.
static void check_large_is_refused(const char *model, const char *lacking) {
  mgl_graph *program = fused_model(model);
  mgl_iteration_options options = {
      .compile = {.target = MGL_TARGET_CUDA, .tokens = 64, .workers = 132}, .few = true};
  mgl_schedule *schedule = NULL;
  mgl_error err = {0};
  assert_false(mgl_stages_cover(program));
  assert_int_equal(mgl_lower_iteration(program, &options, &schedule, &err), MGL_OK);
  assert_true(schedule->lowering == MGL_LOWER_TASKS || schedule->lowering == MGL_LOWER_WORDS);
  mgl_schedule_destroy(schedule);
  options.compile.tokens = 65;
  assert_int_equal(mgl_lower_iteration(program, &options, &schedule, &err), MGL_ERR_UNSUPPORTED);
  assert_string_equal(err.text,
                      "cuda: expected iterations of at most 64 tokens, since larger ones "
                      "have no kernels for this model's ops, found 65");
  const mgl_stages_options stages = {128, 128, 128, 132};
  assert_int_equal(mgl_lower_stages(program, &stages, &schedule, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, lacking));
  mgl_graph_destroy(program);
}

// Of windows and sinks there are no large iterations: lowering refuses them, and does not leave
// windows out.
static void large_iterations_of_windows_are_refused(void **state) {
  (void)state;
  check_large_is_refused("gpt-oss-20b", "no kernel for op 4, attend of \"0.attention\"");
}

static mgl_graph *mixture_program(void) {
  mgl_config config = small_config(MGL_FAMILY_QWEN3_MOE);
  mgl_graph *program = NULL;
  config.hidden_size = 1024;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 64;
  config.vocab_size = 512;
  config.mixture = (mgl_mixture){
      .expert_count = 16, .slots = 8, .inner_size = 128, .renormalise = true, .scale = 1};
  mgl_graph *canonical = build_program(&config);
  MUST(mgl_fuse_ops_cuda(canonical, &program, &err));
  mgl_graph_destroy(canonical);
  assert_true(mgl_stages_run(program, true) && !mgl_stages_run(program, false));
  return program;
}

static mgl_graph *small_program(mgl_family family) {
  mgl_config config = small_config(family);
  mgl_graph *program = NULL;
  config.vocab_size = 304;  // a multiple of 8
  mgl_graph *canonical = build_program(&config);
  MUST(mgl_fuse_ops_cuda(canonical, &program, &err));
  mgl_graph_destroy(canonical);
  return program;
}

// Every number of workers, with a small model.
static void any_workers_do(void **state) {
  (void)state;
  uint32_t counts[MGL_LOWER_COUNT] = {0};
  mgl_graph *program = small_program(MGL_FAMILY_QWEN3);
  for (uint32_t workers = 1; workers <= 132; workers++) {
    judge_graph(program, MGL_TARGET_CUDA, UINT32_C(1) << workers % 7, workers, verify, counts);
    judge_stages(program, UINT32_C(64) << workers % 6, workers, verify, counts);
  }
  mgl_graph_destroy(program);
  program = mixture_program();
  for (uint32_t workers = 1; workers <= 132; workers += 7) {
    judge_stages(program, UINT32_C(64) << workers % 6, workers, verify, counts);
    judge_tiles(program, UINT32_C(256) << workers % 4, 192, workers, verify, counts);
  }
  mgl_graph_destroy(program);
}

static void schedules_of_random_programs_are_right(void **state) {
  (void)state;
  uint32_t counts[MGL_LOWER_COUNT] = {0};
  random_source source = {2};
  for (uint32_t seed = 0; seed < PROGRAMS; seed++) {
    bool cuda = seed % 2 != 0;
    mgl_graph *program = cuda ? random_cuda_program(seed, 4 + random_below(&source, 12))
                              : random_program(seed, 4 + random_below(&source, 12));
    judge_graph(program, cuda ? MGL_TARGET_CUDA : MGL_TARGET_CPU, 1 + random_below(&source, 9),
                1 + random_below(&source, 9), verify, counts);
    mgl_graph_destroy(program);
  }
  print_message("%u by tasks, %u by words\n", counts[MGL_LOWER_TASKS], counts[MGL_LOWER_WORDS]);
}

// Two attends that have one KV cache: the second one waits for what the first one writes there, and
// no word says when that is. (Of 1500 programs two are like that, and carried words.)
static void words_are_not_used_where_they_say_too_little(void **state) {
  (void)state;
  static const struct { uint32_t seed, ops, tokens; } cases[] = {{348, 7, 12}, {796, 12, 6}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint32_t counts[MGL_LOWER_COUNT] = {0};
    mgl_graph *program = random_cuda_program(cases[i].seed, cases[i].ops);
    judge_graph(program, MGL_TARGET_CUDA, cases[i].tokens, 16, verify, counts);
    assert_int_equal(counts[MGL_LOWER_TASKS], 1);
    assert_int_equal(counts[MGL_LOWER_WORDS], 0);
    mgl_graph_destroy(program);
  }
}

// A launch for every op of programs that are not fused: what plain kernels run.
static void schedules_of_plain_kernels_are_right(void **state) {
  (void)state;
  uint32_t counts[MGL_LOWER_COUNT] = {0};
  random_source source = {4};
  for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
    mgl_config config = small_config((mgl_family)family);
    mgl_graph *program = build_program(&config);
    for (uint32_t tokens = 1; tokens <= 2048; tokens *= 2) {
      judge_kernels(program, tokens - random_below(&source, (tokens + 1) / 2),
                    1 + random_below(&source, 132), false, verify, counts);
    }
    mgl_graph_destroy(program);
  }
  for (uint32_t seed = 0; seed < PROGRAMS; seed++) {
    mgl_graph *program = random_program(seed, 4 + random_below(&source, 12));
    judge_kernels(program, 1 + random_below(&source, 9), 1 + random_below(&source, 9), false,
                  verify, counts);
    mgl_graph_destroy(program);
  }
  assert_int_equal(counts[MGL_LOWER_KERNELS], MGL_FAMILY_COUNT * 12 + PROGRAMS);
}

// --- mutations -----------------------------------------------------------------------------------

typedef enum mutation {
  MUTATE_BEGIN,
  MUTATE_END,
  MUTATE_OP,
  MUTATE_WORKER,
  MUTATE_LIST,
  MUTATE_NO_WAIT,
  MUTATE_EARLIER_WAIT,
  MUTATE_COUNT,
  MUTATE_NO_TRIGGER,
  MUTATE_TRIGGER,
  MUTATE_SPLITS,
  MUTATE_FLAGS,
  MUTATE_UNITS,
  MUTATE_WITH,
  MUTATE_SWAP_OPS,
  MUTATE_SHARED,
  MUTATE_KIND,
  MUTATE_STAGE,
  MUTATE_ROWS,
  MUTATE_TILES,
  MUTATE_OF,
  MUTATE_WAIT,
  MUTATE_TWICE,
  MUTATE_LIST_START,
  MUTATE_ROOM,
  MUTATION_COUNT,
} mutation;

static const char *const mutation_names[MUTATION_COUNT] = {
    "begin",    "end",        "op",         "worker", "list",  "no wait", "earlier wait",
    "count",    "no trigger", "trigger",    "splits", "flags", "units",   "with",
    "swap ops", "shared",     "kind",       "stage",  "rows",  "tiles",   "of",
    "wait",     "twice",      "list start", "room"};

static void add_or_take(uint32_t *number, random_source *source) {
  *number += *number > 0 && random_below(source, 2) == 0 ? UINT32_MAX : 1;
}

// Of steps. False: it cannot be done at that step.
static bool mutate_step(mgl_schedule *s, mutation how, random_source *source) {
  uint32_t at = random_below(source, s->step_count);
  mgl_schedule_step *step = &s->steps[at];
  switch (how) {
    case MUTATE_BEGIN: add_or_take(&step->begin, source); return step->op != MGL_NO_OP;
    case MUTATE_END: add_or_take(&step->end, source); return step->op != MGL_NO_OP;
    case MUTATE_OP:
      step->op = (step->op + 1) % s->op_count;
      return step->op != MGL_NO_OP && s->op_count > 1;
    case MUTATE_WORKER:
      if (step->worker == MGL_SCHEDULE_ANYONE) {
        return false;
      }
      step->worker = step->worker + 1;
      return true;
    case MUTATE_NO_WAIT:
      if (step->wait == MGL_WAIT_NOTHING) {
        return false;
      }
      step->wait = MGL_WAIT_NOTHING;
      step->event = MGL_NO_EVENT;
      return true;
    case MUTATE_EARLIER_WAIT:
      if (step->event == MGL_NO_EVENT || step->event == 0 ||
          (s->lowering != MGL_LOWER_STAGES && s->lowering != MGL_LOWER_KERNELS)) {
        return false;
      }
      step->event--;
      return true;
    case MUTATE_NO_TRIGGER:
      if (step->trigger == MGL_NO_EVENT) {
        return false;
      }
      step->trigger = MGL_NO_EVENT;
      return true;
    case MUTATE_TRIGGER:
      if (step->trigger == MGL_NO_EVENT) {
        return false;
      }
      step->trigger = (step->trigger + 1) % (s->event_count + 1);
      return true;
    case MUTATE_WAIT: {  // in another lowering's manner
      mgl_wait other = (mgl_wait)random_below(source, MGL_WAIT_KERNEL + 1);
      if (other == MGL_WAIT_NOTHING || other == step->wait ||
          (s->lowering == MGL_LOWER_WORDS && other == MGL_WAIT_WORDS)) {
        return false;
      }
      step->wait = other;
      return true;
    }
    case MUTATE_TWICE:
      if (at == 0 || step->op == MGL_NO_OP || s->steps[at - 1].op != step->op) {
        return false;
      }
      step->begin = s->steps[at - 1].begin;
      step->end = s->steps[at - 1].end;
      return true;
    default: return false;
  }
}

static bool mutate_op(mgl_schedule *s, mutation how, random_source *source) {
  uint32_t at = random_below(source, s->op_count);
  mgl_schedule_op *op = &s->ops[at];
  switch (how) {
    case MUTATE_SPLITS: add_or_take(&op->splits, source); return true;
    case MUTATE_FLAGS: {
      static const uint32_t flags[] = {MGL_WIDE_GATHERS, MGL_WIDE_WEIGHS,  MGL_WIDE_ROTATES,
                                       MGL_WIDE_TURNED,  MGL_WIDE_RESUMES, MGL_WIDE_WANTED,
                                       MGL_WIDE_WIDENED, MGL_WIDE_BESIDE};
      op->flags ^= flags[random_below(source, 8)];
      return true;
    }
    case MUTATE_UNITS: add_or_take(&op->units, source); return true;
    case MUTATE_WITH: op->with = op->with == MGL_NO_OP ? 0 : op->with - 1; return true;
    case MUTATE_SWAP_OPS: {
      uint32_t other = random_below(source, s->op_count);
      mgl_schedule_op kept = s->ops[other];
      if (other == at) {
        return false;
      }
      s->ops[other] = *op;
      *op = kept;
      return true;
    }
    case MUTATE_SHARED:
      if (op->first_shared == MGL_NOT_SHARED || s->lowering != MGL_LOWER_STAGES) {
        return false;
      }
      if (random_below(source, 2) == 0) {
        op->first_shared = MGL_NOT_SHARED;
      } else {
        add_or_take(&op->first_shared, source);
      }
      return true;
    case MUTATE_KIND: op->kind = (op->kind + 1) % MGL_OP_COUNT; return true;
    case MUTATE_STAGE:
      add_or_take(&op->stage, source);
      return s->lowering == MGL_LOWER_STAGES || s->lowering == MGL_LOWER_KERNELS;
    case MUTATE_ROWS: add_or_take(&op->rows, source); return true;
    case MUTATE_TILES: add_or_take(&op->tiles, source); return true;
    case MUTATE_OF: add_or_take(&op->op, source); return true;
    default: return false;
  }
}

static bool mutate(mgl_schedule *s, mutation how, random_source *source) {
  if (how == MUTATE_LIST) {
    uint32_t listed = s->list_start[s->worker_count];
    if (listed < 2) {
      return false;
    }
    uint32_t at = random_below(source, listed - 1);
    uint32_t kept = s->list[at];
    s->list[at] = s->list[at + 1];
    s->list[at + 1] = kept;
    return true;
  }
  if (how == MUTATE_COUNT) {
    add_or_take(&s->events[random_below(source, s->event_count)].trigger_count, source);
    return true;
  }
  if (how == MUTATE_LIST_START) {
    add_or_take(&s->list_start[random_below(source, s->worker_count + 1)], source);
    return true;
  }
  if (how == MUTATE_ROOM && s->inbox_bytes > 0 && random_below(source, 2) == 0) {
    s->inbox_bytes--;
    return true;
  }
  if (how == MUTATE_ROOM && s->widened_bytes > 0 && random_below(source, 2) == 0) {
    s->widened_bytes--;
    return true;
  }
  if (how == MUTATE_ROOM) {
    bool sums = random_below(source, 2) == 0;
    if (s->shared_tiles == 0 || s->part_bytes == 0) {
      return false;
    }
    s->part_bytes -= sums ? 1 : 0;
    s->shared_tiles -= sums ? 0 : 1;
    return true;
  }
  bool step = how < MUTATE_SPLITS || how == MUTATE_WAIT || how == MUTATE_TWICE;
  return step ? mutate_step(s, how, source) : mutate_op(s, how, source);
}

typedef struct mutants {
  random_source source;
  uint32_t found[MUTATION_COUNT][MGL_LOWER_COUNT], missed;
  uint32_t tries;  // of a schedule
} mutants;

static void find_mutants(const mgl_graph *program, mgl_schedule *s, void *context) {
  mutants *m = context;
  MUST(mgl_schedule_verify(program, s, &err));
  size_t op_bytes = s->op_count * sizeof *s->ops;
  size_t step_bytes = s->step_count * sizeof *s->steps;
  size_t event_bytes = s->event_count * sizeof *s->events;
  size_t list_bytes = s->step_count * sizeof *s->list;
  size_t start_bytes = (s->worker_count + (size_t)1) * sizeof *s->list_start;
  void *ops = malloc(op_bytes), *steps = malloc(step_bytes), *events = malloc(event_bytes);
  void *list = malloc(list_bytes), *start = malloc(start_bytes);
  const mgl_schedule kept = *s;
  assert_true(ops != NULL && steps != NULL && events != NULL && list != NULL && start != NULL);
  memcpy(ops, s->ops, op_bytes);
  memcpy(steps, s->steps, step_bytes);
  memcpy(events, s->events, event_bytes);
  memcpy(list, s->list, list_bytes);
  memcpy(start, s->list_start, start_bytes);
  for (uint32_t i = 0; i < m->tries; i++) {
    mutation how = (mutation)random_below(&m->source, MUTATION_COUNT);
    mgl_error err = {0};
    if (mutate(s, how, &m->source)) {
      if (mgl_schedule_verify(program, s, &err) == MGL_OK) {
        print_message("missed: %s in %s for %u tokens\n", mutation_names[how],
                      mgl_lowering_name(s->lowering), s->tokens);
        m->missed++;
      } else {
        assert_true(strncmp(err.text, "schedule: ", 10) == 0);
        m->found[how][s->lowering]++;
      }
    }
    memcpy(s->ops, ops, op_bytes);
    memcpy(s->steps, steps, step_bytes);
    memcpy(s->events, events, event_bytes);
    memcpy(s->list, list, list_bytes);
    memcpy(s->list_start, start, start_bytes);
    *s = kept;
  }
  free(ops);
  free(steps);
  free(events);
  free(list);
  free(start);
}

// Whether a lowering's schedules have what the mutation changes.
static bool applies(mutation how, mgl_lowering lowering) {
  bool kernels = lowering == MGL_LOWER_KERNELS;
  switch (how) {
    case MUTATE_WORKER:
    case MUTATE_LIST:
    case MUTATE_TWICE: return !kernels;
    case MUTATE_EARLIER_WAIT:
    case MUTATE_STAGE: return kernels || lowering == MGL_LOWER_STAGES;
    case MUTATE_SHARED:
    case MUTATE_ROOM: return lowering == MGL_LOWER_STAGES;
    default: return true;
  }
}

static void find_mutants_of_models(mutants *m) {
  mgl_graph *mixture = mixture_program();
  judge_stages(mixture, 64, 5, find_mutants, m);
  judge_stages(mixture, 128, 40, find_mutants, m);
  judge_tiles(mixture, 256, MGL_WIDE_MOST_EXPERTS_TILE, 9, find_mutants, m);
  mgl_graph_destroy(mixture);
  for (int family = 0; family < 3; family++) {
    mgl_graph *program = small_program((mgl_family)family);
    judge_graph(program, MGL_TARGET_CUDA, 1, 7, find_mutants, m);
    judge_graph(program, MGL_TARGET_CUDA, 4, 3, find_mutants, m);
    judge_stages(program, 64, 5, find_mutants, m);
    judge_stages(program, 64, 40, find_mutants, m);
    judge_stages(program, 192, 9, find_mutants, m);
    judge_stages(program, 256, 9, find_mutants, m);
    judge_stages(program, 512, 3, find_mutants, m);  // tiles that two steps share
    judge_kernels(program, 2, 9, false, find_mutants, m);
    judge_kernels(program, 2, 9, true, find_mutants, m);
    mgl_graph_destroy(program);
  }
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.hidden_size = 256;
  config.intermediate_size = 512;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.vocab_size = 512;
  mgl_graph *canonical = build_program(&config);
  mgl_graph *part = fused_part(canonical, 2);
  judge_stages(part, 64, 5, find_mutants, m);
  judge_stages(part, 64, 40, find_mutants, m);
  judge_stages(part, 256, 9, find_mutants, m);
  judge_stages(part, 256, 7, find_mutants, m);   // the rotation beside qkv_proj's last tile
  judge_stages(part, 2048, 7, find_mutants, m);  // chains through attention
  mgl_graph_destroy(part);
  mgl_graph_destroy(canonical);
}

// Weights of codes that become bf16, and that do not.
static void find_mutants_of_codes(mutants *m) {
  mgl_graph *program = coded_program(192, 320);
  judge_stages(program, 256, 9, find_mutants, m);
  judge_stages(program, 512, 40, find_mutants, m);
  mgl_graph_destroy(program);
}

// Of programs as they are: of one whose ops no GPU task covers, of one with experts, and of random
// ones.
static void find_mutants_of_others(mutants *m) {
  mgl_config config = small_config(MGL_FAMILY_PHI);
  mgl_graph *plain = build_program(&config);
  judge_kernels(plain, 3, 9, false, find_mutants, m);
  judge_graph(plain, MGL_TARGET_CPU, 3, 5, find_mutants, m);
  mgl_graph_destroy(plain);
  mgl_reference reference;
  MUST(mgl_reference_load(MGL_TEST_DATA "/reference", "mixtral_2_of_4", &reference, &err));
  plain = parsed_model(reference.config_json, strlen(reference.config_json), reference.name);
  mgl_reference_reset(&reference);
  judge_kernels(plain, 3, 9, false, find_mutants, m);
  judge_graph(plain, MGL_TARGET_CPU, 3, 5, find_mutants, m);
  mgl_graph_destroy(plain);
  for (uint32_t seed = 0; seed < 4; seed++) {
    mgl_graph *program = random_program(seed, 8);
    judge_graph(program, MGL_TARGET_CPU, 4, 3, find_mutants, m);
    judge_kernels(program, 4, 3, false, find_mutants, m);
    mgl_graph_destroy(program);
  }
}

static void every_mutation_is_found(void **state) {
  (void)state;
  mutants m = {.source = {3}, .tries = MUTATIONS / 10};
  find_mutants_of_models(&m);
  find_mutants_of_codes(&m);
  find_mutants_of_others(&m);
  uint32_t all = 0;
  print_message("%-14s %7s %7s %7s %7s\n", "found", "tasks", "words", "stages", "kernels");
  for (uint32_t i = 0; i < MUTATION_COUNT; i++) {
    const uint32_t *found = m.found[i];
    print_message("%-14s %7u %7u %7u %7u\n", mutation_names[i], found[MGL_LOWER_TASKS],
                  found[MGL_LOWER_WORDS], found[MGL_LOWER_STAGES], found[MGL_LOWER_KERNELS]);
    for (uint32_t j = 0; j < MGL_LOWER_COUNT; j++) {
      assert_int_equal(found[j] > 0, applies((mutation)i, (mgl_lowering)j));
      all += found[j];
    }
  }
  print_message("%u of %u mutations found\n", all, all + m.missed);
  assert_int_equal(m.missed, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(schedules_of_models_are_right),
      cmocka_unit_test(schedules_of_ranks_are_right),
      cmocka_unit_test(iterations_of_every_model_are_right),
      cmocka_unit_test(iterations_of_random_models_are_right),
      cmocka_unit_test(large_iterations_of_windows_are_refused),
      cmocka_unit_test(any_workers_do),
      cmocka_unit_test(schedules_of_random_programs_are_right),
      cmocka_unit_test(words_are_not_used_where_they_say_too_little),
      cmocka_unit_test(schedules_of_plain_kernels_are_right),
      cmocka_unit_test(every_mutation_is_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
