#include "grammar/json_schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/words.h"
#include "grammar/json_schema_parts.h"

// --- messages ------------------------------------------------------------------------------------

// Writes a place as a JSON pointer, as much of it as fits.
static size_t write_place(const mgl_schema_place *place, char *out, size_t size) {
  size_t at = place->above == NULL ? 0 : write_place(place->above, out, size);
  int count = 0;
  if (place->above == NULL) {
    count = snprintf(out, size, "%s", place->key);
  } else if (place->key == NULL) {
    count = snprintf(out + at, size - at, "/%zu", place->index);
  } else {
    count = snprintf(out + at, size - at, "/%s", place->key);
  }
  at += count > 0 ? (size_t)count : 0;
  return at < size - 1 ? at : size - 1;
}

void *mgl_schema_fail(mgl_schema_reader *r, const mgl_schema_place *place, mgl_status status,
                      const char *format, ...) {
  char where[256];
  char text[MGL_ERROR_TEXT_BYTES];
  va_list args;
  size_t bytes = write_place(place, where, sizeof where);
  va_start(args, format);
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return mgl_builder_fail(r->b, status, "schema%s%s: %s", bytes == 0 ? "" : " at ", where, text);
}

uint64_t mgl_schema_count(mgl_schema_reader *r, const json_t *schema, const char *keyword,
                          uint64_t missing, const mgl_schema_place *place) {
  const json_t *value = json_object_get(schema, keyword);
  double number = json_number_value(value);
  if (value == NULL) {
    return missing;
  }
  if (!json_is_number(value) || number < 0 || number != (double)(int64_t)number) {
    (void)mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "%s: expected a whole number from 0 on",
                          keyword);
    return 0;
  }
  if (number > MGL_GRAMMAR_MAX_REPEAT) {
    (void)mgl_schema_fail(r, place, MGL_ERR_LIMIT, "%s: expected at most %d", keyword,
                          MGL_GRAMMAR_MAX_REPEAT);
    return 0;
  }
  return (uint64_t)number;
}

// --- keywords ------------------------------------------------------------------------------------

enum { OBJECT = 1, ARRAY = 2, STRING = 4, INTEGER = 8, FRACTION = 16, BOOLEAN = 32, NOTHING = 64 };
enum { NUMBER = INTEGER | FRACTION, ANY_TYPE = 127 };

static const struct {
  const char *name;
  unsigned types;  // of the values of which it says something; 0: of none, an annotation
} keywords[] = {
    {"$ref", ANY_TYPE},
    {"$defs", 0},
    {"definitions", 0},
    {"type", ANY_TYPE},
    {"enum", ANY_TYPE},
    {"const", ANY_TYPE},
    {"anyOf", ANY_TYPE},
    {"oneOf", ANY_TYPE},
    {"allOf", ANY_TYPE},
    {"nullable", ANY_TYPE},
    {"properties", OBJECT},
    {"required", OBJECT},
    {"additionalProperties", OBJECT},
    {"items", ARRAY},
    {"prefixItems", ARRAY},
    {"minItems", ARRAY},
    {"maxItems", ARRAY},
    {"uniqueItems", ARRAY},
    {"minLength", STRING},
    {"maxLength", STRING},
    {"pattern", STRING},
    {"format", STRING},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"multipleOf", NUMBER},
    {"$schema", 0},
    {"$id", 0},
    {"$comment", 0},
    {"$anchor", 0},
    {"title", 0},
    {"description", 0},
    {"default", 0},
    {"examples", 0},
    {"example", 0},
    {"deprecated", 0},
    {"readOnly", 0},
    {"writeOnly", 0},
    {"discriminator", 0},
    {"contentEncoding", 0},
    {"contentMediaType", 0},
};

enum { KEYWORD_COUNT = sizeof keywords / sizeof *keywords };

static size_t find_keyword(const char *name) {
  size_t i = 0;
  while (i < KEYWORD_COUNT && strcmp(keywords[i].name, name) != 0) {
    i++;
  }
  return i;
}

static bool is_extension(const char *name) {
  return strncmp(name, "x-", 2) == 0;
}

bool mgl_schema_is_annotation(const char *name) {
  size_t i = find_keyword(name);
  return is_extension(name) || (i < KEYWORD_COUNT && keywords[i].types == 0);
}

static void refuse_unknown(mgl_schema_reader *r, const char *name, const mgl_schema_place *place) {
  static const char *const known_elsewhere[] = {"not",
                                                "if",
                                                "then",
                                                "else",
                                                "contains",
                                                "minContains",
                                                "maxContains",
                                                "patternProperties",
                                                "propertyNames",
                                                "minProperties",
                                                "maxProperties",
                                                "dependentRequired",
                                                "dependentSchemas",
                                                "dependencies",
                                                "unevaluatedProperties",
                                                "unevaluatedItems",
                                                "additionalItems",
                                                "$dynamicRef",
                                                "$dynamicAnchor",
                                                "$recursiveRef",
                                                "contentSchema"};
  const char *names[KEYWORD_COUNT];
  char meant[MGL_MEANT_BYTES];
  for (size_t i = 0; i < sizeof known_elsewhere / sizeof *known_elsewhere; i++) {
    if (strcmp(name, known_elsewhere[i]) == 0) {
      (void)mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED, "\"%s\" is not supported", name);
      return;
    }
  }
  for (size_t i = 0; i < KEYWORD_COUNT; i++) {
    names[i] = keywords[i].name;
  }
  mgl_words_ask("", name, names, KEYWORD_COUNT, meant);
  (void)mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "\"%.60s\": no keyword of a schema%s", name,
                        meant);
}

// The types of which the schema's keywords say something; ANY_TYPE if they name none.
static unsigned check_keywords(mgl_schema_reader *r, const json_t *schema,
                               const mgl_schema_place *place) {
  unsigned implied = 0;
  const char *name = NULL;
  json_t *value = NULL;
  json_object_foreach((json_t *)schema, name, value) {
    size_t i = find_keyword(name);
    if (i == KEYWORD_COUNT && !is_extension(name)) {
      refuse_unknown(r, name, place);
    } else if (i < KEYWORD_COUNT && keywords[i].types != ANY_TYPE) {
      implied |= keywords[i].types;
    }
  }
  if (json_object_get(schema, "uniqueItems") != NULL &&
      !json_is_false(json_object_get(schema, "uniqueItems"))) {
    (void)mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                          "\"uniqueItems\" is not supported (but for false)");
  }
  return implied == 0 ? ANY_TYPE : implied;
}

static unsigned type_bit(const json_t *name) {
  static const struct {
    const char *name;
    unsigned types;
  } types[] = {{"object", OBJECT}, {"array", ARRAY},     {"string", STRING}, {"integer", INTEGER},
               {"number", NUMBER}, {"boolean", BOOLEAN}, {"null", NOTHING}};
  for (size_t i = 0; i < sizeof types / sizeof *types && json_is_string(name); i++) {
    if (strcmp(types[i].name, json_string_value(name)) == 0) {
      return types[i].types;
    }
  }
  return 0;
}

// A set of types; 0 after a failure.
static unsigned read_types(mgl_schema_reader *r, const json_t *schema, unsigned implied,
                           const mgl_schema_place *place) {
  const json_t *type = json_object_get(schema, "type");
  unsigned types = type == NULL ? implied : type_bit(type);
  for (size_t i = 0; i < json_array_size(type); i++) {
    unsigned one = type_bit(json_array_get(type, i));
    if (one == 0) {
      types = 0;
      break;
    }
    types |= one;
  }
  if (types == 0) {
    (void)mgl_schema_fail(r, place, MGL_ERR_ARGUMENT,
                          "\"type\": expected one or a list of object, array, string, number, "
                          "integer, boolean and null");
  }
  return types;
}

// --- values --------------------------------------------------------------------------------------

static unsigned type_of_value(const json_t *value) {
  switch (json_typeof(value)) {
    case JSON_OBJECT: return OBJECT;
    case JSON_ARRAY: return ARRAY;
    case JSON_STRING: return STRING;
    case JSON_INTEGER: return INTEGER;
    case JSON_REAL:
      return json_real_value(value) == (double)(int64_t)json_real_value(value) ? INTEGER : FRACTION;
    case JSON_TRUE:
    case JSON_FALSE: return BOOLEAN;
    case JSON_NULL: return NOTHING;
  }
  return 0;
}

const mgl_expression *mgl_schema_value(mgl_schema_reader *r, const json_t *value) {
  const mgl_expression *e = NULL;
  // With as few digits as mean the same numbers.
  for (size_t digits = 15; digits <= 17 && e == NULL && !mgl_builder_failed(r->b); digits++) {
    json_t *same = NULL;
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
    if (text == NULL) {
      return mgl_builder_fail(r->b, MGL_ERR_MEMORY, "out of memory for a schema");
    }
    same = json_loads(text, JSON_DECODE_ANY, NULL);
    if (digits == 17 || json_equal(value, same)) {
      e = mgl_expression_string(r->b, text);
    }
    json_decref(same);
    mgl_free(text);
  }
  return e;
}

// The values of enum or const that have one of the types.
static const mgl_expression *read_values(mgl_schema_reader *r, const json_t *schema, unsigned types,
                                         const mgl_schema_place *place) {
  static const char *const fine_beside[] = {"type", "enum", "const", "nullable"};
  const json_t *list = json_object_get(schema, "enum");
  const json_t *only = json_object_get(schema, "const");
  const char *name = NULL;
  json_t *item = NULL;
  if (list != NULL && (!json_is_array(list) || json_array_size(list) == 0)) {
    return mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "\"enum\": expected a list of values");
  }
  json_object_foreach((json_t *)schema, name, item) {
    bool is_fine = mgl_schema_is_annotation(name);
    for (size_t i = 0; i < sizeof fine_beside / sizeof *fine_beside; i++) {
      is_fine = is_fine || strcmp(fine_beside[i], name) == 0;
    }
    if (!is_fine) {
      return mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                             "\"%s\" beside \"%s\" is not supported: leave out the values that it "
                             "excludes",
                             name, list != NULL ? "enum" : "const");
    }
  }
  size_t count = list == NULL ? 1 : json_array_size(list);
  const mgl_expression **parts = mgl_builder_alloc(r->b, count, sizeof *parts);
  size_t kept = 0;
  for (size_t i = 0; i < count && parts != NULL; i++) {
    const json_t *value = list == NULL ? only : json_array_get(list, i);
    bool is_only = list == NULL || only == NULL || json_equal(value, only);
    if ((type_of_value(value) & types) != 0 && is_only) {
      parts[kept++] = mgl_schema_value(r, value);
    }
  }
  return parts == NULL ? NULL : mgl_expression_choice(r->b, parts, kept);
}

static const mgl_expression *read_plain(mgl_schema_reader *r, const json_t *schema, unsigned types,
                                        const mgl_schema_place *place) {
  enum { MOST_TYPES = 7 };
  const mgl_expression *parts[MOST_TYPES];
  size_t count = 0;
  if ((types & OBJECT) != 0) {
    parts[count++] = mgl_schema_object(r, schema, place);
  }
  if ((types & ARRAY) != 0) {
    parts[count++] = mgl_schema_array(r, schema, place);
  }
  if ((types & STRING) != 0) {
    parts[count++] = mgl_schema_string(r, schema, place);
  }
  if ((types & NUMBER) != 0) {
    parts[count++] = mgl_schema_number(r, schema, (types & FRACTION) == 0, place);
  }
  if ((types & BOOLEAN) != 0) {
    parts[count++] = r->rules->boolean;
  }
  if ((types & NOTHING) != 0) {
    parts[count++] = r->rules->null;
  }
  return mgl_expression_choice(r->b, parts, count);
}

// --- references ----------------------------------------------------------------------------------

// The next step of a JSON pointer, unescaped (~1 is /, ~0 is ~; %HH as in a URI).
static size_t read_step(const char *pointer, char *out, size_t size) {
  size_t at = 0;
  size_t count = 0;
  while (pointer[at] != 0 && pointer[at] != '/' && count + 1 < size) {
    unsigned code = 0;
    if (pointer[at] == '~' && (pointer[at + 1] == '0' || pointer[at + 1] == '1')) {
      out[count++] = pointer[at + 1] == '0' ? '~' : '/';
      at += 2;
    } else if (pointer[at] == '%' && sscanf(pointer + at + 1, "%2x", &code) == 1 && code != 0 &&
               strlen(pointer + at) >= 3) {
      out[count++] = (char)code;
      at += 3;
    } else {
      out[count++] = pointer[at++];
    }
  }
  out[count] = 0;
  return at;
}

const json_t *mgl_schema_resolve(mgl_schema_reader *r, const json_t *reference,
                                 const mgl_schema_place *place) {
  enum { STEP_BYTES = 256 };
  char step[STEP_BYTES];
  const char *text = json_string_value(reference);
  const json_t *target = r->root;
  if (text == NULL || text[0] != '#' || (text[1] != 0 && text[1] != '/')) {
    return mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                           "\"$ref\": expected a place in this schema, such as #/$defs/name, found "
                           "%.60s",
                           text == NULL ? "no text" : text);
  }
  for (const char *at = text + 1; *at == '/' && target != NULL;) {
    at += 1 + read_step(at + 1, step, sizeof step);
    if (json_is_array(target)) {
      char *end = NULL;
      unsigned long index = strtoul(step, &end, 10);
      target = step[0] == 0 || *end != 0 ? NULL : json_array_get(target, index);
    } else {
      target = json_object_get(target, step);
    }
    if (*at != 0 && *at != '/') {
      target = NULL;  // a step that is too long
    }
  }
  return target != NULL ? target
                        : mgl_schema_fail(r, place, MGL_ERR_ARGUMENT,
                                          "\"$ref\": %.100s is not in this schema", text);
}

// A rule for each schema that is referred to, so that recursion is recursion of rules.
static const mgl_expression *read_reference(mgl_schema_reader *r, const json_t *reference,
                                            const mgl_schema_place *place) {
  const json_t *target = mgl_schema_resolve(r, reference, place);
  void *items = r->references;
  if (target == NULL) {
    return NULL;
  }
  for (size_t i = 0; i < r->reference_count; i++) {
    if (r->references[i].target == target) {
      return mgl_expression_rule(r->b, r->references[i].rule);
    }
  }
  if (mgl_grow(&items, &r->reference_capacity, r->reference_count + 1, sizeof *r->references,
               NULL) != MGL_OK) {
    return mgl_builder_fail(r->b, MGL_ERR_MEMORY, "out of memory for a schema");
  }
  uint32_t rule = mgl_rule_add(r->b, json_string_value(reference));
  r->references = items;
  r->references[r->reference_count++] = (mgl_schema_reference){target, rule};
  const mgl_schema_place there = {.key = json_string_value(reference) + 1};
  mgl_rule_set(r->b, rule, mgl_schema_read(r, target, &there));
  return mgl_expression_rule(r->b, rule);
}

// --- choices -------------------------------------------------------------------------------------

// Whether a schema says anything but `keyword`.
static bool says_more_than(const json_t *schema, const char *keyword) {
  const char *name = NULL;
  json_t *value = NULL;
  json_object_foreach((json_t *)schema, name, value) {
    if (strcmp(name, keyword) != 0 && !mgl_schema_is_annotation(name)) {
      return true;
    }
  }
  return false;
}

// A schema whose `keyword` (with the rest of it) is replaced by what merging makes.
static const mgl_expression *read_merged(mgl_schema_reader *r, const json_t *rest,
                                         const json_t *other, const mgl_schema_place *place) {
  const json_t *merged = mgl_schema_merge(r, rest, other, place);
  return merged == NULL ? NULL : mgl_schema_read(r, merged, place);
}

static const json_t *list_of(mgl_schema_reader *r, const json_t *schema, const char *keyword,
                             const mgl_schema_place *place) {
  const json_t *list = json_object_get(schema, keyword);
  return json_array_size(list) > 0 ? list
                                   : mgl_schema_fail(r, place, MGL_ERR_ARGUMENT,
                                                     "\"%s\": expected a list of schemas", keyword);
}

// oneOf is anyOf where no two of its schemas hold at once.
static void check_one_of(mgl_schema_reader *r, const json_t *list, const mgl_schema_place *place) {
  for (size_t i = 0; i < json_array_size(list) && !mgl_builder_failed(r->b); i++) {
    for (size_t j = 0; j < i; j++) {
      if (!mgl_schema_exclude(r, json_array_get(list, i), json_array_get(list, j), place)) {
        (void)mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                              "\"oneOf\": schemas %zu and %zu might both hold (they differ neither "
                              "in type nor in the constant of a required property): use anyOf",
                              j, i);
        return;
      }
    }
  }
}

static const mgl_expression *read_any_of(mgl_schema_reader *r, const json_t *schema,
                                         const char *keyword, const mgl_schema_place *place) {
  const json_t *list = list_of(r, schema, keyword, place);
  bool has_more = says_more_than(schema, keyword);
  const mgl_schema_place inside = {.above = place, .key = keyword};
  size_t count = json_array_size(list);
  const mgl_expression **parts = mgl_builder_alloc(r->b, count + 1, sizeof *parts);
  json_t *rest = has_more ? mgl_schema_without(r, schema, &keyword, 1) : NULL;
  if (strcmp(keyword, "oneOf") == 0) {
    check_one_of(r, list, place);
  }
  if (list == NULL || parts == NULL || (has_more && rest == NULL) || mgl_builder_failed(r->b)) {
    return NULL;
  }
  for (size_t i = 0; i < count; i++) {
    const mgl_schema_place at = {.above = &inside, .index = i};
    const json_t *branch = json_array_get(list, i);
    parts[i] = has_more ? read_merged(r, rest, branch, &at) : mgl_schema_read(r, branch, &at);
  }
  return mgl_expression_choice(r->b, parts, count);
}

static const mgl_expression *read_all_of(mgl_schema_reader *r, const json_t *schema,
                                         const mgl_schema_place *place) {
  static const char *const keyword[] = {"allOf"};
  const json_t *list = list_of(r, schema, "allOf", place);
  const json_t *all = mgl_schema_without(r, schema, keyword, 1);
  for (size_t i = 0; i < json_array_size(list) && all != NULL; i++) {
    const json_t *branch = json_array_get(list, i);
    all = mgl_schema_merge(r, all, branch, place);
  }
  return all == NULL || list == NULL ? NULL : mgl_schema_read(r, all, place);
}

static const mgl_expression *read_nullable(mgl_schema_reader *r, const json_t *schema,
                                           const mgl_schema_place *place) {
  static const char *const keyword[] = {"nullable"};
  const json_t *rest = mgl_schema_without(r, schema, keyword, 1);
  const mgl_expression *e = rest == NULL ? NULL : mgl_schema_read(r, rest, place);
  return json_is_true(json_object_get(schema, "nullable")) ? MGL_CHOICE(r->b, e, r->rules->null)
                                                           : e;
}

static const mgl_expression *read_object(mgl_schema_reader *r, const json_t *schema,
                                         const mgl_schema_place *place) {
  unsigned implied = check_keywords(r, schema, place);
  if (mgl_builder_failed(r->b)) {
    return NULL;
  }
  if (json_object_get(schema, "nullable") != NULL) {
    return read_nullable(r, schema, place);
  }
  if (json_object_get(schema, "$ref") != NULL) {
    const json_t *reference = json_object_get(schema, "$ref");
    if (!says_more_than(schema, "$ref")) {
      return read_reference(r, reference, place);
    }
    static const char *const keyword[] = {"$ref"};
    const json_t *target = mgl_schema_resolve(r, reference, place);
    const json_t *rest = mgl_schema_without(r, schema, keyword, 1);
    return target == NULL || rest == NULL ? NULL : read_merged(r, rest, target, place);
  }
  if (json_object_get(schema, "allOf") != NULL) {
    return read_all_of(r, schema, place);
  }
  if (json_object_get(schema, "anyOf") != NULL) {
    return read_any_of(r, schema, "anyOf", place);
  }
  if (json_object_get(schema, "oneOf") != NULL) {
    return read_any_of(r, schema, "oneOf", place);
  }
  bool has_values =
      json_object_get(schema, "enum") != NULL || json_object_get(schema, "const") != NULL;
  unsigned types = read_types(r, schema, has_values ? ANY_TYPE : implied, place);
  if (types == 0) {
    return NULL;
  }
  if (has_values) {
    return read_values(r, schema, types, place);
  }
  return types == ANY_TYPE && implied == ANY_TYPE ? r->rules->value
                                                  : read_plain(r, schema, types, place);
}

const mgl_expression *mgl_schema_read(mgl_schema_reader *r, const json_t *schema,
                                      const mgl_schema_place *place) {
  const mgl_expression *e = NULL;
  if (mgl_builder_failed(r->b)) {
    return NULL;
  }
  if (++r->part_count > MGL_JSON_SCHEMA_MAX_PARTS || r->depth > MGL_JSON_SCHEMA_MAX_DEPTH) {
    return mgl_schema_fail(r, place, MGL_ERR_LIMIT, "more than %d schemas within each other",
                           r->depth > MGL_JSON_SCHEMA_MAX_DEPTH ? MGL_JSON_SCHEMA_MAX_DEPTH
                                                                : MGL_JSON_SCHEMA_MAX_PARTS);
  }
  r->depth++;
  if (json_is_true(schema)) {
    e = r->rules->value;
  } else if (json_is_false(schema)) {
    e = mgl_expression_choice(r->b, NULL, 0);
  } else if (json_is_object(schema)) {
    e = read_object(r, schema, place);
  } else {
    e = mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "expected a schema: an object, true or false");
  }
  r->depth--;
  return e;
}

const mgl_expression *mgl_json_schema_expression(mgl_builder *b, const mgl_json_rules *rules,
                                                 const json_t *schema) {
  mgl_schema_reader r = {.b = b, .rules = rules, .root = schema, .made = json_array()};
  const mgl_schema_place place = {.key = ""};
  const mgl_expression *e = r.made == NULL
                                ? mgl_builder_fail(b, MGL_ERR_MEMORY, "out of memory for a schema")
                                : mgl_schema_read(&r, schema, &place);
  json_decref(r.made);
  mgl_free(r.references);
  return e;
}
