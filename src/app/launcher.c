// Rows are looked at in order. Several may be there, as srun has PMI and PMIx beside its own; then
// they must say the same, and the first one counts. What a row needs is set by no shell around it:
// Slurm's batch scripts have SLURM_PROCID and SLURM_NTASKS, too, but nothing of a step.
#include "app/launcher.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"

enum { MOST_IDS = 2 };

// Names of variables; NULL where a launcher has none. Those of rank and size tell that it is there.
typedef struct row {
  const char *name;
  const char *rank, *size;
  const char *local_rank, *local_size;  // the same numbers among the processes of this host
  const char *hosts;                    // how many
  const char *ids[MOST_IDS];            // who else has the same is of the same start; where none is
} row;                                  // set, the parent's number takes their place

static const row rows[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     NULL,
     {"MASTER_ADDR", "MASTER_PORT"}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     NULL,
     {"PMIX_NAMESPACE", NULL}},
    {"PMI",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     NULL,
     {"PMI_JOBID", NULL}},  // MPICH, Intel MPI
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     NULL,
     "SLURM_STEP_NUM_NODES",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"PMIx", "PMIX_RANK", NULL, NULL, NULL, NULL, {"PMIX_NAMESPACE", NULL}},
};

enum { ROWS = sizeof rows / sizeof *rows };

// Of the name's variable, which may be NULL; `otherwise` if there is none.
static mgl_status read_number(mgl_launcher_variable *variable, const row *r, const char *name,
                              uint32_t otherwise, uint32_t *out, mgl_error *err) {
  const char *text = name != NULL ? variable(name) : NULL;
  unsigned number = 0;
  int bytes = 0;
  *out = otherwise;
  if (text == NULL) {
    return MGL_OK;
  }
  if (text[0] < '0' || text[0] > '9' || strlen(text) > 9 ||
      sscanf(text, "%u%n", &number, &bytes) != 1 || text[bytes] != 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s of %s: expected a number, found \"%.40s\"",
                         name, r->name, text);
  }
  *out = number;
  return MGL_OK;
}

static mgl_status check_hosts(mgl_launcher_variable *variable, const row *r, const mgl_launcher *l,
                              mgl_error *err) {
  uint32_t local_rank = 0, local_size = 0, hosts = 0;
  MGL_TRY(read_number(variable, r, r->local_rank, l->rank, &local_rank, err));
  MGL_TRY(read_number(variable, r, r->local_size, l->size, &local_size, err));
  MGL_TRY(read_number(variable, r, r->hosts, 1, &hosts, err));
  if (local_rank == l->rank && local_size == l->size && hosts == 1) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "expected all processes on one host, found several hosts (%s: rank %" PRIu32
                       " of %" PRIu32 " is rank %" PRIu32 " of %" PRIu32
                       " there): start them on one",
                       r->name, l->rank, l->size, local_rank, local_size);
}

static void name_meeting(mgl_launcher_variable *variable, const row *r, mgl_launcher *l) {
  size_t at =
      (size_t)snprintf(l->meeting, sizeof l->meeting, "%s, %" PRIu32 " ranks", r->name, l->size);
  bool named = false;
  for (int i = 0; i < MOST_IDS && r->ids[i] != NULL; i++) {
    const char *value = variable(r->ids[i]);
    if (value != NULL) {
      at += (size_t)snprintf(l->meeting + at, sizeof l->meeting - at, ", %s=%.150s", r->ids[i],
                             value);
      named = true;
    }
  }
  if (!named) {
    (void)snprintf(l->meeting + at, sizeof l->meeting - at, ", parent=%d", (int)getppid());
  }
}

// What one row says; out->name stays NULL if it is not there.
static mgl_status read_row(mgl_launcher_variable *variable, const row *r, uint32_t asked_ranks,
                           mgl_launcher *out, mgl_error *err) {
  *out = (mgl_launcher){.name = NULL};
  if (variable(r->rank) == NULL || (r->size != NULL && variable(r->size) == NULL)) {
    return MGL_OK;
  }
  mgl_launcher l = {.name = r->name};
  MGL_TRY(read_number(variable, r, r->rank, 0, &l.rank, err));
  MGL_TRY(read_number(variable, r, r->size, asked_ranks, &l.size, err));
  if (r->size == NULL && l.size == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "%s does not tell how many processes it has started: say it with "
                         "--tensor-parallel",
                         r->name);
  }
  if (l.rank >= l.size) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "%s: expected %s below %" PRIu32 " (%s), found %" PRIu32, r->name, r->rank,
                         l.size, r->size != NULL ? r->size : "--tensor-parallel", l.rank);
  }
  if (l.size == 1) {
    return MGL_OK;
  }
  MGL_TRY(check_hosts(variable, r, &l, err));
  name_meeting(variable, r, &l);
  *out = l;
  return MGL_OK;
}

mgl_status mgl_launcher_find(mgl_launcher_variable *variable, uint32_t asked_ranks,
                             mgl_launcher *out, mgl_error *err) {
  *out = (mgl_launcher){.name = NULL};
  for (int i = 0; i < ROWS; i++) {
    mgl_launcher found;
    const bool counts_others = rows[i].size == NULL;  // it says nothing that others do not
    MGL_TRY(read_row(variable, &rows[i],
                     counts_others && out->name != NULL ? out->size : asked_ranks, &found, err));
    if (found.name != NULL && out->name != NULL &&
        (found.rank != out->rank || found.size != out->size)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "two launchers contradict each other: %s says rank %" PRIu32
                           " of %" PRIu32 ", %s rank %" PRIu32 " of %" PRIu32
                           ": unset the variables of one",
                           out->name, out->rank, out->size, found.name, found.rank, found.size);
    }
    *out = out->name == NULL ? found : *out;
  }
  if (out->name != NULL && asked_ranks != 0 && asked_ranks != out->size) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--tensor-parallel: expected %" PRIu32
                         ", as many processes as %s has started, found %" PRIu32,
                         out->size, out->name, asked_ranks);
  }
  if (out->size > MGL_MAX_RANKS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d ranks, found %" PRIu32 " (%s)",
                         MGL_MAX_RANKS, out->size, out->name);
  }
  return MGL_OK;
}
