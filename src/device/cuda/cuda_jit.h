// Device code, compiled at run time: the embedded sources through NVRTC, for a given architecture.
//
// NVRTC compiles for any architecture on any machine, with or without a GPU. It is opened with
// dlopen. The sources lie in the binary (cmake/embed_device_sources.cmake) and include each other
// by their path under src/; nothing is read from disk.
#ifndef MGL_DEVICE_CUDA_CUDA_JIT_H
#define MGL_DEVICE_CUDA_CUDA_JIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "base/text.h"
#include "device/cuda/cuda_driver.h"

typedef struct mgl_cuda_source {
  const char *name;  // what #include writes
  const char *text;
} mgl_cuda_source;

extern const mgl_cuda_source mgl_cuda_sources[];  // ends with a NULL name; generated
#define MGL_CUDA_CUSTOM_SOURCE "kernels/cuda/custom/custom_source.cuh"

typedef struct mgl_nvrtc {
  void *library;
  int (*version)(int *major, int *minor);
  const char *(*error_string)(int code);
  int (*create)(void **program, const char *source, const char *name, int header_count,
                const char *const *headers, const char *const *header_names);
  int (*destroy)(void **program);
  int (*compile)(void *program, int option_count, const char *const *options);
  int (*log_bytes)(void *program, size_t *bytes);
  int (*log)(void *program, char *out);
  int (*cubin_bytes)(void *program, size_t *bytes);
  int (*cubin)(void *program, char *out);
} mgl_nvrtc;

// MGL_ERR_UNSUPPORTED where libnvrtc is missing. Stays loaded until the process ends.
mgl_status mgl_nvrtc_open(mgl_nvrtc *out, mgl_error *err);

// Device code is specialised for a shape.
// The mixture that the narrow class is compiled for.
typedef struct mgl_cuda_experts {
  uint32_t count;     // E; 0: there is none
  uint32_t slots;     // S
  uint32_t features;  // F of an expert
  uint32_t width;     // D
  bool softmax_of_all, renormalise, biases;
  float scale;
  float limit;  // of gate and up; 0: none
} mgl_cuda_experts;

// Linears whose k device code knows, of bf16 and of codes: with a norm, and two k with a residual.
// Pages come in pairs, so only a k of whole pairs is known, and of bf16 one that is cut
// (mgl_is_cut).
typedef enum mgl_cuda_known {
  MGL_KNOWN_NORMED,
  MGL_KNOWN_ADDED_1,
  MGL_KNOWN_ADDED_2,
  MGL_KNOWN_CODED_NORMED,
  MGL_KNOWN_CODED_ADDED_1,
  MGL_KNOWN_CODED_ADDED_2,
  MGL_KNOWN_COUNT,
} mgl_cuda_known;

// What few models have: code for it is there only in theirs. And k, of which it knows.
typedef struct mgl_cuda_extras {
  bool windows;                 // some layer's attention has one
  bool sinks;                   // of attention
  bool sum_biases;              // of linears with a residual
  bool cut_rows;                // of some linear of bf16 (mgl_is_cut)
  uint32_t k[MGL_KNOWN_COUNT];  // 0: there is none; 1: of codes with a norm, several: none is known
} mgl_cuda_extras;

typedef struct mgl_cuda_shape {
  // Of kernels/cuda/custom.cu: the op's name, and the text that takes the place of the embedded
  // MGL_CUDA_CUSTOM_SOURCE. NULL: there is none.
  const mgl_cuda_source *custom;
  uint32_t head_dim;  // a multiple of 32, at most 128
  uint32_t group;     // query heads of a KV head, 1 to 8
  bool trace;
  uint32_t packings;    // mgl_packed_kinds; 0: bf16
  bool groups_of_32;    // of codes
  bool groups_of_64;    // of codes
  uint32_t page_bytes;  // from an smem page to the next; 0: MGL_CUDA_PAGE_BYTES
  mgl_cuda_experts experts;
  mgl_cuda_extras extras;
  uint32_t ranks;  // GPUs that run the model together; 0: 1
} mgl_cuda_shape;

// The options of a compilation, as text: the fixed ones, then sizes and offsets of the host's
// structs, for the device code's static asserts, then what it is specialised for.
enum { MGL_CUDA_MAX_OPTIONS = 72, MGL_CUDA_OPTION_BYTES = 96 };
#define MGL_NVRTC_DEVICE_OPTION "--device-as-default-execution-space"  // nvcc has no such
int mgl_cuda_options_make(const char *architecture, const mgl_cuda_shape *shape,
                          char text[MGL_CUDA_MAX_OPTIONS][MGL_CUDA_OPTION_BYTES]);

// The text of an embedded source, as it is compiled for a shape.
const char *mgl_cuda_source_text(const mgl_cuda_source *source, const mgl_cuda_shape *shape);

// Compiles the embedded source `name` for `architecture` ("sm_90a"). The cubin is freed with
// mgl_free. *log gets the compiler's words, which contain each kernel's resources; on failure the
// error has their beginning.
mgl_status mgl_cuda_compile(const mgl_nvrtc *nvrtc, const char *name, const char *architecture,
                            const mgl_cuda_shape *shape, void **out_cubin, size_t *out_bytes,
                            mgl_text *log, mgl_error *err);

// Hashes everything that mgl_cuda_compile gives to the compiler.
mgl_status mgl_cuda_source_hash(const char *name, const char *architecture,
                                const mgl_cuda_shape *shape, mgl_hash *out, mgl_error *err);

// The architecture to compile for: "sm_XYa" where kernels are more than portable, else "sm_XY".
enum { MGL_ARCHITECTURE_BYTES = 16 };
void mgl_cuda_architecture(const mgl_cuda_device *device, char out[MGL_ARCHITECTURE_BYTES]);

// An mgl_cuda_usage is what a kernel takes, as a compile log says.
typedef struct mgl_cuda_usage {
  uint32_t registers;
  uint32_t stack_bytes;
  uint32_t spill_bytes;  // stores and loads
  uint32_t static_smem_bytes;
} mgl_cuda_usage;

// False if the log does not speak of that kernel.
bool mgl_cuda_usage_find(const char *log, const char *kernel, mgl_cuda_usage *out);

#endif
