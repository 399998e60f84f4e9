// Every command with faults at random (random_faults.c), and killed at random moments while it
// writes. Usage: faults PROGRAM DEMO_FOLDER PRELOADED_LIBRARY.
//
// A run with faults ends by itself, with success or with status 1 and one message; it leaves no
// temporary file, and what it was to write is there whole or not at all. After a kill the file is
// whole or absent too, and the next run that ends removes what the killed one left. 20 runs of each
// command, 500 to 1000 with MGL_TEST_LONG set, of which half have faults of probability 1e-3; 20 or 200
// kills of each that writes.
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "support/run_program.h"

enum { PATH_BYTES = PATH_MAX, ARGUMENTS = 20, ENVIRONMENT = 5 };

// GRAPH and TRACE are files that were made before; OUT is the file to write.
#define GRAPH "$graph"
#define TRACE "$trace"
#define OUT "$out"
#define DEMO "$demo"

typedef struct command {
  const char *arguments[ARGUMENTS];
  const char *input;     // of standard input, or NULL
  const char *out_name;  // NULL: it writes no file
  unsigned share;        // of the runs: 1 all, 10 every tenth (slow ones)
} command;

static const command commands[] = {
    {{"run", DEMO, "-t", "2", "-p", "What is 2 + 3?", "-n", "4", "--chat"}, NULL, NULL, 1},
    {{"run", DEMO, "-t", "2", "-p", "hi", "-n", "4", "--trace", OUT}, NULL, "trace.json", 1},
    {{"run", DEMO, "-t", "1", "--jsonl"},
     "{\"prompt\":\"hi\",\"max_tokens\":2}\n{\"bad\n{\"tokens\":[1,2],\"max_tokens\":2}\n",
     NULL,
     1},
    {{"score", DEMO, "-t", "2", "--tokens", "1,2,3", "--logits", OUT}, NULL, "logits.npy", 1},
    {{"tokenize", DEMO}, "some text to tokenize", NULL, 1},
    {{"template", DEMO, "-p", "hi"}, NULL, NULL, 1},
    {{"bench", DEMO, "-t", "2", "-p", "4", "-g", "2", "--runs", "1", "--trace", OUT, "--mode",
      "mega"},
     NULL,
     "trace.json",
     5},
    {{"bench", "throughput", DEMO, "-t", "2", "-n", "3", "--input", "4:8", "--output", "2:4"},
     NULL,
     NULL,
     5},
    {{"plan", DEMO, "-t", "2"}, NULL, NULL, 1},
    {{"compile", DEMO, "-w", "8", "-n", "16", "--verify", "-o", OUT}, NULL, "graph.json", 1},
    {{"compile", DEMO, "--target", "cuda", "-n", "16", "-o", OUT}, NULL, "graph.json", 1},
    {{"graph", GRAPH, "--svg", OUT, "--layer", "0"}, NULL, "graph.svg", 1},
    {{"graph", GRAPH, "--path", "--workers"}, NULL, NULL, 1},
    {{"test", DEMO, "0.v..0.attended", "-t", "2", "-n", "3"}, NULL, NULL, 5},
    {{"trace", TRACE}, NULL, NULL, 1},
    {{"info"}, NULL, NULL, 20},
    {{"completion", "bash"}, NULL, NULL, 1},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

// Of the whole run; there is one thread.
static char program[PATH_BYTES], demo[PATH_BYTES], preload[PATH_BYTES + 16];
static char work[256], out_folder[300], graph[300], trace[300], input[300];
static unsigned failures;

static void put_path(char out[300], const char *folder, const char *name) {
  (void)snprintf(out, 300, "%.255s/%.40s", folder, name);
}

static void complain(const command *c, unsigned seed, const run_outcome *o, const char *what) {
  failures++;
  (void)printf("FAILED %s %s, seed %u: %s\n  status %#x, %.1f s, stderr: %.600s\n", c->arguments[0],
               c->out_name == NULL ? "" : c->out_name, seed, what, (unsigned)o->status,
               o->wall_seconds, o->err);
}

static void out_path(const command *c, char out[300]) {
  put_path(out, out_folder, c->out_name == NULL ? "none" : c->out_name);
}

static void run_with(const command *c, const char *const *environment, unsigned kill_after_us,
                     run_outcome *o) {
  const char *argv[ARGUMENTS + 2] = {program};
  static char out[300];
  out_path(c, out);
  for (int i = 0; i < ARGUMENTS && c->arguments[i] != NULL; i++) {
    const char *a = c->arguments[i];
    argv[i + 1] = strcmp(a, GRAPH) == 0   ? graph
                  : strcmp(a, TRACE) == 0 ? trace
                  : strcmp(a, OUT) == 0   ? out
                  : strcmp(a, DEMO) == 0  ? demo
                                          : a;
  }
  if (c->input != NULL) {
    FILE *file = fopen(input, "wb");
    if (file == NULL || fputs(c->input, file) < 0 || fclose(file) != 0) {
      abort();
    }
  }
  run_program(&(run_options){.argv = argv,
                             .folder = work,
                             .input = c->input == NULL ? NULL : input,
                             .environment = environment,
                             .kill_after_us = kill_after_us},
              o);
}

// Files in the output folder but the output itself.
static unsigned count_leftovers(const command *c) {
  unsigned count = 0;
  DIR *entries = opendir(out_folder);
  if (entries == NULL) {
    abort();
  }
  for (struct dirent *e = readdir(entries); e != NULL; e = readdir(entries)) {
    count += e->d_name[0] != '.' && (c->out_name == NULL || strcmp(e->d_name, c->out_name) != 0);
  }
  (void)closedir(entries);
  return count;
}

static mgl_text read_file(const char *path) {
  mgl_text text = {0};
  char chunk[65536];
  FILE *file = fopen(path, "rb");
  for (size_t n = 1; file != NULL && n > 0;) {
    n = fread(chunk, 1, sizeof chunk, file);
    mgl_text_append(&text, chunk, n);
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return text;
}

// Whether what lies at the command's output is whole: by the reader of its kind.
static bool is_whole(const command *c, const char *path) {
  run_outcome o;
  bool is_graph = strcmp(c->out_name, "graph.json") == 0;
  if (is_graph || strcmp(c->out_name, "trace.json") == 0) {
    const char *const argv[] = {program, is_graph ? "graph" : "trace", path, NULL};
    run_program(&(run_options){.argv = argv, .folder = work}, &o);
    return run_ended(&o, 0);
  }
  mgl_text text = read_file(path);
  bool whole = false;
  if (strcmp(c->out_name, "logits.npy") == 0) {
    whole = text.bytes == 128 + 3 * 1024 * sizeof(float);
  } else {
    whole = text.bytes > 8 && strcmp(text.data + text.bytes - 7, "</svg>\n") == 0;
  }
  mgl_text_free(&text);
  return whole;
}

// False: a torn file. One that is there is removed.
static bool take_output(const command *c, bool *out_exists) {
  char path[300];
  struct stat info;
  out_path(c, path);
  *out_exists = c->out_name != NULL && stat(path, &info) == 0;
  bool fine = !*out_exists || is_whole(c, path);
  if (*out_exists) {
    (void)unlink(path);
  }
  return fine;
}

// --- faults --------------------------------------------------------------------------------------

// The last line of standard error is a message and no other line is. A run of several prompts says
// which of them failed, a line each.
static bool ended_with_message(const command *c, const run_outcome *o) {
  bool many = c->input != NULL && c->input[0] == '{';
  unsigned messages = 0;
  for (const char *at = strstr(o->err, "megalith: "); at != NULL;
       at = strstr(at + 1, "megalith: ")) {
    messages += at == o->err || at[-1] == '\n';
  }
  size_t bytes = strlen(o->err);
  return bytes > 0 && o->err[bytes - 1] == '\n' && strstr(o->err, "(null)") == NULL &&
         (many ? messages >= 1 : messages == 1);
}

static void judge_faults(const command *c, unsigned seed, const run_outcome *o, bool succeeded) {
  bool exists = false;
  if (o->hung) {
    complain(c, seed, o, "hangs");
  } else if (!WIFEXITED(o->status)) {
    complain(c, seed, o, "killed by a signal");
  } else if (!succeeded && !run_ended(o, 1)) {
    complain(c, seed, o, "expected status 0 or 1");
  } else if (!succeeded && !ended_with_message(c, o)) {
    complain(c, seed, o, "expected one message");
  }
  if (count_leftovers(c) != 0) {
    complain(c, seed, o, "left a temporary file");
    exit(1);
  }
  if (!take_output(c, &exists)) {
    complain(c, seed, o, "left a torn file");
  } else if (succeeded && !exists && c->out_name != NULL) {
    complain(c, seed, o, "succeeded without its file");
  }
}

// Half of the runs have the probability 1e-3; fewer faults let a run get further before the first.
static const char *const probabilities[] = {"1e-3", "1e-3", "1e-4", "1e-5"};

static void run_faults(unsigned runs) {
  unsigned total = 0;
  unsigned failed = 0;
  for (unsigned i = 0; i < COMMANDS; i++) {
    const command *c = &commands[i];
    unsigned least = runs > 500 ? 500 : 1;
    unsigned own = runs / c->share > least ? runs / c->share : least;
    unsigned own_failed = 0;
    double slowest = 0;
    for (unsigned seed = 1; seed <= own; seed++) {
      char number[64];
      char probability[64];
      (void)snprintf(probability, sizeof probability, "MEGALITH_TEST_FAULTS=%s",
                     probabilities[seed % 4]);
      (void)snprintf(number, sizeof number, "MEGALITH_TEST_SEED=%u", i * 100000 + seed);
      const char *const environment[ENVIRONMENT] = {preload, probability, number, NULL};
      run_outcome o;
      run_with(c, environment, 0, &o);
      bool succeeded = run_ended(&o, 0);
      judge_faults(c, seed, &o, succeeded);
      own_failed += !succeeded;
      slowest = o.wall_seconds > slowest ? o.wall_seconds : slowest;
    }
    (void)printf("%-10s %-11s %4u runs, %4u ended with a message, slowest %.1f s\n",
                 c->arguments[0], c->out_name == NULL ? "" : c->out_name, own, own_failed, slowest);
    total += own;
    failed += own_failed;
  }
  (void)printf("faults: %u runs, %u ended with a message, the others with success\n", total,
               failed);
  if (failed < total / 20) {
    (void)printf("FAILED: so few faults cannot be right: is %s loaded?\n", preload);
    failures++;
  }
}

// --- kills ---------------------------------------------------------------------------------------

static void run_kills(unsigned runs) {
  unsigned seed = 5;
  for (unsigned i = 0; i < COMMANDS; i++) {
    const command *c = &commands[i];
    run_outcome o;
    bool exists = false;
    unsigned killed = 0, left = 0, whole = 0, torn = 0;
    if (c->out_name == NULL) {
      continue;
    }
    double usual_us = 1e9;
    for (int k = 0; k < 5; k++) {
      run_with(c, NULL, 0, &o);
      usual_us = o.wall_seconds * 1e6 < usual_us ? o.wall_seconds * 1e6 : usual_us;
      if (!run_ended(&o, 0) || !take_output(c, &exists) || !exists) {
        complain(c, 0, &o, "fails without any kill");
      }
    }
    unsigned own = runs / c->share > 0 ? runs / c->share : 1;
    for (unsigned k = 0; k < own; k++) {
      // More often near the end, where files are written.
      double share = 1 - (double)(rand_r(&seed) % 1000) * (double)(rand_r(&seed) % 1000) * 1e-6;
      run_with(c, NULL, (unsigned)(usual_us * share * 1.2) + 1, &o);
      killed += WIFSIGNALED(o.status);
      unsigned files = count_leftovers(c);
      left += files > 0;
      if (files > 1) {
        complain(c, k, &o, "did not remove what a killed run had left");
      }
      if (!take_output(c, &exists)) {
        complain(c, k, &o, "left a torn file");
        torn++;
      }
      whole += exists;
    }
    run_with(c, NULL, 0, &o);
    if (count_leftovers(c) != 0 || !take_output(c, &exists) || !exists) {
      complain(c, runs, &o, "does not remove what a killed run had left");
    }
    (void)printf(
        "%-10s %-11s %4u kills: %u left a temporary file, %u a whole file, %u a torn one\n",
        c->arguments[0], c->out_name, killed, left, whole, torn);
  }
}

int main(int argc, char **argv) {
  const char *base = getenv("TMPDIR");
  bool is_long = getenv("MGL_TEST_LONG") != NULL;
  run_outcome o;
  if (argc != 4 || realpath(argv[1], program) == NULL || realpath(argv[2], demo) == NULL) {
    (void)fprintf(stderr, "usage: faults PROGRAM DEMO_FOLDER PRELOADED_LIBRARY\n");
    return 2;
  }
  (void)snprintf(preload, sizeof preload, "LD_PRELOAD=%s", argv[3]);
  (void)snprintf(work, sizeof work, "%s/megalith-faults-XXXXXX", base == NULL ? "/tmp" : base);
  if (mkdtemp(work) == NULL) {
    perror(work);
    return 2;
  }
  put_path(out_folder, work, "out");
  put_path(graph, work, "graph.json");
  put_path(trace, work, "trace.json");
  put_path(input, work, "input");
  (void)mkdir(out_folder, 0700);
  (void)setenv("MEGALITH_DEVICE", "cpu", 1);
  const char *const compile[] = {program, "compile", demo, "-w", "2", "-o", graph, NULL};
  const char *const run[] = {program, "run", demo, "-t",      "2",   "-p",
                             "hi",    "-n",  "2",  "--trace", trace, NULL};
  run_program(&(run_options){.argv = compile, .folder = work}, &o);
  if (run_ended(&o, 0)) {
    run_program(&(run_options){.argv = run, .folder = work}, &o);
  }
  if (!run_ended(&o, 0)) {
    (void)fprintf(stderr, "faults: cannot make a task graph and a trace: %s\n", o.err);
    return 2;
  }
  run_faults(is_long ? 1000 : 20);
  run_kills(is_long ? 200 : 20);
  char path[300];
  static const char *const files[] = {"graph.json", "trace.json", "input",
                                      "stdout",     "stderr",     "out"};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    put_path(path, work, files[i]);
    (void)remove(path);
  }
  (void)rmdir(work);
  return failures == 0 ? 0 : 1;
}
