// Mode full of the fake GPU.
//
// A graph is the launches that were captured. Each stands for its op; the last one of an iteration
// samples and plans.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda/cuda_plan.h"
#include "graph/graph.h"
#include "support/fake_cuda.h"
#include "support/fake_cuda_calls.h"
#include "support/fake_cuda_parts.h"
#include "twin/full_turn.h"
#include "twin/packing.h"
#include "twin/plain_op.h"

uint32_t fake_cuda_looks_left;

static const mgl_lanes one_lane = {.lane = 0, .count = 1};

typedef struct fake_node {
  const char *name;
  unsigned blocks;
  unsigned plain_threads;  // of a plain kernel's block; 0: it is none
  union {
    mgl_cuda_op_launch launch;
    mgl_plain_op plain;
    mgl_custom_launch custom;
  };
} fake_node;

typedef struct fake_graph {
  uint32_t count;
  fake_node nodes[];
} fake_graph;

enum { MAX_NODES = 1024 };

static fake_graph *captured;  // NULL: nothing is being captured

static mgl_cu_result fake_capture_begin(void *stream, int mode) {
  (void)stream;
  assert_int_equal(mode, MGL_CU_CAPTURE_RELAXED);
  assert_null(captured);
  captured = fake_cuda_track(calloc(1, sizeof *captured + MAX_NODES * sizeof *captured->nodes));
  return 0;
}

static void run_node(const fake_node *node);

static mgl_cu_result fake_launch_config(const mgl_cu_launch_config *config, void *function,
                                        void **parameters, void **extra) {
  (void)extra;
  assert_int_equal(config->attribute_count, 1);
  assert_int_equal(config->attributes[0].id, MGL_CU_LAUNCH_PROGRAMMATIC);
  assert_int_equal(config->attributes[0].value, 1);
  const fake_node node = {.name = function,
                          .blocks = config->grid_x,
                          .launch = *(const mgl_cuda_op_launch *)parameters[0]};
  if (captured == NULL) {  // one by one
    fake.run = node.launch.run;
    fake_cuda_looks_left = 2;
    fake.loose_launches++;
    fake_cuda_note_call(node.name, node.blocks, config->block_x, false);
    run_node(&node);
    return 0;
  }
  assert_true(captured->count < MAX_NODES);
  captured->nodes[captured->count++] = node;
  return fake.capture_fails ? 1 : 0;
}

bool fake_cuda_plain_captured(const char *name, unsigned blocks, unsigned threads, void **p) {
  if (captured == NULL) {
    return false;
  }
  assert_true(captured->count < MAX_NODES);
  fake_node *node = &captured->nodes[captured->count++];
  *node = (fake_node){.name = name, .blocks = blocks, .plain_threads = threads};
  if (fake_cuda_is_custom(name)) {
    node->custom = *(const mgl_custom_launch *)p[0];
    return true;
  }
  node->plain = *(const mgl_plain_op *)p[0];
  if (captured->count == 1) {
    fake.captured_rows = node->plain.out.rows;
  }
  return true;
}

static mgl_cu_result fake_capture_end(void *stream, void **graph) {
  (void)stream;
  *graph = captured;
  captured = NULL;
  return 0;
}

static mgl_cu_result fake_graph_print(void *graph, const char *path, unsigned flags) {
  const fake_graph *from = graph;
  FILE *file = fopen(path, "w");
  (void)flags;
  assert_non_null(file);
  (void)fprintf(file, "digraph { %u nodes }\n", (unsigned)from->count);
  (void)fclose(file);
  return 0;
}

static mgl_cu_result fake_graph_instantiate(void **executable, void *graph,
                                            unsigned long long flags) {
  const fake_graph *from = graph;
  size_t bytes = sizeof *from + from->count * sizeof *from->nodes;
  (void)flags;
  *executable = memcpy(fake_cuda_track(malloc(bytes)), from, bytes);
  fake.free_bytes -= fake.graph_bytes;
  return 0;
}

static mgl_cu_result fake_graph_destroy(void *graph) {
  fake_cuda_release(graph);
  return 0;
}

static bool kernel_is_of(const fake_node *node) {
  static const struct {
    uint32_t kind;
    const char *name;
  } kernels[] = {{MGL_OP_EMBED, "mgl_op_embed"},        {MGL_OP_ATTEND, "mgl_op_attend"},
                 {MGL_OP_SAMPLE, "mgl_op_sample"},      {MGL_OP_QKV_PROJ, "mgl_op_linear_"},
                 {MGL_OP_LINEAR_ADD, "mgl_op_linear_"}, {MGL_OP_GATE_UP, "mgl_op_linear_"},
                 {MGL_OP_LOGITS, "mgl_op_linear_"}};
  const mgl_cuda_op *op = &node->launch.ops[0];
  if ((op->flags & MGL_CUDA_EXPERTS) != 0 || mgl_op_packing(op) != MGL_PACKING_BF16) {
    fake.task_launches++;
    return strcmp(node->name, "mgl_op_task") == 0;
  }
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
    if (kernels[i].kind == op->kind) {
      return strncmp(node->name, kernels[i].name, strlen(kernels[i].name)) == 0;
    }
  }
  return false;
}

void fake_cuda_run_plan_kernel(mgl_cuda_run *run, uint64_t *host_plan, mgl_op_first *firsts) {
  uint64_t iteration = mgl_load_relaxed(&run->protocol.published);
  fake.plan_launches++;
  fake_cuda_looks_left = 2;
  run->planning.planning_ns += 10;
  *host_plan = mgl_full_turn(one_lane, run, firsts, iteration, true);
}

// As mgl_op_next_plan of op_kernels.cu.
static void plan_next(const mgl_cuda_op_launch *launch) {
  mgl_cuda_run *run = launch->run;
  uint64_t iteration = mgl_load_relaxed(&run->protocol.published);
  uint32_t tokens = 0;
  if (launch->plan->token_count > 0 && run->planner != NULL &&
      mgl_load_relaxed(&run->protocol.fault) == MGL_FAULT_NONE) {
    assert_ptr_equal(launch->next_plan, &run->plans[iteration & 1]);
    run->planning.planning_ns += 10;
    *launch->host_plan = mgl_full_turn(one_lane, run, launch->firsts, iteration, false);
    tokens = mgl_host_plan_tokens(*launch->host_plan);
  }
  if (tokens == 0) {
    mgl_cuda_plan_clear(launch->next_plan);
  }
}

static void end_iteration(const mgl_cuda_op_launch *launch) {
  mgl_cuda_run *run = launch->run;
  uint64_t iteration = mgl_load_relaxed(&run->protocol.published);
  fake.empty_iterations += launch->plan->token_count == 0;
  if (launch->plan->token_count > 0) {
    fake_cuda_sample(run, iteration - 1);
    run->iteration_ns[iteration % run->iteration_capacity] = 1000 * (iteration + 1);
  }
}

// The plan has what attention's kernel is made for, and what it begins its items with.
static void look_at_attention(const fake_node *node) {
  const mgl_cuda_op_launch *launch = &node->launch;
  const mgl_cuda_plan *plan = launch->plan;
  const mgl_cuda_run *run = launch->run;
  bool any = strcmp(node->name, "mgl_op_attend_any") == 0;
  fake.attend_kernel = node->name;
  fake.attend_tokens = launch->ops[0].tokens;
  fake.attends_any += any ? 1 : 0;
  fake.attends_long += strcmp(node->name, "mgl_op_attend_long") == 0 ? 1 : 0;
  for (uint32_t i = 0; i < plan->item_count; i++) {
    const mgl_cuda_item *item = &plan->items[i];
    const mgl_op_first *first = &launch->firsts[launch->parity * MGL_CUDA_MAX_ITEMS + i];
    const int32_t *table = run->block_tables + (size_t)item->slot * run->block_table_stride;
    assert_memory_equal(item, &first->item, sizeof *item);
    assert_true(any || (item->count == 1 && item->fresh == item->position));
    assert_int_equal(first->own_first, table[item->position / MGL_CUDA_KV_PAGE_TOKENS]);
    assert_int_equal(first->own_last,
                     table[(item->position + item->count - 1) / MGL_CUDA_KV_PAGE_TOKENS]);
    uint32_t end = item->fresh < item->kv_end ? item->fresh : item->kv_end;
    for (uint32_t warp = 0; warp < MGL_CUDA_CONSUMER_WARPS; warp++) {
      uint32_t position = item->kv_begin + warp * MGL_CUDA_KV_PAGE_TOKENS;
      if (position < end) {
        assert_int_equal(first->pages[warp], table[position / MGL_CUDA_KV_PAGE_TOKENS]);
      }
    }
  }
}

static void run_node(const fake_node *node) {
  const mgl_cuda_op_launch *launch = &node->launch;
  mgl_cuda_run *run = launch->run;
  bool first = launch->ops[0].kind == MGL_OP_EMBED;
  assert_true(kernel_is_of(node));
  assert_true(launch->plan->token_count <= run->graphs[launch->graph].tokens);
  assert_int_equal(node->blocks, launch->blocks + (launch->ops[1].kind != MGL_OP_COUNT ? 1 : 0));
  assert_int_equal(launch->ordinal, first ? 0 : fake.ordinal + 1);
  fake.ordinal = launch->ordinal;
  if (launch->ops[0].kind == MGL_OP_ATTEND) {
    look_at_attention(node);
  }
  if (launch->ops[1].kind == MGL_OP_NEXT_PLAN) {
    plan_next(launch);
  }
  if (first && launch->plan->token_count > 0) {
    uint64_t iteration = mgl_load_relaxed(&run->protocol.published);
    assert_ptr_equal(launch->plan, &run->plans[iteration & 1]);
    assert_int_equal(launch->ops[1].kind, MGL_OP_ROPE_ANGLES);
    bool decodes = launch->plan->sequence_count == launch->plan->token_count;
    fake.decode_iterations += decodes ? 1 : 0;
    fake.mixed_iterations += decodes ? 0 : 1;
    fake_cuda_compute_rows(run, iteration);
    mgl_store_relaxed(&run->protocol.published, iteration + 1);
    run->iteration_ns[iteration % run->iteration_capacity] = 1000 * (iteration + 1);
  }
  if (launch->ops[0].kind == MGL_OP_SAMPLE) {
    assert_int_equal(launch->ordinal + 1, launch->op_launches);
    end_iteration(launch);
  }
}

static mgl_cu_result fake_graph_launch(void *executable, void *stream) {
  const fake_graph *graph = executable;
  (void)stream;
  fake.graph_launches++;
  fake_cuda_note_call(FAKE_CUDA_GRAPH, 0, 0, false);
  if (graph->count == 0) {
    return 0;  // of ops that have nothing to do
  }
  if (graph->nodes[0].plain_threads != 0) {
    for (uint32_t i = 0; i < graph->count; i++) {
      const fake_node *node = &graph->nodes[i];
      void *parameters[] = {(void *)(uintptr_t)&node->plain};
      fake_cuda_note_call(node->name, node->blocks, node->plain_threads, true);
      if (fake_cuda_is_custom(node->name)) {
        fake_cuda_custom_run(node->name, node->blocks, node->plain_threads, &node->custom, true);
        continue;
      }
      fake.graph_kernels++;
      assert_true(
          fake_cuda_plain_launch(node->name, node->blocks, node->plain_threads, parameters));
    }
    return 0;
  }
  fake.run = graph->nodes[0].launch.run;
  fake_cuda_looks_left = 2;
  for (uint32_t i = 0; i < graph->count; i++) {
    fake_cuda_note_call(graph->nodes[i].name, graph->nodes[i].blocks, 0, true);
    run_node(&graph->nodes[i]);
  }
  return 0;
}

void fake_cuda_full_driver(mgl_cuda_driver *d) {
  d->launch_config = fake_launch_config;
  d->capture_begin = fake_capture_begin;
  d->capture_end = fake_capture_end;
  d->graph_destroy = fake_graph_destroy;
  d->graph_print = fake_graph_print;
  d->graph_instantiate = fake_graph_instantiate;
  d->graph_launch = fake_graph_launch;
  d->graph_release = fake_graph_destroy;
  fake_cuda_looks_left = 0;
}
