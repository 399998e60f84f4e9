// task_graph.json: the schema of MPK in what is written, and hostile or damaged files refused.
// (That out, in and out again gives equal bytes is tested on random programs.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/json.h"
#include "compile/compile.h"
#include "graph/graph_text.h"
#include "support/random_program.h"

static const char program_text[] =
    "program small\n"
    "input tokens i32[T]\n"
    "weight table bf16[40,32]\n"
    "weight w bf16[48,32]\n"
    "x = embed(tokens, table) : f32[T,32]\n"
    "y = linear(x, w) : f32[T,48]\n"
    "z = linear(x, w) : f32[T,48]\n"
    "s = silu_mul(y, z) : f32[T,48]\n"
    "output s\n";

typedef struct written {
  mgl_graph *program;
  mgl_task_graph *g;
  mgl_text json;
} written;

static written write_small(uint32_t tokens, uint32_t workers) {
  written w = {0};
  mgl_error err = {0};
  assert_int_equal(
      mgl_graph_parse(program_text, sizeof program_text - 1, "small", &w.program, &err), MGL_OK);
  mgl_compile_options options = {.tokens = tokens, .workers = workers, .verify = true};
  assert_int_equal(mgl_compile(w.program, &options, &w.g, NULL, &err), MGL_OK);
  assert_int_equal(mgl_task_graph_write_json(w.program, w.g, &w.json, &err), MGL_OK);
  return w;
}

static void free_written(written *w) {
  mgl_graph_destroy(w->program);
  mgl_task_graph_destroy(w->g);
  mgl_text_free(&w->json);
}

static int64_t number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value)) {
    fail_msg("no number %s", key);
  }
  return json_integer_value(value);
}

static void the_seeds_keys_are_there(void **state) {
  (void)state;
  written w = write_small(2, 2);
  json_t *root = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_json_parse(w.json.data, w.json.bytes, "out", &root, &err), MGL_OK);
  const json_t *tasks = json_object_get(root, "all_tasks");
  const json_t *events = json_object_get(root, "all_events");
  assert_int_equal(json_array_size(tasks), w.g->task_count);
  assert_int_equal(json_array_size(events), w.g->event_count);
  assert_int_equal(json_array_size(json_object_get(root, "first_tasks")), 2);
  for (uint32_t i = 0; i < w.g->task_count; i++) {
    const json_t *task = json_array_get(tasks, i);
    assert_int_equal(number(task, "task_type"), w.g->tasks[i].type);
    static const char *const none[] = {"request_id", "expert_offset", "kv_idx", "merge_task_offset",
                                       "task_offset"};
    for (size_t k = 0; k < sizeof none / sizeof none[0]; k++) {
      assert_int_equal(number(task, none[k]), -1);
    }
    assert_int_equal(number(task, "trigger_event"), w.g->tasks[i].trigger_event);
    assert_int_equal(number(task, "dependent_event"),
                     i < 2 ? -1 : (int64_t)w.g->tasks[i].dependent_event);
    if (w.g->tasks[i].op == 1 && w.g->tasks[i].begin == 16) {  // the second task of y
      const json_t *weight = json_array_get(json_object_get(task, "inputs"), 1);
      const json_t *out = json_array_get(json_object_get(task, "outputs"), 0);
      assert_string_equal(json_string_value(json_object_get(weight, "base_ptr")), "w");
      assert_int_equal(number(weight, "offset"), 16 * 32 * 2);
      assert_int_equal(number(weight, "data_type"), MGL_DTYPE_BF16);
      assert_int_equal(number(out, "offset"), 16 * 4);
      const json_t *dims = json_object_get(out, "dims");
      const json_t *strides = json_object_get(out, "strides");
      assert_int_equal(json_integer_value(json_array_get(dims, 0)), 2);
      assert_int_equal(json_integer_value(json_array_get(dims, 1)), 32);
      assert_int_equal(json_integer_value(json_array_get(strides, 0)), 48);
      assert_int_equal(json_integer_value(json_array_get(strides, 1)), 1);
    }
  }
  const json_t *end = json_array_get(events, w.g->event_count - 1);
  assert_int_equal(number(end, "event_type"), MGL_EVENT_END_OF_TASK_GRAPH);
  assert_int_equal(number(end, "num_triggers"), 2);
  json_decref(root);
  free_written(&w);
}

static mgl_status read_status(const char *text, size_t bytes, mgl_error *err) {
  mgl_graph *program = NULL;
  mgl_task_graph *g = NULL;
  mgl_status status = mgl_task_graph_read_json(text, bytes, "test", &program, &g, err);
  assert_int_equal(status == MGL_OK, program != NULL && g != NULL);
  if (status != MGL_OK) {
    assert_null(program);
    assert_null(g);
    assert_true(err->text[0] != 0);
  }
  mgl_graph_destroy(program);
  mgl_task_graph_destroy(g);
  return status;
}

// The text with the first `from` behind `after` replaced.
static void replace(const mgl_text *in, const char *after, const char *from, const char *to,
                    mgl_text *out) {
  const char *at = strstr(strstr(in->data, after), from);
  assert_non_null(at);
  mgl_text_clear(out);
  mgl_text_append(out, in->data, (size_t)(at - in->data));
  mgl_text_append_string(out, to);
  mgl_text_append_string(out, at + strlen(from));
}

static void wrong_files_are_explained(void **state) {
  (void)state;
  static const struct {
    const char *after, *from, *to, *message;
  } cases[] = {
      {"", "graph 1", "graph 2", "expected \"format\""},
      {"", "\"program\"", "\"prog\"", "expected \"format\""},
      {"", "embed(tokens", "embed(token", "test"},
      {"", "\"tokens\":2", "\"tokens\":2049", "expected an integer from 1 to 2048 as tokens"},
      {"", "\"logit_rows\":2", "\"logit_rows\":3", "expected an integer from 1 to 2 as logit_rows"},
      {"", "\"tokens\":2", "\"tokens\":2.5", "as tokens"},
      {"", "\"workers\":2", "\"workers\":0", "as workers"},
      {"", "\"attention_strides\":1", "\"attention_strides\":0", "attention_strides"},
      {"", "\"activation_bytes\":", "\"activation_bytes\":-", "activation_bytes"},
      {"activation_offsets", "\"x\":", "\"q\":", "the offset of \"x\""},
      {"activation_offsets", "\"x\":", "\"q\":0,\"x\":", "activation_offsets names"},
      {"all_tasks", "\"worker\":0", "\"worker\":2", "has worker 2 of 2"},
      {"all_tasks", "\"task_type\":0", "\"task_type\":1", "a task must have its op's kind"},
      {"all_tasks", "\"op\":0", "\"op\":9", "a task must have its op's kind"},
      {"all_tasks", "\"begin\":0", "\"begin\":1", "tile"},
      {"all_tasks", "\"dependent_event\":0", "\"dependent_event\":1", "must wait for it"},
      {"all_tasks", "\"flags\":0", "\"flags\":4", "task flags must be 0, JIT or EMPTY"},
      {"all_tasks", "{\"task_type\":0", "7,{\"task_type\":0", "as task_type"},
      {"\"outputs\"", "\"base_ptr\":\"x\"", "\"base_ptr\":\"q\"", "task 0: \"outputs\", entry 0"},
      {"\"outputs\"", "\"base_ptr\":\"x\"", "\"base_ptr\":7", "\"outputs\", entry 0"},
      {"\"inputs\"", "\"offset\":0", "\"offset\":4", "task 0: \"inputs\", entry 0"},
      {"\"inputs\"", "\"dims\":[", "\"dims\":[1", "\"inputs\", entry 0"},
      {"\"inputs\"", "\"strides\":[", "\"strides\":[1", "\"inputs\", entry 0"},
      {"\"inputs\"", "\"strides\":[", "\"strides\":[1,", "\"inputs\", entry 0"},
      {"\"inputs\"", "\"data_type\":", "\"data_type\":1", "\"inputs\", entry 0"},
      {"all_tasks", "\"inputs\":[", "\"inputs\":[{},", "\"inputs\", entry 0"},
      {"all_tasks", "\"outputs\":[", "\"no\":[", "\"outputs\", entry 0"},
      {"\"outputs\"", "],\"trigger", ",7],\"trigger", "an array of 1"},
      {"all_events", "\"event_type\":1", "\"event_type\":0", "not part of a graph"},
      {"all_events", "\"num_triggers\":2", "\"num_triggers\":3", "count the tasks that trigger it"},
      {"all_events", "[", "[3,", "event_type"},
      {"first_tasks", "[0,1]", "[0,2]", "first_tasks must be 0, 1"},
      {"first_tasks", "[0,1]", "[0]", "task graph"},
      {"first_tasks", "[0,1]", "3", "expected an array"},
      {"first_tasks", "[0,1]", "[0,1]]", "test"},
  };
  written w = write_small(2, 2);
  mgl_text text = {0};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_error err = {0};
    replace(&w.json, cases[i].after, cases[i].from, cases[i].to, &text);
    assert_int_not_equal(read_status(text.data, text.bytes, &err), MGL_OK);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("case %zu: expected \"%s\" in \"%s\"", i, cases[i].message, err.text);
    }
  }
  mgl_text_free(&text);
  free_written(&w);
}

// Random bytes changed: whatever is accepted is verified, and nothing crashes or leaks.
static void damaged_files_do_no_harm(void **state) {
  (void)state;
  written w = write_small(2, 3);
  int64_t live = mgl_alloc_live();
  random_source random = {99};
  uint32_t refused = 0;
  enum { ROUNDS = 3000 };
  for (int i = 0; i < ROUNDS; i++) {
    char *copy = malloc(w.json.bytes);
    assert_non_null(copy);
    memcpy(copy, w.json.data, w.json.bytes);
    size_t bytes = w.json.bytes;
    if (random_below(&random, 10) == 0) {
      bytes = random_below(&random, (uint32_t)bytes);
    }
    static const char alphabet[] = "0123456789-,{}[]\":e.\\ax";
    for (uint32_t k = 0; k <= random_below(&random, 3) && bytes > 0; k++) {
      copy[random_below(&random, (uint32_t)bytes)] =
          alphabet[random_below(&random, sizeof alphabet - 1)];
    }
    mgl_error err = {0};
    refused += read_status(copy, bytes, &err) != MGL_OK;
    free(copy);
  }
  assert_true(refused > ROUNDS / 4);
  assert_true(mgl_alloc_live() <= live + 1);
  free_written(&w);
}

static void dependent_launches_are_accepted(void **state) {
  (void)state;
  // x -> y by an event; and by an empty task an event whose tasks (those of a second embed) run in
  // the next iteration.
  static const char text[] =
      "program two\ninput tokens i32[T]\nweight table bf16[40,32]\nweight n bf16[32]\n"
      "x = embed(tokens, table) : f32[T,32]\n"
      "e = embed(tokens, table) : f32[T,32]\n"
      "y = rmsnorm(x, n) eps=0.001 : f32[T,32]\n"
      "output y\noutput e\n";
  mgl_graph *program = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_graph_parse(text, sizeof text - 1, "two", &program, &err), MGL_OK);
  uint16_t no = MGL_NO_WORKER;
  mgl_task tasks[] = {
      {MGL_OP_EMBED, 0, 0, 0, 0, 0, 1, MGL_NO_EVENT, 0, 1},
      {UINT16_MAX, 0, MGL_TASK_EMPTY, no, MGL_NO_OP, 0, 0, 0, 1, 0},
      {MGL_OP_RMSNORM, 0, 0, 0, 2, 0, 1, 0, 2, 1},
      {MGL_OP_EMBED, 0, MGL_TASK_JIT, no, 1, 0, 1, 1, 2, 1},
  };
  mgl_event events[] = {
      {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_HAS_EMPTY | MGL_EVENT_HAS_AOT, 1, 1, 3},
      {MGL_EVENT_LAUNCH_DEPENDENT_TASKS, MGL_EVENT_HAS_JIT, 1, 3, 4},
      {MGL_EVENT_END_OF_TASK_GRAPH, 0, 2, 4, 4},
  };
  uint32_t aot_start[] = {0, 2};
  uint32_t aot_tasks[] = {0, 2};
  uint64_t offsets[6] = {0};
  offsets[mgl_graph_find(program, "e")] = 128;
  offsets[mgl_graph_find(program, "y")] = 256;
  mgl_task_graph g = {.tokens = 1,
                      .logit_rows = 1,
                      .worker_count = 1,
                      .task_count = 4,
                      .event_count = 3,
                      .tasks = tasks,
                      .events = events,
                      .aot_start = aot_start,
                      .aot_tasks = aot_tasks,
                      .ready_count = 1,
                      .tensor_count = (uint32_t)program->tensor_count,
                      .activation_offsets = offsets,
                      .activation_bytes = 384,
                      .attention_strides = 1};
  assert_int_equal(program->tensor_count, 6);
  if (mgl_task_graph_verify(program, &g, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  // e's tasks run at any time of the iteration: their storage can be nobody else's.
  offsets[mgl_graph_find(program, "e")] = 256;
  assert_int_equal(mgl_task_graph_verify(program, &g, &err), MGL_ERR_FORMAT);
  // and they cannot be waited for by an AOT list
  offsets[mgl_graph_find(program, "e")] = 128;
  tasks[3].flags = 0;
  tasks[3].worker = 0;
  events[1].flags = MGL_EVENT_HAS_AOT;
  assert_int_equal(mgl_task_graph_verify(program, &g, &err), MGL_ERR_FORMAT);
  mgl_graph_destroy(program);
}

static void failed_allocations_are_reported(void **state) {
  (void)state;
  written w = write_small(1, 2);
  int64_t live = mgl_alloc_live();
  for (uint64_t n = 1;; n++) {
    mgl_error err = {0};
    mgl_alloc_fail_nth(n);
    mgl_status status = read_status(w.json.data, w.json.bytes, &err);
    uint64_t count = mgl_alloc_count();
    mgl_alloc_fail_nth(0);
    assert_int_equal(mgl_alloc_live(), live);
    if (count < n) {
      assert_int_equal(status, MGL_OK);
      break;
    }
    assert_int_not_equal(status, MGL_OK);
  }
  for (uint64_t n = 1;; n++) {
    mgl_error err = {0};
    mgl_text out = {0};
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_task_graph_write_json(w.program, w.g, &out, &err);
    uint64_t count = mgl_alloc_count();
    mgl_alloc_fail_nth(0);
    mgl_text_free(&out);
    if (count < n) {
      assert_int_equal(status, MGL_OK);
      break;
    }
    assert_int_equal(status, MGL_ERR_MEMORY);
  }
  free_written(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_seeds_keys_are_there),
      cmocka_unit_test(wrong_files_are_explained),
      cmocka_unit_test(damaged_files_do_no_harm),
      cmocka_unit_test(dependent_launches_are_accepted),
      cmocka_unit_test(failed_allocations_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
