// Custom ops as tasks of the megakernel, compiled with their sources.
//
// A task is rows of the op's output, and its tiles, of at most as many rows as the op's rule says,
// follow each other in one worker. The sources are written for a kernel of their own of
// MGL_CUSTOM_THREADS threads, which the consumers of a worker are: for these __syncthreads is the
// consumers' barrier here (the one of all threads would wait for the other roles, too), and
// blockDim is theirs. What a source has in shared memory lies beside the worker's, which gets as
// much less for pages (device/cuda/cuda_program.c).
//   Rejected: a launch of the op's own kernel between two launches of the megakernel, which would
// end an iteration in its middle.
#ifndef MGL_KERNELS_CUDA_CUSTOM_TASKS_CUSTOM_CUH
#define MGL_KERNELS_CUDA_CUSTOM_TASKS_CUSTOM_CUH

#include "kernels/cuda/common/layout.h"
#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/custom/custom_tiles.cuh"
#include "kernels/cuda/linear/logit_row.cuh"
#include "kernels/cuda/small/tasks_iteration.cuh"

#ifdef MGL_CUSTOM_OP

#define MGL_LAYOUT_CUSTOM MGL_SAME_LAYOUT
#include "twin/layout.def"
static_assert((int)MGL_CUSTOM_THREADS == (int)MGL_CUDA_CONSUMERS, "a source counts on as many");

struct mgl_custom_dims {
  unsigned x, y, z;
};

#define __syncthreads() mgl_sync_consumers()
#define blockDim (mgl_custom_dims{MGL_CUSTOM_THREADS, 1, 1})
#include "kernels/cuda/custom/custom_source.cuh"
#undef blockDim
#undef __syncthreads

// What a custom task has in scratch.
struct mgl_custom_scratch {
  mgl_custom_launch launch;
  uint64_t best[MGL_CUDA_CONSUMER_WARPS];
};

static_assert(sizeof(mgl_custom_scratch) <= MGL_CUDA_SCRATCH_BYTES, "it must fit");

// The launch in scratch, as this plan has it.
MGL_DEVICE void mgl_custom_take(const mgl_worker *w, const mgl_slot *slot) {
  mgl_custom_launch *launch = &((mgl_custom_scratch *)w->scratch)->launch;
  const uint32_t *from = (const uint32_t *)slot->op.weights;
  for (uint32_t i = w->thread; i < sizeof *launch / sizeof *from; i += MGL_CUDA_CONSUMERS) {
    ((uint32_t *)launch)[i] = __ldg(from + i);
  }
  mgl_sync_consumers();
  if (w->thread == 0) {
    const mgl_cuda_plan *plan = slot->plan;
    mgl_custom_set_plan(launch, mgl_read_word(&plan->token_count),
                        mgl_read_word(&plan->logit_row_count), plan->tokens, plan->positions);
  }
  mgl_sync_consumers();
}

// Of the op whose output is sampled: the largest logit of each row takes the place of the one that
// the tasks of the logits before it have left.
MGL_DEVICE void mgl_custom_note_best(const mgl_worker *w, const mgl_slot *slot, uint32_t end) {
  mgl_custom_scratch *scratch = (mgl_custom_scratch *)w->scratch;
  for (uint32_t row = slot->begin; row < end; row++) {
    const float *logits = (const float *)slot->op.out + (size_t)row * slot->op.n;
    uint64_t best = 0;
    for (uint32_t i = w->thread; i < slot->op.n; i += MGL_CUDA_CONSUMERS) {
      const uint64_t key = mgl_ordered_best(*(const volatile float *)(logits + i), i);
      best = key > best ? key : best;
    }
    best = mgl_warp_max(best);
    if (w->lane == 0) {
      scratch->best[w->warp] = best;
    }
    mgl_sync_consumers();
    if (w->thread == 0) {
      for (uint32_t i = 1; i < MGL_CUDA_CONSUMER_WARPS; i++) {
        best = scratch->best[i] > best ? scratch->best[i] : best;
      }
      w->run->best[row] = best;
    }
    mgl_sync_consumers();  // all of scratch was read
  }
}

// Rows [begin, end) of the output.
MGL_DEVICE void mgl_task_custom(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_custom_launch *launch = &((mgl_custom_scratch *)w->scratch)->launch;
  megalith_custom_call call;
  mgl_custom_take(w, slot);
  if (!mgl_task_begin(w) || slot->mute != 0) {  // the same for all threads
    return;
  }
  for (uint32_t row = slot->begin; mgl_custom_rows(launch, row, slot->end, &call);
       row = call.end_row) {
    MGL_CUSTOM_OP(slot->op.k, &call);
    mgl_sync_consumers();  // what it has in shared memory is the next tile's from here on
  }
  if ((slot->op.flags & MGL_CUDA_CUSTOM_LOGITS) != 0) {
    mgl_custom_note_best(w, slot, mgl_min(slot->end, launch->rows));
  }
}

#else

MGL_DEVICE void mgl_task_custom(mgl_worker *w) {
  (void)w;  // it is not called
}

#endif

#endif
