// Short rows give back the bf16 that were packed, all of them, and linears of every level the bits
// that they have from plain rows.
#include "kernel_test.h"
#include "kernels/cpu/short_rows.h"

typedef struct packed {
  uint32_t rows, k;
  mgl_short_layout layout;
  mgl_bf16 *w;
  guarded shorts;
  size_t plain;  // groups
} packed;

static packed packed_create(uint32_t rows, uint32_t k) {
  packed p = {.rows = rows, .k = k, .layout = mgl_short_layout_of(k)};
  p.w = malloc((size_t)rows * k * sizeof *p.w);
  assert_non_null(p.w);
  p.shorts = guarded_create(mgl_short_bytes(rows, k), 0);
  return p;
}

static void packed_destroy(packed *p) {
  guarded_destroy(&p->shorts);
  free(p->w);
}

// In several calls, as workers do.
static void pack(packed *p) {
  const size_t groups = mgl_short_groups(p->rows);
  p->plain = 0;
  for (size_t begin = 0, count; begin < groups; begin += count) {
    count = 1 + random_below(3);
    count = groups - begin < count ? groups - begin : count;
    p->plain += mgl_short_pack(p->w, p->rows, p->k, begin, begin + count, p->shorts.data);
  }
  guarded_check(&p->shorts);
}

static const unsigned char *group_of(const packed *p, size_t group) {
  return (const unsigned char *)p->shorts.data + group * p->layout.bytes;
}

// Returns the patches of all groups that are not plain.
static size_t check_unpacks(const packed *p) {
  size_t plain = 0, patched = 0;
  for (size_t g = 0; g < mgl_short_groups(p->rows); g++) {
    const unsigned char *group = group_of(p, g);
    const uint32_t *first = mgl_short_patches(group, &p->layout), *patches = first;
    if (mgl_short_base(group, 0, 0) == MGL_SHORT_PLAIN) {
      plain++;
      continue;
    }
    for (uint32_t b = 0; b < p->layout.blocks; b++) {
      for (uint32_t r = 0; r < MGL_SHORT_ROWS; r++) {
        mgl_bf16 out[MGL_SHORT_BLOCK];
        mgl_short_unpack(group, &p->layout, b, r, &patches, out);
        const size_t row = g * MGL_SHORT_ROWS + r;
        for (size_t i = 0; i < MGL_SHORT_BLOCK && b * MGL_SHORT_BLOCK + i < p->k; i++) {
          if (row < p->rows) {
            assert_int_equal(out[i], p->w[row * p->k + b * MGL_SHORT_BLOCK + i]);
          }
        }
      }
    }
    patched += (size_t)(patches - first);
    assert_true((size_t)(patches - first) <= p->layout.blocks);
  }
  assert_int_equal(plain, p->plain);
  return patched;
}

// Exponents of a trained matrix's rows: most of them near the largest, one of 200 far below, one of
// 20000 far above.
static mgl_bf16 random_weight(void) {
  const uint32_t kind = random_below(20000), bits = random_bits();
  const uint32_t exponent = kind == 0    ? 100 + random_below(156)
                            : kind < 100 ? random_below(110)
                                         : 118 - (uint32_t)__builtin_ctz(bits >> 8 | 1u << 12);
  return (mgl_bf16)((bits & 0x8000u) | exponent << 7 | (bits & 0x7fu));
}

static void fill_weights(packed *p) {
  for (size_t i = 0; i < (size_t)p->rows * p->k; i++) {
    p->w[i] = random_weight();
  }
}

static void trained_weights_come_back(void **state) {
  (void)state;
  static const uint32_t ks[] = {1, 31, 127, 128, 129, 200, 256, 1000, 1024, 2048};
  size_t patched = 0, plain = 0;
  for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
    packed p = packed_create(1 + random_below(70), ks[i]);
    fill_weights(&p);
    pack(&p);
    patched += check_unpacks(&p);
    plain += p.plain;
    packed_destroy(&p);
  }
  assert_true(patched > 0 && plain > 0);  // there were groups of all kinds
}

// All 65536 numbers, in their order, from the largest one on, and in none.
static void every_number_comes_back(void **state) {
  (void)state;
  packed p = packed_create(512, 128);
  for (int order = 0; order < 3; order++) {
    for (uint32_t i = 0; i < 65536; i++) {
      p.w[i] = (mgl_bf16)(order == 0 ? i : order == 1 ? 65535 - i : random_bits());
    }
    pack(&p);
    (void)check_unpacks(&p);
    assert_true(order < 2 ? p.plain == 0 : p.plain > 0);
  }
  packed_destroy(&p);
}

// Blocks that are all but one the same.
static void outliers_come_back(void **state) {
  (void)state;
  static const mgl_bf16 values[] = {0,      0x8000, 1,      0x807f, 0x0080, 0x3f80,
                                    0xbf80, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0xffff};
  enum { count = sizeof values / sizeof *values };
  packed p = packed_create(16, 256);
  for (size_t i = 0; i < count * count; i++) {
    const mgl_bf16 usual = values[i % count], other = values[i / count];
    for (size_t j = 0; j < (size_t)16 * 256; j++) {
      p.w[j] = usual;
    }
    const size_t at = random_below(16 * 256);
    p.w[at] = other;
    pack(&p);
    const int less = (usual >> 7 & 0xff) - (other >> 7 & 0xff);
    assert_int_equal(check_unpacks(&p), less > 15 || less < -15 ? 1 : 0);
    assert_int_equal(p.plain, 0);
    packed_destroy(&p);
    p = packed_create(16, 256);
  }
  packed_destroy(&p);
}

static mgl_linear_args args_of(const packed *p, const void *x, uint32_t tokens, const float *bias,
                               const float *residual, const guarded *out, size_t first) {
  return (mgl_linear_args){.x = x,
                           .x_dtype = MGL_DTYPE_BF16,
                           .w = p->w + first * p->k,
                           .w_dtype = MGL_DTYPE_BF16,
                           .short_first = first,
                           .bias = bias,
                           .residual = residual,
                           .token_count = tokens,
                           .k = p->k,
                           .out = out->data,
                           .out_stride = p->rows};
}

typedef struct inputs {
  mgl_bf16 *x;
  float *bias, *residual;
} inputs;

static inputs inputs_create(const packed *p, uint32_t tokens) {
  inputs in = {.x = malloc((size_t)tokens * p->k * sizeof *in.x),
               .bias = malloc(p->rows * sizeof *in.bias),
               .residual = malloc((size_t)tokens * p->rows * sizeof *in.residual)};
  assert_true(in.x != NULL && in.bias != NULL && in.residual != NULL);
  fill_random(in.x, MGL_DTYPE_BF16, (size_t)tokens * p->k);
  fill_random(in.bias, MGL_DTYPE_F32, p->rows);
  fill_random(in.residual, MGL_DTYPE_F32, (size_t)tokens * p->rows);
  return in;
}

static void inputs_destroy(inputs *in) {
  free(in->x);
  free(in->bias);
  free(in->residual);
}

typedef struct range {
  size_t first, begin, end;
} range;

// Rows [first + begin, first + end) from either copy; nothing beside them is written. More tokens
// than one are packed, where short rows are read.
static void check_range(size_t l, const packed *p, const inputs *in, uint32_t tokens, range r,
                        int what) {
  const size_t bytes = ((tokens - 1) * (size_t)p->rows + p->rows - r.first) * sizeof(float);
  const float *bias = what % 2 == 0 ? NULL : in->bias;
  const float *residual = what % 3 == 0 ? NULL : in->residual;
  guarded plain = guarded_create(bytes, 0), shorts = guarded_create(bytes, 0), x = {0};
  mgl_linear_args args = args_of(p, in->x, tokens, bias, residual, &plain, r.first);
  mgl_linear_way way = level(l)->usual;
  way.many_fetch = what % 2 == 0;
  way.one.fetch = (mgl_fetch)(what % MGL_FETCH_COUNT);
  way.short_ahead = what % 4 < 2 ? 0 : 6144;
  level(l)->linear(&args, r.begin, r.end);
  args = args_of(p, in->x, tokens, bias, residual, &shorts, r.first);
  args.w_short = p->shorts.data;
  args.way = &way;
  if (tokens > 1) {
    x = guarded_create(mgl_packed_bytes(tokens, p->k, MGL_DTYPE_BF16), 0);
    args.packed = true;
    args.split = what % 2 == 0 && level(l)->splits();
    level(l)->pack(&(mgl_pack_args){.x = in->x,
                                    .dtype = MGL_DTYPE_BF16,
                                    .split = args.split,
                                    .token_count = tokens,
                                    .k = p->k,
                                    .out = x.data});
    args.x = x.data;
  }
  level(l)->linear(&args, r.begin, r.end);
  assert_memory_equal(plain.data, shorts.data, bytes);
  if (tokens > 1) {
    guarded_destroy(&x);
  }
  guarded_destroy(&plain);
  guarded_destroy(&shorts);
}

static void linears_have_the_bits_of_plain_rows(void **state) {
  (void)state;
  static const uint32_t ks[] = {1,   2,   15,  16,  17,  31,   32,   33,   63,   64,   80,  127,
                                128, 129, 144, 160, 161, 1000, 1024, 1025, 1152, 2048, 2500};
  size_t plain = 0, tried = 0;
  for (size_t i = 0; i < 4 * sizeof ks / sizeof *ks; i++) {
    packed p = packed_create(1 + random_below(60), ks[i / 4]);
    const uint32_t tokens = i % 2 == 0 ? 1 : 2 + random_below(MGL_LINEAR_MOST_SHORT - 1);
    inputs in = inputs_create(&p, tokens);
    fill_weights(&p);
    if (i % 4 > 1) {  // no NaN or infinity, so that every bit of a sum counts
      fill_random(p.w, MGL_DTYPE_BF16, (size_t)p.rows * p.k);
    }
    pack(&p);
    plain += p.plain;
    for (size_t l = 0; l < level_count(); l++) {
      if (!level(l)->shorts) {
        continue;
      }
      check_range(l, &p, &in, tokens, (range){0, 0, p.rows}, 0);
      for (int j = 0; j < 6; j++, tried++) {
        range r = {.first = random_below(p.rows)};
        const size_t rows = p.rows - r.first;
        r.begin = random_below((uint32_t)rows);
        r.end = r.begin + 1 + random_below((uint32_t)(rows - r.begin));
        check_range(l, &p, &in, tokens, r, j);
      }
    }
    inputs_destroy(&in);
    packed_destroy(&p);
  }
  assert_true(plain > 0 && tried > 0);
}

// Every number of tokens, so that tiles of all sizes and as many of them as there are have a turn;
// patches in few blocks, as trained weights have them.
static void every_number_of_tokens(void **state) {
  (void)state;
  for (uint32_t tokens = 1; tokens <= MGL_LINEAR_MOST_SHORT; tokens++) {
    packed p = packed_create(16 + random_below(30), 1100 + random_below(1100));
    inputs in = inputs_create(&p, tokens);
    fill_random(p.w, MGL_DTYPE_BF16, (size_t)p.rows * p.k);
    for (size_t i = 0; i < (size_t)p.rows * p.k; i++) {
      const mgl_bf16 usual = (mgl_bf16)((p.w[i] & 0x80ff) | (112 + random_below(14)) << 7);
      p.w[i] = random_below(5000) == 0 ? p.w[i] & 0x907f : usual;
    }
    pack(&p);
    assert_true(p.plain < mgl_short_groups(p.rows) && check_unpacks(&p) > 0);
    for (size_t l = 0; l < level_count(); l++) {
      if (!level(l)->shorts) {
        continue;
      }
      check_range(l, &p, &in, tokens, (range){0, 0, p.rows}, 0);
      check_range(l, &p, &in, tokens, (range){0, 3, p.rows - 2}, 1);
    }
    inputs_destroy(&in);
    packed_destroy(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trained_weights_come_back),
      cmocka_unit_test(every_number_comes_back),
      cmocka_unit_test(outliers_come_back),
      cmocka_unit_test(linears_have_the_bits_of_plain_rows),
      cmocka_unit_test(every_number_of_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
