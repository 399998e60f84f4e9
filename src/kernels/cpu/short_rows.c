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
  for (uint32_t last = 0; last < EXPONENTS; last++) {
    covered += counts[last];
    covered -= last >= CODES ? counts[last - CODES] : 0;
    if (last >= CODES - 1 && covered >= most) {
      most = covered;
      best = (uint16_t)(last - (CODES - 1));
    }
  }
  return best;
}

// A start packs every weight, so this goes by vectors, which every processor has of 16 bytes.
typedef int16_t lanes __attribute__((vector_size(16)));
typedef uint16_t words __attribute__((vector_size(16)));
enum { LANES = sizeof(words) / sizeof(uint16_t), VECTORS = MGL_SHORT_BLOCK / LANES };

static words load_words(const mgl_bf16 *from) {
  words a;
  memcpy(&a, from, sizeof a);
  return a;
}

static words exponents_of(words w) {
  return w >> 7 & 0xff;
}

// The least and the largest exponent.
static void find_ends(const mgl_bf16 w[MGL_SHORT_BLOCK], int16_t *least, int16_t *most) {
  lanes low = (lanes)exponents_of(load_words(w));
  lanes high = low;
  for (size_t i = 1; i < VECTORS; i++) {
    const lanes e = (lanes)exponents_of(load_words(w + i * LANES));
    const lanes below = e < low;
    const lanes above = e > high;
    low = (e & below) | (low & ~below);
    high = (e & above) | (high & ~above);
  }
  *least = low[0];
  *most = high[0];
  for (size_t i = 1; i < LANES; i++) {
    *least = low[i] < *least ? low[i] : *least;
    *most = high[i] > *most ? high[i] : *most;
  }
}

// *patched: whether some weights are not among the 16 exponents.
static uint16_t base_of(const mgl_bf16 w[MGL_SHORT_BLOCK], bool *patched) {
  int16_t least;
  int16_t most;
  find_ends(w, &least, &most);
  const int16_t base = most < CODES ? 0 : (int16_t)(most - (CODES - 1));
  *patched = least < base;
  return *patched ? best_base(w) : (uint16_t)base;
}

static void write_block(const mgl_bf16 w[MGL_SHORT_BLOCK], uint16_t base, unsigned char *out) {
  for (size_t i = 0; i < QUARTER; i += LANES) {
    words quarters[4];
    words exponents = {0};
    for (size_t q = 0; q < 4; q++) {
      quarters[q] = load_words(w + q * QUARTER + i);
      exponents |= ((exponents_of(quarters[q]) - base) & 0xf) << (uint16_t)(4 * q);
      quarters[q] &= 0x807f;
    }
    const words low = quarters[0] | quarters[1] << 8 | quarters[1] >> 8;
    const words high = quarters[2] | quarters[3] << 8 | quarters[3] >> 8;
    memcpy(out + i * sizeof *w, &low, sizeof low);
    memcpy(out + (QUARTER + i) * sizeof *w, &high, sizeof high);
    memcpy(out + (2 * QUARTER + i) * sizeof *w, &exponents, sizeof exponents);
  }
}

// Element i of a block with that base, or, of a patched one, some other number.
static mgl_bf16 read_element(const unsigned char *block, uint16_t base, size_t i) {
  const size_t q = i / QUARTER;
  uint16_t signs;
  uint16_t exponents;
  memcpy(&signs, block + (q / 2 * QUARTER + i % QUARTER) * sizeof signs, sizeof signs);
  memcpy(&exponents, block + (size_t)(2 * QUARTER + i % QUARTER) * sizeof exponents,
         sizeof exponents);
  signs = (uint16_t)(q % 2 == 0 ? signs : signs << 8 | signs >> 8);
  return (mgl_bf16)((signs & 0x807f) | (uint16_t)(((exponents >> 4 * q & 0xf) + base) << 7));
}

typedef struct patch_list {
  uint32_t *patches;
  uint32_t count, most;  // count: above `most`, if they have no room
} patch_list;

static void add_patches(const mgl_bf16 w[MGL_SHORT_BLOCK], uint16_t base, patch_list *list) {
  for (uint32_t i = 0; i < MGL_SHORT_BLOCK; i++) {
    if ((uint16_t)(exponent_of(w[i]) - base) >= CODES) {
      if (list->count < list->most) {
        list->patches[list->count] = i << 16 | w[i];
      }
      list->count++;
    }
  }
}

static uint16_t pack_with(const mgl_bf16 *w, uint16_t base, bool patched, unsigned char *out,
                          patch_list *list) {
  const uint32_t before = list->count;
  if (patched) {
    add_patches(w, base, list);
  }
  write_block(w, base, out);
  return (uint16_t)((uint32_t)base << 7 | (list->count - before));
}

static uint16_t pack_block(const mgl_bf16 *w, unsigned char *out, patch_list *list) {
  bool patched = false;
  const uint16_t base = base_of(w, &patched);
  return pack_with(w, base, patched, out, list);
}

// A block that K ends in: behind its `count` elements stand powers of two that are not patched.
static uint16_t pack_last_block(const mgl_bf16 *from, size_t count, unsigned char *out,
                                patch_list *list) {
  mgl_bf16 w[MGL_SHORT_BLOCK];
  bool patched = false;
  for (size_t i = 0; i < MGL_SHORT_BLOCK; i++) {
    w[i] = from[i < count ? i : 0];
  }
  const uint16_t base = base_of(w, &patched);
  for (size_t i = count; i < MGL_SHORT_BLOCK; i++) {
    w[i] = (mgl_bf16)(base << 7);
  }
  return pack_with(w, base, patched, out, list);
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
      *bases++ = count == MGL_SHORT_BLOCK ? pack_block(from, block, &list)
                                          : pack_last_block(from, count, block, &list);
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
