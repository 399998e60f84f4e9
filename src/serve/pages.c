#include "serve/pages.h"

#include <sodium.h>
#include <string.h>

// Appends " 'sha256-...'" of what stands between two tags.
static void append_hash(const char *html, const char *open, const char *close, mgl_text *out) {
  unsigned char hash[crypto_hash_sha256_BYTES];
  char text[sodium_base64_ENCODED_LEN(sizeof hash, sodium_base64_VARIANT_ORIGINAL)];
  const char *begin = strstr(html, open);
  const char *end = begin == NULL ? NULL : strstr(begin, close);
  if (end == NULL) {
    return;
  }
  begin += strlen(open);
  (void)crypto_hash_sha256(hash, (const unsigned char *)begin, (size_t)(end - begin));
  (void)sodium_bin2base64(text, sizeof text, hash, sizeof hash, sodium_base64_VARIANT_ORIGINAL);
  mgl_text_format(out, " 'sha256-%s'", text);
}

void mgl_page_append_headers(const char *html, mgl_text *out) {
  mgl_text_append_string(out, "Content-Security-Policy: default-src 'none'; script-src");
  append_hash(html, "<script>", "</script>", out);
  mgl_text_append_string(out, "; style-src");
  append_hash(html, "<style>", "</style>", out);
  mgl_text_append_string(out,
                         "; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                         "frame-ancestors 'none'\r\n"
                         "X-Content-Type-Options: nosniff\r\n"
                         "Referrer-Policy: no-referrer\r\n"
                         "Cache-Control: no-cache\r\n");
}
