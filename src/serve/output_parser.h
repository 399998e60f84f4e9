// Takes a model's output apart: thoughts, calls of tools, and what is said.
//
// Thoughts stand between <think> and </think>. How calls are written depends on the model:
//
//   hermes   <tool_call>{"name": N, "arguments": {...}}</tool_call>     Qwen, Hermes
//   llama3   {"name": N, "parameters": {...}}; {...}     at the beginning, or behind <|python_tag|>
//   mistral  [TOOL_CALLS] [{"name": N, "arguments": {...}}, ...]        up to v7
//            [TOOL_CALLS]N[ARGS]{...}                                   since v11
//
// Text comes in pieces of any size; what may be the beginning of a mark waits. Arguments are handed
// on as they come, once the name is known. What is malformed is passed on as text: a model's
// mistake must not cost its answer. (Of a call whose beginning has gone out, that is what was not
// handed on yet; with holds_calls none goes out before it is whole.)
#ifndef MGL_SERVE_OUTPUT_PARSER_H
#define MGL_SERVE_OUTPUT_PARSER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"
#include "serve/call_scan.h"

enum { MGL_MAX_TOOL_CALL_BYTES = 1024 * 1024 };  // longer ones are text

typedef enum mgl_tool_format {
  MGL_TOOLS_NONE,
  MGL_TOOLS_HERMES,
  MGL_TOOLS_LLAMA3,
  MGL_TOOLS_MISTRAL,
} mgl_tool_format;

// How a model writes calls of tools and thoughts, which become tool_calls and reasoning_content.
typedef struct mgl_output_syntax {
  mgl_tool_format tools;
  bool finds_thoughts;
} mgl_output_syntax;

typedef struct mgl_output_sink {
  void *context;
  void (*said)(void *context, const char *text, size_t bytes);
  void (*thought)(void *context, const char *text, size_t bytes);
  // A call begins; then come its arguments, the text of a JSON object in pieces.
  void (*called)(void *context, const char *name);
  void (*argued)(void *context, const char *text, size_t bytes);
} mgl_output_sink;

// Zero-initialise, set the first four; free with mgl_output_parser_free.
typedef struct mgl_output_parser {
  mgl_tool_format tools;
  bool finds_thoughts;
  bool starts_in_thought;  // the prompt has opened it
  bool holds_calls;
  // Private:
  bool is_started;
  int part;           // of mgl_output_part
  mgl_text held;      // from the beginning of the part on, not handed on yet
  size_t mark_bytes;  // of held: said when the part turns out to be nothing
  size_t at;          // of held: where reading goes on
  size_t object_at;   // of held: where the call's JSON begins
  mgl_call_scan scan;
  bool is_told;  // the call has been told to begin,
  size_t told;   // and its arguments up to here
} mgl_output_parser;

void mgl_output_parser_push(mgl_output_parser *parser, const char *text, size_t bytes,
                            const mgl_output_sink *sink);
// No more text: hands on what waits.
void mgl_output_parser_finish(mgl_output_parser *parser, const mgl_output_sink *sink);
void mgl_output_parser_free(mgl_output_parser *parser);

// What a chat template speaks: the format of its calls, and whether it knows <think>.
mgl_tool_format mgl_tool_format_of_template(const char *chat_template);
bool mgl_template_thinks(const char *chat_template);
// Whether a rendered prompt has opened a thought that the answer goes on with.
bool mgl_prompt_is_in_thought(const char *prompt, size_t bytes);

#endif
