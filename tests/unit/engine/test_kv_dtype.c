// A KV cache of 8 bits in a whole model, against the same model in f32 whose K and V are rounded and
// made f32 again before they are cached: the attention over the dequantised cache. Sizes, and where
// such a cache is refused.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/simd.h"
#include "engine/runner.h"
#include "graph/custom_op.h"
#include "support/fake_cuda.h"
#include "support/programs.h"

enum { TOKENS = 90, CHUNK = 13, VOCAB = 300, TEXT_BYTES = 1 << 16 };

// One layer: K and V are then the same bits whatever the cache is, and so are their codes.
static mgl_config one_layer(void) {
  mgl_config config = small_config(MGL_FAMILY_LLAMA);
  config.layer_count = 1;
  config.dtype = MGL_DTYPE_F32;
  return config;
}

// kv_round(x) scale=S: what a cache of codes with that scale gives back.
static void run_kv_round(const mgl_custom_op *op, const mgl_custom_call *call) {
  const mgl_tensor *out = &call->tensors[call->op->output];
  const size_t width = (size_t)mgl_tensor_row_elements(out);
  const float scale = (float)call->op->custom_attrs[0], *x = call->inputs[0];
  (void)op;
  for (size_t i = call->begin * width; i < call->end * width; i++) {
    ((float *)call->output)[i] = mgl_e4m3_to_f32(mgl_f32_to_e4m3(x[i] / scale)) * scale;
  }
}

static int register_op(void **state) {
  const mgl_custom_op op = {.name = "kv_round",
                            .input_count = 1,
                            .attr_count = 1,
                            .attr_names = {"scale"},
                            .run = run_kv_round};
  (void)state;
  mgl_error err = {0};
  return mgl_custom_op_register(&op, &err) == MGL_OK ? 0 : 1;
}

// Puts `with` in the place of `what`.
static void replace(char *text, const char *what, const char *with) {
  char *at = strstr(text, what);
  assert_non_null(at);
  size_t rest = strlen(at + strlen(what)) + 1;
  assert_true((size_t)(at - text) + strlen(with) + rest <= TEXT_BYTES);
  memmove(at + strlen(with), at + strlen(what), rest);
  memcpy(at, with, strlen(with));
}

static char *text_of(const mgl_config *config, mgl_kv_dtype dtype) {
  const mgl_quantization none = {0};
  mgl_graph *graph = build_program(config);
  mgl_text out = {0};
  char *text = calloc(1, TEXT_BYTES);
  MUST(mgl_graph_set_kv(graph, dtype, &none, NULL, &err));
  mgl_graph_print(graph, &out);
  assert_true(out.bytes < TEXT_BYTES);
  memcpy(text, out.data, out.bytes);
  mgl_text_free(&out);
  mgl_graph_destroy(graph);
  return text;
}

static float *run(const mgl_config *config, const char *program, mgl_kv_dtype dtype) {
  const mgl_model_folder folder = {.config = *config};
  const mgl_build build = {.threads = 2,
                           .iteration_tokens = CHUNK,
                           .sequences = 1,
                           .sequence_tokens = TOKENS,
                           .logit_rows = CHUNK,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = 7,
                           .kv_dtype = dtype,
                           .program = program};
  int32_t tokens[TOKENS], pages[(TOKENS - 1) / MGL_PAGE_TOKENS + 1];
  mgl_runner *runner = NULL;
  mgl_plan *plan = NULL;
  float *out = calloc((size_t)TOKENS * VOCAB, sizeof *out);
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  MUST(mgl_plan_create(mgl_runner_limits(runner), &plan, &err));
  for (int32_t i = 0; i < TOKENS; i++) {
    tokens[i] = i * 17 % VOCAB;
    pages[i / MGL_PAGE_TOKENS] = i / MGL_PAGE_TOKENS;
  }
  for (uint32_t at = 0, count; at < TOKENS; at += count) {
    mgl_logits logits = {0};
    count = TOKENS - at < CHUNK ? TOKENS - at : CHUNK;
    mgl_plan_clear(plan);
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens + at,
                                         .token_count = count,
                                         .position = at,
                                         .pages = pages,
                                         .page_count = sizeof pages / sizeof *pages,
                                         .logits = MGL_LOGITS_ALL});
    MUST(mgl_runner_run(runner, MGL_MODE_EAGER, plan, &logits, &err));
    memcpy(out + (size_t)at * VOCAB, logits.rows, (size_t)count * VOCAB * sizeof *out);
  }
  mgl_plan_destroy(plan);
  mgl_runner_destroy(runner);
  return out;
}

static double distance(const float *a, const float *b) {
  double most = 0;
  for (size_t i = 0; i < (size_t)TOKENS * VOCAB; i++) {
    assert_true(isfinite(a[i]) && isfinite(b[i]));
    most = fmax(most, fabs((double)a[i] - (double)b[i]));
  }
  return most;
}

// With scales 1, some in the middle, and such that most values are beyond the largest code.
static void check_scales(const char *k_scale, const char *v_scale) {
  const mgl_config config = one_layer();
  char line[256];
  char *codes = text_of(&config, MGL_KV_FP8), *rounded = text_of(&config, MGL_KV_AUTO);
  (void)snprintf(line, sizeof line, "kv kv.0 e4m3[2,32] k_scale=%s v_scale=%s\n", k_scale, v_scale);
  replace(codes, "kv kv.0 e4m3[2,32]\n", line);
  (void)snprintf(line, sizeof line,
                 "k8 = kv_round(0.k_rope) scale=%s : f32[T,2,32]\n"
                 "v8 = kv_round(0.v) scale=%s : f32[T,2,32]\n"
                 "kv.0 = kv_write(k8, v8, ",
                 k_scale, v_scale);
  replace(rounded, "kv.0 = kv_write(0.k_rope, 0.v, ", line);
  float *usual = run(&config, NULL, MGL_KV_AUTO);
  float *expected = run(&config, rounded, MGL_KV_AUTO);
  float *found = run(&config, codes, MGL_KV_FP8);
  double size = 0;
  for (size_t i = 0; i < (size_t)TOKENS * VOCAB; i++) {
    size = fmax(size, fabs((double)usual[i]));
  }
  // Roundings of f32 on the one hand; E4M3 keeps 4 bits of a value on the other.
  assert_true(distance(found, expected) < 1e-5 * size);
  assert_true(distance(expected, usual) > 1e-4 * size);
  free(usual);
  free(expected);
  free(found);
  free(codes);
  free(rounded);
}

static void attention_is_that_over_the_dequantised_cache(void **state) {
  (void)state;
  for (int simd = MGL_SIMD_SCALAR; simd <= (int)mgl_simd_detected(); simd++) {
    assert_int_equal(setenv("MEGALITH_SIMD", mgl_simd_name((mgl_simd)simd), 1), 0);
    check_scales("1", "1");
    check_scales("0.0371", "0.011");
    check_scales("0.0005", "0.0003");
  }
  assert_int_equal(unsetenv("MEGALITH_SIMD"), 0);
}

// Half of bf16's bytes of a token, twice its pages of the same memory; a quarter of f32's.
static void a_token_takes_half_of_the_bytes(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    mgl_model_folder folder = {.config = small_config(MGL_FAMILY_QWEN3)};
    folder.config.dtype = i == 0 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
    mgl_build build = {.threads = 1,
                       .sequences = 64,
                       .sequence_tokens = 128,
                       .weights = MGL_WEIGHTS_DUMMY,
                       .memory_share = 0.5};
    mgl_sizes usual, codes;
    MUST(mgl_runner_measure(&folder, &build, &usual, &err));
    build.kv_dtype = MGL_KV_FP8;
    MUST(mgl_runner_measure(&folder, &build, &codes, &err));
    assert_int_equal(usual.kv_bytes_per_token, codes.kv_bytes_per_token * (i == 0 ? 2 : 4));
    assert_int_equal(mgl_sizes_total(&usual) - mgl_sizes_kv_bytes(&usual),
                     mgl_sizes_total(&codes) - mgl_sizes_kv_bytes(&codes));
    // A share that leaves room for 20 pages of the usual cache.
    const uint64_t page_bytes = usual.kv_bytes_per_token * usual.limits.page_tokens;
    const uint64_t others = mgl_sizes_total(&usual) - mgl_sizes_kv_bytes(&usual);
    const double share = (double)(others + 20 * page_bytes) / (double)usual.free_bytes * (1 + 1e-9);
    codes.free_bytes = usual.free_bytes;
    MUST(mgl_sizes_share(&usual, share, &err));
    MUST(mgl_sizes_share(&codes, share, &err));
    assert_int_equal(usual.page_count, 20);
    assert_int_equal(codes.page_count, i == 0 ? 40 : 80);
  }
}

static void a_gpu_refuses_it(void **state) {
  (void)state;
  const mgl_model_folder folder = {.config = small_config(MGL_FAMILY_QWEN3)};
  mgl_cuda_device device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  mgl_build build = {.sequences = 4,
                     .sequence_tokens = 64,
                     .weights = MGL_WEIGHTS_DUMMY,
                     .kv_dtype = MGL_KV_FP8,
                     .cuda = &cuda};
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  for (int plain = 0; plain < 2; plain++) {
    build.plain = plain != 0;
    assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "KV cache: expected bf16 on a GPU"));
    assert_non_null(strstr(err.text, "try --device cpu"));
  }
  assert_int_equal(fake.live, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention_is_that_over_the_dequantised_cache),
      cmocka_unit_test(a_token_takes_half_of_the_bytes),
      cmocka_unit_test(a_gpu_refuses_it),
  };
  return cmocka_run_group_tests(tests, register_op, NULL);
}
