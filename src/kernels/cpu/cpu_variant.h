// Variants: several kernels that compute one op on the CPU, and which is taken: that of the widest
// instruction set that the processor has, unless somebody asks for another one.
//
// Asked for are single ops, to look for a fault in a kernel or to compare two. Results then are as
// exact as any, but may differ in their last bits, as between processors. Linears are not among
// them: how they go through their weights is measured for the level of all ops, which
// MEGALITH_SIMD lowers.
#ifndef MGL_KERNELS_CPU_CPU_VARIANT_H
#define MGL_KERNELS_CPU_CPU_VARIANT_H

#include <stddef.h>
#include <stdint.h>

#include "base/simd.h"
#include "base/status.h"
#include "kernels/cpu/cpu_kernels.h"

// Kernels of cpu_kernels.h that are chosen one by one; the names are those of ops.
#define MGL_CPU_VARIANTS(X) \
  X(embed)                  \
  X(rmsnorm)                \
  X(layernorm)              \
  X(rope_angles)            \
  X(rope)                   \
  X(kv_write)               \
  X(attention)              \
  X(silu_mul)               \
  X(gelu)                   \
  X(add)

typedef enum mgl_cpu_variant_op {
#define MGL_VARIANT_OP(name) MGL_CPU_VARIANT_##name,
  MGL_CPU_VARIANTS(MGL_VARIANT_OP)
#undef MGL_VARIANT_OP
      MGL_CPU_VARIANT_COUNT,
} mgl_cpu_variant_op;

typedef struct mgl_cpu_variants {
  uint8_t asked[MGL_CPU_VARIANT_COUNT];  // an mgl_simd and 1; 0: nobody did
} mgl_cpu_variants;

// The number of the op of that name; MGL_CPU_VARIANT_COUNT: it has one kernel, or is unknown.
uint32_t mgl_cpu_variant_find(const char *op);
const char *mgl_cpu_variant_name(uint32_t op);

// The lowest level that has the kernel which `level` has for an op: what no instruction makes
// faster is stored once, and levels share it.
mgl_simd mgl_cpu_variant_owner(uint32_t op, mgl_simd level);

// Takes "OP=NAME", of `bytes` bytes. Refuses ops and kernels that there are not, what this
// processor cannot run, and ops for which all levels that it has share one kernel.
mgl_status mgl_cpu_variants_set(mgl_cpu_variants *variants, const char *text, size_t bytes,
                                mgl_error *err);

// The table of a level with what was asked for instead.
mgl_cpu_kernels mgl_cpu_variants_apply(const mgl_cpu_variants *variants, mgl_simd usual);

#endif
