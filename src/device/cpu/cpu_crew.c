#include "device/cpu/cpu_crew.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "device/cpu/cpu_socket.h"

enum { LOOK_MS = 20, MAGIC = 0x6d677263 };

// The first words of each process to rank 0.
typedef struct hello {
  uint32_t magic;
  uint32_t rank, count;
  uint32_t cores;
  uint64_t program[2];  // device and inode of the executable
  cpu_set_t processors;
} hello;

struct mgl_crew {
  mgl_crew_options options;
  int listens;                 // of rank 0; -1
  int sockets[MGL_MAX_RANKS];  // of rank 0: to each other; of the others: to rank 0, the first one
  pid_t processes[MGL_MAX_RANKS];
};

static uint64_t deadline_of(const mgl_crew *crew) {
  return mgl_clock_ns() + (uint64_t)crew->options.patience_ms * 1000000;
}

static void rest(void) {
  (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
}

// The abstract address: of this user, and no longer than an address may be.
static socklen_t address_of(const mgl_crew *crew, struct sockaddr_un *out) {
  char text[MGL_HASH_TEXT_BYTES];
  mgl_hash_text(mgl_hash_bytes(crew->options.meeting, strlen(crew->options.meeting)), text);
  *out = (struct sockaddr_un){.sun_family = AF_UNIX};
  int bytes = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "megalith-%u-%s",
                       (unsigned)geteuid(), text);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
}

// Whether the process at the other end is of the same user; *process: its number.
static bool is_own(int socket, pid_t *process) {
  struct ucred peer = {0};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != geteuid()) {
    return false;
  }
  *process = peer.pid;
  return true;
}

bool mgl_crew_hung_up(int socket) {
  char byte = 0;
  ssize_t got = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

uint32_t mgl_crew_rank(const mgl_crew *crew) {
  return crew->options.rank;
}

uint32_t mgl_crew_count(const mgl_crew *crew) {
  return crew->options.count;
}

int mgl_crew_take(mgl_crew *crew, uint32_t rank, pid_t *process) {
  int taken = crew->sockets[rank];
  *process = crew->processes[rank];
  crew->sockets[rank] = -1;
  return taken;
}

// --- finding each other --------------------------------------------------------------------------

static mgl_status listen_for_others(mgl_crew *crew, mgl_error *err) {
  struct sockaddr_un address;
  socklen_t bytes = address_of(crew, &address);
  crew->listens = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (crew->listens >= 0 && bind(crew->listens, (const struct sockaddr *)&address, bytes) == 0 &&
      listen(crew->listens, MGL_MAX_RANKS) == 0) {
    return MGL_OK;
  }
  if (errno == EADDRINUSE) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "rank 0 of %u: another process is rank 0 already (%s)",
                         crew->options.count, crew->options.meeting);
  }
  return mgl_error_set(err, MGL_ERR_IO, "rank 0 of %u: could not listen for the others: %s",
                       crew->options.count, strerror(errno));
}

static mgl_status connect_to_first(mgl_crew *crew, mgl_error *err) {
  struct sockaddr_un address;
  socklen_t bytes = address_of(crew, &address);
  const uint64_t deadline_ns = deadline_of(crew);
  int *own = &crew->sockets[0];
  *own = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  while (*own >= 0 && connect(*own, (const struct sockaddr *)&address, bytes) != 0) {
    const bool waits = errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
    if (waits && mgl_clock_ns() < deadline_ns) {
      rest();
    } else if (waits) {
      return mgl_error_set(err, MGL_ERR_IO,
                           "rank %u of %u: found no rank 0 on this host within %g s (%s): expected "
                           "all processes there, started with the same arguments",
                           crew->options.rank, crew->options.count,
                           crew->options.patience_ms / 1000.0, crew->options.meeting);
    } else {
      mgl_socket_close(own);
    }
  }
  if (*own < 0) {
    return mgl_error_set(err, MGL_ERR_IO, "rank %u of %u: could not reach rank 0: %s",
                         crew->options.rank, crew->options.count, strerror(errno));
  }
  return is_own(*own, &crew->processes[0])
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_IO,
                             "rank %u of %u: expected rank 0 to be of the same user (%s)",
                             crew->options.rank, crew->options.count, crew->options.meeting);
}

mgl_status mgl_crew_open(const mgl_crew_options *options, mgl_crew **out, mgl_error *err) {
  *out = NULL;
  if (options->count < 2 || options->count > MGL_MAX_RANKS || options->rank >= options->count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "rank %u of %u: expected 2 to %d ranks, numbered from 0", options->rank,
                         options->count, MGL_MAX_RANKS);
  }
  mgl_crew *crew = mgl_alloc_zeroed(1, sizeof *crew);
  if (crew == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u ranks", options->count);
  }
  crew->options = *options;
  if (options->patience_ms == 0) {
    crew->options.patience_ms = MGL_CREW_PATIENCE_MS;
  }
  crew->listens = -1;
  memset(crew->sockets, 0xff, sizeof crew->sockets);  // -1
  mgl_status status =
      options->rank == 0 ? listen_for_others(crew, err) : connect_to_first(crew, err);
  crew->options.meeting = "";  // borrowed until here
  if (status != MGL_OK) {
    mgl_crew_close(crew);
    return status;
  }
  *out = crew;
  return MGL_OK;
}

void mgl_crew_close(mgl_crew *crew) {
  if (crew == NULL) {
    return;
  }
  mgl_socket_close(&crew->listens);
  for (uint32_t rank = 0; rank < MGL_MAX_RANKS; rank++) {
    mgl_socket_close(&crew->sockets[rank]);
  }
  mgl_free(crew);
}

// --- gathering -----------------------------------------------------------------------------------

static hello own_hello(const mgl_crew *crew, uint32_t cores) {
  hello h;
  memset(&h, 0, sizeof h);
  h.magic = MAGIC;
  h.rank = crew->options.rank;
  h.count = crew->options.count;
  h.cores = cores;
  (void)sched_getaffinity(0, sizeof h.processors, &h.processors);
  struct stat program = {0};
  (void)stat("/proc/self/exe", &program);
  h.program[0] = program.st_dev;
  h.program[1] = program.st_ino;
  return h;
}

static mgl_status check_hello(const mgl_crew *crew, const hello *own, const hello *h, ssize_t bytes,
                              mgl_error *err) {
  const uint32_t count = crew->options.count;
  if (bytes != sizeof *h || h->magic != MAGIC ||
      memcmp(h->program, own->program, sizeof h->program) != 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "rank 0 of %u: expected all ranks to be of one program, found another one",
                         count);
  }
  if (h->count != count || h->rank == 0 || h->rank >= count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected ranks 1 to %u of %u, found rank %u of %u",
                         count - 1, count, h->rank, h->count);
  }
  return crew->sockets[h->rank] < 0
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT,
                             "expected each of %u ranks once, found two processes of rank %u",
                             count, h->rank);
}

// The next process that comes, with its first words. Those of other users are sent away.
static mgl_status let_in(mgl_crew *crew, uint64_t deadline_ns, const hello *own, hello *h,
                         mgl_error *err) {
  int fd = -1;
  pid_t process = 0;
  while (fd < 0) {
    fd = accept4(crew->listens, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0 && !is_own(fd, &process)) {
      mgl_socket_close(&fd);
    } else if (fd < 0 && mgl_clock_ns() >= deadline_ns) {
      uint32_t rank = 1;
      while (crew->sockets[rank] >= 0) {
        rank++;
      }
      return mgl_error_set(err, MGL_ERR_IO,
                           "expected %u ranks on this host within %g s, found no rank %u",
                           crew->options.count, crew->options.patience_ms / 1000.0, rank);
    } else if (fd < 0) {
      rest();
    }
  }
  const uint64_t now_ns = mgl_clock_ns();
  const uint64_t left_us = (deadline_ns > now_ns ? deadline_ns - now_ns : 0) / 1000 + 1000;
  const struct timeval patience = {.tv_sec = (time_t)(left_us / 1000000),
                                   .tv_usec = (suseconds_t)(left_us % 1000000)};
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ssize_t bytes = recv(fd, h, sizeof *h, 0);
  if (bytes <= 0) {
    mgl_socket_close(&fd);
    return mgl_error_set(
        err, MGL_ERR_IO,
        "one of %u ranks (process %d) has ended, or said nothing, before all began",
        crew->options.count, (int)process);
  }
  mgl_status status = check_hello(crew, own, h, bytes, err);
  if (status != MGL_OK) {
    mgl_socket_close(&fd);
    return status;
  }
  crew->sockets[h->rank] = fd;
  crew->processes[h->rank] = process;
  return MGL_OK;
}

mgl_status mgl_crew_gather(mgl_crew *crew, uint32_t cores, mgl_crew_place *out, mgl_error *err) {
  hello all[MGL_MAX_RANKS];
  all[0] = own_hello(crew, cores);
  *out = (mgl_crew_place){.least_cores = cores, .own_processors = true};
  if (crew->options.rank != 0) {
    return send(crew->sockets[0], &all[0], sizeof all[0], MSG_NOSIGNAL) == sizeof all[0]
               ? MGL_OK
               : mgl_error_set(err, MGL_ERR_IO, "rank %u of %u: rank 0 has ended before all began",
                               crew->options.rank, crew->options.count);
  }
  const uint64_t deadline_ns = deadline_of(crew);
  for (uint32_t come = 1; come < crew->options.count; come++) {
    hello h;
    MGL_TRY(let_in(crew, deadline_ns, &all[0], &h, err));
    all[h.rank] = h;
  }
  mgl_socket_close(&crew->listens);
  for (uint32_t rank = 1; rank < crew->options.count; rank++) {
    out->least_cores = all[rank].cores < out->least_cores ? all[rank].cores : out->least_cores;
    for (uint32_t other = 0; other < rank; other++) {
      cpu_set_t both;
      CPU_AND(&both, &all[rank].processors, &all[other].processors);
      out->own_processors &= CPU_COUNT(&both) == 0;
    }
  }
  return MGL_OK;
}

// --- telling -------------------------------------------------------------------------------------

mgl_status mgl_crew_tell(mgl_crew *crew, const void *data, size_t bytes, int fd, mgl_error *err) {
  assert(crew->options.rank == 0);
  for (uint32_t rank = 1; rank < crew->options.count; rank++) {
    if (!mgl_socket_send(crew->sockets[rank], data, bytes, fd)) {
      return mgl_error_set(err, MGL_ERR_IO, "rank %u of %u (process %d) has ended before all began",
                           rank, crew->options.count, (int)crew->processes[rank]);
    }
  }
  return MGL_OK;
}

mgl_status mgl_crew_hear(mgl_crew *crew, void *data, size_t bytes, int *fd, mgl_error *err) {
  if (mgl_socket_take(crew->sockets[0], data, bytes, fd)) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_IO, "rank %u of %u: rank 0 has ended before all began",
                       crew->options.rank, crew->options.count);
}
