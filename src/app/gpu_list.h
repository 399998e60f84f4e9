// The GPUs of this machine, asked of NVIDIA's driver library, which is opened at run time: one
// binary runs with and without it.
#ifndef MGL_APP_GPU_LIST_H
#define MGL_APP_GPU_LIST_H

#include "base/text.h"

// Appends lines of `info`: one for each GPU and one for the driver, or one that says why there are
// none. Never an error: a machine without GPUs is fine.
void mgl_gpu_list_append(mgl_text *out);

#endif
