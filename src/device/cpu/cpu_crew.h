// Processes of one host that somebody else has started, before they are the ranks of a model.
//
// mpirun, srun and torchrun start all processes alike. These find each other by a name that they
// have in common: rank 0 listens at a Unix socket of that name in the abstract namespace, of which
// nothing can be left behind, and the others connect. Over the sockets rank 0 learns which
// processors each may use, says what all shall build (engine/device_cpu.c), and hands out the
// memory that they share (cpu_ranks.h). Later the end of a socket tells that a process has ended:
// neither is the other's parent. Processes of other users are not let in.
#ifndef MGL_DEVICE_CPU_CPU_CREW_H
#define MGL_DEVICE_CPU_CPU_CREW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/limits.h"
#include "base/status.h"

enum { MGL_CREW_PATIENCE_MS = 60 * 1000 };  // that processes have to come in

typedef struct mgl_crew_options {
  uint32_t rank, count;  // rank < count, 2 to MGL_MAX_RANKS
  const char *meeting;   // the same text for all, another one for whoever else runs on the host
  uint32_t patience_ms;  // 0: MGL_CREW_PATIENCE_MS
} mgl_crew_options;

// What rank 0 knows of all.
typedef struct mgl_crew_place {
  uint32_t least_cores;  // of those that each may use
  bool own_processors;   // each has others than the rest, as launchers bind them; else all the same
} mgl_crew_place;

typedef struct mgl_crew mgl_crew;

// Rank 0 listens from now on; the others wait for it.
mgl_status mgl_crew_open(const mgl_crew_options *options, mgl_crew **out, mgl_error *err);
void mgl_crew_close(mgl_crew *crew);  // NULL is fine

uint32_t mgl_crew_rank(const mgl_crew *crew);
uint32_t mgl_crew_count(const mgl_crew *crew);

// All call it, once; rank 0 waits for the others, and *out is for rank 0 alone. Processes of
// another version are refused, and a rank that comes twice.
mgl_status mgl_crew_gather(mgl_crew *crew, uint32_t cores, mgl_crew_place *out, mgl_error *err);

// Rank 0 tells the others something, with a file descriptor unless fd is -1; each of them hears it.
// *fd is the caller's.
mgl_status mgl_crew_tell(mgl_crew *crew, const void *data, size_t bytes, int fd, mgl_error *err);
mgl_status mgl_crew_hear(mgl_crew *crew, void *data, size_t bytes, int *fd, mgl_error *err);

// The socket to another rank, of which the caller becomes the owner, and its process; 0: not known.
int mgl_crew_take(mgl_crew *crew, uint32_t rank, pid_t *process);
// Whether the process at the other end has closed the socket, or has ended.
bool mgl_crew_hung_up(int socket);

#endif
