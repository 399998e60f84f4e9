// The OpenAPI 3.1 document of the server: paths from its routes, bodies from the table of
// parameters by which they are read, so that none says what another does not.
#ifndef MGL_SERVE_OPENAPI_H
#define MGL_SERVE_OPENAPI_H

#include "base/text.h"
#include "request/ask.h"

typedef struct mgl_server_route {
  const char *path, *method;
  mgl_endpoint endpoint;  // of requests with a body; else 0
  bool is_open;           // without an API key
} mgl_server_route;

// False behind the last one (routes.c).
bool mgl_server_route_at(size_t i, mgl_server_route *out);

// vocab_size: token ids are below it.
void mgl_openapi_append(uint32_t vocab_size, mgl_text *out);

#endif
