// A progress bar on standard error.
//
// It appears only on a terminal, only once a phase has lasted a second, and is erased at the end,
// so that what stays on the screen is the result. One thread.
#ifndef MGL_APP_PROGRESS_H
#define MGL_APP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum mgl_progress_unit {
  MGL_PROGRESS_COUNT,  // plain numbers
  MGL_PROGRESS_BYTES,
} mgl_progress_unit;

typedef struct mgl_progress {
  const char *label;  // "loading weights"; borrowed
  mgl_progress_unit unit;
  bool enabled;
  bool drawn;
  uint64_t start_ns;
  uint64_t last_draw_ns;
} mgl_progress;

void mgl_progress_start(mgl_progress *progress, const char *label, mgl_progress_unit unit);
void mgl_progress_update(mgl_progress *progress, uint64_t done, uint64_t total);
// Erases the bar; later updates do nothing.
void mgl_progress_finish(mgl_progress *progress);

#endif
