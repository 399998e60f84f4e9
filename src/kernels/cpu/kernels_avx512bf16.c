// The kernels of the level avx512_bf16: see kernels_vector.inc.h.
#if defined(__x86_64__)

#include "kernels/cpu/codes_avx512.h"
#include "kernels/cpu/vector_avx512.h"
// The body is written against the operations above.
#include "kernels/cpu/kernels_vector.inc.h"

const kernel_level mgl_level_avx512_bf16 = KERNEL_LEVEL("avx512_bf16");

#endif
