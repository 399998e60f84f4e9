// The processor: SIMD level, cores, NUMA nodes; placing threads and memory on them (hwloc).
#ifndef MGL_BASE_CPU_H
#define MGL_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// Each level includes the ones before it. AVX2 implies FMA and F16C; AVX512 implies F, BW, VL, DQ.
typedef enum mgl_simd {
  MGL_SIMD_SCALAR,
  MGL_SIMD_AVX2,
  MGL_SIMD_AVX512,
  MGL_SIMD_AVX512_BF16,
  MGL_SIMD_COUNT,
} mgl_simd;

const char *mgl_simd_name(mgl_simd simd);  // "scalar", "avx2", "avx512", "avx512_bf16"

// The best level that processor and operating system offer. The environment variable MEGALITH_SIMD
// (one of the names above) lowers it; an unknown or unavailable name is an error.
mgl_simd mgl_simd_detected(void);
mgl_status mgl_simd_choose(mgl_simd *out, mgl_error *err);

// Names the processor that runs this: "GenuineIntel 6.207.2 Intel(R) Xeon(R) Processor" (vendor,
// family, model, stepping, name), where its instructions tell, else as the system calls it.
enum { MGL_PROCESSOR_BYTES = 128 };
void mgl_processor_name(char out[MGL_PROCESSOR_BYTES]);

typedef struct mgl_topology mgl_topology;

// Reads the machine's topology, restricted to what this process may use (cpuset, affinity).
mgl_status mgl_topology_create(mgl_topology **out, mgl_error *err);
void mgl_topology_destroy(mgl_topology *topology);

uint32_t mgl_topology_cores(const mgl_topology *topology);        // physical cores
uint32_t mgl_topology_threads(const mgl_topology *topology);      // hardware threads
uint32_t mgl_topology_numa_nodes(const mgl_topology *topology);   // at least 1
const char *mgl_topology_cpu_name(const mgl_topology *topology);  // "" if the system does not tell

// Pins the calling thread as worker `index` of `count`: one worker per physical core, spread evenly
// over NUMA nodes, second hardware threads only when there are more workers than cores. With more
// workers than hardware threads nothing is pinned. Failure to pin is not an error (returns false).
bool mgl_topology_pin(const mgl_topology *topology, uint32_t index, uint32_t count);

// Spreads the pages of an allocation over all NUMA nodes (before first touch). No-op with one node.
void mgl_topology_interleave(const mgl_topology *topology, void *memory, size_t bytes);

#endif
