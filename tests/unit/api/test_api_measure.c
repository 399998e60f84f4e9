// What an engine tells of itself, and how it is told to run: modes by name, progress of a start,
// figures of iterations, the read ceiling, traces, and the log probabilities of a text.
#include <math.h>

#include "unit/api/api_bed.h"

enum { TEXT_TOKENS = 100 };

// --- how it runs ---------------------------------------------------------------------------------

static void every_mode_gives_the_same(void **state) {
  static const char *const modes[] = {
      "mega", "eager", "full", "compiled", "piecewise", "full-decode-only", "full-and-piecewise"};
  (void)state;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    megalith_engine *engine = create((megalith_engine_options){.mode = modes[i]});
    megalith_request *request =
        submit_question(engine, 3, (megalith_request_options){.max_new_tokens = 40});
    run(engine);
    check_answer(request, 3);
    megalith_request_release(request);
    megalith_engine_destroy(engine);
  }
}

static void ways_that_contradict_are_refused(void **state) {
  static const char *const paths[] = {"/nowhere/graph.json"};
  (void)state;
  refuse_engine((megalith_engine_options){.mode = "fast"}, MEGALITH_ERROR_ARGUMENT, "fast");
  refuse_engine((megalith_engine_options){.mode = "full", .compilation = "{\"level\": 3}"},
                MEGALITH_ERROR_ARGUMENT, "mode full: expected it alone");
  refuse_engine((megalith_engine_options){.task_graph_count = 1}, MEGALITH_ERROR_ARGUMENT,
                "task_graphs: expected 1, found NULL");
  refuse_engine((megalith_engine_options){.task_graphs = paths, .task_graph_count = 1},
                MEGALITH_ERROR_IO, "/nowhere/graph.json");
  refuse_engine(
      (megalith_engine_options){.task_graphs = paths, .task_graph_count = 1, .mode = "full"},
      MEGALITH_ERROR_ARGUMENT, "task_graphs: expected mode mega");
  refuse_engine((megalith_engine_options){.threads = 2, .device = "cuda"}, MEGALITH_ERROR_ARGUMENT,
                "threads is for the CPU");
}

// KV memory for as many requests as there will be; what does not fit is refused with the request.
static void memory_is_for_the_requests_that_come(void **state) {
  megalith_error error = {0};
  megalith_engine *engine = NULL;
  megalith_engine_options options = {
      .size = sizeof options, .threads = 2, .requests = 3, .context_tokens = 100};
  (void)state;
  assert_int_equal(megalith_engine_create(model, &options, &engine, &error), MEGALITH_OK);
  assert_int_equal(megalith_engine_describe(engine)->sequences, 3);
  assert_int_equal(megalith_engine_describe(engine)->kv_tokens, 3 * 112);  // whole pages
  megalith_engine_destroy(engine);
  options.kv_tokens = 64;
  assert_int_equal(megalith_engine_create(model, &options, &engine, &error), MEGALITH_OK);
  const megalith_request_options ask = {.size = sizeof ask, .text = "x", .max_new_tokens = 80};
  assert_int_equal(megalith_engine_submit(engine, &ask, NULL, &error), MEGALITH_ERROR_LIMIT);
  megalith_engine_destroy(engine);
  options.requests = 0;
  assert_int_equal(megalith_engine_create(model, &options, &engine, &error), MEGALITH_ERROR_LIMIT);
}

// --- progress ------------------------------------------------------------------------------------

typedef struct heard {
  uint64_t calls, done, total;
} heard;

static void hear(void *context, megalith_progress what, uint64_t done, uint64_t total) {
  heard *h = context;
  assert_int_equal(what, MEGALITH_PROGRESS_WEIGHTS);
  assert_true(done >= h->done && done <= total);
  *h = (heard){h->calls + 1, done, total};
}

static void progress_ends_with_all_weights(void **state) {
  const megalith_model_options copied = {.size = sizeof copied, .weights = MEGALITH_WEIGHTS_COPIED};
  megalith_engine_options options = {
      .size = sizeof options, .threads = 2, .kv_tokens = 256, .on_progress = hear};
  heard h = {0};
  megalith_model *own = NULL;
  megalith_engine *engine = NULL;
  (void)state;
  options.progress_context = &h;
  assert_int_equal(megalith_model_open(MGL_DEMO_FOLDER, &copied, &own, NULL), MEGALITH_OK);
  assert_int_equal(megalith_engine_create(own, &options, &engine, NULL), MEGALITH_OK);
  assert_true(h.calls > 0 && h.total > 100000);
  assert_int_equal(h.done, h.total);
  megalith_engine_destroy(engine);
  megalith_model_close(own);
}

// --- iterations ----------------------------------------------------------------------------------

typedef struct sums {
  megalith_engine *engine;
  uint64_t iterations, prompt_tokens, generated, most_context;
  uint64_t stop_behind;  // iterations; 0: never
} sums;

static void add(void *context, megalith_engine *engine, const megalith_iteration *iteration) {
  sums *s = context;
  megalith_error error = {0};
  s->engine = engine;
  s->iterations++;
  s->prompt_tokens += iteration->prompt_tokens;
  s->generated += iteration->generated;
  if (iteration->context_tokens > s->most_context) {
    s->most_context = iteration->context_tokens;
  }
  assert_true(iteration->ns > 0);
  assert_int_equal(megalith_engine_run(engine, &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "a callback cannot"));
  if (s->iterations == s->stop_behind) {
    megalith_engine_stop(engine);
  }
}

static void iterations_add_up_to_the_statistics(void **state) {
  sums s = {.stop_behind = 3};
  megalith_statistics all = {.size = sizeof all};
  megalith_engine *engine =
      create((megalith_engine_options){.on_iteration = add, .iteration_context = &s});
  megalith_request *request =
      submit_question(engine, 1, (megalith_request_options){.max_new_tokens = 40});
  (void)state;
  assert_int_equal(megalith_engine_step(engine, NULL), MEGALITH_OK);
  assert_int_equal(s.iterations, 1);
  run(engine);
  assert_int_equal(s.iterations, 3);
  assert_null(megalith_request_result(request));
  run(engine);
  check_answer(request, 1);
  const megalith_result *result = megalith_request_result(request);
  assert_int_equal(megalith_engine_get_statistics(engine, &all, NULL), MEGALITH_OK);
  assert_ptr_equal(s.engine, engine);
  assert_int_equal(s.iterations, all.iterations);
  assert_int_equal(s.prompt_tokens, all.prompt_tokens);
  assert_int_equal(s.prompt_tokens, result->prompt_token_count);
  assert_int_equal(s.generated, result->token_count - 1);
  assert_int_equal(s.most_context, result->prompt_token_count + result->token_count - 1);
  megalith_request_release(request);
  megalith_engine_destroy(engine);
}

// --- ceiling and trace ---------------------------------------------------------------------------

static void the_ceiling_is_measured_without_work(void **state) {
  double rate = 0;
  megalith_error error = {0};
  megalith_engine *engine = create((megalith_engine_options){0});
  const megalith_engine_info *info = megalith_engine_describe(engine);
  (void)state;
  assert_true(info->step_bytes > 100000 && info->kv_bytes_per_token > 0);
  assert_int_equal(megalith_engine_read_ceiling(engine, &rate, &error), MEGALITH_OK);
  assert_true(rate > 1e7);
  megalith_request *request = submit(engine, (megalith_request_options){.text = "Once"});
  assert_int_equal(megalith_engine_read_ceiling(engine, &rate, &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "without work"));
  megalith_request_release(request);
  megalith_engine_destroy(engine);
  engine = create((megalith_engine_options){.background = true});
  assert_int_equal(megalith_engine_read_ceiling(engine, &rate, &error), MEGALITH_ERROR_ARGUMENT);
  megalith_engine_destroy(engine);
}

static void a_trace_has_the_tasks(void **state) {
  size_t bytes = 0;
  size_t again = 0;
  char small[16];
  megalith_error error = {0};
  megalith_engine *engine = create((megalith_engine_options){.trace = true});
  megalith_request *request =
      submit_question(engine, 2, (megalith_request_options){.max_new_tokens = 4});
  (void)state;
  run(engine);
  assert_int_equal(megalith_engine_trace(engine, small, sizeof small, &bytes, &error), MEGALITH_OK);
  assert_int_equal(strlen(small), sizeof small - 1);
  char *text = malloc(bytes + 1);
  assert_non_null(text);
  assert_int_equal(megalith_engine_trace(engine, text, bytes + 1, &again, &error), MEGALITH_OK);
  assert_int_equal(again, bytes);
  assert_memory_equal(text, small, sizeof small - 1);
  assert_non_null(strstr(text, "\"traceEvents\""));
  assert_non_null(strstr(text, "7.gated"));
  free(text);
  megalith_request_release(request);
  megalith_engine_destroy(engine);
  engine = create((megalith_engine_options){0});
  assert_int_not_equal(megalith_engine_trace(engine, small, sizeof small, &bytes, &error),
                       MEGALITH_OK);
  megalith_engine_destroy(engine);
}

// --- scores --------------------------------------------------------------------------------------

typedef struct listener {
  size_t calls;
  size_t fails_at;
  double log_sum;  // of the logits of position 0
} listener;

static megalith_status listen(void *context, size_t position, const float *logits,
                              megalith_error *error) {
  listener *l = context;
  assert_int_equal(position, l->calls);
  l->calls++;
  double sum = 0;
  for (uint32_t i = 0; position == 0 && i < megalith_model_describe(model)->vocab_size; i++) {
    sum += exp((double)logits[i]);
  }
  l->log_sum = position == 0 ? log(sum) - (double)logits[7] : l->log_sum;
  (void)snprintf(error->text, sizeof error->text, "no more");
  return l->calls == l->fails_at ? MEGALITH_ERROR_IO : MEGALITH_OK;
}

// The same numbers as those that a request is told of its prompt, in iterations of any size.
static void scores_are_those_of_prompts(void **state) {
  int32_t tokens[TEXT_TOKENS];
  double logprobs[TEXT_TOKENS];
  megalith_prompt prompt;
  (void)state;
  for (int32_t i = 0; i < TEXT_TOKENS; i++) {
    tokens[i] = 3 + i * 37 % 900;
  }
  tokens[1] = 7;
  const megalith_sampling sampling = {.size = sizeof sampling, .prompt_logprobs = true};
  megalith_engine *other = create((megalith_engine_options){.prompt_logprobs = true});
  megalith_request *request = submit(other, (megalith_request_options){.tokens = tokens,
                                                                       .token_count = TEXT_TOKENS,
                                                                       .max_new_tokens = 1,
                                                                       .sampling = &sampling});
  run(other);
  megalith_request_prompt(request, &prompt);
  for (uint32_t size = 0; size <= 48; size += 24) {
    listener l = {0};
    megalith_engine *engine = create((megalith_engine_options){
        .scoring = true, .context_tokens = TEXT_TOKENS, .iteration_tokens = size});
    for (int repeat = 0; repeat < 2; repeat++) {
      l = (listener){0};
      assert_int_equal(
          megalith_engine_score(engine, tokens, TEXT_TOKENS, logprobs, listen, &l, NULL),
          MEGALITH_OK);
      assert_int_equal(l.calls, TEXT_TOKENS);
      assert_true(isnan(logprobs[0]));
      assert_true(fabs(logprobs[1] + l.log_sum) < 1e-6);
      for (size_t i = 1; i < TEXT_TOKENS; i++) {
        assert_true(fabs(logprobs[i] - prompt.logprobs[i]) < 1e-6);
      }
    }
    megalith_engine_destroy(engine);
  }
  megalith_request_release(request);
  megalith_engine_destroy(other);
}

static void scores_are_refused_elsewhere(void **state) {
  const int32_t tokens[] = {5, 6, 2000};
  double logprobs[3];
  megalith_error error = {0};
  listener l = {.fails_at = 2};
  megalith_engine *engine =
      create((megalith_engine_options){.scoring = true, .context_tokens = 16});
  (void)state;
  assert_int_equal(megalith_engine_score(engine, tokens, 2, logprobs, listen, &l, &error),
                   MEGALITH_ERROR_IO);
  assert_string_equal(error.text, "no more");
  assert_int_equal(megalith_engine_score(engine, tokens, 3, logprobs, NULL, NULL, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "token 2: expected an id of 0 to 1023, found 2000"));
  assert_int_equal(megalith_engine_score(engine, tokens, 17, logprobs, NULL, NULL, &error),
                   MEGALITH_ERROR_LIMIT);
  assert_int_equal(megalith_engine_score(engine, tokens, 2, logprobs, NULL, NULL, &error),
                   MEGALITH_OK);
  const megalith_request_options ask = {.size = sizeof ask, .text = "x"};
  assert_int_equal(megalith_engine_submit(engine, &ask, NULL, &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "without scoring"));
  megalith_engine_destroy(engine);
  engine = create((megalith_engine_options){0});
  assert_int_equal(megalith_engine_score(engine, tokens, 2, logprobs, NULL, NULL, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "created with scoring"));
  megalith_engine_destroy(engine);
}

// --- sampling ------------------------------------------------------------------------------------

static void check_sampling(megalith_sampling s, megalith_status status, const char *text) {
  megalith_error error = {0};
  s.size = sizeof s;
  assert_int_equal(megalith_sampling_check(&s, &error), status);
  if (strstr(error.text, text) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", text, error.text);
  }
}

static void sampling_is_checked_alone(void **state) {
  const megalith_logit_bias bias = {.token = 5, .value = 101};
  (void)state;
  check_sampling((megalith_sampling){0}, MEGALITH_OK, "");
  check_sampling(*megalith_model_describe(model)->sampling, MEGALITH_OK, "");
  check_sampling((megalith_sampling){.temperature = (double)NAN}, MEGALITH_ERROR_ARGUMENT,
                 "temperature");
  check_sampling((megalith_sampling){.top_p = 1.5}, MEGALITH_ERROR_ARGUMENT, "top-p");
  check_sampling((megalith_sampling){.biases = &bias, .bias_count = 1}, MEGALITH_ERROR_ARGUMENT,
                 "logit bias: expected -100 to 100, found 101");
  check_sampling((megalith_sampling){.bias_count = 1}, MEGALITH_ERROR_ARGUMENT, "found NULL");
  check_sampling((megalith_sampling){.bias_count = 1025}, MEGALITH_ERROR_LIMIT, "at most 1024");
}

static void a_model_tells_what_it_would_do(void **state) {
  const megalith_model_info *info = megalith_model_describe(model);
  (void)state;
  assert_true(info->temperature > 0);
  assert_true(info->sampling->temperature == 0 || info->sampling->temperature == info->temperature);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_mode_gives_the_same),
      cmocka_unit_test(ways_that_contradict_are_refused),
      cmocka_unit_test(memory_is_for_the_requests_that_come),
      cmocka_unit_test(progress_ends_with_all_weights),
      cmocka_unit_test(iterations_add_up_to_the_statistics),
      cmocka_unit_test(the_ceiling_is_measured_without_work),
      cmocka_unit_test(a_trace_has_the_tasks),
      cmocka_unit_test(scores_are_those_of_prompts),
      cmocka_unit_test(scores_are_refused_elsewhere),
      cmocka_unit_test(sampling_is_checked_alone),
      cmocka_unit_test(a_model_tells_what_it_would_do),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
