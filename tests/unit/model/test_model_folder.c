// Opening whole model folders: what is read, what is missing, and every failure injected once.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "model/chat.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

enum { ALL_NEEDS = MGL_NEED_TOKENIZER | MGL_NEED_WEIGHTS | MGL_NEED_CHAT_TEMPLATE };

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":16,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":300,\"eos_token_id\":257}";
static const char generation[] = "{\"eos_token_id\":[257,256],\"do_sample\":true,\"top_k\":20}";
static const char template_a[] =
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}:{{ m['content'] }}]{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}";
// The template of tokenizer_config.json, as it stands in JSON.
#define TEMPLATE_B "B{% for m in messages %}{{ m.content }}{% endfor %}"

// A byte-level BPE tokenizer without merges: ids 0 to 255 are the bytes in the alphabet's order,
// then the special tokens <s> (256) and </s> (257).
static void write_tokenizer(const temp_folder *folder) {
  mgl_text json = {0};
  mgl_text_append_string(
      &json,
      "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
      "{\"id\":256,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
      "\"normalized\":false,\"special\":true},"
      "{\"id\":257,\"content\":\"</s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
      "\"normalized\":false,\"special\":true}],\"normalizer\":null,"
      "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
      "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
      "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
      "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
      "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
      "\"byte_fallback\":false,\"vocab\":{");
  // GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and up.
  int moved = 0;
  for (int byte = 0; byte < 256; byte++) {
    int printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    int character = printable ? byte : 256 + moved++;
    mgl_text_format(&json, "%s\"\\u%04x\":%d", byte == 0 ? "" : ",", (unsigned)character, byte);
  }
  mgl_text_append_string(&json, "},\"merges\":[]}}");
  assert_int_equal(mgl_text_check(&json, NULL), MGL_OK);
  temp_folder_write(folder, "tokenizer.json", json.data, json.bytes);
  mgl_text_free(&json);
}

static void write_weights(const temp_folder *folder, const char *file, const char *tensor) {
  safetensors_writer writer;
  safetensors_begin(&writer, folder->path, file);
  safetensors_add(&writer, tensor, MGL_DTYPE_BF16, 2, (uint64_t[]){3, 4}, NULL);
  safetensors_finish(&writer);
}

// A folder with every file that is read, the weights in two shards.
static void create_full_folder(temp_folder *folder) {
  temp_folder_create(folder);
  temp_folder_write_text(folder, "config.json", config);
  temp_folder_write_text(folder, "generation_config.json", generation);
  write_tokenizer(folder);
  temp_folder_write_text(folder, "tokenizer_config.json",
                         "{\"bos_token\":{\"content\":\"<s>\",\"lstrip\":false},"
                         "\"eos_token\":\"</s>\",\"chat_template\":\"" TEMPLATE_B "\"}");
  temp_folder_write_text(folder, "chat_template.jinja", template_a);
  write_weights(folder, "w-1.safetensors", "one");
  write_weights(folder, "w-2.safetensors", "two");
  temp_folder_write_text(folder, "model.safetensors.index.json",
                         "{\"weight_map\":{\"one\":\"w-1.safetensors\","
                         "\"two\":\"w-2.safetensors\"}}");
}

static void remove_file(const temp_folder *folder, const char *name) {
  char path[TEMP_PATH_BYTES];
  temp_folder_path(folder, name, path);
  assert_int_equal(unlink(path), 0);
}

// A chat of one question; system may be NULL.
static mgl_status ask(const mgl_model_folder *folder, const char *system, const char *user,
                      mgl_text *out, mgl_error *err) {
  const mgl_chat_message messages[2] = {{"system", system}, {"user", user}};
  size_t first = system == NULL ? 1 : 0;
  mgl_chat chat = {.messages = messages + first, .message_count = 2 - first};
  return mgl_chat_render(folder, &chat, out, err);
}

static void open_folder(const temp_folder *folder, unsigned needs, mgl_model_folder *out) {
  mgl_error err = {0};
  if (mgl_model_folder_open(folder->path, needs, out, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

static void assert_open_fails(const char *path, unsigned needs, const char *in_message) {
  mgl_model_folder opened;
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  mgl_status status = mgl_model_folder_open(path, needs, &opened, &err);
  if (status == MGL_OK || strstr(err.text, in_message) == NULL) {
    fail_msg("status %d \"%s\", expected \"%s\"", status, err.text, in_message);
  }
  assert_null(opened.path);
  assert_null(opened.tokenizer);
  assert_null(opened.chat_template);
  assert_null(opened.checkpoint);
  assert_int_equal(mgl_alloc_live(), live);
  mgl_model_folder_close(&opened);  // closing what did not open is fine
}

static void test_full_folder(void **state) {
  (void)state;
  temp_folder folder;
  mgl_model_folder opened;
  mgl_text chat = {0};
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  create_full_folder(&folder);
  open_folder(&folder, ALL_NEEDS, &opened);
  assert_string_equal(opened.path, folder.path);
  assert_int_equal(opened.config.hidden_size, 8);
  assert_int_equal(opened.generation.eos_count, 2);
  assert_int_equal(opened.generation.eos_ids[1], 256);
  assert_int_equal(opened.generation.top_k, 20);
  assert_string_equal(opened.bos_token, "<s>");
  assert_string_equal(opened.eos_token, "</s>");
  assert_int_equal(mgl_tokenizer_find(opened.tokenizer, "</s>"), 257);
  assert_true(mgl_checkpoint_has(opened.checkpoint, "one"));
  assert_true(mgl_checkpoint_has(opened.checkpoint, "two"));
  mgl_text_append_string(&chat, "before ");
  assert_int_equal(ask(&opened, "be \"brief\"", "h\xc3\xa9\n", &chat, &err), MGL_OK);
  assert_string_equal(chat.data, "before <s>[system:be \"brief\"][user:h\xc3\xa9\n]A:");
  mgl_text_clear(&chat);
  assert_int_equal(ask(&opened, NULL, "", &chat, &err), MGL_OK);
  assert_string_equal(chat.data, "<s>[user:]A:");
  mgl_text_clear(&chat);
  assert_int_equal(ask(&opened, NULL, "ab\xc3(", &chat, &err), MGL_OK);
  assert_string_equal(chat.data, "<s>[user:ab\xef\xbf\xbd(]A:");  // U+FFFD, as in plain prompts
  mgl_text_free(&chat);
  mgl_model_folder_close(&opened);
  assert_int_equal(mgl_alloc_live(), live);
  temp_folder_remove(&folder);
}

// Parts that nobody asked for may be absent or broken.
static void test_needs(void **state) {
  (void)state;
  temp_folder folder;
  mgl_model_folder opened;
  mgl_text chat = {0};
  mgl_error err = {0};
  create_full_folder(&folder);
  temp_folder_write_text(&folder, "chat_template.jinja", "{% broken");
  temp_folder_write_text(&folder, "w-2.safetensors", "broken");
  open_folder(&folder, MGL_NEED_TOKENIZER, &opened);
  assert_non_null(opened.tokenizer);
  assert_null(opened.chat_template);
  assert_null(opened.checkpoint);
  assert_int_equal(ask(&opened, NULL, "x", &chat, &err), MGL_ERR_ARGUMENT);
  mgl_model_folder_close(&opened);
  assert_open_fails(folder.path, MGL_NEED_CHAT_TEMPLATE, "chat_template.jinja");
  assert_open_fails(folder.path, MGL_NEED_WEIGHTS, "w-2.safetensors");
  remove_file(&folder, "tokenizer.json");
  remove_file(&folder, "generation_config.json");
  remove_file(&folder, "tokenizer_config.json");
  open_folder(&folder, 0, &opened);
  assert_null(opened.tokenizer);
  assert_int_equal(opened.generation.eos_count, 1);
  assert_int_equal(opened.generation.eos_ids[0], 257);
  assert_false(opened.generation.do_sample);
  mgl_model_folder_close(&opened);
  assert_open_fails(folder.path, MGL_NEED_TOKENIZER, "has no tokenizer.json");
  temp_folder_remove(&folder);
}

static void test_missing(void **state) {
  (void)state;
  temp_folder folder;
  char path[TEMP_PATH_BYTES];
  temp_folder_create(&folder);
  temp_folder_path(&folder, "nowhere", path);
  assert_open_fails(path, 0, "does not exist: expected a folder with config.json");
  temp_folder_write_text(&folder, "model.bin", "x");
  temp_folder_path(&folder, "model.bin", path);
  assert_open_fails(path, 0, "is a file: expected a folder with config.json");
  assert_open_fails("", 0, "does not exist");
  assert_open_fails(folder.path, ALL_NEEDS, "has no config.json");
  temp_folder_write_text(&folder, "config.json", config);
  assert_open_fails(folder.path, MGL_NEED_WEIGHTS, "found no weights");
  write_tokenizer(&folder);
  assert_open_fails(folder.path, MGL_NEED_CHAT_TEMPLATE, "has no chat template");
  temp_folder_write_text(&folder, "tokenizer_config.json", "{}");
  assert_open_fails(folder.path, MGL_NEED_CHAT_TEMPLATE, "has no chat template");
  temp_folder_remove(&folder);
}

// What is there and cannot be reached is not "missing".
static void test_unreachable(void **state) {
  (void)state;
  static const struct {
    const char *file;
    unsigned needs;
  } cases[] = {{"config.json", 0},
               {"generation_config.json", 0},
               {"tokenizer.json", MGL_NEED_TOKENIZER},
               {"tokenizer_config.json", MGL_NEED_TOKENIZER},
               {"chat_template.jinja", MGL_NEED_CHAT_TEMPLATE},
               {"model.safetensors", MGL_NEED_WEIGHTS}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    temp_folder folder;
    char path[TEMP_PATH_BYTES];
    create_full_folder(&folder);
    temp_folder_path(&folder, cases[i].file, path);
    (void)unlink(path);
    assert_int_equal(symlink("nowhere", path), 0);
    assert_open_fails(folder.path, cases[i].needs, "is a link to nothing");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(cases[i].file, path), 0);
    assert_open_fails(folder.path, cases[i].needs, "Too many levels of symbolic links");
    assert_open_fails(path, 0, "Too many levels of symbolic links");
    temp_folder_remove(&folder);
  }
}

static void test_bad_files(void **state) {
  (void)state;
  static const struct {
    const char *file;
    const char *text;
    const char *in_message;
  } cases[] = {
      {"config.json", "{", "config.json: expected JSON"},
      {"config.json", "", "config.json: expected JSON"},
      {"generation_config.json", "[]", "generation_config.json: expected a JSON object"},
      {"generation_config.json", "{\"eos_token_id\":300}", "below vocab_size (300)"},
      {"tokenizer.json", "{", "tokenizer.json"},
      {"tokenizer_config.json", "[]", "tokenizer_config.json: expected a JSON object"},
      {"tokenizer_config.json", "{\"bos_token\":5}", "\"bos_token\": expected a string"},
      {"tokenizer_config.json", "{\"eos_token\":[]}", "\"eos_token\": expected a string"},
      {"tokenizer_config.json", "{\"eos_token\":{\"content\":1}}", "\"content\""},
      {"tokenizer_config.json", "{\"bos_token\":\"a\\u0000b\"}", "NUL byte"},
      {"tokenizer_config.json", "{\"chat_template\":7}", "\"chat_template\": expected a string"},
      {"tokenizer_config.json", "{\"chat_template\":[\"x\"]}", "a list of {\"name\""},
      {"tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool\",\"template\":\"x\"}]}",
       "has no chat template"},
      {"tokenizer_config.json", "{\"chat_template\":[{\"name\":\"default\",\"template\":1}]}",
       "\"template\": expected a string"},
      {"tokenizer_config.json", "{\"chat_template\":\"{% broken\"}", "tokenizer_config.json"},
      {"model.safetensors", "", "model.safetensors: expected a safetensors file"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    temp_folder folder;
    create_full_folder(&folder);
    remove_file(&folder, "chat_template.jinja");
    temp_folder_write_text(&folder, cases[i].file, cases[i].text);
    assert_open_fails(folder.path, ALL_NEEDS, cases[i].in_message);
    temp_folder_remove(&folder);
  }
}

// Such a tokenizer is fine until one of those ids is used, which the engine refuses.
static void test_vocabulary_too_large(void **state) {
  (void)state;
  temp_folder folder;
  create_full_folder(&folder);
  temp_folder_write_text(&folder, "config.json",
                         "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":16,"
                         "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":257}");
  temp_folder_write_text(&folder, "generation_config.json", "{}");
  mgl_model_folder opened;
  open_folder(&folder, MGL_NEED_TOKENIZER, &opened);
  assert_int_equal(opened.config.vocab_size, 257);
  assert_int_equal(mgl_tokenizer_vocab_size(opened.tokenizer), 258);
  mgl_model_folder_close(&opened);
  temp_folder_remove(&folder);
}

// Writes a file that begins and ends so, and has `count` empty objects in between.
static void write_dense(const temp_folder *folder, const char *name, const char *begin,
                        size_t count, const char *end, bool has_length) {
  char path[TEMP_PATH_BYTES];
  temp_folder_path(folder, name, path);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  uint64_t header_bytes = strlen(begin) + 3 * count + strlen(end) + 2;
  if (has_length) {
    assert_int_equal(fwrite(&header_bytes, sizeof header_bytes, 1, file), 1);
  }
  (void)fputs(begin, file);
  for (size_t i = 0; i < count; i++) {
    (void)fputs("{},", file);
  }
  (void)fputs("{}", file);
  (void)fputs(end, file);
  assert_int_equal(fclose(file), 0);
}

// An index and a header that a reader would take by themselves, and that together take more than
// a folder may: one budget counts for all that is read.
static void test_one_budget(void **state) {
  (void)state;
  temp_folder folder;
  const size_t count = 300000;
  create_full_folder(&folder);
  mgl_model_folder opened;
  write_dense(&folder, "model.safetensors.index.json", "{\"metadata\":[", count,
              "],\"weight_map\":{\"one\":\"w-1.safetensors\",\"two\":\"w-2.safetensors\"}}", false);
  open_folder(&folder, MGL_NEED_WEIGHTS, &opened);
  mgl_model_folder_close(&opened);
  write_dense(&folder, "w-2.safetensors", "{\"one\":[", count, "]}", true);
  assert_open_fails(folder.path, MGL_NEED_WEIGHTS, "expected at most 64 MiB, and 20 bytes for");
  temp_folder_write_text(&folder, "model.safetensors.index.json",
                         "{\"weight_map\":{\"one\":\"w-2.safetensors\"}}");
  assert_open_fails(folder.path, MGL_NEED_WEIGHTS, "w-2.safetensors: tensor \"one\"");
  // A thread's budget ends with the reading.
  void *large = mgl_alloc((size_t)2 * MGL_FOLDER_BUDGET_BASE_BYTES);
  assert_non_null(large);
  mgl_free(large);
  temp_folder_remove(&folder);
}

static void assert_chat(const temp_folder *folder, const char *expected) {
  mgl_model_folder opened;
  mgl_text chat = {0};
  mgl_error err = {0};
  open_folder(folder, MGL_NEED_CHAT_TEMPLATE, &opened);
  if (ask(&opened, NULL, "hi", &chat, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_string_equal(chat.data, expected);
  mgl_text_free(&chat);
  mgl_model_folder_close(&opened);
}

static void test_where_the_template_is(void **state) {
  (void)state;
  temp_folder folder;
  create_full_folder(&folder);
  assert_chat(&folder, "<s>[user:hi]A:");
  remove_file(&folder, "chat_template.jinja");
  assert_chat(&folder, "Bhi");
  temp_folder_write_text(&folder, "tokenizer_config.json",
                         "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
                         "{\"name\":\"default\",\"template\":\"" TEMPLATE_B "\"}]}");
  assert_chat(&folder, "Bhi");
  // Without tokenizer_config.json a template file is enough; its bos_token is then undefined.
  remove_file(&folder, "tokenizer_config.json");
  temp_folder_write_text(&folder, "chat_template.jinja", template_a);
  assert_chat(&folder, "[user:hi]A:");
  temp_folder_remove(&folder);
}

// Opens and uses everything once; what is owned is released whatever fails.
static mgl_status open_and_chat(const char *path, mgl_error *err) {
  mgl_model_folder opened;
  mgl_text chat = {0};
  MGL_TRY(mgl_model_folder_open(path, ALL_NEEDS, &opened, err));
  mgl_status status = ask(&opened, "be brief", "hello", &chat, err);
  if (status == MGL_OK) {
    status = mgl_text_check(&chat, err);
  }
  if (status == MGL_OK) {
    assert_string_equal(chat.data, "<s>[system:be brief][user:hello]A:");
  }
  mgl_text_free(&chat);
  mgl_model_folder_close(&opened);
  return status;
}

static void test_wanted_text(void **state) {
  (void)state;
  temp_folder folder;
  mgl_model_folder opened;
  mgl_text out = {0};
  mgl_error err = {0};
  const mgl_chat_message messages[] = {
      {"user", "one"}, {"assistant", "two\xff"}, {"user", "three"}};
  create_full_folder(&folder);
  temp_folder_write_text(&folder, "chat_template.jinja",
                         "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}");
  open_folder(&folder, MGL_WANT_TEXT, &opened);
  assert_non_null(opened.tokenizer);
  assert_null(opened.no_chat_template);
  assert_null(opened.checkpoint);
  mgl_chat chat = {.messages = messages, .message_count = 3};
  assert_int_equal(mgl_chat_render(&opened, &chat, &out, &err), MGL_OK);
  assert_string_equal(out.data, "user:one;assistant:two\xef\xbf\xbd;user:three;");
  mgl_text_free(&out);
  mgl_chat none = {.messages = messages};
  assert_int_equal(mgl_chat_render(&opened, &none, &out, &err), MGL_ERR_LIMIT);
  mgl_model_folder_close(&opened);
  // A template that cannot be parsed is told when it is used.
  temp_folder_write_text(&folder, "chat_template.jinja", "{% nonsense %}");
  open_folder(&folder, MGL_WANT_TEXT, &opened);
  assert_non_null(opened.tokenizer);
  assert_null(opened.chat_template);
  assert_int_equal(mgl_chat_render(&opened, &chat, &out, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "nonsense"));
  mgl_model_folder_close(&opened);
  // Without a tokenizer there is no text; a damaged one is an error.
  remove_file(&folder, "tokenizer.json");
  open_folder(&folder, MGL_WANT_TEXT, &opened);
  assert_null(opened.tokenizer);
  assert_null(opened.chat_template);
  mgl_model_folder_close(&opened);
  temp_folder_write_text(&folder, "tokenizer.json", "{");
  assert_open_fails(folder.path, MGL_WANT_TEXT, "tokenizer.json");
  temp_folder_remove(&folder);
}

// Makes the Nth operation of one kind fail, for N = 1, 2, ... until there is no Nth operation.
static uint64_t fail_each(const char *path, void (*fail_nth)(uint64_t n), uint64_t (*count)(void)) {
  int64_t live = mgl_alloc_live();
  for (uint64_t n = 1;; n++) {
    mgl_error err = {0};
    fail_nth(n);
    mgl_status status = open_and_chat(path, &err);
    bool failed = count() >= n;
    fail_nth(0);
    if (mgl_alloc_live() != live) {
      fail_msg("failure %llu leaks %lld blocks: %s", (unsigned long long)n,
               (long long)(mgl_alloc_live() - live), err.text);
    }
    if (!failed) {
      assert_int_equal(status, MGL_OK);
      return n - 1;
    }
    if (status == MGL_OK) {
      fail_msg("failure %llu was swallowed", (unsigned long long)n);
    }
    if (err.text[0] == 0 || err.status != status) {
      fail_msg("failure %llu: status %d without a text", (unsigned long long)n, status);
    }
  }
}

static void test_injected_failures(void **state) {
  (void)state;
  temp_folder folder;
  mgl_error err = {0};
  create_full_folder(&folder);
  assert_int_equal(open_and_chat(folder.path, &err), MGL_OK);  // one-time allocations happen here
  uint64_t files = fail_each(folder.path, mgl_file_fail_nth, mgl_file_count);
  uint64_t allocations = fail_each(folder.path, mgl_alloc_fail_nth, mgl_alloc_count);
  print_message("             %llu file operations and %llu allocations failed once\n",
                (unsigned long long)files, (unsigned long long)allocations);
  // 8 files of 3 operations each; no failure was swallowed.
  assert_int_equal(files, 24);
  assert_true(allocations > 500);
  temp_folder_remove(&folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_full_folder), cmocka_unit_test(test_needs),
      cmocka_unit_test(test_missing),     cmocka_unit_test(test_unreachable),
      cmocka_unit_test(test_bad_files),   cmocka_unit_test(test_vocabulary_too_large),
      cmocka_unit_test(test_one_budget),  cmocka_unit_test(test_where_the_template_is),
      cmocka_unit_test(test_wanted_text), cmocka_unit_test(test_injected_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
