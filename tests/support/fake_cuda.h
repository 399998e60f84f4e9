// A GPU without a GPU: a driver whose device memory is the host's, and a megakernel that is the
// host's protocol over the very state that the device would get, on a thread of its own. It
// computes no numbers (every byte of fresh memory is 0x5a; plain kernels do compute); plans, task
// order, events, tokens, the feed, faults and memory are all there, and every read of the KV cache
// is checked. Graphs of mode full run when they are launched, kernel by kernel.
#ifndef MGL_TESTS_SUPPORT_FAKE_CUDA_H
#define MGL_TESTS_SUPPORT_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "device/cuda/cuda_code.h"
#include "device/cuda/cuda_driver.h"
#include "twin/device_run.h"

// Of its trace, on the device's timer: a worker's n-th task of iteration i is let go at
// iteration_ns[i] + n * FAKE_CUDA_TASK_NS, for which it has waited since a quarter of that before,
// while its weights were loaded; half of it is computing, half of that waiting for weights, and a
// tenth triggering. Clocks differ between workers, drift, and count FAKE_CUDA_CLOCKS a nanosecond.
enum {
  FAKE_CUDA_WORKERS = 6,
  FAKE_CUDA_NEVER = -1,
  FAKE_CUDA_TASK_NS = 1000,
  FAKE_CUDA_CLOCKS = 2,
  FAKE_CUDA_HASHES = 4096,
};

typedef struct fake_cuda {
  size_t free_bytes;
  int live;                     // device allocations
  int handles, maps;            // of memory that other processes map
  mgl_cu_result access_result;  // of making such memory readable
  mgl_hash *plan_hashes;  // [FAKE_CUDA_HASHES] of each iteration's plan, in turn; NULL: not wanted
  uint64_t plans;         // of which hashes were wanted
  uint64_t *choices;      // a sum over all tokens that were sampled and their edits; NULL: likewise
  uint32_t sampling_ns;   // that sampling a token takes
  uint32_t idle_looks;    // for commands, by a launch that had nothing to do
  uint32_t runs;          // of the megakernel
  uint32_t wide_runs;     // of that of the wide class
  bool portable;          // that one is the portable one
  bool codes;             // the model has weights of codes
  int slot;               // of the GPU on the bus
  uint32_t few_wide_runs;      // of those, with the smallest tiles
  uint32_t widened_runs;       // and where codes become bf16 before
  uint32_t empty_wide_runs;    // that found nothing to do
  uint64_t wide_ns;            // the device's timer at its latest turn
  int hang_at;                 // iteration in which a task hangs, or FAKE_CUDA_NEVER
  int not_finite_at;           // iteration whose logits are not finite, or FAKE_CUDA_NEVER
  uint64_t iteration_step_ns;  // from one iteration's begin to the next one's
  bool ignore_deadline;        // what the host writes into a running launch is lost
  bool hung;
  mgl_cu_result launch_result;  // what a launch ends with
  mgl_cuda_run *run;
  // Of mode full.
  uint32_t graph_launches;
  uint32_t loose_launches;             // of kernels outside of graphs
  float graph_ms, kernel_ms;           // that such launches take between two events
  mgl_cu_result elapsed_result;        // of asking for that
  uint32_t plan_launches;              // of the kernel that only plans
  uint32_t ordinal;                    // of the kernel that ran last
  uint32_t empty_iterations;           // that were queued for nothing
  uint32_t decode_iterations;          // in which every sequence had one token
  uint32_t mixed_iterations;           // all others
  const char *attend_kernel;           // that ran last
  uint32_t attend_tokens;              // of its graph
  uint32_t attends_any, attends_long;  // launches of these kernels of attention
  uint32_t task_launches;              // and of that for linears of codes and of experts
  bool capture_fails;
  size_t graph_bytes;       // of the device's memory that a graph takes
  uint32_t graph_kernels;   // plain kernels that graphs launched
  uint32_t captured_rows;   // of what the graph that was captured last begins with
  uint32_t plain_launches;  // of plain kernels, which compute what they would on a device
} fake_cuda;

extern fake_cuda fake;  // reset by fake_cuda_device, but for counts

// A device on which all works.
mgl_cuda_device fake_cuda_device(void);
mgl_cuda_code_function fake_cuda_code;

// Frees what a program left that was lost: the host must not free it, as a kernel may still run.
void fake_cuda_reclaim(void);

// What the megakernel samples for that place of a sequence which begins with that token.
int32_t fake_cuda_token(int32_t first, uint32_t position);

#endif
