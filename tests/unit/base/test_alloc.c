// The allocation seam: overflow, counters, injected failures, mapped pages.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/alloc.h"

// Under AddressSanitizer an impossible size must return NULL, as the C library's allocator does.
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1";
}

static void test_heap(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  unsigned char *zeroed = mgl_alloc_zeroed(100, 3);
  assert_non_null(zeroed);
  for (int i = 0; i < 300; i++) {
    assert_int_equal(zeroed[i], 0);
  }
  char *copy = mgl_strndup("ab\0cd", 5);
  assert_memory_equal(copy, "ab\0cd", 6);
  char *string = mgl_strdup("text");
  assert_string_equal(string, "text");
  void *nothing = mgl_alloc(0);
  void *empty = mgl_alloc_zeroed(0, 8);
  assert_non_null(nothing);
  assert_non_null(empty);
  assert_int_equal(mgl_alloc_live(), live + 5);
  string = mgl_realloc(string, 1000);
  assert_string_equal(string, "text");
  assert_int_equal(mgl_alloc_live(), live + 5);
  mgl_free(zeroed);
  mgl_free(copy);
  mgl_free(string);
  mgl_free(nothing);
  mgl_free(empty);
  mgl_free(NULL);
  assert_int_equal(mgl_alloc_live(), live);
}

static void test_overflow(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  assert_null(mgl_alloc_zeroed(SIZE_MAX / 2, 3));
  assert_null(mgl_alloc_zeroed(3, SIZE_MAX / 2));
  assert_null(mgl_strndup("x", SIZE_MAX));
  void *items = NULL;
  size_t capacity = 0;
  mgl_error err = {0};
  assert_int_equal(mgl_grow(&items, &capacity, SIZE_MAX / 4, 8, &err), MGL_ERR_MEMORY);
  assert_null(items);
  assert_int_equal(capacity, 0);
  assert_non_null(strstr(err.text, "out of memory"));
  assert_int_equal(mgl_alloc_live(), live);
}

static void test_grow(void **state) {
  (void)state;
  void *items = NULL;
  size_t capacity = 0;
  uint64_t moves = 0;
  for (size_t i = 0; i < 10000; i++) {
    size_t before = capacity;
    assert_int_equal(mgl_grow(&items, &capacity, i + 1, sizeof(size_t), NULL), MGL_OK);
    assert_true(capacity >= i + 1);
    moves += capacity != before;
    ((size_t *)items)[i] = i;
  }
  assert_true(moves < 40);  // geometric, not one by one
  for (size_t i = 0; i < 10000; i++) {
    assert_int_equal(((size_t *)items)[i], i);
  }
  void *same = items;
  size_t before = capacity;
  mgl_alloc_fail_nth(1);
  assert_int_equal(mgl_grow(&items, &capacity, before + 1, sizeof(size_t), NULL), MGL_ERR_MEMORY);
  mgl_alloc_fail_nth(0);
  assert_ptr_equal(items, same);
  assert_int_equal(capacity, before);
  mgl_free(items);
}

// Exactly the Nth call fails, once, whichever function it is.
static void test_injected_failures(void **state) {
  (void)state;
  void *kept = mgl_alloc(1);
  for (uint64_t n = 1; n <= 5; n++) {
    mgl_alloc_fail_nth(n);
    void *results[5];
    results[0] = mgl_alloc(1);
    results[1] = mgl_alloc_zeroed(1, 1);
    results[2] = mgl_strdup("x");
    results[3] = mgl_realloc(NULL, 1);
    results[4] = mgl_realloc(kept, 2);
    assert_int_equal(mgl_alloc_count(), 5);
    for (uint64_t i = 0; i < 5; i++) {
      assert_int_equal(results[i] == NULL, i + 1 == n);
    }
    kept = results[4] != NULL ? results[4] : kept;
    for (int i = 0; i < 4; i++) {
      mgl_free(results[i]);
    }
  }
  mgl_alloc_fail_nth(0);
  mgl_free(kept);
}

static void test_pages(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 4096, 4097, 2 * 1024 * 1024, 5 * 1024 * 1024 + 12345};
  int64_t live = mgl_alloc_live();
  mgl_error err = {0};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    void *memory = NULL;
    assert_int_equal(mgl_pages_map(sizes[i], "test", &memory, &err), MGL_OK);
    size_t alignment = sizes[i] >= 2 * 1024 * 1024 ? 2 * 1024 * 1024 : 4096;
    assert_int_equal((uintptr_t)memory % alignment, 0);
    unsigned char *bytes = memory;
    assert_int_equal(bytes[0] | bytes[sizes[i] / 2] | bytes[sizes[i] - 1], 0);
    memset(bytes, 0xa5, sizes[i]);
    assert_int_equal(mgl_alloc_live(), live + 1);
    mgl_pages_unmap(memory, sizes[i]);
    assert_int_equal(mgl_alloc_live(), live);
  }
  mgl_pages_unmap(NULL, 0);
  assert_int_equal(mgl_alloc_live(), live);
}

static void test_pages_refused(void **state) {
  (void)state;
  void *memory = &memory;
  mgl_error err = {0};
  assert_int_equal(mgl_pages_map((size_t)1 << 60, "KV pages", &memory, &err), MGL_ERR_MEMORY);
  assert_null(memory);
  assert_non_null(strstr(err.text, "KV pages"));
  mgl_alloc_fail_nth(1);
  assert_int_equal(mgl_pages_map(4096, "weights", &memory, &err), MGL_ERR_MEMORY);
  mgl_alloc_fail_nth(0);
  assert_null(memory);
  assert_non_null(strstr(err.text, "weights"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_heap),  cmocka_unit_test(test_overflow),
      cmocka_unit_test(test_grow),  cmocka_unit_test(test_injected_failures),
      cmocka_unit_test(test_pages), cmocka_unit_test(test_pages_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
