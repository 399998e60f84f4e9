// Ranks of one model on the CPU: processes that share memory, and how rank 0 leads them.
//
// Rank 0 makes one anonymous shared mapping and forks the others before any of its threads exist,
// so all have it at the same address, it has no name that could be left behind, and it goes with
// the last of them. In it lie, of fixed layout: the command of rank 0 with its sequence number, the
// plan that belongs to it, and for each rank how many commands it is done with, a counter that says
// that it lives, what it died of, its place to sleep (cpu_wait.h), its counters of events and its
// activations. Exchanges of results need none of this: they are tasks (twin/protocol.h).
//
//   rank 0:   post RUN, then PLAN after PLAN, then END of the run ...; QUIT at last
//   others:   take a command, do it; their next take says that they are done with it
// A post waits until all are done with the command before. So when rank 0 posts a plan, all ranks
// have ended the iteration before, and nobody's parts are written over while somebody reads them.
//
// Faults. A thread of rank 0 sees within a fraction of a second that a rank has died, or gives no
// sign of life for MGL_RANK_SILENT_MS; it ends all others, and says why. The others end by
// themselves when rank 0 dies (PR_SET_PDEATHSIG, or the end of the socket to it) or falls silent.
#ifndef MGL_DEVICE_CPU_CPU_RANKS_H
#define MGL_DEVICE_CPU_CPU_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "batch/plan.h"
#include "device/cpu/cpu_crew.h"
#include "twin/atomics.h"

enum {
  MGL_RANK_SILENT_MS = 1000,
  MGL_RANK_HANG_MS = 1000,  // of a task that computes and never ends (cpu_watchdog.c)
};

typedef enum mgl_rank_command {
  MGL_RANK_NONE,  // the ranks have failed
  MGL_RANK_RUN,   // begin a run of the megakernel
  MGL_RANK_PLAN,  // run the iteration of the plan
  MGL_RANK_END,   // of the run
  MGL_RANK_QUIT,
} mgl_rank_command;

typedef struct mgl_ranks_options {
  uint32_t count;           // 2 to MGL_MAX_RANKS
  mgl_plan_limits limits;   // of plans
  uint32_t logit_rows;      // most of a plan
  size_t activation_bytes;  // of a rank
  uint64_t counters;        // of a rank
  size_t block_bytes;       // that all share, zeros at first; what is not touched takes no memory
  mgl_crew *crew;           // processes that are there already, gathered; NULL: they are forked
  bool crowded;             // all have more threads together than there are processors
} mgl_ranks_options;

typedef struct mgl_ranks mgl_ranks;

// Makes the mapping and the processes; returns in every one of them. Each process of a crew calls
// it; one whose options come to another layout than rank 0's ends, and says so there. The calling
// thread must live as long as the ranks that it has forked. Other threads of its process, which the
// new ones have not, only wait then.
mgl_status mgl_ranks_start(const mgl_ranks_options *options, mgl_ranks **out, mgl_error *err);
// Of rank 0: lets the others quit, and waits for their ends. NULL is fine.
void mgl_ranks_stop(mgl_ranks *ranks);
// Of the others: ends the process, and tells rank 0 of the error, if that is one.
_Noreturn void mgl_ranks_leave(mgl_ranks *ranks, const mgl_error *err);

uint32_t mgl_ranks_rank(const mgl_ranks *ranks);  // of this process
uint32_t mgl_ranks_count(const mgl_ranks *ranks);
mgl_word *mgl_ranks_counters(const mgl_ranks *ranks, uint32_t rank);
unsigned char *mgl_ranks_activations(const mgl_ranks *ranks, uint32_t rank);

void *mgl_ranks_block(const mgl_ranks *ranks);

// Waits for all ranks, each of which calls it as often as the others; *least becomes the smallest
// of their values. Fails as a post does.
mgl_status mgl_ranks_meet(mgl_ranks *ranks, uint64_t value, uint64_t *least, mgl_error *err);
// Of all ranks: hands a file descriptor to the others. fds[rank] are theirs, for the caller to
// close; the own one is among them.
mgl_status mgl_ranks_pass(mgl_ranks *ranks, int fd, int fds[MGL_MAX_RANKS], mgl_error *err);
// MGL_OK, or what a post would fail with.
mgl_status mgl_ranks_check(const mgl_ranks *ranks, mgl_error *err);

// on_fault is called once on another thread when the ranks fail; NULL: nobody listens any more.
void mgl_ranks_listen(mgl_ranks *ranks, void (*on_fault)(void *context, const char *why),
                      void *context);

// Of rank 0. Waits until all are done with the command before; the plan is copied. Fails with
// MGL_ERR_INTERNAL, now and ever after, once a rank has died or fallen silent.
mgl_status mgl_ranks_post(mgl_ranks *ranks, mgl_rank_command command, const mgl_plan *plan,
                          mgl_error *err);
// Of rank 0: waits until all others are done with the command before, as a post does.
mgl_status mgl_ranks_wait(mgl_ranks *ranks, mgl_error *err);
// Of rank 0, whose run has failed: the others are ended, and posts fail.
void mgl_ranks_abandon(mgl_ranks *ranks);
// Of the others. *plan stays valid until the next call.
mgl_rank_command mgl_ranks_take(mgl_ranks *ranks, const mgl_plan **plan);

#endif
