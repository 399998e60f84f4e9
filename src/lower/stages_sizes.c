// What the stages' lowering (stages.c) and those who plan memory for it or prove it count alike.
#include "lower/stages.h"
#include "twin/wide_layout.h"
#include "twin/wide_run.h"

uint64_t mgl_stages_stream_bytes(uint32_t tokens, uint32_t hidden) {
  return (uint64_t)tokens * mgl_ceil_div(hidden, MGL_WIDE_K) * MGL_WIDE_K * sizeof(float);
}

bool mgl_stages_turn(const mgl_stages_options *o, uint32_t ranks) {
  const uint32_t tiles = o->tokens / o->tile_tokens;
  return ranks > 1 && tiles >= ranks && tiles % ranks == 0;
}

uint32_t mgl_stages_resumed_tiles(uint32_t tiles, uint32_t workers) {
  return tiles < 2 * workers ? tiles : 2 * workers;
}

uint32_t mgl_stages_gathered_rows(const mgl_stages_options *o) {
  uint32_t rows = mgl_ceil_div(o->logit_rows, o->tile_tokens) * o->tile_tokens;
  return rows < o->tokens ? rows : o->tokens;
}

uint32_t mgl_stages_attend_units(uint32_t border, uint32_t workers) {
  return border > 0 ? 2 * workers + MGL_WIDE_IDLE_PARTIES : workers;
}
