// Byte pair encoding of one pre-token: the vocabulary, the merges, and the merging.
#ifndef MGL_TEXT_BPE_H
#define MGL_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/token_table.h"
#include "text/tokenizer.h"

// Filled by tokenizer_load.c, immutable from then on.
typedef struct mgl_bpe {
  mgl_token_table vocab;
  mgl_pair_map merges;        // left id << 32 | right id -> rank, merged id
  bool byte_fallback;         // unknown characters become <0x00> tokens
  bool fuse_unknown;          // neighbouring unknown characters become one unknown token
  bool ignore_merges;         // a pre-token that is in the vocabulary is taken whole
  bool has_unknown;           // there is an unk_token
  int32_t unknown_id;         // -1 when it is not in the vocabulary
  int32_t fallback_ids[256];  // of <0x00> to <0xFF>, -1 where absent
  int32_t byte_ids[256];      // byte-level: of the character that stands for a byte, or -1
} mgl_bpe;

// Derives fallback_ids and byte_ids from the vocabulary.
void mgl_bpe_index(mgl_bpe *bpe);
void mgl_bpe_free(mgl_bpe *bpe);

// The byte-level alphabet: each byte stands as one printable character (GPT-2's table).
uint32_t mgl_byte_to_char(uint8_t byte);
int mgl_char_to_byte(uint32_t code);  // -1 if it stands for no byte

typedef struct mgl_bpe_symbol {
  int32_t id;  // -1: merged into the symbol before it
  int32_t previous;
  int32_t next;
} mgl_bpe_symbol;

typedef struct mgl_bpe_candidate {
  uint64_t order;  // rank << 32 | position
  int32_t merged;
} mgl_bpe_candidate;

// Working memory of one encoding, kept from pre-token to pre-token. Zero-initialise.
typedef struct mgl_bpe_scratch {
  mgl_bpe_symbol *symbols;
  size_t symbol_count;
  size_t symbol_capacity;
  mgl_bpe_candidate *heap;
  size_t heap_count;
  size_t heap_capacity;
  char *mapped;
  size_t mapped_capacity;
} mgl_bpe_scratch;

void mgl_bpe_scratch_free(mgl_bpe_scratch *scratch);

// Appends the ids of one pre-token of valid UTF-8. With `byte_level` its bytes stand for the
// characters of the byte-level alphabet.
mgl_status mgl_bpe_encode(const mgl_bpe *bpe, bool byte_level, const char *text, size_t bytes,
                          mgl_bpe_scratch *scratch, mgl_token_list *out, mgl_error *err);

mgl_status mgl_token_list_append(mgl_token_list *list, int32_t id, mgl_error *err);

#endif
