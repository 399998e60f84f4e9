// GGUF files: what PyPI's gguf wrote is read as it reads it (tests/data/gguf, made by
// tools/make_gguf_cases.py), and damaged files each give one message that names what is wrong.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "model/gguf.h"
#include "model/gguf_blocks.h"
#include "model/gguf_folder.h"
#include "support/must.h"
#include "support/write_gguf.h"

#define CASES MGL_TEST_DATA "/gguf/"

// --- dequantisation ------------------------------------------------------------------------------

static void check_type(const mgl_gguf_tensor *tensor, const mgl_gguf_tensor *expected) {
  const mgl_gguf_coding *coding = mgl_gguf_coding_of(tensor->type);
  assert_non_null(coding);
  assert_int_equal(coding->block, tensor->type->block);
  const uint32_t k = (uint32_t)tensor->dims[1], groups = coding->block / coding->form.group;
  const size_t row_bytes = mgl_row_layout_of(coding->form, k).bytes;
  const size_t stored_bytes = tensor->bytes / tensor->dims[0];
  uint8_t *codes = malloc(k);
  float *scales = malloc(k * sizeof *scales), *offsets = malloc(k * sizeof *offsets);
  float *values = malloc(k * sizeof *values);
  void *row = malloc(row_bytes);
  for (uint32_t r = 0; r < tensor->dims[0]; r++) {
    for (uint32_t b = 0; b < k / coding->block; b++) {
      coding->decode(tensor->data + r * stored_bytes + b * tensor->type->block_bytes,
                     codes + b * coding->block, scales + b * groups, offsets + b * groups);
    }
    mgl_row_write(coding->form, k, codes, scales, offsets, row);
    mgl_row_widen(coding->form, k, row, values);
    // Bit for bit, signs of zeros too.
    assert_memory_equal(values, expected->data + r * k * sizeof *values, k * sizeof *values);
  }
  free(row);
  free(values);
  free(offsets);
  free(scales);
  free(codes);
}

static void dequantises_as_gguf_does(void **state) {
  (void)state;
  mgl_file_map map;
  mgl_gguf gguf;
  size_t checked = 0;
  MUST(mgl_file_map_open(CASES "types.gguf", &map, &err));
  MUST(mgl_gguf_parse(map.data, map.bytes, "types.gguf", &gguf, &err));
  for (size_t i = 0; i < gguf.tensor_count; i++) {
    char name[64];
    const mgl_gguf_tensor *tensor = &gguf.tensors[i];
    (void)snprintf(name, sizeof name, "%s.expected", tensor->type->name);
    if (mgl_gguf_string_is(tensor->name, tensor->type->name)) {
      const mgl_gguf_tensor *expected = mgl_gguf_find_tensor(&gguf, name);
      assert_non_null(expected);
      check_type(tensor, expected);
      checked++;
    }
  }
  assert_int_equal(checked, 13);
  mgl_gguf_free(&gguf);
  mgl_file_map_close(&map);
}

// --- damage --------------------------------------------------------------------------------------

// A file of one tensor [2, 4] in F32 and an architecture: what the cases below damage.
static void write_sound(gguf_writer *w) {
  gguf_begin(w, 3, 1, 2);
  gguf_text(w, "general.architecture", "llama");
  gguf_u32(w, "general.alignment", 64);
  gguf_tensor(w, "a", 0, 2, (uint64_t[]){4, 2}, 0);
  gguf_align(w, 64);
  gguf_zeros(w, 32);
}

static void expect(gguf_writer *w, const char *name, const char *part) {
  mgl_gguf gguf;
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  mgl_status status = mgl_gguf_parse(w->data, w->bytes, "m.gguf", &gguf, &err);
  if (part == NULL) {
    assert_int_equal(status, MGL_OK);
    mgl_gguf_free(&gguf);
  } else if (status == MGL_OK || strstr(err.text, part) == NULL ||
             strstr(err.text, "m.gguf") == NULL) {
    fail_msg("%s: expected \"%s\", found \"%s\"", name, part, err.text);
  }
  assert_int_equal(mgl_alloc_live(), live);
  mgl_text_free(w);
}

// A file that is `key` with this value, then cut or continued by the caller.
static void write_value(gguf_writer *w, uint32_t kind, uint64_t value, size_t bytes) {
  gguf_begin(w, 3, 0, 1);
  gguf_key(w, "k", kind);
  gguf_number(w, value, bytes);
}

static void refuses_damaged_metadata(void **state) {
  (void)state;
  gguf_writer w = {0};
  mgl_text_append_string(&w, "GG");
  expect(&w, "too short", "the file ends at 2");
  gguf_begin(&w, 1, 0, 0);
  expect(&w, "version 1", "version 2 or 3, found version 1");
  gguf_begin(&w, 0x03000000, 0, 0);
  expect(&w, "big-endian", "big-endian");
  gguf_begin(&w, 3, UINT64_MAX, 0);
  expect(&w, "tensors without end", "a number of tensors");
  gguf_begin(&w, 3, 1000, 0);
  expect(&w, "more tensors than bytes", "a number of tensors");
  gguf_begin(&w, 3, 0, UINT64_C(1) << 40);
  expect(&w, "keys without end", "a number of keys");
  write_value(&w, 13, 0, 8);
  expect(&w, "an unknown type", "expected a type of 0 to 12, found 13");
  write_value(&w, MGL_GGUF_STRING, UINT64_MAX, 8);
  expect(&w, "a string without end", "its length says 18446744073709551615");
  write_value(&w, MGL_GGUF_ARRAY, MGL_GGUF_ARRAY, 4);
  gguf_number(&w, 1, 8);
  expect(&w, "arrays in arrays", "no array itself");
  write_value(&w, MGL_GGUF_ARRAY, MGL_GGUF_U64, 4);
  gguf_number(&w, UINT64_C(1) << 61, 8);
  expect(&w, "an array that overflows", "elements of u64");
  write_value(&w, MGL_GGUF_ARRAY, MGL_GGUF_STRING, 4);
  gguf_number(&w, 3, 8);
  gguf_string(&w, "one");
  expect(&w, "too few strings", "a string of \"k\"");
  gguf_begin(&w, 3, 0, 2);
  gguf_u32(&w, "k", 1);
  gguf_u32(&w, "k", 2);
  expect(&w, "a key twice", "key \"k\" is there twice");
  gguf_begin(&w, 3, 0, 1);
  gguf_key(&w, "", MGL_GGUF_U8);
  gguf_number(&w, 0, 8);
  expect(&w, "an empty key", "expected 1 to 256 bytes");
  for (uint32_t alignment = 0; alignment < 50; alignment += 48) {
    gguf_begin(&w, 3, 0, 1);
    gguf_u32(&w, "general.alignment", alignment);
    expect(&w, "alignment", "expected a power of two");
  }
}

static void refuses_damaged_tensors(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint32_t type, rank;
    uint64_t dims[2], offset;
    const char *part;
  } cases[] = {
      {"a", 0, 2, {4, 2}, 0, NULL},
      {"a", 0, 5, {4, 2}, 0, "at most 4 dimensions, found 5"},
      {"a", 99, 2, {4, 2}, 0, "its type 99 is not known"},
      {"a", 4, 2, {4, 2}, 0, "its type 4 is not known"},
      {"a", 8, 2, {4, 2}, 0, "a multiple of 32 elements (Q8_0)"},
      {"a", 12, 2, {32, 2}, 0, "a multiple of 256 elements (Q4_K)"},
      {"a", 0, 2, {UINT64_C(1) << 40, UINT64_C(1) << 40}, 0, "below 2^64"},
      {"a", 0, 2, {UINT64_MAX, 1}, 0, "below 2^64"},
      {"a", 0, 2, {4, 3}, 0, "is the download complete"},
      {"a", 0, 2, {4, 2}, 32, "there is a hole"},
      {"a", 0, 2, {4, 2}, UINT64_MAX, "there is a hole"},
      {"a", 0, 1, {4, 0}, 0, NULL},
      {"", 0, 2, {4, 2}, 0, "expected 1 to 128 bytes"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gguf_writer w = {0};
    gguf_begin(&w, 3, 1, 0);
    uint64_t dims[5] = {cases[i].dims[0], cases[i].dims[1], 1, 1, 1};
    gguf_tensor(&w, cases[i].name, cases[i].type, cases[i].rank, dims, cases[i].offset);
    gguf_align(&w, 32);
    gguf_zeros(&w, 32);
    expect(&w, cases[i].name, cases[i].part);
  }
  gguf_writer w = {0};
  gguf_begin(&w, 3, 2, 0);
  gguf_tensor(&w, "a", 0, 1, (uint64_t[]){8}, 0);
  gguf_tensor(&w, "a", 0, 1, (uint64_t[]){8}, 32);
  gguf_align(&w, 32);
  gguf_zeros(&w, 64);
  expect(&w, "twice", "tensor \"a\" is there twice");
  gguf_begin(&w, 3, 2, 0);
  gguf_tensor(&w, "a", 0, 1, (uint64_t[]){16}, 0);
  gguf_tensor(&w, "b", 0, 1, (uint64_t[]){8}, 32);
  gguf_align(&w, 32);
  gguf_zeros(&w, 96);
  expect(&w, "overlap", "tensors overlap");
  gguf_begin(&w, 3, 1, 0);
  gguf_tensor(&w, "a", 0, 1, (uint64_t[]){8}, 0);
  gguf_align(&w, 32);
  gguf_zeros(&w, 4096);
  expect(&w, "more data", "the tensors take 32 bytes of data, found 4096");
}

// Cut anywhere, a file is refused; with any byte changed it is refused or read without harm.
static void survives_cuts_and_changes(void **state) {
  (void)state;
  gguf_writer w = {0};
  mgl_gguf gguf;
  mgl_error err;
  write_sound(&w);
  for (size_t bytes = 0; bytes < w.bytes; bytes++) {
    char *copy = malloc(bytes + 1);  // so that a sanitizer sees the end
    memcpy(copy, w.data, bytes);
    assert_int_not_equal(mgl_gguf_parse(copy, bytes, "m", &gguf, &err), MGL_OK);
    free(copy);
  }
  for (size_t at = 0; at < w.bytes; at++) {
    for (unsigned value = 0; value < 256; value += 17) {
      char before = w.data[at];
      w.data[at] = (char)value;
      if (mgl_gguf_parse(w.data, w.bytes, "m", &gguf, &err) == MGL_OK) {
        mgl_gguf_free(&gguf);
      }
      w.data[at] = before;
    }
  }
  expect(&w, "sound", NULL);
}

// --- what a file says ----------------------------------------------------------------------------

// A model's file whose metadata are replaced or left out one by one.
typedef struct change {
  const char *key, *text;  // a text in its place; NULL: left out
  uint32_t number;         // where `text` is "": a number
  const char *part;        // of the message
} change;

// Whether the key is to be written as it was; counts it, or what stands in its place.
static bool keeps(gguf_writer *w, uint64_t *keys, const change *c, const char *key) {
  bool is_same = strcmp(c->key, key) == 0;
  if (is_same && c->text != NULL && c->text[0] != 0) {
    gguf_text(w, key, c->text);
  } else if (is_same && c->text != NULL) {
    gguf_u32(w, key, c->number);
  }
  *keys += !is_same || c->text != NULL;
  return !is_same;
}

// Returns the number of keys.
static uint64_t write_body(gguf_writer *w, const change *c) {
  static const char *const sizes[] = {"llama.embedding_length", "llama.feed_forward_length",
                                      "llama.block_count", "llama.attention.head_count",
                                      "llama.context_length"};
  static const char *const texts[] = {"<unk>", "<s>", "a"};
  static const unsigned char kinds[] = {2, 3, 1};
  uint64_t keys = 2;  // the two that stay as they are
  if (keeps(w, &keys, c, "general.architecture")) {
    gguf_text(w, "general.architecture", "llama");
  }
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (keeps(w, &keys, c, sizes[i])) {
      gguf_u32(w, sizes[i], i == 3 ? 4 : 64);
    }
  }
  gguf_key(w, "llama.attention.layer_norm_rms_epsilon", MGL_GGUF_F32);
  gguf_number(w, 0x3727c5ac, 4);  // 1e-5
  if (keeps(w, &keys, c, "tokenizer.ggml.model")) {
    gguf_text(w, "tokenizer.ggml.model", "llama");
  }
  if (keeps(w, &keys, c, "tokenizer.ggml.tokens")) {
    gguf_array(w, "tokenizer.ggml.tokens", MGL_GGUF_STRING, 3);
    for (size_t i = 0; i < 3; i++) {
      gguf_string(w, texts[i]);
    }
  }
  gguf_array(w, "tokenizer.ggml.token_type", MGL_GGUF_I32, 3);
  for (size_t i = 0; i < 3; i++) {
    gguf_number(w, kinds[i], 4);
  }
  if (keeps(w, &keys, c, "tokenizer.ggml.scores")) {
    gguf_array(w, "tokenizer.ggml.scores", MGL_GGUF_F32, 3);
    gguf_zeros(w, 12);
  }
  // What stood nowhere among them comes last.
  if (c->text != NULL && memmem(w->data, w->bytes, c->key, strlen(c->key)) == NULL) {
    (void)keeps(w, &keys, c, c->key);
  }
  return keys;
}

// An architecture, its sizes and a vocabulary of three tokens; no tensors.
static void write_metadata(gguf_writer *w, const change *c) {
  gguf_writer body = {0};
  uint64_t keys = write_body(&body, c);
  gguf_begin(w, 3, 0, keys);
  mgl_text_append(w, body.data, body.bytes);
  mgl_text_free(&body);
}

static void refuses_what_it_lacks(void **state) {
  (void)state;
  static const change cases[] = {
      {"none", NULL, 0, NULL},  // as it is
      {"general.architecture", "gpt2", 0, "\"gpt2\" is not supported; supported are llama"},
      {"general.architecture", NULL, 0, "supported are llama"},
      {"general.architecture", "", 5, "expected a string, found u32"},
      {"llama.block_count", NULL, 0, "\"llama.block_count\" is missing"},
      {"llama.block_count", "many", 0, "expected a number"},
      {"llama.block_count", "", 4000000000u, "num_hidden_layers"},
      {"llama.attention.head_count", "", 0, "num_attention_heads"},
      {"llama.expert_count", "", 8, "\"llama.expert_count\": a value other than 0"},
      {"llama.attention.sliding_window", "", 8, "a window below the context"},
      {"llama.attention.sliding_window", "", 64, NULL},
      {"llama.rope.dimension_count", "", 8, "a rope of a part of each head"},
      {"llama.rope.scaling.type", "longrope", 0, "\"longrope\" is not supported"},
      {"llama.attention.value_length", "", 8, "a length other than of keys"},
      {"split.count", "", 3, "one of 3 parts"},
      {"tokenizer.ggml.model", "bert", 0, "\"bert\" is not supported; supported are gpt2"},
      {"tokenizer.ggml.model", "gpt2", 0, "the pre-tokeniser \"default\" is not supported"},
      {"tokenizer.ggml.tokens", NULL, 0, "\"llama.vocab_size\" is missing"},
      {"tokenizer.ggml.tokens", "text", 0, "expected an array of string"},
      {"tokenizer.ggml.scores", NULL, 0, "expected as many as tokens (3), found 0"},
      {"tokenizer.ggml.bos_token_id", "", 77, "below vocab_size (3), found 77"},
      {"tokenizer.ggml.bos_token_id", "", 1, NULL},
      {"general.sampling.top_k", "many", 0, "\"top_k\": expected an integer"},
      {"general.sampling.temp", "", 1, NULL},
      {"general.sampling.temp", "", 70000, "\"temperature\": expected"},
      {"general.file_type", "Q8", 0, "\"general.file_type\": expected an integer"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gguf_writer w = {0};
    mgl_model_folder folder;
    mgl_error err = {0};
    write_metadata(&w, &cases[i]);
    int64_t live = mgl_alloc_live();
    mgl_status status =
        mgl_gguf_folder_parse(w.data, w.bytes, "m.gguf", MGL_NEED_TOKENIZER, &folder, &err);
    if (cases[i].part == NULL && status != MGL_OK) {
      fail_msg("%s: %s", cases[i].key, err.text);
    }
    if (cases[i].part != NULL && (status == MGL_OK || strstr(err.text, cases[i].part) == NULL)) {
      fail_msg("%s: expected \"%s\", found \"%s\"", cases[i].key, cases[i].part, err.text);
    }
    if (status == MGL_OK) {
      mgl_model_folder_close(&folder);
    }
    assert_int_equal(mgl_alloc_live(), live);
    mgl_text_free(&w);
  }
}

// --- memory that is out --------------------------------------------------------------------------

// Makes each allocation fail in turn: every time one message, nothing held.
static void fail_allocations(const void *data, size_t bytes, unsigned needs) {
  mgl_status status = MGL_ERR_MEMORY;
  uint64_t n = 0;
  int64_t live = mgl_alloc_live();
  while (status != MGL_OK) {
    mgl_model_folder folder;
    mgl_error err = {0};
    mgl_alloc_fail_nth(++n);
    status = mgl_gguf_folder_parse(data, bytes, "m.gguf", needs, &folder, &err);
    mgl_alloc_fail_nth(0);
    if (status == MGL_OK) {
      mgl_model_folder_close(&folder);
    } else if (status != MGL_ERR_MEMORY) {
      fail_msg("allocation %d: %s", (int)n, err.text);
    }
    if (mgl_alloc_live() != live) {
      fail_msg("allocation %d: %d blocks are left", (int)n, (int)(mgl_alloc_live() - live));
    }
  }
  assert_true(n > 50);
}

static void reports_every_failed_allocation(void **state) {
  (void)state;
  gguf_writer w = {0};
  mgl_file_map map;
  write_metadata(&w, &(change){"tokenizer.chat_template", "{{ messages[0].content }}", 0, NULL});
  fail_allocations(w.data, w.bytes, MGL_WANT_TEXT);
  mgl_text_clear(&w);
  MUST(mgl_file_map_open(CASES "llama_f16.gguf", &map, &err));
  fail_allocations(map.data, map.bytes, MGL_NEED_WEIGHTS);
  mgl_file_map_close(&map);
  mgl_text_free(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dequantises_as_gguf_does), cmocka_unit_test(refuses_damaged_metadata),
      cmocka_unit_test(refuses_damaged_tensors),  cmocka_unit_test(survives_cuts_and_changes),
      cmocka_unit_test(refuses_what_it_lacks),    cmocka_unit_test(reports_every_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
