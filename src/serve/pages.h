// The pages that a browser gets: a chat at / and a dashboard at /dashboard.
//
// Each is one HTML file that is part of the binary, without any resource from elsewhere. The header
// Content-Security-Policy lets run nothing but the script that is in it, by its hash, and lets that
// reach nothing but this server.
#ifndef MGL_SERVE_PAGES_H
#define MGL_SERVE_PAGES_H

#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

typedef struct mgl_page_source {
  const char *path;
  const char *html;
} mgl_page_source;

// {NULL, NULL} behind the last one; generated (cmake/embed_files.cmake).
extern const mgl_page_source mgl_page_sources[];

// Appends the headers of a page's answer, each with CR LF at its end.
void mgl_page_append_headers(const char *html, mgl_text *out);

#endif
