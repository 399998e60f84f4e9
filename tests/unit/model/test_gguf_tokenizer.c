// Tokenizers of GGUF files: SentencePiece's against sentencepiece itself, byte-level ones against the
// tokenizer.json from which they were made, on the texts of tests/data/tokenizer.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "model/gguf.h"
#include "model/gguf_folder.h"
#include "model/gguf_tokenizer.h"
#include "support/must.h"
#include "support/write_gguf.h"

#define CASES MGL_TEST_DATA "/gguf/"

// --- two tokenizers ------------------------------------------------------------------------------

// Both on a text, and back.
static void compare(const mgl_tokenizer *a, const mgl_tokenizer *b, const char *text, size_t bytes,
                    mgl_encode_options options) {
  mgl_token_list of_a = {0}, of_b = {0};
  mgl_text text_a = {0}, text_b = {0};
  MUST(mgl_tokenizer_encode(a, text, bytes, options, &of_a, &err));
  MUST(mgl_tokenizer_encode(b, text, bytes, options, &of_b, &err));
  if (of_a.count != of_b.count ||
      (of_a.count != 0 && memcmp(of_a.ids, of_b.ids, of_a.count * sizeof *of_a.ids) != 0)) {
    fail_msg("other ids of \"%.*s\"", (int)bytes, text);
  }
  for (int skips = 0; skips < 2; skips++) {
    mgl_text_clear(&text_a);
    mgl_text_clear(&text_b);
    MUST(mgl_tokenizer_decode(a, of_a.ids, of_a.count, skips, &text_a, &err));
    MUST(mgl_tokenizer_decode(b, of_b.ids, of_b.count, skips, &text_b, &err));
    assert_int_equal(text_a.bytes, text_b.bytes);
    assert_true(text_a.bytes == 0 || memcmp(text_a.data, text_b.data, text_a.bytes) == 0);
  }
  mgl_text_free(&text_a);
  mgl_text_free(&text_b);
  mgl_token_list_free(&of_a);
  mgl_token_list_free(&of_b);
}

// --- byte-level ----------------------------------------------------------------------------------

typedef struct family {
  const char *file, *pre;
  int32_t bos;  // -1: none
  bool digits;  // stand alone, which the file does not say
} family;

// The metadata that the converter of llama.cpp makes of a tokenizer.json.
static void write_tokenizer(gguf_writer *w, const json_t *root, const family *f) {
  const json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
  const json_t *added = json_object_get(root, "added_tokens");
  const json_t *merges = json_object_get(model, "merges");
  const char *texts[1024] = {NULL};
  uint32_t kinds[1024] = {0}, count = 0;
  const char *key;
  json_t *value;
  size_t i;
  json_object_foreach((json_t *)(uintptr_t)vocab, key, value) {
    count = json_integer_value(value) >= count ? (uint32_t)json_integer_value(value) + 1 : count;
    texts[json_integer_value(value)] = key;
    kinds[json_integer_value(value)] = MGL_GGUF_TOKEN_NORMAL;
  }
  json_array_foreach(added, i, value) {
    uint32_t id = (uint32_t)json_integer_value(json_object_get(value, "id"));
    bool special = json_is_true(json_object_get(value, "special"));
    count = id >= count ? id + 1 : count;
    assert_true(count <= 1024);
    texts[id] = json_string_value(json_object_get(value, "content"));
    kinds[id] = special ? MGL_GGUF_TOKEN_CONTROL : MGL_GGUF_TOKEN_USER;
  }
  gguf_begin(w, 3, 0, f->bos < 0 ? 5 : 6);
  gguf_text(w, "tokenizer.ggml.model", "gpt2");
  gguf_text(w, "tokenizer.ggml.pre", f->pre);
  gguf_array(w, "tokenizer.ggml.tokens", MGL_GGUF_STRING, count + 1);
  for (i = 0; i < count; i++) {
    gguf_string(w, texts[i]);
  }
  gguf_string(w, "[PAD]");  // fills up, as the converter does it
  gguf_array(w, "tokenizer.ggml.token_type", MGL_GGUF_I32, count + 1);
  for (i = 0; i < count; i++) {
    gguf_number(w, kinds[i], 4);
  }
  gguf_number(w, MGL_GGUF_TOKEN_UNUSED, 4);
  gguf_array(w, "tokenizer.ggml.merges", MGL_GGUF_STRING, json_array_size(merges));
  json_array_foreach(merges, i, value) {
    char merge[256];
    (void)snprintf(merge, sizeof merge, "%s %s", json_string_value(json_array_get(value, 0)),
                   json_string_value(json_array_get(value, 1)));
    gguf_string(w, json_is_string(value) ? json_string_value(value) : merge);
  }
  if (f->bos >= 0) {
    gguf_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)f->bos);
  }
}

static mgl_tokenizer *read_tokenizer(const gguf_writer *w) {
  mgl_gguf gguf;
  json_t *json = NULL;
  mgl_tokenizer *tokenizer = NULL;
  MUST(mgl_gguf_parse(w->data, w->bytes, "m.gguf", &gguf, &err));
  MUST(mgl_gguf_tokenizer(&gguf, &json, &err));
  MUST(mgl_tokenizer_read((mgl_json_object){.object = json, .where = "m"}, &tokenizer, &err));
  json_decref(json);
  mgl_gguf_free(&gguf);
  return tokenizer;
}

static void check_family(const family *f) {
  char path[512];
  json_t *root = NULL, *cases = NULL, *item = NULL;
  mgl_tokenizer *of_folder = NULL;
  gguf_writer w = {0};
  (void)snprintf(path, sizeof path, MGL_TEST_DATA "/tokenizer/%s.json", f->file);
  MUST(mgl_json_read(path, 1 << 20, &root, &err));
  (void)snprintf(path, sizeof path, MGL_TEST_DATA "/tokenizer/%s.cases.json", f->file);
  MUST(mgl_json_read(path, 1 << 20, &cases, &err));
  if (f->digits) {
    json_t *stages = json_pack("{ss,s[{ss,sb},{ss,sb,sb}]}", "type", "Sequence", "pretokenizers",
                               "type", "Digits", "individual_digits", 1, "type", "ByteLevel",
                               "add_prefix_space", 0, "use_regex", 1);
    assert_int_equal(json_object_set_new(root, "pre_tokenizer", stages), 0);
  }
  write_tokenizer(&w, root, f);
  mgl_tokenizer *of_file = read_tokenizer(&w);
  MUST(mgl_tokenizer_read((mgl_json_object){.object = root, .where = "t"}, &of_folder, &err));
  assert_int_equal(mgl_tokenizer_vocab_size(of_file), mgl_tokenizer_vocab_size(of_folder));
  const json_t *texts = json_object_get(cases, "encode");
  assert_true(json_array_size(texts) > 100);
  size_t i;
  json_array_foreach(texts, i, item) {
    const json_t *text = json_array_get(item, 0);
    for (int plain = 0; plain < 2; plain++) {
      mgl_encode_options options = {.add_special = true, .plain_special = plain};
      compare(of_file, of_folder, json_string_value(text), json_string_length(text), options);
    }
  }
  mgl_tokenizer_close(of_file);
  mgl_tokenizer_close(of_folder);
  mgl_text_free(&w);
  json_decref(root);
  json_decref(cases);
}

static void knows_pretokenizers_by_name(void **state) {
  (void)state;
  static const family families[] = {{"gpt2", "gpt-2", -1, false},
                                    {"gpt2", "smollm", -1, true},
                                    {"gpt2", "starcoder", -1, true},
                                    {"qwen", "qwen2", -1, false},
                                    {"qwen", "deepseek-r1-qwen", -1, false},
                                    {"llama3", "llama-bpe", 800, false},
                                    {"llama3", "llama-v3", 800, false},
                                    {"llama3", "llama3", 800, false},
                                    {"tekken", "tekken", 701, false},
                                    {"o200k", "gpt-4o", -1, false}};
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    print_message("%s\n", families[i].pre);
    check_family(&families[i]);
  }
}

// --- files -----------------------------------------------------------------------------------

static void check_ids(const mgl_tokenizer *tokenizer, const char *text, const json_t *expected) {
  mgl_token_list ids = {0};
  mgl_encode_options options = {.add_special = true, .plain_special = true};
  MUST(mgl_tokenizer_encode(tokenizer, text, strlen(text), options, &ids, &err));
  bool same = ids.count == json_array_size(expected);
  for (size_t i = 0; same && i < ids.count; i++) {
    same = ids.ids[i] == json_integer_value(json_array_get(expected, i));
  }
  if (!same) {
    fail_msg("other ids than sentencepiece's of \"%s\"", text);
  }
  mgl_token_list_free(&ids);
}

static void cuts_pieces_as_sentencepiece_does(void **state) {
  (void)state;
  mgl_model_folder folder;
  json_t *cases = NULL;
  MUST(mgl_model_folder_open(CASES "pieces.gguf", MGL_NEED_TOKENIZER, &folder, &err));
  MUST(mgl_json_read(CASES "pieces.json", 1 << 20, &cases, &err));
  assert_true(json_array_size(cases) > 100);
  for (size_t i = 0; i < json_array_size(cases); i++) {
    const json_t *item = json_array_get(cases, i);
    check_ids(folder.tokenizer, json_string_value(json_array_get(item, 0)),
              json_array_get(item, 1));
  }
  assert_string_equal(folder.bos_token, "<s>");
  json_decref(cases);
  mgl_model_folder_close(&folder);
}

static void reads_text_parts_as_the_folder_has_them(void **state) {
  (void)state;
  mgl_model_folder file, folder;
  char *text = NULL;
  size_t bytes = 0;
  const mgl_encode_options options = {.add_special = true};
  static const char chat[] = "<|im_start|>user\nHi, 12 + 35?<|im_end|>\n\xcc\x81 e\xcc\x81 \xff";
  MUST(mgl_model_folder_open(CASES "demo_vocabulary.gguf", MGL_NEED_CHAT_TEMPLATE, &file, &err));
  MUST(mgl_model_folder_open(MGL_DEMO_FOLDER, MGL_NEED_CHAT_TEMPLATE, &folder, &err));
  assert_int_equal(mgl_tokenizer_vocab_size(file.tokenizer),
                   mgl_tokenizer_vocab_size(folder.tokenizer));
  compare(file.tokenizer, folder.tokenizer, chat, sizeof chat - 1, options);
  for (int32_t id = 0; id < (int32_t)mgl_tokenizer_vocab_size(folder.tokenizer); id++) {
    mgl_text of_file = {0}, of_folder = {0};
    MUST(mgl_tokenizer_decode(file.tokenizer, &id, 1, true, &of_file, &err));
    MUST(mgl_tokenizer_decode(folder.tokenizer, &id, 1, true, &of_folder, &err));
    assert_int_equal(of_file.bytes, of_folder.bytes);
    assert_true(of_file.bytes == 0 || memcmp(of_file.data, of_folder.data, of_file.bytes) == 0);
    mgl_text_free(&of_file);
    mgl_text_free(&of_folder);
  }
  MUST(mgl_file_read(MGL_DEMO_FOLDER "/README.md", 1 << 20, &text, &bytes, &err));
  compare(file.tokenizer, folder.tokenizer, text, bytes, options);
  assert_string_equal(file.eos_token, folder.eos_token);
  assert_non_null(file.chat_template);
  assert_int_equal(file.generation.eos_count, folder.generation.eos_count);  // <|endoftext|> too
  mgl_free(text);
  mgl_model_folder_close(&file);
  mgl_model_folder_close(&folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(knows_pretokenizers_by_name),
      cmocka_unit_test(cuts_pieces_as_sentencepiece_does),
      cmocka_unit_test(reads_text_parts_as_the_folder_has_them),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
