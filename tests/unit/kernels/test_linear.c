// linear of every level: against a double-precision reference, and the numerics contract.
//
// Bound. A dot product is a sum of K exact-to-f32 products, each rounded at most once, through at
// most K + 16 additions (chains of K / lanes, then a tree of 5 levels; scalar: K in a row). With u
// = 2^-24 the error is at most (K + 16) u sum|x w| to first order; the bias adds one rounding. The
// bound tested is that for the scalar level; the vector levels have chains of K / lanes terms (two
// roundings a step for VDPBF16PS), so theirs is (2 K / 8 + 16) u sum|x w|.
#include <sys/mman.h>
#include <unistd.h>

#include "kernel_test.h"

typedef struct problem {
  size_t tokens, rows, k, skew;  // skew: bytes between a 64-byte boundary and w
  mgl_dtype x_dtype, w_dtype;
  bool bias;
  guarded x, w, bias_data;
} problem;

static const mgl_dtype dtype_pairs[][2] = {
    {MGL_DTYPE_BF16, MGL_DTYPE_BF16},
    {MGL_DTYPE_F32, MGL_DTYPE_BF16},
    {MGL_DTYPE_F32, MGL_DTYPE_F16},
    {MGL_DTYPE_F32, MGL_DTYPE_F32},
};
enum { pair_count = sizeof dtype_pairs / sizeof *dtype_pairs };

static problem problem_create(size_t tokens, size_t rows, size_t k, size_t pair, size_t skew,
                              bool bias) {
  problem p = {
      .tokens = tokens,
      .rows = rows,
      .k = k,
      .skew = skew,
      .x_dtype = dtype_pairs[pair][0],
      .w_dtype = dtype_pairs[pair][1],
      .bias = bias,
  };
  p.x = guarded_create(tokens * k * mgl_dtype_bytes(p.x_dtype), 0);
  p.w = guarded_create(rows * k * mgl_dtype_bytes(p.w_dtype), skew);
  p.bias_data = guarded_create(rows * sizeof(float), 4);
  fill_random(p.x.data, p.x_dtype, tokens * k);
  fill_random(p.w.data, p.w_dtype, rows * k);
  fill_random(p.bias_data.data, MGL_DTYPE_F32, rows);
  return p;
}

static void problem_destroy(problem *p) {
  guarded_destroy(&p->x);
  guarded_destroy(&p->w);
  guarded_destroy(&p->bias_data);
}

static mgl_linear_args problem_args(const problem *p, const guarded *out, size_t stride) {
  mgl_linear_args args = {
      .x = p->x.data,
      .x_dtype = p->x_dtype,
      .w = p->w.data,
      .w_dtype = p->w_dtype,
      .bias = p->bias ? p->bias_data.data : NULL,
      .token_count = (uint32_t)p->tokens,
      .k = (uint32_t)p->k,
      .out = out->data,
      .out_stride = (uint32_t)stride,
  };
  return args;
}

static void check_reference(const problem *p, const float *out, size_t stride, bool scalar) {
  double chain = scalar ? (double)p->k : 2.0 * (double)p->k / 8;
  for (size_t t = 0; t < p->tokens; t++) {
    for (size_t n = 0; n < p->rows; n++) {
      double sum = 0, magnitude = 0;
      for (size_t i = 0; i < p->k; i++) {
        double product = (double)element_load(p->x.data, p->x_dtype, t * p->k + i) *
                         (double)element_load(p->w.data, p->w_dtype, n * p->k + i);
        sum += product;
        magnitude += fabs(product);
      }
      if (p->bias) {
        double bias = (double)((float *)p->bias_data.data)[n];
        sum += bias;
        magnitude += fabs(bias);
      }
      double bound = (chain + 16) * F32_ROUNDOFF * magnitude + (double)p->k * F32_TINY;
      check_close(out[t * stride + n], sum, bound, MGL_DTYPE_F32);
    }
  }
}

// Columns from `rows` to the stride must stay poisoned.
static void check_gap(const problem *p, const float *out, size_t stride) {
  for (size_t t = 0; t < p->tokens; t++) {
    for (size_t n = p->rows; n < stride; n++) {
      assert_true(isnan(out[t * stride + n]));
    }
  }
}

static void check_levels(const problem *p) {
  size_t stride = p->rows + random_below(3);
  for (size_t l = 0; l < level_count(); l++) {
    guarded out = guarded_create(p->tokens * stride * sizeof(float), 4 * random_below(16));
    mgl_linear_args args = problem_args(p, &out, stride);
    level(l)->linear(&args, 0, p->rows);
    check_reference(p, out.data, stride, l == MGL_SIMD_SCALAR);
    check_gap(p, out.data, stride);
    guarded_destroy(&out);
  }
}

static void linear_matches_reference(void **state) {
  (void)state;
  static const size_t ks[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 80, 240, 1000, 1024, 2500};
  static const size_t tokens[] = {1, 2, 3, 5, 6, 7, 8, 13, 64, 70};
  for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
    for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++) {
      for (size_t pair = 0; pair < pair_count; pair++) {
        if (!takes_case()) {
          continue;
        }
        size_t rows = ks[i] > 200 && tokens[j] > 8 ? 5 : 1 + random_below(23);
        problem p =
            problem_create(tokens[j], rows, ks[i], pair, random_below(64), random_below(2) == 0);
        check_levels(&p);
        problem_destroy(&p);
      }
    }
  }
}

static void linear_matches_reference_random(void **state) {
  (void)state;
  for (int i = 0; i < 200; i++) {
    if (!takes_case()) {
      continue;
    }
    problem p = problem_create(1 + random_below(12), 1 + random_below(40), 1 + random_below(300),
                               random_below(pair_count), random_below(64), random_below(2) == 0);
    check_levels(&p);
    problem_destroy(&p);
  }
}

static mgl_single_way random_single(void) {
  return (mgl_single_way){.in_turn = random_below(2) == 0,
                          .fetch = (mgl_fetch)random_below(MGL_FETCH_COUNT),
                          .ahead = random_below(MGL_LINEAR_MOST_AHEAD + 1)};
}

// Any way that there is.
static mgl_linear_way random_way(size_t l) {
  static const uint32_t rows[] = {0, 4, 8, 13, 16, 64, 1000};
  enum { count = sizeof rows / sizeof *rows };
  return (mgl_linear_way){
      .one = random_single(),
      .one_long = random_single(),
      .long_k = random_below(300),
      .few_ahead = random_below(5),
      .pack_tokens = MGL_LINEAR_LEAST_PACKED,
      .split = random_below(2) == 0 && level(l)->splits(),
      .many_fetch = random_below(2) == 0,
      .some_rows = rows[random_below(count)],
      .many_rows = rows[random_below(count)],
  };
}

// The rows of args->x, packed behind poison for random memory; args then name them.
static guarded pack(size_t l, mgl_linear_args *args) {
  args->split = args->way != NULL && args->way->split && args->x_dtype == MGL_DTYPE_BF16;
  guarded packed = guarded_create(mgl_packed_bytes(args->token_count, args->k, args->x_dtype), 0);
  level(l)->pack(&(mgl_pack_args){.x = args->x,
                                  .dtype = args->x_dtype,
                                  .split = args->split,
                                  .token_count = args->token_count,
                                  .k = args->k,
                                  .out = packed.data});
  args->x = packed.data;
  args->packed = true;
  return packed;
}

// The same rows token by token, in random ranges and ways, packed or not, and with other alignments
// of w: the same bits.
static void check_bits(size_t l, const problem *p) {
  size_t out_bytes = p->tokens * p->rows * sizeof(float);
  guarded whole = guarded_create(out_bytes, 0), parts = guarded_create(out_bytes, 0);
  mgl_linear_args args = problem_args(p, &whole, p->rows);
  level(l)->linear(&args, 0, p->rows);
  mgl_linear_args many = args;
  mgl_linear_way way = random_way(l);
  many.out = parts.data;
  many.way = &way;
  guarded all = pack(l, &many);
  level(l)->linear(&many, 0, p->rows);
  assert_memory_equal(whole.data, parts.data, out_bytes);
  guarded_destroy(&all);
  memset(parts.data, 0xff, out_bytes);
  guarded copy = guarded_create(p->w.bytes, (p->skew + 1 + random_below(63)) % 64);
  memcpy(copy.data, p->w.data, p->w.bytes);
  args.w = copy.data;
  size_t x_bytes = p->k * mgl_dtype_bytes(p->x_dtype);
  for (size_t t = 0, count; t < p->tokens; t += count) {
    count = 1 + random_below((uint32_t)(p->tokens - t < 9 ? p->tokens - t : 9));
    bool packs = random_below(2) == 0;
    way = random_way(l);
    args.way = &way;
    args.x = (const char *)p->x.data + t * x_bytes;
    args.packed = false;
    args.token_count = (uint32_t)count;
    args.out = (float *)parts.data + t * p->rows;
    guarded packed = packs ? pack(l, &args) : (guarded){0};
    for (size_t n = 0, end; n < p->rows; n = end) {
      end = n + 1 + random_below((uint32_t)(p->rows - n));
      args.next_w = random_below(2) == 0 ? copy.data : NULL;
      args.next_rows = args.next_w == NULL ? 0 : (uint32_t)p->rows;
      level(l)->linear(&args, n, end);
    }
    if (packs) {
      guarded_destroy(&packed);
    }
  }
  assert_memory_equal(whole.data, parts.data, out_bytes);
  guarded_destroy(&copy);
  guarded_destroy(&whole);
  guarded_destroy(&parts);
}

static void linear_bits_do_not_depend_on_blocking(void **state) {
  (void)state;
  // In 1 to 17 chunks; the last in several of many tokens, too.
  static const size_t ks[] = {1, 33, 80, 240, 1000, 1024, 1700, 3072, 8500};
  static const size_t tokens[] = {1, 7, 8, 64, 70, 200};
  for (size_t l = 0; l < level_count(); l++) {
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
      for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++) {
        for (size_t pair = 0; pair < pair_count; pair++) {
          if (!takes_case()) {
            continue;
          }
          // With many rows, K = 33 and 3072 have several panels.
          size_t most = tokens[j] > 70 || i % 2 == 0 ? 20 : 300;
          problem p = problem_create(tokens[j], 1 + random_below((uint32_t)most), ks[i], pair,
                                     random_below(64), pair % 2 == 0);
          check_bits(l, &p);
          problem_destroy(&p);
        }
      }
    }
  }
}

// A way may split where this processor gives the bits of pairs: those of subnormals too, of huge
// numbers and of infinities.
static void split_operands_give_the_bits_of_pairs(void **state) {
  (void)state;
  enum { tokens = 30, rows = 21, k = 1100 };
  for (size_t l = 0; l < level_count(); l++) {
    if (!level(l)->splits()) {
      print_message("%s: this processor's instruction for pairs rounds otherwise: nothing splits\n",
                    level(l)->name);
      continue;
    }
    for (int size = 0; size < 4; size++) {
      problem p = problem_create(tokens, rows, k, 0, 0, false);
      for (size_t i = 0; i < tokens * k; i++) {  // about 2^-126 to 2^-95, 1, 2^120
        static const uint16_t exponents[] = {0x0001, 0x1f00, 0x3f80, 0x7b80};
        uint16_t bits =
            (uint16_t)((random_below(2) << 15 | random_below(0x1000)) + exponents[(size_t)size]);
        memcpy((char *)p.x.data + 2 * i, &bits, sizeof bits);
      }
      guarded pairs = guarded_create(sizeof(float) * tokens * rows, 0);
      guarded split = guarded_create(sizeof(float) * tokens * rows, 0);
      for (int splits = 0; splits < 2; splits++) {
        mgl_linear_way way = {.split = splits == 1, .some_rows = 8};
        mgl_linear_args args = problem_args(&p, splits == 1 ? &split : &pairs, rows);
        args.way = &way;
        guarded packed = pack(l, &args);
        level(l)->linear(&args, 0, rows);
        guarded_destroy(&packed);
      }
      for (size_t i = 0; i < tokens * rows; i++) {
        float a = ((float *)pairs.data)[i], b = ((float *)split.data)[i];
        assert_true((isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0);
      }
      guarded_destroy(&pairs);
      guarded_destroy(&split);
      problem_destroy(&p);
    }
  }
}

// With a residual, the bits are those of linear and then residual + result; in place or not, for
// whole ranges and parts. Columns from `rows` to the stride stay untouched.
static void check_residual(size_t l, const problem *p) {
  size_t stride = p->rows + random_below(3), bytes = p->tokens * stride * sizeof(float);
  guarded plain = guarded_create(bytes, 0), apart = guarded_create(bytes, 4);
  guarded residual = guarded_create(bytes, 8), in_place = guarded_create(bytes, 12);
  for (size_t t = 0; t < p->tokens; t++) {
    fill_random((float *)residual.data + t * stride, MGL_DTYPE_F32, p->rows);
  }
  memcpy(in_place.data, residual.data, bytes);
  mgl_linear_args args = problem_args(p, &plain, stride);
  level(l)->linear(&args, 0, p->rows);
  for (size_t n = 0, end; n < p->rows; n = end) {
    end = n + 1 + random_below((uint32_t)(p->rows - n));
    args.out = apart.data;
    args.residual = residual.data;
    level(l)->linear(&args, n, end);
    args.out = in_place.data;
    args.residual = in_place.data;
    level(l)->linear(&args, n, end);
  }
  for (size_t t = 0; t < p->tokens; t++) {
    for (size_t n = 0; n < p->rows; n++) {
      size_t at = t * stride + n;
      volatile float expected = ((float *)residual.data)[at] + ((float *)plain.data)[at];
      assert_true(((float *)apart.data)[at] == expected);
    }
  }
  check_gap(p, apart.data, stride);
  assert_memory_equal(apart.data, in_place.data, bytes);
  guarded_destroy(&plain);
  guarded_destroy(&apart);
  guarded_destroy(&residual);
  guarded_destroy(&in_place);
}

static void linear_adds_a_residual_as_add_would(void **state) {
  (void)state;
  static const size_t tokens[] = {1, 2, 5, 8, 64, 70};
  for (size_t l = 0; l < level_count(); l++) {
    for (size_t i = 0; i < 6 * pair_count; i++) {
      problem p = problem_create(tokens[i / pair_count], 1 + random_below(40),
                                 1 + random_below(1500), i % pair_count, 0, random_below(2) == 0);
      check_residual(l, &p);
      problem_destroy(&p);
    }
  }
}

// Infinities and NaN of one row or token stay in that row and token.
static void linear_keeps_rows_apart(void **state) {
  (void)state;
  for (size_t l = 0; l < level_count(); l++) {
    for (size_t pair = 0; pair < pair_count; pair++) {
      problem p = problem_create(8, 19, 45, pair, 2, false);
      element_store(p.w.data, p.w_dtype, 7 * p.k + 44, NAN);
      element_store(p.x.data, p.x_dtype, 3 * p.k + 1, NAN);
      guarded out = guarded_create(p.tokens * p.rows * sizeof(float), 0);
      mgl_linear_args args = problem_args(&p, &out, p.rows);
      level(l)->linear(&args, 0, p.rows);
      for (size_t t = 0; t < p.tokens; t++) {
        for (size_t n = 0; n < p.rows; n++) {
          bool expected = t == 3 || n == 7;
          assert_true(!!isnan(((float *)out.data)[t * p.rows + n]) == expected);
        }
      }
      guarded_destroy(&out);
      problem_destroy(&p);
    }
  }
}

// w ends where its page ends, and the next page cannot be read.
static void linear_reads_nothing_after_the_last_row(void **state) {
  (void)state;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(pages != MAP_FAILED);
  assert_int_equal(mprotect(pages + 2 * page, page, PROT_NONE), 0);
  for (size_t l = 0; l < level_count(); l++) {
    for (size_t pair = 0; pair < pair_count; pair++) {
      problem p = problem_create(1 + random_below(8), 5, 37 + random_below(60), pair, 0, false);
      guarded out = guarded_create(p.tokens * p.rows * sizeof(float), 0);
      mgl_linear_args args = problem_args(&p, &out, p.rows);
      args.w = memcpy(pages + 2 * page - p.w.bytes, p.w.data, p.w.bytes);
      level(l)->linear(&args, 0, p.rows);
      check_reference(&p, out.data, p.rows, l == MGL_SIMD_SCALAR);
      guarded_destroy(&out);
      problem_destroy(&p);
    }
  }
  munmap(pages, 3 * page);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(linear_matches_reference),
      cmocka_unit_test(linear_matches_reference_random),
      cmocka_unit_test(linear_bits_do_not_depend_on_blocking),
      cmocka_unit_test(split_operands_give_the_bits_of_pairs),
      cmocka_unit_test(linear_adds_a_residual_as_add_would),
      cmocka_unit_test(linear_keeps_rows_apart),
      cmocka_unit_test(linear_reads_nothing_after_the_last_row),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
