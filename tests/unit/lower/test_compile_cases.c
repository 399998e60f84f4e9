// The programs of tests/compile: a file is a tensor program in its text form, and its comments say
// how it is compiled and which dump is expected. So a case is added by writing a file.
//
//   # case: workers=3 tokens=2 dump=partition fuse=1
//   #| partition: 12 tasks of 7 ops, 1 attention strides
//   #|   ...
//   # case: workers=3 tokens=2 dump=emit
//   #! a part of the message, where the compiler must refuse the program
//
// dump=lower is the schedule that runs such iterations, in mode full where kernels=1.
// A dump must be the lines behind "#| ", all of them. With MGL_UPDATE_CASES set, the files get what
// the compiler says now; the difference is for whoever commits it to read.
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "compile/compile.h"
#include "lower/choose.h"
#include "support/programs.h"

#define FOLDER MGL_TEST_DATA "/../compile"

enum { LEAST_FILES = 4, MAX_LINE = 512, MAX_DUMP_NAME = 32 };

// How a case compiles its program.
typedef struct compile_case {
  mgl_compile_options options;
  char dump[MAX_DUMP_NAME];
  bool fuses;
  bool kernels;
} compile_case;

static const char *string_of(const mgl_text *text) {
  return text->data == NULL ? "" : text->data;
}

static void set_option(compile_case *c, const char *file, const char *key, const char *value) {
  uint32_t number = (uint32_t)strtoul(value, NULL, 10);
  mgl_compile_options *o = &c->options;
  if (strcmp(key, "workers") == 0) {
    o->workers = number;
  } else if (strcmp(key, "tokens") == 0) {
    o->tokens = number;
  } else if (strcmp(key, "rows") == 0) {
    o->logit_rows = number;
  } else if (strcmp(key, "coarse") == 0) {
    o->coarse = number != 0;
  } else if (strcmp(key, "exact") == 0) {
    o->exact = number != 0;
  } else if (strcmp(key, "kernels") == 0) {
    c->kernels = number != 0;
  } else if (strcmp(key, "fuse") == 0) {
    c->fuses = number != 0;
  } else if (strcmp(key, "target") == 0) {
    o->target = strcmp(value, "cuda") == 0 ? MGL_TARGET_CUDA : MGL_TARGET_CPU;
  } else if (strcmp(key, "launch") == 0) {
    o->launch = strcmp(value, "jit") == 0   ? MGL_LAUNCH_JIT
                : strcmp(value, "aot") == 0 ? MGL_LAUNCH_AOT
                                            : MGL_LAUNCH_AUTO;
  } else if (strcmp(key, "dump") == 0) {
    (void)snprintf(c->dump, sizeof c->dump, "%s", value);
  } else {
    fail_msg("%s: a case has no option \"%s\"", file, key);
  }
}

// From the words behind "# case:".
static compile_case read_case(const char *file, const char *line) {
  compile_case c = {.options = {.tokens = 1, .workers = 1, .verify = true}};
  char words[MAX_LINE];
  char *rest = NULL;
  (void)snprintf(words, sizeof words, "%s", line);
  for (char *word = strtok_r(words, " \n", &rest); word != NULL;
       word = strtok_r(NULL, " \n", &rest)) {
    char *equals = strchr(word, '=');
    if (equals == NULL) {
      fail_msg("%s: expected NAME=VALUE in a case, found \"%s\"", file, word);
    }
    *equals = '\0';
    set_option(&c, file, word, equals + 1);
  }
  return c;
}

static mgl_status dump_schedule(const mgl_graph *program, const compile_case *c, mgl_text *out,
                                mgl_error *err) {
  const mgl_iteration_options options = {.compile = c->options, .few = true, .kernels = c->kernels};
  mgl_schedule *schedule = NULL;
  MGL_TRY(mgl_lower_iteration(program, &options, &schedule, err));
  mgl_status status = mgl_schedule_verify(program, schedule, err);
  mgl_schedule_print(program, schedule, out);
  mgl_schedule_destroy(schedule);
  return status;
}

// What the compiler says: its dump, or "error: " and its message.
static void compile_as(const mgl_graph *program, compile_case *c, mgl_text *out) {
  mgl_error err = {0};
  mgl_graph *fused = NULL;
  mgl_task_graph *graph = NULL;
  mgl_status status = MGL_OK;
  if (c->fuses) {
    status = mgl_fuse_ops_for(c->options.target, program, &fused, &err);
  }
  const mgl_graph *compiled = fused != NULL ? fused : program;
  if (status == MGL_OK && strcmp(c->dump, "lower") == 0) {
    status = dump_schedule(compiled, c, out, &err);
  } else if (status == MGL_OK) {
    c->options.dump = c->dump;
    c->options.dump_text = out;
    status = mgl_compile(compiled, &c->options, &graph, NULL, &err);
  }
  if (status != MGL_OK) {
    mgl_text_clear(out);
    mgl_text_format(out, "error: %s\n", err.text);
  }
  mgl_task_graph_destroy(graph);
  mgl_graph_destroy(fused);
}

// Appends what is found in the form of a file's expectation.
static void append_expectation(const char *found, mgl_text *out) {
  if (strncmp(found, "error: ", 7) == 0) {
    mgl_text_format(out, "#! %s", found + 7);
    return;
  }
  while (*found != '\0') {
    size_t length = strcspn(found, "\n");
    mgl_text_format(out, "#| %.*s\n", (int)length, found);
    found += length + (found[length] == '\n' ? 1 : 0);
  }
}

// Whether what the file expects is what is found: a dump as a whole, an error by a part of it.
static bool is_expected(const char *expected, const char *found) {
  mgl_text whole = {0};
  append_expectation(found, &whole);
  bool same = strcmp(expected, string_of(&whole)) == 0;
  if (!same && strncmp(expected, "#! ", 3) == 0 && strncmp(found, "error: ", 7) == 0) {
    char part[MAX_LINE];
    (void)snprintf(part, sizeof part, "%.*s", (int)strcspn(expected + 3, "\n"), expected + 3);
    same = strstr(found, part) != NULL;
  }
  mgl_text_free(&whole);
  return same;
}

// One file: `text` is all of it. *rewritten becomes the file with what is found now.
static int run_file(const char *file, const char *text, mgl_text *rewritten) {
  mgl_graph *program = parse_program(text);
  int cases = 0;
  for (const char *at = text; *at != '\0';) {
    size_t length = strcspn(at, "\n");
    const char *next = at + length + (at[length] == '\n' ? 1 : 0);
    if (strncmp(at, "# case:", 7) != 0) {
      mgl_text_append(rewritten, at, (size_t)(next - at));
      at = next;
      continue;
    }
    char line[MAX_LINE];
    mgl_text expected = {0};
    mgl_text found = {0};
    (void)snprintf(line, sizeof line, "%.*s", (int)length - 7, at + 7);
    mgl_text_append(rewritten, at, (size_t)(next - at));
    for (at = next; strncmp(at, "#|", 2) == 0 || strncmp(at, "#!", 2) == 0; at = next) {
      next = at + strcspn(at, "\n") + 1;
      mgl_text_append(&expected, at, (size_t)(next - at));
    }
    compile_case c = read_case(file, line);
    compile_as(program, &c, &found);
    append_expectation(string_of(&found), rewritten);
    if (!is_expected(string_of(&expected), string_of(&found)) &&
        getenv("MGL_UPDATE_CASES") == NULL) {
      fail_msg("%s, case%s:\nexpected\n%sfound\n%s", file, line, string_of(&expected),
               string_of(&found));
    }
    mgl_text_free(&expected);
    mgl_text_free(&found);
    cases++;
  }
  mgl_graph_destroy(program);
  return cases;
}

static void write_file(const char *path, const mgl_text *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(text->data, 1, text->bytes, f), text->bytes);
  assert_int_equal(fclose(f), 0);
}

static char *read_whole(const char *path) {
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  mgl_text text = {0};
  char piece[4096];
  for (size_t n = 0; (n = fread(piece, 1, sizeof piece, f)) > 0;) {
    mgl_text_append(&text, piece, n);
  }
  (void)fclose(f);
  char *copy = strdup(string_of(&text));
  mgl_text_free(&text);
  return copy;
}

static void every_file_compiles_as_it_says(void **state) {
  (void)state;
  DIR *folder = opendir(FOLDER);
  assert_non_null(folder);
  int files = 0;
  int cases = 0;
  for (struct dirent *entry = NULL; (entry = readdir(folder)) != NULL;) {
    size_t length = strlen(entry->d_name);
    if (length < 5 || strcmp(entry->d_name + length - 4, ".txt") != 0) {
      continue;
    }
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", FOLDER, entry->d_name);
    char *text = read_whole(path);
    mgl_text rewritten = {0};
    int found = run_file(entry->d_name, text, &rewritten);
    if (found == 0) {
      fail_msg("%s has no case", entry->d_name);
    }
    if (getenv("MGL_UPDATE_CASES") != NULL && strcmp(text, string_of(&rewritten)) != 0) {
      write_file(path, &rewritten);
    }
    mgl_text_free(&rewritten);
    free(text);
    files++;
    cases += found;
  }
  (void)closedir(folder);
  print_message("%d cases of %d files\n", cases, files);
  assert_true(files >= LEAST_FILES);
}

// What the comparison must not let pass.
static void other_dumps_are_told(void **state) {
  (void)state;
  assert_true(is_expected("#| a\n#|   b\n", "a\n  b\n"));
  assert_false(is_expected("#| a\n", "a\n  b\n"));
  assert_false(is_expected("#| a\n#|   b\n", "a\n"));
  assert_false(is_expected("", "a\n"));
  assert_true(is_expected("#! workers\n", "error: the workers are few\n"));
  assert_false(is_expected("#! workers\n", "the workers\n"));
  assert_false(is_expected("#! workers\n", "error: tokens\n"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_file_compiles_as_it_says),
      cmocka_unit_test(other_dumps_are_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
