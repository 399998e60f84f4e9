// Values of the template interpreter, and the state of one render that all of them live in.
//
// A value is 24 bytes and passed by copy; lists, dicts and strings behind it lie in the render's
// arena (or are borrowed from the context or the template) and are never changed after they are
// built, except namespaces, loops and one-shot iterators. Everything goes at once when the render
// ends, so no value has an owner. Rejected: reference counts, for which a render has no use.
//
// The semantics are those of Python objects as Jinja shows them to a template.
#ifndef MGL_TEMPLATE_JINJA_VALUE_H
#define MGL_TEMPLATE_JINJA_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "template/jinja_text.h"

enum {
  MGL_JINJA_MAX_RENDER_DEPTH = 600,   // nested evaluations: expressions, blocks and macro calls
  MGL_JINJA_MAX_VALUE_DEPTH = 200,    // nesting of lists and dicts when printed or compared
  MGL_JINJA_MAX_CONTEXT_DEPTH = 128,  // nesting of the JSON context
  MGL_JINJA_MAX_RANGE = 100 * 1000,   // items of range(), as in Jinja's sandbox
  MGL_JINJA_MAX_PARAMETERS = 4,       // of a filter, test, method or global
};

typedef enum mgl_jinja_kind {
  MGL_JINJA_ABSENT,     // an argument that was not given; never seen by a template
  MGL_JINJA_UNDEFINED,  // string: the name for messages
  MGL_JINJA_NONE,
  MGL_JINJA_BOOL,
  MGL_JINJA_INT,
  MGL_JINJA_FLOAT,
  MGL_JINJA_STRING,
  MGL_JINJA_LIST,
  MGL_JINJA_TUPLE,
  MGL_JINJA_VIEW,      // dict.keys(), .values(), .items(): a list without subscripts
  MGL_JINJA_ITERATOR,  // what a lazy filter gives: always true, no length, can be read once
  MGL_JINJA_DICT,
  MGL_JINJA_RANGE,
  MGL_JINJA_NAMESPACE,
  MGL_JINJA_LOOP,
  MGL_JINJA_CYCLER,  // list, of which the cursor is the current item
  MGL_JINJA_JOINER,  // list of the separator; the cursor is 1 once it was called
  MGL_JINJA_SELF,    // the template's blocks by their names
  MGL_JINJA_BLOCK,   // one of them, as self.name
  MGL_JINJA_MACRO,
  MGL_JINJA_FUNCTION,  // a global function
  MGL_JINJA_METHOD,    // a method and the object it belongs to
} mgl_jinja_kind;

typedef enum mgl_jinja_view {
  MGL_JINJA_VIEW_KEYS,
  MGL_JINJA_VIEW_VALUES,
  MGL_JINJA_VIEW_ITEMS
} mgl_jinja_view;

typedef struct mgl_jinja_value {
  uint8_t kind;  // mgl_jinja_kind
  uint8_t view;  // mgl_jinja_view of a VIEW; 1 of a TUPLE that groupby made: (grouper, list)
  bool safe;     // a STRING that went through |safe: Jinja would escape what is added to it
  union {
    bool boolean;
    int64_t integer;
    double number;
    mgl_jinja_string string;
    struct mgl_jinja_list *list;  // LIST, TUPLE, VIEW, ITERATOR, CYCLER, JOINER
    struct mgl_jinja_dict *dict;  // DICT, NAMESPACE
    struct mgl_jinja_range *range;
    struct mgl_jinja_loop *loop;  // jinja_loop.c
    const struct mgl_jinja_node *block;
    struct mgl_jinja_macro *macro;  // jinja_interpreter.h
    struct mgl_jinja_method *method;
    const struct mgl_jinja_builtin *function;
  };
} mgl_jinja_value;

typedef struct mgl_jinja_list {
  mgl_jinja_value *items;
  size_t count;
  size_t capacity;
  size_t cursor;  // items that an ITERATOR has handed out; see CYCLER and JOINER
} mgl_jinja_list;

typedef struct mgl_jinja_pair {
  mgl_jinja_value key;
  mgl_jinja_value value;
} mgl_jinja_pair;

// In insertion order. Searched linearly: messages and tools have few keys.
typedef struct mgl_jinja_dict {
  mgl_jinja_pair *pairs;
  size_t count;
  size_t capacity;
} mgl_jinja_dict;

typedef struct mgl_jinja_range {
  int64_t start, stop, step, count;
} mgl_jinja_range;

// One render. Every function below that takes it can fail for memory, a limit or a type error.
typedef struct mgl_jinja_runtime {
  mgl_arena arena;
  const char *where;  // the template's name in messages; borrowed
  int line;           // of the construct being evaluated
  size_t steps;       // work done so far, against MGL_TEMPLATE_MAX_STEPS
  size_t depth;       // nested evaluations
  mgl_text *out;      // grows; captures (macros, block set) cut their part off again
  size_t out_start;   // bytes that the caller had in `out`
  struct mgl_jinja_scope *scope;
  struct mgl_jinja_scope *top;          // of the template itself
  const struct mgl_jinja_node *blocks;  // jinja_parse.h
  mgl_jinja_dict context;
  int flow;  // jinja_interpreter.h: a break or continue under way
  mgl_error *err;
} mgl_jinja_runtime;

// --- errors and bounds ---------------------------------------------------------------------------

// One message "WHERE: line N: ...".
mgl_status mgl_jinja_fail(const mgl_jinja_runtime *runtime, mgl_status status, const char *format,
                          ...) __attribute__((format(printf, 3, 4)));
mgl_status mgl_jinja_fail_memory(const mgl_jinja_runtime *runtime);
// Counts work; MGL_ERR_LIMIT when there was too much.
mgl_status mgl_jinja_charge(mgl_jinja_runtime *runtime, size_t steps);

// --- making values -------------------------------------------------------------------------------

mgl_jinja_value mgl_jinja_none(void);
mgl_jinja_value mgl_jinja_bool(bool value);
mgl_jinja_value mgl_jinja_int(int64_t value);
mgl_jinja_value mgl_jinja_float(double value);
mgl_jinja_value mgl_jinja_string_value(mgl_jinja_string text);  // borrows
mgl_jinja_value mgl_jinja_undefined(mgl_jinja_string name);     // borrows
mgl_status mgl_jinja_text_new(mgl_jinja_runtime *runtime, size_t bytes, char **out);
mgl_status mgl_jinja_text_concat(mgl_jinja_runtime *runtime, mgl_jinja_string a, mgl_jinja_string b,
                                 mgl_jinja_string *out);
// An empty list in *out; kind is LIST, TUPLE, VIEW or ITERATOR.
mgl_status mgl_jinja_list_new(mgl_jinja_runtime *runtime, mgl_jinja_kind kind,
                              mgl_jinja_value *out);
mgl_status mgl_jinja_list_add(mgl_jinja_runtime *runtime, mgl_jinja_list *list,
                              mgl_jinja_value item);
mgl_status mgl_jinja_dict_new(mgl_jinja_runtime *runtime, mgl_jinja_value *out);
// Adds or replaces; a key must be hashable.
mgl_status mgl_jinja_dict_set(mgl_jinja_runtime *runtime, mgl_jinja_dict *dict, mgl_jinja_value key,
                              mgl_jinja_value value);
// *found is NULL if there is no such key; it may be written through until the dict grows.
mgl_status mgl_jinja_dict_find(mgl_jinja_runtime *runtime, const mgl_jinja_dict *dict,
                               mgl_jinja_value key, mgl_jinja_value **found);
mgl_status mgl_jinja_dict_view(mgl_jinja_runtime *runtime, const mgl_jinja_dict *dict,
                               mgl_jinja_view view, mgl_jinja_value *out);
// Strings are borrowed from `json`.
mgl_status mgl_jinja_from_json(mgl_jinja_runtime *runtime, const json_t *json, size_t depth,
                               mgl_jinja_value *out);

// --- asking values -------------------------------------------------------------------------------

const char *mgl_jinja_type_name(mgl_jinja_value value);  // Python's name of the type
bool mgl_jinja_is_true(mgl_jinja_value value);
bool mgl_jinja_is_callable(mgl_jinja_value value);
bool mgl_jinja_is_hashable(mgl_jinja_value value);
bool mgl_jinja_is_integer(mgl_jinja_value value);              // INT or BOOL, as in Python
int64_t mgl_jinja_as_integer(mgl_jinja_value value);           // of one for which the above holds
bool mgl_jinja_as_number(mgl_jinja_value value, double *out);  // BOOL, INT, FLOAT
// len(value); false for a type without one.
bool mgl_jinja_length(mgl_jinja_value value, size_t *out);
mgl_status mgl_jinja_equal(mgl_jinja_runtime *runtime, mgl_jinja_value a, mgl_jinja_value b,
                           bool *out);
// Python's ordering: *order is <0, 0, >0; an error for types that have none.
mgl_status mgl_jinja_order(mgl_jinja_runtime *runtime, mgl_jinja_value a, mgl_jinja_value b,
                           int *order);

// --- iteration -----------------------------------------------------------------------------------

typedef struct mgl_jinja_cursor {
  mgl_jinja_value source;
  size_t position;  // an index, or a byte offset in a string
} mgl_jinja_cursor;

bool mgl_jinja_is_iterable(mgl_jinja_value value);
mgl_status mgl_jinja_iterate(mgl_jinja_runtime *runtime, mgl_jinja_value source,
                             mgl_jinja_cursor *out);
// *more is false at the end, *out then untouched.
mgl_status mgl_jinja_next(mgl_jinja_runtime *runtime, mgl_jinja_cursor *cursor,
                          mgl_jinja_value *out, bool *more);
// list(source), of any kind of list.
mgl_status mgl_jinja_collect(mgl_jinja_runtime *runtime, mgl_jinja_value source,
                             mgl_jinja_kind kind, mgl_jinja_value *out);

// --- text (jinja_print.c) ------------------------------------------------------------------------

// Text under construction in the arena.
typedef struct mgl_jinja_builder {
  mgl_jinja_runtime *runtime;
  char *data;
  size_t bytes;
  size_t capacity;
  mgl_status status;  // sticky
} mgl_jinja_builder;

void mgl_jinja_builder_add(mgl_jinja_builder *builder, mgl_jinja_string text);
void mgl_jinja_builder_add_codepoint(mgl_jinja_builder *builder, int32_t codepoint);
void mgl_jinja_builder_add_fill(mgl_jinja_builder *builder, int32_t codepoint, int64_t count);
mgl_status mgl_jinja_builder_finish(mgl_jinja_builder *builder, mgl_jinja_value *out);

// str(value); strings come back as they are.
mgl_status mgl_jinja_to_text(mgl_jinja_runtime *runtime, mgl_jinja_value value,
                             mgl_jinja_string *out);
mgl_status mgl_jinja_to_repr(mgl_jinja_runtime *runtime, mgl_jinja_value value,
                             mgl_jinja_value *out);

typedef struct mgl_jinja_json_options {
  bool ascii;      // escape everything beyond ASCII
  bool sort_keys;  // by their text
  bool pretty;     // line breaks and indent
  mgl_jinja_string indent;
  mgl_jinja_string item_separator;
  mgl_jinja_string key_separator;
} mgl_jinja_json_options;

// json.dumps(value).
mgl_status mgl_jinja_to_json(mgl_jinja_runtime *runtime, mgl_jinja_value value,
                             const mgl_jinja_json_options *options, mgl_jinja_value *out);

#endif
