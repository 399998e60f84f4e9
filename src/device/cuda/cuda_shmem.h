// Memory of ranks in NVSHMEM's symmetric heap, in place of handles that ranks pass to each other
// (cuda_ranks.h): for hosts where a process may not map another one's handles. Kernels read and
// write it directly, as they do there; hosts are not crossed, for which NVSHMEM would have to put.
//
// NVSHMEM's library is opened with dlopen and never closed. A process makes one heap in its life,
// as it has one model over ranks: giving it back would wait for ranks that may have died.
#ifndef MGL_DEVICE_CUDA_CUDA_SHMEM_H
#define MGL_DEVICE_CUDA_CUDA_SHMEM_H

#include "device/cuda/cuda_ranks.h"

// As mgl_cuda_peers_create, out of a heap; out->borrowed is set. All ranks call it together, and
// all fail where one of them has no library.
mgl_status mgl_cuda_shmem_create(const mgl_cuda_device *device, mgl_ranks *ranks, size_t bytes,
                                 mgl_cuda_peers *out, mgl_error *err);

#endif
