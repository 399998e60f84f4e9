// The regular expressions by which tokenizers cut text into pre-tokens, as hand-written scanners.
#ifndef MGL_TEXT_PRETOKENIZE_H
#define MGL_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum mgl_split_pattern {
  MGL_SPLIT_GPT2,
  MGL_SPLIT_QWEN,    // Qwen 2, 2.5, 3: one digit at a time
  MGL_SPLIT_LLAMA3,  // the same with up to three digits
} mgl_split_pattern;

// Recognises a pattern by its exact text; false if it is none of ours.
bool mgl_split_pattern_find(const char *regex, mgl_split_pattern *out);

// The end of the match that starts at `start` < bytes. Every character is in some match, so calling
// this in a loop cuts the text without gaps, in linear time. `text` must be valid UTF-8.
size_t mgl_split_next(mgl_split_pattern pattern, const char *text, size_t bytes, size_t start);

#endif
