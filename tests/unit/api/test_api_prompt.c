// What was added for servers: log probabilities of prompts, tokens that are allowed, bad words, ends
// of prompts, stop texts that stay, priorities, special tokens in texts, and the variables of a chat
// template.
#include "api_bed.h"

#include <math.h>

static const char story[] =
    "Once upon a time there was a little dog who asked: what is 12 + 30? The cat did not know. "
    "They walked on, and the moon was bright, and every star had a name that nobody had told them.";

enum { MOST_TOKENS = 200, TOPS = 3 };

static size_t tokenize(int32_t ids[MOST_TOKENS]) {
  size_t count = 0;
  assert_int_equal(MEGALITH_OK, megalith_model_tokenize(model, story, strlen(story), ids,
                                                        MOST_TOKENS, &count, NULL));
  assert_in_range(count, 40, MOST_TOKENS);
  return count;
}

// The log probability of ids[at] behind those before it, the slow way: a request that may choose
// nothing else.
static double one_by_one(megalith_engine *engine, const int32_t *ids, size_t at) {
  megalith_sampling sampling = {.size = sizeof sampling,
                                .allowed = &ids[at],
                                .allowed_count = 1,
                                .logprobs = true,
                                .temperature = 1.5};
  megalith_request *request =
      submit(engine, (megalith_request_options){.tokens = ids,
                                                .token_count = at,
                                                .max_new_tokens = 1,
                                                .sampling = &sampling,
                                                .ignore_model_stops = true});
  run(engine);
  const megalith_result *result = megalith_request_result(request);
  assert_int_equal(1, result->token_count);
  assert_int_equal(ids[at], result->tokens[0]);
  double logprob = result->logprobs[0];
  megalith_request_release(request);
  return logprob;
}

static void check_prompt(megalith_engine *engine, megalith_request *request, const int32_t *ids,
                         size_t count) {
  megalith_prompt prompt;
  run(engine);
  megalith_request_prompt(request, &prompt);
  assert_int_equal(count, prompt.token_count);
  assert_memory_equal(ids, prompt.tokens, count * sizeof *ids);
  assert_int_equal(TOPS, prompt.top_count);
  assert_true(isnan(prompt.logprobs[0]));
  for (size_t i = 1; i < count; i++) {
    const megalith_logprob *top = &prompt.top[i * TOPS];
    double expected = one_by_one(engine, ids, i);
    if (!(prompt.logprobs[i] == expected)) {
      fail_msg("token %zu: expected %.17g, found %.17g", i, expected, prompt.logprobs[i]);
    }
    assert_true(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
    assert_true(prompt.logprobs[i] <= top[0].logprob);
  }
}

// The same bits in one chunk and in many, with pages that run out meanwhile, and beside others.
static void test_prompt_logprobs(void **state) {
  static const megalith_engine_options beds[] = {
      {.prompt_logprobs = true},
      {.prompt_logprobs = true, .chunk_tokens = 7, .iteration_tokens = 16},
      {.prompt_logprobs = true, .kv_tokens = 256, .context_tokens = 250},
  };
  int32_t ids[MOST_TOKENS];
  size_t count = tokenize(ids);
  (void)state;
  for (size_t i = 0; i < sizeof beds / sizeof *beds; i++) {
    megalith_engine *engine = create(beds[i]);
    megalith_sampling sampling = {
        .size = sizeof sampling, .prompt_logprobs = true, .prompt_top_logprobs = TOPS};
    megalith_prompt none;
    megalith_request *other = submit_question(engine, 1, (megalith_request_options){0});
    megalith_request *request = submit(
        engine,
        (megalith_request_options){
            .tokens = ids, .token_count = count, .max_new_tokens = 20, .sampling = &sampling});
    megalith_request_prompt(request, &none);
    assert_null(none.logprobs);
    check_prompt(engine, request, ids, count);
    check_answer(other, 1);
    megalith_request_prompt(other, &none);
    assert_true(none.tokens == NULL && none.logprobs == NULL);
    megalith_request_release(other);
    megalith_request_release(request);
    megalith_engine_destroy(engine);
  }
}

static void expect_refusal(megalith_engine *engine, megalith_sampling sampling, const char *part) {
  megalith_error error = {0};
  megalith_request *request = NULL;
  sampling.size = sizeof sampling;
  megalith_request_options options = {
      .size = sizeof options, .text = "x", .max_new_tokens = 8, .sampling = &sampling};
  assert_int_not_equal(MEGALITH_OK, megalith_engine_submit(engine, &options, &request, &error));
  if (strstr(error.text, part) == NULL) {
    fail_msg("expected \"%s\", found %s", part, error.text);
  }
}

static void test_refusals(void **state) {
  static const int32_t unknown[] = {5, 5000};
  int32_t stop = 0;  // the model's own
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){0});
  expect_refusal(engine, (megalith_sampling){.prompt_logprobs = true},
                 "need an engine with logits for the 128 tokens of an iteration");
  expect_refusal(engine, (megalith_sampling){.prompt_logprobs = true, .prompt_top_logprobs = 21},
                 "at most 20, found 21");
  expect_refusal(engine, (megalith_sampling){.allowed = unknown, .allowed_count = 2},
                 "allowed tokens: expected ids of 0 to");
  expect_refusal(engine, (megalith_sampling){.allowed_count = 2}, "found NULL");
  while (stop < 1100) {  // whichever it is: the only one that cannot wait
    megalith_sampling sampling = {
        .size = sizeof sampling, .allowed = &stop, .allowed_count = 1, .min_new_tokens = 2};
    megalith_request_options options = {
        .size = sizeof options, .text = "x", .max_new_tokens = 8, .sampling = &sampling};
    megalith_error error = {0};
    megalith_request *request = NULL;
    if (megalith_engine_submit(engine, &options, &request, &error) != MEGALITH_OK) {
      assert_non_null(strstr(error.text, "an allowed token that does not stop"));
      break;
    }
    megalith_request_release(request);
    stop++;
  }
  assert_in_range(stop, 0, 1099);
  run(engine);
  megalith_engine_destroy(engine);
}

// Whatever else is asked, nothing but the allowed tokens comes, and greedily the likeliest of them.
static void test_allowed(void **state) {
  static const int32_t allowed[] = {40, 7, 300, 7};
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){0});
  for (int drawn = 0; drawn < 2; drawn++) {
    megalith_logit_bias bias = {.token = 9, .value = 100};
    megalith_sampling sampling = {.size = sizeof sampling,
                                  .allowed = allowed,
                                  .allowed_count = 4,
                                  .temperature = drawn * 100.0,
                                  .top_p = 0.99,
                                  .repetition_penalty = 1.3,
                                  .biases = &bias,
                                  .bias_count = 1};
    megalith_request *request = submit(
        engine,
        (megalith_request_options){.text = "Once", .max_new_tokens = 40, .sampling = &sampling});
    run(engine);
    const megalith_result *result = megalith_request_result(request);
    size_t seen[3] = {0};
    assert_int_equal(40, result->token_count);
    for (size_t i = 0; i < result->token_count; i++) {
      int32_t token = result->tokens[i];
      assert_true(token == 40 || token == 7 || token == 300);
      seen[token == 40 ? 0 : token == 7 ? 1 : 2]++;
    }
    assert_true(drawn == 0 || (seen[0] > 0 && seen[1] > 0 && seen[2] > 0));
    megalith_request_release(request);
  }
  megalith_engine_destroy(engine);
}

// --- bad words, stop texts, ends of prompts ------------------------------------------------------

static const char prompt[] = "Once upon a time there was";

// A greedy answer to the prompt's tokens.
static megalith_request *answer(megalith_engine *engine, megalith_request_options options) {
  static const megalith_sampling greedy = {.size = sizeof greedy};
  options.text = options.tokens == NULL ? prompt : NULL;
  options.max_new_tokens = 40;
  options.ignore_model_stops = true;
  options.sampling = &greedy;
  megalith_request *request = submit(engine, options);
  run(engine);
  return request;
}

static size_t find_run(const megalith_result *result, const int32_t *ids, size_t count) {
  for (size_t i = 0; i + count <= result->token_count; i++) {
    if (memcmp(result->tokens + i, ids, count * sizeof *ids) == 0) {
      return i;
    }
  }
  return SIZE_MAX;
}

// Each pair of tokens that the answer has, as a bad word: it is gone, and what was before it is not.
static void test_bad_words(void **state) {
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_request *plain = answer(engine, (megalith_request_options){0});
  const megalith_result *result = megalith_request_result(plain);
  uint32_t checked = 0;
  for (size_t i = 0; i + 2 <= result->token_count; i++) {
    char text[MEGALITH_MAX_BAD_WORD_BYTES];
    int32_t ids[8];
    size_t bytes = 0;
    size_t count = 0;
    assert_int_equal(MEGALITH_OK, megalith_model_detokenize(model, result->tokens + i, 2, text,
                                                            sizeof text, &bytes, NULL));
    assert_int_equal(MEGALITH_OK,
                     megalith_model_tokenize(model, text, bytes, ids, 8, &count, NULL));
    if (count != 2 || memcmp(ids, result->tokens + i, sizeof *ids * 2) != 0) {
      continue;  // alone, this text has other tokens
    }
    const char *words[] = {"never there", text};
    megalith_request *request =
        answer(engine, (megalith_request_options){.bad_words = words, .bad_word_count = 2});
    const megalith_result *other = megalith_request_result(request);
    size_t first = find_run(result, ids, 2);
    assert_true(find_run(other, ids, 2) == SIZE_MAX);
    assert_memory_equal(result->tokens, other->tokens, (first + 1) * sizeof *ids);
    megalith_request_release(request);
    checked++;
  }
  assert_true(checked > 10);
  megalith_request_release(plain);
  megalith_engine_destroy(engine);
}

static void test_bad_word_refusals(void **state) {
  static const char *const empty = "";
  static const char *const fine = "x";
  megalith_error error = {0};
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_request_options options = {
      .size = sizeof options, .text = "x", .bad_words = &empty, .bad_word_count = 1};
  assert_int_not_equal(MEGALITH_OK, megalith_engine_submit(engine, &options, NULL, &error));
  assert_string_equal("bad word 0: expected 1 to 256 bytes, found 0", error.text);
  options.bad_word_count = MEGALITH_MAX_BAD_WORDS + 1;
  assert_int_not_equal(MEGALITH_OK, megalith_engine_submit(engine, &options, NULL, &error));
  assert_non_null(strstr(error.text, "at most 256"));
  options.bad_word_count = 1;
  options.bad_words = &fine;
  const megalith_grammar_options grammar = {
      .size = sizeof grammar, .kind = MEGALITH_GRAMMAR_REGEX, .text = "a+"};
  assert_int_equal(MEGALITH_OK, megalith_grammar_create(model, &grammar, &options.grammar, &error));
  assert_int_not_equal(MEGALITH_OK, megalith_engine_submit(engine, &options, NULL, &error));
  assert_non_null(strstr(error.text, "expected one of bad words and a grammar, found both"));
  megalith_grammar_release(options.grammar);
  megalith_engine_destroy(engine);
}

static void test_keep_stop_text(void **state) {
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_request *plain = answer(engine, (megalith_request_options){0});
  const char *whole = megalith_request_result(plain)->text;
  char stop_text[8];
  (void)snprintf(stop_text, sizeof stop_text, "%.7s", whole + 11);
  const char *stop = stop_text;
  size_t begin = (size_t)(strstr(whole, stop) - whole);
  for (int keeps = 0; keeps < 2; keeps++) {
    megalith_request *request = answer(
        engine, (megalith_request_options){
                    .stop_texts = &stop, .stop_text_count = 1, .keep_stop_text = keeps != 0});
    const megalith_result *result = megalith_request_result(request);
    assert_int_equal(MEGALITH_FINISH_STOP, result->finish);
    assert_int_equal(begin + (keeps != 0 ? strlen(stop) : 0), strlen(result->text));
    assert_memory_equal(whole, result->text, strlen(result->text));
    megalith_request_release(request);
  }
  megalith_request_release(plain);
  megalith_engine_destroy(engine);
}

static void test_prompt_ends(void **state) {
  int32_t ids[MOST_TOKENS];
  size_t count = tokenize(ids);
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){.context_tokens = 50});
  static const struct {
    uint32_t most;
    size_t left;
  } cases[] = {{3, 3}, {9, 9}, {UINT32_MAX, 10}};  // 50 - 40 fit
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    megalith_request *cut = answer(
        engine, (megalith_request_options){
                    .tokens = ids, .token_count = count, .max_prompt_tokens = cases[i].most});
    megalith_request *same =
        answer(engine, (megalith_request_options){.tokens = ids + count - cases[i].left,
                                                  .token_count = cases[i].left});
    const megalith_result *found = megalith_request_result(cut);
    assert_memory_equal(megalith_request_result(same)->tokens, found->tokens, 40 * sizeof *ids);
    megalith_request_release(cut);
    megalith_request_release(same);
  }
  // A prompt that is not longer stays whole.
  megalith_request *whole =
      answer(engine, (megalith_request_options){.tokens = ids, .token_count = 5});
  megalith_request *same = answer(
      engine,
      (megalith_request_options){.tokens = ids, .token_count = 5, .max_prompt_tokens = 5000});
  assert_memory_equal(megalith_request_result(whole)->tokens, megalith_request_result(same)->tokens,
                      40 * sizeof *ids);
  megalith_request_release(whole);
  megalith_request_release(same);
  // Where nobody says how many are new, the usual 256 leave half of this context.
  while (count < 40) {
    ids[count++] = ids[0];
  }
  megalith_request *half =
      submit(engine, (megalith_request_options){
                         .tokens = ids, .token_count = count, .max_prompt_tokens = UINT32_MAX});
  run(engine);
  assert_int_equal(25, megalith_request_result(half)->prompt_token_count);
  megalith_request_release(half);
  megalith_engine_destroy(engine);
}

// --- priorities ----------------------------------------------------------------------------------

typedef struct ending {
  int *order;
  int *count;
  int number;
} ending;

static void on_output(void *context, megalith_request *request, const megalith_output *output) {
  const ending *e = context;
  (void)request;
  if (output->finish != MEGALITH_FINISH_NONE) {
    e->order[(*e->count)++] = e->number;
  }
}

static void test_priority(void **state) {
  static const int32_t priorities[] = {5, 0, -3, 5, 0, INT32_MIN, INT32_MAX};
  static const int expected[] = {5, 2, 1, 4, 0, 3, 6};
  enum { COUNT = sizeof priorities / sizeof *priorities };
  int order[COUNT];
  int count = 0;
  ending endings[COUNT];
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){.sequences = 1});
  for (int i = 0; i < COUNT; i++) {
    endings[i] = (ending){order, &count, i};
    megalith_request_options options = {.size = sizeof options,
                                        .text = "Once",
                                        .max_new_tokens = 3,
                                        .priority = priorities[i],
                                        .on_output = on_output,
                                        .context = &endings[i]};
    assert_int_equal(MEGALITH_OK, megalith_engine_submit(engine, &options, NULL, NULL));
  }
  run(engine);
  assert_int_equal(COUNT, count);
  assert_memory_equal(expected, order, sizeof expected);
  megalith_engine_destroy(engine);
}

// --- special tokens, templates -------------------------------------------------------------------

static void test_special(void **state) {
  int32_t special = -1;
  char text[64];
  size_t bytes = 0;
  (void)state;
  for (int32_t i = 0; special < 0; i++) {
    assert_int_equal(MEGALITH_OK,
                     megalith_model_token_text(model, i, text, sizeof text, &bytes, NULL));
    special = strcmp(text, "<|im_start|>") == 0 ? i : -1;
  }
  megalith_engine *engine = create((megalith_engine_options){0});
  for (int keeps = 0; keeps < 2; keeps++) {
    megalith_sampling sampling = {.size = sizeof sampling, .allowed = &special, .allowed_count = 1};
    megalith_request *request =
        submit(engine, (megalith_request_options){.text = "Once",
                                                  .max_new_tokens = 2,
                                                  .sampling = &sampling,
                                                  .keep_special = keeps != 0});
    run(engine);
    assert_string_equal(keeps != 0 ? "<|im_start|><|im_start|>" : "",
                        megalith_request_result(request)->text);
    megalith_request_release(request);
  }
  megalith_engine_destroy(engine);
}

static void test_describe(void **state) {
  const megalith_model_info *info = megalith_model_describe(model);
  (void)state;
  assert_non_null(strstr(info->chat_template, "{% for message in messages %}"));
  assert_int_equal(0, info->template_variable_count);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_prompt_logprobs),   cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_allowed),           cmocka_unit_test(test_bad_words),
      cmocka_unit_test(test_bad_word_refusals), cmocka_unit_test(test_keep_stop_text),
      cmocka_unit_test(test_prompt_ends),       cmocka_unit_test(test_priority),
      cmocka_unit_test(test_special),           cmocka_unit_test(test_describe),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
