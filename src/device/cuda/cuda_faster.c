#include "device/cuda/cuda_faster.h"

#include <assert.h>

static bool is_decided(const mgl_cuda_faster_trial *trial) {
  return trial->runs[MGL_CUDA_WAY_PIECES] >= MGL_CUDA_FASTER_RUNS &&
         trial->runs[MGL_CUDA_WAY_LOOSE] >= MGL_CUDA_FASTER_RUNS;
}

// Where both are equal it is what was asked for.
static mgl_cuda_way better(const mgl_cuda_faster_trial *trial) {
  return trial->least_ms[MGL_CUDA_WAY_LOOSE] < trial->least_ms[MGL_CUDA_WAY_PIECES]
             ? MGL_CUDA_WAY_LOOSE
             : MGL_CUDA_WAY_PIECES;
}

// Takes down what was measured, once it has run. What did not come to its end is nothing.
static void take_down(mgl_cuda_faster *f, const mgl_cuda_driver *driver) {
  float ms = 0;
  if (!f->measures) {
    return;
  }
  mgl_cu_result code = driver->event_elapsed(&ms, f->begin, f->end);
  if (code == MGL_CU_NOT_READY) {
    return;
  }
  f->measures = false;
  if (code != 0) {
    return;
  }
  mgl_cuda_faster_trial *trial = &f->trials[f->size];
  if (trial->runs[f->way] == 0 || ms < trial->least_ms[f->way]) {
    trial->least_ms[f->way] = ms;
  }
  trial->runs[f->way]++;
}

mgl_status mgl_cuda_faster_take(mgl_cuda_faster *f, const mgl_cuda_driver *driver, uint32_t size,
                                mgl_cuda_way *out, bool *timed, mgl_error *err) {
  assert(size < MGL_CUDA_FASTER_SIZES);
  const mgl_cuda_faster_trial *trial = &f->trials[size];
  if (f->begin == NULL) {
    MGL_CUDA_TRY(driver, event_create, err, &f->begin, 0);
  }
  if (f->end == NULL) {
    MGL_CUDA_TRY(driver, event_create, err, &f->end, 0);
  }
  take_down(f, driver);
  if (is_decided(trial)) {
    *timed = false;
    *out = better(trial);
    return MGL_OK;
  }
  *out = trial->runs[MGL_CUDA_WAY_LOOSE] < trial->runs[MGL_CUDA_WAY_PIECES] ? MGL_CUDA_WAY_LOOSE
                                                                            : MGL_CUDA_WAY_PIECES;
  *timed = !f->measures;
  if (*timed) {
    f->size = size;
    f->way = *out;
  }
  return MGL_OK;
}

mgl_status mgl_cuda_faster_begin(mgl_cuda_faster *f, const mgl_cuda_driver *driver, void *stream,
                                 mgl_error *err) {
  return MGL_CUDA_CALL(driver, event_record, err, f->begin, stream);
}

mgl_status mgl_cuda_faster_end(mgl_cuda_faster *f, const mgl_cuda_driver *driver, void *stream,
                               mgl_error *err) {
  MGL_CUDA_TRY(driver, event_record, err, f->end, stream);
  f->measures = true;
  return MGL_OK;
}

void mgl_cuda_faster_count(const mgl_cuda_faster *f, uint32_t out[MGL_CUDA_WAYS]) {
  out[MGL_CUDA_WAY_PIECES] = out[MGL_CUDA_WAY_LOOSE] = 0;
  for (uint32_t i = 0; i < MGL_CUDA_FASTER_SIZES; i++) {
    if (is_decided(&f->trials[i])) {
      out[better(&f->trials[i])]++;
    }
  }
}

void mgl_cuda_faster_release(mgl_cuda_faster *f, const mgl_cuda_driver *driver) {
  MGL_CUDA_RELEASE(driver, event_destroy, f->begin);
  MGL_CUDA_RELEASE(driver, event_destroy, f->end);
  *f = (mgl_cuda_faster){0};
}
