// Which body computes a task on a GPU: what variant.def's rows say, for host and device.
//
// The megakernel's controller, which has time, chooses a body and hands its number to the
// consumers; mode full's kernels are chosen by the host; `megalith compile` says which ones it will
// be, but for bodies of linears that know their shape, which are chosen by what device code was
// compiled for (mgl_known_function, mgl_one_function): it names those whose bits they have.
#ifndef MGL_TWIN_VARIANT_H
#define MGL_TWIN_VARIANT_H

#include "twin/op_launch.h"
#include "twin/packing.h"

// --- what conditions say of an op ----------------------------------------------------------------

// Its x goes through an RMS norm.
MGL_SHARED_FN bool mgl_normed(const mgl_cuda_op *op) {
  return (op->flags & MGL_CUDA_X_NORMED) != 0;
}

// Its k is whole pages.
MGL_SHARED_FN bool mgl_whole(const mgl_cuda_op *op) {
  return op->k % MGL_CUDA_PAGE_K == 0;
}

// Rows that end within the second page of a pair.
MGL_SHARED_FN bool mgl_is_cut(uint32_t k) {
  return k % (2 * MGL_CUDA_PAGE_K) > MGL_CUDA_PAGE_K && k % MGL_CUDA_K_ALIGN == 0;
}

// A linear of a graph for one token, of whole pairs of pages, which has bodies of its own.
MGL_SHARED_FN bool mgl_of_one(const mgl_cuda_op *op) {
  uint32_t most = mgl_normed(op) ? MGL_ONE_NORMED_MAX_K : MGL_ONE_MAX_K;
  return op->tokens == 1 && op->k % (2 * MGL_CUDA_PAGE_K) == 0 && op->k <= most;
}

// Likewise one of bf16 whose rows end within the second page of a pair, behind whole slices of its
// warps. Device code of models without any has no code for it (mgl_cuda_extras), nor has mode full.
MGL_SHARED_FN bool mgl_of_cut_one(const mgl_cuda_op *op) {
#if defined(__CUDACC__) && (!MGL_HAS_CUT_ROWS || MGL_KERNEL_PER_OP)
  (void)op;
  return false;
#else
  uint32_t most = mgl_normed(op) ? MGL_ONE_NORMED_MAX_K : MGL_ONE_MAX_K;
  return op->tokens == 1 && mgl_op_packing(op) == MGL_PACKING_BF16 && mgl_is_cut(op->k) &&
         op->k <= most;
#endif
}

// One of up to 16 tokens in one pass, of whole pairs of pages.
MGL_SHARED_FN bool mgl_of_rows(const mgl_cuda_op *op) {
  return op->row_tiles <= 2 && op->passes == 1 && op->k % (2 * MGL_CUDA_PAGE_K) == 0;
}

// Of experts, which a token's logits choose.
MGL_SHARED_FN bool mgl_of_experts(const mgl_cuda_op *op) {
  return (op->flags & MGL_CUDA_EXPERTS) != 0;
}

// Of a graph for so many tokens that they share the reading of experts; fewer are faster one after
// the other (docs/log/225).
MGL_SHARED_FN bool mgl_of_hits(const mgl_cuda_op *op) {
  return op->tokens > 8;
}

// --- the megakernel's ----------------------------------------------------------------------------

typedef enum mgl_task_function {
#define MGL_TASK(ENUM, ...) MGL_CALL_##ENUM,
#define MGL_TASK_ATTEND(ENUM, ...) MGL_CALL_##ENUM,
#define MGL_TASK_LINEAR(ENUM, ...) MGL_CALL_##ENUM,
#include "twin/variant.def"
  MGL_CALL_NOTHING,
  // Linears of codes: of mgl_packing 1 those of mgl_coded_function, then of mgl_packing 2, ...
  MGL_CALL_CODED,
} mgl_task_function;

typedef enum mgl_coded_function {
#define MGL_TASK_CODED(ENUM, ...) MGL_CODED_##ENUM,
#include "twin/variant.def"
  MGL_CODED_FUNCTIONS,
} mgl_coded_function;

// Compute capabilities from which on device code has a body.
enum { MGL_FROM_ANY = 80, MGL_FROM_SM_90 = 90 };

// Of a linear. capability: 10 times the compute
// capability that device code is for; has_codes: it has bodies for codes.
MGL_SHARED_FN uint32_t mgl_linear_function(const mgl_cuda_op *op, uint32_t capability,
                                           bool has_codes) {
  const uint32_t shape = op->row_tiles == 1 ? 0 : op->row_tiles == 2 ? 1 : 2;
  if (has_codes && mgl_op_packing(op) != MGL_PACKING_BF16) {
    const uint32_t first = MGL_CALL_CODED + (mgl_op_packing(op) - 1) * MGL_CODED_FUNCTIONS;
#define MGL_CHOOSE_CODED(condition, why, NORMED, OTHER, more)                          \
  if (condition) {                                                                     \
    return first + (mgl_normed(op) ? MGL_CODED_##NORMED : MGL_CODED_##OTHER) + (more); \
  }
#include "twin/variant.def"
  }
#define MGL_CHOOSE(from, condition, why, NORMED, OTHER, more)                \
  if (capability >= MGL_FROM_##from && (condition)) {                        \
    return (mgl_normed(op) ? MGL_CALL_##NORMED : MGL_CALL_##OTHER) + (more); \
  }
#include "twin/variant.def"
  return MGL_CALL_NOTHING;  // not reached: the last row takes all
}

// A linear whose body is one of those of 2 to 16 tokens (or, of codes, of more in several passes).
MGL_SHARED_FN bool mgl_by_rows(const mgl_cuda_op *op, uint32_t capability, bool has_codes) {
  const uint32_t function = mgl_linear_function(op, capability, has_codes);
  if (function < MGL_CALL_CODED) {
    return function >= MGL_CALL_LINEAR_ROWS_1 && function <= MGL_CALL_LINEAR_ROWS_2_NORMED;
  }
  const uint32_t coded = (function - MGL_CALL_CODED) % MGL_CODED_FUNCTIONS;
  return coded >= MGL_CODED_ROWS_1 && coded <= MGL_CODED_ROWS_2_NORMED;
}

// The body of a task of any op.
MGL_SHARED_FN uint32_t mgl_task_function_of(const mgl_cuda_op *op, uint32_t capability,
                                            bool has_codes) {
  switch (op->kind) {
#define MGL_VARIANT_CASE(KIND, function) \
  case MGL_OP_##KIND:                    \
    return function;
#define MGL_LINEAR(KIND) MGL_VARIANT_CASE(KIND, mgl_linear_function(op, capability, has_codes))
#define MGL_TASK(ENUM, name, KIND, ...) MGL_VARIANT_CASE(KIND, MGL_CALL_##ENUM)
#include "twin/variant.def"
    default: return MGL_CALL_NOTHING;
  }
}

// The body of all tasks of attend for a plan of that kind with so many items, since bodies deal
// them out in different ways. strides: of the graph.
MGL_SHARED_FN uint32_t mgl_attend_function(const mgl_cuda_op *op, mgl_plan_kind kind,
                                           uint32_t item_count, uint32_t strides) {
  const uint32_t most = (item_count + strides - 1) / strides;  // of a unit
  if (kind == MGL_PLAN_SHORT && most >= MGL_LONE_LEAST_ITEMS &&
      most * op->passes <= MGL_LONE_MOST_ITEMS && (op->flags & MGL_CUDA_UNITS_APART) != 0) {
    return MGL_CALL_ATTEND_WARPS;
  }
  return kind == MGL_PLAN_ANY ? MGL_CALL_ATTEND : MGL_CALL_ATTEND_DECODE;
}

// --- mode full's ---------------------------------------------------------------------------------

typedef enum mgl_full_kernel {
#define MGL_KERNEL(ENUM, ...) MGL_FULL_##ENUM,
#define MGL_KERNEL_ATTEND(ENUM, ...) MGL_FULL_##ENUM,
#define MGL_KERNEL_LINEAR(ENUM, ...) MGL_FULL_##ENUM,
#include "twin/variant.def"
  MGL_FULL_KERNELS,
} mgl_full_kernel;

// What a linear's block needs of shared memory besides pages.
typedef enum mgl_scratch {
  MGL_SCRATCH_ALL,    // all that a task may use
  MGL_SCRATCH_ONE,    // of one token
  MGL_SCRATCH_EIGHT,  // of up to 8 tokens, in half of a multiprocessor
} mgl_scratch;

#endif
