// A result file that is complete or absent (base/new_file.h), with the usual rights, and removed
// when a signal ends the program (interrupt.h). One at a time.
//
// Rejected: writing in place, which leaves half a file behind after a full disk or a Ctrl-C.
#ifndef MGL_APP_OUTPUT_FILE_H
#define MGL_APP_OUTPUT_FILE_H

#include <stddef.h>

#include "base/new_file.h"
#include "base/status.h"
#include "base/text.h"

typedef mgl_new_file mgl_output_file;

// A target that exists and is not a regular file is refused: a rename would replace a device or a
// pipe. On failure *out holds nothing.
mgl_status mgl_output_file_create(const char *path, mgl_output_file *out, mgl_error *err);
mgl_status mgl_output_file_write(mgl_output_file *file, const void *data, size_t bytes,
                                 mgl_error *err);
// Renames the file to its place.
mgl_status mgl_output_file_commit(mgl_output_file *file, mgl_error *err);
// Closes; removes what was not committed. A zeroed *file is fine.
void mgl_output_file_close(mgl_output_file *file);

// All of it: the text, after mgl_text_check, becomes the content of the file.
mgl_status mgl_output_file_save(const char *path, const mgl_text *text, mgl_error *err);

#endif
