#include "model/gguf_pieces.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "model/gguf_tokenizer.h"
#include "text/token_table.h"

typedef struct merge {
  double score;
  int32_t token, left, right;  // ids
  uint32_t left_bytes, right_bytes;
  uint32_t left_characters, right_characters;
} merge;

typedef struct merger {
  const char *where;
  mgl_token_table table;
  merge *merges;
  size_t count, capacity;
  mgl_error *err;
} merger;

static uint32_t count_characters(const char *text, size_t bytes) {
  uint32_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    count += (text[i] & 0xc0) != 0x80;
  }
  return count;
}

static bool is_piece(const mgl_gguf_value *kinds, uint64_t id) {
  int64_t kind = kinds == NULL ? MGL_GGUF_TOKEN_NORMAL : mgl_gguf_integer(kinds, id);
  return kind == MGL_GGUF_TOKEN_NORMAL;
}

static mgl_status fill_table(merger *m, const mgl_gguf_value *tokens, const mgl_gguf_value *kinds) {
  const unsigned char *at = tokens->data;
  MGL_TRY(mgl_token_table_reserve(&m->table, (size_t)tokens->count, m->err));
  for (uint64_t i = 0; i < tokens->count; i++) {
    mgl_gguf_string token = mgl_gguf_next_string(&at);
    if (!is_piece(kinds, i)) {
      continue;
    }
    if (token.bytes > MGL_GGUF_MAX_PIECE_BYTES) {
      return mgl_error_set(m->err, MGL_ERR_LIMIT,
                           "%s: token %" PRIu64 ": expected at most %d bytes, found %zu", m->where,
                           i, MGL_GGUF_MAX_PIECE_BYTES, token.bytes);
    }
    MGL_TRY(mgl_token_table_add(&m->table, (int32_t)i, token.text, token.bytes, m->err));
  }
  return MGL_OK;
}

// Appends the ways to cut one token.
static mgl_status cut(merger *m, int32_t id, mgl_gguf_string token, double score) {
  for (size_t i = 1; i < token.bytes; i++) {
    if ((token.text[i] & 0xc0) == 0x80) {
      continue;  // within a character
    }
    int32_t left = mgl_token_table_find(&m->table, token.text, i);
    int32_t right =
        left < 0 ? -1 : mgl_token_table_find(&m->table, token.text + i, token.bytes - i);
    if (right < 0) {
      continue;
    }
    if (m->count == MGL_GGUF_MAX_MERGES) {
      return mgl_error_set(m->err, MGL_ERR_LIMIT,
                           "%s: expected tokens that can be cut in two in at most %d ways",
                           m->where, MGL_GGUF_MAX_MERGES);
    }
    void *merges = m->merges;
    MGL_TRY(mgl_grow(&merges, &m->capacity, m->count + 1, sizeof *m->merges, m->err));
    m->merges = merges;
    m->merges[m->count++] =
        (merge){.score = score,
                .token = id,
                .left = left,
                .right = right,
                .left_bytes = (uint32_t)i,
                .right_bytes = (uint32_t)(token.bytes - i),
                .left_characters = count_characters(token.text, i),
                .right_characters = count_characters(token.text + i, token.bytes - i)};
  }
  return MGL_OK;
}

static int compare(const void *left, const void *right) {
  const merge *a = left, *b = right;
  if (a->score != b->score) {
    return a->score > b->score ? -1 : 1;
  }
  if (a->left_characters != b->left_characters) {
    return a->left_characters > b->left_characters ? -1 : 1;
  }
  if (a->right_characters != b->right_characters) {
    return a->right_characters > b->right_characters ? -1 : 1;
  }
  // The order in which the converter found them.
  int64_t order = a->token != b->token ? (int64_t)a->token - b->token
                  : a->left != b->left ? (int64_t)a->left - b->left
                                       : (int64_t)a->right - b->right;
  return (order > 0) - (order < 0);
}

static mgl_status list_merges(const merger *m, json_t *list) {
  mgl_text text = {0};
  mgl_status status = MGL_OK;
  for (size_t i = 0; i < m->count && status == MGL_OK; i++) {
    size_t bytes = 0;
    const char *token = mgl_token_table_text(&m->table, m->merges[i].token, &bytes);
    mgl_text_clear(&text);
    mgl_text_append(&text, token, m->merges[i].left_bytes);
    mgl_text_append(&text, " ", 1);
    mgl_text_append(&text, token + m->merges[i].left_bytes, m->merges[i].right_bytes);
    status = mgl_text_check(&text, m->err);
    if (status == MGL_OK && json_array_append_new(list, json_stringn(text.data, text.bytes)) != 0) {
      status = mgl_error_set(m->err, MGL_ERR_MEMORY, "%s: out of memory for merges", m->where);
    }
  }
  mgl_text_free(&text);
  return status;
}

static mgl_status find(merger *m, const mgl_gguf_value *tokens, const mgl_gguf_value *kinds,
                       const mgl_gguf_value *scores) {
  const unsigned char *at = tokens->data;
  MGL_TRY(fill_table(m, tokens, kinds));
  for (uint64_t i = 0; i < tokens->count; i++) {
    mgl_gguf_string token = mgl_gguf_next_string(&at);
    double score = mgl_gguf_number(scores, i);
    // A space would be read as the border between the two parts; a NaN has no order.
    if (is_piece(kinds, i) && memchr(token.text, ' ', token.bytes) == NULL && score == score) {
      MGL_TRY(cut(m, (int32_t)i, token, score));
    }
  }
  if (m->count != 0) {
    qsort(m->merges, m->count, sizeof *m->merges, compare);
  }
  return MGL_OK;
}

mgl_status mgl_gguf_pieces_merge(const char *where, const mgl_gguf_value *tokens,
                                 const mgl_gguf_value *kinds, const mgl_gguf_value *scores,
                                 json_t **out, mgl_error *err) {
  merger m = {.where = where, .err = err};
  *out = json_array();
  mgl_status status = *out == NULL ? mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory", where)
                                   : find(&m, tokens, kinds, scores);
  if (status == MGL_OK) {
    status = list_merges(&m, *out);
  }
  mgl_free(m.merges);
  mgl_token_table_free(&m.table);
  if (status != MGL_OK) {
    json_decref(*out);
    *out = NULL;
  }
  return status;
}
