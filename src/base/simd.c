#include "base/simd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "base/text.h"

static const char *const simd_names[MGL_SIMD_COUNT] = {
    [MGL_SIMD_SCALAR] = "scalar",
#if defined(__x86_64__)
    [MGL_SIMD_AVX2] = "avx2",
    [MGL_SIMD_AVX512] = "avx512",
    [MGL_SIMD_AVX512_BF16] = "avx512_bf16",
    [MGL_SIMD_AMX_BF16] = "amx_bf16",
#elif defined(__aarch64__)
    [MGL_SIMD_NEON] = "neon",
    [MGL_SIMD_NEON_BF16] = "neon_bf16",
#endif
};

const char *mgl_simd_name(mgl_simd simd) {
  return simd_names[simd];
}

#if defined(__x86_64__)
// Whether processor and system have tile registers of bf16, and let this process use them: Linux
// wants to be asked, since their 8 KiB make threads' saved states larger. Permission is for all
// threads and stays, so that asking again costs a system call.
static bool may_use_tiles(void) {
  enum {
    SUBLEAF_BITS = 1 << 22 | 1 << 24,
    OSXSAVE = 1 << 27,
    TILE_STATE = 3 << 17
  };                                                     // AMX-BF16, AMX-TILE
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };  // of arch_prctl
  unsigned int a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & OSXSAVE) == 0 ||
      __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & SUBLEAF_BITS) != SUBLEAF_BITS) {
    return false;
  }
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a & TILE_STATE) == TILE_STATE &&
         syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

mgl_simd mgl_simd_detected(void) {
#if defined(__x86_64__)
  // F16C is not asked for: clang 14 does not know its name, and every processor with AVX2 has it.
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512) {
    bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    return !bf16 ? MGL_SIMD_AVX512 : may_use_tiles() ? MGL_SIMD_AMX_BF16 : MGL_SIMD_AVX512_BF16;
  }
  return avx2 ? MGL_SIMD_AVX2 : MGL_SIMD_SCALAR;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 ? MGL_SIMD_NEON_BF16 : MGL_SIMD_NEON;
#else
  return MGL_SIMD_SCALAR;
#endif
}

mgl_status mgl_simd_choose(mgl_simd *out, mgl_error *err) {
  *out = mgl_simd_detected();
  const char *wanted = getenv("MEGALITH_SIMD");
  if (wanted == NULL || *wanted == 0) {
    return MGL_OK;
  }
  for (int simd = 0; simd < MGL_SIMD_COUNT; simd++) {
    if (strcmp(wanted, simd_names[simd]) == 0) {
      if ((mgl_simd)simd > *out) {
        return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "MEGALITH_SIMD=%s: this processor has %s at most", wanted,
                             simd_names[*out]);
      }
      *out = (mgl_simd)simd;
      return MGL_OK;
    }
  }
  mgl_text names = {0};
  for (int simd = 0; simd < MGL_SIMD_COUNT; simd++) {
    mgl_text_format(&names, "%s%s", simd == 0 ? "" : ", ", simd_names[simd]);
  }
  mgl_status status =
      mgl_error_set(err, MGL_ERR_ARGUMENT, "MEGALITH_SIMD: expected %s, found \"%s\"",
                    names.data == NULL ? "" : names.data, wanted);
  mgl_text_free(&names);
  return status;
}

#if defined(__x86_64__)
void mgl_processor_name(char out[MGL_PROCESSOR_BYTES]) {
  unsigned int vendor[4] = {0}, version[4] = {0}, brand[3][4] = {{0}};
  (void)__get_cpuid(0, &vendor[0], &vendor[1], &vendor[3], &vendor[2]);
  (void)__get_cpuid(1, &version[0], &version[1], &version[2], &version[3]);
  for (unsigned int i = 0; i < 3; i++) {
    (void)__get_cpuid(0x80000002u + i, &brand[i][0], &brand[i][1], &brand[i][2], &brand[i][3]);
  }
  unsigned int family = version[0] >> 8 & 15, model = version[0] >> 4 & 15;
  model |= family == 6 || family == 15 ? version[0] >> 12 & 0xf0 : 0;
  family += family == 15 ? version[0] >> 20 & 0xff : 0;
  char words[sizeof brand + 1] = "";
  memcpy(words, brand, sizeof brand);
  (void)snprintf(out, MGL_PROCESSOR_BYTES, "%.12s %u.%u.%u %s", (const char *)&vendor[1], family,
                 model, version[0] & 15, words + strspn(words, " "));
}
#else
void mgl_processor_name(char out[MGL_PROCESSOR_BYTES]) {
  char line[256];
  FILE *file = fopen("/proc/cpuinfo", "re");
  (void)snprintf(out, MGL_PROCESSOR_BYTES, "unknown");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "CPU part", 8) == 0 && colon != NULL) {
      (void)snprintf(out, MGL_PROCESSOR_BYTES, "part%.*s", (int)strcspn(colon + 1, "\n"),
                     colon + 1);
      break;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
}
#endif
