// Ranks of one model on the GPUs of one host: a process each, which share memory.
//
// Processes, faults and file descriptors are those of the CPU's ranks (device/cpu/cpu_ranks.h). The
// ones that are forked are so before the driver is opened: neither it nor the compiler of device
// code lives on in a child. Those of a crew have come by themselves. What is added here:
//   - A block of device memory at every rank, of the same layout, which all others map (CUDA's
//     virtual memory management; handles go over Unix sockets). Kernels write to it directly.
//   - The feed. Requests come to rank 0. What its host sends to its device it also puts into shared
//     memory, and the hosts of the others hand it to theirs; when a command counts, planners agree
//     upon by themselves (twin/plan_turn.h).
//   - Launches. Rank 0 says how each one is to be; all begin once all have uploaded their state.
#ifndef MGL_DEVICE_CUDA_CUDA_RANKS_H
#define MGL_DEVICE_CUDA_CUDA_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/cpu/cpu_ranks.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_program.h"
#include "twin/feed.h"

// Starts `count` ranks; returns in every one of them. Nothing of CUDA is open yet, unless they are
// of a crew, which has been gathered (NULL: they are forked).
mgl_status mgl_cuda_ranks_start(uint32_t count, mgl_crew *crew, mgl_ranks **out, mgl_error *err);
// Which GPU rank `rank` of a crew takes, by its number among the `visible` ones of its process:
// first + rank; but where that is one, the user has shown each process its own.
uint32_t mgl_cuda_ranks_ordinal(uint32_t first, uint32_t rank, uint32_t visible);
// All ranks call it: refuses two that have the same GPU, whatever number it has for each.
mgl_status mgl_cuda_ranks_apart(const mgl_cuda_device *device, mgl_ranks *ranks, mgl_error *err);

// --- device memory -------------------------------------------------------------------------------

typedef struct mgl_cuda_peers {
  uint32_t rank, count;
  size_t bytes;                  // of each
  mgl_cu_ptr at[MGL_MAX_RANKS];  // of every rank's block here; 0: not mapped
  bool borrowed;                 // it lies in NVSHMEM's heap (cuda_shmem.h)
} mgl_cuda_peers;

// Takes a block of `bytes` and maps those of all ranks, which call it together. The variable
// MEGALITH_TRANSPORT says how: vmm, or nothing, by handles, and nvshmem by that library's heap.
mgl_status mgl_cuda_peers_create(const mgl_cuda_device *device, mgl_ranks *ranks, size_t bytes,
                                 mgl_cuda_peers *out, mgl_error *err);
void mgl_cuda_peers_destroy(const mgl_cuda_device *device, mgl_cuda_peers *peers);

// --- what rank 0 says ----------------------------------------------------------------------------

// A launch.
typedef struct mgl_cuda_ranks_launch {
  uint64_t first_command;  // of the launch, in the log
  mgl_cuda_launch_options options;
  uint32_t most_iterations;
  uint32_t chunk_tokens, prompts_first;
  uint32_t edit_capacity, has_masks;  // memory for sampling that a slot has
  uint32_t planner_lost;
} mgl_cuda_ranks_launch;

enum { MGL_CUDA_SHMEM_ID_BYTES = 128 };

// In shared memory: the log of commands. Behind it, at MGL_CUDA_LOG_FEED, lies what commands speak
// of, laid out as the feed's pinned block, and behind that masks and edits (cuda_sampling.c).
typedef struct mgl_cuda_log {
  mgl_cuda_ranks_launch launch;
  unsigned char shmem_id[MGL_CUDA_SHMEM_ID_BYTES];  // by which ranks find NVSHMEM's heap
  _Alignas(64) mgl_word commands;                   // that rank 0 has sent, in all launches
  struct {
    _Alignas(64) mgl_word count;  // of those that this rank's host has handed on
  } copied[MGL_MAX_RANKS];
} mgl_cuda_log;

enum { MGL_CUDA_LOG_FEED = 4096 };
#define MGL_CUDA_LOG_BYTES (UINT64_C(4) << 30)  // reserved; what is not used takes no memory

_Static_assert(sizeof(mgl_cuda_log) <= MGL_CUDA_LOG_FEED, "the feed lies behind the log");

static inline mgl_cuda_log *mgl_cuda_log_of(const mgl_ranks *ranks) {
  return mgl_ranks_block(ranks);
}

static inline unsigned char *mgl_cuda_log_feed(const mgl_ranks *ranks) {
  return (unsigned char *)mgl_ranks_block(ranks) + MGL_CUDA_LOG_FEED;
}

// Commands that all others have handed on.
uint64_t mgl_cuda_log_copied(const mgl_ranks *ranks, uint32_t count);

#endif
