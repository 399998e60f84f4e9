// The public API on the demo model: what one request gives, it gives in any company, from any
// thread, stepped or in the background, paused or streamed; hostile arguments are refused; nothing
// leaks, also when memory runs out.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <megalith.h>

#include "base/alloc.h"
#include "base/json.h"
#include "model/config.h"
#include "support/reference_model.h"
#include "support/temp_folder.h"

#ifdef MGL_TEST_SANITIZED
enum { CANCELS = 500, CANCEL_ROUND = 100, THREADS = 4, REQUESTS_EACH = 6 };
#else
enum { CANCELS = 20000, CANCEL_ROUND = 2000, THREADS = 8, REQUESTS_EACH = 16 };
#endif

static megalith_model *model;

static int open_model(void **state) {
  megalith_error error = {0};
  (void)state;
  (void)setenv("MEGALITH_DEVICE", "cpu", 1);
  if (megalith_model_open(MGL_DEMO_FOLDER, NULL, &model, &error) != MEGALITH_OK) {
    (void)fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  return 0;
}

static int close_model(void **state) {
  (void)state;
  megalith_model_close(model);
  return 0;
}

static megalith_engine *create(megalith_engine_options options) {
  megalith_error error = {0};
  megalith_engine *engine = NULL;
  options.size = sizeof options;
  options.threads = options.threads == 0 ? 2 : options.threads;
  options.kv_tokens = options.kv_tokens == 0 ? 8192 : options.kv_tokens;
  if (megalith_engine_create(model, &options, &engine, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
  return engine;
}

static megalith_request *submit(megalith_engine *engine, megalith_request_options options) {
  megalith_error error = {0};
  megalith_request *request = NULL;
  options.size = sizeof options;
  if (megalith_engine_submit(engine, &options, &request, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
  return request;
}

static void run(megalith_engine *engine) {
  megalith_error error = {0};
  if (megalith_engine_run(engine, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
}

// --- questions whose answers are known -----------------------------------------------------------

enum { MAX_QUESTION = 64 };

static void ask(uint32_t i, char question[MAX_QUESTION], char answer[MAX_QUESTION]) {
  uint32_t a = 11 + i * 7 % 80;
  uint32_t b = 12 + i * 13 % 70;
  (void)snprintf(question, MAX_QUESTION, "What is %u + %u?", a, b);
  (void)snprintf(answer, MAX_QUESTION, "%u + %u = %u.", a, b, a + b);
}

static megalith_request *submit_question(megalith_engine *engine, uint32_t i,
                                         megalith_request_options options) {
  char question[MAX_QUESTION];
  char answer[MAX_QUESTION];
  ask(i, question, answer);
  const megalith_message message = {.role = "user", .content = question};
  options.messages = &message;
  options.message_count = 1;
  return submit(engine, options);
}

static void check_answer(megalith_request *request, uint32_t i) {
  char question[MAX_QUESTION];
  char answer[MAX_QUESTION];
  ask(i, question, answer);
  const megalith_result *result = megalith_request_result(request);
  assert_non_null(result);
  assert_int_equal(result->finish, MEGALITH_FINISH_STOP);
  assert_string_equal(result->text, answer);
  assert_int_equal(result->text_bytes, strlen(answer));
  assert_string_equal(result->error, "");
}

// -------------------------------------------------------------------------------------------------

static void a_model_describes_itself_and_its_text(void **state) {
  const megalith_model_info *info = megalith_model_describe(model);
  megalith_error error = {0};
  int32_t ids[64];
  char text[64];
  size_t count = 0;
  size_t bytes = 0;
  (void)state;
  assert_string_equal(info->family, "qwen3");
  assert_int_equal(info->vocab_size, 1024);
  assert_int_equal(info->context_tokens, 512);
  assert_true(info->has_tokenizer && info->has_chat_template);
  assert_string_equal(info->unapplied, "");
  assert_int_equal(megalith_model_tokenize(model, "seven times", 11, ids, 64, &count, &error),
                   MEGALITH_OK);
  assert_true(count > 0 && count < 12);
  assert_int_equal(megalith_model_detokenize(model, ids, count, text, 64, &bytes, &error),
                   MEGALITH_OK);
  assert_string_equal(text, "seven times");
  assert_int_equal(bytes, 11);
  assert_int_equal(megalith_model_detokenize(model, ids, count, text, 6, &bytes, &error),
                   MEGALITH_OK);
  assert_string_equal(text, "seven");  // cut, with the full size
  assert_int_equal(bytes, 11);
  size_t all = count;
  assert_int_equal(megalith_model_tokenize(model, "seven times", 11, NULL, 0, &count, &error),
                   MEGALITH_OK);
  assert_int_equal(count, all);
  assert_true(strchr(megalith_version(), '.') != NULL);
}

static void one_request(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  (void)state;
  megalith_request *request = submit_question(engine, 3, (megalith_request_options){0});
  assert_null(megalith_request_result(request));
  assert_false(megalith_request_wait(request, 0));
  assert_null(megalith_request_next(request, 1));
  assert_true(megalith_engine_has_work(engine));
  run(engine);
  assert_false(megalith_engine_has_work(engine));
  assert_true(megalith_request_wait(request, -1));
  check_answer(request, 3);
  assert_true(megalith_request_result(request)->prompt_token_count > 5);
  // The outputs, one by one, are the result.
  const megalith_result *result = megalith_request_result(request);
  char text[256] = "";
  size_t count = 0;
  const megalith_output *output = NULL;
  megalith_finish finish = MEGALITH_FINISH_NONE;
  while ((output = megalith_request_next(request, -1)) != NULL) {
    assert_int_equal(finish, MEGALITH_FINISH_NONE);
    assert_int_equal(output->token, result->tokens[count++]);
    assert_int_equal(output->text[output->text_bytes], 0);
    (void)strncat(text, output->text, sizeof text - strlen(text) - 1);
    finish = output->finish;
  }
  assert_int_equal(count, result->token_count);
  assert_int_equal(finish, MEGALITH_FINISH_STOP);
  assert_string_equal(text, result->text);
  megalith_request_release(request);
  megalith_engine_destroy(engine);
}

static void prompts_of_each_kind_agree(void **state) {
  static const char chat[] =
      "<|im_start|>user\nWhat is 18 + 25?<|im_end|>\n<|im_start|>assistant\n";
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_error error = {0};
  int32_t ids[64];
  size_t count = 0;
  (void)state;
  assert_int_equal(megalith_model_tokenize(model, chat, sizeof chat - 1, ids, 64, &count, &error),
                   MEGALITH_OK);
  megalith_request *requests[] = {
      submit_question(engine, 1, (megalith_request_options){0}),
      submit(engine, (megalith_request_options){.text = chat}),
      submit(engine, (megalith_request_options){.tokens = ids, .token_count = count}),
      submit(engine, (megalith_request_options){.text = chat, .plain_special = true}),
  };
  run(engine);
  const megalith_result *first = megalith_request_result(requests[0]);
  check_answer(requests[0], 1);
  for (size_t i = 1; i < 3; i++) {
    const megalith_result *result = megalith_request_result(requests[i]);
    assert_string_equal(result->text, first->text);
    assert_int_equal(result->prompt_token_count, first->prompt_token_count);
  }
  // Untrusted text cannot write special tokens.
  assert_true(megalith_request_result(requests[3])->prompt_token_count >
              first->prompt_token_count + 10);
  for (size_t i = 0; i < 4; i++) {
    megalith_request_release(requests[i]);
  }
  megalith_engine_destroy(engine);
}

// --- many threads --------------------------------------------------------------------------------

typedef struct client {
  megalith_engine *engine;
  uint32_t index;
  uint32_t cancelled;
  pthread_t thread;
} client;

static void nothing_more_than_the_answer(megalith_request *request, uint32_t i) {
  char question[MAX_QUESTION];
  char answer[MAX_QUESTION];
  ask(i, question, answer);
  const megalith_result *result = megalith_request_result(request);
  assert_memory_equal(result->text, answer, result->text_bytes);
}

// Submits, streams, cancels, pauses and resumes.
static void *be_client(void *argument) {
  client *c = argument;
  for (uint32_t k = 0; k < REQUESTS_EACH; k++) {
    uint32_t i = c->index * REQUESTS_EACH + k;
    megalith_request *request =
        submit_question(c->engine, i, (megalith_request_options){.max_new_tokens = 64});
    if (k % 4 == 1) {
      megalith_request_pause(request);
      megalith_request_resume(request);
    }
    if (k % 4 == 2) {
      (void)megalith_request_next(request, -1);
      megalith_request_pause(request);
      (void)megalith_request_next(request, 1);
      megalith_request_resume(request);
    }
    if (k % 4 == 3) {
      (void)megalith_request_next(request, (int)(k % 3));
      megalith_request_cancel(request);
    }
    assert_true(megalith_request_wait(request, -1));
    if (megalith_request_result(request)->finish == MEGALITH_FINISH_CANCELLED) {
      assert_int_equal(k % 4, 3);
      nothing_more_than_the_answer(request, i);
      c->cancelled++;
    } else {
      check_answer(request, i);
    }
    megalith_request_release(request);
  }
  return NULL;
}

static void be_clients(megalith_engine *engine, client clients[THREADS]) {
  for (uint32_t i = 0; i < THREADS; i++) {
    clients[i] = (client){.engine = engine, .index = i};
    assert_int_equal(pthread_create(&clients[i].thread, NULL, be_client, &clients[i]), 0);
  }
}

static void many_threads_use_an_engine_in_the_background(void **state) {
  // Places and pages for a few only, so that requests wait for each other.
  megalith_engine *engine =
      create((megalith_engine_options){.background = true, .sequences = 6, .kv_tokens = 1024});
  megalith_error error = {0};
  client clients[THREADS];
  (void)state;
  be_clients(engine, clients);
  for (uint32_t i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(clients[i].thread, NULL), 0);
  }
  assert_int_equal(megalith_engine_run(engine, &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "computes in the background"));
  assert_int_equal(megalith_engine_step(engine, &error), MEGALITH_ERROR_ARGUMENT);
  megalith_statistics statistics = {.size = sizeof statistics};
  assert_int_equal(megalith_engine_get_statistics(engine, &statistics, &error), MEGALITH_OK);
  assert_true(statistics.iterations > 20 && statistics.prompt_tokens > 0);
  assert_true(statistics.generated_tokens > 0 && statistics.total_ns > statistics.planning_ns);
  assert_int_equal(statistics.pages, 64);
  assert_true(statistics.pages_used_most > 0 && statistics.pages_used_most <= 64);
  assert_int_equal(statistics.paused, 0);
  megalith_engine_destroy(engine);
}

static void other_threads_submit_while_one_runs(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  client clients[THREADS];
  (void)state;
  be_clients(engine, clients);
  for (uint32_t i = 0; i < THREADS; i++) {
    // The others' requests end only because this thread computes.
    while (pthread_tryjoin_np(clients[i].thread, NULL) != 0) {
      run(engine);
    }
  }
  megalith_engine_destroy(engine);
}

// --- callbacks -----------------------------------------------------------------------------------

typedef struct chain {
  megalith_engine *engine;
  uint32_t next;  // question
  uint32_t finished;
  char text[512];
} chain;

// Asks the next question when one is answered.
static void ask_next(void *context, megalith_request *request, const megalith_output *output) {
  chain *c = context;
  (void)strncat(c->text, output->text, sizeof c->text - strlen(c->text) - 1);
  if (output->finish == MEGALITH_FINISH_NONE) {
    return;
  }
  assert_int_equal(output->finish, MEGALITH_FINISH_STOP);
  check_answer(request, c->next - 1);
  c->finished++;
  if (c->next < 5) {
    char question[MAX_QUESTION];
    char answer[MAX_QUESTION];
    megalith_error error = {0};
    ask(c->next++, question, answer);
    const megalith_message message = {.role = "user", .content = question};
    megalith_request_options options = {.size = sizeof options,
                                        .messages = &message,
                                        .message_count = 1,
                                        .on_output = ask_next,
                                        .context = c};
    if (megalith_engine_submit(c->engine, &options, NULL, &error) != MEGALITH_OK) {
      fail_msg("%s", error.text);
    }
  }
}

static void a_callback_may_submit(void **state) {
  for (int stepped = 0; stepped < 2; stepped++) {
    megalith_engine *engine = create((megalith_engine_options){0});
    chain c = {.engine = engine, .next = 1};
    (void)state;
    megalith_request *first = submit_question(
        engine, 0, (megalith_request_options){.on_output = ask_next, .context = &c});
    megalith_request_pause(first);
    megalith_request_resume(first);
    if (stepped == 0) {
      run(engine);
    }
    while (megalith_engine_has_work(engine)) {
      assert_int_equal(megalith_engine_step(engine, NULL), MEGALITH_OK);
    }
    assert_int_equal(c.finished, 5);
    char expected[512] = "";
    for (uint32_t i = 0; i < 5; i++) {
      char question[MAX_QUESTION];
      char answer[MAX_QUESTION];
      ask(i, question, answer);
      (void)strncat(expected, answer, sizeof expected - strlen(expected) - 1);
    }
    assert_string_equal(c.text, expected);
    megalith_request_release(first);
    megalith_engine_destroy(engine);
  }
}

static void cancel_after_three(void *context, megalith_request *request,
                               const megalith_output *output) {
  uint32_t *count = context;
  if (output->token >= 0 && ++*count == 3) {
    megalith_request_cancel(request);
  }
}

static void a_callback_may_cancel_and_stop(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  uint32_t count = 0;
  (void)state;
  megalith_request *one = submit_question(
      engine, 0, (megalith_request_options){.on_output = cancel_after_three, .context = &count});
  megalith_request *other = submit_question(engine, 4, (megalith_request_options){0});
  run(engine);
  const megalith_result *result = megalith_request_result(one);
  assert_int_equal(result->finish, MEGALITH_FINISH_CANCELLED);
  assert_int_equal(result->token_count, 3);
  assert_int_equal(count, 3);
  nothing_more_than_the_answer(one, 0);
  check_answer(other, 4);
  megalith_request_release(one);
  megalith_request_release(other);
  megalith_engine_destroy(engine);
}

static void stop_engine(void *context, megalith_request *request, const megalith_output *output) {
  (void)request;
  (void)output;
  megalith_engine_stop(context);
}

static void a_run_that_is_stopped_loses_nothing(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  (void)state;
  megalith_request *request = submit_question(
      engine, 2, (megalith_request_options){.on_output = stop_engine, .context = engine});
  uint32_t runs = 0;
  for (; megalith_engine_has_work(engine); runs++) {
    run(engine);
  }
  check_answer(request, 2);
  assert_int_equal(runs, megalith_request_result(request)->token_count);
  // The last callback asked once more; and one that was asked for before a run ends that one.
  megalith_engine_stop(engine);
  megalith_request *later = submit_question(engine, 1, (megalith_request_options){0});
  run(engine);
  assert_false(megalith_request_wait(later, 0));
  run(engine);
  check_answer(later, 1);
  megalith_request_release(request);
  megalith_request_release(later);
  megalith_engine_destroy(engine);
}

// --- how requests end ----------------------------------------------------------------------------

static void requests_end_where_they_are_told_to(void **state) {
  static const char *const stops[] = {" = ", "no such text"};
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_error error = {0};
  int32_t ids[8];
  size_t count = 0;
  (void)state;
  assert_int_equal(megalith_model_tokenize(model, "=", 1, ids, 8, &count, &error), MEGALITH_OK);
  megalith_request *by_text = submit_question(
      engine, 0, (megalith_request_options){.stop_texts = stops, .stop_text_count = 2});
  megalith_request *by_length =
      submit_question(engine, 0, (megalith_request_options){.max_new_tokens = 4});
  megalith_request *on = submit_question(
      engine, 0, (megalith_request_options){.ignore_model_stops = true, .max_new_tokens = 40});
  megalith_request *whole = submit_question(engine, 0, (megalith_request_options){0});
  run(engine);
  const megalith_result *full = megalith_request_result(whole);
  check_answer(whole, 0);
  assert_int_equal(megalith_request_result(by_text)->finish, MEGALITH_FINISH_STOP);
  assert_string_equal(megalith_request_result(by_text)->text, "11 + 12");
  assert_int_equal(megalith_request_result(by_length)->finish, MEGALITH_FINISH_LENGTH);
  assert_int_equal(megalith_request_result(by_length)->token_count, 4);
  assert_int_equal(megalith_request_result(on)->finish, MEGALITH_FINISH_LENGTH);
  assert_int_equal(megalith_request_result(on)->token_count, 40);
  assert_memory_equal(megalith_request_result(on)->tokens, full->tokens,
                      full->token_count * sizeof *full->tokens);
  // A stop token of one's own: the third of the answer's.
  megalith_request *by_token = submit_question(
      engine, 0,
      (megalith_request_options){.stop_tokens = &full->tokens[2], .stop_token_count = 1});
  run(engine);
  assert_int_equal(megalith_request_result(by_token)->finish, MEGALITH_FINISH_STOP);
  assert_int_equal(megalith_request_result(by_token)->token_count, 3);
  megalith_request *all[] = {by_text, by_length, on, whole, by_token};
  for (size_t i = 0; i < 5; i++) {
    megalith_request_release(all[i]);
  }
  megalith_engine_destroy(engine);
}

static void sampling_is_of_the_request_alone(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  const megalith_sampling warm = {
      .size = sizeof warm, .temperature = 1.5, .top_p = 0.99, .seed = 9};
  (void)state;
  megalith_request *requests[12];
  for (uint32_t i = 0; i < 12; i++) {
    requests[i] = submit(engine, (megalith_request_options){.text = "Once",
                                                            .sampling = i % 2 == 0 ? &warm : NULL,
                                                            .max_new_tokens = 20 + i});
  }
  run(engine);
  for (uint32_t i = 2; i < 12; i++) {
    const megalith_result *result = megalith_request_result(requests[i]);
    const megalith_result *like = megalith_request_result(requests[i % 2]);
    size_t common =
        like->token_count < result->token_count ? like->token_count : result->token_count;
    assert_memory_equal(result->tokens, like->tokens, common * sizeof *like->tokens);
  }
  assert_memory_not_equal(megalith_request_result(requests[0])->tokens,
                          megalith_request_result(requests[1])->tokens, 20 * sizeof(int32_t));
  for (uint32_t i = 0; i < 12; i++) {
    megalith_request_release(requests[i]);
  }
  megalith_engine_destroy(engine);
}

typedef struct told {
  double logprobs[8];
  double best[8];
  uint32_t count;
} told;

static void note_logprobs(void *context, megalith_request *request, const megalith_output *output) {
  told *t = context;
  (void)request;
  assert_true(output->token >= 0 && t->count < 8);
  assert_int_equal(output->top_count, 3);
  t->logprobs[t->count] = output->logprob;
  t->best[t->count++] = output->top[0].logprob;
}

// Log probabilities come with outputs and results; biases, penalties and least tokens do what they
// say.
static void what_sampling_asks_for_is_done(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  const megalith_logit_bias bias = {.token = 300, .value = 100};
  const megalith_sampling biased = {.size = sizeof biased, .biases = &bias, .bias_count = 1};
  const megalith_sampling never_twice = {
      .size = sizeof never_twice, .repetition_penalty = 100, .presence_penalty = 2};
  const megalith_sampling wordy = {.size = sizeof wordy, .logprobs = true, .top_logprobs = 3};
  megalith_sampling patient = {.size = sizeof patient};
  told t = {0};
  (void)state;
  megalith_request *requests[] = {
      submit(engine,
             (megalith_request_options){.text = "Once", .sampling = &biased, .max_new_tokens = 4}),
      submit(engine,
             (megalith_request_options){
                 .text = "Once", .sampling = &never_twice, .max_new_tokens = 30}),
      submit(engine, (megalith_request_options){.text = "Once",
                                                .sampling = &wordy,
                                                .max_new_tokens = 8,
                                                .ignore_model_stops = true,
                                                .on_output = note_logprobs,
                                                .context = &t}),
  };
  run(engine);
  const megalith_result *result = megalith_request_result(requests[0]);
  assert_int_equal(result->token_count, 4);
  assert_null(result->logprobs);
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(result->tokens[i], 300);
  }
  result = megalith_request_result(requests[1]);
  for (size_t i = 0; i < result->token_count; i++) {
    for (size_t j = 0; j < i; j++) {
      assert_int_not_equal(result->tokens[i], result->tokens[j]);
    }
  }
  result = megalith_request_result(requests[2]);
  assert_int_equal(t.count, 8);
  assert_int_equal(result->top_count, 3);
  for (size_t i = 0; i < 8; i++) {
    const megalith_output *output = megalith_request_next(requests[2], 0);
    assert_true(output->logprob == t.logprobs[i] && result->logprobs[i] == t.logprobs[i]);
    assert_true(t.logprobs[i] == t.best[i] && t.best[i] <= 0);  // greedy
    assert_int_equal(output->top[0].token, output->token);
    assert_int_equal(result->top[i * 3].token, result->tokens[i]);
    assert_true(result->top[i * 3 + 2].logprob <= result->top[i * 3 + 1].logprob);
  }
  // A stop token waits.
  const int32_t stop = result->tokens[0];
  megalith_request_options ask = {.text = "Once",
                                  .sampling = &patient,
                                  .max_new_tokens = 8,
                                  .ignore_model_stops = true,
                                  .stop_tokens = &stop,
                                  .stop_token_count = 1};
  for (uint32_t least = 0; least < 6; least += 5) {
    patient.min_new_tokens = least;
    megalith_request *request = submit(engine, ask);
    run(engine);
    assert_true(megalith_request_result(request)->token_count > least);
    assert_true(least > 0 || megalith_request_result(request)->token_count == 1);
    megalith_request_release(request);
  }
  for (size_t i = 0; i < 3; i++) {
    megalith_request_release(requests[i]);
  }
  megalith_engine_destroy(engine);
}

static void a_paused_request_gives_its_pages_away(void **state) {
  // Pages for one long request at a time.
  megalith_engine *engine = create((megalith_engine_options){.kv_tokens = 96});
  megalith_statistics statistics = {.size = sizeof statistics};
  (void)state;
  const megalith_request_options long_one = {
      .text = "Once upon a time", .max_new_tokens = 70, .ignore_model_stops = true};
  megalith_request *alone = submit(engine, long_one);
  run(engine);
  megalith_request *first = submit(engine, long_one);
  for (int i = 0; i < 10; i++) {
    assert_int_equal(megalith_engine_step(engine, NULL), MEGALITH_OK);
  }
  megalith_request_pause(first);
  megalith_request *second = submit(engine, long_one);
  run(engine);
  assert_true(megalith_request_wait(second, 0));
  assert_false(megalith_request_wait(first, 0));
  assert_int_equal(megalith_engine_get_statistics(engine, &statistics, NULL), MEGALITH_OK);
  assert_int_equal(statistics.paused, 1);
  assert_int_equal(statistics.running, 0);
  megalith_request_resume(first);
  run(engine);
  const megalith_result *expected = megalith_request_result(alone);
  assert_int_equal(expected->token_count, 70);
  assert_memory_equal(megalith_request_result(first)->tokens, expected->tokens, 70 * 4);
  assert_memory_equal(megalith_request_result(second)->tokens, expected->tokens, 70 * 4);
  megalith_request_release(alone);
  megalith_request_release(first);
  megalith_request_release(second);
  megalith_engine_destroy(engine);
}

// Prompt tokens that were found in KV memory, of two prompts with the same 64 tokens in front.
static uint64_t hits(bool no_cache, const char *salt, const char *other_salt) {
  megalith_engine *engine =
      create((megalith_engine_options){.no_prefix_cache = no_cache, .page_tokens = 32});
  megalith_statistics statistics = {.size = sizeof statistics};
  int32_t prompt[80];
  megalith_request *requests[2];
  for (int32_t i = 0; i < 80; i++) {
    prompt[i] = i * 7 % 1000;
  }
  for (size_t i = 0; i < 2; i++) {
    const char *of_this = i == 0 ? salt : other_salt;
    requests[i] = submit(engine, (megalith_request_options){.tokens = prompt,
                                                            .token_count = 80,
                                                            .max_new_tokens = 6,
                                                            .cache_salt = of_this,
                                                            .cache_salt_bytes = strlen(of_this)});
    run(engine);
  }
  assert_memory_equal(megalith_request_result(requests[0])->tokens,
                      megalith_request_result(requests[1])->tokens, 6 * sizeof(int32_t));
  assert_int_equal(megalith_engine_get_statistics(engine, &statistics, NULL), MEGALITH_OK);
  assert_int_equal(statistics.prefix_lookup_tokens, no_cache ? 0 : 160);
  assert_int_equal(megalith_engine_describe(engine)->page_tokens, 32);
  megalith_request_release(requests[0]);
  megalith_request_release(requests[1]);
  megalith_engine_destroy(engine);
  return statistics.prefix_hit_tokens;
}

static void prompts_that_begin_alike_share_memory(void **state) {
  (void)state;
  assert_int_equal(hits(false, "", ""), 64);
  assert_int_equal(hits(false, "one", "one"), 64);
  assert_int_equal(hits(false, "one", "another"), 0);
  assert_int_equal(hits(true, "", ""), 0);
}

static void requests_outlive_their_engine(void **state) {
  for (int background = 0; background < 2; background++) {
    megalith_engine *engine = create((megalith_engine_options){.background = background == 1});
    const megalith_request_options endless = {
        .text = "Once", .max_new_tokens = 500, .ignore_model_stops = true};
    (void)state;
    megalith_request *requests[3] = {submit(engine, endless), submit(engine, endless),
                                     submit(engine, endless)};
    megalith_request_pause(requests[1]);
    if (background == 0) {
      assert_int_equal(megalith_engine_step(engine, NULL), MEGALITH_OK);
    } else {
      assert_non_null(megalith_request_next(requests[0], -1));
    }
    megalith_engine_destroy(engine);
    for (size_t i = 0; i < 3; i++) {
      assert_true(megalith_request_wait(requests[i], -1));
      assert_int_equal(megalith_request_result(requests[i])->finish, MEGALITH_FINISH_CANCELLED);
      const megalith_output *output = NULL;
      int32_t last = 0;
      while ((output = megalith_request_next(requests[i], -1)) != NULL) {
        last = output->token;
      }
      assert_int_equal(last, -1);
      megalith_request_cancel(requests[i]);  // of no effect
      megalith_request_pause(requests[i]);
      megalith_request_release(requests[i]);
    }
  }
}

// Waits until no more than so many allocations live.
static void wait_for_live(int64_t most) {
  const struct timespec pause = {.tv_nsec = 1000000};
  for (uint32_t i = 0; i < 60000 && mgl_alloc_live() > most; i++) {
    (void)nanosleep(&pause, NULL);
  }
  assert_true(mgl_alloc_live() <= most);
}

// How many wait in the inbox at any moment is a matter of how much of the processors the engine's
// thread gets, so what they leave is looked at when they have all been let go.
static void requests_may_be_released_at_any_time(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.background = true});
  uint32_t rounds = (getenv("MGL_TEST_LONG") != NULL ? 50 : 1) * CANCELS / CANCEL_ROUND;
  const int64_t live = mgl_alloc_live();
  (void)state;
  for (uint32_t i = 0; i < rounds; i++) {
    for (uint32_t j = 0; j < CANCEL_ROUND; j++) {
      megalith_request *request =
          submit(engine, (megalith_request_options){.text = "Once upon", .max_new_tokens = 400});
      if (j % 16 == 0) {
        (void)megalith_request_next(request, 5);
      }
      megalith_request_release(request);
    }
    megalith_request *last = submit_question(engine, 5, (megalith_request_options){0});
    assert_true(megalith_request_wait(last, -1));
    check_answer(last, 5);
    megalith_request_release(last);
    wait_for_live(live + 1);  // the list of requests that the engine has
  }
  megalith_engine_destroy(engine);
}

// --- what is refused -----------------------------------------------------------------------------

static void refuse(megalith_engine *engine, megalith_request_options options,
                   megalith_status status, const char *text) {
  megalith_error error = {0};
  megalith_request *request = NULL;
  options.size = options.size == 0 ? sizeof options : options.size;
  assert_int_equal(megalith_engine_submit(engine, &options, &request, &error), status);
  assert_null(request);
  assert_int_equal(error.status, status);
  if (strstr(error.text, text) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", text, error.text);
  }
}

static void hostile_requests_are_refused(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.kv_tokens = 256});
  const int32_t bad[] = {5, 1024};
  const int32_t good[] = {5, 6};
  const char *const empty_stop[] = {""};
  const megalith_message half = {.role = "user"};
  const megalith_sampling cold = {.size = sizeof cold, .temperature = -1};
  const megalith_sampling unsized = {.temperature = 1};
  const megalith_sampling no_list = {.size = sizeof no_list, .bias_count = 2};
  const megalith_sampling many = {.size = sizeof many, .logprobs = true, .top_logprobs = 21};
  (void)state;
  megalith_request_options two = {.text = "x", .tokens = good, .token_count = 2};
  refuse(engine, two, MEGALITH_ERROR_ARGUMENT,
         "expected one of text, tokens and messages, found 2");
  refuse(engine, (megalith_request_options){0}, MEGALITH_ERROR_ARGUMENT, "found 0");
  refuse(engine, (megalith_request_options){.text = ""}, MEGALITH_ERROR_ARGUMENT,
         "at least 1 prompt token");
  refuse(engine, (megalith_request_options){.tokens = bad, .token_count = 2},
         MEGALITH_ERROR_ARGUMENT, "token 1: expected an id of 0 to 1023, found 1024");
  refuse(engine, (megalith_request_options){.text = "x", .max_new_tokens = 1000},
         MEGALITH_ERROR_LIMIT, "do not fit");
  refuse(engine, (megalith_request_options){.text = "x", .max_new_tokens = 300},
         MEGALITH_ERROR_LIMIT, "KV pages");
  refuse(engine,
         (megalith_request_options){.text = "x", .stop_tokens = good, .stop_token_count = 15},
         MEGALITH_ERROR_LIMIT, "stop tokens: expected at most 14 besides the model's 2");
  refuse(engine,
         (megalith_request_options){.text = "x", .stop_texts = empty_stop, .stop_text_count = 1},
         MEGALITH_ERROR_LIMIT, "stop text 0: expected 1 to 256 bytes");
  refuse(engine,
         (megalith_request_options){.text = "x", .cache_salt = good, .cache_salt_bytes = 257},
         MEGALITH_ERROR_LIMIT, "cache_salt: expected at most 256 bytes, found 257");
  refuse(engine, (megalith_request_options){.messages = &half, .message_count = 1},
         MEGALITH_ERROR_ARGUMENT, "message 0: expected a role and a content");
  refuse(engine, (megalith_request_options){.messages = &half, .message_count = 70000},
         MEGALITH_ERROR_LIMIT, "messages: expected at most 65536, found 70000");
  refuse(engine, (megalith_request_options){.text = "x", .sampling = &cold},
         MEGALITH_ERROR_ARGUMENT, "temperature");
  refuse(engine, (megalith_request_options){.text = "x", .sampling = &no_list},
         MEGALITH_ERROR_ARGUMENT, "logit biases: expected 2, found NULL");
  refuse(engine, (megalith_request_options){.text = "x", .sampling = &many}, MEGALITH_ERROR_LIMIT,
         "log probabilities: expected at most 20, found 21");
  refuse(engine, (megalith_request_options){.text = "x", .sampling = &unsized},
         MEGALITH_ERROR_ARGUMENT, "expected size to be sizeof(megalith_sampling), found 0");
  refuse(engine, (megalith_request_options){.size = 4, .text = "x"}, MEGALITH_ERROR_ARGUMENT,
         "sizeof(megalith_request_options), found 4");
  assert_false(megalith_engine_has_work(engine));
  megalith_engine_destroy(engine);
}

static void newer_and_older_structs_are_understood(void **state) {
  struct {
    megalith_request_options known;
    uint64_t newer[2];
  } options = {.known = {.size = sizeof options, .text = "Once", .max_new_tokens = 2}};
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_error error = {0};
  megalith_request *request = NULL;
  (void)state;
  assert_int_equal(megalith_engine_submit(engine, &options.known, &request, &error), MEGALITH_OK);
  megalith_request_release(request);
  options.newer[1] = 1;
  assert_int_equal(megalith_engine_submit(engine, &options.known, &request, &error),
                   MEGALITH_ERROR_UNSUPPORTED);
  options.known.size = offsetof(megalith_request_options, plain_special);  // knows only prompts
  assert_int_equal(megalith_engine_submit(engine, &options.known, &request, &error), MEGALITH_OK);
  run(engine);
  assert_true(megalith_request_result(request)->token_count > 2);
  megalith_request_release(request);
  megalith_statistics statistics = {.size = offsetof(megalith_statistics, prompt_tokens),
                                    .prompt_tokens = 77};
  assert_int_equal(megalith_engine_get_statistics(engine, &statistics, &error), MEGALITH_OK);
  assert_true(statistics.iterations > 0);
  assert_int_equal(statistics.prompt_tokens, 77);
  megalith_engine_destroy(engine);
}

static void refuse_engine(megalith_engine_options options, megalith_status status,
                          const char *text) {
  megalith_error error = {0};
  megalith_engine *engine = NULL;
  options.size = sizeof options;
  assert_int_equal(megalith_engine_create(model, &options, &engine, &error), status);
  assert_null(engine);
  if (strstr(error.text, text) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", text, error.text);
  }
}

static void hostile_engines_and_models_are_refused(void **state) {
  megalith_error error = {0};
  megalith_model *none = NULL;
  (void)state;
  for (int background = 0; background < 2; background++) {
    megalith_engine_options o = {.background = background == 1};
    o.device = "gpu";
    refuse_engine(o, MEGALITH_ERROR_ARGUMENT, "device: expected auto, cpu, cuda or cuda:N");
    o.device = NULL;
    o.sequences = 1025;
    refuse_engine(o, MEGALITH_ERROR_LIMIT, "sequences: expected 1 to 1024 at once, found 1025");
    o.sequences = 0;
    o.threads = 5000;
    refuse_engine(o, MEGALITH_ERROR_LIMIT, "threads: expected 1 to 1024, found 5000");
    o.threads = 1;
    o.context_tokens = 513;
    refuse_engine(o, MEGALITH_ERROR_LIMIT, "the model's context is 512 tokens");
    o.context_tokens = 512;
    o.kv_tokens = 100;
    refuse_engine(o, MEGALITH_ERROR_LIMIT, "expected at most the 112 tokens of the KV memory");
    o.memory_share = 0.5;
    refuse_engine(o, MEGALITH_ERROR_ARGUMENT, "one of memory_share and kv_tokens");
    o.kv_tokens = 0;
    o.memory_share = 1.5;
    refuse_engine(o, MEGALITH_ERROR_ARGUMENT, "memory_share: expected 0 to 1, found 1.5");
    o.memory_share = 1e-9;
    refuse_engine(o, MEGALITH_ERROR_MEMORY, "KV");
    o.memory_share = 0;
    o.page_tokens = 7;
    refuse_engine(o, MEGALITH_ERROR_LIMIT, "expected 16, 32, 64, 128 or 256, found 7");
  }
  assert_int_equal(megalith_model_open("/no/such/folder", NULL, &none, &error), MEGALITH_ERROR_IO);
  assert_null(none);
  assert_int_equal(megalith_model_open("", NULL, &none, &error), MEGALITH_ERROR_ARGUMENT);
  assert_int_equal(megalith_model_open(NULL, NULL, &none, NULL), MEGALITH_ERROR_ARGUMENT);
  const megalith_model_options odd = {.size = sizeof odd, .weights = (megalith_weights)9};
  assert_int_equal(megalith_model_open(MGL_DEMO_FOLDER, &odd, &none, &error),
                   MEGALITH_ERROR_ARGUMENT);
}

// --- a model without text; one request's fault ---------------------------------------------------

// Makes the embedding of `token` a NaN in an f32 model.
static void poison(const temp_folder *folder, uint32_t token, uint32_t hidden) {
  char path[TEMP_PATH_BYTES];
  char header[65536];
  uint64_t header_bytes = 0;
  json_t *root = NULL;
  mgl_error err = {0};
  temp_folder_path(folder, "model.safetensors", path);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fread(&header_bytes, 8, 1, file), 1);
  assert_true(header_bytes < sizeof header);
  assert_int_equal(fread(header, header_bytes, 1, file), 1);
  assert_int_equal(mgl_json_parse(header, header_bytes, "header", &root, &err), MGL_OK);
  const json_t *tensor = json_object_get(root, "model.embed_tokens.weight");
  assert_string_equal(json_string_value(json_object_get(tensor, "dtype")), "F32");
  long begin = (long)json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
  float nan_bits[1] = {(float)(0.0 / 0.0)};
  assert_int_equal(
      fseek(file, 8 + (long)header_bytes + begin + (long)(token * hidden * 4), SEEK_SET), 0);
  assert_int_equal(fwrite(nan_bits, sizeof nan_bits, 1, file), 1);
  assert_int_equal(fclose(file), 0);
  json_decref(root);
}

static void a_request_that_fails_takes_no_other_with_it(void **state) {
  temp_folder folder;
  mgl_reference reference;
  mgl_error err = {0};
  megalith_error error = {0};
  megalith_model *small = NULL;
  megalith_engine *engine = NULL;
  const int32_t sound[] = {1, 2, 3};
  const int32_t damaged[] = {1, 7, 3};
  (void)state;
  temp_folder_create(&folder);
  assert_int_equal(mgl_reference_load(MGL_TEST_DATA "/reference", "mistral_f32", &reference, &err),
                   MGL_OK);
  assert_int_equal(mgl_reference_write_folder(&reference, folder.path, 1, &err), MGL_OK);
  mgl_config config;
  mgl_generation generation;
  assert_int_equal(mgl_config_parse(reference.config_json, strlen(reference.config_json), "config",
                                    &config, &generation, &err),
                   MGL_OK);
  assert_false(config.tie_word_embeddings);
  poison(&folder, 7, config.hidden_size);
  assert_int_equal(megalith_model_open(folder.path, NULL, &small, &error), MEGALITH_OK);
  assert_false(megalith_model_describe(small)->has_tokenizer);
  megalith_engine_options options = {.size = sizeof options, .threads = 2, .kv_tokens = 1024};
  assert_int_equal(megalith_engine_create(small, &options, &engine, &error), MEGALITH_OK);
  megalith_model_close(small);  // the engine keeps it
  refuse(engine, (megalith_request_options){.text = "x"}, MEGALITH_ERROR_UNSUPPORTED,
         "a text prompt needs a tokenizer.json");
  megalith_request *requests[5];
  for (int i = 0; i < 5; i++) {
    requests[i] = submit(
        engine, (megalith_request_options){
                    .tokens = i % 2 == 0 ? sound : damaged, .token_count = 3, .max_new_tokens = 8});
  }
  run(engine);
  for (int i = 0; i < 5; i++) {
    const megalith_result *result = megalith_request_result(requests[i]);
    assert_int_equal(result->finish == MEGALITH_FINISH_FAILED, i % 2 == 1);
    assert_int_equal(result->status, i % 2 == 1 ? MEGALITH_ERROR_FORMAT : MEGALITH_OK);
    if (i % 2 == 1) {
      assert_non_null(strstr(result->error, "not finite"));
    } else {
      assert_int_equal(result->token_count, 8);
      assert_string_equal(result->text, "");
    }
    megalith_request_release(requests[i]);
  }
  megalith_engine_destroy(engine);
  mgl_reference_reset(&reference);
  temp_folder_remove(&folder);
}

// --- memory --------------------------------------------------------------------------------------

// Everything once, with the nth allocation failing. True if all went well.
static bool try_everything(bool background) {
  megalith_error error = {0};
  megalith_model *opened = NULL;
  megalith_engine *engine = NULL;
  megalith_request *request = NULL;
  const megalith_model_options dummy = {.size = sizeof dummy, .weights = MEGALITH_WEIGHTS_MAPPED};
  const megalith_engine_options options = {.size = sizeof options,
                                           .threads = 1,
                                           .sequences = 2,
                                           .kv_tokens = 256,
                                           .iteration_tokens = 4,
                                           .background = background};
  const char *const stops[] = {"zz"};
  const megalith_request_options asked = {.size = sizeof asked,
                                          .text = "What is 1 + 2?",
                                          .max_new_tokens = 6,
                                          .stop_texts = stops,
                                          .stop_text_count = 1,
                                          .ignore_model_stops = true};
  bool fine = megalith_model_open(MGL_DEMO_FOLDER, &dummy, &opened, &error) == MEGALITH_OK &&
              megalith_engine_create(opened, &options, &engine, &error) == MEGALITH_OK &&
              megalith_engine_submit(engine, &asked, &request, &error) == MEGALITH_OK &&
              (background || megalith_engine_run(engine, &error) == MEGALITH_OK);
  if (fine) {
    assert_true(megalith_request_wait(request, -1));
    const megalith_result *result = megalith_request_result(request);
    fine = result->finish == MEGALITH_FINISH_LENGTH && result->token_count == 6;
    error.status = result->status;
    (void)snprintf(error.text, sizeof error.text, "%s", result->error);
  }
  if (!fine && error.status != MEGALITH_ERROR_MEMORY && strstr(error.text, "of memory") == NULL) {
    fail_msg("expected a lack of memory, found %d: %s", (int)error.status, error.text);
  }
  megalith_request_release(request);
  megalith_engine_destroy(engine);
  megalith_model_close(opened);
  return fine;
}

static void every_allocation_may_fail(void **state) {
  int64_t live = mgl_alloc_live();
  (void)state;
  mgl_alloc_fail_nth(0);
  assert_true(try_everything(false));
  uint64_t count = mgl_alloc_count();
  assert_int_equal(mgl_alloc_live(), live);
  // The tokenizer's thousands have their own test: most of them are left out.
  uint64_t step = count / 150 + 1;
  for (uint64_t n = 1; n <= count; n += n + 400 < count ? step : 3) {
    mgl_alloc_fail_nth(n);
    (void)try_everything(n % 2 == 0);
    mgl_alloc_fail_nth(0);
    assert_int_equal(mgl_alloc_live(), live);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_model_describes_itself_and_its_text),
      cmocka_unit_test(one_request),
      cmocka_unit_test(prompts_of_each_kind_agree),
      cmocka_unit_test(many_threads_use_an_engine_in_the_background),
      cmocka_unit_test(other_threads_submit_while_one_runs),
      cmocka_unit_test(a_callback_may_submit),
      cmocka_unit_test(a_callback_may_cancel_and_stop),
      cmocka_unit_test(a_run_that_is_stopped_loses_nothing),
      cmocka_unit_test(requests_end_where_they_are_told_to),
      cmocka_unit_test(sampling_is_of_the_request_alone),
      cmocka_unit_test(what_sampling_asks_for_is_done),
      cmocka_unit_test(a_paused_request_gives_its_pages_away),
      cmocka_unit_test(prompts_that_begin_alike_share_memory),
      cmocka_unit_test(requests_outlive_their_engine),
      cmocka_unit_test(requests_may_be_released_at_any_time),
      cmocka_unit_test(hostile_requests_are_refused),
      cmocka_unit_test(newer_and_older_structs_are_understood),
      cmocka_unit_test(hostile_engines_and_models_are_refused),
      cmocka_unit_test(a_request_that_fails_takes_no_other_with_it),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
