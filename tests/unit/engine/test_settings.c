// Every setting of a compilation, on the CPU and on a (fake) GPU: it changes what runs, or it is
// refused with the reason; none is ignored. What runs is told by an account: the mode, what three
// iterations launch, what was made beforehand, bits of logits, files, and where code comes from.
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "device/compilation.h"
#include "device/cpu/cpu_tune.h"
#include "device/cuda/cuda_compiler.h"
#include "engine/runner.h"
#include "support/fake_cuda.h"
#include "support/plan_feed.h"
#include "support/programs.h"
#include "support/temp_folder.h"

enum { VOCAB = 304, CONTEXT = 64, SEQUENCES = 4, TOKENS = 16 };

typedef enum place { CPU, GPU, PLACES } place;

typedef struct row {
  mgl_compilation_setting setting;
  place where;
  const char *json;     // has the setting; %s: a folder
  const char *without;  // the same without it
  const char *found;    // of its account, which differs from the other's; or
  const char *refused;  // of the message
} row;

static const row rows[] = {
    {MGL_SET_PRESET, CPU, "{\"preset\": \"uniform\"}", "{}", "mode full, 3 graphs, 0 ops", NULL},
    {MGL_SET_PRESET, GPU, "{\"preset\": \"serving\"}", "{}", "mode piecewise, 9 graphs", NULL},
    {MGL_SET_PRESET, GPU, "{\"preset\": \"compiled\"}", "{}", "mode compiled, 0 graphs, 39 ops",
     NULL},
    {MGL_SET_LEVEL, CPU, "{\"level\": 0}", "{}", "mode eager", NULL},
    {MGL_SET_LEVEL, CPU, "{\"level\": 1}", "{\"level\": 0}", "level 1: all pieces and", NULL},
    {MGL_SET_LEVEL, GPU, "{\"level\": 0}", "{}", "mode eager", NULL},
    {MGL_SET_LEVEL, GPU, "{\"level\": 1}", "{\"level\": 0}", "level 1: fused tasks", NULL},
    {MGL_SET_LEVEL, GPU, "{\"level\": 2}", "{\"level\": 3}", "mode compiled, 0 graphs", NULL},
    {MGL_SET_GRAPH_MODE, CPU, "{\"graph_mode\": \"FULL_DECODE_ONLY\"}", "{}",
     "mode full-decode-only, 2 graphs", NULL},
    {MGL_SET_GRAPH_MODE, GPU, "{\"graph_mode\": \"FULL_AND_PIECEWISE\"}", "{}",
     "mode full-and-piecewise, 5 graphs, 2 ops", NULL},
    {MGL_SET_USE_GRAPHS, CPU, "{\"use_graphs\": false, \"level\": 3}", "{\"level\": 3}",
     "mode compiled, 0 graphs", NULL},
    {MGL_SET_USE_GRAPHS, GPU, "{\"use_graphs\": false, \"level\": 3}", "{\"level\": 3}",
     "mode compiled, 0 graphs", NULL},
    {MGL_SET_CAPTURE_SIZES, CPU, "{\"capture_sizes\": [2], \"graph_mode\": \"FULL\"}",
     "{\"graph_mode\": \"FULL\"}", "1 graphs, 26 ops", NULL},
    {MGL_SET_CAPTURE_SIZES, GPU, "{\"capture_sizes\": [2], \"level\": 3}", "{\"level\": 3}",
     "28 ops, 6 before", NULL},
    {MGL_SET_GRAPH_SIZES, CPU, "{\"graph_sizes\": [4], \"graph_mode\": \"FULL\"}",
     "{\"graph_mode\": \"FULL\"}", "2 graphs, 13 ops", NULL},
    {MGL_SET_GRAPH_SIZES, GPU, "{\"graph_sizes\": [4, 2], \"graph_mode\": \"FULL\"}",
     "{\"graph_mode\": \"FULL\"}", "2 graphs, 13 ops, 6 before", NULL},
    {MGL_SET_SPLITTING_OPS, CPU, "{\"splitting_ops\": [\"linear_add\"]}", "{\"level\": 3}",
     "15 graphs, 12 ops", NULL},
    {MGL_SET_SPLITTING_OPS, GPU, "{\"splitting_ops\": [\"attention\", \"kv_write\"]}",
     "{\"level\": 3}", "9 graphs, 12 ops", NULL},
    {MGL_SET_COPY_INPUTS, CPU, "{\"copy_inputs\": true, \"level\": 3}", NULL, NULL,
     "copy_inputs: on the CPU task graphs read the plan where it lies"},
    {MGL_SET_COPY_INPUTS, GPU, "{\"copy_inputs\": false, \"level\": 3}", NULL, NULL,
     "copy_inputs false: a plan's inputs are copied to fixed places"},
    {MGL_SET_USE_COMPILER, CPU, "{\"use_compiler\": false, \"use_graphs\": false, \"level\": 3}",
     "{\"use_graphs\": false, \"level\": 3}", "mode compiled, 0 graphs, 120 ops", NULL},
    {MGL_SET_USE_COMPILER, GPU, "{\"use_compiler\": false}", "{}", "mode full", NULL},
    {MGL_SET_USE_COMPILER, GPU, "{\"use_compiler\": false, \"level\": 3}", "{\"level\": 3}",
     "mode piecewise, 9 graphs, 6 ops, 15 before, 15 in all", NULL},
    {MGL_SET_USE_COMPILER, GPU, "{\"use_compiler\": true, \"splitting_ops\": [\"attention\"]}",
     NULL, NULL, "use_compiler true: on a GPU graph_mode PIECEWISE with splitting ops"},
    {MGL_SET_COMPILE_SIZES, CPU, "{\"compile_sizes\": [3], \"graph_mode\": \"FULL\"}",
     "{\"graph_mode\": \"FULL\"}", "6 in all", NULL},
    {MGL_SET_COMPILE_SIZES, GPU, "{\"compile_sizes\": [3]}", NULL, NULL,
     "compile_sizes: a GPU's kernels are compiled for any size"},
    {MGL_SET_COMPILER_CONFIG, CPU, "{\"compiler_config\": {\"compiler\": \"nvcc\"}}", NULL, NULL,
     "compiler_config: on the CPU no device code is compiled"},
    {MGL_SET_COMPILER_CONFIG, GPU, "{\"compiler_config\": {\"compiler\": \"nvcc\"}}", "{}",
     "code by nvcc", NULL},
    {MGL_SET_DEBUG_DUMP_PATH, CPU, "{\"debug_dump_path\": \"%s\"}", "{}", "dumped program.txt",
     NULL},
    {MGL_SET_DEBUG_DUMP_PATH, GPU, "{\"debug_dump_path\": \"%s\", \"level\": 3}", "{\"level\": 3}",
     "dumped program.txt", NULL},
    {MGL_SET_CACHE_DIR, CPU, "{\"cache_dir\": \"%s\"}", "{}", "ways in another folder", NULL},
    {MGL_SET_CACHE_DIR, GPU, "{\"cache_dir\": \"%s\"}", "{}", "nvrtc in another folder", NULL},
    {MGL_SET_ENFORCE_EAGER, CPU, "{\"enforce_eager\": true}", "{}", "mode eager", NULL},
    {MGL_SET_ENFORCE_EAGER, GPU, "{\"enforce_eager\": true}", "{}", "mode eager", NULL},
    {MGL_SET_CHECK_NUMBERS, CPU, "{\"check_numbers\": true, \"level\": 2}", "{\"level\": 2}",
     "looks at numbers", NULL},
    {MGL_SET_CHECK_NUMBERS, GPU, "{\"check_numbers\": true, \"level\": 0}", "{\"level\": 0}",
     "looks at numbers", NULL},
    {MGL_SET_CHECK_NUMBERS, GPU, "{\"check_numbers\": true, \"level\": 2}", NULL, NULL,
     "check_numbers: on a GPU expected level 0 or 1, whose plain kernels"},
    {MGL_SET_EXPERT_BALANCE, CPU, "{\"expert_balance\": \"hybrid\"}", "{}", "balance=3", NULL},
    {MGL_SET_EXPERT_BALANCE, GPU, "{\"expert_balance\": \"hybrid\"}", NULL, NULL,
     "expert_balance: a GPU's tasks share chosen experts evenly"},
    {MGL_SET_VARIANT, CPU, "{\"variant\": {\"rmsnorm\": \"scalar\"}}", "{}", "bits", NULL},
    {MGL_SET_VARIANT, GPU, "{\"variant\": {\"attention\": \"scalar\"}}", NULL, NULL,
     "variant: a GPU's bodies follow from the shapes of tasks"},
};
enum { ROWS = sizeof rows / sizeof *rows };

// --- an account ----------------------------------------------------------------------------------

static const plan_step steps[] = {
    {1, 1, 0, MGL_LOGITS_LAST}, {2, 6, 2, MGL_LOGITS_ALL}, {3, 1, 0, MGL_LOGITS_LAST}};
enum { STEPS = sizeof steps / sizeof *steps };

static bool exists(const char *folder, const char *name) {
  char path[TEMP_PATH_BYTES + 64];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  return access(path, F_OK) == 0;
}

// Where the CPU keeps what it measures of linears (cpu_tune.h).
static char way_folder[MGL_COMPILATION_PATH_BYTES];

mgl_tuned __real_mgl_cpu_tune(const mgl_cpu_weights *weights, const mgl_tune_options *options,
                              mgl_linear_way *out);
mgl_tuned __wrap_mgl_cpu_tune(const mgl_cpu_weights *weights, const mgl_tune_options *options,
                              mgl_linear_way *out);

mgl_tuned __wrap_mgl_cpu_tune(const mgl_cpu_weights *weights, const mgl_tune_options *options,
                              mgl_linear_way *out) {
  (void)snprintf(way_folder, sizeof way_folder, "%s", options->folder);
  return __real_mgl_cpu_tune(weights, options, out);
}

// The model's program; attention's scores overflow in a broken one. Freed by the caller.
static char *program_of(const mgl_config *config, bool broken) {
  mgl_graph *graph = build_program(config);
  mgl_text text = {0}, out = {0};
  mgl_graph_print(graph, &text);
  mgl_graph_destroy(graph);
  const char *scale = strstr(text.data, " scale=");
  assert_non_null(scale);
  const char *end = scale + 1 + strcspn(scale + 1, " ");
  mgl_text_format(&out, "%.*s scale=%s%s", (int)(scale - text.data), text.data,
                  broken ? "1e39" : "0.17", end);
  char *copy = strdup(out.data);
  mgl_text_free(&text);
  mgl_text_free(&out);
  return copy;
}

typedef struct world {
  mgl_config config;
  mgl_compilation compilation;
  mgl_cuda_device device;
  mgl_cuda_options cuda;
  temp_folder folder;
} world;

static mgl_build build_of(world *w, place where) {
  w->device = fake_cuda_device();
  w->cuda = (mgl_cuda_options){.device = &w->device, .get_code = fake_cuda_code};
  mgl_cuda_device_choose_code(&w->device, &w->compilation);
  return (mgl_build){.threads = 1,
                     .iteration_tokens = TOKENS,
                     .sequences = SEQUENCES,
                     .sequence_tokens = CONTEXT,
                     .logit_rows = TOKENS,
                     .weights = MGL_WEIGHTS_DUMMY,
                     .seed = 5,
                     .compilation = &w->compilation,
                     .cuda = where == GPU ? &w->cuda : NULL};
}

static mgl_status read_settings(world *w, const char *json, mgl_error *error) {
  char text[1024];
  (void)snprintf(text, sizeof text, json, w->folder.path);
  mgl_compilation_init(&w->compilation);
  MGL_TRY(mgl_compilation_read(&w->compilation, "test", text, error));
  return mgl_compilation_check(&w->compilation, NULL, error);
}

// Whether numbers are looked at: attention that overflows is found then.
static bool looks_at_numbers(world *w, place where) {
  const mgl_model_folder folder = {.config = w->config};
  mgl_build build = build_of(w, where);
  mgl_runner *runner = NULL;
  mgl_logits logits = {0};
  mgl_error err = {0};
  char *program = program_of(&w->config, true);
  build.program = program;
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_OK);
  plan_feed *f = plan_feed_create(mgl_runner_limits(runner), VOCAB, SEQUENCES, CONTEXT);
  plan_feed_fill(f, &steps[1]);
  mgl_status status = mgl_runner_run(runner, mgl_runner_usual_mode(runner), f->plan, &logits, &err);
  assert_true(status == MGL_OK || strstr(err.text, "op attention computed") != NULL ||
              strstr(err.text, "op attend computed") != NULL);
  plan_feed_destroy(f);
  mgl_runner_destroy(runner);
  free(program);
  return status != MGL_OK;
}

static void run_steps(mgl_runner *runner, mgl_text *out) {
  plan_feed *f = plan_feed_create(mgl_runner_limits(runner), VOCAB, SEQUENCES, CONTEXT);
  mgl_hash hash = {0};
  mgl_text bits = {0};
  char text[MGL_HASH_TEXT_BYTES];
  uint64_t before = mgl_runner_launches(runner).entries;
  for (uint32_t i = 0; i < STEPS; i++) {
    mgl_logits logits = {0};
    plan_feed_fill(f, &steps[i]);
    MUST(mgl_runner_run(runner, mgl_runner_usual_mode(runner), f->plan, &logits, &err));
    mgl_text_append(&bits, (const char *)logits.rows,
                    (size_t)f->plan->logit_row_count * VOCAB * sizeof *logits.rows);
  }
  hash = mgl_hash_bytes(bits.data, bits.bytes);
  mgl_hash_text(hash, text);
  const mgl_launch_counts counts = mgl_runner_launches(runner);
  mgl_text_format(out, "mode %s, %u graphs, %u ops, %u before, %u in all; bits %s",
                  mgl_mode_name(mgl_runner_usual_mode(runner)), (unsigned)counts.graphs,
                  (unsigned)counts.ops, (unsigned)before, (unsigned)counts.entries, text);
  mgl_text_free(&bits);
  plan_feed_destroy(f);
}

// Says what runs, or fails with the message of whoever refused it.
static mgl_status tell(world *w, place where, const char *json, mgl_text *out, mgl_error *error) {
  const mgl_model_folder folder = {.config = w->config};
  mgl_runner *runner = NULL;
  MGL_TRY(read_settings(w, json, error));
  const mgl_build build = build_of(w, where);
  MGL_TRY(mgl_runner_create(&folder, &build, &runner, error));
  // The megakernel of the fake GPU computes no numbers.
  if (where == CPU || mgl_runner_usual_mode(runner) != MGL_MODE_MEGA) {
    run_steps(runner, out);
  } else {
    mgl_text_format(out, "mode mega");
  }
  mgl_text_format(out, "; %s; code by %s%s", mgl_runner_note(runner), w->device.compiler->name,
                  strcmp(w->device.cache_folder, w->folder.path) == 0 ? " in another folder" : "");
  mgl_text_format(out, "%s",
                  exists(w->folder.path, "rank_0/program.txt") ? "; dumped program.txt" : "");
  bool ways = where == CPU && strcmp(way_folder, w->folder.path) == 0;
  mgl_text_format(out, "%s\n", ways ? "; ways in another folder" : "");
  mgl_graph_print(mgl_runner_program(runner), out);
  mgl_runner_destroy(runner);
  mgl_text_format(out, "%s", looks_at_numbers(w, where) ? "; looks at numbers" : "");
  return MGL_OK;
}

// --- the table -----------------------------------------------------------------------------------

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk) {
  (void)info, (void)kind, (void)walk;
  return remove(path);
}

static void begin_world(world *w, const row *r) {
  *w = (world){.config = r->setting == MGL_SET_EXPERT_BALANCE ? small_mixture_config()
                                                              : small_config(MGL_FAMILY_QWEN3)};
  w->config.vocab_size = VOCAB;
  if (r->setting == MGL_SET_VARIANT) {
    w->config.dtype = MGL_DTYPE_F32;  // shows the last bits of kernels
  }
  temp_folder_create(&w->folder);
}

static void end_world(const world *w) {
  assert_int_equal(nftw(w->folder.path, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

// False: it says what is wrong.
static bool check_row(const row *r) {
  world w;
  mgl_text with = {0}, without = {0};
  mgl_error err = {0};
  bool fine = true;
  begin_world(&w, r);
  mgl_status status = tell(&w, r->where, r->json, &with, &err);
  if (r->refused != NULL) {
    fine = status != MGL_OK && strstr(err.text, r->refused) != NULL && !strchr(err.text, '\n') &&
           fake.live == 0;
    if (!fine) {
      print_message("%s: expected \"%s\", found \"%s\"\n", r->json, r->refused, err.text);
    }
  } else {
    end_world(&w);
    begin_world(&w, r);
    status = status == MGL_OK ? tell(&w, r->where, r->without, &without, &err) : status;
    bool only_bits = strcmp(r->found, "bits") == 0;
    fine = status == MGL_OK && strcmp(with.data, without.data) != 0 &&
           strstr(with.data, r->found) != NULL &&
           (only_bits || strstr(without.data, r->found) == NULL);
    if (!fine) {
      print_message("%s: expected \"%s\", and not without it, found \"%.200s\" and \"%.200s\" %s\n",
                    r->json, r->found, with.data != NULL ? with.data : "",
                    without.data != NULL ? without.data : "", err.text);
    }
  }
  mgl_text_free(&with);
  mgl_text_free(&without);
  end_world(&w);
  return fine;
}

static void settings_change_what_runs_or_are_refused(void **state) {
  uint32_t bad = 0;
  (void)state;
  for (size_t i = 0; i < ROWS; i++) {
    if (rows[i].setting == MGL_SET_VARIANT && mgl_simd_detected() == MGL_SIMD_SCALAR) {
      continue;  // this processor has one kernel for each op
    }
    bad += !check_row(&rows[i]);
  }
  assert_int_equal(bad, 0);
}

static void every_setting_is_in_the_table(void **state) {
  (void)state;
  for (int setting = 0; setting < MGL_SET_COUNT; setting++) {
    for (int where = 0; where < PLACES; where++) {
      bool found = false;
      for (size_t i = 0; i < ROWS; i++) {
        found = found || ((int)rows[i].setting == setting && (int)rows[i].where == where);
      }
      if (!found) {
        fail_msg("setting %d has no row for place %d", setting, where);
      }
    }
  }
}

// All presets run on both, and give the bits of the first.
static void presets_run(void **state) {
  (void)state;
  for (int where = 0; where < PLACES; where++) {
    char first[MGL_HASH_TEXT_BYTES + 8] = "";
    for (uint32_t i = 0; mgl_preset_name(i) != NULL; i++) {
      const row r = {.where = (place)where};
      const char *name = mgl_preset_name(i);
      char json[128];
      world w;
      mgl_text text = {0};
      mgl_error err = {0};
      (void)snprintf(json, sizeof json, "{\"preset\": \"%s\"}", name);
      begin_world(&w, &r);
      mgl_status status = tell(&w, r.where, json, &text, &err);
      // The fused kernels of the fake GPU compute no numbers.
      bool fused = strcmp(name, "debug") != 0 && strcmp(name, "check") != 0;
      if (status != MGL_OK) {
        fail_msg("%s: %s", json, err.text);
      } else if (where == CPU || !fused) {
        const char *bits = strstr(text.data, "bits ");
        assert_non_null(bits);
        if (first[0] == 0) {
          (void)snprintf(first, sizeof first, "%.*s", (int)strcspn(bits + 5, ";") + 5, bits);
        }
        if (strncmp(bits, first, strlen(first)) != 0) {
          fail_msg("%s: expected %s, found %.60s", json, first, bits);
        }
      }
      mgl_text_free(&text);
      end_world(&w);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(settings_change_what_runs_or_are_refused),
      cmocka_unit_test(every_setting_is_in_the_table),
      cmocka_unit_test(presets_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
