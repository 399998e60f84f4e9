// Metadata to config.json, key by key.
#include "model/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "model/config.h"
#include "model/gguf_tokenizer.h"

enum { KEY_BYTES = 128, LLAMA3_CONTEXT = 8192 };

typedef struct maker {
  const mgl_gguf *gguf;
  char architecture[32];
  json_t *out;
  mgl_error *err;
} maker;

// --- values --------------------------------------------------------------------------------------

// The first element as JSON; what is no number becomes a text, which the configuration's reader
// refuses.
static json_t *number_of(const mgl_gguf_value *value) {
  if (value->kind == MGL_GGUF_STRING || value->kind == MGL_GGUF_BOOL || value->count == 0) {
    return json_string("no number");
  }
  if (mgl_gguf_is_integer(value)) {
    return json_integer(mgl_gguf_integer(value, 0));
  }
  double number = mgl_gguf_number(value, 0);
  return isfinite(number) ? json_real(number) : json_string("no number");
}

static mgl_status put(maker *m, const char *key, json_t *value) {
  if (json_object_set_new(m->out, key, value) != 0) {
    return mgl_error_set(m->err, MGL_ERR_MEMORY, "%s: out of memory for its configuration",
                         m->gguf->where);
  }
  return MGL_OK;
}

// The value of a key behind the architecture's name, NULL if there is none.
static const mgl_gguf_value *find(const maker *m, const char *suffix, char key[KEY_BYTES]) {
  (void)snprintf(key, KEY_BYTES, "%s.%s", m->architecture, suffix);
  return mgl_gguf_find(m->gguf, key);
}

static mgl_status unsupported(const maker *m, const char *key, const char *found) {
  return mgl_error_set(m->err, MGL_ERR_UNSUPPORTED, "%s: \"%s\": %s is not supported",
                       m->gguf->where, key, found);
}

// A number of the architecture; *out stays as it was where it is absent.
static mgl_status number(maker *m, const char *suffix, double *out) {
  char key[KEY_BYTES];
  const mgl_gguf_value *value = find(m, suffix, key);
  if (value != NULL && (value->is_array || value->kind == MGL_GGUF_STRING)) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT, "%s: \"%s\": expected a number", m->gguf->where,
                         key);
  }
  *out = value == NULL                  ? *out
         : value->kind == MGL_GGUF_BOOL ? value->data[0] != 0
                                        : mgl_gguf_number(value, 0);
  return MGL_OK;
}

// --- sizes ---------------------------------------------------------------------------------------

// A number for each layer counts where all are equal.
static mgl_status put_size(maker *m, const char *key, const char *suffix, bool required) {
  char own[KEY_BYTES];
  const mgl_gguf_value *value = find(m, suffix, own);
  if (value == NULL || (value->is_array && value->count == 0)) {
    return !required ? MGL_OK
                     : mgl_error_set(m->err, MGL_ERR_FORMAT, "%s: \"%s\" is missing",
                                     m->gguf->where, own);
  }
  bool is_number = value->kind != MGL_GGUF_STRING && value->kind != MGL_GGUF_BOOL;
  if (!is_number) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT, "%s: \"%s\": expected a number", m->gguf->where,
                         own);
  }
  for (uint64_t i = 1; i < value->count; i++) {
    if (mgl_gguf_number(value, i) != mgl_gguf_number(value, 0)) {
      return unsupported(m, own, "a number that differs by layer");
    }
  }
  return put(m, key, number_of(value));
}

static mgl_status put_sizes(maker *m) {
  static const struct {
    const char *key, *own;
    bool required;
  } sizes[] = {{"hidden_size", "embedding_length", true},
               {"intermediate_size", "feed_forward_length", true},
               {"num_hidden_layers", "block_count", true},
               {"num_attention_heads", "attention.head_count", true},
               {"num_key_value_heads", "attention.head_count_kv", false},
               {"max_position_embeddings", "context_length", true},
               {"rms_norm_eps", "attention.layer_norm_rms_epsilon", true},
               {"head_dim", "attention.key_length", false},
               {"rope_theta", "rope.freq_base", false}};
  // What an absent key means to a folder depends on the family; here it does not.
  MGL_TRY(put(m, "num_key_value_heads", json_null()));
  MGL_TRY(put(m, "rope_theta", json_real(10000)));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    MGL_TRY(put_size(m, sizes[i].key, sizes[i].own, sizes[i].required));
  }
  json_int_t heads = json_integer_value(json_object_get(m->out, "num_attention_heads"));
  json_int_t hidden = json_integer_value(json_object_get(m->out, "hidden_size"));
  if (json_object_get(m->out, "head_dim") == NULL && heads > 0 && hidden % heads == 0) {
    return put(m, "head_dim", json_integer(hidden / heads));
  }
  return MGL_OK;
}

// The rows of the embedding table, which need not all be tokens.
static mgl_status put_vocabulary(maker *m) {
  const mgl_gguf_tensor *table = mgl_gguf_find_tensor(m->gguf, "token_embd.weight");
  const mgl_gguf_value *tokens = mgl_gguf_find(m->gguf, "tokenizer.ggml.tokens");
  if (table != NULL && table->rank == 2 && table->dims[0] <= INT64_MAX) {
    return put(m, "vocab_size", json_integer((json_int_t)table->dims[0]));
  }
  if (tokens != NULL && tokens->count <= INT64_MAX) {
    return put(m, "vocab_size", json_integer((json_int_t)tokens->count));
  }
  return put_size(m, "vocab_size", "vocab_size", true);
}

// --- what is refused -----------------------------------------------------------------------------

static mgl_status refuse_features(maker *m) {
  static const char *const keys[] = {"expert_count",
                                     "logit_scale",
                                     "embedding_scale",
                                     "residual_scale",
                                     "attention.scale",
                                     "attention.clamp_kqv",
                                     "attn_logit_softcapping",
                                     "final_logit_softcapping",
                                     "attention.max_alibi_bias",
                                     "use_parallel_residual",
                                     "rope.scaling.yarn_log_multiplier",
                                     "attention.temperature_length",
                                     "nextn_predict_layers"};
  char key[KEY_BYTES];
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    double value = 0;
    MGL_TRY(number(m, keys[i], &value));
    if (value != 0) {
      (void)find(m, keys[i], key);
      return unsupported(m, key, "a value other than 0");
    }
  }
  double window = 0, context = 0, key_length = 0, value_length = 0;
  MGL_TRY(number(m, "attention.sliding_window", &window));
  MGL_TRY(number(m, "context_length", &context));
  if (window != 0 && window < context) {
    (void)find(m, "attention.sliding_window", key);
    return unsupported(m, key, "a window below the context");
  }
  MGL_TRY(number(m, "attention.key_length", &key_length));
  value_length = key_length;
  MGL_TRY(number(m, "attention.value_length", &value_length));
  if (value_length != key_length) {
    (void)find(m, "attention.value_length", key);
    return unsupported(m, key, "a length other than of keys");
  }
  double head_dim = json_number_value(json_object_get(m->out, "head_dim")), turned = head_dim;
  MGL_TRY(number(m, "rope.dimension_count", &turned));
  if (turned != head_dim) {
    (void)find(m, "rope.dimension_count", key);
    return unsupported(m, key, "a rope of a part of each head");
  }
  return MGL_OK;
}

// --- rope ----------------------------------------------------------------------------------------

// Whether factors are those that the converter works out of rope type "llama3" as Llama 3.1 to 3.3
// have it: 1 for wavelengths below original / 4, `most` above the original context.
static bool are_llama3(const maker *m, const float *factors, uint64_t count, double most) {
  const double low = 1, high = 4, original = LLAMA3_CONTEXT;
  const double theta = json_number_value(json_object_get(m->out, "rope_theta"));
  for (uint64_t i = 0; i < count; i++) {
    double wavelength = 2 * 3.14159265358979323846 * pow(theta, (double)i / (double)count);
    double smooth = fmin(fmax((original / wavelength - low) / (high - low), 0), 1);
    double expected = 1 / ((1 - smooth) / most + smooth);
    if (!(fabs((double)factors[i] - expected) <= 1e-4 * expected)) {
      return false;
    }
  }
  return count != 0 && most >= 1;
}

// Factors of frequencies, of which a file does not say how they came about: those of Llama 3 are
// told by their values; of others a longrope without a long part has the same frequencies.
static mgl_status put_factors(maker *m, const mgl_gguf_tensor *tensor) {
  float factors[MGL_MAX_HEAD_DIM / 2];
  if (strcmp(tensor->type->name, "F32") != 0 || tensor->rank != 1 ||
      tensor->dims[0] > MGL_MAX_HEAD_DIM / 2) {
    return mgl_error_set(m->err, MGL_ERR_FORMAT,
                         "%s: tensor \"rope_freqs.weight\": expected at most %d numbers in F32",
                         m->gguf->where, MGL_MAX_HEAD_DIM / 2);
  }
  mgl_widen_f32(MGL_DTYPE_F32, tensor->data, (size_t)tensor->dims[0], factors);
  double most = tensor->dims[0] == 0 ? 0 : (double)factors[tensor->dims[0] - 1];
  if (are_llama3(m, factors, tensor->dims[0], most)) {
    return put(
        m, "rope_scaling",
        json_pack("{ss,sf,sf,sf,si}", "rope_type", "llama3", "factor", most, "low_freq_factor", 1.0,
                  "high_freq_factor", 4.0, "original_max_position_embeddings", LLAMA3_CONTEXT));
  }
  json_t *list = json_array();
  for (uint64_t i = 0; i < tensor->dims[0]; i++) {
    (void)json_array_append_new(list, json_real((double)factors[i]));  // a NaN leaves it too short
  }
  json_t *context = json_object_get(m->out, "max_position_embeddings");
  return put(
      m, "rope_scaling",
      json_pack("{ss,sO,so,sO,sf}", "rope_type", "longrope", "short_factor", list, "long_factor",
                list, "original_max_position_embeddings", context, "attention_factor", 1.0));
}

static mgl_status put_yarn(maker *m, double factor) {
  double original = json_number_value(json_object_get(m->out, "max_position_embeddings"));
  double attention = 1, fast = 32, slow = 1;
  char key[KEY_BYTES];
  MGL_TRY(number(m, "rope.scaling.original_context_length", &original));
  MGL_TRY(number(m, "rope.scaling.attn_factor", &attention));
  MGL_TRY(number(m, "rope.scaling.yarn_attn_factor", &attention));
  MGL_TRY(number(m, "rope.scaling.yarn_beta_fast", &fast));
  MGL_TRY(number(m, "rope.scaling.yarn_beta_slow", &slow));
  if (attention != 1) {
    (void)find(m, "rope.scaling.attn_factor", key);
    return unsupported(m, key, "a factor other than 1");
  }
  return put(m, "rope_scaling",
             json_pack("{ss,sf,sf,sf,sf}", "rope_type", "yarn", "factor", factor,
                       "original_max_position_embeddings", original, "beta_fast", fast, "beta_slow",
                       slow));
}

static mgl_status put_rope(maker *m) {
  const mgl_gguf_tensor *factors = mgl_gguf_find_tensor(m->gguf, "rope_freqs.weight");
  mgl_gguf_string type = {.text = "none", .bytes = 4};
  char key[KEY_BYTES];
  double factor = 1;
  MGL_TRY(number(m, "rope.scale_linear", &factor));
  MGL_TRY(number(m, "rope.scaling.factor", &factor));
  type = factor != 1 && factor != 0 ? (mgl_gguf_string){.text = "linear", .bytes = 6} : type;
  (void)find(m, "rope.scaling.type", key);
  MGL_TRY(mgl_gguf_text(m->gguf, key, &type, m->err));
  bool is_none = mgl_gguf_string_is(type, "none");
  if (factors != NULL && is_none) {
    return put_factors(m, factors);
  }
  if (is_none) {
    return MGL_OK;
  }
  if (factors == NULL && mgl_gguf_string_is(type, "linear")) {
    return put(m, "rope_scaling", json_pack("{ss,sf}", "rope_type", "linear", "factor", factor));
  }
  if (factors == NULL && mgl_gguf_string_is(type, "yarn")) {
    return put_yarn(m, factor);
  }
  return mgl_error_set(m->err, MGL_ERR_UNSUPPORTED,
                       "%s: \"%s\": \"%.*s\"%s is not supported; supported are none, linear and "
                       "yarn",
                       m->gguf->where, key, type.bytes < 40 ? (int)type.bytes : 40, type.text,
                       factors != NULL ? " beside rope_freqs.weight" : "");
}

// --- tokens --------------------------------------------------------------------------------------

// Texts that end a turn; those of them that are control tokens end a generation, as in llama.cpp,
// since the file has room for one such id of generation_config.json's list.
static bool is_end_text(mgl_gguf_string token) {
  static const char *const texts[] = {"<|eot_id|>",    "<|eom_id|>",      "<|im_end|>",
                                      "<|endoftext|>", "<|end_of_text|>", "<|end|>",
                                      "<end_of_turn>"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    if (mgl_gguf_string_is(token, texts[i])) {
      return true;
    }
  }
  return false;
}

static mgl_status append_end(maker *m, json_t *list, json_int_t id) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    if (json_integer_value(json_array_get(list, i)) == id) {
      return MGL_OK;
    }
  }
  if (json_array_append_new(list, json_integer(id)) != 0) {
    return mgl_error_set(m->err, MGL_ERR_MEMORY, "%s: out of memory", m->gguf->where);
  }
  return MGL_OK;
}

static mgl_status list_ends(maker *m, json_t *list) {
  static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"};
  const mgl_gguf_value *tokens = NULL, *kinds = NULL;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    uint64_t id = UINT64_MAX;
    MGL_TRY(mgl_gguf_u64(m->gguf, keys[i], &id, m->err));
    if (id != UINT64_MAX) {
      MGL_TRY(append_end(m, list, (json_int_t)id));
    }
  }
  MGL_TRY(mgl_gguf_array(m->gguf, "tokenizer.ggml.tokens", MGL_GGUF_STRING, &tokens, m->err));
  MGL_TRY(mgl_gguf_array(m->gguf, "tokenizer.ggml.token_type", MGL_GGUF_I32, &kinds, m->err));
  const unsigned char *at = tokens == NULL ? NULL : tokens->data;
  for (uint64_t i = 0; at != NULL && kinds != NULL && i < tokens->count && i < kinds->count; i++) {
    mgl_gguf_string token = mgl_gguf_next_string(&at);
    if (mgl_gguf_integer(kinds, i) == MGL_GGUF_TOKEN_CONTROL && is_end_text(token)) {
      MGL_TRY(append_end(m, list, (json_int_t)i));
    }
  }
  return MGL_OK;
}

static mgl_status put_tokens(maker *m) {
  uint64_t bos = UINT64_MAX;
  MGL_TRY(mgl_gguf_u64(m->gguf, "tokenizer.ggml.bos_token_id", &bos, m->err));
  MGL_TRY(put(m, "bos_token_id", bos == UINT64_MAX ? json_null() : json_integer((json_int_t)bos)));
  json_t *ends = json_array();
  mgl_status status = put(m, "eos_token_id", ends);
  return status == MGL_OK ? list_ends(m, ends) : status;
}

// --- the whole -----------------------------------------------------------------------------------

static mgl_status read_architecture(maker *m) {
  static const char *const known[] = {"llama", "qwen2", "qwen3"};
  mgl_gguf_string name = {0};
  MGL_TRY(mgl_gguf_text(m->gguf, "general.architecture", &name, m->err));
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (mgl_gguf_string_is(name, known[i])) {
      (void)snprintf(m->architecture, sizeof m->architecture, "%s", known[i]);
      return put(m, "model_type", json_string(known[i]));
    }
  }
  return mgl_error_set(m->err, MGL_ERR_UNSUPPORTED,
                       "%s: \"general.architecture\": \"%.*s\" is not supported; supported are "
                       "llama, qwen2 and qwen3",
                       m->gguf->where, name.bytes < 40 ? (int)name.bytes : 40,
                       name.text == NULL ? "" : name.text);
}

static mgl_status refuse_parts(maker *m) {
  uint64_t files = 1;
  MGL_TRY(mgl_gguf_u64(m->gguf, "split.count", &files, m->err));
  if (files > 1) {
    return mgl_error_set(m->err, MGL_ERR_UNSUPPORTED,
                         "%s is one of %" PRIu64
                         " parts of a model, which is not supported: make one file of them with "
                         "\"llama-gguf-split --merge\"",
                         m->gguf->where, files);
  }
  return MGL_OK;
}

static bool has(const maker *m, const char *tensor) {
  return mgl_gguf_find_tensor(m->gguf, tensor) != NULL;
}

static mgl_status fill(maker *m) {
  MGL_TRY(refuse_parts(m));
  MGL_TRY(read_architecture(m));
  MGL_TRY(put_sizes(m));
  MGL_TRY(put_vocabulary(m));
  MGL_TRY(refuse_features(m));
  MGL_TRY(put_rope(m));
  if (strcmp(m->architecture, "qwen2") != 0) {
    MGL_TRY(put(m, "attention_bias", json_boolean(has(m, "blk.0.attn_q.bias"))));
  }
  if (strcmp(m->architecture, "llama") == 0) {
    MGL_TRY(put(m, "mlp_bias", json_boolean(has(m, "blk.0.ffn_gate.bias"))));
  }
  MGL_TRY(put(m, "tie_word_embeddings", json_boolean(!has(m, "output.weight"))));
  return put_tokens(m);
}

mgl_status mgl_gguf_config(const mgl_gguf *gguf, json_t **out, mgl_error *err) {
  maker m = {.gguf = gguf, .out = json_object(), .err = err};
  mgl_status status = m.out == NULL
                          ? mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory", gguf->where)
                          : fill(&m);
  if (status != MGL_OK) {
    json_decref(m.out);
    m.out = NULL;
  }
  *out = m.out;
  return status;
}

mgl_status mgl_gguf_generation(const mgl_gguf *gguf, json_t **out, mgl_error *err) {
  static const struct {
    const char *key, *own;
  } keys[] = {{"temperature", "general.sampling.temp"},
              {"top_k", "general.sampling.top_k"},
              {"top_p", "general.sampling.top_p"},
              {"min_p", "general.sampling.min_p"},
              {"repetition_penalty", "general.sampling.penalty_repeat"}};
  maker m = {.gguf = gguf, .out = json_object(), .err = err};
  const mgl_gguf_value *heat = mgl_gguf_find(gguf, keys[0].own);
  mgl_status status = put(&m, "do_sample", json_boolean(heat != NULL));
  for (size_t i = 0; i < sizeof keys / sizeof *keys && status == MGL_OK; i++) {
    const mgl_gguf_value *value = mgl_gguf_find(gguf, keys[i].own);
    status = value == NULL ? MGL_OK : put(&m, keys[i].key, number_of(value));
  }
  if (status != MGL_OK) {
    json_decref(m.out);
    m.out = NULL;
  }
  *out = m.out;
  return status;
}
