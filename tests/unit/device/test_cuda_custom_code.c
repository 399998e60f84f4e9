// CUDA sources of custom ops through the real compiler, without a GPU: what megalith.h shows
// becomes a cubin with the kernel for every architecture; a source that is changed is compiled
// anew, one that is wrong is refused with its own name and line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "device/cuda/cuda_compiler.h"
#include "support/must.h"
#include "support/temp_folder.h"
#include "unit/device/open_nvrtc.h"

static mgl_cuda_device device_of(uint32_t major, mgl_cuda_kernels kernels, const char *cache) {
  mgl_cuda_device device = {.name = "None", .major = major, .kernels = kernels};
  (void)snprintf(device.cache_folder, sizeof device.cache_folder, "%s", cache);
  return device;
}

static mgl_status get(const mgl_cuda_device *device, const char *name, const char *text,
                      mgl_cuda_code *out, mgl_error *err) {
  const mgl_cuda_source source = {.name = name, .text = text};
  const mgl_cuda_shape shape = {.custom = &source, .head_dim = 32, .group = 1};
  return mgl_cuda_code_get(device, "kernels/cuda/custom.cu", &shape, "mgl_custom_kernel", out, err);
}

static bool contains(const mgl_cuda_code *code, const char *what) {
  size_t bytes = strlen(what);
  for (size_t i = 0; i + bytes <= code->bytes; i++) {
    if (memcmp((const char *)code->cubin + i, what, bytes) == 0) {
      return true;
    }
  }
  return false;
}

// The lines of the function in megalith.h's comment; freed by the caller.
static char *documented_source(void) {
  char *header = NULL;
  size_t bytes = 0;
  MUST(mgl_file_read(MGL_TEST_DATA "/../../include/megalith.h", 1 << 20, &header, &bytes, &err));
  char *out = calloc(1, bytes + 1);
  const char *line = strstr(header, "//   __device__ void logit_soft_cap(");
  assert_true(line != NULL && out != NULL);
  while (strncmp(line, "//   ", 5) == 0) {
    const char *end = strchr(line, '\n');
    strncat(out, line + 5, (size_t)(end + 1 - (line + 5)));
    line = end + 1;
  }
  mgl_free(header);
  return out;
}

static void what_the_header_shows_compiles(void **state) {
  (void)state;
  static const struct {
    uint32_t major;
    mgl_cuda_kernels kernels;
  } gpus[] = {
      {8, MGL_CUDA_KERNELS_PORTABLE}, {9, MGL_CUDA_KERNELS_WGMMA}, {10, MGL_CUDA_KERNELS_COPIES}};
  mgl_nvrtc nvrtc;
  temp_folder cache;
  if (!open_nvrtc(&nvrtc)) {
    skip();
  }
  char *source = documented_source();
  temp_folder_create(&cache);
  for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
    const mgl_cuda_device device = device_of(gpus[i].major, gpus[i].kernels, cache.path);
    for (int again = 0; again < 2; again++) {
      mgl_cuda_code code;
      MUST(get(&device, "logit_soft_cap", source, &code, &err));
      assert_true(code.bytes > 0 && code.usage.registers > 0);
      assert_true(contains(&code, ".text.mgl_custom_kernel"));
      assert_int_equal(code.usage.spill_bytes, 0);
      assert_int_equal(code.cached, again == 1);
      mgl_free(code.cubin);
    }
  }
  free(source);
  temp_folder_remove(&cache);
}

// Threads of a block that work together, types of one's own, and all that a call has.
static const char busy[] =
    "#include <stdint.h>\n"
    "template <int N> struct own { float sums[N]; };\n"
    "static __device__ float half_of(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16);"
    "}\n"
    "__device__ void my_norm(const megalith_custom_call *call) {\n"
    "  __shared__ own<256> shared;\n"
    "  const uint32_t columns = call->output_type->dims[call->output_type->rank - 1];\n"
    "  const bool small = call->input_types[0].dtype == MEGALITH_BF16 &&\n"
    "                     call->input_types[1].rows == MEGALITH_ROWS_FIXED;\n"
    "  for (uint32_t row = call->first_row; row < call->end_row; row++) {\n"
    "    float sum = 0;\n"
    "    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {\n"
    "      float x = small ? half_of(((const uint16_t *)call->inputs[0])[row * columns + i])\n"
    "                      : ((const float *)call->inputs[0])[row * columns + i];\n"
    "      sum += x * x;\n"
    "    }\n"
    "    shared.sums[threadIdx.x] = sum;\n"
    "    __syncthreads();\n"
    "    for (uint32_t step = 128; step > 0; step /= 2) {\n"
    "      if (threadIdx.x < step) shared.sums[threadIdx.x] += shared.sums[threadIdx.x + step];\n"
    "      __syncthreads();\n"
    "    }\n"
    "    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x)\n"
    "      ((float *)call->output)[row * columns + i] =\n"
    "          rsqrtf(shared.sums[0] + (float)call->attributes[0]);\n"
    "    __syncthreads();\n"
    "  }\n"
    "}\n";

static void another_source_is_another_entry(void **state) {
  (void)state;
  mgl_nvrtc nvrtc;
  temp_folder cache;
  mgl_cuda_code code;
  if (!open_nvrtc(&nvrtc)) {
    skip();
  }
  temp_folder_create(&cache);
  const mgl_cuda_device device = device_of(9, MGL_CUDA_KERNELS_WGMMA, cache.path);
  char *changed = strdup(busy), *renamed = strdup(busy);
  strstr(changed, "rsqrtf")[0] = ' ';  // sqrtf
  memcpy(strstr(renamed, "my_norm"), "my_form", 7);
  const struct {
    const char *name, *text;
    bool cached;
  } cases[] = {{"my_norm", busy, false},    {"my_norm", busy, true}, {"my_norm", changed, false},
               {"my_form", renamed, false}, {"my_norm", busy, true}, {"my_norm", changed, true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    MUST(get(&device, cases[i].name, cases[i].text, &code, &err));
    assert_int_equal(code.cached, cases[i].cached);
    assert_int_equal(code.usage.static_smem_bytes, 1024);
    mgl_free(code.cubin);
  }
  free(changed);
  free(renamed);
  temp_folder_remove(&cache);
}

// By either compiler of the toolkit. nvcc is slow, so once.
static void nvcc_takes_it_too(void **state) {
  (void)state;
  mgl_nvrtc nvrtc;
  temp_folder cache;
  mgl_cuda_code code;
  mgl_error why = {0};
  mgl_cuda_cache_key key;
  if (!open_nvrtc(&nvrtc)) {
    skip();
  }
  if (mgl_cuda_compiler_nvcc.initialise_cache(NULL, &key, &why) != MGL_OK) {
    print_message("skipped: %s\n", why.text);
    skip();
  }
  temp_folder_create(&cache);
  mgl_cuda_device device = device_of(9, MGL_CUDA_KERNELS_WGMMA, cache.path);
  device.compiler = &mgl_cuda_compiler_nvcc;
  MUST(get(&device, "my_norm", busy, &code, &err));
  assert_true(contains(&code, ".text.mgl_custom_kernel"));
  mgl_free(code.cubin);
  temp_folder_remove(&cache);
}

static void a_wrong_source_is_named_with_its_line(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"__device__ void my_op(const megalith_custom_call *call) {\n  int x = nothing;\n}",
       "my_op(2): error: identifier \"nothing\" is undefined"},
      {"__device__ void other(const megalith_custom_call *call) {}",
       "identifier \"my_op\" is undefined"},
      {"__device__ void my_op(int call) {}", "error: argument of type"},
  };
  mgl_nvrtc nvrtc;
  temp_folder cache;
  if (!open_nvrtc(&nvrtc)) {
    skip();
  }
  temp_folder_create(&cache);
  const mgl_cuda_device device = device_of(9, MGL_CUDA_KERNELS_WGMMA, cache.path);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    mgl_cuda_code code;
    mgl_error err = {0};
    (void)snprintf(text, sizeof text, "#line 1 \"my_op\"\n%s\n", cases[i].text);
    assert_int_equal(get(&device, "my_op", text, &code, &err), MGL_ERR_INTERNAL);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\", found \"%s\"", cases[i].message, err.text);
    }
    assert_null(code.cubin);
  }
  temp_folder_remove(&cache);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_the_header_shows_compiles),
      cmocka_unit_test(another_source_is_another_entry),
      cmocka_unit_test(nvcc_takes_it_too),
      cmocka_unit_test(a_wrong_source_is_named_with_its_line),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
