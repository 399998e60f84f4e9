// The model of a command that looks below megalith.h, to measure, to plan or to compare: the MODEL
// argument or the demo model, opened, and a runner for it.
#ifndef MGL_APP_APP_MODEL_H
#define MGL_APP_APP_MODEL_H

#include "app/compile_options.h"
#include "app/model_options.h"
#include "app/options.h"
#include "app/output_file.h"
#include "compile/overrides.h"
#include "device/compilation.h"
#include "device/cpu/team.h"
#include "engine/start.h"
#include "model/model_folder.h"

typedef struct mgl_app_model {
  mgl_model_folder folder;
  mgl_weight_source source;
  char *name;               // last part of the folder's path, printable
  mgl_site site;            // of the runner
  mgl_crew *crew;           // of a launcher's processes; NULL: there is none
  mgl_overrides overrides;  // of --partition
  mgl_given_graph *given;   // [given_count] of --task-graph
  uint32_t given_count;
  mgl_compilation compilation;  // of --level and the like
} mgl_app_model;

// Opens MODEL, or else the demo model (mgl_app_model_path). `needs` is a set of
// mgl_folder_need; MGL_NEED_WEIGHTS and _WANT_WEIGHTS are dropped where the arguments say
// `--load-format dummy`. Release with mgl_app_model_close, which is fine after a failure.
mgl_status mgl_app_model_open(const mgl_arguments *arguments, unsigned needs, mgl_app_model *out,
                              mgl_error *err);
void mgl_app_model_close(mgl_app_model *model);

// --tensor-parallel, where the command has it, or as many as a launcher has started; else 1.
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

// What --level and the like say, --mode among them where the command has it; checked as far as it
// does not depend on the device. *given: they say something.
mgl_status mgl_app_compilation(const mgl_arguments *arguments, mgl_compilation *out, bool *given,
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

#endif
