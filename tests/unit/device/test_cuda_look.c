// Looking into a GPU's program without a GPU, over the fake driver of support/fake_cuda.h: its trace,
// activations and KV pages, and ops that are left out.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/json.h"
#include "device/cuda/cuda_program.h"
#include "device/cuda/cuda_program_parts.h"
#include "support/fake_cuda.h"
#include "support/fake_cuda_calls.h"
#include "support/fake_model.h"
#include "support/must.h"
#include "twin/wide_layout.h"

enum { WORKERS = FAKE_CUDA_WORKERS };

// --- the trace -----------------------------------------------------------------------------------

typedef struct seen_spans {
  size_t count[MGL_CUDA_TRACE_ROLES];
  double least_us, most_us;  // begins of all, since the first iteration began
} seen_spans;

// A span of the fake's trace is where the fake said that it is.
static void check_span(mgl_json_object o, const mgl_cuda_program *program, seen_spans *seen) {
  static const double begin_ns[] = {-FAKE_CUDA_TASK_NS / 4, 0, -FAKE_CUDA_TASK_NS / 4,
                                    FAKE_CUDA_TASK_NS / 2};
  static const double length_ns[] = {FAKE_CUDA_TASK_NS / 4, FAKE_CUDA_TASK_NS / 2,
                                     FAKE_CUDA_TASK_NS / 4, FAKE_CUDA_TASK_NS / 10};
  mgl_error err = {0};
  mgl_json_object args;
  uint64_t tid = 0, graph = 0, iteration = 0, index = 0;
  double ts = 0, duration = 0, stream = 0;
  assert_int_equal(mgl_json_u64(o, "tid", 0, UINT32_MAX, &tid, &err), MGL_OK);
  assert_int_equal(mgl_json_opt_double(o, "ts", -1e15, 1e15, &ts, &err), MGL_OK);
  assert_int_equal(mgl_json_opt_double(o, "dur", 0, 1e15, &duration, &err), MGL_OK);
  assert_int_equal(mgl_json_opt_object(o, "args", &args, &err), MGL_OK);
  assert_int_equal(mgl_json_u64(args, "graph", 0, 4, &graph, &err), MGL_OK);
  assert_int_equal(mgl_json_u64(args, "iteration", 0, 100, &iteration, &err), MGL_OK);
  assert_int_equal(mgl_json_u64(args, "index", 0, UINT32_MAX, &index, &err), MGL_OK);
  assert_int_equal(mgl_json_opt_double(args, "stream_us", 0, 1e15, &stream, &err), MGL_OK);
  uint32_t role = (uint32_t)tid % MGL_CUDA_TRACE_ROLES;
  // The prompt's three tokens take the graph for four, and each token after them that for one.
  assert_int_equal(graph, iteration == 0 ? 2 : 0);
  assert_true(index < mgl_cuda_program_graph(program, (uint32_t)graph)->task_count);
  double ns = ts * 1e3 - (double)(fake.iteration_step_ns * iteration) - begin_ns[role];
  double number = ns / FAKE_CUDA_TASK_NS;
  assert_true(number > 0.99 && number < 500);
  assert_true(ns - FAKE_CUDA_TASK_NS * (double)(int)(number + 0.5) < 2);
  assert_true(ns - FAKE_CUDA_TASK_NS * (double)(int)(number + 0.5) > -2);
  assert_true(duration * 1e3 - length_ns[role] < 2 && duration * 1e3 - length_ns[role] > -2);
  double starved_ns = role == MGL_CUDA_TRACE_COMPUTE ? FAKE_CUDA_TASK_NS / 4 : 0;
  assert_true(stream * 1e3 - starved_ns < 2 && stream * 1e3 - starved_ns > -2);
  seen->count[role]++;
  seen->least_us = ts < seen->least_us ? ts : seen->least_us;
  seen->most_us = ts > seen->most_us ? ts : seen->most_us;
}

static seen_spans read_trace(mgl_cuda_program *program) {
  mgl_error err = {0};
  mgl_text text = {0};
  json_t *root = NULL;
  seen_spans seen = {.least_us = 1e15, .most_us = -1e15};
  if (mgl_cuda_program_trace_json(program, &text, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(mgl_json_parse(text.data, text.bytes, "the trace", &root, &err), MGL_OK);
  const json_t *events = json_object_get(root, "traceEvents");
  for (size_t i = 0; i < json_array_size(events); i++) {
    const json_t *event = json_array_get(events, i);
    if (strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0) {
      check_span((mgl_json_object){event, "a span"}, program, &seen);
    }
  }
  json_decref(root);
  mgl_text_free(&text);
  return seen;
}

// Iterations are a second apart: the halves of the clocks that spans have turn over in between.
static void a_trace_has_the_times_of_the_clocks(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  fake.iteration_step_ns = 1000000000;
  mgl_cuda_program_options options = fake_model_usual;
  options.build.trace_tasks = 1000;
  mgl_cuda_program *program = fake_model_program(&device, options);
  for (int again = 0; again < 2; again++) {
    assert_int_equal(fake_model_run(program, 6, (mgl_cuda_launch_options){0}, &err), MGL_OK);
    assert_int_equal(fake.run->span_count, 1024);
    seen_spans seen = read_trace(program);
    size_t tasks = mgl_cuda_program_graph(program, 2)->aot_start[WORKERS] +
                   5 * (size_t)mgl_cuda_program_graph(program, 0)->aot_start[WORKERS];
    for (uint32_t role = 0; role < MGL_CUDA_TRACE_ROLES; role++) {
      assert_int_equal(seen.count[role], tasks);
    }
    assert_true(seen.least_us > 0.7 && seen.least_us < 0.8);
    assert_true(seen.most_us > 5e6 && seen.most_us < 5.1e6);
  }
  mgl_cuda_program_destroy(program);
  // Only the latest ones stay.
  options.build.trace_tasks = 5;
  program = fake_model_program(&device, options);
  assert_int_equal(fake_model_run(program, 12, (mgl_cuda_launch_options){0}, &err), MGL_OK);
  assert_true(fake.run->traces[0].mark_count > MGL_CUDA_TRACE_MARKS);
  assert_int_equal(fake.run->span_count, 8);
  seen_spans seen = read_trace(program);
  assert_int_equal(seen.count[MGL_CUDA_TRACE_COMPUTE], 8 * WORKERS);
  assert_true(seen.least_us > 5e6);
  mgl_cuda_program_destroy(program);
  program = fake_model_program(&device, fake_model_usual);
  mgl_text text = {0};
  assert_int_equal(mgl_cuda_program_trace_json(program, &text, &err), MGL_ERR_ARGUMENT);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// --- ops, activations and the KV cache -----------------------------------------------------------

static void ops_are_left_out(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
  const mgl_graph *fused = mgl_cuda_program_fused(program);
  for (int all = 0; all < 2; all++) {
    uint32_t first = all != 0 ? 0 : 3;
    uint32_t last = all != 0 ? UINT32_MAX : 4;
    assert_int_equal(mgl_cuda_program_choose(program, first, last, &err), MGL_OK);
    assert_int_equal(fake_model_run(program, 6, (mgl_cuda_launch_options){0}, &err), MGL_OK);
    for (uint32_t graph = 0; graph < 5; graph++) {
      for (uint32_t i = 0; i < fused->op_count; i++) {
        uint32_t kind = i >= first && i <= last ? (uint32_t)fused->ops[i].kind : MGL_CUDA_OP_EMPTY;
        assert_int_equal(fake.run->graphs[graph].ops[i].kind, kind);
      }
    }
  }
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// A plan of so many tokens of one sequence, from its first one on.
static mgl_plan *make_plan(uint32_t tokens) {
  static int32_t ids[300];
  static int32_t pages[20];
  const mgl_plan_limits limits = {
      .tokens = 300, .sequences = 1, .pages_per_sequence = 20, .page_tokens = 16};
  mgl_plan *plan = NULL;
  for (int32_t i = 0; i < 20; i++) {
    pages[i] = i;
  }
  MUST(mgl_plan_create(&limits, &plan, &err));
  mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = ids,
                                       .token_count = tokens,
                                       .pages = pages,
                                       .page_count = 20,
                                       .logits = MGL_LOGITS_LAST});
  return plan;
}

// In mode full the kernels of the other ops are not launched, whatever launches them.
static void kernels_are_left_out(void **state) {
  (void)state;
  static const struct {
    uint32_t first, last;  // ops of the fused program, next_plan being 0
    const char *calls[3];  // what their names begin with
    uint32_t graphs[MGL_CUDA_FULL_HOWS];
  } cases[] = {{3, 4, {"mgl_op_linear_", "mgl_op_attend"}, {1, 1, 0}},
               {1, 1, {"mgl_op_embed"}, {1, 1, 0}},  // angles alone, in a block of the embedding's
               {4, 4, {"mgl_op_attend"}, {1, 0, 0}},
               {5, 6, {"mgl_op_linear_", "mgl_op_linear_"}, {1, 1, 0}}};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
  mgl_plan *plan = make_plan(3);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    MUST(mgl_cuda_program_choose(program, cases[i].first, cases[i].last, &err));
    for (mgl_cuda_full_how how = 0; how < MGL_CUDA_FULL_HOWS; how++) {
      const mgl_cuda_launch_options launch = {.full = true, .how = how, .mixed_how = how};
      uint32_t kernels = 0, graphs = 0;
      // Launches stand in order, with these where they are among all.
      fake.ordinal = cases[i].first < 3 ? 0 : cases[i].first - 3;
      fake_cuda_calls_clear();
      MUST(mgl_cuda_program_run_plan(program, plan, &launch, NULL, &err));
      for (uint32_t j = 0; j < fake_cuda_call_count; j++) {
        const char *name = fake_cuda_calls[j].name;
        if (strcmp(name, FAKE_CUDA_GRAPH) == 0) {
          graphs++;
        } else if (strcmp(name, "mgl_op_note") != 0) {
          assert_true(kernels < 3 && cases[i].calls[kernels] != NULL);
          assert_memory_equal(name, cases[i].calls[kernels], strlen(cases[i].calls[kernels]));
          assert_true(cases[i].first != 1 || fake_cuda_calls[j].blocks == 1);
          kernels++;
        }
      }
      assert_true(kernels == 3 || cases[i].calls[kernels] == NULL);
      assert_int_equal(graphs, cases[i].graphs[how]);
    }
  }
  mgl_plan_destroy(plan);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// Large iterations have no steps of ops that are not chosen, and nobody waits for those. (The fake
// device fails where a step is waited for that does not come.)
static void steps_of_large_iterations_are_left_out(void **state) {
  (void)state;
  mgl_error why = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program_options options = fake_model_usual;
  options.sizes.limits.tokens = 300;
  options.sizes.limits.pages_per_sequence = 20;
  options.sizes.sequences = 1;
  mgl_cuda_program *program = fake_model_program(&device, options);
  const mgl_cuda_wide_layout *wide = &program->wide.layout;
  const mgl_cu_ptr block = program->memory[MGL_CUDA_MEMORY_WIDE];
  mgl_plan *plan = make_plan(300);
  for (uint32_t last = 2; last <= 6; last++) {
    MUST(mgl_cuda_program_choose(program, 1, last, &err));
    for (uint32_t graph = 0; graph < wide->graph_count; graph++) {
      const mgl_cuda_wide_graph *g = &wide->graphs[graph];
      const mgl_wide_op *ops = mgl_cuda_pointer(block + g->ops);
      const mgl_cuda_step *steps = mgl_cuda_pointer(block + g->steps);
      const uint32_t *start = mgl_cuda_pointer(block + g->step_start);
      uint32_t kinds = 0;  // bits
      assert_int_equal(start[0], 0);
      assert_true(start[WORKERS] < g->step_count);
      for (uint32_t i = 0; i < start[WORKERS]; i++) {
        kinds |= 1u << ops[steps[i].op].op.kind;
      }
      for (uint32_t op = 2; op <= 6; op++) {
        const uint32_t kind = (uint32_t)program->program->ops[op].kind;
        assert_true(op > last || (kinds >> kind & 1) != 0);
      }
      assert_true((kinds >> MGL_OP_ATTEND & 1) == (last >= 4));
      assert_true((kinds >> MGL_OP_GATE_UP & 1) == (last >= 6));
      assert_true((kinds >> MGL_OP_LOGITS & 1) == 0);
    }
    MUST(mgl_cuda_program_run_plan(program, plan, NULL, NULL, &err));
  }
  MUST(
      mgl_cuda_program_choose(program, 4, 6, &err));  // attend: a graph of 512 tokens rotates first
  MUST(mgl_cuda_program_run_plan(program, plan, NULL, NULL, &err));
  mgl_plan_destroy(plan);
  plan = make_plan(100);
  assert_int_equal(mgl_cuda_program_run_plan(program, plan, NULL, NULL, &why), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(why.text, "expected a range that begins before"));
  MUST(mgl_cuda_program_choose(program, 5, 6, &err));
  MUST(mgl_cuda_program_run_plan(program, plan, NULL, NULL, &err));
  MUST(mgl_cuda_program_choose(program, 0, UINT32_MAX, &err));
  const uint32_t *start = mgl_cuda_pointer(block + wide->graphs[0].step_start);
  assert_int_equal(start[WORKERS], wide->graphs[0].step_count);
  mgl_plan_destroy(plan);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// What a large iteration leaves is read in the form in which its kernels have it.
static void large_activations_are_read(void **state) {
  (void)state;
  enum { TOKENS = 70, GRAPH_TOKENS = 128 };
  mgl_error why = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program_options options = fake_model_usual;
  options.sizes.limits.tokens = 300;
  options.sizes.sequences = 1;
  mgl_cuda_program *program = fake_model_program(&device, options);
  const mgl_cuda_wide_layout *wide = &program->wide.layout;
  unsigned char *block = mgl_cuda_pointer(program->memory[MGL_CUDA_MEMORY_WIDE]);
  const mgl_graph *fused = program->program;
  assert_int_equal(wide->graphs[mgl_cuda_wide_graph_for(wide, TOKENS)].tokens, GRAPH_TOKENS);
  MUST(mgl_cuda_program_choose(program, 1, 6, &err));
  for (uint32_t op = 1; op <= 6; op++) {
    const mgl_tensor *t = &fused->tensors[fused->ops[op].output];
    const uint32_t columns = (uint32_t)mgl_tensor_row_elements(t);
    const uint32_t row = TOKENS - 1, column = columns - 3;
    const size_t count = (size_t)TOKENS * columns;
    const float value = -1.5f;
    const mgl_bf16 half = mgl_f32_to_bf16(value);
    float *out = mgl_alloc_zeroed(count, sizeof *out);
    memset(block + wide->residual, 0, (size_t)(wide->image - wide->residual));
    memcpy(block + wide->angles + ((size_t)row * columns + column) * 4, &value, 4);
    memcpy(block + wide->residual + mgl_wide_residual_offset(GRAPH_TOKENS, row, column), &value, 4);
    const uint64_t at = mgl_wide_x_offset(GRAPH_TOKENS, row, column);
    memcpy(block + wide->attended + at, &half, sizeof half);
    memcpy(block + wide->gated + at, &half, sizeof half);
    mgl_status status = mgl_cuda_program_read_large(program, TOKENS, t->name, out, count, &why);
    if (op == 3) {  // qkv_proj, whose result may be rotated where it is made
      assert_int_equal(status, MGL_ERR_UNSUPPORTED);
      assert_non_null(strstr(why.text, "ends with attend, gate_up or logits"));
    } else {
      float *again = mgl_alloc_zeroed(count, sizeof *again);
      assert_int_equal(status, MGL_OK);
      for (size_t i = 0; i < count; i++) {
        assert_true(out[i] == (i == (size_t)row * columns + column ? value : 0));
        out[i] = (float)(i % 251) - 100;  // which bf16 has
      }
      MUST(mgl_cuda_program_write_large(program, TOKENS, t->name, out, count, &err));
      MUST(mgl_cuda_program_read_large(program, TOKENS, t->name, again, count, &err));
      assert_memory_equal(again, out, count * sizeof *out);
      mgl_free(again);
    }
    mgl_free(out);
  }
  // Q and K are f16, V is bf16.
  const mgl_tensor *qkv = &fused->tensors[fused->ops[3].output];
  const uint32_t columns = (uint32_t)mgl_tensor_row_elements(qkv);
  float *values = mgl_alloc_zeroed(columns, sizeof *values);
  for (uint32_t i = 0; i < columns; i++) {
    values[i] = 1 + 0x1p-10f;
  }
  MUST(mgl_cuda_program_write_large(program, TOKENS, qkv->name, values, columns, &err));
  const uint16_t *stored = (const uint16_t *)(void *)(block + wide->qkv);
  assert_int_equal(stored[0], mgl_f32_to_f16(1 + 0x1p-10f));
  assert_int_equal(stored[columns - 1], mgl_f32_to_bf16(1));
  mgl_free(values);
  // Nobody has added the sums of a linear_add at the end.
  MUST(mgl_cuda_program_choose(program, 1, 5, &err));
  float one = 0;
  const char *last = fused->tensors[fused->ops[5].output].name;
  assert_int_equal(mgl_cuda_program_read_large(program, TOKENS, last, &one, 1, &why),
                   MGL_ERR_UNSUPPORTED);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

static void activations_are_written_and_read(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program_options options = fake_model_usual;
  options.keep_activations = true;
  mgl_cuda_program *program = fake_model_program(&device, options);
  const mgl_graph *fused = mgl_cuda_program_fused(program);
  size_t written = 0;
  for (uint32_t i = 0; i < fused->op_count; i++) {
    const mgl_tensor *t = &fused->tensors[fused->ops[i].output];
    const float values[] = {1.0f, -2.5f, 1.00390625f + (float)i};  // the last is no bf16
    float found[3] = {0};
    if (t->placement != MGL_PLACE_ACTIVATION || t->dtype == MGL_DTYPE_I32) {
      assert_int_equal(mgl_cuda_program_write(program, 1, t->name, values, 1, &err),
                       MGL_ERR_ARGUMENT);
      continue;
    }
    assert_int_equal(mgl_cuda_program_write(program, 1, t->name, values, 3, &err), MGL_OK);
    assert_int_equal(mgl_cuda_program_read(program, 1, t->name, found, 3, &err), MGL_OK);
    float last =
        t->dtype == MGL_DTYPE_BF16 ? mgl_bf16_to_f32(mgl_f32_to_bf16(values[2])) : values[2];
    assert_true(found[0] == 1.0f && found[1] == -2.5f && found[2] == last);
    written++;
  }
  assert_true(written >= 12);
  assert_int_equal(mgl_cuda_program_write(program, 1, "nothing", NULL, 1, &err), MGL_ERR_ARGUMENT);
  assert_int_equal(mgl_cuda_program_write(program, 1, "logits", NULL, (size_t)1 << 40, &err),
                   MGL_ERR_ARGUMENT);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

static void kv_pages_are_read_and_written(void **state) {
  (void)state;
  enum { HEADS = 2, DIM = 32, P = MGL_CUDA_KV_PAGE_TOKENS, COUNT = HEADS * P * DIM };
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
  const mgl_graph *fused = mgl_cuda_program_fused(program);
  float *k = mgl_alloc_zeroed(COUNT, sizeof *k);
  float *v = mgl_alloc_zeroed(COUNT, sizeof *v);
  assert_int_equal(fake_model_run(program, 6, (mgl_cuda_launch_options){0}, &err), MGL_OK);
  uint32_t op = 0;
  while (fused->ops[op].kind != MGL_OP_ATTEND) {
    op++;
  }
  const char *name = fused->tensors[fused->ops[op].inputs[1]].name;
  const mgl_cuda_op *bound = &fake.run->graphs[0].ops[op];
  size_t at = (size_t)COUNT * 3 + (size_t)DIM * P;  // of the second head in page 3
  bound->k_cache[at + 5 * DIM + 7] = mgl_f32_to_bf16(2.5f);
  bound->v_cache[at + 7 * P + 5] = mgl_f32_to_bf16(-3.0f);
  assert_int_equal(mgl_cuda_program_read_kv(program, name, 3, k, v, &err), MGL_OK);
  size_t place = (size_t)DIM * P + 5 * DIM + 7;
  assert_true(k[place] == 2.5f && v[place] == -3.0f);
  assert_true(k[place + 1] == 0 && v[place + 1] == 0);
  k[place + DIM] = 4.0f;
  v[place + DIM] = 8.0f;
  assert_int_equal(mgl_cuda_program_write_kv(program, name, 2, k, v, &err), MGL_OK);
  at -= COUNT;
  assert_int_equal(bound->k_cache[at + 5 * DIM + 7], mgl_f32_to_bf16(2.5f));
  assert_int_equal(bound->k_cache[at + 6 * DIM + 7], mgl_f32_to_bf16(4.0f));
  assert_int_equal(bound->v_cache[at + 7 * P + 5], mgl_f32_to_bf16(-3.0f));
  assert_int_equal(bound->v_cache[at + 7 * P + 6], mgl_f32_to_bf16(8.0f));
  assert_int_equal(mgl_cuda_program_write_kv(program, name, 32, k, v, &err), MGL_ERR_ARGUMENT);
  assert_int_equal(mgl_cuda_program_read_kv(program, name, 32, k, v, &err), MGL_ERR_ARGUMENT);
  assert_int_equal(mgl_cuda_program_read_kv(program, "logits", 0, k, v, &err), MGL_ERR_ARGUMENT);
  mgl_free(k);
  mgl_free(v);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_trace_has_the_times_of_the_clocks),
      cmocka_unit_test(ops_are_left_out),
      cmocka_unit_test(kernels_are_left_out),
      cmocka_unit_test(steps_of_large_iterations_are_left_out),
      cmocka_unit_test(large_activations_are_read),
      cmocka_unit_test(activations_are_written_and_read),
      cmocka_unit_test(kv_pages_are_read_and_written),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
