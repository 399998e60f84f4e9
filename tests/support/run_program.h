// A program run to its end in a child, and what it took.
#ifndef MGL_TESTS_SUPPORT_RUN_PROGRAM_H
#define MGL_TESTS_SUPPORT_RUN_PROGRAM_H

#include <stdbool.h>
#include <sys/types.h>

enum {
  RUN_OUTPUT_BYTES = 4096,  // that are kept of each stream: its beginning
  RUN_HANG_SECONDS = 60,    // of the wall; then it is killed
};

typedef struct run_outcome {
  int status;  // of wait4
  bool hung;
  double seconds;       // of the processor
  double wall_seconds;  // until it ended
  long peak_kib;        // most memory at once
  char out[RUN_OUTPUT_BYTES], err[RUN_OUTPUT_BYTES];
} run_outcome;

// argv ends with NULL. `folder` gets the files stdout and stderr; standard input is `input`, or
// /dev/null where that is NULL. `environment` (NULL: none) are strings NAME=VALUE up to a NULL,
// which are added. kill_after_us other than 0: it gets SIGKILL then, if it still runs.
typedef struct run_options {
  const char *const *argv;
  const char *folder;
  const char *input;
  const char *const *environment;
  unsigned kill_after_us;
} run_options;

void run_program(const run_options *options, run_outcome *out);

// Whether it ended by itself, with this status.
bool run_ended(const run_outcome *outcome, int status);
// Whether standard error is one message of the command `megalith`, in one line.
bool run_said_one_message(const run_outcome *outcome);

#endif
