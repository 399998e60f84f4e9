// Quantised matrices of checkpoints: every spelling against what the library that owns it makes of
// the same tensors (tests/data/forms, made by tools/make_form_cases.py), and damaged ones, each of
// which must give one message that names what is wrong.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "model/packed_weights.h"
#include "support/must.h"

#define CASES MGL_TEST_DATA "/forms/"

static mgl_quantization read_quantization(const json_t *config, mgl_status expected,
                                          mgl_error *error) {
  mgl_quantization quantization;
  json_t *root = json_pack("{s:O}", "quantization_config", config);
  mgl_json_object o = {.object = root, .where = "config.json"};
  assert_int_equal(mgl_quantization_read(o, &quantization, error), expected);
  json_decref(root);
  return quantization;
}

// --- against the libraries -----------------------------------------------------------------------

static void check_case(const char *name, const json_t *config) {
  mgl_file_map map = {0};
  mgl_checkpoint *checkpoint = NULL;
  const mgl_stored_tensor *matrix = NULL, *expected = NULL;
  char path[512];
  (void)snprintf(path, sizeof path, CASES "%s.safetensors", name);
  mgl_quantization quantization = read_quantization(config, MGL_OK, NULL);
  MUST(mgl_file_map_open(path, &map, &err));
  MUST(mgl_checkpoint_parse(map.data, map.bytes, path, &checkpoint, &err));
  MUST(mgl_packed_weights_name(&quantization, checkpoint, &err));
  MUST(mgl_checkpoint_find(checkpoint, "m.weight", &matrix, &err));
  MUST(mgl_checkpoint_find(checkpoint, "expected", &expected, &err));
  uint32_t k = (uint32_t)matrix->dims[1], rows = (uint32_t)expected->dims[0];
  assert_int_equal(k, expected->dims[1]);
  const mgl_form form = matrix->packed->form;
  assert_int_equal(form.dtype, quantization.drawn.dtype);
  size_t row_bytes = mgl_row_layout_of(form, k).bytes;
  unsigned char *made = malloc(matrix->dims[0] * row_bytes);
  float *row = malloc(k * sizeof *row);
  // In two parts, of which the first ends in the middle of what the readers take at once.
  MUST(mgl_packed_rows(matrix, 0, 21, made, &err));
  MUST(mgl_packed_rows(matrix, 21, (uint32_t)matrix->dims[0] - 21, made + 21 * row_bytes, &err));
  for (uint32_t r = 0; r < rows; r++) {
    mgl_row_widen(form, k, made + (matrix->dims[0] - rows + r) * row_bytes, row);
    for (uint32_t i = 0; i < k; i++) {
      float value;
      memcpy(&value, (const char *)expected->data + ((size_t)r * k + i) * sizeof value,
             sizeof value);
      // A product with a scale here and there, and a rounding of the offset. Weights are below 0.3.
      if (!(fabsf(row[i] - value) <= 0x1p-22f)) {
        fail_msg("%s: row %u, column %u: found %.9g, expected %.9g", name, r, i, (double)row[i],
                 (double)value);
      }
    }
  }
  free(row);
  free(made);
  mgl_checkpoint_close(checkpoint);
  mgl_file_map_close(&map);
}

static void every_spelling_is_read(void **state) {
  (void)state;
  json_t *cases = NULL;
  const char *name = NULL;
  json_t *config = NULL;
  MUST(mgl_json_read(CASES "cases.json", 1 << 20, &cases, &err));
  assert_true(json_object_size(cases) >= 22);
  json_object_foreach(cases, name, config) {
    check_case(name, config);
  }
  json_decref(cases);
}

// --- damaged ones --------------------------------------------------------------------------------

typedef struct damaged {
  const char *config;   // of config.json
  const char *tensors;  // "NAME DTYPE DIMS BYTE", separated by ';': all bytes are BYTE
  const char *message;  // a part of it
} damaged;

#define FP8 "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}"
#define CT "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{\"weights\":{}}}}"
#define GPTQ "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32}"
#define AWQ "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32}"

static const damaged damaged_files[] = {
    // scales
    {FP8, "m.weight F8_E4M3 8,256 0", "expected \"m.weight_scale\""},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F32 1,3 0", "found 3 groups"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F32 3,2 0", "a block"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F32 1,1,2 0", "expected scales"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv I32 1,2 0", "expected scales"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F32 1,0", "groups"},
    {FP8, "m.weight F8_E4M3 0,256 0; m.weight_scale_inv F32 1,2 0", "1 to 2147483647 rows"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F32 1,2 255", "scale of row 0, group 0"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F32 1,2 191", "found -1.49"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F16 1,2 124", "scale of row 0"},
    {FP8, "m.weight F8_E4M3 8,256 127; m.weight_scale_inv F32 1,2 0", "found a NaN"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F8_E8M0 1,2 255", "scale of row 0"},
    {FP8, "m.weight F8_E4M3 8,256 0; m.weight_scale_inv F32 1,2 0; m.weight_scale F32 1 0",
     "not known"},
    {FP8, "m.weight_scale_inv F32 1,2 0", "not known"},
    {CT, "m.weight I8 8,64 0", "expected \"m.weight_scale\""},
    {CT, "m.weight I8 8,64 0; m.weight_scale F32 8,3 0", "found 3 groups"},
    {CT, "m.weight I8 8,64 9; m.weight_scale F32 8,1 126", "of at least 0 and of at most 4.15"},
    {CT, "m.weight I8 8,64 0; m.weight_scale F32 8,8 0", "groups of 8 elements"},
    {CT, "m.weight I8 8,64 0; m.weight_scale F32 8,1 0; m.weight_zero_point I8 4,1 0",
     "a zero point I8 for each scale"},
    {CT, "m.weight I8 8,64 0; m.weight_scale F32 8,1 0; m.weight_g_idx I32 64 0", "not known"},
    {CT, "m.weight BF16 8,64 0; m.weight_scale F32 8,1 0", "not known"},
    // packed integers
    {CT, "m.weight_packed I32 8,8 0; m.weight_scale F32 8,2 0", "expected \"m.weight_shape\""},
    {CT, "m.weight_packed I32 8,8 0; m.weight_shape I64 2 0; m.weight_scale F32 8,2 0", "rows"},
    {CT, "m.weight_packed I32 8,8 0; m.weight_shape I64 2 255; m.weight_scale F32 8,2 0", "rows"},
    {CT, "m.weight_packed I32 8,8 0; m.weight_shape I64 3 8; m.weight_scale F32 8,2 0", "as I64"},
    {CT, "m.weight_packed I32 8,8 0; m.weight_shape F32 2 8; m.weight_scale F32 8,2 0", "as I64"},
    {CT, "m.weight_packed I32 8,8 0; m.weight BF16 8,64 0; m.weight_scale F32 8,2 0",
     "is there twice"},
    // floats of 4 bits
    {CT, "m.weight_packed U8 8,32 0; m.weight_scale F8_E4M3 8,4 0", "m.weight_global_scale"},
    {CT,
     "m.weight_packed U8 8,32 0; m.weight_scale F8_E4M3 8,4 127; m.weight_global_scale F32 1 60",
     "scale of row 0"},
    {CT, "m.weight_packed U8 8,32 0; m.weight_scale F8_E4M3 8,4 60; m.weight_global_scale F32 1 0",
     "found inf"},
    {CT, "m.weight_packed U8 8,32 0; m.weight_scale F8_E4M3 8,4 60; m.weight_global_scale F32 2 60",
     "expected one F32"},
    {CT, "m.weight_packed U8 8,32 0; m.weight_scale U8 8,4 0", "a scale for 32"},
    {CT, "m.weight_packed U8 8,32 0; m.weight_scale U8 8,2 255", "scale of row 0"},
    {CT, "m.weight U8 8,32 0; m.weight_scale F8_E4M3 8,4 60", "m.weight_scale_2"},
    // GPTQ and AWQ
    {FP8, "m.qweight I32 8,8 0; m.qzeros I32 2,1 0; m.scales F16 2,8 0", "gptq or awq"},
    {GPTQ, "m.qweight I32 8,8 0; m.scales F16 2,8 0", "expected \"m.qzeros\""},
    {GPTQ, "m.qweight I32 8,8 0; m.qzeros I32 2,1 0", "expected \"m.scales\""},
    {GPTQ, "m.qweight I32 8,8 0; m.qzeros I32 2,1 0; m.scales F16 2,7 0", "scales [groups, rows]"},
    {GPTQ, "m.qweight I32 8,8 0; m.qzeros I32 1,1 0; m.scales F16 2,8 0", "zero points"},
    {GPTQ, "m.qweight I32 8,9 0; m.qzeros I32 2,2 0; m.scales F16 2,9 0", "zero points"},
    {GPTQ, "m.qweight I32 8,8 0; m.qzeros I32 3,1 0; m.scales F16 3,8 0", "found 3 groups"},
    {GPTQ, "m.qweight I32 8,8 0; m.qzeros I32 2,1 0; m.scales F16 2,8 0; m.g_idx I32 63 0",
     "a group I32 for each column"},
    {GPTQ, "m.qweight I32 8,8 0; m.qzeros I32 2,1 0; m.scales F16 2,8 0; m.g_idx I32 64 1",
     "expected a group below 2"},
    {GPTQ, "m.qweight I32 8,8 0; m.qzeros I32 2,1 0; m.scales F16 2,8 0; m.g_idx I32 64 255",
     "expected a group below 2"},
    {GPTQ, "m.qweight I32 8,8 0; m.qzeros I32 2,1 0; m.scales F16 2,8 188", "scale of row 0"},
    {AWQ, "m.qweight I32 64,1 0; m.qzeros I32 2,2 0; m.scales F16 2,8 0", "zero points"},
    {AWQ, "m.qweight I32 64,1 0; m.scales F16 2,8 0", "expected \"m.qzeros\""},
    // what no spelling has
    {CT, "m.weight.absmax F32 8 0", "not known"},
    {CT, "m.weight BF16 8,64 0; m.codebook F32 16 0", "not known"},
    {CT, "m.experts.up_blocks U8 8,2,16 0", "not known"},
};

static size_t dtype_bytes(const char *dtype) {
  return strstr(dtype, "64") != NULL    ? 8
         : strstr(dtype, "32") != NULL  ? 4
         : strstr(dtype, "F16") != NULL ? 2
                                        : 1;
}

// A safetensors file with these tensors. Returns its bytes.
static size_t write_file(const char *tensors, unsigned char *out, size_t room) {
  char header[2048] = "{", copy[1024];
  size_t used = 1, at = 0;
  unsigned char data[16384];
  (void)snprintf(copy, sizeof copy, "%s", tensors);
  char *rest = NULL;
  for (char *item = strtok_r(copy, ";", &rest); item != NULL; item = strtok_r(NULL, ";", &rest)) {
    char name[64], dtype[16], dims[32];
    int byte = 0;
    assert_true(sscanf(item, " %63s %15s %31s %d", name, dtype, dims, &byte) >= 3);
    size_t bytes = dtype_bytes(dtype);
    for (const char *dim = dims; dim != NULL; dim = strchr(dim, ',')) {
      bytes *= strtoul(dim + (*dim == ','), NULL, 10);
      dim += *dim == ',';
    }
    assert_true(at + bytes <= sizeof data);
    memset(data + at, byte, bytes);
    used +=
        (size_t)snprintf(header + used, sizeof header - used,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                         used == 1 ? "" : ",", name, dtype, dims, at, at + bytes);
    at += bytes;
  }
  used += (size_t)snprintf(header + used, sizeof header - used, "}");
  assert_true(8 + used + at <= room);
  memset(out, 0, 8);
  out[0] = (unsigned char)used;
  out[1] = (unsigned char)(used >> 8);
  memcpy(out + 8, header, used);
  memcpy(out + 8 + used, data, at);
  return 8 + used + at;
}

// Names the matrices, and reads one that is there.
static mgl_status open_damaged(const damaged *d, mgl_error *error) {
  unsigned char bytes[32768], *row = NULL;
  mgl_checkpoint *checkpoint = NULL;
  const mgl_stored_tensor *matrix = NULL;
  json_t *config = json_loads(d->config, 0, NULL);
  assert_non_null(config);
  mgl_quantization quantization = read_quantization(config, MGL_OK, error);
  size_t count = write_file(d->tensors, bytes, sizeof bytes);
  MUST(mgl_checkpoint_parse(bytes, count, "file", &checkpoint, &err));
  mgl_status status = mgl_packed_weights_name(&quantization, checkpoint, error);
  if (status == MGL_OK) {
    MUST(mgl_checkpoint_find(checkpoint, "m.weight", &matrix, &err));
    assert_non_null(matrix->packed);
    size_t row_bytes = mgl_row_layout_of(matrix->packed->form, matrix->packed->k).bytes;
    row = malloc(matrix->dims[0] * row_bytes);
    status = mgl_packed_rows(matrix, 0, (uint32_t)matrix->dims[0], row, error);
  }
  free(row);
  json_decref(config);
  mgl_checkpoint_close(checkpoint);
  return status;
}

static void damaged_files_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof damaged_files / sizeof *damaged_files; i++) {
    mgl_error err = {0};
    const damaged *d = &damaged_files[i];
    mgl_status status = open_damaged(d, &err);
    if (status == MGL_OK || strstr(err.text, d->message) == NULL || strchr(err.text, '\n')) {
      fail_msg("case %zu (%s): expected a message with \"%s\", found \"%s\"", i, d->tensors,
               d->message, err.text);
    }
  }
}

static void damaged_configs_are_refused(void **state) {
  (void)state;
  static const char *const configs[][2] = {
      {"{}", "quant_method"},
      {"{\"quant_method\":\"bitsandbytes\"}", "bitsandbytes"},
      {"{\"quant_method\":7}", "quant_method"},
      {"{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "e5m2"},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", "two integers"},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", "two integers"},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":128}", "two integers"},
      {"{\"quant_method\":\"gptq\"}", "bits"},
      {"{\"quant_method\":\"gptq\",\"bits\":3}", "found 3"},
      {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":0}", "group_size"},
      {"{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"}", "marlin"},
      {"{\"quant_method\":\"gptq\",\"bits\":4,\"dynamic\":{\"-:x\":{}}}", "dynamic"},
      {"{\"quant_method\":\"awq\",\"bits\":8}", "found 8"},
      {"{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\"}", "gemv"},
      {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8\"}", "W4A8"},
      {"{\"quant_method\":\"compressed-tensors\"}", "config_groups"},
      {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":3}}", "objects"},
      {"{\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":2}}}}", "2 bits"},
      {"{\"config_groups\":{\"a\":{\"weights\":{\"type\":\"complex\"}}}}", "complex"},
      {"{\"config_groups\":{\"a\":{\"weights\":{}}},\"transform_config\":{\"a\":1}}", "transform"},
      {"{\"config_groups\":{\"a\":{\"weights\":{}}},\"sparsity_config\":{\"format\":\"x\"}}",
       "sparsity"},
  };
  for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
    mgl_error err = {0};
    mgl_quantization quantization;
    json_t *config = json_loads(configs[i][0], 0, NULL);
    json_t *root = json_pack("{s:o}", "quantization_config", config);
    mgl_json_object o = {.object = root, .where = "config.json"};
    assert_int_not_equal(mgl_quantization_read(o, &quantization, &err), MGL_OK);
    if (strstr(err.text, configs[i][1]) == NULL) {
      fail_msg("%s: expected a message with \"%s\", found \"%s\"", configs[i][0], configs[i][1],
               err.text);
    }
    json_decref(root);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_spelling_is_read),
      cmocka_unit_test(damaged_files_are_refused),
      cmocka_unit_test(damaged_configs_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
