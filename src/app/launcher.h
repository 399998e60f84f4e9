// Who has started this process, and which one of how many it is: mpirun, srun, torchrun and the
// like tell it in variables of the environment. A table has a row for each of them.
//
// A launcher that has started one process only is as good as none: shells in an allocation look so.
#ifndef MGL_APP_LAUNCHER_H
#define MGL_APP_LAUNCHER_H

#include <stdint.h>

#include "base/status.h"

enum { MGL_MEETING_BYTES = 512 };  // of a name, with its end

typedef struct mgl_launcher {
  const char *name;  // NULL: the process is on its own
  uint32_t rank, size;
  char meeting[MGL_MEETING_BYTES];  // the same text for all of them, and for no others
} mgl_launcher;

// The value of a variable, or NULL (getenv).
typedef char *mgl_launcher_variable(const char *name);

// asked_ranks: of --tensor-parallel, 0 if it was not given. Refuses variables that contradict it or
// each other, and processes on several hosts.
mgl_status mgl_launcher_find(mgl_launcher_variable *variable, uint32_t asked_ranks,
                             mgl_launcher *out, mgl_error *err);

#endif
