// The model of a command: the MODEL argument or the demo model, opened, and a runner for it.
//
// The options that all commands with a model share stand here too, as rows for their tables.
#ifndef MGL_APP_APP_MODEL_H
#define MGL_APP_APP_MODEL_H

#include "app/compile_options.h"
#include "app/device.h"
#include "app/options.h"
#include "app/output_file.h"
#include "compile/overrides.h"
#include "device/cpu/cpu_ranks.h"
#include "device/cpu/team.h"
#include "engine/runner.h"
#include "model/model_folder.h"

typedef struct mgl_app_model {
  mgl_model_folder folder;
  mgl_weight_source source;
  char *name;               // last part of the folder's path, printable
  mgl_cuda_device device;   // open while the model runs on a GPU
  mgl_ranks *ranks;         // of several GPUs; NULL: one, or none
  mgl_overrides overrides;  // of --partition
  mgl_given_graph *given;   // [given_count] of --task-graph
  uint32_t given_count;
  mgl_compilation compilation;  // of --level and the like
} mgl_app_model;

// Opens MODEL, or else the demo model: the folder that MEGALITH_DEMO names, else demo beside the
// build folder, else the installed one, else the one of the source tree. `needs` is a set of
// mgl_folder_need; MGL_NEED_WEIGHTS and _WANT_WEIGHTS are dropped where the arguments say
// `--load-format dummy`. Release with mgl_app_model_close, which is fine after a failure.
mgl_status mgl_app_model_open(const mgl_arguments *arguments, unsigned needs, mgl_app_model *out,
                              mgl_error *err);
void mgl_app_model_close(mgl_app_model *model);

// The folder that mgl_app_model_open would open, for commands that open it by megalith.h; *name as
// above. Free both with mgl_free.
mgl_status mgl_app_model_path(const mgl_arguments *arguments, char **path, char **name,
                              mgl_error *err);

// --tensor-parallel, where the command has it; else 1.
uint32_t mgl_app_ranks(const mgl_arguments *arguments);

// Creates a runner with the sizes in *options; device, threads and weights come from the arguments,
// the KV memory too, where they say something of it (mgl_memory_options), and the tokens of an
// iteration where these are 0 (MGL_ROW_ITERATION_TOKENS). Shows a progress bar, and says on
// standard error why a GPU that is there was not taken. The model must outlive the runner.
mgl_status mgl_app_model_start(mgl_app_model *model, const mgl_arguments *arguments,
                               mgl_build *options, mgl_runner **out, mgl_error *err);

// What such a runner would take of the memory of the device that it would run on, of which *device
// says the name, borrowed until the model is closed.
mgl_status mgl_app_model_plan(mgl_app_model *model, const mgl_arguments *arguments,
                              mgl_build *options, mgl_sizes *out, const char **device,
                              mgl_error *err);

// The first mode of --mode, mode mega when it was not given; or, once there is a runner, its
// usual one.
mgl_mode mgl_app_mode(const mgl_arguments *arguments);
mgl_mode mgl_app_mode_of(const mgl_arguments *arguments, const mgl_runner *runner);

// --trace FILE of the commands that have MGL_ROW_TRACE: opened before the work, so that a path that
// cannot be written is told at once; written behind it. Without the option both do nothing.
// uses_mega: mode mega is among those that will run; no other has a trace. Release the file with
// mgl_output_file_close.
bool mgl_app_wants_trace(const mgl_arguments *arguments);
mgl_status mgl_app_trace_open(const mgl_arguments *arguments, bool uses_mega, mgl_output_file *out,
                              mgl_error *err);
// The latest tasks of the latest run of the megakernel, as Chrome trace JSON.
mgl_status mgl_app_trace_write(mgl_output_file *file, const mgl_runner *runner, mgl_error *err);

mgl_choice_name mgl_mode_choice;
mgl_choice_name mgl_load_format_choice;

// The runner of mgl_app_model_start runs them in mode mega.
#define MGL_ROW_TASK_GRAPH                                                                        \
  {                                                                                               \
    .name = "task-graph", .value_name = "FILE", .type = MGL_OPTION_TEXT, .repeatable = true,      \
    .help =                                                                                       \
        "run this task graph, which megalith compile -o wrote for as many workers, in the place " \
        "of the compiler's for so many tokens; on the CPU, in mode mega"                          \
  }
// The runner of mgl_app_model_start compiles by it.
#define MGL_ROW_PARTITION                                                                         \
  {                                                                                               \
    .name = "partition", .value_name = "OP=X,Y,Z", .type = MGL_OPTION_TEXT, .repeatable = true,   \
    .help =                                                                                       \
        "how many tasks an op becomes: X along its columns or rows, Y per KV head of attention, " \
        "Z is 1; OP is a kind (gate_up) or a name (3.gate_up)"                                    \
  }
#define MGL_ROW_MODE                                                                             \
  {                                                                                              \
    .name = "mode", .value_name = "MODE", .type = MGL_OPTION_CHOICE, .choices = mgl_mode_choice, \
    .help =                                                                                      \
        "how the model's ops are launched: mega, one megakernel; eager, op by op; full, one "    \
        "graph an iteration; compiled, piecewise, full-decode-only, full-and-piecewise: "        \
        "docs/modes.md [mega, where fused tasks cover the model]"                                \
  }
// For commands with an engine on whose iterations the row has a say; the runner checks the limit of
// the device. usual: the default, in words.
#define MGL_ROW_TENSOR_PARALLEL                                                          \
  {                                                                                      \
    .name = "tensor-parallel", .alias = "tp", .value_name = "N", .type = MGL_OPTION_U64, \
    .u64_min = 1, .u64_max = MGL_MAX_RANKS,                                              \
    .help =                                                                              \
        "processes that run the model together, each with its part: on the CPU, or "     \
        "with --device cuda on as many GPUs, from that one on [1]"                       \
  }

#define MGL_ROW_ITERATION_TOKENS_OF(usual)                                               \
  {                                                                                      \
    .name = "iteration-tokens", .alias = "max-num-batched-tokens", .value_name = "N",    \
    .type = MGL_OPTION_U64, .u64_min = 1, .u64_max = MGL_MAX_ITERATION_TOKENS,           \
    .help =                                                                              \
        "tokens of an iteration at most, to 2048: larger ones "                          \
        "compute prompts faster and take more memory, and others wait longer meanwhile " \
        "[" usual "]"                                                                    \
  }
#define MGL_ROW_ITERATION_TOKENS MGL_ROW_ITERATION_TOKENS_OF("128, on GPUs 2048")
#define MGL_ROW_TRACE                                                                         \
  {                                                                                           \
    .name = "trace", .value_name = "FILE", .type = MGL_OPTION_FILE,                           \
    .help = "write when each task ran to a JSON file for chrome://tracing or ui.perfetto.dev" \
  }

extern const mgl_option_group mgl_place_options;   // where model and weights lie
extern const mgl_option_group mgl_memory_options;  // of commands with an engine

#endif
