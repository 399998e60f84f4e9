// What the files of the JSON Schema compiler share: json_schema.c (keywords, references, choices),
// json_schema_merge.c (two schemas that hold at once), json_schema_list.c (objects and arrays),
// json_schema_string.c, json_schema_number.c and json_schema_multiple.c.
#ifndef MGL_GRAMMAR_JSON_SCHEMA_PARTS_H
#define MGL_GRAMMAR_JSON_SCHEMA_PARTS_H

#include "grammar/json_schema.h"

enum { MGL_JSON_SCHEMA_MAX_DEPTH = 512 };  // of the reader's recursion

// Where a schema stands, for messages: a chain of keys on the reader's stack.
typedef struct mgl_schema_place {
  const struct mgl_schema_place *above;  // NULL: the root, or where a reference leads (`key`)
  const char *key;                       // NULL: index
  size_t index;
} mgl_schema_place;

typedef struct mgl_schema_reference {
  const json_t *target;
  uint32_t rule;
} mgl_schema_reference;

typedef struct mgl_schema_reader {
  mgl_builder *b;
  const mgl_json_rules *rules;
  const json_t *root;
  json_t *made;                      // schemas that merging made, until the end
  mgl_schema_reference *references;  // [reference_count]
  size_t reference_count, reference_capacity;
  uint32_t part_count;
  uint32_t depth;
} mgl_schema_reader;

// "schema at /properties/a: " and the message. Returns NULL.
void *mgl_schema_fail(mgl_schema_reader *r, const mgl_schema_place *place, mgl_status status,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));

// Any schema.
const mgl_expression *mgl_schema_read(mgl_schema_reader *r, const json_t *schema,
                                      const mgl_schema_place *place);
// The schema that a reference names; NULL after a failure.
const json_t *mgl_schema_resolve(mgl_schema_reader *r, const json_t *reference,
                                 const mgl_schema_place *place);
// A schema that says what both say. Borrowed from the reader; NULL after a failure.
const json_t *mgl_schema_merge(mgl_schema_reader *r, const json_t *a, const json_t *b,
                               const mgl_schema_place *place);
// Whether it is plain that no value is valid by both: other types, other constants.
bool mgl_schema_exclude(mgl_schema_reader *r, const json_t *a, const json_t *b,
                        const mgl_schema_place *place);
// The schema without some of its keywords. Borrowed likewise.
json_t *mgl_schema_without(mgl_schema_reader *r, const json_t *schema, const char *const *keywords,
                           size_t count);
// Whether a keyword says nothing about which values are valid.
bool mgl_schema_is_annotation(const char *keyword);

// Of schemas of that type.
const mgl_expression *mgl_schema_object(mgl_schema_reader *r, const json_t *schema,
                                        const mgl_schema_place *place);
const mgl_expression *mgl_schema_array(mgl_schema_reader *r, const json_t *schema,
                                       const mgl_schema_place *place);
const mgl_expression *mgl_schema_string(mgl_schema_reader *r, const json_t *schema,
                                        const mgl_schema_place *place);
const mgl_expression *mgl_schema_number(mgl_schema_reader *r, const json_t *schema, bool is_integer,
                                        const mgl_schema_place *place);

// An optional keyword that is a count; `missing` if it is not there.
uint64_t mgl_schema_count(mgl_schema_reader *r, const json_t *schema, const char *keyword,
                          uint64_t missing, const mgl_schema_place *place);
// One value as compact JSON, or with the blanks that other values may have.
const mgl_expression *mgl_schema_value(mgl_schema_reader *r, const json_t *value);

// Numbers of `places` digits behind the point that, without the point, are multiples of a divisor.
enum { MGL_JSON_MAX_DIVISOR = 512 };  // once what makes only zeros is taken out of it

typedef struct mgl_multiples {
  mgl_builder *b;
  uint64_t divisor;  // 1 to MGL_JSON_MAX_DIVISOR
  uint32_t places;
  uint32_t zeros;  // that stand behind a multiple of the divisor
  uint32_t
      *rules;  // [MGL_JSON_MAX_INTEGER_DIGITS + 1, divisor] one more than the rule; 0: not made
} mgl_multiples;

mgl_multiples mgl_multiples_make(mgl_builder *b, uint64_t divisor, uint32_t places);
// Those from low to high, as they are without the point.
const mgl_expression *mgl_multiples_between(mgl_multiples *m, uint64_t low, uint64_t high);

#endif
