// The machine: cores, NUMA nodes; placing threads and memory on them (hwloc).
#ifndef MGL_BASE_TOPOLOGY_H
#define MGL_BASE_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

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
