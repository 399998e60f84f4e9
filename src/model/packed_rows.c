// Rows of quantised matrices, spelling by spelling: stored tensors to codes, scales and offsets.
//
// Written for reading. A row costs some ns an element, once, when a model is loaded. Integers of
// files are little-endian and aligned to nothing, so they are gathered from bytes.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "model/packed_weights.h"

static uint32_t word_at(const mgl_stored_tensor *tensor, uint64_t i) {
  const unsigned char *b = (const unsigned char *)tensor->data + 4 * i;
  return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint8_t byte_at(const mgl_stored_tensor *tensor, uint64_t i) {
  return ((const uint8_t *)tensor->data)[i];
}

// A scale of any dtype that scales have. E8M0: 2^(byte - 127), where 255 is NaN.
static float scale_at(const mgl_stored_tensor *tensor, uint64_t i) {
  const char *dtype = tensor->stored_dtype;
  float value;
  if (strcmp(dtype, "F8_E4M3") == 0) {
    return mgl_e4m3_to_f32(byte_at(tensor, i));
  }
  if (strcmp(dtype, "F8_E8M0") == 0 || strcmp(dtype, "U8") == 0) {
    unsigned bits = byte_at(tensor, i);
    return bits == 255 ? NAN : ldexpf(1, (int)bits - 127);
  }
  size_t bytes = mgl_dtype_bytes(tensor->dtype);
  mgl_widen_f32(tensor->dtype, (const char *)tensor->data + i * bytes, 1, &value);
  return value;
}

// The scales of a row that stand as [rows or blocks of rows, groups].
static void read_scales(const mgl_packed_matrix *m, uint64_t row, float *out) {
  for (uint32_t g = 0; g < m->groups; g++) {
    uint64_t at = (m->scale_rows == 1 ? 0 : row / m->block_rows) * m->scale_columns;
    out[g] = scale_at(&m->scales, at + (m->scale_columns == 1 ? 0 : g));
  }
}

// --- one byte a code: F8_E4M3 or I8 [N, K] ------------------------------------------------------

static void read_bytes(const mgl_packed_matrix *m, uint64_t first, uint32_t count,
                       const mgl_code_rows *out) {
  for (uint32_t r = 0; r < count; r++) {
    float *scales = out->scales + (size_t)r * m->groups;
    memcpy(out->codes + (size_t)r * m->k, (const uint8_t *)m->codes.data + (first + r) * m->k,
           m->k);
    read_scales(m, first + r, scales);
    for (uint32_t g = 0; m->form.offsets && g < m->groups; g++) {
      uint64_t at = (m->scale_rows == 1 ? 0 : first + r) * m->scale_columns;
      const int8_t zero = (int8_t)byte_at(&m->zeros, at + (m->scale_columns == 1 ? 0 : g));
      out->offsets[(size_t)r * m->groups + g] = scales[g] * (float)zero;
    }
  }
}

// --- compressed-tensors, packed integers: I32 [N, K / codes of a word], value + 2^(bits-1) -------

// Zero points lie along the rows: word [row / codes of a word, group].
static void read_packed_zeros(const mgl_packed_matrix *m, uint64_t row, const float *scales,
                              float *out) {
  uint32_t in_word = 32 / m->bits;
  for (uint32_t g = 0; g < m->groups; g++) {
    uint32_t word = word_at(&m->zeros, row / in_word * m->groups + g);
    uint32_t stored = word >> row % in_word * m->bits & ((1u << m->bits) - 1);
    out[g] = scales[g] * (float)((int)stored - (1 << (m->bits - 1)));
  }
}

static void read_words(const mgl_packed_matrix *m, uint64_t first, uint32_t count,
                       const mgl_code_rows *out) {
  uint32_t in_word = 32 / m->bits;
  uint64_t row_words = (m->k + in_word - 1) / in_word;
  uint32_t flip = m->bits == 8 ? 0x80 : 0;  // 4-bit codes have the 8 added, too; 8-bit ones do not
  for (uint32_t r = 0; r < count; r++) {
    uint8_t *codes = out->codes + (size_t)r * m->k;
    float *scales = out->scales + (size_t)r * m->groups;
    for (uint32_t i = 0; i < m->k; i++) {
      uint32_t word = word_at(&m->codes, (first + r) * row_words + i / in_word);
      codes[i] = (uint8_t)((word >> i % in_word * m->bits & ((1u << m->bits) - 1)) ^ flip);
    }
    read_scales(m, first + r, scales);
    if (m->form.offsets) {
      read_packed_zeros(m, first + r, scales, out->offsets + (size_t)r * m->groups);
    }
  }
}

// --- floats of 4 bits: U8 [N, K / 2], the even element low ---------------------------------------

// MXFP4: a scale E8M0 for 32. NVFP4: a scale E4M3 for 16, and one of the whole matrix: a divisor
// (compressed-tensors' weight_global_scale) or a factor (ModelOpt's weight_scale_2).
static void read_floats(const mgl_packed_matrix *m, uint64_t first, uint32_t count,
                        const mgl_code_rows *out) {
  float global = m->global.data != NULL ? scale_at(&m->global, 0) : 1;
  bool divides = m->global.data != NULL && strstr(m->global.name, "global_scale") != NULL;
  for (uint32_t r = 0; r < count; r++) {
    const uint64_t row = m->row_step == 0 ? first + r : (first + r) * m->row_step + m->row_first;
    uint8_t *codes = out->codes + (size_t)r * m->k;
    float *scales = out->scales + (size_t)r * m->groups;
    for (uint32_t i = 0; i < m->k; i++) {
      codes[i] = byte_at(&m->codes, row * (m->k / 2) + i / 2) >> 4 * (i % 2) & 15;
    }
    read_scales(m, row, scales);
    for (uint32_t g = 0; g < m->groups; g++) {
      scales[g] = divides ? scales[g] / global : scales[g] * global;
    }
  }
}

// --- GPTQ and AWQ: transposed --------------------------------------------------------------------

// Writes scales and offsets of a column n of `scales` [groups, N], with its stored zero points.
static void put_groups(const mgl_packed_matrix *m, uint64_t n, uint32_t g, uint32_t zero,
                       float *scales, float *offsets) {
  scales[g] = scale_at(&m->scales, g * m->rows + n);
  if (m->form.offsets) {
    uint32_t point = (zero + m->zero_shift) & ((1u << m->bits) - 1);
    offsets[g] = scales[g] * (float)((int)point - (1 << (m->bits - 1)));
  }
}

// qweight [K / codes of a word, N], along K; qzeros [groups, N / codes of a word], along N.
static void read_gptq(const mgl_packed_matrix *m, uint64_t first, uint32_t count,
                      const mgl_code_rows *out) {
  const uint32_t in_word = 32 / m->bits, mask = (1u << m->bits) - 1;
  const uint32_t flip = m->bits == 8 ? 0x80 : 0;
  for (uint32_t i = 0; i < m->k; i++) {
    for (uint32_t r = 0; r < count; r++) {
      uint32_t word = word_at(&m->codes, i / in_word * m->rows + first + r);
      out->codes[(size_t)r * m->k + i] = (uint8_t)((word >> i % in_word * m->bits & mask) ^ flip);
    }
  }
  for (uint32_t r = 0; r < count; r++) {
    uint64_t n = first + r;
    for (uint32_t g = 0; g < m->groups; g++) {
      uint32_t word = word_at(&m->zeros, (g * m->rows + n) / in_word);
      put_groups(m, n, g, word >> n % in_word * m->bits & mask, out->scales + (size_t)r * m->groups,
                 out->offsets + (size_t)r * m->groups);
    }
  }
}

// Where AWQ puts column n of eight: its nibble i is column [0, 2, 4, 6, 1, 3, 5, 7][i].
static uint32_t awq_nibble(uint32_t word, uint64_t n) {
  static const unsigned char nibbles[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  return word >> 4 * nibbles[n % 8] & 15;
}

// qweight [K, N / 8] and qzeros [groups, N / 8], both along N.
static void read_awq(const mgl_packed_matrix *m, uint64_t first, uint32_t count,
                     const mgl_code_rows *out) {
  const uint64_t row_words = m->rows / 8;
  for (uint32_t i = 0; i < m->k; i++) {
    for (uint32_t r = 0; r < count; r++) {
      uint32_t word = word_at(&m->codes, i * row_words + (first + r) / 8);
      out->codes[(size_t)r * m->k + i] = (uint8_t)awq_nibble(word, first + r);
    }
  }
  for (uint32_t r = 0; r < count; r++) {
    for (uint32_t g = 0; g < m->groups; g++) {
      uint32_t word = word_at(&m->zeros, g * row_words + (first + r) / 8);
      put_groups(m, first + r, g, awq_nibble(word, first + r), out->scales + (size_t)r * m->groups,
                 out->offsets + (size_t)r * m->groups);
    }
  }
}

const mgl_packed_readers mgl_packed_read_by = {.bytes = read_bytes,
                                               .words = read_words,
                                               .floats = read_floats,
                                               .gptq = read_gptq,
                                               .awq = read_awq};

// --- rows in memory ------------------------------------------------------------------------------

// Of scales and offsets, so that no code times a scale is more than f32 holds: codes are below 2^9.
#define MOST_SCALE 0x1p115f

static mgl_status check_row(const mgl_packed_matrix *m, uint64_t row, const uint8_t *codes,
                            const float *scales, const float *offsets, mgl_error *err) {
  for (uint32_t g = 0; g < m->groups; g++) {
    if (!(fabsf(scales[g]) <= MOST_SCALE) || (scales[g] < 0 && !m->signed_scales)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: weight \"%s\": scale of row %" PRIu64
                           ", group %u: expected a number%s of at most %g, found %g",
                           m->where, m->name, row, g, m->signed_scales ? "" : " of at least 0 and",
                           (double)MOST_SCALE, (double)scales[g]);
    }
    if (m->form.offsets && !(fabsf(offsets[g]) <= MOST_SCALE)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: weight \"%s\": offset of row %" PRIu64
                           ", group %u: expected a number of at most %g, found %g",
                           m->where, m->name, row, g, (double)MOST_SCALE, (double)offsets[g]);
    }
  }
  for (uint32_t i = 0; m->form.dtype == MGL_DTYPE_E4M3 && i < m->k; i++) {
    if ((codes[i] & 0x7f) == 0x7f) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: weight \"%s\": row %" PRIu64
                           ", column %u: expected numbers, found "
                           "a NaN",
                           m->where, m->name, row, i);
    }
  }
  return MGL_OK;
}

mgl_status mgl_packed_rows(const mgl_stored_tensor *tensor, uint64_t first, uint32_t count,
                           void *out, mgl_error *err) {
  const mgl_packed_matrix *m = tensor->packed;
  if (m->make != NULL) {
    m->make(m, tensor->first_row + first, count, out);
    return MGL_OK;
  }
  size_t most = count < MGL_PACKED_ROWS ? count : MGL_PACKED_ROWS;
  size_t row_bytes = mgl_row_layout_of(m->form, m->k).bytes;
  mgl_status status = MGL_OK;
  mgl_code_rows rows = {.codes = mgl_alloc(most * m->k),
                        .scales = mgl_alloc_zeroed(most * m->groups, sizeof *rows.scales),
                        .offsets = mgl_alloc_zeroed(most * m->groups, sizeof *rows.offsets)};
  if (rows.codes == NULL || rows.scales == NULL || rows.offsets == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for rows of \"%s\"", m->name);
  }
  for (uint32_t done = 0; status == MGL_OK && done < count;) {
    uint32_t step = count - done < most ? count - done : (uint32_t)most;
    uint64_t row = tensor->first_row + first + done;
    m->read(m, row, step, &rows);
    for (uint32_t r = 0; r < step && status == MGL_OK; r++) {
      const uint8_t *codes = rows.codes + (size_t)r * m->k;
      const float *scales = rows.scales + (size_t)r * m->groups;
      const float *offsets = rows.offsets + (size_t)r * m->groups;
      status = check_row(m, row + r, codes, scales, offsets, err);
      mgl_row_write(m->form, m->k, codes, scales, offsets,
                    (unsigned char *)out + (done + r) * row_bytes);
    }
    done += step;
  }
  mgl_free(rows.codes);
  mgl_free(rows.scales);
  mgl_free(rows.offsets);
  return status;
}
