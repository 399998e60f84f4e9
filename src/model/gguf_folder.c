// The parts of a GGUF file, in the order in which a folder's are opened.
#include "model/gguf_folder.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "model/gguf.h"
#include "model/gguf_config.h"
#include "model/gguf_tokenizer.h"
#include "model/gguf_weights.h"

static const unsigned TEXT_NEEDS = MGL_NEED_TOKENIZER | MGL_NEED_CHAT_TEMPLATE | MGL_WANT_TEXT;

mgl_status mgl_model_folder_lack_template(mgl_model_folder *folder, unsigned needs,
                                          mgl_status status, const mgl_error *reason,
                                          mgl_error *err) {
  if (status == MGL_OK) {
    return MGL_OK;
  }
  bool is_absent = status == MGL_ERR_UNSUPPORTED || status == MGL_ERR_FORMAT;
  if ((needs & MGL_NEED_CHAT_TEMPLATE) != 0 || !is_absent) {
    return mgl_error_set(err, status, "%s", reason->text);
  }
  folder->no_chat_template = mgl_strdup(reason->text);
  return folder->no_chat_template != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory opening %s", folder->path);
}

// What people call a mixture of types, by "general.file_type"; NULL: it has no name here.
static const char *mixture_name(uint64_t file_type) {
  static const char *const names[] = {
      [0] = "F32",     [1] = "F16",     [2] = "Q4_0",    [3] = "Q4_1",    [7] = "Q8_0",
      [8] = "Q5_0",    [9] = "Q5_1",    [10] = "Q2_K",   [11] = "Q3_K_S", [12] = "Q3_K_M",
      [13] = "Q3_K_L", [14] = "Q4_K_S", [15] = "Q4_K_M", [16] = "Q5_K_S", [17] = "Q5_K_M",
      [18] = "Q6_K",   [21] = "Q2_K_S", [25] = "IQ4_NL", [30] = "IQ4_XS", [32] = "BF16"};
  return file_type < sizeof names / sizeof *names ? names[file_type] : NULL;
}

// The format for reports, and the form of weights that are drawn in the file's shape.
static mgl_status describe_weights(const mgl_gguf *gguf, mgl_quantization *out, mgl_error *err) {
  const mgl_gguf_type *type = NULL;
  uint64_t file_type = UINT64_MAX;
  MGL_TRY(mgl_gguf_u64(gguf, "general.file_type", &file_type, err));
  out->drawn = mgl_gguf_layer_form(gguf, &type);
  out->method = out->drawn.group != 0 ? MGL_QUANT_GGUF : MGL_QUANT_NONE;
  const char *name = mixture_name(file_type);
  name = name == NULL && type != NULL ? type->name : name;
  (void)snprintf(out->format, sizeof out->format, "GGUF%s%s", name == NULL ? "" : " ",
                 name == NULL ? "" : name);
  return MGL_OK;
}

static mgl_status read_config(const mgl_gguf *gguf, mgl_model_folder *out, mgl_error *err) {
  mgl_json_object o = {.where = gguf->where};
  json_t *json = NULL;
  MGL_TRY(mgl_gguf_config(gguf, &json, err));
  o.object = json;
  mgl_status status = mgl_config_read(o, &out->config, &out->generation, err);
  json_decref(json);
  if (status != MGL_OK) {
    return status;
  }
  MGL_TRY(mgl_gguf_generation(gguf, &json, err));
  o.object = json;
  status = mgl_generation_read(o, out->config.vocab_size, &out->generation, err);
  json_decref(json);
  return status == MGL_OK ? describe_weights(gguf, &out->config.quantization, err) : status;
}

static mgl_status read_template(const mgl_gguf *gguf, mgl_model_folder *out, mgl_error *err) {
  mgl_gguf_string source = {0};
  MGL_TRY(mgl_gguf_text(gguf, "tokenizer.chat_template", &source, err));
  if (source.text == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s has no chat template: expected \"tokenizer.chat_template\"; a base "
                         "model has none and takes plain prompts only",
                         gguf->where);
  }
  return mgl_chat_template_parse(source.text, source.bytes, gguf->where, &out->chat_template, err);
}

static mgl_status read_text(const mgl_gguf *gguf, unsigned needs, mgl_model_folder *out,
                            mgl_error *err) {
  json_t *json = NULL;
  MGL_TRY(mgl_gguf_tokenizer(gguf, &json, err));
  if (json == NULL && (needs & (MGL_NEED_TOKENIZER | MGL_NEED_CHAT_TEMPLATE)) != 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s has no tokenizer: expected \"tokenizer.ggml.model\"", gguf->where);
  }
  if (json == NULL) {
    return MGL_OK;
  }
  mgl_json_object o = {.object = json, .where = gguf->where};
  mgl_status status = mgl_tokenizer_read(o, &out->tokenizer, err);
  json_decref(json);
  if (status != MGL_OK) {
    return status;
  }
  MGL_TRY(mgl_gguf_token_text(gguf, "tokenizer.ggml.bos_token_id", &out->bos_token, err));
  MGL_TRY(mgl_gguf_token_text(gguf, "tokenizer.ggml.eos_token_id", &out->eos_token, err));
  if ((needs & (MGL_NEED_CHAT_TEMPLATE | MGL_WANT_TEXT)) == 0) {
    return MGL_OK;
  }
  mgl_error reason = {0};
  status = read_template(gguf, out, &reason);
  return mgl_model_folder_lack_template(out, needs, status, &reason, err);
}

static mgl_status read_all(const mgl_gguf *gguf, unsigned needs, mgl_file_map *map,
                           mgl_model_folder *out, mgl_error *err) {
  MGL_TRY(read_config(gguf, out, err));
  if ((needs & TEXT_NEEDS) != 0) {
    MGL_TRY(read_text(gguf, needs, out, err));
  }
  bool opens_weights = (needs & MGL_NEED_WEIGHTS) != 0 ||
                       ((needs & MGL_WANT_WEIGHTS) != 0 && gguf->tensor_count != 0);
  return opens_weights ? mgl_gguf_weights_open(gguf, &out->config, map, &out->checkpoint, err)
                       : MGL_OK;
}

// Takes over the mapping, if there is one.
static mgl_status open_bytes(const void *data, size_t bytes, const char *where, unsigned needs,
                             mgl_file_map *map, mgl_model_folder *out, mgl_error *err) {
  mgl_gguf gguf = {0};
  mgl_json_prepare();
  *out = (mgl_model_folder){.path = mgl_strdup(where)};
  mgl_status status = out->path == NULL
                          ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory opening %s", where)
                          : mgl_gguf_parse(data, bytes, out->path, &gguf, err);
  if (status == MGL_OK) {
    status = read_all(&gguf, needs, map, out, err);
  }
  mgl_gguf_free(&gguf);
  mgl_file_map_close(map);  // empty where the checkpoint has it
  if (status != MGL_OK) {
    mgl_model_folder_close(out);
  }
  return status;
}

mgl_status mgl_gguf_folder_parse(const void *data, size_t bytes, const char *where, unsigned needs,
                                 mgl_model_folder *out, mgl_error *err) {
  mgl_file_map none = {0};
  return open_bytes(data, bytes, where, needs, &none, out, err);
}

mgl_status mgl_gguf_folder_open(const char *path, unsigned needs, bool *is_gguf,
                                mgl_model_folder *out, mgl_error *err) {
  size_t length = strlen(path);
  bool is_named = length > 5 && strcmp(path + length - 5, ".gguf") == 0;
  mgl_file_map map = {0};
  mgl_status status = mgl_file_map_open(path, &map, err);
  *is_gguf = is_named || mgl_gguf_is(map.data, map.bytes);
  if (status != MGL_OK || !*is_gguf) {
    mgl_file_map_close(&map);
    return *is_gguf ? status : MGL_OK;  // of no other file is the content of interest
  }
  return open_bytes(map.data, map.bytes, path, needs, &map, out, err);
}
