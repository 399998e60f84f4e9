// For LD_PRELOAD: makes allocations, mappings, opens, reads, writes and thread creation fail at
// random, each with probability MEGALITH_TEST_FAULTS (1e-3, say), the same ones for the same
// MEGALITH_TEST_SEED as long as there is one thread.
//
// Only calls from the program itself can
// fail (jansson allocates through it): what other libraries make of a failure is theirs. Messages on standard error are let
// through, since they are what is judged.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

// glibc's own, under names that are not interposed.
void *__libc_malloc(size_t bytes);                // NOLINT(bugprone-reserved-identifier)
void *__libc_calloc(size_t count, size_t bytes);  // NOLINT(bugprone-reserved-identifier)
void *__libc_realloc(void *old, size_t bytes);    // NOLINT(bugprone-reserved-identifier)

static uint64_t threshold;  // of 2^64
static uint64_t seed;
static atomic_uint_fast64_t calls;
static uintptr_t program_begin, program_end;

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The part of memory that holds the program's code, from the first lines of /proc/self/maps.
static void find_program(void) {
  static char maps[4096];
  int fd = (int)open("/proc/self/maps", O_RDONLY);
  ssize_t bytes = fd < 0 ? -1 : read(fd, maps, sizeof maps - 1);
  (void)close(fd);
  char *end = NULL;
  if (bytes <= 0) {
    return;
  }
  // The program's segments come first, all with the same path.
  const char *path = strchr(maps, '/');
  const char *line_end = path == NULL ? NULL : strchr(path, '\n');
  program_begin = (uintptr_t)strtoull(maps, &end, 16);
  for (const char *line = maps; line_end != NULL && line != NULL && *line != 0;) {
    const char *next = strchr(line, '\n');
    const char *own = strchr(line, '/');
    if (own == NULL || next == NULL || own > next ||
        strncmp(own, path, (size_t)(line_end - path)) != 0) {
      break;
    }
    program_end = (uintptr_t)strtoull(strchr(line, '-') + 1, &end, 16);
    line = next + 1;
  }
}

__attribute__((constructor)) static void begin(void) {
  const char *probability = getenv("MEGALITH_TEST_FAULTS");
  const char *number = getenv("MEGALITH_TEST_SEED");
  find_program();
  seed = mix(number == NULL ? 0 : strtoull(number, NULL, 10));
  threshold =
      probability == NULL ? 0 : (uint64_t)(strtod(probability, NULL) * 18446744073709549568.0);
}

static bool fails(const void *caller) {
  uintptr_t at = (uintptr_t)caller;
  if (threshold == 0 || at < program_begin || at >= program_end) {
    return false;
  }
  return mix(seed ^ mix(atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed))) < threshold;
}

#define FAILS() fails(__builtin_return_address(0))

void *malloc(size_t bytes) {
  if (FAILS()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  if (FAILS()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes) {
  if (FAILS()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_realloc(old, bytes);
}

// The function of this name behind this library.
#define NEXT(type, name) ((type)(uintptr_t)dlsym(RTLD_NEXT, name))

typedef void *mmap_function(void *, size_t, int, int, int, off_t);
void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  static mmap_function *next;
  next = next == NULL ? NEXT(mmap_function *, "mmap") : next;
  if (FAILS()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return next(address, bytes, protection, flags, fd, offset);
}

typedef ssize_t read_function(int, void *, size_t);
ssize_t read(int fd, void *data, size_t bytes) {
  static read_function *next;
  next = next == NULL ? NEXT(read_function *, "read") : next;
  if (FAILS()) {
    errno = EIO;
    return -1;
  }
  return next(fd, data, bytes);
}

typedef ssize_t write_function(int, const void *, size_t);
ssize_t write(int fd, const void *data, size_t bytes) {
  static write_function *next;
  next = next == NULL ? NEXT(write_function *, "write") : next;
  if (fd != STDERR_FILENO && FAILS()) {
    errno = ENOSPC;
    return -1;
  }
  return next(fd, data, bytes);
}

typedef int open_function(const char *, int, mode_t);
int open(const char *path, int flags, ...) {
  static open_function *next;
  va_list args;
  va_start(args, flags);
  mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
  va_end(args);
  next = next == NULL ? NEXT(open_function *, "open") : next;
  if (FAILS()) {
    errno = EMFILE;
    return -1;
  }
  return next(path, flags, mode);
}

typedef int mkostemp_function(char *, int);
int mkostemp(char *path, int flags) {
  static mkostemp_function *next;
  next = next == NULL ? NEXT(mkostemp_function *, "mkostemp") : next;
  if (FAILS()) {
    errno = EMFILE;
    return -1;
  }
  return next(path, flags);
}

typedef int rename_function(const char *, const char *);
int rename(const char *from, const char *to) {
  static rename_function *next;
  next = next == NULL ? NEXT(rename_function *, "rename") : next;
  if (FAILS()) {
    errno = EIO;
    return -1;
  }
  return next(from, to);
}

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument) {
  static create_function *next;
  next = next == NULL ? NEXT(create_function *, "pthread_create") : next;
  if (FAILS()) {
    errno = EAGAIN;
    return EAGAIN;
  }
  return next(thread, attributes, start, argument);
}
