// The loader warp. In the walking skeleton it only loads the memory system: it streams a buffer
// through shared memory, with a bounded number of pages in flight, while the other warps work, so
// that the cost of a dependency can be measured under the load that it will have. It obeys the rule
// of every loader: no exit with bulk copies outstanding.
#ifndef MGL_KERNELS_CUDA_ROLE_LOADER_CUH
#define MGL_KERNELS_CUDA_ROLE_LOADER_CUH

#include "kernels/cuda/worker.cuh"

#if __CUDA_ARCH__ >= 900

static __device__ inline uint32_t mgl_shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}

static __device__ inline void mgl_page_wait(uint64_t *full, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(mgl_shared_address(full)), "r"(parity)
        : "memory");
  }
}

static __device__ inline void mgl_page_load(uint8_t *page, const uint8_t *from, uint64_t *full) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mgl_shared_address(full)),
      "r"((uint32_t)MGL_CUDA_STREAM_PAGE_BYTES)
      : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(mgl_shared_address(page)),
      "l"(from), "r"((uint32_t)MGL_CUDA_STREAM_PAGE_BYTES), "r"(mgl_shared_address(full))
      : "memory");
}

static __device__ void mgl_loader(mgl_cuda_run *run, mgl_block *block, uint8_t *pages) {
  uint32_t slots = run->stream_pages;
  // A multiple of the blocks, so that each keeps to pages of its own and no page comes from the L2.
  uint64_t page_count = run->stream_bytes / MGL_CUDA_STREAM_PAGE_BYTES;
  page_count = page_count < gridDim.x ? page_count : page_count - page_count % gridDim.x;
  uint64_t at = blockIdx.x % page_count;
  for (uint32_t i = 0; i < slots; i++) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(mgl_shared_address(&block->page_full[i]))
        : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  uint64_t loaded = 0;
  for (; block->stop == 0; loaded++) {
    uint32_t slot = (uint32_t)(loaded % slots);
    uint64_t round = loaded / slots;
    if (round > 0) {
      mgl_page_wait(&block->page_full[slot], (uint32_t)(round - 1) & 1);
    }
    mgl_page_load(pages + slot * MGL_CUDA_STREAM_PAGE_BYTES,
                  run->stream + at * MGL_CUDA_STREAM_PAGE_BYTES, &block->page_full[slot]);
    at = (at + gridDim.x) % page_count;
  }
  for (uint64_t i = loaded > slots ? loaded - slots : 0; i < loaded; i++) {
    mgl_page_wait(&block->page_full[i % slots], (uint32_t)(i / slots) & 1);
  }
  (void)mgl_add_acq_rel(&run->streamed_pages, loaded);
}

#else

static __device__ void mgl_loader(mgl_cuda_run *, mgl_block *, uint8_t *) {}  // no bulk copies

#endif

#endif
