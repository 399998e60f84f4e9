// Levels, graph modes and the settings of a compilation: the predicates' truth table, presets, what
// settings come to, and 60 bad ones with one message each, all before anything is loaded.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/compilation.h"
#include "support/must.h"
#include "support/temp_folder.h"

// --- predicates ----------------------------------------------------------------------------------

static void the_predicates_have_their_truth_table(void **state) {
  (void)state;
  enum { NO = MGL_GRAPHS_NONE, PIECES = MGL_GRAPHS_PIECEWISE, FULL = MGL_GRAPHS_FULL };
  enum { MEGA = MGL_GRAPHS_MEGA };
  static const struct {
    mgl_graph_mode mode;
    int decode, mixed, most;
    bool separate, full, pieces;
  } table[] = {
      {MGL_GRAPHS_NONE, NO, NO, NO, false, false, false},
      {MGL_GRAPHS_PIECEWISE, PIECES, PIECES, PIECES, false, false, true},
      {MGL_GRAPHS_FULL, FULL, FULL, FULL, false, true, false},
      {MGL_GRAPHS_MEGA, MEGA, MEGA, MEGA, false, false, false},
      {MGL_GRAPHS_FULL_DECODE_ONLY, FULL, NO, FULL, true, true, false},
      {MGL_GRAPHS_FULL_AND_PIECEWISE, FULL, PIECES, FULL, true, true, true},
  };
  assert_int_equal(sizeof table / sizeof *table, MGL_GRAPHS_COUNT);
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    mgl_graph_mode mode = table[i].mode, parsed = MGL_GRAPHS_COUNT;
    assert_int_equal(mgl_graph_mode_decode(mode), table[i].decode);
    assert_int_equal(mgl_graph_mode_mixed(mode), table[i].mixed);
    assert_int_equal(mgl_graph_mode_max(mode), table[i].most);
    assert_int_equal(mgl_graph_mode_is_separate(mode), table[i].separate);
    assert_int_equal(mgl_graph_mode_has_full(mode), table[i].full);
    assert_int_equal(mgl_graph_mode_needs_pieces(mode), table[i].pieces);
    MUST(mgl_graph_mode_parse(mgl_graph_mode_name(mode), &parsed, &err));
    assert_int_equal(parsed, mode);
  }
}

static void modes_have_names_levels_and_graph_modes(void **state) {
  (void)state;
  for (int i = 0; i < MGL_MODE_COUNT; i++) {
    mgl_mode mode = (mgl_mode)i, parsed = MGL_MODE_COUNT;
    mgl_compilation c;
    MUST(mgl_mode_parse(mgl_mode_name(mode), &parsed, &err));
    assert_int_equal(parsed, mode);
    mgl_compilation_init(&c);
    MUST(mgl_compilation_set_mode(&c, mode, &err));
    MUST(mgl_compilation_check(&c, NULL, &err));
    assert_int_equal(c.mode, mode);
  }
  assert_int_equal(mgl_mode_of(MGL_LEVEL_CHECK, MGL_GRAPHS_NONE), MGL_MODE_EAGER);
  assert_int_equal(mgl_mode_of(MGL_LEVEL_PIECEWISE, MGL_GRAPHS_NONE), MGL_MODE_COMPILED);
}

// --- good settings -------------------------------------------------------------------------------

static void read_text(const char *text, mgl_compilation *c) {
  mgl_compilation_init(c);
  MUST(mgl_compilation_read(c, "settings", text, &err));
  MUST(mgl_compilation_check(c, NULL, &err));
}

static void check_sizes(const char *text, uint32_t most, const uint32_t *expected, uint32_t count) {
  mgl_compilation c;
  mgl_size_list sizes;
  read_text(text, &c);
  mgl_compilation_sizes(&c, most, &sizes);
  assert_int_equal(sizes.count, count);
  assert_memory_equal(sizes.items, expected, count * sizeof *expected);
}

static void sizes_are_explicit_a_list_or_a_limit(void **state) {
  (void)state;
  static const uint32_t limit[] = {1, 2, 4, 8, 16, 32, 48, 64};
  check_sizes("{\"cuda_graph_sizes\": [64]}", 512, limit, 8);
  check_sizes("{\"cuda_graph_sizes\": [79]}", 512, limit, 8);
  check_sizes("{\"graph_sizes\": [512]}", 50, limit, 7);
  check_sizes("{\"graph_sizes\": [5]}", 50, limit, 3);
  check_sizes("{\"graph_sizes\": [4, 2, 1]}", 50, limit, 3);
  check_sizes("{\"cudagraph_capture_sizes\": [8, 1, 4, 2]}", 50, limit, 4);
  check_sizes("{}", 50, limit, 0);
  mgl_compilation c;
  mgl_size_list sizes;
  read_text("{\"graph_sizes\": [512]}", &c);
  mgl_compilation_sizes(&c, 2048, &sizes);
  assert_int_equal(sizes.count, 4 + 32);
  assert_int_equal(sizes.items[35], 512);
}

static void presets_are_levels_and_graph_modes(void **state) {
  (void)state;
  static const struct {
    const char *text;
    mgl_mode mode;
    mgl_compile_level level;
  } cases[] = {
      {"{\"preset\": \"debug\"}", MGL_MODE_EAGER, MGL_LEVEL_EAGER},
      {"{\"preset\": \"check\"}", MGL_MODE_EAGER, MGL_LEVEL_CHECK},
      {"{\"preset\": \"compiled\"}", MGL_MODE_COMPILED, MGL_LEVEL_COMPILED},
      {"{\"preset\": \"serving\"}", MGL_MODE_PIECEWISE, MGL_LEVEL_PIECEWISE},
      {"{\"preset\": \"uniform\"}", MGL_MODE_FULL, MGL_LEVEL_PIECEWISE},
      {"{\"preset\": \"decode-instance\"}", MGL_MODE_FULL_DECODE_ONLY, MGL_LEVEL_PIECEWISE},
      {"{\"preset\": \"fastest-graphs\"}", MGL_MODE_FULL_AND_PIECEWISE, MGL_LEVEL_PIECEWISE},
      {"{\"preset\": \"fastest\"}", MGL_MODE_MEGA, MGL_LEVEL_PIECEWISE},
      {"{\"preset\": \"serving\", \"graph_mode\": \"FULL\"}", MGL_MODE_FULL, MGL_LEVEL_PIECEWISE},
      {"{\"graph_mode\": \"FULL\", \"preset\": \"serving\"}", MGL_MODE_FULL, MGL_LEVEL_PIECEWISE},
      {"{}", MGL_MODE_MEGA, MGL_LEVEL_PIECEWISE},
      {"{\"level\": null, \"graph_mode\": null}", MGL_MODE_MEGA, MGL_LEVEL_PIECEWISE},
      {"{\"level\": 0}", MGL_MODE_EAGER, MGL_LEVEL_EAGER},
      {"{\"level\": 1}", MGL_MODE_EAGER, MGL_LEVEL_CHECK},
      {"{\"level\": 2}", MGL_MODE_COMPILED, MGL_LEVEL_COMPILED},
      {"{\"level\": 3}", MGL_MODE_PIECEWISE, MGL_LEVEL_PIECEWISE},
      {"{\"level\": 3, \"use_cudagraph\": false}", MGL_MODE_COMPILED, MGL_LEVEL_PIECEWISE},
      {"{\"cudagraph_mode\": \"full-decode-only\"}", MGL_MODE_FULL_DECODE_ONLY,
       MGL_LEVEL_PIECEWISE},
      {"{\"enforce_eager\": true}", MGL_MODE_EAGER, MGL_LEVEL_EAGER},
      {"{\"enforce_eager\": false}", MGL_MODE_MEGA, MGL_LEVEL_PIECEWISE},
      {"{\"splitting_ops\": [\"attention\"]}", MGL_MODE_PIECEWISE, MGL_LEVEL_PIECEWISE},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_compilation c;
    read_text(cases[i].text, &c);
    if (c.mode != cases[i].mode || c.level != cases[i].level) {
      fail_msg("%s: expected %s, found %s", cases[i].text, mgl_mode_name(cases[i].mode),
               mgl_mode_name(c.mode));
    }
  }
  uint32_t named = 0;
  while (mgl_preset_name(named) != NULL) {
    named++;
  }
  assert_int_equal(named, 8);
}

// Whatever was given is printed, and means the same when it is read again; also from a file.
static void what_is_printed_is_read_again(void **state) {
  (void)state;
  static const char text[] =
      "{\"level\": 3, \"graph_mode\": \"FULL_AND_PIECEWISE\", \"use_graphs\": true, "
      "\"capture_sizes\": [1, 8], \"splitting_ops\": [\"attention\", \"2.gated\"], "
      "\"copy_inputs\": true, \"use_compiler\": true, \"compile_sizes\": [3, \"capture_sizes\"], "
      "\"compiler_config\": {\"compiler\": \"nvrtc\"}, \"debug_dump_path\": \"/tmp/a \\u0022\", "
      "\"cache_dir\": \"/tmp/b\", \"enforce_eager\": false, \"check_numbers\": false, "
      "\"expert_balance\": \"hybrid\", \"variant\": {\"attention\": \"scalar\"}}";
  mgl_compilation c, again;
  mgl_text printed = {0};
  temp_folder folder;
  read_text(text, &c);
  mgl_compilation_print(&c, &printed);
  assert_string_equal(printed.data, text);
  temp_folder_create(&folder);
  char path[TEMP_PATH_BYTES];
  temp_folder_write(&folder, "settings.json", printed.data, printed.bytes);
  temp_folder_path(&folder, "settings.json", path);
  mgl_compilation_init(&again);
  MUST(mgl_compilation_read(&again, "settings", path, &err));
  MUST(mgl_compilation_check(&again, NULL, &err));
  assert_memory_equal(&again, &c, sizeof c);
  mgl_text_clear(&printed);
  read_text("{\"preset\": \"serving\"}", &c);
  mgl_compilation_print(&c, &printed);
  assert_string_equal(printed.data, "{\"level\": 3, \"graph_mode\": \"PIECEWISE\"}");
  mgl_text_free(&printed);
  temp_folder_remove(&folder);
}

// --- bad settings --------------------------------------------------------------------------------

enum { NOWHERE, CPU, GPU, RANKS };

typedef struct bad {
  const char *text;
  const char *message;  // its beginning
  int where;            // NOWHERE: already when it is read
} bad;

static const bad bads[] = {
    // What is no object of settings.
    {"", "settings: expected a JSON object or the path of a file with one, found an empty text", 0},
    {"{", "settings: ", 0},
    {"{} x", "settings: ", 0},
    {"{\"level\": 1, \"level\": 2}", "settings: ", 0},
    {"/nowhere/settings.json", "cannot open /nowhere/settings.json", 0},
    {"{\"lvel\": 1}", "settings: unknown setting \"lvel\" (did you mean level?)", 0},
    {"{\"graph_bs\": [1]}", "settings: graph_bs is what capture_sizes and graph_sizes come to", 0},
    // Level.
    {"{\"level\": 4}", "settings: level: expected a level of 0 to 3, found \"4\"", 0},
    {"{\"level\": -1}", "settings: level: expected a level of 0 to 3, found \"-1\"", 0},
    {"{\"level\": \"3\"}", "settings: level: expected a whole number", 0},
    {"{\"level\": 1.5}", "settings: level: expected a whole number", 0},
    {"{\"level\": true}", "settings: level: expected a whole number", 0},
    {"{\"level\": [3]}", "settings: level: expected no list", 0},
    {"{\"level\": {}}", "settings: level: expected no object", 0},
    // Graph mode.
    {"{\"graph_mode\": \"PIECES\"}", "settings: graph_mode: expected NONE, PIECEWISE, FULL", 0},
    {"{\"cudagraph_mode\": 2}", "settings: cudagraph_mode: expected a string", 0},
    {"{\"level\": 0, \"graph_mode\": \"FULL\"}", "graph_mode FULL: expected level 3", 0},
    {"{\"level\": 2, \"graph_mode\": \"PIECEWISE\"}", "graph_mode PIECEWISE: expected level 3", 0},
    {"{\"level\": 1, \"graph_mode\": \"MEGA\"}", "graph_mode MEGA: expected level 3", 0},
    {"{\"use_graphs\": 0}", "settings: use_graphs: expected true or false", 0},
    {"{\"use_graphs\": \"yes\"}", "settings: use_graphs: expected true or false", 0},
    {"{\"use_graphs\": false, \"graph_mode\": \"FULL\"}", "use_graphs false: expected graph_mode",
     0},
    {"{\"use_graphs\": true, \"level\": 2}", "use_graphs true: expected level 3 and", 0},
    // Eager.
    {"{\"enforce_eager\": true, \"level\": 3}", "enforce_eager: expected level 0 beside it", 0},
    {"{\"enforce_eager\": true, \"graph_mode\": \"FULL\"}", "enforce_eager: expected graph_mode",
     0},
    {"{\"enforce_eager\": true, \"preset\": \"serving\"}", "enforce_eager: expected no preset", 0},
    {"{\"enforce_eager\": 1}", "settings: enforce_eager: expected true or false", 0},
    // Presets.
    {"{\"preset\": \"fast\"}", "settings: preset: expected debug, check, compiled, serving", 0},
    {"{\"preset\": 3}", "settings: preset: expected a string", 0},
    {"{\"preset\": \"debug\", \"graph_mode\": \"FULL\"}", "graph_mode FULL: expected level 3", 0},
    // Sizes.
    {"{\"capture_sizes\": []}", "settings: capture_sizes: expected at least one value", 0},
    {"{\"capture_sizes\": 8}", "settings: capture_sizes: expected a list", 0},
    {"{\"capture_sizes\": [0]}", "settings: capture_sizes: expected sizes in tokens, each", 0},
    {"{\"capture_sizes\": [2049]}", "settings: capture_sizes: expected sizes in tokens, each", 0},
    {"{\"capture_sizes\": [-4]}", "settings: capture_sizes: expected sizes in tokens, each", 0},
    {"{\"capture_sizes\": [1.5]}", "settings: capture_sizes: expected a whole number, a string", 0},
    {"{\"capture_sizes\": [\"all\"]}", "settings: capture_sizes: expected sizes in tokens", 0},
    {"{\"capture_sizes\": [8, 8]}", "settings: capture_sizes: expected each size once, found 8", 0},
    {"{\"capture_sizes\": [99999999999999999999]}", "settings: ", 0},
    {"{\"capture_sizes\": [[1]]}", "settings: capture_sizes: expected a whole number, a string", 0},
    {"{\"cuda_graph_sizes\": [3, 3]}", "settings: cuda_graph_sizes: expected each size once", 0},
    {"{\"capture_sizes\": [8], \"graph_sizes\": [8]}", "graph_sizes: expected no capture_sizes", 0},
    {"{\"capture_sizes\": [8], \"level\": 0}", "capture_sizes: expected level 3 and graph_mode", 0},
    {"{\"graph_sizes\": [8], \"graph_mode\": \"MEGA\"}", "graph_sizes: expected level 3 and", 0},
    {"{\"compile_sizes\": [\"capture_sizes\"]}", "compile_sizes \"capture_sizes\": expected", 0},
    {"{\"compile_sizes\": [\"sizes\"]}", "settings: compile_sizes: expected sizes in tokens", 0},
    {"{\"compile_sizes\": [4], \"graph_mode\": \"MEGA\"}", "compile_sizes: expected level 3", 0},
    // Pieces.
    {"{\"splitting_ops\": []}", "settings: splitting_ops: expected at least one value", 0},
    {"{\"splitting_ops\": \"attention\"}", "settings: splitting_ops: expected a list", 0},
    {"{\"splitting_ops\": [\"\"]}", "settings: splitting_ops: expected ", 0},
    {"{\"splitting_ops\": [\"a\", \"a\"]}", "settings: splitting_ops: expected each op once", 0},
    {"{\"splitting_ops\": [\"a\"], \"graph_mode\": \"FULL\"}", "splitting_ops: expected graph_mode",
     0},
    {"{\"copy_inputs\": true, \"graph_mode\": \"FULL\"}", "copy_inputs: expected graph_mode", 0},
    {"{\"copy_inputs\": true, \"level\": 3}", "copy_inputs: on the CPU task graphs read", CPU},
    {"{\"copy_inputs\": false, \"level\": 3}", "copy_inputs false: a plan's inputs are", GPU},
    // Compilers, checks, paths.
    {"{\"use_inductor\": false, \"level\": 2}", "use_compiler false: expected level 0 or 3", 0},
    {"{\"use_compiler\": true, \"level\": 0}", "use_compiler true: expected level 1, 2 or 3", 0},
    {"{\"use_compiler\": true, \"level\": 3, \"splitting_ops\": [\"linear\"]}",
     "use_compiler true: on a GPU graph_mode", GPU},
    {"{\"use_compiler\": true, \"splitting_ops\": [\"kv_write\"]}",
     "use_compiler true: on a GPU graph_mode", GPU},
    {"{\"use_compiler\": false}", "use_compiler false: ops of several ranks", RANKS},
    {"{\"compiler_config\": {\"compiler\": \"gcc\"}}", "settings: compiler_config: expected", 0},
    {"{\"compiler_config\": [1]}", "settings: compiler_config: expected an object", 0},
    {"{\"inductor_compile_config\": {\"max_autotune\": true}}",
     "settings: inductor_compile_config: max_autotune: sizes of tiles are constants", 0},
    {"{\"compiler_config\": {\"compiler\": \"nvrtc\"}}", "compiler_config: on the CPU no", CPU},
    {"{\"compile_sizes\": [4]}", "compile_sizes: a GPU's kernels are compiled for any", GPU},
    {"{\"check_numbers\": true}", "check_numbers: expected level 0, 1 or 2", 0},
    {"{\"check_numbers\": true, \"level\": 3}", "check_numbers: expected level 0, 1 or 2", 0},
    {"{\"expert_balance\": \"even\"}", "settings: expert_balance: expected columns, static,", 0},
    {"{\"expert_balance\": 2}", "settings: expert_balance: expected a string", 0},
    {"{\"expert_balance\": \"hybrid\"}", "expert_balance: a GPU's tasks share chosen", GPU},
    {"{\"cache_dir\": \"\"}", "settings: cache_dir: expected the path of a folder", 0},
    {"{\"cache_dir\": 7}", "settings: cache_dir: expected a string", 0},
    {"{\"debug_dump_path\": \"\"}", "settings: debug_dump_path: expected the path of a", 0},
    {"{\"variant\": \"scalar\"}", "settings: variant: expected an object", 0},
    {"{\"variant\": {\"linear\": \"scalar\"}}", "settings: variant: expected an op of embed", 0},
    {"{\"variant\": {\"attention\": \"best\"}}", "settings: variant: attention: expected a kernel",
     0},
    {"{\"variant\": {\"attention\": \"scalar\"}}", "variant: a GPU's bodies follow from", GPU},
    // Places.
    {"{\"level\": 2, \"check_numbers\": true}", "check_numbers: on a GPU expected level 0 or", GPU},
    {"{\"level\": 3}", "mode piecewise: expected mega, which alone runs on several", RANKS},
    {"{\"capture_sizes\": [99]}", "capture_sizes: expected at most the 64 tokens of an", CPU},
    {"{\"capture_sizes\": [9], \"graph_mode\": \"FULL_DECODE_ONLY\"}",
     "capture_sizes: expected at most the 8 sequences that may run, found 9", CPU},
    {"{\"graph_sizes\": [1, 65]}", "graph_sizes: expected at most the 64 tokens of an", CPU},
    {"{\"compile_sizes\": [65], \"level\": 3}", "compile_sizes: expected at most the 64", CPU},
};

static void bad_settings_have_one_message_each(void **state) {
  (void)state;
  enum { COUNT = sizeof bads / sizeof *bads };
  int64_t live = mgl_alloc_live();
  assert_true(COUNT >= 60);
  for (size_t i = 0; i < COUNT; i++) {
    const bad *b = &bads[i];
    const mgl_compilation_place place = {
        .gpu = b->where == GPU, .ranks = b->where == RANKS ? 2 : 1, .sequences = 8, .tokens = 64};
    mgl_compilation c;
    mgl_error err = {0};
    mgl_compilation_init(&c);
    mgl_status status = mgl_compilation_read(&c, "settings", b->text, &err);
    if (status == MGL_OK) {
      status = mgl_compilation_check(&c, NULL, &err);
    }
    if (b->where != NOWHERE) {
      assert_int_equal(status, MGL_OK);  // it is the place that has a say
      status = mgl_compilation_check(&c, &place, &err);
    }
    if (status == MGL_OK || strncmp(err.text, b->message, strlen(b->message)) != 0 ||
        strchr(err.text, '\n') != NULL) {
      fail_msg("%s: expected \"%s\", found \"%s\"", b->text, b->message, err.text);
    }
  }
  assert_int_equal(mgl_alloc_live(), live);
}

// As the command line has them: a mode beside what says the same, and too much of something.
static void settings_by_name(void **state) {
  (void)state;
  mgl_compilation c;
  mgl_error error = {0};
  char many[4096] = "1";
  char path[MGL_COMPILATION_PATH_BYTES + 1];
  mgl_compilation_init(&c);
  MUST(mgl_compilation_set(&c, "--", "capture_sizes", "1,2,4", &err));
  MUST(mgl_compilation_set_mode(&c, MGL_MODE_FULL, &err));
  MUST(mgl_compilation_check(&c, NULL, &err));
  assert_int_equal(c.capture_sizes.count, 3);
  assert_int_equal(c.mode, MGL_MODE_FULL);
  MUST(mgl_compilation_set(&c, "--", "level", "3", &err));
  assert_int_equal(mgl_compilation_set_mode(&c, MGL_MODE_FULL, &error), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(error.text, "mode full: expected it alone, found level"));
  for (int i = 2; i <= MGL_MAX_GRAPH_SIZES + 1; i++) {
    (void)snprintf(many + strlen(many), sizeof many - strlen(many), ",%d", i);
  }
  assert_int_equal(mgl_compilation_set(&c, "--", "capture_sizes", many, &error), MGL_ERR_LIMIT);
  assert_string_equal(error.text, "--capture_sizes: expected at most 256 sizes");
  memset(path, 'a', sizeof path - 1);
  path[sizeof path - 1] = 0;
  assert_int_equal(mgl_compilation_set(&c, "--", "cache_dir", path, &error), MGL_ERR_ARGUMENT);
  assert_int_equal(mgl_compilation_set(&c, "--", "splitting_ops", path, &error), MGL_ERR_ARGUMENT);
  assert_int_equal(mgl_compilation_set(&c, "--", "capture_sizes", "1,,2", &error),
                   MGL_ERR_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_predicates_have_their_truth_table),
      cmocka_unit_test(modes_have_names_levels_and_graph_modes),
      cmocka_unit_test(sizes_are_explicit_a_list_or_a_limit),
      cmocka_unit_test(presets_are_levels_and_graph_modes),
      cmocka_unit_test(what_is_printed_is_read_again),
      cmocka_unit_test(bad_settings_have_one_message_each),
      cmocka_unit_test(settings_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
