// linear of every level with weights that are codes: against a double-precision reference, and the
// numerics contract; and rows of every form against what was written. Integer codes' reference takes
// x as it was packed, which is checked apart.
//
// Bound. As in test_linear.c: with u = 2^-24, chains of at most K + 16 additions, a product with a
// scale and an addition for each group, and as much for the offsets.
#include "kernel_test.h"

#include "base/form.h"
#include "kernels/cpu/whole.h"

typedef struct problem {
  size_t tokens, rows, k;
  mgl_dtype x_dtype;
  mgl_form form;
  mgl_row_layout layout;
  guarded x, w;
  double *weights;  // [rows, k]
} problem;

// x as a level's linear reads it: packed for integer codes.
typedef struct packed_x {
  guarded memory;
  const char *rows;
  size_t row_bytes;
} packed_x;

static const mgl_dtype codes[] = {
#define MGL_CODE(enum_name, name, bits) MGL_DTYPE_##enum_name,
#include "base/form.def"
};
enum { code_count = sizeof codes / sizeof *codes };

static uint8_t random_code(mgl_dtype code) {
  uint8_t bits = (uint8_t)random_below(mgl_code_is_nibble(code) ? 16 : 256);
  return code == MGL_DTYPE_E4M3 && (bits & 0x7f) == 0x7f ? 0 : bits;  // NaN
}

static problem problem_create(size_t tokens, size_t rows, size_t k, mgl_dtype x_dtype,
                              mgl_form form, size_t skew) {
  problem p = {.tokens = tokens, .rows = rows, .k = k, .x_dtype = x_dtype, .form = form};
  p.layout = mgl_row_layout_of(form, (uint32_t)k);
  p.x = guarded_create(tokens * k * mgl_dtype_bytes(x_dtype), 0);
  p.w = guarded_create(rows * p.layout.bytes, skew);
  p.weights = malloc(rows * k * sizeof *p.weights);
  uint8_t *row = malloc(k);
  float *widened = malloc(k * sizeof *widened);
  float *scales = malloc(p.layout.groups * sizeof *scales);
  float *offsets = malloc(p.layout.groups * sizeof *offsets);
  fill_random(p.x.data, x_dtype, tokens * k);
  for (size_t n = 0; n < rows; n++) {
    for (size_t g = 0; g < p.layout.groups; g++) {
      scales[g] = random_float() * 0.1f;
      offsets[g] = random_float();
    }
    char *to = (char *)p.w.data + n * p.layout.bytes;
    for (size_t i = 0; i < k; i++) {
      size_t g = i / form.group;
      row[i] = random_code(form.dtype);
      p.weights[n * k + i] = (double)scales[g] * mgl_code_value(form.dtype, row[i]) -
                             (form.offsets ? (double)offsets[g] : 0);
    }
    mgl_row_write(form, (uint32_t)k, row, scales, offsets, to);
    mgl_row_widen(form, (uint32_t)k, to, widened);
    for (size_t i = 0; i < k; i++) {
      assert_int_equal(mgl_row_code(form.dtype, to, (uint32_t)i), row[i]);
      double expected = p.weights[n * k + i];
      check_close(widened[i], expected, 4 * F32_ROUNDOFF * (fabs(expected) + 100), MGL_DTYPE_F32);
    }
  }
  free(row);
  free(widened);
  free(scales);
  free(offsets);
  return p;
}

static void problem_destroy(problem *p) {
  guarded_destroy(&p->x);
  guarded_destroy(&p->w);
  free(p->weights);
}

static packed_x packed_x_create(size_t l, const problem *p) {
  packed_x x = {.rows = p->x.data, .row_bytes = p->k * mgl_dtype_bytes(p->x_dtype)};
  if (mgl_code_is_integer(p->form.dtype)) {
    size_t bytes = mgl_whole_bytes((uint32_t)p->tokens, (uint32_t)p->k);
    x.memory = guarded_create(bytes, 0);
    level(l)->pack(&(mgl_pack_args){.x = p->x.data,
                                    .dtype = p->x_dtype,
                                    .whole = true,
                                    .token_count = (uint32_t)p->tokens,
                                    .k = (uint32_t)p->k,
                                    .out = x.memory.data});
    x.rows = x.memory.data;
    x.row_bytes = bytes / p->tokens;
  }
  return x;
}

static void packed_x_destroy(packed_x *x, const problem *p) {
  if (x->rows != p->x.data) {
    guarded_destroy(&x->memory);
  }
}

static mgl_linear_args problem_args(const problem *p, const packed_x *x, const guarded *out) {
  return (mgl_linear_args){.x = x->rows,
                           .x_dtype = p->x_dtype,
                           .packed = mgl_code_is_integer(p->form.dtype),
                           .w = p->w.data,
                           .w_dtype = p->form.dtype,
                           .w_group = p->form.group,
                           .w_offsets = p->form.offsets,
                           .token_count = (uint32_t)p->tokens,
                           .k = (uint32_t)p->k,
                           .out = out->data,
                           .out_stride = (uint32_t)p->rows};
}

// An element of x as the linear sees it.
static double x_value(const problem *p, const packed_x *x, size_t t, size_t i) {
  if (!mgl_code_is_integer(p->form.dtype)) {
    return (double)element_load(p->x.data, p->x_dtype, t * p->k + i);
  }
  const mgl_whole_layout layout = mgl_whole_layout_of((uint32_t)p->k);
  const char *row = x->rows + t * x->row_bytes;
  const float *scales = (const void *)(row + layout.scales);
  return (double)((const int16_t *)(const void *)row)[i] * (double)scales[i / MGL_CODE_BLOCK];
}

// Whole numbers times a power of two, which the largest of a block decides: within half a unit of
// x, but where rounding would need a bit more than there is; zeros behind K.
static void check_packing(const problem *p, const packed_x *x) {
  const mgl_whole_layout layout = mgl_whole_layout_of((uint32_t)p->k);
  for (size_t t = 0; t < p->tokens; t++) {
    const char *row = x->rows + t * x->row_bytes;
    const int16_t *values = (const void *)row;
    const float *scales = (const void *)(row + layout.scales);
    const float *sums = (const void *)(row + layout.sums);
    for (size_t first = 0; first < p->k; first += MGL_CODE_BLOCK) {
      const double scale = (double)scales[first / MGL_CODE_BLOCK];
      double largest = 0;
      for (size_t i = first; i < first + MGL_CODE_BLOCK; i++) {
        double element = i < p->k ? (double)element_load(p->x.data, p->x_dtype, t * p->k + i) : 0;
        double most = fabs(element) > 32767 * scale ? scale : scale / 2;
        assert_true(fabs(element - values[i] * scale) <= most);
        largest = fabs(element) > largest ? fabs(element) : largest;
      }
      int exponent;
      assert_true(frexp(scale, &exponent) == 0.5);
      assert_true(largest < 32768 * scale && (largest >= 16384 * scale || largest < 1e-18));
      for (size_t unit = first / MGL_WHOLE_UNIT; unit < (first + MGL_CODE_BLOCK) / MGL_WHOLE_UNIT;
           unit++) {
        double sum = 0;
        for (size_t i = 0; i < MGL_WHOLE_UNIT; i++) {
          sum += values[unit * MGL_WHOLE_UNIT + i] * scale;
        }
        assert_true((double)sums[unit] == sum);
      }
    }
  }
}

static void check_reference(const problem *p, const packed_x *packed, const float *out) {
  double roundings = (double)p->k + 2.0 * p->layout.groups + 32;
  for (size_t t = 0; t < p->tokens; t++) {
    for (size_t n = 0; n < p->rows; n++) {
      double sum = 0, magnitude = 0;
      for (size_t i = 0; i < p->k; i++) {
        double x = x_value(p, packed, t, i);
        sum += x * p->weights[n * p->k + i];
        // Codes and offsets, of at most 50, are summed apart.
        double apart = p->form.offsets ? 100 : 0;
        magnitude += fabs(x) * (fabs(p->weights[n * p->k + i]) + apart);
      }
      check_close(out[t * p->rows + n], sum, roundings * F32_ROUNDOFF * magnitude + F32_TINY,
                  MGL_DTYPE_F32);
    }
  }
}

// The same rows token by token and in random ranges: the same bits.
static void check_bits(size_t l, const problem *p, const packed_x *x, const guarded *whole) {
  guarded parts = guarded_create(whole->bytes, 0);
  mgl_linear_args args = problem_args(p, x, &parts);
  for (size_t t = 0, count; t < p->tokens; t += count) {
    count = 1 + random_below((uint32_t)(p->tokens - t < 9 ? p->tokens - t : 9));
    args.x = x->rows + t * x->row_bytes;
    args.token_count = (uint32_t)count;
    args.out = (float *)parts.data + t * p->rows;
    for (size_t n = 0, end; n < p->rows; n = end) {
      end = n + 1 + random_below((uint32_t)(p->rows - n));
      level(l)->linear(&args, n, end);
    }
  }
  assert_memory_equal(whole->data, parts.data, whole->bytes);
  guarded_destroy(&parts);
}

static void check_levels(const problem *p) {
  guarded first = guarded_create(p->tokens * p->rows * sizeof(float), 0);
  for (size_t l = 0; l < level_count(); l++) {
    guarded out = guarded_create(p->tokens * p->rows * sizeof(float), 4 * random_below(16));
    packed_x x = packed_x_create(l, p);
    mgl_linear_args args = problem_args(p, &x, &out);
    level(l)->linear(&args, 0, p->rows);
    if (mgl_code_is_integer(p->form.dtype)) {
      check_packing(p, &x);
    }
    check_reference(p, &x, out.data);
    check_bits(l, p, &x, &out);
    // Sums of groups are exact: all levels of vectors give the same bits.
    if (l == 1) {
      memcpy(first.data, out.data, out.bytes);
    } else if (l > 1 && mgl_code_is_integer(p->form.dtype)) {
      assert_memory_equal(out.data, first.data, out.bytes);
    }
    packed_x_destroy(&x, p);
    guarded_destroy(&out);
  }
  guarded_destroy(&first);
}

static void every_form_matches_reference(void **state) {
  (void)state;
  static const uint32_t groups[] = {16, 32, 64, 96, 128, 256, 2176, 5000};  // the last: whole rows
  static const size_t ks[] = {1, 16, 40, 128, 130, 264, 1000, 2300, 4400};
  static const size_t tokens[] = {1, 2, 5, 7, 13};
  for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
    for (size_t j = 0; j < code_count * sizeof groups / sizeof *groups; j++) {
      mgl_form form = {codes[j % code_count], groups[j / code_count], random_below(2) == 0};
      assert_int_equal(
          mgl_form_check(form, (uint32_t)ks[i], NULL),
          form.group <= MGL_FORM_MAX_GROUP || form.group >= ks[i] ? MGL_OK : MGL_ERR_UNSUPPORTED);
      for (size_t x = 0; x < 2; x++) {
        if (!takes_case()) {
          continue;
        }
        size_t count = tokens[random_below(5)], rows = 1 + random_below(ks[i] > 500 ? 6 : 70);
        problem p = problem_create(count, rows, ks[i], x == 0 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32,
                                   form, random_below(64));
        check_levels(&p);
        problem_destroy(&p);
      }
    }
  }
}

// More tokens than a pass has, and more groups than fit the sums of x of such a pass.
static void many_tokens_match_reference(void **state) {
  (void)state;
  static const struct {
    size_t tokens, rows, k;
    mgl_form form;
  } cases[] = {{270, 37, 300, {MGL_DTYPE_I4, 32, true}},
               {70, 5, 8192, {MGL_DTYPE_I8, 16, true}},
               {70, 5, 512, {MGL_DTYPE_E4M3, 128, false}},
               {65, 5, 4500, {MGL_DTYPE_E2M1, 4500, false}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    problem p = problem_create(cases[i].tokens, cases[i].rows, cases[i].k,
                               i % 2 == 0 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32, cases[i].form, 4);
    check_levels(&p);
    problem_destroy(&p);
  }
}

// x as whole numbers shows what is not finite: in results of its row, and in no others.
static void what_is_not_finite_is_seen(void **state) {
  (void)state;
  static const float wrong[] = {NAN, INFINITY, -INFINITY};
  for (size_t i = 0; i < (size_t)3 * code_count; i++) {
    problem p =
        problem_create(3, 5, 300, MGL_DTYPE_F32, (mgl_form){codes[i % code_count], 32, false}, 0);
    ((float *)p.x.data)[(size_t)300 + 7 * i] = wrong[i / code_count];
    for (size_t l = 0; l < level_count(); l++) {
      guarded out = guarded_create(p.tokens * p.rows * sizeof(float), 0);
      packed_x x = packed_x_create(l, &p);
      mgl_linear_args args = problem_args(&p, &x, &out);
      level(l)->linear(&args, 0, p.rows);
      for (size_t n = 0; n < p.rows; n++) {
        assert_true(isfinite(((float *)out.data)[n]));
        // A code may be 0, which times an infinity is a NaN, too.
        assert_true(!isfinite(((float *)out.data)[p.rows + n]));
        assert_true(isfinite(((float *)out.data)[2 * p.rows + n]));
      }
      packed_x_destroy(&x, &p);
      guarded_destroy(&out);
    }
    problem_destroy(&p);
  }
}

static void embed_widens_rows(void **state) {
  (void)state;
  const mgl_form form = {MGL_DTYPE_I4, 32, true};
  problem p = problem_create(1, 9, 200, MGL_DTYPE_F32, form, 3);
  const int32_t tokens[] = {8, 0, 3, 3};
  for (size_t l = 0; l < level_count(); l++) {
    guarded out = guarded_create(4 * p.k * sizeof(float), 0);
    level(l)->embed(&(mgl_embed_args){.tokens = tokens,
                                      .table = p.w.data,
                                      .table_dtype = form.dtype,
                                      .table_form = form,
                                      .width = (uint32_t)p.k,
                                      .out = out.data},
                    0, 4);
    for (size_t i = 0; i < 4 * p.k; i++) {
      check_close(((float *)out.data)[i], p.weights[(size_t)tokens[i / p.k] * p.k + i % p.k],
                  500 * F32_ROUNDOFF, MGL_DTYPE_F32);
    }
    guarded_destroy(&out);
  }
  problem_destroy(&p);
}

static void forms_have_names(void **state) {
  (void)state;
  static const mgl_form forms[] = {
      {MGL_DTYPE_BF16, 0, false}, {MGL_DTYPE_I4, 128, true}, {MGL_DTYPE_E2M1, 16, false}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    char name[MGL_FORM_NAME_BYTES];
    mgl_form parsed;
    mgl_form_name(forms[i], name);
    assert_true(mgl_form_parse(name, &parsed) && mgl_form_same(parsed, forms[i]));
  }
  static const char *const wrong[] = {"",       "i4",      "i4.",    "i4.0",           "i4.x",
                                      "i4.32p", "i4.32oo", "bf16.2", "i4.99999999999", "bf"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    mgl_form parsed;
    assert_false(mgl_form_parse(wrong[i], &parsed));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_form_matches_reference),
      cmocka_unit_test(many_tokens_match_reference),
      cmocka_unit_test(what_is_not_finite_is_seen),
      cmocka_unit_test(embed_widens_rows),
      cmocka_unit_test(forms_have_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
