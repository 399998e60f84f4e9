// The engine on a GPU, over the fake driver: requests go through launches in order of submission
// and end for the right reasons, iterations are counted as the CPU counts them, and what a stopped
// or failed launch leaves is taken up again.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"
#include "cuda_engine_bed.h"
#include "engine/op_test.h"
#include "engine/score.h"
#include "graph/family.h"
#include "support/must.h"

static int32_t token_of(uint32_t request, uint32_t position) {
  return fake_cuda_token((int32_t)request * 5, position);
}

static void check_tokens(const bed *b, uint32_t request, uint32_t prompt_count, uint32_t count,
                         mgl_finish_reason reason) {
  assert_int_equal(b->counts[request], count);
  assert_int_equal(b->reasons[request], reason);
  for (uint32_t i = 0; i < count; i++) {
    assert_int_equal(b->tokens[request][i], token_of(request, prompt_count + i));
  }
}

// Six requests for four places: one launch. Counts of iterations are those of the CPU.
static void requests_go_through_a_launch_of(mgl_mode mode) {
  static bed b;
  for (int prompts_first = 0; prompts_first < 2; prompts_first++) {
    for (uint32_t chunk = 0; chunk < 20; chunk += 7) {
      fake.graph_launches = 0;
      open_bed(&b, (mgl_engine_options){
                       .mode = mode, .prompts_first = prompts_first != 0, .chunk_tokens = chunk});
      uint64_t kv_tokens = 0;
      for (uint32_t i = 0; i < 6; i++) {
        (void)submit(&b, 5 + 11 * i, 3 + i, -1);
        for (uint32_t j = 1; j < 3 + i; j++) {
          kv_tokens += 5 + 11 * i + j;
        }
      }
      run(&b);
      assert_false(mgl_engine_has_work(b.engine));
      assert_int_equal(fake.runs, mode == MGL_MODE_MEGA ? 1 : 0);
      assert_int_equal(fake.graph_launches != 0, mode == MGL_MODE_FULL);
      for (uint32_t i = 0; i < 6; i++) {
        check_tokens(&b, i, 5 + 11 * i, 3 + i, MGL_FINISH_LENGTH);
      }
      assert_int_equal(b.sum.prompt_tokens, 6 * 5 + 11 * 15);
      assert_int_equal(b.sum.decode_tokens, 2 * 6 + 15);
      assert_int_equal(b.sum.kv_tokens, kv_tokens);
      assert_int_equal(b.sum.ns, 1000 * b.iterations);
      mgl_engine_statistics statistics;
      mgl_engine_get_statistics(b.engine, &statistics);
      assert_int_equal(statistics.iterations, b.iterations);
      assert_int_equal(statistics.prompt_tokens, b.sum.prompt_tokens);
      assert_true(statistics.planning_ns > 0 && statistics.pages_used_most > 5);
      assert_int_equal(statistics.running + statistics.waiting + statistics.pages_used, 0);
      close_bed(&b);
    }
  }
}

static void requests_go_through_a_launch(void **state) {
  (void)state;
  requests_go_through_a_launch_of(MGL_MODE_MEGA);
}

// One of JIT tasks, which the compiler itself makes none of for a GPU.
static void a_task_graph_from_a_file_is_run(void **state) {
  (void)state;
  mgl_graph *canonical = NULL;
  mgl_given_graph given = {0};
  const mgl_compile_options compile = {.target = MGL_TARGET_CUDA,
                                       .tokens = 1,
                                       .workers = FAKE_CUDA_WORKERS,
                                       .launch = MGL_LAUNCH_JIT};
  bed b;
  MUST(mgl_family_build(&config, NULL, &canonical, &err));
  MUST(mgl_fuse_ops_for(MGL_TARGET_CUDA, canonical, &given.program, &err));
  MUST(mgl_compile(given.program, &compile, &given.graph, NULL, &err));
  b.ranks = NULL;
  open_bed_with(&b, (mgl_engine_options){0}, &given);
  (void)submit(&b, 3, 10, -1);
  run(&b);
  check_tokens(&b, 0, 3, 10, MGL_FINISH_LENGTH);
  assert_true(mgl_load_relaxed(&fake.run->protocol.tickets) > 0);
  close_bed(&b);
  mgl_task_graph_destroy(given.graph);
  mgl_graph_destroy(given.program);
  mgl_graph_destroy(canonical);
}

static void requests_go_through_graphs_of_mode_full(void **state) {
  (void)state;
  requests_go_through_a_launch_of(MGL_MODE_FULL);
}

static void stop_tokens_end_requests_in(mgl_mode mode) {
  static bed b;
  open_bed(&b, (mgl_engine_options){.mode = mode});
  (void)submit(&b, 4, 20, token_of(0, 4 + 6));
  (void)submit(&b, 9, 1, -1);
  (void)submit(&b, 9, 2, token_of(2, 9));
  run(&b);
  check_tokens(&b, 0, 4, 7, MGL_FINISH_STOP);
  check_tokens(&b, 1, 9, 1, MGL_FINISH_LENGTH);
  check_tokens(&b, 2, 9, 1, MGL_FINISH_STOP);
  assert_int_equal(b.sum.prompt_tokens, 22);
  // Two of the tokens that stop are followed by a row for nothing each, but for which the next plan
  // was made before.
  assert_int_equal(b.sum.decode_tokens, 6 + 2);
  assert_int_equal(b.iterations, 8);
  close_bed(&b);
}

static void stop_tokens_end_requests(void **state) {
  (void)state;
  stop_tokens_end_requests_in(MGL_MODE_MEGA);
  stop_tokens_end_requests_in(MGL_MODE_FULL);
}

// Single steps are planned by the host; a run behind them begins the request anew and goes on.
static void steps_and_runs_mix(void **state) {
  (void)state;
  static bed b;
  mgl_error err = {0};
  mgl_iteration stats = {0};
  open_bed(&b, (mgl_engine_options){0});
  (void)submit(&b, 6, 8, -1);
  (void)submit(&b, 3, 4, -1);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(mgl_engine_step(b.engine, on_token, &b, &stats, &err), MGL_OK);
    assert_int_equal(i == 0 ? stats.prompt_tokens : stats.decode_tokens, i == 0 ? 9 : 2);
  }
  assert_int_equal(fake.runs, 3);
  assert_int_equal(b.counts[0], 3);
  run(&b);
  assert_int_equal(fake.runs, 4);
  assert_int_equal(b.counts[0], 8);
  assert_int_equal(b.counts[1], 4);
  for (uint32_t i = 3; i < 8; i++) {
    assert_int_equal(b.tokens[0][i], token_of(0, 6 + i));
  }
  (void)submit(&b, 3, 2, -1);  // and the other way
  assert_int_equal(mgl_engine_step(b.engine, on_token, &b, &stats, &err), MGL_OK);
  assert_int_equal(mgl_engine_step(b.engine, on_token, &b, &stats, &err), MGL_OK);
  assert_int_equal(b.counts[2], 2);
  assert_false(mgl_engine_has_work(b.engine));
  close_bed(&b);
}

static bool at_third_look(void *context) {
  uint32_t *looks = context;
  return ++*looks == 3;
}

static void a_stopped_run_leaves_the_rest_waiting_in(mgl_mode mode) {
  static bed b;
  uint32_t looks = 0;
  uint32_t runs = mode == MGL_MODE_MEGA ? 1 : 0;
  open_bed(&b, (mgl_engine_options){.mode = mode, .should_stop = at_third_look, .context = &looks});
  for (uint32_t i = 0; i < 6; i++) {
    (void)submit(&b, 5, 3, -1);
  }
  run(&b);
  assert_int_equal(fake.runs, runs);
  assert_true(mgl_engine_has_work(b.engine));
  run(&b);
  assert_int_equal(fake.runs, 2 * runs);
  assert_false(mgl_engine_has_work(b.engine));
  for (uint32_t i = 0; i < 6; i++) {
    check_tokens(&b, i, 5, 3, MGL_FINISH_LENGTH);
  }
  close_bed(&b);

  open_bed(&b, (mgl_engine_options){.mode = mode});
  for (uint32_t i = 0; i < 6; i++) {
    (void)submit(&b, 5, 9, -1);
  }
  b.most_iterations = 2;
  run(&b);
  assert_int_equal(b.iterations, 2);
  assert_int_equal(fake.runs, runs);
  mgl_engine_cancel(b.engine, 4);  // between launches
  b.most_iterations = 0;
  run(&b);
  assert_int_equal(b.counts[4], 0);
  assert_int_equal(b.counts[5], 9);
  close_bed(&b);
}

static void a_stopped_run_leaves_the_rest_waiting(void **state) {
  (void)state;
  a_stopped_run_leaves_the_rest_waiting_in(MGL_MODE_MEGA);
  a_stopped_run_leaves_the_rest_waiting_in(MGL_MODE_FULL);
}

static void failures_are_those_of_the_cpu_in(mgl_mode mode) {
  static bed b;
  mgl_error err = {0};
  open_bed(&b, (mgl_engine_options){.mode = mode});
  for (uint32_t i = 0; i < 6; i++) {
    (void)submit(&b, 5, i == 0 ? 2 : 9, -1);
  }
  // In iteration 3 the logits of all that still run are bad; the first is named and cancelled.
  fake.not_finite_at = 3;
  assert_int_equal(mgl_engine_run(b.engine, on_token, on_iteration, &b, &err), MGL_ERR_FORMAT);
  assert_non_null(strstr(err.text, "not finite (NaN or infinity) at position 7 of request 1"));
  assert_int_equal(b.reasons[0], MGL_FINISH_LENGTH);
  fake.not_finite_at = FAKE_CUDA_NEVER;
  run(&b);
  assert_int_equal(b.counts[0], 2);
  assert_int_equal(b.counts[1], 3);
  for (uint32_t i = 2; i < 6; i++) {
    assert_int_equal(b.counts[i], 9);
    assert_int_equal(b.reasons[i], MGL_FINISH_LENGTH);
  }
  // A mode that the GPU does not have.
  mgl_engine *eager = NULL;
  assert_int_equal(
      mgl_engine_create(b.runner, &(mgl_engine_options){.mode = MGL_MODE_EAGER}, &eager, &err),
      MGL_OK);
  mgl_engine *mega = b.engine;
  b.engine = eager;
  (void)submit(&b, 5, 3, -1);
  assert_int_equal(mgl_engine_run(eager, on_token, NULL, &b, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "mode eager: expected mega or full on a GPU"));
  mgl_engine_destroy(eager);
  b.engine = mega;
  // A GPU that is lost. Its memory stays, since nothing could free it.
  (void)submit(&b, 5, 3, -1);
  fake.launch_result = 719;
  assert_int_equal(mgl_engine_run(mega, on_token, NULL, &b, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "the GPU was lost"));
  (void)submit(&b, 5, 3, -1);
  assert_int_equal(mgl_engine_run(mega, on_token, NULL, &b, &err), MGL_ERR_INTERNAL);
  mgl_engine_destroy(b.engine);
  mgl_runner_destroy(b.runner);
  fake_cuda_reclaim();
}

static void failures_are_those_of_the_cpu(void **state) {
  (void)state;
  failures_are_those_of_the_cpu_in(MGL_MODE_MEGA);
  failures_are_those_of_the_cpu_in(MGL_MODE_FULL);
}

static void texts_are_scored(void **state) {
  (void)state;
  enum { COUNT = 100 };
  mgl_error err = {0};
  mgl_model_folder folder = {.config = config};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  mgl_build options = mgl_score_build(COUNT, 0);
  mgl_runner *runner = NULL;
  int32_t tokens[COUNT];
  double logprobs[COUNT];
  options.weights = MGL_WEIGHTS_DUMMY;
  options.cuda = &cuda;
  fake.runs = 0;
  assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_OK);
  for (int32_t i = 0; i < COUNT; i++) {
    tokens[i] = i;
  }
  mgl_score_request request = {.tokens = tokens, .count = COUNT};
  if (mgl_score(runner, &request, logprobs, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(fake.runs, 2);
  for (int32_t i = 1; i < COUNT; i++) {  // all logits are alike
    assert_true(fabs(logprobs[i] + log(VOCAB)) < 1e-9);
  }
  mgl_runner_destroy(runner);

  fake.free_bytes = 1 << 20;
  assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_ERR_MEMORY);
  assert_non_null(strstr(err.text, "are free on the GPU"));
  assert_int_equal(fake.live, 0);
}

// The range's inputs and the cache are in the device's memory when it is launched. No kernel runs
// there, so that nothing is computed: its results stay NaN, and that fails.
static void a_range_of_ops_is_launched(void **state) {
  (void)state;
  enum { TOKENS = 3, BEFORE = 20, DIMS = 32, PAGE = 2 * 16 * DIMS };
  mgl_error err = {0};
  mgl_model_folder folder = {.config = config};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  const mgl_op_test_options of = {.tokens = TOKENS, .context = BEFORE, .tolerance = -1};
  mgl_build options = mgl_op_test_build(&of);
  mgl_runner *runner = NULL;
  mgl_op_test *test = NULL;
  const mgl_op_result *results = NULL;
  uint32_t count = 0;
  uint32_t op = 0;
  static float values[TOKENS * 12 * DIMS], k[PAGE], v[PAGE];
  options.weights = MGL_WEIGHTS_DUMMY;
  options.threads = 2;
  options.cuda = &cuda;
  fake.runs = 0;
  assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_OK);
  if (mgl_op_test_create(runner, &folder, &of, &test, &err) != MGL_OK ||
      mgl_op_test_find(test, "1.attention", &op, &err) != MGL_OK ||
      mgl_op_test_run(test, op, op, &results, &count, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(fake.runs, 1);
  assert_int_equal(count, 2);
  for (uint32_t i = 0; i < count; i++) {
    assert_false(results[i].passed);
    assert_true(isnan(results[i].largest) && results[i].largest_bound > 0);
    assert_true(isfinite(results[i].expected[0]));
  }
  const mgl_device_look *look = &mgl_runner_table(runner)->look;
  void *model = mgl_runner_model(runner);
  assert_int_equal(look->read(model, TOKENS, "1.v", values, TOKENS * 12 * DIMS, &err), MGL_OK);
  for (uint32_t i = 0; i < TOKENS * 12 * DIMS; i++) {
    assert_true(isfinite(values[i]));
  }
  assert_int_equal(look->read_kv(model, "kv.1", 1, k, v, &err), MGL_OK);  // the first of two
  for (uint32_t i = 0; i < PAGE; i++) {
    assert_true(isfinite(k[i]) && isfinite(v[i]));
  }
  assert_int_equal(look->read_kv(model, "kv.1", 0, k, v, &err), MGL_OK);
  for (uint32_t i = 0; i < 16 * DIMS; i++) {
    assert_int_equal(isfinite(k[i]) != 0, i / DIMS < BEFORE - 16);
  }
  mgl_op_test_destroy(test);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
}

// Iterations of 2048 tokens have room for 1024 rows of logits, and every row of a scored text has
// some.
static void long_texts_are_scored(void **state) {
  (void)state;
  enum { COUNT = 2048 + 300 };
  mgl_error err = {0};
  mgl_model_folder folder = {.config = config};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  folder.config.context_tokens = COUNT;
  mgl_build options = mgl_score_build(COUNT, 2048);
  mgl_runner *runner = NULL;
  static int32_t tokens[COUNT];
  static double logprobs[COUNT];
  options.weights = MGL_WEIGHTS_DUMMY;
  options.cuda = &cuda;
  options.iteration_tokens = 2048;  // as the command sets it
  if (mgl_runner_create(&folder, &options, &runner, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  for (int32_t i = 0; i < COUNT; i++) {
    tokens[i] = i % VOCAB;
  }
  mgl_score_request request = {.tokens = tokens, .count = COUNT};
  if (mgl_score(runner, &request, logprobs, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  for (int32_t i = 1; i < COUNT; i++) {  // all logits are alike
    assert_true(fabs(logprobs[i] + log(VOCAB)) < 1e-9);
  }
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
}

// --- what is asked of sampling -------------------------------------------------------------------

typedef struct asked {
  uint32_t logprobs;  // tokens that had some
  uint32_t tokens;
  uint32_t most;  // of request 1, after which the callback ends it
} asked;

// The fake device's log probabilities: half of what exp(logit - 1) says.
static bool check_logprobs(void *context, const mgl_generated_token *token) {
  asked *a = context;
  a->tokens++;
  if (token->request % 2 == 0) {
    assert_true(isnan(token->logprob) && token->top_count == 0);
    return true;
  }
  a->logprobs++;
  assert_true(fabs(token->logprob - (-token->token - 1 - log(2))) < 1e-9);
  assert_int_equal(token->top_count, 3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(token->top[i].token, token->token + (int32_t)i);
    assert_true(fabs(token->top[i].logprob - (-(double)i - 1 - log(2))) < 1e-9);
  }
  assert_true(a->most == 0 || a->logprobs <= a->most);
  return a->most == 0 || a->logprobs < a->most;
}

static void submit_sampling(mgl_engine *engine, const mgl_sampling *sampling) {
  static const int32_t prompt[] = {5, 7, 5, 9};
  mgl_error err = {0};
  uint32_t number = 0;
  mgl_request request = {
      .prompt = prompt, .prompt_count = 4, .max_new_tokens = 6, .sampling = *sampling};
  if (mgl_engine_submit(engine, &request, &number, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

// Tokens of a slot's edits: those of the prompt, the bias, and what was generated but the last one.
static void check_device_edits(uint32_t slot, uint32_t generated) {
  const mgl_cuda_sequence *s = &fake.run->sequences[slot];
  assert_int_equal(s->edit_count, 4 + generated - 1);
  for (uint32_t i = 0; i < s->edit_count; i++) {
    const mgl_logit_edit *e = &s->edits[i];
    bool in_prompt = e->token == 5 || e->token == 7 || e->token == 9;
    bool biased = e->token == 400;
    assert_int_equal((e->marks & MGL_EDIT_IN_PROMPT) != 0, in_prompt);
    assert_true(e->bias == (biased ? 2.5f : 0));
    assert_int_equal(e->marks / MGL_EDIT_GENERATED, in_prompt || biased ? 0 : 1);
  }
}

static void sampling_reaches_the_device(void **state) {
  (void)state;
  static bed b;
  static const mgl_logit_bias bias = {.token = 400, .value = 2.5f};
  static const mgl_sampling penalised = {.temperature = 0.5,
                                         .top_p = 0.9,
                                         .repetition_penalty = 1.5,
                                         .biases = &bias,
                                         .bias_count = 1};
  static const mgl_sampling wordy = {.top_p = 1, .logprobs = true, .top_logprobs = 3};
  mgl_error err = {0};
  open_bed(&b, (mgl_engine_options){0});
  for (int round = 0; round < 2; round++) {  // the second time with more of both
    asked a = {0};
    for (int i = 0; i < 1 + round; i++) {
      submit_sampling(b.engine, &penalised);
      submit_sampling(b.engine, &wordy);
    }
    assert_int_equal(mgl_engine_run(b.engine, check_logprobs, NULL, &a, &err), MGL_OK);
    assert_int_equal(a.tokens, 12 * (1 + round));
    assert_int_equal(a.logprobs, 6 * (1 + round));
    const mgl_cuda_sequence *s = fake.run->sequences;
    assert_true(s[0].rule.inverse == 2 && s[0].rule.repetition_penalty == 1.5f);
    assert_true(s[0].takes_row != 0 && s[1].takes_row != 0);
    assert_true(s[1].edits == NULL && s[0].host_logprobs == NULL);
    for (uint32_t i = 0; i < 1u + (uint32_t)round; i++) {
      check_device_edits(2 * i, 6);
    }
  }
  // A callback that wants no more: what the device goes on to generate is not heard of.
  asked a = {.most = 2};
  submit_sampling(b.engine, &penalised);
  submit_sampling(b.engine, &wordy);
  assert_int_equal(mgl_engine_run(b.engine, check_logprobs, NULL, &a, &err), MGL_OK);
  assert_int_equal(a.logprobs, 2);
  assert_false(mgl_engine_has_work(b.engine));
  // Single steps, whose tokens the host samples, and then a launch that goes on with their counts.
  submit_sampling(b.engine, &penalised);
  a = (asked){0};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(mgl_engine_step(b.engine, check_logprobs, &a, NULL, &err), MGL_OK);
  }
  assert_int_equal(mgl_engine_run(b.engine, check_logprobs, NULL, &a, &err), MGL_OK);
  assert_int_equal(a.tokens, 6);
  uint32_t counted = 0;
  for (uint32_t i = 0; i < fake.run->sequences[0].edit_count; i++) {
    counted += fake.run->sequences[0].edits[i].marks / MGL_EDIT_GENERATED;
  }
  assert_int_equal(counted, 5);
  close_bed(&b);
}

// --- requests that come, end and pause while a launch runs ---------------------------------------

enum { CROWD = 150, CROWD_NEW = 40, CROWD_PROMPT = 80, CROWD_FAMILIES = 7 };

typedef struct crowd {
  mgl_engine *engine;
  uint32_t random;
  uint32_t come;  // numbers of the engine are those of the requests
  bool arrive, stir;
  uint32_t counts[CROWD];
  bool over[CROWD], cancelled[CROWD], paused[CROWD];
} crowd;

static uint32_t random_below(crowd *c, uint32_t below) {
  c->random = c->random * 1664525u + 1013904223u;
  return (c->random >> 8) % below;
}

static uint32_t prompt_of(uint32_t i) {
  return 1 + i * 37 % CROWD_PROMPT;
}

static uint32_t new_of(uint32_t i) {
  return 1 + i * 11 % CROWD_NEW;
}

// Prompts of a family begin alike, some for longer than others.
static void come(crowd *c) {
  int32_t prompt[CROWD_PROMPT];
  uint32_t i = c->come++;
  uint32_t number = 0;
  mgl_error err = {0};
  for (uint32_t j = 0; j < prompt_of(i); j++) {
    prompt[j] = (int32_t)((i % CROWD_FAMILIES * 50 + j + (j > i % 64 ? i : 0)) % VOCAB);
  }
  mgl_request request = {.prompt = prompt,
                         .prompt_count = prompt_of(i),
                         .max_new_tokens = new_of(i),
                         .sampling = {.top_p = 1}};
  if (mgl_engine_submit(c->engine, &request, &number, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(number, i);
}

static void stir_crowd(void *context) {
  crowd *c = context;
  while (c->come < CROWD && (!c->arrive || random_below(c, 3) == 0)) {
    come(c);
  }
  if (c->come < CROWD && !mgl_engine_has_work(c->engine)) {
    come(c);
  }
  for (uint32_t i = 0; c->stir && i < c->come; i++) {
    if (c->over[i] || c->cancelled[i]) {
      continue;
    }
    if (i % 3 == 0 && random_below(c, 12) == 0) {
      mgl_engine_cancel(c->engine, i);
      c->cancelled[i] = true;
      c->paused[i] = false;
    } else if (c->paused[i] && random_below(c, 8) == 0) {
      mgl_engine_resume(c->engine, i);
      c->paused[i] = false;
    } else if (!c->paused[i] && random_below(c, 60) == 0) {
      mgl_engine_pause(c->engine, i);
      c->paused[i] = true;
    }
  }
}

static bool crowd_token(void *context, const mgl_generated_token *token) {
  crowd *c = context;
  uint32_t i = token->request;
  int32_t first = (int32_t)(i % CROWD_FAMILIES * 50 % VOCAB);
  assert_false(c->over[i] || c->cancelled[i] || c->paused[i]);
  assert_int_equal(token->token, fake_cuda_token(first, prompt_of(i) + c->counts[i]));
  c->counts[i]++;
  c->over[i] = token->finish != MGL_FINISH_NONE;
  return true;
}

static void run_crowd(mgl_mode mode, bool large, uint32_t pool_tokens, bool prefix_cache,
                      bool arrive, bool stir) {
  mgl_error err = {0};
  mgl_model_folder folder = {.config = config};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  mgl_build options = {.sequences = 12,
                       .iteration_tokens = large ? 300 : 32,
                       .sequence_tokens = CONTEXT,
                       .pool_tokens = pool_tokens,
                       .weights = MGL_WEIGHTS_DUMMY,
                       .cuda = &cuda};
  crowd c = {.random = pool_tokens + (prefix_cache ? 1 : 0), .arrive = arrive, .stir = stir};
  mgl_engine_options engine = {.mode = mode,
                               .prefix_cache = prefix_cache,
                               .chunk_tokens = arrive && !large ? 9 : 0,
                               .before_plan = stir_crowd,
                               .context = &c};
  mgl_runner *runner = NULL;
  fake.runs = 0;
  fake.wide_runs = 0;
  fake.graph_launches = 0;
  assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_OK);
  assert_int_equal(mgl_engine_create(runner, &engine, &c.engine, &err), MGL_OK);
  bool left = true;
  for (uint32_t runs = 0; left; runs++) {
    assert_true(runs < 1000);
    if (mgl_engine_run(c.engine, crowd_token, NULL, &c, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    stir_crowd(&c);
    left = c.come < CROWD || mgl_engine_has_work(c.engine);
    for (uint32_t i = 0; i < CROWD; i++) {
      left = left || c.paused[i];
    }
  }
  for (uint32_t i = 0; i < CROWD; i++) {
    assert_true(c.cancelled[i] ? c.counts[i] <= new_of(i) : c.counts[i] == new_of(i));
  }
  mgl_engine_statistics s;
  mgl_engine_get_statistics(c.engine, &s);
  assert_true((s.preemptions > 0) == (pool_tokens < 12 * CONTEXT));
  assert_true((s.prefix_hit_tokens > 0) == prefix_cache);
  assert_true(s.pages_used_most <= s.pages && s.planning_ns > 0);
  print_message(
      "%s, pool of %u%s%s%s: %u launches, %u large iterations, %llu in all, %llu preemptions, "
      "%llu found\n",
      mgl_mode_name(mode), pool_tokens, prefix_cache ? ", prefix cache" : "",
      arrive ? ", arriving" : "", stir ? ", cancelled and paused" : "", fake.runs, fake.wide_runs,
      (unsigned long long)s.iterations, (unsigned long long)s.preemptions,
      (unsigned long long)s.prefix_hit_tokens);
  if (mode != MGL_MODE_MEGA) {
    assert_int_equal(fake.runs, 0);
    assert_true((fake.graph_launches > 0) == (mode != MGL_MODE_COMPILED));
  } else if (!stir) {
    assert_true(arrive || large || fake.runs == 1);
  }
  assert_true((fake.wide_runs > 0) == (large && mode == MGL_MODE_MEGA));
  mgl_engine_destroy(c.engine);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
}

static void a_crowd_is_served(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 64; i++) {
    run_crowd(i & 16 ? MGL_MODE_FULL : MGL_MODE_MEGA, i & 32, i & 1 ? CONTEXT + 64 : 12 * CONTEXT,
              i & 2, i & 4, i & 8);
  }
  static const mgl_mode others[] = {MGL_MODE_COMPILED, MGL_MODE_PIECEWISE,
                                    MGL_MODE_FULL_DECODE_ONLY, MGL_MODE_FULL_AND_PIECEWISE};
  for (uint32_t i = 0; i < 32; i++) {  // the same kernels in pieces, one by one, and as they come
    run_crowd(others[i % 4], false, i & 4 ? CONTEXT + 64 : 12 * CONTEXT, i & 8, i & 16, i & 4);
  }
}

// What is not asked for follows the device.
static void usual_numbers_follow_the_device(void **state) {
  (void)state;
  static const struct {
    uint32_t multiprocessors;  // 0: the CPU
    uint32_t iteration_tokens, sequences, requests;
    uint32_t expected_tokens, expected_sequences;
  } cases[] = {{6, 0, 0, 0, 2048, 256}, {6, 0, 0, 5, 2048, 5},    {6, 0, 0, 300, 2048, 256},
               {6, 64, 0, 0, 64, 64},   {6, 100, 0, 0, 100, 100}, {6, 0, 7, 5, 2048, 7},
               {193, 0, 0, 0, 64, 64},  {193, 16, 0, 0, 16, 16},  {0, 0, 0, 0, 128, 64}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_error err = {0};
    mgl_model_folder folder = {.config = config};
    mgl_cuda_device device = fake_cuda_device();
    mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
    mgl_build options = {.iteration_tokens = cases[i].iteration_tokens,
                         .sequences = cases[i].sequences,
                         .requests = cases[i].requests,
                         .sequence_tokens = CONTEXT,
                         .weights = MGL_WEIGHTS_DUMMY,
                         .cuda = cases[i].multiprocessors != 0 ? &cuda : NULL};
    mgl_runner *runner = NULL;
    mgl_sizes plan;
    device.sm_count = cases[i].multiprocessors;
    if (mgl_runner_create(&folder, &options, &runner, &err) != MGL_OK ||
        mgl_runner_measure(&folder, &options, &plan, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(mgl_runner_limits(runner)->tokens, cases[i].expected_tokens);
    assert_int_equal(mgl_runner_sequences(runner), cases[i].expected_sequences);
    assert_int_equal(plan.sequences, cases[i].expected_sequences);
    mgl_runner_destroy(runner);
  }
}

// --- a launch that waits for more ----------------------------------------------------------------

typedef struct late_request {
  bed *b;
  uint32_t looks, least_looks;  // for more, after which it comes
} late_request;

static void come_late(void *context) {
  late_request *l = context;
  if (l->b->submitted == 1 && l->b->reasons[0] != MGL_FINISH_NONE && ++l->looks > l->least_looks) {
    (void)submit(l->b, 5, 4, -1);
  }
}

static void a_launch_waits_for_more(void **state) {
  (void)state;
  static bed b;
  for (int i = 0; i < 4; i++) {
    bool full = i >= 2;
    int waits = i % 2;
    late_request late = {.b = &b, .least_looks = waits != 0 ? 20 : UINT32_MAX};
    open_bed(&b, (mgl_engine_options){.mode = full ? MGL_MODE_FULL : MGL_MODE_MEGA,
                                      .before_plan = come_late,
                                      .context = &late,
                                      .idle_ns = waits != 0 ? UINT64_C(20000000000) : 0});
    fake.idle_looks = 0;
    fake.plan_launches = 0;
    (void)submit(&b, 3, 2, -1);
    if (waits != 0) {
      b.most_iterations = 6;  // else it would wait for the twenty seconds
    }
    run(&b);
    assert_int_equal(fake.runs, full ? 0 : 1);
    check_tokens(&b, 0, 3, 2, MGL_FINISH_LENGTH);
    assert_int_equal(b.submitted, waits != 0 ? 2 : 1);
    if (waits != 0) {
      check_tokens(&b, 1, 5, 4, MGL_FINISH_LENGTH);
      // Before each request's first iteration, behind its last one, and one for what ends a launch.
      assert_true(full ? fake.plan_launches >= 4 && fake.plan_launches <= 8 : fake.idle_looks > 0);
    }
    close_bed(&b);
  }
}

static void several_gpus_refuse_what_they_have_not(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_model_folder folder = {.config = config};
  mgl_cuda_device device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  const mgl_build build = {
      .sequence_tokens = CONTEXT, .weights = MGL_WEIGHTS_DUMMY, .ranks = 2, .cuda = &cuda};
  mgl_runner *runner = NULL;
  folder.config.family = MGL_FAMILY_LLAMA;
  folder.config.output_bias = true;
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "biases behind a sum over the ranks run on one GPU so far"));
  folder.config = config;
  folder.config.family = MGL_FAMILY_QWEN3_MOE;
  folder.config.mixture =
      (mgl_mixture){.expert_count = 4, .slots = 2, .inner_size = 128, .scale = 1};
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "mixtures of experts and sinks run on one GPU so far"));
  assert_null(runner);
  assert_int_equal(fake.live, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(requests_go_through_a_launch),
      cmocka_unit_test(a_task_graph_from_a_file_is_run),
      cmocka_unit_test(requests_go_through_graphs_of_mode_full),
      cmocka_unit_test(stop_tokens_end_requests),
      cmocka_unit_test(steps_and_runs_mix),
      cmocka_unit_test(a_stopped_run_leaves_the_rest_waiting),
      cmocka_unit_test(failures_are_those_of_the_cpu),
      cmocka_unit_test(texts_are_scored),
      cmocka_unit_test(long_texts_are_scored),
      cmocka_unit_test(sampling_reaches_the_device),
      cmocka_unit_test(a_crowd_is_served),
      cmocka_unit_test(a_range_of_ops_is_launched),
      cmocka_unit_test(usual_numbers_follow_the_device),
      cmocka_unit_test(a_launch_waits_for_more),
      cmocka_unit_test(several_gpus_refuse_what_they_have_not),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
