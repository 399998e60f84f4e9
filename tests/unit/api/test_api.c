// The public API on the demo model, from one thread: what one request gives, it gives in any
// company, stepped or run, paused or streamed, and however it is told to end.
#include "unit/api/api_bed.h"

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

static void partitions_change_no_result(void **state) {
  (void)state;
  static const char *const partitions[] = {"gate_up=3", " qkv_proj=16,1  attend=2,2 "};
  static const char *const wrong[] = {"foo=3", "gate_up", "", "gate_up=3,2", "gate_up=0"};
  for (size_t i = 0; i < sizeof partitions / sizeof *partitions; i++) {
    megalith_engine *engine = create((megalith_engine_options){.partitions = partitions[i]});
    megalith_request *request = submit_question(engine, 1, (megalith_request_options){0});
    run(engine);
    check_answer(request, 1);
    megalith_request_release(request);
    megalith_engine_destroy(engine);
  }
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    megalith_engine_options options = {
        .size = sizeof options, .threads = 2, .kv_tokens = 8192, .partitions = wrong[i]};
    megalith_engine *engine = NULL;
    megalith_error error = {0};
    assert_int_equal(megalith_engine_create(model, &options, &engine, &error),
                     MEGALITH_ERROR_ARGUMENT);
    assert_null(engine);
    assert_true(error.text[0] != 0);
  }
}

// A cache of codes: answers that are still right, of questions together and with pages that run out.
static void a_kv_cache_in_fp8_answers(void **state) {
  (void)state;
  static const uint64_t kv_tokens[] = {8192, 96};
  for (size_t i = 0; i < 2; i++) {
    megalith_engine *engine =
        create((megalith_engine_options){.kv_tokens = kv_tokens[i], .kv_dtype = "fp8"});
    megalith_request *requests[4];
    for (uint32_t q = 0; q < 4; q++) {
      requests[q] = submit_question(engine, q, (megalith_request_options){0});
    }
    run(engine);
    for (uint32_t q = 0; q < 4; q++) {
      check_answer(requests[q], q);
      megalith_request_release(requests[q]);
    }
    megalith_engine_destroy(engine);
  }
  megalith_engine_options options = {.size = sizeof options, .kv_dtype = "int3"};
  megalith_engine *engine = NULL;
  megalith_error error = {0};
  assert_int_equal(megalith_engine_create(model, &options, &engine, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "expected \"auto\" or \"fp8\" (E4M3), found \"int3\""));
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
static uint64_t hits(bool no_cache, const char *salt, const char *other_salt,
                     const char *kv_dtype) {
  megalith_engine *engine = create((megalith_engine_options){
      .no_prefix_cache = no_cache, .page_tokens = 32, .kv_dtype = kv_dtype});
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
  assert_int_equal(hits(false, "", "", NULL), 64);
  assert_int_equal(hits(false, "one", "one", NULL), 64);
  assert_int_equal(hits(false, "one", "another", NULL), 0);
  assert_int_equal(hits(true, "", "", NULL), 0);
  assert_int_equal(hits(false, "", "", "fp8"), 64);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_model_describes_itself_and_its_text),
      cmocka_unit_test(one_request),
      cmocka_unit_test(prompts_of_each_kind_agree),
      cmocka_unit_test(a_callback_may_submit),
      cmocka_unit_test(a_callback_may_cancel_and_stop),
      cmocka_unit_test(a_run_that_is_stopped_loses_nothing),
      cmocka_unit_test(requests_end_where_they_are_told_to),
      cmocka_unit_test(sampling_is_of_the_request_alone),
      cmocka_unit_test(what_sampling_asks_for_is_done),
      cmocka_unit_test(partitions_change_no_result),
      cmocka_unit_test(a_kv_cache_in_fp8_answers),
      cmocka_unit_test(a_paused_request_gives_its_pages_away),
      cmocka_unit_test(prompts_that_begin_alike_share_memory),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
