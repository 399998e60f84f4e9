#include "model/quantization.h"

#include <stdio.h>
#include <string.h>

static const struct {
  const char *name;  // quant_method
  mgl_quant_method method;
} methods[] = {
    {"fp8", MGL_QUANT_FP8},           {"fbgemm_fp8", MGL_QUANT_FBGEMM},
    {"modelopt", MGL_QUANT_MODELOPT}, {"compressed-tensors", MGL_QUANT_COMPRESSED},
    {"gptq", MGL_QUANT_GPTQ},         {"awq", MGL_QUANT_AWQ},
    {"mxfp4", MGL_QUANT_MXFP4},
};

#define METHODS "fp8, fbgemm_fp8, modelopt, compressed-tensors, gptq, awq and mxfp4"

static mgl_status unsupported(mgl_json_object o, const char *key, const char *found,
                              const char *expected, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": \"%s\": expected %s, found \"%.60s\", which "
                       "is not supported",
                       o.where, key, expected, found);
}

static mgl_status read_method(mgl_json_object o, mgl_quantization *out, mgl_error *err) {
  const char *name = NULL;
  MGL_TRY(mgl_json_opt_string(o, "quant_method", &name, err));
  if (name == NULL && mgl_json_has(o, "config_groups")) {
    name = "compressed-tensors";  // as old files have it
  }
  for (size_t i = 0; name != NULL && i < sizeof methods / sizeof *methods; i++) {
    if (strcmp(name, methods[i].name) == 0) {
      out->method = methods[i].method;
      (void)snprintf(out->format, sizeof out->format, "%s", name);
      return MGL_OK;
    }
  }
  return unsupported(o, "quant_method", name != NULL ? name : "(none)", "one of " METHODS, err);
}

// "weight_block_size" or "block_structure": [rows, columns].
static mgl_status read_block(mgl_json_object o, const char *key, mgl_quantization *out,
                             mgl_error *err) {
  if (!mgl_json_has(o, key)) {
    return MGL_OK;
  }
  const json_t *list = json_object_get(o.object, key);
  const json_t *rows = json_array_get(list, 0), *columns = json_array_get(list, 1);
  if (json_array_size(list) != 2 || !json_is_integer(rows) || !json_is_integer(columns) ||
      json_integer_value(rows) < 1 || json_integer_value(rows) > INT32_MAX ||
      json_integer_value(columns) < 1 || json_integer_value(columns) > INT32_MAX) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"quantization_config\": \"%s\": expected [rows, columns], two "
                         "integers of at least 1",
                         o.where, key);
  }
  out->is_sure = true;
  out->block_rows = (uint32_t)json_integer_value(rows);
  out->group = (uint32_t)json_integer_value(columns);
  return MGL_OK;
}

static mgl_status read_fp8(mgl_json_object o, mgl_quantization *out, mgl_error *err) {
  const char *format = "e4m3";
  MGL_TRY(mgl_json_opt_string(o, "fmt", &format, err));
  if (strcmp(format, "e4m3") != 0 && strcmp(format, "float8_e4m3fn") != 0) {
    return unsupported(o, "fmt", format, "\"e4m3\"", err);
  }
  out->drawn.dtype = MGL_DTYPE_E4M3;
  return read_block(o, "weight_block_size", out, err);
}

// An integer that may be -1 for "a whole row", which gives 0.
static mgl_status read_group(mgl_json_object o, mgl_quantization *out, mgl_error *err) {
  const json_t *value = json_object_get(o.object, "group_size");
  uint64_t group = 0;
  if (json_is_integer(value) && json_integer_value(value) == -1) {
    out->is_sure = true;
    return MGL_OK;
  }
  MGL_TRY(mgl_json_opt_u64(o, "group_size", 1, INT32_MAX, &group, err));
  out->group = (uint32_t)group;
  out->is_sure = group != 0;
  return MGL_OK;
}

static mgl_status read_bits(mgl_json_object o, bool may_be_8, mgl_quantization *out,
                            mgl_error *err) {
  uint64_t bits = 0;
  MGL_TRY(mgl_json_u64(o, "bits", 1, 64, &bits, err));
  if (bits != 4 && !(bits == 8 && may_be_8)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: \"quantization_config\": \"bits\": expected %s, found %u, which is "
                         "not supported",
                         o.where, may_be_8 ? "4 or 8" : "4", (unsigned)bits);
  }
  out->bits = (uint32_t)bits;
  out->drawn.dtype = bits == 4 ? MGL_DTYPE_I4 : MGL_DTYPE_I8;
  return read_group(o, out, err);
}

static mgl_status read_gptq(mgl_json_object o, mgl_quantization *out, mgl_error *err) {
  const char *format = "gptq";
  MGL_TRY(read_bits(o, true, out, err));
  MGL_TRY(mgl_json_opt_string(o, "checkpoint_format", &format, err));
  if (strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0) {
    return unsupported(o, "checkpoint_format", format, "\"gptq\" or \"gptq_v2\"", err);
  }
  out->zeros_less_one = strcmp(format, "gptq") == 0;
  MGL_TRY(mgl_json_opt_bool(o, "desc_act", &out->has_order, err));
  const json_t *dynamic = json_object_get(o.object, "dynamic");
  if (json_object_size(dynamic) != 0) {
    return unsupported(o, "dynamic", "rules for some modules", "none", err);
  }
  return MGL_OK;
}

static mgl_status read_awq(mgl_json_object o, mgl_quantization *out, mgl_error *err) {
  const char *version = "gemm";
  MGL_TRY(read_bits(o, false, out, err));
  MGL_TRY(mgl_json_opt_string(o, "version", &version, err));
  if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0) {
    return unsupported(o, "version", version, "\"gemm\"", err);
  }
  return MGL_OK;
}

// What scales of a KV cache are for, where there are some: "kv_cache_scheme" (compressed-tensors,
// ModelOpt) or "kv_cache_quant_algo" (ModelOpt). They count where a cache in FP8 is asked for only.
static mgl_status read_kv_scheme(mgl_json_object o, mgl_quantization *out, mgl_error *err) {
  const json_t *value = json_object_get(o.object, "kv_cache_scheme");
  const char *algorithm = NULL, *type = "float", *strategy = "tensor";
  uint64_t bits = 8;
  mgl_json_object scheme;
  MGL_TRY(mgl_json_opt_string(o, "kv_cache_quant_algo", &algorithm, err));
  out->kv_of_another_kind = algorithm != NULL && strcmp(algorithm, "FP8") != 0;
  if (!json_is_object(value)) {
    out->kv_of_another_kind |=
        json_is_string(value) && strcmp(json_string_value(value), "FP8") != 0;
    return MGL_OK;
  }
  MGL_TRY(mgl_json_opt_object(o, "kv_cache_scheme", &scheme, err));
  MGL_TRY(mgl_json_opt_u64(scheme, "num_bits", 1, 64, &bits, err));
  MGL_TRY(mgl_json_opt_string(scheme, "type", &type, err));
  MGL_TRY(mgl_json_opt_string(scheme, "strategy", &strategy, err));
  out->kv_of_another_kind |=
      bits != 8 || strcmp(type, "float") != 0 || strcmp(strategy, "tensor") != 0;
  return MGL_OK;
}

static mgl_status read_modelopt(mgl_json_object o, mgl_quantization *out, mgl_error *err) {
  const char *algorithm = "FP8";
  MGL_TRY(mgl_json_opt_string(o, "quant_algo", &algorithm, err));
  bool is_fp8 = strcmp(algorithm, "FP8") == 0;
  if (!is_fp8 && strcmp(algorithm, "NVFP4") != 0) {
    return unsupported(o, "quant_algo", algorithm, "\"FP8\" or \"NVFP4\"", err);
  }
  out->group = is_fp8 ? 0 : 16;
  out->is_sure = !is_fp8;
  out->drawn.dtype = is_fp8 ? MGL_DTYPE_E4M3 : MGL_DTYPE_E2M1;
  return MGL_OK;
}

// "weights" of one of "config_groups".
static mgl_status read_scheme(mgl_json_object weights, mgl_quantization *out, mgl_error *err) {
  uint64_t bits = 8;
  const char *type = "int";
  const char *strategy = "", *order = "";
  bool symmetric = true;
  MGL_TRY(mgl_json_opt_string(weights, "strategy", &strategy, err));
  MGL_TRY(mgl_json_opt_u64(weights, "num_bits", 1, 64, &bits, err));
  MGL_TRY(mgl_json_opt_string(weights, "type", &type, err));
  MGL_TRY(mgl_json_opt_bool(weights, "symmetric", &symmetric, err));
  bool is_float = strcmp(type, "float") == 0;
  if ((bits != 4 && bits != 8) || (!is_float && strcmp(type, "int") != 0)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: \"quantization_config\": weights of %u bits and type \"%.40s\" are "
                         "not supported: expected 4 or 8 bits of \"int\" or \"float\"",
                         weights.where, (unsigned)bits, type);
  }
  out->drawn = (mgl_form){.dtype = is_float ? (bits == 8 ? MGL_DTYPE_E4M3 : MGL_DTYPE_E2M1)
                                            : (bits == 8 ? MGL_DTYPE_I8 : MGL_DTYPE_I4),
                          .offsets = !symmetric};
  (void)snprintf(out->format, sizeof out->format, "compressed-tensors %s%u",
                 is_float ? "fp" : "int", (unsigned)bits);
  out->group = out->block_rows = 0;
  MGL_TRY(read_group(weights, out, err));
  MGL_TRY(read_block(weights, "block_structure", out, err));
  out->is_sure |= strcmp(strategy, "channel") == 0 || strcmp(strategy, "tensor") == 0;
  out->has_zeros = !symmetric;
  if (json_is_string(json_object_get(weights.object, "actorder"))) {
    MGL_TRY(mgl_json_opt_string(weights, "actorder", &order, err));
  }
  out->has_order = strcmp(order, "group") == 0 || strcmp(order, "dynamic") == 0;
  return MGL_OK;
}

// A member that must say nothing: absent, null, an empty object, or one with a neutral "format".
static mgl_status refuse_member(mgl_json_object o, const char *key, mgl_error *err) {
  const json_t *value = json_object_get(o.object, key);
  const char *format = json_string_value(json_object_get(value, "format"));
  bool is_neutral = format != NULL && strcmp(format, "dense") == 0;
  bool is_empty = value == NULL || json_is_null(value) ||
                  (json_is_object(value) && json_object_size(value) == 0);
  return is_neutral || is_empty ? MGL_OK : unsupported(o, key, "something", "none", err);
}

// What two schemes both say of all matrices: where they differ, the tensors alone tell.
static void join_schemes(const mgl_quantization *first, mgl_quantization *both) {
  both->is_sure &=
      first->is_sure && first->group == both->group && first->block_rows == both->block_rows;
  both->has_zeros &= first->has_zeros;
  both->has_order &= first->has_order;
}

static mgl_status read_compressed(mgl_json_object o, mgl_quantization *out, mgl_error *err) {
  mgl_quantization first = *out;
  bool is_first = true;
  mgl_json_object groups;
  MGL_TRY(refuse_member(o, "sparsity_config", err));
  MGL_TRY(refuse_member(o, "transform_config", err));
  MGL_TRY(mgl_json_opt_object(o, "config_groups", &groups, err));
  for (void *i = json_object_iter((json_t *)(uintptr_t)groups.object); i != NULL;
       i = json_object_iter_next((json_t *)(uintptr_t)groups.object, i)) {
    mgl_json_object group = {.object = json_object_iter_value(i), .where = o.where}, weights;
    if (!json_is_object(group.object)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: \"quantization_config\": \"config_groups\": expected objects",
                           o.where);
    }
    MGL_TRY(mgl_json_opt_object(group, "weights", &weights, err));
    if (weights.object != NULL) {
      out->is_sure = false;
      MGL_TRY(read_scheme(weights, out, err));
      if (!is_first) {
        join_schemes(&first, out);
      }
      first = *out;
      is_first = false;
    }
  }
  if (out->drawn.dtype == MGL_DTYPE_F32) {
    return unsupported(o, "config_groups", "no scheme for weights", "at least one", err);
  }
  return MGL_OK;
}

mgl_status mgl_quantization_read(mgl_json_object config, mgl_quantization *out, mgl_error *err) {
  const char *key =
      mgl_json_has(config, "quantization_config") ? "quantization_config" : "compression_config";
  mgl_json_object o;
  *out = (mgl_quantization){0};
  if (mgl_json_has(config, "quantization")) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: \"quantization\": models quantised by MLX are not supported: "
                         "expected a \"quantization_config\" with one of " METHODS,
                         config.where);
  }
  MGL_TRY(mgl_json_opt_object(config, key, &o, err));
  if (o.object == NULL) {
    return MGL_OK;
  }
  MGL_TRY(read_method(o, out, err));
  MGL_TRY(read_kv_scheme(o, out, err));
  switch (out->method) {
    case MGL_QUANT_FP8: MGL_TRY(read_fp8(o, out, err)); break;
    case MGL_QUANT_COMPRESSED: MGL_TRY(read_compressed(o, out, err)); break;
    case MGL_QUANT_MODELOPT: MGL_TRY(read_modelopt(o, out, err)); break;
    case MGL_QUANT_GPTQ: MGL_TRY(read_gptq(o, out, err)); break;
    case MGL_QUANT_AWQ: MGL_TRY(read_awq(o, out, err)); break;
    case MGL_QUANT_MXFP4:
      out->drawn.dtype = MGL_DTYPE_E2M1;
      out->group = MGL_MXFP4_GROUP;
      break;
    default: out->drawn.dtype = MGL_DTYPE_E4M3; break;
  }
  out->drawn.group = out->group != 0 ? out->group : MGL_FORM_WHOLE_ROW;
  return MGL_OK;
}
