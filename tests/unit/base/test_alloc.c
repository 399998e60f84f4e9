// The allocation seam: overflow, counters, injected failures, mapped pages.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "support/temp_folder.h"

// Under AddressSanitizer an impossible size must return NULL, as the C library's allocator does.
__attribute__((visibility("default"))) const char *__asan_default_options(void);
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

// Sizes in messages show digits, however small they are, and the system's reason.
static void test_messages(void **state) {
  (void)state;
  void *memory = NULL;
  mgl_error err = {0};
  mgl_alloc_fail_nth(1);
  assert_int_equal(mgl_pages_map(12345, "weights", &memory, &err), MGL_ERR_MEMORY);
  mgl_alloc_fail_nth(0);
  assert_string_equal(err.text, "could not map 12.06 KiB for the weights: Cannot allocate memory");
  assert_int_equal(mgl_pages_map((size_t)1 << 60, "KV pages", &memory, &err), MGL_ERR_MEMORY);
  assert_non_null(strstr(err.text, "needs 1073741824 GiB, "));
  assert_non_null(strstr(err.text, "iB are available"));
}

// --- how much memory there is --------------------------------------------------------------------

// The files of one case: folders p (for /proc) and c (for /sys/fs/cgroup) in a temporary folder.
typedef struct fake_files {
  const char *files[12][2];  // path and content
  uint64_t available;
} fake_files;

static const uint64_t mib = 1024 * 1024;

static void make_parents(const temp_folder *folder, const char *name) {
  char path[TEMP_PATH_BYTES];
  for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    int bytes = snprintf(path, sizeof path, "%s/%.*s", folder->path, (int)(slash - name), name);
    assert_true(bytes > 0 && (size_t)bytes < sizeof path);
    (void)mkdir(path, 0700);
  }
}

static void remove_files(const temp_folder *folder, const fake_files *fake) {
  char path[TEMP_PATH_BYTES];
  for (size_t i = 0; i < 12 && fake->files[i][0] != NULL; i++) {
    temp_folder_path(folder, fake->files[i][0], path);
    assert_int_equal(unlink(path), 0);
  }
  for (size_t i = 12; i > 0; i--) {  // folders that are empty by now, the deepest first
    if (fake->files[i - 1][0] != NULL) {
      temp_folder_path(folder, fake->files[i - 1][0], path);
      for (char *slash = strrchr(path, '/'); slash > path + strlen(folder->path);
           slash = strrchr(path, '/')) {
        *slash = 0;
        (void)rmdir(path);
      }
    }
  }
}

#define MEMINFO "MemTotal: 9999999 kB\nMemAvailable:    1048576 kB\n"

static void test_memory_available(void **state) {
  (void)state;
  static const fake_files cases[] = {
      {{{NULL}}, UINT64_MAX},
      {{{"p/meminfo", MEMINFO}}, 1024 * mib},
      // Version 2: page cache counts as free, and anonymous and shared memory does not.
      {{{"p/meminfo", MEMINFO},
        {"p/self/cgroup", "0::/\n"},
        {"c/memory.max", "536870912\n"},
        {"c/memory.current", "419430400\n"},
        {"c/memory.stat",
         "anon 1\nfile 314572800\ninactive_anon 999999999\ninactive_file 209715200\n"
         "active_file 104857600\n"}},
       (512 - 400 + 300) * mib},
      {{{"p/meminfo", MEMINFO}, {"c/memory.max", "max\n"}, {"c/memory.current", "5\n"}},
       1024 * mib},
      // Without memory.stat all that is used is taken; more than the limit leaves nothing.
      {{{"p/meminfo", MEMINFO},
        {"c/memory.max", "104857600\n"},
        {"c/memory.current", "62914560\n"}},
       40 * mib},
      {{{"p/meminfo", MEMINFO}, {"c/memory.max", "100\n"}, {"c/memory.current", "200\n"}}, 0},
      // Nested groups: the tightest counts.
      {{{"p/meminfo", MEMINFO},
        {"p/self/cgroup", "0::/a/b\n"},
        {"c/a/memory.max", "104857600\n"},
        {"c/a/memory.current", "52428800\n"},
        {"c/a/memory.stat", "inactive_file 10485760\nactive_file 0\n"},
        {"c/a/b/memory.max", "max\n"},
        {"c/a/b/memory.current", "1\n"}},
       60 * mib},
      // Version 1, in a container whose path is the host's.
      {{{"p/meminfo", MEMINFO},
        {"p/self/cgroup", "5:cpu,memory:/docker/0123\n1:name=systemd:/\n"},
        {"c/memory/memory.limit_in_bytes", "209715200\n"},
        {"c/memory/memory.usage_in_bytes", "157286400\n"},
        {"c/memory/memory.stat",
         "inactive_file 7\ntotal_inactive_file 52428800\ntotal_active_file 26214400\n"}},
       125 * mib},
      // Version 1, nested, the root unlimited.
      {{{"p/meminfo", MEMINFO},
        {"p/self/cgroup", "5:memory:/jobs/1\n0::/\n"},
        {"c/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {"c/memory/memory.usage_in_bytes", "157286400\n"},
        {"c/memory/jobs/1/memory.limit_in_bytes", "20971520\n"},
        {"c/memory/jobs/1/memory.usage_in_bytes", "10485760\n"}},
       10 * mib},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    temp_folder folder;
    char proc[TEMP_PATH_BYTES];
    char cgroup[TEMP_PATH_BYTES];
    temp_folder_create(&folder);
    for (size_t j = 0; j < 12 && cases[i].files[j][0] != NULL; j++) {
      make_parents(&folder, cases[i].files[j][0]);
      temp_folder_write_text(&folder, cases[i].files[j][0], cases[i].files[j][1]);
    }
    temp_folder_path(&folder, "p", proc);
    temp_folder_path(&folder, "c", cgroup);
    uint64_t found = mgl_memory_available_in(proc, cgroup);
    if (found != cases[i].available) {
      fail_msg("case %zu: expected %llu bytes, found %llu", i,
               (unsigned long long)cases[i].available, (unsigned long long)found);
    }
    remove_files(&folder, &cases[i]);
    temp_folder_remove(&folder);
  }
  assert_true(mgl_memory_available() > 0);
}

static void test_budget(void **state) {
  (void)state;
  mgl_alloc_budget outer, inner;
  void *before = mgl_alloc(1000);
  mgl_alloc_budget_begin(&outer, 100000);
  void *first = mgl_alloc(60000);
  assert_non_null(first);
  assert_in_range(outer.held, 60000, 61000);
  assert_null(mgl_alloc(60000));
  assert_true(outer.refused);
  assert_null(mgl_alloc_zeroed(6, 10000));
  assert_null(mgl_strndup("x", SIZE_MAX - 1));
  mgl_free(first);
  first = mgl_alloc_zeroed(6, 10000);
  assert_non_null(first);
  assert_null(mgl_realloc(first, 70000));  // both blocks may be there at once
  first = mgl_realloc(first, 30000);
  assert_in_range(outer.held, 30000, 31000);
  // The inner one counts alone, and earns alone; blocks from before may go.
  mgl_alloc_budget_begin(&inner, 1000);
  mgl_free(before);
  assert_true(inner.held < 0 && !inner.refused);
  mgl_alloc_budget_earn(100);
  assert_int_equal(inner.limit, 1000 + 100 * MGL_ALLOC_BUDGET_FACTOR);
  mgl_alloc_budget_earn(UINT64_MAX / 2);
  assert_true(inner.limit == UINT64_MAX);
  mgl_alloc_budget_end(&inner);
  mgl_free(first);
  assert_in_range(outer.peak, 60000, 100000);
  assert_int_equal(outer.held, 0);
  mgl_alloc_budget_end(&outer);
  mgl_alloc_budget_earn(1);  // without a budget nothing happens
  void *large = mgl_alloc(200000);
  assert_non_null(large);
  mgl_free(large);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_heap),     cmocka_unit_test(test_overflow),
      cmocka_unit_test(test_grow),     cmocka_unit_test(test_injected_failures),
      cmocka_unit_test(test_pages),    cmocka_unit_test(test_pages_refused),
      cmocka_unit_test(test_messages), cmocka_unit_test(test_memory_available),
      cmocka_unit_test(test_budget),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
