// Task graphs from files on a GPU, over the fake driver: one that was compiled elsewhere is run in
// the place of the program's own, with the same results; one of another program or device, or for
// other workers, tokens or rows with logits is refused before anything is taken.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "compile/compile.h"
#include "device/cuda/cuda_program.h"
#include "support/failing_allocations.h"
#include "support/fake_cuda.h"
#include "support/fake_model.h"
#include "support/must.h"

enum { WORKERS = FAKE_CUDA_WORKERS, PROMPT = 20, NEW_TOKENS = 12 };

static const mgl_cuda_program_options usual = {
    .sizes.limits.tokens = 8, .sizes.sequences = 4, .sizes.limits.pages_per_sequence = 8};

// With an override; written to a file and read again.
static mgl_given_graph compile_with(mgl_target target, uint32_t workers, uint32_t tokens,
                                    uint32_t logit_rows, mgl_compile_override override) {
  mgl_given_graph given = {0};
  mgl_graph *canonical = fake_model_graph(NULL);
  mgl_graph *fused = NULL;
  mgl_task_graph *graph = NULL;
  mgl_text json = {0};
  const mgl_compile_options options = {.target = target,
                                       .tokens = tokens,
                                       .logit_rows = logit_rows,
                                       .workers = workers,
                                       .overrides = &override,
                                       .override_count = 1};
  MUST(mgl_fuse_ops_for(target, canonical, &fused, &err));
  MUST(mgl_compile(fused, &options, &graph, NULL, &err));
  MUST(mgl_task_graph_write_json(fused, graph, &json, &err));
  MUST(mgl_task_graph_read_json(json.data, json.bytes, "given.json", &given.program, &given.graph,
                                &err));
  mgl_text_free(&json);
  mgl_task_graph_destroy(graph);
  mgl_graph_destroy(fused);
  mgl_graph_destroy(canonical);
  return given;
}

// With gate_up in so many tasks.
static mgl_given_graph compile_graph(mgl_target target, uint32_t workers, uint32_t tokens,
                                     uint32_t logit_rows, uint32_t gate_ups) {
  return compile_with(target, workers, tokens, logit_rows,
                      (mgl_compile_override){.op = "gate_up", .grid = {gate_ups, 1, 1}});
}

static void free_given(mgl_given_graph *given) {
  mgl_task_graph_destroy(given->graph);
  mgl_graph_destroy(given->program);
}

typedef struct heard {
  int32_t tokens[NEW_TOKENS];
  uint32_t count;
} heard;

static void hear(void *context, const mgl_cuda_token *token) {
  heard *h = context;
  assert_true(h->count < NEW_TOKENS);
  h->tokens[h->count++] = token->token;
}

// Generates from a prompt that is read in iterations of 8 tokens and less.
static heard generate(mgl_cuda_program *program) {
  heard h = {0};
  mgl_cuda_outcome outcome = {0};
  int32_t prompt[PROMPT];
  for (int32_t i = 0; i < PROMPT; i++) {
    prompt[i] = i;
  }
  mgl_cuda_request request = {
      .prompt = prompt, .prompt_count = PROMPT, .max_new_tokens = NEW_TOKENS};
  mgl_cuda_generate job = {.requests = &request,
                           .request_count = 1,
                           .on_token = hear,
                           .context = &h,
                           .outcome = &outcome};
  MUST(mgl_cuda_program_generate(program, &job, &err));
  assert_int_equal(h.count, NEW_TOKENS);
  return h;
}

// A task of attention for all parts of all KV heads.
static const mgl_compile_override attend_in_one = {.op = "attend", .grid = {1, 2, 1}};

static void check_tasks(const mgl_task_graph *graph, const mgl_task_graph *given, bool same) {
  assert_true((graph->task_count == given->task_count &&
               memcmp(graph->tasks, given->tasks, graph->task_count * sizeof *graph->tasks) == 0) ==
              same);
}

static void a_graph_is_run_in_the_place_of_the_own(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_given_graph given[2] = {compile_graph(MGL_TARGET_CUDA, WORKERS, 1, 0, 1),
                              compile_with(MGL_TARGET_CUDA, WORKERS, 4, 0, attend_in_one)};
  mgl_cuda_program_options options = usual;
  mgl_cuda_program *program = fake_model_program(&device, options);
  const heard own = generate(program);
  mgl_cuda_program_destroy(program);
  options.build.given = given;
  options.build.given_count = 2;
  program = fake_model_program(&device, options);
  check_tasks(mgl_cuda_program_graph(program, 0), given[0].graph, true);
  check_tasks(mgl_cuda_program_graph(program, 1), given[1].graph, false);
  check_tasks(mgl_cuda_program_graph(program, 2), given[1].graph, true);
  const heard found = generate(program);
  mgl_cuda_program_destroy(program);  // leaves the graphs
  assert_memory_equal(&found, &own, sizeof own);
  assert_int_equal(fake.live, 0);
  free_given(&given[0]);
  free_given(&given[1]);
}

// Where the file says, by the names that it gives them: it numbers them otherwise.
static void check_activations(mgl_target target) {
  mgl_given_graph given = compile_with(target, WORKERS, 4, 0, attend_in_one);
  mgl_graph *canonical = fake_model_graph(NULL);
  mgl_graph *own = NULL;
  MUST(mgl_fuse_ops_for(target, canonical, &own, &err));
  const mgl_build build = {.given = &given, .given_count = 1};
  const mgl_sizes sizes = {.workers = WORKERS, .logit_rows = 4};
  mgl_task_graph *graphs[3] = {NULL};
  MUST(mgl_build_take_given(&build, &sizes, target, own, graphs, 3, &err));
  assert_true(graphs[0] == NULL && graphs[1] == NULL && graphs[2] != NULL);
  MUST(mgl_task_graph_verify(own, graphs[2], &err));
  bool renumbered = false;
  for (uint32_t i = 0; i < own->tensor_count; i++) {
    const uint32_t theirs = mgl_graph_find(given.program, own->tensors[i].name);
    assert_true(theirs != MGL_NO_TENSOR);
    assert_int_equal(graphs[2]->activation_offsets[i], given.graph->activation_offsets[theirs]);
    renumbered = renumbered || theirs != i;
  }
  assert_true(renumbered == (target == MGL_TARGET_CUDA));
  mgl_task_graph_destroy(graphs[2]);
  mgl_graph_destroy(own);
  mgl_graph_destroy(canonical);
  free_given(&given);
}

static void activations_lie_where_the_file_says(void **state) {
  (void)state;
  check_activations(MGL_TARGET_CUDA);
  check_activations(MGL_TARGET_CPU);
}

typedef struct taking {
  mgl_given_graph given;
  mgl_graph *own;
} taking;

static mgl_status take_once(void *context, mgl_error *err) {
  const taking *t = context;
  const mgl_build build = {.given = &t->given, .given_count = 1};
  const mgl_sizes sizes = {.workers = WORKERS, .logit_rows = 4};
  mgl_task_graph *graphs[3] = {NULL};
  mgl_status status = mgl_build_take_given(&build, &sizes, MGL_TARGET_CUDA, t->own, graphs, 3, err);
  mgl_task_graph_destroy(graphs[2]);
  return status;
}

static void allocation_failures_are_reported(void **state) {
  (void)state;
  mgl_graph *canonical = fake_model_graph(NULL);
  taking t = {.given = compile_with(MGL_TARGET_CUDA, WORKERS, 4, 0, attend_in_one)};
  MUST(mgl_fuse_ops_for(MGL_TARGET_CUDA, canonical, &t.own, &err));
  assert_true(fail_each_allocation(take_once, &t) > 6);
  mgl_graph_destroy(t.own);
  mgl_graph_destroy(canonical);
  free_given(&t.given);
}

static void refuse(mgl_given_graph given, uint32_t count, const char *message) {
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = NULL;
  mgl_graph *graph = fake_model_graph(NULL);
  const mgl_given_graph twice[2] = {given, given};
  mgl_cuda_program_options options = usual;
  options.program = graph;
  options.get_code = fake_cuda_code;
  options.build.given = twice;
  options.build.given_count = count;
  assert_int_equal(mgl_cuda_program_create(&device, &options, &program, &err), MGL_ERR_ARGUMENT);
  if (strstr(err.text, message) == NULL) {
    fail_msg("expected \"%s\" in \"%s\"", message, err.text);
  }
  assert_int_equal(fake.live, 0);
  mgl_graph_destroy(graph);
  free_given(&given);
}

static void others_are_refused(void **state) {
  (void)state;
  refuse(compile_graph(MGL_TARGET_CUDA, WORKERS + 1, 1, 0, 2), 1, "workers of a GPU");
  refuse(compile_graph(MGL_TARGET_CPU, WORKERS, 1, 0, 2), 1, "of a CPU");
  refuse(compile_graph(MGL_TARGET_CUDA, WORKERS, 3, 0, 2), 1, "a power of two of tokens");
  refuse(compile_graph(MGL_TARGET_CUDA, WORKERS, 16, 0, 2), 1, "found one for 16");
  refuse(compile_graph(MGL_TARGET_CUDA, WORKERS, 8, 1, 2), 1, "found fewer");
  refuse(compile_graph(MGL_TARGET_CUDA, WORKERS, 2, 0, 2), 2, "found two");
  mgl_given_graph other = compile_graph(MGL_TARGET_CUDA, WORKERS, 1, 0, 2);
  for (uint32_t i = 0; i < other.program->op_count; i++) {
    if (other.program->ops[i].kind == MGL_OP_GATE_UP) {
      other.program->ops[i].attrs[MGL_ATTR_EPS] = 2;
    }
  }
  refuse(other, 1, "found one of another");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_graph_is_run_in_the_place_of_the_own),
      cmocka_unit_test(activations_lie_where_the_file_says),
      cmocka_unit_test(allocation_failures_are_reported),
      cmocka_unit_test(others_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
