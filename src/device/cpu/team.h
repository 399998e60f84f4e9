// A team of pinned threads that runs one function together, with barriers inside.
//
// The creating thread is worker 0 and takes part in every run, so a team of one has no other
// thread. Waiting escalates: spin for some microseconds (only where every worker has a processor of
// its own), then sleep in the kernel. So an idle team costs nothing, and more workers than
// processors do not collapse. All functions but mgl_team_barrier are called by the creating thread
// only.
#ifndef MGL_DEVICE_CPU_TEAM_H
#define MGL_DEVICE_CPU_TEAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/topology.h"

enum { MGL_TEAM_MAX_THREADS = 1024 };

typedef struct mgl_team mgl_team;

// Whether a team of so many workers is refused.
mgl_status mgl_team_check(const mgl_topology *topology, uint64_t threads, mgl_error *err);

// Starts `threads` workers (0: one per physical core). Refuses more than MGL_TEAM_MAX_THREADS.
// The calling thread is pinned as worker 0 until the team is destroyed.
mgl_status mgl_team_create(const mgl_topology *topology, uint64_t threads, mgl_team **out,
                           mgl_error *err);
// The same for team `part` of `parts` of one size, each of which has processors of its own.
mgl_status mgl_team_create_part(const mgl_topology *topology, uint64_t threads, uint32_t part,
                                uint32_t parts, mgl_team **out, mgl_error *err);
void mgl_team_destroy(mgl_team *team);  // NULL is fine

uint32_t mgl_team_size(const mgl_team *team);

// True if there are more workers than processors, so that spinning takes time from other workers.
bool mgl_team_crowded(const mgl_team *team);

// Runs work(context, index) once on every worker and returns when all have returned. What the
// caller wrote before is visible to the workers, and what they wrote is visible to the caller
// after.
void mgl_team_run(mgl_team *team, void (*work)(void *context, uint32_t index), void *context);

// Inside a run: returns once every worker has called it. Orders all memory accesses before it, on
// any worker, before all accesses after it.
void mgl_team_barrier(mgl_team *team);

// The share [*begin, *end) of worker `index` in `units`, cut at multiples of `grain`.
void mgl_team_share(uint32_t index, uint32_t size, size_t units, size_t grain, size_t *begin,
                    size_t *end);

#endif
