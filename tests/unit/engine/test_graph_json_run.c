// A task graph that went out as JSON and came in again runs to the same bits, executed by the
// megakernel: models of every family, with the compiler's and with random partitions of their ops,
// and 200 random tensor programs; graphs for several token counts, launches and workers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "device/build.h"
#include "device/cpu/cpu_mega.h"
#include "device/cpu/cpu_tasks.h"
#include "graph/family.h"
#include "support/must.h"
#include "support/random_program.h"

enum {
  VOCAB = 96,
  WORKERS = 3,
  PAGES = 8,
  PAGE_TOKENS = 16,
  RANDOM_PROGRAMS = 200,
  PARTITIONS = 4,
  MOST_GRAPHS = 5
};

static mgl_config small_config(mgl_family family) {
  return (mgl_config){.family = family,
                      .hidden_size = 64,
                      .intermediate_size = 112,
                      .layer_count = 2,
                      .head_count = 6,
                      .kv_head_count = 3,
                      .head_dim = 16,
                      .vocab_size = VOCAB,
                      .context_tokens = PAGES * PAGE_TOKENS,
                      .rms_norm_eps = 1e-6,
                      .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                      .qkv_bias = family == MGL_FAMILY_QWEN2,
                      .qk_norm = family == MGL_FAMILY_QWEN3,
                      .tie_word_embeddings = true,
                      .dtype = MGL_DTYPE_BF16,
                      .bos_id = -1};
}

// What one run needs; the graph is either the compiler's or the one read from JSON.
typedef struct fixture {
  mgl_topology *topology;
  mgl_team *team;
  mgl_graph *canonical;
  mgl_cpu_weights weights;
  mgl_plan *plan;
} fixture;

typedef struct one_run {
  mgl_cpu_program *program;
  const mgl_plan *plan;
} one_run;

static void run_task(void *context, uint32_t worker, const mgl_task_graph *graph,
                     const mgl_task *task) {
  const one_run *run = context;
  (void)graph;
  mgl_cpu_task_run(run->program, worker, task->op, task->begin, task->end);
}

static int next_plan(void *context, uint64_t iteration) {
  one_run *run = context;
  if (iteration > 0) {
    return -1;
  }
  mgl_cpu_program_set_plan(run->program, run->plan);
  return 0;
}

// Bytes of all outputs of a program under the plan, copied to `out` unless that is NULL.
static size_t copy_outputs(const fixture *f, const mgl_graph *graph, const mgl_cpu_program *program,
                           unsigned char *out) {
  mgl_dim_values values = {.tokens = f->plan->token_count,
                           .logit_rows = f->plan->logit_row_count,
                           .sequences = f->plan->sequence_count};
  size_t total = 0;
  for (uint32_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (tensor->is_output) {
      size_t bytes = (size_t)mgl_tensor_elements(tensor, &values) * mgl_dtype_bytes(tensor->dtype);
      if (out != NULL) {
        memcpy(out + total, mgl_cpu_program_tensor(program, i), bytes);
      }
      total += bytes;
    }
  }
  return total;
}

// Runs one iteration over fresh KV memory and copies the outputs.
static void run_graph(fixture *f, const mgl_graph *program, const mgl_task_graph *graph,
                      unsigned char *out) {
  mgl_cpu_memory *memory = NULL;
  mgl_cpu_mega *mega = NULL;
  one_run run = {.plan = f->plan};
  mgl_cpu_memory_options memory_options = {
      .page_tokens = PAGE_TOKENS, .page_count = PAGES, .workers = WORKERS};
  mgl_cpu_program_options options = {.simd = mgl_simd_detected(), .task_graph = graph};
  mgl_cpu_mega_options mega_options = mgl_cpu_mega_defaults();
  mega_options.context = &run;
  mega_options.run_task = run_task;
  mega_options.next_plan = next_plan;
  MUST(mgl_cpu_memory_create(&f->weights, &memory_options, f->topology, &memory, &err));
  MUST(mgl_cpu_program_create(program, memory, &options, &run.program, &err));
  MUST(mgl_cpu_mega_create(&graph, 1, f->team, &mega_options, &mega, &err));
  MUST(mgl_cpu_mega_run(mega, &err));
  (void)copy_outputs(f, program, run.program, out);
  mgl_cpu_mega_destroy(mega);
  mgl_cpu_program_destroy(run.program);
  mgl_cpu_memory_destroy(memory);
}

// Partitions of a program's kinds of ops, of some of them.
typedef struct partitions {
  mgl_compile_override items[MGL_OP_COUNT];
  uint32_t count;
} partitions;

static partitions random_partitions(const mgl_graph *program, random_source *source) {
  partitions out = {0};
  bool seen[MGL_OP_COUNT] = {false};
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (seen[op->kind] || random_below(source, 3) == 0) {
      continue;
    }
    seen[op->kind] = true;
    bool attention = mgl_op_info_of(op->kind)->unit == MGL_UNIT_HEAD;
    out.items[out.count++] = (mgl_compile_override){
        .op = mgl_op_info_of(op->kind)->name,
        .grid = {1 + random_below(source, 3), attention ? 1 + random_below(source, 4) : 1, 1}};
  }
  return out;
}

// What is run in the place of the compiler's: the graph that was read, with the numbers of the
// program that runs.
static mgl_task_graph *take(const mgl_graph *program, mgl_graph *read_program,
                            mgl_task_graph *read_graph) {
  const mgl_given_graph given = {.program = read_program, .graph = read_graph};
  const mgl_build build = {.given = &given, .given_count = 1};
  const mgl_sizes sizes = {.workers = WORKERS, .logit_rows = 1};
  mgl_task_graph *graphs[MOST_GRAPHS] = {NULL};
  mgl_task_graph *taken = NULL;
  MUST(mgl_build_take_given(&build, &sizes, MGL_TARGET_CPU, program, graphs, MOST_GRAPHS, &err));
  for (size_t i = 0; i < MOST_GRAPHS; i++) {
    taken = graphs[i] != NULL ? graphs[i] : taken;
  }
  assert_non_null(taken);
  return taken;
}

// The graph as it went out and came in, with these partitions, gives the bits of the compiler's
// own: as one of the program that was read, and of the one that it was made of.
static void check_graph(fixture *f, const mgl_graph *program, uint32_t tokens, mgl_launch launch,
                        const partitions *cut) {
  mgl_task_graph *graph = NULL;
  mgl_task_graph *read_graph = NULL;
  mgl_task_graph *own_graph = NULL;
  mgl_graph *read_program = NULL;
  mgl_text json = {0};
  mgl_compile_options options = {
      .tokens = tokens, .workers = WORKERS, .launch = launch, .verify = true};
  size_t bytes = copy_outputs(f, program, NULL, NULL);
  unsigned char *expected = malloc(bytes);
  unsigned char *found = malloc(bytes);
  assert_true(bytes > 0 && expected != NULL && found != NULL);
  MUST(mgl_compile(program, &options, &own_graph, NULL, &err));
  if (cut != NULL) {
    options.overrides = cut->items;
    options.override_count = cut->count;
  }
  MUST(mgl_compile(program, &options, &graph, NULL, &err));
  MUST(mgl_task_graph_write_json(program, graph, &json, &err));
  MUST(mgl_task_graph_read_json(json.data, json.bytes, "test", &read_program, &read_graph, &err));
  memset(expected, 0xff, bytes);
  memset(found, 0x77, bytes);
  run_graph(f, program, own_graph, expected);
  run_graph(f, read_program, read_graph, found);
  assert_memory_equal(expected, found, bytes);
  mgl_task_graph *taken = take(program, read_program, read_graph);
  memset(found, 0x77, bytes);
  run_graph(f, program, taken, found);
  assert_memory_equal(expected, found, bytes);
  mgl_task_graph_destroy(taken);
  free(expected);
  free(found);
  mgl_text_free(&json);
  mgl_task_graph_destroy(graph);
  mgl_task_graph_destroy(own_graph);
  mgl_task_graph_destroy(read_graph);
  mgl_graph_destroy(read_program);
}

static void check_family(mgl_family family) {
  mgl_config config = small_config(family);
  fixture f = {0};
  random_source source = {(uint64_t)family};
  mgl_graph *fused = NULL;
  static const int32_t tokens[13] = {5, 1, 77, 30, 2, 95, 0, 41, 13, 8, 60, 21, 3};
  static const int32_t pages[] = {6, 2};
  mgl_plan_limits limits = {
      .tokens = 16, .sequences = 2, .pages_per_sequence = 2, .page_tokens = PAGE_TOKENS};
  MUST(mgl_topology_create(&f.topology, &err));
  MUST(mgl_team_create(f.topology, WORKERS, &f.team, &err));
  MUST(mgl_family_build(&config, NULL, &f.canonical, &err));
  MUST(mgl_cpu_weights_bind(f.canonical, NULL, MGL_WEIGHTS_DUMMY, 9, f.team, f.topology, NULL,
                            &f.weights, &err));
  MUST(mgl_fuse_ops(f.canonical, &fused, &err));
  MUST(mgl_plan_create(&limits, &f.plan, &err));
  mgl_plan_clear(f.plan);
  mgl_plan_add(f.plan, &(mgl_plan_chunk){.tokens = tokens,
                                         .token_count = 13,
                                         .position = 0,
                                         .pages = pages,
                                         .page_count = 1,
                                         .logits = MGL_LOGITS_ALL});
  for (int launch = MGL_LAUNCH_AUTO; launch <= MGL_LAUNCH_JIT; launch++) {
    check_graph(&f, fused, 16, (mgl_launch)launch, NULL);
    check_graph(&f, f.canonical, 16, (mgl_launch)launch, NULL);
    for (uint32_t i = 0; i < PARTITIONS; i++) {
      const partitions cut = random_partitions(i % 2 == 0 ? fused : f.canonical, &source);
      assert_true(cut.count > 0);
      check_graph(&f, i % 2 == 0 ? fused : f.canonical, 16, (mgl_launch)launch, &cut);
    }
  }
  mgl_plan_destroy(f.plan);
  mgl_graph_destroy(fused);
  mgl_cpu_weights_release(&f.weights);
  mgl_graph_destroy(f.canonical);
  mgl_team_destroy(f.team);
  mgl_topology_destroy(f.topology);
}

static void graphs_from_json_run_to_the_same_bits(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
    check_family((mgl_family)family);
  }
  assert_int_equal(mgl_alloc_live(), live);
}

static void random_programs_from_json_run_to_the_same_bits(void **state) {
  (void)state;
  static const uint32_t token_counts[] = {1, 2, 8, 16};
  static const int32_t tokens[16] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 2, 4, 6, 1, 3, 5, 7};
  static const int32_t pages[] = {6};
  mgl_plan_limits limits = {
      .tokens = 16, .sequences = 1, .pages_per_sequence = 1, .page_tokens = PAGE_TOKENS};
  int64_t live = mgl_alloc_live();
  fixture f = {0};
  MUST(mgl_topology_create(&f.topology, &err));
  MUST(mgl_team_create(f.topology, WORKERS, &f.team, &err));
  MUST(mgl_plan_create(&limits, &f.plan, &err));
  for (uint32_t i = 0; i < RANDOM_PROGRAMS; i++) {
    uint32_t count = token_counts[i % 4];
    mgl_graph *program = random_program(i, 10 + i % 60);
    MUST(mgl_cpu_weights_bind(program, NULL, MGL_WEIGHTS_DUMMY, i, f.team, f.topology, NULL,
                              &f.weights, &err));
    mgl_plan_clear(f.plan);
    mgl_plan_add(f.plan, &(mgl_plan_chunk){.tokens = tokens,
                                           .token_count = count > 2 ? count - i % 2 : count,
                                           .pages = pages,
                                           .page_count = 1,
                                           .logits = MGL_LOGITS_ALL});
    check_graph(&f, program, count, (mgl_launch)(i % 3), NULL);
    mgl_cpu_weights_release(&f.weights);
    mgl_graph_destroy(program);
  }
  mgl_plan_destroy(f.plan);
  mgl_team_destroy(f.team);
  mgl_topology_destroy(f.topology);
  assert_int_equal(mgl_alloc_live(), live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(graphs_from_json_run_to_the_same_bits),
      cmocka_unit_test(random_programs_from_json_run_to_the_same_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
