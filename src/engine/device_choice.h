// Which device a model shall run on, as users say it: auto, cpu, cuda or cuda:N.
#ifndef MGL_ENGINE_DEVICE_CHOICE_H
#define MGL_ENGINE_DEVICE_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum mgl_device_kind {
  MGL_DEVICE_AUTO,  // the first GPU where it works for the model, else the CPU
  MGL_DEVICE_CPU,
  MGL_DEVICE_CUDA,
} mgl_device_kind;

typedef struct mgl_device_choice {
  mgl_device_kind kind;
  uint32_t ordinal;  // of MGL_DEVICE_CUDA
  bool named;        // somebody said so: it is not what is taken when nobody says anything
} mgl_device_choice;

// `where` is what the message begins with ("--device").
mgl_status mgl_device_parse(const char *where, const char *text, mgl_device_choice *out,
                            mgl_error *err);

// Reads what MEGALITH_DEVICE says in the environment; without it, auto.
mgl_status mgl_device_usual(mgl_device_choice *out, mgl_error *err);

// Whether a driver finds any GPU, usable or not.
bool mgl_device_exists(void);

// Whether auto should try the first GPU, and say why if it takes the CPU: where there is a GPU, and
// everywhere if auto was asked for by name.
bool mgl_device_auto_tries(const mgl_device_choice *choice);

// Whether another device could do better after this failure: a damaged model or a wrong argument
// stays what it is.
bool mgl_device_may_fall_back(mgl_status status);

// Bytes of such an error's text without the hint to use the CPU, which whoever tells what was done
// about it leaves out.
size_t mgl_device_reason_bytes(const char *reason);

#endif
