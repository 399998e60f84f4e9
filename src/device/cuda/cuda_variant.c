#include "device/cuda/cuda_variant.h"

#include <assert.h>
#include <stdio.h>

#include "base/dtype.h"
#include "device/cuda/cuda_steps.h"
#include "lower/packed.h"

// A linear's blocks share a multiprocessor with those of the op before or behind it, half of its
// memory each, where they have at most so many pages to go through: then it is the hop that takes
// the time. Where pages do, a long ring is better (docs/log/067).
enum { SHARED_PAGES_4 = 6, SHARED_PAGES_8 = 4 };

const mgl_full_info *mgl_full_info_of(mgl_full_kernel kernel) {
  static const mgl_full_info infos[MGL_FULL_KERNELS] = {
#define MGL_KERNEL(ENUM, name, threads, KIND) \
  {"mgl_op_" #name, MGL_OP_##threads##_THREADS, MGL_SCRATCH_ALL},
#define MGL_KERNEL_ATTEND(ENUM, name, threads, ...) MGL_KERNEL(ENUM, name, threads, ATTEND)
#define MGL_KERNEL_LINEAR(ENUM, name, blocks, scratch, ...) \
  {"mgl_op_" #name, MGL_OP_LINEAR_THREADS, MGL_SCRATCH_##scratch},
#include "twin/variant.def"
  };
  assert(kernel < MGL_FULL_KERNELS);
  return &infos[kernel];
}

static mgl_full_kernel attend_kernel(const mgl_cuda_op *op, bool long_context, bool calm) {
#define MGL_KERNEL_ATTEND(ENUM, name, threads, blocks, condition, ...) \
  if (condition) {                                                     \
    return MGL_FULL_##ENUM;                                            \
  }
#include "twin/variant.def"
}

static mgl_full_kernel linear_kernel(const mgl_cuda_op *op, bool shares) {
  if (mgl_of_experts(op) || mgl_op_packing(op) != MGL_PACKING_BF16) {
    return MGL_FULL_TASK;
  }
#define MGL_KERNEL_LINEAR(ENUM, name, blocks, scratch, condition, ...) \
  if (condition) {                                                     \
    return MGL_FULL_##ENUM;                                            \
  }
#include "twin/variant.def"
}

mgl_full_kernel mgl_full_kernel_of(const mgl_cuda_op *op, mgl_full_case of) {
  if (op->kind == MGL_OP_ATTEND) {
    return attend_kernel(op, of.long_context, of.calm);
  }
#define MGL_KERNEL(ENUM, name, threads, KIND)                       \
  if (MGL_OP_##KIND != MGL_OP_COUNT && op->kind == MGL_OP_##KIND) { \
    return MGL_FULL_##ENUM;                                         \
  }
#include "twin/variant.def"
  if (!mgl_op_kind_is_linear(op->kind)) {
    return MGL_FULL_KERNELS;  // it is computed beside another
  }
  return linear_kernel(op, of.pages <= (op->tokens <= 4 ? SHARED_PAGES_4 : SHARED_PAGES_8));
}

// --- for people ----------------------------------------------------------------------------------

const char *mgl_task_function_why(const mgl_cuda_op *op, uint32_t capability) {
  if (!mgl_op_kind_is_linear(op->kind)) {
    return "its only one";
  }
  if (mgl_op_packing(op) != MGL_PACKING_BF16) {
#define MGL_CHOOSE_CODED(condition, why, ...) \
  if (condition) {                            \
    return why;                               \
  }
#include "twin/variant.def"
  }
  const uint32_t shape = op->row_tiles - 1;  // as mgl_linear_function has it, where it is 0
#define MGL_CHOOSE(from, condition, why, ...)         \
  if (capability >= MGL_FROM_##from && (condition)) { \
    return why;                                       \
  }
#include "twin/variant.def"
  return "";
}

const char *mgl_full_kernel_why(mgl_full_kernel kernel) {
  static const char *const whys[MGL_FULL_KERNELS] = {
#define MGL_KERNEL(ENUM, ...) [MGL_FULL_##ENUM] = "its only one",
#define MGL_KERNEL_ATTEND(ENUM, name, threads, blocks, condition, why, ...) [MGL_FULL_##ENUM] = why,
#define MGL_KERNEL_LINEAR(ENUM, name, blocks, scratch, condition, why, ...) [MGL_FULL_##ENUM] = why,
#include "twin/variant.def"
  };
  return kernel < MGL_FULL_KERNELS ? whys[kernel] : "it is computed beside another op";
}

void mgl_task_function_name(uint32_t function, char out[MGL_TASK_FUNCTION_NAME_BYTES]) {
  static const char *const names[] = {
#define MGL_TASK(ENUM, name, ...) #name,
#define MGL_TASK_ATTEND(ENUM, name, ...) #name,
#define MGL_TASK_LINEAR(ENUM, name, ...) #name,
#include "twin/variant.def"
      "nothing"};
  static const char *const coded[] = {
#define MGL_TASK_CODED(ENUM, name, ...) #name,
#include "twin/variant.def"
  };
  if (function < MGL_CALL_CODED) {
    (void)snprintf(out, MGL_TASK_FUNCTION_NAME_BYTES, "%s", names[function]);
    return;
  }
  static const char *const packings[MGL_PACKING_COUNT] = {MGL_PACKING_NAMES};
  uint32_t packing = (function - MGL_CALL_CODED) / MGL_CODED_FUNCTIONS + 1;
  assert(packing < MGL_PACKING_COUNT);
  (void)snprintf(out, MGL_TASK_FUNCTION_NAME_BYTES, "%s %s", packings[packing],
                 coded[(function - MGL_CALL_CODED) % MGL_CODED_FUNCTIONS]);
}

mgl_bodies mgl_bodies_of(const mgl_graph *program, uint32_t tokens, uint32_t logit_rows,
                         uint32_t workers, uint32_t capability, uint32_t op) {
  mgl_bodies out = {0};
  mgl_full_case of = {0};
  mgl_cuda_op sizes = mgl_cuda_size_op(program, tokens, logit_rows, op);
  mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[op]);
  mgl_task_function_name(mgl_task_function_of(&sizes, capability, true), out.mega);
  out.mega_why = mgl_task_function_why(&sizes, capability);
  if (m.count > 0) {
    uint32_t blocks = m.row_blocks < workers ? m.row_blocks : workers;
    of.pages = (m.row_blocks + blocks - 1) / blocks *
               ((m.k_padded + MGL_CUDA_PAGE_K - 1) / MGL_CUDA_PAGE_K);
  }
  mgl_full_kernel kernel = mgl_full_kernel_of(&sizes, of);
  out.full = kernel < MGL_FULL_KERNELS ? mgl_full_info_of(kernel)->name : NULL;
  out.full_why = kernel == MGL_FULL_TASK ? out.mega_why : mgl_full_kernel_why(kernel);
  return out;
}
