// Matrices of warps. Fragments are spread to small arrays of floats first, since where a lane's
// elements lie is what PTX says, and how they are added is what matrix.h says; the sums are then
// plain loops over columns, which compilers make vectors of.
#include "emulator/matrix.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// --- conversions ---------------------------------------------------------------------------------

float emu_float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t emu_bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A float of that many bits of exponent and mantissa. top: the largest exponent is one of numbers,
// but for a mantissa of ones, which is NaN (e4m3 has no infinities).
typedef struct shape {
  int exponent_bits, mantissa_bits;
  bool top;
} shape;

static const shape shapes_of_half[] = {[EMU_BF16] = {8, 7, false}, [EMU_F16] = {5, 10, false}};
static const shape shapes_of_eight[] = {[EMU_E4M3] = {4, 3, true}, [EMU_E5M2] = {5, 2, false}};

static uint32_t largest_of(const shape *s) {
  uint32_t infinity = ((1u << s->exponent_bits) - 1) << s->mantissa_bits;
  return s->top ? (infinity | ((1u << s->mantissa_bits) - 1)) - 1 : infinity - 1;
}

static float decode(const shape *s, uint32_t bits) {
  const uint32_t sign = bits >> (s->exponent_bits + s->mantissa_bits) & 1;
  const int top = (1 << s->exponent_bits) - 1;
  const int exponent = (int)(bits >> s->mantissa_bits) & top;
  const uint32_t mantissa = bits & ((1u << s->mantissa_bits) - 1);
  const int bias = top >> 1;
  float value;
  if (s->top ? exponent == top && mantissa == (1u << s->mantissa_bits) - 1
             : exponent == top && mantissa != 0) {
    return emu_float_of(0x7fffffff);
  }
  if (!s->top && exponent == top) {
    value = INFINITY;
  } else if (exponent == 0) {
    value = ldexpf((float)mantissa, 1 - bias - s->mantissa_bits);
  } else {
    value = ldexpf((float)(mantissa | 1u << s->mantissa_bits), exponent - bias - s->mantissa_bits);
  }
  return sign != 0 ? -value : value;
}

// The magnitude of a finite value. Beyond the largest: that where it saturates or is rounded to zero,
// else the next one up, which is infinity, or e4m3's NaN.
static uint32_t encode(const shape *s, float magnitude, emu_rounding rounding, bool saturate) {
  const int bias = (1 << (s->exponent_bits - 1)) - 1;
  int exponent;
  if (magnitude == 0) {
    return 0;
  }
  (void)frexpf(magnitude, &exponent);
  exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  // In units of the last place: exact in double, below 2^(mantissa_bits + 1).
  const double units = ldexp((double)magnitude, s->mantissa_bits - exponent);
  const uint32_t whole = (uint32_t)(rounding == EMU_NEAREST ? nearbyint(units) : floor(units));
  // A carry into the next exponent comes by itself, as does a subnormal that becomes a normal.
  const uint64_t bits = ((uint64_t)(uint32_t)(exponent + bias - 1) << s->mantissa_bits) + whole;
  const uint32_t most = largest_of(s);
  return bits <= most ? (uint32_t)bits : saturate || rounding == EMU_TO_ZERO ? most : most + 1;
}

float emu_from_bf16(uint16_t bits) {
  return emu_float_of((uint32_t)bits << 16);
}

float emu_from_f16(uint16_t bits) {
  const uint32_t exponent = bits >> 10 & 31;
  if (exponent != 0 && exponent != 31) {
    return emu_float_of((uint32_t)(bits & 0x8000) << 16 |
                        (((uint32_t)bits & 0x7fff) + ((127 - 15) << 10)) << 13);
  }
  return decode(&shapes_of_half[EMU_F16], bits);
}

float emu_from_half(emu_half kind, uint16_t bits) {
  return kind == EMU_BF16 ? emu_from_bf16(bits) : emu_from_f16(bits);
}

float emu_from_eight(emu_eight kind, uint8_t bits) {
  return decode(&shapes_of_eight[kind], bits);
}

uint16_t emu_to_half(emu_half kind, float value, emu_rounding rounding, bool saturate, bool relu) {
  const shape *s = &shapes_of_half[kind];
  const uint32_t bits = emu_bits_of(value);
  if (isnan(value)) {
    return 0x7fff;
  }
  if (relu && signbit(value)) {
    return 0;
  }
  if (kind == EMU_BF16 && !saturate && !isinf(value)) {  // the usual case
    const uint32_t up = rounding == EMU_NEAREST ? 0x7fff + (bits >> 16 & 1) : 0;
    return (uint16_t)((bits + up) >> 16);
  }
  const uint32_t sign = bits >> 31 << 15;
  const uint32_t most = largest_of(s);
  return (uint16_t)(sign | (isinf(value) ? (saturate ? most : most + 1)
                                         : encode(s, fabsf(value), rounding, saturate)));
}

uint8_t emu_to_eight(emu_eight kind, float value, bool relu) {
  const shape *s = &shapes_of_eight[kind];
  if (isnan(value)) {
    return 0x7f;
  }
  if (relu && signbit(value)) {
    return 0;
  }
  const uint32_t sign = signbit(value) ? 0x80 : 0;
  return (uint8_t)(sign |
                   (isinf(value) ? largest_of(s) : encode(s, fabsf(value), EMU_NEAREST, true)));
}

// --- products ------------------------------------------------------------------------------------

enum { ROWS = 16, K = 16, MOST_N = 256 };

// Of these an instance is made for each constant that they are called with: kinds and sizes.
#define INSTANCED static inline __attribute__((always_inline))

// Two elements of a register.
INSTANCED void spread(emu_half kind, uint32_t word, float *low, float *high) {
  if (kind == EMU_BF16) {
    *low = emu_float_of(word << 16);
    *high = emu_float_of(word & 0xffff0000);
  } else {
    *low = emu_from_f16((uint16_t)word);
    *high = emu_from_f16((uint16_t)(word >> 16));
  }
}

// Lane 4 g + t has rows g and g + 8 of a, elements 2t and 2t + 1 of each 8 along k: register 2 h + i
// is of row g + 8 i and the h-th 8.
INSTANCED void spread_a(emu_half kind, const uint32_t *const *a, uint32_t k, float to[ROWS][K]) {
  for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t i = 0; i < k / 4; i++) {
      float *at = &to[g + i % 2 * 8][i / 2 * 8 + 2 * t];
      spread(kind, a[i][lane], at, at + 1);
    }
  }
}

// Eight columns at once: gcc does not find by itself that these are vectors.
typedef float columns8 __attribute__((vector_size(32)));

// The sums of matrix.h: c[row][column] += a[row][k] b[k][column], k after k. Products are exact: of
// 8 or 11 bits each.
INSTANCED void multiply(uint32_t k, uint32_t n, const float a[ROWS][K], const float *b, float *c) {
  for (uint32_t column = 0; column < n; column += 8) {
    columns8 y[K];
    for (uint32_t i = 0; i < k; i++) {
      memcpy(&y[i], b + (size_t)i * n + column, sizeof y[i]);
    }
    for (uint32_t row = 0; row < ROWS; row++) {
      columns8 sums;
      memcpy(&sums, c + (size_t)row * n + column, sizeof sums);
      for (uint32_t i = 0; i < k; i++) {
        sums += a[row][i] * y[i];
      }
      memcpy(c + (size_t)row * n + column, &sums, sizeof sums);
    }
  }
}

// Lane 4 g + t has columns 8 i + 2t and the next one of rows g (registers 4 i, 4 i + 1) and g + 8.
INSTANCED void gather_sums(uint32_t n, const float *from, uint32_t *const *d) {
  for (uint32_t i = 0; i < n / 2; i++) {
    const uint32_t column = i / 4 * 8 + i % 2, row = i / 2 % 2 * 8;
    for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
      d[i][lane] = emu_bits_of(from[(size_t)(row + lane / 4) * n + column + lane % 4 * 2]);
    }
  }
}

INSTANCED void spread_sums(uint32_t n, const uint32_t *const *c, float *to) {
  for (uint32_t i = 0; i < n / 2; i++) {
    const uint32_t column = i / 4 * 8 + i % 2, row = i / 2 % 2 * 8;
    for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
      to[(size_t)(row + lane / 4) * n + column + lane % 4 * 2] = emu_float_of(c[i][lane]);
    }
  }
}

INSTANCED void mma_halves(emu_half kind, uint32_t k, uint32_t *const d[4], const uint32_t *const *a,
                          const uint32_t *const *b, const uint32_t *const c[4]) {
  float rows[ROWS][K], columns[K * 8], sums[ROWS * 8];
  spread_a(kind, a, k, rows);
  for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
    for (uint32_t i = 0; i < k / 8; i++) {
      float *at = &columns[(8 * i + lane % 4 * 2) * 8 + lane / 4];
      spread(kind, b[i][lane], at, at + 8);
    }
  }
  spread_sums(8, c, sums);
  multiply(k, 8, (const float(*)[K])rows, columns, sums);
  gather_sums(8, sums, d);
}

void emu_mma_m16n8k16(emu_half kind, uint32_t *const d[4], const uint32_t *const a[4],
                      const uint32_t *const b[2], const uint32_t *const c[4]) {
  if (kind == EMU_BF16) {
    mma_halves(EMU_BF16, 16, d, a, b, c);
  } else {
    mma_halves(EMU_F16, 16, d, a, b, c);
  }
}

void emu_mma_m16n8k8(emu_half kind, uint32_t *const d[4], const uint32_t *const a[2],
                     const uint32_t *const b[1], const uint32_t *const c[4]) {
  mma_halves(kind, 8, d, a, b, c);
}

// Lane 4 g + t has elements 4t .. 4t + 3 of each 16 along k.
void emu_mma_m16n8k32_s8(uint32_t *const d[4], const uint32_t *const a[4],
                         const uint32_t *const b[2], const uint32_t *const c[4]) {
  int32_t rows[ROWS][32], columns[32][8];
  uint32_t sums[4][EMU_LANES];
  for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t byte = 0; byte < 4; byte++) {
      for (uint32_t i = 0; i < 4; i++) {
        rows[g + i % 2 * 8][i / 2 * 16 + 4 * t + byte] = (int8_t)(a[i][lane] >> 8 * byte);
      }
      for (uint32_t i = 0; i < 2; i++) {
        columns[16 * i + 4 * t + byte][g] = (int8_t)(b[i][lane] >> 8 * byte);
      }
    }
  }
  for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      int32_t sum = 0;
      for (uint32_t k = 0; k < 32; k++) {
        sum += rows[row][k] * columns[k][column];
      }
      sums[i][lane] = c[i][lane] + (uint32_t)sum;
    }
  }
  for (uint32_t i = 0; i < 4; i++) {
    memcpy(d[i], sums[i], sizeof sums[i]);
  }
}

// --- matrices in shared memory -------------------------------------------------------------------

// A descriptor of a matrix whose k is contiguous. Rows of 128, 64 or 32 bytes, 8 of them one after
// the other and then the next 8 `stride` bytes on; 16 bytes are exchanged by what bits of the address
// say. Without a swizzle 8 rows of 16 bytes are one after the other, and what follows along k is
// `leading` bytes on.
typedef struct descriptor {
  uint32_t start, leading, stride;  // bytes
  uint32_t row_bytes;               // 0: no swizzle
} descriptor;

static descriptor read_descriptor(uint64_t bits) {
  static const uint32_t row_bytes[] = {0, 128, 64, 32};
  return (descriptor){.start = (uint32_t)(bits & 0x3fff) << 4,
                      .leading = (uint32_t)(bits >> 16 & 0x3fff) << 4,
                      .stride = (uint32_t)(bits >> 32 & 0x3fff) << 4,
                      .row_bytes = row_bytes[bits >> 62]};
}

// Where the 16 bytes of the elements 8 chunk .. 8 chunk + 7 of a row are.
static uint32_t place_of(const descriptor *d, uint32_t row, uint32_t chunk) {
  if (d->row_bytes == 0) {
    return d->start + row / 8 * d->stride + chunk * d->leading + row % 8 * 16;
  }
  const uint32_t at = d->start + row / 8 * d->stride + row % 8 * d->row_bytes + chunk * 16;
  return at ^ ((at >> 7 & (d->row_bytes / 16 - 1)) << 4);
}

// Row after row, 16 elements each, into to[row * row_step + k * k_step].
static bool read_matrix(const emu_wgmma *w, uint64_t bits, uint32_t first, uint32_t rows,
                        bool negate, float *to, size_t row_step, size_t k_step, char *why,
                        size_t why_bytes) {
  const descriptor d = read_descriptor(bits);
  for (uint32_t row = 0; row < rows; row++) {
    for (uint32_t chunk = 0; chunk < 2; chunk++) {
      const uint32_t at = place_of(&d, first + row, chunk);
      uint16_t halves[8];
      if ((uint64_t)at + sizeof halves > w->shared_bytes) {
        (void)snprintf(why, why_bytes,
                       "wgmma reads row %u of the matrix of descriptor 0x%016llx at byte %u of "
                       "shared memory, which has %zu",
                       first + row, (unsigned long long)bits, at, w->shared_bytes);
        return false;
      }
      memcpy(halves, w->shared + at, sizeof halves);
      for (uint32_t i = 0; i < 8; i++) {
        const float value = emu_from_half(w->kind, halves[i]);
        to[row * row_step + (chunk * 8 + i) * k_step] = negate ? -value : value;
      }
    }
  }
  return true;
}

bool emu_wgmma_warp(const emu_wgmma *w, uint32_t *const *d, char *why, size_t why_bytes) {
  float a[ROWS][K], b[K * MOST_N], sums[ROWS * MOST_N];
  assert(w->n >= 8 && w->n <= MOST_N && w->n % 8 == 0 && w->warp < 4);
  if (!read_matrix(w, w->b_descriptor, 0, w->n, w->negate_b, b, 1, w->n, why, why_bytes)) {
    return false;
  }
  if (w->a == NULL) {
    if (!read_matrix(w, w->a_descriptor, w->warp * ROWS, ROWS, w->negate_a, a[0], K, 1, why,
                     why_bytes)) {
      return false;
    }
  } else {
    spread_a(w->kind, w->a, K, a);
    for (uint32_t i = 0; w->negate_a && i < ROWS * K; i++) {
      a[i / K][i % K] = -a[i / K][i % K];
    }
  }
  if (w->add) {
    spread_sums(w->n, (const uint32_t *const *)d, sums);
  } else {
    memset(sums, 0, sizeof sums);
  }
  multiply(K, w->n, (const float(*)[K])a, b, sums);
  gather_sums(w->n, sums, d);
  return true;
}

// --- moving --------------------------------------------------------------------------------------

// Of a matrix of 8 rows of 8 elements lane 4 g + t has elements 2t and 2t + 1 of row g; transposed,
// of column g.
static void locate(bool transpose, uint32_t lane, uint32_t i, uint32_t *row, uint32_t *column) {
  const uint32_t g = lane / 4, k = lane % 4 * 2 + i;
  *row = transpose ? k : g;
  *column = transpose ? g : k;
}

void emu_ldmatrix(uint32_t count, bool transpose, uint32_t *const *d,
                  const uint8_t *const rows[32]) {
  for (uint32_t matrix = 0; matrix < count; matrix++) {
    for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
      uint16_t halves[2];
      for (uint32_t i = 0; i < 2; i++) {
        uint32_t row, column;
        locate(transpose, lane, i, &row, &column);
        memcpy(&halves[i], rows[matrix * 8 + row] + column * sizeof halves[i], sizeof halves[i]);
      }
      d[matrix][lane] = halves[0] | (uint32_t)halves[1] << 16;
    }
  }
}

void emu_stmatrix(uint32_t count, bool transpose, uint8_t *const rows[32],
                  const uint32_t *const *a) {
  for (uint32_t matrix = 0; matrix < count; matrix++) {
    for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
      for (uint32_t i = 0; i < 2; i++) {
        const uint16_t half = (uint16_t)(a[matrix][lane] >> 16 * i);
        uint32_t row, column;
        locate(transpose, lane, i, &row, &column);
        memcpy(rows[matrix * 8 + row] + column * sizeof half, &half, sizeof half);
      }
    }
  }
}

void emu_movmatrix(uint32_t *d, const uint32_t *a) {
  uint16_t rows[8][8];
  for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
    for (uint32_t i = 0; i < 2; i++) {
      rows[lane / 4][lane % 4 * 2 + i] = (uint16_t)(a[lane] >> 16 * i);
    }
  }
  for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
    const uint32_t g = lane / 4, t = lane % 4;
    d[lane] = rows[2 * t][g] | (uint32_t)rows[2 * t + 1][g] << 16;
  }
}
