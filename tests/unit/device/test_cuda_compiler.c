// Compilers as tables of functions, with a fake one: many processes that start at once compile once,
// one that is killed or hangs while it compiles keeps no other from starting, and a cache that is
// full, read-only, torn or of another version costs a compilation and a note, nothing else.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cuda/cuda_compiler.h"
#include "support/temp_folder.h"

enum { CODE_BYTES = 5000, SOURCE = 42, HEADER_VERSION_AT = 8, STUCK_WAIT_MS = 200 };

// What the fake compiler does, for the processes that are made while it says so.
static struct {
  char counts[TEMP_PATH_BYTES];  // a file that gets a byte a compilation
  uint32_t takes_ms;
  bool fails, absent;
  int version;
} fake_compiler;

static void pause_ms(uint32_t ms) {
  const struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
  (void)nanosleep(&pause, NULL);
}

static mgl_status initialise_cache(const char *folder, mgl_cuda_cache_key *key, mgl_error *err) {
  (void)folder;
  key->major = fake_compiler.absent ? 0 : fake_compiler.version;
  return fake_compiler.absent ? mgl_error_set(err, MGL_ERR_UNSUPPORTED, "there is no compiler")
                              : MGL_OK;
}

static mgl_status compute_hash(const mgl_cuda_job *job, mgl_hash *out, mgl_error *err) {
  (void)err;
  *out = mgl_hash_bytes(job->name, strlen(job->name));
  out->low += job->shape->group;
  return MGL_OK;
}

static mgl_status compile(const mgl_cuda_job *job, mgl_cuda_code *out, mgl_error *err) {
  int fd = open(fake_compiler.counts, O_WRONLY | O_APPEND | O_CREAT, 0666);
  assert_true(fd >= 0 && write(fd, "c", 1) == 1);
  (void)close(fd);
  pause_ms(fake_compiler.takes_ms);
  if (fake_compiler.fails) {
    return mgl_error_set(err, MGL_ERR_INTERNAL, "%s does not compile", job->name);
  }
  out->cubin = mgl_alloc(CODE_BYTES);
  assert_non_null(out->cubin);
  memset(out->cubin, (int)job->shape->group, CODE_BYTES);
  out->bytes = CODE_BYTES;
  out->usage = (mgl_cuda_usage){.registers = 7};
  return MGL_OK;
}

static const mgl_cuda_compiler table = {.name = "fake",
                                        .wait_ms = 60000,
                                        .initialise_cache = initialise_cache,
                                        .compute_hash = compute_hash,
                                        .compile = compile,
                                        .load = mgl_cuda_compiler_load};

// --- one start -----------------------------------------------------------------------------------

typedef struct world {
  temp_folder cache, counts;
  mgl_cuda_compiler compiler;
  mgl_cuda_device device;
} world;

static void world_init(world *w) {
  memset(&fake_compiler, 0, sizeof fake_compiler);
  fake_compiler.version = 1;
  temp_folder_create(&w->cache);
  temp_folder_create(&w->counts);
  temp_folder_path(&w->counts, "counts", fake_compiler.counts);
  w->compiler = table;
  w->device = (mgl_cuda_device){.name = "None", .major = 9, .compiler = &w->compiler};
  (void)snprintf(w->device.cache_folder, sizeof w->device.cache_folder, "%s", w->cache.path);
}

static void world_end(world *w) {
  temp_folder_remove(&w->cache);
  temp_folder_remove(&w->counts);
}

static uint32_t compilations(void) {
  struct stat info;
  return stat(fake_compiler.counts, &info) == 0 ? (uint32_t)info.st_size : 0;
}

static mgl_status get(const world *w, mgl_cuda_code *out, mgl_error *err) {
  static const mgl_cuda_shape shape = {.head_dim = 128, .group = SOURCE};
  return mgl_cuda_code_get(&w->device, "any.cu", &shape, "kernel", out, err);
}

static bool is_right(const mgl_cuda_code *code) {
  bool right = code->bytes == CODE_BYTES && code->usage.registers == 7;
  for (size_t i = 0; right && i < CODE_BYTES; i++) {
    right = ((const unsigned char *)code->cubin)[i] == SOURCE;
  }
  return right;
}

// Must succeed; whether the code was cached, and how many compilations there were then. `note`: a
// part of what it must say; NULL: nothing.
static void start(const world *w, bool cached, uint32_t count, const char *note) {
  mgl_cuda_code code;
  mgl_error err = {0};
  if (get(w, &code, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_true(is_right(&code));
  assert_int_equal(code.cached, cached);
  assert_int_equal(compilations(), count);
  if (note == NULL ? code.note[0] != 0 : strstr(code.note, note) == NULL) {
    fail_msg("expected the note \"%s\", found \"%s\"", note == NULL ? "" : note, code.note);
  }
  mgl_free(code.cubin);
}

// In a process that is made here: exit 0: it was cached, 1: compiled, 2: compiled with a note.
static int start_in_child(const world *w) {
  mgl_cuda_code code;
  mgl_error err = {0};
  if (get(w, &code, &err) != MGL_OK || !is_right(&code)) {
    return 9;
  }
  return code.cached ? 0 : code.note[0] == 0 ? 1 : 2;
}

static pid_t fork_start(const world *w, int gate) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    char byte = 0;
    if (gate >= 0) {
      (void)!read(gate, &byte, 1);  // ends for all at once
    }
    _exit(start_in_child(w));
  }
  return child;
}

static int result_of(pid_t child) {
  int result = 0;
  assert_int_equal(waitpid(child, &result, 0), child);
  return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
}

static void wait_for_compilations(uint32_t count) {
  for (int i = 0; i < 2000 && compilations() < count; i++) {
    pause_ms(5);
  }
  assert_int_equal(compilations(), count);
}

// --- tests ---------------------------------------------------------------------------------------

static void a_start_compiles_and_the_next_one_loads(void **state) {
  (void)state;
  world w;
  mgl_cuda_code code;
  mgl_error err = {0};
  world_init(&w);
  start(&w, false, 1, NULL);
  start(&w, true, 1, NULL);
  fake_compiler.version = 2;  // another toolkit compiles anew
  start(&w, false, 2, NULL);
  start(&w, true, 2, NULL);
  fake_compiler.absent = true;  // without a compiler what any left will do
  start(&w, true, 2, NULL);
  w.compiler.name = "other";  // but not another compiler's
  assert_int_equal(get(&w, &code, &err), MGL_ERR_UNSUPPORTED);
  assert_string_equal(err.text, "there is no compiler");
  assert_null(code.cubin);
  world_end(&w);
}

static void what_the_compiler_is_given_is_dumped(void **state) {
  (void)state;
  world w;
  char path[TEMP_PATH_BYTES + 64], text[1 << 13] = "";
  temp_folder folder;
  world_init(&w);
  temp_folder_create(&folder);
  (void)snprintf(w.device.dump_folder, sizeof w.device.dump_folder, "%s", folder.path);
  start(&w, false, 1, NULL);
  (void)snprintf(path, sizeof path, "%s/rank_0/any.cu.options.txt", folder.path);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  assert_true(fread(text, 1, sizeof text - 1, file) > 0);
  (void)fclose(file);
  assert_memory_equal(text, "source any.cu\ncompiler fake 1.0\ncode compiled\ncubin ", 52);
  assert_non_null(strstr(text, "-fake1.0.cubin\n--gpu-architecture=sm_90\n"));
  assert_non_null(strstr(text, "\n-DMGL_GROUP=42\n"));
  assert_int_equal(unlink(path), 0);
  (void)snprintf(path, sizeof path, "%s/rank_0", folder.path);
  assert_int_equal(rmdir(path), 0);
  temp_folder_remove(&folder);
  world_end(&w);
}

static void many_processes_compile_once(void **state) {
  (void)state;
  enum { PROCESSES = 40 };
  world w;
  pid_t children[PROCESSES];
  int gate[2];
  uint32_t compiled = 0;
  world_init(&w);
  fake_compiler.takes_ms = 300;
  assert_int_equal(pipe(gate), 0);
  for (int i = 0; i < PROCESSES; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    if (children[i] == 0) {
      char byte = 0;
      (void)close(gate[1]);
      (void)!read(gate[0], &byte, 1);  // ends for all at once, when the last writer closes
      _exit(start_in_child(&w));
    }
  }
  (void)close(gate[1]);
  for (int i = 0; i < PROCESSES; i++) {
    int result = result_of(children[i]);
    assert_in_range(result, 0, 1);
    compiled += result == 1;
  }
  (void)close(gate[0]);
  assert_int_equal(compiled, 1);
  assert_int_equal(compilations(), 1);
  start(&w, true, 1, NULL);
  world_end(&w);  // which finds no folder or file of a lock that it could not remove
}

// And the threads of one process do.
static void threads_compile_once(void **state) {
  (void)state;
  enum { COUNT = MGL_CUDA_MAX_CODES };
  world w;
  const mgl_cuda_shape shape = {.head_dim = 128, .group = SOURCE};
  mgl_cuda_code_wish wishes[COUNT];
  mgl_error err = {0};
  uint32_t compiled = 0;
  world_init(&w);
  fake_compiler.takes_ms = 100;
  for (int i = 0; i < COUNT; i++) {
    wishes[i] = (mgl_cuda_code_wish){.name = "any.cu", .kernel = "kernel"};
  }
  assert_int_equal(mgl_cuda_code_get_all(&w.device, &shape, mgl_cuda_code_get, wishes, COUNT, &err),
                   MGL_OK);
  for (int i = 0; i < COUNT; i++) {
    assert_true(is_right(&wishes[i].code));
    compiled += !wishes[i].code.cached;
    mgl_free(wishes[i].code.cubin);
  }
  assert_int_equal(compiled, 1);
  assert_int_equal(compilations(), 1);
  world_end(&w);
}

static void a_killed_compiler_is_replaced(void **state) {
  (void)state;
  enum { WAITING = 6 };
  world w;
  pid_t children[WAITING];
  uint32_t compiled = 0;
  world_init(&w);
  fake_compiler.takes_ms = 60000;
  pid_t first = fork_start(&w, -1);
  wait_for_compilations(1);
  fake_compiler.takes_ms = 100;
  for (int i = 0; i < WAITING; i++) {
    children[i] = fork_start(&w, -1);
  }
  pause_ms(100);
  assert_int_equal(compilations(), 1);  // the others wait
  assert_int_equal(kill(first, SIGKILL), 0);
  assert_int_equal(result_of(first), -1);
  for (int i = 0; i < WAITING; i++) {
    int result = result_of(children[i]);
    assert_in_range(result, 0, 1);
    compiled += result == 1;
  }
  assert_int_equal(compiled, 1);
  assert_int_equal(compilations(), 2);
  start(&w, true, 2, NULL);
  world_end(&w);
}

static void one_that_hangs_is_not_waited_for_for_ever(void **state) {
  (void)state;
  world w;
  world_init(&w);
  fake_compiler.takes_ms = 60000;
  pid_t first = fork_start(&w, -1);
  wait_for_compilations(1);
  assert_int_equal(kill(first, SIGSTOP), 0);
  fake_compiler.takes_ms = 0;
  w.compiler.wait_ms = STUCK_WAIT_MS;
  start(&w, false, 2, "device code is compiled here, too: another process holds ");
  start(&w, true, 2, NULL);  // what it left is there for the next
  assert_int_equal(kill(first, SIGKILL), 0);
  assert_int_equal(result_of(first), -1);
  world_end(&w);
}

static void a_failure_leaves_no_lock(void **state) {
  (void)state;
  world w;
  mgl_cuda_code code;
  mgl_error err = {0};
  world_init(&w);
  fake_compiler.fails = true;
  assert_int_equal(get(&w, &code, &err), MGL_ERR_INTERNAL);
  assert_string_equal(err.text, "any.cu does not compile");
  fake_compiler.fails = false;
  w.compiler.wait_ms = 0;
  start(&w, false, 2, NULL);
  world_end(&w);
}

static void find_entry(const world *w, char path[TEMP_PATH_BYTES]) {
  mgl_hash hash = mgl_hash_bytes("any.cu", strlen("any.cu"));
  char text[MGL_HASH_TEXT_BYTES], name[96];
  hash.low += SOURCE;
  mgl_hash_text(hash, text);
  (void)snprintf(name, sizeof name, "%s-fake1.0.cubin", text);
  temp_folder_path(&w->cache, name, path);
  assert_int_equal(access(path, F_OK), 0);
}

static void torn_entries_and_those_of_another_version_are_replaced(void **state) {
  (void)state;
  world w;
  char path[TEMP_PATH_BYTES];
  world_init(&w);
  start(&w, false, 1, NULL);
  find_entry(&w, path);
  assert_int_equal(truncate(path, CODE_BYTES / 2), 0);
  start(&w, false, 2, NULL);
  start(&w, true, 2, NULL);
  assert_int_equal(truncate(path, 0), 0);
  start(&w, false, 3, NULL);
  start(&w, true, 3, NULL);
  int fd = open(path, O_RDWR);
  uint32_t version = 999;
  assert_int_equal(pwrite(fd, &version, sizeof version, HEADER_VERSION_AT), sizeof version);
  (void)close(fd);
  start(&w, false, 4, NULL);
  start(&w, true, 4, NULL);
  world_end(&w);
}

// A disk that takes only the beginning of a file: no half entry stays.
static void a_full_folder_costs_a_note(void **state) {
  (void)state;
  world w;
  world_init(&w);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    const struct rlimit most = {CODE_BYTES / 2, CODE_BYTES / 2};
    (void)signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &most) != 0) {
      _exit(8);
    }
    _exit(start_in_child(&w) * 10 + start_in_child(&w));
  }
  assert_int_equal(result_of(child), 22);  // compiled twice, each with a note
  assert_int_equal(compilations(), 2);
  start(&w, false, 3, NULL);
  world_end(&w);
}

// As a user who may only read: what is there is used, what is not is compiled, and a note says that
// it was not kept.
static void a_read_only_folder_costs_a_note(void **state) {
  (void)state;
  enum { NOBODY = 65534 };
  world w;
  if (geteuid() != 0) {
    print_message("skipped: only root can become a user who may not write\n");
    skip();
  }
  world_init(&w);
  assert_int_equal(chmod(w.cache.path, 0555), 0);
  assert_int_equal(chmod(w.counts.path, 0777), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    _exit(setuid(NOBODY) != 0 ? 8 : start_in_child(&w) * 10 + start_in_child(&w));
  }
  assert_int_equal(result_of(child), 22);
  assert_int_equal(chmod(w.cache.path, 0755), 0);
  start(&w, false, 3, NULL);
  char path[TEMP_PATH_BYTES];
  find_entry(&w, path);
  assert_int_equal(chmod(path, 0444), 0);
  assert_int_equal(chmod(w.cache.path, 0555), 0);
  child = fork();
  if (child == 0) {
    _exit(setuid(NOBODY) != 0 ? 8 : start_in_child(&w));
  }
  assert_int_equal(result_of(child), 0);  // found, read only
  assert_int_equal(compilations(), 3);
  assert_int_equal(chmod(w.cache.path, 0755), 0);
  world_end(&w);
}

// Which compiler a setting means; and nvcc, where it is installed, makes of the same source a kernel
// of the same name.
static void nvcc_compiles_the_same_source(void **state) {
  (void)state;
  static const mgl_cuda_shape shape = {.head_dim = 128, .group = 4};
  mgl_cuda_cache_key key = {0};
  mgl_cuda_code code = {0};
  mgl_error err = {0};
  mgl_hash one, other;
  const mgl_cuda_job job = {"kernels/cuda/plain.cu", "sm_90a", &shape, "mgl_plain_kernel_add"};
  const mgl_cuda_compiler *nvcc = mgl_cuda_compiler_of(MGL_COMPILER_NVCC);
  assert_string_equal(mgl_cuda_compiler_of(MGL_COMPILER_NVRTC)->name, "nvrtc");
  assert_string_equal(nvcc->name, "nvcc");
  assert_int_equal(nvcc->compute_hash(&job, &one, &err), MGL_OK);
  assert_int_equal(mgl_cuda_compiler_nvrtc.compute_hash(&job, &other, &err), MGL_OK);
  assert_memory_not_equal(&one, &other, sizeof one);
#if defined(MGL_TEST_SANITIZED)
  print_message("skipped: the release build runs nvcc\n");
  skip();
#endif
  if (nvcc->initialise_cache(NULL, &key, &err) != MGL_OK) {
    assert_non_null(strstr(err.text, "there is no nvcc"));
    print_message("skipped: %s\n", err.text);
    skip();
  }
  assert_true(key.major >= 12);
  if (nvcc->compile(&job, &code, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_memory_equal(code.cubin, "\177ELF", 4);
  assert_true(code.usage.registers > 0);
  mgl_free(code.cubin);
  code = (mgl_cuda_code){0};
  const mgl_cuda_job none = {"kernels/cuda/none.cu", "sm_90a", &shape, "none"};
  assert_int_equal(nvcc->compile(&none, &code, &err), MGL_ERR_INTERNAL);
  assert_non_null(strstr(err.text, "kernels/cuda/none.cu does not compile for sm_90a by nvcc"));
  assert_null(code.cubin);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_start_compiles_and_the_next_one_loads),
      cmocka_unit_test(what_the_compiler_is_given_is_dumped),
      cmocka_unit_test(many_processes_compile_once),
      cmocka_unit_test(threads_compile_once),
      cmocka_unit_test(a_killed_compiler_is_replaced),
      cmocka_unit_test(one_that_hangs_is_not_waited_for_for_ever),
      cmocka_unit_test(a_failure_leaves_no_lock),
      cmocka_unit_test(torn_entries_and_those_of_another_version_are_replaced),
      cmocka_unit_test(a_full_folder_costs_a_note),
      cmocka_unit_test(a_read_only_folder_costs_a_note),
      cmocka_unit_test(nvcc_compiles_the_same_source),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
