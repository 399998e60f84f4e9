#include "base/alloc.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE_BYTES = 2 * 1024 * 1024 };

// Written by any thread; relaxed, because they only count.
static atomic_uint_fast64_t alloc_count;
static atomic_uint_fast64_t alloc_fail_at;
static atomic_int_fast64_t alloc_live;
static atomic_uint_fast64_t pages_live_bytes;

// True when a test wants this allocation to fail.
static bool injected_failure(void) {
  uint64_t n = atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed) + 1;
  return n == atomic_load_explicit(&alloc_fail_at, memory_order_relaxed);
}

static void *count_live(void *memory) {
  if (memory != NULL) {
    atomic_fetch_add_explicit(&alloc_live, 1, memory_order_relaxed);
  }
  return memory;
}

// --- budgets -------------------------------------------------------------------------------------

static _Thread_local mgl_alloc_budget *budget;

// Whether the thread may hold so many more bytes.
static bool affords(size_t bytes) {
  if (budget == NULL) {
    return true;
  }
  uint64_t held = budget->held < 0 ? 0 : (uint64_t)budget->held;
  bool fits = held <= budget->limit && bytes <= budget->limit - held;
  budget->refused |= !fits;
  return fits;
}

// Counts a block that was just made, or (sign -1) that is about to go.
static void *count_held(void *memory, int sign) {
  if (budget != NULL && memory != NULL) {
    budget->held += sign * (int64_t)malloc_usable_size(memory);
    budget->peak = budget->held > budget->peak ? budget->held : budget->peak;
  }
  return memory;
}

void mgl_alloc_budget_begin(mgl_alloc_budget *begun, uint64_t limit) {
  *begun = (mgl_alloc_budget){.limit = limit, .outer = budget};
  budget = begun;
}

void mgl_alloc_budget_end(mgl_alloc_budget *begun) {
  budget = begun->outer;
}

void mgl_alloc_budget_earn(uint64_t text_bytes) {
  if (budget != NULL) {
    bool overflows = text_bytes > (UINT64_MAX - budget->limit) / MGL_ALLOC_BUDGET_FACTOR;
    budget->limit = overflows ? UINT64_MAX : budget->limit + text_bytes * MGL_ALLOC_BUDGET_FACTOR;
  }
}

// --- the heap ------------------------------------------------------------------------------------

void *mgl_alloc(size_t bytes) {
  if (injected_failure() || !affords(bytes)) {
    return NULL;
  }
  return count_held(count_live(malloc(bytes == 0 ? 1 : bytes)), 1);
}

void *mgl_alloc_zeroed(size_t count, size_t bytes_each) {
  bool empty = count == 0 || bytes_each == 0;
  bool overflows = !empty && count > SIZE_MAX / bytes_each;
  if (injected_failure() || overflows || !affords(count * bytes_each)) {
    return NULL;
  }
  return count_held(count_live(empty ? calloc(1, 1) : calloc(count, bytes_each)), 1);
}

void *mgl_realloc(void *old, size_t bytes) {
  if (old == NULL) {
    return mgl_alloc(bytes);
  }
  // Both blocks may be there while the contents move.
  if (injected_failure() || !affords(bytes)) {
    return NULL;
  }
  count_held(old, -1);
  void *moved = realloc(old, bytes == 0 ? 1 : bytes);
  count_held(moved == NULL ? old : moved, 1);
  return moved;
}

char *mgl_strndup(const char *text, size_t bytes) {
  char *copy = bytes == SIZE_MAX ? NULL : mgl_alloc(bytes + 1);
  if (copy != NULL) {
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
  }
  return copy;
}

char *mgl_strdup(const char *text) {
  return mgl_strndup(text, strlen(text));
}

void mgl_free(void *memory) {
  if (memory != NULL) {
    atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
    count_held(memory, -1);
    free(memory);
  }
}

mgl_status mgl_alloc_check(const void *memory, mgl_error *err, const char *what, ...) {
  char text[256];
  va_list arguments;
  if (memory != NULL) {
    return MGL_OK;
  }
  va_start(arguments, what);
  (void)vsnprintf(text, sizeof text, what, arguments);
  va_end(arguments);
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %s", text);
}

mgl_status mgl_grow(void **items, size_t *capacity, size_t needed, size_t bytes_each,
                    mgl_error *err) {
  if (needed <= *capacity) {
    return MGL_OK;
  }
  size_t grown = *capacity + *capacity / 2 + 8;
  if (grown < needed) {
    grown = needed;
  }
  if (grown > SIZE_MAX / bytes_each) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory: %zu items of %zu bytes", grown,
                         bytes_each);
  }
  void *moved = mgl_realloc(*items, grown * bytes_each);
  if (moved == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory: %zu bytes for a list",
                         grown * bytes_each);
  }
  *items = moved;
  *capacity = grown;
  return MGL_OK;
}

// --- how much memory there is --------------------------------------------------------------------

enum { MAX_PATH_BYTES = 4096 };

// "folder/name" for reading; NULL if it does not exist.
static FILE *open_in(const char *folder, const char *name) {
  char path[2 * MAX_PATH_BYTES];
  int bytes = snprintf(path, sizeof path, "%s/%s", folder, name);
  return bytes > 0 && (size_t)bytes < sizeof path ? fopen(path, "re") : NULL;
}

// The number behind `key` in a file of lines "key number" (with a colon in meminfo); UINT64_MAX if
// there is none.
static uint64_t keyed_number(const char *folder, const char *name, const char *key) {
  FILE *file = open_in(folder, name);
  if (file == NULL) {
    return UINT64_MAX;
  }
  char line[256];
  uint64_t found = UINT64_MAX;
  size_t key_bytes = strlen(key);
  while (found == UINT64_MAX && fgets(line, sizeof line, file) != NULL) {
    uint64_t number = 0;
    const char *rest = line + key_bytes;
    if (strncmp(line, key, key_bytes) == 0 && strchr(" :", *rest) != NULL &&
        sscanf(rest + strspn(rest, " :"), "%" SCNu64, &number) == 1) {
      found = number;
    }
  }
  (void)fclose(file);
  return found;
}

// The number that a file consists of; UINT64_MAX for "max" or a missing file.
static uint64_t lone_number(const char *folder, const char *name) {
  FILE *file = open_in(folder, name);
  uint64_t number = UINT64_MAX;
  if (file != NULL) {
    if (fscanf(file, "%" SCNu64, &number) != 1) {
      number = UINT64_MAX;
    }
    (void)fclose(file);
  }
  return number;
}

// File names of the two versions of cgroups. The counts include those of the groups inside.
typedef struct cgroup_files {
  const char *limit;
  const char *used;
  const char *inactive_cache;  // lines of memory.stat
  const char *active_cache;
} cgroup_files;

static const cgroup_files cgroup_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                       "total_inactive_file", "total_active_file"};
static const cgroup_files cgroup_v2 = {"memory.max", "memory.current", "inactive_file",
                                       "active_file"};

// Returns what the limit of one group leaves; UINT64_MAX if it has none.
static uint64_t left_in_group(const char *folder, const cgroup_files *files) {
  uint64_t limit = lone_number(folder, files->limit);
  uint64_t used = lone_number(folder, files->used);
  if (limit == UINT64_MAX || used == UINT64_MAX) {
    return UINT64_MAX;
  }
  // The kernel drops cached files before it refuses memory, a model's own mapped file among them.
  uint64_t inactive = keyed_number(folder, "memory.stat", files->inactive_cache);
  uint64_t active = keyed_number(folder, "memory.stat", files->active_cache);
  inactive = inactive == UINT64_MAX ? 0 : inactive;
  active = active == UINT64_MAX ? 0 : active;
  used -= inactive < used ? inactive : used;
  used -= active < used ? active : used;
  return limit > used ? limit - used : 0;
}

// The least that is left in the group at mount + path and in the groups around it, up to the mount.
// In a container the path can be one of the host, of which only the mount itself exists.
static uint64_t left_in_groups(const char *mount, const char *path, const cgroup_files *files) {
  char folder[MAX_PATH_BYTES];
  size_t mount_bytes = strlen(mount);
  int bytes = snprintf(folder, sizeof folder, "%s%s", mount, path);
  if (bytes < 0 || (size_t)bytes >= sizeof folder) {
    folder[mount_bytes < sizeof folder ? mount_bytes : 0] = 0;
  }
  uint64_t least = UINT64_MAX;
  for (;;) {
    uint64_t left = left_in_group(folder, files);
    least = left < least ? left : least;
    char *slash = strrchr(folder, '/');
    if (slash == NULL || slash < folder + mount_bytes) {
      return least;
    }
    *slash = 0;
  }
}

// Whether a comma-separated list of controllers has "memory".
static bool has_memory_controller(const char *list, size_t bytes) {
  while (bytes > 0) {
    const char *comma = memchr(list, ',', bytes);
    size_t item = comma == NULL ? bytes : (size_t)(comma - list);
    if (item == 6 && memcmp(list, "memory", 6) == 0) {
      return true;
    }
    list += comma == NULL ? item : item + 1;
    bytes -= comma == NULL ? item : item + 1;
  }
  return false;
}

// Follows the lines "NUMBER:CONTROLLERS:PATH" of proc/self/cgroup; version 2 has no controllers.
static uint64_t left_in_cgroups(const char *proc, const char *cgroup) {
  char mount_v1[MAX_PATH_BYTES];
  (void)snprintf(mount_v1, sizeof mount_v1, "%s/memory", cgroup);
  uint64_t v1 = left_in_groups(mount_v1, "", &cgroup_v1);
  uint64_t v2 = left_in_groups(cgroup, "", &cgroup_v2);
  uint64_t least = v1 < v2 ? v1 : v2;
  FILE *file = open_in(proc, "self/cgroup");
  char line[MAX_PATH_BYTES];
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (path == NULL) {
      continue;
    }
    controllers++;
    size_t list_bytes = (size_t)(path - controllers);
    path[1 + strcspn(path + 1, "\n")] = 0;
    uint64_t left = UINT64_MAX;
    if (list_bytes == 0) {
      left = left_in_groups(cgroup, path + 1, &cgroup_v2);
    } else if (has_memory_controller(controllers, list_bytes)) {
      left = left_in_groups(mount_v1, path + 1, &cgroup_v1);
    }
    least = left < least ? left : least;
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return least;
}

uint64_t mgl_memory_available_in(const char *proc, const char *cgroup) {
  uint64_t kib = keyed_number(proc, "meminfo", "MemAvailable");
  uint64_t available = kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;
  uint64_t left = left_in_cgroups(proc, cgroup);
  return left < available ? left : available;
}

uint64_t mgl_memory_available(void) {
  return mgl_memory_available_in("/proc", "/sys/fs/cgroup");
}

// --- pages ---------------------------------------------------------------------------------------

// A size with the unit that shows its digits.
typedef struct size_text {
  char text[32];
} size_text;

static size_text size_of(uint64_t bytes) {
  static const char *const units[] = {"KiB", "MiB", "GiB"};
  size_text out;
  double value = (double)bytes / 1024;
  int unit = 0;
  while (value >= 999.5 && unit < 2) {
    value /= 1024;
    unit++;
  }
  (void)snprintf(out.text, sizeof out.text, "%.*f %s", value < 99.95 ? 2 : 0, value, units[unit]);
  return out;
}

mgl_status mgl_pages_map(size_t bytes, const char *what, void **out, mgl_error *err) {
  *out = NULL;
  uint64_t available = mgl_memory_available();
  if ((uint64_t)bytes > available) {
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "too little memory for the %s: needs %s, %s are available", what,
                         size_of(bytes).text, size_of(available).text);
  }
  size_t extra = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
  void *mapped = MAP_FAILED;
  errno = ENOMEM;  // of the failures that are not mmap's
  if (!injected_failure() && bytes != 0 && bytes <= SIZE_MAX - extra) {
    mapped = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (mapped == MAP_FAILED) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "could not map %s for the %s: %s",
                         size_of(bytes).text, what, strerror(errno));
  }
  char *start = mapped;
  if (extra != 0) {
    // Trim the mapping to a 2 MiB boundary, so that every part of it can be a huge page.
    size_t head = (HUGE_PAGE_BYTES - (uintptr_t)start % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (head != 0) {
      (void)munmap(start, head);
    }
    start += head;
    size_t kept = (bytes + 4095) / 4096 * 4096;
    if (extra - head > kept - bytes) {
      (void)munmap(start + kept, extra - head - (kept - bytes));
    }
    (void)madvise(start, bytes, MADV_HUGEPAGE);  // a hint: small pages are slower, not wrong
  }
  atomic_fetch_add_explicit(&pages_live_bytes, bytes, memory_order_relaxed);
  *out = count_live(start);
  return MGL_OK;
}

void mgl_pages_unmap(void *memory, size_t bytes) {
  if (memory != NULL) {
    atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&pages_live_bytes, bytes, memory_order_relaxed);
    (void)munmap(memory, bytes);
  }
}

void mgl_alloc_fail_nth(uint64_t n) {
  atomic_store_explicit(&alloc_count, 0, memory_order_relaxed);
  atomic_store_explicit(&alloc_fail_at, n, memory_order_relaxed);
}

uint64_t mgl_alloc_count(void) {
  return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

uint64_t mgl_pages_live_bytes(void) {
  return atomic_load_explicit(&pages_live_bytes, memory_order_relaxed);
}

int64_t mgl_alloc_live(void) {
  return atomic_load_explicit(&alloc_live, memory_order_relaxed);
}
