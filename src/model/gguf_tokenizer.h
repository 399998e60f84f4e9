// The tokenizer of a GGUF file, as the tokenizer.json that the model's folder would have.
//
// Kind "gpt2" is byte-level BPE: tokens, merges, and the name of a pre-tokeniser, of which those
// that stand in gguf_tokenizer.c are known and others are refused by name. Kind "llama" is
// SentencePiece's BPE by scores: every way to cut a token into two others is a merge, the better
// score first, as the `tokenizers` library's converter does it; with byte fallback.
#ifndef MGL_MODEL_GGUF_TOKENIZER_H
#define MGL_MODEL_GGUF_TOKENIZER_H

#include "base/json.h"
#include "model/gguf.h"

// "tokenizer.ggml.token_type"
typedef enum mgl_gguf_token_kind {
  MGL_GGUF_TOKEN_NORMAL = 1,
  MGL_GGUF_TOKEN_UNKNOWN,
  MGL_GGUF_TOKEN_CONTROL,
  MGL_GGUF_TOKEN_USER,    // added, not special
  MGL_GGUF_TOKEN_UNUSED,  // fills up the vocabulary; left out
  MGL_GGUF_TOKEN_BYTE,
} mgl_gguf_token_kind;

enum {
  MGL_GGUF_MAX_TOKEN_TEXT = 64 << 20,  // bytes of all tokens, or of all merges
  MGL_GGUF_MAX_PIECE_TEXT = 16 << 20,  // of all tokens with scores
  MGL_GGUF_MAX_PIECE_BYTES = 256,      // of one
  MGL_GGUF_MAX_MERGES = 1 << 20,
};

// *out is NULL where the file has no tokenizer. Free it with json_decref.
mgl_status mgl_gguf_tokenizer(const mgl_gguf *gguf, json_t **out, mgl_error *err);

// The text of the token whose id a key holds ("tokenizer.ggml.bos_token_id"), in fresh memory; NULL
// where key or token are absent.
mgl_status mgl_gguf_token_text(const mgl_gguf *gguf, const char *key, char **out, mgl_error *err);

#endif
