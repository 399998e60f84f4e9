// Opening a Hugging Face model folder: which files it has, which are needed, what they say.
//
// config.json is always read; generation_config.json when it is there; the rest on request, in the
// order tokenizer, chat template, weights, so that the cheap errors come first. Rejected: opening
// everything always (a chat template outside the supported subset must not keep a caller from
// running raw prompts).
#include "model/model_folder.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "model/expert_weights.h"
#include "model/fused_weights.h"
#include "model/gguf_folder.h"
#include "model/oss_weights.h"
#include "model/packed_weights.h"

enum {
  MAX_CONFIG_BYTES = 4 * 1024 * 1024,
  MAX_TOKENIZER_CONFIG_BYTES = 32 * 1024 * 1024,  // has every added token
};

#define FOLDER_HINT \
  "expected a folder with config.json, tokenizer.json and *.safetensors, or a GGUF file"

// The path of a file of the folder; *out is NULL (and nothing to free) when it does not exist.
static mgl_status find_file(const char *folder, const char *name, char **out, mgl_error *err) {
  mgl_file_kind kind = MGL_FILE_ABSENT;
  MGL_TRY(mgl_path_join(folder, name, out, err));
  mgl_status status = mgl_file_find(*out, &kind, err);
  if (status != MGL_OK || kind == MGL_FILE_ABSENT) {
    mgl_free(*out);
    *out = NULL;
  }
  return status;
}

static mgl_status check_folder(const char *path, mgl_file_kind kind, mgl_error *err) {
  if (kind == MGL_FILE_ABSENT) {
    return mgl_error_set(err, MGL_ERR_IO, "%s does not exist: " FOLDER_HINT, path);
  }
  if (kind != MGL_FILE_FOLDER) {
    return mgl_error_set(err, MGL_ERR_IO, "%s is a file: " FOLDER_HINT, path);
  }
  return MGL_OK;
}

// --- configuration -------------------------------------------------------------------------------

static mgl_status read_config(mgl_model_folder *folder, mgl_error *err) {
  char *path = NULL;
  char *text = NULL;
  size_t bytes = 0;
  MGL_TRY(find_file(folder->path, "config.json", &path, err));
  if (path == NULL) {
    return mgl_error_set(err, MGL_ERR_IO, "%s has no config.json: " FOLDER_HINT, folder->path);
  }
  mgl_status status = mgl_file_read(path, MAX_CONFIG_BYTES, &text, &bytes, err);
  if (status == MGL_OK) {
    status = mgl_config_parse(text, bytes, path, &folder->config, &folder->generation, err);
  }
  mgl_free(text);
  mgl_free(path);
  return status;
}

static mgl_status read_generation_config(mgl_model_folder *folder, mgl_error *err) {
  char *path = NULL;
  char *text = NULL;
  size_t bytes = 0;
  MGL_TRY(find_file(folder->path, "generation_config.json", &path, err));
  if (path == NULL) {
    return MGL_OK;
  }
  mgl_status status = mgl_file_read(path, MAX_CONFIG_BYTES, &text, &bytes, err);
  if (status == MGL_OK) {
    status = mgl_generation_parse(text, bytes, path, folder->config.vocab_size, &folder->generation,
                                  err);
  }
  mgl_free(text);
  mgl_free(path);
  return status;
}

// --- tokenizer and chat template -----------------------------------------------------------------

// Leaves folder->tokenizer NULL where there is none and the caller only wants it.
static mgl_status open_tokenizer(mgl_model_folder *folder, unsigned needs, mgl_error *err) {
  char *path = NULL;
  MGL_TRY(find_file(folder->path, "tokenizer.json", &path, err));
  if (path == NULL && (needs & (MGL_NEED_TOKENIZER | MGL_NEED_CHAT_TEMPLATE)) == 0) {
    return MGL_OK;
  }
  if (path == NULL) {
    return mgl_error_set(err, MGL_ERR_IO,
                         "%s has no tokenizer.json: " FOLDER_HINT
                         "; a tokenizer.model alone is not supported",
                         folder->path);
  }
  mgl_status status = mgl_tokenizer_open(path, &folder->tokenizer, err);
  mgl_free(path);
  return status;
}

// A special token of tokenizer_config.json: a string, or an object with its "content". A copy goes
// to *out; absent leaves it NULL.
static mgl_status read_special_token(mgl_json_object o, const char *key, char **out,
                                     mgl_error *err) {
  const char *content = NULL;
  if (json_is_object(json_object_get(o.object, key))) {
    mgl_json_object token;
    MGL_TRY(mgl_json_opt_object(o, key, &token, err));
    MGL_TRY(mgl_json_opt_string(token, "content", &content, err));
  } else {
    MGL_TRY(mgl_json_opt_string(o, key, &content, err));
  }
  if (content != NULL) {
    *out = mgl_strdup(content);
    if (*out == NULL) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory for \"%s\"", o.where, key);
    }
  }
  return MGL_OK;
}

// "chat_template": the source itself, or a list of {"name", "template"} of which "default" counts.
// *out (borrowed) stays NULL when there is none.
static mgl_status find_template_source(mgl_json_object o, const char **out, mgl_error *err) {
  static const char key[] = "chat_template";
  const json_t *list = json_object_get(o.object, key);
  *out = NULL;
  if (!json_is_array(list)) {
    return mgl_json_opt_string(o, key, out, err);
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    mgl_json_object item = {.object = json_array_get(list, i), .where = o.where};
    const char *name = NULL;
    const char *source = NULL;
    if (!json_is_object(item.object)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: \"%s\": expected a list of {\"name\", \"template\"}", o.where, key);
    }
    MGL_TRY(mgl_json_opt_string(item, "name", &name, err));
    MGL_TRY(mgl_json_opt_string(item, "template", &source, err));
    if (name != NULL && strcmp(name, "default") == 0) {
      *out = source;
    }
  }
  return MGL_OK;
}

// Parses chat_template.jinja, which takes precedence. *out_found tells whether there is one.
static mgl_status open_template_file(mgl_model_folder *folder, bool *out_found, mgl_error *err) {
  char *path = NULL;
  char *source = NULL;
  size_t bytes = 0;
  *out_found = false;
  MGL_TRY(find_file(folder->path, "chat_template.jinja", &path, err));
  if (path == NULL) {
    return MGL_OK;
  }
  *out_found = true;
  mgl_status status = mgl_file_read(path, MGL_TEMPLATE_MAX_SOURCE_BYTES, &source, &bytes, err);
  if (status == MGL_OK) {
    status = mgl_chat_template_parse(source, bytes, path, &folder->chat_template, err);
  }
  mgl_free(source);
  mgl_free(path);
  return status;
}

static mgl_status open_template(mgl_model_folder *folder, mgl_json_object tokenizer_config,
                                mgl_error *err) {
  bool found = false;
  const char *source = NULL;
  MGL_TRY(open_template_file(folder, &found, err));
  if (found) {
    return MGL_OK;
  }
  MGL_TRY(find_template_source(tokenizer_config, &source, err));
  if (source == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s has no chat template: expected chat_template.jinja, or a (default) "
                         "\"chat_template\" in tokenizer_config.json; a base model has none and "
                         "takes plain prompts only",
                         folder->path);
  }
  return mgl_chat_template_parse(source, strlen(source), tokenizer_config.where,
                                 &folder->chat_template, err);
}

// Reads what tokenizer_config.json says, a file that may be absent.
static mgl_status read_tokenizer_config(mgl_model_folder *folder, unsigned needs, mgl_error *err) {
  char *path = NULL;
  json_t *root = NULL;
  mgl_status status = MGL_OK;
  MGL_TRY(find_file(folder->path, "tokenizer_config.json", &path, err));
  mgl_json_object o = {.object = NULL, .where = path};
  if (path != NULL) {
    status = mgl_json_read(path, MAX_TOKENIZER_CONFIG_BYTES, &root, err);
    if (status == MGL_OK && !json_is_object(root)) {
      status = mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected a JSON object", path);
    }
    o.object = root;
  }
  if (status == MGL_OK) {
    status = read_special_token(o, "bos_token", &folder->bos_token, err);
  }
  if (status == MGL_OK) {
    status = read_special_token(o, "eos_token", &folder->eos_token, err);
  }
  if (status == MGL_OK && (needs & (MGL_NEED_CHAT_TEMPLATE | MGL_WANT_TEXT)) != 0) {
    mgl_error reason = {0};
    status = open_template(folder, o, &reason);
    status = mgl_model_folder_lack_template(folder, needs, status, &reason, err);
  }
  json_decref(root);
  mgl_free(path);
  return status;
}

// --- the folder ----------------------------------------------------------------------------------

static mgl_status has_weights(const char *folder, bool *out, mgl_error *err) {
  static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
  *out = false;
  for (size_t i = 0; i < sizeof names / sizeof *names && !*out; i++) {
    char *path = NULL;
    MGL_TRY(find_file(folder, names[i], &path, err));
    *out = path != NULL;
    mgl_free(path);
  }
  return MGL_OK;
}

// Names the weights as programs know them.
static mgl_status name_weights(const mgl_config *config, mgl_checkpoint *checkpoint,
                               mgl_error *err) {
  if (config->family == MGL_FAMILY_GPT_OSS) {
    return mgl_oss_weights_name(config, checkpoint, err);
  }
  MGL_TRY(mgl_packed_weights_name(&config->quantization, checkpoint, err));
  if (config->mixture.expert_count != 0) {
    MGL_TRY(mgl_expert_weights_name(config, checkpoint, err));
  }
  return config->fused_weights ? mgl_fused_weights_name(config, checkpoint, err) : MGL_OK;
}

static mgl_status open_parts(const char *path, unsigned needs, mgl_model_folder *out,
                             mgl_error *err) {
  mgl_file_kind kind = MGL_FILE_ABSENT;
  bool is_gguf = false;
  MGL_TRY(mgl_file_find(path, &kind, err));
  if (kind == MGL_FILE_OTHER) {
    MGL_TRY(mgl_gguf_folder_open(path, needs, &is_gguf, out, err));
  }
  if (is_gguf) {
    return MGL_OK;
  }
  MGL_TRY(check_folder(path, kind, err));
  const unsigned text_needs = MGL_NEED_TOKENIZER | MGL_NEED_CHAT_TEMPLATE | MGL_WANT_TEXT;
  mgl_status status = MGL_OK;
  out->path = mgl_strdup(path);
  if (out->path == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory opening %s", path);
  }
  status = read_config(out, err);
  if (status != MGL_OK) {
    goto fail;
  }
  status = read_generation_config(out, err);
  if (status != MGL_OK) {
    goto fail;
  }
  if ((needs & text_needs) != 0) {
    status = open_tokenizer(out, needs, err);
    if (status != MGL_OK) {
      goto fail;
    }
  }
  if (out->tokenizer != NULL) {
    status = read_tokenizer_config(out, needs, err);
    if (status != MGL_OK) {
      goto fail;
    }
  }
  bool opens_weights = (needs & MGL_NEED_WEIGHTS) != 0;
  if (!opens_weights && (needs & MGL_WANT_WEIGHTS) != 0) {
    status = has_weights(path, &opens_weights, err);
    if (status != MGL_OK) {
      goto fail;
    }
  }
  if (opens_weights) {
    status = mgl_checkpoint_open(path, &out->checkpoint, err);
    if (status == MGL_OK) {
      status = name_weights(&out->config, out->checkpoint, err);
    }
    if (status != MGL_OK) {
      goto fail;
    }
  }
  return MGL_OK;
fail:
  mgl_model_folder_close(out);
  return status;
}

mgl_status mgl_model_folder_open(const char *path, unsigned needs, mgl_model_folder *out,
                                 mgl_error *err) {
  mgl_alloc_budget budget;
  *out = (mgl_model_folder){0};
  mgl_alloc_budget_begin(&budget, MGL_FOLDER_BUDGET_BASE_BYTES);
  mgl_status status = open_parts(path, needs, out, err);
  mgl_alloc_budget_end(&budget);
  if (!budget.refused) {
    return status;
  }
  // Whoever met the refusal could only say that memory was out, or went on without.
  if (status == MGL_OK) {
    mgl_model_folder_close(out);
  }
  uint64_t text_bytes = (budget.limit - MGL_FOLDER_BUDGET_BASE_BYTES) / MGL_ALLOC_BUDGET_FACTOR;
  return mgl_error_set(err, MGL_ERR_LIMIT,
                       "%s: what its files say would take more than %" PRIu64
                       " MiB of memory: expected at most %d MiB, and %d bytes for each of the "
                       "%" PRIu64 " bytes of text read so far",
                       path, budget.limit >> 20, MGL_FOLDER_BUDGET_BASE_BYTES >> 20,
                       MGL_ALLOC_BUDGET_FACTOR, text_bytes);
}

void mgl_model_folder_close(mgl_model_folder *folder) {
  mgl_checkpoint_close(folder->checkpoint);
  mgl_chat_template_destroy(folder->chat_template);
  mgl_tokenizer_close(folder->tokenizer);
  mgl_free(folder->no_chat_template);
  mgl_free(folder->bos_token);
  mgl_free(folder->eos_token);
  mgl_free(folder->path);
  *folder = (mgl_model_folder){0};
}
