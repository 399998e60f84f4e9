// The kernel of the wide class for iterations of 129 to 192 tokens, and for experts of many rows
// (wide_64.cu).
#include "kernels/cuda/common/target.h"

#if MGL_TARGET_WGMMA
#define MGL_WIDE_TILE 192
#define mgl_wide_kernel mgl_wide_kernel_192
#include "kernels/cuda/wide_kernel.cu"
#endif
