#include "app/compile_options.h"

#include "base/alloc.h"

static const mgl_option rows[] = {
    {.name = "preset",
     .value_name = "NAME",
     .type = MGL_OPTION_CHOICE,
     .choices = mgl_preset_choice,
     .help = "what the run is for: debug, check, compiled, serving, uniform, decode-instance, "
             "fastest-graphs or fastest [fastest]"},
    {.name = "level",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = MGL_MOST_COMPILE_LEVEL,
     .help = "0: op by op; 1: the same once all was compiled and checked; 2: fused ops one by one; "
             "3: in graphs [3]"},
    {.name = "graph-mode",
     .value_name = "MODE",
     .type = MGL_OPTION_TEXT,
     .help = "of level 3: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE or MEGA "
             "[MEGA, with --level 3 PIECEWISE]"},
    {.name = "use-graphs",
     .value_name = "BOOL",
     .type = MGL_OPTION_TEXT,
     .help = "false: no graphs, as --graph-mode NONE"},
    {.name = "capture-sizes",
     .value_name = "N,N,...",
     .type = MGL_OPTION_TEXT,
     .help = "tokens of iterations that have graphs; others are padded, larger ones run op by op"},
    {.name = "graph-sizes",
     .value_name = "N",
     .type = MGL_OPTION_TEXT,
     .help = "the same as 1, 2, 4, 8, 16, 32, ... N in steps of 16 [powers of two]"},
    {.name = "compile-sizes",
     .value_name = "N,N,...",
     .type = MGL_OPTION_TEXT,
     .help = "CPU: tokens of iterations that have graphs of their own, not padded"},
    {.name = "splitting-ops",
     .value_name = "OP,OP,...",
     .type = MGL_OPTION_TEXT,
     .help = "ops that run by themselves between pieces, by kind or name [attention]"},
    {.name = "copy-inputs",
     .value_name = "BOOL",
     .type = MGL_OPTION_TEXT,
     .help = "of pieces: copy a plan's inputs to fixed places, as a GPU does and the CPU does not"},
    {.name = "use-compiler",
     .value_name = "BOOL",
     .type = MGL_OPTION_TEXT,
     .help = "false: ops are not fused [true]"},
    {.name = "compiler-config",
     .value_name = "compiler=NAME",
     .type = MGL_OPTION_TEXT,
     .help = "GPU: what compiles its code, compiler=nvrtc or compiler=nvcc [compiler=nvrtc]"},
    {.name = "enforce-eager", .type = MGL_OPTION_FLAG, .help = "op by op, as --level 0"},
    {.name = "check-numbers",
     .type = MGL_OPTION_FLAG,
     .help = "of levels 0 to 2: look for NaN and infinities after every op, and name it"},
    {.name = "expert-balance",
     .value_name = "HOW",
     .type = MGL_OPTION_CHOICE,
     .choices = mgl_balance_choice,
     .help = "CPU: how tasks share a mixture's experts: columns of every one, static, dynamic or "
             "hybrid shares of them [columns]"},
    {.name = "variant",
     .value_name = "OP=NAME,...",
     .type = MGL_OPTION_TEXT,
     .help = "CPU: compute an op with another kernel, attention=scalar; `megalith compile` prints "
             "which are taken [the widest that the processor has]"},
    {.name = "debug-dump-path",
     .value_name = "FOLDER",
     .type = MGL_OPTION_FILE,
     .help = "write the program, its pieces and task graphs into files there"},
    {.name = "cache-dir",
     .value_name = "FOLDER",
     .type = MGL_OPTION_FILE,
     .help = "where compiled code is kept [MEGALITH_CACHE, or ~/.cache/megalith]"},
    {.name = "compilation-config",
     .value_name = "JSON",
     .type = MGL_OPTION_TEXT,
     .help = "all of these as a JSON object, or a file with one (docs/modes.md)"},
};

const mgl_option_group mgl_compile_options_group = {rows, sizeof rows / sizeof *rows};

static bool is_row(const mgl_option *option) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (option == &rows[i]) {
      return true;
    }
  }
  return false;
}

mgl_status mgl_app_compile_settings(const mgl_arguments *arguments, mgl_compile_settings *out,
                                    mgl_error *err) {
  mgl_compile_option *given = mgl_alloc_zeroed(arguments->count + 1, sizeof *given);
  size_t count = 0;
  *out = (mgl_compile_settings){.is_mega = true};
  if (given == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for settings");
  }
  for (size_t i = 0; i < arguments->count; i++) {
    const mgl_option *option = arguments->items[i].option;
    if (is_row(option)) {
      const char *text = option->type == MGL_OPTION_FLAG ? "true" : arguments->items[i].text;
      given[count++] = (mgl_compile_option){.name = option->name, .text = text};
    }
  }
  const mgl_argument *mode = mgl_arguments_find(arguments, "mode");
  mgl_status status =
      mgl_compile_settings_read(given, count, mode == NULL ? NULL : mode->text, out, err);
  mgl_free(given);
  return status;
}
