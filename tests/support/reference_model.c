// Reading the committed oracle values and writing their models as Hugging Face folders; see
// reference_model.h.
//
// Method: one JSON document per model, read field by field into owned arrays, so that no test
// touches JSON. Rejected: keeping the weights of the models in git (12 MB).
#include "support/reference_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "model/dummy_weights.h"
#include "support/must.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

enum {
  MAX_FILE_BYTES = 16 << 20,
  MAX_TOKENS = 1 << 20,
  MAX_SHARD_NAME_BYTES = 64,
};

const char *const MGL_REFERENCE_NAMES[MGL_REFERENCE_COUNT] = {
    "qwen3_tied",
    "qwen3_7_heads",
    "qwen3_5_heads_mha",
    "qwen3_700_tokens",
    "qwen2_3_heads",
    "qwen2_untied",
    "qwen2_f16",
    "qwen2_7_heads_mha",
    "llama_5_heads",
    "llama_linear",
    "llama_llama3_3200_tokens",
    "llama_llama3_f32",
    "llama_f16_large_eps",
    "mistral_80",
    "mistral_f32",
    "mistral_tied_16_heads",
    "llama_biases",
    "qwen3_yarn_biases",
    "llama_yarn",
    "llama_dynamic_long",
    "qwen2_dynamic_passing",
    "llama_longrope_long",
    "mistral_window_700_tokens",
    "mistral_window_f16",
    "qwen2_window_layers",
    "qwen3_window_types",
    "phi3_short",
    "phi3_long_window",
    "phi3_passing",
    "phi_half_rotary",
    "phi_gqa_f32",
    "phi_f16_whole",
    "phi3_plain_f32",
    "qwen3_moe_8_experts",
    "qwen3_moe_512_experts",
    "qwen3_moe_all_f32",
    "qwen3_moe_one_expert",
    "mixtral_2_of_4",
    "mixtral_one_slot_window",
    "qwen2_moe_shared",
    "qwen2_moe_f32",
    "olmoe_whole_norm",
    "glm4_moe_groups",
    "glm4_moe_biases_f32",
    "qwen3_moe_ties",
    "glm4_moe_same_experts",
    "gpt_oss_mxfp4",
    "gpt_oss_bf16",
    "gpt_oss_f32",
    "qwen3_moe_8_of_16",
    "qwen3_moe_dense_between",
    "mixtral_1_of_8",
};

static mgl_status bad_member(mgl_json_object o, const char *key, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_FORMAT,
                       "%s: \"%s\" is missing or malformed; run tools/make_reference.py", o.where,
                       key);
}

static mgl_status no_memory(mgl_json_object o, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory", o.where);
}

static mgl_status read_double(mgl_json_object o, const char *key, double *out, mgl_error *err) {
  if (!mgl_json_has(o, key)) {
    return bad_member(o, key, err);
  }
  return mgl_json_opt_double(o, key, 0, 1e6, out, err);
}

// A list of token ids below vocab_size.
static mgl_status read_tokens(mgl_json_object o, const char *key, size_t vocab_size, int32_t **out,
                              size_t *out_count, mgl_error *err) {
  const json_t *list = json_object_get(o.object, key);
  size_t count = json_array_size(list);
  if (count == 0 || count > MAX_TOKENS) {
    return bad_member(o, key, err);
  }
  int32_t *tokens = mgl_alloc_zeroed(count, sizeof *tokens);
  if (tokens == NULL) {
    return no_memory(o, err);
  }
  *out = tokens;
  *out_count = count;
  for (size_t i = 0; i < count; i++) {
    const json_t *item = json_array_get(list, i);
    json_int_t token = json_integer_value(item);
    if (!json_is_integer(item) || token < 0 || (uint64_t)token >= vocab_size) {
      return bad_member(o, key, err);
    }
    tokens[i] = (int32_t)token;
  }
  return MGL_OK;
}

static mgl_status read_margins(mgl_json_object o, mgl_reference *out, mgl_error *err) {
  const json_t *list = json_object_get(o.object, "margins");
  if (json_array_size(list) != out->continuation_count) {
    return bad_member(o, "margins", err);
  }
  out->margins = mgl_alloc_zeroed(out->continuation_count, sizeof *out->margins);
  if (out->margins == NULL) {
    return no_memory(o, err);
  }
  for (size_t i = 0; i < out->continuation_count; i++) {
    const json_t *item = json_array_get(list, i);
    if (!json_is_number(item) || !(json_number_value(item) >= 0)) {
      return bad_member(o, "margins", err);
    }
    out->margins[i] = json_number_value(item);
  }
  return MGL_OK;
}

// One [name, dtype, [dims]].
static mgl_status read_tensor(mgl_json_object o, const json_t *item, mgl_reference_tensor *out,
                              mgl_error *err) {
  static const char key[] = "tensors";
  const char *name = json_string_value(json_array_get(item, 0));
  const char *dtype = json_string_value(json_array_get(item, 1));
  const json_t *dims = json_array_get(item, 2);
  size_t rank = json_array_size(dims);
  if (name == NULL || dtype == NULL || rank < 1 || rank > 4) {
    return bad_member(o, key, err);
  }
  out->rank = (uint32_t)rank;
  for (size_t i = 0; i < rank; i++) {
    json_int_t dim = json_integer_value(json_array_get(dims, i));
    if (dim < 1 || dim > (1 << 20)) {
      return bad_member(o, key, err);
    }
    out->dims[i] = (uint64_t)dim;
  }
  out->dtype = MGL_DTYPE_COUNT;
  for (int i = 0; i < MGL_DTYPE_COUNT; i++) {
    if (i != MGL_DTYPE_I32 && strcmp(dtype, mgl_dtype_name((mgl_dtype)i)) == 0) {
      out->dtype = (mgl_dtype)i;
    }
  }
  out->is_bytes = strcmp(dtype, "u8") == 0;
  if (out->dtype == MGL_DTYPE_COUNT && !out->is_bytes) {
    return bad_member(o, key, err);
  }
  out->name = mgl_strdup(name);
  return out->name == NULL ? no_memory(o, err) : MGL_OK;
}

static mgl_status read_tensors(mgl_json_object o, mgl_reference *out, mgl_error *err) {
  const json_t *list = json_object_get(o.object, "tensors");
  size_t count = json_array_size(list);
  if (count == 0) {
    return bad_member(o, "tensors", err);
  }
  out->tensors = mgl_alloc_zeroed(count, sizeof *out->tensors);
  if (out->tensors == NULL) {
    return no_memory(o, err);
  }
  out->tensor_count = count;
  for (size_t i = 0; i < count; i++) {
    MGL_TRY(read_tensor(o, json_array_get(list, i), &out->tensors[i], err));
  }
  return MGL_OK;
}

static mgl_status read_config(mgl_json_object o, mgl_reference *out, mgl_error *err) {
  const json_t *config = json_object_get(o.object, "config");
  if (!json_is_object(config)) {
    return bad_member(o, "config", err);
  }
  out->config_json = json_dumps(config, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
  return out->config_json == NULL ? no_memory(o, err) : MGL_OK;
}

static mgl_status read_document(mgl_json_object o, mgl_reference *out, mgl_error *err) {
  uint64_t positions = 0;
  uint64_t vocab = 0;
  MGL_TRY(mgl_json_u64(o, "seed", 0, INT64_MAX, &out->seed, err));
  MGL_TRY(mgl_json_u64(o, "vocab", 1, MAX_TOKENS, &vocab, err));
  out->vocab_size = (size_t)vocab;
  out->router_pairs = json_is_true(json_object_get(o.object, "router_pairs"));
  out->preferred = (uint32_t)json_integer_value(json_object_get(o.object, "preferred"));
  MGL_TRY(read_config(o, out, err));
  MGL_TRY(read_tensors(o, out, err));
  MGL_TRY(read_tokens(o, "prompt", out->vocab_size, &out->prompt, &out->prompt_count, err));
  MGL_TRY(mgl_json_u64(o, "positions", 1, out->prompt_count, &positions, err));
  out->position_count = (size_t)positions;
  MGL_TRY(read_double(o, "bf16_mean_kl", &out->bf16_mean_kl, err));
  MGL_TRY(read_double(o, "bf16_max_kl", &out->bf16_max_kl, err));
  MGL_TRY(read_double(o, "bf16_logit_error", &out->bf16_logit_error, err));
  MGL_TRY(read_double(o, "fp32_logit_error", &out->fp32_logit_error, err));
  MGL_TRY(read_tokens(o, "continuation", out->vocab_size, &out->continuation,
                      &out->continuation_count, err));
  return read_margins(o, out, err);
}

// folder/name + suffix in fresh memory.
static mgl_status data_path(const char *folder, const char *name, const char *suffix, char **out,
                            mgl_error *err) {
  char file_name[TEMP_PATH_BYTES];
  int bytes = snprintf(file_name, sizeof file_name, "%s%s", name, suffix);
  *out = NULL;
  if (bytes < 0 || (size_t)bytes >= sizeof file_name) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "a reference name of %zu bytes", strlen(name));
  }
  return mgl_path_join(folder, file_name, out, err);
}

static mgl_status load_document(const char *folder, const char *name, mgl_reference *out,
                                mgl_error *err) {
  char *path = NULL;
  json_t *document = NULL;
  MGL_TRY(data_path(folder, name, ".json", &path, err));
  mgl_status status = mgl_json_read(path, MAX_FILE_BYTES, &document, err);
  if (status == MGL_OK) {
    status = read_document((mgl_json_object){.object = document, .where = path}, out, err);
  }
  json_decref(document);
  mgl_free(path);
  return status;
}

static mgl_status load_logits(const char *folder, const char *name, mgl_reference *out,
                              mgl_error *err) {
  char *path = NULL;
  char *data = NULL;
  size_t bytes = 0;
  size_t expected = out->position_count * out->vocab_size * sizeof(float);
  MGL_TRY(data_path(folder, name, ".f32", &path, err));
  mgl_status status = mgl_file_read(path, MAX_FILE_BYTES, &data, &bytes, err);
  if (status == MGL_OK && bytes != expected) {
    status = mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: expected %zu bytes (%zu positions x %zu logits), found %zu", path,
                           expected, out->position_count, out->vocab_size, bytes);
  }
  if (status == MGL_OK) {
    out->logits = (float *)(void *)data;  // heap memory: aligned for any type
    data = NULL;
  }
  mgl_free(data);
  mgl_free(path);
  return status;
}

mgl_status mgl_reference_load(const char *folder, const char *name, mgl_reference *out,
                              mgl_error *err) {
  *out = (mgl_reference){0};
  mgl_status status = MGL_OK;
  out->name = mgl_strdup(name);
  if (out->name == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the reference %s", name);
  }
  status = load_document(folder, name, out, err);
  if (status != MGL_OK) {
    goto fail;
  }
  status = load_logits(folder, name, out, err);
  if (status != MGL_OK) {
    goto fail;
  }
  return MGL_OK;
fail:
  mgl_reference_reset(out);
  return status;
}

void mgl_reference_reset(mgl_reference *reference) {
  for (size_t i = 0; i < reference->tensor_count; i++) {
    mgl_free(reference->tensors[i].name);
  }
  mgl_free(reference->tensors);
  mgl_free(reference->name);
  mgl_free(reference->config_json);  // json_dumps allocates through base/alloc.h too
  mgl_free(reference->prompt);
  mgl_free(reference->logits);
  mgl_free(reference->continuation);
  mgl_free(reference->margins);
  *reference = (mgl_reference){0};
}

// --- writing a model folder ----------------------------------------------------------------------

static void shard_name(uint32_t shard, uint32_t shard_count, char out[MAX_SHARD_NAME_BYTES]) {
  if (shard_count == 1) {
    (void)snprintf(out, MAX_SHARD_NAME_BYTES, "model.safetensors");
  } else {
    (void)snprintf(out, MAX_SHARD_NAME_BYTES, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors",
                   shard + 1, shard_count);
  }
}

static uint64_t tensor_elements(const mgl_reference_tensor *tensor) {
  uint64_t elements = 1;
  for (uint32_t i = 0; i < tensor->rank; i++) {
    elements *= tensor->dims[i];
  }
  return elements;
}

static uint64_t tensor_bytes(const mgl_reference_tensor *tensor) {
  return tensor_elements(tensor) * (tensor->is_bytes ? 1 : mgl_dtype_bytes(tensor->dtype));
}

static void draw_bytes(const mgl_reference_tensor *tensor, uint64_t seed, size_t count,
                       unsigned char *out) {
  static const char suffix[] = "_scales";
  const size_t name_bytes = strlen(tensor->name);
  const bool is_scales = name_bytes >= sizeof suffix - 1 &&
                         strcmp(tensor->name + name_bytes - (sizeof suffix - 1), suffix) == 0;
  const uint64_t golden = 0x9E3779B97F4A7C15u;
  uint64_t x = mgl_dummy_weights_stream(tensor->name, seed, 1, tensor->dims, 0).start;
  for (size_t i = 0; i < count; i++) {
    x += golden;
    uint64_t bits = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;  // splitmix64
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    bits ^= bits >> 31;
    out[i] = (unsigned char)(is_scales ? 121 + (bits >> 40) % 3 : bits >> 56);
  }
}

static bool ends_with(const char *name, const char *suffix) {
  const size_t name_bytes = strlen(name), bytes = strlen(suffix);
  return name_bytes >= bytes && strcmp(name + name_bytes - bytes, suffix) == 0;
}

// What of a router is not as it was drawn.
static void arrange(const mgl_reference *reference, const mgl_reference_tensor *tensor,
                    void *data) {
  if (reference->router_pairs && ends_with(tensor->name, "mlp.gate.weight")) {
    const size_t row = (size_t)tensor->dims[1] * mgl_dtype_bytes(tensor->dtype);
    for (size_t i = 1; i < tensor->dims[0]; i += 2) {
      memcpy((unsigned char *)data + i * row, (unsigned char *)data + (i - 1) * row, row);
    }
  }
  if (ends_with(tensor->name, "e_score_correction_bias") && tensor->dtype == MGL_DTYPE_F32) {
    for (size_t i = 0; i < reference->preferred; i++) {
      ((float *)data)[i] += 16;
    }
  }
}

mgl_status mgl_reference_draw(const mgl_reference *reference, const mgl_reference_tensor *tensor,
                              void **out, size_t *out_bytes, mgl_error *err) {
  const size_t elements = (size_t)tensor_elements(tensor);
  *out_bytes = (size_t)tensor_bytes(tensor);
  *out = mgl_alloc(*out_bytes);
  if (*out == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for tensor %s", tensor->name);
  }
  if (tensor->is_bytes) {
    draw_bytes(tensor, reference->seed, elements, *out);
  } else {
    mgl_dummy_weights_fill(tensor->name, reference->seed, tensor->dtype, tensor->rank, tensor->dims,
                           0, elements, *out);
    arrange(reference, tensor, *out);
  }
  return MGL_OK;
}

// Shard s holds tensors [first_of(s), first_of(s + 1)); no shard is empty.
static size_t first_of(const mgl_reference *reference, uint32_t shard, uint32_t shard_count) {
  return reference->tensor_count * shard / shard_count;
}

static mgl_status write_shard(const mgl_reference *reference, const char *folder, uint32_t shard,
                              uint32_t shard_count, mgl_error *err) {
  char file_name[MAX_SHARD_NAME_BYTES];
  safetensors_writer writer;
  mgl_status status = MGL_OK;
  shard_name(shard, shard_count, file_name);
  safetensors_begin(&writer, folder, file_name);
  size_t end = first_of(reference, shard + 1, shard_count);
  for (size_t i = first_of(reference, shard, shard_count); i < end && status == MGL_OK; i++) {
    const mgl_reference_tensor *tensor = &reference->tensors[i];
    void *data = NULL;
    size_t bytes = 0;
    status = mgl_reference_draw(reference, tensor, &data, &bytes, err);
    if (status == MGL_OK && tensor->is_bytes) {
      safetensors_add_bytes(&writer, tensor->name, tensor->rank, tensor->dims, data);
    } else if (status == MGL_OK) {
      safetensors_add(&writer, tensor->name, tensor->dtype, tensor->rank, tensor->dims, data);
    }
    mgl_free(data);
  }
  safetensors_finish(&writer);  // on failure too: it frees the writer
  return status;
}

static mgl_status write_index(const mgl_reference *reference, const temp_folder *folder,
                              uint32_t shard_count, mgl_error *err) {
  mgl_text text = {0};
  uint64_t total_bytes = 0;
  char file_name[MAX_SHARD_NAME_BYTES];
  for (size_t i = 0; i < reference->tensor_count; i++) {
    total_bytes += tensor_bytes(&reference->tensors[i]);
  }
  mgl_text_format(&text, "{\"metadata\": {\"total_size\": %" PRIu64 "}, \"weight_map\": {",
                  total_bytes);
  for (uint32_t shard = 0; shard < shard_count; shard++) {
    shard_name(shard, shard_count, file_name);
    size_t end = first_of(reference, shard + 1, shard_count);
    for (size_t i = first_of(reference, shard, shard_count); i < end; i++) {
      mgl_text_format(&text, "%s\n  \"%s\": \"%s\"", i == 0 ? "" : ",", reference->tensors[i].name,
                      file_name);
    }
  }
  mgl_text_append_string(&text, "}}\n");
  mgl_status status = mgl_text_check(&text, err);
  if (status == MGL_OK) {
    temp_folder_write_text(folder, "model.safetensors.index.json", text.data);
  }
  mgl_text_free(&text);
  return status;
}

mgl_status mgl_reference_write_folder(const mgl_reference *reference, const char *folder,
                                      uint32_t shard_count, mgl_error *err) {
  temp_folder target;
  int bytes = snprintf(target.path, sizeof target.path, "%s", folder);
  if (bytes < 0 || (size_t)bytes >= sizeof target.path) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "a folder path of more than %d bytes",
                         TEMP_PATH_BYTES);
  }
  if (shard_count < 1 || shard_count > MGL_REFERENCE_MAX_SHARDS ||
      shard_count > reference->tensor_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%" PRIu32 " shards for %zu tensors", shard_count,
                         reference->tensor_count);
  }
  temp_folder_write_text(&target, "config.json", reference->config_json);
  for (uint32_t shard = 0; shard < shard_count; shard++) {
    MGL_TRY(write_shard(reference, folder, shard, shard_count, err));
  }
  return shard_count == 1 ? MGL_OK : write_index(reference, &target, shard_count, err);
}

// --- comparing -----------------------------------------------------------------------------------

// log(sum(exp(logits))).
static double log_sum_exp(const float *logits, size_t count) {
  double top = -INFINITY;
  double sum = 0;
  for (size_t i = 0; i < count; i++) {
    top = fmax(top, (double)logits[i]);
  }
  for (size_t i = 0; i < count; i++) {
    sum += exp((double)logits[i] - top);
  }
  return top + log(sum);
}

mgl_divergence mgl_reference_divergence(const float *reference, const float *logits,
                                        size_t positions, size_t vocab_size) {
  mgl_divergence result = {0};
  for (size_t i = 0; i < positions * vocab_size; i++) {
    if (!isfinite(logits[i])) {
      return (mgl_divergence){INFINITY, INFINITY, INFINITY};
    }
  }
  for (size_t position = 0; position < positions; position++) {
    const float *p = reference + position * vocab_size;
    const float *q = logits + position * vocab_size;
    double p_norm = log_sum_exp(p, vocab_size);
    double q_norm = log_sum_exp(q, vocab_size);
    double kl = 0;
    for (size_t i = 0; i < vocab_size; i++) {
      double log_p = (double)p[i] - p_norm;
      double log_q = (double)q[i] - q_norm;
      kl += exp(log_p) * (log_p - log_q);
      result.max_logit_error = fmax(result.max_logit_error, fabs((double)q[i] - (double)p[i]));
    }
    result.max_kl = fmax(result.max_kl, kl);
    result.mean_kl += kl / (double)positions;
  }
  return result;
}

// --- opened --------------------------------------------------------------------------------------

void mgl_reference_model_open(mgl_reference_model *out, const char *data, const char *name,
                              uint32_t shard_count) {
  *out = (mgl_reference_model){0};
  mgl_reference *reference = &out->reference;
  MUST(mgl_reference_load(data, name, reference, &err));
  temp_folder_create(&out->folder);
  MUST(mgl_reference_write_folder(reference, out->folder.path, shard_count, &err));
  MUST(mgl_model_folder_open(out->folder.path, MGL_NEED_WEIGHTS, &out->model, &err));
}

void mgl_reference_model_close(mgl_reference_model *model) {
  mgl_model_folder_close(&model->model);
  temp_folder_remove(&model->folder);
  mgl_reference_reset(&model->reference);
}
