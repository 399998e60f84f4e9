#include "engine/kv_pages.h"

#include <assert.h>

#include "base/alloc.h"

mgl_status mgl_kv_pages_init(mgl_kv_pages *pages, uint32_t page_count, mgl_error *err) {
  *pages = (mgl_kv_pages){.free_pages = mgl_alloc_zeroed(page_count, sizeof(int32_t)),
                          .free_count = page_count,
                          .page_count = page_count};
  if (pages->free_pages == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u KV pages", page_count);
  }
  for (uint32_t i = 0; i < page_count; i++) {
    pages->free_pages[i] = (int32_t)(page_count - 1 - i);
  }
  return MGL_OK;
}

void mgl_kv_pages_reset(mgl_kv_pages *pages) {
  mgl_free(pages->free_pages);
  *pages = (mgl_kv_pages){0};
}

bool mgl_kv_pages_take(mgl_kv_pages *pages, uint32_t count, int32_t *out) {
  if (count > pages->free_count) {
    return false;
  }
  for (uint32_t i = 0; i < count; i++) {
    out[i] = pages->free_pages[--pages->free_count];
  }
  return true;
}

void mgl_kv_pages_give_back(mgl_kv_pages *pages, uint32_t count, const int32_t *taken) {
  assert(count <= pages->page_count - pages->free_count);
  for (uint32_t i = count; i > 0; i--) {
    pages->free_pages[pages->free_count++] = taken[i - 1];
  }
}
