#include "device/cuda/cuda_shmem.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  WITH_UNIQUE_ID = 8,  // NVSHMEMX_INIT_WITH_UNIQUEID
  VERSION = 1 << 16,   // of NVSHMEM's structs, plus their size
  GRAIN = 2 << 20,     // of its heap
  ROOM = 64 << 20,     // that it keeps for itself
};

// nvshmemx_uniqueid_t
typedef struct unique_id {
  int version;
  char content[124];
} unique_id;

// nvshmemx_init_attr_t
typedef struct init_attributes {
  int version;
  void *mpi_comm;
  struct {
    int version;
    struct {
      int version;
      void *id;
      int rank, count;
    } by_id;
    char content[96];
  } arguments;
} init_attributes;

_Static_assert(sizeof(unique_id) == MGL_CUDA_SHMEM_ID_BYTES, "as NVSHMEM has it");
_Static_assert(sizeof(init_attributes) == 144, "as NVSHMEM has it");

typedef struct shmem {
  int (*get_id)(unique_id *id);
  int (*set_id)(int rank, int count, const unique_id *id, init_attributes *attributes);
  int (*init)(unsigned flags, init_attributes *attributes);
  void *(*take)(size_t bytes);
  void *(*at_rank)(const void *own, int rank);
  bool has_end;  // it has something to do when the process exits
} shmem;

static mgl_status open_library(shmem *out, mgl_error *err) {
  static const char name[] = "libnvshmem_host.so.3";
  static const char *const symbols[] = {"nvshmemx_get_uniqueid", "nvshmemx_set_attr_uniqueid_args",
                                        "nvshmemx_hostlib_init_attr", "nvshmem_malloc",
                                        "nvshmem_ptr"};
  void *const members[] = {&out->get_id, &out->set_id, &out->init, &out->take, &out->at_rank};
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "MEGALITH_TRANSPORT=nvshmem: %s cannot be opened (%.200s); install NVSHMEM "
        "3, or add its folder to LD_LIBRARY_PATH",
        name, dlerror());
  }
  out->has_end = dlsym(library, "nvshmemx_hostlib_finalize") != NULL;
  return mgl_cuda_find_symbols(library, name, symbols, members, sizeof symbols / sizeof *symbols,
                               err);
}

static mgl_status check(int code, const char *what, mgl_error *err) {
  return code == 0 ? MGL_OK
                   : mgl_error_set(err, MGL_ERR_INTERNAL, "NVSHMEM %s failed (%d)", what, code);
}

// NVSHMEM is told by the environment. What the user has set stays, but for multicast: a program
// that uses it can take a host's GPUs out of service for all others.
static void set_environment(size_t bytes) {
  char size[32];
  (void)snprintf(size, sizeof size, "%zu", bytes + ROOM);
  (void)setenv("NVSHMEM_DISABLE_NVLS", "1", 1);
  (void)setenv("NVSHMEM_REMOTE_TRANSPORT", "none", 0);
  (void)setenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "lo", 0);
  (void)setenv("NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", "AF_INET", 0);
  (void)setenv("NVSHMEM_SYMMETRIC_SIZE", size, 0);
}

// When the process exits, NVSHMEM's library (3.4.5) touches what is gone by then, the device's
// context and other ranks, and faults. So nothing of it runs: streams are written out, and the
// process ends with the status that it has. What was registered to run at its exit before a model
// was made over ranks does not run either.
static void end_process(int status, void *unused) {
  (void)unused;
  (void)fflush(NULL);
  _exit(status);
}

// The heap; rank 0's id goes to the others through the memory that all share.
static mgl_status begin(const shmem *s, mgl_ranks *ranks, size_t bytes, mgl_error *err) {
  unsigned char *shared = mgl_cuda_log_of(ranks)->shmem_id;
  unique_id id = {.version = VERSION + (int)sizeof id};
  init_attributes attributes = {.version = VERSION + (int)sizeof attributes};
  mgl_status status = MGL_OK;
  uint64_t least = 0;
  attributes.arguments.version = VERSION + (int)sizeof attributes.arguments;
  attributes.arguments.by_id.version = VERSION + (int)sizeof attributes.arguments.by_id;
  set_environment(bytes);
  if (mgl_ranks_rank(ranks) == 0) {
    status = check(s->get_id(&id), "get_uniqueid", err);
    memcpy(shared, &id, sizeof id);
  }
  MGL_TRY(
      mgl_ranks_meet(ranks, status == MGL_OK, &least, status == MGL_OK ? err : &(mgl_error){0}));
  if (least == 0) {
    return status != MGL_OK ? status
                            : mgl_error_set(err, MGL_ERR_INTERNAL, "rank 0 has no NVSHMEM id");
  }
  memcpy(&id, shared, sizeof id);
  MGL_TRY(
      check(s->set_id((int)mgl_ranks_rank(ranks), (int)mgl_ranks_count(ranks), &id, &attributes),
            "set_attr_uniqueid_args", err));
  MGL_TRY(check(s->init(WITH_UNIQUE_ID, &attributes), "hostlib_init_attr", err));
  return !s->has_end || on_exit(end_process, NULL) == 0
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the end of the process");
}

mgl_status mgl_cuda_shmem_create(const mgl_cuda_device *device, mgl_ranks *ranks, size_t bytes,
                                 mgl_cuda_peers *out, mgl_error *err) {
  static bool made;
  shmem s = {0};
  uint64_t least = 0;
  *out = (mgl_cuda_peers){
      .rank = mgl_ranks_rank(ranks), .count = mgl_ranks_count(ranks), .borrowed = true};
  mgl_status status =
      made ? mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "MEGALITH_TRANSPORT=nvshmem: a process can have one model over several "
                           "GPUs in its life; start another process")
           : open_library(&s, err);
  MGL_TRY(mgl_ranks_meet(ranks, status == MGL_OK ? bytes : 0, &least,
                         status == MGL_OK ? err : &(mgl_error){0}));
  if (status != MGL_OK || least != bytes) {
    return status != MGL_OK ? status
                            : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                                            "%s needs %zu bytes that all ranks see, another rank "
                                            "has %llu of NVSHMEM",
                                            device->name, bytes, (unsigned long long)least);
  }
  made = true;
  out->bytes = (bytes + GRAIN - 1) / GRAIN * GRAIN;
  MGL_TRY(begin(&s, ranks, out->bytes, err));
  void *own = s.take(out->bytes);
  if (own == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "NVSHMEM refuses %zu bytes that all ranks see",
                         out->bytes);
  }
  for (uint32_t rank = 0; rank < out->count; rank++) {
    out->at[rank] = (mgl_cu_ptr)(uintptr_t)s.at_rank(own, (int)rank);
    if (out->at[rank] == 0) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "NVSHMEM cannot map rank %u's memory on %s: GPUs of one host that reach "
                           "each other directly are needed",
                           rank, device->name);
    }
  }
  return mgl_ranks_meet(ranks, 0, &least, err);  // all have all
}
