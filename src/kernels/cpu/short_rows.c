#include "kernels/cpu/short_rows.h"

#include <stdbool.h>
#include <string.h>

enum { QUARTER = MGL_SHORT_BLOCK / 4, CODES = 16, EXPONENTS = 256 };

static uint16_t exponent_of(mgl_bf16 value) {
  return value >> 7 & 0xff;
}

// The base that leaves the fewest weights to patches; of equal ones the largest.
static uint16_t best_base(const mgl_bf16 w[MGL_SHORT_BLOCK]) {
  uint16_t counts[EXPONENTS] = {0};
  for (size_t i = 0; i < MGL_SHORT_BLOCK; i++) {
    counts[exponent_of(w[i])]++;
  }
  uint16_t best = 0;
  uint32_t covered = 0;
  uint32_t most = 0;
  for (uint16_t last = 0; last < EXPONENTS; last++) {
    covered += counts[last];
    covered -= last >= CODES ? counts[last - CODES] : 0;
    if (last >= CODES - 1 && covered >= most) {
      most = covered;
      best = (uint16_t)(last - (CODES - 1));
    }
  }
  return best;
}

// Written for a compiler to make vectors of: a start packs every weight.
static uint16_t base_of(const mgl_bf16 w[MGL_SHORT_BLOCK]) {
  int16_t least = EXPONENTS;
  int16_t most = 0;
  for (size_t i = 0; i < MGL_SHORT_BLOCK; i++) {
    const int16_t exponent = (int16_t)exponent_of(w[i]);
    least = exponent < least ? exponent : least;
    most = exponent > most ? exponent : most;
  }
  if (most - least >= CODES) {
    return best_base(w);
  }
  return most < CODES ? 0 : (uint16_t)(most - (CODES - 1));
}

static void write_block(const mgl_bf16 w[MGL_SHORT_BLOCK], uint16_t base, unsigned char *out) {
  uint16_t words[3][QUARTER];
  for (size_t i = 0; i < QUARTER; i++) {
    uint16_t quarters[4];
    uint16_t exponents = 0;
    for (size_t q = 0; q < 4; q++) {
      quarters[q] = w[q * QUARTER + i];
      exponents |= (uint16_t)((uint16_t)((exponent_of(quarters[q]) - base) & 0xf) << 4 * q);
    }
    for (size_t h = 0; h < 2; h++) {
      const uint16_t a = quarters[2 * h] & 0x807f;
      const uint16_t b = quarters[2 * h + 1] & 0x807f;
      words[h][i] = (uint16_t)(a | (uint16_t)(b << 8) | b >> 8);
    }
    words[2][i] = exponents;
  }
  memcpy(out, words, sizeof words);
}

// Element i of a block with that base, or, of a patched one, some other number.
static mgl_bf16 read_element(const unsigned char *block, uint16_t base, size_t i) {
  const size_t q = i / QUARTER;
  uint16_t signs;
  uint16_t exponents;
  memcpy(&signs, block + (q / 2 * QUARTER + i % QUARTER) * sizeof signs, sizeof signs);
  memcpy(&exponents, block + (size_t)(2 * QUARTER + i % QUARTER) * sizeof exponents,
         sizeof exponents);
  signs = q % 2 == 0 ? signs : (uint16_t)(signs << 8 | signs >> 8);
  return (mgl_bf16)((signs & 0x807f) | (uint16_t)(((exponents >> 4 * q & 0xf) + base) << 7));
}

typedef struct patch_list {
  uint32_t *patches;
  uint32_t count, most;  // count: above `most`, if they have no room
} patch_list;

// Returns how many weights of the block are not among its 16 exponents.
static uint16_t add_patches(const mgl_bf16 w[MGL_SHORT_BLOCK], uint16_t base, patch_list *list) {
  uint16_t count = 0;
  for (uint32_t i = 0; i < MGL_SHORT_BLOCK; i++) {
    if ((uint16_t)(exponent_of(w[i]) - base) >= CODES) {
      if (list->count < list->most) {
        list->patches[list->count] = i << 16 | w[i];
      }
      list->count++;
      count++;
    }
  }
  return count;
}

static uint16_t pack_block(const mgl_bf16 *from, size_t count, unsigned char *out,
                           patch_list *list) {
  mgl_bf16 w[MGL_SHORT_BLOCK];
  memcpy(w, from, count * sizeof *w);
  for (size_t i = count; i < MGL_SHORT_BLOCK; i++) {
    w[i] = w[0];
  }
  const uint16_t base = base_of(w);
  for (size_t i = count; i < MGL_SHORT_BLOCK; i++) {
    w[i] = (mgl_bf16)(base << 7);
  }
  write_block(w, base, out);
  const uint32_t before = list->count;
  bool whole = true;
  for (size_t i = 0; i < MGL_SHORT_BLOCK; i++) {
    whole &= (uint16_t)(exponent_of(w[i]) - base) < CODES;
  }
  if (!whole) {
    (void)add_patches(w, base, list);
  }
  return (uint16_t)(base << 7 | (list->count - before));
}

// False: it has too many patches.
static bool pack_group(const mgl_bf16 *w, size_t rows, uint32_t k, const mgl_short_layout *layout,
                       unsigned char *out) {
  static const mgl_bf16 none[MGL_SHORT_BLOCK];
  uint16_t *bases = (uint16_t *)(void *)out;
  patch_list list = {.patches = (uint32_t *)(void *)(out + layout->patches),
                     .most = layout->blocks};
  unsigned char *block = out + layout->elements;
  for (size_t b = 0; b < layout->blocks; b++) {
    const size_t first = b * MGL_SHORT_BLOCK;
    const size_t count = k - first < MGL_SHORT_BLOCK ? k - first : MGL_SHORT_BLOCK;
    for (size_t r = 0; r < MGL_SHORT_ROWS; r++, block += MGL_SHORT_BLOCK_BYTES) {
      const mgl_bf16 *from = r < rows ? w + r * k + first : none;
      *bases++ = pack_block(from, count, block, &list);
    }
  }
  return list.count <= list.most;
}

size_t mgl_short_pack(const mgl_bf16 *w, uint32_t rows, uint32_t k, size_t begin, size_t end,
                      void *out) {
  const mgl_short_layout layout = mgl_short_layout_of(k);
  size_t plain = 0;
  for (size_t group = begin; group < end; group++) {
    const size_t first = group * MGL_SHORT_ROWS;
    const size_t count = rows - first < MGL_SHORT_ROWS ? rows - first : MGL_SHORT_ROWS;
    unsigned char *at = (unsigned char *)out + group * layout.bytes;
    if (!pack_group(w + first * k, count, k, &layout, at)) {
      *(uint16_t *)(void *)at = MGL_SHORT_PLAIN;
      plain++;
    }
  }
  return plain;
}

void mgl_short_unpack(const void *group, const mgl_short_layout *layout, uint32_t block,
                      uint32_t row, const uint32_t **patches, mgl_bf16 *out) {
  const uint16_t word = mgl_short_base(group, block, row);
  const unsigned char *from = (const unsigned char *)group + layout->elements +
                              ((size_t)block * MGL_SHORT_ROWS + row) * MGL_SHORT_BLOCK_BYTES;
  for (size_t i = 0; i < MGL_SHORT_BLOCK; i++) {
    out[i] = read_element(from, word >> 7, i);
  }
  for (uint32_t i = 0; i < (word & MGL_SHORT_COUNT); i++) {
    const uint32_t patch = *(*patches)++;
    out[patch >> 16] = (mgl_bf16)patch;
  }
}
