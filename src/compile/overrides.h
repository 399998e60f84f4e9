// Overrides of the compiler's choices, read from what users write: "gate_up=16", "attend=4,2".
#ifndef MGL_COMPILE_OVERRIDES_H
#define MGL_COMPILE_OVERRIDES_H

#include "base/status.h"
#include "compile/compile.h"

// A zeroed one is empty. Ops' names are owned.
typedef struct mgl_overrides {
  mgl_compile_override *items;
  size_t count, capacity;
} mgl_overrides;

// Appends an override of the op that the first `bytes` of a text name, for the caller to fill in.
mgl_status mgl_overrides_append(mgl_overrides *list, const char *op, size_t bytes,
                                mgl_compile_override **out, mgl_error *err);

// Appends partitions, OP=X, OP=X,Y or OP=X,Y,Z, any number with spaces between them; what is left
// out is 1. Where two name the same op, the last one counts. `what` names the text in errors. Which
// ops there are the compiler checks.
mgl_status mgl_overrides_read(mgl_overrides *list, const char *what, const char *text,
                              mgl_error *err);

void mgl_overrides_free(mgl_overrides *list);  // it is empty then

#endif
