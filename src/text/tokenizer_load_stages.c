// Reads normalizer, pre_tokenizer, decoder and post_processor of tokenizer.json.
//
// Each is one component or a Sequence of them, which may nest; they are flattened into the arrays
// of tokenizer_parts.h. What we do not have is refused by its name, never skipped: a tokenizer that
// is nearly right would feed the model nonsense.
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_parts.h"
#include "text/unicode.h"

enum { WHERE_BYTES = 256 };

typedef mgl_status (*component_reader)(mgl_json_object o, const char *type, void *out,
                                       mgl_error *err);

mgl_status mgl_json_string(mgl_json_object o, const char *key, const char **out, mgl_error *err) {
  *out = NULL;
  MGL_TRY(mgl_json_opt_string(o, key, out, err));
  if (*out == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\" is missing: expected a string", o.where,
                         key);
  }
  return MGL_OK;
}

static mgl_status unsupported(mgl_json_object o, const char *what, const char *found,
                              mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: %s \"%.400s\" is not supported", o.where,
                       what, found);
}

// Calls `read` for each component that is not a Sequence. The depth is bounded by the JSON parser.
static mgl_status read_components(mgl_json_object o, const char *list_key, component_reader read,
                                  void *out, mgl_error *err) {
  const char *type = NULL;
  MGL_TRY(mgl_json_string(o, "type", &type, err));
  if (strcmp(type, "Sequence") != 0) {
    return read(o, type, out, err);
  }
  const json_t *list = json_object_get(o.object, list_key);
  if (!json_is_array(list)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: a Sequence needs an array \"%s\"", o.where,
                         list_key);
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    mgl_json_object element = {.object = json_array_get(list, i), .where = o.where};
    if (!json_is_object(element.object)) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\": expected objects", o.where, list_key);
    }
    MGL_TRY(read_components(element, list_key, read, out, err));
  }
  return MGL_OK;
}

// Reads the member `key` of the file, if it is there.
static mgl_status read_part(mgl_json_object file, const char *key, const char *list_key,
                            component_reader read, void *out, mgl_error *err) {
  char where[WHERE_BYTES];
  (void)snprintf(where, sizeof where, "%.200s: %s", file.where, key);
  mgl_json_object part;
  MGL_TRY(mgl_json_opt_object(file, key, &part, err));
  part.where = where;
  return part.object == NULL ? MGL_OK : read_components(part, list_key, read, out, err);
}

static mgl_status too_many(mgl_json_object o, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_LIMIT, "%s: more than %d components", o.where,
                       MGL_TOKENIZER_MAX_STEPS);
}

// Copies a string of at most MGL_REWRITE_MAX_BYTES.
static mgl_status copy_short(mgl_json_object o, const char *key, const char *text, char *out,
                             size_t *out_bytes, mgl_error *err) {
  size_t bytes = strlen(text);
  if (bytes > MGL_REWRITE_MAX_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: \"%s\" has %zu bytes: the limit is %d", o.where,
                         key, bytes, MGL_REWRITE_MAX_BYTES);
  }
  memcpy(out, text, bytes);
  *out_bytes = bytes;
  return MGL_OK;
}

// "pattern": {"String": ...} or {"Regex": ...}; exactly one of the results is set.
static mgl_status read_pattern(mgl_json_object o, const char **string, const char **regex,
                               mgl_error *err) {
  mgl_json_object pattern;
  *string = NULL;
  *regex = NULL;
  MGL_TRY(mgl_json_opt_object(o, "pattern", &pattern, err));
  if (pattern.object != NULL) {
    MGL_TRY(mgl_json_opt_string(pattern, "String", string, err));
    MGL_TRY(mgl_json_opt_string(pattern, "Regex", regex, err));
  }
  if ((*string == NULL) == (*regex == NULL)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"pattern\": expected {\"String\": ...} or {\"Regex\": ...}",
                         o.where);
  }
  return MGL_OK;
}

static mgl_status read_replace(mgl_json_object o, mgl_rewrite *out, mgl_error *err) {
  const char *string = NULL;
  const char *regex = NULL;
  const char *content = NULL;
  MGL_TRY(read_pattern(o, &string, &regex, err));
  if (string == NULL) {
    return unsupported(o, "Replace of the regular expression", regex, err);
  }
  if (string[0] == 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: Replace with an empty pattern", o.where);
  }
  MGL_TRY(mgl_json_string(o, "content", &content, err));
  MGL_TRY(copy_short(o, "pattern", string, out->pattern, &out->pattern_bytes, err));
  return copy_short(o, "content", content, out->content, &out->content_bytes, err);
}

// A string of exactly one character.
static mgl_status read_character(mgl_json_object o, const char *key, const char **out,
                                 uint32_t *code, mgl_error *err) {
  MGL_TRY(mgl_json_string(o, key, out, err));
  size_t at = 0;
  *code = (*out)[0] == 0 ? 0 : mgl_utf8_next(*out, &at);
  if (at == 0 || (*out)[at] != 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\": expected one character", o.where, key);
  }
  return MGL_OK;
}

// --- normaliser ----------------------------------------------------------------------------------

static mgl_status read_normal_step(mgl_json_object o, const char *type, void *out, mgl_error *err) {
  mgl_normalizer *normalizer = out;
  if (normalizer->step_count == MGL_TOKENIZER_MAX_STEPS) {
    return too_many(o, err);
  }
  mgl_normal_step *step = &normalizer->steps[normalizer->step_count++];
  if (strcmp(type, "NFC") == 0) {
    step->kind = MGL_NORMAL_NFC;
    return MGL_OK;
  }
  if (strcmp(type, "Prepend") == 0) {
    const char *content = NULL;
    step->kind = MGL_NORMAL_PREPEND;
    MGL_TRY(mgl_json_string(o, "prepend", &content, err));
    return copy_short(o, "prepend", content, step->rewrite.content, &step->rewrite.content_bytes,
                      err);
  }
  if (strcmp(type, "Replace") == 0) {
    step->kind = MGL_NORMAL_REPLACE;
    return read_replace(o, &step->rewrite, err);
  }
  return unsupported(o, "the normalizer", type, err);
}

mgl_status mgl_normalizer_load(mgl_json_object file, mgl_normalizer *out, mgl_error *err) {
  return read_part(file, "normalizer", "normalizers", read_normal_step, out, err);
}

// --- pre-tokeniser -------------------------------------------------------------------------------

static mgl_status read_split_pattern(mgl_json_object o, mgl_split_pattern *out, mgl_error *err) {
  const char *string = NULL;
  const char *regex = NULL;
  MGL_TRY(read_pattern(o, &string, &regex, err));
  if (regex != NULL) {
    return mgl_split_pattern_find(regex, out) ? MGL_OK
                                              : unsupported(o, "Split by the pattern", regex, err);
  }
  if (string[0] == 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: Split at an empty string", o.where);
  }
  out->kind = MGL_SPLIT_LITERAL;
  return copy_short(o, "pattern", string, out->literal, &out->literal_bytes, err);
}

static mgl_status read_split(mgl_json_object o, mgl_stage *stage, mgl_error *err) {
  static const char *const BEHAVIORS[] = {
      [MGL_SPLIT_ISOLATED] = "Isolated",
      [MGL_SPLIT_REMOVED] = "Removed",
      [MGL_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
      [MGL_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
      [MGL_SPLIT_CONTIGUOUS] = "Contiguous",
  };
  const char *behavior = NULL;
  MGL_TRY(read_split_pattern(o, &stage->pattern, err));
  MGL_TRY(mgl_json_string(o, "behavior", &behavior, err));
  MGL_TRY(mgl_json_opt_bool(o, "invert", &stage->invert, err));
  for (size_t i = 0; i < sizeof BEHAVIORS / sizeof BEHAVIORS[0]; i++) {
    if (strcmp(behavior, BEHAVIORS[i]) == 0) {
      stage->behavior = (mgl_split_behavior)i;
      return MGL_OK;
    }
  }
  return unsupported(o, "Split with the behavior", behavior, err);
}

static mgl_status read_scheme(mgl_json_object o, mgl_prepend_scheme *out, mgl_error *err) {
  const char *scheme = NULL;
  bool prefix_space = true;
  MGL_TRY(mgl_json_opt_string(o, "prepend_scheme", &scheme, err));
  MGL_TRY(mgl_json_opt_bool(o, "add_prefix_space", &prefix_space, err));
  if (scheme == NULL) {
    scheme = prefix_space ? "always" : "never";
  }
  if (strcmp(scheme, "always") == 0) {
    *out = MGL_PREPEND_ALWAYS;
  } else if (strcmp(scheme, "first") == 0) {
    *out = MGL_PREPEND_FIRST;
  } else if (strcmp(scheme, "never") == 0) {
    *out = MGL_PREPEND_NEVER;
  } else {
    return unsupported(o, "the prepend_scheme", scheme, err);
  }
  if (!prefix_space && *out != MGL_PREPEND_NEVER) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"add_prefix_space\" is false but \"prepend_scheme\" is \"%s\"",
                         o.where, scheme);
  }
  return MGL_OK;
}

static mgl_status read_metaspace(mgl_json_object o, mgl_stage *stage, mgl_error *err) {
  const char *replacement = NULL;
  uint32_t code = 0;
  MGL_TRY(read_character(o, "replacement", &replacement, &code, err));
  stage->replacement_bytes = mgl_utf8_encode(code, stage->replacement);
  stage->split = true;
  MGL_TRY(mgl_json_opt_bool(o, "split", &stage->split, err));
  return read_scheme(o, &stage->scheme, err);
}

static mgl_status read_stage(mgl_json_object o, const char *type, void *out, mgl_error *err) {
  mgl_pretokenizer *pretokenizer = out;
  if (pretokenizer->stage_count == MGL_TOKENIZER_MAX_STEPS) {
    return too_many(o, err);
  }
  if (pretokenizer->stage_count > 0) {
    mgl_stage_kind previous = pretokenizer->stages[pretokenizer->stage_count - 1].kind;
    if (previous == MGL_STAGE_BYTE_LEVEL || previous == MGL_STAGE_METASPACE) {
      return unsupported(o, "behind ByteLevel or Metaspace, a", type, err);
    }
  }
  mgl_stage *stage = &pretokenizer->stages[pretokenizer->stage_count++];
  if (strcmp(type, "Split") == 0) {
    stage->kind = MGL_STAGE_SPLIT;
    return read_split(o, stage, err);
  }
  if (strcmp(type, "ByteLevel") == 0) {
    stage->kind = MGL_STAGE_BYTE_LEVEL;
    stage->pattern.kind = MGL_SPLIT_GPT2;
    stage->prefix_space = true;
    stage->split = true;
    MGL_TRY(mgl_json_opt_bool(o, "add_prefix_space", &stage->prefix_space, err));
    return mgl_json_opt_bool(o, "use_regex", &stage->split, err);
  }
  if (strcmp(type, "Metaspace") == 0) {
    stage->kind = MGL_STAGE_METASPACE;
    return read_metaspace(o, stage, err);
  }
  if (strcmp(type, "Digits") == 0) {
    stage->kind = MGL_STAGE_DIGITS;
    return mgl_json_opt_bool(o, "individual_digits", &stage->split, err);
  }
  return unsupported(o, "the pre_tokenizer", type, err);
}

mgl_status mgl_pretokenizer_load(mgl_json_object file, mgl_pretokenizer *out, mgl_error *err) {
  return read_part(file, "pre_tokenizer", "pretokenizers", read_stage, out, err);
}

// --- decoder -------------------------------------------------------------------------------------

static mgl_status read_strip(mgl_json_object o, mgl_decoder *decoder, mgl_error *err) {
  const char *content = NULL;
  uint64_t stop = 0;
  MGL_TRY(read_character(o, "content", &content, &decoder->character, err));
  MGL_TRY(mgl_json_u64(o, "start", 0, UINT32_MAX, &decoder->strip, err));
  MGL_TRY(mgl_json_u64(o, "stop", 0, UINT32_MAX, &stop, err));
  if (stop != 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: Strip at the end (\"stop\": %llu) is not supported", o.where,
                         (unsigned long long)stop);
  }
  return MGL_OK;
}

static mgl_status read_whole_decoder(mgl_json_object o, const char *type, mgl_decoder *decoder,
                                     mgl_error *err) {
  if (strcmp(type, "ByteLevel") == 0) {
    decoder->kind = MGL_DECODER_BYTE_LEVEL;
    return MGL_OK;
  }
  const char *replacement = NULL;
  mgl_prepend_scheme scheme = MGL_PREPEND_ALWAYS;
  decoder->kind = MGL_DECODER_METASPACE;
  MGL_TRY(read_character(o, "replacement", &replacement, &decoder->character, err));
  MGL_TRY(read_scheme(o, &scheme, err));
  decoder->drop_first = scheme != MGL_PREPEND_NEVER;
  return MGL_OK;
}

// The steps that there are, in the one order in which they may stand: Replace on each token, byte
// tokens to characters, all fused into one, its start stripped.
static mgl_status read_decoder_step(mgl_json_object o, const char *type, void *out,
                                    mgl_error *err) {
  mgl_decoder *decoder = out;
  bool whole = strcmp(type, "ByteLevel") == 0 || strcmp(type, "Metaspace") == 0;
  if (decoder->kind != MGL_DECODER_JOIN && (whole || decoder->kind != MGL_DECODER_STEPS)) {
    return unsupported(o, "beside other decoders, a", type, err);
  }
  if (whole) {
    return read_whole_decoder(o, type, decoder, err);
  }
  decoder->kind = MGL_DECODER_STEPS;
  if (strcmp(type, "Replace") == 0 && !decoder->byte_fallback && !decoder->fuse) {
    if (decoder->replace_count == MGL_TOKENIZER_MAX_STEPS) {
      return too_many(o, err);
    }
    return read_replace(o, &decoder->replace[decoder->replace_count++], err);
  }
  if (strcmp(type, "ByteFallback") == 0 && !decoder->byte_fallback && !decoder->fuse) {
    decoder->byte_fallback = true;
    return MGL_OK;
  }
  if (strcmp(type, "Fuse") == 0 && !decoder->fuse) {
    decoder->fuse = true;
    return MGL_OK;
  }
  if (strcmp(type, "Strip") == 0 && decoder->fuse && decoder->strip == 0) {
    return read_strip(o, decoder, err);
  }
  return unsupported(o, "in this place (or at all), the decoder", type, err);
}

mgl_status mgl_decoder_load(mgl_json_object file, mgl_decoder *out, mgl_error *err) {
  MGL_TRY(read_part(file, "decoder", "decoders", read_decoder_step, out, err));
  if (mgl_json_has(file, "decoder") && out->kind == MGL_DECODER_JOIN) {
    out->kind = MGL_DECODER_STEPS;  // an empty Sequence puts no spaces between tokens
  }
  return MGL_OK;
}

// --- post-processor ------------------------------------------------------------------------------

// The ids of a special token of the template, appended to an affix.
static mgl_status append_special(mgl_json_object o, const char *name, mgl_affix *affix,
                                 mgl_error *err) {
  const json_t *entry = json_object_get(json_object_get(o.object, "special_tokens"), name);
  const json_t *ids = json_object_get(entry, "ids");
  if (!json_is_array(ids)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"special_tokens\" has no array \"ids\" for \"%.100s\"", o.where,
                         name);
  }
  for (size_t i = 0; i < json_array_size(ids); i++) {
    const json_t *id = json_array_get(ids, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= MGL_TOKENIZER_MAX_VOCAB) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%.100s\": expected ids from 0 to %d",
                           o.where, name, MGL_TOKENIZER_MAX_VOCAB - 1);
    }
    if (affix->count == MGL_TOKENIZER_MAX_AFFIX) {
      return mgl_error_set(err, MGL_ERR_LIMIT, "%s: more than %d special tokens in the template",
                           o.where, MGL_TOKENIZER_MAX_AFFIX);
    }
    affix->ids[affix->count++] = (int32_t)json_integer_value(id);
  }
  return MGL_OK;
}

typedef struct template_result {
  mgl_affix *prefix;
  mgl_affix *suffix;
  bool seen;
} template_result;

static mgl_status read_template(mgl_json_object o, template_result *out, mgl_error *err) {
  const json_t *single = json_object_get(o.object, "single");
  if (!json_is_array(single)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: TemplateProcessing needs an array \"single\"",
                         o.where);
  }
  bool sequence_seen = false;
  for (size_t i = 0; i < json_array_size(single); i++) {
    mgl_json_object piece = {.object = json_array_get(single, i), .where = o.where};
    mgl_json_object part;
    const char *id = NULL;
    MGL_TRY(mgl_json_opt_object(piece, "SpecialToken", &part, err));
    if (part.object != NULL) {
      MGL_TRY(mgl_json_string(part, "id", &id, err));
      MGL_TRY(append_special(o, id, sequence_seen ? out->suffix : out->prefix, err));
      continue;
    }
    MGL_TRY(mgl_json_opt_object(piece, "Sequence", &part, err));
    if (part.object != NULL) {
      MGL_TRY(mgl_json_string(part, "id", &id, err));
    }
    if (id == NULL || strcmp(id, "A") != 0 || sequence_seen) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%s: \"single\": expected special tokens and the sequence A once",
                           o.where);
    }
    sequence_seen = true;
  }
  if (!sequence_seen) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s: \"single\" lacks the sequence A", o.where);
  }
  return MGL_OK;
}

static mgl_status read_processor(mgl_json_object o, const char *type, void *out, mgl_error *err) {
  template_result *result = out;
  if (strcmp(type, "ByteLevel") == 0) {
    return MGL_OK;  // it only corrects offsets
  }
  if (strcmp(type, "TemplateProcessing") == 0 && !result->seen) {
    result->seen = true;
    return read_template(o, result, err);
  }
  return unsupported(o, result->seen ? "a second post_processor" : "the post_processor", type, err);
}

mgl_status mgl_postprocessor_load(mgl_json_object file, mgl_affix *prefix, mgl_affix *suffix,
                                  mgl_error *err) {
  template_result result = {.prefix = prefix, .suffix = suffix};
  return read_part(file, "post_processor", "processors", read_processor, &result, err);
}
