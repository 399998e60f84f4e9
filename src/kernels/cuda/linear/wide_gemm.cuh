// The main loop of the wide class's linears on sm_90a: wgmma with the weights as the M operand,
// from registers, and tokens as N, from shared memory.
//
// Packed weights are the operands of m16n8k16 products, lane by lane (device_run.h), and those of
// the four warps of a warpgroup are together the operand of m64nNk16: so a warp takes its row block
// from the stage with plain 16-byte loads, and weights exist once for both classes. Sums run over k
// by ascending steps of 16, whatever the tile.
#ifndef MGL_KERNELS_CUDA_LINEAR_WIDE_GEMM_CUH
#define MGL_KERNELS_CUDA_LINEAR_WIDE_GEMM_CUH

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"

enum { MGL_WIDE_SUMS = MGL_WIDE_TILE_TOKENS / 2 };  // of a thread: of two features

#if MGL_TARGET_WGMMA

#define MGL_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MGL_SUMS_8(i) MGL_SUMS_4(i), MGL_SUMS_4(i + 4)

// d = a b (add: + d) for the 64 rows of a warpgroup and 256 columns; a: this lane's four words, b:
// the descriptor of [N][16] elements. Asynchronous.
// clang-format off
static __device__ __forceinline__ void mgl_wgmma(float (&d)[128], const uint32_t *a, uint64_t b, uint32_t add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
      " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
      " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"
      " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111,"
      " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}\n"
      :
        MGL_SUMS_8(0),
        MGL_SUMS_8(8),
        MGL_SUMS_8(16),
        MGL_SUMS_8(24),
        MGL_SUMS_8(32),
        MGL_SUMS_8(40),
        MGL_SUMS_8(48),
        MGL_SUMS_8(56),
        MGL_SUMS_8(64),
        MGL_SUMS_8(72),
        MGL_SUMS_8(80),
        MGL_SUMS_8(88),
        MGL_SUMS_8(96),
        MGL_SUMS_8(104),
        MGL_SUMS_8(112),
        MGL_SUMS_8(120)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// clang-format on

#undef MGL_SUMS_4
#undef MGL_SUMS_8

// Multiplies 64 columns, and in the next function 128.
static __device__ __forceinline__ void mgl_wgmma(float (&d)[32], const uint32_t *a, uint64_t b,
                                                 uint32_t add) {
  mgl_wgmma_columns(reinterpret_cast<float(&)[8][4]>(d), *reinterpret_cast<const uint32_t(*)[4]>(a),
                    b, add);
}

static __device__ __forceinline__ void mgl_wgmma(float (&d)[64], const uint32_t *a, uint64_t b,
                                                 uint32_t add) {
  mgl_wgmma_columns(reinterpret_cast<float(&)[16][4]>(d),
                    *reinterpret_cast<const uint32_t(*)[4]>(a), b, add);
}

// Takes this warp's weights of a column of stage `at`, for the first of which it waits.
static __device__ __forceinline__ void mgl_wide_take_weights(mgl_wide_worker *w, uint32_t at,
                                                             uint32_t column, uint32_t (&a)[16]) {
  uint32_t stage = at % MGL_WIDE_STAGES;
  if (column == 0) {
    mgl_mbarrier_wait(&w->block->full[stage], at / MGL_WIDE_STAGES % 2);
  }
  uint32_t from = w->stages + stage * MGL_WIDE_STAGE_BYTES +
                  (w->warp * MGL_WIDE_COLUMNS + column) * MGL_WIDE_BLOCK_STAGE_BYTES + w->lane * 16;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[4 * i]), "=r"(a[4 * i + 1]), "=r"(a[4 * i + 2]), "=r"(a[4 * i + 3])
                 : "r"(from + i * 512)
                 : "memory");
  }
}

static __device__ __forceinline__ void mgl_wide_issue(const mgl_wide_worker *w, uint32_t at,
                                                      uint32_t column, float (&d)[MGL_WIDE_SUMS],
                                                      const uint32_t (&a)[16], uint32_t add) {
  uint32_t x = w->stages + at % MGL_WIDE_STAGES * MGL_WIDE_STAGE_BYTES + MGL_WIDE_WEIGHT_BYTES +
               column * MGL_WIDE_COLUMN_BYTES;
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

// The products of a tile over `count` columns of k, at least one: while a group of products runs,
// the weights of the next column are taken.
static __device__ __forceinline__ void mgl_wide_multiply(mgl_wide_worker *w, uint32_t count,
                                                         float (&d)[MGL_WIDE_SUMS]) {
  constexpr uint32_t columns = MGL_WIDE_COLUMNS, last = columns - 1;
  static_assert(columns == 1 || columns == 2, "columns of odd number are the last of their stages");
  uint32_t even[16];
  uint32_t odd[16];
  uint32_t at = 1;
  const uint32_t first = w->stage;
  w->stage += (count + last) / columns;
  mgl_wide_take_weights(w, first, 0, even);
  mgl_wide_issue(w, first, 0, d, even, 0);
  for (; at + 1 < count; at += 2) {
    const uint32_t stage = first + at / columns, next = first + (at + 1) / columns;
    mgl_wide_take_weights(w, stage, last, odd);
    mgl_wide_issue(w, stage, last, d, odd, 1);
    mgl_wgmma_wait<1>();
    if (columns == 1) {
      mgl_wide_release(w, stage - 1);
    }
    mgl_wide_take_weights(w, next, 0, even);
    mgl_wide_issue(w, next, 0, d, even, 1);
    mgl_wgmma_wait<1>();
    mgl_wide_release(w, stage);
  }
  if (at < count) {
    const uint32_t stage = first + at / columns;
    mgl_wide_take_weights(w, stage, last, odd);
    mgl_wide_issue(w, stage, last, d, odd, 1);
    mgl_wgmma_wait<1>();
    if (columns == 1) {
      mgl_wide_release(w, stage - 1);
    }
  }
  mgl_wgmma_wait<0>();
  mgl_wide_release(w, w->stage - 1);
}

#endif

#endif
