#include "app/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/human.h"
#include "base/clock.h"

enum {
  DELAY_NS = 1000000000,  // phases shorter than this show nothing
  REDRAW_NS = 100000000,  // at most ten times a second
  BAR_CELLS = 30,
};

void mgl_progress_start(mgl_progress *progress, const char *label, mgl_progress_unit unit) {
  const char *terminal = getenv("TERM");
  // A terminal without cursor control would show every redraw on a line of its own.
  bool can_erase = terminal == NULL || strcmp(terminal, "dumb") != 0;
  *progress = (mgl_progress){.label = label,
                             .unit = unit,
                             .enabled = can_erase && isatty(STDERR_FILENO),
                             .start_ns = mgl_clock_ns()};
}

static void draw(const mgl_progress *progress, uint64_t done, uint64_t total) {
  char bar[BAR_CELLS + 1];
  char amount[2 * MGL_HUMAN_BYTES + 8];
  double part = total == 0 ? 0 : (double)done / (double)total;
  size_t cells = (size_t)((part < 1 ? part : 1) * BAR_CELLS);
  memset(bar, '.', BAR_CELLS);
  memset(bar, '#', cells);
  bar[BAR_CELLS] = 0;
  if (progress->unit == MGL_PROGRESS_BYTES) {
    char done_text[MGL_HUMAN_BYTES];
    char total_text[MGL_HUMAN_BYTES];
    mgl_human_size(done, done_text);
    mgl_human_size(total, total_text);
    (void)snprintf(amount, sizeof amount, "%s of %s", done_text, total_text);
  } else {
    (void)snprintf(amount, sizeof amount, "%llu of %llu", (unsigned long long)done,
                   (unsigned long long)total);
  }
  (void)fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %s", progress->label, bar, part * 100, amount);
  (void)fflush(stderr);
}

void mgl_progress_update(mgl_progress *progress, uint64_t done, uint64_t total) {
  if (!progress->enabled) {
    return;
  }
  uint64_t now_ns = mgl_clock_ns();
  if (now_ns - progress->start_ns < DELAY_NS || now_ns - progress->last_draw_ns < REDRAW_NS) {
    return;
  }
  draw(progress, done, total);
  progress->last_draw_ns = now_ns;
  progress->drawn = true;
}

void mgl_progress_finish(mgl_progress *progress) {
  if (progress->drawn) {
    (void)fputs("\r\033[K", stderr);
    (void)fflush(stderr);
  }
  progress->enabled = false;
  progress->drawn = false;
}
