#include "device/debug_dump.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/cache_folder.h"
#include "base/new_file.h"
#include "device/compilation.h"
#include "graph/graph_text.h"

static atomic_uint own_rank;  // engines of one process may start at once

void mgl_debug_dump_rank(uint32_t rank) {
  atomic_store_explicit(&own_rank, rank, memory_order_relaxed);
}

const char *mgl_debug_dump_folder(const mgl_compilation *c) {
  return c != NULL && c->debug_dump_path[0] != 0 ? c->debug_dump_path : NULL;
}

static const char *folder_of(const mgl_build *build) {
  return mgl_debug_dump_folder(build->compilation);
}

mgl_status mgl_debug_dump_path(const char *folder, const char *name,
                               char out[MGL_DEBUG_DUMP_PATH_BYTES], mgl_error *err) {
  const uint32_t rank = atomic_load_explicit(&own_rank, memory_order_relaxed);
  (void)snprintf(out, MGL_DEBUG_DUMP_PATH_BYTES, "%.1023s/rank_%u", folder, rank);
  MGL_TRY(mgl_cache_folder_make(out, err));
  (void)snprintf(out, MGL_DEBUG_DUMP_PATH_BYTES, "%.1023s/rank_%u/%.100s", folder, rank, name);
  return MGL_OK;
}

mgl_status mgl_debug_dump_file(const char *folder, const char *name, const mgl_text *text,
                               mgl_error *err) {
  char path[MGL_DEBUG_DUMP_PATH_BYTES];
  mgl_new_file file = {.fd = -1};
  MGL_TRY(mgl_text_check(text, err));
  MGL_TRY(mgl_debug_dump_path(folder, name, path, err));
  mgl_status status = mgl_new_file_create(path, &file, err);
  if (status == MGL_OK) {
    status = mgl_new_file_write(&file, text->data, text->bytes, err);
  }
  if (status == MGL_OK) {
    status = mgl_new_file_commit(&file, err);
  }
  mgl_new_file_close(&file);
  return status;
}

mgl_status mgl_debug_dump(const mgl_build *build, const char *name, const mgl_text *text,
                          mgl_error *err) {
  return folder_of(build) == NULL ? MGL_OK : mgl_debug_dump_file(folder_of(build), name, text, err);
}

mgl_status mgl_debug_dump_program(const mgl_build *build, const char *name,
                                  const mgl_graph *program, mgl_error *err) {
  mgl_text text = {0};
  if (folder_of(build) == NULL) {
    return MGL_OK;
  }
  mgl_graph_print(program, &text);
  mgl_status status = mgl_debug_dump(build, name, &text, err);
  mgl_text_free(&text);
  return status;
}

mgl_status mgl_debug_dump_graph(const mgl_build *build, const char *name, const mgl_graph *program,
                                const mgl_task_graph *graph, mgl_error *err) {
  mgl_text text = {0};
  if (folder_of(build) == NULL) {
    return MGL_OK;
  }
  mgl_status status = mgl_task_graph_write_json(program, graph, &text, err);
  if (status == MGL_OK) {
    status = mgl_debug_dump(build, name, &text, err);
  }
  mgl_text_free(&text);
  return status;
}
