// Counting what experts have to do, on the CPU; and routers of dummy weights that are not uniform.
#ifndef MGL_DEVICE_CPU_CPU_LOADS_H
#define MGL_DEVICE_CPU_CPU_LOADS_H

#include "base/status.h"
#include "device/cpu/cpu_weights.h"
#include "device/expert_loads.h"
#include "graph/graph.h"
#include "twin/atomics.h"

typedef struct mgl_cpu_load mgl_cpu_load;

// Of a program that weights were bound for.
typedef struct mgl_cpu_loads {
  mgl_cpu_load *loads;  // [count], one for each mixture
  uint32_t count;
} mgl_cpu_loads;

mgl_status mgl_cpu_loads_create(const mgl_cpu_weights *weights, mgl_cpu_loads *out, mgl_error *err);
void mgl_cpu_loads_destroy(mgl_cpu_loads *loads);

// Notes an iteration of the mixture whose gate matrices are these (as bound): rows of expert e are
// [first[e], first[e + 1]). Called once for each iteration and mixture, by any thread.
void mgl_cpu_loads_note(const mgl_cpu_loads *loads, const void *gate, const uint32_t *first);

// Any thread may ask.
void mgl_cpu_loads_read(const mgl_cpu_loads *loads, mgl_expert_loads *out);

// Changes the routers of dummy weights, which must be plain.
void mgl_cpu_route_dummies(const mgl_cpu_weights *weights, mgl_routing routing);
// The same of one router, plain rows [experts, columns].
void mgl_cpu_route_dummy_rows(mgl_routing routing, mgl_dtype dtype, uint32_t experts,
                              uint32_t columns, void *rows);

#endif
