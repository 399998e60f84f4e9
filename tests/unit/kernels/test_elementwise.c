// The ops that work by element or by row, at every level: embed, rmsnorm, layernorm, rope_angles,
// rope, kv_write, silu_mul, gelu, add, and the read stream. Each test states its bound where it checks it; u is
// 2^-24. Each also splits the units at random and compares bits with the whole range.
#include "kernel_test.h"

static const size_t widths[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 80, 100, 129, 240, 1024};
enum { width_count = sizeof widths / sizeof *widths };

static void embed_copies_rows_exactly(void **state) {
  (void)state;
  static const mgl_dtype dtypes[] = {MGL_DTYPE_F32, MGL_DTYPE_F16, MGL_DTYPE_BF16};
  enum { vocabulary = 11, tokens = 5 };
  static const int32_t ids[tokens] = {3, 10, 0, 3, 7};
  for (size_t w = 0; w < width_count; w++) {
    for (size_t d = 0; d < 3; d++) {
      size_t width = widths[w];
      guarded table =
          guarded_create(vocabulary * width * mgl_dtype_bytes(dtypes[d]), random_below(64));
      fill_random(table.data, dtypes[d], vocabulary * width);
      for (size_t l = 0; l < level_count(); l++) {
        guarded out = guarded_create(tokens * width * sizeof(float), 0);
        mgl_embed_args args = {.tokens = ids,
                               .table = table.data,
                               .table_dtype = dtypes[d],
                               .width = (uint32_t)width,
                               .out = out.data};
        level(l)->embed(&args, 0, 2);
        level(l)->embed(&args, 2, tokens);
        for (size_t i = 0; i < tokens * width; i++) {
          float expected =
              element_load(table.data, dtypes[d], (size_t)ids[i / width] * width + i % width);
          assert_memory_equal(&((float *)out.data)[i], &expected, sizeof expected);
        }
        guarded_destroy(&out);
      }
      guarded_destroy(&table);
    }
  }
}

// The squares are a sum of positive terms: relative error (width + 8) u at most in any order; half
// of it remains after the root, and five roundings follow.
static void rmsnorm_matches_reference(void **state) {
  (void)state;
  enum { rows = 4, source_rows = 9 };
  static const uint32_t index[rows] = {8, 0, 3, 3};
  for (size_t w = 0; w < width_count; w++) {
    size_t width = widths[w];
    guarded x = guarded_create(source_rows * width * sizeof(float), 0);
    guarded weight = guarded_create(width * sizeof(float), 0);
    fill_random(x.data, MGL_DTYPE_F32, source_rows * width);
    fill_random(weight.data, MGL_DTYPE_F32, width);
    for (size_t l = 0; l < 4 * level_count(); l++) {
      bool gather = l % 2, bf16 = l / 2 % 2;
      mgl_dtype dtype = bf16 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
      guarded out = guarded_create(rows * width * mgl_dtype_bytes(dtype), 0);
      mgl_rmsnorm_args args = {
          x.data, gather ? index : NULL, weight.data, (uint32_t)width, 1e-6f, out.data, dtype,
          NULL};
      level(l / 4)->rmsnorm(&args, 0, 1);
      level(l / 4)->rmsnorm(&args, 1, rows);
      for (size_t r = 0; r < rows; r++) {
        const float *row = (float *)x.data + (gather ? index[r] : r) * width;
        double squares = 0;
        for (size_t i = 0; i < width; i++) {
          squares += (double)row[i] * (double)row[i];
        }
        double inverse = 1 / sqrt(squares / (double)width + (double)1e-6f);
        for (size_t i = 0; i < width; i++) {
          double expected = (double)row[i] * inverse * (double)((float *)weight.data)[i];
          double bound = ((double)width / 2 + 10) * F32_ROUNDOFF * fabs(expected);
          check_close(element_load(out.data, dtype, r * width + i), expected, bound, dtype);
        }
      }
      guarded_destroy(&out);
    }
    guarded_destroy(&x);
    guarded_destroy(&weight);
  }
}

// The mean is off by (width + 2) u of the mean size, and so is each difference from it, absolutely;
// the variance, a sum of positive terms, by twice that relatively and by the square of the mean's
// error, which eps hides; then as above.
static void layernorm_matches_reference(void **state) {
  (void)state;
  enum { rows = 4, source_rows = 9 };
  static const uint32_t index[rows] = {8, 0, 3, 3};
  for (size_t w = 0; w < width_count; w++) {
    size_t width = widths[w];
    guarded x = guarded_create(source_rows * width * sizeof(float), 0);
    guarded vectors = guarded_create(2 * width * sizeof(float), 0);
    const float *weight = (float *)vectors.data, *shift = weight + width;
    fill_random(x.data, MGL_DTYPE_F32, source_rows * width);
    fill_random(vectors.data, MGL_DTYPE_F32, 2 * width);
    for (size_t l = 0; l < 4 * level_count(); l++) {
      bool gather = l % 2, bf16 = l / 2 % 2;
      mgl_dtype dtype = bf16 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
      guarded out = guarded_create(rows * width * mgl_dtype_bytes(dtype), 0);
      mgl_rmsnorm_args args = {.x = (float *)x.data,
                               .x_row_index = gather ? index : NULL,
                               .weight = weight,
                               .shift = shift,
                               .width = (uint32_t)width,
                               .eps = 1e-3f,
                               .out = out.data,
                               .out_dtype = dtype};
      level(l / 4)->layernorm(&args, 0, 1);
      level(l / 4)->layernorm(&args, 1, rows);
      for (size_t r = 0; r < rows; r++) {
        const float *row = (float *)x.data + (gather ? index[r] : r) * width;
        double sum = 0, size = 0, squares = 0;
        for (size_t i = 0; i < width; i++) {
          sum += (double)row[i];
          size += fabs((double)row[i]);
        }
        double mean = sum / (double)width;
        for (size_t i = 0; i < width; i++) {
          squares += ((double)row[i] - mean) * ((double)row[i] - mean);
        }
        double inverse = 1 / sqrt(squares / (double)width + (double)1e-3f);
        double relative = ((double)width + 12) * F32_ROUNDOFF;
        for (size_t i = 0; i < width; i++) {
          double scaled = ((double)row[i] - mean) * inverse * (double)weight[i];
          double of_mean = relative * (size / (double)width + fabs((double)row[i])) * inverse;
          double bound = 2 * relative * fabs(scaled) + of_mean * fabs((double)weight[i]) +
                         2 * F32_ROUNDOFF * (fabs(scaled) + fabs((double)shift[i]));
          check_close(element_load(out.data, dtype, r * width + i), scaled + (double)shift[i],
                      bound, dtype);
        }
      }
      guarded_destroy(&out);
    }
    guarded_destroy(&x);
    guarded_destroy(&vectors);
  }
}

// cos and sin of the angle rounded to f32: within 1.5 ulp of values up to 1.
static void rope_angles_are_exact_at_large_positions(void **state) {
  (void)state;
  static const uint32_t positions[] = {0, 1, 17, 1000, 40959, 131071, 1000000, 2000003};
  enum { tokens = 8, half = 40 };
  float inv_freq[half];
  for (int i = 0; i < half; i++) {
    inv_freq[i] = (float)pow(1e6, -(double)i / half);
  }
  for (size_t l = 0; l < level_count(); l++) {
    guarded out = guarded_create(tokens * half * 2 * sizeof(float), 0);
    mgl_rope_angles_args args = {.positions = positions,
                                 .inv_freq = inv_freq,
                                 .half_dim = half,
                                 .amplitude = 1,
                                 .out = out.data};
    level(l)->rope_angles(&args, 0, 3);
    level(l)->rope_angles(&args, 3, tokens);
    for (size_t i = 0; i < tokens * half; i++) {
      volatile float angle = (float)positions[i / half] * inv_freq[i % half];
      const float *pair = (float *)out.data + 2 * i;
      check_close(pair[0], cos((double)angle), 1.5 * 0x1p-24, MGL_DTYPE_F32);
      check_close(pair[1], sin((double)angle), 1.5 * 0x1p-24, MGL_DTYPE_F32);
    }
    guarded_destroy(&out);
  }
}

// Rows above the original length take the second frequencies, or those of a base that grows; cos and
// sin are multiplied.
static void rope_angles_follow_the_length(void **state) {
  (void)state;
  enum { half = 3 };
  static const uint32_t positions[] = {5, 5, 5}, lengths[] = {64, 65, 640};
  static const float inv_freq[2 * half] = {1, 0.1f, 0.01f, 0.5f, 0.05f, 0.005f};
  for (int grows = 0; grows < 2; grows++) {
    float out[3][half][2];
    mgl_rope_angles_args args = {.positions = positions,
                                 .lengths = lengths,
                                 .inv_freq = inv_freq,
                                 .half_dim = half,
                                 .amplitude = 2,
                                 .original = 64,
                                 .theta = grows ? 1000 : 0,
                                 .factor = grows ? 4 : 0,
                                 .out = &out[0][0][0]};
    mgl_cpu_kernels_for(MGL_SIMD_SCALAR)->rope_angles(&args, 0, 3);
    for (uint32_t t = 0; t < 3; t++) {
      // 1000 * (4 * length / 64 - 3)^(6 / 4), as transformers computes it
      double base = 1000 * pow(4.0 * lengths[t] / 64 - 3, 1.5);
      for (uint32_t i = 0; i < half; i++) {
        double freq = t == 0  ? (double)inv_freq[i]
                      : grows ? pow(base, -2.0 * i / 6)
                              : (double)inv_freq[half + i];
        assert_true(fabs((double)out[t][i][0] - 2 * cos(5 * freq)) < 1e-5);
        assert_true(fabs((double)out[t][i][1] - 2 * sin(5 * freq)) < 1e-5);
      }
    }
  }
}

// Two products and a sum: at most 2 u (|a| + |b|). What does not turn stays as it is.
static void rope_matches_reference(void **state) {
  (void)state;
  static const uint32_t dims[][2] = {{2, 2},   {16, 16}, {30, 30},   {32, 32},   {64, 64},
                                     {80, 80}, {96, 96}, {128, 128}, {256, 256}, {16, 2},
                                     {64, 48}, {80, 32}, {128, 96},  {256, 6}};
  enum { tokens = 5, heads = 3 };
  for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
    size_t head_dim = dims[d][0], rotary_dim = dims[d][1], half = rotary_dim / 2;
    size_t count = tokens * heads * head_dim;
    guarded angles = guarded_create(tokens * rotary_dim * sizeof(float), 0);
    fill_random(angles.data, MGL_DTYPE_F32, tokens * rotary_dim);
    guarded before = guarded_create(count * sizeof(float), 0);
    fill_random(before.data, MGL_DTYPE_F32, count);
    for (size_t l = 0; l < level_count(); l++) {
      guarded x = guarded_create(count * sizeof(float), 0);
      memcpy(x.data, before.data, x.bytes);
      mgl_rope_args args = {x.data, angles.data, heads, (uint32_t)head_dim, (uint32_t)rotary_dim};
      level(l)->rope(&args, 0, 2);
      level(l)->rope(&args, 2, tokens);
      for (size_t i = 0; i < count; i++) {
        size_t row = i / head_dim, lane = i % head_dim, pair = lane % half;
        const float *old = (float *)before.data + row * head_dim;
        const float *angle = (float *)angles.data + row / heads * rotary_dim + 2 * pair;
        if (lane >= rotary_dim) {
          assert_memory_equal((float *)x.data + i, old + lane, sizeof *old);
          continue;
        }
        double cosine = (double)angle[0], sine = (double)angle[1];
        double a = (double)old[lane] * cosine;
        double b = lane < half ? -(double)old[pair + half] * sine : (double)old[pair] * sine;
        check_close(((float *)x.data)[i], a + b, 2 * F32_ROUNDOFF * (fabs(a) + fabs(b)),
                    MGL_DTYPE_F32);
      }
      guarded_destroy(&x);
    }
    guarded_destroy(&angles);
    guarded_destroy(&before);
  }
}

// Every element of a slot is the rounded input, every other element stays untouched: heads that
// were not asked for, and other slots. The inputs stand alone, or in wider rows.
static void kv_write_rounds_into_slots(void **state) {
  (void)state;
  enum { tokens = 4, heads = 2, pages = 3 };
  static const uint32_t head_dims[] = {2, 30, 64, 80, 128};
  static const mgl_dtype dtypes[] = {MGL_DTYPE_BF16, MGL_DTYPE_F32, MGL_DTYPE_KV8};
  for (size_t i = 0; i < 3 * 5 * level_count(); i++) {
    mgl_dtype dtype = dtypes[i / 5 % 3];
    size_t l = i / 15, head_dim = head_dims[i % 5], page_tokens = i % 3 ? 16 : 32;
    uint32_t slots[tokens] = {(uint32_t)page_tokens, 15, (uint32_t)page_tokens * 3 - 1, 7};
    uint32_t head_begin = i % 3 == 1, head_end = i % 3 == 2 ? 1 : heads;
    size_t slot_floats = heads * head_dim, stride = slot_floats + (i % 4) * 3;
    size_t count = tokens * stride;
    guarded k = guarded_create(count * sizeof(float), 0), v = guarded_create(k.bytes, 0);
    fill_random(k.data, MGL_DTYPE_F32, count);
    fill_random(v.data, MGL_DTYPE_F32, count);
    ((float *)k.data)[3] = NAN;
    size_t cached = pages * page_tokens * slot_floats;
    guarded k_cache = guarded_create(cached * mgl_dtype_bytes(dtype), 0);
    guarded v_cache = guarded_create(cached * mgl_dtype_bytes(dtype), 0);
    mgl_kv_layer kv = {k_cache.data, v_cache.data,       dtype,  (uint32_t)page_tokens,
                       heads,        (uint32_t)head_dim, 0.003f, 1.5f,
                       pages};
    const float k_scale = dtype == MGL_DTYPE_KV8 ? kv.k_scale : 1;
    const float v_scale = dtype == MGL_DTYPE_KV8 ? kv.v_scale : 1;
    mgl_kv_write_args args = {.k = (float *)k.data + head_begin * head_dim,
                              .v = (float *)v.data + head_begin * head_dim,
                              .k_stride = stride,
                              .v_stride = stride,
                              .head_begin = head_begin,
                              .head_end = head_end,
                              .slots = slots,
                              .kv = kv};
    level(l)->kv_write(&args, 0, 1);
    level(l)->kv_write(&args, 1, tokens);
    for (size_t slot = 0; slot < pages * page_tokens; slot++) {
      size_t t = 0;
      while (t < tokens && slots[t] != slot) {
        t++;
      }
      for (size_t j = 0; j < slot_floats; j++) {
        size_t block = j / head_dim * pages + slot / page_tokens, d = j % head_dim;
        size_t offset = slot % page_tokens;
        float key =
            element_load(k_cache.data, dtype, (block * head_dim + d) * page_tokens + offset);
        float value =
            element_load(v_cache.data, dtype, (block * page_tokens + offset) * head_dim + d);
        float expected_key = NAN, expected_value = NAN;
        if (t < tokens && j / head_dim >= head_begin && j / head_dim < head_end) {
          element_store(&expected_key, dtype, 0, ((float *)k.data)[t * stride + j] / k_scale);
          element_store(&expected_value, dtype, 0, ((float *)v.data)[t * stride + j] / v_scale);
          expected_key = element_load(&expected_key, dtype, 0);
          expected_value = element_load(&expected_value, dtype, 0);
        }
        assert_true(key == expected_key || (isnan(key) && isnan(expected_key)));
        assert_true(value == expected_value || (isnan(value) && isnan(expected_value)));
      }
    }
    guarded_destroy(&k);
    guarded_destroy(&v);
    guarded_destroy(&k_cache);
    guarded_destroy(&v_cache);
  }
}

// The codes of every level are those of mgl_f32_to_e4m3, bit for bit: around the middles between all
// neighbours, where subnormals begin, beyond the largest, and of -0, infinities and NaN.
static void kv_write_rounds_to_codes_as_the_reference(void **state) {
  (void)state;
  enum { page_tokens = 16, head_dim = 512, cases = page_tokens * head_dim };
  static float values[cases];
  static const float ends[] = {0, 0x1p-10f, 0x1p-9f, 0x1p-6f, 448, 464, 480, 1e30f, INFINITY, NAN};
  size_t count = 0;
  for (unsigned code = 0; code < 0x7e; code++) {
    float middle = (mgl_e4m3_to_f32((uint8_t)code) + mgl_e4m3_to_f32((uint8_t)(code + 1))) / 2;
    values[count++] = middle;
    values[count++] = nextafterf(middle, 0);
    values[count++] = nextafterf(middle, INFINITY);
    values[count++] = mgl_e4m3_to_f32((uint8_t)code);
  }
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    values[count++] = ends[i];
    values[count++] = nextafterf(ends[i], INFINITY);
    values[count++] = nextafterf(ends[i], 0);
  }
  for (size_t i = 0; i < count; i++) {
    values[count + i] = -values[i];
  }
  for (count *= 2; count < cases; count++) {
    const uint32_t bits = random_bits();
    memcpy(&values[count], &bits, sizeof bits);
  }
  for (size_t l = 0; l < level_count(); l++) {
    guarded k_cache = guarded_create(cases, 0), v_cache = guarded_create(cases, 0);
    uint32_t slots[page_tokens];
    for (uint32_t t = 0; t < page_tokens; t++) {
      slots[t] = t;
    }
    mgl_kv_write_args args = {
        .k = values,
        .v = values,
        .k_stride = head_dim,
        .v_stride = head_dim,
        .head_end = 1,
        .slots = slots,
        .kv = {k_cache.data, v_cache.data, MGL_DTYPE_KV8, page_tokens, 1, head_dim, 1, 1, 1}};
    level(l)->kv_write(&args, 0, page_tokens);
    for (size_t i = 0; i < cases; i++) {
      const uint8_t expected = mgl_f32_to_e4m3(values[i]);
      const size_t column = i % head_dim * page_tokens + i / head_dim;
      assert_int_equal(((const uint8_t *)v_cache.data)[i], expected);
      assert_int_equal(((const uint8_t *)k_cache.data)[column], expected);
    }
    guarded_destroy(&k_cache);
    guarded_destroy(&v_cache);
  }
}

static float silu_input(size_t i, size_t count) {
  static const float special[] = {0.0f,   -0.0f, 88.0f,  -88.0f, 89.0f,  -87.4f, -103.9f,
                                  104.0f, 1e30f, -1e30f, 3e38f,  -3e38f, 1e-40f, -1e-40f};
  size_t special_count = sizeof special / sizeof *special;
  if (i < special_count) {
    return special[i];
  }
  return ((float)i / (float)count - 0.5f) * 220.0f + random_float() * 0.01f;
}

// exp within 1.01 ulp, a sum, a quotient and a product: 6 u relative. Where exp(-x) nears overflow
// the quotient is below 2^-119 and may be flushed by rounding to infinity: an absolute 2^-119 |up|.
static void silu_mul_matches_reference(void **state) {
  (void)state;
  static const size_t counts[] = {1, 5, 8, 31, 33, 20000};
  for (size_t c = 0; c < 6; c++) {
    size_t count = counts[c];
    guarded gate = guarded_create(count * sizeof(float), 4);
    guarded up = guarded_create(count * sizeof(float), 8);
    fill_random(up.data, MGL_DTYPE_F32, count);
    for (size_t i = 0; i < count; i++) {
      ((float *)gate.data)[i] = silu_input(i, count);
    }
    for (size_t l = 0; l < 2 * level_count(); l++) {
      mgl_dtype dtype = l % 2 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
      guarded out = guarded_create(count * mgl_dtype_bytes(dtype), 0);
      guarded whole = guarded_create(out.bytes, 0);
      mgl_silu_mul_args args = {gate.data, up.data, out.data, dtype};
      for (size_t begin = 0, end; begin < count; begin = end) {
        end = begin + 1 + random_below((uint32_t)(count - begin < 100 ? count - begin : 100));
        level(l / 2)->silu_mul(&args, begin, end);
      }
      args.out = whole.data;
      level(l / 2)->silu_mul(&args, 0, count);
      assert_memory_equal(out.data, whole.data, out.bytes);
      for (size_t i = 0; i < count; i++) {
        double x = (double)((float *)gate.data)[i], y = (double)((float *)up.data)[i];
        double expected = x / (1 + exp(-x)) * y;
        double bound = 6 * F32_ROUNDOFF * fabs(expected) + 0x1p-119 * (fabs(y) + 1);
        check_close(element_load(out.data, dtype, i), fabs(expected) > 3.4e38 ? INFINITY : expected,
                    bound, dtype);
      }
      guarded_destroy(&out);
      guarded_destroy(&whole);
    }
    guarded_destroy(&gate);
    guarded_destroy(&up);
  }
}

// The inner polynomial is off by 5 u of its largest term, which exp turns into that relative error;
// exp, a sum and a quotient add 4 u. Where exp nears overflow the quotient is below 2^-119.
static void gelu_matches_reference(void **state) {
  (void)state;
  static const size_t counts[] = {1, 5, 8, 31, 33, 20000};
  for (size_t c = 0; c < 6; c++) {
    size_t count = counts[c];
    guarded in = guarded_create(count * sizeof(float), 4);
    for (size_t i = 0; i < count; i++) {
      ((float *)in.data)[i] = silu_input(i, count) / 8;
    }
    for (size_t l = 0; l < 2 * level_count(); l++) {
      mgl_dtype dtype = l % 2 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
      guarded out = guarded_create(count * mgl_dtype_bytes(dtype), 0);
      guarded whole = guarded_create(out.bytes, 0);
      mgl_gelu_args args = {(float *)in.data, out.data, dtype};
      for (size_t begin = 0, end; begin < count; begin = end) {
        end = begin + 1 + random_below((uint32_t)(count - begin < 100 ? count - begin : 100));
        level(l / 2)->gelu(&args, begin, end);
      }
      args.out = whole.data;
      level(l / 2)->gelu(&args, 0, count);
      assert_memory_equal(out.data, whole.data, out.bytes);
      for (size_t i = 0; i < count; i++) {
        double x = (double)((float *)in.data)[i];
        double inner = 2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
        double expected = x / (1 + exp(-inner));
        double bound = (8 * fabs(inner) + 6) * F32_ROUNDOFF * fabs(expected) + 0x1p-119;
        check_close(element_load(out.data, dtype, i), expected, bound, dtype);
      }
      guarded_destroy(&out);
      guarded_destroy(&whole);
    }
    guarded_destroy(&in);
  }
}

// Ties, overflow to infinity, NaN payloads: silu of 200 is 200, so out = bf16(200 * up).
static void bf16_outputs_round_to_nearest_even(void **state) {
  (void)state;
  enum { count = 37 };
  float gate[count], up[count];
  for (int i = 0; i < count; i++) {
    uint32_t bits = i == 5 ? 0x7f800001u : i == 9 ? 0xff812345u : random_bits();
    if (i % 3 == 0) {
      bits = (bits & 0xffff0000u) | 0x8000u;  // a tie
    }
    gate[i] = 128.0f;  // a power of two: the product is exact
    memcpy(&up[i], &bits, sizeof bits);
    up[i] *= i % 2 ? 1.0f : 0x1p-7f;
  }
  for (size_t l = 0; l < level_count(); l++) {
    guarded out = guarded_create(count * sizeof(mgl_bf16), 0);
    mgl_silu_mul_args args = {gate, up, out.data, MGL_DTYPE_BF16};
    level(l)->silu_mul(&args, 0, count);
    for (int i = 0; i < count; i++) {
      float expected = mgl_bf16_to_f32(mgl_f32_to_bf16(128.0f * up[i]));
      float found = mgl_bf16_to_f32(((mgl_bf16 *)out.data)[i]);
      assert_true(found == expected || (isnan(found) && isnan(expected)));
    }
    guarded_destroy(&out);
  }
}

static void add_is_exact(void **state) {
  (void)state;
  for (size_t w = 0; w < width_count; w++) {
    size_t count = widths[w];
    guarded y = guarded_create(count * sizeof(float), 4);
    fill_random(y.data, MGL_DTYPE_F32, count);
    for (size_t l = 0; l < level_count(); l++) {
      guarded x = guarded_create(count * sizeof(float), 12);
      fill_random(x.data, MGL_DTYPE_F32, count);
      float *before = malloc(count * sizeof *before);
      memcpy(before, x.data, x.bytes);
      mgl_add_args args = {x.data, y.data};
      size_t middle = random_below((uint32_t)count);
      level(l)->add(&args, 0, middle);
      level(l)->add(&args, middle, count);
      for (size_t i = 0; i < count; i++) {
        assert_true(((float *)x.data)[i] == before[i] + ((float *)y.data)[i]);
      }
      free(before);
      guarded_destroy(&x);
    }
    guarded_destroy(&y);
  }
}

static void read_stream_sums_every_word(void **state) {
  (void)state;
  for (size_t bytes = 0; bytes < 1500; bytes += 1 + random_below(90)) {
    guarded memory = guarded_create(bytes, random_below(64));
    for (size_t i = 0; i < bytes; i++) {
      ((unsigned char *)memory.data)[i] = (unsigned char)random_bits();
    }
    uint64_t expected = mgl_cpu_read_stream(MGL_SIMD_SCALAR, memory.data, bytes);
    for (size_t l = 1; l < level_count(); l++) {
      assert_true(mgl_cpu_read_stream((mgl_simd)l, memory.data, bytes) == expected);
    }
    guarded_destroy(&memory);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(embed_copies_rows_exactly),
      cmocka_unit_test(rmsnorm_matches_reference),
      cmocka_unit_test(layernorm_matches_reference),
      cmocka_unit_test(gelu_matches_reference),
      cmocka_unit_test(rope_angles_are_exact_at_large_positions),
      cmocka_unit_test(rope_angles_follow_the_length),
      cmocka_unit_test(rope_matches_reference),
      cmocka_unit_test(kv_write_rounds_into_slots),
      cmocka_unit_test(kv_write_rounds_to_codes_as_the_reference),
      cmocka_unit_test(silu_mul_matches_reference),
      cmocka_unit_test(bf16_outputs_round_to_nearest_even),
      cmocka_unit_test(add_is_exact),
      cmocka_unit_test(read_stream_sums_every_word),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
