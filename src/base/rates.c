#include "base/rates.h"

#include <inttypes.h>

void mgl_read_ceiling_add(mgl_read_ceiling *ceiling, double bytes_per_s) {
  bool is_first = ceiling->count++ == 0;
  ceiling->least = is_first || bytes_per_s < ceiling->least ? bytes_per_s : ceiling->least;
  ceiling->most = is_first || bytes_per_s > ceiling->most ? bytes_per_s : ceiling->most;
}

double mgl_read_ceiling_spread(const mgl_read_ceiling *ceiling) {
  return ceiling->most > 0 ? (ceiling->most - ceiling->least) / ceiling->most : 0;
}

bool mgl_read_ceiling_is_steady(const mgl_read_ceiling *ceiling) {
  return ceiling->count > 1 && ceiling->least > 0 &&
         mgl_read_ceiling_spread(ceiling) <= MGL_READ_CEILING_MAX_SPREAD;
}

void mgl_read_ceiling_append(const mgl_read_ceiling *ceiling, mgl_text *out) {
  if (ceiling->count > 1 && !mgl_read_ceiling_is_steady(ceiling)) {
    mgl_text_format(out, "%.3g to ", ceiling->least / 1e9);
  }
  mgl_text_format(out, "%.3g GB/s in %" PRIu32 " measurement%s", ceiling->most / 1e9,
                  ceiling->count, ceiling->count == 1 ? "" : "s");
  if (ceiling->count > 1) {
    mgl_text_format(out, ", %.0f%% apart", 100 * mgl_read_ceiling_spread(ceiling));
  }
}

void mgl_read_ceiling_append_refusal(const mgl_read_ceiling *ceiling, mgl_text *out) {
  if (!mgl_read_ceiling_is_steady(ceiling)) {
    mgl_text_format(out, ": no share is told where they are more than %.0f%% apart",
                    100 * MGL_READ_CEILING_MAX_SPREAD);
  }
}
