// Metadata to tokenizer.json. What is inconsistent in itself (two tokens alike, merges of unknown
// ones) is left to that file's reader, which refuses it.
#include "model/gguf_tokenizer.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gguf_pieces.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

// What "tokenizer.ggml.pre" names. GPT-2's words are byte-level's own, which needs no Split.
typedef struct pretokenizer {
  const char *name;
  mgl_split_kind words;
  bool nfc;
  bool digits;  // each digit stands alone, before words are looked for
  bool whole;   // a word that is a token is taken whole
  bool bos;     // a text begins with BOS, unless the file says
} pretokenizer;

static const pretokenizer pretokenizers[] = {
    {.name = "gpt-2", .words = MGL_SPLIT_GPT2},
    {.name = "smollm", .words = MGL_SPLIT_GPT2, .digits = true},
    {.name = "starcoder", .words = MGL_SPLIT_GPT2, .digits = true},
    {.name = "qwen2", .words = MGL_SPLIT_QWEN, .nfc = true},
    {.name = "deepseek-r1-qwen", .words = MGL_SPLIT_QWEN, .nfc = true},
    {.name = "llama-bpe", .words = MGL_SPLIT_LLAMA3, .whole = true, .bos = true},
    {.name = "llama3", .words = MGL_SPLIT_LLAMA3, .whole = true, .bos = true},
    {.name = "llama-v3", .words = MGL_SPLIT_LLAMA3, .whole = true, .bos = true},
    {.name = "tekken", .words = MGL_SPLIT_TEKKEN, .whole = true, .bos = true},
    {.name = "gpt-4o", .words = MGL_SPLIT_O200K},
};

typedef struct maker {
  const mgl_gguf *gguf;
  const mgl_gguf_value *tokens, *kinds;
  json_t *root, *model;  // model is in root
  mgl_error *err;
} maker;

static mgl_status no_memory(const maker *m) {
  return mgl_error_set(m->err, MGL_ERR_MEMORY, "%s: out of memory for its tokenizer",
                       m->gguf->where);
}

static mgl_status put(maker *m, json_t *object, const char *key, json_t *value) {
  return json_object_set_new(object, key, value) == 0 ? MGL_OK : no_memory(m);
}

// --- tokens --------------------------------------------------------------------------------------

static int64_t kind_of(const maker *m, uint64_t id) {
  return m->kinds == NULL ? MGL_GGUF_TOKEN_NORMAL : mgl_gguf_integer(m->kinds, id);
}

static mgl_status check_text(const maker *m, const char *what, uint64_t i, mgl_gguf_string text) {
  if (text.bytes == 0 || memchr(text.text, 0, text.bytes) != NULL ||
      mgl_utf8_valid_prefix(text.text, text.bytes) != text.bytes) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT,
                         "%s: %s %" PRIu64 ": expected UTF-8 without NUL, at least a byte",
                         m->gguf->where, what, i);
  }
  return MGL_OK;
}

// Bytes of all strings of an array, with the lengths in front of them.
static mgl_status check_size(const maker *m, const mgl_gguf_value *list, uint64_t most_count,
                             uint64_t most_bytes) {
  const unsigned char *at = list->data;
  for (uint64_t i = 0; i < list->count; i++) {
    (void)mgl_gguf_next_string(&at);
  }
  uint64_t bytes = (uint64_t)(at - list->data);
  if (list->count > most_count || bytes > most_bytes) {
    return mgl_error_set(m->err, MGL_ERR_LIMIT,
                         "%s: \"%.*s\": expected at most %" PRIu64 " strings in %" PRIu64
                         " bytes, found %" PRIu64 " in %" PRIu64,
                         m->gguf->where, (int)list->key.bytes, list->key.text, most_count,
                         most_bytes, list->count, bytes);
  }
  return MGL_OK;
}

static mgl_status put_added(maker *m, json_t *list, uint64_t id, mgl_gguf_string text,
                            bool special) {
  json_t *token = json_pack("{sI,ss%,sb,sb}", "id", (json_int_t)id, "content", text.text,
                            text.bytes, "special", (int)special, "normalized", 0);
  return json_array_append_new(list, token) == 0 ? MGL_OK : no_memory(m);
}

static mgl_status put_token(maker *m, json_t *vocab, json_t *added, uint64_t id,
                            mgl_gguf_string token, mgl_text *key) {
  int64_t kind = kind_of(m, id);
  if (kind == MGL_GGUF_TOKEN_UNUSED) {
    return MGL_OK;
  }
  MGL_TRY(check_text(m, "token", id, token));
  mgl_text_clear(key);
  mgl_text_append(key, token.text, token.bytes);
  MGL_TRY(mgl_text_check(key, m->err));
  const json_t *other = json_object_get(vocab, key->data);
  if (other != NULL) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT,
                         "%s: tokens %" JSON_INTEGER_FORMAT " and %" PRIu64 " are both \"%.60s\"",
                         m->gguf->where, json_integer_value(other), id, key->data);
  }
  MGL_TRY(put(m, vocab, key->data, json_integer((json_int_t)id)));
  bool special = kind == MGL_GGUF_TOKEN_CONTROL || kind == MGL_GGUF_TOKEN_UNKNOWN;
  return special || kind == MGL_GGUF_TOKEN_USER ? put_added(m, added, id, token, special) : MGL_OK;
}

static mgl_status put_tokens(maker *m) {
  json_t *added = json_array();
  MGL_TRY(put(m, m->root, "added_tokens", added));
  json_t *vocab = json_object();
  MGL_TRY(put(m, m->model, "vocab", vocab));
  MGL_TRY(check_size(m, m->tokens, MGL_TOKENIZER_MAX_VOCAB, MGL_GGUF_MAX_TOKEN_TEXT));
  if (m->kinds != NULL && m->kinds->count != m->tokens->count) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT,
                         "%s: expected as many token types as tokens (%" PRIu64 "), found %" PRIu64,
                         m->gguf->where, m->tokens->count, m->kinds->count);
  }
  const unsigned char *at = m->tokens->data;
  mgl_text key = {0};
  mgl_status status = MGL_OK;
  for (uint64_t i = 0; i < m->tokens->count && status == MGL_OK; i++) {
    status = put_token(m, vocab, added, i, mgl_gguf_next_string(&at), &key);
  }
  mgl_text_free(&key);
  return status;
}

// --- before and behind a text --------------------------------------------------------------------

// Adds the token of a key to a template, if `on`.
static mgl_status put_affix(maker *m, json_t *single, json_t *tokens, const char *key,
                            const char *name, bool on) {
  uint64_t id = UINT64_MAX;
  MGL_TRY(mgl_gguf_u64(m->gguf, key, &id, m->err));
  if (!on || id == UINT64_MAX) {
    return MGL_OK;
  }
  json_t *piece = json_pack("{s{ss,si}}", "SpecialToken", "id", name, "type_id", 0);
  json_t *ids = json_pack("{ss,s[I],s[s]}", "id", name, "ids", (json_int_t)id, "tokens", name);
  bool fine = json_array_append_new(single, piece) == 0;
  fine = json_object_set_new(tokens, name, ids) == 0 && fine;
  return fine ? MGL_OK : no_memory(m);
}

static mgl_status put_template(maker *m, bool bos, bool eos) {
  MGL_TRY(mgl_gguf_bool(m->gguf, "tokenizer.ggml.add_bos_token", &bos, m->err));
  MGL_TRY(mgl_gguf_bool(m->gguf, "tokenizer.ggml.add_eos_token", &eos, m->err));
  json_t *processor = json_pack("{ss}", "type", "TemplateProcessing");
  MGL_TRY(put(m, m->root, "post_processor", processor));
  json_t *single = json_array();
  MGL_TRY(put(m, processor, "single", single));
  json_t *tokens = json_object();
  MGL_TRY(put(m, processor, "special_tokens", tokens));
  MGL_TRY(put_affix(m, single, tokens, "tokenizer.ggml.bos_token_id", "bos", bos));
  json_t *text = json_pack("{s{ss,si}}", "Sequence", "id", "A", "type_id", 0);
  if (json_array_append_new(single, text) != 0) {
    return no_memory(m);
  }
  return put_affix(m, single, tokens, "tokenizer.ggml.eos_token_id", "eos", eos);
}

// --- byte-level BPE ------------------------------------------------------------------------------

static mgl_status find_pretokenizer(const maker *m, const pretokenizer **out) {
  static const char key[] = "tokenizer.ggml.pre";
  mgl_gguf_string name = {.text = "default", .bytes = 7};
  MGL_TRY(mgl_gguf_text(m->gguf, key, &name, m->err));
  for (size_t i = 0; i < sizeof pretokenizers / sizeof *pretokenizers; i++) {
    if (mgl_gguf_string_is(name, pretokenizers[i].name)) {
      *out = &pretokenizers[i];
      return MGL_OK;
    }
  }
  return mgl_error_set(m->err, MGL_ERR_UNSUPPORTED,
                       "%s: \"%s\": the pre-tokeniser \"%.*s\" is not supported; supported are "
                       "gpt-2, smollm, starcoder, qwen2, deepseek-r1-qwen, llama-bpe, tekken and "
                       "gpt-4o",
                       m->gguf->where, key, name.bytes < 40 ? (int)name.bytes : 40, name.text);
}

static mgl_status put_merges(maker *m) {
  const mgl_gguf_value *merges = NULL;
  json_t *list = json_array();
  MGL_TRY(put(m, m->model, "merges", list));
  MGL_TRY(mgl_gguf_array(m->gguf, "tokenizer.ggml.merges", MGL_GGUF_STRING, &merges, m->err));
  if (merges == NULL) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT, "%s: \"tokenizer.ggml.merges\" is missing",
                         m->gguf->where);
  }
  MGL_TRY(check_size(m, merges, MGL_GGUF_MAX_MERGES, MGL_GGUF_MAX_TOKEN_TEXT));
  const unsigned char *at = merges->data;
  for (uint64_t i = 0; i < merges->count; i++) {
    mgl_gguf_string merge = mgl_gguf_next_string(&at);
    MGL_TRY(check_text(m, "merge", i, merge));
    if (json_array_append_new(list, json_stringn(merge.text, merge.bytes)) != 0) {
      return no_memory(m);
    }
  }
  return MGL_OK;
}

static mgl_status put_stages(maker *m, const pretokenizer *pre) {
  json_t *stages = json_array();
  MGL_TRY(put(m, m->root, "pre_tokenizer",
              json_pack("{ss,so}", "type", "Sequence", "pretokenizers", stages)));
  int failed = 0;
  if (pre->digits) {
    failed |= json_array_append_new(stages,
                                    json_pack("{ss,sb}", "type", "Digits", "individual_digits", 1));
  }
  if (pre->words != MGL_SPLIT_GPT2) {
    const char *regex = mgl_split_pattern_regex(pre->words);
    failed |= json_array_append_new(
        stages, json_pack("{ss,s{ss},ss,sb}", "type", "Split", "pattern", "Regex", regex,
                          "behavior", "Isolated", "invert", 0));
  }
  failed |=
      json_array_append_new(stages, json_pack("{ss,sb,sb}", "type", "ByteLevel", "add_prefix_space",
                                              0, "use_regex", pre->words == MGL_SPLIT_GPT2));
  return failed == 0 ? MGL_OK : no_memory(m);
}

static mgl_status make_byte_level(maker *m) {
  const pretokenizer *pre = NULL;
  MGL_TRY(find_pretokenizer(m, &pre));
  MGL_TRY(put_tokens(m));
  MGL_TRY(put_merges(m));
  MGL_TRY(put_stages(m, pre));
  MGL_TRY(put(m, m->model, "ignore_merges", json_boolean(pre->whole)));
  MGL_TRY(put(m, m->root, "decoder", json_pack("{ss}", "type", "ByteLevel")));
  if (pre->nfc) {
    MGL_TRY(put(m, m->root, "normalizer", json_pack("{ss}", "type", "NFC")));
  }
  return put_template(m, pre->bos, false);
}

// --- SentencePiece -------------------------------------------------------------------------------

#define BLANK "\xe2\x96\x81"  // U+2581, which stands for a space

static mgl_status put_pieces(maker *m) {
  const mgl_gguf_value *scores = NULL;
  MGL_TRY(mgl_gguf_array(m->gguf, "tokenizer.ggml.scores", MGL_GGUF_F32, &scores, m->err));
  if (scores == NULL || scores->count != m->tokens->count) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT,
                         "%s: \"tokenizer.ggml.scores\": expected as many as tokens (%" PRIu64
                         "), found %" PRIu64,
                         m->gguf->where, m->tokens->count, scores == NULL ? 0 : scores->count);
  }
  MGL_TRY(check_size(m, m->tokens, MGL_TOKENIZER_MAX_VOCAB, MGL_GGUF_MAX_PIECE_TEXT));
  MGL_TRY(put_tokens(m));
  json_t *merges = NULL;
  MGL_TRY(mgl_gguf_pieces_merge(m->gguf->where, m->tokens, m->kinds, scores, &merges, m->err));
  return put(m, m->model, "merges", merges);
}

static mgl_status make_sentence_pieces(maker *m) {
  bool prefix = true;
  char *unknown = NULL;
  MGL_TRY(mgl_gguf_bool(m->gguf, "tokenizer.ggml.add_space_prefix", &prefix, m->err));
  MGL_TRY(put_pieces(m));
  MGL_TRY(put(m, m->model, "byte_fallback", json_true()));
  MGL_TRY(put(m, m->model, "fuse_unk", json_true()));
  MGL_TRY(mgl_gguf_token_text(m->gguf, "tokenizer.ggml.unknown_token_id", &unknown, m->err));
  if (unknown != NULL) {
    json_t *text = json_string(unknown);
    mgl_free(unknown);
    MGL_TRY(put(m, m->model, "unk_token", text));
  }
  json_t *steps = json_array();
  MGL_TRY(put(m, m->root, "normalizer",
              json_pack("{ss,so}", "type", "Sequence", "normalizers", steps)));
  json_t *decoders = json_array();
  MGL_TRY(
      put(m, m->root, "decoder", json_pack("{ss,so}", "type", "Sequence", "decoders", decoders)));
  int failed = 0;
  if (prefix) {
    failed |=
        json_array_append_new(steps, json_pack("{ss,ss}", "type", "Prepend", "prepend", BLANK));
  }
  failed |= json_array_append_new(steps, json_pack("{ss,s{ss},ss}", "type", "Replace", "pattern",
                                                   "String", " ", "content", BLANK));
  failed |= json_array_append_new(decoders, json_pack("{ss,s{ss},ss}", "type", "Replace", "pattern",
                                                      "String", BLANK, "content", " "));
  failed |= json_array_append_new(decoders, json_pack("{ss}", "type", "ByteFallback"));
  failed |= json_array_append_new(decoders, json_pack("{ss}", "type", "Fuse"));
  if (prefix) {
    failed |= json_array_append_new(decoders, json_pack("{ss,ss,si,si}", "type", "Strip", "content",
                                                        " ", "start", 1, "stop", 0));
  }
  return failed == 0 ? put_template(m, true, false) : no_memory(m);
}

// --- the whole -----------------------------------------------------------------------------------

static mgl_status make(maker *m, mgl_gguf_string kind) {
  if (m->root == NULL) {
    return no_memory(m);
  }
  m->model = json_object();
  MGL_TRY(put(m, m->root, "model", m->model));
  MGL_TRY(mgl_gguf_array(m->gguf, "tokenizer.ggml.tokens", MGL_GGUF_STRING, &m->tokens, m->err));
  MGL_TRY(mgl_gguf_array(m->gguf, "tokenizer.ggml.token_type", MGL_GGUF_I32, &m->kinds, m->err));
  if (m->tokens == NULL) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT, "%s: \"tokenizer.ggml.tokens\" is missing",
                         m->gguf->where);
  }
  if (mgl_gguf_string_is(kind, "gpt2")) {
    return make_byte_level(m);
  }
  if (mgl_gguf_string_is(kind, "llama")) {
    return make_sentence_pieces(m);
  }
  return mgl_error_set(m->err, MGL_ERR_UNSUPPORTED,
                       "%s: \"tokenizer.ggml.model\": \"%.*s\" is not supported; supported are "
                       "gpt2 and llama",
                       m->gguf->where, kind.bytes < 40 ? (int)kind.bytes : 40, kind.text);
}

mgl_status mgl_gguf_tokenizer(const mgl_gguf *gguf, json_t **out, mgl_error *err) {
  mgl_gguf_string kind = {.text = "none", .bytes = 4};
  *out = NULL;
  MGL_TRY(mgl_gguf_text(gguf, "tokenizer.ggml.model", &kind, err));
  if (mgl_gguf_string_is(kind, "none") || mgl_gguf_string_is(kind, "no_vocab")) {
    return MGL_OK;
  }
  maker m = {.gguf = gguf, .root = json_object(), .err = err};
  mgl_status status = make(&m, kind);
  if (status != MGL_OK) {
    json_decref(m.root);
    return status;
  }
  *out = m.root;
  return MGL_OK;
}

mgl_status mgl_gguf_token_text(const mgl_gguf *gguf, const char *key, char **out, mgl_error *err) {
  const mgl_gguf_value *tokens = NULL;
  uint64_t id = UINT64_MAX;
  *out = NULL;
  MGL_TRY(mgl_gguf_u64(gguf, key, &id, err));
  MGL_TRY(mgl_gguf_array(gguf, "tokenizer.ggml.tokens", MGL_GGUF_STRING, &tokens, err));
  if (tokens == NULL || id >= tokens->count) {
    return MGL_OK;
  }
  const unsigned char *at = tokens->data;
  mgl_gguf_string text = mgl_gguf_next_string(&at);
  for (uint64_t i = 0; i < id; i++) {
    text = mgl_gguf_next_string(&at);
  }
  *out = mgl_strndup(text.text, text.bytes);
  return *out != NULL ? MGL_OK
                      : mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory", gguf->where);
}
