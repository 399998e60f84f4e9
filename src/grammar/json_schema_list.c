// Objects and arrays of a schema.
#include <string.h>

#include "grammar/json_schema_parts.h"
#include "text/unicode.h"

enum {
  MOST_KEY_BYTES = 256,  // of properties beside which there may be others
  MOST_NESTED = 128,     // expressions within each other, before a rule begins
};

static const mgl_expression *in_rule(mgl_builder *b, const char *name, const mgl_expression *body) {
  uint32_t rule = mgl_rule_add(b, name);
  mgl_rule_set(b, rule, body);
  return mgl_expression_rule(b, rule);
}

// --- keys that are none of some ------------------------------------------------------------------

// A character of a key that is no escape.
static const mgl_code_range key_characters[] = {
    {' ', '!'}, {'#', '['}, {']', MGL_GRAMMAR_MAX_CODE}};
enum { KEY_RANGES = 3 };

static const mgl_expression *rest_of_key(mgl_schema_reader *r) {
  return MGL_SEQUENCE(
      r->b,
      mgl_expression_repeat(r->b, mgl_expression_set(r->b, key_characters, KEY_RANGES), 0,
                            MGL_REPEAT_UNBOUNDED),
      r->rules->quote);
}

typedef struct key_list {
  const char **keys;  // [count] that begin alike up to `at`
  size_t count;
} key_list;

// What may follow the first `at` bytes of these keys so that none of them is spelled.
static const mgl_expression *other_key(mgl_schema_reader *r, key_list list, size_t at) {
  mgl_builder *b = r->b;
  mgl_code_range *taken = mgl_builder_alloc(b, list.count + 1, sizeof *taken);
  const mgl_expression **parts = mgl_builder_alloc(b, list.count + 2, sizeof *parts);
  const char **same = mgl_builder_alloc(b, list.count + 1, sizeof *same);
  size_t part_count = 0;
  size_t taken_count = 0;
  size_t rest_count = 0;
  bool ends_here = false;
  if (taken == NULL || parts == NULL || same == NULL) {
    return NULL;
  }
  for (size_t i = 0; i < list.count; i++) {
    size_t next = at;
    if (list.keys[i][at] == 0) {
      ends_here = true;
      continue;
    }
    uint32_t code = mgl_utf8_next(list.keys[i], &next);
    bool is_done = false;
    for (size_t j = 0; j < taken_count; j++) {
      is_done = is_done || taken[j].first == code;
    }
    if (is_done) {
      continue;
    }
    size_t same_count = 0;
    for (size_t j = i; j < list.count; j++) {
      if (strncmp(list.keys[j] + at, list.keys[i] + at, next - at) == 0) {
        same[same_count++] = list.keys[j];
      }
    }
    taken[taken_count++] = (mgl_code_range){code, code};
    parts[part_count++] = MGL_SEQUENCE(b, mgl_expression_bytes(b, list.keys[i] + at, next - at),
                                       other_key(r, (key_list){same, same_count}, next));
  }
  const mgl_code_range *rest =
      mgl_ranges_without(b, key_characters, KEY_RANGES, taken, taken_count, &rest_count);
  parts[part_count++] =
      rest == NULL ? NULL
                   : MGL_SEQUENCE(b, mgl_expression_set(b, rest, rest_count), rest_of_key(r));
  if (!ends_here) {
    parts[part_count++] = r->rules->quote;
  }
  return mgl_expression_choice(b, parts, part_count);
}

// A key that is none of the properties.
static const mgl_expression *additional_key(mgl_schema_reader *r, const json_t *properties,
                                            const mgl_schema_place *place) {
  const char **keys = mgl_builder_alloc(r->b, json_object_size(properties) + 1, sizeof *keys);
  size_t count = 0;
  const char *name = NULL;
  json_t *property = NULL;
  if (keys == NULL) {
    return NULL;
  }
  json_object_foreach((json_t *)properties, name, property) {
    bool needs_escape = false;  // which additional keys do not have
    for (const char *c = name; *c != 0; c++) {
      needs_escape = needs_escape || (unsigned char)*c < ' ' || *c == '"' || *c == '\\';
    }
    if (strlen(name) > MOST_KEY_BYTES) {
      return mgl_schema_fail(r, place, MGL_ERR_LIMIT,
                             "\"properties\": expected keys of at most %d bytes beside "
                             "additionalProperties",
                             MOST_KEY_BYTES);
    }
    if (!needs_escape) {
      keys[count++] = name;
    }
  }
  return MGL_SEQUENCE(r->b, r->rules->quote, other_key(r, (key_list){keys, count}, 0));
}

// --- objects -------------------------------------------------------------------------------------

typedef struct member {
  const mgl_expression *expression;  // NULL: it may not be there
  bool is_required;
} member;

static bool is_required(const json_t *required, const char *name) {
  for (size_t i = 0; i < json_array_size(required); i++) {
    const json_t *item = json_array_get(required, i);
    if (json_is_string(item) && strcmp(json_string_value(item), name) == 0) {
      return true;
    }
  }
  return false;
}

static const mgl_expression *read_member(mgl_schema_reader *r, const char *name,
                                         const json_t *schema, const mgl_schema_place *place) {
  json_t *key = json_string(name);
  if (key == NULL) {
    return mgl_builder_fail(r->b, MGL_ERR_MEMORY, "out of memory for a schema");
  }
  const mgl_expression *written = mgl_schema_value(r, key);
  json_decref(key);
  return mgl_json_member(r->rules, written, mgl_schema_read(r, schema, place));
}

typedef struct object_parts {
  member *members;  // [count] in order
  size_t count;
  const mgl_expression *additional;  // a member that is none of them; NULL: none
} object_parts;

static void read_members(mgl_schema_reader *r, const json_t *schema, object_parts *out,
                         const mgl_schema_place *place) {
  const json_t *properties = json_object_get(schema, "properties");
  const json_t *required = json_object_get(schema, "required");
  const json_t *additional = json_object_get(schema, "additionalProperties");
  const mgl_schema_place inside = {.above = place, .key = "properties"};
  const mgl_schema_place rest = {.above = place, .key = "additionalProperties"};
  json_t *anything = json_true();
  const char *name = NULL;
  json_t *property = NULL;
  out->members = mgl_builder_alloc(
      r->b, json_object_size(properties) + json_array_size(required) + 1, sizeof *out->members);
  if (out->members == NULL) {
    return;
  }
  json_object_foreach((json_t *)properties, name, property) {
    const mgl_schema_place at = {.above = &inside, .key = name};
    bool must = is_required(required, name);
    if (!json_is_false(property)) {
      out->members[out->count++] = (member){read_member(r, name, property, &at), must};
    } else if (must) {
      out->members[out->count++] = (member){mgl_expression_choice(r->b, NULL, 0), true};
    }
  }
  // What must be there and is no property has the schema of additional ones.
  const json_t *others = additional == NULL ? anything : additional;
  for (size_t i = 0; i < json_array_size(required) && !mgl_builder_failed(r->b); i++) {
    name = json_string_value(json_array_get(required, i));
    if (name == NULL) {
      (void)mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "\"required\": expected a list of texts");
    } else if (json_object_get(properties, name) == NULL && json_is_false(others)) {
      (void)mgl_schema_fail(r, place, MGL_ERR_ARGUMENT,
                            "\"required\": %.60s is not in properties, and additionalProperties "
                            "is false",
                            name);
    } else if (json_object_get(properties, name) == NULL) {
      out->members[out->count++] = (member){read_member(r, name, others, &rest), true};
    }
  }
  if (additional != NULL && !json_is_false(additional)) {
    out->additional = mgl_json_member(r->rules, additional_key(r, properties, place),
                                      mgl_schema_read(r, additional, &rest));
    if (json_array_size(required) > json_object_size(properties)) {
      // Keys that are required and no properties might come twice.
      out->additional = mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                                        "\"required\": expected names of properties beside "
                                        "additionalProperties");
    }
  }
}

// Members in their order, with commas: from each optional member at the beginning on, and behind
// the first one all that follow. What can be first is a rule, since it can follow, too.
static const mgl_expression *join_members(mgl_schema_reader *r, object_parts *o) {
  mgl_builder *b = r->b;
  const mgl_expression *comma = mgl_json_comma(r->rules);
  const mgl_expression *first = mgl_expression_choice(b, NULL, 0);  // of what is at i or behind
  const mgl_expression *rest = mgl_expression_sequence(b, NULL, 0);
  size_t optional = 0;
  while (optional < o->count && !o->members[optional].is_required) {
    optional++;
  }
  if (o->additional != NULL) {
    o->additional = in_rule(b, "additional property", o->additional);
    rest = in_rule(
        b, "additional properties",
        mgl_expression_repeat(b, MGL_SEQUENCE(b, comma, o->additional), 0, MGL_REPEAT_UNBOUNDED));
    first = MGL_SEQUENCE(b, o->additional, rest);
  }
  for (size_t i = o->count; i > 0 && !mgl_builder_failed(b); i--) {
    const mgl_expression *here = o->members[i - 1].expression;
    bool may_be_first = i - 1 <= optional;
    if (may_be_first && i > 1) {
      here = in_rule(b, "property", here);
    }
    if (may_be_first) {
      const mgl_expression *from_here = MGL_SEQUENCE(b, here, rest);
      first = o->members[i - 1].is_required ? from_here : MGL_CHOICE(b, from_here, first);
    }
    const mgl_expression *with_comma = MGL_SEQUENCE(b, comma, here);
    if (!o->members[i - 1].is_required) {
      with_comma = mgl_expression_optional(b, with_comma);
    }
    rest = MGL_SEQUENCE(b, with_comma, rest);
    if (i > 1 && (i - 2 <= optional || i % MOST_NESTED == 0)) {
      rest = in_rule(b, "properties", rest);
    }
  }
  return first;
}

const mgl_expression *mgl_schema_object(mgl_schema_reader *r, const json_t *schema,
                                        const mgl_schema_place *place) {
  const json_t *properties = json_object_get(schema, "properties");
  const json_t *required = json_object_get(schema, "required");
  object_parts o = {0};
  if ((properties != NULL && !json_is_object(properties)) ||
      (required != NULL && !json_is_array(required))) {
    return mgl_schema_fail(r, place, MGL_ERR_ARGUMENT,
                           "expected \"properties\" to be an object and \"required\" a list");
  }
  if (properties == NULL && json_array_size(required) == 0 &&
      (json_object_get(schema, "additionalProperties") == NULL ||
       json_is_true(json_object_get(schema, "additionalProperties")))) {
    return r->rules->object;
  }
  read_members(r, schema, &o, place);
  if (mgl_builder_failed(r->b)) {
    return NULL;
  }
  bool may_be_empty = true;
  for (size_t i = 0; i < o.count; i++) {
    may_be_empty = may_be_empty && !o.members[i].is_required;
  }
  const mgl_expression *none =
      mgl_json_brackets(r->rules, "{", mgl_expression_sequence(r->b, NULL, 0), "}");
  const mgl_expression *some = mgl_json_brackets(r->rules, "{", join_members(r, &o), "}");
  return may_be_empty ? MGL_CHOICE(r->b, none, some) : some;
}

// --- arrays --------------------------------------------------------------------------------------

const mgl_expression *mgl_schema_array(mgl_schema_reader *r, const json_t *schema,
                                       const mgl_schema_place *place) {
  mgl_builder *b = r->b;
  const json_t *prefix = json_object_get(schema, "prefixItems");
  const json_t *items = json_object_get(schema, "items");
  const mgl_schema_place prefix_place = {.above = place, .key = "prefixItems"};
  const mgl_schema_place items_place = {.above = place, .key = "items"};
  uint64_t min = mgl_schema_count(r, schema, "minItems", 0, place);
  uint64_t max = mgl_schema_count(r, schema, "maxItems", MGL_REPEAT_UNBOUNDED, place);
  size_t fixed = json_array_size(prefix);
  if (json_is_array(items) || (prefix != NULL && !json_is_array(prefix))) {
    return mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                           "expected \"items\" to be a schema and \"prefixItems\" a list of them");
  }
  max = json_is_false(items) && max > fixed ? fixed : max;
  if (mgl_builder_failed(b) || max < min) {
    return mgl_expression_choice(b, NULL, 0);
  }
  const mgl_expression *comma = mgl_json_comma(r->rules);
  const mgl_expression *none =
      mgl_json_brackets(r->rules, "[", mgl_expression_sequence(b, NULL, 0), "]");
  fixed = fixed > max ? (size_t)max : fixed;
  // From the end: what follows the first k items.
  const mgl_expression *rest = mgl_expression_sequence(b, NULL, 0);
  const mgl_expression *item = NULL;
  if (max > fixed) {
    uint64_t before = fixed == 0 ? 1 : fixed;
    item = items == NULL ? r->rules->value
                         : in_rule(b, "item", mgl_schema_read(r, items, &items_place));
    rest = mgl_expression_repeat(b, MGL_SEQUENCE(b, comma, item), min > before ? min - before : 0,
                                 max == MGL_REPEAT_UNBOUNDED ? max : max - before);
  }
  for (size_t k = fixed; k > 0 && !mgl_builder_failed(b); k--) {
    const mgl_schema_place at = {.above = &prefix_place, .index = k - 1};
    item = mgl_schema_read(r, json_array_get(prefix, k - 1), &at);
    if (k > 1) {
      rest = MGL_SEQUENCE(b, comma, item, rest);
      rest = k - 1 >= min ? mgl_expression_optional(b, rest) : rest;
      rest = k % MOST_NESTED == 0 ? in_rule(b, "items", rest) : rest;
    }
  }
  if (max == 0) {
    return none;
  }
  const mgl_expression *some = mgl_json_brackets(r->rules, "[", MGL_SEQUENCE(b, item, rest), "]");
  return min == 0 ? MGL_CHOICE(b, none, some) : some;
}
