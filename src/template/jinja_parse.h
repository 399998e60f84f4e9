// The parser of chat templates: source to a tree in one arena, by recursive descent along Jinja's
// own grammar.
//
// A node is one fat struct for all kinds, which keeps parser and interpreter free of casts; the
// table below says which fields a kind uses. The tree is immutable and may be rendered by several
// threads at once.
#ifndef MGL_TEMPLATE_JINJA_PARSE_H
#define MGL_TEMPLATE_JINJA_PARSE_H

#include "base/arena.h"
#include "base/status.h"
#include "template/jinja_value.h"

typedef enum mgl_jinja_node_kind {
  // Expressions.
  MGL_JINJA_NODE_CONSTANT,    // value
  MGL_JINJA_NODE_NAME,        // value.string
  MGL_JINJA_NODE_LIST,        // items
  MGL_JINJA_NODE_TUPLE,       // items; also as the target of an assignment
  MGL_JINJA_NODE_DICT,        // items: key, value, key, value ...
  MGL_JINJA_NODE_UNARY,       // op '-' or '+', first
  MGL_JINJA_NODE_NOT,         // first
  MGL_JINJA_NODE_BINARY,      // op, first, second
  MGL_JINJA_NODE_AND,         // first, second
  MGL_JINJA_NODE_OR,          // first, second
  MGL_JINJA_NODE_CONCAT,      // items: a ~ b ~ c
  MGL_JINJA_NODE_COMPARE,     // first, items: COMPARISON ...
  MGL_JINJA_NODE_COMPARISON,  // op, first: one "< x" of a chain
  MGL_JINJA_NODE_CONDITION,   // first: test, second: if true, third: if false or NULL
  MGL_JINJA_NODE_ATTRIBUTE,   // first, value.string
  MGL_JINJA_NODE_ITEM,        // first, second: index
  MGL_JINJA_NODE_SLICE,       // first: object; items: start, stop, step (CONSTANT none if left out)
  MGL_JINJA_NODE_CALL,        // first: callee, items: arguments
  MGL_JINJA_NODE_FILTER,   // first (NULL: the text of a block), value.string: name, items, builtin
  MGL_JINJA_NODE_TEST,     // first, value.string: name, items, builtin
  MGL_JINJA_NODE_KEYWORD,  // among arguments: value.string, first
  MGL_JINJA_NODE_UNPACK,   // among arguments: op '*' or MGL_JINJA_OP_POWER, first
  // Statements.
  MGL_JINJA_NODE_DATA,    // value.string
  MGL_JINJA_NODE_OUTPUT,  // first
  MGL_JINJA_NODE_IF,      // first: test, body, otherwise (an IF for elif)
  MGL_JINJA_NODE_FOR,     // first: target, second: source, third: filter or NULL, body, otherwise;
                          // op 'r': recursive
  MGL_JINJA_NODE_SET,     // first: target (NAME, TUPLE, or ATTRIBUTE of a NAME), second
  MGL_JINJA_NODE_SET_BLOCK,     // first: target, second: FILTER chain or NULL, body
  MGL_JINJA_NODE_WITH,          // items: target, value, target, value ...; body
  MGL_JINJA_NODE_MACRO,         // value.string, items: NAME with default in first; body; uses
  MGL_JINJA_NODE_CALL_BLOCK,    // first: CALL, items: parameters as of MACRO, body; uses
  MGL_JINJA_NODE_FILTER_BLOCK,  // second: FILTER chain, body
  MGL_JINJA_NODE_SCOPE,         // body, in a scope of its own (generation)
  MGL_JINJA_NODE_BLOCK,         // value.string, body; op 's': scoped; second: the block before it
  MGL_JINJA_NODE_BREAK,
  MGL_JINJA_NODE_CONTINUE,
} mgl_jinja_node_kind;

// Names that a macro defines where its body uses them.
typedef enum mgl_jinja_special {
  MGL_JINJA_USES_CALLER = 1,
  MGL_JINJA_USES_VARARGS = 2,
  MGL_JINJA_USES_KWARGS = 4,
} mgl_jinja_special;

// Operators of BINARY, UNARY and COMPARISON: the character, or one of these for two characters.
enum {
  MGL_JINJA_OP_FLOOR_DIVIDE = 'D',
  MGL_JINJA_OP_POWER = 'P',
  MGL_JINJA_OP_EQUAL = '=',
  MGL_JINJA_OP_NOT_EQUAL = '!',
  MGL_JINJA_OP_LESS_EQUAL = 'l',
  MGL_JINJA_OP_GREATER_EQUAL = 'g',
  MGL_JINJA_OP_IN = 'i',
  MGL_JINJA_OP_NOT_IN = 'n',
};

typedef struct mgl_jinja_node {
  uint8_t kind;  // mgl_jinja_node_kind
  char op;
  uint8_t uses;  // of MACRO and CALL_BLOCK: a set of mgl_jinja_special
  int line;
  size_t count;  // of items
  mgl_jinja_value value;
  struct mgl_jinja_node *first, *second, *third;
  struct mgl_jinja_node *items;      // linked by next
  struct mgl_jinja_node *body;       // linked by next
  struct mgl_jinja_node *otherwise;  // linked by next
  struct mgl_jinja_node *next;
  struct mgl_jinja_node *made_before;  // the node that was made before this one
  const struct mgl_jinja_builtin
      *builtin;  // of FILTER and TEST; NULL: unknown, refused when reached
} mgl_jinja_node;

typedef struct mgl_jinja_tree {
  const mgl_jinja_node *body;    // the first statement, NULL for an empty template
  const mgl_jinja_node *newest;  // of all nodes, linked by made_before
  const mgl_jinja_node *blocks;  // the last BLOCK, linked by second
} mgl_jinja_tree;

// Parses source (valid UTF-8, newlines normalised), which must live as long as the arena.
mgl_status mgl_jinja_parse(mgl_jinja_string source, const char *where, mgl_arena *arena,
                           mgl_jinja_tree *out, mgl_error *err);

// Whether the template looks into the parts of a message's content, or takes content for a string
// (jinja_inspect.c).
bool mgl_jinja_takes_parts(const mgl_jinja_tree *tree);

// The names that the template reads and that its caller may define: those that it does not define
// itself, or asks "is defined" of before it does. Fills names[0 .. returned count) with the first
// `capacity` of them, each once.
size_t mgl_jinja_variables(const mgl_jinja_tree *tree, mgl_jinja_string *names, size_t capacity);

#endif
