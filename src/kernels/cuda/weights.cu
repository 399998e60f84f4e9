// How weights get into device memory, and how fast that memory can be read: plain launches before
// the megakernel runs.
//
// Any grid is right: blocks take row blocks in turn. Blocks have MGL_PACK_THREADS threads, but for
// mgl_read_ceiling. The bodies are in packing.h, where the host's tests run them.
#include "kernels/cuda/common/worker.cuh"
#include "twin/packing.h"

// No iterations run here, but protocol.h, which comes with device_run.h, wants its planner defined.
static __device__ int mgl_ask_next_plan(mgl_protocol *, uint64_t) {
  return -1;
}

static __device__ inline mgl_place mgl_here() {
  return mgl_place{blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};
}

// Packs row-major bf16 rows [row_count, k], which lie at any alignment (16 bytes and k % 8 == 0 are
// fast), into blocks first_block, first_block + block_stride, ... of `packed`. A range of rows of a
// larger matrix: rows are then a multiple of 8, and first_block counts those before. Padding is
// written.
extern "C" __global__ void __launch_bounds__(MGL_PACK_THREADS)
    mgl_pack_weights(const uint16_t *rows, uint32_t row_count, uint32_t k, uint32_t first_block,
                     uint32_t block_stride, uint8_t *packed) {
  mgl_pack_share(mgl_here(), rows, row_count, k, first_block, block_stride, packed);
}

// Packs a range of rows of codes into panels, those in halves u of row blocks, which are counted as
// by mgl_pack_weights. packing: an mgl_packing.
extern "C" __global__ void __launch_bounds__(MGL_PACK_THREADS)
    mgl_pack_codes(mgl_code_rows matrix, uint32_t packing, uint32_t u, uint32_t first_half,
                   uint32_t half_stride, uint8_t *packed) {
  mgl_pack_codes_share(mgl_here(), (mgl_packing)packing, matrix, u, first_half, half_stride,
                       packed);
}

// Packs dummy values instead of weights: row r, element e is number first + r * stride + e of the
// stream.
extern "C" __global__ void __launch_bounds__(MGL_PACK_THREADS)
    mgl_dummy_packed(mgl_dummy_stream stream, uint64_t first, uint64_t stride, uint32_t row_count,
                     uint32_t k, uint32_t first_block, uint32_t block_stride, uint8_t *packed) {
  mgl_dummy_packed_share(mgl_here(), stream, first, stride, row_count, k, first_block, block_stride,
                         packed);
}

// Elements 0 to count - 1 of the stream, row by row as in the tensor (embedding tables).
extern "C" __global__ void __launch_bounds__(MGL_PACK_THREADS)
    mgl_dummy_rows(mgl_dummy_stream stream, uint64_t count, uint16_t *out) {
  mgl_dummy_rows_share(mgl_here(), stream, count, out);
}

// --- the read ceiling ----------------------------------------------------------------------------

static __device__ inline uint32_t mgl_fold(uint32_t sum, mgl_chunk chunk) {
  return sum ^ chunk.word[0] ^ chunk.word[1] ^ chunk.word[2] ^ chunk.word[3];
}

// Past the L1, where nothing would be used again.
static __device__ inline mgl_chunk mgl_read_once(const uint8_t *address) {
  mgl_chunk chunk;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]), "=r"(chunk.word[3])
               : "l"(address));
  return chunk;
}

// Coalesced loads, 8 in flight for each thread.
static __device__ uint32_t mgl_read_by_loads(const uint8_t *memory, uint64_t bytes) {
  constexpr uint32_t in_flight = 8;
  uint64_t tile = (uint64_t)blockDim.x * sizeof(mgl_chunk) * in_flight;
  uint32_t sum = 0;
  for (uint64_t base = blockIdx.x * tile; base < bytes; base += gridDim.x * tile) {
    uint64_t first = base + threadIdx.x * sizeof(mgl_chunk);
    if (base + tile <= bytes) {
      mgl_chunk chunks[in_flight];
#pragma unroll
      for (uint32_t i = 0; i < in_flight; i++) {
        chunks[i] = mgl_read_once(memory + first + i * blockDim.x * sizeof(mgl_chunk));
      }
#pragma unroll
      for (uint32_t i = 0; i < in_flight; i++) {
        sum = mgl_fold(sum, chunks[i]);
      }
    } else {
      for (uint64_t at = first; at < bytes; at += blockDim.x * sizeof(mgl_chunk)) {
        sum = mgl_fold(sum, mgl_read_once(memory + at));
      }
    }
  }
  return sum;
}

#if MGL_TARGET_COPIES

struct mgl_read_ring {
  uint64_t full[MGL_READ_PAGES];   // by the copy: the page is there
  uint64_t empty[MGL_READ_PAGES];  // by each consumer warp: it has read the page
};

static __device__ inline void mgl_read_wait(uint64_t *barrier, uint32_t parity) {
  while (!mgl_mbarrier_test(barrier, parity)) {
  }
}

// The last warp keeps a ring of smem pages filled by bulk copies, the others fold what arrives.
// Block b reads pages b, b + grid, ... of the memory. Consumers wait for every page, so that the
// block does not end with copies outstanding.
static __device__ uint32_t mgl_read_by_copies(const uint8_t *memory, uint64_t bytes, uint8_t *pages,
                                              uint32_t page_count) {
  __shared__ mgl_read_ring ring;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < page_count; i++) {
      mgl_mbarrier_init(&ring.full[i], 1);
      mgl_mbarrier_init(&ring.empty[i], MGL_READ_CONSUMER_WARPS);
    }
    mgl_mbarriers_made();
  }
  __syncthreads();
  bool loads = threadIdx.x >= MGL_READ_CONSUMER_WARPS * 32;
  if (loads && threadIdx.x % 32 != 0) {
    return 0;
  }
  uint32_t sum = 0;
  uint32_t slot = 0;
  uint32_t parity = 0;  // of the round: the ring's first time around is round 0
  for (uint64_t at = (uint64_t)blockIdx.x * MGL_CUDA_PAGE_BYTES; at < bytes;
       at += (uint64_t)gridDim.x * MGL_CUDA_PAGE_BYTES) {
    uint32_t page_bytes =
        bytes - at < MGL_CUDA_PAGE_BYTES ? (uint32_t)(bytes - at) : MGL_CUDA_PAGE_BYTES;
    uint8_t *page = pages + slot * MGL_CUDA_PAGE_BYTES;
    if (loads) {
      mgl_read_wait(&ring.empty[slot], parity ^ 1);  // passes at once in round 0
      const uint32_t full = mgl_shared_address(&ring.full[slot]);
      mgl_mbarrier_expect_at(full, page_bytes);
      mgl_bulk_copy_at(mgl_shared_address(page), memory + at, page_bytes, full);
    } else {
      mgl_read_wait(&ring.full[slot], parity);
      for (uint32_t i = threadIdx.x * sizeof(mgl_chunk); i < page_bytes;
           i += MGL_READ_CONSUMER_WARPS * 32 * sizeof(mgl_chunk)) {
        sum = mgl_fold(sum, mgl_chunk_load(page + i));
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        mgl_mbarrier_arrive(&ring.empty[slot]);
      }
    }
    slot = slot + 1 < page_count ? slot + 1 : 0;
    parity ^= slot == 0 ? 1 : 0;
  }
  return sum;
}

#endif

// Reads memory[0 .. bytes) once, as fast as the GPU can; address and bytes are multiples of 16.
// *out, zero before, becomes the exclusive or of all its 32-bit words. Blocks of MGL_READ_THREADS.
// With dynamic shared memory, where there are bulk copies: one block per SM, as many pages of
// MGL_CUDA_PAGE_BYTES as it has, at most MGL_READ_PAGES, filled by them. Without, and with portable
// kernels: plain loads; the grid is what fits. The 4 in the bounds gives the compiler the
// registers for 8 loads in flight; without it, it keeps 5 on 8.0 (seen in the SASS).
extern "C" __global__ void __launch_bounds__(MGL_READ_THREADS, 4)
    mgl_read_ceiling(const uint8_t *memory, uint64_t bytes, uint32_t *out) {
  uint32_t sum = 0;
#if MGL_TARGET_COPIES
  extern __shared__ __align__(128) uint8_t pages[];
  uint32_t smem_bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(smem_bytes));
  uint32_t page_count = smem_bytes / MGL_CUDA_PAGE_BYTES;
  if (page_count > 0) {
    sum = mgl_read_by_copies(memory, bytes, pages,
                             page_count < MGL_READ_PAGES ? page_count : MGL_READ_PAGES);
  } else {
    sum = mgl_read_by_loads(memory, bytes);
  }
#else
  sum = mgl_read_by_loads(memory, bytes);
#endif
  for (int offset = 16; offset > 0; offset /= 2) {
    sum ^= __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (threadIdx.x % 32 == 0) {
    atomicXor(out, sum);
  }
}
