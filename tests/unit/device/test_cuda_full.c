// Mode full without a GPU, over the fake driver of support/fake_cuda.h: which graphs are queued and
// when, for jobs of all kinds.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cuda/cuda_full.h"
#include "device/cuda/cuda_program.h"
#include "support/fake_cuda.h"
#include "support/fake_cuda_calls.h"
#include "support/fake_model.h"
#include "support/temp_folder.h"
#include "twin/op_launch.h"

enum { REQUESTS = 5, MOST_TOKENS = 160, PROMPT = 60 };

// page_count: 0: enough for all.
static mgl_cuda_program *make_for(const mgl_cuda_device *device, uint32_t most_tokens,
                                  uint32_t page_count) {
  mgl_cuda_program_options options = {.sizes.limits.tokens = 16,
                                      .sizes.sequences = REQUESTS,
                                      .sizes.limits.pages_per_sequence = most_tokens / 16,
                                      .sizes.page_count = page_count};
  return fake_model_program(device, options);
}

static mgl_cuda_program *make(const mgl_cuda_device *device) {
  return make_for(device, MOST_TOKENS, 0);
}

typedef struct heard {
  int32_t tokens[REQUESTS][MOST_TOKENS];
  uint32_t counts[REQUESTS];
  mgl_cuda_sequence_state states[REQUESTS];
  uint32_t iterations;
} heard;

static void hear(void *context, const mgl_cuda_token *token) {
  heard *h = context;
  h->tokens[token->request][h->counts[token->request]++] = token->token;
  h->states[token->request] = token->state;
}

static heard run_job_by(mgl_cuda_program *program, mgl_cuda_generate job, bool full,
                        mgl_cuda_full_how how, mgl_cuda_full_how mixed_how) {
  mgl_error err = {0};
  heard h = {0};
  uint64_t times[4 * MOST_TOKENS] = {0};
  mgl_cuda_outcome outcome = {.iteration_ns = times, .iteration_capacity = 4 * MOST_TOKENS};
  job.on_token = hear;
  job.context = &h;
  job.outcome = &outcome;
  job.launch.full = full;
  job.launch.how = how;
  job.launch.mixed_how = mixed_how;
  fake.graph_launches = 0;
  fake.plan_launches = 0;
  fake.empty_iterations = fake.decode_iterations = fake.mixed_iterations = 0;
  if (mgl_cuda_program_generate(program, &job, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  h.iterations = outcome.iterations;
  for (uint32_t i = 0; i <= h.iterations; i++) {
    assert_int_equal(times[i], 1000 * (i + 1));
  }
  assert_true(!full || fake.plan_launches >= 2);  // before the first iteration and behind the last
  return h;
}

static heard run_job(mgl_cuda_program *program, mgl_cuda_generate job, bool full) {
  return run_job_by(program, job, full, MGL_CUDA_FULL_WHOLE, MGL_CUDA_FULL_WHOLE);
}

// Prompts of many lengths, requests that end by length and by stop tokens, all chunk sizes: mode
// full gives what mode mega gives, in as many iterations. (The fake kernels check on every launch
// that the graph is large enough for the plan.)
static void jobs_are_those_of_mode_mega(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = make(&device);
  int32_t prompt[PROMPT];
  for (int32_t i = 0; i < PROMPT; i++) {
    prompt[i] = i;
  }
  uint32_t random = 1;
  for (uint32_t trial = 0; trial < 60; trial++) {
    mgl_cuda_request requests[REQUESTS];
    int32_t stops[REQUESTS];
    for (uint32_t i = 0; i < REQUESTS; i++) {
      random = random * 1664525u + 1013904223u;
      uint32_t count = 1 + (random >> 8) % PROMPT;
      stops[i] = fake_cuda_token(prompt[0], count + (random >> 16) % 40);
      requests[i] = (mgl_cuda_request){.prompt = prompt,
                                       .prompt_count = count,
                                       .max_new_tokens = 1 + (random >> 20) % 90,
                                       .stop_ids = &stops[i],
                                       .stop_count = random >> 31};
    }
    mgl_cuda_generate job = {.requests = requests,
                             .request_count = 1 + trial % REQUESTS,
                             .chunk_tokens = trial % 4 * 5,
                             .prompts_first = trial % 3 == 0};
    heard mega = run_job(program, job, false);
    heard full = run_job(program, job, true);
    assert_memory_equal(&mega, &full, sizeof mega);
    assert_true(fake.graph_launches > 0);
    assert_true(fake.empty_iterations < 2 * MGL_CUDA_FULL_LONG);
  }
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

enum { LAYERS = 2, STEPS = 1 + 5 * LAYERS + 2 };

// What was launched, by the driver's call table.
typedef struct launched {
  uint32_t graphs, wholes;   // graphs in all, iterations of graphs that have attention
  uint32_t attends, others;  // kernels without a graph
} launched;

static launched count_launches(void) {
  launched out = {0};
  assert_true(fake_cuda_call_count < FAKE_CUDA_CALLS);
  for (uint32_t i = 0; i < fake_cuda_call_count; i++) {
    const fake_cuda_call *call = &fake_cuda_calls[i];
    bool attends = strncmp(call->name, "mgl_op_attend", 13) == 0;
    bool plans = call->threads == MGL_OP_PLAN_THREADS || call->threads == 0;
    out.graphs += strcmp(call->name, FAKE_CUDA_GRAPH) == 0;
    out.wholes += attends && call->in_graph;
    out.attends += attends && !call->in_graph;
    out.others += !attends && !call->in_graph && !plans;
  }
  assert_int_equal(out.wholes % LAYERS, 0);
  out.wholes /= LAYERS;
  return out;
}

// What iterations that decode and all others are launched by.
static const struct {
  mgl_cuda_full_how how, mixed_how;
} hows[] = {{MGL_CUDA_FULL_PIECES, MGL_CUDA_FULL_PIECES},
            {MGL_CUDA_FULL_LOOSE, MGL_CUDA_FULL_LOOSE},
            {MGL_CUDA_FULL_WHOLE, MGL_CUDA_FULL_LOOSE},  // FULL_DECODE_ONLY
            {MGL_CUDA_FULL_WHOLE, MGL_CUDA_FULL_PIECES}};
enum { HOWS = sizeof hows / sizeof *hows };

// Iterations of each kind by what they may be launched by.
static void check_launches(const launched *found, size_t idx, mgl_cuda_graph_counts before,
                           mgl_cuda_graph_counts after) {
  const uint32_t of[2] = {fake.decode_iterations, fake.mixed_iterations};
  uint32_t by[MGL_CUDA_FULL_HOWS] = {0};
  by[hows[idx].how] += of[0];
  by[hows[idx].mixed_how] += of[1];
  assert_int_equal(fake.empty_iterations, 0);
  assert_int_equal(after.iterations - before.iterations, of[0] + of[1]);
  assert_int_equal(found->wholes, by[MGL_CUDA_FULL_WHOLE]);
  assert_int_equal(found->attends, LAYERS * (by[MGL_CUDA_FULL_PIECES] + by[MGL_CUDA_FULL_LOOSE]));
  assert_int_equal(found->others, (STEPS - LAYERS) * by[MGL_CUDA_FULL_LOOSE]);
  // A graph of several iterations is one.
  uint32_t longs = (found->wholes + (LAYERS + 1) * by[MGL_CUDA_FULL_PIECES] - found->graphs) /
                   (MGL_CUDA_FULL_LONG - 1);
  assert_int_equal(found->graphs, found->wholes - longs * (MGL_CUDA_FULL_LONG - 1) +
                                      (LAYERS + 1) * by[MGL_CUDA_FULL_PIECES]);
  assert_int_equal(after.graphs - before.graphs, found->graphs);
  assert_int_equal(after.ops - before.ops, found->attends + found->others);
}

// In pieces, kernel by kernel, and where iterations that decode differ from the others, jobs are
// those of mode mega, too; iterations launch what they say.
static void pieces_and_single_kernels_do_the_same(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = make(&device);
  int32_t prompt[PROMPT];
  uint32_t random = 1, decode = 0, mixed = 0;
  for (int32_t i = 0; i < PROMPT; i++) {
    prompt[i] = i;
  }
  for (uint32_t trial = 0; trial < 20; trial++) {
    mgl_cuda_request requests[REQUESTS];
    for (uint32_t i = 0; i < REQUESTS; i++) {
      random = random * 1664525u + 1013904223u;
      requests[i] = (mgl_cuda_request){.prompt = prompt,
                                       .prompt_count = 1 + (random >> 8) % PROMPT,
                                       .max_new_tokens = 1 + (random >> 20) % 30};
    }
    const mgl_cuda_generate job = {
        .requests = requests, .request_count = 1 + trial % REQUESTS, .chunk_tokens = trial % 4 * 5};
    heard mega = run_job(program, job, false);
    for (size_t i = 0; i < HOWS; i++) {
      mgl_cuda_graph_counts before = mgl_cuda_full_count(program);
      fake_cuda_calls_clear();
      heard found = run_job_by(program, job, true, hows[i].how, hows[i].mixed_how);
      const launched calls = count_launches();
      assert_memory_equal(&mega, &found, sizeof mega);
      check_launches(&calls, i, before, mgl_cuda_full_count(program));
      decode += fake.decode_iterations;
      mixed += fake.mixed_iterations;
    }
  }
  assert_true(decode > 20 && mixed > 20);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// Where graphs are dear, mixed iterations of a size go kernel by kernel once both ways were measured
// in turn; where kernels are, in pieces; and where time is not told, in pieces all the time.
static void the_faster_way_is_found_and_taken(void **state) {
  (void)state;
  enum { CHUNKS = 30, CHUNK = 4 };
  static const struct {
    float graph_ms, kernel_ms;
    mgl_cu_result result;
    uint32_t pieces;                // iterations of CHUNKS
    uint32_t sizes[MGL_CUDA_WAYS];  // that are decided
  } cases[] = {{3, 1, 0, CHUNKS - MGL_CUDA_FASTER_RUNS, {1, 0}},
               {9, 1, 0, MGL_CUDA_FASTER_RUNS, {0, 1}},
               {9, 1, MGL_CU_NOT_READY, CHUNKS, {0, 0}},
               {9, 1, 1, CHUNKS, {0, 0}}};
  int32_t prompt[CHUNK * CHUNKS + 1] = {0};
  const mgl_cuda_request request = {
      .prompt = prompt, .prompt_count = CHUNK * CHUNKS, .max_new_tokens = 20};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_cuda_device device = fake_cuda_device();
    mgl_cuda_program *program = make(&device);
    uint32_t sizes[MGL_CUDA_WAYS];
    fake.graph_ms = cases[i].graph_ms;
    fake.kernel_ms = cases[i].kernel_ms;
    fake.elapsed_result = cases[i].result;
    fake_cuda_calls_clear();
    (void)run_job_by(
        program,
        (mgl_cuda_generate){.requests = &request, .request_count = 1, .chunk_tokens = CHUNK}, true,
        MGL_CUDA_FULL_WHOLE, MGL_CUDA_FULL_FASTER);
    const launched calls = count_launches();
    assert_int_equal(fake.mixed_iterations, CHUNKS);
    assert_int_equal(calls.attends, LAYERS * CHUNKS);
    assert_int_equal(calls.others, (STEPS - LAYERS) * (CHUNKS - cases[i].pieces));
    mgl_cuda_full_faster(program, sizes);
    assert_memory_equal(sizes, cases[i].sizes, sizeof sizes);
    mgl_cuda_program_destroy(program);
    assert_int_equal(fake.live, 0);
  }
}

// What was captured lies in a folder as DOT, and the memory that it took is counted.
static void what_was_captured_is_dumped_and_counted(void **state) {
  (void)state;
  static const struct {
    mgl_cuda_full_how how;
    uint32_t graphs;
    const char *names[3];
  } cases[] = {
      {MGL_CUDA_FULL_WHOLE, 1, {"fused-4-even.steps-0-13.dot"}},
      {MGL_CUDA_FULL_PIECES,
       3,
       {"fused-4-even.steps-0-2.dot", "fused-4-even.steps-3-7.dot", "fused-4-even.steps-8-13.dot"}},
      {MGL_CUDA_FULL_LOOSE, 0, {NULL}},
  };
  int32_t prompt[PROMPT] = {0};
  const mgl_cuda_request request = {.prompt = prompt, .prompt_count = 3, .max_new_tokens = 1};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_cuda_device device = fake_cuda_device();
    temp_folder folder;
    char path[TEMP_PATH_BYTES + 80];
    temp_folder_create(&folder);
    (void)snprintf(device.dump_folder, sizeof device.dump_folder, "%s", folder.path);
    mgl_cuda_program *program = make(&device);
    fake.graph_bytes = 3 << 19;
    (void)run_job_by(program, (mgl_cuda_generate){.requests = &request, .request_count = 1}, true,
                     cases[i].how, cases[i].how);
    const mgl_cuda_graph_counts counts = mgl_cuda_full_count(program);
    assert_int_equal(counts.captured, cases[i].graphs);
    assert_int_equal(counts.capture_bytes, (uint64_t)cases[i].graphs * (3 << 19));
    for (uint32_t n = 0; n < cases[i].graphs; n++) {
      (void)snprintf(path, sizeof path, "%s/rank_0/%s", folder.path, cases[i].names[n]);
      if (unlink(path) != 0) {
        fail_msg("expected a file %s", path);
      }
    }
    (void)snprintf(path, sizeof path, "%s/rank_0", folder.path);
    (void)rmdir(path);  // there is nothing else
    mgl_cuda_program_destroy(program);
    temp_folder_remove(&folder);
    assert_int_equal(fake.live, 0);
  }
}

// Requests that outgrow the pool: one is preempted and computed again, in larger graphs than those
// that decode. Long graphs wait until the pages of all that run suffice to their ends.
static void preempted_requests_get_their_graphs(void **state) {
  (void)state;
  enum { LONGEST = 128, POOL = 12 };
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = make_for(&device, LONGEST, POOL);
  int32_t prompt[PROMPT] = {0};
  uint32_t random = 1;
  uint32_t longs = 0;
  for (uint32_t trial = 0; trial < 60; trial++) {
    mgl_cuda_request requests[REQUESTS];
    for (uint32_t i = 0; i < REQUESTS; i++) {
      random = random * 1664525u + 1013904223u;
      requests[i] = (mgl_cuda_request){.prompt = prompt,
                                       .prompt_count = 1 + (random >> 8) % 30,
                                       .max_new_tokens = 1 + (random >> 16) % 98};
    }
    mgl_cuda_generate job = {.requests = requests, .request_count = REQUESTS};
    heard mega = run_job(program, job, false);
    heard full = run_job(program, job, true);
    assert_memory_equal(&mega, &full, sizeof mega);
    assert_int_equal(fake.empty_iterations, 0);
    longs += fake.graph_launches < full.iterations;
  }
  assert_true(mgl_cuda_program_progress(program).counts.preemptions > 60);
  assert_true(longs > 20);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// Without stop tokens the host knows how many iterations follow, and queues most of them in long
// graphs.
static void nothing_is_queued_in_vain(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = make(&device);
  int32_t prompt[PROMPT] = {0};
  mgl_cuda_request requests[] = {{.prompt = prompt, .prompt_count = 40, .max_new_tokens = 100},
                                 {.prompt = prompt, .prompt_count = 3, .max_new_tokens = 70}};
  mgl_cuda_generate job = {.requests = requests, .request_count = 2};
  heard h = run_job(program, job, true);
  assert_int_equal(h.counts[0], 100);
  assert_int_equal(h.counts[1], 70);
  assert_int_equal(fake.empty_iterations, 0);
  uint32_t longs = (h.iterations - fake.graph_launches) / (MGL_CUDA_FULL_LONG - 1);
  assert_int_equal(fake.graph_launches, h.iterations - longs * (MGL_CUDA_FULL_LONG - 1));
  assert_true(longs >= 5);
  // No more than was asked for.
  job.most_iterations = 20;
  h = run_job(program, job, true);
  assert_int_equal(h.iterations, 20);
  assert_int_equal(fake.empty_iterations, 0);
  // Other settings need other graphs.
  job.launch.in_flight = 2;
  job.most_iterations = 0;
  heard again = run_job(program, job, true);
  assert_int_equal(again.counts[0], 100);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// Attention's kernels: for a token, for a long context and for sequences that decode, for any plan.
static void attention_has_three_kernels(void **state) {
  (void)state;
  enum { LONG = 600 };
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = make_for(&device, LONG + 40, 0);
  int32_t prompt[LONG] = {0};
  mgl_cuda_request requests[] = {{.prompt = prompt, .prompt_count = 20, .max_new_tokens = 20},
                                 {.prompt = prompt, .prompt_count = 20, .max_new_tokens = 20}};
  mgl_cuda_generate job = {.requests = requests, .request_count = 1};
  fake.attends_any = fake.attends_long = 0;
  heard h = run_job(program, job, true);
  assert_int_equal(h.counts[0], 20);
  assert_int_equal(fake.attend_tokens, 1);
  assert_string_equal(fake.attend_kernel, "mgl_op_attend");
  assert_int_equal(fake.attends_long, 0);
  requests[0].max_new_tokens = requests[1].max_new_tokens = 40;
  job.request_count = 2;
  fake.attends_any = 0;
  (void)run_job(program, job, true);
  assert_int_equal(fake.attend_tokens, 2);
  assert_int_not_equal(fake.attends_any, 0);   // prompts
  assert_int_not_equal(fake.attends_long, 0);  // long graphs
  requests[0].max_new_tokens = 20;
  mgl_page_key keys[LONG / MGL_CUDA_KV_PAGE_TOKENS];
  for (uint32_t i = 0; i < LONG / MGL_CUDA_KV_PAGE_TOKENS; i++) {
    keys[i] = (mgl_page_key){{i + 1, 7, 7, 7}};
  }
  requests[0].prompt_count = LONG;
  requests[0].keys = keys;
  requests[0].key_count = LONG / MGL_CUDA_KV_PAGE_TOKENS;
  job.request_count = 1;
  (void)run_job(program, job, false);
  h = run_job(program, job, true);  // finds what mode mega computed
  assert_int_equal(h.counts[0], 20);
  assert_int_equal(h.iterations, 20);
  assert_int_equal(fake.attend_tokens, 1);
  assert_string_equal(fake.attend_kernel, "mgl_op_attend_long");
  requests[0].prompt_count = 20;
  requests[0].key_count = 0;
  (void)run_job(program, job, true);
  assert_string_equal(fake.attend_kernel, "mgl_op_attend");
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

static uint32_t asked;

static bool stop_soon(void *context) {
  (void)context;
  return ++asked > 3;
}

static void a_job_can_be_stopped(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = make(&device);
  int32_t prompt[PROMPT] = {0};
  mgl_cuda_outcome outcome = {0};
  mgl_cuda_request request = {.prompt = prompt, .prompt_count = 50, .max_new_tokens = 100};
  mgl_cuda_generate job = {.requests = &request,
                           .request_count = 1,
                           .chunk_tokens = 1,
                           .should_stop = stop_soon,
                           .launch = {.full = true},
                           .outcome = &outcome};
  asked = 0;
  assert_int_equal(mgl_cuda_program_generate(program, &job, &err), MGL_OK);
  assert_true(outcome.stopped);
  assert_true(outcome.iterations < 50);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

static void a_plan_runs_once(void **state) {
  (void)state;
  static const mgl_plan_limits limits = {
      .tokens = 16, .sequences = REQUESTS, .pages_per_sequence = 10, .page_tokens = 16};
  static const int32_t tokens[] = {3, 4, 5};
  static const int32_t pages[] = {7, 2};
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = make(&device);
  mgl_plan *plan = NULL;
  float *logits = mgl_alloc_zeroed(512, sizeof *logits);
  mgl_cuda_launch_options launch = {.full = true, .mixed_how = MGL_CUDA_FULL_PIECES};
  assert_int_equal(mgl_plan_create(&limits, &plan, &err), MGL_OK);
  mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                       .token_count = 3,
                                       .position = 15,
                                       .pages = pages,
                                       .page_count = 2,
                                       .logits = MGL_LOGITS_LAST});
  for (int i = 0; i < 2; i++) {
    fake.graph_launches = 0;
    assert_int_equal(mgl_cuda_program_run_plan(program, plan, &launch, logits, &err), MGL_OK);
    assert_int_equal(fake.graph_launches, LAYERS + 1);
    assert_int_equal(fake.run->plans[0].positions[2], 17);
  }
  mgl_plan_clear(plan);
  mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                       .token_count = 1,
                                       .position = 18,
                                       .pages = pages,
                                       .page_count = 2,
                                       .logits = MGL_LOGITS_LAST});
  fake.graph_launches = 0;
  assert_int_equal(mgl_cuda_program_run_plan(program, plan, &launch, logits, &err), MGL_OK);
  assert_int_equal(fake.graph_launches, 1);  // it decodes
  mgl_plan_destroy(plan);
  mgl_free(logits);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

static void a_failed_capture_is_reported(void **state) {
  (void)state;
  const mgl_cuda_launch_options full = {.full = true};
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = make(&device);
  fake.capture_fails = true;
  assert_int_equal(fake_model_run(program, 6, full, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "CUDA launch_config: a fake error"));
  fake.capture_fails = false;
  assert_int_equal(fake_model_run(program, 6, full, &err), MGL_OK);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

static void the_word_of_a_plan_holds_its_parts(void **state) {
  (void)state;
  static const mgl_host_plan_flags flags[] = {MGL_HOST_PLAN_CALM, MGL_HOST_PLAN_TOLD,
                                              MGL_HOST_PLAN_AGAIN, MGL_HOST_PLAN_OVER,
                                              MGL_HOST_PLAN_DECODES};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    uint64_t word = mgl_host_plan_make(UINT32_MAX, MGL_HOST_PLAN_MOST_LEFT - 1, flags[i], 64);
    assert_int_equal(mgl_host_plan_iteration(word), UINT32_MAX);
    assert_int_equal(mgl_host_plan_left(word), MGL_HOST_PLAN_MOST_LEFT - 1);
    assert_int_equal(mgl_host_plan_tokens(word), 64);
    for (size_t j = 0; j < sizeof flags / sizeof flags[0]; j++) {
      assert_int_equal(mgl_host_plan_has(word, flags[j]), i == j);
    }
  }
  assert_int_equal(mgl_host_plan_left(mgl_host_plan_make(0, UINT32_MAX, 0, 1)),
                   MGL_HOST_PLAN_MOST_LEFT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(jobs_are_those_of_mode_mega),
      cmocka_unit_test(pieces_and_single_kernels_do_the_same),
      cmocka_unit_test(the_faster_way_is_found_and_taken),
      cmocka_unit_test(what_was_captured_is_dumped_and_counted),
      cmocka_unit_test(preempted_requests_get_their_graphs),
      cmocka_unit_test(nothing_is_queued_in_vain),
      cmocka_unit_test(attention_has_three_kernels),
      cmocka_unit_test(a_job_can_be_stopped),
      cmocka_unit_test(a_plan_runs_once),
      cmocka_unit_test(a_failed_capture_is_reported),
      cmocka_unit_test(the_word_of_a_plan_holds_its_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
