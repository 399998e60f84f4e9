// One decoder a type. Written for reading: a block costs some hundred ns, once, when a model is
// loaded.
#include "model/gguf_blocks.h"

#include <math.h>
#include <string.h>

static float half_at(const unsigned char *bytes) {
  return mgl_f16_to_f32((mgl_f16)(bytes[0] | bytes[1] << 8));
}

// 16 bytes to 32 codes: all low halves, then all high ones.
static void split_nibbles(const unsigned char *bytes, size_t count, uint8_t *codes) {
  for (size_t i = 0; i < count; i++) {
    codes[i] = bytes[i] & 15;
    codes[count + i] = bytes[i] >> 4;
  }
}

// --- blocks of 32 --------------------------------------------------------------------------------

static void decode_q4_0(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  (void)offsets;
  scales[0] = half_at(b);
  split_nibbles(b + 2, 16, codes);
}

static void decode_q4_1(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  scales[0] = half_at(b);
  offsets[0] = -half_at(b + 2);
  split_nibbles(b + 4, 16, codes);
}

// Adds each code's fifth bit, of 4 bytes.
static void add_fifth_bits(const unsigned char *bits, uint8_t *codes) {
  for (size_t i = 0; i < 32; i++) {
    codes[i] = (uint8_t)(codes[i] | (bits[i / 8] >> i % 8 & 1) << 4);
  }
}

static void decode_q5_0(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  (void)offsets;
  scales[0] = half_at(b);
  split_nibbles(b + 6, 16, codes);
  add_fifth_bits(b + 2, codes);
  for (size_t i = 0; i < 32; i++) {
    codes[i] = (uint8_t)(codes[i] - 16);
  }
}

static void decode_q5_1(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  scales[0] = half_at(b);
  offsets[0] = -half_at(b + 2);
  split_nibbles(b + 8, 16, codes);
  add_fifth_bits(b + 4, codes);
}

static void decode_q8_0(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  (void)offsets;
  scales[0] = half_at(b);
  memcpy(codes, b + 2, 32);
}

// The values of the 16 codes of IQ4_NL and IQ4_XS.
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static void look_up_iq4(const unsigned char *bytes, uint8_t *codes) {
  split_nibbles(bytes, 16, codes);
  for (size_t i = 0; i < 32; i++) {
    codes[i] = (uint8_t)iq4_values[codes[i]];
  }
}

static void decode_iq4_nl(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  (void)offsets;
  scales[0] = half_at(b);
  look_up_iq4(b + 2, codes);
}

static void decode_mxfp4(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  (void)offsets;
  scales[0] = ldexpf(1, (int)b[0] - 127);
  split_nibbles(b + 1, 16, codes);
  for (size_t i = 0; i < 32; i++) {
    codes[i] = codes[i] == 8 ? 0 : codes[i];  // the format has no -0
  }
}

// --- blocks of 256 -------------------------------------------------------------------------------

// Two bits of each element: byte i of 32 has those of elements i, 32 + i, 64 + i and 96 + i.
static unsigned pair_at(const unsigned char *bytes, size_t element) {
  return bytes[element / 128 * 32 + element % 32] >> element % 128 / 32 * 2 & 3;
}

static void decode_q2_k(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  const float d = half_at(b + 80), least = half_at(b + 82);
  for (size_t g = 0; g < 16; g++) {
    scales[g] = d * (float)(b[g] & 15);
    offsets[g] = least * (float)(b[g] >> 4);
  }
  for (size_t i = 0; i < 256; i++) {
    codes[i] = (uint8_t)pair_at(b + 16, i);
  }
}

// Values are -4 to 3: a third bit that is not set takes 4 away. Scales have 4 bits, then 2 more.
static void decode_q3_k(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  const unsigned char *packed = b + 96;
  const float d = half_at(b + 108);
  (void)offsets;
  for (size_t g = 0; g < 16; g++) {
    int low = packed[g % 8] >> g / 8 * 4 & 15, high = packed[8 + g % 4] >> g / 4 * 2 & 3;
    scales[g] = d * (float)((low | high << 4) - 32);
  }
  for (size_t i = 0; i < 256; i++) {
    unsigned third = b[i % 32] >> i / 32 & 1;
    codes[i] = (uint8_t)(8 + pair_at(b + 32, i) - (third != 0 ? 0 : 4));
  }
}

// Eight groups' scales and minimums of 6 bits in 12 bytes: the last four groups' are spread.
static void read_k_scales(const unsigned char *b, float *scales, float *offsets) {
  const float d = half_at(b), least = half_at(b + 2);
  const unsigned char *packed = b + 4;
  for (size_t g = 0; g < 8; g++) {
    int scale = packed[g % 4] & 63, minimum = packed[4 + g % 4] & 63;
    if (g >= 4) {
      scale = (packed[4 + g] & 15) | packed[g - 4] >> 6 << 4;
      minimum = packed[4 + g] >> 4 | packed[g] >> 6 << 4;
    }
    scales[g] = d * (float)scale;
    offsets[g] = least * (float)minimum;
  }
}

static void decode_q4_k(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  read_k_scales(b, scales, offsets);
  for (size_t i = 0; i < 4; i++) {
    split_nibbles(b + 16 + 32 * i, 32, codes + 64 * i);
  }
}

static void decode_q5_k(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  read_k_scales(b, scales, offsets);
  for (size_t i = 0; i < 4; i++) {
    split_nibbles(b + 48 + 32 * i, 32, codes + 64 * i);
  }
  for (size_t i = 0; i < 256; i++) {
    codes[i] = (uint8_t)(codes[i] | (b[16 + i % 32] >> i / 32 & 1) << 4);
  }
}

static void decode_q6_k(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  const float d = half_at(b + 208);
  (void)offsets;
  for (size_t g = 0; g < 16; g++) {
    scales[g] = d * (float)(int8_t)b[192 + g];
  }
  split_nibbles(b, 64, codes);
  split_nibbles(b + 64, 64, codes + 128);
  for (size_t i = 0; i < 256; i++) {
    codes[i] = (uint8_t)((codes[i] | pair_at(b + 128, i) << 4) - 32);
  }
}

static void decode_iq4_xs(const unsigned char *b, uint8_t *codes, float *scales, float *offsets) {
  const float d = half_at(b);
  (void)offsets;
  for (size_t g = 0; g < 8; g++) {
    int low = b[4 + g / 2] >> g % 2 * 4 & 15, high = b[2 + g / 4] >> g % 4 * 2 & 3;
    scales[g] = d * (float)((low | high << 4) - 32);
    look_up_iq4(b + 8 + 16 * g, codes + 32 * g);
  }
}

// -------------------------------------------------------------------------------------------------

static const mgl_gguf_coding codings[] = {
    {"Q4_0", 32, {MGL_DTYPE_I4, 32, false}, decode_q4_0},
    {"Q4_1", 32, {MGL_DTYPE_U4, 32, true}, decode_q4_1},
    {"Q5_0", 32, {MGL_DTYPE_I8, 32, false}, decode_q5_0},
    {"Q5_1", 32, {MGL_DTYPE_I8, 32, true}, decode_q5_1},
    {"Q8_0", 32, {MGL_DTYPE_I8, 32, false}, decode_q8_0},
    {"Q2_K", 256, {MGL_DTYPE_U4, 16, true}, decode_q2_k},
    {"Q3_K", 256, {MGL_DTYPE_I4, 16, false}, decode_q3_k},
    {"Q4_K", 256, {MGL_DTYPE_U4, 32, true}, decode_q4_k},
    {"Q5_K", 256, {MGL_DTYPE_I8, 32, true}, decode_q5_k},
    {"Q6_K", 256, {MGL_DTYPE_I8, 16, false}, decode_q6_k},
    {"IQ4_NL", 32, {MGL_DTYPE_I8, 32, false}, decode_iq4_nl},
    {"IQ4_XS", 256, {MGL_DTYPE_I8, 32, false}, decode_iq4_xs},
    {"MXFP4", 32, {MGL_DTYPE_E2M1, 32, false}, decode_mxfp4},
};

const mgl_gguf_coding *mgl_gguf_coding_of(const mgl_gguf_type *type) {
  for (size_t i = 0; i < sizeof codings / sizeof *codings; i++) {
    if (strcmp(codings[i].type, type->name) == 0) {
      return &codings[i];
    }
  }
  return NULL;
}
