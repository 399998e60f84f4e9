// The kernel of the wide class for iterations of up to MGL_WIDE_FEW_TOKENS tokens: smaller tiles,
// and in the memory that x does not need a ring of more stages, so that more weights are on their
// way. Both sizes of tiles in one kernel: there the compiler waits for every product (SPEED.md).
// The portable kernels have one size of tiles.
#include "kernels/cuda/target.h"

#if MGL_TARGET_WGMMA
#define MGL_WIDE_FEW
#define mgl_wide_kernel mgl_wide_few_kernel
#include "kernels/cuda/wide_kernel.cu"
#endif
