// Regular expressions: the part of ECMA-262's (which JSON Schema's `pattern` is) whose meaning is a
// set of texts.
//
//   x  .  [a-z]  [^a-z]  \d \D \w \W \s \S (ASCII, but \s)  \t \n \r \f \v \0 \xHH \uHHHH \u{H...}
//   (x) (?:x) (?<name>x)  x|y  x* x+ x? x{n} x{n,} x{n,m}, each with a lazy ? that changes nothing
//   ^ and $ at the beginning and end of the whole or of one of its alternatives
//
// All else is refused with its place: what looks around (\b, (?=x)), back references, flags,
// \p{...}, and quantifiers that want all or nothing (x*+). `.` is any character but a line's end.
#ifndef MGL_GRAMMAR_REGEX_H
#define MGL_GRAMMAR_REGEX_H

#include "grammar/expression.h"

typedef struct mgl_regex_options {
  bool in_json;   // it matches what a JSON string says, and the expression is the string's inside
  bool searches;  // it need not match the whole text, unless ^ and $ say so
} mgl_regex_options;

// NULL after a failure, which names the place (in bytes) of the text.
const mgl_expression *mgl_regex_parse(mgl_builder *b, const char *text, size_t bytes,
                                      mgl_regex_options options);

#endif
