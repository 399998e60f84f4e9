// The emulator: executes PTX, which NVRTC makes of the very sources that a GPU would run, on the CPU.
// The driver (driver.h) calls it from one thread, which steps all live launches in turn; only
// emu_memory_add and _remove may be called from others meanwhile.
//
// Device pointers are the host's. A block's shared memory is a block of the host's, too: generic
// addresses of it are host addresses, those of .shared are 32-bit offsets.
#ifndef TESTS_EMULATOR_EMULATOR_H
#define TESTS_EMULATOR_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct emu_module emu_module;
typedef struct emu_kernel emu_kernel;
typedef struct emu_launch emu_launch;

// NULL: *why says what is unknown in the text, and in which line.
emu_module *emu_module_load(const char *ptx, char *why, size_t why_bytes);
void emu_module_destroy(emu_module *module);
// NULL: there is none of that name. Both live as long as the module.
const emu_kernel *emu_module_kernel(const emu_module *module, const char *name);
void *emu_module_global(emu_module *module, const char *name, size_t *bytes);

// What a kernel says of itself. threads: .maxntid; 0: it says nothing. blocks: .minnctapersm, or 0.
typedef struct emu_kernel_facts {
  const char *name;
  uint32_t threads, blocks;
  uint32_t shared_bytes;  // static
  uint32_t parameter_count;
} emu_kernel_facts;
emu_kernel_facts emu_kernel_describe(const emu_kernel *kernel);
size_t emu_kernel_parameter_bytes(const emu_kernel *kernel, uint32_t index);

// Copies what params point to. Cheap: blocks get their memory when they start.
emu_launch *emu_launch_begin(const emu_kernel *kernel, const unsigned grid[3],
                             const unsigned block[3], unsigned dynamic_shared_bytes, void **params,
                             uint64_t seed);
// At most so many blocks at once; 0, and where it was not called: all.
void emu_launch_limit(emu_launch *launch, uint32_t blocks);
// Runs about so many steps of warps. True: it has ended, or met a fault.
bool emu_launch_step(emu_launch *launch, uint64_t warp_steps);
// NULL: none. Else what happened where: a bad address, a trap, a deadlock.
const char *emu_launch_fault(const emu_launch *launch);
// Programmatic dependent launches: while it is held, griddepcontrol.wait waits; it is released once
// all blocks have ended or called griddepcontrol.launch_dependents.
void emu_launch_hold(emu_launch *launch, bool held);
bool emu_launch_released(const emu_launch *launch);
void emu_launch_destroy(emu_launch *launch);

// Memory that device code may touch.
void emu_memory_add(const void *memory, size_t bytes);
void emu_memory_remove(const void *memory);

#endif
