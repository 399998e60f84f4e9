#include "base/cpu.h"

#include <hwloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/alloc.h"
#include "base/file.h"

struct mgl_topology {
  hwloc_topology_t hwloc;
  uint32_t cores;
  uint32_t threads;
  uint32_t numa_nodes;
  const char *cpu_name;
};

static const char *const simd_names[MGL_SIMD_COUNT] = {"scalar", "avx2", "avx512", "avx512_bf16"};

const char *mgl_simd_name(mgl_simd simd) {
  return simd_names[simd];
}

mgl_simd mgl_simd_detected(void) {
#if defined(__x86_64__)
  // F16C is not asked for: clang 14 does not know its name, and every processor with AVX2 has it.
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512) {
    return __builtin_cpu_supports("avx512bf16") ? MGL_SIMD_AVX512_BF16 : MGL_SIMD_AVX512;
  }
  return avx2 ? MGL_SIMD_AVX2 : MGL_SIMD_SCALAR;
#else
  return MGL_SIMD_SCALAR;
#endif
}

mgl_status mgl_simd_choose(mgl_simd *out, mgl_error *err) {
  *out = mgl_simd_detected();
  const char *wanted = getenv("MEGALITH_SIMD");
  if (wanted == NULL || *wanted == 0) {
    return MGL_OK;
  }
  for (int simd = 0; simd < MGL_SIMD_COUNT; simd++) {
    if (strcmp(wanted, simd_names[simd]) == 0) {
      if ((mgl_simd)simd > *out) {
        return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "MEGALITH_SIMD=%s: this processor has %s at most", wanted,
                             simd_names[*out]);
      }
      *out = (mgl_simd)simd;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "MEGALITH_SIMD: expected scalar, avx2, avx512 or avx512_bf16, found \"%s\"",
                       wanted);
}

#if defined(__x86_64__)
void mgl_processor_name(char out[MGL_PROCESSOR_BYTES]) {
  unsigned int vendor[4] = {0}, version[4] = {0}, brand[3][4] = {{0}};
  (void)__get_cpuid(0, &vendor[0], &vendor[1], &vendor[3], &vendor[2]);
  (void)__get_cpuid(1, &version[0], &version[1], &version[2], &version[3]);
  for (unsigned int i = 0; i < 3; i++) {
    (void)__get_cpuid(0x80000002u + i, &brand[i][0], &brand[i][1], &brand[i][2], &brand[i][3]);
  }
  unsigned int family = version[0] >> 8 & 15, model = version[0] >> 4 & 15;
  model |= family == 6 || family == 15 ? version[0] >> 12 & 0xf0 : 0;
  family += family == 15 ? version[0] >> 20 & 0xff : 0;
  char words[sizeof brand + 1] = "";
  memcpy(words, brand, sizeof brand);
  (void)snprintf(out, MGL_PROCESSOR_BYTES, "%.12s %u.%u.%u %s", (const char *)&vendor[1], family,
                 model, version[0] & 15, words + strspn(words, " "));
}
#else
void mgl_processor_name(char out[MGL_PROCESSOR_BYTES]) {
  char line[256];
  FILE *file = fopen("/proc/cpuinfo", "re");
  (void)snprintf(out, MGL_PROCESSOR_BYTES, "unknown");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "CPU part", 8) == 0 && colon != NULL) {
      (void)snprintf(out, MGL_PROCESSOR_BYTES, "part%.*s", (int)strcspn(colon + 1, "\n"),
                     colon + 1);
      break;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
}
#endif

// How many there are of a type; `otherwise` where the system does not tell.
static uint32_t count_objects(hwloc_topology_t hwloc, hwloc_obj_type_t type, uint32_t otherwise) {
  int count = hwloc_get_nbobjs_by_type(hwloc, type);
  return count < 1 ? otherwise : (uint32_t)count;
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
  topology->threads = count_objects(topology->hwloc, HWLOC_OBJ_PU, 1);
  topology->cores = count_objects(topology->hwloc, HWLOC_OBJ_CORE, topology->threads);
  topology->numa_nodes = count_objects(topology->hwloc, HWLOC_OBJ_NUMANODE, 1);
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

bool mgl_topology_pin(const mgl_topology *topology, uint32_t index, uint32_t count) {
  if (count > topology->threads) {
    return false;
  }
  // hwloc numbers cores node by node, so taking every (cores/count)-th spreads over the nodes.
  // Where each core has one thread the threads will do, and a system may tell of these alone.
  bool by_core = count <= topology->cores && topology->cores < topology->threads;
  uint32_t available = by_core ? topology->cores : topology->threads;
  unsigned place = (unsigned)((uint64_t)index * available / count);
  hwloc_obj_t object =
      hwloc_get_obj_by_type(topology->hwloc, by_core ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU, place);
  if (object == NULL) {
    return false;
  }
  hwloc_bitmap_t one = hwloc_bitmap_dup(object->cpuset);
  if (one == NULL) {
    return false;
  }
  hwloc_bitmap_singlify(one);
  bool pinned = hwloc_set_cpubind(topology->hwloc, one, HWLOC_CPUBIND_THREAD) == 0;
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
