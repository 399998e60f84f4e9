// The feed of a running launch: how long a token takes from being sampled to being seen on the
// host, and a request from being sent to its first token; what an idle launch costs; that it
// leaves.
//
// Both clocks are brought together by a kernel that answers the host with its timer: the shortest
// of many rounds bounds the error of each pair by half of what it took. They drift apart by 10 to
// 20 us a second, so that is done before and after each run, and a line goes through both.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/cuda/cuda_code.h"
#include "gpu/gpu_bench.h"

enum {
  ROUNDS = 2000,
  PROMPT = 64,
  NEW = 400,
  REQUESTS = 24,
  CROWD = 256,  // requests whose iterations are of the wide class
  CROWD_NEW = 60,
  MOST = CROWD * CROWD_NEW,
  LATE_US = 100,
};

_Static_assert(REQUESTS *NEW <= MOST, "room for all tokens");

// --- clocks --------------------------------------------------------------------------------------

typedef struct clocks {
  double offset_ns;  // the host's minus the device's
  double error_ns;
  uint64_t at_ns;  // the host's time
} clocks;

static void must(const gpu_bench *bench, mgl_cu_result code, const char *what) {
  mgl_error err = {0};
  gpu_must(mgl_cuda_check(&bench->device.driver, code, what, &err), &err);
}

static clocks compare_clocks(gpu_bench *bench) {
  const mgl_cuda_driver *driver = &bench->device.driver;
  const mgl_cuda_shape shape = {.head_dim = 128, .group = 1};
  unsigned flags = MGL_CU_HOST_ALLOC_PORTABLE | MGL_CU_HOST_ALLOC_MAPPED;
  mgl_cuda_code code;
  mgl_error err = {0};
  void *module, *function, *pinned;
  mgl_cu_ptr at;
  uint32_t rounds = ROUNDS;
  clocks out = {.error_ns = 1e12};
  gpu_must(mgl_cuda_code_get(&bench->device, "kernels/cuda/planner.cu", &shape, "mgl_answer_clock",
                             &code, &err),
           &err);
  must(bench, driver->module_load(&module, code.cubin), "module_load");
  must(bench, driver->module_function(&function, module, "mgl_answer_clock"), "module_function");
  mgl_free(code.cubin);
  must(bench, driver->host_alloc(&pinned, 64, flags), "host_alloc");
  must(bench, driver->host_address(&at, pinned, 0), "host_address");
  memset(pinned, 0, 64);
  _Atomic uint64_t *words = pinned;  // what is asked, what is answered, the device's timer
  void *parameters[] = {&at, &rounds};
  must(bench, driver->launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "launch");
  for (uint64_t i = 1; i <= rounds; i++) {
    uint64_t before = mgl_clock_ns();
    atomic_store_explicit(&words[0], i, memory_order_release);
    while (atomic_load_explicit(&words[1], memory_order_acquire) != i) {
    }
    uint64_t after = mgl_clock_ns();
    double took = (double)(after - before);
    if (took / 2 < out.error_ns) {
      uint64_t device = atomic_load_explicit(&words[2], memory_order_relaxed);
      out.error_ns = took / 2;
      out.offset_ns = (double)before + took / 2 - (double)device;
    }
  }
  out.at_ns = mgl_clock_ns();
  must(bench, driver->context_synchronize(), "context_synchronize");
  must(bench, driver->host_free(pinned), "host_free");
  must(bench, driver->module_unload(module), "module_unload");
  return out;
}

// --- a launch ------------------------------------------------------------------------------------

typedef struct feed_test {
  gpu_bench *bench;
  mgl_cuda_program *program;
  clocks clocks;         // before the run
  double most_error_ns;  // of any of them
  int32_t prompt[PROMPT];
  mgl_cuda_request request;
  uint32_t requests;
  uint32_t sent, over;
  uint32_t wanted;   // that may be sent now
  uint64_t gap_ns;   // between the end of one and the next, with nothing to do
  uint64_t next_ns;  // when to send
  uint64_t sent_ns[CROWD];
  double first_us[CROWD];  // from sending to the first token
  double late_us[MOST];    // of each token, by the clocks before the run
  uint64_t heard_ns[MOST];
  uint32_t late_count;
  uint64_t leave_ns;  // when it was told to leave
} feed_test;

static void on_token(void *context, const mgl_cuda_token *token) {
  feed_test *t = context;
  uint64_t now = mgl_clock_ns();
  // The device's low half, completed: it was less than four seconds ago.
  uint32_t device_now = (uint32_t)(uint64_t)((double)now - t->clocks.offset_ns);
  int32_t late = (int32_t)(device_now - token->sampled_ns);
  if (t->late_count < MOST) {
    t->heard_ns[t->late_count] = now;
    t->late_us[t->late_count++] = (double)late / 1e3;
  }
  if (t->first_us[token->request] == 0) {
    t->first_us[token->request] = (double)(now - t->sent_ns[token->request]) / 1e3;
  }
  if (token->state != MGL_CUDA_SEQUENCE_RUNNING) {
    t->over++;
    t->next_ns = now + t->gap_ns;
  }
}

static const mgl_cuda_request *next(void *context) {
  feed_test *t = context;
  if (t->sent == t->wanted || mgl_clock_ns() < t->next_ns) {
    return NULL;
  }
  t->request.number = t->sent;
  t->sent_ns[t->sent++] = mgl_clock_ns();
  return &t->request;
}

static mgl_feed_end tend(void *context) {
  feed_test *t = context;
  if (t->gap_ns > 0 && t->over == t->sent && t->sent < t->requests) {
    t->wanted = t->sent + 1;
  }
  if (t->over < t->requests) {
    return MGL_FEED_OPEN;
  }
  t->leave_ns = t->leave_ns == 0 ? mgl_clock_ns() : t->leave_ns;
  return MGL_FEED_LEAVE;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

// What the clocks have drifted apart during the run is no latency.
static void correct_drift(feed_test *t) {
  clocks after = compare_clocks(t->bench);
  double drift =
      (after.offset_ns - t->clocks.offset_ns) / (double)(after.at_ns - t->clocks.at_ns);  // ns a ns
  for (uint32_t i = 0; i < t->late_count; i++) {
    t->late_us[i] -= drift * (double)(t->heard_ns[i] - t->clocks.at_ns) / 1e3;
  }
  double error_ns = after.error_ns > t->clocks.error_ns ? after.error_ns : t->clocks.error_ns;
  t->most_error_ns = error_ns > t->most_error_ns ? error_ns : t->most_error_ns;
}

static void run_feed(feed_test *t, const char *name, uint32_t requests, uint32_t generate,
                     uint64_t gap_ns) {
  static const mgl_cuda_request_source source = {.next = next, .tend = tend};
  mgl_error err = {0};
  t->request =
      (mgl_cuda_request){.prompt = t->prompt, .prompt_count = PROMPT, .max_new_tokens = generate};
  t->requests = requests;
  t->sent = t->over = t->late_count = 0;
  t->wanted = gap_ns > 0 ? 1 : requests;
  t->gap_ns = gap_ns;
  t->clocks = compare_clocks(t->bench);
  t->next_ns = gap_ns > 0 ? mgl_clock_ns() + gap_ns : 0;
  t->leave_ns = 0;
  memset(t->first_us, 0, sizeof t->first_us);
  mgl_cuda_generate job = {.source = &source, .on_token = on_token, .context = t};
  uint64_t start = mgl_clock_ns();
  gpu_must(mgl_cuda_program_generate(t->program, &job, &err), &err);
  uint64_t end = mgl_clock_ns();
  correct_drift(t);
  uint32_t n = t->late_count;
  uint32_t in_time = 0;
  for (uint32_t i = 0; i < n; i++) {
    in_time += t->late_us[i] <= LATE_US;
  }
  qsort(t->late_us, n, sizeof *t->late_us, compare);
  qsort(t->first_us, requests, sizeof *t->first_us, compare);
  printf("| %s | %u | %.1f | %.1f | %.1f | %.1f | %.0f | %.0f | %.2f | %.1f |\n", name, n,
         t->late_us[0], t->late_us[n / 2], t->late_us[n * 99 / 100], t->late_us[n - 1],
         t->first_us[requests / 2], t->first_us[requests - 1], (double)(end - t->leave_ns) / 1e6,
         (double)(end - start) / 1e6);
  (void)fflush(stdout);
  gpu_check(t->bench, n == requests * generate && in_time * 100 >= n * 99,
            "%s: %u of %u tokens were seen within %d us of being sampled", name, in_time, n,
            LATE_US);
}

// --- idle ----------------------------------------------------------------------------------------

static void show_power(const char *when) {
  char line[64] = "unknown";
  FILE *pipe = popen("nvidia-smi --query-gpu=power.draw --format=csv,noheader 2>/dev/null", "r");
  if (pipe != NULL) {
    if (fgets(line, sizeof line, pipe) != NULL) {
      line[strcspn(line, "\n")] = 0;
    }
    (void)pclose(pipe);
  }
  printf("Power %s: %s.\n", when, line);
}

typedef struct idle_test {
  uint64_t start_ns;
  bool shown;
} idle_test;

static const mgl_cuda_request *nothing(void *context) {
  (void)context;
  return NULL;
}

static mgl_feed_end wait_idle(void *context) {
  idle_test *t = context;
  uint64_t ns = mgl_clock_ns() - t->start_ns;
  if (ns > UINT64_C(2000000000) && !t->shown) {
    t->shown = true;
    show_power("of a launch that has had nothing to do for two seconds");
  }
  return t->shown ? MGL_FEED_CLOSED : MGL_FEED_OPEN;
}

static void run_idle(feed_test *t) {
  static const mgl_cuda_request_source source = {.next = nothing, .tend = wait_idle};
  mgl_error err = {0};
  idle_test idle = {.start_ns = mgl_clock_ns()};
  mgl_cuda_generate job = {.source = &source, .context = &idle};
  job.launch.stall_ns = UINT64_C(500000000);
  gpu_must(mgl_cuda_program_generate(t->program, &job, &err), &err);
  gpu_check(t->bench, idle.shown, "a launch without work stays, longer than a stall, and ends");
}

// All decode together, in iterations of the wide class.
static void run_crowd(feed_test *t, const gpu_model *model) {
  t->program = gpu_program(t->bench, model,
                           (mgl_cuda_program_options){.sizes.limits.tokens = 2048,
                                                      .sizes.sequences = CROWD,
                                                      .sizes.limits.pages_per_sequence = 8});
  run_feed(t, "256 at once", CROWD, CROWD_NEW, 0);
  mgl_cuda_program_destroy(t->program);
}

void gpu_feed_run(gpu_bench *bench, int count, char **arguments) {
  char name[] = "tiny";
  char *none[] = {name};
  feed_test *t = gpu_must_alloc(1, sizeof *t);
  gpu_model model;
  t->bench = bench;
  gpu_model_open(count > 0 ? arguments[0] : none[0], &model);
  printf("\n## Feed: %s\n\n", model.name);
  show_power("before any launch");
  t->program = gpu_program(
      bench, &model,
      (mgl_cuda_program_options){
          .sizes.limits.tokens = 64, .sizes.sequences = 16, .sizes.limits.pages_per_sequence = 40});
  for (uint32_t i = 0; i < PROMPT; i++) {
    t->prompt[i] = gpu_model_token(&model, i);
  }
  printf(
      "| requests | tokens | us from sampled to seen: least | median | p99 | most | us to the "
      "first "
      "token: median | most | ms to leave | ms in all "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  run_feed(t, "at once", REQUESTS, NEW, 0);
  run_feed(t, "one by one", REQUESTS, 40, 1);
  run_feed(t, "after 20 ms of nothing", REQUESTS, 10, 20000000);
  mgl_cuda_program *narrow = t->program;
  if (bench->device.major == 9 && bench->device.minor == 0) {
    run_crowd(t, &model);
  }
  printf("\nClocks are compared to within %.1f us.\n", t->most_error_ns / 1e3);
  t->program = narrow;
  run_idle(t);
  mgl_cuda_program_destroy(t->program);
  gpu_model_close(&model);
  mgl_free(t);
}
