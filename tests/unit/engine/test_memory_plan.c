// The memory plan against what is then taken: on the CPU, pages by the counter of base/alloc.h and
// the heap by malloc's own figures, with an engine that runs; on a GPU, what the (fake) driver
// gives out. And the share of the memory that bounds it.
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/build.h"
#include "device/cpu/cpu_shorts.h"
#include "device/cpu/cpu_weights.h"
#include "engine/engine.h"
#include "graph/family.h"
#include "support/fake_cuda.h"

static mgl_config config_of(uint32_t hidden, uint32_t layers, uint32_t vocab) {
  return (mgl_config){.family = MGL_FAMILY_QWEN2,
                      .hidden_size = hidden,
                      .intermediate_size = 2 * hidden,
                      .layer_count = layers,
                      .head_count = hidden / 32,
                      .kv_head_count = 2,
                      .head_dim = 32,
                      .vocab_size = vocab,
                      .context_tokens = 4096,
                      .rms_norm_eps = 1e-6,
                      .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                      .qkv_bias = true,
                      .dtype = MGL_DTYPE_BF16};
}

static uint64_t heap_bytes(void) {
  struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

static bool ignore_token(void *context, const mgl_generated_token *token) {
  (void)context;
  (void)token;
  return true;
}

// Generates a few tokens, so that everything that is made at first use is made.
static void use(mgl_runner *runner, mgl_mode mode) {
  mgl_error err = {0};
  mgl_engine *engine = NULL;
  mgl_engine_options options = {.mode = mode};
  const int32_t prompt[] = {1, 2, 3};
  mgl_request request = {
      .prompt = prompt, .prompt_count = 3, .max_new_tokens = 3, .sampling = {.top_p = 1}};
  uint32_t number = 0;
  assert_int_equal(mgl_engine_create(runner, &options, &engine, &err), MGL_OK);
  assert_int_equal(mgl_engine_submit(engine, &request, &number, &err), MGL_OK);
  assert_int_equal(mgl_engine_run(engine, ignore_token, NULL, NULL, &err), MGL_OK);
  mgl_engine_destroy(engine);
}

static void within_3_percent(uint64_t planned, uint64_t found) {
  double ratio = (double)planned / (double)found;
  if (!(ratio > 0.97 && ratio < 1.03)) {
    fail_msg("planned %llu bytes, found %llu", (unsigned long long)planned,
             (unsigned long long)found);
  }
}

static void the_cpu_takes_what_was_planned(void **state) {
  static const struct {
    uint32_t hidden, layers, vocab, sequences, context;
    uint64_t pool_tokens;
    uint32_t iteration_tokens;
  } cases[] = {
      {256, 4, 4000, 4, 1024, 0, 0},     // KV memory and weights
      {512, 6, 30000, 32, 64, 0, 0},     // activations: logits of many rows
      {64, 2, 512, 2, 4096, 100000, 0},  // nearly nothing but KV memory
      {1024, 3, 2000, 1, 64, 0, 0},      // nearly nothing but weights
      {512, 2, 30000, 8, 64, 0, 2048},   // activations of many tokens, logits of few
      {256, 2, 500, 1, 64, 0, 700},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (uint32_t threads = 1; threads <= 2; threads++) {
      mgl_model_folder folder = {.config =
                                     config_of(cases[i].hidden, cases[i].layers, cases[i].vocab)};
      mgl_build options = {.threads = threads,
                           .sequences = cases[i].sequences,
                           .sequence_tokens = cases[i].context,
                           .pool_tokens = cases[i].pool_tokens,
                           .iteration_tokens = cases[i].iteration_tokens,
                           .weights = MGL_WEIGHTS_DUMMY};
      mgl_sizes plan;
      mgl_runner *runner = NULL;
      mgl_error err = {0};
      uint64_t pages = mgl_pages_live_bytes();
      uint64_t heap = heap_bytes();
      assert_int_equal(mgl_runner_measure(&folder, &options, &plan, &err), MGL_OK);
      assert_int_equal(mgl_pages_live_bytes(), pages);  // planning takes nothing
      assert_int_equal(plan.workers, threads);
      assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_OK);
      assert_int_equal(plan.page_count, mgl_runner_page_count(runner));
      use(runner, MGL_MODE_EAGER);
      use(runner, MGL_MODE_MEGA);
      within_3_percent(mgl_sizes_total(&plan),
                       mgl_pages_live_bytes() - pages + heap_bytes() - heap);
      mgl_runner_destroy(runner);
      assert_int_equal(mgl_pages_live_bytes(), pages);
    }
  }
}

static void mapped_weights_are_in_their_files(void **state) {
  mgl_model_folder folder = {.config = config_of(256, 4, 4000)};
  mgl_build options = {
      .threads = 1, .sequences = 4, .sequence_tokens = 64, .weights = MGL_WEIGHTS_DUMMY};
  mgl_sizes dummy;
  mgl_sizes mapped;
  mgl_error err = {0};
  (void)state;
  assert_int_equal(mgl_runner_measure(&folder, &options, &dummy, &err), MGL_OK);
  options.weights = MGL_WEIGHTS_MAPPED;  // without a checkpoint: the config is enough
  assert_int_equal(mgl_runner_measure(&folder, &options, &mapped, &err), MGL_OK);
  assert_int_equal(dummy.mapped_bytes, 0);
  assert_int_equal(mapped.weight_bytes + mapped.mapped_bytes, dummy.weight_bytes);
  assert_true(mapped.mapped_bytes > 100 * mapped.weight_bytes);
  assert_int_equal(mgl_sizes_total(&mapped), mgl_sizes_total(&dummy));
}

static void a_share_bounds_everything(void **state) {
  mgl_model_folder folder = {.config = config_of(256, 4, 4000)};
  mgl_build options = {.threads = 1,
                       .sequences = 16,
                       .sequence_tokens = 4096,
                       .weights = MGL_WEIGHTS_DUMMY,
                       .memory_share = 0.5};
  mgl_sizes plan;
  mgl_error err = {0};
  (void)state;
  assert_int_equal(mgl_runner_measure(&folder, &options, &plan, &err), MGL_OK);
  assert_int_equal(plan.page_count, 16 * 4096 / MGL_PAGE_TOKENS);  // no more than can be used
  // A share that leaves room for about 100 pages.
  uint64_t page_bytes = plan.kv_bytes_per_token * plan.limits.page_tokens;
  uint64_t others = mgl_sizes_total(&plan) - mgl_sizes_kv_bytes(&plan);
  mgl_sizes small = plan;
  double share = (double)(others + 100 * page_bytes + page_bytes / 2) / (double)plan.free_bytes;
  assert_int_equal(mgl_sizes_share(&small, share, &err), MGL_OK);
  assert_int_equal(small.page_count, 100);
  assert_true((double)mgl_sizes_total(&small) <= share * (double)plan.free_bytes);
  // What loading takes for a while must fit too, but is no part of the share.
  small = plan;
  small.loading_bytes = plan.free_bytes - others - 7 * page_bytes;
  assert_int_equal(mgl_sizes_share(&small, 1, &err), MGL_OK);
  assert_int_equal(small.page_count, 7);
  // None is left.
  small = plan;
  share = (double)(others + page_bytes / 2) / (double)plan.free_bytes;
  assert_int_equal(mgl_sizes_share(&small, share, &err), MGL_ERR_MEMORY);
  assert_non_null(strstr(err.text, "no memory for a KV page: weights take "));
  // A runner gets what was planned.
  mgl_runner *runner = NULL;
  options.memory_share = (double)(others + 50 * page_bytes) / (double)mgl_memory_available();
  assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_OK);
  assert_in_range(mgl_runner_page_count(runner), 25, 75);  // what is available changes
  use(runner, MGL_MODE_MEGA);
  mgl_runner_destroy(runner);
  options.memory_share = 1e-9;
  assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_ERR_MEMORY);
  assert_null(runner);
}

// Where half of the free memory suffices, all but experts is copied, else nothing.
static void auto_copies_what_every_token_reads(void **state) {
  mgl_model_folder folder = {.config = config_of(256, 4, 4000)};
  mgl_build options = {.threads = 1, .sequences = 4, .sequence_tokens = 64};
  mgl_graph *graph = NULL;
  mgl_sizes found, dummy;
  mgl_error err = {0};
  (void)state;
  assert_int_equal(options.weights, MGL_WEIGHTS_AUTO);
  assert_int_equal(mgl_runner_measure(&folder, &options, &found, &err), MGL_OK);
  assert_int_equal(found.source, MGL_WEIGHTS_AUTO);
  assert_int_equal(found.mapped_bytes, 0);
  folder.config.family = MGL_FAMILY_QWEN3_MOE;
  folder.config.mixture =
      (mgl_mixture){.expert_count = 64, .slots = 4, .inner_size = 96, .scale = 1};
  const uint64_t experts = UINT64_C(64) * 4 * 3 * 256 * 96 * mgl_dtype_bytes(folder.config.dtype);
  assert_int_equal(mgl_runner_measure(&folder, &options, &found, &err), MGL_OK);
  assert_int_equal(found.mapped_bytes, experts);
  assert_int_equal(found.cold_bytes, experts / 64 * 60);
  options.weights = MGL_WEIGHTS_DUMMY;
  assert_int_equal(mgl_runner_measure(&folder, &options, &dummy, &err), MGL_OK);
  assert_int_equal(found.weight_bytes + found.mapped_bytes, dummy.weight_bytes);

  assert_int_equal(mgl_family_build(&folder.config, NULL, &graph, &err), MGL_OK);
  const mgl_cpu_weight_sizes sizes = mgl_cpu_weights_measure(graph);
  const uint64_t copied = mgl_cpu_weights_page_bytes(&sizes, MGL_WEIGHTS_AUTO);
  assert_int_equal(copied + experts, sizes.matrix_bytes);
  assert_int_equal(mgl_cpu_weights_page_bytes(&sizes, MGL_WEIGHTS_MAPPED), 0);
  assert_int_equal(mgl_cpu_weights_page_bytes(&sizes, MGL_WEIGHTS_COPIED), sizes.matrix_bytes);
  const struct {
    mgl_weight_source asked;
    uint64_t free_bytes;
    mgl_weight_source settled;
    size_t shorts;  // of 800 bytes
  } cases[] = {{MGL_WEIGHTS_AUTO, 2 * copied, MGL_WEIGHTS_AUTO, 0},
               {MGL_WEIGHTS_AUTO, 2 * copied - 1, MGL_WEIGHTS_MAPPED, 0},
               {MGL_WEIGHTS_AUTO, (copied + 800 + 2) / 3 * 8, MGL_WEIGHTS_AUTO, 800},
               {MGL_WEIGHTS_AUTO, (copied + 800 - 3) / 3 * 8, MGL_WEIGHTS_AUTO, 0},
               {MGL_WEIGHTS_COPIED, UINT64_MAX, MGL_WEIGHTS_COPIED, 0},
               {MGL_WEIGHTS_MAPPED, UINT64_MAX, MGL_WEIGHTS_MAPPED, 0},
               {MGL_WEIGHTS_SHORT, 0, MGL_WEIGHTS_SHORT, 800},
               {MGL_WEIGHTS_DUMMY, UINT64_MAX, MGL_WEIGHTS_DUMMY, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const uint64_t free_bytes = cases[i].free_bytes;
    const mgl_weight_source settled = mgl_cpu_weights_settle(graph, cases[i].asked, free_bytes);
    assert_int_equal(settled, cases[i].settled);
    assert_int_equal(mgl_cpu_shorts_settle(graph, settled, 800, free_bytes), cases[i].shorts);
  }
  mgl_graph_destroy(graph);
}

// A mixture whose experts do not fit: those that one token chooses count, and the rest where there
// is room.
static void a_mixture_may_be_larger_than_memory(void **state) {
  mgl_model_folder folder = {.config = config_of(256, 4, 4000)};
  folder.config.family = MGL_FAMILY_QWEN3_MOE;
  folder.config.mixture =
      (mgl_mixture){.expert_count = 64, .slots = 4, .inner_size = 96, .scale = 1};
  mgl_build options = {.threads = 1, .sequences = 4, .sequence_tokens = 64};
  const uint64_t expert = UINT64_C(4) * 3 * 256 * 96 * mgl_dtype_bytes(folder.config.dtype);
  mgl_sizes plan;
  mgl_error err = {0};
  (void)state;
  options.weights = MGL_WEIGHTS_MAPPED;
  assert_int_equal(mgl_runner_measure(&folder, &options, &plan, &err), MGL_OK);
  assert_int_equal(plan.expert_bytes, 64 * expert);
  assert_int_equal(plan.cold_bytes, 60 * expert);
  assert_true(plan.mapped_bytes > 64 * expert);
  const uint64_t page_bytes = plan.kv_bytes_per_token * plan.limits.page_tokens;
  const uint64_t others = mgl_sizes_total(&plan) - mgl_sizes_kv_bytes(&plan);
  // Everything fits, and 3 pages; all but the cold experts fit, and 5 pages; not even that.
  const struct {
    uint64_t free_bytes;
    uint32_t pages;
  } cases[] = {{others + 3 * page_bytes, 3},
               {others - plan.cold_bytes + 5 * page_bytes, 5},
               {others - plan.cold_bytes + page_bytes / 2, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_sizes small = plan;
    small.free_bytes = cases[i].free_bytes;
    const mgl_status status = mgl_sizes_share(&small, 1, &err);
    assert_int_equal(status, cases[i].pages == 0 ? MGL_ERR_MEMORY : MGL_OK);
    if (status == MGL_OK) {
      assert_int_equal(small.page_count, cases[i].pages);
    }
  }
  // In memory nothing is cold.
  options.weights = MGL_WEIGHTS_DUMMY;
  assert_int_equal(mgl_runner_measure(&folder, &options, &plan, &err), MGL_OK);
  assert_int_equal(plan.cold_bytes, 0);
}

static void a_gpu_takes_what_was_planned(void **state) {
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  mgl_model_folder folder = {.config = config_of(256, 2, 512)};
  mgl_build options = {.sequences = 4,
                       .sequence_tokens = 512,
                       .weights = MGL_WEIGHTS_DUMMY,
                       .memory_share = 0.9,
                       .cuda = &cuda};
  mgl_sizes plan;
  mgl_error err = {0};
  (void)state;
  size_t free_bytes = fake.free_bytes;
  int live = fake.live;
  assert_int_equal(mgl_runner_measure(&folder, &options, &plan, &err), MGL_OK);
  assert_int_equal(fake.live, live);
  assert_int_equal(plan.free_bytes, free_bytes);
  assert_int_equal(plan.page_count, 4 * 512 / MGL_PAGE_TOKENS);
  assert_int_equal(plan.mapped_bytes, 0);
  mgl_runner *runner = NULL;
  assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_OK);
  assert_int_equal(mgl_runner_page_count(runner), plan.page_count);
  mgl_runner_destroy(runner);
  // Half of the KV memory fits.
  uint64_t kv = mgl_sizes_kv_bytes(&plan);
  fake.free_bytes = (size_t)(mgl_sizes_total(&plan) - kv / 2);
  options.memory_share = 1;
  assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_OK);
  assert_int_equal(mgl_runner_page_count(runner), plan.page_count / 2);
  mgl_runner_destroy(runner);
  fake.free_bytes = free_bytes;
  assert_int_equal(fake.live, live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_cpu_takes_what_was_planned),
      cmocka_unit_test(mapped_weights_are_in_their_files),
      cmocka_unit_test(auto_copies_what_every_token_reads),
      cmocka_unit_test(a_share_bounds_everything),
      cmocka_unit_test(a_mixture_may_be_larger_than_memory),
      cmocka_unit_test(a_gpu_takes_what_was_planned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
