// The table of all parameters of all endpoints: from it bodies are read, messages of errors made
// and the table of docs/serve.md printed.
#ifndef MGL_REQUEST_PARAMETERS_H
#define MGL_REQUEST_PARAMETERS_H

#include "base/text.h"
#include "request/ask.h"

typedef enum mgl_parameter_type {
  MGL_PARAMETER_BOOL,
  MGL_PARAMETER_U32,   // a whole number in [min, max]
  MGL_PARAMETER_REAL,  // a number in [min, max]
  MGL_PARAMETER_TEXT,  // of min to max bytes, without NUL
  MGL_PARAMETER_READ,  // `read` checks and reads it
  MGL_PARAMETER_ONLY,  // only the values of `values`, a JSON array, which change nothing
} mgl_parameter_type;

struct mgl_parameter;
typedef mgl_status mgl_parameter_read(mgl_ask *ask, const struct mgl_parameter *parameter,
                                      const json_t *value, mgl_error *err);

typedef struct mgl_parameter {
  const char *name;
  unsigned endpoints;  // of mgl_endpoint
  mgl_parameter_type type;
  double min, max;
  size_t offset;  // of the field in mgl_ask, by type bool, uint32_t, double, const char *
  mgl_parameter_read *read;  // of MGL_PARAMETER_READ
  const char *values;        // in words (of MGL_PARAMETER_READ), or the JSON array
  const char *otherwise;     // what counts without it, in words
  const char *meaning;
  const char *schema;  // of MGL_PARAMETER_READ: JSON Schema, but for null
} mgl_parameter;

// NULL behind the last one.
const mgl_parameter *mgl_parameter_at(size_t i);

// The parameter of that name at that endpoint. Unknown: an error that names the nearest one.
mgl_status mgl_parameter_find(mgl_endpoint endpoint, const char *name, const mgl_parameter **out,
                              mgl_error *err);
// Checks one value and puts it into *ask.
mgl_status mgl_parameter_set(mgl_ask *ask, const mgl_parameter *parameter, const json_t *value,
                             mgl_error *err);

// Appends the JSON Schema of a value (null always counts as absent), where token ids are below
// vocab_size.
void mgl_parameter_append_schema(const mgl_parameter *parameter, uint32_t vocab_size,
                                 mgl_text *out);
// And that of a whole body.
void mgl_parameters_append_schema(mgl_endpoint endpoint, uint32_t vocab_size, mgl_text *out);

// Appends the list of the documentation, in Markdown.
void mgl_parameters_append_table(mgl_text *out);

// "expected EXPECTED, found VALUE" of a parameter, for readers.
mgl_status mgl_parameter_refuse(const char *name, const char *expected, const json_t *found,
                                mgl_error *err);

#endif
