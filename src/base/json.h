// JSON access on top of jansson: parse with limits, read typed fields with errors that name the
// path.
//
// jansson's allocator points at base/alloc.h. Every reader below distinguishes "absent" (optional
// readers leave *out as it was) from "wrong type" (always an error that names the key).
#ifndef MGL_BASE_JSON_H
#define MGL_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// Parses `bytes` of text as one JSON value. Nesting deeper than MGL_JSON_DEPTH, duplicate keys,
// invalid UTF-8, a string or number of more than MGL_JSON_TOKEN_BYTES and trailing bytes are
// refused. Free with json_decref. `where` names the source.
// A text whose values would take more memory than the budget is refused before any of it is taken:
// MGL_JSON_BUDGET_BASE_BYTES, and MGL_JSON_BUDGET_FACTOR for each byte of the text. Tokenizers,
// safetensors headers, indexes and task graphs take 3 to 18 times their text and "{},{}" 77 times;
// the base lets small dense files through.
enum {
  MGL_JSON_DEPTH = 64,
  MGL_JSON_TOKEN_BYTES = 16 << 20,  // far above any prompt; jansson takes 30 ns a byte
  MGL_JSON_BUDGET_BASE_BYTES = 64 << 20,
  MGL_JSON_BUDGET_FACTOR = 14,
};
mgl_status mgl_json_parse(const char *text, size_t bytes, const char *where, json_t **out,
                          mgl_error *err);

// What parsing does first: jansson's memory is base/alloc.h's from then on. For who makes values
// without having parsed any.
void mgl_json_prepare(void);

// What a text will cost, counted in one pass without parsing.
typedef struct mgl_json_cost {
  uint64_t
      memory;      // at least the bytes that parsing takes; less than twice as many for large texts
  size_t depth;    // of nesting
  size_t longest;  // bytes of a string, a number or a word
} mgl_json_cost;
mgl_json_cost mgl_json_count(const char *text, size_t bytes);

// Reads and parses a file of at most max_bytes.
mgl_status mgl_json_read(const char *path, size_t max_bytes, json_t **out, mgl_error *err);

// The text of a string (borrowed) that a C string can show; NULL for one with a NUL byte and for
// what is no string.
const char *mgl_json_plain_string(const json_t *value);

// Typed members of an object. A JSON null counts as absent. `where` goes in front of messages.
typedef struct mgl_json_object {
  const json_t *object;
  const char *where;  // e.g. "config.json"; borrowed
} mgl_json_object;

bool mgl_json_has(mgl_json_object o, const char *key);
// Required integer in [min, max].
mgl_status mgl_json_u64(mgl_json_object o, const char *key, uint64_t min, uint64_t max,
                        uint64_t *out, mgl_error *err);
// Optional ones.
mgl_status mgl_json_opt_u64(mgl_json_object o, const char *key, uint64_t min, uint64_t max,
                            uint64_t *out, mgl_error *err);
mgl_status mgl_json_opt_double(mgl_json_object o, const char *key, double min, double max,
                               double *out, mgl_error *err);
mgl_status mgl_json_opt_bool(mgl_json_object o, const char *key, bool *out, mgl_error *err);
// *out is borrowed from the object; it may hold NUL bytes that a C string cannot show, which is
// refused.
mgl_status mgl_json_opt_string(mgl_json_object o, const char *key, const char **out,
                               mgl_error *err);
// Optional member that must be an object; out->object is NULL when it is absent.
mgl_status mgl_json_opt_object(mgl_json_object o, const char *key, mgl_json_object *out,
                               mgl_error *err);

#endif
