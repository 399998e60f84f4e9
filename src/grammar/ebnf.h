// Grammars in EBNF, as vLLM's structured outputs and llama.cpp's GBNF have them.
//
//   root ::= "yes" | "no" reason        # a comment; `root` is where a text begins
//   reason ::= " because " [^\n"]+ ("," [a-z]{1,8})? rest*
//
// A rule is NAME ::= ALTERNATIVES, and goes on over line ends until the next NAME ::=. Parts:
// "text" (also 'text'), [set], [^set], `.` (any character but a line's end), NAME, (ALTERNATIVES),
// each with ?, *, +, {n}, {n,} or {n,m} behind it. Escapes in texts and sets: \n \r \t \\ \" \' \]
// \[ \- \^ \xHH \uHHHH \UHHHHHHHH. Refused: recursion on the left, rules that are not there, and
// Lark's form (`start: ...`).
#ifndef MGL_GRAMMAR_EBNF_H
#define MGL_GRAMMAR_EBNF_H

#include "grammar/expression.h"

// NULL after a failure, which names the line.
const mgl_expression *mgl_ebnf_parse(mgl_builder *b, const char *text, size_t bytes);

#endif
