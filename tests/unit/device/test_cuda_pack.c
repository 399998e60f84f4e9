// Packed weights: the scalar twin against the documented formula, the bodies of the kernels (run
// here thread by thread) against the twin, and weights.cu through the compiler for every
// architecture. No GPU is needed.
#include "device/cuda/cuda_pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cuda/cuda_jit.h"
#include "model/dummy_weights.h"
#include "unit/device/open_nvrtc.h"

enum { POISON = 0xa5, GUARD_BYTES = 64 };

static const uint32_t lengths[] = {1,   7,   8,   31,   32,   33,   63,   64,   65,   100,
                                   128, 896, 960, 1016, 1023, 1024, 1025, 1088, 2048, 3000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static uint32_t round_up(uint32_t value, uint32_t to) {
  return (value + to - 1) / to * to;
}

// The comment on mgl_cuda_op, word by word and with pages; half 2 b + u has rows g + 8 u of block
// b.
static uint64_t documented_offset(uint32_t k, uint64_t half, uint32_t g, uint32_t element) {
  uint32_t k_padded = round_up(k, 64);
  uint32_t page = element / 512;
  uint64_t block_bytes = 0;
  uint64_t page_start = 0;
  for (uint32_t c = 0; c * 512 < k_padded; c++) {
    uint32_t left = k_padded - 512 * c;
    uint32_t kr = left < 512 ? left : 512;
    page_start += c < page ? 32 * kr : 0;
    block_bytes += 32 * kr;
  }
  uint32_t e = element - 512 * page;
  uint32_t j = e / 32;
  uint32_t t = e % 32 / 8;
  uint32_t s = e % 8 / 4;
  uint32_t h = e % 4 / 2;
  uint32_t i = e % 2;
  uint32_t u = (uint32_t)(half % 2);
  return half / 2 * block_bytes + page_start + 1024 * j + 512 * s + 16 * (4 * g + t) +
         4 * (2 * h + u) + 2 * i;
}

// Distinct values for the first 65535 elements, never 0.
static uint16_t *make_rows(uint32_t row_count, uint32_t k, uint16_t first) {
  uint64_t count = (uint64_t)row_count * k;
  uint16_t *rows = mgl_alloc(count * sizeof *rows);
  assert_non_null(rows);
  for (uint64_t i = 0; i < count; i++) {
    rows[i] = (uint16_t)((first + i) % 65535 + 1);
  }
  return rows;
}

static uint8_t *make_poisoned(uint64_t bytes) {
  uint8_t *memory = mgl_alloc(bytes + GUARD_BYTES);
  assert_non_null(memory);
  memset(memory, POISON, bytes + GUARD_BYTES);
  return memory;
}

static void check_guard(const uint8_t *memory, uint64_t bytes) {
  for (uint32_t i = 0; i < GUARD_BYTES; i++) {
    assert_int_equal(memory[bytes + i], POISON);
  }
}

static uint16_t read_u16(const uint8_t *from) {
  uint16_t value;
  memcpy(&value, from, sizeof value);
  return value;
}

// --- the twin ------------------------------------------------------------------------------------

static void sizes_are_padded_and_do_not_overflow(void **state) {
  (void)state;
  assert_int_equal(mgl_cuda_packed_bytes(0, 64), 0);
  assert_int_equal(mgl_cuda_packed_bytes(8, 1), 2048);
  assert_int_equal(mgl_cuda_packed_bytes(8, 64), 2048);
  assert_int_equal(mgl_cuda_packed_bytes(16, 64), 2048);
  assert_int_equal(mgl_cuda_packed_bytes(24, 64), 4096);
  assert_int_equal(mgl_cuda_packed_bytes(16, 65), 4096);
  assert_int_equal(mgl_cuda_packed_bytes(16, 512), MGL_CUDA_PAGE_BYTES);
  assert_int_equal(mgl_cuda_packed_bytes(151936, 4096), UINT64_C(151936) * 4096 * 2);
  uint32_t most_rows = UINT32_MAX - 7;
  assert_true(mgl_cuda_packed_bytes(most_rows, 1u << 30) == ((uint64_t)most_rows + 8) << 31);
  assert_true(mgl_cuda_packed_bytes(8, (1u << 30) + 1) == UINT64_MAX);
  assert_true(mgl_cuda_packed_bytes(most_rows, UINT32_MAX) == UINT64_MAX);
}

// Every position by the documented formula; together they fill the block, each byte pair once.
static void offsets_are_as_documented(void **state) {
  (void)state;
  for (uint32_t i = 0; i < LENGTHS; i++) {
    uint32_t k = lengths[i];
    uint32_t k_padded = round_up(k, 64);
    uint32_t places = k_padded * 16;
    uint8_t *seen = mgl_alloc_zeroed(places, 1);
    assert_non_null(seen);
    assert_int_equal(mgl_packed_k(k), k_padded);
    for (uint32_t row = 0; row < 16; row++) {
      for (uint32_t e = 0; e < k_padded; e++) {
        uint64_t offset = mgl_packed_offset(k, row / 8, row % 8, e);
        assert_int_equal(offset, documented_offset(k, row / 8, row % 8, e));
        assert_int_equal(mgl_packed_offset(k, 5, row % 8, e), documented_offset(k, 5, row % 8, e));
        assert_true(offset % 2 == 0 && offset / 2 < places);
        assert_int_equal(seen[offset / 2]++, 0);
      }
    }
    mgl_free(seen);
  }
  // A block number beyond 32 bits of bytes.
  assert_true(mgl_packed_offset(1024, 1u << 24, 3, 40) ==
              (UINT64_C(1) << 38) + 1024 + (3 * 4 + 1) * 16);
}

// Some places counted by hand.
static void known_elements_lie_where_they_should(void **state) {
  (void)state;
  enum { ROWS = 16, K = 1088 };  // one block of three pages: 512, 512 and 64 elements
  uint16_t *rows = make_rows(ROWS, K, 0);
  uint64_t bytes = mgl_cuda_packed_bytes(ROWS, K);
  uint8_t *packed = make_poisoned(bytes);
  mgl_cuda_pack_rows(rows, ROWS, K, 0, 1, packed);
  static const struct {
    uint32_t row, element, offset;
  } cases[] = {
      {0, 0, 0},        {0, 1, 2},        {0, 2, 8},     {0, 4, 512},       {0, 8, 16},
      {0, 31, 570},     {1, 0, 64},       {7, 31, 1018}, {0, 32, 1024},     {2, 41, 1170},
      {0, 1024, 32768}, {7, 1087, 34810}, {8, 0, 4},     {15, 1087, 34814}, {9, 1024, 32836},
  };
  assert_int_equal(bytes, 34816);
  for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(read_u16(packed + cases[i].offset), rows[cases[i].row * K + cases[i].element]);
  }
  check_guard(packed, bytes);
  mgl_free(packed);
  mgl_free(rows);
}

static void rows_come_back_and_padding_is_zero(void **state) {
  (void)state;
  static const uint32_t row_counts[] = {1, 7, 8, 9, 24};
  for (uint32_t i = 0; i < LENGTHS * 5; i++) {
    uint32_t k = lengths[i / 5];
    uint32_t row_count = row_counts[i % 5];
    uint32_t padded_rows = round_up(row_count, 8);
    uint16_t *rows = make_rows(row_count, k, (uint16_t)(i * 97));
    uint64_t bytes = mgl_cuda_packed_bytes(padded_rows, k);
    uint8_t *packed = make_poisoned(bytes);
    mgl_cuda_pack_rows(rows, row_count, k, 0, 1, packed);
    check_guard(packed, bytes);
    for (uint32_t row = 0; row < padded_rows; row++) {
      for (uint32_t e = 0; e < round_up(k, 64); e++) {
        uint16_t expected = row < row_count && e < k ? rows[(uint64_t)row * k + e] : 0;
        assert_int_equal(read_u16(packed + documented_offset(k, row / 8, row % 8, e)), expected);
      }
    }
    uint64_t row_bytes = (uint64_t)row_count * k * 2;
    uint8_t *back = make_poisoned(row_bytes);
    mgl_cuda_unpack_rows(packed, row_count, k, 0, 1, (uint16_t *)(void *)back);
    assert_memory_equal(back, rows, row_bytes);
    check_guard(back, row_bytes);
    mgl_free(back);
    mgl_free(packed);
    mgl_free(rows);
  }
}

// gate_up: halves of blocks alternate. Packing one half leaves the other as it was.
static void gate_and_up_interleave(void **state) {
  (void)state;
  enum { ROWS = 40, K = 200 };
  uint16_t *gate = make_rows(ROWS, K, 0);
  uint16_t *up = make_rows(ROWS, K, 20000);
  uint64_t bytes = mgl_cuda_packed_bytes(2 * ROWS, K);
  uint8_t *packed = make_poisoned(bytes);
  mgl_cuda_pack_rows(gate, ROWS, K, 0, 2, packed);
  for (uint32_t row = 0; row < ROWS; row++) {
    for (uint32_t e = 0; e < K; e++) {
      uint64_t odd = documented_offset(K, row / 8 * 2 + 1, row % 8, e);
      assert_int_equal(read_u16(packed + odd), POISON << 8 | POISON);
    }
  }
  mgl_cuda_pack_rows(up, ROWS, K, 1, 2, packed);
  check_guard(packed, bytes);
  for (uint32_t row = 0; row < ROWS; row++) {
    for (uint32_t e = 0; e < K; e++) {
      uint64_t even = documented_offset(K, row / 8 * 2, row % 8, e);
      assert_int_equal(read_u16(packed + even), gate[row * K + e]);
      uint64_t odd = documented_offset(K, row / 8 * 2 + 1, row % 8, e);
      assert_int_equal(read_u16(packed + odd), up[row * K + e]);
    }
  }
  uint16_t back[ROWS * K];
  mgl_cuda_unpack_rows(packed, ROWS, K, 0, 2, back);
  assert_memory_equal(back, gate, sizeof back);
  mgl_cuda_unpack_rows(packed, ROWS, K, 1, 2, back);
  assert_memory_equal(back, up, sizeof back);
  mgl_free(packed);
  mgl_free(up);
  mgl_free(gate);
}

// qkv: one after the other, as if the three were one matrix.
static void q_k_and_v_follow_each_other(void **state) {
  (void)state;
  enum { Q = 32, KV = 16, ALL = Q + 2 * KV, K = 136 };
  uint16_t *rows = make_rows(ALL, K, 0);
  uint64_t bytes = mgl_cuda_packed_bytes(ALL, K);
  uint8_t *whole = make_poisoned(bytes);
  uint8_t *parts = make_poisoned(bytes);
  mgl_cuda_pack_rows(rows, ALL, K, 0, 1, whole);
  mgl_cuda_pack_rows(rows + (Q + KV) * K, KV, K, (Q + KV) / 8, 1, parts);
  mgl_cuda_pack_rows(rows, Q, K, 0, 1, parts);
  mgl_cuda_pack_rows(rows + Q * K, KV, K, Q / 8, 1, parts);
  assert_memory_equal(whole, parts, bytes + GUARD_BYTES);
  mgl_free(parts);
  mgl_free(whole);
  mgl_free(rows);
}

// --- the bodies of the kernels -------------------------------------------------------------------

static const struct {
  uint32_t blocks, threads;
} launches[] = {{1, 1}, {1, MGL_PACK_THREADS}, {3, 32}, {2, 96}, {64, MGL_PACK_THREADS}};

enum { LAUNCHES = sizeof launches / sizeof launches[0] };

// Runs `call`, which uses `at`, for every thread of a launch.
#define FOR_EACH_THREAD(launch, call)                                            \
  for (mgl_place at = {0, launches[launch].blocks, 0, launches[launch].threads}; \
       at.block < at.block_count; at.block++) {                                  \
    for (at.thread = 0; at.thread < at.thread_count; at.thread++) {              \
      call;                                                                      \
    }                                                                            \
  }

static void the_packing_kernel_equals_the_twin(void **state) {
  (void)state;
  static const uint32_t row_counts[] = {8, 29, 48};
  for (uint32_t i = 0; i < LENGTHS * 3 * 2; i++) {
    uint32_t k = lengths[i / 6];
    uint32_t row_count = row_counts[i % 3];
    uint32_t shift = i / 3 % 2;  // rows that begin 2 bytes beside a multiple of 16
    uint32_t blocks = round_up(row_count, 8) / 8;
    uint64_t bytes = mgl_cuda_packed_bytes((2 * blocks + 3) * 8, k);
    uint16_t *staging = make_rows(row_count + 1, k, (uint16_t)(i * 31));
    assert_int_equal((uintptr_t)staging % 16, 0);
    uint8_t *expected = make_poisoned(bytes);
    mgl_cuda_pack_rows(staging + shift, row_count, k, 3, 2, expected);
    for (uint32_t l = 0; l < LAUNCHES; l++) {
      uint8_t *packed = make_poisoned(bytes);
      FOR_EACH_THREAD(l, mgl_pack_share(at, staging + shift, row_count, k, 3, 2, packed));
      assert_memory_equal(packed, expected, bytes + GUARD_BYTES);
      mgl_free(packed);
    }
    mgl_free(expected);
    mgl_free(staging);
  }
}

// A matrix that is staged by ranges of rows ends up as if it were packed at once.
static void ranges_of_rows_make_the_whole(void **state) {
  (void)state;
  enum { ROWS = 61, K = 328, RANGE = 24 };
  uint16_t *rows = make_rows(ROWS, K, 0);
  uint64_t bytes = mgl_cuda_packed_bytes(2 * 64, K);
  uint8_t *expected = make_poisoned(bytes);
  uint8_t *packed = make_poisoned(bytes);
  mgl_cuda_pack_rows(rows, ROWS, K, 1, 2, expected);
  for (uint32_t first = 0; first < ROWS; first += RANGE) {
    uint32_t count = ROWS - first < RANGE ? ROWS - first : RANGE;
    FOR_EACH_THREAD(3,
                    mgl_pack_share(at, rows + first * K, count, K, 1 + first / 8 * 2, 2, packed));
  }
  assert_memory_equal(packed, expected, bytes + GUARD_BYTES);
  mgl_free(packed);
  mgl_free(expected);
  mgl_free(rows);
}

// Dummies drawn in place have the bits of those that are drawn on the host and packed.
static void the_drawing_kernels_equal_the_host(void **state) {
  (void)state;
  static const char *const names[] = {"model.layers.3.self_attn.q_proj.weight", "lm_head.weight",
                                      "model.layers.0.mlp.down_proj.weight"};
  for (uint32_t i = 0; i < LENGTHS * 3; i++) {
    uint32_t k = lengths[i / 3];
    const char *name = names[i % 3];
    uint64_t dims[2] = {53, k};
    uint32_t begin_row = i % 2 * 24;
    uint32_t row_count = 53 - begin_row;
    uint64_t begin = (uint64_t)begin_row * k;
    uint64_t count = (uint64_t)row_count * k;
    uint64_t bytes = mgl_cuda_packed_bytes(2 * 56, k);
    uint8_t *drawn = make_poisoned(count * 2);
    mgl_dummy_weights_fill(name, i, MGL_DTYPE_BF16, 2, dims, begin, begin + count, drawn);
    uint8_t *expected = make_poisoned(bytes);
    mgl_cuda_pack_rows((const uint16_t *)(void *)drawn, row_count, k, 0, 2, expected);
    mgl_dummy_stream stream = mgl_dummy_weights_stream(name, i, 2, dims, begin);
    uint32_t l = i % LAUNCHES;
    uint8_t *packed = make_poisoned(bytes);
    FOR_EACH_THREAD(l, mgl_dummy_packed_share(at, stream, 0, k, row_count, k, 0, 2, packed));
    assert_memory_equal(packed, expected, bytes + GUARD_BYTES);
    uint8_t *rows = make_poisoned(count * 2);
    FOR_EACH_THREAD(l, mgl_dummy_rows_share(at, stream, count, (uint16_t *)(void *)rows));
    assert_memory_equal(rows, drawn, count * 2 + GUARD_BYTES);
    mgl_free(rows);
    mgl_free(packed);
    mgl_free(expected);
    mgl_free(drawn);
  }
}

// The smallest and largest values, and far along a stream.
static void drawn_values_have_the_hosts_bits(void **state) {
  (void)state;
  static const char name[] = "model.embed_tokens.weight";
  static const uint64_t dims[2] = {1u << 18, 1u << 13};
  static const uint64_t firsts[] = {0, 1, UINT32_MAX - 100, UINT64_C(1) << 31, UINT64_C(1) << 40};
  enum { COUNT = 20000 };
  uint16_t *expected = mgl_alloc(COUNT * sizeof *expected);
  assert_non_null(expected);
  for (uint32_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
    mgl_dummy_weights_fill(name, UINT64_MAX - i, MGL_DTYPE_BF16, 2, dims, firsts[i],
                           firsts[i] + COUNT, expected);
    mgl_dummy_stream start = mgl_dummy_weights_stream(name, UINT64_MAX - i, 2, dims, 0);
    mgl_dummy_stream later = mgl_dummy_weights_stream(name, UINT64_MAX - i, 2, dims, firsts[i]);
    for (uint32_t k = 0; k < COUNT; k++) {
      assert_int_equal(mgl_dummy_bf16(start, firsts[i] + k), expected[k]);
      assert_int_equal(mgl_dummy_bf16(later, k), expected[k]);
    }
  }
  mgl_free(expected);
}

// --- the compiler --------------------------------------------------------------------------------

static void check_kernel(const char *architecture, const char *log, const char *kernel,
                         uint32_t threads) {
  mgl_cuda_usage usage = {0};
  if (!mgl_cuda_usage_find(log, kernel, &usage)) {
    fail_msg("no resources of %s in the log:\n%s", kernel, log);
  }
  print_message("%-8s %-17s %3u registers, %u bytes static shared, %u stack, %u spilled\n",
                architecture, kernel, usage.registers, usage.static_smem_bytes, usage.stack_bytes,
                usage.spill_bytes);
  assert_int_equal(usage.spill_bytes, 0);
  assert_int_equal(usage.stack_bytes, 0);
  assert_true(usage.registers * threads * 4 <= 65536);  // a thousand threads of each SM
  assert_true(usage.static_smem_bytes <= 1024);         // besides MGL_READ_PAGES pages
}

static void the_kernels_compile_for_all_architectures(void **state) {
  (void)state;
  static const char *const architectures[] = {"sm_80", "sm_90a", "sm_100a"};
  static const mgl_cuda_shape shape = {.head_dim = 128, .group = 2};  // not read by these kernels
  mgl_nvrtc nvrtc;
  if (!open_nvrtc(&nvrtc)) {
    skip();
  }
  for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++) {
    mgl_error err = {0};
    mgl_text log = {0};
    void *cubin = NULL;
    size_t bytes = 0;
    if (mgl_cuda_compile(&nvrtc, "kernels/cuda/weights.cu", architectures[i], &shape, &cubin,
                         &bytes, &log, &err) != MGL_OK) {
      fail_msg("%s", log.data != NULL ? log.data : err.text);
    }
    assert_true(bytes > 0);
    if (strstr(log.data, "warning") != NULL) {
      fail_msg("the compiler warns:\n%s", log.data);
    }
    check_kernel(architectures[i], log.data, "mgl_pack_weights", MGL_PACK_THREADS);
    check_kernel(architectures[i], log.data, "mgl_dummy_packed", MGL_PACK_THREADS);
    check_kernel(architectures[i], log.data, "mgl_dummy_rows", MGL_PACK_THREADS);
    check_kernel(architectures[i], log.data, "mgl_read_ceiling", MGL_READ_THREADS);
    mgl_free(cubin);
    mgl_text_free(&log);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes_are_padded_and_do_not_overflow),
      cmocka_unit_test(offsets_are_as_documented),
      cmocka_unit_test(known_elements_lie_where_they_should),
      cmocka_unit_test(rows_come_back_and_padding_is_zero),
      cmocka_unit_test(gate_and_up_interleave),
      cmocka_unit_test(q_k_and_v_follow_each_other),
      cmocka_unit_test(the_packing_kernel_equals_the_twin),
      cmocka_unit_test(ranges_of_rows_make_the_whole),
      cmocka_unit_test(the_drawing_kernels_equal_the_host),
      cmocka_unit_test(drawn_values_have_the_hosts_bits),
      cmocka_unit_test(the_kernels_compile_for_all_architectures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
