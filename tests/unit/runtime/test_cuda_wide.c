// The host side of the wide class: every unit of every op is one task's, stages wait for all of the
// stage before, and the image of a launch says what the plan says.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "graph/family.h"
#include "kernels/cuda/wide_layout.h"
#include "model/config.h"
#include "runtime/cuda_wide.h"

enum { WORKERS = 20, LAYERS = 3, STRIDE = 200 };

static const char config_json[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":1000,"
    "\"hidden_size\":264,\"intermediate_size\":648,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,"
    "\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}";

typedef struct world {
  mgl_graph *program;
  mgl_cuda_model model;
  mgl_cuda_layout layout;
  mgl_cuda_wide_layout wide;
  mgl_cu_ptr base[MGL_CUDA_MEMORY_COUNT];
  mgl_cuda_wide_addresses addresses;
} world;

static void open_world(world *w, const mgl_cuda_wide_sizes *sizes) {
  mgl_error err = {0};
  mgl_config config;
  mgl_generation generation;
  mgl_graph *canonical = NULL;
  memset(w, 0, sizeof *w);
  assert_int_equal(
      mgl_config_parse(config_json, strlen(config_json), "test", &config, &generation, &err),
      MGL_OK);
  assert_int_equal(mgl_family_build(&config, NULL, &canonical, &err), MGL_OK);
  assert_int_equal(mgl_fuse_ops_cuda(canonical, &w->program, &err), MGL_OK);
  assert_int_equal(mgl_cuda_model_of(w->program, &w->model, &err), MGL_OK);
  mgl_graph_destroy(canonical);
  mgl_cuda_sizes narrow = {.workers = WORKERS,
                           .iteration_tokens = 64,
                           .sequences = 1,
                           .pages_per_sequence = 1,
                           .page_count = 1};
  assert_int_equal(mgl_cuda_layout_make(w->program, &w->model, &narrow, &w->layout, &err), MGL_OK);
  mgl_cuda_wide_lay_out(w->program, &w->model, sizes, &w->wide);
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    w->base[i] = (i + UINT64_C(1)) << 40;
  }
  w->addresses = (mgl_cuda_wide_addresses){.program = w->program,
                                           .model = &w->model,
                                           .layout = &w->layout,
                                           .wide = &w->wide,
                                           .base = w->base,
                                           .block = w->base[MGL_CUDA_MEMORY_WIDE]};
}

static void close_world(world *w) {
  mgl_cuda_layout_free(&w->layout);
  mgl_graph_destroy(w->program);
}

// --- graphs --------------------------------------------------------------------------------------

// Units that an op has by its own numbers.
static uint32_t units_of(const mgl_wide_op *op, const mgl_cuda_wide_sizes *sizes) {
  uint32_t columns = op->op.kind == MGL_OP_GATE_UP ? 8 : 16;
  uint32_t features = ((op->op.n + columns - 1) / columns + 7) / 8;
  switch (op->op.kind) {
    case MGL_OP_EMBED: return op->op.tokens / 8;
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_KV_WRITE: return op->op.tokens == 0 ? op->attention.tokens : op->op.tokens;
    case MGL_OP_RMSNORM:
      return op->op.row_tiles / 8 * ((op->op.k + MGL_WIDE_NORM_RANGE - 1) / MGL_WIDE_NORM_RANGE);
    case MGL_OP_ATTEND: return sizes->workers;
    default: return features * (op->op.tokens / MGL_WIDE_TILE_TOKENS) * op->op.passes;
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
  uint32_t start[WORKERS + 1];
  mgl_cuda_wide_make_graph(&w->addresses, graph, ops, steps, start);
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
    assert_int_equal(done[i], units_of(&ops[i], &w->wide.sizes));
    assert_true(i == 0 || stage[i] >= stage[i - 1]);
  }
  mgl_free(ops);
  mgl_free(steps);
  mgl_free(done);
  mgl_free(tasks);
  mgl_free(stage);
  mgl_free(seen);
}

static void every_unit_is_one_task(void **state) {
  (void)state;
  static const uint32_t rows[] = {1, 100, 257, 1024};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    world w;
    mgl_cuda_wide_sizes sizes = {.tokens = 2048,
                                 .sequences = rows[i],
                                 .logit_rows = rows[i],
                                 .pages_per_sequence = STRIDE,
                                 .workers = WORKERS};
    open_world(&w, &sizes);
    assert_int_equal(w.wide.graph_count, MGL_CUDA_WIDE_GRAPHS);
    for (uint32_t graph = 0; graph < w.wide.graph_count; graph++) {
      // rope_angles and embed; norm and qkv, rope and attend, o, norm and gate_up, down; logits
      assert_int_equal(w.wide.graphs[graph].op_count, 2 + 8 * LAYERS + 2);
      check_graph(&w, graph);
    }
    close_world(&w);
  }
}

// A linear that leaves parts, and the norm behind it, mean the same ones.
static void parts_are_added(void **state) {
  (void)state;
  world w;
  mgl_cuda_wide_sizes sizes = {.tokens = 2048,
                               .sequences = 4,
                               .logit_rows = 4,
                               .pages_per_sequence = STRIDE,
                               .workers = WORKERS};
  open_world(&w, &sizes);
  uint32_t split = 0;
  for (uint32_t graph = 0; graph < w.wide.graph_count; graph++) {
    const mgl_cuda_wide_graph *g = &w.wide.graphs[graph];
    mgl_wide_op *ops = mgl_alloc_zeroed(g->op_count, sizeof *ops);
    mgl_cuda_step *steps = mgl_alloc_zeroed(g->step_count, sizeof *steps);
    uint32_t start[WORKERS + 1];
    const mgl_cuda_op *parts = NULL;
    mgl_cuda_wide_make_graph(&w.addresses, graph, ops, steps, start);
    for (uint32_t i = 0; i < g->op_count; i++) {
      const mgl_cuda_op *op = &ops[i].op;
      if (op->kind == MGL_OP_LINEAR_ADD) {
        assert_true(op->passes >= 1 && op->passes <= MGL_CUDA_WIDE_MAX_SPLITS);
        assert_true(op->passes <= op->k_padded / MGL_WIDE_K);
        assert_int_equal(op->out == op->residual, op->passes == 1);
        parts = op->passes > 1 ? op : NULL;
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
  open_world(&w, &sizes);
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

static void graphs_are_found_by_tokens(void **state) {
  (void)state;
  assert_int_equal(mgl_cuda_wide_graph_for(1), 0);
  assert_int_equal(mgl_cuda_wide_graph_for(256), 0);
  assert_int_equal(mgl_cuda_wide_graph_for(257), 1);
  assert_int_equal(mgl_cuda_wide_graph_for(1024), 2);
  assert_int_equal(mgl_cuda_wide_graph_for(2048), 3);
}

// A layer's weights decide.
static void small_iterations_are_narrow(void **state) {
  (void)state;
  const uint64_t mib = 1 << 20;
  mgl_op ops[5] = {{.kind = MGL_OP_EMBED},
                   {.kind = MGL_OP_ATTEND},
                   {.kind = MGL_OP_GATE_UP},
                   {.kind = MGL_OP_ATTEND},
                   {.kind = MGL_OP_LOGITS}};
  const mgl_graph program = {.ops = ops, .op_count = 5};
  assert_int_equal(mgl_cuda_wide_narrow_tokens(&program, 2 * 288 * mib), 32);
  assert_int_equal(mgl_cuda_wide_narrow_tokens(&program, 2 * 288 * mib + 1), 16);
  assert_int_equal(mgl_cuda_wide_narrow_tokens(&program, 1), 32);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_unit_is_one_task),
      cmocka_unit_test(parts_are_added),
      cmocka_unit_test(the_image_says_what_the_plan_says),
      cmocka_unit_test(graphs_are_found_by_tokens),
      cmocka_unit_test(small_iterations_are_narrow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
