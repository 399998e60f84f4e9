// The patterns by which tokenizers cut text into pre-tokens, as hand-written scanners.
//
// Three kinds: the well-known expressions with alternatives, recognised by their exact text; any
// expression that is a run of one class (`\p{N}{1,3}`, `[\r\n]`, `\s?[A-Za-z...]+`); and literal
// strings. A tokenizer may apply several, each within the pieces of the one before (DeepSeek).
#ifndef MGL_TEXT_PRETOKENIZE_H
#define MGL_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "text/unicode.h"

enum {
  MGL_SPLIT_MAX_RANGES = 128,        // in the brackets of a class
  MGL_SPLIT_MAX_LITERAL_BYTES = 64,  // of a literal string
};

typedef enum mgl_split_kind {
  MGL_SPLIT_GPT2,
  MGL_SPLIT_QWEN,            // Qwen 2, 2.5, 3: one digit at a time
  MGL_SPLIT_LLAMA3,          // the same with up to three digits
  MGL_SPLIT_O200K,           // GPT-4o, gpt-oss, Llama 4: words end where capitals follow
  MGL_SPLIT_O200K_ASCII,     // the same as JavaScript spells it: contractions in ASCII only
  MGL_SPLIT_TEKKEN,          // newer Mistral: O200K without contractions, one digit at a time
  MGL_SPLIT_DEEPSEEK3,       // the last of DeepSeek V3's three
  MGL_SPLIT_TRAILING_SPACE,  // whitespace in front of a line end or the end
  MGL_SPLIT_RUN,             // one class
  MGL_SPLIT_LITERAL,
} mgl_split_kind;

typedef struct mgl_split_pattern {
  mgl_split_kind kind;
  // A run of up to `limit` characters of the class, which is a mask of MGL_CHAR_... and ranges;
  // with `space_first`, one whitespace character may stand in front.
  bool space_first;
  unsigned classes;
  mgl_code_range ranges[MGL_SPLIT_MAX_RANGES];
  size_t range_count;
  size_t limit;
  char literal[MGL_SPLIT_MAX_LITERAL_BYTES];
  size_t literal_bytes;
} mgl_split_pattern;

// Recognises a regular expression; false if it is none of ours.
bool mgl_split_pattern_find(const char *regex, mgl_split_pattern *out);

// The regular expression of a kind that has alternatives, as most files spell it.
const char *mgl_split_pattern_regex(mgl_split_kind kind);

// The first match at or behind `from`, false if there is none. Called from the end of the last
// match on, it walks a text in linear time. `text` must be valid UTF-8.
bool mgl_split_next(const mgl_split_pattern *pattern, const char *text, size_t bytes, size_t from,
                    size_t *start, size_t *end);

// pretokenize_words.c: the end of the match at `start` < bytes of one of the kinds up to
// MGL_SPLIT_DEEPSEEK3; 0 if none starts there, which only the last one knows.
size_t mgl_split_words_end(mgl_split_kind kind, const char *text, size_t bytes, size_t start);

#endif
