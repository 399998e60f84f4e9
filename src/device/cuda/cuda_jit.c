#include "device/cuda/cuda_jit.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "twin/custom_call.h"
#include "twin/device_run.h"
#include "twin/op_launch.h"
#include "twin/packing.h"
#include "twin/plain_op.h"
#include "twin/wide_run.h"

enum { MAX_HEADERS = 128 };

mgl_status mgl_nvrtc_open(mgl_nvrtc *out, mgl_error *err) {
  static const char *const files[] = {"libnvrtc.so.13",
                                      "libnvrtc.so.12",
                                      "libnvrtc.so",
                                      "/usr/local/cuda/lib64/libnvrtc.so.13",
                                      "/usr/local/cuda/lib64/libnvrtc.so.12",
                                      "/usr/local/cuda/lib64/libnvrtc.so"};
  static const char *const symbols[] = {
      "nvrtcVersion",        "nvrtcGetErrorString", "nvrtcCreateProgram",
      "nvrtcDestroyProgram", "nvrtcCompileProgram", "nvrtcGetProgramLogSize",
      "nvrtcGetProgramLog",  "nvrtcGetCUBINSize",   "nvrtcGetCUBIN"};
  *out = (mgl_nvrtc){0};
  for (size_t i = 0; i < sizeof files / sizeof files[0] && out->library == NULL; i++) {
    out->library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
  }
  if (out->library == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "there is no libnvrtc (CUDA 12 or 13), which compiles the device code; "
                         "install it, or add its folder to LD_LIBRARY_PATH");
  }
  void *const members[] = {&out->version, &out->error_string, &out->create,
                           &out->destroy, &out->compile,      &out->log_bytes,
                           &out->log,     &out->cubin_bytes,  &out->cubin};
  return mgl_cuda_find_symbols(out->library, "libnvrtc", symbols, members,
                               sizeof symbols / sizeof symbols[0], err);
}

static mgl_status check(const mgl_nvrtc *nvrtc, int code, const char *what, mgl_error *err) {
  return code == 0 ? MGL_OK
                   : mgl_error_set(err, MGL_ERR_INTERNAL, "NVRTC %s: %s (%d)", what,
                                   nvrtc->error_string(code), code);
}

static mgl_status fetch_log(const mgl_nvrtc *nvrtc, void *program, mgl_text *log, mgl_error *err) {
  size_t bytes = 0;
  MGL_TRY(check(nvrtc, nvrtc->log_bytes(program, &bytes), "log size", err));
  char *text = mgl_alloc(bytes + 1);
  MGL_TRY(mgl_alloc_check(text, err, "a compiler's log"));
  text[bytes] = 0;
  mgl_status status = check(nvrtc, nvrtc->log(program, text), "log", err);
  if (status == MGL_OK) {
    text[bytes] = 0;
    mgl_text_append_string(log, text);
    status = mgl_text_check(log, err);
  }
  mgl_free(text);
  return status;
}

static mgl_status fetch_cubin(const mgl_nvrtc *nvrtc, void *program, void **out, size_t *out_bytes,
                              mgl_error *err) {
  MGL_TRY(check(nvrtc, nvrtc->cubin_bytes(program, out_bytes), "cubin size", err));
  char *cubin = mgl_alloc(*out_bytes);
  MGL_TRY(mgl_alloc_check(cubin, err, "device code"));
  mgl_status status = check(nvrtc, nvrtc->cubin(program, cubin), "cubin", err);
  if (status != MGL_OK) {
    mgl_free(cubin);
    return status;
  }
  *out = cubin;
  return MGL_OK;
}

int mgl_cuda_options_make(const char *architecture, const mgl_cuda_shape *shape,
                          char text[MGL_CUDA_MAX_OPTIONS][MGL_CUDA_OPTION_BYTES]) {
  enum { OPTION_BYTES = MGL_CUDA_OPTION_BYTES };
  static const struct {
    const char *name;
    size_t bytes;
  } layouts[] = {
#define LAYOUT(NAME, ...) {#NAME, __VA_ARGS__},
#define MGL_LAYOUT_RUN LAYOUT
#define MGL_LAYOUT_LAUNCH LAYOUT
#define MGL_LAYOUT_PLAIN LAYOUT
#define MGL_LAYOUT_CUSTOM LAYOUT
#define MGL_LAYOUT_WIDE LAYOUT
#include "twin/layout.def"
#undef LAYOUT
  };
  int count = 0;
  (void)snprintf(text[count++], OPTION_BYTES, "--gpu-architecture=%s", architecture);
  (void)snprintf(text[count++], OPTION_BYTES, "--std=c++17");
  (void)snprintf(text[count++], OPTION_BYTES, "--fmad=false");  // the source fixes every rounding
  (void)snprintf(text[count++], OPTION_BYTES, MGL_NVRTC_DEVICE_OPTION);
  (void)snprintf(text[count++], OPTION_BYTES, "--ptxas-options=-v");
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_HOST_BYTES_%s=%zu", layouts[i].name,
                   layouts[i].bytes);
  }
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_HEAD_DIM=%u", shape->head_dim);
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_GROUP=%u", shape->group);
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_TRACE=%d", shape->trace ? 1 : 0);
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_PACKINGS=%u",
                 shape->packings == 0 ? 1u << MGL_PACKING_BF16 : shape->packings);
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_RANKS=%u",
                 shape->ranks == 0 ? 1u : shape->ranks);
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_GROUPS_OF_32=%d", shape->groups_of_32 ? 1 : 0);
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_GROUPS_OF_64=%d", shape->groups_of_64 ? 1 : 0);
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_PAGE_BYTES=%u",
                 shape->page_bytes == 0 ? (unsigned)MGL_CUDA_PAGE_BYTES : shape->page_bytes);
#ifdef MGL_POISON_DEVICE
  (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_POISON_PLANS=1");
#endif
  const mgl_cuda_experts *e = &shape->experts;
  if (e->count != 0) {
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERTS=%u", e->count);
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERT_SLOTS=%u", e->slots);
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERT_FEATURES=%u", e->features);
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERT_WIDTH=%u", e->width);
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERT_SOFTMAX_OF_ALL=%d",
                   e->softmax_of_all ? 1 : 0);
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERT_RENORMALISE=%d",
                   e->renormalise ? 1 : 0);
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERT_SCALE=%#.9gf", (double)e->scale);
    if (e->biases) {
      (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERT_BIASES=1");
    }
    if (e->limit != 0) {
      (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_EXPERT_LIMIT=%#.9gf", (double)e->limit);
    }
  }
  const struct {
    const char *name;
    bool has;
  } extras[] = {{"WINDOWS", shape->extras.windows},
                {"SINKS", shape->extras.sinks},
                {"SUM_BIASES", shape->extras.sum_biases},
                {"CUT_ROWS", shape->extras.cut_rows}};
  for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
    if (extras[i].has) {
      (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_HAS_%s=1", extras[i].name);
    }
  }
  static const char *const known[MGL_KNOWN_COUNT] = {[MGL_KNOWN_NORMED] = "NORMED",
                                                     [MGL_KNOWN_ADDED_1] = "ADDED_1",
                                                     [MGL_KNOWN_ADDED_2] = "ADDED_2",
                                                     [MGL_KNOWN_CODED_NORMED] = "CODED_NORMED",
                                                     [MGL_KNOWN_CODED_ADDED_1] = "CODED_ADDED_1",
                                                     [MGL_KNOWN_CODED_ADDED_2] = "CODED_ADDED_2"};
  for (size_t i = 0; i < MGL_KNOWN_COUNT; i++) {
    if (shape->extras.k[i] > 1) {
      (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_K_%s=%u", known[i], shape->extras.k[i]);
    }
  }
  if (shape->custom != NULL) {
    (void)snprintf(text[count++], OPTION_BYTES, "-DMGL_CUSTOM_OP=%s", shape->custom->name);
  }
  assert(count <= MGL_CUDA_MAX_OPTIONS);
  return count;
}

const char *mgl_cuda_source_text(const mgl_cuda_source *source, const mgl_cuda_shape *shape) {
  bool is_custom = shape->custom != NULL && strcmp(source->name, MGL_CUDA_CUSTOM_SOURCE) == 0;
  return is_custom ? shape->custom->text : source->text;
}

mgl_status mgl_cuda_source_hash(const char *name, const char *architecture,
                                const mgl_cuda_shape *shape, mgl_hash *out, mgl_error *err) {
  mgl_text all = {0};
  char options[MGL_CUDA_MAX_OPTIONS][MGL_CUDA_OPTION_BYTES];
  int count = mgl_cuda_options_make(architecture, shape, options);
  // Each part ends with its NUL, so that no two lists have the same bytes.
  mgl_text_append(&all, name, strlen(name) + 1);
  for (int i = 0; i < count; i++) {
    mgl_text_append(&all, options[i], strlen(options[i]) + 1);
  }
  for (const mgl_cuda_source *at = mgl_cuda_sources; at->name != NULL; at++) {
    mgl_text_append(&all, at->name, strlen(at->name) + 1);
    const char *source = mgl_cuda_source_text(at, shape);
    mgl_text_append(&all, source, strlen(source) + 1);
  }
  mgl_status status = mgl_text_check(&all, err);
  if (status == MGL_OK) {
    *out = mgl_hash_bytes(all.data, all.bytes);
  }
  mgl_text_free(&all);
  return status;
}

static mgl_status compile(const mgl_nvrtc *nvrtc, void *program, const char *name,
                          const char *architecture, const mgl_cuda_shape *shape, void **out_cubin,
                          size_t *out_bytes, mgl_text *log, mgl_error *err) {
  char text[MGL_CUDA_MAX_OPTIONS][MGL_CUDA_OPTION_BYTES];
  const char *options[MGL_CUDA_MAX_OPTIONS + 2];
  int count = mgl_cuda_options_make(architecture, shape, text);
  int major = 0;
  int minor = 0;
  for (int i = 0; i < count; i++) {
    options[i] = text[i];
  }
  if (nvrtc->version(&major, &minor) == 0 && major * 100 + minor >= 1209) {
    options[count++] = "--no-cache";  // NVRTC's own: a cached cubin comes without log
  }
  if (major >= 13) {
    options[count++] = "--ptxas-options=--split-compile=0";  // a thread a core; the same code
  }
  int code = nvrtc->compile(program, count, options);
  MGL_TRY(fetch_log(nvrtc, program, log, err));
  if (code != 0) {
    return mgl_error_set(err, MGL_ERR_INTERNAL, "%s does not compile for %s: %s\n%s", name,
                         architecture, nvrtc->error_string(code), log->data);
  }
  return fetch_cubin(nvrtc, program, out_cubin, out_bytes, err);
}

mgl_status mgl_cuda_compile(const mgl_nvrtc *nvrtc, const char *name, const char *architecture,
                            const mgl_cuda_shape *shape, void **out_cubin, size_t *out_bytes,
                            mgl_text *log, mgl_error *err) {
  const char *texts[MAX_HEADERS];
  const char *names[MAX_HEADERS];
  const char *source = NULL;
  int count = 0;
  *out_cubin = NULL;
  *out_bytes = 0;
  for (const mgl_cuda_source *at = mgl_cuda_sources; at->name != NULL; at++) {
    if (strcmp(at->name, name) == 0) {
      source = at->text;
    } else {
      assert(count < MAX_HEADERS);
      texts[count] = mgl_cuda_source_text(at, shape);
      names[count++] = at->name;
    }
  }
  if (source == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "the device source \"%s\" is not in this binary",
                         name);
  }
  void *program = NULL;
  MGL_TRY(check(nvrtc, nvrtc->create(&program, source, name, count, texts, names), "create", err));
  mgl_status status =
      compile(nvrtc, program, name, architecture, shape, out_cubin, out_bytes, log, err);
  (void)nvrtc->destroy(&program);
  return status;
}

void mgl_cuda_architecture(const mgl_cuda_device *device, char out[MGL_ARCHITECTURE_BYTES]) {
  (void)snprintf(out, MGL_ARCHITECTURE_BYTES, "sm_%u%u%s", device->major % 1000,
                 device->minor % 100, device->kernels != MGL_CUDA_KERNELS_PORTABLE ? "a" : "");
}

// The number in front of `unit` in the text up to `end`.
static uint32_t number_before(const char *from, const char *end, const char *unit) {
  const char *at = strstr(from, unit);
  if (at == NULL || at >= end) {
    return 0;
  }
  while (at > from && at[-1] == ' ') {
    at--;
  }
  while (at > from && at[-1] >= '0' && at[-1] <= '9') {
    at--;
  }
  return (uint32_t)strtoul(at, NULL, 10);
}

bool mgl_cuda_usage_find(const char *log, const char *kernel, mgl_cuda_usage *out) {
  // ptxas info : Compiling entry function 'K' for 'sm_90a'
  // ptxas info : Function properties for K
  //     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
  // ptxas info : Used 10 registers, used 0 barriers, 16 bytes smem
  char entry[128];
  (void)snprintf(entry, sizeof entry, "entry function '%s'", kernel);
  const char *at = strstr(log, entry);
  if (at == NULL) {
    return false;
  }
  const char *next = strstr(at + strlen(entry), "Compiling entry function");
  const char *end = next != NULL ? next : at + strlen(at);
  *out = (mgl_cuda_usage){.registers = number_before(at, end, " registers"),
                          .stack_bytes = number_before(at, end, " bytes stack frame"),
                          .spill_bytes = number_before(at, end, " bytes spill stores") +
                                         number_before(at, end, " bytes spill loads"),
                          .static_smem_bytes = number_before(at, end, " bytes smem")};
  return out->registers != 0;
}
