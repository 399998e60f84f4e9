// Keys of prompt pages for the prefix cache: what makes two pages hold the same KV.
//
// The KV of a page depends on its tokens and on all tokens before them. The key of a page is the
// hash of both: of the key before and of the page's tokens. A salt at the beginning keeps tenants
// apart, who otherwise could find out by timing what others have asked. BLAKE2b with 256 bits: a
// collision would give a request the KV of another prompt, so it must be out of reach for somebody
// who looks for one too; base/hash.h is not made for that.
#ifndef MGL_BATCH_PAGE_KEY_H
#define MGL_BATCH_PAGE_KEY_H

#include <stddef.h>
#include <stdint.h>

#include "twin/planner.h"

// Keys of the full pages of `count` tokens: writes count / page_tokens of them. salt may be NULL
// with 0 bytes. Any thread.
void mgl_page_keys_compute(const int32_t *tokens, size_t count, uint32_t page_tokens,
                           const void *salt, size_t salt_bytes, mgl_page_key *keys);

#endif
