// The one allocation seam. All heap memory of Megalith (and of jansson, which is pointed here)
// comes through these functions, so that a test can make the Nth allocation fail.
//
// Small objects come from the C heap; weights, KV pages and activations come from mgl_pages_*,
// which maps anonymous memory and asks for huge pages. All functions are thread-safe.
#ifndef MGL_BASE_ALLOC_H
#define MGL_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// Each returns NULL when memory is out, when the size overflows, or when a test asked for it.
// A size of zero gives a valid pointer. Free with mgl_free (NULL is fine).
void *mgl_alloc(size_t bytes);
void *mgl_alloc_zeroed(size_t count, size_t bytes_each);
void *mgl_realloc(void *old, size_t bytes);
char *mgl_strdup(const char *text);
char *mgl_strndup(const char *text, size_t bytes);  // copies exactly `bytes` and terminates
void mgl_free(void *memory);

// MGL_OK, or where `memory` is NULL MGL_ERR_MEMORY: "out of memory for WHAT", of a printf format.
mgl_status mgl_alloc_check(const void *memory, mgl_error *err, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

// Grows *items (elements of bytes_each) so that it holds at least `needed` of them; capacity grows
// by half at least. Returns MGL_ERR_MEMORY (with a text) and leaves all as it was on failure.
mgl_status mgl_grow(void **items, size_t *capacity, size_t needed, size_t bytes_each,
                    mgl_error *err);

// Zeroed pages, 2 MiB aligned when large, with transparent huge pages requested. Never returns
// memory that the machine does not have: a size above what is available now is refused with
// both figures in the message. `what` names the memory in that message ("weights").
mgl_status mgl_pages_map(size_t bytes, const char *what, void **out, mgl_error *err);
void mgl_pages_unmap(void *memory, size_t bytes);

// Bytes of memory that could be allocated now without swapping: MemAvailable, and what the limits
// of this process's cgroups (version 1 or 2) and of those around them leave, page cache counted as
// free. UINT64_MAX when the system does not tell.
uint64_t mgl_memory_available(void);
// Returns mgl_memory_available with other folders in the place of /proc and /sys/fs/cgroup, for
// tests.
uint64_t mgl_memory_available_in(const char *proc, const char *cgroup);

// --- budgets ------------------------------------------------------------------------------------

// What a thread may hold of the heap while it reads something that a stranger made: from begin to
// end, an allocation of this thread that would go beyond the budget returns NULL. Blocks that are
// freed give their bytes back. Pages (mgl_pages_map) do not count, nor do other threads.
typedef struct mgl_alloc_budget {
  uint64_t limit;  // bytes
  int64_t held;    // bytes: negative if more from before was freed than taken
  int64_t peak;
  bool refused;  // an allocation went beyond it
  struct mgl_alloc_budget *outer;
} mgl_alloc_budget;

enum { MGL_ALLOC_BUDGET_FACTOR = 20 };  // bytes that a byte of text may take

// `budget` must stay until its end. Of budgets one in the other the inner one counts.
void mgl_alloc_budget_begin(mgl_alloc_budget *budget, uint64_t limit);
void mgl_alloc_budget_end(mgl_alloc_budget *budget);
// Raises the limit of the thread's budget, if it has one, by what so many bytes of text may take.
void mgl_alloc_budget_earn(uint64_t text_bytes);

// --- fault injection for tests -------------------------------------------------------------------

// Makes the Nth (1 = next) allocation from now on fail, once; 0 switches it off.
void mgl_alloc_fail_nth(uint64_t n);
// Allocations asked for since the last mgl_alloc_fail_nth.
uint64_t mgl_alloc_count(void);
// Blocks (heap and pages) that are allocated and not freed at the moment.
int64_t mgl_alloc_live(void);
// Bytes that mgl_pages_map gave and that were not unmapped.
uint64_t mgl_pages_live_bytes(void);

#endif
