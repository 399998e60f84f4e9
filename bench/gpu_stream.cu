// A yardstick for streams through shared memory: one block a multiprocessor, a lane that asks for
// pages of 16 KiB with bulk copies, a ring of 12 pages, and eight warps that take them in one of
// several ways. Prints GB/s, the clock that the multiprocessors really had (cycles over the global
// timer: nvidia-smi does not show what the tensor cores take of it), and how unequally they ended.
// docs/log/180 has its figures.
//   nvcc -O3 -gencode=arch=compute_90a,code=sm_90a bench/gpu_stream.cu -o gpu_stream && ./gpu_stream
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

enum { PAGE_BYTES = 16384, RING = 12, WARPS = 8, THREADS = 384, RUNS = 24, WARM_UP = 8 };

// What the warps do with a page besides waiting for it and letting it go.
enum Way { WAIT, LOAD, MMA, MMA_ONE_WARP, MMA_RARELY, FMA };

struct Times {
  unsigned long long cycles, ns;
};

static void check(cudaError_t code, const char *what) {
  if (code != cudaSuccess) {
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    exit(1);
  }
}

static __device__ uint32_t address_of(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ bool has_ended(uint64_t *barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(address_of(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

static __device__ uint64_t global_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

static __device__ void multiply(float *d, uint4 a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

static __device__ void ask(uint8_t *pages, uint64_t *full, uint64_t *free_, const uint8_t *from,
                           size_t step, uint32_t count, int in_flight) {
  uint32_t page = 0, parity = 0, landed = 0, landed_parity = 0;
  int flying = 0;
  for (uint32_t i = 0; i < count; i++, from += step) {
    while (flying >= in_flight) {
      if (has_ended(full + landed, landed_parity)) {
        flying--;
        landed = (landed + 1) % RING;
        landed_parity ^= landed == 0;
      }
    }
    while (!has_ended(free_ + page, parity ^ 1)) {
    }
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(full + page)),
        "r"((uint32_t)PAGE_BYTES)
        : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(address_of(pages) + page * PAGE_BYTES),
        "l"(from), "r"((uint32_t)PAGE_BYTES), "r"(address_of(full + page))
        : "memory");
    flying++;
    page = (page + 1) % RING;
    parity ^= page == 0;
  }
}

template <int WAY>
static __device__ float take(const uint8_t *pages, uint64_t *full, uint64_t *free_,
                             uint32_t count) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t page = 0, parity = 0, bits = 0;
  float sums[4] = {};
  for (uint32_t i = 0; i < count; i++) {
    while (!has_ended(full + page, parity)) {
    }
#pragma unroll
    for (int j = 0; j < 4 && WAY != WAIT; j++) {
      uint4 v;
      asm volatile(
          "ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
          : "r"(address_of(pages) + page * PAGE_BYTES + warp * 2048 + j * 512 + lane * 16));
      if (WAY == MMA || (WAY == MMA_ONE_WARP && warp == 0) || (WAY == MMA_RARELY && i % 64 == 0)) {
        multiply(sums, v, 0x3f803f80u + lane, 0x3f803f81u);
      } else if (WAY == FMA) {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
          sums[e] = __fmaf_rn(__uint_as_float(words[e] << 16), 1.5f, sums[e]);
          sums[e] = __fmaf_rn(__uint_as_float(words[e] & 0xffff0000u), 1.25f, sums[e]);
        }
      } else {
        bits ^= v.x ^ v.y ^ v.z ^ v.w;
      }
    }
    __syncwarp();
    if (lane == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(free_ + page))
                   : "memory");
    }
    page = (page + 1) % RING;
    parity ^= page == 0;
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + (float)bits;
}

template <int WAY>
static __global__ void __launch_bounds__(THREADS, 1)
    stream(const uint8_t *memory, uint32_t count, int in_flight, float *sink, Times *times) {
  extern __shared__ __align__(128) uint8_t pages[];
  __shared__ uint64_t full[RING], free_[RING];
  if (threadIdx.x == 0) {
    for (int i = 0; i < RING; i++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(full + i)));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 8;" ::"r"(address_of(free_ + i)));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  uint64_t ns = global_ns();
  long long cycles = clock64();
  if (threadIdx.x == WARPS * 32) {
    ask(pages, full, free_, memory + (size_t)blockIdx.x * PAGE_BYTES,
        (size_t)gridDim.x * PAGE_BYTES, count, in_flight);
  } else if (threadIdx.x < WARPS * 32) {
    float sum = take<WAY>(pages, full, free_, count);
    if (sum == 1234.5f) {  // never; so that the sums are needed
      *sink = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    times[blockIdx.x] = {(unsigned long long)(clock64() - cycles), global_ns() - ns};
  }
}

template <int WAY>
static void measure(const char *name, const uint8_t *memory, size_t bytes, int blocks,
                    int in_flight, float *sink, Times *times) {
  const uint32_t count = (uint32_t)(bytes / PAGE_BYTES / blocks);
  const int shared = RING * PAGE_BYTES;
  check(cudaFuncSetAttribute(stream<WAY>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "shared memory");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> ms;
  for (int i = 0; i < RUNS; i++) {
    float time = 0;
    check(cudaEventRecord(begin), "record");
    stream<WAY><<<blocks, THREADS, shared>>>(memory, count, in_flight, sink, times);
    check(cudaEventRecord(end), "record");
    check(cudaEventSynchronize(end), name);
    check(cudaEventElapsedTime(&time, begin, end), "time");
    if (i >= WARM_UP) {
      ms.push_back(time);
    }
  }
  std::sort(ms.begin(), ms.end());
  std::vector<Times> all(blocks);
  check(cudaMemcpy(all.data(), times, blocks * sizeof(Times), cudaMemcpyDeviceToHost), "copy");
  double mhz = 0, first = 1e30, last = 0;
  for (const Times &t : all) {
    mhz += 1e3 * (double)t.cycles / (double)t.ns / blocks;
    first = std::min(first, (double)t.ns);
    last = std::max(last, (double)t.ns);
  }
  printf("| %s | %d | %.0f | %.0f | %.3f |\n", name, in_flight,
         (double)count * blocks * PAGE_BYTES / 1e6 / ms[ms.size() / 2], mhz, first / last);
  fflush(stdout);
}

int main() {
  const size_t bytes = (size_t)16 << 30;
  uint8_t *memory;
  float *sink;
  Times *times;
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "device");
  const int blocks = device.multiProcessorCount;
  check(cudaMalloc(&memory, bytes), "16 GiB");
  check(cudaMalloc(&sink, sizeof *sink), "memory");
  check(cudaMalloc(&times, blocks * sizeof *times), "memory");
  check(cudaMemset(memory, 0x3c, bytes), "memory");
  printf(
      "%s, %d multiprocessors\n\n| consumer | in flight | GB/s | SM MHz | first done / last |\n"
      "|---|---|---|---|---|\n",
      device.name, blocks);
  for (int in_flight = 4; in_flight <= 8; in_flight *= 2) {
    measure<WAIT>("waits only", memory, bytes, blocks, in_flight, sink, times);
    measure<LOAD>("loads", memory, bytes, blocks, in_flight, sink, times);
    measure<MMA>("loads, 4 mma.sync", memory, bytes, blocks, in_flight, sink, times);
    measure<MMA_ONE_WARP>("loads, one warp's mma.sync", memory, bytes, blocks, in_flight, sink,
                          times);
    measure<MMA_RARELY>("loads, mma.sync every 64th page", memory, bytes, blocks, in_flight, sink,
                        times);
    measure<FMA>("loads, FMA", memory, bytes, blocks, in_flight, sink, times);
  }
  return 0;
}
