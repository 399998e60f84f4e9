// Rows of matrices that fuse several: found under the names of their parts, where the file's shapes
// are what config.json says.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "model/fused_weights.h"
#include "support/failing_allocations.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

enum { HIDDEN = 4, QKV_ROWS = 2 * 4 + 2 * 4, INNER = 6, LAYERS = 2 };

static const mgl_config config = {.family = MGL_FAMILY_PHI3,
                                  .hidden_size = HIDDEN,
                                  .intermediate_size = INNER,
                                  .layer_count = LAYERS,
                                  .head_count = 2,
                                  .kv_head_count = 1,
                                  .head_dim = 4,
                                  .fused_weights = true};

// A checkpoint whose elements count up; the last layer's gate_up_proj has `gate_up_rows` rows, none:
// it is missing.
static void write_checkpoint(const temp_folder *folder, uint64_t gate_up_rows) {
  static uint16_t numbers[QKV_ROWS * HIDDEN];
  safetensors_writer writer;
  for (uint16_t i = 0; i < QKV_ROWS * HIDDEN; i++) {
    numbers[i] = i;
  }
  safetensors_begin(&writer, folder->path, "model.safetensors");
  for (int layer = 0; layer < LAYERS; layer++) {
    char name[64];
    uint64_t dims[] = {QKV_ROWS, HIDDEN};
    (void)snprintf(name, sizeof name, "model.layers.%d.self_attn.qkv_proj.weight", layer);
    safetensors_add(&writer, name, MGL_DTYPE_BF16, 2, dims, numbers);
    dims[0] = layer + 1 < LAYERS ? 2 * INNER : gate_up_rows;
    (void)snprintf(name, sizeof name, "model.layers.%d.mlp.gate_up_proj.weight", layer);
    if (dims[0] != 0) {
      safetensors_add(&writer, name, MGL_DTYPE_BF16, 2, dims, numbers);
    }
  }
  safetensors_finish(&writer);
}

static void parts_are_rows_of_the_whole(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint64_t first, rows;
  } parts[] = {{"model.layers.1.self_attn.q_proj.weight", 0, 8},
               {"model.layers.1.self_attn.k_proj.weight", 8, 4},
               {"model.layers.0.self_attn.v_proj.weight", 12, 4},
               {"model.layers.0.mlp.gate_proj.weight", 0, INNER},
               {"model.layers.1.mlp.up_proj.weight", INNER, INNER}};
  temp_folder folder;
  mgl_checkpoint *checkpoint = NULL;
  mgl_error err = {0};
  temp_folder_create(&folder);
  write_checkpoint(&folder, 2 * INNER);
  assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
  assert_int_equal(mgl_fused_weights_name(&config, checkpoint, &err), MGL_OK);
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    const mgl_stored_tensor *found = NULL;
    if (mgl_checkpoint_find(checkpoint, parts[i].name, &found, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(found->dtype, MGL_DTYPE_BF16);
    assert_int_equal(found->rank, 2);
    assert_int_equal(found->dims[0], parts[i].rows);
    assert_int_equal(found->dims[1], HIDDEN);
    assert_int_equal(found->bytes, parts[i].rows * HIDDEN * 2);
    for (uint64_t j = 0; j < parts[i].rows * HIDDEN; j++) {
      uint16_t element;
      memcpy(&element, (const unsigned char *)found->data + 2 * j, sizeof element);
      assert_int_equal(element, parts[i].first * HIDDEN + j);
    }
  }
  assert_true(mgl_checkpoint_has(checkpoint, "model.layers.0.self_attn.qkv_proj.weight"));
  mgl_checkpoint_close(checkpoint);
  temp_folder_remove(&folder);
}

static void other_shapes_are_refused(void **state) {
  (void)state;
  static const struct {
    uint64_t rows;
    const char *message;
  } cases[] = {
      {0, "\"model.layers.1.mlp.gate_up_proj.weight\" is missing"},
      {2 * INNER - 1, "config.json expects a matrix of 12 rows, the file has rank 2 and 11"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    temp_folder folder;
    mgl_checkpoint *checkpoint = NULL;
    mgl_error err = {0};
    temp_folder_create(&folder);
    write_checkpoint(&folder, cases[i].rows);
    assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
    assert_int_equal(mgl_fused_weights_name(&config, checkpoint, &err), MGL_ERR_FORMAT);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\", found \"%s\"", cases[i].message, err.text);
    }
    mgl_checkpoint_close(checkpoint);
    temp_folder_remove(&folder);
  }
}

static mgl_status name_once(void *folder, mgl_error *err) {
  mgl_checkpoint *checkpoint = NULL;
  MGL_TRY(mgl_checkpoint_open(((temp_folder *)folder)->path, &checkpoint, err));
  mgl_status status = mgl_fused_weights_name(&config, checkpoint, err);
  mgl_checkpoint_close(checkpoint);
  return status;
}

static void allocation_failures_are_reported(void **state) {
  (void)state;
  temp_folder folder;
  temp_folder_create(&folder);
  write_checkpoint(&folder, 2 * INNER);
  assert_true(fail_each_allocation(name_once, &folder) > 4);
  temp_folder_remove(&folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parts_are_rows_of_the_whole),
      cmocka_unit_test(other_shapes_are_refused),
      cmocka_unit_test(allocation_failures_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
