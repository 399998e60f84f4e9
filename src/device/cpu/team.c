#include "device/cpu/team.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "twin/atomics.h"

// Spins before sleeping. One spin is a pause instruction, some 15 to 60 ns on current processors;
// the total covers the imbalance of two shares of one op, and is far below a time slice.
enum { SPIN_LIMIT = 4000 };

typedef struct team_thread {
  mgl_team *team;
  uint32_t index;
  pthread_t handle;
} team_thread;

struct mgl_team {
  const mgl_topology *topology;
  uint32_t size;
  uint32_t part, parts;  // all teams that share the machine have this size
  uint32_t started;      // threads that exist besides the caller; written before they are needed
  uint32_t spin_limit;   // 0 when there are more workers than processors
  cpu_set_t caller_affinity;
  team_thread *threads;  // [size]; entry 0 is the caller

  // Written by the caller before the barrier that starts a run, read by workers after it.
  void (*work)(void *context, uint32_t index);
  void *context;
  bool stop;

  // The barrier. `arrived` counts workers of the present generation; the last one resets it and
  // advances `generation`, on which the others wait.
  char padding_before_arrived[64];  // each on a cache line of its own
  mgl_count arrived;
  char padding_before_generation[64];
  mgl_count generation;
  mgl_count sleepers;
};

static void futex_wait(mgl_count *word, unsigned seen) {
  (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(mgl_count *word) {
  (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void mgl_team_barrier(mgl_team *team) {
  // Relaxed is enough: nobody can advance the generation before this worker has arrived.
  unsigned generation = atomic_load_explicit(&team->generation, memory_order_relaxed);
  // The last one to arrive acquires what all the others released by arriving.
  unsigned before = mgl_count_add_acq_rel(&team->arrived, 1);
  if (before + 1 == team->size) {
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    // Release, paired with the acquires of the waiters below. seq_cst, together with `sleepers`:
    // either this worker sees the sleeper, or the sleeper's futex_wait sees the new generation.
    atomic_fetch_add_explicit(&team->generation, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&team->sleepers, memory_order_seq_cst) != 0) {
      futex_wake_all(&team->generation);
    }
    return;
  }
  for (uint32_t spin = 0; spin < team->spin_limit; spin++) {
    if (mgl_count_load_acquire(&team->generation) != generation) {
      return;
    }
    mgl_relax();
  }
  atomic_fetch_add_explicit(&team->sleepers, 1, memory_order_seq_cst);
  while (atomic_load_explicit(&team->generation, memory_order_seq_cst) == generation) {
    futex_wait(&team->generation, generation);
  }
  atomic_fetch_sub_explicit(&team->sleepers, 1, memory_order_relaxed);
}

static void pin(const mgl_team *team, uint32_t index) {
  (void)mgl_topology_pin(team->topology, team->part * team->size + index, team->parts * team->size);
}

static void *thread_main(void *argument) {
  team_thread *self = argument;
  mgl_team *team = self->team;
  pin(team, self->index);
  for (;;) {
    mgl_team_barrier(team);  // a run starts
    if (team->stop) {
      return NULL;
    }
    team->work(team->context, self->index);
    mgl_team_barrier(team);  // it ends
  }
}

// Ends the threads that were started. If some could not be, those that exist still wait in their
// first barrier, which counts size workers: shrink it to those that are there.
static void stop_threads(mgl_team *team) {
  team->stop = true;
  if (team->started + 1 == team->size) {
    mgl_team_barrier(team);
  } else {
    while (mgl_count_load_acquire(&team->arrived) != team->started) {
      (void)sched_yield();
    }
    team->size = team->started + 1;
    mgl_team_barrier(team);
  }
  for (uint32_t i = 1; i <= team->started; i++) {
    (void)pthread_join(team->threads[i].handle, NULL);
  }
}

void mgl_team_destroy(mgl_team *team) {
  if (team == NULL) {
    return;
  }
  stop_threads(team);
  (void)pthread_setaffinity_np(pthread_self(), sizeof team->caller_affinity,
                               &team->caller_affinity);
  mgl_free(team->threads);
  mgl_free(team);
}

mgl_status mgl_team_check(const mgl_topology *topology, uint64_t threads, mgl_error *err) {
  if (threads > MGL_TEAM_MAX_THREADS) {
    return mgl_error_set(
        err, MGL_ERR_LIMIT, "threads: expected 1 to %d, found %llu; this machine has %u",
        MGL_TEAM_MAX_THREADS, (unsigned long long)threads, mgl_topology_threads(topology));
  }
  return MGL_OK;
}

mgl_status mgl_team_create(const mgl_topology *topology, uint64_t threads, mgl_team **out,
                           mgl_error *err) {
  return mgl_team_create_part(topology, threads, 0, 1, out, err);
}

mgl_status mgl_team_create_part(const mgl_topology *topology, uint64_t threads, uint32_t part,
                                uint32_t parts, mgl_team **out, mgl_error *err) {
  *out = NULL;
  MGL_TRY(mgl_team_check(topology, threads, err));
  uint32_t size = threads == 0 ? mgl_topology_cores(topology) : (uint32_t)threads;
  mgl_team *team = mgl_alloc_zeroed(1, sizeof *team);
  team_thread *entries = mgl_alloc_zeroed(size, sizeof *entries);
  if (team == NULL || entries == NULL) {
    mgl_free(team);
    mgl_free(entries);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u threads", size);
  }
  team->topology = topology;
  team->size = size;
  team->part = part;
  team->parts = parts;
  team->spin_limit = (uint64_t)size * parts <= mgl_topology_threads(topology) ? SPIN_LIMIT : 0;
  team->threads = entries;
  if (pthread_getaffinity_np(pthread_self(), sizeof team->caller_affinity,
                             &team->caller_affinity) != 0) {
    CPU_ZERO(&team->caller_affinity);
  }
  for (uint32_t i = 1; i < size; i++) {
    entries[i] = (team_thread){.team = team, .index = i};
    int code = pthread_create(&entries[i].handle, NULL, thread_main, &entries[i]);
    if (code != 0) {
      mgl_team_destroy(team);
      return mgl_error_set(err, MGL_ERR_MEMORY, "could not start thread %u of %u: %s", i + 1, size,
                           strerror(code));
    }
    team->started = i;
  }
  pin(team, 0);
  *out = team;
  return MGL_OK;
}

uint32_t mgl_team_size(const mgl_team *team) {
  return team->size;
}

bool mgl_team_crowded(const mgl_team *team) {
  return team->spin_limit == 0;
}

void mgl_team_run(mgl_team *team, void (*work)(void *context, uint32_t index), void *context) {
  team->work = work;
  team->context = context;
  mgl_team_barrier(team);
  work(context, 0);
  mgl_team_barrier(team);
}

void mgl_team_share(uint32_t index, uint32_t size, size_t units, size_t grain, size_t *begin,
                    size_t *end) {
  size_t grains = (units + grain - 1) / grain;
  *begin = grains * index / size * grain;
  *end = grains * (index + 1) / size * grain;
  *end = *end < units ? *end : units;
  *begin = *begin < *end ? *begin : *end;
}
