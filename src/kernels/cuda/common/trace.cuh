// The device's trace: spans of time per worker and role, compiled in with MGL_TRACE; without it
// nothing is left of what stands here.
//
// Each track is one thread's, which keeps its place in registers, reads the clock in a few cycles
// and writes a span with one store that nobody waits for, after whatever others wait for. (Reading
// the global timer for every span and counting in memory took 20% of an iteration: docs/log/173.)
#ifndef MGL_KERNELS_CUDA_COMMON_TRACE_CUH
#define MGL_KERNELS_CUDA_COMMON_TRACE_CUH

#include "kernels/cuda/common/worker.cuh"

static_assert(sizeof(mgl_cuda_span) == 16, "one store");

// A track of this block, as its thread has it.
struct mgl_tracer {
  mgl_cuda_span *spans;
  uint32_t mask;
  uint32_t count;
};

MGL_DEVICE void mgl_trace_open(const mgl_cuda_run *run, mgl_cuda_trace_role role, mgl_tracer *t) {
  if (MGL_TRACE) {
    t->mask = run->span_count - 1;
    t->spans = run->spans + (size_t)(blockIdx.x * MGL_CUDA_TRACE_ROLES + role) * run->span_count;
    t->count = 0;
  }
}

MGL_DEVICE void mgl_trace_add(mgl_tracer *t, uint32_t begin, uint32_t end, uint32_t note,
                              uint32_t graph, uint32_t task) {
  if (MGL_TRACE) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(t->spans + (t->count & t->mask)),
                 "r"(begin), "r"(end), "r"(note), "r"(graph << MGL_ID_INDEX_BITS | task)
                 : "memory");
    t->count++;
  }
}

MGL_DEVICE void mgl_trace_close(const mgl_cuda_run *run, mgl_cuda_trace_role role,
                                const mgl_tracer *t) {
  if (MGL_TRACE) {
    run->traces[blockIdx.x].span_counts[role] = t->count;
  }
}

// Both clocks at a tick of the global timer, which may be a microsecond long; the number-th pair.
MGL_DEVICE void mgl_trace_mark(const mgl_cuda_run *run, uint32_t number) {
  if (MGL_TRACE) {
    uint64_t before = mgl_global_ns();
    uint64_t now = before;
    unsigned long long clock = 0;
    while (now == before) {
      now = mgl_global_ns();
      asm volatile("mov.u64 %0, %clock64;" : "=l"(clock));
    }
    uint32_t at = blockIdx.x * MGL_CUDA_TRACE_MARKS + number % MGL_CUDA_TRACE_MARKS;
    run->marks[at].ns = now;
    run->marks[at].clock = clock;
    run->traces[blockIdx.x].mark_count = number + 1;
  }
}

// A warp that takes pairs beside what else it does.
struct mgl_marker {
  uint32_t number;  // of the next pair
  uint32_t clock;   // of the one before, its low half
};

enum { MGL_MARK_CLOCKS = 14000 };  // between two pairs: in 65 us clocks part by 0.1 us and more

// One thread.
MGL_DEVICE void mgl_trace_mark_if_due(const mgl_cuda_run *run, mgl_marker *m) {
  if (MGL_TRACE && (m->number == 0 || mgl_trace_clock() - m->clock > MGL_MARK_CLOCKS)) {
    mgl_trace_mark(run, m->number++);
    m->clock = mgl_trace_clock();
  }
}

// For a warp that has nothing else to do: pairs until the run is over.
MGL_DEVICE void mgl_trace_clocks(const mgl_cuda_run *run, const mgl_block *block) {
  if (MGL_TRACE && threadIdx.x % 32 == 0) {
    mgl_marker marker = {};
    while (block->stop == 0) {
      mgl_trace_mark_if_due(run, &marker);
      __nanosleep(1000);
    }
    mgl_trace_mark(run, marker.number);
  }
}

#endif
