#include "compile/overrides.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

mgl_status mgl_overrides_append(mgl_overrides *list, const char *op, size_t bytes,
                                mgl_compile_override **out, mgl_error *err) {
  void *items = list->items;
  MGL_TRY(mgl_grow(&items, &list->capacity, list->count + 1, sizeof *list->items, err));
  list->items = items;
  char *name = mgl_strndup(op, bytes);
  if (name == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for an override");
  }
  *out = &list->items[list->count++];
  **out = (mgl_compile_override){.op = name};
  return MGL_OK;
}

// Reads "x,y,z", "x,y" or "x" in front of a space or the text's end, and moves *at there.
static bool parse_grid(const char **at, uint32_t grid[3]) {
  grid[0] = grid[1] = grid[2] = 1;
  for (int i = 0; i < 3; i++) {
    char *end = NULL;
    unsigned long value = strtoul(*at, &end, 10);
    if (!isdigit((unsigned char)**at) || value < 1 || value > MGL_COMPILE_MAX_TASKS) {
      return false;
    }
    grid[i] = (uint32_t)value;
    *at = end;
    if (*end == 0 || *end == ' ') {
      return true;
    }
    if (*end != ',') {
      return false;
    }
    *at = end + 1;
  }
  return false;
}

mgl_status mgl_overrides_read(mgl_overrides *list, const char *what, const char *text,
                              mgl_error *err) {
  const char *at = text + strspn(text, " ");
  do {
    size_t bytes = strcspn(at, "= ");
    mgl_compile_override *override = NULL;
    if (bytes == 0 || at[bytes] != '=') {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected OP=X,Y,Z, found \"%.80s\"", what,
                           at);
    }
    MGL_TRY(mgl_overrides_append(list, at, bytes, &override, err));
    const char *numbers = at + bytes + 1;
    if (!parse_grid(&numbers, override->grid)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "%s: expected up to three numbers of 1 to %d with commas between them "
                           "behind \"=\", found \"%.80s\"",
                           what, MGL_COMPILE_MAX_TASKS, at);
    }
    at = numbers + strspn(numbers, " ");
  } while (*at != 0);
  return MGL_OK;
}

void mgl_overrides_free(mgl_overrides *list) {
  for (size_t i = 0; i < list->count; i++) {
    mgl_free((char *)list->items[i].op);
  }
  mgl_free(list->items);
  *list = (mgl_overrides){0};
}
