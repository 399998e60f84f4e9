// Finding added tokens: a trie walked from each place whose byte starts a token.
//
// The time is at most the text times the longest token, which is limited. Rejected: Aho-Corasick,
// whose failure links for leftmost-longest matching cost more code than the bound is worth.
#include "text/added_tokens.h"

#include "base/alloc.h"
#include "text/unicode.h"

static mgl_status add_node(mgl_token_trie *trie, mgl_error *err) {
  void *ends = trie->ends;
  MGL_TRY(mgl_grow(&ends, &trie->node_capacity, trie->node_count + 1, sizeof *trie->ends, err));
  trie->ends = ends;
  trie->ends[trie->node_count++] = -1;
  return MGL_OK;
}

static const mgl_pair_slot *child(const mgl_token_trie *trie, uint64_t node, char byte) {
  return mgl_pair_map_find(&trie->edges, node << 8 | (unsigned char)byte);
}

mgl_status mgl_token_trie_add(mgl_token_trie *trie, const char *text, size_t bytes, int32_t index,
                              mgl_error *err) {
  if (trie->node_count == 0) {
    MGL_TRY(add_node(trie, err));
  }
  uint32_t node = 0;
  for (size_t i = 0; i < bytes; i++) {
    const mgl_pair_slot *edge = child(trie, node, text[i]);
    if (edge != NULL) {
      node = edge->first;
      continue;
    }
    uint32_t next = (uint32_t)trie->node_count;
    MGL_TRY(add_node(trie, err));
    MGL_TRY(
        mgl_pair_map_put(&trie->edges, (uint64_t)node << 8 | (unsigned char)text[i], next, 0, err));
    node = next;
  }
  if (trie->ends[node] >= 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "two added tokens have the same normalised form");
  }
  trie->ends[node] = index;
  trie->starts[(unsigned char)text[0]] = true;
  return MGL_OK;
}

int32_t mgl_token_trie_find(const mgl_token_trie *trie, const char *text, size_t bytes,
                            size_t *start, size_t *end) {
  for (size_t from = *start; from < bytes; from++) {
    if (!trie->starts[(unsigned char)text[from]]) {
      continue;
    }
    int32_t found = -1;
    uint32_t node = 0;
    for (size_t at = from; at < bytes; at++) {
      const mgl_pair_slot *edge = child(trie, node, text[at]);
      if (edge == NULL) {
        break;
      }
      node = edge->first;
      if (trie->ends[node] >= 0) {
        found = trie->ends[node];
        *start = from;
        *end = at + 1;
      }
    }
    if (found >= 0) {
      return found;
    }
  }
  return -1;
}

void mgl_token_trie_free(mgl_token_trie *trie) {
  mgl_pair_map_free(&trie->edges);
  mgl_free(trie->ends);
  *trie = (mgl_token_trie){0};
}

void mgl_added_tokens_free(mgl_added_tokens *added) {
  mgl_free(added->tokens);
  mgl_token_table_free(&added->contents);
  mgl_token_table_free(&added->normal_forms);
  mgl_token_trie_free(&added->raw);
  mgl_token_trie_free(&added->normal);
  *added = (mgl_added_tokens){0};
}

// Where the character that ends at `end` > 0 starts.
static size_t previous_start(const char *text, size_t end) {
  do {
    end--;
  } while (((unsigned char)text[end] & 0xc0) == 0x80);
  return end;
}

// Whether no word character stands directly before `start` or behind `end`.
static bool stands_alone(const char *text, size_t bytes, size_t start, size_t end) {
  if (start > 0) {
    size_t before = previous_start(text, start);
    if (mgl_char_is_word(mgl_utf8_next(text, &before))) {
      return false;
    }
  }
  return end == bytes || !mgl_char_is_word(mgl_utf8_next(text, &end));
}

// The start of the whitespace run that ends at `start`, not before `limit`.
static size_t strip_left(const char *text, size_t start, size_t limit) {
  while (start > limit) {
    size_t before = previous_start(text, start);
    size_t at = before;
    if (mgl_char_class(mgl_utf8_next(text, &at)) != MGL_CHAR_SPACE) {
      break;
    }
    start = before;
  }
  return start;
}

static size_t strip_right(const char *text, size_t bytes, size_t end) {
  while (end < bytes) {
    size_t next = end;
    if (mgl_char_class(mgl_utf8_next(text, &next)) != MGL_CHAR_SPACE) {
      break;
    }
    end = next;
  }
  return end;
}

int32_t mgl_added_tokens_next(const mgl_added_tokens *added, const mgl_token_trie *trie,
                              const char *text, size_t bytes, bool skip_special,
                              mgl_added_cursor *cursor, size_t *start, size_t *end) {
  for (;;) {
    *start = cursor->search;
    int32_t index = mgl_token_trie_find(trie, text, bytes, start, end);
    if (index < 0) {
      return -1;
    }
    // As in the library, a match that does not count still covers its text.
    cursor->search = *end;
    const mgl_added_token *token = &added->tokens[index];
    if (skip_special && token->special) {
      continue;
    }
    if (token->single_word && !stands_alone(text, bytes, *start, *end)) {
      continue;
    }
    if (token->lstrip && cursor->done < *start) {
      *start = strip_left(text, *start, cursor->done);
    } else if (token->lstrip) {
      *start = cursor->done;
    }
    if (token->rstrip) {
      // A run of whitespace tokens would otherwise be scanned once for each of them.
      if (*end > cursor->space_end) {
        cursor->space_end = strip_right(text, bytes, *end);
      }
      *end = cursor->space_end > *end ? cursor->space_end : *end;
    }
    // The token before it has taken the whitespace that this one lies in. (Where nothing strips to
    // the right, the library panics.)
    if (token->lstrip && *start >= *end) {
      continue;
    }
    cursor->done = *end;
    return index;
  }
}
