// What the fuzz targets of grammars share: a text is compiled for a small vocabulary, and where that
// succeeds, masks are made and followed. Nothing but an error may come of it: no crash, no leak, no
// long run; and a token that a mask allows goes on.
#ifndef MGL_FUZZ_GRAMMAR_FUZZING_H
#define MGL_FUZZ_GRAMMAR_FUZZING_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

// All bytes, and some words.
static inline mgl_vocabulary *fuzz_vocabulary(void) {
  static const char *const words[] = {"the",       " a", "\":", "\", \"", "{\"",  "},",
                                      "\xc3\xa9x", "12", "0.",  "\\n",    "\n  ", "null",
                                      "true",      "]]", "  ",  "\\u00"};
  enum { WORDS = sizeof words / sizeof *words };
  static char bytes[256];
  mgl_vocabulary_token tokens[256 + WORDS];
  mgl_vocabulary *v = NULL;
  for (size_t i = 0; i < 256; i++) {
    bytes[i] = (char)i;
    tokens[i] = (mgl_vocabulary_token){.bytes = &bytes[i], .count = 1};
  }
  for (size_t i = 0; i < WORDS; i++) {
    tokens[256 + i] = (mgl_vocabulary_token){.bytes = words[i], .count = strlen(words[i])};
  }
  if (mgl_vocabulary_create(tokens, 256 + WORDS, &v, NULL) != MGL_OK) {
    abort();
  }
  return v;
}

// Follows tokens that masks allow, chosen by the input's bytes.
static inline void fuzz_follow(mgl_grammar *g, const uint8_t *data, size_t bytes) {
  enum { MOST_TOKENS = 24, MOST_WORDS = 8 };
  const mgl_vocabulary *v = mgl_grammar_vocabulary(g);
  uint64_t mask[MOST_WORDS];
  mgl_matcher m;
  mgl_error err = {0};
  if (mgl_matcher_init(&m, mgl_grammar_automaton(g), &err) != MGL_OK) {
    return;  // too ambiguous where it begins
  }
  for (size_t i = 0; i < MOST_TOKENS && bytes > 0; i++) {
    uint32_t chosen = UINT32_MAX;
    uint32_t first = data[(i * 7 + 3) % bytes] % v->token_count;
    if (mgl_mask_make(mgl_grammar_masks(g), &m, mask, &err) != MGL_OK) {
      break;
    }
    for (uint32_t j = 0; j < v->token_count && chosen == UINT32_MAX; j++) {
      uint32_t id = (first + j) % v->token_count;
      chosen = (mask[id / 64] >> (id % 64) & 1) != 0 ? id : chosen;
    }
    if (chosen == UINT32_MAX) {
      // Every byte is a token, so only a text that is whole, or as deep as texts get, has none.
      break;
    }
    size_t count = 0;
    bool alive = false;
    const char *token = mgl_vocabulary_bytes(v, chosen, &count);
    if (mgl_matcher_advance(&m, token, count, &alive, &err) != MGL_OK) {
      break;
    }
    if (!alive) {
      abort();
    }
  }
  if (err.status == MGL_ERR_INTERNAL) {
    abort();
  }
  mgl_matcher_reset(&m);
}

static inline int fuzz_grammar(mgl_grammar_kind kind, const uint8_t *data, size_t bytes) {
  static mgl_vocabulary *vocabulary;
  mgl_grammar *g = NULL;
  mgl_error err = {0};
  if (vocabulary == NULL) {
    vocabulary = fuzz_vocabulary();
  }
  const mgl_grammar_source source = {.kind = kind, .text = (const char *)data, .bytes = bytes};
  mgl_status status = mgl_grammar_compile(&source, vocabulary, NULL, &g, &err);
  if (status == MGL_ERR_INTERNAL || (status != MGL_OK && err.text[0] == 0)) {
    abort();
  }
  if (g != NULL) {
    fuzz_follow(g, data, bytes);
  }
  mgl_grammar_release(g);
  return 0;
}

#endif
