// megalith test: runs a range of a model's ops through the whole pipeline and compares what they
// make with the scalar reference interpreter (engine/op_test.h).
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "app/app_model.h"
#include "app/commands.h"
#include "app/interrupt.h"
#include "app/npy.h"
#include "app/output.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/npy_read.h"
#include "engine/op_test.h"

typedef struct op_test {
  const mgl_arguments *arguments;
  mgl_app_model model;
  mgl_op_test_options options;
  mgl_op_test_value *given;  // [options.given_count]; names and values are owned
  mgl_runner *runner;
  mgl_op_test *test;
  uint32_t results, passed;
  mgl_text out;
} op_test;

// --- arguments -----------------------------------------------------------------------------------

static mgl_status read_input(const char *text, mgl_op_test_value *out, mgl_error *err) {
  const char *equals = strchr(text, '=');
  float *values = NULL;
  if (equals == NULL || equals == text) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "--input: expected NAME=FILE, found \"%.80s\"",
                         text);
  }
  MGL_TRY(mgl_npy_read(equals + 1, &values, &out->count, err));
  out->values = values;
  out->name = mgl_strndup(text, (size_t)(equals - text));
  return out->name != NULL ? MGL_OK
                           : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a name");
}

static mgl_status read_inputs(op_test *t, mgl_error *err) {
  const mgl_arguments *arguments = t->arguments;
  t->given = mgl_alloc_zeroed(arguments->count + 1, sizeof *t->given);
  if (t->given == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for inputs");
  }
  t->options.given = t->given;
  for (size_t i = 0; i < arguments->count; i++) {
    if (strcmp(arguments->items[i].option->name, "input") == 0) {
      MGL_TRY(read_input(arguments->items[i].text, &t->given[t->options.given_count++], err));
    }
  }
  return MGL_OK;
}

// "FROM..TO", each of them an op; one alone; nothing for the first or the last one.
static mgl_status read_range(const op_test *t, uint32_t *first, uint32_t *last, mgl_error *err) {
  const char *text = t->arguments->second;
  *first = 0;
  *last = (uint32_t)mgl_op_test_program(t->test)->op_count - 1;
  if (text == NULL) {
    return MGL_OK;
  }
  const char *dots = strstr(text, "..");
  char *from = mgl_strndup(text, dots == NULL ? strlen(text) : (size_t)(dots - text));
  if (from == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a name");
  }
  mgl_status status = MGL_OK;
  if (from[0] != 0) {
    status = mgl_op_test_find(t->test, from, first, err);
  }
  if (status == MGL_OK && dots == NULL) {
    *last = *first;
  } else if (status == MGL_OK && dots[2] != 0) {
    status = mgl_op_test_find(t->test, dots + 2, last, err);
  }
  mgl_free(from);
  if (status == MGL_OK && *first > *last) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "expected a range in the order of the program, found op %u..%u", *first,
                           *last);
  }
  return status;
}

// --- output --------------------------------------------------------------------------------------

static void append_list(const op_test *t, mgl_text *out) {
  const mgl_graph *program = mgl_op_test_program(t->test);
  for (uint32_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    mgl_text_format(out, "%5u  %-12s %s (", i, mgl_op_info_of(op->kind)->name,
                    program->tensors[op->output].name);
    for (uint32_t j = 0, count = 0; j < op->input_count; j++) {
      const mgl_tensor *input = &program->tensors[op->inputs[j]];
      if (input->placement == MGL_PLACE_ACTIVATION || input->placement == MGL_PLACE_KV) {
        mgl_text_format(out, "%s%s", count++ == 0 ? "" : ", ", input->name);
      }
    }
    mgl_text_append_string(out, ")\n");
  }
}

static void append_heading(mgl_text *out) {
  mgl_text_append_string(out,
                         "   op  kind         output                elements  largest error "
                         "(bound)      mean error (bound)    worst element\n");
}

// Appends the place of an element, as in [2, 17].
static void append_place(const mgl_op_result *r, mgl_text *out) {
  size_t size = r->count;
  size_t at = r->worst;
  for (uint32_t i = 0; i < r->rank; i++) {
    size /= (size_t)r->dims[i];
    mgl_text_format(out, "%s%zu", i == 0 ? "[" : ", ", at / size);
    at %= size;
  }
  mgl_text_append_string(out, "]");
}

static void append_result(const op_test *t, const mgl_op_result *r, mgl_text *out) {
  const mgl_graph *program = mgl_op_test_program(t->test);
  mgl_text_format(out, "%5zu  %-12s %-20s %9zu  %8.2e (%8.2e)  %8.2e (%8.2e)  ",
                  (size_t)(r->op - program->ops), mgl_op_info_of(r->op->kind)->name, r->name,
                  r->count, r->largest, r->largest_bound, r->mean, r->mean_bound);
  append_place(r, out);
  mgl_text_format(out, ": %.6g, expected %.6g%s\n", (double)r->values[r->worst],
                  (double)r->expected[r->worst], r->passed ? "" : "  FAILED");
}

static void append_summary(const op_test *t, mgl_text *out) {
  if (t->options.tolerance >= 0) {
    mgl_text_format(out, "\nThe bound is --tolerance.");
  } else {
    mgl_text_format(out,
                    "\nThe bound is %d times the distance that the reference's results go when "
                    "each of its values is moved\nby a rounding: of bf16, by one unit in its last "
                    "place; of f32, by 2^-23 times the root of the terms of a sum.",
                    MGL_OP_TEST_FACTOR);
  }
  mgl_text_format(out, "\n%u tokens behind %u of context: %u of %u outputs passed\n",
                  t->options.tokens, t->options.context, t->passed, t->results);
}

static mgl_status save(const char *folder, const char *name, const char *suffix,
                       const mgl_op_result *r, const float *values, mgl_error *err) {
  mgl_npy npy = {.file = {.fd = -1}};
  mgl_text file = {0};
  char *path = NULL;
  mgl_text_format(&file, "%s%s.npy", name, suffix);
  mgl_status status = mgl_text_check(&file, err);
  if (status == MGL_OK) {
    status = mgl_path_join(folder, file.data, &path, err);
  }
  if (status == MGL_OK) {
    status = mgl_npy_create(path, r->rank, r->dims, &npy, err);
  }
  for (size_t row = 0; status == MGL_OK && row < r->dims[0]; row++) {
    status = mgl_npy_write_row(&npy, values + row * npy.columns, err);
  }
  if (status == MGL_OK) {
    status = mgl_npy_commit(&npy, err);
  }
  mgl_npy_close(&npy);
  mgl_free(path);
  mgl_text_free(&file);
  return status;
}

// --output FOLDER: NAME.npy and NAME.expected.npy.
static mgl_status save_result(const op_test *t, const mgl_op_result *r, mgl_error *err) {
  const char *folder = mgl_arguments_text(t->arguments, "output", NULL);
  if (folder == NULL) {
    return MGL_OK;
  }
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
    return mgl_error_set(err, MGL_ERR_IO, "%s: %s", folder, strerror(errno));
  }
  MGL_TRY(save(folder, r->name, "", r, r->values, err));
  return save(folder, r->name, ".expected", r, r->expected, err);
}

// --- the run -------------------------------------------------------------------------------------

static mgl_status run_range(op_test *t, uint32_t first, uint32_t last, mgl_error *err) {
  const mgl_op_result *results = NULL;
  uint32_t count = 0;
  if (mgl_interrupt_seen()) {
    return mgl_error_set(err, MGL_ERR_IO, "interrupted");
  }
  MGL_TRY(mgl_op_test_run(t->test, first, last, &results, &count, err));
  for (uint32_t i = 0; i < count; i++) {
    append_result(t, &results[i], &t->out);
    t->passed += results[i].passed ? 1 : 0;
    MGL_TRY(save_result(t, &results[i], err));
  }
  t->results += count;
  return MGL_OK;
}

static mgl_status run_all(op_test *t, mgl_error *err) {
  uint32_t first = 0;
  uint32_t last = 0;
  MGL_TRY(read_range(t, &first, &last, err));
  append_heading(&t->out);
  if (!mgl_arguments_has(t->arguments, "each")) {
    MGL_TRY(run_range(t, first, last, err));
  }
  for (uint32_t op = first; op <= last && mgl_arguments_has(t->arguments, "each"); op++) {
    MGL_TRY(run_range(t, op, op, err));
  }
  append_summary(t, &t->out);
  return MGL_OK;
}

static mgl_status run_test(op_test *t, mgl_error *err) {
  t->options.tokens = (uint32_t)mgl_arguments_u64(t->arguments, "tokens", 1);
  t->options.context = (uint32_t)mgl_arguments_u64(t->arguments, "context", 0);
  t->options.seed = mgl_arguments_u64(t->arguments, "seed", 1);
  t->options.mode = mgl_app_mode(t->arguments);
  t->options.tolerance = mgl_arguments_real(t->arguments, "tolerance", -1);
  mgl_build build = mgl_op_test_build(&t->options);
  build.plain = mgl_arguments_has(t->arguments, "no-fuse");
  MGL_TRY(read_inputs(t, err));
  MGL_TRY(mgl_app_model_open(t->arguments, MGL_NEED_WEIGHTS, &t->model, err));
  MGL_TRY(mgl_app_model_start(&t->model, t->arguments, &build, &t->runner, err));
  mgl_interrupt_watch();
  MGL_TRY(mgl_op_test_create(t->runner, &t->model.folder, &t->options, &t->test, err));
  if (mgl_arguments_has(t->arguments, "list")) {
    append_list(t, &t->out);
    return mgl_output_text(&t->out, err);
  }
  MGL_TRY(run_all(t, err));
  MGL_TRY(mgl_output_text(&t->out, err));
  return t->passed == t->results
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_INTERNAL,
                             "%u of %u outputs are further from the reference than their bounds",
                             t->results - t->passed, t->results);
}

static mgl_status test_command(const mgl_arguments *arguments, mgl_error *err) {
  op_test t = {.arguments = arguments};
  mgl_status status = run_test(&t, err);
  mgl_op_test_destroy(t.test);
  mgl_runner_destroy(t.runner);
  for (uint32_t i = 0; i < t.options.given_count; i++) {
    mgl_free((void *)(uintptr_t)t.given[i].name);
    mgl_free((void *)(uintptr_t)t.given[i].values);
  }
  mgl_free(t.given);
  mgl_text_free(&t.out);
  mgl_app_model_close(&t.model);
  return status;
}

static const mgl_option options[] = {
    {.name = "tokens",
     .short_name = 'n',
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_ITERATION_TOKENS,
     .help = "tokens of the iteration, all of one sequence [1]"},
    {.name = "context",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = INT32_MAX,
     .help = "tokens before them, whose K and V are in the cache; the first token's position [0]"},
    {.name = "seed",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = UINT64_MAX,
     .help = "of inputs that no file gives: normal values, cosines and sines, ids [1]"},
    {.name = "input",
     .value_name = "NAME=FILE",
     .type = MGL_OPTION_TEXT,
     .repeatable = true,
     .help = "a NumPy file for an input of the range: ids of tokens; an activation; a cache, as "
             "kv.0, [2, positions, KV heads, head dim]"},
    {.name = "output",
     .short_name = 'o',
     .value_name = "FOLDER",
     .type = MGL_OPTION_TEXT,
     .help = "write what the range made to NAME.npy and NAME.expected.npy there, float32"},
    {.name = "each", .type = MGL_OPTION_FLAG, .help = "run each op of the range by itself"},
    {.name = "list",
     .type = MGL_OPTION_FLAG,
     .help = "print the ops with their numbers, names and inputs instead"},
    {.name = "no-fuse",
     .type = MGL_OPTION_FLAG,
     .help = "the ops as the model has them, without fusing any (CPU)"},
    {.name = "mode",
     .value_name = "MODE",
     .type = MGL_OPTION_CHOICE,
     .choices = mgl_mode_choice,
     .help = "mega: as tasks; eager: the ops as the model has them, one by one; full and the other "
             "modes of fused kernels: a kernel an op (GPU) [mega]"},
    {.name = "tolerance",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 0,
     .max = 1e30,
     .help = "the largest error that passes [by how roundings move the reference]"},
    MGL_ROW_PARTITION,
};

static const mgl_option_group *const groups[] = {&mgl_place_options, NULL};

const mgl_command mgl_command_test = {
    .name = "test",
    .summary = "run a range of a model's ops and compare with a reference",
    .positional = "MODEL",
    .second = "FROM..TO",
    .description =
        "Runs ops FROM to TO of a model as a mode does, the others left out, and compares what\n"
        "leaves the range with a scalar interpreter of the unfused ops. An op is a number or a\n"
        "name, as megalith graph and --list print them; OP alone is one op, FROM.. goes to the\n"
        "last, without a range all run. On a GPU ranges of more than 64 tokens end with attend,\n"
        "gate_up or logits, and of up to 256 begin with linear_add or the first op. The exit\n"
        "status is 1 where an output differs by more than roundings explain. The CPU's level is\n"
        "set by MEGALITH_SIMD, its threads by --threads.",
    .examples =
        "megalith test path/to/model 0.v..0.gated --tokens 7 --context 40\n"
        "megalith test path/to/model --each --threads 2\n"
        "megalith test path/to/model logits --input 7.fed_forward=x.npy -o results",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .groups = groups,
    .run = test_command,
};
