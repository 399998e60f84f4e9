// The bodies of linears and experts of one token that know k, what becomes of the sums, that
// activations carry their readiness and that outputs have copies: which tasks they compute. A task
// goes through its code once, so what need not be asked counts (docs/log/306, 311). By the
// controller, before it asks for any other body (variant.h): what it asks is code of each layer.
#ifndef MGL_KERNELS_CUDA_LINEAR_ONE_FUNCTION_CUH
#define MGL_KERNELS_CUDA_LINEAR_ONE_FUNCTION_CUH

#include "kernels/cuda/linear/tasks_linear_paged.cuh"
#include "twin/variant.h"

// Of bf16, not of experts.
MGL_DEVICE uint32_t mgl_one_plain_function(const mgl_cuda_op *op, mgl_makes makes) {
  if (makes == MGL_MAKES_ADDED) {
    return op->k == MGL_K_ADDED_1   ? MGL_CALL_ONE_ADDED_1
           : op->k == MGL_K_ADDED_2 ? MGL_CALL_ONE_ADDED_2
                                    : MGL_CALL_NOTHING;
  }
  return op->k != MGL_K_NORMED      ? MGL_CALL_NOTHING
         : makes == MGL_MAKES_GATED ? MGL_CALL_ONE_GATED
                                    : MGL_CALL_ONE_ROWS;
}

// Of codes, likewise: an mgl_coded_function, or as many as there are.
MGL_DEVICE uint32_t mgl_one_coded_function(const mgl_cuda_op *op, mgl_makes makes) {
  if (MGL_HAS_EXPERTS && mgl_experts_are_paged()) {
    if (makes == MGL_MAKES_ADDED && op->k % MGL_PANEL_K == 0 && op->k <= MGL_EXPERTS_DOWN_K) {
      return MGL_CODED_EXPERTS_ONE_DOWN;
    }
    if (makes == MGL_MAKES_ROWS && op->k == MGL_EXPERT_WIDTH) {
      return MGL_CODED_EXPERTS_ONE_UP;
    }
  }
  if (!mgl_one_codes_know(mgl_op_packing(op))) {
    return MGL_CODED_FUNCTIONS;
  }
  if (makes == MGL_MAKES_ADDED) {
    return op->k == MGL_K_CODED_ADDED_1   ? MGL_CODED_ONE_ADDED_1
           : op->k == MGL_K_CODED_ADDED_2 ? MGL_CODED_ONE_ADDED_2
                                          : MGL_CODED_FUNCTIONS;
  }
  return op->k != MGL_K_CODED_NORMED ? MGL_CODED_FUNCTIONS
         : makes == MGL_MAKES_GATED  ? MGL_CODED_ONE_GATED
                                     : MGL_CODED_ONE_ROWS;
}

// Such a body for a task of any op; MGL_CALL_NOTHING: there is none.
MGL_DEVICE uint32_t mgl_one_function(const mgl_cuda_op *op) {
  const mgl_makes makes = mgl_one_makes_of(op);
  if (!MGL_CARRIES || makes == MGL_MAKES_ANY || op->tokens != 1 ||
      (op->flags & MGL_CUDA_CARRIED) == 0 || op->copy_bytes == 0) {
    return MGL_CALL_NOTHING;
  }
  const uint32_t packing = mgl_op_packing(op);
  const uint32_t first = MGL_CALL_CODED + (packing - 1) * MGL_CODED_FUNCTIONS;
  const bool coded = MGL_HAS_CODES && packing != MGL_PACKING_BF16;
  const bool down = makes == MGL_MAKES_ADDED;
  if (MGL_HAS_EXPERTS && mgl_of_experts(op)) {
    return coded ? first + (down ? MGL_CODED_EXPERTS_ONE_DOWN : MGL_CODED_EXPERTS_ONE_UP)
                 : (down ? MGL_CALL_EXPERTS_ONE_DOWN : MGL_CALL_EXPERTS_ONE_UP);
  }
  if (!mgl_of_one(op) && !mgl_of_cut_one(op)) {
    return MGL_CALL_NOTHING;
  }
  if (coded) {
    const uint32_t function = mgl_one_coded_function(op, makes);
    return function == MGL_CODED_FUNCTIONS ? MGL_CALL_NOTHING : first + function;
  }
  return mgl_one_plain_function(op, makes);
}

#endif
