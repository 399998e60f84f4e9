// Experts' matrices: their names, and those that are found in tensors of all experts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "model/expert_weights.h"
#include "model/safetensors.h"
#include "support/failing_allocations.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

enum { HIDDEN = 4, INNER = 3, EXPERTS = 5, LAYERS = 3 };

static const mgl_config config = {
    .family = MGL_FAMILY_QWEN3_MOE,
    .hidden_size = HIDDEN,
    .intermediate_size = 7,
    .layer_count = LAYERS,
    .mixture = {.expert_count = EXPERTS, .slots = 2, .inner_size = INNER, .dense_layers = {2}}};

// What a test changes of a valid checkpoint.
typedef struct change {
  uint64_t experts, rows, columns;  // of the last layer's gate_up_proj; 0: as it should be
  uint32_t rank;
  bool no_down;
  bool twice;  // an expert's matrix is there by itself, too
} change;

// Layer 1 has no mixture. Elements count up.
static void write_checkpoint(const temp_folder *folder, change c) {
  static uint16_t numbers[8 * EXPERTS * 2 * INNER * HIDDEN];
  safetensors_writer writer;
  for (uint16_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    numbers[i] = i;
  }
  safetensors_begin(&writer, folder->path, "model.safetensors");
  for (uint32_t layer = 0; layer < LAYERS; layer += 2) {
    char name[96];
    uint64_t gate_up[] = {EXPERTS, 2 * INNER, HIDDEN};
    const uint64_t down[] = {EXPERTS, HIDDEN, INNER};
    if (layer == 2) {
      gate_up[0] = c.experts != 0 ? c.experts : gate_up[0];
      gate_up[1] = c.rows != 0 ? c.rows : gate_up[1];
      gate_up[2] = c.columns != 0 ? c.columns : gate_up[2];
    }
    (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", layer);
    safetensors_add(&writer, name, MGL_DTYPE_BF16, c.rank != 0 ? c.rank : 3, gate_up, numbers);
    (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.down_proj", layer);
    if (!c.no_down) {
      safetensors_add(&writer, name, MGL_DTYPE_BF16, 3, down, numbers);
    }
  }
  if (c.twice) {
    const uint64_t dims[] = {INNER, HIDDEN};
    safetensors_add(&writer, "model.layers.0.mlp.experts.1.up_proj.weight", MGL_DTYPE_BF16, 2, dims,
                    numbers);
  }
  safetensors_finish(&writer);
}

static void names_have_the_number_behind_experts(void **state) {
  (void)state;
  char name[64];
  mgl_expert_weight_name("model.layers.3.mlp.experts.gate_proj.weight", 17, name, sizeof name);
  assert_string_equal(name, "model.layers.3.mlp.experts.17.gate_proj.weight");
  mgl_expert_weight_name("model.layers.3.mlp.shared_expert.up_proj.weight", 0, name, sizeof name);
  assert_string_equal(name, "model.layers.3.mlp.shared_expert.up_proj.weight");
}

static void expect_matrix(const mgl_checkpoint *checkpoint, const char *name, uint64_t first,
                          uint64_t rows, uint64_t columns) {
  const mgl_stored_tensor *found = NULL;
  mgl_error err = {0};
  if (mgl_checkpoint_find(checkpoint, name, &found, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(found->rank, 2);
  assert_int_equal(found->dims[0], rows);
  assert_int_equal(found->dims[1], columns);
  assert_int_equal(found->bytes, rows * columns * 2);
  for (uint64_t j = 0; j < rows * columns; j++) {
    uint16_t element;
    memcpy(&element, (const unsigned char *)found->data + 2 * j, sizeof element);
    assert_int_equal(element, first * columns + j);
  }
}

static void matrices_are_parts_of_the_whole(void **state) {
  (void)state;
  temp_folder folder;
  mgl_checkpoint *checkpoint = NULL;
  mgl_error err = {0};
  temp_folder_create(&folder);
  write_checkpoint(&folder, (change){0});
  assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
  if (mgl_expert_weights_name(&config, checkpoint, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  expect_matrix(checkpoint, "model.layers.0.mlp.experts.0.gate_proj.weight", 0, INNER, HIDDEN);
  expect_matrix(checkpoint, "model.layers.0.mlp.experts.0.up_proj.weight", INNER, INNER, HIDDEN);
  expect_matrix(checkpoint, "model.layers.2.mlp.experts.4.gate_proj.weight", 8 * INNER, INNER,
                HIDDEN);
  expect_matrix(checkpoint, "model.layers.2.mlp.experts.4.up_proj.weight", 9 * INNER, INNER,
                HIDDEN);
  expect_matrix(checkpoint, "model.layers.2.mlp.experts.3.down_proj.weight", 3 * HIDDEN, HIDDEN,
                INNER);
  assert_false(mgl_checkpoint_has(checkpoint, "model.layers.1.mlp.experts.0.up_proj.weight"));
  mgl_checkpoint_close(checkpoint);
  temp_folder_remove(&folder);
}

static void other_tensors_are_refused(void **state) {
  (void)state;
  static const struct {
    change change;
    const char *in_message;
  } cases[] = {
      {{.no_down = true}, "experts.down_proj\" is missing"},
      {{.experts = 4}, "gate_up_proj\": config.json expects a matrix of 30 rows"},
      {{.experts = 6}, "gate_up_proj\": config.json expects a matrix of 30 rows"},
      {{.rows = 7}, "gate_up_proj\": config.json expects a matrix of 30 rows"},
      {{.rank = 1}, "gate_up_proj\": config.json expects a matrix of 30 rows"},
      {{.twice = true}, "model.layers.0.mlp.experts.1.up_proj.weight\" is in two files"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    temp_folder folder;
    mgl_checkpoint *checkpoint = NULL;
    mgl_error err = {0};
    int64_t live = mgl_alloc_live();
    temp_folder_create(&folder);
    write_checkpoint(&folder, cases[i].change);
    assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
    assert_int_equal(mgl_expert_weights_name(&config, checkpoint, &err), MGL_ERR_FORMAT);
    if (strstr(err.text, cases[i].in_message) == NULL) {
      fail_msg("case %zu: \"%s\", expected \"%s\"", i, err.text, cases[i].in_message);
    }
    mgl_checkpoint_close(checkpoint);
    assert_int_equal(mgl_alloc_live(), live);
    temp_folder_remove(&folder);
  }
}

static mgl_status name_once(void *folder, mgl_error *err) {
  mgl_checkpoint *checkpoint = NULL;
  MGL_TRY(mgl_checkpoint_open(((temp_folder *)folder)->path, &checkpoint, err));
  mgl_status status = mgl_expert_weights_name(&config, checkpoint, err);
  mgl_checkpoint_close(checkpoint);
  return status;
}

static void allocation_failures_are_reported(void **state) {
  (void)state;
  temp_folder folder;
  temp_folder_create(&folder);
  write_checkpoint(&folder, (change){0});
  assert_true(fail_each_allocation(name_once, &folder) > 4);
  temp_folder_remove(&folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_have_the_number_behind_experts),
      cmocka_unit_test(matrices_are_parts_of_the_whole),
      cmocka_unit_test(other_tensors_are_refused),
      cmocka_unit_test(allocation_failures_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
