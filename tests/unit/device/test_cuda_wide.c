// The host side of the wide class: every unit of every op is one task's, stages wait for all of the
// stage before, nobody waits for ever for the rest of a tile, and the image of a launch says what
// the plan says.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "compile/shard.h"
#include "device/cuda/cuda_steps.h"
#include "device/cuda/cuda_wide.h"
#include "graph/family.h"
#include "lower/stages.h"
#include "model/config.h"
#include "twin/wide_layout.h"

enum { WORKERS = 20, LAYERS = 3, STRIDE = 200 };

#define CONFIG(hidden, intermediate) CONFIG_OF("1000", hidden, intermediate)
#define CONFIG_OF(vocab, hidden, intermediate)                                               \
  "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":" vocab \
  ",\"hidden_size\":" hidden ",\"intermediate_size\":" intermediate                          \
  ",\"num_hidden_layers\":3,"                                                                \
  "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,"                     \
  "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"            \
  "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"

// Few tiles for each worker; and so many that the last round would have few, with k long enough.
static const char *const configs[] = {CONFIG("264", "648"), CONFIG("1096", "3000")};

typedef struct world {
  mgl_graph *program;
  mgl_task_graph *graph;  // of one token
  mgl_cuda_model model;
  mgl_cuda_layout layout;
  mgl_cuda_wide_layout wide;
  mgl_cu_ptr base[MGL_CUDA_MEMORY_COUNT];
  mgl_cuda_wide_addresses addresses;
} world;

// Of one of several ranks: `peers` says which, and where the blocks of all lie.
static void open_rank(world *w, const char *json, const mgl_cuda_wide_sizes *sizes,
                      const mgl_cuda_peers *peers) {
  mgl_error err = {0};
  mgl_config config;
  mgl_generation generation;
  mgl_graph *canonical = NULL;
  memset(w, 0, sizeof *w);
  assert_int_equal(mgl_config_parse(json, strlen(json), "test", &config, &generation, &err),
                   MGL_OK);
  assert_int_equal(mgl_family_build(&config, NULL, &canonical, &err), MGL_OK);
  if (peers != NULL) {
    mgl_graph *whole = canonical;
    assert_int_equal(mgl_shard_program(whole, peers->count, &canonical, &err), MGL_OK);
    mgl_graph_destroy(whole);
  }
  assert_int_equal(mgl_fuse_ops_cuda(canonical, &w->program, &err), MGL_OK);
  assert_int_equal(mgl_cuda_model_of(w->program, &w->model, &err), MGL_OK);
  mgl_graph_destroy(canonical);
  mgl_cuda_sizes narrow = {.workers = WORKERS,
                           .iteration_tokens = 64,
                           .sequences = 1,
                           .pages_per_sequence = 1,
                           .page_count = 1};
  const mgl_compile_options compile = {.target = MGL_TARGET_CUDA, .tokens = 1, .workers = WORKERS};
  assert_int_equal(mgl_compile(w->program, &compile, &w->graph, NULL, &err), MGL_OK);
  narrow.graphs = (const mgl_task_graph *const *)&w->graph;
  narrow.graph_count = 1;
  assert_int_equal(mgl_cuda_layout_make(w->program, &w->model, &narrow, &w->layout, &err), MGL_OK);
  assert_int_equal(mgl_cuda_wide_lay_out(w->program, &w->model, sizes, &w->wide, &err), MGL_OK);
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    w->base[i] = (i + UINT64_C(1)) << 40;
  }
  w->addresses = (mgl_cuda_wide_addresses){.program = w->program,
                                           .model = &w->model,
                                           .layout = &w->layout,
                                           .wide = &w->wide,
                                           .base = w->base,
                                           .block = w->base[MGL_CUDA_MEMORY_WIDE],
                                           .peers = peers};
}

static void open_world(world *w, const char *json, const mgl_cuda_wide_sizes *sizes) {
  open_rank(w, json, sizes, NULL);
}

static void close_world(world *w) {
  mgl_cuda_layout_free(&w->layout);
  mgl_task_graph_destroy(w->graph);
  mgl_graph_destroy(w->program);
}

// --- graphs --------------------------------------------------------------------------------------

// Units that an op has by its own numbers.
static uint32_t units_of(const mgl_wide_op *op, const mgl_cuda_wide_sizes *sizes,
                         uint32_t tile_tokens) {
  uint32_t columns = op->op.kind == MGL_OP_GATE_UP ? 8 : 16;
  uint32_t features = ((op->op.n + columns - 1) / columns + 7) / 8;
  switch (op->op.kind) {
    case MGL_OP_EMBED: return op->op.tokens / 8;
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_KV_WRITE: return op->op.tokens == 0 ? op->with.attention.tokens : op->op.tokens;
    case MGL_OP_RMSNORM:
      return op->op.row_tiles / 8 * ((op->op.k + MGL_WIDE_NORM_RANGE - 1) / MGL_WIDE_NORM_RANGE);
    case MGL_OP_ATTEND: return sizes->workers;
    default: return features * (op->op.tokens / tile_tokens) * (op->op.k_padded / MGL_WIDE_K);
  }
}

static void check_graph(const world *w, uint32_t graph) {
  const mgl_cuda_wide_graph *g = &w->wide.graphs[graph];
  mgl_wide_op *ops = mgl_alloc_zeroed(g->op_count, sizeof *ops);
  mgl_cuda_step *steps = mgl_alloc_zeroed(g->step_count, sizeof *steps);
  uint32_t *done = mgl_alloc_zeroed(g->op_count, sizeof *done);       // units of each op
  uint32_t *tasks = mgl_alloc_zeroed(g->stage_count, sizeof *tasks);  // of each stage
  uint32_t *stage = mgl_alloc_zeroed(g->op_count, sizeof *stage);
  unsigned char *seen = mgl_alloc_zeroed(g->step_count, 1);
  uint32_t start[MGL_WIDE_LISTS_OF(WORKERS) + 1];
  assert_int_equal(
      mgl_cuda_wide_make_graph(
          &w->addresses, graph, (mgl_cuda_wide_range){0, UINT32_MAX},
          &(mgl_cuda_wide_lists){.ops = ops, .steps = steps, .step_start = start}, NULL),
      MGL_OK);
  assert_int_equal(start[WORKERS], g->step_count);
  for (uint32_t i = 0; i < g->step_count; i++) {
    tasks[steps[i].trigger_event]++;
  }
  for (uint32_t worker = 0; worker < WORKERS; worker++) {
    uint32_t before = 0;
    for (uint32_t i = start[worker]; i < start[worker + 1]; i++) {
      const mgl_cuda_step *step = &steps[i];
      assert_true(step->task < g->step_count && step->op < g->op_count);
      assert_int_equal(seen[step->task]++, 0);
      assert_true(step->trigger_event >= before);  // a worker's list has stages in their order
      before = step->trigger_event;
      assert_true(step->begin < step->end);
      done[step->op] += step->end - step->begin;
      stage[step->op] = step->trigger_event;
      if (step->trigger_event == 0) {
        assert_int_equal(step->wait_event, MGL_NO_EVENT);
      } else {
        assert_int_equal(step->wait_event, step->trigger_event - 1);
        assert_int_equal(step->wait_count, tasks[step->wait_event]);
      }
    }
  }
  for (uint32_t i = 0; i < g->op_count; i++) {
    assert_int_equal(done[i], units_of(&ops[i], &w->wide.sizes, g->tile_tokens));
    assert_true(i == 0 || stage[i] >= stage[i - 1]);
  }
  mgl_free(ops);
  mgl_free(steps);
  mgl_free(done);
  mgl_free(tasks);
  mgl_free(stage);
  mgl_free(seen);
}

static bool is_linear(const mgl_wide_op *op) {
  return op->op.kind == MGL_OP_QKV_PROJ || op->op.kind == MGL_OP_LINEAR_ADD ||
         op->op.kind == MGL_OP_GATE_UP || op->op.kind == MGL_OP_LOGITS;
}

// Tasks of an op's tiles, in the order of their first units.
typedef struct tile_tasks {
  uint32_t count;
  uint32_t begin[MGL_STAGES_MAX_SPLITS], end[MGL_STAGES_MAX_SPLITS];
  bool first_of_stage[MGL_STAGES_MAX_SPLITS];  // of its worker's
} tile_tasks;

static void note_task(tile_tasks *tile, uint32_t begin, uint32_t end, bool first) {
  uint32_t at = tile->count++;
  assert_true(tile->count <= MGL_STAGES_MAX_SPLITS);
  for (; at > 0 && tile->begin[at - 1] > begin; at--) {
    tile->begin[at] = tile->begin[at - 1];
    tile->end[at] = tile->end[at - 1];
    tile->first_of_stage[at] = tile->first_of_stage[at - 1];
  }
  tile->begin[at] = begin;
  tile->end[at] = end;
  tile->first_of_stage[at] = first;
}

// The tasks of a tile have all of its stages of k, and who is waited for is its worker's first
// task.
static void check_tile(const mgl_wide_op *op, const tile_tasks *tile, uint32_t number) {
  uint32_t k_stages = op->op.k_padded / MGL_WIDE_K;
  bool all_wait = (op->op.flags & (MGL_WIDE_WEIGHS | MGL_WIDE_ROTATES)) != 0;
  // Who goes on with sums is the second one; nobody waits for it.
  const bool resumes = (op->op.flags & MGL_WIDE_RESUMES) != 0 && tile->count == 2;
  uint32_t at = number * k_stages;
  for (uint32_t i = 0; i < tile->count; i++) {
    assert_int_equal(tile->begin[i], at);
    assert_true(tile->end[i] > at);
    at = tile->end[i];
    if (op->op.passes > 1) {
      assert_int_equal(tile->begin[i] - number * k_stages, k_stages * i / op->op.passes);
    }
    assert_true(tile->first_of_stage[i] || (i == (resumes ? 1 : 0) && !all_wait));
  }
  assert_int_equal(at, (number + 1) * k_stages);
  if (op->op.passes > 1 || all_wait) {
    assert_int_equal(tile->count, op->op.passes);
  } else {
    assert_true(tile->count <= 2);
  }
  if (tile->count > 1 && (op->op.passes == 1 || all_wait)) {
    assert_non_null(op->arrived);
    assert_non_null(op->parts);
  }
}

// Of an op: where its tasks begin and end. even: tiles whose first task is not its worker's.
static void check_op_tiles(const mgl_wide_op *op, uint32_t idx, uint32_t tile_tokens,
                           const mgl_cuda_step *steps, const uint32_t start[WORKERS + 1],
                           uint32_t *shared, uint32_t *even) {
  uint32_t features = (op->op.n + 15) / (op->op.kind == MGL_OP_GATE_UP ? 8 : 16) + 8;
  tile_tasks *tiles =
      mgl_alloc_zeroed((features / 8 + 1) * (op->op.tokens / tile_tokens), sizeof *tiles);
  uint32_t k_stages = op->op.k_padded / MGL_WIDE_K;
  uint32_t count = 0;
  for (uint32_t worker = 0; worker < WORKERS; worker++) {
    for (uint32_t i = start[worker]; i < start[worker + 1]; i++) {
      if (steps[i].op == idx) {
        uint32_t number = steps[i].begin / k_stages;
        bool first = i == start[worker] || steps[i - 1].trigger_event != steps[i].trigger_event;
        note_task(&tiles[number], steps[i].begin, steps[i].end, first);
        count = number + 1 > count ? number + 1 : count;
      }
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    check_tile(op, &tiles[i], i);
    *even += tiles[i].count == 2 && !tiles[i].first_of_stage[0] ? 1 : 0;
  }
  if ((op->op.flags & MGL_WIDE_RESUMES) != 0) {
    count = mgl_stages_resumed_tiles(count, WORKERS);
    assert_non_null(op->arrived);
  }
  *shared = op->arrived != NULL ? count : 0;
  mgl_free(tiles);
}

static void check_tiles(const world *w, uint32_t graph, uint32_t *even) {
  const mgl_cuda_wide_graph *g = &w->wide.graphs[graph];
  mgl_wide_op *ops = mgl_alloc_zeroed(g->op_count, sizeof *ops);
  mgl_cuda_step *steps = mgl_alloc_zeroed(g->step_count, sizeof *steps);
  uint32_t start[MGL_WIDE_LISTS_OF(WORKERS) + 1];
  uint32_t saved = 0;  // stages
  uint32_t counters = 0;
  const mgl_wide_op *before = NULL;  // the linear before
  assert_int_equal(
      mgl_cuda_wide_make_graph(
          &w->addresses, graph, (mgl_cuda_wide_range){0, UINT32_MAX},
          &(mgl_cuda_wide_lists){.ops = ops, .steps = steps, .step_start = start}, NULL),
      MGL_OK);
  for (uint32_t i = 0; i < g->op_count; i++) {
    const mgl_wide_op *op = &ops[i];
    if (op->op.kind == MGL_OP_ATTEND) {
      bool rotates = (before->op.flags & MGL_WIDE_ROTATES) != 0;
      assert_int_equal(ops[i - 1].op.kind == MGL_OP_KV_WRITE, !rotates);
      if (rotates) {
        assert_memory_equal(&before->with.attention, &op->with.attention,
                            sizeof op->with.attention);
      }
    }
    if (!is_linear(op)) {
      continue;
    }
    uint32_t shared = 0;
    check_op_tiles(op, i, g->tile_tokens, steps, start, &shared, even);
    assert_true(op->arrived == NULL ||
                op->arrived == mgl_cuda_pointer(w->addresses.block + w->wide.arrived +
                                                counters * sizeof(uint32_t)));
    counters += shared;
    saved += (op->op.flags & (MGL_WIDE_WEIGHS | MGL_WIDE_ROTATES)) != 0 ? 1 : 0;
    if (op->op.kind == MGL_OP_QKV_PROJ || op->op.kind == MGL_OP_GATE_UP) {
      bool weighed = before != NULL && (before->op.flags & MGL_WIDE_WEIGHS) != 0;
      assert_int_equal(ops[i - 1].op.kind == MGL_OP_RMSNORM, !weighed);
      if (weighed) {
        assert_ptr_equal(before->with.norm.out, op->op.x);
        assert_ptr_equal(before->with.norm.residual, op->op.norm);
        assert_ptr_equal(before->with.norm.bias, before->op.out);
      }
    }
    before = op;
  }
  // rope_angles and embed; norm and qkv, rope and attend, o, norm and gate_up, down; logits
  assert_int_equal(g->op_count, 2 + 8 * LAYERS + 2 - saved);
  assert_true(g->tokens > g->tile_tokens || saved > 2 * LAYERS);
  assert_true(counters <= w->wide.shared_tiles);
  mgl_free(ops);
  mgl_free(steps);
}

static void every_unit_is_one_task(void **state) {
  (void)state;
  static const uint32_t rows[] = {1, 100, 257, 1024};
  uint32_t even = 0;
  for (size_t i = 0; i < 4 * sizeof rows / sizeof rows[0]; i++) {
    world w;
    mgl_cuda_wide_sizes sizes = {.tokens = 2048,
                                 .sequences = rows[i / 4],
                                 .logit_rows = rows[i / 4],
                                 .pages_per_sequence = STRIDE,
                                 .workers = WORKERS,
                                 .few = i / 2 % 2 != 0};
    open_world(&w, configs[i % 2], &sizes);
    assert_true(w.wide.graph_count >= (sizes.few ? 10u : 8u));
    for (uint32_t graph = 0; graph < w.wide.graph_count; graph++) {
      check_graph(&w, graph);
      check_tiles(&w, graph, &even);
    }
    close_world(&w);
  }
  assert_true(even > 0);
}

static const char experts_config[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
    "\"vocab_size\":1000,\"hidden_size\":1024,\"intermediate_size\":640,"
    "\"moe_intermediate_size\":128,\"num_experts\":24,\"num_experts_per_tok\":8,"
    "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"
    "\"num_hidden_layers\":1,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
    "\"head_dim\":64,\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,"
    "\"rope_theta\":10000,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
    "\"hidden_act\":\"silu\"}";

// The ops of a layer's experts hand on what they leave, in memory of their own, with room for every
// tile that there can be, and a step is a worker's share of them.
static void experts_hand_on_what_they_leave(void **state) {
  (void)state;
  enum { EXPERTS = 24, SLOTS = 8, FEATURES = 128, HIDDEN = 1024 };
  const mgl_cuda_wide_sizes sizes = {.tokens = 2048,
                                     .sequences = 8,
                                     .logit_rows = 8,
                                     .pages_per_sequence = STRIDE,
                                     .workers = WORKERS,
                                     .few = true};
  world w;
  open_world(&w, experts_config, &sizes);
  for (uint32_t graph = 0; graph < w.wide.graph_count; graph++) {
    const mgl_cuda_wide_graph *g = &w.wide.graphs[graph];
    mgl_wide_op *ops = mgl_alloc_zeroed(g->op_count, sizeof *ops);
    mgl_cuda_step *steps = mgl_alloc_zeroed(g->step_count, sizeof *steps);
    uint32_t start[MGL_WIDE_LISTS_OF(WORKERS) + 1];
    assert_int_equal(
        mgl_cuda_wide_make_graph(
            &w.addresses, graph, (mgl_cuda_wide_range){0, UINT32_MAX},
            &(mgl_cuda_wide_lists){.ops = ops, .steps = steps, .step_start = start}, NULL),
        MGL_OK);
    uint32_t at = 0;
    while (ops[at].op.kind != MGL_OP_ROUTER) {
      at++;
    }
    const mgl_wide_op *router = &ops[at], *route = router + 1, *sort = router + 2;
    const mgl_wide_op *up = router + 3, *down = router + 4, *add = router + 5;
    assert_int_equal(route->op.kind, MGL_OP_ROUTE);
    assert_ptr_equal(route->op.x, router->op.out);
    assert_int_equal(sort->op.flags & MGL_WIDE_GATHERS, MGL_WIDE_GATHERS);
    assert_ptr_equal(sort->op.x, router->op.x);
    assert_ptr_equal(up->op.x, sort->op.out);
    assert_ptr_equal(down->op.x, up->op.out);
    assert_ptr_equal(add->op.x, down->op.out);
    assert_int_equal(add->op.kind, MGL_OP_ADD);
    const uint32_t tiles = g->tokens * SLOTS / g->tile_tokens + EXPERTS;
    const uint32_t sorted = g->tokens * SLOTS + 8 * EXPERTS;
    for (const mgl_wide_op *op = route; op <= add; op++) {
      assert_memory_equal(&op->with.experts, &route->with.experts, sizeof op->with.experts);
    }
    assert_int_equal(up->op.tokens, sorted);
    uint32_t counts[2] = {0, 0};
    for (uint32_t i = 0; i < g->step_count; i++) {
      counts[0] += steps[i].op == at + 3 ? 1 : 0;
      counts[1] += steps[i].op == at + 4 ? 1 : 0;
    }
    assert_int_equal(counts[0], WORKERS);
    assert_int_equal(counts[1], WORKERS);
    // Each in its place, with room for what it has.
    const mgl_wide_experts *e = &up->with.experts;
    const struct {
      const void *at;
      uint64_t bytes;
    } places[] = {{router->op.out, (uint64_t)g->tokens * EXPERTS * sizeof(float)},
                  {sort->op.out, mgl_wide_x_bytes(sorted, HIDDEN)},
                  {up->op.out, mgl_wide_x_bytes(sorted, FEATURES)},
                  {down->op.out, (uint64_t)sorted * HIDDEN * 2},
                  {e->routes, (uint64_t)g->tokens * SLOTS * sizeof *e->routes},
                  {e->counts, (uint64_t)g->tokens / MGL_WIDE_ROUTED * EXPERTS * sizeof *e->counts},
                  {e->places, (uint64_t)g->tokens * SLOTS * sizeof *e->places},
                  {e->tiles, (uint64_t)tiles * sizeof *e->tiles},
                  {e->tile_count, sizeof *e->tile_count},
                  {e->rows, (uint64_t)(sorted + g->tile_tokens) * sizeof *e->rows}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
      const uint64_t begin = (uint64_t)(uintptr_t)places[i].at;
      assert_true(begin >= w.addresses.block &&
                  begin + places[i].bytes <= w.addresses.block + w.wide.bytes);
      for (size_t j = 0; j < i; j++) {
        const uint64_t other = (uint64_t)(uintptr_t)places[j].at;
        assert_true(begin >= other + places[j].bytes || other >= begin + places[i].bytes);
      }
    }
    mgl_free(ops);
    mgl_free(steps);
  }
  close_world(&w);
}

// A linear that leaves parts, and the norm behind it, mean the same ones.
static void parts_are_added(void **state) {
  (void)state;
  world w;
  mgl_cuda_wide_sizes sizes = {.tokens = 2048,
                               .sequences = 4,
                               .logit_rows = 4,
                               .pages_per_sequence = STRIDE,
                               .workers = WORKERS,
                               .few = true};
  open_world(&w, configs[0], &sizes);
  uint32_t split = 0;
  for (uint32_t graph = 0; graph < w.wide.graph_count; graph++) {
    const mgl_cuda_wide_graph *g = &w.wide.graphs[graph];
    mgl_wide_op *ops = mgl_alloc_zeroed(g->op_count, sizeof *ops);
    mgl_cuda_step *steps = mgl_alloc_zeroed(g->step_count, sizeof *steps);
    uint32_t start[MGL_WIDE_LISTS_OF(WORKERS) + 1];
    const mgl_cuda_op *parts = NULL;
    assert_int_equal(
        mgl_cuda_wide_make_graph(
            &w.addresses, graph, (mgl_cuda_wide_range){0, UINT32_MAX},
            &(mgl_cuda_wide_lists){.ops = ops, .steps = steps, .step_start = start}, NULL),
        MGL_OK);
    for (uint32_t i = 0; i < g->op_count; i++) {
      const mgl_cuda_op *op = &ops[i].op;
      if (op->kind == MGL_OP_LINEAR_ADD) {
        assert_true(op->passes >= 1 && op->passes <= MGL_STAGES_MAX_SPLITS);
        assert_true(op->passes <= op->k_padded / MGL_WIDE_K);
        assert_int_equal(op->out == op->residual, op->passes == 1);
        parts = op->passes > 1 && (op->flags & MGL_WIDE_WEIGHS) == 0 ? op : NULL;
        split += parts != NULL ? 1 : 0;
      } else if (op->kind == MGL_OP_RMSNORM) {
        assert_int_equal(op->bias != NULL, parts != NULL);
        if (parts != NULL) {
          assert_ptr_equal(op->bias, parts->out);
          assert_int_equal(op->passes, parts->passes);
          assert_int_equal(op->copy_bytes, parts->copy_bytes);
          assert_true(w.wide.parts + parts->passes * parts->copy_bytes <= w.wide.stream_partials);
        }
        parts = NULL;
      }
    }
    assert_null(parts);
    mgl_free(ops);
    mgl_free(steps);
  }
  assert_true(split > 0);
  close_world(&w);
}

// --- the image -----------------------------------------------------------------------------------

static void the_image_says_what_the_plan_says(void **state) {
  (void)state;
  world w;
  mgl_error err = {0};
  mgl_plan *plan = NULL;
  int32_t tokens[150];
  int32_t pages[2][STRIDE];
  mgl_cuda_wide_sizes sizes = {.tokens = 512,
                               .sequences = 2,
                               .logit_rows = 2,
                               .pages_per_sequence = STRIDE,
                               .workers = WORKERS};
  mgl_plan_limits limits = {.tokens = 512,
                            .sequences = 4,
                            .pages_per_sequence = STRIDE,
                            .page_tokens = MGL_CUDA_KV_PAGE_TOKENS};
  open_world(&w, configs[0], &sizes);
  assert_int_equal(w.wide.graph_count, 2);
  assert_int_equal(mgl_plan_create(&limits, &plan, &err), MGL_OK);
  for (int32_t i = 0; i < 150; i++) {
    tokens[i] = 3 * i;
  }
  for (int32_t i = 0; i < STRIDE; i++) {
    pages[0][i] = 2 * i;
    pages[1][i] = 2 * i + 1;
  }
  unsigned char *image = mgl_alloc_zeroed(1, (size_t)w.wide.image_bytes);
  mgl_plan_chunk chunk = {.tokens = tokens,
                          .token_count = 150,
                          .position = 17,
                          .pages = pages[0],
                          .page_count = STRIDE,
                          .logits = MGL_LOGITS_LAST};
  mgl_plan_add(plan, &chunk);
  mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                       .token_count = 1,
                                       .position = 40,
                                       .pages = pages[1],
                                       .page_count = STRIDE,
                                       .logits = MGL_LOGITS_LAST});
  assert_int_equal(mgl_cuda_wide_make_image(&w.addresses, plan, 2 * STRIDE, image, &err), MGL_OK);
  const mgl_wide_plan *made = (const mgl_wide_plan *)(const void *)(image + w.wide.plan);
  const int32_t *tables = (const int32_t *)(const void *)(image + w.wide.tables);
  const mgl_wide_work *work = (const mgl_wide_work *)(const void *)(image + w.wide.work);
  assert_int_equal(made->token_count, 151);
  assert_int_equal(made->logit_row_count, 2);
  assert_int_equal(made->logit_rows[1], 150);
  assert_int_equal(made->positions[149], 166);
  assert_int_equal(made->positions[150], 40);
  assert_int_equal(made->slots[149], 0);
  assert_int_equal(made->slots[150], 1);
  assert_int_equal(made->tokens[100], 300);
  assert_int_equal(tables[10], 20);
  assert_int_equal(tables[11], 2 * STRIDE);  // beyond position 166: the spare page
  assert_int_equal(tables[STRIDE + 2], 5);
  assert_int_equal(tables[STRIDE + 3], 2 * STRIDE);
  assert_int_equal(work->stream_count, 1);
  assert_true(work->item_count > 1);
  // What does not fit is refused.
  assert_int_equal(mgl_cuda_wide_make_image(&w.addresses, plan, 20, image, &err), MGL_ERR_ARGUMENT);
  plan->tokens[3] = 1000;
  assert_int_equal(mgl_cuda_wide_make_image(&w.addresses, plan, 2 * STRIDE, image, &err),
                   MGL_ERR_ARGUMENT);
  plan->tokens[3] = 0;
  mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                       .token_count = 1,
                                       .position = 40,
                                       .pages = pages[1],
                                       .page_count = STRIDE,
                                       .logits = MGL_LOGITS_NONE});
  assert_int_equal(mgl_cuda_wide_make_image(&w.addresses, plan, 2 * STRIDE, image, &err),
                   MGL_ERR_LIMIT);
  mgl_plan_destroy(plan);
  mgl_free(image);
  close_world(&w);
}

// There is a graph for every 256 tokens, and of 192 where that is worth it; with experts for powers
// of two.
static void graphs_are_found_by_tokens(void **state) {
  (void)state;
  static const uint32_t tokens[] = {1,   64,  65,  128, 129, 192,  193, 256,
                                    257, 512, 513, 768, 769, 1025, 2048};
  static const uint32_t graphs[][15] = {{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 4, 7},
                                        {0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 5, 6, 9},
                                        {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7, 10},
                                        {0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5}};
  uint32_t kinds = 0;
  for (uint32_t i = 0; i < 12; i++) {
    const bool experts = i >= 8;
    mgl_cuda_wide_sizes of = {.tokens = 2048,
                              .sequences = 256,
                              .logit_rows = 256,
                              .pages_per_sequence = STRIDE,
                              .workers = i / 2 % 2 != 0 ? WORKERS : 132,
                              .few = i >= 4};
    world w;
    open_world(&w, experts ? experts_config : configs[i % 2], &of);
    const bool middle =
        of.few && mgl_stages_has_middle(w.program, &(mgl_stages_graphs){true, 256, of.workers});
    const uint32_t kind = !of.few ? 0 : experts ? 3 : middle ? 2 : 1;
    kinds |= 1u << kind;
    assert_int_equal(w.wide.graph_count, graphs[kind][14] + 1);
    for (uint32_t j = 0; j < 15; j++) {
      assert_int_equal(mgl_cuda_wide_graph_for(&w.wide, tokens[j]), graphs[kind][j]);
    }
    close_world(&w);
  }
  assert_int_equal(kinds, 15);
  // The largest graph has no more tiles than are asked for.
  world w;
  mgl_cuda_wide_sizes sizes = {.tokens = 1100,
                               .sequences = 8,
                               .logit_rows = 8,
                               .pages_per_sequence = STRIDE,
                               .workers = WORKERS};
  open_world(&w, configs[0], &sizes);
  assert_int_equal(w.wide.graphs[w.wide.graph_count - 1].tokens, 1280);
  close_world(&w);
}

// A layer's weights decide, where tiles have 256 tokens whatever there is to do.
static void small_iterations_are_narrow(void **state) {
  (void)state;
  const uint64_t mib = 1 << 20;
  mgl_op ops[5] = {{.kind = MGL_OP_EMBED},
                   {.kind = MGL_OP_ATTEND},
                   {.kind = MGL_OP_RMSNORM},
                   {.kind = MGL_OP_ATTEND},
                   {.kind = MGL_OP_RMSNORM}};
  const mgl_graph program = {.ops = ops, .op_count = 5};
  assert_int_equal(mgl_narrow_tokens(&program, 2 * 288 * mib, false), 32);
  assert_int_equal(mgl_narrow_tokens(&program, 2 * 288 * mib + 1, false), 16);
  assert_int_equal(mgl_narrow_tokens(&program, 1, false), 32);
  assert_int_equal(mgl_narrow_tokens(&program, 1, true), 16);
  assert_int_equal(mgl_narrow_context(&program, 2 * 288 * mib), MGL_NARROW_CONTEXT_SMALL);
  assert_int_equal(mgl_narrow_context(&program, 2 * 288 * mib + 1), MGL_NARROW_CONTEXT);
}

// --- several ranks -------------------------------------------------------------------------------

// A rank's linear_add leaves its parts where the norm behind it, of any rank, looks for them.
static void check_exchange(const world *w, const mgl_wide_op *op, const mgl_wide_op *behind,
                           uint32_t exchange) {
  const mgl_cuda_peers *peers = w->addresses.peers;
  const uint64_t inbox = w->addresses.block + w->wide.inbox + exchange % 2 * w->wide.inbox_bytes;
  const uint64_t own = inbox + (uint64_t)peers->rank * op->op.passes * op->op.copy_bytes;
  const bool weighs = (op->op.flags & MGL_WIDE_WEIGHS) != 0;
  const mgl_cuda_op *norm = weighs ? &op->with.norm : &behind->op;
  assert_int_equal(op->op.flags & MGL_WIDE_OVER, MGL_WIDE_OVER);
  assert_ptr_equal(op->op.out, mgl_cuda_pointer(weighs ? w->addresses.block + w->wide.parts : own));
  assert_true(!weighs || op->op.exchange >= w->wide.stages);
  assert_int_equal(norm->kind, MGL_OP_RMSNORM);
  assert_ptr_equal(norm->bias, mgl_cuda_pointer(inbox));
  assert_int_equal(norm->passes, peers->count * (weighs ? 1 : op->op.passes));
  assert_int_equal(norm->copy_bytes, op->op.copy_bytes);
  assert_true(norm->passes * norm->copy_bytes <= w->wide.inbox_bytes);
}

static void check_rank_graph(const world *w, uint32_t graph) {
  const mgl_cuda_wide_graph *g = &w->wide.graphs[graph];
  mgl_wide_op *ops = mgl_alloc_zeroed(g->op_count, sizeof *ops);
  mgl_cuda_step *steps = mgl_alloc_zeroed(g->step_count, sizeof *steps);
  uint32_t *own = mgl_alloc_zeroed(g->stage_count, sizeof *own);  // triggers of each event
  uint32_t *others = mgl_alloc_zeroed(g->stage_count, sizeof *others);
  uint32_t start[MGL_WIDE_LISTS_OF(WORKERS) + 1];
  uint32_t apart = 0;  // steps that trigger another event at the other ranks than here
  uint32_t exchanges = 0;
  const uint32_t vocab = w->model.vocab;
  const uint32_t ranks = w->addresses.peers->count;
  assert_int_equal(
      mgl_cuda_wide_make_graph(
          &w->addresses, graph, (mgl_cuda_wide_range){0, UINT32_MAX},
          &(mgl_cuda_wide_lists){.ops = ops, .steps = steps, .step_start = start}, NULL),
      MGL_OK);
  for (uint32_t i = 0; i < g->op_count; i++) {
    if (ops[i].op.kind == MGL_OP_LINEAR_ADD) {
      check_exchange(w, &ops[i], &ops[i + 1], ++exchanges);
    } else if (ops[i].op.kind == MGL_OP_LOGITS) {
      const uint32_t first = w->addresses.peers->rank * (vocab / ranks);
      assert_int_equal(ops[i].with.over.row, vocab);
      assert_int_equal(ops[i].with.over.first, first);
      assert_ptr_equal(ops[i].op.out, mgl_cuda_pointer(w->addresses.block + w->wide.logits +
                                                       first * sizeof(float)));
      assert_int_equal(ops[i + 1].op.kind, MGL_OP_ALL_GATHER);
    }
  }
  assert_int_equal(exchanges, 2 * LAYERS);
  for (uint32_t i = 0; i < g->step_count; i++) {
    const mgl_cuda_op *op = &ops[steps[i].op].op;
    const bool over = (op->flags & (MGL_WIDE_OVER | MGL_WIDE_WEIGHS)) == MGL_WIDE_OVER;
    own[steps[i].trigger_event]++;
    assert_true(over == (steps[i].trigger_kind != MGL_NO_EVENT));
    if (over) {
      assert_in_range(steps[i].trigger_kind, 0, g->stage_count - 1);
      others[steps[i].trigger_kind]++;
      apart += steps[i].trigger_kind != steps[i].trigger_event ? 1 : 0;
      assert_true(steps[i].trigger_kind == steps[i].trigger_event ||
                  (op->kind == MGL_OP_RMSNORM && (op->flags & MGL_WIDE_TURNED) != 0));
    }
  }
  for (uint32_t i = 0; i < g->step_count; i++) {
    const uint32_t event = steps[i].wait_event;
    if (event != MGL_NO_EVENT) {
      assert_int_equal(steps[i].wait_count, own[event] + others[event] * (ranks - 1));
    }
  }
  const bool turns = g->tokens / g->tile_tokens >= ranks;
  assert_true(turns == (apart > 0));
  mgl_free(ops);
  mgl_free(steps);
  mgl_free(own);
  mgl_free(others);
}

static void ranks_meet_in_inboxes(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < 2; rank++) {
    world w;
    const mgl_cuda_wide_sizes sizes = {.tokens = 2048,
                                       .sequences = 4,
                                       .logit_rows = 4,
                                       .pages_per_sequence = STRIDE,
                                       .workers = WORKERS,
                                       .few = true,
                                       .ranks = 2};
    const mgl_cuda_peers peers = {
        .rank = rank, .count = 2, .at = {UINT64_C(0x700000000), UINT64_C(0x900000000)}};
    open_rank(&w, CONFIG_OF("1024", "256", "768"), &sizes, &peers);
    for (uint32_t graph = 0; graph < w.wide.graph_count; graph++) {
      check_rank_graph(&w, graph);
    }
    // Counters of two iterations, which are not cleared with what one rank alone touches.
    assert_true(w.wide.counters >= w.wide.zeros + w.wide.zero_bytes);
    assert_true(w.wide.counters + 2 * w.wide.counters_bytes <= w.wide.bytes);
    const mgl_wide_chain chain = mgl_cuda_wide_make_chain(&w.addresses);
    assert_ptr_equal(chain.counters[1], chain.counters[0] + chain.counter_count);
    assert_true(chain.counter_count >= w.wide.stages + w.wide.shared_tiles);
    close_world(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_unit_is_one_task),
      cmocka_unit_test(experts_hand_on_what_they_leave),
      cmocka_unit_test(parts_are_added),
      cmocka_unit_test(ranks_meet_in_inboxes),
      cmocka_unit_test(the_image_says_what_the_plan_says),
      cmocka_unit_test(graphs_are_found_by_tokens),
      cmocka_unit_test(small_iterations_are_narrow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
