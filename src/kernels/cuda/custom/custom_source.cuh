// Stands for the source of a custom op: when one is compiled, its text has this file's place
// (device/cuda/cuda_jit.h). It defines the function that MGL_CUSTOM_OP names:
//
//   __device__ void NAME(const megalith_custom_call *call);
#error "no custom op was given"
