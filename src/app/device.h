// --device: where a model runs, and the GPU that was opened for it.
//
// `auto` takes the first GPU where one works for the model, else the CPU, and says why. Only where
// nobody asked for it by name and there is no GPU or driver it says nothing.
#ifndef MGL_APP_DEVICE_H
#define MGL_APP_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "app/options.h"
#include "base/status.h"
#include "base/text.h"
#include "device/cuda/cuda_driver.h"
#include "engine/device_choice.h"

// What the command line says, or else MEGALITH_DEVICE, or else auto.
mgl_status mgl_device_wanted(const mgl_arguments *arguments, mgl_device_choice *out,
                             mgl_error *err);

// Options that only one kind of device has: MGL_ERR_ARGUMENT names the first of them.
mgl_status mgl_device_check_cpu(const mgl_arguments *arguments, mgl_error *err);
mgl_status mgl_device_check_gpu(const mgl_arguments *arguments, mgl_error *err);

// A line on standard error: the CPU runs it, and why the GPU does not.
void mgl_device_note_cpu(const char *reason);

// Appends the lines of `info`: where models run by the same rule (a GPU that --device names and
// that cannot be used is the same error; one that MEGALITH_DEVICE names is described), and where
// device code is cached.
mgl_status mgl_device_describe(const mgl_arguments *arguments, mgl_text *out, mgl_error *err);

#endif
