// TLS: OpenSSL's context for the server's connections.
#ifndef MGL_SERVE_TLS_H
#define MGL_SERVE_TLS_H

#include "base/status.h"

// A context of TLS 1.2 and newer with the certificates (leaf first) and the key of two PEM files.
mgl_status mgl_tls_create(const char *certificate_path, const char *key_path, void **out,
                          mgl_error *err);
void mgl_tls_destroy(void *tls);  // NULL is fine

#endif
