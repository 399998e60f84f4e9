// An engine over several processes on the CPU (`ranks`): the same answers; a rank that ends is the
// engine's end, told within 2 s, and no process is left.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/first_child.h"
#include "unit/api/api_bed.h"

enum { QUESTIONS = 4, END_NS = 2000000000 };

static void check_no_child(void) {
  assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
  assert_int_equal(errno, ECHILD);
}

static void answers_are_those_of_one(void **state) {
  (void)state;
  for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
    megalith_engine *engine = create((megalith_engine_options){.threads = 1, .ranks = ranks});
    megalith_request *requests[QUESTIONS];
    for (uint32_t i = 0; i < QUESTIONS; i++) {
      requests[i] = submit_question(engine, i, (megalith_request_options){.max_new_tokens = 40});
    }
    run(engine);
    for (uint32_t i = 0; i < QUESTIONS; i++) {
      check_answer(requests[i], i);
      megalith_request_release(requests[i]);
    }
    assert_int_equal(megalith_engine_check(engine, NULL), MEGALITH_OK);
    megalith_engine_destroy(engine);
    check_no_child();
  }
}

static void a_rank_that_ends_is_the_engines_end(void **state) {
  (void)state;
  megalith_error error = {0};
  megalith_engine *engine = create((megalith_engine_options){.threads = 1, .ranks = 2});
  megalith_request *request =
      submit_question(engine, 0, (megalith_request_options){.max_new_tokens = 40});
  assert_int_equal(megalith_engine_step(engine, NULL), MEGALITH_OK);
  const uint64_t began_ns = mgl_clock_ns();
  assert_int_equal(kill(first_child(), SIGKILL), 0);
  megalith_status status = MEGALITH_OK;
  while (status == MEGALITH_OK && megalith_engine_has_work(engine)) {
    status = megalith_engine_step(engine, &error);
  }
  // The answer may have ended before the death was seen; then the next request tells.
  if (status == MEGALITH_OK) {
    megalith_request_release(request);
    (void)usleep(200 * 1000);
    request = submit_question(engine, 1, (megalith_request_options){.max_new_tokens = 40});
    status = megalith_engine_run(engine, &error);
  }
  assert_int_equal(status, MEGALITH_ERROR_INTERNAL);
  assert_non_null(strstr(error.text, "rank 1 of 2 was ended by signal 9"));
  const megalith_result *result = megalith_request_result(request);
  assert_non_null(result);
  assert_int_equal(result->finish, MEGALITH_FINISH_FAILED);
  assert_non_null(strstr(result->error, "rank 1 of 2"));
  assert_int_equal(megalith_engine_check(engine, &error), MEGALITH_ERROR_INTERNAL);
  assert_non_null(strstr(error.text, "the engine has failed: rank 1 of 2"));
  const megalith_request_options again = {.size = sizeof again, .text = "x"};
  assert_int_equal(megalith_engine_submit(engine, &again, NULL, &error), MEGALITH_ERROR_INTERNAL);
  megalith_engine_destroy(engine);
  assert_true(mgl_clock_ns() - began_ns < END_NS);
  megalith_request_release(request);
  check_no_child();
}

// In a child of its own: stops its parent until a process has ended, whose parent that is, too.
static void stop_parent_until_end_of(pid_t rank) {
  char path[64], stat[64];
  const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
  const pid_t parent = getppid();
  (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)rank);
  (void)kill(parent, SIGSTOP);
  for (bool ended = false; !ended;) {
    (void)nanosleep(&pause, NULL);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? 0 : read(fd, stat, sizeof stat - 1);
    stat[bytes < 0 ? 0 : bytes] = 0;
    ended = fd < 0 || strstr(stat, ") Z") != NULL;
    (void)close(fd);
  }
  (void)kill(parent, SIGCONT);
  _exit(0);
}

// The others end without it then, and it tells why they did.
static void a_first_rank_that_stood_still_says_so(void **state) {
  (void)state;
  megalith_error error = {0};
  megalith_engine *engine = create((megalith_engine_options){.threads = 1, .ranks = 2});
  const pid_t rank = first_child();
  const pid_t stopper = fork();
  assert_true(stopper >= 0);
  if (stopper == 0) {
    stop_parent_until_end_of(rank);
  }
  assert_int_equal(waitpid(stopper, NULL, 0), stopper);
  (void)usleep(200 * 1000);  // for the look at the others
  megalith_status status = megalith_engine_check(engine, &error);
  if (status == MEGALITH_OK) {
    megalith_request *request = submit_question(engine, 0, (megalith_request_options){0});
    status = megalith_engine_run(engine, &error);
    megalith_request_release(request);
  }
  assert_int_equal(status, MEGALITH_ERROR_INTERNAL);
  if (strstr(error.text, "rank 1 of 2 ended: rank 0 gave no sign of life for 1 s") == NULL) {
    fail_msg("%s", error.text);
  }
  megalith_engine_destroy(engine);
  check_no_child();
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  refuse_engine((megalith_engine_options){.ranks = 9}, MEGALITH_ERROR_LIMIT,
                "ranks: expected at most 8, found 9");
  refuse_engine((megalith_engine_options){.ranks = 3}, MEGALITH_ERROR_UNSUPPORTED,
                "its 4 heads cannot be cut into 3 equal parts");
  // On several GPUs, of which there are not so many: no process is left of those that were started.
  megalith_engine *engine = NULL;
  const megalith_engine_options gpus = {.size = sizeof gpus, .ranks = 2, .device = "cuda:90"};
  assert_int_not_equal(megalith_engine_create(model, &gpus, &engine, NULL), MEGALITH_OK);
  assert_null(engine);
  check_no_child();
  // Nor does rank 0 wait for others when there is no GPU for it.
  const uint64_t began_ns = mgl_clock_ns();
  const megalith_engine_options met = {
      .size = sizeof met, .ranks = 2, .meeting = "test_api_ranks", .device = "cuda:90"};
  assert_int_not_equal(megalith_engine_create(model, &met, &engine, NULL), MEGALITH_OK);
  assert_null(engine);
  assert_true(mgl_clock_ns() - began_ns < 10 * (uint64_t)END_NS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answers_are_those_of_one),
      cmocka_unit_test(a_rank_that_ends_is_the_engines_end),
      cmocka_unit_test(a_first_rank_that_stood_still_says_so),
      cmocka_unit_test(what_cannot_be_is_refused),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
