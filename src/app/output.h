// Standard output and standard input as whole texts.
//
// Commands build their output in an mgl_text and write it when everything has succeeded, so that a
// failure leaves standard output empty; only `run` writes as it goes. Every failed write is an
// error. Rejected: stdio, which hides failures until fclose and buffers what should stream.
#ifndef MGL_APP_OUTPUT_H
#define MGL_APP_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"
#include "request/json_text.h"

// Makes sure that descriptors 0 to 2 are taken, so that no file that is opened later becomes
// standard output. A closed one is replaced by one that fails to read or write. Call first.
void mgl_output_init(void);

// Writes all bytes to standard output at once. Stops with an error when interrupted (interrupt.h).
mgl_status mgl_output_write(const char *data, size_t bytes, mgl_error *err);
// Whether a write failed because nobody reads standard output any more.
bool mgl_output_reader_gone(void);
// Writes a finished text, after mgl_text_check.
mgl_status mgl_output_text(const mgl_text *text, mgl_error *err);

// Reads standard input to its end; more than max_bytes is an error.
mgl_status mgl_input_read(size_t max_bytes, mgl_text *out, mgl_error *err);

#endif
