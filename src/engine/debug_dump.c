#include "engine/debug_dump.h"

#include <stdio.h>

#include "base/cache_folder.h"
#include "base/new_file.h"
#include "device/compilation.h"
#include "graph/graph_text.h"

enum { PATH_BYTES = MGL_COMPILATION_PATH_BYTES + 128 };

static const char *folder_of(const mgl_build *build) {
  const mgl_compilation *c = build->compilation;
  return c != NULL && c->debug_dump_path[0] != 0 ? c->debug_dump_path : NULL;
}

mgl_status mgl_debug_dump(const mgl_build *build, const char *name, const mgl_text *text,
                          mgl_error *err) {
  char path[PATH_BYTES];
  mgl_new_file file = {.fd = -1};
  if (folder_of(build) == NULL) {
    return MGL_OK;
  }
  MGL_TRY(mgl_text_check(text, err));
  (void)snprintf(path, sizeof path, "%s/rank_0", folder_of(build));
  MGL_TRY(mgl_cache_folder_make(path, err));
  (void)snprintf(path, sizeof path, "%s/rank_0/%.100s", folder_of(build), name);
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
