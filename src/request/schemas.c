// JSON Schema of bodies, from the same table by which they are read.
#include <string.h>

#include "request/parameters.h"
#include "request/value_schemas.h"

static void append_only(const mgl_parameter *p, mgl_text *out) {
  size_t bytes = strlen(p->values) - 2;  // without its brackets
  mgl_text_append_string(out, "{\"enum\":[");
  mgl_text_append(out, p->values + 1, bytes);
  mgl_text_append_string(out, bytes == 0 ? "null]}" : ",null]}");
}

static bool is_required(const mgl_parameter *p) {
  return strcmp(p->otherwise, "required") == 0;
}

// A schema with the vocabulary's last id in its places.
static void append_with_ids(const char *schema, uint32_t vocab_size, mgl_text *out) {
  const char *place = NULL;
  while ((place = strstr(schema, SCHEMA_LAST_ID)) != NULL) {
    mgl_text_append(out, schema, (size_t)(place - schema));
    mgl_text_format(out, "%u", vocab_size - 1);
    schema = place + strlen(SCHEMA_LAST_ID);
  }
  mgl_text_append_string(out, schema);
}

void mgl_parameter_append_schema(const mgl_parameter *p, uint32_t vocab_size, mgl_text *out) {
  switch (p->type) {
    case MGL_PARAMETER_BOOL:
      mgl_text_append_string(out, "{\"type\":[\"boolean\",\"null\"]}");
      break;
    case MGL_PARAMETER_U32:
      mgl_text_format(out, "{\"type\":[\"integer\",\"null\"],\"minimum\":%.0f,\"maximum\":%.0f}",
                      p->min, p->max);
      break;
    case MGL_PARAMETER_REAL:
      mgl_text_format(out, "{\"type\":[\"number\",\"null\"],\"minimum\":%g,\"maximum\":%g}", p->min,
                      p->max);
      break;
    case MGL_PARAMETER_TEXT:
      mgl_text_format(out,
                      "{\"type\":[\"string\",\"null\"],\"minLength\":%.0f,\"maxLength\":%.0f,"
                      "\"pattern\":\"^[^\\\\u0000]*$\"}",
                      p->min, p->max);
      break;
    case MGL_PARAMETER_READ:
      mgl_text_append_string(out, is_required(p) ? "" : "{\"anyOf\":[");
      append_with_ids(p->schema, vocab_size, out);
      mgl_text_append_string(out, is_required(p) ? "" : ",{\"type\":\"null\"}]}");
      break;
    case MGL_PARAMETER_ONLY: append_only(p, out); break;
  }
}

void mgl_parameters_append_schema(mgl_endpoint endpoint, uint32_t vocab_size, mgl_text *out) {
  const mgl_parameter *p = NULL;
  mgl_text required = {0};
  const char *comma = "";
  mgl_text_append_string(out,
                         "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
  for (size_t i = 0; (p = mgl_parameter_at(i)) != NULL; i++) {
    if ((p->endpoints & (unsigned)endpoint) == 0) {
      continue;
    }
    mgl_text_format(out, "%s\"%s\":", comma, p->name);
    mgl_parameter_append_schema(p, vocab_size, out);
    comma = ",";
    if (is_required(p)) {
      mgl_text_format(&required, "%s\"%s\"", required.bytes == 0 ? "" : ",", p->name);
    }
  }
  mgl_text_append_string(out, "}");
  if (endpoint == MGL_ENDPOINT_TOKENIZE) {  // which takes one of two
    mgl_text_append_string(
        out, ",\"oneOf\":[{\"required\":[\"prompt\"]},{\"required\":[\"messages\"]}]");
  } else if (required.bytes > 0) {
    mgl_text_format(out, ",\"required\":[%s]", required.data);
  }
  mgl_text_append_string(out, "}");
  out->failed = out->failed || required.failed;
  mgl_text_free(&required);
}
