// The GPU test program: the walking skeleton checked and timed on the GPU of this machine. Prints
// its report as Markdown. Exit codes: 0 passed, 1 a check failed, 77 no GPU here (skipped).
//   gpu_skeleton FOLDER [tokens|launches|faults|hops|quick|smoke]...     FOLDER has the programs'
//   texts
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"
#include "runtime/cuda_jit.h"

enum { LAUNCHES = 5, SHORT_LAUNCHES = 300, SKIPPED = 77 };

void gpu_check(gpu_bench *bench, bool ok, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("- %s: ", ok ? "ok" : "FAILED");
  (void)vprintf(format, arguments);
  printf("\n");
  (void)fflush(stdout);
  va_end(arguments);
  bench->failures += ok ? 0 : 1;
}

void gpu_must(mgl_status status, const mgl_error *err) {
  if (status != MGL_OK) {
    printf("\nFAILED: %s\n", err->text);
    (void)fflush(stdout);
    _Exit(1);  // without destructors: a kernel that hangs would keep them waiting
  }
}

void *gpu_must_alloc(size_t count, size_t bytes_each) {
  void *memory = mgl_alloc_zeroed(count > 0 ? count : 1, bytes_each);
  mgl_error err = {0};
  if (memory == NULL) {
    gpu_must(mgl_error_set(&err, MGL_ERR_MEMORY, "out of memory"), &err);
  }
  return memory;
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a;
  uint64_t y = *(const uint64_t *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

uint64_t gpu_median(uint64_t *values, size_t count) {
  qsort(values, count, sizeof *values, compare);
  return values[count / 2];
}

static void open_device(gpu_bench *bench) {
  mgl_error err = {0};
  mgl_nvrtc nvrtc;
  mgl_text log = {0};
  size_t bytes = 0;
  char architecture[MGL_ARCHITECTURE_BYTES];
  if (mgl_cuda_device_open(0, &bench->device, &err) != MGL_OK ||
      mgl_nvrtc_open(&nvrtc, &err) != MGL_OK) {
    printf("skipped: %s\n", err.text);
    exit(SKIPPED);
  }
  mgl_cuda_architecture(bench->device.major, bench->device.minor, architecture);
  gpu_must(mgl_cuda_compile(&nvrtc, "kernels/cuda/megakernel.cu", architecture, &bench->cubin,
                            &bytes, &log, &err),
           &err);
  mgl_cuda_usage usage = {0};
  int major = 0;
  int minor = 0;
  char date[32];
  time_t now = time(NULL);
  (void)mgl_cuda_usage_find(log.data, "mgl_megakernel", &usage);
  (void)nvrtc.version(&major, &minor);
  (void)strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
  printf("# The walking skeleton on the GPU\n\n");
  printf("%s, %u multiprocessors, driver for CUDA %d.%d, NVRTC %d.%d, %s, %s.\n",
         bench->device.name, bench->device.sm_count, bench->device.driver_version / 1000,
         bench->device.driver_version % 1000 / 10, major, minor, architecture, date);
  printf("The megakernel: %d threads a block, %u registers, %u bytes spilled.\n", MGL_CUDA_THREADS,
         usage.registers, usage.spill_bytes);
  mgl_text_free(&log);
}

static bool wanted(int argc, char **argv, const char *part) {
  bool named = false;
  for (int i = 2; i < argc; i++) {
    if (strcmp(argv[i], part) == 0) {
      return true;
    }
    named = named || strcmp(argv[i], "quick") != 0;
  }
  return !named && strcmp(part, "quick") != 0 && strcmp(part, "smoke") != 0;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    printf("usage: gpu_skeleton FOLDER [tokens|launches|faults|hops|quick|smoke]...\n");
    return 1;
  }
  gpu_bench bench = {0};
  open_device(&bench);
  bool quick = wanted(argc, argv, "quick");
  if (wanted(argc, argv, "smoke")) {
    gpu_smoke_run(&bench, argv[1]);
  }
  if (wanted(argc, argv, "tokens")) {
    gpu_tokens_run(&bench, argv[1], quick ? 1 : LAUNCHES);
  }
  if (wanted(argc, argv, "launches")) {
    gpu_launches_run(&bench, argv[1], quick ? 30 : SHORT_LAUNCHES);
  }
  if (wanted(argc, argv, "faults")) {
    gpu_faults_run(&bench, argv[1]);
  }
  if (wanted(argc, argv, "hops")) {
    gpu_hops_run(&bench, quick);
  }
  printf("\n%s\n", bench.failures == 0 ? "All checks passed." : "CHECKS FAILED.");
  mgl_free(bench.cubin);
  mgl_cuda_device_close(&bench.device);
  return bench.failures == 0 ? 0 : 1;
}
