#include "serve/output_parser.h"

#include <string.h>

#include "base/alloc.h"
#include "base/json.h"

typedef enum mgl_output_part { PART_SAID, PART_THOUGHT, PART_CALL } mgl_output_part;

typedef struct mark {
  mgl_output_part inside;  // the part that it ends
  mgl_output_part begins;
  const char *text;
} mark;

static const mark marks[] = {
    {PART_SAID, PART_THOUGHT, "<think>"},
    {PART_THOUGHT, PART_SAID, "</think>"},
    {PART_SAID, PART_CALL, "<tool_call>"},
    {PART_CALL, PART_SAID, "</tool_call>"},
};

enum { MARK_COUNT = sizeof marks / sizeof *marks };

static bool is_sought(const mgl_output_parser *p, const mark *m) {
  bool is_call = m->inside == PART_CALL || m->begins == PART_CALL;
  return (mgl_output_part)p->part == m->inside && (is_call ? p->finds_calls : p->finds_thoughts);
}

static void hand_on(const mgl_output_parser *p, const char *text, size_t bytes,
                    const mgl_output_sink *sink) {
  if (bytes > 0) {
    (p->part == PART_THOUGHT ? sink->thought : sink->said)(sink->context, text, bytes);
  }
}

// The whole inside of a call.
static bool read_call(const char *text, size_t bytes, const mgl_output_sink *sink) {
  json_t *root = NULL;
  if (mgl_json_parse(text, bytes, "call", &root, NULL) != MGL_OK) {
    return false;
  }
  const char *name = json_string_value(json_object_get(root, "name"));
  const json_t *value = json_object_get(root, "arguments");
  value = value == NULL ? json_object_get(root, "parameters") : value;
  char *arguments = json_is_object(value) ? json_dumps(value, JSON_COMPACT) : NULL;
  bool is_call = name != NULL && name[0] != 0 && arguments != NULL;
  if (is_call) {
    sink->called(sink->context, name, arguments);
  }
  mgl_free(arguments);
  json_decref(root);
  return is_call;
}

static void pass_on_call(const char *text, size_t bytes, const char *end,
                         const mgl_output_sink *sink) {
  static const char begin[] = "<tool_call>";
  sink->said(sink->context, begin, sizeof begin - 1);
  if (bytes > 0) {
    sink->said(sink->context, text, bytes);
  }
  if (end[0] != 0) {
    sink->said(sink->context, end, strlen(end));
  }
}

// The first mark in what is held, NULL if there is none.
static const mark *find_mark(const mgl_output_parser *p, size_t *at) {
  const mark *found = NULL;
  for (size_t i = 0; i < MARK_COUNT; i++) {
    const char *place =
        is_sought(p, &marks[i]) && p->held.bytes > 0
            ? memmem(p->held.data, p->held.bytes, marks[i].text, strlen(marks[i].text))
            : NULL;
    if (place != NULL && (found == NULL || (size_t)(place - p->held.data) < *at)) {
      found = &marks[i];
      *at = (size_t)(place - p->held.data);
    }
  }
  return found;
}

// How many bytes at the end may be the beginning of a mark.
static size_t count_waiting(const mgl_output_parser *p) {
  size_t waiting = 0;
  for (size_t i = 0; i < MARK_COUNT; i++) {
    size_t most = is_sought(p, &marks[i]) ? strlen(marks[i].text) - 1 : 0;
    for (size_t n = most < p->held.bytes ? most : p->held.bytes; n > waiting; n--) {
      if (memcmp(p->held.data + p->held.bytes - n, marks[i].text, n) == 0) {
        waiting = n;
      }
    }
  }
  return waiting;
}

static void drop(mgl_text *text, size_t bytes) {
  memmove(text->data, text->data + bytes, text->bytes - bytes + 1);
  text->bytes -= bytes;
}

void mgl_output_parser_push(mgl_output_parser *parser, const char *text, size_t bytes,
                            const mgl_output_sink *sink) {
  mgl_output_parser *p = parser;
  const mark *found = NULL;
  size_t at = 0;
  mgl_text_append(&p->held, text, bytes);
  if (p->held.failed || p->held.bytes == 0) {
    return;
  }
  while ((found = find_mark(p, &at)) != NULL) {
    if (p->part != PART_CALL) {
      hand_on(p, p->held.data, at, sink);
    } else if (!read_call(p->held.data, at, sink)) {
      pass_on_call(p->held.data, at, found->text, sink);
    }
    drop(&p->held, at + strlen(found->text));
    p->part = (int)found->begins;
  }
  if (p->part != PART_CALL) {
    size_t sure = p->held.bytes - count_waiting(p);
    hand_on(p, p->held.data, sure, sink);
    drop(&p->held, sure);
  } else if (p->held.bytes > MGL_MAX_TOOL_CALL_BYTES) {
    pass_on_call(p->held.data, p->held.bytes, "", sink);
    mgl_text_clear(&p->held);
    p->part = PART_SAID;
  }
}

void mgl_output_parser_finish(mgl_output_parser *parser, const mgl_output_sink *sink) {
  mgl_output_parser *p = parser;
  if (p->part == PART_CALL) {
    pass_on_call(p->held.data, p->held.bytes, "", sink);
  } else {
    hand_on(p, p->held.data, p->held.bytes, sink);
  }
  mgl_text_clear(&p->held);
  p->part = PART_SAID;
}

void mgl_output_parser_free(mgl_output_parser *parser) {
  mgl_text_free(&parser->held);
}
