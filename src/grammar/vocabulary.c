#include "grammar/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/unicode.h"

enum { SPECIAL_MARK = 0xff, NOT_PLAIN = 0 };

void mgl_special_bytes(uint32_t id, char out[MGL_SPECIAL_BYTES]) {
  // None of these is a continuation byte, so no part of one is a part of another.
  out[0] = (char)SPECIAL_MARK;
  out[1] = (char)(id & 0x7f);
  out[2] = (char)(id >> 7 & 0x7f);
  out[3] = (char)(id >> 14 & 0x7f);
}

int mgl_plain_kind(uint32_t code) {
  if (code > 0x7f) {
    return 5;
  }
  if (code < ' ' || code == '"' || code == '\\' || code == 0x7f) {
    return -1;
  }
  return code >= 'a' && code <= 'z'   ? 0
         : code >= 'A' && code <= 'Z' ? 1
         : code >= '0' && code <= '9' ? 2
         : code == ' '                ? 3
                                      : 4;
}

// The set of a token's kinds, NOT_PLAIN for one that has others or is not UTF-8.
static uint32_t group_of(const char *bytes, size_t count, uint32_t *chars) {
  uint32_t set = 0;
  *chars = 0;
  if (count == 0 || mgl_utf8_valid_prefix(bytes, count) != count) {
    return NOT_PLAIN;
  }
  for (size_t at = 0; at < count; ++*chars) {
    int kind = mgl_plain_kind(mgl_utf8_next(bytes, &at));
    if (kind < 0 || *chars == MGL_PLAIN_MAX_CHARS) {
      return NOT_PLAIN;
    }
    set |= 1u << kind;
  }
  return set;
}

// --- tries ---------------------------------------------------------------------------------------

typedef struct sorted_token {
  const char *bytes;
  uint32_t count;
  uint32_t id;
} sorted_token;

static int by_bytes(const void *a, const void *b) {
  const sorted_token *x = a;
  const sorted_token *y = b;
  int order = memcmp(x->bytes, y->bytes, x->count < y->count ? x->count : y->count);
  return order != 0             ? order
         : x->count != y->count ? (x->count < y->count ? -1 : 1)
         : x->id < y->id        ? -1
                                : 1;
}

static uint32_t common(const sorted_token *a, const sorted_token *b) {
  uint32_t i = 0;
  while (i < a->count && i < b->count && a->bytes[i] == b->bytes[i]) {
    i++;
  }
  return i;
}

static void close_node(mgl_token_group *group, uint32_t node) {
  group->nodes[node].end_and_byte |= group->node_count << 8;
}

// A group's nodes from its tokens, which are sorted and stand at order[first_token].
static mgl_status build_trie(const sorted_token *tokens, uint32_t count, uint32_t first_token,
                             mgl_token_group *group, mgl_error *err) {
  uint32_t path[MGL_MASK_MAX_TOKEN_BYTES];  // the open node of each depth
  size_t nodes = 0;
  uint32_t depth = 0;
  for (uint32_t i = 0; i < count; i++) {
    nodes += tokens[i].count - (i == 0 ? 0 : common(&tokens[i - 1], &tokens[i]));
  }
  if (nodes >= MGL_TRIE_MAX_NODES) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "expected a vocabulary of fewer than %d bytes without what tokens share, "
                         "found %zu",
                         MGL_TRIE_MAX_NODES, nodes);
  }
  group->nodes = mgl_alloc_zeroed(nodes, sizeof *group->nodes);
  if (group->nodes == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a vocabulary");
  }
  for (uint32_t i = 0; i < count; i++) {
    uint32_t kept = i == 0 ? 0 : common(&tokens[i - 1], &tokens[i]);
    while (depth > kept) {
      close_node(group, path[--depth]);
    }
    for (; depth < tokens[i].count; depth++) {
      path[depth] = group->node_count;
      group->nodes[group->node_count++].end_and_byte = (uint8_t)tokens[i].bytes[depth];
    }
    mgl_trie_node *last = &group->nodes[path[depth - 1]];
    uint32_t here = last->tokens & 0xff;
    if (here == 0) {
      last->tokens = (first_token + i) << 8 | 1;
    } else if (here < 0xff) {  // more than 255 tokens of the same bytes: the others are not allowed
      last->tokens++;
    }
    uint8_t first = (uint8_t)tokens[i].bytes[0];
    group->first_bytes[first / 64] |= UINT64_C(1) << (first % 64);
  }
  while (depth > 0) {
    close_node(group, path[--depth]);
  }
  return MGL_OK;
}

static void set_bit(uint64_t *mask, uint32_t id) {
  mask[id / 64] |= UINT64_C(1) << (id % 64);
}

// The tokens of each group, sorted, one group behind the other.
static mgl_status build_groups(mgl_vocabulary *v, mgl_error *err) {
  uint32_t counts[MGL_TOKEN_GROUPS + 1] = {0};
  uint32_t next[MGL_TOKEN_GROUPS];
  uint8_t *group = mgl_alloc_zeroed(v->token_count, 1);
  sorted_token *sorted = mgl_alloc_zeroed(v->token_count, sizeof *sorted);
  mgl_status status = MGL_OK;
  if (group == NULL || sorted == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a vocabulary");
    goto done;
  }
  for (uint32_t id = 0; id < v->token_count; id++) {
    uint32_t chars = 0;
    size_t count = 0;
    const char *bytes = mgl_vocabulary_bytes(v, id, &count);
    group[id] = (uint8_t)group_of(bytes, count, &chars);
    if (count == 0 || count > MGL_MASK_MAX_TOKEN_BYTES) {
      group[id] = MGL_TOKEN_GROUPS;
      continue;
    }
    counts[group[id] + 1]++;
    for (uint32_t i = chars; group[id] != NOT_PLAIN && i <= MGL_PLAIN_MAX_CHARS; i++) {
      set_bit(v->plain_up_to + (size_t)(i - 1) * v->mask_words, id);
    }
  }
  for (uint32_t i = 0; i < MGL_TOKEN_GROUPS; i++) {
    next[i] = counts[i];
    counts[i + 1] += counts[i];
  }
  for (uint32_t id = 0; id < v->token_count; id++) {
    if (group[id] < MGL_TOKEN_GROUPS) {
      size_t count = 0;
      const char *bytes = mgl_vocabulary_bytes(v, id, &count);
      sorted[next[group[id]]++] = (sorted_token){bytes, (uint32_t)count, id};
    }
  }
  for (uint32_t i = 0; i < MGL_TOKEN_GROUPS && status == MGL_OK; i++) {
    uint32_t count = counts[i + 1] - counts[i];
    qsort(sorted + counts[i], count, sizeof *sorted, by_bytes);
    status = build_trie(sorted + counts[i], count, counts[i], &v->groups[i], err);
    v->groups[i].tokens =
        count == 0 ? NULL : mgl_alloc_zeroed(v->mask_words, sizeof *v->groups[i].tokens);
    if (count > 0 && v->groups[i].tokens == NULL) {
      status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a vocabulary");
    }
    for (uint32_t j = counts[i]; j < counts[i + 1] && status == MGL_OK; j++) {
      v->order[j] = sorted[j].id;
      set_bit(v->groups[i].tokens, sorted[j].id);
    }
  }
done:
  mgl_free(group);
  mgl_free(sorted);
  return status;
}

static void destroy(mgl_vocabulary *v) {
  if (v == NULL) {
    return;
  }
  for (uint32_t i = 0; i < MGL_TOKEN_GROUPS; i++) {
    mgl_free(v->groups[i].nodes);
    mgl_free(v->groups[i].tokens);
  }
  mgl_free(v->bytes);
  mgl_free(v->offsets);
  mgl_free(v->order);
  mgl_free(v->specials);
  mgl_free(v->plain_up_to);
  mgl_free(v->blanks);
  mgl_free(v);
}

void mgl_vocabulary_keep(mgl_vocabulary *v) {
  // Relaxed: whoever keeps it holds a reference already.
  (void)atomic_fetch_add_explicit(&v->references, 1, memory_order_relaxed);
}

void mgl_vocabulary_release(mgl_vocabulary *v) {
  // acq_rel: the last one sees all that others did with it before they let go.
  if (v != NULL && atomic_fetch_sub_explicit(&v->references, 1, memory_order_acq_rel) == 1) {
    destroy(v);
  }
}

// --- making one ----------------------------------------------------------------------------------

mgl_status mgl_vocabulary_create(const mgl_vocabulary_token *tokens, uint32_t count,
                                 mgl_vocabulary **out, mgl_error *err) {
  mgl_status status = MGL_OK;
  size_t bytes = 0;
  mgl_vocabulary *v = mgl_alloc_zeroed(1, sizeof *v);
  *out = NULL;
  for (uint32_t i = 0; i < count; i++) {
    bytes += tokens[i].bytes == NULL ? 0
             : tokens[i].is_special  ? MGL_SPECIAL_BYTES
                                     : tokens[i].count;
  }
  if (v != NULL) {
    atomic_init(&v->references, 1);
    v->token_count = count;
    v->mask_words = count / 64 + 1;
    v->bytes = mgl_alloc(bytes);
    v->offsets = mgl_alloc_zeroed((size_t)count + 1, sizeof *v->offsets);
    v->order = mgl_alloc_zeroed(count, sizeof *v->order);
    v->specials = mgl_alloc_zeroed(v->mask_words, sizeof *v->specials);
    v->plain_up_to =
        mgl_alloc_zeroed((size_t)MGL_PLAIN_MAX_CHARS * v->mask_words, sizeof *v->plain_up_to);
  }
  if (v == NULL || v->bytes == NULL || v->offsets == NULL || v->order == NULL ||
      v->specials == NULL || v->plain_up_to == NULL) {
    destroy(v);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a vocabulary of %u tokens", count);
  }
  size_t at = 0;
  for (uint32_t i = 0; i < count; i++) {
    const mgl_vocabulary_token *token = &tokens[i];
    v->offsets[i] = at;
    if (token->bytes != NULL && token->is_special) {
      mgl_special_bytes(i, v->bytes + at);
      set_bit(v->specials, i);
      at += MGL_SPECIAL_BYTES;
    } else if (token->bytes != NULL) {
      memcpy(v->bytes + at, token->bytes, token->count);
      at += token->count;
    }
  }
  v->offsets[count] = at;
  status = build_groups(v, err);
  if (status != MGL_OK) {
    destroy(v);
    return status;
  }
  *out = v;
  return MGL_OK;
}

static mgl_status note_blanks(mgl_vocabulary *v, mgl_error *err) {
  v->drops_first_blank = true;
  v->blanks = mgl_alloc_zeroed(v->mask_words, sizeof *v->blanks);
  if (v->blanks == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a vocabulary");
  }
  for (uint32_t id = 0; id < v->token_count; id++) {
    if (v->offsets[id + 1] > v->offsets[id] && v->bytes[v->offsets[id]] == ' ') {
      set_bit(v->blanks, id);
    }
  }
  return MGL_OK;
}

mgl_status mgl_vocabulary_of(const mgl_tokenizer *tokenizer, uint32_t token_count,
                             mgl_vocabulary **out, mgl_error *err) {
  mgl_vocabulary_token *tokens = mgl_alloc_zeroed(token_count, sizeof *tokens);
  size_t *offsets = mgl_alloc_zeroed(token_count, sizeof *offsets);
  mgl_text all = {0};
  *out = NULL;
  mgl_status status = tokens == NULL || offsets == NULL
                          ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a vocabulary")
                          : MGL_OK;
  for (uint32_t id = 0; id < token_count && status == MGL_OK; id++) {
    bool is_token = false;
    offsets[id] = all.bytes;
    status = mgl_tokenizer_token_bytes(tokenizer, (int32_t)id, &all, &is_token,
                                       &tokens[id].is_special, err);
    tokens[id].count = all.bytes - offsets[id];
    tokens[id].bytes = is_token ? "" : NULL;
  }
  for (uint32_t id = 0; id < token_count && status == MGL_OK; id++) {
    tokens[id].bytes =
        tokens[id].bytes == NULL || all.data == NULL ? tokens[id].bytes : all.data + offsets[id];
  }
  if (status == MGL_OK) {
    status = mgl_vocabulary_create(tokens, token_count, out, err);
  }
  if (status == MGL_OK && mgl_tokenizer_drops_first_blank(tokenizer)) {
    status = note_blanks(*out, err);
    if (status != MGL_OK) {
      mgl_vocabulary_release(*out);
      *out = NULL;
    }
  }
  mgl_text_free(&all);
  mgl_free(tokens);
  mgl_free(offsets);
  return status;
}
