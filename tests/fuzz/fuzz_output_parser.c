// Fuzzes the parsers of models' outputs. The first byte chooses the format, whether the output
// begins in a thought, and the size of the pieces; the rest is the output.
//
// Checked: nothing is lost (what is said, thought, and handed on as arguments is no more than the
// output, and all of it where nothing is sought); arguments are valid JSON objects when calls are
// held; the same comes out in pieces as at once.
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/output_parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) {
    abort();
  }
}

typedef struct found {
  mgl_text text;  // with a letter in front of what is of another kind than before
  char kind;
  size_t bytes;  // of the output
  bool holds;
} found;

static void note(found *f, char kind, const char *text, size_t bytes) {
  if (f->kind != kind || kind == 'C') {
    mgl_text_append(&f->text, &kind, 1);
    f->kind = kind;
  }
  mgl_text_append(&f->text, text, bytes);
  f->bytes += bytes;
}

static void on_said(void *context, const char *text, size_t bytes) {
  require(bytes > 0);
  note(context, 'S', text, bytes);
}

static void on_thought(void *context, const char *text, size_t bytes) {
  require(bytes > 0);
  note(context, 'T', text, bytes);
}

static void on_called(void *context, const char *name) {
  require(name[0] != 0);
  note(context, 'C', name, strlen(name));
  ((found *)context)->bytes -= strlen(name);  // escapes make it shorter than it was written
}

static void on_argued(void *context, const char *text, size_t bytes) {
  found *f = context;
  if (f->holds) {
    // Numbers that overflow and escapes that are no character are the tool's business.
    require(bytes >= 2 && text[0] == '{' && text[bytes - 1] == '}');
  }
  note(f, 'A', text, bytes);
}

static void parse(mgl_output_parser parser, const char *text, size_t size, size_t part,
                  found *out) {
  mgl_output_sink sink = {.context = out,
                          .said = on_said,
                          .thought = on_thought,
                          .called = on_called,
                          .argued = on_argued};
  *out = (found){.holds = parser.holds_calls};
  for (size_t at = 0; at < size; at += part) {
    mgl_output_parser_push(&parser, text + at, size - at < part ? size - at : part, &sink);
  }
  mgl_output_parser_finish(&parser, &sink);
  mgl_output_parser_free(&parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const char *text = (const char *)data + 1;
  unsigned how = data[0];
  mgl_output_parser parser = {.tools = (mgl_tool_format)(how & 3),
                              .finds_thoughts = (how & 4) != 0,
                              .starts_in_thought = (how & 8) != 0,
                              .holds_calls = (how & 16) != 0};
  found whole;
  found pieces;
  parse(parser, text, size - 1, size, &whole);
  parse(parser, text, size - 1, 1 + (how >> 5), &pieces);
  require(
      whole.text.bytes == pieces.text.bytes &&
      (whole.text.bytes == 0 || memcmp(whole.text.data, pieces.text.data, whole.text.bytes) == 0));
  require(whole.bytes <= size - 1);
  require((how & 15) != 0 || whole.bytes == size - 1);
  mgl_text_free(&whole.text);
  mgl_text_free(&pieces.text);
  return 0;
}
