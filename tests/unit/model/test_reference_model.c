// The oracle files themselves, before any engine is measured against them: all load, agree with
// themselves, and come out of the real loaders as they went in.
#include "support/reference_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
// cmocka.h needs four of the above
#include <cmocka.h>

#include "base/alloc.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "support/temp_folder.h"

#define REFERENCE_FOLDER MGL_TEST_DATA "/reference"

enum { CONTINUATION_TOKENS = 64 };

static void load(size_t i, mgl_reference *out) {
  mgl_error err = {0};
  if (mgl_reference_load(REFERENCE_FOLDER, MGL_REFERENCE_NAMES[i], out, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

// The last row of logits chose the first token of the continuation, by the stated margin.
static void files_agree_with_themselves(void **state) {
  (void)state;
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i++) {
    mgl_reference reference;
    load(i, &reference);
    assert_int_equal(reference.continuation_count, CONTINUATION_TOKENS);
    const float *last = reference.logits + (reference.position_count - 1) * reference.vocab_size;
    float chosen = last[reference.continuation[0]];
    float second = -INFINITY;
    for (size_t k = 0; k < reference.position_count * reference.vocab_size; k++) {
      assert_true(isfinite(reference.logits[k]));
    }
    for (size_t k = 0; k < reference.vocab_size; k++) {
      if (k != (size_t)reference.continuation[0]) {
        second = fmaxf(second, last[k]);
      }
    }
    // Prompt at once here, through the KV cache there: equal up to fp32 rounding.
    assert_true(fabs((double)(chosen - second) - reference.margins[0]) < 1e-3);
    assert_true(reference.bf16_mean_kl > 0 && reference.bf16_mean_kl < reference.bf16_max_kl);
    bool is_mixture =
        strstr(reference.config_json, "experts") != NULL;  // one may be taken for another
    assert_true(reference.bf16_max_kl < (is_mixture ? 0.5 : 0.05) &&
                reference.bf16_logit_error < 1);
    assert_true(reference.fp32_logit_error < 0.02 * reference.bf16_logit_error);
    size_t decided = 0;
    for (size_t k = 0; k < reference.continuation_count; k++) {
      decided += reference.margins[k] > reference.bf16_logit_error;
    }
    assert_true(decided >= CONTINUATION_TOKENS / 2);
    mgl_reference_reset(&reference);
  }
}

static void compare_tensor(const mgl_reference *reference, const mgl_reference_tensor *expected,
                           const mgl_checkpoint *checkpoint) {
  mgl_error err = {0};
  const mgl_stored_tensor *found = NULL;
  if (expected->is_bytes) {
    found = mgl_checkpoint_raw(checkpoint, expected->name);
    assert_non_null(found);
    assert_string_equal(found->stored_dtype, "U8");
  } else {
    if (mgl_checkpoint_find(checkpoint, expected->name, &found, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(found->dtype, expected->dtype);
  }
  assert_int_equal(found->rank, expected->rank);
  for (uint32_t k = 0; k < expected->rank; k++) {
    assert_int_equal(found->dims[k], expected->dims[k]);
  }
  void *data = NULL;
  size_t bytes = 0;
  if (mgl_reference_draw(reference, expected, &data, &bytes, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(found->bytes, bytes);
  assert_memory_equal(data, found->data, (size_t)found->bytes);
  mgl_free(data);
}

static void compare_folder(const mgl_reference *reference, uint32_t shard_count) {
  mgl_error err = {0};
  temp_folder folder;
  mgl_checkpoint *checkpoint = NULL;
  temp_folder_create(&folder);
  if (mgl_reference_write_folder(reference, folder.path, shard_count, &err) != MGL_OK ||
      mgl_checkpoint_open(folder.path, &checkpoint, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(mgl_checkpoint_tensor_count(checkpoint), reference->tensor_count);
  for (size_t k = 0; k < reference->tensor_count; k++) {
    compare_tensor(reference, &reference->tensors[k], checkpoint);
  }
  mgl_checkpoint_close(checkpoint);
  temp_folder_remove(&folder);
}

static void folders_read_back(void **state) {
  (void)state;
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i++) {
    mgl_reference reference;
    load(i, &reference);
    compare_folder(&reference, i % 4 == 0 ? 3 : 1);
    mgl_reference_reset(&reference);
  }
}

// What the models are to cover between them, seen through the real parser.
static void configs_cover_what_is_supported(void **state) {
  (void)state;
  bool families[MGL_FAMILY_COUNT] = {false};
  bool ratios[9] = {false};
  bool dtypes[MGL_DTYPE_COUNT] = {false};
  bool head_dims[MGL_MAX_HEAD_DIM + 1] = {false};
  bool ties[2] = {false};
  bool ropes[MGL_ROPE_KIND_COUNT] = {false};
  size_t longest = 0;
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i++) {
    mgl_error err = {0};
    mgl_reference reference;
    mgl_config config;
    mgl_generation generation;
    load(i, &reference);
    if (mgl_config_parse(reference.config_json, strlen(reference.config_json), reference.name,
                         &config, &generation, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(config.vocab_size, reference.vocab_size);
    assert_int_equal(config.dtype, reference.tensors[0].dtype);
    assert_int_equal(generation.eos_count, 0);
    assert_true(config.context_tokens >= reference.prompt_count + CONTINUATION_TOKENS);
    assert_true(config.head_count / config.kv_head_count <= 8);
    families[config.family] = true;
    ratios[config.head_count / config.kv_head_count] = true;
    dtypes[config.dtype] = true;
    head_dims[config.head_dim] = true;
    ties[config.tie_word_embeddings] = true;
    ropes[config.rope.kind] = true;
    longest = reference.prompt_count > longest ? reference.prompt_count : longest;
    mgl_reference_reset(&reference);
  }
  for (size_t i = 0; i < MGL_FAMILY_COUNT; i++) {
    assert_true(families[i]);
  }
  for (size_t i = 1; i <= 8; i++) {
    assert_true(ratios[i]);
  }
  assert_true(dtypes[MGL_DTYPE_F32] && dtypes[MGL_DTYPE_F16] && dtypes[MGL_DTYPE_BF16]);
  assert_true(head_dims[64] && head_dims[80] && head_dims[128]);
  assert_true(ties[false] && ties[true]);
  for (size_t i = 0; i < MGL_ROPE_KIND_COUNT; i++) {
    assert_true(ropes[i]);
  }
  assert_true(longest >= 3000);
}

static void divergence_by_hand(void **state) {
  (void)state;
  // Row 0: equal but for a shift, which softmax ignores. Row 1: p = (3/4, 1/4), q = (1/2, 1/2).
  const float reference[] = {1.0f, 2.0f, logf(3.0f), 0.0f};
  float logits[] = {11.0f, 12.0f, 5.0f, 5.0f};
  double expected = 0.75 * log(1.5) + 0.25 * log(0.5);
  mgl_divergence found = mgl_reference_divergence(reference, logits, 2, 2);
  assert_true(fabs(found.max_kl - expected) < 1e-7);
  assert_true(fabs(found.mean_kl - expected / 2) < 1e-7);
  assert_true(fabs(found.max_logit_error - 10) < 1e-6);
  found = mgl_reference_divergence(reference, reference, 2, 2);
  assert_true(fabs(found.max_kl) < 1e-15 && fabs(found.max_logit_error) < 1e-15);
  logits[3] = NAN;
  found = mgl_reference_divergence(reference, logits, 2, 2);
  assert_true(isinf(found.mean_kl) && isinf(found.max_kl) && isinf(found.max_logit_error));
}

// Whichever allocation of a load fails, nothing is left behind. (That each one is also reported is
// up to base/json.h: jansson itself overlooks some failures while it parses and prints.)
static void load_survives_failing_allocations(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  uint64_t asked = UINT64_MAX;
  for (uint64_t n = 1; n <= asked; n += n < 64 ? 1 : 7) {
    mgl_reference reference;
    mgl_error err = {0};
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_reference_load(REFERENCE_FOLDER, "qwen3_7_heads", &reference, &err);
    asked = mgl_alloc_count();
    mgl_alloc_fail_nth(0);
    assert_true(status == MGL_OK || err.text[0] != 0);
    mgl_reference_reset(&reference);
    assert_int_equal(mgl_alloc_live(), live);
    asked = status == MGL_OK ? asked : UINT64_MAX;
  }
}

static void a_missing_reference_is_reported(void **state) {
  (void)state;
  mgl_reference reference;
  mgl_error err = {0};
  assert_int_equal(mgl_reference_load(REFERENCE_FOLDER, "no_such_model", &reference, &err),
                   MGL_ERR_IO);
  assert_non_null(strstr(err.text, "no_such_model.json"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_agree_with_themselves),
      cmocka_unit_test(folders_read_back),
      cmocka_unit_test(configs_cover_what_is_supported),
      cmocka_unit_test(divergence_by_hand),
      cmocka_unit_test(load_survives_failing_allocations),
      cmocka_unit_test(a_missing_reference_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
