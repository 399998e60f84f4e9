// The main loop of the wide class's linears on sm_90a: wgmma with the weights as the M operand,
// from registers, and tokens as N, from shared memory.
//
// Packed weights are the operands of m16n8k16 products, lane by lane (device_run.h), and those of
// the four warps of a warpgroup are together the operand of m64nNk16: so a warp takes its row block
// from the stage with plain 16-byte loads, and weights exist once for both classes. Sums run over k
// by ascending steps of 16, whatever the tile.
#ifndef MGL_KERNELS_CUDA_WIDE_GEMM_CUH
#define MGL_KERNELS_CUDA_WIDE_GEMM_CUH

#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wide_worker.cuh"

#if MGL_WIDE_WGMMA

// A thread's sums are of two features, for as many tokens as a product has columns. Iterations of
// few tokens have products of fewer columns, in a kernel of its own: with two kinds of products in
// one the compiler finds too few registers, and waits for every product (SPEED.md).
#define MGL_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MGL_SUMS_16(i) MGL_SUMS_4(i), MGL_SUMS_4(i + 4), MGL_SUMS_4(i + 8), MGL_SUMS_4(i + 12)
#define MGL_SUMS_32(i) MGL_SUMS_16(i), MGL_SUMS_16(i + 16)
// clang-format off
#define MGL_NAMES_64 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MGL_NAMES_128 MGL_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d = a b (add: + d) for the 64 rows of a warpgroup and 2 * sums columns; a: this lane's four words,
// b: the descriptor of [N][16] elements. Asynchronous.
#define MGL_WGMMA_SUMS(sums, n, names, a0, a1, a2, a3, b_name, add_name, ...)                                   \
  static __device__ __forceinline__ void mgl_wgmma(float (&d)[sums], const uint32_t *a, uint64_t b,             \
                                                   uint32_t add) {                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_name ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" names "}, "                        \
                 "{" a0 ", " a1 ", " a2 ", " a3 "}, " b_name ", p, 1, 1, 0;\n}"                                 \
                 : __VA_ARGS__                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                               \
  }
MGL_WGMMA_SUMS(64, "128", MGL_NAMES_64, "%64", "%65", "%66", "%67", "%68", "%69", MGL_SUMS_32(0), MGL_SUMS_32(32))
MGL_WGMMA_SUMS(128, "256", MGL_NAMES_128, "%128", "%129", "%130", "%131", "%132", "%133", MGL_SUMS_32(0), MGL_SUMS_32(32), MGL_SUMS_32(64), MGL_SUMS_32(96))
// clang-format on

#undef MGL_SUMS_4
#undef MGL_SUMS_16
#undef MGL_SUMS_32
#undef MGL_NAMES_64
#undef MGL_NAMES_128
#undef MGL_WGMMA_SUMS

// Waits for the next stage and takes this warp's weights from it.
static __device__ __forceinline__ void mgl_wide_take_weights(mgl_wide_worker *w, uint32_t at,
                                                             uint32_t (&a)[16]) {
  uint32_t stage = at % MGL_WIDE_STAGES;
  mgl_mbarrier_wait(&w->block->full[stage], at / MGL_WIDE_STAGES % 2);
  uint32_t from = w->stages + stage * MGL_WIDE_STAGE_BYTES + w->warp * 2048 + w->lane * 16;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[4 * i]), "=r"(a[4 * i + 1]), "=r"(a[4 * i + 2]), "=r"(a[4 * i + 3])
                 : "r"(from + i * 512)
                 : "memory");
  }
}

template <int sums>
static __device__ __forceinline__ void mgl_wide_issue(const mgl_wide_worker *w, uint32_t at,
                                                      float (&d)[sums], const uint32_t (&a)[16],
                                                      uint32_t add) {
  uint32_t x = w->stages + at % MGL_WIDE_STAGES * MGL_WIDE_STAGE_BYTES + MGL_WIDE_WEIGHT_BYTES;
  uint64_t b = mgl_wgmma_descriptor(x);
  mgl_wgmma_fence();
  mgl_wgmma(d, a, b, add);
  mgl_wgmma(d, a + 4, b + 2, 1);
  mgl_wgmma(d, a + 8, b + 4, 1);
  mgl_wgmma(d, a + 12, b + 6, 1);
  mgl_wgmma_commit();
}

static __device__ __forceinline__ void mgl_wide_release(const mgl_wide_worker *w, uint32_t at) {
  if (w->lane == 0) {
    mgl_mbarrier_arrive(&w->block->empty[at % MGL_WIDE_STAGES]);
  }
}

// The products of a tile over `count` stages, at least one: while a group of products runs, the
// weights of the next stage are taken.
template <int sums>
static __device__ __forceinline__ void mgl_wide_multiply(mgl_wide_worker *w, uint32_t count,
                                                         float (&d)[sums]) {
  uint32_t even[16];
  uint32_t odd[16];
  uint32_t at = w->stage;
  const uint32_t end = at + count;
  w->stage = end;
  mgl_wide_take_weights(w, at, even);
  mgl_wide_issue(w, at, d, even, 0);
  for (at++; at + 1 < end; at += 2) {
    mgl_wide_take_weights(w, at, odd);
    mgl_wide_issue(w, at, d, odd, 1);
    mgl_wgmma_wait<1>();
    mgl_wide_release(w, at - 1);
    mgl_wide_take_weights(w, at + 1, even);
    mgl_wide_issue(w, at + 1, d, even, 1);
    mgl_wgmma_wait<1>();
    mgl_wide_release(w, at);
  }
  if (at < end) {
    mgl_wide_take_weights(w, at, odd);
    mgl_wide_issue(w, at, d, odd, 1);
    mgl_wgmma_wait<1>();
    mgl_wide_release(w, at - 1);
    at++;
  }
  mgl_wgmma_wait<0>();
  mgl_wide_release(w, at - 1);
}

#endif

#endif
