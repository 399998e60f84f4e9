// Takes a model's output apart: thoughts, calls of tools, and what is said.
//
// Thoughts stand between <think> and </think>; calls, as Qwen and Hermes write them, between
// <tool_call> and </tool_call>, each a JSON object with a name and arguments. Text comes in pieces
// of any size; what may be the beginning of a mark waits. What is malformed is passed on as text:
// a model's mistake must not cost its answer.
#ifndef MGL_SERVE_OUTPUT_PARSER_H
#define MGL_SERVE_OUTPUT_PARSER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

enum { MGL_MAX_TOOL_CALL_BYTES = 1024 * 1024 };  // longer ones are text

typedef struct mgl_output_sink {
  void *context;
  void (*said)(void *context, const char *text, size_t bytes);
  void (*thought)(void *context, const char *text, size_t bytes);
  // arguments: the text of a JSON object.
  void (*called)(void *context, const char *name, const char *arguments);
} mgl_output_sink;

// Zero-initialise, set the first two; free with mgl_output_parser_free.
typedef struct mgl_output_parser {
  bool finds_thoughts;
  bool finds_calls;
  int part;       // of mgl_output_part
  mgl_text held;  // of the part, not handed on yet
} mgl_output_parser;

void mgl_output_parser_push(mgl_output_parser *parser, const char *text, size_t bytes,
                            const mgl_output_sink *sink);
// No more text: hands on what waits.
void mgl_output_parser_finish(mgl_output_parser *parser, const mgl_output_sink *sink);
void mgl_output_parser_free(mgl_output_parser *parser);

#endif
