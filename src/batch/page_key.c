#include "batch/page_key.h"

#include <assert.h>
#include <sodium.h>

static void finish(crypto_generichash_state *state, mgl_page_key *key) {
  (void)crypto_generichash_final(state, (unsigned char *)key, sizeof *key);  // cannot fail
}

static void begin(crypto_generichash_state *state) {
  (void)crypto_generichash_init(state, NULL, 0, sizeof(mgl_page_key));
}

void mgl_page_keys_compute(const int32_t *tokens, size_t count, uint32_t page_tokens,
                           const void *salt, size_t salt_bytes, mgl_page_key *keys) {
  assert(page_tokens >= 1);
  crypto_generichash_state state;
  mgl_page_key before;
  begin(&state);
  if (salt_bytes > 0) {
    (void)crypto_generichash_update(&state, salt, salt_bytes);
  }
  finish(&state, &before);
  for (size_t page = 0; page < count / page_tokens; page++) {
    begin(&state);
    (void)crypto_generichash_update(&state, (const unsigned char *)&before, sizeof before);
    (void)crypto_generichash_update(&state, (const unsigned char *)(tokens + page * page_tokens),
                                    page_tokens * sizeof *tokens);
    finish(&state, &keys[page]);
    before = keys[page];
  }
}
