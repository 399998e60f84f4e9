// The kernels of the level avx2: see kernels_vector.inc.h.
#if defined(__x86_64__)

#include "kernels/cpu/codes_avx2.h"
#include "kernels/cpu/vector_avx2.h"
// The body is written against the operations above.
#include "kernels/cpu/kernels_vector.inc.h"

const kernel_level mgl_level_avx2 = KERNEL_LEVEL("avx2");

#endif
