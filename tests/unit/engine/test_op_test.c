// Ranges of a model's ops against the scalar reference: every op and 50 random ranges of the demo
// model at 1, 7 and 33 tokens, fused and not, as tasks and op by op; inputs that are given; and
// kernels broken on purpose, each of which must be found.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "engine/op_test.h"
#include "support/must.h"

enum {
  THREADS = 2,
  CONTEXT = 19,
#ifdef MGL_TEST_SANITIZED
  RANGES = 3,
  LONGEST = 3,
  STEP = 7,
#else
  RANGES = 50,
  LONGEST = 8,  // ops of a random range in `make test`
  STEP = 1,     // from one op that is run alone to the next
#endif
};

// --- broken kernels ------------------------------------------------------------------------------

typedef enum breakage {
  NOTHING,
  LAST_PRODUCT,  // linear forgets the last product of each sum
  FIRST_TOKEN,   // attention does not see position 0 from the last query
  OTHER_EPS,     // rmsnorm
  HALF_ROTARY,   // rope turns half of the dims
  NO_RESIDUAL,   // linear does not add it
  LAST_HEAD,     // kv_write leaves the last head's V as it was
  LAST_ROW,      // embed takes another token's row for the last
  BREAKAGES,
} breakage;

static breakage broken;  // what the kernels are that are handed out now
static const mgl_cpu_kernels *whole;
static mgl_cpu_kernels kernels;

static void last_product(const mgl_linear_args *args, size_t begin, size_t end) {
  whole->linear(args, begin, end);
  if (args->packed || args->x_dtype != MGL_DTYPE_BF16 || args->w_dtype != MGL_DTYPE_BF16) {
    return;
  }
  for (size_t t = 0; t < args->token_count; t++) {
    for (size_t n = begin; n < end; n++) {
      float x = mgl_bf16_to_f32(((const mgl_bf16 *)args->x)[(t + 1) * args->k - 1]);
      args->out[t * args->out_stride + n] -=
          x * mgl_bf16_to_f32(((const mgl_bf16 *)args->w)[(n + 1) * args->k - 1]);
    }
  }
}

static void no_residual(const mgl_linear_args *args, size_t begin, size_t end) {
  mgl_linear_args other = *args;
  other.residual = NULL;
  whole->linear(&other, begin, end);
}

static void first_token(const mgl_attention_args *args, void *scratch, size_t begin, size_t end) {
  mgl_attention_args other = *args;
  other.window = args->positions[args->items[0].query_begin + args->items[0].query_count - 1];
  whole->attention(&other, scratch, begin, end);
}

static void other_eps(const mgl_rmsnorm_args *args, size_t begin, size_t end) {
  mgl_rmsnorm_args other = *args;
  other.eps += 0.1f;
  whole->rmsnorm(&other, begin, end);
}

static void half_rotary(const mgl_rope_args *args, size_t begin, size_t end) {
  for (size_t t = begin; t < end; t++) {
    mgl_rope_args other = *args;
    other.x += t * args->head_count * args->head_dim;
    other.angles += t * args->rotary_dim;
    other.rotary_dim /= 2;
    whole->rope(&other, 0, 1);
  }
}

static void last_head(const mgl_kv_write_args *args, size_t begin, size_t end) {
  mgl_kv_write_args other = *args;
  float zeros[4096] = {0};
  other.v = args->head_end == args->kv.kv_head_count ? zeros : args->v;
  other.v_stride = args->head_end == args->kv.kv_head_count ? 0 : args->v_stride;
  whole->kv_write(&other, begin, end);
}

static void last_row(const mgl_embed_args *args, size_t begin, size_t end) {
  int32_t other[2048];
  memcpy(other, args->tokens, end * sizeof *other);
  other[end - 1] ^= 1;
  mgl_embed_args changed = *args;
  changed.tokens = other;
  whole->embed(&changed, begin, end);
}

const mgl_cpu_kernels *__real_mgl_cpu_kernels_for(mgl_simd simd);
const mgl_cpu_kernels *__wrap_mgl_cpu_kernels_for(mgl_simd simd);

const mgl_cpu_kernels *__wrap_mgl_cpu_kernels_for(mgl_simd simd) {
  const mgl_cpu_kernels *real = __real_mgl_cpu_kernels_for(simd);
  if (broken == NOTHING) {
    return real;
  }
  whole = real;
  kernels = *real;
  switch (broken) {
    case LAST_PRODUCT: kernels.linear = last_product; break;
    case FIRST_TOKEN: kernels.attention = first_token; break;
    case OTHER_EPS: kernels.rmsnorm = other_eps; break;
    case HALF_ROTARY: kernels.rope = half_rotary; break;
    case NO_RESIDUAL: kernels.linear = no_residual; break;
    case LAST_HEAD: kernels.kv_write = last_head; break;
    case LAST_ROW: kernels.embed = last_row; break;
    default: break;
  }
  return &kernels;
}

// --- a test of the demo model --------------------------------------------------------------------

typedef struct demo {
  mgl_model_folder folder;
  mgl_runner *runner;
  mgl_op_test *test;
} demo;

static mgl_op_test_options options_of(uint32_t tokens) {
  return (mgl_op_test_options){.tokens = tokens, .context = CONTEXT, .seed = 7, .tolerance = -1};
}

// The device gets kernels that are broken so, the reference whole ones.
static void open_demo(demo *d, const mgl_op_test_options *options, bool plain, breakage how) {
  mgl_build build = mgl_op_test_build(options);
  build.threads = THREADS;
  build.plain = plain;
  *d = (demo){0};
  MUST(mgl_model_folder_open(MGL_DEMO_FOLDER, MGL_NEED_WEIGHTS, &d->folder, &err));
  broken = how;
  MUST(mgl_runner_create(&d->folder, &build, &d->runner, &err));
  MUST(mgl_runner_prepare(d->runner, options->mode, &err));
  broken = NOTHING;
  MUST(mgl_op_test_create(d->runner, &d->folder, options, &d->test, &err));
}

static void close_demo(demo *d) {
  mgl_op_test_destroy(d->test);
  mgl_runner_destroy(d->runner);
  mgl_model_folder_close(&d->folder);
}

// Runs a range; returns how many of its outputs do not pass.
static uint32_t run(demo *d, uint32_t first, uint32_t last, bool must_pass) {
  const mgl_op_result *results = NULL;
  uint32_t count = 0;
  uint32_t failed = 0;
  MUST(mgl_op_test_run(d->test, first, last, &results, &count, &err));
  assert_true(count >= 1);
  for (uint32_t i = 0; i < count; i++) {
    const mgl_op_result *r = &results[i];
    failed += r->passed ? 0 : 1;
    assert_true(r->largest_bound > 0 && r->mean_bound > 0);
    if (must_pass && !r->passed) {
      fail_msg("ops %u to %u: %s: error %g of at most %g, mean %g of %g", first, last, r->name,
               r->largest, r->largest_bound, r->mean, r->mean_bound);
    }
  }
  return failed;
}

static uint32_t op_count(const demo *d) {
  return (uint32_t)mgl_op_test_program(d->test)->op_count;
}

static void check_ranges(uint32_t tokens, bool plain, mgl_mode mode) {
  mgl_op_test_options options = options_of(tokens);
  options.mode = mode;
  uint64_t state = tokens;
  demo d;
  open_demo(&d, &options, plain, NOTHING);
  uint32_t longest = getenv("MGL_TEST_LONG") != NULL ? op_count(&d) : LONGEST;
  for (uint32_t op = 0; op < op_count(&d); op += STEP) {
    (void)run(&d, op, op, true);
  }
  for (uint32_t i = 0; i < RANGES; i++) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint32_t first = (uint32_t)(state >> 33) % op_count(&d);
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint32_t last = first + (uint32_t)(state >> 33) % longest;
    (void)run(&d, first, last < op_count(&d) ? last : op_count(&d) - 1, true);
  }
  (void)run(&d, 0, op_count(&d) - 1, true);
  close_demo(&d);
}

static void test_ranges_of_one_token(void **state) {
  (void)state;
  check_ranges(1, false, MGL_MODE_MEGA);
}

static void test_ranges_of_seven_tokens(void **state) {
  (void)state;
  check_ranges(7, false, MGL_MODE_MEGA);
}

static void test_ranges_of_33_tokens(void **state) {
  (void)state;
  check_ranges(33, false, MGL_MODE_MEGA);
}

static void test_ranges_of_ops_that_are_not_fused(void **state) {
  (void)state;
  check_ranges(7, true, MGL_MODE_MEGA);
}

static void test_ranges_op_by_op(void **state) {
  (void)state;
  check_ranges(1, false, MGL_MODE_EAGER);
  check_ranges(33, false, MGL_MODE_EAGER);
}

// A piece runs whole: what lies outside of the range cannot be left out.
static void test_modes_of_pieces_say_why_not(void **state) {
  (void)state;
  mgl_op_test_options options = options_of(2);
  demo d;
  open_demo(&d, &options, false, NOTHING);
  for (int mode = 0; mode < MGL_MODE_COUNT; mode++) {
    mgl_op_test *test = NULL;
    mgl_error err = {0};
    options.mode = (mgl_mode)mode;
    if (mode != MGL_MODE_MEGA && mode != MGL_MODE_EAGER) {
      assert_int_equal(mgl_op_test_create(d.runner, &d.folder, &options, &test, &err),
                       MGL_ERR_UNSUPPORTED);
      assert_null(test);
      assert_non_null(strstr(err.text, "expected mode mega or eager"));
      assert_non_null(strstr(err.text, mgl_mode_name((mgl_mode)mode)));
    }
  }
  close_demo(&d);
}

// --- what must fail ------------------------------------------------------------------------------

static uint32_t find(const demo *d, const char *name) {
  uint32_t op = 0;
  MUST(mgl_op_test_find(d->test, name, &op, &err));
  return op;
}

// Each is found in the op alone. In a whole layer roundings of what lies between hide one position
// of 26 from one query, and another eps.
static void test_a_broken_kernel_fails(void **state) {
  static const struct {
    const char *fused, *plain;  // NULL: not looked at
  } ops[BREAKAGES] = {
      [LAST_PRODUCT] = {"3.v", "3.gate"},   [FIRST_TOKEN] = {"3.attention", "3.attention"},
      [OTHER_EPS] = {"3.v", "3.q_norm"},    [HALF_ROTARY] = {"3.attention", "3.q_rope"},
      [NO_RESIDUAL] = {"3.attended", NULL}, [LAST_HEAD] = {"3.attention", "kv.3"},
      [LAST_ROW] = {"embedded", "embedded"}};
  static const uint32_t tokens[] = {1, 7};
  (void)state;
  for (size_t i = 0; i < 6; i++) {  // fused and plain tasks of 1 and 7 tokens; op by op
    mgl_op_test_options options = options_of(tokens[i / 2 % 2]);
    bool is_fused = i % 2 == 0 && i < 4;
    options.mode = i < 4 ? MGL_MODE_MEGA : MGL_MODE_EAGER;
    options.tokens = i < 4 ? options.tokens : tokens[i % 2];
    for (int how = NOTHING + 1; how < BREAKAGES; how++) {
      const char *name = is_fused ? ops[how].fused : ops[how].plain;
      demo d;
      if (name == NULL) {
        continue;
      }
      open_demo(&d, &options, i < 4 && !is_fused, (breakage)how);
      uint32_t op = find(&d, name);
      if (run(&d, op, op, false) == 0) {
        fail_msg("breakage %d is not seen in %s of %u tokens", how, name, options.tokens);
      }
      if (is_fused && how != LAST_ROW && how != OTHER_EPS && how != FIRST_TOKEN &&
          run(&d, find(&d, "3.v"), find(&d, "3.fed_forward"), false) == 0) {
        fail_msg("breakage %d is not seen in layer 3, %u tokens", how, options.tokens);
      }
      close_demo(&d);
    }
  }
}

// Other kernels round otherwise: with no tolerance that fails, where they are others.
static void test_a_tolerance_replaces_the_bounds(void **state) {
  (void)state;
  mgl_op_test_options options = options_of(7);
  for (int i = 0; i < 2; i++) {
    const mgl_op_result *results = NULL;
    uint32_t count = 0;
    demo d;
    options.tolerance = i;
    open_demo(&d, &options, false, NOTHING);
    uint32_t op = find(&d, "3.fed_forward");
    MUST(mgl_op_test_run(d.test, op, op, &results, &count, &err));
    assert_int_equal(count, 1);
    assert_true(results[0].largest_bound == i);
    assert_int_equal(results[0].passed, results[0].largest <= i);
    assert_true(i == 0 || results[0].passed);
    close_demo(&d);
  }
}

// --- inputs --------------------------------------------------------------------------------------

static void test_inputs_are_taken(void **state) {
  enum { TOKENS = 2, WIDTH = 256 };
  float x[TOKENS * WIDTH];
  float y[TOKENS * WIDTH];
  const mgl_op_result *results = NULL;
  uint32_t count = 0;
  demo d;
  (void)state;
  for (size_t i = 0; i < TOKENS * WIDTH; i++) {
    x[i] = (float)i;
    y[i] = (float)(i % 3);
  }
  const mgl_op_test_value given[] = {{"0.attended", x, TOKENS * WIDTH},
                                     {"0.down", y, TOKENS * WIDTH}};
  mgl_op_test_options options = options_of(TOKENS);
  options.given = given;
  options.given_count = 2;
  open_demo(&d, &options, true, NOTHING);
  uint32_t op = find(&d, "0.fed_forward");
  MUST(mgl_op_test_run(d.test, op, op, &results, &count, &err));
  assert_int_equal(count, 1);
  assert_int_equal(results[0].count, TOKENS * WIDTH);
  for (size_t i = 0; i < TOKENS * WIDTH; i++) {
    assert_true(results[0].values[i] == x[i] + y[i] && results[0].expected[i] == x[i] + y[i]);
  }
  assert_true(results[0].passed);
  close_demo(&d);
}

static void refuse(const mgl_op_test_value *given, const char *op, const char *message) {
  mgl_op_test_options options = options_of(2);
  const mgl_op_result *results = NULL;
  uint32_t count = 0;
  mgl_error err = {0};
  demo d;
  options.given = given;
  options.given_count = 1;
  open_demo(&d, &options, false, NOTHING);
  uint32_t at = find(&d, op);
  assert_int_equal(mgl_op_test_run(d.test, at, at, &results, &count, &err), MGL_ERR_ARGUMENT);
  if (strstr(err.text, message) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", message, err.text);
  }
  close_demo(&d);
}

static void test_wrong_inputs_are_refused(void **state) {
  const float values[3] = {1, 2, 3};
  (void)state;
  refuse(&(mgl_op_test_value){"0.attended", values, 3}, "0.gated",
         "\"0.attended\": expected 512 values for 2 tokens behind 19, found 3");
  refuse(&(mgl_op_test_value){"1.attended", values, 3}, "0.gated",
         "expected an input of ops 5 to 5, found \"1.attended\", which is none");
  refuse(&(mgl_op_test_value){"kv.0", values, 3}, "0.attention", "\"kv.0\": expected 4864 values");
}

static void test_ops_are_found(void **state) {
  mgl_op_test_options options = options_of(1);
  mgl_error err = {0};
  uint32_t op = 0;
  demo d;
  (void)state;
  open_demo(&d, &options, false, NOTHING);
  assert_int_equal(find(&d, "42"), 42);
  assert_int_equal(find(&d, "logits"), 42);
  assert_int_equal(find(&d, "0.v"), 2);
  assert_int_equal(mgl_op_test_find(d.test, "43", &op, &err), MGL_ERR_ARGUMENT);
  assert_int_equal(mgl_op_test_find(d.test, "0.q", &op, &err), MGL_ERR_ARGUMENT);
  assert_string_equal(err.text,
                      "expected an op of 0 to 42 or the name of its result, found \"0.q\"");
  close_demo(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranges_of_one_token),
      cmocka_unit_test(test_ranges_of_seven_tokens),
      cmocka_unit_test(test_ranges_of_33_tokens),
      cmocka_unit_test(test_ranges_of_ops_that_are_not_fused),
      cmocka_unit_test(test_ranges_op_by_op),
      cmocka_unit_test(test_modes_of_pieces_say_why_not),
      cmocka_unit_test(test_a_broken_kernel_fails),
      cmocka_unit_test(test_a_tolerance_replaces_the_bounds),
      cmocka_unit_test(test_inputs_are_taken),
      cmocka_unit_test(test_wrong_inputs_are_refused),
      cmocka_unit_test(test_ops_are_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
