// Cases: GGUF files. tests/unit/model/test_gguf.c tries the small ones by the reader's functions;
// here are whole files through the command, and those that would cost memory or time.
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hostile/hostile.h"
#include "support/write_gguf.h"

#define FILE_NAME "model.gguf"

static FILE *put(gguf_writer *w) {
  FILE *out = hostile_create(FILE_NAME);
  if (fwrite(w->data, 1, w->bytes, out) != w->bytes || w->failed) {
    abort();
  }
  mgl_text_free(w);
  return out;
}

// What every model has, in front of `keys` more; the vocabulary is the caller's.
static void begin(gguf_writer *w, uint64_t tensors, uint64_t keys) {
  static const char *const sizes[] = {"llama.embedding_length", "llama.feed_forward_length",
                                      "llama.block_count", "llama.attention.head_count",
                                      "llama.context_length"};
  gguf_begin(w, 3, tensors, keys + 7);
  gguf_text(w, "general.architecture", "llama");
  for (size_t i = 0; i < 5; i++) {
    gguf_u32(w, sizes[i], i == 3 ? 4 : 64);
  }
  gguf_key(w, "llama.attention.layer_norm_rms_epsilon", MGL_GGUF_F32);
  gguf_number(w, 0x3727c5ac, 4);  // 1e-5
}

// --- small ones ----------------------------------------------------------------------------------

static void no_files(void) {
  (void)mkdir(hostile_folder(FILE_NAME), 0700);
  hostile_refused(NULL, HOSTILE_GGUF, "gguf: a folder");
  (void)rmdir(hostile_path(FILE_NAME));
  (void)mkfifo(hostile_folder(FILE_NAME), 0600);
  hostile_refused(NULL, HOSTILE_GGUF, "gguf: a pipe");
  (void)symlink("/dev/zero", hostile_folder(FILE_NAME));
  hostile_refused(NULL, HOSTILE_GGUF, "gguf: a link to /dev/zero");
  hostile_refused(hostile_create(FILE_NAME), HOSTILE_GGUF, "gguf: empty");
  FILE *out = hostile_create(FILE_NAME);
  (void)fputs("{\"model\":\"none\"}", out);
  hostile_refused(out, HOSTILE_GGUF, "gguf: JSON");
}

static void damaged(void) {
  const mgl_text *sound = hostile_gguf();
  for (size_t cut = 3; cut + 64 < sound->bytes; cut += sound->bytes / 12) {
    FILE *out = hostile_create(FILE_NAME);
    (void)fwrite(sound->data, 1, cut, out);
    hostile_refused(out, HOSTILE_GGUF, "gguf: cut at %zu", cut);
  }
  for (int i = 0; i < 40; i++) {
    FILE *out = hostile_create(FILE_NAME);
    size_t at = i < 20 ? hostile_random(2000) : hostile_random((uint32_t)sound->bytes);
    char byte = (char)hostile_random(256);
    (void)fwrite(sound->data, 1, at, out);
    (void)fwrite(&byte, 1, 1, out);
    (void)fwrite(sound->data + at + 1, 1, sound->bytes - at - 1, out);
    hostile_survived(out, HOSTILE_GGUF, "gguf: byte %zu is %d", at, byte);
  }
}

// Tensors that a model does not have, or has in another shape.
static void wrong_tensors(void) {
  static const struct {
    const char *name;
    uint32_t type, rank;
    uint64_t dims[3], bytes;
  } cases[] = {
      {"token_embd.weight", 0, 2, {64, 8}, 2048},  // and no other
      {"token_embd.weight", 0, 2, {32, 8}, 1024},
      {"token_embd.weight", 0, 1, {64}, 256},
      {"token_embd.weight", 0, 3, {64, 8, 1}, 2048},
      {"token_embd.weight", 24, 2, {64, 8}, 512},
      {"token_embd.weight", 16, 2, {256, 8}, 528},
      {"token_embd.weight", 8, 2, {64, 8}, 544},
      {"blk.64.attn_q.weight", 0, 2, {64, 8}, 2048},
      {"blk.0.ffn_gate_exps.weight", 0, 2, {64, 8}, 2048},
      {"blk.-1.attn_q.weight", 0, 2, {64, 8}, 2048},
      {"blk.00.attn_q.weight", 1, 2, {64, 7}, 896},
      {"blk.0.attn_q.bias", 0, 1, {64}, 256},
      {"blk.1.attn_v.bias", 0, 1, {64}, 256},
      {"blk.0.attn_norm.bias", 0, 1, {64}, 256},
      {"blk.0.ffn_up.bias", 0, 1, {64}, 256},
      {"blk.0.attn_q_norm.weight", 0, 1, {16}, 64},
      {"rope_freqs.weight", 0, 1, {5}, 20},
      {"rope_freqs.weight", 1, 1, {8}, 16},
      {"rope_freqs.weight", 0, 1, {4096}, 16384},
      {"\x1b[31m", 0, 1, {64}, 256},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gguf_writer w = {0};
    begin(&w, 1, 1);
    gguf_u32(&w, "llama.vocab_size", 8);
    gguf_tensor(&w, cases[i].name, cases[i].type, cases[i].rank, cases[i].dims, 0);
    gguf_align(&w, 32);
    gguf_zeros(&w, cases[i].bytes);
    hostile_refused(put(&w), HOSTILE_GGUF_PLAN, "gguf: tensor %.30s, case %zu", cases[i].name, i);
  }
}

// --- large ones ----------------------------------------------------------------------------------

static void many_keys(void) {
  gguf_writer w = {0};
  gguf_begin(&w, 3, 0, 65537);
  for (uint32_t i = 0; i < 65537; i++) {
    char key[16];
    (void)snprintf(key, sizeof key, "k%u", i);
    gguf_u32(&w, key, i);
  }
  hostile_refused(put(&w), HOSTILE_GGUF, "gguf: 65537 keys");
}

static void many_tensors(uint32_t count) {
  gguf_writer w = {0};
  begin(&w, count, 1);
  gguf_u32(&w, "llama.vocab_size", 8);
  for (uint32_t i = 0; i < count; i++) {
    char name[24];
    (void)snprintf(name, sizeof name, "t%u", i);
    gguf_tensor(&w, name, 0, 1, (uint64_t[]){8}, UINT64_C(32) * i);
  }
  gguf_align(&w, 32);
  gguf_zeros(&w, 32 * (size_t)count);
  hostile_refused(put(&w), HOSTILE_GGUF_PLAN, "gguf: %u tensors", count);
}

// `count` tokens of six letters, all normal.
static void write_tokens(gguf_writer *w, uint32_t count) {
  gguf_array(w, "tokenizer.ggml.tokens", MGL_GGUF_STRING, count);
  for (uint32_t i = 0; i < count; i++) {
    char token[8] = "aaaaaa";
    for (uint32_t rest = i, at = 0; at < 6; at++, rest /= 26) {
      token[at] = (char)('a' + rest % 26);
    }
    gguf_string(w, token);
  }
}

static FILE *write_words(uint32_t count, uint32_t merges, const char *merge) {
  gguf_writer w = {0};
  begin(&w, 0, 4);
  gguf_text(&w, "tokenizer.ggml.model", "gpt2");
  gguf_text(&w, "tokenizer.ggml.pre", "qwen2");
  write_tokens(&w, count);
  gguf_array(&w, "tokenizer.ggml.merges", MGL_GGUF_STRING, merges);
  for (uint32_t i = 0; i < merges; i++) {
    gguf_string(&w, merge);
  }
  return put(&w);
}

static void many_words(uint32_t count, uint32_t merges) {
  hostile_refused(write_words(count, merges, "x y"), HOSTILE_GGUF, "gguf: %u tokens, %u merges",
                  count, merges);
}

// All texts of a and b up to a length: each can be cut anywhere.
static void many_cuts(uint32_t most) {
  gguf_writer w = {0};
  uint32_t count = (2u << most) - 2;
  begin(&w, 0, 3);
  gguf_text(&w, "tokenizer.ggml.model", "llama");
  gguf_array(&w, "tokenizer.ggml.tokens", MGL_GGUF_STRING, count);
  for (uint32_t length = 1; length <= most; length++) {
    for (uint32_t i = 0; i < 1u << length; i++) {
      char token[32] = "";
      for (uint32_t at = 0; at < length; at++) {
        token[at] = (i >> at & 1) != 0 ? 'a' : 'b';
      }
      gguf_string(&w, token);
    }
  }
  gguf_array(&w, "tokenizer.ggml.scores", MGL_GGUF_F32, count);
  gguf_zeros(&w, 4 * (size_t)count);
  hostile_survived(put(&w), HOSTILE_GGUF, "gguf: tokens of up to %u a and b", most);
}

// One token as long as the file.
static void long_token(size_t bytes) {
  gguf_writer w = {0};
  begin(&w, 0, 3);
  gguf_text(&w, "tokenizer.ggml.model", "llama");
  gguf_array(&w, "tokenizer.ggml.tokens", MGL_GGUF_STRING, 1);
  gguf_number(&w, bytes, 8);
  for (size_t i = 0; i < bytes; i++) {
    mgl_text_append(&w, "a", 1);
  }
  gguf_array(&w, "tokenizer.ggml.scores", MGL_GGUF_F32, 1);
  gguf_zeros(&w, 4);
  hostile_refused(put(&w), HOSTILE_GGUF, "gguf: a token of %zu bytes", bytes);
}

void hostile_ggufs(void) {
  no_files();
  damaged();
  wrong_tensors();
  many_keys();
  long_token(100000);
  if (hostile_large()) {
    many_tensors(100000);
    many_tensors(262145);
    many_words((1 << 20) + 1, 1);
    many_words(1000, 1 << 20);
    many_words(1000, (1 << 20) + 1);
    hostile_valid(write_words(1 << 20, 0, ""), HOSTILE_GGUF, "gguf: 2^20 tokens");
    many_words(1 << 20, 1);
    many_words(1 << 20, 1 << 20);
    hostile_valid(NULL, HOSTILE_GGUF, NULL);
    many_cuts(14);
    many_cuts(17);
    long_token(40 << 20);
  }
}
