// Panels of codes: what the packing kernels write is where the layout's description says, and
// decodes to what the rows hold.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/form.h"
#include "model/quantize_row.h"
#include "twin/packing.h"

typedef struct kind {
  mgl_packing packing;
  mgl_dtype dtype;
  unsigned codes;
  bool zeros;
} kind;

static const kind kinds[] = {{MGL_PACKING_E4M3, MGL_DTYPE_E4M3, 256, false},
                             {MGL_PACKING_I8, MGL_DTYPE_I8, 256, false},
                             {MGL_PACKING_I4, MGL_DTYPE_I4, 16, false},
                             {MGL_PACKING_Z4, MGL_DTYPE_I4, 16, true},
                             {MGL_PACKING_MX4, MGL_DTYPE_E2M1, 16, false}};

// A matrix in rows, with codes and scales that follow no pattern of the layout.
static unsigned char *make_rows(mgl_form form, unsigned codes, uint32_t row_count, uint32_t k,
                                uint32_t seed) {
  const mgl_row_layout layout = mgl_row_layout_of(form, k);
  unsigned char *rows = mgl_alloc(row_count * layout.bytes);
  uint8_t *row_codes = mgl_alloc(k);
  float *scales = mgl_alloc_zeroed(layout.groups, sizeof *scales);
  float *offsets = mgl_alloc_zeroed(layout.groups, sizeof *offsets);
  uint32_t x = seed * 2654435761u + 1;
  assert_true(rows != NULL && row_codes != NULL && scales != NULL && offsets != NULL);
  for (uint32_t row = 0; row < row_count; row++) {
    for (uint32_t e = 0; e < k; e++) {
      x = x * 1664525u + 1013904223u;
      row_codes[e] = (uint8_t)((x >> 16) % codes);
    }
    for (uint32_t g = 0; g < layout.groups; g++) {
      scales[g] = 0.5f + (float)(row * 131 + g * 7 + seed) * 0x1p-9f;
      if (form.dtype == MGL_DTYPE_E2M1) {  // bf16 in panels
        scales[g] = mgl_bf16_to_f32(mgl_f32_to_bf16(scales[g]));
      }
      offsets[g] = scales[g] * (float)((int)((row * 5 + g * 3 + seed) % 16) - 8);
    }
    mgl_row_write(form, k, row_codes, scales, form.offsets ? offsets : NULL,
                  rows + row * layout.bytes);
  }
  mgl_free(offsets);
  mgl_free(row_codes);
  mgl_free(scales);
  return rows;
}

// The code of an element, by the description in packing.h.
static unsigned find_code(mgl_packing packing, const uint8_t *panel, uint32_t row, uint32_t e) {
  const uint32_t u = row / 8, g = row % 8, column = e / 64, in = e % 64;
  const uint32_t j = in / 32, t = in % 32 / 8, s = in % 8 / 4, h = in % 4 / 2, i = in % 2;
  const uint32_t lane = 4 * g + t;
  uint32_t word;
  if (packing >= MGL_PACKING_I4) {
    const uint32_t bytes = packing == MGL_PACKING_MX4 ? 576 : 512;  // of 64 columns
    memcpy(&word, panel + column * bytes + 16 * lane + (2 * j + s) * 4, sizeof word);
    if (packing == MGL_PACKING_MX4) {
      const unsigned code = word >> (16 * u + 4 * (2 * i + h)) & 15;
      assert_int_not_equal(code, 8);
      return code;
    }
    return word >> (4 * (2 * h + u) + 16 * i) & 15;
  }
  return panel[column * 1024 + 512 * j + 16 * lane + (2 * s + u) * 4 + 2 * i + h];
}

static float find_scale(mgl_packing packing, const uint8_t *panel, uint32_t group, uint32_t row) {
  float scale;
  if (packing == MGL_PACKING_MX4) {
    uint16_t bits;
    memcpy(&bits, panel + group / 2 * 576 + 512 + group % 2 * 32 + row % 8 * 4 + row / 8 * 2,
           sizeof bits);
    const uint32_t word = (uint32_t)bits << 16;
    memcpy(&scale, &word, sizeof scale);
    return scale;
  }
  uint32_t codes_bytes = packing >= MGL_PACKING_I4 ? 8192 : 16384;
  uint32_t group_bytes = packing == MGL_PACKING_Z4 ? 128 : 64;
  memcpy(&scale, panel + codes_bytes + group * group_bytes + row % 8 * 8 + row / 8 * 4,
         sizeof scale);
  return scale;
}

// What is added to 128 and a nibble for the code's value: twice in a word.
static float find_zero(const uint8_t *panel, uint32_t group, uint32_t row) {
  uint32_t word;
  float zero;
  memcpy(&word, panel + 8192 + group * 128 + 64 + row % 8 * 8 + row / 8 * 4, sizeof word);
  assert_int_equal(word >> 16, word & 0xffff);
  word &= 0xffff0000u;
  memcpy(&zero, &word, sizeof zero);
  return zero;
}

static void pack(mgl_packing packing, mgl_form form, const unsigned char *rows, uint32_t row_count,
                 uint32_t k, uint32_t first_half, uint32_t stride, uint8_t *packed) {
  const mgl_row_layout layout = mgl_row_layout_of(form, k);
  const mgl_code_rows matrix = {.rows = rows,
                                .row_count = row_count,
                                .row_bytes = (uint32_t)layout.bytes,
                                .scales = (uint32_t)layout.scales,
                                .offsets = (uint32_t)layout.offsets,
                                .k = k,
                                .group = form.group};
  for (uint32_t i = 0; i < 2 * 3 * 5; i++) {
    const mgl_place at = {i / 5 % 3, 3, i % 5, 5};
    mgl_pack_codes_share(at, packing, matrix, i / 15, first_half, stride, packed);
  }
}

// Checks that row `row` of the packed matrix has the values of a row of the source; padding: 0.
static void check_row(const kind *of, mgl_form form, const unsigned char *source, uint32_t k,
                      const uint8_t *packed, uint32_t row) {
  const uint32_t group = form.group < MGL_PANEL_K ? form.group : (uint32_t)MGL_PANEL_K;
  const uint32_t panels = (k + 1023) / 1024;
  float *wanted = mgl_alloc(k * sizeof *wanted);
  mgl_row_widen(form, k, source, wanted);
  for (uint32_t e = 0; e < panels * 1024; e++) {
    const uint8_t *panel =
        packed + ((uint64_t)(row / 16) * panels + e / 1024) * mgl_panel_bytes(of->packing, group);
    float scale = find_scale(of->packing, panel, e % 1024 / group, row % 16);
    unsigned code = find_code(of->packing, panel, row % 16, e % 1024);
    float value = scale * mgl_code_value(of->dtype, code);
    if (of->zeros) {  // one rounding less than scale times code, less offset
      value = scale * (128 + (float)code + find_zero(panel, e % 1024 / group, row % 16));
      assert_true(e >= k || fabsf(value - wanted[e]) <= scale * 0x1p-19f);
      continue;
    }
    // Drawn bytes are codes of NaN too, which no reader of weights lets through.
    assert_true(e < k ? value == wanted[e] || (isnan(value) && isnan(wanted[e])) : value == 0);
  }
  mgl_free(wanted);
}

static void panels_hold_what_the_rows_do(void **state) {
  (void)state;
  static const struct {
    uint32_t rows, k, group;
  } shapes[] = {{16, 1024, 128},
                {24, 1088, 32},
                {40, 2048, 1024},
                {9, 192, MGL_FORM_WHOLE_ROW},
                {16, 3072, MGL_FORM_WHOLE_ROW}};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++) {
      const uint32_t rows = shapes[j].rows, k = shapes[j].k;
      const mgl_form form = {
          .dtype = kinds[i].dtype, .group = shapes[j].group, .offsets = kinds[i].zeros};
      if (kinds[i].packing == MGL_PACKING_MX4 && form.group != MGL_MX4_GROUP) {
        continue;
      }
      const uint32_t group = form.group < MGL_PANEL_K ? form.group : (uint32_t)MGL_PANEL_K;
      size_t bytes =
          (rows + 15) / 16 * (size_t)((k + 1023) / 1024) * mgl_panel_bytes(kinds[i].packing, group);
      unsigned char *source = make_rows(form, kinds[i].codes, rows, k, (uint32_t)(i + j));
      uint8_t *packed = mgl_alloc(bytes);
      memset(packed, 0xa5, bytes);
      pack(kinds[i].packing, form, source, rows, k, 0, 1, packed);
      for (uint32_t row = 0; row < rows; row++) {
        check_row(&kinds[i], form, source + row * mgl_row_layout_of(form, k).bytes, k, packed, row);
      }
      mgl_free(packed);
      mgl_free(source);
    }
  }
}

// Rows of `slots` matrices one behind the other, as one matrix.
static unsigned char *join_rows(mgl_form form, unsigned char *const *sources, uint32_t slots,
                                uint32_t row_count, uint32_t k) {
  const mgl_row_layout one = mgl_row_layout_of(form, k), all = mgl_row_layout_of(form, slots * k);
  const size_t scales_bytes = one.groups * sizeof(float);
  unsigned char *rows = mgl_alloc_zeroed(row_count, all.bytes);
  assert_non_null(rows);
  for (uint32_t row = 0; row < row_count; row++) {
    for (uint32_t slot = 0; slot < slots; slot++) {
      const unsigned char *from = sources[slot] + row * one.bytes;
      unsigned char *to = rows + row * all.bytes;
      const size_t codes = mgl_code_is_nibble(form.dtype) ? k / 2 : k;
      memcpy(to + slot * codes, from, codes);
      memcpy(to + all.scales + slot * scales_bytes, from + one.scales, scales_bytes);
      if (form.offsets) {
        memcpy(to + all.offsets + slot * scales_bytes, from + one.offsets, scales_bytes);
      }
    }
  }
  return rows;
}

// Panel after panel of a row block of all slots, from the panels of each.
static void join_panels(mgl_packing packing, uint32_t panel_bytes, uint8_t *const *packed,
                        uint32_t slots, uint32_t k, uint8_t *out) {
  uint32_t slot = 0, column = 0;
  for (uint32_t panel = 0; panel < slots * k / MGL_PANEL_K; panel++, out += panel_bytes) {
    for (uint32_t done = 0; done < MGL_PANEL_K;) {
      const mgl_panel_part part = mgl_panel_part_of(packing, panel_bytes, done, column, k);
      assert_true(slot < slots && part.columns > 0);
      assert_true(part.codes_bytes % 16 == 0 && part.scales_bytes % 16 == 0);  // bulk copies
      memcpy(out + part.codes_to, packed[slot] + part.codes_from, part.codes_bytes);
      memcpy(out + part.scales_to, packed[slot] + part.scales_from, part.scales_bytes);
      done += part.columns;
      column += part.columns;
      slot += column == k ? 1 : 0;
      column = column == k ? 0 : column;
    }
  }
  assert_int_equal(slot, slots);
}

// Down of a mixture: what is put together from the panels of a token's experts are the panels of
// their rows one behind the other.
static void panels_of_slots_are_those_of_one_row(void **state) {
  (void)state;
  enum { ROWS = 16, MOST_SLOTS = 8 };
  static const struct {
    uint32_t k, slots, group;
  } shapes[] = {{128, 8, 128}, {768, 4, 128}, {1536, 2, 32}, {256, 8, 64}, {2048, 2, 1024}};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++) {
      const uint32_t k = shapes[j].k, slots = shapes[j].slots;
      const mgl_form form = {
          .dtype = kinds[i].dtype, .group = shapes[j].group, .offsets = kinds[i].zeros};
      if (kinds[i].packing == MGL_PACKING_MX4 && form.group != MGL_MX4_GROUP) {
        continue;
      }
      const uint32_t panel_bytes = mgl_panel_bytes(kinds[i].packing, form.group);
      const size_t bytes = (size_t)slots * k / MGL_PANEL_K * panel_bytes;
      unsigned char *sources[MOST_SLOTS];
      uint8_t *packed[MOST_SLOTS];
      for (uint32_t slot = 0; slot < slots; slot++) {
        sources[slot] = make_rows(form, kinds[i].codes, ROWS, k, slot);
        packed[slot] = mgl_alloc((size_t)mgl_panels_of(k) * panel_bytes);
        pack(kinds[i].packing, form, sources[slot], ROWS, k, 0, 1, packed[slot]);
      }
      unsigned char *rows = join_rows(form, sources, slots, ROWS, k);
      uint8_t *wanted = mgl_alloc(bytes), *found = mgl_alloc(bytes);
      memset(wanted, 0, bytes);
      memset(found, 0xa5, bytes);
      pack(kinds[i].packing, form, rows, ROWS, slots * k, 0, 1, wanted);
      join_panels(kinds[i].packing, panel_bytes, packed, slots, k, found);
      assert_memory_equal(found, wanted, bytes);
      for (uint32_t slot = 0; slot < slots; slot++) {
        mgl_free(sources[slot]);
        mgl_free(packed[slot]);
      }
      mgl_free(rows);
      mgl_free(wanted);
      mgl_free(found);
    }
  }
}

// Gate and up have halves of row blocks in turn, and neither call touches the other's.
static void gate_and_up_share_words(void **state) {
  (void)state;
  enum { ROWS = 24, K = 1024 };
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    const uint32_t group = kinds[i].packing == MGL_PACKING_MX4 ? MGL_MX4_GROUP : 64;
    const mgl_form form = {.dtype = kinds[i].dtype, .group = group, .offsets = kinds[i].zeros};
    size_t row_bytes = mgl_row_layout_of(form, K).bytes;
    size_t bytes = ROWS / 8 * (size_t)mgl_panel_bytes(kinds[i].packing, group);
    unsigned char *gate = make_rows(form, kinds[i].codes, ROWS, K, 3);
    unsigned char *up = make_rows(form, kinds[i].codes, ROWS, K, 4);
    uint8_t *packed = mgl_alloc(bytes);
    memset(packed, 0xa5, bytes);
    pack(kinds[i].packing, form, gate, ROWS, K, 0, 2, packed);
    pack(kinds[i].packing, form, up, ROWS, K, 1, 2, packed);
    for (uint32_t row = 0; row < ROWS; row++) {
      uint32_t at = row / 8 * 16 + row % 8;
      check_row(&kinds[i], form, gate + row * row_bytes, K, packed, at);
      check_row(&kinds[i], form, up + row * row_bytes, K, packed, at + 8);
    }
    mgl_free(packed);
    mgl_free(gate);
    mgl_free(up);
  }
}

// Of offsets that are whole numbers of scales, and of others.
static void zero_points_are_found(void **state) {
  (void)state;
  for (int zero = -8; zero <= 7; zero++) {
    for (int i = 1; i < 100; i++) {
      const float scale = (float)i * 0x1.23456p-9f;
      assert_int_equal(mgl_zero_of(scale, scale * (float)zero), zero);
      assert_int_equal(mgl_zero_of(scale, scale * ((float)zero + 0.25f)), MGL_NO_ZERO);
    }
  }
  assert_int_equal(mgl_zero_of(0, 0), 0);
  assert_int_equal(mgl_zero_of(0, 1), MGL_NO_ZERO);
  assert_int_equal(mgl_zero_of(1, 101), MGL_NO_ZERO);
}

// Rows of I4 with offsets have zero points, and lie near what they stand for.
static void drawn_offsets_are_zero_points(void **state) {
  (void)state;
  enum { K = 256 };
  const mgl_form form = {.dtype = MGL_DTYPE_I4, .group = 64, .offsets = true};
  mgl_error err = {0};
  mgl_row_quantiser q;
  bool any = false;
  assert_int_equal(mgl_row_quantiser_create(form, K, &q, &err), MGL_OK);
  for (uint32_t i = 0; i < K; i++) {
    q.values[i] = (float)(i * 7919 % 101) * 0.01f - 0.25f;
  }
  mgl_row_quantise(&q, MGL_QUANTISE_RANGE);
  for (uint32_t i = 0; i < K; i++) {
    const float scale = q.scales[i / form.group], offset = q.offsets[i / form.group];
    const int32_t zero = mgl_zero_of(scale, offset);
    const float value = scale * mgl_code_value(form.dtype, q.codes[i]) - offset;
    assert_true(zero != MGL_NO_ZERO);
    any = any || zero != 0;
    assert_true(fabsf(value - q.values[i]) <= 1.1f * scale);  // clipped: the zero is rounded too
  }
  assert_true(any);
  mgl_row_quantiser_destroy(&q);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(panels_hold_what_the_rows_do),
      cmocka_unit_test(panels_of_slots_are_those_of_one_row),
      cmocka_unit_test(gate_and_up_share_words),
      cmocka_unit_test(zero_points_are_found),
      cmocka_unit_test(drawn_offsets_are_zero_points),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
