// Programs in children; see run_program.h.
#include "support/run_program.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static void redirect(int to, const char *path, int flags) {
  int fd = open(path, flags, 0600);
  if (fd < 0 || dup2(fd, to) < 0) {
    _exit(126);
  }
  (void)close(fd);
}

static void output_path(const char *folder, const char *name, char out[PATH_BYTES]) {
  (void)snprintf(out, PATH_BYTES, "%s/%s", folder, name);
}

static void read_output(const char *folder, const char *name, char out[RUN_OUTPUT_BYTES]) {
  char path[PATH_BYTES];
  output_path(folder, name, path);
  FILE *file = fopen(path, "rb");
  size_t bytes = file == NULL ? 0 : fread(out, 1, RUN_OUTPUT_BYTES - 1, file);
  out[bytes] = 0;
  if (file != NULL) {
    (void)fclose(file);
  }
}

static double now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double seconds_of(struct timeval t) {
  return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static void wait_for(pid_t child, unsigned kill_after_us, run_outcome *o) {
  struct rusage usage = {0};
  double start = now();
  useconds_t pause_us = 200;
  for (bool killed = false;;) {
    pid_t ended = wait4(child, &o->status, killed ? 0 : WNOHANG, &usage);
    o->wall_seconds = now() - start;
    if (ended == child) {
      break;
    }
    o->hung = !killed && kill_after_us == 0 && o->wall_seconds > RUN_HANG_SECONDS;
    if (o->hung || (kill_after_us != 0 && o->wall_seconds * 1e6 >= kill_after_us)) {
      (void)kill(child, SIGKILL);
      killed = true;
      continue;
    }
    (void)usleep(pause_us);
    pause_us = kill_after_us == 0 && pause_us < 5000 ? pause_us * 2 : pause_us;
  }
  o->seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  o->peak_kib = usage.ru_maxrss;
}

static void become_program(const run_options *options) {
  char path[PATH_BYTES];
  redirect(0, options->input == NULL ? "/dev/null" : options->input, O_RDONLY);
  output_path(options->folder, "stdout", path);
  redirect(1, path, O_WRONLY | O_CREAT | O_TRUNC);
  output_path(options->folder, "stderr", path);
  redirect(2, path, O_WRONLY | O_CREAT | O_TRUNC);
  for (const char *const *e = options->environment; e != NULL && *e != NULL; e++) {
    (void)putenv((char *)(uintptr_t)*e);
  }
  (void)execv(options->argv[0], (char *const *)(uintptr_t)options->argv);
  _exit(127);
}

void run_program(const run_options *options, run_outcome *out) {
  *out = (run_outcome){0};
  (void)fflush(NULL);
  pid_t child = fork();
  if (child < 0) {
    perror("run_program: cannot start a child");
    abort();
  }
  if (child == 0) {
    become_program(options);
  }
  wait_for(child, options->kill_after_us, out);
  read_output(options->folder, "stdout", out->out);
  read_output(options->folder, "stderr", out->err);
}

bool run_ended(const run_outcome *outcome, int status) {
  return !outcome->hung && WIFEXITED(outcome->status) && WEXITSTATUS(outcome->status) == status;
}

bool run_said_one_message(const run_outcome *outcome) {
  size_t bytes = strlen(outcome->err);
  const char *end = strchr(outcome->err, '\n');
  return strncmp(outcome->err, "megalith: ", 10) == 0 && bytes > 20 &&
         end == outcome->err + bytes - 1 && strstr(outcome->err, "(null)") == NULL;
}
