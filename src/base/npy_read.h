// Reading a NumPy file of numbers, whatever its shape: format versions 1.0 to 3.0, C order, little
// endian, float16, float32, float64, int32 or int64. (app/npy.h writes them.)
#ifndef MGL_BASE_NPY_READ_H
#define MGL_BASE_NPY_READ_H

#include <stddef.h>

#include "base/status.h"

enum { MGL_NPY_MAX_BYTES = 1 << 30 };  // of a file

// *out: the elements in their order as f32, which rounds what does not fit (mgl_free it). On
// failure both are zeroed. MGL_ERR_FORMAT: the file is none, is cut off or says another size than
// it has; MGL_ERR_UNSUPPORTED: another type or order.
mgl_status mgl_npy_read(const char *path, float **out, size_t *out_count, mgl_error *err);

#endif
