#include "app/human.h"

#include <math.h>
#include <stdio.h>

void mgl_human_number(double value, char out[MGL_HUMAN_BYTES]) {
  double size = fabs(value);
  int decimals = size < 0.9995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  (void)snprintf(out, MGL_HUMAN_BYTES, "%.*f", size > 1e18 ? 0 : decimals,
                 size > 1e18 ? 1e18 : value);
}

static void with_unit(double value, const char *unit, char out[MGL_HUMAN_BYTES]) {
  char number[MGL_HUMAN_BYTES];
  mgl_human_number(value, number);
  (void)snprintf(out, MGL_HUMAN_BYTES, "%.24s %s", number, unit);
}

void mgl_human_size(uint64_t bytes, char out[MGL_HUMAN_BYTES]) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) {
    (void)snprintf(out, MGL_HUMAN_BYTES, "%u B", (unsigned)bytes);
    return;
  }
  double value = (double)bytes / 1024;
  int unit = 0;
  while (value >= 999.5 && unit < 5) {
    value /= 1024;
    unit++;
  }
  with_unit(value, units[unit], out);
}

void mgl_human_rate(double bytes_per_s, char out[MGL_HUMAN_BYTES]) {
  with_unit(bytes_per_s / 1e9, "GB/s", out);
}

void mgl_human_ms(double ms, char out[MGL_HUMAN_BYTES]) {
  with_unit(ms < 9999.5 ? ms : ms / 1000, ms < 9999.5 ? "ms" : "s", out);
}
