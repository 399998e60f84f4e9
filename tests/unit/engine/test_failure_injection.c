// From the demo model's folder to text, with allocations and file operations made to fail one at a
// time: each failure ends in an error with a message, and nothing leaks. Under a
// sanitizer only every 61st allocation fails, unless MGL_TEST_LONG is set (make test-long).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/engine.h"
#include "model/chat.h"

typedef struct output {
  mgl_detokenizer *detokenizer;
  mgl_text text;
  mgl_status status;
  mgl_error *err;
} output;

static bool on_token(void *context, const mgl_generated_token *token) {
  output *out = context;
  if (out->status == MGL_OK) {
    out->status = mgl_detokenizer_push(out->detokenizer, token->token, &out->text, out->err);
  }
  return true;
}

static mgl_status generate(mgl_engine *engine, const mgl_token_list *prompt, output *out,
                           mgl_error *err) {
  mgl_request request = {.prompt = prompt->ids,
                         .prompt_count = prompt->count,
                         .max_new_tokens = 4,
                         .sampling = {.temperature = 0, .top_p = 1}};
  uint32_t number = 0;
  MGL_TRY(mgl_engine_submit(engine, &request, &number, err));
  while (mgl_engine_has_work(engine)) {
    MGL_TRY(mgl_engine_step(engine, on_token, out, NULL, err));
  }
  MGL_TRY(out->status);
  MGL_TRY(mgl_detokenizer_finish(out->detokenizer, &out->text, err));
  return mgl_text_check(&out->text, err);
}

// Everything that `megalith run --chat` does, but for the printing.
static mgl_status run_once(mgl_error *err) {
  static const unsigned needs = MGL_NEED_TOKENIZER | MGL_NEED_WEIGHTS | MGL_NEED_CHAT_TEMPLATE;
  mgl_model_folder folder;
  mgl_build options = {
      .threads = 1, .sequences = 1, .sequence_tokens = 64, .weights = MGL_WEIGHTS_COPIED};
  mgl_runner *runner = NULL;
  mgl_engine *engine = NULL;
  mgl_token_list prompt = {0};
  output out = {.status = MGL_OK, .err = err};
  MGL_TRY(mgl_model_folder_open(MGL_DEMO_FOLDER, needs, &folder, err));
  const mgl_chat_message question = {"user", "What is 2 + 3?"};
  mgl_chat chat = {.messages = &question, .message_count = 1};
  mgl_status status = mgl_chat_encode(&folder, &chat, &prompt, err);
  if (status == MGL_OK) {
    status = mgl_runner_create(&folder, &options, &runner, err);
  }
  if (status == MGL_OK) {
    status = mgl_engine_create(runner, &(mgl_engine_options){0}, &engine, err);
  }
  if (status == MGL_OK) {
    status = mgl_detokenizer_create(folder.tokenizer, true, &out.detokenizer, err);
  }
  if (status == MGL_OK) {
    status = generate(engine, &prompt, &out, err);
  }
  if (status == MGL_OK) {
    assert_string_equal(out.text.data, "2 + 3");
  }
  mgl_detokenizer_destroy(out.detokenizer);
  mgl_text_free(&out.text);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
  mgl_token_list_free(&prompt);
  mgl_model_folder_close(&folder);
  return status;
}

typedef struct seam {
  void (*fail_nth)(uint64_t n);
  uint64_t (*count)(void);
  uint64_t stride;
} seam;

static void check_seam(seam s) {
  int64_t live = mgl_alloc_live();
  uint64_t failures = 0;
  for (uint64_t n = 1;; n += s.stride) {
    mgl_error err = {0};
    s.fail_nth(n);
    mgl_status status = run_once(&err);
    bool reached = s.count() >= n;
    s.fail_nth(0);
    assert_int_equal(mgl_alloc_live(), live);
    if (!reached) {
      assert_int_equal(status, MGL_OK);
      break;
    }
    if (status == MGL_OK || err.text[0] == 0) {
      fail_msg("failure %llu: status %s, message \"%s\"", (unsigned long long)n,
               mgl_status_name(status), err.text);
    }
    failures++;
  }
  print_message("%llu failures injected\n", (unsigned long long)failures);
  assert_true(failures > 10);
}

static void file_operations(void **state) {
  (void)state;
  check_seam((seam){mgl_file_fail_nth, mgl_file_count, 1});
}

static void allocations(void **state) {
  (void)state;
#ifdef MGL_TEST_SANITIZED
  uint64_t stride = getenv("MGL_TEST_LONG") != NULL ? 1 : 61;
#else
  uint64_t stride = 1;
#endif
  check_seam((seam){mgl_alloc_fail_nth, mgl_alloc_count, stride});
}

// The usual copies are not worth an error: where memory for them fails, weights are used in their
// files, and a note says so.
static void copies_that_fail_leave_weights_in_their_files(void **state) {
  static const char said[] = "weights stay in their files: could not map ";
  const mgl_build options = {.threads = 1, .sequences = 1, .sequence_tokens = 64};
  mgl_model_folder folder;
  mgl_error err = {0};
  bool found = false, reached = true;
  (void)state;
  assert_int_equal(options.weights, MGL_WEIGHTS_AUTO);
  assert_int_equal(mgl_model_folder_open(MGL_DEMO_FOLDER, MGL_NEED_WEIGHTS, &folder, &err), MGL_OK);
  for (uint64_t n = 1; reached && !found; n++) {
    mgl_runner *runner = NULL;
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_runner_create(&folder, &options, &runner, &err);
    reached = mgl_alloc_count() >= n;
    mgl_alloc_fail_nth(0);
    found = status == MGL_OK && strncmp(mgl_runner_note(runner), said, sizeof said - 1) == 0;
    mgl_runner_destroy(runner);
  }
  assert_true(found);
  mgl_model_folder_close(&folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(file_operations),
      cmocka_unit_test(allocations),
      cmocka_unit_test(copies_that_fail_leave_weights_in_their_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
