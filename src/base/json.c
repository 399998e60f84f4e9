#include "base/json.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

// --- jansson's allocator -------------------------------------------------------------------------
//
// jansson 2.14 does not check every allocation: after a failed one it can report success with a
// character missing from a string, or read past its buffer. So during a parse it never sees a
// failure: a request that fails is served from a reserve taken beforehand, the parse is marked as
// failed, its input ends (the callback below returns no more), and whatever it made is thrown away.

enum {
  RESERVE_BASE_BYTES = 256 * 1024,  // what the 1 KiB of input that jansson has buffered can need
  RESERVE_PER_INPUT_BYTE = 4,       // a string or a table that was just about to double
};

typedef struct parse_memory {
  unsigned char *reserve;
  size_t reserve_bytes;
  size_t reserve_used;
  bool failed;  // an allocation failed in this parse
} parse_memory;

static _Thread_local parse_memory parsing;

static void *json_alloc(size_t bytes) {
  void *memory = mgl_alloc(bytes);
  if (memory != NULL || parsing.reserve == NULL) {
    return memory;
  }
  parsing.failed = true;
  size_t padded = (bytes + 15) / 16 * 16;
  if (padded < bytes || padded > parsing.reserve_bytes - parsing.reserve_used) {
    return NULL;
  }
  memory = parsing.reserve + parsing.reserve_used;
  parsing.reserve_used += padded;
  return memory;
}

static void json_free(void *memory) {
  uintptr_t offset = (uintptr_t)memory - (uintptr_t)parsing.reserve;
  if (parsing.reserve == NULL || offset >= parsing.reserve_bytes) {
    mgl_free(memory);
  }
}

static void use_our_allocator(void) {
  json_set_alloc_funcs(json_alloc, json_free);
}

void mgl_json_prepare(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, use_our_allocator);
}

typedef struct json_input {
  const char *text;
  size_t bytes;
} json_input;

// Hands jansson the next part of the text; none once an allocation has failed.
static size_t read_input(void *buffer, size_t buffer_bytes, void *context) {
  json_input *input = context;
  size_t bytes = input->bytes < buffer_bytes ? input->bytes : buffer_bytes;
  if (parsing.failed) {
    return 0;
  }
  memcpy(buffer, input->text, bytes);
  input->text += bytes;
  input->bytes -= bytes;
  return bytes;
}

// --- what a text will take -----------------------------------------------------------------------
//
// Counted before jansson sees the text, so that nesting cannot reach its recursion and a bomb costs
// one pass over it. Rejected: counting in the allocator while parsing, which has spent the budget,
// and a second of time, before it refuses.

// Bytes of jansson 2.14's blocks with malloc's overhead, tables that double included.
enum {
  OBJECT_BYTES = 240,  // with the table of its first members
  ARRAY_BYTES = 144,   // with that of its first elements
  MEMBER_BYTES = 24,   // besides its key, which counts as a string, and its comma
  ELEMENT_BYTES = 24,  // a pointer in a table that has just doubled
  STRING_BYTES = 72,   // besides its text
  NUMBER_BYTES = 32,
  LEXER_FACTOR = 3,  // the longest string is gathered in a buffer that doubles, then copied
};

// The offset behind the string that begins at `at`.
static size_t string_end(const char *text, size_t bytes, size_t at) {
  for (at++; at < bytes && text[at] != '"'; at++) {
    at += text[at] == '\\';
  }
  return at < bytes ? at + 1 : bytes;
}

// Whether a byte belongs to a number or a word (true, false, null).
static bool in_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.';
}

mgl_json_cost mgl_json_count(const char *text, size_t bytes) {
  mgl_json_cost cost = {0};
  size_t longest_string = 0;
  size_t depth = 0;
  for (size_t i = 0; i < bytes;) {
    char c = text[i];
    size_t next = i + 1;
    if (c == '"') {
      next = string_end(text, bytes, i);
      longest_string = next - i > longest_string ? next - i : longest_string;
      cost.memory += STRING_BYTES + (next - i);
    } else if (c == '[' || c == '{') {
      depth++;
      cost.depth = depth > cost.depth ? depth : cost.depth;
      cost.memory += c == '{' ? OBJECT_BYTES : ARRAY_BYTES;
    } else if (c == ']' || c == '}') {
      depth -= depth > 0;
    } else if (c == ':') {
      cost.memory += MEMBER_BYTES;
    } else if (c == ',') {
      cost.memory += ELEMENT_BYTES;
    } else if (in_word(c)) {
      cost.memory += c == '-' || (c >= '0' && c <= '9') ? NUMBER_BYTES : 0;
      while (next < bytes && in_word(text[next])) {
        next++;
      }
    }
    cost.longest = next - i > cost.longest ? next - i : cost.longest;
    i = next;
  }
  cost.memory += (uint64_t)longest_string * LEXER_FACTOR;
  return cost;
}

// Refuses a text that nests too deeply, has too long a token or would take more than the budget.
static mgl_status check_cost(const char *text, size_t bytes, const char *where, mgl_error *err) {
  mgl_json_cost cost = mgl_json_count(text, bytes);
  uint64_t budget = MGL_JSON_BUDGET_BASE_BYTES + (uint64_t)bytes * MGL_JSON_BUDGET_FACTOR;
  if (cost.depth > MGL_JSON_DEPTH) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: JSON nested deeper than %d levels", where,
                         MGL_JSON_DEPTH);
  }
  if (cost.longest > MGL_JSON_TOKEN_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "%s: a string or number of %zu bytes in JSON: expected at most %d", where,
                         cost.longest, MGL_JSON_TOKEN_BYTES);
  }
  if (cost.memory > budget) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "%s: the values of this JSON would take %" PRIu64
                         " MiB of memory: expected at most %" PRIu64
                         " MiB (%d MiB, and %d bytes for each of its %zu)",
                         where, cost.memory >> 20, budget >> 20, MGL_JSON_BUDGET_BASE_BYTES >> 20,
                         MGL_JSON_BUDGET_FACTOR, bytes);
  }
  return MGL_OK;
}

mgl_status mgl_json_parse(const char *text, size_t bytes, const char *where, json_t **out,
                          mgl_error *err) {
  mgl_json_prepare();
  *out = NULL;
  // jansson drops a NUL byte behind a number, as if it were not there.
  const char *nul = bytes == 0 ? NULL : memchr(text, 0, bytes);
  if (nul != NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected JSON, found a NUL byte at byte %zu",
                         where, (size_t)(nul - text));
  }
  MGL_TRY(check_cost(text, bytes, where, err));
  if (bytes > (SIZE_MAX - RESERVE_BASE_BYTES) / RESERVE_PER_INPUT_BYTE) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: %zu bytes of JSON are too many", where, bytes);
  }
  size_t reserve_bytes = RESERVE_BASE_BYTES + bytes * RESERVE_PER_INPUT_BYTE;
  parsing = (parse_memory){.reserve = mgl_alloc(reserve_bytes), .reserve_bytes = reserve_bytes};
  if (parsing.reserve == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory while parsing JSON", where);
  }
  json_error_t json_err;
  json_input input = {text, bytes};
  *out = json_load_callback(read_input, &input,
                            JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &json_err);
  bool failed = parsing.failed;
  if (failed) {
    json_decref(*out);
    *out = NULL;
  }
  mgl_free(parsing.reserve);
  parsing = (parse_memory){0};
  if (failed) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory while parsing JSON", where);
  }
  if (*out == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected JSON, found at line %d column %d: %s",
                         where, json_err.line, json_err.column, json_err.text);
  }
  return MGL_OK;
}

mgl_status mgl_json_read(const char *path, size_t max_bytes, json_t **out, mgl_error *err) {
  char *text = NULL;
  size_t bytes = 0;
  *out = NULL;
  MGL_TRY(mgl_file_read(path, max_bytes, &text, &bytes, err));
  mgl_status status = mgl_json_parse(text, bytes, path, out, err);
  mgl_free(text);
  return status;
}

const char *mgl_json_plain_string(const json_t *value) {
  const char *text = json_string_value(value);
  return text != NULL && strlen(text) == json_string_length(value) ? text : NULL;
}

// The member, with null read as absent.
static const json_t *member(mgl_json_object o, const char *key) {
  const json_t *value = json_object_get(o.object, key);
  return json_is_null(value) ? NULL : value;
}

static const char *type_name(const json_t *value) {
  switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
  }
  return "an unknown type";
}

static mgl_status wrong_type(mgl_json_object o, const char *key, const char *expected,
                             const json_t *found, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\": expected %s, found %s", o.where, key,
                       expected, type_name(found));
}

bool mgl_json_has(mgl_json_object o, const char *key) {
  return member(o, key) != NULL;
}

mgl_status mgl_json_u64(mgl_json_object o, const char *key, uint64_t min, uint64_t max,
                        uint64_t *out, mgl_error *err) {
  if (member(o, key) == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\" is missing: expected an integer", o.where,
                         key);
  }
  return mgl_json_opt_u64(o, key, min, max, out, err);
}

mgl_status mgl_json_opt_u64(mgl_json_object o, const char *key, uint64_t min, uint64_t max,
                            uint64_t *out, mgl_error *err) {
  const json_t *value = member(o, key);
  if (value == NULL) {
    return MGL_OK;
  }
  if (!json_is_integer(value)) {
    return wrong_type(o, key, "an integer", value, err);
  }
  json_int_t found = json_integer_value(value);
  if (found < 0 || (uint64_t)found < min || (uint64_t)found > max) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: \"%s\": expected %" PRIu64 " to %" PRIu64
                         ", found %" JSON_INTEGER_FORMAT,
                         o.where, key, min, max, found);
  }
  *out = (uint64_t)found;
  return MGL_OK;
}

mgl_status mgl_json_opt_double(mgl_json_object o, const char *key, double min, double max,
                               double *out, mgl_error *err) {
  const json_t *value = member(o, key);
  if (value == NULL) {
    return MGL_OK;
  }
  if (!json_is_number(value)) {
    return wrong_type(o, key, "a number", value, err);
  }
  double found = json_number_value(value);
  if (!(found >= min && found <= max)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\": expected %g to %g, found %g", o.where,
                         key, min, max, found);
  }
  *out = found;
  return MGL_OK;
}

mgl_status mgl_json_opt_bool(mgl_json_object o, const char *key, bool *out, mgl_error *err) {
  const json_t *value = member(o, key);
  if (value == NULL) {
    return MGL_OK;
  }
  if (!json_is_boolean(value)) {
    return wrong_type(o, key, "true or false", value, err);
  }
  *out = json_is_true(value);
  return MGL_OK;
}

mgl_status mgl_json_opt_string(mgl_json_object o, const char *key, const char **out,
                               mgl_error *err) {
  const json_t *value = member(o, key);
  if (value == NULL) {
    return MGL_OK;
  }
  if (!json_is_string(value)) {
    return wrong_type(o, key, "a string", value, err);
  }
  const char *text = mgl_json_plain_string(value);
  if (text == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%s\": a string with a NUL byte", o.where, key);
  }
  *out = text;
  return MGL_OK;
}

mgl_status mgl_json_opt_object(mgl_json_object o, const char *key, mgl_json_object *out,
                               mgl_error *err) {
  const json_t *value = member(o, key);
  *out = (mgl_json_object){.object = NULL, .where = o.where};
  if (value != NULL && !json_is_object(value)) {
    return wrong_type(o, key, "an object", value, err);
  }
  out->object = value;
  return MGL_OK;
}
