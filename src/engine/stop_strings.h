// Stop strings: texts that end a generation, found in text as it streams.
//
// What can still become a stop string is held back, and nothing else; so where the text is cut into
// pieces changes nothing (tokens end anywhere in a stop string, or in a character of it). The text
// ends before the first stop string that is completed; of those completed by one byte, before the
// longest. Bytes are compared, so a text that is UTF-8 and is held back before a stop string that
// is UTF-8 breaks between characters.
// One matcher a text; one thread.
#ifndef MGL_ENGINE_STOP_STRINGS_H
#define MGL_ENGINE_STOP_STRINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum {
  MGL_MAX_STOP_STRINGS = 16,
  MGL_MAX_STOP_BYTES = 256,  // of each
};

typedef struct mgl_stop_matcher mgl_stop_matcher;

// strings: [count], each of 1 to MGL_MAX_STOP_BYTES bytes; copied.
mgl_status mgl_stop_matcher_create(const char *const *strings, uint32_t count,
                                   mgl_stop_matcher **out, mgl_error *err);
void mgl_stop_matcher_destroy(mgl_stop_matcher *matcher);  // NULL is fine

// Takes the next piece of the text and appends to *out what cannot be part of a stop string any
// more. True: a stop string is complete; what was before it has been appended, and what follows it
// is dropped. Must not be called after that; mgl_stop_matcher_finish would then append the stop
// string itself. Check *out with mgl_text_check.
bool mgl_stop_matcher_push(mgl_stop_matcher *matcher, const char *text, size_t bytes,
                           mgl_text *out);

// Appends what is held back: the text has ended by itself, or the stop string shall be part of it.
void mgl_stop_matcher_finish(mgl_stop_matcher *matcher, mgl_text *out);

#endif
