#include "serve/openapi.h"

#include <megalith.h>
#include <string.h>

#include "request/parameters.h"

#define OBJECT(required, properties) \
  "{\"type\":\"object\",\"required\":[" required "],\"properties\":{" properties "}}"
#define LIST(items) "{\"type\":\"array\",\"items\":" items "}"
#define ANY "{}"
#define TEXT "{\"type\":\"string\"}"
#define COUNT "{\"type\":\"integer\",\"minimum\":0}"
#define MAYBE(type) "{\"type\":[\"" type "\",\"null\"]}"

#define USAGE                                                        \
  OBJECT("\"prompt_tokens\",\"completion_tokens\",\"total_tokens\"", \
         "\"prompt_tokens\":" COUNT ",\"completion_tokens\":" COUNT ",\"total_tokens\":" COUNT)
#define FINISH "{\"enum\":[\"stop\",\"length\",\"tool_calls\",null]}"
#define ANSWER(object, choice)                                                      \
  OBJECT("\"id\",\"object\",\"created\",\"model\",\"choices\",\"usage\"",           \
         "\"id\":" TEXT ",\"object\":{\"const\":\"" object "\"},\"created\":" COUNT \
         ",\"model\":" TEXT ",\"choices\":" LIST(choice) ",\"usage\":" USAGE)
#define FUNCTION OBJECT("\"name\",\"arguments\"", "\"name\":" TEXT ",\"arguments\":" TEXT)
#define CALL                             \
  OBJECT("\"id\",\"type\",\"function\"", \
         "\"id\":" TEXT ",\"type\":{\"const\":\"function\"},\"function\":" FUNCTION)
#define MESSAGE \
  OBJECT("\"role\",\"content\",\"refusal\"",                                                    \
         "\"role\":{\"const\":\"assistant\"},\"content\":" MAYBE("string") ",\"refusal\":"      \
         "{\"type\":\"null\"},\"reasoning_content\":" TEXT ",\"tool_calls\":" LIST(CALL))

// What stands in answers with status 200: JSON by a schema, or text of a type.
typedef struct description {
  const char *path, *summary, *schema, *type;
} description;

static const description descriptions[] = {
    {"/v1/chat/completions", "Answers a chat",
     ANSWER("chat.completion",
            OBJECT("\"index\",\"message\",\"logprobs\",\"finish_reason\"",
                   "\"index\":" COUNT ",\"message\":" MESSAGE
                   ",\"logprobs\":" MAYBE("object") ",\"finish_reason\":" FINISH)),
     NULL},
    {"/v1/completions", "Continues texts",
     ANSWER("text_completion", OBJECT("\"index\",\"text\",\"logprobs\",\"finish_reason\"",
                                      "\"index\":" COUNT ",\"text\":" TEXT ",\"logprobs\":" MAYBE(
                                          "object") ",\"finish_reason\":" FINISH)),
     NULL},
    {"/v1/responses", "Answers text with text",
     OBJECT("\"id\",\"object\",\"status\",\"output\",\"usage\"",
            "\"id\":" TEXT ",\"object\":{\"const\":\"response\"},\"status\":{\"enum\":"
            "[\"completed\",\"incomplete\"]},\"output\":" LIST(ANY) ",\"usage\":" ANY),
     NULL},
    {"/tokenize", "Makes token ids of a text or a chat",
     OBJECT("\"count\",\"max_model_len\",\"tokens\"",
            "\"count\":" COUNT ",\"max_model_len\":" COUNT
            ",\"tokens\":" LIST(COUNT) ",\"token_strs\":" LIST("{\"type\":\"string\"}")),
     NULL},
    {"/detokenize", "Makes a text of token ids", OBJECT("\"prompt\"", "\"prompt\":" TEXT), NULL},
    {"/v1/models", "The served model",
     OBJECT("\"object\",\"data\"",
            "\"object\":{\"const\":\"list\"},\"data\":" LIST(
                OBJECT("\"id\",\"object\",\"created\",\"owned_by\"",
                       "\"id\":" TEXT ",\"object\":{\"const\":\"model\"},\"created\":" COUNT
                       ",\"owned_by\":" TEXT))),
     NULL},
    {"/health", "Whether the engine works", NULL, "text/plain"},
    {"/ready", "Whether requests are taken", NULL, "text/plain"},
    {"/version", "The version", OBJECT("\"version\"", "\"version\":" TEXT), NULL},
    {"/metrics", "Metrics for Prometheus", NULL, "text/plain"},
    {"/", "A chat in the browser", NULL, "text/html"},
    {"/dashboard", "Metrics as plots", NULL, "text/html"},
    {"/server_info", "Device, limits and memory",
     OBJECT("\"version\",\"model\",\"device\",\"limits\"",
            "\"version\":" TEXT ",\"model\":" TEXT ",\"device\":" TEXT
            ",\"limits\":{\"type\":\"object\"}"),
     NULL},
    {"/openapi.json", "This document",
     OBJECT("\"openapi\",\"info\",\"paths\"",
            "\"openapi\":" TEXT ",\"info\":{\"type\":\"object\"},\"paths\":{\"type\":\"object\"}"),
     NULL},
};

enum { DESCRIPTION_COUNT = sizeof descriptions / sizeof *descriptions };

static const description *find_description(const char *path) {
  for (size_t i = 0; i < DESCRIPTION_COUNT; i++) {
    if (strcmp(descriptions[i].path, path) == 0) {
      return &descriptions[i];
    }
  }
  return NULL;
}

static void append_content(const char *type, const char *schema, mgl_text *out) {
  mgl_text_format(out, "\"%s\":{\"schema\":%s}", type, schema);
}

static void append_error(int status, const char *when, mgl_text *out) {
  mgl_text_format(out, ",\"%d\":{\"description\":\"%s\",\"content\":{", status, when);
  append_content("application/json", "{\"$ref\":\"#/components/schemas/Error\"}", out);
  mgl_text_append_string(out, "}}");
}

static void append_replies(const mgl_server_route *route, const description *d, mgl_text *out) {
  bool streams = route->endpoint == MGL_ENDPOINT_CHAT ||
                 route->endpoint == MGL_ENDPOINT_COMPLETIONS ||
                 route->endpoint == MGL_ENDPOINT_RESPONSES;
  mgl_text_append_string(out, "\"responses\":{\"200\":{\"description\":\"OK\",\"content\":{");
  append_content(d->schema != NULL ? "application/json" : d->type,
                 d->schema != NULL ? d->schema : TEXT, out);
  if (streams) {
    mgl_text_append_string(out, ",");
    append_content("text/event-stream", OBJECT("\"data\"", "\"data\":" TEXT), out);  // each event
  }
  mgl_text_append_string(out, "}}");
  if (!route->is_open) {
    append_error(401, "without a valid API key, where keys are set", out);
  }
  if (route->endpoint != 0) {
    append_error(400, "the body, or the parameter that is named, is not valid", out);
    append_error(404, "another model than the served one", out);
    append_error(408, "the body did not come in time", out);
    append_error(413, "the body is too large", out);
    append_error(429, "the server has as many requests as it takes", out);
    append_error(503, "memory is out, the engine has failed, or the server is ending", out);
  } else if (d->schema == NULL) {
    mgl_text_append_string(out, ",\"503\":{\"description\":\"not now\",\"content\":{");
    append_content("text/plain", TEXT, out);
    mgl_text_append_string(out, "}}");
  }
  mgl_text_append_string(out, "}");
}

static void append_operation(const mgl_server_route *route, uint32_t vocab_size, mgl_text *out) {
  const description *d = find_description(route->path);
  if (d == NULL) {  // test_server.c asks for all
    return;
  }
  bool gets = strcmp(route->method, "GET") == 0;
  mgl_text_format(out, "\"%s\":{\"%s\":{\"summary\":\"%s\",", route->path, gets ? "get" : "post",
                  d->summary);
  if (route->is_open) {
    mgl_text_append_string(out, "\"security\":[],");
  }
  if (route->endpoint != 0) {
    mgl_text body = {0};
    mgl_parameters_append_schema(route->endpoint, vocab_size, &body);
    mgl_text_append_string(out, "\"requestBody\":{\"required\":true,\"content\":{");
    append_content("application/json", body.data == NULL ? "{}" : body.data, out);
    mgl_text_append_string(out, "}},");
    out->failed = out->failed || body.failed;
    mgl_text_free(&body);
  }
  append_replies(route, d, out);
  mgl_text_append_string(out, "}}");
}

void mgl_openapi_append(uint32_t vocab_size, mgl_text *out) {
  mgl_server_route route;
  mgl_text_format(out,
                  "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Megalith\",\"version\":\"%s\"},"
                  "\"security\":[{\"key\":[]},{}],\"paths\":{",
                  megalith_version());
  for (size_t i = 0; mgl_server_route_at(i, &route); i++) {
    mgl_text_append_string(out, i == 0 ? "" : ",");
    append_operation(&route, vocab_size, out);
  }
  mgl_text_append_string(
      out,
      "},\"components\":{\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}},"
      "\"schemas\":{\"Error\":" OBJECT(
          "\"error\"",
          "\"error\":" OBJECT("\"message\",\"type\",\"param\",\"code\"",
                              "\"message\":" TEXT ",\"type\":" TEXT
                              ",\"param\":" MAYBE("string") ",\"code\":" MAYBE("string"))) "}}}");
}
