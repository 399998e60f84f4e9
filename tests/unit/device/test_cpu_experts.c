// Ops of experts against sums in double: biases and the clamped activation, one slot and all, one
// expert and many; experts that nobody chose are not touched; and the partition of such an op.
#include <math.h>
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
#include "base/text.h"
#include "base/topology.h"
#include "compile/compile.h"
#include "device/cpu/cpu_eager.h"
#include "device/cpu/cpu_loads.h"
#include "device/cpu/cpu_program.h"
#include "graph/family.h"
#include "graph/graph_text.h"
#include "model/expert_weights.h"
#include "model/safetensors.h"
#include "support/must.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"
#include "task/tile.h"
#include "unit/device/cpu_bed.h"

enum { D = 40, F = 56, VOCABULARY = 64, MOST_TOKENS = 300, MOST_EXPERTS = 512 };

typedef struct experts_case {
  const char *name;
  uint32_t experts, slots, tokens;
  bool same_token;  // all tokens are alike, and choose the same experts
  bool biases;
  double limit;
} experts_case;

static const experts_case cases[] = {
    {.name = "usual", .experts = 8, .slots = 2, .tokens = 5},
    {.name = "one token", .experts = 8, .slots = 3, .tokens = 1},
    {.name = "one slot", .experts = 6, .slots = 1, .tokens = 20},
    {.name = "all experts", .experts = 5, .slots = 5, .tokens = 9},
    {.name = "one expert", .experts = 1, .slots = 1, .tokens = 7},
    {.name = "many experts", .experts = 512, .slots = 8, .tokens = 30},
    {.name = "all choose the same", .experts = 16, .slots = 4, .tokens = 290, .same_token = true},
    {.name = "biases", .experts = 4, .slots = 2, .tokens = 11, .biases = true},
    {.name = "clamped", .experts = 4, .slots = 2, .tokens = 70, .biases = true, .limit = 1.5},
};

static mgl_graph *make_program(const experts_case *c, mgl_dtype dtype) {
  mgl_text text = {0};
  mgl_graph *graph = NULL;
  const char *w = dtype == MGL_DTYPE_BF16 ? "bf16" : "f32";
  const uint32_t e = c->experts;
  mgl_text_format(
      &text,
      "program experts\n"
      "input tokens i32[T]\n"
      "weight table %s[%d,%d]\nweight norm %s[%d]\nweight router.gate.weight %s[%u,%d]\n"
      "weight l.experts.gate %s[%u,%d,%d]\nweight l.experts.up %s[%u,%d,%d]\n"
      "weight l.experts.down %s[%u,%d,%d]\n",
      w, VOCABULARY, D, w, D, w, e, D, w, e, F, D, w, e, F, D, w, e, D, F);
  if (c->biases) {
    mgl_text_format(&text, "weight bg %s[%u]\nweight bu %s[%u]\nweight bd %s[%u]\n", w, e * F, w,
                    e * F, w, e * D);
  }
  mgl_text_format(&text,
                  "x = embed(tokens, table) : f32[T,%d]\n"
                  "keep = embed(tokens, table) : f32[T,%d]\n"
                  "n = rmsnorm(x, norm) eps=1e-6 : %s[T,%d]\n"
                  "logits = linear(n, router.gate.weight) : f32[T,%u]\n"
                  "routes = route(logits) scale=1.5 renormalise=1 : f32[T,%u,2]\n"
                  "h = expert_gate_up(n, routes, l.experts.gate, l.experts.up%s) limit=%g : "
                  "%s[%uT,%d]\n"
                  "y = expert_down(x, h, routes, l.experts.down%s) : f32[T,%d]\n"
                  "output keep\noutput n\noutput routes\noutput h\noutput y\n",
                  D, D, w, D, e, c->slots, c->biases ? ", bg, bu" : "", c->limit, w, c->slots, F,
                  c->biases ? ", bd" : "", D);
  assert_int_equal(mgl_text_check(&text, NULL), MGL_OK);
  MUST(mgl_graph_parse(text.data, text.bytes, "text", &graph, &err));
  mgl_text_free(&text);
  return graph;
}

static void open_bed(cpu_bed *b, const experts_case *c, mgl_dtype dtype, mgl_simd simd) {
  static const int32_t pages[] = {0};
  const cpu_bed_options options = {
      .threads = 2,
      .memory = {.page_tokens = 16, .page_count = 1, .workers = 2},
      .program = {.simd = simd, .largest = {MOST_TOKENS, MOST_TOKENS, MOST_TOKENS}},
      .limits = {.tokens = MOST_TOKENS,
                 .sequences = MOST_TOKENS,
                 .pages_per_sequence = 1,
                 .page_tokens = 16}};
  cpu_bed_open(b, make_program(c, dtype), NULL, &options);
  for (uint32_t t = 0; t < c->tokens; t++) {
    const int32_t token = c->same_token ? 5 : (int32_t)(t * 7 % VOCABULARY);
    mgl_plan_add(b->plan, &(mgl_plan_chunk){.tokens = &token,
                                            .token_count = 1,
                                            .pages = pages,
                                            .page_count = 1,
                                            .logits = MGL_LOGITS_NONE});
  }
}

static mgl_dtype dtype_of(const cpu_bed *b) {
  return b->graph->tensors[mgl_graph_find(b->graph, "table")].dtype;
}

static void run(cpu_bed *b) {
  memset(b->memory->activations, 0xff, b->memory->activation_bytes);
  memset(b->memory->scratch, 0xff, b->memory->scratch_bytes * b->memory->options.workers);
  mgl_cpu_eager_run(b->program, b->team, b->plan);
}

static void *tensor_of(const cpu_bed *b, const char *name) {
  uint32_t tensor = mgl_graph_find(b->graph, name);
  assert_true(tensor != MGL_NO_TENSOR);
  return mgl_cpu_program_tensor(b->program, tensor);
}

static double element(mgl_dtype dtype, const void *from, size_t at) {
  float value = 0;
  mgl_widen_f32(dtype, (const unsigned char *)from + at * mgl_dtype_bytes(dtype), 1, &value);
  return (double)value;
}

// Row `row` of an expert's matrix [.., K] times x [K], plus its bias.
static double product(const cpu_bed *b, const char *weight, const char *bias, uint32_t expert,
                      uint32_t row, uint32_t rows, const void *x, uint32_t k) {
  const void *const *table = tensor_of(b, weight);
  double sum = bias == NULL ? 0 : (double)((const float *)tensor_of(b, bias))[expert * rows + row];
  for (uint32_t i = 0; i < k; i++) {
    sum += element(dtype_of(b), table[expert], (size_t)row * k + i) * element(dtype_of(b), x, i);
  }
  return sum;
}

static void expect_near(const experts_case *c, const char *what, uint32_t t, double found,
                        double expected, double error) {
  if (!(fabs(found - expected) <= error * (1 + fabs(expected)))) {
    fail_msg("%s: %s of token %u: expected %.9g, found %.9g", c->name, what, t, expected, found);
  }
}

// Of the inner row that the op made, whose rounding it shares, each stage is compared by itself.
static void check_token(const cpu_bed *b, const experts_case *c, uint32_t t) {
  const size_t bytes = mgl_dtype_bytes(dtype_of(b));
  const float *routes = (const float *)tensor_of(b, "routes") + (size_t)t * c->slots * 2;
  const unsigned char *n = (const unsigned char *)tensor_of(b, "n") + t * D * bytes;
  const unsigned char *h = (const unsigned char *)tensor_of(b, "h") + t * c->slots * F * bytes;
  const float *y = (const float *)tensor_of(b, "y") + (size_t)t * D;
  const float *x = (const float *)tensor_of(b, "keep") + (size_t)t * D;
  const double step = dtype_of(b) == MGL_DTYPE_BF16 ? 0x1p-8 : 1e-5;
  double sums[D];
  for (uint32_t i = 0; i < D; i++) {
    sums[i] = (double)x[i];
  }
  for (uint32_t s = 0; s < c->slots; s++) {
    const uint32_t e = (uint32_t)routes[2 * s];
    const double weight = (double)routes[2 * s + 1];
    for (uint32_t f = 0; f < F; f++) {
      double gate = product(b, "l.experts.gate", c->biases ? "bg" : NULL, e, f, F, n, D);
      double up = product(b, "l.experts.up", c->biases ? "bu" : NULL, e, f, F, n, D);
      double expected = gate / (1 + exp(-gate)) * up * weight;
      if (c->limit != 0) {
        gate = fmin(gate, c->limit);
        up = fmax(fmin(up, c->limit), -c->limit);
        expected = gate / (1 + exp(-1.702 * gate)) * (up + 1) * weight;
      }
      expect_near(c, "inner row", t, element(dtype_of(b), h, (size_t)s * F + f), expected, step);
    }
    for (uint32_t i = 0; i < D; i++) {
      sums[i] += product(b, "l.experts.down", NULL, e, i, D, h + s * F * bytes, F);
      if (c->biases) {
        sums[i] += weight * (double)((const float *)tensor_of(b, "bd"))[e * D + i];
      }
    }
  }
  for (uint32_t i = 0; i < D; i++) {
    expect_near(c, "result", t, (double)y[i], sums[i], 1e-5);
  }
}

static void results_are_those_of_sums(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int simd = MGL_SIMD_SCALAR; simd <= (int)mgl_simd_detected(); simd++) {
      const mgl_dtype dtypes[] = {MGL_DTYPE_BF16, MGL_DTYPE_F32};
      for (int j = 0; j < 2; j++) {
        cpu_bed b;
        open_bed(&b, &cases[i], dtypes[j], (mgl_simd)simd);
        run(&b);
        for (uint32_t t = 0; t < cases[i].tokens; t++) {
          check_token(&b, &cases[i], t);
        }
        cpu_bed_close(&b);
      }
    }
  }
}

// The tables of experts that nobody chose are made NULL, and the result stays the same.
static void others_are_not_read(void **state) {
  (void)state;
  const experts_case *c = &cases[5];
  cpu_bed b;
  open_bed(&b, c, MGL_DTYPE_BF16, mgl_simd_detected());
  run(&b);
  bool chosen[MOST_EXPERTS] = {false};
  float expected[MOST_TOKENS * D];
  const float *routes = tensor_of(&b, "routes");
  for (uint32_t row = 0; row < c->tokens * c->slots; row++) {
    chosen[(uint32_t)routes[2 * row]] = true;
  }
  memcpy(expected, tensor_of(&b, "y"), (size_t)c->tokens * D * sizeof *expected);
  uint32_t others = 0;
  for (uint32_t e = 0; e < c->experts; e++) {
    if (!chosen[e]) {
      static const char *const names[] = {"l.experts.gate", "l.experts.up", "l.experts.down"};
      others++;
      for (int i = 0; i < 3; i++) {
        ((const void **)tensor_of(&b, names[i]))[e] = NULL;
      }
    }
  }
  assert_true(others > c->experts / 2);
  run(&b);
  assert_memory_equal(expected, tensor_of(&b, "y"), (size_t)c->tokens * D * sizeof *expected);
  cpu_bed_close(&b);
}

// A step of one token reads its experts only.
static void bytes_of_a_step(void **state) {
  (void)state;
  cpu_bed b;
  open_bed(&b, &cases[5], MGL_DTYPE_BF16, MGL_SIMD_SCALAR);
  const uint64_t expert = UINT64_C(3) * D * F * 2;
  assert_int_equal(b.weights.step_bytes, 512 * D * 2 + 8 * expert);
  cpu_bed_close(&b);
}

// Rows and reads as the routes say, and the ratios that follow; one iteration after the other.
static void loads_are_counted(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const experts_case *c = &cases[i];
    uint64_t rows[MOST_EXPERTS] = {0}, reads = 0, largest = 0;
    mgl_expert_loads found;
    cpu_bed b;
    open_bed(&b, c, MGL_DTYPE_BF16, MGL_SIMD_SCALAR);
    mgl_cpu_loads_read(&b.memory->loads, &found);
    assert_int_equal(found.mixtures, c->experts > 1 ? 1 : 0);
    assert_true(found.rows == 0 && found.reads == 0 && found.largest_over_mean == 0);
    run(&b);
    const float *routes = tensor_of(&b, "routes");
    for (uint32_t row = 0; row < c->tokens * c->slots; row++) {
      uint64_t *of = &rows[(uint32_t)routes[2 * row]];
      reads += (*of)++ == 0;
      largest = *of > largest ? *of : largest;
    }
    mgl_cpu_loads_read(&b.memory->loads, &found);
    if (c->experts > 1) {
      const double mean = (double)(c->tokens * c->slots) / c->experts;
      assert_true(found.experts == c->experts && found.runs == 1);
      assert_int_equal(found.rows, c->tokens * c->slots);
      assert_int_equal(found.reads, reads);
      assert_int_equal(found.bytes, reads * 3 * D * F * 2);
      assert_int_equal(found.step_bytes, c->slots * UINT64_C(3) * D * F * 2);
      assert_true(fabs(found.largest_over_mean - (double)largest / mean) < 1e-9);
      run(&b);
      mgl_cpu_loads_read(&b.memory->loads, &found);
      assert_true(found.runs == 2 && found.reads == 2 * reads);
    }
    cpu_bed_close(&b);
  }
}

// Routers of zeros choose the first experts for all tokens; skewed ones read fewer.
static void dummies_are_routed(void **state) {
  (void)state;
  mgl_expert_loads found[3];
  for (int routing = MGL_ROUTING_UNIFORM; routing <= MGL_ROUTING_ONE; routing++) {
    cpu_bed b;
    open_bed(&b, &cases[5], MGL_DTYPE_BF16, MGL_SIMD_SCALAR);
    mgl_cpu_route_dummies(&b.weights, (mgl_routing)routing);
    run(&b);
    mgl_cpu_loads_read(&b.memory->loads, &found[routing]);
    const float *routes = tensor_of(&b, "routes");
    for (uint32_t row = 0; routing == MGL_ROUTING_ONE && row < cases[5].tokens * 8; row++) {
      assert_true(routes[2 * row] == (float)(row % 8));
    }
    cpu_bed_close(&b);
  }
  assert_int_equal(found[MGL_ROUTING_ONE].reads, 8);
  assert_true(found[MGL_ROUTING_SKEWED].reads < found[MGL_ROUTING_UNIFORM].reads);
  assert_true(found[MGL_ROUTING_SKEWED].largest_over_mean >
              found[MGL_ROUTING_UNIFORM].largest_over_mean);
}

// The same example through the compiler: a grid of y tasks gives task y rows [y * N / grid,
// (y + 1) * N / grid), rounded to grains, which here divide.
static void the_compiler_cuts_as_the_grid_says(void **state) {
  (void)state;
  enum { GRID = 4, WIDE = 64 };
  static const char text[] =
      "program w13\n"
      "input tokens i32[T]\n"
      "weight table bf16[64,40]\nweight norm bf16[40]\nweight router bf16[8,40]\n"
      "weight l.experts.gate bf16[8,64,40]\nweight l.experts.up bf16[8,64,40]\n"
      "weight l.experts.down bf16[8,40,64]\n"
      "x = embed(tokens, table) : f32[T,40]\n"
      "n = rmsnorm(x, norm) eps=1e-6 : bf16[T,40]\n"
      "logits = linear(n, router) : f32[T,8]\n"
      "routes = route(logits) scale=1 : f32[T,2,2]\n"
      "h = expert_gate_up(n, routes, l.experts.gate, l.experts.up) : bf16[2T,64]\n"
      "y = expert_down(x, h, routes, l.experts.down) : f32[T,40]\noutput y\n";
  const mgl_compile_override cut = {.op = "h", .grid = {GRID, 1, 1}};
  const mgl_compile_options options = {
      .tokens = 4, .workers = 3, .overrides = &cut, .override_count = 1, .verify = true};
  mgl_graph *graph = NULL;
  mgl_task_graph *tasks = NULL;
  MUST(mgl_graph_parse(text, strlen(text), "text", &graph, &err));
  MUST(mgl_compile(graph, &options, &tasks, NULL, &err));
  uint32_t found = 0;
  for (uint32_t i = 0; i < tasks->task_count; i++) {
    const mgl_task *task = &tasks->tasks[i];
    if (task->type != MGL_OP_EXPERT_GATE_UP || (task->flags & MGL_TASK_EMPTY) != 0) {
      continue;
    }
    assert_int_equal(task->begin, found * WIDE / GRID);
    assert_int_equal(task->end, (found + 1) * WIDE / GRID);
    found++;
  }
  assert_int_equal(found, GRID);
  mgl_task_graph_destroy(tasks);
  mgl_graph_destroy(graph);
}

// The example of MPK's moe_w13: grid (1, y, 1) cuts rows of every expert's matrix and columns of the
// result; input and routing are whole in every task.
static void tiles_cut_the_rows_of_all_experts(void **state) {
  (void)state;
  enum { TOKENS = 4, TASKS = 7 };
  mgl_graph *graph = make_program(&cases[0], MGL_DTYPE_BF16);
  const mgl_op *op = NULL;
  for (size_t i = 0; i < graph->op_count; i++) {
    op = graph->ops[i].kind == MGL_OP_EXPERT_GATE_UP ? &graph->ops[i] : op;
  }
  assert_non_null(op);
  assert_int_equal(mgl_tile_units(graph, op, TOKENS, 1), F);
  for (uint32_t y = 0; y < TASKS; y++) {
    const uint32_t begin = y * F / TASKS;
    const uint32_t end = (y + 1) * F / TASKS;
    const mgl_region expected[] = {
        {mgl_graph_find(graph, "n"), 0, TOKENS, 0, D},
        {mgl_graph_find(graph, "routes"), 0, TOKENS, 0, 2 * 2},
        {mgl_graph_find(graph, "l.experts.gate"), 0, 8, begin * D, end * D},
        {mgl_graph_find(graph, "l.experts.up"), 0, 8, begin * D, end * D},
        {mgl_graph_find(graph, "h"), 0, 2 * TOKENS, begin, end},
    };
    mgl_tile_operand found[MGL_TILE_MAX_OPERANDS];
    assert_int_equal(mgl_tile_operands(graph, op, TOKENS, 1, begin, end, found), 5);
    for (uint32_t i = 0; i < 5; i++) {
      assert_memory_equal(&found[i].region, &expected[i], sizeof expected[i]);
    }
    // Of one token two experts' rows are read, of four at most all eight.
    assert_int_equal(mgl_tile_weight_bytes(graph, op, 1, 1, begin, end),
                     2 * 2 * (end - begin) * D * 2);
    assert_int_equal(mgl_tile_weight_bytes(graph, op, TOKENS, 1, begin, end),
                     2 * 8 * (end - begin) * D * 2);
  }
  mgl_graph_destroy(graph);
}

// What feeds ops of experts is made by a route of as many: nothing else says which there are.
static void other_routes_are_refused(void **state) {
  (void)state;
  static const char *const programs[] = {
      "program p\ninput positions i32[T]\ninput tokens i32[T]\nweight table bf16[9,16]\n"
      "weight g.experts.w bf16[4,16,16]\n"
      "x = embed(tokens, table) : f32[T,16]\n"
      "r = rope_angles(positions) values=[1,1] : f32[T,2,2]\n"
      "h = expert_gate_up(x, r, g.experts.w, g.experts.w) : f32[2T,16]\noutput h\n",
      "program p\ninput tokens i32[T]\nweight table bf16[9,16]\nweight g.experts.w bf16[4,16,16]\n"
      "x = embed(tokens, table) : f32[T,16]\nl = embed(tokens, table) : f32[T,16]\n"
      "r = route(l) scale=1 : f32[T,2,2]\n"
      "h = expert_gate_up(x, r, g.experts.w, g.experts.w) : f32[2T,16]\noutput h\n",
  };
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    mgl_graph *graph = NULL;
    mgl_error err = {0};
    assert_int_equal(mgl_graph_parse(programs[i], strlen(programs[i]), "text", &graph, &err),
                     MGL_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "routes must come from a route of as many experts"));
  }
}

// --- files whose experts are not what the configuration says -------------------------------------

static const mgl_config small_config = {
    .family = MGL_FAMILY_QWEN3_MOE,
    .hidden_size = 8,
    .intermediate_size = 8,
    .layer_count = 1,
    .head_count = 1,
    .kv_head_count = 1,
    .head_dim = 8,
    .vocab_size = 9,
    .context_tokens = 64,
    .rms_norm_eps = 1e-6,
    .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
    .qk_norm = true,
    .tie_word_embeddings = true,
    .mixture = {.expert_count = 3, .slots = 2, .inner_size = 4, .scale = 1},
    .dtype = MGL_DTYPE_BF16,
    .bos_id = -1};

// What becomes of the tensor of that name.
typedef struct damage {
  const char *name;
  enum { INTACT, MISSING, TRANSPOSED, FLAT, OF_F32 } what;
  mgl_status status;
  const char *message;
} damage;

static void write_tensor(safetensors_writer *writer, const damage *d, const char *name,
                         uint32_t rank, uint64_t rows, uint64_t columns) {
  static const float zeros[256];
  const bool hit = strcmp(name, d->name) == 0;
  uint64_t dims[] = {rows, columns};
  if (hit && d->what == TRANSPOSED) {
    dims[0] = columns;
    dims[1] = rows;
  }
  if (hit && d->what == FLAT) {
    dims[0] *= columns;
    rank = 1;
  }
  if (!hit || d->what != MISSING) {
    safetensors_add(writer, name, hit && d->what == OF_F32 ? MGL_DTYPE_F32 : MGL_DTYPE_BF16, rank,
                    dims, zeros);
  }
}

static void write_model(const temp_folder *folder, const damage *d) {
  mgl_graph *graph = NULL;
  safetensors_writer writer;
  MUST(mgl_family_build(&small_config, NULL, &graph, &err));
  safetensors_begin(&writer, folder->path, "model.safetensors");
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *t = &graph->tensors[i];
    for (uint32_t e = 0; e < mgl_tensor_experts(t); e++) {
      char name[MGL_GRAPH_MAX_NAME_BYTES];
      mgl_expert_weight_name(t->name, e, name, sizeof name);
      write_tensor(&writer, d, name, 2, t->dims[1].number, t->dims[2].number);
    }
    if (t->placement == MGL_PLACE_WEIGHT && t->rank < 3) {
      write_tensor(&writer, d, t->name, t->rank, t->dims[0].number,
                   t->rank == 2 ? t->dims[1].number : 1);
    }
  }
  safetensors_finish(&writer);
  mgl_graph_destroy(graph);
}

// Builds the program for the checkpoint, and binds its weights.
static mgl_status bind(const mgl_checkpoint *checkpoint, mgl_error *err) {
  mgl_graph *graph = NULL;
  mgl_cpu_weights weights;
  MGL_TRY(mgl_family_build(&small_config, checkpoint, &graph, err));
  mgl_status status = mgl_cpu_weights_bind(graph, checkpoint, MGL_WEIGHTS_MAPPED, 0, NULL, NULL,
                                           NULL, &weights, err);
  if (status == MGL_OK) {
    mgl_cpu_weights_release(&weights);
  }
  mgl_graph_destroy(graph);
  return status;
}

static void files_with_other_experts_are_refused(void **state) {
  (void)state;
#define EXPERTS "model.layers.0.mlp.experts."
  static const damage damages[] = {
      {"", INTACT, MGL_OK, ""},
      {EXPERTS "0.gate_proj.weight", MISSING, MGL_ERR_FORMAT,
       "\"" EXPERTS "0.gate_proj.weight\" is missing"},
      {EXPERTS "2.down_proj.weight", MISSING, MGL_ERR_FORMAT,
       "\"" EXPERTS "2.down_proj.weight\" is missing"},
      {EXPERTS "1.up_proj.weight", TRANSPOSED, MGL_ERR_FORMAT,
       "\"" EXPERTS "1.up_proj.weight\": the configuration expects shape [4, 8], the file has [8, "
       "4]"},
      {EXPERTS "0.down_proj.weight", FLAT, MGL_ERR_FORMAT,
       "expects shape [8, 4], the file has [32]"},
      {EXPERTS "2.up_proj.weight", OF_F32, MGL_ERR_UNSUPPORTED,
       "\"" EXPERTS "2.up_proj.weight\": expected bf16 as the layer's other experts, found f32"},
      {"model.layers.0.mlp.gate.weight", MISSING, MGL_ERR_FORMAT, "mlp.gate.weight\" is missing"},
      {"model.layers.0.mlp.gate.weight", TRANSPOSED, MGL_ERR_FORMAT, "expects shape [3, 8]"},
  };
  for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
    temp_folder folder;
    mgl_checkpoint *checkpoint = NULL;
    mgl_error err = {0};
    const int64_t live = mgl_alloc_live();
    temp_folder_create(&folder);
    write_model(&folder, &damages[i]);
    assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
    mgl_status status = bind(checkpoint, &err);
    if (status != damages[i].status || strstr(err.text, damages[i].message) == NULL) {
      fail_msg("%s: status %d, \"%s\"; expected \"%s\"", damages[i].name, (int)status, err.text,
               damages[i].message);
    }
    mgl_checkpoint_close(checkpoint);
    temp_folder_remove(&folder);
    assert_int_equal(mgl_alloc_live(), live);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(results_are_those_of_sums),
      cmocka_unit_test(others_are_not_read),
      cmocka_unit_test(bytes_of_a_step),
      cmocka_unit_test(loads_are_counted),
      cmocka_unit_test(dummies_are_routed),
      cmocka_unit_test(tiles_cut_the_rows_of_all_experts),
      cmocka_unit_test(the_compiler_cuts_as_the_grid_says),
      cmocka_unit_test(other_routes_are_refused),
      cmocka_unit_test(files_with_other_experts_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
