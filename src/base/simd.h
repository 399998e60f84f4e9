// The processor's name, and which vector instructions its kernels may use.
#ifndef MGL_BASE_SIMD_H
#define MGL_BASE_SIMD_H

#include "base/status.h"

// Each level includes the ones before it. AVX2 implies FMA and F16C; AVX512 implies F, BW, VL, DQ.
typedef enum mgl_simd {
  MGL_SIMD_SCALAR,
#if defined(__x86_64__)
  MGL_SIMD_AVX2,
  MGL_SIMD_AVX512,
  MGL_SIMD_AVX512_BF16,
  MGL_SIMD_AMX_BF16,
#elif defined(__aarch64__)
  MGL_SIMD_NEON,
  MGL_SIMD_NEON_BF16,
#endif
  MGL_SIMD_COUNT,
} mgl_simd;

// "scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"; "scalar", "neon", "neon_bf16" on aarch64.
const char *mgl_simd_name(mgl_simd simd);

// The best level that processor and operating system offer. The environment variable MEGALITH_SIMD
// (one of the names above) lowers it; an unknown or unavailable name is an error.
mgl_simd mgl_simd_detected(void);
mgl_status mgl_simd_choose(mgl_simd *out, mgl_error *err);

// Names the processor that runs this: "GenuineIntel 6.207.2 Intel(R) Xeon(R) Processor" (vendor,
// family, model, stepping, name), where its instructions tell, else as the system calls it.
enum { MGL_PROCESSOR_BYTES = 128 };
void mgl_processor_name(char out[MGL_PROCESSOR_BYTES]);

#endif
