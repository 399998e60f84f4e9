#include "base/topology.h"

#include <hwloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

struct mgl_topology {
  hwloc_topology_t hwloc;
  uint32_t cores;
  uint32_t threads;
  uint32_t numa_nodes;
  const char *cpu_name;
};

// How many there are of a type; `otherwise` where the system does not tell.
static uint32_t count_objects(hwloc_topology_t hwloc, hwloc_obj_type_t type, uint32_t otherwise) {
  int count = hwloc_get_nbobjs_by_type(hwloc, type);
  return count < 1 ? otherwise : (uint32_t)count;
}

static void count_all(mgl_topology *topology) {
  topology->threads = count_objects(topology->hwloc, HWLOC_OBJ_PU, 1);
  topology->cores = count_objects(topology->hwloc, HWLOC_OBJ_CORE, topology->threads);
  topology->numa_nodes = count_objects(topology->hwloc, HWLOC_OBJ_NUMANODE, 1);
}

// Whether the system describes its processors where hwloc looks. Without /sys (a chroot, some
// containers) hwloc would say so on standard error, which is not ours to write to.
static bool has_sysfs(void) {
  static const char *const folders[] = {"/sys/bus/cpu/devices", "/sys/devices/system/cpu"};
  static const char *const names[] = {"package_cpus", "core_cpus", "core_siblings",
                                      "thread_siblings"};
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    for (size_t j = 0; j < sizeof names / sizeof *names; j++) {
      char path[96];
      mgl_file_kind kind = MGL_FILE_ABSENT;
      (void)snprintf(path, sizeof path, "%s/cpu0/topology/%s", folders[i], names[j]);
      if (mgl_file_find(path, &kind, NULL) == MGL_OK && kind != MGL_FILE_ABSENT) {
        return true;
      }
    }
  }
  return false;
}

// The processors that this process may use (hwloc may not have applied a taskset or cpuset) are
// read when there is no topology yet, since threads are pinned as long as there is one: a second
// engine would take the one processor of the thread that it is created on for all there are.
static pthread_mutex_t allowed_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t topology_count;  // under the lock
static hwloc_bitmap_t allowed;   // under the lock; NULL: all

static void restrict_to_allowed(hwloc_topology_t hwloc) {
  (void)pthread_mutex_lock(&allowed_lock);
  if (topology_count++ == 0) {
    allowed = hwloc_bitmap_alloc();
    if (allowed != NULL && (hwloc_get_cpubind(hwloc, allowed, HWLOC_CPUBIND_PROCESS) != 0 ||
                            hwloc_bitmap_iszero(allowed))) {
      hwloc_bitmap_free(allowed);
      allowed = NULL;
    }
  }
  if (allowed != NULL) {
    (void)hwloc_topology_restrict(hwloc, allowed, 0);
  }
  (void)pthread_mutex_unlock(&allowed_lock);
}

static void forget_allowed(void) {
  (void)pthread_mutex_lock(&allowed_lock);
  if (--topology_count == 0) {
    hwloc_bitmap_free(allowed);  // NULL is fine
    allowed = NULL;
  }
  (void)pthread_mutex_unlock(&allowed_lock);
}

mgl_status mgl_topology_create(mgl_topology **out, mgl_error *err) {
  *out = NULL;
  mgl_topology *topology = mgl_alloc_zeroed(1, sizeof *topology);
  if (topology == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the processor topology");
  }
  if (hwloc_topology_init(&topology->hwloc) != 0) {
    mgl_free(topology);
    return mgl_error_set(err, MGL_ERR_MEMORY, "hwloc could not create a topology");
  }
  // Only processors and memory matter here; leaving I/O and caches out halves the start-up time.
  (void)hwloc_topology_set_all_types_filter(topology->hwloc, HWLOC_TYPE_FILTER_KEEP_NONE);
  (void)hwloc_topology_set_type_filter(topology->hwloc, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  (void)hwloc_topology_set_type_filter(topology->hwloc, HWLOC_OBJ_PACKAGE,
                                       HWLOC_TYPE_FILTER_KEEP_ALL);
  // Of processors that have a node and are no package.
  (void)hwloc_topology_set_type_filter(topology->hwloc, HWLOC_OBJ_GROUP,
                                       HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  if (!has_sysfs()) {  // the processor's own instructions and the system's calls still tell
    (void)hwloc_topology_set_components(topology->hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                        "linux");
  }
  if (hwloc_topology_load(topology->hwloc) != 0) {
    hwloc_topology_destroy(topology->hwloc);
    mgl_free(topology);
    return mgl_error_set(err, MGL_ERR_INTERNAL, "hwloc could not read this machine's topology");
  }
  restrict_to_allowed(topology->hwloc);
  count_all(topology);
  hwloc_obj_t package = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_PACKAGE, 0);
  const char *name = package == NULL ? NULL : hwloc_obj_get_info_by_name(package, "CPUModel");
  topology->cpu_name = name == NULL ? "" : name;
  *out = topology;
  return MGL_OK;
}

void mgl_topology_destroy(mgl_topology *topology) {
  if (topology != NULL) {
    hwloc_topology_destroy(topology->hwloc);
    mgl_free(topology);
    forget_allowed();
  }
}

uint32_t mgl_topology_cores(const mgl_topology *topology) {
  return topology->cores;
}
uint32_t mgl_topology_threads(const mgl_topology *topology) {
  return topology->threads;
}
uint32_t mgl_topology_numa_nodes(const mgl_topology *topology) {
  return topology->numa_nodes;
}
const char *mgl_topology_cpu_name(const mgl_topology *topology) {
  return topology->cpu_name;
}

// Whether each node has so many threads that are no other's. Nodes of memory without processors
// have none; those of a kind that several share (fast memory) have the same.
static bool nodes_have_threads(const mgl_topology *topology, uint32_t threads) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < topology->numa_nodes; i++) {
    hwloc_obj_t node = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, i);
    int found = hwloc_get_nbobjs_inside_cpuset_by_type(topology->hwloc, node->cpuset, HWLOC_OBJ_PU);
    if (found <= 0 || (uint32_t)found < threads) {
      return false;
    }
    sum += (uint64_t)found;
  }
  return sum == topology->threads;
}

bool mgl_topology_take_part(mgl_topology *topology, uint32_t size, uint32_t *part,
                            uint32_t *parts) {
  uint32_t nodes = topology->numa_nodes;
  if (nodes < 2 || *parts % nodes != 0) {
    return false;
  }
  uint32_t per_node = *parts / nodes;
  if (!nodes_have_threads(topology, per_node * size)) {  // the same answer for all teams
    return false;
  }
  hwloc_obj_t node = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, *part / per_node);
  if (hwloc_topology_restrict(topology->hwloc, node->cpuset, HWLOC_RESTRICT_FLAG_REMOVE_CPULESS) !=
      0) {
    return false;
  }
  count_all(topology);
  *part %= per_node;
  *parts = per_node;
  return true;
}

static hwloc_obj_t find_place(const mgl_topology *topology, uint32_t index, uint32_t count) {
  if (count > topology->threads) {
    return NULL;
  }
  // hwloc numbers cores node by node, so taking every (cores/count)-th spreads over the nodes.
  // Where each core has one thread the threads will do, and a system may tell of these alone.
  bool by_core = count <= topology->cores && topology->cores < topology->threads;
  uint32_t available = by_core ? topology->cores : topology->threads;
  unsigned place = (unsigned)((uint64_t)index * available / count);
  return hwloc_get_obj_by_type(topology->hwloc, by_core ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU, place);
}

bool mgl_topology_find(const mgl_topology *topology, uint32_t index, uint32_t count,
                       mgl_processor *out) {
  hwloc_obj_t object = find_place(topology, index, count);
  int processor = object == NULL ? -1 : hwloc_bitmap_first(object->cpuset);
  int node = object == NULL ? -1 : hwloc_bitmap_first(object->nodeset);
  *out = (mgl_processor){.index = (uint32_t)processor, .node = node < 0 ? 0 : (uint32_t)node};
  return processor >= 0;
}

bool mgl_topology_pin(const mgl_topology *topology, uint32_t index, uint32_t count) {
  mgl_processor place;
  hwloc_bitmap_t one = hwloc_bitmap_alloc();
  bool pinned = one != NULL && mgl_topology_find(topology, index, count, &place) &&
                hwloc_bitmap_only(one, place.index) == 0 &&
                hwloc_set_cpubind(topology->hwloc, one, HWLOC_CPUBIND_THREAD) == 0;
  hwloc_bitmap_free(one);
  return pinned;
}

void mgl_topology_interleave(const mgl_topology *topology, void *memory, size_t bytes) {
  if (topology->numa_nodes > 1 && bytes > 0) {
    hwloc_const_bitmap_t all = hwloc_topology_get_topology_nodeset(topology->hwloc);
    // A hint: without it the pages land where they are first touched, which is slower, not wrong.
    (void)hwloc_set_area_membind(topology->hwloc, memory, bytes, all, HWLOC_MEMBIND_INTERLEAVE,
                                 HWLOC_MEMBIND_BYNODESET);
  }
}
