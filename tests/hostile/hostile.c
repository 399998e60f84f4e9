// Runs the cases; see hostile.h. Usage: hostile PROGRAM DEMO_FOLDER.
#include "hostile/hostile.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/run_program.h"

enum {
  PATH_BYTES = PATH_MAX,
  NAME_BYTES = 200,
  OUTPUT_BYTES = 4096,
  ORIGINALS = 7,
  ARGUMENTS = 12
};

static const char *const originals[ORIGINALS] = {"config.json",       "generation_config.json",
                                                 "tokenizer.json",    "tokenizer_config.json",
                                                 "model.safetensors", "graph.json",
                                                 "trace.json"};

#define CASES MGL_TEST_DATA "/gguf/"
#define VOCABULARY CASES "demo_vocabulary.gguf"

typedef struct worst {
  double seconds;
  long extra_kib;
  char slow_name[NAME_BYTES], large_name[NAME_BYTES];
} worst;

// Of the whole run; there is one thread.
static char program[PATH_BYTES], demo[PATH_BYTES];
static char work[PATH_BYTES];    // everything of this run
static char folder[PATH_BYTES];  // of the case
static mgl_text texts[ORIGINALS], gguf_text;
static long demo_kib[HOSTILE_COMMANDS];
// Of a valid folder as large as the cases that follow; 0: the demo model's.
static long valid_kib;
static double valid_seconds;
static worst most;
static unsigned refused_count, survived_count, accepted_count, failures, seed = 17;

static void stop(const char *what, const char *path) {
  (void)fprintf(stderr, "hostile: cannot %s %s: %s\n", what, path, strerror(errno));
  exit(2);
}

static void join(char out[PATH_BYTES], const char *where, const char *name) {
  int bytes = snprintf(out, PATH_BYTES, "%s/%s", where, name);
  if (bytes < 0 || bytes >= PATH_BYTES) {
    stop("name", name);
  }
}

uint32_t hostile_random(uint32_t below) {
  return (uint32_t)rand_r(&seed) % below;
}

bool hostile_large(void) {
#ifdef MGL_TEST_SANITIZED
  return false;
#else
  return true;
#endif
}

// --- folders -------------------------------------------------------------------------------------

static void empty(const char *path) {
  DIR *entries = opendir(path);
  if (entries == NULL) {
    stop("list", path);
  }
  for (struct dirent *e = readdir(entries); e != NULL; e = readdir(entries)) {
    char at[PATH_BYTES];
    join(at, path, e->d_name);
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && remove(at) != 0) {
      stop("remove", at);
    }
  }
  (void)closedir(entries);
}

const char *hostile_path(const char *name) {
  static char path[PATH_BYTES];
  join(path, folder, name);
  return path;
}

const char *hostile_folder(const char *file) {
  empty(folder);
  for (int i = 0; i < ORIGINALS; i++) {
    char target[PATH_BYTES];
    bool of_demo = i < ORIGINALS - 2;
    join(target, of_demo ? demo : work, originals[i]);
    if ((file == NULL || strcmp(file, originals[i]) != 0) &&
        symlink(target, hostile_path(originals[i])) != 0) {
      stop("link", originals[i]);
    }
  }
  return file == NULL ? folder : hostile_path(file);
}

FILE *hostile_create(const char *file) {
  FILE *out = fopen(hostile_folder(file), "wb");
  if (out == NULL) {
    stop("create", file);
  }
  return out;
}

const mgl_text *hostile_original(const char *file) {
  for (int i = 0; i < ORIGINALS; i++) {
    if (strcmp(file, originals[i]) == 0) {
      return &texts[i];
    }
  }
  errno = ENOENT;
  stop("find", file);
  return NULL;
}

// The end of the JSON value at `at`.
static const char *value_end(const char *at) {
  int depth = 0;
  for (bool in_string = false; *at != 0; at++) {
    if (in_string) {
      at += *at == '\\';
      in_string = *at != '"';
    } else if (depth == 0 && strchr(",}]\n", *at) != NULL) {
      break;
    } else if (*at == '"') {
      in_string = true;
    } else if (*at == '{' || *at == '[') {
      depth++;
    } else if (*at == '}' || *at == ']') {
      depth--;
    }
  }
  return at;
}

const char *hostile_edit(const char *text, const char *key, const char *value) {
  static mgl_text out;
  char quoted[NAME_BYTES];
  (void)snprintf(quoted, sizeof quoted, "\"%s\":", key == NULL ? "" : key);
  const char *at = strstr(text, quoted);
  mgl_text_clear(&out);
  if (key == NULL || at == NULL) {
    const char *brace = strchr(text, '{') + 1;
    mgl_text_append(&out, text, (size_t)(brace - text));
    if (key != NULL) {
      mgl_text_append_string(&out, quoted);
    }
    mgl_text_append_string(&out, value);
    mgl_text_append_string(&out, ",");
    mgl_text_append_string(&out, brace);
    return out.data;
  }
  at += strlen(quoted);
  at += strspn(at, " ");
  mgl_text_append(&out, text, (size_t)(at - text));
  mgl_text_append_string(&out, value);
  mgl_text_append_string(&out, value_end(at));
  return out.data;
}

// --- running -------------------------------------------------------------------------------------

static void fill_arguments(hostile_command command, const char *argv[ARGUMENTS]) {
  static char graph[PATH_BYTES], trace[PATH_BYTES], gguf[PATH_BYTES];
  static const char *const of_commands[HOSTILE_COMMANDS][ARGUMENTS] = {
      [HOSTILE_RUN] = {"run", folder, "-t", "1", "--chat", "-p", "hi", "-n", "1"},
      [HOSTILE_SCORE] = {"score", folder, "-t", "1", "--tokens", "1,2"},
      [HOSTILE_TOKENIZE] = {"tokenize", folder},
      [HOSTILE_PLAN] = {"plan", folder, "-t", "1", "--context", "16"},
      [HOSTILE_COMPILE] = {"compile", folder, "-w", "2"},
      [HOSTILE_GRAPH] = {"graph", graph},
      [HOSTILE_TRACE] = {"trace", trace},
      [HOSTILE_GGUF] = {"tokenize", gguf},
      [HOSTILE_GGUF_PLAN] = {"plan", gguf, "-t", "1", "--context", "16"},
  };
  join(gguf, folder, "model.gguf");
  join(graph, folder, "graph.json");
  join(trace, folder, "trace.json");
  argv[0] = program;
  memcpy(argv + 1, of_commands[command], sizeof of_commands[command] - sizeof *argv);
}

static void run(const char *const argv[], run_outcome *o) {
  run_program(&(run_options){.argv = argv, .folder = work}, o);
}

static void run_command(hostile_command command, run_outcome *o) {
  const char *argv[ARGUMENTS + 1] = {NULL};
  fill_arguments(command, argv);
  run(argv, o);
}

// --- judging -------------------------------------------------------------------------------------

static void complain(const char *name, const run_outcome *o, const char *what) {
  failures++;
  (void)printf("FAILED %s: %s\n  status %#x, %.2f s, %ld MiB, stderr: %.300s\n", name, what,
               (unsigned)o->status, o->seconds, o->peak_kib >> 10, o->err);
}

// The bounds, which hold whatever the outcome.
static void judge_cost(hostile_command command, const char *name, const run_outcome *o) {
  long base = valid_kib > demo_kib[command] ? valid_kib : demo_kib[command];
  long extra = o->peak_kib - base;
  if (!hostile_large()) {
    return;
  }
  double seconds = o->seconds - valid_seconds;
  if (seconds > HOSTILE_SECONDS) {
    complain(name, o, "too slow");
  }
  if (extra > HOSTILE_MIB * 1024L) {
    complain(name, o, "too much memory");
  }
  if (seconds > most.seconds) {
    most.seconds = seconds;
    (void)snprintf(most.slow_name, NAME_BYTES, "%s", name);
  }
  if (extra > most.extra_kib) {
    most.extra_kib = extra;
    (void)snprintf(most.large_name, NAME_BYTES, "%s", name);
  }
}

// True if the command refused the folder as it should.
static bool judge(hostile_command command, const char *name, bool may_accept) {
  run_outcome o;
  run_command(command, &o);
  judge_cost(command, name, &o);
  bool accepted = run_ended(&o, 0);
  if (o.hung) {
    complain(name, &o, "hangs");
  } else if (!WIFEXITED(o.status)) {
    complain(name, &o, "killed by a signal");
  } else if (accepted && !may_accept) {
    complain(name, &o, "accepted");
  } else if (!accepted && !run_ended(&o, 1)) {
    complain(name, &o, "expected exit status 1");
  } else if (!accepted && !run_said_one_message(&o)) {
    complain(name, &o, "expected one message in one line");
  } else if (!accepted && o.out[0] != 0) {
    complain(name, &o, "wrote to standard output");
  } else {
    if (getenv("HOSTILE_VERBOSE") != NULL) {
      (void)printf("%s: %.2f s, %ld MiB: %s", name, o.seconds, o.peak_kib >> 10,
                   accepted ? "accepted\n" : o.err);
    }
    return !accepted;
  }
  return false;
}

static void close_file(FILE *file, const char *name) {
  if (file != NULL && fclose(file) != 0) {
    stop("write the file of", name);
  }
}

void hostile_refused(FILE *file, hostile_command command, const char *format, ...) {
  char name[NAME_BYTES];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(name, sizeof name, format, args);
  va_end(args);
  close_file(file, name);
  refused_count += judge(command, name, false);
}

void hostile_survived(FILE *file, hostile_command command, const char *format, ...) {
  char name[NAME_BYTES];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(name, sizeof name, format, args);
  va_end(args);
  close_file(file, name);
  bool refused = judge(command, name, true);
  survived_count += refused;
  accepted_count += !refused;
}

void hostile_valid(FILE *file, hostile_command command, const char *name) {
  valid_kib = 0;
  valid_seconds = 0;
  if (name == NULL) {
    return;
  }
  close_file(file, name);
  run_outcome o;
  run_command(command, &o);
  if (!run_ended(&o, 0)) {
    complain(name, &o, "a valid folder is refused");
  }
  (void)printf("valid, %s: %.2f s, %ld MiB\n", name, o.seconds, o.peak_kib >> 10);
  valid_kib = o.peak_kib;
  valid_seconds = o.seconds;
}

// --- the run -------------------------------------------------------------------------------------

static void read_file(const char *path, size_t most_bytes, mgl_text *out) {
  char chunk[4096];
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    stop("read", path);
  }
  for (size_t n = 1; n > 0 && out->bytes < most_bytes;) {
    n = fread(chunk, 1, sizeof chunk, file);
    mgl_text_append(out, chunk, n);
  }
  (void)fclose(file);
}

static void read_original(int index) {
  char path[PATH_BYTES];
  join(path, index < ORIGINALS - 2 ? demo : work, originals[index]);
  // Of the weights only the header is needed.
  bool is_weights = strcmp(originals[index], "model.safetensors") == 0;
  read_file(path, is_weights ? 16384 : 16 << 20, &texts[index]);
}

const mgl_text *hostile_gguf(void) {
  return &gguf_text;
}

// What the command itself writes: a task graph and a trace.
static void make_originals(void) {
  char graph[PATH_BYTES], trace[PATH_BYTES];
  run_outcome o;
  join(graph, work, "graph.json");
  join(trace, work, "trace.json");
  const char *const compile[] = {program, "compile", demo, "-w", "2", "-o", graph, NULL};
  const char *const bench[] = {program, "run", demo, "-t",      "2",   "-p",
                               "hi",    "-n",  "2",  "--trace", trace, NULL};
  run(compile, &o);
  if (o.status == 0) {
    run(bench, &o);
  }
  if (o.status != 0) {
    (void)fprintf(stderr, "hostile: cannot make a task graph and a trace: %s\n", o.err);
    exit(2);
  }
  for (int i = 0; i < ORIGINALS; i++) {
    read_original(i);
  }
  read_file(VOCABULARY, 1 << 20, &gguf_text);
}

static void measure_demo(void) {
  for (int command = 0; command < HOSTILE_COMMANDS; command++) {
    run_outcome o;
    bool plans = command == HOSTILE_GGUF_PLAN;
    (void)hostile_folder(NULL);
    (void)symlink(plans ? CASES "llama_f16.gguf" : VOCABULARY, hostile_path("model.gguf"));
    run_command((hostile_command)command, &o);
    demo_kib[command] = o.peak_kib;
    if (o.status != 0) {
      complain("the demo model", &o, "refused");
    }
  }
}

int main(int argc, char **argv) {
  if (argc != 3) {
    (void)fprintf(stderr, "usage: hostile PROGRAM DEMO_FOLDER\n");
    return 2;
  }
  const char *base = getenv("TMPDIR");
  if (realpath(argv[1], program) == NULL || realpath(argv[2], demo) == NULL) {
    stop("find", argv[1]);
  }
  (void)snprintf(work, sizeof work, "%s/megalith-hostile-XXXXXX", base == NULL ? "/tmp" : base);
  if (mkdtemp(work) == NULL) {
    stop("create", work);
  }
  join(folder, work, "model");
  (void)mkdir(folder, 0700);
  (void)setenv("MEGALITH_DEVICE", "cpu", 1);
  make_originals();
  measure_demo();
  hostile_configs();
  hostile_tokenizers();
  hostile_templates();
  hostile_weights();
  hostile_mixtures();
  hostile_quantised();
  hostile_graphs();
  hostile_ggufs();
  hostile_everywhere();
  empty(folder);
  (void)rmdir(folder);
  empty(work);
  (void)rmdir(work);
  for (int i = 0; i < ORIGINALS; i++) {
    mgl_text_free(&texts[i]);
  }
  mgl_text_free(&gguf_text);
  (void)printf("%u hostile folders refused; %u more survived (%u of them accepted); %u failures\n",
               refused_count, survived_count + accepted_count, accepted_count, failures);
  if (hostile_large()) {
    (void)printf("slowest: %.2f s beyond a valid model, %s\nlargest: %ld MiB beyond one, %s\n",
                 most.seconds, most.slow_name, most.extra_kib >> 10, most.large_name);
  } else {
    (void)printf("time and memory are not judged, and large files left out, under a sanitizer\n");
  }
  if (refused_count < 300) {
    (void)printf("FAILED: expected at least 300 hostile folders, found %u\n", refused_count);
    failures++;
  }
  return failures == 0 ? 0 : 1;
}
