// How a model shall be compiled and launched, as a user says it: one reader and one check for the
// command line, the C API and JSON files, before anything is loaded.
//
// Every setting either changes what runs or is refused with the reason. docs/modes.md has them all.
#ifndef MGL_DEVICE_COMPILATION_H
#define MGL_DEVICE_COMPILATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "base/text.h"
#include "compile/split.h"
#include "device/graph_mode.h"
#include "graph/balance.h"
#include "kernels/cpu/cpu_variant.h"

enum {
  MGL_MAX_GRAPH_SIZES = 256,  // of iterations that have graphs
  MGL_MAX_OP_NAME_BYTES = 64,
  MGL_COMPILATION_PATH_BYTES = 1024,
  MGL_COMPILATION_MAX_BYTES = 64 * 1024,  // of the text of a JSON object
  MGL_GRAPH_SIZES_STEP = 16,              // of the sizes that a limit stands for, from that on
};

typedef enum mgl_compilation_setting {
#define MGL_SETTING(enum_name, name, alias, kind) MGL_SET_##enum_name,
#include "device/compilation.def"
  MGL_SET_COUNT,
} mgl_compilation_setting;

typedef struct mgl_size_list {
  uint32_t count;
  uint32_t items[MGL_MAX_GRAPH_SIZES];
} mgl_size_list;

typedef enum mgl_device_compiler {
  MGL_COMPILER_NVRTC,  // the toolkit's library
  MGL_COMPILER_NVCC,   // its command
  MGL_COMPILER_COUNT,
} mgl_device_compiler;

// A zeroed one, with use_graphs and use_compiler true, is the usual one: mode mega. No pointers.
typedef struct mgl_compilation {
  uint32_t given;  // bit (1 << mgl_compilation_setting)
  bool mode_given;
  mgl_compile_level level;
  mgl_graph_mode graph_mode;
  bool use_graphs;
  mgl_size_list capture_sizes;  // tokens of iterations: that padded ones may have
  mgl_size_list graph_sizes;    // the same, or one number: the largest, mgl_compilation_sizes
  char splitting_ops[MGL_MAX_SPLITTING_OPS][MGL_MAX_OP_NAME_BYTES];
  uint32_t splitting_op_count;
  bool copy_inputs;
  bool use_compiler;
  mgl_size_list compile_sizes;  // that have an entry of their own
  bool compile_capture_sizes;   // those too
  mgl_device_compiler compiler;
  char debug_dump_path[MGL_COMPILATION_PATH_BYTES];  // "": nothing is dumped
  char cache_dir[MGL_COMPILATION_PATH_BYTES];        // "": base/cache_folder.h
  bool enforce_eager;
  bool check_numbers;
  mgl_balance expert_balance;  // on the CPU
  mgl_cpu_variants variants;   // on the CPU: other kernels for some ops
  mgl_mode mode;               // by mgl_compilation_check
} mgl_compilation;

void mgl_compilation_init(mgl_compilation *c);

// Sets one setting from text: "3", "true", "1,2,4", "attention,2.gated", "compiler=nvcc". `where`
// stands before its name in messages ("--", or "engine.json: ").
mgl_status mgl_compilation_set(mgl_compilation *c, const char *where, const char *name,
                               const char *text, mgl_error *err);
// As --mode has it: level and graph mode at once.
mgl_status mgl_compilation_set_mode(mgl_compilation *c, mgl_mode mode, mgl_error *err);
// Sets what a JSON object says; or, of a text that does not begin with {, the file of that name.
mgl_status mgl_compilation_read(mgl_compilation *c, const char *where, const char *text,
                                mgl_error *err);
// The settings that were given, as a JSON object that mgl_compilation_read takes.
void mgl_compilation_print(const mgl_compilation *c, mgl_text *out);

// Where it shall hold.
typedef struct mgl_compilation_place {
  bool gpu;
  uint32_t ranks;      // 0 or 1: one
  uint32_t sequences;  // most that may run; 0: not known yet
  uint32_t tokens;     // most of an iteration; 0: not known yet
} mgl_compilation_place;

// Refuses settings that contradict each other, or, with a place (NULL: not known yet), that would
// change nothing there; and derives level, graph mode and mode.
mgl_status mgl_compilation_check(mgl_compilation *c, const mgl_compilation_place *place,
                                 mgl_error *err);

// The sizes of graphs, ascending, none above `most`: capture_sizes, else those of graph_sizes; one
// number N there stands for 1, 2, 4, 8, 16, 32, ... N in steps of 16. Nothing given: count 0.
void mgl_compilation_sizes(const mgl_compilation *c, uint32_t most, mgl_size_list *out);

const char *mgl_preset_name(uint32_t index);  // NULL behind the last one

#endif
