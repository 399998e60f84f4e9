// Tokens that masks choose on a GPU, over the fake driver: allowed tokens, bad words and grammars
// hold for every token, whoever else is there and wherever a launch ends; nobody else's tokens
// change.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cuda_engine_bed.h"
#include "support/first_child.h"
#include "support/must.h"

enum { OTHERS = 3, OTHER_TOKENS = 9, TEXT_BYTES = 16 };

static const mgl_mode modes[] = {MGL_MODE_MEGA, MGL_MODE_FULL};

static mgl_vocabulary *vocabulary;

// Token t is its number in three digits, and a semicolon.
static int make_vocabulary(void **state) {
  static char texts[VOCAB][TEXT_BYTES];
  mgl_vocabulary_token tokens[VOCAB];
  (void)state;
  for (int i = 0; i < VOCAB; i++) {
    (void)snprintf(texts[i], sizeof texts[i], "%03d;", i);
    tokens[i] = (mgl_vocabulary_token){.bytes = texts[i], .count = 4};
  }
  MUST(mgl_vocabulary_create(tokens, VOCAB, &vocabulary, &err));
  return 0;
}

static int release_vocabulary(void **state) {
  (void)state;
  mgl_vocabulary_release(vocabulary);
  return 0;
}

static mgl_grammar *compile(const char *regex) {
  const mgl_grammar_source source = {
      .kind = MGL_GRAMMAR_REGEX, .text = regex, .bytes = strlen(regex)};
  mgl_grammar *grammar = NULL;
  MUST(mgl_grammar_compile(&source, vocabulary, NULL, &grammar, &err));
  return grammar;
}

static uint32_t submit_masked(bed *b, uint32_t max_new_tokens, mgl_sampling sampling,
                              mgl_grammar *grammar) {
  const int32_t prompt[] = {(int32_t)(b->submitted++ * 5), 3, 4};
  uint32_t number = 0;
  const mgl_request request = {.prompt = prompt,
                               .prompt_count = 3,
                               .max_new_tokens = max_new_tokens,
                               .sampling = sampling,
                               .grammar = grammar};
  MUST(mgl_engine_submit(b->engine, &request, &number, &err));
  return number;
}

static void submit_others(bed *b) {
  for (uint32_t i = 0; i < OTHERS; i++) {
    (void)submit(b, 4 + i, OTHER_TOKENS, -1);
  }
}

static void check_others(const bed *b, uint32_t first) {
  for (uint32_t i = 0; i < OTHERS; i++) {
    assert_int_equal(b->counts[first + i], OTHER_TOKENS);
    for (uint32_t j = 0; j < OTHER_TOKENS; j++) {
      int32_t expected = fake_cuda_token((int32_t)((first + i) * 5), 4 + i + j);
      assert_int_equal(b->tokens[first + i][j], expected);
    }
  }
}

// Of the two kinds of number in turn; the third pair completes the text.
static void check_pairs(const bed *b, uint32_t request) {
  assert_int_equal(b->counts[request], 6);
  assert_int_equal(b->reasons[request], MGL_FINISH_COMPLETE);
  for (uint32_t i = 0; i < 6; i++) {
    assert_int_equal(b->tokens[request][i] / 100, 1 + i % 2);
  }
}

static void grammars_hold(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    bed b;
    mgl_grammar *grammar = compile("(1[0-9][0-9];2[0-9][0-9];){3}");
    open_bed(&b, (mgl_engine_options){.mode = modes[i]});
    submit_others(&b);
    for (uint32_t k = 0; k < 3; k++) {
      (void)submit_masked(&b, 20, (mgl_sampling){.top_p = 1}, grammar);
    }
    run(&b);
    check_others(&b, 0);
    for (uint32_t k = 0; k < 3; k++) {
      check_pairs(&b, OTHERS + k);
    }
    assert_false(mgl_engine_has_work(b.engine));
    mgl_grammar_release(grammar);
    close_bed(&b);
  }
}

// A run that ends behind an iteration or a few takes up where the grammar is.
static void grammars_go_on_in_the_next_launch(void **state) {
  (void)state;
  bed b;
  uint32_t runs = 0;
  mgl_grammar *grammar = compile("(1[0-9][0-9];2[0-9][0-9];){3}");
  open_bed(&b, (mgl_engine_options){0});
  submit_others(&b);
  (void)submit_masked(&b, 20, (mgl_sampling){.top_p = 1}, grammar);
  while (mgl_engine_has_work(b.engine)) {
    b.most_iterations = b.iterations + 1;
    run(&b);
    runs++;
    assert_true(runs < 40);
  }
  assert_true(runs > 2);
  check_others(&b, 0);
  check_pairs(&b, OTHERS);
  mgl_grammar_release(grammar);
  close_bed(&b);
}

// A text that no token goes on with fails, and nobody else does.
static uint32_t failed_request;
static char failure[MGL_ERROR_TEXT_BYTES];

static void on_failure(void *context, uint32_t request, const mgl_error *err) {
  (void)context;
  failed_request = request;
  (void)snprintf(failure, sizeof failure, "%s", err->text);
}

static void dead_ends_fail_alone(void **state) {
  (void)state;
  bed b;
  mgl_grammar *grammar = compile("1[0-9][0-9];z");
  failed_request = UINT32_MAX;
  open_bed(&b, (mgl_engine_options){.on_failure = on_failure});
  submit_others(&b);
  uint32_t number = submit_masked(&b, 20, (mgl_sampling){.top_p = 1}, grammar);
  run(&b);
  assert_int_equal(failed_request, number);
  assert_non_null(strstr(failure, "no token of the vocabulary goes on with the grammar behind 1"));
  assert_int_equal(b.counts[number], 1);
  check_others(&b, 0);
  assert_false(mgl_engine_has_work(b.engine));
  close_bed(&b);

  open_bed(&b, (mgl_engine_options){0});  // nobody listens: the run ends
  mgl_error err = {0};
  (void)submit_masked(&b, 20, (mgl_sampling){.top_p = 1}, grammar);
  assert_int_equal(MGL_ERR_FORMAT, mgl_engine_run(b.engine, on_token, on_iteration, &b, &err));
  assert_non_null(strstr(err.text, "goes on with the grammar"));
  assert_false(mgl_engine_has_work(b.engine));
  mgl_grammar_release(grammar);
  close_bed(&b);
}

static void allowed_tokens_hold(void **state) {
  (void)state;
  static const int32_t allowed[] = {17, 300, 299};
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    bed b;
    open_bed(&b, (mgl_engine_options){.mode = modes[i]});
    submit_others(&b);
    mgl_sampling sampling = {.top_p = 1, .allowed = allowed, .allowed_count = 3};
    uint32_t number = submit_masked(&b, 12, sampling, NULL);
    run(&b);
    assert_int_equal(b.counts[number], 12);
    for (uint32_t k = 0; k < 12; k++) {
      int32_t token = b.tokens[number][k];
      assert_true(token == 17 || token == 299 || token == 300);
    }
    check_others(&b, 0);
    close_bed(&b);
  }
}

// The second token of a pair does not follow the first, and a single one never comes.
static void bad_words_hold(void **state) {
  (void)state;
  int32_t free_run[5];
  for (uint32_t i = 0; i < 5; i++) {
    free_run[i] = fake_cuda_token(0, 3 + i);
  }
  const int32_t tokens[] = {free_run[1], free_run[2], free_run[4]};
  const uint32_t ends[] = {2, 3};
  bed b;
  open_bed(&b, (mgl_engine_options){0});
  mgl_sampling sampling = {.top_p = 1, .bad_runs = {tokens, ends, 2}};
  uint32_t number = submit_masked(&b, 5, sampling, NULL);
  submit_others(&b);
  run(&b);
  const int32_t expected[] = {free_run[0], free_run[1], free_run[2] + 1, free_run[3],
                              free_run[4] + 1};
  assert_int_equal(b.counts[number], 5);
  assert_memory_equal(b.tokens[number], expected, sizeof expected);
  check_others(&b, 1);
  close_bed(&b);
}

// Cancelled and paused while the launch waits for a mask.
static bool stop_masked(void *context, const mgl_generated_token *token) {
  bed *b = context;
  (void)on_token(context, token);
  return token->request != OTHERS || b->counts[OTHERS] < 2;
}

static void cancelled_requests_wait_for_no_mask(void **state) {
  (void)state;
  bed b;
  mgl_grammar *grammar = compile("([0-9][0-9][0-9];)+");
  mgl_error err = {0};
  open_bed(&b, (mgl_engine_options){0});
  submit_others(&b);
  uint32_t number = submit_masked(&b, 20, (mgl_sampling){.top_p = 1}, grammar);
  assert_int_equal(MGL_OK, mgl_engine_run(b.engine, stop_masked, on_iteration, &b, &err));
  assert_int_equal(b.counts[number], 2);
  assert_false(mgl_engine_knows(b.engine, number));
  check_others(&b, 0);
  mgl_grammar_release(grammar);
  close_bed(&b);
}

// Each rank's device chooses by itself. Beside grammars there are penalties and biases, which alone
// need memory too, so the second launch grows.
static void grammars_and_penalties_hold_on_several_gpus(void **state) {
  (void)state;
  bed b;
  mgl_grammar *grammar = compile("(1[0-9][0-9];2[0-9][0-9];){3}");
  open_bed_on_ranks(&b, (mgl_engine_options){.mode = MGL_MODE_MEGA});
  for (uint32_t round = 0; round < 2; round++) {
    const uint32_t first = b.submitted;
    submit_others(&b);
    for (uint32_t k = 0; k < 2; k++) {
      (void)submit_masked(&b, 20, (mgl_sampling){.top_p = 1}, grammar);
    }
    if (round == 1) {
      (void)submit_masked(&b, 9, (mgl_sampling){.top_p = 1, .presence_penalty = 1}, NULL);
    }
    run(&b);
    check_others(&b, first);
    check_pairs(&b, first + OTHERS);
    check_pairs(&b, first + OTHERS + 1);
    assert_int_equal(b.counts[b.submitted - 1], round == 1 ? 9 : 6);
  }
  mgl_grammar_release(grammar);
  close_bed(&b);
}

// Between runs, too: nothing is on the device then.
static void a_rank_that_dies_between_runs_is_found(void **state) {
  (void)state;
  bed b;
  mgl_error err = {0};
  open_bed_on_ranks(&b, (mgl_engine_options){.mode = MGL_MODE_MEGA});
  submit_others(&b);
  run(&b);
  assert_int_equal(mgl_runner_check(b.runner, &err), MGL_OK);
  assert_int_equal(kill(first_child(), SIGKILL), 0);
  const uint64_t began_ns = mgl_clock_ns();
  while (mgl_runner_check(b.runner, &err) == MGL_OK) {
    assert_true(mgl_clock_ns() - began_ns < UINT64_C(2000000000));
  }
  assert_non_null(strstr(err.text, "rank 1 of 2 was ended by signal 9"));
  close_bed(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(grammars_hold),
      cmocka_unit_test(grammars_go_on_in_the_next_launch),
      cmocka_unit_test(dead_ends_fail_alone),
      cmocka_unit_test(allowed_tokens_hold),
      cmocka_unit_test(bad_words_hold),
      cmocka_unit_test(cancelled_requests_wait_for_no_mask),
      cmocka_unit_test(grammars_and_penalties_hold_on_several_gpus),
      cmocka_unit_test(a_rank_that_dies_between_runs_is_found),
  };
  return cmocka_run_group_tests(tests, make_vocabulary, release_vocabulary);
}
