// Routes: which path does what, and the answers that need no engine.
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "request/json_text.h"
#include "serve/openapi.h"
#include "serve/pages.h"
#include "serve/server_parts.h"

enum { STUCK_SECONDS = 60 };  // without an iteration while there is work

typedef void route_function(mgl_server *server, mgl_exchange *exchange);

typedef struct route {
  const char *path;
  const char *method;
  route_function *function;  // NULL: a call
  mgl_endpoint endpoint;     // of calls
  bool is_open;              // without an API key
} route;

// --- answers -------------------------------------------------------------------------------------

void mgl_server_reply(mgl_server *server, mgl_exchange *exchange, int status, const char *type,
                      const char *headers, const mgl_text *body) {
  if (body->failed) {
    mgl_server_reply_error(server, exchange, 503, "out of memory for an answer", NULL, NULL);
    return;
  }
  server->metrics.requests[status / 100]++;
  mgl_exchange_reply(exchange, status, type, headers, body->data == NULL ? "" : body->data,
                     body->bytes);
}

void mgl_server_reply_error(mgl_server *server, mgl_exchange *exchange, int status,
                            const char *message, const char *parameter, const char *code) {
  mgl_text body = {0};
  const char *headers = status == 429 || status == 503 ? "Retry-After: 1\r\n"
                        : status == 401                ? "WWW-Authenticate: Bearer\r\n"
                                                       : "";
  mgl_answer_append_error(&body, status, message, parameter, code);
  server->metrics.requests[status / 100]++;
  if (body.failed) {
    mgl_exchange_reply(exchange, status, "application/json", headers, "", 0);
  } else {
    mgl_exchange_reply(exchange, status, "application/json", headers, body.data, body.bytes);
  }
  mgl_text_free(&body);
}

static void reply_text(mgl_server *server, mgl_exchange *exchange, int status, const char *text) {
  mgl_text body = {0};
  mgl_text_append_string(&body, text);
  mgl_server_reply(server, exchange, status, "text/plain; charset=utf-8", "", &body);
  mgl_text_free(&body);
}

// --- small routes --------------------------------------------------------------------------------

static bool is_stuck(const mgl_server *server) {
  return mgl_clock_ns() - server->progress_ns > (uint64_t)STUCK_SECONDS * 1000000000u;
}

static void get_health(mgl_server *server, mgl_exchange *exchange) {
  if (server->engine_failed || megalith_engine_check(server->options.engine, NULL) != MEGALITH_OK) {
    reply_text(server, exchange, 503, "the engine has failed\n");
  } else if (is_stuck(server)) {
    reply_text(server, exchange, 503, "no iteration has ended for a minute\n");
  } else {
    reply_text(server, exchange, 200, "ok\n");
  }
}

static void get_ready(mgl_server *server, mgl_exchange *exchange) {
  bool is_ready = server->stops == 0 && !server->engine_failed &&
                  megalith_engine_check(server->options.engine, NULL) == MEGALITH_OK;
  reply_text(server, exchange, is_ready ? 200 : 503, is_ready ? "ready\n" : "draining\n");
}

static void get_version(mgl_server *server, mgl_exchange *exchange) {
  mgl_text body = {0};
  mgl_text_format(&body, "{\"version\":\"%s\"}", megalith_version());
  mgl_server_reply(server, exchange, 200, "application/json", "", &body);
  mgl_text_free(&body);
}

static void append_quoted(mgl_text *out, const char *text) {
  mgl_json_append_string(out, text, strlen(text));
}

static void append_model(const mgl_server *server, mgl_text *out) {
  mgl_text_append_string(out, "{\"id\":");
  append_quoted(out, server->options.model_name);
  mgl_text_format(out,
                  ",\"object\":\"model\",\"created\":%" PRId64
                  ",\"owned_by\":\"megalith\",\"max_model_len\":%u}",
                  (int64_t)server->start_time,
                  megalith_engine_describe(server->options.engine)->context_tokens);
}

static void get_models(mgl_server *server, mgl_exchange *exchange) {
  mgl_text body = {0};
  mgl_text_append_string(&body, "{\"object\":\"list\",\"data\":[");
  append_model(server, &body);
  mgl_text_append_string(&body, "]}");
  mgl_server_reply(server, exchange, 200, "application/json", "", &body);
  mgl_text_free(&body);
}

static void get_server_info(mgl_server *server, mgl_exchange *exchange) {
  const megalith_engine_info *engine = megalith_engine_describe(server->options.engine);
  const megalith_model_info *model = megalith_model_describe(server->options.model);
  mgl_text body = {0};
  mgl_text_format(&body, "{\"version\":\"%s\",\"model\":", megalith_version());
  append_quoted(&body, server->options.model_name);
  mgl_text_append_string(&body, ",\"family\":");
  append_quoted(&body, model->family);
  mgl_text_append_string(&body, ",\"device\":");
  append_quoted(&body, engine->device);
  mgl_text_format(&body,
                  ",\"workers\":%u,\"sequences\":%u,\"context_tokens\":%u,\"kv_tokens\":%" PRIu64
                  ",\"page_tokens\":%u,\"vocab_size\":%u,\"has_chat_template\":%s,"
                  "\"limits\":{\"body_bytes\":%" PRIu64 ",\"requests\":%u,\"connections\":%u}}",
                  engine->workers, engine->sequences, engine->context_tokens, engine->kv_tokens,
                  engine->page_tokens, model->vocab_size,
                  model->has_chat_template ? "true" : "false", server->options.max_body_bytes,
                  server->options.max_requests, server->options.max_connections);
  mgl_server_reply(server, exchange, 200, "application/json", "", &body);
  mgl_text_free(&body);
}

static void get_metrics(mgl_server *server, mgl_exchange *exchange) {
  megalith_statistics statistics = {.size = sizeof statistics};
  mgl_text body = {0};
  (void)megalith_engine_get_statistics(server->options.engine, &statistics, NULL);
  mgl_metrics_append(
      &(mgl_metrics_sources){
          .metrics = &server->metrics,
          .connections = mgl_http_server_counters(server->http),
          .engine = &statistics,
          .model_name = server->options.model_name,
          .page_tokens = megalith_engine_describe(server->options.engine)->page_tokens,
          .active = mgl_jobs_active(server->jobs)},
      &body);
  mgl_server_reply(server, exchange, 200, "text/plain; version=0.0.4; charset=utf-8", "", &body);
  mgl_text_free(&body);
}

static void get_openapi(mgl_server *server, mgl_exchange *exchange) {
  mgl_text body = {0};
  mgl_openapi_append(megalith_model_describe(server->options.model)->vocab_size, &body);
  mgl_server_reply(server, exchange, 200, "application/json", "", &body);
  mgl_text_free(&body);
}

static void get_page(mgl_server *server, mgl_exchange *exchange) {
  const char *path = mgl_exchange_request(exchange)->path;
  const mgl_page_source *page = mgl_page_sources;
  mgl_text headers = {0};
  mgl_text body = {0};
  while (strcmp(page->path, path) != 0) {  // routes names no other
    page++;
  }
  mgl_page_append_headers(page->html, &headers);
  mgl_text_append_string(&body, page->html);
  body.failed = body.failed || headers.failed;
  mgl_server_reply(server, exchange, 200, "text/html; charset=utf-8",
                   headers.data == NULL ? "" : headers.data, &body);
  mgl_text_free(&headers);
  mgl_text_free(&body);
}

// --- finding -------------------------------------------------------------------------------------

static const route routes[] = {
    {"/v1/chat/completions", "POST", NULL, MGL_ENDPOINT_CHAT, false},
    {"/v1/completions", "POST", NULL, MGL_ENDPOINT_COMPLETIONS, false},
    {"/v1/responses", "POST", NULL, MGL_ENDPOINT_RESPONSES, false},
    {"/tokenize", "POST", NULL, MGL_ENDPOINT_TOKENIZE, false},
    {"/detokenize", "POST", NULL, MGL_ENDPOINT_DETOKENIZE, false},
    {"/v1/models", "GET", get_models, 0, false},
    {"/health", "GET", get_health, 0, true},
    {"/ready", "GET", get_ready, 0, true},
    {"/version", "GET", get_version, 0, false},
    {"/metrics", "GET", get_metrics, 0, false},
    {"/server_info", "GET", get_server_info, 0, false},
    {"/openapi.json", "GET", get_openapi, 0, false},
    // Open, since browsers send no keys; they hold nothing, and what they ask for needs one.
    {"/", "GET", get_page, 0, true},
    {"/dashboard", "GET", get_page, 0, true},
};

static void refuse_method(mgl_server *server, mgl_exchange *exchange, bool gets) {
  mgl_text body = {0};
  mgl_answer_append_error(&body, 405, gets ? "expected method GET" : "expected method POST", NULL,
                          NULL);
  mgl_server_reply(server, exchange, 405, "application/json",
                   gets ? "Allow: GET, HEAD\r\n" : "Allow: POST\r\n", &body);
  mgl_text_free(&body);
}

bool mgl_server_route_at(size_t i, mgl_server_route *out) {
  if (i >= sizeof routes / sizeof *routes) {
    return false;
  }
  *out = (mgl_server_route){.path = routes[i].path,
                            .method = routes[i].method,
                            .endpoint = routes[i].endpoint,
                            .is_open = routes[i].is_open};
  return true;
}

// The route of a request; NULL where it has been refused.
static const route *find_route(mgl_server *server, mgl_exchange *exchange) {
  const mgl_http_reader *request = mgl_exchange_request(exchange);
  const route *found = NULL;
  for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
    found = strcmp(routes[i].path, request->path) == 0 ? &routes[i] : found;
  }
  // A path that does not exist needs a key too, so that nobody learns what is here without one.
  if ((found == NULL || !found->is_open) &&
      !mgl_api_keys_allow(&server->keys, mgl_http_header_of(request, "Authorization"))) {
    mgl_server_reply_error(server, exchange, 401, "expected a valid API key: Authorization: Bearer",
                           NULL, "invalid_api_key");
    return NULL;
  }
  if (found == NULL) {
    mgl_server_reply_error(server, exchange, 404, "there is nothing at this path", NULL, NULL);
    return NULL;
  }
  bool is_head = strcmp(found->method, "GET") == 0 && strcmp(request->method, "HEAD") == 0;
  if (strcmp(found->method, request->method) != 0 && !is_head) {
    refuse_method(server, exchange, strcmp(found->method, "GET") == 0);
    return NULL;
  }
  if (found->function == NULL && !mgl_jobs_has_room(server->jobs)) {
    server->metrics.overloads++;
    mgl_server_reply_error(server, exchange, 429, "the server has as many requests as it takes",
                           NULL, "overloaded");
    return NULL;
  }
  return found;
}

bool mgl_server_accepts(void *context, mgl_exchange *exchange) {
  return find_route(context, exchange) != NULL;
}

void mgl_server_on_request(void *context, mgl_exchange *exchange) {
  mgl_server *server = context;
  const route *found = find_route(server, exchange);
  if (found == NULL) {
    return;
  }
  if (found->function != NULL) {
    found->function(server, exchange);
  } else {
    mgl_server_start_call(server, exchange, found->endpoint);
  }
}

void mgl_server_on_refused(void *context, mgl_exchange *exchange, int status, const char *reason) {
  mgl_server_reply_error(context, exchange, status, reason, NULL, NULL);
}
