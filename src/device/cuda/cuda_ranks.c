#include "device/cuda/cuda_ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda/cuda_shmem.h"

mgl_status mgl_cuda_ranks_start(uint32_t count, mgl_crew *crew, mgl_ranks **out, mgl_error *err) {
  const mgl_ranks_options options = {
      .count = count, .block_bytes = MGL_CUDA_LOG_BYTES, .crew = crew};
  *out = NULL;
  if (count < 2 || count > MGL_MAX_RANKS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "ranks: expected 2 to %d, found %u", MGL_MAX_RANKS,
                         count);
  }
  return mgl_ranks_start(&options, out, err);
}

uint32_t mgl_cuda_ranks_ordinal(uint32_t first, uint32_t rank, uint32_t visible) {
  return visible == 1 && first == 0 ? 0 : first + rank;
}

// Where a GPU is on its host, which is the same for all processes.
static mgl_status find_slot(const mgl_cuda_device *device, uint64_t *out, mgl_error *err) {
  static const int attributes[] = {MGL_CU_ATTRIBUTE_PCI_DOMAIN, MGL_CU_ATTRIBUTE_PCI_BUS,
                                   MGL_CU_ATTRIBUTE_PCI_SLOT};
  *out = 0;
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
    int value = 0;
    MGL_CUDA_TRY(&device->driver, device_attribute, err, &value, attributes[i], device->device);
    *out = *out << 16 | (uint16_t)value;
  }
  return MGL_OK;
}

mgl_status mgl_cuda_ranks_apart(const mgl_cuda_device *device, mgl_ranks *ranks, mgl_error *err) {
  const uint32_t count = mgl_ranks_count(ranks);
  uint64_t own = 0;
  uint64_t slots[MGL_MAX_RANKS];
  MGL_TRY(find_slot(device, &own, err));
  for (uint32_t rank = 0; rank < count; rank++) {  // a meeting tells the least: each rank's in turn
    const bool is_own = rank == mgl_ranks_rank(ranks);
    MGL_TRY(mgl_ranks_meet(ranks, is_own ? own : UINT64_MAX, &slots[rank], err));
  }
  for (uint32_t rank = 1; rank < count; rank++) {
    for (uint32_t other = 0; other < rank; other++) {
      if (slots[rank] == slots[other]) {
        return mgl_error_set(
            err, MGL_ERR_ARGUMENT,
            "expected a GPU for each of %u ranks, found ranks %u and %u on the same (%s): there "
            "are fewer GPUs, or CUDA_VISIBLE_DEVICES shows both this one",
            count, other, rank, device->name);
      }
    }
  }
  return MGL_OK;
}

// --- device memory -------------------------------------------------------------------------------

static mgl_cu_allocation allocation_on(const mgl_cuda_device *device) {
  return (mgl_cu_allocation){.type = MGL_CU_MEMORY_PINNED,
                             .handle_types = MGL_CU_HANDLE_FD,
                             .location = {MGL_CU_LOCATION_DEVICE, device->device}};
}

// Maps a block here; the mapping keeps it when the handle is given up.
static mgl_status map(const mgl_cuda_device *device, uint64_t handle, size_t bytes, size_t grain,
                      mgl_cu_ptr *out, mgl_error *err) {
  const mgl_cuda_driver *driver = &device->driver;
  const mgl_cu_access access = {{MGL_CU_LOCATION_DEVICE, device->device}, MGL_CU_ACCESS_READ_WRITE};
  mgl_cu_ptr at = 0;
  MGL_CUDA_TRY(driver, address_reserve, err, &at, bytes, grain, 0, 0);
  mgl_status status = MGL_CUDA_CALL(driver, memory_map, err, at, bytes, 0, handle, 0);
  if (status != MGL_OK) {
    (void)driver->address_free(at, bytes);
    return status;
  }
  status = MGL_CUDA_CALL(driver, memory_access, err, at, bytes, &access, 1);
  if (status != MGL_OK) {
    (void)driver->memory_unmap(at, bytes);
    (void)driver->address_free(at, bytes);
    return status;
  }
  *out = at;
  return MGL_OK;
}

static mgl_status map_peer(const mgl_cuda_device *device, int fd, size_t grain, uint32_t rank,
                           mgl_cuda_peers *peers, mgl_error *err) {
  const mgl_cuda_driver *driver = &device->driver;
  uint64_t handle = 0;
  MGL_CUDA_TRY(driver, memory_import, err, &handle, (void *)(intptr_t)fd, MGL_CU_HANDLE_FD);
  mgl_status status = map(device, handle, peers->bytes, grain, &peers->at[rank], err);
  (void)driver->memory_release(handle);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "mapping rank %u's memory on %s", rank, device->name);
  }
  return status;
}

static mgl_status exchange(const mgl_cuda_device *device, mgl_ranks *ranks, uint64_t handle,
                           size_t grain, mgl_cuda_peers *peers, mgl_error *err) {
  const mgl_cuda_driver *driver = &device->driver;
  int own = -1;
  int fds[MGL_MAX_RANKS];
  MGL_CUDA_TRY(driver, memory_export, err, &own, handle, MGL_CU_HANDLE_FD, 0);
  mgl_status status = mgl_ranks_pass(ranks, own, fds, err);
  for (uint32_t rank = 0; rank < peers->count; rank++) {
    if (status == MGL_OK && rank != peers->rank) {
      status = map_peer(device, fds[rank], grain, rank, peers, err);
    }
    if (fds[rank] >= 0) {
      (void)close(fds[rank]);
    }
  }
  (void)close(own);
  return status;
}

static mgl_status create_by_handles(const mgl_cuda_device *device, mgl_ranks *ranks, size_t bytes,
                                    mgl_cuda_peers *out, mgl_error *err) {
  const mgl_cuda_driver *driver = &device->driver;
  const mgl_cu_allocation how = allocation_on(device);
  size_t grain = 0;
  uint64_t handle = 0;
  uint64_t least = 0;
  *out = (mgl_cuda_peers){.rank = mgl_ranks_rank(ranks), .count = mgl_ranks_count(ranks)};
  MGL_CUDA_TRY(driver, memory_granularity, err, &grain, &how, MGL_CU_GRANULARITY_RECOMMENDED);
  out->bytes = (bytes + grain - 1) / grain * grain;
  MGL_TRY(mgl_ranks_meet(ranks, out->bytes, &least, err));
  if (least != out->bytes) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "the ranks' GPUs are not alike: %s needs %zu bytes that all see, another "
                         "one %llu",
                         device->name, out->bytes, (unsigned long long)least);
  }
  if (driver->memory_create(&handle, out->bytes, &how, 0) != 0) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "the GPU refuses %zu bytes that all ranks see",
                         out->bytes);
  }
  mgl_status status = map(device, handle, out->bytes, grain, &out->at[out->rank], err);
  if (status == MGL_OK) {
    status = exchange(device, ranks, handle, grain, out, err);
  }
  if (status == MGL_OK) {  // all have all
    status = mgl_ranks_meet(ranks, 0, &least, err);
  }
  (void)driver->memory_release(handle);
  return status;
}

mgl_status mgl_cuda_peers_create(const mgl_cuda_device *device, mgl_ranks *ranks, size_t bytes,
                                 mgl_cuda_peers *out, mgl_error *err) {
  const char *wanted = getenv("MEGALITH_TRANSPORT");
  if (wanted == NULL || *wanted == 0 || strcmp(wanted, "vmm") == 0) {
    return create_by_handles(device, ranks, bytes, out, err);
  }
  if (strcmp(wanted, "nvshmem") == 0) {
    return mgl_cuda_shmem_create(device, ranks, bytes, out, err);
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "MEGALITH_TRANSPORT: expected vmm or nvshmem, found \"%.80s\"", wanted);
}

void mgl_cuda_peers_destroy(const mgl_cuda_device *device, mgl_cuda_peers *peers) {
  for (uint32_t rank = 0; rank < peers->count; rank++) {
    if (peers->at[rank] != 0 && !peers->borrowed) {
      (void)device->driver.memory_unmap(peers->at[rank], peers->bytes);
      (void)device->driver.address_free(peers->at[rank], peers->bytes);
    }
  }
  *peers = (mgl_cuda_peers){0};
}

// --- the log -------------------------------------------------------------------------------------

uint64_t mgl_cuda_log_copied(const mgl_ranks *ranks, uint32_t count) {
  mgl_cuda_log *log = mgl_cuda_log_of(ranks);
  uint64_t least = UINT64_MAX;
  for (uint32_t rank = 1; rank < count; rank++) {
    // Acquire, paired with the release of who copied them: what they speak of may be written over.
    uint64_t copied = mgl_load_acquire(&log->copied[rank].count);
    least = copied < least ? copied : least;
  }
  return least;
}
