// Merges of a SentencePiece vocabulary, which has scores in their place.
#ifndef MGL_MODEL_GGUF_PIECES_H
#define MGL_MODEL_GGUF_PIECES_H

#include "base/json.h"
#include "model/gguf.h"

// All ways to cut a normal token into two tokens, best first: by the token's score, then by the
// longer left part, the longer right part, the smaller ids. kinds may be NULL. Free *out with
// json_decref.
mgl_status mgl_gguf_pieces_merge(const char *where, const mgl_gguf_value *tokens,
                                 const mgl_gguf_value *kinds, const mgl_gguf_value *scores,
                                 json_t **out, mgl_error *err);

#endif
