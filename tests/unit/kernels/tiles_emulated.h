// The tile registers of src/kernels/cpu/tiles_amx.h in C, so that what is written over them runs
// anywhere. What the processor would refuse (a tile that is not configured, shapes that do not
// fit) fails the test, and only the bytes that it would read or write are.
//
// The product is that of the manual: for each sum, the products of even and of odd elements are
// added up one after the other, each with one rounding, then both sums, then that to what was
// there. Subnormal operands and results are zero.
#ifndef MGL_TESTS_TILES_EMULATED_H
#define MGL_TESTS_TILES_EMULATED_H

#include "kernel_test.h"
#include "kernels/cpu/vector_words.h"

typedef struct tile_config {
  unsigned char palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  unsigned char rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "what LDTILECFG reads");

static struct {
  tile_config config;
  unsigned char data[8][16][64];
} tiles;

static inline float tile_flush(float value) {
  return value != 0 && fabsf(value) < 0x1p-126f ? copysignf(0, value) : value;
}

static inline float tile_fma(float a, float b, float sum) {
  return tile_flush(fmaf(tile_flush(a), tile_flush(b), sum));
}

// Element i of a row of bf16.
static inline float tile_element(const unsigned char *row, size_t i) {
  return element_load(row, MGL_DTYPE_BF16, i);
}

static inline void tile_check(int tile) {
  assert_int_equal(tiles.config.palette, 1);
  assert_true(tiles.config.rows[tile] >= 1 && tiles.config.rows[tile] <= 16);
  assert_true(tiles.config.row_bytes[tile] >= 1 && tiles.config.row_bytes[tile] <= 64);
}

static inline void tile_configure(const tile_config *config) {
  memset(&tiles, 0, sizeof tiles);
  tiles.config = *config;
  for (int i = 0; i < 8; i++) {
    assert_true((config->rows[i] == 0) == (config->row_bytes[i] == 0));
  }
}

static inline void tile_zero(int tile) {
  tile_check(tile);
  memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
}

static inline void tile_load(int tile, const void *from, size_t stride) {
  tile_zero(tile);
  for (size_t i = 0; i < tiles.config.rows[tile]; i++) {
    memcpy(tiles.data[tile][i], (const char *)from + i * stride, tiles.config.row_bytes[tile]);
  }
}

static inline void tile_store(int tile, void *to, size_t stride) {
  tile_check(tile);
  for (size_t i = 0; i < tiles.config.rows[tile]; i++) {
    memcpy((char *)to + i * stride, tiles.data[tile][i], tiles.config.row_bytes[tile]);
  }
}

static inline void tile_dot(int sums, int rows, int columns) {
  const tile_config *config = &tiles.config;
  tile_check(sums);
  tile_check(rows);
  tile_check(columns);
  assert_int_equal(config->rows[sums], config->rows[rows]);
  assert_int_equal(config->row_bytes[sums], config->row_bytes[columns]);
  assert_int_equal(config->row_bytes[rows], 4 * config->rows[columns]);
  for (size_t i = 0; i < config->rows[sums]; i++) {
    for (size_t j = 0; j < config->row_bytes[sums] / 4u; j++) {
      float even = 0, odd = 0, sum;
      for (size_t p = 0; p < config->rows[columns]; p++) {
        const unsigned char *a = tiles.data[rows][i], *b = tiles.data[columns][p];
        even = tile_fma(tile_element(a, 2 * p), tile_element(b, 2 * j), even);
        odd = tile_fma(tile_element(a, 2 * p + 1), tile_element(b, 2 * j + 1), odd);
      }
      memcpy(&sum, &tiles.data[sums][i][4 * j], sizeof sum);
      sum = tile_flush(sum + tile_flush(even + odd));
      memcpy(&tiles.data[sums][i][4 * j], &sum, sizeof sum);
    }
  }
}

#define TILE_CONFIGURE(config) tile_configure(config)
#define TILE_RELEASE() memset(&tiles, 0, sizeof tiles)
#define TILE_ZERO(tile) tile_zero(tile)
#define TILE_LOAD(tile, from, stride) tile_load(tile, from, stride)
#define TILE_STORE(tile, to, stride) tile_store(tile, to, stride)
#define TILE_DOT(sums, rows, columns) tile_dot(sums, rows, columns)

static void tile_turn(const void *from, size_t from_stride, size_t rows, size_t columns, void *to,
                      size_t to_stride) {
  for (size_t i = 0; i < rows; i++) {
    for (size_t j = 0; j < columns; j++) {
      memcpy((char *)to + j * to_stride + i * 4, (const char *)from + i * from_stride + j * 4, 4);
    }
  }
}

#endif
