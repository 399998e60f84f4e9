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
#include "support/fake_model.h"

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
      cmocka_unit_test(activations_are_written_and_read),
      cmocka_unit_test(kv_pages_are_read_and_written),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
