// One model over several ranks against transformers, on the models of tests/data/reference that can
// be cut, by the bar of support/reference_run.h; the same bits on all ranks, from run to run, and
// however their tasks are launched; and runs whose ranks end, or stand still, at any moment.
// Sanitizers see one process each, so their trees take fewer numbers of ranks, one model of three,
// and end the first and the last rank only; MGL_TEST_LONG runs what the release tree does.
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
// cmocka.h needs four of the above
#include <cmocka.h>

#include "base/clock.h"
#include "engine/runner.h"
#include "model/model_folder.h"
#include "support/must.h"
#include "support/reference_model.h"
#include "support/reference_run.h"

enum { LEAST_MODELS = 4, LEAST_MIXTURES = 5, CHUNK = 7, PROMPT = 12, VOCAB = 320 };

#ifdef MGL_TEST_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static bool is_thinned(void) {
  return SANITIZED && getenv("MGL_TEST_LONG") == NULL;
}

// From one number of ranks to the next: all powers of two, or the fewest and the most.
static uint32_t next_ranks(uint32_t ranks) {
  return is_thinned() ? ranks * (MGL_MAX_RANKS / 2) : ranks * 2;
}

// False if the model cannot be cut into so many parts.
static bool judge(const char *name, uint32_t ranks, bool *fine) {
  static const mgl_mode mega = MGL_MODE_MEGA;
  mgl_reference_model of;
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  mgl_reference_model_open(&of, MGL_TEST_DATA "/reference", name, 1);
  mgl_build options = mgl_reference_build(&of.reference);
  options.threads = 1;
  options.ranks = ranks;
  mgl_status status = mgl_runner_create(&of.model, &options, &runner, &err);
  if (status == MGL_OK) {
    char figures[256];
    mgl_reference_run run;
    mgl_reference_run_open(&run, &of, runner, &mega, 1);
    mgl_reference_verdict verdict = mgl_reference_run_judge(&run, CHUNK);
    mgl_reference_verdict_print(&verdict, &of.reference, figures, sizeof figures);
    print_message("%-25s %u ranks: %s\n", name, ranks, figures);
    *fine = *fine && verdict.fine;
    mgl_reference_run_close(&run);
  } else {
    assert_int_equal(status, MGL_ERR_UNSUPPORTED);
    print_message("%-25s not cut: %s\n", name, err.text);
  }
  mgl_runner_destroy(runner);
  mgl_reference_model_close(&of);
  return status == MGL_OK;
}

static void models_stay_within_the_bar(void **state) {
  (void)state;
  bool fine = true;
  const size_t stride = is_thinned() ? 3 : 1;
  for (uint32_t ranks = 2; ranks <= 4; ranks = next_ranks(ranks)) {
    uint32_t models = 0;
    uint32_t mixtures = 0;
    uint32_t with_sinks = 0;
    for (size_t i = 0; i < MGL_REFERENCE_COUNT; i += stride) {
      const char *name = MGL_REFERENCE_NAMES[i];
      if (strstr(name, "3200") == NULL && judge(name, ranks, &fine)) {
        models++;
        mixtures += strstr(name, "moe") != NULL || strstr(name, "mixtral") != NULL;
        with_sinks += strstr(name, "oss") != NULL;
      }
    }
    assert_true(models >= (is_thinned() ? LEAST_MODELS / 2 : LEAST_MODELS));
    if (!is_thinned() && ranks == 2) {
      assert_true(mixtures >= LEAST_MIXTURES && with_sinks > 0);
    }
  }
  assert_true(fine);
}

// --- the same bits -------------------------------------------------------------------------------

static mgl_config config_of(void) {
  return (mgl_config){.family = MGL_FAMILY_QWEN2,
                      .hidden_size = 96,
                      .intermediate_size = 192,
                      .layer_count = 3,
                      .head_count = 8,
                      .kv_head_count = 2,
                      .head_dim = 32,
                      .vocab_size = VOCAB,
                      .context_tokens = 64,
                      .rms_norm_eps = 1e-6,
                      .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                      .qkv_bias = true,
                      .dtype = MGL_DTYPE_BF16};
}

enum { HIDDEN = 96, END_NS = 2000000000 };

static const int32_t PAGES[] = {2, 0, 1, 3};

static void start(const mgl_config *config, mgl_build options, mgl_runner **runner,
                  mgl_plan **plan) {
  static mgl_model_folder folder;  // which the runner reads
  folder = (mgl_model_folder){.config = *config};
  options.sequence_tokens = 64;
  options.weights = MGL_WEIGHTS_DUMMY;
  options.seed = 5;
  options.sequences = 1;
  MUST(mgl_runner_create(&folder, &options, runner, &err));
  MUST(mgl_plan_create(mgl_runner_limits(*runner), plan, &err));
  MUST(mgl_runner_prepare(*runner, MGL_MODE_MEGA, &err));
}

// Step 0 is a prompt, step 1 a token behind it.
static void make_plan(mgl_plan *plan, uint32_t step) {
  int32_t tokens[PROMPT + 1];
  for (int i = 0; i <= PROMPT; i++) {
    tokens[i] = (i * 37 + 11) % VOCAB;
  }
  mgl_plan_clear(plan);
  mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = step == 0 ? tokens : tokens + PROMPT,
                                       .token_count = step == 0 ? PROMPT : 1,
                                       .position = step == 0 ? 0 : PROMPT,
                                       .pages = PAGES,
                                       .page_count = 4,
                                       .logits = MGL_LOGITS_LAST});
}

// The output of the last sum over the ranks: what all layers have made.
static const char *last_sum(const mgl_graph *program) {
  const char *name = NULL;
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    const bool scattered = i > 1 && op[-1].kind == MGL_OP_ALL_GATHER && op->kind == MGL_OP_ADD;
    if (op->kind == MGL_OP_ALL_REDUCE || scattered) {
      name = program->tensors[op->output].name;
    }
  }
  assert_non_null(name);
  return name;
}

// All ranks have the logits of rank 0, of which each has made its part, and the same sums. Logits
// may take the storage of the first sums.
static void check_ranks(mgl_runner *runner, uint32_t ranks, uint32_t tokens, const float *logits) {
  const mgl_device_look *look = &mgl_runner_table(runner)->look;
  void *model = mgl_runner_model(runner);
  const char *sum = last_sum(look->program(model));
  const size_t part = VOCAB / ranks;
  const size_t count = (size_t)tokens * HIDDEN;
  const size_t kept = count > 2 * VOCAB ? 2 * VOCAB : count;
  float sums[PROMPT * HIDDEN];
  float found[PROMPT * HIDDEN];
  MUST(look->read_rank(model, 0, tokens, sum, sums, count, &err));
  for (uint32_t rank = 0; rank < ranks; rank++) {
    MUST(look->read_rank(model, rank, tokens, "logits", found, VOCAB, &err));
    assert_memory_equal(found, logits, VOCAB * sizeof *found);
    MUST(look->read_rank(model, rank, tokens, "logits.part", found, part, &err));
    assert_memory_equal(found, logits + rank * part, part * sizeof *found);
    if (kept < count) {
      MUST(look->read_rank(model, rank, tokens, sum, found, count, &err));
      assert_memory_equal(found + kept, sums + kept, (count - kept) * sizeof *found);
    }
  }
  assert_int_equal(look->read_rank(model, ranks, tokens, sum, sums, 1, NULL), MGL_ERR_ARGUMENT);
}

// Logits of both steps, in two runs of the megakernel, and again in two more.
static void compute(const mgl_config *config, mgl_build options, float out[2 * VOCAB]) {
  mgl_runner *runner = NULL;
  mgl_plan *plan = NULL;
  start(config, options, &runner, &plan);
  for (uint32_t turn = 0; turn < 4; turn++) {
    const uint32_t step = turn % 2;
    mgl_logits logits;
    make_plan(plan, step);
    MUST(mgl_runner_run(runner, MGL_MODE_MEGA, plan, &logits, &err));
    if (turn >= 2) {
      assert_memory_equal(logits.rows, out + (size_t)step * VOCAB, VOCAB * sizeof *out);
    }
    memcpy(out + (size_t)step * VOCAB, logits.rows, VOCAB * sizeof *out);
    if (options.ranks > 1) {
      check_ranks(runner, options.ranks, step == 0 ? PROMPT : 1, logits.rows);
    }
  }
  mgl_plan_destroy(plan);
  mgl_runner_destroy(runner);
}

// Sums are in another order.
static void check_close(const float found[2 * VOCAB], const float one[2 * VOCAB], float bound) {
  for (size_t i = 0; i < 2 * VOCAB; i++) {
    assert_true(found[i] > one[i] - bound && found[i] < one[i] + bound);
  }
}

// The same bits however it is launched, close to those of one rank.
static void check_bits(const mgl_config *config, uint32_t most_ranks, float bound) {
  static const mgl_build builds[] = {
      {.threads = 1},
      {.threads = 3},
      {.threads = 2, .launch = MGL_LAUNCH_JIT},
      {.threads = 2, .launch = MGL_LAUNCH_JIT, .schedulers = 1},
      {.threads = 2, .launch = MGL_LAUNCH_JIT, .schedulers = 2},
      {.threads = 2, .launch = MGL_LAUNCH_AOT},
      {.threads = 2, .launch = MGL_LAUNCH_AOT, .coarse = true},
      {.threads = 2, .plain = true},
      {.threads = 1, .vocab_parallel = true},
      {.threads = 3, .reduce_scatter = true},
      {.threads = 2, .launch = MGL_LAUNCH_JIT, .vocab_parallel = true, .reduce_scatter = true},
      {.threads = 2, .plain = true, .reduce_scatter = true},
      {.threads = 1}};
  float one[2 * VOCAB];
  compute(config, builds[0], one);
  for (uint32_t ranks = 2; ranks <= most_ranks; ranks = next_ranks(ranks)) {
    float first[2 * VOCAB];
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++) {
      float found[2 * VOCAB];
      mgl_build options = builds[i];
      options.ranks = ranks;
      compute(config, options, found);
      if (i == 0) {
        memcpy(first, found, sizeof first);
      }
      assert_memory_equal(found, first, sizeof first);
    }
    check_close(first, one, bound);
  }
}

static void bits_are_those_of_all_ranks_runs_and_launches(void **state) {
  (void)state;
  const mgl_config config = config_of();
  check_bits(&config, MGL_MAX_RANKS, 0.05f);  // rounded to bf16 between ops
}

// Experts with biases and a clamped activation, and attention with sinks.
static mgl_config mixture_of(mgl_family family) {
  mgl_config config = config_of();
  config.family = family;
  config.dtype = MGL_DTYPE_F32;  // so that no rounding lets a token choose another expert
  config.qkv_bias = false;
  config.mixture = (mgl_mixture){
      .expert_count = 8, .slots = 3, .inner_size = 128, .renormalise = true, .scale = 1};
  if (family == MGL_FAMILY_GPT_OSS) {
    config.sinks = config.qkv_bias = config.output_bias = true;
    config.mixture.router_bias = config.mixture.expert_biases = true;
    config.mixture.limit = 7;
  }
  return config;
}

static void mixtures_have_the_bits_of_all_ranks(void **state) {
  (void)state;
  static const mgl_family families[] = {MGL_FAMILY_QWEN3_MOE, MGL_FAMILY_MIXTRAL,
                                        MGL_FAMILY_GPT_OSS};
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    const mgl_config config = mixture_of(families[i]);
    check_bits(&config, 4, 1e-4f);
  }
  mgl_config config = mixture_of(MGL_FAMILY_QWEN3_MOE);  // as Qwen2 has it: a shared one besides
  config.mixture.shared_size = 64;
  config.mixture.shared_gate = true;
  check_bits(&config, 2, 1e-4f);
}

// Each expert's codes are cut as those of other matrices, by rows and by columns.
static void codes_of_experts_are_cut(void **state) {
  (void)state;
  mgl_config config = mixture_of(MGL_FAMILY_GPT_OSS);
  float one[2 * VOCAB];
  config.quantization.method = MGL_QUANT_MXFP4;
  config.quantization.drawn = (mgl_form){.dtype = MGL_DTYPE_E2M1, .group = 32};
  compute(&config, (mgl_build){.threads = 1}, one);
  for (uint32_t ranks = 2; ranks <= 4; ranks *= 2) {
    float found[2 * VOCAB];
    compute(&config, (mgl_build){.threads = 2, .ranks = ranks}, found);
    check_close(found, one, 1e-4f);
  }
}

// Every kind of code, with scales of some columns and of whole rows, with offsets and without.
static void codes_are_cut_like_others(void **state) {
  (void)state;
  static const mgl_form forms[] = {{.dtype = MGL_DTYPE_E4M3, .group = MGL_FORM_WHOLE_ROW},
                                   {.dtype = MGL_DTYPE_I8, .group = MGL_FORM_WHOLE_ROW},
                                   {.dtype = MGL_DTYPE_I8, .group = 32, .offsets = true},
                                   {.dtype = MGL_DTYPE_I4, .group = 32},
                                   {.dtype = MGL_DTYPE_U4, .group = 16, .offsets = true},
                                   {.dtype = MGL_DTYPE_E2M1, .group = 16}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    // Beside integers x has 15 bits, of the largest of blocks that begin elsewhere where rows are
    // cut: a tenth of what is accepted of bf16 above.
    const float bound = mgl_code_is_integer(forms[i].dtype) ? 5e-3f : 1e-4f;
    mgl_config config = config_of();
    float one[2 * VOCAB];
    config.intermediate_size = 256;
    config.dtype = MGL_DTYPE_F32;  // of the others, and so of activations
    config.quantization.method = MGL_QUANT_COMPRESSED;
    config.quantization.drawn = forms[i];
    compute(&config, (mgl_build){.threads = 1}, one);
    for (uint32_t ranks = 2; ranks <= MGL_MAX_RANKS; ranks = next_ranks(ranks)) {
      float found[2 * VOCAB];
      compute(&config, (mgl_build){.threads = 2, .ranks = ranks}, found);
      check_close(found, one, bound);
    }
  }
}

// The bias of a sum over the ranks is added once.
static void biases_are_added_once(void **state) {
  (void)state;
  mgl_config config = config_of();
  float one[2 * VOCAB];
  config.family = MGL_FAMILY_LLAMA;
  config.output_bias = config.mlp_bias = true;
  config.dtype = MGL_DTYPE_F32;
  compute(&config, (mgl_build){.threads = 1}, one);
  for (uint32_t ranks = 2; ranks <= MGL_MAX_RANKS; ranks = next_ranks(ranks)) {
    float found[2 * VOCAB];
    compute(&config, (mgl_build){.threads = 2, .ranks = ranks}, found);
    check_close(found, one, 1e-4f);
  }
}

// --- ranks that end ------------------------------------------------------------------------------

typedef struct strike {
  pid_t pid;
  int signal;
  long delay_us;
  uint64_t struck_ns;
  mgl_plan *plan;
  uint64_t began_ns;
} strike;

static void *hit(void *context) {
  strike *s = context;
  (void)nanosleep(&(struct timespec){.tv_nsec = s->delay_us * 1000}, NULL);
  s->struck_ns = mgl_clock_ns();
  assert_int_equal(kill(s->pid, s->signal), 0);
  return NULL;
}

// The same plan, until the run fails; for far longer than it may take to.
static const mgl_plan *go_on(void *context, const mgl_logits *logits) {
  const strike *s = context;
  (void)logits;
  return mgl_clock_ns() - s->began_ns < 10 * (uint64_t)END_NS ? s->plan : NULL;
}

// The process of a rank: its children are in the order in which they were made.
static pid_t process_of(uint32_t rank) {
  char path[64];
  int pid = 0;
  (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  for (uint32_t i = 0; i < rank; i++) {
    assert_int_equal(fscanf(file, "%d", &pid), 1);
  }
  (void)fclose(file);
  return (pid_t)pid;
}

static void end_one(uint32_t ranks, uint32_t rank, int number, long delay_us) {
  mgl_runner *runner = NULL;
  strike s = {.signal = number, .delay_us = delay_us};
  mgl_error err = {0};
  char text[64];
  pthread_t thread;
  const mgl_config config = config_of();
  start(&config, (mgl_build){.threads = 1, .ranks = ranks}, &runner, &s.plan);
  make_plan(s.plan, 0);
  s.pid = process_of(rank);
  s.began_ns = mgl_clock_ns();
  assert_int_equal(pthread_create(&thread, NULL, hit, &s), 0);
  const mgl_status status = mgl_runner_loop(runner, MGL_MODE_MEGA, go_on, &s, &err);
  const uint64_t ended_ns = mgl_clock_ns();
  (void)pthread_join(thread, NULL);
  assert_int_equal(status, MGL_ERR_INTERNAL);
  (void)snprintf(text, sizeof text, "rank %u of %u %s", rank, ranks,
                 number == SIGKILL ? "was ended by signal 9" : "gave no sign of life for 1 s");
  if (strstr(err.text, text) != err.text) {
    fail_msg("expected \"%s\", found \"%s\"", text, err.text);
  }
  mgl_plan *again = s.plan;  // and from then on nothing runs
  mgl_logits logits;
  assert_int_equal(mgl_runner_run(runner, MGL_MODE_MEGA, again, &logits, &err), MGL_ERR_INTERNAL);
  mgl_plan_destroy(s.plan);
  mgl_runner_destroy(runner);
  const uint64_t gone_ns = mgl_clock_ns();
  print_message("%u ranks, signal %2d to rank %u after %5.1f ms: ended in %4.0f ms, all in %4.0f\n",
                ranks, number, rank, (double)delay_us / 1e3, (double)(ended_ns - s.struck_ns) / 1e6,
                (double)(gone_ns - s.struck_ns) / 1e6);
  assert_true(gone_ns - s.struck_ns < END_NS);
  assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
  assert_int_equal(errno, ECHILD);
}

static void a_rank_that_ends_ends_the_run(void **state) {
  (void)state;
  long delay_us = 137;
  for (uint32_t ranks = 2; ranks <= MGL_MAX_RANKS; ranks = next_ranks(ranks)) {
    for (uint32_t rank = 1; rank < ranks; rank++) {
      if (is_thinned() && rank > 1 && rank + 1 < ranks) {
        continue;
      }
      delay_us = delay_us * 29 % 40009;
      end_one(ranks, rank, SIGKILL, delay_us);
    }
    end_one(ranks, ranks / 2, SIGSTOP, delay_us);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bits_are_those_of_all_ranks_runs_and_launches),
      cmocka_unit_test(mixtures_have_the_bits_of_all_ranks),
      cmocka_unit_test(codes_are_cut_like_others),
      cmocka_unit_test(codes_of_experts_are_cut),
      cmocka_unit_test(biases_are_added_once),
      cmocka_unit_test(a_rank_that_ends_ends_the_run),
      cmocka_unit_test(models_stay_within_the_bar),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
