#include "hostile/hostile_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hostile/hostile.h"

void hostile_model_tensor(hostile_model *model, const char *name, const char *dtype,
                          const char *shape, uint64_t begin) {
  mgl_text_format(
      &model->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%zu]}",
      model->header.bytes == 0 ? "{" : ",", name, dtype, shape, begin, model->data.bytes);
}

// In the place of the demo model's file, which the folder may share with it.
static FILE *replace(const char *name) {
  (void)unlink(hostile_path(name));
  FILE *file = fopen(hostile_path(name), "wb");
  if (file == NULL) {
    abort();
  }
  return file;
}

void hostile_model_write(hostile_model *model, const char *config) {
  (void)hostile_folder(NULL);
  FILE *out = replace("model.safetensors");
  mgl_text_append_string(&model->header, "}");
  for (int i = 0; i < 8; i++) {
    (void)fputc((int)(model->header.bytes >> (8 * i) & 255), out);
  }
  (void)fwrite(model->header.data, 1, model->header.bytes, out);
  (void)fwrite(model->data.data, 1, model->data.bytes, out);
  (void)fclose(out);
  out = replace("config.json");
  (void)fputs(config, out);
  (void)fclose(out);
  if (model->header.failed || model->data.failed) {
    abort();
  }
  mgl_text_free(&model->header);
  mgl_text_free(&model->data);
}

bool hostile_ends_with(const char *text, const char *end) {
  size_t bytes = strlen(text), end_bytes = strlen(end);
  return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}
