// Added tokens: strings such as <|im_start|> that are cut out of the text before anything else.
//
// Those with `normalized` false are looked for in the raw text, the others in the normalised text
// between them. Of the matches that start leftmost, the longest wins.
#ifndef MGL_TEXT_ADDED_TOKENS_H
#define MGL_TEXT_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/token_table.h"

// Searching looks at this many bytes from each place of the text, in the worst case.
enum { MGL_ADDED_TOKEN_MAX_BYTES = 256 };

typedef struct mgl_added_token {
  int32_t id;
  bool special;      // decode can skip it
  bool single_word;  // matches only where no word character touches it
  bool lstrip;       // takes the whitespace on its left with it
  bool rstrip;       // and on its right
  bool normalized;   // its normalised form is looked for in the normalised text
} mgl_added_token;

// The strings to look for, as a trie. Zero-initialise; free with mgl_token_trie_free.
typedef struct mgl_token_trie {
  mgl_pair_map edges;  // node << 8 | byte -> node; node 0 is the root
  int32_t *ends;       // [node_count] index of the token that ends here, or -1
  size_t node_count;
  size_t node_capacity;
  bool starts[256];  // bytes that start a token
} mgl_token_trie;

// Adds a non-empty string; MGL_ERR_FORMAT if it is there already.
mgl_status mgl_token_trie_add(mgl_token_trie *trie, const char *text, size_t bytes, int32_t index,
                              mgl_error *err);
// The first match at or behind *start: moves *start to it and gives its end and token index; -1 if
// there is none.
int32_t mgl_token_trie_find(const mgl_token_trie *trie, const char *text, size_t bytes,
                            size_t *start, size_t *end);
void mgl_token_trie_free(mgl_token_trie *trie);

// All added tokens of a tokenizer; an index counts them in the order of the file.
typedef struct mgl_added_tokens {
  mgl_added_token *tokens;  // [count]
  size_t count;
  size_t capacity;
  mgl_token_table contents;      // index -> content
  mgl_token_table normal_forms;  // index -> normalised content, where that differs
  mgl_token_trie raw;            // tokens with normalized = false
  mgl_token_trie normal;         // the others, in normalised form
} mgl_added_tokens;

void mgl_added_tokens_free(mgl_added_tokens *added);

// Walks the matches in one text; the next match starts where the last one ended.
typedef struct mgl_added_cursor {
  size_t search;     // where the search goes on
  size_t done;       // the text before this is emitted
  size_t space_end;  // end of the whitespace run that rstrip scanned last
} mgl_added_cursor;

// The next match that counts: its text is [*start, *end), with the whitespace that it strips;
// what stands from the cursor's `done` (as it was before the call) to *start is plain text. Returns
// the token's index, -1 when there is no more. `skip_special` passes over special tokens.
int32_t mgl_added_tokens_next(const mgl_added_tokens *added, const mgl_token_trie *trie,
                              const char *text, size_t bytes, bool skip_special,
                              mgl_added_cursor *cursor, size_t *start, size_t *end);

#endif
