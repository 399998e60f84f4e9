// A runner on the device that is asked for: a GPU, several GPUs, the CPU, or the first GPU where it
// can run the model, else the CPU. The API and commands that measure start their runners here.
#ifndef MGL_ENGINE_START_H
#define MGL_ENGINE_START_H

#include <stdbool.h>

#include "device/cpu/cpu_ranks.h"
#include "device/cuda/cuda_driver.h"
#include "engine/device_choice.h"
#include "engine/runner.h"

typedef struct mgl_start {
  const mgl_model_folder *folder;
  mgl_device_choice device;
  const mgl_build *build;                 // `cuda` and trace_tasks are filled in here
  const mgl_cuda_launch_options *launch;  // on a GPU; NULL: the usual
  bool traces;                            // keep when the latest tasks ran
  const char *not_on_cpu, *not_on_gpu;    // what is said against a kind of device; NULL: nothing
} mgl_start;

enum { MGL_SITE_NOTE_BYTES = 2 * MGL_ERROR_TEXT_BYTES };

// What a runner stands on; it is left behind the runner's end. Zero-initialise.
typedef struct mgl_site {
  mgl_cuda_device device;          // open while the model runs on a GPU
  mgl_ranks *ranks;                // of several GPUs; NULL: one, or none
  char note[MGL_SITE_NOTE_BYTES];  // what the user should know, also behind a failure; or ""
} mgl_site;

// Where several GPUs run the model, other ranks than 0 do not return.
mgl_status mgl_site_start(mgl_site *site, const mgl_start *start, mgl_runner **out, mgl_error *err);
// What such a runner would take of its device's memory; *device says its name, borrowed.
mgl_status mgl_site_measure(mgl_site *site, const mgl_start *start, mgl_sizes *out,
                            const char **device, mgl_error *err);
void mgl_site_leave(mgl_site *site);  // fine after a failure, too

#endif
