// Merging by a heap of candidate pairs over a linked list of symbols: O(n log n), so that a
// pre-token of a megabyte (metaspace tokenizers have no pre-tokeniser) costs no more than many
// small ones.
//
// The order is that of the `tokenizers` library to the letter: lowest rank first, then leftmost; a
// candidate is taken when the pair now at its place merges into the same token, even if it is
// another pair than when the candidate was pushed. Rejected: rescanning for the lowest rank, which
// is shorter and faster on short words but quadratic.
#include "text/bpe.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/unicode.h"

// GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards.
static bool stands_for_itself(uint32_t code) {
  return (code >= '!' && code <= '~') || (code >= 0xa1 && code <= 0xff && code != 0xad);
}

uint32_t mgl_byte_to_char(uint8_t byte) {
  if (stands_for_itself(byte)) {
    return byte;
  }
  if (byte <= ' ') {
    return 0x100u + byte;
  }
  // 33 bytes up to the space come first, then 7F to A0, then AD.
  return byte == 0xad ? 0x143u : 0x121u + byte - 0x7fu;
}

int mgl_char_to_byte(uint32_t code) {
  if (code < 0x100) {
    return stands_for_itself(code) ? (int)code : -1;
  }
  if (code <= 0x120) {
    return (int)(code - 0x100);
  }
  if (code <= 0x142) {
    return (int)(code - 0x121 + 0x7f);
  }
  return code == 0x143 ? 0xad : -1;
}

void mgl_bpe_index(mgl_bpe *bpe) {
  for (unsigned byte = 0; byte < 256; byte++) {
    char name[8];
    int name_bytes = snprintf(name, sizeof name, "<0x%02X>", byte);
    bpe->fallback_ids[byte] = mgl_token_table_find(&bpe->vocab, name, (size_t)name_bytes);
    char encoded[4];
    size_t encoded_bytes = mgl_utf8_encode(mgl_byte_to_char((uint8_t)byte), encoded);
    bpe->byte_ids[byte] = mgl_token_table_find(&bpe->vocab, encoded, encoded_bytes);
  }
}

void mgl_bpe_free(mgl_bpe *bpe) {
  mgl_token_table_free(&bpe->vocab);
  mgl_pair_map_free(&bpe->merges);
}

void mgl_bpe_scratch_free(mgl_bpe_scratch *scratch) {
  mgl_free(scratch->symbols);
  mgl_free(scratch->heap);
  mgl_free(scratch->mapped);
  *scratch = (mgl_bpe_scratch){0};
}

mgl_status mgl_token_list_append(mgl_token_list *list, int32_t id, mgl_error *err) {
  void *ids = list->ids;
  MGL_TRY(mgl_grow(&ids, &list->capacity, list->count + 1, sizeof *list->ids, err));
  list->ids = ids;
  list->ids[list->count++] = id;
  return MGL_OK;
}

void mgl_token_list_free(mgl_token_list *list) {
  mgl_free(list->ids);
  *list = (mgl_token_list){0};
}

// --- the symbols of a pre-token ------------------------------------------------------------------

static void add_symbol(mgl_bpe_scratch *scratch, int32_t id) {
  int32_t index = (int32_t)scratch->symbol_count++;
  scratch->symbols[index] = (mgl_bpe_symbol){.id = id, .previous = index - 1, .next = index + 1};
}

// Spells an unknown character with byte tokens; false if one of them is missing.
static bool add_fallback(const mgl_bpe *bpe, mgl_bpe_scratch *scratch, const char *text,
                         size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (bpe->fallback_ids[(unsigned char)text[i]] < 0) {
      return false;
    }
  }
  for (size_t i = 0; i < bytes; i++) {
    add_symbol(scratch, bpe->fallback_ids[(unsigned char)text[i]]);
  }
  return true;
}

// An unknown character: byte tokens, the unknown token, or nothing. An unknown token is held back
// in *pending so that it can fuse with its neighbours; as in the library, byte tokens overtake it.
static mgl_status add_unknown(const mgl_bpe *bpe, mgl_bpe_scratch *scratch, const char *text,
                              size_t bytes, bool *pending, mgl_error *err) {
  if (bpe->byte_fallback && add_fallback(bpe, scratch, text, bytes)) {
    return MGL_OK;
  }
  if (!bpe->has_unknown) {
    return MGL_OK;
  }
  if (bpe->unknown_id < 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "the text has a character outside the vocabulary, and the tokenizer's "
                         "unk_token is not in the vocabulary either");
  }
  if (*pending && !bpe->fuse_unknown) {
    add_symbol(scratch, bpe->unknown_id);
  }
  *pending = true;
  return MGL_OK;
}

// Cuts the text into characters (or bytes) and looks each up.
static mgl_status load_symbols(const mgl_bpe *bpe, bool byte_level, const char *text, size_t bytes,
                               mgl_bpe_scratch *scratch, mgl_error *err) {
  // A byte gives at most two symbols (its character is up to two bytes of fallback), a character at
  // most as many as it has bytes.
  void *symbols = scratch->symbols;
  MGL_TRY(mgl_grow(&symbols, &scratch->symbol_capacity, bytes * (byte_level ? 2 : 1) + 1,
                   sizeof *scratch->symbols, err));
  scratch->symbols = symbols;
  scratch->symbol_count = 0;
  bool pending = false;
  for (size_t at = 0; at < bytes;) {
    const char *unit = text + at;
    size_t unit_bytes = 0;
    int32_t id = -1;
    char mapped[4];
    if (byte_level) {
      id = bpe->byte_ids[(unsigned char)*unit];
      at++;
      if (id < 0) {
        unit_bytes = mgl_utf8_encode(mgl_byte_to_char((uint8_t)*unit), mapped);
        unit = mapped;
      }
    } else {
      size_t end = at;
      (void)mgl_utf8_next(text, &end);
      unit_bytes = end - at;
      at = end;
      id = mgl_token_table_find(&bpe->vocab, unit, unit_bytes);
    }
    if (id < 0) {
      MGL_TRY(add_unknown(bpe, scratch, unit, unit_bytes, &pending, err));
      continue;
    }
    if (pending) {
      add_symbol(scratch, bpe->unknown_id);
      pending = false;
    }
    add_symbol(scratch, id);
  }
  if (pending) {
    add_symbol(scratch, bpe->unknown_id);
  }
  return MGL_OK;
}

// --- the heap of candidates ----------------------------------------------------------------------

static void sift_down(mgl_bpe_candidate *heap, size_t count, size_t at) {
  mgl_bpe_candidate moving = heap[at];
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= count) {
      break;
    }
    if (child + 1 < count && heap[child + 1].order < heap[child].order) {
      child++;
    }
    if (heap[child].order >= moving.order) {
      break;
    }
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moving;
}

static mgl_bpe_candidate pop_candidate(mgl_bpe_scratch *scratch) {
  mgl_bpe_candidate top = scratch->heap[0];
  scratch->heap[0] = scratch->heap[--scratch->heap_count];
  if (scratch->heap_count > 1) {
    sift_down(scratch->heap, scratch->heap_count, 0);
  }
  return top;
}

// Appends the candidate for the symbol at `position` and its right neighbour, if that pair merges.
// The heap order is not restored.
static bool append_candidate(const mgl_bpe *bpe, mgl_bpe_scratch *scratch, int32_t position) {
  const mgl_bpe_symbol *left = &scratch->symbols[position];
  const mgl_bpe_symbol *right = &scratch->symbols[left->next];
  const mgl_pair_slot *merge =
      mgl_pair_map_find(&bpe->merges, (uint64_t)(uint32_t)left->id << 32 | (uint32_t)right->id);
  if (merge == NULL) {
    return false;
  }
  scratch->heap[scratch->heap_count++] = (mgl_bpe_candidate){
      .order = (uint64_t)merge->first << 32 | (uint32_t)position, .merged = (int32_t)merge->second};
  return true;
}

static void push_candidate(const mgl_bpe *bpe, mgl_bpe_scratch *scratch, int32_t position) {
  if (!append_candidate(bpe, scratch, position)) {
    return;
  }
  mgl_bpe_candidate *heap = scratch->heap;
  size_t at = scratch->heap_count - 1;
  mgl_bpe_candidate moving = heap[at];
  while (at > 0 && heap[(at - 1) / 2].order > moving.order) {
    heap[at] = heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap[at] = moving;
}

// --- merging -------------------------------------------------------------------------------------

// Whether the symbol at the candidate's place and its right neighbour still merge into its token.
static bool still_valid(const mgl_bpe *bpe, const mgl_bpe_scratch *scratch,
                        mgl_bpe_candidate candidate) {
  const mgl_bpe_symbol *left = &scratch->symbols[candidate.order & UINT32_MAX];
  if (left->id < 0 || (size_t)left->next >= scratch->symbol_count) {
    return false;
  }
  const mgl_pair_slot *merge = mgl_pair_map_find(
      &bpe->merges, (uint64_t)(uint32_t)left->id << 32 | (uint32_t)scratch->symbols[left->next].id);
  return merge != NULL && (int32_t)merge->second == candidate.merged;
}

static mgl_status merge_symbols(const mgl_bpe *bpe, mgl_bpe_scratch *scratch, mgl_error *err) {
  int32_t count = (int32_t)scratch->symbol_count;
  // Each merge removes a symbol and pushes at most two candidates.
  void *heap = scratch->heap;
  MGL_TRY(mgl_grow(&heap, &scratch->heap_capacity, 3 * scratch->symbol_count, sizeof *scratch->heap,
                   err));
  scratch->heap = heap;
  scratch->heap_count = 0;
  for (int32_t i = 0; i + 1 < count; i++) {
    (void)append_candidate(bpe, scratch, i);
  }
  for (size_t i = scratch->heap_count / 2; i-- > 0;) {
    sift_down(scratch->heap, scratch->heap_count, i);
  }
  mgl_bpe_symbol *symbols = scratch->symbols;
  while (scratch->heap_count > 0) {
    mgl_bpe_candidate top = pop_candidate(scratch);
    if (!still_valid(bpe, scratch, top)) {
      continue;
    }
    int32_t at = (int32_t)(top.order & UINT32_MAX);
    int32_t removed = symbols[at].next;
    symbols[at].id = top.merged;
    symbols[at].next = symbols[removed].next;
    symbols[removed].id = -1;
    if (symbols[at].next < count) {
      symbols[symbols[at].next].previous = at;
      push_candidate(bpe, scratch, at);
    }
    if (symbols[at].previous >= 0) {
      push_candidate(bpe, scratch, symbols[at].previous);
    }
  }
  return MGL_OK;
}

// The id of the whole pre-token, -1 if it is none.
static mgl_status find_whole(const mgl_bpe *bpe, bool byte_level, const char *text, size_t bytes,
                             mgl_bpe_scratch *scratch, int32_t *id, mgl_error *err) {
  *id = -1;
  if (bytes > bpe->vocab.longest) {
    return MGL_OK;
  }
  if (!byte_level) {
    *id = mgl_token_table_find(&bpe->vocab, text, bytes);
    return MGL_OK;
  }
  void *mapped = scratch->mapped;
  MGL_TRY(mgl_grow(&mapped, &scratch->mapped_capacity, 2 * bytes + 4, 1, err));
  scratch->mapped = mapped;
  size_t mapped_bytes = 0;
  for (size_t i = 0; i < bytes; i++) {
    mapped_bytes +=
        mgl_utf8_encode(mgl_byte_to_char((uint8_t)text[i]), scratch->mapped + mapped_bytes);
  }
  *id = mgl_token_table_find(&bpe->vocab, scratch->mapped, mapped_bytes);
  return MGL_OK;
}

mgl_status mgl_bpe_encode(const mgl_bpe *bpe, bool byte_level, const char *text, size_t bytes,
                          mgl_bpe_scratch *scratch, mgl_token_list *out, mgl_error *err) {
  if (bytes > INT32_MAX / 4) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "a pre-token of %zu bytes: the limit is %d", bytes,
                         INT32_MAX / 4);
  }
  if (bpe->ignore_merges) {
    int32_t id = -1;
    MGL_TRY(find_whole(bpe, byte_level, text, bytes, scratch, &id, err));
    if (id >= 0) {
      return mgl_token_list_append(out, id, err);
    }
  }
  MGL_TRY(load_symbols(bpe, byte_level, text, bytes, scratch, err));
  MGL_TRY(merge_symbols(bpe, scratch, err));
  for (size_t i = 0; i < scratch->symbol_count; i++) {
    if (scratch->symbols[i].id >= 0) {
      MGL_TRY(mgl_token_list_append(out, scratch->symbols[i].id, err));
    }
  }
  return MGL_OK;
}
