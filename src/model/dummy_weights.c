// Reproducible random weights. The formula stands in dummy_weights.h; this file is its C half, and
// tools/reference_weights.py the other one.
//
// Role: fills one range of one tensor. Method: the tensor's name fixes offset and scale; then runs
// of BLOCK_ELEMENTS go through three short loops (hash, affine map, rounding), each without a
// branch, so that the compiler can vectorise what the target allows. A stateful generator was
// rejected: it cannot start in the middle of a tensor, which threads and shards need.
#include "model/dummy_weights.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK_ELEMENTS = 1024 };

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

static uint64_t fnv1a64(const char *text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *text != 0; text++) {
    hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  }
  return hash;
}

static inline uint64_t splitmix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static bool ends_with(const char *text, const char *suffix) {
  size_t text_bytes = strlen(text);
  size_t suffix_bytes = strlen(suffix);
  return text_bytes >= suffix_bytes && strcmp(text + text_bytes - suffix_bytes, suffix) == 0;
}

// The first matching suffix decides; "" matches every name.
static double matrix_gain(const char *name) {
  static const struct {
    const char *suffix;
    double gain;
  } gains[] = {
      {"embed_tokens.weight", 3.0},
      {"lm_head.weight", 3.0},
      {"q_proj.weight", 1.5},
      {"k_proj.weight", 1.5},
      {".gate.weight", 3.0},
      {".router.weight", 3.0},
      {"", 1.0},
  };
  size_t i = 0;
  while (!ends_with(name, gains[i].suffix)) {
    i++;
  }
  return gains[i].gain;
}

// Sets offset and scale.
static void set_map(mgl_dummy_stream *stream, const char *name, uint32_t rank,
                    const uint64_t *dims) {
  stream->offset = 0.0f;
  stream->scale = 0.5f;
  if (rank >= 2) {
    stream->scale = (float)(matrix_gain(name) * sqrt(3.0 / (double)dims[rank - 1]));
  } else if (ends_with(name, "q_norm.weight") || ends_with(name, "k_norm.weight")) {
    stream->offset = 1.5f;
    stream->scale = 0.375f;
  } else if (ends_with(name, "norm.weight")) {
    stream->offset = 1.0f;
    stream->scale = 0.25f;
  }
}

mgl_dummy_stream mgl_dummy_weights_stream(const char *name, uint64_t seed, uint32_t rank,
                                          const uint64_t *dims, uint64_t first) {
  assert(rank >= 1 && rank <= 3);
  mgl_dummy_stream stream = {.start = splitmix64(fnv1a64(name) + seed * GOLDEN) + first * GOLDEN};
  set_map(&stream, name, rank, dims);
  return stream;
}

// out[i] = value first + i of the stream, in f32.
static void draw(mgl_dummy_stream stream, size_t first, size_t count, float *out) {
  uint64_t counter = stream.start + ((uint64_t)first + 1) * GOLDEN;
  for (size_t i = 0; i < count; i++) {
    uint64_t x = splitmix64(counter + (uint64_t)i * GOLDEN);
    float unit = (float)(int32_t)(x >> 40) * 0x1p-23f - 1.0f;  // 24 bits: exact
    out[i] = stream.offset + stream.scale * unit;
  }
}

static void store_bf16(const float *values, size_t count, mgl_bf16 *out) {
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof bits);
    out[i] = (mgl_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // no NaN can occur
  }
}

static void store_f16(const float *values, size_t count, mgl_f16 *out) {
  for (size_t i = 0; i < count; i++) {
    out[i] = mgl_f32_to_f16(values[i]);
  }
}

void mgl_dummy_weights_fill(const char *name, uint64_t seed, mgl_dtype dtype, uint32_t rank,
                            const uint64_t *dims, size_t begin, size_t end, void *out) {
  assert(dtype == MGL_DTYPE_F32 || dtype == MGL_DTYPE_F16 || dtype == MGL_DTYPE_BF16);
  assert(begin <= end);
  mgl_dummy_stream stream = mgl_dummy_weights_stream(name, seed, rank, dims, begin);
  float block[BLOCK_ELEMENTS];
  for (size_t done = 0; done < end - begin; done += BLOCK_ELEMENTS) {
    size_t left = end - begin - done;
    size_t count = left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS;
    draw(stream, done, count, block);
    if (dtype == MGL_DTYPE_BF16) {
      store_bf16(block, count, (mgl_bf16 *)out + done);
    } else if (dtype == MGL_DTYPE_F16) {
      store_f16(block, count, (mgl_f16 *)out + done);
    } else {
      memcpy((float *)out + done, block, count * sizeof *block);
    }
  }
}
