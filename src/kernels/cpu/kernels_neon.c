// The kernels of the level neon: see kernels_vector.inc.h.
#if defined(__aarch64__)

#include "kernels/cpu/codes_neon.h"
#include "kernels/cpu/vector_neon.h"
// The body is written against the operations above.
#include "kernels/cpu/kernels_vector.inc.h"

const kernel_level mgl_level_neon = KERNEL_LEVEL("neon");

#endif
