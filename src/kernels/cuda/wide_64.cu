// The kernel of the wide class for iterations of up to 64 tokens: smaller tiles, and in the memory
// that x does not need more stages of weights. wide_128.cu and wide_192.cu are others. All sizes of
// tiles in one kernel: there the compiler waits for every product (docs/log/078, 296). The portable
// kernel has tiles of one size.
#include "kernels/cuda/common/target.h"

#if MGL_TARGET_WGMMA
#define MGL_WIDE_TILE 64
#define mgl_wide_kernel mgl_wide_kernel_64
#include "kernels/cuda/wide_kernel.cu"
#endif
