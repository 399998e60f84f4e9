// Schemas that hold at once, as one schema; and schemas that cannot hold at once.
#include <string.h>

#include "grammar/json_schema_parts.h"

enum { MOST_PAIRS = 4096, MOST_LOOK = 6 };

// Gives a new value to the reader's keeping; NULL if there is none.
static json_t *keep(mgl_schema_reader *r, json_t *value) {
  if (value == NULL || json_array_append_new(r->made, value) != 0) {
    return mgl_builder_fail(r->b, MGL_ERR_MEMORY, "out of memory for a schema");
  }
  return value;
}

json_t *mgl_schema_without(mgl_schema_reader *r, const json_t *schema, const char *const *keywords,
                           size_t count) {
  json_t *copy = keep(r, json_copy((json_t *)schema));
  for (size_t i = 0; copy != NULL && i < count; i++) {
    (void)json_object_del(copy, keywords[i]);
  }
  return copy;
}

// A new reference to a schema that says what both say, worked out later.
static json_t *both(json_t *a, json_t *b) {
  if (a == NULL || json_is_true(a) || (b != NULL && json_equal(a, b))) {
    return json_incref(b == NULL ? a : b);
  }
  if (b == NULL || json_is_true(b)) {
    return json_incref(a);
  }
  return json_is_false(a) || json_is_false(b) ? json_false()
                                              : json_pack("{s:[O,O]}", "allOf", a, b);
}

// --- one keyword that both have ------------------------------------------------------------------

static bool contains(const json_t *list, const json_t *value) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    if (json_equal(json_array_get(list, i), value)) {
      return true;
    }
  }
  return !json_is_array(list) && json_equal(list, value);
}

static bool is_string(const json_t *value, const char *string) {
  return json_is_string(value) && strcmp(json_string_value(value), string) == 0;
}

// What two types, or lists of them, share; an integer is a number.
static json_t *common_types(const json_t *a, const json_t *b) {
  json_t *out = json_array();
  json_t *integer = json_string("integer");
  json_t *number = json_string("number");
  size_t count = json_is_array(a) ? json_array_size(a) : 1;
  for (size_t i = 0; i < count; i++) {
    json_t *type = json_is_array(a) ? json_array_get(a, i) : (json_t *)a;
    if (contains(b, type) || (is_string(type, "integer") && contains(b, number))) {
      (void)json_array_append(out, type);
    } else if (is_string(type, "number") && contains(b, integer)) {
      (void)json_array_append(out, integer);
    }
  }
  json_decref(integer);
  json_decref(number);
  return out;
}

static json_t *common_values(const json_t *a, const json_t *b) {
  json_t *out = json_array();
  for (size_t i = 0; i < json_array_size(a); i++) {
    if (contains(b, json_array_get(a, i))) {
      (void)json_array_append(out, json_array_get(a, i));
    }
  }
  return out;
}

static json_t *joined(const json_t *a, const json_t *b, bool once) {
  json_t *out = json_copy((json_t *)a);
  for (size_t i = 0; i < json_array_size(b); i++) {
    if (!once || !contains(a, json_array_get(b, i))) {
      (void)json_array_append(out, json_array_get(b, i));
    }
  }
  return out;
}

static json_t *all_pairs(const json_t *a, const json_t *b) {
  json_t *out = json_array();
  if (json_array_size(a) * json_array_size(b) > MOST_PAIRS) {
    json_decref(out);
    return NULL;
  }
  for (size_t i = 0; i < json_array_size(a); i++) {
    for (size_t j = 0; j < json_array_size(b); j++) {
      (void)json_array_append_new(out, both(json_array_get(a, i), json_array_get(b, j)));
    }
  }
  return out;
}

static json_t *bound(json_t *a, json_t *b, bool larger) {
  bool a_is_larger = json_number_value(a) > json_number_value(b);
  return json_incref(a_is_larger == larger ? a : b);
}

// A new reference; NULL where the two cannot be made one.
static json_t *combine(const char *keyword, json_t *a, json_t *b) {
  static const char *const larger[] = {"minimum", "exclusiveMinimum", "minLength", "minItems"};
  static const char *const smaller[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems"};
  for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
    bool is_one = strcmp(keyword, larger[i]) == 0 || strcmp(keyword, smaller[i]) == 0;
    if (is_one && json_is_number(a) && json_is_number(b)) {
      return bound(a, b, strcmp(keyword, larger[i]) == 0);
    }
  }
  if (json_equal(a, b)) {
    return json_incref(a);
  }
  if (strcmp(keyword, "type") == 0) {
    return common_types(a, b);
  }
  if (strcmp(keyword, "enum") == 0) {
    return common_values(a, b);
  }
  if (strcmp(keyword, "required") == 0) {
    return joined(a, b, true);
  }
  if (strcmp(keyword, "allOf") == 0) {
    return joined(a, b, false);
  }
  if (strcmp(keyword, "anyOf") == 0 || strcmp(keyword, "oneOf") == 0) {
    return all_pairs(a, b);
  }
  return strcmp(keyword, "items") == 0 || strcmp(keyword, "additionalProperties") == 0 ? both(a, b)
                                                                                       : NULL;
}

// --- two schemas ---------------------------------------------------------------------------------

// What `from` says of its properties, with what `other` says of others, to *out.
static void merge_properties(const json_t *from, const json_t *other, json_t *out) {
  const json_t *others = json_object_get(other, "properties");
  json_t *rest = json_object_get(other, "additionalProperties");
  const char *name = NULL;
  json_t *property = NULL;
  json_object_foreach(json_object_get(from, "properties"), name, property) {
    json_t *same = json_object_get(others, name);
    if (json_object_get(out, name) == NULL) {
      (void)json_object_set_new(out, name, both(property, same != NULL ? same : rest));
    }
  }
}

// A schema without $ref at its top.
static const json_t *without_reference(mgl_schema_reader *r, const json_t *schema,
                                       const mgl_schema_place *place) {
  static const char *const keyword[] = {"$ref"};
  const json_t *reference = json_object_get(schema, "$ref");
  if (reference == NULL) {
    return schema;
  }
  const json_t *target = mgl_schema_resolve(r, reference, place);
  const json_t *rest = mgl_schema_without(r, schema, keyword, 1);
  return target == NULL || rest == NULL ? NULL : mgl_schema_merge(r, target, rest, place);
}

// `items` are those behind the `prefixItems` of the same schema, so the two cannot come from two.
static bool mixes_items(const json_t *a, const json_t *b) {
  const json_t *a_prefix = json_object_get(a, "prefixItems");
  const json_t *b_prefix = json_object_get(b, "prefixItems");
  bool a_has_items = json_object_get(a, "items") != NULL;
  bool b_has_items = json_object_get(b, "items") != NULL;
  return (a_prefix != NULL && b_prefix == NULL && b_has_items) ||
         (b_prefix != NULL && a_prefix == NULL && a_has_items);
}

static const json_t *merge_objects(mgl_schema_reader *r, const json_t *a, const json_t *b,
                                   const mgl_schema_place *place) {
  json_t *out = keep(r, json_copy((json_t *)a));
  json_t *properties = json_object();
  const char *keyword = NULL;
  json_t *value = NULL;
  if (mixes_items(a, b)) {
    json_decref(properties);
    return mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                           "\"prefixItems\" of one schema and \"items\" of another at once are not "
                           "supported");
  }
  json_object_foreach((json_t *)b, keyword, value) {
    json_t *mine = json_object_get(a, keyword);
    if (strcmp(keyword, "properties") == 0 || (mine != NULL && mgl_schema_is_annotation(keyword))) {
      continue;
    }
    json_t *one = mine == NULL ? json_incref(value) : combine(keyword, mine, value);
    if (one == NULL) {
      json_decref(properties);
      return mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                             "two different \"%s\" at once (through allOf, $ref, anyOf or what "
                             "stands beside them) are not supported",
                             keyword);
    }
    (void)json_object_set_new(out, keyword, one);
  }
  merge_properties(a, b, properties);
  merge_properties(b, a, properties);
  bool has_any =
      json_object_get(a, "properties") != NULL || json_object_get(b, "properties") != NULL;
  if (out == NULL || properties == NULL ||
      (has_any && json_object_set(out, "properties", properties) != 0)) {
    json_decref(properties);
    return mgl_builder_fail(r->b, MGL_ERR_MEMORY, "out of memory for a schema");
  }
  json_decref(properties);
  return out;
}

const json_t *mgl_schema_merge(mgl_schema_reader *r, const json_t *a, const json_t *b,
                               const mgl_schema_place *place) {
  if (++r->part_count > MGL_JSON_SCHEMA_MAX_PARTS || r->depth > MGL_JSON_SCHEMA_MAX_DEPTH) {
    return mgl_schema_fail(r, place, MGL_ERR_LIMIT, "it refers to itself in a circle, or is large");
  }
  r->depth++;
  const json_t *out = NULL;
  a = without_reference(r, a, place);
  b = a == NULL ? NULL : without_reference(r, b, place);
  if (a == NULL || b == NULL) {
    out = NULL;
  } else if (json_is_true(a) || json_is_false(b)) {
    out = b;
  } else if (json_is_true(b) || json_is_false(a)) {
    out = a;
  } else if (!json_is_object(a) || !json_is_object(b)) {
    out =
        mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "expected a schema: an object, true or false");
  } else {
    out = merge_objects(r, a, b, place);
  }
  r->depth--;
  return out;
}

// --- schemas that exclude each other -------------------------------------------------------------

static bool is_required(const json_t *schema, const char *name) {
  const json_t *list = json_object_get(schema, "required");
  for (size_t i = 0; i < json_array_size(list); i++) {
    if (is_string(json_array_get(list, i), name)) {
      return true;
    }
  }
  return false;
}

static bool types_exclude(const json_t *a, const json_t *b) {
  json_t *common = a == NULL || b == NULL ? NULL : common_types(a, b);
  bool are_apart = common != NULL && json_array_size(common) == 0;
  json_decref(common);
  return are_apart;
}

// Whether all values of one are none of the other's.
static bool values_exclude(const json_t *a, const json_t *b) {
  const json_t *a_only = json_object_get(a, "const");
  const json_t *b_only = json_object_get(b, "const");
  const json_t *a_list = json_object_get(a, "enum");
  const json_t *b_list = json_object_get(b, "enum");
  if ((a_only == NULL && a_list == NULL) || (b_only == NULL && b_list == NULL)) {
    return false;
  }
  size_t count = a_only != NULL ? 1 : json_array_size(a_list);
  for (size_t i = 0; i < count; i++) {
    const json_t *value = a_only != NULL ? a_only : json_array_get(a_list, i);
    if (b_only != NULL ? json_equal(value, b_only) : contains(b_list, value)) {
      return false;
    }
  }
  return true;
}

static bool exclude(mgl_schema_reader *r, const json_t *a, const json_t *b, int look,
                    const mgl_schema_place *place);

// Whether a member that both must have, or that one must have and the other may not, tells.
static bool members_exclude(mgl_schema_reader *r, const json_t *a, const json_t *b, int look,
                            const mgl_schema_place *place) {
  const json_t *theirs = json_object_get(b, "properties");
  bool is_closed = json_is_false(json_object_get(b, "additionalProperties"));
  const char *name = NULL;
  json_t *property = NULL;
  json_object_foreach(json_object_get(a, "properties"), name, property) {
    const json_t *other = json_object_get(theirs, name);
    if (is_required(a, name) &&
        (other == NULL ? is_closed
                       : is_required(b, name) && exclude(r, property, other, look - 1, place))) {
      return true;
    }
  }
  return false;
}

static bool exclude(mgl_schema_reader *r, const json_t *a, const json_t *b, int look,
                    const mgl_schema_place *place) {
  if (look == 0) {
    return false;
  }
  if (json_object_get(a, "$ref") != NULL) {
    a = mgl_schema_resolve(r, json_object_get(a, "$ref"), place);
    return a != NULL && exclude(r, a, b, look - 1, place);
  }
  if (json_object_get(b, "$ref") != NULL) {
    return exclude(r, b, a, look - 1, place);
  }
  if (json_is_false(a) || json_is_false(b)) {
    return true;
  }
  if (json_object_get(a, "nullable") != NULL || json_object_get(b, "nullable") != NULL) {
    return false;
  }
  bool are_objects = is_string(json_object_get(a, "type"), "object") &&
                     is_string(json_object_get(b, "type"), "object");
  return types_exclude(json_object_get(a, "type"), json_object_get(b, "type")) ||
         values_exclude(a, b) ||
         (are_objects &&
          (members_exclude(r, a, b, look, place) || members_exclude(r, b, a, look, place)));
}

bool mgl_schema_exclude(mgl_schema_reader *r, const json_t *a, const json_t *b,
                        const mgl_schema_place *place) {
  return exclude(r, a, b, MOST_LOOK, place);
}
