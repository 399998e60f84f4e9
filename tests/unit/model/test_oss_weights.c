// The experts of gpt-oss: rows that take turns, transposed or in MXFP4, and what is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "model/oss_weights.h"
#include "model/packed_weights.h"
#include "model/safetensors.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

enum { HIDDEN = 64, INNER = 32, EXPERTS = 3, LAYERS = 2, MOST = EXPERTS * 2 * INNER * HIDDEN };

static mgl_config config_of(bool codes) {
  return (mgl_config){.family = MGL_FAMILY_GPT_OSS,
                      .hidden_size = HIDDEN,
                      .layer_count = LAYERS,
                      .mixture = {.expert_count = EXPERTS, .slots = 2, .inner_size = INNER},
                      .quantization = {.method = codes ? MGL_QUANT_MXFP4 : MGL_QUANT_NONE}};
}

// What a test changes of a valid checkpoint: of the tensor whose name ends so in layer 1.
typedef struct change {
  const char *name;
  bool is_left_out, is_twice;
  uint32_t dim;  // which has one more
} change;

typedef struct writer {
  safetensors_writer to;
  bool codes;
  change change;
  uint16_t numbers[MOST];
  unsigned char bytes[MOST];
} writer;

static void add(writer *w, uint32_t layer, const char *name, uint32_t rank, const uint64_t *dims) {
  char text[96];
  uint64_t found[4] = {1, 1, 1, 1};
  const bool is_changed = layer == 1 && w->change.name != NULL && strcmp(w->change.name, name) == 0;
  (void)snprintf(text, sizeof text, "model.layers.%u.mlp.experts.%s", layer, name);
  memcpy(found, dims, rank * sizeof *dims);
  if (is_changed && w->change.is_left_out) {
    return;
  }
  if (is_changed && !w->change.is_twice) {
    found[w->change.dim]++;
  }
  const void *data = is_changed ? NULL : (const void *)w->numbers;
  if (strstr(name, "_blocks") != NULL || strstr(name, "_scales") != NULL) {
    safetensors_add_bytes(&w->to, text, rank, found, is_changed ? NULL : w->bytes);
  } else {
    safetensors_add(&w->to, text, MGL_DTYPE_BF16, rank, found, data);
  }
}

// Elements count up: as bits of bf16; as bytes modulo 251.
static void write_checkpoint(const temp_folder *folder, bool codes, change c) {
  static writer w;
  w = (writer){.codes = codes, .change = c};
  for (uint32_t i = 0; i < MOST; i++) {
    w.numbers[i] = (uint16_t)i;
    w.bytes[i] = (unsigned char)(i % 251);
  }
  safetensors_begin(&w.to, folder->path, "model.safetensors");
  for (uint32_t layer = 0; layer < LAYERS; layer++) {
    add(&w, layer, "gate_up_proj_bias", 2, (const uint64_t[]){EXPERTS, 2 * INNER});
    add(&w, layer, "down_proj_bias", 2, (const uint64_t[]){EXPERTS, HIDDEN});
    const bool twice = c.is_twice && layer == 1;
    if (codes || twice) {
      add(&w, layer, "gate_up_proj_blocks", 4, (const uint64_t[]){EXPERTS, 2 * INNER, 2, 16});
      add(&w, layer, "gate_up_proj_scales", 3, (const uint64_t[]){EXPERTS, 2 * INNER, 2});
      add(&w, layer, "down_proj_blocks", 4, (const uint64_t[]){EXPERTS, HIDDEN, 1, 16});
      add(&w, layer, "down_proj_scales", 3, (const uint64_t[]){EXPERTS, HIDDEN, 1});
    }
    if (!codes || twice) {
      add(&w, layer, "gate_up_proj", 3, (const uint64_t[]){EXPERTS, HIDDEN, 2 * INNER});
      add(&w, layer, "down_proj", 3, (const uint64_t[]){EXPERTS, INNER, HIDDEN});
    }
  }
  safetensors_finish(&w.to);
}

typedef struct fixture {
  temp_folder folder;
  mgl_checkpoint *checkpoint;
} fixture;

static mgl_status open_changed(fixture *f, bool codes, change c, mgl_error *err) {
  const mgl_config config = config_of(codes);
  temp_folder_create(&f->folder);
  write_checkpoint(&f->folder, codes, c);
  assert_int_equal(mgl_checkpoint_open(f->folder.path, &f->checkpoint, err), MGL_OK);
  return mgl_oss_weights_name(&config, f->checkpoint, err);
}

static void close_all(fixture *f) {
  mgl_checkpoint_close(f->checkpoint);
  temp_folder_remove(&f->folder);
}

static const mgl_stored_tensor *find(const fixture *f, const char *name) {
  const mgl_stored_tensor *found = NULL;
  mgl_error err = {0};
  if (mgl_checkpoint_find(f->checkpoint, name, &found, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_non_null(found->packed);
  return found;
}

// Rows of a plain one, in one piece and one by one: element i of row n is that of `at`.
static void expect_plain(const fixture *f, const char *name, uint32_t rows, uint32_t k,
                         uint32_t (*at)(uint32_t row, uint32_t i)) {
  static uint16_t all[MOST];
  uint16_t one[HIDDEN];
  mgl_error err = {0};
  const mgl_stored_tensor *found = find(f, name);
  assert_int_equal(found->dtype, MGL_DTYPE_BF16);
  assert_int_equal(found->dims[0], rows);
  assert_int_equal(mgl_packed_rows(found, 0, rows, all, &err), MGL_OK);
  for (uint32_t n = 0; n < rows; n++) {
    assert_int_equal(mgl_packed_rows(found, n, 1, one, &err), MGL_OK);
    assert_memory_equal(one, all + n * k, k * sizeof *one);
    for (uint32_t i = 0; i < k; i++) {
      assert_int_equal(one[i], at(n, i));
    }
  }
}

static uint32_t gate_of_expert_1(uint32_t row, uint32_t i) {
  return (HIDDEN + i) * 2 * INNER + 2 * row;
}

static uint32_t up_of_expert_2(uint32_t row, uint32_t i) {
  return (2 * HIDDEN + i) * 2 * INNER + 2 * row + 1;
}

static uint32_t down_of_expert_2(uint32_t row, uint32_t i) {
  return (2 * INNER + i) * HIDDEN + row;
}

static uint32_t up_bias(uint32_t row, uint32_t i) {
  return row / INNER * 2 * INNER + 2 * (row % INNER) + 1 + 0 * i;
}

static uint32_t down_bias(uint32_t row, uint32_t i) {
  return row + 0 * i;
}

static void plain_experts_are_transposed(void **state) {
  (void)state;
  fixture f;
  mgl_error err = {0};
  if (open_changed(&f, false, (change){0}, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  const char *at = "model.layers.1.mlp.experts.";
  char name[96];
  (void)snprintf(name, sizeof name, "%s1.gate_proj.weight", at);
  expect_plain(&f, name, INNER, HIDDEN, gate_of_expert_1);
  (void)snprintf(name, sizeof name, "%s2.up_proj.weight", at);
  expect_plain(&f, name, INNER, HIDDEN, up_of_expert_2);
  (void)snprintf(name, sizeof name, "%s2.down_proj.weight", at);
  expect_plain(&f, name, HIDDEN, INNER, down_of_expert_2);
  (void)snprintf(name, sizeof name, "%sup_proj.bias", at);
  expect_plain(&f, name, EXPERTS * INNER, 1, up_bias);
  assert_int_equal(find(&f, name)->rank, 1);
  (void)snprintf(name, sizeof name, "%sdown_proj.bias", at);
  expect_plain(&f, name, EXPERTS * HIDDEN, 1, down_bias);
  close_all(&f);
}

// Every value of a row of codes by the definition of the format.
static void mxfp4_rows_take_turns(void **state) {
  (void)state;
  static const float values[16] = {0,    0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  enum { EXPERT = 2, ROW = 5, GROUPS = HIDDEN / 32 };
  fixture f;
  mgl_error err = {0};
  unsigned char row[256];
  float found[HIDDEN];
  if (open_changed(&f, true, (change){0}, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  const mgl_stored_tensor *up = find(&f, "model.layers.0.mlp.experts.2.up_proj.weight");
  assert_true(mgl_row_layout_of(up->packed->form, HIDDEN).bytes <= sizeof row);
  assert_int_equal(mgl_packed_rows(up, ROW, 1, row, &err), MGL_OK);
  mgl_row_widen(up->packed->form, HIDDEN, row, found);
  const uint32_t stored = EXPERT * 2 * INNER + 2 * ROW + 1;
  for (uint32_t i = 0; i < HIDDEN; i++) {
    uint32_t byte = (stored * HIDDEN / 2 + i / 2) % 251;
    uint32_t scale = (stored * GROUPS + i / 32) % 251;
    float expected = values[i % 2 == 0 ? byte & 15 : byte >> 4];
    for (int power = (int)scale - 127; power != 0; power += power < 0 ? 1 : -1) {
      expected *= power < 0 ? 0.5f : 2;
    }
    assert_true(found[i] == expected);
  }
  close_all(&f);
}

static void others_are_refused(void **state) {
  (void)state;
  static const struct {
    bool codes;
    change change;
    const char *in_message;
  } cases[] = {
      {false, {.name = "gate_up_proj", .is_left_out = true}, "experts.gate_up_proj\" is missing"},
      {false, {.name = "down_proj_bias", .is_left_out = true}, "down_proj_bias\" is missing"},
      {false,
       {.name = "gate_up_proj", .dim = 0},
       "expects BF16 F16 F32 [3, 64, 64], the file has BF16 [4, 64, 64]"},
      {false, {.name = "gate_up_proj", .dim = 2}, "the file has BF16 [3, 64, 65]"},
      {false,
       {.name = "down_proj", .dim = 1},
       "expects BF16 F16 F32 [3, 32, 64], the file has BF16 [3, 33, 64]"},
      {false, {.name = "gate_up_proj_bias", .dim = 1}, "expects BF16 F16 F32 [3, 64]"},
      {true,
       {.name = "gate_up_proj_blocks", .is_left_out = true},
       "gate_up_proj_blocks\" is missing"},
      {true,
       {.name = "gate_up_proj_scales", .is_left_out = true},
       "gate_up_proj_scales\" is missing"},
      {true,
       {.name = "gate_up_proj_scales", .dim = 2},
       "expects U8 [3, 64, 2], the file has U8 [3, 64, 3]"},
      {true,
       {.name = "down_proj_scales", .dim = 1},
       "expects U8 [3, 64, 1], the file has U8 [3, 65, 1]"},
      {true,
       {.name = "down_proj_blocks", .dim = 3},
       "expects U8 [3, 64, 1, 16], the file has U8 [3, 64, 1, 17]"},
      {true, {.name = "gate_up_proj", .is_twice = true}, "gate_up_proj\" is there twice"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fixture f;
    mgl_error err = {0};
    int64_t live = mgl_alloc_live();
    assert_int_equal(open_changed(&f, cases[i].codes, cases[i].change, &err), MGL_ERR_FORMAT);
    if (strstr(err.text, cases[i].in_message) == NULL) {
      fail_msg("case %zu: %s", i, err.text);
    }
    close_all(&f);
    assert_int_equal(mgl_alloc_live(), live);
  }
}

// Groups that do not divide, and a scale that is no number.
static void codes_that_are_no_numbers(void **state) {
  (void)state;
  fixture f;
  mgl_error err = {0};
  unsigned char row[256];
  mgl_config config = config_of(true);
  if (open_changed(&f, true, (change){0}, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  mgl_stored_tensor up = *find(&f, "model.layers.0.mlp.experts.2.up_proj.weight");
  mgl_packed_matrix matrix = *up.packed;
  unsigned char scales[EXPERTS * 2 * INNER * 2];
  memset(scales, 255, sizeof scales);
  matrix.scales.data = scales;
  up.packed = &matrix;
  assert_int_equal(mgl_packed_rows(&up, 0, 1, row, &err), MGL_ERR_FORMAT);
  assert_non_null(
      strstr(err.text, "expected a number of at least 0 and of at most 4.15384e+34, found nan"));
  mgl_checkpoint_close(f.checkpoint);
  assert_int_equal(mgl_checkpoint_open(f.folder.path, &f.checkpoint, &err), MGL_OK);
  config.hidden_size = 72;
  assert_int_equal(mgl_oss_weights_name(&config, f.checkpoint, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "expected a multiple of 32 columns, config.json says 72"));
  close_all(&f);
}

static void survives_failing_allocations(void **state) {
  (void)state;
  const mgl_config config = config_of(true);
  temp_folder folder;
  temp_folder_create(&folder);
  write_checkpoint(&folder, true, (change){0});
  int64_t live = mgl_alloc_live();
  for (uint64_t n = 1; n <= 64; n++) {
    mgl_checkpoint *checkpoint = NULL;
    mgl_error err = {0};
    assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_oss_weights_name(&config, checkpoint, &err);
    uint64_t asked = mgl_alloc_count();
    mgl_alloc_fail_nth(0);
    assert_true(status == MGL_OK || (status == MGL_ERR_MEMORY && err.text[0] != 0));
    assert_int_equal(status == MGL_OK, n > asked);
    mgl_checkpoint_close(checkpoint);
    assert_int_equal(mgl_alloc_live(), live);
  }
  temp_folder_remove(&folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain_experts_are_transposed), cmocka_unit_test(mxfp4_rows_take_turns),
      cmocka_unit_test(others_are_refused),           cmocka_unit_test(codes_that_are_no_numbers),
      cmocka_unit_test(survives_failing_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
