// Reading the rotary embedding of a config.json; config.c reads the rest.
//
// Where transformers 4 and 5 would read the same file differently (a theta or type given twice with
// different values), the file is refused instead of guessing. What it becomes is graph/rope.c's.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "model/config_parts.h"

static mgl_status required_double(mgl_json_object o, const char *key, double min, double max,
                                  double *out, mgl_error *err) {
  if (!mgl_json_has(o, key)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\" is missing from the rope parameters",
                         o.where, key);
  }
  return mgl_json_opt_double(o, key, min, max, out, err);
}

// The one object of rope parameters: "rope_scaling" (transformers 4) or "rope_parameters" (5).
// out->object is NULL when there is neither.
static mgl_status find_rope_object(mgl_json_object o, mgl_json_object *out, mgl_error *err) {
  mgl_json_object scaling;
  mgl_json_object parameters;
  MGL_TRY(mgl_json_opt_object(o, "rope_scaling", &scaling, err));
  MGL_TRY(mgl_json_opt_object(o, "rope_parameters", &parameters, err));
  bool has_scaling = json_object_size(scaling.object) != 0;
  bool has_parameters = json_object_size(parameters.object) != 0;
  if (has_scaling && has_parameters && !json_equal(scaling.object, parameters.object)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"rope_scaling\" and \"rope_parameters\" contradict each other; "
                         "expected one of them",
                         o.where);
  }
  *out = has_scaling ? scaling : parameters;
  out->object = has_scaling || has_parameters ? out->object : NULL;
  // transformers 5 can nest one object per layer type; none of the families here needs that.
  for (void *i = json_object_iter((json_t *)(uintptr_t)out->object); i != NULL;
       i = json_object_iter_next((json_t *)(uintptr_t)out->object, i)) {
    if (json_is_object(json_object_iter_value(i))) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%s: rope parameters per layer type (\"%.100s\") are not supported",
                           o.where, json_object_iter_key(i));
    }
  }
  return MGL_OK;
}

static mgl_status read_rope_kind(mgl_json_object rope, bool is_scaling, mgl_family family,
                                 mgl_rope_kind *out, mgl_error *err) {
  const char *rope_type = NULL;
  const char *legacy_type = NULL;
  MGL_TRY(mgl_json_opt_string(rope, "rope_type", &rope_type, err));
  MGL_TRY(mgl_json_opt_string(rope, "type", &legacy_type, err));
  if (rope_type != NULL && legacy_type != NULL && strcmp(rope_type, legacy_type) != 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: rope \"type\" \"%.100s\" contradicts \"rope_type\" \"%.100s\"",
                         rope.where, legacy_type, rope_type);
  }
  const char *type = rope_type != NULL ? rope_type : legacy_type;
  if (type == NULL) {
    if (is_scaling) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"rope_scaling\": \"rope_type\" is missing",
                           rope.where);
    }
    type = "default";
  }
  // Phi-3's first files have "su", or "yarn", for what became longrope.
  bool renamed =
      family == MGL_FAMILY_PHI3 && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0);
  type = renamed ? "longrope" : type;
  static const char *const names[MGL_ROPE_KIND_COUNT] = {
      [MGL_ROPE_PLAIN] = "default",   [MGL_ROPE_LINEAR] = "linear",
      [MGL_ROPE_LLAMA3] = "llama3",   [MGL_ROPE_YARN] = "yarn",
      [MGL_ROPE_DYNAMIC] = "dynamic", [MGL_ROPE_LONGROPE] = "longrope"};
  for (size_t i = 0; i < MGL_ROPE_KIND_COUNT; i++) {
    if (strcmp(type, names[i]) == 0) {
      *out = (mgl_rope_kind)i;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "%s: rope type \"%.100s\" is not supported; supported are \"default\", "
                       "\"linear\", \"llama3\", \"yarn\", \"dynamic\" and \"longrope\"",
                       rope.where, type);
}

// Where the key is absent, as the families' configuration classes have it.
static double default_theta(mgl_family family) {
  switch (family) {
    case MGL_FAMILY_GPT_OSS: return 150000;
    case MGL_FAMILY_MIXTRAL: return 1e6;
    default: return 10000;
  }
}

// rope_theta at the top (transformers 4) or among the rope parameters (5); not two values.
static mgl_status read_rope_theta(mgl_json_object o, mgl_json_object rope, mgl_family family,
                                  double *out, mgl_error *err) {
  *out = default_theta(family);
  MGL_TRY(mgl_json_opt_double(o, "rope_theta", 1, 1e15, out, err));
  double inner = *out;
  MGL_TRY(mgl_json_opt_double(rope, "rope_theta", 1, 1e15, &inner, err));
  if (mgl_json_has(o, "rope_theta") && inner != *out) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"rope_theta\" is given twice: %g and, with the rope parameters, %g",
                         o.where, *out, inner);
  }
  *out = inner;
  return MGL_OK;
}

// The context that the model was trained on; some files have it at the top as well. Absent from
// both it is *out, unless that is 0. only_top: transformers does not look among the rope
// parameters, where another value is therefore refused.
static mgl_status read_original_context(mgl_json_object o, mgl_json_object rope, bool only_top,
                                        double *out, mgl_error *err) {
  static const char key[] = "original_max_position_embeddings";
  if (*out == 0 && !mgl_json_has(o, key)) {
    MGL_TRY(required_double(rope, key, 1, MGL_MAX_CONTEXT, out, err));
  }
  MGL_TRY(mgl_json_opt_double(o, key, 1, MGL_MAX_CONTEXT, out, err));
  double inner = *out;
  MGL_TRY(mgl_json_opt_double(rope, key, 1, MGL_MAX_CONTEXT, &inner, err));
  if (mgl_json_has(o, key) && inner != *out) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\" is given twice: %g and %g", o.where, key,
                         *out, inner);
  }
  if (only_top && inner != *out) {
    return mgl_error_set(
        err, MGL_ERR_FORMAT,
        "%s: \"%s\" among the rope parameters is %g, but a phi3 model has it at the "
        "top, or else %g",
        o.where, key, inner, *out);
  }
  *out = inner;
  return MGL_OK;
}

// --- kind by kind --------------------------------------------------------------------------------

static mgl_status read_llama3(mgl_json_object o, mgl_json_object rope, mgl_rope *out,
                              mgl_error *err) {
  MGL_TRY(required_double(rope, "low_freq_factor", 1e-6, 1e6, &out->low_freq_factor, err));
  MGL_TRY(required_double(rope, "high_freq_factor", 1e-6, 1e6, &out->high_freq_factor, err));
  if (out->high_freq_factor <= out->low_freq_factor) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"high_freq_factor\": expected more than low_freq_factor (%g), found "
                         "%g",
                         o.where, out->low_freq_factor, out->high_freq_factor);
  }
  return read_original_context(o, rope, false, &out->original_context, err);
}

// What yarn multiplies cos and sin with, by default, for a scale of the context.
static double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static mgl_status read_yarn(mgl_json_object o, mgl_json_object rope, const mgl_config *config,
                            mgl_rope *out, mgl_error *err) {
  double mscale = 0;
  double mscale_all_dim = 0;
  out->original_context = config->context_tokens;
  MGL_TRY(read_original_context(o, rope, false, &out->original_context, err));
  out->factor = config->context_tokens / out->original_context;
  MGL_TRY(mgl_json_opt_double(rope, "factor", 1, 1e6, &out->factor, err));
  MGL_TRY(mgl_json_opt_double(rope, "mscale", 0, 1e6, &mscale, err));
  MGL_TRY(mgl_json_opt_double(rope, "mscale_all_dim", 0, 1e6, &mscale_all_dim, err));
  out->attention_factor = yarn_scale(out->factor, 1);
  if (mscale != 0 && mscale_all_dim != 0) {
    out->attention_factor =
        yarn_scale(out->factor, mscale) / yarn_scale(out->factor, mscale_all_dim);
  }
  MGL_TRY(mgl_json_opt_double(rope, "attention_factor", 1e-6, 1e6, &out->attention_factor, err));
  MGL_TRY(mgl_json_opt_double(rope, "beta_fast", 0, 1e6, &out->beta_fast, err));
  MGL_TRY(mgl_json_opt_double(rope, "beta_slow", 0, 1e6, &out->beta_slow, err));
  out->beta_fast = out->beta_fast == 0 ? 32 : out->beta_fast;
  out->beta_slow = out->beta_slow == 0 ? 1 : out->beta_slow;
  if (out->beta_fast < out->beta_slow || out->theta <= 1) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: rope type \"yarn\": expected a beta_fast of at least beta_slow and a "
                         "rope_theta above 1, found %g, %g and %g",
                         o.where, out->beta_fast, out->beta_slow, out->theta);
  }
  out->truncate = true;
  return mgl_json_opt_bool(rope, "truncate", &out->truncate, err);
}

// A list of as many factors as there are frequencies.
static mgl_status read_factors(mgl_json_object rope, const char *key, uint32_t count, float *out,
                               mgl_error *err) {
  const json_t *list = json_object_get(rope.object, key);
  if (!json_is_array(list) || json_array_size(list) != count) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"%s\": expected a list of %" PRIu32
                         " numbers, one for each frequency, found %s of %zu",
                         rope.where, key, count, json_is_array(list) ? "a list" : "no list",
                         json_array_size(list));
  }
  for (uint32_t i = 0; i < count; i++) {
    const json_t *item = json_array_get(list, i);
    double value = json_number_value(item);
    if (!json_is_number(item) || !(value >= 1e-6 && value <= 1e6)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: \"%s\": entry %" PRIu32 ": expected a number of 1e-06 to 1e+06",
                           rope.where, key, i);
    }
    out[i] = (float)value;
  }
  return MGL_OK;
}

static mgl_status read_longrope(mgl_json_object o, mgl_json_object rope, const mgl_config *config,
                                mgl_rope *out, mgl_error *err) {
  uint32_t count = (config->rotary_dim != 0 ? config->rotary_dim : config->head_dim) / 2;
  const bool is_phi3 = config->family == MGL_FAMILY_PHI3;
  out->original_context = is_phi3 ? MGL_PHI3_ORIGINAL_CONTEXT : config->context_tokens;
  MGL_TRY(read_original_context(o, rope, is_phi3, &out->original_context, err));
  MGL_TRY(read_factors(rope, "short_factor", count, out->short_factors, err));
  MGL_TRY(read_factors(rope, "long_factor", count, out->long_factors, err));
  double factor = config->context_tokens / out->original_context;
  MGL_TRY(mgl_json_opt_double(rope, "factor", 1e-6, 1e6, &factor, err));
  out->attention_factor = 1;
  if (factor > 1 && out->original_context > 1) {
    out->attention_factor = sqrt(1 + log(factor) / log(out->original_context));
  }
  return mgl_json_opt_double(rope, "attention_factor", 1e-6, 1e6, &out->attention_factor, err);
}

// What the kind stretches the context to.
static void stretch_context(mgl_config *config) {
  const mgl_rope *rope = &config->rope;
  if (rope->kind == MGL_ROPE_YARN || rope->kind == MGL_ROPE_DYNAMIC) {
    double tokens = fmin(rope->original_context * rope->factor, MGL_MAX_CONTEXT);
    config->context_tokens =
        tokens > config->context_tokens ? (uint32_t)tokens : config->context_tokens;
  }
}

// --- partial rotary ------------------------------------------------------------------------------

// Of the families here only the classes of Phi, Phi-3 and GLM-4-MoE in transformers turn a part of
// a head.
static mgl_status read_rotary_dim(mgl_json_object o, mgl_json_object rope, mgl_config *config,
                                  mgl_error *err) {
  static const char key[] = "partial_rotary_factor";
  const bool halves = config->family == MGL_FAMILY_PHI || config->family == MGL_FAMILY_GLM4_MOE;
  double factor = halves ? 0.5 : 1;
  MGL_TRY(mgl_json_opt_double(o, key, 0, 1, &factor, err));
  double inner = factor;
  MGL_TRY(mgl_json_opt_double(rope, key, 0, 1, &inner, err));
  if (mgl_json_has(o, key) && inner != factor) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\" is given twice: %g and %g", o.where, key,
                         factor, inner);
  }
  if (inner != 1 && config->family != MGL_FAMILY_PHI3 && !halves) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: \"%s\" is supported only as 1", o.where,
                         key);
  }
  uint32_t dim = (uint32_t)(config->head_dim * inner);
  if (dim < 2 || dim % 2 != 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"%s\": expected a part of head_dim (%" PRIu32
                         ") that is even and at least 2, found %g of it = %" PRIu32,
                         o.where, key, config->head_dim, inner, dim);
  }
  config->rotary_dim = dim == config->head_dim ? 0 : dim;
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

mgl_status mgl_config_read_rope(mgl_json_object o, mgl_config *config, mgl_error *err) {
  mgl_json_object rope;
  mgl_rope *out = &config->rope;
  *out = (mgl_rope){.kind = MGL_ROPE_PLAIN, .factor = 1};
  MGL_TRY(find_rope_object(o, &rope, err));
  MGL_TRY(read_rope_theta(o, rope, config->family, &out->theta, err));
  MGL_TRY(read_rotary_dim(o, rope, config, err));
  if (rope.object == NULL && config->family == MGL_FAMILY_GPT_OSS) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"rope_scaling\" is missing: expected the parameters of a gpt_oss "
                         "model's rope, of type \"yarn\"",
                         o.where);
  }
  if (rope.object == NULL) {
    return MGL_OK;
  }
  bool is_scaling = rope.object == json_object_get(o.object, "rope_scaling");
  MGL_TRY(read_rope_kind(rope, is_scaling, config->family, &out->kind, err));
  if (config->family == MGL_FAMILY_PHI3 && out->kind != MGL_ROPE_PLAIN &&
      out->kind != MGL_ROPE_LONGROPE) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: the rope type of a phi3 model is supported only as \"default\" and "
                         "\"longrope\"",
                         o.where);
  }
  if (config->family == MGL_FAMILY_PHI && out->kind != MGL_ROPE_PLAIN) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: the rope type of a phi model is supported only as \"default\"",
                         o.where);
  }
  switch (out->kind) {
    case MGL_ROPE_LINEAR: return required_double(rope, "factor", 1, 1e6, &out->factor, err);
    case MGL_ROPE_LLAMA3:
      MGL_TRY(required_double(rope, "factor", 1, 1e6, &out->factor, err));
      return read_llama3(o, rope, out, err);
    case MGL_ROPE_YARN: MGL_TRY(read_yarn(o, rope, config, out, err)); break;
    case MGL_ROPE_DYNAMIC:
      out->original_context = config->context_tokens;
      MGL_TRY(required_double(rope, "factor", 1, 1e6, &out->factor, err));
      break;
    case MGL_ROPE_LONGROPE: return read_longrope(o, rope, config, out, err);
    case MGL_ROPE_PLAIN:
    case MGL_ROPE_KIND_COUNT: break;
  }
  stretch_context(config);
  return MGL_OK;
}
