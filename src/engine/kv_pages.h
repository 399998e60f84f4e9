// The pool of KV pages: which are free. Page contents lie in the runtime's KV memory.
#ifndef MGL_ENGINE_KV_PAGES_H
#define MGL_ENGINE_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct mgl_kv_pages {
  int32_t *free_pages;  // stack; lowest numbers on top at the start
  uint32_t free_count;
  uint32_t page_count;
} mgl_kv_pages;

mgl_status mgl_kv_pages_init(mgl_kv_pages *pages, uint32_t page_count, mgl_error *err);
void mgl_kv_pages_reset(mgl_kv_pages *pages);

// Takes `count` pages into out[0 .. count), or none and returns false when fewer are free.
bool mgl_kv_pages_take(mgl_kv_pages *pages, uint32_t count, int32_t *out);
void mgl_kv_pages_give_back(mgl_kv_pages *pages, uint32_t count, const int32_t *taken);

#endif
