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

// Teams of one size that share the machine have a node of their own each, or share one with as many
// others as all nodes have: team *part of *parts, of `size` workers each, is restricted to its node.
// The topology then is that node, and *part and *parts are the team's place on it; pages that its
// workers touch first lie there. All stays as it is with one node, where teams do not come out even,
// or where a node has too few threads for its teams. True: it was restricted.
bool mgl_topology_take_part(mgl_topology *topology, uint32_t size, uint32_t *part, uint32_t *parts);

// Where a worker runs.
typedef struct mgl_processor {
  uint32_t index;  // as the system counts them
  uint32_t node;   // of memory, as the system counts them
} mgl_processor;

// The place of worker `index` of `count`, see below. False: it is not pinned.
bool mgl_topology_find(const mgl_topology *topology, uint32_t index, uint32_t count,
                       mgl_processor *out);

// Pins the calling thread as worker `index` of `count`: one worker per physical core, spread evenly
// over NUMA nodes, second hardware threads only when there are more workers than cores. With more
// workers than hardware threads nothing is pinned. Failure to pin is not an error (returns false).
bool mgl_topology_pin(const mgl_topology *topology, uint32_t index, uint32_t count);

// Spreads the pages of an allocation over all NUMA nodes (before first touch). No-op with one node.
void mgl_topology_interleave(const mgl_topology *topology, void *memory, size_t bytes);

#endif
