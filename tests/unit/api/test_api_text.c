// A model that is opened for its texts alone: without weights on disk, with a tokenizer or a chat
// template that it must have, and with special tokens where they are asked for.
#include <sys/stat.h>
#include <unistd.h>

#include "support/temp_folder.h"
#include "unit/api/api_bed.h"

// A folder with some of the demo model's files.
static void make_folder(temp_folder *folder, const char *const *names) {
  temp_folder_create(folder);
  for (; *names != NULL; names++) {
    char from[TEMP_PATH_BYTES * 2];
    char to[TEMP_PATH_BYTES * 2];
    (void)snprintf(from, sizeof from, "%s/%s", MGL_DEMO_FOLDER, *names);
    (void)snprintf(to, sizeof to, "%s/%s", folder->path, *names);
    assert_int_equal(symlink(from, to), 0);
  }
}

static megalith_status open_folder(const temp_folder *folder, megalith_model_options options,
                                   megalith_model **out, megalith_error *error) {
  options.size = sizeof options;
  return megalith_model_open(folder->path, &options, out, error);
}

static void a_model_without_weights_has_its_text(void **state) {
  static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                      NULL};
  temp_folder folder;
  megalith_model *text_model = NULL;
  megalith_engine *engine = NULL;
  megalith_error error = {0};
  int32_t ids[64];
  size_t count = 0;
  (void)state;
  make_folder(&folder, names);
  assert_int_equal(open_folder(&folder, (megalith_model_options){0}, &text_model, &error),
                   MEGALITH_ERROR_IO);
  assert_null(text_model);
  assert_int_equal(open_folder(&folder, (megalith_model_options){.weights = MEGALITH_WEIGHTS_NONE},
                               &text_model, &error),
                   MEGALITH_OK);
  assert_int_equal(megalith_model_tokenize(text_model, "seven times", 11, ids, 64, &count, &error),
                   MEGALITH_OK);
  assert_true(count > 0);
  const megalith_engine_options options = {.size = sizeof options, .threads = 1};
  assert_int_equal(megalith_engine_create(text_model, &options, &engine, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_null(engine);
  assert_non_null(strstr(error.text, "opened with MEGALITH_WEIGHTS_NONE"));
  megalith_model_close(text_model);
  temp_folder_remove(&folder);
}

static void what_a_model_must_have_is_checked_at_once(void **state) {
  static const char *const config[] = {"config.json", NULL};
  static const char *const tokenizer[] = {"config.json", "tokenizer.json", NULL};
  const megalith_model_options text = {.weights = MEGALITH_WEIGHTS_NONE, .needs_tokenizer = true};
  const megalith_model_options chat = {.weights = MEGALITH_WEIGHTS_NONE,
                                       .needs_chat_template = true};
  temp_folder folder;
  megalith_model *opened = NULL;
  megalith_error error = {0};
  (void)state;
  make_folder(&folder, config);
  assert_int_not_equal(open_folder(&folder, text, &opened, &error), MEGALITH_OK);
  assert_non_null(strstr(error.text, "has no tokenizer.json"));
  assert_int_not_equal(open_folder(&folder, chat, &opened, &error), MEGALITH_OK);
  assert_non_null(strstr(error.text, "has no tokenizer.json"));
  assert_int_equal(open_folder(&folder, (megalith_model_options){.weights = MEGALITH_WEIGHTS_NONE},
                               &opened, &error),
                   MEGALITH_OK);
  assert_int_equal(megalith_model_describe(opened)->tokenizer_size, 0);
  megalith_model_close(opened);
  temp_folder_remove(&folder);
  make_folder(&folder, tokenizer);
  assert_int_not_equal(open_folder(&folder, chat, &opened, &error), MEGALITH_OK);
  assert_non_null(strstr(error.text, "has no chat template"));
  assert_null(opened);
  assert_int_equal(open_folder(&folder, text, &opened, &error), MEGALITH_OK);
  assert_true(megalith_model_describe(opened)->tokenizer_size > 0);
  megalith_model_close(opened);
  temp_folder_remove(&folder);
}

static void special_tokens_are_shown_where_asked_for(void **state) {
  static const char marked[] = "<|im_start|>seven";
  const megalith_request_options prompt = {
      .size = sizeof prompt, .text = marked, .without_special = true};
  megalith_error error = {0};
  int32_t ids[64];
  char text[64];
  size_t count = 0;
  size_t bytes = 0;
  (void)state;
  assert_int_equal(megalith_model_encode(model, &prompt, ids, 64, &count, &error), MEGALITH_OK);
  assert_int_equal(
      megalith_model_detokenize_special(model, ids, count, text, sizeof text, &bytes, &error),
      MEGALITH_OK);
  assert_string_equal(text, marked);
  assert_int_equal(bytes, sizeof marked - 1);
  assert_int_equal(megalith_model_detokenize(model, ids, count, text, sizeof text, &bytes, &error),
                   MEGALITH_OK);
  assert_string_equal(text, "seven");
  ids[0] = (int32_t)megalith_model_describe(model)->tokenizer_size;
  assert_int_equal(megalith_model_detokenize_special(model, ids, 1, text, 64, &bytes, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "token 0: expected an id of 0 to 1023, found 1024"));
}

static void check_bytes(const megalith_model *of, int32_t id, const char *bytes, size_t count) {
  megalith_error error = {0};
  char found[64];
  size_t found_count = 0;
  assert_int_equal(megalith_model_token_bytes(of, id, found, sizeof found, &found_count, &error),
                   MEGALITH_OK);
  assert_int_equal(found_count, count);
  assert_memory_equal(found, bytes, count);
}

// The demo model's shape and chat template with Llama's tokenizer.
static megalith_model *open_llama(megalith_weights weights) {
  static const char *const names[] = {"config.json", "tokenizer_config.json", NULL};
  const megalith_model_options options = {.weights = weights};
  megalith_model *opened = NULL;
  megalith_error error = {0};
  temp_folder folder;
  char path[TEMP_PATH_BYTES * 2];
  make_folder(&folder, names);
  (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder.path);
  assert_int_equal(symlink(MGL_TEST_DATA "/tokenizer/llama2.json", path), 0);
  if (open_folder(&folder, options, &opened, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
  temp_folder_remove(&folder);
  return opened;
}

// Of the demo model parts of a character, and a special token; of Llama's tokenizer, which drops
// the blank with which a text begins, a word in the middle of one.
static void tokens_have_the_bytes_that_they_add(void **state) {
  static const char text[] = "\xf0\x9f\x98\x80 the the";
  megalith_model *both[2] = {model, open_llama(MEGALITH_WEIGHTS_NONE)};
  megalith_error error = {0};
  char text_of_none[8];
  (void)state;
  for (int i = 0; i < 2; i++) {
    const megalith_request_options prompt = {
        .size = sizeof prompt, .text = text, .without_special = true};
    int32_t ids[64];
    size_t count = 0, at = 0;
    char all[64];
    assert_int_equal(megalith_model_encode(both[i], &prompt, ids, 64, &count, &error), MEGALITH_OK);
    for (size_t j = 0; j < count; j++) {
      size_t bytes = 0;
      assert_int_equal(
          megalith_model_token_bytes(both[i], ids[j], all + at, sizeof all - at, &bytes, &error),
          MEGALITH_OK);
      at += bytes;
    }
    const size_t in_front = i == 1 ? 1 : 0;  // Llama's has a blank of its own in front
    assert_int_equal(at, sizeof text - 1 + in_front);
    assert_memory_equal(all + in_front, text, sizeof text - 1);
  }
  check_bytes(model, 1023, "<|im_end|>", 10);
  check_bytes(both[1], 1, "<s>", 3);
  size_t bytes = 1;
  assert_int_equal(megalith_model_token_bytes(model, 1024, text_of_none, 8, &bytes, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_int_equal(bytes, 0);
  megalith_model_close(both[1]);
}

static void check_text(megalith_engine *engine, megalith_request_options options,
                       const megalith_sampling *sampling, const char *expected) {
  options.sampling = sampling;
  options.max_new_tokens = 2;
  megalith_request *request = submit(engine, options);
  run(engine);
  assert_string_equal(megalith_request_result(request)->text, expected);
  megalith_request_release(request);
}

// Of Llama's tokenizer, whose decoder drops the blank with which a text begins: what goes on behind
// a prompt does not begin one.
static void a_blank_behind_the_prompt_is_kept(void **state) {
  megalith_model *demo = model;
  const megalith_message message = {.role = "user", .content = "a"};
  const int32_t beginning = 1;  // <s>, which has no text
  int32_t word[2];
  size_t count = 0;
  (void)state;
  model = open_llama(MEGALITH_WEIGHTS_DUMMY);
  assert_int_equal(megalith_model_tokenize(model, "w", 1, word, 2, &count, NULL), MEGALITH_OK);
  assert_int_equal(count, 2);  // <s> and a word with a blank in front
  const megalith_sampling only = {.size = sizeof only, .allowed = word + 1, .allowed_count = 1};
  megalith_engine *engine = create((megalith_engine_options){.threads = 1});
  check_text(engine, (megalith_request_options){.text = "a"}, &only, " w w");
  check_text(engine, (megalith_request_options){.tokens = word, .token_count = 2}, &only, " w w");
  check_text(engine, (megalith_request_options){.tokens = &beginning, .token_count = 1}, &only,
             "w w");
  check_text(engine, (megalith_request_options){.messages = &message, .message_count = 1}, &only,
             "w w");
  check_text(engine,
             (megalith_request_options){
                 .messages = &message, .message_count = 1, .continue_final_message = true},
             &only, " w w");
  megalith_engine_destroy(engine);
  megalith_model_close(model);
  model = demo;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_model_without_weights_has_its_text),
      cmocka_unit_test(what_a_model_must_have_is_checked_at_once),
      cmocka_unit_test(special_tokens_are_shown_where_asked_for),
      cmocka_unit_test(tokens_have_the_bytes_that_they_add),
      cmocka_unit_test(a_blank_behind_the_prompt_is_kept),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
