// Tiles against mode eager: the tasks of a program, in random tiles on random workers, give the
// bits that the canonical program gives op by op; logits of every iteration and the whole KV cache,
// for all families and dtypes, on every SIMD level. Activations and scratch are poisoned with NaN
// before each iteration. `make test` runs 10 iterations of each model, 4 under the address
// sanitizer, where a family has one dtype a level, another one on the next; 25 with MGL_TEST_LONG.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/simd.h"
#include "base/topology.h"
#include "compile/compile.h"
#include "device/cpu/cpu_eager.h"
#include "device/cpu/cpu_linears.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/cpu_tasks.h"
#include "graph/family.h"
#include "graph/graph_text.h"
#include "support/programs.h"
#include "task/tile.h"

enum {
  SEQUENCES = 7,
  SEQUENCE_TOKENS = 300,  // more than one split of attention
  PAGE_TOKENS = 16,
  PAGES = (SEQUENCE_TOKENS + PAGE_TOKENS - 1) / PAGE_TOKENS,
  VOCABULARY = 83,
  WORKERS = 3,
#ifdef MGL_TEST_SANITIZED
  ITERATIONS = 4,
  SANITIZED = 1,
#else
  ITERATIONS = 10,
  SANITIZED = 0,
#endif
  LONG_ITERATIONS = 25,
};

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t limit) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33) % limit;
}

// --- a model -------------------------------------------------------------------------------------

// Odd sizes: columns that are no multiples of a vector or a grain, odd groups and head counts.
static mgl_config make_config(mgl_family family, mgl_dtype dtype) {
  mgl_config config = {.family = family,
                       .hidden_size = 104,
                       .intermediate_size = 203,
                       .layer_count = 2,
                       .head_count = 6,
                       .kv_head_count = 2,
                       .head_dim = 40,
                       .vocab_size = VOCABULARY,
                       .context_tokens = 512,
                       .rms_norm_eps = 1e-6,
                       .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                       .qkv_bias = family == MGL_FAMILY_QWEN2,
                       .qk_norm = family == MGL_FAMILY_QWEN3,
                       .tie_word_embeddings = family == MGL_FAMILY_QWEN3,
                       .dtype = dtype,
                       .bos_id = -1};
  if (family == MGL_FAMILY_LLAMA) {
    config.head_count = 5;
    config.kv_head_count = 1;
    config.head_dim = 22;
    config.hidden_size = 57;
  } else if (family == MGL_FAMILY_MISTRAL) {
    config.kv_head_count = 6;
    config.head_dim = 64;
    config.intermediate_size = 300;
  }
  return config;
}

// Everything that modes share, and the reference: mode eager with memory of its own.
typedef struct model {
  mgl_graph *canonical, *fused;
  mgl_topology *topology;
  mgl_team *team;
  mgl_cpu_weights weights;
  mgl_cpu_memory *eager_memory, *memory;
  mgl_cpu_program *eager;
  mgl_plan *plan;
  uint32_t positions[SEQUENCES];
  int32_t pages[SEQUENCES][PAGES];
} model;

static void model_create(model *m, mgl_graph *canonical, mgl_simd simd) {
  *m = (model){.canonical = canonical};
  MUST(mgl_fuse_ops(m->canonical, &m->fused, &err));
  MUST(mgl_topology_create(&m->topology, &err));
  MUST(mgl_team_create(m->topology, 1, &m->team, &err));
  MUST(mgl_cpu_weights_bind(m->canonical, NULL, MGL_WEIGHTS_DUMMY, 3, m->team, m->topology, NULL,
                            &m->weights, &err));
  mgl_cpu_memory_options memory = {
      .page_tokens = PAGE_TOKENS, .page_count = SEQUENCES * PAGES, .workers = WORKERS};
  MUST(mgl_cpu_memory_create(&m->weights, &memory, m->topology, &m->eager_memory, &err));
  MUST(mgl_cpu_memory_create(&m->weights, &memory, m->topology, &m->memory, &err));
  mgl_plan_limits limits = {.tokens = MGL_INVARIANT_TOKENS,
                            .sequences = SEQUENCES,
                            .pages_per_sequence = PAGES,
                            .page_tokens = PAGE_TOKENS};
  mgl_cpu_program_options options = {
      .simd = simd, .largest = {MGL_INVARIANT_TOKENS, MGL_INVARIANT_TOKENS, SEQUENCES}};
  MUST(mgl_cpu_program_create(m->canonical, m->eager_memory, &options, &m->eager, &err));
  MUST(mgl_plan_create(&limits, &m->plan, &err));
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    for (uint32_t i = 0; i < PAGES; i++) {
      m->pages[s][i] = (int32_t)((i * 5 + s) % PAGES * SEQUENCES + (s * 3 + 1) % SEQUENCES);
    }
  }
}

static void model_destroy(model *m) {
  mgl_plan_destroy(m->plan);
  mgl_cpu_program_destroy(m->eager);
  mgl_cpu_memory_destroy(m->eager_memory);
  mgl_cpu_memory_destroy(m->memory);
  mgl_cpu_weights_release(&m->weights);
  mgl_team_destroy(m->team);
  mgl_topology_destroy(m->topology);
  mgl_graph_destroy(m->fused);
  mgl_graph_destroy(m->canonical);
}

// Up to `tokens` tokens of some sequences: decode steps, chunks of prompts, or both.
static void make_plan(model *m, uint32_t tokens) {
  int32_t ids[MGL_INVARIANT_TOKENS];
  mgl_plan_clear(m->plan);
  uint32_t kind = random_below(3);
  uint32_t first = random_below(SEQUENCES);
  for (uint32_t i = 0; i < SEQUENCES && m->plan->token_count < tokens; i++) {
    uint32_t s = (first + i) % SEQUENCES;
    uint32_t left = tokens - m->plan->token_count;
    uint32_t context = SEQUENCE_TOKENS - m->positions[s];
    uint32_t limit = kind == 0 || (kind == 1 && i > 0) ? 1 : left;
    limit = limit < context ? limit : context;
    if (limit == 0 || (m->plan->token_count > 0 && random_below(5) == 0)) {
      continue;
    }
    uint32_t count = kind == 1 ? limit : 1 + random_below(limit);
    for (uint32_t t = 0; t < count; t++) {
      ids[t] = (int32_t)random_below(VOCABULARY);
    }
    mgl_plan_add(m->plan, &(mgl_plan_chunk){.tokens = ids,
                                            .token_count = count,
                                            .position = m->positions[s],
                                            .pages = m->pages[s],
                                            .page_count = PAGES,
                                            .logits = (mgl_plan_logits)random_below(3)});
    m->positions[s] += count;
  }
}

// --- tasks ---------------------------------------------------------------------------------------

// A task graph without tasks: activations in places of their own, in random order, with gaps.
static mgl_task_graph make_task_graph(const mgl_graph *graph, uint32_t tokens) {
  mgl_task_graph tasks = {.tokens = tokens,
                          .logit_rows = tokens,
                          .attention_strides = 1 + random_below(4),
                          .tensor_count = (uint32_t)graph->tensor_count};
  mgl_dim_values values = {tokens, tokens, tokens};
  tasks.activation_offsets = calloc(graph->tensor_count, sizeof *tasks.activation_offsets);
  assert_non_null(tasks.activation_offsets);
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    const mgl_tensor *out = &graph->tensors[op->output];
    if (out->placement != MGL_PLACE_ACTIVATION) {
      continue;
    }
    if (mgl_op_info_of(op->kind)->in_place) {
      tasks.activation_offsets[op->output] = tasks.activation_offsets[op->inputs[0]];
      continue;
    }
    uint64_t bytes = mgl_tensor_elements(out, &values) * mgl_dtype_bytes(out->dtype);
    tasks.activation_bytes += 64 * random_below(5);
    tasks.activation_offsets[op->output] = tasks.activation_bytes;
    tasks.activation_bytes += (bytes + 63) / 64 * 64;
  }
  return tasks;
}

// All tiles of an op: random ranges in random order on random workers.
static void run_tiles(const mgl_cpu_program *p, uint32_t op_idx) {
  uint32_t units = mgl_tile_units(p->graph, &p->graph->ops[op_idx], p->largest.tokens, p->strides);
  uint32_t cuts[2000][2];
  uint32_t count = 0;
  uint32_t most = random_below(3) == 0 ? units : 1 + units / (1 + random_below(9));
  for (uint32_t begin = 0, end; begin < units; begin = end) {
    assert_true(count < sizeof cuts / sizeof cuts[0]);
    end = begin + 1 + random_below(most < units - begin ? most : units - begin);
    uint32_t at = random_below(count + 1);  // an inside-out shuffle
    memcpy(cuts[count++], cuts[at], sizeof cuts[at]);
    cuts[at][0] = begin;
    cuts[at][1] = end;
  }
  for (uint32_t i = 0; i < count; i++) {
    mgl_cpu_task_run(p, random_below(WORKERS), op_idx, cuts[i][0], cuts[i][1]);
  }
}

static void poison(mgl_cpu_memory *memory) {
  memset(memory->activations, 0xff, memory->activation_bytes);
  memset(memory->scratch, 0xff, memory->scratch_bytes * memory->options.workers);
}

static const float *logits_of(const mgl_cpu_program *program) {
  return mgl_cpu_program_tensor(program, mgl_graph_find(program->graph, "logits"));
}

static void check_iteration(model *m, mgl_cpu_program *program, uint32_t iteration) {
  poison(m->eager_memory);
  poison(m->memory);
  mgl_cpu_eager_run(m->eager, m->team, m->plan);
  mgl_cpu_program_set_plan(program, m->plan);
  for (uint32_t i = 0; i < program->graph->op_count; i++) {
    run_tiles(program, i);
  }
  const float *expected = logits_of(m->eager);
  const float *found = logits_of(program);
  for (size_t i = 0; i < (size_t)m->plan->logit_row_count * VOCABULARY; i++) {
    if (memcmp(&expected[i], &found[i], sizeof *found) != 0 || expected[i] != expected[i]) {
      fail_msg(
          "%s, %s, %u tokens of %u, iteration %u, row %zu, logit %zu: expected %.9g, found %.9g",
          program->graph->name, program->kernels->name, m->plan->token_count,
          program->largest.tokens, iteration, i / VOCABULARY, i % VOCABULARY, (double)expected[i],
          (double)found[i]);
    }
  }
}

// One program for each of some token counts, in turn on one memory. Takes over the graph.
static void check_model(mgl_graph *canonical, mgl_simd simd, bool fuse) {
  static const uint32_t tokens[] = {1, 2, 5, 16, 64};
  enum { PROGRAMS = sizeof tokens / sizeof tokens[0] };
  mgl_cpu_program *programs[PROGRAMS + 1];
  model m;
  model_create(&m, canonical, simd);
  const mgl_graph *graph = fuse ? m.fused : m.canonical;
  for (uint32_t i = 0; i < PROGRAMS; i++) {
    mgl_task_graph tasks = make_task_graph(graph, tokens[i]);
    mgl_cpu_program_options options = {
        .simd = simd, .task_graph = &tasks, .only_wanted = tokens[i] != 5};
    MUST(mgl_cpu_program_create(graph, m.memory, &options, &programs[i], &err));
    free(tasks.activation_offsets);
  }
  // And one in its own layout, where storage is reused.
  mgl_cpu_program_options options = {
      .simd = simd, .largest = {64, 64, SEQUENCES}, .only_wanted = true};
  MUST(mgl_cpu_program_create(graph, m.memory, &options, &programs[PROGRAMS], &err));
  const uint32_t iterations = getenv("MGL_TEST_LONG") != NULL ? LONG_ITERATIONS : ITERATIONS;
  for (uint32_t i = 0; i < iterations; i++) {
    mgl_cpu_program *program = programs[random_below(PROGRAMS + 1)];
    make_plan(&m, program->largest.tokens);
    if (m.plan->token_count > 0) {
      check_iteration(&m, program, i);
    }
  }
  assert_memory_equal(m.eager_memory->kv_pages, m.memory->kv_pages, m.memory->kv_bytes);
  for (uint32_t i = 0; i <= PROGRAMS; i++) {
    mgl_cpu_program_destroy(programs[i]);
  }
  model_destroy(&m);
}

static mgl_graph *build(mgl_family family, mgl_dtype dtype) {
  mgl_graph *graph = NULL;
  mgl_config config = make_config(family, dtype);
  MUST(mgl_family_build(&config, NULL, &graph, &err));
  return graph;
}

static void check_all_levels(bool fuse) {
  static const mgl_dtype dtypes[] = {MGL_DTYPE_BF16, MGL_DTYPE_F16, MGL_DTYPE_F32};
  int64_t live = mgl_alloc_live();
  const bool all_dtypes = !SANITIZED || getenv("MGL_TEST_LONG") != NULL;
  for (int simd = 0; simd <= (int)mgl_simd_detected(); simd++) {
    for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
      for (int dtype = 0; dtype < 3; dtype++) {
        if (!all_dtypes && (simd + family + dtype + (fuse ? 1 : 0)) % 3 != 0) {
          continue;
        }
        random_state = (uint64_t)(simd * 100 + family * 10 + dtype);
        check_model(build((mgl_family)family, dtypes[dtype]), (mgl_simd)simd, fuse);
      }
    }
  }
  assert_int_equal(mgl_alloc_live(), live);
}

static void fused_tiles_have_the_bits_of_eager(void **state) {
  (void)state;
  check_all_levels(true);
}

static void canonical_tiles_have_the_bits_of_eager(void **state) {
  (void)state;
  check_all_levels(false);
}

// f32 activations in front of bf16, f16 and f32 weights, in one program.
static void tiles_of_mixed_weights_have_the_bits_of_eager(void **state) {
  (void)state;
  static const mgl_dtype dtypes[] = {MGL_DTYPE_BF16, MGL_DTYPE_F16, MGL_DTYPE_F32};
  for (int simd = 0; simd <= (int)mgl_simd_detected(); simd++) {
    for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
      random_state = (uint64_t)(simd * 100 + family);
      mgl_graph *graph = build((mgl_family)family, MGL_DTYPE_F32);
      for (size_t i = 0; i < graph->tensor_count; i++) {
        if (graph->tensors[i].placement == MGL_PLACE_WEIGHT) {
          graph->tensors[i].dtype = dtypes[random_below(3)];
        }
      }
      check_model(graph, (mgl_simd)simd, true);
    }
  }
}

// --- the stage -----------------------------------------------------------------------------------

static uint32_t find_op(const mgl_graph *graph, mgl_op_kind kind) {
  uint32_t i = 0;
  while (graph->ops[i].kind != kind) {
    i++;
    assert_true(i < graph->op_count);
  }
  return i;
}

// x is read once an iteration by each worker, and again in the next iteration.
static void a_worker_norms_rows_once(void **state) {
  (void)state;
  model m;
  model_create(&m, build(MGL_FAMILY_QWEN3, MGL_DTYPE_BF16), mgl_simd_detected());
  mgl_task_graph tasks = make_task_graph(m.fused, 8);
  mgl_cpu_program *p = NULL;
  mgl_cpu_program_options options = {.simd = mgl_simd_detected(), .task_graph = &tasks};
  MUST(mgl_cpu_program_create(m.fused, m.memory, &options, &p, &err));
  uint32_t op = find_op(m.fused, MGL_OP_GATE_UP);
  float *x = mgl_cpu_program_tensor(p, m.fused->ops[op].inputs[0]);
  mgl_bf16 *out = mgl_cpu_program_tensor(p, m.fused->ops[op].output);
  make_plan(&m, 8);
  uint32_t width = m.fused->tensors[m.fused->ops[op].inputs[0]].dims[1].number;
  mgl_cpu_program_set_plan(p, m.plan);
  for (uint32_t i = 0; i < width * m.plan->token_count; i++) {
    x[i] = (float)random_below(1000) * 0.01f - 5.0f;
  }
  mgl_cpu_task_run(p, 1, op, 0, 32);
  memset(x, 0xff, width * m.plan->token_count * sizeof *x);
  mgl_cpu_task_run(p, 1, op, 32, 64);  // from the stage
  mgl_cpu_task_run(p, 2, op, 64, 96);  // has no stage yet
  for (uint32_t i = 0; i < 96; i++) {
    float value = mgl_bf16_to_f32(out[i]);
    assert_true((value != value) == (i >= 64));
  }
  mgl_cpu_program_set_plan(p, m.plan);
  mgl_cpu_task_run(p, 1, op, 0, 1);
  assert_true(mgl_bf16_to_f32(out[0]) != mgl_bf16_to_f32(out[0]));
  mgl_cpu_program_destroy(p);
  free(tasks.activation_offsets);
  model_destroy(&m);
}

// --- rows that are wanted ------------------------------------------------------------------------

// Behind the last layer's K and V nothing is written but rows from the first with logits to the
// last; in front of them, all rows are.
static void rows_without_logits_are_left_out(void **state) {
  (void)state;
  enum { TOKENS = 16, FIRST = 6, END = 9 };
  model m;
  model_create(&m, build(MGL_FAMILY_QWEN3, MGL_DTYPE_F32), mgl_simd_detected());
  mgl_task_graph tasks = make_task_graph(m.fused, TOKENS);
  mgl_cpu_program *p = NULL;
  mgl_cpu_program_options options = {
      .simd = mgl_simd_detected(), .task_graph = &tasks, .only_wanted = true};
  MUST(mgl_cpu_program_create(m.fused, m.memory, &options, &p, &err));
  // Behind it: attend, linear_add, gate_up, linear_add and logits.
  const uint32_t last_qkv = (uint32_t)m.fused->op_count - 6;
  assert_int_equal(m.fused->ops[last_qkv].kind, MGL_OP_QKV_PROJ);
  for (uint32_t logits = 0; logits < 2; logits++) {
    int32_t ids[TOKENS] = {0};
    mgl_plan_clear(m.plan);
    mgl_plan_chunk chunk = {.tokens = ids,
                            .token_count = TOKENS,
                            .pages = m.pages[0],
                            .page_count = PAGES,
                            .logits = MGL_LOGITS_NONE};
    mgl_plan_add(m.plan, &chunk);
    if (logits == 1) {
      m.plan->logit_rows[0] = FIRST;
      m.plan->logit_rows[1] = END - 1;
      m.plan->logit_row_count = 2;
    }
    poison(m.memory);
    mgl_cpu_program_set_plan(p, m.plan);
    for (uint32_t i = 0; i + 1 < m.fused->op_count; i++) {
      run_tiles(p, i);
      const mgl_op *op = &m.fused->ops[i];
      if (op->kind == MGL_OP_ROPE_ANGLES || op->kind == MGL_OP_EMBED) {
        continue;
      }
      const uint32_t width = (uint32_t)mgl_tensor_row_elements(&m.fused->tensors[op->output]);
      const float *out = mgl_cpu_program_tensor(p, op->output);
      const bool in_place = mgl_op_info_of(op->kind)->in_place;  // the rest is the residual
      for (uint32_t row = 0; row < TOKENS; row++) {
        bool computed = i <= last_qkv || (logits == 1 && row >= FIRST && row < END);
        bool is_number = out[row * width] == out[row * width];
        assert_true(computed ? is_number : !is_number || in_place);
      }
    }
    mgl_cpu_program_end_plan(p);
  }
  mgl_cpu_program_destroy(p);
  free(tasks.activation_offsets);
  model_destroy(&m);
}

// --- weights -------------------------------------------------------------------------------------

// Rows of a weight that a tile reads, and how many of their bytes have been told.
typedef struct told_rows {
  const unsigned char *start;
  size_t bytes, told;
} told_rows;

static void expect_rows(const mgl_cpu_program *p, uint32_t weight, uint32_t begin, uint32_t end,
                        told_rows *rows) {
  const mgl_tensor *w = &p->graph->tensors[weight];
  size_t row = w->dims[1].number * mgl_dtype_bytes(w->dtype);
  rows->start = (const unsigned char *)mgl_cpu_program_tensor(p, weight) + begin * row;
  rows->bytes = (end - begin) * row;
}

// By definition: the rows of the tile's columns, of each weight.
static uint32_t expect_tile(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin,
                            uint32_t end, told_rows rows[3]) {
  uint32_t offset = 0;
  switch (op->kind) {
    case MGL_OP_LINEAR: expect_rows(p, op->inputs[1], begin, end, rows); return 1;
    case MGL_OP_LINEAR_ADD: expect_rows(p, op->inputs[2], begin, end, rows); return 1;
    case MGL_OP_LOGITS: expect_rows(p, op->inputs[3], begin, end, rows); return 1;
    case MGL_OP_GATE_UP:
      expect_rows(p, op->inputs[2], begin, end, rows);
      expect_rows(p, op->inputs[3], begin, end, rows + 1);
      return 2;
    case MGL_OP_QKV_PROJ:
      for (uint32_t i = 0; i < 3; i++) {
        uint32_t features = p->graph->tensors[op->inputs[2 + i]].dims[0].number;
        uint32_t first = begin > offset ? begin : offset;
        uint32_t last = end < offset + features ? end : offset + features;
        if (first < last) {
          expect_rows(p, op->inputs[2 + i], first - offset, last - offset, rows + i);
        }
        offset += features;
      }
      return 3;
    default: return 0;
  }
}

// Asks as the runtime does, a few bytes at a time.
static void check_weights(const mgl_cpu_program *p, uint32_t op_idx, uint32_t begin, uint32_t end) {
  told_rows rows[3] = {0};
  uint32_t count = expect_tile(p, &p->graph->ops[op_idx], begin, end, rows);
  uint32_t at = 0;
  size_t from = 0;
  const void *piece = NULL;
  for (size_t bytes; (bytes = mgl_cpu_linear_weights(p, op_idx, begin, end, from, &piece)) > 0;) {
    size_t taken = 1 + random_below(bytes < 4000 ? (uint32_t)bytes : 4000);
    for (uint32_t i = 0; i < count && piece != rows[at].start + rows[at].told; i++) {
      at = (at + 1) % count;
    }
    assert_true(at < count && piece == rows[at].start + rows[at].told);
    assert_true(bytes <= rows[at].bytes - rows[at].told);
    rows[at].told += taken;
    from += taken;
  }
  for (uint32_t i = 0; i < count; i++) {
    assert_int_equal(rows[i].told, rows[i].bytes);
  }
}

static void the_weights_of_a_tile_are_told_once(void **state) {
  (void)state;
  static const uint32_t tokens[] = {1, 64};
  uint32_t with_weights = 0;
  for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
    model m;
    model_create(&m, build((mgl_family)family, MGL_DTYPE_BF16), mgl_simd_detected());
    for (uint32_t i = 0; i < 4; i++) {
      const mgl_graph *graph = i < 2 ? m.fused : m.canonical;
      mgl_task_graph tasks = make_task_graph(graph, tokens[i % 2]);
      mgl_cpu_program *p = NULL;
      mgl_cpu_program_options options = {.simd = mgl_simd_detected(), .task_graph = &tasks};
      MUST(mgl_cpu_program_create(graph, m.memory, &options, &p, &err));
      for (uint32_t op = 0; op < graph->op_count; op++) {
        uint32_t units = mgl_tile_units(graph, &graph->ops[op], tokens[i % 2], p->strides);
        uint32_t begin = random_below(units);
        const void *piece = NULL;
        check_weights(p, op, 0, units);
        check_weights(p, op, begin, begin + 1 + random_below(units - begin));
        assert_int_equal(mgl_cpu_linear_weights(p, op, begin, begin, 0, &piece), 0);
        with_weights += mgl_cpu_linear_weights(p, op, 0, units, 0, &piece) > 0 ? 1 : 0;
      }
      mgl_cpu_program_destroy(p);
      free(tasks.activation_offsets);
    }
    model_destroy(&m);
  }
  assert_true(with_weights > 0);
}

// --- memory --------------------------------------------------------------------------------------

static void every_failed_allocation_is_reported(void **state) {
  (void)state;
  mgl_error err = {0};
  model m;
  model_create(&m, build(MGL_FAMILY_QWEN2, MGL_DTYPE_BF16), MGL_SIMD_SCALAR);
  mgl_task_graph tasks = make_task_graph(m.fused, 4);
  mgl_cpu_program_options options = {
      .simd = MGL_SIMD_SCALAR, .task_graph = &tasks, .only_wanted = true};
  mgl_cpu_program_options own = {.simd = MGL_SIMD_SCALAR, .largest = {4, 4, 4}};
  int64_t live = mgl_alloc_live();
  bool done = false;
  for (uint64_t n = 1; !done; n++) {
    mgl_cpu_memory *memory = NULL;
    mgl_cpu_program *a = NULL;
    mgl_cpu_program *b = NULL;
    mgl_alloc_fail_nth(n);
    mgl_status status =
        mgl_cpu_memory_create(&m.weights, &m.memory->options, m.topology, &memory, &err);
    status =
        status != MGL_OK ? status : mgl_cpu_program_create(m.fused, memory, &options, &a, &err);
    status =
        status != MGL_OK ? status : mgl_cpu_program_create(m.canonical, memory, &own, &b, &err);
    done = status == MGL_OK;
    mgl_alloc_fail_nth(0);
    assert_true(done || status == MGL_ERR_MEMORY);
    mgl_cpu_program_destroy(a);
    mgl_cpu_program_destroy(b);
    mgl_cpu_memory_destroy(memory);
    assert_int_equal(mgl_alloc_live(), live);
  }
  free(tasks.activation_offsets);
  model_destroy(&m);
}

// A program from elsewhere (a task graph's JSON) must name the model's own weights and KV.
static void foreign_tensors_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *declarations, *error;
  } cases[] = {
      {"weight nope f32[83,104]\n", "the model has no tensor \"nope\" for this program"},
      {"weight model.norm.weight f32[83,104]\n",
       "tensor \"model.norm.weight\" of this program has another shape or dtype than the model's"},
      {"weight model.embed_tokens.weight f32[83,104]\n",
       "tensor \"model.embed_tokens.weight\" of this program has another shape or dtype than the "
       "model's"},
      {"weight model.embed_tokens.weight bf16[83,104]\nkv kv.0 bf16[3,40]\n",
       "tensor \"kv.0\" of this program has another shape or dtype than the model's"},
      {"weight model.embed_tokens.weight bf16[83,104]\nkv kv.1 bf16[2,40]\n", NULL},
  };
  model m;
  model_create(&m, build(MGL_FAMILY_QWEN3, MGL_DTYPE_BF16), MGL_SIMD_SCALAR);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[400];
    mgl_error err = {0};
    mgl_cpu_program *program = NULL;
    const char *name = strchr(cases[i].declarations, ' ') + 1;
    (void)snprintf(text, sizeof text,
                   "program p\ninput tokens i32[T]\n%sx = embed(tokens, %.*s) : f32[T,104]\n"
                   "output x\n",
                   cases[i].declarations, (int)strcspn(name, " "), name);
    mgl_graph *graph = parse_program(text);
    mgl_cpu_program_options options = {.simd = MGL_SIMD_SCALAR, .largest = {1, 1, 1}};
    mgl_status status = mgl_cpu_program_create(graph, m.memory, &options, &program, &err);
    assert_int_equal(status, cases[i].error == NULL ? MGL_OK : MGL_ERR_ARGUMENT);
    if (cases[i].error != NULL) {
      assert_string_equal(err.text, cases[i].error);
    }
    mgl_cpu_program_destroy(program);
    mgl_graph_destroy(graph);
  }
  model_destroy(&m);
}

// What was fused or compiled for the GPU has ops that no CPU kernel computes, or tiles that are cut
// within the kernels' row blocks.
static void what_is_for_the_gpu_is_refused(void **state) {
  (void)state;
  static const char *const texts[] = {
      "program p\ninput tokens i32[T]\nn = next_plan(tokens) : i32[1]\noutput n\n",
      "program p\ninput tokens i32[T]\ninput rows i32[L]\n"
      "weight model.embed_tokens.weight bf16[83,104]\nweight model.norm.weight bf16[104]\n"
      "x = embed(tokens, model.embed_tokens.weight) : f32[T,104]\n"
      "l = logits(x, model.norm.weight, rows, model.embed_tokens.weight) eps=1 : f32[L,83]\n"
      "output l\n"};
  static const char *const messages[] = {"found the op next_plan, which runs on a GPU only",
                                         "found one for cuda"};
  model m;
  model_create(&m, build(MGL_FAMILY_QWEN3, MGL_DTYPE_BF16), MGL_SIMD_SCALAR);
  for (size_t i = 0; i < 2; i++) {
    mgl_graph *graph = parse_program(texts[i]);
    mgl_task_graph *tasks = NULL;
    mgl_cpu_program *program = NULL;
    mgl_compile_options compile = {.target = MGL_TARGET_CUDA, .tokens = 1, .workers = 2};
    MUST(mgl_compile(graph, &compile, &tasks, NULL, &err));
    mgl_error err = {0};
    mgl_cpu_program_options options = {.simd = MGL_SIMD_SCALAR, .task_graph = tasks};
    assert_int_equal(mgl_cpu_program_create(graph, m.memory, &options, &program, &err),
                     MGL_ERR_UNSUPPORTED);
    assert_null(program);
    assert_non_null(strstr(err.text, messages[i]));
    mgl_task_graph_destroy(tasks);
    mgl_graph_destroy(graph);
  }
  model_destroy(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fused_tiles_have_the_bits_of_eager),
      cmocka_unit_test(canonical_tiles_have_the_bits_of_eager),
      cmocka_unit_test(tiles_of_mixed_weights_have_the_bits_of_eager),
      cmocka_unit_test(a_worker_norms_rows_once),
      cmocka_unit_test(rows_without_logits_are_left_out),
      cmocka_unit_test(the_weights_of_a_tile_are_told_once),
      cmocka_unit_test(every_failed_allocation_is_reported),
      cmocka_unit_test(foreign_tensors_are_refused),
      cmocka_unit_test(what_is_for_the_gpu_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
