// megalith info: the machine as Megalith sees it.
#include <hwloc.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <utf8proc.h>

#include "app/commands.h"
#include "app/device.h"
#include "app/gpu_list.h"
#include "app/human.h"
#include "app/model_options.h"
#include "app/output.h"
#include "base/alloc.h"
#include "base/cache_folder.h"
#include "base/simd.h"
#include "base/topology.h"
#include "device/cpu/read_ceiling.h"
#include "device/cpu/way_cache.h"

enum { CEILING_MEASUREMENTS = 3, CEILING_PASSES = 2 };  // passes of each

// The processor's name from /proc/cpuinfo; "unknown" when it is not there (not on every system).
static void read_cpu_name(char out[128]) {
  char line[256];
  FILE *file = fopen("/proc/cpuinfo", "re");
  (void)snprintf(out, 128, "unknown");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
      const char *name = colon + 1 + strspn(colon + 1, " ");
      (void)snprintf(out, 128, "%.*s", (int)strcspn(name, "\n"), name);
      break;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
}

static void append_processor(const mgl_topology *topology, mgl_simd simd, mgl_text *out) {
  const char *name = mgl_topology_cpu_name(topology);
  char own_name[128];
  if (name[0] == 0) {  // hwloc does not tell inside some virtual machines
    read_cpu_name(own_name);
    name = own_name;
  }
  uint32_t nodes = mgl_topology_numa_nodes(topology);
  mgl_text_format(out, "processor         %s\n", name);
  mgl_text_format(out, "SIMD level        %s", mgl_simd_name(simd));
  if (simd != mgl_simd_detected()) {
    mgl_text_format(out, " (MEGALITH_SIMD; the processor has %s)",
                    mgl_simd_name(mgl_simd_detected()));
  }
  mgl_text_format(out, "\ncores             %" PRIu32 " (%" PRIu32 " hardware threads)\n",
                  mgl_topology_cores(topology), mgl_topology_threads(topology));
  mgl_text_format(out, "NUMA              %" PRIu32 " node%s\n", nodes, nodes == 1 ? "" : "s");
}

static void append_memory(const mgl_read_ceiling *ceiling, mgl_text *out) {
  char size[MGL_HUMAN_BYTES];
  long pages = sysconf(_SC_PHYS_PAGES);
  long page_bytes = sysconf(_SC_PAGESIZE);
  uint64_t available = mgl_memory_available();
  if (pages > 0 && page_bytes > 0) {
    mgl_human_size((uint64_t)pages * (uint64_t)page_bytes, size);
    mgl_text_format(out, "memory            %s", size);
    if (available != UINT64_MAX) {
      mgl_human_size(available, size);
      mgl_text_format(out, ", %s available", size);
    }
    mgl_text_append_string(out, "\n");
  }
  mgl_text_append_string(out, "memory bandwidth  ");
  mgl_read_ceiling_append(ceiling, out);
  mgl_text_append_string(out, " (reading, all cores)\n");
}

// Entries of the cache folder that were measured on this processor.
typedef struct ways_found {
  char processor[MGL_PROCESSOR_BYTES];
  mgl_text *out;
  uint32_t count;
} ways_found;

static void append_way(void *context, const char *about, const mgl_linear_way *way) {
  ways_found *found = context;
  size_t bytes = strlen(found->processor);
  if (strncmp(about, found->processor, bytes) != 0) {
    return;
  }
  const char *rest = about[bytes] == ',' ? about + bytes + 2 : about;
  mgl_text_format(found->out, "%-18s%.*s\n%18s", found->count++ == 0 ? "linears" : "",
                  (int)strcspn(rest, ";"), rest, "");
  mgl_way_append(way, found->out);
  mgl_text_append_string(found->out, "\n");
}

static void append_ways(mgl_text *out) {
  char folder[MGL_CACHE_FOLDER_BYTES];
  ways_found found = {.out = out};
  mgl_processor_name(found.processor);
  if (mgl_cache_folder(folder)) {
    mgl_way_cache_list(folder, append_way, &found);
  }
  if (found.count == 0) {
    mgl_text_append_string(out,
                           "linears           not measured: the first start with a model does\n");
  }
}

static void append_versions(mgl_text *out) {
  struct utsname system;
  mgl_text_append_string(out, "megalith          " MGL_VERSION "\n");
#if defined(__clang__)
  mgl_text_append_string(out, "compiler          clang " __clang_version__ "\n");
#else
  mgl_text_append_string(out, "compiler          gcc " __VERSION__ "\n");
#endif
  mgl_text_format(out, "libraries         jansson %s, utf8proc %s, hwloc API %x.%x.%x\n",
                  jansson_version_str(), utf8proc_version(), hwloc_get_api_version() >> 16,
                  hwloc_get_api_version() >> 8 & 0xff, hwloc_get_api_version() & 0xff);
  if (uname(&system) == 0) {
    mgl_text_format(out, "system            %s %s %s\n", system.sysname, system.release,
                    system.machine);
  }
}

static mgl_status describe(const mgl_arguments *arguments, const mgl_topology *topology,
                           mgl_text *out, mgl_error *err) {
  mgl_simd simd = MGL_SIMD_SCALAR;
  mgl_team *team = NULL;
  mgl_read_ceiling ceiling = {0};
  MGL_TRY(mgl_simd_choose(&simd, err));
  MGL_TRY(mgl_team_create(topology, 0, &team, err));
  mgl_status status = MGL_OK;
  for (int i = 0; i < CEILING_MEASUREMENTS && status == MGL_OK; i++) {
    double rate = 0;
    status = mgl_read_ceiling_measure(team, simd, NULL, MGL_READ_CEILING_BYTES, CEILING_PASSES,
                                      &rate, err);
    mgl_read_ceiling_add(&ceiling, rate);
  }
  mgl_team_destroy(team);
  if (status == MGL_OK) {
    append_processor(topology, simd, out);
    append_memory(&ceiling, out);
    append_ways(out);
    mgl_gpu_list_append(out);
    status = mgl_device_describe(arguments, out, err);
    append_versions(out);
  }
  return status;
}

static mgl_status info_command(const mgl_arguments *arguments, mgl_error *err) {
  mgl_topology *topology = NULL;
  mgl_text out = {0};
  mgl_status status = mgl_topology_create(&topology, err);
  if (status == MGL_OK) {
    status = describe(arguments, topology, &out, err);
  }
  if (status == MGL_OK) {
    status = mgl_output_text(&out, err);
  }
  mgl_topology_destroy(topology);
  mgl_text_free(&out);
  return status;
}

static const mgl_option options[] = {
    MGL_ROW_DEVICE,
};

const mgl_command mgl_command_info = {
    .name = "info",
    .summary = "processor, SIMD level, cores, NUMA, memory bandwidth, GPUs, versions",
    .description =
        "Describes the machine as Megalith sees it, and where --device makes models run. The\n"
        "bandwidth is measured.",
    .examples =
        "megalith info\n"
        "megalith info --device cuda:1",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = info_command,
};
