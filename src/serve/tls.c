#include "serve/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stddef.h>

static mgl_status fail(const char *path, const char *what, mgl_error *err) {
  char reason[160] = "";
  unsigned long code = ERR_get_error();
  if (code != 0) {
    ERR_error_string_n(code, reason, sizeof reason);
  }
  ERR_clear_error();
  return mgl_error_set(err, MGL_ERR_IO, "%s: expected %s in PEM: %s", path, what, reason);
}

static mgl_status load(SSL_CTX *tls, const char *certificate_path, const char *key_path,
                       mgl_error *err) {
  (void)SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
  (void)SSL_CTX_set_options(tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  if (SSL_CTX_use_certificate_chain_file(tls, certificate_path) != 1) {
    return fail(certificate_path, "certificates", err);
  }
  if (SSL_CTX_use_PrivateKey_file(tls, key_path, SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(tls) != 1) {
    return fail(key_path, "the key of the first certificate", err);
  }
  return MGL_OK;
}

mgl_status mgl_tls_create(const char *certificate_path, const char *key_path, void **out,
                          mgl_error *err) {
  SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
  *out = NULL;
  if (tls == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for TLS");
  }
  mgl_status status = load(tls, certificate_path, key_path, err);
  if (status != MGL_OK) {
    SSL_CTX_free(tls);
    return status;
  }
  *out = tls;
  return MGL_OK;
}

void mgl_tls_destroy(void *tls) {
  SSL_CTX_free(tls);
}
