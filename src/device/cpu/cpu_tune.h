// Chooses how linears walk on this machine, by measuring.
//
// What a processor's prefetchers follow, how far ahead it must be told, and which instruction
// multiplies bf16 fastest differ between processors: on an Emerald Rapids the way that was best on
// a Zen 5 reads at 0.7 of the ceiling, and multiplies at 0.6 of the pace (docs/log/184, 185). So
// the first start on a machine tries the ways on pieces of the model's own weights, all workers
// together, and the cache folder keeps the best (way_cache.h). A table of known processors says
// where to begin, and is what small models get, that fit into caches.
//
// Passes of the ways alternate, and each counts beside the others of its round, so that others who
// use the machine, and a memory that changes its pace, disturb all ways alike; a way must be better
// by MGL_TUNE_LEAST_GAIN to be chosen over the one before. Rejected: measuring on memory of our
// own, which takes longer to make than to measure, and is not laid out as the weights are.
#ifndef MGL_DEVICE_CPU_CPU_TUNE_H
#define MGL_DEVICE_CPU_CPU_TUNE_H

#include <stdbool.h>

#include "base/simd.h"
#include "base/topology.h"
#include "device/cpu/cpu_weights.h"
#include "device/cpu/team.h"
#include "kernels/cpu/cpu_kernels.h"

enum {
  MGL_TUNE_LEAST_BYTES = 64 << 20,  // of matrices; smaller models are not measured
  MGL_TUNE_MOST_NS = 900000000,     // that measuring takes; what had no turn by then stays as known
};

#define MGL_TUNE_LEAST_GAIN 0.02

typedef struct mgl_tune_options {
  mgl_team *team;
  const mgl_topology *topology;
  mgl_simd simd;
  bool mapped;         // weights lie in a file: pages are touched before they are measured
  bool shorts;         // weights may get short rows, which are made where they must be measured
  bool again;          // measure though the cache knows
  const char *folder;  // of the cache; NULL: none
} mgl_tune_options;

typedef enum mgl_tuned {
  MGL_TUNED_KNOWN,     // from the table: the model is small
  MGL_TUNED_CACHED,    // found in the folder
  MGL_TUNED_PARTLY,    // now, until time or memory ran out: the rest is from the table
  MGL_TUNED_MEASURED,  // now, and kept if there is a folder that can be written to
} mgl_tuned;

// Never fails: without memory or time the known way is good. Called by the team's creator.
mgl_tuned mgl_cpu_tune(mgl_cpu_weights *weights, const mgl_tune_options *options,
                       mgl_linear_way *out);

// The way to begin with on a processor of that name (mgl_processor_name).
mgl_linear_way mgl_known_way(mgl_simd simd, const char *processor);

#endif
