// Attention in a kernel of its own (op_kernels.cu): as in tasks_attend.cuh, with the same
// arithmetic in the same order, but where an item is one token that decodes, all that does not
// depend on the kernels before is found before they have ended: which row of qkv a warp norms and
// rotates, the norm's weights, and where the row goes in scratch and in the cache; keys and values
// of the warp's first tile are in registers. What counts is how few instructions are left then.
//   Rejected: the megakernel's form, in which rows are looked for behind the wait, as there nothing
//   is known to be waited for (docs/log/157).
#ifndef MGL_KERNELS_CUDA_ATTEND_OP_ATTEND_CUH
#define MGL_KERNELS_CUDA_ATTEND_OP_ATTEND_CUH

#include "kernels/cuda/attend/attend_decode.cuh"

// The task has an item, and all of its items are of one token that decodes.
MGL_DEVICE void mgl_op_task_attend(mgl_worker *w) {
  mgl_attend a;
  mgl_attend_tile tile;
  mgl_attend_cursor cursor;
  mgl_decode_row row;
  mgl_attend_row words;
  (void)mgl_attend_begin(&a, w);
  mgl_attend_start(&a, true, &tile, &cursor);
  for (bool began = false;; began = true) {
    mgl_decode_aim(&a, w->warp, &row);
    mgl_attend_start_v(&a, cursor.page, &tile);
    if (began) {
      mgl_sync_consumers();  // scratch is free
    } else {
      mgl_await_kernels_before();
    }
    mgl_decode_ask(&a, &row, &words);
    mgl_decode_prepare(&a, &row, &words);
    mgl_attend_finish_item(&a, &tile, &cursor);
    if (!mgl_attend_next(&a)) {
      return;
    }
    mgl_attend_note_item(&a);
    mgl_attend_start(&a, false, &tile, &cursor);
  }
}

#endif
