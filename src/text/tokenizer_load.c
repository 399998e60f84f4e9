// Opens a tokenizer: reads model and added tokens of tokenizer.json and ties the parts together.
//
// Every inconsistency is refused here, so that encoding and decoding need no checks: two tokens
// with one id, merges of unknown tokens, added tokens whose id is not the one that the `tokenizers`
// library would use. "truncation" and "padding" are ignored, as `transformers` resets them.
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "text/tokenizer_parts.h"

enum { WHERE_BYTES = 256 };

// --- vocabulary and merges -----------------------------------------------------------------------

static mgl_status load_vocab(mgl_json_object model, mgl_bpe *bpe, mgl_error *err) {
  mgl_json_object vocab;
  MGL_TRY(mgl_json_opt_object(model, "vocab", &vocab, err));
  size_t count = json_object_size(vocab.object);
  if (count == 0 || count > MGL_TOKENIZER_MAX_VOCAB) {
    return mgl_error_set(err, count == 0 ? MGL_ERR_FORMAT : MGL_ERR_LIMIT,
                         "%s: \"vocab\": expected 1 to %d tokens, found %zu", model.where,
                         MGL_TOKENIZER_MAX_VOCAB, count);
  }
  MGL_TRY(mgl_token_table_reserve(&bpe->vocab, count, err));
  const char *token = NULL;
  json_t *value = NULL;
  json_object_foreach(json_object_get(model.object, "vocab"), token, value) {
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= MGL_TOKENIZER_MAX_VOCAB) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: \"vocab\": token \"%.60s\": expected an integer id from 0 to %d%s",
                           model.where, token, MGL_TOKENIZER_MAX_VOCAB - 1,
                           json_is_integer(value) ? ", found one out of range" : "");
    }
    size_t other_bytes = 0;
    const char *other = mgl_token_table_text(&bpe->vocab, (int32_t)id, &other_bytes);
    if (other != NULL) {
      return mgl_error_set(
          err, MGL_ERR_FORMAT, "%s: \"vocab\": tokens \"%.*s\" and \"%.60s\" both have id %d",
          model.where, other_bytes < 60 ? (int)other_bytes : 60, other, token, (int)id);
    }
    MGL_TRY(mgl_token_table_add(&bpe->vocab, (int32_t)id, token, strlen(token), err));
  }
  return MGL_OK;
}

// The two strings of a merge: "a b" or ["a", "b"]; false if it is neither.
static bool split_merge(const json_t *merge, const char *parts[2], size_t part_bytes[2]) {
  if (json_is_string(merge)) {
    const char *text = json_string_value(merge);
    size_t bytes = json_string_length(merge);
    const char *space = memchr(text, ' ', bytes);
    if (space == NULL || memchr(space + 1, ' ', bytes - (size_t)(space + 1 - text)) != NULL) {
      return false;
    }
    parts[0] = text;
    part_bytes[0] = (size_t)(space - text);
    parts[1] = space + 1;
    part_bytes[1] = bytes - part_bytes[0] - 1;
    return true;
  }
  if (!json_is_array(merge) || json_array_size(merge) != 2) {
    return false;
  }
  for (size_t i = 0; i < 2; i++) {
    const json_t *part = json_array_get(merge, i);
    if (!json_is_string(part)) {
      return false;
    }
    parts[i] = json_string_value(part);
    part_bytes[i] = json_string_length(part);
  }
  return true;
}

// A token of merge `rank`, which must be in the vocabulary.
static mgl_status find_merge_token(const mgl_bpe *bpe, const char *where, size_t rank,
                                   const char *text, size_t bytes, int32_t *id, mgl_error *err) {
  *id = mgl_token_table_find(&bpe->vocab, text, bytes);
  if (*id < 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"merges\": merge %zu names \"%.*s\", which is not in the vocabulary",
                         where, rank, bytes < 60 ? (int)bytes : 60, text);
  }
  return MGL_OK;
}

static mgl_status load_merge(mgl_bpe *bpe, const char *where, size_t index, const json_t *merge,
                             uint32_t rank, mgl_text *joined, mgl_error *err) {
  const char *parts[2];
  size_t bytes[2];
  if (!split_merge(merge, parts, bytes)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"merges\": merge %zu: expected \"a b\" or [\"a\", \"b\"]", where,
                         index);
  }
  int32_t ids[2];
  for (size_t i = 0; i < 2; i++) {
    MGL_TRY(find_merge_token(bpe, where, index, parts[i], bytes[i], &ids[i], err));
  }
  mgl_text_clear(joined);
  mgl_text_append(joined, parts[0], bytes[0]);
  mgl_text_append(joined, parts[1], bytes[1]);
  MGL_TRY(mgl_text_check(joined, err));
  int32_t merged = -1;
  MGL_TRY(find_merge_token(bpe, where, index, joined->data, joined->bytes, &merged, err));
  uint64_t key = (uint64_t)(uint32_t)ids[0] << 32 | (uint32_t)ids[1];
  return mgl_pair_map_put(&bpe->merges, key, rank, (uint32_t)merged, err);
}

static mgl_status load_merges(mgl_json_object model, mgl_bpe *bpe, mgl_error *err) {
  const json_t *merges = json_object_get(model.object, "merges");
  if (!json_is_array(merges)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"merges\": expected an array", model.where);
  }
  size_t count = json_array_size(merges);
  MGL_TRY(mgl_pair_map_reserve(&bpe->merges, count, err));
  mgl_text joined = {0};
  mgl_status status = MGL_OK;
  uint32_t rank = 0;
  for (size_t i = 0; i < count && status == MGL_OK; i++) {
    const json_t *merge = json_array_get(merges, i);
    const char *text = json_string_value(merge);
    if (text != NULL && strncmp(text, "#version", strlen("#version")) == 0) {
      continue;  // the first line of a merges.txt
    }
    status = load_merge(bpe, model.where, i, merge, rank++, &joined, err);
  }
  mgl_text_free(&joined);
  return status;
}

// Options that change the result and that we lack.
static mgl_status refuse_model_options(mgl_json_object model, mgl_error *err) {
  static const char *const AFFIXES[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (size_t i = 0; i < 2; i++) {
    const char *affix = "";
    MGL_TRY(mgl_json_opt_string(model, AFFIXES[i], &affix, err));
    if (affix[0] != 0) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: \"%s\" \"%.60s\" is not supported",
                           model.where, AFFIXES[i], affix);
    }
  }
  double dropout = 0;
  MGL_TRY(mgl_json_opt_double(model, "dropout", 0, 1, &dropout, err));
  if (dropout > 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: \"dropout\" %g is not supported",
                         model.where, dropout);
  }
  return MGL_OK;
}

static mgl_status load_model(mgl_json_object file, mgl_bpe *bpe, mgl_error *err) {
  char where[WHERE_BYTES];
  (void)snprintf(where, sizeof where, "%.200s: model", file.where);
  mgl_json_object model;
  MGL_TRY(mgl_json_opt_object(file, "model", &model, err));
  if (model.object == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"model\" is missing: expected an object",
                         file.where);
  }
  model.where = where;
  const char *type = "BPE";  // old files do not say
  MGL_TRY(mgl_json_opt_string(model, "type", &type, err));
  if (strcmp(type, "BPE") != 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: the type \"%.60s\" is not supported; expected \"BPE\"", model.where,
                         type);
  }
  MGL_TRY(refuse_model_options(model, err));
  MGL_TRY(mgl_json_opt_bool(model, "byte_fallback", &bpe->byte_fallback, err));
  MGL_TRY(mgl_json_opt_bool(model, "fuse_unk", &bpe->fuse_unknown, err));
  MGL_TRY(mgl_json_opt_bool(model, "ignore_merges", &bpe->ignore_merges, err));
  MGL_TRY(load_vocab(model, bpe, err));
  MGL_TRY(load_merges(model, bpe, err));
  const char *unknown = NULL;
  MGL_TRY(mgl_json_opt_string(model, "unk_token", &unknown, err));
  bpe->has_unknown = unknown != NULL;
  bpe->unknown_id =
      unknown == NULL ? -1 : mgl_token_table_find(&bpe->vocab, unknown, strlen(unknown));
  mgl_bpe_index(bpe);
  return MGL_OK;
}

// --- added tokens --------------------------------------------------------------------------------

static mgl_status read_added_flags(mgl_json_object o, mgl_added_token *token, mgl_error *err) {
  MGL_TRY(mgl_json_opt_bool(o, "special", &token->special, err));
  MGL_TRY(mgl_json_opt_bool(o, "single_word", &token->single_word, err));
  MGL_TRY(mgl_json_opt_bool(o, "lstrip", &token->lstrip, err));
  MGL_TRY(mgl_json_opt_bool(o, "rstrip", &token->rstrip, err));
  token->normalized = !token->special;
  return mgl_json_opt_bool(o, "normalized", &token->normalized, err);
}

// The id must be that of the vocabulary's token of this content or, for new content, the next one
// behind the vocabulary: the library goes by this rule, whatever the file says.
static mgl_status check_added_id(const mgl_tokenizer *t, const char *where, const char *content,
                                 int32_t id, int32_t *next_id, mgl_error *err) {
  int32_t expected = mgl_token_table_find(&t->bpe.vocab, content, strlen(content));
  if (expected < 0) {
    expected = (*next_id)++;
    size_t other_bytes = 0;
    const char *other = mgl_token_table_text(&t->bpe.vocab, expected, &other_bytes);
    if (other != NULL) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%.60s\" and \"%.*s\" both have id %d", where,
                           content, other_bytes < 60 ? (int)other_bytes : 60, other, (int)expected);
    }
  }
  if (id != expected) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"%.60s\" has id %d, expected %d (its id in the vocabulary, or the "
                         "next one behind it)",
                         where, content, (int)id, (int)expected);
  }
  return MGL_OK;
}

static mgl_status load_added_token(mgl_json_object o, mgl_tokenizer *t, int32_t *next_id,
                                   mgl_error *err) {
  const char *content = NULL;
  uint64_t id = 0;
  mgl_added_token token = {0};
  MGL_TRY(mgl_json_string(o, "content", &content, err));
  MGL_TRY(mgl_json_u64(o, "id", 0, MGL_TOKENIZER_MAX_VOCAB - 1, &id, err));
  MGL_TRY(read_added_flags(o, &token, err));
  size_t bytes = strlen(content);
  if (bytes == 0) {
    return MGL_OK;  // the library ignores it too
  }
  if (bytes > MGL_ADDED_TOKEN_MAX_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: \"%.60s...\" has %zu bytes: the limit is %d",
                         o.where, content, bytes, MGL_ADDED_TOKEN_MAX_BYTES);
  }
  mgl_added_tokens *added = &t->added;
  if (mgl_token_table_find(&added->contents, content, bytes) >= 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%.60s\" is listed twice", o.where, content);
  }
  token.id = (int32_t)id;
  MGL_TRY(check_added_id(t, o.where, content, token.id, next_id, err));
  void *tokens = added->tokens;
  MGL_TRY(mgl_grow(&tokens, &added->capacity, added->count + 1, sizeof token, err));
  added->tokens = tokens;
  MGL_TRY(mgl_token_table_add(&added->contents, (int32_t)added->count, content, bytes, err));
  added->tokens[added->count++] = token;
  return MGL_OK;
}

static mgl_status load_added_tokens(mgl_json_object file, mgl_tokenizer *t, mgl_error *err) {
  const json_t *list = json_object_get(file.object, "added_tokens");
  if (list == NULL || json_is_null(list)) {
    return MGL_OK;
  }
  char where[WHERE_BYTES];
  (void)snprintf(where, sizeof where, "%.200s: added_tokens", file.where);
  if (!json_is_array(list)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected an array", where);
  }
  int32_t next_id = (int32_t)t->bpe.vocab.count;
  for (size_t i = 0; i < json_array_size(list); i++) {
    mgl_json_object element = {.object = json_array_get(list, i), .where = where};
    if (!json_is_object(element.object)) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected objects", where);
    }
    MGL_TRY(load_added_token(element, t, &next_id, err));
  }
  return MGL_OK;
}

// Puts an added token into the trie where it is looked for.
static mgl_status index_added_token(mgl_tokenizer *t, int32_t index, mgl_text buffers[2],
                                    mgl_error *err) {
  mgl_added_tokens *added = &t->added;
  size_t bytes = 0;
  const char *content = mgl_token_table_text(&added->contents, index, &bytes);
  if (!added->tokens[index].normalized) {
    return mgl_token_trie_add(&added->raw, content, bytes, index, err);
  }
  const char *form = NULL;
  size_t form_bytes = 0;
  MGL_TRY(mgl_normalizer_apply(&t->normalizer, content, bytes, buffers, &form, &form_bytes, err));
  if (form_bytes == 0 || form_bytes > MGL_ADDED_TOKEN_MAX_BYTES) {
    return mgl_error_set(
        err, MGL_ERR_LIMIT, "\"%.*s\": its normalised form has %zu bytes, expected 1 to %d",
        bytes < 60 ? (int)bytes : 60, content, form_bytes, MGL_ADDED_TOKEN_MAX_BYTES);
  }
  MGL_TRY(mgl_token_trie_add(&added->normal, form, form_bytes, index, err));
  if (form_bytes == bytes && memcmp(form, content, bytes) == 0) {
    return MGL_OK;
  }
  return mgl_token_table_add(&added->normal_forms, index, form, form_bytes, err);
}

// Fills the tries, and the arrays by id. As in the library, a token is skipped when the text that
// stands for it in decoding, its normalised form if that differs, is a special token's content.
static mgl_status index_added_tokens(mgl_tokenizer *t, mgl_error *err) {
  mgl_added_tokens *added = &t->added;
  t->vocab_size = (uint32_t)t->bpe.vocab.id_limit;
  for (size_t i = 0; i < added->count; i++) {
    uint32_t needed = (uint32_t)added->tokens[i].id + 1;
    t->vocab_size = needed > t->vocab_size ? needed : t->vocab_size;
  }
  t->added_index = mgl_alloc(t->vocab_size * sizeof *t->added_index);
  t->skippable = mgl_alloc_zeroed(t->vocab_size, sizeof *t->skippable);
  if (t->added_index == NULL || t->skippable == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory: tables of %u tokens", t->vocab_size);
  }
  memset(t->added_index, 0xff, t->vocab_size * sizeof *t->added_index);  // all -1
  mgl_text buffers[2] = {0};
  mgl_status status = MGL_OK;
  for (size_t i = 0; i < added->count && status == MGL_OK; i++) {
    int32_t id = added->tokens[i].id;
    t->added_index[id] = (int32_t)i;
    status = index_added_token(t, (int32_t)i, buffers, err);
    size_t bytes = 0;
    const char *text = mgl_token_table_text(&added->normal_forms, (int32_t)i, &bytes);
    if (text == NULL) {
      text = mgl_token_table_text(&added->contents, (int32_t)i, &bytes);
    }
    int32_t same = mgl_token_table_find(&added->contents, text, bytes);
    t->skippable[id] = same >= 0 && added->tokens[same].special;
  }
  mgl_text_free(&buffers[0]);
  mgl_text_free(&buffers[1]);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "added_tokens");
  }
  return status;
}

// --- the whole -----------------------------------------------------------------------------------

// Metaspace "first" asks where a piece stands in the original text; normalisers that put characters
// in front of the text or take some away there would need the library's alignment of both texts.
static mgl_status refuse_shifting(const mgl_tokenizer *t, const char *where, mgl_error *err) {
  const mgl_pretokenizer *pretokenizer = &t->pretokenizer;
  bool first_only = false;
  for (size_t i = 0; i < pretokenizer->stage_count; i++) {
    const mgl_stage *stage = &pretokenizer->stages[i];
    first_only |= stage->kind == MGL_STAGE_METASPACE && stage->scheme == MGL_PREPEND_FIRST;
  }
  if (!first_only) {
    return MGL_OK;
  }
  for (size_t i = 0; i < t->normalizer.step_count; i++) {
    const mgl_normal_step *step = &t->normalizer.steps[i];
    if (step->kind == MGL_NORMAL_PREPEND ||
        (step->kind == MGL_NORMAL_REPLACE && step->rewrite.content_bytes == 0)) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%s: Metaspace with prepend_scheme \"first\" behind a normalizer that "
                           "prepends or removes text is not supported",
                           where);
    }
  }
  return MGL_OK;
}

static mgl_status check_affix(const mgl_tokenizer *t, const mgl_affix *affix, const char *where,
                              mgl_error *err) {
  for (size_t i = 0; i < affix->count; i++) {
    int32_t id = affix->ids[i];
    size_t bytes = 0;
    if ((uint32_t)id >= t->vocab_size ||
        (t->added_index[id] < 0 && mgl_token_table_text(&t->bpe.vocab, id, &bytes) == NULL)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: post_processor: id %d is no token of the vocabulary", where,
                           (int)id);
    }
  }
  return MGL_OK;
}

static mgl_status load(mgl_json_object file, mgl_tokenizer *t, mgl_error *err) {
  if (!json_is_object(file.object)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected a JSON object", file.where);
  }
  const char *version = "1.0";
  MGL_TRY(mgl_json_opt_string(file, "version", &version, err));
  if (strcmp(version, "1.0") != 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: version \"%.60s\", expected \"1.0\"",
                         file.where, version);
  }
  MGL_TRY(mgl_normalizer_load(file, &t->normalizer, err));
  MGL_TRY(mgl_pretokenizer_load(file, &t->pretokenizer, err));
  MGL_TRY(refuse_shifting(t, file.where, err));
  MGL_TRY(mgl_decoder_load(file, &t->decoder, err));
  MGL_TRY(mgl_postprocessor_load(file, &t->prefix, &t->suffix, err));
  MGL_TRY(load_model(file, &t->bpe, err));
  MGL_TRY(load_added_tokens(file, t, err));
  mgl_status status = index_added_tokens(t, err);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "%.200s", file.where);
    return status;
  }
  MGL_TRY(check_affix(t, &t->prefix, file.where, err));
  return check_affix(t, &t->suffix, file.where, err);
}

mgl_status mgl_tokenizer_read(mgl_json_object file, mgl_tokenizer **out, mgl_error *err) {
  *out = NULL;
  mgl_tokenizer *tokenizer = mgl_alloc_zeroed(1, sizeof *tokenizer);
  mgl_status status =
      tokenizer == NULL
          ? mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory for a tokenizer", file.where)
          : load(file, tokenizer, err);
  if (status != MGL_OK) {
    mgl_tokenizer_close(tokenizer);
    return status;
  }
  *out = tokenizer;
  return MGL_OK;
}

mgl_status mgl_tokenizer_parse(const char *json, size_t bytes, const char *where,
                               mgl_tokenizer **out, mgl_error *err) {
  *out = NULL;
  json_t *root = NULL;
  MGL_TRY(mgl_json_parse(json, bytes, where, &root, err));
  mgl_status status =
      mgl_tokenizer_read((mgl_json_object){.object = root, .where = where}, out, err);
  json_decref(root);
  return status;
}

mgl_status mgl_tokenizer_open(const char *path, mgl_tokenizer **out, mgl_error *err) {
  char *json = NULL;
  size_t bytes = 0;
  *out = NULL;
  MGL_TRY(mgl_file_read(path, MGL_TOKENIZER_MAX_FILE_BYTES, &json, &bytes, err));
  mgl_status status = mgl_tokenizer_parse(json, bytes, path, out, err);
  mgl_free(json);
  return status;
}

void mgl_tokenizer_close(mgl_tokenizer *tokenizer) {
  if (tokenizer == NULL) {
    return;
  }
  mgl_added_tokens_free(&tokenizer->added);
  mgl_bpe_free(&tokenizer->bpe);
  mgl_free(tokenizer->added_index);
  mgl_free(tokenizer->skippable);
  mgl_free(tokenizer);
}

uint32_t mgl_tokenizer_vocab_size(const mgl_tokenizer *tokenizer) {
  return tokenizer->vocab_size;
}

int32_t mgl_tokenizer_find(const mgl_tokenizer *tokenizer, const char *content) {
  size_t bytes = strlen(content);
  int32_t index = mgl_token_table_find(&tokenizer->added.contents, content, bytes);
  return index >= 0 ? tokenizer->added.tokens[index].id
                    : mgl_token_table_find(&tokenizer->bpe.vocab, content, bytes);
}
