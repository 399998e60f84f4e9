// What the public API refuses, and what goes wrong: hostile arguments, structs of other versions,
// weights that give no finite logits, and memory that runs out.
#include <sched.h>

#include "base/alloc.h"
#include "support/poisoned_model.h"
#include "support/temp_folder.h"
#include "unit/api/api_bed.h"

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
         "expected one of text, tokens, messages and messages_json, found 2");
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
         MEGALITH_ERROR_ARGUMENT, "messages[0]: expected a role and a content");
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

static void ids_outside_the_vocabulary_are_refused(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.kv_tokens = 256});
  const int32_t negative[] = {5, -1};
  const int32_t large[] = {1024};
  const int32_t last[] = {1023, 0};
  megalith_error error = {0};
  char text[64];
  size_t bytes = 0;
  (void)state;
  refuse(engine,
         (megalith_request_options){.text = "x", .stop_tokens = negative, .stop_token_count = 2},
         MEGALITH_ERROR_ARGUMENT, "stop token 1: expected an id of 0 to 1023, found -1");
  refuse(engine,
         (megalith_request_options){.text = "x", .stop_tokens = large, .stop_token_count = 1},
         MEGALITH_ERROR_ARGUMENT, "stop token 0: expected an id of 0 to 1023, found 1024");
  megalith_request_release(submit(
      engine, (megalith_request_options){.text = "x", .stop_tokens = last, .stop_token_count = 2}));
  assert_int_equal(megalith_model_detokenize(model, negative, 2, text, sizeof text, &bytes, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "token 1: expected an id of 0 to 1023, found -1"));
  assert_int_equal(bytes, 0);
  assert_int_equal(megalith_model_detokenize(model, large, 1, text, sizeof text, &bytes, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "token 0: expected an id of 0 to 1023, found 1024"));
  assert_int_equal(megalith_model_detokenize(model, last, 2, text, sizeof text, &bytes, &error),
                   MEGALITH_OK);
  assert_int_equal(megalith_model_detokenize(model, NULL, 0, text, sizeof text, &bytes, &error),
                   MEGALITH_OK);
  assert_int_equal(bytes, 0);
  megalith_engine_destroy(engine);
}

// The thread that computes is pinned to one processor; the machine has as many as before.
static void a_pinned_thread_knows_the_machine(void **state) {
  cpu_set_t before;
  megalith_engine *engine = NULL;
  megalith_error error = {0};
  char text[64];
  (void)state;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  const megalith_engine_options many = {.size = sizeof many, .threads = 1025};
  (void)snprintf(text, sizeof text, "this machine has %d", CPU_COUNT(&before));
  if (CPU_COUNT(&before) == 1) {
    (void)printf("skipped: one processor is all that this test may use\n");
    return;
  }
  megalith_engine *pinning = create((megalith_engine_options){.threads = 1, .kv_tokens = 256});
  assert_int_equal(megalith_engine_create(model, &many, &engine, &error), MEGALITH_ERROR_LIMIT);
  if (strstr(error.text, text) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", text, error.text);
  }
  megalith_engine_destroy(pinning);
#ifdef MGL_TEST_SANITIZED
  (void)printf("skipped: a narrower set; sanitizers have threads that keep the whole one\n");
#else
  // Nor is a narrower set that this process gets later taken for the old one.
  cpu_set_t one;
  CPU_ZERO(&one);
  for (size_t i = 0; CPU_COUNT(&one) == 0; i++) {
    if (CPU_ISSET(i, &before)) {
      CPU_SET(i, &one);
    }
  }
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(megalith_engine_create(model, &many, &engine, &error), MEGALITH_ERROR_LIMIT);
  assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
  assert_non_null(strstr(error.text, "this machine has 1"));
#endif
}

// An array that is said to be there and is not.
static void missing_arrays_are_refused(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.kv_tokens = 256});
  (void)state;
  refuse(engine, (megalith_request_options){.text = "x", .stop_token_count = 2},
         MEGALITH_ERROR_ARGUMENT, "stop_tokens: expected 2, found NULL");
  refuse(engine, (megalith_request_options){.text = "x", .stop_text_count = 3},
         MEGALITH_ERROR_ARGUMENT, "stop_texts: expected 3, found NULL");
  refuse(engine, (megalith_request_options){.text = "x", .cache_salt_bytes = 4},
         MEGALITH_ERROR_ARGUMENT, "cache_salt: expected 4, found NULL");
  megalith_engine_destroy(engine);
}

// What a request may have the most of is taken, and one more is refused by name and number.
static void limits_of_a_request_hold_at_their_borders(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.kv_tokens = 256});
  char stop[MEGALITH_MAX_STOP_TEXT_BYTES + 2];
  const char *stop_texts[MEGALITH_MAX_STOP_TEXTS + 1];
  int32_t stop_tokens[MEGALITH_MAX_STOP_TOKENS + 1];
  static megalith_logit_bias biases[MEGALITH_MAX_LOGIT_BIASES + 1];
  (void)state;
  memset(stop, 'z', sizeof stop);
  stop[MEGALITH_MAX_STOP_TEXT_BYTES] = 0;
  for (int32_t i = 0; i <= MEGALITH_MAX_STOP_TEXTS; i++) {
    stop_texts[i] = stop;
  }
  for (int32_t i = 0; i <= MEGALITH_MAX_STOP_TOKENS; i++) {
    stop_tokens[i] = i;
  }
  for (int32_t i = 0; i <= MEGALITH_MAX_LOGIT_BIASES; i++) {
    biases[i] = (megalith_logit_bias){.token = i, .value = i % 2 == 0 ? 100 : -100};
  }
  megalith_sampling sampling = {.size = sizeof sampling,
                                .biases = biases,
                                .bias_count = MEGALITH_MAX_LOGIT_BIASES,
                                .logprobs = true,
                                .top_logprobs = MEGALITH_MAX_TOP_LOGPROBS};
  const megalith_request_options most = {.text = "Once",
                                         .max_new_tokens = 3,
                                         .sampling = &sampling,
                                         .stop_tokens = stop_tokens,
                                         .stop_token_count = MEGALITH_MAX_STOP_TOKENS,
                                         .ignore_model_stops = true,
                                         .stop_texts = stop_texts,
                                         .stop_text_count = MEGALITH_MAX_STOP_TEXTS,
                                         .cache_salt = stop,
                                         .cache_salt_bytes = MEGALITH_MAX_SALT_BYTES};
  megalith_request *request = submit(engine, most);
  run(engine);
  assert_true(megalith_request_result(request)->token_count > 0);
  assert_int_equal(megalith_request_result(request)->top_count, MEGALITH_MAX_TOP_LOGPROBS);
  megalith_request_release(request);
  megalith_request_options more = most;
  more.text_bytes = (size_t)MEGALITH_MAX_PROMPT_BYTES + 1;
  refuse(engine, more, MEGALITH_ERROR_LIMIT, "a text of 268435457 bytes: the limit is 268435456");
  more = most;
  more.stop_token_count++;
  refuse(engine, more, MEGALITH_ERROR_LIMIT, "stop tokens: expected at most 16");
  more = most;
  more.stop_text_count++;
  refuse(engine, more, MEGALITH_ERROR_LIMIT, "stop texts: expected at most 16, found 17");
  more = most;
  more.cache_salt_bytes++;
  refuse(engine, more, MEGALITH_ERROR_LIMIT, "cache_salt: expected at most 256 bytes, found 257");
  sampling.bias_count++;
  refuse(engine, most, MEGALITH_ERROR_LIMIT, "logit biases: expected at most 1024, found 1025");
  sampling.bias_count--;
  stop[MEGALITH_MAX_STOP_TEXT_BYTES] = 'z';
  stop[MEGALITH_MAX_STOP_TEXT_BYTES + 1] = 0;
  refuse(engine, most, MEGALITH_ERROR_LIMIT, "stop text 0: expected 1 to 256 bytes, found 257");
  megalith_engine_destroy(engine);
}

static void an_engine_has_so_many_requests_at_most(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.kv_tokens = 256});
  static megalith_request *requests[MEGALITH_MAX_REQUESTS];
  const int32_t prompt[] = {5};
  const megalith_request_options ask = {.tokens = prompt, .token_count = 1, .max_new_tokens = 1};
  int64_t live = mgl_alloc_live();
  (void)state;
  for (uint32_t i = 0; i < MEGALITH_MAX_REQUESTS; i++) {
    requests[i] = submit(engine, ask);
  }
  refuse(engine, ask, MEGALITH_ERROR_LIMIT,
         "expected at most 65536 requests that have not finished, found more");
  megalith_request_cancel(requests[7]);
  assert_int_equal(megalith_engine_step(engine, NULL), MEGALITH_OK);
  megalith_request *one_more = submit(engine, ask);  // in the place of one that ended
  for (uint32_t i = 0; i < MEGALITH_MAX_REQUESTS; i++) {
    megalith_request_release(requests[i]);
  }
  run(engine);
  assert_int_equal(megalith_request_result(one_more)->finish, MEGALITH_FINISH_LENGTH);
  megalith_request_release(one_more);
  assert_true(mgl_alloc_live() <= live + 1);  // the list of requests that the engine has
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
    o.iteration_tokens = MEGALITH_MAX_ITERATION_TOKENS + 1;
    refuse_engine(o, MEGALITH_ERROR_LIMIT, "1 to 2048 on the CPU, found 2049");
    o.iteration_tokens = 0;
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

static void a_request_that_fails_takes_no_other_with_it(void **state) {
  temp_folder folder;
  megalith_error error = {0};
  megalith_model *small = NULL;
  megalith_engine *engine = NULL;
  const int32_t sound[] = {1, 2, 3};
  const int32_t damaged[] = {1, POISONED_TOKEN, 3};
  (void)state;
  poisoned_model_write(MGL_TEST_DATA, &folder);
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

// As an engine's options are, and without a model.
static void names_of_devices_are_checked(void **state) {
  (void)state;
  static const char *const known[] = {"auto", "cpu", "cuda", "cuda:0", "cuda:12"};
  static const char *const others[] = {"", "gpu", "cuda:", "cuda:x", "cuda:0 ", "CPU"};
  megalith_error error = {0};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    assert_int_equal(megalith_device_check(known[i], &error), MEGALITH_OK);
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    assert_int_equal(megalith_device_check(others[i], &error), MEGALITH_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "device: expected auto, cpu, cuda or cuda:N, found"));
    assert_int_equal(megalith_device_check(others[i], NULL), MEGALITH_ERROR_ARGUMENT);
  }
  const char *usual = getenv("MEGALITH_DEVICE");
  char *kept = usual != NULL ? strdup(usual) : NULL;
  assert_int_equal(setenv("MEGALITH_DEVICE", "gpu", 1), 0);
  assert_int_equal(megalith_device_check(NULL, &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "MEGALITH_DEVICE: expected auto"));
  assert_int_equal(megalith_device_check("cpu", &error), MEGALITH_OK);
  assert_int_equal(kept != NULL ? setenv("MEGALITH_DEVICE", kept, 1) : unsetenv("MEGALITH_DEVICE"),
                   0);
  free(kept);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hostile_requests_are_refused),
      cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
      cmocka_unit_test(a_pinned_thread_knows_the_machine),
      cmocka_unit_test(missing_arrays_are_refused),
      cmocka_unit_test(limits_of_a_request_hold_at_their_borders),
      cmocka_unit_test(an_engine_has_so_many_requests_at_most),
      cmocka_unit_test(newer_and_older_structs_are_understood),
      cmocka_unit_test(hostile_engines_and_models_are_refused),
      cmocka_unit_test(names_of_devices_are_checked),
      cmocka_unit_test(a_request_that_fails_takes_no_other_with_it),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
