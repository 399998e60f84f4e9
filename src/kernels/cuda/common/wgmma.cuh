// Products of a warpgroup on sm_90a (wgmma): the left operand from registers, as of m16n8k16
// products of its four warps, or from shared memory, the right one from shared memory; sums as of
// those products too.
#ifndef MGL_KERNELS_CUDA_COMMON_WGMMA_CUH
#define MGL_KERNELS_CUDA_COMMON_WGMMA_CUH

#include <stdint.h>

#include "kernels/cuda/common/target.h"

#if MGL_TARGET_WGMMA

// Registers written before are seen by the products after it.
MGL_DEVICE void mgl_wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

MGL_DEVICE void mgl_wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most `pending` groups are under way.
template <int pending>
MGL_DEVICE void mgl_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Rows of 128 bytes with the 128-byte swizzle, groups of 8 of them one after the other.
MGL_DEVICE uint64_t mgl_wgmma_descriptor(uint32_t address) {
  return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
         ((address & 0x3ffff) >> 4);
}

// Makes a descriptor of rows of 128, 64 or 32 bytes with the swizzle of that name.
template <int row_bytes>
MGL_DEVICE uint64_t mgl_wgmma_rows(uint32_t address) {
  static_assert(row_bytes == 128 || row_bytes == 64 || row_bytes == 32, "swizzles");
  constexpr uint64_t swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  return swizzle << 62 | (uint64_t)(8 * row_bytes >> 4) << 32 | (uint64_t)1 << 16 |
         ((address & 0x3ffff) >> 4);
}

// After a wait: what the products have written is read from here on.
template <int columns>
MGL_DEVICE void mgl_wgmma_arrived(float (&d)[columns][4]) {
#pragma unroll
  for (int i = 0; i < columns; i++) {
    asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
  }
}

// d = a b (add: + d): 64 rows, 8 columns for each element of d, k = 16. Asynchronous.
// clang-format off
#define MGL_D(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define MGL_D4(i) MGL_D(i), MGL_D(i + 1), MGL_D(i + 2), MGL_D(i + 3)
#define MGL_N0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MGL_N1 MGL_N0 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MGL_N2 MGL_N1 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MGL_N3 MGL_N2 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MGL_N5 MGL_N3 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MGL_N7 MGL_N5 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MGL_WGMMA(columns, n, names, a0, a1, a2, a3, b_name, add_name, ...)                                     \
  MGL_DEVICE void mgl_wgmma_columns(float (&d)[columns][4], const uint32_t (&a)[4],      \
                                                           uint64_t b, uint32_t add) {                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_name ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" names "}, "                        \
                 "{" a0 ", " a1 ", " a2 ", " a3 "}, " b_name ", p, 1, 1, 0;\n}"                                 \
                 : __VA_ARGS__                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                               \
  }
MGL_WGMMA(4, "32", MGL_N0, "%16", "%17", "%18", "%19", "%20", "%21", MGL_D4(0))
MGL_WGMMA(8, "64", MGL_N1, "%32", "%33", "%34", "%35", "%36", "%37", MGL_D4(0), MGL_D4(4))
MGL_WGMMA(12, "96", MGL_N2, "%48", "%49", "%50", "%51", "%52", "%53", MGL_D4(0), MGL_D4(4), MGL_D4(8))
MGL_WGMMA(16, "128", MGL_N3, "%64", "%65", "%66", "%67", "%68", "%69", MGL_D4(0), MGL_D4(4), MGL_D4(8), MGL_D4(12))
MGL_WGMMA(24, "192", MGL_N5, "%96", "%97", "%98", "%99", "%100", "%101", MGL_D4(0), MGL_D4(4), MGL_D4(8), MGL_D4(12),
          MGL_D4(16), MGL_D4(20))
MGL_WGMMA(32, "256", MGL_N7, "%128", "%129", "%130", "%131", "%132", "%133", MGL_D4(0), MGL_D4(4), MGL_D4(8), MGL_D4(12),
          MGL_D4(16), MGL_D4(20), MGL_D4(24), MGL_D4(28))
#undef MGL_D
#undef MGL_D4
#undef MGL_N0
#undef MGL_N1
#undef MGL_N2
#undef MGL_N3
#undef MGL_N5
#undef MGL_N7
#undef MGL_WGMMA
// clang-format on

#endif

#endif
