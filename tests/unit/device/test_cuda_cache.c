// Cached device code: found again, never half, never somebody else's, and no failure to store it
// keeps anything from running.
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/cache_folder.h"
#include "device/cuda/cuda_cache.h"
#include "device/cuda/cuda_code.h"
#include "support/temp_folder.h"

enum { CODE_BYTES = 100000, PATH_BYTES = 700 };

static const mgl_cuda_cache_key key = {
    .source = {.low = 7, .high = UINT64_C(0xabcdef0123456789)}, .compiler = "nvrtc", .major = 13};
static const mgl_cuda_usage usage = {168, 8, 4, 96};
#define KEY_NAME "abcdef01234567890000000000000007-nvrtc13.0.cubin"

static unsigned char code[CODE_BYTES];

static void fill(unsigned char seed) {
  for (size_t i = 0; i < sizeof code; i++) {
    code[i] = (unsigned char)(i * 31 + i / 256 + seed);
  }
}

static void write_code(const char *folder) {
  mgl_error err = {0};
  fill(1);
  if (mgl_cuda_cache_write(folder, &key, code, sizeof code, &usage, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

static bool finds(const char *folder, const mgl_cuda_cache_key *wanted) {
  void *cubin = NULL;
  size_t bytes = 0;
  mgl_cuda_usage found = {0};
  if (!mgl_cuda_cache_read(folder, wanted, &cubin, &bytes, &found)) {
    assert_null(cubin);
    return false;
  }
  assert_int_equal(bytes, sizeof code);
  assert_memory_equal(cubin, code, sizeof code);
  assert_memory_equal(&found, &usage, sizeof usage);
  mgl_free(cubin);
  return true;
}

static size_t count_files(const temp_folder *folder) {
  size_t count = 0;
  DIR *entries = opendir(folder->path);
  assert_non_null(entries);
  for (struct dirent *e = readdir(entries); e != NULL; e = readdir(entries)) {
    count += e->d_name[0] != '.';
  }
  (void)closedir(entries);
  return count;
}

static bool exists(const temp_folder *folder, const char *name) {
  char path[TEMP_PATH_BYTES];
  temp_folder_path(folder, name, path);
  return access(path, F_OK) == 0;
}

static void what_was_written_is_found(void **state) {
  (void)state;
  temp_folder folder;
  temp_folder_create(&folder);
  assert_false(finds(folder.path, &key));
  write_code(folder.path);
  assert_true(exists(&folder, KEY_NAME));
  assert_true(finds(folder.path, &key));
  write_code(folder.path);  // again: replaced
  assert_true(finds(folder.path, &key));
  mgl_cuda_cache_key other = key;
  other.source.low = 8;
  assert_false(finds(folder.path, &other));
  other = key;
  other.minor = 1;
  assert_false(finds(folder.path, &other));
  other.major = other.minor = 0;  // any toolkit
  assert_true(finds(folder.path, &other));
  other.source.high = 0;
  assert_false(finds(folder.path, &other));
  assert_true(finds(folder.path, &key));  // nothing was removed
  temp_folder_remove(&folder);
}

// Every byte counts: changed at several places, cut at several lengths, too long, of another key.
static void damaged_files_are_removed(void **state) {
  (void)state;
  static const size_t places[] = {0, 8, 12, 20, 40, 56, 64, 79, 80, 50000};
  temp_folder folder;
  char path[TEMP_PATH_BYTES];
  temp_folder_create(&folder);
  temp_folder_path(&folder, KEY_NAME, path);
  write_code(folder.path);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  unsigned char *whole = malloc(CODE_BYTES + 1000);
  size_t bytes = fread(whole, 1, CODE_BYTES + 1000, file);
  (void)fclose(file);
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    whole[places[i]] ^= 0x10;
    temp_folder_write(&folder, KEY_NAME, whole, bytes);
    whole[places[i]] ^= 0x10;
    assert_false(finds(folder.path, &key));
    assert_false(exists(&folder, KEY_NAME));
    temp_folder_write(&folder, KEY_NAME, whole, places[i]);
    assert_false(finds(folder.path, &key));
    assert_false(exists(&folder, KEY_NAME));
  }
  temp_folder_write(&folder, KEY_NAME, whole, bytes + 1);
  assert_false(finds(folder.path, &key));
  temp_folder_write(&folder, KEY_NAME, whole, bytes);
  assert_true(finds(folder.path, &key));
  free(whole);
  temp_folder_remove(&folder);
}

static void a_folder_that_cannot_be_written_is_named(void **state) {
  (void)state;
  temp_folder folder;
  char path[PATH_BYTES];
  mgl_error err = {0};
  temp_folder_create(&folder);
  temp_folder_write_text(&folder, "file", "text");
  (void)snprintf(path, sizeof path, "%s/file/below", folder.path);  // also root cannot
  assert_false(finds(path, &key));
  assert_int_equal(mgl_cuda_cache_write(path, &key, code, sizeof code, &usage, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "cannot write"));
  assert_non_null(strstr(err.text, "/file/below"));
  // Folders that are missing are made.
  (void)snprintf(path, sizeof path, "%s/a/b//c", folder.path);
  write_code(path);
  assert_true(finds(path, &key));
  char file[PATH_BYTES + 64];
  (void)snprintf(file, sizeof file, "%s/%s", path, KEY_NAME);
  assert_int_equal(unlink(file), 0);
  assert_int_equal(rmdir(path), 0);
  (void)snprintf(path, sizeof path, "%s/a/b", folder.path);
  assert_int_equal(rmdir(path), 0);
  temp_folder_remove(&folder);
}

// Processes that write and read the same file all the time: no reader sees anything but a whole
// one.
static void processes_do_not_disturb_each_other(void **state) {
  (void)state;
  enum { PROCESSES = 4, ROUNDS = 50 };
  temp_folder folder;
  pid_t children[PROCESSES];
  temp_folder_create(&folder);
  write_code(folder.path);
  for (int i = 0; i < PROCESSES; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    if (children[i] == 0) {
      int failures = 0;
      for (int round = 0; round < ROUNDS; round++) {
        void *cubin = NULL;
        size_t bytes = 0;
        mgl_cuda_usage found = {0};
        failures +=
            mgl_cuda_cache_write(folder.path, &key, code, sizeof code, &usage, NULL) != MGL_OK;
        failures += !mgl_cuda_cache_read(folder.path, &key, &cubin, &bytes, &found);
        failures += bytes != sizeof code || memcmp(cubin, code, sizeof code) != 0;
        mgl_free(cubin);
      }
      _exit(failures == 0 ? 0 : 1);
    }
  }
  for (int i = 0; i < PROCESSES; i++) {
    int result = 1;
    assert_int_equal(waitpid(children[i], &result, 0), children[i]);
    assert_int_equal(result, 0);
  }
  assert_true(finds(folder.path, &key));
  temp_folder_remove(&folder);  // which fails if a temporary file were a folder; names are unique
}

// Writers that are killed at random moments: what is found is whole, and the next start, which
// reads, removes what they left.
static void killed_writers_tear_nothing(void **state) {
  (void)state;
  enum { KILLS = 100 };
  temp_folder folder;
  unsigned seed = 3;
  size_t left = 0;
  temp_folder_create(&folder);
  fill(1);
  for (int i = 0; i < KILLS; i++) {
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      (void)!write(ready[1], &byte, 1);
    }
    while (child == 0) {
      if (mgl_cuda_cache_write(folder.path, &key, code, sizeof code, &usage, NULL) != MGL_OK) {
        _exit(1);
      }
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);  // its time starts when it does
    (void)close(ready[0]);
    (void)close(ready[1]);
    struct timespec wait = {0, (long)(rand_r(&seed) % 2000) * 1000};
    (void)nanosleep(&wait, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result));
    bool whole = exists(&folder, KEY_NAME);
    left += count_files(&folder) - (whole ? 1 : 0);
    assert_int_equal(finds(folder.path, &key), whole);  // a torn one would be removed, not found
    assert_int_equal(count_files(&folder), whole ? 1 : 0);
  }
  print_message("%d writers killed, %zu left a temporary file\n", KILLS, left);
  assert_true(left > 0);
  temp_folder_remove(&folder);
}

static void the_folder_is_the_first_that_is_set(void **state) {
  (void)state;
  char path[MGL_CACHE_FOLDER_BYTES];
  assert_int_equal(setenv("HOME", "/home/h", 1), 0);
  assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
  assert_int_equal(unsetenv("MEGALITH_CACHE"), 0);
  assert_true(mgl_cache_folder(path));
  assert_string_equal(path, "/home/h/.cache/megalith");
  assert_int_equal(setenv("XDG_CACHE_HOME", "not/absolute", 1), 0);
  assert_true(mgl_cache_folder(path));
  assert_string_equal(path, "/home/h/.cache/megalith");
  assert_int_equal(setenv("XDG_CACHE_HOME", "/x", 1), 0);
  assert_true(mgl_cache_folder(path));
  assert_string_equal(path, "/x/megalith");
  assert_int_equal(setenv("MEGALITH_CACHE", "/m", 1), 0);
  assert_true(mgl_cache_folder(path));
  assert_string_equal(path, "/m");
  assert_int_equal(unsetenv("HOME"), 0);
  assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
  assert_int_equal(setenv("MEGALITH_CACHE", "", 1), 0);
  assert_false(mgl_cache_folder(path));
}

static void keys_tell_sources_apart(void **state) {
  (void)state;
  const mgl_cuda_shape shape = {.head_dim = 128, .group = 4};
  const mgl_cuda_shape traced = {.head_dim = 128, .group = 4, .trace = true};
  mgl_error err = {0};
  mgl_hash first, again, other;
  assert_int_equal(mgl_cuda_source_hash("kernels/cuda/weights.cu", "sm_90a", &shape, &first, &err),
                   MGL_OK);
  assert_int_equal(mgl_cuda_source_hash("kernels/cuda/weights.cu", "sm_90a", &shape, &again, &err),
                   MGL_OK);
  assert_memory_equal(&first, &again, sizeof first);
  assert_int_equal(mgl_cuda_source_hash("kernels/cuda/weights.cu", "sm_80", &shape, &other, &err),
                   MGL_OK);
  assert_memory_not_equal(&first, &other, sizeof first);
  assert_int_equal(mgl_cuda_source_hash("kernels/cuda/weights.cu", "sm_90a", &traced, &other, &err),
                   MGL_OK);
  assert_memory_not_equal(&first, &other, sizeof first);
  assert_int_equal(
      mgl_cuda_source_hash("kernels/cuda/megakernel.cu", "sm_90a", &shape, &other, &err), MGL_OK);
  assert_memory_not_equal(&first, &other, sizeof first);
}

static void get(mgl_cuda_code *out) {
  static const mgl_cuda_shape shape = {.head_dim = 128, .group = 4};
  mgl_error err = {0};
  mgl_cuda_device device = {.name = "None", .major = 9, .kernels = MGL_CUDA_KERNELS_WGMMA};
  if (mgl_cuda_code_get(&device, "kernels/cuda/weights.cu", &shape, "mgl_pack_weights", out,
                        &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

// With the compiler: the second start takes the code of the first, and a folder that cannot be
// written costs only a note.
static void code_is_compiled_once(void **state) {
  (void)state;
  mgl_nvrtc nvrtc;
  mgl_error err = {0};
#if defined(MGL_TEST_SANITIZED)
  print_message("skipped: the compiler's library is not sanitized; the release build runs this\n");
  skip();
#endif
  if (mgl_nvrtc_open(&nvrtc, &err) != MGL_OK) {
    print_message("skipped: %s\n", err.text);
    skip();
  }
  temp_folder folder;
  char path[PATH_BYTES];
  mgl_cuda_code first, second;
  temp_folder_create(&folder);
  assert_int_equal(setenv("MEGALITH_CACHE", folder.path, 1), 0);
  get(&first);
  assert_false(first.cached);
  assert_string_equal(first.note, "");
  assert_true(first.usage.registers > 0);
  get(&second);
  assert_true(second.cached);
  assert_int_equal(second.bytes, first.bytes);
  assert_memory_equal(second.cubin, first.cubin, first.bytes);
  assert_memory_equal(&second.usage, &first.usage, sizeof first.usage);
  mgl_free(second.cubin);
  temp_folder_write_text(&folder, "file", "text");
  (void)snprintf(path, sizeof path, "%s/file", folder.path);
  assert_int_equal(setenv("MEGALITH_CACHE", path, 1), 0);
  get(&second);
  assert_false(second.cached);
  assert_non_null(strstr(second.note, "device code is not cached: cannot create"));
  mgl_free(second.cubin);
  assert_int_equal(unsetenv("MEGALITH_CACHE"), 0);
  get(&second);
  assert_non_null(strstr(second.note, "neither MEGALITH_CACHE nor HOME"));
  mgl_free(second.cubin);
  mgl_free(first.cubin);
  temp_folder_remove(&folder);
}

// Code that is its name; one kernel has none.
static mgl_status get_named(const mgl_cuda_device *device, const char *name,
                            const mgl_cuda_shape *shape, const char *kernel, mgl_cuda_code *out,
                            mgl_error *err) {
  (void)device;
  *out = (mgl_cuda_code){0};
  if (strcmp(kernel, "fails") == 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s fails", name);
  }
  out->cubin = mgl_strdup(name);
  out->bytes = strlen(name);
  out->usage.registers = shape->group;
  return MGL_OK;
}

static void all_codes_come_or_none(void **state) {
  (void)state;
  enum { COUNT = 4 };
  static const char *const names[COUNT] = {"one", "two", "three", "four"};
  const mgl_cuda_shape shape = {.head_dim = 128, .group = 4};
  int64_t live = mgl_alloc_live();
  for (size_t failing = 0; failing <= COUNT; failing++) {  // COUNT: none
    mgl_cuda_code_wish wishes[COUNT];
    mgl_error err = {0};
    for (size_t i = 0; i < COUNT; i++) {
      wishes[i] = (mgl_cuda_code_wish){.name = names[i], .kernel = i == failing ? "fails" : "fine"};
    }
    mgl_status status = mgl_cuda_code_get_all(NULL, &shape, get_named, wishes, COUNT, &err);
    if (failing < COUNT) {
      assert_int_equal(status, MGL_ERR_UNSUPPORTED);
      assert_non_null(strstr(err.text, names[failing]));
      assert_int_equal(mgl_alloc_live(), live);
    }
    for (size_t i = 0; i < COUNT; i++) {
      if (failing < COUNT) {
        assert_null(wishes[i].code.cubin);
        continue;
      }
      assert_int_equal(status, MGL_OK);
      assert_string_equal((const char *)wishes[i].code.cubin, names[i]);
      assert_int_equal(wishes[i].code.usage.registers, 4);
      mgl_free(wishes[i].code.cubin);
    }
  }
  assert_int_equal(mgl_alloc_live(), live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_written_is_found),
      cmocka_unit_test(damaged_files_are_removed),
      cmocka_unit_test(a_folder_that_cannot_be_written_is_named),
      cmocka_unit_test(processes_do_not_disturb_each_other),
      cmocka_unit_test(killed_writers_tear_nothing),
      cmocka_unit_test(the_folder_is_the_first_that_is_set),
      cmocka_unit_test(keys_tell_sources_apart),
      cmocka_unit_test(code_is_compiled_once),
      cmocka_unit_test(all_codes_come_or_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
