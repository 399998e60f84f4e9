#include "device/cpu/cpu_ranks.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "device/cpu/cpu_socket.h"
#include "device/cpu/cpu_wait.h"

enum {
  LOOK_MS = 20,  // between two looks at the others
  SILENT_LOOKS =
      MGL_RANK_SILENT_MS / LOOK_MS,  // own looks: a machine that stands still is no fault
  QUIT_LOOKS = 100,                  // that a rank has to quit in
  ALIGNMENT = 4096,
  PLAN_ARRAYS = 8,
  PASS_SECONDS = 600,  // that a rank may need until it has what it passes: it compiles code before
};

// What one rank writes.
typedef struct rank_words {
  _Alignas(64) mgl_word done;        // commands that it is done with
  _Alignas(64) mgl_word beats;       // signs of life
  mgl_wait_place place;              // where it sleeps; others wake it
  mgl_word meetings;                 // that it has come to
  uint64_t values[2];                // [n & 1] that it has brought to meeting n
  char error[MGL_ERROR_TEXT_BYTES];  // before it ends with a status that is not 0
} rank_words;

// What rank 0 writes: before it releases `posted`.
typedef struct ranks_shared {
  _Alignas(64) mgl_word posted;  // commands
  uint32_t command;
  uint32_t token_count, sequence_count, logit_row_count, attention_item_count;
  rank_words ranks[MGL_MAX_RANKS];
} ranks_shared;

struct mgl_ranks {
  mgl_ranks_options options;
  uint32_t rank;
  ranks_shared *shared;
  size_t bytes;  // of the mapping
  size_t plan_at[PLAN_ARRAYS + 1];
  size_t counters_at, activations_at;  // of rank 0; the others' behind it, so many bytes apart:
  size_t counters_step, activations_step;
  size_t block_at;
  mgl_wait_place *places[MGL_MAX_RANKS];
  mgl_plan plan;  // of the others: its arrays lie in the mapping

  // A thread that looks at the others, and shows them that this one lives.
  pthread_t watcher;
  bool watches;
  mgl_word quits;              // it shall end
  mgl_word abandoned;          // rank 0's run has failed
  mgl_word failed;             // a rank has died or is silent: `why` is written
  pid_t pids[MGL_MAX_RANKS];   // of rank 0; 0: it has ended, or of a crew, is not known
  int sockets[MGL_MAX_RANKS];  // of rank 0: to each other; of the others: to rank 0, the first one
  char why[MGL_ERROR_TEXT_BYTES];
  pthread_mutex_t lock;  // of the two below
  void (*on_fault)(void *context, const char *why);
  void *context;
};

// --- layout --------------------------------------------------------------------------------------

// The arrays of a plan that tasks read, and their bytes.
typedef struct plan_array {
  void **data;
  size_t bytes;
} plan_array;

static void list_arrays(mgl_plan *plan, uint32_t tokens, uint32_t sequences, uint32_t rows,
                        uint32_t items, plan_array out[PLAN_ARRAYS]) {
  const size_t word = sizeof(uint32_t);
  const plan_array arrays[PLAN_ARRAYS] = {
      {(void **)&plan->tokens, tokens * word},
      {(void **)&plan->positions, tokens * word},
      {(void **)&plan->slots, tokens * word},
      {(void **)&plan->rope_lengths, tokens * word},
      {(void **)&plan->query_start, ((size_t)sequences + 1) * word},
      {(void **)&plan->block_tables, (size_t)sequences * plan->limits.pages_per_sequence * word},
      {(void **)&plan->logit_rows, rows * word},
      {(void **)&plan->attention_items, items * sizeof *plan->attention_items}};
  memcpy(out, arrays, sizeof arrays);
}

static size_t aligned(size_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void lay_out(mgl_ranks *r) {
  const mgl_ranks_options *o = &r->options;
  plan_array arrays[PLAN_ARRAYS];
  r->plan.limits = o->limits;
  list_arrays(&r->plan, o->limits.tokens, o->limits.sequences, o->logit_rows, o->limits.tokens,
              arrays);
  size_t at = aligned(sizeof *r->shared);
  for (int i = 0; i < PLAN_ARRAYS; i++) {
    r->plan_at[i] = at;
    at += aligned(arrays[i].bytes);
  }
  r->plan_at[PLAN_ARRAYS] = at;
  r->counters_at = at;
  r->counters_step = aligned(o->counters * sizeof(mgl_word));
  r->activations_at = at + r->counters_step * o->count;
  r->activations_step = aligned(o->activation_bytes);
  r->block_at = r->activations_at + r->activations_step * o->count;
  r->bytes = r->block_at + aligned(o->block_bytes);
}

static void *at_of(const mgl_ranks *r, size_t offset) {
  return (unsigned char *)r->shared + offset;
}

mgl_word *mgl_ranks_counters(const mgl_ranks *r, uint32_t rank) {
  return at_of(r, r->counters_at + rank * r->counters_step);
}

unsigned char *mgl_ranks_activations(const mgl_ranks *r, uint32_t rank) {
  return at_of(r, r->activations_at + rank * r->activations_step);
}

uint32_t mgl_ranks_count(const mgl_ranks *r) {
  return r->options.count;
}

void *mgl_ranks_block(const mgl_ranks *r) {
  return at_of(r, r->block_at);
}

uint32_t mgl_ranks_rank(const mgl_ranks *r) {
  return r->rank;
}

void mgl_ranks_listen(mgl_ranks *r, void (*on_fault)(void *, const char *), void *context) {
  (void)pthread_mutex_lock(&r->lock);
  r->on_fault = on_fault;
  r->context = context;
  (void)pthread_mutex_unlock(&r->lock);
}

// --- looking at each other -----------------------------------------------------------------------

static void rest(void) {
  const struct timespec time = {.tv_nsec = LOOK_MS * 1000000L};
  (void)nanosleep(&time, NULL);
}

// Of a crew its open socket says that a rank lives: it is nobody's child here.
static bool is_running(const mgl_ranks *r, uint32_t rank) {
  return r->options.crew != NULL ? r->sockets[rank] >= 0 : r->pids[rank] != 0;
}

// Whether it has ended just now; *status as waitpid has it, 0 of a crew.
static bool take_end(mgl_ranks *r, uint32_t rank, int *status) {
  *status = 0;
  if (!is_running(r, rank)) {
    return false;
  }
  const bool ended = r->options.crew != NULL
                         ? mgl_crew_hung_up(r->sockets[rank])
                         : waitpid(r->pids[rank], status, WNOHANG) == r->pids[rank];
  if (ended) {
    r->pids[rank] = 0;
    if (r->options.crew != NULL) {
      mgl_socket_close(&r->sockets[rank]);
    }
  }
  return ended;
}

// False if some still run after that long.
static bool await_ends(mgl_ranks *r) {
  bool left = true;
  for (int look = 0; left && look < QUIT_LOOKS; look++) {
    left = false;
    for (uint32_t rank = 1; rank < r->options.count; rank++) {
      int ignored = 0;
      (void)take_end(r, rank, &ignored);
      left |= is_running(r, rank);
    }
    if (left) {
      rest();
    }
  }
  return !left;
}

static void end_all(mgl_ranks *r) {
  for (uint32_t rank = 1; rank < r->options.count; rank++) {
    int ignored = 0;
    if (is_running(r, rank) && !take_end(r, rank, &ignored) && r->pids[rank] > 0) {
      (void)kill(r->pids[rank], SIGKILL);
    }
    while (r->options.crew == NULL && r->pids[rank] != 0) {
      if (waitpid(r->pids[rank], NULL, 0) >= 0 || errno != EINTR) {
        r->pids[rank] = 0;
      }
    }
  }
  (void)await_ends(r);
}

static void fail(mgl_ranks *r) {
  end_all(r);
  // Release, paired with the acquire in mgl_ranks_post: `why` is visible.
  mgl_store_release(&r->failed, 1);
  mgl_notify();
  (void)pthread_mutex_lock(&r->lock);
  if (r->on_fault != NULL) {
    r->on_fault(r->context, r->why);
  }
  (void)pthread_mutex_unlock(&r->lock);
}

// False once a rank has ended, and why.
static bool look_for_ends(mgl_ranks *r) {
  for (uint32_t rank = 1; rank < r->options.count; rank++) {
    int status = 0;
    if (!take_end(r, rank, &status)) {
      continue;
    }
    char *error = r->shared->ranks[rank].error;
    error[sizeof r->shared->ranks[rank].error - 1] = 0;
    if (WIFSIGNALED(status)) {
      (void)snprintf(r->why, sizeof r->why, "rank %u of %u was ended by signal %d (%s)", rank,
                     r->options.count, WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
      (void)snprintf(r->why, sizeof r->why, "rank %u of %u ended: %.400s", rank, r->options.count,
                     error[0] != 0 ? error : "without a message");
    }
    return false;
  }
  return true;
}

// Counts the looks since a rank's last sign of life.
static bool is_silent(const mgl_ranks *r, uint32_t rank, uint64_t *seen, uint32_t *looks) {
  uint64_t beats = mgl_load_relaxed(&r->shared->ranks[rank].beats);
  *looks = beats == *seen ? *looks + 1 : 0;
  *seen = beats;
  return *looks >= SILENT_LOOKS;
}

static void *watch_others(void *argument) {
  mgl_ranks *r = argument;
  uint64_t seen[MGL_MAX_RANKS] = {0};
  uint32_t looks[MGL_MAX_RANKS] = {0};
  mgl_word *own = &r->shared->ranks[0].beats;
  while (mgl_load_acquire(&r->quits) == 0) {
    mgl_store_relaxed(own, mgl_load_relaxed(own) + 1);
    bool fine = look_for_ends(r);
    if (fine && mgl_load_relaxed(&r->abandoned) != 0) {
      (void)snprintf(r->why, sizeof r->why, "a run of the %u ranks has failed before",
                     r->options.count);
      fine = false;
    }
    for (uint32_t rank = 1; fine && rank < r->options.count; rank++) {
      if (is_silent(r, rank, &seen[rank], &looks[rank])) {
        (void)snprintf(r->why, sizeof r->why, "rank %u of %u gave no sign of life for %g s", rank,
                       r->options.count, MGL_RANK_SILENT_MS / 1000.0);
        fine = false;
      }
    }
    if (!fine) {
      fail(r);
      return NULL;
    }
    rest();
  }
  return NULL;
}

static void *watch_first(void *argument) {
  mgl_ranks *r = argument;
  uint64_t seen = 0;
  uint32_t looks = 0;
  mgl_word *own = &r->shared->ranks[r->rank].beats;
  for (;;) {
    mgl_store_relaxed(own, mgl_load_relaxed(own) + 1);
    const bool ended = r->options.crew != NULL && mgl_crew_hung_up(r->sockets[0]);
    const bool silent = is_silent(r, 0, &seen, &looks);
    if (silent) {  // rank 0 may only have been stopped, and tells this when it goes on
      rank_words *words = &r->shared->ranks[r->rank];
      (void)snprintf(words->error, sizeof words->error, "rank 0 gave no sign of life for %g s",
                     MGL_RANK_SILENT_MS / 1000.0);
    }
    if (ended || silent) {
      _exit(1);
    }
    rest();
  }
}

static mgl_status start_watcher(mgl_ranks *r, mgl_error *err) {
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);  // signals are for the thread that made this one
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = pthread_create(&r->watcher, NULL, r->rank == 0 ? watch_others : watch_first, r);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  r->watches = code == 0;
  return code == 0
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "could not start a thread: %s", strerror(code));
}

// --- beginning and end ---------------------------------------------------------------------------

// What the others have in common.
static void serve_rank0(mgl_ranks *r, uint32_t rank) {
  r->rank = rank;
  (void)signal(SIGINT, SIG_IGN);  // of a terminal, or to a whole group: rank 0 decides
  (void)signal(SIGTERM, SIG_IGN);
  plan_array arrays[PLAN_ARRAYS];
  list_arrays(&r->plan, 0, 0, 0, 0, arrays);
  for (int i = 0; i < PLAN_ARRAYS; i++) {
    *arrays[i].data = at_of(r, r->plan_at[i]);
  }
}

// Keeps `mine`, the end of the rank's socket; those to ranks before it were inherited.
static void become(mgl_ranks *r, uint32_t rank, int mine, pid_t parent) {
  for (uint32_t other = 0; other < MGL_MAX_RANKS; other++) {
    mgl_socket_close(&r->sockets[other]);
  }
  r->sockets[0] = mine;
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(1);  // it died before it could be told to us
  }
  serve_rank0(r, rank);
}

static void destroy(mgl_ranks *r) {
  mgl_wait_share(NULL, 0);
  for (uint32_t rank = 0; rank < MGL_MAX_RANKS; rank++) {
    mgl_socket_close(&r->sockets[rank]);
  }
  if (r->shared != NULL) {
    (void)munmap(r->shared, r->bytes);
  }
  (void)pthread_mutex_destroy(&r->lock);
  mgl_free(r);
}

// fd: -1, or of the file that is mapped.
static mgl_status map_shared(mgl_ranks *r, int fd, mgl_error *err) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
  void *shared = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (shared == MAP_FAILED) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "could not map %zu bytes for %u ranks: %s", r->bytes,
                         r->options.count, strerror(errno));
  }
  r->shared = shared;
  return MGL_OK;
}

static mgl_status fork_others(mgl_ranks *r, mgl_error *err) {
  const pid_t parent = getpid();
  MGL_TRY(map_shared(r, -1, err));
  (void)fflush(NULL);  // or the others would have what is not written yet
  for (uint32_t rank = 1; rank < r->options.count; rank++) {
    int pair[2] = {-1, -1};
    pid_t pid = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0 ? fork() : -1;
    if (pid == 0) {
      mgl_socket_close(&pair[0]);
      become(r, rank, pair[1], parent);
      return MGL_OK;
    }
    mgl_socket_close(&pair[1]);
    r->sockets[rank] = pair[0];
    if (pid < 0) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "could not start rank %u: %s", rank,
                           strerror(errno));
    }
    r->pids[rank] = pid;
  }
  return MGL_OK;
}

// Until each of a crew has given a sign of life, from when on it is looked at; or has ended.
static mgl_status await_crew(mgl_ranks *r, mgl_error *err) {
  const uint32_t most_looks = MGL_CREW_PATIENCE_MS / LOOK_MS;
  for (uint32_t rank = 1; rank < r->options.count; rank++) {
    uint32_t looks = 0;
    while (mgl_load_relaxed(&r->shared->ranks[rank].beats) == 0 && looks++ < most_looks &&
           !mgl_crew_hung_up(r->sockets[rank])) {
      rest();
    }
    if (looks > most_looks) {
      return mgl_error_set(err, MGL_ERR_IO, "rank %u of %u did not begin within %g s", rank,
                           r->options.count, MGL_CREW_PATIENCE_MS / 1000.0);
    }
  }
  return MGL_OK;
}

// Of rank 0: gives the memory to the crew.
static mgl_status lead_crew(mgl_ranks *r, mgl_error *err) {
  mgl_crew *crew = r->options.crew;
  int fd = memfd_create("megalith-ranks", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)r->bytes) != 0) {
    mgl_status status =
        mgl_error_set(err, MGL_ERR_MEMORY, "could not make %zu bytes for %u ranks: %s", r->bytes,
                      r->options.count, strerror(errno));
    mgl_socket_close(&fd);
    return status;
  }
  mgl_status status = map_shared(r, fd, err);
  if (status == MGL_OK) {
    status = mgl_crew_tell(crew, &r->options, sizeof r->options, fd, err);
  }
  (void)close(fd);
  for (uint32_t rank = 1; status == MGL_OK && rank < r->options.count; rank++) {
    r->sockets[rank] = mgl_crew_take(crew, rank, &r->pids[rank]);
  }
  return status == MGL_OK ? await_crew(r, err) : status;
}

// Of the others: *differs tells that the own options come to another layout than rank 0's.
static mgl_status join_crew(mgl_ranks *r, bool *differs, mgl_error *err) {
  mgl_crew *crew = r->options.crew;
  mgl_ranks_options first;
  int fd = -1;
  const size_t own_bytes = r->bytes, own_activations = r->activations_step;
  MGL_TRY(mgl_crew_hear(crew, &first, sizeof first, &fd, err));
  r->options = first;
  r->options.crew = crew;
  lay_out(r);
  *differs = r->bytes != own_bytes || r->activations_step != own_activations;
  struct stat file = {0};
  const bool fits = fd >= 0 && fstat(fd, &file) == 0 && (size_t)file.st_size == r->bytes;
  mgl_status status = fits
                          ? map_shared(r, fd, err)
                          : mgl_error_set(err, MGL_ERR_IO, "rank %u of %u: got no memory of rank 0",
                                          mgl_crew_rank(crew), first.count);
  mgl_socket_close(&fd);
  MGL_TRY(status);
  r->sockets[0] = mgl_crew_take(crew, 0, &r->pids[0]);
  serve_rank0(r, mgl_crew_rank(crew));
  return MGL_OK;
}

// Makes the mapping and finds or makes the processes.
static mgl_status assemble(mgl_ranks *r, bool *differs, mgl_error *err) {
  return r->options.crew == NULL               ? fork_others(r, err)
         : mgl_crew_rank(r->options.crew) == 0 ? lead_crew(r, err)
                                               : join_crew(r, differs, err);
}

mgl_status mgl_ranks_start(const mgl_ranks_options *options, mgl_ranks **out, mgl_error *err) {
  assert(options->count >= 2 && options->count <= MGL_MAX_RANKS);
  bool differs = false;
  *out = NULL;
  mgl_ranks *r = mgl_alloc_zeroed(1, sizeof *r);
  if (r == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u ranks", options->count);
  }
  r->options = *options;
  (void)pthread_mutex_init(&r->lock, NULL);
  memset(r->sockets, 0xff, sizeof r->sockets);  // -1
  lay_out(r);
  mgl_status status = assemble(r, &differs, err);
  if (status == MGL_OK) {
    for (uint32_t rank = 0; rank < options->count; rank++) {
      r->places[rank] = &r->shared->ranks[rank].place;
    }
    mgl_wait_share(r->places, r->rank);
    if (differs) {
      (void)mgl_error_set(err, MGL_ERR_ARGUMENT,
                          "expected all ranks to have the same model and arguments, found others");
      mgl_ranks_leave(r, err);
    }
    status = start_watcher(r, err);
  }
  if (status != MGL_OK && r->rank != 0) {
    mgl_ranks_leave(r, err);
  }
  if (status != MGL_OK) {
    end_all(r);
    destroy(r);
    return status;
  }
  *out = r;
  return MGL_OK;
}

void mgl_ranks_stop(mgl_ranks *r) {
  if (r == NULL) {
    return;
  }
  mgl_error ignored = {0};
  bool fine = mgl_ranks_post(r, MGL_RANK_QUIT, NULL, &ignored) == MGL_OK;
  mgl_store_release(&r->quits, 1);
  (void)pthread_join(r->watcher, NULL);
  if (fine) {
    (void)await_ends(r);
  }
  end_all(r);
  destroy(r);
}

void mgl_ranks_leave(mgl_ranks *r, const mgl_error *err) {
  if (err != NULL && err->status != MGL_OK) {
    (void)snprintf(r->shared->ranks[r->rank].error, sizeof r->shared->ranks[r->rank].error, "%s",
                   err->text);
    _exit(1);
  }
  _exit(0);
}

// --- commands ------------------------------------------------------------------------------------

typedef bool ready_function(const mgl_ranks *r);

// Rank 0 waits for this: the others are done with all commands, or have failed.
static bool all_are_done(const mgl_ranks *r) {
  bool done = true;
  for (uint32_t rank = 1; rank < r->options.count; rank++) {
    // Acquire, paired with the release in mgl_ranks_take: what they computed is visible.
    done &=
        mgl_load_acquire(&r->shared->ranks[rank].done) == mgl_load_relaxed(&r->shared->posted) + 1;
  }
  return done || mgl_load_acquire(&r->failed) != 0;
}

static bool is_posted(const mgl_ranks *r) {
  // Acquire, paired with the release in mgl_ranks_post: command and plan are visible.
  return mgl_load_acquire(&r->shared->posted) == mgl_load_relaxed(&r->shared->ranks[r->rank].done);
}

static void wait_until(const mgl_ranks *r, ready_function *ready) {
  mgl_backoff backoff = mgl_backoff_start(r->options.crowded);
  while (!ready(r)) {
    if (mgl_backoff_turn(&backoff)) {
      continue;
    }
    mgl_sleep_ticket ticket = mgl_sleep_prepare();
    if (ready(r)) {
      mgl_sleep_cancel();
      return;
    }
    mgl_sleep(ticket);
    backoff = mgl_backoff_start(r->options.crowded);
  }
}

mgl_status mgl_ranks_check(const mgl_ranks *r, mgl_error *err) {
  return mgl_load_acquire(&r->failed) == 0 ? MGL_OK
                                           : mgl_error_set(err, MGL_ERR_INTERNAL, "%s", r->why);
}

mgl_status mgl_ranks_wait(mgl_ranks *r, mgl_error *err) {
  wait_until(r, all_are_done);
  return mgl_ranks_check(r, err);
}

mgl_status mgl_ranks_post(mgl_ranks *r, mgl_rank_command command, const mgl_plan *plan,
                          mgl_error *err) {
  assert(r->rank == 0);
  MGL_TRY(mgl_ranks_wait(r, err));
  ranks_shared *s = r->shared;
  s->command = command;
  if (plan != NULL) {
    mgl_plan copy = *plan;
    plan_array arrays[PLAN_ARRAYS];
    list_arrays(&copy, plan->token_count, plan->sequence_count, plan->logit_row_count,
                plan->attention_item_count, arrays);
    for (int i = 0; i < PLAN_ARRAYS; i++) {
      assert(arrays[i].bytes <= r->plan_at[i + 1] - r->plan_at[i]);
      memcpy(at_of(r, r->plan_at[i]), *arrays[i].data, arrays[i].bytes);
    }
    s->token_count = plan->token_count;
    s->sequence_count = plan->sequence_count;
    s->logit_row_count = plan->logit_row_count;
    s->attention_item_count = plan->attention_item_count;
  }
  mgl_store_release(&s->posted, mgl_load_relaxed(&s->posted) + 1);
  for (uint32_t rank = 1; rank < r->options.count; rank++) {
    mgl_notify_rank(rank);
  }
  return MGL_OK;
}

void mgl_ranks_abandon(mgl_ranks *r) {
  mgl_store_relaxed(&r->abandoned, 1);
}

mgl_rank_command mgl_ranks_take(mgl_ranks *r, const mgl_plan **plan) {
  ranks_shared *s = r->shared;
  mgl_word *done = &s->ranks[r->rank].done;
  mgl_store_release(done, mgl_load_relaxed(done) + 1);
  mgl_notify_rank(0);
  wait_until(r, is_posted);
  r->plan.token_count = s->token_count;
  r->plan.sequence_count = s->sequence_count;
  r->plan.logit_row_count = s->logit_row_count;
  r->plan.attention_item_count = s->attention_item_count;
  *plan = &r->plan;
  return (mgl_rank_command)s->command;
}

// --- meeting -------------------------------------------------------------------------------------

mgl_status mgl_ranks_meet(mgl_ranks *r, uint64_t value, uint64_t *least, mgl_error *err) {
  rank_words *own = &r->shared->ranks[r->rank];
  const uint64_t meeting = mgl_load_relaxed(&own->meetings);
  own->values[meeting & 1] = value;  // which all have read when they came to the one before this
  mgl_store_release(&own->meetings, meeting + 1);
  *least = value;
  for (uint32_t rank = 0; rank < r->options.count; rank++) {
    rank_words *other = &r->shared->ranks[rank];
    // Acquire, paired with the release above: what it did before, and its value, are visible.
    while (mgl_load_acquire(&other->meetings) <= meeting) {
      MGL_TRY(mgl_ranks_check(r, err));
      (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL);
    }
    *least = other->values[meeting & 1] < *least ? other->values[meeting & 1] : *least;
  }
  return MGL_OK;
}

// --- file descriptors ----------------------------------------------------------------------------

static bool send_fd(int socket, int fd) {
  const char byte = 0;
  return mgl_socket_send(socket, &byte, sizeof byte, fd);
}

static int take_fd(int socket) {
  char byte = 0;
  int fd = -1;
  (void)mgl_socket_take(socket, &byte, sizeof byte, &fd);
  return fd;
}

// Rank 0 gathers all and hands them out.
mgl_status mgl_ranks_pass(mgl_ranks *r, int fd, int fds[MGL_MAX_RANKS], mgl_error *err) {
  const struct timeval patience = {.tv_sec = PASS_SECONDS};
  bool fine = true;
  memset(fds, 0xff, MGL_MAX_RANKS * sizeof *fds);
  for (uint32_t rank = 0; rank < r->options.count; rank++) {
    if (r->sockets[rank] >= 0) {
      (void)setsockopt(r->sockets[rank], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    }
  }
  if (r->rank != 0) {
    fine = send_fd(r->sockets[0], fd);
    for (uint32_t rank = 0; fine && rank < r->options.count; rank++) {
      fds[rank] = take_fd(r->sockets[0]);
      fine = fds[rank] >= 0;
    }
  } else {
    fds[0] = dup(fd);
    fine = fds[0] >= 0;
    for (uint32_t rank = 1; fine && rank < r->options.count; rank++) {
      fds[rank] = take_fd(r->sockets[rank]);
      fine = fds[rank] >= 0;
    }
    for (uint32_t to = 1; fine && to < r->options.count; to++) {
      for (uint32_t rank = 0; fine && rank < r->options.count; rank++) {
        fine = send_fd(r->sockets[to], fds[rank]);
      }
    }
  }
  if (fine) {
    return MGL_OK;
  }
  for (uint32_t look = 0; look < QUIT_LOOKS; look++) {  // who died says why
    MGL_TRY(mgl_ranks_check(r, err));
    rest();
  }
  return mgl_error_set(err, MGL_ERR_IO, "rank %u could not pass a handle of its memory: %s",
                       r->rank, strerror(errno));
}
