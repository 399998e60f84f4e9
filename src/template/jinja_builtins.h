// Filters, tests, methods and global functions: tables of name, parameters and C function.
//
// A table entry without a function is something that Jinja or Python has and this interpreter has
// not; reaching it is refused by name. So is a name in no table, except an attribute, which is
// undefined then, as in Jinja.
#ifndef MGL_TEMPLATE_JINJA_BUILTINS_H
#define MGL_TEMPLATE_JINJA_BUILTINS_H

#include "template/jinja_value.h"

typedef struct mgl_jinja_keyword {
  mgl_jinja_string name;
  mgl_jinja_value value;
} mgl_jinja_keyword;

// One call: what was written, and the arguments in the order of the builtin's parameters.
typedef struct mgl_jinja_call {
  const struct mgl_jinja_builtin *builtin;
  mgl_jinja_value self;  // the filtered or tested value, a method's object
  const mgl_jinja_value *arguments;
  size_t argument_count;
  const mgl_jinja_keyword *keywords;
  size_t keyword_count;
  mgl_jinja_value bound[MGL_JINJA_MAX_PARAMETERS];  // ABSENT where not given
} mgl_jinja_call;

typedef struct mgl_jinja_builtin {
  const char *name;
  const char *parameters;  // names in order, separated by spaces; NULL: takes what it gets
  size_t required;         // how many of them must be given
  mgl_status (*function)(mgl_jinja_runtime *runtime, mgl_jinja_call *call, mgl_jinja_value *out);
} mgl_jinja_builtin;

typedef struct mgl_jinja_method {
  mgl_jinja_value self;
  const mgl_jinja_builtin *builtin;
} mgl_jinja_method;

const mgl_jinja_builtin *mgl_jinja_find_filter(mgl_jinja_string name);  // NULL if unknown
const mgl_jinja_builtin *mgl_jinja_find_test(mgl_jinja_string name);
const mgl_jinja_builtin *mgl_jinja_find_global(mgl_jinja_string name);
const mgl_jinja_builtin *mgl_jinja_find_method(mgl_jinja_value object, mgl_jinja_string name);

// The tables of the other files, ended by a NULL name.
extern const mgl_jinja_builtin mgl_jinja_filters[];         // jinja_filters.c
extern const mgl_jinja_builtin mgl_jinja_list_filters[];    // jinja_list_filters.c
extern const mgl_jinja_builtin mgl_jinja_text_filters[];    // jinja_text_filters.c
extern const mgl_jinja_builtin mgl_jinja_loop_methods[];    // jinja_loop.c
extern const mgl_jinja_builtin mgl_jinja_string_methods[];  // jinja_methods.c
extern const mgl_jinja_builtin mgl_jinja_dict_methods[];
extern const mgl_jinja_builtin mgl_jinja_list_methods[];

// Binds the arguments to the parameters and calls. `what` ("filter") is for messages.
mgl_status mgl_jinja_call_builtin(mgl_jinja_runtime *runtime, const char *what,
                                  mgl_jinja_call *call, mgl_jinja_value *out);

// --- text functions that filters and methods share (jinja_methods.c) -----------------------------

typedef enum mgl_jinja_case {
  MGL_JINJA_CASE_UPPER,
  MGL_JINJA_CASE_LOWER,
  MGL_JINJA_CASE_CAPITALIZE,  // the first letter large, the others small
  MGL_JINJA_CASE_TITLE,       // the same for every run of letters (str.title)
  MGL_JINJA_CASE_WORDS,       // the same for every word (the title filter)
} mgl_jinja_case;

mgl_status mgl_jinja_change_case(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                                 mgl_jinja_case how, mgl_jinja_value *out);
// count < 0: all.
mgl_status mgl_jinja_replace(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                             mgl_jinja_string old, mgl_jinja_string by, int64_t count,
                             mgl_jinja_value *out);
mgl_status mgl_jinja_join(mgl_jinja_runtime *runtime, mgl_jinja_string separator,
                          mgl_jinja_value items, bool strings_only, mgl_jinja_value *out);
mgl_status mgl_jinja_split_lines(mgl_jinja_runtime *runtime, mgl_jinja_string text, bool keep_ends,
                                 mgl_jinja_value *out);

// split() at runs of white space.
mgl_status mgl_jinja_split_words(mgl_jinja_runtime *runtime, mgl_jinja_string text,
                                 mgl_jinja_value *out);

// --- and those of other files --------------------------------------------------------------------

// As |safe text, with entities for what has a meaning in HTML unless it is safe already
// (jinja_text_filters.c).
mgl_status mgl_jinja_escape(mgl_jinja_runtime *runtime, mgl_jinja_string text, bool safe,
                            mgl_jinja_value *out);
// Fills a text up to a width; '<', '>' or '^' for where it stands then.
enum { MGL_JINJA_MAX_PAD = 1 << 20 };
mgl_status mgl_jinja_pad(mgl_jinja_runtime *runtime, mgl_jinja_string text, int64_t width,
                         int32_t fill, char side, mgl_jinja_value *out);

// format % values; the filter and the method of that name (jinja_format.c).
mgl_status mgl_jinja_format_percent(mgl_jinja_runtime *runtime, mgl_jinja_value format,
                                    mgl_jinja_value values, mgl_jinja_value *out);
mgl_status mgl_jinja_filter_format(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                   mgl_jinja_value *out);
mgl_status mgl_jinja_method_format(mgl_jinja_runtime *runtime, mgl_jinja_call *call,
                                   mgl_jinja_value *out);

// --- arguments -----------------------------------------------------------------------------------

// The bound argument as a type; an ABSENT one leaves *out as it is.
mgl_status mgl_jinja_string_argument(mgl_jinja_runtime *runtime, const mgl_jinja_call *call,
                                     size_t idx, mgl_jinja_string *out);
mgl_status mgl_jinja_integer_argument(mgl_jinja_runtime *runtime, const mgl_jinja_call *call,
                                      size_t idx, int64_t *out);
void mgl_jinja_bool_argument(const mgl_jinja_call *call, size_t idx,
                             bool *out);  // any value has a truth

#endif
