// Dummy weights against the bytes that the Python half draws: the table below is the output of
// `python3 tools/reference_weights.py`.
#include "model/dummy_weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
// cmocka.h needs the four above
#include <cmocka.h>

#include "base/alloc.h"

enum { GUARD_BYTES = 64, POISON = 0xa5 };

typedef struct test_case {
  const char *name;
  uint64_t seed;
  mgl_dtype dtype;
  uint32_t rank;
  uint64_t dims[2];
  size_t begin;
  size_t end;
  uint64_t hash;  // FNV-1a over the little-endian bytes of elements [begin, end)
} test_case;

// clang-format off
static const test_case CASES[] = {
    {"model.embed_tokens.weight", 0u, MGL_DTYPE_BF16, 2, {199, 240}, 0u, 47760u, 0xb6cb4d07f148f5abu},
    {"model.embed_tokens.weight", 0u, MGL_DTYPE_F16, 2, {199, 240}, 0u, 47760u, 0xf0f3c848d4648d18u},
    {"model.embed_tokens.weight", 0u, MGL_DTYPE_F32, 2, {199, 240}, 0u, 47760u, 0x92d17891617c88f5u},
    {"lm_head.weight", 1u, MGL_DTYPE_BF16, 2, {257, 200}, 1023u, 3075u, 0x6332f112d1b319e1u},
    {"model.layers.0.self_attn.q_proj.weight", 7u, MGL_DTYPE_BF16, 2, {320, 240}, 0u, 76800u, 0xec83180eb12ba3c2u},
    {"model.layers.11.self_attn.k_proj.weight", 7u, MGL_DTYPE_F16, 2, {64, 240}, 17u, 18u, 0x07eb1807b4aeaefau},
    {"model.layers.3.mlp.down_proj.weight", 18446744073709551615u, MGL_DTYPE_F32, 2, {240, 400}, 95999u, 96000u, 0x4227ae4d4da8c9c7u},
    {"model.layers.3.mlp.down_proj.weight", 18446744073709551615u, MGL_DTYPE_BF16, 2, {65536, 262144}, 8589934592u, 8589936640u, 0xd248d07c9ff2e47cu},
    {"model.layers.0.self_attn.q_norm.weight", 2u, MGL_DTYPE_BF16, 1, {128}, 0u, 128u, 0x1e1abb240419a6fbu},
    {"model.layers.1.input_layernorm.weight", 2u, MGL_DTYPE_F32, 1, {240}, 0u, 240u, 0x92a57bb67b55082eu},
    {"model.norm.weight", 2u, MGL_DTYPE_F16, 1, {200}, 0u, 200u, 0xd9f016c3268c3f38u},
    {"model.layers.2.self_attn.v_proj.bias", 3u, MGL_DTYPE_BF16, 1, {80}, 0u, 80u, 0xbe70a2be873c336au},
    {"model.layers.2.self_attn.v_proj.bias", 3u, MGL_DTYPE_F32, 1, {80}, 5u, 5u, 0xcbf29ce484222325u},
};
// clang-format on

static uint64_t hash_bytes(const unsigned char *data, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++) {
    hash = (hash ^ data[i]) * 0x100000001b3u;
  }
  return hash;
}

static void same_bytes_as_python(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    const test_case *c = &CASES[i];
    size_t bytes = (c->end - c->begin) * mgl_dtype_bytes(c->dtype);
    unsigned char *out = mgl_alloc(bytes + GUARD_BYTES);
    assert_non_null(out);
    memset(out, POISON, bytes + GUARD_BYTES);
    mgl_dummy_weights_fill(c->name, c->seed, c->dtype, c->rank, c->dims, c->begin, c->end, out);
    if (hash_bytes(out, bytes) != c->hash) {
      fail_msg("case %zu, %s as %s: bytes differ from Python's", i, c->name,
               mgl_dtype_name(c->dtype));
    }
    for (size_t k = 0; k < GUARD_BYTES; k++) {
      assert_int_equal(out[bytes + k], POISON);
    }
    mgl_free(out);
  }
}

// Any split of a tensor gives the same bytes, whatever the internal block size.
static void parts_equal_the_whole(void **state) {
  (void)state;
  static const char name[] = "model.layers.0.mlp.up_proj.weight";
  static const uint64_t dims[2] = {30, 200};
  static const size_t cuts[] = {0, 1, 7, 1023, 1024, 1025, 2049, 4000, 6000};
  mgl_bf16 whole[6000];
  mgl_bf16 parts[6000];
  mgl_dummy_weights_fill(name, 5, MGL_DTYPE_BF16, 2, dims, 0, 6000, whole);
  memset(parts, POISON, sizeof parts);
  for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
    mgl_dummy_weights_fill(name, 5, MGL_DTYPE_BF16, 2, dims, cuts[i], cuts[i + 1], parts + cuts[i]);
  }
  assert_memory_equal(whole, parts, sizeof whole);
}

static void values_lie_in_their_range(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint32_t rank;
    uint64_t dims[2];
    float low;
    float high;
  } cases[] = {
      {"lm_head.weight", 2, {16, 300}, -0.3f, 0.3f},
      {"model.layers.0.self_attn.q_proj.weight", 2, {16, 300}, -0.15f, 0.15f},
      {"model.layers.0.self_attn.v_proj.weight", 2, {16, 300}, -0.1f, 0.1f},
      {"model.layers.0.self_attn.q_norm.weight", 1, {4800, 0}, 1.125f, 1.875f},
      {"model.norm.weight", 1, {4800, 0}, 0.75f, 1.25f},
      {"model.layers.0.self_attn.q_proj.bias", 1, {4800, 0}, -0.5f, 0.5f},
  };
  float values[4800];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_dummy_weights_fill(cases[i].name, 9, MGL_DTYPE_F32, cases[i].rank, cases[i].dims, 0, 4800,
                           values);
    float low = values[0];
    float high = values[0];
    double sum = 0;
    for (size_t k = 0; k < 4800; k++) {
      low = values[k] < low ? values[k] : low;
      high = values[k] > high ? values[k] : high;
      sum += (double)values[k];
    }
    float spread = cases[i].high - cases[i].low;
    double middle = 0.5 * ((double)cases[i].low + (double)cases[i].high);
    assert_true(low >= cases[i].low * 1.000001f - 1e-7f && low < cases[i].low + 0.01f * spread);
    assert_true(high <= cases[i].high + 1e-7f && high > cases[i].high - 0.01f * spread);
    assert_true(sum / 4800 > middle - 0.02 * (double)spread);
    assert_true(sum / 4800 < middle + 0.02 * (double)spread);
  }
}

// Name and seed both choose the stream.
static void streams_differ(void **state) {
  (void)state;
  static const uint64_t dims[2] = {8, 8};
  float a[64];
  float b[64];
  float c[64];
  mgl_dummy_weights_fill("a.weight", 1, MGL_DTYPE_F32, 2, dims, 0, 64, a);
  mgl_dummy_weights_fill("b.weight", 1, MGL_DTYPE_F32, 2, dims, 0, 64, b);
  mgl_dummy_weights_fill("a.weight", 2, MGL_DTYPE_F32, 2, dims, 0, 64, c);
  for (size_t i = 0; i < 64; i++) {
    for (size_t k = 0; k < 64; k++) {
      assert_true(a[i] < b[k] || a[i] > b[k]);
      assert_true(a[i] < c[k] || a[i] > c[k]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_bytes_as_python),
      cmocka_unit_test(parts_equal_the_whole),
      cmocka_unit_test(values_lie_in_their_range),
      cmocka_unit_test(streams_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
