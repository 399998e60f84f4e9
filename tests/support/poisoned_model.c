#include "support/poisoned_model.h"

// cmocka.h wants these first.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "model/config.h"
#include "support/reference_model.h"

// Makes the embedding of `token` a NaN in an f32 model.
static void poison(const temp_folder *folder, uint32_t token, uint32_t hidden) {
  char path[TEMP_PATH_BYTES];
  char header[65536];
  uint64_t header_bytes = 0;
  json_t *root = NULL;
  mgl_error err = {0};
  temp_folder_path(folder, "model.safetensors", path);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fread(&header_bytes, 8, 1, file), 1);
  assert_true(header_bytes < sizeof header);
  assert_int_equal(fread(header, header_bytes, 1, file), 1);
  assert_int_equal(mgl_json_parse(header, header_bytes, "header", &root, &err), MGL_OK);
  const json_t *tensor = json_object_get(root, "model.embed_tokens.weight");
  assert_string_equal(json_string_value(json_object_get(tensor, "dtype")), "F32");
  long begin = (long)json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
  float nan_bits[1] = {(float)(0.0 / 0.0)};
  assert_int_equal(
      fseek(file, 8 + (long)header_bytes + begin + (long)(token * hidden * 4), SEEK_SET), 0);
  assert_int_equal(fwrite(nan_bits, sizeof nan_bits, 1, file), 1);
  assert_int_equal(fclose(file), 0);
  json_decref(root);
}

void poisoned_model_write(const char *test_data, temp_folder *folder) {
  char path[TEMP_PATH_BYTES];
  mgl_reference reference;
  mgl_config config;
  mgl_generation generation;
  mgl_error err = {0};
  temp_folder_create(folder);
  (void)snprintf(path, sizeof path, "%s/reference", test_data);
  assert_int_equal(mgl_reference_load(path, "mistral_f32", &reference, &err), MGL_OK);
  assert_int_equal(mgl_reference_write_folder(&reference, folder->path, 1, &err), MGL_OK);
  assert_int_equal(mgl_config_parse(reference.config_json, strlen(reference.config_json), "config",
                                    &config, &generation, &err),
                   MGL_OK);
  assert_false(config.tie_word_embeddings);
  poison(folder, POISONED_TOKEN, config.hidden_size);
  mgl_reference_reset(&reference);
}
