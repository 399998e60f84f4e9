// A libcuda.so.1 whose GPUs are emulated: what driver.c and its neighbours share. The folder of the
// build tree that has it (and nvrtc.c's libnvrtc) goes into LD_LIBRARY_PATH; tests/emulator/run.sh
// does that.
//
// The environment says what there is:
//   EMULATED_GPUS        how many [1]
//   EMULATED_SMS         multiprocessors of each [4]
//   EMULATED_CAPABILITY  "9.0", "8.0" and so on [9.0]
//   EMULATED_MEMORY      MiB of each [2048]
//   EMULATED_SEED        of the order in which warps run and copies arrive [1]
//   EMULATED_LOG         1: every launch is told on stderr, with what it took
//   EMULATED_COUNTS      prefix of files: PREFIX.ptx, the megakernel's code, and PREFIX.counts, how
//                        often each line of it ran, in each warp of a block
//   EMULATED_LINES       1: that code says which line of the source it comes from
//
// One mutex guards all of it. Work is queued on streams and done by one thread of the driver's, as
// the order of streams allows: copies and marks at once, launches a share of their steps in turn.
// What fails is told on stderr when it fails, and whoever synchronises gets 719, as from a GPU.
#ifndef TESTS_EMULATOR_DRIVER_H
#define TESTS_EMULATOR_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cuda/cuda_driver.h"
#include "emulator/emulator.h"

enum {
  EMU_OK = 0,
  EMU_INVALID_VALUE = 1,
  EMU_OUT_OF_MEMORY = 2,
  EMU_INVALID_IMAGE = 200,
  EMU_INVALID_CONTEXT = 201,
  EMU_INVALID_PTX = 218,
  EMU_INVALID_HANDLE = 400,
  EMU_NOT_FOUND = 500,
  EMU_LAUNCH_FAILED = 719,
  EMU_TOO_LARGE = 720,  // a cooperative launch
  EMU_MOST_GPUS = 8,
  EMU_SMEM_PER_SM = 233472,
  EMU_SMEM_PER_BLOCK = 232448,
  EMU_SMEM_RESERVED = 1024,
};

// A call of the driver's table (cuda_driver.h has its parameters).
#define EMU_CALL __attribute__((visibility("default"))) mgl_cu_result

void emu_lock(void);
void emu_unlock(void);
uint32_t emu_setting(const char *name, uint32_t otherwise);
int emu_current_device(void);  // of this thread

// A kernel as the host has it.
typedef struct emu_function {
  struct emu_function *next;  // of its module
  const emu_kernel *kernel;
  uint32_t most_dynamic_bytes;
} emu_function;

uint32_t emu_blocks_per_sm(const emu_function *function, uint32_t threads, size_t dynamic_bytes);

// Memory of the host's that it may write while work runs, which async copies read when they run.
bool emu_is_pinned(const void *memory);
// Until all streams of the device are done, or one has failed: its code.
mgl_cu_result emu_synchronize(int device);

#endif
