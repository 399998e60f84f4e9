// tokenizer.json: text to token ids and back.
//
// Supported: BPE models with (a) byte-level alphabet and the pre-tokenisers of GPT-2, Qwen2/3,
// Llama 3, GPT-4o and gpt-oss, newer Mistral (Tekken), DeepSeek, (b) metaspace or replaced spaces
// with byte fallback (Llama 2, Mistral, Gemma); normalisers NFC, Prepend, Replace, Sequence; added
// and special tokens; TemplateProcessing of one sequence (a leading BOS, say). Anything else is
// refused by name; "truncation" and "padding" are ignored. Encoding takes time linear in the text
// (n log n within one pre-token), whatever the text. A tokenizer is immutable after opening and may
// be used by many threads.
#ifndef MGL_TEXT_TOKENIZER_H
#define MGL_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"

enum {
  MGL_TOKENIZER_MAX_FILE_BYTES = 64 * 1024 * 1024,
  MGL_TOKENIZER_MAX_VOCAB = 1 << 20,
  MGL_TOKENIZER_MAX_TEXT_BYTES = 256 * 1024 * 1024,  // of one encoding
};

typedef struct mgl_tokenizer mgl_tokenizer;

// A growing list of token ids. Zero-initialise; free with mgl_token_list_free.
typedef struct mgl_token_list {
  int32_t *ids;
  size_t count;
  size_t capacity;
} mgl_token_list;

void mgl_token_list_free(mgl_token_list *list);

mgl_status mgl_tokenizer_open(const char *path, mgl_tokenizer **out, mgl_error *err);
mgl_status mgl_tokenizer_parse(const char *json, size_t bytes, const char *where,
                               mgl_tokenizer **out, mgl_error *err);
// The same of a parsed one.
mgl_status mgl_tokenizer_read(mgl_json_object file, mgl_tokenizer **out, mgl_error *err);
void mgl_tokenizer_close(mgl_tokenizer *tokenizer);  // NULL is fine

// One more than the largest id.
uint32_t mgl_tokenizer_vocab_size(const mgl_tokenizer *tokenizer);
// The id of a token's exact content (vocabulary or added), -1 if there is none.
int32_t mgl_tokenizer_find(const mgl_tokenizer *tokenizer, const char *content);

typedef struct mgl_encode_options {
  bool add_special;    // run the post-processor (a BOS where the tokenizer has one)
  bool plain_special;  // special tokens written in the text are plain text (untrusted input)
} mgl_encode_options;

// Appends the ids of `text` to *out. Invalid UTF-8 is replaced by U+FFFD, as Python's
// decode(errors="replace") does. On failure *out is unchanged in its first `count` ids.
mgl_status mgl_tokenizer_encode(const mgl_tokenizer *tokenizer, const char *text, size_t bytes,
                                mgl_encode_options options, mgl_token_list *out, mgl_error *err);

// Appends the text of all ids to *out; equals `tokenizers` decode(skip_special_tokens=...). Ids
// that are no tokens give no text, as there; a negative one is MGL_ERR_ARGUMENT.
mgl_status mgl_tokenizer_decode(const mgl_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                bool skip_special, mgl_text *out, mgl_error *err);

// Appends the bytes that an id adds to a text (behind the text's start, and as parts of characters
// where it has only parts) to *out. Special tokens add none. MGL_ERR_UNSUPPORTED of a tokenizer
// whose tokens have no bytes of their own (it puts spaces between them).
mgl_status mgl_tokenizer_token_bytes(const mgl_tokenizer *tokenizer, int32_t id, mgl_text *out,
                                     bool *is_token, bool *is_special, mgl_error *err);
// Whether decoding drops a blank with which a text begins.
bool mgl_tokenizer_drops_first_blank(const mgl_tokenizer *tokenizer);

// Streaming detokeniser: the texts of successive pushes, concatenated and finished, equal the
// decode of the whole. Never emits half a character: bytes of an incomplete one wait for the next
// token. With byte fallback a whole run of <0x..> tokens waits for the token that ends it, since
// the library's decoder judges the run as one. One thread at a time; borrows the tokenizer.
typedef struct mgl_detokenizer mgl_detokenizer;
mgl_status mgl_detokenizer_create(const mgl_tokenizer *tokenizer, bool skip_special,
                                  mgl_detokenizer **out, mgl_error *err);
// What is pushed stands behind these ids, if any of them has a text: not where a text begins, so
// that no blank is dropped. Before the first push.
void mgl_detokenizer_continue(mgl_detokenizer *detokenizer, const int32_t *ids, size_t count);
mgl_status mgl_detokenizer_push(mgl_detokenizer *detokenizer, int32_t id, mgl_text *out,
                                mgl_error *err);
// Emits what still waits (U+FFFD for an incomplete character) and resets for the next text.
mgl_status mgl_detokenizer_finish(mgl_detokenizer *detokenizer, mgl_text *out, mgl_error *err);
void mgl_detokenizer_destroy(mgl_detokenizer *detokenizer);

#endif
