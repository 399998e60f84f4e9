// A tokenizer's tokens as bytes, laid out for masks.
//
// Tokens are in tries, stored in the order of a depth-first walk, so that a walk reads forward and
// skips what it does not want. There is a trie for each set of kinds of plain characters that a
// token is made of (letters, digits, blanks, ...), and one for all other tokens: a string of JSON
// takes whole sets of tokens without a look at them (mask.h). Immutable once made.
//   Rejected: one trie; most tokens are allowed inside a string, so a mask would visit all of it
//   (150k tokens are 400k nodes).
//
// Special tokens, which no text has, are tokens with bytes of their own that no UTF-8 contains, so
// a grammar can ask for one (mgl_special_bytes).
#ifndef MGL_GRAMMAR_VOCABULARY_H
#define MGL_GRAMMAR_VOCABULARY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/tokenizer.h"

enum {
  MGL_PLAIN_KINDS = 6,  // a-z, A-Z, 0-9, blank, other ASCII but " and \, all beyond ASCII
  MGL_TOKEN_GROUPS = (1 << MGL_PLAIN_KINDS),  // sets of kinds; the empty set has all other tokens
  MGL_PLAIN_MAX_CHARS = 32,                   // longer tokens are among the others
  MGL_MASK_MAX_TOKEN_BYTES = 512,             // longer tokens are never allowed
  MGL_SPECIAL_BYTES = 4,
  MGL_TRIE_MAX_NODES = 1 << 24,  // of a group; a vocabulary of 150k tokens has 400k in all
};

// Of an ASCII character or, above 0x7f, of any character that is not; -1: not plain.
int mgl_plain_kind(uint32_t code);

// Two words, since a walk is as fast as it reads them.
typedef struct mgl_trie_node {
  uint32_t end_and_byte;  // the first node behind this one's subtree, times 256, plus its byte
  uint32_t tokens;        // how many end here; with their first place in `order` times 256
} mgl_trie_node;

typedef struct mgl_token_group {
  mgl_trie_node *nodes;  // [node_count]
  uint32_t node_count;
  uint64_t first_bytes[4];  // a set: with which bytes its tokens begin
  uint64_t *tokens;         // [mask_words] its tokens; NULL: none
} mgl_token_group;

typedef struct mgl_vocabulary {
  atomic_uint references;
  uint32_t token_count;  // ids are below this
  uint32_t mask_words;   // of a mask: 64 tokens each
  char *bytes;
  size_t *offsets;     // [token_count + 1] of a token's bytes
  uint32_t *order;     // [token_count] ids, as the tries name them
  uint64_t *specials;  // [mask_words] special tokens
  mgl_token_group groups[MGL_TOKEN_GROUPS];
  // [MGL_PLAIN_MAX_CHARS][mask_words] plain tokens of at most i + 1 characters
  uint64_t *plain_up_to;
  // A blank with which a text begins is dropped by the decoder, so no text may begin with it.
  bool drops_first_blank;
  uint64_t *blanks;  // [mask_words] tokens that begin with one; NULL unless so
} mgl_vocabulary;

// Tokens as a caller gives them; bytes NULL: there is none of that id.
typedef struct mgl_vocabulary_token {
  const char *bytes;
  size_t count;
  bool is_special;
} mgl_vocabulary_token;

mgl_status mgl_vocabulary_create(const mgl_vocabulary_token *tokens, uint32_t count,
                                 mgl_vocabulary **out, mgl_error *err);
// token_count: of the model, which may have more or fewer ids than the tokenizer.
mgl_status mgl_vocabulary_of(const mgl_tokenizer *tokenizer, uint32_t token_count,
                             mgl_vocabulary **out, mgl_error *err);
// Any thread. Who makes it has a reference; the last release frees it; NULL is fine there.
void mgl_vocabulary_keep(mgl_vocabulary *vocabulary);
void mgl_vocabulary_release(mgl_vocabulary *vocabulary);

// A token's bytes; of special ones those of mgl_special_bytes, of none 0.
static inline const char *mgl_vocabulary_bytes(const mgl_vocabulary *v, uint32_t id,
                                               size_t *count) {
  *count = v->offsets[id + 1] - v->offsets[id];
  return v->bytes + v->offsets[id];
}

// What stands for a special token in a grammar's bytes.
void mgl_special_bytes(uint32_t id, char out[MGL_SPECIAL_BYTES]);

#endif
