// Reproducible random weights: what `--load-format dummy` and the reference tests use.
//
// A value depends only on (seed, tensor name, element index), by a counter-based generator, so that
// any part of a tensor can be made by any thread, and so that tools/reference_weights.py makes the
// same bits. About 2 ns an element on one core.
//   s   = splitmix64 finaliser of (fnv1a64(name) + seed * 0x9E3779B97F4A7C15), mod 2^64; without
//         the finaliser the next seed would give the same stream, shifted by one
//   x_i = splitmix64 finaliser of (s + (i + 1) * 0x9E3779B97F4A7C15)
//   u_i = (x_i >> 40) * 2^-23 - 1, uniform in [-1, 1), exact in f32
//   v_i = offset + scale * u_i, in f32 (two roundings), then rounded to the dtype (nearest even)
// Offset and scale follow from the name. Activations stay near 1, logits spread like a trained
// model's (standard deviation 3), and attention scores spread by about 2, so that a mistake in rope
// or masking shows in the logits even behind thousands of tokens:
//   rank 2 and 3: offset 0, scale = gain * sqrt(3 / last of dims) in double, rounded to f32; gain 3
//   for names ending in "embed_tokens.weight", "lm_head.weight", ".gate.weight", ".router.weight",
//   1.5 for "q_proj.weight" and "k_proj.weight", 1 otherwise
//   rank 1: names ending in "q_norm.weight" or "k_norm.weight": offset 1.5, scale 0.375; else in
//   "norm.weight": offset 1, scale 0.25; all others (biases): offset 0, scale 0.5
#ifndef MGL_MODEL_DUMMY_WEIGHTS_H
#define MGL_MODEL_DUMMY_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

// What the formula needs of a tensor. Value i is offset + scale * u_i, with u_i as above from
// x_i = splitmix64 finaliser of (start + (i + 1) * 0x9E3779B97F4A7C15).
typedef struct mgl_dummy_stream {
  uint64_t start;
  float offset;
  float scale;
} mgl_dummy_stream;

// The stream whose value 0 is element `first` of the tensor, for targets that draw the values
// themselves (twin/packing.h). dims has `rank` (1 to 3) entries.
mgl_dummy_stream mgl_dummy_weights_stream(const char *name, uint64_t seed, uint32_t rank,
                                          const uint64_t *dims, uint64_t first);

// Writes elements [begin, end) of the tensor to out[0 ..), which is aligned for the dtype. dims has
// `rank` (1 to 3) entries. dtype: F32, F16 or BF16. Thread-safe, cannot fail.
void mgl_dummy_weights_fill(const char *name, uint64_t seed, mgl_dtype dtype, uint32_t rank,
                            const uint64_t *dims, size_t begin, size_t end, void *out);

#endif
