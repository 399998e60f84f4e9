// Stands in for NVSHMEM's library in tests of ranks over the fake driver, whose device memory is the
// host's: all heaps lie in one file without a name, which rank 0's id leads to.
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEAP_BYTES ((size_t)1 << 30)  // of a rank; what is not touched takes no memory

int nvshmemx_get_uniqueid(void *id);
int nvshmemx_set_attr_uniqueid_args(int rank, int count, const void *id, void *attributes);
int nvshmemx_hostlib_init_attr(unsigned flags, void *attributes);
void *nvshmem_malloc(size_t bytes);
void *nvshmem_ptr(const void *own, int rank);

static int heaps = -1;
static int own_rank, ranks, begun;
static size_t taken;

int nvshmemx_get_uniqueid(void *id) {
  heaps = memfd_create("heaps", 0);
  (void)snprintf((char *)id + sizeof(int), 100, "/proc/%d/fd/%d", (int)getpid(), heaps);
  return heaps < 0;
}

int nvshmemx_set_attr_uniqueid_args(int rank, int count, const void *id, void *attributes) {
  (void)attributes;
  own_rank = rank;
  ranks = count;
  heaps = open((const char *)id + sizeof(int), O_RDWR);
  return heaps < 0;
}

int nvshmemx_hostlib_init_attr(unsigned flags, void *attributes) {
  int version;
  memcpy(&version, attributes, sizeof version);
  if (flags != 8 || version != (1 << 16) + 144 || begun++ > 0) {
    return 1;
  }
  return ftruncate(heaps, (off_t)(HEAP_BYTES * (size_t)ranks));
}

void *nvshmem_malloc(size_t bytes) {
  taken = bytes;
  return bytes > HEAP_BYTES ? NULL : nvshmem_ptr(NULL, own_rank);
}

// Another mapping of the same memory each time.
void *nvshmem_ptr(const void *own, int rank) {
  void *at = mmap(NULL, taken, PROT_READ | PROT_WRITE, MAP_SHARED, heaps,
                  (off_t)(HEAP_BYTES * (size_t)rank));
  (void)own;
  return at == MAP_FAILED ? NULL : at;
}
