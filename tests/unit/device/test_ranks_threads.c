// Ranks of one model as threads of one process: the same task graphs, kernels and protocol as those
// of cpu_ranks.h, whose processes a thread sanitizer does not see together. Here it sees every access
// to another rank's parts and counters, and reports those that no trigger, or no plan, has ordered.
// Tasks are held up at random; all ranks must have the same logits, whatever the launches.
//
// What cpu_ranks.c does for plans is done here upon words of this process (share_plan).
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "compile/compile.h"
#include "compile/shard.h"
#include "device/cpu/cpu_mega.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/cpu_tasks.h"
#include "device/cpu/cpu_wait.h"
#include "support/programs.h"

enum {
  GRAPHS = 2,  // of 1 token and of 16
  TOKENS = 16,
  PROMPT = 11,
  ITERATIONS = 24,
  VOCAB = 320,
  COUNTERS = 4096,
  BLOCK_BYTES = 1 << 20,
};

typedef struct world world;

typedef struct rank_bed {
  world *world;
  uint32_t rank;
  mgl_team *team;
  mgl_cpu_weights weights;
  mgl_cpu_memory *memory;
  mgl_cpu_program *programs[GRAPHS];
  mgl_plan *plan;
  mgl_cpu_mega *mega;
  mgl_word done;  // plans that it is done with, and waits for the next one
  mgl_status status;
  mgl_error error;
  _Alignas(64) mgl_word counters[COUNTERS];
  _Alignas(64) unsigned char activations[BLOCK_BYTES];
  float logits[ITERATIONS][VOCAB];
} rank_bed;

struct world {
  uint32_t ranks;
  mgl_topology *topology;
  mgl_graph *cut, *fused;
  mgl_task_graph *graphs[GRAPHS];
  mgl_word posted;  // plans of rank 0
};

static rank_bed beds[MGL_MAX_RANKS];

static void rest(long ns) {
  (void)nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

// --- callbacks of a rank's megakernel ------------------------------------------------------------

static uint32_t graph_of(const world *w, const mgl_task_graph *graph) {
  return graph == w->graphs[0] ? 0 : 1;
}

static void run_task(void *context, uint32_t worker, const mgl_task_graph *graph,
                     const mgl_task *task) {
  rank_bed *b = context;
  const uint32_t hash = (task->op * 31 + task->begin) * 2654435761u + b->rank * 40503u;
  if (hash >> 29 == 0) {  // one in eight, others on each rank
    rest((hash & 0xff) * 200);
  }
  mgl_cpu_task_run(b->programs[graph_of(b->world, graph)], worker, task->op, task->begin,
                   task->end);
}

// mgl_ranks_post and mgl_ranks_take.
static void share_plan(rank_bed *b) {
  world *w = b->world;
  if (b->rank != 0) {
    mgl_store_release(&b->done, mgl_load_relaxed(&b->done) + 1);
    while (mgl_load_acquire(&w->posted) != mgl_load_relaxed(&b->done)) {
      rest(1000);
    }
    return;
  }
  for (uint32_t rank = 1; rank < w->ranks; rank++) {
    while (mgl_load_acquire(&beds[rank].done) != mgl_load_relaxed(&w->posted) + 1) {
      rest(1000);
    }
  }
  mgl_store_release(&w->posted, mgl_load_relaxed(&w->posted) + 1);
}

// A prompt and single tokens behind it, in turn.
static void make_plan(rank_bed *b, uint64_t iteration) {
  static const int32_t pages[] = {1, 0, 3, 2};
  int32_t tokens[PROMPT];
  const uint32_t step = (uint32_t)iteration % 4;
  for (uint32_t i = 0; i < PROMPT; i++) {
    tokens[i] = (int32_t)((i * 37 + step * 11 + 5) % VOCAB);
  }
  mgl_plan_clear(b->plan);
  mgl_plan_add(b->plan, &(mgl_plan_chunk){.tokens = tokens,
                                          .token_count = step == 0 ? PROMPT : 1,
                                          .position = step == 0 ? 0 : PROMPT + step - 1,
                                          .pages = pages,
                                          .page_count = 4,
                                          .logits = MGL_LOGITS_LAST});
}

static int next_plan(void *context, uint64_t iteration) {
  rank_bed *b = context;
  if (iteration > 0) {
    const mgl_cpu_program *last = b->programs[(iteration - 1) % 4 == 0 ? 1 : 0];
    memcpy(b->logits[iteration - 1], mgl_cpu_program_tensor(last, last->logits),
           sizeof b->logits[0]);
  }
  share_plan(b);
  if (iteration == ITERATIONS) {
    return -1;
  }
  const int graph = iteration % 4 == 0 ? 1 : 0;
  make_plan(b, iteration);
  mgl_cpu_program_set_plan(b->programs[graph], b->plan);
  return graph;
}

// --- beds ----------------------------------------------------------------------------------------

static void open_world(world *w, uint32_t ranks, mgl_compile_options options) {
  mgl_config config = small_config(MGL_FAMILY_QWEN2);
  config.head_count = 8;
  config.kv_head_count = 2;
  config.vocab_size = VOCAB;
  config.output_bias = true;
  *w = (world){.ranks = ranks};
  MUST(mgl_topology_create(&w->topology, &err));
  mgl_graph *whole = build_program(&config);
  MUST(mgl_shard_program(whole, ranks, &w->cut, &err));
  MUST(mgl_fuse_ops(w->cut, &w->fused, &err));
  mgl_graph_destroy(whole);
  for (uint32_t i = 0; i < GRAPHS; i++) {
    options.tokens = i == 0 ? 1 : TOKENS;
    options.logit_rows = 1;
    MUST(mgl_compile(w->fused, &options, &w->graphs[i], NULL, &err));
    assert_true(w->graphs[i]->activation_bytes <= BLOCK_BYTES);
  }
}

static void open_bed(world *w, uint32_t rank, uint32_t schedulers) {
  rank_bed *b = &beds[rank];
  const mgl_plan_limits limits = {
      .tokens = TOKENS, .sequences = 1, .pages_per_sequence = 4, .page_tokens = 16};
  mgl_simd simd;
  memset(b, 0, sizeof *b);
  b->world = w;
  b->rank = rank;
  MUST(mgl_simd_choose(&simd, &err));
  MUST(mgl_team_create(w->topology, w->graphs[0]->worker_count + schedulers, &b->team, &err));
  MUST(mgl_cpu_weights_bind_rank(w->cut, NULL, MGL_WEIGHTS_DUMMY, 3, b->team, NULL, rank, NULL,
                                 &b->weights, &err));
  mgl_cpu_memory_options memory = {.page_tokens = 16,
                                   .page_count = 4,
                                   .workers = mgl_team_size(b->team),
                                   .rank = rank,
                                   .rank_count = w->ranks,
                                   .shared_bytes = BLOCK_BYTES};
  mgl_cpu_mega_options mega = mgl_cpu_mega_defaults();
  for (uint32_t i = 0; i < w->ranks; i++) {
    memory.shared[i] = beds[i].activations;
    mega.counters[i] = beds[i].counters;
  }
  MUST(mgl_cpu_memory_create(&b->weights, &memory, w->topology, &b->memory, &err));
  for (uint32_t i = 0; i < GRAPHS; i++) {
    const mgl_cpu_program_options program = {.simd = simd, .task_graph = w->graphs[i]};
    MUST(mgl_cpu_program_create(w->fused, b->memory, &program, &b->programs[i], &err));
  }
  MUST(mgl_plan_create(&limits, &b->plan, &err));
  mega.schedulers = schedulers;
  mega.rank = rank;
  mega.rank_count = w->ranks;
  mega.counter_capacity = COUNTERS;
  mega.context = b;
  mega.run_task = run_task;
  mega.next_plan = next_plan;
  MUST(mgl_cpu_mega_create((const mgl_task_graph *const *)w->graphs, GRAPHS, b->team, &mega,
                           &b->mega, &err));
}

static void close_all(world *w) {
  for (uint32_t rank = 0; rank < w->ranks; rank++) {
    rank_bed *b = &beds[rank];
    mgl_cpu_mega_destroy(b->mega);
    mgl_cpu_program_destroy(b->programs[0]);
    mgl_cpu_program_destroy(b->programs[1]);
    mgl_plan_destroy(b->plan);
    mgl_cpu_memory_destroy(b->memory);
    mgl_cpu_weights_release(&b->weights);
    mgl_team_destroy(b->team);
  }
  mgl_task_graph_destroy(w->graphs[0]);
  mgl_task_graph_destroy(w->graphs[1]);
  mgl_graph_destroy(w->fused);
  mgl_graph_destroy(w->cut);
  mgl_topology_destroy(w->topology);
}

static void *run_rank(void *context) {
  rank_bed *b = context;
  b->status = mgl_cpu_mega_run(b->mega, &b->error);
  return NULL;
}

// Rank by rank the same logits, in *out if it is the first time.
static void run_all(uint32_t ranks, uint32_t schedulers, mgl_compile_options options,
                    float out[ITERATIONS][VOCAB], bool first) {
  world w;
  pthread_t threads[MGL_MAX_RANKS];
  open_world(&w, ranks, options);
  for (uint32_t rank = 0; rank < ranks; rank++) {
    open_bed(&w, rank, schedulers);
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    assert_int_equal(pthread_create(&threads[rank], NULL, run_rank, &beds[rank]), 0);
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    (void)pthread_join(threads[rank], NULL);
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    if (beds[rank].status != MGL_OK) {
      fail_msg("rank %u: %s", rank, beds[rank].error.text);
    }
    if (first && rank == 0) {
      memcpy(out, beds[0].logits, sizeof beds[0].logits);
    }
    assert_memory_equal(beds[rank].logits, out, sizeof beds[rank].logits);
  }
  close_all(&w);
}

static void ranks_are_ordered_and_have_the_same_logits(void **state) {
  (void)state;
  static const struct {
    mgl_compile_options options;
    uint32_t schedulers;
  } ways[] = {{{.workers = 1}, 0},
              {{.workers = 2}, 0},
              {{.workers = 2, .launch = MGL_LAUNCH_JIT}, 0},
              {{.workers = 2, .launch = MGL_LAUNCH_JIT}, 1},
              {{.workers = 2, .launch = MGL_LAUNCH_AOT, .coarse = true}, 0}};
  static float logits[ITERATIONS][VOCAB];
  for (uint32_t ranks = 2; ranks <= 4; ranks *= 2) {
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
      run_all(ranks, ways[i].schedulers, ways[i].options, logits, i == 0);
    }
  }
}

int main(void) {
  static mgl_wait_place place;  // one for all: who wakes polls again
  mgl_wait_place *places[MGL_MAX_RANKS];
  for (uint32_t i = 0; i < MGL_MAX_RANKS; i++) {
    places[i] = &place;
  }
  mgl_wait_share(places, 0);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_are_ordered_and_have_the_same_logits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
