// Expressions: what every front end (JSON Schema, regular expressions, EBNF) makes of a grammar,
// before it becomes an automaton.
//
// An expression stands for a set of texts. Front ends put them together with the functions below,
// which check every limit; the first failure sticks to the builder, and from then on they return
// NULL and take NULL, so that front ends check once, at their end. All memory is the builder's
// arena. One thread.
#ifndef MGL_GRAMMAR_EXPRESSION_H
#define MGL_GRAMMAR_EXPRESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "text/unicode.h"

enum {
  MGL_GRAMMAR_MAX_TEXT_BYTES = 1 << 20,      // of a schema, regex, ...
  MGL_GRAMMAR_MAX_NESTING = 64,              // of parentheses
  MGL_GRAMMAR_MAX_REPEAT = 65536,            // of a bound such as {0,65536}
  MGL_GRAMMAR_MAX_RULES = 16384,             // of a grammar
  MGL_GRAMMAR_MAX_STATES = 1 << 18,          // of its automaton
  MGL_GRAMMAR_MAX_EDGES = 1 << 20,           // of it
  MGL_GRAMMAR_MAX_MEMORY_BYTES = 128 << 20,  // while it is compiled
  MGL_GRAMMAR_MAX_CODE = 0x10ffff,
  MGL_REPEAT_UNBOUNDED = UINT32_MAX >> 1,
};

typedef enum mgl_expression_kind {
  MGL_EXPRESSION_BYTES,     // these bytes
  MGL_EXPRESSION_SET,       // one character of some, as UTF-8
  MGL_EXPRESSION_SEQUENCE,  // one after the other; of none: the empty text
  MGL_EXPRESSION_CHOICE,    // any of them; of none: nothing at all
  MGL_EXPRESSION_REPEAT,    // min to max times
  MGL_EXPRESSION_RULE,      // what the rule stands for
} mgl_expression_kind;

typedef struct mgl_expression {
  mgl_expression_kind kind;
  uint32_t count;  // of bytes, ranges or parts
  union {
    const char *bytes;
    const mgl_code_range *ranges;  // ascending and apart, without surrogates
    const struct mgl_expression *const *parts;
    struct {
      const struct mgl_expression *body;
      uint32_t min, max;
    };
    uint32_t rule;
  };
} mgl_expression;

typedef struct mgl_rule {
  const char *name;            // in messages
  const mgl_expression *body;  // NULL: not set yet
} mgl_rule;

// Zero-initialise but for deadline_ns; free with mgl_builder_free.
typedef struct mgl_builder {
  uint64_t deadline_ns;  // of base/clock.h; 0: none
  mgl_arena arena;
  mgl_rule *rules;  // [rule_count]
  size_t rule_count, rule_capacity;
  uint32_t ticks;
  mgl_error error;  // the first failure; status MGL_OK: none
} mgl_builder;

void mgl_builder_free(mgl_builder *b);
// Records a failure, unless there is one already. Returns NULL, for callers to return.
void *mgl_builder_fail(mgl_builder *b, mgl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// True once something has failed. Looks at the clock now and then.
bool mgl_builder_failed(mgl_builder *b);
// Memory of the builder's arena; NULL after a failure.
void *mgl_builder_alloc(mgl_builder *b, size_t count, size_t bytes_each);

// Each copies what it is given.
const mgl_expression *mgl_expression_bytes(mgl_builder *b, const char *bytes, size_t count);
const mgl_expression *mgl_expression_string(mgl_builder *b, const char *string);  // up to its NUL
// Ranges in any order; surrogates are taken out.
const mgl_expression *mgl_expression_set(mgl_builder *b, const mgl_code_range *ranges,
                                         size_t count);
const mgl_expression *mgl_expression_sequence(mgl_builder *b, const mgl_expression *const *parts,
                                              size_t count);
const mgl_expression *mgl_expression_choice(mgl_builder *b, const mgl_expression *const *parts,
                                            size_t count);
// max: MGL_REPEAT_UNBOUNDED for no limit.
const mgl_expression *mgl_expression_repeat(mgl_builder *b, const mgl_expression *body,
                                            uint64_t min, uint64_t max);
const mgl_expression *mgl_expression_optional(mgl_builder *b, const mgl_expression *body);
const mgl_expression *mgl_expression_rule(mgl_builder *b, uint32_t rule);

// Parts of a sequence or choice whose number is not known before. Zero-initialise.
typedef struct mgl_expression_list {
  const mgl_expression **parts;  // the builder's
  size_t count, capacity;
} mgl_expression_list;

void mgl_expression_list_add(mgl_builder *b, mgl_expression_list *list, const mgl_expression *part);

// What is in `ranges` and not in `without`, as ranges; *count becomes their number.
const mgl_code_range *mgl_ranges_without(mgl_builder *b, const mgl_code_range *ranges, size_t count,
                                         const mgl_code_range *without, size_t without_count,
                                         size_t *out_count);

// A new rule, to be set later; name is copied. UINT32_MAX after a failure.
uint32_t mgl_rule_add(mgl_builder *b, const char *name);
void mgl_rule_set(mgl_builder *b, uint32_t rule, const mgl_expression *body);

// mgl_parts(b, x, y, z): a sequence of expressions.
#define MGL_SEQUENCE(b, ...)                             \
  mgl_expression_sequence(                               \
      (b), (const mgl_expression *const[]){__VA_ARGS__}, \
      sizeof((const mgl_expression *const[]){__VA_ARGS__}) / sizeof(const mgl_expression *))
#define MGL_CHOICE(b, ...)                               \
  mgl_expression_choice(                                 \
      (b), (const mgl_expression *const[]){__VA_ARGS__}, \
      sizeof((const mgl_expression *const[]){__VA_ARGS__}) / sizeof(const mgl_expression *))

#endif
