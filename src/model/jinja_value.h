// Values of the template interpreter, and the state of one render that all of them live in.
//
// A value is 24 bytes and passed by copy; lists, dicts and strings behind it lie in the render's
// arena (or are borrowed from the context or the template) and are never changed after they are
// built, except namespaces, loops and one-shot iterators. Everything goes at once when the render
// ends, so no value has an owner. Rejected: reference counts, for which a render has no use.
//
// The semantics are those of Python objects as Jinja shows them to a template.
#ifndef MGL_MODEL_JINJA_VALUE_H
#define MGL_MODEL_JINJA_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "model/jinja_text.h"

enum {
  JINJA_MAX_RENDER_DEPTH = 600,   // nested evaluations: expressions, blocks and macro calls
  JINJA_MAX_VALUE_DEPTH = 200,    // nesting of lists and dicts when printed or compared
  JINJA_MAX_CONTEXT_DEPTH = 128,  // nesting of the JSON context
  JINJA_MAX_RANGE = 100 * 1000,   // items of range(), as in Jinja's sandbox
  JINJA_MAX_PARAMETERS = 4,       // of a filter, test, method or global
};

typedef enum jinja_kind {
  JINJA_ABSENT,     // an argument that was not given; never seen by a template
  JINJA_UNDEFINED,  // string: the name for messages
  JINJA_NONE,
  JINJA_BOOL,
  JINJA_INT,
  JINJA_FLOAT,
  JINJA_STRING,
  JINJA_LIST,
  JINJA_TUPLE,
  JINJA_VIEW,      // dict.keys(), .values(), .items(): a list without subscripts
  JINJA_ITERATOR,  // what a lazy filter gives: always true, no length, can be read once
  JINJA_DICT,
  JINJA_RANGE,
  JINJA_NAMESPACE,
  JINJA_LOOP,
  JINJA_MACRO,
  JINJA_FUNCTION,  // a global function
  JINJA_METHOD,    // a method and the object it belongs to
} jinja_kind;

typedef enum jinja_view { JINJA_VIEW_KEYS, JINJA_VIEW_VALUES, JINJA_VIEW_ITEMS } jinja_view;

typedef struct jinja_value {
  uint8_t kind;  // jinja_kind
  uint8_t view;  // jinja_view of a VIEW
  bool safe;     // a STRING that went through |safe: Jinja would escape what is added to it
  union {
    bool boolean;
    int64_t integer;
    double number;
    jinja_string string;
    struct jinja_list *list;  // LIST, TUPLE, VIEW, ITERATOR
    struct jinja_dict *dict;  // DICT, NAMESPACE
    struct jinja_range *range;
    struct jinja_loop *loop;    // jinja_render.c
    struct jinja_macro *macro;  // jinja_render.c
    struct jinja_method *method;
    const struct jinja_builtin *function;
  };
} jinja_value;

typedef struct jinja_list {
  jinja_value *items;
  size_t count;
  size_t capacity;
  size_t cursor;  // items that an ITERATOR has handed out
} jinja_list;

typedef struct jinja_pair {
  jinja_value key;
  jinja_value value;
} jinja_pair;

// In insertion order. Searched linearly: messages and tools have few keys.
typedef struct jinja_dict {
  jinja_pair *pairs;
  size_t count;
  size_t capacity;
} jinja_dict;

typedef struct jinja_range {
  int64_t start, step, count;
} jinja_range;

// One render. Every function below that takes it can fail for memory, a limit or a type error.
typedef struct jinja_runtime {
  mgl_arena arena;
  const char *where;  // the template's name in messages; borrowed
  int line;           // of the construct being evaluated
  size_t steps;       // work done so far, against MGL_TEMPLATE_MAX_STEPS
  size_t depth;       // nested evaluations
  mgl_text *out;      // grows; captures (macros, block set) cut their part off again
  size_t out_start;   // bytes that the caller had in `out`
  struct jinja_scope *scope;
  jinja_dict context;
  int flow;  // jinja_render.c: a break or continue under way
  mgl_error *err;
} jinja_runtime;

// --- errors and bounds ---------------------------------------------------------------------------

// One message "WHERE: line N: ...".
mgl_status jinja_fail(const jinja_runtime *runtime, mgl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
mgl_status jinja_fail_memory(const jinja_runtime *runtime);
// Counts work; MGL_ERR_LIMIT when there was too much.
mgl_status jinja_charge(jinja_runtime *runtime, size_t steps);

// --- making values -------------------------------------------------------------------------------

jinja_value jinja_none(void);
jinja_value jinja_bool(bool value);
jinja_value jinja_int(int64_t value);
jinja_value jinja_float(double value);
jinja_value jinja_string_value(jinja_string text);  // borrows
jinja_value jinja_undefined(jinja_string name);     // borrows
mgl_status jinja_text_new(jinja_runtime *runtime, size_t bytes, char **out);
mgl_status jinja_text_concat(jinja_runtime *runtime, jinja_string a, jinja_string b,
                             jinja_string *out);
// An empty list in *out; kind is LIST, TUPLE, VIEW or ITERATOR.
mgl_status jinja_list_new(jinja_runtime *runtime, jinja_kind kind, jinja_value *out);
mgl_status jinja_list_add(jinja_runtime *runtime, jinja_list *list, jinja_value item);
mgl_status jinja_dict_new(jinja_runtime *runtime, jinja_value *out);
// Adds or replaces; a key must be hashable.
mgl_status jinja_dict_set(jinja_runtime *runtime, jinja_dict *dict, jinja_value key,
                          jinja_value value);
// *found is NULL if there is no such key; it may be written through until the dict grows.
mgl_status jinja_dict_find(jinja_runtime *runtime, const jinja_dict *dict, jinja_value key,
                           jinja_value **found);
mgl_status jinja_dict_view(jinja_runtime *runtime, const jinja_dict *dict, jinja_view view,
                           jinja_value *out);
// Strings are borrowed from `json`.
mgl_status jinja_from_json(jinja_runtime *runtime, const json_t *json, size_t depth,
                           jinja_value *out);

// --- asking values -------------------------------------------------------------------------------

const char *jinja_type_name(jinja_value value);  // Python's name of the type
bool jinja_is_true(jinja_value value);
bool jinja_is_callable(jinja_value value);
bool jinja_is_hashable(jinja_value value);
bool jinja_is_integer(jinja_value value);              // INT or BOOL, as in Python
int64_t jinja_as_integer(jinja_value value);           // of one for which the above holds
bool jinja_as_number(jinja_value value, double *out);  // BOOL, INT, FLOAT
// len(value); false for a type without one.
bool jinja_length(jinja_value value, size_t *out);
mgl_status jinja_equal(jinja_runtime *runtime, jinja_value a, jinja_value b, bool *out);
// Python's ordering: *order is <0, 0, >0; an error for types that have none.
mgl_status jinja_order(jinja_runtime *runtime, jinja_value a, jinja_value b, int *order);

// --- iteration -----------------------------------------------------------------------------------

typedef struct jinja_cursor {
  jinja_value source;
  size_t position;  // an index, or a byte offset in a string
} jinja_cursor;

bool jinja_is_iterable(jinja_value value);
mgl_status jinja_iterate(jinja_runtime *runtime, jinja_value source, jinja_cursor *out);
// *more is false at the end, *out then untouched.
mgl_status jinja_next(jinja_runtime *runtime, jinja_cursor *cursor, jinja_value *out, bool *more);
// list(source), of any kind of list.
mgl_status jinja_collect(jinja_runtime *runtime, jinja_value source, jinja_kind kind,
                         jinja_value *out);

// --- text (jinja_print.c) ------------------------------------------------------------------------

// Text under construction in the arena.
typedef struct jinja_builder {
  jinja_runtime *runtime;
  char *data;
  size_t bytes;
  size_t capacity;
  mgl_status status;  // sticky
} jinja_builder;

void jinja_builder_add(jinja_builder *builder, jinja_string text);
void jinja_builder_add_codepoint(jinja_builder *builder, int32_t codepoint);
mgl_status jinja_builder_finish(jinja_builder *builder, jinja_value *out);

// str(value); strings come back as they are.
mgl_status jinja_to_text(jinja_runtime *runtime, jinja_value value, jinja_string *out);

typedef struct jinja_json_options {
  bool ascii;      // escape everything beyond ASCII
  bool sort_keys;  // by their text
  bool pretty;     // line breaks and indent
  jinja_string indent;
  jinja_string item_separator;
  jinja_string key_separator;
} jinja_json_options;

// json.dumps(value).
mgl_status jinja_to_json(jinja_runtime *runtime, jinja_value value,
                         const jinja_json_options *options, jinja_value *out);

#endif
